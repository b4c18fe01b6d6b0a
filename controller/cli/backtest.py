"""``forecrest backtest``: would the forecaster have been right on your own history?"""

import math
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from controller.cli.common import (
    WIDTH_MAX,
    AsJson,
    CliError,
    err,
    is_colour_wanted,
    out,
    parse_duration,
    print_json,
    table,
)
from controller.history import read_history

PLOT_ROWS = 14
PLOT_MARKERS = {"short": "s", "day": "o"}
HORIZONS = {"short": "first hour", "day": "first day", "all": "whole horizon"}


def backtest(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV with timestamp,value; may be gzipped.")],
    horizon: Annotated[str, typer.Option(help="How far each fold forecasts: 6h, 1d.")] = "1d",
    folds: Annotated[int, typer.Option(help="Forecasts to make and judge.", min=1, max=200)] = 8,
    plot: Annotated[
        bool, typer.Option("--plot", help="Draw the ratio to seasonal naive, fold by fold.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Score the forecaster on a history, fold by fold, each seeing only what came before it.

    A ratio under 1 is better than seasonal naive (the same time a day or a week before). Coverage is how often
    demand stayed at or below the P90: 90 % is right.

    Example: `forecrest backtest requests.csv.gz --horizon 1d --folds 12`
    """
    import pandas as pd  # noqa: PLC0415 - slow to import, and so is the forecaster

    from forecaster import ForecastInputError  # noqa: PLC0415
    from forecaster.backtest import backtest as score  # noqa: PLC0415

    history = read_history(file)
    steps = max(1, math.ceil(parse_duration(horizon, "--horizon") / history.step))
    series = pd.Series(
        [row.value for row in history.rows], index=pd.DatetimeIndex([row.at for row in history.rows])
    )
    columns = (TextColumn("backtest"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=err(), transient=True) as progress:
        bar = progress.add_task("backtest", total=folds)
        try:
            scores = score(
                series,
                steps,
                folds,
                quantile_levels=(0.1, 0.5, 0.9),
                progress=lambda done, total: progress.update(bar, completed=done, total=total),
            )
        except ForecastInputError as error:
            raise CliError(f"{file}: {error}") from error
    results = [r for key, label in HORIZONS.items() if (r := _summary(scores, key, label)) is not None]
    if not results:
        raise CliError(f"{file}: no fold could be judged; give a longer history or a shorter --horizon.")
    _print(results, history.step, as_json=as_json)
    if plot and not as_json:
        _plot(scores)


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
        shown.add_row(
            one["horizon"],
            str(one["folds"]),
            str(one["steps"]),
            "?" if one["naive_ratio"] is None else f"{one['naive_ratio']:.2f}",
            "?" if one["bias"] is None else f"{100 * one['bias']:+.1f} %",
            "?" if one["coverage_p90"] is None else f"{100 * one['coverage_p90']:.1f} %",
        )
    out().print(shown)
    out().print(f"Steps of {step}; pinball loss against seasonal naive, under 1 is better.")


def _plot(scores: Any) -> None:  # noqa: ANN401 - as above
    import plotext  # noqa: PLC0415 - only plots need it

    figure: Any = plotext.figure
    figure.clear()
    figure.plot_size(WIDTH_MAX - 2, PLOT_ROWS)
    figure.theme("simple" if is_colour_wanted() else "colorless")
    drawn_keys = [key for key in PLOT_MARKERS if any(s.horizon == key for s in scores)] or ["all"]
    for key in drawn_keys:
        judged = [s for s in scores if s.horizon == key and math.isfinite(s.naive_ratio)]
        if not judged:
            continue
        last = judged[-1].origin_at
        days = [(s.origin_at - last).total_seconds() / 86_400 for s in judged]
        marker = "hd" if is_colour_wanted() else PLOT_MARKERS.get(key, "o")
        line = figure.signal(days, [s.naive_ratio for s in judged], marker=marker)
        figure.draw(line.lines().label(HORIZONS[key]))
        even = figure.signal([days[0], days[-1]], [1.0, 1.0], marker="-")
        figure.draw(even.lines())
    figure.title("ratio to seasonal naive, 1 is even")
    figure.label("days before the last origin")
    drawn = str(figure.build())
    typer.echo(drawn if is_colour_wanted() else plotext.uncolorize(drawn))
