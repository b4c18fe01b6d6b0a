"""The whole way on a real PostgreSQL: refits, scores as truth arrives, a contest, and what the API tells of it."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from forecrest.v1 import forecast_service_pb2

from controller.adapters.clock import VirtualClock
from controller.adapters.fakes import FakeSignalCache
from controller.adapters.forecaster import FitForecaster
from controller.adapters.postgres import PostgresStore
from controller.api.server import ApiDependencies, serve
from controller.client import Client
from controller.core.resources import TrafficSample
from controller.core.types import CapacityProfile, Event, Trust, Workload
from controller.loop.forecasting import CONTEST_PERIOD, Forecasting
from controller.settings import Settings

START = datetime(2026, 11, 2, tzinfo=UTC)
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
WORKLOAD = Workload("rec", "rec", (CapacityProfile("int8", "L4", 1000.0),), max_replicas=30)
SETTINGS = Settings(forecast_step_s=900, forecast_horizon_s=36 * 3600, forecast_period_s=1800)


def demand(first: int, last: int) -> list[TrafficSample]:
    """A day's wave with a quiet weekend and noise of its own for each minute."""
    minutes = np.arange(first, last)
    week = np.where((minutes // 1440) % 7 < 5, 1.0, 0.6)
    noise = np.exp(0.1 * np.sin(minutes * 12.9898) * np.cos(minutes * 78.233))
    qps = 300.0 * (1.4 + np.sin(2 * np.pi * minutes / 1440)) * week * noise
    return [
        TrafficSample("rec", START + MINUTE * int(k), 60.0 * float(v))
        for k, v in zip(minutes, qps, strict=True)
    ]


async def record(store: PostgresStore, samples: list[TrafficSample]) -> None:
    async with store.unit_of_work() as uow:
        await uow.traffic.upsert(samples)
        await uow.commit()


@pytest.mark.timeout(600)
async def test_forecasts_are_explained_scored_and_compared(postgres_store: PostgresStore) -> None:
    store, learnt = postgres_store, 16 * 1440
    clock = VirtualClock(START + MINUTE * learnt)
    async with store.unit_of_work() as uow:
        await uow.workloads.create(WORKLOAD)
        await uow.commit()
    await record(store, demand(0, learnt))
    forecasting = Forecasting(store, FitForecaster(), clock, SETTINGS)
    sale = Event(
        "sale", START + 17 * DAY, START + 17 * DAY + 2 * HOUR, expected_multiplier=3.0, category="sale"
    )
    events: dict[str, tuple[Event, ...]] = {"rec": (sale,)}
    await forecasting.refresh([WORKLOAD], events)
    hours = 1 + CONTEST_PERIOD // HOUR
    for hour in range(hours):
        await record(store, demand(learnt + 60 * hour, learnt + 60 * (hour + 1)))
        await clock.advance(3600.0)
        await forecasting.refresh([WORKLOAD], events)

    server = await serve(ApiDependencies(store, FakeSignalCache(clock), clock), "127.0.0.1:0")
    async with Client(server.target) as client:
        forecast = await client.forecasts.GetForecast(
            forecast_service_pb2.GetForecastRequest(name="workloads/rec/forecast")
        )
        why = await client.forecasts.ExplainForecast(
            forecast_service_pb2.ExplainForecastRequest(name="workloads/rec/forecast")
        )
        accuracy = await client.forecasts.GetAccuracy(
            forecast_service_pb2.GetAccuracyRequest(name="workloads/rec/accuracy")
        )
    await server.stop(grace_s=0)

    median = next(list(q.qps) for q in forecast.quantiles if q.level == 0.5)
    rows = zip(
        why.baseline_qps, why.trend_qps, why.season_qps, why.event_qps, why.correction_qps, strict=True
    )
    assert median == list(why.median_qps) == [sum(row) for row in rows]
    assert 144 == len(median)
    inside = (sale.start_at - why.start_time.ToDatetime(UTC)) // SETTINGS.forecast_step
    assert why.event_qps[inside] > 100.0
    assert [0.1, 0.5, 0.9, 0.95, 0.99, 0.995, 0.999] == [q.level for q in forecast.quantiles]

    by_lead = {one.lead.ToTimedelta(): one for one in accuracy.live}
    assert [timedelta(0), HOUR, 6 * HOUR] == sorted(by_lead)
    assert 4 * hours == by_lead[timedelta(0)].step_count
    assert 4 * (hours - 1) == by_lead[HOUR].step_count
    assert by_lead[timedelta(0)].weekly_naive_ratio < 1.5
    assert by_lead[timedelta(0)].coverage[-1].share > 0.9
    assert {"ensemble", "recent", "seasonal_naive"} == {score.model for score in accuracy.backtest.scores}
    assert "ensemble" == accuracy.champion.model
    assert "ensemble stays" in accuracy.champion.reason
    assert Trust.DISTRUSTED is not forecasting.trust["rec"]
