"""Serve ``forecrest.v1``, grpc.health.v1 and reflection.

Promises: health is SERVING only while the store answers and has the right schema; stopping turns health
NOT_SERVING first, ends streams with UNAVAILABLE and lets calls in flight finish. Refuses any address beyond
loopback without TLS and a way to authenticate callers. Called by the composition root.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import grpc
from forecrest.keda import externalscaler_pb2, externalscaler_pb2_grpc
from forecrest.v1 import (
    audit_service_pb2,
    audit_service_pb2_grpc,
    control_service_pb2,
    control_service_pb2_grpc,
    engine_service_pb2,
    engine_service_pb2_grpc,
    event_service_pb2,
    event_service_pb2_grpc,
    forecast_service_pb2,
    forecast_service_pb2_grpc,
    notification_service_pb2,
    notification_service_pb2_grpc,
    telemetry_service_pb2,
    telemetry_service_pb2_grpc,
    workload_service_pb2,
    workload_service_pb2_grpc,
)
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

from controller.api.audit import AuditServicer
from controller.api.auth.audit import AuditTrail
from controller.api.auth.guard import Guard, Observe
from controller.api.auth.scope import Directory, ScopedStore
from controller.api.auth.security import Security
from controller.api.calls import ApiDependencies
from controller.api.control import ControlServicer
from controller.api.engines import EngineServicer
from controller.api.errors import ErrorInterceptor
from controller.api.events import EventServicer
from controller.api.feed import Feed
from controller.api.forecasts import ForecastServicer
from controller.api.keda import KedaServicer
from controller.api.limits import ApiLimits
from controller.api.notifications import NotificationServicer
from controller.api.stale import StaleInterceptor
from controller.api.streams import Streams
from controller.api.telemetry import TelemetryServicer
from controller.api.workloads import WorkloadServicer
from controller.ports import PortError, UnavailableError

__all__ = ["ApiDependencies", "ApiLimits", "BindError", "RunningServer", "serve"]

log = logging.getLogger(__name__)

# Defined under a version check that type checkers do not follow.
_HealthServicer: Any = health.aio.HealthServicer  # pyright: ignore[reportAttributeAccessIssue]

# Stopping must end: a task that outlives this many cancellations, a second apart, is left and logged.
CANCELLATIONS_MAX = 5
STOPPING = "stopping"

SERVICES = tuple(
    service.full_name
    for file in (
        engine_service_pb2,
        event_service_pb2,
        forecast_service_pb2,
        workload_service_pb2,
        control_service_pb2,
        telemetry_service_pb2,
        audit_service_pb2,
        notification_service_pb2,
    )
    for service in file.DESCRIPTOR.services_by_name.values()
)


class BindError(ValueError):
    """The address cannot be served on; the message says what to do."""


@dataclass(slots=True)
class Readiness:
    """What the last probe found. ``problem``: why the API should get no calls; empty: it should.

    Once it was ready, a database that is away is no reason to send callers elsewhere: every process answers reads from
    what it knows, and KEDA must be answered always. It is said in ``degraded``.
    """

    problem: str = "not probed yet"
    degraded: str = ""


@dataclass(slots=True)
class RunningServer:
    """A started server. ``port`` is the one really bound."""

    host: str
    port: int
    _server: grpc.aio.Server
    _health: Any
    _feed: Feed
    _streams: tuple[Streams, ...]
    _trail: AuditTrail
    _readiness: Readiness
    _tasks: tuple[asyncio.Task[None], ...]

    @property
    def target(self) -> str:
        """Address for a channel on this machine."""
        return f"{self.host}:{self.port}"

    @property
    def problem(self) -> str:
        """Why it should get no calls; empty: it should."""
        return self._readiness.problem

    @property
    def degraded(self) -> str:
        """What does not work although it should get calls; empty: everything works."""
        return self._readiness.degraded

    @property
    def stream_count(self) -> int:
        """Watch streams that are open."""
        return self._feed.stream_count

    @property
    def audit_pending(self) -> int:
        """Audit entries that wait to be written."""
        return self._trail.pending_count

    async def stop(self, grace_s: float = 5.0) -> None:
        """Say NOT_SERVING, end the streams, give calls in flight ``grace_s`` seconds, close. Safe to repeat."""
        self._readiness.problem = STOPPING
        await self._health.enter_graceful_shutdown()
        self._feed.stop()
        for streams in self._streams:
            streams.stop()
        await self._server.stop(grace_s)
        await _end(self._tasks)
        await self._trail.flush(everything=True)

    async def wait(self) -> None:
        """Return when the server has stopped."""
        await self._server.wait_for_termination()


async def _end(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel until every task has ended: a library in the middle of connecting may swallow one cancellation."""
    left = set(tasks)
    for _ in range(CANCELLATIONS_MAX):
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=1.0)
        if not left:
            return
    log.error("still running after stop: %s", sorted(task.get_name() for task in left))


def check_bind(bind: str, security: Security | None = None, *, name: str = "bind") -> str:
    """Return the host of ``host:port``; raise BindError unless it is loopback or protected."""
    host, colon, port = bind.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise BindError(f'{name}: must look like "127.0.0.1:7443" (port 0 picks a free one); got {bind!r}')
    bare = host.removeprefix("[").removesuffix("]")
    try:
        loopback = bare == "localhost" or ipaddress.ip_address(bare).is_loopback
    except ValueError:
        loopback = False
    lacks = [] if loopback else _unprotected(security or Security())
    if lacks:
        raise BindError(
            f"{name}: {bind} can be reached from the network, and there is {' and '.join(lacks)}; set what is "
            "missing as docs/security.md says, or bind to 127.0.0.1"
        )
    return host


def _unprotected(security: Security) -> list[str]:
    lacks = [] if security.tls else ["no TLS (FORECREST_TLS_CERT, FORECREST_TLS_KEY)"]
    if not security.authenticator.enabled:
        lacks.append(
            "no authentication (FORECREST_TOKENS_FILE, FORECREST_OIDC_ISSUER, FORECREST_TLS_CLIENT_CA)"
        )
    return lacks


def _options(limits: ApiLimits) -> list[tuple[str, int]]:
    def ms(seconds: float) -> int:
        return round(seconds * 1000)

    return [
        ("grpc.max_receive_message_length", limits.message_bytes_max),
        ("grpc.max_send_message_length", 16 * limits.message_bytes_max),
        ("grpc.max_metadata_size", limits.metadata_bytes_max),
        # Without this a second server on the same port would silently take half of the calls.
        ("grpc.so_reuseport", 0),
        # A watcher whose machine is gone must not hold its stream for hours.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.min_ping_interval_without_data_ms", ms(limits.ping_interval_min_s)),
        ("grpc.http2.max_ping_strikes", 2),
        ("grpc.max_allowed_incoming_connections", limits.connections_max),
        ("grpc.server_handshake_timeout_ms", ms(limits.handshake_timeout_s)),
        ("grpc.max_concurrent_streams", limits.connection_calls_max),
        # A connection proves its certificate once: its age bounds how long a withdrawn one goes on.
        ("grpc.max_connection_age_ms", ms(limits.connection_age_max_s)),
        ("grpc.max_connection_age_grace_ms", ms(limits.connection_age_grace_s)),
        ("grpc.max_connection_idle_ms", ms(limits.connection_idle_max_s)),
    ]


class _ByName:
    """Takes servicers' methods to be looked up by name, when they are called.

    Registered in advance, each method would have a pending call of its own, and the event loop would wait for all
    of them anew at every request: with fifty methods that costs more than a small request itself.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self.add_generic_rpc_handlers = server.add_generic_rpc_handlers

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """Nothing: the generic handlers find the same methods."""


async def serve(
    deps: ApiDependencies,
    bind: str = "127.0.0.1:7443",
    security: Security | None = None,
    observe: Observe | None = None,
) -> RunningServer:
    """Start the server; ``observe`` is told method, code and seconds of every call.

    Raises:
        BindError: the address is not free, or beyond loopback and not protected.
    """
    security = security or Security()
    host = check_bind(bind, security)
    if not security.authenticator.enabled:
        log.warning("callers are not told apart: every user of this machine may do everything on %s", bind)
    trail = AuditTrail(deps.store, deps.clock, deps.pace)
    guard = Guard(security.authenticator, deps.limits, trail, deps.pace, observe)
    server = grpc.aio.server(
        interceptors=[guard, ErrorInterceptor(deps.limits), StaleInterceptor(deps)],
        options=_options(deps.limits),
        maximum_concurrent_rpcs=deps.limits.concurrent_rpcs_max,
    )
    feed = Feed(deps, Directory(deps.store, deps.pace).sees)
    ingest, keda = Streams(deps.limits.ingest_streams_max), Streams(deps.limits.streams_max)
    # From here on: the store as the caller of the moment may see it.
    deps = replace(deps, store=ScopedStore(deps.store))
    methods: Any = _ByName(server)
    event_service_pb2_grpc.add_EventServiceServicer_to_server(EventServicer(deps, feed), methods)
    forecast_service_pb2_grpc.add_ForecastServiceServicer_to_server(ForecastServicer(deps, feed), methods)
    engine_service_pb2_grpc.add_EngineServiceServicer_to_server(EngineServicer(deps), methods)
    workload_service_pb2_grpc.add_WorkloadServiceServicer_to_server(WorkloadServicer(deps), methods)
    control_service_pb2_grpc.add_ControlServiceServicer_to_server(ControlServicer(deps, feed), methods)
    telemetry_service_pb2_grpc.add_TelemetryServiceServicer_to_server(
        TelemetryServicer(deps, ingest), methods
    )
    audit_service_pb2_grpc.add_AuditServiceServicer_to_server(AuditServicer(deps), methods)
    notification_service_pb2_grpc.add_NotificationServiceServicer_to_server(
        NotificationServicer(deps), methods
    )
    externalscaler_pb2_grpc.add_ExternalScalerServicer_to_server(KedaServicer(deps, feed, keda), methods)
    servicer = _HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    kedas = externalscaler_pb2.DESCRIPTOR.services_by_name["ExternalScaler"].full_name
    reflected = (*SERVICES, kedas, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(reflected, server)
    port = _bind(server, bind, security)
    readiness = Readiness()
    await _probe(deps, servicer, readiness)
    await server.start()
    tasks = (
        asyncio.create_task(feed.listen(), name="watch-signals"),
        asyncio.create_task(feed.read(), name="watch-reader"),
        asyncio.create_task(_watch_health(deps, servicer, readiness), name="health"),
        asyncio.create_task(trail.run(), name="audit"),
        asyncio.create_task(_keep_fresh(deps, security, guard), name="security"),
    )
    return RunningServer(host, port, server, servicer, feed, (ingest, keda), trail, readiness, tasks)


def _bind(server: grpc.aio.Server, bind: str, security: Security) -> int:
    taken = f"bind: {bind} is not free; stop what listens there or choose another port"
    try:
        port = (
            server.add_insecure_port(bind)
            if security.tls is None
            else server.add_secure_port(bind, security.tls.server_credentials())
        )
    except RuntimeError as error:
        raise BindError(taken) from error
    if not port:
        raise BindError(taken)
    return port


async def _keep_fresh(deps: ApiDependencies, security: Security, guard: Guard) -> None:
    """Look at the security files every few seconds, and end the streams of those who may no longer."""
    while True:
        await deps.pace.sleep(deps.limits.reload_period_s)
        try:
            await security.refresh()
            await guard.recheck()
        except Exception:  # what was in force stays in force; what it was is in the log
            log.exception("the security files could not be looked at")


async def _watch_health(deps: ApiDependencies, servicer: Any, readiness: Readiness) -> None:  # noqa: ANN401 -- untyped library
    while True:
        await deps.pace.sleep(deps.limits.health_period_s)
        await _probe(deps, servicer, readiness)


async def _probe(deps: ApiDependencies, servicer: Any, readiness: Readiness) -> None:  # noqa: ANN401 -- untyped library
    problem, away = "", False
    try:
        async with asyncio.timeout(deps.limits.health_timeout_s):
            await deps.store.check_revision()
    except (UnavailableError, TimeoutError) as error:
        log.warning("not serving: %s", str(error) or "the store does not answer in time")
        problem, away = "the database is away", True
    except PortError as error:
        log.warning("not serving: %s", error)
        problem = "the database cannot be used, see the log"
    except Exception:  # whatever it is, a server that cannot tell must not take traffic
        log.exception("not serving: the health probe failed")
        problem = "the probe of the database failed, see the log"
    if readiness.problem == STOPPING:
        return
    ready_once = not readiness.problem
    readiness.problem = "" if away and ready_once else problem
    readiness.degraded = "the database is away: reads may be old, changes fail" if away and ready_once else ""
    serving = health_pb2.HealthCheckResponse
    for service in ("", *SERVICES):
        await servicer.set(service, serving.NOT_SERVING if problem else serving.SERVING)
