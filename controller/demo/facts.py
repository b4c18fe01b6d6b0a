"""What the report states about how its figures came about: what was real, and what stood for something else."""

from typing import Any

from controller.demo import world as w
from controller.demo.record import RunRecord
from controller.demo.screen import grouped
from controller.demo.world import World


def facts(world: World, runs: dict[str, RunRecord]) -> dict[str, Any]:
    """Return the world's numbers, and every real and simulated part in words."""
    series = world.series
    start_s, end_s = world.event_s
    cold_s = [seconds for run in runs.values() for seconds in cold_starts(run)]
    return {
        "slo_ms": w.SLO_MS,
        "speed": world.speed,
        "story_weight": w.STORY_WEIGHT,
        "start_at": series.replay_at.isoformat(),
        "source": series.source,
        "source_detail": (
            f"values times {series.scale:.4g}, dates moved by {series.moved_weeks} whole weeks, "
            "buckets joined by straight lines"
        ),
        "event": {"start_s": start_s, "end_s": end_s, "base_qps": w.BASE_QPS, "peak_qps": w.PEAK_QPS},
        "cold_start_s": max(cold_s) if cold_s else w.PROVISIONING_S,
        "replica_rps": w.REPLICA_RPS,
        "real": list(REAL),
        "simulated": simulated(world, cold_s),
    }


REAL = (
    "PostgreSQL, Valkey and Triton Inference Server, from their Python packages, on this machine.",
    (
        "Every request counted: sent over gRPC to a Triton process that runs an ONNX model. Latency counts from the "
        f"intended send time; after {w.TIMEOUT_S:g} s a request counts as not answered."
    ),
    "Starting, loading, warming up and verifying each replica, and draining it before it ends.",
    "The controller: the code that `forecrest up` runs, told of the event through its gRPC API.",
    "The history and the replayed day. The forecaster had not seen the day.",
)


def simulated(world: World, cold_s: list[float]) -> list[str]:
    """Name every simulated or compressed part."""
    measured = f" ({min(cold_s):.0f} to {max(cold_s):.0f} s in all, in these runs)" if cold_s else ""
    time = (
        f"Time: the controller's clock runs {world.speed:g} times as fast as the wall, so that one wall second is "
        f"{world.speed / 60:.3g} minutes of the day. A cold start does not shrink with it, which makes the task "
        "harder, not easier."
    )
    scale = (
        f"Scale: each request sent stands for {w.STORY_WEIGHT} of the story. QPS on this page are the story's; "
        "requests, latencies and shares are those really sent."
    )
    device = (
        f"The accelerator: a batch of n requests occupies a replica for {w.BATCH_MS:g} + n x {w.REQUEST_MS:g} ms, "
        f"at most {w.BATCH_MAX} in a batch, so that a replica serves {w.REPLICA_RPS:.0f} requests a second and "
        "replicas add up on a machine with few cores."
    )
    provisioning = (
        f"Provisioning: {w.PROVISIONING_S:g} s before each process start stand for a GPU node and an image pull; "
        f"the rest of a cold start is real{measured}."
    )
    event = (
        "The event: no part of the history. It lifts the day's own demand to "
        f"{grouped(w.PEAK_QPS)} QPS at once, as the planner said it would."
    )
    return [time, scale, device, provisioning, event]


def cold_starts(run: RunRecord) -> list[float]:
    """Return wall seconds from each order of more replicas to the moment when so many were warm."""
    found: list[float] = []
    for move in run.moves:
        if move.desired <= move.current:
            continue
        met = next((f.at_s for f in run.frames if f.at_s > move.at_s and f.warm >= move.desired), None)
        if met is not None:
            found.append(met - move.at_s)
    return found
