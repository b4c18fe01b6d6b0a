"""The options that describe an event, declared once for every command that takes them.

``with_event_options`` gives a command these options and hands them over as one value; ``NAMES`` says which option
stands for which field of the API, so that refusals name what a person typed.
"""

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Annotated, Any

import typer
from forecrest.v1 import event_pb2

from controller.cli.common import (
    EXIT_USAGE,
    CliError,
    clock,
    duration,
    parse_duration,
    parse_time,
    resource,
    stamp,
)
from controller.cli.complete import event_names, workload_names

EventId = Annotated[
    str,
    typer.Argument(
        metavar="EVENT", help="Id of the event, for example black-friday.", autocompletion=event_names
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, store nothing.")]
Workloads = Annotated[
    list[str] | None,
    typer.Option(
        "--workload",
        "-w",
        help="Workload it concerns; repeat for several.",
        autocompletion=workload_names,
    ),
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

# Fields of the API by the option that sets them, for refusals.
NAMES = {
    "event.workloads": "--workload",
    "event.start_time": "--start",
    "event.start_local": "--start",
    "event.end_time": "--end",
    "event.end_local": "--end",
    "event.time_zone": "--time-zone",
    "event.expected_peak_qps": "--peak-qps",
    "event.expected_multiplier": "--multiplier",
    "event.display_name": "--name",
    "event.category": "--category",
    "event.confidence": "--confidence",
    "event.ramp": "--ramp",
    "event.margin": "--margin",
    "event.lead_override": "--lead",
    "event.max_replicas_override": "--max-replicas",
    "event.priority": "--priority",
    "event.rrule": "--rrule",
    "event.labels": "--label",
    "event_id": "EVENT",
}


@dataclass(frozen=True, slots=True)
class EventOptions:
    """What was said of an event on the command line; None was not."""

    workload: Workloads = None
    start: Start = None
    end: End = None
    time_zone: TimeZone = None
    peak_qps: PeakQps = None
    multiplier: Multiplier = None
    name: DisplayName = None
    category: Category = None
    confidence: Confidence = None
    ramp: Ramp = None
    margin: Margin = None
    lead: Lead = None
    max_replicas: MaxReplicas = None
    priority: Priority = None
    rrule: Rrule = None
    label: Labels = None

    def fill(self, event: event_pb2.Event) -> list[str]:
        """Set what was given on ``event``; return the update mask."""
        if self.peak_qps is not None and self.multiplier is not None:
            raise CliError("--peak-qps, --multiplier: give one of them, not both.", EXIT_USAGE)
        mask: list[str] = []
        now = clock.now()
        for field, text in (("start", self.start), ("end", self.end)):
            if text is not None:
                mask += _set_time(event, field, text, now)
        plain: dict[str, Any] = {
            "time_zone": self.time_zone,
            "expected_peak_qps": self.peak_qps,
            "expected_multiplier": self.multiplier,
            "display_name": self.name,
            "category": self.category,
            "confidence": self.confidence,
            "max_replicas_override": self.max_replicas,
            "priority": self.priority,
            "rrule": self.rrule,
        }
        for field, value in plain.items():
            if value is not None:
                setattr(event, field, value)
                mask.append(field)
        lengths = {"ramp": self.ramp, "margin": self.margin, "lead_override": self.lead}
        for field, text in lengths.items():
            if text is not None:
                option = NAMES[f"event.{field}"]
                getattr(event, field).CopyFrom(duration(parse_duration(text, option)))
                mask.append(field)
        return [*mask, *self._fill_lists(event)]

    def _fill_lists(self, event: event_pb2.Event) -> list[str]:
        mask: list[str] = []
        if self.workload:
            del event.workloads[:]
            event.workloads.extend(resource("workloads", w) for w in self.workload)
            mask.append("workloads")
        if self.label:
            event.labels.clear()
            event.labels.update(_label(text) for text in self.label)
            mask.append("labels")
        return mask


def _set_time(event: event_pb2.Event, field: str, text: str, now: datetime) -> list[str]:
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
        getattr(event, instant).CopyFrom(stamp(parse_time(text, f"--{field}", now)))
    return [local, instant]


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise CliError(f"--label: {text!r} is not key=value.", EXIT_USAGE)
    return key, value


def with_event_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command`` the options of an event in place of its parameter ``given``."""
    names = [field.name for field in fields(EventOptions)]
    hints = typing.get_type_hints(EventOptions, include_extras=True)
    own = inspect.signature(command, eval_str=True)

    @functools.wraps(command)
    def filled(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401 -- whatever the command takes
        command(*args, given=EventOptions(**{name: kwargs.pop(name) for name in names}), **kwargs)

    parameters: list[inspect.Parameter] = []
    for parameter in own.parameters.values():
        if parameter.name == "given":
            parameters += [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hints[name])
                for name in names
            ]
        else:
            parameters.append(parameter)
    # Typer reads these two, and nothing else.
    filled.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    filled.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    return filled
