"""TelemetryService: map samples with one clock reading and run the use case. No rule lives here."""
# ruff: noqa: N802 -- the protocol names the methods

from collections.abc import Callable, Sequence
from typing import TypeVar

from forecrest.v1 import telemetry_service_pb2, telemetry_service_pb2_grpc

from controller.api import mappers
from controller.api.calls import ApiDependencies
from controller.usecases import telemetry
from controller.usecases.errors import InvalidError, Violation

T = TypeVar("T")
S = TypeVar("S")


class TelemetryServicer(telemetry_service_pb2_grpc.TelemetryServiceServicer):
    """Pushed demand."""

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps

    async def RecordTraffic(
        self, request: telemetry_service_pb2.RecordTrafficRequest, context: object
    ) -> telemetry_service_pb2.RecordTrafficResponse:
        """Store demand per minute."""
        del context
        samples = _mapped(
            request.samples, lambda message, at: mappers.sample_from_wire(message, request.source, at)
        )
        written = await telemetry.record_traffic(self._deps.store, samples, self._deps.clock.now())
        return telemetry_service_pb2.RecordTrafficResponse(written_count=written)

    async def RecordBacklog(
        self, request: telemetry_service_pb2.RecordBacklogRequest, context: object
    ) -> telemetry_service_pb2.RecordBacklogResponse:
        """Keep backlogs for their ttl."""
        del context
        now = self._deps.clock.now()
        backlogs = _mapped(request.samples, lambda message, at: mappers.backlog_from_wire(message, at, now))
        kept = await telemetry.record_backlog(self._deps.store, self._deps.signals, backlogs, now)
        return telemetry_service_pb2.RecordBacklogResponse(written_count=kept)


def _mapped(messages: Sequence[S], read: Callable[[S, str], T]) -> list[T]:
    values: list[T] = []
    violations: list[Violation] = []
    for index, message in enumerate(messages):
        try:
            values.append(read(message, f"samples[{index}]"))
        except InvalidError as error:
            violations += error.violations
        if len(violations) >= telemetry.VIOLATIONS_MAX:
            break
    if violations:
        raise InvalidError(violations)
    return values
