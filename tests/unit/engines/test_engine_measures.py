"""Measures, worked by hand, and the budgets they are held to."""

import numpy as np
import pytest

from engines.errors import EngineInputError
from engines.measures import (
    Budget,
    auc,
    default_budgets,
    find_measure,
    ndcg,
    parse_budget,
    relative_error,
)
from engines.types import Precision


def measured(name: str, reference: object, candidate: object, labels: object = None) -> float:
    as_array = None if labels is None else np.asarray(labels)
    return find_measure(name)(
        {"y": np.asarray(reference, np.float32)}, {"y": np.asarray(candidate, np.float32)}, as_array
    ).value


def test_auc_counts_ordered_pairs_and_ties_half() -> None:
    # Positives 0.9 and 0.4, negatives 0.4 and 0.1: pairs won 1, 1, tied, 1 of 4.
    assert auc(np.array([1, 1, 0, 0]), np.array([0.9, 0.4, 0.4, 0.1])) == pytest.approx(3.5 / 4)


def test_ndcg_discounts_by_rank() -> None:
    # Relevance 0, 1 ranked first, second: gain 1/log2(3); ideal: 1.
    assert ndcg(np.array([[0, 1]]), np.array([[0.9, 0.1]]), 2) == pytest.approx(1 / np.log2(3))
    assert ndcg(np.array([[0, 1], [0, 0]]), np.array([[0.1, 0.9], [1, 2]]), 1) == pytest.approx(1.0)


@pytest.mark.parametrize("labels", [[1, 1], [0, 0]])
def test_auc_without_both_kinds_is_refused_not_zero(labels: list[int]) -> None:
    with pytest.raises(EngineInputError, match="AUC needs positives and negatives"):
        auc(np.array(labels), np.array([0.1, 0.2]))


def test_ndcg_without_any_gain_is_refused_not_zero() -> None:
    with pytest.raises(EngineInputError, match="NDCG needs a positive label"):
        ndcg(np.zeros((2, 3)), np.ones((2, 3)), 1)


@pytest.mark.parametrize(
    ("name", "reference", "candidate", "expected"),
    [
        ("abs_error_max", [[1, 2], [3, 4]], [[1, 2.5], [3, 3]], 1.0),
        ("abs_error_mean", [[1, 2], [3, 4]], [[1, 2.5], [3, 3]], 0.375),
        ("rel_error", [[3, 4]], [[3, 4.5]], 0.1),
        ("cosine_min", [[1, 0], [1, 1]], [[1, 0], [1, 0]], 2**-0.5),
        ("cosine_min", [[0, 0]], [[0, 0]], 1.0),
        ("cosine_min", [[0, 0]], [[1, 0]], 0.0),
        ("topk_agreement@1", [[1, 2], [2, 1]], [[1, 2], [1, 2]], 0.5),
        ("topk_agreement@2", [[1, 2, 3]], [[3, 1, 2]], 0.5),
    ],
)
def test_numeric_measures(name: str, reference: object, candidate: object, expected: float) -> None:
    assert measured(name, reference, candidate) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("auc_drop", [[0, 1], [1, 0]], 1.0 - 0.5),
        ("ndcg_drop@1", [[0, 1], [1, 0]], 0.5),
        ("accuracy_drop", [1, 0], 0.5),
    ],
)
def test_business_measures_tell_what_was_lost(name: str, labels: object, expected: float) -> None:
    # The reference orders both rows rightly, the candidate only the first.
    assert measured(name, [[0, 1], [1, 0]], [[0, 1], [0, 1]], labels) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["auc_drop", "ndcg_drop@1", "accuracy_drop"])
def test_business_measures_need_fitting_labels(name: str) -> None:
    with pytest.raises(EngineInputError, match=r"validation\.labels"):
        measured(name, [[0, 1]], [[0, 1]], None)


def test_outputs_of_another_shape_are_refused() -> None:
    with pytest.raises(EngineInputError, match=r"output\.y"):
        measured("rel_error", [[1, 2]], [[1]])
    with pytest.raises(EngineInputError, match=r"output\.y"):
        find_measure("rel_error")({"y": np.ones(1)}, {}, None)
    with pytest.raises(EngineInputError, match="offers 2 choices"):
        measured("topk_agreement@3", [[1, 2]], [[1, 2]])


def test_the_error_of_a_zero_reference_is_absolute() -> None:
    assert relative_error(np.zeros(4, np.float32), np.full(4, 0.5, np.float32)) == pytest.approx(0.5)


def test_a_budget_reads_back_as_it_was_written() -> None:
    assert Budget("auc_drop", 0.002, is_upper=True) == parse_budget(" auc_drop <= 0.002 ")
    assert "cosine_min>=0.99" == str(parse_budget("cosine_min>=0.99"))


@pytest.mark.parametrize(
    "text",
    [
        "auc_drop",
        "auc_drop<0.1",
        "auc_drop<=x",
        "auc_drop<=nan",
        "auc_drop<=1e",
        "nonsense<=1",
        "rel_error@3<=1",
        "ndcg_drop@0<=1",
    ],
)
def test_a_budget_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(EngineInputError, match="budget"):
        parse_budget(text)


def test_a_measure_of_ones_own_is_called() -> None:
    budget = parse_budget("numpy:allclose>=1")

    with pytest.raises(EngineInputError, match="cannot be imported"):
        parse_budget("no.such.module:f<=1")
    assert budget.measure == "numpy:allclose"


def test_a_value_that_is_not_finite_is_never_within() -> None:
    assert not parse_budget("rel_error<=1").holds(float("nan"))
    assert parse_budget("rel_error<=1").excess(float("inf")) == float("inf")


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [("rel_error<=0.1", 0.2, 1.0), ("rel_error<=0.1", 0.05, -0.5), ("cosine_min>=0.9", 0.8, 1.0)],
)
def test_excess_is_measured_in_limits(text: str, value: float, expected: float) -> None:
    assert parse_budget(text).excess(value) == pytest.approx(expected)


def test_default_budgets_follow_the_labels() -> None:
    scores = {"y": np.zeros((1, 8))}

    def names(labels: object) -> list[str]:
        known = None if labels is None else np.asarray(labels)
        return [budget.measure for budget in default_budgets(Precision.INT8, scores, known)]

    assert ["rel_error", "cosine_min", "topk_agreement@1"] == names(None)
    assert ["rel_error", "cosine_min", "topk_agreement@3", "auc_drop", "ndcg_drop@3"] == names(
        np.zeros((1, 8))
    )
    assert ["rel_error", "cosine_min", "topk_agreement@1", "accuracy_drop"] == names([1])
    one = default_budgets(Precision.FP16, {"y": np.zeros((1, 1))}, None)
    assert ["rel_error<=0.01", "cosine_min>=0.999"] == [str(budget) for budget in one]
