"""A small typed client of ``forecrest.v1``: the generated stubs, with retries that are safe.

Promises: every mutation carries a request id, so that a retry never acts twice; calls have a deadline;
UNAVAILABLE is retried with growing pauses; watches survive the end of a server by opening again, without
repeating a decision. Errors come as ``ApiError`` through ``explain``: code, reason, and each bad field with
its remedy. Called by the command line, the console and the demo; it knows the public API and nothing else.
"""

import json
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from forecrest.v1 import control_service_pb2, event_service_pb2
from forecrest.v1.control_service_pb2_grpc import ControlServiceStub
from forecrest.v1.event_service_pb2_grpc import EventServiceStub
from forecrest.v1.forecast_service_pb2_grpc import ForecastServiceStub
from forecrest.v1.telemetry_service_pb2_grpc import TelemetryServiceStub
from forecrest.v1.workload_service_pb2_grpc import WorkloadServiceStub
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from controller.adapters.clock import SystemClock
from controller.ports import Clock

M = TypeVar("M")
R = TypeVar("R", bound=Message)

DEADLINE_S = 30.0
MESSAGE_BYTES_MAX = 64 * 1024 * 1024
# Streams that cannot be opened again this often in a row are given up.
REOPENS_MAX = 8
REOPEN_PAUSE_S = 0.25
REOPEN_PAUSE_MAX_S = 5.0
# Decisions remembered to tell the repeated ones after a stream was opened again.
SEEN_MAX = 10_000

_SERVICE_CONFIG = json.dumps(
    {
        "methodConfig": [
            {
                "name": [
                    {"service": f"forecrest.v1.{name}Service"}
                    for name in ("Event", "Forecast", "Workload", "Control", "Telemetry")
                ],
                "retryPolicy": {
                    "maxAttempts": 5,
                    "initialBackoff": "0.2s",
                    "maxBackoff": "2s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            },
            # Streams are opened again by this module, which knows what was seen.
            {
                "name": [
                    {"service": "forecrest.v1.EventService", "method": "WatchEvent"},
                    {"service": "forecrest.v1.ControlService", "method": "WatchDecisions"},
                ]
            },
        ]
    }
)


@dataclass(frozen=True, slots=True)
class ApiError:
    """What a server refused and why. ``violations`` are (field, remedy) pairs."""

    code: str
    reason: str
    message: str
    violations: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """For people: one line per bad field, or the message."""
        if not self.violations:
            return f"{self.message} ({self.reason or self.code})"
        return "\n".join(f"{field}: {remedy}" for field, remedy in self.violations)


def explain(error: grpc.aio.AioRpcError) -> ApiError:
    """Return what the status and its details say."""
    reason, violations = "", []
    status = status_pb2.Status()
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            status.MergeFromString(value)
    for detail in status.details:
        info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        if detail.Unpack(info):
            reason = info.reason
        elif detail.Unpack(bad):
            violations = [(v.field, v.description) for v in bad.field_violations]
    message = error.details() or "no details"
    return ApiError(error.code().name, reason, message, tuple(violations))


class _SafeRetries(grpc.aio.UnaryUnaryClientInterceptor):
    """Gives every call a deadline and every mutation a request id before it is first sent."""

    async def intercept_unary_unary(
        self,
        continuation: Callable[[grpc.aio.ClientCallDetails, Any], Awaitable[Any]],
        client_call_details: grpc.aio.ClientCallDetails,
        request: Any,  # noqa: ANN401 -- any message
    ) -> Any:  # noqa: ANN401 -- the call object
        details: Any = client_call_details
        if details.timeout is None:
            details = details._replace(timeout=DEADLINE_S)
        return await continuation(details, _identified(request))


def _identified(request: Any) -> Any:  # noqa: ANN401 -- any message, or what a caller serializes itself
    descriptor = getattr(request, "DESCRIPTOR", None)
    if descriptor is None or "request_id" not in descriptor.fields_by_name or request.request_id:
        return request
    identified = type(request)()
    identified.CopyFrom(request)
    identified.request_id = str(uuid.uuid4())
    return identified


class Client:
    """A channel and its typed stubs; ``async with Client(target) as client``."""

    def __init__(self, target: str = "127.0.0.1:7443", *, clock: Clock | None = None) -> None:
        self.channel = grpc.aio.insecure_channel(
            target,
            interceptors=[_SafeRetries()],
            options=[
                ("grpc.service_config", _SERVICE_CONFIG),
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
                # A controller that restarts is back within seconds; the default waits minutes.
                ("grpc.initial_reconnect_backoff_ms", 200),
                ("grpc.max_reconnect_backoff_ms", 5000),
            ],
        )
        self._clock = clock or SystemClock()
        self.events = EventServiceStub(self.channel)
        self.forecasts = ForecastServiceStub(self.channel)
        self.workloads = WorkloadServiceStub(self.channel)
        self.control = ControlServiceStub(self.channel)
        self.telemetry = TelemetryServiceStub(self.channel)

    async def __aenter__(self) -> Self:
        """Nothing is sent yet."""
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Close the channel."""
        await self.close()

    async def close(self) -> None:
        """Close the channel; open streams end."""
        await self.channel.close()

    async def watch_event(self, name: str) -> AsyncIterator[event_service_pb2.WatchEventResponse]:
        """Yield the event's snapshot and changes until it is over; a new snapshot after a reconnect."""
        request = event_service_pb2.WatchEventRequest(name=name)
        async for response in self._reopened(lambda: self.events.WatchEvent(request)):
            yield response

    async def watch_decisions(
        self, workload: str = "", *, changes_only: bool = False
    ) -> AsyncIterator[control_service_pb2.WatchDecisionsResponse]:
        """Yield the newest decisions, then each as it is made, none twice."""
        request = control_service_pb2.WatchDecisionsRequest(workload=workload, changes_only=changes_only)
        seen: dict[str, None] = {}
        async for response in self._reopened(lambda: self.control.WatchDecisions(request)):
            if response.decision.name in seen:
                continue
            seen[response.decision.name] = None
            if len(seen) > SEEN_MAX:
                del seen[next(iter(seen))]
            yield response

    async def _reopened(self, open_stream: Callable[[], AsyncIterable[M]]) -> AsyncIterator[M]:
        failures = 0
        while True:
            try:
                async for message in open_stream():
                    failures = 0
                    yield message
            except grpc.aio.AioRpcError as error:
                failures += 1
                if error.code() is not grpc.StatusCode.UNAVAILABLE or failures > REOPENS_MAX:
                    raise
                await self._clock.sleep(min(REOPEN_PAUSE_MAX_S, REOPEN_PAUSE_S * 2 ** (failures - 1)))
            else:
                return


async def pages(
    call: Callable[[R], Awaitable[Any]], request: R, field: str, limit: int = 100_000
) -> AsyncIterator[Any]:
    """Yield the items in ``field`` of every page of a listing, at most ``limit``."""
    asked = type(request)()
    asked.CopyFrom(request)
    count = 0
    while True:
        response = await call(asked)
        for item in getattr(response, field):
            if count >= limit:
                return
            count += 1
            yield item
        if not response.next_page_token:
            return
        asked.page_token = response.next_page_token  # type: ignore[attr-defined]  # every list request has it
