"""Decide and act: load the world, call the core once, record, then apply.

Promises: one clock reading per cycle; a decision is stored, under the fencing token, before it is applied;
a crash between the two is healed by the next tick, which sees the count differ and asks again; whatever
fails to apply is recorded as such. Refuses to act without leadership. Called by the runner.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from controller.core.leadtime import (
    DEFAULT_PRIORS,
    LeadSample,
    LeadTime,
    StagePrior,
    estimate_lead_time,
    with_load,
)
from controller.core.resources import Outcome, Page, PauseState, TrafficEvent
from controller.core.tick import Calm, on_tick, stands
from controller.core.types import (
    Contract,
    Decision,
    Effect,
    Event,
    FleetState,
    Override,
    QuotaPool,
    RecordDecision,
    ReplaceReplica,
    Replica,
    ScaleTo,
    StorePlan,
    TickInput,
    Trust,
    Workload,
    WorkloadInput,
    WorkloadState,
)
from controller.loop.calendar import events_by_workload
from controller.loop.forecasting import Forecasting
from controller.loop.known import KnownWorkloads, Registered
from controller.loop.observe import Observer
from controller.notify.notifier import Notifier
from controller.ports import (
    Actuator,
    Clock,
    PoolView,
    PortError,
    ReplicaCounts,
    Retention,
    SignalCache,
    StaleFenceError,
    Store,
    UnavailableError,
    UnitOfWork,
    Witness,
)
from controller.settings import Settings
from controller.usecases.engines import (
    measured_loads,
    measured_profiles,
    named_engines,
    replicas_as_measured,
    with_measured,
)
from controller.usecases.schedule import events_between
from controller.usecases.topics import CHANGES

log = logging.getLogger(__name__)

PAGE_SIZE = 1000
# Outcomes of orders are written so many at a time, so that those of a long list are seen before its end.
OUTCOMES_AT_ONCE = 100
# Counts of replicas are good for so long without a newer one.
COUNTS_KEPT = timedelta(minutes=2)
# Counts that stand are told again after this long: clients show how old they are.
COUNTS_AGAIN = timedelta(seconds=15)
# How far back events are looked at: one that ended a day ago concerns no plan.
EVENTS_BACK = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Memory:
    """What a leader remembers between ticks, and what of it is stored.

    What it remembers is what another would load: states change under the newest fencing token only, and whatever is
    not certain to be stored is forgotten. ``stored`` holds states as they were written, which their last tick may
    have left as they stood.
    """

    token: int
    state: FleetState
    stored: Mapping[str, WorkloadState]
    is_fresh: bool = False  # read, and not written yet

    def without(self, gone: Iterable[str]) -> "Memory":
        """Memory that holds nothing of these workloads."""
        names = self.state.workloads.keys() & set(gone)
        if not names:
            return self
        states, stored = (
            {name: state for name, state in known.items() if name not in names}
            for known in (self.state.workloads, self.stored)
        )
        return replace(self, state=FleetState(states), stored=stored)

    def changed(self, state: FleetState, workloads: Sequence[Workload]) -> dict[str, WorkloadState]:
        """States that must be written so that another would load ``state``, which is of these workloads."""
        names = {w.name for w in workloads}
        found = {
            name: state.workloads[name]
            for name in names
            if not stands(self.stored.get(name), state.workloads[name])
        }
        # One whose workload is gone sees no further tick, and says so.
        for name in state.workloads.keys() - names:
            if state.workloads[name].last_at is not None:
                found[name] = replace(state.workloads[name], last_at=None)
        return found


@dataclass(frozen=True, slots=True)
class World:
    """What the store says at the top of a cycle, read in one transaction."""

    workloads: tuple[Workload, ...]
    memory: Memory
    overrides: Mapping[str, Sequence[Override]]
    pause: PauseState
    events: tuple[TrafficEvent, ...]

    @property
    def state(self) -> FleetState:
        """The core's state before this cycle."""
        return self.memory.state


async def read_workloads(uow: UnitOfWork, limit: int) -> tuple[Workload, ...]:
    """Every workload, page by page."""
    found: list[Workload] = []
    token = ""
    while True:
        page, token = await uow.workloads.list(Page(PAGE_SIZE, token))
        found.extend(page)
        if not token or len(found) >= limit:
            return tuple(found[:limit])


def changed_contracts(before: FleetState, after: FleetState) -> list[tuple[str, Contract]]:
    """Contracts that say something new, by workload; when they expect to be met moves with every tick and is nothing."""
    changed: list[tuple[str, Contract]] = []
    for name, state in after.workloads.items():
        earlier = before.workloads.get(name)
        known = {c.event_id: replace(c, expected_warm_at=None) for c in earlier.contracts} if earlier else {}
        changed += [
            (name, c) for c in state.contracts if known.get(c.event_id) != replace(c, expected_warm_at=None)
        ]
    return changed


class Control:
    """One leader's decide-and-act cycle."""

    def __init__(
        self,
        store: Store,
        cache: SignalCache,
        actuator: Actuator,
        observer: Observer,
        forecasting: Forecasting,
        clock: Clock,
        settings: Settings,
        pools: Sequence[QuotaPool] = (),
        notifier: Notifier | None = None,
        registered: Registered | None = None,
    ) -> None:
        """``registered``: the workloads of a shard, where this is not the only leader."""
        self._store, self._cache, self._actuator = store, cache, actuator
        self._observer, self._forecasting, self._clock, self._settings = (
            observer,
            forecasting,
            clock,
            settings,
        )
        self._pools, self._notifier = tuple(pools), notifier
        self._registered = registered or KnownWorkloads(settings.workloads_max)
        self._memory: Memory | None = None
        self._plain: Sequence[Workload] | None = None  # the newest that were read, if none names an engine
        self._lead: dict[str, LeadTime] = {}
        self._priors = _priors(settings.provisioning_delay_s)
        self._unmeasured = estimate_lead_time(self._priors)
        self._loads: Mapping[str, tuple[float, float]] = {}  # measured with the engine, by workload
        self._measured: dict[str, frozenset[str]] = {}  # replicas whose start is stored, by workload
        self.witness: Witness | None = None  # who else hears of each cycle
        self._counts: Mapping[str, ReplicaCounts] = {}  # of replicas, as told last
        self._calm: dict[str, Calm] = {}  # what the core need not decide anew
        self._came_of: dict[str, str | None] = {}  # of this cycle's orders, by decision id
        self.decisions: dict[str, Decision] = {}  # newest per workload, for metrics
        self.leads: Mapping[str, LeadTime] = {}  # of every workload of the newest tick
        # What the newest tick knew of each workload, and orders by how the actuator took them; for metrics.
        self.known: Mapping[str, Workload] = {}
        self.states: Mapping[str, WorkloadState] = {}
        self.orders: Counter[str] = Counter(accepted=0, refused=0)

    async def workloads(self) -> tuple[Workload, ...]:
        """Read the workloads alone: a scrape needs no more."""
        async with self._store.unit_of_work() as uow:
            return await self._registered.read(uow)

    async def calendar(
        self, now: datetime, back: timedelta
    ) -> tuple[tuple[Workload, ...], tuple[TrafficEvent, ...]]:
        """Read what forecasts need: workloads, and events from ``back`` ago on. States stay where they are."""
        end_at = now + timedelta(seconds=self._settings.forecast_horizon_s)
        async with self._store.unit_of_work() as uow:
            workloads = await self._registered.read(uow)
            return workloads, tuple(await events_between(uow, now - back, end_at))

    async def world(self, now: datetime, token: int) -> World:
        """Read everything a cycle needs from the store, but for what is known to stand."""
        memory, self._memory = self._memory, None
        horizon = timedelta(seconds=self._settings.forecast_horizon_s)
        async with self._store.unit_of_work() as uow:
            workloads = await self._registered.read(uow)
            names = {workload.name for workload in workloads}
            if memory is None or memory.token != token:
                stored = await uow.states.load(self._registered.names)
                memory = Memory(token, FleetState(stored), stored, is_fresh=True)
            elif names ^ memory.state.workloads.keys():
                # What another leader decides for is no longer ours to write.
                memory = memory.without(workload.name for workload in self._registered.others or ())
                # One of a name that was there before; not as stored by us, so that it is written under our lease.
                if new := names - memory.state.workloads.keys():
                    memory = replace(
                        memory, state=FleetState({**memory.state.workloads, **await uow.states.load(new)})
                    )
            if workloads is not self._plain:
                self._plain = None if any(map(named_engines, workloads)) else workloads
                if measured := await measured_profiles(uow, workloads):
                    workloads = tuple(with_measured(workload, measured) for workload in workloads)
                self._know_loads(measured_loads(workloads, measured))
            return World(
                workloads=workloads,
                memory=memory,
                overrides=await uow.states.overrides(),
                pause=await uow.states.pause(),
                events=tuple(await events_between(uow, now - EVENTS_BACK, now + horizon)),
            )

    async def tick(self, token: int, leads: Callable[[], bool] = lambda: True) -> tuple[Effect, ...]:
        """Run one cycle under a fencing token; raise StaleFenceError if it is no longer the newest.

        ``leads`` is asked before each order: applying many may outlast the lease.
        """
        now = self._clock.now()
        world = await self.world(now, token)
        views = await self._claimed_views(world.workloads, token)
        await self._measure(views, now)
        tick_input = await self._input(world, views, now)
        state, effects = on_tick(world.state, tick_input, self._calm)
        changed = world.memory.changed(state, world.workloads)
        decided = [e.decision for e in effects if isinstance(e, RecordDecision)]
        async with self._store.unit_of_work() as uow:
            await uow.require_leader(token)
            await uow.decisions.append(decided)
            await uow.decisions.save_plan(*(e.plan for e in effects if isinstance(e, StorePlan)))
            if world.memory.is_fresh:
                await uow.states.take_over(self._registered.names)
            await uow.states.save(changed, now)
            await uow.states.keep_contracts(changed_contracts(world.state, state))
            if self._notifier is not None:
                await self._notifier.record(uow, world.state, state, world.workloads, now)
            await uow.commit()
        memory = Memory(token, FleetState({**state.workloads, **changed}), {**world.memory.stored, **changed})
        self.known = {w.name: w for w in world.workloads}
        # One that is gone was written a last time; declared again, it is read again.
        self._memory = memory.without(memory.state.workloads.keys() - self.known.keys())
        self.decisions = {**self.decisions, **{d.workload: d for d in decided}}
        for kept in (self.decisions, self._lead, self._measured):
            for name in kept.keys() - self.known.keys():
                del kept[name]
        self.states = {name: state.workloads[name] for name in self.known}
        for gone in self._calm.keys() - self.known.keys():
            del self._calm[gone]
        self._came_of = {}
        await self._apply(world, effects, token, leads)
        if self.witness is not None:
            self.witness.saw(world.workloads, decided, self._came_of, world.state, state)
        await self._tell_counts(views, now)
        await self._announce(effects)
        return effects

    async def _tell_counts(self, views: Mapping[str, PoolView], now: datetime) -> None:
        """Let every controller say how many replicas there are; what could not be observed goes untold."""
        counts = {name: ReplicaCounts.of(view.replicas, now) for name, view in views.items()}
        # Most stand as they stood: telling ten thousand costs as much as a tick may take.
        news = {name: one for name, one in counts.items() if _is_news(one, self._counts.get(name))}
        try:
            await self._cache.put_replicas(news, COUNTS_KEPT)
        except UnavailableError as error:
            log.debug("counts of replicas are not told: %s", error)
            self._counts = {}
            return
        self._counts = {name: news.get(name) or self._counts[name] for name in counts}

    async def _claimed_views(self, workloads: Sequence[Workload], token: int) -> Mapping[str, PoolView]:
        try:
            await self._actuator.claim(workloads, fence=token, others=self._registered.others)
        except UnavailableError as error:
            # What an older leader's order may still change is not known, however well it can be seen.
            log.warning("replicas could not be claimed: %s", error)
            return {}
        return await self._observer.views_of(workloads)

    async def maintain(self) -> None:
        """Drop records past their age; traffic is kept as long as the settings say."""
        retention = Retention(traffic=timedelta(days=self._settings.history_retention_days))
        count = await self._store.maintain(self._clock.now(), retention)
        if count:
            log.info("%d records were past their age and are gone", count)

    async def _input(self, world: World, views: Mapping[str, PoolView], now: datetime) -> TickInput:
        names = [w.name for w in world.workloads]
        demand = await self._observer.demand(names)
        events: dict[str, tuple[Event, ...]] = {}
        if self._settings.prediction_enabled:
            end_at = now + timedelta(seconds=self._settings.forecast_horizon_s)
            # One that ended still closes its contract, and keeps the limit it raised for a while.
            events = events_by_workload(
                world.events, now - EVENTS_BACK, end_at, self._settings.occurrences_max
            )
        self.leads = {name: self._lead.get(name, self._unmeasured) for name in names}
        inputs: list[WorkloadInput] = []
        for w in world.workloads:
            view = views.get(w.name)
            inputs.append(
                WorkloadInput(
                    workload=w,
                    replicas=None if view is None else replicas_as_measured(w, view.replicas),
                    observed_desired=None if view is None else view.desired_replicas,
                    demand=demand.get(w.name),
                    forecast=self._forecasting.bands.get(w.name),
                    trust=self._forecasting.trust.get(w.name, Trust.UNPROVEN),
                    near=self._forecasting.near.demands.get(w.name),
                    events=events.get(w.name, ()),
                    overrides=tuple(world.overrides.get(w.name, ())),
                    lead=self.leads[w.name],
                    competing_owner=None if view is None else view.competing_owner,
                    shortfall=None if view is None else view.shortfall,
                )
            )
        return TickInput(now, tuple(inputs), self._pools, world.pause.paused, world.pause.reason)

    def _know_loads(self, loads: Mapping[str, tuple[float, float]]) -> None:
        """A newly measured load time counts at once, not when the next replica has become warm."""
        for name in self._loads.keys() | loads.keys():
            if self._loads.get(name) != loads.get(name):
                self._lead.pop(name, None)
        self._loads = loads

    async def _measure(self, views: Mapping[str, PoolView], now: datetime) -> None:
        """Turn replicas that just became warm into lead-time samples, once each."""
        warm_ids: dict[str, frozenset[str]] = {}
        fresh: dict[tuple[str, str], Replica] = {}
        for name, view in views.items():
            warm = [r for r in view.replicas if r.stage_s and r.warm]
            news = [r for r in warm if r.id not in self._measured.get(name, ())]
            if news or name not in self._lead:
                warm_ids[name] = frozenset(r.id for r in warm)
                fresh.update({(name, r.id): r for r in news})
        if not warm_ids:
            return
        try:
            async with self._store.unit_of_work() as uow:
                # To a new leader every replica there is is fresh; those before it have measured nearly all of them.
                for known in await uow.warmups.known(fresh.keys()) if fresh else ():
                    del fresh[known]
                await uow.warmups.append_all(
                    [
                        (name, replica_id, now, LeadSample(r.stage_s, _batch_of(r, views[name].replicas)))
                        for (name, replica_id), r in fresh.items()
                    ]
                )
                samples = await uow.warmups.recent_of(list(warm_ids))
                await uow.commit()
        except UnavailableError as error:
            log.warning("lead times of %d workloads wait for the store: %s", len(warm_ids), error)
            return
        for name, ids in warm_ids.items():
            self._measured[name] = ids
            load = self._loads.get(name)
            priors = self._priors if load is None else with_load(self._priors, *load)
            self._lead[name] = estimate_lead_time(priors, samples.get(name, ()))

    async def _apply(
        self, world: World, effects: Sequence[Effect], token: int, leads: Callable[[], bool]
    ) -> None:
        by_name = {w.name: w for w in world.workloads}
        outcomes: list[Outcome] = []
        try:
            for effect in effects:
                if not isinstance(effect, ScaleTo | ReplaceReplica):
                    continue
                if not leads():
                    raise StaleFenceError(
                        "leadership ended while orders were given; the next leader gives the rest"
                    )
                if isinstance(effect, ScaleTo):
                    outcomes.append(await self._scale(by_name[effect.workload], effect, token))
                else:
                    await self._replace(by_name[effect.workload], effect, token)
                if len(outcomes) >= OUTCOMES_AT_ONCE:
                    full, outcomes = outcomes, []
                    await self._keep(full)
        finally:
            await self._keep(outcomes)

    async def _replace(self, workload: Workload, effect: ReplaceReplica, token: int) -> None:
        log.warning("%s", effect.sentence)
        order = self._actuator.replace(workload, effect.replica_id, fence=token)
        if problem := await _problem(order):
            log.warning("%s of %s stays: %s", effect.replica_id, effect.workload, problem)

    async def _scale(self, workload: Workload, effect: ScaleTo, token: int) -> Outcome:
        problem = await _problem(self._actuator.scale(workload, effect.replicas, fence=token))
        if problem:
            log.warning("%s stays as it is: %s", workload.name, problem)
        self._came_of[effect.decision_id] = problem
        applied = problem is None
        self.orders["accepted" if applied else "refused"] += 1
        return Outcome(
            effect.decision_id,
            self._clock.now(),
            applied,
            effect.replicas if applied else None,
            problem or "",
        )

    async def _keep(self, outcomes: Sequence[Outcome]) -> None:
        if not outcomes:
            return
        try:
            async with self._store.unit_of_work() as uow:
                await uow.decisions.outcome(*outcomes)
                await uow.commit()
        except PortError as error:
            log.warning("what came of %d decisions is not in the ledger: %s", len(outcomes), error)

    async def _announce(self, effects: Sequence[Effect]) -> None:
        names = sorted({e.decision.workload for e in effects if isinstance(e, RecordDecision)})
        try:
            await self._cache.publish(CHANGES, *(f"workloads/{name}".encode() for name in names))
        except UnavailableError as error:
            log.debug("watchers will find out by polling: %s", error)


def _is_news(counts: ReplicaCounts, told: ReplicaCounts | None) -> bool:
    return told is None or counts.at - told.at >= COUNTS_AGAIN or replace(told, at=counts.at) != counts


def _priors(provisioning_delay_s: float) -> tuple[StagePrior, ...]:
    """Priors that know how long this machine is told to pretend it takes to get a node."""
    node = StagePrior("node", provisioning_delay_s, provisioning_delay_s)
    return tuple(node if p.name == node.name else p for p in DEFAULT_PRIORS)


async def _problem(order: Awaitable[None]) -> str | None:
    """What kept an order from being accepted: one workload's trouble must not keep the others from theirs."""
    try:
        await order
    except StaleFenceError:
        raise
    except PortError as error:
        return str(error)
    except Exception as error:  # a defect of the actuator; the next tick asks again
        log.exception("an order failed")
        return f"unexpected: {error}"
    return None


def _batch_of(replica: Replica, replicas: Sequence[Replica]) -> int:
    return sum(abs((r.ordered_at - replica.ordered_at).total_seconds()) < 1.0 for r in replicas)
