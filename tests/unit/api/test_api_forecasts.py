"""ForecastService and TelemetryService over a real channel, on the fakes."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest
from forecrest.v1 import forecast_pb2, forecast_service_pb2, telemetry_service_pb2

from controller.adapters.fakes import FakeSignalCache, FakeStore
from controller.client import ApiError, Client
from controller.core.resources import ForecastRun
from controller.core.types import ForecastBand, ForecastState

Refused = Callable[[Awaitable[object]], Awaitable[ApiError]]
NOW = datetime(2026, 11, 10, 12, 0, tzinfo=UTC)
STEP = timedelta(minutes=5)


async def seed(store: FakeStore, run_id: str = "f1", created_at: datetime = NOW, base: float = 100.0) -> None:
    run = ForecastRun(run_id, "rec", created_at, created_at, 4, (("profile", 1.0),), (("mase", 0.7),))
    band = ForecastBand(
        id=run_id,
        origin_at=created_at,
        start_at=created_at,
        step=STEP,
        levels=(0.1, 0.5, 0.9),
        qps=tuple((base * i, base * i + 10, base * i + 20) for i in range(4)),
        state=ForecastState.READY,
        event_ids=frozenset({"b", "a"}),
    )
    async with store.unit_of_work() as uow:
        await uow.forecasts.save(run, band)
        await uow.commit()


async def test_a_forecast_comes_as_one_series_per_level(client: Client, store: FakeStore) -> None:
    await seed(store)

    forecast = await client.forecasts.GetForecast(
        forecast_service_pb2.GetForecastRequest(name="workloads/rec/forecast")
    )

    assert forecast.state == forecast_pb2.FORECAST_STATE_READY
    assert [(q.level, list(q.qps)) for q in forecast.quantiles] == [
        (0.1, [0, 100, 200, 300]),
        (0.5, [10, 110, 210, 310]),
        (0.9, [20, 120, 220, 320]),
    ]
    assert list(forecast.occurrence_ids) == ["a", "b"]
    assert dict(forecast.model_weights) == {"profile": 1.0}
    assert dict(forecast.scores) == {"mase": 0.7}


async def test_a_window_keeps_the_buckets_it_touches(client: Client, store: FakeStore) -> None:
    await seed(store)

    forecast = await client.forecasts.GetForecast(
        forecast_service_pb2.GetForecastRequest(
            name="workloads/rec/forecast",
            start_time=NOW + timedelta(minutes=7),
            end_time=NOW + timedelta(minutes=10, seconds=1),
        )
    )

    assert forecast.start_time.ToDatetime(tzinfo=UTC) == NOW + STEP
    assert [list(q.qps) for q in forecast.quantiles] == [[100, 200], [110, 210], [120, 220]]


async def test_a_window_beside_the_forecast_is_empty(client: Client, store: FakeStore) -> None:
    await seed(store)

    forecast = await client.forecasts.GetForecast(
        forecast_service_pb2.GetForecastRequest(
            name="workloads/rec/forecast", start_time=NOW + timedelta(days=9)
        )
    )

    assert [list(q.qps) for q in forecast.quantiles] == [[], [], []]


async def test_the_forecast_of_a_past_time_is_read_as_it_was(client: Client, store: FakeStore) -> None:
    await seed(store, "old", NOW - timedelta(hours=2))
    await seed(store, "new", NOW)

    forecast = await client.forecasts.GetForecast(
        forecast_service_pb2.GetForecastRequest(
            name="workloads/rec/forecast", as_of_time=NOW - timedelta(hours=1)
        )
    )

    assert forecast.forecast_id == "old"


async def test_no_forecast_and_no_workload_are_two_answers(client: Client, refused: Refused) -> None:
    reasons = [
        (
            await refused(
                client.forecasts.GetForecast(
                    forecast_service_pb2.GetForecastRequest(name=f"workloads/{name}/forecast")
                )
            )
        ).reason
        for name in ("rec", "nobody")
    ]

    assert reasons == ["FORECAST_NOT_FOUND", "RESOURCE_NOT_FOUND"]


async def test_a_batch_leaves_out_what_does_not_exist(
    client: Client, store: FakeStore, refused: Refused
) -> None:
    await seed(store)
    names = ["workloads/search/forecast", "workloads/rec/forecast"]
    request = forecast_service_pb2.BatchGetForecastsRequest(names=names)

    found = await client.forecasts.BatchGetForecasts(request)
    empty = await refused(client.forecasts.BatchGetForecasts(forecast_service_pb2.BatchGetForecastsRequest()))

    assert [f.name for f in found.forecasts] == ["workloads/rec/forecast"]
    assert [field for field, _ in empty.violations] == ["names"]


def a_sample(minute: int = 0, **changes: object) -> telemetry_service_pb2.TrafficSample:
    fields: dict[str, object] = {
        "workload": "workloads/rec",
        "minute_time": NOW - timedelta(minutes=10) + timedelta(minutes=minute),
        "demand_count": 600.0,
    }
    fields.update(changes)
    return telemetry_service_pb2.TrafficSample(**{k: v for k, v in fields.items() if v is not None})  # type: ignore[arg-type]


def traffic(*samples: telemetry_service_pb2.TrafficSample) -> telemetry_service_pb2.RecordTrafficRequest:
    return telemetry_service_pb2.RecordTrafficRequest(samples=samples, source="gateway")


async def test_recorded_traffic_is_history_and_a_gap_is_unknown(client: Client) -> None:
    await client.telemetry.RecordTraffic(traffic(a_sample(0), a_sample(2, demand_count=0.0)))

    history = await client.forecasts.GetHistory(
        forecast_service_pb2.GetHistoryRequest(
            workload="workloads/rec",
            start_time=NOW - timedelta(minutes=10),
            end_time=NOW - timedelta(minutes=7),
        )
    )

    assert [p.demand_qps if p.HasField("demand_qps") else None for p in history.points] == [10.0, None, 0.0]
    assert history.first_sample_time.ToDatetime(tzinfo=UTC) == NOW - timedelta(minutes=10)


async def test_a_minute_sent_again_replaces_the_first(client: Client, store: FakeStore) -> None:
    written = [
        (await client.telemetry.RecordTraffic(traffic(a_sample(demand_count=count)))).written_count
        for count in (600.0, 1200.0)
    ]

    assert written == [1, 1]
    assert [s.demand_count for s in store.tables.samples.values()] == [1200.0]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"workload": "workloads/nobody"}, "samples[1].workload"),
        ({"workload": "rec"}, "samples[1].workload"),
        ({"workload": None}, "samples[1].workload"),
        ({"minute_time": None}, "samples[1].minute_time"),
        ({"minute_time": NOW - timedelta(seconds=30)}, "samples[1].minute_time"),
        ({"minute_time": NOW + timedelta(minutes=5)}, "samples[1].minute_time"),
        ({"minute_time": NOW - timedelta(days=4000)}, "samples[1].minute_time"),
        ({"minute_time": NOW - timedelta(minutes=10)}, "samples[1].minute_time"),
        ({"demand_count": None}, "samples[1].demand_count"),
        ({"demand_count": float("nan")}, "samples[1].demand_count"),
        ({"demand_count": float("-inf")}, "samples[1].demand_count"),
        ({"demand_count": -1.0}, "samples[1].demand_count"),
        ({"served_count": -1.0}, "samples[1].served_count"),
        ({"rejected_count": float("nan")}, "samples[1].rejected_count"),
        ({"coverage": 0.0}, "samples[1].coverage"),
        ({"coverage": 1.5}, "samples[1].coverage"),
    ],
)
async def test_nothing_of_a_batch_with_a_bad_sample_is_stored(
    client: Client, refused: Refused, store: FakeStore, changes: dict[str, object], field: str
) -> None:
    error = await refused(client.telemetry.RecordTraffic(traffic(a_sample(0), a_sample(1, **changes))))

    assert field in [name for name, _ in error.violations]
    assert store.tables.samples == {}


async def test_a_batch_has_bounds(client: Client, refused: Refused) -> None:
    empty = await refused(client.telemetry.RecordTraffic(traffic()))
    full = await refused(client.telemetry.RecordTraffic(traffic(*[a_sample()] * 10_001)))

    assert ["samples"] == [f for f, _ in empty.violations] == [f for f, _ in full.violations]


async def test_a_batch_of_bad_samples_is_answered_briefly(client: Client, refused: Refused) -> None:
    bad = [a_sample(demand_count=-1.0) for _ in range(5000)]

    error = await refused(client.telemetry.RecordTraffic(traffic(*bad)))

    assert 1 <= len(error.violations) <= 25


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"step": timedelta(seconds=30)}, "step"),
        ({"step": timedelta(seconds=90)}, "step"),
        ({"step": timedelta(days=2)}, "step"),
        ({"start_time": NOW, "end_time": NOW}, "end_time"),
        ({"start_time": NOW - timedelta(days=30)}, "step"),
    ],
)
async def test_a_bad_window_of_history_is_refused(
    client: Client, refused: Refused, fields: dict[str, object], field: str
) -> None:
    request = forecast_service_pb2.GetHistoryRequest(workload="workloads/rec", **fields)  # type: ignore[arg-type]

    error = await refused(client.forecasts.GetHistory(request))

    assert field in [name for name, _ in error.violations]


async def test_history_of_an_unknown_workload_is_not_found(client: Client, refused: Refused) -> None:
    request = forecast_service_pb2.GetHistoryRequest(workload="workloads/nobody")

    assert (await refused(client.forecasts.GetHistory(request))).code == "NOT_FOUND"


def a_backlog(**changes: object) -> telemetry_service_pb2.RecordBacklogRequest:
    fields: dict[str, object] = {"workload": "workloads/rec", "source": "kafka", "count": 40.0}
    fields.update(changes)
    sample = telemetry_service_pb2.BacklogSample(**{k: v for k, v in fields.items() if v is not None})  # type: ignore[arg-type]
    return telemetry_service_pb2.RecordBacklogRequest(samples=[sample])


async def test_backlogs_of_a_workload_add_up_until_they_expire(
    client: Client, signals: FakeSignalCache, clock: "object"
) -> None:
    await client.telemetry.RecordBacklog(a_backlog())
    await client.telemetry.RecordBacklog(a_backlog(source="sqs", count=2.0, ttl=timedelta(seconds=60)))
    together = await signals.get_backlog(["rec"])
    clock.at = NOW + timedelta(seconds=45)  # type: ignore[attr-defined]
    later = await signals.get_backlog(["rec"])

    assert (together, later) == ({"rec": 42.0}, {"rec": 2.0})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"workload": "workloads/nobody"}, "samples[0].workload"),
        ({"source": None}, "samples[0].source"),
        ({"count": None}, "samples[0].count"),
        ({"count": float("nan")}, "samples[0].count"),
        ({"count": -1.0}, "samples[0].count"),
        ({"ttl": timedelta(hours=1)}, "samples[0].ttl"),
        ({"observe_time": NOW - timedelta(seconds=31)}, "samples[0].observe_time"),
        ({"observe_time": NOW + timedelta(minutes=2)}, "samples[0].observe_time"),
    ],
)
async def test_a_bad_backlog_is_refused(
    client: Client, refused: Refused, signals: FakeSignalCache, changes: dict[str, object], field: str
) -> None:
    error = await refused(client.telemetry.RecordBacklog(a_backlog(**changes)))

    assert field in [name for name, _ in error.violations]
    assert await signals.get_backlog(["rec"]) == {}
