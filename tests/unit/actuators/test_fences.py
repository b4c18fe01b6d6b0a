"""Which orders a newer token keeps out."""

import pytest

from controller.actuators.fences import Fences
from controller.core.types import CapacityProfile, Workload
from controller.ports import StaleFenceError

ONE, TWO = (Workload(name, "m", (CapacityProfile("e", "g", 100.0),), max_replicas=3) for name in ("1", "2"))


def test_the_only_leader_keeps_older_ones_out_of_everything() -> None:
    fences = Fences()
    fences.claim([ONE], None, 5)

    for name in ("1", "2"):
        with pytest.raises(StaleFenceError, match="fence 4 is older than 5"):
            fences.check(name, 4)
    with pytest.raises(StaleFenceError):
        fences.claim([], None, 4)


def test_a_shard_keeps_older_ones_out_of_its_own_workloads_alone() -> None:
    fences = Fences()
    fences.claim([ONE], [TWO], 5)
    fences.claim([TWO], [ONE], 4)
    fences.claim([], [], 9)  # one without workloads, as before any was registered

    fences.check("2", 4)
    with pytest.raises(StaleFenceError):
        fences.check("1", 4)


def test_a_workload_that_nobody_knows_any_more_is_forgotten() -> None:
    fences = Fences()
    fences.claim([ONE, TWO], [], 5)

    fences.claim([], [ONE], 6)
    fences.claim([TWO], [ONE], 4)
    with pytest.raises(StaleFenceError):
        fences.check("1", 4)


def test_a_single_leader_after_shards_is_held_to_what_they_claimed() -> None:
    fences = Fences()
    fences.claim([ONE], [TWO], 5)

    with pytest.raises(StaleFenceError):
        fences.claim([ONE, TWO], None, 4)
    fences.claim([ONE, TWO], None, 6)
    with pytest.raises(StaleFenceError):
        fences.check("1", 5)
