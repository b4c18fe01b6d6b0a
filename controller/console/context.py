"""What pages share: who asks, the answer from a template, refusals in words.

Promises: an answer with numbers says of when they are. Called by page modules and by the application; pages import
this, never the application.
"""

import gzip
import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from urllib.parse import quote

from aiohttp import web
from forecrest.v1 import workload_pb2, workload_service_pb2

from controller.client import Client, pages
from controller.console.live import Feed, Live, Reading, Source
from controller.console.render import Renderer, Words
from controller.console.session import COOKIE, Sessions
from controller.console.trouble import Trouble
from controller.credentials import Credentials
from controller.ports import Clock

COMPRESSED_FROM_BYTES = 1024
FRAGMENT_HEADER = "X-Fragment"
WORKLOADS_MAX = 5000


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who asks, and how they like it."""

    words: Words
    theme: str
    feed: Feed
    may: frozenset[str]
    logged_in: bool
    csrf: str


class Console:
    """What pages share."""

    def __init__(
        self,
        target: str,
        modules: Collection[ModuleType],
        *,
        credentials: Credentials,
        clock: Clock,
        hosts: Collection[str],
        secure: bool,
    ) -> None:
        self.target, self.clock, self.hosts, self.secure = target, clock, frozenset(hosts), secure
        self.sessions = Sessions(target, credentials, clock)
        self.renderer = Renderer()
        sources: dict[str, Source[Any]] = {}
        for module in modules:
            for source in module.SOURCES:
                assert source.name not in sources, source.name
                sources[source.name] = source
        self.live = Live(sources, clock)
        self.nav = [entry for module in modules if (entry := module.NAV) is not None]


CONSOLE = web.AppKey("console", Console)
VIEWER = web.RequestKey("viewer", Viewer)


def viewer_of(request: web.Request) -> Viewer:
    """Return who asks."""
    return request[VIEWER]


def render(
    request: web.Request,
    template: str,
    *readings: Reading[Any],
    status: int = 200,
    **context: Any,  # noqa: ANN401 -- whatever the template shows
) -> web.Response:
    """Answer with a template. ``readings``: what it shows, so that the page says at once how old that is."""
    console, viewer = request.app[CONSOLE], viewer_of(request)
    text = console.renderer.page(
        template,
        viewer.words,
        viewer=viewer,
        nav=console.nav,
        path=request.path,
        path_qs=request.path_qs,
        now=console.clock.now(),
        lost_at=min((one.lost_at for one in readings if one.lost_at), default=None),
        read_at=min((one.at for one in readings if one.at), default=None),
        stale_since=min((one.stale_since for one in readings if one.stale_since), default=None),
        **context,
    )
    return compressed(request, text.encode(), "text/html", status)


def compressed(request: web.Request, body: bytes, content_type: str, status: int = 200) -> web.Response:
    """Answer with text, packed where that saves something."""
    response = web.Response(body=body, status=status, content_type=content_type, charset="utf-8")
    response.headers["Cache-Control"] = "no-store"
    if len(body) >= COMPRESSED_FROM_BYTES and "gzip" in request.headers.get("Accept-Encoding", ""):
        response.body = gzip.compress(body, 4)
        response.headers["Content-Encoding"] = "gzip"
        response.headers["Vary"] = "Accept-Encoding"
    return response


def compressed_json(request: web.Request, body: object) -> web.Response:
    """Answer with JSON for our own scripts."""
    return compressed(request, json.dumps(body, separators=(",", ":")).encode(), "application/json")


def refused(request: web.Request, trouble: Trouble) -> web.Response:
    """Answer with what the API refused, in words."""
    template = "error_fragment.html" if FRAGMENT_HEADER in request.headers else "error.html"
    # What a form would do is asked for with all of the form, and changes nothing either.
    asked_only = request.method == "GET" or request.path.endswith("/preview")
    again = trouble.passing and request.method == "GET"
    return render(
        request, template, status=trouble.status, trouble=trouble, asked_only=asked_only, again=again
    )


def set_cookie(request: web.Request, response: web.StreamResponse, value: str) -> None:
    """Name the session to the browser."""
    response.set_cookie(
        COOKIE, value, httponly=True, samesite="Strict", secure=request.app[CONSOLE].secure, path="/"
    )


def query(base: str, values: Mapping[str, object]) -> str:
    """Return an address with a query, without what is empty."""
    given = "&".join(
        f"{name}={quote(str(value))}" for name, value in values.items() if value not in {"", None}
    )
    return f"{base}?{given}" if given else base


async def all_workloads(client: Client, limit: int = WORKLOADS_MAX) -> tuple[workload_pb2.Workload, ...]:
    """Read every workload, up to ``limit``; raise AioRpcError."""
    asked = workload_service_pb2.ListWorkloadsRequest(page_size=1000)
    return tuple([one async for one in pages(client.workloads.ListWorkloads, asked, "workloads", limit)])


async def fields_of(request: web.Request) -> Mapping[str, Sequence[str]]:
    """Return what a form says as text, by field; files are left out."""
    posted = await request.post()
    return {name: [v for v in posted.getall(name) if isinstance(v, str)] for name in posted}


def request_id_of(fields: Mapping[str, Sequence[str]]) -> str:
    """Return the form's own id, so that a second click changes nothing more; a new one where it has none."""
    given = next(iter(fields.get("request_id", ())), "")
    try:
        return str(uuid.UUID(given))
    except ValueError:
        return str(uuid.uuid4())
