"""``forecrest forecast`` and ``forecrest history``: what demand will probably be, and what it was."""

import contextlib
import sys
from collections.abc import AsyncIterator, Generator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, TextIO

import typer
from forecrest.v1 import forecast_pb2, forecast_service_pb2

from controller.cli import ingest
from controller.cli.common import (
    EXIT_USAGE,
    Address,
    AsJson,
    CliError,
    clock,
    connected,
    duration,
    err,
    out,
    parse_duration,
    parse_time,
    print_json,
    qps,
    resource,
    run,
    stamp,
    table,
    to_dict,
    when,
)
from controller.cli.complete import workload_names
from controller.cli.ingest import Workload
from controller.cli.plots import Line, draw
from controller.client import Client
from controller.history import write_history

history = typer.Typer(no_args_is_help=True, help="Import demand from CSV or Parquet; export it as CSV.")

EXPORT_BUCKETS_MAX = 20_160
ROWS_SHOWN = 16
PLOT_LETTERS = {0.1: "-", 0.5: "o", 0.99: "+"}


def forecast(
    workload: Annotated[
        str, typer.Argument(metavar="WORKLOAD", help="Id of the workload.", autocompletion=workload_names)
    ],
    plot: Annotated[bool, typer.Option("--plot", help="Draw it, with the history before it.")] = False,
    hours: Annotated[float, typer.Option(help="How far ahead to show.", min=0.1, max=336)] = 24.0,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Show a workload's newest forecast.

    Example: `forecrest forecast recommender --plot --hours 48`
    """

    async def call() -> None:
        async with connected(address) as client:
            found = await client.forecasts.GetForecast(
                forecast_service_pb2.GetForecastRequest(name=f"{resource('workloads', workload)}/forecast")
            )
            past = await _history_before(client, workload, found, hours) if plot else []
        if as_json:
            print_json(to_dict(found))
            return
        _print_head(found)
        if not found.quantiles:
            return
        steps = max(1, round(hours * 3600 / found.step.ToTimedelta().total_seconds()))
        if plot:
            _plot(found, past, steps)
        else:
            _print_rows(found, steps)

    run(call())


def _print_head(found: forecast_pb2.Forecast) -> None:
    console = out()
    state = forecast_pb2.ForecastState.Name(found.state).removeprefix("FORECAST_STATE_")
    console.print(f"Forecast {state}, from what was known at {when(found.origin_time)} UTC.")
    for reason in found.reasons:
        console.print(f"  {reason}")
    if found.occurrence_ids:
        console.print(f"  with events: {', '.join(found.occurrence_ids)}")


def _print_rows(found: forecast_pb2.Forecast, steps: int) -> None:
    shown = [q for q in found.quantiles if q.level >= 0.1]
    heads = [f"P{q.level * 100:g}" for q in shown]
    rows = table("from (UTC)", *heads, right=heads)
    count = min(steps, len(shown[0].qps))
    group = max(1, -(-count // ROWS_SHOWN))
    start, step = found.start_time.ToDatetime(UTC), found.step.ToTimedelta()
    for first in range(0, count, group):
        # The highest of each group: a peak must not vanish between two rows.
        peaks = [qps(max(q.qps[first : min(first + group, count)])) for q in shown]
        rows.add_row(f"{start + step * first:%m-%d %H:%M}", *peaks)
    out().print(rows)
    if group > 1:
        out().print(f"QPS; each row is the highest of {group} steps of {step.total_seconds() / 60:g} min.")


async def _history_before(
    client: Client, workload: str, found: forecast_pb2.Forecast, hours: float
) -> list[tuple[datetime, float | None]]:
    step = max(found.step.ToTimedelta(), timedelta(minutes=1))
    origin = found.origin_time.ToDatetime(UTC)
    span = min(timedelta(hours=hours), step * EXPORT_BUCKETS_MAX)
    return [p async for p in _read(client, workload, origin - span, origin, step)]


def _plot(found: forecast_pb2.Forecast, past: Sequence[tuple[datetime, float | None]], steps: int) -> None:
    origin = found.origin_time.ToDatetime(UTC)
    start, step = found.start_time.ToDatetime(UTC), found.step.ToTimedelta()

    def hour(at: datetime) -> float:
        return (at - origin).total_seconds() / 3600

    known = [(hour(at), value) for at, value in past if value is not None]
    lines = [Line("observed", "·", [x for x, _ in known], [y for _, y in known], joined=False)]
    for quantile in found.quantiles:
        level, values = round(quantile.level, 3), quantile.qps[:steps]
        if level in PLOT_LETTERS:
            hours = [hour(start + step * index) for index in range(len(values))]
            lines.append(Line(f"P{level * 100:g}", PLOT_LETTERS[level], hours, values))
    draw("QPS", f"hours from {origin:%Y-%m-%d %H:%M} UTC", lines)


history.command("import")(ingest.import_history)


@history.command("export")
def export_history(
    workload: Workload,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; standard output if absent.")
    ] = None,
    start: Annotated[str, typer.Option(help="First time: -30d or an instant.")] = "-7d",
    end: Annotated[str, typer.Option(help="End, excluded.")] = "now",
    step: Annotated[str, typer.Option(help="Bucket: whole minutes, 1m to 1d.")] = "1m",
    address: Address = None,
) -> None:
    """Export demand as CSV, mean requests per second per bucket; unknown buckets are left out.

    Example: `forecrest history export --workload recommender --start -30d --step 5m -o demand.csv`
    """
    now = clock.now()
    start_at, end_at = parse_time(start, "--start", now), parse_time(end, "--end", now)
    bucket = parse_duration(step, "--step")
    if start_at >= end_at:
        raise CliError("--start: must come before --end.", EXIT_USAGE)
    if bucket < timedelta(minutes=1):
        raise CliError("--step: must be at least 1m, the base of the stored history.", EXIT_USAGE)

    async def call() -> list[tuple[datetime, float | None]]:
        async with connected(address) as client:
            return [point async for point in _read(client, workload, start_at, end_at, bucket)]

    points = run(call())
    with _writable(output) as file:
        count = write_history(file, points)
    if output is not None:
        err().print(f"Wrote {count} rows to {output}.")


@contextlib.contextmanager
def _writable(path: Path | None) -> Generator[TextIO]:
    if path is None:
        yield sys.stdout
        return
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            yield file
    except OSError as error:
        raise CliError(f"--output: {path} cannot be written: {error.strerror}.") from None


async def _read(
    client: Client, workload: str, start_at: datetime, end_at: datetime, step: timedelta
) -> AsyncIterator[tuple[datetime, float | None]]:
    """Read a window of any length, in as many calls as it takes."""
    at = start_at
    while at < end_at:
        until = min(end_at, at + step * EXPORT_BUCKETS_MAX)
        response = await client.forecasts.GetHistory(
            forecast_service_pb2.GetHistoryRequest(
                workload=resource("workloads", workload),
                start_time=stamp(at),
                end_time=stamp(until),
                step=duration(step),
            )
        )
        for point in response.points:
            known = point.demand_qps if point.HasField("demand_qps") else None
            yield point.start_time.ToDatetime(UTC), known
        at = until
