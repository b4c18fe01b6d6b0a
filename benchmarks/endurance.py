"""Days of the production loop on a virtual clock, with faults: does it keep more than it needs, or drift from the truth?

Promises: two controllers made of production's runner, control, observer, forecasting and near demand on the written fakes,
every tick of every virtual day; the store, the cache, the fleet and the demand go away by a seeded schedule and leaders
change. What each controller holds is counted object by object; then the fakes' own records, whose number comes and goes with
the decisions of the last two hours; then every other block of memory that Python gave this process. Exit status 1 when the
first or the last grows, or when what is stored and what runs differ in calm. Called by people:
`python -m benchmarks.endurance --days 7`.
"""

import argparse
import asyncio
import gc
import json
import logging
import math
import sys
import types
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from benchmarks.loop import FakeProcess, FakeWorld
from controller.adapters.clock import SystemClock, VirtualClock
from controller.adapters.codec import encode
from controller.adapters.fakes import (
    FakeActuator,
    FakeDemandMeter,
    FakeLeaseStore,
    FakeSignalCache,
    FakeStore,
)
from controller.cli.common import run
from controller.core.resources import EventState, TrafficEvent, TrafficSample
from controller.core.types import CapacityProfile, DemandObservation, Workload
from controller.ports import Retention
from controller.settings import Settings

START = datetime(2026, 3, 2, tzinfo=UTC)
NAMES = ("shop-a", "shop-b")
TICK_S = 30.0
FAULT_S = 120.0
EVENTS_S = 7200.0
FAULTS = ("store", "cache", "fleet", "demand", "leases", "leader")
# What the fakes keep of the past; short, so that the store itself stays small beside what is measured.
KEPT = Retention(
    traffic=timedelta(hours=26),
    decisions=timedelta(hours=2),
    forecasts=timedelta(hours=2),
    runs=timedelta(hours=2),
    parts=timedelta(hours=2),
    scores=timedelta(hours=26),
)
# Blocks that are neither a controller's nor the fakes' may grow by one in so many ticks.
TICKS_PER_BLOCK = 100
# What Python keeps in one block beside the object itself, as long as it is small.
_BLOCK_BYTES_MAX = 512
_ELSEWHERE = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.CodeType,
    types.FrameType,
    asyncio.AbstractEventLoop,
    asyncio.Future,
    logging.Logger,
    VirtualClock,
    Settings,
)
_FAKES = (FakeStore, FakeSignalCache, FakeActuator, FakeDemandMeter, FakeLeaseStore)


def workload_of(name: str) -> Workload:
    """2 to 20 replicas of 100 requests per second."""
    return Workload(name, name, (CapacityProfile("e", "g", 100.0),), min_replicas=2, max_replicas=20)


@dataclass(slots=True)
class Held:
    """What can be reached from some objects."""

    objects: int = 0
    size: int = 0  # bytes
    blocks: int = 0

    def __add__(self, other: "Held") -> "Held":
        return Held(self.objects + other.objects, self.size + other.size, self.blocks + other.blocks)


def reach(roots: Sequence[object], seen: set[int], *, but: tuple[type, ...] = ()) -> Held:
    """Count what can be reached and was not seen before, but for what is the process's own and for some types.

    Without keys of dictionaries that are strings, of which Python's collector knows nothing: those are other blocks.
    """
    found, waiting = Held(), list[Any](roots)
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, _ELSEWHERE + but):
            continue
        seen.add(id(one))
        size = sys.getsizeof(one)
        apart = isinstance(one, dict | list | set | deque) and len(one) > 0 and size <= _BLOCK_BYTES_MAX
        found += Held(1, size, 1 + apart)
        waiting.extend(gc.get_referents(one))
    return found


class World(FakeWorld):
    """What the controllers share, and what is done to it."""

    def __init__(self, seed: int) -> None:
        super().__init__(START)
        self.random = Random(seed)
        self.fault = "none"

    @property
    def now(self) -> datetime:
        """The virtual time."""
        return self.clock.now()

    async def register(self) -> None:
        """Store the workloads."""
        async with self.store.unit_of_work() as uow:
            for name in NAMES:
                await uow.workloads.create(workload_of(name))
            await uow.commit()

    def demand_qps(self, name: str) -> float:
        """A day's wave, noise, and more while an event runs."""
        wave = 1.0 + 0.6 * math.sin(2 * math.pi * self.now.timestamp() / 86_400 + NAMES.index(name))
        running = any(
            versions[-1].start_at <= self.now < versions[-1].end_at
            and versions[-1].state is not EventState.CANCELLED
            and name in versions[-1].workloads
            for versions in self.store.tables.events.values()
        )
        return (500.0 * wave + (600.0 if running else 0.0)) * self.random.uniform(0.95, 1.05)

    def serve(self) -> None:
        """Let the next scrape see what is offered now, unless demand is what is away."""
        if self.fault == "demand":
            self.meter.demand.clear()
            return
        for name in NAMES:
            qps = self.demand_qps(name)
            self.meter.demand[name] = DemandObservation(self.now, qps, qps, 0.0, 1, 1, timedelta(minutes=5))
            if self.now.second == 0:
                self.meter.samples.append(TrafficSample(name, self.now - timedelta(minutes=1), 60 * qps))

    def heal(self) -> None:
        """End the fault."""
        self.fault = "none"
        self._let()

    def break_next(self) -> str:
        """Begin a fault; return its name."""
        self.fault = self.random.choice(FAULTS)
        self._let()
        return self.fault

    def _let(self) -> None:
        self.store.available = self.fault != "store"
        self.cache.available = self.fault != "cache"
        self.actuator.available = self.fault != "fleet"
        self.leases.available = self.fault != "leases"

    async def tidy(self) -> None:
        """Drop what the fakes need no longer, where the store answers."""
        self.actuator.scaled.clear()
        if self.store.available:
            await self.store.maintain(self.now, KEPT)

    async def plan_events(self) -> None:
        """Register one event, sometimes cancel one, forget those that are long over."""
        if not self.store.available:
            return
        tables = self.store.tables
        for gone in [i for i, v in tables.events.items() if v[-1].end_at < self.now - timedelta(hours=3)]:
            del tables.events[gone]
        start_at = self.now + timedelta(minutes=self.random.randrange(20, 90))
        async with self.store.unit_of_work() as uow:
            event = await uow.events.create(
                TrafficEvent(
                    id=f"event-{self.now:%d%H%M}",
                    workloads=NAMES[: self.random.choice((1, 2))],
                    start_at=start_at,
                    end_at=start_at + timedelta(minutes=30),
                    time_zone="UTC",
                    expected_peak_qps=float(self.random.randrange(600, 1400)),
                )
            )
            if self.random.random() < 0.3:
                await uow.events.update(replace(event, state=EventState.CANCELLED), expected_revision=None)
            await uow.commit()


class Process(FakeProcess):
    """One controller: production's loop on the shared fakes."""

    def __init__(self, world: World, name: str) -> None:
        settings = Settings(
            tick_period_s=TICK_S,
            scrape_period_s=TICK_S,
            forecast_period_s=900.0,
            forecast_horizon_s=7200.0,
            history_window_s=86_400.0,
            lease_duration_s=60.0,
        )
        super().__init__(world, name, settings, ttl=timedelta(minutes=5))
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Run the loop."""
        self._task = asyncio.create_task(self.runner.run())

    async def stop(self) -> None:
        """End it; its lease is given up."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def held(self, seen: set[int]) -> Held:
        """What it keeps; the fakes and what is theirs alone not counted."""
        roots = (self.leadership, self.observer, self.forecasting, self.control, self.runner)
        return reach(roots, seen, but=_FAKES)


@dataclass(frozen=True, slots=True)
class Sample:
    """What is kept at a moment."""

    hour: float
    objects: int
    kib: float
    state_bytes: int
    stored_kib: float  # the fakes' records, and these
    other_blocks: int  # every block that Python gave out, but for these


@dataclass(slots=True)
class Found:
    """What a run showed."""

    samples: list[Sample] = field(default_factory=list[Sample])
    wrong: list[str] = field(default_factory=list[str])
    faults: Counter[str] = field(default_factory=Counter[str])
    compared: int = 0
    decisions: int = 0
    newest: dict[str, str] = field(default_factory=dict[str, str])

    def growth(self, first: tuple[float, float], last: tuple[float, float]) -> dict[str, float]:
        """Mean of what was kept between two hours at the end, over that of two at the beginning; of states the most."""

        def mean(key: str, hours: tuple[float, float]) -> float:
            own = [getattr(s, key) for s in self.samples if hours[0] <= s.hour < hours[1]]
            # A state is as long as its plan and events happen to be: what may not grow is the longest.
            return float(max(own)) if key == "state_bytes" else sum(own) / len(own)

        keys = ("objects", "kib", "state_bytes", "stored_kib", "other_blocks")
        return {key: mean(key, last) / mean(key, first) for key in keys} | {
            "other_blocks_a_tick": (mean("other_blocks", last) - mean("other_blocks", first))
            / ((last[0] - first[0]) * 3600 / TICK_S)
        }


class Schedule:
    """Faults and calm by turns."""

    def __init__(self, world: World, members: Sequence[Process], found: Found) -> None:
        self._world, self._members, self._found = world, members, found
        self._turn_at = START + timedelta(minutes=30)
        self._down: Process | None = None
        self._calm, self._calm_since_at = True, START

    @property
    def calm(self) -> bool:
        """Whether nothing is broken, nor was in the last three minutes."""
        return self._calm and self._world.now > self._calm_since_at + timedelta(minutes=3)

    async def turn(self) -> None:
        """Begin what is due."""
        world = self._world
        if world.now < self._turn_at:
            return
        self._calm = not self._calm
        if self._calm:
            world.heal()
            self._calm_since_at = world.now
            if self._down is not None:
                self._down.start()
                self._down = None
            self._turn_at = world.now + timedelta(minutes=world.random.randrange(15, 60))
            return
        self._found.faults[world.break_next()] += 1
        if world.fault == "leader":
            self._down = next((m for m in self._members if m.leadership.token is not None), None)
            if self._down is not None:
                await self._down.stop()
        self._turn_at = world.now + timedelta(seconds=FAULT_S * world.random.randrange(1, 6))


async def endure(hours: float, seed: int, *, sample_every_h: float) -> Found:
    """Run that many virtual hours."""
    world, found, sample_at = World(seed), Found(), START
    await world.register()
    members = [Process(world, "a"), Process(world, "b")]
    for member in members:
        member.start()
    schedule = Schedule(world, members, found)
    for step in range(int(hours * 3600 / TICK_S)):
        world.serve()
        if step % int(EVENTS_S / TICK_S) == 0:
            await world.plan_events()
        await schedule.turn()
        await world.clock.advance(TICK_S)
        await _check(world, found, calm=schedule.calm)
        if world.now >= sample_at:
            sample_at += timedelta(hours=sample_every_h)
            await world.tidy()
            found.samples.append(_sample(world, members, found))
    for member in members:
        await member.stop()
    return found


async def _check(world: World, found: Found, *, calm: bool) -> None:
    """Hold what is stored against what runs, after each step."""
    tables = world.store.tables
    for name in NAMES:
        own = [d for d in tables.decisions.values() if d.workload == name]
        if not own:
            continue
        last = max(own, key=lambda d: (d.at, d.id))
        if last.id != found.newest.get(name):
            found.newest[name] = last.id
            found.decisions += 1
            down = last.desired_replicas < last.current_replicas
            if not 2 <= last.desired_replicas <= 20 or (down and last.demand_qps is None):
                found.wrong.append(f"{last.at}: {name} {last.current_replicas}: {last.sentence}")
        if calm:
            found.compared += 1
            decided, state = last.desired_replicas, tables.states[name].desired_replicas
            there = (await world.actuator.observe([workload_of(name)]))[name].desired_replicas
            if not decided == there == state:
                found.wrong.append(f"{world.now}: {name} decided {decided}, state {state}, there {there}")


def _sample(world: World, members: Sequence[Process], found: Found) -> Sample:
    gc.unfreeze()  # what the runner set aside counts too
    gc.collect()
    blocks = sys.getallocatedblocks()
    seen: set[int] = set()
    kept = sum((member.held(seen) for member in members), Held())
    # With what this measure itself keeps.
    fakes = (world.store, world.cache, world.actuator, world.meter, world.leases, found)
    stored = reach(fakes, seen)
    return Sample(
        (world.now - START).total_seconds() / 3600,
        kept.objects,
        kept.size / 1024,
        sum(len(encode(state)) for state in world.store.tables.states.values()),
        stored.size / 1024,
        blocks - kept.blocks - stored.blocks,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print what grew; 1 when anything did, or differed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks endurance", description=__doc__)
    parser.add_argument("--days", type=float, default=7.0, help="virtual ones, at least 3")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="end with one JSON object and no sentence")
    given = parser.parse_args(arguments)
    logging.disable(logging.ERROR)  # what is broken on purpose is told at length
    clock = SystemClock()
    began_s = clock.monotonic()
    found = run(endure(24 * given.days, given.seed, sample_every_h=1.0))
    growth = found.growth((24.0, 48.0), (24 * given.days - 24, 24 * given.days))
    flat = (
        max(growth["objects"], growth["kib"]) <= 1.05
        and growth["state_bytes"] <= 1.5
        and growth["other_blocks_a_tick"] <= 1 / TICKS_PER_BLOCK
    )
    told = {
        "days": given.days,
        "took_s": round(clock.monotonic() - began_s, 1),
        "decisions": found.decisions,
        "faults": dict(found.faults),
        "compared": found.compared,
        "wrong": found.wrong[:20],
        "last_day_over_second": {key: round(ratio, 4) for key, ratio in growth.items()},
        "flat": flat,
        "samples": [_row(s) for s in found.samples[:: max(1, len(found.samples) // 14)]],
    }
    if given.json:
        print(json.dumps(told, indent=2))
    else:
        for key, value in told.items():
            print(f"{key}: {value}")
    return 0 if flat and not found.wrong else 1


def _row(sample: Sample) -> dict[str, float]:
    """The fields of a sample, short."""
    return {key: round(value, 1) for key, value in asdict(sample).items()}


if __name__ == "__main__":
    sys.exit(main())
