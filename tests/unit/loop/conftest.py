"""A controller process made of written fakes on a virtual clock."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from benchmarks.loop import FakeProcess, FakeWorld
from controller.core.types import CapacityProfile, DemandObservation, Workload
from controller.settings import Settings

START = datetime(2026, 11, 30, 22, 0, tzinfo=UTC)
LEASE = timedelta(seconds=10)


class Fleet(FakeWorld):
    """What several controller processes share."""

    def __init__(self, start_at: datetime = START) -> None:
        super().__init__(start_at)

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


class Process(FakeProcess):
    """One controller process over a shared fleet."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        settings = Settings(forecast_horizon_s=7200, lease_duration_s=LEASE.total_seconds())
        super().__init__(fleet, name, settings, ttl=timedelta(minutes=2))

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
