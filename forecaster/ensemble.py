"""Combine the models into quantiles."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from forecaster.series import Grid
from forecaster.types import Components, Event, Floats


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the models say, before it gets an index and a state."""

    values: Floats
    median: Floats
    model_weights: Mapping[str, float]
    reasons: tuple[str, ...]
    components: Components
    correction_gain: float
    correction_half_life: timedelta


def predict(grid: Grid, horizon: int, levels: Floats, _events: tuple[Event, ...]) -> Prediction:
    """Return quantiles `[horizon, len(levels)]`: last week's shape, scaled to the level of the last day."""
    known = grid.values[np.isfinite(grid.values)]
    n, day = len(grid.values), grid.day
    floor = 0.01 * float(np.mean(known)) or 1.0
    z = np.log(grid.values + floor)
    lag = next((k for k in (7 * day, day) if n >= k + max(day, 2)), 0)
    ahead = np.arange(n, n + horizon)
    if lag:
        past = ahead - lag * ((ahead - n) // lag + 1)
        season = np.where(np.isfinite(z[past]), z[past], np.nanmedian(z))
        residual = z[lag:] - z[:-lag]
        residual = residual[np.isfinite(residual)]
    else:
        season = np.full(horizon, float(np.log(known[-12:] + floor).mean()))
        residual = np.diff(np.log(known + floor)) * 3.0
    if not len(residual):
        residual = np.zeros(1)
    spread = np.quantile(residual - np.median(residual), levels)
    values = np.maximum(np.exp(season[:, None] + spread[None, :]) - floor, 0.0)
    values = np.maximum.accumulate(values, axis=1)
    median = np.maximum(np.exp(season) - floor, 0.0)
    zero = np.zeros(horizon)
    level = np.full(horizon, float(np.mean(median)))
    return Prediction(
        values=values,
        median=median,
        model_weights={"seasonal_naive": 1.0},
        reasons=(),
        components=Components(level, zero, median - level, zero, zero),
        correction_gain=0.7,
        correction_half_life=timedelta(hours=3),
    )
