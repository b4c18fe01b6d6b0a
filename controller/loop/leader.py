"""Leadership by lease with a fencing token.

Promises: ``token`` is None unless this process held the lease less than two thirds of its duration ago by
its own monotonic clock, so a stalled leader stops acting before another may start; the store refuses its
writes besides, by the token. Refuses to guess: while the store is away nobody new leads.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta

from controller.core.resources import Lease
from controller.ports import Clock, LeaseStore, PortError

log = logging.getLogger(__name__)

# Renew this often within a lease; give up acting after SAFE_SHARE of it without a renewal.
RENEWALS_PER_LEASE = 3
SAFE_SHARE = 2 / 3


def stop_if_cancelled() -> None:
    """End this task if it was told to end and a library kept that to itself: nobody tells it a second time."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class Leadership:
    """Holds, renews and loses the lease."""

    def __init__(
        self,
        leases: LeaseStore,
        clock: Clock,
        *,
        name: str,
        holder: str,
        duration: timedelta,
        wanted: Callable[[], bool] = lambda: True,
        agreed: Callable[[], bool] = lambda: True,
    ) -> None:
        """``wanted``: whether to take the lease where it is free. ``agreed``: whether it counts while it is held."""
        self._leases, self._clock = leases, clock
        self._name, self._holder, self._duration = name, holder, duration
        self._wanted, self._agreed = wanted, agreed
        self._lease: Lease | None = None
        self._refused: Lease | None = None
        self._renewed_s = float("-inf")
        self._asking = asyncio.Lock()
        self.turn = asyncio.Lock()  # held by whoever acts, so that the lease is handed over between turns
        self.won = asyncio.Event()  # set when the lease is won; the next time is another event
        self.other = ""  # who holds it instead, as far as is known

    @property
    def token(self) -> int | None:
        """The fencing token while this process may act."""
        if self._lease is None or not self._agreed():
            return None
        return None if self._clock.monotonic() - self._renewed_s > self._safe_s else self._lease.token

    @property
    def holder(self) -> str:
        """Name under which this process leads."""
        return self._holder

    @property
    def _safe_s(self) -> float:
        return self._duration.total_seconds() * SAFE_SHARE

    async def renew(self) -> int | None:
        """Take or renew the lease once; return the token if this process leads."""
        async with self._asking:
            try:
                await self._renew()
            except PortError as error:
                log.warning("lease %s could not be renewed: %s", self._name, error)
        return self.token

    async def _renew(self) -> None:
        if self._refused is not None:
            # If it is ours still, its token was refused all the same: only a new one helps.
            await self._leases.release(self._refused)
            self._refused = None
        before = self._lease
        if before is None and not self._wanted():
            return
        # The lease counts from before the call: a slow answer must not lengthen it.
        asked_s = self._clock.monotonic()
        lease = await self._leases.acquire(self._name, self._holder, self._duration)
        if lease is None:
            current = await self._leases.current(self._name)
            self.other = "" if current is None else current.holder
        if (lease is None) != (before is None):
            log.info("%s %s (%s)", self._holder, "leads" if lease else "follows", self._name)
        self._lease, self._renewed_s = lease, asked_s if lease else self._renewed_s
        if lease is not None:
            self.other = ""
            if before is None or before.token != lease.token:
                self.won.set()
                self.won = asyncio.Event()

    def lost(self) -> None:
        """The token was refused: stop acting at once, and never under it again if it should still have counted."""
        if self.token is not None:
            self._refused = self._lease
        self._lease = None

    async def run(self) -> None:
        """Renew until cancelled; then give the lease up so that the next leader need not wait."""
        try:
            while True:
                await self.renew()
                stop_if_cancelled()
                await self._clock.sleep(self._duration.total_seconds() / RENEWALS_PER_LEASE)
        finally:
            await self.release()

    async def hand_over(self) -> None:
        """Give the lease up once the turn under way has ended; it is renewed until then."""
        async with self.turn:
            await self.release()

    async def release(self) -> None:
        """Give the lease up, if it is held."""
        async with self._asking:
            lease, self._lease = self._lease, None
            if lease is not None:
                try:
                    await self._leases.release(lease)
                except PortError as error:
                    log.warning("lease %s could not be released; it ends by itself: %s", self._name, error)
