"""Where a workload belongs, and who takes and gives up which shard."""

import asyncio
from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.adapters.clock import VirtualClock
from controller.adapters.fakes import FakeLeaseStore
from controller.core.types import CapacityProfile, QuotaPool, Workload
from controller.loop.leader import Leadership
from controller.loop.shards import Shards, Step, disagreement, next_step, shard_of
from controller.ports import LEADER_LEASE
from controller.settings import Settings
from tests.unit.loop.conftest import LEASE, START


def workload(name: str, pool: str | None = None) -> Workload:
    return Workload(name, "m", (CapacityProfile("e", "g", 100.0),), max_replicas=3, quota_pool=pool)


def test_what_is_arbitrated_together_has_one_shard() -> None:
    pools = (QuotaPool("a", 8, cohort="c"), QuotaPool("b", 8, cohort="c"))
    names = [f"w{number}" for number in range(50)]

    assert 1 == len({shard_of(workload(name, "lone"), (), 7) for name in names})
    assert 1 == len({shard_of(workload(name, pool), pools, 7) for name in names for pool in ("a", "b")})
    assert set(range(7)) == {shard_of(workload(name), pools, 7) for name in names}


def test_a_shard_is_the_same_in_every_process_and_release() -> None:
    assert [1, 3, 0] == [shard_of(workload(name), (), 4) for name in ("shop", "search", "ads")]


@pytest.mark.parametrize(
    ("holders", "steps"),
    [
        ({}, {"a": 2, "b": 1, "c": 1}),  # nobody holds any: the first by name takes what is left over
        ({0: "c", 1: "c"}, {"a": 1, "b": 1, "c": 0}),
        ({0: "a", 1: "a", 2: "b", 3: "b"}, {"a": 0, "b": -1, "c": 0}),
        ({0: "a", 1: "b", 2: "c"}, {"a": 1, "b": 0, "c": 0}),
        ({0: "gone", 1: "a", 2: "b", 3: "c"}, {"a": 0, "b": 0, "c": 0}),  # its lease still lasts
    ],
)
def test_four_shards_among_three(holders: dict[int, str], steps: dict[str, int]) -> None:
    def taken(step: Step) -> int:
        return len(step.take) - (step.give_up is not None)

    assert steps == {me: taken(next_step(me, "abc", holders, 4)) for me in "abc"}


@given(
    members=st.sets(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=6),
    count=st.integers(2, 12),
    data=st.data(),
)
def test_steps_lead_to_an_even_spread_and_end_there(
    members: set[str], count: int, data: st.DataObject
) -> None:
    owners = st.sampled_from([*sorted(members), ""])
    holders = {s: owner for s in range(count) if (owner := data.draw(owners))}
    for _ in range(3 * count):
        for me in sorted(members):
            step = next_step(me, members, holders, count)
            holders |= dict.fromkeys(step.take, me)
            if step.give_up is not None:
                assert holders.pop(step.give_up) == me

    held = Counter(dict.fromkeys(members, 0))
    held.update(holders.values())
    assert count == len(holders)
    assert max(held.values()) - min(held.values()) <= 1
    assert {Step()} == {next_step(me, members, holders, count) for me in members}


async def test_controllers_with_another_number_wait_and_say_so() -> None:
    clock = VirtualClock(START)
    leases = FakeLeaseStore(clock)
    single = Leadership(leases, clock, name=LEADER_LEASE, holder="old", duration=LEASE)
    split = Shards(leases, clock, count=2, holder="new", duration=LEASE)
    await single.renew()

    await split.turn()
    assert () == split.held
    assert "FORECREST_SHARDS=1 still run, and this one has 2" in split.problem

    await single.release()
    await split.turn()
    assert (0, 1) == split.held
    assert "" == split.problem
    assert await single.renew() is None
    assert "FORECREST_SHARDS=2 still run" in disagreement(single.other, 1)


async def test_leading_shards_ends_when_the_agreement_was_not_renewed() -> None:
    clock = VirtualClock(START)
    split = Shards(FakeLeaseStore(clock), clock, count=2, holder="a", duration=LEASE)
    await split.turn()
    await clock.advance(LEASE.total_seconds() * 0.6)
    for leadership in split.leaderships:
        await leadership.renew()
    assert (0, 1) == split.held

    await clock.advance(timedelta(seconds=1.5).total_seconds())

    assert () == split.held


async def test_controllers_with_other_cohorts_wait_and_say_so() -> None:
    """The cohort of its pool places a workload: each of the two would take one that the other has too."""
    clock = VirtualClock(START)
    leases = FakeLeaseStore(clock)
    apart = (QuotaPool("a", 8), QuotaPool("b", 8))
    together = tuple(QuotaPool(name, 8, cohort="c") for name in "ab")
    old, same, new = (
        Shards(leases, clock, count=4, holder=holder, duration=LEASE, pools=pools)
        for holder, pools in (("old", apart), ("same", apart[::-1]), ("new", together))
    )
    await old.turn()
    await same.turn()
    await new.turn()

    assert "" == same.problem
    assert () == new.held
    assert "other cohorts" in new.problem
    await clock.advance(LEASE.total_seconds())
    await new.turn()
    await old.turn()
    assert (0, 1, 2, 3) == new.held
    assert () == old.held
    assert "other cohorts" in old.problem


async def test_a_long_turn_that_a_hand_over_waits_for_does_not_end_the_other_shards() -> None:
    clock = VirtualClock(START)
    leases = FakeLeaseStore(clock)
    first, second = (Shards(leases, clock, count=2, holder=name, duration=LEASE) for name in "ab")
    await first.turn()
    async with first.leaderships[1].turn:
        for _ in range(6):
            await second.turn()
            async with asyncio.timeout(5):
                await first.turn()
            for leadership in first.leaderships:
                await leadership.renew()
            assert (0, 1) == first.held
            await clock.advance(LEASE.total_seconds() / 3)
    await asyncio.sleep(0)
    await first.turn()
    await second.turn()

    assert ((0,), (1,)) == (first.held, second.held)


def test_local_replicas_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="shards: local replicas end with their controller"):
        Settings(shards=2)
    assert 2 == Settings(shards=2, actuator="dry_run").shards
