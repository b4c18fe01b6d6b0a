"""Scores of quantile forecasts: pinball loss, coverage, scale, geometric means. Pure numpy.

Promises: missing actuals (NaN) are not scored; an empty mean is NaN, never 0.
Refuses: nothing; shapes are asserted.
Called by: the accuracy benchmark. Written apart from `forecaster`, so that it cannot share its mistakes.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEVELS = (0.1, 0.5, 0.9, 0.95, 0.99)


def pinball(actual: Floats, values: Floats, levels: Sequence[float] = LEVELS) -> Floats:
    """Return the pinball loss averaged over `levels` for each bucket, `[h]`, NaN where `actual` is.

    Args:
        actual: `[h]`.
        values: `[h, len(levels)]`, same units.
        levels: Quantile levels of the columns.
    """
    assert values.shape == (len(actual), len(levels)), (values.shape, len(actual), len(levels))
    error = actual[:, None] - values
    tau = np.asarray(levels)
    loss: Floats = np.maximum(tau * error, (tau - 1) * error).mean(axis=1)
    return loss


def covered(actual: Floats, values: Floats, levels: Sequence[float] = LEVELS) -> Floats:
    """Return 1 where `actual` is at most the quantile, else 0, `[h, len(levels)]`; NaN where missing."""
    assert values.shape == (len(actual), len(levels)), (values.shape, len(actual), len(levels))
    return np.where(np.isnan(actual)[:, None], np.nan, (actual[:, None] <= values).astype(np.float64))


def seasonal_scale(history: Floats, season: int) -> float:
    """Return the in-sample mean absolute error of the seasonal-naive forecast; NaN when it has none."""
    if len(history) <= season:
        return float("nan")
    return nanmean(np.abs(history[season:] - history[:-season]))


def nanmean(values: Floats) -> float:
    """Return the mean of what is not NaN; NaN, without a warning, when nothing is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of the positive finite values; NaN when there is none."""
    known = np.array([value for value in values if np.isfinite(value) and value > 0])
    return float(np.exp(np.log(known).mean())) if len(known) else float("nan")
