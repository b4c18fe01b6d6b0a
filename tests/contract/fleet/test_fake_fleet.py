"""The written fakes of the fleet do what their ports promise."""

from datetime import UTC, datetime, timedelta

import pytest

from controller.adapters.clock import VirtualClock
from controller.adapters.fakes import FakeActuator, FakeDemandMeter, FakeForecaster
from controller.core.resources import TrafficSample
from controller.core.types import CapacityProfile, DemandObservation, ForecastState, Stage, Trust, Workload
from controller.ports import (
    Actuator,
    DemandMeterPort,
    ForecastPort,
    PoolView,
    StaleFenceError,
    UnavailableError,
)

MIDNIGHT = datetime(2026, 11, 11, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
WORKLOAD = Workload("w", "dlrm", (CapacityProfile("dlrm-int8", "H200", 2200.0),))


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(MIDNIGHT)


async def view(actuator: Actuator) -> PoolView:
    return (await actuator.observe([WORKLOAD]))["w"]


async def test_replicas_pass_every_stage_on_the_way_to_warm(clock: VirtualClock) -> None:
    actuator = FakeActuator(clock)
    await actuator.scale(WORKLOAD, 2, fence=1)
    seen: list[Stage] = []
    for _ in range(10):
        seen += [(await view(actuator)).replicas[0].stage]
        await clock.advance(1)

    assert list(dict.fromkeys(seen)) == [
        Stage.ORDERED,
        Stage.SCHEDULED,
        Stage.LOADED,
        Stage.WARMED,
        Stage.VERIFIED,
    ]
    replica = (await view(actuator)).replicas[1]
    assert (replica.warm, replica.stage_at) == (True, MIDNIGHT + timedelta(seconds=8))


async def test_scaling_keeps_the_oldest_and_replacing_starts_anew(clock: VirtualClock) -> None:
    actuator = FakeActuator(clock)
    await actuator.scale(WORKLOAD, 3, fence=1)
    await clock.advance(60)
    await actuator.scale(WORKLOAD, 2, fence=1)
    await actuator.replace(WORKLOAD, "w-1", fence=1)
    found = await view(actuator)

    assert actuator.scaled == [("w", 3), ("w", 2)]
    assert found.desired_replicas == 2
    assert [(replica.id, replica.warm) for replica in found.replicas] == [("w-2", True), ("w-4", False)]


async def test_a_claim_refuses_older_orders_and_ends_what_was_deleted(clock: VirtualClock) -> None:
    actuator = FakeActuator(clock)
    await actuator.scale(WORKLOAD, 2, fence=1)
    await actuator.claim([WORKLOAD], fence=2)
    with pytest.raises(StaleFenceError):
        await actuator.scale(WORKLOAD, 5, fence=1)
    assert len((await view(actuator)).replicas) == 2

    await actuator.claim([], fence=2)
    assert (await view(actuator)).replicas == ()


async def test_what_a_test_breaks_is_broken(clock: VirtualClock) -> None:
    actuator = FakeActuator(clock)
    await actuator.scale(WORKLOAD, 1, fence=2)
    with pytest.raises(StaleFenceError):
        await actuator.scale(WORKLOAD, 5, fence=1)
    actuator.stuck = {"w-1"}
    await clock.advance(60)
    assert (await view(actuator)).replicas[0].stage is Stage.ORDERED

    actuator.unobservable = {"w"}
    assert await actuator.observe([WORKLOAD]) == {}
    actuator.available = False
    with pytest.raises(UnavailableError):
        await actuator.observe([WORKLOAD])


async def test_the_meter_answers_for_viewed_workloads_and_drains_once() -> None:
    observed = DemandObservation(MIDNIGHT, 1.0, None, 0.0, 1, 1, MINUTE)
    sample = TrafficSample("w", MIDNIGHT, 60.0)
    fake = FakeDemandMeter({"w": observed, "v": observed}, [sample])
    meter: DemandMeterPort = fake

    assert await meter.scrape({"w": PoolView(1, ()), "u": PoolView(1, ())}) == {"w": observed}
    assert [*meter.drain_samples(), *meter.drain_samples()] == [sample]


async def test_the_forecast_is_the_last_known_value_or_says_that_there_is_none() -> None:
    forecaster: ForecastPort = FakeForecaster(trusted=Trust.UNPROVEN)
    history = [(MIDNIGHT, 5.0), (MIDNIGHT + MINUTE, None)]
    run, band = await forecaster.forecast(
        "w", history, step=MINUTE, horizon_steps=2, events=(), now=MIDNIGHT + 2 * MINUTE
    )
    _, none = await forecaster.forecast("w", [], step=MINUTE, horizon_steps=2, events=(), now=MIDNIGHT)

    assert (run.id, run.origin_at) == (band.id, MIDNIGHT + 2 * MINUTE)
    assert (band.state, band.qps) == (ForecastState.READY, ((5.0,) * 5,) * 2)
    assert (none.state, none.qps) == (ForecastState.INSUFFICIENT_HISTORY, ())
    assert forecaster.trust(band, []) is Trust.UNPROVEN
