"""Replay stored demand through the simulator in a process of its own: what ``Simulate`` computes.

Promises: the same code as ``forecrest simulate``; the controller that asked never waits for the computation, whose
process is nice, single-threaded, and ends when its caller is cancelled, or itself ends for whatever reason.
Refuses nothing: the use case has checked. ``python -m controller.study`` reads one study and writes its results.
"""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from math import ceil, isnan
from typing import TYPE_CHECKING

from controller.adapters.codec import decode, encode
from controller.core.types import Policy as ScalingPolicy
from controller.ports import PortError

if TYPE_CHECKING:
    from controller.simulation.harness import Policy, PolicyResult
    from controller.simulation.trace import Trace

log = logging.getLogger(__name__)

NICE = 10
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True)
class Variant:
    """One Forecrest to compare: its policy and bounds."""

    name: str
    policy: ScalingPolicy
    min_replicas: int
    max_replicas: int


@dataclass(frozen=True, slots=True)
class Window:
    """Known or hypothetical load. ``demanded``: it is to be added to the demand; ``announced``: policies know of it."""

    start_at: datetime
    end_at: datetime
    peak_qps: float | None = None
    multiplier: float | None = None
    category: str = ""
    demanded: bool = False
    announced: bool = True


@dataclass(frozen=True, slots=True)
class Study:
    """Everything a replay needs. The first variant's bounds hold for the peers, too."""

    start_at: datetime
    step_s: int
    qps: tuple[float | None, ...]  # None unknown
    score_from_s: float
    capacity_qps: float
    slo_wait_s: float
    cold_start_s: float
    variants: tuple[Variant, ...]
    peers: tuple[str, ...] = ()
    windows: tuple[Window, ...] = ()
    timeline_size: int = 200
    time_zone: str | None = None  # of the workload's users


@dataclass(frozen=True, slots=True)
class Timeline:
    """A run, at most ``timeline_size`` steps. None: unknown demand."""

    step_s: float
    demand_qps: tuple[float | None, ...]
    ready: tuple[int, ...]
    paid: tuple[int, ...]
    violation_share: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StudyResult:
    """What one policy cost and what users met, over the scored part."""

    name: str
    violation_share: float
    wait_ms_p99: float
    replica_hours: float
    scale_changes: int
    flaps: int
    rejected_share: float
    peak_replicas: int
    event_violation_share: float | None
    timeline: Timeline


@dataclass(frozen=True, slots=True)
class StudyResults:
    """Results in the order asked for: variants, then peers."""

    results: tuple[StudyResult, ...]


class StudyError(RuntimeError):
    """The process ended without results; its own log says why."""


class Studies:
    """Runs one study at a time."""

    def __init__(self) -> None:
        self.running = False

    async def run(self, study: Study) -> tuple[StudyResult, ...]:
        """Return the results. Nothing may be running already; cancelling ends the process.

        Raises:
            StudyError: the process failed.
        """
        assert not self.running, "the caller looks first"
        self.running = True
        try:
            return await _run_apart(study)
        finally:
            self.running = False


async def _run_apart(study: Study) -> tuple[StudyResult, ...]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "controller.study",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        # Nothing of the settings: a replay needs no address and no password.
        env={
            **{name: os.environ[name] for name in INHERITED if name in os.environ},
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        # Standard input stays open: its end tells the process that nobody waits for it any more.
        process.stdin.write(encode(study).encode() + b"\n")
        await process.stdin.drain()
        data = await process.stdout.read()
        process.stdin.close()
        code = await process.wait()
    except ConnectionError as error:
        raise StudyError(f"the simulation's process ended early: {error}") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code:
        raise StudyError(f"the simulation's process ended with {code}")
    try:
        return decode(StudyResults, data).results
    except PortError as error:  # a defect of ours, and no outage
        raise StudyError(str(error)) from error


def run_study(study: Study, progress: Callable[[str, float], None] | None = None) -> StudyResults:
    """Replay, in this process. Takes seconds to minutes; imports the simulator on first use."""
    from controller.simulation.cluster import ClusterModel  # noqa: PLC0415 - slow to import, and only here
    from controller.simulation.harness import simulate  # noqa: PLC0415
    from controller.simulation.ours import Forecrest, Foresight  # noqa: PLC0415
    from controller.simulation.queueing import Queue  # noqa: PLC0415
    from controller.simulation.registry import make  # noqa: PLC0415
    from controller.simulation.trace import TraceEvent  # noqa: PLC0415

    trace = _trace(study)
    known = tuple(
        TraceEvent(w.start_at, w.end_at, "", w.category, w.peak_qps, w.multiplier)
        for w in study.windows
        if w.announced
    )
    queue = Queue(capacity_qps=study.capacity_qps, slo_wait_s=study.slo_wait_s)
    first = study.variants[0]
    model = ClusterModel(
        queue=queue,
        cold_start_s=study.cold_start_s,
        min_replicas=first.min_replicas,
        max_replicas=first.max_replicas,
    )
    foresight = Foresight(trace, known, study.cold_start_s, time_zone=study.time_zone)
    bounds = [
        replace(model, min_replicas=variant.min_replicas, max_replicas=variant.max_replicas)
        for variant in study.variants
    ]
    ours: list[Policy] = [Forecrest(policy=variant.policy, foresight=foresight) for variant in study.variants]
    peers = make(list(study.peers), foresight)
    names = [variant.name for variant in study.variants] + [policy.name for policy in peers]
    found: list[StudyResult] = []
    for name, policy, cluster in zip(names, [*ours, *peers], [*bounds, *[model] * len(peers)], strict=True):
        (result,) = simulate(
            trace, known, [policy], cluster, score_from_s=study.score_from_s, progress=progress
        )
        found.append(_told(study, name, result))
    return StudyResults(tuple(found))


def _trace(study: Study) -> "Trace":
    """Return the demand with what the windows add."""
    import numpy as np  # noqa: PLC0415 - as above

    from controller.simulation.trace import Trace  # noqa: PLC0415

    qps = np.array([np.nan if value is None else value for value in study.qps], dtype=np.float64)
    for window in study.windows:
        if not window.demanded:
            continue
        low = max(0, ceil((window.start_at - study.start_at).total_seconds() / study.step_s))
        high = max(0, ceil((window.end_at - study.start_at).total_seconds() / study.step_s))
        if window.multiplier is not None:
            qps[low:high] *= window.multiplier
        if window.peak_qps is not None:
            # Also where demand is unknown: this is what came.
            qps[low:high] = np.fmax(qps[low:high], window.peak_qps)
    return Trace("stored", study.start_at, study.step_s, qps)


def _told(study: Study, name: str, result: "PolicyResult") -> StudyResult:
    import numpy as np  # noqa: PLC0415 - as above

    line = result.timeline
    count = len(line.demand_qps)
    group = max(1, ceil(count / study.timeline_size))
    edges = np.arange(0, count, group)
    demand = np.nan_to_num(line.demand_qps)
    known = np.isfinite(line.demand_qps)
    weight = np.maximum(np.add.reduceat(demand, edges), 1e-12)
    violations = np.nan_to_num(line.violations) * demand
    violated = np.add.reduceat(violations, edges) / weight
    seen = np.maximum.reduceat(np.where(known, line.demand_qps, -1.0), edges)
    inside = np.zeros(count, dtype=bool)
    for window in study.windows:
        low = (window.start_at - study.start_at).total_seconds() - study.score_from_s
        high = (window.end_at - study.start_at).total_seconds() - study.score_from_s
        inside[max(0, ceil(low / line.step_s)) : max(0, ceil(high / line.step_s))] = True
    total = float(demand[inside].sum())
    return StudyResult(
        name=name,
        violation_share=result.violation_share,
        wait_ms_p99=0.0 if isnan(result.wait_ms_p99) else result.wait_ms_p99,
        replica_hours=result.replica_hours,
        scale_changes=result.scale_changes,
        flaps=result.flaps,
        rejected_share=result.rejected_share,
        peak_replicas=result.peak_replicas,
        event_violation_share=float(violations[inside].sum()) / total if total > 0 else None,
        timeline=Timeline(
            step_s=float(line.step_s * group),
            demand_qps=tuple(None if value < 0 else value for value in seen.tolist()),
            ready=tuple(np.minimum.reduceat(line.ready, edges).tolist()),
            paid=tuple(np.maximum.reduceat(line.paid, edges).tolist()),
            violation_share=tuple(np.clip(violated, 0.0, 1.0).tolist()),
        ),
    )


def main() -> None:
    """Read one study, write its results; end at once when nobody waits any more."""
    os.nice(NICE)
    study = decode(Study, sys.stdin.buffer.readline())

    def watch() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="caller").start()
    code = 1
    try:
        sys.stdout.write(encode(run_study(study)))
        sys.stdout.flush()
        code = 0
    except Exception:
        log.exception("the study failed")
    finally:
        os._exit(code)  # the thread above still reads: an ordinary end would abort on its lock


if __name__ == "__main__":
    main()
