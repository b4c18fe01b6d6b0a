"""The verdict of the accuracy gate, from answers alone."""

import numpy as np
import pytest

from engines.datasets import Dataset
from engines.errors import EngineInputError
from engines.measures import parse_budget
from engines.report import write_html
from engines.types import from_json, to_json
from engines.validation import GateReport, judge

REFERENCE = {"y": np.array([[1, 2], [3, 4]], np.float32)}
SET = Dataset({"x": np.zeros((2, 1), np.float32)}, np.array([1, 1]))


def verdict(candidate: object, *budgets: str) -> GateReport:
    answers = {"y": np.asarray(candidate, np.float32)}
    texts = budgets or ("abs_error_max<=0.5",)
    return judge(
        REFERENCE, answers, [parse_budget(t) for t in texts], dataset=SET, ran="a test", against="FP32"
    )


def own_measure(reference: object, candidate: object, labels: object) -> float:
    raise RuntimeError("no connection")


def half(reference: object, candidate: object, labels: object) -> float:
    return 0.5


def test_answers_within_every_budget_pass() -> None:
    report = verdict([[1, 2.4], [3, 4]], "abs_error_max<=0.5", "accuracy_drop<=0")

    assert report.is_passed
    assert () == report.reasons
    assert report.excess <= 0


def test_one_budget_exceeded_fails_and_says_by_how_much() -> None:
    report = verdict([[2, 1], [3, 4]], "abs_error_max<=0.5", "accuracy_drop<=0.1", "abs_error_mean<=1")

    assert not report.is_passed
    assert (
        "abs_error_max is 1, allowed is at most 0.5",
        "accuracy_drop is 0.5 (1.0000 to 0.5000), allowed is at most 0.1",
    ) == report.reasons
    assert 4.0 == pytest.approx(report.excess)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_one_answer_that_is_not_finite_fails_whatever_the_budgets(bad: float) -> None:
    report = verdict([[1, 2], [3, bad]], "abs_error_max<=1e9")

    assert ("1 output values are not finite",) == report.reasons
    assert report.results[0].value is None
    assert report.excess == float("inf")


def test_what_cannot_be_measured_fails_with_its_reason() -> None:
    report = verdict([[1, 2], [3, 4]], "auc_drop<=0.1")

    assert not report.is_passed
    assert report.results[0].value is None
    assert "auc_drop could not be measured: validation.labels" in report.reasons[0]


def test_a_measure_of_ones_own_counts_and_may_fail_by_raising(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "own_measures", sys.modules[__name__])
    report = verdict([[1, 2], [3, 4]], "own_measures:half<=0.4", "own_measures:own_measure<=1")

    assert (
        "own_measures:half is 0.5, allowed is at most 0.4",
        "own_measures:own_measure could not be measured: RuntimeError: no connection",
    ) == report.reasons


def test_a_gate_without_a_budget_is_refused() -> None:
    with pytest.raises(EngineInputError, match="budget: there is none"):
        judge(REFERENCE, REFERENCE, [], dataset=SET, ran="", against="")


def test_a_report_survives_json() -> None:
    report = verdict([[2, 1], [3, np.nan]], "abs_error_max<=0.5")

    assert report == from_json(GateReport, to_json(report), "report")


def test_the_page_escapes_what_it_is_given_and_needs_nothing_else() -> None:
    report = verdict([[2, 1], [3, 4]])

    page = write_html("<script>alert(1)</script>", report, REFERENCE, {"y": REFERENCE["y"] + 1})

    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "cannot be promoted" in page
    assert "<svg" in page
    assert 'src="' not in page


def test_the_page_shows_answers_that_are_not_finite_without_failing() -> None:
    broken = np.full((2, 2), np.nan, np.float32)

    assert "not finite" in write_html("t", verdict(broken), REFERENCE, {"y": broken})
