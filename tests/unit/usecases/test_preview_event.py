"""What an event would cost and whether its capacity would be there."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from controller.adapters.clock import VirtualClock
from controller.adapters.fakes import FakeForecaster, FakeSignalCache, FakeStore
from controller.core.resources import ForecastRun, TrafficEvent, TrafficSample
from controller.core.types import (
    CapacityPlan,
    CapacityProfile,
    DemandObservation,
    Floor,
    ForecastBand,
    ForecastState,
    QuotaPool,
    Workload,
)
from controller.usecases.errors import InvalidError
from controller.usecases.preview_event import PreviewSettings, WorkloadPreview, preview_event, replica_hours

NOW = datetime(2026, 11, 10, 12, 0, tzinfo=UTC)
START = datetime(2026, 11, 10, 16, 0, tzinfo=UTC)
STEP = timedelta(minutes=5)


def an_event(**changes: object) -> TrafficEvent:
    base = TrafficEvent(
        id="e",
        workloads=("rec",),
        start_at=START,
        end_at=START + timedelta(hours=2),
        time_zone="UTC",
        expected_peak_qps=20_000.0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.fixture
def store() -> FakeStore:
    found = FakeStore()
    profile = CapacityProfile("rec-int8", "L4", 1000.0, gpus_per_replica=2)
    found.tables.workloads["rec"] = Workload("rec", "recommender", (profile,), max_replicas=40)
    return found


async def forecast(store: FakeStore, qps: float = 4000.0, event_ids: frozenset[str] = frozenset()) -> None:
    run = ForecastRun("f", "rec", NOW, NOW, 288)
    levels = (0.1, 0.5, 0.9, 0.99)
    rows = ((qps * 0.8, qps, qps * 1.1, qps * 1.2),) * 288
    band = ForecastBand("f", NOW, NOW, STEP, levels, rows, ForecastState.READY, event_ids)
    async with store.unit_of_work() as uow:
        await uow.forecasts.save(run, band)
        await uow.commit()


async def preview(
    store: FakeStore,
    event: TrafficEvent,
    *,
    forecaster: FakeForecaster | None = None,
    pools: tuple[QuotaPool, ...] = (),
    signals: FakeSignalCache | None = None,
) -> WorkloadPreview:
    cache = signals or FakeSignalCache(VirtualClock(NOW))
    result = await preview_event(store, cache, forecaster, PreviewSettings(pools=pools), event, NOW)
    (only,) = result.workloads
    return only


async def test_the_extra_is_what_runs_on_top_of_the_forecast(store: FakeStore) -> None:
    await forecast(store)

    found = await preview(store, an_event())

    assert found.baseline_replicas < found.replicas
    assert found.replicas >= 20  # 20 000 QPS at 1000 per replica, and room for waiting
    assert found.unmet_replicas == 0
    assert found.prewarm_start_at is not None
    assert NOW < found.prewarm_start_at < found.deadline_at < START
    # At least the event's two hours, at most those and the prewarm of a few minutes.
    extra = found.replicas - found.baseline_replicas
    assert 2 * extra <= found.extra_replica_hours < 2.5 * extra
    assert found.extra_gpu_hours == pytest.approx(2 * found.extra_replica_hours)
    assert "prewarm begins at 2026-11-10" in found.sentence


async def test_the_curve_meets_the_expected_peak_and_keeps_its_spread(store: FakeStore) -> None:
    await forecast(store)

    found = await preview(store, an_event())

    assert found.curve is not None
    assert (found.curve.start_at, len(found.curve.qps)) == (START, 24)
    assert found.curve.qps[0] == pytest.approx((16_000, 20_000, 22_000, 24_000))


async def test_a_ramp_climbs_to_the_multiplier(store: FakeStore) -> None:
    await forecast(store)

    found = await preview(
        store, an_event(expected_peak_qps=None, expected_multiplier=3.0, ramp=timedelta(hours=1))
    )

    assert found.curve is not None
    medians = [row[1] for row in found.curve.qps]
    assert medians == sorted(medians)
    assert medians[0] < 5000
    assert medians[-1] == pytest.approx(12_000)


async def test_what_max_replicas_cuts_off_is_said(store: FakeStore) -> None:
    await forecast(store)

    found = await preview(store, an_event(expected_peak_qps=60_000.0))

    assert found.replicas == 40
    assert found.unmet_replicas >= 20
    assert "beyond max_replicas or quota" in found.sentence


async def test_an_override_lifts_max_replicas_for_the_event(store: FakeStore) -> None:
    found = await preview(store, an_event(expected_peak_qps=60_000.0, max_replicas_override=90))

    assert found.unmet_replicas == 0
    assert found.replicas > 60


async def test_quota_of_that_time_counts_with_what_others_hold(store: FakeStore) -> None:
    profile = CapacityProfile("rank", "L4", 500.0)
    store.tables.workloads["rec"] = replace(store.tables.workloads["rec"], quota_pool="gpus")
    store.tables.workloads["search"] = Workload("search", "ranker", (profile,), quota_pool="gpus")
    busy = Floor(10, NOW, START - timedelta(hours=1), START + timedelta(hours=1), "its own event")
    plan = CapacityPlan("search", 1, NOW, (busy,), None, NOW, STEP, (), 0.99)
    async with store.unit_of_work() as uow:
        await uow.decisions.save_plan(plan)
        await uow.commit()

    found = await preview(store, an_event(), pools=(QuotaPool("gpus", nominal_gpus=40),))

    assert found.replicas == 15  # (40 GPUs - 10 of search) / 2 per replica
    assert found.unmet_replicas > 0


async def test_without_forecast_a_multiplier_cannot_be_sized_and_says_so(store: FakeStore) -> None:
    found = await preview(store, an_event(expected_peak_qps=None, expected_multiplier=3.0))

    assert found.forecast_state is None
    assert found.curve is None
    assert "cannot be sized" in found.sentence


async def test_without_forecast_present_demand_carries_a_multiplier(store: FakeStore) -> None:
    signals = FakeSignalCache(VirtualClock(NOW))
    demand = DemandObservation(NOW, 4000.0, None, 0.0, 1, 1, timedelta(minutes=1))
    await signals.put_demand("rec", demand, timedelta(minutes=1))

    found = await preview(store, an_event(expected_peak_qps=None, expected_multiplier=3.0), signals=signals)

    assert found.replicas > 12


async def test_an_event_that_starts_too_soon_says_that_it_may_be_late(store: FakeStore) -> None:
    found = await preview(store, an_event(start_at=NOW + timedelta(seconds=10)))

    assert "they may be late" in found.sentence


async def test_an_event_within_what_is_planned_costs_nothing(store: FakeStore) -> None:
    await forecast(store, qps=30_000.0)

    found = await preview(store, an_event(expected_peak_qps=100.0))

    assert found.prewarm_start_at is None
    assert found.extra_replica_hours == 0.0
    assert "planned anyway" in found.sentence


async def test_an_overlapping_event_is_the_baseline(store: FakeStore) -> None:
    async with store.unit_of_work() as uow:
        await uow.events.create(an_event(id="other"))
        await uow.commit()

    found = await preview(store, an_event())

    assert found.baseline_replicas == found.replicas


async def test_the_registered_event_itself_is_not_counted_twice(store: FakeStore) -> None:
    async with store.unit_of_work() as uow:
        await uow.events.create(an_event())
        await uow.commit()

    found = await preview(store, an_event(expected_peak_qps=30_000.0))

    assert found.baseline_replicas == 1


async def test_a_forecaster_is_asked_with_the_event_among_the_known(store: FakeStore) -> None:
    await forecast(store)
    async with store.unit_of_work() as uow:
        samples = [TrafficSample("rec", NOW - timedelta(minutes=m), 60 * 6000.0) for m in range(1, 121)]
        await uow.traffic.upsert(samples)
        await uow.commit()

    found = await preview(
        store, an_event(expected_peak_qps=None, expected_multiplier=2.0), forecaster=FakeForecaster()
    )

    assert found.curve is not None
    assert found.curve.qps[0][1] == pytest.approx(
        12_000
    )  # twice the 6000 QPS that history shows, not the stored 4000


async def test_a_preview_refuses_what_registration_refuses(store: FakeStore) -> None:
    with pytest.raises(InvalidError, match=r"event\.workloads\[0\]"):
        await preview(store, an_event(workloads=("nobody",)))
    with pytest.raises(InvalidError, match=r"event\.end_time"):
        await preview(store, an_event(end_at=START))


async def test_a_preview_changes_nothing(store: FakeStore) -> None:
    await forecast(store)
    before = store.tables

    await preview(store, an_event())

    assert store.tables is before


def test_replica_hours_count_from_the_order_and_overlapping_floors_once() -> None:
    # 5 replicas from 0 h to 4 h and 8 from 1 h to 2 h, above a minimum of 2: 3*4 + 3*1 = 15.
    floors = tuple(
        Floor(count, NOW + timedelta(hours=a), NOW + timedelta(hours=a), NOW + timedelta(hours=b), "")
        for count, a, b in ((5, 0, 4), (8, 1, 2))
    )
    plan = CapacityPlan("rec", 1, NOW, floors, None, NOW, STEP, (), 0.99)

    assert replica_hours(plan, 2, NOW, NOW + timedelta(hours=9)) == pytest.approx(15.0)
    assert replica_hours(plan, 2, NOW + timedelta(hours=1), NOW + timedelta(hours=2)) == pytest.approx(6.0)
    assert replica_hours(plan, 9, NOW, NOW + timedelta(hours=9)) == 0.0
