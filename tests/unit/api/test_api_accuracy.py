"""What forecasts are made of, how good they are, and following them; over a real channel, on the fakes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from forecrest.v1 import forecast_pb2, forecast_service_pb2

from controller.accuracy import (
    Backtest,
    HourScore,
    LeadScore,
    ModelScore,
    NaiveScore,
    Parts,
    Standing,
    Switch,
)
from controller.adapters.fakes import FakeSignalCache, FakeStore
from controller.api.limits import ApiLimits
from controller.api.server import ApiDependencies, RunningServer, serve
from controller.client import ApiError, Client
from controller.core.resources import ForecastRun
from controller.core.types import ForecastBand, ForecastState, Trust
from controller.usecases.topics import CHANGES
from tests.unit.api.conftest import NOW, SetClock

Refused = Callable[[Awaitable[object]], Awaitable[ApiError]]
STEP = timedelta(minutes=5)
HOUR = timedelta(hours=1)
NAME = "workloads/rec/forecast"
LEVELS = (0.1, 0.5, 0.9)


async def make(
    store: FakeStore,
    signals: FakeSignalCache,
    run_id: str,
    at: datetime = NOW,
    *,
    parts: bool = True,
    workload: str = "rec",
) -> None:
    """Store a forecast as the loop does, and tell watchers."""
    run = ForecastRun(run_id, workload, at, at, 2, (("additive", 1.0),))
    rows = ((50.0, 100.25, 150.0), (80.0, 200.5, 350.0))
    band = ForecastBand(run_id, at, at, STEP, LEVELS, rows, ForecastState.READY, frozenset({"sale"}))
    made_of = Parts(
        forecast_id=run_id,
        workload=workload,
        created_at=at,
        model="recent",
        model_reason="it won",
        sentence="Highest at noon.",
        baseline=120.0,
        trend=(0.5, 0.5),
        event=(0.0, 64.0),
        correction=(-3.125, 1.0),
    )
    async with store.unit_of_work() as uow:
        await uow.forecasts.save(run, band)
        if parts:
            await uow.accuracy.put_parts(made_of)
        await uow.commit()
    if signals.available:
        await signals.publish(CHANGES, b"workloads/rec/forecast")


async def explain(client: Client, **fields: object) -> forecast_pb2.ForecastExplanation:
    request = forecast_service_pb2.ExplainForecastRequest(**{"name": NAME, **fields})  # type: ignore[arg-type]
    return await client.forecasts.ExplainForecast(request)


async def accuracy(client: Client, **fields: object) -> forecast_pb2.Accuracy:
    request = forecast_service_pb2.GetAccuracyRequest(**{"name": "workloads/rec/accuracy", **fields})  # type: ignore[arg-type]
    return await client.forecasts.GetAccuracy(request)


def watch(client: Client, **fields: object) -> AsyncIterator[forecast_service_pb2.WatchForecastResponse]:
    request = forecast_service_pb2.WatchForecastRequest(**{"name": NAME, **fields})  # type: ignore[arg-type]
    return aiter(client.forecasts.WatchForecast(request))


async def take(stream: AsyncIterator[Any], count: int) -> list[Any]:
    async with asyncio.timeout(60):
        return [await anext(stream) for _ in range(count)]


# ---------------------------------------------------------------- explanations


async def test_the_parts_of_a_forecast_add_up_to_its_median_exactly(
    client: Client, store: FakeStore, signals: FakeSignalCache
) -> None:
    await make(store, signals, "f1")

    found = await explain(client)

    rows = zip(
        found.baseline_qps,
        found.trend_qps,
        found.season_qps,
        found.event_qps,
        found.correction_qps,
        strict=True,
    )
    assert [100.25, 200.5] == list(found.median_qps) == [sum(row) for row in rows]
    assert ("f1", "recent", "it won", ["sale"]) == (
        found.forecast_id,
        found.model,
        found.model_reason,
        list(found.occurrence_ids),
    )
    assert found.state == forecast_pb2.FORECAST_STATE_READY


async def test_a_past_forecast_is_explained_as_it_was(
    client: Client, store: FakeStore, signals: FakeSignalCache
) -> None:
    await make(store, signals, "old", NOW - 2 * HOUR)
    await make(store, signals, "new")

    assert "old" == (await explain(client, as_of_time=NOW - HOUR)).forecast_id
    assert "new" == (await explain(client)).forecast_id


async def test_what_cannot_be_explained_says_why(
    client: Client, store: FakeStore, signals: FakeSignalCache, refused: Refused
) -> None:
    none = await refused(explain(client))
    await make(store, signals, "f1", parts=False)
    gone = await refused(explain(client))
    nobody = await refused(explain(client, name="workloads/nobody/forecast"))
    bad = await refused(explain(client, name="workloads/rec"))

    assert ["FORECAST_NOT_FOUND", "EXPLANATION_NOT_FOUND", "RESOURCE_NOT_FOUND"] == [
        error.reason for error in (none, gone, nobody)
    ]
    assert {"NOT_FOUND"} == {error.code for error in (none, gone, nobody)}
    assert ["name"] == [field for field, _ in bad.violations]


# ---------------------------------------------------------------- accuracy


def an_hour(hours_ago: int) -> HourScore:
    lead = LeadScore(
        timedelta(0), 12, 24.0, (1, 6, 12), 60.0, 1200.0, NaiveScore(12, 48.0, 24.0), NaiveScore()
    )
    return HourScore(NOW - hours_ago * HOUR, HOUR, LEVELS, (lead,))


async def test_accuracy_tells_live_scores_the_champion_and_the_backtest(
    client: Client, store: FakeStore
) -> None:
    scores = (
        ModelScore("recent", "day", 288, 3.5, 0.7, None, (0.1, 0.5, 0.9)),
        ModelScore("ensemble", "day", 288, 4.5, None, 0.02, (0.2, 0.6, 1.0)),
    )
    standing = Standing(
        workload="rec",
        champion="recent",
        since_at=NOW - HOUR,
        reason="it won",
        challenger="ensemble",
        win_count=1,
        switches=(Switch(NOW - HOUR, "ensemble", "recent", "it won"),),
        backtest=Backtest(NOW - HOUR, 4, 24 * HOUR, LEVELS, scores),
        trust=Trust.DISTRUSTED,
        trust_reason="far off",
    )
    async with store.unit_of_work() as uow:
        await uow.accuracy.put_scores("rec", [an_hour(3), an_hour(2), an_hour(100)])
        await uow.accuracy.put_standing(standing)
        await uow.commit()

    found = await accuracy(client, window=timedelta(days=2))

    (live,) = found.live
    assert (24, 2.0, 0.5, 0.05) == (live.step_count, live.pinball_qps, live.daily_naive_ratio, live.bias)
    assert not live.HasField("weekly_naive_ratio")
    assert [(0.1, 1 / 12), (0.5, 0.5), (0.9, 1.0)] == [(c.level, c.share) for c in live.coverage]
    assert NOW - 3 * HOUR == live.start_time.ToDatetime(UTC)
    assert NOW - HOUR == live.end_time.ToDatetime(UTC)
    assert (forecast_pb2.FORECAST_TRUST_DISTRUSTED, "far off") == (found.trust, found.trust_sentence)
    assert ("recent", "ensemble", 1) == (
        found.champion.model,
        found.champion.challenger,
        found.champion.win_count,
    )
    assert ["recent"] == [s.to_model for s in found.champion.switches]
    assert [("recent", 3.5), ("ensemble", 4.5)] == [(s.model, s.pinball_qps) for s in found.backtest.scores]
    assert [True, False] == [s.HasField("naive_ratio") for s in found.backtest.scores]


async def test_before_anything_is_scored_accuracy_is_empty_and_says_who_begins(client: Client) -> None:
    found = await accuracy(client)

    assert [] == list(found.live)
    assert not found.HasField("backtest")
    assert ("ensemble", forecast_pb2.FORECAST_TRUST_UNPROVEN) == (found.champion.model, found.trust)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": "workloads/rec"}, "name"),
        ({"window": timedelta(minutes=59)}, "window"),
        ({"window": timedelta(days=15)}, "window"),
    ],
)
async def test_a_bad_question_about_accuracy_is_refused(
    client: Client, refused: Refused, fields: dict[str, object], field: str
) -> None:
    assert [field] == [name for name, _ in (await refused(accuracy(client, **fields))).violations]


async def test_accuracy_of_an_unknown_workload_is_not_found(client: Client, refused: Refused) -> None:
    assert "NOT_FOUND" == (await refused(accuracy(client, name="workloads/nobody/accuracy"))).code


# ---------------------------------------------------------------- following


async def test_a_watcher_gets_the_newest_forecast_and_each_newer_one(
    client: Client, store: FakeStore, signals: FakeSignalCache
) -> None:
    await make(store, signals, "f1", NOW - HOUR)
    stream = watch(client)

    (first,) = await take(stream, 1)
    await make(store, signals, "other", workload="search")
    await make(store, signals, "f2")
    (second,) = await take(stream, 1)

    assert ("f1", True) == (first.forecast.forecast_id, first.snapshot)
    assert ("f2", False) == (second.forecast.forecast_id, second.snapshot)
    assert [100.25, 200.5] == list(second.forecast.quantiles[1].qps)


async def test_before_the_first_forecast_a_watcher_waits_for_it(
    client: Client, store: FakeStore, signals: FakeSignalCache
) -> None:
    stream = watch(client)
    waiting = asyncio.ensure_future(anext(stream))
    signals.available = False  # found out by polling, too

    await make(store, signals, "f1")

    async with asyncio.timeout(60):
        response = await waiting
    assert "f1" == response.forecast.forecast_id


async def test_a_watcher_that_resumes_is_told_what_is_new_alone(
    client: Client, store: FakeStore, signals: FakeSignalCache
) -> None:
    await make(store, signals, "f1", NOW - HOUR)
    (first,) = await take(watch(client), 1)

    again = watch(client, resume_token=first.resume_token)
    waiting = asyncio.ensure_future(anext(again))
    await make(store, signals, "f2")
    async with asyncio.timeout(60):
        second = await waiting

    assert ("f2", False) == (second.forecast.forecast_id, second.snapshot)


@pytest.mark.parametrize("token", ["nonsense", "ZXZlbnQKYQpi", "Zm9yZWNhc3QKc2VhcmNoCmYx"])
async def test_a_token_of_something_else_is_refused(client: Client, refused: Refused, token: str) -> None:
    error = await refused(anext(watch(client, resume_token=token)))

    assert ["resume_token"] == [field for field, _ in error.violations]


async def test_an_unknown_workload_cannot_be_watched(client: Client, refused: Refused) -> None:
    assert "NOT_FOUND" == (await refused(anext(watch(client, name="workloads/nobody/forecast")))).code


async def test_closed_watches_make_room_for_others(
    client: Client, store: FakeStore, signals: FakeSignalCache, refused: Refused
) -> None:
    await make(store, signals, "f1")
    request = forecast_service_pb2.WatchForecastRequest(name=NAME)
    calls = [client.forecasts.WatchForecast(request) for _ in range(3)]
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

    assert ("RESOURCE_EXHAUSTED", "TOO_MANY_STREAMS") == (error.code, error.reason)
    async with asyncio.timeout(60):
        await admitted()


async def test_the_client_follows_a_forecast_through_a_restart(
    store: FakeStore, signals: FakeSignalCache, server: RunningServer, clock: SetClock
) -> None:
    await make(store, signals, "f1", NOW - HOUR)
    async with Client(server.target) as client:
        stream = client.watch_forecast(NAME)
        (first,) = await take(stream, 1)
        await server.stop(grace_s=5)
        again = await serve(ApiDependencies(store, signals, clock), server.target)
        await make(store, signals, "f2")
        (second,) = await take(stream, 1)
        await again.stop(grace_s=0)

    assert ["f1", "f2"] == [first.forecast.forecast_id, second.forecast.forecast_id]


# ---------------------------------------------------------------- the newest forecast


@pytest.fixture
def limits() -> ApiLimits:
    return ApiLimits(
        poll_period_s=0.05, stream_queue_max=5, streams_max=3, health_period_s=0.05, forecast_cache_s=0.0
    )


def newest(
    client: Client, timeout: float = 30
) -> grpc.aio.UnaryUnaryCall[forecast_service_pb2.GetForecastRequest, forecast_pb2.Forecast]:
    return client.forecasts.GetForecast(forecast_service_pb2.GetForecastRequest(name=NAME), timeout=timeout)


async def test_a_kept_forecast_is_the_newest_there_is(
    client: Client, store: FakeStore, signals: FakeSignalCache
) -> None:
    await make(store, signals, "f1", NOW - HOUR)
    first, again = await newest(client), await newest(client)
    await make(store, signals, "f2")

    assert first == again
    assert ("f1", "f2") == (first.forecast_id, (await newest(client)).forecast_id)


async def test_while_the_store_is_away_the_last_forecast_is_told_and_marked(
    client: Client, store: FakeStore, signals: FakeSignalCache, refused: Refused
) -> None:
    await make(store, signals, "f1")
    fresh = await newest(client)
    store.available = False

    stale = await newest(client, timeout=30)
    store.available = True

    assert not fresh.HasField("stale_since_time")
    assert NOW == stale.stale_since_time.ToDatetime(UTC)
    stale.ClearField("stale_since_time")
    assert fresh == stale
    assert not (await newest(client)).HasField("stale_since_time")


async def test_a_caller_who_gives_up_takes_nobody_along(
    client: Client, store: FakeStore, signals: FakeSignalCache
) -> None:
    await make(store, signals, "f1")
    await store.writing.acquire()  # whoever writes waits; readers do not
    first, second = newest(client), newest(client)
    first.cancel()

    assert "f1" == (await second).forecast_id
    with pytest.raises(asyncio.CancelledError):
        await first
    store.writing.release()
