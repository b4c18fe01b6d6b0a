"""The signal cache when the server is away, frozen, restarted, or holds what we did not write."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from redis.asyncio import Redis

from controller.adapters.clock import SystemClock
from controller.adapters.embedded.stack import EmbeddedStack
from controller.adapters.redis import RedisSignalCache
from controller.core.types import DemandObservation
from controller.ports import UnavailableError

NOW = datetime(2026, 11, 11, tzinfo=UTC)
TTL = timedelta(minutes=1)
OBSERVED = DemandObservation(NOW, 8000.0, 9000.0, 0.0, 4, 4, timedelta(seconds=60))
PREFIX = "outage:"


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    """A plain client, to put in what the cache did not write."""
    plain = Redis.from_url(redis_url)
    await plain.flushdb()
    yield plain
    await plain.aclose()


@pytest.fixture
async def cache(redis_url: str) -> AsyncIterator[RedisSignalCache]:
    found = RedisSignalCache(redis_url, clock=SystemClock(), prefix=PREFIX, timeout_s=10)
    yield found
    await found.close()


async def every_call_fails(cache: RedisSignalCache) -> None:
    for call in (
        cache.put_demand("w", OBSERVED, TTL),
        cache.get_demand(["w"]),
        cache.put_backlog("w", "kafka", 1.0, NOW, TTL),
        cache.get_backlog(["w"]),
        cache.publish("t", b"x"),
    ):
        with pytest.raises(UnavailableError, match="try again"):
            await call


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_no_server_is_an_outage_of_every_call() -> None:
    cache = RedisSignalCache("redis://:secret-word@127.0.0.1:1/0", clock=SystemClock())
    await every_call_fails(cache)
    await cache.close()


@pytest.mark.parametrize("url", ["", "nonsense", "http://:secret-word@h/0"])
def test_a_foreign_url_is_refused_by_name_and_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="redis_url: ") as caught:
        RedisSignalCache(url, clock=SystemClock())

    assert "secret-word" not in str(caught.value)


async def test_a_wrong_password_is_an_outage(redis_url: str) -> None:
    cache = RedisSignalCache(redis_url.replace("redis://:", "redis://:wrong"), clock=SystemClock())
    await every_call_fails(cache)
    await cache.close()


async def test_a_killed_server_is_an_outage_and_its_successor_serves_and_fans_out(tmp_path: Path) -> None:
    async with EmbeddedStack(tmp_path / "data") as stack:
        cache = RedisSignalCache(stack.redis_url, clock=SystemClock(), timeout_s=10)
        await cache.put_demand("w", OBSERVED, TTL)
        payloads = cache.subscribe("t")
        waiting = asyncio.ensure_future(anext(payloads))
        await asyncio.wait([waiting], timeout=0.05)
        server = stack.servers["valkey"]
        await server.kill()
        await every_call_fails(cache)

    async with EmbeddedStack(tmp_path / "data"):
        assert await cache.get_demand(["w"]) in ({}, {"w": OBSERVED})  # may be lost, never wrong
        await cache.put_demand("w", OBSERVED, TTL)
        assert await cache.get_demand(["w"]) == {"w": OBSERVED}
        async with asyncio.timeout(60):
            while not waiting.done():  # the watcher comes back by itself
                await cache.publish("t", b"again")
                await asyncio.wait([waiting], timeout=0.05)
        assert waiting.result() == b"again"
        await payloads.aclose()
        await cache.close()


async def test_a_frozen_server_is_given_up_and_found_again(tmp_path: Path) -> None:
    async with EmbeddedStack(tmp_path / "data") as stack:
        cache = RedisSignalCache(stack.redis_url, clock=SystemClock(), timeout_s=0.2)
        server = stack.servers["valkey"]
        assert server.pid is not None
        with frozen(server.pid):
            await every_call_fails(cache)

        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(UnavailableError):
                    await cache.put_demand("w", OBSERVED, TTL)
                    found = await cache.get_demand(["w"])
                    break
        assert found == {"w": OBSERVED}
        await cache.close()


async def test_what_cannot_be_read_is_absent_and_counted(cache: RedisSignalCache, client: Redis) -> None:
    await cache.put_demand("good", OBSERVED, TTL)
    for name, payload in {
        "text": b"nonsense",
        "half": b'1 {"at": "2026',
        "nan": b'1 {"at":"2026-11-11T00:00:00Z","stable_qps":NaN}',
        "huge": bytes(100_000),
        "empty": b"",
    }.items():
        await client.set(f"{PREFIX}demand:{name}", payload)

    found = await cache.get_demand(["text", "good", "half", "nan", "huge", "empty", "absent"])

    assert found == {"good": OBSERVED}
    assert cache.corrupt_count == 5


async def test_a_backlog_that_cannot_be_read_is_absent_and_counted(
    cache: RedisSignalCache, client: Redis
) -> None:
    far_ms = 4_000_000_000_000
    await cache.put_backlog("w", "good", 3.0, NOW, TTL)
    for source, entry in {"text": "x", "nan": f"1 {far_ms} nan", "negative": f"1 {far_ms} -1"}.items():
        await client.hset(f"{PREFIX}backlog:w", source, entry)
    await client.set(f"{PREFIX}backlog:other-type", "x")

    assert await cache.get_backlog(["w", "other-type"]) == {"w": 3.0}
    assert cache.corrupt_count == 4


async def test_writing_replaces_what_cannot_be_read(cache: RedisSignalCache, client: Redis) -> None:
    await client.set(f"{PREFIX}demand:w", "nonsense")
    await client.hset(f"{PREFIX}demand:v", "another", "type")
    await client.set(f"{PREFIX}backlog:w", "another type")
    await cache.put_demand("w", OBSERVED, TTL)
    await cache.put_demand("v", OBSERVED, TTL)
    await cache.put_backlog("w", "kafka", 1.0, NOW, TTL)

    assert await cache.get_demand(["w", "v"]) == {"w": OBSERVED, "v": OBSERVED}
    assert await cache.get_backlog(["w"]) == {"w": 1.0}


async def test_every_key_ends_by_itself(cache: RedisSignalCache, client: Redis) -> None:
    await cache.put_demand("w", OBSERVED, TTL)
    await cache.put_backlog("w", "kafka", 1.0, NOW, TTL)
    keys = await client.keys("*")

    assert len(keys) == 2
    for key in keys:
        assert 0 < await client.pttl(key) <= 60_000


async def test_many_workloads_are_read_in_one_command(cache: RedisSignalCache, client: Redis) -> None:
    names = [f"w{index}" for index in range(1000)]
    await cache.put_demand("w7", OBSERVED, TTL)
    await cache.get_demand(["w7"])
    before = (await client.info("commandstats"))["cmdstat_evalsha"]["calls"]

    assert await cache.get_demand(names) == {"w7": OBSERVED}

    assert (await client.info("commandstats"))["cmdstat_evalsha"]["calls"] == before + 1


async def test_scripts_survive_a_server_that_forgot_them(cache: RedisSignalCache, client: Redis) -> None:
    await cache.put_demand("w", OBSERVED, TTL)
    await client.script_flush()
    await cache.put_demand("v", OBSERVED, TTL)

    assert await cache.get_demand(["v"]) == {"v": OBSERVED}
