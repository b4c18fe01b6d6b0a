"""Measure the console in a real browser: 300 workloads with 30 days of minutes each.

Promises: API on embedded PostgreSQL and Valkey, console and Chromium are real and share this machine's cores; times of
painting are the browser's own, times of interaction go from the key or click to the frame after the page changed.
Refuses to run without Chromium. Called by people: `python -m benchmarks.console --json`.
"""

import argparse
import asyncio
import json
import math
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
from playwright.async_api import Browser, Page, async_playwright
from sqlalchemy.engine import make_url

from controller.adapters.clock import SystemClock
from controller.adapters.embedded.stack import embedded_stack
from controller.adapters.postgres import PostgresStore, migrate
from controller.adapters.redis import RedisSignalCache
from controller.api.server import ApiDependencies
from controller.api.server import serve as serve_api
from controller.console.app import create_app
from controller.core.resources import ForecastRun, TrafficSample
from controller.core.types import (
    CapacityProfile,
    Condition,
    ConditionType,
    Decision,
    ForecastBand,
    ForecastState,
    Mode,
    Reason,
    Workload,
    WorkloadState,
)
from controller.listener import listen

LEVELS = (0.05, 0.1, 0.5, 0.9, 0.95)
STEP, STEPS = timedelta(minutes=5), 576
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
ROUNDS = 7
# A day's shape per workload, shifted and scaled by its number.
FILL = """
INSERT INTO traffic_samples (workload, minute_at, demand_count, source, coverage)
SELECT 'w' || to_char(n, 'FM000'), m, 60 * (100 + 10 * n) * (1 + 0.5 * sin(extract(epoch FROM m) / 13751 + n)), 'bench', 1
FROM generate_series(%s::int, %s::int) AS n, generate_series(%s::timestamptz, %s::timestamptz, interval '1 minute') AS m
ON CONFLICT DO NOTHING
"""
# Resolves with the milliseconds from the act to the frame after the box was changed. Written out for each act: the
# page's policy forbids to make code of text.
TIMED = """() => new Promise((resolve) => {
  const began = performance.now();
  const seen = new MutationObserver(() => {
    seen.disconnect();
    requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now() - began)));
  });
  seen.observe(document.querySelector("BOX"), { childList: true, subtree: true });
  ACT;
})"""


def name_of(number: int) -> str:
    """Return a workload's id."""
    return f"w{number:03}"


async def fill(store: PostgresStore, url: str, workloads: int, days: int) -> None:
    """Register workloads with history, forecast, decisions and state."""
    now = SystemClock().now()
    end_at = now.replace(second=0, microsecond=0) - MINUTE
    async with store.unit_of_work() as uow:
        for number in range(workloads):
            await uow.workloads.create(
                Workload(
                    name=name_of(number),
                    model_name="m",
                    profiles=(CapacityProfile("e", "L4", 1000.0),),
                    max_replicas=40,
                )
            )
        # The adapter makes the partitions.
        await uow.traffic.upsert(
            [
                TrafficSample(name_of(0), end_at - day * DAY, 1.0, None, None, "bench")
                for day in range(days + 1)
            ]
        )
        await uow.commit()
    for number in range(workloads):
        await _loop_state(store, number, now)
    address = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)

    def copy() -> None:
        with psycopg.connect(address, autocommit=True) as connection:
            for first in range(0, workloads, 25):
                connection.execute(FILL, (first, min(first + 24, workloads - 1), end_at - days * DAY, end_at))
            connection.execute("ANALYZE")

    await asyncio.to_thread(copy)


async def _loop_state(store: PostgresStore, number: int, now: datetime) -> None:
    name, middle = name_of(number), 100.0 + 10 * number
    start_at = now.replace(minute=now.minute // 5 * 5, second=0, microsecond=0)
    rows = tuple(
        tuple(
            middle * (1 + 0.5 * math.sin(index / 46 + number)) * (1 + 0.1 * z)
            for z in (-1.6, -1.3, 0.0, 1.3, 1.6)
        )
        for index in range(STEPS)
    )
    band = ForecastBand(f"{name}-f", start_at, start_at, STEP, LEVELS, rows, ForecastState.READY)
    decisions = [
        Decision(
            id=f"{name}-{index}",
            workload=name,
            at=now - (40 - index) * 5 * MINUTE,
            mode=Mode.SCALE,
            current_replicas=3,
            desired_replicas=3 + index % 2,
            warm_replicas=3,
            in_flight_replicas=0,
            reason=Reason.REACTIVE_UP,
            binding=None,
            sentence="4 replicas carry what is asked for within the SLO.",
            recommendations=(),
            conditions=tuple(
                Condition(one, one is not ConditionType.SCALING_LIMITED, "r", "m") for one in ConditionType
            ),
            inputs=(),
            demand_qps=middle,
            need_replicas=3,
            plan_revision=None,
            forecast_id=band.id,
            event_ids=(),
        )
        for index in range(40)
    ]
    async with store.unit_of_work() as uow:
        await uow.forecasts.save(ForecastRun(band.id, name, start_at, now, STEPS), band)
        await uow.decisions.append(decisions)
        await uow.states.save({name: WorkloadState(desired_replicas=4, last_at=now)})
        await uow.commit()


async def painted(browser: Browser, url: str, ready: str) -> float:
    """Return the milliseconds from a navigation to its first contentful paint, in a browser without a cache."""
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    page = await context.new_page()
    await page.goto(url)
    await page.wait_for_selector(ready)
    found: float = await page.evaluate(
        """() => new Promise((resolve) => new PerformanceObserver((list) => {
             for (const one of list.getEntries()) if (one.name === "first-contentful-paint") resolve(one.startTime);
           }).observe({ type: "paint", buffered: true }))"""
    )
    await context.close()
    return found


async def acted(page: Page, box: str, *acts: str) -> list[float]:
    """Return the milliseconds of each act."""
    return [await page.evaluate(TIMED.replace("BOX", box).replace("ACT", act)) for act in acts]


async def measure(browser: Browser, url: str) -> dict[str, Any]:
    """Return every figure, in milliseconds."""
    rows, axis = "table.fleet tbody tr", "#demand canvas"
    cold_ms = await painted(browser, url, rows)
    warm_ms = [await painted(browser, url, rows) for _ in range(ROUNDS)]
    month_ms = [
        await painted(browser, f"{url}/workloads/{name_of(n)}?range=month", axis) for n in range(ROUNDS)
    ]
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    page = await context.new_page()
    await page.goto(url)
    await page.wait_for_selector('#pulse[data-state="live"]')
    filters, sorts, turns = [], [], []
    for index in range(ROUNDS):
        typed = 'const q = document.getElementById("q"); q.value = "%s"; q.dispatchEvent(new Event("input"))'
        filters += await acted(page, "#fleet", typed % f"w{index % 3}", typed % "")
        sorts += await acted(page, "#fleet", 'document.getElementById("sort-demand").click()')
        turns += await acted(page, "#fleet", 'document.getElementById("page-on").click()')
    await page.goto(f"{url}/workloads/{name_of(0)}?range=month")
    await page.wait_for_selector(axis)
    zooms: list[float] = []
    for _ in range(ROUNDS):
        zooms += await acted(
            page,
            "#axis-rows",
            "document.querySelector('[data-zoom=in]').click()",
            "document.querySelector('[data-zoom=reset]').click()",
        )
    ranges: list[float] = []
    for name in ("day", "week", "month"):
        began = time.perf_counter()
        await page.locator(f"#range-{name}").click()
        await page.wait_for_selector(f'#axis[data-drawn$="{name}"]')
        ranges.append(1000 * (time.perf_counter() - began))
    await context.close()
    parts = {"filter": filters, "sort": sorts, "page": turns, "zoom": zooms}
    return {
        "first_paint_ms": round(max(cold_ms, *warm_ms, *month_ms)),
        "first_paint_cold_fleet_ms": round(cold_ms),
        "first_paint_fleet_ms": round(statistics.median(warm_ms)),
        "first_paint_month_ms": round(statistics.median(month_ms)),
        "interaction_ms": round(max(statistics.median(some) for some in parts.values())),
        "interaction_worst_ms": round(max(max(some) for some in parts.values())),
        **{f"{name}_ms": round(statistics.median(some)) for name, some in parts.items()},
        "range_ms": round(max(ranges)),
    }


async def bench(
    database_url: str, redis_url: str, workloads: int, days: int, chromium: str
) -> dict[str, Any]:
    """Fill, serve, measure."""
    clock = SystemClock()
    store = PostgresStore(database_url)
    signals = RedisSignalCache(redis_url, clock=clock)
    began = time.perf_counter()
    await fill(store, database_url, workloads, days)
    filled_s = time.perf_counter() - began
    api = await serve_api(ApiDependencies(store, signals, clock), "127.0.0.1:0")
    console = await listen(create_app(api.target), "127.0.0.1", 0)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        figures = await measure(browser, console.url)
        await browser.close()
    await console.stop()
    await api.stop(grace_s=0)
    await signals.close()
    await store.close()
    about = {"workloads": workloads, "days": days, "cores": os.cpu_count(), "fill_s": round(filled_s)}
    return {**figures, **about, "load_1min": round(os.getloadavg()[0], 1)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; with `--json` print the figures only."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workloads", type=int, default=300)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    options = parser.parse_args(arguments)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("chromium: is not installed; install Debian's package chromium.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder, embedded_stack(Path(folder) / "data") as stack:
        # Filling is not what is measured.
        (Path(folder) / "data" / "postgres" / "user.conf").write_text("fsync = off\n")
        pid = stack.servers["postgres"].pid
        assert pid is not None
        os.kill(pid, signal.SIGHUP)
        migrate.upgrade(stack.database_url)
        figures = asyncio.run(
            bench(stack.database_url, stack.redis_url, options.workloads, options.days, chromium)
        )
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:<28} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
