"""What single parts cost beside what they cannot cost less than: scrape, refit, near demand, simulation, start, memory.

Promises: both sides take turns in one run, so that other load meets both alike, and a ratio is the median of the ratios of
neighbouring turns; what must hold is said beside it. Tick, ingest and the API have benchmarks of their own: `scale`, `api`.
Called by people: `python -m benchmarks.parts --json`.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pandas as pd

from controller.adapters.clock import SystemClock
from controller.adapters.forecaster import LEVELS
from controller.adapters.triton_metrics import TritonDemandMeter
from controller.cli.common import run
from controller.core.types import Replica, Stage
from controller.ports import PoolView
from controller.simulation.cluster import ClusterModel
from controller.simulation.harness import Observation, simulate
from controller.simulation.ours import Forecrest
from controller.simulation.trace import Trace
from forecaster import forecast
from forecaster.nearcast import Newest, calibrate, quantiles, recent

_ROOT = Path(__file__).resolve().parent.parent
START = datetime(2026, 3, 2, tzinfo=UTC)
NEAR_LEVELS = (0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9998)
WORKLOADS = 500  # renewed at once
SIMULATED_DAYS = 7
DAY_LIMIT_S = 2.0

# A page as Triton writes it for one model: five families that are read, and what stands around them.
_FAMILIES = [
    "request_success",
    "request_failure",
    "count",
    "exec_count",
    "request_duration_us",
    "queue_duration_us",
    "compute_input_duration_us",
    "compute_infer_duration_us",
    "compute_output_duration_us",
    "pending_request_count",
]
PAGE = "".join(
    f"# HELP nv_inference_{name} What this counter of the server says, in a sentence of usual length\n"
    f"# TYPE nv_inference_{name} {'gauge' if name.startswith('pending') else 'counter'}\n"
    f'nv_inference_{name}{{model="ranker",version="1"}} 123456\n'
    for name in _FAMILIES
) + "".join(
    f"# HELP nv_gpu_{name} What this gauge of the server says\n# TYPE nv_gpu_{name} gauge\nnv_gpu_{name}"
    f'{{gpu_uuid="GPU-0e4b1c8d"}} 0.5\n'
    for name in ("utilization", "memory_total_bytes", "memory_used_bytes", "power_usage", "power_limit")
)
_SERVER = """
import asyncio, sys
PAGE = sys.stdin.buffer.read()
ANSWER = b"HTTP/1.1 200 OK\\r\\nContent-Type: text/plain\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(PAGE) + PAGE
class Ready(asyncio.Protocol):
    def connection_made(self, transport): self.transport = transport
    def data_received(self, data): self.transport.write(ANSWER * data.count(b"\\r\\n\\r\\n"))
async def main():
    server = await asyncio.get_running_loop().create_server(Ready, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


async def _turns(
    ours: Callable[[], Awaitable[object]], floor: Callable[[], Awaitable[object]], rounds: int
) -> dict[str, float]:
    """Seconds of this process's processor time, the medians of both sides, and of their ratios."""
    pairs: list[tuple[float, float]] = []
    for number in range(rounds + 1):
        took: list[float] = []
        for side in (ours, floor):
            began_s = time.process_time()
            await side()
            took.append(time.process_time() - began_s)
        if number:  # the first turn fills caches and opens connections
            pairs.append((took[0], took[1]))
    return {
        "cpu_s": statistics.median(a for a, _ in pairs),
        "floor_cpu_s": statistics.median(b for _, b in pairs),
        "ratio": statistics.median(a / b for a, b in pairs),
    }


def _sync(function: Callable[[], object]) -> Callable[[], Awaitable[object]]:
    async def call() -> object:
        return function()

    return call


# ---------------------------------------------------------------- scrape


async def scrape(replicas: int, rounds: int) -> dict[str, Any]:
    """One look at every replica's counters, beside GETs of the same bytes with the same client library."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _SERVER, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(PAGE.encode())
    process.stdin.close()
    url = f"http://127.0.0.1:{int(await process.stdout.readline())}/metrics"
    clock = SystemClock()
    now = clock.now()
    views = {
        f"shop-{n:03d}": PoolView(
            8,
            tuple(Replica(f"shop-{n:03d}-{i}", Stage.VERIFIED, now, now, metrics_url=url) for i in range(8)),
        )
        for n in range(replicas // 8)
    }
    meter, slots = TritonDemandMeter(clock, timeout_s=30.0), asyncio.Semaphore(64)
    try:
        async with aiohttp.ClientSession() as session:

            async def get() -> None:
                async with slots, session.get(url) as response:
                    await response.read()

            async def bare() -> None:
                await asyncio.gather(*(get() for _ in range(replicas)))

            found = await _turns(lambda: meter.scrape(views), bare, rounds)
    finally:
        await meter.close()
        process.kill()
        await process.wait()
    return {"replicas": replicas, "page_bytes": len(PAGE), **found}


# ---------------------------------------------------------------- forecasts


def _demand(days: float, step_s: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
    at = np.arange(int(days * 86_400 / step_s)) * step_s / 86_400
    noise = np.random.default_rng(1).normal(1.0, 0.05, len(at))
    return np.asarray(400 * (1.6 + np.sin(2 * np.pi * at) + 0.3 * np.sin(2 * np.pi * at / 7)) * noise)


async def refit(rounds: int) -> dict[str, Any]:
    """A forecast of two days from three weeks at 5 minutes, beside one least-squares fit of as many rows."""
    values = _demand(21, 300)
    series = pd.Series(values, pd.date_range(START, periods=len(values), freq="5min"))
    at = np.arange(len(values) + 576) / 288
    waves = [
        f(2 * np.pi * k * at / p)
        for p, n in ((1, 12), (7, 3))
        for k in range(1, n + 1)
        for f in (np.sin, np.cos)
    ]
    design = np.column_stack([np.ones_like(at), *waves])

    def least_squares() -> object:
        weights = np.linalg.lstsq(design[: len(values)], values, rcond=None)[0]
        left = values - design[: len(values)] @ weights
        return design[len(values) :] @ weights + np.quantile(left, LEVELS)[:, None]

    found = await _turns(_sync(lambda: forecast(series, 576, LEVELS)), _sync(least_squares), rounds)
    return {"rows": len(values), "steps": 576, **found}


async def near(rounds: int) -> dict[str, Any]:
    """Near demand: its calibration on two weeks of minutes, beside sorting each expert's errors once; and renewals."""
    values = _demand(14, 60)

    def measure() -> Any:  # noqa: ANN401 - a calibration
        return calibrate(values, None, step_s=60, lead_steps=5, levels=NEAR_LEVELS, valid_steps=360)

    made = measure()
    experts = len(made.weight)
    errors = np.random.default_rng(2).normal(size=(experts, len(values)))
    calibrated = await _turns(
        _sync(measure), _sync(lambda: np.quantile(np.sort(errors, axis=1), NEAR_LEVELS, axis=1)), rounds
    )
    lately = recent(values[-120:], 60)[:, -1]
    known, casts, ages = np.append(lately, lately[0]), [made.small()] * WORKLOADS, np.full(WORKLOADS, 3)
    newest, everyone = Newest(*known.tolist()), np.repeat(known[:, None], WORKLOADS, axis=1)
    row = np.ones(experts)

    def renew() -> None:
        for _ in range(WORKLOADS):
            made.quantiles(3, newest)

    def mix() -> object:
        return [row @ (made.shift * made.weight) for _ in range(WORKLOADS)]

    renewed = await _turns(_sync(renew), _sync(mix), rounds)
    together = await _turns(_sync(lambda: quantiles(casts, ages, everyone)), _sync(mix), rounds)
    return {
        "calibration": {"minutes": len(values), "experts": experts, **calibrated},
        "renewal": {k: v / (WORKLOADS if k.endswith("_s") else 1) for k, v in renewed.items()},
        "renewal_of_many": {
            "workloads": WORKLOADS,
            **{k: v / (WORKLOADS if k.endswith("_s") else 1) for k, v in together.items()},
        },
    }


# ---------------------------------------------------------------- simulation


class _Still:
    """A policy that never changes anything: what replaying itself costs."""

    name = "still"
    period_s = 15

    def prepare(self, trace: Trace, events: object, model: ClusterModel) -> None:
        """Nothing to learn."""

    def desired(self, now_s: float, observation: Observation) -> int:  # noqa: ARG002 - the protocol's
        """As many as there are."""
        return observation.desired


async def simulation(rounds: int) -> dict[str, Any]:
    """A day of a 1-minute trace through the production tick, beside the same replay without deciding anything."""
    trace = Trace("day", START, 60, _demand(SIMULATED_DAYS, 60)).scaled_to_peak(4000.0)
    model = ClusterModel()
    found = await _turns(
        _sync(lambda: simulate(trace, (), [Forecrest()], model)),
        _sync(lambda: simulate(trace, (), [_Still()], model)),
        rounds,
    )
    per_day = {k: v / (SIMULATED_DAYS if k.endswith("_s") else 1) for k, v in found.items()}
    return {"days": SIMULATED_DAYS, **per_day, "must_be_s": DAY_LIMIT_S}


# ---------------------------------------------------------------- start and memory

_LIBRARIES = (
    "import grpc.aio, sqlalchemy.ext.asyncio, psycopg, redis.asyncio, aiohttp, pydantic_settings, numpy"
)
_STARTS = {
    "python": "pass",
    "libraries": _LIBRARIES,
    "controller": "import controller.bootstrap",
    "cli": "import controller.cli.app",
}
_TELL = """
import json, resource, sys
lines = open("/proc/self/status").read().splitlines()
rss = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"cpu_s": used.ru_utime + used.ru_stime, "rss_mib": rss / 1024}))
"""


async def start(rounds: int) -> dict[str, Any]:
    """Processor time and memory of a fresh process that imports the controller, beside the libraries it is made of."""
    found: dict[str, list[Mapping[str, float]]] = {name: [] for name in _STARTS}
    for _ in range(rounds):
        for name, code in _STARTS.items():
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", code + _TELL, cwd=_ROOT, stdout=asyncio.subprocess.PIPE
            )
            said, _ = await process.communicate()
            found[name].append(json.loads(said))
    medians = {
        name: {key: statistics.median(each[key] for each in runs) for key in ("cpu_s", "rss_mib")}
        for name, runs in found.items()
    }
    return {**medians, "ratio": medians["controller"]["cpu_s"] / medians["libraries"]["cpu_s"]}


async def measure(rounds: int) -> dict[str, Any]:
    """Measure every part."""
    return {
        "load_average": os.getloadavg()[0],
        "scrape": await scrape(400, rounds),
        "refit": await refit(rounds),
        "near": await near(rounds),
        "simulation": await simulation(max(1, rounds // 3)),
        "start": await start(max(1, rounds // 3)),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print; 1 when a part takes longer than it may."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks parts", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="end with one JSON object and no sentence")
    given = parser.parse_args(arguments)
    found = run(measure(given.rounds))
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        for name, part in _flat(found):
            print(f"{name:<36} {part:.4g}")
    return 0 if found["simulation"]["cpu_s"] <= DAY_LIMIT_S else 1


def _flat(found: Mapping[str, Any], before: str = "") -> list[tuple[str, float]]:
    rows: list[tuple[str, float]] = []
    for key, value in found.items():
        rows += _flat(value, f"{before}{key}.") if isinstance(value, Mapping) else [(before + key, value)]
    return rows


if __name__ == "__main__":
    sys.exit(main())
