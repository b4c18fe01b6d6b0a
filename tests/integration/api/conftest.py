"""A real server on PostgreSQL and Valkey, and a client of it, in the world that the table of methods works in."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
import pytest_asyncio

from controller.adapters.clock import SystemClock
from controller.adapters.forecaster import FitForecaster
from controller.adapters.postgres import Limits, PostgresStore
from controller.adapters.redis import RedisSignalCache
from controller.api.limits import ApiLimits
from controller.api.server import ApiDependencies, RunningServer, serve
from controller.client import ApiError, Client, explain
from tests.conftest import Databases
from tests.integration.api.methods import CASES, METHODS, path_of, prepare


@dataclass(frozen=True)
class World:
    """What a test of any method needs."""

    server: RunningServer
    client: Client
    store: PostgresStore

    def call(self, name: str, request: Any, **options: Any) -> Any:  # noqa: ANN401 -- any method's call object
        """Start a call of a method by name, with the plain channel: nothing is retried or filled in."""
        method = METHODS[name]
        channel = self.client.channel
        make = channel.unary_stream if method.server_streaming else channel.unary_unary
        response = METHODS[name].output_type._concrete_class
        multi = make(
            path_of(name),
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        return multi(request, **options)


async def answer(world: World, name: str, request: Any) -> Any:  # noqa: ANN401 -- any response
    """The response, or the first message of a stream."""
    async with asyncio.timeout(60):
        if METHODS[name].server_streaming:
            call = world.call(name, request)
            try:
                return await anext(aiter(call))
            finally:
                call.cancel()
        return await world.call(name, request)


async def refusal(world: World, name: str, request: Any) -> ApiError:  # noqa: ANN401 -- any request
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answer(world, name, request)
    error = explain(caught.value)
    leaks = ("Traceback", "sqlalchemy", "psycopg", "SELECT ", "/controller/", ".py")
    assert [word for word in leaks if word in str(caught.value.details())] == []
    return error


@asynccontextmanager
async def _open_world(store: PostgresStore, redis_url: str) -> AsyncGenerator[World]:
    clock = SystemClock()
    signals = RedisSignalCache(redis_url, clock=clock, prefix=f"test-{uuid.uuid4().hex}:")
    # One caller asks for everything here, and far faster than any person.
    limits = ApiLimits(rate_per_caller_qps=1e6, rate_per_caller_burst=1e6, poll_period_s=0.2)
    deps = ApiDependencies(store, signals, clock, forecaster=FitForecaster(), limits=limits)
    server = await serve(deps, "127.0.0.1:0")
    async with Client(server.target) as client:
        await prepare(store, client)
        yield World(server, client, store)
    await server.stop(grace_s=0)
    await signals.close()


@pytest.fixture
async def world(postgres_store: PostgresStore, redis_url: str) -> AsyncIterator[World]:
    """A world of one's own, for tests that change it."""
    async with _open_world(postgres_store, redis_url) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_world(databases: Databases, template_database: str, redis_url: str) -> AsyncIterator[World]:
    """One world per file, for tests that leave it as it is."""
    with databases.fresh(template_database) as url:
        store = PostgresStore(url, Limits(connection_count=5))
        async with _open_world(store, redis_url) as opened:
            yield opened
        await store.close()


@pytest.fixture(params=sorted(name for name, case in CASES.items() if "client_stream" not in case.tags))
def method(request: pytest.FixtureRequest) -> str:
    """The name of each method that takes one request."""
    name: str = request.param
    return name
