"""The fleet: one table of all workloads, read once for all viewers.

Promises: a refresh costs a handful of calls for lists and a bounded number of calls for single workloads, the ones read
longest ago first; so replicas, demand and alarms are as old as the refresh, and curves at most a minute older, with more
than 600 workloads as much as it takes to go round (`DETAILS_PER_REFRESH`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
from aiohttp import web
from forecrest.v1 import (
    control_pb2,
    control_service_pb2,
    event_pb2,
    event_service_pb2,
    forecast_service_pb2,
    workload_service_pb2,
)

from controller.client import Client, pages
from controller.console.context import WORKLOADS_MAX, query, render, viewer_of
from controller.console.live import LOST, READ_TIMEOUT_S, Source, gathered, instant
from controller.console.views import fleet as view

NAV = ("fleet.title", "/")
EVENTS_MAX = 1000
# Single workloads read per refresh: with a refresh every 5 s, 300 of them are at most half a minute old.
DETAILS_PER_REFRESH, FORECASTS_PER_REFRESH = 50, 100
DETAIL_AGE, FORECAST_AGE = timedelta(seconds=60), timedelta(seconds=60)
SHOWN_EVENTS = (
    event_pb2.EVENT_STATE_SCHEDULED,
    event_pb2.EVENT_STATE_PREWARMING,
    event_pb2.EVENT_STATE_ACTIVE,
)


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is known of all workloads. Times of reading do not make two of them differ."""

    known: view.Known = field(default_factory=view.Known)
    pause: control_pb2.PauseState | None = None
    stale_since: datetime | None = None
    detailed_at: Mapping[str, datetime] = field(default_factory=dict[str, datetime], compare=False)
    forecast_at: Mapping[str, datetime] = field(default_factory=dict[str, datetime], compare=False)
    # Made once for all viewers.
    rows: tuple[view.Row, ...] = field(default=(), compare=False)

    @property
    def incomplete(self) -> bool:
        """Whether there are workloads of which only the lists are known."""
        return len(self.detailed_at) < len(self.known.workloads)


async def load(client: Client, _: str, previous: Fleet | None, now: datetime) -> Fleet:
    """Read the lists, and of single workloads those that were read longest ago."""
    before = previous or Fleet()
    workloads, statuses, decisions, events, pause = await gathered(
        _listed(
            client.workloads.ListWorkloads,
            workload_service_pb2.ListWorkloadsRequest(page_size=1000),
            "workloads",
        ),
        _statuses(client, before, now),
        _listed(client.control.ListDecisions, _in_force(now), "decisions"),
        _listed(
            client.events.ListEvents,
            event_service_pb2.ListEventsRequest(page_size=EVENTS_MAX, states=SHOWN_EVENTS),
            "events",
        ),
        client.control.GetPauseState(control_service_pb2.GetPauseStateRequest(), timeout=READ_TIMEOUT_S),
    )
    names = [one.name for one in workloads[0]]
    # The first look waits for the lists alone; the rest follows within the second.
    first = previous is None
    due = [] if first else _due(names, before.forecast_at, now - FORECAST_AGE, FORECASTS_PER_REFRESH)
    single = [] if first else _due(names, before.detailed_at, now - DETAIL_AGE, DETAILS_PER_REFRESH)
    bands, details = await gathered(
        _bands(client, due, now), gathered(*(_detail(client, name, now) for name in single)), limit=2
    )
    present = set(names)
    known = view.Known(
        workloads=workloads[0],
        decisions={one.workload: one for one in decisions[0]},
        bands=_kept(before.known.bands, present) | bands,
        past=_kept(before.known.past, present) | {one.name: one.past for one in details if one},
        statuses=statuses[0],
        events=events[0],
    )
    return Fleet(
        known=known,
        rows=view.rows_of(known, now),
        pause=pause,
        stale_since=min(
            (at for at in (workloads[1], statuses[1], decisions[1], events[1]) if at), default=None
        ),
        detailed_at=_kept(before.detailed_at, present) | dict.fromkeys(single, now),
        forecast_at=_kept(before.forecast_at, present) | dict.fromkeys(due, now),
    )


SOURCES: tuple[Source[Any], ...] = (Source("fleet", 5.0, load, lambda fleet: fleet.incomplete),)
FLEET: Source[Fleet] = SOURCES[0]


def routes() -> list[web.RouteDef]:
    """Return the pages of this group."""
    return [web.get("/", show), web.get("/fleet/rows", show_rows)]


async def show(request: web.Request) -> web.StreamResponse:
    """Show the whole page."""
    return await _shown(request, "fleet.html")


async def show_rows(request: web.Request) -> web.StreamResponse:
    """Show what changes: totals and rows."""
    return await _shown(request, "fleet_rows.html")


async def _shown(request: web.Request, template: str) -> web.StreamResponse:
    reading = await viewer_of(request).feed.read(FLEET)
    asked = _asked(request)
    fleet = reading.value
    rows = () if fleet is None else fleet.rows
    return render(
        request,
        template,
        reading,
        known=fleet is not None,
        pause=fleet.pause if fleet else None,
        paused_at=instant(fleet.pause, "since_time") if fleet and fleet.pause else None,
        totals=view.totals_of(rows),
        shown=view.page_of(rows, asked),
        asked=asked,
        levels=view.LEVELS,
        sorts=view.SORTS,
        rows_address=query("/fleet/rows", _values(asked)),
        link=lambda **changes: query("/", {**_values(asked), "page": 1, **changes}),
    )


def _values(asked: view.Asked) -> dict[str, object]:
    return {
        "q": asked.text,
        "level": asked.level,
        "sort": "" if asked.sort == "attention" else asked.sort,
        "down": int(asked.down) or "",
        "page": asked.page,
    }


def _asked(request: web.Request) -> view.Asked:
    """Read the query; what makes no sense is left out."""
    given = request.query
    level, sort, page = given.get("level", ""), given.get("sort", ""), given.get("page", "1")
    return view.Asked(
        text=given.get("q", "")[:200],
        level=level if level in view.LEVELS else "",
        sort=sort if sort in view.SORTS else "attention",
        down=given.get("down") == "1",
        page=int(page) if page.isdecimal() and len(page) < 6 else 1,
    )


def _in_force(now: datetime) -> control_service_pb2.ListDecisionsRequest:
    request = control_service_pb2.ListDecisionsRequest(page_size=1000)
    request.as_of_time.FromDatetime(now)
    return request


async def _listed(call: Any, request: Any, field_name: str) -> tuple[Sequence[Any], datetime | None]:  # noqa: ANN401 -- any listing
    """Return all items of a listing, and since when it is stale."""
    stale: list[datetime] = []

    async def timed(one: Any) -> Any:  # noqa: ANN401 -- as above
        response = await call(one, timeout=READ_TIMEOUT_S)
        since = instant(response, "stale_since_time")
        if since is not None:
            stale.append(since)
        return response

    items = [item async for item in pages(timed, request, field_name, WORKLOADS_MAX)]
    return items, min(stale, default=None)


async def _statuses(
    client: Client, before: Fleet, now: datetime
) -> tuple[Mapping[str, control_service_pb2.ObservedStatus], datetime | None]:
    """Return where workloads stand, and since when that is stale: without its database the API does not list it."""
    request = control_service_pb2.ListStatusesRequest(page_size=1000)

    async def listed(one: Any) -> Any:  # noqa: ANN401 -- any page
        return await client.control.ListStatuses(one, timeout=READ_TIMEOUT_S)

    try:
        found = [one async for one in pages(listed, request, "statuses", WORKLOADS_MAX)]
    except grpc.aio.AioRpcError as error:
        if error.code() not in LOST:
            raise
        return before.known.statuses, before.stale_since or now
    return {one.status.name.removesuffix("/status"): one for one in found}, None


async def _bands(client: Client, names: Sequence[str], now: datetime) -> dict[str, view.Band]:
    if not names:
        return {}
    request = forecast_service_pb2.BatchGetForecastsRequest(names=[f"{name}/forecast" for name in names])
    response = await client.forecasts.BatchGetForecasts(request, timeout=READ_TIMEOUT_S)
    start_at = view.grid_start(now)
    return {one.name.removesuffix("/forecast"): view.band_of(one, start_at) for one in response.forecasts}


@dataclass(frozen=True, slots=True)
class _Detail:
    name: str
    past: tuple[tuple[datetime, float | None], ...]


async def _detail(client: Client, name: str, now: datetime) -> _Detail | None:
    """Read one workload's recent history; None if it was deleted meanwhile."""
    history = forecast_service_pb2.GetHistoryRequest(workload=name)
    history.step.FromTimedelta(timedelta(minutes=5))
    history.end_time.FromDatetime(now)
    history.start_time.FromDatetime(view.grid_start(now))
    try:
        got = await client.forecasts.GetHistory(history, timeout=READ_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            return None
        raise
    last = instant(got, "last_sample_time")
    points = tuple(
        (
            # The bucket that is still filling stands for its newest minute.
            min(one.start_time.ToDatetime(UTC) + timedelta(minutes=5), last) if last else now,
            one.demand_qps if one.HasField("demand_qps") else None,
        )
        for one in got.points
    )
    return _Detail(name, points)


def _due(names: Sequence[str], read_at: Mapping[str, datetime], before: datetime, limit: int) -> list[str]:
    never = datetime.min.replace(tzinfo=UTC)
    waiting = [name for name in names if read_at.get(name, never) <= before]
    return sorted(waiting, key=lambda name: read_at.get(name, never))[:limit]


def _kept(values: Mapping[str, Any], present: set[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in present}
