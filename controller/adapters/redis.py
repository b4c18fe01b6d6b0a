"""The signal cache on Redis or Valkey: what may be lost, kept for as long as it is true.

Promises: a call answers or raises `UnavailableError` within about a second, never hangs; an older
observation never replaces a newer one; many workloads are read in one round trip; a payload that cannot be
read counts as absent and is counted in `corrupt_count`. Watchers reconnect by themselves and may miss what
was published meanwhile. Works with one server or a failover pair, not with a sharded cluster: a read spans
keys. Called by the loop, the telemetry use cases and the watch streams.
"""

import contextlib
import logging
import math
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import MaxConnectionsError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from controller.adapters.codec import RecordError, decode, encode
from controller.adapters.samples import EPOCH
from controller.adapters.signals import (
    PAYLOAD_BYTES_MAX,
    SOURCES_MAX,
    check_backlog,
    check_payloads,
    check_ttl,
)
from controller.core.types import DemandObservation
from controller.ports import Clock, ReplicaCounts, UnavailableError

T = TypeVar("T")
log = logging.getLogger(__name__)

CONNECTION_COUNT_MAX: Final = 16
WATCHER_COUNT_MAX: Final = 256  # each watcher holds a connection of its own
# One round trip stays well inside the timeout, and leaves the server to others in between.
_KEYS_PER_TRIP = 1_000
# A silent connection is asked for a sign of life this often.
_PING_AFTER_S = 15.0
_RECONNECT_MIN_S, _RECONNECT_MAX_S = 0.1, 5.0

# What is put: the newest by the sender's time is kept, and what cannot be read is overwritten. Many keys go in one
# call, and only what is wanted comes back: taking a reply apart costs more than all else.
_PUT_NEWEST = """
for i, key in ipairs(KEYS) do
    local kept = redis.pcall('GET', key)
    local at = type(kept) == 'string' and tonumber(string.match(kept, '^(%-?%d+) '))
    if not at or at <= tonumber(ARGV[2 * i]) then
        redis.call('SET', key, ARGV[2 * i] .. ' ' .. ARGV[2 * i + 1], 'PX', ARGV[1])
    end
end
"""
# Records newer than those that are known: each with the place of its key.
_GET_NEWER = """
local found = {}
for i, key in ipairs(KEYS) do
    local kept = redis.pcall('GET', key)
    if type(kept) == 'string' then
        local at, known = tonumber(string.match(kept, '^(%-?%d+) ')), tonumber(ARGV[i])
        if not at or not known or at > known then found[#found + 1] = {i, kept} end
    end
end
return found
"""
# The server's time, and the entries of every hash that has any; of a key of another type, its place alone.
_GET_BACKLOG = """
local found = {redis.call('TIME')}
for i, key in ipairs(KEYS) do
    local entries = redis.pcall('HVALS', key)
    if entries.err then
        found[#found + 1] = {i}
    elseif #entries > 0 then
        found[#found + 1] = {i, entries}
    end
end
return found
"""
_PUT_BACKLOG = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local at, ttl, limit = tonumber(ARGV[2]), tonumber(ARGV[4]), tonumber(ARGV[5])
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then redis.call('DEL', KEYS[1]) end
local entries = redis.call('HGETALL', KEYS[1])
local others, last = 0, now + ttl
for i = 1, #entries, 2 do
    local kept, ends = string.match(entries[i + 1], '^(%-?%d+) (%d+) ')
    if not ends or tonumber(ends) <= now then
        redis.call('HDEL', KEYS[1], entries[i])
    elseif entries[i] ~= ARGV[1] then
        others = others + 1
        last = math.max(last, tonumber(ends))
    elseif tonumber(kept) > at then
        return 1
    end
end
if others >= limit then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. string.format('%.0f', now + ttl) .. ' ' .. ARGV[3])
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', last - now))
return 1
"""


@contextlib.contextmanager
def _away() -> Generator[None]:
    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        raise UnavailableError(f"the cache is away, try again: {error}") from error


def _micros(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)


def _millis(ttl: timedelta) -> int:
    return -(-ttl // timedelta(milliseconds=1))  # rounded up: Redis refuses 0


class RedisSignalCache:
    """Implements `controller.ports.SignalCache`."""

    def __init__(self, url: str, *, clock: Clock, prefix: str = "forecrest:", timeout_s: float = 0.5) -> None:
        """Connect nothing yet. `clock` only paces the reconnecting of watchers.

        Raises:
            ValueError: `url` is no Redis URL.
        """
        options: dict[str, Any] = {
            "socket_timeout": timeout_s,
            "socket_connect_timeout": timeout_s,
            "retry": Retry(NoBackoff(), 0),  # the caller decides whether a second try is worth the time
        }
        try:
            pool = BlockingConnectionPool.from_url(
                url, max_connections=CONNECTION_COUNT_MAX, timeout=timeout_s, **options
            )
            watcher_pool = ConnectionPool.from_url(url, max_connections=WATCHER_COUNT_MAX, **options)
        except ValueError as error:
            raise ValueError("redis_url: not a Redis URL; write redis://:password@host:6379/0") from error
        self._redis = Redis(connection_pool=pool)
        self._watchers = Redis(connection_pool=watcher_pool)
        self._put_newest = self._redis.register_script(_PUT_NEWEST)
        self._put_backlog = self._redis.register_script(_PUT_BACKLOG)
        self._get_newer = self._redis.register_script(_GET_NEWER)
        self._get_backlog = self._redis.register_script(_GET_BACKLOG)
        self._clock = clock
        self._prefix = prefix
        self.corrupt_count = 0

    def _key(self, kind: str, name: str) -> str:
        return f"{self._prefix}{kind}:{name}"

    async def put_demand(self, workload: str, demand: DemandObservation, ttl: timedelta) -> None:
        """Keep the newest observation."""
        check_ttl(ttl)
        await self.put_demands({workload: demand}, ttl)

    async def put_demands(self, demands: Mapping[str, DemandObservation], ttl: timedelta) -> None:
        """Keep the newest observations, many in a round trip."""
        await self._put("demand", demands, ttl)

    async def put_replicas(self, counts: Mapping[str, ReplicaCounts], ttl: timedelta) -> None:
        """Keep the newest counts, many in a round trip."""
        await self._put("replicas", counts, ttl)

    async def _put(
        self, kind: str, records: Mapping[str, DemandObservation | ReplicaCounts], ttl: timedelta
    ) -> None:
        check_ttl(ttl)
        names = list(records)
        for start in range(0, len(names), _KEYS_PER_TRIP):
            batch = names[start : start + _KEYS_PER_TRIP]
            args: list[Any] = [_millis(ttl)]
            for name in batch:
                args += (_micros(records[name].at), encode(records[name]))
            with _away():
                await self._put_newest(keys=[self._key(kind, name) for name in batch], args=args)

    async def get_demand(
        self, workloads: Sequence[str], known: Mapping[str, datetime] | None = None
    ) -> Mapping[str, DemandObservation]:
        """Observations that are there and newer than what is known, many in a round trip."""
        return await self._get("demand", DemandObservation, workloads, known or {})

    async def get_replicas(self, workloads: Sequence[str]) -> Mapping[str, ReplicaCounts]:
        """Counts that are there, many in a round trip."""
        return await self._get("replicas", ReplicaCounts, workloads, {})

    async def _get(
        self, kind: str, record: type[T], workloads: Sequence[str], known: Mapping[str, datetime]
    ) -> Mapping[str, T]:
        found: dict[str, T] = {}
        for start in range(0, len(workloads), _KEYS_PER_TRIP):
            names = workloads[start : start + _KEYS_PER_TRIP]
            with _away():
                kept = await self._get_newer(
                    keys=[self._key(kind, name) for name in names],
                    args=[_micros(known[name]) if name in known else "" for name in names],
                )
            for place, payload in kept:
                read = self._read(record, payload)
                if read is not None:
                    found[names[int(place) - 1]] = read
        return found

    def _read(self, record: type[T], payload: bytes | str) -> T | None:
        if isinstance(payload, bytes) and len(payload) <= PAYLOAD_BYTES_MAX:
            with contextlib.suppress(RecordError):
                return decode(record, payload.partition(b" ")[2])
        self.corrupt_count += 1
        return None

    async def put_backlog(
        self, workload: str, source: str, count: float, at: datetime, ttl: timedelta
    ) -> None:
        """Backlog of a queue Triton does not own.

        Raises:
            ValueError: a bad field, or a new source beyond `SOURCES_MAX` of this workload.
        """
        check_ttl(ttl)
        check_backlog(source, count, at)
        with _away():
            stored = await self._put_backlog(
                keys=[self._key("backlog", workload)],
                args=[source, _micros(at), repr(float(count)), _millis(ttl), SOURCES_MAX],
            )
        if not stored:
            raise ValueError(
                f"source: workload {workload!r} has {SOURCES_MAX} sources already; reuse their names"
            )

    async def get_backlog(self, workloads: Sequence[str]) -> Mapping[str, float]:
        """Sum over unexpired sources, many workloads in a round trip and by the cache's clock."""
        sums: dict[str, float] = {}
        for start in range(0, len(workloads), _KEYS_PER_TRIP):
            sums |= await self._backlog(workloads[start : start + _KEYS_PER_TRIP])
        return sums

    async def _backlog(self, workloads: Sequence[str]) -> Mapping[str, float]:
        with _away():
            time, *found = await self._get_backlog(keys=[self._key("backlog", name) for name in workloads])
        now_ms = int(time[0]) * 1000 + int(time[1]) // 1000
        sums: dict[str, float] = {}
        for place, *hashes in found:
            if not hashes:  # a key of another type
                self.corrupt_count += 1
                continue
            counts = [self._read_backlog(entry, now_ms) for entry in hashes[0]]
            live = [count for count in counts if count is not None]
            if live:
                sums[workloads[int(place) - 1]] = sum(live)
        return sums

    def _read_backlog(self, entry: bytes, now_ms: int) -> float | None:
        """The count; None once expired, or when it cannot be read."""
        try:
            _, ends_ms, count_text = entry.split(b" ")
            live, count = int(ends_ms) > now_ms, float(count_text)
        except ValueError:
            live, count = True, math.nan
        if not 0 <= count < math.inf:
            self.corrupt_count += 1
            return None
        return count if live else None

    async def publish(self, topic: str, *payloads: bytes) -> None:
        """Fan out to watchers of every controller replica; lossy by design."""
        check_payloads(payloads)
        key = self._key("topic", topic)
        with _away():
            for start in range(0, len(payloads), _KEYS_PER_TRIP):
                async with self._redis.pipeline(transaction=False) as pipeline:
                    for payload in payloads[start : start + _KEYS_PER_TRIP]:
                        pipeline.publish(key, payload)
                    await pipeline.execute()

    async def subscribe(self, topic: str) -> AsyncGenerator[bytes, None]:
        """Payloads published from the first step of the iteration on, across outages of the cache.

        Raises:
            UnavailableError: `WATCHER_COUNT_MAX` watchers are there already.
        """
        pause_s = _RECONNECT_MIN_S
        while True:
            try:
                async with contextlib.aclosing(self._listen(topic)) as payloads:
                    async for payload in payloads:
                        pause_s = _RECONNECT_MIN_S
                        yield payload
            except MaxConnectionsError as error:
                raise UnavailableError(f"the cache serves {WATCHER_COUNT_MAX} watchers already") from error
            except (RedisError, OSError) as error:
                if pause_s == _RECONNECT_MIN_S:  # once per outage
                    log.warning("watching %s was interrupted, trying again: %s", topic, error)
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _RECONNECT_MAX_S)

    async def _listen(self, topic: str) -> AsyncGenerator[bytes, None]:
        """Payloads of one connection, until it breaks or falls silent."""
        async with self._watchers.pubsub(ignore_subscribe_messages=True) as pubsub:
            await pubsub.subscribe(self._key("topic", topic))
            asked = False
            while True:
                message = await pubsub.get_message(timeout=_PING_AFTER_S)
                if message is not None:
                    asked = False
                    data = message["data"]
                    if message["type"] == "message" and isinstance(data, bytes):
                        yield data
                elif asked:
                    raise RedisTimeoutError(f"no sign of life for {2 * _PING_AFTER_S:g} s")
                else:
                    await pubsub.ping()
                    asked = True

    async def close(self) -> None:
        """Release connections."""
        with contextlib.suppress(RedisError, OSError):
            await self._redis.aclose(close_connection_pool=True)
            await self._watchers.aclose(close_connection_pool=True)
