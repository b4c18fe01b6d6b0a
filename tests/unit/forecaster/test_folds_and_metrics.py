"""Folds are indices that cannot leak; metrics are means over what was observed."""

import numpy as np
import pytest

from forecaster import ForecastInputError
from forecaster.folds import Fold, rolling
from forecaster.metrics import bias, coverage, known_mean, mean_pinball, naive_scale, pinball

NAN = float("nan")


def test_folds_end_with_the_last_row_and_start_after_what_they_know() -> None:
    folds = rolling(100, 10, 3, train_min=20, stride=15)

    assert (Fold(0, 59, 69), Fold(0, 74, 84), Fold(0, 89, 99)) == folds
    assert [10, 10, 10] == [fold.horizon for fold in folds]


def test_a_short_history_gives_fewer_folds() -> None:
    assert (Fold(0, 19, 29),) == rolling(30, 10, 5, train_min=15)


def test_training_rows_are_bounded() -> None:
    assert (Fold(40, 59, 69), Fold(70, 89, 99)) == rolling(100, 10, 2, train_min=20, stride=30, train_max=20)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"row_count": 29, "train_min": 20}, "history"),
        ({"row_count": 99, "train_min": 0}, "train_min"),
        ({"row_count": 99, "train_min": 5, "stride": 0}, "stride"),
        ({"row_count": 99, "train_min": 5, "horizon": 0}, "horizon"),
        ({"row_count": 99, "train_min": 5, "fold_count": 0}, "fold_count"),
        ({"row_count": 99, "train_min": 5, "fold_count": 10_001}, "fold_count"),
        ({"row_count": 99, "train_min": 5, "train_max": 4}, "train_max"),
    ],
)
def test_an_impossible_plan_names_the_argument(arguments: dict[str, int], field: str) -> None:
    with pytest.raises(ForecastInputError) as caught:
        rolling(**{"horizon": 10, "fold_count": 3, **arguments})

    assert field == caught.value.field


def test_pinball_of_worked_numbers() -> None:
    """Demand 10, quantiles 8 (0.1) and 12 (0.9): 0.1 x 2 below, 0.1 x 2 above."""
    loss = pinball(np.array([10.0, NAN]), np.array([[8.0, 12.0], [1.0, 1.0]]), (0.1, 0.9))

    assert [0.2, 0.2] == pytest.approx(loss[0].tolist())
    assert np.isnan(loss[1]).all()
    assert pytest.approx(0.2) == mean_pinball(
        np.array([10.0, NAN]), np.array([[8.0, 12.0], [1.0, 1.0]]), (0.1, 0.9)
    )


def test_coverage_leaves_missing_steps_out() -> None:
    values = np.array([[5.0, 9.0], [5.0, 9.0], [5.0, 9.0]])

    assert (0.5, 1.0) == coverage(np.array([4.0, 7.0, NAN]), values, (0.5, 0.9))
    assert all(np.isnan(coverage(np.full(3, NAN), values, (0.5, 0.9))))


def test_bias_is_a_share_of_demand() -> None:
    assert pytest.approx(0.1) == bias(np.array([10.0, 10.0, NAN]), np.array([12.0, 10.0, 99.0]))
    assert np.isnan(bias(np.zeros(2), np.ones(2)))


def test_naive_scale_is_unknown_without_a_whole_season() -> None:
    assert pytest.approx(2.0) == naive_scale(np.array([1.0, 2.0, 3.0, 4.0]), 2)
    assert np.isnan(naive_scale(np.array([1.0, 2.0]), 2))
    assert np.isnan(known_mean(np.array([NAN])))
    with pytest.raises(ForecastInputError):
        naive_scale(np.array([1.0, 2.0]), 0)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ForecastInputError) as caught:
        pinball(np.zeros(3), np.zeros((3, 2)), (0.5,))

    assert "values" == caught.value.field
