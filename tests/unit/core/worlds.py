"""A small cluster around the real core, for stories: observe, tick, obey, let time pass.

Replicas become warm after a fixed cold start. The core is the production one; nothing here decides anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from controller.core.leadtime import LeadTime
from controller.core.tick import on_tick
from controller.core.types import (
    CapacityProfile,
    Decision,
    DemandObservation,
    Effect,
    Event,
    FleetState,
    ForecastBand,
    ForecastState,
    Override,
    OverrideKind,
    QuotaPool,
    RecordDecision,
    ReplaceReplica,
    Replica,
    ScaleTo,
    Stage,
    TickInput,
    Trust,
    Workload,
    WorkloadInput,
)

MIDNIGHT = datetime(2026, 11, 28, tzinfo=UTC)
START = MIDNIGHT - timedelta(hours=1)
# 100 QPS a replica, one batch of one at a time, served very regularly: 1 replica for 90 QPS, 10 for 990.
SIMPLE = CapacityProfile("toy-fp32", "T4", qps_max=100.0, service_scv=0.0)
T4 = CapacityProfile("recommender-fp32", "T4", qps_max=2_200.0, instance_count=2, batch_size_max=8)
A10 = CapacityProfile("recommender-int8", "A10", qps_max=5_600.0, instance_count=2, batch_size_max=8)
LEVELS = (0.1, 0.5, 0.9, 0.95, 0.99)
LEAD = LeadTime(60.0)


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


def minutes(value: float) -> timedelta:
    return timedelta(minutes=value)


def workload(name: str = "toy", **changes: object) -> Workload:
    base = Workload(name, name, (SIMPLE,), min_replicas=1, max_replicas=20)
    return replace(base, **changes)  # type: ignore[arg-type]  # keyword names are checked at run time


def observed(at: datetime, qps: float, **changes: object) -> DemandObservation:
    base = DemandObservation(at, qps, qps, 0.0, 1, 1, minutes(1))
    return replace(base, **changes)  # type: ignore[arg-type]  # keyword names are checked at run time


def band(
    start_at: datetime, qps: Sequence[float], step: timedelta = timedelta(minutes=5), **changes: object
) -> ForecastBand:
    """A forecast whose quantiles all say the same."""
    rows = tuple((value,) * len(LEVELS) for value in qps)
    base = ForecastBand("forecast-1", start_at, start_at, step, LEVELS, rows, ForecastState.READY)
    return replace(base, **changes)  # type: ignore[arg-type]  # keyword names are checked at run time


def event(event_id: str = "sale", **changes: object) -> Event:
    base = Event(event_id, MIDNIGHT, MIDNIGHT + timedelta(hours=1), expected_peak_qps=950.0)
    return replace(base, **changes)  # type: ignore[arg-type]  # keyword names are checked at run time


def override(kind: OverrideKind, replicas: int | None = None, expires_at: datetime = MIDNIGHT) -> Override:
    return Override(f"{kind.lower()}-1", kind, replicas, expires_at, "a test asks for it", "ops@example.com")


def replicas(
    number: int, stage: Stage = Stage.VERIFIED, at: datetime = START - timedelta(hours=1)
) -> tuple[Replica, ...]:
    return tuple(Replica(f"{stage.lower()}-{i}", stage, at, at) for i in range(number))


def given(
    w: Workload | None = None,
    *,
    now: datetime = START,
    qps: float | None = 0.0,
    warm: int = 1,
    **changes: object,
) -> WorkloadInput:
    """One workload as observed: ``warm`` replicas, as many asked for, everything fresh, no forecast."""
    base = WorkloadInput(
        w or workload(),
        replicas(warm),
        warm,
        None if qps is None else observed(now, qps),
        lead=LEAD,
        trust=Trust.TRUSTED,
    )
    return replace(base, **changes)  # type: ignore[arg-type]  # keyword names are checked at run time


@dataclass
class Pool:
    """The replicas of one workload and everything else the core is told of it."""

    workload: Workload
    cold_start_s: float = 60.0
    lead: LeadTime = LEAD
    events: tuple[Event, ...] = ()
    overrides: tuple[Override, ...] = ()
    forecast: ForecastBand | None = None
    trust: Trust = Trust.TRUSTED
    window: timedelta = timedelta(minutes=1)
    target_count: int = 0
    visible: bool = True  # whether the actuator answers
    fails: bool = False  # whether replicas end FAILED instead of warm
    competing_owner: str | None = None
    members: dict[str, tuple[datetime, CapacityProfile]] = field(default_factory=dict)
    serial: int = 0

    def seed(self, number: int, at: datetime, profile: CapacityProfile | None = None) -> None:
        """Add ``number`` replicas that have long been warm."""
        for _ in range(number):
            self._add(at - timedelta(hours=1), profile or self.workload.profile)
        self.target_count = len(self.members)

    def _add(self, ordered_at: datetime, profile: CapacityProfile) -> None:
        self.members[f"r{self.serial:03}"] = (ordered_at, profile)
        self.serial += 1

    def replicas(self, now: datetime) -> tuple[Replica, ...]:
        return tuple(
            Replica(name, *self._stage(ordered_at, now), profile=profile)
            for name, (ordered_at, profile) in sorted(self.members.items())
        )

    def _stage(self, ordered_at: datetime, now: datetime) -> tuple[Stage, datetime, datetime]:
        steps = {
            Stage.ORDERED: 0.0,
            Stage.SCHEDULED: 0.1,
            Stage.LOADED: 0.8,
            Stage.WARMED: 0.95,
            Stage.VERIFIED: 1.0,
        }
        reached = [
            (stage, ordered_at + seconds(share * self.cold_start_s))
            for stage, share in steps.items()
            if now >= ordered_at + seconds(share * self.cold_start_s)
        ]
        stage, at = reached[-1] if reached else (Stage.ORDERED, ordered_at)
        return (Stage.FAILED if self.fails and stage is Stage.VERIFIED else stage), ordered_at, at

    def obey(self, effect: Effect, now: datetime) -> None:
        if isinstance(effect, ScaleTo):
            self.target_count = effect.replicas
        elif isinstance(effect, ReplaceReplica):
            self.members.pop(effect.replica_id, None)
        else:
            return
        while len(self.members) < self.target_count:
            self._add(now, self.workload.profile)
        for name in sorted(self.members, reverse=True)[: len(self.members) - self.target_count]:
            del self.members[name]  # the youngest go first

    def seen(self, now: datetime, qps: float | None) -> WorkloadInput:
        members = self.replicas(now)
        warm = sum(r.warm for r in members)
        return WorkloadInput(
            workload=self.workload,
            replicas=members if self.visible else None,
            observed_desired=self.target_count if self.visible else None,
            demand=None
            if qps is None
            else observed(now, qps, reporting_count=warm, expected_count=warm, window=self.window),
            forecast=self.forecast,
            trust=self.trust,
            events=self.events,
            overrides=self.overrides,
            lead=self.lead,
            competing_owner=self.competing_owner,
        )


@dataclass
class Fleet:
    """Pools on one clock. ``tick`` decides, obeys and lets ``tick_s`` pass."""

    pools: Mapping[str, Pool]
    quota: tuple[QuotaPool, ...] = ()
    now: datetime = START
    tick_s: float = 5.0
    paused: bool = False
    state: FleetState = field(default_factory=FleetState)

    def tick(self, **qps: float | None) -> tuple[Effect, ...]:
        """Tick once; demand by workload name, None or left out: not observed."""
        seen = tuple(pool.seen(self.now, qps.get(name)) for name, pool in sorted(self.pools.items()))
        self.state, effects = on_tick(self.state, TickInput(self.now, seen, self.quota, self.paused, "test"))
        for effect in effects:
            if isinstance(effect, ScaleTo | ReplaceReplica):
                self.pools[effect.workload].obey(effect, self.now)
        self.now += seconds(self.tick_s)
        return effects

    def run(self, until: datetime, **qps: float | None) -> tuple[Effect, ...]:
        """Tick until ``until`` with constant demand."""
        effects: list[Effect] = []
        while self.now < until:
            effects.extend(self.tick(**qps))
        return tuple(effects)

    def desired(self, name: str = "toy") -> int | None:
        return self.state.workloads[name].desired_replicas

    def warm(self, name: str = "toy") -> int:
        return sum(r.warm for r in self.pools[name].replicas(self.now))


def alone(warm: int = 1, w: Workload | None = None, **changes: object) -> tuple[Fleet, Pool]:
    """A fleet of one workload called toy, with ``warm`` warm replicas."""
    pool = Pool(w or workload(), **changes)  # type: ignore[arg-type]  # keyword names are checked at run time
    pool.seed(warm, START)
    return Fleet({pool.workload.name: pool}), pool


def decide(inp: WorkloadInput, now: datetime = START, state: FleetState | None = None) -> Decision:
    """The decision of one tick over one workload, recorded also if it is the same as before."""
    known = (state or FleetState()).workloads.items()
    fresh = FleetState({name: replace(kept, recorded_at=None) for name, kept in known})
    _, effects = on_tick(fresh, TickInput(now, (inp,)))
    return decisions(effects)[-1]


def decisions(effects: Sequence[Effect]) -> list[Decision]:
    return [e.decision for e in effects if isinstance(e, RecordDecision)]


def scalings(effects: Sequence[Effect]) -> list[int]:
    return [e.replicas for e in effects if isinstance(e, ScaleTo)]
