"""A controller process made of written fakes on a virtual clock."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from controller.adapters.clock import VirtualClock
from controller.adapters.fakes import (
    FakeActuator,
    FakeDemandMeter,
    FakeForecaster,
    FakeLeaseStore,
    FakeSignalCache,
    FakeStore,
)
from controller.core.types import CapacityProfile, DemandObservation, Workload
from controller.loop.control import Control
from controller.loop.forecasting import Forecasting
from controller.loop.leader import Leadership
from controller.loop.observe import Observer
from controller.loop.runner import Runner
from controller.ports import LEADER_LEASE
from controller.settings import Settings

START = datetime(2026, 11, 30, 22, 0, tzinfo=UTC)
LEASE = timedelta(seconds=10)


@dataclass
class Fleet:
    """What several controller processes share: clock, store, leases, cache and the replicas."""

    clock: VirtualClock = field(default_factory=lambda: VirtualClock(START))

    def __post_init__(self) -> None:
        self.leases = FakeLeaseStore(self.clock)
        self.store = FakeStore(self.leases)
        self.cache = FakeSignalCache(self.clock)
        self.actuator = FakeActuator(self.clock)
        self.meter = FakeDemandMeter()

    def demand(self, workload: str, qps: float) -> None:
        """Let every scrape from now on see ``qps``, answered by every replica."""
        self.meter.demand[workload] = DemandObservation(
            at=self.clock.now(),
            stable_qps=qps,
            panic_qps=qps,
            backlog_count=0.0,
            reporting_count=1,
            expected_count=1,
            window=timedelta(minutes=5),
        )


@dataclass
class Process:
    """One controller process over a shared fleet."""

    fleet: Fleet
    name: str

    def __post_init__(self) -> None:
        fleet, settings = self.fleet, Settings(forecast_horizon_s=7200)
        self.leadership = Leadership(
            fleet.leases, fleet.clock, name=LEADER_LEASE, holder=self.name, duration=LEASE
        )
        self.observer = Observer(
            fleet.actuator, fleet.meter, fleet.cache, fleet.store, ttl=timedelta(minutes=2)
        )
        self.forecasting = Forecasting(fleet.store, FakeForecaster(), fleet.clock, settings)
        self.control = Control(
            fleet.store, fleet.cache, fleet.actuator, self.observer, self.forecasting, fleet.clock, settings
        )
        self.runner = Runner(
            self.leadership, self.control, self.observer, self.forecasting, fleet.clock, settings
        )

    async def turn(self) -> None:
        """Renew, scrape and tick once."""
        await self.leadership.renew()
        await self.runner.scrape()
        await self.runner.tick()


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
def process(fleet: Fleet) -> Callable[[str], Process]:
    return lambda name: Process(fleet, name)


@pytest.fixture
async def recommender(fleet: Fleet) -> Workload:
    """8 000 QPS need 2 replicas of it, 35 000 need 7."""
    workload = Workload(
        "recommender",
        "recommender",
        (CapacityProfile("int8", "T4", 5200.0, instance_count=2, batch_size_max=64),),
        max_replicas=20,
    )
    async with fleet.store.unit_of_work() as uow:
        await uow.workloads.create(workload)
        await uow.commit()
    return workload
