"""The API while PostgreSQL or Valkey is really stopped: reads say how old they are, nothing acknowledged is lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from forecrest.v1 import event_pb2, event_service_pb2, workload_service_pb2
from google.protobuf.timestamp_pb2 import Timestamp

from controller.adapters.clock import SystemClock
from controller.adapters.embedded.stack import EmbeddedStack
from controller.adapters.postgres import PostgresStore, migrate
from controller.adapters.redis import RedisSignalCache
from controller.api.auth.roles import RULES, Access
from controller.api.limits import ApiLimits
from controller.api.server import ApiDependencies, serve
from controller.api.stale import FIELD, TRAILER
from controller.client import Client
from tests.integration.api.conftest import World
from tests.integration.api.methods import CASES, METHODS, an_event, path_of, prepare

READS = sorted(
    name
    for name, method in METHODS.items()
    if RULES[path_of(name)].access is Access.READ and not method.server_streaming
)
# What shows the state of things by itself: there the answer says so, not the trailer alone.
MARKED = {n for n in READS if FIELD in METHODS[n].output_type.fields_by_name}


@asynccontextmanager
async def running(stack: EmbeddedStack) -> AsyncIterator[World]:
    clock = SystemClock()
    store, cache = PostgresStore(stack.database_url), RedisSignalCache(stack.redis_url, clock=clock)
    limits = ApiLimits(poll_period_s=0.2, forecast_cache_s=0.0)
    server = await serve(ApiDependencies(store, cache, clock, limits=limits), "127.0.0.1:0")
    try:
        async with Client(server.target) as client:
            yield World(server, client, store)
    finally:
        await server.stop(grace_s=0)
        await cache.close()
        await store.close()


async def outcome(world: World, name: str) -> tuple[str, Any, dict[str, Any]]:
    """Code, response and trailers of the table's request of a method."""
    call = world.call(name, CASES[name].make())
    try:
        response = await call
    except grpc.aio.AioRpcError as error:
        return error.code().name, None, {}
    return "OK", response, dict(await call.trailing_metadata())


def without_mark(response: Any) -> Any:  # noqa: ANN401 -- any message
    bare = type(response)()
    bare.CopyFrom(response)
    bare.ClearField(FIELD)
    return bare


def create(world: World, event_id: str) -> Any:  # noqa: ANN401 -- the call object
    request = event_service_pb2.CreateEventRequest(event=an_event(), event_id=event_id)
    return world.call("EventService/CreateEvent", request)


async def test_without_the_database_reads_say_they_are_old_and_changes_fail(tmp_path: Path) -> None:
    async with EmbeddedStack(tmp_path / "data") as stack:
        await asyncio.to_thread(migrate.upgrade, stack.database_url)
        async with running(stack) as world:
            await prepare(world.store, world.client)
            fresh = {name: await outcome(world, name) for name in READS}
            await create(world, "acknowledged")
            address = stack.database_url
            await stack.servers["postgres"].stop()

            old = {name: await outcome(world, name) for name in READS}
            refused = {n: (await outcome(world, n))[0] for n, c in CASES.items() if changes(n, c.mutates)}
            never_asked = world.call(
                "WorkloadService/GetWorkload",
                workload_service_pb2.GetWorkloadRequest(name="workloads/spare"),
            )
            assert await code(never_asked) == "UNAVAILABLE"
            assert await code(create(world, "unacknowledged")) == "UNAVAILABLE"

            answered = {name for name, (found, _, _) in fresh.items() if found == "OK"}
            assert answered >= MARKED
            assert {n: old[n][0] for n in answered} == dict.fromkeys(answered, "OK")
            assert [n for n in answered if TRAILER not in old[n][2] and n not in SELF_KEPT] == []
            assert [n for n in MARKED if not old[n][1].HasField(FIELD)] == []
            assert [n for n in MARKED if fresh[n][1].HasField(FIELD)] == []
            assert [n for n in MARKED if without_mark(old[n][1]) != fresh[n][1]] == []
            assert set(refused.values()) == {"UNAVAILABLE"}

            async with EmbeddedStackAgain(stack, tmp_path) as again:
                assert again.database_url == address
                events = await world.client.events.ListEvents(event_service_pb2.ListEventsRequest())
                names = {event.name for event in events.events}
                assert "events/acknowledged" in names
                assert "events/unacknowledged" not in names
                assert not events.HasField(FIELD)


# Forecasts are kept in serialized form by their own method, which marks them without a trailer.
SELF_KEPT = {"ForecastService/GetForecast", "ForecastService/BatchGetForecasts"}


def changes(name: str, mutates: bool) -> bool:
    return mutates and not METHODS[name].client_streaming


async def code(call: Any) -> str:  # noqa: ANN401 -- any call
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


class EmbeddedStackAgain:
    """The same servers on the same ports and data, once the first ones have ended."""

    def __init__(self, stack: EmbeddedStack, folder: Path) -> None:
        self._first, self._folder = stack, folder

    async def __aenter__(self) -> EmbeddedStack:
        await self._first.__aexit__(None, None, None)
        self._again = EmbeddedStack(self._folder / "data")
        return await self._again.__aenter__()

    async def __aexit__(self, *_: object) -> None:
        await self._again.__aexit__(None, None, None)


async def test_without_the_cache_everything_works_and_streams_poll(tmp_path: Path) -> None:
    async with EmbeddedStack(tmp_path / "data") as stack:
        await asyncio.to_thread(migrate.upgrade, stack.database_url)
        async with running(stack) as world:
            await prepare(world.store, world.client)
            stream = aiter(
                world.client.events.WatchEvent(event_service_pb2.WatchEventRequest(name="events/sale"))
            )
            async with asyncio.timeout(60):
                first = await anext(stream)
                await stack.servers["valkey"].stop()
                found = {n: (await outcome(world, n))[0] for n in READS}
                changed = await world.client.events.UpdateEvent(
                    event_service_pb2.UpdateEventRequest(
                        event=event_pb2.Event(name="events/sale", expected_peak_qps=7000.0)
                    )
                )
                second = await anext(stream)

            assert first.snapshot
            assert second.event.revision == changed.revision == first.event.revision + 1
            assert {n for n, answer in found.items() if answer == "UNAVAILABLE"} == set()
            assert await code(create(world, "without-cache")) == "OK"
            # A backlog lives in the cache alone, and is not acknowledged without it.
            assert (await outcome(world, "TelemetryService/RecordBacklog"))[0] == "UNAVAILABLE"


def test_the_mark_is_a_time() -> None:
    kinds = {METHODS[n].output_type.fields_by_name[FIELD].message_type.full_name for n in MARKED}

    assert kinds == {Timestamp.DESCRIPTOR.full_name}
