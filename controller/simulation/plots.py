"""Plots of runs and frontiers, as PNG or SVG by the file's suffix. Called by the CLI and the benchmarks."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from controller.simulation.frontier import Point, envelope
from controller.simulation.harness import PolicyResult

POINT_COUNT_MAX = 4000


def plot_timeline(path: Path, results: Sequence[PolicyResult], capacity_qps: float) -> None:
    """Draw demand in replicas, and each policy's warm and paid replicas, one panel per policy."""
    figure = Figure(figsize=(12, 2.4 * max(1, len(results))), layout="constrained")
    panels = np.atleast_1d(figure.subplots(max(1, len(results)), 1, sharex=True))
    for panel, result in zip(panels, results, strict=False):
        line = result.timeline
        every = max(1, len(line.ready) // POINT_COUNT_MAX)
        hours = np.arange(0, len(line.ready), every) * line.step_s / 3600
        panel.fill_between(hours, line.demand_qps[::every] / capacity_qps, color="0.8", label="demand")
        panel.step(hours, line.ready[::every], where="post", lw=1.2, label="warm")
        panel.step(hours, line.paid[::every], where="post", lw=0.8, ls="--", label="paid")
        panel.set_title(
            f"{result.policy}: {result.violation_share:.3%} violations, {result.replica_hours:.0f} replica-hours",
            loc="left",
            fontsize=9,
        )
        panel.set_ylabel("replicas")
    panels[0].legend(loc="upper right", ncols=3, fontsize=8)
    panels[-1].set_xlabel("hours")
    figure.savefig(path)


def plot_frontier(path: Path, title: str, sweeps: Mapping[str, Sequence[Point]]) -> None:
    """Draw violation share (logarithmic) against replica-hours, one line per policy."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    panel = figure.subplots()
    for name, points in sweeps.items():
        best = envelope(points)
        oracle = name == "oracle"
        panel.plot(
            [hours for _, hours in best],
            [100 * share for share, _ in best],
            label=name,
            lw=2.2 if name == "forecrest" else 1.0,
            marker="*" if oracle else "o",
            ms=12 if oracle else 3,
            ls="" if oracle else "-",
        )
    panel.set_yscale("log")
    panel.set_xlabel("replica-hours")
    panel.set_ylabel("violations, % of requests")
    panel.axhspan(0.01, 1.0, color="0.93", zorder=0)
    panel.set_title(title)
    panel.legend(fontsize=8)
    figure.savefig(path)
