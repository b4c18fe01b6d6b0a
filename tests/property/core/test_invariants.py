"""Invariants of a decision, for any workload, state and observation.

 1. Within bounds: the desired count never exceeds the ceiling in force, and never falls under the floor unless
    the floor lies above it; on every tick, with or without data.
 2. Monotone: more demand never means fewer replicas.
 3. Order-independent: the order of workloads, replicas, events and overrides never matters.
 4. Idempotent: the same tick again, with what it asked for in place, asks for nothing more.
 5. Deterministic: the same state and input give the same state and effects.
 6. A veto dominates: while paused nothing is scaled or replaced, and the count stays.
 7. Abstaining changes nothing: an event outside its window or an expired override decides nothing.
 8. Missing data never scales down, except to a ceiling.
 9. Floors are reached exactly, whatever the tolerance and the rates.
10. A decision is recorded before the scaling it explains, under the same id and with the same count.
11. Panic never scales down, except to a ceiling; a SET override ends it.
12. What is in flight counts: replicas that are ordered are not ordered again.
13. A recorded decision is complete: it names its binding source whenever it moves, and every input.
14. The state survives being written down and read again: the next tick is the same.
15. What is taken away is not called back: with the load as it was, the smaller pool stays as it is.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from random import Random

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from controller.adapters.codec import decode, encode
from controller.core.tick import on_tick
from controller.core.types import (
    Behavior,
    DemandObservation,
    Effect,
    Event,
    FleetState,
    ForecastBand,
    ForecastState,
    Mode,
    NearDemand,
    Override,
    OverrideKind,
    PastNeed,
    Policy,
    PolicyType,
    RecommendationKind,
    RecordDecision,
    ReplaceReplica,
    Replica,
    ScaleChange,
    ScaleTo,
    ScalingPolicy,
    ScalingRules,
    SelectPolicy,
    Source,
    Stage,
    TickInput,
    Trust,
    Workload,
    WorkloadInput,
    WorkloadState,
)
from tests.unit.core.worlds import LEVELS, SIMPLE, START, T4, decisions, minutes, seconds

# How long a machine takes is not what these tests are about.
PATIENT = settings(deadline=None)
HOUR = timedelta(hours=1)
counts = st.integers(0, 30)
qps = st.floats(0.0, 5_000.0)
ages_s = st.integers(0, 900)

scaling_policies = st.builds(
    ScalingPolicy,
    st.sampled_from(PolicyType),
    st.integers(1, 100),
    st.sampled_from([seconds(15), minutes(1), minutes(10)]),
)
rules = st.builds(
    ScalingRules,
    st.sampled_from([timedelta(0), minutes(1), minutes(5)]),
    st.sampled_from(SelectPolicy),
    st.lists(scaling_policies, max_size=2).map(tuple),
)
policies = st.builds(
    Policy,
    behavior=st.builds(Behavior, rules, rules, st.sampled_from([0.0, 0.1, 0.5])),
    panic_threshold=st.sampled_from([1.5, 2.0, 1e9]),
    scale_to_zero_after=st.sampled_from([timedelta(0), minutes(30)]),
    break_even=st.sampled_from([None, minutes(10)]),
)
workloads = st.builds(
    Workload,
    name=st.just("toy"),
    model_name=st.just("toy"),
    profiles=st.just((SIMPLE,)),
    min_replicas=st.integers(0, 12),
    max_replicas=st.integers(0, 25),
    policy=policies,
    mode=st.sampled_from(Mode),
)
replica_lists = st.lists(
    st.builds(
        lambda stage, age_s, profile: (stage, START - seconds(age_s), profile),
        st.sampled_from(Stage),
        ages_s,
        st.sampled_from([None, SIMPLE, T4]),
    ),
    max_size=12,
).map(
    lambda items: tuple(
        Replica(f"r{i:02}", stage, at, at, profile=profile) for i, (stage, at, profile) in enumerate(items)
    )
)
observations = st.builds(
    DemandObservation,
    at=ages_s.map(lambda age_s: START - seconds(age_s / 10)),
    stable_qps=st.one_of(qps, st.sampled_from([float("nan"), float("inf"), -1.0, 0.0, 1e30])),
    panic_qps=st.none() | qps,
    backlog_count=st.floats(0.0, 1e5),
    reporting_count=st.integers(0, 12),
    expected_count=st.integers(0, 12),
    window=st.sampled_from([seconds(2), minutes(1)]),
)
bands = st.builds(
    lambda rows, start_s, state: ForecastBand(
        "f",
        START - minutes(5),
        START + seconds(start_s),
        minutes(5),
        LEVELS,
        tuple((v,) * 5 for v in rows),
        state,
    ),
    st.lists(st.one_of(qps, st.sampled_from([float("nan"), 1e30])), max_size=30),
    st.integers(-7_200, 600),
    st.sampled_from(ForecastState),
)
events = st.lists(
    st.builds(
        lambda start_s, length_s, peak, multiplier, top: (start_s, length_s, peak, multiplier, top),
        st.integers(-7_200, 7_200),
        st.integers(1, 7_200),
        st.none() | qps,
        st.none() | st.floats(0.1, 20.0),
        st.none() | st.integers(1, 40),
    ),
    max_size=3,
).map(
    lambda items: tuple(
        Event(
            f"event-{i}",
            START + seconds(start_s),
            START + seconds(start_s + length_s),
            expected_peak_qps=peak,
            expected_multiplier=multiplier,
            max_replicas_override=top,
        )
        for i, (start_s, length_s, peak, multiplier, top) in enumerate(items)
    )
)
overrides = st.lists(
    st.builds(
        lambda kind, count, ends_s: (kind, None if kind is OverrideKind.PAUSE else count, ends_s),
        st.sampled_from(OverrideKind),
        counts,
        st.integers(-60, 600),
    ),
    max_size=2,
).map(
    lambda items: tuple(
        Override(f"o{i}", kind, count, START + seconds(ends_s), "because")
        for i, (kind, count, ends_s) in enumerate(items)
    )
)
nears = st.builds(
    lambda value, age_s, lead_s: NearDemand(START - seconds(age_s), seconds(lead_s), LEVELS, (value,) * 5),
    st.one_of(qps, st.sampled_from([float("nan"), 1e30])),
    st.integers(-60, 600),
    st.sampled_from([30, 60, 300]),
)
inputs = st.builds(
    WorkloadInput,
    workload=workloads,
    replicas=st.none() | replica_lists,
    observed_desired=st.none() | counts,
    demand=st.none() | observations,
    forecast=st.none() | bands,
    trust=st.sampled_from(Trust),
    near=st.none() | nears,
    events=events,
    overrides=overrides,
    competing_owner=st.sampled_from([None, None, None, "hpa/toy"]),
)
states = st.builds(
    WorkloadState,
    desired_replicas=st.none() | counts,
    changes=st.lists(
        st.builds(ScaleChange, ages_s.map(lambda s: START - seconds(s)), st.integers(-9, 9)), max_size=4
    ).map(tuple),
    needs=st.lists(st.builds(PastNeed, ages_s.map(lambda s: START - seconds(s)), counts), max_size=6).map(
        tuple
    ),
    panic_until_at=st.none() | st.integers(-60, 60).map(lambda s: START + seconds(s)),
    zero_since_at=st.none() | ages_s.map(lambda s: START - seconds(s)),
    last_at=st.none() | st.integers(-600, 600).map(lambda s: START + seconds(s)),
    mode=st.none() | st.sampled_from(Mode),
)


def run(
    state: WorkloadState, *inputs: WorkloadInput, now: datetime = START, paused: bool = False
) -> tuple[FleetState, tuple[Effect, ...]]:
    return on_tick(FleetState({"toy": state}), TickInput(now, inputs, paused=paused))


def desired(state: FleetState) -> int | None:
    return state.workloads["toy"].desired_replicas


def recorded(state: WorkloadState, inp: WorkloadInput) -> RecordDecision:
    """The decision, recorded in any case because the ledger of this state is empty."""
    _, effects = run(state, inp)
    return next(e for e in effects if isinstance(e, RecordDecision))


def asked(decision: RecordDecision, kind: RecommendationKind) -> list[int]:
    return [
        r.replicas for r in decision.decision.recommendations if r.kind is kind and r.replicas is not None
    ]


def vetoed(decision: RecordDecision) -> bool:
    return any(r.kind is RecommendationKind.VETO for r in decision.decision.recommendations)


@PATIENT
@given(states, inputs)
def test_1_within_bounds_on_every_tick(state: WorkloadState, inp: WorkloadInput) -> None:
    record = recorded(state, inp)
    assume(not vetoed(record))
    top = max([inp.workload.max_replicas, *(e.max_replicas_override or 0 for e in inp.events)])
    lowest_ceiling = min(asked(record, RecommendationKind.AT_MOST))
    highest_floor = max(asked(record, RecommendationKind.AT_LEAST))

    assert record.decision.desired_replicas <= min(top, lowest_ceiling)
    assert record.decision.desired_replicas >= min(highest_floor, lowest_ceiling)
    assert record.decision.desired_replicas >= min(inp.workload.min_replicas, lowest_ceiling)


@PATIENT
@given(states, inputs, qps, qps)
def test_2_more_demand_never_means_fewer_replicas(
    state: WorkloadState, inp: WorkloadInput, first: float, second: float
) -> None:
    # A state and an input that differ in nothing but the demand: what is remembered may not differ either.
    low, high = sorted((first, second))
    obs = (
        replace(inp.demand, panic_qps=None)
        if inp.demand
        else DemandObservation(START, 0.0, None, 0.0, 5, 5, minutes(1))
    )
    # An event that is sized on present demand, and tolerance around the count, are monotone only by themselves.
    still = replace(inp, events=())
    still = replace(
        still,
        workload=replace(
            inp.workload,
            policy=replace(
                inp.workload.policy, behavior=replace(inp.workload.policy.behavior, tolerance=0.0)
            ),
        ),
    )
    fewer, more = (
        recorded(replace(state, zero_since_at=None), replace(still, demand=replace(obs, stable_qps=value)))
        for value in (low, high)
    )

    assert fewer.decision.desired_replicas <= more.decision.desired_replicas


@PATIENT
@given(states, inputs, st.randoms(use_true_random=False))
def test_3_order_never_matters(state: WorkloadState, inp: WorkloadInput, random: Random) -> None:
    def shuffled(items: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(random.sample(items, len(items)))

    other = replace(inp, workload=replace(inp.workload, name="other"))
    mixed = replace(
        inp,
        replicas=None if inp.replicas is None else shuffled(inp.replicas),  # type: ignore[arg-type]  # same items
        events=shuffled(inp.events),  # type: ignore[arg-type]  # same items
        overrides=shuffled(inp.overrides),  # type: ignore[arg-type]  # same items
    )

    assert run(state, inp, other)[0] == run(state, other, inp)[0]
    assert (
        run(state, inp)[0].workloads["toy"].desired_replicas
        == run(state, mixed)[0].workloads["toy"].desired_replicas
    )
    assert [e for e in run(state, inp)[1] if isinstance(e, ScaleTo)] == [
        e for e in run(state, mixed)[1] if isinstance(e, ScaleTo)
    ]


@PATIENT
@given(states, inputs)
def test_4_the_same_tick_again_asks_for_nothing_more(state: WorkloadState, inp: WorkloadInput) -> None:
    free = replace(
        inp.workload.policy, behavior=Behavior(ScalingRules(timedelta(0)), ScalingRules(timedelta(0)))
    )
    inp = replace(inp, workload=replace(inp.workload, policy=free))
    after, effects = run(state, inp)
    assume(desired(after) is not None)  # unknown replicas: nothing was decided
    obeyed = next((e.replicas for e in effects if isinstance(e, ScaleTo)), inp.observed_desired)
    again, effects = run(after.workloads["toy"], replace(inp, observed_desired=obeyed))

    assert desired(after) == desired(again)
    assert [e for e in effects if isinstance(e, ScaleTo)] == []


@PATIENT
@given(states, inputs)
def test_5_the_same_tick_has_the_same_result(state: WorkloadState, inp: WorkloadInput) -> None:
    assert run(state, inp) == run(state, inp)


@PATIENT
@given(states, inputs)
def test_6_a_veto_dominates(state: WorkloadState, inp: WorkloadInput) -> None:
    after, effects = run(state, inp, paused=True)

    assert not any(isinstance(e, ScaleTo | ReplaceReplica) for e in effects)
    for decision in decisions(effects):
        assert decision.current_replicas == decision.desired_replicas
        assert decision.binding is Source.PAUSE
    if (
        inp.observed_desired is None
        and state.desired_replicas is not None
        and state.mode in {None, inp.workload.mode}
    ):
        assert desired(after) == state.desired_replicas


@PATIENT
@given(states, inputs)
def test_7_who_abstains_decides_nothing(state: WorkloadState, inp: WorkloadInput) -> None:
    far = Event("far", START + 90 * HOUR, START + 91 * HOUR, expected_peak_qps=1e6, max_replicas_override=99)
    over = Event("over", START - 3 * HOUR, START - HOUR, expected_peak_qps=1e6, max_replicas_override=99)
    expired = Override("expired", OverrideKind.SET, 99, START, "because")
    quiet = replace(inp, events=(*inp.events, far, over), overrides=(*inp.overrides, expired))

    plain, loud = recorded(state, inp).decision, recorded(state, quiet).decision
    assert (plain.desired_replicas, plain.sentence) == (loud.desired_replicas, loud.sentence)


@PATIENT
@given(states, inputs)
def test_8_missing_data_never_scales_down(state: WorkloadState, inp: WorkloadInput) -> None:
    blind = replace(inp, demand=None, overrides=())
    record = recorded(state, blind)
    ceiling = min(asked(record, RecommendationKind.AT_MOST))
    seen = max(record.decision.current_replicas, inp.observed_desired or 0)

    assert record.decision.desired_replicas >= min(seen, ceiling)
    for effect in run(state, blind)[1]:
        if isinstance(effect, ScaleTo) and inp.observed_desired is not None:
            assert effect.replicas >= min(inp.observed_desired, ceiling)


@PATIENT
@given(states, inputs)
def test_9_floors_are_reached_exactly(state: WorkloadState, inp: WorkloadInput) -> None:
    record = recorded(state, inp)
    assume(not vetoed(record))
    floor = max(asked(record, RecommendationKind.AT_LEAST))
    assume(floor >= record.decision.current_replicas)
    sets = asked(record, RecommendationKind.SET)
    assume(not sets or max(sets) <= floor)

    assert record.decision.desired_replicas == min(floor, *asked(record, RecommendationKind.AT_MOST))


@PATIENT
@given(states, inputs)
def test_10_a_decision_is_recorded_before_its_scaling(state: WorkloadState, inp: WorkloadInput) -> None:
    before: dict[str, int] = {}
    for effect in run(state, inp)[1]:
        if isinstance(effect, RecordDecision):
            before[effect.decision.id] = effect.decision.desired_replicas
        if isinstance(effect, ScaleTo):
            assert before[effect.decision_id] == effect.replicas


@PATIENT
@given(states, inputs)
def test_11_panic_never_scales_down(state: WorkloadState, inp: WorkloadInput) -> None:
    panicking = replace(state, panic_until_at=START + minutes(1), last_at=START)
    record = recorded(panicking, inp)
    assume(not vetoed(record))
    ceiling = min(asked(record, RecommendationKind.AT_MOST))
    if any(o.kind is OverrideKind.SET and o.expires_at > START for o in inp.overrides):
        assert run(panicking, inp)[0].workloads["toy"].panic_until_at is None
        return

    assert record.decision.desired_replicas >= min(record.decision.current_replicas, ceiling)


@PATIENT
@given(st.integers(1, 12), st.floats(100.0, 1_900.0), st.integers(1, 60))
def test_12_what_is_ordered_is_not_ordered_again(warm: int, load: float, ticks: int) -> None:
    w = Workload("toy", "toy", (SIMPLE,), max_replicas=50)
    state = WorkloadState(desired_replicas=warm, mode=Mode.SCALE)
    orders: list[int] = []
    target = warm
    for tick in range(ticks):
        now = START + seconds(5 * tick)
        seen = tuple(
            Replica(f"r{i}", Stage.VERIFIED if i < warm else Stage.ORDERED, START, START)
            for i in range(target)
        )
        obs = DemandObservation(now, load, load, 0.0, warm, warm, minutes(1))
        fleet, effects = run(state, WorkloadInput(w, seen, target, obs), now=now)
        state = fleet.workloads["toy"]
        orders.extend(e.replicas for e in effects if isinstance(e, ScaleTo))
        target = orders[-1] if orders else target

    assert len(orders) <= 1


@PATIENT
@given(states, inputs)
def test_13_a_recorded_decision_is_complete(state: WorkloadState, inp: WorkloadInput) -> None:
    decision = recorded(state, inp).decision

    assert {"demand", "forecast", "replicas", "plan"} <= {i.name for i in decision.inputs}
    assert len(decision.conditions) == 3
    assert decision.sentence.endswith(".")
    if decision.changes:
        assert decision.binding is not None
    if decision.limited_from is not None:
        assert decision.limited_from > decision.desired_replicas


@PATIENT
@given(states, inputs, st.integers(1, 3_600))
def test_14_state_written_down_and_read_again_decides_the_same(
    state: WorkloadState, inp: WorkloadInput, later_s: int
) -> None:
    kept = run(state, inp)[0].workloads["toy"]
    later = replace(
        inp, demand=None if inp.demand is None else replace(inp.demand, at=START + seconds(later_s))
    )

    assert run(kept, later, now=START + seconds(later_s)) == run(
        decode(WorkloadState, encode(kept)), later, now=START + seconds(later_s)
    )


@PATIENT
@given(
    st.integers(1, 30),
    st.floats(0.0, 3_000.0),
    st.floats(0.0, 3_000.0),
    st.none() | st.integers(0, 30),
    st.sampled_from([Mode.SCALE, Mode.RECOMMEND]),
    st.sampled_from([1.0, 1.5, 2.0]),
)
def test_15_what_is_taken_away_is_not_called_back(
    current: int, stable_qps: float, panic_qps: float, by_hand: int | None, mode: Mode, threshold: float
) -> None:
    at_once = Behavior(ScalingRules(timedelta(0)), ScalingRules(timedelta(0)))
    policy = Policy(behavior=at_once, panic_threshold=threshold, scale_to_zero_after=timedelta(0))
    w = Workload("toy", "toy", (SIMPLE,), min_replicas=0, max_replicas=40, policy=policy, mode=mode)
    said = () if by_hand is None else (Override("o", OverrideKind.SET, by_hand, START + HOUR, "because"),)
    obs = DemandObservation(START, stable_qps, panic_qps, 0.0, 1, 1, minutes(1))

    def seen(count: int) -> WorkloadInput:
        warm = tuple(Replica(f"r{i:02}", Stage.VERIFIED, START - HOUR, START - HOUR) for i in range(count))
        return WorkloadInput(w, warm, count, obs, overrides=said)

    after, _ = run(WorkloadState(desired_replicas=current, mode=mode, last_at=START), seen(current))
    fewer = desired(after)
    assume(fewer is not None and fewer < current)
    again, effects = run(after.workloads["toy"], seen(fewer or 0))

    assert desired(again) == fewer
    assert [e for e in effects if isinstance(e, ScaleTo)] == []
