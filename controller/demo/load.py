"""Send requests open loop: each at its own time, whether or not earlier ones were answered.

Promises: arrivals are a Poisson process of the given rate, the same for the same seed; latency counts from
the time a request was *meant* to go out, so a stalled sender or a full queue shows in full; every arrival
ends up in the results once, answered or not. In-flight requests are bounded by rate x timeout.
Called by the demo's load process.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controller.ports import Clock

# A request that cannot be sent for this many others is counted as failed: the bound on memory and sockets.
IN_FLIGHT_MAX = 4096

Send = Callable[[int, float], Awaitable[None]]
"""Send request number n and wait for its answer for at most so many seconds; raise if there is none."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request; seconds from the start of the load."""

    meant_s: float
    latency_s: float
    answered: bool


def arrivals(rates: Sequence[float] | NDArray[np.float64], step_s: float, seed: int) -> NDArray[np.float64]:
    """Return arrival times in seconds of a Poisson process whose rate per second is ``rates[i]`` in step i.

    Unit-rate arrivals are bent by the inverse of the cumulative rate: exact for piecewise constant rates.
    """
    expected = np.concatenate([[0.0], np.cumsum(np.asarray(rates, float) * step_s)])
    if not np.isfinite(expected).all() or (np.diff(expected) < 0).any():
        raise ValueError("rates: must be finite and at least 0")
    random = np.random.default_rng(seed)
    # Enough gaps to pass the end with certainty for every practical purpose: ten sigmas.
    count = int(expected[-1] + 10 * np.sqrt(expected[-1]) + 10)
    marks = np.cumsum(random.exponential(size=count))
    marks = marks[marks < expected[-1]]
    # Steps without traffic are flat, and a flat step has no inverse: leave their ends out.
    rising = np.concatenate([[True], np.diff(expected) > 0])
    times = np.arange(len(expected)) * step_s
    starts = np.concatenate([times[:-1][rising[1:]], [times[-1]]])
    levels = np.concatenate([expected[:-1][rising[1:]], [expected[-1]]])
    index = np.clip(np.searchsorted(levels, marks, side="right") - 1, 0, len(starts) - 2)
    share = (marks - levels[index]) / (levels[index + 1] - levels[index])
    return np.asarray(starts[index] + share * step_s)


class OpenLoop:
    """Sends along given arrival times; ``drain`` hands out answers as they come."""

    def __init__(self, send: Send, clock: Clock, *, timeout_s: float) -> None:
        self._send, self._clock, self._timeout_s = send, clock, timeout_s
        self._answers: list[Answer] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def in_flight_count(self) -> int:
        """Requests sent and not yet answered."""
        return len(self._tasks)

    def drain(self) -> list[Answer]:
        """Answers since the last call."""
        answers, self._answers = self._answers, []
        return answers

    async def run(self, times_s: Sequence[float] | NDArray[np.float64]) -> None:
        """Send them all, then wait for the last answers."""
        start_s = self._clock.monotonic()
        for number, meant_s in enumerate(times_s):
            wait_s = start_s + meant_s - self._clock.monotonic()
            if wait_s > 0:
                await self._clock.sleep(wait_s)
            if len(self._tasks) >= IN_FLIGHT_MAX:
                self._answers.append(Answer(float(meant_s), self._timeout_s, answered=False))
                continue
            task = asyncio.create_task(self._one(number, float(meant_s), start_s))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _one(self, number: int, meant_s: float, start_s: float) -> None:
        left_s = start_s + meant_s + self._timeout_s - self._clock.monotonic()
        answered = left_s > 0
        if answered:
            try:
                async with asyncio.timeout(left_s):
                    await self._send(number, left_s)
            except Exception:  # noqa: BLE001 - whatever the reason, the caller got no answer, and that is what counts
                answered = False
        latency_s = self._clock.monotonic() - start_s - meant_s
        self._answers.append(Answer(meant_s, latency_s, answered))
