"""Scores of quantile forecasts: small pure functions; NaN actuals are left out, never counted as zero.

Promises: every score is a mean over what was observed, NaN when nothing was.
Refuses: shapes that do not belong together.
Called by: `forecaster.backtest`, `forecaster.selection` and whoever tracks live accuracy.
"""

from collections.abc import Sequence

import numpy as np

from forecaster.types import Floats, ForecastInputError


def pinball(actual: Floats, values: Floats, levels: Sequence[float]) -> Floats:
    """Return the pinball loss `[..., Q]` of each quantile; NaN where `actual` `[...]` is NaN."""
    _check(actual, values, levels)
    tau = np.asarray(levels, dtype=np.float64)
    missed = actual[..., None] - values
    return np.asarray(np.maximum(tau * missed, (tau - 1.0) * missed))


def mean_pinball(actual: Floats, values: Floats, levels: Sequence[float]) -> float:
    """Return the loss averaged over observed steps and levels."""
    return known_mean(pinball(actual, values, levels))


def coverage(actual: Floats, values: Floats, levels: Sequence[float]) -> tuple[float, ...]:
    """Return for each level the share of observed steps at or below its quantile."""
    _check(actual, values, levels)
    known = np.isfinite(actual)
    if not bool(known.any()):
        return (float("nan"),) * len(levels)
    return tuple(float(share) for share in (actual[known][:, None] <= values[known]).mean(axis=0))


def bias(actual: Floats, median: Floats) -> float:
    """Return the sum of median - actual over the sum of actual: 0.1 means 10 % too high."""
    known = np.isfinite(actual)
    total = float(actual[known].sum())
    return float((median[known] - actual[known]).sum()) / total if total > 0 else float("nan")


def naive_scale(history: Floats, season: int) -> float:
    """Return the in-sample mean absolute error of repeating the value of `season` steps before."""
    if season < 1:
        raise ForecastInputError("season", f"is {season}; give at least 1 step.")
    if len(history) <= season:
        return float("nan")
    return known_mean(np.abs(history[season:] - history[:-season]))


def naive_spread(seen: Floats, season: int, levels: Sequence[float]) -> Floats:
    """Return `[Q]` quantiles of the errors of repeating the value of `season` steps before; zeros without any."""
    errors = seen[season:] - seen[:-season] if len(seen) > season else np.zeros(0)
    errors = errors[np.isfinite(errors)]
    return np.quantile(errors, levels) if len(errors) else np.zeros(len(levels))


def known_mean(values: Floats) -> float:
    """Return the mean of what is a number; NaN when nothing is."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def _check(actual: Floats, values: Floats, levels: Sequence[float]) -> None:
    if values.shape != (*actual.shape, len(levels)):
        raise ForecastInputError("values", f"has shape {values.shape}, not {(*actual.shape, len(levels))}.")
