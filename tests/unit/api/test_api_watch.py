"""WatchDecisions and WatchEvent: snapshot, changes, outages, limits, ends."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

import grpc
import pytest
from forecrest.v1 import (
    control_pb2,
    control_service_pb2,
    event_pb2,
    event_service_pb2,
    forecast_service_pb2,
    workload_service_pb2,
)

from controller.adapters.fakes import FakeActuator, FakeSignalCache, FakeStore
from controller.api.server import RunningServer
from controller.client import ApiError, Client
from controller.core.resources import ForecastRun
from controller.core.types import (
    Contract,
    ContractState,
    Decision,
    ForecastBand,
    ForecastState,
    WorkloadState,
)
from controller.usecases.topics import CHANGES
from tests.unit.api.conftest import NOW, a_decision

T = TypeVar("T")
Refused = Callable[[Awaitable[object]], Awaitable[ApiError]]
NAME = "events/double-eleven"


async def decide(store: FakeStore, signals: FakeSignalCache, *decisions: Decision) -> None:
    async with store.unit_of_work() as uow:
        await uow.decisions.append(decisions)
        await uow.commit()
    if signals.available:
        await signals.publish(CHANGES, b"workloads/rec")


async def take(stream: AsyncIterator[T], count: int) -> list[T]:
    async with asyncio.timeout(60):
        return [await anext(stream) for _ in range(count)]


def watch(client: Client, **fields: object) -> AsyncIterator[control_service_pb2.WatchDecisionsResponse]:
    request = control_service_pb2.WatchDecisionsRequest(**fields)  # type: ignore[arg-type]
    return aiter(client.control.WatchDecisions(request))


def told(responses: list[control_service_pb2.WatchDecisionsResponse]) -> list[tuple[str, bool]]:
    return [(r.decision.name.removeprefix("decisions/"), r.snapshot) for r in responses]


async def test_the_newest_of_each_workload_comes_first_then_each_as_it_is_made(
    client: Client, store: FakeStore, signals: FakeSignalCache
) -> None:
    await decide(store, signals, a_decision(0), a_decision(1), a_decision(1, "search"))
    stream = watch(client)

    snapshot = await take(stream, 2)
    await decide(store, signals, a_decision(2), a_decision(3))
    live = await take(stream, 2)

    assert told(snapshot) == [("rec-1", True), ("search-1", True)]
    assert told(live) == [("rec-2", False), ("rec-3", False)]


async def test_a_watcher_hears_of_its_workload_and_of_changes_only(
    client: Client, store: FakeStore, signals: FakeSignalCache
) -> None:
    await decide(store, signals, a_decision(0))
    stream = watch(client, workload="workloads/rec", changes_only=True)
    await take(stream, 1)

    await decide(store, signals, a_decision(1, "search"), a_decision(2), a_decision(3))

    assert told(await take(stream, 1)) == [("rec-3", False)]


async def test_without_the_cache_watchers_find_out_by_polling(
    client: Client, store: FakeStore, signals: FakeSignalCache
) -> None:
    signals.available = False
    await decide(store, signals, a_decision(0))
    stream = watch(client)
    await take(stream, 1)

    await decide(store, signals, a_decision(1))

    assert told(await take(stream, 1)) == [("rec-1", False)]


async def test_an_outage_of_the_store_delays_and_loses_nothing(
    client: Client, store: FakeStore, signals: FakeSignalCache
) -> None:
    await decide(store, signals, a_decision(0))
    stream = watch(client)
    await take(stream, 1)

    await decide(store, signals, a_decision(1))
    store.available = False
    await signals.publish(CHANGES, b"")
    store.available = True
    await decide(store, signals, a_decision(2))

    assert told(await take(stream, 2)) == [("rec-1", False), ("rec-2", False)]


async def test_more_streams_than_the_limit_are_refused_and_a_closed_one_makes_room(
    client: Client, store: FakeStore, signals: FakeSignalCache, refused: Refused
) -> None:
    await decide(store, signals, a_decision(0))
    request = control_service_pb2.WatchDecisionsRequest()
    calls = [client.control.WatchDecisions(request) for _ in range(3)]
    for call in calls:
        await take(aiter(call), 1)

    error = await refused(anext(watch(client)))
    calls[0].cancel()

    async def admitted() -> None:
        while True:
            try:
                await anext(watch(client))
            except grpc.aio.AioRpcError:
                continue
            return

    assert (error.code, error.reason) == ("RESOURCE_EXHAUSTED", "TOO_MANY_STREAMS")
    async with asyncio.timeout(60):
        await admitted()


async def register(client: Client) -> event_pb2.Event:
    event = event_pb2.Event(
        workloads=["workloads/rec"],
        start_local="2026-11-11T00:00",
        end_local="2026-11-11T02:00",
        time_zone="Asia/Shanghai",
        expected_peak_qps=20_000,
    )
    return await client.events.CreateEvent(
        event_service_pb2.CreateEventRequest(event=event, event_id="double-eleven")
    )


def a_contract(state: ContractState, verified: int) -> Contract:
    return Contract(
        event_id="double-eleven",
        revision=1,
        state=state,
        replicas=3,
        order_at=NOW,
        deadline_at=NOW + timedelta(hours=4),
        start_at=NOW + timedelta(hours=4),
        end_at=NOW + timedelta(hours=6),
        ordered_count=3,
        verified_count=verified,
    )


async def progress(store: FakeStore, signals: FakeSignalCache, contract: Contract) -> None:
    async with store.unit_of_work() as uow:
        await uow.states.save({"rec": WorkloadState(contracts=(contract,))})
        await uow.commit()
    await signals.publish(CHANGES, b"workloads/rec")


async def test_an_event_is_followed_through_its_prewarm_to_its_end(
    client: Client, store: FakeStore, signals: FakeSignalCache, actuator: FakeActuator
) -> None:
    await register(client)
    stream = aiter(client.events.WatchEvent(event_service_pb2.WatchEventRequest(name=NAME)))

    (first,) = await take(stream, 1)
    await actuator.scale(store.tables.workloads["rec"], 3, fence=1)
    await progress(store, signals, a_contract(ContractState.PREWARMING, 1))
    (second,) = await take(stream, 1)
    await client.events.CancelEvent(event_service_pb2.CancelEventRequest(name=NAME))
    rest = [response async for response in stream]

    assert (first.snapshot, len(first.prewarms)) == (True, 0)
    assert (second.snapshot, second.event.state) == (False, event_pb2.EVENT_STATE_PREWARMING)
    (prewarm,) = second.prewarms
    assert (prewarm.workload, prewarm.contract.verified_count) == ("workloads/rec", 1)
    assert [r.stage for r in prewarm.replicas] == [event_pb2.STAGE_ORDERED] * 3
    assert rest[-1].event.state == event_pb2.EVENT_STATE_CANCELLED


async def test_a_slow_watcher_of_an_event_gets_the_newest_view(
    client: Client, store: FakeStore, signals: FakeSignalCache
) -> None:
    await register(client)
    stream = aiter(client.events.WatchEvent(event_service_pb2.WatchEventRequest(name=NAME)))
    await take(stream, 1)

    for verified in range(4):
        await progress(store, signals, a_contract(ContractState.PREWARMING, verified))

    async with asyncio.timeout(60):
        async for response in stream:
            if response.prewarms[0].contract.verified_count == 3:
                break
    assert response.prewarms[0].contract.verified_count == 3


async def test_an_unknown_event_cannot_be_watched(client: Client, refused: Refused) -> None:
    stream = aiter(client.events.WatchEvent(event_service_pb2.WatchEventRequest(name="events/nothing")))

    assert (await refused(anext(stream))).code == "NOT_FOUND"


async def test_stopping_ends_streams_so_that_clients_go_elsewhere(
    client: Client, store: FakeStore, signals: FakeSignalCache, server: RunningServer, refused: Refused
) -> None:
    await decide(store, signals, a_decision(0))
    stream = watch(client)
    await take(stream, 1)

    await server.stop(grace_s=5)

    error = await refused(anext(stream))
    assert (error.code, error.reason) == ("UNAVAILABLE", "SERVER_STOPPING")


async def test_the_client_follows_on_after_a_restart_without_repeating(
    store: FakeStore, signals: FakeSignalCache, server: RunningServer, clock: "object"
) -> None:
    from controller.api.server import ApiDependencies, serve

    await decide(store, signals, a_decision(0))
    async with Client(server.target) as client:
        stream = client.watch_decisions()
        (first,) = await take(stream, 1)
        await server.stop(grace_s=5)
        again = await serve(ApiDependencies(store, signals, clock), server.target)  # type: ignore[arg-type]
        await decide(store, signals, a_decision(1))

        (second,) = await take(stream, 1)

        await again.stop(grace_s=0)
    assert [first.decision.name, second.decision.name] == ["decisions/rec-0", "decisions/rec-1"]


@pytest.mark.parametrize("workload", ["rec", "workloads/"])
async def test_a_watch_of_a_bad_name_is_refused(client: Client, refused: Refused, workload: str) -> None:
    error = await refused(anext(watch(client, workload=workload)))

    assert [field for field, _ in error.violations] == ["workload"]


async def test_the_enum_of_an_absent_binding_is_unspecified(
    client: Client, store: FakeStore, signals: FakeSignalCache
) -> None:
    await decide(store, signals, a_decision(0))

    (response,) = await take(watch(client), 1)

    assert response.decision.binding == control_pb2.SOURCE_UNSPECIFIED


@pytest.mark.parametrize("token", [False, True], ids=["from the beginning", "resumed"])
async def test_decisions_of_an_unknown_workload_cannot_be_watched(
    client: Client, store: FakeStore, signals: FakeSignalCache, refused: Refused, token: bool
) -> None:
    await decide(store, signals, a_decision(0))
    (first,) = await take(watch(client, workload="workloads/rec"), 1)
    resumed = first.resume_token if token else ""

    error = await refused(anext(watch(client, workload="workloads/nothing", resume_token=resumed)))

    assert ("NOT_FOUND", "RESOURCE_NOT_FOUND") == (error.code, error.reason)
    assert "workloads/nothing does not exist" in error.message


async def delete(client: Client, name: str) -> None:
    await client.workloads.DeleteWorkload(workload_service_pb2.DeleteWorkloadRequest(name=name))


async def test_a_watch_of_decisions_ends_when_its_workload_is_deleted_behind_what_was_decided(
    client: Client, store: FakeStore, signals: FakeSignalCache, refused: Refused
) -> None:
    await decide(store, signals, a_decision(0), a_decision(0, "search"))
    stream, everything = watch(client, workload="workloads/rec"), watch(client)
    await take(stream, 1)
    await take(everything, 2)

    async with store.unit_of_work() as uow:
        await uow.decisions.append([a_decision(1)])
        await uow.commit()
    await delete(client, "workloads/rec")
    (last,) = await take(stream, 1)
    error = await refused(anext(stream))
    await decide(store, signals, a_decision(2, "search"))

    assert [("rec-1", False)] == told([last])
    assert ("NOT_FOUND", "WORKLOAD_DELETED") == (error.code, error.reason)
    assert "it was deleted while it was watched" in error.message
    # Whoever watches the fleet goes on.
    assert [("rec-1", False), ("search-2", False)] == told(await take(everything, 2))


async def test_a_workload_that_was_created_again_is_watched_again(
    client: Client, store: FakeStore, signals: FakeSignalCache, refused: Refused
) -> None:
    kept = store.tables.workloads["rec"]
    await decide(store, signals, a_decision(0))
    stream = watch(client, workload="workloads/rec")
    await take(stream, 1)
    await delete(client, "workloads/rec")
    await refused(anext(stream))

    async with store.unit_of_work() as uow:
        await uow.workloads.create(kept)
        await uow.commit()

    assert [("rec-0", True)] == told(await take(watch(client, workload="workloads/rec"), 1))


async def test_a_watch_of_forecasts_ends_when_its_workload_is_deleted(
    client: Client, store: FakeStore, refused: Refused
) -> None:
    band = ForecastBand(
        id="f",
        origin_at=NOW,
        start_at=NOW,
        step=timedelta(hours=1),
        levels=(0.5,),
        qps=((1.0,),),
        state=ForecastState.READY,
    )
    async with store.unit_of_work() as uow:
        await uow.forecasts.save(ForecastRun("f", "rec", NOW, NOW, 1), band)
        await uow.commit()
    request = forecast_service_pb2.WatchForecastRequest(name="workloads/rec/forecast")
    stream = aiter(client.forecasts.WatchForecast(request))
    await take(stream, 1)

    await delete(client, "workloads/rec")

    error = await refused(anext(stream))
    assert ("NOT_FOUND", "WORKLOAD_DELETED") == (error.code, error.reason)
