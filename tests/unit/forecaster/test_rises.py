"""What a time of day is known for: daily jumps, jumps on the hour, calm nights; each day told by the others."""

import numpy as np

from forecaster.rises import usual_rises
from forecaster.types import Floats

DAY = 1440


def _usual(rise: Floats, ahead: int = 60) -> tuple[Floats, float]:
    usual, mean = usual_rises(rise[None], ahead, step_s=60, day=DAY)
    return usual[0], float(mean[0])


def test_what_rises_every_day_at_nine_is_expected_at_nine() -> None:
    rise = np.zeros(7 * DAY + 8 * 60 + 30)
    rise[540 : 7 * DAY : DAY] = 2.0

    usual, mean = _usual(rise)

    coming = usual[len(rise) :]
    assert int(coming.argmax()) == 30  # 9:00
    assert coming[30] > 3 * mean
    assert coming[30] > 2 * coming[0]


def test_what_rises_on_the_hour_is_expected_on_every_hour_nearby() -> None:
    rng = np.random.default_rng(1)
    rise = np.zeros((8, 24, 60))
    rise[:, 8:18, 0] = rng.random((8, 10)) < 0.3
    record = rise.ravel()[: 7 * DAY + 10 * 60 + 30]

    usual, mean = _usual(record)

    coming = usual[len(record) :]
    assert coming[30] > 2 * coming[10]  # 11:00 against 10:40
    night = usual[6 * DAY + 130]
    assert night < 0.2 * mean


def test_an_incident_does_not_excuse_itself_but_is_remembered_the_next_day() -> None:
    rise = np.zeros(8 * DAY)
    rise[4 * DAY + 700] = 5.0

    usual, mean = _usual(rise)

    assert usual[4 * DAY + 700] <= mean
    assert usual[5 * DAY + 700] > mean
    assert usual[4 * DAY + 700] < usual[5 * DAY + 700]


def test_where_nothing_else_is_known_the_mean_is_told() -> None:
    rise = np.full(90, np.nan)
    rise[:80] = 0.4

    usual, mean = _usual(rise)

    np.testing.assert_allclose(mean, 0.4)
    np.testing.assert_allclose(usual, 0.4)


def test_unknown_steps_count_neither_as_calm_nor_as_a_rise() -> None:
    rise = np.full(7 * DAY, 0.5)
    rise[3 * DAY : 4 * DAY] = np.nan

    usual, mean = _usual(rise)

    np.testing.assert_allclose(usual, 0.5)
    np.testing.assert_allclose(mean, 0.5)


def test_steps_of_an_hour_of_a_day_and_odd_ones_work() -> None:
    for step_s in (420, 3600, 86_400):
        day = max(1, 86_400 // step_s)
        usual, mean = usual_rises(np.linspace(0.0, 1.0, 9 * day)[None], 3, step_s=step_s, day=day)
        assert usual.shape == (1, 9 * day + 3)
        assert bool((usual > 0).all())
        np.testing.assert_allclose(mean, 0.5)


def test_rises_in_several_units_are_told_as_each_alone() -> None:
    rng = np.random.default_rng(2)
    rises = rng.random((2, 5 * DAY + 77)) * np.array([[1.0], [30.0]])
    rises[:, 2000:2600] = np.nan
    rises[:, :DAY] = 0.0

    usual, mean = usual_rises(rises, 60, step_s=60, day=DAY)

    for row, alone in enumerate(rises):
        np.testing.assert_allclose(usual[row], _usual(alone)[0], rtol=1e-12)
        np.testing.assert_allclose(mean[row], np.nanmean(alone), rtol=1e-12)
