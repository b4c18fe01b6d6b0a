"""What holds for every history, horizon and set of events.

1. The first forecast time is the last row + one step, and the index is regular, for every step.
2. Values are finite, >= 0 and monotone in the quantile level.
3. The same input gives the same output, bit for bit.
4. Scaling demand scales the forecast.
5. A shift of history by whole weeks in which no clock changes shifts the forecast and changes no value.
6. Components add up to the median.
7. Model weights are positive and add up to 1.
8. A backtest origin never reads what lies after it.
"""

from datetime import timedelta

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forecaster import Event, Forecast, forecast

STEPS_S = (60, 300, 600, 1800, 3600, 86_400)
START = pd.Timestamp("2026-03-02T00:00:00Z")


@st.composite
def histories(draw: st.DrawFn) -> pd.Series:
    """Draw a season with noise, zeros, gaps, outliers and a level shift, of any length and step."""
    step_s = draw(st.sampled_from(STEPS_S))
    day = 86_400 // step_s
    count = draw(st.integers(2, min(1500, 20 * day + 2)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    t = np.arange(count)
    level = draw(st.sampled_from((0.0, 0.3, 20.0, 5e4)))
    y = level * (1.2 + np.sin(2 * np.pi * t / max(day, 7))) * np.exp(rng.normal(0, 0.2, count))
    kind = draw(st.sampled_from(("plain", "counts", "gaps", "outliers", "shift", "constant", "sparse")))
    if kind == "counts":
        y = rng.poisson(np.minimum(y, 1e6)).astype(float)
    elif kind == "gaps":
        y[rng.random(count) < 0.4] = np.nan
        y[0] = level
    elif kind == "outliers":
        y[rng.random(count) < 0.02] *= 100.0
    elif kind == "shift":
        y[count // 2 :] *= 5.0
    elif kind == "constant":
        y[:] = level
    elif kind == "sparse":
        y[rng.random(count) < 0.8] = 0.0
    return pd.Series(y, index=pd.date_range(START, periods=count, freq=pd.Timedelta(seconds=step_s)))


@st.composite
def event_sets(draw: st.DrawFn) -> list[Event]:
    return [
        Event(
            start=(START + pd.Timedelta(hours=hour)).to_pydatetime(),
            end=(START + pd.Timedelta(hours=hour + length)).to_pydatetime(),
            category=draw(st.sampled_from(("sale", "match"))),
            expected_multiplier=draw(st.sampled_from((None, 0.5, 4.0))),
            expected_peak=draw(st.sampled_from((None, 500.0))),
        )
        for hour, length in draw(st.lists(st.tuples(st.integers(-10, 600), st.integers(1, 30)), max_size=6))
    ]


def same(left: Forecast, right: Forecast) -> bool:
    return bool(np.array_equal(left.values, right.values)) and left.reasons == right.reasons


@given(histories(), st.integers(1, 400), event_sets())
@settings(max_examples=60, deadline=None)
def test_1_2_6_7_shape_order_and_sums(history: pd.Series, horizon: int, events: list[Event]) -> None:
    result = forecast(history, horizon, events=events)

    step = history.index[1] - history.index[0]
    assert history.index[-1] + step == result.index[0]
    assert pd.date_range(history.index[-1] + step, periods=horizon, freq=step).equals(result.index)
    assert (horizon, 5) == result.values.shape
    assert np.isfinite(result.values).all()
    assert (result.values >= 0).all()
    assert (np.diff(result.values, axis=1) >= 0).all()
    assert result.median == pytest.approx(result.components.total(), rel=1e-6, abs=1e-6)
    assert result.median == pytest.approx(result.values[:, 1])
    assert pytest.approx(1.0) == sum(result.model_weights.values())
    assert min(result.model_weights.values()) > 0


@given(histories(), st.integers(1, 60), event_sets())
@settings(max_examples=15, deadline=None)
def test_3_same_input_same_output(history: pd.Series, horizon: int, events: list[Event]) -> None:
    first = forecast(history, horizon, events=events)
    second = forecast(history.copy(), horizon, events=list(events))

    assert same(first, second)


@given(histories(), st.sampled_from((1e-3, 7.0, 1e6)))
@settings(max_examples=15, deadline=None)
def test_4_scaling_demand_scales_the_forecast(history: pd.Series, factor: float) -> None:
    plain = forecast(history, 24)
    scaled = forecast(history * factor, 24)

    assert scaled.values / factor == pytest.approx(plain.values, rel=1e-4, abs=1e-6 * float(history.max()))


@given(histories(), st.integers(1, 12))
@settings(max_examples=15, deadline=None)
def test_5_whole_weeks_later_nothing_else_changes(history: pd.Series, weeks: int) -> None:
    in_june = history.copy()
    in_june.index = in_june.index + timedelta(weeks=13)
    moved = in_june.copy()
    moved.index = moved.index + timedelta(weeks=weeks)

    assert np.array_equal(forecast(in_june, 24).values, forecast(moved, 24).values)


@given(st.integers(0, 2**32 - 1), st.integers(1, 500))
@settings(max_examples=10, deadline=None)
def test_8_the_future_is_not_read(seed: int, cut: int) -> None:
    """Truncating at an origin and forecasting equals forecasting the same prefix of another future."""
    rng = np.random.default_rng(seed)
    index = pd.date_range(START, periods=1500, freq="1h")
    one = pd.Series(rng.gamma(2.0, 50.0, 1500), index=index)
    other = one.copy()
    other.iloc[1500 - cut :] = rng.gamma(2.0, 5000.0, cut)

    assert np.array_equal(
        forecast(one.iloc[: 1500 - cut], 24).values, forecast(other.iloc[: 1500 - cut], 24).values
    )
