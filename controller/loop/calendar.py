"""Events as the core and the forecaster need them: occurrences per workload in a window. No I/O."""

from collections.abc import Sequence
from datetime import datetime

from controller.core.resources import TrafficEvent
from controller.core.types import Event
from controller.usecases.occurrences import occurrences


def events_by_workload(
    events: Sequence[TrafficEvent], start_at: datetime, end_at: datetime, limit: int
) -> dict[str, tuple[Event, ...]]:
    """Occurrences overlapping the window, by workload, each tuple ordered by start; beyond ``limit`` the oldest go."""
    found: dict[str, list[Event]] = {}
    for event in events:
        for occurrence in occurrences(event, start_at, end_at, limit):
            for workload in event.workloads:
                found.setdefault(workload, []).append(occurrence)
    return {
        name: tuple(sorted(items, key=lambda e: (e.start_at, e.id))[-limit:]) for name, items in found.items()
    }
