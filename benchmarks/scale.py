"""What a tick costs by the number of workloads: observe, decide, record, on real PostgreSQL and Valkey.

Promises: a controller process of production's own parts (`open_runtime`) ticks over seeded workloads, each with a
stored forecast, measured starts, near demand and a demand that wanders; beside it, in the same run, the bare I/O of
the rows and keys that the tick touched: COPY and pipelines over ready-made bytes. Replicas are a table in memory,
and the clock skips from tick to tick, so that waiting is not measured. Called by people:
`python -m benchmarks.scale --workloads 100 1000 --json`.
"""

import argparse
import asyncio
import json
import logging
import math
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from pydantic import SecretStr
from redis.asyncio import Redis

from controller.adapters.clock import SystemClock
from controller.adapters.codec import encode
from controller.adapters.embedded import EmbeddedStack
from controller.adapters.postgres import migrate
from controller.bootstrap import Runtime, open_runtime
from controller.cli.common import run
from controller.core.leadtime import LeadSample
from controller.core.resources import ForecastRun, TrafficSample
from controller.core.types import (
    CapacityProfile,
    Decision,
    DemandObservation,
    ForecastBand,
    ForecastState,
    NearDemand,
    Replica,
    Stage,
    Workload,
)
from controller.ports import PoolView
from controller.settings import Settings

STEP = timedelta(minutes=5)
HORIZON_STEPS = 576
LEVELS = (0.1, 0.5, 0.9, 0.95, 0.99, 0.995, 0.999)
SPREAD = (0.8, 1.0, 1.15, 1.2, 1.3, 1.35, 1.45)
NEAR_LEVELS = (0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9998)
SHAPES = 48  # different days; a workload has one of them
STARTS = 5  # measured starts of each workload
TICK = timedelta(seconds=5)
HEARTBEAT = timedelta(minutes=5)
REPEATED = "unchanged, and repeated"
_STAGES = {"schedule": 2.0, "image": 8.0, "load": 18.0, "warmup": 3.0}


class SkippingClock(SystemClock):
    """The machine's clock, and how far it was set ahead."""

    def __init__(self, ahead: timedelta) -> None:
        self.ahead = ahead

    def now(self) -> datetime:
        """The machine's time and what was skipped."""
        return super().now() + self.ahead


def name_of(index: int) -> str:
    """Name of a workload."""
    return f"shop-{index:05d}"


def workload_of(index: int) -> Workload:
    """One of a fleet: profiles, limits and priorities differ."""
    profile = CapacityProfile(
        f"ranker-{index % 20}", "A10", 80.0 + 10 * (index % 7), instance_count=2, batch_size_max=16
    )
    return Workload(name_of(index), "ranker", (profile,), max_replicas=40, priority=index % 3)


def scale_of(index: int) -> float:
    """QPS of a workload at the middle of its day."""
    return 150.0 + 50.0 * (index % 9)


def median_qps(index: int, at: datetime) -> float:
    """What a workload's forecast says of a moment."""
    day = at.timestamp() / 86_400 + (index % SHAPES) / SHAPES
    return scale_of(index) * (1.0 + 0.6 * math.sin(2 * math.pi * day))


class SteadyFleet:
    """Implements `controller.ports.Actuator` on a table: an order is carried out at once, and counted."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._views: dict[str, PoolView] = {}
        self._began_at = SystemClock().now()
        self.order_count = 0
        for name, count in counts.items():
            self._resize(name, count)

    def _resize(self, name: str, count: int) -> None:
        replicas = tuple(
            Replica(f"{name}-{number}", Stage.VERIFIED, self._began_at, self._began_at, stage_s=_STAGES)
            for number in range(count)
        )
        self._views[name] = PoolView(count, replicas)

    def counts(self) -> dict[str, int]:
        """Replicas by workload."""
        return {name: len(view.replicas) for name, view in self._views.items()}

    async def claim(
        self, workloads: Sequence[Workload], *, fence: int, others: Sequence[Workload] | None = None
    ) -> None:
        """One process orders here."""

    async def observe(self, workloads: Sequence[Workload]) -> Mapping[str, PoolView]:
        """What there is."""
        return {w.name: self._views[w.name] for w in workloads}

    async def scale(self, workload: Workload, replicas: int, *, fence: int) -> None:  # noqa: ARG002 - the port's
        """Have that many."""
        self.order_count += 1
        self._resize(workload.name, replicas)

    async def replace(self, workload: Workload, replica_id: str, *, fence: int) -> None:
        """Nothing breaks here."""

    async def close(self) -> None:
        """Nothing is held."""


class WanderingMeter:
    """Implements `controller.ports.DemandMeterPort`: the forecast's median and up to a few percent."""

    def __init__(self, count: int, clock: SkippingClock) -> None:
        self._count, self._clock, self._turn = count, clock, 0

    def set_windows(self, workload: str, stable: timedelta, panic: timedelta) -> None:
        """Windows are full."""

    async def scrape(self, views: Mapping[str, PoolView]) -> Mapping[str, DemandObservation]:
        """What every workload would measure now."""
        now, self._turn = self._clock.now(), self._turn + 1
        found: dict[str, DemandObservation] = {}
        for index in range(self._count):
            view = views.get(name_of(index))
            replicas = 1 if view is None else len(view.replicas)
            wander = 0.04 * math.sin(self._turn / 10 + index) + 0.005 * math.sin(2.9 * self._turn + 3 * index)
            qps = median_qps(index, now) * (1.0 + wander)
            found[name_of(index)] = DemandObservation(
                now, qps, qps, 0.0, replicas, replicas, timedelta(minutes=1)
            )
        return found

    def drain_samples(self) -> Sequence[TrafficSample]:
        """No minute ends here: ingest has a benchmark of its own."""
        return ()


# ---------------------------------------------------------------- seeding


def _band(index: int, now: datetime) -> tuple[ForecastRun, ForecastBand, str]:
    origin_at = now - timedelta(seconds=now.timestamp() % STEP.total_seconds())
    run_id = f"{name_of(index)}-{origin_at:%Y%m%dT%H%M%S}"
    forecast_run = ForecastRun(
        id=run_id,
        workload=name_of(index),
        origin_at=origin_at,
        created_at=now,
        horizon_steps=HORIZON_STEPS,
    )
    band = ForecastBand(run_id, origin_at, origin_at, STEP, LEVELS, (), ForecastState.READY)
    rows = (
        ",".join(f"{median_qps(index, origin_at + STEP * step) * share:.4f}" for share in SPREAD)
        for step in range(HORIZON_STEPS)
    )
    return forecast_run, band, "{" + ",".join(f"{{{row}}}" for row in rows) + "}"


async def _copy(
    connection: psycopg.AsyncConnection[Any],
    table: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
) -> None:
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
        sql.Identifier(table), sql.SQL(", ").join(map(sql.Identifier, columns))
    )
    async with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            await copy.write_row(row)


async def seed(database_url: str, count: int, now: datetime) -> None:
    """Store the fleet: workloads, a forecast and some measured starts of each."""
    sample = encode(LeadSample(_STAGES, 1))
    curves: dict[tuple[int, int], str] = {}
    async with await psycopg.AsyncConnection.connect(_plain(database_url)) as connection:
        await _copy(
            connection,
            "workloads",
            ("name", "generation", "body"),
            [(name_of(index), 1, encode(workload_of(index))) for index in range(count)],
        )
        await _copy(
            connection,
            "warmups",
            ("workload", "replica_id", "at", "body"),
            [(name_of(i), f"{name_of(i)}-w{n}", now, sample) for i in range(count) for n in range(STARTS)],
        )
        for index in range(count):
            kind = (index % SHAPES, index % 9)
            if kind not in curves:
                curves[kind] = _band(index, now)[2]
        columns = ("id", "workload", "origin_at", "created_at", "state", "run", "band", "qps")
        origin_at = _band(0, now)[0].origin_at
        template_run, template_band = map(encode, _band(0, now)[:2])
        first = name_of(0)
        for start in range(0, count, 500):
            rows = [
                (
                    f"{name_of(i)}-{origin_at:%Y%m%dT%H%M%S}",
                    name_of(i),
                    origin_at,
                    now,
                    "READY",
                    template_run.replace(first, name_of(i)),
                    template_band.replace(first, name_of(i)),
                    curves[i % SHAPES, i % 9],
                )
                for i in range(start, min(count, start + 500))
            ]
            await _copy(connection, "forecasts", columns, rows)
        await connection.commit()
        await connection.set_autocommit(True)
        await connection.execute("ANALYZE")


def _plain(database_url: str) -> str:
    return database_url.replace("+psycopg", "")


# ---------------------------------------------------------------- the process that is measured


def _memory_mib(field: str) -> float:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    return math.nan


async def _timed(job: Callable[[], Any]) -> tuple[float, float]:
    """Seconds by the clock, and of this process's processor time."""
    began_s, used_s = time.perf_counter(), time.process_time()
    await job()
    return time.perf_counter() - began_s, time.process_time() - used_s


async def measure(given: argparse.Namespace, began_s: float) -> dict[str, Any]:
    """Start as a controller does, tick, and say what it took."""
    # The world goes on where the process before left it: neither its replicas nor its time go back.
    world = given.world
    count, clock = given.count, SkippingClock(timedelta(seconds=world["ahead_s"]))
    settings = Settings(
        data_dir=Path(given.folder),
        database_url=SecretStr(os.environ["SCALE_DATABASE_URL"]),
        redis_url=SecretStr(os.environ["SCALE_REDIS_URL"]),
        bind="127.0.0.1:0",
        http_bind="off",
        run_loop=False,
        lease_duration_s=300.0,
        workloads_max=100_000,
        log_level="WARNING",
    )
    fleet = SteadyFleet(world["counts"] or {name_of(index): 8 for index in range(count)})
    meter = WanderingMeter(count, clock)
    profile = _profiler(given.profile and f"{given.profile}.start")
    async with open_runtime(settings, clock=clock, wrap_meter=lambda _: meter, actuator=fleet) as runtime:
        if await runtime.leadership.renew() is None:
            raise SystemExit("the lease is held by another process")
        await runtime.runner.tick()
        found: dict[str, Any] = {
            "cold_start_s": time.time() - began_s,
            "cold_start_cpu_s": time.process_time(),
        }
        if profile is not None:
            profile()
        await runtime.runner.scrape()
        profile = _profiler(given.profile)
        bare = Bare(os.environ["SCALE_DATABASE_URL"], os.environ["SCALE_REDIS_URL"], count)
        found |= await _steady(runtime, clock, count, given.ticks, bare)
        if profile is not None:
            profile()
        found["tick_ratio_to_io"] = found["tick_s"] / found["io_s"]
        found["heartbeat"] = await _heartbeat(runtime, clock, count)
        # After a stop of a heartbeat every decision is due at once.
        clock.ahead += HEARTBEAT
        _near(runtime, clock, count)
        await runtime.leadership.renew()
        await runtime.runner.scrape()
        since = clock.now()
        took_s, used_s = await _timed(runtime.runner.tick)
        rows, io_s, _ = await bare.measure(since)
        found["all_recorded"] = {"tick_s": took_s, "tick_cpu_s": used_s, "io_s": io_s, **rows}
        found |= {"rss_mib": _memory_mib("VmRSS"), "rss_peak_mib": _memory_mib("VmHWM")}
        found["orders"] = fleet.order_count
        found["row_bytes"] = await bare.row_bytes()
        found["world"] = {"ahead_s": clock.ahead.total_seconds(), "counts": fleet.counts()}
        await bare.close()
        await runtime.leadership.release()
    return found


def _near(runtime: Runtime, clock: SkippingClock, count: int) -> None:
    """Near demand as its own job would leave it: that job has a benchmark of its own."""
    now = clock.now()
    for index in range(count):
        peak = median_qps(index, now) * 1.1
        runtime.forecasting.near.demands[name_of(index)] = NearDemand(
            now, timedelta(seconds=60), NEAR_LEVELS, tuple(peak * (1 + 0.02 * i) for i in range(10))
        )


async def _steady(
    runtime: Runtime, clock: SkippingClock, count: int, ticks: int, bare: "Bare"
) -> dict[str, Any]:
    """Ticks one after the other, each with the bare I/O of its rows beside it: a busy machine slows both."""
    found: list[dict[str, float]] = []
    for number in range(ticks + 3):
        clock.ahead += TICK
        _near(runtime, clock, count)
        await runtime.leadership.renew()
        scrape_s, _ = await _timed(runtime.runner.scrape)
        since = clock.now()
        tick_s, tick_cpu_s = await _timed(runtime.runner.tick)
        if number < 3:  # caches fill, and what a start changed settles
            continue
        rows, io_s, io_cpu_s = await bare.measure(since)
        found.append(
            {
                "tick_s": tick_s,
                "tick_cpu_s": tick_cpu_s,
                "scrape_s": scrape_s,
                "io_s": io_s,
                "io_cpu_s": io_cpu_s,
                **rows,
            }
        )
    return {
        **{key: statistics.median(each[key] for each in found) for key in found[0]},
        "tick_max_s": max(each["tick_s"] for each in found),
    }


async def _heartbeat(runtime: Runtime, clock: SkippingClock, count: int) -> dict[str, Any]:
    """Ticks over a whole heartbeat, in which each workload repeats an unchanged decision once."""
    took: list[float] = []
    recorded: list[Counter[str]] = []
    for _ in range(HEARTBEAT // TICK):
        clock.ahead += TICK
        _near(runtime, clock, count)
        await runtime.leadership.renew()
        await runtime.runner.scrape()
        before = runtime.control.decisions
        took.append((await _timed(runtime.runner.tick))[0])
        news = {name: d for name, d in runtime.control.decisions.items() if d is not before.get(name)}
        recorded.append(Counter(_why_recorded(before.get(name), decision) for name, decision in news.items()))
    busiest = max(recorded, key=Counter.total)
    return {
        "tick_s": statistics.median(took),
        "tick_max_s": max(took),
        "recorded": statistics.median(each.total() for each in recorded),
        "recorded_max": busiest.total(),
        "recorded_max_why": dict(busiest.most_common()),
        "repeated_max": max(each[REPEATED] for each in recorded),
    }


def _why_recorded(before: Decision | None, now: Decision) -> str:
    """Whether a decision changed the count or only its reason, or nothing did and it is recorded again."""
    if now.desired_replicas != now.current_replicas:
        return f"another count: {now.reason}"
    if before is None or before.reason is not now.reason or before.conditions != now.conditions:
        return f"another reason: {now.reason}"
    return REPEATED


def _profiler(path: str | None) -> Callable[[], None] | None:
    if path is None:
        return None
    from pyinstrument import Profiler  # noqa: PLC0415 - only where asked for

    profiler = Profiler(async_mode="enabled")
    profiler.start()

    def stop() -> None:
        profiler.stop()
        Path(path).write_text(profiler.output_text(show_all=False, color=False), encoding="utf-8")

    return stop


class Bare:
    """The rows and keys of the newest tick, read and written without the controller."""

    def __init__(self, database_url: str, redis_url: str, count: int) -> None:
        self._url, self._names = _plain(database_url), [name_of(index) for index in range(count)]
        self._redis = Redis.from_url(redis_url)

    async def measure(self, since: datetime) -> tuple[dict[str, int], float, float]:
        """Do the I/O of the ticks since then; return how many rows it was, and seconds by both clocks."""
        async with await psycopg.AsyncConnection.connect(self._url) as connection:
            rows = await self._written(connection, since)
            took_s, used_s = await _timed(lambda: self._once(connection, rows))
            await connection.commit()
        return {f"{table}_rows": len(each) for table, each in rows.items()}, took_s, used_s

    async def _written(
        self, connection: psycopg.AsyncConnection[Any], since: datetime
    ) -> dict[str, list[tuple[Any, ...]]]:
        states = await connection.execute(
            "SELECT workload, body::text FROM workload_states WHERE (body->>'last_at')::timestamptz >= %s",
            (since,),
        )
        decisions = await connection.execute(
            "SELECT id, at, workload, current_replicas, desired_replicas, reason, body::text, fence "
            "FROM decisions WHERE at >= %s",
            (since,),
        )
        found = {"workload_states": await states.fetchall(), "decisions": await decisions.fetchall()}
        for table in found:
            await connection.execute(
                sql.SQL("CREATE TEMPORARY TABLE {} (LIKE {} INCLUDING ALL)").format(
                    sql.Identifier(f"bare_{table}"), sql.Identifier(table)
                )
            )
        return found

    async def _once(
        self, connection: psycopg.AsyncConnection[Any], rows: Mapping[str, Sequence[tuple[Any, ...]]]
    ) -> None:
        await self._redis.mget([f"forecrest:demand:{name}" for name in self._names])
        async with self._redis.pipeline(transaction=False) as pipeline:
            for name in self._names:
                pipeline.hgetall(f"forecrest:backlog:{name}")
            await pipeline.execute()
        versions = await connection.execute("SELECT name, generation, xmin::text FROM workloads")
        await versions.fetchall()
        await _copy(connection, "bare_workload_states", ("workload", "body"), rows["workload_states"])
        columns = ("id", "at", "workload", "current_replicas", "desired_replicas", "reason", "body", "fence")
        await _copy(connection, "bare_decisions", columns, rows["decisions"])

    async def row_bytes(self) -> dict[str, float]:
        """Bytes on disk per row, indexes and TOAST included."""
        found: dict[str, float] = {}
        async with await psycopg.AsyncConnection.connect(self._url) as connection:
            for table in (
                "workloads",
                "workload_states",
                "capacity_plans",
                "forecasts",
                "decisions",
                "warmups",
            ):
                answer = await connection.execute(
                    sql.SQL(
                        "SELECT coalesce((SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree({name})), "
                        "pg_total_relation_size({name})), (SELECT count(*) FROM {table})"
                    ).format(name=sql.Literal(table), table=sql.Identifier(table))
                )
                size, rows = await answer.fetchone() or (0, 0)
                found[table] = round(float(size) / rows) if rows else math.nan
        return found

    async def close(self) -> None:
        """Release the connection."""
        await self._redis.aclose()


# ---------------------------------------------------------------- from outside


async def _process(
    folder: Path, servers: EmbeddedStack, count: int, ticks: int, profile: str | None
) -> dict[str, Any]:
    arguments = ["--child", "--count", str(count), "--ticks", str(ticks), "--folder", str(folder)]
    world_path = folder / "world.json"
    if world_path.exists():
        arguments += ["--world", str(world_path)]
    if profile is not None:
        arguments += ["--profile", profile]
    environment = {
        **os.environ,
        "SCALE_DATABASE_URL": servers.database_url,
        "SCALE_REDIS_URL": servers.redis_url,
        "SCALE_BEGAN": str(time.time()),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.scale", *arguments, env=environment, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise SystemExit(f"the measured process ended with {process.returncode}; its words are above")
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


async def scale(count: int, ticks: int, profile: str | None = None) -> dict[str, Any]:
    """Measure one size on servers of its own."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forecrest-scale-")))
        servers = await stack.enter_async_context(EmbeddedStack(folder / "servers"))
        await asyncio.to_thread(migrate.upgrade, servers.database_url)
        await seed(servers.database_url, count, datetime.now(UTC))
        first = await _process(folder, servers, count, 1, None)
        print(f"{count}: first start ever {first['cold_start_s']:.2f} s", file=sys.stderr, flush=True)
        (folder / "world.json").write_text(json.dumps(first["world"]), encoding="utf-8")
        found = await _process(folder, servers, count, ticks, profile)
        del found["world"]
        return {"workloads": count, **found, "first_start_ever_s": first["cold_start_s"]}


def _world(path: str | None) -> dict[str, Any]:
    if path is None:
        return {"ahead_s": 0.0, "counts": {}}
    found: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return found


def _rounded(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return round(value, 3) if isinstance(value, float) else value


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every size asked for, on servers of its own; print what each cost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--workloads", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--ticks", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--profile", help="file for a call profile of the ticks of the last size; FILE.start has its start"
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--world", type=_world, default=_world(None), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.ERROR)
    if given.child:
        print(json.dumps(run(measure(given, float(os.environ["SCALE_BEGAN"])))))
        return 0
    sizes = [
        _rounded(run(scale(count, given.ticks, given.profile if count == given.workloads[-1] else None)))
        for count in given.workloads
    ]
    found = dict(sizes[-1])
    if len(sizes) > 1:
        found["growth"] = round(sizes[-1]["tick_s"] / sizes[-2]["tick_s"], 2)
        found["sizes"] = sizes
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        for size in sizes:
            print(
                f"{size['workloads']:>6} workloads: tick {size['tick_s']:.3f} s ({size['tick_ratio_to_io']:.1f} x bare I/O), "
                f"all recorded {size['all_recorded']['tick_s']:.3f} s, scrape {size['scrape_s']:.3f} s, "
                f"cold start {size['cold_start_s']:.1f} s, memory {size['rss_mib']:.0f} MiB"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
