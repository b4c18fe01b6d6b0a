"""The store as one caller may see it: what lies in other namespaces does not exist.

Promises: for a caller with grants in some namespaces, every read through any store leaves out other workloads and
what belongs to them, with exactly the answers of things that were never there; writes to them are refused. The
namespace of a workload is read in the same transaction. For everybody else nothing is wrapped and nothing costs.
Called by the API, whose servicers never ask who is calling: a new method is scoped before it is written.

What has no workload any more (decisions of a deleted one) is seen by callers of all namespaces only.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from controller.accuracy import HourScore, Parts, Standing
from controller.core.engines import Engine, EngineProfile
from controller.core.leadtime import LeadSample
from controller.core.resources import (
    ForecastRun,
    Outcome,
    Page,
    PauseState,
    TrafficBlock,
    TrafficEvent,
    TrafficSample,
)
from controller.core.types import (
    CapacityPlan,
    Contract,
    Decision,
    ForecastBand,
    Override,
    Workload,
    WorkloadState,
)
from controller.notify.types import Backlog, Delivery, DeliveryState, Held
from controller.ports import (
    AccuracyStore,
    Clock,
    ConflictError,
    DecisionStore,
    EngineStore,
    EventStore,
    ForecastStore,
    NotFoundError,
    NotificationStore,
    RecordStore,
    Retention,
    StateStore,
    Store,
    TrafficStore,
    UnitOfWork,
    WarmupStore,
    WorkloadStore,
)
from controller.usecases.caller import Caller, caller
from controller.usecases.errors import UseCaseError

R = TypeVar("R")

# Reads to fill one page of a caller who sees little, and rows of others that each may skip.
READS_MAX = 50
SKIPPED_ROWS = 1000
PAGE_SIZE_DEFAULT = 10_000


class HiddenError(UseCaseError):
    """Between the rows a caller sees lie too many of others."""

    code = "RESOURCE_EXHAUSTED"

    def __init__(self) -> None:
        super().__init__(
            "TOO_MUCH_TO_SEARCH",
            "there is too much to search for what you may see; ask for one workload, or for a window of time",
        )


class Sight:
    """Which workloads one caller sees, within one transaction."""

    def __init__(self, who: Caller, workloads: WorkloadStore) -> None:
        self.who = who
        self._workloads = workloads
        self._seen: dict[str, bool] = {}

    async def sees(self, workload: str) -> bool:
        """Whether the workload exists, for this caller."""
        if workload not in self._seen:
            try:
                found = await self._workloads.get(workload)
                self._seen[workload] = self.who.may_use(found.namespace)
            except NotFoundError:
                self._seen[workload] = False
        return self._seen[workload]

    async def sees_all(self, workloads: Sequence[str]) -> bool:
        """Whether every one of them exists, for this caller."""
        for workload in workloads:
            if not await self.sees(workload):
                return False
        return True

    async def require(self, workload: str) -> None:
        """Raise NotFoundError unless the caller sees it."""
        if not await self.sees(workload):
            raise NotFoundError(f"workload {workload!r} does not exist")

    def learn(self, workload: Workload) -> bool:
        """Take a workload just read; return whether the caller sees it."""
        self._seen[workload.name] = self.who.may_use(workload.namespace)
        return self._seen[workload.name]

    async def fill(
        self,
        page: Page | None,
        read: Callable[[Page], Awaitable[tuple[Sequence[R], str]]],
        visible: Callable[[R], Awaitable[bool]],
    ) -> tuple[Sequence[R], str]:
        """Read store pages until one page of what the caller sees is full, or the listing ends.

        A token only ever names a row that was returned: one that names a row of somebody else would tell of it.
        Long stretches of others' rows are skipped; raise HiddenError when there are too many of them.
        """
        page = page or Page(PAGE_SIZE_DEFAULT)
        found: list[R] = []
        token = good = page.token
        size = page.size
        for _ in range(READS_MAX):
            rows, after = await read(Page(size, token))
            seen = [number for number, row in enumerate(rows) if await visible(row)]
            fits = len(seen) <= page.size - len(found)
            if fits and not after:
                return [*found, *(rows[number] for number in seen)], ""
            seen = seen[: page.size - len(found)]
            if seen and seen[-1] < len(rows) - 1:
                # Once more up to the last one seen, for its token.
                rows, after = await read(Page(seen[-1] + 1, token))
            found += [rows[number] for number in seen if number < len(rows)]
            token = after
            good = after if seen else good
            if len(found) >= page.size or not after:
                return found, good
            size = page.size - len(found) if seen else SKIPPED_ROWS
        if found:
            return found, good
        raise HiddenError


class _Workloads:
    def __init__(self, inner: WorkloadStore, sight: Sight) -> None:
        self._inner, self._sight = inner, sight

    async def get(self, name: str) -> Workload:
        found = await self._inner.get(name)
        if not self._sight.learn(found):
            raise NotFoundError(f"workload {name!r} does not exist")
        return found

    async def known(self, names: Collection[str]) -> set[str]:
        return {name for name in await self._inner.known(names) if await self._sight.sees(name)}

    async def marks(self) -> Mapping[str, str]:
        marks = await self._inner.marks()
        return {name: mark for name, mark in marks.items() if await self._sight.sees(name)}

    async def many(self, names: Collection[str]) -> Sequence[Workload]:
        return [found for found in await self._inner.many(names) if self._sight.learn(found)]

    async def list(self, page: Page | None = None) -> tuple[Sequence[Workload], str]:
        async def visible(workload: Workload) -> bool:
            return self._sight.learn(workload)

        return await self._sight.fill(page, self._inner.list, visible)

    async def create(self, workload: Workload) -> Workload:
        self._sight.who.require(workload.namespace, "workload.namespace")
        created = await self._inner.create(workload)
        before = await self._inner.remains_in(workload.name)
        if before is not None and not self._sight.who.may_use(before):
            # Its history and decisions are another namespace's. Said as of a name that is taken, which it is.
            raise ConflictError(
                f"the name {workload.name!r} was used in another namespace; choose another one"
            )
        self._sight.learn(created)
        return created

    async def remains_in(self, name: str) -> str | None:
        found = await self._inner.remains_in(name)
        return found if found is not None and self._sight.who.may_use(found) else None

    async def update(self, workload: Workload, *, expected_generation: int | None) -> Workload:
        self._sight.who.require(workload.namespace, "workload.namespace")
        await self._sight.require(workload.name)
        return await self._inner.update(workload, expected_generation=expected_generation)

    async def delete(self, name: str, *, expected_generation: int | None) -> None:
        await self._sight.require(name)
        await self._inner.delete(name, expected_generation=expected_generation)


class _Events:
    """An event belongs to everybody who sees all of its workloads."""

    def __init__(self, inner: EventStore, sight: Sight) -> None:
        self._inner, self._sight = inner, sight

    async def get(self, event_id: str) -> TrafficEvent:
        found = await self._inner.get(event_id)
        if not await self._sight.sees_all(found.workloads):
            raise NotFoundError(f"event {event_id!r} does not exist")
        return found

    async def create(self, event: TrafficEvent) -> TrafficEvent:
        for workload in event.workloads:
            await self._sight.require(workload)
        return await self._inner.create(event)

    async def update(self, event: TrafficEvent, *, expected_revision: int | None) -> TrafficEvent:
        await self.get(event.id)
        for workload in event.workloads:
            await self._sight.require(workload)
        return await self._inner.update(event, expected_revision=expected_revision)

    async def list(
        self,
        *,
        page: Page | None = None,
        **filters: Any,  # noqa: ANN401 -- whatever the port has: it narrows only
    ) -> tuple[Sequence[TrafficEvent], str]:
        async def read(asked: Page) -> tuple[Sequence[TrafficEvent], str]:
            return await self._inner.list(page=asked, **filters)

        async def visible(event: TrafficEvent) -> bool:
            return await self._sight.sees_all(event.workloads)

        return await self._sight.fill(page, read, visible)

    async def revisions(self, event_id: str) -> Sequence[TrafficEvent]:
        kept = await self._inner.revisions(event_id)
        # An older revision may have named other workloads.
        return [event for event in kept if await self._sight.sees_all(event.workloads)]


class _Traffic:
    def __init__(self, inner: TrafficStore, sight: Sight) -> None:
        self._inner, self._sight = inner, sight

    async def upsert(self, samples: Sequence[TrafficSample]) -> int:
        for workload in {sample.workload for sample in samples}:
            await self._sight.require(workload)
        return await self._inner.upsert(samples)

    async def upsert_blocks(self, blocks: Sequence[TrafficBlock]) -> int:
        for workload in {block.workload for block in blocks}:
            await self._sight.require(workload)
        return await self._inner.upsert_blocks(blocks)

    async def read(
        self, workload: str, start_at: datetime, end_at: datetime, *, step: timedelta = timedelta(minutes=1)
    ) -> Sequence[tuple[datetime, float | None]]:
        await self._sight.require(workload)
        return await self._inner.read(workload, start_at, end_at, step=step)

    async def read_many(
        self, workloads: Sequence[str], start_at: datetime, end_at: datetime
    ) -> Mapping[str, Sequence[tuple[datetime, float | None]]]:
        return await self._inner.read_many(
            [name for name in workloads if await self._sight.sees(name)], start_at, end_at
        )

    async def span(self, workload: str) -> tuple[datetime, datetime] | None:
        return await self._inner.span(workload) if await self._sight.sees(workload) else None


class _Forecasts:
    def __init__(self, inner: ForecastStore, sight: Sight) -> None:
        self._inner, self._sight = inner, sight

    async def save(self, run: ForecastRun, band: ForecastBand) -> None:
        await self._sight.require(run.workload)
        await self._inner.save(run, band)

    async def latest(self, workload: str) -> tuple[ForecastRun, ForecastBand] | None:
        return await self._inner.latest(workload) if await self._sight.sees(workload) else None

    async def as_of(self, workload: str, at: datetime) -> tuple[ForecastRun, ForecastBand] | None:
        return await self._inner.as_of(workload, at) if await self._sight.sees(workload) else None

    async def bands_as_of(
        self, workload: str, moments: Sequence[datetime]
    ) -> Mapping[datetime, ForecastBand]:
        return await self._inner.bands_as_of(workload, moments) if await self._sight.sees(workload) else {}

    async def newest(self, workloads: Sequence[str]) -> Mapping[str, str]:
        return await self._inner.newest([name for name in workloads if await self._sight.sees(name)])

    async def latest_bands(self, workloads: Sequence[str]) -> Mapping[str, ForecastBand]:
        return await self._inner.latest_bands([name for name in workloads if await self._sight.sees(name)])

    async def put_said(self, workload: str, record: bytes, calibration: bytes = b"") -> None:
        self._sight.who.require_fleet("storing forecasts")
        await self._inner.put_said(workload, record, calibration)

    async def said(self, workload: str) -> bytes | None:
        return await self._inner.said(workload) if await self._sight.sees(workload) else None

    async def calibrations(self, workloads: Sequence[str]) -> Mapping[str, bytes]:
        return await self._inner.calibrations([name for name in workloads if await self._sight.sees(name)])


class _Accuracy:
    def __init__(self, inner: AccuracyStore, sight: Sight) -> None:
        self._inner, self._sight = inner, sight

    async def put_parts(self, parts: Parts) -> None:
        self._sight.who.require_fleet("storing forecasts")
        await self._inner.put_parts(parts)

    async def parts(self, forecast_id: str) -> Parts | None:
        found = await self._inner.parts(forecast_id)
        return found if found is not None and await self._sight.sees(found.workload) else None

    async def put_scores(self, workload: str, hours: Sequence[HourScore]) -> None:
        self._sight.who.require_fleet("storing scores")
        await self._inner.put_scores(workload, hours)

    async def scores(self, workload: str, start_at: datetime, end_at: datetime) -> Sequence[HourScore]:
        if not await self._sight.sees(workload):
            return ()
        return await self._inner.scores(workload, start_at, end_at)

    async def scored_until(self, workload: str) -> datetime | None:
        return await self._inner.scored_until(workload) if await self._sight.sees(workload) else None

    async def put_standing(self, standing: Standing) -> None:
        self._sight.who.require_fleet("storing scores")
        await self._inner.put_standing(standing)

    async def standings(self, workloads: Sequence[str]) -> Mapping[str, Standing]:
        return await self._inner.standings([name for name in workloads if await self._sight.sees(name)])

    async def standing(self, workload: str) -> Standing | None:
        return await self._inner.standing(workload) if await self._sight.sees(workload) else None


class _Decisions:
    def __init__(self, inner: DecisionStore, sight: Sight) -> None:
        self._inner, self._sight = inner, sight

    async def append(self, decisions: Sequence[Decision]) -> None:
        self._sight.who.require_fleet("recording decisions")
        await self._inner.append(decisions)

    async def outcome(self, *outcomes: Outcome) -> None:
        self._sight.who.require_fleet("recording outcomes")
        await self._inner.outcome(*outcomes)

    async def get(self, decision_id: str) -> tuple[Decision, Outcome | None]:
        found = await self._inner.get(decision_id)
        if not await self._sight.sees(found[0].workload):
            raise NotFoundError(f"decision {decision_id!r} does not exist")
        return found

    async def list(
        self,
        *,
        page: Page | None = None,
        **filters: Any,  # noqa: ANN401 -- as above
    ) -> tuple[Sequence[tuple[Decision, Outcome | None]], str]:
        async def read(asked: Page) -> tuple[Sequence[tuple[Decision, Outcome | None]], str]:
            return await self._inner.list(page=asked, **filters)

        async def visible(row: tuple[Decision, Outcome | None]) -> bool:
            return await self._sight.sees(row[0].workload)

        return await self._sight.fill(page, read, visible)

    async def save_plan(self, *plans: CapacityPlan) -> None:
        self._sight.who.require_fleet("storing plans")
        await self._inner.save_plan(*plans)

    async def plan(self, workload: str, revision: int | None = None) -> CapacityPlan:
        await self._sight.require(workload)
        return await self._inner.plan(workload, revision)


class _States:
    def __init__(self, inner: StateStore, sight: Sight) -> None:
        self._inner, self._sight = inner, sight

    async def load(self, workloads: Collection[str] | None = None) -> Mapping[str, WorkloadState]:
        states = await self._inner.load(workloads)
        return {name: state for name, state in states.items() if await self._sight.sees(name)}

    async def save(self, states: Mapping[str, WorkloadState], ticked_at: datetime | None = None) -> None:
        self._sight.who.require_fleet("storing states")
        await self._inner.save(states, ticked_at)

    async def take_over(self, workloads: Collection[str] | None = None) -> None:
        self._sight.who.require_fleet("taking states over")
        await self._inner.take_over(workloads)

    async def keep_contracts(self, contracts: Sequence[tuple[str, Contract]]) -> None:
        self._sight.who.require_fleet("storing contracts")
        await self._inner.keep_contracts(contracts)

    async def kept_contract(self, workload: str, occurrence_id: str) -> Contract | None:
        if not await self._sight.sees(workload):
            return None
        return await self._inner.kept_contract(workload, occurrence_id)

    async def overrides(self, workload: str | None = None) -> Mapping[str, Sequence[Override]]:
        overrides = await self._inner.overrides(workload)
        return {name: rows for name, rows in overrides.items() if await self._sight.sees(name)}

    async def put_override(self, workload: str, override: Override) -> None:
        await self._sight.require(workload)
        await self._inner.put_override(workload, override)

    async def delete_override(self, workload: str, override_id: str) -> None:
        await self._sight.require(workload)
        await self._inner.delete_override(workload, override_id)

    async def pause(self) -> PauseState:
        return await self._inner.pause()  # it holds for every namespace, so everybody may know

    async def set_pause(self, state: PauseState) -> None:
        self._sight.who.require_fleet("pausing or resuming the fleet")
        await self._inner.set_pause(state)


class _Warmups:
    def __init__(self, inner: WarmupStore, sight: Sight) -> None:
        self._inner, self._sight = inner, sight

    async def append_all(self, starts: Sequence[tuple[str, str, datetime, LeadSample]]) -> None:
        self._sight.who.require_fleet("recording starts")
        await self._inner.append_all(starts)

    async def recent_of(
        self, workloads: Sequence[str], limit: int = 50
    ) -> Mapping[str, Sequence[LeadSample]]:
        return await self._inner.recent_of([w for w in workloads if await self._sight.sees(w)], limit)

    async def known(self, starts: Collection[tuple[str, str]]) -> Collection[tuple[str, str]]:
        return await self._inner.known([start for start in starts if await self._sight.sees(start[0])])

    async def recent(self, workload: str, limit: int = 50) -> Sequence[LeadSample]:
        return await self._inner.recent(workload, limit) if await self._sight.sees(workload) else ()


class _Engines:
    """The catalogue is for all: everybody reads it, and who changes it changes it for every namespace."""

    def __init__(self, inner: EngineStore, sight: Sight) -> None:
        self._inner, self._sight = inner, sight

    async def get(self, engine_id: str) -> Engine:
        return await self._inner.get(engine_id)

    async def create(self, engine: Engine) -> Engine:
        self._sight.who.require_fleet("the engine catalogue")
        return await self._inner.create(engine)

    async def update(self, engine: Engine, *, expected_generation: int | None) -> Engine:
        self._sight.who.require_fleet("the engine catalogue")
        return await self._inner.update(engine, expected_generation=expected_generation)

    async def list(self, page: Page | None = None) -> tuple[Sequence[Engine], str]:
        return await self._inner.list(page)

    async def put_profile(self, profile: EngineProfile) -> EngineProfile:
        self._sight.who.require_fleet("the engine catalogue")
        return await self._inner.put_profile(profile)

    async def profiles(self, engine_ids: Sequence[str] | None = None) -> Sequence[EngineProfile]:
        return await self._inner.profiles(engine_ids)


class _Notifications:
    """What was told of a workload is seen by those who see it; what tells of several, by those who see all."""

    def __init__(self, inner: NotificationStore, sight: Sight) -> None:
        self._inner, self._sight = inner, sight

    async def add(self, deliveries: Sequence[Delivery]) -> None:
        self._sight.who.require_fleet("notifications")
        await self._inner.add(deliveries)

    async def held(self, keys: Collection[str], away_before: datetime) -> Sequence[Held]:
        self._sight.who.require_fleet("notifications")
        return await self._inner.held(keys, away_before)

    async def keep_held(self, kept: Sequence[Held], forgotten: Collection[str], now: datetime) -> None:
        self._sight.who.require_fleet("notifications")
        await self._inner.keep_held(kept, forgotten, now)

    async def claim(self, sink: str, now: datetime, until: datetime, limit: int) -> Sequence[Delivery]:
        self._sight.who.require_fleet("notifications")
        return await self._inner.claim(sink, now, until, limit)

    async def settle(
        self, claimed: Delivery, state: DeliveryState, now: datetime, *, next_at: datetime | None, error: str
    ) -> bool:
        self._sight.who.require_fleet("notifications")
        return await self._inner.settle(claimed, state, now, next_at=next_at, error=error)

    async def expire(self, before: datetime, now: datetime, error: str) -> int:
        self._sight.who.require_fleet("notifications")
        return await self._inner.expire(before, now, error)

    async def backlogs(self) -> Mapping[str, Backlog]:
        self._sight.who.require_fleet("notifications")
        return await self._inner.backlogs()

    async def list(
        self,
        *,
        page: Page | None = None,
        sink: str | None = None,
        state: DeliveryState | None = None,
        workload: str | None = None,
    ) -> tuple[Sequence[Delivery], str]:
        if workload is not None and not await self._sight.sees(workload):
            return [], ""

        async def read(at: Page) -> tuple[Sequence[Delivery], str]:
            return await self._inner.list(page=at, sink=sink, state=state, workload=workload)

        async def visible(one: Delivery) -> bool:
            # The name may have been given again since, in another namespace.
            told = one.notification
            return self._sight.who.may_use(told.namespace) and await self._sight.sees(told.workload)

        return await self._sight.fill(page, read, visible)


class _ScopedUnitOfWork:
    """Implements `controller.ports.UnitOfWork` over another one."""

    workloads: WorkloadStore
    events: EventStore
    traffic: TrafficStore
    forecasts: ForecastStore
    accuracy: AccuracyStore
    decisions: DecisionStore
    states: StateStore
    warmups: WarmupStore
    engines: EngineStore
    records: RecordStore
    notifications: NotificationStore

    def __init__(self, inner: UnitOfWork, who: Caller) -> None:
        self._inner, self._who = inner, who

    async def __aenter__(self) -> Self:
        inner = await self._inner.__aenter__()
        sight = Sight(self._who, inner.workloads)
        self.workloads = _Workloads(inner.workloads, sight)
        self.events = _Events(inner.events, sight)
        self.traffic = _Traffic(inner.traffic, sight)
        self.forecasts = _Forecasts(inner.forecasts, sight)
        self.accuracy = _Accuracy(inner.accuracy, sight)
        self.engines = _Engines(inner.engines, sight)
        self.decisions = _Decisions(inner.decisions, sight)
        self.states = _States(inner.states, sight)
        self.warmups = _Warmups(inner.warmups, sight)
        self.notifications = _Notifications(inner.notifications, sight)
        self.records = inner.records  # request ids bear the caller's name already
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(exc_type, exc, tb)

    async def commit(self) -> None:
        await self._inner.commit()

    async def require_leader(self, token: int) -> None:
        await self._inner.require_leader(token)


class ScopedStore:
    """Implements `controller.ports.Store`: units of work see what the caller of the moment may see."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    def unit_of_work(self) -> UnitOfWork:
        """A fresh transaction, not begun yet."""
        who = caller()
        inner = self._inner.unit_of_work()
        return inner if who.namespaces is None else _ScopedUnitOfWork(inner, who)

    async def check_revision(self) -> None:
        """Raise PortError unless the schema is the one this release was built for."""
        await self._inner.check_revision()

    async def maintain(self, now: datetime, retention: Retention) -> int:
        """Drop what is past its age."""
        return await self._inner.maintain(now, retention)

    async def close(self) -> None:
        """Release every connection."""
        await self._inner.close()


class Directory:
    """Namespaces of workloads, remembered for a moment: streams ask for every message they send."""

    def __init__(self, store: Store, clock: Clock, *, age_max_s: float = 5.0, size_max: int = 20_000) -> None:
        self._store, self._clock = store, clock
        self._age_max_s, self._size_max = age_max_s, size_max
        self._known: OrderedDict[str, tuple[float, str | None]] = OrderedDict()

    async def sees(self, who: Caller, workloads: Sequence[str]) -> bool:
        """Whether every workload exists for the caller; up to ``age_max_s`` behind the store."""
        if who.namespaces is None:
            return True
        for workload in workloads:
            namespace = await self._namespace(workload)
            if namespace is None or not who.may_use(namespace):
                return False
        return True

    async def _namespace(self, workload: str) -> str | None:
        now_s = self._clock.monotonic()
        read_s, namespace = self._known.get(workload, (float("-inf"), None))
        if now_s - read_s <= self._age_max_s:
            return namespace
        async with self._store.unit_of_work() as uow:
            try:
                namespace = (await uow.workloads.get(workload)).namespace
            except NotFoundError:
                namespace = None
        self._known[workload] = (now_s, namespace)
        self._known.move_to_end(workload)
        if len(self._known) > self._size_max:
            self._known.popitem(last=False)
        return namespace
