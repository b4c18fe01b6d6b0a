"""What a prewarm refuses, through the local actuator and real Triton servers: each fault by its own reason.

The table in docs/engines.md, row by row. What only a GPU could load is refused by the node's facts, as here.
"""

import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from onnx import TensorProto, helper

from controller.actuators.local_engines import EngineRefusedError, LocalEngines
from controller.actuators.local_process import LocalProcessActuator, OrderError
from controller.adapters.clock import SystemClock
from controller.core.engines import ENGINE_FAULTS
from controller.core.types import AlarmKind, CapacityProfile, Replica, Slo, Stage, Workload
from engines.catalog import Catalog, Engine
from engines.compatibility import Rejection
from engines.datasets import Dataset
from engines.examples import Example, make_example
from engines.signing import sign
from engines.types import RuntimeKind
from tests.integration.engines.workshop import NOW, PASSED, Workshop
from tests.integration.triton.test_local_process import Started, all_warm, until
from tests.unit.loop.conftest import Fleet, Process

pytestmark = pytest.mark.triton
PROFILE = CapacityProfile(engine="cnn", gpu_type="cpu", qps_max=200.0)


def ordered(model: str = "cnn", *, digest: str | None = None, **target: str) -> Workload:
    return Workload(
        name="shop",
        model_name=model,
        profiles=(PROFILE,),
        slo=Slo(latency_ms_p99=5000.0),
        engine_digest=digest,
        target={"catalog_model": model, **target},
    )


def nan_model() -> onnx.ModelProto:
    """Y = x / x: fine for every input but zero, which is what a probe sends."""
    tensors = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 2]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Div", ["x", "x"], ["y"])], "nan", tensors[:1], tensors[1:])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


@pytest.fixture(scope="session")
def served_examples() -> dict[str, Example]:
    ones = Dataset({"x": np.ones((64, 2), np.float32)})
    return {
        "cnn": make_example("cnn", calibration_count=64, validation_count=64),
        "nan": Example("nan", nan_model(), ones, ones),
    }


@pytest.fixture
def workshop(served_examples: dict[str, Example], tmp_path: Path) -> Workshop:
    return Workshop(Catalog(tmp_path / "catalog"), served_examples, tmp_path)


def promoted(workshop: Workshop, name: str = "cnn", **options: object) -> tuple[Engine, Path]:
    """An ACTIVE engine of the catalogue, and where its file lies."""
    engine_id = workshop.admit(name, **options)
    workshop.catalog.promote(name, engine_id, at=NOW, by="a test")
    engine = workshop.catalog.find(engine_id)
    folder = workshop.folder / "catalog/models" / name / "engines" / engine.record.folder
    return engine, folder / engine.manifest.engine_file


@pytest.fixture
async def actuator(tmp_path: Path) -> AsyncIterator[LocalProcessActuator]:
    made = LocalProcessActuator(
        tmp_path / "triton", SystemClock(), replica_limit=4, drain_s=5, catalog=str(tmp_path / "catalog")
    )
    yield made
    await made.close()


async def refusal(actuator: LocalProcessActuator, workload: Workload, reason: Rejection) -> str:
    """The sentence an order is refused with; nothing was started for it, and it stands until it is accepted."""
    with pytest.raises(OrderError, match=f"workload shop: {reason}: ") as caught:
        await actuator.scale(workload, 1, fence=1)

    view = (await actuator.observe([workload]))["shop"]
    assert (0, ()) == (view.desired_replicas, view.replicas)
    assert f"workload shop: {view.shortfall}" == str(caught.value)
    assert str(caught.value).endswith(reason.remedy)
    return str(caught.value)


async def test_the_engine_of_the_catalogue_is_served_and_a_bad_one_refused_beside_it(
    workshop: Workshop, actuator: LocalProcessActuator
) -> None:
    engine, _ = promoted(workshop)
    await actuator.scale(ordered(digest=engine.manifest.digest), 1, fence=1)
    (warm,) = await until(actuator, all_warm(1))
    served = actuator._pools["shop"][0].served
    assert engine.manifest.digest == served.digest

    # The disk of the node goes bad after the order was accepted once: the next start looks again.
    served.engine_path.write_bytes(served.engine_path.read_bytes()[:1000])
    await actuator.scale(ordered(digest=engine.manifest.digest), 2, fence=1)
    replicas = await until(actuator, lambda found: any(r.stage is Stage.FAILED for r in found))

    first, second = replicas
    assert (warm.id, Stage.VERIFIED) == (first.id, first.stage)
    assert second.failure is not None
    assert second.failure.startswith("TRUNCATED: ")
    assert f"remove the folder {served.repository}" in second.failure
    assert second.endpoint is None  # not even a process was started

    # Its own fault keeps nobody from leaving.
    await actuator.scale(ordered(digest=engine.manifest.digest), 1, fence=1)
    (stayed,) = await until(actuator, all_warm(1))
    assert warm.id == stayed.id


async def test_an_engine_that_answers_nan_never_becomes_warm(
    workshop: Workshop, actuator: LocalProcessActuator
) -> None:
    promoted(workshop, "nan")
    seen: list[Stage] = []

    def is_failed(replicas: tuple[Replica, ...]) -> bool:
        seen.extend(r.stage for r in replicas)
        return replicas[0].stage is Stage.FAILED

    await actuator.scale(ordered("nan"), 1, fence=1)
    (failed,) = await until(actuator, is_failed)

    assert failed.failure is not None
    assert failed.failure.startswith("NAN_OUTPUT: output y has 2 values that are not finite; roll back")
    assert Stage.LOADED in seen
    assert not {Stage.WARMED, Stage.VERIFIED} & set(seen)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate, Rejection.TRUNCATED),
        (flip, Rejection.CORRUPTED),
        (Path.unlink, Rejection.FILE_MISSING),
    ],
)
async def test_a_damaged_file_is_refused_before_anything_starts(
    workshop: Workshop,
    actuator: LocalProcessActuator,
    started_processes: Started,
    damage: Callable[[Path], None],
    reason: Rejection,
) -> None:
    _, path = promoted(workshop)
    damage(path)

    assert path.name in await refusal(actuator, ordered(), reason)
    assert [] == started_processes()
    assert [] == list((workshop.folder / "triton/engines").rglob("*.onnx"))


async def test_the_refusal_reaches_the_operator_and_goes_when_the_engine_is_whole_again(
    workshop: Workshop, tmp_path: Path
) -> None:
    """Through the control loop: the decision's outcome and an alarm, until the order is accepted."""
    _, path = promoted(workshop)
    content = path.read_bytes()
    truncate(path)
    fleet = Fleet()
    actuator = LocalProcessActuator(
        tmp_path / "triton", fleet.clock, drain_s=5, catalog=str(tmp_path / "catalog")
    )
    fleet.actuator = actuator  # type: ignore[assignment]  # a real one instead of the fake
    async with fleet.store.unit_of_work() as uow:
        await uow.workloads.create(ordered())
        await uow.commit()
    leader = Process(fleet, "a")

    await leader.turn()
    await fleet.clock.advance(5.0)
    await leader.turn()

    async with fleet.store.unit_of_work() as uow:
        ((_, outcome), *_), _ = await uow.decisions.list(workload="shop")
    assert outcome is not None
    assert not outcome.applied
    assert outcome.detail.startswith("workload shop: TRUNCATED: ")
    (alarm,) = [a for a in leader.control.states["shop"].alarms if a.kind is AlarmKind.WRONG_ENGINE]
    assert alarm.sentence.startswith("shop: TRUNCATED: ")
    assert Rejection.TRUNCATED.remedy in alarm.sentence

    path.write_bytes(content)
    await leader.turn()
    await until(actuator, all_warm(1))
    await leader.turn()
    await actuator.close()

    assert AlarmKind.WRONG_ENGINE not in {a.kind for a in leader.control.states["shop"].alarms}


async def test_what_the_record_tells_is_refused_from_the_record_alone(
    workshop: Workshop, actuator: LocalProcessActuator, started_processes: Started
) -> None:
    await refusal(actuator, ordered(), Rejection.NO_ENGINE)
    waiting = workshop.admit("cnn")
    await refusal(actuator, ordered(), Rejection.NOT_ACTIVE)
    workshop.catalog.promote("cnn", waiting, at=NOW, by="a test")
    engine = workshop.catalog.find(waiting)
    folder = workshop.folder / "catalog/models/cnn/engines" / engine.record.folder
    (folder / engine.manifest.engine_file).unlink()  # the file is not even looked at

    other = await refusal(actuator, ordered(digest="sha256:" + "0" * 64), Rejection.WRONG_DIGEST)
    assert engine.manifest.digest in other
    larger = await refusal(actuator, ordered(batch_size_max="65"), Rejection.MISSING_PROFILE_SHAPE)
    assert "no optimization profile holds image 65x3x16x16" in larger
    await refusal(actuator, ordered(shapes="image=8x3x32x32"), Rejection.MISSING_PROFILE_SHAPE)
    assert [] == started_processes()


async def test_an_engine_for_gpus_is_refused_by_the_nodes_facts(
    workshop: Workshop, actuator: LocalProcessActuator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    engine, _ = promoted(workshop, runtime=RuntimeKind.TENSORRT_RTX)
    digest = engine.manifest.digest

    await refusal(actuator, ordered(), Rejection.NO_GPU)
    await refusal(actuator, ordered(digest=digest), Rejection.NO_GPU)
    # A node that has a GPU, of another compute capability, as far as its driver's tool says.
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(
        '#!/bin/sh\ncase "$1" in --query*) echo "NVIDIA H200, 9.0, 143771, 580.95.05";; '
        '*) echo "| CUDA Version: 13.0 |";; esac\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    said = await refusal(actuator, ordered(digest=digest), Rejection.WRONG_COMPUTE_CAPABILITY)
    assert "the node has 9.0" in said


async def test_only_engines_of_a_trusted_key_are_prewarmed_where_one_is_required(
    workshop: Workshop, tmp_path: Path
) -> None:

    key, pem = Ed25519PrivateKey.generate(), serialization.Encoding.PEM
    secret, public = tmp_path / "key.pem", tmp_path / "key.pub"
    secret.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    _, path = promoted(workshop)
    actuator = LocalProcessActuator(
        tmp_path / "triton", SystemClock(), catalog=str(tmp_path / "catalog"), trusted_keys=[public]
    )

    await refusal(actuator, ordered(), Rejection.UNSIGNED)
    path.with_name("manifest.sig").write_bytes(sign(b"another manifest", secret))
    await refusal(actuator, ordered(), Rejection.BAD_SIGNATURE)
    path.with_name("manifest.sig").write_bytes(sign(path.with_name("manifest.json").read_bytes(), secret))
    assert path.name == actuator._engines.prepare(ordered(), "1.32.0").engine_path.name
    await actuator.close()


def test_an_engine_of_another_release_is_refused_before_anything_is_started(workshop: Workshop) -> None:
    # Peers have learnt of a version tag that does not match from the server, when a replica was to load the engine.
    promoted(workshop)
    engines = LocalEngines(workshop.folder / "triton", catalog=str(workshop.folder / "catalog"))

    with pytest.raises(
        EngineRefusedError,
        match=r"WRONG_RUNTIME_VERSION: .*the graph needs ONNX Runtime .*, the node has 1\.0\.0",
    ):
        engines.prepare(ordered(), "1.0.0")

    assert not (workshop.folder / "triton/repositories").exists()


def test_a_gate_that_fails_later_keeps_further_replicas_from_starting(workshop: Workshop) -> None:

    engine, _ = promoted(workshop)
    failed = replace(PASSED, is_passed=False, reasons=("auc_drop is 0.2, budget 0.002",))
    workshop.catalog.record_gate("cnn", engine.manifest.engine_id, failed, page="", at=NOW, by="a test")
    engines = LocalEngines(workshop.folder / "triton", catalog=str(workshop.folder / "catalog"))

    with pytest.raises(EngineRefusedError, match=r"GATE_NOT_PASSED: .*auc_drop is 0.2"):
        engines.prepare(ordered(), "1.32.0")


def test_the_core_knows_every_rejection_as_the_engines_own_fault() -> None:
    assert {*Rejection, "WRONG_ENGINE"} == ENGINE_FAULTS
    assert all(rejection.remedy for rejection in Rejection)
