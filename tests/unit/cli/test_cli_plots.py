"""Plots have ticks at round values, few enough to be read, and nothing lies over their lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.cli.plots import TICKS_MAX, Line, draw, hour_ticks, value_ticks


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-24.0, 23.9, [-24, -18, -12, -6, 0, 6, 12, 18]),
        (0.0, 1.0, [0, 0.25, 0.5, 0.75, 1]),
        (-48.0, 47.9, [-48, -36, -24, -12, 0, 12, 24, 36]),
        (-336.0, 336.0, [-336, -168, 0, 168, 336]),
    ],
)
def test_hours_divide_a_day_or_are_divided_by_it(low: float, high: float, expected: list[float]) -> None:
    assert expected == hour_ticks(low, high)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (2600.0, 29_000.0, [5000, 10_000, 15_000, 20_000, 25_000]),
        (0.0, 0.7, pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])),
        (7.0, 7.0, [7]),
    ],
)
def test_values_are_round(low: float, high: float, expected: list[float]) -> None:
    assert expected == value_ticks(low, high)


@given(st.floats(-1e9, 1e9), st.floats(1e-3, 1e9))
def test_ticks_lie_within_the_bounds_and_are_few(low: float, width: float) -> None:
    high = low + width
    ticks = value_ticks(low, high)

    assert 0 < len(ticks) <= TICKS_MAX + 1
    assert low - width * 1e-6 <= min(ticks) <= max(ticks) <= high + width * 1e-6


def test_what_a_line_is_stands_above_the_plot_and_never_over_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hours = [float(hour) for hour in range(25)]
    lines = [
        Line("median", "o", hours, [160.0] * 25),
        Line("baseline", "-", hours, [110.0] * 25),
        Line("nothing was seen", "x", [], []),
        Line("", "=", [0.0, 24.0], [150.0, 150.0]),
    ]

    draw("QPS", "hours from now", lines)

    text = capsys.readouterr().out.splitlines()
    assert "QPS:  o median   - baseline" == text[0]
    assert all(len(line) <= 80 for line in text)
    # The box of a legend used to cover what began at the upper left.
    inside = [line.strip().lstrip("0123456789 ")[1:-1] for line in text[2:-4]]
    assert {"o", "=", "-"} == {row[0] for row in inside if row.strip() and len(set(row)) == 1}
