"""What every request must bring and every answer carries: the edge of the console.

Promises: pages load nothing from elsewhere and run no inline script or style; nothing is framed; a request under a
name that is not ours (DNS rebinding) and a change that did not come from our own pages are refused. Called by the
application, as its outermost middleware.
"""

import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Collection
from urllib.parse import SplitResult, urlsplit

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
SAFE_METHODS = frozenset({"GET", "HEAD"})
CSRF_HEADER, CSRF_FIELD = "X-CSRF-Token", "csrf"


def parts_of(address: str) -> SplitResult:
    """Return the parts of what a browser or somebody else sent as an address; what is none has none."""
    try:
        return urlsplit(address)
    except ValueError:  # such as a bracket that nothing closes
        return urlsplit("")


def is_our_name(host: str, ours: Collection[str]) -> bool:
    """Whether a Host header names this console: one of ``ours``, or loopback where that is empty or holds loopback."""
    bare = parts_of(f"//{host}").hostname or ""
    if bare in ours:
        return True
    try:
        return bare == "localhost" or ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False


def check_name(request: web.Request, ours: Collection[str]) -> None:
    """Raise 421 for a request under a name that is not ours; ``*`` allows every name."""
    if "*" not in ours and not is_our_name(request.host, ours):
        raise web.HTTPMisdirectedRequest(
            text="this console is not known under that name; add it to FORECREST_CONSOLE_HOSTS\n"
        )


async def check_origin(request: web.Request, csrf: str) -> None:
    """Raise 403 for a change that did not come from a page of ours."""
    if request.method in SAFE_METHODS:
        return
    origin = parts_of(request.headers.get("Origin", ""))
    # The scheme may differ behind a proxy that ends TLS; the name and port are what tells pages apart.
    same = bool(origin.netloc) and origin.netloc == request.host
    given = request.headers.get(CSRF_HEADER)
    if same and given is None:
        form = await request.post()
        field = form.get(CSRF_FIELD, "")
        given = field if isinstance(field, str) else ""
    if not same or given is None or not hmac.compare_digest(given.encode(), csrf.encode()):
        raise web.HTTPForbidden(
            text="this change did not come from a page of this console; reload it and try again\n"
        )
