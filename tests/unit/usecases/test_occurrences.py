"""Wall-clock time, its gaps, and recurrence, as registered events meet them."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.resources import EventState, TrafficEvent
from controller.usecases.errors import Findings
from controller.usecases.occurrences import (
    check_exdates,
    check_rrule,
    event_id_of,
    occurrences,
    parse_local,
    state_at,
    to_instant,
    to_local,
    zone_of,
)

BERLIN = ZoneInfo("Europe/Berlin")
YEAR = timedelta(days=366)


def an_event(
    start: str,
    rrule: str | None = None,
    *,
    zone: str = "Europe/Berlin",
    hours: float = 2,
    exdates: tuple[datetime, ...] = (),
) -> TrafficEvent:
    start_at = to_instant(datetime.fromisoformat(start), ZoneInfo(zone))
    return TrafficEvent(
        id="e",
        workloads=("rec",),
        start_at=start_at,
        end_at=start_at + timedelta(hours=hours),
        time_zone=zone,
        rrule=rrule,
        exdates_at=exdates,
        expected_multiplier=2.0,
    )


def locals_of(event: TrafficEvent, count: int = 5) -> list[str]:
    found = occurrences(event, event.start_at, event.start_at + 3 * YEAR, count)
    return [to_local(o.start_at, event.time_zone).isoformat(timespec="minutes") for o in found]


@pytest.mark.parametrize(
    ("zone", "local", "instant"),
    [
        pytest.param("Asia/Shanghai", "2026-11-11T00:00", "2026-11-10T16:00", id="no daylight saving"),
        pytest.param("Europe/Berlin", "2026-03-29T01:59", "2026-03-29T00:59", id="before the gap"),
        pytest.param("Europe/Berlin", "2026-03-29T02:00", "2026-03-29T01:00", id="at the gap"),
        pytest.param("Europe/Berlin", "2026-03-29T02:30", "2026-03-29T01:00", id="in the gap"),
        pytest.param("Europe/Berlin", "2026-03-29T02:59:59", "2026-03-29T01:00", id="end of the gap"),
        pytest.param("Europe/Berlin", "2026-03-29T03:00", "2026-03-29T01:00", id="after the gap"),
        pytest.param("Europe/Berlin", "2026-10-25T02:30", "2026-10-25T00:30", id="repeated hour: the first"),
        pytest.param("Pacific/Apia", "2011-12-30T12:00", "2011-12-30T10:00", id="a whole day skipped"),
        pytest.param(
            "Australia/Lord_Howe", "2026-10-04T02:15", "2026-10-03T15:30", id="half an hour skipped"
        ),
        pytest.param("America/New_York", "2026-03-08T02:30", "2026-03-08T07:00", id="west of Greenwich"),
    ],
)
def test_a_wall_clock_time_becomes_one_instant(zone: str, local: str, instant: str) -> None:
    found = to_instant(datetime.fromisoformat(local), ZoneInfo(zone))

    assert found == datetime.fromisoformat(instant).replace(tzinfo=UTC)


@given(
    st.datetimes(datetime(2000, 1, 1), datetime(2037, 1, 1)),  # noqa: DTZ001 -- wall-clock times
    st.sampled_from(
        ["Europe/Berlin", "America/New_York", "Pacific/Apia", "Australia/Lord_Howe", "Asia/Kathmandu"]
    ),
)
def test_an_instant_never_comes_before_the_wall_clock_it_stands_for(local: datetime, zone: str) -> None:
    local = local.replace(microsecond=0)

    back = to_local(to_instant(local, ZoneInfo(zone)), zone)

    assert back >= local
    # Only a gap moves it, and only to the gap's end.
    if back != local:
        assert to_local(to_instant(local, ZoneInfo(zone)) - timedelta(seconds=1), zone) < local


@pytest.mark.parametrize(
    "text", ["2026-11-11", "2026-11-11 00:00", "2026-13-01T00:00", "now", "", "2026-11-11T24:00Z"]
)
def test_a_wall_clock_time_has_one_form(text: str) -> None:
    assert parse_local(text) is None


@pytest.mark.parametrize(
    "name", ["", "Mars", "../etc/passwd", "/etc/localtime", "localtime", "America", "Factory"]
)
def test_only_zone_names_are_zones(name: str) -> None:
    assert zone_of(name) is None


def test_a_single_event_occurs_once() -> None:
    event = an_event("2026-11-11T00:00")

    (only,) = occurrences(event, event.start_at - YEAR, event.start_at + YEAR, 10)

    assert (only.id, only.start_at, only.end_at) == ("e", event.start_at, event.end_at)


@pytest.mark.parametrize(
    ("start_offset_h", "end_offset_h", "count"),
    [(-2, 0, 0), (-2, 1, 1), (0, 2, 1), (1, 1.5, 1), (1, 9, 1), (2, 9, 0)],
)
def test_windows_are_half_open(start_offset_h: float, end_offset_h: float, count: int) -> None:
    event = an_event("2026-11-11T00:00")
    low, high = (event.start_at + timedelta(hours=h) for h in (start_offset_h, end_offset_h))

    assert count == len(occurrences(event, low, high, 10))


@pytest.mark.parametrize(
    ("start", "rrule", "expected"),
    [
        pytest.param(
            "2026-03-27T02:30",
            "FREQ=DAILY;COUNT=4",
            ["2026-03-27T02:30", "2026-03-28T02:30", "2026-03-29T03:00", "2026-03-30T02:30"],
            id="through the gap",
        ),
        pytest.param(
            "2026-10-24T02:30",
            "FREQ=DAILY;COUNT=3",
            ["2026-10-24T02:30", "2026-10-25T02:30", "2026-10-26T02:30"],
            id="the repeated hour occurs once",
        ),
        pytest.param(
            "2026-11-27T10:00",
            "FREQ=MONTHLY;BYDAY=-1FR;COUNT=3",
            ["2026-11-27T10:00", "2026-12-25T10:00", "2027-01-29T10:00"],
            id="last Friday",
        ),
        pytest.param(
            "2026-11-27T10:00",
            "FREQ=WEEKLY;UNTIL=20261211T090000Z",
            ["2026-11-27T10:00", "2026-12-04T10:00", "2026-12-11T10:00"],
            id="until, in UTC, included",
        ),
        pytest.param(
            "2026-11-27T10:00",
            "FREQ=WEEKLY;UNTIL=20261211",
            ["2026-11-27T10:00", "2026-12-04T10:00", "2026-12-11T10:00"],
            id="until a day, included",
        ),
        pytest.param(
            "2026-11-11T00:00",
            "FREQ=YEARLY;INTERVAL=1;COUNT=2",
            ["2026-11-11T00:00", "2027-11-11T00:00"],
            id="each year",
        ),
        pytest.param(
            "2026-11-30T09:00",
            "FREQ=WEEKLY;BYDAY=MO,WE;COUNT=3",
            ["2026-11-30T09:00", "2026-12-02T09:00", "2026-12-07T09:00"],
            id="twice a week",
        ),
    ],
)
def test_recurrence_runs_on_the_wall_clock(start: str, rrule: str, expected: list[str]) -> None:
    event = an_event(start, rrule)
    findings = Findings()

    check_rrule(event, findings)

    assert findings.violations == []
    assert locals_of(event) == expected


def test_every_occurrence_lasts_the_real_time_of_the_first() -> None:
    event = an_event("2026-03-28T01:00", "FREQ=DAILY;COUNT=2", hours=3)

    found = occurrences(event, event.start_at, event.start_at + YEAR, 5)

    assert [o.end_at - o.start_at for o in found] == [timedelta(hours=3)] * 2


def test_occurrences_are_told_apart_and_lead_back_to_their_event() -> None:
    event = an_event("2026-11-11T00:00", "FREQ=DAILY;COUNT=2", zone="UTC")

    ids = [o.id for o in occurrences(event, event.start_at, event.start_at + YEAR, 5)]

    assert ids == ["e@20261111T000000Z", "e@20261112T000000Z"]
    assert {event_id_of(i) for i in ids} == {"e"}


def test_exceptions_do_not_take_place() -> None:
    skipped = datetime(2026, 11, 12, tzinfo=UTC)
    event = an_event("2026-11-11T00:00", "FREQ=DAILY;COUNT=3", zone="UTC", exdates=(skipped,))
    findings = Findings()

    check_rrule(event, findings)

    assert findings.violations == []
    assert locals_of(event) == ["2026-11-11T00:00", "2026-11-13T00:00"]


def test_an_exception_beside_the_rule_is_refused() -> None:
    event = an_event("2026-11-11T00:00", "FREQ=DAILY", exdates=(datetime(2026, 11, 12, 5, tzinfo=UTC),))
    findings = Findings()

    check_exdates(event, findings)

    assert [v.field for v in findings.violations] == ["exdate_times[0]"]


@pytest.mark.parametrize(
    "rrule",
    [
        "DAILY",
        "FREQ=HOURLY",
        "FREQ=DAILY;FREQ=WEEKLY",
        "FREQ=DAILY;COUNT=0",
        "FREQ=DAILY;COUNT=99999",
        "FREQ=DAILY;INTERVAL=0",
        "FREQ=DAILY;COUNT=2;UNTIL=20270101",
        "FREQ=DAILY;BYHOUR=3",
        "FREQ=DAILY;BYMONTHDAY=27",
        "FREQ=WEEKLY;BYDAY=4FR",
        "FREQ=WEEKLY;BYDAY=SA",
        "FREQ=MONTHLY;BYDAY=1FR",
        "FREQ=MONTHLY;BYMONTHDAY=1",
        "FREQ=YEARLY;BYMONTH=2",
        "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=YEARLY;BYDAY=60MO",
        "FREQ=YEARLY;BYDAY=48FR,54MO",
        "FREQ=MONTHLY;BYDAY=4FR,9MO",
        "FREQ=YEARLY;BYMONTH=11;BYDAY=4FR,-6MO",
        "FREQ=MONTHLY;BYDAY=4FR,0MO",
        "FREQ=MONTHLY;BYMONTHDAY=27,32",
        "FREQ=MONTHLY;BYMONTH=11,13",
        "FREQ=MONTHLY;BYDAY=FR;BYSETPOS=9",
        "FREQ=DAILY;UNTIL=20269999",
        "FREQ=DAILY;UNTIL=00010101T000000Z",
        "FREQ=DAILY;UNTIL=99991231T235959Z",
        "DTSTART:20260101T000000\nRRULE:FREQ=DAILY",
        "FREQ=DAILY;" + "BYDAY=FR," * 200 + "MO",
    ],
)
def test_a_rule_that_cannot_be_kept_is_refused(rrule: str) -> None:
    findings = Findings()

    check_rrule(an_event("2026-11-27T10:00", rrule), findings)

    assert {v.field for v in findings.violations} == {"rrule"}


@pytest.mark.parametrize(
    "rrule",
    [
        "FREQ=MONTHLY;BYDAY=4FR",
        "FREQ=MONTHLY;BYDAY=-1FR",
        "FREQ=YEARLY;BYDAY=48FR",
        "FREQ=YEARLY;BYMONTH=11;BYDAY=+4FR",
    ],
)
def test_numbered_days_are_counted_within_their_month_or_year(rrule: str) -> None:
    findings = Findings()

    check_rrule(an_event("2026-11-27T10:00", rrule), findings)

    assert findings.violations == []


def test_the_limit_bounds_the_expansion() -> None:
    event = an_event("2026-11-27T10:00", "FREQ=DAILY")

    assert len(occurrences(event, event.start_at, event.start_at + 9 * YEAR, 3)) == 3
    assert occurrences(event, event.start_at, event.start_at + YEAR, 0) == []


def test_a_cancelled_event_has_no_occurrences() -> None:
    event = an_event("2026-11-27T10:00")
    cancelled = TrafficEvent(
        **{**{f: getattr(event, f) for f in event.__dataclass_fields__}, "state": EventState.CANCELLED}
    )

    assert occurrences(cancelled, event.start_at, event.end_at, 5) == []


@pytest.mark.parametrize(
    ("offset_h", "state"),
    [
        (-1, EventState.SCHEDULED),
        (0, EventState.ACTIVE),
        (1.9, EventState.ACTIVE),
        (2, EventState.SCHEDULED),
        (25, EventState.ACTIVE),
        (26, EventState.COMPLETED),
    ],
)
def test_the_state_of_a_recurring_event_follows_its_occurrences(offset_h: float, state: EventState) -> None:
    event = an_event("2026-11-11T00:00", "FREQ=DAILY;COUNT=2", zone="UTC")

    assert state == state_at(event, event.start_at + timedelta(hours=offset_h), frozenset())


def test_an_ordered_occurrence_is_prewarming_until_it_starts() -> None:
    event = an_event("2026-11-11T00:00", zone="UTC")
    ordered = frozenset({"e"})

    states = [state_at(event, event.start_at + timedelta(hours=h), ordered) for h in (-1, 0)]

    assert states == [EventState.PREWARMING, EventState.ACTIVE]
