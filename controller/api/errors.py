"""Turn refusals and failures into gRPC statuses with google.rpc details, in one place.

Promises: every refusal carries ErrorInfo (domain "forecrest", a stable reason) and, for bad fields,
BadRequest; what nobody expected becomes INTERNAL with a reference that the log knows and nothing of the
inside. Bytes that are no message are INVALID_ARGUMENT. Details fit into trailers. Called by gRPC, around
every method of our own services.
"""

import asyncio
import logging
import math
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError, Message
from google.rpc import code_pb2, error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status  # type: ignore[import-untyped]

from controller.api.limits import ApiLimits
from controller.ports import ConflictError, NotFoundError, PortError, UnavailableError
from controller.usecases.errors import InvalidError, UseCaseError

log = logging.getLogger(__name__)

DOMAIN = "forecrest"
OWN_SERVICES = ("/forecrest.", "/externalscaler.")
# Trailers beyond 8 KiB are dropped by many proxies; details are base64 and the message is in them twice.
MESSAGE_LENGTH_MAX = 800
DETAILS_BYTES_MAX = 3000

Context = grpc.aio.ServicerContext[Any, Any]


class StreamLimitError(UseCaseError):
    """Too many streams, or a consumer that cannot keep up."""

    code = "RESOURCE_EXHAUSTED"


class StoppingError(UseCaseError):
    """This server is going away; another, or the next one, will answer."""

    code = "UNAVAILABLE"


class RateLimitError(UseCaseError):
    """More calls, or more at once, than one caller may make."""

    code = "RESOURCE_EXHAUSTED"

    def __init__(self, reason: str, message: str, retry_s: float) -> None:
        super().__init__(reason, message)
        self.retry_s = retry_s


class DeadlineError(UseCaseError):
    """It took longer than any call may take."""

    code = "DEADLINE_EXCEEDED"


def status_of(error: Exception) -> status_pb2.Status:
    """Return the status of any exception; log what nobody expected, under a reference."""
    if isinstance(error, InvalidError):
        return _status(error.code, str(error), error.reason, {}, _bad_request(error))
    if isinstance(error, RateLimitError):
        again = error_details_pb2.RetryInfo()
        again.retry_delay.FromMilliseconds(max(1, math.ceil(error.retry_s * 1000)))
        return _status(error.code, str(error), error.reason, {}, again)
    if isinstance(error, UseCaseError):
        return _status(error.code, str(error), error.reason, error.metadata)
    if isinstance(error, PortError):
        return _port_status(error)
    reference = uuid.uuid4().hex
    log.error("unexpected failure, reference %s", reference, exc_info=error)
    return _status(
        "INTERNAL",
        f"an unexpected failure; the server's log has it under reference {reference}",
        "INTERNAL",
        {"reference": reference},
    )


def _port_status(error: PortError) -> status_pb2.Status:
    if isinstance(error, UnavailableError):
        log.warning("a dependency is away: %s", error)
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(1000)
        message = "storage or cache is away; nothing was changed, try again shortly"
        return _status("UNAVAILABLE", message, "DEPENDENCY_UNAVAILABLE", {}, retry)
    if isinstance(error, ConflictError):
        return _status(
            "ABORTED", "changed by somebody else meanwhile; read it again and retry", "CONFLICT", {}
        )
    if isinstance(error, NotFoundError):
        return _status("NOT_FOUND", "no such resource; list what there is", "RESOURCE_NOT_FOUND", {})
    log.warning("not ready: %s", error)
    return _status("UNAVAILABLE", "the server is not ready; see its log", "NOT_READY", {})


def _bad_request(error: InvalidError) -> error_details_pb2.BadRequest:
    details = error_details_pb2.BadRequest()
    for violation in error.violations:
        details.field_violations.add(field=violation.field, description=violation.description)
        if details.ByteSize() > DETAILS_BYTES_MAX:
            del details.field_violations[-1]
            break
    return details


def _status(
    code: str, message: str, reason: str, metadata: Mapping[str, str], *more: Message
) -> status_pb2.Status:
    if len(message) > MESSAGE_LENGTH_MAX:
        message = message[: MESSAGE_LENGTH_MAX - 1] + "…"
    info = error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=dict(metadata))
    packed: list[AnyMessage] = []
    for detail in (info, *more):
        packed.append(AnyMessage())
        packed[-1].Pack(detail)
    return status_pb2.Status(code=code_pb2.Code.Value(code), message=message, details=packed)


async def abort(context: Context, error: Exception) -> None:
    """End the call with the status of ``error``; does not return."""
    status = rpc_status.to_status(status_of(error))
    try:
        await context.abort(status.code, status.details, status.trailing_metadata or ())
    except grpc.aio.InternalError:  # the caller is gone, so that nobody hears it; once is enough all the same
        raise grpc.aio.AbortError from None


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Around every method of our own: parse, bound the time, and translate what is raised."""

    def __init__(self, limits: ApiLimits) -> None:
        self._limits = limits

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:  # noqa: ANN401 -- gRPC's handlers are untyped
        """Wrap the method's handler; other services (health, reflection) stay as they are."""
        handler = await continuation(handler_call_details)
        method: Any = handler_call_details.method  # str at run time; the stubs leave it open
        if handler is None or not method.startswith(OWN_SERVICES):
            return handler
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._stream(handler), response_serializer=handler.response_serializer
            )
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._stream(handler), response_serializer=handler.response_serializer
            )
        long = method.endswith(("/PreviewEvent", "/Simulate", "/ImportEvents"))
        limit_s = self._limits.preview_deadline_s if long else self._limits.unary_deadline_s
        return grpc.unary_unary_rpc_method_handler(
            self._unary(handler, limit_s), response_serializer=_serializer(handler.response_serializer)
        )

    def _unary(self, handler: Any, limit_s: float) -> Any:  # noqa: ANN401 -- gRPC's handlers are untyped
        async def call(data: bytes, context: Context) -> object:
            try:
                async with asyncio.timeout(limit_s):
                    return await handler.unary_unary(_parse(handler, data), context)
            except grpc.aio.AbortError:
                raise
            except TimeoutError:
                message = f"took longer than {limit_s:g} s, the most a call may take; ask for less"
                await abort(context, DeadlineError("DEADLINE_EXCEEDED", message))
            except Exception as error:  # noqa: BLE001 -- the edge: everything must become a status
                await abort(context, error)
            return None

        return call

    def _stream(self, handler: Any) -> Any:  # noqa: ANN401 -- as above
        async def call(given: Any, context: Context) -> AsyncIterator[object]:  # noqa: ANN401 -- bytes, or many
            try:
                # Closing at once, not at the next collection: the watcher's place is free again.
                async with aclosing(_open(handler, given, context)) as messages:
                    async for message in messages:
                        yield message
            except grpc.aio.AbortError:
                raise
            except Exception as error:  # noqa: BLE001 -- as above
                await abort(context, error)

        return call


def _serializer(serialize: Any) -> Any:  # noqa: ANN401 -- as above
    """Let a handler return a message that it keeps in serialized form."""
    return lambda message: message if isinstance(message, bytes) else serialize(message)


class _MalformedError(UseCaseError):
    code = "INVALID_ARGUMENT"


def _open(handler: Any, given: Any, context: Context) -> Any:  # noqa: ANN401 -- as above
    if handler.request_streaming:
        return _exchange(handler, given, context)
    return handler.unary_stream(_parse(handler, given), context)


async def _exchange(handler: Any, given: Any, context: Context) -> AsyncIterator[object]:  # noqa: ANN401 -- as above
    # What reads the sender's messages is closed too: gRPC would leave it to the garbage collector.
    async with (
        aclosing(aiter(given)) as received,
        aclosing(_parse(handler, data) async for data in received) as requests,
        aclosing(handler.stream_stream(requests, context)) as messages,
    ):
        async for message in messages:
            yield message


def _parse(handler: Any, data: bytes) -> object:  # noqa: ANN401 -- as above
    try:
        return handler.request_deserializer(data)
    except DecodeError as error:
        message = "the request is not a message of this method; use code generated from forecrest.v1"
        raise _MalformedError("MALFORMED_MESSAGE", message) from error
