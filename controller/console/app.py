"""The console's application: ``create_app`` puts pages, sessions and the live endpoint together.

Promises: every page is behind the guard and the session; an error of the API becomes a page in words, with the status
that fits; nothing of an unexpected failure leaves but that it happened. Called by ``forecrest console`` and ``up``.
"""

import logging
import secrets
from collections.abc import Collection
from types import ModuleType

import grpc
from aiohttp import web

from controller.adapters.clock import SystemClock
from controller.console.context import (
    CONSOLE,
    FRAGMENT_HEADER,
    VIEWER,
    Console,
    Viewer,
    refused,
    set_cookie,
    viewer_of,
)
from controller.console.guard import HEADERS, Handler, check_name, check_origin, parts_of
from controller.console.pages import engines, events, fleet, login, night, overrides, workloads
from controller.console.render import LANGUAGES, STATIC, Words, pick_language
from controller.console.session import COOKIE, EVERYTHING
from controller.console.trouble import trouble_of
from controller.credentials import Credentials
from controller.ports import Clock

log = logging.getLogger(__name__)

# Every page group. A module here has ``routes() -> list[web.RouteDef]``, ``SOURCES`` and ``NAV``.
PAGES: tuple[ModuleType, ...] = (fleet, events, night, overrides, engines, workloads, login)

# Calendar files are the largest thing anybody sends: 1 MiB, and what a form adds.
REQUEST_BYTES_MAX = 1_100_000
THEMES = ("auto", "light", "dark")
_YEAR_S = 365 * 24 * 3600


@web.middleware
async def _guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        check_name(request, request.app[CONSOLE].hosts)
        response = await handler(request)
    except web.HTTPException as end:
        end.headers.update(HEADERS)
        raise
    except Exception:  # the edge: what it was is in the log, and nothing of it in the answer
        log.exception("the console could not answer %s", request.path[:100])
        return web.Response(status=500, text="an unexpected failure; the log has it\n", headers=HEADERS)
    if not response.prepared:
        response.headers.update(HEADERS)
    return response


@web.middleware
async def _seen(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Find the viewer, check what changes something, and turn the API's errors into pages."""
    console = request.app[CONSOLE]
    if request.path.startswith("/static/"):
        return await handler(request)
    cookie = request.cookies.get(COOKIE, "")
    known = cookie if 20 <= len(cookie) <= 100 else secrets.token_urlsafe(32)
    session = await console.sessions.find(known)
    words = Words(pick_language(request.cookies.get("lang", ""), request.headers.get("Accept-Language", "")))
    theme = request.cookies.get("theme", "auto")
    feed = session.feed if session else console.sessions.anonymous()
    if feed is None and request.path not in login.OPEN_PATHS:
        raise web.HTTPSeeOther(login.address(request.path_qs))
    request[VIEWER] = Viewer(
        words,
        theme if theme in THEMES else "auto",
        feed,  # type: ignore[arg-type]  # None only on pages that do not use it
        session.may if session else EVERYTHING,
        session is not None,
        console.sessions.csrf(known),
    )
    await check_origin(request, viewer_of(request).csrf)
    try:
        response = await handler(request)
    except grpc.aio.AioRpcError as error:
        response = _failed(request, error)
    if not response.prepared and known != cookie:
        set_cookie(request, response, known)
    return response


def _failed(request: web.Request, error: grpc.aio.AioRpcError) -> web.StreamResponse:
    if error.code() is grpc.StatusCode.UNAUTHENTICATED and FRAGMENT_HEADER not in request.headers:
        if request.method == "GET":
            raise web.HTTPSeeOther(login.address(request.path_qs))
        # Back to the page the change was to be made from; its own address may take changes only.
        form = parts_of(request.headers.get("Referer", "/"))
        raise web.HTTPSeeOther(login.address(form.path + (f"?{form.query}" if form.query else "")))
    return refused(request, trouble_of(error))


async def _live(request: web.Request) -> web.StreamResponse:
    return await request.app[CONSOLE].live.answer(request, viewer_of(request).feed)


async def _preferences(request: web.Request) -> web.StreamResponse:
    """Keep the language or the theme, and go back to where the viewer was."""
    back = login.local(request.query.get("back", "/"))
    there = web.HTTPSeeOther(back)
    for name, allowed in (("lang", tuple(LANGUAGES)), ("theme", THEMES)):
        value = request.query.get(name)
        if value is not None and value in allowed:
            there.set_cookie(name, value, max_age=_YEAR_S, samesite="Strict", path="/")
    raise there


def create_app(
    target: str,
    *,
    credentials: Credentials | None = None,
    clock: Clock | None = None,
    hosts: Collection[str] = (),
    secure: bool = False,
) -> web.Application:
    """Return the application.

    Args:
        target: ``host:port`` of the API.
        credentials: how to reach it; a token in them is not used, viewers bring their own.
        clock: of the machine unless given.
        hosts: names under which the console is reached, besides loopback; ``*``: any.
        secure: whether browsers reach it over TLS.
    """
    app = web.Application(client_max_size=REQUEST_BYTES_MAX, middlewares=[_guarded, _seen])
    console = Console(
        target,
        PAGES,
        credentials=credentials or Credentials(),
        clock=clock or SystemClock(),
        hosts=hosts,
        secure=secure,
    )
    app[CONSOLE] = console
    app.router.add_get("/live", _live)
    app.router.add_get("/preferences", _preferences)
    app.router.add_static("/static/", STATIC, append_version=False)
    for module in PAGES:
        app.router.add_routes(module.routes())
    app.on_response_prepare.append(_revalidated)
    app.on_shutdown.append(_end_streams)
    app.on_cleanup.append(_close)
    return app


async def _revalidated(request: web.Request, response: web.StreamResponse) -> None:
    if request.path.startswith("/static/"):
        response.headers["Cache-Control"] = "no-cache"


async def _end_streams(app: web.Application) -> None:
    app[CONSOLE].live.end()


async def _close(app: web.Application) -> None:
    await app[CONSOLE].sessions.close()
