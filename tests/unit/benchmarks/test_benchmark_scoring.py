"""The scores, against numbers worked out by hand and against their definitions."""

import numpy as np
import pytest

from benchmarks.scoring import LEVELS, covered, geometric_mean, nanmean, pinball, seasonal_scale


def test_pinball_weighs_under_and_over_forecast_by_the_level() -> None:
    # Level 0.9, actual 10: forecast 8 is 2 under -> 0.9 x 2; forecast 13 is 3 over -> 0.1 x 3.
    loss = pinball(np.array([10.0, 10.0]), np.array([[8.0], [13.0]]), levels=(0.9,))

    np.testing.assert_allclose(loss, [1.8, 0.3])


def test_pinball_is_lowest_at_the_quantile_of_the_sample() -> None:
    sample = np.random.default_rng(7).gamma(2.0, 50.0, size=4001)
    truth = np.quantile(sample, LEVELS)

    best = pinball(sample, np.tile(truth, (len(sample), 1))).mean()

    for factor in (0.9, 1.1):
        assert best < pinball(sample, np.tile(truth * factor, (len(sample), 1))).mean()


def test_missing_actuals_are_not_scored() -> None:
    actual = np.array([np.nan, 10.0])
    values = np.full((2, len(LEVELS)), 10.0)

    np.testing.assert_array_equal([np.nan, 0.0], pinball(actual, values))
    np.testing.assert_array_equal([np.nan, 1.0], covered(actual, values)[:, 0])
    assert nanmean(pinball(actual, values)) == 0.0


def test_values_of_another_shape_are_refused() -> None:
    with pytest.raises(AssertionError):
        pinball(np.zeros(3), np.zeros((2, len(LEVELS))))


def test_scale_is_the_error_of_repeating_the_last_season() -> None:
    history = np.array([1.0, 2.0, 3.0, 2.0, np.nan, 6.0])

    assert seasonal_scale(history, 3) == (1.0 + 3.0) / 2
    assert np.isnan(seasonal_scale(history, 6))


def test_means_of_nothing_are_unknown_rather_than_zero() -> None:
    assert np.isnan(nanmean(np.array([np.nan])))
    assert np.isnan(geometric_mean([]))
    assert np.isnan(geometric_mean([float("nan"), float("inf")]))


def test_geometric_mean_of_a_ratio_and_its_inverse_is_one() -> None:
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
