"""What a traffic stream answered is there after PostgreSQL was killed under it, and the client sends the rest again."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
from forecrest.v1 import telemetry_service_pb2, workload_pb2, workload_service_pb2
from sqlalchemy.engine import make_url

from controller.adapters.clock import SystemClock
from controller.adapters.embedded.stack import EmbeddedStack
from controller.adapters.fakes import FakeSignalCache
from controller.adapters.postgres import PostgresStore, migrate
from controller.api.server import ApiDependencies, serve
from controller.client import Client

BATCHES = 40
MINUTES = 500
KILL_AFTER = 10


def batch(number: int, first_minute: int) -> telemetry_service_pb2.StreamTrafficRequest:
    start = first_minute + number * MINUTES
    series = telemetry_service_pb2.TrafficSeries(
        workload="workloads/rec",
        minutes=range(start, start + MINUTES),
        demand_counts=[float(number)] * MINUTES,
    )
    return telemetry_service_pb2.StreamTrafficRequest(batch=number, source="gateway", series=[series])


async def stored(database_url: str) -> dict[float, int]:
    """Rows per batch."""
    address = make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
    async with await psycopg.AsyncConnection.connect(address) as connection:
        rows = await connection.execute("SELECT demand_count, count(*) FROM traffic_samples GROUP BY 1")
        return dict(await rows.fetchall())


async def test_nothing_answered_is_lost_when_postgresql_is_killed_mid_stream(tmp_path: Path) -> None:
    clock = SystemClock()
    first_minute = int(clock.now().timestamp()) // 60 - BATCHES * MINUTES
    folder = tmp_path / "data"
    answered: list[int] = []
    async with EmbeddedStack(folder) as first:
        await asyncio.to_thread(migrate.upgrade, first.database_url)
        store = PostgresStore(first.database_url)
        api = await serve(ApiDependencies(store, FakeSignalCache(clock), clock), "127.0.0.1:0")
        client = Client(api.target)
        await client.workloads.CreateWorkload(
            workload_service_pb2.CreateWorkloadRequest(
                workload_id="rec",
                workload=workload_pb2.Workload(
                    model_name="m", profiles=[workload_pb2.CapacityProfile(engine="e", qps_max=1)]
                ),
            )
        )
        killed = asyncio.Event()

        async def batches() -> AsyncIterator[telemetry_service_pb2.StreamTrafficRequest]:
            for number in range(BATCHES):
                yield batch(number, first_minute)

        async def send() -> None:
            async for answer in client.stream_traffic(batches()):
                answered.append(answer.batch)
                assert answer.written_count == MINUTES
                if answer.batch == KILL_AFTER:
                    server = first.servers["postgres"]
                    assert server.pid is not None
                    os.kill(server.pid, signal.SIGKILL)
                    await server.wait()
                    killed.set()

        sending = asyncio.create_task(send())
        await killed.wait()
        answered_before = list(answered)

    # The same address and data, after recovery; the client has not given up meanwhile.
    async with EmbeddedStack(folder) as second:
        after_recovery = await stored(second.database_url)
        await sending
        finally_there = await stored(second.database_url)
        await client.close()
        await api.stop(grace_s=0)
        await store.close()

    assert dict.fromkeys(answered_before, MINUTES).items() <= after_recovery.items()
    assert answered == list(range(BATCHES))
    assert finally_there == {float(number): MINUTES for number in range(BATCHES)}
