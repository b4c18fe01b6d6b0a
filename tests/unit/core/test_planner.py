"""Dated floors: what the forecast and the planner's word come to, and when it must be ordered."""

from dataclasses import replace
from datetime import datetime, timedelta
from math import inf, nan

import pytest

from controller.core.leadtime import LeadTime
from controller.core.planner import (
    FORECAST_FLOORS_MAX,
    _newest,
    band_sound,
    base_moved,
    build_plan,
    deadline,
    effective_max,
    event_demand,
    explained,
    forecast_usable,
    near_demand,
    need_between,
    order_time,
    plan_digest,
    with_decay,
)
from controller.core.types import (
    CapacityPlan,
    Event,
    Floor,
    ForecastBand,
    ForecastState,
    NearDemand,
    Policy,
    Trust,
)
from tests.unit.core.worlds import (
    LEAD,
    LEVELS,
    MIDNIGHT,
    SIMPLE,
    START,
    band,
    event,
    minutes,
    seconds,
    workload,
)

HOURS = timedelta(hours=1)
PEAK = band(START, [90.0] * 12 + [950.0] * 12 + [90.0] * 12)  # five-minute steps, busy from midnight to one


def plan(*events: Event, forecast: ForecastBand | None = None, **changes: object) -> CapacityPlan:
    values: dict[str, object] = {"now": START, "trust": Trust.TRUSTED, "lead": LEAD, **changes}
    return build_plan(workload(), band=forecast, events=events, **values)  # type: ignore[arg-type]  # keyword names are checked at run time


def event_floor(made: CapacityPlan) -> Floor:
    return next(f for f in made.floors if f.event_id is not None)


# ---------------------------------------------------------------- the forecast


@pytest.mark.parametrize(
    ("changes", "trust", "expected"),
    [
        pytest.param({}, Trust.TRUSTED, True, id="fresh and ready"),
        pytest.param(
            {"state": ForecastState.DEGRADED}, Trust.UNPROVEN, True, id="degraded and unproven still count"
        ),
        pytest.param(
            {"state": ForecastState.INSUFFICIENT_HISTORY}, Trust.TRUSTED, False, id="too little history"
        ),
        pytest.param({"state": ForecastState.FAILED}, Trust.TRUSTED, False, id="failed"),
        pytest.param({"qps": ()}, Trust.TRUSTED, False, id="empty"),
        pytest.param({}, Trust.DISTRUSTED, False, id="distrusted"),
        pytest.param({"origin_at": START - 3 * HOURS}, Trust.TRUSTED, True, id="as old as it may be"),
        pytest.param({"origin_at": START - 4 * HOURS}, Trust.TRUSTED, False, id="stale"),
        pytest.param({"start_at": START - 9 * HOURS}, Trust.TRUSTED, False, id="over"),
    ],
)
def test_which_forecasts_may_set_floors(changes: dict[str, object], trust: Trust, expected: bool) -> None:
    assert expected is forecast_usable(replace(PEAK, **changes), trust, START, 3 * HOURS)  # type: ignore[arg-type]  # fields by name


def test_no_forecast_is_not_usable() -> None:
    assert forecast_usable(None, Trust.TRUSTED, START, HOURS) is False


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"levels": ()}, id="no levels"),
        pytest.param({"levels": (0.5, 0.1, 0.9, 0.95, 0.99)}, id="unsorted levels"),
        pytest.param({"levels": (0.5, 0.5, 0.9, 0.95, 0.99)}, id="a level twice"),
        pytest.param({"levels": (0.1, 0.5, 0.9, 0.95, 1.0)}, id="a level of certainty"),
        pytest.param({"levels": (0.0, 0.5, 0.9, 0.95, 0.99)}, id="a level of never"),
        pytest.param({"qps": ((1.0,),)}, id="a short row"),
        pytest.param({"qps": ((1.0, 1.0, nan, 1.0, 1.0),)}, id="not a number"),
        pytest.param({"qps": ((1.0, 1.0, 1.0, 1.0, inf),)}, id="infinite"),
        pytest.param({"qps": ((-1.0, 1.0, 1.0, 1.0, 1.0),)}, id="negative"),
        pytest.param({"step": timedelta(0)}, id="no step"),
    ],
)
def test_a_band_that_cannot_be_computed_with_is_not_planned_with(changes: dict[str, object]) -> None:
    broken = replace(PEAK, **changes)  # type: ignore[arg-type]  # fields by name

    assert band_sound(PEAK)
    assert not band_sound(broken)
    if broken.step:
        assert plan(forecast=replace(broken, start_at=START)).need == ()


NEAR = NearDemand(START, timedelta(seconds=60), LEVELS, (50.0, 60.0, 70.0, 80.0, 90.0))


@pytest.mark.parametrize(
    ("near", "now", "expected"),
    [
        pytest.param(NEAR, START, 90.0, id="fresh: the cost quantile"),
        pytest.param(None, START, None, id="none"),
        pytest.param(NEAR, START + minutes(5), 90.0, id="a few missed ones are bridged"),
        pytest.param(NEAR, START + minutes(5) + seconds(1), None, id="stale"),
        pytest.param(NEAR, START - minutes(6), None, id="of a clock far ahead"),
        pytest.param(replace(NEAR, lead=seconds(44)), START, None, id="made for a much shorter lead time"),
        pytest.param(replace(NEAR, qps=(1.0,)), START, None, id="a short row"),
        pytest.param(replace(NEAR, qps=(nan,) * 5), START, None, id="not a number"),
        pytest.param(replace(NEAR, levels=(), qps=()), START, None, id="empty"),
        pytest.param(replace(NEAR, levels=LEVELS[::-1]), START, None, id="unsorted levels"),
    ],
)
def test_near_quantiles_count_while_they_are_sound_and_fresh(
    near: NearDemand | None, now: datetime, expected: float | None
) -> None:
    assert expected == near_demand(workload(), near, LEAD, now)


def test_every_step_has_its_need_and_equal_needs_share_a_dated_floor() -> None:
    made = plan(forecast=PEAK)

    assert made.need == (1,) * 12 + (10,) * 12 + (1,) * 12
    assert [(f.replicas, f.needed_at, f.until_at) for f in made.floors] == [
        (1, START, MIDNIGHT),
        (10, MIDNIGHT, MIDNIGHT + HOURS),
        (1, MIDNIGHT + HOURS, MIDNIGHT + 2 * HOURS),
    ]
    assert made.floors[1].reason == "forecast P99.9 of 950 QPS"
    assert made.forecast_id == "forecast-1"


def test_a_floor_is_ordered_its_batchs_lead_time_before_it_is_needed() -> None:
    made = plan(forecast=PEAK, lead=LeadTime(60.0, per_extra_replica_s=5.0))

    assert made.floors[1].order_at == MIDNIGHT - seconds(60 + 8 * 5)
    assert made.floors[2].order_at == MIDNIGHT + HOURS - seconds(60)


def test_what_a_ceiling_cuts_off_the_forecast_is_told() -> None:
    made = plan(forecast=PEAK, ceiling=4)

    assert (made.floors[1].replicas, made.floors[1].unmet_replicas) == (4, 6)


def test_the_list_of_forecast_floors_is_bounded_and_the_need_is_not() -> None:
    jagged = band(START, [90.0, 950.0] * FORECAST_FLOORS_MAX, minutes(1))
    made = plan(forecast=jagged)

    assert len(made.floors) == FORECAST_FLOORS_MAX
    assert len(made.need) == 2 * FORECAST_FLOORS_MAX


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        pytest.param(START, START, 1, id="the step that holds an instant"),
        pytest.param(MIDNIGHT - minutes(6), MIDNIGHT - seconds(1), 1, id="just before"),
        pytest.param(MIDNIGHT - minutes(6), MIDNIGHT, 10, id="the step that begins at the end counts"),
        pytest.param(START - 2 * HOURS, START + minutes(1), 1, id="from before the forecast"),
        pytest.param(START - 2 * HOURS, START - HOURS, None, id="all before the forecast is unknown"),
        pytest.param(
            MIDNIGHT + 3 * HOURS, MIDNIGHT + 4 * HOURS, None, id="all after the forecast is unknown"
        ),
    ],
)
def test_the_need_between_two_instants(start: datetime, end: datetime, expected: int | None) -> None:
    assert expected == need_between(plan(forecast=PEAK), start, end)


def test_without_a_forecast_the_need_is_unknown_not_zero() -> None:
    assert need_between(plan(), START, MIDNIGHT) is None


# ---------------------------------------------------------------- events


def test_the_deadline_is_the_start_less_the_margin_of_event_or_policy() -> None:
    assert deadline(event(), workload()) == MIDNIGHT - seconds(30)
    assert deadline(event(margin=minutes(5)), workload()) == MIDNIGHT - minutes(5)


def test_ordering_walks_back_lead_time_batch_and_tick_slack() -> None:
    lead = LeadTime(60.0, per_extra_replica_s=5.0)

    assert order_time(event(), workload(), lead, 9) == MIDNIGHT - seconds(30 + 60 + 8 * 5 + 15)
    assert order_time(event(lead_override=minutes(10)), workload(), lead, 9) == MIDNIGHT - seconds(630)


def test_an_event_is_one_flat_floor_from_its_deadline_to_its_end() -> None:
    floor = event_floor(plan(event()))

    assert (floor.replicas, floor.needed_at, floor.until_at) == (10, MIDNIGHT - seconds(30), MIDNIGHT + HOURS)
    assert floor.order_at == MIDNIGHT - seconds(30 + 60 + 15)
    assert floor.reason == "event sale: 950 QPS (the planner's expected peak)"


def test_a_forecast_that_contains_the_event_leads_over_the_planners_word() -> None:
    knowing = replace(PEAK, event_ids=frozenset({"sale"}))
    small = event(expected_peak_qps=300.0)

    assert event_demand(small, workload(), knowing, None) == (950.0, "forecast with this event")
    assert event_demand(small, workload(), PEAK, None) == (300.0, "the planner's expected peak")


@pytest.mark.parametrize(("share", "expected"), [(1.0, 1_900.0), (0.6, 1_140.0), (0.0, 950.0)])
def test_a_stated_peak_is_prepared_for_whatever_was_learnt(share: float, expected: float) -> None:
    knowing = replace(PEAK, event_ids=frozenset({"sale"}))
    w = workload(policy=Policy(planner_floor_share=share))

    assert expected == pytest.approx(event_demand(event(expected_peak_qps=1_900.0), w, knowing, None)[0])


@pytest.mark.parametrize(
    ("forecast", "observed_qps", "expected"),
    [
        pytest.param(PEAK, 50.0, (3_800.0, "the planner's multiplier on forecast"), id="forecast first"),
        pytest.param(
            None, 50.0, (200.0, "the planner's multiplier on present demand"), id="then the present"
        ),
        pytest.param(
            band(START, [90.0]),
            50.0,
            (200.0, "the planner's multiplier on present demand"),
            id="forecast too short",
        ),
        pytest.param(
            None, None, (None, "no forecast, no observed demand and no expected peak"), id="unknown"
        ),
    ],
)
def test_a_multiplier_needs_something_to_multiply(
    forecast: ForecastBand | None, observed_qps: float | None, expected: tuple[float | None, str]
) -> None:
    times_four = event(expected_peak_qps=None, expected_multiplier=4.0)

    assert expected == event_demand(times_four, workload(), forecast, observed_qps)


def test_an_event_that_begins_where_the_forecast_ends_is_not_in_it() -> None:
    after = event(
        start_at=PEAK.end_at, end_at=PEAK.end_at + HOURS, expected_peak_qps=None, expected_multiplier=4.0
    )
    before = replace(after, start_at=START - HOURS, end_at=START)

    assert event_demand(after, workload(), PEAK, 50.0)[0] == 200.0
    assert event_demand(before, workload(), PEAK, 50.0)[0] == 200.0


def test_an_event_nobody_can_size_keeps_the_minimum_and_says_so() -> None:
    floor = event_floor(plan(event(expected_peak_qps=None, expected_multiplier=4.0)))

    assert (floor.replicas, floor.demand_qps) == (1, None)
    assert "cannot be sized" in floor.reason


def test_what_the_maximum_cuts_off_an_event_is_known_at_plan_time() -> None:
    big = event(expected_peak_qps=2_900.0)

    assert (event_floor(plan(big)).replicas, event_floor(plan(big)).unmet_replicas) == (20, 10)
    raised = replace(big, max_replicas_override=40)
    assert (event_floor(plan(raised)).replicas, event_floor(plan(raised)).unmet_replicas) == (30, 0)
    assert event_floor(plan(raised, ceiling=12)).unmet_replicas == 18


def test_only_the_replicas_the_forecast_does_not_bring_anyway_count_as_the_events_batch() -> None:
    lead = LeadTime(60.0, per_extra_replica_s=5.0)
    busy = band(START, [490.0] * 36)

    assert event_floor(plan(event(), lead=lead)).order_at == MIDNIGHT - seconds(105 + 8 * 5)
    assert event_floor(plan(event(), forecast=busy, lead=lead)).order_at == MIDNIGHT - seconds(105 + 4 * 5)


def test_a_long_event_holds_its_floor_only_so_long_once_the_forecast_knows_it() -> None:
    long = event(end_at=MIDNIGHT + 12 * HOURS)
    knowing = replace(band(START, [950.0] * 200), event_ids=frozenset({"sale"}))

    assert event_floor(plan(long)).until_at == MIDNIGHT + 12 * HOURS
    assert event_floor(plan(long, forecast=knowing)).until_at == MIDNIGHT + 4 * HOURS


def test_an_event_that_is_over_is_planned_no_more() -> None:
    assert plan(event(), now=MIDNIGHT + HOURS).floors == ()


def test_the_maximum_is_raised_from_order_time_until_the_count_came_down_by_need() -> None:
    big, w = event(max_replicas_override=40), workload()
    order_at = order_time(big, w, LEAD, 40)
    instants = [
        order_at - seconds(1),
        order_at,
        MIDNIGHT + HOURS + minutes(5) - seconds(1),
        MIDNIGHT + HOURS + minutes(5),
    ]

    assert [effective_max(w, [big], at, LEAD) for at in instants] == [20, 40, 40, 20]


def test_a_maximum_raised_for_a_begun_prewarm_stays_up_when_the_lead_time_shrinks() -> None:
    big, at = event(max_replicas_override=40), MIDNIGHT - minutes(10)

    assert effective_max(workload(), [big], at, LEAD) == 20
    assert effective_max(workload(), [big], at, LEAD, {"sale"}) == 40


def test_an_event_that_allows_less_than_the_maximum_lowers_nothing() -> None:
    assert effective_max(workload(), [event(max_replicas_override=2)], MIDNIGHT, LEAD) == 20


# ---------------------------------------------------------------- identity and re-sizing


def test_the_same_inputs_have_the_same_digest_whatever_the_clock_and_the_order() -> None:
    first, second = event("a"), event("b")

    assert plan(first, second).digest == plan(second, first, now=START + minutes(1)).digest


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(plan(event(revision=2)), id="an edited event"),
        pytest.param(plan(), id="a cancelled event"),
        pytest.param(plan(event(), lead=LeadTime(90.0)), id="another lead time"),
        pytest.param(plan(event(), forecast=PEAK), id="a forecast"),
        pytest.param(plan(event(), ceiling=4), id="a ceiling"),
        pytest.param(
            build_plan(
                workload(profiles=(replace(SIMPLE, qps_max=50.0),)),
                now=START,
                band=None,
                trust=Trust.TRUSTED,
                events=(event(),),
                lead=LEAD,
            ),
            id="another measured capacity",
        ),
    ],
)
def test_whatever_a_plan_is_made_from_changes_its_digest(other: CapacityPlan) -> None:
    assert plan(event()).digest != other.digest


def test_a_forecast_that_went_stale_makes_another_plan() -> None:
    w = workload()
    fresh, stale = (plan_digest(w, PEAK, (), LEAD, usable=usable) for usable in (True, False))

    assert fresh != stale


def test_digests_of_forecasts_that_are_over_are_not_kept() -> None:
    w, before = workload(), _newest.cache_info().currsize
    bands = [replace(PEAK, id=f"forecast-{number}") for number in range(50)]
    made = [plan_digest(w, one, (), LEAD, usable=True) for one in bands]

    assert len(bands) == len(set(made))
    assert made == [plan_digest(w, one, (), LEAD, usable=True) for one in bands]
    assert _newest.cache_info().currsize <= before + 1


TIMES_FOUR = event(expected_peak_qps=None, expected_multiplier=4.0)


@pytest.mark.parametrize(
    ("base", "observed_qps", "now", "expected"),
    [
        pytest.param(None, 100.0, START, True, id="demand became known"),
        pytest.param(None, None, START, False, id="still unknown"),
        pytest.param(100.0, None, START, False, id="unknown is no news"),
        pytest.param(100.0, 119.0, START, False, id="moved too little"),
        pytest.param(100.0, 200.0, START, True, id="doubled"),
        pytest.param(100.0, 50.0, START, True, id="halved"),
        pytest.param(100.0, 400.0, MIDNIGHT, False, id="started: present demand contains the event"),
        pytest.param(1.0, 2.0, START, False, id="moved, but needs no other count"),
    ],
)
def test_an_event_sized_on_present_demand_is_sized_again_until_it_starts(
    base: float | None, observed_qps: float | None, now: datetime, expected: bool
) -> None:
    made = plan(TIMES_FOUR, observed_qps=base)

    assert expected is base_moved(made, workload(), [TIMES_FOUR], observed_qps, now)


def test_events_sized_otherwise_are_never_sized_on_present_demand() -> None:
    assert not base_moved(plan(event()), workload(), [event()], 5_000.0, START)
    assert not base_moved(plan(TIMES_FOUR, forecast=PEAK), workload(), [TIMES_FOUR], 5_000.0, START)
    assert not base_moved(plan(TIMES_FOUR, observed_qps=1.0), workload(), [], 5_000.0, START)


def test_a_started_events_multiplier_never_applies_to_its_own_demand() -> None:
    before = plan(TIMES_FOUR, observed_qps=100.0)
    during = plan(TIMES_FOUR, observed_qps=400.0, now=MIDNIGHT, previous=before)

    assert (event_floor(before).demand_qps, event_floor(during).demand_qps) == (400.0, 400.0)


def test_an_edited_multiplier_counts_also_after_the_start() -> None:
    before = plan(TIMES_FOUR, observed_qps=100.0)
    edited = replace(TIMES_FOUR, expected_multiplier=6.0, revision=2)

    assert event_floor(plan(edited, observed_qps=400.0, now=MIDNIGHT, previous=before)).demand_qps == 600.0


def test_demand_that_became_unknown_keeps_an_events_size() -> None:
    before = plan(TIMES_FOUR, observed_qps=100.0)

    assert event_floor(plan(TIMES_FOUR, previous=before)).demand_qps == 400.0


# ---------------------------------------------------------------- decay


@pytest.mark.parametrize(
    ("need", "decayed_s", "expected"),
    [(4, 0.0, 20), (4, 600.0, 12), (4, 1_200.0, 8), (4, 1e9, 4), (25, 600.0, 20)],
)
def test_a_fizzled_floor_halves_its_distance_to_the_need(need: int, decayed_s: float, expected: int) -> None:
    floor = Floor(20, START, START, MIDNIGHT, "")

    assert expected == with_decay(floor, need, decayed_s, 600.0).replicas


@pytest.mark.parametrize(
    ("start_s", "end_s", "expected"),
    [
        (120, 240, (slice(2, 4),)),
        (90, 150, (slice(1, 3),)),  # a bucket it touches is explained by it
        (-600, 60, (slice(0, 1),)),
        (540, 6000, (slice(9, 10),)),
        (600, 900, ()),
        (-600, -1, ()),
    ],
)
def test_buckets_that_an_event_of_stated_size_explains(
    start_s: int, end_s: int, expected: tuple[slice, ...]
) -> None:
    sale = event(start_at=START + seconds(start_s), end_at=START + seconds(end_s))
    unknown = replace(sale, expected_peak_qps=None, expected_multiplier=None)

    assert expected == explained([sale, unknown], START, minutes(1), 10)
