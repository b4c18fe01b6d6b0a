"""The signal cache in memory, by the clock it is given."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime, timedelta

from controller.adapters.signals import (
    QUEUE_LENGTH_MAX,
    SOURCES_MAX,
    check_backlog,
    check_payloads,
    check_ttl,
)
from controller.core.types import DemandObservation
from controller.ports import Clock, ReplicaCounts, UnavailableError


class FakeSignalCache:
    """Implements `controller.ports.SignalCache`."""

    def __init__(self, clock: Clock) -> None:
        self.available = True
        self._clock = clock
        self._demand: dict[str, tuple[datetime, DemandObservation]] = {}
        self._replicas: dict[str, tuple[datetime, ReplicaCounts]] = {}
        self._backlog: dict[tuple[str, str], tuple[datetime, datetime, float]] = {}
        self._watchers: dict[str, list[asyncio.Queue[bytes]]] = {}

    def _answer(self) -> None:
        if not self.available:
            raise UnavailableError("the cache is away, try again")

    async def put_demand(self, workload: str, demand: DemandObservation, ttl: timedelta) -> None:
        """Keep the newest observation."""
        check_ttl(ttl)
        self._answer()
        now = self._clock.now()
        expires_at, kept = self._demand.get(workload, (now, demand))
        if expires_at <= now or kept.at <= demand.at:
            self._demand[workload] = (now + ttl, demand)

    async def put_demands(self, demands: Mapping[str, DemandObservation], ttl: timedelta) -> None:
        """Keep the newest observations."""
        for workload, demand in demands.items():
            await self.put_demand(workload, demand, ttl)

    async def get_demand(
        self, workloads: Sequence[str], known: Mapping[str, datetime] | None = None
    ) -> Mapping[str, DemandObservation]:
        """Observations that are there and newer than what is known."""
        self._answer()
        now, known = self._clock.now(), known or {}
        kept = {name: self._demand[name] for name in workloads if name in self._demand}
        return {
            name: demand
            for name, (expires_at, demand) in kept.items()
            if expires_at > now and (name not in known or demand.at > known[name])
        }

    async def put_replicas(self, counts: Mapping[str, ReplicaCounts], ttl: timedelta) -> None:
        """Keep the newest counts."""
        check_ttl(ttl)
        self._answer()
        now = self._clock.now()
        for workload, count in counts.items():
            expires_at, kept = self._replicas.get(workload, (now, count))
            if expires_at <= now or kept.at <= count.at:
                self._replicas[workload] = (now + ttl, count)

    async def get_replicas(self, workloads: Sequence[str]) -> Mapping[str, ReplicaCounts]:
        """Counts that are there."""
        self._answer()
        now = self._clock.now()
        kept = {name: self._replicas[name] for name in workloads if name in self._replicas}
        return {name: count for name, (expires_at, count) in kept.items() if expires_at > now}

    async def put_backlog(
        self, workload: str, source: str, count: float, at: datetime, ttl: timedelta
    ) -> None:
        """Backlog of a queue Triton does not own."""
        check_ttl(ttl)
        check_backlog(source, count, at)
        self._answer()
        now = self._clock.now()
        self._backlog = {key: entry for key, entry in self._backlog.items() if entry[1] > now}
        kept = self._backlog.get((workload, source))
        if kept is None and sum(name == workload for name, _ in self._backlog) >= SOURCES_MAX:
            raise ValueError(
                f"source: workload {workload!r} has {SOURCES_MAX} sources already; reuse their names"
            )
        if kept is None or kept[0] <= at:
            self._backlog[workload, source] = (at, now + ttl, count)

    async def get_backlog(self, workloads: Sequence[str]) -> Mapping[str, float]:
        """Sum over unexpired sources."""
        self._answer()
        now = self._clock.now()
        sums: dict[str, float] = {}
        for (name, _), (_, expires_at, count) in self._backlog.items():
            if name in workloads and expires_at > now:
                sums[name] = sums.get(name, 0.0) + count
        return sums

    async def publish(self, topic: str, *payloads: bytes) -> None:
        """Fan out to watchers; one that does not keep up misses the newest."""
        check_payloads(payloads)
        self._answer()
        for queue in self._watchers.get(topic, ()):
            for payload in payloads[: max(0, QUEUE_LENGTH_MAX - queue.qsize())]:
                queue.put_nowait(payload)

    async def subscribe(self, topic: str) -> AsyncGenerator[bytes, None]:
        """Payloads published from the first step of the iteration on."""
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        watchers = self._watchers.setdefault(topic, [])
        watchers.append(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            watchers.remove(queue)

    async def close(self) -> None:
        """Nothing to release."""
