"""Seeded worlds of leased shards: the invariants hold on all of them, and rules that break one are caught."""

from collections import Counter
from collections.abc import Collection, Mapping

import pytest

from controller.loop import shards as production
from controller.ports import LEADER_LEASE, SHARD_LEASES, StaleFenceError
from controller.simulation import shards
from controller.simulation.faults import BrokenInvariantError

BLOCK = 10


@pytest.mark.parametrize("first", range(0, 60, BLOCK))
async def test_invariants_hold_in_seeded_worlds_of_shards(first: int) -> None:
    faults: Counter[str] = Counter()
    for seed in range(first, first + BLOCK):
        faults += (await shards.run_world(seed)).faults

    assert {"join", "kill", "end", "stop", "store_away", "clock_step", "rollout"} == faults.keys()


async def test_the_same_seed_runs_the_same_world_of_shards() -> None:
    once, again = await shards.run_world(7), await shards.run_world(7)

    assert once.newest == again.newest
    assert once.holders() == again.holders()


async def _some_world_breaks() -> str:
    for seed in range(40):
        try:
            await shards.run_world(seed)
        except BrokenInvariantError as error:
            return str(error)
    return ""


async def test_controllers_that_do_not_agree_on_cohorts_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(production, "placing", lambda count, _: f"shards:{count}")

    assert "invariant" in await _some_world_breaks()


async def test_a_fence_that_forgets_the_agreement_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(tokens: Mapping[str, int], token: int) -> None:
        if all(t != token or not n.startswith((LEADER_LEASE, SHARD_LEASES)) for n, t in tokens.items()):
            raise StaleFenceError("stale")

    monkeypatch.setattr(shards, "held_lease", forgetful)

    assert "invariant" in await _some_world_breaks()


async def test_a_controller_that_keeps_all_it_has_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(
        me: str,
        members: Collection[str],
        holders: Mapping[int, str],
        count: int,
    ) -> production.Step:
        return production.Step(take=tuple(shard for shard in range(count) if shard not in holders))

    monkeypatch.setattr(production, "next_step", greedy)

    assert "shares differ" in await _some_world_breaks()
