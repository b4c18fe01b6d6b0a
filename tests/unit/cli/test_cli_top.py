"""``forecrest top``: the fleet in 80 columns, in few calls, and never stale as fresh."""

import asyncio
import io
import json
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
import yaml
from rich.console import Console

from controller.adapters.clock import SystemClock
from controller.adapters.fakes import FakeSignalCache, FakeStore
from controller.api.server import ApiDependencies, RunningServer, serve
from controller.cli import top
from controller.cli.common import EXIT_INTERRUPTED
from controller.cli.top import Reader, look
from controller.cli.top_view import DEMAND_AGE_MAX, STATUS_AGE_MAX, Fleet, Sort, countdown, picture, short
from controller.client import Client
from controller.core.resources import ForecastRun
from controller.core.types import (
    Alarm,
    AlarmKind,
    CapacityProfile,
    Condition,
    ConditionType,
    Contract,
    ContractState,
    Decision,
    DemandObservation,
    ForecastBand,
    ForecastState,
    Mode,
    Reason,
    Source,
    Workload,
    WorkloadState,
)
from controller.ports import ReplicaCounts

MINUTE, HOUR, STEP = timedelta(minutes=1), timedelta(hours=1), timedelta(minutes=5)
NOW = SystemClock().now()
DAY = timedelta(days=1)


@dataclass
class World:
    """A server on the fakes that can go away and come back at the same address."""

    store: FakeStore
    cache: FakeSignalCache
    server: RunningServer

    async def stop(self) -> None:
        await self.server.stop(grace_s=0)

    async def start(self) -> None:
        deps = ApiDependencies(self.store, self.cache, SystemClock())
        self.server = await serve(deps, self.server.target)


def fill(store: FakeStore, name: str, *, alarmed: bool = False) -> None:
    tables = store.tables
    tables.workloads[name] = Workload(name, "m", (CapacityProfile("int8", "L4", 1000.0),), max_replicas=30)
    contract = Contract(
        event_id="singles-day",
        revision=1,
        state=ContractState.PREWARMING,
        replicas=14,
        order_at=NOW,
        deadline_at=NOW + HOUR,
        start_at=NOW + HOUR,
        end_at=NOW + 2 * HOUR,
        ordered_count=14,
        verified_count=9,
    )
    alarm = Alarm(
        AlarmKind.PREWARM_LATE, name, "singles-day", f"Event singles-day on {name}: 9 of 14 replicas warm."
    )
    tables.states[name] = WorkloadState(
        desired_replicas=14,
        contracts=(contract,) if alarmed else (),
        alarms=(alarm,) if alarmed else (),
        last_at=NOW,
    )
    limited = Condition(ConditionType.SCALING_LIMITED, True, "QUOTA", "no room")
    blind = Condition(ConditionType.SCALING_ACTIVE, not alarmed, "NO_DEMAND", "nobody answers")
    tables.decisions[f"{name}-1"] = Decision(
        id=f"{name}-1",
        workload=name,
        at=NOW - MINUTE,
        mode=Mode.SCALE,
        current_replicas=4,
        desired_replicas=14,
        warm_replicas=4,
        in_flight_replicas=0,
        reason=Reason.EVENT_FLOOR,
        binding=Source.EVENT,
        sentence="Scale 4 to 14.",
        recommendations=(),
        conditions=(limited, blind),
        inputs=(),
        demand_qps=900.0,
        need_replicas=1,
        plan_revision=None,
        forecast_id=None,
        event_ids=(),
    )
    rows = tuple((100.0, 150.0 if step != 30 else 35_000.0) for step in range(72))
    band = ForecastBand(f"f-{name}", NOW, NOW, STEP, (0.5, 0.9), rows, ForecastState.READY)
    tables.forecasts[band.id] = (ForecastRun(band.id, name, NOW, NOW, 72, ()), band)


@pytest.fixture(autouse=True)
def present(monkeypatch: pytest.MonkeyPatch) -> None:
    """Now is when a test begins: the file may be read long before, and what is old is shown as unknown."""
    monkeypatch.setattr(sys.modules[__name__], "NOW", SystemClock().now())


@pytest.fixture
async def world() -> AsyncIterator[World]:
    store, cache = FakeStore(), FakeSignalCache(SystemClock())
    fill(store, "recommender", alarmed=True)
    fill(store, "search")
    seen = DemandObservation(NOW, 8000.0, 8000.0, 0.0, 1, 1, MINUTE)
    await cache.put_demand("recommender", seen, HOUR)
    server = await serve(ApiDependencies(store, cache, SystemClock()), "127.0.0.1:0")
    made = World(store, cache, server)
    yield made
    await made.stop()


def drawn(fleet: Fleet, *, at: timedelta = timedelta(0), height: int = 40, width: int = 80) -> str:
    now = NOW + at
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(
        picture(fleet, fleet.rows(now, DAY, Sort.ATTENTION), now, height=height, width=width, sort=Sort.NAME)
    )
    text = console.file.getvalue()  # type: ignore[attr-defined]  # the StringIO above
    assert [] == [line for line in text.splitlines() if len(line) > width]
    return str(text)


async def read(world: World) -> Reader:
    async with Client(world.server.target) as client:
        reader = Reader(client, "")
        await reader.read()
        await reader.read_forecasts()
    return reader


async def test_a_row_says_what_is_what_comes_and_why(world: World) -> None:
    fleet = (await read(world)).fleet
    first, second = fleet.rows(NOW + MINUTE, DAY, Sort.ATTENTION)

    assert ("recommender", 8000.0, 35_000.0, NOW + 30 * STEP) == (
        first.workload,
        first.demand_qps,
        first.peak_qps,
        first.peak_at,
    )
    assert (14, 9, 5, "EVENT") == (
        first.desired_replicas,
        first.warm_replicas,
        first.starting_replicas,
        first.binding,
    )
    assert ("singles-day", "PREWARMING", 1) == (first.event, first.event_state, len(first.alarms))
    assert ("SCALING_LIMITED: QUOTA", "SCALING_ACTIVE: NO_DEMAND") == first.conditions
    # Of a workload that nobody measures nothing is known, which is not 0.
    assert ("search", None, None) == (second.workload, second.demand_qps, second.demand_age_s)
    assert ("SCALING_LIMITED: QUOTA",) == second.conditions


async def test_warm_replicas_are_those_the_loop_counted_with_their_age(world: World) -> None:
    await world.cache.put_replicas({"search": ReplicaCounts(NOW, 12, 1, 3)}, HOUR)
    fleet = (await read(world)).fleet
    fresh, aged = (
        next(row for row in fleet.rows(NOW + age, DAY, Sort.NAME) if row.workload == "search")
        for age in (timedelta(seconds=5), timedelta(seconds=31))
    )

    assert (12, 1, 3, 5.0, False) == (
        fresh.warm_replicas,
        fresh.starting_replicas,
        fresh.draining_replicas,
        fresh.warm_age_s,
        fresh.warm_old,
    )
    assert (12, True) == (aged.warm_replicas, aged.warm_old)
    assert " 12+1 " in drawn(fleet, at=timedelta(seconds=5))
    assert " ~12+1 " in drawn(fleet, at=timedelta(seconds=31))


async def test_the_picture_fits_eighty_columns_and_says_all_of_it(world: World) -> None:
    text = drawn((await read(world)).fleet)

    (row,) = [line.split() for line in text.splitlines() if line.startswith("recommender")]
    assert ["recommender", "8k", "35k", "2h30m", "14", "9+5", "EVENT", "·SL!", "1h00m"] == row[:9]
    assert "! Event singles-day on recommender: 9 of 14 replicas warm." in text
    assert "2 workloads, 8k QPS, 1 alarm" in text


async def test_what_is_past_its_age_is_unknown_and_said_to_be_old(world: World) -> None:
    fleet = (await read(world)).fleet
    aged = drawn(fleet, at=max(DEMAND_AGE_MAX, STATUS_AGE_MAX) + timedelta(seconds=1))
    (row,) = [line.split() for line in aged.splitlines() if line.startswith("recommender")]

    assert ["recommender", "?"] == row[:2]
    assert "2 not looked at lately" in aged
    assert "? QPS" in aged
    (later,) = [r for r in fleet.rows(NOW + 4 * HOUR, DAY, Sort.NAME) if r.workload == "search"]
    assert (None, None) == (later.peak_qps, later.peak_at)  # of a forecast from four hours ago


async def test_a_lost_api_is_said_since_when_and_gone_when_it_is_back(world: World) -> None:
    async with Client(world.server.target) as client:
        reader = Reader(client, "")
        await look(reader)
        before = drawn(reader.fleet)
        await world.stop()
        await look(reader)
        lost = reader.fleet.lost_since_at
        during = drawn(reader.fleet)
        await look(reader)
        assert lost is not None
        assert lost == reader.fleet.lost_since_at
        await world.start()
        while reader.fleet.lost_since_at is not None:
            await look(reader)
        after = drawn(reader.fleet)

    assert "NO ANSWER" not in before + after
    assert f"NO ANSWER since {lost:%H:%M:%S}" in during
    assert "recommender" in during


async def test_without_any_answer_nothing_is_claimed() -> None:
    async with Client("127.0.0.1:1") as client:
        reader = Reader(client, "")
        await look(reader)

    text = drawn(reader.fleet)
    assert "Nothing is known yet" in text
    assert "NO ANSWER since" in text


async def test_three_hundred_workloads_take_two_calls_a_look(world: World) -> None:
    for number in range(300):
        fill(world.store, f"w{number:03}")
    async with Client(world.server.target) as client:
        reader = Reader(client, "")
        await look(reader)
        first = reader.call_count
        for _ in range(5):
            await look(reader)

    assert 302 == len(reader.fleet.rows(NOW, DAY, Sort.NAME))
    # Statuses, decisions, and four calls for the forecasts of 302; then the first two alone.
    assert (6, 6 + 5 * 2) == (first, reader.call_count)


async def test_a_new_decision_is_seen_without_asking_for_the_old_ones(world: World) -> None:
    async with Client(world.server.target) as client:
        reader = Reader(client, "")
        await look(reader)
        old = world.store.tables.decisions["search-1"]
        changed = replace(old, id="search-2", at=NOW, binding=Source.PANIC)
        world.store.tables.decisions["search-2"] = changed
        await look(reader)

    (row,) = [r for r in reader.fleet.rows(NOW, DAY, Sort.NAME) if r.workload == "search"]
    assert "PANIC" == row.binding


async def test_workloads_beyond_those_that_are_read_are_said_to_be_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top, "PAGE_SIZE", 1)
    monkeypatch.setattr(top, "WORKLOADS_MAX", 1)

    fleet = (await read(world)).fleet
    text = drawn(fleet)

    assert 1 == len(fleet.statuses)
    assert "the first 1 workloads" in text
    assert "and more than are read here; narrow with --filter" in text
    world.store.tables.workloads.pop("search")
    assert "more than are read" not in drawn((await read(world)).fleet)


async def test_many_rows_leave_room_for_what_must_be_said(world: World) -> None:
    for number in range(40):
        fill(world.store, f"w{number:03}")
    text = drawn((await read(world)).fleet, height=24)

    assert len(text.splitlines()) <= 24
    assert "more, by name; narrow with --filter" in text
    assert "recommender" in text


@pytest.mark.parametrize("name", ["a-very-long-name-of-a-workload-that-fits-nowhere", "w"])
async def test_names_of_any_length_leave_the_figures_whole(world: World, name: str) -> None:
    fill(world.store, name, alarmed=True)

    lines = drawn((await read(world)).fleet).splitlines()
    assert ["now", "peak", "in", "want", "warm", "by", "cond", "event", "age"] == lines[2].split()[1:]
    assert 1 == sum("8k" in line.split() and "9+5" in line.split() for line in lines)


async def outcome(*arguments: str, server: RunningServer) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "controller", "top", "--address", server.target, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, problem = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode(), problem.decode()


async def test_one_look_is_a_table_json_or_yaml(world: World) -> None:
    asked = ("--once", "--filter", "name = recommender", "--sort", "peak")
    table, as_json, as_yaml = [
        await outcome(*asked, *how, server=world.server) for how in ((), ("--json",), ("--output", "yaml"))
    ]

    assert [0, 0, 0] == [table[0], as_json[0], as_yaml[0]]
    found = json.loads(as_json[1])
    assert ["recommender"] == [row["workload"] for row in found["workloads"]]
    assert (8000.0, None) == (found["workloads"][0]["demand_qps"], found["lost_since_at"])
    assert ["recommender"] == [row["workload"] for row in yaml.safe_load(as_yaml[1])["workloads"]]
    assert "search" not in table[1]
    assert [] == [line for line in table[1].splitlines() if len(line) > 80]


async def test_without_a_terminal_it_does_not_draw(world: World) -> None:
    code, _, said = await outcome(server=world.server)

    assert (2, True) == (code, "--once or --json" in said)


async def test_a_bad_filter_ends_it_by_the_name_of_the_option(world: World) -> None:
    code, _, said = await outcome("--filter", "colour = red", "--json", server=world.server)

    assert (1, True) == (code, "--filter" in said)


async def test_ctrl_c_ends_it_with_the_screen_as_it_was(world: World) -> None:
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "controller", "top", "--address", world.server.target),
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    seen = b""

    def more() -> bytes:
        try:
            return os.read(ours, 65_536)
        except OSError:  # the other side is closed
            return b""

    while b"recommender" not in seen:
        read_now = await asyncio.to_thread(more)
        assert read_now, seen
        seen += read_now
    process.send_signal(signal.SIGINT)
    while read_now := await asyncio.to_thread(more):
        seen += read_now
    os.close(ours)

    assert EXIT_INTERRUPTED == await process.wait()
    assert b"Traceback" not in seen
    assert seen.count(b"\x1b[?1049h") == seen.count(b"\x1b[?1049l") == 1  # the other screen, and back
    assert seen.rfind(b"\x1b[?25h") > seen.rfind(b"\x1b[?25l") > 0  # the cursor is there again


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, "0"),
        (0.4, "0.4"),
        (99.6, "100"),
        (999.4, "999"),
        (8000.0, "8k"),
        (35_000.0, "35k"),
        (1.25e6, "1.25M"),
    ],
)
def test_rates_are_short(value: float, expected: str) -> None:
    assert expected == short(value)


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0, "0s"), (59, "59s"), (725, "12m05s"), (12_000, "3h20m"), (190_000, "2d04h")]
)
def test_lengths_of_time_are_short(seconds: int, expected: str) -> None:
    assert expected == countdown(timedelta(seconds=seconds))
