"""Calendars in and out over a real server, and the command line that does it."""

import asyncio
import json
import os
import sys
from pathlib import Path

import icalendar
import pytest
from forecrest.v1 import event_pb2, event_service_pb2

from controller.client import explain
from tests.integration.api.conftest import World
from tests.integration.api.methods import CALENDAR, DAY, NOW, _import

E = event_service_pb2


async def take(world: World, calendar: bytes, *, validate_only: bool = False) -> list[tuple[str, int]]:
    request = _import(calendar)
    request.validate_only = validate_only
    response = await world.client.events.ImportEvents(request)
    return [
        (E.ImportAction.Name(one.action).removeprefix("IMPORT_ACTION_"), one.event.revision)
        for one in response.events
    ]


def changed(old: bytes, new: bytes) -> bytes:
    assert old in CALENDAR
    return CALENDAR.replace(old, new)


async def test_importing_again_changes_only_what_differs(world: World) -> None:
    actions = [
        *await take(world, CALENDAR, validate_only=True),
        *await take(world, CALENDAR),
        *await take(world, CALENDAR),
        *await take(world, changed(b"SUMMARY:Launch", b"SUMMARY:Relaunch")),
        *await take(world, changed(b"SUMMARY:Launch", b"SUMMARY:x\r\nSTATUS:CANCELLED")),
        *await take(world, changed(b"SUMMARY:Launch", b"SUMMARY:x\r\nSTATUS:CANCELLED")),
        *await take(world, CALENDAR),
    ]

    assert [
        ("CREATED", 1),
        ("CREATED", 1),
        ("UNCHANGED", 1),
        ("UPDATED", 2),
        ("CANCELLED", 3),
        ("UNCHANGED", 3),
        ("SKIPPED", 0),
    ] == actions


async def test_what_neither_file_nor_template_says_stays_as_it_is(world: World) -> None:
    await take(world, CALENDAR)
    (event,) = (
        await world.client.events.ListEvents(
            E.ListEventsRequest(filter='labels.ical-uid = "launch@example.com"')
        )
    ).events
    await world.client.events.UpdateEvent(
        E.UpdateEventRequest(event=event_pb2.Event(name=event.name, confidence=0.5, priority=7))
    )

    await take(world, changed(b"SUMMARY:Launch", b"SUMMARY:Relaunch"))
    after = await world.client.events.GetEvent(E.GetEventRequest(name=event.name))

    assert ("Relaunch", 0.5, 7, 5000.0) == (
        after.display_name,
        after.confidence,
        after.priority,
        after.expected_peak_qps,
    )


async def test_a_file_is_taken_in_full_or_not_at_all(world: World) -> None:
    second = (
        CALENDAR[CALENDAR.index(b"BEGIN:VEVENT") : CALENDAR.index(b"END:VCALENDAR")]
        .replace(b"launch@", b"other@")
        .replace(b"SUMMARY:Launch", b"SUMMARY:x\r\nX-FORECREST-WORKLOADS:nobody")
    )
    with pytest.raises(Exception, match="INVALID_ARGUMENT") as caught:
        await take(world, changed(b"END:VCALENDAR", second + b"END:VCALENDAR"))

    violations = dict(explain(caught.value).violations)  # type: ignore[arg-type]
    assert ['calendar.events[1]["other@example.com"].workloads[0]'] == list(violations)
    listed = await world.client.events.ListEvents(E.ListEventsRequest(filter="labels.ical-uid:*"))
    assert [] == list(listed.events)


async def test_what_is_over_is_passed_over(world: World) -> None:
    past = f"{NOW - 30 * DAY:%Y%m%d}".encode()
    calendar = CALENDAR.replace(f"{NOW + DAY:%Y%m%d}".encode(), past)

    assert [("SKIPPED", 0)] == await take(world, calendar)


async def test_an_export_is_a_calendar_and_reads_back_unchanged(world: World) -> None:
    exported = await world.client.events.ExportEvents(E.ExportEventsRequest(filter="state != COMPLETED"))
    calendar = icalendar.Calendar.from_ical(exported.calendar)

    again = await world.client.events.ImportEvents(E.ImportEventsRequest(calendar=exported.calendar))

    names = {str(event["X-FORECREST-ID"]) for event in calendar.walk("VEVENT")}
    assert {"sale", "spare", "running"} == names
    assert 3 == exported.event_count
    assert {"Asia/Shanghai"} == {str(zone["TZID"]) for zone in calendar.walk("VTIMEZONE")}
    assert {E.IMPORT_ACTION_UNCHANGED} == {one.action for one in again.events}


async def forecrest(world: World, *arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "controller", *arguments, "--address", world.server.target),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "80"},
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_the_command_line_imports_exports_and_reports(world: World, tmp_path: Path) -> None:
    file = tmp_path / "team.ics"
    file.write_bytes(CALENDAR)
    options = ("-w", "rec", "--peak-qps", "5000")

    refused = await forecrest(world, "events", "import", str(file), "-w", "rec")
    imported = await forecrest(world, "events", "import", str(file), *options, "--json")
    exported = await forecrest(world, "events", "export", str(tmp_path / "out.ics"))
    reported = await forecrest(world, "events", "report", "running", "--json")
    shown = await forecrest(world, "events", "report", "running")
    listed = await forecrest(
        world, "events", "list", "--filter", "labels.ical-uid:*", "--order-by", "name desc", "--json"
    )

    assert (0, "") == (imported[0], imported[2])
    assert (0, "IMPORT_ACTION_CREATED") == (imported[0], json.loads(imported[1])["events"][0]["action"])
    assert 1 == refused[0]
    assert 'events[0]["launch@example.com"]' in refused[2]
    assert (0, "") == exported[:2], exported[2]
    assert b"BEGIN:VTIMEZONE" in (tmp_path / "out.ics").read_bytes()
    assert pytest.approx(0.2) == json.loads(reported[1])["workloads"][0]["peak_ratio"]
    assert (0, True) == (shown[0], "20% of the 5000 expected" in " ".join(shown[1].split()))
    assert ["Launch"] == [event["display_name"] for event in json.loads(listed[1])]


async def test_refusals_name_the_options_that_were_typed(world: World) -> None:
    code, _, said = await forecrest(
        world,
        *("events", "create", "e", "-w", "rec", "--start", "+2h", "--end", "+1h", "--time-zone", "Mars/X"),
        *("--peak-qps", "-5"),
    )

    assert 1 == code
    assert "--time-zone: must be an IANA zone name" in said
    assert "event." not in said
