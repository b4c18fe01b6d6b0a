"""Event night's answer: warm only when the controller says so, and as warm as the worst workload."""

from datetime import UTC, datetime, timedelta

import pytest
from forecrest.v1 import control_pb2, event_pb2, event_service_pb2
from google.protobuf.timestamp_pb2 import Timestamp

from controller.console.views import night

START = datetime(2026, 11, 10, 16, 0, tzinfo=UTC)
DEADLINE = START - timedelta(minutes=1)


def stamp(at: datetime) -> Timestamp:
    found = Timestamp()
    found.FromDatetime(at)
    return found


def a_contract(
    state: str, expected_at: datetime | None = None, verified: int = 0, **more: object
) -> event_pb2.Contract:
    return event_pb2.Contract(
        occurrence_id="sale",
        state=event_pb2.ContractState.Value(f"CONTRACT_STATE_{state}"),
        replicas=14,
        order_time=stamp(START - timedelta(minutes=10)),
        deadline_time=stamp(DEADLINE),
        start_time=stamp(START),
        end_time=stamp(START + timedelta(hours=2)),
        ordered_count=14,
        scheduled_count=14,
        loaded_count=12,
        warmed_count=9,
        verified_count=verified,
        expected_warm_time=None if expected_at is None else stamp(expected_at),
        **more,  # type: ignore[arg-type]  # fields of the message
    )


def seen(
    *contracts: event_pb2.Contract,
    at: datetime = START - timedelta(minutes=5),
    workloads: tuple[str, ...] = ("rec",),
) -> event_service_pb2.WatchEventResponse:
    return event_service_pb2.WatchEventResponse(
        event=event_pb2.Event(
            name="events/sale",
            display_name="Midnight sale",
            workloads=[f"workloads/{name}" for name in workloads],
            start_time=stamp(START),
            end_time=stamp(START + timedelta(hours=2)),
            time_zone="Asia/Shanghai",
            state=event_pb2.EVENT_STATE_PREWARMING,
        ),
        prewarms=[
            event_service_pb2.Prewarm(workload=f"workloads/{name}", contract=contract)
            for name, contract in zip(workloads, contracts, strict=False)
        ],
        observe_time=stamp(at),
    )


@pytest.mark.parametrize(
    ("contract", "verdict"),
    [
        (a_contract("PLANNED"), "planned"),
        (a_contract("PREWARMING", DEADLINE - timedelta(seconds=40)), "on_time"),
        (a_contract("PREWARMING", DEADLINE + timedelta(seconds=1)), "late"),
        (a_contract("PREWARMING"), "unknown"),
        (a_contract("AT_RISK", DEADLINE + timedelta(minutes=2)), "late"),
        (a_contract("WARM", verified=14), "warm"),
        (a_contract("ACTIVE", verified=14), "warm"),
        (a_contract("WARM", verified=14, shortfall_replicas=2), "short"),
        (a_contract("SHORT"), "short"),
        (a_contract("FIZZLED"), "fizzled"),
        (a_contract("UNSPECIFIED", DEADLINE), "unknown"),
    ],
)
def test_the_verdict_follows_the_contract(contract: event_pb2.Contract, verdict: str) -> None:
    assert night.night_view(seen(contract), []).verdict == verdict


def test_the_margin_is_how_long_before_the_deadline_all_are_warm() -> None:
    view = night.night_view(seen(a_contract("PREWARMING", DEADLINE - timedelta(seconds=40))), [])
    assert view.margin == timedelta(seconds=40)
    assert view.ladders[0].start_margin == timedelta(seconds=100)


def test_before_the_order_nothing_says_when_replicas_will_be_warm() -> None:
    view = night.night_view(
        seen(a_contract("PLANNED", DEADLINE - timedelta(hours=1), shortfall_replicas=2)), []
    )
    assert (view.verdict, view.margin, view.ladders[0].warm_at) == ("short", None, None)


def test_the_fleet_is_as_warm_as_its_worst_workload() -> None:
    contracts = a_contract("WARM", verified=14), a_contract("AT_RISK", DEADLINE + timedelta(minutes=2))
    view = night.night_view(seen(*contracts, workloads=("rec", "search")), [])
    assert (view.verdict, view.verified, view.wanted) == ("late", 14, 28)


def test_a_workload_without_a_contract_is_not_counted_as_warm_nor_given_a_margin() -> None:
    warm = a_contract("WARM", DEADLINE - timedelta(minutes=1), verified=14)
    view = night.night_view(seen(warm, workloads=("rec", "search")), [])
    assert [(x.workload, x.verdict) for x in view.ladders] == [("rec", "warm"), ("search", "none")]
    assert (view.verdict, view.margin) == ("none", None)


def test_rungs_count_replicas_at_or_past_each_stage() -> None:
    view = night.night_view(seen(a_contract("PREWARMING", DEADLINE, verified=7)), [])
    rungs = [(rung.stage, rung.count, rung.done) for rung in view.ladders[0].rungs]
    assert rungs == [
        ("ordered", 14, True),
        ("scheduled", 14, True),
        ("loaded", 12, False),
        ("warmed", 9, False),
        ("verified", 7, False),
    ]


def test_broken_replicas_come_first_and_draining_ones_not_at_all() -> None:
    response = seen(a_contract("PREWARMING", DEADLINE))
    response.prewarms[0].replicas.extend(
        [
            event_pb2.Replica(id="a", stage=event_pb2.STAGE_VERIFIED),
            event_pb2.Replica(id="b", stage=event_pb2.STAGE_LOADED),
            event_pb2.Replica(id="c", stage=event_pb2.STAGE_DRAINING),
            event_pb2.Replica(id="d", stage=event_pb2.STAGE_FAILED, failure="wrong engine"),
        ]
    )
    rows = night.night_view(response, []).ladders[0].rows
    assert [(row.id, row.climbed, row.failure) for row in rows] == [
        ("d", 0, "wrong engine"),
        ("b", 3, ""),
        ("a", 5, ""),
    ]


@pytest.mark.parametrize(
    ("at", "phase"),
    [
        (START - timedelta(minutes=1), "before"),
        (START, "running"),
        (START + timedelta(hours=2), "over"),
    ],
)
def test_the_phase_follows_the_apis_own_time(at: datetime, phase: str) -> None:
    assert night.night_view(seen(a_contract("ACTIVE"), at=at), []).phase == phase


def test_alarms_and_bad_conditions_are_told_once_each_and_unread_ones_are_not_called_none() -> None:
    alarm = control_pb2.Alarm(
        kind=control_pb2.ALARM_KIND_QUOTA_SHORT, workload="workloads/rec", sentence="raise the quota"
    )
    decision = control_pb2.Decision(
        workload="workloads/rec",
        conditions=[
            control_pb2.Condition(type=control_pb2.CONDITION_TYPE_ABLE_TO_SCALE, ok=True),
            control_pb2.Condition(
                type=control_pb2.CONDITION_TYPE_SCALING_LIMITED, ok=True, message="at the limit"
            ),
        ],
    )
    response = seen(a_contract("PLANNED"))
    view = night.night_view(response, [control_pb2.WorkloadStatus(alarms=[alarm, alarm])], [decision])
    assert [(n.kind, n.sentence) for n in view.notices] == [
        ("quota_short", "raise the quota"),
        ("scaling_limited", "at the limit"),
    ]
    assert not night.night_view(response, None).notices_known


def an_event(name: str, start_at: datetime) -> event_pb2.Event:
    return event_pb2.Event(
        name=f"events/{name}", start_time=stamp(start_at), end_time=stamp(start_at + timedelta(hours=2))
    )


def test_the_event_that_runs_is_shown_before_the_one_that_comes() -> None:
    known = [
        an_event("later", START + timedelta(days=1)),
        an_event("soon", START),
        an_event("past", START - timedelta(days=1)),
    ]
    assert night.choose(known, START - timedelta(minutes=5)) == "soon"
    assert night.choose(known, START + timedelta(minutes=5)) == "soon"
    assert night.choose(known, START + timedelta(hours=3)) == "later"
    assert night.choose(known, START + timedelta(days=9)) is None
