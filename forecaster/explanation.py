"""What a forecast's median is made of, in parts that add up to it exactly.

Promises: pure; baseline + trend + season + event + correction equals the median at every step, bit for bit and
in any order of adding, because all of them are whole multiples of one power of two.
Refuses: what `forecast` refuses.
Called by: people who ask why, through `explain`; the controller's adapter, which has the forecast already.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import floor, log2

import numpy as np
import pandas as pd

from forecaster.candidates import ENSEMBLE, forecast_as
from forecaster.series import Grid, to_grid
from forecaster.types import Event, Floats, Forecast, ForecastState

# The usual level and shape are those of up to so many whole weeks before the forecast.
WEEK_COUNT_MAX = 4
# Multiples of 2^-40 of the peak add up exactly in doubles, and are far finer than any demand is known.
QUANTUM_BITS = 40


@dataclass(frozen=True, slots=True)
class Explanation:
    """Parts `[horizon_steps]` of the median, units of the history.

    Attributes:
        model: Candidate that made the forecast.
        state: How far to trust it; `reasons` says why.
        index: Start of each bucket, UTC.
        step: Width of a bucket.
        median: What the parts add up to, exactly; the forecast's median to one part in 10^12 of the largest part.
        baseline: Mean demand of up to four whole weeks before, without events; the same for every step.
        trend: How far the level has moved from there.
        season: Shape of day and week around the level.
        event: Effect of events.
        correction: Pull of the newest observations away from the usual shape.
        model_weights: Member -> share of the forecast.
        sentence: The highest step, in one sentence.
        quantum: The power of two that all parts are whole multiples of.
    """

    model: str
    state: ForecastState
    index: pd.DatetimeIndex
    step: timedelta
    median: Floats
    baseline: Floats
    trend: Floats
    season: Floats
    event: Floats
    correction: Floats
    model_weights: dict[str, float]
    reasons: tuple[str, ...]
    sentence: str
    quantum: float


def explain(
    history: pd.Series,
    horizon_steps: int,
    events: Sequence[Event] = (),
    *,
    model: str = ENSEMBLE,
    step: timedelta | None = None,
    now: datetime | None = None,
) -> Explanation:
    """Forecast and say what the median is made of; arguments and errors as of `forecast`."""
    result = forecast_as(model, history, horizon_steps, (0.5,), events, step=step, now=now)
    return decompose(result, history, events, model=model, now=now)


def decompose(
    result: Forecast,
    history: pd.Series,
    events: Sequence[Event] = (),
    *,
    model: str = ENSEMBLE,
    now: datetime | None = None,
) -> Explanation:
    """Split the median of `result`, which was made from `history` and `events`."""
    grid = to_grid(history, step=result.step, now=now)
    parts = result.components
    still = parts.baseline + parts.trend + parts.season
    usual = _usual(grid, len(still), events)
    level = float(usual.mean())
    drift = _day_mean(still - usual, grid.day)
    whole = np.full(len(still), level)
    # The largest of all: a level that has collapsed leaves parts far larger than the median.
    unit = quantum(result.median, whole, drift, still, parts.event, parts.correction)
    median = rounded(result.median, unit)
    baseline = rounded(whole, unit)
    trend, event = rounded(drift, unit), rounded(parts.event, unit)
    correction = rounded(parts.correction, unit)
    # The season takes what rounding left, so that nothing is lost.
    season = median - baseline - trend - event - correction
    return Explanation(
        model=model,
        state=result.state,
        index=result.index,
        step=result.step,
        median=median,
        baseline=baseline,
        trend=trend,
        season=season,
        event=event,
        correction=correction,
        model_weights=dict(result.model_weights),
        reasons=result.reasons,
        sentence=describe(
            result.index[int(median.argmax())], median, baseline, trend, season, event, correction
        ),
        quantum=unit,
    )


def quantum(*parts: Floats) -> float:
    """Return the power of two that `parts` are rounded to."""
    peak = max(float(np.abs(part).max(initial=0.0)) for part in parts)
    return 2.0 ** (floor(log2(peak)) - QUANTUM_BITS) if peak > 0.0 else 2.0**-QUANTUM_BITS


def rounded(values: Floats, unit: float) -> Floats:
    """Return `values` as whole multiples of `unit`, a power of two."""
    return np.asarray(np.round(values / unit) * unit)


def describe(at: datetime, median: Floats, *parts: Floats) -> str:
    """Say what the highest step is made of; `parts` are baseline, trend, season, event and correction."""
    k = int(median.argmax())
    names = ("usual level", "trend", "time of day and week", "events", "newest observations")
    shares = [
        f"{part[k]:+,.0f} {name}" for name, part in zip(names, parts, strict=True) if abs(part[k]) >= 0.5
    ]
    made = " ".join(shares).removeprefix("+").replace(",", " ") or "nothing"
    return f"Highest at {at:%Y-%m-%d %H:%M} UTC: {median[k]:,.0f}".replace(",", " ") + f" = {made}."


def _usual(grid: Grid, horizon: int, events: Sequence[Event]) -> Floats:
    """Return `[horizon]`: mean demand at each step's time of week (day, level) over whole weeks, without events."""
    seen = grid.values.copy()
    for event in events:
        low = (event.start.timestamp() - grid.start_s) / grid.step_s
        high = (event.end.timestamp() - grid.start_s) / grid.step_s
        seen[max(0, floor(low)) : max(0, floor(high) + 1)] = np.nan
    if not bool(np.isfinite(seen).any()):
        seen = grid.values
    usual = np.full(horizon, float(np.nanmean(seen)))
    for period, most in ((grid.day, 7 * WEEK_COUNT_MAX), (7 * grid.day, WEEK_COUNT_MAX)):
        count = min(len(seen) // period, most)
        if not count:
            continue
        rows = seen[-count * period :].reshape(count, period)
        known = np.isfinite(rows)
        number = known.sum(axis=0)
        mean = np.where(known, rows, 0.0).sum(axis=0) / np.maximum(number, 1)
        at = np.arange(horizon) % period
        usual = np.where(number[at] > 0, mean[at], usual)
    return usual


def _day_mean(values: Floats, day: int) -> Floats:
    """Return the centred mean over a day of steps, over what there is of it at the ends."""
    width = min(day, len(values))
    ones = np.ones(width)
    sums = np.convolve(values, ones, mode="same")
    return np.asarray(sums / np.convolve(np.ones(len(values)), ones, mode="same"))
