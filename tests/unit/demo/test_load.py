"""The open loop: right times, right latencies, nothing lost."""

import asyncio
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from controller.adapters.clock import VirtualClock
from controller.demo import load
from controller.demo.load import OpenLoop, arrivals


def test_arrivals_are_the_same_for_the_same_seed_and_differ_for_another() -> None:
    rates = [20.0, 50.0, 0.0, 10.0]

    assert arrivals(rates, 1.0, 7).tolist() == arrivals(rates, 1.0, 7).tolist()
    assert arrivals(rates, 1.0, 7).tolist() != arrivals(rates, 1.0, 8).tolist()


def test_arrivals_follow_the_rate_and_skip_steps_without_traffic() -> None:
    rates = [100.0, 400.0, 0.0, 100.0]
    times = arrivals(rates, 10.0, 1)

    counts = np.histogram(times, bins=[0, 10, 20, 30, 40])[0]
    assert 0 == counts[2]
    for rate, count in zip(rates, counts, strict=True):
        assert abs(rate * 10 - count) <= 5 * np.sqrt(rate * 10)  # five sigmas of a Poisson count
    assert (np.diff(times) >= 0).all()


def test_no_traffic_at_all_has_no_arrivals() -> None:
    assert [] == arrivals([0.0, 0.0], 1.0, 1).tolist()


@pytest.mark.parametrize("rates", [[-1.0], [float("nan")], [float("inf")]])
def test_rates_that_make_no_sense_are_refused(rates: list[float]) -> None:
    with pytest.raises(ValueError, match="rates"):
        arrivals(rates, 1.0, 1)


async def _drive(clock: VirtualClock, task: asyncio.Task[None], seconds: float, step_s: float = 0.05) -> None:
    for _ in range(round(seconds / step_s)):
        await clock.advance(step_s)
        if task.done():
            break
    await task


class _OwnTime:
    """A clock that moves only when its one user sleeps, or is stalled."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.elapsed_s)

    def monotonic(self) -> float:
        return self.elapsed_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)
        self.elapsed_s += seconds


async def test_latency_counts_from_the_intended_time_even_while_the_sender_stalls() -> None:
    """The first answer blocks the whole sender for a second, as a busy machine would."""
    clock = _OwnTime()

    async def send(number: int, timeout_s: float) -> None:
        if number == 0:
            clock.elapsed_s += 1.0  # nothing else can run meanwhile

    loop = OpenLoop(send, clock, timeout_s=5.0)
    await loop.run([0.0, 0.2, 0.4])

    latency_s = {answer.meant_s: answer.latency_s for answer in loop.drain()}
    assert latency_s[0.0] == pytest.approx(1.0)
    assert latency_s[0.4] >= 0.6


async def test_arrivals_do_not_wait_for_answers() -> None:
    clock = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
    sent_s: list[float] = []

    async def send(number: int, timeout_s: float) -> None:
        sent_s.append(round(clock.monotonic(), 2))
        await clock.sleep(1.0)

    loop = OpenLoop(send, clock, timeout_s=5.0)
    await _drive(clock, asyncio.create_task(loop.run([0.0, 0.1, 0.2])), 3.0)

    assert [0.0, 0.1, 0.2] == sent_s
    assert [True] * 3 == [answer.answered for answer in loop.drain()]


async def test_a_refused_request_is_counted_as_not_answered() -> None:
    clock = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))

    async def send(number: int, timeout_s: float) -> None:
        if number == 1:
            raise ConnectionError("refused")

    loop = OpenLoop(send, clock, timeout_s=1.0)
    await _drive(clock, asyncio.create_task(loop.run([0.0, 0.1, 0.2])), 1.0)

    assert [(0.0, True), (0.1, False), (0.2, True)] == [
        (answer.meant_s, answer.answered) for answer in sorted(loop.drain(), key=lambda a: a.meant_s)
    ]


async def test_requests_beyond_the_bound_fail_at_once_and_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load, "IN_FLIGHT_MAX", 2)
    clock = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))

    async def send(number: int, timeout_s: float) -> None:
        await clock.sleep(1.0)

    loop = OpenLoop(send, clock, timeout_s=5.0)
    await _drive(clock, asyncio.create_task(loop.run([0.0, 0.1, 0.2])), 3.0)

    assert [False, True, True] == sorted(answer.answered for answer in loop.drain())
