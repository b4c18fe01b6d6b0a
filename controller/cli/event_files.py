"""``forecrest events report``, ``import`` and ``export``: what came of an event, and events as calendars have them."""

import sys
import uuid
from datetime import UTC
from pathlib import Path
from typing import Annotated

import typer
from forecrest.v1 import event_pb2, event_service_pb2
from rich.console import Console

from controller.cli.common import (
    Address,
    AsJson,
    CliError,
    bare,
    connected,
    err,
    out,
    print_json,
    qps,
    resource,
    run,
    table,
    to_dict,
    when,
)
from controller.cli.event_options import DryRun, EventId, EventOptions, with_event_options

FILE_BYTES_MAX = 1024 * 1024
NAMES = {"calendar.": "", "template.": ""}


def report(
    event_id: EventId,
    occurrence: Annotated[
        str, typer.Option(help="Occurrence of a recurring event, EVENT@START. Default: the newest.")
    ] = "",
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Compare an event that has started with what was expected of it.

    Example: `forecrest events report singles-day`
    """

    async def call() -> None:
        async with connected(address) as client:
            found = await client.events.ReportEvent(
                event_service_pb2.ReportEventRequest(
                    name=resource("events", event_id), occurrence_id=occurrence
                )
            )
        if as_json:
            print_json(to_dict(found))
        else:
            _print_report(out(), found)

    run(call())


def _print_report(console: Console, found: event_service_pb2.EventReport) -> None:
    so_far = "" if found.complete else " so far"
    console.print(
        f"{found.occurrence_id}, {when(found.start_time)} to {when(found.end_time)} UTC{so_far}:",
        soft_wrap=True,
    )
    amounts = ("expected", "came", "of it", "replica-hours")
    shown = table("workload", *amounts[:2], "at (UTC)", "of it", "warm", "replica-hours", right=amounts)
    for one in found.workloads:
        shown.add_row(
            bare(one.workload),
            f"{qps(one.expected_peak_qps)} QPS" if one.HasField("expected_peak_qps") else "?",
            f"{qps(one.actual_peak_qps)} QPS" if one.HasField("actual_peak_qps") else "?",
            f"{one.peak_time.ToDatetime(UTC):%H:%M}" if one.HasField("peak_time") else "?",
            f"{one.peak_ratio:.0%}" if one.HasField("peak_ratio") else "?",
            event_service_pb2.PrewarmOutcome.Name(one.prewarm.outcome).removeprefix("PREWARM_OUTCOME_"),
            f"{one.replica_hours:.1f}" if one.HasField("replica_hours") else "?",
        )
    console.print(shown)
    for one in found.workloads:
        console.print(one.sentence)
    if found.HasField("planner_record"):
        console.print(found.planner_record.sentence)


@with_event_options
def import_calendar(
    file: Annotated[Path, typer.Argument(metavar="FILE.ics", help="The calendar; - reads standard input.")],
    *,
    given: EventOptions,
    dry_run: DryRun = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Register, change and cancel events as a calendar says; options fill in what it does not say.

    Importing the same file again changes only what differs: events are told by their UID.

    Example: `forecrest events import team.ics -w recommender --peak-qps 200 --time-zone Asia/Shanghai`
    """
    data = _read(file)
    template = event_pb2.Event()
    given.fill(template)

    async def call() -> None:
        async with connected(address) as client:
            response = await client.events.ImportEvents(
                event_service_pb2.ImportEventsRequest(
                    calendar=data, template=template, request_id=str(uuid.uuid4()), validate_only=dry_run
                )
            )
        if as_json:
            print_json(to_dict(response))
            return
        shown = table("event", "action" if not dry_run else "would be", "start (UTC)", "what")
        for one in response.events:
            shown.add_row(
                bare(one.event.name) if one.HasField("event") else "-",
                event_service_pb2.ImportAction.Name(one.action).removeprefix("IMPORT_ACTION_"),
                when(one.event.start_time) if one.HasField("event") else "",
                one.event.display_name if one.HasField("event") else f"{one.uid}: {one.sentence}",
            )
        out().print(shown)
        for one in response.events:
            for warning in one.event.warnings:
                out().print(f"[bold red]Warning[/]: {warning.sentence}")

    run(call(), NAMES)


def _read(file: Path) -> bytes:
    try:
        if str(file) == "-":
            data = sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
        else:
            with file.open("rb") as opened:
                data = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise CliError(f"{file}: {error.strerror}; check the path.") from None
    if len(data) > FILE_BYTES_MAX:
        raise CliError(f"{file}: is larger than {FILE_BYTES_MAX} bytes; split it.")
    return data


def export_calendar(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE.ics]", help="Where to write. Default: standard output.")
    ] = None,
    where: Annotated[
        str,
        typer.Option(
            "--filter", help="Which events, such as 'state = SCHEDULED AND category = \"promotion\"'."
        ),
    ] = "",
    address: Address = None,
) -> None:
    """Write events as an iCalendar file for calendars to subscribe to; `import` reads it back.

    Example: `forecrest events export --filter "state != CANCELLED" events.ics`
    """

    async def call() -> None:
        async with connected(address) as client:
            response = await client.events.ExportEvents(event_service_pb2.ExportEventsRequest(filter=where))
        if file is None:
            typer.echo(response.calendar.decode(), nl=False)
            return
        try:
            file.write_bytes(response.calendar)
        except OSError as error:
            raise CliError(f"{file}: {error.strerror}; check the path.") from None
        err().print(f"{response.event_count} events are in {file}.")

    run(call(), {"filter": "--filter"})
