"""The search for layers that must stay in FP32, on gates whose answer is known."""

import pytest

from engines.errors import EngineInputError
from engines.measures import parse_budget
from engines.sensitivity import Evaluate, search
from engines.validation import BudgetResult, GateReport

BUDGET = parse_budget("rel_error<=1")


def report(value: float) -> GateReport:
    is_within = BUDGET.holds(value)
    return GateReport(
        is_passed=is_within,
        reasons=() if is_within else ("too far",),
        ran="a table",
        reference="a table",
        sample_count=1,
        validation_digest="sha256:0",
        results=(BudgetResult(budget=BUDGET, value=value, is_within=is_within, detail=""),),
    )


def gate(damage: dict[str, float], floor: float = 0.0) -> Evaluate:
    """Errors of lowered layers add up."""

    def evaluate(kept: frozenset[str]) -> GateReport:
        return report(floor + sum(d for layer, d in damage.items() if layer not in kept))

    return evaluate


def quiet(what: str, done: int, total: int) -> None:
    assert 1 <= done <= total, what


DAMAGE = {"a": 0.1, "b": 3.0, "c": 0.2, "d": 2.0, "e": 0.3, "f": 1.5, "g": 0.05}


def test_the_fewest_worst_layers_are_kept() -> None:
    found = search(list(DAMAGE), gate(DAMAGE), quiet)

    # Without b, d and f 0.65 is left; with f, 2.15.
    assert ("b", "d", "f") == found.kept
    assert found.report.is_passed
    assert ["b", "d", "f", "e", "c", "a", "g"] == [one.layer for one in found.ranking]


def test_nothing_is_kept_where_everything_fits() -> None:
    found = search(["a", "c"], gate({"a": 0.1, "c": 0.2}), quiet)

    assert () == found.kept
    assert 1 == found.evaluation_count


def test_all_are_kept_where_each_alone_is_too_much() -> None:
    found = search(["a", "b", "c"], gate({"a": 2.0, "b": 2.0, "c": 2.0}), quiet)

    assert ("a", "b", "c") == found.kept
    assert found.report.is_passed


def test_a_budget_out_of_reach_is_reported_as_failed() -> None:
    found = search(["a", "b", "c"], gate(DAMAGE, floor=5.0), quiet)

    assert not found.report.is_passed


def test_the_number_of_evaluations_is_bounded() -> None:
    layers = {f"layer_{i}": 0.5 for i in range(40)}

    found = search(list(layers), gate(layers), quiet)

    assert 38 == len(found.kept)
    assert found.evaluation_count <= 1 + 40 + 2 * 6


def test_a_model_without_such_layers_is_refused() -> None:
    with pytest.raises(EngineInputError, match="no layer can be lowered"):
        search([], gate({}), quiet)
