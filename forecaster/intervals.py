"""From a band's held-out residuals to quantiles, in transformed units.

Promises: quantiles ascend; rows at a like time of day count most, the more days there are; few independent
windows widen them; events have residuals of their own once enough were seen, and before that carry the
uncertainty of what was learnt about them.
Refuses: nothing.
Called by: `forecaster.ensemble`.
"""

from dataclasses import dataclass

import numpy as np

from forecaster.models.stack import Band, Plan, nearness
from forecaster.types import Bools, Floats

INFLATE = 1.0
WINDOW_COUNT_MIN = 3.0
EVENT_ROW_COUNT_MIN = 40
CALM_ROW_COUNT_MIN = 50
# Even an exact copy of last week is not certain to the last digit.
SPREAD_MIN = 1e-5
# A quantile reaches no further than errors that were this many times rarer.
RARER = 5.0


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


def _local_quantiles(values: Floats, weight: Floats, levels: Floats) -> Floats:
    """Return quantiles `[G, Q]` of values `[R]` under each row of weights `[G, R]`; see `weighted_quantiles`."""
    order = np.argsort(values)
    w = np.take(weight, order, axis=1)  # indexing would return columns in a row, five times slower to add up
    total = np.cumsum(w, axis=1)
    at = (total - 0.5 * w) / total[:, -1:]
    ordered = values[order]
    return np.stack([np.interp(levels, row, ordered) for row in at])


def _rarer(levels: Floats) -> Floats:
    return np.where(levels > 0.5, 1.0 - (1.0 - levels) / RARER, levels / RARER)


def _limits(band: Band, near: Floats, calm: Bools, levels: Floats) -> Floats:
    """Return `[G, Q]` how far errors of whatever scale reached at each hour of the day.

    In a jump today's scale is large, and the errors of its first hours look huge next to the scale of
    before: their product has no precedent.
    """
    return _local_quantiles((band.target - band.fitted)[calm], near * band.weight[calm], _rarer(levels))


def _event_limits(band: Band, limits: Floats, levels: Floats) -> Floats:
    """Return `limits`, opened as far as errors reached in events."""
    if not band.flagged.any():
        return limits
    missed = (band.target - band.fitted)[band.flagged]
    own = weighted_quantiles(missed, band.weight[band.flagged], _rarer(levels))
    return np.where(levels > 0.5, np.maximum(limits, own), np.minimum(limits, own))


def _hold(dev: Floats, limits: Floats, middle: int) -> Floats:
    """Hold deviations `[R, Q]` within `limits`, which always leave room for the median and zero."""
    centre = dev[:, [middle]]
    inner = np.minimum(centre, 0.0), np.maximum(centre, 0.0)
    return np.clip(dev, np.minimum(limits, inner[0]), np.maximum(limits, inner[1]))


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
    near = np.take(nearness(day, p.days), band.hours[calm], axis=1)
    q = _local_quantiles(standard[calm], near * band.weight[calm], levels)
    # Independent windows of this horizon in the history: few of them have not shown the worst yet.
    windows = max(p.days * float(np.clip(day / p.picks[-1], 1.0, 24.0)), WINDOW_COUNT_MIN)
    centre = q[:, [middle]]
    q = centre + (q - centre) * (1.0 + INFLATE / windows)
    q = np.maximum.accumulate(q + SPREAD_MIN * normal, axis=1)
    limits = _limits(band, near, calm, levels) * (1.0 + INFLATE / windows) + SPREAD_MIN * normal
    event_limits = _event_limits(band, limits, levels)
    now, rows = (
        _hold(
            scale[:, None] * q[hours], np.where(of_event[:, None], event_limits[hours], limits[hours]), middle
        )
        for scale, hours, of_event in (
            (band.scale, band.hours_now, flagged),
            (band.spread, band.hours, band.flagged),
        )
    )
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
