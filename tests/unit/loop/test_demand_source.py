"""One source of demand per workload: a query where one is named, the replicas' counters elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from controller.adapters.clock import SystemClock
from controller.adapters.fakes import FakeActuator, FakeSignalCache, FakeStore
from controller.adapters.fakes.fleet import FakeDemandMeter
from controller.core.resources import TrafficSample
from controller.core.types import CapacityProfile, DemandObservation, Workload
from controller.loop.observe import Observer

NOW = datetime(2026, 11, 11, tzinfo=UTC)


@dataclass
class FakeSource:
    """Implements `controller.ports.DemandSource`: answers with what a test puts in."""

    demand: dict[str, DemandObservation] = field(default_factory=dict[str, DemandObservation])
    samples: list[TrafficSample] = field(default_factory=list[TrafficSample])

    async def observe(self, workloads: Sequence[Workload]) -> Mapping[str, DemandObservation]:
        return {w.name: self.demand[w.name] for w in workloads if w.demand_query and w.name in self.demand}

    def drain_samples(self) -> Sequence[TrafficSample]:
        drained, self.samples = self.samples, []
        return drained


def workload(name: str, query: str | None) -> Workload:
    return Workload(name, "m", (CapacityProfile("e", "L4", 10.0),), demand_query=query)


def seen(qps: float, backlog: float = 0.0) -> DemandObservation:
    return DemandObservation(NOW, qps, qps, backlog, 2, 2, timedelta(seconds=60))


WORKLOADS = (workload("asked", "sum(rate(a[1m]))"), workload("counted", None))


@pytest.fixture
def meter() -> FakeDemandMeter:
    return FakeDemandMeter(
        {"asked": seen(1.0, 7.0), "counted": seen(2.0, 3.0)},
        [TrafficSample("asked", NOW, 60.0), TrafficSample("counted", NOW, 120.0)],
    )


def observer(meter: FakeDemandMeter, source: FakeSource | None, store: FakeStore) -> Observer:
    clock = SystemClock()
    ttl = timedelta(minutes=1)
    return Observer(FakeActuator(clock), meter, FakeSignalCache(clock), store, ttl=ttl, source=source)


async def test_a_query_takes_the_place_of_the_counters_but_not_of_the_backlog(meter: FakeDemandMeter) -> None:
    store = FakeStore()
    source = FakeSource(
        {"asked": replace(seen(50.0), reporting_count=1, expected_count=1)},
        [TrafficSample("asked", NOW, 3000.0, source="prometheus")],
    )
    found = observer(meter, source, store)
    await found.scrape(WORKLOADS)
    demand = await found.demand(["asked", "counted"])

    assert {name: (d.stable_qps, d.backlog_count) for name, d in demand.items()} == {
        "asked": (50.0, 7.0),
        "counted": (2.0, 3.0),
    }
    assert {s.workload: s.source for s in store.tables.samples.values()} == {
        "asked": "prometheus",
        "counted": "triton",
    }


async def test_a_query_without_an_answer_is_unknown_never_the_counters_and_never_zero(
    meter: FakeDemandMeter,
) -> None:
    store = FakeStore()
    found = observer(meter, FakeSource(), store)
    await found.scrape(WORKLOADS)

    assert (await found.demand(["asked", "counted"])).keys() == {"counted"}
    assert {s.workload for s in store.tables.samples.values()} == {"counted"}


async def test_a_query_with_nobody_to_ask_is_said_once(
    meter: FakeDemandMeter, caplog: pytest.LogCaptureFixture
) -> None:
    found = observer(meter, None, FakeStore())
    for _ in range(3):
        await found.scrape(WORKLOADS)

    assert (await found.demand(["asked"])).keys() == set()
    assert caplog.text.count("FORECREST_PROMETHEUS_URL is not set") == 1
