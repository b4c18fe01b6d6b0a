"""A `tensorrt_plan` repository from a catalogue entry, and what a real Triton without that backend makes of it."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from controller.actuators.triton import WarmFailure, WarmStage, WarmTarget, verify_warm
from controller.adapters.clock import SystemClock
from engines.catalog import Catalog, Engine, Manifest, RejectedError, describe_file
from engines.errors import EngineInputError
from engines.triton_plan import PlanOptions, Published, publish
from engines.types import BuildOptions, DimRange, RuntimeKind, TensorInfo, Toolchain
from tests.integration.triton.conftest import StartTriton

PLAN = b"stands for a serialised engine, which no machine without TensorRT can make"


def catalogued(folder: Path, content: bytes = PLAN, number: int = 0) -> tuple[Catalog, Engine]:
    """A TensorRT engine as a GPU machine would have published it."""
    catalog, path = Catalog(folder / "catalog"), folder / f"model{number}.plan"
    path.write_bytes(content)
    made = Manifest(
        engine_id=f"{number:024x}",
        model="ranker",
        model_digest="sha256:1",
        options=BuildOptions(
            runtime=RuntimeKind.TENSORRT,
            profiles=({"batch": DimRange(1, 8, 64)}, {"batch": DimRange(65, 128, 256)}),
            compute_capabilities=("8.9",),
        ),
        toolchain=Toolchain(runtime=RuntimeKind.TENSORRT, version="10.13.3.9"),
        runtime_version_min=None,
        inputs=(TensorInfo("context", "float32", ("batch", 8)),),
        outputs=(TensorInfo("scores", "float32", ("batch", 16)),),
        files={"model.plan": describe_file(path)},
        engine_file="model.plan",
        layers=(),
        layers_from="",
        build_ms=1.0,
        built_at=datetime(2026, 11, 11, tzinfo=UTC),
        built_by="a test",
    )
    return catalog, catalog.publish(made, {"model.plan": path}, by="a test")[0]


def test_a_repository_is_whole_and_the_link_moves_to_it_in_one_step(tmp_path: Path) -> None:
    catalog, first = catalogued(tmp_path)
    root = tmp_path / "models"

    made = publish(catalog, first, root, PlanOptions(version=3))
    again = publish(catalog, first, root, PlanOptions(version=3))

    assert made == again == Published(made.repository, "ranker", first.manifest.digest)
    assert PLAN == (root / "ranker" / "ranker" / "3" / "model.plan").read_bytes()
    files = sorted(str(p.relative_to(made.repository)) for p in made.repository.rglob("*") if p.is_file())
    assert ["ranker/3/model.plan", "ranker/config.pbtxt"] == files
    second = publish(catalog, catalogued(tmp_path, b"another", 1)[1], root)
    assert second.repository == (root / "ranker").resolve()
    publish(catalog, first, root, PlanOptions(version=3))  # and back
    assert made.repository == (root / "ranker").resolve()
    assert ["ranker", "repositories"] == sorted(p.name for p in root.iterdir())


def test_a_damaged_file_is_never_published(tmp_path: Path) -> None:
    catalog, engine = catalogued(tmp_path)
    (stored,) = (tmp_path / "catalog").rglob("model.plan")
    stored.write_bytes(PLAN[:10])

    with pytest.raises(RejectedError, match=r"TRUNCATED: .*; restore the file"):
        publish(catalog, engine, tmp_path / "models")
    assert [] == list((tmp_path / "models").rglob("*.plan"))
    assert not (tmp_path / "models" / "ranker").exists()


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    catalog, engine = catalogued(tmp_path)
    (tmp_path / "models" / "ranker").mkdir(parents=True)

    with pytest.raises(EngineInputError, match="is there and no link"):
        publish(catalog, engine, tmp_path / "models")


def test_an_engine_with_host_code_says_what_triton_must_be_told(tmp_path: Path) -> None:
    catalog, engine = catalogued(tmp_path)
    options = replace(engine.manifest.options, version_compatible=True)
    engine = replace(engine, manifest=replace(engine.manifest, options=options))

    assert "version-compatible=true" in publish(catalog, engine, tmp_path / "models").notes[0]


@pytest.mark.triton
async def test_triton_takes_the_configuration_and_misses_the_backend_alone(
    start_triton: StartTriton, tmp_path: Path
) -> None:
    catalog, engine = catalogued(tmp_path)
    made = publish(catalog, engine, tmp_path / "models")
    server = await start_triton(tmp_path / "models" / "ranker")
    target = WarmTarget(
        model_name="ranker", model_version="1", engine_digest=made.digest, latency_ms_max=1000.0
    )

    result = await verify_warm(server.endpoints.grpc, target, clock=SystemClock())

    assert (WarmStage.SERVER_LIVE, WarmFailure.LOAD_FAILED) == (result.stage, result.failure)
    assert "unable to find backend library for backend 'tensorrt'" in result.detail
    # Triton reads and checks a configuration before it looks for the backend: one that is wrong fails there.
    config = made.repository / "ranker" / "config.pbtxt"
    text = config.read_text()
    for right, wrong in (
        ("preferred_batch_size: [8, 128]", "preferred_batch_size: [8, 512]"),
        ("max_batch_size: 256", "max_batch_size: many"),
    ):
        assert right in text
        config.write_text(text.replace(right, wrong))
        async with InferenceServerClient(server.endpoints.grpc) as client:
            with pytest.raises(InferenceServerException, match="failed to poll from model repository"):
                await client.load_model("ranker")


STAND_IN = """\
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb.get_input_tensor_by_name(r, "context").as_numpy() for r in requests]
        assert all(value.shape[1:] == (8,) for value in inputs)
        assert sum(len(value) for value in inputs) <= 256
        with open({log!r}, "a") as log:
            log.write(f"{{sum(len(value) for value in inputs)}}\\n")
        return [pb.InferenceResponse([pb.Tensor("scores", np.zeros((len(v), 16), "f"))]) for v in inputs]
"""


@pytest.mark.triton
async def test_the_rendered_warm_up_runs_inside_every_profile_before_the_model_is_ready(
    start_triton: StartTriton, tmp_path: Path
) -> None:
    """The same configuration on a backend that is here: only the platform and the GPU are exchanged."""
    catalog, engine = catalogued(tmp_path)
    made = publish(catalog, engine, tmp_path / "models")
    config, log = made.repository / "ranker" / "config.pbtxt", tmp_path / "batches"
    text = config.read_text()
    for right, here in (
        ('platform: "tensorrt_plan"\n', 'backend: "python"\n'),
        ('default_model_filename: "model.plan"\n', ""),
        ('{ kind: KIND_GPU count: 1 profile: ["0", "1"] }', "{ kind: KIND_CPU count: 1 }"),
    ):
        assert right in text
        text = text.replace(right, here)
    config.write_text(text)
    (config.parent / "1" / "model.py").write_text(STAND_IN.format(log=str(log)))
    server = await start_triton(tmp_path / "models" / "ranker")
    target = WarmTarget(
        model_name="ranker", model_version="1", engine_digest=made.digest, latency_ms_max=5000.0
    )

    result = await verify_warm(server.endpoints.grpc, target, clock=SystemClock())

    assert result.is_warm, result
    batches = [int(line) for line in log.read_text().split()]
    assert [1, 8, 64, 65, 128, 256] == batches[:6]
    assert {1} == set(batches[6:])  # the probes
