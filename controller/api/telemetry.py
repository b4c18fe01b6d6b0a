"""TelemetryService: map samples with one clock reading and run the use case. No rule lives here."""
# ruff: noqa: N802 -- the protocol names the methods

import contextlib
import math
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import TypeVar

from forecrest.v1 import telemetry_service_pb2, telemetry_service_pb2_grpc

from controller.api import mappers
from controller.api.calls import ApiDependencies
from controller.api.streams import Streams
from controller.core.resources import TrafficBlock
from controller.usecases import telemetry
from controller.usecases.errors import InvalidError, Violation
from controller.usecases.names import parse

T = TypeVar("T")
S = TypeVar("S")


class TelemetryServicer(telemetry_service_pb2_grpc.TelemetryServiceServicer):
    """Pushed demand."""

    def __init__(self, deps: ApiDependencies, streams: Streams) -> None:
        self._deps, self._streams = deps, streams

    async def RecordTraffic(
        self, request: telemetry_service_pb2.RecordTrafficRequest, context: object
    ) -> telemetry_service_pb2.RecordTrafficResponse:
        """Store demand per minute."""
        del context
        now = self._deps.clock.now()
        blocks = _columns(request)
        if blocks is not None:
            # What is wrong with a batch is found out below, where each sample bears its own name.
            with contextlib.suppress(InvalidError):
                written = await telemetry.record_blocks(self._deps.store, blocks, now, set())
                return telemetry_service_pb2.RecordTrafficResponse(written_count=written)
        samples = _mapped(
            request.samples,
            telemetry.SAMPLES_MAX,
            lambda message, at: mappers.sample_from_wire(message, request.source, at),
        )
        written = await telemetry.record_traffic(self._deps.store, samples, now)
        return telemetry_service_pb2.RecordTrafficResponse(written_count=written)

    async def StreamTraffic(
        self, request_iterator: AsyncIterator[telemetry_service_pb2.StreamTrafficRequest], context: object
    ) -> AsyncGenerator[telemetry_service_pb2.StreamTrafficResponse]:
        """Store demand in bulk; answer each batch when it is durable."""
        del context
        known: set[str] = set()
        with self._streams.admitted():
            while True:
                # Only the wait for the sender is given up when the server stops: a batch that is here is stored.
                batch = await self._streams.until_stopped(_next(request_iterator))
                if batch is None:
                    return
                blocks = [
                    _block(series, batch.source, f"series[{index}]")
                    for index, series in enumerate(batch.series)
                ]
                written = await telemetry.record_blocks(
                    self._deps.store, blocks, self._deps.clock.now(), known
                )
                yield telemetry_service_pb2.StreamTrafficResponse(batch=batch.batch, written_count=written)

    async def RecordBacklog(
        self, request: telemetry_service_pb2.RecordBacklogRequest, context: object
    ) -> telemetry_service_pb2.RecordBacklogResponse:
        """Keep backlogs for their ttl."""
        del context
        now = self._deps.clock.now()
        backlogs = _mapped(
            request.samples,
            telemetry.BACKLOGS_MAX,
            lambda message, at: mappers.backlog_from_wire(message, at, now),
        )
        kept = await telemetry.record_backlog(self._deps.store, self._deps.signals, backlogs, now)
        return telemetry_service_pb2.RecordBacklogResponse(written_count=kept)


def _columns(request: telemetry_service_pb2.RecordTrafficRequest) -> list[TrafficBlock] | None:
    """The samples by workload, in columns, which are stored far faster; None where one is out of the ordinary."""
    if len(request.samples) > telemetry.SAMPLES_MAX:
        return None
    rows: dict[str, list[tuple[int, float, float, float, float]]] = {}
    for sample in request.samples:
        minute, rest = divmod(sample.minute_time.seconds, 60)
        prefix, _, name = sample.workload.partition("/")
        row = (
            minute,
            sample.demand_count if sample.HasField("demand_count") else math.nan,
            sample.served_count,
            sample.rejected_count,
            sample.coverage if sample.HasField("coverage") else 1.0,
        )
        if rest or sample.minute_time.nanos or prefix != "workloads" or not math.isfinite(sum(row)):
            return None
        # Unknown is NaN in columns, which a sample of its own must not say.
        served = row[2] if sample.HasField("served_count") else math.nan
        rejected = row[3] if sample.HasField("rejected_count") else math.nan
        rows.setdefault(name, []).append((minute, row[1], served, rejected, row[4]))
    blocks: list[TrafficBlock] = []
    for name, found in rows.items():
        found.sort()
        minutes, *columns = zip(*found, strict=True)
        blocks.append(
            TrafficBlock(
                name, request.source, array("q", minutes), *(array("d", column) for column in columns)
            )
        )
    return blocks


async def _next(requests: AsyncIterator[T]) -> T | None:
    return await anext(requests, None)


def _block(series: telemetry_service_pb2.TrafficSeries, source: str, at: str) -> TrafficBlock:
    # Buffers that numpy reads without copying; by element they would cost more than the store does.
    def column(values: Sequence[float]) -> Sequence[float] | None:
        return array("d", values) if values else None

    return TrafficBlock(
        parse(series.workload, "workloads/*", f"{at}.workload")[0],
        source,
        array("q", series.minutes),
        array("d", series.demand_counts),
        column(series.served_counts),
        column(series.rejected_counts),
        column(series.coverages),
    )


def _mapped(messages: Sequence[S], limit: int, read: Callable[[S, str], T]) -> list[T]:
    telemetry.check_count(len(messages), limit)  # before a million of them is read
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
