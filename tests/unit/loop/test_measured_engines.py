"""What an engine was measured with decides from the next tick on: its capacity, and how early it is ordered."""

from collections.abc import Callable
from dataclasses import replace

from controller.core.engines import Engine, EngineKind, EngineProfile, EngineState
from controller.core.types import CapacityProfile, Precision, Slo, Workload
from tests.unit.loop.conftest import START, Fleet, Process

Make = Callable[[str], Process]


def profile(qps: float, *, load_s: float | None = None) -> EngineProfile:
    return EngineProfile(
        engine="int8-v1",
        capacity=CapacityProfile("engines/int8-v1", "T4", qps, instance_count=2, batch_size_max=64),
        slo=Slo(),
        measured_at=START,
        load_s_p50=load_s,
        load_s_p95=load_s,
    )


async def record(fleet: Fleet, measured: EngineProfile) -> None:
    async with fleet.store.unit_of_work() as uow:
        await uow.engines.put_profile(measured)
        await uow.commit()


async def test_a_measured_engine_sizes_the_fleet_and_times_its_orders(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    named = replace(recommender.profile, engine="engines/int8-v1")
    engine = Engine(
        id="int8-v1",
        model_name="recommender",
        digest="sha256:" + "1" * 64,
        model_digest="sha256:" + "2" * 64,
        kind=EngineKind.TENSORRT,
        precision=Precision.INT8,
        runtime_version="10.13.3",
        state=EngineState.ACTIVE,
    )
    async with fleet.store.unit_of_work() as uow:
        await uow.engines.create(engine)
        await uow.workloads.update(replace(recommender, profiles=(named,)), expected_generation=1)
        await uow.commit()
    fleet.demand(recommender.name, 8000.0)
    leader = process("a")
    await leader.turn()
    by_hand, usual_s = leader.control.decisions["recommender"], leader.control.leads["recommender"]

    # Half of what was thought, and minutes to load.
    await record(fleet, profile(2600.0, load_s=120.0))
    await fleet.clock.advance(5.0)
    await leader.turn()
    measured, slow_s = leader.control.decisions["recommender"], leader.control.leads["recommender"]

    assert (2, 4) == (by_hand.desired_replicas, measured.desired_replicas)
    assert 2600.0 == leader.control.known["recommender"].profile.qps_max
    assert slow_s.total_p95_s > 240.0 > usual_s.total_p95_s

    # Measured again without the load: the usual prior is back.
    await record(fleet, replace(profile(2600.0), measured_at=fleet.clock.now()))
    await fleet.clock.advance(5.0)
    await leader.turn()
    assert usual_s == leader.control.leads["recommender"]
