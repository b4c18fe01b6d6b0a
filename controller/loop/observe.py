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
    DemandSource,
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
        self,
        actuator: Actuator,
        meter: DemandMeterPort,
        cache: SignalCache,
        store: Store,
        *,
        ttl: timedelta,
        source: DemandSource | None = None,
    ) -> None:
        """``source`` answers for workloads that name a query; without one their demand is unknown."""
        self._actuator, self._meter, self._cache, self._store, self._ttl = actuator, meter, cache, store, ttl
        self._source = source
        self._pending: deque[TrafficSample] = deque(maxlen=PENDING_MAX)
        self._demand: dict[str, DemandObservation] = {}
        self._unanswered: set[str] = set()  # workloads with a query and nobody to ask
        self.views: Mapping[str, PoolView] = {}

    @property
    def pending_count(self) -> int:
        """Minutes of traffic that wait for the store."""
        return len(self._pending)

    @property
    def newest(self) -> Mapping[str, DemandObservation]:
        """What this process observed last of each workload's demand, however old."""
        return self._demand

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
        observed = await self._measure(workloads, views)
        self._demand.update(observed)
        try:
            await self._cache.put_demands(observed, self._ttl)
        except UnavailableError as error:
            log.warning("live demand stays in memory: %s", error)
        await self.flush()

    async def _measure(
        self, workloads: Sequence[Workload], views: Mapping[str, PoolView]
    ) -> Mapping[str, DemandObservation]:
        """Demand by counters, and by query where a workload names one: the one source it has."""
        counted = await self._meter.scrape(views)
        queried = {workload.name for workload in workloads if workload.demand_query}
        self._pending.extend(s for s in self._meter.drain_samples() if s.workload not in queried)
        observed = {name: demand for name, demand in counted.items() if name not in queried}
        if self._source is None:
            for name in queried - self._unanswered:
                log.warning("%s names a demand query, and FORECREST_PROMETHEUS_URL is not set", name)
            self._unanswered = queried
            return observed
        for name, demand in (await self._source.observe(workloads)).items():
            # What waits at the replicas they alone know.
            waiting = counted[name].backlog_count if name in counted else 0.0
            observed[name] = replace(demand, backlog_count=waiting)
        self._pending.extend(self._source.drain_samples())
        return observed

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
            known_at = {name: demand.at for name, demand in known.items()}
            known.update(await self._cache.get_demand(workloads, known_at))
            backlog = await self._cache.get_backlog(workloads)
        except UnavailableError as error:
            log.warning("reading live signals from memory: %s", error)
            return known
        for name in backlog.keys() & known.keys():
            demand = known[name]
            known[name] = replace(demand, backlog_count=demand.backlog_count + backlog[name])
        return known
