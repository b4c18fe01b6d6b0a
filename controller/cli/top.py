"""``forecrest top``: the whole fleet, live, from the public API alone.

Promises: two calls a refresh for up to a thousand workloads, whatever their number (forecasts and the filter, which change
slowly, cost a few more every minute or five); keeps going while no controller answers, and says since when; ends cleanly
on Ctrl-C. Refuses to draw where there is no terminal.
"""

import asyncio
from datetime import datetime, timedelta
from typing import Annotated, Any

import grpc
import typer
from forecrest.v1 import control_service_pb2, forecast_service_pb2, workload_service_pb2
from google.protobuf.message import Message
from rich.console import Console
from rich.live import Live

from controller.cli.common import (
    EXIT_USAGE,
    Address,
    AsJson,
    CliError,
    clock,
    connected,
    out,
    print_json,
    print_json_line,
    run,
    stamp,
)
from controller.cli.top_view import Fleet, Sort, course_of, picture
from controller.client import Client, explain

PAGE_SIZE = 1000
WORKLOADS_MAX = 5000
CALL_S = 10.0
FILTER_PERIOD = timedelta(minutes=1)
FORECAST_PERIOD = timedelta(minutes=5)
FORECASTS_PER_CALL = 100
DRAW_PERIOD_S = 1.0
# Asking again will not help.
FINAL = frozenset(
    {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


class Reader:
    """Asks the API for what is due, and keeps what it said."""

    def __init__(self, client: Client, where: str) -> None:
        self._client, self._where = client, where
        self.fleet = Fleet()
        self.call_count = 0
        self._filtered_at: datetime | None = None
        self._forecast_at: datetime | None = None
        self._decided_at: datetime | None = None

    async def read(self) -> None:
        """Read what is due; raise AioRpcError, with everything that was read before kept."""
        now = clock.now()
        await self._read_filter(now)
        found: dict[str, control_service_pb2.ObservedStatus] = {}
        told = await self._pages(
            self._client.control.ListStatuses, control_service_pb2.ListStatusesRequest(page_size=PAGE_SIZE)
        )
        for response in told:
            found |= {one.status.name.removesuffix("/status"): one for one in response.statuses}
        await self._read_decisions(now)
        fleet = self.fleet
        fleet.statuses, fleet.more = found, bool(told[-1].next_page_token)
        fleet.answered_at, fleet.lost_since_at, fleet.problem = clock.now(), None, ""

    async def read_forecasts(self) -> None:
        """Read forecasts if they are due, of the workloads known by now."""
        now = clock.now()
        if self._forecast_at is not None and now - self._forecast_at < FORECAST_PERIOD:
            return
        names = sorted(
            name for name in self.fleet.statuses if self.fleet.only is None or name in self.fleet.only
        )
        for first in range(0, len(names), FORECASTS_PER_CALL):
            asked = forecast_service_pb2.BatchGetForecastsRequest(
                names=[f"{name}/forecast" for name in names[first : first + FORECASTS_PER_CALL]]
            )
            for one in (await self._call(self._client.forecasts.BatchGetForecasts, asked)).forecasts:
                course = course_of(one)
                name = one.name.removesuffix("/forecast")
                if course is None:
                    self.fleet.courses.pop(name, None)
                else:
                    self.fleet.courses[name] = course
        self._forecast_at = now

    def lost(self, error: grpc.aio.AioRpcError) -> None:
        """Take down that nobody answered; raise what will not pass."""
        if error.code() in FINAL:
            raise error
        fleet = self.fleet
        fleet.lost_since_at = fleet.lost_since_at or clock.now()
        fleet.problem = f"{error.code().name}: {explain(error).message}"[:200]

    async def _read_filter(self, now: datetime) -> None:
        due = self._filtered_at is None or now - self._filtered_at >= FILTER_PERIOD
        if not self._where or not due:
            return
        asked = workload_service_pb2.ListWorkloadsRequest(page_size=PAGE_SIZE, filter=self._where)
        pages = await self._pages(self._client.workloads.ListWorkloads, asked)
        self.fleet.only = frozenset(w.name for page in pages for w in page.workloads)
        self._filtered_at = now

    async def _read_decisions(self, now: datetime) -> None:
        """First those in force, then only what was decided since."""
        asked = control_service_pb2.ListDecisionsRequest(page_size=PAGE_SIZE)
        if self._decided_at is None:
            asked.as_of_time.CopyFrom(stamp(now))
        else:
            asked.start_time.CopyFrom(stamp(self._decided_at))
        for response in await self._pages(self._client.control.ListDecisions, asked):
            for one in response.decisions:
                kept = self.fleet.decisions.get(one.workload)
                if kept is None or kept.decide_time.ToNanoseconds() <= one.decide_time.ToNanoseconds():
                    self.fleet.decisions[one.workload] = one
        newest = [d.decide_time.ToDatetime(now.tzinfo) for d in self.fleet.decisions.values()]
        self._decided_at = max(newest, default=None)

    async def _pages(self, method: Any, request: Any) -> list[Any]:  # noqa: ANN401 - two methods with pages
        found: list[Any] = []
        for _ in range(WORKLOADS_MAX // PAGE_SIZE):
            found.append(await self._call(method, request))
            if not found[-1].next_page_token:
                break
            request.page_token = found[-1].next_page_token
        return found

    async def _call(self, method: Any, request: Message) -> Any:  # noqa: ANN401 - as above
        self.call_count += 1
        return await method(request, timeout=CALL_S)


def top(
    where: Annotated[
        str,
        typer.Option(
            "--filter", help="Which workloads, such as 'namespace = shop AND labels.team = search'."
        ),
    ] = "",
    sort: Annotated[Sort, typer.Option(help="What comes first.")] = Sort.ATTENTION,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=1, max=3600)] = 2.0,
    hours: Annotated[
        float, typer.Option(help="How far ahead to look for the peak.", min=0.1, max=336)
    ] = 24.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, print, end.")] = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Show every workload, live: demand now, forecast peak ahead, replicas, what binds them, alarms, next event.

    now and peak are requests per second, the peak by the P90; in is how far off it is; warm is verified warm, +N
    on their way; age is when the loop last looked. What is unknown or too old is ?. With --json and without --once
    each look is one line.

    Example: `forecrest top --filter "namespace = shop" --sort peak`
    """
    ahead = timedelta(hours=hours)
    if not once and not as_json and not out().is_terminal:
        raise CliError("There is no terminal to draw on; add --once or --json.", EXIT_USAGE)

    async def call() -> None:
        async with connected(address) as client:
            reader = Reader(client, where)
            if once:
                await reader.read()
                await reader.read_forecasts()
                _print_once(reader.fleet, ahead, sort, as_json=as_json)
            elif as_json:
                await _stream(reader, interval, ahead, sort)
            else:
                await _draw(reader, interval, ahead, sort)

    run(call(), {"filter": "--filter"})


def _snapshot(fleet: Fleet, ahead: timedelta, sort: Sort) -> dict[str, Any]:
    now = clock.now()
    return {
        "time": now.isoformat(),
        "answered_at": fleet.answered_at.isoformat() if fleet.answered_at else None,
        "lost_since_at": fleet.lost_since_at.isoformat() if fleet.lost_since_at else None,
        "problem": fleet.problem,
        "more": fleet.more,
        "workloads": [row.to_json() for row in fleet.rows(now, ahead, sort)],
    }


def _print_once(fleet: Fleet, ahead: timedelta, sort: Sort, *, as_json: bool) -> None:
    if as_json:
        print_json(_snapshot(fleet, ahead, sort))
        return
    now = clock.now()
    rows = fleet.rows(now, ahead, sort)
    console = out()
    console.print(picture(fleet, rows, now, height=len(rows) + 20, width=console.width, sort=sort))


async def look(reader: Reader) -> None:
    """Read what is due, or take down that nobody answered; raise AioRpcError for what will not pass."""
    try:
        await reader.read()
        await reader.read_forecasts()
    except grpc.aio.AioRpcError as error:
        reader.lost(error)


async def _stream(reader: Reader, interval: float, ahead: timedelta, sort: Sort) -> None:
    while True:
        await look(reader)
        print_json_line(_snapshot(reader.fleet, ahead, sort))
        await clock.sleep(interval)


async def _draw(reader: Reader, interval: float, ahead: timedelta, sort: Sort) -> None:
    async def keep_looking() -> None:
        while True:
            await look(reader)
            await clock.sleep(interval)

    console = Console(highlight=False, emoji=False)  # as wide as the terminal, unlike what is printed
    looking = asyncio.create_task(keep_looking())
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            # Drawn on its own: ages go on while a call waits for an answer.
            while not looking.done():
                now = clock.now()
                rows = reader.fleet.rows(now, ahead, sort)
                live.update(
                    picture(reader.fleet, rows, now, height=console.height, width=console.width, sort=sort),
                    refresh=True,
                )
                await asyncio.wait([looking], timeout=DRAW_PERIOD_S)
        await looking
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
