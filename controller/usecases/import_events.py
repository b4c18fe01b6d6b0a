"""Import events from an iCalendar file, and export them: what a planner's calendar tool needs.

Promises: a file is taken in full or not at all; importing it again changes only what differs; what neither the file
nor the template says stays as it is stored. An event that was cancelled here is not revived. Called by the API.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from controller.core.resources import EventState, Page, TrafficEvent
from controller.ports import Store, UnitOfWork
from controller.usecases.calls import Call, perform
from controller.usecases.errors import InvalidError, MissingError, UseCaseError, Violation
from controller.usecases.event_rules import AHEAD_MAX
from controller.usecases.events import Warner, end, find_event, list_events, register, revise, unwarned
from controller.usecases.icalendar_file import (
    EVENTS_MAX,
    VIOLATIONS_MAX,
    Entry,
    parse_calendar,
    render_calendar,
    where,
)
from controller.usecases.occurrences import occurrences, state_at


class ImportAction(StrEnum):
    """What an import does with a VEVENT."""

    CREATED = "CREATED"
    UPDATED = "UPDATED"
    UNCHANGED = "UNCHANGED"
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of one VEVENT. ``event`` is None where it was skipped, and ``sentence`` says why."""

    uid: str
    action: ImportAction
    event: TrafficEvent | None = None
    sentence: str = ""


async def import_events(
    store: Store,
    call: Call[Sequence[Imported]],
    calendar: bytes,
    template: TrafficEvent,
    given: frozenset[str],
    time_zone: str,
    warner: Warner = unwarned,
) -> Sequence[Imported]:
    """Do what a file says; ``given`` are the fields the template states. Raise InvalidError naming each bad VEVENT."""
    # Parsing a megabyte takes a while, and other callers should not wait for it.
    entries = await asyncio.to_thread(parse_calendar, calendar, template, time_zone)

    async def action(uow: UnitOfWork) -> Sequence[Imported]:
        done: list[Imported] = []
        violations: list[Violation] = []
        for entry in entries:
            try:
                done.append(await _take(uow, entry, given, call, warner))
            except InvalidError as error:
                violations += [
                    Violation(where(entry.index, entry.uid, v.field.removeprefix("event.")), v.description)
                    for v in error.violations
                ]
            except UseCaseError as error:
                violations.append(Violation(where(entry.index, entry.uid, "UID"), str(error)))
            if len(violations) >= VIOLATIONS_MAX:
                break
        if violations:
            raise InvalidError(violations)
        return done

    return await perform(store, call, action)


async def _take(
    uow: UnitOfWork, entry: Entry, given: frozenset[str], call: Call[Sequence[Imported]], warner: Warner
) -> Imported:
    try:
        stored = await find_event(uow, entry.event.id)
    except MissingError:
        stored = None
    if stored is None:
        return await _new(uow, entry, call, warner)
    state = state_at(stored, call.now, frozenset())
    if entry.cancelled:
        if state is EventState.CANCELLED:
            return Imported(entry.uid, ImportAction.UNCHANGED, stored)
        if state is EventState.COMPLETED:
            return Imported(entry.uid, ImportAction.SKIPPED, sentence="it is over already")
        cancelled = await end(uow, stored, call.now, "cancelled in the imported calendar")
        return Imported(entry.uid, ImportAction.CANCELLED, cancelled)
    if state in {EventState.CANCELLED, EventState.COMPLETED}:
        what = "was cancelled here" if state is EventState.CANCELLED else "is over"
        return Imported(
            entry.uid, ImportAction.SKIPPED, sentence=f"events/{stored.id} {what}; register a new one"
        )
    fields = entry.said | given
    wanted = replace(stored, **{name: getattr(entry.event, name) for name in fields})
    changed = await revise(uow, stored, wanted, call.now, warner)
    same = changed.revision == stored.revision
    return Imported(entry.uid, ImportAction.UNCHANGED if same else ImportAction.UPDATED, changed)


async def _new(uow: UnitOfWork, entry: Entry, call: Call[Sequence[Imported]], warner: Warner) -> Imported:
    if entry.cancelled:
        return Imported(entry.uid, ImportAction.SKIPPED, sentence="it was cancelled before it was known here")
    event = replace(entry.event, created_by=call.principal, created_at=call.now, updated_at=call.now)
    if _is_over(event, call.now):
        return Imported(entry.uid, ImportAction.SKIPPED, sentence="it is over already")
    return Imported(entry.uid, ImportAction.CREATED, await register(uow, event, call.now, warner))


def _is_over(event: TrafficEvent, now: datetime) -> bool:
    """Whether a sound event has no occurrence left; an unsound one is for the rules to refuse."""
    if not event.start_at < event.end_at <= now:
        return False
    try:
        return not event.recurring or not occurrences(event, now, now + AHEAD_MAX, 1)
    except Exception:  # noqa: BLE001 -- the recurrence has not been checked yet, and is about to be
        return False


async def export_events(store: Store, where_text: str, now: datetime) -> tuple[bytes, int]:
    """Return the file and how many events are in it; raise InvalidError if they are too many."""
    found: list[TrafficEvent] = []
    token = ""
    for _ in range(EVENTS_MAX):
        rows, token = await list_events(store, Page(EVENTS_MAX + 1, token), now, where=where_text)
        found += rows
        if not token or len(found) > EVENTS_MAX:
            break
    if len(found) > EVENTS_MAX:
        raise InvalidError(
            [
                Violation(
                    "filter", f"matches more than {EVENTS_MAX} events; narrow it, for example by start_time"
                )
            ]
        )
    return await asyncio.to_thread(render_calendar, found), len(found)
