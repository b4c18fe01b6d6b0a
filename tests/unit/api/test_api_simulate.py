"""Simulate over a real channel, on the fakes: what is refused, one at a time, and the end of its process."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from math import isnan, pi, sin
from typing import Any

import grpc
import pytest
from forecrest.v1 import control_service_pb2, workload_pb2

from controller.adapters.fakes import FakeStore
from controller.api.server import RunningServer
from controller.client import ApiError, Client
from controller.core.resources import TrafficSample
from controller.simulation.registry import NAMES
from controller.study import Studies
from controller.usecases.simulate import PEERS
from controller.usecases.telemetry import COUNT_MAX
from tests.unit.api.conftest import NOW

Refused = Callable[[Awaitable[object]], Awaitable[ApiError]]
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
Change = control_service_pb2.SimulatedChange
# Protobuf takes datetimes and timedeltas where its stubs name messages.
Load: Any = control_service_pb2.SimulatedEvent


@pytest.fixture
def traffic(store: FakeStore) -> None:
    """Eight hours of a wave around 2000 QPS, of which a replica of `rec` carries 1000."""
    for minute in range(8 * 60):
        at = NOW - 8 * HOUR + MINUTE * minute
        qps = 2000.0 * (1.0 + 0.4 * sin(2 * pi * minute / 240))
        store.tables.samples["rec", at] = TrafficSample("rec", at, 60.0 * qps)


def ask(client: Client, timeout: float | None = 280.0, **fields: Any) -> Any:  # noqa: ANN401 - a call
    given: dict[str, Any] = {"workload": "workloads/rec", **fields}
    return client.control.Simulate(control_service_pb2.SimulateRequest(**given), timeout=timeout)


async def test_a_workload_is_replayed_as_it_is_and_with_changes(client: Client, traffic: None) -> None:
    cautious = Change(name="cheap", policy=workload_pb2.Policy(cost_under_per_hour=1.5))
    wide = Change(name="wide", min_replicas=20)
    surge = Load(start_time=NOW - HOUR, end_time=NOW - HOUR / 2, multiplier=3.0)

    found = await ask(
        client,
        window=2 * HOUR,
        learn=4 * HOUR,
        changes=[cautious, wide],
        peers=["hpa"],
        events=[surge],
        cold_start=timedelta(seconds=90),
        timeline_size=24,
    )

    by_name = {result.name: result for result in found.results}
    assert ["current", "cheap", "wide", "hpa"] == list(by_name)
    assert (NOW - 2 * HOUR, NOW) == (found.start_time.ToDatetime(UTC), found.end_time.ToDatetime(UTC))
    assert (90, 1000.0, 0.0) == (found.cold_start.seconds, found.capacity_qps, found.unknown_share)
    assert by_name["cheap"].replica_hours < by_name["current"].replica_hours < by_name["wide"].replica_hours
    assert by_name["wide"].replica_hours >= 40.0
    assert by_name["wide"].violation_share == 0.0
    assert by_name["current"].HasField("event_violation_share")
    line = by_name["current"].timeline
    assert 24 == len(line.demand_qps) == len(line.ready_replicas) == len(line.paid_replicas)
    assert line.step.ToTimedelta() == 5 * MINUTE
    assert max(line.demand_qps) > 4000.0
    assert not any(map(isnan, line.demand_qps))
    assert all(0.0 <= share <= 1.0 for share in line.violation_share)


async def test_hours_without_demand_are_unknown_and_not_free(
    client: Client, traffic: None, store: FakeStore
) -> None:
    for key in [key for key in store.tables.samples if NOW - HOUR <= key[1] < NOW - HOUR / 2]:
        del store.tables.samples[key]

    found = await ask(client, window=HOUR, learn=timedelta(0), timeline_size=4)

    (current,) = found.results
    assert 0.5 == found.unknown_share
    assert [True, True, False, False] == [isnan(value) for value in current.timeline.demand_qps]


async def test_demand_that_no_pool_could_carry_is_replayed_and_said_to_be_violated(
    client: Client, store: FakeStore
) -> None:
    for minute in range(60):
        at = NOW - HOUR + MINUTE * minute
        store.tables.samples["rec", at] = TrafficSample("rec", at, COUNT_MAX)

    found = await ask(client, window=HOUR, learn=timedelta(0), peers=["oracle", "static-peak"])

    assert ["current", "oracle", "static-peak"] == [result.name for result in found.results]
    assert all(result.violation_share == pytest.approx(1.0) for result in found.results)


@pytest.mark.parametrize(
    ("fields", "bad"),
    [
        ({"workload": "rec"}, ["workload"]),
        ({"end_time": NOW + MINUTE}, ["end_time"]),
        ({"window": 59 * MINUTE}, ["window"]),
        ({"window": timedelta(days=8)}, ["window"]),
        ({"learn": timedelta(days=15)}, ["learn"]),
        ({"learn": -MINUTE}, ["learn"]),
        ({"cold_start": timedelta(milliseconds=500)}, ["cold_start"]),
        ({"cold_start": timedelta(days=2)}, ["cold_start"]),
        ({"timeline_size": 2001}, ["timeline_size"]),
        ({"timeline_size": -1}, ["timeline_size"]),
        ({"peers": ["borg"]}, ["peers[0]"]),
        ({"peers": ["hpa", "hpa"]}, ["peers[1]"]),
        ({"peers": [*PEERS[:5]]}, ["peers"]),
        ({"changes": [Change(name=f"c{n}") for n in range(5)]}, ["changes"]),
        ({"changes": [Change(name="current")]}, ["changes[0].name"]),
        ({"changes": [Change(name="a"), Change(name="a")]}, ["changes[1].name"]),
        ({"changes": [Change(name="")]}, ["changes[0].name"]),
        ({"changes": [Change(name="a", min_replicas=31)]}, ["changes[0].max_replicas"]),
        (
            {"changes": [Change(name="a", policy=workload_pb2.Policy(quorum=2.0))]},
            ["changes[0].policy.quorum"],
        ),
        ({"events": [Load(start_time=NOW, multiplier=2.0)]}, ["events[0].end_time"]),
        ({"events": [Load(end_time=NOW, multiplier=2.0)]}, ["events[0].start_time"]),
        ({"events": [Load(start_time=NOW - HOUR, end_time=NOW)]}, ["events[0].multiplier"]),
        (
            {"events": [Load(start_time=NOW - HOUR, end_time=NOW, multiplier=2.0, peak_qps=9.0)]},
            ["events[0].multiplier"],
        ),
        (
            {"events": [Load(start_time=NOW - HOUR, end_time=NOW, multiplier=2000.0)]},
            ["events[0].multiplier"],
        ),
        (
            {"events": [Load(start_time=NOW - HOUR, end_time=NOW, peak_qps=float("nan"))]},
            ["events[0].peak_qps"],
        ),
        (
            {"events": [Load(start_time=NOW - HOUR, end_time=NOW - 2 * HOUR, multiplier=2.0)]},
            ["events[0].end_time"],
        ),
        (
            {"events": [Load(start_time=NOW - 99 * HOUR, end_time=NOW, multiplier=2.0)]},
            ["events[0].start_time"],
        ),
    ],
)
async def test_a_bad_question_is_refused_by_field(
    client: Client, traffic: None, refused: Refused, fields: dict[str, Any], bad: list[str]
) -> None:
    assert bad == [field for field, _ in (await refused(ask(client, **fields))).violations]


async def test_no_demand_in_the_window_is_no_simulation(
    client: Client, refused: Refused, traffic: None, store: FakeStore
) -> None:
    nobody = await refused(ask(client, workload="workloads/nobody"))
    other = await refused(ask(client, workload="workloads/search"))
    before = await refused(ask(client, end_time=NOW - timedelta(days=30)))
    ancient = await refused(ask(client, end_time=datetime(1, 1, 1, tzinfo=UTC)))

    assert "NOT_FOUND" == nobody.code
    assert {("FAILED_PRECONDITION", "HISTORY_TOO_SHORT")} == {
        (error.code, error.reason) for error in (other, before, ancient)
    }


async def begun(started: Callable[[], list[int]]) -> int:
    """Wait until the simulation's process is there."""
    while True:
        if pids := started():
            return pids[0]
        await asyncio.sleep(0.01)


async def ended(started: Callable[[], list[int]]) -> None:
    while started():  # noqa: ASYNC110 - no event tells of the end of somebody else's process
        await asyncio.sleep(0.01)


async def test_one_runs_at_a_time_and_cancelling_ends_its_process(
    client: Client, traffic: None, refused: Refused, started_processes: Callable[[], list[int]]
) -> None:
    first = ask(client)
    async with asyncio.timeout(60):
        await begun(started_processes)
    error = await refused(ask(client))

    first.cancel()

    assert ("RESOURCE_EXHAUSTED", "SIMULATION_RUNNING") == (error.code, error.reason)
    async with asyncio.timeout(60):
        await ended(started_processes)


async def test_a_deadline_ends_its_process(
    client: Client, traffic: None, started_processes: Callable[[], list[int]]
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(client, timeout=1.0)

    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    async with asyncio.timeout(60):
        await ended(started_processes)


async def test_a_process_that_dies_is_an_internal_failure_and_the_next_one_runs(
    client: Client, traffic: None, refused: Refused, monkeypatch: pytest.MonkeyPatch, server: RunningServer
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("controller.study.sys.executable", "/bin/false")
        error = await refused(ask(client))

    assert ("INTERNAL", "INTERNAL") == (error.code, error.reason)
    assert not Studies().running
    again = await ask(client, window=HOUR, learn=timedelta(0), timeline_size=1)
    assert ["current"] == [result.name for result in again.results]


def test_peers_are_those_of_the_simulator() -> None:
    assert set(NAMES) - {"forecrest"} == set(PEERS)
