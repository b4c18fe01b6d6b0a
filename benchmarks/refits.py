"""What forecasts of a fleet cost: one, a thousand through the pool, as the loop refits them, and a nowcast of all.

Promises: seconds by the clock beside processor seconds, of this process and its children, and the machine's load;
the loop's part is production's own on a real PostgreSQL: minutes are stored, rolled up, forecast, judged and saved.
Called by people: `python -m benchmarks.refits --json`.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from controller.adapters.clock import VirtualClock
from controller.adapters.embedded import EmbeddedStack
from controller.adapters.forecaster import FitForecaster
from controller.adapters.postgres import PostgresStore, migrate
from controller.core.resources import TrafficSample
from controller.core.types import CapacityProfile, Workload
from controller.loop.forecasting import Forecasting
from controller.settings import Settings
from forecaster import forecast, nowcast
from forecaster.fleet import Job, refit
from forecaster.workers import Workers

END = datetime(2026, 11, 30, tzinfo=UTC)
DAYS = 21
STEP_MINUTES = 5
ONE_DAY = 1440 // STEP_MINUTES
NOWCAST_STEPS, NOWCAST_LEVELS, NOWCAST_SEEN = 60, 5, 15


def demand(seed: int, step_minutes: int) -> np.ndarray:
    """Three weeks with a day's wave, a quiet weekend and noise of its own."""
    minutes = np.arange(0, DAYS * 1440, step_minutes)
    rng = np.random.default_rng(seed)
    week = np.where((minutes // 1440) % 7 < 5, 1.0, 0.6)
    wave = 1.4 + np.sin(2 * np.pi * (minutes / 1440 + rng.random()))
    return np.asarray(100.0 * wave * week * np.exp(0.1 * rng.standard_normal(len(minutes))))


def series(seed: int) -> pd.Series:
    """The same as a history that ends at `END`."""
    values = demand(seed, STEP_MINUTES)
    start = END - timedelta(days=DAYS)
    return pd.Series(values, pd.date_range(start, periods=len(values), freq=f"{STEP_MINUTES}min"))


def measured(work: Callable[[], object]) -> dict[str, float]:
    """Run and time."""
    began_s, cpu_s = time.perf_counter(), _cpu_s()
    work()
    return {
        "wall_s": round(time.perf_counter() - began_s, 3),
        "cpu_s": round(_cpu_s() - cpu_s, 3),
        "load": round(os.getloadavg()[0], 1),
    }


def _cpu_s() -> float:
    """Processor seconds of this process and of children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def one(repeats: int) -> dict[str, float]:
    """Median of one forecast, a day ahead, in this process."""
    histories = [series(seed) for seed in range(repeats)]
    forecast(histories[0], ONE_DAY)
    took = [measured(lambda past=past: forecast(past, ONE_DAY)) for past in histories]
    return {key: statistics.median(each[key] for each in took) for key in took[0]}


def pool(count: int, workers: int) -> dict[str, float]:
    """`forecaster.fleet.refit`, its processes' start included."""
    jobs = [Job(f"w{seed}", series(seed), ONE_DAY) for seed in range(count)]

    def work() -> None:
        found = refit(jobs, workers=workers, progress=_progress("pool"))
        assert all(outcome.forecast is not None for outcome in found)

    return measured(work)


def corrections(count: int) -> dict[str, float]:
    """One nowcast of all workloads."""
    rng = np.random.default_rng(1)
    values = np.sort(rng.gamma(3.0, 30.0, (count, NOWCAST_STEPS, NOWCAST_LEVELS)), axis=2)
    seen = rng.gamma(3.0, 30.0, (count, NOWCAST_SEEN))
    expected = rng.gamma(3.0, 30.0, (count, NOWCAST_SEEN))
    return measured(lambda: nowcast(values, seen, expected))


async def loop(count: int, workers: int) -> dict[str, float]:
    """A round of the controller's refits over stored minutes, and a second one with the processes running."""
    with tempfile.TemporaryDirectory() as folder:
        async with EmbeddedStack(Path(folder)) as servers:
            await asyncio.to_thread(migrate.upgrade, servers.database_url)
            store = PostgresStore(servers.database_url)
            try:
                return await _loop(store, count, workers)
            finally:
                await store.close()


async def _loop(store: PostgresStore, count: int, workers: int) -> dict[str, float]:
    fleet = [
        Workload(f"w{seed}", "ranker", (CapacityProfile("int8", "L4", 1000.0),), max_replicas=9)
        for seed in range(count)
    ]
    start, minute = END - timedelta(days=DAYS), timedelta(minutes=1)
    for seed, workload in enumerate(fleet):
        rows = [
            TrafficSample(workload.name, start + minute * k, 60.0 * value)
            for k, value in enumerate(demand(seed, 1).tolist())
        ]
        async with store.unit_of_work() as uow:
            await uow.workloads.create(workload)
            await uow.traffic.upsert(rows)
            await uow.commit()
        _progress("store")(seed + 1, count)
    forecaster = FitForecaster(Workers(workers))
    forecasting = Forecasting(store, forecaster, VirtualClock(END), Settings(), at_once=workers + 1)
    began_s, cpu_s = time.perf_counter(), _cpu_s()
    made = await forecasting.refresh(fleet, {})
    took_s = time.perf_counter() - began_s
    here_s = _cpu_s() - cpu_s
    await forecaster.close()
    assert made == count
    return {
        "wall_s": round(took_s, 3),
        "cpu_s": round(_cpu_s() - cpu_s, 3),
        "controller_cpu_s": round(here_s, 3),
        "load": round(os.getloadavg()[0], 1),
    }


def _progress(label: str) -> Callable[[int, int], None]:
    def show(done: int, total: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{label}: {done} of {total}", end="\n" if done == total else "", file=sys.stderr)

    return show


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.refits", description=__doc__)
    parser.add_argument("--workloads", type=int, default=1000, help="refit through the pool")
    parser.add_argument(
        "--stored", type=int, default=50, help="with minutes in PostgreSQL, refit by the loop"
    )
    parser.add_argument("--nowcasts", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    results: dict[str, Any] = {"cores": os.cpu_count(), "workers": given.workers}
    results["one_forecast"] = one(20)
    results["nowcast"] = corrections(given.nowcasts) | {"workloads": given.nowcasts}
    results["pool"] = pool(given.workloads, given.workers) | {"workloads": given.workloads}
    if given.stored:
        results["loop"] = asyncio.run(loop(given.stored, given.workers)) | {"workloads": given.stored}
    if given.json:
        print(json.dumps(results, indent=2))
    else:
        for name, figures in results.items():
            print(f"{name}: {figures}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
