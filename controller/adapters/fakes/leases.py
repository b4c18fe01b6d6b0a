"""Leadership in memory, by the clock it is given. Passed to `FakeStore`, it fences its units of work."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from controller.core.resources import Lease
from controller.ports import Clock, UnavailableError

# Giving a lease up counts on by one, which must stay below the next token.
_STEP = 1000


class FakeLeaseStore:
    """Implements `controller.ports.LeaseStore`."""

    def __init__(self, clock: Clock) -> None:
        self.available = True
        self._clock = clock
        self._leases: dict[str, Lease] = {}
        self._newest = 0

    def _answer(self) -> None:
        if not self.available:
            raise UnavailableError("the lease store is away, try again")

    async def acquire(self, name: str, holder: str, duration: timedelta) -> Lease | None:
        """Take or renew the lease; None while another holds it."""
        self._answer()
        if not name or not holder:
            raise ValueError("name, holder: are empty; both must name somebody")
        if duration <= timedelta(0):
            raise ValueError(f"duration: {duration} is not a positive duration")
        now = self._clock.now()
        lease = self._leases.get(name, Lease(name, "", 0, now))
        if holder != lease.holder:
            if lease.expires_at > now:
                return None
            self._newest = max(self._newest, lease.token) + _STEP
            lease = replace(lease, holder=holder, token=self._newest)
        self._leases[name] = replace(lease, expires_at=now + duration)
        return self._leases[name]

    async def release(self, lease: Lease) -> None:
        """Give it up; its token is stale from now on. Releasing a lost lease is a no-op."""
        self._answer()
        held = self._leases.get(lease.name)
        if held and (held.holder, held.token) == (lease.holder, lease.token):
            self._leases[lease.name] = Lease(lease.name, "", held.token + 1, self._clock.now())

    async def current(self, name: str) -> Lease | None:
        """Who holds it now, if anybody."""
        self._answer()
        lease = self._leases.get(name)
        return lease if lease and lease.expires_at > self._clock.now() else None

    async def live(self) -> Sequence[Lease]:
        """Every lease that is held now, by name."""
        self._answer()
        now = self._clock.now()
        return [lease for _, lease in sorted(self._leases.items()) if lease.expires_at > now]

    def tokens(self) -> Mapping[str, int]:
        """What a fence compares with, by lease."""
        return {name: lease.token for name, lease in self._leases.items()}
