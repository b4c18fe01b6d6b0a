"""Two controllers over one PostgreSQL and one receiver: a failover amid a prewarm tells everything, and nothing twice."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web

from controller.adapters.clock import VirtualClock
from controller.adapters.fakes import FakeActuator, FakeDemandMeter, FakeForecaster, FakeSignalCache
from controller.adapters.postgres import Limits, PostgresLeaseStore, PostgresStore
from controller.core.resources import TrafficEvent
from controller.core.types import CapacityProfile, DemandObservation, Workload
from controller.loop.control import Control
from controller.loop.forecasting import Forecasting
from controller.loop.leader import Leadership
from controller.loop.observe import Observer
from controller.loop.runner import Runner
from controller.notify.config import Sink
from controller.notify.notifier import Notifier
from controller.notify.types import DeliveryState
from controller.notify.webhook import WebhookSink
from controller.ports import LEADER_LEASE, StaleFenceError
from controller.settings import Settings

START = datetime(2026, 11, 10, 15, 45, tzinfo=UTC)
TICK_S = 10.0
# By the database's clock, which the test cannot turn; a renewal that comes late keeps it all the same.
LEASE = timedelta(milliseconds=300)
MILESTONES = {"PREWARM_PLANNED", "PREWARM_STARTED", "PREWARM_WARM", "EVENT_STARTED", "EVENT_ENDED"}


class Shared:
    """What both controllers share beside the database."""

    def __init__(self, url: str, sink: Sink) -> None:
        self.url, self.sink = url, sink
        self.clock = VirtualClock(START)
        self.cache = FakeSignalCache(self.clock)
        self.actuator, self.meter = FakeActuator(self.clock), FakeDemandMeter()


class Process:
    """One controller, with connections of its own."""

    def __init__(self, shared: Shared, name: str) -> None:
        settings, clock = Settings(forecast_horizon_s=7200), shared.clock
        self.store = PostgresStore(shared.url, Limits(connection_count=3))
        self.leases = PostgresLeaseStore(shared.url)
        self.leadership = Leadership(self.leases, clock, name=LEADER_LEASE, holder=name, duration=LEASE)
        self.notifier = Notifier(
            self.store, [shared.sink], {shared.sink.name: WebhookSink(shared.sink, clock)}, clock
        )
        observer = Observer(shared.actuator, shared.meter, shared.cache, self.store, ttl=timedelta(minutes=2))
        forecasting = Forecasting(self.store, FakeForecaster(), clock, settings)
        self.control = Control(
            self.store,
            shared.cache,
            shared.actuator,
            observer,
            forecasting,
            clock,
            settings,
            (),
            self.notifier,
        )
        self.runner = Runner(
            self.leadership, self.control, observer, forecasting, clock, settings, self.notifier
        )

    async def turn(self) -> None:
        """Renew, look, decide and tell, once."""
        while await self.leadership.renew() is None:
            pass  # the other one's lease ends by the database's clock
        await self.runner.scrape()
        await self.runner.tick()
        await self.runner.notify()

    async def close(self) -> None:
        await self.notifier.close()
        await self.store.close()
        await self.leases.close()


@pytest.fixture
async def received() -> AsyncIterator[tuple[str, list[dict[str, str]]]]:
    """A receiver: its address, and what it got."""
    got: list[dict[str, str]] = []

    async def take(request: web.Request) -> web.Response:
        got.append(json.loads(await request.read()))
        return web.Response(status=204)

    app = web.Application()
    app.router.add_post("/", take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/", got
    await runner.cleanup()


@pytest.fixture
async def shared(database_url: str, received: tuple[str, list[dict[str, str]]], tmp_path: Path) -> Shared:
    (tmp_path / "secret").write_text("s3cret")
    described = {"name": "ops", "url": received[0], "secret_file": str(tmp_path / "secret")}
    made = Shared(database_url, Sink.model_validate(described))
    store = PostgresStore(database_url, Limits(connection_count=1))
    profile = CapacityProfile("int8", "T4", 5200.0, instance_count=2, batch_size_max=64)
    event = TrafficEvent(
        id="midnight",
        display_name="Midnight",
        workloads=("recommender",),
        start_at=START + timedelta(minutes=10),
        end_at=START + timedelta(minutes=15),
        time_zone="UTC",
        expected_peak_qps=35_000.0,
    )
    async with store.unit_of_work() as uow:
        await uow.workloads.create(Workload("recommender", "recommender", (profile,), max_replicas=20))
        await uow.events.create(event)
        await uow.commit()
    await store.close()
    return made


async def run_until(process: Process, shared: Shared, at: datetime, *, silent: bool = False) -> None:
    while shared.clock.now() < at:
        shared.meter.demand.pop("recommender", None)
        if not silent:
            shared.meter.demand["recommender"] = DemandObservation(
                shared.clock.now(), 8000.0, 8000.0, 0.0, 1, 1, timedelta(minutes=5)
            )
        await process.turn()
        await shared.clock.advance(TICK_S)


async def test_a_failover_amid_a_prewarm_tells_each_milestone_once(
    shared: Shared, received: tuple[str, list[dict[str, str]]]
) -> None:
    first, second = Process(shared, "a"), Process(shared, "b")
    _, got = received
    await run_until(first, shared, START + timedelta(minutes=9, seconds=30))
    before = Counter(one["kind"] for one in got)

    # The first one says nothing any more, not even that it goes.
    await run_until(second, shared, START + timedelta(minutes=17))
    with pytest.raises(StaleFenceError):
        await first.control.tick(first.leadership.token or 1)
    with pytest.raises(StaleFenceError):
        await first.notifier.turn(first.leadership.token or 1)

    assert {"PREWARM_PLANNED", "PREWARM_STARTED"} <= set(before)
    assert "EVENT_STARTED" not in before
    counts = Counter(one["kind"] for one in got)
    assert dict.fromkeys(MILESTONES, 1) == {kind: counts[kind] for kind in MILESTONES}
    assert len({one["id"] for one in got}) == len(got)
    async with second.store.unit_of_work() as uow:
        rows, _ = await uow.notifications.list()
    assert {one["id"] for one in got} == {row.notification.id for row in rows}
    assert {DeliveryState.DELIVERED} == {row.state for row in rows}
    for process in (first, second):
        await process.close()


async def test_an_alarm_that_flaps_across_a_failover_is_told_as_one(
    shared: Shared, received: tuple[str, list[dict[str, str]]]
) -> None:
    first, second = Process(shared, "a"), Process(shared, "b")
    _, got = received
    minute = timedelta(minutes=1)

    def told() -> list[dict[str, str]]:
        return [one for one in got if one["alarm"] == "NO_DATA"]

    await run_until(first, shared, START + minute)
    await run_until(first, shared, START + 5 * minute, silent=True)
    assert ["ALARM_RAISED"] == [one["kind"] for one in told()]
    await run_until(first, shared, START + 6 * minute)  # and it ends, of which the first one tells nothing

    await run_until(second, shared, START + 8 * minute)
    await run_until(second, shared, START + 12 * minute, silent=True)
    await run_until(second, shared, START + 21 * minute)
    assert 1 == len(told())
    await run_until(second, shared, START + 24 * minute)

    assert ["ALARM_RAISED", "ALARM_CLEARED"] == [one["kind"] for one in told()]
    assert told()[1]["sentence"].endswith(" It had come back once.")
    for process in (first, second):
        await process.close()


async def test_two_that_claim_at_once_share_nothing(shared: Shared) -> None:
    process = Process(shared, "a")
    await run_until(process, shared, START + timedelta(seconds=TICK_S))
    async with process.store.unit_of_work() as uow:
        told = await uow.notifications.list()
        rows = [row for row in told[0] if row.sink == "ops"]
        await uow.notifications.add(
            [type(row)(f"other-{n}", row.notification) for row in rows for n in range(2)]
        )
        await uow.commit()
    assert rows

    now, until = shared.clock.now(), shared.clock.now() + timedelta(minutes=1)
    async with process.store.unit_of_work() as one, process.store.unit_of_work() as other:
        mine = await one.notifications.claim("other-0", now, until, 10)
        theirs = await other.notifications.claim("other-0", now, until, 10)  # neither waits nor takes
        await one.commit()
        await other.commit()

    assert len(rows) == len(mine)
    assert [] == list(theirs)
    await process.close()
