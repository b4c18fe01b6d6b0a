"""The guide's table and the example ScaledObjects are what the scaler does."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.api.keda import DEFAULT_AGE_MAX_S, DEFAULT_TOLERANCE, KEDAS, OURS, trigger_of
from controller.usecases.errors import InvalidError
from controller.usecases.keda import metric_for
from tests.property.keda.test_keda_metric import hpa

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs/keda.md").read_text()
EXAMPLES = sorted((ROOT / "deploy/keda").glob("*.yaml"))


def test_the_table_of_counts_is_what_the_hpa_makes_of_the_metric() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| ([\d.]+) \| (\d+) \|$", GUIDE, re.MULTILINE)

    assert len(rows) == 5
    for running, wanted, metric, reached in rows:
        told = metric_for(int(wanted), int(running), DEFAULT_TOLERANCE)
        assert float(metric) == pytest.approx(told, abs=0.01)
        assert int(reached) == hpa(int(running), told, DEFAULT_TOLERANCE, edge_is_inside=True)


def test_every_key_of_the_metadata_is_in_the_guide_with_its_default() -> None:
    assert [key for key in (*OURS, *(KEDAS - {"tlsCertFile"})) if f"`{key}`" not in GUIDE] == []
    assert f'`"{DEFAULT_TOLERANCE:g}"`' in GUIDE
    assert f'`"{DEFAULT_AGE_MAX_S:g}"`' in GUIDE


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_manifests_whose_metadata_the_scaler_takes(path: Path) -> None:
    found: dict[str, Any] = yaml.safe_load(path.read_text())

    assert found["apiVersion"] == "keda.sh/v1alpha1"
    for trigger in found["spec"].get("triggers", ()):
        read = trigger_of(trigger["metadata"])
        behavior = (
            found["spec"].get("advanced", {}).get("horizontalPodAutoscalerConfig", {}).get("behavior", {})
        )
        assert read.workload == "recommender"
        # What the scaler is told about the tolerance is what the HPA gets.
        assert read.tolerance == behavior.get("scaleUp", {}).get("tolerance", DEFAULT_TOLERANCE)


def test_a_mistyped_key_is_told_with_the_keys_there_are() -> None:
    with pytest.raises(InvalidError, match="hpaTolerence: is not known; there are workload, hpaTolerance"):
        trigger_of({"workload": "rec", "hpaTolerence": "0"})
