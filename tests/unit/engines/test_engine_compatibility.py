"""Which engine serves which node: every rule with the engine that just fits and the one that just does not."""

from dataclasses import replace

import pytest

from engines.compatibility import (
    EngineFacts,
    Node,
    Objection,
    Rejection,
    Stage,
    check,
    image_runtime,
    parse_version,
    select,
)
from engines.errors import EngineInputError
from engines.types import DimRange, HardwareCompatibility, RuntimeKind, TensorInfo

TRT, RTX, ORT = RuntimeKind.TENSORRT, RuntimeKind.TENSORRT_RTX, RuntimeKind.ONNX_RUNTIME
ENGINE = EngineFacts(
    engine_id="trt",
    digest="sha256:1",
    runtime=TRT,
    runtime_version="10.13.3.9",
    runtime_version_min=None,
    compute_capabilities=("8.9",),
    hardware_compatibility=HardwareCompatibility.NONE,
    version_compatible=False,
    inputs=(TensorInfo("x", "float32", ("batch", 4)),),
    profiles=({"batch": DimRange(1, 8, 64)},),
)
NODE = Node(compute_capability="8.9", runtimes={TRT: "10.13.3.9"})
CPU = replace(
    ENGINE,
    engine_id="cpu",
    runtime=ORT,
    runtime_version="1.32.0",
    runtime_version_min="1.13",
    compute_capabilities=(),
)


def found(engine: EngineFacts, node: Node) -> list[Rejection]:
    return [objection.rejection for objection in check(engine, node)]


@pytest.mark.parametrize(
    ("changed", "node", "expected"),
    [
        ({}, NODE, []),
        # Compute capability.
        ({}, replace(NODE, compute_capability="8.6"), [Rejection.WRONG_COMPUTE_CAPABILITY]),
        ({}, replace(NODE, compute_capability="9.0"), [Rejection.WRONG_COMPUTE_CAPABILITY]),
        ({}, replace(NODE, compute_capability=None), [Rejection.NO_GPU]),
        (
            {"hardware_compatibility": HardwareCompatibility.AMPERE_PLUS},
            replace(NODE, compute_capability="12.0"),
            [],
        ),
        (
            {"hardware_compatibility": HardwareCompatibility.AMPERE_PLUS},
            replace(NODE, compute_capability="7.5"),
            [Rejection.WRONG_COMPUTE_CAPABILITY],
        ),
        (
            {"hardware_compatibility": HardwareCompatibility.SAME_COMPUTE_CAPABILITY},
            replace(NODE, compute_capability="8.6"),
            [Rejection.WRONG_COMPUTE_CAPABILITY],
        ),
        # GPU model, where both are known.
        ({"gpu": "L4"}, NODE, []),
        ({"gpu": "L4"}, replace(NODE, gpu="L4"), []),
        ({"gpu": "L4"}, replace(NODE, gpu="L40S"), [Rejection.WRONG_GPU_MODEL]),
        (
            {"gpu": "L4", "hardware_compatibility": HardwareCompatibility.SAME_COMPUTE_CAPABILITY},
            replace(NODE, gpu="L40S"),
            [],
        ),
        # Version: patch and build count.
        ({}, replace(NODE, runtimes={TRT: "11.4.0.106"}), [Rejection.WRONG_TENSORRT_MAJOR]),
        ({}, replace(NODE, runtimes={TRT: "10.13.2.6"}), [Rejection.WRONG_RUNTIME_VERSION]),
        ({}, replace(NODE, runtimes={TRT: "10.13.3.10"}), [Rejection.WRONG_RUNTIME_VERSION]),
        ({}, replace(NODE, runtimes={TRT: "10.13.3"}), []),
        ({}, replace(NODE, runtimes={TRT: "10.13"}), [Rejection.RUNTIME_UNKNOWN]),
        ({}, replace(NODE, runtimes={}), [Rejection.RUNTIME_ABSENT]),
        ({}, replace(NODE, runtimes={RTX: "1.7.1"}), [Rejection.RUNTIME_ABSENT]),
        # Version-compatible: the same or later, within the major version, with its code allowed.
        (
            {"version_compatible": True},
            replace(NODE, runtimes={TRT: "10.14.1.48"}, allows_host_code=True),
            [],
        ),
        (
            {"version_compatible": True},
            replace(NODE, runtimes={TRT: "10.14.1.48"}),
            [Rejection.HOST_CODE_NOT_ALLOWED],
        ),
        (
            {"version_compatible": True},
            replace(NODE, runtimes={TRT: "10.13.2.6"}, allows_host_code=True),
            [Rejection.WRONG_RUNTIME_VERSION],
        ),
        (
            {"version_compatible": True},
            replace(NODE, runtimes={TRT: "11.0.0.1"}, allows_host_code=True),
            [Rejection.WRONG_TENSORRT_MAJOR],
        ),
        # Triton's image.
        ({}, Node(compute_capability="8.9", triton_image="26.02-trtllm-python-py3"), []),
        (
            {},
            Node(compute_capability="8.9", triton_image="25.10-trtllm-python-py3"),
            [Rejection.WRONG_RUNTIME_VERSION],
        ),
        ({}, Node(compute_capability="8.9", triton_image="26.02-py3"), [Rejection.RUNTIME_UNKNOWN]),
        ({}, replace(NODE, triton_image="26.02-py3"), []),
        (
            {},
            replace(NODE, triton_image="25.10-trtllm-python-py3"),
            [Rejection.TRITON_CONTRADICTED],
        ),
        # All reasons at once, not the first alone.
        (
            {},
            Node(compute_capability=None, runtimes={TRT: "11.0.0.0"}),
            [Rejection.NO_GPU, Rejection.WRONG_TENSORRT_MAJOR],
        ),
    ],
)
def test_a_tensorrt_engine(changed: dict[str, object], node: Node, expected: list[Rejection]) -> None:
    assert expected == found(replace(ENGINE, **changed), node)


@pytest.mark.parametrize(
    ("version", "expected"),
    [("1.13.1", []), ("1.12.0", [Rejection.WRONG_RUNTIME_VERSION]), ("2.0.0", [])],
)
def test_a_cpu_artifact_runs_where_its_operators_are_known(version: str, expected: list[Rejection]) -> None:
    assert expected == found(CPU, Node(compute_capability=None, runtimes={ORT: version}))
    assert expected == found(CPU, Node(compute_capability="9.0", runtimes={ORT: version}))


def test_without_a_known_minimum_a_cpu_artifact_needs_the_release_that_built_it() -> None:
    newest = replace(CPU, runtime_version_min=None)

    assert [Rejection.WRONG_RUNTIME_VERSION] == found(
        newest, Node(compute_capability=None, triton_image="26.08-py3")
    )
    assert [] == found(CPU, Node(compute_capability=None, triton_image="26.08-py3"))


def test_an_engine_for_several_capabilities_serves_each() -> None:
    portable = replace(
        ENGINE, runtime=RTX, runtime_version="1.7.1.116", compute_capabilities=("8.6", "8.9", "12.0")
    )

    for capability in ("8.6", "8.9", "12.0"):
        assert [] == found(portable, Node(compute_capability=capability, runtimes={RTX: "1.7.1.116"}))
    hopper = Node(compute_capability="9.0", runtimes={RTX: "1.7.1.116"})
    assert [Rejection.WRONG_COMPUTE_CAPABILITY] == found(portable, hopper)


def test_the_ordered_digest_and_the_needed_shapes_are_asked_for() -> None:
    objections = check(ENGINE, NODE, expected_digest="sha256:2", shapes={"x": (65, 4)})

    assert (
        Objection(Rejection.WRONG_DIGEST, "the engine is sha256:1, ordered was sha256:2"),
        Objection(Rejection.MISSING_PROFILE_SHAPE, "no optimization profile holds x 65x4"),
    ) == objections
    assert () == check(ENGINE, NODE, expected_digest="sha256:1", shapes={"x": (64, 4)})


def test_every_rejection_has_a_stage() -> None:
    stages = {rejection: rejection.stage for rejection in Rejection}

    assert Stage.MANIFEST is stages[Rejection.WRONG_TENSORRT_MAJOR]
    assert Stage.FILE is stages[Rejection.TRUNCATED]
    assert Stage.LOAD is stages[Rejection.LOAD_REFUSED]
    assert Stage.INFERENCE is stages[Rejection.NAN_OUTPUT]


def test_the_most_specific_engine_is_chosen() -> None:
    ampere = replace(
        ENGINE,
        engine_id="ampere",
        compute_capabilities=("8.0",),
        hardware_compatibility=HardwareCompatibility.AMPERE_PLUS,
    )
    node = Node(compute_capability="8.9", runtimes={TRT: "10.13.3.9", ORT: "1.32.0"})
    engines = [(CPU, ()), (ampere, ()), (ENGINE, ())]

    chosen = select(engines, node)

    assert ("trt", "ampere", "cpu") == chosen.candidates
    assert "trt" == chosen.chosen
    assert {} == chosen.objections
    assert chosen == select(engines[::-1], node)


def test_the_newest_of_equals_is_chosen() -> None:
    newer = replace(ENGINE, engine_id="newer")

    assert "newer" == select([(ENGINE, ()), (newer, ())], NODE).chosen


def test_no_engine_is_an_answer_and_names_every_reason() -> None:
    held = (Objection(Rejection.NOT_ACTIVE, "the engine is RETIRED"),)

    nothing = select([(ENGINE, held), (CPU, ())], NODE)

    assert nothing.chosen is None
    assert {"trt": [Rejection.NOT_ACTIVE], "cpu": [Rejection.RUNTIME_ABSENT]} == {
        name: [o.rejection for o in objections] for name, objections in nothing.objections.items()
    }


def test_an_image_that_is_not_listed_is_unknown() -> None:
    assert image_runtime("25.08-trtllm-python-py3", TRT) == "10.11.0.33"
    assert image_runtime("25.08-py3", TRT) is None
    assert image_runtime("25.08-py3", ORT) == "1.23.0"
    assert image_runtime("25.08-py3", RTX) is None
    assert image_runtime(None, TRT) is None


@pytest.mark.parametrize("text", ["", "ten", "v10.1", "10"])
def test_a_version_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(EngineInputError, match="version"):
        parse_version(text)
