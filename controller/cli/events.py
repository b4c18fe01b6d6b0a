"""``forecrest events``: register, preview, follow and cancel traffic events."""

import uuid
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from forecrest.v1 import event_pb2, event_service_pb2, forecast_pb2
from rich.console import Console

from controller.cli.common import (
    EXIT_USAGE,
    Address,
    AsJson,
    CliError,
    bare,
    clock,
    connected,
    duration,
    err,
    out,
    parse_duration,
    parse_time,
    print_json,
    print_json_line,
    qps,
    resource,
    run,
    stamp,
    table,
    to_dict,
    when,
)
from controller.client import Client, pages

app = typer.Typer(no_args_is_help=True, help="Register, preview, follow and cancel traffic events.")

EventId = Annotated[str, typer.Argument(metavar="EVENT", help="Id of the event, for example black-friday.")]
Workloads = Annotated[
    list[str] | None, typer.Option("--workload", "-w", help="Workload it concerns; repeat for several.")
]
Start = Annotated[
    str | None,
    typer.Option(help="Start: wall clock (2026-11-11T00:00) in --time-zone, an instant with Z, or +2h."),
]
End = Annotated[str | None, typer.Option(help="End, excluded; written as --start is, or +2h from now.")]
TimeZone = Annotated[str | None, typer.Option(help="IANA zone of the event, for example Asia/Shanghai.")]
PeakQps = Annotated[
    float | None, typer.Option(help="Expected requests per second at the peak, all included.")
]
Multiplier = Annotated[
    float | None, typer.Option(help="Or: expected multiple of what the forecast says without the event.")
]
DisplayName = Annotated[str | None, typer.Option("--name", help="What people call it.")]
Category = Annotated[str | None, typer.Option(help="Kind of event, to learn from past ones: promotion.")]
Confidence = Annotated[float | None, typer.Option(help="How sure you are, over 0 up to 1 (default 0.8).")]
Ramp = Annotated[str | None, typer.Option(help="Time demand takes to climb to the peak: 90s, 5m.")]
Margin = Annotated[str | None, typer.Option(help="Replicas are to be warm this long before the start: 60s.")]
Lead = Annotated[str | None, typer.Option(help="Order this long before, instead of the measured lead time.")]
MaxReplicas = Annotated[int | None, typer.Option(help="Raise max_replicas during this event only.")]
Priority = Annotated[int | None, typer.Option(help="Who gets GPUs first; higher goes first (default 0).")]
Rrule = Annotated[str | None, typer.Option(help="Recurrence (RFC 5545): FREQ=WEEKLY;BYDAY=FR.")]
Labels = Annotated[
    list[str] | None, typer.Option("--label", help="Free label key=value; repeat for several.")
]
READY = forecast_pb2.FORECAST_STATE_READY

DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, store nothing.")]


def _filled(
    event: event_pb2.Event,
    *,
    workloads: list[str] | None = None,
    start: str | None = None,
    end: str | None = None,
    time_zone: str | None = None,
    peak_qps: float | None = None,
    multiplier: float | None = None,
    name: str | None = None,
    category: str | None = None,
    confidence: float | None = None,
    ramp: str | None = None,
    margin: str | None = None,
    lead: str | None = None,
    max_replicas: int | None = None,
    priority: int | None = None,
    rrule: str | None = None,
    labels: list[str] | None = None,
) -> list[str]:
    """Set what was given on ``event``; return the update mask."""
    if peak_qps is not None and multiplier is not None:
        raise CliError("--peak-qps, --multiplier: give one of them, not both.", EXIT_USAGE)
    mask: list[str] = []
    now = clock.now()
    for field, text, option in (("start", start, "--start"), ("end", end, "--end")):
        if text is not None:
            mask += _set_time(event, field, text, option, now)
    plain: dict[str, Any] = {
        "time_zone": time_zone,
        "expected_peak_qps": peak_qps,
        "expected_multiplier": multiplier,
        "display_name": name,
        "category": category,
        "confidence": confidence,
        "max_replicas_override": max_replicas,
        "priority": priority,
        "rrule": rrule,
    }
    for field, value in plain.items():
        if value is not None:
            setattr(event, field, value)
            mask.append(field)
    for field, text, option in (
        ("ramp", ramp, "--ramp"),
        ("margin", margin, "--margin"),
        ("lead_override", lead, "--lead"),
    ):
        if text is not None:
            getattr(event, field).CopyFrom(duration(parse_duration(text, option)))
            mask.append(field)
    if workloads:
        del event.workloads[:]
        event.workloads.extend(resource("workloads", w) for w in workloads)
        mask.append("workloads")
    if labels:
        event.labels.clear()
        event.labels.update(_label(text) for text in labels)
        mask.append("labels")
    return mask


def _set_time(event: event_pb2.Event, field: str, text: str, option: str, now: datetime) -> list[str]:
    """Set a wall-clock time as such, anything else as an instant; the other form is derived by the server."""
    local, instant = f"{field}_local", f"{field}_time"
    try:
        is_wall_clock = datetime.fromisoformat(text).tzinfo is None
    except ValueError:
        is_wall_clock = False
    if is_wall_clock:
        event.ClearField(instant)  # type: ignore[arg-type]  # one of two known names
        setattr(event, local, text)
    else:
        setattr(event, local, "")
        getattr(event, instant).CopyFrom(stamp(parse_time(text, option, now)))
    return [local, instant]


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise CliError(f"--label: {text!r} is not key=value.", EXIT_USAGE)
    return key, value


@app.command()
def create(
    event_id: EventId,
    *,
    workload: Workloads = None,
    start: Start = None,
    end: End = None,
    time_zone: TimeZone = None,
    peak_qps: PeakQps = None,
    multiplier: Multiplier = None,
    name: DisplayName = None,
    category: Category = None,
    confidence: Confidence = None,
    ramp: Ramp = None,
    margin: Margin = None,
    lead: Lead = None,
    max_replicas: MaxReplicas = None,
    priority: Priority = None,
    rrule: Rrule = None,
    label: Labels = None,
    dry_run: DryRun = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Register an event, and say what it will cost.

    Example: `forecrest events create singles-day -w recommender --start 2030-11-11T00:00
    --end 2030-11-11T02:00 --time-zone Asia/Shanghai --peak-qps 200`
    """
    event = event_pb2.Event()
    _filled(
        event,
        workloads=workload,
        start=start,
        end=end,
        time_zone=time_zone,
        peak_qps=peak_qps,
        multiplier=multiplier,
        name=name,
        category=category,
        confidence=confidence,
        ramp=ramp,
        margin=margin,
        lead=lead,
        max_replicas=max_replicas,
        priority=priority,
        rrule=rrule,
        labels=label,
    )
    run(_create(event_id, event, dry_run=dry_run, address=address, as_json=as_json))


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
def update(
    event_id: EventId,
    *,
    workload: Workloads = None,
    start: Start = None,
    end: End = None,
    time_zone: TimeZone = None,
    peak_qps: PeakQps = None,
    multiplier: Multiplier = None,
    name: DisplayName = None,
    category: Category = None,
    confidence: Confidence = None,
    ramp: Ramp = None,
    margin: Margin = None,
    lead: Lead = None,
    max_replicas: MaxReplicas = None,
    priority: Priority = None,
    rrule: Rrule = None,
    label: Labels = None,
    dry_run: DryRun = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Change an event; what is not given stays. The next tick plans with it.

    Example: `forecrest events update singles-day --peak-qps 250`
    """
    event = event_pb2.Event(name=resource("events", event_id))
    mask = _filled(
        event,
        workloads=workload,
        start=start,
        end=end,
        time_zone=time_zone,
        peak_qps=peak_qps,
        multiplier=multiplier,
        name=name,
        category=category,
        confidence=confidence,
        ramp=ramp,
        margin=margin,
        lead=lead,
        max_replicas=max_replicas,
        priority=priority,
        rrule=rrule,
        labels=label,
    )
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

    run(call())


@app.command()
def preview(
    event_id: Annotated[
        str | None, typer.Argument(metavar="[EVENT]", help="A registered event to start from.")
    ] = None,
    *,
    workload: Workloads = None,
    start: Start = None,
    end: End = None,
    time_zone: TimeZone = None,
    peak_qps: PeakQps = None,
    multiplier: Multiplier = None,
    confidence: Confidence = None,
    ramp: Ramp = None,
    margin: Margin = None,
    lead: Lead = None,
    max_replicas: MaxReplicas = None,
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
            _filled(
                event,
                workloads=workload,
                start=start,
                end=end,
                time_zone=time_zone,
                peak_qps=peak_qps,
                multiplier=multiplier,
                confidence=confidence,
                ramp=ramp,
                margin=margin,
                lead=lead,
                max_replicas=max_replicas,
            )
            response = await client.events.PreviewEvent(event_service_pb2.PreviewEventRequest(event=event))
        if as_json:
            print_json(to_dict(response))
        else:
            _print_preview(out(), response)

    run(call())


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
    console.print(
        f"On top of what would run anyway: {response.extra_replica_hours:.2f} replica-hours, "
        f"{response.extra_gpu_hours:.2f} GPU-hours."
    )
    if response.unmet_replicas:
        console.print(
            f"[bold red]{response.unmet_replicas} replicas short[/]: raise max_replicas or the quota, "
            "or expect requests to wait."
        )


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
        shown = table("field", "value")
        for field, value in to_dict(event).items():
            if value not in ("", [], {}, 0):
                shown.add_row(field, ", ".join(map(str, value)) if isinstance(value, list) else str(value))
        out().print(shown)

    run(call())


@app.command("list")
def list_events(
    workload: Annotated[str, typer.Option("--workload", "-w", help="Events of this workload only.")] = "",
    state: Annotated[
        list[str] | None,
        typer.Option(help="Events in this state only: SCHEDULED, PREWARMING, ACTIVE, COMPLETED, CANCELLED."),
    ] = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """List events by their start.

    Example: `forecrest events list --state SCHEDULED --json`
    """
    states = [_state(text) for text in state or ()]

    async def call() -> None:
        request = event_service_pb2.ListEventsRequest(
            page_size=1000, workload=resource("workloads", workload) if workload else "", states=states
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

    run(call())


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
        console = out()
        async with connected(address) as client:
            async for response in client.watch_event(resource("events", event_id)):
                if as_json:
                    print_json_line(to_dict(response))
                else:
                    _print_progress(console, response)

    run(call())
    if not as_json:
        err().print("The event is over.")


def _print_progress(console: Console, response: event_service_pb2.WatchEventResponse) -> None:
    at = f"{response.observe_time.ToDatetime(UTC):%H:%M:%S}"
    state = event_pb2.EventState.Name(response.event.state).removeprefix("EVENT_STATE_")
    if not response.prewarms:
        console.print(f"{at} {state}: not planned yet")
    for one in response.prewarms:
        contract = one.contract
        name = event_pb2.ContractState.Name(contract.state).removeprefix("CONTRACT_STATE_")
        console.print(
            f"{at} {state} {bare(one.workload)} {name}: {contract.verified_count} of {contract.replicas} warm "
            f"(ordered {contract.ordered_count}, scheduled {contract.scheduled_count}, "
            f"loaded {contract.loaded_count}, warmed {contract.warmed_count}), "
            f"due {contract.deadline_time.ToDatetime(UTC):%H:%M:%S}"
        )
