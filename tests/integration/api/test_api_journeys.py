"""The main journeys over a real channel, PostgreSQL and Valkey."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import grpc
import psycopg
import pytest
from forecrest.v1 import (
    control_pb2,
    control_service_pb2,
    event_pb2,
    event_service_pb2,
    forecast_pb2,
    forecast_service_pb2,
    telemetry_service_pb2,
    workload_pb2,
    workload_service_pb2,
)
from grpc_health.v1 import health_pb2, health_pb2_grpc
from sqlalchemy.engine import make_url

from controller.adapters.clock import SystemClock
from controller.adapters.forecaster import FitForecaster
from controller.adapters.postgres import PostgresStore
from controller.adapters.redis import RedisSignalCache
from controller.api.limits import ApiLimits
from controller.api.server import ApiDependencies, RunningServer, serve
from controller.client import Client, explain, pages
from controller.core.types import Contract, ContractState, Decision, Mode, Reason, WorkloadState
from controller.usecases.topics import CHANGES

T = TypeVar("T")


@pytest.fixture
async def signals(redis_url: str) -> AsyncIterator[RedisSignalCache]:
    cache = RedisSignalCache(redis_url, clock=SystemClock(), prefix=f"test-{uuid.uuid4().hex}:")
    yield cache
    await cache.close()


@pytest.fixture
async def server(postgres_store: PostgresStore, signals: RedisSignalCache) -> AsyncIterator[RunningServer]:
    # The poll period is longer than any test: what arrives came through the change signal.
    limits = ApiLimits(poll_period_s=600.0)
    deps = ApiDependencies(postgres_store, signals, SystemClock(), forecaster=FitForecaster(), limits=limits)
    running = await serve(deps, "127.0.0.1:0")
    yield running
    await running.stop(grace_s=0)


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[Client]:
    async with Client(server.target) as connected:
        await connected.workloads.CreateWorkload(creation_of_workload())
        yield connected


def creation_of_workload() -> workload_service_pb2.CreateWorkloadRequest:
    return workload_service_pb2.CreateWorkloadRequest(
        workload=workload_pb2.Workload(
            model_name="recommender",
            profiles=[workload_pb2.CapacityProfile(engine="int8", gpu_type="L4", qps_max=1000.0)],
            max_replicas=60,
        ),
        workload_id="rec",
    )


def tomorrow(hours: float = 24.0) -> datetime:
    return (datetime.now(UTC) + timedelta(hours=hours)).replace(minute=0, second=0, microsecond=0)  # noqa: TID251 -- the real server's own now


def creation(event_id: str = "double-eleven", **changes: object) -> event_service_pb2.CreateEventRequest:
    fields: dict[str, object] = {
        "workloads": ["workloads/rec"],
        "start_time": tomorrow(),
        "end_time": tomorrow(26),
        "time_zone": "Asia/Shanghai",
        "expected_peak_qps": 35_000.0,
    }
    fields.update(changes)
    return event_service_pb2.CreateEventRequest(event=event_pb2.Event(**fields), event_id=event_id)  # type: ignore[arg-type]


async def take(stream: AsyncIterator[T], count: int) -> list[T]:
    async with asyncio.timeout(60):
        return [await anext(stream) for _ in range(count)]


async def test_a_planner_previews_registers_changes_and_cancels(client: Client) -> None:
    request = creation(rrule="FREQ=WEEKLY", labels={"campaign": "11.11"}, ramp=timedelta(minutes=10))
    preview = await client.events.PreviewEvent(event_service_pb2.PreviewEventRequest(event=request.event))
    created = await client.events.CreateEvent(request)
    moved = await client.events.UpdateEvent(
        event_service_pb2.UpdateEventRequest(
            event=event_pb2.Event(name=created.name, etag=created.etag, expected_multiplier=4.4)
        )
    )
    cancelled = await client.events.CancelEvent(
        event_service_pb2.CancelEventRequest(name=created.name, etag=moved.etag, reason="postponed")
    )
    read = await client.events.GetEvent(event_service_pb2.GetEventRequest(name=created.name))

    assert preview.workloads[0].replicas >= 35
    assert (created.rrule, dict(created.labels), created.revision) == (
        "FREQ=WEEKLY",
        {"campaign": "11.11"},
        1,
    )
    assert (moved.expected_multiplier, moved.revision) == (4.4, 2)
    assert (cancelled.state, cancelled.revision) == (event_pb2.EVENT_STATE_CANCELLED, 3)
    assert read == cancelled


async def test_concurrent_copies_of_one_request_store_one_event(client: Client) -> None:
    request = creation(event_id="")
    request.request_id = "campaign-1"

    responses = await asyncio.gather(*(client.events.CreateEvent(request) for _ in range(4)))
    listed = pages(client.events.ListEvents, event_service_pb2.ListEventsRequest(), "events")

    # Each copy made up an id of its own; the one that was stored answers for all.
    assert {response.name for response in responses} == {event.name async for event in listed}
    assert len({response.name for response in responses}) == 1


async def test_concurrent_copies_of_one_deletion_all_succeed(client: Client) -> None:
    for number in range(5):
        request = workload_service_pb2.DeleteWorkloadRequest(name="workloads/rec", request_id=f"end-{number}")

        await asyncio.gather(*(client.workloads.DeleteWorkload(request) for _ in range(4)))

        await client.workloads.CreateWorkload(creation_of_workload())


async def test_of_concurrent_changes_one_wins_and_the_others_are_told(client: Client) -> None:
    created = await client.events.CreateEvent(creation())
    changes = [
        client.events.UpdateEvent(
            event_service_pb2.UpdateEventRequest(
                event=event_pb2.Event(name=created.name, etag=created.etag, priority=priority)
            )
        )
        for priority in range(1, 5)
    ]

    results = await asyncio.gather(*changes, return_exceptions=True)

    failed = [explain(r).reason for r in results if isinstance(r, grpc.aio.AioRpcError)]
    assert failed == ["ETAG_MISMATCH"] * 3
    read = await client.events.GetEvent(event_service_pb2.GetEventRequest(name=created.name))
    assert read.revision == 2


async def test_a_refused_event_leaves_no_trace(client: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await client.events.CreateEvent(creation(workloads=["workloads/rec", "workloads/nobody"]))

    listed = await client.events.ListEvents(event_service_pb2.ListEventsRequest())
    assert list(listed.events) == []


async def test_events_come_in_pages_in_order(client: Client) -> None:
    for number in range(5):
        await client.events.CreateEvent(
            creation(f"e-{number}", start_time=tomorrow(24 + number), end_time=tomorrow(25 + number))
        )

    found = pages(client.events.ListEvents, event_service_pb2.ListEventsRequest(page_size=2), "events")

    assert [f"events/e-{n}" for n in range(5)] == [event.name async for event in found]


async def test_recorded_traffic_becomes_history_and_sharpens_a_preview(
    client: Client, postgres_store: PostgresStore
) -> None:
    now = datetime.now(UTC).replace(second=0, microsecond=0)  # noqa: TID251 -- the real server's own now
    samples = [
        telemetry_service_pb2.TrafficSample(
            workload="workloads/rec", minute_time=now - timedelta(minutes=m), demand_count=60 * 8000.0
        )
        for m in range(1, 3 * 1440)
    ]
    written = await client.telemetry.RecordTraffic(
        telemetry_service_pb2.RecordTrafficRequest(samples=samples, source="import")
    )
    history = await client.forecasts.GetHistory(
        forecast_service_pb2.GetHistoryRequest(
            workload="workloads/rec",
            start_time=now - timedelta(minutes=60),
            end_time=now,
            step=timedelta(minutes=5),
        )
    )
    async with postgres_store.unit_of_work() as uow:
        points = await uow.traffic.read("rec", now - timedelta(days=3), now, step=timedelta(minutes=15))
        run, band = await FitForecaster().forecast(
            "rec", points, step=timedelta(minutes=15), horizon_steps=192, events=(), now=now
        )
        await uow.forecasts.save(run, band)
        await uow.commit()
    forecast = await client.forecasts.GetForecast(
        forecast_service_pb2.GetForecastRequest(name="workloads/rec/forecast")
    )
    request = creation()
    preview = await client.events.PreviewEvent(event_service_pb2.PreviewEventRequest(event=request.event))

    assert written.written_count == len(samples)
    assert {round(p.demand_qps) for p in history.points if p.HasField("demand_qps")} == {8000}
    assert forecast.state in {forecast_pb2.FORECAST_STATE_READY, forecast_pb2.FORECAST_STATE_DEGRADED}
    (found,) = preview.workloads
    assert 8 <= found.baseline_replicas < 20 <= found.replicas
    assert found.extra_replica_hours > 0
    assert len(found.curve[0].qps) == 8  # two hours of quarters
    assert "prewarm begins at" in found.sentence


def a_decision(number: int) -> Decision:
    at = datetime.now(UTC) + timedelta(milliseconds=number)  # noqa: TID251 -- the real server's own now
    return Decision(
        id=f"rec-{number}",
        workload="rec",
        at=at,
        mode=Mode.SCALE,
        current_replicas=number,
        desired_replicas=number + 1,
        warm_replicas=None,
        in_flight_replicas=None,
        reason=Reason.REACTIVE_UP,
        binding=None,
        sentence="more demand",
        recommendations=(),
        conditions=(),
        inputs=(),
        demand_qps=1.0,
        need_replicas=None,
        plan_revision=None,
        forecast_id=None,
        event_ids=(),
    )


async def decide(store: PostgresStore, signals: RedisSignalCache, number: int) -> None:
    async with store.unit_of_work() as uow:
        await uow.decisions.append([a_decision(number)])
        await uow.commit()
    await signals.publish(CHANGES, b"workloads/rec")


async def signalled(stream: AsyncIterator[T], signals: RedisSignalCache) -> T:
    """Await the next message; repeat the signal meanwhile, as the loop does every tick: it is lossy by design."""
    waiting = asyncio.ensure_future(anext(stream))
    async with asyncio.timeout(60):
        while not waiting.done():
            await signals.publish(CHANGES, b"workloads/rec")
            await asyncio.wait({waiting}, timeout=0.2)
    return await waiting


async def test_an_operator_follows_decisions_through_the_cache(
    client: Client, postgres_store: PostgresStore, signals: RedisSignalCache
) -> None:
    await decide(postgres_store, signals, 1)
    stream = aiter(client.control.WatchDecisions(control_service_pb2.WatchDecisionsRequest()))
    (snapshot,) = await take(stream, 1)
    await decide(postgres_store, signals, 2)
    live = await signalled(stream, signals)

    assert (snapshot.decision.name, snapshot.snapshot) == ("decisions/rec-1", True)
    assert (live.decision.name, live.snapshot) == ("decisions/rec-2", False)
    listed = await client.control.ListDecisions(control_service_pb2.ListDecisionsRequest())
    assert [d.name for d in listed.decisions] == ["decisions/rec-2", "decisions/rec-1"]


async def test_a_planner_follows_the_prewarm(
    client: Client, postgres_store: PostgresStore, signals: RedisSignalCache
) -> None:
    created = await client.events.CreateEvent(creation())
    stream = aiter(client.events.WatchEvent(event_service_pb2.WatchEventRequest(name=created.name)))
    await take(stream, 1)
    contract = Contract(
        event_id="double-eleven",
        revision=1,
        state=ContractState.PREWARMING,
        replicas=37,
        order_at=tomorrow(23),
        deadline_at=tomorrow(),
        start_at=tomorrow(),
        end_at=tomorrow(26),
        ordered_count=37,
    )
    for verified in (5, 37):
        async with postgres_store.unit_of_work() as uow:
            state = WorkloadState(contracts=(replace(contract, verified_count=verified),))
            await uow.states.save({"rec": state})
            await uow.commit()
        response = await signalled(stream, signals)
        assert response.prewarms[0].contract.verified_count == verified
        assert response.event.state == event_pb2.EVENT_STATE_PREWARMING


async def test_an_operator_overrules_and_pauses(client: Client) -> None:
    override = control_service_pb2.CreateOverrideRequest(
        parent="workloads/rec",
        override_id="hold",
        override=control_pb2.Override(
            kind=control_pb2.OVERRIDE_KIND_AT_LEAST, replicas=8, ttl=timedelta(hours=1), reason="launch"
        ),
    )
    created = await client.control.CreateOverride(override)
    paused = await client.control.Pause(
        control_service_pb2.PauseRequest(workload="workloads/rec", reason="debugging", ttl=timedelta(hours=1))
    )
    listed = await client.control.ListOverrides(
        control_service_pb2.ListOverridesRequest(parent="workloads/-")
    )
    resumed = await client.control.Resume(control_service_pb2.ResumeRequest(workload="workloads/rec"))
    await client.control.DeleteOverride(control_service_pb2.DeleteOverrideRequest(name=created.name))
    after = await client.control.ListOverrides(control_service_pb2.ListOverridesRequest())

    assert paused.paused
    assert [o.name for o in listed.overrides] == [
        "workloads/rec/overrides/hold",
        "workloads/rec/overrides/pause",
    ]
    assert not resumed.paused
    assert list(after.overrides) == []


async def test_a_page_token_of_another_listing_is_refused(client: Client) -> None:
    for number in range(2):
        await client.events.CreateEvent(creation(f"e-{number}"))
    page = await client.events.ListEvents(event_service_pb2.ListEventsRequest(page_size=1))

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.workloads.ListWorkloads(
            workload_service_pb2.ListWorkloadsRequest(page_token=page.next_page_token)
        )

    assert [field for field, _ in explain(caught.value).violations] == ["page_token"]


async def test_text_the_database_cannot_hold_is_refused_at_the_edge(client: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.events.CreateEvent(creation(display_name="a\x00b"))

    assert [field for field, _ in explain(caught.value).violations] == ["event.display_name"]


async def test_a_filter_with_text_the_database_cannot_hold_is_refused(client: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.events.ListEvents(event_service_pb2.ListEventsRequest(category="a\x00b"))

    assert [field for field, _ in explain(caught.value).violations] == ["category"]


async def test_a_schema_of_another_release_is_not_served(
    postgres_store: PostgresStore, database_url: str, signals: RedisSignalCache
) -> None:
    address = make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
    async with await psycopg.AsyncConnection.connect(address, autocommit=True) as connection:
        await connection.execute("UPDATE alembic_version SET version_num = 'another'")
    server = await serve(ApiDependencies(postgres_store, signals, SystemClock()), "127.0.0.1:0")
    async with grpc.aio.insecure_channel(server.target) as channel:
        response = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    await server.stop(grace_s=0)

    assert response.status == health_pb2.HealthCheckResponse.NOT_SERVING
