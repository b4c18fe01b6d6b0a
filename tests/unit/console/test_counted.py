"""The one rule by which console and ``top`` count warm replicas."""

from datetime import UTC, datetime, timedelta

import pytest
from forecrest.v1 import control_pb2, event_pb2

from controller.counted import Counted, counted

NOW = datetime(2026, 11, 11, 12, 0, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


def a_decision(age: timedelta = 4 * MINUTE) -> control_pb2.Decision:
    made = control_pb2.Decision(warm_replicas=1, in_flight_replicas=3)
    made.decide_time.FromDatetime(NOW - age)
    return made


def a_status(
    state: event_pb2.ContractState.ValueType = event_pb2.CONTRACT_STATE_PREWARMING, ordered: int = 4
) -> control_pb2.WorkloadStatus:
    contract = event_pb2.Contract(state=state, ordered_count=ordered, verified_count=2)
    contract.start_time.FromDatetime(NOW + HOUR)
    contract.end_time.FromDatetime(NOW + 2 * HOUR)
    status = control_pb2.WorkloadStatus(contracts=[contract])
    status.last_time.FromDatetime(NOW - 5 * SECOND)
    return status


def with_replicas(status: control_pb2.WorkloadStatus, age: timedelta) -> control_pb2.WorkloadStatus:
    status.replicas.CopyFrom(control_pb2.ReplicaCounts(warm_count=3, starting_count=0, draining_count=2))
    status.replicas.observe_time.FromDatetime(NOW - age)
    return status


def test_what_the_loop_counted_at_its_newest_tick_counts() -> None:
    status = with_replicas(a_status(), 5 * SECOND)

    assert Counted(NOW - 5 * SECOND, 3, 0, 2) == counted(status, a_decision(), NOW)


def test_an_older_count_of_the_loop_does_not_beat_what_was_counted_since() -> None:
    status = with_replicas(a_status(), MINUTE)

    assert Counted(NOW - 5 * SECOND, 2, 2) == counted(status, a_decision(), NOW)
    assert Counted(NOW - SECOND, 1, 3) == counted(status, a_decision(SECOND), NOW)


@pytest.mark.parametrize(
    "status",
    [
        pytest.param(None, id="no status"),
        pytest.param(a_status(event_pb2.CONTRACT_STATE_FIZZLED), id="a contract that is over"),
        pytest.param(a_status(ordered=0), id="a contract that counts nothing yet"),
    ],
)
def test_without_either_it_is_the_last_recorded_decision(status: control_pb2.WorkloadStatus | None) -> None:
    assert Counted(NOW - 4 * MINUTE, 1, 3) == counted(status, a_decision(), NOW)


def test_what_nobody_counted_is_unknown() -> None:
    assert counted(None, None, NOW) is None
    assert counted(control_pb2.WorkloadStatus(), control_pb2.Decision(), NOW) is None


@pytest.mark.parametrize(
    ("age", "desired", "old"),
    [(31 * SECOND, 4, True), (30 * SECOND, 4, False), (HOUR, 3, False), (HOUR, None, False)],
)
def test_a_count_is_old_when_it_falls_short_and_may_have_grown(
    age: timedelta, desired: int | None, old: bool
) -> None:
    assert old is Counted(NOW - age, 3, 0).is_old(desired, NOW)
