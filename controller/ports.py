"""What the shell needs from the outside, as Protocols. Each has one real adapter, one written fake and one contract suite.

Use cases and the loop know these only; ``bootstrap`` names the adapters. Every method may raise
``PortError`` subclasses and nothing else that a caller is expected to handle.
"""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Final, Protocol, Self

from controller.accuracy import HourScore, Parts, Standing
from controller.core.engines import Engine, EngineProfile
from controller.core.leadtime import LeadSample
from controller.core.resources import (
    AuditEntry,
    ForecastRun,
    Lease,
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
    DemandObservation,
    Event,
    FleetState,
    ForecastBand,
    NearDemand,
    Override,
    Replica,
    Stage,
    Trust,
    Workload,
    WorkloadState,
)
from controller.notify.types import Backlog, Delivery, DeliveryState, Held, Notification

# The lease whose newest token fences every write of the loop.
LEADER_LEASE: Final = "leader"
# Where workloads are split over shards, each shard has a lease of its own, and each process one that says it is there.
SHARD_LEASES: Final = "shard/"
MEMBER_LEASES: Final = "member/"


class PortError(Exception):
    """The outside did not do what was asked; the message says what to do about it."""


class UnavailableError(PortError):
    """The dependency is away: try again later. Nothing was written."""


class ConflictError(PortError):
    """Somebody else changed it first: an etag, a revision or a name that exists already."""


class NotFoundError(PortError):
    """No such resource."""


class StaleFenceError(PortError):
    """The fencing token is not the newest: this process no longer leads and must stop acting."""


class SinkBusyError(UnavailableError):
    """A sink could not take a notification now; ``after``: how long it asked us to wait, if it did."""

    def __init__(self, message: str, after: timedelta | None = None) -> None:
        super().__init__(message)
        self.after = after


class SinkRefusedError(PortError):
    """A sink will never take this notification."""


class Clock(Protocol):
    """The only way to read time."""

    def now(self) -> datetime:
        """Wall time, aware UTC; for records."""
        ...

    def monotonic(self) -> float:
        """Seconds of a clock that never steps; for durations."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait ``seconds`` of this clock."""
        ...


class WorkloadStore(Protocol):
    """Workloads by name. The etag of a workload is its generation."""

    async def get(self, name: str) -> Workload:
        """Raise NotFoundError if there is none."""
        ...

    async def known(self, names: Collection[str]) -> set[str]:
        """Which of these exist, at once."""
        ...

    async def marks(self) -> Mapping[str, str]:
        """A mark per workload that is another one after every write of it: what a reader may keep, and what not."""
        ...

    async def many(self, names: Collection[str]) -> Sequence[Workload]:
        """Those of these that exist, in no order."""
        ...

    async def list(self, page: Page | None = None) -> tuple[Sequence[Workload], str]:
        """Ordered by name; the second value is the next page token, empty at the end.

        Without a page, here and in every listing: the first 10 000 rows.
        """
        ...

    async def create(self, workload: Workload) -> Workload:
        """Raise ConflictError if the name is taken. Returns it with generation 1."""
        ...

    async def update(self, workload: Workload, *, expected_generation: int | None) -> Workload:
        """Replace the spec; generation grows by one. Raise ConflictError on another generation."""
        ...

    async def delete(self, name: str, *, expected_generation: int | None) -> None:
        """Delete the spec; samples, decisions and events stay."""
        ...

    async def remains_in(self, name: str) -> str | None:
        """Namespace of the workload of that name that was deleted last, and whose history stays. None: there was none."""
        ...


class EventStore(Protocol):
    """Traffic events with the full history of their edits; nothing is ever deleted."""

    async def get(self, event_id: str) -> TrafficEvent:
        """The newest revision. Raise NotFoundError if there is none."""
        ...

    async def create(self, event: TrafficEvent) -> TrafficEvent:
        """Raise ConflictError if the id is taken."""
        ...

    async def update(self, event: TrafficEvent, *, expected_revision: int | None) -> TrafficEvent:
        """Store a new revision, atomically. Raise ConflictError on another revision."""
        ...

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
        """Ordered by ``order_by`` ("start_at", "end_at" or "id"), then by id, both in the same direction.

        Recurring events overlap a window from their first start on.
        """
        ...

    async def revisions(self, event_id: str) -> Sequence[TrafficEvent]:
        """Oldest first."""
        ...


class TrafficStore(Protocol):
    """Demand per minute. Writing the same minute again replaces it (idempotent upsert)."""

    async def upsert(self, samples: Sequence[TrafficSample]) -> int:
        """Store samples; return how many rows were written. Non-finite or negative values raise ValueError."""
        ...

    async def upsert_blocks(self, blocks: Sequence[TrafficBlock]) -> int:
        """Store minutes in columns, one block per workload; return how many there are. ValueError as in ``upsert``."""
        ...

    async def read(
        self, workload: str, start_at: datetime, end_at: datetime, *, step: timedelta = timedelta(minutes=1)
    ) -> Sequence[tuple[datetime, float | None]]:
        """Mean demand in QPS of every whole step inside the half-open window, on the step's grid since 1970.

        None where under half of the step was observed. ValueError unless the step is whole minutes.
        """
        ...

    async def read_many(
        self, workloads: Sequence[str], start_at: datetime, end_at: datetime
    ) -> Mapping[str, Sequence[tuple[datetime, float | None]]]:
        """What ``read`` says of every whole minute, for each of the workloads, in one look."""
        ...

    async def span(self, workload: str) -> tuple[datetime, datetime] | None:
        """First and last stored minute, or None."""
        ...


class ForecastStore(Protocol):
    """Forecast runs: header and band."""

    async def save(self, run: ForecastRun, band: ForecastBand) -> None:
        """Store a run. The same id again is a no-op. ValueError if the band's id is not the run's."""
        ...

    async def latest(self, workload: str) -> tuple[ForecastRun, ForecastBand] | None:
        """The newest run by origin."""
        ...

    async def as_of(self, workload: str, at: datetime) -> tuple[ForecastRun, ForecastBand] | None:
        """The run that was the newest at ``at`` (by created_at)."""
        ...

    async def bands_as_of(
        self, workload: str, moments: Sequence[datetime]
    ) -> Mapping[datetime, ForecastBand]:
        """Band of the run that was the newest at each moment, where there was one."""
        ...

    async def newest(self, workloads: Sequence[str]) -> Mapping[str, str]:
        """Id of the newest run by origin, for workloads that have any; far cheaper than reading it."""
        ...

    async def latest_bands(self, workloads: Sequence[str]) -> Mapping[str, ForecastBand]:
        """Band of the newest run by origin, for workloads that have any, its quantiles packed (`core.rows`)."""
        ...

    async def put_said(self, workload: str, record: bytes, calibration: bytes = b"") -> None:
        """Replace what near demand remembers of a workload's forecasts, and what it measured (``NearModel``)."""
        ...

    async def said(self, workload: str) -> bytes | None:
        """The record that was put last, or None."""
        ...

    async def calibrations(self, workloads: Sequence[str]) -> Mapping[str, bytes]:
        """What was measured and put last, for workloads whose last put has any."""
        ...


class AccuracyStore(Protocol):
    """What forecasts are made of, how good they were, and which model makes them."""

    async def put_parts(self, parts: Parts) -> None:
        """Store what a forecast is made of; the same forecast again is a no-op."""
        ...

    async def parts(self, forecast_id: str) -> Parts | None:
        """What a forecast is made of; None when that is not kept (any more). Parts are of single precision."""
        ...

    async def put_scores(self, workload: str, hours: Sequence[HourScore]) -> None:
        """Store scored hours; the same hour again replaces the first."""
        ...

    async def scores(self, workload: str, start_at: datetime, end_at: datetime) -> Sequence[HourScore]:
        """Scored hours that began in the half-open window, oldest first."""
        ...

    async def scored_until(self, workload: str) -> datetime | None:
        """Start of the last scored hour, or None."""
        ...

    async def put_standing(self, standing: Standing) -> None:
        """Replace a workload's standing."""
        ...

    async def standing(self, workload: str) -> Standing | None:
        """A workload's standing, or None before the first."""
        ...

    async def standings(self, workloads: Sequence[str]) -> Mapping[str, Standing]:
        """Standings of workloads that have one."""
        ...


class DecisionStore(Protocol):
    """The ledger: decisions and their outcomes, plans, alarms."""

    async def append(self, decisions: Sequence[Decision]) -> None:
        """Store decisions; the same id again is a no-op."""
        ...

    async def outcome(self, *outcomes: Outcome) -> None:
        """Attach what came of decisions, one each."""
        ...

    async def get(self, decision_id: str) -> tuple[Decision, Outcome | None]:
        """Raise NotFoundError if there is none."""
        ...

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
        """Newest first unless asked otherwise; a token belongs to one order. The window is half open."""
        ...

    async def save_plan(self, *plans: CapacityPlan) -> None:
        """Store immutable revisions; the same (workload, revision) again is a no-op."""
        ...

    async def plan(self, workload: str, revision: int | None = None) -> CapacityPlan:
        """The given or newest revision. Raise NotFoundError if there is none."""
        ...


class StateStore(Protocol):
    """Core state per workload, overrides and the global pause."""

    async def load(self, workloads: Collection[str] | None = None) -> Mapping[str, WorkloadState]:
        """Every stored state, or those of these workloads, as the newest tick left them (``core.tick.ticked``)."""
        ...

    async def save(self, states: Mapping[str, WorkloadState], ticked_at: datetime | None = None) -> None:
        """Replace the given states. Call ``UnitOfWork.require_leader`` in the same transaction.

        ``ticked_at``: when the tick was; what it left as it stood need not be given. Plans are kept by reference:
        give them to ``DecisionStore.save_plan`` first.
        """
        ...

    async def take_over(self, workloads: Collection[str] | None = None) -> None:
        """Let these states, or all, stand under the ticks of the lease this transaction requires, from now on.

        Call it after ``UnitOfWork.require_leader``, in the commit of a leader's first tick.
        """
        ...

    async def keep_contracts(self, contracts: Sequence[tuple[str, Contract]]) -> None:
        """Keep how contracts stand, by workload, beyond the state of the loop: for reports."""
        ...

    async def kept_contract(self, workload: str, occurrence_id: str) -> Contract | None:
        """The last word on an occurrence's prewarm, or None."""
        ...

    async def overrides(self, workload: str | None = None) -> Mapping[str, Sequence[Override]]:
        """Every stored override by workload, expired ones too (the core judges by its ``now``)."""
        ...

    async def put_override(self, workload: str, override: Override) -> None:
        """Store or replace by id."""
        ...

    async def delete_override(self, workload: str, override_id: str) -> None:
        """Raise NotFoundError if there is none."""
        ...

    async def pause(self) -> PauseState:
        """The global pause."""
        ...

    async def set_pause(self, state: PauseState) -> None:
        """Change the global pause."""
        ...


class WarmupStore(Protocol):
    """Measured lead times."""

    async def recent(self, workload: str, limit: int = 50) -> Sequence[LeadSample]:
        """Newest first."""
        ...

    async def append_all(self, starts: Sequence[tuple[str, str, datetime, LeadSample]]) -> None:
        """Store measured starts as (workload, replica id, when, sample), each of another replica; one that is stored is replaced."""
        ...

    async def recent_of(
        self, workloads: Sequence[str], limit: int = 50
    ) -> Mapping[str, Sequence[LeadSample]]:
        """As ``recent``, of workloads that have any."""
        ...

    async def known(self, starts: Collection[tuple[str, str]]) -> Collection[tuple[str, str]]:
        """Those (workload, replica id) whose start is stored."""
        ...


class EngineStore(Protocol):
    """Engines by id, and what they were measured to sustain. The etag of an engine is its generation."""

    async def get(self, engine_id: str) -> Engine:
        """Raise NotFoundError if there is none."""
        ...

    async def create(self, engine: Engine) -> Engine:
        """Raise ConflictError if the id or the digest is taken. Returns it with generation 1."""
        ...

    async def update(self, engine: Engine, *, expected_generation: int | None) -> Engine:
        """Replace the record; generation grows by one. Raise ConflictError on another generation."""
        ...

    async def list(self, page: Page | None = None) -> tuple[Sequence[Engine], str]:
        """Ordered by id."""
        ...

    async def put_profile(self, profile: EngineProfile) -> EngineProfile:
        """Keep the newest measurement of an engine on a GPU type; return what is kept."""
        ...

    async def profiles(self, engine_ids: Sequence[str] | None = None) -> Sequence[EngineProfile]:
        """Measured profiles of these engines, or the first 10 000 of all, by engine and GPU type."""
        ...


class RecordStore(Protocol):
    """Idempotency keys and the audit log."""

    async def remember(self, key: str, body_digest: str, response: bytes, now: datetime) -> None:
        """Keep a mutation's response under its request id. Raise ConflictError if the key exists."""
        ...

    async def recall(self, key: str) -> tuple[str, bytes] | None:
        """(body digest, response) of an earlier call with this request id."""
        ...

    async def audit(self, entry: AuditEntry) -> None:
        """Append to the audit log."""
        ...

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
        """The audit log, newest written first; every filter must match exactly, ``at`` lies in the half-open window."""
        ...


class NotificationStore(Protocol):
    """The outbox: what is to be told, once per sink, and how far that has come."""

    async def add(self, deliveries: Sequence[Delivery]) -> None:
        """Store them; the same notification for the same sink again is a no-op, whatever became of the first."""
        ...

    async def held(self, keys: Collection[str], away_before: datetime) -> Sequence[Held]:
        """What is remembered of the alarms of these keys, and of all that have been away since ``away_before`` or longer.

        Of these, only those of registered workloads: nobody tells of others, and they stay until they are past their age.
        """
        ...

    async def keep_held(self, kept: Sequence[Held], forgotten: Collection[str], now: datetime) -> None:
        """Remember these, each in place of what was known of its key, and forget others by their keys."""
        ...

    async def claim(self, sink: str, now: datetime, until: datetime, limit: int) -> Sequence[Delivery]:
        """Take what is due at ``now`` for a sink, oldest first, each with one attempt more; nobody else before ``until``.

        Call ``UnitOfWork.require_leader`` in the same transaction.
        """
        ...

    async def settle(
        self, claimed: Delivery, state: DeliveryState, now: datetime, *, next_at: datetime | None, error: str
    ) -> bool:
        """Say what came of a claim; False, and nothing changes, when it was claimed again since, or is settled."""
        ...

    async def expire(self, before: datetime, now: datetime, error: str) -> int:
        """Give up what is older and still pending, claimed or not; return how many."""
        ...

    async def backlogs(self) -> Mapping[str, Backlog]:
        """What each sink has not got, by sink."""
        ...

    async def list(
        self,
        *,
        page: Page | None = None,
        sink: str | None = None,
        state: DeliveryState | None = None,
        workload: str | None = None,
    ) -> tuple[Sequence[Delivery], str]:
        """Newest first, then by sink and id."""
        ...


class UnitOfWork(Protocol):
    """One transaction over every store. Leaving without ``commit`` rolls back."""

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

    async def __aenter__(self) -> Self:
        """Begin."""
        ...

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Roll back unless committed; release the connection."""
        ...

    async def commit(self) -> None:
        """Make it durable."""
        ...

    async def require_leader(self, token: int) -> None:
        """Raise StaleFenceError unless ``token`` is the newest; holds until commit against a new leader.

        The newest is that of ``LEADER_LEASE``, or of a shard's lease if that of ``LEADER_LEASE`` is no greater.
        """
        ...


def held_lease(tokens: Mapping[str, int], token: int) -> str | None:
    """The shard's lease that ``token`` is of, None for that of a single leader; ``tokens`` by lease.

    Raises:
        StaleFenceError: It is of neither, or what the shards agree on changed since.
    """
    leader = tokens.get(LEADER_LEASE)
    if leader == token:
        return None
    shard = next((name for name, t in tokens.items() if t == token and name.startswith(SHARD_LEASES)), None)
    if shard is None or (leader is not None and leader > token):
        raise StaleFenceError(
            f"fencing token {token} is not the newest ({leader}): another process leads; stop acting"
        )
    return shard


@dataclass(frozen=True, slots=True)
class Retention:
    """How long records are kept."""

    traffic: timedelta = timedelta(days=730)
    decisions: timedelta = timedelta(
        days=90
    )  # with outcomes, superseded plans, old starts, expired overrides
    forecasts: timedelta = timedelta(days=30)
    # Every run for so long; of older ones the first of each hour, which is what a question about the past needs.
    runs: timedelta = timedelta(days=2)
    parts: timedelta = timedelta(days=2)
    scores: timedelta = timedelta(days=15)
    audit: timedelta = timedelta(days=365)
    notifications: timedelta = timedelta(days=30)  # since they happened
    idempotency: timedelta = timedelta(days=2)


class Store(Protocol):
    """Opens units of work."""

    def unit_of_work(self) -> UnitOfWork:
        """A fresh transaction, not begun yet."""
        ...

    async def check_revision(self) -> None:
        """Raise PortError unless the schema is the one this release was built for."""
        ...

    async def maintain(self, now: datetime, retention: Retention) -> int:
        """Drop what is past its age; return how many records went. Safe to repeat and to interrupt."""
        ...

    async def close(self) -> None:
        """Release every connection."""
        ...


class LeaseStore(Protocol):
    """Leadership by lease with a fencing token. Times are the store's own clock, so members need not agree."""

    async def acquire(self, name: str, holder: str, duration: timedelta) -> Lease | None:
        """Take or renew the lease; None while another holds it.

        Who takes it gets a token greater than that of every lease taken before.
        """
        ...

    async def release(self, lease: Lease) -> None:
        """Give it up, so that the next leader need not wait. Releasing a lost lease is a no-op."""
        ...

    async def current(self, name: str) -> Lease | None:
        """Who holds it now, if anybody."""
        ...

    async def live(self) -> Sequence[Lease]:
        """Every lease that is held now, by name."""
        ...


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """A workload's replicas as the loop saw them at ``at``; failed ones are in none of the counts."""

    at: datetime
    warm: int
    starting: int  # ordered and not yet warm
    draining: int

    @classmethod
    def of(cls, replicas: Sequence[Replica], at: datetime) -> Self:
        """Count replicas."""
        warm = sum(replica.warm for replica in replicas)
        # Most pools are all warm most of the time, and thousands are counted at every tick.
        if warm == len(replicas):
            return cls(at, warm, 0, 0)
        in_flight = sum(replica.in_flight for replica in replicas)
        draining = sum(replica.stage is Stage.DRAINING for replica in replicas)
        return cls(at, warm, in_flight, draining)


class SignalCache(Protocol):
    """What may be lost: live demand, backlog, forecasts, and fan-out of changes to watchers."""

    async def put_demand(self, workload: str, demand: DemandObservation, ttl: timedelta) -> None:
        """Keep the newest observation; an older ``at`` never replaces a newer one."""
        ...

    async def put_demands(self, demands: Mapping[str, DemandObservation], ttl: timedelta) -> None:
        """As ``put_demand``, for many workloads at once; an outage amid it may leave a part of them."""
        ...

    async def get_demand(
        self, workloads: Sequence[str], known: Mapping[str, datetime] | None = None
    ) -> Mapping[str, DemandObservation]:
        """Observations that are there, in few round trips; of workloads in ``known``, those from after that time."""
        ...

    async def put_replicas(self, counts: Mapping[str, ReplicaCounts], ttl: timedelta) -> None:
        """Keep the newest counts of replicas by workload, as ``put_demands`` keeps demand."""
        ...

    async def get_replicas(self, workloads: Sequence[str]) -> Mapping[str, ReplicaCounts]:
        """Counts that are there, in few round trips; a missing key means unknown, which is not 0."""
        ...

    async def put_backlog(
        self, workload: str, source: str, count: float, at: datetime, ttl: timedelta
    ) -> None:
        """Backlog of a queue Triton does not own, pushed by its owner."""
        ...

    async def get_backlog(self, workloads: Sequence[str]) -> Mapping[str, float]:
        """Sum over unexpired sources, for workloads that have any."""
        ...

    async def publish(self, topic: str, *payloads: bytes) -> None:
        """Fan out to watchers of every controller replica, in this order; lossy by design."""
        ...

    def subscribe(self, topic: str) -> AsyncGenerator[bytes, None]:
        """Payloads published from its first step on, until it is closed with ``aclose``."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


@dataclass(frozen=True, slots=True)
class PoolView:
    """A workload's replicas as the actuator sees them."""

    desired_replicas: int | None
    replicas: tuple[Replica, ...]
    competing_owner: str | None = None
    shortfall: str | None = None  # why fewer replicas come than were ordered, as a sentence


class Actuator(Protocol):
    """Changes replica counts, and reports replicas with the stage each has verifiably reached."""

    async def claim(
        self, workloads: Sequence[Workload], *, fence: int, others: Sequence[Workload] | None = None
    ) -> None:
        """Open a cycle: what is observed after it, no order with a smaller fence can change any more.

        Such an order may still be on its way from a leader that was replaced. Raises StaleFenceError on a smaller
        fence than seen before. Ends replicas that exist for the controller alone and whose workload is not among
        these and ``others``, which are all there are. The others have fences of their own; None: this is the only leader.
        """
        ...

    async def observe(self, workloads: Sequence[Workload]) -> Mapping[str, PoolView]:
        """Views of workloads that could be observed; a missing key means unknown."""
        ...

    async def scale(self, workload: Workload, replicas: int, *, fence: int) -> None:
        """Ask for a count and return once the order is accepted.

        A smaller fence than seen before for this workload raises StaleFenceError.
        """
        ...

    async def replace(self, workload: Workload, replica_id: str, *, fence: int) -> None:
        """End one replica so that a fresh one takes its place."""
        ...

    async def close(self) -> None:
        """Release what it holds; replicas it started end with it only if they cannot outlive it."""
        ...


class NotificationSink(Protocol):
    """Tells one receiver."""

    async def send(self, notification: Notification, attempt: int) -> None:
        """Deliver it once; ``attempt`` counts from 1. Raise SinkBusyError to be asked again, SinkRefusedError for never."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


class Witness(Protocol):
    """Hears what each cycle of the loop decided and what came of it, to say so where people look."""

    def saw(
        self,
        workloads: Sequence[Workload],
        decided: Sequence[Decision],
        outcomes: Mapping[str, str | None],
        before: FleetState,
        after: FleetState,
    ) -> None:
        """Take a cycle in; never waits, never fails. ``outcomes``: of each order by decision id, None or what kept it."""
        ...


class DemandMeterPort(Protocol):
    """Turns replicas' counters into demand."""

    def set_windows(self, workload: str, stable: timedelta, panic: timedelta) -> None:
        """Average ``workload``'s demand over its policy's windows from now on."""
        ...

    async def scrape(self, views: Mapping[str, PoolView]) -> Mapping[str, DemandObservation]:
        """Scrape every warm or draining replica once; a workload nobody answered for is missing."""
        ...

    def drain_samples(self) -> Sequence[TrafficSample]:
        """Minutes completed since the last call, for the traffic store."""
        ...


class DemandSource(Protocol):
    """Demand of workloads that name a query, from a system that measures it already."""

    async def observe(self, workloads: Sequence[Workload]) -> Mapping[str, DemandObservation]:
        """Newest demand of workloads with a ``demand_query``; unknown ones are missing. Never waits for an answer."""
        ...

    def drain_samples(self) -> Sequence[TrafficSample]:
        """Minutes read since the last call, for the traffic store."""
        ...


class NearModel(Protocol):
    """What one workload's demand may reach before replicas ordered now are warm. Learns.

    What it measured outlives it as a calibration, which serves for hours; what forecasts said, which nobody can ask them
    again, as a record.
    """

    async def calibrate(
        self, minutes: Sequence[tuple[datetime, float | None]], *, lead: timedelta, record: bytes = b""
    ) -> bool:
        """Measure anew on a history of minutes (QPS, oldest first, None unknown), for this lead time.

        ``record``: what forecasts said beforehand, as stored; what was said since the model knows.

        False when the history is too short to say anything; what was measured before is then forgotten.
        """
        ...

    def near(
        self, minutes: Sequence[tuple[datetime, float | None]], band: ForecastBand | None, *, trust: Trust
    ) -> NearDemand | None:
        """Quantiles as of the end of the newest known minute; None while nothing is measured. Cheap.

        ``minutes``: the last hours, whole minutes only. Call it for every minute, also before ``calibrate``: what
        the forecast said beforehand is remembered for the next calibration.
        """
        ...

    def record(self, stored: bytes = b"") -> bytes:
        """What the forecast said beforehand, as stored and since, to be stored instead; about 80 kB."""
        ...

    def kept(self, record: bytes) -> None:
        """The record is stored: what is in it need not be remembered."""
        ...

    def restore(self, record: bytes) -> None:
        """Begin where a record ends. One that cannot be read is as good as none."""
        ...

    def calibration(self) -> bytes:
        """What was measured, to be stored; about 15 kB, empty while nothing is."""
        ...

    def resume(self, calibration: bytes, now: datetime) -> tuple[datetime, timedelta] | None:
        """Go on with what another measured, before the first minute; return up to when it did, and for what lead time.

        None, and nothing happens, where it cannot be read, is of another release, or does not serve ``now``.
        """
        ...


@dataclass(frozen=True, slots=True)
class NearAsked:
    """One model and what ``NearModel.near`` is to be told."""

    model: NearModel
    minutes: Sequence[tuple[datetime, float | None]]
    band: ForecastBand | None
    trust: Trust


@dataclass(frozen=True, slots=True)
class Refit:
    """One forecast and what its median is made of; no parts where there are no numbers."""

    run: ForecastRun
    band: ForecastBand
    parts: Parts | None = None


class ForecastPort(Protocol):
    """Runs the forecaster away from the event loop."""

    async def forecast(
        self,
        workload: str,
        history: Sequence[tuple[datetime, float | None]],
        *,
        step: timedelta,
        horizon_steps: int,
        events: Sequence[Event],
        now: datetime,
        time_zone: str | None = None,
    ) -> tuple[ForecastRun, ForecastBand]:
        """Forecast from history on a regular grid (QPS, None unknown). Never raises for poor history: the state says so.

        ``time_zone`` is the IANA zone whose clock the users keep; None: not told.
        """
        ...

    async def refit(
        self,
        history: Sequence[tuple[datetime, float | None]],
        *,
        step: timedelta,
        horizon_steps: int,
        events: Sequence[Event],
        now: datetime,
        standing: Standing,
        time_zone: str | None = None,
    ) -> Refit:
        """Forecast the standing's workload by its champion, otherwise as ``forecast``."""
        ...

    async def score(
        self,
        history: Sequence[tuple[datetime, float | None]],
        step: timedelta,
        span: timedelta,
        asked: Sequence[tuple[datetime, timedelta, ForecastBand]],
    ) -> Sequence[HourScore]:
        """Score stretches ``[at, at + span)`` of history by bands that stood ``lead`` before; ``asked``: (at, lead, band)."""
        ...

    async def contest(
        self,
        standing: Standing,
        history: Sequence[tuple[datetime, float | None]],
        *,
        horizon_steps: int,
        events: Sequence[Event],
        now: datetime,
        time_zone: str | None = None,
    ) -> Standing:
        """Backtest every candidate model on history, and return the standing after it. Takes a second or so."""
        ...

    def trust(self, band: ForecastBand, observed: Sequence[tuple[datetime, float | None]]) -> Trust:
        """Judge a band by what was observed since its origin; give two weeks before it, too, to compare with."""
        ...

    def verdict(
        self, band: ForecastBand, observed: Sequence[tuple[datetime, float | None]]
    ) -> tuple[Trust, str]:
        """Judge as ``trust`` does, with the numbers behind it in a sentence."""
        ...

    def near_model(self) -> NearModel:
        """A model for one workload that has measured nothing yet."""
        ...

    def near_of(self, asked: Sequence[NearAsked]) -> Sequence[NearDemand | None]:
        """What ``NearModel.near`` says of each, in order, for far less than one by one. Models come from ``near_model``."""
        ...
