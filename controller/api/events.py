"""EventService: parse names, run the use case with one clock reading, map the result. No rule lives here."""
# ruff: noqa: N802 -- the protocol names the methods

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import datetime

from forecrest.v1 import event_pb2, event_service_pb2, event_service_pb2_grpc

from controller.api import mappers
from controller.api.calls import (
    ApiDependencies,
    announce,
    call_of,
    optional_time,
    optional_workload,
    scope_of,
)
from controller.api.feed import EventView, Feed, event_token
from controller.core.resources import EventState, EventWarning, TrafficEvent
from controller.ports import UnitOfWork
from controller.usecases import events
from controller.usecases.calls import Call
from controller.usecases.errors import Findings, InvalidError, Violation
from controller.usecases.events import Warner
from controller.usecases.import_events import Imported, export_events, import_events
from controller.usecases.listing import page_of, seal
from controller.usecases.names import check_id, new_id, parse
from controller.usecases.preview_event import Basis, event_warnings, observed_demand, preview_event
from controller.usecases.report_event import report_event


def decode_event(data: bytes) -> TrafficEvent:
    """Return the event of a kept response."""
    message = event_pb2.Event.FromString(data)
    return mappers.event_from_wire(message, message.name.removeprefix("events/"))


class EventServicer(event_service_pb2_grpc.EventServiceServicer):
    """Registration, previews and watching of traffic events."""

    def __init__(self, deps: ApiDependencies, feed: Feed) -> None:
        self._deps, self._feed = deps, feed

    async def CreateEvent(
        self, request: event_service_pb2.CreateEventRequest, context: object
    ) -> event_pb2.Event:
        """Register an event."""
        del context
        event_id = request.event_id or new_id("event")
        findings = Findings()
        check_id(findings, "event_id", event_id)
        findings.raise_if_any()
        draft = mappers.event_from_wire(request.event, event_id)
        call = call_of(
            request,
            method="CreateEvent",
            resource=f"events/{event_id}",
            now=self._deps.clock.now(),
            encode=mappers.event_to_wire,
            decode=decode_event,
        )
        created = await events.create_event(self._deps.store, call, draft, self._warner(call.now))
        await announce(self._deps.signals, call)
        return mappers.event_to_wire(created)

    async def GetEvent(self, request: event_service_pb2.GetEventRequest, context: object) -> event_pb2.Event:
        """Read an event."""
        del context
        (event_id,) = parse(request.name, "events/*", "name")
        found = await events.get_event(self._deps.store, event_id, self._deps.clock.now())
        return mappers.event_to_wire(found)

    async def ListEvents(
        self, request: event_service_pb2.ListEventsRequest, context: object
    ) -> event_service_pb2.ListEventsResponse:
        """List events."""
        del context
        scope = scope_of(request)
        rows, token = await events.list_events(
            self._deps.store,
            page_of(request.page_size, request.page_token, scope),
            self._deps.clock.now(),
            workload=optional_workload(request.workload),
            states=frozenset(map(_state, set(request.states))),
            category=request.category or None,
            overlaps=(optional_time(request, "start_time"), optional_time(request, "end_time")),
            where=request.filter,
            order_by=request.order_by,
        )
        return event_service_pb2.ListEventsResponse(
            events=map(mappers.event_to_wire, rows), next_page_token=seal(token, scope)
        )

    async def UpdateEvent(
        self, request: event_service_pb2.UpdateEventRequest, context: object
    ) -> event_pb2.Event:
        """Change an event."""
        del context
        mappers.check_mask(request.update_mask)
        (event_id,) = parse(request.event.name, "events/*", "event.name")
        call = call_of(
            request,
            method="UpdateEvent",
            resource=f"events/{event_id}",
            now=self._deps.clock.now(),
            encode=mappers.event_to_wire,
            decode=decode_event,
        )
        updated = await events.update_event(
            self._deps.store,
            call,
            event_id,
            mappers.version_of(request.event.etag),
            lambda stored: mappers.changed_event(stored, request.event, request.update_mask),
            self._warner(call.now),
        )
        await announce(self._deps.signals, call)
        return mappers.event_to_wire(updated)

    async def CancelEvent(
        self, request: event_service_pb2.CancelEventRequest, context: object
    ) -> event_pb2.Event:
        """Cancel an event."""
        del context
        (event_id,) = parse(request.name, "events/*", "name")
        call = call_of(
            request,
            method="CancelEvent",
            resource=f"events/{event_id}",
            now=self._deps.clock.now(),
            encode=mappers.event_to_wire,
            decode=decode_event,
        )
        cancelled = await events.cancel_event(
            self._deps.store, call, event_id, mappers.version_of(request.etag), request.reason
        )
        await announce(self._deps.signals, call)
        return mappers.event_to_wire(cancelled)

    async def PreviewEvent(
        self, request: event_service_pb2.PreviewEventRequest, context: object
    ) -> event_service_pb2.PreviewEventResponse:
        """Say what an event would cost."""
        del context
        name = request.event.name
        event_id = parse(name, "events/*", "event.name")[0] if name else new_id("preview")
        preview = await preview_event(
            self._deps.store,
            self._deps.signals,
            self._deps.forecaster,
            self._deps.preview,
            mappers.event_from_wire(request.event, event_id),
            self._deps.clock.now(),
        )
        response = mappers.preview_to_wire(preview)
        if not name:  # it was made up for the computation; nothing is registered under it
            response.event.name = ""
        response.event.etag = ""
        return response

    async def WatchEvent(
        self, request: event_service_pb2.WatchEventRequest, context: object
    ) -> AsyncGenerator[event_service_pb2.WatchEventResponse]:
        """Follow an event until it is over."""
        del context
        (event_id,) = parse(request.name, "events/*", "name")
        snapshot = True
        async with aclosing(self._feed.event(event_id, request.resume_token)) as views:
            async for view in views:
                yield self._watched(view, snapshot=snapshot and not request.resume_token)
                snapshot = False

    def _watched(self, view: EventView, *, snapshot: bool) -> event_service_pb2.WatchEventResponse:
        response = mappers.watched_event(view.event, view.prewarms, self._deps.clock.now(), snapshot=snapshot)
        response.resume_token = event_token(view)
        return response

    async def ReportEvent(
        self, request: event_service_pb2.ReportEventRequest, context: object
    ) -> event_service_pb2.EventReport:
        """Compare an occurrence with what was expected of it."""
        del context
        (event_id,) = parse(request.name, "events/*", "name")
        report = await report_event(self._deps.store, event_id, request.occurrence_id, self._deps.clock.now())
        return mappers.report_to_wire(report)

    async def ImportEvents(
        self, request: event_service_pb2.ImportEventsRequest, context: object
    ) -> event_service_pb2.ImportEventsResponse:
        """Do what an iCalendar file says."""
        del context
        template, given = mappers.template_from_wire(request.template)
        call: Call[Sequence[Imported]] = call_of(
            request,
            method="ImportEvents",
            resource="events/-",
            now=self._deps.clock.now(),
            encode=mappers.imported_to_wire,
            decode=mappers.imported_from_wire,
        )
        done = await import_events(
            self._deps.store,
            call,
            request.calendar,
            template,
            given,
            request.template.time_zone,
            self._warner(call.now),
        )
        await announce(self._deps.signals, call)
        return mappers.imported_to_wire(done)

    async def ExportEvents(
        self, request: event_service_pb2.ExportEventsRequest, context: object
    ) -> event_service_pb2.ExportEventsResponse:
        """Return events as an iCalendar file."""
        del context
        calendar, count = await export_events(self._deps.store, request.filter, self._deps.clock.now())
        return event_service_pb2.ExportEventsResponse(calendar=calendar, event_count=count)

    def _warner(self, now: datetime) -> Warner:
        """Tells, inside a transaction, what a planner should know of an event at ``now``, as a preview would."""
        deps = self._deps
        # Of one call, however many events it registers.
        until_s = asyncio.get_running_loop().time() + deps.limits.warning_refits_s

        async def warn(uow: UnitOfWork, event: TrafficEvent) -> tuple[EventWarning, ...]:
            observed = await observed_demand(deps.signals, event.workloads)
            basis = Basis(deps.store, deps.forecaster, deps.preview, event, observed, now, until_s)
            return await event_warnings(uow, basis)

        return warn


def _state(number: int) -> EventState:
    value = event_pb2.EventState.DESCRIPTOR.values_by_number.get(number)
    name = value.name.removeprefix("EVENT_STATE_") if value else ""
    if name not in EventState.__members__:
        wanted = ", ".join(f"EVENT_STATE_{state}" for state in EventState)
        raise InvalidError([Violation("states", f"must be of {wanted}")])
    return EventState(name)
