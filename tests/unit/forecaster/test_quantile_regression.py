"""Lines through quantiles: they find what moves them, and are judged on what they have not seen."""

import numpy as np
import pytest

from forecaster.quantile_regression import SPREAD_MIN, Lines, fit_lines
from forecaster.types import Floats


def _record(count: int, seed: int = 3) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    cause = rng.uniform(-1.0, 1.0, count)
    # The middle rises with the cause, and so does how uncertain it is.
    target = 2.0 * cause + (0.5 + 0.4 * cause) * rng.normal(size=count)
    return np.vstack((np.ones(count), cause)), target


def _fitted(features: Floats, target: Floats) -> Lines:
    half = np.arange(len(target)) // 50 % 2
    lines = fit_lines(features, target, np.ones(len(target)), half)
    assert lines is not None
    return lines


def _new(lines: Lines, features: Floats) -> tuple[Floats, Floats]:
    """Usual value and spread of something that is not of the record."""
    usual, high = lines.new() @ np.vstack((features, np.ones_like(features[:1])))
    return usual, np.maximum(high - usual, SPREAD_MIN)


@pytest.mark.parametrize("cause", [-0.8, 0.0, 0.8])
def test_middle_and_spread_follow_the_cause(cause: float) -> None:
    usual, spread = _new(_fitted(*_record(8000)), np.array([[1.0], [cause]]))

    # Quantiles 0.7 and 0.9 of the standard normal lie at 0.524 and 1.282.
    assert usual[0] == pytest.approx(2.0 * cause + 0.524 * (0.5 + 0.4 * cause), abs=0.1)
    assert spread[0] == pytest.approx((1.282 - 0.524) * (0.5 + 0.4 * cause), abs=0.1)


def test_each_half_of_the_record_is_judged_by_lines_that_have_not_seen_it() -> None:
    features, target = _record(2000)
    half = np.arange(2000) // 50 % 2
    changed = np.where(half == 0, target + 5.0, target)
    lines, other = _fitted(features, target), _fitted(features, changed)

    one, _ = lines.say(features, half)
    two, _ = other.say(features, half)

    np.testing.assert_allclose(one[half == 0], two[half == 0])
    assert (two - one)[half == 1] == pytest.approx(5.0, abs=0.2)


def test_too_short_a_record_says_nothing() -> None:
    features, target = _record(299)
    one_half = np.zeros(1000, dtype=np.int64)

    assert fit_lines(features, target, np.ones(299), np.arange(299) % 2) is None
    assert fit_lines(*_record(1000), np.ones(1000), one_half) is None


def test_a_feature_that_never_moves_and_targets_without_spread_are_fine() -> None:
    features = np.vstack((np.ones(600), np.full(600, 3.0)))

    usual, spread = _new(_fitted(features, np.full(600, 7.0)), features)

    assert usual == pytest.approx(7.0, abs=1e-3)
    assert spread.tolist() == [SPREAD_MIN] * 600
