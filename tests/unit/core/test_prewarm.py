"""Deadline contracts: counted, expected, at risk in time, never taken back early, let go when an event fizzles."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from controller.core.leadtime import LeadTime
from controller.core.prewarm import (
    REPLACE_PAUSE,
    REPLACE_PAUSE_MAX,
    broken_replicas,
    contract_alarms,
    expected_warm_at,
    fizzled_for_s,
    follow,
    replacement_rounds,
    stage_counts,
)
from controller.core.types import AlarmKind, Contract, ContractState, Event, Floor, Policy, Replica, Stage
from tests.unit.core.worlds import LEAD, MIDNIGHT, START, event, minutes, replicas, seconds

DEADLINE = MIDNIGHT - seconds(30)
ORDER = DEADLINE - seconds(75)
HOUR = timedelta(hours=1)
STAGED = LeadTime(
    58.0,
    (("schedule", 5.0), ("node", 0.0), ("image", 20.0), ("load", 30.0), ("warmup", 5.0)),
    per_extra_replica_s=2.0,
)
FLOOR = Floor(10, ORDER, DEADLINE, MIDNIGHT + HOUR, "event sale", "sale", demand_qps=950.0)


def step(
    now: datetime,
    seen: Sequence[Replica] | None,
    previous: Contract | None = None,
    *,
    floor: Floor = FLOOR,
    of: Event | None = None,
    need: int | None = None,
    lead: LeadTime = LEAD,
) -> Contract:
    return follow(
        floor,
        of or event(),
        previous,
        replicas=seen,
        demand_need=need,
        lead=lead,
        policy=Policy(),
        now=now,
    )


def test_a_replica_counts_at_every_stage_it_has_passed_and_broken_ones_nowhere() -> None:
    seen = [
        *replicas(1, Stage.ORDERED),
        *replicas(2, Stage.LOADED),
        *replicas(3, Stage.VERIFIED),
        *replicas(4, Stage.DRAINING),
        *replicas(5, Stage.FAILED),
    ]

    assert list(stage_counts(seen).values()) == [3, 3, 5, 5, 6]
    assert list(stage_counts(seen)) == [
        Stage.VERIFIED,
        Stage.WARMED,
        Stage.LOADED,
        Stage.SCHEDULED,
        Stage.ORDERED,
    ]


# ---------------------------------------------------------------- when will they be warm


def test_enough_warm_replicas_are_warm_now() -> None:
    assert expected_warm_at(replicas(4), 4, LEAD, START) == START


def test_what_is_not_ordered_yet_takes_a_whole_lead_time_of_its_batch() -> None:
    assert expected_warm_at(replicas(4), 10, STAGED, START) == START + seconds(58 + 5 * 2)


@pytest.mark.parametrize(
    ("stage", "spent_s", "expected_s"),
    [
        pytest.param(Stage.ORDERED, 0, 58, id="just ordered: the whole lead time"),
        pytest.param(Stage.ORDERED, 2, 56, id="ordered a while ago"),
        pytest.param(Stage.ORDERED, 900, 55, id="overdue, and image, load and warm-up are still ahead"),
        pytest.param(Stage.SCHEDULED, 0, 55, id="scheduled: image, load, warm-up"),
        pytest.param(Stage.SCHEDULED, 40, 15, id="loading for a while"),
        pytest.param(Stage.SCHEDULED, 900, 5, id="load overdue, the warm-up is still ahead"),
        pytest.param(Stage.LOADED, 2, 3, id="warming up"),
        pytest.param(Stage.LOADED, 900, 1, id="overdue, and never due now"),
        pytest.param(Stage.WARMED, 0, 1, id="warmed: to be verified"),
        pytest.param(Stage.ORDERED, -60, 58, id="an order dated in the future is not late"),
    ],
)
def test_time_spent_shortens_the_present_stage_and_none_after_it(
    stage: Stage, spent_s: float, expected_s: float
) -> None:
    seen = replicas(1, stage, START - seconds(spent_s))

    assert expected_warm_at(seen, 1, STAGED, START) == START + seconds(expected_s)


def test_without_stages_an_order_ages_as_a_whole() -> None:
    seen = (Replica("r1", Stage.LOADED, START - seconds(50), START),)

    assert expected_warm_at(seen, 1, LEAD, START) == START + seconds(10)


def test_the_nth_replica_is_the_nth_to_arrive() -> None:
    seen = (*replicas(1), *replicas(1, Stage.LOADED, START), *replicas(1, Stage.ORDERED, START))

    assert expected_warm_at(seen, 2, STAGED, START) == START + seconds(5)
    assert expected_warm_at(seen, 3, STAGED, START) == START + seconds(58)


# ---------------------------------------------------------------- life of a contract


def test_life_of_a_contract_that_is_kept() -> None:
    planned = step(ORDER - seconds(1), replicas(4))
    ordered = step(ORDER, (*replicas(4), *replicas(6, Stage.ORDERED, ORDER)), planned)
    warm = step(DEADLINE, replicas(10), ordered)
    active = step(MIDNIGHT, replicas(10), warm, need=9)
    done = step(MIDNIGHT + HOUR, replicas(10), active, need=9)

    states = [c.state for c in (planned, ordered, warm, active, done)]
    assert states == [
        ContractState.PLANNED,
        ContractState.PREWARMING,
        ContractState.WARM,
        ContractState.ACTIVE,
        ContractState.COMPLETED,
    ]
    assert (ordered.ordered_count, ordered.verified_count, warm.met_at) == (10, 4, DEADLINE)


def test_replicas_that_happen_to_be_warm_long_before_are_no_promise() -> None:
    assert step(ORDER - HOUR, replicas(10)).state is ContractState.PLANNED
    assert step(ORDER - HOUR, replicas(10)).met_at is None


def test_it_is_at_risk_as_soon_as_the_model_says_late_while_there_is_time() -> None:
    late = step(ORDER + seconds(30), replicas(4))

    assert late.state is ContractState.AT_RISK
    assert late.expected_warm_at == ORDER + seconds(90)
    (alarm,) = contract_alarms("toy", late, ORDER + seconds(30))
    assert alarm.kind is AlarmKind.PREWARM_LATE
    assert alarm.sentence == (
        "Event sale on toy: 4 of 10 replicas warm, the last expected 15 s after its deadline; "
        "75 s remain until the event starts."
    )


def test_below_the_count_at_the_deadline_it_is_short_until_it_is_met() -> None:
    short = step(DEADLINE, replicas(9))
    recovered = step(MIDNIGHT, replicas(10), short, need=9)

    assert short.state is ContractState.SHORT
    assert [a.kind for a in contract_alarms("toy", short, DEADLINE)] == [AlarmKind.PREWARM_MISSED]
    assert recovered.state is ContractState.ACTIVE


def test_losing_a_replica_before_the_start_opens_it_again_after_the_start_it_was_met() -> None:
    warm = step(ORDER, replicas(10))

    assert step(ORDER + seconds(5), replicas(9), warm).met_at is None
    assert step(MIDNIGHT, replicas(9), warm, need=9).state is ContractState.ACTIVE


def test_unknown_replicas_keep_the_last_counts() -> None:
    before = step(ORDER, (*replicas(4), *replicas(6, Stage.LOADED, ORDER)))
    blind = step(ORDER + seconds(5), None, before)

    assert (blind.loaded_count, blind.verified_count, blind.expected_warm_at) == (
        10,
        4,
        before.expected_warm_at,
    )
    assert blind.state is ContractState.PREWARMING


def test_replicas_never_seen_cannot_be_promised() -> None:
    blind = step(ORDER, None)

    assert (blind.state, blind.verified_count) == (ContractState.AT_RISK, 0)
    (alarm,) = contract_alarms("toy", blind, ORDER)
    assert alarm.sentence == (
        "Event sale on toy: cannot be promised, its expected demand or its replicas are unknown; "
        "105 s remain until the event starts."
    )


def test_an_event_nobody_can_size_is_at_risk_however_many_are_warm() -> None:
    unsized = replace(FLOOR, replicas=1, demand_qps=None)

    assert step(ORDER, replicas(10), floor=unsized).state is ContractState.AT_RISK
    assert step(DEADLINE, replicas(10), floor=unsized).state is ContractState.AT_RISK
    assert step(MIDNIGHT, replicas(10), floor=unsized).state is ContractState.ACTIVE


def test_a_shorter_lead_time_learnt_on_the_way_does_not_postpone_what_has_begun() -> None:
    begun = step(ORDER, replicas(4))
    later = replace(FLOOR, order_at=DEADLINE - seconds(20))

    assert step(ORDER + seconds(5), replicas(4), begun, floor=later).order_at == ORDER
    assert (
        step(ORDER - seconds(5), replicas(4), step(ORDER - HOUR, replicas(4)), floor=later).order_at
        == later.order_at
    )


def test_a_longer_lead_time_learnt_on_the_way_orders_at_once() -> None:
    earlier = replace(FLOOR, order_at=ORDER - minutes(5))

    assert (
        step(ORDER - minutes(1), replicas(4), step(ORDER - HOUR, replicas(4)), floor=earlier).order_at
        == earlier.order_at
    )


def test_what_has_begun_grows_but_never_shrinks_within_a_revision() -> None:
    begun = step(ORDER, replicas(4))

    assert step(ORDER + seconds(5), replicas(4), begun, floor=replace(FLOOR, replicas=6)).replicas == 10
    assert step(ORDER + seconds(5), replicas(4), begun, floor=replace(FLOOR, replicas=14)).replicas == 14


def test_what_has_begun_ends_at_a_limit_that_was_lowered() -> None:
    begun = step(ORDER, replicas(4))
    cut = replace(FLOOR, replicas=7, unmet_replicas=3)

    assert step(ORDER + seconds(5), replicas(4), begun, floor=cut).replicas == 7


def test_before_ordering_a_plan_may_shrink() -> None:
    planned = step(ORDER - HOUR, replicas(4))

    assert step(ORDER - HOUR, replicas(4), planned, floor=replace(FLOOR, replicas=6)).replicas == 6


def test_an_edited_event_starts_a_fresh_contract() -> None:
    warm = step(ORDER, replicas(10))
    edited = event(revision=2, start_at=MIDNIGHT + HOUR)
    fresh = step(
        ORDER + seconds(5),
        replicas(10),
        warm,
        floor=replace(FLOOR, replicas=3, order_at=ORDER + HOUR),
        of=edited,
    )

    assert (fresh.state, fresh.replicas, fresh.met_at) == (ContractState.PLANNED, 3, None)


# ---------------------------------------------------------------- fizzling


def test_demand_far_under_the_floor_long_enough_fizzles_and_returning_demand_revives() -> None:
    start = step(MIDNIGHT, replicas(10), step(ORDER, replicas(10)), need=4)
    almost = step(MIDNIGHT + minutes(15) - seconds(1), replicas(10), start, need=4)
    fizzled = step(MIDNIGHT + minutes(15), replicas(10), almost, need=4)
    revived = step(MIDNIGHT + minutes(16), replicas(10), fizzled, need=5)

    assert start.under_since_at == MIDNIGHT
    assert [c.state for c in (almost, fizzled, revived)] == [
        ContractState.ACTIVE,
        ContractState.FIZZLED,
        ContractState.ACTIVE,
    ]
    assert [a.kind for a in contract_alarms("toy", fizzled, MIDNIGHT)] == [AlarmKind.EVENT_FIZZLED]


def test_quiet_before_the_start_and_unknown_demand_are_no_fizzle() -> None:
    quiet = step(MIDNIGHT - seconds(1), replicas(10), need=0)
    unknown = step(MIDNIGHT + minutes(20), replicas(10), step(MIDNIGHT, replicas(10), quiet), need=None)

    assert (quiet.under_since_at, unknown.under_since_at, unknown.state) == (None, None, ContractState.ACTIVE)


def test_decay_is_counted_from_the_end_of_the_patience() -> None:
    under = step(MIDNIGHT, replicas(10), need=4)
    fizzled = step(MIDNIGHT + minutes(17), replicas(10), under, need=4)

    assert fizzled_for_s(under, Policy(), MIDNIGHT) is None
    assert fizzled_for_s(fizzled, Policy(), MIDNIGHT + minutes(17)) == 120.0
    assert fizzled_for_s(replace(fizzled, under_since_at=None), Policy(), MIDNIGHT) is None


def test_a_shortfall_known_at_plan_time_stands_as_an_alarm_until_the_end() -> None:
    cut = replace(FLOOR, unmet_replicas=6)
    warm = step(ORDER, replicas(10), floor=cut)

    (alarm,) = contract_alarms("toy", warm, ORDER)
    assert alarm.kind is AlarmKind.QUOTA_SHORT
    assert "needs 6 replicas more than max_replicas and quota allow" in alarm.sentence
    assert contract_alarms("toy", step(MIDNIGHT + HOUR, replicas(10), warm, floor=cut), MIDNIGHT + HOUR) == []


# ---------------------------------------------------------------- broken replicas


def test_failed_and_stuck_replicas_are_broken_and_said_why() -> None:
    old, young = START - minutes(16), START - minutes(14)
    seen = [
        Replica("r3", Stage.FAILED, START, START, failure="WRONG_ENGINE: another digest"),
        Replica("r2", Stage.FAILED, START, START),
        Replica("r1", Stage.LOADED, old, START),
        Replica("r0", Stage.LOADED, young, START),
        Replica("r4", Stage.VERIFIED, old, START),
        Replica("r5", Stage.DRAINING, old, START),
    ]

    assert [(r.id, kind, sentence) for r, kind, sentence in broken_replicas(seen, Policy(), START)] == [
        ("r1", AlarmKind.ORDER_STUCK, "Replica r1 has been LOADED for 960 s since its order."),
        ("r2", AlarmKind.ORDER_STUCK, "Replica r2 failed: no reason given."),
        ("r3", AlarmKind.WRONG_ENGINE, "Replica r3 failed: WRONG_ENGINE: another digest."),
    ]


def test_the_first_replacement_is_due_at_once() -> None:
    assert replacement_rounds(0, None, (), START) == (0, True)


@pytest.mark.parametrize(
    ("rounds", "pause"), [(0, 30), (1, 30), (2, 60), (3, 120), (5, 480), (6, 600), (10**9, 600)]
)
def test_the_pause_doubles_with_every_round_in_vain_up_to_its_limit(rounds: int, pause: float) -> None:
    assert replacement_rounds(rounds, START, (), START + seconds(pause - 1)) == (rounds, False)
    assert replacement_rounds(rounds, START, (), START + seconds(pause)) == (rounds, True)
    assert REPLACE_PAUSE <= seconds(pause) <= REPLACE_PAUSE_MAX


def test_a_replica_that_became_warm_since_proves_that_replacing_helps() -> None:
    before, after = replicas(3, at=START - seconds(1)), replicas(1, at=START + seconds(1))

    assert replacement_rounds(5, START, before, START + minutes(1)) == (5, False)
    assert replacement_rounds(5, START, after, START + minutes(1)) == (0, True)
