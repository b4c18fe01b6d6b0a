"""The jobs around the core: they end when told to, and one's trouble stays its own."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest

from controller.adapters.fakes import FakeActuator
from controller.core.types import Workload
from controller.ports import LEADER_LEASE, StaleFenceError, UnavailableError
from tests.unit.loop.conftest import Fleet, Process

Make = Callable[[str], Process]


@pytest.fixture
async def other(fleet: Fleet, recommender: Workload) -> Workload:
    """A second workload, which comes first by name."""
    workload = replace(recommender, name="assistant")
    async with fleet.store.unit_of_work() as uow:
        await uow.workloads.create(workload)
        await uow.commit()
    fleet.demand(workload.name, 8000.0)
    fleet.demand(recommender.name, 8000.0)
    return workload


async def test_a_job_ends_also_when_a_library_keeps_the_cancellation_to_itself(process: Make) -> None:
    turns, inside = 0, asyncio.Event()

    async def job() -> None:
        nonlocal turns
        turns += 1
        inside.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    running = asyncio.create_task(process("a").runner._every(0.0, job))
    await inside.wait()
    running.cancel()
    done, _ = await asyncio.wait([running], timeout=30)
    running.cancel()

    assert {running} == done
    assert running.cancelled()
    assert turns == 1


async def test_a_job_that_has_failed_for_long_is_still_tried_again_soon(fleet: Fleet, process: Make) -> None:
    tried: list[float] = []

    async def job() -> None:
        tried.append(fleet.clock.monotonic())
        raise UnavailableError("away")

    running = asyncio.create_task(process("a").runner._every(5.0, job))
    for _ in range(300):
        await fleet.clock.advance(1.0)
    running.cancel()
    await asyncio.wait([running])

    pauses = [round(after - before) for before, after in pairwise(tried)]
    assert [10, 15] == pauses[:2]
    assert {15} == set(pauses[2:])


async def test_the_lease_is_kept_until_the_order_under_way_has_ended(
    fleet: Fleet, process: Make, recommender: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, under_way, may_end = process("a"), asyncio.Event(), asyncio.Event()
    fleet.demand(recommender.name, 8000.0)

    async def slow(workload: Workload, replicas: int, *, fence: int) -> None:
        under_way.set()
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()

    monkeypatch.setattr(fleet.actuator, "scale", slow)
    running = asyncio.create_task(leader.runner.run())
    while not under_way.is_set():
        await fleet.clock.advance(1.0)

    running.cancel()
    await fleet.clock.advance(30.0)  # beyond the lease, which is renewed meanwhile
    held = await fleet.leases.current(LEADER_LEASE)
    may_end.set()
    await asyncio.wait([running])

    assert held is not None
    assert await fleet.leases.current(LEADER_LEASE) is None


async def test_a_defect_of_the_election_ends_the_jobs(process: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = process("a")

    async def broken() -> int | None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(leader.leadership, "renew", broken)

    with pytest.raises(ExceptionGroup) as caught:
        await leader.runner.run()

    assert caught.group_contains(ZeroDivisionError)


async def test_orders_stop_when_leadership_ends_between_them(
    fleet: Fleet, process: Make, recommender: Workload, other: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = process("a")
    await leader.leadership.renew()
    await leader.runner.scrape()
    scale = fleet.actuator.scale

    async def slow(workload: Workload, replicas: int, *, fence: int) -> None:
        await scale(workload, replicas, fence=fence)
        await fleet.clock.advance(30.0)  # longer than the lease

    monkeypatch.setattr(fleet.actuator, "scale", slow)

    with pytest.raises(StaleFenceError, match="leadership ended"):
        await leader.runner.tick()

    assert fleet.actuator.scaled == [(other.name, 2)]


async def test_a_defect_in_one_order_is_recorded_and_leaves_the_others_alone(
    fleet: Fleet, process: Make, recommender: Workload, other: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale = FakeActuator.scale

    async def broken(actuator: FakeActuator, workload: Workload, replicas: int, *, fence: int) -> None:
        if workload.name == other.name:
            raise ZeroDivisionError("a defect")
        await scale(actuator, workload, replicas, fence=fence)

    monkeypatch.setattr(FakeActuator, "scale", broken)

    await process("a").turn()

    assert fleet.actuator.scaled == [(recommender.name, 2)]
    async with fleet.store.unit_of_work() as uow:
        ((_, outcome),), _ = await uow.decisions.list(workload=other.name)
    assert outcome is not None
    assert (False, "unexpected: a defect") == (outcome.applied, outcome.detail)


async def test_a_new_leader_observes_and_ticks_at_once(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    first, second = process("a"), process("b")
    fleet.demand(recommender.name, 8000.0)
    await first.leadership.renew()
    await fleet.clock.advance(1.0)
    running = asyncio.create_task(second.runner.run())
    await fleet.clock.advance(0.5)
    await first.leadership.renew()  # and never again: it ends between two turns of the other
    while second.leadership.token is None:
        await fleet.clock.advance(0.1)
    won_at = fleet.clock.now()
    running.cancel()
    await asyncio.wait([running])

    assert second.runner.last_tick_at is not None
    assert won_at - second.runner.last_tick_at < timedelta(seconds=0.2)
    assert fleet.actuator.scaled
