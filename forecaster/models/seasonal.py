"""Causal seasonal features: what a model may know about a step before it happens.

Promises: the value at position i uses observations up to i only (smoothed arrays: up to i + `half`), so a
feature read at a lag of `lag` steps can never see the future of an origin `lag` - `half` steps earlier.
Refuses: nothing; gaps (NaN) are skipped, and a feature without data is NaN.
Called by: `forecaster.models.stack`.
"""

from dataclasses import dataclass

import numpy as np
from scipy.signal import lfilter

from forecaster.types import Floats

SHARP_GAIN = 0.97
# A day is no season before the next one showed for some hours, and enough steps, whether it repeats.
SEASON_DAYS_MIN = 1.25
SEASON_STEPS_MIN = 12


def smooth(z: Floats, half: int) -> Floats:
    """Return the centred mean over 2 * `half` + 1 steps, skipping gaps; a gap without neighbours stays."""
    if half == 0:
        return z
    known = np.isfinite(z)
    total = np.concatenate(([0.0], np.cumsum(np.where(known, z, 0.0))))
    count = np.concatenate(([0], np.cumsum(known)))
    n = len(z)
    low = np.maximum(np.arange(n) - half, 0)
    high = np.minimum(np.arange(n) + half + 1, n)
    held = count[high] - count[low]
    return np.where(held > 0, (total[high] - total[low]) / np.maximum(held, 1), np.nan)


def decayed(r: Floats, half_life: float) -> Floats:
    """Return the exponentially weighted mean up to each position, skipping gaps; NaN before any data."""
    keep = 0.5 ** (1.0 / half_life)
    known = np.isfinite(r)
    total = np.asarray(lfilter([1.0], [1.0, -keep], np.where(known, r, 0.0)))
    weight = np.asarray(lfilter([1.0], [1.0, -keep], known.astype(np.float64)))
    return np.where(weight > 1e-9, total / np.maximum(weight, 1e-9), np.nan)


def spanned(z: Floats) -> int:
    """Return how many steps a history with gaps tells about: a row of long ago spans no weeks."""
    return min(len(z), 2 * int(np.isfinite(z).sum()))


def carried(a: Floats) -> Floats:
    """Return `a` with its last number carried through what follows without any; NaN before the first."""
    return a[np.maximum.accumulate(np.where(np.isfinite(a), np.arange(len(a)), 0))]


def profile(z: Floats, period: int, alpha: float, trust: Floats | None = None) -> Floats:
    """Return at i the exponentially weighted mean of z[i], z[i - period], z[i - 2 period], ...; NaN unseen.

    `trust` in [0, 1] says how much each value counts; all fully when it is None.
    """
    n = len(z)
    rounds = -(-n // period)
    padded = np.concatenate((np.full(rounds * period - n, np.nan), z)).reshape(rounds, period)
    known = np.isfinite(padded).astype(np.float64)
    if trust is not None:
        known *= np.concatenate((np.zeros(rounds * period - n), trust)).reshape(rounds, period)
    value = np.where(known > 0, padded, 0.0)
    out = np.empty_like(padded)
    total, weight = np.zeros(period), np.zeros(period)
    for k in range(rounds):
        fresh = alpha * known[k]
        total = total * (1.0 - fresh) + fresh * value[k]
        weight = weight * (1.0 - fresh) + fresh
        with np.errstate(invalid="ignore", divide="ignore"):
            out[k] = total / weight
    return out.reshape(-1)[rounds * period - n :]


def lagged(a: Floats, lag: int, extra: int = 0) -> Floats:
    """Return `[N + extra]` with the value of `lag` steps before at each position; NaN where there is none."""
    out = np.full(len(a) + extra, np.nan)
    if lag < len(out):
        piece = a[: max(len(out) - lag, 0)]
        out[lag : lag + len(piece)] = piece
    return out


@dataclass(frozen=True, slots=True)
class Seasons:
    """Causal profiles `[N]` over a grid of `day` steps a day (see the module's promise)."""

    day: int
    half: int
    raw: Floats
    near: Floats
    daily: Floats
    daily_fast: Floats
    weekly: Floats
    contrast: Floats
    idle_daily: Floats
    idle_weekly: Floats

    @property
    def is_seen(self) -> bool:
        """Whether any season is known."""
        return bool(np.isfinite(self.daily).any())


def _miss(z: Floats, daily: Floats, lag: int) -> float:
    """Return the mean distance of demand from its profile of `lag` steps before; infinite when none is known."""
    gap = np.abs(z[lag:] - daily[:-lag]) if len(z) > lag else z[:0]
    known = gap[np.isfinite(gap)]
    return float(known.mean()) if len(known) else np.inf


def seasons(z: Floats, day: int, trust: Floats | None = None, idle: Floats | None = None) -> Seasons:
    """Build every profile once, unseen ones of a shorter history; the origins and horizons of all models read from them.

    Args:
        z: `[N]` transformed demand, NaN in gaps.
        day: Steps per day.
        trust: `[N]` in [0, 1], how much each value counts.
        idle: `[N]` 1 where demand was zero, 0 where not, NaN in gaps; None when zeros are rare.
    """
    half = day // 48
    near = smooth(z, half)
    daily = profile(near, day, 0.15, trust)
    if half:
        # Smoothing helps noisy loads and blurs what recurs to the minute (scheduled jobs): whichever was
        # clearly nearer to the day after next decides.
        sharp = profile(z, day, 0.15, trust)
        if _miss(z, sharp, 2 * day) < SHARP_GAIN * _miss(z, daily, 2 * day):
            half, near, daily = 0, z, sharp
    weekly = profile(near, 7 * day, 0.35, trust)
    fast = profile(near, day, 0.5, trust)
    if day > 1 and spanned(z) < max(SEASON_DAYS_MIN * day, min(day + SEASON_STEPS_MIN, 2 * day)):
        near = daily = fast = weekly = np.full(len(z), np.nan)
    wide = day // 12
    contrast = smooth(weekly - daily, wide)
    return Seasons(
        day=day,
        half=half,
        raw=z,
        near=near,
        daily=daily,
        daily_fast=fast,
        weekly=weekly,
        contrast=contrast,
        idle_daily=np.zeros(0) if idle is None else profile(idle, day, 0.15),
        idle_weekly=np.zeros(0) if idle is None else profile(idle, 7 * day, 0.35),
    )
