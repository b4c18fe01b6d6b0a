"""Serve ``forecrest.v1``, grpc.health.v1 and reflection.

Promises: health is SERVING only while the store answers and has the right schema; stopping turns health
NOT_SERVING first, ends streams with UNAVAILABLE and lets calls in flight finish. Refuses any address beyond
loopback as long as there is no authentication. Called by the composition root.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import grpc
from forecrest.v1 import (
    control_service_pb2,
    control_service_pb2_grpc,
    event_service_pb2,
    event_service_pb2_grpc,
    forecast_service_pb2,
    forecast_service_pb2_grpc,
    telemetry_service_pb2,
    telemetry_service_pb2_grpc,
    workload_service_pb2,
    workload_service_pb2_grpc,
)
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

from controller.api.calls import ApiDependencies
from controller.api.control import ControlServicer
from controller.api.errors import ErrorInterceptor
from controller.api.events import EventServicer
from controller.api.feed import Feed
from controller.api.forecasts import ForecastServicer
from controller.api.limits import ApiLimits
from controller.api.telemetry import TelemetryServicer
from controller.api.workloads import WorkloadServicer
from controller.ports import PortError

__all__ = ["ApiDependencies", "ApiLimits", "BindError", "RunningServer", "serve"]

log = logging.getLogger(__name__)

# Defined under a version check that type checkers do not follow.
_HealthServicer: Any = health.aio.HealthServicer  # pyright: ignore[reportAttributeAccessIssue]

# Stopping must end: a task that outlives this many cancellations, a second apart, is left and logged.
CANCELLATIONS_MAX = 5

SERVICES = tuple(
    service.full_name
    for file in (
        event_service_pb2,
        forecast_service_pb2,
        workload_service_pb2,
        control_service_pb2,
        telemetry_service_pb2,
    )
    for service in file.DESCRIPTOR.services_by_name.values()
)


class BindError(ValueError):
    """The address cannot be served on; the message says what to do."""


@dataclass(slots=True)
class RunningServer:
    """A started server. ``port`` is the one really bound."""

    host: str
    port: int
    _server: grpc.aio.Server
    _health: Any
    _feed: Feed
    _tasks: tuple[asyncio.Task[None], ...]

    @property
    def target(self) -> str:
        """Address for a channel on this machine."""
        return f"{self.host}:{self.port}"

    async def stop(self, grace_s: float = 5.0) -> None:
        """Say NOT_SERVING, end the streams, give calls in flight ``grace_s`` seconds, close. Safe to repeat."""
        await self._health.enter_graceful_shutdown()
        self._feed.stop()
        await self._server.stop(grace_s)
        await _end(self._tasks)

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


def check_bind(bind: str) -> str:
    """Return the host of ``host:port``; raise BindError unless it is loopback."""
    host, colon, port = bind.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise BindError(f'bind: must look like "127.0.0.1:7443" (port 0 picks a free one); got {bind!r}')
    bare = host.removeprefix("[").removesuffix("]")
    try:
        loopback = bare == "localhost" or ipaddress.ip_address(bare).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise BindError(
            f"bind: {bind} can be reached from the network, and this release has no authentication to protect "
            "it with; bind to 127.0.0.1 and reach it through an authenticating proxy or an SSH tunnel"
        )
    return host


def _options(limits: ApiLimits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.message_bytes_max),
        ("grpc.max_send_message_length", 16 * limits.message_bytes_max),
        # Without this a second server on the same port would silently take half of the calls.
        ("grpc.so_reuseport", 0),
        # A watcher whose machine is gone must not hold its stream for hours.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
    ]


async def serve(deps: ApiDependencies, bind: str = "127.0.0.1:7443") -> RunningServer:
    """Start the server; raise BindError if the address is not loopback or not free."""
    host = check_bind(bind)
    server = grpc.aio.server(
        interceptors=[ErrorInterceptor(deps.limits)],
        options=_options(deps.limits),
        maximum_concurrent_rpcs=deps.limits.concurrent_rpcs_max,
    )
    feed = Feed(deps)
    event_service_pb2_grpc.add_EventServiceServicer_to_server(EventServicer(deps, feed), server)
    forecast_service_pb2_grpc.add_ForecastServiceServicer_to_server(ForecastServicer(deps), server)
    workload_service_pb2_grpc.add_WorkloadServiceServicer_to_server(WorkloadServicer(deps), server)
    control_service_pb2_grpc.add_ControlServiceServicer_to_server(ControlServicer(deps, feed), server)
    telemetry_service_pb2_grpc.add_TelemetryServiceServicer_to_server(TelemetryServicer(deps), server)
    servicer = _HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflection.enable_server_reflection((*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    try:
        port = server.add_insecure_port(bind)
    except RuntimeError as error:
        raise BindError(
            f"bind: {bind} is not free; stop what listens there or choose another port"
        ) from error
    if not port:
        raise BindError(f"bind: {bind} is not free; stop what listens there or choose another port")
    await _probe(deps, servicer)
    await server.start()
    tasks = (
        asyncio.create_task(feed.listen(), name="watch-signals"),
        asyncio.create_task(feed.read(), name="watch-reader"),
        asyncio.create_task(_watch_health(deps, servicer), name="health"),
    )
    return RunningServer(host, port, server, servicer, feed, tasks)


async def _watch_health(deps: ApiDependencies, servicer: Any) -> None:  # noqa: ANN401 -- untyped library
    while True:
        await deps.pace.sleep(deps.limits.health_period_s)
        await _probe(deps, servicer)


async def _probe(deps: ApiDependencies, servicer: Any) -> None:  # noqa: ANN401 -- untyped library
    status = health_pb2.HealthCheckResponse.SERVING
    try:
        async with asyncio.timeout(deps.limits.health_timeout_s):
            await deps.store.check_revision()
    except (PortError, TimeoutError) as error:
        log.warning("not serving: %s", str(error) or "the store does not answer in time")
        status = health_pb2.HealthCheckResponse.NOT_SERVING
    except Exception:  # whatever it is, a server that cannot tell must not take traffic
        log.exception("not serving: the health probe failed")
        status = health_pb2.HealthCheckResponse.NOT_SERVING
    for service in ("", *SERVICES):
        await servicer.set(service, status)
