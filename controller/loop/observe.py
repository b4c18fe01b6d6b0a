"""Observe: replicas and their counters become demand, live in the cache and per minute in the store.

Promises: a failed scrape, a late one and verified zero stay three different things; what could not be
written is kept (bounded) and written later, so a store that is away for a while loses nothing; without the
cache the newest observations are used from memory. Called by the runner while this process leads.
"""

import itertools
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from controller.core.resources import TrafficSample
from controller.core.types import DemandObservation, Workload
from controller.ports import (
    Actuator,
    DemandMeterPort,
    PoolView,
    SignalCache,
    Store,
    UnavailableError,
)

log = logging.getLogger(__name__)

# Samples kept while the store is away: a day of a thousand workloads at one a minute.
PENDING_MAX = 1_500_000
BATCH_MAX = 10_000


class Observer:
    """Keeps the newest view of every pool and of its demand."""

    def __init__(
        self, actuator: Actuator, meter: DemandMeterPort, cache: SignalCache, store: Store, *, ttl: timedelta
    ) -> None:
        self._actuator, self._meter, self._cache, self._store, self._ttl = actuator, meter, cache, store, ttl
        self._pending: deque[TrafficSample] = deque(maxlen=PENDING_MAX)
        self._demand: dict[str, DemandObservation] = {}
        self.views: Mapping[str, PoolView] = {}

    async def views_of(self, workloads: Sequence[Workload]) -> Mapping[str, PoolView]:
        """Look at the replicas now; on failure nothing is known, which is not the same as no replicas."""
        try:
            self.views = await self._actuator.observe(workloads)
        except UnavailableError as error:
            log.warning("replicas could not be observed: %s", error)
            self.views = {}
        return self.views

    async def scrape(self, workloads: Sequence[Workload]) -> None:
        """Scrape every replica once and pass on what was learnt."""
        views = await self.views_of(workloads)
        for workload in workloads:
            policy = workload.policy
            self._meter.set_windows(workload.name, policy.stable_window, policy.panic_window)
        observed = await self._meter.scrape(views)
        self._demand.update(observed)
        self._pending.extend(self._meter.drain_samples())
        for name, demand in observed.items():
            try:
                await self._cache.put_demand(name, demand, self._ttl)
            except UnavailableError as error:
                log.warning("live demand stays in memory: %s", error)
                break
        await self.flush()

    async def flush(self) -> None:
        """Write pending minutes; keep them if the store is away."""
        while self._pending:
            # In bounded batches: a day's worth at once would hold the event loop, and with it the lease.
            batch = list(itertools.islice(self._pending, BATCH_MAX))
            try:
                async with self._store.unit_of_work() as uow:
                    await uow.traffic.upsert(batch)
                    await uow.commit()
            except UnavailableError as error:
                log.warning("%d minutes of traffic wait for the store: %s", len(self._pending), error)
                return
            except ValueError:
                # For ever refused, such as minutes of a clock that was not set yet: they must not hold up the rest.
                log.exception("%d minutes of traffic are dropped", len(batch))
            for _ in batch:
                self._pending.popleft()

    async def demand(self, workloads: Sequence[str]) -> dict[str, DemandObservation]:
        """Newest demand per workload with pushed backlog added; from memory where the cache is away."""
        known = {name: self._demand[name] for name in workloads if name in self._demand}
        try:
            cached = await self._cache.get_demand(workloads)
            backlog = await self._cache.get_backlog(workloads)
        except UnavailableError as error:
            log.warning("reading live signals from memory: %s", error)
            return known
        for name, observation in cached.items():
            mine = known.get(name)
            if mine is None or observation.at > mine.at:
                known[name] = observation
        return {
            name: replace(d, backlog_count=d.backlog_count + backlog.get(name, 0.0))
            for name, d in known.items()
        }
