"""Serve ``/metrics``, ``/healthz`` and ``/readyz`` over HTTP.

Promises: loopback unless the API's TLS and authentication protect it; where callers are told apart, metrics need
a caller who may read in every namespace, because they name workloads of all of them; health needs nobody, and says
no more than one sentence. Rendering happens beside the event loop and once at a time. Called by the composition root.
"""

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from controller.adapters.clock import SystemClock
from controller.api.auth.guard import REFUSALS_BURST, REFUSALS_QPS
from controller.api.auth.identity import UnauthenticatedError
from controller.api.auth.rate import Buckets
from controller.api.auth.roles import Access, namespaces_of
from controller.api.auth.security import Security
from controller.api.server import BindError, check_bind
from controller.http.health import Health
from controller.http.metrics import refused_connections
from controller.listener import Listener, listen

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 1024
ACCEPT_LENGTH_MAX = 1000
_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


def follow(bind: str, api_bind: str) -> str:
    """Return the address of the side port: as set, or beside the API's."""
    if bind:
        return bind
    host, _, port = api_bind.rpartition(":")
    return f"{host}:{0 if port in {'0', '65535'} else int(port) + 1}"


async def open_port(bind: str, security: Security, registry: CollectorRegistry, health: Health) -> Listener:
    """Start the side port; raise BindError if the address is not free, or beyond loopback and not protected."""
    host = check_bind(bind, security, name="http_bind")
    app = web.Application(client_max_size=REQUEST_BYTES_MAX, middlewares=[_hardened])
    metrics = _Metrics(security, registry)
    app.router.add_get("/metrics", metrics.answer)
    app.router.add_get("/healthz", _answering(health.liveness))
    app.router.add_get("/readyz", _answering(health.readiness, health.degraded))
    context = None if security.tls is None else security.tls.http_context()
    try:
        port = int(bind.rpartition(":")[2])
        return await listen(app, host, port, context, turned_away=refused_connections(registry).inc)
    except OSError as error:
        raise BindError(
            f"http_bind: {bind} is not free; choose another with FORECREST_HTTP_BIND, or off"
        ) from error


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def _hardened(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        response = await handler(request)
    except web.HTTPException as refusal:
        refusal.headers.update(_HEADERS)
        raise
    except Exception:  # the edge: what it was is in the log, and nothing of it in the answer
        log.exception("the side port could not answer %s", request.path[:100])
        return web.Response(status=500, text="an unexpected failure; the log has it\n", headers=_HEADERS)
    response.headers.update(_HEADERS)
    return response


def _answering(problems: Callable[[], list[str]], degraded: Callable[[], list[str]] = list) -> Handler:
    async def answer(_: web.Request) -> web.StreamResponse:
        found = problems()
        body = json.dumps({"ok": not found, "problems": found, "degraded": degraded()}) + "\n"
        return web.Response(status=503 if found else 200, text=body, content_type="application/json")

    return answer


class _Metrics:
    """Renders the registry for callers who may see it."""

    def __init__(self, security: Security, registry: CollectorRegistry) -> None:
        self._security, self._registry = security, registry
        self._rendering = asyncio.Lock()
        self._clock = SystemClock()
        self._refusals = Buckets(REFUSALS_QPS, REFUSALS_BURST)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a scrape."""
        if self._security.authenticator.enabled:
            await self._authorize(request)
        encode, content_type = choose_encoder(request.headers.get("Accept", "")[:ACCEPT_LENGTH_MAX])
        async with self._rendering:
            body = await asyncio.to_thread(encode, self._registry)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _authorize(self, request: web.Request) -> None:
        transport: Any = request.transport
        certificate = transport.get_extra_info("peercert") if transport else None
        names = _names(certificate or {})
        try:
            who = await self._security.authenticator.identify(
                request.headers.getall("Authorization", []), names
            )
        except UnauthenticatedError as error:
            wait_s = self._refusals.take(request.remote or "", self._clock.monotonic())
            if wait_s:
                raise web.HTTPTooManyRequests(
                    text="refused too often; slow down\n", headers={"Retry-After": str(math.ceil(wait_s))}
                ) from error
            raise web.HTTPUnauthorized(
                text=f"{error}\n", headers={"WWW-Authenticate": 'Bearer realm="forecrest"'}
            ) from error
        if namespaces_of(who.grants, Access.READ) is not None:
            raise web.HTTPForbidden(text="metrics name workloads of every namespace; ask for viewer:*\n")


def _names(certificate: dict[str, Any]) -> list[str]:
    """Identities of a verified client certificate, as the API names them."""
    kinds = {"URI": "uri", "DNS": "dns"}
    names = [f"{kinds[k]}:{v}" for k, v in certificate.get("subjectAltName", ()) if k in kinds]
    # The most specific first, as on the API.
    names.sort(key=lambda name: not name.startswith("uri:"))
    if names:
        return names
    subject = [pair for part in certificate.get("subject", ()) for pair in part]
    return [f"cn:{value}" for key, value in subject if key == "commonName"]
