"""A start with the prebuilt engine against one that builds it: which stages there are, and what is said of others."""

import json
from pathlib import Path

import pytest

from controller.cli.app import run_command
from engines.catalog import RejectedError
from engines.datasets import write_dataset
from engines.errors import EngineInputError
from engines.load_time import Start, measure
from engines.types import Precision, RuntimeKind
from tests.integration.engines.workshop import Workshop


def stages(found: object, start: Start) -> list[str]:
    return [s.stage for s in found.stages if s.start is start]  # type: ignore[attr-defined]


def test_a_cold_start_has_what_a_prebuilt_engine_spares(workshop: Workshop, tmp_path: Path) -> None:
    engine = workshop.catalog.find(workshop.admit("cnn", Precision.INT8))
    calibration = tmp_path / "calibration.npz"
    write_dataset(calibration, workshop.examples["cnn"].calibration)
    seen: list[tuple[str, int, int]] = []

    found = measure(
        workshop.catalog,
        engine,
        runs=1,
        calibration=calibration,
        on_run=lambda what, done, total: seen.append((what, done, total)),
    )

    served = ["deserialise", "first inference", "next inference"]
    assert ["fetch", "runtime", *served] == stages(found, Start.PREBUILT)
    assert ["fetch", "runtime", "convert", "build", *served] == stages(found, Start.COLD)
    assert all(0 < s.p50_s <= s.max_s for s in found.stages)
    assert () == found.notes
    assert [("prebuilt", 0, 2), ("cold", 1, 2)] == seen
    # What is spared is the work itself: whatever the machine's load, it is not nothing.
    spared = {s.stage: s.p50_s for s in found.stages if s.start is Start.COLD}
    assert spared["convert"] + spared["build"] > 0.01


def test_what_cannot_be_measured_here_is_said_and_never_zero(workshop: Workshop) -> None:
    pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    engine = workshop.catalog.find(workshop.admit("cnn", Precision.INT8, runtime=RuntimeKind.TENSORRT_RTX))

    found = measure(workshop.catalog, engine, runs=1)

    assert ["fetch", "runtime", "convert", "build"] == stages(found, Start.COLD)[:4]
    if "deserialise" not in stages(found, Start.PREBUILT):  # there is no GPU
        assert any(note.startswith("deserialise: not measured: ") for note in found.notes)
    assert any("FP32 was built instead of INT8" in note for note in found.notes)


def test_a_damaged_engine_is_not_timed(workshop: Workshop) -> None:
    engine = workshop.catalog.find(workshop.admit("cnn"))
    (stored,) = (workshop.folder / "catalog").rglob("model.onnx")
    stored.write_bytes(b"x")

    with pytest.raises(RejectedError, match="TRUNCATED"):
        measure(workshop.catalog, engine, runs=1)
    with pytest.raises(EngineInputError, match="runs: 0"):
        measure(workshop.catalog, engine, runs=0)


def test_the_command_prints_a_table_or_json(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    engine = workshop.admit("cnn")
    given = ["engine", "load-time", engine, "--catalog", str(workshop.folder / "catalog"), "--runs", "1"]

    assert 0 == run_command([*given, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert engine == found["engine_id"]
    assert {"PREBUILT", "COLD"} == found["total_s"].keys()
    assert 0 == run_command(given)
    assert "deserialise" in capsys.readouterr().out
