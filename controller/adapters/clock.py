"""Tell time. The one file that may read the machine's clocks.

Promises: `now` is an aware UTC datetime for records, `monotonic` is seconds for durations and
deadlines and never runs backwards, `sleep` waits on the same clock. Refuses naive datetimes and
negative advances. Called by every adapter and by the loop; the core takes `now` as an argument.
"""

import asyncio
import heapq
import itertools
import time
from datetime import UTC, datetime, timedelta


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        """Return the wall clock as an aware UTC datetime."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds since an arbitrary origin."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait that many seconds; zero or less only yields to other tasks."""
        await asyncio.sleep(max(0.0, seconds))


class VirtualClock:
    """A clock that stands still until `advance` moves it; for simulation, previews and tests.

    Sleepers wake in the order of their wake-up times, and each sees the clock at exactly its own
    wake-up time, so a run depends on nothing but its inputs.
    """

    def __init__(self, start: datetime) -> None:
        if start.tzinfo is None:
            raise ValueError("start: a naive datetime has no place in time; pass one with tzinfo")
        self._origin = start.astimezone(UTC)
        self._elapsed_s = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now(self) -> datetime:
        """Return the virtual wall clock."""
        return self._origin + timedelta(seconds=self._elapsed_s)

    def monotonic(self) -> float:
        """Return virtual seconds since the start."""
        return self._elapsed_s

    async def sleep(self, seconds: float) -> None:
        """Wait until `advance` has moved the clock that far."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        wake = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed_s + seconds, next(self._order), wake))
        await wake

    @property
    def sleeper_count(self) -> int:
        """How many tasks wait on this clock; a test waits for it before it advances."""
        return sum(not wake.done() for _, _, wake in self._sleepers)

    async def advance(self, seconds: float) -> None:
        """Move the clock forward, waking sleepers one by one on the way."""
        if not seconds >= 0:
            raise ValueError(f"seconds: a clock only moves forward, got {seconds}")
        target = self._elapsed_s + seconds
        await _settle()
        while self._sleepers and self._sleepers[0][0] <= target:
            wake_at, _, wake = heapq.heappop(self._sleepers)
            self._elapsed_s = max(self._elapsed_s, wake_at)
            if not wake.done():  # a cancelled sleeper leaves its entry behind
                wake.set_result(None)
                await _settle()
        self._elapsed_s = target


async def _settle() -> None:
    # A woken task may run through several awaits before it sleeps again; the bound is generous
    # for chains of plain awaits and keeps a task that never sleeps from holding the clock.
    for _ in range(50):
        await asyncio.sleep(0)
