"""A clock that runs faster than the wall, for the demo only.

Promises: ``now`` and ``monotonic`` advance ``speed`` seconds per wall second, ``sleep(s)`` takes ``s / speed``
wall seconds. Refuses speeds that are not positive. Built by the demo; no setting reaches it.
"""

from datetime import datetime, timedelta

from controller.ports import Clock


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
        await self._base.sleep(seconds / self.speed)
