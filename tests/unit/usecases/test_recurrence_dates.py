"""Dates beside the rule, and daylight saving, as registered events meet them: the stated policy, case by case."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.resources import EventState, TrafficEvent
from controller.usecases.errors import InvalidError
from controller.usecases.event_rules import check_event
from controller.usecases.occurrences import occurrences, state_at, to_instant, to_local

NOW = datetime(2026, 11, 1, tzinfo=UTC)
YEAR, DAY, HOUR = timedelta(days=366), timedelta(days=1), timedelta(hours=1)


def an_event(start: str, zone: str = "UTC", *, hours: float = 2, **changes: object) -> TrafficEvent:
    start_at = to_instant(datetime.fromisoformat(start), ZoneInfo(zone))
    base = TrafficEvent(
        id="e",
        workloads=("rec",),
        start_at=start_at,
        end_at=start_at + timedelta(hours=hours),
        time_zone=zone,
        expected_peak_qps=10.0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def starts(event: TrafficEvent, count: int = 20) -> list[datetime]:
    return [o.start_at for o in occurrences(event, event.start_at, event.start_at + 3 * YEAR, count)]


def refused(event: TrafficEvent) -> dict[str, str]:
    with pytest.raises(InvalidError) as caught:
        check_event(event, NOW)
    return {v.field: v.description for v in caught.value.violations}


def test_further_dates_stand_beside_the_rule_in_order_and_none_twice() -> None:
    event = an_event("2026-11-06T20:00", rrule="FREQ=WEEKLY;COUNT=3")
    extra = (event.start_at + 10 * DAY, event.start_at + 7 * DAY, event.start_at + 30 * DAY)

    found = starts(replace(event, rdates_at=extra))

    assert [event.start_at + n * DAY for n in (0, 7, 10, 14, 30)] == found


def test_further_dates_need_no_rule_and_their_occurrences_are_told_apart() -> None:
    event = an_event("2026-11-06T20:00")
    event = replace(event, rdates_at=(event.start_at + 3 * DAY,))
    check_event(event, NOW)

    found = occurrences(event, event.start_at, event.start_at + YEAR, 10)

    assert ["e@20261106T200000Z", "e@20261109T200000Z"] == [o.id for o in found]
    assert {2 * HOUR} == {o.end_at - o.start_at for o in found}


def test_a_further_date_can_be_an_exception_too() -> None:
    event = an_event("2026-11-06T20:00")
    dates = (event.start_at + 3 * DAY, event.start_at + 5 * DAY)
    event = replace(event, rdates_at=dates, exdates_at=dates[:1])
    check_event(event, NOW)

    assert [event.start_at, dates[1]] == starts(event)


def test_an_event_is_over_after_its_last_date() -> None:
    event = an_event("2026-11-06T20:00")
    event = replace(event, rdates_at=(event.start_at + 3 * DAY,))

    assert EventState.SCHEDULED is state_at(event, event.start_at + DAY, frozenset())
    assert EventState.ACTIVE is state_at(event, event.start_at + 3 * DAY, frozenset())
    assert EventState.COMPLETED is state_at(event, event.start_at + 3 * DAY + 2 * HOUR, frozenset())


@pytest.mark.parametrize(
    ("offsets", "field", "words"),
    [
        ((timedelta(0),), "event.rdate_times[0]", "after start_time"),
        ((-DAY,), "event.rdate_times[0]", "after start_time"),
        ((DAY, 6 * YEAR), "event.rdate_times[1]", "5 years ahead"),
        ((DAY, DAY), "event.rdate_times", "twice"),
        (tuple(n * HOUR for n in range(1, 400)), "event.rdate_times", "at most 366"),
    ],
)
def test_further_dates_are_checked(offsets: tuple[timedelta, ...], field: str, words: str) -> None:
    event = an_event("2026-11-06T20:00")

    found = refused(replace(event, rdates_at=tuple(event.start_at + o for o in offsets)))

    assert words in found[field]


def test_dates_that_are_all_over_are_refused() -> None:
    event = an_event("2026-10-01T20:00")

    assert (
        "add rdate_times" in refused(replace(event, rdates_at=(event.start_at + DAY,)))["event.rdate_times"]
    )


def test_an_exception_that_is_no_date_is_refused() -> None:
    event = an_event("2026-11-06T20:00")
    event = replace(event, rdates_at=(event.start_at + DAY,), exdates_at=(event.start_at + HOUR,))

    assert "start of an occurrence" in refused(event)["event.exdate_times[0]"]


def test_windows_are_half_open() -> None:
    event = an_event("2026-11-06T20:00")

    assert [] == occurrences(event, event.end_at, event.end_at + DAY, 10)
    assert [] == occurrences(event, event.start_at - DAY, event.start_at, 10)
    assert 1 == len(occurrences(event, event.end_at - timedelta(microseconds=1), event.end_at, 10))
    assert EventState.ACTIVE is state_at(event, event.start_at, frozenset())
    assert EventState.COMPLETED is state_at(event, event.end_at, frozenset())


@pytest.mark.parametrize(
    ("zone", "start", "day", "wall_clock", "hours"),
    [
        pytest.param(
            "Europe/Berlin", "2027-03-27T02:30", "2027-03-28", "03:00", 2, id="gap: the first valid instant"
        ),
        pytest.param(
            "Europe/Berlin", "2027-03-27T01:30", "2027-03-28", "01:30", 2, id="across the gap: real time"
        ),
        pytest.param("Europe/Berlin", "2026-10-24T02:30", "2026-10-25", "02:30", 2, id="repeated hour: once"),
        pytest.param(
            "Australia/Lord_Howe", "2026-10-03T02:10", "2026-10-04", "02:30", 1, id="a gap of half an hour"
        ),
        pytest.param("Pacific/Apia", "2011-12-29T12:00", "2011-12-30", "", 1, id="a day that a zone skipped"),
    ],
)
def test_daylight_saving_follows_the_stated_policy(
    zone: str, start: str, day: str, wall_clock: str, hours: int
) -> None:
    event = an_event(start, zone, hours=hours, rrule="FREQ=DAILY;COUNT=4")

    found = occurrences(event, event.start_at, event.start_at + YEAR, 10)

    local = [to_local(o.start_at, zone).isoformat(timespec="minutes") for o in found]
    on_day = [text for text in local if text.startswith(day)]
    assert ([f"{day}T{wall_clock}"] if wall_clock else []) == on_day
    assert {timedelta(hours=hours)} == {o.end_at - o.start_at for o in found}
    assert sorted({o.start_at for o in found}) == [o.start_at for o in found]


@given(
    zone=st.sampled_from(
        ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"]
    ),
    start_s=st.integers(0, 3 * 366 * 86_400),
    rule=st.sampled_from([None, "FREQ=DAILY", "FREQ=WEEKLY;INTERVAL=2", "FREQ=DAILY;COUNT=5"]),
    extra_s=st.lists(st.integers(1, 40 * 86_400), max_size=5),
    skip=st.integers(0, 20),
    span_s=st.integers(1, 30 * 86_400),
)
def test_any_part_of_a_recurrence_is_the_same_part_of_the_whole(
    zone: str, start_s: int, rule: str | None, extra_s: list[int], skip: int, span_s: int
) -> None:
    start_at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=start_s)
    event = an_event("2026-01-01T00:00", zone)
    event = replace(
        event,
        start_at=start_at,
        end_at=start_at + HOUR,
        rrule=rule,
        rdates_at=tuple(start_at + timedelta(seconds=s) for s in extra_s),
    )
    low, high = start_at + skip * DAY, start_at + skip * DAY + timedelta(seconds=span_s)

    whole = occurrences(event, start_at, start_at + 60 * DAY, 1000)
    part = occurrences(event, low, high, 1000)

    assert [o for o in whole if o.end_at > low and o.start_at < high] == part
    assert len({o.id for o in whole}) == len(whole)
