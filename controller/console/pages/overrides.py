"""Overrides and pauses: an operator's word over the loop's, each with a reason and, but for the fleet's pause, an end."""

import uuid
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import grpc
from aiohttp import web
from forecrest.v1 import control_pb2, control_service_pb2, workload_pb2
from google.protobuf.duration_pb2 import Duration

from controller.client import Client, explain
from controller.console.context import CONSOLE, all_workloads, fields_of, render, request_id_of, viewer_of
from controller.console.live import READ_TIMEOUT_S, Source, gathered, instant
from controller.console.session import OPERATE
from controller.console.views import overrides as view
from controller.console.views.events import FieldErrors, short

NAV = ("overrides.nav", "/overrides")
OVERRIDES_MAX = 1000


@dataclass(frozen=True, slots=True)
class Overrides:
    """What one refresh found. Of all of it only the workloads may be an answer from the API's memory."""

    overrides: tuple[control_pb2.Override, ...]
    more: bool
    fleet: control_pb2.PauseState
    workloads: tuple[workload_pb2.Workload, ...]
    stale_since: datetime | None = None


async def load(client: Client, argument: str, previous: Overrides | None, now: datetime) -> Overrides:
    """Read overrides (argument "all": ended ones too), the fleet's pause, and the workloads there are."""
    del previous, now
    listed, fleet, workloads = await gathered(
        client.control.ListOverrides(
            control_service_pb2.ListOverridesRequest(page_size=OVERRIDES_MAX, show_expired=argument == "all"),
            timeout=READ_TIMEOUT_S,
        ),
        client.control.GetPauseState(control_service_pb2.GetPauseStateRequest(), timeout=READ_TIMEOUT_S),
        all_workloads(client),
    )
    stale = min((at for w in workloads if (at := instant(w, "stale_since_time"))), default=None)
    return Overrides(tuple(listed.overrides), bool(listed.next_page_token), fleet, workloads, stale)


OVERRIDES: Source[Overrides] = Source("overrides", 5.0, load)
SOURCES: tuple[Source[Any], ...] = (OVERRIDES,)


def routes() -> list[web.RouteDef]:
    """Return the pages of this group."""
    return [
        web.get("/overrides", show),
        web.get("/overrides/board", show_board),
        web.post("/overrides", create),
        web.post("/overrides/end", end),
        web.post("/overrides/pause", pause),
        web.post("/overrides/resume", resume),
    ]


async def show(request: web.Request) -> web.StreamResponse:
    """Show the whole page."""
    form = view.OverrideForm(workload=request.query.get("workload", "")[:63])
    return await _shown(request, "overrides.html", form=form)


async def show_board(request: web.Request) -> web.StreamResponse:
    """Show what changes."""
    return await _shown(request, "overrides_board.html")


async def _shown(
    request: web.Request,
    template: str,
    *,
    form: view.OverrideForm | None = None,
    errors: FieldErrors | None = None,
    wrong: str = "",
) -> web.StreamResponse:
    """``wrong`` names the form that ``errors`` belong to: override, pause or fleet."""
    argument = "all" if request.query.get("show") == "all" else ""
    reading = await viewer_of(request).feed.read(OVERRIDES, argument)
    found = reading.value
    rows = view.override_rows(found.overrides, request.app[CONSOLE].clock.now()) if found else ()
    return render(
        request,
        template,
        reading,
        status=400 if errors else 200,
        topic=OVERRIDES.topic(argument),
        board="/overrides/board" + ("?show=all" if argument else ""),
        known=found is not None,
        all=bool(argument),
        rows=[row for row in rows if row.kind != "pause" or not row.active],
        pauses=[row for row in rows if row.kind == "pause" and row.active],
        fleet=view.pause_row(found.fleet if found else None),
        more=found is not None and found.more,
        rows_max=OVERRIDES_MAX,
        workloads=sorted(short(one.name) for one in found.workloads) if found else [],
        kinds=view.KINDS,
        lengths=view.LENGTHS_MIN,
        form=form or view.OverrideForm(),
        errors=errors or FieldErrors(),
        wrong=wrong,
        may_operate=OPERATE in viewer_of(request).may,
        request_id=str(uuid.uuid4()),
        done=request.query.get("done", ""),
    )


async def create(request: web.Request) -> web.StreamResponse:
    """Put an override in force."""
    form, request_id = await _posted(request)
    override, wrong = view.draft(form)
    call = (
        viewer_of(request).feed.client.control.CreateOverride(
            control_service_pb2.CreateOverrideRequest(
                parent=f"workloads/{form.workload}", override=override, request_id=request_id
            )
        )
        if not wrong
        else None
    )
    return await _done(request, call, "created", form, wrong, "override")


async def end(request: web.Request) -> web.StreamResponse:
    """End an override."""
    name = (await request.post()).get("name", "")
    if not isinstance(name, str):
        raise web.HTTPBadRequest(text="name: must be text\n")
    await viewer_of(request).feed.client.control.DeleteOverride(
        control_service_pb2.DeleteOverrideRequest(name=name[:200])
    )
    return _back(request, "ended")


async def pause(request: web.Request) -> web.StreamResponse:
    """Pause one workload for a time, or, with no workload, the fleet."""
    form, request_id = await _posted(request)
    posted = await request.post()
    fleet = posted.get("fleet") == "yes"
    wrong = view.missing(form, ends=not fleet)
    if not fleet and not form.workload:
        wrong["workload"] = "overrides.error.workload"
    call = None
    if not wrong:
        asked = control_service_pb2.PauseRequest(
            workload="" if fleet else f"workloads/{form.workload}", reason=form.reason, request_id=request_id
        )
        lasts = view.length(form)
        if not fleet and lasts is not None:
            ttl = Duration()
            ttl.FromTimedelta(lasts)
            asked.ttl.CopyFrom(ttl)
        call = viewer_of(request).feed.client.control.Pause(asked)
    return await _done(request, call, "paused", form, wrong, "fleet" if fleet else "pause")


async def resume(request: web.Request) -> web.StreamResponse:
    """End a pause: the fleet's where no workload is named."""
    form, request_id = await _posted(request)
    await viewer_of(request).feed.client.control.Resume(
        control_service_pb2.ResumeRequest(
            workload=f"workloads/{form.workload}" if form.workload else "", request_id=request_id
        )
    )
    return _back(request, "resumed")


async def _done(
    request: web.Request,
    call: Awaitable[object] | None,
    what: str,
    form: view.OverrideForm,
    wrong: Mapping[str, str],
    which: str,
) -> web.StreamResponse:
    """Await the call and go back to the list; or show the form again with what is wrong."""
    if call is None:
        words = viewer_of(request).words
        errors = FieldErrors({name: (words(key),) for name, key in wrong.items()})
        return await _shown(request, "overrides.html", form=form, errors=errors, wrong=which)
    try:
        await call
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
            raise
        errors = view.field_errors(explain(error))
        return await _shown(request, "overrides.html", form=form, errors=errors, wrong=which)
    return _back(request, what)


def _back(request: web.Request, what: str) -> web.StreamResponse:
    viewer_of(request).feed.forget("overrides", "fleet")
    raise web.HTTPSeeOther(f"/overrides?done={what}")


async def _posted(request: web.Request) -> tuple[view.OverrideForm, str]:
    fields = await fields_of(request)
    return view.form_from(fields), request_id_of(fields)
