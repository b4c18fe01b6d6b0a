"""Measure the API: GetForecast beside a bare handler, ingest beside raw COPY, a thousand watch streams.

Promises: server and callers are processes of their own, so that on two cores each has one; what is compared
takes turns in one run; every figure says what it is. Figures under `cpu` are of the server process alone and do not
depend on how fast the callers are. Refuses to run without the embedded servers.
Called by: `make bench` and people; the server process calls `serve` in this module.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psycopg
from forecrest.v1 import control_service_pb2, forecast_service_pb2, telemetry_service_pb2
from sqlalchemy.engine import make_url

from controller.adapters.clock import SystemClock
from controller.adapters.embedded.stack import embedded_stack
from controller.adapters.postgres import PostgresStore, migrate
from controller.adapters.postgres.traffic import _COPY_HEAD, _COPY_STRAIGHT, _COPY_TAIL, encode_rows
from controller.adapters.redis import RedisSignalCache
from controller.adapters.samples import sound_blocks
from controller.api.server import ApiDependencies, serve
from controller.client import Client
from controller.core.resources import ForecastRun, TrafficBlock
from controller.core.types import (
    CapacityProfile,
    Decision,
    ForecastBand,
    ForecastState,
    Mode,
    Reason,
    Workload,
)
from controller.usecases.topics import CHANGES

STEPS = 288
LEVELS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
METHOD = "/forecrest.v1.ForecastService/GetForecast"
ECHO = "/bench.Echo/Echo"
WORKLOADS = 100
CALLERS = 64
ROUNDS = 12
Call = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Target:
    """The server process: where it listens, and its pid."""

    api: str
    echo: str
    pid: int

    def cpu_s(self) -> float:
        """CPU seconds it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_kib(self) -> int:
        """Resident memory it has now."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


# ---------------------------------------------------------------- the server process


async def run_server(database_url: str, redis_url: str) -> None:
    """Serve the API and a bare handler that returns the bytes of the same answer, until standard input ends."""
    clock = SystemClock()
    store, signals = PostgresStore(database_url), RedisSignalCache(redis_url, clock=clock)
    api = await serve(ApiDependencies(store, signals, clock), "127.0.0.1:0")
    async with grpc.aio.insecure_channel(api.target) as channel:
        answer: bytes = await channel.unary_unary(METHOD)(forecast_request())

    async def echo(_request: bytes, _context: object) -> bytes:
        return answer

    bare = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(echo)
    bare.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", {"Echo": handler}),))
    port = bare.add_insecure_port("127.0.0.1:0")
    await bare.start()
    print(json.dumps([api.target, f"127.0.0.1:{port}", os.getpid()]), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await bare.stop(0)
    await api.stop(0)
    await signals.close()
    await store.close()


@asynccontextmanager
async def server_process(database_url: str, redis_url: str) -> AsyncIterator[Target]:
    """The server in a process of its own, ended with the block."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.api", "--serve", database_url, redis_url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = await process.stdout.readline()
        if not line:
            raise SystemExit("the server did not start; its message is above")
        yield Target(*json.loads(line))
    finally:
        with contextlib.suppress(ProcessLookupError, ConnectionError):
            process.stdin.close()
        await process.wait()


# ---------------------------------------------------------------- GetForecast


def forecast_request() -> bytes:
    """What a caller sends."""
    return forecast_service_pb2.GetForecastRequest(name="workloads/w-0000/forecast").SerializeToString()


async def seed(store: PostgresStore, now: datetime) -> None:
    """Workloads, and a forecast of a day in 5-minute steps."""
    rng = np.random.default_rng(1)
    values = np.sort(rng.gamma(4.0, 500.0, (STEPS, len(LEVELS))), axis=1)
    band = ForecastBand(
        id="f-1",
        origin_at=now,
        start_at=now,
        step=timedelta(minutes=5),
        levels=LEVELS,
        qps=tuple(tuple(row) for row in values.tolist()),
        state=ForecastState.READY,
    )
    async with store.unit_of_work() as uow:
        for number in range(WORKLOADS):
            profile = CapacityProfile("int8", "L4", 2500.0)
            await uow.workloads.create(Workload(f"w-{number:04d}", "recommender", (profile,)))
        await uow.forecasts.save(ForecastRun("f-1", "w-0000", now, now, STEPS), band)
        await uow.commit()


async def rate_of(call: Call, seconds: float, callers: int) -> tuple[float, list[float]]:
    """Calls per second by so many callers at once, and each call's latency."""
    latencies: list[float] = []
    until = time.perf_counter() + seconds

    async def caller() -> None:
        while (begun := time.perf_counter()) < until:
            await call()
            latencies.append(time.perf_counter() - begun)

    begun = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return len(latencies) / (time.perf_counter() - begun), latencies


async def measure_forecast(target: Target, seconds: float) -> dict[str, Any]:
    """Rates in turns; the callers handle bytes only, so that they cost both sides the same and little."""
    request = forecast_request()
    async with (
        grpc.aio.insecure_channel(target.api) as api,
        grpc.aio.insecure_channel(target.echo) as echo,
    ):
        calls: dict[str, Call] = {
            "echo": lambda: echo.unary_unary(ECHO)(request),
            "api": lambda: api.unary_unary(METHOD)(request),
        }
        answers = [bytes(await calls[name]()) for name in calls]  # type: ignore[call-overload]
        assert answers[0] == answers[1], "both must return the same bytes"
        rates: dict[str, list[float]] = {name: [] for name in calls}
        costs: dict[str, list[float]] = {name: [] for name in calls}
        latencies: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(ROUNDS):
            for name, call in calls.items():
                cpu_s = target.cpu_s()
                rate, each = await rate_of(call, seconds, CALLERS)
                rates[name].append(rate)
                costs[name].append((target.cpu_s() - cpu_s) / len(each))
                latencies[name] += each
    return {
        # Of neighbours in time: whatever else the machine does, it does to both of them.
        "get_forecast_ratio_to_echo": _ratio(rates["api"], rates["echo"]),
        "get_forecast_cpu_ratio_to_echo": _ratio(costs["echo"], costs["api"]),
        "get_forecast_per_s": statistics.median(rates["api"]),
        "echo_per_s": statistics.median(rates["echo"]),
        "get_forecast_p50_ms": float(np.percentile(latencies["api"], 50)) * 1000,
        "get_forecast_p99_ms": float(np.percentile(latencies["api"], 99)) * 1000,
        "echo_p99_ms": float(np.percentile(latencies["echo"], 99)) * 1000,
        "get_forecast_bytes": len(answers[0]),
        "callers": CALLERS,
    }


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median of the ratios, turn by turn."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


# ---------------------------------------------------------------- ingest


def ingest_blocks(first_minute: int, minutes: int) -> list[TrafficBlock]:
    """Minutes of every workload."""
    rng = np.random.default_rng(2)
    span = list(range(first_minute, first_minute + minutes))
    return [
        TrafficBlock(f"w-{n:04d}", "gateway", span, rng.gamma(4.0, 500.0, minutes).tolist())
        for n in range(WORKLOADS)
    ]


async def raw_copy(connection: psycopg.AsyncConnection[Any], batches: Sequence[Sequence[bytes]]) -> float:
    """Seconds to copy encoded rows into an empty table like ours, one transaction per batch."""
    await connection.execute("TRUNCATE raw_samples")
    await connection.commit()
    statement: Any = _COPY_STRAIGHT.replace("traffic_samples", "raw_samples")
    begun = time.perf_counter()
    for batch in batches:
        async with connection.cursor() as cursor, cursor.copy(statement) as copy:
            await copy.write(_COPY_HEAD)
            for rows in batch:
                await copy.write(rows)
            await copy.write(_COPY_TAIL)
        await connection.commit()
    return time.perf_counter() - begun


async def stream(client: Client, batches: Sequence[telemetry_service_pb2.StreamTrafficRequest]) -> float:
    """Seconds until every batch is answered."""

    async def each() -> AsyncIterator[telemetry_service_pb2.StreamTrafficRequest]:
        for batch in batches:
            yield batch

    begun = time.perf_counter()
    written = sum([answer.written_count async for answer in client.stream_traffic(each())])
    elapsed = time.perf_counter() - begun
    assert written == sum(len(series.minutes) for batch in batches for series in batch.series)
    return elapsed


async def unary(client: Client, batches: Sequence[telemetry_service_pb2.StreamTrafficRequest]) -> float:
    """Seconds to record a first part of the same minutes by RecordTraffic."""
    samples = [
        telemetry_service_pb2.TrafficSample(workload=series.workload, demand_count=demand)
        for series in batches[0].series
        for demand in series.demand_counts
    ][:10_000]
    minutes = [minute for series in batches[0].series for minute in series.minutes][:10_000]
    for sample, minute in zip(samples, minutes, strict=True):
        sample.minute_time.seconds = 60 * minute
    request = telemetry_service_pb2.RecordTrafficRequest(source="gateway", samples=samples)
    begun = time.perf_counter()
    await client.telemetry.RecordTraffic(request)
    return (time.perf_counter() - begun) / len(samples)


async def measure_ingest(
    target: Target, database_url: str, now: datetime, minutes: int, rounds: int
) -> dict[str, Any]:
    """Rows per second in turns: raw COPY into a table like ours, then the API into ours."""
    first_minute = int(now.timestamp()) // 60 - minutes - 1
    blocks = ingest_blocks(first_minute, minutes)
    rows = minutes * WORKLOADS
    groups = [blocks[at : at + 10] for at in range(0, WORKLOADS, 10)]
    columns = [sound_blocks(group) for group in groups]
    encoded = [list(encode_rows(each, each.series)) for each in columns]
    batches = [
        telemetry_service_pb2.StreamTrafficRequest(
            source="gateway",
            series=[
                telemetry_service_pb2.TrafficSeries(
                    workload=f"workloads/{block.workload}",
                    minutes=block.minutes,
                    demand_counts=block.demand_counts,
                )
                for block in group
            ],
        )
        for group in groups
    ]
    address = make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
    times: dict[str, list[float]] = {"copy": [], "stream": [], "again": [], "unary": []}
    async with await psycopg.AsyncConnection.connect(address) as connection, Client(target.api) as client:
        await connection.execute(
            "CREATE TABLE raw_samples (LIKE traffic_samples INCLUDING ALL) PARTITION BY RANGE (minute_at)"
        )
        await connection.execute("CREATE TABLE raw_part PARTITION OF raw_samples DEFAULT")
        await connection.commit()
        for _ in range(rounds):
            times["copy"].append(await raw_copy(connection, encoded))
            await connection.execute("TRUNCATE traffic_samples")
            await connection.commit()
            times["stream"].append(await stream(client, batches))
            times["again"].append(await stream(client, batches))
            times["unary"].append(await unary(client, batches))
    median = {name: statistics.median(values) for name, values in times.items()}
    return {
        "ingest_ratio_to_copy": _ratio(times["copy"], times["stream"]),
        "ingest_repeated_ratio_to_copy": _ratio(times["copy"], times["again"]),
        "ingest_rows_per_s": rows / median["stream"],
        "copy_rows_per_s": rows / median["copy"],
        "record_traffic_rows_per_s": 1 / median["unary"],
        "ingest_rows": rows,
    }


# ---------------------------------------------------------------- watch streams


async def measure_streams(
    target: Target, store: PostgresStore, signals: RedisSignalCache, now: datetime, count: int
) -> dict[str, Any]:
    """Open so many watches, then make one decision and wait until each of them has it."""
    decision = Decision(
        id="d-0",
        workload="w-0000",
        at=now,
        mode=Mode.SCALE,
        current_replicas=4,
        desired_replicas=5,
        warm_replicas=4,
        in_flight_replicas=0,
        reason=Reason.EVENT_FLOOR,
        binding=None,
        sentence="event midnight-sale needs 5 warm by 00:00:00 UTC",
        recommendations=(),
        conditions=(),
        inputs=(),
        demand_qps=8000.0,
        need_replicas=4,
        plan_revision=1,
        forecast_id="f-1",
        event_ids=("midnight-sale",),
    )
    await _decide(store, signals, decision)
    before_kib = target.memory_kib()
    async with Client(target.api) as client:
        request = control_service_pb2.WatchDecisionsRequest()
        begun = time.perf_counter()
        watches: list[Any] = [client.control.WatchDecisions(request) for _ in range(count)]
        await asyncio.gather(*(watch.read() for watch in watches))
        opened_s = time.perf_counter() - begun
        held_kib = target.memory_kib()
        fanouts: list[float] = []
        for number in range(1, 4):
            waiting = [asyncio.ensure_future(watch.read()) for watch in watches]
            begun = time.perf_counter()
            at = now + timedelta(seconds=number)
            await _decide(store, signals, replace(decision, id=f"d-{number}", at=at))
            answers = await asyncio.gather(*waiting)
            fanouts.append(time.perf_counter() - begun)
        reached = sum(answer.decision.name == "decisions/d-3" for answer in answers)
        after_kib = target.memory_kib()
        for watch in watches:
            watch.cancel()
    return {
        "watch_streams": reached,
        "watch_kib_per_stream": (max(held_kib, after_kib) - before_kib) / count,
        "watch_server_mib": max(held_kib, after_kib) / 1024,
        "watch_open_s": opened_s,
        "watch_fanout_ms": statistics.median(fanouts) * 1000,
    }


async def _decide(store: PostgresStore, signals: RedisSignalCache, decision: Decision) -> None:
    async with store.unit_of_work() as uow:
        await uow.decisions.append([decision])
        await uow.commit()
    await signals.publish(CHANGES, f"workloads/{decision.workload}".encode())


# ---------------------------------------------------------------- the command


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run everything against fresh servers."""
    found: dict[str, Any] = {}
    clock = SystemClock()
    now = clock.now().replace(second=0, microsecond=0)
    with tempfile.TemporaryDirectory() as folder, embedded_stack(Path(folder) / "data") as stack:
        await asyncio.to_thread(migrate.upgrade, stack.database_url)
        store, signals = PostgresStore(stack.database_url), RedisSignalCache(stack.redis_url, clock=clock)
        await seed(store, now)
        async with server_process(stack.database_url, stack.redis_url) as target:
            found |= await measure_forecast(target, options.seconds)
            found |= await measure_streams(target, store, signals, now, options.streams)
            found |= await measure_ingest(target, stack.database_url, now, options.minutes, options.rounds)
        await signals.close()
        await store.close()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; with `--json` print the figures only."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.api", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.add_argument(
        "--seconds", type=float, default=1.0, help=f"of each turn of GetForecast; {2 * ROUNDS} turns"
    )
    parser.add_argument("--streams", type=int, default=1000, help="watch streams to open")
    parser.add_argument("--minutes", type=int, default=2000, help=f"of ingest, for {WORKLOADS} workloads")
    parser.add_argument("--rounds", type=int, default=3, help="of ingest")
    parser.add_argument("--serve", nargs=2, metavar=("DATABASE", "REDIS"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    if options.serve:
        asyncio.run(run_server(*options.serve))
        return 0
    found = asyncio.run(measure(options))
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    for name, value in found.items():
        print(f"{name:<34} {value:,.3f}" if isinstance(value, float) else f"{name:<34} {value:,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
