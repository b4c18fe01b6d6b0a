"""What a leader remembers is what the next one loads, although it writes only what changed."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest

from controller.core.types import CapacityProfile, FleetState, Workload, WorkloadState
from controller.loop.control import Memory
from controller.loop.known import KnownWorkloads
from controller.loop.shards import Share
from controller.ports import LEADER_LEASE, UnavailableError
from tests.unit.loop.conftest import Fleet, Process

Make = Callable[[str], Process]


async def loaded(fleet: Fleet) -> dict[str, WorkloadState]:
    async with fleet.store.unit_of_work() as uow:
        return dict(await uow.states.load())


def remembered(process: Process) -> FleetState:
    memory = process.control._memory
    assert isinstance(memory, Memory)
    return memory.state


def fleet_of(count: int) -> list[Workload]:
    profile = CapacityProfile("int8", "T4", 500.0, instance_count=2, batch_size_max=16)
    return [Workload(f"w{number}", "m", (profile,), max_replicas=20) for number in range(count)]


@pytest.mark.parametrize("seed", range(4))
async def test_the_next_leader_would_load_what_this_one_remembers(
    fleet: Fleet, process: Make, seed: int
) -> None:
    """Demand wanders, workloads are edited, deleted and made anew, the clock steps, and the store is away at times."""
    random, leader = Random(seed), process("a")
    known = {w.name: w for w in fleet_of(4)}
    async with fleet.store.unit_of_work() as uow:
        for workload in known.values():
            await uow.workloads.create(workload)
        await uow.commit()
    for turn in range(60):
        for name in known:
            if random.random() < 0.3:
                fleet.demand(name, random.choice((100.0, 900.0, 2500.0)))
        name = random.choice(list(known))
        fleet.store.available = random.random() > 0.1
        if fleet.store.available and turn % 7 == 3:
            async with fleet.store.unit_of_work() as uow:
                if name in await uow.workloads.known([name]):
                    await uow.workloads.delete(name, expected_generation=None)
                else:
                    await uow.workloads.create(known[name])
                await uow.commit()
        try:
            await leader.turn()
        except UnavailableError:
            continue
        finally:
            fleet.store.available = True
            await fleet.clock.advance(random.choice((1.0, 5.0, 30.0)))

        stored = await loaded(fleet)
        registered = fleet.store.tables.workloads.keys()
        assert remembered(leader).workloads == {n: s for n, s in stored.items() if n in registered}
        assert all(stored[name].last_at is None for name in stored.keys() - registered)
        assert registered >= leader.control.decisions.keys()


async def test_a_workload_declared_again_continues_from_what_is_stored(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    fleet.demand(recommender.name, 35_000.0)
    leader = process("a")
    await leader.turn()
    await fleet.clock.advance(5.0)
    async with fleet.store.unit_of_work() as uow:
        await uow.workloads.delete(recommender.name, expected_generation=None)
        await uow.commit()
    await leader.turn()
    await fleet.clock.advance(5.0)
    forgotten = remembered(leader)
    async with fleet.store.unit_of_work() as uow:
        await uow.workloads.create(recommender)
        await uow.commit()

    await leader.turn()

    assert {} == forgotten.workloads
    assert 7 == remembered(leader).workloads[recommender.name].desired_replicas
    assert remembered(leader).workloads == await loaded(fleet)


async def test_a_state_that_stands_is_not_written_again(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    fleet.demand(recommender.name, 8000.0)
    leader = process("a")
    for _ in range(3):
        await leader.turn()
        await fleet.clock.advance(5.0)
    written = fleet.store.tables.states[recommender.name]

    await leader.turn()

    assert written is fleet.store.tables.states[recommender.name]
    assert fleet.clock.now() == (await loaded(fleet))[recommender.name].last_at


async def test_what_may_not_be_stored_is_not_remembered(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    """A commit whose answer was lost: the store decides what there is, not the memory of who asked."""
    fleet.demand(recommender.name, 8000.0)
    leader = process("a")
    await leader.turn()
    async with fleet.store.unit_of_work() as uow:
        [(name, state)] = (await uow.states.load()).items()
        await uow.states.save({name: replace(state, desired_replicas=9)})
        await uow.commit()
    fleet.store.available = False
    with pytest.raises(UnavailableError):
        await leader.runner.tick()
    fleet.store.available = True
    await fleet.clock.advance(1.0)

    await leader.turn()

    async with fleet.store.unit_of_work() as uow:
        (newest, _), *_ = (await uow.decisions.list())[0]
    assert 9 == newest.current_replicas


async def test_another_leader_s_turn_is_not_forgotten(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    first, second = process("a"), process("b")
    fleet.demand(recommender.name, 8000.0)
    await first.turn()
    await fleet.clock.advance(11.0)
    fleet.demand(recommender.name, 35_000.0)
    await second.turn()
    await fleet.clock.advance(11.0)

    await first.turn()

    assert remembered(first).workloads == await loaded(fleet)
    assert 7 == remembered(first).workloads[recommender.name].desired_replicas


async def test_a_deleted_workload_is_as_it_was_when_it_comes_back(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    fleet.demand(recommender.name, 8000.0)
    leader = process("a")
    await leader.turn()
    async with fleet.store.unit_of_work() as uow:
        await uow.workloads.delete(recommender.name, expected_generation=None)
        await uow.commit()
    await fleet.clock.advance(5.0)
    before = (await loaded(fleet))[recommender.name]
    for _ in range(3):
        await leader.turn()
        await fleet.clock.advance(timedelta(minutes=10).total_seconds())

    assert replace(before, last_at=None) == (await loaded(fleet))[recommender.name]


async def test_a_workload_made_anew_in_another_shard_is_its_new_leader_s_alone(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    """Deleted and made anew with another pool between two ticks of its old leader."""
    agreed = await fleet.leases.acquire(LEADER_LEASE, "shards:2", timedelta(hours=1))
    assert agreed is not None
    tokens: dict[str, int] = {}
    # The later token is the greater one, which the target lets through.
    leaders = {pool: process(pool) for pool in ("there", "here")}
    for number, (pool, leader) in enumerate(leaders.items()):
        lease = await fleet.leases.acquire(f"shard/2/{number}", pool, timedelta(hours=1))
        assert lease is not None
        tokens[pool] = lease.token
        leader.control._registered = Share(KnownWorkloads(10), lambda w, pool=pool: w.quota_pool == pool)  # type: ignore[misc] # its own
    for pool in ("there", "here"):
        async with fleet.store.unit_of_work() as uow:
            await uow.workloads.delete(recommender.name, expected_generation=None)
            await uow.workloads.create(replace(recommender, quota_pool=pool))
            await uow.commit()
        for each in (pool, *(leaders.keys() - {pool})):
            await leaders[each].control.tick(tokens[each])
            await fleet.clock.advance(5.0)
            assert remembered(leaders[pool]).workloads == await loaded(fleet)
