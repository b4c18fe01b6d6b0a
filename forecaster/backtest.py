"""Judge the forecaster on a history's own past: rolling origins, one row of scores per fold and horizon.

Promises: each fold sees rows up to its origin only (and events, which are known in advance); the seasonal
naive is judged on the same steps; a fold that cannot be forecast is a row with its reason, not a gap.
Refuses: histories too short for one fold.
Called by: the command line and `GetAccuracy`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from functools import partial

import numpy as np
import pandas as pd

from forecaster.candidates import (
    CANDIDATES,
    ENSEMBLE,
    RECENT,
    RECENT_DAYS,
    SEASONAL_NAIVE,
    forecast_as,
    season_of,
    seasonal_naive,
)
from forecaster.folds import Fold, rolling
from forecaster.metrics import bias, coverage, mean_pinball, naive_scale
from forecaster.series import DAY_S, Grid, as_read, cleaned, to_grid
from forecaster.service import QUANTILE_LEVELS, forecast
from forecaster.types import Event, Floats, ForecastInputError

Forecaster = Callable[[pd.Series, int, Sequence[float], Sequence[Event]], Floats]


@dataclass(frozen=True, slots=True)
class Score:
    """One fold, one stretch of the horizon.

    Attributes:
        origin_at: Last row the forecast saw.
        horizon: `short` (the first hour), `day` (24 hours) or `all`.
        step_count: Observed steps that were judged.
        pinball: Mean pinball loss, units of the history.
        scaled: The same over the weekly (daily, in short histories) seasonal naive's in-sample error.
        naive_ratio: The same over the seasonal naive's loss on these steps, its quantiles from its own errors.
        bias: Median's error as a share of demand; positive is too high.
        coverage: Share of steps at or below each quantile.
        reason: Why there is no forecast; empty when there is one.
    """

    origin_at: datetime
    horizon: str
    step_count: int
    pinball: float
    scaled: float
    naive_ratio: float
    bias: float
    coverage: tuple[float, ...]
    reason: str


def backtest(
    history: pd.Series,
    horizon_steps: int,
    fold_count: int = 8,
    *,
    quantile_levels: Sequence[float] = QUANTILE_LEVELS,
    events: Sequence[Event] = (),
    stride: timedelta | None = None,
    train_max: timedelta | None = timedelta(weeks=8),
    forecaster: Forecaster | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Score, ...]:
    """Return scores, oldest fold first.

    Args:
        history: As for `forecast`.
        horizon_steps: Steps to forecast from each origin.
        fold_count: Origins wanted; fewer when the history is short.
        quantile_levels: As for `forecast`.
        events: Known windows; each fold is given all of them, as planners register them in advance.
        stride: Time between origins; by default the horizon plus a golden fraction of a day, so that
            origins visit all times of day.
        train_max: History a fold may use; everything when None.
        forecaster: Another method to judge, returning `[horizon, Q]`; ours when None.
        progress: Called with folds done and folds in all.

    Raises:
        ForecastInputError: The history is too short for one fold, or cannot be used at all.
    """
    grid = as_read(history)
    judged = cleaned(grid).values
    day = grid.day
    apart = (
        horizon_steps + max(1, round(0.382 * day))
        if stride is None
        else int(stride.total_seconds()) // grid.step_s
    )
    learn = max(2 * day, 14)
    most = None if train_max is None else max(int(train_max.total_seconds()) // grid.step_s, learn)
    folds = rolling(
        len(grid.values), horizon_steps, fold_count, train_min=learn, stride=apart, train_max=most
    )
    run = _ours if forecaster is None else forecaster
    scores: list[Score] = []
    for done, fold in enumerate(folds, start=1):
        scores += _score(grid, judged, fold, tuple(quantile_levels), events, run)
        if progress is not None:
            progress(done, len(folds))
    return tuple(scores)


def table(scores: Sequence[Score], quantile_levels: Sequence[float] = QUANTILE_LEVELS) -> pd.DataFrame:
    """Return scores as a frame, one column per field and one per level's coverage."""
    plain = [f.name for f in fields(Score) if f.name != "coverage"]
    frame = pd.DataFrame([{name: getattr(score, name) for name in plain} for score in scores], columns=plain)
    for k, level in enumerate(quantile_levels):
        frame[f"coverage_{level:g}"] = [score.coverage[k] for score in scores]
    return frame


def _ours(history: pd.Series, horizon: int, levels: Sequence[float], events: Sequence[Event]) -> Floats:
    return forecast(history, horizon, levels, events).values


def _score(
    grid: Grid,
    judged: Floats,
    fold: Fold,
    levels: tuple[float, ...],
    events: Sequence[Event],
    run: Forecaster,
) -> list[Score]:
    start_s = grid.start_s + fold.train_first * grid.step_s
    read = replace(grid, values=grid.values[fold.train_first : fold.origin + 1], start_s=start_s)
    seen = cleaned(read).values
    actual = judged[fold.origin + 1 : fold.test_last + 1]
    index = pd.date_range(
        pd.Timestamp(start_s, unit="s", tz="UTC"),
        periods=len(seen),
        freq=pd.Timedelta(seconds=grid.step_s),
    )
    origin_at = index[-1].to_pydatetime()
    season = season_of(len(seen), grid.day)
    scale = naive_scale(seen, season)
    stretches = [("all", fold.horizon)]
    if grid.day > 1:
        hour = max(1, 3600 * grid.day // DAY_S)
        stretches = [("short", min(hour, fold.horizon)), ("day", min(grid.day, fold.horizon)), *stretches]
    unknown = (float("nan"),) * len(levels)
    try:
        values = run(pd.Series(read.values, index=index), fold.horizon, levels, events)
    except ForecastInputError as error:
        nan = float("nan")
        return [Score(origin_at, name, 0, nan, nan, nan, nan, unknown, str(error)) for name, _ in stretches]
    naive = seasonal_naive(seen, fold.horizon, season, levels)
    middle = int(np.argmin(np.abs(np.asarray(levels) - 0.5)))
    scores = []
    for name, count in stretches:
        a, v = actual[:count], values[:count]
        loss = mean_pinball(a, v, levels)
        naive_loss = mean_pinball(a, naive[:count], levels)
        scores.append(
            Score(
                origin_at=origin_at,
                horizon=name,
                step_count=int(np.isfinite(a).sum()),
                pinball=loss,
                scaled=loss / scale if scale > 0 else float("nan"),
                naive_ratio=loss / naive_loss if naive_loss > 0 else float("nan"),
                bias=bias(a, v[:, middle]),
                coverage=coverage(a, v, levels),
                reason="",
            )
        )
    return scores


@dataclass(frozen=True, slots=True)
class ModelScore:
    """One candidate over all folds of one stretch, weighed by observed steps; NaN where nothing can be said.

    Attributes:
        model: Candidate.
        horizon: `short`, `day` or `all`, as in `Score`.
        step_count: Observed steps that were judged.
        pinball: Mean pinball loss, units of the history.
        naive_ratio: The same over the seasonal naive's loss on the same steps.
        bias: Median's error as a share of demand; positive is too high.
        coverage: Share of steps at or below each quantile.
    """

    model: str
    horizon: str
    step_count: int
    pinball: float
    naive_ratio: float
    bias: float
    coverage: tuple[float, ...]


def compare(
    history: pd.Series,
    horizon_steps: int,
    fold_count: int = 4,
    *,
    quantile_levels: Sequence[float] = QUANTILE_LEVELS,
    events: Sequence[Event] = (),
    time_zone: str | None = None,
) -> tuple[int, tuple[ModelScore, ...]]:
    """Judge every candidate on the same folds; return how many folds, and scores by candidate and stretch.

    A recent-only candidate is left out where the history is no longer than what it would see.

    Raises:
        ForecastInputError: As for `backtest`.
    """
    grid = to_grid(history)
    names = [m for m in CANDIDATES if m != RECENT or len(grid.values) > (RECENT_DAYS + 1) * grid.day]
    runs: dict[str, Forecaster] = {
        ENSEMBLE: partial(_by, ENSEMBLE, time_zone),
        RECENT: partial(_by, RECENT, time_zone),
        SEASONAL_NAIVE: _naive,
    }
    by_model = {
        name: backtest(
            history,
            horizon_steps,
            fold_count,
            quantile_levels=quantile_levels,
            events=events,
            forecaster=runs[name],
        )
        for name in names
    }
    scores: list[ModelScore] = []
    stretches = list(dict.fromkeys(score.horizon for score in by_model[ENSEMBLE]))
    for stretch in stretches:
        base = _sum_up(SEASONAL_NAIVE, stretch, by_model[SEASONAL_NAIVE])
        for name in names:
            made = _sum_up(name, stretch, by_model[name])
            ratio = made.pinball / base.pinball if base.pinball > 0 else float("nan")
            scores.append(replace(made, naive_ratio=ratio))
    return sum(score.horizon == stretches[0] for score in by_model[ENSEMBLE]), tuple(scores)


def _by(
    model: str,
    time_zone: str | None,
    history: pd.Series,
    horizon: int,
    levels: Sequence[float],
    events: Sequence[Event],
) -> Floats:
    return forecast_as(model, history, horizon, levels, events, time_zone=time_zone).values


def _naive(history: pd.Series, horizon: int, levels: Sequence[float], events: Sequence[Event]) -> Floats:
    del events  # the bar knows none
    grid = to_grid(history)
    return seasonal_naive(grid.values, horizon, season_of(len(grid.values), grid.day), levels)


def _sum_up(model: str, stretch: str, scores: Sequence[Score]) -> ModelScore:
    mine = [s for s in scores if s.horizon == stretch and s.step_count and not s.reason]
    weight = np.array([s.step_count for s in mine], dtype=np.float64)
    if not mine:
        nan = float("nan")
        return ModelScore(model, stretch, 0, nan, nan, nan, ())

    def mean(values: Sequence[float]) -> float:
        column = np.asarray(values, dtype=np.float64)
        known = np.isfinite(column)
        return float(column[known] @ weight[known] / weight[known].sum()) if known.any() else float("nan")

    return ModelScore(
        model=model,
        horizon=stretch,
        step_count=int(weight.sum()),
        pinball=mean([s.pinball for s in mine]),
        naive_ratio=float("nan"),
        bias=mean([s.bias for s in mine]),
        coverage=tuple(mean(column) for column in zip(*(s.coverage for s in mine), strict=True)),
    )
