"""Real engines of every example: TensorRT-RTX without a GPU, and ONNX Runtime."""

from dataclasses import replace
from pathlib import Path

import pytest

from engines import trt_common
from engines.builder import builder_for
from engines.catalog import GRAPH
from engines.errors import EngineError, EngineInputError, MissingPackageError
from engines.examples import EXAMPLE_NAMES, Example
from engines.graphs import complete_profiles, prepare, signature
from engines.journal import State
from engines.node import Gpu, Machine, detect_machine
from engines.trt_tensorrt import TensorRtBuilder
from engines.types import BuildOptions, DimRange, HardwareCompatibility, Precision, RuntimeKind
from tests.integration.engines.workshop import Workshop, quiet

RTX, ORT = RuntimeKind.TENSORRT_RTX, RuntimeKind.ONNX_RUNTIME


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_tensorrt_rtx_builds_inspects_and_keeps_the_accuracy(
    shared_workshop: Workshop, name: str, precision: Precision
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")

    made = shared_workshop.build(name, precision, RTX)

    manifest = made.engine.manifest
    assert made.report is not None
    assert () == made.report.reasons
    assert made.engine.record.state is State.VALIDATED
    assert ("8.6", "8.9", "12.0") == manifest.options.compute_capabilities
    assert manifest.files["model.plan"].size_bytes > 100_000
    # Fusion is real: fewer layers than nodes, and layers that hold several nodes of the model.
    nodes = {node.name for node in shared_workshop.examples[name].model.graph.node}
    assert 1 < len(manifest.layers)
    assert any(len(nodes & set(layer.sources)) > 1 for layer in manifest.layers)
    assert made.engine.manifest.build_ms > 0


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.INT8, Precision.INT8_FP16])
def test_a_cpu_artifact_is_the_converted_graph(
    shared_workshop: Workshop, name: str, precision: Precision, tmp_path: Path
) -> None:
    made = shared_workshop.build(name, precision, ORT)

    engine = shared_workshop.catalog.fetch(made.engine, tmp_path)
    graph = shared_workshop.catalog.fetch_file(made.engine, GRAPH, tmp_path)
    assert engine.read_bytes() == graph.read_bytes()
    assert "ONNX_RUNTIME:cpu" == made.engine.manifest.target
    assert made.engine.record.state is State.VALIDATED


def test_the_same_build_is_found_and_not_repeated(workshop: Workshop) -> None:
    first = workshop.build("cnn")
    again = workshop.build("cnn")

    assert first.is_new
    assert not again.is_new
    assert first.engine.manifest == again.engine.manifest


def test_several_profiles_and_capabilities_go_into_one_engine(workshop: Workshop) -> None:
    pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    two = ({"batch": DimRange(1, 1, 4)}, {"batch": DimRange(5, 32, 64)})

    made = workshop.build("cnn", Precision.FP16, RTX, profiles=two, compute_capabilities=("12.0", "8.0"))

    assert two == made.engine.manifest.options.profiles
    assert "TENSORRT_RTX:8.0+12.0" == made.engine.manifest.target


def test_turing_gets_an_engine_of_its_own(workshop: Workshop) -> None:
    pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")

    made = workshop.build("cnn", Precision.FP16, RTX, compute_capabilities=("7.5",))

    assert "TENSORRT_RTX:7.5" == made.engine.manifest.target


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"compute_capabilities": ("9.0",)},
            "builds no engine for 9.0; choose from 7.5, 8.0, 8.6, 8.9, 12.0",
        ),
        ({"compute_capabilities": ("7.5",)}, r"serves 7.5 \(Turing\) in FP16 only, not FP32"),
        (
            {"hardware_compatibility": HardwareCompatibility.AMPERE_PLUS},
            "list every compute capability instead",
        ),
    ],
)
def test_tensorrt_rtx_refuses_before_any_work(options: dict[str, object], sentence: str) -> None:
    pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")

    with pytest.raises(EngineInputError, match=sentence):
        builder_for(RTX).resolve(BuildOptions(runtime=RTX, **options))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"compute_capabilities": ("8.9",)}, "compute_capability"),
        ({"version_compatible": True}, "version_compatible"),
        ({"optimization_level": 3}, "optimization_level"),
        ({"hardware_compatibility": HardwareCompatibility.AMPERE_PLUS}, "hardware_compatibility"),
        ({"precision": Precision.BF16}, "precision"),
    ],
)
def test_a_cpu_artifact_refuses_options_of_gpus(options: dict[str, object], field: str) -> None:
    with pytest.raises(EngineInputError, match=field):
        builder_for(ORT).resolve(BuildOptions(runtime=ORT, **options))


L4 = Machine(
    gpus=(Gpu(name="L4", compute_capability="8.9", memory_bytes=24 << 30),), driver="580.95", cuda="13.0"
)


def test_tensorrt_builds_for_the_gpu_it_sees_alone() -> None:
    builder = TensorRtBuilder(L4)
    options = BuildOptions(runtime=RuntimeKind.TENSORRT)

    assert ("8.9",) == builder.resolve(options).compute_capabilities
    with pytest.raises(EngineInputError, match=r"this GPU is 8.9, asked was 9.0"):
        builder.resolve(replace(options, compute_capabilities=("9.0",)))
    with pytest.raises(EngineInputError, match=r"no GPU.*or choose --runtime tensorrt-rtx"):
        TensorRtBuilder(Machine(notes=("no GPU",))).resolve(options)


def test_tensorrt_that_is_not_installed_is_named_with_its_remedy() -> None:
    if pytest.importorskip("importlib.util").find_spec("tensorrt") is not None:
        pytest.skip("TensorRT is installed")

    with pytest.raises(MissingPackageError, match=r"tensorrt is not installed.*forecrest\[tensorrt\]"):
        TensorRtBuilder(L4).toolchain()


def test_what_tensorrt_refuses_is_told_in_its_words() -> None:
    pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    options = BuildOptions(runtime=RTX, compute_capabilities=("8.9",))

    with pytest.raises(EngineError, match="ONNX parser refuses it"):
        builder_for(RTX).build(b"no graph", (), options, timing_cache=None, progress=lambda *_: None)


def test_a_machine_without_nvidia_smi_has_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert () == detect_machine().gpus
    assert ("no GPU: nvidia-smi is not installed",) == detect_machine().notes


def write_tool(folder: Path, body: str) -> None:
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{body}\n")
    tool.chmod(0o755)


def test_gpus_are_read_from_nvidia_smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_tool(
        tmp_path,
        'case "$1" in --query*) echo "NVIDIA H200, 9.0, 143771, 580.95.05";; *) echo "| CUDA Version: 13.0 |";; esac',
    )
    monkeypatch.setenv("PATH", str(tmp_path))

    machine = detect_machine()

    assert (Gpu(name="NVIDIA H200", compute_capability="9.0", memory_bytes=143771 << 20),) == machine.gpus
    assert ("580.95.05", "13.0") == (machine.driver, machine.cuda)


def test_a_broken_driver_is_no_gpu_and_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_tool(tmp_path, "exit 9")
    monkeypatch.setenv("PATH", str(tmp_path))

    assert () == detect_machine().gpus
    assert "nvidia-smi failed" in detect_machine().notes[0]


def test_the_way_tensorrt_builds_works_for_its_sister_too(examples: dict[str, Example]) -> None:
    """Without targets the shared code does what it does for TensorRT; only the measuring is missing."""
    trt = pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    model = prepare(examples["cnn"].model)
    inputs, _ = signature(model)
    options = BuildOptions(
        runtime=RuntimeKind.TENSORRT,
        profiles=complete_profiles(inputs, ()),
        optimization_level=3,
        workspace_bytes=1 << 26,
    )

    with pytest.warns(DeprecationWarning, match="Timing cache"):
        plan = trt_common.build_plan(
            trt, model.SerializeToString(), inputs, options, timing_cache=None, progress=quiet
        )

    assert plan.timing_cache
    assert len(plan.content) > 100_000
    assert any("conv_1" in layer.sources for layer in plan.layers)
