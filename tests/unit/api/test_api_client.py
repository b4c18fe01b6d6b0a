"""The client's promises: safe retries, deadlines, pages, streams that survive a server."""

import asyncio
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from forecrest.v1 import (
    control_service_pb2,
    event_pb2,
    event_service_pb2,
    telemetry_service_pb2,
    workload_pb2,
    workload_service_pb2,
)

from controller.adapters.clock import SystemClock
from controller.adapters.fakes import FakeSignalCache, FakeStore
from controller.client import (
    REOPEN_PAUSE_MAX_S,
    REOPEN_PAUSE_S,
    REOPENS_MAX,
    Client,
    explain,
    pages,
)

NOW = datetime(2026, 11, 10, 12, 0, tzinfo=UTC)


class ImpatientClock(SystemClock):
    """Counts the pauses instead of making them."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)


async def test_every_mutation_gets_a_request_id_of_its_own(client: Client, store: FakeStore) -> None:
    await client.control.Pause(control_service_pb2.PauseRequest(reason="a"))
    await client.control.Pause(control_service_pb2.PauseRequest(reason="b"))

    ids = [entry.request_id for entry in store.tables.audit.values()]
    assert len(set(ids)) == 2
    assert "" not in ids


async def test_a_given_request_id_is_kept(client: Client, store: FakeStore) -> None:
    await client.control.Pause(control_service_pb2.PauseRequest(reason="a", request_id="mine"))

    assert [entry.request_id for entry in store.tables.audit.values()] == ["mine"]


async def test_pages_stop_at_the_limit(client: Client) -> None:
    request = workload_service_pb2.ListWorkloadsRequest(page_size=1)

    names = [w.name async for w in pages(client.workloads.ListWorkloads, request, "workloads", limit=1)]

    assert names == ["workloads/rec"]
    assert request.page_token == ""


async def test_watching_an_event_ends_with_it(client: Client) -> None:
    event = event_pb2.Event(
        workloads=["workloads/rec"],
        start_time=NOW + timedelta(hours=1),
        end_time=NOW + timedelta(hours=2),
        time_zone="UTC",
        expected_multiplier=2,
    )
    created = await client.events.CreateEvent(event_service_pb2.CreateEventRequest(event=event))

    states = []
    async for response in client.watch_event(created.name):
        states.append(response.event.state)
        if response.snapshot:
            await client.events.CancelEvent(event_service_pb2.CancelEventRequest(name=created.name))

    assert states == [event_pb2.EVENT_STATE_SCHEDULED, event_pb2.EVENT_STATE_CANCELLED]


async def test_a_stream_that_cannot_be_opened_is_given_up_after_growing_pauses() -> None:
    clock = ImpatientClock()
    async with Client("127.0.0.1:1", clock=clock) as client:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(client.watch_decisions())

    assert explain(caught.value).code == "UNAVAILABLE"
    assert len(clock.pauses) == REOPENS_MAX
    # They vary by a fifth, so that clients of one server do not all come back at once.
    wanted = [min(REOPEN_PAUSE_MAX_S, REOPEN_PAUSE_S * 2**n) for n in range(REOPENS_MAX)]
    assert all(0.8 * s <= pause <= 1.2 * s for pause, s in zip(clock.pauses, wanted, strict=True))


async def test_a_refused_stream_is_not_tried_again() -> None:
    clock = ImpatientClock()
    server_clock = SystemClock()
    from controller.api.server import ApiDependencies, serve

    server = await serve(
        ApiDependencies(FakeStore(), FakeSignalCache(server_clock), server_clock), "127.0.0.1:0"
    )
    async with Client(server.target, clock=clock) as client:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(client.watch_decisions("rec"))
    await server.stop(grace_s=0)

    assert str(explain(caught.value)).startswith("workload: must look like")
    assert clock.pauses == []


@pytest.mark.parametrize("unknown", [False, True])
async def test_traffic_of_many_workloads_is_checked_in_one_listing(client: Client, *, unknown: bool) -> None:
    names = [f"w-{n}" for n in range(30)]
    for name in names:
        await client.workloads.CreateWorkload(
            workload_service_pb2.CreateWorkloadRequest(
                workload_id=name,
                workload=workload_pb2.Workload(
                    model_name="m", profiles=[workload_pb2.CapacityProfile(engine="e", qps_max=1)]
                ),
            )
        )
    samples = [
        telemetry_service_pb2.TrafficSample(workload=f"workloads/{n}", minute_time=NOW, demand_count=1)
        for n in [*names, *(["nobody"] if unknown else [])]
    ]
    call = client.telemetry.RecordTraffic(
        telemetry_service_pb2.RecordTrafficRequest(samples=samples, source="import")
    )

    if unknown:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert [f for f, _ in explain(caught.value).violations] == ["samples[30].workload"]
    else:
        assert (await call).written_count == 30
