"""Measure what one replica sustains: open-loop Poisson load on a live Triton, up to the highest rate within the SLO.

Promises: requests start when the schedule says, whether or not earlier ones have been answered, and latency counts
from the scheduled start, so a slow server cannot slow its own test down (no coordinated omission); a point whose
sender ran late is marked and never counts as a pass; load is bounded in time and in requests under way. The search
doubles the rate until the SLO fails and then halves the gap. Refuses to call a rate sustained that was measured with
too few requests to know its P99. Called by ``forecrest engine profile`` and ``benchmarks.gpu``.

Sources: G. Tene, "How NOT to Measure Latency" (coordinated omission); Schroeder et al., "Open Versus Closed: A
Cautionary Tale" (NSDI 2006).
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

# The P99 of fewer requests is the worst few of them.
REQUESTS_MIN: Final = 200
UNDER_WAY_MAX: Final = 2000
# A request that starts this much later than scheduled says that the sender, not the server, is at its end.
LATE_SHARE_MAX: Final = 0.25
_DRAIN_S: Final = 10.0

Send = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What counts as sustained: P99 latency in ms from the scheduled start, and the share of requests that may fail."""

    latency_ms_p99: float
    error_share_max: float = 0.0

    def __post_init__(self) -> None:
        if not self.latency_ms_p99 > 0:
            raise ValueError(f"latency_ms_p99: must be positive, got {self.latency_ms_p99}")
        if not 0 <= self.error_share_max < 1:
            raise ValueError(f"error_share_max: must be from 0 to below 1, got {self.error_share_max}")


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """What came of one offered rate. Latencies are in ms and NaN where nothing was answered."""

    offered_qps: float
    achieved_qps: float
    latency_ms_p50: float
    latency_ms_p95: float
    latency_ms_p99: float
    sent_count: int
    error_count: int
    sender_late_ms_p99: float
    first_error: str = ""

    def meets(self, objective: Objective) -> bool:
        """Whether the SLO held, and the measurement can be believed."""
        return (
            self.sent_count >= REQUESTS_MIN
            and self.latency_ms_p99 <= objective.latency_ms_p99
            and self.error_count <= objective.error_share_max * self.sent_count
            and self.sender_late_ms_p99 <= LATE_SHARE_MAX * objective.latency_ms_p99
        )


@dataclass(frozen=True, slots=True)
class Sustained:
    """The highest rate that held, in requests per second (None: not even the first), and every point measured."""

    qps_max: float | None
    points: tuple[LoadPoint, ...]


@dataclass(frozen=True, slots=True)
class Samples:
    """What one sender saw: latency per request in ms (NaN: not answered), how late each started, and errors."""

    offered_qps: float
    latencies_ms: NDArray[np.float64]
    late_ms: NDArray[np.float64]
    errors: tuple[str, ...]
    took_s: float


async def offer(
    send: Send, qps: float, *, duration_s: float, seed: int = 0, count_min: int = REQUESTS_MIN
) -> Samples:
    """Offer Poisson arrivals at ``qps`` for about ``duration_s``, longer where that were fewer than ``count_min``.

    ``send`` makes one request and raises if it failed. Same seed, same schedule.
    """
    count = max(count_min, round(qps * duration_s))
    starts_s = np.cumsum(np.random.default_rng(seed).exponential(1 / qps, count))
    latencies_ms = np.full(count, np.nan)
    late_ms = np.zeros(count)
    errors: list[str] = []
    tasks: set[asyncio.Task[None]] = set()
    began_s = time.perf_counter()

    async def one(number: int, due_s: float) -> None:
        try:
            await send()
        except Exception as error:  # noqa: BLE001 - whatever failed, the request did
            errors.append(f"{type(error).__name__}: {error}"[:200])
        else:
            latencies_ms[number] = (time.perf_counter() - due_s) * 1000

    for number, start_s in enumerate(starts_s):
        due_s = began_s + float(start_s)
        wait_s = due_s - time.perf_counter()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        late_ms[number] = max(0.0, (time.perf_counter() - due_s) * 1000)
        if len(tasks) >= UNDER_WAY_MAX:
            errors.append(f"{UNDER_WAY_MAX} requests were under way already")
            continue
        task = asyncio.create_task(one(number, due_s))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        if number % 64 == 0:
            await asyncio.sleep(0)  # a schedule that is behind must still let answers in
    if tasks:
        _, unanswered = await asyncio.wait(tasks, timeout=_DRAIN_S)
        for task in unanswered:
            task.cancel()
            errors.append(f"no answer within {_DRAIN_S:g} s of the last start")
        await asyncio.gather(*unanswered, return_exceptions=True)
    return Samples(qps, latencies_ms, late_ms, tuple(errors), time.perf_counter() - began_s)


def summarize(parts: Sequence[Samples]) -> LoadPoint:
    """One point from senders that ran side by side: independent Poisson streams add up to one."""
    latencies_ms = np.concatenate([part.latencies_ms for part in parts])
    late_ms = np.concatenate([part.late_ms for part in parts])
    answered = latencies_ms[~np.isnan(latencies_ms)]
    p50, p95, p99 = np.quantile(answered, (0.5, 0.95, 0.99)) if answered.size else (np.nan,) * 3
    errors = [error for part in parts for error in part.errors]
    return LoadPoint(
        offered_qps=sum(part.offered_qps for part in parts),
        achieved_qps=answered.size / max(part.took_s for part in parts),
        latency_ms_p50=float(p50),
        latency_ms_p95=float(p95),
        latency_ms_p99=float(p99),
        sent_count=len(latencies_ms),
        error_count=len(errors),
        sender_late_ms_p99=float(np.quantile(late_ms, 0.99)),
        first_error=errors[0] if errors else "",
    )


async def measure_here(send: Send, qps: float, *, duration_s: float, seed: int) -> LoadPoint:
    """Offer from this process alone."""
    return summarize([await offer(send, qps, duration_s=duration_s, seed=seed)])


async def find_sustained(
    send: Send,
    objective: Objective,
    *,
    qps_from: float = 10.0,
    qps_to: float = 100_000.0,
    precision: float = 0.05,
    duration_s: float = 5.0,
    on_point: Callable[[LoadPoint], None] = lambda _: None,
    measure: Callable[..., Awaitable[LoadPoint]] = measure_here,
) -> Sustained:
    """Find the highest rate within the SLO, to within ``precision`` of it.

    A rate that fails is tried once more before it counts as failed: one pause of the machine is no limit.
    """
    if not 0 < qps_from <= qps_to:
        raise ValueError(f"qps_from: must be positive and at most qps_to, got {qps_from} and {qps_to}")
    points: list[LoadPoint] = []

    async def holds(qps: float) -> bool:
        for _ in range(2):
            point = await measure(send, qps, duration_s=duration_s, seed=len(points))
            points.append(point)
            on_point(point)
            if point.meets(objective):
                return True
        return False

    low, high, qps = None, None, qps_from
    while high is None:
        if not await holds(qps):
            high = qps
        elif qps >= qps_to:
            return Sustained(qps, tuple(points))
        else:
            low, qps = qps, min(2 * qps, qps_to)
    while low is not None and high - low > precision * low:
        middle = (low + high) / 2
        low, high = (middle, high) if await holds(middle) else (low, middle)
    return Sustained(low, tuple(points))


@dataclass(frozen=True, slots=True)
class Batching:
    """How Triton batches: the largest batch (0: no batching), how long a request waits for others, and instances."""

    batch_size_max: int
    queue_delay_us: int
    instance_count: int

    def config(self, base: dict[str, Any]) -> str:
        """The model's configuration with this batching, as Triton's load request takes it."""
        config = {k: v for k, v in base.items() if k not in {"dynamicBatching", "dynamic_batching"}}
        config["max_batch_size"] = base["max_batch_size"]
        groups = [dict(group) for group in base.get("instance_group", [{}])][:1]
        config["instance_group"] = [{**groups[0], "count": self.instance_count}]
        if self.batch_size_max > 1:
            config["max_batch_size"] = self.batch_size_max
            config["dynamic_batching"] = {
                "preferred_batch_size": [self.batch_size_max],
                "max_queue_delay_microseconds": self.queue_delay_us,
            }
        return json.dumps(config)


def grid(batches: Sequence[int], delays_us: Sequence[int], instances: Sequence[int]) -> list[Batching]:
    """Every combination worth trying: without batching, the delay means nothing."""
    everything = [Batching(b, d if b > 1 else 0, i) for b, d, i in product(batches, delays_us, instances)]
    return list(dict.fromkeys(everything))


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One combination and what it sustains."""

    batching: Batching
    sustained: Sustained
    load_s: float | None = None  # that Triton took to load the model so, files cached


def load_quantiles(rows: Sequence[ProfileRow]) -> tuple[float, float] | None:
    """P50 and P95 seconds of all loads that were measured; None without any."""
    loads_s = [row.load_s for row in rows if row.load_s is not None]
    if not loads_s:
        return None
    p50_s, p95_s = np.quantile(loads_s, (0.5, 0.95), method="higher")
    return float(p50_s), float(p95_s)


@dataclass(slots=True)
class TritonModel:
    """One model of a live Triton, as the profiler loads it and asks it. Made by `open_model`."""

    client: Any
    name: str
    inputs: list[Any]
    base: dict[str, Any]
    timeout_s: float = 30.0
    outputs: list[str] = field(default_factory=list[str])

    async def load(self, batching: Batching | None = None) -> None:
        """(Re)load the model, with another batching if given; raises what the client raises."""
        # Also to restore it: a load without a configuration keeps the one that was given last.
        config = json.dumps(self.base) if batching is None else batching.config(self.base)
        await self.client.load_model(self.name, config=config, client_timeout=120)

    async def warm(self, batching: Batching) -> None:
        """Let the server meet batches of every size up to the largest: each pays once for being new."""
        for together in (1, 1, *range(1, max(1, batching.batch_size_max) + 1)):
            await asyncio.gather(*(self.infer() for _ in range(together)))

    async def infer(self) -> None:
        """One request; raise unless the answer is whole and finite."""
        result = await self.client.infer(self.name, self.inputs, client_timeout=self.timeout_s)
        for name in self.outputs:
            value = result.as_numpy(name)
            if value is None or value.size == 0:
                raise ValueError(f"output {name} is empty")
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                raise ValueError(f"output {name} is not finite")


@asynccontextmanager
async def open_model(
    endpoint: str, name: str, *, seed: int = 0, batch: int = 1
) -> AsyncGenerator[TritonModel]:
    """A model at ``endpoint`` (host:port of Triton's gRPC), with random inputs of its declared shapes."""
    from tritonclient.grpc import InferInput  # noqa: PLC0415 - the rest of the module needs no client
    from tritonclient.grpc.aio import InferenceServerClient  # noqa: PLC0415
    from tritonclient.utils import triton_to_np_dtype  # noqa: PLC0415

    async with InferenceServerClient(endpoint) as client:
        if not await client.is_model_ready(name):
            await client.load_model(name, client_timeout=120)
        reply = await client.get_model_config(name, as_json=True)
        base: dict[str, Any] = dict((reply or {})["config"])
        base["max_batch_size"] = int(base.get("max_batch_size", 0))
        random = np.random.default_rng(seed)
        inputs: list[Any] = []
        for tensor in base["input"]:
            dims = [max(1, int(dim)) for dim in tensor["dims"]]
            shape = [batch, *dims] if base["max_batch_size"] else dims
            datatype = str(tensor["data_type"]).removeprefix("TYPE_")
            dtype = np.dtype(triton_to_np_dtype(datatype))
            value = (
                random.standard_normal(shape).astype(dtype)
                if dtype.kind == "f"
                else random.integers(0, 2, shape).astype(dtype)
            )
            inputs.append(InferInput(tensor["name"], shape, datatype))
            inputs[-1].set_data_from_numpy(value)
        yield TritonModel(client, name, inputs, base, outputs=[str(o["name"]) for o in base["output"]])


async def sweep(
    model: TritonModel,
    rows: Sequence[Batching],
    objective: Objective,
    *,
    duration_s: float = 5.0,
    qps_from: float = 10.0,
    precision: float = 0.05,
    on_point: Callable[[Batching, LoadPoint], None] = lambda _batching, _point: None,
    measure: Callable[..., Awaitable[LoadPoint]] = measure_here,
) -> list[ProfileRow]:
    """Load the model with each batching in turn and find what it sustains; the model is left as it was."""
    done: list[ProfileRow] = []
    try:
        for batching in rows:
            began_s = time.perf_counter()
            await model.load(batching)
            load_s = time.perf_counter() - began_s
            await model.warm(batching)
            found = await find_sustained(
                model.infer,
                objective,
                qps_from=qps_from,
                precision=precision,
                duration_s=duration_s,
                on_point=lambda point, batching=batching: on_point(batching, point),  # type: ignore[misc]
                measure=measure,
            )
            done.append(ProfileRow(batching, found, load_s))
    finally:
        await model.load()
    return done


def best(rows: Sequence[ProfileRow]) -> ProfileRow | None:
    """The combination that sustains most; None if none sustains anything."""
    able = [row for row in rows if row.sustained.qps_max is not None]
    return max(able, key=lambda row: row.sustained.qps_max or 0.0, default=None)
