"""What the loop keeps of a prewarm beyond its own state, and the capacity it takes from the engine catalogue."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from controller.core.engines import Engine, EngineKind, EngineProfile, EngineState
from controller.core.resources import TrafficEvent
from controller.core.types import (
    CapacityProfile,
    Contract,
    ContractState,
    FleetState,
    Precision,
    Slo,
    Workload,
    WorkloadState,
)
from controller.loop.control import changed_contracts
from tests.unit.loop.conftest import START, Fleet, Process

Make = Callable[[str], Process]
MINUTE = timedelta(minutes=1)


def a_contract(verified: int = 0, warm_in: int = 60) -> Contract:
    return Contract(
        event_id="midnight",
        revision=1,
        state=ContractState.PREWARMING,
        replicas=8,
        order_at=START,
        deadline_at=START + MINUTE,
        start_at=START + 2 * MINUTE,
        end_at=START + 9 * MINUTE,
        verified_count=verified,
        expected_warm_at=START + timedelta(seconds=warm_in),
    )


def a_fleet(*contracts: Contract) -> FleetState:
    return FleetState({"recommender": WorkloadState(contracts=contracts)})


def test_only_what_says_something_new_is_kept() -> None:
    assert [("recommender", a_contract())] == changed_contracts(FleetState(), a_fleet(a_contract()))
    assert [] == changed_contracts(a_fleet(a_contract()), a_fleet(a_contract(warm_in=65)))
    assert [("recommender", a_contract(3))] == changed_contracts(
        a_fleet(a_contract()), a_fleet(a_contract(3))
    )
    assert [] == changed_contracts(a_fleet(a_contract()), a_fleet())


async def test_what_became_of_a_prewarm_is_there_after_the_event(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    event = TrafficEvent(
        id="midnight",
        workloads=("recommender",),
        start_at=START + 5 * MINUTE,
        end_at=START + 8 * MINUTE,
        time_zone="UTC",
        expected_peak_qps=35_000.0,
    )
    async with fleet.store.unit_of_work() as uow:
        await uow.events.create(event)
        await uow.commit()
    leader = process("a")
    for _ in range(140):
        fleet.demand("recommender", 8000.0)
        await leader.turn()
        await fleet.clock.advance(5.0)

    async with fleet.store.unit_of_work() as uow:
        kept = await uow.states.kept_contract("recommender", "midnight")

    assert kept is not None
    assert kept.met_at is not None
    assert kept.met_at <= kept.deadline_at
    assert kept.verified_count >= kept.replicas == 7


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        pytest.param(EngineState.VALIDATED, 2, id="not active: as the workload declares"),
        pytest.param(EngineState.ACTIVE, 4, id="active: as measured, half as much"),
    ],
)
async def test_the_loop_decides_with_what_the_active_engine_was_measured_to_sustain(
    fleet: Fleet, process: Make, recommender: Workload, state: EngineState, expected: int
) -> None:
    named = replace(
        recommender,
        profiles=(replace(recommender.profile, engine="engines/int8", gpu_type="T4"),),
    )
    engine = Engine(
        id="int8",
        model_name="recommender",
        digest="sha256:" + "1" * 64,
        model_digest="sha256:" + "2" * 64,
        kind=EngineKind.TENSORRT,
        precision=Precision.INT8,
        runtime_version="10",
        compute_capabilities=("7.5",),
        state=state,
    )
    slower = CapacityProfile("engines/int8", "T4", 2600.0, instance_count=2, batch_size_max=64)
    async with fleet.store.unit_of_work() as uow:
        await uow.workloads.update(named, expected_generation=None)
        await uow.engines.create(engine)
        await uow.engines.put_profile(EngineProfile("int8", slower, Slo(), START))
        await uow.commit()
    fleet.demand("recommender", 8000.0)

    await process("a").turn()

    assert [("recommender", expected)] == fleet.actuator.scaled
