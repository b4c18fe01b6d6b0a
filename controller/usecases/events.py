"""Register, read, list, change and cancel traffic events. Called by the API; the etag is the revision.

The state of an event is derived from its times and contracts when it is read; only CANCELLED is stored.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from controller.core.resources import EventState, EventWarning, Page, TrafficEvent
from controller.core.types import ContractState, WorkloadState
from controller.ports import ConflictError, NotFoundError, Store, UnitOfWork
from controller.usecases.calls import Call, perform
from controller.usecases.errors import (
    EtagMismatchError,
    ExistsError,
    Findings,
    InvalidError,
    MissingError,
    PreconditionError,
    Violation,
)
from controller.usecases.event_rules import check_event
from controller.usecases.filters import Field, Kind, filter_of, order_of
from controller.usecases.listing import listing
from controller.usecases.occurrences import occurrences, state_at
from controller.usecases.workload_rules import REPLICAS_MAX

# Store pages read for one page of a listing that filters by derived state; then a short page is returned.
PAGES_MAX = 20
# No prewarm begins earlier than this before an event, so only nearer events need the contracts.
PREWARM_AHEAD_MAX = timedelta(days=4)
_ORDERED = frozenset(ContractState) - {ContractState.PLANNED}


# What a filter of events may compare, and what they may be ordered by (column of the store).
EVENT_FIELDS: Mapping[str, Field[TrafficEvent]] = {
    "name": Field(lambda e: e.id, prefix="events/"),
    "display_name": Field(lambda e: e.display_name),
    "workload": Field(lambda e: e.workloads, prefix="workloads/"),
    "state": Field(lambda e: e.state.value, choices=tuple(EventState), prefix="EVENT_STATE_"),
    "category": Field(lambda e: e.category),
    "created_by": Field(lambda e: e.created_by),
    "priority": Field(lambda e: e.priority, Kind.NUMBER),
    "confidence": Field(lambda e: e.confidence, Kind.NUMBER),
    "expected_peak_qps": Field(lambda e: e.expected_peak_qps, Kind.NUMBER),
    "expected_multiplier": Field(lambda e: e.expected_multiplier, Kind.NUMBER),
    "recurring": Field(lambda e: e.recurring, Kind.FLAG),
    "start_time": Field(lambda e: e.start_at, Kind.TIME),
    "end_time": Field(lambda e: e.end_at, Kind.TIME),
    "create_time": Field(lambda e: e.created_at, Kind.TIME),
    "update_time": Field(lambda e: e.updated_at, Kind.TIME),
    "labels": Field(lambda e: dict(e.labels), Kind.MAP),
}
EVENT_ORDERS: Mapping[str, str] = {"name": "id", "start_time": "start_at", "end_time": "end_at"}
# Tells what a planner should know of an event that is registered, in the transaction that does so.
Warner = Callable[[UnitOfWork, TrafficEvent], Awaitable[tuple[EventWarning, ...]]]


async def unwarned(_uow: UnitOfWork, _event: TrafficEvent) -> tuple[EventWarning, ...]:
    """No warnings."""
    return ()


async def find_event(uow: UnitOfWork, event_id: str) -> TrafficEvent:
    """Read an event as stored; raise MissingError."""
    try:
        return await uow.events.get(event_id)
    except NotFoundError as error:
        raise missing_event(event_id) from error


def missing_event(event_id: str) -> MissingError:
    """What is raised for an event that is not there, for whoever asks."""
    return MissingError(f"events/{event_id}", "list the events, or create it first")


def prewarming(states: Mapping[str, WorkloadState]) -> frozenset[str]:
    """Occurrences whose replicas have been ordered, from the core's contracts."""
    return frozenset(c.event_id for s in states.values() for c in s.contracts if c.state in _ORDERED)


async def with_states(uow: UnitOfWork, events: Sequence[TrafficEvent], now: datetime) -> list[TrafficEvent]:
    """Return the events with their state at ``now``."""
    near = any(occurrences(event, now, now + PREWARM_AHEAD_MAX, 1) for event in events)
    ordered = prewarming(await uow.states.load()) if near else frozenset[str]()
    return [replace(event, state=state_at(event, now, ordered)) for event in events]


async def get_event(store: Store, event_id: str, now: datetime) -> TrafficEvent:
    """Read an event; raise MissingError."""
    async with store.unit_of_work() as uow:
        return (await with_states(uow, [await find_event(uow, event_id)], now))[0]


async def list_events(
    store: Store,
    page: Page,
    now: datetime,
    *,
    workload: str | None = None,
    states: frozenset[EventState] = frozenset(),
    category: str | None = None,
    overlaps: tuple[datetime | None, datetime | None] = (None, None),
    where: str = "",
    order_by: str = "",
) -> tuple[Sequence[TrafficEvent], str]:
    """One page, in the order asked for, and the token of the next; raise InvalidError."""
    findings = Findings()
    findings.text("category", category or "", 0, 63)
    findings.raise_if_any()
    wanted = filter_of(where, EVENT_FIELDS)
    column, descending = order_of(order_by, EVENT_ORDERS, "start_time")
    workload = wanted.equal.get("workload") if workload is None else workload
    category = wanted.equal.get("category") if category is None else category
    window = _window(overlaps)
    stored = set(states)
    if states - {EventState.CANCELLED}:  # every other state is derived from what is not cancelled
        stored |= set(EventState) - {EventState.CANCELLED}
    found: list[TrafficEvent] = []
    token = page.token
    async with store.unit_of_work() as uow, listing(page):
        for _ in range(PAGES_MAX):
            rows, token = await uow.events.list(
                page=Page(page.size - len(found), token),
                workload=workload,
                states=sorted(stored),
                category=category,
                overlaps=window,
                order_by=EVENT_ORDERS[column],
                descending=descending,
            )
            found += [
                event
                for event in await with_states(uow, rows, now)
                if (not states or event.state in states) and wanted.matches(event)
            ]
            if not token or len(found) >= page.size:
                break
    return found, token


def _window(overlaps: tuple[datetime | None, datetime | None]) -> tuple[datetime, datetime] | None:
    start_at, end_at = overlaps
    if start_at is None and end_at is None:
        return None
    if start_at is None or end_at is None:
        missing = "start_time" if start_at is None else "end_time"
        raise InvalidError([Violation(missing, "give both start_time and end_time, or neither")])
    findings = Findings()
    findings.window(start_at, end_at)
    findings.raise_if_any()
    return start_at, end_at


async def check_workloads(uow: UnitOfWork, event: TrafficEvent) -> None:
    """Raise InvalidError unless every workload of the event exists and its peak is within reason for each."""
    findings = Findings("event.")
    for index, name in enumerate(event.workloads):
        try:
            workload = await uow.workloads.get(name)
        except NotFoundError:
            findings.add(f"workloads[{index}]", f"no workload {name!r}; create it first or correct the name")
            continue
        limit_qps = REPLICAS_MAX * workload.profile.qps_max
        findings.require(
            (event.expected_peak_qps or 0.0) <= limit_qps,
            "expected_peak_qps",
            f"would need more than {REPLICAS_MAX} replicas of {name}, which serve {limit_qps:g} requests per "
            "second; correct it, or the capacity profile",
        )
    findings.raise_if_any()


async def create_event(
    store: Store, call: Call[TrafficEvent], draft: TrafficEvent, warner: Warner = unwarned
) -> TrafficEvent:
    """Register an event, with what ``warner`` says of it; raise InvalidError or ExistsError."""
    event = replace(
        draft,
        state=EventState.SCHEDULED,
        revision=1,
        created_by=call.principal,
        created_at=call.now,
        updated_at=call.now,
        cancelled_reason="",
    )

    async def action(uow: UnitOfWork) -> TrafficEvent:
        # Here and not before: a retry after the event has ended still gets the first response.
        return await register(uow, event, call.now, warner)

    return await perform(store, call, action)


async def register(
    uow: UnitOfWork, event: TrafficEvent, now: datetime, warner: Warner = unwarned
) -> TrafficEvent:
    """Check and store a new event inside a transaction; raise InvalidError or ExistsError."""
    check_event(event, now)
    await check_workloads(uow, event)
    try:
        created = await uow.events.create(replace(event, warnings=await warner(uow, event)))
    except ConflictError as error:
        raise ExistsError(f"events/{event.id}", "event_id") from error
    return replace(created, state=state_at(created, now, frozenset()))


async def update_event(
    store: Store,
    call: Call[TrafficEvent],
    event_id: str,
    expected_revision: int | None,
    change: Callable[[TrafficEvent], TrafficEvent],
    warner: Warner = unwarned,
) -> TrafficEvent:
    """Store what ``change`` makes of an event as a new revision.

    Raise MissingError, InvalidError, EtagMismatchError, or PreconditionError once it is over.
    """

    async def action(uow: UnitOfWork) -> TrafficEvent:
        stored = await _open_event(uow, event_id, expected_revision, "event.etag", call.now)
        return await revise(uow, stored, change(stored), call.now, warner)

    return await perform(store, call, action)


async def revise(
    uow: UnitOfWork, stored: TrafficEvent, wanted: TrafficEvent, now: datetime, warner: Warner = unwarned
) -> TrafficEvent:
    """Check and store a new revision inside a transaction, unless nothing differs; raise as ``update_event``."""
    changed = replace(
        wanted,
        id=stored.id,
        state=stored.state,
        revision=stored.revision,
        created_by=stored.created_by,
        created_at=stored.created_at,
        updated_at=stored.updated_at,
        cancelled_reason=stored.cancelled_reason,
        warnings=stored.warnings,
    )
    check_event(changed, now)
    await check_workloads(uow, changed)
    if changed != stored:
        warnings = await warner(uow, changed)
        changed = await _store(uow, replace(changed, updated_at=now, warnings=warnings), "event.etag")
    return (await with_states(uow, [changed], now))[0]


async def cancel_event(
    store: Store, call: Call[TrafficEvent], event_id: str, expected_revision: int | None, reason: str
) -> TrafficEvent:
    """Cancel an event; cancelling again changes nothing. Raise as ``update_event`` does."""
    findings = Findings()
    findings.text("reason", reason, 0, 500)
    findings.raise_if_any()

    async def action(uow: UnitOfWork) -> TrafficEvent:
        stored = await find_event(uow, event_id)
        if stored.state is EventState.CANCELLED:
            return stored
        stored = await _open_event(uow, event_id, expected_revision, "etag", call.now)
        return await end(uow, stored, call.now, reason)

    return await perform(store, call, action)


async def end(uow: UnitOfWork, stored: TrafficEvent, now: datetime, reason: str) -> TrafficEvent:
    """Store an event as cancelled inside a transaction."""
    cancelled = replace(stored, state=EventState.CANCELLED, cancelled_reason=reason, updated_at=now)
    return await _store(uow, cancelled, "etag")


async def _open_event(
    uow: UnitOfWork, event_id: str, expected_revision: int | None, field: str, now: datetime
) -> TrafficEvent:
    stored = await find_event(uow, event_id)
    if expected_revision not in {None, stored.revision}:
        raise EtagMismatchError(f"events/{event_id}", field)
    state = state_at(stored, now, frozenset())
    if state in {EventState.CANCELLED, EventState.COMPLETED}:
        raise PreconditionError(
            f"EVENT_{state}",
            f"events/{event_id} is {state}; register a new event instead",
            {"resource": f"events/{event_id}"},
        )
    return stored


async def _store(uow: UnitOfWork, event: TrafficEvent, field: str) -> TrafficEvent:
    try:
        # Always against what was read: a concurrent change must not be overwritten unseen.
        return await uow.events.update(event, expected_revision=event.revision)
    except ConflictError as error:
        raise EtagMismatchError(f"events/{event.id}", field) from error
