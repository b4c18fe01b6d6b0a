"""Invariants of the arithmetic under a decision.

1. Required replicas grow with demand and shrink with a better profile; the count required is sustained, one
fewer is not.
2. The chance to wait too long is a probability, grows with demand and shrinks with replicas.
3. A mixed pool never needs fewer replicas than the best profile alone, nor more than the worst alone.
4. A quantile read between levels lies between its neighbours and grows with the level.
5. Lead times are finite, at least zero, grow with the batch, and lie between prior and data.
6. Behavior never overshoots the target, never turns the direction, and is exact where nothing limits it.
7. Merging opinions is monotone in every floor and ceiling, and the result of any order of them is the same.
"""

from dataclasses import replace
from datetime import timedelta
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.core.arbitration import arbitrate
from controller.core.behavior import pace
from controller.core.capacity import (
    demand_at_quantile,
    mixed_curve,
    required_replicas,
    sustainable_qps,
    wait_exceed_probability,
)
from controller.core.leadtime import DEFAULT_PRIORS, LeadSample, estimate_lead_time, quantile
from controller.core.types import (
    CapacityProfile,
    PastNeed,
    PolicyType,
    Recommendation,
    RecommendationKind,
    ScaleChange,
    ScalingPolicy,
    ScalingRules,
    SelectPolicy,
    Slo,
    Source,
)
from tests.unit.core.worlds import A10, LEVELS, START, T4, seconds

PATIENT = settings(deadline=None)

demands = st.floats(0.0, 20_000.0)
profiles = st.builds(
    CapacityProfile,
    st.just("e"),
    st.just("g"),
    st.sampled_from([150.0, 900.0, 2_500.0]),
    st.integers(1, 3),
    st.sampled_from([1, 8]),
    st.sampled_from([0.0, 0.25, 2.0]),
    st.sampled_from([0.0, 0.01]),
)
slos = st.builds(Slo, st.sampled_from([0.02, 0.5]), st.sampled_from([0.001, 0.05]))
counts = st.integers(0, 60)


@PATIENT
@given(profiles, slos, demands, demands)
def test_1_required_replicas_follow_demand_and_are_the_fewest(
    profile: CapacityProfile, slo: Slo, first: float, second: float
) -> None:
    low, high = sorted((first, second))
    count = required_replicas(high, profile, slo)

    assert required_replicas(low, profile, slo) <= count
    assert required_replicas(high, replace(profile, qps_max=2 * profile.qps_max), slo) <= count
    if 0 < count < 200 // profile.instance_count:
        assert sustainable_qps(((profile, count),), slo) >= high
        assert sustainable_qps(((profile, count - 1),), slo) < high


@PATIENT
@given(profiles, demands, demands, st.integers(1, 30))
def test_2_waiting_too_long_is_a_probability_that_follows_demand_and_replicas(
    profile: CapacityProfile, first: float, second: float, count: int
) -> None:
    low, high = sorted((first, second))
    few, more = (wait_exceed_probability(((profile, count),), qps, 0.05) for qps in (low, high))

    assert 0.0 <= few <= more <= 1.0
    assert wait_exceed_probability(((profile, count + 1),), high, 0.05) <= more


@PATIENT
@given(st.integers(0, 8), st.integers(0, 8), demands)
def test_3_a_mixed_pool_lies_between_its_profiles(t4: int, a10: int, demand: float) -> None:
    slo = Slo()
    mixed = mixed_curve([T4] * t4 + [A10] * a10, A10, slo).required(demand)

    assert required_replicas(demand, A10, slo) <= mixed <= required_replicas(demand, T4, slo)


@PATIENT
@given(st.lists(demands, min_size=5, max_size=5).map(sorted), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_4_a_quantile_lies_between_its_neighbours(values: list[float], first: float, second: float) -> None:
    low, high = sorted((first, second))
    at_low, at_high = (demand_at_quantile(LEVELS, values, level) for level in (low, high))

    assert values[0] - 1e-6 <= at_low <= at_high + 1e-6 <= values[-1] + 2e-6


@PATIENT
@given(
    st.lists(
        st.builds(LeadSample, st.fixed_dictionaries({"load": st.floats(0.0, 600.0)}), st.integers(1, 9)),
        max_size=30,
    ),
    counts,
)
def test_5_lead_times_grow_with_the_batch_and_lie_between_prior_and_data(
    samples: list[LeadSample], count: int
) -> None:
    lead, prior = estimate_lead_time(samples=samples), estimate_lead_time(DEFAULT_PRIORS)

    assert 0.0 <= lead.for_batch(count) <= lead.for_batch(count + 1) < 1e6
    assert all(s >= 0.0 for _, s in lead.stage_p95_s)
    if samples:
        highest = max(quantile([s.total_s for s in samples], 1.0), prior.total_p95_s)
        assert lead.total_p95_s <= highest + 1e-6


rules = st.builds(
    ScalingRules,
    st.integers(0, 600).map(seconds),
    st.sampled_from(SelectPolicy),
    st.lists(
        st.builds(
            ScalingPolicy, st.sampled_from(PolicyType), st.integers(1, 200), st.integers(15, 600).map(seconds)
        ),
        max_size=3,
    ).map(tuple),
)


@PATIENT
@given(
    counts,
    counts,
    rules,
    rules,
    st.lists(st.tuples(st.integers(0, 700), counts), max_size=5),
    st.lists(st.tuples(st.integers(0, 700), st.integers(-9, 9)), max_size=5),
)
def test_6_behavior_never_overshoots_nor_turns(
    current: int,
    target: int,
    up: ScalingRules,
    down: ScalingRules,
    needs: list[tuple[int, int]],
    changes: list[tuple[int, int]],
) -> None:
    paced = pace(
        current,
        target,
        up=up,
        down=down,
        needs=[PastNeed(START - seconds(ago), count) for ago, count in needs],
        changes=[ScaleChange(START - seconds(ago), delta) for ago, delta in changes],
        now=START,
    )
    free = ScalingRules(timedelta(0))

    assert min(current, target) <= paced.replicas <= max(current, target)
    assert pace(current, target, up=free, down=free, needs=(), changes=(), now=START).replicas == target


opinions = st.lists(
    st.builds(
        lambda source, kind, count, priority: Recommendation(
            source, kind, count, f"{source} {kind} {count}", priority
        ),
        st.sampled_from(Source),
        st.sampled_from([k for k in RecommendationKind if k is not RecommendationKind.VETO]),
        st.none() | counts,
        st.integers(0, 3),
    ),
    max_size=8,
)


@PATIENT
@given(opinions, counts, counts, st.integers())
def test_7_merging_is_monotone_in_floors_and_ceilings_and_has_no_order(
    spoken: list[Recommendation], current: int, count: int, seed: int
) -> None:
    merged = arbitrate(spoken, current)
    shuffled = Random(seed).sample(spoken, len(spoken))
    floor = Recommendation(Source.PLAN, RecommendationKind.AT_LEAST, count, "one more floor")
    ceiling = Recommendation(Source.QUOTA, RecommendationKind.AT_MOST, count, "one more ceiling")
    veto = Recommendation(Source.PAUSE, RecommendationKind.VETO, None, "stop")

    assert arbitrate(shuffled, current) == merged
    assert arbitrate([*spoken, floor], current).replicas >= merged.replicas
    assert arbitrate([*spoken, ceiling], current).replicas <= min(merged.replicas, count)
    assert arbitrate([*spoken, veto], current).replicas == current
    assert arbitrate([*spoken, replace(floor, kind=RecommendationKind.ABSTAIN)], current) == merged
