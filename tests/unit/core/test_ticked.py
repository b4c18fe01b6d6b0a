"""A state that a tick leaves as it stood differs by the time of the last tick, and by nothing else."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from controller.core.tick import on_tick, stands, ticked
from controller.core.types import (
    CapacityProfile,
    DemandObservation,
    FleetState,
    PastNeed,
    Replica,
    Stage,
    TickInput,
    Workload,
    WorkloadInput,
    WorkloadState,
)

NOW = datetime(2026, 11, 30, 22, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
WORKLOAD = Workload("rec", "rec", (CapacityProfile("e", "T4", 100.0),), max_replicas=20)
STATE = WorkloadState(4, needs=(PastNeed(NOW - SECOND, 3), PastNeed(NOW, 4)), last_at=NOW)


def tick(state: WorkloadState, at: datetime, qps: float) -> WorkloadState:
    demand = DemandObservation(at, qps, qps, 0.0, 1, 1, timedelta(minutes=5))
    warm = tuple(Replica(f"r{number}", Stage.VERIFIED, NOW, NOW) for number in range(4))
    given = TickInput(at, (WorkloadInput(WORKLOAD, warm, None, demand),))
    return on_tick(FleetState({"rec": state}), given)[0].workloads["rec"]


def test_the_last_need_moves_with_the_tick() -> None:
    later = ticked(STATE, NOW + SECOND)

    assert replace(STATE, needs=(STATE.needs[0], PastNeed(NOW + SECOND, 4)), last_at=NOW + SECOND) == later
    assert ticked(later, NOW + 9 * SECOND) == ticked(STATE, NOW + 9 * SECOND)


@pytest.mark.parametrize(
    "state",
    [
        WorkloadState(4),
        replace(STATE, last_at=None),
        replace(STATE, last_at=NOW + 5 * SECOND),
        replace(STATE, last_at=NOW - SECOND),
        replace(STATE, needs=()),
    ],
    ids=["never ticked", "gone", "a clock that stepped back", "an older tick than its need", "no needs"],
)
def test_what_no_tick_left_so_is_not_touched(state: WorkloadState) -> None:
    assert state is ticked(state, NOW + SECOND)


def test_a_tick_that_changes_nothing_leaves_the_state_as_it_stood() -> None:
    settled = tick(tick(WorkloadState(), NOW - SECOND, 150.0), NOW, 150.0)
    for number in range(1, 8):
        after = tick(settled, NOW + number * SECOND, 150.0 + number / 100)

        assert after != settled
        assert stands(settled, after)
        assert after == ticked(settled, after.last_at or NOW)


def test_a_tick_that_changes_anything_does_not() -> None:
    settled = tick(WorkloadState(), NOW, 150.0)

    assert not stands(None, settled)
    assert not stands(settled, tick(settled, NOW + SECOND, 900.0))
    assert not stands(settled, replace(settled, last_at=None))
    assert not stands(settled, replace(tick(settled, NOW + SECOND, 150.0), recorded_key="another"))
