"""iCalendar files: what is exported reads back, what calendars send is understood, what is malicious is bounded."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from icalendar.timezone import tzp

from controller.core.resources import EventState, TrafficEvent
from controller.usecases.errors import InvalidError
from controller.usecases.icalendar_file import Entry, parse_calendar, render_calendar
from controller.usecases.occurrences import occurrences, to_instant

TEMPLATE = TrafficEvent(
    id="template",
    workloads=("rec",),
    start_at=datetime(1970, 1, 1, tzinfo=UTC),
    end_at=datetime(1970, 1, 1, 0, 1, tzinfo=UTC),
    time_zone="UTC",
    expected_peak_qps=5000.0,
)
YEAR = timedelta(days=366)


def a_file(*lines: str, head: tuple[str, ...] = ()) -> bytes:
    body = ["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//test//EN", *head, "BEGIN:VEVENT", "UID:u@x"]
    return "\r\n".join([*body, *lines, "END:VEVENT", "END:VCALENDAR", ""]).encode()


def read(*lines: str, zone: str = "", head: tuple[str, ...] = ()) -> Entry:
    (entry,) = parse_calendar(a_file(*lines, head=head), TEMPLATE, zone)
    return entry


def refused(data: bytes, zone: str = "") -> dict[str, str]:
    with pytest.raises(InvalidError) as caught:
        parse_calendar(data, TEMPLATE, zone)
    return {v.field: v.description for v in caught.value.violations}


def at(text: str, zone: str = "UTC") -> datetime:
    return to_instant(datetime.fromisoformat(text), ZoneInfo(zone))


def test_what_is_exported_reads_back_as_the_same_event() -> None:
    event = TrafficEvent(
        id="singles-day",
        workloads=("rec", "search"),
        start_at=at("2026-11-11T00:00", "Asia/Shanghai"),
        end_at=at("2026-11-11T02:00", "Asia/Shanghai"),
        time_zone="Asia/Shanghai",
        display_name="Singles' Day; the big one, 双十一",
        rrule="FREQ=YEARLY;UNTIL=20301231T000000Z",
        exdates_at=(at("2028-11-11T00:00", "Asia/Shanghai"),),
        rdates_at=(at("2026-12-12T00:00", "Asia/Shanghai"),),
        expected_multiplier=4.4,
        category="promotion",
        confidence=0.65,
        ramp=timedelta(minutes=10),
        margin=timedelta(seconds=90),
        lead_override=timedelta(hours=1),
        max_replicas_override=60,
        priority=-3,
        labels=(("campaign, 1", "a=b;c"), ("team", "growth")),
        revision=3,
        updated_at=at("2026-10-01T12:00"),
    )

    (entry,) = parse_calendar(render_calendar([event]), TEMPLATE, "")

    same = ("id", "revision", "updated_at")
    assert "singles-day" == entry.event.id
    assert replace(event, **{n: getattr(entry.event, n) for n in same}) == replace(  # type: ignore[arg-type]
        entry.event, rrule=event.rrule
    )
    assert occurrences(event, event.start_at, event.start_at + 5 * YEAR, 10) == [
        replace(o, revision=event.revision)
        for o in occurrences(entry.event, event.start_at, event.start_at + 5 * YEAR, 10)
    ]
    assert not entry.cancelled


@given(
    zone=st.sampled_from(
        ["UTC", "Asia/Shanghai", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]
    ),
    start_s=st.integers(0, 4 * 366 * 86_400),
    length=st.integers(60, 20 * 86_400),
    name=st.text(max_size=40).filter(str.isprintable),
)
def test_any_window_survives_a_round_trip(zone: str, start_s: int, length: int, name: str) -> None:
    start_at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=start_s)
    event = replace(
        TEMPLATE,
        id="e",
        start_at=start_at,
        end_at=start_at + timedelta(seconds=length),
        time_zone=zone,
        display_name=name.strip(),
    )

    (entry,) = parse_calendar(render_calendar([event]), TEMPLATE, "")

    assert (event.start_at, event.end_at) == (entry.event.start_at, entry.event.end_at)
    assert event.display_name == entry.event.display_name


def test_a_cancelled_event_is_exported_as_such() -> None:
    event = replace(TEMPLATE, id="e", state=EventState.CANCELLED)

    (entry,) = parse_calendar(render_calendar([event]), TEMPLATE, "")

    assert entry.cancelled


@pytest.mark.parametrize(
    ("lines", "zone", "start", "end", "time_zone"),
    [
        pytest.param(
            ("DTSTART:20261111T000000Z", "DTEND:20261111T020000Z"),
            "",
            at("2026-11-11T00:00"),
            at("2026-11-11T02:00"),
            "UTC",
            id="in UTC",
        ),
        pytest.param(
            ("DTSTART;TZID=Asia/Shanghai:20261111T000000", "DURATION:PT2H"),
            "",
            at("2026-11-10T16:00"),
            at("2026-11-10T18:00"),
            "Asia/Shanghai",
            id="with a zone and a duration",
        ),
        pytest.param(
            ("DTSTART;TZID=China Standard Time:20261111T000000", "DURATION:PT1H"),
            "",
            at("2026-11-10T16:00"),
            at("2026-11-10T17:00"),
            "Asia/Shanghai",
            id="with a zone as Windows calls it",
        ),
        pytest.param(
            ("DTSTART;TZID=/example.com/20260101/Europe/Berlin:20261111T120000", "DURATION:PT1H"),
            "",
            at("2026-11-11T11:00"),
            at("2026-11-11T12:00"),
            "Europe/Berlin",
            id="with a zone behind a prefix",
        ),
        pytest.param(
            ("DTSTART:20261111T120000", "DTEND:20261111T130000"),
            "Europe/Berlin",
            at("2026-11-11T11:00"),
            at("2026-11-11T12:00"),
            "Europe/Berlin",
            id="floating, in the template's zone",
        ),
        pytest.param(
            ("DTSTART;VALUE=DATE:20261111",),
            "Asia/Shanghai",
            at("2026-11-10T16:00"),
            at("2026-11-11T16:00"),
            "Asia/Shanghai",
            id="a whole day",
        ),
        pytest.param(
            ("DTSTART;TZID=Europe/Berlin:20270328T023000", "DURATION:PT1H"),
            "",
            at("2027-03-28T01:00"),
            at("2027-03-28T02:00"),
            "Europe/Berlin",
            id="in the gap of daylight saving: the first valid instant",
        ),
        pytest.param(
            ("DTSTART;TZID=Europe/Berlin:20261025T023000", "DURATION:PT1H"),
            "",
            at("2026-10-25T00:30"),
            at("2026-10-25T01:30"),
            "Europe/Berlin",
            id="in the repeated hour: the first",
        ),
    ],
)
def test_times_are_understood_as_calendars_write_them(
    lines: tuple[str, ...], zone: str, start: datetime, end: datetime, time_zone: str
) -> None:
    event = read(*lines, zone=zone).event

    assert (start, end, time_zone) == (event.start_at, event.end_at, event.time_zone)


def test_the_calendars_own_zone_comes_before_the_templates() -> None:
    head = ("X-WR-TIMEZONE:Asia/Tokyo",)
    entry = read("DTSTART:20261111T120000", "DURATION:PT1H", zone="UTC", head=head)

    assert "Asia/Tokyo" == entry.event.time_zone


def test_a_false_definition_of_a_zone_in_the_file_does_not_move_an_event() -> None:
    head = (
        *("BEGIN:VTIMEZONE", "TZID:Asia/Shanghai", "BEGIN:STANDARD", "DTSTART:19700101T000000"),
        *("TZOFFSETFROM:-1100", "TZOFFSETTO:-1100", "END:STANDARD", "END:VTIMEZONE"),
    )
    entry = read("DTSTART;TZID=Asia/Shanghai:20261111T000000", "DURATION:PT1H", head=head)

    assert at("2026-11-10T16:00") == entry.event.start_at


def test_exceptions_and_further_dates_belong_to_the_recurrence() -> None:
    event = read(
        "DTSTART;TZID=Europe/Berlin:20261106T200000",
        "DURATION:PT2H",
        "RRULE:FREQ=WEEKLY;COUNT=4",
        "EXDATE;TZID=Europe/Berlin:20261113T200000",
        "EXDATE;VALUE=DATE:20261120",
        "RDATE;TZID=Europe/Berlin:20261224T180000,20261231T180000",
    ).event

    starts = [o.start_at for o in occurrences(event, event.start_at, event.start_at + YEAR, 10)]
    assert [
        at("2026-11-06T19:00"),
        at("2026-11-27T19:00"),
        at("2026-12-24T17:00"),
        at("2026-12-31T17:00"),
    ] == starts


def test_an_occurrence_that_was_moved_leaves_the_recurrence_and_stands_alone() -> None:
    data = a_file(
        "DTSTART;TZID=Europe/Berlin:20261106T200000",
        "DURATION:PT2H",
        "RRULE:FREQ=WEEKLY;COUNT=2",
        "END:VEVENT",
        "BEGIN:VEVENT",
        "UID:u@x",
        "RECURRENCE-ID;TZID=Europe/Berlin:20261113T200000",
        "DTSTART;TZID=Europe/Berlin:20261114T180000",
        "DURATION:PT1H",
    )

    series, moved = parse_calendar(data, TEMPLATE, "")

    assert series.event.id != moved.event.id
    assert (at("2026-11-13T19:00"),) == series.event.exdates_at
    assert at("2026-11-14T17:00") == moved.event.start_at
    assert moved.event.rrule is None


def test_the_file_says_more_than_the_template() -> None:
    event = read(
        "DTSTART:20261111T000000Z",
        "DURATION:PT2H",
        "SUMMARY:Launch\\, at last",
        "CATEGORIES:livestream,other",
        "X-FORECREST-WORKLOADS:search, workloads/ads",
        "X-FORECREST-MULTIPLIER:3.5",
        "X-FORECREST-RAMP:PT5M",
        'X-FORECREST-LABEL:["team"\\,"growth"]',
    ).event

    assert ("Launch, at last", "livestream") == (event.display_name, event.category)
    assert ("search", "ads") == event.workloads
    assert (None, 3.5, timedelta(minutes=5)) == (
        event.expected_peak_qps,
        event.expected_multiplier,
        event.ramp,
    )
    assert {"team": "growth", "ical-uid": "u@x"} == dict(event.labels)


@pytest.mark.parametrize(
    ("lines", "name", "words"),
    [
        (("DTEND:20261111T000000Z",), "DTSTART", "required"),
        (("DTSTART:20261111T000000Z",), "DTEND", "DTEND or DURATION"),
        (("DTSTART;TZID=Mars/Olympus:20261111T000000", "DURATION:PT1H"), "DTSTART", "no IANA zone"),
        (("DTSTART:20261111T000000", "DURATION:PT1H"), "DTSTART", "has no zone"),
        (
            ("DTSTART:20261111T000000Z", "DTSTART:20261112T000000Z", "DURATION:PT1H"),
            "DTSTART",
            "stand there once",
        ),
        (
            ("DTSTART:20261111T000000Z", "DURATION:PT1H", "RRULE:FREQ=DAILY", "RRULE:FREQ=WEEKLY"),
            "RRULE",
            "stand there once",
        ),
        (
            (
                "DTSTART:20261111T000000Z",
                "DURATION:PT1H",
                "RDATE;VALUE=PERIOD:20261212T000000Z/PT3H",
            ),
            "RDATE",
            "events of their own",
        ),
        (
            ("DTSTART:20261111T000000Z", "DURATION:PT1H", "X-FORECREST-PEAK-QPS:lots"),
            "X-FORECREST-PEAK-QPS",
            "must be a number",
        ),
        (
            ("DTSTART:20261111T000000Z", "DURATION:PT1H", "X-FORECREST-RAMP:soon"),
            "X-FORECREST-RAMP",
            "PT10M",
        ),
        (
            ("DTSTART:20261111T000000Z", "DURATION:PT1H", "X-FORECREST-ID:A B"),
            "X-FORECREST-ID",
            "1 to 63",
        ),
    ],
)
def test_a_bad_property_is_named_with_its_event(lines: tuple[str, ...], name: str, words: str) -> None:
    found = refused(a_file(*lines))

    assert [f'calendar.events[0]["u@x"].{name}'] == list(found)
    assert words in found[f'calendar.events[0]["u@x"].{name}']


def test_a_uid_that_stands_there_twice_is_refused() -> None:
    event = ("DTSTART:20261111T000000Z", "DURATION:PT1H")

    found = refused(a_file(*event, "END:VEVENT", "BEGIN:VEVENT", "UID:u@x", *event))

    assert "is there twice" in found['calendar.events[1]["u@x"].UID']


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(b"", "required", id="empty"),
        pytest.param(b"\xff\xfeB", "UTF-8", id="no text"),
        pytest.param(b"hello", "is no iCalendar file", id="no calendar"),
        pytest.param(b"BEGIN:VCALENDAR\r\nEND:VCALENDAR\r\n", "holds no VEVENT", id="nothing in it"),
        pytest.param(b"x" * (1024 * 1024 + 1), "at most 1048576 bytes", id="huge"),
        pytest.param(b"\r\n" * 50_000, "at most 40000 lines", id="many lines"),
        pytest.param(b"X:" + b"y" * 5000, "not have lines longer", id="a long line"),
        pytest.param(b"X:y\r\n" + b" yyyyyyyyy\r\n" * 1000, "not have lines longer", id="a folded long line"),
        pytest.param(b"BEGIN:VCALENDAR\r\n" * 5000, "close every BEGIN", id="deep"),
        pytest.param(
            b"BEGIN:VCALENDAR\r\n" + b"BEGIN:VEVENT\r\nEND:VEVENT\r\n" * 600 + b"END:VCALENDAR\r\n",
            "at most 500 VEVENTs",
            id="many events",
        ),
    ],
)
def test_what_could_exhaust_us_is_refused_before_it_is_parsed(data: bytes, words: str) -> None:
    assert words in refused(data)["calendar"]


@given(st.binary(max_size=300))
def test_any_bytes_are_a_calendar_or_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidError):
        parse_calendar(data, TEMPLATE, "UTC")


@given(
    st.lists(
        st.sampled_from(
            [
                *("DTSTART:20261111T000000Z", "DTSTART;VALUE=DATE:20261111", "DTSTART:nonsense", "DTSTART:"),
                *("DTEND:20261111T010000Z", "DURATION:PT1H", "DURATION:-P9999999999D", "DURATION:x"),
                *(
                    "RRULE:FREQ=DAILY",
                    "RRULE:FREQ=;;;",
                    "RRULE:",
                    "EXDATE:1,2,3",
                    "EXDATE;TZID=UTC:",
                    "RDATE:x",
                ),
                *("RECURRENCE-ID:20261111T000000Z", "UID:", 'SUMMARY;X="', "CATEGORIES:", "BEGIN:VALARM"),
                *(
                    "END:VALARM",
                    "X-FORECREST-LABEL:[]",
                    "X-FORECREST-PEAK-QPS:nan",
                    "\u2028:x",
                    "DTSTART;TZID=:1",
                ),
            ]
        ),
        max_size=8,
    )
)
def test_any_properties_are_an_event_or_are_refused(lines: list[str]) -> None:
    try:
        parse_calendar(a_file(*lines), TEMPLATE, "UTC")
    except InvalidError as error:
        assert all(v.field.startswith("calendar") for v in error.violations)  # noqa: PT017 -- either is right


@pytest.mark.parametrize(
    ("begin", "end", "words"),
    [
        pytest.param("BEG\r\n IN:VEVENT", "EN\r\n D:VEVENT", "at most 500 VEVENTs", id="folded"),
        pytest.param("BEG\r\n\r\n IN:VEVENT", "EN\n\n D:VEVENT", "at most 500", id="mixed"),
        pytest.param("BEGIN;X=Y:VEVENT", "END;X=Y:VEVENT", "parameters", id="with parameters"),
    ],
)
def test_no_way_of_writing_begin_gets_past_the_limits(begin: str, end: str, words: str) -> None:
    event = f"{begin}\r\nUID:{{}}\r\nDTSTART:20270101T000000Z\r\nDTEND:20270101T010000Z\r\n{end}\r\n"
    events = "".join(event.format(number) for number in range(501))
    found = refused(f"BEGIN:VCALENDAR\r\nVERSION:2.0\r\n{events}END:VCALENDAR\r\n".encode())
    assert words in found["calendar"]


def test_zones_of_a_file_are_forgotten_once_it_is_read() -> None:
    zone = (
        *("BEGIN:VTIMEZONE", "TZID:Nowhere/Of-This-File", "BEGIN:STANDARD", "DTSTART:19700101T000000"),
        *("TZOFFSETFROM:-1100", "TZOFFSETTO:-1100", "END:STANDARD", "END:VTIMEZONE"),
    )
    read("DTSTART:20270101T000000Z", "DTEND:20270101T010000Z", head=zone)
    assert tzp.timezone("Nowhere/Of-This-File") is None
