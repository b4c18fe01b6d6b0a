"""What is told of a change of state, and that nothing is told twice."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from controller.core.types import (
    Alarm,
    AlarmKind,
    CapacityProfile,
    Contract,
    ContractState,
    FleetState,
    Workload,
    WorkloadState,
)
from controller.notify.milestones import FOLD_OVER, news
from controller.notify.types import Kind, Notification, Severity

START = datetime(2026, 11, 10, 16, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
REC = Workload("rec", "m", (CapacityProfile("e", "T4", 100.0),), namespace="shop")
PLANNED = Contract(
    event_id="sale",
    revision=1,
    state=ContractState.PLANNED,
    replicas=14,
    order_at=START - 10 * MINUTE,
    deadline_at=START - MINUTE,
    start_at=START,
    end_at=START + 60 * MINUTE,
)
LATE = Alarm(AlarmKind.PREWARM_LATE, "rec", "sale", "6 of 14 replicas warm.")


def state(at: datetime, contract: Contract | None = None, *alarms: Alarm) -> FleetState:
    contracts = () if contract is None else (contract,)
    return FleetState({"rec": WorkloadState(contracts=contracts, alarms=alarms, last_at=at)})


def told(states: Sequence[FleetState]) -> list[Notification]:
    """What a course of ticks, a minute apart or as each says, brings to tell."""
    found: list[Notification] = []
    for before, after in pairwise(states):
        now = after.workloads["rec"].last_at
        assert now is not None
        found += news(before, after, {"rec": REC}, now).told
    return found


def course(late: timedelta = timedelta(0)) -> list[FleetState]:
    """An event from before its plan to after its end, by ticks that come so late."""
    started = replace(PLANNED, state=ContractState.PREWARMING, verified_count=4)
    warm = replace(started, state=ContractState.WARM, verified_count=14, met_at=START - 2 * MINUTE)
    active = replace(warm, state=ContractState.ACTIVE)
    over = replace(active, state=ContractState.COMPLETED)
    ticks: list[tuple[timedelta, Contract | None]] = [
        (-30 * MINUTE, None),
        (-29 * MINUTE, PLANNED),
        (-28 * MINUTE, PLANNED),
        (-10 * MINUTE, started),
        (-9 * MINUTE, started),
        (-2 * MINUTE, warm),
        (timedelta(0), active),
        (MINUTE, active),
        (60 * MINUTE, over),
        (61 * MINUTE, over),
    ]
    return [state(START + at + late, contract) for at, contract in ticks]


def test_an_event_is_told_from_its_plan_to_its_end_each_step_once() -> None:
    found = told(course())

    assert [
        Kind.PREWARM_PLANNED,
        Kind.PREWARM_STARTED,
        Kind.PREWARM_WARM,
        Kind.EVENT_STARTED,
        Kind.EVENT_ENDED,
    ] == [one.kind for one in found]
    assert {("rec", "shop", "sale", Severity.INFO)} == {
        (one.workload, one.namespace, one.subject, one.severity) for one in found
    }
    assert (
        "Event sale on rec: 14 replicas are planned to be warm by 2026-11-10 15:59:00 UTC, the first order goes out "
        "at 2026-11-10 15:50:00 UTC." == found[0].sentence
    )
    assert "Event sale on rec has started with 14 of 14 replicas warm." == found[3].sentence


def test_ids_are_the_same_whoever_derives_them_and_when() -> None:
    ids = [one.id for one in told(course())]

    assert ids == [one.id for one in told(course(late=timedelta(seconds=7)))]
    assert 5 == len(set(ids))


def test_an_edited_event_is_planned_anew_and_starts_once() -> None:
    before, after = course()[2], state(START - 20 * MINUTE, replace(PLANNED, revision=2, replicas=18))
    running = replace(
        PLANNED, state=ContractState.ACTIVE, met_at=START - MINUTE, verified_count=14, order_at=START
    )
    edited = replace(running, revision=2)

    (planned,) = told([before, after])
    assert (Kind.PREWARM_PLANNED, True) == (planned.kind, "18 replicas" in planned.sentence)
    assert Kind.EVENT_STARTED not in {
        one.kind for one in told([state(START, running), state(START + MINUTE, edited)])
    }


def test_a_shortfall_is_told_with_the_plan() -> None:
    (planned,) = told([state(START - 30 * MINUTE), state(START, replace(PLANNED, shortfall_replicas=3))])[:1]

    assert "3 replicas short" in planned.sentence


def test_an_event_that_was_over_before_it_was_planned_is_not_told() -> None:
    over = replace(PLANNED, state=ContractState.COMPLETED)

    assert [] == told([state(START + 61 * MINUTE), state(START + 62 * MINUTE, over)])


def test_an_event_missed_whole_is_told_to_be_over() -> None:
    over = replace(PLANNED, state=ContractState.COMPLETED)

    (ended,) = told([state(START - 30 * MINUTE, PLANNED), state(START + 62 * MINUTE, over)])
    assert Kind.EVENT_ENDED is ended.kind


def test_without_a_hold_alarms_are_told_when_they_come_and_go_and_come_back() -> None:
    reworded = replace(LATE, sentence="7 of 14 replicas warm.")
    found = told(
        [
            state(START - 5 * MINUTE),
            state(START - 4 * MINUTE, None, LATE),
            state(START - 3 * MINUTE, None, reworded),
            state(START - 2 * MINUTE),
            state(START - MINUTE, None, LATE),
        ]
    )

    assert [Kind.ALARM_RAISED, Kind.ALARM_CLEARED, Kind.ALARM_RAISED] == [one.kind for one in found]
    assert {AlarmKind.PREWARM_LATE} == {one.alarm for one in found}
    assert {Severity.CRITICAL} == {one.severity for one in found}
    assert "Over since 2026-11-10 15:58:00 UTC: 7 of 14 replicas warm." == found[1].sentence
    assert 3 == len({one.id for one in found})


def fleet(count: int) -> list[Notification]:
    names = [f"w{number:03}" for number in range(count)]
    workloads = {
        name: replace(REC, name=name, namespace="shop" if name != "w000" else "lab") for name in names
    }
    silent = {
        name: WorkloadState(alarms=(Alarm(AlarmKind.NO_DATA, name, "", f"{name}: no data."),))
        for name in names
    }
    return news(FleetState({}), FleetState(silent), workloads, START).told


def test_many_alike_are_told_as_one_per_namespace() -> None:
    lab, shop = sorted(fleet(FOLD_OVER + 2), key=lambda one: one.namespace)

    assert ("w000", "lab") == (lab.workload, lab.namespace)
    assert ("", "shop", AlarmKind.NO_DATA, Severity.CRITICAL) == (
        shop.workload,
        shop.namespace,
        shop.alarm,
        shop.severity,
    )
    assert (
        "ALARM_RAISED NO_DATA, 21 times on w001, w002, w003, w004, w005 and 16 more. The first: w001: no data."
        == shop.sentence
    )


def test_a_few_alike_are_told_one_by_one() -> None:
    assert FOLD_OVER + 1 == len(fleet(FOLD_OVER + 1))


def test_workloads_that_are_gone_are_not_told_of() -> None:
    after = state(START, PLANNED)

    assert [] == news(FleetState({}), after, {}, START).told
