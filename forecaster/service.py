"""The public facade: one history in, one forecast out.

Promises: pure and deterministic; every weakness of the history becomes a state and a sentence.
Refuses: input that `to_grid` refuses, and horizons, levels or events that make no sense.
Called by: everyone who wants a forecast.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

import numpy as np
import pandas as pd

from forecaster.daylight import Clock, follow, told, zone_named
from forecaster.ensemble import Prediction, predict
from forecaster.series import Grid, to_grid
from forecaster.types import Components, Event, Floats, Forecast, ForecastInputError, ForecastState

QUANTILE_LEVELS: Final = (0.1, 0.5, 0.9, 0.95, 0.99)
HORIZON_STEPS_MAX = 60_480  # seven days of 10 s steps
EVENT_COUNT_MAX = 10_000
QUANTILE_COUNT_MAX = 99
READY_DAYS = 8.0
SEASON_DAYS = 2.0
STALE_SHARE = 0.2


def forecast(
    history: pd.Series,
    horizon_steps: int,
    quantile_levels: Sequence[float] = QUANTILE_LEVELS,
    events: Sequence[Event] = (),
    *,
    step: timedelta | None = None,
    now: datetime | None = None,
    time_zone: str | None = None,
) -> Forecast:
    """Forecast demand for the `horizon_steps` buckets after the last row of `history`.

    Args:
        history: Demand with a UTC DatetimeIndex of any regular step that divides a day; gaps allowed.
        horizon_steps: Buckets to forecast, 1 to 60 480.
        quantile_levels: Ascending, in (0, 1).
        events: Known windows in history (learnt from, kept out of the season) and in the horizon.
        step: Width of a bucket; only needed when the rows do not show it.
        now: When given, a last bucket that has not ended by `now` is dropped as partial.
        time_zone: IANA zone whose clock the users of this demand keep; when None, changes of the clock are
            followed where demand shows them.

    Raises:
        ForecastInputError: The input cannot be used; `field` names it.
    """
    levels = _checked(horizon_steps, quantile_levels, events)
    zone = None if time_zone is None else zone_named(time_zone, "time_zone")
    grid = to_grid(history, step=step, now=now)
    state, reasons = _judge(grid)
    clock = follow(grid, horizon_steps) if zone is None else told(zone, grid, horizon_steps)
    result = _predict(grid, horizon_steps, np.asarray(levels), tuple(events), clock)
    first = pd.Timestamp(grid.origin_s + grid.step_s, unit="s", tz="UTC")
    index = pd.date_range(first, periods=horizon_steps, freq=pd.Timedelta(seconds=grid.step_s))
    return Forecast(
        state=state,
        values=result.values,
        index=index,
        quantile_levels=levels,
        origin=grid.origin(),
        step=grid.step(),
        median=result.median,
        model_weights=result.model_weights,
        reasons=(*reasons, *result.reasons),
        components=result.components,
        correction_gain=result.correction_gain,
        correction_half_life=result.correction_half_life,
    )


def _predict(
    grid: Grid, horizon: int, levels: Floats, events: tuple[Event, ...], clock: Clock | None
) -> Prediction:
    """Predict on the clock that people keep, where it is known."""
    if clock is None:
        return predict(grid, horizon, levels, events)
    steps = clock.steps(grid, horizon)
    moved = tuple(clock.move_event(event) for event in events)
    result = predict(clock.move_grid(grid), int(steps.max()) + 1, levels, moved)
    parts = {f.name: getattr(result.components, f.name)[steps] for f in fields(result.components)}
    return replace(
        result, values=result.values[steps], median=result.median[steps], components=Components(**parts)
    )


def _checked(horizon_steps: object, levels: Sequence[float], events: Sequence[object]) -> tuple[float, ...]:
    if isinstance(horizon_steps, bool) or not isinstance(horizon_steps, int | np.integer):
        raise ForecastInputError("horizon_steps", f"is {horizon_steps!r}; give a whole number.")
    if not 1 <= horizon_steps <= HORIZON_STEPS_MAX:
        raise ForecastInputError("horizon_steps", f"is {horizon_steps}; give 1 to {HORIZON_STEPS_MAX}.")
    if not 1 <= len(levels) <= QUANTILE_COUNT_MAX:
        raise ForecastInputError(
            "quantile_levels", f"has {len(levels)} levels; give 1 to {QUANTILE_COUNT_MAX}."
        )
    if not all(0.0 < level < 1.0 for level in levels):
        raise ForecastInputError("quantile_levels", f"must lie between 0 and 1, not {tuple(levels)}.")
    if any(right <= left for left, right in pairwise(levels)):
        raise ForecastInputError("quantile_levels", f"must ascend, not {tuple(levels)}.")
    if len(events) > EVENT_COUNT_MAX:
        raise ForecastInputError("events", f"has {len(events)} events; pass at most {EVENT_COUNT_MAX}.")
    for event in events:
        if not isinstance(event, Event):
            raise ForecastInputError("events", f"holds a {type(event).__name__}; give forecaster.Event.")
    return tuple(float(level) for level in levels)


def _judge(grid: Grid) -> tuple[ForecastState, tuple[str, ...]]:
    """Return the state and its sentences from what the history holds, before any model runs."""
    known = np.isfinite(grid.values)
    seen = np.flatnonzero(known)
    # A day counts that was observed by half: one old row and an hour of new ones are no history of weeks.
    span_days = min(len(grid.values) - int(seen[0]), 2 * len(seen)) / grid.day
    reasons: list[str] = []
    state = ForecastState.READY
    if span_days < SEASON_DAYS and grid.day > 1:
        state = ForecastState.INSUFFICIENT_HISTORY
        reasons.append(
            f"{span_days * 24:.1f} h of history show no season; two days are needed, so only the level is known."
        )
    elif span_days < READY_DAYS:
        state = ForecastState.INSUFFICIENT_HISTORY if grid.day == 1 else ForecastState.DEGRADED
        reasons.append(f"{span_days:.1f} days of history show no week; weekdays and weekends look alike.")
    missing = int((~known[-min(len(known), grid.day) :]).sum())
    tail = len(known) - 1 - int(seen[-1])
    if tail > max(2, STALE_SHARE * grid.day / 24):
        state = max(state, ForecastState.DEGRADED, key=_SEVERITY.__getitem__)
        reasons.append(f"The newest {tail} buckets are missing; the level may have moved since.")
    elif missing > STALE_SHARE * grid.day and not grid.outage_count:
        state = max(state, ForecastState.DEGRADED, key=_SEVERITY.__getitem__)
        reasons.append(f"{missing} buckets of the last day are missing.")
    if grid.outage_count:
        reasons.append(f"{grid.outage_count} zeros look like outages and were left out.")
    if grid.absurd_count:
        reasons.append(f"{grid.absurd_count} readings look like a reset counter and were left out.")
    return state, tuple(reasons)


_SEVERITY: Final = {
    ForecastState.READY: 0,
    ForecastState.DEGRADED: 1,
    ForecastState.INSUFFICIENT_HISTORY: 2,
}
