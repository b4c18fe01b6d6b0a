"""A server on the fakes, with a clock that the test moves, and a client of it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta

import grpc
import pytest

from controller.adapters.clock import SystemClock
from controller.adapters.fakes import FakeActuator, FakeSignalCache, FakeStore
from controller.api.limits import ApiLimits
from controller.api.server import ApiDependencies, RunningServer, serve
from controller.client import ApiError, Client, explain
from controller.core.types import CapacityProfile, Decision, Mode, Reason, Workload

NOW = datetime(2026, 11, 10, 12, 0, tzinfo=UTC)


class SetClock(SystemClock):
    """Wall time stands where the test puts it; durations pass for real, so that servers keep their pace."""

    def __init__(self, at: datetime) -> None:
        self.at = at

    def now(self) -> datetime:
        return self.at


@pytest.fixture
def clock() -> SetClock:
    return SetClock(NOW)


@pytest.fixture
def store() -> FakeStore:
    found = FakeStore()
    found.tables.workloads["rec"] = Workload(
        "rec", "recommender", (CapacityProfile("rec-int8", "L4", 1000.0),), max_replicas=30
    )
    found.tables.workloads["search"] = Workload(
        "search", "ranker", (CapacityProfile("rank", "L4", 500.0),), max_replicas=10
    )
    return found


@pytest.fixture
def signals(clock: SetClock) -> FakeSignalCache:
    return FakeSignalCache(clock)


@pytest.fixture
def actuator(clock: SetClock) -> FakeActuator:
    return FakeActuator(clock)


@pytest.fixture
def limits() -> ApiLimits:
    return ApiLimits(poll_period_s=0.05, stream_queue_max=5, streams_max=3, health_period_s=0.05)


@pytest.fixture
async def server(
    store: FakeStore, signals: FakeSignalCache, clock: SetClock, actuator: FakeActuator, limits: ApiLimits
) -> AsyncIterator[RunningServer]:
    deps = ApiDependencies(store, signals, clock, actuator=actuator, limits=limits)
    running = await serve(deps, "127.0.0.1:0")
    yield running
    await running.stop(grace_s=0)


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[Client]:
    async with Client(server.target) as connected:
        yield connected


@pytest.fixture
def refused() -> Callable[[Awaitable[object]], Awaitable[ApiError]]:
    """Await a call that must fail and return what the status says."""

    async def fail(call: Awaitable[object]) -> ApiError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        return explain(caught.value)

    return fail


def a_decision(number: int, workload: str = "rec") -> Decision:
    at = NOW + timedelta(seconds=number)
    return Decision(
        id=f"{workload}-{number}",
        workload=workload,
        at=at,
        mode=Mode.SCALE,
        current_replicas=4,
        desired_replicas=4 + number % 2,
        warm_replicas=4,
        in_flight_replicas=0,
        reason=Reason.STEADY,
        binding=None,
        sentence="",
        recommendations=(),
        conditions=(),
        inputs=(),
        demand_qps=None,
        need_replicas=None,
        plan_revision=None,
        forecast_id=None,
        event_ids=(),
    )
