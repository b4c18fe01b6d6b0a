"""Plots of a demo run as SVG that follows the page's colours, light or dark.

Promises: text, axes and grid take the colour of the surrounding page (``currentColor``), the runs keep
theirs; nothing is fetched from anywhere. Called by the report page.
"""

import io
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

from controller.demo.record import Band, DemoRecord, RunRecord

# Stands for the page's text colour until the SVG is written; no plot uses it for anything else.
INK = "#012345"
DEMAND, WITH, WITHOUT, EVENT, LIMIT = "#7a869a", "#2f81d6", "#e0762f", "#9b6bd3", "#d64545"
RUN_COLOURS = {"with_prediction": WITH, "without_prediction": WITHOUT}
RUN_NAMES = {"with_prediction": "with prediction", "without_prediction": "without prediction"}
LATENCY_BUCKET_S = 1.0
BAND_MAX = 0.9  # the quantile that is provisioned for; beyond it the axis would belong to the band alone
HOURS_SHOWN_MAX = 14

STYLE: Any = {
    "svg.fonttype": "none",  # real text: crisp, selectable, and in the page's font
    "svg.hashsalt": "forecrest",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.frameon": False,
    "legend.fontsize": 9,
}


def inline_svg(figure: Figure, title: str) -> str:
    """Return the figure as an SVG element for an HTML page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    # Several figures share a page: only what is referred to keeps an id, numbered and led by the title. What
    # matplotlib calls them depends on addresses in memory.
    key = re.sub(r"\W+", "-", title.lower())
    referred = re.findall(r'(?:url\(#|href="#)([^)"]+)', text)
    names = {old: f"{key}-{number}" for number, old in enumerate(dict.fromkeys(referred), 1)}
    text = re.sub(r' id="([^"]+)"', lambda m: f' id="{names[m[1]]}"' if m[1] in names else "", text)
    text = re.sub(r'(url\(#|href="#)([^)"]+)', lambda m: f"{m[1]}{names[m[2]]}", text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    return text.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)


def timeline(record: DemoRecord) -> Figure:
    """Demand with its forecast, replicas of each run, latency of each run: one clock below all three."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 8.4), layout="constrained")
        demand, replicas, latency = figure.subplots(3, 1, sharex=True, height_ratios=(1.25, 1, 1))
        _demand(demand, record)
        _replicas(replicas, record)
        _latency(latency, record)
        for axes in (demand, replicas, latency):
            _event(axes, record)
        _clock_axis(latency, record)
        demand.set_xlim(0.0, record.with_prediction.seconds)
    return figure


def history(record: DemoRecord) -> Figure:
    """Draw the last two weeks that the forecaster learnt from, and the replayed part after them."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 2.6), layout="constrained")
        axes = figure.subplots()
        days = np.asarray(record.history_s) / 86_400.0
        axes.plot(days, record.history_qps, color=DEMAND, linewidth=0.9, label="imported history")
        speed = float(record.facts["speed"])
        axes.plot(
            np.asarray(record.demand_s) * speed / 86_400.0,
            record.demand_qps,
            color=WITH,
            linewidth=1.2,
            label="what the demo sends, event included",
        )
        axes.set_ylabel("QPS")
        axes.set_xlabel("days before and after the start of the load")
        axes.yaxis.set_major_formatter(FuncFormatter(_thousands))
        axes.set_ylim(bottom=0)
        axes.legend(loc="upper left")
    return figure


def _thousands(value: float, _position: int | None = None) -> str:
    return f"{value:,.0f}".replace(",", "\u202f")


def _demand(axes: Axes, record: DemoRecord) -> None:
    run = record.with_prediction
    first = next((band for band in run.bands if all(band.qps.values())), None)
    if first is not None:
        levels = sorted((level for level in first.qps if float(level) <= BAND_MAX), key=float)
        edges = first.start_s + np.arange(len(first.qps[levels[0]]) + 1) * first.step_s
        low, high = (np.asarray(first.qps[level]) for level in (levels[0], levels[-1]))
        axes.stairs(
            high,
            edges,
            baseline=low,
            fill=True,
            color=WITH,
            alpha=0.22,
            label=f"forecast P{_percent(levels)}",
        )
        if "0.5" in first.qps:
            axes.stairs(
                first.qps["0.5"], edges, baseline=None, color=WITH, linewidth=1.2, label="forecast median"
            )
    axes.plot(record.demand_s, record.demand_qps, color=INK, linewidth=1.6, label="demand sent")
    axes.set_ylabel("QPS")
    axes.yaxis.set_major_formatter(FuncFormatter(_thousands))
    top = max(*record.demand_qps, *(max(values) for values in _shown(first)))
    axes.set_ylim(0, top * 1.1)
    axes.legend(loc="upper left")
    axes.set_title("Demand, and the forecast made before the first request", loc="left", fontsize=11)


def _shown(band: Band | None) -> list[Sequence[float]]:
    if band is None:
        return [[0.0]]
    return [values for level, values in band.qps.items() if float(level) <= BAND_MAX]


def _percent(levels: Sequence[str]) -> str:
    return f"{float(levels[0]) * 100:g} to P{float(levels[-1]) * 100:g}"


def _replicas(axes: Axes, record: DemoRecord) -> None:
    for run in record.runs:
        times = [frame.at_s for frame in run.frames]
        colour, name = RUN_COLOURS[run.name], RUN_NAMES[run.name]
        axes.step(
            times,
            [frame.warm for frame in run.frames],
            where="post",
            color=colour,
            linewidth=1.8,
            label=f"warm, {name}",
        )
        axes.step(
            times,
            [np.nan if frame.desired is None else frame.desired for frame in run.frames],
            where="post",
            color=colour,
            linewidth=1.0,
            linestyle=(0, (3, 2)),
            label=f"desired, {name}",
        )
    axes.set_ylabel("replicas")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    most = max(
        (max(frame.warm, frame.desired or 0) for run in record.runs for frame in run.frames), default=1
    )
    axes.set_ylim(0, most * 1.55)  # the legend's room
    axes.legend(loc="upper left", ncols=2)
    axes.set_title("Replicas: desired, and verified warm", loc="left", fontsize=11)


def _latency(axes: Axes, record: DemoRecord) -> None:
    slo_ms = float(record.facts["slo_ms"])
    for run in record.runs:
        middles, values = p99_per_bucket(run, LATENCY_BUCKET_S)
        axes.plot(
            middles, values, color=RUN_COLOURS[run.name], linewidth=1.6, label=f"P99, {RUN_NAMES[run.name]}"
        )
    axes.axhline(slo_ms, color=LIMIT, linewidth=1.0, linestyle=(0, (4, 2)), label=f"SLO, {slo_ms:g} ms")
    axes.set_yscale("log")
    axes.set_ylabel("ms")
    axes.yaxis.set_major_formatter(FuncFormatter(_thousands))
    axes.legend(loc="upper left")
    axes.set_title("Latency from the intended send time, P99 of each wall second", loc="left", fontsize=11)


def p99_per_bucket(run: RunRecord, bucket_s: float) -> tuple[list[float], list[float]]:
    """Return middles and P99 latencies in ms of the buckets that hold requests."""
    sent = np.asarray(run.sent_s, float)
    latency = np.asarray(run.latency_ms, float)
    index = (sent // bucket_s).astype(int)
    present = np.unique(index)
    return (
        [float((i + 0.5) * bucket_s) for i in present],
        [float(np.quantile(latency[index == i], 0.99)) for i in present],
    )


def _event(axes: Axes, record: DemoRecord) -> None:
    event = record.facts["event"]
    axes.axvspan(event["start_s"], event["end_s"], color=EVENT, alpha=0.10, linewidth=0)
    order_s = record.with_prediction.contract.get("order_s")
    if order_s is not None:
        axes.axvline(order_s, color=EVENT, linewidth=1.0, linestyle=(0, (1, 2)))


def _clock_axis(axes: Axes, record: DemoRecord) -> None:
    start_at = datetime.fromisoformat(record.facts["start_at"])
    speed = float(record.facts["speed"])

    def label(second: float, _position: int | None = None) -> str:
        return f"{start_at + timedelta(seconds=second * speed):%H:%M}"

    hours = record.with_prediction.seconds * speed / 3600
    every_s = 3600 * max(1, round(hours / HOURS_SHOWN_MAX)) if hours >= 3 else hours * 3600 / 6
    axes.xaxis.set_major_locator(MultipleLocator(every_s / speed))
    axes.xaxis.set_major_formatter(FuncFormatter(label))
    axes.set_xlabel(
        f"demo clock (UTC); one wall second is {speed / 60:.3g} minutes. "
        "Shaded: the event. Dotted: its replicas are due to be ordered."
    )


def save_picture(record: DemoRecord, path: Path) -> None:
    """Write the timeline as a picture of its own, on a light ground, for a README or a slide."""
    figure = timeline(record)
    figure.patch.set_facecolor("#ffffff")
    buffer = io.StringIO()
    figure.savefig(
        buffer,
        format="svg",
        bbox_inches="tight",
        facecolor="#ffffff",
        metadata={"Date": None, "Creator": None},
    )
    path.write_text(buffer.getvalue().replace(INK, "#1c2430"), encoding="utf-8")
