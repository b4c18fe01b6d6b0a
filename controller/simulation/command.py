"""What ``forecrest simulate`` does: read, run, print. The CLI and ``python -m controller.simulation`` call it.

Promises: errors name the argument and the remedy; JSON goes to standard output alone, progress to standard
error and only on a terminal.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from controller.simulation.cluster import ClusterModel
from controller.simulation.harness import PolicyResult, simulate, with_limits, write_timeline
from controller.simulation.ours import Foresight
from controller.simulation.plots import plot_timeline
from controller.simulation.queueing import Queue
from controller.simulation.registry import NAMES, make
from controller.simulation.trace import (
    CAPACITY_QPS_DEFAULT,
    PEAK_REPLICAS_DEFAULT,
    Trace,
    TraceEvent,
    read_events,
    read_trace,
)


@dataclass(frozen=True, slots=True)
class Request:
    """One simulation, as asked for.

    ``capacity_qps`` None scales the trace so that its peak is ``PEAK_REPLICAS_DEFAULT`` full replicas of
    ``CAPACITY_QPS_DEFAULT``: its shape is replayed, not its size. Given, the trace keeps its own values.
    """

    trace: Path
    events: Path | None = None
    policies: tuple[str, ...] = ()
    capacity_qps: float | None = None
    cold_start_s: float = 300.0
    slo_wait_ms: float = 500.0
    unit: Literal["qps", "count"] = "qps"
    seed: int = 1
    cold_start_spread: float = 0.0
    load_failure_share: float = 0.0


def load(request: Request) -> tuple[Trace, tuple[TraceEvent, ...], ClusterModel]:
    """Read the inputs and build the cluster.

    Raises:
        ValueError: A setting or a file that cannot be used; the message names it and the remedy.
    """
    for name, value in (
        ("capacity-qps", request.capacity_qps),
        ("cold-start-s", request.cold_start_s),
        ("slo-wait-ms", request.slo_wait_ms),
    ):
        if value is not None and not 0 < value < float("inf"):
            raise ValueError(f"--{name}: {value} must be a positive number.")
    trace = read_trace(request.trace, request.unit)
    capacity = request.capacity_qps
    if capacity is None:
        capacity = CAPACITY_QPS_DEFAULT
        trace = trace.scaled_to_peak(PEAK_REPLICAS_DEFAULT * capacity)
    events = read_events(request.events) if request.events else ()
    queue = Queue(capacity_qps=capacity, slo_wait_s=request.slo_wait_ms / 1000)
    model = ClusterModel(
        queue=queue,
        cold_start_s=request.cold_start_s,
        cold_start_spread=request.cold_start_spread,
        load_failure_share=request.load_failure_share,
        seed=request.seed,
    )
    return trace, events, with_limits(model, trace)


def progress() -> Progress:
    """Bars on standard error for long replays; nothing where that is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def run(request: Request) -> list[PolicyResult]:
    """Run the simulation; all policies when none is named.

    Raises:
        ValueError: A setting, a file or a policy's name that cannot be used.
        OSError: A file that cannot be read.
    """
    trace, events, model = load(request)
    foresight = Foresight(trace, events, model.cold_start_s)
    policies = make(list(request.policies or NAMES), foresight)
    with progress() as bars:
        tasks = {policy.name: bars.add_task(policy.name, total=1.0) for policy in policies}
        return simulate(
            trace,
            events,
            policies,
            model,
            progress=lambda name, share: bars.update(tasks[name], completed=share),
        )


def report(results: Sequence[PolicyResult]) -> Table:
    """Return the comparison as a table, whole on a terminal of 80 columns."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in ("policy", "violations", "p99 wait", "replica-hours", "changes", "flaps", "peak"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for r in results:
        table.add_row(
            r.policy,
            f"{r.violation_share:.3%}",
            f"{r.wait_ms_p99:.0f} ms",
            f"{r.replica_hours:.1f}",
            str(r.scale_changes),
            str(r.flaps),
            str(r.peak_replicas),
        )
    return table


def output(
    results: Sequence[PolicyResult],
    *,
    as_json: bool,
    timeline: Path | None = None,
    plot: Path | None = None,
    capacity_qps: float = CAPACITY_QPS_DEFAULT,
) -> None:
    """Print the results; write the first policy's timeline and the plot when asked to."""
    if timeline is not None:
        write_timeline(timeline, results[0].timeline)
    if plot is not None:
        plot_timeline(plot, results, capacity_qps)
    if as_json:
        sys.stdout.write(json.dumps([r.to_json() for r in results], indent=2) + "\n")
    else:
        Console().print(report(results))
