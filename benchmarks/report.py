"""Tables of at most 100 columns, and the machine-readable document.

Promises: what is unknown is shown as `-` and written as null, never as 0.
Refuses: nothing.
Called by: the accuracy benchmark.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.peers import METHODS
from benchmarks.series import Series
from benchmarks.summary import BASE, OURS, SeriesScore, Summary, Timing


def _number(value: float, digits: int = 2) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def show(
    console: Console, summary: Summary, scores: Sequence[SeriesScore], excluded: Sequence[Series]
) -> None:
    """Print the tables: per series, per method, what must hold, and what failed."""
    console.print(_series_table(scores))
    console.print(_method_table(summary))
    console.print(_measure_table(summary))
    for name, found in summary.failures.items():
        console.print(f"[bold]{name}[/bold] failed (scored as snaive-week there):", highlight=False)
        for score in scores:
            if score.name in found:
                reason = "; ".join(score.methods[name].reasons)
                counts = f"{found[score.name]} of {score.methods[name].origins}"
                console.print(f"  {score.name}: {counts}: {reason}", highlight=False, markup=False)
    if excluded:
        names = ", ".join(series.name for series in excluded)
        console.print(f"Left out, shorter than 10 days: {names}", highlight=False)


def _series_table(scores: Sequence[SeriesScore]) -> Table:
    table = Table(title="Scaled pinball per series (lower is better)", box=None, pad_edge=False)
    for heading in ("series", "day", "/MSTL", "/best", "best peer", "short", "/MSTL", "/best", "best peer"):
        right = heading not in {"series", "best peer"}
        table.add_column(heading, justify="right" if right else "left", no_wrap=True)
    for score in scores:
        cells = [score.name[:27]]
        for horizon in ("day", "short"):
            own = getattr(score.methods[OURS], horizon) if OURS in score.methods else math.nan
            ratios = (score.ratio(horizon, BASE), score.ratio(horizon))
            cells += [_number(own, 3), *map(_number, ratios), score.best_peer(horizon)[0][:15]]
        table.add_row(*cells)
    return table


def _method_table(summary: Summary) -> Table:
    table = Table(title="Methods against MSTL (geometric means over series)", box=None, pad_edge=False)
    table.add_column("method", no_wrap=True)
    headings = ("day", "short", "cover .95", "cover .99", "median s", "5min/3wk s", "series")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    keys = ("day", "short", "coverage_95", "coverage_99", "seconds_median", "seconds_5min_3weeks")
    digits = (3, 3, 3, 3, 3, 3)
    for name, values in summary.relative.items():
        cells = [_number(values[key], places) for key, places in zip(keys, digits, strict=True)]
        table.add_row(name, *cells, f"{values['series']:.0f}")
    return table


def _measure_table(summary: Summary) -> Table:
    table = Table(title="Must hold", box=None, pad_edge=False)
    table.add_column("measure")
    table.add_column("must", no_wrap=True)
    table.add_column("is", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for one in summary.measures:
        verdict = {True: "holds", False: "MISSED", None: "not measured"}[one.holds]
        table.add_row(one.name, one.must, _number(one.value, 3), verdict)
    return table


def document(
    summary: Summary,
    scores: Sequence[SeriesScore],
    timings: Sequence[Timing],
    settings: Mapping[str, object],
) -> dict[str, Any]:
    """Return everything as plain JSON values; NaN becomes null."""
    methods = {method.name: {"note": method.note, "settings": list(method.settings)} for method in METHODS}
    series = [
        asdict(score)
        | {
            "best_peer": {horizon: score.best_peer(horizon)[0] for horizon in ("day", "short", "event")},
            "ours_over_best": {horizon: score.ratio(horizon) for horizon in ("day", "short", "event")},
            "ours_over_mstl": {horizon: score.ratio(horizon, BASE) for horizon in ("day", "short", "event")},
        }
        for score in scores
    ]
    content = {
        "settings": {name: str(value) for name, value in settings.items() if name != "data"},
        "methods": methods,
        "summary": asdict(summary),
        "series": series,
        "timings": [asdict(timing) for timing in timings],
    }
    plain: dict[str, Any] = _plain(content)
    return plain


def _plain(value: Any) -> Any:  # noqa: ANN401 - walks any JSON value
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
