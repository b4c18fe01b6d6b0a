"""Read the API once for all who look, keep it fresh while somebody does, and say how old it is.

Promises: one refresh per topic at a time and per period, whatever the number of viewers; nothing is read while nobody
looks; an API that does not answer leaves the last values in place, with the time they are of and the time since when
it is lost; a refusal is raised, never shown as an absence. Refuses more topics or streams than its limits. Called by
the pages; callers with different rights have feeds of their own.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar

import grpc
from aiohttp import web
from google.protobuf.message import Message

from controller.client import Client, explain
from controller.ports import Clock

log = logging.getLogger(__name__)

# One read of the API; its own retries count in. A console that waits longer shows nothing for too long.
READ_TIMEOUT_S = 8.0
HEARTBEAT_S = 10.0
# Between two refreshes of what is still incomplete.
HURRY_S = 0.2
# Topics kept per feed after nobody looks at them any more.
TOPICS_MAX = 400
TOPICS_PER_STREAM_MAX = 8
STREAMS_MAX = 500
# Codes that say nothing of the question: the API is away, slow or busy.
LOST = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.CANCELLED,
    }
)


class Snapshot(Protocol):
    """What a source yields: comparable, and says whether the API itself answered from memory."""

    @property
    def stale_since(self) -> datetime | None:
        """Since when the API's own answer may be out of date; None: it is not."""
        ...


T = TypeVar("T", bound=Snapshot)


@dataclass(frozen=True, slots=True)
class Source(Generic[T]):
    """Something to read. Its topic is ``name``, or ``name:argument``.

    ``load(client, argument, previous, now)`` asks the API with bounded concurrency and returns a snapshot; ``previous``
    is what it returned last, for parts that need not be read every time.
    """

    name: str
    period_s: float
    load: Callable[[Client, str, T | None, datetime], Awaitable[T]]
    # Whether a snapshot lacks what the next refresh brings: then it comes at once.
    incomplete: Callable[[T], bool] | None = None

    def topic(self, argument: str = "") -> str:
        """Return the name under which pages subscribe to it."""
        return f"{self.name}:{argument}" if argument else self.name


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """What is known of a topic. ``value`` is None until the API answered once."""

    value: T | None = None
    at: datetime | None = None  # when `value` was read
    lost_at: datetime | None = None  # since when the API does not answer; None: it does
    rev: int = 0  # grows when `value` or `lost_at` changes

    @property
    def stale_since(self) -> datetime | None:
        """Since when the values may be out of date, by the API's own word."""
        return None if self.value is None else self.value.stale_since


@dataclass(slots=True)
class _Topic:
    source: Source[Any]
    argument: str
    # Not `Reading[Any]`: a subscripted class cannot make instances that are frozen and have slots.
    reading: Reading[Any] = field(default_factory=Reading)
    asked_s: float | None = None  # monotonic time of the end of the last try
    refusal: grpc.aio.AioRpcError | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    watchers: set[asyncio.Event] = field(default_factory=set[asyncio.Event])
    task: asyncio.Task[None] | None = None


class Feed:
    """What callers with the same rights see of one API."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self.client, self._clock = client, clock
        self._topics: dict[str, _Topic] = {}
        self.closed = False

    async def read(self, source: Source[T], argument: str = "") -> Reading[T]:
        """Return what is known, read anew if it is older than the source's period.

        Raises:
            AioRpcError: the API refused.
        """
        topic = self._topic(source, argument)
        if topic.task is None or topic.asked_s is None:
            await self._refresh(topic, older_than_s=source.period_s)
        if topic.refusal is not None:
            raise topic.refusal
        reading: Reading[T] = topic.reading
        return reading

    def forget(self, *names: str) -> None:
        """Read sources of these names anew at the next look: something was changed."""
        for topic in self._topics.values():
            if topic.source.name in names:
                topic.asked_s = None

    @asynccontextmanager
    async def watched(
        self, asked: Collection[tuple[Source[Any], str]]
    ) -> AsyncGenerator[tuple[Mapping[str, _Topic], asyncio.Event]]:
        """Keep topics fresh for the time of the block; the event is set when one was read."""
        woken = asyncio.Event()
        topics = {source.topic(argument): self._topic(source, argument) for source, argument in asked}
        for topic in topics.values():
            topic.watchers.add(woken)
            if topic.task is None:
                topic.task = asyncio.create_task(self._follow(topic), name=f"console {topic.source.name}")
        try:
            yield topics, woken
        finally:
            for topic in topics.values():
                topic.watchers.discard(woken)
                if not topic.watchers and topic.task is not None:
                    topic.task.cancel()
                    topic.task = None

    async def close(self) -> None:
        """End what is under way, wake who watches, and close the channel."""
        self.closed = True
        for woken in {woken for topic in self._topics.values() for woken in topic.watchers}:
            woken.set()
        tasks = [topic.task for topic in self._topics.values() if topic.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.client.close()

    def _topic(self, source: Source[Any], argument: str) -> _Topic:
        name = source.topic(argument)
        topic = self._topics.pop(name, None) or _Topic(source, argument)
        self._topics[name] = topic  # the one used last stands last
        for other in list(self._topics):
            if len(self._topics) <= TOPICS_MAX:
                break
            if other != name and not self._topics[other].watchers:
                del self._topics[other]
        return topic

    async def _follow(self, topic: _Topic) -> None:
        while True:
            try:
                await self._refresh(topic, older_than_s=HURRY_S)
            except Exception:  # a bug in one page must not end the refresh of all who look at it
                log.exception("the console could not read %s", topic.source.name)
                self._lose(topic)
            value, incomplete = topic.reading.value, topic.source.incomplete
            hurry = (
                incomplete is not None
                and topic.reading.lost_at is None
                and value is not None
                and incomplete(value)
            )
            await self._clock.sleep(HURRY_S if hurry else topic.source.period_s)

    async def _refresh(self, topic: _Topic, *, older_than_s: float) -> None:
        async with topic.lock:
            if topic.asked_s is not None and self._clock.monotonic() - topic.asked_s < older_than_s:
                return
            now = self._clock.now()
            try:
                value = await topic.source.load(self.client, topic.argument, topic.reading.value, now)
            except grpc.aio.AioRpcError as error:
                if error.code() in LOST:
                    log.debug("the API does not answer: %s", explain(error).message)
                    self._lose(topic)
                else:
                    topic.refusal = error
            else:
                topic.refusal = None
                known = topic.reading
                changed = known.value is None or known.lost_at is not None or known.value != value
                topic.reading = Reading(value, now, None, known.rev + changed)
            topic.asked_s = self._clock.monotonic()
        for woken in topic.watchers:
            woken.set()

    def _lose(self, topic: _Topic) -> None:
        known = topic.reading
        if known.lost_at is None:
            topic.reading = Reading(known.value, known.at, self._clock.now(), known.rev + 1)
        topic.refusal = None


async def gathered(*calls: Awaitable[Any], limit: int = 8) -> list[Any]:
    """Await all, at most ``limit`` at a time; the first failure cancels the rest and is raised."""
    places = asyncio.Semaphore(limit)

    async def one(call: Awaitable[Any]) -> Any:  # noqa: ANN401 -- whatever the call returns
        async with places:
            return await call

    tasks = [asyncio.ensure_future(one(call)) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for call in calls:
            if isinstance(call, Coroutine):
                call.close()  # those whose turn never came


def instant(message: Message, name: str) -> datetime | None:
    """Return a Timestamp field as an aware UTC datetime; None: absent."""
    if not message.HasField(name):
        return None
    stamp: datetime = getattr(message, name).ToDatetime(tzinfo=UTC)
    return stamp


def iso(at: datetime | None) -> str | None:
    """Format an instant for scripts."""
    return None if at is None else at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Live:
    """The one endpoint of server-sent events: ``/live?topic=fleet&topic=workload:rec``."""

    def __init__(self, sources: Mapping[str, Source[Any]], clock: Clock) -> None:
        self._sources, self._clock = sources, clock
        self._open = 0
        self._ending = asyncio.Event()

    def end(self) -> None:
        """End every stream: the process stops."""
        self._ending.set()

    async def answer(self, request: web.Request, feed: Feed) -> web.StreamResponse:
        """Stream ``topic`` messages as topics are read, ``beat`` in between, ``refused`` when the API refuses."""
        asked = self._asked(request)
        if self._open >= STREAMS_MAX:
            raise web.HTTPServiceUnavailable(text="too many open pages; close some\n")
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        self._open += 1
        try:
            async with feed.watched(asked) as (topics, woken):
                await response.prepare(request)
                with suppress(ConnectionError):
                    await self._stream(response, feed, topics, woken)
        finally:
            self._open -= 1
        return response

    async def _stream(
        self, response: web.StreamResponse, feed: Feed, topics: Mapping[str, _Topic], woken: asyncio.Event
    ) -> None:
        sent: dict[str, tuple[int, datetime | None, bool]] = {}
        ending = asyncio.create_task(self._ending.wait())
        try:
            # A feed is closed with the last session of its token: what it read must not go on as if it were fresh.
            while not (self._ending.is_set() or feed.closed):
                woken.clear()
                await response.write(self._message("beat", {}))
                for name, topic in topics.items():
                    reading = topic.reading
                    state = (reading.rev, reading.at, topic.refusal is not None)
                    if topic.asked_s is None or sent.get(name) == state:
                        continue
                    sent[name] = state
                    if topic.refusal is not None:
                        # Whoever may not read has no use for a stream, and takes a place.
                        await response.write(self._message("refused", {"topic": name}))
                        return
                    await response.write(self._message("topic", _said(name, reading)))
                wake = asyncio.create_task(woken.wait())
                await asyncio.wait({wake, ending}, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
                wake.cancel()
        finally:
            ending.cancel()

    def _asked(self, request: web.Request) -> list[tuple[Source[Any], str]]:
        names = request.query.getall("topic", [])
        if not 1 <= len(names) <= TOPICS_PER_STREAM_MAX:
            raise web.HTTPBadRequest(text=f"topic: give 1 to {TOPICS_PER_STREAM_MAX}\n")
        found: list[tuple[Source[Any], str]] = []
        for name in names:
            kind, _, argument = name.partition(":")
            if kind not in self._sources or len(argument) > 200:
                raise web.HTTPBadRequest(text=f"topic: there is no {name[:100]!r}\n")
            found.append((self._sources[kind], argument))
        return found

    def _message(self, event: str, data: dict[str, Any]) -> bytes:
        body = json.dumps(data | {"now": iso(self._clock.now())}, separators=(",", ":"))
        return f"event: {event}\ndata: {body}\n\n".encode()


def _said(name: str, reading: Reading[Any]) -> dict[str, Any]:
    return {
        "topic": name,
        "rev": reading.rev,
        "at": iso(reading.at),
        "lost_at": iso(reading.lost_at),
        "stale_since": iso(reading.stale_since),
    }
