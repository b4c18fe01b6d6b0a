"""Replicas for a demand: queueing, batching, mixed pools, cost quantiles, and the limits of all of them."""

from dataclasses import replace
from math import inf, isclose, nan

import pytest

from controller.core.capacity import (
    EXACT_SERVERS_MAX,
    LISTED_REPLICAS_MAX,
    REPLICAS_LIMIT,
    curve,
    demand_at_quantile,
    erlang_c,
    mixed_curve,
    required_replicas,
    service_quantile,
    sustainable_qps,
    wait_exceed_probability,
)
from controller.core.types import Policy, Slo
from tests.unit.core.worlds import A10, LEVELS, SIMPLE, T4

SLO = Slo()


@pytest.mark.parametrize(
    ("servers", "load", "expected"),
    [
        pytest.param(1, 0.5, 0.5, id="one server waits with its utilization"),
        pytest.param(2, 1.0, 1 / 3, id="two servers, textbook"),
        pytest.param(10, 8.0, 0.4092, id="ten servers at 80 percent, from tables"),
        pytest.param(3, 0.0, 0.0, id="no load, nobody waits"),
        pytest.param(3, 3.0, 1.0, id="at capacity everybody waits"),
    ],
)
def test_erlang_c_agrees_with_published_values(servers: int, load: float, expected: float) -> None:
    assert expected == pytest.approx(erlang_c(servers, load), abs=5e-5)


@pytest.mark.parametrize("utilization", [0.90, 0.95, 0.99])
def test_the_limit_formula_meets_the_exact_one_where_it_takes_over(utilization: float) -> None:
    exact = erlang_c(EXACT_SERVERS_MAX, utilization * EXACT_SERVERS_MAX)
    limit = erlang_c(EXACT_SERVERS_MAX + 1, utilization * (EXACT_SERVERS_MAX + 1))

    assert exact == pytest.approx(limit, abs=0.02)


def test_far_from_capacity_nobody_waits_in_a_large_pool() -> None:
    assert erlang_c(100_000, 1_000.0) == 0.0


@pytest.mark.parametrize(
    ("pool", "demand"),
    [
        pytest.param(((SIMPLE, 1),), 100.0, id="at capacity"),
        pytest.param(((SIMPLE, 1),), 500.0, id="over capacity"),
        pytest.param((), 1.0, id="no replicas"),
        pytest.param(((SIMPLE, 0),), 1.0, id="none of the listed"),
    ],
)
def test_at_or_over_capacity_every_wait_is_too_long(pool: tuple, demand: float) -> None:  # type: ignore[type-arg]
    assert wait_exceed_probability(pool, demand, 0.5) == 1.0


def test_no_demand_never_waits() -> None:
    assert wait_exceed_probability((), 0.0, 0.5) == 0.0


def test_batch_formation_uses_up_part_of_the_allowed_wait() -> None:
    slow_batcher = replace(T4, queue_delay_max_s=0.4)

    assert sustainable_qps(((slow_batcher, 4),), SLO) < sustainable_qps(((T4, 4),), SLO)


def test_burstier_arrivals_need_more_replicas() -> None:
    tight = Slo(wait_s=0.02)
    counts = [required_replicas(7_000.0, T4, tight, scv) for scv in (1.0, 10.0, 100.0)]

    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_more_demand_per_replica_is_carried_by_a_larger_pool() -> None:
    per_replica = [sustainable_qps(((SIMPLE, n),), SLO) / n for n in (1, 4, 16, 64)]

    assert per_replica == sorted(per_replica)


def test_only_no_demand_at_all_needs_no_replica() -> None:
    assert [required_replicas(qps, SIMPLE, SLO) for qps in (0.0, 0.001, 1.0)] == [0, 1, 1]


@pytest.mark.parametrize("qps", [-1.0, nan, inf])
def test_a_demand_that_is_no_number_is_refused_by_name(qps: float) -> None:
    with pytest.raises(ValueError, match="demand_qps must be finite and >= 0"):
        required_replicas(qps, SIMPLE, SLO)


def test_an_absurd_demand_ends_at_the_limit_instead_of_looping() -> None:
    assert required_replicas(1e300, SIMPLE, SLO) == REPLICAS_LIMIT


@pytest.mark.parametrize(
    "count", [1, 7, EXACT_SERVERS_MAX, LISTED_REPLICAS_MAX, LISTED_REPLICAS_MAX + 1, 2_000]
)
def test_required_is_the_smallest_count_that_sustains(count: int) -> None:
    demand = curve(SIMPLE, SLO).qps(count)

    assert count == required_replicas(demand * 0.999999, SIMPLE, SLO)
    assert count + 1 == required_replicas(demand * 1.000001, SIMPLE, SLO)


def test_beyond_the_list_the_line_goes_on_straight_and_promises_no_more_than_the_formula() -> None:
    count = 4 * LISTED_REPLICAS_MAX
    line, formula = curve(SIMPLE, SLO).qps(count), sustainable_qps(((SIMPLE, count),), SLO)

    assert line <= formula
    assert line == pytest.approx(formula, rel=0.01)


def test_a_mixed_pool_beyond_the_list_grows_by_its_first_profile() -> None:
    line = mixed_curve([T4] * 4, A10, SLO)

    assert line.qps(LISTED_REPLICAS_MAX + 1) - line.qps(LISTED_REPLICAS_MAX) == pytest.approx(
        A10.qps_max, rel=0.01
    )


def test_the_curve_never_falls_across_the_seam_between_the_formulas() -> None:
    line = curve(replace(SIMPLE, service_scv=4.0), SLO, 4.0)
    values = [line.qps(n) for n in range(EXACT_SERVERS_MAX - 5, EXACT_SERVERS_MAX + 6)]

    assert values == sorted(values)


def test_the_same_arguments_share_one_curve() -> None:
    assert curve(SIMPLE, SLO) is curve(replace(SIMPLE), Slo())


def test_faster_replicas_of_a_mixed_pool_count_first() -> None:
    # 2 A10 carry what 5 T4 do: beside 2 A10 and 4 T4, the last 19 000 QPS of 35 000 need A10 again.
    mixed = mixed_curve([T4] * 4 + [A10] * 2, A10, SLO)

    assert mixed.required(35_000.0) == 9
    assert mixed_curve([A10] * 2, A10, SLO).required(35_000.0) == 7
    assert mixed.required(10_000.0) == 2


def test_a_pool_of_one_kind_is_not_mixed() -> None:
    assert mixed_curve([T4] * 3, T4, SLO) is curve(T4, SLO, 1.0)
    assert mixed_curve([], T4, SLO) is curve(T4, SLO, 1.0)


def test_a_mixed_pool_needs_more_than_a_floor_sized_for_the_better_profile() -> None:
    line = mixed_curve([T4] * 4, A10, SLO)

    assert line.in_mix(7) == 10  # 4 T4 carry what 1.6 A10 do
    assert curve(A10, SLO).in_mix(7) == 7


def test_a_floor_is_never_undercut_because_better_replicas_are_there() -> None:
    assert mixed_curve([A10] * 4, T4, SLO).in_mix(7) == 7


@pytest.mark.parametrize(
    ("under", "over", "expected"),
    [(99.0, 1.0, 0.99), (1.0, 1.0, 0.5), (1.0, 0.0, 1.0), (0.0, 1.0, 0.0)],
)
def test_the_quantile_to_serve_is_the_share_of_the_cost_of_being_short(
    under: float, over: float, expected: float
) -> None:
    policy = Policy(cost_under_per_hour=under, cost_over_per_hour=over)

    assert expected == service_quantile(policy)


VALUES = (10.0, 20.0, 40.0, 50.0, 90.0)


@pytest.mark.parametrize(
    ("quantile", "expected"),
    [
        pytest.param(0.0, 10.0, id="below the lowest level: the lowest value"),
        pytest.param(0.1, 10.0, id="the lowest level"),
        pytest.param(0.5, 20.0, id="a level in the middle"),
        pytest.param(0.99, 90.0, id="the highest level"),
        pytest.param(0.9999, 90.0, id="above the highest level: no extrapolation"),
        pytest.param(1.0, 90.0, id="certainty"),
    ],
)
def test_demand_at_a_level_is_its_value_and_never_beyond_the_outermost(
    quantile: float, expected: float
) -> None:
    assert expected == demand_at_quantile(LEVELS, VALUES, quantile)


def test_between_levels_the_tail_bends() -> None:
    between = demand_at_quantile(LEVELS, VALUES, 0.975)

    assert 50.0 < between < 90.0
    # -log(1 - p): 0.975 lies 43 % of the way from 0.95 to 0.99, not 62.5 %.
    assert isclose(50.0 + 0.4307 * 40.0, between, rel_tol=1e-3)


def test_a_single_level_is_the_whole_forecast() -> None:
    assert [demand_at_quantile((0.5,), (7.0,), q) for q in (0.1, 0.5, 0.9)] == [7.0, 7.0, 7.0]
