"""What every command shares: connecting, printing, times, and errors that say what to do.

Promises: errors go to standard error as sentences, never as tracebacks; with ``--json`` standard output holds
JSON and nothing else (``output`` adds YAML); tables fit 80 columns. Called by the commands beside it.
"""

import asyncio
import os
import re
import signal
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

import grpc
import typer
from google.protobuf import duration_pb2, json_format, timestamp_pb2
from google.protobuf.message import Message
from rich.console import Console
from rich.table import Table

from controller.adapters.clock import SystemClock
from controller.adapters.embedded.folder import read_json
from controller.cli.output import dump
from controller.client import Client, explain
from controller.credentials import Credentials, CredentialsError

T = TypeVar("T")

WIDTH_MAX = 80
DEFAULT_ADDRESS = "127.0.0.1:7443"
DATA_DIR = Path(os.environ.get("FORECREST_DATA_DIR") or ".forecrest")
# The demo keeps its own folder below, so that its clock never meets real data.
STATE_FILES = (DATA_DIR / "runtime.json", DATA_DIR / "demo" / "runtime.json")
# docs/cli.md says what scripts may rely on.
EXIT_FAILED, EXIT_USAGE, EXIT_UNAVAILABLE, EXIT_INTERRUPTED, EXIT_TERMINATED = 1, 2, 3, 130, 143
EXIT_BY_SIGNAL = {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_TERMINATED}

clock = SystemClock()

Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        envvar="FORECREST_ADDRESS",
        help="host:port of a controller. Default: the one running from ./.forecrest, else 127.0.0.1:7443.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


class CliError(Exception):
    """Ends the command with a sentence and an exit code."""

    def __init__(self, message: str, code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.code = code


def out() -> Console:
    """Standard output, no wider than 80 columns where no terminal says otherwise."""
    console = Console(highlight=False, emoji=False, soft_wrap=False)
    return console if console.width <= WIDTH_MAX else Console(highlight=False, emoji=False, width=WIDTH_MAX)


def err() -> Console:
    """Standard error, for what is not the result."""
    return Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)


def run(main: Coroutine[Any, Any, T], names: Mapping[str, str] = MappingProxyType({})) -> T:
    """Run a command's coroutine; Ctrl-C and SIGTERM cancel it, so that what it started is stopped.

    ``names`` says what a person typed for each field of the API that may be refused.
    """

    async def supervised() -> T:
        task = asyncio.current_task()
        assert task is not None
        ended_by: list[signal.Signals] = []

        def end(number: signal.Signals) -> None:
            ended_by.append(number)
            task.cancel()

        # Not left to Python: a shell starts background jobs with SIGINT ignored.
        for number in EXIT_BY_SIGNAL:
            asyncio.get_running_loop().add_signal_handler(number, end, number)
        try:
            return await main
        except asyncio.CancelledError:
            if not ended_by:
                raise
            raise SystemExit(EXIT_BY_SIGNAL[ended_by[0]]) from None
        except grpc.aio.AioRpcError as error:
            raise CliError(_refusal(error, names), _exit_code(error)) from None

    return asyncio.run(supervised())


def _exit_code(error: grpc.aio.AioRpcError) -> int:
    # What may work in a moment is told apart, so that a script can try again.
    away = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
    return EXIT_UNAVAILABLE if error.code() in away else EXIT_FAILED


def _refusal(error: grpc.aio.AioRpcError, names: Mapping[str, str]) -> str:
    refused = explain(error)
    # One that gives a reason does answer: its storage is away, or it is not ready.
    if error.code() is grpc.StatusCode.UNAVAILABLE and not refused.reason:
        return (
            "No controller answers. Start one with `forecrest up`, or name one with --address "
            "or FORECREST_ADDRESS. One that serves TLS answers only with --tls-ca or FORECREST_CA."
        )
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and not refused.reason:
        return "The controller did not answer in time: it is busy, or the way to it is blocked. Try again."
    return "\n".join(typed(*one, names) for one in refused.violations) or str(refused)


def typed(field: str, remedy: str, names: Mapping[str, str]) -> str:
    """Return a violation in the words of the command line: field and remedy, with options for what they set."""
    known = max((n for n in names if field.startswith(n)), key=len, default="")
    said = f"{names[known]}{field[len(known) :]}" if known else field
    for name, option in names.items():
        if option:
            remedy = re.sub(rf"(?<![\w.-]){re.escape(name.rpartition('.')[2])}(?![\w.-])", option, remedy)
    return f"{said}: {remedy}"


def find_address(given: str | None) -> str:
    """Return the address to use: given, or of the newest runtime started from this folder, or the default."""
    if given:
        if not re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\s:/]+):\d{1,5}", given):
            raise CliError(f"--address: {given!r} is not host:port; write 127.0.0.1:7443.", EXIT_USAGE)
        return given
    for path in STATE_FILES:
        known = read_json(path).get("address")
        if isinstance(known, str):
            return known
    return DEFAULT_ADDRESS


# What the options before the command said; the environment says the rest.
_given: dict[str, Path | None] = {}


def use_credentials(**given: Path | None) -> None:
    """Take the credential files named on the command line, for every connection of this process."""
    _given.update(given)


def given_credentials() -> Credentials:
    """Return the credentials of the command line and the environment."""
    return Credentials.from_environment(None, **_given)


@asynccontextmanager
async def connected(address: str | None) -> AsyncGenerator[Client]:
    """Connect to the controller, with the credentials of the command line and the environment."""
    try:
        client = Client(find_address(address), credentials=given_credentials())
    except CredentialsError as error:
        raise CliError(str(error), EXIT_USAGE) from None
    async with client:
        yield client


def to_dict(message: Message) -> dict[str, Any]:
    """Return a message as plain values, under its proto field names; what is zero is shown too."""
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def print_json(value: Any) -> None:  # noqa: ANN401 - whatever JSON can hold
    """Print a result for scripts: indented JSON, or YAML where that was asked for."""
    typer.echo(dump(value))


def print_json_line(value: Any) -> None:  # noqa: ANN401 - as above
    """Print one result of a stream: JSON on one line, or a YAML document."""
    typer.echo(dump(value, stream=True))


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    """Return an empty table of the house style; columns named in ``right`` align right."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        number = column in right
        # A number or a time that is broken over two lines is read wrongly; names can be.
        whole = number or column.endswith("(UTC)")
        made.add_column(column, justify="right" if number else "left", overflow="fold", no_wrap=whole)
    return made


def fields_table(message: Message) -> Table:
    """Return every field of a message that says something, one a row."""
    shown = table("field", "value")
    for field, value in _said(to_dict(message)).items():
        for name, part in _said(value, field).items() if isinstance(value, dict) else [(field, value)]:
            shown.add_row(name, _text(part).replace("[", r"\["))
    return shown


def _said(fields: Mapping[str, Any], under: str = "") -> dict[str, Any]:
    return {
        f"{under}.{field}" if under else field: value
        for field, value in fields.items()
        if value not in ("", "0", [], {}, 0)  # whole numbers of 64 bits come as text
    }


def _text(value: Any) -> str:  # noqa: ANN401 - whatever JSON can hold
    if isinstance(value, dict):
        return ", ".join(f"{field} {_text(part)}" for field, part in _said(value).items())
    if isinstance(value, list):
        return ("; " if any(isinstance(one, dict) for one in value) else ", ").join(map(_text, value))
    return str(value)


def qps(value: float) -> str:
    """Format a rate to what matters of it."""
    return f"{value:,.0f}".replace(",", " ") if value >= 100 else f"{value:.3g}"


def bare(name: str) -> str:
    """Return the id in a resource name."""
    return name.rpartition("/")[2]


def resource(collection: str, name: str) -> str:
    """Return the full resource name of an id or of a name that is full already."""
    return name if name.startswith(f"{collection}/") else f"{collection}/{name}"


def when(stamp: timestamp_pb2.Timestamp, *, seconds: bool = False) -> str:
    """Format a timestamp for a table, UTC."""
    return (
        f"{stamp.ToDatetime(UTC):%Y-%m-%d %H:%M:%S}" if seconds else f"{stamp.ToDatetime(UTC):%Y-%m-%d %H:%M}"
    )


_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")


def parse_duration(text: str, field: str) -> timedelta:
    """Read 90s, 5m, 1h30m or 2d; raise CliError naming ``field``."""
    found = _DURATION.fullmatch(text.strip())
    if not text.strip() or found is None or not any(found.groups()):
        raise CliError(f"{field}: {text!r} is no duration; write 90s, 5m, 1h30m or 2d.", EXIT_USAGE)
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    try:
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError:
        raise CliError(f"{field}: {text!r} is longer than any calendar; write less.", EXIT_USAGE) from None


def parse_time(text: str, field: str, now: datetime) -> datetime:
    """Read an ISO 8601 instant with its zone, ``now``, ``+2h`` or ``-1d``; raise CliError naming ``field``."""
    try:
        return _instant(text.strip(), field, now)
    except OverflowError:
        raise CliError(f"{field}: {text!r} lies outside the years 1 to 9999.", EXIT_USAGE) from None


def _instant(text: str, field: str, now: datetime) -> datetime:
    if text == "now":
        return now
    if text[:1] in {"+", "-"}:
        distance = parse_duration(text[1:], field)
        return now + distance if text[0] == "+" else now - distance
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise CliError(
            f"{field}: {text!r} is no time; write 2026-11-11T00:00:00Z, now, +2h or -1d.", EXIT_USAGE
        ) from None
    if at.tzinfo is None:
        raise CliError(f"{field}: {text} has no zone; add Z or an offset such as +08:00.", EXIT_USAGE)
    return at.astimezone(UTC)


def stamp(at: datetime) -> timestamp_pb2.Timestamp:
    """Return an aware datetime as protobuf has it."""
    made = timestamp_pb2.Timestamp()
    made.FromDatetime(at)
    return made


def duration(length: timedelta) -> duration_pb2.Duration:
    """Return a timedelta as protobuf has it."""
    made = duration_pb2.Duration()
    made.FromTimedelta(length)
    return made


def is_colour_wanted() -> bool:
    """Whether plots may use colour."""
    return "NO_COLOR" not in os.environ and Console().is_terminal
