"""ForecastService: parse names, run the use case with one clock reading, map the result. No rule lives here."""
# ruff: noqa: N802 -- the protocol names the methods

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from forecrest.v1 import forecast_pb2, forecast_service_pb2, forecast_service_pb2_grpc

from controller.api import explanations, mappers
from controller.api.calls import ApiDependencies, optional_time
from controller.api.feed import Feed
from controller.api.shapes import read_duration
from controller.ports import UnavailableError
from controller.usecases import accuracy, forecasts
from controller.usecases.caller import caller
from controller.usecases.errors import Findings
from controller.usecases.names import parse

log = logging.getLogger(__name__)

NAME = "workloads/*/forecast"
Key = tuple[str, frozenset[str] | None]


@dataclass(slots=True)
class _Held:
    """A serialized forecast, and when it was last known to be the newest."""

    forecast_id: str
    data: bytes
    checked_s: float
    checked_at: datetime


class Newest:
    """The newest forecasts, serialized: a forecast changes every few minutes and may be asked for every second.

    At most ``forecast_cache_s`` old; while the database is away the last one known, marked with the time since when
    it may be out of date. Callers who see other namespaces share nothing. One read at a time per workload.
    """

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps
        self._held: OrderedDict[Key, _Held] = OrderedDict()
        self._reading: dict[Key, asyncio.Task[bytes]] = {}

    async def read(self, workload: str) -> bytes:
        """Return the message; raise MissingError, or PortError for one never read before."""
        key = (workload, caller().namespaces)
        held = self._held.get(key)
        if (
            held is not None
            and self._deps.pace.monotonic() - held.checked_s < self._deps.limits.forecast_cache_s
        ):
            return held.data
        task = self._reading.get(key)
        if task is None:
            task = self._reading[key] = asyncio.create_task(self._refresh(key), name="newest-forecast")
            task.add_done_callback(lambda done: self._ended(key, done))
        # Shielded: a caller who gives up must not take the answer from those who wait along.
        return await asyncio.shield(task)

    def _ended(self, key: Key, done: "asyncio.Task[bytes]") -> None:
        self._reading.pop(key, None)
        if not done.cancelled() and done.exception() is not None:
            log.debug("forecast of %s not read: %s", key[0], done.exception())

    async def _refresh(self, key: Key) -> bytes:
        store, workload = self._deps.store, key[0]
        held, checked_s = self._held.get(key), self._deps.pace.monotonic()
        now = self._deps.clock.now()
        try:
            if held is not None and await forecasts.newest_forecast_id(store, workload) == held.forecast_id:
                held.checked_s, held.checked_at = checked_s, now
                return held.data
            run, band = await forecasts.get_forecast(store, workload)
        except UnavailableError:
            if held is None:
                raise
            stale = forecast_pb2.Forecast.FromString(held.data)
            stale.stale_since_time.FromDatetime(held.checked_at)
            return stale.SerializeToString()
        except Exception:
            self._held.pop(key, None)
            raise
        data = mappers.forecast_to_wire(run, band).SerializeToString()
        self._held[key] = _Held(run.id, data, checked_s, now)
        self._held.move_to_end(key)
        while len(self._held) > self._deps.limits.forecast_cache_max:
            self._held.popitem(last=False)
        return data


class ForecastServicer(forecast_service_pb2_grpc.ForecastServiceServicer):
    """Forecasts, what they are made of and how good they are, and history."""

    def __init__(self, deps: ApiDependencies, feed: Feed) -> None:
        self._deps, self._feed, self._newest = deps, feed, Newest(deps)

    async def GetForecast(
        self, request: forecast_service_pb2.GetForecastRequest, context: object
    ) -> forecast_pb2.Forecast:
        """Read a forecast."""
        del context
        (workload,) = parse(request.name, NAME, "name")
        if len(request.ListFields()) == 1:
            data: Any = await self._newest.read(workload)
            return data  # type: ignore[no-any-return] # the server takes a message that is serialized already
        start_at, end_at = optional_time(request, "start_time"), optional_time(request, "end_time")
        findings = Findings()
        findings.window(start_at, end_at)
        findings.raise_if_any()
        as_of = optional_time(request, "as_of_time")
        run, band = await forecasts.get_forecast(self._deps.store, workload, as_of)
        return mappers.forecast_to_wire(run, band, start_at, end_at)

    async def BatchGetForecasts(
        self, request: forecast_service_pb2.BatchGetForecastsRequest, context: object
    ) -> forecast_service_pb2.BatchGetForecastsResponse:
        """Read several forecasts."""
        del context
        forecasts.check_batch(len(request.names))
        names = [parse(name, NAME, f"names[{index}]")[0] for index, name in enumerate(request.names)]
        found = await forecasts.batch_get_forecasts(self._deps.store, names)
        return forecast_service_pb2.BatchGetForecastsResponse(
            forecasts=[mappers.forecast_to_wire(run, band) for run, band in found]
        )

    async def GetHistory(
        self, request: forecast_service_pb2.GetHistoryRequest, context: object
    ) -> forecast_service_pb2.GetHistoryResponse:
        """Read demand of a window."""
        del context
        (workload,) = parse(request.workload, "workloads/*", "workload")
        history = await forecasts.get_history(
            self._deps.store,
            workload,
            self._deps.clock.now(),
            start_at=optional_time(request, "start_time"),
            end_at=optional_time(request, "end_time"),
            step=read_duration(request.step, "step") if request.HasField("step") else None,
        )
        return mappers.history_to_wire(workload, history)

    async def WatchForecast(
        self, request: forecast_service_pb2.WatchForecastRequest, context: object
    ) -> AsyncGenerator[forecast_service_pb2.WatchForecastResponse]:
        """Follow a forecast."""
        del context
        (workload,) = parse(request.name, NAME, "name")
        async with aclosing(self._feed.forecast(workload, request.resume_token)) as found:
            async for (run, band), snapshot, token in found:
                yield forecast_service_pb2.WatchForecastResponse(
                    forecast=mappers.forecast_to_wire(run, band), snapshot=snapshot, resume_token=token
                )

    async def ExplainForecast(
        self, request: forecast_service_pb2.ExplainForecastRequest, context: object
    ) -> forecast_pb2.ForecastExplanation:
        """Say what a forecast is made of."""
        del context
        (workload,) = parse(request.name, NAME, "name")
        as_of = optional_time(request, "as_of_time")
        return explanations.explanation_to_wire(
            *await accuracy.explain_forecast(self._deps.store, workload, as_of)
        )

    async def GetAccuracy(
        self, request: forecast_service_pb2.GetAccuracyRequest, context: object
    ) -> forecast_pb2.Accuracy:
        """Say how good forecasts are."""
        del context
        (workload,) = parse(request.name, "workloads/*/accuracy", "name")
        window = read_duration(request.window, "window") if request.HasField("window") else None
        found = await accuracy.get_accuracy(self._deps.store, workload, self._deps.clock.now(), window)
        return explanations.accuracy_to_wire(workload, found)
