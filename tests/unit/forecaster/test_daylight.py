"""Demand follows local clocks: the day after a change its season is where people now are."""

import time
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest

from forecaster import Event, ForecastInputError, forecast
from forecaster.daylight import follow, told
from forecaster.series import to_grid

DAY = 96


def office(last_day: str, zone: str, *, days: int = 29, noise: float = 0.05) -> pd.Series:
    """Return demand of people who keep the clock of `zone`, 15-minute steps in UTC, ending after `last_day`."""
    rng = np.random.default_rng(4)
    index = pd.date_range(end=f"{last_day}T23:45Z", periods=days * DAY, freq="15min")
    local = index.tz_convert(zone)
    hour = local.hour + local.minute / 60.0
    shape = 1000.0 * (1.0 - 0.6 * np.cos(2 * np.pi * hour / 24) + 0.5 * ((hour >= 9) & (hour < 17)))
    week = np.where(local.day_of_week >= 5, 0.6, 1.0)
    return pd.Series(shape * week * np.exp(rng.normal(0.0, noise, len(index))), index=index)


def error_of(whole: pd.Series, time_zone: str | None = None) -> float:
    """Return the relative error of a forecast of the last day from the days before."""
    actual = whole.iloc[-DAY:].to_numpy()
    median = forecast(whole.iloc[:-DAY], DAY, time_zone=time_zone).median
    return float(np.abs(median - actual).mean() / actual.mean())


@pytest.mark.parametrize(
    ("day", "zone"),
    [
        ("2026-03-30", "Europe/Berlin"),
        ("2026-03-31", "Europe/Lisbon"),
        ("2026-10-26", "Europe/Berlin"),
        ("2026-03-09", "America/Chicago"),
        ("2026-11-03", "America/New_York"),
        ("2026-10-06", "Australia/Sydney"),
    ],
)
def test_the_season_is_right_the_day_after_clocks_changed(day: str, zone: str) -> None:
    usual = error_of(office(day, "UTC"))

    # Unmoved, the edges of office hours alone cost 8 % more.
    assert error_of(office(day, zone)) < usual + 0.02


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_who_keeps_no_daylight_saving_is_left_alone(zone: str) -> None:
    grid = to_grid(office("2026-04-02", zone))

    assert follow(grid, DAY) is None


def test_noise_follows_no_clock() -> None:
    index = pd.date_range(end="2026-04-02T23:00Z", periods=29 * 24, freq="1h")
    noise = [np.random.default_rng(seed).gamma(2.0, 50.0, len(index)) for seed in range(40)]

    assert [None] * 40 == [follow(to_grid(pd.Series(one, index=index)), 24) for one in noise]


@pytest.mark.parametrize("change", ["2026-03-29", "2026-10-25"])
def test_a_change_ahead_is_planned_for_once_one_was_followed(change: str) -> None:
    """Years of history name the clock, so the next change within the horizon is no surprise."""
    whole = office(change, "Europe/Berlin", days=240)

    assert error_of(whole) < error_of(office(change, "UTC", days=240)) + 0.03


def test_an_event_stays_on_its_own_hours_after_clocks_changed() -> None:
    history = office("2026-03-31", "Europe/Berlin", noise=0.01)
    events = []
    for day in ("2026-03-10", "2026-03-18", "2026-03-25", "2026-04-01"):
        start = pd.Timestamp(f"{day}T20:00", tz="Europe/Berlin")
        events.append(Event(start.to_pydatetime(), (start + pd.Timedelta(hours=2)).to_pydatetime()))
        history[(history.index >= start) & (history.index < start + pd.Timedelta(hours=2))] *= 4.0

    lift = forecast(history, DAY, events=events).components.event
    inside = slice(18 * 4, 20 * 4)  # 20:00 in Berlin's summer is 18:00 UTC
    assert lift[inside].min() > 5 * np.abs(np.concatenate((lift[: 17 * 4], lift[21 * 4 :]))).max()


@pytest.mark.parametrize("change", ["2026-03-29", "2026-10-25"])
def test_a_zone_that_is_told_is_followed_at_the_first_change(change: str) -> None:
    whole = office(change, "Europe/Berlin")

    assert error_of(whole, "Europe/Berlin") < error_of(office(change, "UTC")) + 0.02
    assert error_of(whole, "Europe/Berlin") < error_of(whole) - 0.03


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "Asia/Kathmandu"])
def test_a_zone_without_changes_changes_nothing(zone: str) -> None:
    history = office("2026-04-02", "Asia/Tokyo")

    assert forecast(history, DAY).values.tolist() == forecast(history, DAY, time_zone=zone).values.tolist()


def test_the_dates_of_a_told_zone_decide_what_a_weekend_is() -> None:
    """Monday at eight in Sydney is Sunday in UTC: weekend mornings must not teach it."""
    history = office("2026-03-01", "Australia/Sydney", noise=0.01).iloc[: -DAY // 8]
    events = []
    for date in pd.date_range("2026-02-02", "2026-03-02", tz="Australia/Sydney"):
        start, end = date + pd.Timedelta(hours=8), date + pd.Timedelta(hours=10)
        events.append(Event(start.to_pydatetime(), end.to_pydatetime(), category="class"))
        inside = (history.index >= start) & (history.index < end)
        history[inside] *= 6.0 if date.day_of_week >= 5 else 2.0

    blind, told = (
        forecast(history, 12, events=events, time_zone=zone).components.event[4:8].mean()
        for zone in (None, "Australia/Sydney")
    )
    assert 0.0 < told < 0.8 * blind


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Sydney", "America/New_York", "Asia/Kolkata"])
def test_an_event_is_the_same_on_every_clock(zone: str) -> None:
    """Given in UTC or in a zone whose clock jumps within it or soon after, or without an end."""
    history = office("2026-10-02", "UTC", days=15)
    end = datetime.max.replace(tzinfo=UTC)
    for start, length in (
        ("2026-10-03T12:00Z", "8h"),
        ("2026-10-03T15:50Z", "20min"),
        ("2026-10-04T00:00Z", "2h"),
    ):
        first = pd.Timestamp(start)
        last = first + pd.Timedelta(length)
        given = [
            Event(a.to_pydatetime(), b.to_pydatetime(), expected_multiplier=3.0)
            for a, b in ((first, last), (first.tz_convert(zone), last.tz_convert("Australia/Sydney")))
        ]
        one, other = (forecast(history, 2 * DAY, events=[e], time_zone=zone).values for e in given)
        assert np.array_equal(one, other)
        endless = Event(given[1].start, end, expected_multiplier=3.0)
        assert forecast(history, 2 * DAY, events=[endless], time_zone=zone).median[-1] > 700.0  # usually 330


def test_an_event_in_the_hour_that_happens_twice_stays_there() -> None:
    """It is seen in both of them, and not ten hours away."""
    history = office("2026-04-03", "Australia/Sydney", days=22, noise=0.01)
    start = pd.Timestamp("2026-04-04T15:30Z").to_pydatetime()  # clocks go back at 16:00 UTC
    event = Event(start, start + pd.Timedelta(minutes=45).to_pytimedelta(), expected_multiplier=9.0)

    lift = forecast(history, DAY, events=[event], time_zone="Australia/Sydney").components.event
    at = np.flatnonzero(lift > 1000.0)
    assert 62 == at.min()  # 15:30
    assert at.max() < 70


@pytest.mark.parametrize(
    ("zone", "moment"),
    [("Australia/Adelaide", "2026-10-03T16:30Z"), ("Australia/Lord_Howe", "2026-10-03T15:30Z")],
)
def test_half_hour_zones_change_at_their_own_time(zone: str, moment: str) -> None:
    grid = to_grid(office("2026-10-10", zone))

    assert pd.Timestamp(moment).timestamp() == told(ZoneInfo(zone), grid, DAY).changes[-1][0]


@pytest.mark.parametrize("machine", ["America/New_York", "Asia/Kolkata", ""])
def test_the_zone_of_this_machine_plays_no_part(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    history = office("2026-03-31", "Europe/Berlin")
    event = Event(history.index[100].to_pydatetime(), history.index[108].to_pydatetime())
    here = [forecast(history, DAY, events=[event], time_zone=zone).values for zone in (None, "Europe/Berlin")]

    monkeypatch.setenv("TZ", machine)
    time.tzset()
    there = [
        forecast(history, DAY, events=[event], time_zone=zone).values for zone in (None, "Europe/Berlin")
    ]
    monkeypatch.undo()
    time.tzset()

    assert np.array_equal(here, there)


@pytest.mark.parametrize(
    "zone", ["Mars/Olympus", "", "Europe", "../UTC", 5, "localtime", "right/Europe/Berlin", "UTC+2"]
)
def test_a_zone_that_is_none_is_refused(zone: str) -> None:
    with pytest.raises(ForecastInputError) as caught:
        forecast(office("2026-04-02", "UTC"), DAY, time_zone=zone)

    assert "time_zone" == caught.value.field


def test_an_hour_that_happened_twice_is_what_was_seen_of_it() -> None:
    """Its second run is the later one, unless nothing of that was read."""
    history = pd.Series(np.nan, index=pd.date_range("2026-10-25T00:00Z", periods=24, freq="5min"))
    history.iloc[:12] = 100.0

    result = forecast(history, 12, time_zone="Europe/Berlin")
    assert result.median == pytest.approx(np.full(12, 100.0))
