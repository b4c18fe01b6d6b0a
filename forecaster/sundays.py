"""A public holiday looks like a Sunday, as far as this workload's past holidays did.

Promises: demand of a holiday is drawn between what past holidays of its kind did and what Sundays do, in
proportion to how well each told the other holidays (leave one out); a service whose Sundays are like any
other day is left alone.
Refuses: nothing.
Called by: `forecaster.events`. All effects are shifts in the transformed units of the models.
"""

import numpy as np

from forecaster.series import DAY_S
from forecaster.types import Floats

# How much of the way to a Sunday a holiday goes before any was seen, held by this many imaginary holidays.
SHARE = 0.7
SHARE_COUNT = 1.0
SHARE_MAX = 1.2
# Before both guesses were judged on others they are trusted alike: an error of this share of a Sunday's distance.
DOUBT = 0.25
WEEK_COUNT = 4
# 1970-01-01 was a Thursday.
EPOCH_WEEKDAY = 3
# From this length on a window means a day, 23 to 25 hours long.
DAYLONG_S = 20 * 3600
# Local midnight comes 13 hours before that of UTC in New Zealand's summer, and 10 hours after it in Hawaii.
EASTMOST_S = 13 * 3600 + 1800


def date_of(start_s: np.ndarray, length_s: np.ndarray) -> np.ndarray:
    """Return the dates of windows, days since 1970; one of a day begins at midnight where its users live."""
    return np.asarray((start_s + np.where(length_s >= DAYLONG_S, EASTMOST_S, 0)) // DAY_S)


def as_sunday(
    z: Floats, base: Floats, at: np.ndarray, first: np.ndarray, date: np.ndarray, day: int
) -> Floats:
    """Return `[A]` how far Sundays lie from usual demand at steps `at`; NaN where no Sunday was seen.

    Args:
        z: `[N]` transformed demand, NaN in events and gaps.
        base: `[N + H]` usual demand.
        at: `[A]` steps of holidays.
        first: `[A]` the step at which the holiday of each begins.
        date: `[A]` its date there, days since 1970.
        day: Steps per day.
    """
    n = len(z)
    since = (date + EPOCH_WEEKDAY + (at - first) // day + 1) % 7
    nearest = at - since * day
    # Far ahead of the origin the newest Sundays are as near as any.
    ahead = np.maximum((nearest - n) // (7 * day), 0)
    weeks = np.arange(-WEEK_COUNT, WEEK_COUNT + 1)[:, None] + ahead[None, :]
    there = nearest[None, :] - weeks * 7 * day
    seen = np.where((there >= 0) & (there < n), z[np.clip(there, 0, n - 1)], np.nan)
    known = np.isfinite(seen).any(axis=0)
    shift = np.full(len(at), np.nan)
    shift[known] = np.nanmedian(seen[:, known], axis=0) - base[at[known]]
    return shift


def towards_sunday(
    learnt: Floats, sunday: Floats, actual: Floats, owner: np.ndarray, told: np.ndarray
) -> Floats:
    """Return `[A]` the effect of holidays, between what was learnt and a Sunday.

    Args:
        learnt: `[A]` effect as other holidays showed it.
        sunday: `[A]` see `as_sunday`.
        actual: `[A]` effect that was seen; NaN where it was not, or lies ahead.
        owner: `[A]` which holiday each step belongs to.
        told: `[E]` whether `learnt` rests on another holiday.
    """
    count = len(told)
    seen = np.isfinite(actual)

    def total(values: Floats) -> Floats:
        return np.bincount(owner[seen], values[seen], count).astype(np.float64)

    square = total(sunday**2)
    typical = float(square[square > 0.0].mean()) if (square > 0.0).any() else 1.0
    dot = total(np.where(seen, actual, 0.0) * sunday)
    share = (dot.sum() - dot + SHARE_COUNT * SHARE * typical) / (
        square.sum() - square + SHARE_COUNT * typical
    )
    prior = np.clip(share, 0.0, SHARE_MAX)[owner] * sunday
    wrong = [total(np.where(seen, actual - guess, 0.0) ** 2) * told for guess in (prior, learnt)]
    others = [w.sum() - w + DOUBT * typical for w in wrong]
    trusted = np.where(told, others[0] / (others[0] + others[1]), 0.0)[owner]
    return np.asarray(trusted * learnt + (1.0 - trusted) * prior)
