"""Event night: one page that says whether the fleet will be warm, live.

Promises: the controller's own deadline contracts, read at most once per period for all who watch; while they cannot be
read the page says so instead of the last verdict.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import grpc
from aiohttp import web
from forecrest.v1 import control_pb2, control_service_pb2, event_service_pb2

from controller.client import Client
from controller.console.context import CONSOLE, render, viewer_of
from controller.console.live import LOST, READ_TIMEOUT_S, Source, gathered, instant
from controller.console.pages.events import EVENTS
from controller.console.views import events as events_view
from controller.console.views import night as view

NAV = ("night.nav", "/night")


@dataclass(frozen=True, slots=True)
class Watched:
    """One look at an event. ``response`` without its time, so that two looks that saw the same are equal."""

    response: event_service_pb2.WatchEventResponse
    statuses: tuple[control_pb2.WorkloadStatus, ...] | None
    decisions: tuple[control_pb2.Decision, ...]
    stale_since: datetime | None
    observed_at: datetime = field(compare=False)


async def load(client: Client, argument: str, previous: Watched | None, now: datetime) -> Watched:
    """Read the event's contracts and replicas, and alarms and conditions of its workloads."""
    del previous
    call = client.events.WatchEvent(
        event_service_pb2.WatchEventRequest(name=f"events/{argument}"), timeout=READ_TIMEOUT_S
    )
    try:
        seen = await anext(aiter(call))
    finally:
        call.cancel()
    observed_at = instant(seen, "observe_time") or now
    response = event_service_pb2.WatchEventResponse(event=seen.event, prewarms=seen.prewarms)
    looks = await gathered(*(_standing(client, name) for name in seen.event.workloads))
    known = [status for status, _ in looks if status is not None]
    stale = [at for message in (seen.event, *known) if (at := instant(message, "stale_since_time"))]
    return Watched(
        response=response,
        statuses=tuple(known) if len(known) == len(looks) else None,
        decisions=tuple(decision for _, decision in looks if decision is not None),
        stale_since=min(stale, default=None),
        observed_at=observed_at,
    )


async def _standing(
    client: Client, workload: str
) -> tuple[control_pb2.WorkloadStatus | None, control_pb2.Decision | None]:
    status, decision = None, None
    try:
        status = await client.control.GetStatus(
            control_service_pb2.GetStatusRequest(name=f"{workload}/status"), timeout=READ_TIMEOUT_S
        )
        decision = await client.control.GetDecision(
            control_service_pb2.GetDecisionRequest(workload=workload), timeout=READ_TIMEOUT_S
        )
    except grpc.aio.AioRpcError as error:
        # Nothing decided yet is no failure; what could not be read is told by its absence.
        if error.code() not in LOST | {grpc.StatusCode.NOT_FOUND}:
            raise
    return status, decision


NIGHT: Source[Watched] = Source("night", 2.0, load)
SOURCES: tuple[Source[Any], ...] = (NIGHT,)


def routes() -> list[web.RouteDef]:
    """Return the pages of this group."""
    return [
        web.get("/night", show_next),
        web.get("/night/{event}", show),
        web.get("/night/{event}/board", show_board),
    ]


async def show_next(request: web.Request) -> web.StreamResponse:
    """Show the event that runs or comes next, or the one chosen with ``?event=``."""
    chosen = request.query.get("event", "")
    if chosen:
        raise web.HTTPSeeOther(f"/night/{events_view.short(chosen)[:63]}")
    reading = await viewer_of(request).feed.read(EVENTS, "open")
    now = request.app[CONSOLE].clock.now()
    found = view.choose(reading.value.events, now) if reading.value else None
    return await _shown(request, "night.html", found)


async def show(request: web.Request) -> web.StreamResponse:
    """Show one event."""
    return await _shown(request, "night.html", request.match_info["event"])


async def show_board(request: web.Request) -> web.StreamResponse:
    """Show what changes."""
    return await _shown(request, "night_board.html", request.match_info["event"])


async def _shown(request: web.Request, template: str, event: str | None) -> web.StreamResponse:
    feed = viewer_of(request).feed
    others = await feed.read(EVENTS, "open")
    now = request.app[CONSOLE].clock.now()
    rows = [events_view.event_row(one, now) for one in others.value.events] if others.value else []
    rows.sort(key=lambda row: (row.start_at, row.id))
    if event is None:
        return render(
            request, template, others, known=others.value is not None, night=None, event="", rows=rows
        )
    reading = await feed.read(NIGHT, event)
    found = reading.value
    night = None
    if found is not None:
        response = event_service_pb2.WatchEventResponse()
        response.CopyFrom(found.response)
        response.observe_time.FromDatetime(found.observed_at)
        night = view.night_view(response, found.statuses, found.decisions)
    return render(
        request,
        template,
        reading,
        known=found is not None,
        night=night,
        event=event,
        rows=rows,
        topic=NIGHT.topic(event),
    )
