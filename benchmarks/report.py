"""Tables of at most 100 columns, and the machine-readable document.

Promises: what is unknown is shown as `-` and written as null, never as 0.
Refuses: nothing.
Called by: the accuracy benchmark.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.peers import METHODS
from benchmarks.series import Series
from benchmarks.summary import BASE, OURS, SeriesScore, Summary, Timing

MARKER_BEGIN = "<!-- accuracy: begin -->"
MARKER_END = "<!-- accuracy: end -->"


def _number(value: float, digits: int = 2) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def show(
    console: Console, summary: Summary, scores: Sequence[SeriesScore], excluded: Sequence[Series]
) -> None:
    """Print the tables: per series, per method, what must hold, and what failed."""
    for title, headings, rows in _tables(summary, scores):
        if rows:
            console.print(_table(title, headings, rows))
    for line in _failure_lines(summary, scores, ""):
        console.print(line, highlight=False, markup=False)
    for score in (one for one in scores if one.missing):
        text = f"Left out of {score.name}, neither run nor in the cache: {', '.join(score.missing)}"
        console.print(text, highlight=False)
    if copies := [score.name for score in scores if score.is_copy]:
        console.print(
            f"Out of all ratios, repeats its own week exactly: {', '.join(copies)}", highlight=False
        )
    if excluded:
        names = ", ".join(series.name for series in excluded)
        console.print(f"Left out, shorter than 10 days: {names}", highlight=False)


def _series_rows(scores: Sequence[SeriesScore]) -> list[list[str]]:
    rows: list[list[str]] = []
    for score in scores:
        cells = [score.name]
        for horizon in ("day", "short"):
            own = getattr(score.methods[OURS], horizon) if OURS in score.methods else math.nan
            ratios = (score.ratio(horizon, BASE), score.ratio(horizon))
            cells += [_number(own, 3), *map(_number, ratios), score.best_peer(horizon)[0]]
        rows.append(cells)
    return rows


def _event_rows(scores: Sequence[SeriesScore]) -> list[list[str]]:
    return [
        [
            score.name,
            str(score.event_buckets),
            _number(score.ratio("event")),
            score.best_peer("event")[0],
            _number(score.ratio("event", "prophet-events")),
            _number(score.ratio("event", BASE)),
        ]
        for score in scores
        if score.event_buckets
    ]


def _method_rows(summary: Summary) -> list[list[str]]:
    keys = ("day", "short", "coverage_95", "coverage_99", "seconds_median", "seconds_5min_3weeks")
    return [
        [name, *(_number(values[key], 3) for key in keys), f"{values['series']:.0f}"]
        for name, values in summary.relative.items()
    ]


def _measure_rows(summary: Summary) -> list[list[str]]:
    verdicts = {True: "holds", False: "MISSED", None: "not measured"}
    return [[one.name, one.must, _number(one.value, 3), verdicts[one.holds]] for one in summary.measures]


def _tables(summary: Summary, scores: Sequence[SeriesScore]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Return title, headings and rows of each table; shown in the terminal and written to Markdown alike."""
    per_horizon = ["/MSTL", "/best", "best peer"]
    event = ["series", "buckets", "/best", "best peer", "/prophet-events", "/MSTL"]
    method = ["method", "day", "short", "cover .95", "cover .99", "median s", "5min/3wk s", "series"]
    return [
        (
            "Scaled pinball of ours per series, and against MSTL and the best peer",
            ["series", "day", *per_horizon, "short", *per_horizon],
            _series_rows(scores),
        ),
        ("Event windows: ours against the peers", event, _event_rows(scores)),
        ("Methods against MSTL (geometric means over series; CPU seconds)", method, _method_rows(summary)),
        ("Must hold", ["measure", "must", "is", ""], _measure_rows(summary)),
    ]


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, box=None, pad_edge=False, padding=(0, 1, 0, 0), collapse_padding=True)
    for at, heading in enumerate(headings):
        is_text = at == 0 or heading in {"best peer", "must", ""}
        table.add_column(
            heading,
            justify="left" if is_text else "right",
            no_wrap=True,
            max_width={"series": 33, "best peer": 14}.get(heading),
        )
    for row in rows:
        table.add_row(*row)
    return table


def update(path: Path, summary: Summary, scores: Sequence[SeriesScore]) -> None:
    """Replace what stands between the markers in the Markdown file `path` with the tables.

    Raises:
        ValueError: The file has no markers.
    """
    before, begin, rest = path.read_text(encoding="utf-8").partition(MARKER_BEGIN)
    _, end, after = rest.partition(MARKER_END)
    if not (begin and end):
        raise ValueError(f"{path}: put {MARKER_BEGIN} and {MARKER_END} around where the tables go.")
    lines: list[str] = []
    for title, headings, rows in _tables(summary, scores):
        lines += ["", f"**{title}**", "", _markdown(headings), _markdown(["---"] * len(headings))]
        lines += [_markdown(row) for row in rows]
    lines += ["", *_failure_lines(summary, scores, "- ")]
    lines += [
        f"- {one.name} is out of all ratios: it repeats its own week exactly" for one in scores if one.is_copy
    ]
    path.write_text(f"{before}{begin}\n{chr(10).join(lines)}\n\n{end}{after}", encoding="utf-8")


def _markdown(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _failure_lines(summary: Summary, scores: Sequence[SeriesScore], bullet: str) -> list[str]:
    lines: list[str] = []
    for name, found in summary.failures.items():
        lines.append(f"{bullet}{name} failed, and is scored as snaive-week there:")
        for score in (one for one in scores if one.name in found):
            method = score.methods[name]
            count = f"{method.failed} of {method.origins}"
            lines.append(f"  {bullet}{score.name}: {count}: {' / '.join(method.reasons)}")
    return lines


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
