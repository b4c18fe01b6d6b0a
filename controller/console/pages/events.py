"""Traffic events: calendar and list, registering and changing with a live preview, calendar files, reports.

Promises: a preview is the API's own, never an estimate of ours; a change is sent with the etag that was shown, and
somebody else's change in between is told, not overwritten; an import is shown before it is made.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import available_timezones

import grpc
from aiohttp import web
from forecrest.v1 import event_pb2, event_service_pb2, forecast_service_pb2
from google.protobuf.duration_pb2 import Duration

from controller.client import ApiError, Client, explain
from controller.console.context import (
    CONSOLE,
    all_workloads,
    fields_of,
    query,
    render,
    request_id_of,
    viewer_of,
)
from controller.console.live import LOST, READ_TIMEOUT_S, Source, gathered, instant
from controller.console.session import PLAN
from controller.console.trouble import Trouble, trouble_of
from controller.console.views import events as view
from controller.console.views import events_preview as preview

NAV = ("events.nav", "/events")
EVENTS_MAX = 1000
ROWS_MAX = 200
WORKLOADS_MAX = 1000
AGENDA = timedelta(days=60)
CALENDAR_BYTES_MAX = 1_048_576
_REPORT_POINTS = 240
_VIEWS = ("month", "agenda", "list")
_OPEN = (event_pb2.EVENT_STATE_SCHEDULED, event_pb2.EVENT_STATE_PREWARMING, event_pb2.EVENT_STATE_ACTIVE)
_CONFLICT = frozenset({"ETAG_MISMATCH", "CONFLICT"})


@dataclass(frozen=True, slots=True)
class Events:
    """Events as one refresh found them; ``more``: there are others beyond the limit."""

    events: tuple[event_pb2.Event, ...] = ()
    more: bool = False
    stale_since: datetime | None = None


async def load(client: Client, argument: str, previous: Events | None, now: datetime) -> Events:
    """Read what is "open", "all" from the last on, or what touches a month given as ``YYYY-MM``."""
    del previous, now
    request = event_service_pb2.ListEventsRequest(page_size=EVENTS_MAX)
    if argument == "open":
        request.states.extend(_OPEN)
    elif (first := _month_of(argument)) is not None:
        # A day more on both sides: the sheet's zone is the viewer's.
        start_at, end_at = view.month_bounds(first, UTC)
        request.start_time.FromDatetime(start_at - timedelta(days=1))
        request.end_time.FromDatetime(end_at + timedelta(days=1))
    else:
        request.order_by = "start_time desc"
    found = await client.events.ListEvents(request, timeout=READ_TIMEOUT_S)
    return Events(tuple(found.events), bool(found.next_page_token), instant(found, "stale_since_time"))


EVENTS: Source[Events] = Source("events", 10.0, load)
SOURCES: tuple[Source[Any], ...] = (EVENTS,)


def routes() -> list[web.RouteDef]:
    """Return the pages of this group."""
    return [
        web.get("/events", show),
        web.get("/events/board", show_board),
        web.get("/events/export.ics", export),
        web.get("/events/import", show_import),
        web.post("/events/import/preview", preview_import),
        web.post("/events/import", run_import),
        web.get("/events/new", show_new),
        web.post("/events/new", create),
        web.post("/events/preview", show_preview),
        web.get("/events/{event}", show_event),
        web.get("/events/{event}/edit", show_edit),
        web.post("/events/{event}/edit", update),
        web.get("/events/{event}/cancel", show_cancel),
        web.post("/events/{event}/cancel", cancel),
        web.get("/events/{event}/report", show_report),
    ]


# ------------------------------------------------------------------------------------------------ calendar and list


async def show(request: web.Request) -> web.StreamResponse:
    """Show the whole page."""
    return await _shown(request, "events.html")


async def show_board(request: web.Request) -> web.StreamResponse:
    """Show what changes: the calendar, the agenda or the list."""
    return await _shown(request, "events_board.html")


async def _shown(request: web.Request, template: str) -> web.StreamResponse:
    now, zone = request.app[CONSOLE].clock.now(), zone_of(request)
    asked = request.query.get("view", "month")
    chosen = asked if asked in _VIEWS else "month"
    first = _month_of(request.query.get("month", "")) or now.astimezone(zone).date().replace(day=1)
    wanted = view.EventFilter(
        workload=request.query.get("workload", "")[:63],
        state=request.query.get("state", "open" if chosen == "list" else "")[:20],
        category=request.query.get("category", "")[:63],
        text=request.query.get("text", "").strip()[:100],
    )
    argument = {"month": f"{first:%Y-%m}", "agenda": "open"}.get(
        chosen, "open" if wanted.state == "open" else "all"
    )
    reading = await viewer_of(request).feed.read(EVENTS, argument)
    known = reading.value
    events = known.events if known else ()
    rows = [view.event_row(one, now) for one in events]
    shown = {row.id for row in rows if wanted.matches(row)}
    kept = [one for one in events if view.short(one.name) in shown]
    listed = [row for row in rows if row.id in shown]
    if wanted.state == "open":
        listed.sort(key=lambda row: (row.start_at, row.id))
    return render(
        request,
        template,
        reading,
        topic=EVENTS.topic(argument),
        board=query("/events/board", dict(request.query)),
        known=known is not None,
        view=chosen,
        zone=zone_name(request),
        tz=zone,
        filter=wanted,
        month=view.month(kept, first, zone, now) if chosen == "month" else None,
        days=view.agenda(kept, now, now + AGENDA, zone, now) if chosen == "agenda" else (),
        agenda_days=AGENDA.days,
        rows=listed[:ROWS_MAX],
        rows_max=ROWS_MAX,
        more=len(listed) > ROWS_MAX or (known is not None and known.more),
        workloads=sorted({name for row in rows for name in row.workloads} | ({wanted.workload} - {""})),
        categories=sorted({row.category for row in rows if row.category} | ({wanted.category} - {""})),
        link=lambda **more: query("/events", {**request.query, **more}),
        may_plan=PLAN in viewer_of(request).may,
        done=request.query.get("done", ""),
        count=request.query.get("count", "")[:5],
    )


async def export(request: web.Request) -> web.StreamResponse:
    """Answer with the calendar file of what is not over."""
    found = await viewer_of(request).feed.client.events.ExportEvents(
        event_service_pb2.ExportEventsRequest(filter="state != COMPLETED AND state != CANCELLED")
    )
    return web.Response(
        body=found.calendar,
        content_type="text/calendar",
        charset="utf-8",
        headers={"Content-Disposition": 'attachment; filename="forecrest.ics"', "Cache-Control": "no-store"},
    )


# ------------------------------------------------------------------------------------------------ the form


async def show_new(request: web.Request) -> web.StreamResponse:
    """Show an empty form; ``?workload=`` chooses one, ``?from=`` begins with what another event says."""
    client, now = viewer_of(request).feed.client, request.app[CONSOLE].clock.now()
    names = await _workloads(client)
    chosen, copied = request.query.get("workload", ""), request.query.get("from", "")
    form = view.empty_form(now, zone_of(request), [chosen] if chosen in names else names)
    if copied:
        event = await client.events.GetEvent(event_service_pb2.GetEventRequest(name=f"events/{copied}"))
        form = view.copied_form(event, now)
    return _form(request, form, names)


async def create(request: web.Request) -> web.StreamResponse:
    """Register what the form says, and show it; or show the form again with what is wrong."""
    client, fields = viewer_of(request).feed.client, await fields_of(request)
    form = view.form_from(fields)
    event, wrong = view.draft(form)
    if wrong:
        return _form(request, form, await _offered(client, form), errors=_said(request, wrong))
    made = event_service_pb2.CreateEventRequest(
        event=event, event_id=view.id_of(form.display_name), request_id=request_id_of(fields)
    )
    try:
        try:
            created = await client.events.CreateEvent(made)
        except grpc.aio.AioRpcError as error:
            if not made.event_id or explain(error).reason != "RESOURCE_EXISTS":
                raise
            made.event_id = ""  # taken: the API makes one up
            created = await client.events.CreateEvent(made)
    except grpc.aio.AioRpcError as error:
        if error.code() in LOST:
            # What was typed is not lost with it; the same id makes a second try no second event.
            return _form(request, form, form.workloads, lost=trouble_of(error), request_id=made.request_id)
        if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
            raise
        return _form(request, form, await _workloads(client), errors=view.field_errors(explain(error), form))
    viewer_of(request).feed.forget("events", "night", "fleet")
    raise web.HTTPSeeOther(f"/events/{view.short(created.name)}?done=created")


async def show_edit(request: web.Request) -> web.StreamResponse:
    """Show the form of a registered event."""
    client = viewer_of(request).feed.client
    event = await _event(request)
    return _form(request, view.form_of(event), await _workloads(client), event=event)


async def update(request: web.Request) -> web.StreamResponse:
    """Change what the form says differently; show the form again with what is wrong or who was faster."""
    fields = await fields_of(request)
    form = view.form_from(fields)
    try:
        return await _updated(request, fields, form)
    except grpc.aio.AioRpcError as error:
        if error.code() not in LOST:
            raise
        event, _ = view.draft(form)
        event.name = f"events/{request.match_info['event']}"
        lost, request_id = trouble_of(error), request_id_of(fields)
        return _form(request, form, form.workloads, event=event, lost=lost, request_id=request_id)


async def _updated(
    request: web.Request, fields: Mapping[str, Sequence[str]], form: view.EventForm
) -> web.StreamResponse:
    client = viewer_of(request).feed.client
    event, wrong = view.draft(form)
    stored = await _event(request)
    names = await _workloads(client)
    if wrong:
        return _form(request, form, names, event=stored, errors=_said(request, wrong))
    event.name, event.etag = stored.name, form.etag
    changed = view.mask(stored, event)
    there = f"/events/{view.short(stored.name)}"
    if form.etag != stored.etag:
        return _form(request, form, names, event=stored, conflict=True)
    if not changed:
        raise web.HTTPSeeOther(there)
    asked = event_service_pb2.UpdateEventRequest(event=event, request_id=request_id_of(fields))
    asked.update_mask.paths.extend(changed)
    try:
        await client.events.UpdateEvent(asked)
    except grpc.aio.AioRpcError as error:
        said = explain(error)
        if said.reason in _CONFLICT:
            return _form(request, form, names, event=await _event(request), conflict=True)
        if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
            raise
        return _form(request, form, names, event=stored, errors=view.field_errors(said, form))
    viewer_of(request).feed.forget("events", "night", "fleet")
    raise web.HTTPSeeOther(f"{there}?done=updated")


def _form(
    request: web.Request,
    form: view.EventForm,
    workloads: Sequence[str],
    *,
    event: event_pb2.Event | None = None,
    errors: view.FieldErrors | None = None,
    conflict: bool = False,
    lost: Trouble | None = None,
    request_id: str = "",
) -> web.StreamResponse:
    now = request.app[CONSOLE].clock.now()
    status = 409 if conflict else lost.status if lost else 200 if errors is None else 400
    return render(
        request,
        "events_form.html",
        status=status,
        form=form,
        row=None if event is None else view.event_row(event, now),
        errors=errors or view.FieldErrors(),
        # What was submitted but is not there any more stays visible, so that the refusal can be understood.
        workloads=sorted({*workloads, *form.workloads}),
        zones=ZONES,
        repeats=view.REPEATS,
        categories=view.CATEGORIES,
        confidences=dict.fromkeys(["0.95", "0.8", "0.5", form.confidence]),
        theirs=view.form_of(event) if conflict and event is not None else None,
        changes=view.changes(form, view.form_of(event)) if conflict and event is not None else (),
        lost=lost,
        request_id=request_id or str(uuid.uuid4()),
        may_plan=PLAN in viewer_of(request).may,
    )


async def show_preview(request: web.Request) -> web.StreamResponse:
    """Say what the form's event would take; what is missing or wrong is said in place of it."""
    fields = await fields_of(request)
    form = view.form_from(fields)
    event, wrong = view.draft(form)
    load = form.multiplier if form.load == "multiplier" else form.peak_qps
    if not form.workloads or not load or not form.start or not form.end:
        return render(request, "events_preview.html", preview=None, errors=_said(request, wrong), form=form)
    if wrong:
        return render(request, "events_preview.html", preview=None, errors=_said(request, wrong), form=form)
    name = next(iter(fields.get("name", ())), "")
    if name:
        event.name = f"events/{name}"
    try:
        found = await _previewed(request, event)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
            raise
        errors = view.field_errors(explain(error), form)
        return render(request, "events_preview.html", preview=None, errors=errors, form=form)
    return render(request, "events_preview.html", preview=found, errors=view.FieldErrors(), form=form)


async def _previewed(request: web.Request, event: event_pb2.Event) -> preview.Preview:
    response = await viewer_of(request).feed.client.events.PreviewEvent(
        event_service_pb2.PreviewEventRequest(event=event)
    )
    now = request.app[CONSOLE].clock.now()
    return preview.preview_view(response, now, view.zone_or(event.time_zone))


# ------------------------------------------------------------------------------------------------ one event


async def show_event(request: web.Request) -> web.StreamResponse:
    """Show an event and what it will take."""
    event = await _event(request)
    now = request.app[CONSOLE].clock.now()
    row = view.event_row(event, now)
    may_plan = PLAN in viewer_of(request).may
    found = await _previewed(request, event) if may_plan and row.open else None
    return render(
        request,
        "events_event.html",
        event=row,
        revision=event.revision,
        started=event.start_time.ToDatetime(UTC) <= now and row.state != "cancelled",
        preview=found,
        errors=view.FieldErrors(),
        may_plan=may_plan,
        done=request.query.get("done", ""),
    )


async def show_cancel(request: web.Request) -> web.StreamResponse:
    """Ask whether to cancel."""
    return _cancel_page(request, await _event(request), str(uuid.uuid4()))


def _cancel_page(
    request: web.Request,
    event: event_pb2.Event,
    request_id: str,
    reason: str = "",
    lost: Trouble | None = None,
) -> web.StreamResponse:
    """Ask, or ask again with the reason that was typed when the API did not answer."""
    now = request.app[CONSOLE].clock.now()
    return render(
        request,
        "events_cancel.html",
        status=200 if lost is None else lost.status,
        event=view.event_row(event, now),
        request_id=request_id,
        lost=lost,
        reason=reason,
    )


async def cancel(request: web.Request) -> web.StreamResponse:
    """Cancel, if nobody changed the event since the question."""
    fields = await fields_of(request)

    def one(name: str) -> str:
        return next(iter(fields.get(name, ())), "").strip()

    name = request.match_info["event"]
    asked = event_service_pb2.CancelEventRequest(
        name=f"events/{name}", reason=one("reason"), etag=one("etag"), request_id=request_id_of(fields)
    )
    try:
        await viewer_of(request).feed.client.events.CancelEvent(asked)
    except grpc.aio.AioRpcError as error:
        if error.code() not in LOST:
            raise
        event = event_pb2.Event(name=asked.name, etag=asked.etag, display_name=one("title"))
        return _cancel_page(request, event, asked.request_id, asked.reason, trouble_of(error))
    viewer_of(request).feed.forget("events", "night", "fleet")
    raise web.HTTPSeeOther(f"/events/{name}?done=cancelled")


async def show_report(request: web.Request) -> web.StreamResponse:
    """Show expected beside actual of an occurrence; ``?occurrence=`` chooses one."""
    client = viewer_of(request).feed.client
    event = await _event(request)
    now = request.app[CONSOLE].clock.now()
    row = view.event_row(event, now)
    try:
        found = await client.events.ReportEvent(
            event_service_pb2.ReportEventRequest(
                name=event.name, occurrence_id=request.query.get("occurrence", "")[:200]
            )
        )
    except grpc.aio.AioRpcError as error:
        if explain(error).reason != "EVENT_NOT_STARTED":
            raise
        return render(request, "events_report.html", event=row, report=None, charts={}, others=())
    report = view.report_view(found)
    zone = view.zone_or(event.time_zone)
    drawn = await gathered(*(_report_chart(client, report, one, zone, now) for one in report.rows))
    charts = dict(zip((one.workload for one in report.rows), drawn, strict=True))
    others = view.past_occurrences(event, now)
    return render(request, "events_report.html", event=row, report=report, charts=charts, others=others)


async def _report_chart(
    client: Client, report: view.Report, one: view.ReportRow, zone: tzinfo, now: datetime
) -> preview.Chart | None:
    """Draw the demand of the occurrence and of a sixth of its length around it."""
    around = (report.end_at - report.start_at) / 6
    start_at = report.start_at - around
    end_at = min(report.end_at + around, now)
    minutes = max(1, int((end_at - start_at) / timedelta(minutes=_REPORT_POINTS)) + 1)
    asked = forecast_service_pb2.GetHistoryRequest(
        workload=f"workloads/{one.workload}", step=Duration(seconds=60 * minutes)
    )
    asked.start_time.FromDatetime(start_at.replace(second=0, microsecond=0))
    asked.end_time.FromDatetime(end_at)
    try:
        history = await client.forecasts.GetHistory(asked)
    except grpc.aio.AioRpcError:
        return None  # the figures stand without the drawing
    points = [
        (p.start_time.ToDatetime(UTC), p.demand_qps if p.HasField("demand_qps") else None)
        for p in history.points
    ]
    return preview.report_chart(points, one.expected_peak_qps, report.start_at, report.end_at, zone)


# ------------------------------------------------------------------------------------------------ calendar files


async def show_import(request: web.Request) -> web.StreamResponse:
    """Show where to drop a file, and what to fill in where the file says nothing."""
    names = await _workloads(viewer_of(request).feed.client)
    form = view.empty_form(request.app[CONSOLE].clock.now(), zone_of(request), names)
    return _import_page(request, form, names)


def _import_page(
    request: web.Request,
    form: view.EventForm,
    names: Sequence[str],
    errors: view.FieldErrors | None = None,
    problem: str = "",
    *,
    lost: Trouble | None = None,
) -> web.StreamResponse:
    return render(
        request,
        "events_import.html",
        status=lost.status if lost else 400 if errors or problem else 200,
        lost=lost,
        form=form,
        workloads=names,
        zones=ZONES,
        categories=view.CATEGORIES,
        may_plan=PLAN in viewer_of(request).may,
        rows=None,
        errors=errors or view.FieldErrors(),
        problem=problem,
        request_id=str(uuid.uuid4()),
    )


async def preview_import(request: web.Request) -> web.StreamResponse:
    """Say what an import would do; nothing is stored."""
    return await _imported(request, validate_only=True)


async def run_import(request: web.Request) -> web.StreamResponse:
    """Import a file."""
    return await _imported(request, validate_only=False)


async def _imported(request: web.Request, *, validate_only: bool) -> web.StreamResponse:
    fields = await fields_of(request)
    form = view.form_from(fields)
    template, wrong = view.draft(replace(form, start="", end="", repeat="once"))
    # Times come from the file, and a template that states a confidence or name would overrule it.
    for name in ("start_local", "end_local", "display_name", "confidence"):
        template.ClearField(name)
    data = (await request.post()).get("calendar")
    content = data.file.read(CALENDAR_BYTES_MAX + 1) if isinstance(data, web.FileField) else b""
    said, rows = view.FieldErrors(), None
    problem = "events.error.file" if not content or len(content) > CALENDAR_BYTES_MAX else ""
    if wrong:
        said = _said(request, wrong)
    elif not problem:
        try:
            found = await viewer_of(request).feed.client.events.ImportEvents(
                event_service_pb2.ImportEventsRequest(
                    calendar=content,
                    template=template,
                    request_id=str(uuid.uuid4()) if validate_only else request_id_of(fields),
                    validate_only=validate_only,
                )
            )
            rows = view.import_rows(found.events)
        except grpc.aio.AioRpcError as error:
            if error.code() in LOST and not validate_only:
                return _import_page(request, form, form.workloads, lost=trouble_of(error))
            if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
                raise
            said = _of_file(explain(error))
    if validate_only:
        return render(
            request,
            "events_import_rows.html",
            rows=rows,
            errors=said,
            problem=problem,
            request_id=str(uuid.uuid4()),
        )
    if rows is None:
        return _import_page(
            request, form, await _offered(viewer_of(request).feed.client, form), said, problem
        )
    viewer_of(request).feed.forget("events", "night", "fleet")
    count = sum(row.action in {"created", "updated", "cancelled"} for row in rows)
    raise web.HTTPSeeOther(f"/events?view=list&done=imported&count={count}")


def _of_file(error: ApiError) -> view.FieldErrors:
    lines = tuple(f"{path}: {remedy}" for path, remedy in error.violations)
    return view.FieldErrors(general=lines or (error.message,))


# ------------------------------------------------------------------------------------------------ helpers


# Names people may type; those that only exist for old computers are left out.
ZONES = (
    *sorted(name for name in available_timezones() if "/" in name and not name.startswith("Etc/")),
    "UTC",
)


def zone_name(request: web.Request) -> str:
    """Return the viewer's zone as the browser said it, UTC before it did."""
    name = request.cookies.get("tz", "")
    return name if name in ZONES else "UTC"


def zone_of(request: web.Request) -> tzinfo:
    """Return the viewer's zone."""
    return view.zone_or(zone_name(request))


def _month_of(text: str) -> date | None:
    try:
        first = datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC).date()
    except ValueError:
        return None
    return first if 2000 <= first.year <= 2200 else None


async def _event(request: web.Request) -> event_pb2.Event:
    name = f"events/{request.match_info['event']}"
    return await viewer_of(request).feed.client.events.GetEvent(event_service_pb2.GetEventRequest(name=name))


async def _workloads(client: Client) -> list[str]:
    return [view.short(one.name) for one in await all_workloads(client, WORKLOADS_MAX)]


async def _offered(client: Client, form: view.EventForm) -> Sequence[str]:
    """Workloads to choose from; what was chosen while the API is away, so that nothing typed is lost with it."""
    try:
        return await _workloads(client)
    except grpc.aio.AioRpcError as error:
        if error.code() not in LOST:
            raise
        return form.workloads


def _said(request: web.Request, wrong: Mapping[str, str]) -> view.FieldErrors:
    words = viewer_of(request).words
    return view.FieldErrors({name: (words(key),) for name, key in wrong.items()})
