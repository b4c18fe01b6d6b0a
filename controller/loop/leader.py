"""Leadership by lease with a fencing token.

Promises: ``token`` is None unless this process held the lease less than two thirds of its duration ago by
its own monotonic clock, so a stalled leader stops acting before another may start; the store refuses its
writes besides, by the token. Refuses to guess: while the store is away nobody new leads.
"""

import asyncio
import logging
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
        self, leases: LeaseStore, clock: Clock, *, name: str, holder: str, duration: timedelta
    ) -> None:
        self._leases, self._clock = leases, clock
        self._name, self._holder, self._duration = name, holder, duration
        self._lease: Lease | None = None
        self._renewed_s = float("-inf")

    @property
    def token(self) -> int | None:
        """The fencing token while this process may act."""
        if self._lease is None or self._clock.monotonic() - self._renewed_s > self._safe_s:
            return None
        return self._lease.token

    @property
    def holder(self) -> str:
        """Name under which this process leads."""
        return self._holder

    @property
    def _safe_s(self) -> float:
        return self._duration.total_seconds() * SAFE_SHARE

    async def renew(self) -> int | None:
        """Take or renew the lease once; return the token if this process leads."""
        # The lease counts from before the call: a slow answer must not lengthen it.
        asked_s = self._clock.monotonic()
        try:
            lease = await self._leases.acquire(self._name, self._holder, self._duration)
        except PortError as error:
            log.warning("lease %s could not be renewed: %s", self._name, error)
            return self.token
        if (lease is None) != (self._lease is None):
            log.info("%s %s", self._holder, "leads" if lease else "follows")
        self._lease, self._renewed_s = lease, asked_s if lease else self._renewed_s
        return self.token

    def lost(self) -> None:
        """The store refused the token: stop acting at once."""
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

    async def release(self) -> None:
        """Give the lease up, if it is held."""
        lease, self._lease = self._lease, None
        if lease is not None:
            try:
                await self._leases.release(lease)
            except PortError as error:
                log.warning("lease %s could not be released; it ends by itself: %s", self._name, error)
