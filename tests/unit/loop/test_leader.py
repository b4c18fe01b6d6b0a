"""Who may act, and from when on not any more."""

import asyncio
from collections.abc import Callable

from tests.unit.loop.conftest import LEASE, Fleet, Process

Make = Callable[[str], Process]


async def test_one_of_two_leads(process: Make) -> None:
    first, second = process("a"), process("b")

    assert await first.leadership.renew() is not None
    assert await second.leadership.renew() is None


async def test_a_stalled_leader_stops_before_another_may_start(fleet: Fleet, process: Make) -> None:
    first, second = process("a"), process("b")
    await first.leadership.renew()

    await fleet.clock.advance(LEASE.total_seconds() * 0.7)

    assert first.leadership.token is None
    assert await second.leadership.renew() is None


async def test_the_next_leader_has_a_greater_token(fleet: Fleet, process: Make) -> None:
    first, second = process("a"), process("b")
    old = await first.leadership.renew()
    await fleet.clock.advance(LEASE.total_seconds() * 1.1)

    new = await second.leadership.renew()

    assert old is not None
    assert new is not None
    assert new > old
    assert await first.leadership.renew() is None


async def test_while_the_store_is_away_leadership_ends_by_itself(fleet: Fleet, process: Make) -> None:
    leader = process("a").leadership
    await leader.renew()
    fleet.leases.available = False

    assert await leader.renew() is not None
    await fleet.clock.advance(LEASE.total_seconds() * 0.7)
    assert await leader.renew() is None


async def test_releasing_lets_the_next_lead_at_once(process: Make) -> None:
    first, second = process("a"), process("b")
    await first.leadership.renew()

    await first.leadership.release()

    assert await second.leadership.renew() is not None


async def test_who_is_refused_although_the_lease_is_its_own_takes_a_new_token(process: Make) -> None:
    first, second = process("a"), process("b")
    refused = await first.leadership.renew()

    first.leadership.lost()

    assert first.leadership.token is None
    assert await second.leadership.renew() is None
    fresh = await first.leadership.renew()
    assert fresh is not None
    assert refused is not None
    assert fresh > refused


async def test_a_lease_is_handed_over_after_the_turn_under_way(process: Make) -> None:
    first, second = process("a"), process("b")
    await first.leadership.renew()

    async with first.leadership.turn:
        going = asyncio.create_task(first.leadership.hand_over())
        await asyncio.sleep(0)
        assert await first.leadership.renew() is not None
        assert await second.leadership.renew() is None
    await going

    assert first.leadership.token is None
    assert await second.leadership.renew() is not None
