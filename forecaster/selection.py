"""Whom to trust: the live record of a forecast, and the change from one champion to another.

Promises: pure; too few scored steps is UNPROVEN, not a verdict; a challenger replaces the champion only
after it was clearly better for several judgements in a row, so two equals never alternate.
Refuses: losses that are negative or not numbers.
Called by: the controller's accuracy tracking.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import isfinite

import numpy as np

from forecaster.metrics import coverage, mean_pinball
from forecaster.types import Floats, ForecastInputError

# Steps that must have been scored before anything is said.
STEP_COUNT_MIN = 12
# Distrust needs a forecast that is worse than the seasonal naive by the first factor and whose upper quantile is
# missed this many times as often as it says - either alone happens to good forecasts too -, or one that is worse
# by the second factor, whichever way it errs.
NAIVE_RATIO_MAX = 1.25
NAIVE_RATIO_HOPELESS = 2.0
MISS_FACTOR_MAX = 4.0
# A loss below this share of demand harms nobody, however small the naive's is.
LOSS_SHARE_MIN = 0.01
MARGIN = 0.05
PATIENCE = 3


class Trust(StrEnum):
    """What the live record says."""

    UNPROVEN = "UNPROVEN"
    TRUSTED = "TRUSTED"
    DISTRUSTED = "DISTRUSTED"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Trust with the numbers behind it and a sentence."""

    trust: Trust
    step_count: int
    naive_ratio: float
    coverage_upper: float
    sentence: str


def judge(actual: Floats, values: Floats, naive: Floats, levels: tuple[float, ...]) -> Verdict:
    """Compare stored quantiles with what came, and with the seasonal naive's on the same steps.

    Args:
        actual: `[n]` observations, NaN where missing.
        values: `[n, Q]` quantiles that were forecast for them.
        naive: `[n, Q]` quantiles of the seasonal naive; NaN rows where there was none.
        levels: The Q levels, ascending.
    """
    known = np.isfinite(actual) & np.isfinite(naive).all(axis=1)
    count = int(known.sum())
    if count < STEP_COUNT_MIN:
        nan = float("nan")
        return Verdict(Trust.UNPROVEN, count, nan, nan, f"{count} steps scored; {STEP_COUNT_MIN} are needed.")
    loss = mean_pinball(actual[known], values[known], levels)
    base = mean_pinball(actual[known], naive[known], levels)
    least = LOSS_SHARE_MIN * float(np.abs(actual[known]).mean())
    ratio = loss / max(base, least) if max(base, least) > 0 else (1.0 if loss <= 0 else float("inf"))
    upper = coverage(actual[known], values[known], levels)[-1]
    # The allowance keeps one unlucky step in a short record from counting as a habit.
    missed = (1.0 - upper) > MISS_FACTOR_MAX * (1.0 - levels[-1]) + 2.0 / count
    bad = (ratio > NAIVE_RATIO_MAX and missed) or ratio > NAIVE_RATIO_HOPELESS
    trust = Trust.DISTRUSTED if bad else Trust.TRUSTED
    sentence = (
        f"Loss {ratio:.2f} x the seasonal naive's over {count} steps; "
        f"{upper:.1%} lay at or below the P{100 * levels[-1]:g}."
    )
    return Verdict(trust, count, ratio, upper, sentence)


@dataclass(frozen=True, slots=True)
class Standing:
    """Who is champion, and how many judgements in a row a challenger has won."""

    champion: str
    challenger: str = ""
    win_count: int = 0


def contest(standing: Standing, losses: Mapping[str, float], *, least: float = 0.0) -> Standing:
    """Return the standing after one judgement of `losses` (name -> mean loss on the same steps).

    A gain of less than `least` in units of the losses counts as none: on demand that hardly errs, a large
    share of nothing is no reason to change.

    Raises:
        ForecastInputError: A loss is negative or not a number.
    """
    for name, loss in losses.items():
        if not (isfinite(loss) and loss >= 0):
            raise ForecastInputError("losses", f"of {name} is {loss}; leave out what was not judged.")
    if standing.champion not in losses:
        return standing
    bar = min(losses[standing.champion] * (1.0 - MARGIN), losses[standing.champion] - least)
    better = {name: loss for name, loss in losses.items() if name != standing.champion and loss < bar}
    if not better:
        return replace(standing, challenger="", win_count=0)
    best = min(better, key=lambda name: (better[name], name))
    wins = standing.win_count + 1 if best == standing.challenger else 1
    if wins >= PATIENCE:
        return Standing(champion=best)
    return replace(standing, challenger=best, win_count=wins)


def verdict_of(before: Standing, after: Standing, losses: Mapping[str, float]) -> str:
    """Say in one sentence what a judgement did."""
    if after.champion != before.champion:
        ratio = losses[after.champion] / losses[before.champion]
        return (
            f"{after.champion} took over from {before.champion}: its loss was {1.0 - ratio:.0%} lower in the "
            f"newest of {PATIENCE} backtests in a row that it won."
        )
    if after.challenger:
        return f"{after.champion} stays; {after.challenger} won {after.win_count} of the {PATIENCE} backtests it needs."
    return f"{after.champion} stays: no other model was better by {MARGIN:.0%}."
