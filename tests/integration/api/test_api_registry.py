"""An engine that was really built goes from its catalogue to a controller, and a workload is sized by it."""

import asyncio
import json
import os
import sys
from pathlib import Path

from forecrest.v1 import engine_service_pb2, workload_pb2, workload_service_pb2

from engines.catalog import Catalog
from engines.examples import make_example
from engines.types import Precision
from tests.integration.api.conftest import World
from tests.integration.api.methods import a_profile
from tests.integration.engines.workshop import Workshop


async def registry(world: World, *arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "controller", "registry", *arguments, "--address", world.server.target),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "80"},
    )
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


async def test_an_engine_of_a_catalogue_is_pushed_promoted_and_sizes_a_workload(
    world: World, tmp_path: Path
) -> None:
    example = make_example("wide-and-deep", calibration_count=64, validation_count=64)
    catalog = Catalog(tmp_path / "catalog")
    built = Workshop(catalog, {"wide-and-deep": example}, tmp_path).build("wide-and-deep", Precision.FP32)
    place = ("--catalog", str(tmp_path / "catalog"))

    pushed = await registry(world, "push", built.engine.manifest.engine_id, *place, "--json")
    again = await registry(world, "push", built.engine.manifest.engine_id, *place, "--json")
    engine = json.loads(pushed[1])
    name = engine["name"].removeprefix("engines/")
    unknown = await registry(world, "push", "ffffffff", *place)
    early = await registry(world, "promote", "built")
    profile = a_profile(capacity=workload_pb2.CapacityProfile(engine="-", gpu_type="cpu", qps_max=90.0))
    await world.client.engines.RecordEngineProfile(
        engine_service_pb2.RecordEngineProfileRequest(parent=engine["name"], profile=profile)
    )
    promoted = await registry(world, "promote", name)
    listed = await registry(world, "list", "--filter", f"name = {name}")
    workload = await world.client.workloads.CreateWorkload(
        workload_service_pb2.CreateWorkloadRequest(
            workload_id="sized",
            workload=workload_pb2.Workload(
                model_name="wide-and-deep",
                profiles=[workload_pb2.CapacityProfile(engine=engine["name"], gpu_type="cpu")],
            ),
        )
    )

    assert (0, "ENGINE_STATE_VALIDATED", "ENGINE_KIND_ONNX_RUNTIME") == (
        pushed[0],
        engine["state"],
        engine["kind"],
    )
    assert built.engine.manifest.digest.removeprefix("sha256:") in engine["digest"]
    assert engine["labels"]["catalogue-id"] == built.engine.manifest.engine_id
    assert engine["validation"]["passed"]
    assert (0, engine["name"]) == (again[0], json.loads(again[1])["name"])
    assert 2 == unknown[0]
    assert (1, True) == (early[0], "ENGINE_NOT_VALIDATED" in early[1])
    assert (0, True) == (promoted[0], "is ACTIVE" in " ".join(promoted[1].split()))
    assert "cpu 90" in " ".join(listed[1].split())
    assert 90.0 == workload.profiles[0].qps_max


async def test_a_damaged_engine_is_neither_pushed_nor_promoted(world: World, tmp_path: Path) -> None:
    example = make_example("cnn", calibration_count=64, validation_count=64)
    built = Workshop(Catalog(tmp_path / "catalog"), {"cnn": example}, tmp_path).build("cnn").engine
    place = ("--catalog", str(tmp_path / "catalog"))
    pushed = await registry(world, "push", built.manifest.engine_id, *place, "--json")
    name = json.loads(pushed[1])["name"]
    (stored,) = (tmp_path / "catalog").rglob("model.onnx")
    content = stored.read_bytes()

    stored.write_bytes(content[:-1])
    again = await registry(world, "push", built.manifest.engine_id, *place)
    damaged = await registry(world, "promote", name, *place)
    stored.write_bytes(content)
    restored = await registry(world, "promote", name, *place)

    for code, said in (again, damaged):
        assert 0 != code
        assert "TRUNCATED" in said
        assert "restore the file" in " ".join(said.split())
    assert (0, True) == (restored[0], "is ACTIVE" in " ".join(restored[1].split()))
