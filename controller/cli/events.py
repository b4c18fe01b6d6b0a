"""``forecrest events``: register, preview, follow and cancel traffic events."""

import uuid
from datetime import UTC
from typing import Annotated

import typer
from forecrest.v1 import event_pb2, event_service_pb2, forecast_pb2
from rich.console import Console

from controller.cli import event_files
from controller.cli.common import (
    EXIT_USAGE,
    Address,
    AsJson,
    CliError,
    bare,
    connected,
    err,
    fields_table,
    out,
    print_json,
    print_json_line,
    qps,
    resource,
    run,
    table,
    to_dict,
    when,
)
from controller.cli.complete import event_names, workload_names
from controller.cli.event_options import NAMES, DryRun, EventId, EventOptions, with_event_options
from controller.client import Client, pages

app = typer.Typer(no_args_is_help=True, help="Register, preview, follow and cancel traffic events.")

READY = forecast_pb2.FORECAST_STATE_READY


@app.command()
@with_event_options
def create(
    event_id: EventId,
    *,
    given: EventOptions,
    dry_run: DryRun = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Register an event, and say what it will cost.

    Example: `forecrest events create singles-day -w recommender --start 2030-11-11T00:00
    --end 2030-11-11T02:00 --time-zone Asia/Shanghai --peak-qps 200`
    """
    event = event_pb2.Event()
    given.fill(event)
    run(_create(event_id, event, dry_run=dry_run, address=address, as_json=as_json), NAMES)


async def _create(
    event_id: str, event: event_pb2.Event, *, dry_run: bool, address: str | None, as_json: bool
) -> None:
    async with connected(address) as client:
        made = await client.events.CreateEvent(
            event_service_pb2.CreateEventRequest(
                event=event, event_id=event_id, request_id=str(uuid.uuid4()), validate_only=dry_run
            )
        )
        if as_json:
            print_json(to_dict(made))
            return
        done = "would be registered" if dry_run else "is registered"
        out().print(
            f"Event {bare(made.name) or event_id} {done}: {when(made.start_time)} to {when(made.end_time)} UTC."
        )
        _print_preview(
            out(), await client.events.PreviewEvent(event_service_pb2.PreviewEventRequest(event=made))
        )


@app.command()
@with_event_options
def update(
    event_id: EventId,
    *,
    given: EventOptions,
    dry_run: DryRun = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Change an event; what is not given stays. The next tick plans with it.

    Example: `forecrest events update singles-day --peak-qps 250`
    """
    event = event_pb2.Event(name=resource("events", event_id))
    mask = given.fill(event)
    if not mask:
        raise CliError("Nothing to change was given; see forecrest events update --help.", EXIT_USAGE)

    async def call() -> None:
        async with connected(address) as client:
            request = event_service_pb2.UpdateEventRequest(
                event=event, request_id=str(uuid.uuid4()), validate_only=dry_run
            )
            request.update_mask.paths.extend(mask)
            changed = await client.events.UpdateEvent(request)
        if as_json:
            print_json(to_dict(changed))
        else:
            done = "would be" if dry_run else "is"
            out().print(f"Event {bare(changed.name)} {done} revision {changed.revision}.")
            _print_warnings(out(), changed)

    run(call(), NAMES)


@app.command()
@with_event_options
def preview(
    event_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[EVENT]", help="A registered event to start from.", autocompletion=event_names
        ),
    ] = None,
    *,
    given: EventOptions,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Say what an event would cost and whether its capacity would be there, without registering it.

    Example: `forecrest events preview -w recommender --start +2h --end +4h --time-zone UTC --multiplier 4.4`
    """

    async def call() -> None:
        async with connected(address) as client:
            event = event_pb2.Event()
            if event_id is not None:
                event = await _get(client, event_id)
            given.fill(event)
            response = await client.events.PreviewEvent(event_service_pb2.PreviewEventRequest(event=event))
        if as_json:
            print_json(to_dict(response))
        else:
            _print_preview(out(), response)

    run(call(), NAMES)


def _print_preview(console: Console, response: event_service_pb2.PreviewEventResponse) -> None:
    for one in response.workloads:
        console.print(one.sentence)  # begins with the workload's name
        if one.HasField("prewarm_start_time"):
            console.print(
                f"  first order {when(one.prewarm_start_time, seconds=True)} UTC, "
                f"warm by {when(one.deadline_time, seconds=True)} UTC"
            )
        if response.event.HasField("expected_multiplier") and one.forecast_state != READY:
            console.print(
                "  [bold red]The forecast that is multiplied is not ready[/]: give --peak-qps, or preview "
                "again when there is more history."
            )
    _print_warnings(console, response.event)
    console.print(
        f"On top of what would run anyway: {response.extra_replica_hours:.2f} replica-hours, "
        f"{response.extra_gpu_hours:.2f} GPU-hours."
    )
    if response.unmet_replicas:
        console.print(
            f"[bold red]{response.unmet_replicas} replicas short[/]: raise max_replicas or the quota, "
            "or expect requests to wait."
        )


def _print_warnings(console: Console, event: event_pb2.Event) -> None:
    for warning in event.warnings:
        console.print(f"[bold red]Warning[/]: {warning.sentence}")


async def _get(client: Client, event_id: str) -> event_pb2.Event:
    return await client.events.GetEvent(event_service_pb2.GetEventRequest(name=resource("events", event_id)))


@app.command()
def get(event_id: EventId, address: Address = None, as_json: AsJson = False) -> None:
    """Show one event.

    Example: `forecrest events get singles-day`
    """

    async def call() -> None:
        async with connected(address) as client:
            event = await _get(client, event_id)
        if as_json:
            print_json(to_dict(event))
            return
        out().print(fields_table(event))

    run(call())


@app.command("list")
def list_events(
    workload: Annotated[
        str,
        typer.Option("--workload", "-w", help="Events of this workload only.", autocompletion=workload_names),
    ] = "",
    state: Annotated[
        list[str] | None,
        typer.Option(help="Events in this state only: SCHEDULED, PREWARMING, ACTIVE, COMPLETED, CANCELLED."),
    ] = None,
    where: Annotated[
        str, typer.Option("--filter", help="Which events, such as 'labels.team = \"x\" AND priority > 0'.")
    ] = "",
    order_by: Annotated[
        str, typer.Option(help='name, start_time or end_time, and " desc" for the other direction.')
    ] = "",
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """List events by their start.

    Example: `forecrest events list --state SCHEDULED --json`
    """
    states = [_state(text) for text in state or ()]

    async def call() -> None:
        request = event_service_pb2.ListEventsRequest(
            page_size=1000,
            workload=resource("workloads", workload) if workload else "",
            states=states,
            filter=where,
            order_by=order_by,
        )
        async with connected(address) as client:
            found = [event async for event in pages(client.events.ListEvents, request, "events")]
        if as_json:
            print_json([to_dict(event) for event in found])
            return
        shown = table("event", "state", "start (UTC)", "end (UTC)", "expects")
        for event in found:
            shown.add_row(
                bare(event.name),
                event_pb2.EventState.Name(event.state).removeprefix("EVENT_STATE_"),
                when(event.start_time),
                when(event.end_time),
                _expects(event),
            )
        out().print(shown if found else "No events. Register one with `forecrest events create`.")

    run(call(), {"filter": "--filter", "order_by": "--order-by", "workload": "--workload"})


def _state(text: str) -> event_pb2.EventState.ValueType:
    try:
        return event_pb2.EventState.Value(f"EVENT_STATE_{text.upper()}")
    except ValueError:
        names = ", ".join(n.removeprefix("EVENT_STATE_") for n in event_pb2.EventState.keys()[1:])
        raise CliError(f"--state: {text!r} is unknown; choose from {names}.", EXIT_USAGE) from None


def _expects(event: event_pb2.Event) -> str:
    if event.HasField("expected_peak_qps"):
        return f"{qps(event.expected_peak_qps)} QPS"
    return f"{event.expected_multiplier:g} x" if event.HasField("expected_multiplier") else "?"


@app.command()
def cancel(
    event_id: EventId,
    reason: Annotated[str, typer.Option(help="Why, for the record.")] = "",
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Cancel an event; it is kept for the record.

    Example: `forecrest events cancel singles-day --reason "moved to next week"`
    """

    async def call() -> None:
        async with connected(address) as client:
            event = await client.events.CancelEvent(
                event_service_pb2.CancelEventRequest(
                    name=resource("events", event_id), reason=reason, request_id=str(uuid.uuid4())
                )
            )
        if as_json:
            print_json(to_dict(event))
        else:
            out().print(f"Event {bare(event.name)} is cancelled.")

    run(call())


@app.command()
def watch(event_id: EventId, address: Address = None, as_json: AsJson = False) -> None:
    """Follow an event's prewarm until the event is over, or until Ctrl-C.

    Example: `forecrest events watch singles-day`
    """

    async def call() -> None:
        console, said = out(), ""
        async with connected(address) as client:
            async for response in client.watch_event(resource("events", event_id)):
                if as_json:
                    print_json_line(to_dict(response))
                    continue
                progress = _progress(response)
                if progress != said:  # what changed is nothing that these lines show
                    said = progress
                    for line in progress.splitlines():
                        console.print(f"{response.observe_time.ToDatetime(UTC):%H:%M:%S} {line}")

    run(call())
    if not as_json:
        err().print("The event is over.")


def _progress(response: event_service_pb2.WatchEventResponse) -> str:
    """What a message says, a line for each workload."""
    state = event_pb2.EventState.Name(response.event.state).removeprefix("EVENT_STATE_")
    lines = [] if response.prewarms else [f"{state}: not planned yet"]
    for one in response.prewarms:
        contract = one.contract
        name = event_pb2.ContractState.Name(contract.state).removeprefix("CONTRACT_STATE_")
        lines.append(
            f"{state} {bare(one.workload)} {name}: {contract.verified_count} of {contract.replicas} warm "
            f"(ordered {contract.ordered_count}, scheduled {contract.scheduled_count}, "
            f"loaded {contract.loaded_count}, warmed {contract.warmed_count}), "
            f"due {contract.deadline_time.ToDatetime(UTC):%H:%M:%S}"
        )
    return "\n".join(lines)


app.command()(event_files.report)
app.command("import")(event_files.import_calendar)
app.command("export")(event_files.export_calendar)
