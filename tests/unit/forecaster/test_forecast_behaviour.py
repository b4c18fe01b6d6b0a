"""What a forecast does with real life: outages, outliers, jumps, closed hours, promotions and their planners."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from forecaster import Event, forecast
from forecaster.series import to_grid
from forecaster.types import HOLIDAY

DAY = 288


def service(days: int, *, noise: float = 0.05, seed: int = 3) -> pd.Series:
    """Return a day-and-week shape around 1 000 requests per second, 5-minute steps, ending on a Sunday midnight."""
    rng = np.random.default_rng(seed)
    t = np.arange(days * DAY)
    index = pd.date_range(end="2026-03-29T23:55Z", periods=len(t), freq="5min")
    shape = 1000.0 * (1.0 - 0.6 * np.cos(2 * np.pi * t / DAY)) * np.where(index.day_of_week >= 5, 0.7, 1.0)
    return pd.Series(shape * np.exp(rng.normal(0.0, noise, len(t))), index=index)


def hours(history: pd.Series, day: int, first: int, last: int) -> slice:
    """Return the rows of `day` (from the end, 0 is the last) between two hours."""
    start = len(history) - (day + 1) * DAY
    return slice(start + first * 12, start + last * 12)


def window(history: pd.Series, day: int, first: int, length: int, **expectation: float) -> Event:
    """Return an event on `day` from the end; day -1 is the first day to forecast."""
    midnight = history.index[-1] + pd.Timedelta(minutes=5) - pd.Timedelta(days=day + 1)
    start = midnight + pd.Timedelta(hours=first)
    end = start + pd.Timedelta(hours=length)
    return Event(start.to_pydatetime(), end.to_pydatetime(), category="sale", **expectation)


def test_an_ordinary_day_is_forecast_within_a_few_percent() -> None:
    whole = service(29)
    result = forecast(whole.iloc[:-DAY], DAY)

    error = np.abs(result.median - whole.iloc[-DAY:].to_numpy()).mean() / whole.iloc[-DAY:].mean()
    assert error < 0.08
    assert 0.90 <= float((whole.iloc[-DAY:].to_numpy() <= result.values[:, 3]).mean()) <= 1.0


def spike(history: pd.Series) -> None:
    history.iloc[hours(history, 2, 12, 14)] *= 20.0


def outage(history: pd.Series) -> None:
    history.iloc[hours(history, 1, 8, 15)] = 0.0


def gap(history: pd.Series) -> None:
    history.iloc[hours(history, 1, 8, 15)] = np.nan


@pytest.mark.parametrize("accident", [spike, outage, gap])
def test_an_accident_does_not_become_the_new_season(accident: Callable[[pd.Series], None]) -> None:
    clean = service(28)
    hurt = clean.copy()
    accident(hurt)

    expected, actual = forecast(clean, DAY).median, forecast(hurt, DAY).median
    assert np.abs(actual - expected).mean() < 0.07 * expected.mean()


@pytest.mark.parametrize("ago", [1, 7, 150, 2 * DAY + 100, 20 * DAY])
@pytest.mark.parametrize("factor", [1e4, 1e7])
def test_a_reset_counter_read_as_a_spike_changes_nothing_and_is_said(ago: int, factor: float) -> None:
    clean = service(28)
    hurt = clean.copy()
    hurt.iloc[-ago] *= factor

    expected, actual = forecast(clean, DAY), forecast(hurt, DAY)
    assert "1 readings look like a reset counter and were left out." in actual.reasons
    assert np.abs(actual.median / expected.median - 1.0).max() < 0.05
    assert (actual.values[:, -1] / expected.values[:, -1]).max() < 1.05


@pytest.mark.parametrize("ago", [2, 7, 150, 2 * DAY + 100])
def test_a_reset_counter_read_as_zero_changes_little(ago: int) -> None:
    clean = service(28)
    hurt = clean.copy()
    hurt.iloc[-ago] = 0.0

    expected, actual = forecast(clean, DAY).median, forecast(hurt, DAY).median
    assert np.abs(actual - expected).mean() < 0.05 * expected.mean()


def test_a_jump_beyond_belief_that_lasts_is_demand() -> None:
    history = service(28)
    history.iloc[-3:] *= 1e4

    assert 0 == to_grid(history).absurd_count
    assert forecast(history, 1).values[0, -1] > 100.0 * history.iloc[:-3].max()


def test_a_jump_is_demand_also_where_readings_are_missing_now_and_then() -> None:
    history = service(28)
    history.iloc[-8:] *= 1e4
    history.iloc[[-6, -3]] = np.nan

    assert 0 == to_grid(history).absurd_count


@pytest.mark.parametrize("rows", [(0,), (-1,), (-2, -1), (100, 102), (200,)])
def test_reset_counters_at_the_edges_and_in_gaps_are_left_out(rows: tuple[int, ...]) -> None:
    history = service(9)
    history.iloc[190:210] = np.nan
    for row in rows:
        history.iloc[row] = 1e9

    assert len(rows) == to_grid(history).absurd_count


@pytest.mark.parametrize("factor", [0.0, 1.0, 50.0, 900.0])
def test_readings_within_belief_are_left_as_they_are(factor: float) -> None:
    """A drop to nothing for a bucket or two and a spike of flash crowds are demand."""
    history = service(9)
    history.iloc[[50, 51, 1000, -2, -1]] = factor * float(history.max())

    assert np.array_equal(history.to_numpy(), to_grid(history).values)


def test_an_outage_recorded_as_zero_is_said() -> None:
    hurt = service(28)
    outage(hurt)

    assert "84 zeros look like outages and were left out." in forecast(hurt, 12).reasons


def test_a_level_shift_is_followed_within_hours() -> None:
    history = service(28)
    usual = forecast(history, DAY).median
    history.iloc[-36:] *= 3.0

    shifted = forecast(history, DAY).median
    assert 2.0 < float((shifted[:12] / usual[:12]).mean()) < 4.0


@pytest.mark.parametrize("unread", [1, 2])
def test_zeros_that_reach_the_newest_reading_are_no_outage(unread: int) -> None:
    """The newest buckets are often not stored yet; what was seen last is no gap for that."""
    history = service(21)
    history.iloc[-7 * 12 :] = 0.0
    history.iloc[-unread:] = np.nan

    result = forecast(history, 12)
    assert result.median.max() < 0.3 * service(21).iloc[-7 * 12 :].mean()
    assert not [reason for reason in result.reasons if "outages" in reason]


@pytest.mark.parametrize("step", ["5min", "15min"])
@pytest.mark.parametrize("hours", [23, 24, 26, 29])
@pytest.mark.parametrize("hour", [0, 6, 12])
def test_a_day_of_history_is_a_level_and_not_its_distance_from_the_mean_twice(
    step: str, hours: int, hour: int
) -> None:
    """By night the first day's level errors were taken off yesterday's night: nothing was forecast for all of it."""
    whole = service(9, noise=0.02).resample(step).mean()
    end = whole.index[-1].floor("1D") + pd.Timedelta(hours=hour)
    history = whole[(whole.index < end) & (whole.index >= end - pd.Timedelta(hours=hours))]

    result = forecast(history, int(pd.Timedelta("2h") / pd.Timedelta(step)))
    usual = whole.reindex(result.index).to_numpy()
    assert (result.median / usual) == pytest.approx(np.ones(len(usual)), abs=0.6)
    assert (result.values[:, -1] > 0.8 * usual).all()


@pytest.mark.parametrize("days", [1.5, 1.75, 2.0])
def test_the_second_day_is_as_the_first_beside_an_event_too(days: float) -> None:
    """Copies of yesterday are not used beside events; models were then taught by a day that knew no season."""
    history = service(9).iloc[: -2 * DAY].iloc[-int(days * DAY) :]
    asked = [window(history, 0, 1, 1), window(history, -3, 12, 4)]

    usual = service(9).iloc[-2 * DAY : -DAY].to_numpy()
    share = forecast(history, DAY, events=asked).median / usual
    assert 0.6 < share.min()
    assert share.max() < 1.7


def test_no_demand_at_regularly_closed_hours() -> None:
    history = service(28)
    closed = pd.DatetimeIndex(history.index).hour < 8
    history[closed] = 0.0

    result = forecast(history, DAY)
    assert float(result.values[: 8 * 12, 3].max()) < 5.0
    assert float(result.median[10 * 12 :].min()) > 200.0


def test_rare_requests_are_no_steady_trickle() -> None:
    """One bucket in twelve has a burst of about 50: usually nothing comes, and the upper quantiles are a burst."""
    rng = np.random.default_rng(11)
    history = service(28) * 0.0
    bursts = rng.random(len(history)) < 1 / 12
    history[bursts] = rng.gamma(25.0, 2.0, int(bursts.sum()))

    result = forecast(history, DAY)
    assert float(result.median.max()) < 5.0
    assert float(np.median(result.median)) < 0.01
    assert 30.0 < float(np.median(result.values[:, 3])) < 90.0
    assert 40.0 < float(np.median(result.values[:, 4])) < 120.0


def test_quantiles_are_narrow_where_demand_is_quiet() -> None:
    """A noisy day does not widen a quiet night, though most errors of the history are the day's."""
    rng = np.random.default_rng(12)
    history = service(28, noise=0.0)
    by_day = pd.DatetimeIndex(history.index).hour >= 8
    history[by_day] *= np.exp(rng.normal(0.0, 0.4, int(by_day.sum())))
    history[~by_day] *= np.exp(rng.normal(0.0, 0.02, int((~by_day).sum())))

    values = forecast(history, DAY).values
    width = np.log(values[:, 3] / values[:, 0])
    assert 10 * float(np.median(width[12 : 6 * 12])) < float(np.median(width[10 * 12 : 22 * 12]))


def test_a_pulse_at_a_fixed_minute_is_expected_when_it_is_about_to_start() -> None:
    """The last value says nothing at the edge of a scheduled job; yesterday does."""
    rng = np.random.default_rng(13)
    history = service(22, noise=0.0) * 0.0 + 10.0 * np.exp(rng.normal(0.0, 0.05, 22 * DAY))
    at = np.arange(len(history)) % DAY
    history[(at >= 144) & (at < 156)] *= 8.0
    cut = len(history) - DAY + 144

    median = forecast(history.iloc[:cut], 24).median
    assert float(median[:12].min()) > 50.0
    assert float(median[13:].max()) < 20.0


def test_zeros_forecast_zero_and_say_so() -> None:
    history = service(28) * 0.0
    result = forecast(history, 12)

    assert 0.0 == float(result.values.max())
    assert "Every observation is zero" in result.reasons[0]


def test_a_constant_stays_constant() -> None:
    history = service(28) * 0.0 + 42.0

    assert forecast(history, DAY).median == pytest.approx(np.full(DAY, 42.0), rel=0.01)


def test_an_exact_weekly_copy_is_recognised() -> None:
    week = service(7, noise=0.5)
    history = pd.concat([week.shift(k * 7, freq="1D") for k in range(3)])

    result = forecast(history, DAY)
    assert result.model_weights["last_week"] > 0.9
    assert result.median == pytest.approx(week.iloc[:DAY].to_numpy(), rel=0.02)


def test_a_known_promotion_does_not_become_next_week() -> None:
    clean = service(28)
    promoted = clean.copy()
    promoted.iloc[hours(promoted, 6, 12, 16)] *= 6.0

    told = forecast(promoted, DAY, events=[window(promoted, 6, 12, 4)])
    expected = forecast(clean, DAY).median
    assert np.abs(told.median - expected).mean() < 0.08 * expected.mean()


def test_an_expected_multiplier_lifts_the_window_and_its_uncertainty() -> None:
    history = service(28)
    event = window(history, -1, 12, 4, expected_multiplier=5.0)

    plain, told = forecast(history, DAY), forecast(history, DAY, events=[event])
    inside, outside = slice(12 * 12, 16 * 12), slice(0, 9 * 12)
    assert 4.0 < float((told.median[inside] / plain.median[inside]).mean()) < 6.0
    assert told.median[outside] == pytest.approx(plain.median[outside], rel=0.05)
    assert float((told.values[inside, 4] / told.median[inside]).mean()) > 1.5
    assert float(told.components.event[inside].min()) > 0.0


def test_an_expected_peak_is_reached() -> None:
    history = service(28)
    event = window(history, -1, 12, 2, expected_peak=35_000.0)

    told = forecast(history, DAY, events=[event])
    assert 28_000.0 < float(told.median.max()) < 42_000.0


def test_past_events_teach_what_the_next_will_do() -> None:
    history = service(28)
    days = (20, 15, 9, 4)
    for day in days:
        history.iloc[hours(history, day, 12, 16)] *= 3.0
    events = [window(history, day, 12, 4) for day in (*days, -1)]

    plain = forecast(service(28), DAY).median
    told = forecast(history, DAY, events=events)
    assert 2.3 < float((told.median / plain)[12 * 12 + 3 : 16 * 12 - 3].mean()) < 3.6


def test_a_planner_who_always_doubles_is_corrected() -> None:
    history = service(28)
    days = (20, 15, 9, 4)
    for day in days:
        history.iloc[hours(history, day, 12, 16)] *= 2.0
    events = [window(history, day, 12, 4, expected_multiplier=4.0) for day in (*days, -1)]

    plain = forecast(service(28), DAY).median
    told = forecast(history, DAY, events=events)
    assert 1.6 < float((told.median / plain)[12 * 12 + 3 : 16 * 12 - 3].mean()) < 2.7


def test_two_promotions_at_once_add_their_extra_demand() -> None:
    history = service(28)
    one = [window(history, -1, 12, 4, expected_multiplier=2.0)]

    plain = forecast(history, DAY).median
    both = forecast(history, DAY, events=one * 2).median
    assert 2.6 < float((both / plain)[12 * 12 + 3 : 16 * 12 - 3].mean()) < 3.5


def test_a_history_may_begin_with_a_gap() -> None:
    history = service(28)
    history.iloc[:5] = np.nan
    events = [window(history, day, 12, 4) for day in (20, 10)]

    forecasts = [forecast(one, DAY, events=events).values for one in (history, history.dropna())]
    assert np.array_equal(forecasts[0], forecasts[1])


def test_a_history_that_is_one_single_event_still_has_a_level() -> None:
    history = service(1).iloc[:24]
    whole = Event(history.index[0].to_pydatetime(), history.index[-1].to_pydatetime() + pd.Timedelta(hours=1))

    median = forecast(history, 3, events=[whole]).median
    assert 0.5 < float((median / history.mean()).mean()) < 2.0


def test_an_event_nobody_knows_anything_about_is_named() -> None:
    history = service(28)

    result = forecast(history, DAY, events=[window(history, -1, 12, 4)])
    assert "category 'sale' have no past and no expected uplift" in result.reasons[0]


def offices(last_day: str, holidays: tuple[str, ...], *, days: int = 57, sundays: float = 0.3) -> pd.Series:
    """Return an hourly load of offices in New York, quiet on Sundays and on holidays."""
    index = pd.date_range(end=pd.Timestamp(f"{last_day}T23:00Z"), periods=days * 24, freq="1h")
    local = index.tz_convert("America/New_York")
    off = (local.day_of_week == 6) | local.strftime("%Y-%m-%d").isin(holidays)
    shape = 1000.0 * (1.0 - 0.6 * np.cos(2 * np.pi * local.hour / 24)) * np.where(off, sundays, 1.0)
    noise = np.random.default_rng(5).normal(0.0, 0.03, len(index))
    return pd.Series(shape * np.exp(noise), index=index)


def day_off(day: str) -> Event:
    start = pd.Timestamp(day, tz="America/New_York")
    return Event(start.to_pydatetime(), (start + pd.Timedelta(days=1)).to_pydatetime(), category=HOLIDAY)


def test_a_first_holiday_is_taken_for_a_sunday_and_wider() -> None:
    history = offices("2026-07-01", ())
    inside = slice(8, 24)  # 2026-07-02 from 04:00 in New York

    usual = forecast(history, 24)
    holiday = forecast(history, 24, events=[day_off("2026-07-02")])
    share = (holiday.median / usual.median)[inside]
    assert 0.35 < share.min()
    assert share.max() < 0.6
    wide, narrow = ((f.values[:, 3] / f.median)[inside].mean() for f in (holiday, usual))
    assert wide > narrow
    assert not holiday.reasons


def test_holidays_that_were_no_sundays_teach_that_the_next_is_none() -> None:
    """This service closes on Sundays alone: its past holidays were ordinary days."""
    past = ("2026-05-12", "2026-05-21", "2026-06-02", "2026-06-10", "2026-06-18", "2026-06-24")
    history = offices("2026-07-01", ())

    usual = forecast(history, 24).median
    holiday = forecast(history, 24, events=[day_off(day) for day in (*past, "2026-07-02")]).median
    assert (holiday / usual)[8:].min() > 0.85


def test_a_service_whose_sundays_are_like_any_day_keeps_its_holidays() -> None:
    history = offices("2026-07-01", (), sundays=1.0)

    usual = forecast(history, 24).median
    holiday = forecast(history, 24, events=[day_off("2026-07-02")]).median
    assert np.abs(holiday / usual - 1.0).max() < 0.06


def test_what_a_planner_says_of_a_holiday_goes_before_sundays() -> None:
    history = offices("2026-07-01", ())
    said = replace(day_off("2026-07-02"), expected_multiplier=2.0)

    usual = forecast(history, 24).median
    assert (forecast(history, 24, events=[said]).median / usual)[8:].min() > 1.5
