"""Logging in and out, for APIs that tell their callers apart."""

from urllib.parse import quote

from aiohttp import web

from controller.console.context import CONSOLE, render, set_cookie
from controller.console.guard import parts_of
from controller.console.session import COOKIE, LoginError

NAV = None
SOURCES = ()
# Answered before anybody is known.
OPEN_PATHS = frozenset({"/login", "/preferences"})


def routes() -> list[web.RouteDef]:
    """Return the pages of this group."""
    return [web.get("/login", show), web.post("/login", log_in), web.post("/logout", log_out)]


def local(address: str) -> str:
    """Return the path and query of an address of ours, else the start page: never a way out of the console."""
    parts = parts_of(address[:2000])
    inside = parts.path.startswith("/") and not parts.path.startswith(("//", "/\\")) and not parts.netloc
    if not inside or parts.scheme or not address.isprintable():
        return "/"
    return parts.path + (f"?{parts.query}" if parts.query else "")


def address(then: str) -> str:
    """Return the login page that leads to ``then``."""
    return f"/login?next={quote(local(then), safe='')}"


async def show(request: web.Request) -> web.StreamResponse:
    """Show the form."""
    return render(request, "login.html", then=local(request.query.get("next", "/")), problem=None)


async def log_in(request: web.Request) -> web.StreamResponse:
    """Take a token and begin a session."""
    form = await request.post()
    token, then = form.get("token", ""), form.get("next", "/")
    then = local(then if isinstance(then, str) else "/")
    console = request.app[CONSOLE]
    try:
        cookie = await console.sessions.begin(token if isinstance(token, str) else "")
    except LoginError as error:
        return render(request, "login.html", status=error.status, then=then, problem=error)
    await console.sessions.end(request.cookies.get(COOKIE, ""))
    there = web.HTTPSeeOther(then)
    set_cookie(request, there, cookie)
    raise there


async def log_out(request: web.Request) -> web.StreamResponse:
    """End the session."""
    await request.app[CONSOLE].sessions.end(request.cookies.get(COOKIE, ""))
    there = web.HTTPSeeOther("/login")
    there.del_cookie(COOKIE, path="/")
    raise there
