"""What near demand costs the loop by the number of workloads: a takeover, and each minute, on a real PostgreSQL.

Promises: the loop's own near demand (`NearForecasting`) over the production store and forecaster; every workload has a
stored calibration, measured once on two weeks of noisy minutes, a forecast, and two hours of minutes. Each minute is
renewed twice, by two loops that take turns: one that reckons many workloads at once, as the loop does, and one that
reckons them one by one. Fits and refits are not in it. Called by people: `python -m benchmarks.near --json`.
"""

import argparse
import asyncio
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from benchmarks.scale import LEVELS, SkippingClock, name_of
from controller.adapters.embedded import EmbeddedStack
from controller.adapters.forecaster import FitForecaster
from controller.adapters.postgres import PostgresStore, migrate
from controller.cli.common import run
from controller.core.resources import TrafficSample
from controller.core.rows import packed
from controller.core.types import ForecastBand, ForecastState, NearDemand
from controller.loop.near import NearForecasting
from controller.ports import NearAsked
from controller.settings import Settings

MINUTE = timedelta(minutes=1)
HISTORY = 14 * 1440
RECENT = 125  # what is read of each workload, and some
LEAD = timedelta(minutes=4)
_MINUTES = """
    INSERT INTO traffic_samples (workload, minute_at, demand_count, source, coverage)
    SELECT name, minute_at, 6000 + 300 * random(), 'triton', 1
    FROM unnest(%s::text[]) AS name, generate_series(%s::timestamptz, %s::timestamptz, '1 minute') AS minute_at
    ON CONFLICT DO NOTHING
"""
_CALIBRATIONS = """
    INSERT INTO forecasts_said (workload, record, calibration)
    SELECT name, %s, %s FROM unnest(%s::text[]) AS name
"""


class Reckoning(FitForecaster):
    """Knows what reckoning took, of all that renewing did."""

    def __init__(self, *, together: bool) -> None:
        super().__init__()
        self._together, self.cpu_s = together, 0.0

    def near_of(self, asked: Sequence[NearAsked]) -> Sequence[NearDemand | None]:
        """As the loop's forecaster does it, or one after the other."""
        began_s = time.process_time()
        answers = (
            super().near_of(asked)
            if self._together
            else [one.model.near(one.minutes, one.band, trust=one.trust) for one in asked]
        )
        self.cpu_s += time.process_time() - began_s
        return answers


class World:
    """A fleet whose minutes come as the clock is set ahead."""

    def __init__(self, database_url: str, count: int) -> None:
        self.clock, self.store = SkippingClock(timedelta(0)), PostgresStore(database_url)
        self.names = [name_of(index) for index in range(count)]
        self._url = database_url.replace("+psycopg", "")
        self._next_at = self.clock.now().replace(second=0, microsecond=0)
        self.bands: dict[str, ForecastBand] = {}

    async def seed(self) -> int:
        """Store what a leader before this one would have; return the bytes of a calibration."""
        end_at, day = self._next_at, 2 * np.pi * np.arange(HISTORY) / 1440
        qps = 100 * (1.6 + np.sin(day)) * np.random.default_rng(1).normal(1.0, 0.05, HISTORY)
        model = FitForecaster().near_model()
        minutes = [(end_at - (HISTORY - i) * MINUTE, value) for i, value in enumerate(qps.tolist())]
        await model.calibrate(minutes, lead=LEAD)
        rows = packed(tuple((value,) * len(LEVELS) for value in qps[: 576 * 5 : 5].tolist()))
        for name in self.names:
            self.bands[name] = ForecastBand(
                name, end_at, end_at, 5 * MINUTE, LEVELS, rows, ForecastState.READY
            )
        async with self.store.unit_of_work() as uow:  # its partitions, too
            first = [TrafficSample(self.names[0], end_at - i * MINUTE, 6000.0) for i in range(1, RECENT)]
            await uow.traffic.upsert(first)
            await uow.commit()
        calibration = model.calibration()
        await self._write(_CALIBRATIONS, model.record(), calibration, self.names)
        await self._write(_MINUTES, self.names, end_at - RECENT * MINUTE, end_at - MINUTE)
        await self._write("ANALYZE")
        return len(calibration)

    async def minute(self) -> None:
        """Let a minute pass."""
        self.clock.ahead += MINUTE
        await self._write(_MINUTES, self.names, self._next_at, self._next_at)
        self._next_at += MINUTE

    async def _write(self, statement: str, *values: object) -> None:
        async with await psycopg.AsyncConnection.connect(self._url, autocommit=True) as connection:
            await connection.execute(statement.encode(), values)

    async def timed(self, loop: NearForecasting, forecaster: Reckoning) -> dict[str, float]:
        """Seconds of one turn of the loop: by the clock, of processor time, and of this for reckoning."""
        began_s, used_s, reckoned_s = time.perf_counter(), time.process_time(), forecaster.cpu_s
        await loop.refresh(self.names, self.bands, {})
        found = {
            "wall_s": time.perf_counter() - began_s,
            "cpu_s": time.process_time() - used_s,
            "reckoned_cpu_s": forecaster.cpu_s - reckoned_s,
        }
        if len(loop.demands) != len(self.names):
            raise SystemExit(f"{len(loop.demands)} of {len(self.names)} workloads have near demand")
        return found


async def measure(count: int, rounds: int) -> dict[str, Any]:
    """Take over a fleet, and live through some minutes of it."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forecrest-near-")))
        servers = await stack.enter_async_context(EmbeddedStack(folder))
        await asyncio.to_thread(migrate.upgrade, servers.database_url)
        world = World(servers.database_url, count)
        stack.push_async_callback(world.store.close)
        size = await world.seed()
        both = {"together": Reckoning(together=True), "alone": Reckoning(together=False)}
        await both["together"].near_ready()  # as a follower
        loops = {
            kind: NearForecasting(world.store, forecaster, world.clock, Settings())
            for kind, forecaster in both.items()
        }
        takeover = {kind: await world.timed(loop, both[kind]) for kind, loop in loops.items()}
        minutes: dict[str, list[dict[str, float]]] = {kind: [] for kind in loops}
        for _ in range(rounds):
            await world.minute()
            for kind, loop in loops.items():
                minutes[kind].append(await world.timed(loop, both[kind]))
    pairs = list(zip(*minutes.values(), strict=True))
    return {
        "workloads": count,
        "load_average": os.getloadavg()[0],
        "calibration_bytes": size,
        "takeover": takeover["together"],
        "minute": {kind: _medians(turns) for kind, turns in minutes.items()},
        "ratio": {key: statistics.median(a[key] / b[key] for a, b in pairs) for key in pairs[0][0]},
    }


def _medians(turns: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every size, on servers of its own, and print what each cost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.near", description=__doc__)
    parser.add_argument("--workloads", type=int, nargs="+", default=[2000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="end with one JSON array and no sentence")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.ERROR)
    sizes = [run(measure(count, given.rounds)) for count in given.workloads]
    if given.json:
        print(json.dumps(sizes, indent=2))
        return 0
    for size in sizes:
        together, alone = size["minute"]["together"], size["minute"]["alone"]
        print(
            f"{size['workloads']:>6} workloads: takeover {size['takeover']['wall_s']:.2f} s, a minute "
            f"{together['cpu_s']:.2f} s of processor time, {together['reckoned_cpu_s']:.2f} s of it reckoning "
            f"({alone['reckoned_cpu_s']:.2f} s one by one)"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
