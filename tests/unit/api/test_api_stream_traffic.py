"""Traffic in bulk over a real channel: answers in order, refusals by field, streams that end and are opened again."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from typing import Any

import grpc
import pytest
from forecrest.v1.telemetry_service_pb2 import StreamTrafficRequest, TrafficSeries

from controller.adapters.fakes import FakeSignalCache, FakeStore
from controller.api.limits import ApiLimits
from controller.api.server import ApiDependencies, RunningServer, serve
from controller.client import Client, explain
from controller.usecases import telemetry
from tests.unit.api.conftest import NOW, SetClock

FIRST = int((NOW - timedelta(hours=1)).timestamp()) // 60
Change = Callable[[TrafficSeries], object]


@pytest.fixture
def limits() -> ApiLimits:
    return ApiLimits(ingest_streams_max=2)


def series(*demand: float, workload: str = "rec", start: int = 0) -> TrafficSeries:
    return TrafficSeries(
        workload=f"workloads/{workload}",
        minutes=range(FIRST + start, FIRST + start + len(demand)),
        demand_counts=demand,
    )


def batch(*given: TrafficSeries, number: int = 1, source: str = "gateway") -> StreamTrafficRequest:
    return StreamTrafficRequest(batch=number, source=source, series=given)


async def each(batches: Sequence[StreamTrafficRequest]) -> AsyncIterator[StreamTrafficRequest]:
    for one in batches:
        yield one


async def send(client: Client, *batches: StreamTrafficRequest) -> list[tuple[int, int]]:
    async with asyncio.timeout(60):
        return [(a.batch, a.written_count) async for a in client.stream_traffic(each(batches))]


def stored(store: FakeStore, workload: str = "rec") -> dict[int, float]:
    return {
        int(at.timestamp()) // 60 - FIRST: sample.demand_count
        for (name, at), sample in sorted(store.tables.samples.items())
        if name == workload
    }


async def test_batches_are_answered_in_order_with_what_was_stored(client: Client, store: FakeStore) -> None:
    batches = [
        batch(series(float(n), start=n), series(1.0, 2.0, workload="search"), number=n) for n in range(9)
    ]

    assert await send(client, *batches) == [(n, 3) for n in range(9)]
    assert stored(store) == {n: float(n) for n in range(9)}
    assert stored(store, "search") == {0: 1.0, 1: 2.0}


async def test_late_repeated_and_unordered_batches_end_with_the_newest_word(
    client: Client, store: FakeStore
) -> None:
    await send(
        client, batch(series(1.0, 2.0, start=5)), batch(series(3.0, start=0)), batch(series(4.0, start=5))
    )

    assert stored(store) == {0: 3.0, 5: 4.0, 6: 2.0}


async def test_optional_columns_reach_the_store(client: Client, store: FakeStore) -> None:
    given = series(9.0, 8.0)
    given.served_counts.extend([7.0, math.nan])
    given.rejected_counts.extend([math.nan, 1.0])
    given.coverages.extend([0.5, 1.0])
    await send(client, batch(given))

    found = [
        (s.served_count, s.rejected_count, s.coverage, s.source)
        for _, s in sorted(store.tables.samples.items())
    ]
    assert found == [(7.0, None, 0.5, "gateway"), (None, 1.0, 1.0, "gateway")]


def minutes(*values: int) -> Change:
    def change(given: TrafficSeries) -> None:
        del given.minutes[:]
        given.minutes.extend(values)

    return change


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda s: s.demand_counts.append(1.0), "demand_counts"),
        (lambda s: s.demand_counts.__setitem__(1, math.nan), "demand_counts[1]"),
        (lambda s: s.demand_counts.__setitem__(1, math.inf), "demand_counts[1]"),
        (lambda s: s.demand_counts.__setitem__(0, -1.0), "demand_counts[0]"),
        (lambda s: s.demand_counts.__setitem__(0, 1e13), "demand_counts[0]"),
        (lambda s: s.served_counts.append(1.0), "served_counts"),
        (lambda s: s.served_counts.extend([0.0, -1.0]), "served_counts[1]"),
        (lambda s: s.rejected_counts.extend([0.0, math.inf]), "rejected_counts[1]"),
        (lambda s: s.coverages.extend([0.0, 1.0]), "coverages[0]"),
        (lambda s: s.coverages.extend([1.0, math.nan]), "coverages[1]"),
        (minutes(FIRST, FIRST), "minutes[1]"),
        (minutes(FIRST + 1, FIRST), "minutes[1]"),
        (minutes(FIRST, FIRST + 100), "minutes[1]"),
        (minutes(FIRST, 2**63 - 1), "minutes[1]"),
        (minutes(-(2**63), FIRST), "minutes[0]"),
        (minutes(1, FIRST), "minutes[0]"),
        (lambda s: setattr(s, "workload", "rec"), "workload"),
        (lambda s: setattr(s, "workload", "workloads/nobody"), "workload"),
        (lambda s: setattr(s, "workload", "workloads/search"), "workload"),
    ],
)
async def test_a_bad_series_ends_the_stream_by_name_and_leaves_what_was_answered(
    client: Client, store: FakeStore, change: Change, field: str
) -> None:
    bad = series(1.0, 2.0)
    change(bad)
    sent = [batch(series(5.0)), batch(series(1.0, workload="search"), bad, number=2), batch(series(6.0))]
    answers = client.stream_traffic(each(sent))

    assert (await anext(answers)).batch == 1
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await anext(answers)
    assert [f for f, _ in explain(caught.value).violations] == [f"series[1].{field}"]
    assert stored(store) == {0: 5.0}
    assert stored(store, "search") == {}


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (batch(), "series"),
        (batch(series(1.0), source=""), "source"),
        (batch(*[series(1.0)] * (telemetry.SERIES_MAX + 1)), "series"),
        (batch(series(*[1.0] * (telemetry.BLOCK_SAMPLES_MAX + 1))), "series"),
    ],
)
async def test_batches_have_bounds(client: Client, bad: StreamTrafficRequest, field: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await send(client, bad)

    assert [f for f, _ in explain(caught.value).violations] == [field]


async def test_bytes_that_are_no_batch_are_refused(server: RunningServer) -> None:
    async with grpc.aio.insecure_channel(server.target) as channel:
        call: Any = channel.stream_stream("/forecrest.v1.TelemetryService/StreamTraffic")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call(each([b"\xff\xff"])):  # type: ignore[list-item]
                pass

    assert explain(caught.value).reason == "MALFORMED_MESSAGE"


async def test_streams_beyond_the_limit_are_refused_and_places_come_free(
    client: Client, server: RunningServer
) -> None:
    calls: list[Any] = [client.telemetry.StreamTraffic() for _ in range(2)]
    async with asyncio.timeout(60):
        for call in calls:
            await call.write(batch(series(1.0)))
            await call.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await send(client, batch(series(1.0)))
        await calls[0].done_writing()
        assert await calls[0].read() is grpc.aio.EOF

        assert explain(caught.value).reason == "TOO_MANY_STREAMS"
        assert await send(client, batch(series(1.0))) == [(1, 1)]
    calls[1].cancel()


async def test_an_outage_of_the_store_is_waited_for_and_nothing_is_lost_or_answered_early(
    client: Client, store: FakeStore
) -> None:
    answered = asyncio.Event()
    numbers: list[int] = []

    async def batches() -> AsyncIterator[StreamTrafficRequest]:
        yield batch(series(1.0, start=0), number=0)
        await answered.wait()
        store.available = False
        yield batch(series(2.0, start=1), number=1)
        asyncio.get_running_loop().call_later(0.5, setattr, store, "available", True)
        yield batch(series(3.0, start=2), number=2)

    async with asyncio.timeout(60):
        async for answer in client.stream_traffic(batches()):
            assert store.available
            numbers.append(answer.batch)
            answered.set()

    assert numbers == [0, 1, 2]
    assert stored(store) == {0: 1.0, 1: 2.0, 2: 3.0}


async def test_a_stopping_server_ends_its_streams_and_the_next_one_takes_over(
    server: RunningServer, client: Client, store: FakeStore, signals: FakeSignalCache, clock: SetClock
) -> None:
    answered = asyncio.Event()
    numbers: list[int] = []
    second: list[RunningServer] = []

    async def batches() -> AsyncIterator[StreamTrafficRequest]:
        yield batch(series(1.0, start=0), number=0)
        await answered.wait()
        # With a grace of an hour: the stream ends because it is told to, not because time is up.
        await server.stop(grace_s=3600)
        second.append(await serve(ApiDependencies(store, signals, clock), server.target))
        yield batch(series(2.0, start=1), number=1)

    async with asyncio.timeout(60):
        async for answer in client.stream_traffic(batches()):
            numbers.append(answer.batch)
            answered.set()
    await second[0].stop(grace_s=0)

    assert numbers == [0, 1]
    assert stored(store) == {0: 1.0, 1: 2.0}


async def test_a_sender_who_goes_away_is_no_failure_and_leaves_its_place(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(60):
        for _ in range(4):  # more than there are places
            call: Any = client.telemetry.StreamTraffic()
            await call.write(batch(series(1.0)))
            await call.read()
            call.cancel()
            while True:  # the server learns of it a moment later
                try:
                    assert await send(client, batch(series(1.0))) == [(1, 1)]
                    break
                except grpc.aio.AioRpcError as error:
                    if explain(error).reason != "TOO_MANY_STREAMS":
                        raise

    assert "unexpected failure" not in caplog.text
