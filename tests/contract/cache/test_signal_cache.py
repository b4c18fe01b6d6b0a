"""What every signal cache keeps to; run against the fake and against a real server."""

import asyncio
import contextlib
import itertools
import math
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from controller.adapters.clock import SystemClock
from controller.adapters.fakes import FakeSignalCache
from controller.adapters.redis import RedisSignalCache
from controller.adapters.signals import PAYLOAD_BYTES_MAX, SOURCES_MAX
from controller.core.types import DemandObservation
from controller.ports import ReplicaCounts, SignalCache

NOW = datetime(2026, 11, 11, tzinfo=UTC)
SECOND = timedelta(seconds=1)
TTL = timedelta(minutes=1)
SHORT_TTL = timedelta(milliseconds=30)
prefixes = itertools.count()


@pytest.fixture(params=["fake", "redis"])
async def cache(request: pytest.FixtureRequest) -> AsyncIterator[SignalCache]:
    if request.param == "fake":
        yield FakeSignalCache(SystemClock())
        return
    real = RedisSignalCache(
        request.getfixturevalue("redis_url"),
        clock=SystemClock(),
        prefix=f"contract{next(prefixes)}:",
        timeout_s=10,
    )
    yield real
    await real.close()


def observation(at: datetime = NOW, qps: float = 8000.0) -> DemandObservation:
    return DemandObservation(
        at=at,
        stable_qps=qps,
        panic_qps=None,
        backlog_count=12.5,
        reporting_count=3,
        expected_count=4,
        window=timedelta(seconds=60),
    )


async def until_gone(cache: SignalCache) -> None:
    """Expiry is the server's own affair; asking again is the only way to see it."""
    async with asyncio.timeout(30):
        while await cache.get_demand(["w"]) or await cache.get_backlog(["w"]):
            pass


async def test_demand_reads_back_as_it_was_put(cache: SignalCache) -> None:
    await cache.put_demand("w", observation(), TTL)

    assert {"w": observation()} == await cache.get_demand(["w", "other"])


async def test_verified_zero_is_a_value_and_absence_is_not(cache: SignalCache) -> None:
    await cache.put_demand("w", observation(qps=0.0), TTL)
    await cache.put_backlog("w", "queue", 0.0, NOW, TTL)

    assert {"w": observation(qps=0.0)} == await cache.get_demand(["w", "absent"])
    assert await cache.get_backlog(["w", "absent"]) == {"w": 0.0}


async def test_nothing_asked_for_is_nothing_found(cache: SignalCache) -> None:
    assert await cache.get_demand([]) == {}
    assert await cache.get_backlog([]) == {}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
async def test_the_newest_demand_wins_in_any_order(cache: SignalCache, order: tuple[int, ...]) -> None:
    for index in order:
        await cache.put_demand("w", observation(NOW + index * SECOND, qps=float(index)), TTL)

    assert (await cache.get_demand(["w"]))["w"].stable_qps == 2.0


async def test_the_same_instant_again_replaces_demand(cache: SignalCache) -> None:
    await cache.put_demand("w", observation(qps=1.0), TTL)
    await cache.put_demand("w", observation(qps=2.0), TTL)

    assert (await cache.get_demand(["w"]))["w"].stable_qps == 2.0


async def test_signals_are_gone_after_their_time_to_live(cache: SignalCache) -> None:
    await cache.put_demand("w", observation(), SHORT_TTL)
    await cache.put_backlog("w", "queue", 5.0, NOW, SHORT_TTL)
    await until_gone(cache)

    assert await cache.get_demand(["w"]) == {}


async def test_the_shortest_time_to_live_is_accepted(cache: SignalCache) -> None:
    await cache.put_demand("w", observation(), timedelta(microseconds=1))
    await cache.put_backlog("w", "queue", 5.0, NOW, timedelta(microseconds=1))
    await until_gone(cache)

    assert await cache.get_backlog(["w"]) == {}


async def test_an_expired_newer_observation_does_not_keep_an_older_one_out(cache: SignalCache) -> None:
    await cache.put_demand("w", observation(NOW + SECOND), SHORT_TTL)
    await until_gone(cache)
    await cache.put_demand("w", observation(NOW), TTL)

    assert (await cache.get_demand(["w"]))["w"].at == NOW


async def test_counts_of_replicas_read_back_and_the_newest_wins(cache: SignalCache) -> None:
    newer, older = ReplicaCounts(NOW, 3, 1, 0), ReplicaCounts(NOW - SECOND, 0, 4, 0)
    await cache.put_replicas({"w": newer, "empty": ReplicaCounts(NOW, 0, 0, 0)}, TTL)
    await cache.put_replicas({"w": older}, TTL)

    found = await cache.get_replicas(["w", "empty", "absent"])

    assert {"w": newer, "empty": ReplicaCounts(NOW, 0, 0, 0)} == found
    assert {} == await cache.get_demand(["w"])


async def test_counts_of_replicas_are_gone_after_their_time_to_live(cache: SignalCache) -> None:
    await cache.put_replicas({"w": ReplicaCounts(NOW, 3, 1, 0)}, SHORT_TTL)

    async with asyncio.timeout(30):
        while await cache.get_replicas(["w"]):
            pass
    await cache.put_replicas({"w": ReplicaCounts(NOW - SECOND, 1, 0, 0)}, TTL)
    assert {"w": ReplicaCounts(NOW - SECOND, 1, 0, 0)} == await cache.get_replicas(["w"])


async def test_backlog_sums_over_sources_of_a_workload(cache: SignalCache) -> None:
    await cache.put_backlog("w", "kafka", 10.0, NOW, TTL)
    await cache.put_backlog("w", "sqs", 2.5, NOW, TTL)
    await cache.put_backlog("v", "kafka", 1.0, NOW, TTL)

    assert await cache.get_backlog(["w", "v", "absent"]) == {"w": 12.5, "v": 1.0}


async def test_a_source_is_replaced_by_its_newer_push_only(cache: SignalCache) -> None:
    await cache.put_backlog("w", "kafka", 10.0, NOW, TTL)
    await cache.put_backlog("w", "kafka", 4.0, NOW + SECOND, TTL)
    await cache.put_backlog("w", "kafka", 99.0, NOW, TTL)

    assert await cache.get_backlog(["w"]) == {"w": 4.0}


async def test_a_source_that_fell_silent_leaves_the_sum(cache: SignalCache) -> None:
    await cache.put_backlog("w", "silent", 100.0, NOW, SHORT_TTL)
    await until_gone(cache)
    await cache.put_backlog("w", "alive", 5.0, NOW, TTL)

    assert await cache.get_backlog(["w"]) == {"w": 5.0}


async def test_a_long_lived_source_survives_the_push_of_a_short_lived_one(cache: SignalCache) -> None:
    await cache.put_backlog("w", "long", 3.0, NOW, TTL)
    await cache.put_backlog("w", "short", 4.0, NOW, SHORT_TTL)
    async with asyncio.timeout(30):
        while (await cache.get_backlog(["w"]))["w"] != 3.0:
            pass

    assert await cache.get_backlog(["w"]) == {"w": 3.0}


async def test_sources_of_a_workload_are_bounded_and_known_ones_still_report(cache: SignalCache) -> None:
    for index in range(SOURCES_MAX):
        await cache.put_backlog("w", f"source-{index}", 1.0, NOW, TTL)

    with pytest.raises(ValueError, match="source: workload 'w' has 64 sources"):
        await cache.put_backlog("w", "one-too-many", 1.0, NOW, TTL)
    await cache.put_backlog("w", "source-0", 2.0, NOW + SECOND, TTL)

    assert await cache.get_backlog(["w"]) == {"w": SOURCES_MAX + 1.0}


@pytest.mark.parametrize("count", [math.nan, math.inf, -1.0])
async def test_a_backlog_that_is_no_count_is_refused_by_name(cache: SignalCache, count: float) -> None:
    with pytest.raises(ValueError, match="count: "):
        await cache.put_backlog("w", "kafka", count, NOW, TTL)

    assert await cache.get_backlog(["w"]) == {}


async def test_other_bad_fields_are_refused_by_name(cache: SignalCache) -> None:
    with pytest.raises(ValueError, match="source: "):
        await cache.put_backlog("w", "", 1.0, NOW, TTL)
    with pytest.raises(ValueError, match="at: "):
        await cache.put_backlog("w", "kafka", 1.0, NOW.replace(tzinfo=None), TTL)
    with pytest.raises(ValueError, match="ttl: "):
        await cache.put_demand("w", observation(), timedelta(0))
    with pytest.raises(ValueError, match="payload: "):
        await cache.publish("t", bytes(PAYLOAD_BYTES_MAX + 1))


async def test_many_workloads_are_kept_at_once_each_the_newest(cache: SignalCache) -> None:
    names = [f"w{number}" for number in range(2500)]  # more than go in one round trip
    await cache.put_demand("w7", observation(NOW + SECOND, qps=7.0), TTL)

    await cache.put_demands({name: observation(qps=1.0) for name in names}, TTL)
    await cache.put_demands({}, TTL)

    found = await cache.get_demand([*names, "absent"])
    assert set(names) == found.keys()
    assert {"w7"} == {name for name, demand in found.items() if demand.stable_qps == 7.0}
    known = dict.fromkeys([*names[1:], "absent"], NOW)
    assert {"w0", "w7"} == (await cache.get_demand([*names, "absent"], known)).keys()
    with pytest.raises(ValueError, match="ttl"):
        await cache.put_demands({"w": observation()}, timedelta(0))


async def test_names_may_hold_any_characters(cache: SignalCache) -> None:
    names = ["a:b", "a b", "流量", "{w}", "w\n", "%s"]
    for index, name in enumerate(names):
        await cache.put_demand(name, observation(qps=float(index)), TTL)
        await cache.put_backlog(name, name, float(index), NOW, TTL)

    assert {name: float(i) for i, name in enumerate(names)} == await cache.get_backlog(names)
    assert list(range(len(names))) == [(await cache.get_demand([name]))[name].stable_qps for name in names]


async def receive(
    cache: SignalCache, topic: str, count: int
) -> tuple[asyncio.Task[list[bytes]], list[bytes]]:
    """Start a watcher and return it once it listens; the list collects what it gets."""
    got: list[bytes] = []

    async def watch() -> list[bytes]:
        payloads = cache.subscribe(topic)
        try:
            async for payload in payloads:
                if payload != b"are you there":
                    got.append(payload)
                    if len(got) == count:
                        break
                else:
                    there.set()
        finally:
            await payloads.aclose()
        return got

    there = asyncio.Event()
    task = asyncio.create_task(watch())
    async with asyncio.timeout(30):
        while not there.is_set():
            await cache.publish(topic, b"are you there")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(there.wait(), 0.05)
    return task, got


async def test_every_watcher_of_a_topic_gets_payloads_in_order(cache: SignalCache) -> None:
    first, _ = await receive(cache, "topic", 3)
    second, _ = await receive(cache, "topic", 3)
    await cache.publish("another", b"not for them", b"nor this")
    await cache.publish("topic", b"1")
    await cache.publish("topic", b"", b"\x00\xff")
    await cache.publish("topic")

    got = await asyncio.wait_for(asyncio.gather(first, second), 30)

    assert [*got] == [[b"1", b"", b"\x00\xff"]] * 2


async def test_publishing_without_watchers_is_fine(cache: SignalCache) -> None:
    await cache.publish("nobody", b"x")

    assert await cache.get_demand(["nobody"]) == {}


async def test_a_watcher_that_is_cancelled_goes_away(cache: SignalCache) -> None:
    task, got = await receive(cache, "topic", 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await cache.publish("topic", b"late")

    assert got == []
