"""How far demand usually rises from a given time of day on: jobs start on the hour, shops open at nine, nights are calm.

A calm night and a morning full of jumps share one workload, and the rarest rises of the one say nothing of the other.
Two habits are told apart and averaged: the same minutes on other days (what starts at nine, every day), and the same
hours on other days times the same minute of every hour (what starts on the hour, nobody knows which). Each day is told
from the other days only: a single incident does not excuse itself.

Promises: pure and deterministic; positive wherever demand ever rose; the overall mean where nothing else is known.
Called by: nearcast.
"""

from typing import Final

import numpy as np

from forecaster.types import Floats

# How early or late the same minutes, and the same hours, of other days still count.
SAME_MINUTES_S: Final = 600.0
SAME_HOURS_S: Final = 5400.0
# The overall mean counts as that many days, or samples of a minute of the hour, of its own.
PRIOR_DAYS: Final = 2.0
PRIOR_SAMPLES: Final = 100.0


def usual_rises(rise: Floats, ahead: int, *, step_s: int, day: int) -> tuple[Floats, float]:
    """Return `[N + ahead]`, what to expect at each step of the record and of the `ahead` after it, and the mean.

    Args:
        rise: `[N]` how far demand rose, >= 0; NaN where unknown.
        ahead: Steps after the record.
        step_s: Seconds per step.
        day: Steps per day.
    """
    total = len(rise) + ahead
    days = -(-total // day)
    first = days * day - total  # the grid ends where the coming steps do
    within = (first, ahead)
    known = np.pad(np.isfinite(rise).astype(np.float64), within).reshape(days, day)
    sums = np.pad(np.nan_to_num(rise), within).reshape(days, day)
    mean = float(sums.sum() / max(known.sum(), 1.0))
    minutes = _on_other_days(sums, known, max(1.0, SAME_MINUTES_S / step_s), mean)
    hours = _on_other_days(sums, known, max(1.0, SAME_HOURS_S / step_s), mean)
    usual = (minutes + hours * _minute_of_hour(sums, known, 3600 // step_s, mean)) / 2
    return usual.ravel()[first:], mean


def _on_other_days(sums: Floats, known: Floats, width: float, mean: float) -> Floats:
    """Return `[D, day]`: the mean of the other days around the same time of day."""
    day = sums.shape[1]
    apart = np.arange(day)
    near = np.exp(-0.5 * (np.minimum(apart, day - apart) / width) ** 2)
    by_rate = np.fft.rfft(near)
    around = np.maximum(
        np.fft.irfft(np.fft.rfft(np.stack((sums, known)), axis=2) * by_rate, day, axis=2), 0.0
    )
    others = around.sum(axis=1, keepdims=True) - around
    prior = PRIOR_DAYS * float(near.sum())
    return np.asarray((others[0] + prior * mean) / (others[1] + prior))


def _minute_of_hour(sums: Floats, known: Floats, hour: int, mean: float) -> Floats:
    """Return `[D, day]`: how many times the mean the rise is at each minute of the hour, by the other days."""
    days, day = sums.shape
    if hour < 2 or day % hour or not mean > 0:
        return np.ones_like(sums)
    by_minute = np.stack((sums, known)).reshape(2, days, -1, hour).sum(axis=2)
    others = by_minute.sum(axis=1, keepdims=True) - by_minute
    times = (others[0] / mean + PRIOR_SAMPLES) / (others[1] + PRIOR_SAMPLES)
    # A step early or late counts half.
    times = (times + 0.5 * (np.roll(times, 1, axis=1) + np.roll(times, -1, axis=1))) / 2
    return np.asarray(np.tile(times, (1, day // hour)))
