"""The configuration Triton gets follows from the manifest, and says nothing that the engine cannot do."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from engines.catalog import FileRecord, Manifest
from engines.errors import EngineInputError
from engines.triton_plan import PlanOptions, render
from engines.types import BuildOptions, DimRange, RuntimeKind, TensorInfo, Toolchain

SMALL, LARGE = {"batch": DimRange(1, 8, 64)}, {"batch": DimRange(65, 128, 256)}


def manifest(*profiles: dict[str, DimRange], **changes: Any) -> Manifest:  # noqa: ANN401 - any field
    runtime = changes.pop("runtime", RuntimeKind.TENSORRT)
    base = Manifest(
        engine_id="0" * 24,
        model="ranker",
        model_digest="sha256:1",
        options=BuildOptions(runtime=runtime, profiles=profiles, compute_capabilities=("8.9",)),
        toolchain=Toolchain(runtime=runtime, version="10.13.3.9"),
        runtime_version_min=None,
        inputs=(TensorInfo("user", "int64", ("batch",)), TensorInfo("context", "float32", ("batch", 8))),
        outputs=(TensorInfo("scores", "float16", ("batch", 16)),),
        files={"model.plan": FileRecord(digest="sha256:2", size_bytes=9)},
        engine_file="model.plan",
        layers=(),
        layers_from="",
        build_ms=1.0,
        built_at=datetime(2026, 11, 11, tzinfo=UTC),
        built_by="a test",
    )
    return replace(base, **changes)


def parsed(made: Manifest, **options: Any) -> Any:  # noqa: ANN401 - a protobuf message of an untyped package
    """As Triton reads it: strictly, every field known."""
    config: Any = model_config_pb2.ModelConfig()  # type: ignore[attr-defined]
    return text_format.Parse(render(made, PlanOptions(**options)), config)


def test_everything_follows_from_the_manifest() -> None:
    config = parsed(manifest(SMALL, LARGE), gpus=(0, 1), instance_count=2, version=7, queue_delay_us=500)

    assert ("ranker", "tensorrt_plan", "model.plan") == (
        config.name,
        config.platform,
        config.default_model_filename,
    )
    assert 256 == config.max_batch_size
    assert [7] == list(config.version_policy.specific.versions)
    user, context = config.input
    assert ("user", [1], [], True) == (
        user.name,
        list(user.dims),
        list(user.reshape.shape),
        user.HasField("reshape"),
    )
    assert ("context", [8], False) == (context.name, list(context.dims), context.HasField("reshape"))
    types = type(user).DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
    tensors = (*config.input, *config.output)
    assert ["TYPE_INT64", "TYPE_FP32", "TYPE_FP16"] == [types[t.data_type].name for t in tensors]
    (group,) = config.instance_group
    assert (2, [0, 1], ["0", "1"]) == (group.count, list(group.gpus), list(group.profile))
    assert type(group).KIND_GPU == group.kind
    assert [8, 128] == list(config.dynamic_batching.preferred_batch_size)
    assert 500 == config.dynamic_batching.max_queue_delay_microseconds
    assert not config.response_cache.enable
    values = {key: value.string_value for key, value in config.parameters.items()}
    assert {"engine_digest": "sha256:2", "engine_id": "0" * 24} == values


def test_every_profile_is_warmed_inside_its_shapes() -> None:
    shapes = manifest(
        {"batch": DimRange(1, 4, 16), "length": DimRange(1, 32, 64)},
        {"batch": DimRange(1, 2, 8), "length": DimRange(65, 100, 128)},
        inputs=(TensorInfo("tokens", "int32", ("batch", "length")),),
    )

    config = parsed(shapes)

    found = [(w.batch_size, list(w.inputs["tokens"].dims)) for w in config.model_warmup]
    assert [(1, [32]), (4, [32]), (16, [32]), (1, [100]), (2, [100]), (8, [100])] == found
    assert all(w.inputs["tokens"].zero_data for w in config.model_warmup)
    assert len({w.name for w in config.model_warmup}) == len(found)
    assert [-1] == list(config.input[0].dims)
    assert 16 == config.max_batch_size


def test_a_model_without_a_batch_is_not_batched() -> None:
    fixed = manifest(
        inputs=(TensorInfo("x", "float32", (1, 4)),), outputs=(TensorInfo("y", "float32", (1, 2)),)
    )

    config = parsed(fixed)

    assert 0 == config.max_batch_size
    assert not config.HasField("dynamic_batching")
    assert [1, 4] == list(config.input[0].dims)
    assert [(1, [1, 4])] == [(w.batch_size, list(w.inputs["x"].dims)) for w in config.model_warmup]


def test_an_artifact_for_cpus_runs_there() -> None:
    config = parsed(
        manifest(
            SMALL,
            runtime=RuntimeKind.ONNX_RUNTIME,
            engine_file="model.onnx",
            files={"model.onnx": FileRecord(digest="sha256:2", size_bytes=9)},
        )
    )

    (group,) = config.instance_group
    assert ("onnxruntime_onnx", type(group).KIND_CPU) == (config.platform, group.kind)


@pytest.mark.parametrize(
    ("made", "options", "sentence"),
    [
        (
            manifest(SMALL),
            {"batch_size_max": 65},
            "batch_size_max: 65, but the profiles hold batch from 1 to 64",
        ),
        (manifest(SMALL), {"preferred_batch_sizes": (8, 65)}, "preferred_batch_sizes: 65"),
        (manifest(SMALL), {"queue_delay_us": -1}, "queue_delay_us: -1"),
        (manifest(SMALL), {"gpus": (1, 1)}, "gpus: "),
        (manifest(LARGE), {}, "no optimization profile holds batch 1"),
        (
            manifest(inputs=(TensorInfo("x", "float32", (1, 4)),), outputs=()),
            {"batch_size_max": 8},
            "cannot be batched",
        ),
        (manifest(SMALL, runtime=RuntimeKind.TENSORRT_RTX), {}, "Triton has no backend for TENSORRT_RTX"),
        (
            manifest(SMALL, inputs=(TensorInfo("x", "float64", ("batch", 4)),)),
            {},
            "x is float64, which is not served",
        ),
    ],
)
def test_what_the_engine_cannot_do_is_refused_by_name(
    made: Manifest, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(EngineInputError, match=sentence):
        render(made, PlanOptions(**options))


RANGES = st.tuples(*[st.integers(1, 60)] * 3).map(lambda n: DimRange(*sorted(n)))


@given(ranges=st.lists(RANGES, min_size=1, max_size=4), wanted=st.integers(1, 64))
def test_no_batch_that_triton_may_form_lies_outside_every_profile(
    ranges: list[DimRange], wanted: int
) -> None:
    made = manifest(*({"batch": r} for r in ranges))
    try:
        config = parsed(made, batch_size_max=wanted)
    except EngineInputError:
        assert not all(any(r.holds(n) for r in ranges) for n in range(1, wanted + 1))
        return

    assert wanted == config.max_batch_size
    assert all(any(r.holds(n) for r in ranges) for n in range(1, wanted + 1))
    assert all(any(r.holds(w.batch_size) for r in ranges) for w in config.model_warmup)
    assert all(1 <= w.batch_size <= wanted for w in config.model_warmup)
    assert all(1 < size <= wanted for size in config.dynamic_batching.preferred_batch_size)
