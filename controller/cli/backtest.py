"""``forecrest backtest``: would the forecaster have been right on your own history?"""

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from controller.cli.common import (
    EXIT_USAGE,
    AsJson,
    CliError,
    err,
    out,
    parse_duration,
    print_json,
    table,
)
from controller.cli.plots import Line, draw, value_ticks
from controller.history import read_history

SUFFIXES = (".csv", ".csv.gz", ".parquet", ".pq")
SERIES_DEADLINE_S = 600.0
UNJUDGED = "no fold could be judged; give a longer history or a shorter --horizon."
PLOT_LETTERS = {"short": "s", "day": "o"}
HORIZONS = {"short": "first hour", "day": "first day", "all": "whole horizon"}


def backtest(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="CSV with timestamp,value; may be gzipped. Folders: all of theirs."
        ),
    ],
    horizon: Annotated[str, typer.Option(help="How far each fold forecasts: 6h, 1d.")] = "1d",
    folds: Annotated[int, typer.Option(help="Forecasts to make and judge.", min=1, max=200)] = 8,
    plot: Annotated[
        bool, typer.Option("--plot", help="Draw the ratio to seasonal naive, fold by fold, of a single file.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Score the forecaster on a history, fold by fold, each seeing only what came before it.

    A ratio under 1 is better than seasonal naive (the same time a day or a week before). Coverage is how often
    demand stayed at or below the P90: 90 % is right. Several files are judged at once, in as many processes as suit
    this machine; one that cannot be judged is named and stops no other.

    Example: `forecrest backtest requests.csv.gz --horizon 1d --folds 12`
    """
    ahead = parse_duration(horizon, "--horizon")
    paths = _listed(files)
    if files != paths or len(paths) > 1:
        _backtest_fleet(paths, ahead, folds, as_json=as_json)
        return
    (file,) = paths
    with _progress("backtest", folds) as progress:
        step, scores = _scores(file, ahead, folds, progress)
    results = _results(scores)
    if not results:
        raise CliError(f"{file}: {UNJUDGED}")
    _print(results, step, as_json=as_json)
    if plot and not as_json:
        _plot(scores)


def _listed(files: Sequence[Path]) -> list[Path]:
    """Return files as given, and those of folders in order of their names."""
    found: list[Path] = []
    for file in files:
        inside = (
            sorted(path for path in file.iterdir() if path.name.endswith(SUFFIXES))
            if file.is_dir()
            else [file]
        )
        if not inside:
            raise CliError(f"{file}: holds no file that ends in {', '.join(SUFFIXES)}.", EXIT_USAGE)
        found += inside
    return found


@contextmanager
def _progress(label: str, total: int) -> Generator[Callable[[int, int], None]]:
    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=err(), transient=True) as progress:
        bar = progress.add_task(label, total=total)
        yield lambda done, known: progress.update(bar, completed=done, total=known)


def _scores(
    file: Path, ahead: timedelta, folds: int, progress: Callable[[int, int], None] | None = None
) -> tuple[timedelta, Any]:
    """Return the file's step and scores; raise CliError."""
    import pandas as pd  # noqa: PLC0415 - slow to import, and so is the forecaster

    from forecaster import ForecastInputError  # noqa: PLC0415
    from forecaster.backtest import backtest as score  # noqa: PLC0415

    history = read_history(file)
    steps = max(1, math.ceil(ahead / history.step))
    series = pd.Series(
        [row.value for row in history.rows], index=pd.DatetimeIndex([row.at for row in history.rows])
    )
    try:
        scores = score(series, steps, folds, quantile_levels=(0.1, 0.5, 0.9), progress=progress)
    except ForecastInputError as error:
        raise CliError(f"{file}: {error}") from error
    return history.step, scores


def _results(scores: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - forecaster.backtest.Score
    return [r for key, label in HORIZONS.items() if (r := _summary(scores, key, label)) is not None]


def judged(task: tuple[Path, timedelta, int]) -> tuple[list[dict[str, Any]], str]:
    """Return results of one file, or the reason why there are none; what a process of the pool runs."""
    try:
        results = _results(_scores(*task)[1])
    except (CliError, ValueError) as error:
        return [], str(error)
    return results, "" if results else f"{task[0]}: {UNJUDGED}"


def _backtest_fleet(paths: Sequence[Path], ahead: timedelta, folds: int, *, as_json: bool) -> None:
    from forecaster.fleet import through_workers  # noqa: PLC0415 - slow to import
    from forecaster.workers import TaskError, worker_count  # noqa: PLC0415

    found: dict[int, tuple[list[dict[str, Any]], str]] = {}
    tasks = [(path, ahead, folds) for path in paths]
    with _progress("series", len(tasks)) as progress:
        done = through_workers(judged, tasks, workers=worker_count(), deadline_s=SERIES_DEADLINE_S)
        for k, result in done:
            found[k] = ([], f"{paths[k]}: {result}") if isinstance(result, TaskError) else result
            progress(len(found), len(tasks))
    if as_json:
        print_json(
            [{"file": str(paths[k]), "reason": found[k][1], "results": found[k][0]} for k in sorted(found)]
        )
    else:
        right = ("horizon", "folds", "steps", "vs naive", "bias", "P90 covers")
        shown = table("file", *right, right=right[1:])
        for k in sorted(found):
            for one in found[k][0]:
                shown.add_row(escape(paths[k].name), *_cells(one))
        out().print(shown)
    failures = [found[k][1] for k in sorted(found) if found[k][1]]
    for reason in failures:
        err().print(reason, markup=False)
    if failures:
        raise CliError(f"{len(failures)} of {len(tasks)} files could not be judged.")


def _summary(scores: Any, key: str, label: str) -> dict[str, Any] | None:  # noqa: ANN401 - forecaster.backtest.Score
    judged = [s for s in scores if s.horizon == key and not s.reason and s.step_count]
    if not judged:
        return None
    steps = sum(s.step_count for s in judged)

    def mean(values: list[float]) -> float | None:
        known = [(v, s.step_count) for v, s in zip(values, judged, strict=True) if math.isfinite(v)]
        return sum(v * n for v, n in known) / sum(n for _, n in known) if known else None

    return {
        "horizon": label,
        "folds": len(judged),
        "steps": steps,
        "naive_ratio": mean([s.naive_ratio for s in judged]),
        "bias": mean([s.bias for s in judged]),
        "coverage_p90": mean([s.coverage[2] for s in judged]),
    }


def _print(results: list[dict[str, Any]], step: timedelta, *, as_json: bool) -> None:
    if as_json:
        print_json(results)
        return
    right = ("folds", "steps", "vs naive", "bias", "P90 covers")
    shown = table("horizon", *right, right=right)
    for one in results:
        shown.add_row(*_cells(one))
    out().print(shown)
    out().print(
        f"Steps of {step.total_seconds() / 60:g} min; pinball loss against seasonal naive, under 1 is better."
    )


def _cells(one: dict[str, Any]) -> tuple[str, ...]:
    return (
        one["horizon"],
        str(one["folds"]),
        str(one["steps"]),
        "?" if one["naive_ratio"] is None else f"{one['naive_ratio']:.2f}",
        "?" if one["bias"] is None else f"{100 * one['bias']:+.1f} %",
        "?" if one["coverage_p90"] is None else f"{100 * one['coverage_p90']:.1f} %",
    )


def _plot(scores: Any) -> None:  # noqa: ANN401 - as above
    drawn_keys = [key for key in PLOT_LETTERS if any(s.horizon == key for s in scores)] or ["all"]
    lines: list[Line] = []
    for key in drawn_keys:
        judged = [s for s in scores if s.horizon == key and math.isfinite(s.naive_ratio)]
        if not judged:
            continue
        last = judged[-1].origin_at
        days = [(s.origin_at - last).total_seconds() / 86_400 for s in judged]
        ratios = [s.naive_ratio for s in judged]
        lines.append(Line(HORIZONS[key], PLOT_LETTERS.get(key, "o"), days, ratios))
    if not lines:
        out().print("Nothing to draw: the seasonal naive forecast made no error.")
        return
    first = min(line.across[0] for line in lines)
    lines.append(Line("", "-", [first, 0.0], [1.0, 1.0]))
    draw("Ratio to seasonal naive, 1 is even", "days from the last origin", lines, value_ticks)
