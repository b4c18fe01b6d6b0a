import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from controller.adapters.clock import SystemClock, VirtualClock

START = datetime(2026, 11, 11, 23, 59, tzinfo=UTC)


def test_system_clock_is_aware_utc_and_never_runs_backwards() -> None:
    clock = SystemClock()

    assert timedelta(0) == clock.now().utcoffset()
    first, second = clock.monotonic(), clock.monotonic()
    assert first <= second


async def test_virtual_sleepers_wake_in_order_at_exactly_their_own_time() -> None:
    clock = VirtualClock(START)
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, *pauses: float) -> None:
        for pause in pauses:
            await clock.sleep(pause)
            seen.append((name, clock.monotonic()))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(sleeper("slow", 5.0))
        tasks.create_task(sleeper("twice", 1.0, 3.0))
        await asyncio.sleep(0)
        await clock.advance(10.0)

    assert [("twice", 1.0), ("twice", 4.0), ("slow", 5.0)] == seen
    assert START + timedelta(seconds=10) == clock.now()


async def test_virtual_clock_holds_a_sleeper_until_it_is_advanced_far_enough() -> None:
    clock = VirtualClock(START)
    task = asyncio.create_task(clock.sleep(2.0))

    await clock.advance(1.999)
    assert not task.done()
    assert 1 == clock.sleeper_count
    await clock.advance(0.001)
    await task
    assert 0 == clock.sleeper_count


async def test_a_cancelled_sleeper_does_not_hold_the_clock() -> None:
    clock = VirtualClock(START)
    task = asyncio.create_task(clock.sleep(1.0))
    await asyncio.sleep(0)
    task.cancel()

    await clock.advance(3.0)

    assert 3.0 == clock.monotonic()
    assert task.cancelled()


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
async def test_virtual_clock_refuses_to_go_back(seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds: a clock only moves forward"):
        await VirtualClock(START).advance(seconds)


def test_virtual_clock_refuses_a_naive_start() -> None:
    with pytest.raises(ValueError, match="start: a naive datetime"):
        VirtualClock(START.replace(tzinfo=None))
