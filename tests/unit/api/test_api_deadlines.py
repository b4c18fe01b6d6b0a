"""Calls that read end with the caller's deadline or cancellation, and the server serves on."""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

import grpc
import pytest
from forecrest.v1 import control_service_pb2, forecast_service_pb2

from controller.adapters.fakes import FakeStore
from controller.api.server import RunningServer
from controller.client import Client

Call = Callable[[Client, float | None], Awaitable[Any]]
CALLS: dict[str, Call] = {
    "GetForecast": lambda client, timeout: client.forecasts.GetForecast(
        forecast_service_pb2.GetForecastRequest(name="workloads/rec/forecast"), timeout=timeout
    ),
    "BatchGetForecasts": lambda client, timeout: client.forecasts.BatchGetForecasts(
        forecast_service_pb2.BatchGetForecastsRequest(names=["workloads/rec/forecast"]), timeout=timeout
    ),
    "GetHistory": lambda client, timeout: client.forecasts.GetHistory(
        forecast_service_pb2.GetHistoryRequest(workload="workloads/rec"), timeout=timeout
    ),
    "ExplainForecast": lambda client, timeout: client.forecasts.ExplainForecast(
        forecast_service_pb2.ExplainForecastRequest(name="workloads/rec/forecast"), timeout=timeout
    ),
    "GetAccuracy": lambda client, timeout: client.forecasts.GetAccuracy(
        forecast_service_pb2.GetAccuracyRequest(name="workloads/rec/accuracy"), timeout=timeout
    ),
    "GetDecision": lambda client, timeout: client.control.GetDecision(
        control_service_pb2.GetDecisionRequest(name="decisions/d"), timeout=timeout
    ),
    "ListDecisions": lambda client, timeout: client.control.ListDecisions(
        control_service_pb2.ListDecisionsRequest(), timeout=timeout
    ),
    "ExplainDecision": lambda client, timeout: client.control.ExplainDecision(
        control_service_pb2.ExplainDecisionRequest(workload="workloads/rec"), timeout=timeout
    ),
    "Simulate": lambda client, timeout: client.control.Simulate(
        control_service_pb2.SimulateRequest(workload="workloads/rec"), timeout=timeout
    ),
}


class StuckStore(FakeStore):
    """A database that has stopped answering; says when somebody asks."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.left = asyncio.Event(), asyncio.Event()

    def unit_of_work(self) -> Any:  # noqa: ANN401 - a unit of work that never begins
        return self

    async def __aenter__(self) -> None:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left.set()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raise AssertionError("never entered")


@pytest.fixture
def store() -> StuckStore:
    return StuckStore()


@pytest.mark.parametrize("method", CALLS)
async def test_a_deadline_ends_the_call_and_what_it_waits_for(
    client: Client, store: StuckStore, method: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await CALLS[method](client, 1.0)

    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert store.asked.is_set()
    if method != "GetForecast":  # its answer is read on, for others who wait
        async with asyncio.timeout(60):
            await store.left.wait()


@pytest.mark.parametrize("method", CALLS)
async def test_a_cancelled_call_ends_what_it_waits_for(
    client: Client, store: StuckStore, server: RunningServer, method: str
) -> None:
    call: Any = CALLS[method](client, None)
    waiting = asyncio.ensure_future(_result(call))
    async with asyncio.timeout(60):
        await store.asked.wait()

    call.cancel()

    async with asyncio.timeout(60):
        with pytest.raises(asyncio.CancelledError):
            await waiting
        if method != "GetForecast":
            await store.left.wait()
    assert server.port


async def _result(call: Awaitable[Any]) -> object:
    return await call
