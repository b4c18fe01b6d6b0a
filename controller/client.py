"""A small typed client of ``forecrest.v1``: the generated stubs, with retries that are safe.

Promises: every mutation carries a request id, so that a retry never acts twice; calls have a deadline;
UNAVAILABLE is retried with growing pauses; watches survive the end of a server by opening again, without
repeating a decision. Errors come as ``ApiError`` through ``explain``: code, reason, and each bad field with
its remedy. Called by the command line, the console and the demo; it knows the public API and nothing else.
"""

import asyncio
import contextlib
import json
import random
import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from forecrest.v1 import control_service_pb2, event_service_pb2, forecast_service_pb2
from forecrest.v1.audit_service_pb2_grpc import AuditServiceStub
from forecrest.v1.control_service_pb2_grpc import ControlServiceStub
from forecrest.v1.engine_service_pb2_grpc import EngineServiceStub
from forecrest.v1.event_service_pb2_grpc import EventServiceStub
from forecrest.v1.forecast_service_pb2_grpc import ForecastServiceStub
from forecrest.v1.notification_service_pb2_grpc import NotificationServiceStub
from forecrest.v1.telemetry_service_pb2 import StreamTrafficRequest, StreamTrafficResponse
from forecrest.v1.telemetry_service_pb2_grpc import TelemetryServiceStub
from forecrest.v1.workload_service_pb2_grpc import WorkloadServiceStub
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from controller.adapters.clock import SystemClock
from controller.credentials import Credentials
from controller.ports import Clock

M = TypeVar("M")
R = TypeVar("R", bound=Message)

DEADLINE_S = 30.0
# Previews fit forecasts, simulations replay days: the server's own limit for them, and a little more.
LONG_METHODS = ("/PreviewEvent", "/Simulate")
LONG_DEADLINE_S = 125.0
MESSAGE_BYTES_MAX = 64 * 1024 * 1024
# Streams that cannot be opened again this often in a row are given up.
REOPENS_MAX = 8
REOPEN_PAUSE_S = 0.25
REOPEN_PAUSE_MAX_S = 5.0
# Decisions remembered to tell the repeated ones after a stream was opened again.
SEEN_MAX = 10_000
# Batches of traffic under way: enough to keep the server busy, few enough to hold and to send again.
UNANSWERED_MAX = 4

_SERVICE_CONFIG = json.dumps(
    {
        "methodConfig": [
            {
                "name": [
                    {"service": f"forecrest.v1.{name}Service"}
                    for name in (
                        "Event",
                        "Engine",
                        "Forecast",
                        "Workload",
                        "Control",
                        "Telemetry",
                        "Audit",
                        "Notification",
                    )
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
                    {"service": "forecrest.v1.ForecastService", "method": "WatchForecast"},
                    {"service": "forecrest.v1.TelemetryService", "method": "StreamTraffic"},
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
            long = str(details.method).rstrip("'").endswith(LONG_METHODS)  # bytes on some releases of gRPC
            details = details._replace(timeout=LONG_DEADLINE_S if long else DEADLINE_S)
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

    def __init__(
        self,
        target: str = "127.0.0.1:7443",
        *,
        clock: Clock | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """Send nothing yet; raise CredentialsError for credentials that cannot be used with this target."""
        credentials = credentials or Credentials()
        interceptors = [_SafeRetries(), *credentials.interceptors(target)]
        options: list[tuple[str, Any]] = [
            ("grpc.service_config", _SERVICE_CONFIG),
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            # A controller that restarts is back within seconds; the default waits minutes.
            ("grpc.initial_reconnect_backoff_ms", 200),
            ("grpc.max_reconnect_backoff_ms", 5000),
        ]
        if credentials.server_name:
            options.append(("grpc.ssl_target_name_override", credentials.server_name))
        self.channel = (
            grpc.aio.secure_channel(
                target, credentials.channel_credentials(), interceptors=interceptors, options=options
            )
            if credentials.secure
            else grpc.aio.insecure_channel(target, interceptors=interceptors, options=options)
        )
        self._clock = clock or SystemClock()
        self.events = EventServiceStub(self.channel)
        self.engines = EngineServiceStub(self.channel)
        self.forecasts = ForecastServiceStub(self.channel)
        self.workloads = WorkloadServiceStub(self.channel)
        self.control = ControlServiceStub(self.channel)
        self.telemetry = TelemetryServiceStub(self.channel)
        self.audit = AuditServiceStub(self.channel)
        self.notifications = NotificationServiceStub(self.channel)

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
        """Yield the event's snapshot and changes until it is over; after a reconnect only what differs since."""
        token = ""

        def opened() -> AsyncIterable[event_service_pb2.WatchEventResponse]:
            return self.events.WatchEvent(event_service_pb2.WatchEventRequest(name=name, resume_token=token))

        async for response in self._reopened(opened):
            token = response.resume_token
            yield response

    async def watch_decisions(
        self, workload: str = "", *, changes_only: bool = False
    ) -> AsyncIterator[control_service_pb2.WatchDecisionsResponse]:
        """Yield the newest decisions, then each as it is made, none twice."""
        token = ""
        seen: dict[str, None] = {}

        def opened() -> AsyncIterable[control_service_pb2.WatchDecisionsResponse]:
            return self.control.WatchDecisions(
                control_service_pb2.WatchDecisionsRequest(
                    workload=workload, changes_only=changes_only, resume_token=token
                )
            )

        async for response in self._reopened(opened):
            # Empty until a snapshot is complete: one that was cut off is sent again, and told by its names.
            token = response.resume_token or token
            if response.decision.name in seen:
                continue
            seen[response.decision.name] = None
            if len(seen) > SEEN_MAX:
                del seen[next(iter(seen))]
            yield response

    async def watch_forecast(self, name: str) -> AsyncIterator[forecast_service_pb2.WatchForecastResponse]:
        """Yield the workload's newest forecast, then every newer one, none twice."""
        token = ""

        def opened() -> AsyncIterable[forecast_service_pb2.WatchForecastResponse]:
            return self.forecasts.WatchForecast(
                forecast_service_pb2.WatchForecastRequest(name=name, resume_token=token)
            )

        async for response in self._reopened(opened):
            token = response.resume_token
            yield response

    async def stream_traffic(
        self, batches: AsyncIterable[StreamTrafficRequest]
    ) -> AsyncGenerator[StreamTrafficResponse]:
        """Send batches in order and yield the answer to each: what was answered is durable.

        When the server goes away the stream is opened again, and what was not answered is sent once more. At
        most ``UNANSWERED_MAX`` batches are held.
        """
        sending = _Sending(aiter(batches))
        failures = 0
        try:
            while True:
                call: Any = self.telemetry.StreamTraffic()
                try:
                    async with contextlib.aclosing(sending.over(call)) as answers:
                        async for answer in answers:
                            failures = 0
                            yield answer
                    # All is answered: how the call ends does not matter any more, only that it ends in order.
                    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                        await call.done_writing()
                        await call.read()
                except (grpc.aio.AioRpcError, _BrokenError) as error:
                    failures += 1
                    status = error if isinstance(error, grpc.aio.AioRpcError) else await _status_error(call)
                    final = status is error and status.code() is not grpc.StatusCode.UNAVAILABLE
                    if final or failures > REOPENS_MAX:
                        raise status from None
                    sending.slow_down()
                    await self._clock.sleep(_pause_s(failures))
                else:
                    return
                finally:
                    call.cancel()
        finally:
            sending.close()

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
                await self._clock.sleep(_pause_s(failures))
            else:
                return


class _Sending:
    """Batches on their way: those that were not answered go out again on the next call."""

    def __init__(self, source: AsyncIterator[StreamTrafficRequest]) -> None:
        self._source = source
        self._unanswered: deque[StreamTrafficRequest] = deque()
        # Kept from call to call: cancelling it would end the source.
        self._pull: asyncio.Task[StreamTrafficRequest | None] | None = None
        self._ended = False
        self._room = UNANSWERED_MAX

    async def over(self, call: Any) -> AsyncGenerator[StreamTrafficResponse]:  # noqa: ANN401 -- gRPC's calls are untyped
        """Send and yield the answers until all is answered; raise what ends the call before that."""
        sent = 0
        read: asyncio.Task[Any] | None = None
        try:
            while self._unanswered or not self._ended:
                while sent < min(len(self._unanswered), self._room):
                    await _write(call, self._unanswered[sent])
                    sent += 1
                if read is None and sent:
                    read = asyncio.create_task(call.read())
                waits = {task for task in (self._pulling(), read) if task is not None}
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                self._take()
                if read is not None and read.done():
                    answer, read = read.result(), None
                    if answer is grpc.aio.EOF:
                        raise await _status_error(call)
                    self._unanswered.popleft()
                    sent, self._room = sent - 1, UNANSWERED_MAX
                    yield answer
        finally:
            if read is not None:
                read.cancel()

    def slow_down(self) -> None:
        """Send one at a time until one is answered: a write to a call that ends hides why it ends."""
        self._room = 1

    def _pulling(self) -> asyncio.Task[StreamTrafficRequest | None] | None:
        if self._pull is None and not self._ended and len(self._unanswered) < UNANSWERED_MAX:
            self._pull = asyncio.create_task(_next(self._source))
        return self._pull

    def _take(self) -> None:
        if self._pull is not None and self._pull.done():
            fresh, self._pull = self._pull.result(), None
            if fresh is None:
                self._ended = True
            else:
                self._unanswered.append(fresh)

    def close(self) -> None:
        """Wait for no further batch."""
        if self._pull is not None:
            self._pull.cancel()


class _BrokenError(Exception):
    """A call ended while it was written to."""


async def _write(call: Any, batch: StreamTrafficRequest) -> None:  # noqa: ANN401 -- as above
    try:
        await call.write(batch)
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
        raise _BrokenError from error


async def _next(source: AsyncIterator[StreamTrafficRequest]) -> StreamTrafficRequest | None:
    return await anext(source, None)


def _pause_s(failures: int) -> float:
    """Grow with every failure; vary, so that clients of one server do not come back all at once."""
    pause_s: float = min(REOPEN_PAUSE_MAX_S, REOPEN_PAUSE_S * 2 ** (failures - 1))
    return pause_s * random.uniform(0.8, 1.2)


async def _status_error(call: Any) -> grpc.aio.AioRpcError:  # noqa: ANN401 -- gRPC's calls are untyped
    """What ended a call that was being written to or read from."""
    return grpc.aio.AioRpcError(
        await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details()
    )


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
