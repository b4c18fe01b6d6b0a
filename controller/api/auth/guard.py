"""Around every call of every service: who is it, may they, how often, and what came of it.

Promises: nothing of a request is parsed before its caller is known; a method without a rule is refused as soon as
callers are told apart; a stream ends when its caller's proof does; every mutation that is not in the audit log
already is noted there, refused ones too; no exception leaves as anything but a status. Called by gRPC.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
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
        kind = (handler.request_streaming, handler.response_streaming)
        make, inner = {
            (False, False): (grpc.unary_unary_rpc_method_handler, handler.unary_unary),
            (False, True): (grpc.unary_stream_rpc_method_handler, handler.unary_stream),
            (True, False): (grpc.stream_unary_rpc_method_handler, handler.stream_unary),
            (True, True): (grpc.stream_stream_rpc_method_handler, handler.stream_stream),
        }[kind]
        wrap = self._streaming if handler.response_streaming else self._answering
        return make(
            wrap(inner, method, request_streaming=handler.request_streaming),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _answering(self, inner: Any, method: str, *, request_streaming: bool) -> Any:  # noqa: ANN401 -- as above
        async def call(request: object, context: Context) -> object:
            made = self._made(method, request, streaming=request_streaming, readable=not request_streaming)
            async with self._guarded(made, context):
                return await inner(request, context)

        return call

    def _streaming(self, inner: Any, method: str, *, request_streaming: bool) -> Any:  # noqa: ANN401 -- as above
        async def call(request: object, context: Context) -> AsyncIterator[object]:
            made = self._made(method, request, streaming=True, readable=not request_streaming)
            async with self._guarded(made, context):
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

    @asynccontextmanager
    async def _guarded(self, call: _Call, context: Context) -> AsyncGenerator[None]:
        started_s = self._pace.monotonic()
        outcome = "CANCELLED"
        try:
            async with AsyncExitStack() as stack:
                await self._admit(call, context, stack)
                yield
            outcome = "OK"
        except grpc.aio.AbortError:
            outcome = _code_name(context)
            raise
        except GeneratorExit:  # the client went away
            raise
        except Exception as error:  # noqa: BLE001 -- the edge: everything must become a status
            try:
                await abort(context, error)
            finally:
                outcome = _code_name(context)
        finally:
            self._observe(call.method, outcome, self._pace.monotonic() - started_s)
            self._note(call, outcome)

    async def _admit(self, call: _Call, context: Context, stack: AsyncExitStack) -> None:
        """Find out who calls and hold a place for them; raise what refuses them."""
        rule = call.rule
        if not self._authenticator.enabled:
            call.who = Caller()
        elif rule is not None and rule.access is Access.PUBLIC:
            self._take(self._rates, f"address/{_address(context)}")
        else:
            await self._identify(call, context, stack)
        call.admitted = True
        enter(call.who)

    async def _identify(self, call: _Call, context: Context, stack: AsyncExitStack) -> None:
        authorization = [
            value if isinstance(value, str) else value.decode(errors="replace")
            for key, value in context.invocation_metadata() or ()
            if key == "authorization"
        ]
        names = certificate_names(context.auth_context())
        try:
            identity = await self._authenticator.identify(authorization, names)
        except UnauthenticatedError:
            self._take(self._refusals, _address(context))
            raise
        call.who.principal = identity.principal
        self._take(self._rates, identity.principal)
        access = _require_role(call, identity)
        call.who.namespaces = namespaces_of(identity.grants, access)
        stack.enter_context(self._place(identity.principal, streaming=call.streaming))
        if call.streaming:
            scope = await stack.enter_async_context(_until(identity, self._trail))
            stream = _Stream(authorization, names, call.who.namespaces, access, scope)
            self._streams.add(stream)
            stack.callback(self._streams.discard, stream)

    def _take(self, buckets: Buckets, key: str) -> None:
        wait_s = buckets.take(key, self._pace.monotonic())
        if wait_s:
            raise RateLimitError(
                "RATE_LIMITED",
                f"more than {self._limits.rate_per_caller_qps:g} calls a second; try again in {wait_s:.3g} s",
                wait_s,
            )

    def _place(self, principal: str, *, streaming: bool) -> "_Place":
        limit = self._limits.streams_per_caller_max if streaming else self._limits.calls_per_caller_max
        key = (principal, streaming)
        if self._running[key] >= limit:
            what = "streams" if streaming else "calls"
            raise RateLimitError(
                "TOO_MANY_STREAMS" if streaming else "TOO_MANY_CALLS",
                f"{limit} of your {what} are open, the most one caller may have; end some",
                1.0,
            )
        return _Place(self._running, key)

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


class _Place:
    """A caller's place among their running calls, for the time of a block."""

    def __init__(self, running: Counter[tuple[str, bool]], key: tuple[str, bool]) -> None:
        self._running, self._key = running, key

    def __enter__(self) -> None:
        self._running[self._key] += 1

    def __exit__(self, *_: object) -> None:
        self._running[self._key] -= 1
        if not self._running[self._key]:
            del self._running[self._key]


@asynccontextmanager
async def _until(identity: Identity, trail: AuditTrail) -> AsyncGenerator[asyncio.Timeout]:
    """A scope that ends when the caller's proof does, or when it is rescheduled to now."""
    left_s = None if identity.expires_at is None else (identity.expires_at - trail.now()).total_seconds()
    scope = asyncio.timeout(left_s)
    try:
        async with scope:
            yield scope
    except TimeoutError:
        if not scope.expired():
            raise
        raise UnauthenticatedError(
            "the credentials of this stream ended; open it again with valid ones"
        ) from None


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
