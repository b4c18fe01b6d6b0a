"""Which rows of a history a regression learns from."""

import numpy as np
import pytest

from forecaster.models.stack import ROW_COUNT_MAX, bands, hour_of, plan


@pytest.mark.parametrize("day", [24, 48, 96, 144, 288])
@pytest.mark.parametrize("days", [15, 21, 56])
def test_every_hour_of_the_day_teaches_every_band(day: int, days: int) -> None:
    """A stride that divides the day would see some hours alone, and rules differ by time of day."""
    for steps in bands(day, day):
        found = plan(days * day, day, steps, 7 * day + 1)

        assert found is not None
        assert list(range(24)) == np.unique(hour_of(found.origins, day)).tolist()
        assert len(found.origins) * len(found.picks) <= 2 * ROW_COUNT_MAX


def test_daily_steps_are_all_used() -> None:
    found = plan(700, 1, np.array([1]), 8)

    assert found is not None
    assert 690 == len(found.origins)
