"""How other autoscalers have failed, each as a story that cannot happen here.

One test a failure, in the order of the kinds: data that is missing or wrong, starting and stopping, floors and
ceilings, time, replicas that are not what they seem, and two who both want to decide.
"""

from collections.abc import Sequence
from datetime import timedelta
from math import inf, nan

import pytest

from controller.core.tick import on_tick
from controller.core.types import (
    AlarmKind,
    Behavior,
    ConditionType,
    Effect,
    FleetState,
    ForecastState,
    OverrideKind,
    Policy,
    PolicyType,
    RaiseAlarm,
    Reason,
    RecommendationKind,
    RecordDecision,
    ReplaceReplica,
    Replica,
    ScaleTo,
    ScalingPolicy,
    ScalingRules,
    Stage,
    TickInput,
)
from tests.unit.core.worlds import (
    MIDNIGHT,
    START,
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


def lowest(effects: Sequence[Effect], otherwise: int) -> int:
    return min(scalings(effects), default=otherwise)


# ---------------------------------------------------------------- data


def test_verified_zero_traffic_scales_down_and_absent_data_does_not() -> None:
    silent, _ = alone(warm=7)
    silent.run(START + minutes(10), toy=0.0)
    assert silent.desired() == 1

    blind, _ = alone(warm=7)
    blind.run(START + minutes(10))
    assert blind.desired() == 7


def test_zero_late_and_failed_scrapes_are_three_different_things() -> None:
    zero = decide(given(warm=7, demand=observed(START, 0.0, reporting_count=7, expected_count=7)))
    late = decide(
        given(warm=7, demand=observed(START - minutes(2), 0.0, reporting_count=7, expected_count=7))
    )
    failed = decide(given(warm=7, demand=observed(START, 0.0, reporting_count=0, expected_count=7)))

    assert [zero.need_replicas, late.need_replicas, failed.need_replicas] == [0, None, None]
    assert [d.conditions[1].reason for d in (zero, late, failed)] == [
        "REACTIVE_ONLY",
        "NO_DEMAND",
        "NO_DEMAND",
    ]
    assert "demand is 120 s old" in late.sentence
    assert "only 0 of 7 replicas answered" in failed.sentence


def test_an_unreachable_metric_source_keeps_the_count_says_so_and_floors_still_hold() -> None:
    fleet, pool = alone(warm=7)
    pool.events = (event(),)
    fleet.run(START + minutes(10), toy=650.0)
    effects = fleet.run(MIDNIGHT)

    assert lowest(effects, 7) >= 7
    assert fleet.desired() == 10
    last = decisions(effects)[-1]
    assert [c.ok for c in last.conditions if c.type is ConditionType.SCALING_ACTIVE] == [False]


@pytest.mark.parametrize("poison", [inf, -inf, nan, -5.0])
def test_one_absurd_reading_is_refused_by_name_and_does_not_linger(poison: float) -> None:
    fleet, pool = alone(warm=7)
    fleet.run(START + minutes(1), toy=650.0)
    effects = fleet.tick(toy=poison)
    assert (scalings(effects), decisions(effects)[-1].reason) == ([], Reason.NO_DATA)

    assert scalings(fleet.run(START + minutes(2), toy=650.0)) == []
    assert pool.target_count == 7


def test_some_silent_replicas_do_not_block_the_workload() -> None:
    partial = observed(START, 850.0, reporting_count=6, expected_count=7)

    assert decide(given(warm=7, demand=partial)).desired_replicas == 9


def test_signals_of_the_past_do_not_order_a_second_time() -> None:
    old = observed(START - minutes(5), 1_900.0)

    assert decide(given(warm=7, demand=old)).desired_replicas == 7


@pytest.mark.parametrize(
    "forecast",
    [
        pytest.param(
            band(START, [0.0] * 24, state=ForecastState.INSUFFICIENT_HISTORY), id="too little history"
        ),
        pytest.param(band(START, [0.0] * 24, state=ForecastState.FAILED), id="failed"),
        pytest.param(band(START, [nan] * 24), id="all nan"),
        pytest.param(band(START, [-500.0] * 24), id="negative"),
        pytest.param(band(START, []), id="empty"),
        pytest.param(band(START - 9 * HOUR, [0.0] * 12), id="of the past"),
    ],
)
def test_a_forecast_without_substance_is_reactive_scaling_not_zero_replicas(forecast: object) -> None:
    decision = decide(given(warm=7, qps=650.0, forecast=forecast))

    assert decision.desired_replicas == 7
    assert decision.conditions[1].reason == "REACTIVE_ONLY"


def test_an_absurdly_high_forecast_ends_at_the_maximum() -> None:
    decision = decide(given(warm=7, qps=650.0, forecast=band(START, [1e12] * 24)))

    assert (decision.desired_replicas, decision.reason) == (20, Reason.MAX_REPLICAS)


# ---------------------------------------------------------------- starting and stopping


def test_a_restart_with_two_seconds_of_data_does_not_scale_down() -> None:
    fleet, pool = alone(warm=10)
    pool.window = seconds(2)
    fleet.run(START + minutes(30), toy=95.0)

    assert fleet.desired() == 10


def test_orders_do_not_pile_up_while_replicas_start() -> None:
    fleet, _ = alone(warm=2, cold_start_s=300.0)
    effects = fleet.run(START + minutes(4), toy=1_150.0)

    assert scalings(effects) == [12]


def test_leaving_panic_does_not_cut_what_is_still_starting() -> None:
    fleet, _ = alone(warm=2, cold_start_s=600.0)
    effects = fleet.run(START + minutes(9), toy=950.0)

    assert lowest(effects, 10) == 10
    assert fleet.warm() == 2


def test_a_prewarmed_set_survives_the_quiet_before_its_event() -> None:
    fleet, pool = alone(warm=1)
    pool.events = (event(margin=minutes(30)),)
    effects = fleet.run(MIDNIGHT, toy=5.0)

    assert scalings(effects) == [10]
    assert fleet.warm() == 10


def test_a_dip_inside_an_event_is_not_the_end_of_it() -> None:
    fleet, pool = alone(warm=1)
    pool.events = (event(),)
    fleet.run(MIDNIGHT + minutes(20), toy=900.0)
    assert scalings(fleet.run(MIDNIGHT + minutes(34), toy=0.0)) == []
    assert scalings(fleet.run(MIDNIGHT + minutes(59), toy=950.0)) == []


# ---------------------------------------------------------------- floors and ceilings


def test_a_floor_is_reached_exactly_whatever_the_tolerance_and_the_rate() -> None:
    crawl = ScalingRules(timedelta(0), policies=(ScalingPolicy(PolicyType.PODS, 1, HOUR),))
    w = workload(policy=Policy(behavior=Behavior(scale_up=crawl, tolerance=0.5)))
    near = given(w, now=MIDNIGHT, qps=50.0, warm=9, events=(event(),))

    assert decide(near, MIDNIGHT).desired_replicas == 10


def test_bounds_hold_also_on_ticks_without_any_data() -> None:
    w = workload(min_replicas=4, max_replicas=6)

    assert decide(given(w, warm=1, qps=None)).desired_replicas == 4
    assert decide(given(w, warm=9, qps=None)).desired_replicas == 6


def test_overlapping_events_are_a_maximum_not_a_fight_nor_a_sum() -> None:
    fleet, pool = alone(warm=1)
    pool.events = (event("a", expected_peak_qps=550.0), event("b", start_at=MIDNIGHT + minutes(10)))
    effects = fleet.run(MIDNIGHT + minutes(12), toy=90.0)

    assert scalings(effects) == [6, 10]


def test_outside_its_window_an_event_has_no_opinion() -> None:
    for at in (MIDNIGHT - 2 * HOUR, MIDNIGHT + HOUR):
        decision = decide(given(now=at, qps=50.0, events=(event(),)), at)

        assert {r.kind for r in decision.recommendations if "sale" in r.sentence} <= {
            RecommendationKind.ABSTAIN
        }
        assert decision.desired_replicas == 1


def test_an_event_that_ends_as_it_starts_holds_nothing_for_ever() -> None:
    fleet, pool = alone(warm=1)
    pool.events = (event(end_at=MIDNIGHT),)
    fleet.run(MIDNIGHT + minutes(6), toy=50.0)

    assert fleet.desired() == 1


def test_an_edited_event_counts_in_its_new_form_on_the_next_tick() -> None:
    fleet, pool = alone(warm=1)
    pool.events = (event(),)
    fleet.run(MIDNIGHT - minutes(1), toy=50.0)
    assert fleet.desired() == 10

    pool.events = (event(revision=2, expected_peak_qps=1_500.0),)
    assert scalings(fleet.tick(toy=50.0)) == [16]


def test_a_cancelled_event_is_let_go() -> None:
    fleet, pool = alone(warm=1)
    pool.events = (event(),)
    fleet.run(MIDNIGHT - minutes(1), toy=50.0)
    pool.events = ()
    fleet.run(MIDNIGHT + minutes(5), toy=50.0)

    assert fleet.desired() == 1


def test_contradictory_bounds_settle_instead_of_flapping() -> None:
    fleet, _ = alone(warm=5, w=workload(min_replicas=9, max_replicas=3))
    effects = fleet.run(START + minutes(5), toy=50.0)

    assert scalings(effects) == [3]
    assert decisions(effects)[-1].conditions[2].reason == "LIMITED_BY_MAX"


# ---------------------------------------------------------------- time


def test_a_rate_counts_from_the_true_count_after_mixed_moves() -> None:
    two_a_minute = ScalingRules(timedelta(0), policies=(ScalingPolicy(PolicyType.PODS, 2, minutes(1)),))
    policy = Policy(
        behavior=Behavior(scale_up=two_a_minute, scale_down=ScalingRules(timedelta(0))), panic_threshold=9.0
    )
    fleet, pool = alone(warm=5, w=workload(policy=policy), cold_start_s=0.0)
    pool.overrides = (override(OverrideKind.AT_MOST, 3),)
    fleet.tick(toy=450.0)
    pool.overrides = ()
    effects = fleet.run(START + seconds(55), toy=1_500.0)

    # 5 -> 3 by the override; the period began at 5, so it may end at 7 and not beyond.
    assert fleet.desired() == 7
    assert max(scalings(effects)) == 7


def test_a_clock_jump_back_and_forth_scales_nothing_down() -> None:
    fleet, _ = alone(warm=10)
    fleet.run(START + minutes(10), toy=950.0)
    for jump in (-HOUR, HOUR, -HOUR):
        fleet.now += jump
        assert lowest(fleet.tick(toy=950.0), 10) == 10


def test_a_new_leader_continues_from_what_was_stored() -> None:
    fleet, pool = alone(warm=1)
    pool.events = (event(),)
    fleet.run(MIDNIGHT - minutes(1), toy=50.0)
    fleet.now += minutes(3)  # nobody led for three minutes

    assert scalings(fleet.run(MIDNIGHT + minutes(10), toy=50.0)) == []
    assert fleet.desired() == 10


# ---------------------------------------------------------------- replicas that are not what they seem


@pytest.mark.parametrize("stage", [Stage.ORDERED, Stage.SCHEDULED, Stage.LOADED, Stage.WARMED])
def test_ready_is_not_warm(stage: Stage) -> None:
    seen = given(
        now=MIDNIGHT, qps=50.0, replicas=replicas(10, stage, MIDNIGHT), observed_desired=10, events=(event(),)
    )
    decision = decide(seen, MIDNIGHT)

    assert (decision.warm_replicas, decision.in_flight_replicas) == (0, 10)


def test_terminating_and_surge_replicas_are_neither_base_nor_capacity() -> None:
    fleet, _ = alone(warm=5)
    fleet.run(START + minutes(1), toy=450.0)
    surge = (*replicas(9), *replicas(3, Stage.DRAINING))
    decision = decide(
        given(now=fleet.now, qps=450.0, replicas=surge, observed_desired=5), fleet.now, fleet.state
    )

    assert (decision.current_replicas, decision.desired_replicas) == (5, 5)


def test_a_wrong_engine_is_named_replaced_and_never_counted_as_warm() -> None:
    wrong = Replica("r9", Stage.FAILED, START, START, failure="WRONG_ENGINE")
    inp = given(qps=50.0, replicas=(*replicas(1), wrong), observed_desired=2)
    _, effects = on_tick(FleetState(), TickInput(START, (inp,)))

    assert decide(inp).warm_replicas == 1
    assert [e.alarm.kind for e in effects if isinstance(e, RaiseAlarm)] == [AlarmKind.WRONG_ENGINE]
    assert [e.replica_id for e in effects if isinstance(e, ReplaceReplica)] == ["r9"]


def test_an_engine_that_is_refused_before_its_order_is_an_alarm_with_the_reason() -> None:
    refused = "TRUNCATED: model.onnx has 3 bytes of 9; restore the file, or build the engine again"
    for shortfall, kind in ((refused, AlarmKind.WRONG_ENGINE), ("no GPU is free", AlarmKind.QUOTA_SHORT)):
        inp = given(qps=50.0, replicas=replicas(1), observed_desired=1, shortfall=shortfall)
        _, effects = on_tick(FleetState(), TickInput(START, (inp,)))

        (alarm,) = [e.alarm for e in effects if isinstance(e, RaiseAlarm)]
        assert (kind, f"toy: {shortfall}.") == (alarm.kind, alarm.sentence)


def test_one_stuck_order_is_reported_and_blocks_nobody() -> None:
    stuck = Replica("r9", Stage.SCHEDULED, START - minutes(20), START - minutes(20))
    inp = given(qps=950.0, replicas=(*replicas(4), stuck), observed_desired=5)
    _, effects = on_tick(FleetState(), TickInput(START, (inp,)))

    assert scalings(effects) == [10]
    assert [e.alarm.kind for e in effects if isinstance(e, RaiseAlarm)] == [AlarmKind.ORDER_STUCK]
    assert [e.replica_id for e in effects if isinstance(e, ReplaceReplica)] == ["r9"]


# ---------------------------------------------------------------- two who decide


def test_a_second_owner_is_reported_and_not_fought() -> None:
    fleet, pool = alone(warm=4)
    pool.competing_owner = "hpa/toy"
    effects = []
    for _ in range(60):
        pool.target_count = 4  # the other one puts it back
        effects.extend(fleet.tick(toy=950.0))

    assert not any(isinstance(e, ScaleTo) for e in effects)
    condition = decisions(effects)[-1].conditions[0]
    assert (condition.ok, condition.reason) == (False, "COMPETING_OWNER")
    assert "hpa/toy also scales this target" in condition.message


def test_a_decision_is_recorded_before_it_is_applied() -> None:
    fleet, pool = alone(warm=1)
    pool.events = (event(),)
    for effect_list in (fleet.tick(toy=50.0), fleet.run(MIDNIGHT + HOUR + minutes(10), toy=350.0)):
        recorded: set[str] = set()
        for effect in effect_list:
            if isinstance(effect, RecordDecision):
                recorded.add(effect.decision.id)
                assert effect.decision.changes == (
                    effect.decision.current_replicas != effect.decision.desired_replicas
                )
            if isinstance(effect, ScaleTo):
                assert effect.decision_id in recorded


def test_more_demand_never_means_fewer_replicas() -> None:
    wanted = [decide(given(qps=qps, warm=5), state=None).desired_replicas for qps in range(0, 4_000, 37)]

    assert wanted == sorted(wanted)
