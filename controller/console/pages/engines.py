"""The engine catalogue: what may serve, what it sustains, and promoting another one.

Promises: a promotion is asked for first and sent with the etag that was shown; only what the state allows is offered.
"""

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import grpc
from aiohttp import web
from forecrest.v1 import engine_pb2, engine_service_pb2, workload_pb2

from controller.client import Client, explain
from controller.console.context import all_workloads, fields_of, render, request_id_of, viewer_of
from controller.console.live import READ_TIMEOUT_S, Source, gathered, instant
from controller.console.session import OPERATE
from controller.console.views import engines as view

NAV = ("engines.nav", "/engines")
ENGINES_MAX = 1000


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The catalogue as one refresh found it."""

    engines: tuple[engine_pb2.Engine, ...] = ()
    profiles: tuple[engine_pb2.EngineProfile, ...] = ()
    workloads: tuple[workload_pb2.Workload, ...] = ()
    stale_since: datetime | None = None


async def load(client: Client, argument: str, previous: Catalogue | None, now: datetime) -> Catalogue:
    """Read engines, their measured profiles, and who names them."""
    del argument, previous, now
    engines, profiles, workloads = await gathered(
        client.engines.ListEngines(
            engine_service_pb2.ListEnginesRequest(page_size=ENGINES_MAX), timeout=READ_TIMEOUT_S
        ),
        client.engines.ListEngineProfiles(
            engine_service_pb2.ListEngineProfilesRequest(page_size=ENGINES_MAX), timeout=READ_TIMEOUT_S
        ),
        all_workloads(client),
    )
    stale = instant(engines, "stale_since_time")
    return Catalogue(tuple(engines.engines), tuple(profiles.profiles), workloads, stale)


ENGINES: Source[Catalogue] = Source("engines", 15.0, load)
SOURCES: tuple[Source[Any], ...] = (ENGINES,)


def routes() -> list[web.RouteDef]:
    """Return the pages of this group."""
    return [
        web.get("/engines", show),
        web.get("/engines/board", show_board),
        web.get("/engines/{engine}/promote", show_promote),
        web.post("/engines/{engine}/promote", promote),
    ]


async def show(request: web.Request) -> web.StreamResponse:
    """Show the whole page."""
    return await _shown(request, "engines.html")


async def show_board(request: web.Request) -> web.StreamResponse:
    """Show what changes."""
    return await _shown(request, "engines_board.html")


async def _shown(request: web.Request, template: str) -> web.StreamResponse:
    reading = await viewer_of(request).feed.read(ENGINES)
    found = reading.value
    return render(
        request,
        template,
        reading,
        known=found is not None,
        rows=view.engine_rows(found.engines, found.profiles, found.workloads) if found else (),
        may_operate=OPERATE in viewer_of(request).may,
        done=request.query.get("done", "")[:63],
    )


async def show_promote(request: web.Request) -> web.StreamResponse:
    """Ask whether to promote."""
    return await _asked(request, conflict=False)


async def _asked(request: web.Request, *, conflict: bool) -> web.StreamResponse:
    client = viewer_of(request).feed.client
    name = f"engines/{request.match_info['engine']}"
    engine = await client.engines.GetEngine(engine_service_pb2.GetEngineRequest(name=name))
    (row,) = view.engine_rows([engine], [], [])
    return render(
        request,
        "engines_promote.html",
        status=409 if conflict else 200,
        engine=row,
        conflict=conflict,
        request_id=str(uuid.uuid4()),
    )


async def promote(request: web.Request) -> web.StreamResponse:
    """Make an engine the one to serve, if nobody changed it since the question."""
    fields, engine = await fields_of(request), request.match_info["engine"]
    etag = next(iter(fields.get("etag", ())), "")
    try:
        await viewer_of(request).feed.client.engines.PromoteEngine(
            engine_service_pb2.PromoteEngineRequest(
                name=f"engines/{engine}", etag=etag, request_id=request_id_of(fields)
            )
        )
    except grpc.aio.AioRpcError as error:
        if explain(error).reason not in {"ETAG_MISMATCH", "CONFLICT"}:
            raise
        return await _asked(request, conflict=True)
    viewer_of(request).feed.forget("engines")
    raise web.HTTPSeeOther(f"/engines?done={engine}")
