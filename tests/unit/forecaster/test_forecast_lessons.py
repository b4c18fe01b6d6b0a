"""How other forecasters have failed without a word, each as a story that cannot happen here."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from forecaster import ForecastState, forecast

START = pd.Timestamp("2026-03-02T00:00:00Z")
DAY = 24 * 3600


def demand(count: int, step_s: int, *, low: float = 100.0) -> pd.Series:
    """A day's wave, quieter at weekends, with noise; ``low`` at the bottom of the night."""
    t = np.arange(count) * step_s
    wave = low + 400.0 * (1 - np.cos(2 * np.pi * t / DAY)) / 2
    weekend = np.where(t // DAY % 7 >= 5, 0.7, 1.0)
    noise = np.exp(np.random.default_rng(7).normal(0, 0.03, count))
    return pd.Series(
        wave * weekend * noise, index=pd.date_range(START, periods=count, freq=pd.Timedelta(seconds=step_s))
    )


def off(said: np.ndarray, truth: pd.Series) -> float:
    """Mean distance, as a share of mean demand."""
    return float(np.abs(said - truth.to_numpy()).mean() / truth.mean())


@pytest.mark.parametrize(
    ("days", "step_s"), [(15, 60), (29, 300), (22, 600)], ids=["10080 steps", "2016 steps", "1008 steps"]
)
def test_a_season_of_thousands_of_steps_is_forecast_and_not_nan(days: int, step_s: int) -> None:
    # A peer's Holt-Winters returned NaN, and no error, for seasons as long as a week of minutes.
    day = DAY // step_s
    whole = demand((days + 1) * day, step_s)

    result = forecast(whole.iloc[:-day], day)

    assert ForecastState.READY == result.state
    assert np.isfinite(result.values).all()
    assert off(result.median, whole.iloc[-day:]) < 0.05


def _scattered(history: pd.Series) -> None:
    history.iloc[np.random.default_rng(3).choice(len(history), len(history) // 10, replace=False)] = np.nan


def _one(history: pd.Series) -> None:
    history.iloc[-30] = np.nan


def _first_rows(history: pd.Series) -> None:
    history.iloc[:5] = np.nan


def _a_day(history: pd.Series) -> None:
    history.iloc[-96:-72] = np.nan


def _an_hour_of_every_day(history: pd.Series) -> None:
    history.iloc[12::24] = np.nan


@pytest.mark.parametrize("lose", [_one, _first_rows, _scattered, _a_day, _an_hour_of_every_day])
def test_unknown_steps_cost_accuracy_and_do_not_break_the_fit(lose: Callable[[pd.Series], None]) -> None:
    # Peers' smoothing took one NaN in the history into every later state: all of the forecast was NaN, or a
    # constant, and the fit counted as a success.
    whole = demand(29 * 24, 3600)
    holed = whole.iloc[:-24].copy()
    lose(holed)

    result = forecast(holed, 24)

    assert np.isfinite(result.values).all()
    assert off(result.median, whole.iloc[-24:]) < 0.1
    assert result.median.max() > 2 * result.median.min()  # the day's wave is in it


def test_hours_that_were_never_seen_are_said() -> None:
    history = demand(28 * 24, 3600)
    history.iloc[::2] = np.nan

    result = forecast(history, 24)

    assert np.isfinite(result.values).all()
    assert ForecastState.DEGRADED == result.state
    assert ("12 buckets of the last day are missing.",) == result.reasons


@pytest.mark.parametrize(
    ("hours", "state"),
    [
        (24, ForecastState.INSUFFICIENT_HISTORY),
        (25, ForecastState.INSUFFICIENT_HISTORY),
        (7 * 24, ForecastState.DEGRADED),
        (7 * 24 + 1, ForecastState.DEGRADED),
    ],
)
def test_exactly_one_season_of_history_has_a_state_and_is_not_nan(hours: int, state: ForecastState) -> None:
    # Initial states that need a second season were NaN with one, and so was all that followed.
    whole = demand(hours, 3600)

    result = forecast(whole, 24)

    assert state == result.state
    assert np.isfinite(result.values).all()
    assert result.median.max() < 2 * whole.max()


def test_zeros_in_a_multiplicative_season_are_zeros_and_not_nan() -> None:
    # A multiplicative season divides by the level: at zeros it was NaN or without bound.
    whole = demand(29 * 24, 3600, low=0.0)
    whole.iloc[np.flatnonzero(np.arange(len(whole)) % 24 < 6)] = 0.0

    result = forecast(whole.iloc[:-24], 24)

    assert np.isfinite(result.values).all()
    assert off(result.median, whole.iloc[-24:]) < 0.1
    assert result.median[:6].max() < 0.01 * whole.max()
    assert result.values.max() < 2 * whole.max()
