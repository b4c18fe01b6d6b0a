"""``forecrest notifications``: what was told to whom, what was not, and whether a sinks file works."""

import asyncio
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from forecrest.v1 import control_pb2, notification_service_pb2

from controller.cli.common import (
    EXIT_USAGE,
    Address,
    AsJson,
    CliError,
    clock,
    connected,
    out,
    print_json,
    resource,
    run,
    table,
    to_dict,
    when,
)
from controller.cli.complete import workload_names
from controller.client import pages

if TYPE_CHECKING:
    from controller.notify.config import Sink

SHOWN = {"name", "format", "severity", "namespaces", "kinds"}

app = typer.Typer(no_args_is_help=True, help="What was told to whom, and whether a sinks file works.")


@app.command("list")
def list_notifications(
    workload: Annotated[
        str, typer.Option("--workload", "-w", help="Of this workload only.", autocompletion=workload_names)
    ] = "",
    sink: Annotated[str, typer.Option(help="To this sink only.")] = "",
    state: Annotated[str, typer.Option(help="PENDING, DELIVERED or DEAD only.")] = "",
    limit: Annotated[int, typer.Option(help="At most so many.", min=1, max=100_000)] = 20,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """List notifications, newest first, with how far each has come. DEAD ones were given up.

    Example: `forecrest notifications list --state DEAD`
    """
    request = notification_service_pb2.ListNotificationsRequest(
        page_size=min(limit, 1000),
        sink=sink,
        workload=resource("workloads", workload) if workload else "",
    )
    if state:
        try:
            request.state = notification_service_pb2.NotificationState.Value(
                f"NOTIFICATION_STATE_{state.upper()}"
            )
        except ValueError:
            raise CliError(
                f"--state: {state!r} is unknown; choose from PENDING, DELIVERED, DEAD.", EXIT_USAGE
            ) from None

    async def call() -> list[notification_service_pb2.Notification]:
        async with connected(address) as client:
            listed = pages(client.notifications.ListNotifications, request, "notifications", limit)
            return [one async for one in listed]

    found = run(call(), {"workload": "--workload", "sink": "--sink"})
    if as_json:
        print_json([to_dict(one) for one in found])
        return
    shown = table("time (UTC)", "sink", "state", "what")
    for one in found:
        what = one.sentence + (f" [{_kind(one)}]" if one.kind else "")
        problem = f"\n→ {one.error} (attempt {one.attempt_count})" if one.error else ""
        name = notification_service_pb2.NotificationState.Name(one.state)
        shown.add_row(
            when(one.event_time, seconds=True)[5:],
            one.sink,
            name.removeprefix("NOTIFICATION_STATE_"),
            f"{what}{problem}".replace("[", r"\["),
        )
    out().print(shown if found else "No notifications.")


def _kind(one: notification_service_pb2.Notification) -> str:
    if one.alarm:
        return control_pb2.AlarmKind.Name(one.alarm).removeprefix("ALARM_KIND_")
    return notification_service_pb2.NotificationKind.Name(one.kind).removeprefix("NOTIFICATION_KIND_")


@app.command()
def check(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", envvar="FORECREST_NOTIFICATIONS_FILE", help="The sinks file, YAML."),
    ],
    send: Annotated[bool, typer.Option("--send", help="Try every sink with a message of kind TEST.")] = False,
    as_json: AsJson = False,
) -> None:
    """Read a sinks file as a controller would; with --send, see from here whether its sinks take a message.

    Example: `forecrest notifications check notifications.yaml --send`
    """
    from controller.notify.config import SinksError, read_sinks  # noqa: PLC0415 - slow to import

    try:
        sinks = read_sinks(file)
    except SinksError as error:
        raise CliError(str(error), EXIT_USAGE) from None
    answers = run(_tried(sinks)) if send else ["" for _ in sinks]
    if as_json:
        print_json(
            [
                {
                    **sink.model_dump(mode="json", include=SHOWN),
                    "result": (answer or "delivered") if send else None,
                }
                for sink, answer in zip(sinks, answers, strict=True)
            ]
        )
    else:
        shown = table("sink", "format", "from", "namespaces", "kinds", *(["result"] if send else []))
        for sink, answer in zip(sinks, answers, strict=True):
            cells = [sink.name, sink.format, sink.severity.value]
            cells += [", ".join(chosen or ("all",)) for chosen in (sink.namespaces, sink.kinds)]
            cells += [answer or "delivered"] if send else []
            shown.add_row(*(cell.replace("[", r"\[") for cell in cells))
        out().print(shown)
    if any(answers):
        raise typer.Exit(1)


async def _tried(sinks: Sequence["Sink"]) -> list[str]:
    """What each sink answered to a message; empty where it took it."""
    from controller.notify.types import Kind, Notification, Severity  # noqa: PLC0415 - as above
    from controller.notify.webhook import WebhookSink  # noqa: PLC0415
    from controller.ports import PortError  # noqa: PLC0415

    test = Notification(
        uuid.uuid4().hex, clock.now(), Kind.TEST, Severity.INFO, "", "", "", "Forecrest can reach this sink."
    )

    async def tried(sink: "Sink") -> str:
        sender = WebhookSink(sink, clock)
        try:
            await sender.send(test, 1)
        except PortError as error:
            return str(error)
        finally:
            await sender.close()
        return ""

    return list(await asyncio.gather(*map(tried, sinks)))
