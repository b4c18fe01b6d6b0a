"""The store in memory, with transactions.

Promises what the contract suite asks of every store: a unit of work sees its own writes, others see them
after `commit`, leaving without `commit` drops them. The first write of a unit of work waits for other
writers, as row locks would; reading never waits.
"""

import asyncio
import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from controller.accuracy import HourScore, Parts, Standing
from controller.adapters.fakes.leases import FakeLeaseStore
from controller.adapters.pages import Key, cut, last_key, page_size
from controller.adapters.samples import MINUTE, mean_qps, samples_in, sound_blocks, sound_samples, step_grid
from controller.core.engines import Engine, EngineProfile
from controller.core.leadtime import LeadSample
from controller.core.resources import (
    AuditEntry,
    ForecastRun,
    Outcome,
    Page,
    PauseState,
    TrafficBlock,
    TrafficEvent,
    TrafficSample,
)
from controller.core.rows import packed
from controller.core.tick import ticked
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
    TrafficStore,
    UnavailableError,
    WarmupStore,
    WorkloadStore,
    held_lease,
)

_LOCK_WAIT_S = 5.0
Row = TypeVar("Row")


@dataclass
class FakeTables:
    """Everything stored, by key. Values are immutable, so a shallow copy of each table is a snapshot."""

    workloads: dict[str, Workload] = field(default_factory=dict[str, Workload])
    remains: dict[str, str] = field(default_factory=dict[str, str])
    events: dict[str, tuple[TrafficEvent, ...]] = field(default_factory=dict[str, tuple[TrafficEvent, ...]])
    samples: dict[tuple[str, datetime], TrafficSample] = field(
        default_factory=dict[tuple[str, datetime], TrafficSample]
    )
    forecasts: dict[str, tuple[ForecastRun, ForecastBand]] = field(
        default_factory=dict[str, tuple[ForecastRun, ForecastBand]]
    )
    said: dict[str, tuple[bytes, bytes]] = field(default_factory=dict[str, tuple[bytes, bytes]])
    parts: dict[str, Parts] = field(default_factory=dict[str, Parts])
    scores: dict[tuple[str, datetime], HourScore] = field(
        default_factory=dict[tuple[str, datetime], HourScore]
    )
    standings: dict[str, Standing] = field(default_factory=dict[str, Standing])
    decisions: dict[str, Decision] = field(default_factory=dict[str, Decision])
    outcomes: dict[str, Outcome] = field(default_factory=dict[str, Outcome])
    plans: dict[tuple[str, int], CapacityPlan] = field(default_factory=dict[tuple[str, int], CapacityPlan])
    states: dict[str, WorkloadState] = field(default_factory=dict[str, WorkloadState])
    written: dict[str, datetime] = field(default_factory=dict[str, datetime])  # the tick that wrote a state
    # Whose ticks each state stands under, and when the newest of each was; None: of a single leader.
    state_leases: dict[str, str | None] = field(default_factory=dict[str, str | None])
    ticked: dict[str | None, datetime] = field(default_factory=dict[str | None, datetime])
    overrides: dict[tuple[str, str], Override] = field(default_factory=dict[tuple[str, str], Override])
    pause: dict[None, PauseState] = field(default_factory=dict[None, PauseState])
    warmups: dict[tuple[str, str], tuple[datetime, LeadSample]] = field(
        default_factory=dict[tuple[str, str], tuple[datetime, LeadSample]]
    )
    keys: dict[str, tuple[datetime, str, bytes]] = field(
        default_factory=dict[str, tuple[datetime, str, bytes]]
    )
    audit: dict[int, AuditEntry] = field(default_factory=dict[int, AuditEntry])
    contracts: dict[tuple[str, str], Contract] = field(default_factory=dict[tuple[str, str], Contract])
    engines: dict[str, Engine] = field(default_factory=dict[str, Engine])
    engine_profiles: dict[tuple[str, str], EngineProfile] = field(
        default_factory=dict[tuple[str, str], EngineProfile]
    )
    alarm_holds: dict[str, tuple[datetime, Held]] = field(default_factory=dict[str, tuple[datetime, Held]])
    notifications: dict[tuple[str, str], Delivery] = field(default_factory=dict[tuple[str, str], Delivery])


class _Transaction:
    """One unit of work's view of the tables."""

    def __init__(self, store: "FakeStore") -> None:
        self._store = store
        self._own: FakeTables | None = None

    async def read(self) -> FakeTables:
        """What was committed, or what this unit of work made of it."""
        self._store.answer()
        return self._own or self._store.tables

    async def write(self) -> FakeTables:
        """The unit of work's own copy; waits while another one writes."""
        self._store.answer()
        if self._own is None:
            try:
                async with asyncio.timeout(_LOCK_WAIT_S):
                    await self._store.writing.acquire()
            except TimeoutError:
                raise UnavailableError("another unit of work holds its writes open; try again") from None
            tables = self._store.tables
            self._own = FakeTables(**{name: copy.copy(table) for name, table in vars(tables).items()})
        return self._own

    def commit(self) -> None:
        self._store.answer()
        if self._own is not None:
            self._store.tables = self._own
            self.close()

    def close(self) -> None:
        if self._own is not None:
            self._own = None
            self._store.writing.release()


class FakeStore:
    """Implements `controller.ports.Store`. `tables` holds what is committed, for tests to look at."""

    def __init__(self, leases: FakeLeaseStore | None = None) -> None:
        self.available = True
        self.tables = FakeTables()
        self.writing = asyncio.Lock()
        self.leases = leases

    def answer(self) -> None:
        """Raise UnavailableError during an outage."""
        if not self.available:
            raise UnavailableError("the database is away, try again")

    def unit_of_work(self) -> "FakeUnitOfWork":
        """A fresh transaction, not begun yet."""
        return FakeUnitOfWork(self)

    async def check_revision(self) -> None:
        """Always the right one."""
        self.answer()

    async def maintain(self, now: datetime, retention: Retention) -> int:
        """Drop what is past its age; return how many records went."""
        transaction = _Transaction(self)
        tables = await transaction.write()
        decided_from, forecast_from = now - retention.decisions, now - retention.forecasts
        gone = {name for name in tables.states if _is_gone(tables, name, decided_from)}
        newest = _newest_forecasts(tables, forecast_from)
        dropped = (
            _drop(tables.samples, lambda sample: sample.minute_at < now - retention.traffic)
            + _drop(tables.decisions, lambda decision: decision.at < now - retention.decisions)
            + _drop(tables.outcomes, lambda outcome: outcome.at < now - retention.decisions)
            + _drop(
                tables.plans,
                lambda plan: (
                    plan.created_at < decided_from
                    and (
                        _is_superseded(tables, plan, decided_from)
                        or _is_gone(tables, plan.workload, decided_from)
                    )
                ),
            )
            + _drop(tables.contracts, lambda contract: contract.end_at < now - retention.decisions)
            + _drop(tables.overrides, lambda override: override.expires_at < now - retention.decisions)
            + _drop(
                tables.forecasts,
                lambda pair: pair[0].created_at < now - retention.forecasts and pair[0].id not in newest,
            )
            + _forget(
                tables.warmups,
                {
                    key
                    for key, (at, _) in tables.warmups.items()
                    if at < decided_from and _is_gone(tables, key[0], decided_from)
                },
            )
            + _forget(tables.states, gone)
            + _forget(tables.written, gone)
            + _forget(tables.state_leases, gone)
            + _drop(
                tables.forecasts, lambda pair: _is_another_of_its_hour(tables, pair[0], now - retention.runs)
            )
            + _drop(tables.parts, lambda parts: parts.created_at < now - retention.parts)
            + _drop(tables.scores, lambda hour: hour.start_at < now - retention.scores)
            + _drop(tables.keys, lambda kept: kept[0] < now - retention.idempotency)
            + _drop(tables.audit, lambda entry: entry.at < now - retention.audit)
            + _forget(
                tables.alarm_holds,
                {
                    key
                    for key, (at, one) in tables.alarm_holds.items()
                    if at < decided_from and _is_gone(tables, one.alarm.workload, decided_from)
                },
            )
            + _drop(tables.notifications, lambda one: one.notification.at < now - retention.notifications)
        )
        transaction.commit()
        return dropped

    async def close(self) -> None:
        """Nothing to release."""


def _is_gone(tables: FakeTables, name: str, before: datetime) -> bool:
    """Whether a workload is not registered, and its state not written since either."""
    return (
        name not in tables.workloads and tables.written.get(name, datetime.min.replace(tzinfo=UTC)) < before
    )


def _forget(table: dict[Any, Any], gone: Collection[Any]) -> int:
    return sum(table.pop(key, None) is not None for key in gone)


def _newest_forecasts(tables: FakeTables, before: datetime) -> set[str]:
    newest: dict[str, ForecastRun] = {}
    for run, _ in tables.forecasts.values():
        if _is_gone(tables, run.workload, before):
            continue
        if run.workload not in newest or run.origin_at > newest[run.workload].origin_at:
            newest[run.workload] = run
    return {run.id for run in newest.values()}


def _is_another_of_its_hour(tables: FakeTables, run: ForecastRun, before: datetime) -> bool:
    """Whether an older run stands for the same hour, and a newer one for a later hour."""
    hour = run.created_at.replace(minute=0, second=0, microsecond=0)
    others = [other.created_at for other, _ in tables.forecasts.values() if other.workload == run.workload]
    return (
        run.created_at < before
        and any(hour <= at < run.created_at for at in others)
        and any(at >= hour + timedelta(hours=1) for at in others)
    )


def _is_superseded(tables: FakeTables, plan: CapacityPlan, before: datetime) -> bool:
    return any(
        later.workload == plan.workload and later.revision > plan.revision and later.created_at < before
        for later in tables.plans.values()
    )


def _drop(table: dict[Any, Row], past: Callable[[Row], bool]) -> int:
    old = [key for key, row in table.items() if past(row)]
    for key in old:
        del table[key]
    return len(old)


def _page(
    rows: Iterable[Row],
    order: Callable[[Row], Key],
    page: Page | None,
    kind: type[Key],
    *,
    newest_first: bool = False,
) -> tuple[Sequence[Row], str]:
    """Sort, skip to the page's key, and cut."""
    size, after = page_size(page), last_key(page, kind)
    ordered = sorted(rows, key=order, reverse=newest_first)
    if after is not None:
        ordered = [row for row in ordered if (order(row) < after if newest_first else order(row) > after)]
    found = ordered[: size + 1]
    return cut(found, [order(row) for row in found], size)


class _Workloads:
    def __init__(self, transaction: _Transaction) -> None:
        self._at = transaction

    async def get(self, name: str) -> Workload:
        found = (await self._at.read()).workloads.get(name)
        if found is None:
            raise NotFoundError(f"workload {name!r} does not exist")
        return found

    async def create(self, workload: Workload) -> Workload:
        tables = await self._at.write()
        if workload.name in tables.workloads:
            raise ConflictError(f"workload {workload.name!r} exists already; update it instead")
        tables.workloads[workload.name] = replace(workload, generation=1)
        return tables.workloads[workload.name]

    async def update(self, workload: Workload, *, expected_generation: int | None) -> Workload:
        tables = await self._at.write()
        found = await self._expect(workload.name, expected_generation)
        tables.workloads[workload.name] = replace(workload, generation=found.generation + 1)
        return tables.workloads[workload.name]

    async def delete(self, name: str, *, expected_generation: int | None) -> None:
        tables = await self._at.write()
        found = await self._expect(name, expected_generation)
        del tables.workloads[name]
        tables.remains[name] = found.namespace
        if name in tables.written:
            tables.written[name] = max(tables.ticked.values(), default=tables.written[name])

    async def remains_in(self, name: str) -> str | None:
        return (await self._at.read()).remains.get(name)

    async def _expect(self, name: str, generation: int | None) -> Workload:
        found = await self.get(name)
        if generation not in {None, found.generation}:
            raise ConflictError(
                f"workload {name!r} is at generation {found.generation}, not {generation}; read it again"
            )
        return found

    async def known(self, names: Collection[str]) -> set[str]:
        return set(names) & (await self._at.read()).workloads.keys()

    async def marks(self) -> Mapping[str, str]:
        tables = await self._at.read()
        return {name: repr(workload) for name, workload in tables.workloads.items()}

    async def many(self, names: Collection[str]) -> Sequence[Workload]:
        tables = await self._at.read()
        return [tables.workloads[name] for name in names if name in tables.workloads]

    async def list(self, page: Page | None = None) -> tuple[Sequence[Workload], str]:
        tables = await self._at.read()
        return _page(tables.workloads.values(), lambda workload: (workload.name,), page, tuple[str])


class _Events:
    def __init__(self, transaction: _Transaction) -> None:
        self._at = transaction

    async def get(self, event_id: str) -> TrafficEvent:
        revisions = await self.revisions(event_id)
        if not revisions:
            raise NotFoundError(f"event {event_id!r} does not exist")
        return revisions[-1]

    async def create(self, event: TrafficEvent) -> TrafficEvent:
        tables = await self._at.write()
        if event.id in tables.events:
            raise ConflictError(f"event {event.id!r} exists already; update it, or choose another id")
        event = replace(event, revision=1)
        tables.events[event.id] = (event,)
        return event

    async def update(self, event: TrafficEvent, *, expected_revision: int | None) -> TrafficEvent:
        tables = await self._at.write()
        found = await self.get(event.id)
        if expected_revision not in {None, found.revision}:
            raise ConflictError(
                f"event {event.id!r} is at revision {found.revision}, not {expected_revision}; read it again"
            )
        event = replace(event, revision=found.revision + 1)
        tables.events[event.id] += (event,)
        return event

    async def list(
        self,
        *,
        page: Page | None = None,
        workload: str | None = None,
        states: Sequence[str] = (),
        category: str | None = None,
        overlaps: tuple[datetime, datetime] | None = None,
        order_by: str = "start_at",
        descending: bool = False,
    ) -> tuple[Sequence[TrafficEvent], str]:
        tables = await self._at.read()
        found = [
            event
            for *_, event in tables.events.values()
            if (workload is None or workload in event.workloads)
            and (not states or event.state in states)
            and (category is None or event.category == category)
            and (overlaps is None or _overlaps(event, overlaps))
        ]
        kind = tuple[str, str] if order_by == "id" else tuple[datetime, str]
        return _page(
            found,
            lambda event: (getattr(event, order_by), event.id),
            page,
            kind,
            newest_first=descending,
        )

    async def revisions(self, event_id: str) -> Sequence[TrafficEvent]:
        return (await self._at.read()).events.get(event_id, ())


def _overlaps(event: TrafficEvent, window: tuple[datetime, datetime]) -> bool:
    start_at, end_at = window
    return event.start_at < end_at and (event.recurring or event.end_at > start_at)


class _Traffic:
    def __init__(self, transaction: _Transaction) -> None:
        self._at = transaction

    async def upsert(self, samples: Sequence[TrafficSample]) -> int:
        rows = sound_samples(samples)
        tables = await self._at.write()
        tables.samples.update({(row.workload, row.minute_at): row for row in rows})
        return len(rows)

    async def upsert_blocks(self, blocks: Sequence[TrafficBlock]) -> int:
        return await self.upsert(list(samples_in(sound_blocks(blocks))))

    async def read(
        self, workload: str, start_at: datetime, end_at: datetime, *, step: timedelta = MINUTE
    ) -> Sequence[tuple[datetime, float | None]]:
        grid = step_grid(start_at, end_at, step)
        tables = await self._at.read()
        sums: dict[datetime, tuple[float, float]] = {}
        for at in grid:
            minutes = (at + MINUTE * index for index in range(step // MINUTE))
            rows = [row for minute in minutes if (row := tables.samples.get((workload, minute)))]
            sums[at] = sum(row.demand_count for row in rows), sum(row.coverage for row in rows)
        return mean_qps(grid, step, sums)

    async def read_many(
        self, workloads: Sequence[str], start_at: datetime, end_at: datetime
    ) -> Mapping[str, Sequence[tuple[datetime, float | None]]]:
        return {name: await self.read(name, start_at, end_at) for name in workloads}

    async def span(self, workload: str) -> tuple[datetime, datetime] | None:
        tables = await self._at.read()
        minutes = [minute for name, minute in tables.samples if name == workload]
        return (min(minutes), max(minutes)) if minutes else None


class _Forecasts:
    def __init__(self, transaction: _Transaction) -> None:
        self._at = transaction

    async def save(self, run: ForecastRun, band: ForecastBand) -> None:
        if run.id != band.id:
            raise ValueError(f"band.id: {band.id!r} belongs to another run than {run.id!r}")
        (await self._at.write()).forecasts.setdefault(run.id, (run, band))

    async def latest(self, workload: str) -> tuple[ForecastRun, ForecastBand] | None:
        return await self._newest(workload, lambda run: (run.origin_at, run.created_at))

    async def as_of(self, workload: str, at: datetime) -> tuple[ForecastRun, ForecastBand] | None:
        return await self._newest(workload, lambda run: run.created_at, created_until=at)

    async def bands_as_of(
        self, workload: str, moments: Sequence[datetime]
    ) -> Mapping[datetime, ForecastBand]:
        found = {at: await self.as_of(workload, at) for at in moments}
        return {at: pair[1] for at, pair in found.items() if pair is not None}

    async def newest(self, workloads: Sequence[str]) -> Mapping[str, str]:
        found = {name: await self.latest(name) for name in workloads}
        return {name: pair[0].id for name, pair in found.items() if pair is not None}

    async def latest_bands(self, workloads: Sequence[str]) -> Mapping[str, ForecastBand]:
        found = {name: await self.latest(name) for name in workloads}
        return {
            name: replace(pair[1], qps=packed(pair[1].qps))
            for name, pair in found.items()
            if pair is not None
        }

    async def put_said(self, workload: str, record: bytes, calibration: bytes = b"") -> None:
        (await self._at.write()).said[workload] = (record, calibration)

    async def said(self, workload: str) -> bytes | None:
        record, _ = (await self._at.read()).said.get(workload, (None, b""))
        return record

    async def calibrations(self, workloads: Sequence[str]) -> Mapping[str, bytes]:
        said = (await self._at.read()).said
        return {name: said[name][1] for name in workloads if name in said and said[name][1]}

    async def _newest(
        self, workload: str, order: Callable[[ForecastRun], Any], *, created_until: datetime | None = None
    ) -> tuple[ForecastRun, ForecastBand] | None:
        tables = await self._at.read()
        found = [
            pair
            for pair in tables.forecasts.values()
            if pair[0].workload == workload and (created_until is None or pair[0].created_at <= created_until)
        ]
        return max(found, key=lambda pair: order(pair[0]), default=None)


class _Accuracy:
    def __init__(self, transaction: _Transaction) -> None:
        self._at = transaction

    async def put_parts(self, parts: Parts) -> None:
        (await self._at.write()).parts.setdefault(parts.forecast_id, parts)

    async def parts(self, forecast_id: str) -> Parts | None:
        return (await self._at.read()).parts.get(forecast_id)

    async def put_scores(self, workload: str, hours: Sequence[HourScore]) -> None:
        (await self._at.write()).scores.update({(workload, hour.start_at): hour for hour in hours})

    async def scores(self, workload: str, start_at: datetime, end_at: datetime) -> Sequence[HourScore]:
        rows = (await self._at.read()).scores.items()
        return [hour for (name, at), hour in sorted(rows) if name == workload and start_at <= at < end_at]

    async def scored_until(self, workload: str) -> datetime | None:
        rows = (await self._at.read()).scores
        return max((at for name, at in rows if name == workload), default=None)

    async def put_standing(self, standing: Standing) -> None:
        (await self._at.write()).standings[standing.workload] = standing

    async def standings(self, workloads: Sequence[str]) -> Mapping[str, Standing]:
        kept = (await self._at.read()).standings
        return {name: kept[name] for name in workloads if name in kept}

    async def standing(self, workload: str) -> Standing | None:
        return (await self._at.read()).standings.get(workload)


class _Decisions:
    def __init__(self, transaction: _Transaction) -> None:
        self._at = transaction

    async def append(self, decisions: Sequence[Decision]) -> None:
        tables = await self._at.write()
        for decision in decisions:
            tables.decisions.setdefault(decision.id, decision)

    async def outcome(self, *outcomes: Outcome) -> None:
        tables = await self._at.write()
        for outcome in outcomes:
            earlier = tables.outcomes.get(outcome.decision_id)
            if earlier is None or earlier.at <= outcome.at:
                tables.outcomes[outcome.decision_id] = outcome

    async def get(self, decision_id: str) -> tuple[Decision, Outcome | None]:
        tables = await self._at.read()
        if decision_id not in tables.decisions:
            raise NotFoundError(f"decision {decision_id!r} does not exist, or is past its retention")
        return tables.decisions[decision_id], tables.outcomes.get(decision_id)

    async def list(
        self,
        *,
        workload: str | None = None,
        start_at: datetime | None = None,
        end_at: datetime | None = None,
        changes_only: bool = False,
        oldest_first: bool = False,
        page: Page | None = None,
    ) -> tuple[Sequence[tuple[Decision, Outcome | None]], str]:
        tables = await self._at.read()
        found = [
            decision
            for decision in tables.decisions.values()
            if (workload is None or decision.workload == workload)
            and (start_at is None or decision.at >= start_at)
            and (end_at is None or decision.at < end_at)
            and (not changes_only or decision.changes)
        ]
        listed, token = _page(
            found,
            lambda decision: (decision.at, decision.id),
            page,
            tuple[datetime, str],
            newest_first=not oldest_first,
        )
        return [(decision, tables.outcomes.get(decision.id)) for decision in listed], token

    async def save_plan(self, *plans: CapacityPlan) -> None:
        kept = (await self._at.write()).plans
        for plan in plans:
            kept.setdefault((plan.workload, plan.revision), plan)

    async def plan(self, workload: str, revision: int | None = None) -> CapacityPlan:
        tables = await self._at.read()
        found = [
            plan
            for (name, number), plan in tables.plans.items()
            if name == workload and revision in {None, number}
        ]
        if not found:
            which = "no plan" if revision is None else f"no plan revision {revision}"
            raise NotFoundError(f"workload {workload!r} has {which}")
        return max(found, key=lambda plan: plan.revision)


class _States:
    def __init__(self, transaction: _Transaction) -> None:
        self._at = transaction
        self.lease: str | None = None

    async def load(self, workloads: Collection[str] | None = None) -> Mapping[str, WorkloadState]:
        tables = await self._at.read()
        found: dict[str, WorkloadState] = {}
        for name, state in tables.states.items():
            if workloads is None or name in workloads:
                at = tables.ticked.get(tables.state_leases.get(name))
                found[name] = state if at is None else ticked(state, at)
        return found

    async def save(self, states: Mapping[str, WorkloadState], ticked_at: datetime | None = None) -> None:
        tables = await self._at.write()
        tables.states.update(states)
        tables.state_leases.update(dict.fromkeys(states, self.lease))
        if ticked_at is not None:
            tables.written.update(dict.fromkeys(states, ticked_at))
            tables.ticked[self.lease] = ticked_at

    async def take_over(self, workloads: Collection[str] | None = None) -> None:
        tables = await self._at.write()
        names = tables.states if workloads is None else tables.states.keys() & set(workloads)
        tables.state_leases.update(dict.fromkeys(names, self.lease))

    async def keep_contracts(self, contracts: Sequence[tuple[str, Contract]]) -> None:
        tables = await self._at.write()
        tables.contracts.update({(workload, c.event_id): c for workload, c in contracts})

    async def kept_contract(self, workload: str, occurrence_id: str) -> Contract | None:
        return (await self._at.read()).contracts.get((workload, occurrence_id))

    async def overrides(self, workload: str | None = None) -> Mapping[str, Sequence[Override]]:
        tables = await self._at.read()
        found: dict[str, list[Override]] = {}
        ordered = sorted(tables.overrides.items(), key=lambda item: (item[1].expires_at, item[1].id))
        for (name, _), override in ordered:
            if workload in {None, name}:
                found.setdefault(name, []).append(override)
        return found

    async def put_override(self, workload: str, override: Override) -> None:
        (await self._at.write()).overrides[workload, override.id] = override

    async def delete_override(self, workload: str, override_id: str) -> None:
        tables = await self._at.write()
        if tables.overrides.pop((workload, override_id), None) is None:
            raise NotFoundError(f"workload {workload!r} has no override {override_id!r}")

    async def pause(self) -> PauseState:
        return (await self._at.read()).pause.get(None, PauseState())

    async def set_pause(self, state: PauseState) -> None:
        (await self._at.write()).pause[None] = state


class _Warmups:
    def __init__(self, transaction: _Transaction) -> None:
        self._at = transaction

    async def append_all(self, starts: Sequence[tuple[str, str, datetime, LeadSample]]) -> None:
        warmups = (await self._at.write()).warmups
        for workload, replica_id, at, sample in starts:
            warmups[workload, replica_id] = (at, sample)

    async def recent_of(
        self, workloads: Sequence[str], limit: int = 50
    ) -> Mapping[str, Sequence[LeadSample]]:
        found = {name: await self.recent(name, limit) for name in workloads}
        return {name: samples for name, samples in found.items() if samples}

    async def known(self, starts: Collection[tuple[str, str]]) -> Collection[tuple[str, str]]:
        return set(starts) & (await self._at.read()).warmups.keys()

    async def recent(self, workload: str, limit: int = 50) -> Sequence[LeadSample]:
        tables = await self._at.read()
        found = [measured for (name, _), measured in tables.warmups.items() if name == workload]
        found.sort(key=lambda measured: measured[0], reverse=True)
        return [sample for _, sample in found[:limit]]


class _Engines:
    def __init__(self, transaction: _Transaction) -> None:
        self._at = transaction

    async def get(self, engine_id: str) -> Engine:
        found = (await self._at.read()).engines.get(engine_id)
        if found is None:
            raise NotFoundError(f"engine {engine_id!r} does not exist")
        return found

    async def create(self, engine: Engine) -> Engine:
        tables = await self._at.write()
        if engine.id in tables.engines or any(e.digest == engine.digest for e in tables.engines.values()):
            raise ConflictError(f"engine {engine.id!r}, or one of its digest, exists already")
        tables.engines[engine.id] = replace(engine, generation=1)
        return tables.engines[engine.id]

    async def update(self, engine: Engine, *, expected_generation: int | None) -> Engine:
        tables = await self._at.write()
        found = await self.get(engine.id)
        if expected_generation not in {None, found.generation}:
            raise ConflictError(
                f"engine {engine.id!r} is at generation {found.generation}, not {expected_generation}; read it again"
            )
        tables.engines[engine.id] = replace(engine, generation=found.generation + 1)
        return tables.engines[engine.id]

    async def list(self, page: Page | None = None) -> tuple[Sequence[Engine], str]:
        tables = await self._at.read()
        return _page(tables.engines.values(), lambda engine: (engine.id,), page, tuple[str])

    async def put_profile(self, profile: EngineProfile) -> EngineProfile:
        tables = await self._at.write()
        key = (profile.engine, profile.capacity.gpu_type)
        kept = tables.engine_profiles.get(key)
        if kept is None or kept.measured_at <= profile.measured_at:
            tables.engine_profiles[key] = profile
        return tables.engine_profiles[key]

    async def profiles(self, engine_ids: Sequence[str] | None = None) -> Sequence[EngineProfile]:
        tables = await self._at.read()
        found = sorted(tables.engine_profiles.items())
        return [profile for (engine, _), profile in found if engine_ids is None or engine in engine_ids]


class _Notifications:
    def __init__(self, transaction: _Transaction) -> None:
        self._at = transaction

    async def add(self, deliveries: Sequence[Delivery]) -> None:
        tables = await self._at.write()
        for one in deliveries:
            tables.notifications.setdefault((one.sink, one.notification.id), one)

    async def held(self, keys: Collection[str], away_before: datetime) -> Sequence[Held]:
        tables = await self._at.read()
        return [
            one
            for key, (_, one) in tables.alarm_holds.items()
            if key in keys
            or (
                one.away_since_at is not None
                and one.away_since_at <= away_before
                and one.alarm.workload in tables.workloads
            )
        ]

    async def keep_held(self, kept: Sequence[Held], forgotten: Collection[str], now: datetime) -> None:
        holds = (await self._at.write()).alarm_holds
        for key in forgotten:
            holds.pop(key, None)
        holds.update({one.alarm.key: (now, one) for one in kept})

    async def claim(self, sink: str, now: datetime, until: datetime, limit: int) -> Sequence[Delivery]:
        tables = await self._at.write()
        due = [
            one
            for one in tables.notifications.values()
            if one.sink == sink
            and one.state is DeliveryState.PENDING
            and (one.next_at is None or one.next_at <= now)
        ]
        due.sort(key=lambda one: (one.notification.at, one.notification.id))
        claimed = [replace(one, attempt_count=one.attempt_count + 1, next_at=until) for one in due[:limit]]
        tables.notifications.update({(one.sink, one.notification.id): one for one in claimed})
        return claimed

    async def settle(
        self, claimed: Delivery, state: DeliveryState, now: datetime, *, next_at: datetime | None, error: str
    ) -> bool:
        tables = await self._at.write()
        key = (claimed.sink, claimed.notification.id)
        kept = tables.notifications.get(key)
        if (
            kept is None
            or kept.state is not DeliveryState.PENDING
            or kept.attempt_count != claimed.attempt_count
        ):
            return False
        settled_at = None if state is DeliveryState.PENDING else now
        tables.notifications[key] = replace(
            kept, state=state, next_at=next_at, settled_at=settled_at, error=error
        )
        return True

    async def expire(self, before: datetime, now: datetime, error: str) -> int:
        tables = await self._at.write()
        old = [
            key
            for key, one in tables.notifications.items()
            if one.state is DeliveryState.PENDING and one.notification.at < before
        ]
        for key in old:
            tables.notifications[key] = replace(
                tables.notifications[key], state=DeliveryState.DEAD, next_at=None, settled_at=now, error=error
            )
        return len(old)

    async def backlogs(self) -> Mapping[str, Backlog]:
        found: dict[str, Backlog] = {}
        for one in (await self._at.read()).notifications.values():
            kept = found.get(one.sink, Backlog())
            if one.state is DeliveryState.PENDING:
                oldest_at = min(filter(None, (kept.oldest_at, one.notification.at)))
                found[one.sink] = replace(kept, pending_count=kept.pending_count + 1, oldest_at=oldest_at)
            elif one.state is DeliveryState.DEAD:
                found[one.sink] = replace(kept, dead_count=kept.dead_count + 1)
        return found

    async def list(
        self,
        *,
        page: Page | None = None,
        sink: str | None = None,
        state: DeliveryState | None = None,
        workload: str | None = None,
    ) -> tuple[Sequence[Delivery], str]:
        size, key = page_size(page), last_key(page, tuple[datetime, str, str])
        kept = (await self._at.read()).notifications.values()
        found = [
            one
            for one in kept
            if sink in {None, one.sink}
            and state in {None, one.state}
            and workload in {None, one.notification.workload}
            and (key is None or _told(one) < key)
        ]
        found.sort(key=_told, reverse=True)
        return cut(found, [_told(one) for one in found], size)


def _told(one: Delivery) -> tuple[datetime, str, str]:
    return one.notification.at, one.sink, one.notification.id


class _Records:
    def __init__(self, transaction: _Transaction) -> None:
        self._at = transaction

    async def remember(self, key: str, body_digest: str, response: bytes, now: datetime) -> None:
        tables = await self._at.write()
        if key in tables.keys:
            raise ConflictError(f"request_id {key!r} was used already; recall its response")
        tables.keys[key] = (now, body_digest, response)

    async def recall(self, key: str) -> tuple[str, bytes] | None:
        kept = (await self._at.read()).keys.get(key)
        return None if kept is None else kept[1:]

    async def audit(self, entry: AuditEntry) -> None:
        tables = await self._at.write()
        tables.audit[max(tables.audit, default=0) + 1] = entry

    async def entries(
        self,
        *,
        page: Page | None = None,
        principal: str | None = None,
        method: str | None = None,
        resource: str | None = None,
        outcome: str | None = None,
        start_at: datetime | None = None,
        end_at: datetime | None = None,
    ) -> tuple[Sequence[AuditEntry], str]:
        kept = (await self._at.read()).audit
        size, key = page_size(page), last_key(page, tuple[int])
        found = [
            (number, entry)
            for number, entry in sorted(kept.items(), reverse=True)
            if (key is None or number < key[0])
            and principal in {None, entry.principal}
            and method in {None, entry.method}
            and resource in {None, entry.resource}
            and outcome in {None, entry.outcome}
            and (start_at is None or entry.at >= start_at)
            and (end_at is None or entry.at < end_at)
        ]
        return cut([entry for _, entry in found], [(number,) for number, _ in found], size)


class FakeUnitOfWork:
    """Implements `controller.ports.UnitOfWork`."""

    workloads: WorkloadStore
    events: EventStore
    traffic: TrafficStore
    forecasts: ForecastStore
    accuracy: AccuracyStore
    decisions: DecisionStore
    states: StateStore
    warmups: WarmupStore
    records: RecordStore
    engines: EngineStore
    notifications: NotificationStore

    def __init__(self, store: FakeStore) -> None:
        self._store = store
        self._transaction = transaction = _Transaction(store)
        self.workloads = _Workloads(transaction)
        self.events = _Events(transaction)
        self.traffic = _Traffic(transaction)
        self.forecasts = _Forecasts(transaction)
        self.accuracy = _Accuracy(transaction)
        self.decisions = _Decisions(transaction)
        self.states = self._states = _States(transaction)
        self.warmups = _Warmups(transaction)
        self.records = _Records(transaction)
        self.engines = _Engines(transaction)
        self.notifications = _Notifications(transaction)

    async def __aenter__(self) -> Self:
        """Begin."""
        self._store.answer()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Roll back unless committed."""
        self._transaction.close()

    async def commit(self) -> None:
        """Show it to others."""
        self._transaction.commit()

    async def require_leader(self, token: int) -> None:
        """Raise StaleFenceError unless `token` is the newest. Without a lease store every token is.

        Does not hold a new leader back until commit, as the real one does.
        """
        self._store.answer()
        if self._store.leases is None:
            return
        self._states.lease = held_lease(self._store.leases.tokens(), token)
