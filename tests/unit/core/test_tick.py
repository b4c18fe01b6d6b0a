"""One tick and many: bases, guards, panic, zero, overrides, modes, quota, clocks, alarms and records."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from math import inf, nan
from typing import Any

import pytest

from controller.core.leadtime import LeadTime
from controller.core.tick import HEARTBEAT, on_tick
from controller.core.types import (
    AlarmKind,
    Behavior,
    ClearAlarm,
    Contract,
    ContractState,
    DemandObservation,
    FleetState,
    ForecastState,
    Mode,
    NearDemand,
    OverrideKind,
    PastNeed,
    Policy,
    PolicyType,
    QuotaPool,
    RaiseAlarm,
    Reason,
    RecordDecision,
    ReplaceReplica,
    Replica,
    ScaleTo,
    ScalingPolicy,
    ScalingRules,
    Source,
    Stage,
    StorePlan,
    TickInput,
    Trust,
    WorkloadState,
)
from tests.unit.core.worlds import (
    A10,
    LEVELS,
    MIDNIGHT,
    SIMPLE,
    START,
    T4,
    Fleet,
    Pool,
    alone,
    band,
    decide,
    decisions,
    event,
    given,
    minutes,
    observed,
    override,
    replicas,
    scalings,
    seconds,
    workload,
)

HOUR = timedelta(hours=1)
ZERO = workload(min_replicas=0)


def remembered(desired: int | None, **changes: object) -> FleetState:
    state = WorkloadState(desired_replicas=desired, last_at=START - seconds(5), mode=Mode.SCALE)
    return FleetState({"toy": replace(state, **changes)})  # type: ignore[arg-type]  # fields by name


def tick(
    state: FleetState, inp: object, now: object = START, **changes: object
) -> tuple[FleetState, tuple[object, ...]]:
    return on_tick(state, TickInput(now, (inp,), **changes))  # type: ignore[arg-type]  # short hand for one workload


# ---------------------------------------------------------------- the base


def test_our_own_last_decision_is_the_base_not_what_is_seen() -> None:
    decision = decide(given(qps=450.0, warm=9, observed_desired=9), state=remembered(5))

    assert (decision.current_replicas, decision.desired_replicas) == (5, 5)


def test_the_first_tick_adopts_what_the_target_says() -> None:
    decision = decide(given(qps=950.0, warm=10, observed_desired=12))

    assert decision.current_replicas == 12


def test_without_a_target_the_first_tick_counts_live_replicas_only() -> None:
    seen = (
        *replicas(3),
        *replicas(2, Stage.LOADED),
        *replicas(4, Stage.DRAINING),
        *replicas(1, Stage.FAILED),
    )

    assert decide(given(qps=450.0, replicas=seen, observed_desired=None)).current_replicas == 5


def test_when_nothing_is_known_nothing_is_done_and_nothing_is_remembered_as_ours() -> None:
    blind = given(qps=None, replicas=None, observed_desired=None, events=(event(),))
    state, effects = tick(FleetState(), blind, MIDNIGHT)

    assert scalings(effects) == []  # type: ignore[arg-type]  # effects
    assert state.workloads["toy"].desired_replicas is None
    able = decide(blind, MIDNIGHT).conditions[0]
    assert (able.ok, able.reason) == (False, "REPLICAS_UNKNOWN")
    # What appears next is adopted, not cut down to a guess.
    state, effects = tick(state, given(now=MIDNIGHT, qps=950.0, warm=12), MIDNIGHT + seconds(5))
    assert state.workloads["toy"].desired_replicas == 12


def test_adopting_a_count_does_not_cut_it_before_a_stabilization_window() -> None:
    fleet, _ = alone(warm=12)
    fleet.run(START + minutes(5), toy=50.0)
    assert fleet.desired() == 12

    fleet.run(START + minutes(5) + seconds(10), toy=50.0)
    assert fleet.desired() == 1


def test_a_scaling_that_did_not_take_is_asked_for_again_and_recorded_first() -> None:
    _, effects = tick(
        remembered(10, recorded_key="x", recorded_at=START), given(qps=950.0, warm=10, observed_desired=4)
    )

    assert [type(e) for e in effects if not isinstance(e, StorePlan)] == [RecordDecision, ScaleTo]
    assert scalings(effects) == [10]  # type: ignore[arg-type]  # effects


def test_a_target_raised_by_somebody_else_is_not_cut_while_demand_is_unknown() -> None:
    _, effects = tick(remembered(10), given(qps=None, warm=20, observed_desired=20))

    assert scalings(effects) == [20]  # type: ignore[arg-type]  # effects


def test_a_target_raised_over_the_maximum_ends_at_the_maximum_even_without_data() -> None:
    _, effects = tick(remembered(10), given(qps=None, warm=30, observed_desired=30))

    assert scalings(effects) == [20]  # type: ignore[arg-type]  # effects


# ---------------------------------------------------------------- modes


@pytest.mark.parametrize(
    ("mode", "owner", "expected"),
    [
        pytest.param(Mode.SCALE, None, [10], id="scale acts"),
        pytest.param(Mode.FLOOR, None, [10], id="floor raises the minimum"),
        pytest.param(Mode.FLOOR, "hpa/toy", [10], id="floor lives beside another autoscaler"),
        pytest.param(Mode.KEDA, None, [], id="keda pulls"),
        pytest.param(Mode.RECOMMEND, None, [], id="recommend touches nothing"),
        pytest.param(Mode.SCALE, "hpa/toy", [], id="two owners would undo each other"),
    ],
)
def test_what_each_mode_does_with_a_decision(mode: Mode, owner: str | None, expected: list[int]) -> None:
    inp = given(workload(mode=mode), qps=950.0, warm=4, competing_owner=owner)
    state, effects = tick(FleetState(), inp)

    assert expected == scalings(effects)  # type: ignore[arg-type]  # effects
    assert state.workloads["toy"].desired_replicas == 10
    assert decisions(effects)[-1].desired_replicas == 10  # type: ignore[arg-type]  # effects


def test_from_recommending_to_scaling_starts_at_what_runs_not_at_what_was_recommended() -> None:
    fleet, pool = alone(warm=12, w=workload(mode=Mode.RECOMMEND))
    fleet.run(START + minutes(10), toy=50.0)
    assert fleet.desired() == 1

    pool.workload = workload(mode=Mode.SCALE)
    effects = fleet.run(START + minutes(14), toy=50.0)
    assert scalings(effects) == []
    assert fleet.desired() == 12


def test_a_recommended_count_is_not_held_up_by_replicas_it_never_starts() -> None:
    fleet, _ = alone(warm=2, w=workload(mode=Mode.RECOMMEND))
    fleet.run(START + minutes(2), toy=1_850.0)
    assert fleet.desired() == 19

    fleet.run(START + minutes(10), toy=550.0)
    assert fleet.desired() == 6


# ---------------------------------------------------------------- what may be believed


@pytest.mark.parametrize(
    ("obs", "why"),
    [
        pytest.param(None, "no demand has been observed", id="never"),
        pytest.param(observed(START - seconds(61), 5.0), "demand is 61 s old", id="stale"),
        pytest.param(observed(START + seconds(6), 5.0), "demand is dated 6 s in the future", id="future"),
        pytest.param(observed(START, nan), "demand is not a finite number", id="nan"),
        pytest.param(observed(START, inf), "demand is not a finite number", id="inf"),
        pytest.param(
            observed(START, 5.0, panic_qps=inf), "demand is not a finite number", id="inf in the panic window"
        ),
        pytest.param(
            observed(START, 5.0, backlog_count=-1.0), "demand is not a finite number", id="negative backlog"
        ),
        pytest.param(
            observed(START, 0.0, reporting_count=4, expected_count=10),
            "only 4 of 10 replicas answered",
            id="no quorum",
        ),
    ],
)
def test_unusable_demand_holds_the_count_says_why_and_never_counts_as_zero(
    obs: DemandObservation | None, why: str
) -> None:
    state, effects = tick(remembered(10), given(warm=10, demand=obs))
    (decision,) = decisions(effects)  # type: ignore[arg-type]  # effects

    assert (decision.desired_replicas, decision.reason) == (10, Reason.NO_DATA)
    assert decision.sentence == f"Hold 10: {why}: missing data never scales down."
    assert decision.conditions[1].message == f"{why}; floors still apply"
    assert decision.demand_qps is None
    assert [a.kind for a in state.workloads["toy"].alarms] == [AlarmKind.NO_DATA]


def test_a_reading_slightly_ahead_of_our_clock_is_taken_as_of_now() -> None:
    assert decide(given(warm=10, demand=observed(START + seconds(5), 950.0))).demand_qps == 950.0


def test_silent_replicas_count_as_full_downwards_and_as_nothing_upwards() -> None:
    half = observed(START, 250.0, reporting_count=5, expected_count=10)

    assert decide(given(warm=10, demand=half), state=remembered(10)).desired_replicas == 8  # 250 + 5 x 100
    assert decide(given(warm=10, demand=half), state=remembered(2)).desired_replicas == 3  # 250 alone


def test_a_backlog_is_demand_to_be_drained_in_time() -> None:
    decision = decide(given(warm=5, demand=observed(START, 400.0, backlog_count=15_000.0)))

    assert decision.desired_replicas == 10  # 400 + 15 000 / 30 s
    assert decision.sentence == "Scale 5 to 10: 400 QPS and a backlog of 15000 needs 10."


def test_after_start_nothing_is_cut_before_a_whole_stable_window_was_seen() -> None:
    short = observed(START, 50.0, window=seconds(2))
    decision = decide(given(warm=10, demand=short), state=remembered(10))

    assert (decision.desired_replicas, decision.reason) == (10, Reason.GUARDED)
    assert "only 2 s observed" in decision.sentence


def test_unseen_replicas_are_not_scaled_down_and_floors_still_rise() -> None:
    hidden = given(qps=50.0, replicas=None, observed_desired=None)

    assert decide(hidden, state=remembered(10)).desired_replicas == 10
    floor = replace(hidden, demand=observed(MIDNIGHT, 50.0), events=(event(expected_peak_qps=1_500.0),))
    assert decide(floor, MIDNIGHT, remembered(10)).desired_replicas == 16


# ---------------------------------------------------------------- present load


def test_replicas_in_flight_are_capacity_to_come_so_one_step_is_one_order() -> None:
    fleet, _ = alone(warm=2)
    effects = fleet.run(START + minutes(3), toy=950.0)

    assert scalings(effects) == [10]
    assert fleet.warm() == 10


def test_no_scale_down_while_the_replicas_for_the_present_load_are_still_starting() -> None:
    seen = (*replicas(3), *replicas(9, Stage.LOADED))
    decision = decide(given(qps=450.0, replicas=seen, observed_desired=12), state=remembered(12))

    assert (decision.desired_replicas, decision.reason) == (12, Reason.GUARDED)
    assert decision.sentence == "Hold 12: 3 of 5 replicas for the present load are warm."


def test_panic_lifts_at_once_and_never_scales_down_until_it_is_over() -> None:
    burst = observed(START, 150.0, panic_qps=950.0)
    state, effects = tick(remembered(2), given(warm=2, demand=burst))
    assert scalings(effects) == [10]  # type: ignore[arg-type]  # effects

    calm = given(now=START + seconds(59), qps=50.0, warm=10)
    state, effects = tick(state, calm, START + seconds(59))
    assert state.workloads["toy"].desired_replicas == 10
    assert (
        "panic until 23:01:00 UTC: recent demand needs 1; no scale-down"
        in decide(calm, START + seconds(59), state).sentence
    )
    state, _ = tick(state, replace(calm, demand=observed(START + minutes(6), 50.0)), START + minutes(6))
    assert state.workloads["toy"].desired_replicas == 1


def test_panic_holds_also_when_the_panic_window_was_not_measured() -> None:
    held = remembered(10, panic_until_at=START + seconds(30))
    decision = decide(given(warm=10, demand=observed(START, 150.0, panic_qps=None)), state=held)

    assert (decision.desired_replicas, decision.reason) == (10, Reason.PANIC)
    assert "recent demand needs 2" in decision.sentence


def test_panic_is_judged_on_warm_replicas_that_were_seen() -> None:
    burst = observed(START, 150.0, panic_qps=950.0)
    state, _ = tick(remembered(2), given(demand=burst, replicas=None, observed_desired=2))

    assert state.workloads["toy"].panic_until_at is None


@pytest.mark.parametrize("mode", [Mode.SCALE, Mode.RECOMMEND])
def test_a_scale_down_stops_where_a_panic_would_follow_it(mode: Mode) -> None:
    eager = Policy(behavior=Behavior(scale_down=ScalingRules(timedelta(0))))
    w = workload(policy=eager, mode=mode, max_replicas=30)
    rising = observed(START, 450.0, panic_qps=1_100.0)
    state, _ = tick(remembered(25, mode=mode), given(w, warm=25, demand=rising))
    again, _ = tick(state, given(w, warm=12, demand=rising))

    assert (state.workloads["toy"].desired_replicas, state.workloads["toy"].panic_until_at) == (12, None)
    assert (again.workloads["toy"].desired_replicas, again.workloads["toy"].panic_until_at) == (12, None)
    decision = decide(given(w, warm=25, demand=rising), state=remembered(25, mode=mode))
    assert decision.sentence == "Scale 25 to 12: 450 QPS needs fewer, but 1100 QPS lately allow 12."


def test_nobody_panics_over_replicas_that_an_override_took() -> None:
    fleet, pool = alone(warm=20)
    pool.overrides = (override(OverrideKind.SET, 5, START + minutes(30)),)
    effects = fleet.run(START + minutes(30), toy=3_500.0)
    assert scalings(effects) == [5]

    fleet.tick(toy=3_500.0)
    assert fleet.desired() == 20


def test_a_panic_that_runs_is_over_when_an_operator_sets_a_count() -> None:
    eager = workload(policy=Policy(behavior=Behavior(scale_down=ScalingRules(timedelta(0)))))
    panicking = remembered(10, panic_until_at=START + seconds(30), last_at=START)
    inp = given(eager, warm=10, qps=850.0, overrides=(override(OverrideKind.SET, 3),))
    state, effects = tick(panicking, inp)

    assert scalings(effects) == [3]  # type: ignore[arg-type]  # effects
    assert state.workloads["toy"].panic_until_at is None


def test_tolerance_swallows_small_moves_of_present_load_and_no_floor() -> None:
    w = workload(policy=Policy(behavior=Behavior(tolerance=0.1)))
    held = decide(given(w, qps=1_050.0, warm=10), state=remembered(10))
    floored = decide(
        given(w, now=MIDNIGHT, qps=50.0, warm=10, events=(event(expected_peak_qps=1_050.0),)),
        MIDNIGHT,
        remembered(10),
    )

    assert (held.desired_replicas, held.reason) == (10, Reason.WITHIN_TOLERANCE)
    assert (floored.desired_replicas, floored.reason) == (11, Reason.EVENT_FLOOR)


def test_a_floor_inside_the_tolerance_band_is_still_reached_exactly() -> None:
    w = workload(min_replicas=19, policy=Policy(behavior=Behavior(tolerance=0.2)))
    decision = decide(given(w, qps=1_900.0, warm=18), state=remembered(18))

    assert (decision.desired_replicas, decision.reason) == (19, Reason.WITHIN_TOLERANCE)


def test_a_rate_limits_present_load_and_no_floor() -> None:
    slow = ScalingRules(timedelta(0), policies=(ScalingPolicy(PolicyType.PODS, 2, minutes(1)),))
    w = workload(policy=Policy(behavior=Behavior(scale_up=slow)))
    limited = decide(
        given(w, qps=950.0, warm=4, demand=observed(START, 950.0, panic_qps=None)), state=remembered(4)
    )
    floored = decide(given(w, now=MIDNIGHT, qps=350.0, warm=4, events=(event(),)), MIDNIGHT, remembered(4))

    assert (limited.desired_replicas, limited.reason) == (6, Reason.RATE_LIMITED)
    assert (floored.desired_replicas, floored.reason) == (10, Reason.EVENT_FLOOR)


def test_a_rate_is_remembered_between_ticks() -> None:
    slow = ScalingRules(timedelta(0), policies=(ScalingPolicy(PolicyType.PODS, 2, minutes(1)),))
    fleet, _ = alone(warm=4, w=workload(policy=Policy(behavior=Behavior(scale_up=slow), panic_threshold=9.0)))

    assert scalings(fleet.run(START + seconds(60), toy=950.0)) == [6]
    assert scalings(fleet.run(START + seconds(120), toy=950.0)) == [8]


def test_scaling_down_waits_for_the_stabilization_window() -> None:
    fleet, _ = alone(warm=10)
    fleet.run(START + minutes(10), toy=950.0)
    held = decisions(fleet.tick(toy=50.0))[-1]
    assert (held.desired_replicas, held.reason) == (10, Reason.STABILIZING)

    fleet.run(START + minutes(15), toy=50.0)
    assert fleet.desired() == 1


# ---------------------------------------------------------------- zero


def test_to_zero_after_verified_silence_and_from_zero_at_the_first_request() -> None:
    fleet, _ = alone(warm=2, w=ZERO)
    fleet.run(START + minutes(30), toy=0.0)
    assert fleet.desired() == 1

    last = decisions(fleet.run(START + minutes(37), toy=0.0))
    assert fleet.desired() == 0
    assert Reason.SCALED_TO_ZERO in {d.reason for d in last}
    assert scalings(fleet.tick(toy=3.0)) == [1]


def test_silence_without_data_is_no_reason_for_zero() -> None:
    fleet, _ = alone(warm=2, w=ZERO)
    fleet.run(START + HOUR)

    assert fleet.desired() == 2


def test_a_request_starts_the_silence_anew() -> None:
    fleet, _ = alone(warm=1, w=ZERO)
    fleet.run(START + minutes(29), toy=0.0)
    fleet.tick(toy=1.0)
    fleet.run(START + minutes(58), toy=0.0)

    assert fleet.desired() == 1
    assert fleet.state.workloads["toy"].zero_since_at == START + minutes(29) + seconds(5)


def test_a_forecast_of_traffic_within_the_lead_time_starts_from_zero() -> None:
    fleet, pool = alone(warm=0, w=ZERO)
    pool.forecast = band(START, [0.0] * 12 + [450.0] * 12)
    fleet.run(MIDNIGHT - seconds(60), toy=0.0)
    assert fleet.desired() == 0

    fleet.run(MIDNIGHT, toy=0.0)
    assert fleet.desired() == 5
    assert fleet.warm() == 5


# ---------------------------------------------------------------- forecasts


def test_capacity_for_the_forecast_is_there_before_the_ramp() -> None:
    decision = decide(
        given(now=MIDNIGHT - seconds(60), qps=50.0, forecast=band(START, [50.0] * 12 + [950.0])),
        MIDNIGHT - seconds(60),
    )

    assert (decision.desired_replicas, decision.reason) == (10, Reason.PLAN_FLOOR)
    assert decision.sentence == "Scale 1 to 10: the forecast (P99.9) needs 10 within the lead time of 60 s."


def test_a_large_ramp_is_looked_for_as_far_ahead_as_its_batch_takes() -> None:
    lead = LeadTime(60.0, per_extra_replica_s=10.0)
    seen = given(
        now=MIDNIGHT - seconds(130), qps=50.0, lead=lead, forecast=band(START, [50.0] * 11 + [450.0, 950.0])
    )

    # 5 needed, 1 warm: a batch of 4 takes 90 s; midnight is 130 s away.
    assert decide(seen, MIDNIGHT - seconds(130)).desired_replicas == 5
    assert (
        decide(
            replace(seen, demand=observed(MIDNIGHT - seconds(90), 50.0)), MIDNIGHT - seconds(90)
        ).desired_replicas
        == 10
    )


def test_what_the_forecast_needs_again_within_break_even_is_kept() -> None:
    w = workload(policy=Policy(break_even=minutes(10)))
    at = MIDNIGHT - minutes(5)
    decision = decide(
        given(w, now=at, qps=50.0, warm=10, forecast=band(START, [50.0] * 12 + [750.0])), at, remembered(10)
    )

    assert (decision.desired_replicas, decision.reason) == (8, Reason.KEEP_WARM)
    assert decision.sentence.endswith(
        "the forecast needs 8 within 600 s: keeping costs less than a cold start."
    )


@pytest.mark.parametrize(
    ("changes", "condition"),
    [
        pytest.param({"forecast": None}, "REACTIVE_ONLY", id="none"),
        pytest.param({"trust": Trust.DISTRUSTED}, "REACTIVE_ONLY", id="distrusted"),
        pytest.param(
            {"forecast": band(START, [950.0], state=ForecastState.INSUFFICIENT_HISTORY)},
            "REACTIVE_ONLY",
            id="short",
        ),
        pytest.param({"forecast": band(START, [nan])}, "REACTIVE_ONLY", id="not a number"),
        pytest.param({}, "READY", id="usable"),
    ],
)
def test_an_unusable_forecast_sets_no_floor_and_is_said(changes: dict[str, Any], condition: str) -> None:
    known: dict[str, Any] = {"forecast": band(START, [950.0]), **changes}
    decision = decide(given(qps=50.0, **known))

    assert decision.desired_replicas == (10 if condition == "READY" else 1)
    assert decision.conditions[1].reason == condition


def test_near_quantiles_lead_within_the_lead_time_and_replace_the_hourly_ones() -> None:
    near = NearDemand(START, seconds(60), LEVELS, (500.0, 550.0, 600.0, 650.0, 750.0))
    seen = given(qps=450.0, warm=5, near=near, forecast=band(START, [1_900.0] * 12))
    decision = decide(seen, state=remembered(5))

    assert (decision.desired_replicas, decision.reason) == (8, Reason.PLAN_FLOOR)
    assert decision.sentence == (
        "Scale 5 to 8: demand may reach 750 QPS (P99.9) within the lead time of 60 s, which needs 8."
    )
    assert ("near demand", 0.0) in [(i.name, i.age_s) for i in decision.inputs]
    assert (
        decide(replace(seen, near=replace(near, qps=(nan,) * 5)), state=remembered(5)).desired_replicas == 20
    )


def test_a_distrusted_forecast_is_alarmed_until_it_recovers() -> None:
    state, effects = tick(FleetState(), given(qps=50.0, trust=Trust.DISTRUSTED))
    assert [e.alarm.kind for e in effects if isinstance(e, RaiseAlarm)] == [AlarmKind.FORECAST_DISTRUSTED]

    _, effects = tick(state, given(now=START + seconds(5), qps=50.0), START + seconds(5))
    assert [e.alarm.kind for e in effects if isinstance(e, ClearAlarm)] == [AlarmKind.FORECAST_DISTRUSTED]


def test_a_mixed_pool_counts_each_replica_as_what_it_is() -> None:
    w = workload(profiles=(A10, T4), max_replicas=40)
    seen = tuple(replace(r, profile=T4) for r in replicas(4))
    decision = decide(
        given(
            w,
            now=MIDNIGHT,
            qps=8_000.0,
            replicas=seen,
            observed_desired=4,
            events=(event(expected_peak_qps=35_000.0),),
        ),
        MIDNIGHT,
    )

    assert decision.need_replicas == 4
    assert decision.desired_replicas == 10  # 7 A10 would do; 4 T4 stand for 1.6 of them


def test_a_mixed_pool_that_needs_more_than_the_maximum_says_so_when_the_event_is_planned() -> None:
    w = workload(profiles=(A10, T4), max_replicas=8)
    seen = tuple(replace(r, profile=T4) for r in replicas(4))
    sale = event(expected_peak_qps=35_000.0)
    state, effects = tick(
        FleetState(), given(w, qps=8_000.0, replicas=seen, observed_desired=4, events=(sale,))
    )

    (contract,) = state.workloads["toy"].contracts
    assert (contract.replicas, contract.shortfall_replicas) == (8, 2)  # 10 beside 4 T4, 7 without
    assert [e.alarm.kind for e in effects if isinstance(e, RaiseAlarm)] == [AlarmKind.QUOTA_SHORT]


# ---------------------------------------------------------------- events


def test_an_event_is_warm_by_its_deadline_and_kept_through_a_dip_to_its_end() -> None:
    fleet, pool = alone(warm=1)
    pool.events = (event(),)
    fleet.run(MIDNIGHT - seconds(30), toy=50.0)
    assert fleet.warm() == 10

    fleet.run(MIDNIGHT + minutes(10), toy=950.0)
    fleet.run(MIDNIGHT + minutes(20), toy=0.0)
    assert fleet.desired() == 10
    fleet.run(MIDNIGHT + minutes(70), toy=50.0)
    assert fleet.desired() == 1


def test_a_begun_prewarm_outlives_a_shorter_lead_time_and_a_smaller_forecast() -> None:
    fleet, pool = alone(warm=1, w=workload(max_replicas=4))
    pool.lead = LeadTime(1_200.0)
    pool.events = (event(expected_peak_qps=None, expected_multiplier=10.0, max_replicas_override=30),)
    fleet.run(MIDNIGHT - minutes(15), toy=95.0)
    assert fleet.desired() == 10

    pool.lead = LeadTime(30.0)
    pool.forecast = band(fleet.now, [95.0] * 200, event_ids=frozenset({"sale"}))
    fleet.run(MIDNIGHT, toy=95.0)
    assert fleet.desired() == 10
    assert decisions(fleet.run(MIDNIGHT + minutes(5), toy=95.0))[-1].event_ids == ("sale",)


def test_a_fizzled_event_decays_to_the_need_and_missing_data_stops_the_decay() -> None:
    fleet, pool = alone(warm=1)
    pool.events = (event(end_at=MIDNIGHT + 3 * HOUR, expected_peak_qps=1_900.0),)
    fleet.run(MIDNIGHT + minutes(31), toy=50.0)
    decayed = fleet.desired()
    assert decayed is not None
    assert 1 < decayed < 20

    fleet.run(MIDNIGHT + minutes(61))
    assert fleet.desired() == decayed
    last = decisions(fleet.run(MIDNIGHT + minutes(180) - seconds(5), toy=50.0))[-1]
    assert fleet.desired() == 1
    assert any("fizzled: its floor of 20 has decayed to 1" in r.sentence for r in last.recommendations)


def test_an_event_that_the_minimum_covers_does_not_fizzle() -> None:
    fleet, pool = alone(warm=10, w=workload(min_replicas=10))
    pool.events = (event(expected_peak_qps=250.0),)
    effects = fleet.run(MIDNIGHT + minutes(30), toy=240.0)

    assert not any(isinstance(e, RaiseAlarm) for e in effects)


def test_an_event_is_sized_anew_when_its_engine_was_measured() -> None:
    fleet, pool = alone(warm=1)
    pool.events = (event(),)
    fleet.run(MIDNIGHT - minutes(10), toy=50.0)
    slower = replace(SIMPLE, qps_max=SIMPLE.qps_max / 2)
    pool.workload = replace(pool.workload, profiles=(slower,))  # the registry's word: no edit, no generation
    pool.members = {name: (at, slower) for name, (at, _) in pool.members.items()}
    fleet.run(MIDNIGHT, toy=25.0)

    assert fleet.warm() == 20  # at 100 QPS each, 10 would have done


def test_an_event_is_ordered_on_the_tick_of_its_order_time() -> None:
    fleet, pool = alone(warm=1)
    pool.events = (event(),)
    order_at = MIDNIGHT - seconds(105)
    assert scalings(fleet.run(order_at, toy=50.0)) == []

    assert scalings(fleet.tick(toy=50.0)) == [10]


def test_an_event_over_the_maximum_is_limited_and_alarmed() -> None:
    state, effects = tick(
        FleetState(), given(now=MIDNIGHT, qps=50.0, events=(event(expected_peak_qps=2_900.0),)), MIDNIGHT
    )
    (decision,) = decisions(effects)  # type: ignore[arg-type]  # effects

    assert (decision.desired_replicas, decision.reason, decision.limited_from) == (
        20,
        Reason.MAX_REPLICAS,
        30,
    )
    assert {a.kind for a in state.workloads["toy"].alarms} == {
        AlarmKind.PREWARM_MISSED,
        AlarmKind.QUOTA_SHORT,
    }


def test_a_maximum_raised_for_an_event_is_said_and_restored_after_it() -> None:
    fleet, pool = alone(warm=4)
    pool.events = (event(expected_peak_qps=2_900.0, max_replicas_override=35),)
    fleet.run(MIDNIGHT + minutes(1), toy=350.0)
    assert fleet.desired() == 30

    over = decide(pool.seen(fleet.now, 9_900.0), fleet.now, fleet.state)
    assert "max_replicas is 35, raised from 20 for an event; 100 were wanted" in over.sentence

    fleet.run(MIDNIGHT + HOUR + minutes(6), toy=2_900.0)
    assert fleet.desired() == 20
    assert (
        "max_replicas is 20"
        in decide(fleet.pools["toy"].seen(fleet.now, 2_900.0), fleet.now, fleet.state).sentence
    )


def test_an_event_sized_on_present_demand_is_sized_when_demand_appears() -> None:
    fleet, pool = alone(warm=1)
    pool.events = (event(expected_peak_qps=None, expected_multiplier=10.0),)
    fleet.tick()
    fleet.run(MIDNIGHT, toy=95.0)

    assert fleet.desired() == 10


# ---------------------------------------------------------------- the operator


def test_a_pause_holds_and_its_end_continues_from_the_operators_hand() -> None:
    fleet, pool = alone(warm=4)
    fleet.run(START + minutes(1), toy=350.0)
    fleet.paused = True
    pool.target_count = 9
    pool.seed(5, fleet.now)
    held = fleet.run(START + minutes(10), toy=1_900.0)
    assert scalings(held) == []
    assert {d.reason for d in decisions(held)} == {Reason.PAUSED}

    fleet.paused = False
    resumed = fleet.run(START + minutes(13), toy=350.0)
    assert scalings(resumed) == []
    assert fleet.desired() == 9


def test_a_pause_of_one_workload_leaves_the_others_alone() -> None:
    a, b = Pool(workload("a")), Pool(workload("b"), overrides=(override(OverrideKind.PAUSE),))
    a.seed(1, START)
    b.seed(1, START)
    fleet = Fleet({"a": a, "b": b})
    effects = fleet.tick(a=950.0, b=950.0)

    assert [(e.workload, e.replicas) for e in effects if isinstance(e, ScaleTo)] == [("a", 10)]


@pytest.mark.parametrize(
    ("kind", "count", "qps", "expected", "reason"),
    [
        pytest.param(OverrideKind.SET, 7, 450.0, 7, Reason.OVERRIDE, id="set beats present load"),
        pytest.param(
            OverrideKind.SET, 7, 750.0, 7, Reason.OVERRIDE, id="set beats present load, also below it"
        ),
        pytest.param(OverrideKind.AT_LEAST, 7, 450.0, 7, Reason.OVERRIDE, id="at least lifts"),
        pytest.param(OverrideKind.AT_MOST, 7, 950.0, 7, Reason.OVERRIDE, id="at most cuts"),
        pytest.param(
            OverrideKind.AT_LEAST, 90, 450.0, 20, Reason.MAX_REPLICAS, id="at least stays under the maximum"
        ),
        pytest.param(OverrideKind.AT_MOST, 0, 450.0, 0, Reason.OVERRIDE, id="at most beats the minimum"),
    ],
)
def test_an_override_counts_while_it_lasts(
    kind: OverrideKind, count: int, qps: float, expected: int, reason: Reason
) -> None:
    standing = given(qps=qps, warm=5, overrides=(override(kind, count),))
    expired = given(qps=qps, warm=5, overrides=(override(kind, count, expires_at=START),))
    decision = decide(standing, state=remembered(5))

    assert (decision.desired_replicas, decision.reason) == (expected, reason)
    assert decide(expired, state=remembered(5)).reason is not Reason.OVERRIDE


def test_a_set_override_gives_way_to_an_events_floor_and_an_at_most_does_not() -> None:
    base = given(now=MIDNIGHT, qps=50.0, events=(event(),))
    until = MIDNIGHT + HOUR

    set_three = replace(base, overrides=(override(OverrideKind.SET, 3, until),))
    assert decide(set_three, MIDNIGHT, remembered(1)).desired_replicas == 10
    at_most_three = replace(base, overrides=(override(OverrideKind.AT_MOST, 3, until),))
    limited = decide(at_most_three, MIDNIGHT, remembered(1))
    assert (limited.desired_replicas, limited.limited_from) == (3, 10)
    assert "override at_most-1 asks for at most 3 until 2026-11-28 01:00 UTC" in limited.sentence


def test_a_minimum_over_the_maximum_stays_within_the_maximum_on_every_tick() -> None:
    contradictory = workload(min_replicas=9, max_replicas=3)

    assert decide(given(contradictory, qps=50.0, warm=5)).desired_replicas == 3
    assert decide(given(contradictory, qps=None, warm=1)).desired_replicas == 3


# ---------------------------------------------------------------- quota

GPUS = (QuotaPool("gpus", 10),)


def sharing(**counts: int) -> Fleet:
    """Workloads high (priority 9) and low (priority 0) in one pool of ten GPUs."""
    pools = {}
    for name, number in counts.items():
        pools[name] = Pool(workload(name, quota_pool="gpus", priority=9 if name == "high" else 0))
        pools[name].seed(number, START)
    return Fleet(pools, GPUS)


def test_quota_limits_growth_and_alarms() -> None:
    fleet = sharing(low=4, high=2)
    effects = fleet.tick(low=350.0, high=1_500.0)
    decision = decisions(effects)[0]

    assert (fleet.desired("high"), decision.reason, decision.limited_from) == (6, Reason.QUOTA, 16)
    assert decision.sentence == "Scale 2 to 6: quota pool gpus has room for 6; 16 were wanted."
    assert [e.alarm.kind for e in effects if isinstance(e, RaiseAlarm)] == [AlarmKind.QUOTA_SHORT]


def test_what_the_cluster_cannot_place_raises_an_alarm_while_it_lasts() -> None:
    why = "2 pods of Deployment shop/toy find no node: Insufficient nvidia.com/gpu"
    state, effects = tick(remembered(3), given(qps=250.0, warm=1, observed_desired=3, shortfall=why))
    _, later = tick(state, given(qps=250.0, warm=3, observed_desired=3), START + seconds(5))

    assert [e.alarm.sentence for e in effects if isinstance(e, RaiseAlarm)] == [f"toy: {why}."]
    assert [e.alarm.kind for e in later if isinstance(e, ClearAlarm)] == [AlarmKind.QUOTA_SHORT]


def test_surplus_held_only_by_stabilization_is_preempted_in_the_same_tick() -> None:
    fleet = sharing(low=8, high=2)
    fleet.run(START + minutes(6), low=750.0, high=150.0)
    effects = fleet.tick(low=150.0, high=550.0)
    scaled = {e.workload: e.replicas for e in effects if isinstance(e, ScaleTo)}

    assert scaled == {"high": 6, "low": 4}
    low = next(d for d in decisions(effects) if d.workload == "low")
    assert low.reason is Reason.QUOTA
    assert (
        low.sentence
        == "Scale 8 to 4: quota pool gpus has room for 4, high has the higher priority; 8 were wanted."
    )


def test_a_paused_workload_neither_takes_quota_nor_gives_up_what_it_would_keep() -> None:
    fleet = sharing(low=8, high=2)
    fleet.pools["low"].overrides = (override(OverrideKind.PAUSE),)
    effects = fleet.tick(low=50.0, high=950.0)

    assert scalings(effects) == []
    assert (fleet.desired("low"), fleet.desired("high")) == (8, 2)


def test_need_over_a_ceiling_takes_nobodys_quota() -> None:
    fleet = sharing(low=8, high=2)
    fleet.pools["high"].overrides = (override(OverrideKind.AT_MOST, 2),)
    fleet.run(START + minutes(4), low=50.0, high=1_500.0)

    assert (fleet.desired("low"), fleet.desired("high")) == (8, 2)


def test_an_override_that_holds_a_workload_below_its_load_takes_nobodys_quota() -> None:
    fleet = sharing(low=8, high=2)
    fleet.pools["high"].overrides = (override(OverrideKind.SET, 2),)
    fleet.run(START + minutes(4), low=50.0, high=1_500.0)

    assert (fleet.desired("low"), fleet.desired("high")) == (8, 2)


def test_a_paused_workload_follows_the_hand_also_beyond_its_pool_and_loses_nothing_after() -> None:
    fleet = sharing(low=4, high=4)
    fleet.pools["low"].overrides = (override(OverrideKind.PAUSE, expires_at=START + minutes(1)),)
    fleet.pools["low"].seed(5, START)  # somebody scales it by hand: 9 and 4 of 10 GPUs
    fleet.run(START + minutes(1), low=350.0, high=350.0)
    assert (fleet.desired("low"), fleet.desired("high")) == (9, 4)

    fleet.run(START + minutes(2), low=1_500.0, high=350.0)
    assert (fleet.desired("low"), fleet.desired("high")) == (9, 4)


def test_an_event_that_is_being_served_lends_its_priority() -> None:
    fleet = sharing(low=2, other=8)
    fleet.pools["low"].events = (event(priority=50, expected_peak_qps=550.0),)
    fleet.run(MIDNIGHT - minutes(5), low=150.0, other=50.0)
    fleet.pools["other"].seed(0, fleet.now)
    assert fleet.desired("other") == 1

    crowded = sharing(low=2, other=8)
    crowded.pools["low"].events = (event(priority=50, expected_peak_qps=550.0),)
    crowded.now = MIDNIGHT - seconds(60)
    crowded.tick(low=150.0, other=50.0)
    assert (crowded.desired("low"), crowded.desired("other")) == (6, 4)


def test_what_uses_no_gpu_asks_no_gpu_pool() -> None:
    on_cpu = workload("low", quota_pool="gpus", profiles=(replace(SIMPLE, gpus_per_replica=0),))
    fleet = Fleet({"low": Pool(on_cpu)}, GPUS)
    fleet.pools["low"].seed(1, START)
    fleet.tick(low=1_900.0)

    assert fleet.desired("low") == 20


# ---------------------------------------------------------------- broken replicas


def test_broken_replicas_are_replaced_in_rounds_with_growing_pauses() -> None:
    fleet, pool = alone(warm=0, cold_start_s=5.0)
    pool.fails = True
    pool.seed(3, START)
    rounds = [
        fleet.now - seconds(5)
        for _ in range(120 * 12)
        if any(isinstance(e, ReplaceReplica) for e in fleet.tick(toy=None))
    ]
    pauses = [(b - a).total_seconds() for a, b in pairwise(rounds)]

    assert pauses[:6] == [30.0, 60.0, 120.0, 240.0, 480.0, 600.0]
    assert set(pauses[6:]) == {600.0}


def test_replacing_that_helps_starts_the_count_anew() -> None:
    fleet, pool = alone(warm=0, cold_start_s=5.0)
    pool.fails = True
    pool.seed(3, START)
    fleet.run(START + minutes(5))
    assert fleet.state.workloads["toy"].replacement_rounds > 1

    pool.fails = False
    for name in pool.members:
        pool.members[name] = (fleet.now, SIMPLE)
    fleet.run(fleet.now + minutes(1))
    assert fleet.state.workloads["toy"].replacement_rounds == 0


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"overrides": (override(OverrideKind.PAUSE),)}, id="paused"),
        pytest.param({"w": workload(mode=Mode.FLOOR)}, id="another autoscaler owns them"),
    ],
)
def test_replicas_that_are_not_ours_to_move_are_alarmed_and_not_replaced(changes: dict[str, object]) -> None:
    failed = (Replica("r1", Stage.FAILED, START, START, failure="out of memory"),)
    inp = given(changes.get("w"), replicas=failed, overrides=changes.get("overrides", ()))  # type: ignore[arg-type]  # by name
    _, effects = tick(FleetState(), inp)

    assert not any(isinstance(e, ReplaceReplica) for e in effects)
    (alarm,) = (e.alarm for e in effects if isinstance(e, RaiseAlarm))
    assert alarm.sentence == "Replica r1 failed: out of memory."


# ---------------------------------------------------------------- clocks


def test_a_clock_that_stepped_back_blocks_nothing_for_longer_than_its_windows() -> None:
    later = START + HOUR
    stepped = remembered(
        10,
        last_at=later,
        needs=(PastNeed(later, 10),),
        panic_until_at=later + minutes(1),
        zero_since_at=later,
        recorded_at=later,
        replaced_at=later,
    )
    state, _ = tick(stepped, given(qps=50.0, warm=10))
    kept = state.workloads["toy"]
    assert kept.needs[0] == PastNeed(START, 10)
    assert kept.panic_until_at == START + minutes(1)
    assert (kept.recorded_at, kept.replaced_at, kept.zero_since_at) == (START, START, None)

    fleet, _ = alone(warm=10)
    fleet.state = stepped
    fleet.run(START + minutes(7), toy=50.0)
    assert fleet.desired() == 1


def test_a_clock_that_stepped_back_leaves_no_fizzle_in_the_future() -> None:
    contract = Contract(
        "sale", 1, ContractState.ACTIVE, 10, START, START, START, MIDNIGHT + HOUR, under_since_at=MIDNIGHT
    )
    running = event(start_at=START)
    stepped = remembered(10, last_at=MIDNIGHT, contracts=(contract,))
    state, _ = tick(
        stepped, given(now=START + minutes(1), qps=50.0, warm=10, events=(running,)), START + minutes(1)
    )

    assert state.workloads["toy"].contracts[0].under_since_at == START + minutes(1)


def test_a_clock_step_without_panic_or_silence_is_settled_too() -> None:
    state, _ = tick(remembered(10, last_at=MIDNIGHT), given(qps=950.0, warm=10))

    assert state.workloads["toy"].panic_until_at is None


# ---------------------------------------------------------------- records


def test_an_unchanged_decision_is_recorded_at_its_heartbeat_only() -> None:
    fleet, _ = alone(warm=1)
    first, second, *others = [d.at for d in decisions(fleet.run(START + minutes(16), toy=50.0))]

    assert first == START
    assert START < second <= START + HEARTBEAT
    assert others == [second + HEARTBEAT * n for n in (1, 2)]


def test_a_fleet_that_started_at_once_repeats_its_decisions_apart() -> None:
    pools = {name: Pool(workload(name)) for name in (f"shop-{n}" for n in range(240))}
    for pool in pools.values():
        pool.seed(1, START)
    fleet, demand = Fleet(pools), dict.fromkeys(pools, 50.0)
    first, *later = [decisions(fleet.tick(**demand)) for _ in range(1 + HEARTBEAT // seconds(5))]

    assert len(first) == len(pools)
    # Once each within a heartbeat: 4 at a tick, and by chance some more.
    assert sorted(d.workload for recorded in later for d in recorded) == sorted(pools)
    assert max(map(len, later)) <= 12


def test_a_changed_reason_is_recorded_although_the_count_stays() -> None:
    fleet, _ = alone(warm=1)
    fleet.run(START + minutes(1), toy=50.0)

    (decision,) = decisions(fleet.tick())
    assert (decision.reason, decision.desired_replicas) == (Reason.NO_DATA, 1)


def test_a_decision_names_every_input_with_its_age() -> None:
    at = START + seconds(30)
    seen = given(now=START, qps=50.0, forecast=band(START, [50.0]), events=(event(),), trust=Trust.UNPROVEN)
    decision = decide(seen, at)

    assert [(i.name, i.age_s, i.detail) for i in decision.inputs] == [
        ("demand", 30.0, ""),
        ("forecast", 30.0, "READY, UNPROVEN"),
        ("replicas", 0.0, ""),
        ("plan", 0.0, "revision 1"),
    ]
    assert (decision.forecast_id, decision.plan_revision, decision.event_ids) == ("forecast-1", 1, ("sale",))
    assert (decision.warm_replicas, decision.in_flight_replicas, decision.need_replicas) == (1, 0, 1)


def test_a_missing_input_has_no_age() -> None:
    decision = decide(given(qps=None, replicas=None, observed_desired=3))

    assert [(i.name, i.age_s) for i in decision.inputs][:3] == [
        ("demand", None),
        ("forecast", None),
        ("replicas", None),
    ]
    assert decision.inputs[1].detail == "none, TRUSTED, not used"
    assert (decision.warm_replicas, decision.in_flight_replicas) == (None, None)


def test_an_unchanged_plan_is_no_new_revision() -> None:
    fleet, pool = alone(warm=1)
    pool.events = (event(),)
    first = [e for e in fleet.run(START + minutes(2), toy=50.0) if isinstance(e, StorePlan)]
    pool.events = (event(revision=2, expected_peak_qps=1_500.0),)
    second = [e for e in fleet.run(START + minutes(4), toy=50.0) if isinstance(e, StorePlan)]

    assert [e.plan.revision for e in (*first, *second)] == [1, 2]


def test_workloads_that_are_absent_keep_their_state() -> None:
    before = remembered(7)
    state, effects = on_tick(before, TickInput(START, ()))

    assert (state, effects) == (before, ())


def test_the_binding_source_is_recorded() -> None:
    assert decide(given(qps=950.0, warm=4)).binding is Source.REACTIVE
