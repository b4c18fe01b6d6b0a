"""Half a virtual day of the production loop with faults: it keeps no more at the end, and what it stored is what runs."""

import pytest

from benchmarks import endurance
from controller.loop.control import Control


async def test_half_a_day_with_faults_keeps_nothing_that_is_over() -> None:
    found = await endurance.endure(12, 1, sample_every_h=0.25)
    growth = found.growth((4, 7), (9, 12))

    assert [] == found.wrong
    assert found.compared > 500
    assert found.faults.total() > 10
    assert growth["objects"] < 1.1
    assert growth["kib"] < 1.1
    assert growth["state_bytes"] < 2


async def test_what_a_controller_never_forgets_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = Control.tick

    async def hoarding(self: Control, *arguments: object) -> object:
        effects = await turn(self, *arguments)  # type: ignore[arg-type]
        self.orders[f"never forgotten, {len(self.orders)}"] = 1
        return effects

    monkeypatch.setattr(Control, "tick", hoarding)
    found = await endurance.endure(3, 1, sample_every_h=0.25)

    assert found.growth((1, 2), (2, 3))["objects"] > 1.1
