"""Claiming, retrying, giving up, and one sink's trouble staying its own."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from controller.adapters.clock import VirtualClock
from controller.adapters.fakes import FakeLeaseStore, FakeNotificationSink, FakeStore
from controller.notify.config import Sink
from controller.notify.notifier import AGE_MAX, ATTEMPTS_MAX, BATCH, CLAIM, PAUSE_MAX, Notifier
from controller.notify.types import Backlog, Delivery, DeliveryState, Kind, Notification, Severity
from controller.ports import LEADER_LEASE, SinkBusyError, StaleFenceError, UnavailableError

START = datetime(2026, 11, 10, 16, tzinfo=UTC)
NAMES = ("ops", "chat")


class World:
    """A store, two sinks and a clock; notifiers of several leaders over them."""

    def __init__(self) -> None:
        self.clock = VirtualClock(START)
        self.leases = FakeLeaseStore(self.clock)
        self.store = FakeStore(self.leases)
        self.sinks = {name: FakeNotificationSink() for name in NAMES}
        self.token = 0

    def notifier(self, clock: VirtualClock | None = None) -> Notifier:
        described = [
            Sink.model_validate({"name": name, "format": "slack", "url": "https://h/x"}) for name in NAMES
        ]
        return Notifier(self.store, described, self.sinks, clock or self.clock)

    async def elect(self, name: str) -> int:
        held = await self.leases.current(LEADER_LEASE)
        if held is not None:
            await self.leases.release(held)
        lease = await self.leases.acquire(LEADER_LEASE, name, timedelta(days=1))
        assert lease is not None
        return lease.token

    async def add(self, count: int = 1, *names: str) -> None:
        told = [
            Notification(
                f"n{number}",
                self.clock.now(),
                Kind.EVENT_STARTED,
                Severity.INFO,
                "rec",
                "shop",
                "sale",
                "Go.",
            )
            for number in range(count)
        ]
        async with self.store.unit_of_work() as uow:
            await uow.notifications.add([Delivery(name, one) for one in told for name in names or NAMES])
            await uow.commit()

    async def kept(self, sink: str = "ops") -> list[Delivery]:
        async with self.store.unit_of_work() as uow:
            rows, _ = await uow.notifications.list(sink=sink)
        return list(rows)


@pytest.fixture
def world() -> World:
    return World()


async def test_every_sink_is_told_once_however_often_it_is_its_turn(world: World) -> None:
    notifier, token = world.notifier(), await world.elect("a")
    await world.add(3)
    for _ in range(3):
        await notifier.turn(token)
        await world.clock.advance(CLAIM.total_seconds())

    assert {"ops": 3, "chat": 3} == {name: sink.attempt_count for name, sink in world.sinks.items()}
    assert {DeliveryState.DELIVERED} == {one.state for one in await world.kept()}
    assert {("ops", "delivered"): 3, ("chat", "delivered"): 3} == dict(notifier.outcomes)


async def test_the_next_leader_tells_what_the_last_one_did_not_and_nothing_else(world: World) -> None:
    old, first = world.notifier(), await world.elect("a")
    await world.add(1)
    await old.turn(first)
    second = await world.elect("b")
    async with world.store.unit_of_work() as uow:
        told = Notification("late", START, Kind.EVENT_ENDED, Severity.INFO, "rec", "shop", "sale", "Over.")
        await uow.notifications.add([Delivery("ops", told)])
        await uow.commit()

    with pytest.raises(StaleFenceError):
        await old.turn(first)
    await world.notifier().turn(second)

    assert ["n0", "late"] == [one.id for one, _ in world.sinks["ops"].received]
    assert ["n0"] == [one.id for one, _ in world.sinks["chat"].received]


async def test_what_a_leader_claimed_and_never_settled_is_sent_when_its_claim_ends(world: World) -> None:
    first = await world.elect("a")
    await world.add(1, "ops")
    async with world.store.unit_of_work() as uow:
        await uow.require_leader(first)
        await uow.notifications.claim("ops", START, START + CLAIM, 10)
        await uow.commit()
    second = await world.elect("b")

    await world.notifier().turn(second)
    assert [] == world.sinks["ops"].received
    await world.clock.advance(CLAIM.total_seconds())
    await world.notifier().turn(second)

    assert [("n0", 2)] == [(one.id, attempt) for one, attempt in world.sinks["ops"].received]


class Jumping(VirtualClock):
    """Time of a process that stood still beyond its claim, right after it had read the clock once."""

    def __init__(self) -> None:
        super().__init__(START)
        self._read = False

    def now(self) -> datetime:
        at = super().now() + (CLAIM if self._read else timedelta(0))
        self._read = True
        return at


async def test_a_leader_that_stood_still_beyond_its_claim_sends_nothing(world: World) -> None:
    token = await world.elect("a")
    await world.add(1, "ops")
    await world.notifier(Jumping()).turn(token)

    assert [] == world.sinks["ops"].received


async def test_a_busy_sink_is_asked_again_with_growing_pauses_until_it_is_given_up(world: World) -> None:
    notifier, token = world.notifier(), await world.elect("a")
    await world.add(1)
    world.sinks["ops"].busy = SinkBusyError("answered 503")
    asked_at = []
    while world.clock.now() < START + AGE_MAX:
        before = world.sinks["ops"].attempt_count
        await notifier.turn(token)
        if world.sinks["ops"].attempt_count > before:
            asked_at.append(world.clock.now())
        await world.clock.advance(1)

    pauses = [(later - earlier).total_seconds() for earlier, later in pairwise(asked_at)]
    assert ATTEMPTS_MAX == len(asked_at)
    assert pauses[:6] == sorted(pauses[:6])
    assert max(pauses) <= 1.2 * PAUSE_MAX.total_seconds() + 1
    (dead,) = await world.kept()
    assert (DeliveryState.DEAD, "answered 503") == (dead.state, dead.error)
    assert 1 == len(world.sinks["chat"].received)
    assert {"ops": Backlog(0, 1, None), "chat": Backlog()} == notifier.backlogs


async def test_a_sink_that_says_when_is_asked_no_earlier(world: World) -> None:
    notifier, token = world.notifier(), await world.elect("a")
    await world.add(1, "ops")
    world.sinks["ops"].busy = SinkBusyError("answered 429", timedelta(minutes=5))
    await notifier.turn(token)

    (kept,) = await world.kept()
    assert START + timedelta(minutes=5) == kept.next_at


async def test_what_a_sink_refuses_is_dead_at_once_and_counted(world: World) -> None:
    notifier, token = world.notifier(), await world.elect("a")
    await world.add(1, "ops")
    world.sinks["ops"].refuses = True
    await notifier.turn(token)

    (dead,) = await world.kept()
    assert (DeliveryState.DEAD, "answered 404", 1) == (dead.state, dead.error, dead.attempt_count)
    assert {("ops", "dead"): 1} == dict(notifier.outcomes)


async def test_old_news_is_given_up_whoever_was_to_get_it(world: World) -> None:
    token = await world.elect("a")
    await world.add(1, "ops", "removed")
    await world.clock.advance(AGE_MAX.total_seconds() + 1)
    await world.notifier().turn(token)

    assert [] == world.sinks["ops"].received
    assert {DeliveryState.DEAD} == {one.state for one in (*await world.kept(), *await world.kept("removed"))}


async def test_one_turn_takes_a_bounded_number(world: World) -> None:
    token = await world.elect("a")
    await world.add(BATCH + 3, "ops")
    await world.notifier().turn(token)

    assert BATCH == len(world.sinks["ops"].received)


async def test_what_was_sent_but_not_written_down_is_sent_again_under_the_same_id(world: World) -> None:
    notifier, token = world.notifier(), await world.elect("a")
    await world.add(1, "ops")

    class Cut(FakeNotificationSink):
        async def send(self, notification: Notification, attempt: int) -> None:
            await super().send(notification, attempt)
            world.store.available = attempt > 1  # the database is gone before the outcome is written

    world.sinks["ops"] = Cut()
    notifier = world.notifier()
    await notifier.turn(token)
    with pytest.raises(UnavailableError):
        await notifier.turn(token)
    world.store.available = True
    await world.clock.advance(CLAIM.total_seconds())
    await notifier.turn(token)

    assert [("n0", 1), ("n0", 2)] == [(one.id, attempt) for one, attempt in world.sinks["ops"].received]
    assert {DeliveryState.DELIVERED} == {one.state for one in await world.kept()}
