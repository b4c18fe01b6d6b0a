"""The simulator's replay and the loop are one: over the same demand they ask the core the same, and order the same.

A trace is replayed. Then a controller of fakes lives through it on a virtual clock: it is told the demand and near
demand that the replay's policy saw, knows the event as a planner registers it, and its replicas are those that it
orders itself. Tick for tick the core must be asked the same, so that nothing helps the replay that users will not
have, and nothing that they have is kept from it.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import pi, sin

import numpy as np
import pytest

from controller.adapters.fakes import FakeActuator
from controller.core.leadtime import DEFAULT_PRIORS, StagePrior, estimate_lead_time
from controller.core.resources import TrafficEvent
from controller.core.tick import Calm
from controller.core.types import (
    Effect,
    FleetState,
    Policy,
    Stage,
    TickInput,
    WorkloadInput,
    WorkloadState,
)
from controller.loop import control as loop
from controller.loop.control import Control
from controller.settings import Settings
from controller.simulation import ours
from controller.simulation.cluster import ClusterModel
from controller.simulation.harness import simulate
from controller.simulation.queueing import Queue
from controller.simulation.trace import Trace, TraceEvent
from tests.unit.loop.conftest import Fleet, Process

MONDAY = datetime(2026, 3, 2, tzinfo=UTC)
HOURS = 8
SALE = TraceEvent(
    MONDAY + timedelta(hours=6), MONDAY + timedelta(hours=7), "sale", "sale", expected_peak_qps=3_000.0
)
# Nodes take four minutes here; the controller's belief of a start, before any was measured, is the cluster's truth.
SETTINGS = Settings(forecast_horizon_s=HOURS * 3600, provisioning_delay_s=240.0)
# One tick a minute: what is a minute old must be missing to both.
POLICY = Policy(signal_age_max=timedelta(seconds=30))

Heard = list[tuple[TickInput, WorkloadState]]


def smooth() -> Trace:
    """It rises and falls every two hours."""
    qps = [1_000.0 + 600.0 * sin(2 * pi * minute / 120) for minute in range(60 * HOURS)]
    return Trace("smooth", MONDAY, 60, np.asarray(qps))


def restless() -> Trace:
    """Noise, a burst that nobody announced, five unknown minutes, and a sale that is larger than announced."""
    qps = 800.0 * np.random.default_rng(7).lognormal(0.0, 0.3, 60 * HOURS)
    qps[200:206] *= 4.0
    qps[300:305] = np.nan
    qps[6 * 60 : 7 * 60] = 3_300.0
    return Trace("restless", MONDAY, 60, qps)


def listen(monkeypatch: pytest.MonkeyPatch, caller: object) -> Heard:
    """What a caller asks the core from now on, and what the core remembers after each answer."""
    heard: Heard = []
    core = loop.on_tick

    def on_tick(
        state: FleetState, tick: TickInput, calm: dict[str, Calm] | None = None
    ) -> tuple[FleetState, tuple[Effect, ...]]:
        after, effects = core(state, tick, calm)
        heard.append((tick, after.workloads[ours.NAME]))
        return after, effects

    monkeypatch.setattr(caller, "on_tick", on_tick)
    return heard


async def live_through(replayed: Heard, events: tuple[TraceEvent, ...], cold_start_s: float) -> None:
    """Let a controller of fakes tick at the same times over the same demand."""
    first, started_at = replayed[0][0].workloads[0], replayed[0][0].now
    fleet = Fleet(started_at - timedelta(hours=1))
    stages = {Stage.ORDERED: 0.0, Stage.SCHEDULED: 0.2 * cold_start_s, Stage.VERIFIED: cold_start_s}
    fleet.actuator = FakeActuator(fleet.clock, stages)
    process = Process(fleet, "a")
    control = Control(
        *(fleet.store, fleet.cache, fleet.actuator, process.observer, process.forecasting, fleet.clock),
        SETTINGS,
    )
    await fleet.actuator.scale(first.workload, len(first.replicas or ()), fence=0)
    async with fleet.store.unit_of_work() as uow:
        await uow.workloads.create(first.workload)
        held = WorkloadState(desired_replicas=first.observed_desired)
        await uow.states.save({ours.NAME: held}, started_at)
        for event in events:
            await uow.events.create(registered(event))
        await uow.commit()
    near = process.forecasting.near.demands
    for tick, _ in replayed:
        (seen,) = tick.workloads
        await fleet.clock.advance((tick.now - fleet.clock.now()).total_seconds())
        fleet.meter.demand = {} if seen.demand is None else {ours.NAME: seen.demand}
        near.pop(ours.NAME, None)
        if seen.near is not None:
            near[ours.NAME] = seen.near
        token = await process.leadership.renew()
        assert token is not None
        await process.observer.scrape([seen.workload])
        await control.tick(token)


def registered(event: TraceEvent) -> TrafficEvent:
    return TrafficEvent(
        id="event-0",
        workloads=(ours.NAME,),
        start_at=event.start_at,
        end_at=event.end_at,
        time_zone="UTC",
        expected_peak_qps=event.expected_peak_qps,
        category=event.category,
    )


def alike(seen: WorkloadInput, now: datetime) -> object:
    """What the core was asked, without names of replicas, the stages of their starts, and demand past its age."""
    fresh = seen.demand is not None and now - seen.demand.at <= POLICY.signal_age_max
    return (
        replace(
            seen,
            replicas=None,
            demand=seen.demand if fresh else None,
            lead=replace(seen.lead, stage_p95_s=(), total_p95_s=round(seen.lead.total_p95_s, 6)),
        ),
        sorted((r.ordered_at, r.warm) for r in seen.replicas or () if not r.warm),
        sum(r.warm for r in seen.replicas or ()),
    )


@pytest.mark.parametrize(("made", "events"), [(smooth, ()), (restless, (SALE,))], ids=["smooth", "restless"])
async def test_the_loop_asks_and_orders_what_the_replay_did(
    made: Callable[[], Trace], events: tuple[TraceEvent, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = StagePrior("node", SETTINGS.provisioning_delay_s, SETTINGS.provisioning_delay_s)
    cold_start_s = estimate_lead_time(
        [node if prior.name == node.name else prior for prior in DEFAULT_PRIORS]
    ).total_p95_s
    model = ClusterModel(queue=Queue(capacity_qps=100.0), cold_start_s=cold_start_s)
    replayed = listen(monkeypatch, ours)
    simulate(made(), events, [ours.Forecrest(policy=POLICY)], model)
    lived = listen(monkeypatch, loop)
    await live_through(replayed, events, cold_start_s)

    assert len(lived) == len(replayed) > 60 * HOURS - 5
    for (asked, after), (in_the_loop, there) in zip(replayed, lived, strict=True):
        assert alike(in_the_loop.workloads[0], asked.now) == alike(asked.workloads[0], asked.now)
        assert (there.desired_replicas, there.needs) == (after.desired_replicas, after.needs), asked.now
        assert (there.changes, there.panic_until_at) == (after.changes, after.panic_until_at), asked.now
    counts = [after.desired_replicas for _, after in replayed]
    assert len(set(counts)) > 10
    assert sum(asked.workloads[0].near is not None for asked, _ in replayed) > 60
