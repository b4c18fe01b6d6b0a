"""``forecrest history import`` and ``forecrest traffic backfill``: demand from files and from Prometheus.

Promises: what was answered is stored, so a command that was interrupted is simply repeated; gaps stay gaps;
with ``--rejects`` every row that was left out stands in a file with its line and what is wrong with it. Called
by the command line.
"""

import csv
import os
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from forecrest.v1 import telemetry_service_pb2, workload_service_pb2
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from controller.adapters.prometheus import (
    Prometheus,
    PrometheusAccess,
    QueryError,
    minutes_of,
)
from controller.cli.common import (
    EXIT_USAGE,
    Address,
    AsJson,
    CliError,
    clock,
    connected,
    err,
    out,
    parse_time,
    print_json,
    resource,
    run,
)
from controller.cli.complete import workload_names
from controller.core.resources import TrafficSample
from controller.history import Reject, Unit, read_history, to_samples
from controller.ports import PortError

traffic = typer.Typer(no_args_is_help=True, help="Bring in demand that others have measured.")

BATCH = 20_000
SOURCE = "import"
MINUTE = timedelta(minutes=1)

Workload = Annotated[
    str, typer.Option("--workload", "-w", help="Id of the workload.", autocompletion=workload_names)
]


def import_history(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="CSV or Parquet with the columns timestamp and value; CSV may be gzipped."
        ),
    ],
    workload: Workload,
    unit: Annotated[
        Unit, typer.Option(help="What value counts: mean requests per second, or requests per bucket.")
    ] = Unit.QPS,
    rejects: Annotated[
        Path | None,
        typer.Option(help="Write bad rows to this CSV file and import the others; without it none are."),
    ] = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Import demand from a CSV or Parquet file. The whole file is checked before anything is written.

    Importing a minute again replaces it, so an import that was interrupted is simply repeated.

    Example: `forecrest history import requests.csv.gz --workload recommender --unit count`
    """
    bad: list[Reject] = []
    found = read_history(file, None if rejects is None else bad)
    latest = clock.now()
    if found.end_at > latest + found.step:
        raise CliError(
            f"{file}: nothing was imported. The last row, {found.rows[-1].at.isoformat()}, lies in the future; "
            "check its time zone."
        )
    if rejects is not None:
        _write_rejects(rejects, bad)
    samples = to_samples(found, resource("workloads", workload), unit, SOURCE)
    written = run(_import(samples, address))
    start, end = found.rows[0].at.isoformat(), found.end_at.isoformat()
    if as_json:
        print_json({"minutes": written, "rejected": len(bad), "start": start, "end": end})
    else:
        out().print(f"Imported {written} minutes of {workload}: {start[:16]} to {end[:16]} UTC.")
        if bad:
            out().print(f"{len(bad)} rows were left out; see {rejects}.")


def _write_rejects(path: Path, bad: Sequence[Reject]) -> None:
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("place", "problem", "content"))
            writer.writerows((reject.place, reject.problem, ",".join(reject.cells)) for reject in bad)
    except OSError as error:
        raise CliError(f"--rejects: {path} cannot be written: {error.strerror}.") from None


async def _import(samples: Sequence[TrafficSample], address: str | None) -> int:
    async def batches() -> AsyncIterator[telemetry_service_pb2.StreamTrafficRequest]:
        for first in range(0, len(samples), BATCH):
            yield traffic_batch(samples[first : first + BATCH])

    written = 0
    async with connected(address) as client:
        # Asked first: a name that is wrong should not cost the reading of a large file's worth of batches.
        await client.workloads.GetWorkload(workload_service_pb2.GetWorkloadRequest(name=samples[0].workload))
        with _progress() as progress:
            bar = progress.add_task("importing", total=len(samples))
            async for answer in client.stream_traffic(batches()):
                written += answer.written_count
                progress.update(bar, completed=written)
    return written


def traffic_batch(samples: Sequence[TrafficSample]) -> telemetry_service_pb2.StreamTrafficRequest:
    """Return samples of one workload (by full name) and source, in ascending order, as a batch of a stream."""
    series = telemetry_service_pb2.TrafficSeries(
        workload=samples[0].workload,
        minutes=[int(sample.minute_at.timestamp()) // 60 for sample in samples],
        demand_counts=[sample.demand_count for sample in samples],
    )
    if any(sample.coverage < 1 for sample in samples):
        series.coverages.extend(sample.coverage for sample in samples)
    return telemetry_service_pb2.StreamTrafficRequest(source=samples[0].source, series=[series])


def _progress() -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=err(), transient=True)


@traffic.command()
def backfill(
    workload: Workload,
    from_prometheus: Annotated[
        str, typer.Option(envvar="FORECREST_PROMETHEUS_URL", help="Address, such as http://prometheus:9090.")
    ],
    query: Annotated[
        str, typer.Option(help="PromQL of one rate per second over a minute. Default: the workload's own.")
    ] = "",
    start: Annotated[str, typer.Option(help="First time: -30d or an instant.")] = "-30d",
    end: Annotated[str, typer.Option(help="End, excluded.")] = "now",
    token_file: Annotated[
        Path | None,
        typer.Option(envvar="FORECREST_PROMETHEUS_TOKEN_FILE", help="File with a bearer token."),
    ] = None,
    username: Annotated[
        str,
        typer.Option(
            envvar="FORECREST_PROMETHEUS_USERNAME",
            help="User; the password comes from FORECREST_PROMETHEUS_PASSWORD.",
        ),
    ] = "",
    ca_file: Annotated[
        Path | None,
        typer.Option(envvar="FORECREST_PROMETHEUS_CA_FILE", help="CA of the server's certificate."),
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE sent with every call; may be repeated.")
    ] = None,
    timeout_s: Annotated[float, typer.Option(min=0.1, max=600, help="Seconds one call may take.")] = 30.0,
    points: Annotated[int, typer.Option(min=1, max=11_000, help="Points asked for in one call.")] = 10_000,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Fill a workload's history from Prometheus, minute by minute; what it does not know stays unknown.

    Example: `forecrest traffic backfill -w recommender --from-prometheus http://prometheus:9090
    --query 'sum(rate(gateway_requests_total[1m]))'`
    """
    now = clock.now()
    start_at = parse_time(start, "--start", now).replace(second=0, microsecond=0)
    # The minute that is going on is not whole yet.
    end_at = min(parse_time(end, "--end", now), now).replace(second=0, microsecond=0)
    if start_at >= end_at:
        raise CliError("--start: must come at least a minute before --end.", EXIT_USAGE)
    try:
        access = PrometheusAccess(
            from_prometheus,
            token_file=token_file,
            username=username or None,
            password=os.environ.get("FORECREST_PROMETHEUS_PASSWORD"),
            ca_file=ca_file,
            headers=_headers(header or []),
            timeout_s=timeout_s,
            points_max=points,
        )
    except ValueError as error:
        raise CliError(f"--from-prometheus: {error}.", EXIT_USAGE) from None
    written = run(_backfill(access, resource("workloads", workload), query, (start_at, end_at), address))
    asked = (end_at - start_at) // MINUTE
    if as_json:
        print_json(
            {
                "minutes": written,
                "unknown": asked - written,
                "start": start_at.isoformat(),
                "end": end_at.isoformat(),
            }
        )
    else:
        out().print(
            f"Filled {written} of {asked} minutes of {workload}, {start_at:%Y-%m-%d %H:%M} to "
            f"{end_at:%Y-%m-%d %H:%M} UTC; Prometheus does not know the others."
        )


def _headers(given: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    if any(not name or not equals for name, equals, _ in pairs):
        raise CliError("--header: must look like X-Scope-OrgID=team.", EXIT_USAGE)
    return {name: value for name, _, value in pairs}


async def _backfill(
    access: PrometheusAccess,
    workload: str,
    query: str,
    window: tuple[datetime, datetime],
    address: str | None,
) -> int:
    start_at, end_at = window
    prometheus = Prometheus(access, clock)
    try:
        async with connected(address) as client:
            found = await client.workloads.GetWorkload(workload_service_pb2.GetWorkloadRequest(name=workload))
            promql = query or found.demand_query
            if not promql:
                raise CliError(f"--query: is needed; {workload} names no demand query.", EXIT_USAGE)
            with _progress() as progress:
                bar = progress.add_task("reading", total=(end_at - start_at) // MINUTE)

                async def batches() -> AsyncIterator[telemetry_service_pb2.StreamTrafficRequest]:
                    # A minute's rate is the query's value at its end.
                    async for chunk in prometheus.rates(promql, start_at + MINUTE, end_at, MINUTE):
                        progress.advance(bar, access.points_max)
                        if chunk:
                            yield traffic_batch(minutes_of(workload, chunk))

                return sum([answer.written_count async for answer in client.stream_traffic(batches())])
    except QueryError as error:
        raise CliError(f"{error}.") from None
    except PortError as error:
        raise CliError(f"{error}. What was read before is stored; run the command again.") from None
    finally:
        await prometheus.close()
