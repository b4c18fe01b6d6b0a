"""kill -9 of the controller, with PostgreSQL, Valkey and Triton under it: nothing stays behind, nothing is lost."""

import asyncio
import json
import os
import select
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from forecrest.v1 import (
    control_service_pb2,
    event_pb2,
    event_service_pb2,
    forecast_service_pb2,
    telemetry_service_pb2,
    workload_pb2,
    workload_service_pb2,
)

from controller.cli.common import EXIT_TERMINATED
from controller.client import Client

ADDRESS_WAIT_S = 120
GONE_WAIT_S = 30
TICKS = {"FORECREST_TICK_PERIOD_S": "1", "FORECREST_SCRAPE_PERIOD_S": "1", "FORECREST_BIND": "127.0.0.1:0"}


def processes_of(folder: Path) -> list[int]:
    """Every process, whoever its parent, that names the data folder on its command line or runs in it."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
            where = str((entry / "cwd").readlink())
        except OSError:
            continue
        if str(folder) in command or where.startswith(str(folder)):
            found.append(int(entry.name))
    return found


@asynccontextmanager
async def controller(folder: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`forecrest up` on a data folder, and the address it serves on."""
    (folder / "runtime.json").unlink(missing_ok=True)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "controller", "up", "--data-dir", str(folder)),
        env={**os.environ, **TICKS},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(ADDRESS_WAIT_S):
            while line := await process.stdout.readline():
                if b"serves gRPC" in line:
                    break
        yield process, json.loads((folder / "runtime.json").read_text())["address"]
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


def wait_until_gone(folder: Path) -> None:
    """Return once no process of the folder is left; the kernel says when each ends."""
    while left := processes_of(folder):
        for pid in left:
            try:
                ending = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                ended, _, _ = select.select([ending], [], [], GONE_WAIT_S)
                assert ended, f"process {pid} is still there: {Path(f'/proc/{pid}/cmdline').read_bytes()!r}"
            finally:
                os.close(ending)


def sample(minute_at: datetime, count: float) -> telemetry_service_pb2.TrafficSample:
    stored = telemetry_service_pb2.TrafficSample(workload="workloads/recommender", demand_count=count)
    stored.minute_time.FromDatetime(minute_at)
    return stored


@pytest.mark.triton
async def test_an_event_registered_before_kill_9_is_warm_in_time_after_the_restart(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    minute_at = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=10)  # noqa: TID251 -- a real process keeps real time
    async with controller(folder) as (process, address), Client(address) as client:
        workload = workload_pb2.Workload(model_name="recommender", min_replicas=1, max_replicas=3)
        workload.profiles.add(engine="demo", gpu_type="cpu", qps_max=80.0, batch_size_max=8)
        await client.workloads.CreateWorkload(
            workload_service_pb2.CreateWorkloadRequest(workload=workload, workload_id="recommender")
        )
        await client.telemetry.RecordTraffic(
            telemetry_service_pb2.RecordTrafficRequest(samples=[sample(minute_at, 600.0)], source="test")
        )
        event = event_pb2.Event(workloads=["workloads/recommender"], time_zone="UTC", expected_peak_qps=200.0)
        start_at = datetime.now(UTC) + timedelta(seconds=100)  # noqa: TID251 -- as above
        event.start_time.FromDatetime(start_at)
        event.end_time.FromDatetime(start_at + timedelta(minutes=10))
        event.margin.FromSeconds(10)
        created = await client.events.CreateEvent(
            event_service_pb2.CreateEventRequest(event=event, event_id="midnight")
        )
        first = await anext(aiter(client.watch_decisions("workloads/recommender")))
        process.kill()
        await process.wait()
    await asyncio.to_thread(wait_until_gone, folder)

    async with controller(folder) as (process, address), Client(address) as client:
        again = await client.events.GetEvent(event_service_pb2.GetEventRequest(name="events/midnight"))
        decision = await client.control.GetDecision(
            control_service_pb2.GetDecisionRequest(name=first.decision.name)
        )
        wanted = forecast_service_pb2.GetHistoryRequest(workload="workloads/recommender")
        wanted.start_time.FromDatetime(minute_at)
        wanted.end_time.FromDatetime(minute_at + timedelta(minutes=1))
        history = await client.forecasts.GetHistory(wanted)
        met = None
        async for update in client.watch_event("events/midnight"):
            contracts = [p.contract for p in update.prewarms]
            if contracts and contracts[0].HasField("met_time"):
                met = contracts[0]
                break

        assert again.etag == created.etag
        assert decision.sentence == first.decision.sentence
        assert [p.demand_qps for p in history.points] == [10.0]
        assert met is not None
        assert met.replicas == 3
        assert met.verified_count == 3
        assert met.met_time.ToDatetime() <= met.deadline_time.ToDatetime()
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == EXIT_TERMINATED
    await asyncio.to_thread(wait_until_gone, folder)
