"""Axes of the plots in the terminal: ticks at round values, written as everywhere else.

Promises: nine ticks at most, at 1, 2 or 5 times a power of ten, or at hours of which a day is a multiple.
Called by the commands that plot.
"""

import math
from collections.abc import Sequence
from typing import Any

from controller.cli.common import qps

HOURS = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 12.0, 24.0, 48.0, 72.0, 168.0)
TICKS_MAX = 8
NEARLY_NOTHING = 1e-9  # a difference that has no power of ten of its own left, or means none


def hour_ticks(low: float, high: float) -> list[float]:
    """Return whole multiples, within the bounds, of a part or multiple of a day."""
    step = next((hours for hours in HOURS if (high - low) / hours <= TICKS_MAX), HOURS[-1])
    return _multiples(low, high, step)


def value_ticks(low: float, high: float) -> list[float]:
    """Return round values within the bounds."""
    if not high - low > NEARLY_NOTHING:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / TICKS_MAX))
    step = next(power * by for by in (1, 2, 5, 10, 20) if (high - low) / (power * by) <= TICKS_MAX)
    return _multiples(low, high, step)


def set_axes(figure: Any, hours: Sequence[float], values: Sequence[float]) -> None:  # noqa: ANN401 - plotext has no types
    """Mark hours on the lower axis and requests per second on the left one."""
    if not hours or not values:
        return
    across = hour_ticks(min(hours), max(hours))
    figure.ruler("x").ticks(across, [f"{tick:g}" for tick in across])
    up = value_ticks(min(values), max(values))
    figure.ruler("y").ticks(up, [qps(tick) for tick in up])


def _multiples(low: float, high: float, step: float) -> list[float]:
    return [step * k for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
