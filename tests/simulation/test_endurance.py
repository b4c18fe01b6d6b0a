"""Half a virtual day of the production loop with faults: it keeps no more at the end, and what it stored is what runs."""

import logging
from collections.abc import Iterator

import pytest

from benchmarks import endurance
from controller.loop.control import Control


@pytest.fixture(autouse=True)
def nothing_logged() -> Iterator[None]:
    """What is broken on purpose is told at length, and a test keeps all of it."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


async def test_half_a_day_with_faults_keeps_nothing_that_is_over() -> None:
    found = await endurance.endure(12, 1, sample_every_h=0.25)
    growth = found.growth((4, 7), (9, 12))

    assert [] == found.wrong
    assert found.compared > 500
    assert found.faults.total() > 10
    assert growth["objects"] < 1.1
    assert growth["kib"] < 1.1
    assert growth["state_bytes"] < 2
    assert growth["other_blocks_a_tick"] < 0.1


async def test_what_a_controller_never_forgets_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = Control.tick

    async def hoarding(self: Control, *arguments: object) -> object:
        effects = await turn(self, *arguments)  # type: ignore[arg-type]
        count = len(self.orders)
        self.orders.update({f"never forgotten, {count + n}": 1000 + count + n for n in range(10)})
        return effects

    monkeypatch.setattr(Control, "tick", hoarding)
    found = await endurance.endure(5, 1, sample_every_h=0.25)

    assert found.growth((3, 4), (4, 5))["objects"] > 1.15


async def test_what_a_module_never_forgets_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    turn, kept = Control.tick, list[object]()

    async def hoarding(self: Control, *arguments: object) -> object:
        kept.append(object())
        return await turn(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Control, "tick", hoarding)
    found = await endurance.endure(5, 1, sample_every_h=0.25)
    growth = found.growth((3, 4), (4, 5))

    assert growth["other_blocks_a_tick"] > 0.5
    assert growth["objects"] < 1.15
