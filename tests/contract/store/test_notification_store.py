"""The outbox: what every store of notifications keeps to."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from controller.adapters.fakes import FakeStore
from controller.adapters.postgres import Limits, PostgresStore
from controller.core.resources import Page
from controller.core.types import Alarm, AlarmKind, CapacityProfile, Workload
from controller.notify.types import Backlog, Delivery, DeliveryState, Held, Kind, Notification, Severity
from controller.ports import Retention, Store

NOW = datetime(2026, 11, 10, 16, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
DEAD, DELIVERED, PENDING = DeliveryState.DEAD, DeliveryState.DELIVERED, DeliveryState.PENDING


@pytest.fixture(params=["fake", "postgres"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    if request.param == "fake":
        yield FakeStore()
        return
    opened = PostgresStore(request.getfixturevalue("database_url"), Limits(connection_count=3))
    yield opened
    await opened.close()


def delivery(number: int = 1, sink: str = "ops", **changes: object) -> Delivery:
    told = Notification(
        id=f"n{number}",
        at=NOW + number * MINUTE,
        kind=Kind.ALARM_RAISED,
        severity=Severity.CRITICAL,
        workload="rec",
        namespace="shop",
        subject="sale",
        sentence=f"Notice {number} [sic] <&>.",
        alarm=AlarmKind.PREWARM_MISSED,
    )
    return Delivery(sink, replace(told, **changes))  # type: ignore[arg-type]  # fields of it


async def add(store: Store, *deliveries: Delivery) -> None:
    async with store.unit_of_work() as uow:
        await uow.notifications.add(deliveries)
        await uow.commit()


async def claim(store: Store, at: datetime, sink: str = "ops", limit: int = 10) -> Sequence[Delivery]:
    async with store.unit_of_work() as uow:
        claimed = await uow.notifications.claim(sink, at, at + MINUTE, limit)
        await uow.commit()
    return claimed


async def settle(
    store: Store, one: Delivery, state: DeliveryState, next_at: datetime | None = None, error: str = ""
) -> bool:
    async with store.unit_of_work() as uow:
        done = await uow.notifications.settle(one, state, NOW + 9 * MINUTE, next_at=next_at, error=error)
        await uow.commit()
    return done


async def listed(store: Store, **asked: object) -> list[Delivery]:
    async with store.unit_of_work() as uow:
        rows, _ = await uow.notifications.list(**asked)  # type: ignore[arg-type]  # its own keywords
    return list(rows)


async def test_a_notification_is_read_back_as_it_was_written(store: Store) -> None:
    await add(store, delivery())

    assert [delivery()] == await listed(store)


async def test_the_same_notification_is_stored_once_per_sink_whatever_became_of_it(store: Store) -> None:
    await add(store, delivery(), delivery(sink="chat"))
    (claimed,) = await claim(store, NOW)
    await settle(store, claimed, DELIVERED)
    await add(store, delivery(), delivery(sink="chat"), delivery(sentence="Another word for it."))

    kept = {one.sink: one for one in await listed(store)}
    assert {"ops": DELIVERED, "chat": PENDING} == {sink: one.state for sink, one in kept.items()}
    assert "Notice 1 [sic] <&>." == kept["ops"].notification.sentence


async def test_what_was_not_committed_is_not_there(store: Store) -> None:
    async with store.unit_of_work() as uow:
        await uow.notifications.add([delivery()])

    assert [] == await listed(store)


async def test_claims_take_the_oldest_of_one_sink_up_to_the_limit_and_leave_the_rest(store: Store) -> None:
    await add(store, *(delivery(n) for n in (3, 1, 2)), delivery(4, "chat"))

    first = await claim(store, NOW, limit=2)
    second = await claim(store, NOW, limit=2)

    assert ["n1", "n2"] == [one.notification.id for one in first]
    assert [1, 1] == [one.attempt_count for one in first]
    assert ["n3"] == [one.notification.id for one in second]
    assert [] == await claim(store, NOW)
    assert ["n4"] == [one.notification.id for one in await claim(store, NOW, "chat")]


async def test_a_claim_that_nobody_settled_comes_free_at_its_end(store: Store) -> None:
    await add(store, delivery())
    (lost,) = await claim(store, NOW)

    assert [] == await claim(store, NOW + MINUTE - timedelta(seconds=1))
    (again,) = await claim(store, NOW + MINUTE)
    assert 2 == again.attempt_count
    assert not await settle(store, lost, DEAD, error="too late to say")
    assert await settle(store, again, DELIVERED)
    (kept,) = await listed(store)
    assert (DELIVERED, "", NOW + 9 * MINUTE, None) == (kept.state, kept.error, kept.settled_at, kept.next_at)


async def test_a_failed_attempt_waits_for_its_turn(store: Store) -> None:
    await add(store, delivery())
    (claimed,) = await claim(store, NOW)
    assert await settle(store, claimed, PENDING, NOW + 5 * MINUTE, "answered 503")

    (kept,) = await listed(store)
    assert (PENDING, "answered 503", None) == (kept.state, kept.error, kept.settled_at)
    assert [] == await claim(store, NOW + 4 * MINUTE)
    assert 1 == len(await claim(store, NOW + 5 * MINUTE))


async def test_what_is_settled_is_neither_claimed_nor_settled_again(store: Store) -> None:
    await add(store, delivery(1), delivery(2))
    one, two = await claim(store, NOW)
    await settle(store, one, DELIVERED)
    await settle(store, two, DEAD, error="answered 404")

    assert [] == await claim(store, NOW + 60 * MINUTE)
    assert not await settle(store, one, DEAD)


async def test_what_is_old_is_given_up_even_while_it_is_claimed(store: Store) -> None:
    await add(store, delivery(1), delivery(2), delivery(3))
    (claimed,) = await claim(store, NOW, limit=1)
    async with store.unit_of_work() as uow:
        assert 2 == await uow.notifications.expire(NOW + 3 * MINUTE, NOW + 5 * MINUTE, "too old")
        await uow.commit()

    assert not await settle(store, claimed, DELIVERED)
    assert [("n3", PENDING, ""), ("n2", DEAD, "too old"), ("n1", DEAD, "too old")] == [
        (one.notification.id, one.state, one.error) for one in await listed(store)
    ]


async def test_backlogs_count_what_each_sink_has_not_got(store: Store) -> None:
    await add(store, *(delivery(n) for n in (1, 2, 3, 4)), delivery(5, "chat"))
    one, two = await claim(store, NOW, limit=2)
    await settle(store, one, DELIVERED)
    await settle(store, two, DEAD)
    async with store.unit_of_work() as uow:
        found = await uow.notifications.backlogs()

    assert {
        "ops": Backlog(2, 1, NOW + 3 * MINUTE),
        "chat": Backlog(1, 0, NOW + 5 * MINUTE),
    } == found


async def test_a_listing_is_newest_first_by_page_and_filter(store: Store) -> None:
    await add(store, *(delivery(n) for n in range(1, 6)), delivery(6, "chat", workload=""))
    (claimed,) = await claim(store, NOW, limit=1)
    await settle(store, claimed, DEAD)

    seen: list[str] = []
    token = ""
    for _ in range(3):
        async with store.unit_of_work() as uow:
            rows, token = await uow.notifications.list(page=Page(2, token))
        seen += [one.notification.id for one in rows]

    assert ["n6", "n5", "n4", "n3", "n2", "n1"] == seen
    assert "" == token
    assert ["n1"] == [one.notification.id for one in await listed(store, state=DEAD)]
    assert ["n6"] == [one.notification.id for one in await listed(store, sink="chat")]
    assert 5 == len(await listed(store, workload="rec"))


async def test_records_go_when_they_are_past_their_age(store: Store) -> None:
    await add(store, delivery(1), delivery(2))
    kept_for = Retention().notifications

    await store.maintain(NOW + 2 * MINUTE + kept_for, Retention())

    assert ["n2"] == [one.notification.id for one in await listed(store)]


def held(name: str, away_since_at: datetime | None, count: int = 0) -> Held:
    return Held(Alarm(AlarmKind.NO_DATA, name, "", f"{name}: no data."), away_since_at, count)


async def found(store: Store, away_before: datetime, *keys: str) -> list[Held]:
    async with store.unit_of_work() as uow:
        return sorted(await uow.notifications.held(keys, away_before), key=lambda one: one.alarm.key)


async def register(store: Store, *names: str) -> None:
    profile = CapacityProfile("e", "g", 100.0)
    async with store.unit_of_work() as uow:
        for name in names:
            await uow.workloads.create(Workload(name, "m", (profile,), max_replicas=4))
        await uow.commit()


async def test_what_is_remembered_of_alarms_is_found_by_key_or_by_how_long_they_are_away(
    store: Store,
) -> None:
    await register(store, "a", "b")
    old, new, back = held("a", NOW), held("b", NOW + MINUTE), held("c", None, 3)
    async with store.unit_of_work() as uow:
        await uow.notifications.keep_held([old, new, held("c", NOW - MINUTE, 2)], [], NOW)
        await uow.notifications.keep_held([back], [], NOW + MINUTE)
        await uow.commit()

    assert [] == await found(store, NOW - MINUTE)
    assert [old] == await found(store, NOW)
    assert [old, back] == await found(store, NOW, back.alarm.key, "NO_DATA/d/")
    async with store.unit_of_work() as uow:
        await uow.notifications.keep_held([], [old.alarm.key, new.alarm.key], NOW)
        await uow.commit()
    assert [back] == await found(store, NOW + MINUTE, old.alarm.key, new.alarm.key, back.alarm.key)

    # Of a workload that is gone for good it goes, too.
    await store.maintain(NOW + 2 * MINUTE + Retention().decisions, Retention())
    assert [] == await found(store, NOW + MINUTE, back.alarm.key)


async def test_what_is_remembered_of_a_deleted_workload_is_found_by_its_key_alone(store: Store) -> None:
    """Every tick asks for what has been away for long enough, and tells of registered workloads only."""
    await register(store, "kept", "deleted")
    kept, orphan = held("kept", NOW), held("deleted", NOW)
    async with store.unit_of_work() as uow:
        await uow.notifications.keep_held([kept, orphan], [], NOW)
        await uow.workloads.delete("deleted", expected_generation=None)
        await uow.commit()

    assert [kept] == await found(store, NOW)
    assert [orphan, kept] == await found(store, NOW, orphan.alarm.key)

    await register(store, "deleted")
    assert [orphan, kept] == await found(store, NOW)
