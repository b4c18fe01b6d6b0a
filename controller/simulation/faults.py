"""Fault simulation: seeded worlds in which everything around the core fails, and invariants checked every tick.

A world has one to three workloads and a shell like the controller's: observe, decide, commit under a fencing
token, apply. Around it metrics go missing, late, NaN, frozen, negative or partial; replicas hang, crash, load
slowly or with the wrong engine; commits fail or conflict; the store is away and no cycle runs; the cache loses
what it knew; the process dies between commit and apply; orders arrive late, after newer ones or after the next
leader's claim; leaders take over one after the other while the old ones still try; clocks step; workloads are
edited; events arrive twice, out of order, edited and cancelled; forecasts are absurd. After that, a calm stretch
shows whether the world heals.

Invariants, checked after every tick with the core's own inputs and outputs:

 1. The core answers: no exception, a state for every workload.
 2. Never above the ceiling: max_replicas as raised by known events, and every live AT_MOST override.
 3. Never below min_replicas, unless a ceiling is lower.
 4. Missing, stale or unusable demand never scales down; only a ceiling or a SET override may.
 5. Unobserved replicas never scale down; only a ceiling or a SET override may.
 6. A veto dominates: nothing is scaled or replaced while paused.
 7. A standing event floor holds: not before the event's start, not through a dip inside it, unless fizzled.
 8. A decision is recorded before the scaling it explains, with the same count.
 9. Every count is asked for: never above the current count and every recommendation, never below all of them.
10. The fence holds: a stale token changes neither store nor cluster.
11. State survives storage: decoding what was encoded gives the same state.
12. The order of inputs never matters.
13. Deciding again at the same moment changes nothing (quota pools apart: what one frees, another takes a tick later).
14. Alarms balance: what stands after is what stood before, plus raised, minus cleared.
15. Plans are dated sensibly: order <= need <= end, and what a limit cut is reported.
16. Every record is finite, and says why in words.
17. Quota pools are never exceeded by growth.
18. The world heals: in calm, present load is served warm, within tolerance, and no broken replica is left.
19. What the core remembers of ticks that changed nothing saves time only: the same comes of it.

Called by tests and by ``python -m controller.simulation.faults --seeds A:B``; a failing seed prints how to
run it again.
"""

import argparse
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import isfinite, nan
from random import Random
from statistics import fmean

from controller.adapters.codec import decode, encode
from controller.core.capacity import CapacityCurve, curve, required_replicas
from controller.core.leadtime import LeadTime
from controller.core.tick import Calm, on_tick, read_demand
from controller.core.types import (
    Behavior,
    CapacityProfile,
    ClearAlarm,
    ContractState,
    DemandObservation,
    Effect,
    Event,
    FleetState,
    ForecastBand,
    ForecastState,
    Mode,
    NearDemand,
    Override,
    OverrideKind,
    Policy,
    PolicyType,
    QuotaPool,
    RaiseAlarm,
    RecommendationKind,
    RecordDecision,
    ReplaceReplica,
    Replica,
    ScaleTo,
    ScalingPolicy,
    ScalingRules,
    Stage,
    TickInput,
    Trust,
    Workload,
    WorkloadInput,
    WorkloadState,
)

START = datetime(2026, 3, 1, tzinfo=UTC)
FAULT_TICKS = 70
CALM_TICKS = 70
HEAL_GRACE = timedelta(minutes=3)
DEEP_EVERY = 12  # ticks between the checks that run the core again
STAGES = ((0.2, Stage.SCHEDULED), (0.8, Stage.LOADED), (0.95, Stage.WARMED), (1.0, Stage.VERIFIED))


class BrokenInvariantError(AssertionError):
    """An invariant did not hold; the message has its number, the moment and how to run the seed again."""


@dataclass(slots=True)
class _Replica:
    """A replica of the world, with what fate has in store for it."""

    id: str
    ordered_s: float
    lead_s: float
    fate: str  # ok, stuck, wrong
    crash_s: float | None = None

    def observed(self, now_s: float, clock: "Callable[[float], datetime]") -> Replica:
        age = (now_s - self.ordered_s) / self.lead_s
        stage, since_s = Stage.ORDERED, self.ordered_s
        for share, reached in STAGES:
            if age >= share and (self.fate != "stuck" or share < 0.5):
                stage, since_s = reached, self.ordered_s + share * self.lead_s
        failure = None
        if self.fate == "wrong" and stage in {Stage.LOADED, Stage.WARMED, Stage.VERIFIED}:
            stage, failure = Stage.FAILED, "WRONG_ENGINE"
        elif self.crash_s is not None and now_s >= self.crash_s:
            stage, failure, since_s = Stage.FAILED, "crashed", self.crash_s
        return Replica(self.id, stage, clock(self.ordered_s), clock(since_s), failure=failure)


@dataclass(slots=True)
class _Pool:
    """One workload's replicas and target."""

    target: int
    replicas: list[_Replica] = field(default_factory=list[_Replica])
    made: int = 0


@dataclass(frozen=True, slots=True)
class _Fault:
    """Something that is broken between two ticks."""

    kind: str
    first: int
    last: int
    workload: str


METRIC_FAULTS = ("missing", "late", "nan", "frozen", "negative", "partial", "future", "infinite")
OTHER_FAULTS = (
    "unobserved",
    "commit_fails",
    "dies_after_commit",
    "apply_fails",
    "apply_late",
    "store_away",
    "cache_lost",
    "absurd_forecast",
    "no_forecast",
)


class World:
    """One seed's world."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.plain = seed % 4 == 1  # without forecasts, and rid of what ran out: calm ticks are more often
        r = self.random
        self.tick_s = r.choice((5.0, 10.0, 15.0))
        self.now_s = 0.0
        self.clock_offset_s = 0.0
        self.tick_number = 0
        self.workloads = {name: self._workload(name) for name in ("a", "b", "c")[: r.choice((1, 1, 2, 3))]}
        self.leads = {
            name: LeadTime(r.choice((30.0, 60.0, 90.0)), per_extra_replica_s=r.choice((0.0, 0.0, 1.0)))
            for name in self.workloads
        }
        self.pools = self._quota_pools()
        self.cluster = {name: self._first_pool(name, w) for name, w in self.workloads.items()}
        self.events: dict[str, list[Event]] = {name: self._events(name) for name in self.workloads}
        self.overrides: dict[str, list[Override]] = {name: self._overrides(name) for name in self.workloads}
        self.faults = self._faults()
        self.paused_between = self._span() if r.random() < 0.15 else (0, -1)
        self.handovers = {r.randrange(10, FAULT_TICKS) for _ in range(r.choice((0, 1, 1, 3)))}
        self.clock_steps = {r.randrange(5, FAULT_TICKS) for _ in range(r.choice((0, 0, 1, 3)))}
        self.edits = {
            r.randrange(FAULT_TICKS): r.choice(list(self.workloads)) for _ in range(r.choice((0, 0, 2)))
        }
        self.base = {name: r.uniform(0.1, 0.6) * 100 * w.max_replicas for name, w in self.workloads.items()}
        self.jumps = {
            name: [(r.randrange(FAULT_TICKS), r.choice((0.0, 0.3, 2.0, 4.0, 1.0))) for _ in range(3)]
            for name in self.workloads
        }
        # the store: committed state, and the newest fencing token
        self.token = 1
        self.stored = FleetState()
        self.calm: dict[str, Calm] = {}  # kept by the process, also while it does not lead
        self.leads_since_s = -3600.0
        self.ghosts: list[tuple[FleetState, int]] = []  # leaders of old, with what they remember
        self.on_the_way: list[tuple[int, ScaleTo, int]] = []  # (tick of arrival, order, token)
        self.frozen: dict[str, DemandObservation] = {}
        # demand of the last ticks, as far as the stable window looks back
        self.recent: dict[str, deque[float]] = {
            name: deque(maxlen=round(w.policy.stable_window.total_seconds() / self.tick_s))
            for name, w in self.workloads.items()
        }

    # -------------------------------------------------------------- making a world

    def _workload(self, name: str) -> Workload:
        r = self.random
        low = r.choice((0, 1, 1, 2))
        rules = r.choice(
            (
                Behavior(),
                Behavior(scale_down=ScalingRules(timedelta(0))),
                Behavior(
                    scale_up=ScalingRules(
                        timedelta(0), policies=(ScalingPolicy(PolicyType.PODS, 3, timedelta(seconds=30)),)
                    ),
                    scale_down=ScalingRules(
                        timedelta(minutes=1),
                        policies=(ScalingPolicy(PolicyType.PERCENT, 50, timedelta(seconds=60)),),
                    ),
                    tolerance=0.1,
                ),
            )
        )
        policy = Policy(
            behavior=rules,
            order_timeout=timedelta(seconds=150),
            fizzle_after=timedelta(minutes=r.choice((2, 15))),
            break_even=r.choice((None, timedelta(minutes=10))),
            scale_to_zero_after=timedelta(minutes=2),
        )
        mode = r.choice(
            (Mode.SCALE, Mode.SCALE, Mode.SCALE, Mode.SCALE, Mode.FLOOR, Mode.RECOMMEND, Mode.KEDA)
        )
        return Workload(
            name=name,
            model_name="model",
            profiles=(CapacityProfile("engine", "gpu", 100.0, service_scv=1.0),),
            min_replicas=low,
            max_replicas=low + r.randrange(3, 25),
            policy=policy,
            mode=mode,
            priority=r.randrange(3),
            quota_pool=r.choice((None, None, "gpus")),
        )

    def _quota_pools(self) -> tuple[QuotaPool, ...]:
        if all(w.quota_pool is None for w in self.workloads.values()):
            return ()
        return (QuotaPool("gpus", self.random.randrange(4, 60)),)

    def _first_pool(self, name: str, w: Workload) -> _Pool:
        pool = _Pool(self.random.randrange(w.min_replicas, w.max_replicas + 1))
        for _ in range(pool.target):
            self._start(name, pool, warm=True)
        return pool

    def _span(self) -> tuple[int, int]:
        first = self.random.randrange(FAULT_TICKS)
        return first, min(FAULT_TICKS, first + self.random.randrange(1, 25))

    def _faults(self) -> list[_Fault]:
        r = self.random
        names = list(self.workloads)
        return [
            _Fault(r.choice((*METRIC_FAULTS, *OTHER_FAULTS)), *self._span(), r.choice(names))
            for _ in range(r.randrange(2, 9))
        ]

    def _events(self, name: str) -> list[Event]:
        r = self.random
        w = self.workloads[name]
        made: list[Event] = []
        for number in range(r.choice((0, 0, 1, 2))):
            start = self.clock(r.uniform(60, FAULT_TICKS * self.tick_s))
            peak = r.uniform(0.2, 1.5) * 100 * w.max_replicas
            made.append(
                Event(
                    id=f"{name}-event-{number}",
                    start_at=start,
                    end_at=start + timedelta(seconds=r.uniform(60, 400)),
                    expected_peak_qps=peak if r.random() < 0.7 else None,
                    expected_multiplier=r.uniform(1.2, 5.0),
                    max_replicas_override=w.max_replicas + 5 if r.random() < 0.3 else None,
                    priority=r.randrange(5),
                )
            )
        return made

    def _overrides(self, name: str) -> list[Override]:
        r = self.random
        if r.random() > 0.25:
            return []
        kind = r.choice(tuple(OverrideKind))
        replicas = None if kind is OverrideKind.PAUSE else r.randrange(self.workloads[name].max_replicas + 4)
        expires = self.clock(r.uniform(30, FAULT_TICKS * self.tick_s))
        return [Override(f"{name}-override", kind, replicas, expires, "drill")]

    # -------------------------------------------------------------- the world as it is

    def clock(self, second: float) -> datetime:
        """Return the wall clock at a true second, steps included only for the present."""
        return START + timedelta(seconds=second)

    @property
    def now(self) -> datetime:
        """What the clock shows."""
        return self.clock(self.now_s + self.clock_offset_s)

    def active(self, kind: str, name: str) -> bool:
        """Whether a fault of ``kind`` holds for a workload now."""
        return any(
            f.kind == kind and f.workload == name and f.first <= self.tick_number <= f.last
            for f in self.faults
        )

    def anywhere(self, kind: str) -> bool:
        """Whether a fault of ``kind`` holds now that concerns all workloads at once."""
        return any(self.active(kind, name) for name in self.workloads)

    def demand_qps(self, name: str) -> float:
        """Return the true demand."""
        factor = 1.0
        for at, to in sorted(self.jumps[name]):
            if at <= self.tick_number < FAULT_TICKS:
                factor = to
        if any(e.start_at <= self.clock(self.now_s) < e.end_at for e in self.events[name]):
            factor *= 2.0
        return self.base[name] * factor

    def _start(self, name: str, pool: _Pool, *, warm: bool = False) -> None:
        r = self.random
        lead = self.leads[name].total_p95_s
        fate, crash = "ok", None
        if not warm and self.tick_number < FAULT_TICKS:
            fate = r.choices(("ok", "stuck", "wrong", "slow"), (0.86, 0.05, 0.04, 0.05))[0]
            crash = self.now_s + r.uniform(0.2, 6) * lead if r.random() < 0.05 else None
            if crash is not None:
                # The calm stretch is calm: nothing breaks so late that no time is left to heal.
                crash = min(crash, FAULT_TICKS * self.tick_s)
        begun = self.now_s - 2 * lead if warm else self.now_s
        slow = 2.5 if fate == "slow" else 1.0
        pool.replicas.append(_Replica(f"{name}-{pool.made}", begun, lead * slow, fate, crash))
        pool.made += 1

    def _scale(self, name: str, replicas: int) -> None:
        pool = self.cluster[name]
        pool.target = replicas
        self._refill(name)

    def _refill(self, name: str) -> None:
        pool = self.cluster[name]
        while len(pool.replicas) < pool.target:
            self._start(name, pool)
        if len(pool.replicas) > pool.target:
            warm = [r for r in pool.replicas if r.observed(self.now_s, self.clock).warm]
            cold = [r for r in pool.replicas if not r.observed(self.now_s, self.clock).warm]
            pool.replicas = (warm + cold)[: pool.target]

    # -------------------------------------------------------------- what the controller sees

    def observe(self) -> TickInput:
        """Return this tick's input, as faulty as it is."""
        paused = self.paused_between[0] <= self.tick_number <= self.paused_between[1]
        seen = [self._input(name) for name in self.workloads]
        self.random.shuffle(seen)
        return TickInput(self.now, tuple(seen), self.pools, paused, "drill" if paused else "")

    def _input(self, name: str) -> WorkloadInput:
        pool = self.cluster[name]
        replicas = tuple(r.observed(self.now_s, self.clock) for r in pool.replicas)
        unobserved = self.active("unobserved", name)
        forecast = self._forecast(name)
        return WorkloadInput(
            workload=self.workloads[name],
            replicas=None if unobserved else replicas,
            observed_desired=None if unobserved else pool.target,
            demand=self._demand(name, replicas),
            forecast=None if self.plain else forecast,
            near=self._near(name),
            trust=Trust.TRUSTED if self.random.random() < 0.8 else self.random.choice(tuple(Trust)),
            events=self._known_events(name),
            overrides=tuple(o for o in self.overrides[name] if not self.plain or o.expires_at > self.now),
            lead=self.leads[name],
        )

    def _known_events(self, name: str) -> tuple[Event, ...]:
        """Events arrive out of order and sometimes twice; some are edited or cancelled on the way."""
        r = self.random
        if self.tick_number < FAULT_TICKS and r.random() < 0.02 and self.events[name]:
            at = r.randrange(len(self.events[name]))
            event = self.events[name][at]
            if r.random() < 0.4:
                del self.events[name][at]
            else:
                peak = r.uniform(0.2, 1.5) * 100 * self.workloads[name].max_replicas
                edited = replace(event, expected_peak_qps=peak, revision=event.revision + 1)
                self.events[name][at] = edited
        known = [e for e in self.events[name] if e.end_at > self.now - timedelta(minutes=5)]
        if known and r.random() < 0.1:
            known.append(r.choice(known))
        r.shuffle(known)
        return tuple(known)

    def _demand(self, name: str, replicas: Sequence[Replica]) -> DemandObservation | None:
        truth = self.demand_qps(name)
        warm = sum(x.warm for x in replicas)
        backlog = max(0.0, truth - 100.0 * warm) * 2
        # A new leader averages over what it has seen itself, if the cache kept nothing for it.
        seen = timedelta(seconds=min(3600.0, self.now_s - self.leads_since_s))
        real = DemandObservation(self.now, fmean(self.recent[name]), truth, backlog, warm, warm, seen)
        if self.active("missing", name):
            return None
        if self.anywhere("cache_lost"):
            if not seen:
                return None
            real = replace(real, backlog_count=0.0)
        if self.active("frozen", name):
            return self.frozen.setdefault(name, real)
        self.frozen.pop(name, None)
        changes: dict[str, dict[str, object]] = {
            "late": {"at": self.now - timedelta(seconds=300)},
            "nan": {"stable_qps": nan},
            "infinite": {"stable_qps": float("inf")},
            "negative": {"stable_qps": -5.0},
            "partial": {"reporting_count": warm // 3, "stable_qps": truth / 3},
            "future": {"at": self.now + timedelta(minutes=10)},
        }
        for kind, change in changes.items():
            if self.active(kind, name):
                return replace(real, **change)  # type: ignore[arg-type]
        return real

    def _forecast(self, name: str) -> ForecastBand | None:
        if self.active("no_forecast", name):
            return None
        r = self.random
        levels = (0.1, 0.5, 0.9, 0.99)
        truth = self.base[name]
        rows: tuple[tuple[float, ...], ...] = ((truth * 0.5, truth * 0.9, truth * 1.1, truth * 1.3),) * 30
        minute = self.now.replace(second=0, microsecond=0)
        if self.active("absurd_forecast", name):
            huge = r.choice((1e12, 0.0, nan, -4.0, float("inf")))
            shapes: list[tuple[tuple[float, ...], ...]] = [
                ((huge,) * 4,) * 30,
                (),
                ((3.0, 2.0, 1.0, 0.0),),
                ((1.0,),),
            ]
            rows = r.choice(shapes)
            minute += r.choice((timedelta(0), timedelta(days=-3), timedelta(days=3)))
        return ForecastBand(
            id=f"f-{minute:%H%M}-{hash(rows) % 1000}",
            origin_at=minute,
            start_at=minute,
            step=timedelta(minutes=1),
            levels=levels,
            qps=rows,
            state=ForecastState.READY,
        )

    def _near(self, name: str) -> NearDemand | None:
        if self.seed % 2 or self.active("no_forecast", name):
            return None  # half of the worlds know only the refit's band
        truth = self.demand_qps(name)
        qps: tuple[float, ...] = (truth * 0.9, truth * 1.1, truth * 1.3)
        at = self.now - timedelta(seconds=self.random.uniform(0, 60))
        if self.active("absurd_forecast", name):
            shapes: list[tuple[float, ...]] = [(nan,) * 3, (1e12,) * 3, (0.0,) * 3, (), (3.0, -2.0, 1.0)]
            qps = self.random.choice(shapes)
            at += self.random.choice((timedelta(0), timedelta(days=-1), timedelta(days=1)))
        lead = timedelta(seconds=self.leads[name].total_p95_s * self.random.choice((1.0, 1.0, 0.1)))
        return NearDemand(at, lead, (0.5, 0.9, 0.99), qps)

    # -------------------------------------------------------------- one cycle

    def step(self) -> None:
        """Advance by one tick, run one cycle of the controller, check every invariant."""
        if self.tick_number in self.clock_steps:
            self.clock_offset_s += self.random.choice((-3600.0, -45.0, -5.0, 5.0, 45.0, 3600.0))
        if self.tick_number == FAULT_TICKS:
            self.clock_offset_s = 0.0
        self._edit()
        self._handover()
        self._arrive()
        for name, recent in self.recent.items():
            recent.append(self.demand_qps(name))
        if not self.anywhere("store_away"):  # else nobody leads, and nothing is decided
            self._cycle()
        self.tick_number += 1
        self.now_s += self.tick_s
        if self.tick_number >= FAULT_TICKS:
            for each in self.workloads:
                self._refill(each)

    def _cycle(self) -> None:
        tick = self.observe()
        before = self.stored
        try:
            after, effects = on_tick(before, tick)
        except Exception as error:
            raise self.broken(1, f"the core raised {error!r}") from error
        check(self, before, tick, after, effects)
        remembering = on_tick(before, tick, self.calm)
        if remembering != (after, effects):
            raise self.broken(19, "deciding with what earlier ticks found came out otherwise")
        after, effects = remembering  # what is remembered is of these very states
        if not self.anywhere("commit_fails"):
            self._commit(after, self.token)
            if not self.anywhere("dies_after_commit"):
                self._apply(effects, self.token)
        for ghost in self.ghosts:
            if self.random.random() < 0.3:
                self._haunt(*ghost, tick)

    def _edit(self) -> None:
        """Let somebody change a workload's bounds between two cycles."""
        if name := self.edits.get(self.tick_number):
            w = self.workloads[name]
            low = self.random.randrange(3)
            self.workloads[name] = replace(
                w,
                min_replicas=low,
                max_replicas=low + self.random.randrange(1, 25),
                generation=w.generation + 1,
            )

    def _handover(self) -> None:
        if self.tick_number not in self.handovers:
            return
        # The new leader knows what storage gives back; the old one goes on with what it remembers.
        self.ghosts.append((self.stored, self.token))
        self.stored = decode(FleetState, encode(self.stored))
        self.token += 1
        if self.anywhere("cache_lost"):
            self.leads_since_s = self.now_s

    def _arrive(self) -> None:
        """Deliver orders that were on their way; those of another leader than the present one are refused."""
        due = [order for order in self.on_the_way if order[0] <= self.tick_number]
        self.on_the_way = [order for order in self.on_the_way if order[0] > self.tick_number]
        for _, effect, token in due:
            if token == self.token:
                self._scale(effect.workload, effect.replicas)

    def _haunt(self, state: FleetState, token: int, tick: TickInput) -> None:
        """Let a leader of old decide on stale state, and see that nothing comes of it."""
        before = self.stored, [pool.target for pool in self.cluster.values()]
        after, effects = on_tick(state, tick)
        self._commit(after, token)
        self._apply(effects, token)
        if before != (self.stored, [pool.target for pool in self.cluster.values()]):
            raise self.broken(10, "a stale fencing token changed the store or the cluster")

    def _commit(self, state: FleetState, token: int) -> None:
        if token == self.token:
            self.stored = state

    def _apply(self, effects: Iterable[Effect], token: int) -> None:
        if token != self.token:
            return
        for effect in effects:
            if isinstance(effect, ScaleTo):
                if self.active("apply_late", effect.workload):
                    arrival = self.tick_number + self.random.randrange(1, 6)
                    self.on_the_way.append((arrival, effect, token))
                elif not self.active("apply_fails", effect.workload):
                    self._scale(effect.workload, effect.replicas)
            elif isinstance(effect, ReplaceReplica):
                pool = self.cluster[effect.workload]
                pool.replicas = [r for r in pool.replicas if r.id != effect.replica_id]
                self._refill(effect.workload)

    def broken(self, number: int, what: str) -> BrokenInvariantError:
        """Return the error of a broken invariant, with how to run this world again."""
        return BrokenInvariantError(
            f"invariant {number} broken at tick {self.tick_number} ({self.now:%H:%M:%S}): {what}. Again: "
            f"python -m controller.simulation.faults --seeds {self.seed}:{self.seed + 1}"
        )


# ---------------------------------------------------------------- invariants


def check(
    world: World, before: FleetState, tick: TickInput, after: FleetState, effects: Sequence[Effect]
) -> None:
    """Check every invariant that one tick can show.

    Raises:
        BrokenInvariantError: The first one that does not hold.
    """
    for seen in tick.workloads:
        name = seen.workload.name
        if name not in after.workloads:
            raise world.broken(1, f"no state for {name}")
        _Check(
            world, tick, seen, before.workloads.get(name, WorkloadState()), after.workloads[name], effects
        ).all()
    _check_quota(world, before, tick, after)
    if world.tick_number % DEEP_EVERY == 0:
        _check_deep(world, before, tick, after)


def _live(seen: WorkloadInput, tick: TickInput) -> list[Override]:
    return [o for o in seen.overrides if o.expires_at > tick.now]


def _vetoed(seen: WorkloadInput, tick: TickInput) -> bool:
    """Whether nobody may scale the workload: all are paused, or it is."""
    return tick.paused or any(o.kind is OverrideKind.PAUSE for o in _live(seen, tick))


@dataclass(frozen=True, slots=True)
class _Check:
    """The invariants of one workload at one tick."""

    world: World
    tick: TickInput
    seen: WorkloadInput
    before: WorkloadState
    after: WorkloadState
    effects: Sequence[Effect]

    def all(self) -> None:
        """Check them in order."""
        self.records()
        self.alarms()
        self.plans()
        if self.vetoed:
            self.veto()
            return
        desired = self.after.desired_replicas
        if desired is None:
            return
        self.ceiling(desired)
        self.floor(desired)
        self.unknown(desired)
        self.prewarm(desired)
        self.explained()

    @property
    def own(self) -> list[Effect]:
        name = self.seen.workload.name
        return [
            e
            for e in self.effects
            if (isinstance(e, ScaleTo | ReplaceReplica) and e.workload == name)
            or (isinstance(e, RecordDecision) and e.decision.workload == name)
        ]

    @property
    def live(self) -> list[Override]:
        return _live(self.seen, self.tick)

    @property
    def vetoed(self) -> bool:
        return _vetoed(self.seen, self.tick)

    @property
    def limit(self) -> int:
        """Highest count that any rule allows now."""
        # An event's raise outlasts it by one scale-down window, so that the count does not fall off a cliff.
        after = self.seen.workload.policy.behavior.scale_down.stabilization_window
        raised = [
            e.max_replicas_override
            for e in self.seen.events
            if e.max_replicas_override and e.end_at + after > self.tick.now
        ]
        caps = [o.replicas for o in self.live if o.kind is OverrideKind.AT_MOST and o.replicas is not None]
        return min([max([self.seen.workload.max_replicas, *raised]), *caps])

    @property
    def lowest_limit(self) -> int:
        """Lowest ceiling that may hold now: without any event's raise, and unknown when a quota is shared."""
        if self.seen.workload.quota_pool is not None:
            return 0
        caps = [o.replicas for o in self.live if o.kind is OverrideKind.AT_MOST and o.replicas is not None]
        return min([self.seen.workload.max_replicas, *caps])

    @property
    def current(self) -> int | None:
        """The base the core starts from."""
        same = self.before.mode in {None, self.seen.workload.mode}
        if self.before.desired_replicas is not None and same:
            return self.before.desired_replicas
        return self.seen.observed_desired

    def fail(self, number: int, what: str) -> BrokenInvariantError:
        return self.world.broken(number, f"{self.seen.workload.name}: {what}")

    def ceiling(self, desired: int) -> None:
        if desired > self.limit:
            raise self.fail(2, f"desired {desired} is above the ceiling {self.limit}")

    def floor(self, desired: int) -> None:
        lowest = min(self.seen.workload.min_replicas, self.lowest_limit)
        if desired < lowest:
            raise self.fail(3, f"desired {desired} is below the minimum {lowest}")

    def unknown(self, desired: int) -> None:
        current = self.current
        if current is None or any(o.kind is OverrideKind.SET for o in self.live):
            return
        blind = read_demand(self.seen, _curve(self.seen.workload), self.tick.now).observation is None
        if desired < min(current, self.lowest_limit):
            if blind:
                raise self.fail(4, f"scaled {current} -> {desired} without usable demand")
            if self.seen.replicas is None:
                raise self.fail(5, f"scaled {current} -> {desired} without seeing the replicas")

    def veto(self) -> None:
        if any(isinstance(e, ScaleTo | ReplaceReplica) for e in self.own):
            raise self.fail(6, "acted while paused")
        kept = self.after.desired_replicas
        if kept not in {self.current, self.seen.observed_desired, self.before.desired_replicas, None}:
            raise self.fail(6, f"the count moved to {kept} while paused")

    def prewarm(self, desired: int) -> None:
        plan = self.after.plan
        until = {f.event_id: f.until_at for f in plan.floors} if plan else {}
        for contract in self.after.contracts:
            end = until.get(contract.event_id)
            standing = end is not None and contract.order_at <= self.tick.now < end
            if not standing or contract.state in {ContractState.FIZZLED, ContractState.COMPLETED}:
                continue
            held = min(contract.replicas, self.lowest_limit)
            if desired < held:
                raise self.fail(7, f"desired {desired} is under the {held} of {contract.event_id}")

    def records(self) -> None:
        recorded: dict[str, int] = {}
        for effect in self.own:
            if isinstance(effect, RecordDecision):
                decision = effect.decision
                recorded[decision.id] = decision.desired_replicas
                figures = (decision.demand_qps, *(age.age_s for age in decision.inputs))
                if not decision.sentence or not all(x is None or isfinite(x) for x in figures):
                    raise self.fail(16, f"decision {decision.id} is not finite or does not say why")
            elif isinstance(effect, ScaleTo) and recorded.get(effect.decision_id) != effect.replicas:
                raise self.fail(8, f"scaling to {effect.replicas} was not recorded before")

    def explained(self) -> None:
        for effect in self.own:
            if not isinstance(effect, RecordDecision):
                continue
            d = effect.decision
            asked = [x.replicas for x in d.recommendations if x.replicas is not None]
            silent = RecommendationKind.ABSTAIN
            if all(x.kind is silent for x in d.recommendations):
                continue
            counts = [d.current_replicas, *asked]
            if not min(counts) <= d.desired_replicas <= max(counts):
                raise self.fail(9, f"nobody asked for {d.desired_replicas}: {d.sentence}")

    def alarms(self) -> None:
        name = self.seen.workload.name
        keys = {a.key for a in self.before.alarms}
        for effect in self.effects:
            if isinstance(effect, RaiseAlarm) and effect.alarm.workload == name:
                keys.add(effect.alarm.key)
            elif isinstance(effect, ClearAlarm) and effect.alarm.workload == name:
                keys.discard(effect.alarm.key)
        if keys != {a.key for a in self.after.alarms}:
            raise self.fail(14, "raised and cleared alarms do not add up")

    def plans(self) -> None:
        plan = self.after.plan
        for one in plan.floors if plan else ():
            if one.replicas < 0 or not one.order_at <= one.needed_at or one.needed_at > one.until_at:
                raise self.fail(
                    15, f"floor {one.reason} is dated {one.order_at}, {one.needed_at}, {one.until_at}"
                )
            if one.replicas > self.limit_ever and not one.unmet_replicas:
                raise self.fail(15, f"floor {one.reason} is above every limit and reports nothing")

    @property
    def limit_ever(self) -> int:
        raised = [e.max_replicas_override or 0 for e in self.seen.events]
        return max([self.seen.workload.max_replicas, *raised])


def _check_quota(world: World, before: FleetState, tick: TickInput, after: FleetState) -> None:
    for pool in tick.pools:
        members = [
            w.workload.name
            for w in tick.workloads
            if w.workload.quota_pool == pool.name and w.workload.mode is not Mode.RECOMMEND
        ]
        held = {n: _count(before.workloads.get(n), world.cluster[n].target) for n in members}
        for w in tick.workloads:
            # Where others order, or nobody may, following what runs already is no growth of ours.
            name = w.workload.name
            if name in held and (_vetoed(w, tick) or w.workload.mode is Mode.KEDA):
                held[name] = max(held[name], world.cluster[name].target)
        now = {n: _count(after.workloads.get(n), world.cluster[n].target) for n in members}
        grew = any(now[n] > held[n] for n in members)
        if grew and sum(now.values()) > max(pool.nominal_gpus, sum(held.values())):
            raise world.broken(17, f"pool {pool.name} holds {now} of {pool.nominal_gpus} GPUs, before {held}")


def _count(state: WorkloadState | None, observed: int) -> int:
    return observed if state is None or state.desired_replicas is None else state.desired_replicas


def _check_deep(world: World, before: FleetState, tick: TickInput, after: FleetState) -> None:
    text = encode(after)
    if decode(FleetState, text) != after:
        raise world.broken(11, "state does not survive storage")
    turned = replace(
        tick,
        workloads=tuple(
            replace(
                w,
                events=tuple(reversed(w.events)),
                overrides=tuple(reversed(w.overrides)),
                replicas=None if w.replicas is None else tuple(reversed(w.replicas)),
            )
            for w in reversed(tick.workloads)
        ),
    )
    other, _ = on_tick(before, turned)
    if _desired(other) != _desired(after):
        raise world.broken(12, f"the order of inputs changed {_desired(after)} to {_desired(other)}")
    again, _ = on_tick(after, tick)
    # What one member of a pool gives up, another may only take at the next tick: pools are left out.
    for name, w in world.workloads.items():
        first, second = after.workloads[name].desired_replicas, again.workloads[name].desired_replicas
        if w.quota_pool is None and first != second:
            raise world.broken(13, f"{name}: deciding twice changed {first} to {second}")


def _desired(state: FleetState) -> dict[str, int | None]:
    return {name: w.desired_replicas for name, w in state.workloads.items()}


def _curve(workload: Workload) -> CapacityCurve:
    return curve(workload.profile, workload.slo, workload.policy.arrival_scv)


def _check_healed(world: World) -> None:
    """Invariant 18, at the end of the calm stretch."""
    for name, w in world.workloads.items():
        pool = world.cluster[name]
        if w.mode is not Mode.SCALE or w.quota_pool is not None:
            continue
        need = min(required_replicas(world.demand_qps(name), w.profile, w.slo), w.max_replicas)
        seen = [r.observed(world.now_s, world.clock) for r in pool.replicas]
        warm = sum(r.warm for r in seen)
        # Tolerance may keep the ordered count below the need; nothing keeps an ordered replica from being warm.
        tolerated = w.policy.behavior.tolerance * warm + 1e-9 if warm == pool.target else 0
        if need - warm > tolerated:
            raise world.broken(
                18, f"{name}: {warm} of {need} replicas are warm after {CALM_TICKS} calm ticks"
            )
        overdue = w.policy.order_timeout + HEAL_GRACE
        stuck = [
            r.id
            for r in seen
            if r.stage is Stage.FAILED or (r.in_flight and world.now - r.ordered_at > overdue)
        ]
        if stuck:
            raise world.broken(18, f"{name}: {stuck} are still broken after {CALM_TICKS} calm ticks")


def run_seed(seed: int) -> World:
    """Run one world to its end.

    Raises:
        BrokenInvariantError: An invariant did not hold.
    """
    world = World(seed)
    for _ in range(FAULT_TICKS + CALM_TICKS):
        world.step()
    _check_healed(world)
    return world


def main(arguments: list[str] | None = None) -> int:
    """Run a range of seeds; 1 and the sentence of each failure when an invariant broke."""
    parser = argparse.ArgumentParser(prog="python -m controller.simulation.faults", description=__doc__)
    parser.add_argument("--seeds", default="0:500", help="A:B, B excluded")
    parser.add_argument(
        "--keep-going", action="store_true", help="report every failing seed, not only the first"
    )
    given = parser.parse_args(arguments)
    first, _, last = given.seeds.partition(":")
    failures = 0
    for seed in range(int(first), int(last)):
        try:
            run_seed(seed)
        except BrokenInvariantError as error:
            failures += 1
            sys.stderr.write(f"seed {seed}: {error}\n")
            if not given.keep_going:
                return 1
    sys.stdout.write(f"{int(last) - int(first)} seeds, {failures} broken\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
