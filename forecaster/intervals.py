"""From a band's held-out residuals to quantiles, in transformed units.

Promises: quantiles ascend; few independent windows widen them; events have residuals of their own once
enough were seen, and before that carry the uncertainty of what was learnt about them.
Refuses: nothing.
Called by: `forecaster.ensemble`.
"""

from dataclasses import dataclass

import numpy as np

from forecaster.models.stack import Band, Plan
from forecaster.types import Bools, Floats

INFLATE = 1.0
WINDOW_COUNT_MIN = 3.0
EVENT_ROW_COUNT_MIN = 40
CALM_ROW_COUNT_MIN = 50
# Even an exact copy of last week is not certain to the last digit.
SPREAD_MIN = 1e-5


@dataclass(frozen=True, slots=True)
class Spread:
    """Deviations from the location, to be added to it.

    Attributes:
        now: `[H, Q]` for the forecast.
        rows: `[R, Q]` for the training rows, to score the model with.
    """

    now: Floats
    rows: Floats


def weighted_quantiles(values: Floats, weight: Floats, levels: Floats) -> Floats:
    """Return quantiles `[Q]` of weighted values, linear between the middles of their weights."""
    order = np.argsort(values)
    w = weight[order]
    at = (np.cumsum(w) - 0.5 * w) / w.sum()
    return np.interp(levels, at, values[order])


def spread(
    band: Band, p: Plan, day: int, levels: Floats, normal: Floats, flagged: Bools, event_spread: Floats
) -> Spread:
    """Return the deviations of a band.

    Args:
        band: The fitted band.
        p: The plan it was fitted by.
        day: Steps per day.
        levels: `[Q]`, ascending, with 0.5 among them.
        normal: `[Q]` standard normal quantiles of `levels`.
        flagged: `[H]` which steps lie within reach of an event.
        event_spread: `[H]` standard deviation of the event's effect.
    """
    middle = int(np.searchsorted(levels, 0.5))
    standard = (band.target - band.fitted) / band.spread
    calm = ~band.flagged
    if calm.sum() < CALM_ROW_COUNT_MIN:
        calm = np.ones(len(standard), dtype=bool)
    q = weighted_quantiles(standard[calm], band.weight[calm], levels)
    # Independent windows of this horizon in the history: few of them have not shown the worst yet.
    windows = max(p.days * float(np.clip(day / p.picks[-1], 1.0, 24.0)), WINDOW_COUNT_MIN)
    q = q[middle] + (q - q[middle]) * (1.0 + INFLATE / windows)
    q = np.maximum.accumulate(q + SPREAD_MIN * normal)
    now = band.scale[:, None] * q[None, :]
    rows = band.spread[:, None] * q[None, :]
    if band.closed.any() and len(band.idle) >= CALM_ROW_COUNT_MIN:
        own = weighted_quantiles(band.idle, band.idle_weight, levels)
        now[band.closed] = own[None, :] - band.location[band.closed, None]
    if flagged.any():
        if band.flagged.sum() >= EVENT_ROW_COUNT_MIN:
            own = weighted_quantiles(standard[band.flagged], band.weight[band.flagged], levels)
            now[flagged] = band.scale[flagged, None] * own[None, :]
            rows[band.flagged] = band.spread[band.flagged, None] * own[None, :]
        else:
            centre = now[flagged][:, [middle]]
            extra = event_spread[flagged, None] * normal[None, :]
            now[flagged] = centre + np.sign(normal) * np.hypot(now[flagged] - centre, extra)
    return Spread(now, rows)
