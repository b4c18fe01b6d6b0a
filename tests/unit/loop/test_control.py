"""Decide and act: recorded first, fenced, healed after a crash, continued by the next leader."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from controller.core.leadtime import LeadSample
from controller.core.resources import EventState, TrafficEvent, TrafficSample
from controller.core.types import ContractState, Decision, Replica, Stage, Workload
from controller.loop.observe import BATCH_MAX
from controller.ports import PoolView, ReplicaCounts, StaleFenceError
from tests.unit.loop.conftest import START, Fleet, Process

Make = Callable[[str], Process]
NAME = "recommender"


async def decisions(fleet: Fleet) -> list[Decision]:
    async with fleet.store.unit_of_work() as uow:
        rows, _ = await uow.decisions.list(workload=NAME)
    return [decision for decision, _ in rows]


async def register(fleet: Fleet, start_in: timedelta) -> TrafficEvent:
    event = TrafficEvent(
        id="midnight",
        workloads=(NAME,),
        start_at=START + start_in,
        end_at=START + start_in + timedelta(hours=1),
        time_zone="UTC",
        expected_peak_qps=35_000.0,
    )
    async with fleet.store.unit_of_work() as uow:
        await uow.events.create(event)
        await uow.commit()
    return event


async def test_a_decision_is_in_the_ledger_before_replicas_are_ordered(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    fleet.demand(recommender.name, 8000.0)
    leader = process("a")

    await leader.turn()

    newest = (await decisions(fleet))[0]
    assert fleet.actuator.scaled == [(NAME, newest.desired_replicas)]
    assert newest.desired_replicas == 2
    assert "8000 QPS needs 2" in newest.sentence


async def test_a_stale_leader_changes_nothing(fleet: Fleet, process: Make, recommender: Workload) -> None:
    first, second = process("a"), process("b")
    old = await first.leadership.renew()
    assert old is not None
    await fleet.clock.advance(11.0)
    await second.leadership.renew()
    fleet.demand(recommender.name, 8000.0)
    await first.observer.scrape([recommender])

    with pytest.raises(StaleFenceError):
        await first.control.tick(old)

    assert fleet.actuator.scaled == []
    assert await decisions(fleet) == []


async def test_an_order_of_the_leader_before_is_refused_from_the_next_one_s_first_look_on(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    first, second = process("a"), process("b")
    await first.turn()
    old = first.leadership.token
    assert old is not None
    await fleet.clock.advance(11.0)
    await second.turn()  # which finds nothing to order, so that only its claim can tell

    with pytest.raises(StaleFenceError):
        await fleet.actuator.scale(recommender, 9, fence=old)

    assert fleet.actuator.scaled == [(NAME, recommender.min_replicas)]


async def test_replicas_that_cannot_be_claimed_count_as_unknown(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    fleet.demand(recommender.name, 8000.0)
    leader = process("a")
    await leader.turn()
    fleet.actuator.available = False

    await fleet.clock.advance(5.0)
    await leader.turn()

    newest = (await decisions(fleet))[0]
    assert newest.warm_replicas is None
    assert newest.desired_replicas == 2


async def test_the_replicas_of_a_deleted_workload_leave(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    fleet.demand(recommender.name, 8000.0)
    leader = process("a")
    await leader.turn()
    async with fleet.store.unit_of_work() as uow:
        await uow.workloads.delete(NAME, expected_generation=None)
        await uow.commit()

    await leader.turn()

    assert (await fleet.actuator.observe([recommender]))[NAME].replicas == ()


async def test_an_order_that_did_not_arrive_is_made_again(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    fleet.demand(recommender.name, 8000.0)
    leader = process("a")
    await leader.turn()
    await fleet.actuator.scale(recommender, 1, fence=leader.leadership.token or 0)

    await fleet.clock.advance(5.0)
    await leader.turn()

    assert fleet.actuator.scaled[-1] == (NAME, 2)


async def test_a_new_leader_measures_only_starts_that_nobody_has_measured(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    def view(count: int, load_s: float) -> dict[str, PoolView]:
        stages = {"load": load_s}
        replicas = [Replica(f"r{n}", Stage.VERIFIED, START, START, stage_s=stages) for n in range(count)]
        return {NAME: PoolView(count, tuple(replicas))}

    first, second = process("a"), process("b")
    await first.control._measure(view(2, 30.0), START)
    kept = dict(fleet.store.tables.warmups)

    await second.control._measure(view(3, 40.0), START + timedelta(hours=1))

    stored = fleet.store.tables.warmups
    assert [(NAME, "r0"), (NAME, "r1")] == list(kept)
    assert {**kept, (NAME, "r2"): (START + timedelta(hours=1), LeadSample({"load": 40.0}, 3))} == stored
    assert 3 == second.control._lead[NAME].sample_count


async def test_an_event_registered_before_a_crash_is_prewarmed_in_time_by_the_next_leader(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    fleet.demand(recommender.name, 8000.0)
    first, second = process("a"), process("b")
    await first.turn()
    event = await register(fleet, timedelta(minutes=10))
    await fleet.clock.advance(5.0)
    await first.turn()  # and then it is gone, without a word

    while fleet.clock.now() < event.start_at - recommender.policy.prewarm_margin:
        await fleet.clock.advance(5.0)
        fleet.demand(recommender.name, 8000.0)
        await second.turn()

    async with fleet.store.unit_of_work() as uow:
        contract = (await uow.states.load())[NAME].contracts[0]
    assert contract.state is ContractState.WARM
    assert contract.replicas == 7
    assert contract.met_at is not None
    assert contract.met_at <= contract.deadline_at


async def test_a_cancelled_event_is_not_prewarmed(fleet: Fleet, process: Make, recommender: Workload) -> None:
    fleet.demand(recommender.name, 8000.0)
    leader = process("a")
    event = await register(fleet, timedelta(minutes=10))
    await leader.turn()
    async with fleet.store.unit_of_work() as uow:
        await uow.events.update(replace(event, state=EventState.CANCELLED), expected_revision=None)
        await uow.commit()

    while fleet.clock.now() < event.start_at:
        await fleet.clock.advance(5.0)
        fleet.demand(recommender.name, 8000.0)
        await leader.turn()

    assert max(count for _, count in fleet.actuator.scaled) == 2


async def test_without_the_cache_live_demand_comes_from_memory(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    fleet.cache.available = False
    fleet.demand(recommender.name, 8000.0)

    await process("a").turn()

    assert fleet.actuator.scaled == [(NAME, 2)]


async def test_minutes_wait_for_the_store_and_are_written_later(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    leader = process("a")
    fleet.meter.samples = [TrafficSample(NAME, START, 480_000.0)]
    fleet.store.available = False
    await leader.observer.scrape([recommender])
    fleet.store.available = True

    await leader.observer.flush()

    async with fleet.store.unit_of_work() as uow:
        stored = await uow.traffic.read(NAME, START, START + timedelta(minutes=1))
    assert list(stored) == [(START, 8000.0)]


async def test_minutes_that_can_never_be_stored_do_not_hold_up_those_that_can(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    leader = process("a")
    fleet.meter.samples = [TrafficSample(NAME, datetime(1970, 1, 1, tzinfo=UTC), 1.0)]
    await leader.observer.scrape([recommender])
    fleet.meter.samples = [TrafficSample(NAME, START, 480_000.0)]

    await leader.observer.scrape([recommender])

    async with fleet.store.unit_of_work() as uow:
        assert (START, START) == await uow.traffic.span(NAME)


async def test_a_long_outage_is_caught_up_in_batches(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    leader = process("a")
    minutes = [START + timedelta(minutes=index) for index in range(BATCH_MAX + 5)]
    fleet.meter.samples = [TrafficSample(NAME, at, 60.0) for at in minutes]

    await leader.observer.scrape([recommender])

    async with fleet.store.unit_of_work() as uow:
        assert (minutes[0], minutes[-1]) == await uow.traffic.span(NAME)


async def test_every_controller_can_say_how_many_replicas_the_leader_counted(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    fleet.demand(NAME, 8000.0)
    leader = process("a")
    await leader.turn()
    ordered = fleet.clock.now()
    assert {NAME: ReplicaCounts(ordered, 0, 0, 0)} == await fleet.cache.get_replicas([NAME])

    await fleet.clock.advance(5.0)
    await leader.turn()
    (starting,) = (await fleet.cache.get_replicas([NAME])).values()

    assert (ordered + timedelta(seconds=5), 2) == (starting.at, starting.warm + starting.starting)


async def test_counts_that_stand_are_told_again_after_a_while_only(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    leader = process("a")
    told_at = []
    for _ in range(20):
        await leader.turn()
        told_at.append((await fleet.cache.get_replicas([NAME]))[NAME].at)
        await fleet.clock.advance(5.0)

    # The first half is for its first replica to become warm.
    gaps = {(later - earlier).total_seconds() for earlier, later in pairwise(told_at[10:])}
    assert {0.0, 15.0} == gaps


async def test_replicas_that_could_not_be_observed_are_not_counted_as_none(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    leader = process("a")
    fleet.actuator.available = False

    await leader.turn()

    assert {} == await fleet.cache.get_replicas([NAME])


async def test_a_cache_that_is_away_keeps_no_tick(fleet: Fleet, process: Make, recommender: Workload) -> None:
    fleet.demand(NAME, 8000.0)
    fleet.cache.available = False

    await process("a").turn()

    assert 1 == len(await decisions(fleet))
