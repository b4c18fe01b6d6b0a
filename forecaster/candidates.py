"""The models that compete for a workload: the shipped ensemble, the same on recent days alone, and the bar.

Promises: every candidate returns a whole `Forecast` - state, quantiles, components - so whoever is champion,
callers see no difference; a candidate without knowledge of events leaves steps in their reach to the ensemble.
Refuses: unknown names, and what `forecast` refuses.
Called by: the controller's forecaster adapter, `forecaster.backtest` and `forecaster.explanation`.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import numpy as np
import pandas as pd

from forecaster.metrics import naive_spread
from forecaster.series import to_grid
from forecaster.service import QUANTILE_LEVELS, forecast
from forecaster.types import Components, Event, Floats, Forecast, ForecastInputError

ENSEMBLE: Final = "ensemble"
RECENT: Final = "recent"
SEASONAL_NAIVE: Final = "seasonal_naive"
CANDIDATES: Final = (ENSEMBLE, RECENT, SEASONAL_NAIVE)
# A whole week and what a forecast needs to know it: all that "recent" sees.
RECENT_DAYS: Final = 10


def forecast_as(
    model: str,
    history: pd.Series,
    horizon_steps: int,
    quantile_levels: Sequence[float] = QUANTILE_LEVELS,
    events: Sequence[Event] = (),
    *,
    step: timedelta | None = None,
    now: datetime | None = None,
    time_zone: str | None = None,
) -> Forecast:
    """Return the forecast of one candidate; arguments and errors as of `forecast`.

    Raises:
        ForecastInputError: The input cannot be used, or `model` is none of `CANDIDATES`.
    """
    if model not in CANDIDATES:
        raise ForecastInputError("model", f"is {model!r}; choose from {', '.join(CANDIDATES)}.")
    index = getattr(history, "index", None)
    if model == RECENT and isinstance(index, pd.DatetimeIndex) and len(index):
        history = history[index > index[-1] - pd.Timedelta(days=RECENT_DAYS)]
    result = forecast(
        history, horizon_steps, quantile_levels, events, step=step, now=now, time_zone=time_zone
    )
    if model != SEASONAL_NAIVE:
        return result
    grid = to_grid(history, step=step, now=now)
    return _as_naive(result, grid.values, season_of(len(grid.values), grid.day))


def season_of(count: int, day: int) -> int:
    """Return the steps after which the seasonal naive repeats: a week once one was seen, else a day."""
    return 7 * day if count > 8 * day else max(day, 1)


def seasonal_naive(seen: Floats, horizon: int, season: int, levels: Sequence[float]) -> Floats:
    """Return `[horizon, Q]`: last season's value, with the quantiles of its own past errors."""
    past = seen[-season:] if len(seen) >= season else seen
    typical = float(np.nanmedian(seen))
    centre = np.where(np.isfinite(past), past, typical)[np.arange(horizon) % len(past)]
    return np.maximum(centre[:, None] + naive_spread(seen, season, levels)[None, :], 0.0)


def _as_naive(result: Forecast, seen: Floats, season: int) -> Forecast:
    """Replace numbers outside the reach of events; what they are made of is then level and season alone."""
    horizon = len(result.index)
    eventful = result.components.event != 0.0
    values = seasonal_naive(seen, horizon, season, result.quantile_levels)
    median = seasonal_naive(seen, horizon, season, (0.5,))[:, 0]
    values[eventful], median[eventful] = result.values[eventful], result.median[eventful]
    event = np.where(eventful, result.components.event, 0.0)
    correction = np.where(eventful, result.components.correction, 0.0)
    usual = median - event - correction
    baseline = np.full(horizon, float(usual.mean()))
    return replace(
        result,
        values=values,
        median=median,
        model_weights={SEASONAL_NAIVE: 1.0},
        components=Components(baseline, np.zeros(horizon), usual - baseline, event, correction),
    )
