"""Plots in the terminal: lines that colours or letters tell apart, ticks at round values.

Promises: as wide as everything else at most; what a line is stands above the plot, never over one; nine ticks at most
on each axis, at 1, 2 or 5 times a power of ten, or at hours of which a day is a multiple. Called by the commands that
plot.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from controller.cli.common import WIDTH_MAX, is_colour_wanted, qps

ROWS = 20
COLOURS = ("blue", "green", "red", "magenta", "cyan", "orange")

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


@dataclass(frozen=True, slots=True)
class Line:
    """Points of the same length across and up; ``letter`` draws it where there are no colours. No label: a guide."""

    label: str
    letter: str
    across: Sequence[float]
    up: Sequence[float]
    joined: bool = True


Ticks = Callable[[float, float], list[float]]


def draw(title: str, below: str, lines: Sequence[Line], across_ticks: Ticks = hour_ticks) -> None:
    """Print a plot of lines that have points; ``below`` says what the lower axis counts."""
    import plotext  # noqa: PLC0415 - only plots need it

    shown = [line for line in lines if line.across]
    coloured = is_colour_wanted()
    figure: Any = plotext.figure
    figure.clear()
    figure.plot_size(WIDTH_MAX - 2, ROWS)
    figure.theme("simple" if coloured else "colorless")
    legend: list[str] = []
    for line, colour in zip(shown, COLOURS * len(shown), strict=False):
        marker = plotext.marker("hd", colour) if coloured and line.label else line.letter
        signal = figure.signal(list(line.across), list(line.up), marker=marker)
        figure.draw(signal.lines() if line.joined else signal)
        if line.label:
            key = str(plotext.colorize("■", colour)) if coloured else line.letter
            legend.append(f"{key} {line.label}")
    if shown:
        _set_ticks(figure.ruler("x"), [x for line in shown for x in line.across], across_ticks, "{:g}".format)
        _set_ticks(figure.ruler("y"), [y for line in shown for y in line.up], value_ticks, qps)
    figure.label(below)
    drawn = str(figure.build())
    typer.echo(f"{title}:  {'   '.join(legend)}")
    typer.echo(drawn if coloured else plotext.uncolorize(drawn))


def _set_ticks(ruler: Any, values: Sequence[float], ticks: Ticks, said: Callable[[float], str]) -> None:  # noqa: ANN401 - plotext has no types
    marks = ticks(min(values), max(values))
    ruler.ticks(marks, [said(mark) for mark in marks])


def _multiples(low: float, high: float, step: float) -> list[float]:
    return [step * k for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
