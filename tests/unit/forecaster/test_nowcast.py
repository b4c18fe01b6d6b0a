"""The minute correction: follows a level error, ignores one odd reading, keeps its hands off the unknown."""

import numpy as np
import pytest

from forecaster import ForecastInputError, nowcast

NAN = float("nan")
VALUES = np.tile(np.array([80.0, 100.0, 130.0]), (2, 12, 1))


def corrected(observed: list[float], **options: float) -> np.ndarray:
    rows = np.array([observed, observed])
    return nowcast(VALUES, rows, np.full(rows.shape, 100.0), **options)


def test_a_lasting_excess_lifts_every_quantile_and_fades() -> None:
    result = corrected([150.0] * 6, half_life_steps=6.0)

    assert 1.25 < result[0, 0, 1] / 100.0 < 1.5
    assert (np.diff(result[0, :, 1]) < 0).all()
    assert (result[0, :, 2] > VALUES[0, :, 2]).all()


def test_a_lasting_lack_lowers_it() -> None:
    assert 50.0 < corrected([50.0] * 6)[0, 0, 1] < 75.0


def test_one_odd_reading_is_not_believed() -> None:
    assert corrected([100.0, 100.0, 100.0, 100.0, 900.0])[0, 0, 1] == pytest.approx(100.0, rel=0.05)


def test_without_observations_nothing_changes() -> None:
    assert np.array_equal(VALUES, corrected([NAN, NAN]))
    assert np.array_equal(VALUES, nowcast(VALUES, np.zeros((2, 0)), np.zeros((2, 0))))


def test_each_workload_is_corrected_by_its_own_observations() -> None:
    observed = np.array([[150.0] * 4, [NAN] * 4])

    result = nowcast(VALUES, observed, np.full((2, 4), 100.0))
    assert result[0, 0, 1] > 120.0
    assert np.array_equal(VALUES[1], result[1])


def test_quantiles_stay_ordered_and_positive_around_zero() -> None:
    result = nowcast(VALUES * 0.0, np.full((2, 3), 5.0), np.zeros((2, 3)))

    assert (result >= 0).all()
    assert (np.diff(result, axis=2) >= 0).all()


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("values", {"values": VALUES[0]}),
        ("values", {"values": VALUES * -1.0}),
        ("observed", {"observed": np.zeros((3, 4))}),
        ("observed", {"observed": np.full((2, 4), np.inf)}),
        ("expected", {"expected": np.zeros((2, 3))}),
        ("expected", {"expected": np.full((2, 4), -1.0)}),
        ("gain", {"gain": 1.5}),
        ("half_life_steps", {"half_life_steps": 0.0}),
    ],
)
def test_arrays_that_do_not_fit_name_the_argument(field: str, change: dict[str, object]) -> None:
    good: dict[str, object] = {"values": VALUES, "observed": np.ones((2, 4)), "expected": np.ones((2, 4))}

    with pytest.raises(ForecastInputError) as caught:
        nowcast(**{**good, **change})  # type: ignore[arg-type]
    assert field == caught.value.field
