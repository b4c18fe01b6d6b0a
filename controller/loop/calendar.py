"""Events as the core and the forecaster need them: occurrences per workload in a window. No I/O."""

from collections.abc import Sequence
from datetime import datetime

from controller.core.resources import TrafficEvent
from controller.core.types import Event
from controller.usecases.schedule import by_workload


def events_by_workload(
    events: Sequence[TrafficEvent], start_at: datetime, end_at: datetime, limit: int
) -> dict[str, tuple[Event, ...]]:
    """Occurrences overlapping the window, by workload, each tuple ordered by start; beyond ``limit`` the oldest go."""
    return {
        name: tuple(items[-limit:]) for name, items in by_workload(events, start_at, end_at, limit).items()
    }
