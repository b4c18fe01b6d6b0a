"""What a record of an engine says by itself."""

import pytest

from controller.core.engines import Engine, EngineKind, EngineMeasure
from controller.core.types import Precision


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (0.99, 0.99, None, True),
        (0.98, 0.99, None, False),
        (0.1, None, 0.1, True),
        (0.2, None, 0.1, False),
        (0.5, 0.1, 0.9, True),
        (float("nan"), 0.1, None, False),
        (float("nan"), None, 0.9, False),
    ],
)
def test_a_measure_keeps_its_budget_within_both_bounds(
    value: float, low: float | None, high: float | None, expected: bool
) -> None:
    assert expected is EngineMeasure("cosine", value, low, high).kept


def test_engines_of_one_model_and_hardware_stand_in_each_others_place() -> None:
    engine = Engine(
        "a", "rec", "d", "m", EngineKind.TENSORRT, Precision.INT8, "10", compute_capabilities=("9.0", "8.9")
    )

    assert ("rec", EngineKind.TENSORRT, ("8.9", "9.0")) == engine.slot
