"""Around every call of every service: who is it, may they, how often, and what came of it.

Promises: nothing of a request is parsed before its caller is known; a method without a rule is refused as soon as
callers are told apart; a stream ends when its caller's proof does; every mutation that is not in the audit log
already is noted there, refused ones too; no exception leaves as anything but a status. Called by gRPC.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import grpc
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from controller.api.auth.audit import AuditTrail
from controller.api.auth.identity import Authenticator, Identity, UnauthenticatedError, certificate_names
from controller.api.auth.rate import Buckets
from controller.api.auth.roles import RULES, Access, Rule, namespaces_of
from controller.api.errors import Context, RateLimitError, abort
from controller.api.limits import ApiLimits
from controller.ports import Clock
from controller.usecases.caller import Caller, ForbiddenError, enter

log = logging.getLogger(__name__)

Observe = Callable[[str, str, float], None]
ANONYMOUS = "anonymous"
RESOURCE_LENGTH_MAX = 300
# Refused credentials of one address: above this, the answer does not even say that they were wrong.
REFUSALS_QPS, REFUSALS_BURST = 10.0, 50.0


def _unobserved(method: str, code: str, seconds: float) -> None:
    del method, code, seconds


@dataclass(slots=True)
class _Call:
    """One call on its way."""

    method: str
    rule: Rule | None
    streaming: bool
    request: object  # bytes or a message; None for request streams
    admitted: bool = False
    placed: tuple[str, bool] | None = None
    stream: "_Stream | None" = None
    who: Caller = field(default_factory=lambda: Caller(ANONYMOUS, frozenset()))


@dataclass(slots=True, eq=False)
class _Stream:
    """An open stream, to be ended when its caller's proof ends."""

    authorization: list[str]
    names: list[str]
    namespaces: frozenset[str] | None
    access: Access
    scope: asyncio.Timeout


class Guard(grpc.aio.ServerInterceptor):
    """The outermost interceptor."""

    def __init__(
        self,
        authenticator: Authenticator,
        limits: ApiLimits,
        trail: AuditTrail,
        pace: Clock,
        observe: Observe | None = None,
    ) -> None:
        self._authenticator, self._limits, self._trail = authenticator, limits, trail
        self._pace, self._observe = pace, observe or _unobserved
        self._rates = Buckets(limits.rate_per_caller_qps, limits.rate_per_caller_burst)
        self._refusals = Buckets(REFUSALS_QPS, REFUSALS_BURST)
        self._running: Counter[tuple[str, bool]] = Counter()
        self._streams: set[_Stream] = set()

    # ------------------------------------------------------------ wrapping

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:  # noqa: ANN401 -- gRPC's handlers are untyped
        """Wrap the method's handler, whatever its kind."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method: Any = handler_call_details.method  # str at run time; the stubs leave it open
        streams_in, streams_out = handler.request_streaming, handler.response_streaming
        inner: Any
        if streams_out:
            inner = handler.stream_stream if streams_in else handler.unary_stream
            make = (
                grpc.stream_stream_rpc_method_handler if streams_in else grpc.unary_stream_rpc_method_handler
            )
            wrapped = self._streaming(inner, method, request_streaming=streams_in)
        else:
            inner = handler.stream_unary if streams_in else handler.unary_unary
            make = grpc.stream_unary_rpc_method_handler if streams_in else grpc.unary_unary_rpc_method_handler
            wrapped = self._answering(inner, method, request_streaming=streams_in)
        return make(
            wrapped,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _answering(self, inner: Any, method: str, *, request_streaming: bool) -> Any:  # noqa: ANN401 -- as above
        async def call(request: object, context: Context) -> object:
            made = self._made(method, request, streaming=request_streaming, readable=not request_streaming)
            async with _Guarded(self, made, context):
                return await inner(request, context)

        return call

    def _streaming(self, inner: Any, method: str, *, request_streaming: bool) -> Any:  # noqa: ANN401 -- as above
        async def call(request: object, context: Context) -> AsyncIterator[object]:
            made = self._made(method, request, streaming=True, readable=not request_streaming)
            async with _Guarded(self, made, context):
                answers = inner(request, context)
                if not hasattr(answers, "__aiter__"):
                    await answers  # it writes through the context
                    return
                # Closing at once, not at the next collection: the watcher's place is free again.
                async with aclosing(answers) as messages:
                    async for message in messages:
                        yield message

        return call

    @staticmethod
    def _made(method: str, request: object, *, streaming: bool, readable: bool) -> _Call:
        return _Call(method, RULES.get(method), streaming, request if readable else None)

    # ------------------------------------------------------------ guarding

    async def admit(self, call: _Call, context: Context) -> None:
        """Find out who calls and hold a place for them; raise what refuses them."""
        rule = call.rule
        if not self._authenticator.enabled:
            call.who = Caller()
        elif rule is not None and rule.access is Access.PUBLIC:
            self._take(self._rates, f"address/{_address(context)}")
        else:
            await self._identify(call, context)
        call.admitted = True
        enter(call.who)

    async def _identify(self, call: _Call, context: Context) -> None:
        authorization = [
            value if isinstance(value, str) else value.decode(errors="replace")
            for key, value in context.invocation_metadata() or ()
            if key == "authorization"
        ]
        names = [] if authorization else certificate_names(context.auth_context())
        try:
            identity = await self._authenticator.identify(authorization, names)
        except UnauthenticatedError:
            self._take(self._refusals, _address(context))
            raise
        call.who.principal = identity.principal
        call.who.grants = tuple((grant.role, grant.namespace) for grant in identity.grants)
        self._take(self._rates, identity.principal)
        access = _require_role(call, identity)
        call.who.namespaces = namespaces_of(identity.grants, access)
        self._hold_place(call)
        if call.streaming:
            call.stream = await self._opened(call, identity, access, authorization, names)

    async def _opened(
        self, call: _Call, identity: Identity, access: Access, authorization: list[str], names: list[str]
    ) -> _Stream:
        left_s = None
        if identity.expires_at is not None:
            left_s = (identity.expires_at - self._trail.now()).total_seconds()
        scope = asyncio.timeout(left_s)
        await scope.__aenter__()  # left together with the call
        stream = _Stream(authorization, names, call.who.namespaces, access, scope)
        self._streams.add(stream)
        return stream

    def leave(self, call: _Call, outcome: str, seconds: float) -> None:
        """Give the place back, count the call, and note it if it was to change something."""
        if call.placed is not None:
            self._running[call.placed] -= 1
            if not self._running[call.placed]:
                del self._running[call.placed]
        if call.stream is not None:
            self._streams.discard(call.stream)
        self._observe(call.method, outcome, seconds)
        self._note(call, outcome)

    def now_s(self) -> float:
        """The machine's time, for durations."""
        return self._pace.monotonic()

    def _take(self, buckets: Buckets, key: str) -> None:
        wait_s = buckets.take(key, self._pace.monotonic())
        if wait_s:
            raise RateLimitError(
                "RATE_LIMITED",
                f"more than {self._limits.rate_per_caller_qps:g} calls a second; try again in {wait_s:.3g} s",
                wait_s,
            )

    def _hold_place(self, call: _Call) -> None:
        limit = self._limits.streams_per_caller_max if call.streaming else self._limits.calls_per_caller_max
        key = (call.who.principal, call.streaming)
        if self._running[key] >= limit:
            what = "streams" if call.streaming else "calls"
            raise RateLimitError(
                "TOO_MANY_STREAMS" if call.streaming else "TOO_MANY_CALLS",
                f"{limit} of your {what} are open, the most one caller may have; end some",
                1.0,
            )
        self._running[key] += 1
        call.placed = key

    async def recheck(self) -> None:
        """End the streams of callers who may no longer have them. Called after who may do what has changed."""
        for stream in list(self._streams):
            try:
                identity = await self._authenticator.identify(stream.authorization, stream.names)
                valid = namespaces_of(identity.grants, stream.access) == stream.namespaces
            except UnauthenticatedError:
                valid = False
            if not valid:
                stream.scope.reschedule(asyncio.get_running_loop().time())

    # ------------------------------------------------------------ the trail

    def _note(self, call: _Call, outcome: str) -> None:
        rule = call.rule
        if rule is None or not rule.mutates or call.who.audited:
            return
        # What somebody without a name sent is not even parsed.
        known = call.who.principal != ANONYMOUS
        resource, request_id, validate_only = _described(call) if known else ("", "", False)
        if validate_only and call.admitted:
            return
        bulk = rule.access is Access.RECORD and outcome == "OK"
        method = call.method.rpartition("/")[2]
        self._trail.note(call.who.principal, method, resource, outcome, request_id, bulk=bulk)


class _Guarded:
    """One call from its admission to its end, whatever ends it."""

    __slots__ = ("_call", "_context", "_guard", "_started_s")

    def __init__(self, guard: Guard, call: _Call, context: Context) -> None:
        self._guard, self._call, self._context = guard, call, context
        self._started_s = guard.now_s()

    async def __aenter__(self) -> None:
        try:
            await self._guard.admit(self._call, self._context)
        except BaseException as error:
            await self._end(error)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        stream = self._call.stream
        if stream is not None:
            try:
                await stream.scope.__aexit__(kind, error, tb)
            except TimeoutError:
                message = "the credentials of this stream ended; open it again with valid ones"
                error = UnauthenticatedError(message)
        await self._end(error)

    async def _end(self, error: BaseException | None) -> None:
        """Turn what was raised into a status, and account for the call; raise what ends it."""
        outcome = "OK" if error is None else "CANCELLED"
        try:
            if isinstance(error, grpc.aio.AbortError):
                outcome = _code_name(self._context)
            elif isinstance(error, Exception):
                try:
                    await abort(self._context, error)
                finally:
                    outcome = _code_name(self._context)
        finally:
            self._guard.leave(self._call, outcome, self._guard.now_s() - self._started_s)


def _require_role(call: _Call, identity: Identity) -> Access:
    name = call.method.rpartition("/")[2]
    have = ", ".join(map(str, identity.grants[:10])) or "none"
    if call.rule is None:
        raise ForbiddenError("METHOD_FORBIDDEN", f"{name} has no rule that says who may call it")
    if namespaces_of(identity.grants, call.rule.access) == frozenset():
        raise ForbiddenError(
            "ROLE_FORBIDDEN",
            f"{name} needs a grant that may {call.rule.access}; yours: {have}. Ask for one",
            {"method": name, "access": call.rule.access},
        )
    return call.rule.access


def _address(context: Context) -> str:
    """The peer's address without its port."""
    return str(context.peer()).rpartition(":")[0]


def _code_name(context: Context) -> str:
    code: Any = context.code()
    if isinstance(code, grpc.StatusCode):
        return code.name
    names = {status.value[0]: status.name for status in grpc.StatusCode}
    return names.get(code, "UNKNOWN")


def _described(call: _Call) -> tuple[str, str, bool]:
    """What a request is about: resource, request id, and whether it only wanted to be checked."""
    message = call.request
    if isinstance(message, bytes):
        try:
            service, _, name = call.method.removeprefix("/").partition("/")
            method: Any = descriptor_pool.Default().FindMethodByName(f"{service}.{name}")
            message = message_factory.GetMessageClass(method.input_type).FromString(message)
        except (KeyError, DecodeError):
            return "", "", False
    if not isinstance(message, Message):
        return "", "", False
    request_id = _text(message, "request_id")
    return _resource(message), request_id[:128], bool(getattr(message, "validate_only", False))


def _resource(message: Message) -> str:
    for path in ("name", "event.name", "workload.name", "parent", "workload", "engine.name"):
        found: Any = message
        for part in path.split("."):
            found = getattr(found, part, None)
        if isinstance(found, str) and found:
            return _printable(found)
    for field_name, collection in (("event_id", "events"), ("workload_id", "workloads")):
        text = _text(message, field_name)
        if text:
            return f"{collection}/{text}"
    return ""


def _text(message: Message, name: str) -> str:
    value = getattr(message, name, "")
    return _printable(value) if isinstance(value, str) else ""


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:RESOURCE_LENGTH_MAX])
