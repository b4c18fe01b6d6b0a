"""What the checks find in a calibration set, and what they leave alone."""

import numpy as np
import pytest

from engines.calibration import FindingKind, Severity, check_calibration, errors_in, psi
from engines.datasets import Dataset
from engines.errors import EngineInputError

RANDOM_SEED = 5


def normal(count: int, *, scale: float = 1.0, shift: float = 0.0, seed: int = RANDOM_SEED) -> Dataset:
    values = np.random.default_rng(seed).normal(shift, scale, (count, 3))
    return Dataset({"x": values.astype(np.float32)})


def kinds(calibration: Dataset, validation: Dataset | None = None) -> set[tuple[FindingKind, Severity]]:
    return {(finding.kind, finding.severity) for finding in check_calibration(calibration, validation)}


def test_a_set_like_the_traffic_has_no_finding() -> None:
    assert kinds(normal(1000), normal(500, seed=6)) == set()


def test_too_few_samples_are_found_and_very_few_forbid() -> None:
    assert kinds(normal(100)) == {(FindingKind.TOO_FEW_SAMPLES, Severity.WARNING)}
    assert kinds(normal(31)) == {(FindingKind.TOO_FEW_SAMPLES, Severity.ERROR)}


def test_a_range_that_leaves_traffic_out_forbids() -> None:
    found = check_calibration(normal(1000, scale=0.1), normal(500, seed=6))

    assert {FindingKind.NOT_COVERED, FindingKind.DRIFT} == {f.kind for f in errors_in(found)}
    assert "x[0] in validation lie outside calibration's" in found[0].sentence


def test_drift_within_the_range_is_found() -> None:
    wide = Dataset({"x": np.linspace(-5, 5, 3000, dtype=np.float32).reshape(1000, 3)})

    assert (FindingKind.DRIFT, Severity.ERROR) in kinds(wide, normal(500, shift=1))


def test_a_long_tail_is_a_warning() -> None:
    values = normal(1000).inputs["x"].copy()
    values[7, 1] = 80.0

    found = check_calibration(Dataset({"x": values}))

    assert [(FindingKind.LONG_TAIL, "x[1]")] == [(f.kind, f.subject) for f in found]


def test_a_feature_that_never_varied_forbids() -> None:
    still = Dataset({"x": np.zeros((300, 3), np.float32)})

    assert {(FindingKind.CONSTANT, Severity.ERROR)} == kinds(still, normal(300))
    assert set() == kinds(still, still)


def test_ids_are_compared_as_a_population_not_as_a_range() -> None:
    random = np.random.default_rng(1)
    seen = Dataset({"id": random.integers(0, 1000, (500, 1))})
    rare = Dataset({"id": np.r_[random.integers(0, 1000, 499), 5000].reshape(500, 1)})
    others = Dataset({"id": random.integers(1000, 2000, (500, 1))})

    assert set() == kinds(seen, rare)
    assert {(FindingKind.DRIFT, Severity.ERROR)} == kinds(seen, others)


def test_texts_of_another_length_are_compared_all_the_same() -> None:
    random = np.random.default_rng(1)
    short, long = (Dataset({"t": random.integers(0, 50, (300, length))}) for length in (8, 16))

    assert set() == kinds(short, long)


def test_sets_of_different_models_are_refused() -> None:
    with pytest.raises(EngineInputError, match="same model's traffic"):
        check_calibration(normal(300), Dataset({"y": np.zeros((3, 1))}))


def test_the_stability_index_of_equal_samples_is_zero() -> None:
    values = np.arange(1000.0)

    assert psi(values, values) == pytest.approx(0.0, abs=1e-12)
    assert psi(values, values + 500) > 1
