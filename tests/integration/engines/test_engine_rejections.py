"""Engines damaged on purpose: each fault has its own reason, at the earliest stage that can know it."""

import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from engines import checks
from engines.catalog import Catalog, Engine, RejectedError
from engines.compatibility import Node, Rejection, Stage, check
from engines.onnx_runner import OnnxRunner
from engines.types import DimRange, RuntimeKind, TensorInfo
from tests.integration.engines.workshop import NOW, Workshop

RTX, ORT = RuntimeKind.TENSORRT_RTX, RuntimeKind.ONNX_RUNTIME


Published = tuple[Workshop, Engine, Path]


@pytest.fixture(params=["rtx", "cpu"])
def published(request: pytest.FixtureRequest, workshop: Workshop) -> Published:
    """A real engine in a catalogue, and where its file lies."""
    runtime = RTX if request.param == "rtx" else ORT
    if runtime is RTX:
        pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    engine = workshop.catalog.find(workshop.admit("cnn", runtime=runtime))
    folder = workshop.folder / "catalog/models/cnn/engines" / engine.record.folder
    return workshop, engine, folder / engine.manifest.engine_file


def rejection(workshop: Workshop, engine: Engine, *, expected_digest: str | None = None) -> Rejection | None:
    """What a prewarm would say, and that nothing is left where it would be served from."""
    target = workshop.folder / f"served-{uuid.uuid4().hex}"
    try:
        Catalog(workshop.folder / "catalog").fetch(engine, target, expected_digest=expected_digest)
    except RejectedError as error:
        assert [] == list(target.glob("*"))
        return error.objection.rejection
    return None


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (truncate, Rejection.TRUNCATED),
        (flip, Rejection.CORRUPTED),
        (lengthen, Rejection.WRONG_SIZE),
        (Path.unlink, Rejection.FILE_MISSING),
    ],
)
def test_a_damaged_file_is_neither_served_nor_promoted(
    published: Published, damage: Callable[[Path], None], expected: Rejection
) -> None:
    workshop, engine, path = published
    assert None is rejection(workshop, engine)

    damage(path)

    assert expected is rejection(workshop, engine)
    assert Stage.FILE is expected.stage
    with pytest.raises(RejectedError, match=expected):
        workshop.catalog.promote("cnn", engine.manifest.engine_id, at=NOW, by="a test")


def test_another_engine_than_the_ordered_one_is_known_from_its_record(published: Published) -> None:
    workshop, engine, path = published
    path.unlink()  # the file is not even looked at

    assert Rejection.WRONG_DIGEST is rejection(workshop, engine, expected_digest="sha256:0")
    assert Stage.MANIFEST is Rejection.WRONG_DIGEST.stage


def test_a_record_that_was_changed_is_known_by_the_journal(published: Published) -> None:
    workshop, _, path = published
    flip(path.with_name("manifest.json"))

    with pytest.raises(RejectedError, match=r"CORRUPTED: .*manifest\.json"):
        Catalog(workshop.folder / "catalog").engines("cnn")


def test_a_wrong_major_and_a_wrong_gpu_are_known_from_the_record(workshop: Workshop) -> None:
    pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    facts = workshop.build("cnn", runtime=RTX).engine.manifest.facts()
    version = facts.runtime_version
    other_major = f"{int(version.partition('.')[0]) + 1}.{version.partition('.')[2]}"

    def reasons(capability: str, runtime_version: str) -> list[tuple[Rejection, Stage]]:
        node = Node(compute_capability=capability, runtimes={RTX: runtime_version})
        return [(o.rejection, o.rejection.stage) for o in check(facts, node)]

    assert [] == reasons("8.9", version)
    assert [(Rejection.WRONG_TENSORRT_MAJOR, Stage.MANIFEST)] == reasons("8.9", other_major)
    assert [(Rejection.WRONG_COMPUTE_CAPABILITY, Stage.MANIFEST)] == reasons("9.0", version)


def test_a_shape_without_a_profile_is_known_from_the_record(workshop: Workshop) -> None:
    made = workshop.build("cnn", profiles=({"batch": DimRange(1, 4, 16)},)).engine
    node = Node(compute_capability=None, runtimes={ORT: "1.32.0"})

    def reasons(batch: int) -> list[Rejection]:
        shapes = {"image": (batch, 3, 16, 16)}
        return [o.rejection for o in check(made.manifest.facts(), node, shapes=shapes)]

    assert [] == reasons(16)
    assert [Rejection.MISSING_PROFILE_SHAPE] == reasons(17)
    assert Stage.MANIFEST is Rejection.MISSING_PROFILE_SHAPE.stage


def test_the_runtime_itself_refuses_what_is_no_engine(tmp_path: Path) -> None:
    path = tmp_path / "engine"
    path.write_bytes(b"not an engine at all")

    for runtime in (ORT, RTX):
        objection, said = checks.check_load(path, runtime)
        if said.startswith("not tried"):
            continue  # TensorRT-RTX is not installed
        assert objection is not None, said
        assert Rejection.LOAD_REFUSED is objection.rejection


def test_tensorrt_rtx_tells_a_truncated_engine_even_without_a_gpu(workshop: Workshop, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    made = workshop.build("cnn", runtime=RTX).engine
    whole = workshop.catalog.fetch(made, tmp_path / "whole")
    assert None is checks.check_load(whole, RTX)[0]

    truncate(whole)

    objection, _ = checks.check_load(whole, RTX)
    assert objection is not None
    assert Rejection.LOAD_REFUSED is objection.rejection


def test_a_runtime_that_is_not_installed_objects_to_nothing_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "engine"
    path.write_bytes(b"x")

    objection, said = checks.check_load(path, RuntimeKind.TENSORRT)

    if "not tried" not in said:
        pytest.skip("TensorRT is installed")
    assert objection is None


def nan_model() -> onnx.ModelProto:
    """Y = x / x: fine for every input but zero, which is what a probe sends."""
    tensors = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 2]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Div", ["x", "x"], ["y"])], "nan", tensors[:1], tensors[1:])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def test_an_engine_that_answers_nan_is_known_by_its_answers(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(nan_model().SerializeToString())
    tensors = (TensorInfo("x", "float32", ("batch", 2)),), (TensorInfo("y", "float32", ("batch", 2)),)
    probe = checks.probe_inputs(tensors[0], ({"batch": DimRange(1, 4, 8)},))

    objection, said = checks.check_answers(path, ORT, probe, tensors[1])

    assert (4, 2) == probe["x"].shape
    assert objection is not None
    assert (Rejection.NAN_OUTPUT, Stage.INFERENCE) == (objection.rejection, objection.rejection.stage)
    assert "output y has 8 values that are not finite" == objection.sentence
    assert "answered by onnxruntime" in said
    assert OnnxRunner(nan_model()).run({"x": np.ones((1, 2), np.float32)})["y"].tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ({"y": np.zeros((3, 2), np.float32)}, None),
        ({}, Rejection.MISSING_OUTPUT),
        ({"y": np.zeros((0, 2), np.float32)}, Rejection.MISSING_OUTPUT),
        ({"y": np.zeros((3, 3), np.float32)}, Rejection.WRONG_OUTPUT_SHAPE),
        ({"y": np.zeros(3, np.float32)}, Rejection.WRONG_OUTPUT_SHAPE),
        ({"y": np.array([[1, np.inf]], np.float32)}, Rejection.NAN_OUTPUT),
        ({"y": np.zeros((3, 2), np.int64)}, None),
    ],
)
def test_answers_are_complete_shaped_and_finite(
    outputs: dict[str, np.ndarray], expected: Rejection | None
) -> None:
    objection = checks.check_outputs(outputs, (TensorInfo("y", "float32", ("batch", 2)),))

    assert expected == (objection.rejection if objection else None)


def test_every_rejection_of_a_prewarm_has_a_reason_of_its_own() -> None:
    named = {
        "truncated file": Rejection.TRUNCATED,
        "flipped byte": Rejection.CORRUPTED,
        "wrong digest": Rejection.WRONG_DIGEST,
        "wrong TensorRT major": Rejection.WRONG_TENSORRT_MAJOR,
        "wrong compute capability": Rejection.WRONG_COMPUTE_CAPABILITY,
        "missing profile shape": Rejection.MISSING_PROFILE_SHAPE,
        "NaN outputs": Rejection.NAN_OUTPUT,
    }

    assert len(named) == len(set(named.values()))
