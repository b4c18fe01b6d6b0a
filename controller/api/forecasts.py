"""ForecastService: parse names, run the use case with one clock reading, map the result. No rule lives here."""
# ruff: noqa: N802 -- the protocol names the methods

from forecrest.v1 import forecast_pb2, forecast_service_pb2, forecast_service_pb2_grpc

from controller.api import mappers
from controller.api.calls import ApiDependencies, optional_time
from controller.api.shapes import read_duration
from controller.usecases import forecasts
from controller.usecases.errors import Findings
from controller.usecases.names import parse

NAME = "workloads/*/forecast"


class ForecastServicer(forecast_service_pb2_grpc.ForecastServiceServicer):
    """Forecasts and history."""

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps

    async def GetForecast(
        self, request: forecast_service_pb2.GetForecastRequest, context: object
    ) -> forecast_pb2.Forecast:
        """Read a forecast."""
        del context
        (workload,) = parse(request.name, NAME, "name")
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
