"""A clock that runs faster than the wall, for the demo only.

Promises: ``now`` and ``monotonic`` advance ``speed`` seconds per wall second, ``sleep(s)`` takes ``s / speed``
wall seconds, but never less than ``SLEEP_MIN_S``: what polls every 50 ms in production must not spin here.
``skip_to`` moves the clock forward at once. Refuses speeds that are not positive, and to go back. Built by the
demo; no setting reaches it.
"""

from datetime import datetime, timedelta

from controller.ports import Clock

SLEEP_MIN_S = 0.02


class ScaledClock:
    """Demo time: starts at ``start_at`` and runs ``speed`` times as fast as ``base``."""

    def __init__(self, base: Clock, *, speed: float, start_at: datetime) -> None:
        if not speed > 0:
            raise ValueError(f"speed must be positive, got {speed}")
        self._base, self.speed, self._start_at = base, speed, start_at
        self._zero = base.monotonic()

    def now(self) -> datetime:
        """Demo wall time, aware UTC."""
        return self._start_at + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        """Demo seconds since the start."""
        return (self._base.monotonic() - self._zero) * self.speed

    async def sleep(self, seconds: float) -> None:
        """Wait ``seconds`` of demo time."""
        await self._base.sleep(max(SLEEP_MIN_S, seconds / self.speed) if seconds > 0 else 0.0)

    def skip_to(self, at: datetime) -> None:
        """Move forward to ``at``; sleepers keep their wall time."""
        ahead_s = (at - self.now()).total_seconds()
        if ahead_s < 0:
            raise ValueError(f"a clock only moves forward: {at} was {-ahead_s:.0f} demo seconds ago")
        self._zero -= ahead_s / self.speed
