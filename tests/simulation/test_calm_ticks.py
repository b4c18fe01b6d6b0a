"""Workloads for which nothing changes are passed over, and nothing is decided otherwise for it.

Every tick is decided twice, anew and with what earlier ticks found: in quiet worlds, where most workloads are passed over
while windows, rates, heartbeats and forecasts run out. Worlds full of faults are invariant 19 of `test_fault_worlds`.
"""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import nan
from random import Random

import pytest

from controller.core import tick as core
from controller.core.leadtime import LeadTime
from controller.core.tick import Calm, on_tick
from controller.core.types import (
    Behavior,
    CapacityProfile,
    DemandObservation,
    Effect,
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
)

NOW = datetime(2026, 11, 30, 22, 0, tzinfo=UTC)
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
LEVELS = (0.1, 0.5, 0.9, 0.99, 0.999)


class Twice:
    """Decides every tick both ways, and goes on with what was remembered."""

    def __init__(self) -> None:
        self.calm: dict[str, Calm] = {}
        self.passed = Counter[bool]()

    def __call__(self, state: FleetState, tick: TickInput) -> tuple[FleetState, tuple[Effect, ...]]:
        plain = on_tick(state, tick)
        before = {name: calm.state for name, calm in self.calm.items()}
        found = on_tick(state, tick, self.calm)
        assert plain == found
        for given in tick.workloads:
            name = given.workload.name
            self.passed[
                name in before
                and self.calm.get(name) is not None
                and before[name] is state.workloads.get(name)
            ] += 1
        return found


class QuietWorld:
    """A few workloads whose demand wanders, whose orders are carried out at once, and which little happens to."""

    def __init__(self, seed: int) -> None:
        self.random = r = Random(seed)
        self.workloads = [self._workload(number) for number in range(6)]
        self.counts = {w.name: r.randrange(2, 9) for w in self.workloads}
        self.base = {w.name: r.uniform(100.0, 700.0) for w in self.workloads}
        self.lead = LeadTime(r.choice((20.0, 40.0)))
        self.band = ForecastBand(
            "f",
            NOW - 5 * MINUTE,
            NOW,
            MINUTE,
            LEVELS,
            ((50.0, 90.0, 100.0, 120.0, 140.0),) * 20,
            ForecastState.READY,
        )
        # One that nothing can be computed with, which is no plan's but counts as long as another of its age.
        self.unsound = replace(self.band, qps=((nan,) * len(LEVELS),) * 20)
        self.replicas: dict[str, tuple[Replica, ...]] = {}
        self.core, self.state = Twice(), FleetState()

    def _workload(self, number: int) -> Workload:
        r = self.random
        rules = (ScalingPolicy(PolicyType.PODS, 2, r.choice((20, 60)) * SECOND),)
        behavior = Behavior(
            ScalingRules(r.choice((0, 30)) * SECOND, policies=r.choice(((), rules))),
            ScalingRules(r.choice((0, 45, 300)) * SECOND, policies=r.choice(((), rules))),
            r.choice((0.0, 0.1)),
        )
        policy = Policy(
            behavior=behavior,
            forecast_age_max=r.choice((10, 180)) * MINUTE,
            break_even=r.choice((None, None, 2 * MINUTE)),
            scale_to_zero_after=MINUTE,
        )
        return Workload(
            f"w{number}",
            "m",
            (CapacityProfile("e", "T4", 100.0),),
            min_replicas=r.randrange(2),
            max_replicas=r.choice((6, 12)),
            policy=policy,
            mode=r.choice((*(Mode.SCALE,) * 3, *Mode)),
            quota_pool=r.choice((None,) * 5 + ("gpus",)),
        )

    def _given(self, w: Workload, now: datetime) -> WorkloadInput:
        r, count = self.random, self.counts[w.name]
        self.base[w.name] *= r.choice((1.0,) * 60 + (0.0, 2.0, 0.7))
        self.base[w.name] = self.base[w.name] or r.choice((0.0, 0.0, 300.0))
        qps = self.base[w.name] * r.uniform(0.99, 1.01)
        if len(self.replicas.get(w.name, ())) != count:
            stage = r.choice((Stage.VERIFIED, Stage.VERIFIED, Stage.LOADED))
            self.replicas[w.name] = tuple(Replica(f"r{k}", stage, now, now) for k in range(count))
        elif r.random() < 0.2:
            # Seen anew: equal, and another object.
            self.replicas[w.name] = tuple(replace(x, stage=Stage.VERIFIED) for x in self.replicas[w.name])
        demand = DemandObservation(
            now, qps, r.choice((None, qps)), 0.0, count, count, r.choice((1,) * 30 + (0,)) * MINUTE
        )
        near = NearDemand(now, MINUTE, LEVELS, tuple(qps * (1 + share / 20) for share in range(5)))
        override = Override("o", OverrideKind.AT_LEAST, 3, now + 20 * SECOND, "because")
        return WorkloadInput(
            w,
            r.choice((self.replicas[w.name],) * 40 + (None,)),
            count,
            r.choice((demand,) * 40 + (None, replace(demand, at=now - 5 * MINUTE))),
            (None, self.band, self.unsound)[int(w.name[1:]) % 3],
            r.choice((Trust.TRUSTED,) * 60 + (Trust.DISTRUSTED,)),
            r.choice((near,) * 40 + (None,)) if int(w.name[1:]) % 2 else None,
            overrides=r.choice(((),) * 60 + ((override,),)),
            lead=self.lead,
            competing_owner=r.choice((None,) * 60 + ("hpa/x",)),
            shortfall=r.choice((None,) * 60 + ("no GPU is free",)),
        )

    def run(self, ticks: int) -> None:
        now, r = NOW, self.random
        for _ in range(ticks):
            now += r.choice((5 * SECOND,) * 50 + (0 * SECOND, -5 * SECOND, 90 * SECOND))
            paused = r.random() < 0.01
            given = tuple(self._given(w, now) for w in self.workloads)
            pools = (QuotaPool("gpus", 8),)
            self.state, effects = self.core(self.state, TickInput(now, given, pools, paused, "test"))
            for effect in effects:
                if isinstance(effect, ScaleTo):
                    self.counts[effect.workload] = effect.replicas


def quiet_worlds() -> Counter[bool]:
    """Walk through several; return how many ticks of workloads were passed over, and how many were not."""
    passed = Counter[bool]()
    for seed in range(12):
        world = QuietWorld(seed)
        world.run(250)
        passed += world.core.passed
    return passed


def test_time_alone_does_not_tell_the_two_apart() -> None:
    passed = quiet_worlds()

    assert passed[True] > passed[False] / 4


@pytest.mark.parametrize("name", ["_needs", "_given", "_is_calm"])
def test_a_core_that_looks_at_less_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, name, lambda *_: True)

    with pytest.raises(AssertionError):
        quiet_worlds()


def test_one_whose_replica_was_replaced_once_is_passed_over_again() -> None:
    twice, state = Twice(), FleetState()
    warm = tuple(Replica(f"r{k}", Stage.VERIFIED, NOW, NOW) for k in range(2))
    failed = replace(warm[0], stage=Stage.FAILED)
    w = Workload("w", "m", (CapacityProfile("e", "T4", 100.0),), policy=Policy(scale_to_zero_after=MINUTE))

    def decide(second: int, *replicas: Replica) -> tuple[Effect, ...]:
        nonlocal state
        now = NOW + second * SECOND
        demand = DemandObservation(now, 100.0, 100.0, 0.0, 2, 2, MINUTE)
        state, effects = twice(state, TickInput(now, (WorkloadInput(w, replicas, 2, demand),)))
        return effects

    assert any(isinstance(effect, ReplaceReplica) for effect in decide(0, failed, warm[1]))
    for second in range(5, 180, 5):
        decide(second, replace(warm[0], stage_at=NOW + SECOND), warm[1])

    assert state.workloads["w"].replaced_at is not None
    assert twice.passed[True] > 0
