"""A dry run goes through every layer, changes nothing, and says so."""

from datetime import UTC, datetime

import pytest

from controller.actuators.dry_run import DryRunActuator, DryRunError
from controller.adapters.clock import VirtualClock
from controller.adapters.fakes import FakeActuator
from controller.core.types import CapacityProfile, Workload
from controller.ports import StaleFenceError

WORKLOAD = Workload("w", "m", (CapacityProfile("e", "g", 10.0),))


async def test_an_order_is_refused_by_name_and_nothing_is_started() -> None:
    inner = FakeActuator(VirtualClock(datetime(2026, 1, 1, tzinfo=UTC)))
    actuator = DryRunActuator(inner)

    with pytest.raises(DryRunError, match="would be scaled to 3"):
        await actuator.scale(WORKLOAD, 3, fence=1)

    assert inner.scaled == []
    assert (await actuator.observe([WORKLOAD]))["w"].replicas == ()


async def test_what_was_asked_for_is_not_asked_for_again_every_tick() -> None:
    actuator = DryRunActuator(FakeActuator(VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))))
    with pytest.raises(DryRunError):
        await actuator.scale(WORKLOAD, 3, fence=1)

    assert (await actuator.observe([WORKLOAD]))["w"].desired_replicas == 3


async def test_a_stale_leader_is_refused_as_by_the_real_one() -> None:
    actuator = DryRunActuator()
    with pytest.raises(DryRunError):
        await actuator.scale(WORKLOAD, 3, fence=2)

    with pytest.raises(StaleFenceError):
        await actuator.replace(WORKLOAD, "r", fence=1)


async def test_a_claim_fences_and_ends_nothing() -> None:
    inner = FakeActuator(VirtualClock(datetime(2026, 1, 1, tzinfo=UTC)))
    await inner.scale(WORKLOAD, 1, fence=1)
    actuator = DryRunActuator(inner)
    with pytest.raises(DryRunError):
        await actuator.scale(WORKLOAD, 3, fence=2)

    await actuator.claim([], fence=3)

    found = (await actuator.observe([WORKLOAD]))["w"]
    assert (1, 1) == (found.desired_replicas, len(found.replicas))
    with pytest.raises(StaleFenceError):
        await actuator.claim([WORKLOAD], fence=2)


async def test_without_an_inner_actuator_replicas_are_unknown() -> None:
    assert await DryRunActuator().observe([WORKLOAD]) == {}
