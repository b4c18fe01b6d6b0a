"""The occurrences that concern a workload in a window: what the loop plans with and a preview looks at."""

import logging
from collections.abc import Sequence
from datetime import datetime

from controller.core.resources import EventState, Page, TrafficEvent
from controller.core.types import Event
from controller.ports import UnitOfWork
from controller.usecases.occurrences import OCCURRENCES_MAX, occurrences

log = logging.getLogger(__name__)

_OPEN = sorted(set(EventState) - {EventState.CANCELLED})
_PAGE_SIZE = 500
# 20 pages of events on one workload are a mistake in somebody's script, not a plan.
_PAGES_MAX = 20


async def events_between(
    uow: UnitOfWork, start_at: datetime, end_at: datetime, workload: str | None = None
) -> list[TrafficEvent]:
    """Registered events, cancelled ones left out, that may overlap ``[start_at, end_at)``, by (start, id)."""
    found: list[TrafficEvent] = []
    token = ""
    for _ in range(_PAGES_MAX):
        rows, token = await uow.events.list(
            page=Page(_PAGE_SIZE, token), workload=workload, states=_OPEN, overlaps=(start_at, end_at)
        )
        found += rows
        if not token:
            break
    return found


async def schedule(
    uow: UnitOfWork, start_at: datetime, end_at: datetime, *, without: str | None = None
) -> dict[str, list[Event]]:
    """Occurrences that overlap ``[start_at, end_at)`` by workload, each list by start; ``without`` one event."""
    events = [event for event in await events_between(uow, start_at, end_at) if event.id != without]
    return by_workload(events, start_at, end_at, OCCURRENCES_MAX)


def by_workload(
    events: Sequence[TrafficEvent], start_at: datetime, end_at: datetime, limit: int
) -> dict[str, list[Event]]:
    """Occurrences that overlap ``[start_at, end_at)``, at most ``limit`` of each event, each list by start."""
    found: dict[str, list[Event]] = {}
    for event in events:
        try:
            expanded = occurrences(event, start_at, end_at, limit)
        except (
            Exception
        ):  # one recurrence that the library trips over must not stop the planning of all others
            log.exception("event %s is left out: its recurrence %r cannot be expanded", event.id, event.rrule)
            continue
        for workload in event.workloads:
            found.setdefault(workload, []).extend(expanded)
    for items in found.values():
        items.sort(key=lambda occurrence: (occurrence.start_at, occurrence.id))
    return {workload: items for workload, items in found.items() if items}
