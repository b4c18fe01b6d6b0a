"""Seeded worlds: every invariant holds on all of them, and a core that breaks one is caught."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import pytest

from controller.core.types import (
    Effect,
    FleetState,
    OverrideKind,
    RaiseAlarm,
    RecordDecision,
    ReplaceReplica,
    ScaleTo,
    TickInput,
)
from controller.simulation import faults

BLOCK = 50


@pytest.mark.parametrize("first", range(0, 500, BLOCK))
def test_invariants_hold_in_seeded_worlds(first: int) -> None:
    for seed in range(first, first + BLOCK):
        faults.run_seed(seed)


def test_a_paused_workload_that_follows_what_runs_does_not_grow_its_pool() -> None:
    faults.run_seed(14680)


def test_a_pool_that_its_tolerance_keeps_below_the_need_has_healed() -> None:
    faults.run_seed(14691)


def test_worlds_really_contain_every_kind_of_fault() -> None:
    worlds = [faults.World(seed) for seed in range(200)]
    kinds = {fault.kind for world in worlds for fault in world.faults}

    assert {*faults.METRIC_FAULTS, *faults.OTHER_FAULTS} == kinds
    assert any(len(world.handovers) > 1 for world in worlds)
    assert any(len(world.clock_steps) > 1 for world in worlds)
    assert any(world.edits for world in worlds)
    assert any(world.pools for world in worlds)
    assert {o.kind for world in worlds for all_of in world.overrides.values() for o in all_of} == set(
        OverrideKind
    )


def test_the_same_seed_runs_the_same_world() -> None:
    assert faults.run_seed(7).stored == faults.run_seed(7).stored


Core = Callable[[FleetState, TickInput], tuple[FleetState, tuple[Effect, ...]]]


def _forgetful(core: Core) -> Callable[..., tuple[FleetState, tuple[Effect, ...]]]:
    """Return a core that decides everything anew, whatever is remembered."""
    return lambda state, tick, _calm=None: core(state, tick)


def _moved(by: Callable[[int, int], int]) -> Callable[[Core], Core]:
    """Return a saboteur: the real core, whose count is changed by ``by(count, max_replicas)`` in state and effects."""

    def wrap(core: Core) -> Core:
        def sabotaged(state: FleetState, tick: TickInput) -> tuple[FleetState, tuple[Effect, ...]]:
            after, effects = core(state, tick)
            top = {w.workload.name: w.workload.max_replicas for w in tick.workloads}
            states = {
                name: s
                if s.desired_replicas is None or name not in top
                else replace(s, desired_replicas=by(s.desired_replicas, top[name]))
                for name, s in after.workloads.items()
            }
            return FleetState(states), effects

        return sabotaged

    return wrap


def _raises(core: Core) -> Core:
    def sabotaged(state: FleetState, tick: TickInput) -> tuple[FleetState, tuple[Effect, ...]]:
        if any(w.demand is None for w in tick.workloads):
            raise ZeroDivisionError
        return core(state, tick)

    return sabotaged


def _forgets_records(core: Core) -> Core:
    def sabotaged(state: FleetState, tick: TickInput) -> tuple[FleetState, tuple[Effect, ...]]:
        after, effects = core(state, tick)
        return after, tuple(e for e in effects if not isinstance(e, RecordDecision))

    return sabotaged


def _ignores_pause(core: Core) -> Core:
    def sabotaged(state: FleetState, tick: TickInput) -> tuple[FleetState, tuple[Effect, ...]]:
        bare = [
            replace(w, overrides=tuple(o for o in w.overrides if o.kind is not OverrideKind.PAUSE))
            for w in tick.workloads
        ]
        return core(state, replace(tick, paused=False, workloads=tuple(bare)))

    return sabotaged


def _takes_missing_for_zero(core: Core) -> Core:
    def sabotaged(state: FleetState, tick: TickInput) -> tuple[FleetState, tuple[Effect, ...]]:
        after, effects = core(state, tick)
        blind = {w.workload.name for w in tick.workloads if w.demand is None}
        states = {
            name: replace(s, desired_replicas=0, contracts=()) if name in blind else s
            for name, s in after.workloads.items()
        }
        return FleetState(states), effects

    return sabotaged


def _never_replaces(core: Core) -> Core:
    def sabotaged(state: FleetState, tick: TickInput) -> tuple[FleetState, tuple[Effect, ...]]:
        after, effects = core(state, tick)
        return after, tuple(e for e in effects if not isinstance(e, ReplaceReplica))

    return sabotaged


def _never_acts(core: Core) -> Core:
    def sabotaged(state: FleetState, tick: TickInput) -> tuple[FleetState, tuple[Effect, ...]]:
        after, effects = core(state, tick)
        return after, tuple(e for e in effects if not isinstance(e, ScaleTo))

    return sabotaged


def _ignores_quota(core: Core) -> Core:
    def sabotaged(state: FleetState, tick: TickInput) -> tuple[FleetState, tuple[Effect, ...]]:
        bare = [replace(w, workload=replace(w.workload, quota_pool=None)) for w in tick.workloads]
        return core(state, replace(tick, workloads=tuple(bare)))

    return sabotaged


def _forgets_alarms(core: Core) -> Core:
    def sabotaged(state: FleetState, tick: TickInput) -> tuple[FleetState, tuple[Effect, ...]]:
        after, effects = core(state, tick)
        return after, tuple(e for e in effects if not isinstance(e, RaiseAlarm))

    return sabotaged


def _favours_the_first(core: Core) -> Core:
    def sabotaged(state: FleetState, tick: TickInput) -> tuple[FleetState, tuple[Effect, ...]]:
        after, effects = core(state, tick)
        first = tick.workloads[0].workload
        own = after.workloads[first.name]
        if own.desired_replicas == first.min_replicas and first.min_replicas < first.max_replicas:
            own = replace(own, desired_replicas=first.min_replicas + 1)
        return FleetState({**after.workloads, first.name: own}), effects

    return sabotaged


@pytest.mark.parametrize(
    ("sabotage", "numbers"),
    [
        (_raises, {1}),
        (_moved(lambda _, top: top + 40), {2}),
        (_moved(lambda count, _: max(0, count - 3)), {3, 4, 5, 7}),
        (_takes_missing_for_zero, {3, 4}),
        (_ignores_pause, {6}),
        (_forgets_records, {8}),
        (_never_replaces, {18}),
        (_never_acts, {18}),
        (_ignores_quota, {17}),
        (_forgets_alarms, {14}),
        (_favours_the_first, {12}),
    ],
    ids=[
        "raises",
        "above max",
        "three too few",
        "missing is zero",
        "ignores pause",
        "no record",
        "no repair",
        "idle",
        "no quota",
        "no alarms",
        "order matters",
    ],
)
def test_a_broken_core_is_caught(
    monkeypatch: pytest.MonkeyPatch, sabotage: Callable[[Core], Core], numbers: set[int]
) -> None:
    monkeypatch.setattr(faults, "on_tick", _forgetful(sabotage(faults.on_tick)))
    caught: set[int] = set()
    for seed in range(60):
        try:
            faults.run_seed(seed)
        except faults.BrokenInvariantError as error:
            caught.add(int(str(error).split()[1]))
        if caught & numbers:
            break

    assert caught & numbers, caught


def test_a_core_that_remembers_too_long_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.core.tick._stays_calm", lambda last, stored, *_: stored is last.state)

    with pytest.raises(faults.BrokenInvariantError, match="invariant 19"):
        deque(map(faults.run_seed, range(60)), maxlen=0)


def test_a_failing_seed_says_how_to_run_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(faults, "on_tick", _forgetful(_forgets_records(faults.on_tick)))

    assert faults.main(["--seeds", "0:20"]) == 1
    assert "python -m controller.simulation.faults --seeds" in capsys.readouterr().err
