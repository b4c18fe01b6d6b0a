"""Where events lie on the grid, which of them belong together, and what nobody knows anything about."""

from datetime import timedelta

import numpy as np
import pandas as pd
import pytest

from forecaster import Event, Forecast, forecast
from forecaster.types import HOLIDAY, Floats

DAY = 288
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
FLASH, CAMPAIGN = slice(60 * 12, 62 * 12), slice(12 * 12, 60 * 12)


def offices(last: str, zone: str = "UTC", *, days: int = 57, step: str = "1h") -> pd.Series:
    """Return a load that is quieter on Saturdays and quiet on Sundays, as dated in a zone, until a moment of UTC."""
    index = pd.date_range(end=pd.Timestamp(last, tz="UTC"), start=None, freq=step, periods=_count(days, step))
    local = index.tz_convert(zone)
    shape = np.where(local.day_of_week == 6, 300.0, np.where(local.day_of_week == 5, 600.0, 1000.0))
    if step != "1D":
        shape = shape * (1.0 - 0.6 * np.cos(2 * np.pi * np.asarray(local.hour) / 24))
    noise = np.random.default_rng(5).normal(0.0, 0.03, len(index))
    return pd.Series(shape * np.exp(noise), index=index)


def _count(days: int, step: str) -> int:
    return int(pd.Timedelta(days=days) / pd.Timedelta(step))


def service(days: int = 28) -> pd.Series:
    """Return a day's wave around 1 000, the same on every day, 5-minute steps."""
    t = np.arange(days * DAY)
    noise = np.random.default_rng(3).normal(0.0, 0.03, len(t))
    index = pd.date_range("2026-06-01", periods=len(t), freq="5min", tz="UTC")
    return pd.Series(1000.0 * (1.2 - np.cos(2 * np.pi * t / DAY)) * np.exp(noise), index=index)


def window(
    zone: str, day: str, *, hours: tuple[int, int] = (0, 24), category: str = HOLIDAY, **expected: float
) -> Event:
    start, end = (pd.Timestamp(day) + pd.Timedelta(hours=h) for h in hours)
    return Event(
        start.tz_localize(zone).to_pydatetime(),
        end.tz_localize(zone).to_pydatetime(),
        category=category,
        **expected,
    )


def ahead(history: pd.Series, first_h: float, last_h: float, **said: float) -> Event:
    """Return an event so many hours after the last row's end."""
    end = history.index[-1].to_pydatetime() + 5 * MINUTE
    return Event(end + first_h * HOUR, end + last_h * HOUR, category="sale", **said)


def ratio(history: pd.Series, horizon: int, events: list[Event], **more: str) -> Floats:
    usual = forecast(history, horizon, **more).median  # type: ignore[arg-type]
    return forecast(history, horizon, events=events, **more).median / usual  # type: ignore[arg-type]


def same(left: Forecast, right: Forecast) -> bool:
    parts = ("baseline", "trend", "season", "event", "correction")
    return bool(np.array_equal(left.values, right.values)) and all(
        np.array_equal(getattr(left.components, part), getattr(right.components, part)) for part in parts
    )


@pytest.mark.parametrize(
    "zone",
    ["Pacific/Auckland", "Pacific/Honolulu", "Asia/Kolkata", "America/St_Johns"],
)
@pytest.mark.parametrize("day", ["2026-12-17", "2026-12-21"])  # a Thursday and a Monday
def test_a_holiday_has_the_date_that_its_users_give_it(zone: str, day: str) -> None:
    """Midnight in Auckland is eleven in the morning of the day before, in UTC, and still nearer to the next."""
    before = pd.Timestamp(day, tz=zone).tz_convert("UTC").floor("1h") - pd.Timedelta(hours=2)
    history = offices(before.strftime("%Y-%m-%dT%H:00"), zone)

    inside = ratio(history, 30, [window(zone, day)])[4:24]
    assert inside.min() > 0.3
    assert inside.max() < 0.7


@pytest.mark.parametrize("day", ["2026-07-02", "2026-07-03"])
def test_an_afternoon_off_is_the_afternoon_of_a_sunday(day: str) -> None:
    """Its date is the one it starts on: the midnight nearest to three in the afternoon is that of the next day."""
    history = offices("2026-07-01T23:00")
    first = 24 * (day == "2026-07-03")

    shares = ratio(history, 48, [window("UTC", day, hours=(15, 24))])
    assert shares[first + 15 : first + 24] == pytest.approx(np.full(9, 0.3**0.7), rel=0.15)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Asia/Kolkata", "UTC"])
def test_a_day_off_is_one_day_of_a_daily_series(zone: str) -> None:
    history = offices("2026-07-01", days=100, step="1D")

    shares = ratio(history, 4, [window(zone, "2026-07-03")])
    assert 0.3 < shares[1] < 0.6
    assert shares[[0, 2, 3]] == pytest.approx(np.ones(3), abs=0.03)


@pytest.mark.parametrize("expected", [0.5, 2.0])
@pytest.mark.parametrize(("step", "zone"), [("1D", "Europe/Berlin"), ("1h", "Asia/Kolkata")])
def test_days_that_follow_each_other_are_not_two_at_once(step: str, zone: str, expected: float) -> None:
    """Two days at half are no days at nothing, though their common midnight is none of the grid."""
    history = offices("2026-06-29T23:00" if step == "1h" else "2026-06-29", days=100, step=step)
    events = [
        window(zone, day, category="sale", expected_multiplier=expected)
        for day in ("2026-07-01", "2026-07-02")
    ]

    shares = ratio(history, 72 if step == "1h" else 3, events)
    inside = shares[24:60] if step == "1h" else shares[1:3]
    assert inside == pytest.approx(np.full(len(inside), expected), rel=0.2)


@pytest.mark.parametrize("days", [9, 30, 50])
def test_a_holiday_far_ahead_is_taken_for_a_sunday_too(days: int) -> None:
    """Also where no Sunday within four weeks of it was seen."""
    history = offices("2026-07-01", days=100, step="1D")
    day = pd.Timestamp("2026-07-01") + pd.Timedelta(days=days)

    share = ratio(history, 60, [window("UTC", day.strftime("%Y-%m-%d"))])[days - 1]
    assert 0.3 < share < 0.75


def test_a_holiday_of_which_neither_sundays_nor_holidays_tell_is_named_and_changes_nothing() -> None:
    history = offices("2026-07-02T23:00", days=3)

    usual, told = (forecast(history, 24, events=e) for e in ([], [window("UTC", "2026-07-03")]))
    assert same(usual, told)
    assert "1 coming event(s) of category 'holiday' have no past" in told.reasons[-1]


def test_an_event_that_nobody_knows_anything_about_changes_nothing() -> None:
    history = service()

    usual, told = (forecast(history, DAY, events=e) for e in ([], [ahead(history, 12, 16)]))
    assert same(usual, told)
    assert "1 coming event(s) of category 'sale' have no past" in told.reasons[-1]


@pytest.mark.parametrize("category", ["sale", HOLIDAY])
def test_an_event_expected_to_change_nothing_changes_nothing(category: str) -> None:
    """What a planner says of a holiday on which this service is open as ever."""
    history = offices("2026-07-01T23:00")
    said = window("UTC", "2026-07-02", category=category, expected_multiplier=1.0)

    assert ratio(history, 24, [said]) == pytest.approx(np.ones(24), rel=0.02)


@pytest.mark.parametrize("said", [{"expected_peak": 35_000.0}, {"expected_multiplier": 8.0}])
def test_a_flash_sale_in_a_campaign_of_days_lasts_as_long_as_it_lasts(said: dict[str, float]) -> None:
    """Both are of one category, as events without any are."""
    history = service()
    campaign = ahead(history, 12, 132, expected_multiplier=1.2)

    shares = ratio(history, 6 * DAY, [campaign, ahead(history, 60, 62, **said)])
    assert shares[FLASH].min() > 6.0
    assert shares[CAMPAIGN].min() > 1.1
    assert shares[CAMPAIGN].max() < 1.4


def test_a_flash_sale_in_a_campaign_does_what_flash_sales_did() -> None:
    history = service()
    past = [
        Event(at, at + 2 * HOUR, category="sale")
        for at in (history.index[k * DAY + 144].to_pydatetime() for k in (4, 11, 18, 25))
    ]
    for event in past:
        history[(history.index >= event.start) & (history.index < event.end)] *= 4.0

    shares = ratio(
        history, 6 * DAY, [*past, ahead(history, 12, 132, expected_multiplier=1.2), ahead(history, 60, 62)]
    )
    assert 3.0 < shares[FLASH][3:-3].min()
    assert shares[CAMPAIGN].max() < 1.6


def test_shares_of_days_off_within_days_off_are_taken_of_what_is_left() -> None:
    """Six tenths in the holidays and four tenths of that on one of them; the sum of both would be nothing at all."""
    history = service()
    vacation = ahead(history, 12, 132, expected_multiplier=0.6)

    shares = ratio(history, 6 * DAY, [vacation, ahead(history, 60, 100, expected_multiplier=0.4)])
    assert 0.1 < shares[60 * 12 : 100 * 12].min()
    assert np.median(shares[60 * 12 : 100 * 12]) == pytest.approx(0.24, abs=0.1)
    assert np.median(shares[CAMPAIGN]) == pytest.approx(0.6, abs=0.1)


def test_two_sales_are_at_once_only_while_both_last() -> None:
    history = service()
    events = [
        ahead(history, first, last, expected_multiplier=3.0) for first, last in ((6.0, 12.0), (11.0, 18.0))
    ]

    shares = ratio(history, DAY, events)
    assert shares[7 * 12 : 11 * 12] == pytest.approx(np.full(48, 3.0), rel=0.25)
    assert shares[11 * 12 : 12 * 12] == pytest.approx(np.full(12, 5.0), rel=0.1)
    assert shares[12 * 12 : 17 * 12] == pytest.approx(np.full(60, 3.0), rel=0.25)


def test_of_too_many_events_the_nearest_are_planned_for_and_the_rest_is_said() -> None:
    history = service(9)
    events = [ahead(history, k / 3, k / 3 + 1 / 6, expected_multiplier=3.0) for k in range(500)]

    told = forecast(history, 7 * DAY, events=events)
    shares = told.median / forecast(history, 7 * DAY).median
    assert shares[:1600].reshape(-1, 4)[:, :2].min() > 2.5
    assert "The last 100 coming event(s) of category 'sale'" in told.reasons[-1]


def test_an_event_without_end_costs_no_memory() -> None:
    index = pd.date_range("2026-06-01", periods=4000, freq="1s", tz="UTC")
    history = pd.Series(np.random.default_rng(1).gamma(9.0, 1.0, 4000), index=index)
    event = Event(
        index[-1].to_pydatetime(),
        pd.Timestamp("2200-01-01", tz="UTC").to_pydatetime(),
        expected_multiplier=2.0,
    )

    assert 1.5 < ratio(history, 60, [event])[5:].min()


@pytest.mark.parametrize("seen", [0.0, 1.0], ids=["nothing ever", "one request"])
def test_a_launch_is_planned_for_although_nobody_has_asked_for_anything_yet(seen: float) -> None:
    history = pd.Series(0.0, index=pd.date_range("2026-06-01", periods=10 * DAY, freq="5min", tz="UTC"))
    history.iloc[1000] = seen
    made = forecast(history, 72, (0.1, 0.5, 0.95), events=[ahead(history, 2, 4, expected_peak=35_000.0)])

    low, median, high = np.asarray(made.values)[24:48].T
    assert np.all(np.abs(median / 35_000.0 - 1.0) < 0.05)
    assert np.all(low > 0.4 * 35_000.0)
    assert np.all(high > 1.3 * 35_000.0)
    assert np.all(np.asarray(made.values)[:12] < 1.0)


def with_past_sales(history: pd.Series, **said: float) -> list[Event]:
    """Treble five past windows of two hours in a history; return them as events."""
    past = [
        Event(at, at + 2 * HOUR, category="sale", **said)
        for at in (history.index[k * DAY + 120].to_pydatetime() for k in (3, 8, 14, 19, 25))
    ]
    for event in past:
        history[(history.index >= event.start) & (history.index < event.end)] *= 3.0
    return past


@pytest.mark.parametrize("said", [{}, {"expected_multiplier": 3.0}], ids=["learnt", "stated"])
def test_an_event_longer_than_any_before_is_planned_for_to_its_end(said: dict[str, float]) -> None:
    """What two hours did goes on for nine; before, demand was back at usual after two, whatever a planner said."""
    usual = forecast(service(), DAY).median
    history = service()
    past = with_past_sales(history, **said)

    shares = forecast(history, DAY, events=[*past, ahead(history, 8, 17, **said)]).median / usual
    assert shares[8 * 12 : 17 * 12].min() > 2.0
    assert shares[18 * 12 :] == pytest.approx(np.ones(72), abs=0.1)


def test_events_that_only_meet_are_not_several_at_once() -> None:
    """Each begins five minutes before the last ends; each is expected to do what one alone does."""
    usual = forecast(service(), DAY).median
    history = service()
    past = with_past_sales(history)

    chain = [ahead(history, 8 + 23 / 12 * k, 10 + 23 / 12 * k) for k in range(3)]
    shares = forecast(history, DAY, events=[*past, *chain]).median / usual
    assert shares[8 * 12 : 13 * 12].min() > 1.7
    assert np.median(shares[8 * 12 : 13 * 12]) < 3.3


def test_many_sales_at_once_are_more_than_the_largest_of_them_allows_alone() -> None:
    """Five that quadruple demand bring sixteen times of it; the bound on what is believed is not that of one."""
    history = service()

    shares = ratio(history, DAY, [ahead(history, 10, 14, expected_multiplier=4.0)] * 5)
    assert shares[10 * 12 : 14 * 12] == pytest.approx(np.full(48, 16.0), rel=0.05)


def test_a_peak_that_comes_after_the_horizon_is_not_planned_for_within() -> None:
    """Demand rises until noon: at three in the morning it is a ninth of what it is then, on the way to a peak as well."""
    history = service()
    event = ahead(history, 1, 16, expected_peak=35_000.0)

    short, whole = (forecast(history, steps, events=[event]).median[15:36] for steps in (36, 2 * DAY))
    assert short == pytest.approx(whole, rel=0.1)


def test_an_event_after_months_without_a_reading_is_a_multiple_of_the_last_level() -> None:
    """No average remembers anything of them."""
    history = service(160).resample("1h").mean()
    history.iloc[-120 * 24 :] = np.nan
    end = history.index[-1].to_pydatetime() + HOUR

    shares = ratio(history, 12, [Event(end + 2 * HOUR, end + 6 * HOUR, expected_multiplier=3.0)])
    assert shares[2:6] == pytest.approx(np.full(4, 3.0), rel=0.15)
    assert shares[6:] == pytest.approx(np.ones(6))
