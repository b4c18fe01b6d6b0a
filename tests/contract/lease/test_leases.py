"""What every lease store keeps to; run against the fake and against a real PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from controller.adapters.clock import SystemClock
from controller.adapters.fakes import FakeLeaseStore
from controller.adapters.postgres import PostgresLeaseStore
from controller.core.resources import Lease
from controller.ports import LeaseStore

LONG = timedelta(minutes=5)
SHORT = timedelta(milliseconds=20)


@pytest.fixture(params=["fake", "postgres"])
async def leases(request: pytest.FixtureRequest) -> AsyncIterator[LeaseStore]:
    if request.param == "fake":
        yield FakeLeaseStore(SystemClock())
        return
    real = PostgresLeaseStore(request.getfixturevalue("database_url"))
    yield real
    await real.close()


async def take(leases: LeaseStore, holder: str, duration: timedelta = LONG) -> Lease:
    lease = await leases.acquire("leader", holder, duration)
    assert lease is not None
    return lease


async def until_expired(leases: LeaseStore) -> None:
    """Expiry is by the store's clock; asking again is the only way to see it."""
    while await leases.current("leader") is not None:
        pass


async def test_one_of_two_holders_leads(leases: LeaseStore) -> None:
    lease = await take(leases, "a")

    assert (lease.name, lease.holder) == ("leader", "a")
    assert await leases.acquire("leader", "b", LONG) is None
    assert await leases.current("leader") == lease


async def test_a_renewal_moves_the_end_and_keeps_the_token(leases: LeaseStore) -> None:
    first = await take(leases, "a")
    second = await take(leases, "a")

    assert second.token == first.token
    assert second.expires_at > first.expires_at


async def test_an_expired_lease_changes_hands_with_a_larger_token(leases: LeaseStore) -> None:
    old = await take(leases, "a", SHORT)
    await until_expired(leases)
    new = await take(leases, "b")

    assert new.token > old.token
    assert await leases.acquire("leader", "a", LONG) is None


async def test_a_holder_that_is_late_but_was_not_replaced_keeps_its_token(leases: LeaseStore) -> None:
    old = await take(leases, "a", SHORT)
    await until_expired(leases)

    assert (await take(leases, "a")).token == old.token


async def test_a_released_lease_is_free_at_once(leases: LeaseStore) -> None:
    old = await take(leases, "a")
    await leases.release(old)

    assert await leases.current("leader") is None
    assert (await take(leases, "b")).token > old.token


async def test_taking_the_lease_again_after_giving_it_up_gets_a_larger_token(leases: LeaseStore) -> None:
    old = await take(leases, "a")
    await leases.release(old)

    assert (await take(leases, "a")).token > old.token


async def test_releasing_a_lost_lease_changes_nothing(leases: LeaseStore) -> None:
    old = await take(leases, "a", SHORT)
    await until_expired(leases)
    new = await take(leases, "b")
    await leases.release(old)
    await leases.release(Lease("unheard-of", "a", 1, old.expires_at))

    assert await leases.current("leader") == new


async def test_leases_of_different_names_are_independent(leases: LeaseStore) -> None:
    await take(leases, "a")
    other = await leases.acquire("other", "b", LONG)

    assert other is not None
    assert await leases.current("nobody's") is None


async def test_of_many_that_ask_at_once_one_leads(leases: LeaseStore) -> None:
    asked = await asyncio.gather(*(leases.acquire("leader", f"h{i}", LONG) for i in range(10)))

    winners = [lease for lease in asked if lease is not None]
    assert len(winners) == 1
    assert await leases.current("leader") == winners[0]


async def test_tokens_grow_over_many_changes_of_holder(leases: LeaseStore) -> None:
    tokens = []
    for number in range(5):
        lease = await take(leases, f"h{number % 2}")
        tokens.append(lease.token)
        await leases.release(lease)

    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize(
    ("name", "holder", "duration", "said"),
    [("", "a", LONG, "name"), ("leader", "", LONG, "holder"), ("leader", "a", timedelta(0), "duration")],
)
async def test_nonsense_is_refused_by_name(
    leases: LeaseStore, name: str, holder: str, duration: timedelta, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        await leases.acquire(name, holder, duration)


async def test_tokens_grow_over_all_leases_together(leases: LeaseStore) -> None:
    tokens = [0]
    for name in ("leader", "shard/4/0", "shard/4/1", "leader", "shard/2/0", "shard/4/0"):
        lease = await leases.acquire(name, f"holder of {len(tokens)}", LONG)
        assert lease is not None
        tokens.append(lease.token)
        await leases.release(lease)

    assert sorted(set(tokens)) == tokens


async def test_a_token_given_up_stays_below_the_next_of_any_lease(leases: LeaseStore) -> None:
    first = await take(leases, "a")
    await leases.release(first)
    other = await leases.acquire("shard/4/0", "a", LONG)

    assert other is not None
    assert other.token > first.token + 1


async def test_live_leases_are_those_that_are_held_now(leases: LeaseStore) -> None:
    await take(leases, "a", SHORT)
    member = await leases.acquire("member/4/a", "a", LONG)
    shard = await leases.acquire("shard/4/0", "a", LONG)
    await until_expired(leases)
    assert [member, shard] == list(await leases.live())

    assert member is not None
    await leases.release(member)
    assert [shard] == list(await leases.live())
