"""Answer reads from what was last answered while the database is away, and say that it is old.

Promises: the same question, by a caller who may see the same, gets the answer it got last, with ``stale_since_time``
set where the message has it, and the same time in the trailer ``forecrest-stale-since``; nothing is made up, and a
question nobody asked before fails as it would. Mutations always fail: nothing is acknowledged that is not stored.
Memory is bounded by count, size and age. Called by the server, innermost: callers are known and checked before.
"""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import grpc
from google.protobuf.message import Message

from controller.api.auth.roles import RULES, Access
from controller.api.calls import ApiDependencies
from controller.ports import UnavailableError
from controller.usecases.caller import caller

log = logging.getLogger(__name__)

TRAILER = "forecrest-stale-since"
FIELD = "stale_since_time"
ANSWERS_MAX = 4096
ANSWER_BYTES_MAX = 1024 * 1024
BYTES_MAX = 64 * 1024 * 1024
AGE_MAX = timedelta(days=1)

# Method, who sees what, question.
Key = tuple[str, str, frozenset[str] | None, bytes]


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered, and when it was true. Messages are never changed after they were sent."""

    message: Message
    size: int
    at: datetime


def is_kept(method: str) -> bool:
    """Whether answers of a method are kept: reads of our own services. KEDA must not be told old numbers as new ones."""
    rule = RULES.get(method)
    return method.startswith("/forecrest.") and rule is not None and rule.access is Access.READ


class Answers:
    """The newest answers; beyond the bounds those that were asked for longest ago go."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, Answer] = OrderedDict()
        self.size = 0

    def keep(self, key: Key, message: Message, at: datetime) -> None:
        """Remember an answer, unless it is larger than any answer may be."""
        self._drop(key)
        size = message.ByteSize() + len(key[3])
        if size > ANSWER_BYTES_MAX:
            return
        self._kept[key] = Answer(message, size, at)
        self.size += size
        while len(self._kept) > ANSWERS_MAX or self.size > BYTES_MAX:
            self._drop(next(iter(self._kept)))

    def find(self, key: Key, now: datetime) -> Answer | None:
        """Return the answer, unless it is too old to be of use."""
        found = self._kept.get(key)
        return found if found is not None and now - found.at <= AGE_MAX else None

    def _drop(self, key: Key) -> None:
        dropped = self._kept.pop(key, None)
        if dropped is not None:
            self.size -= dropped.size


class StaleInterceptor(grpc.aio.ServerInterceptor):
    """Around every read of one message: remember what it answered, and answer with it during an outage."""

    def __init__(self, deps: ApiDependencies) -> None:
        self._clock, self._answers = deps.clock, Answers()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:  # noqa: ANN401 -- gRPC's handlers are untyped
        """Wrap reads; everything else stays as it is."""
        handler = await continuation(handler_call_details)
        method: Any = handler_call_details.method  # str at run time; the stubs leave it open
        if handler is None or handler.unary_unary is None or not is_kept(method):
            return handler
        return grpc.unary_unary_rpc_method_handler(
            self._read(method, handler.unary_unary),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _read(self, method: str, answer: Any) -> Any:  # noqa: ANN401 -- as above
        async def call(request: Message, context: grpc.aio.ServicerContext[Any, Any]) -> object:
            who = caller()
            key = (method, who.principal, who.namespaces, request.SerializeToString(deterministic=True))
            try:
                response = await answer(request, context)
            except UnavailableError:
                kept = self._answers.find(key, self._clock.now())
                if kept is None:
                    raise
                log.warning("the store is away: %s is answered as of %s", method, kept.at)
                context.set_trailing_metadata(((TRAILER, f"{kept.at:%Y-%m-%dT%H:%M:%SZ}"),))
                return _marked(kept)
            # Bytes are an answer that its method keeps itself, and marks itself.
            if isinstance(response, Message):
                self._answers.keep(key, response, self._clock.now())
            return response

        return call


def _marked(kept: Answer) -> Message:
    if FIELD not in kept.message.DESCRIPTOR.fields_by_name:
        return kept.message
    marked = type(kept.message)()
    marked.CopyFrom(kept.message)
    getattr(marked, FIELD).FromDatetime(kept.at)
    return marked
