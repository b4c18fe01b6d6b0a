"""Correct stored forecasts by the newest observations: vectorised over workloads, no refit.

Promises: one numpy pass for all workloads; a workload without fresh observations keeps its forecast
unchanged; corrected quantiles stay >= 0 and monotone; a single odd observation is not believed.
Refuses: arrays whose shapes do not belong together.
Called by: the controller's minute cycle, with the quantiles that the last refit stored.
"""

import numpy as np

from forecaster.types import Floats, ForecastInputError

# A level may change by this factor within one refit period; beyond it the observation is suspect.
FACTOR_MAX = 20.0


def nowcast(
    values: Floats,
    observed: Floats,
    expected: Floats,
    *,
    gain: Floats | float = 0.7,
    half_life_steps: Floats | float = 36.0,
    memory_steps: float = 3.0,
) -> Floats:
    """Return `values` corrected by how far the newest observations lie from their forecast.

    The level error of workload w is the exponentially weighted median-like mean of
    log((observed + floor) / (expected + floor)), newest first; it is applied at `gain` to the first
    step and halves every `half_life_steps`.

    Args:
        values: `[W, H, Q]` stored quantiles for the steps after the newest observation.
        observed: `[W, K]` newest observations, oldest first; NaN where nothing was observed.
        expected: `[W, K]` the stored median for the same steps; NaN where no forecast existed.
        gain: `Forecast.correction_gain`, one or `[W]`.
        half_life_steps: `Forecast.correction_half_life` in steps, one or `[W]`.
        memory_steps: Half-life of the weight of past observations, steps.

    Returns:
        `[W, H, Q]`, a new array.

    Raises:
        ForecastInputError: Shapes that do not fit, or numbers outside their range.
    """
    _check(values, observed, expected, gain, half_life_steps)
    workloads, horizon, _ = values.shape
    count = observed.shape[1]
    if not (workloads and horizon and count):
        return values.copy()
    known = np.isfinite(observed) & np.isfinite(expected)
    # A floor of 2 % of usual demand (never 0) keeps the ratio of two tiny numbers from mattering.
    usual = np.maximum(np.nan_to_num(expected).max(axis=1), values.max(axis=(1, 2)))
    floor = np.where(usual > 0, 0.02 * usual, 1.0)[:, None]
    ratio = np.log((np.where(known, observed, 0.0) + floor) / (np.where(known, expected, 0.0) + floor))
    error = _level_error(ratio, known, memory_steps)
    bound = float(np.log(FACTOR_MAX))
    first = np.clip(error * np.asarray(gain, dtype=np.float64), -bound, bound)
    half_life = np.broadcast_to(np.asarray(half_life_steps, dtype=np.float64), (workloads,))
    fade = 0.5 ** (np.arange(horizon)[None, :] / half_life[:, None])
    factor = np.exp(first[:, None] * fade)[:, :, None]
    # Scaling up from a forecast of zero needs the floor too; scaling down must not go below zero.
    lifted = (values + floor[:, :, None]) * factor - floor[:, :, None]
    corrected = np.where(factor > 1.0, lifted, values * factor)
    corrected[~known.any(axis=1)] = values[~known.any(axis=1)]
    return np.maximum(np.maximum.accumulate(corrected, axis=2), 0.0)


def _level_error(ratio: Floats, known: np.ndarray, memory_steps: float) -> Floats:
    """Return `[W]`: the weighted mean of log ratios after one outlier-robust clip around the median."""
    count = ratio.shape[1]
    weight = np.where(known, 0.5 ** (np.arange(count - 1, -1, -1) / memory_steps), 0.0)
    masked = np.where(known, ratio, np.nan)
    some = known.any(axis=1)
    error = np.zeros(len(ratio))
    if not some.any():
        return error
    rows = masked[some]
    centre = np.nanmedian(rows, axis=1, keepdims=True)
    spread = np.nanmedian(np.abs(rows - centre), axis=1, keepdims=True)
    # One reading alone is pulled towards the median of the others; a run of readings moves the median.
    limit = 3.0 * spread + 0.05
    clipped = np.where(known[some], np.clip(rows, centre - limit, centre + limit), 0.0)
    total = weight[some].sum(axis=1)
    # Few fresh observations are believed less: half at one, three quarters at three.
    belief = known[some].sum(axis=1) / (known[some].sum(axis=1) + 1.0)
    error[some] = (clipped * weight[some]).sum(axis=1) / total * belief
    return error


def _check(
    values: Floats, observed: Floats, expected: Floats, gain: Floats | float, half_life: Floats | float
) -> None:
    if values.ndim != 3:
        raise ForecastInputError("values", f"has {values.ndim} axes; give [workload, step, quantile].")
    if observed.ndim != 2 or observed.shape[0] != values.shape[0]:
        raise ForecastInputError("observed", f"has shape {observed.shape}; give [workload, observation].")
    if expected.shape != observed.shape:
        raise ForecastInputError("expected", f"has shape {expected.shape}, not {observed.shape}.")
    if not bool(np.isfinite(values).all()) or bool((values < 0).any()):
        raise ForecastInputError("values", "must be finite and >= 0; pass what forecast() returned.")
    if bool(np.isinf(observed).any()) or bool((observed < 0).any()):
        raise ForecastInputError("observed", "must be >= 0 or NaN; refuse infinite readings at the source.")
    if bool(np.isinf(expected).any()) or bool((expected < 0).any()):
        raise ForecastInputError("expected", "must be >= 0 or NaN.")
    gains, lives = np.asarray(gain), np.asarray(half_life)
    if not bool(((gains >= 0) & (gains <= 1)).all()):
        raise ForecastInputError("gain", "must lie in [0, 1].")
    if not bool((np.isfinite(lives) & (lives > 0)).all()):
        raise ForecastInputError("half_life_steps", "must be positive.")
