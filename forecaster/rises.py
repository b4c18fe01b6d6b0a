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


def usual_rises(rises: Floats, ahead: int, *, step_s: int, day: int) -> tuple[Floats, Floats]:
    """Return `[K, N + ahead]`, what to expect at each step of the record and of the `ahead` after it, and means `[K]`.

    Args:
        rises: `[K, N]` how far demand rose, >= 0, in some units; NaN where unknown, in all of them alike.
        ahead: Steps after the record.
        step_s: Seconds per step.
        day: Steps per day.
    """
    total = rises.shape[1] + ahead
    days = -(-total // day)
    first = days * day - total  # the grid ends where the coming steps do
    grid = np.zeros((len(rises) + 1, days * day))
    # What each step adds to a sum, and last to the count.
    grid[:-1, first : days * day - ahead] = np.nan_to_num(rises)
    grid[-1, first : days * day - ahead] = np.isfinite(rises[0])
    grid = grid.reshape(-1, days, day)
    mean = grid[:-1].sum(axis=(1, 2)) / max(float(grid[-1].sum()), 1.0)
    minutes = _on_other_days(grid, max(1.0, SAME_MINUTES_S / step_s), mean)
    hours = _on_other_days(grid, max(1.0, SAME_HOURS_S / step_s), mean)
    usual = (minutes + hours * _minute_of_hour(grid, 3600 // step_s, mean)) / 2
    return usual.reshape(len(rises), -1)[:, first:], mean


def _on_other_days(grid: Floats, width: float, mean: Floats) -> Floats:
    """Return `[K, D, day]`: the mean of the other days around the same time of day."""
    day = grid.shape[2]
    apart = np.arange(day)
    near = np.exp(-0.5 * (np.minimum(apart, day - apart) / width) ** 2)
    around = np.maximum(np.fft.irfft(np.fft.rfft(grid, axis=2) * np.fft.rfft(near), day, axis=2), 0.0)
    others = around.sum(axis=1, keepdims=True) - around
    prior = PRIOR_DAYS * float(near.sum())
    return np.asarray((others[:-1] + prior * mean[:, None, None]) / (others[-1] + prior))


def _minute_of_hour(grid: Floats, hour: int, mean: Floats) -> Floats:
    """Return `[K, D, day]`: how many times the mean the rise is at each minute of the hour, by the other days."""
    rows, days, day = grid.shape
    if hour < 2 or day % hour:
        return np.ones((rows - 1, days, day))
    by_minute = grid.reshape(rows, days, -1, hour).sum(axis=2)
    others = by_minute.sum(axis=1, keepdims=True) - by_minute
    scale = np.where(mean > 0, mean, 1.0)[:, None, None]
    times = (others[:-1] / scale + PRIOR_SAMPLES) / (others[-1] + PRIOR_SAMPLES)
    times[mean <= 0] = 1.0
    # A step early or late counts half.
    times = (times + 0.5 * (np.roll(times, 1, axis=2) + np.roll(times, -1, axis=2))) / 2
    return np.asarray(np.tile(times, (1, 1, day // hour)))
