"""The methods that need no optional library, and how failures of any method are named."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.methods import Method, MethodError, checked, run_method, time_limit
from benchmarks.peers import METHODS, crane_fft, snaive_day, snaive_week
from benchmarks.scoring import LEVELS
from benchmarks.series import HOUR, Task

Floats = NDArray[np.float64]
START = datetime(2026, 3, 2, tzinfo=UTC)


def hourly(values: Floats) -> Task:
    return Task(START, HOUR, values, horizon=24, events=())


def two_waves(days: int = 16) -> Floats:
    at = np.arange(24 * days)
    shape = 100 + 40 * np.sin(2 * np.pi * at / 24) + 10 * np.sin(4 * np.pi * at / 24)
    return np.asarray(shape + np.random.default_rng(3).normal(0, 2, len(at)), dtype=np.float64)


def method(run: object) -> Method:
    return Method("stub", "", (), run)  # type: ignore[arg-type]


@pytest.mark.parametrize(("forecast", "lag"), [(snaive_day, 24), (snaive_week, 168)])
def test_seasonal_naive_repeats_its_season_inside_its_own_errors(forecast: object, lag: int) -> None:
    values = two_waves()

    quantiles = run_method(method(forecast), hourly(values))

    errors = values[lag:] - values[:-lag]
    np.testing.assert_allclose(values[-lag:][:24] + np.quantile(errors, 0.9), quantiles[:, 2])


def test_seasonal_naive_refuses_history_of_one_season() -> None:
    with pytest.raises(MethodError, match="not longer than one season"):
        run_method(method(snaive_week), hourly(two_waves(7)))


def test_crane_follows_a_daily_wave_and_abstains_without_one() -> None:
    values = two_waves(17)
    task = hourly(values[:-24])

    quantiles = run_method(method(crane_fft), task)

    # Its margin is at least one percent; on a smooth wave its median stays within a tenth of the truth.
    assert np.abs(quantiles[:, 1] / values[-24:] - 1).mean() < 0.1
    noise = hourly(np.arange(24.0 * 16))
    with pytest.raises(MethodError, match="not periodic"):
        run_method(method(crane_fft), noise)


def test_nan_from_a_library_is_named_and_counted() -> None:
    values = np.ones((24, len(LEVELS)))
    values[3, 1] = np.nan

    with pytest.raises(MethodError, match="NaN or infinity in 1 of 120 values"):
        run_method(method(lambda _: values), hourly(two_waves()))


def test_any_exception_of_a_library_becomes_a_reason() -> None:
    def broken(_: Task) -> Floats:
        raise ZeroDivisionError("no such luck")

    with pytest.raises(MethodError, match="ZeroDivisionError: no such luck"):
        run_method(method(broken), hourly(two_waves()))


def test_negative_and_crossing_quantiles_are_mended() -> None:
    values = np.array([[-5.0, 2.0, 1.0, 4.0, 3.0]])

    np.testing.assert_array_equal([[0.0, 1.0, 2.0, 3.0, 4.0]], checked(values, 1))


def test_a_method_that_burns_too_much_time_is_stopped() -> None:
    def endless() -> None:
        while True:
            sum(range(1000))

    with pytest.raises(MethodError, match="took longer than 1 s"), time_limit(1):
        endless()


def test_ours_comes_first_and_names_are_unique() -> None:
    names = [one.name for one in METHODS]

    assert names[0] == "ours"
    assert len(names) == len(set(names))


def test_ours_gives_quantiles_over_a_history_with_gaps() -> None:
    values = two_waves(21)
    values[100:110] = np.nan

    quantiles = run_method(METHODS[0], hourly(values))

    assert (24, len(LEVELS)) == quantiles.shape
    assert timedelta(hours=24) == hourly(values).future_index[-1] + HOUR - hourly(values).origin
