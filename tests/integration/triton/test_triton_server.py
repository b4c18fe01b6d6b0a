# ruff: noqa: ASYNC240 - small local files, read between awaits
"""A Triton server, its environment and its end."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from controller.actuators.triton import WarmTarget, verify_warm
from controller.adapters.clock import SystemClock
from controller.adapters.embedded import ServerStartError
from controller.adapters.embedded.triton_server import (
    TritonEnvironment,
    TritonEnvironmentError,
    TritonServer,
    shm_prefix,
)
from engines.triton_repository import ServedModel

pytestmark = pytest.mark.triton
StartTriton = Callable[[Path], Awaitable[TritonServer]]
BuildModel = Callable[..., ServedModel]


async def load(server: TritonServer, model: ServedModel) -> None:
    target = WarmTarget(
        model_name=model.name, model_version="1", engine_digest=model.digest, latency_ms_max=2000
    )
    result = await verify_warm(server.endpoints.grpc, target, clock=SystemClock())
    assert result.is_warm, result


async def all_ended(pids: list[int]) -> None:
    async with asyncio.timeout(60):
        for pid in pids:
            try:
                fd = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            ended = asyncio.Event()
            asyncio.get_running_loop().add_reader(fd, ended.set)
            await ended.wait()
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_ending_a_server_takes_its_model_processes_and_shared_memory_along(
    start_triton: StartTriton,
    build_model: BuildModel,
    tmp_path: Path,
    started_processes: Callable[[], list[int]],
    how: str,
) -> None:
    model = build_model()
    server = await start_triton(model.repository)
    await load(server, model)
    processes = started_processes()
    shared_memory = Path("/dev/shm")
    assert len(processes) >= 3  # guard, server, model process
    assert list(shared_memory.glob(shm_prefix(tmp_path) + "*"))

    ended = await getattr(server, how)()

    await all_ended(processes)
    assert {"stop": 0, "kill": -signal.SIGKILL}[how] == ended.code
    assert [] == list(shared_memory.glob(shm_prefix(tmp_path) + "*"))


async def test_a_killed_parent_leaves_no_triton_behind(tmp_path: Path, build_model: BuildModel) -> None:
    model = build_model()
    script = """
import asyncio, json, os, sys
from pathlib import Path
from controller.actuators.triton import WarmTarget, verify_warm
from controller.adapters.clock import SystemClock
from controller.adapters.embedded.guard import _descendants
from controller.adapters.embedded.triton_server import TritonEnvironment, TritonServer
async def main():
    server = await TritonServer.start(
        TritonEnvironment.find(), folder=Path(sys.argv[1]), name="r", repository=Path(sys.argv[2]), drain_s=2)
    target = WarmTarget(model_name="recommender", model_version="1", engine_digest=None, latency_ms_max=2000)
    assert (await verify_warm(server.endpoints.grpc, target, clock=SystemClock())).is_warm
    print(json.dumps(_descendants(os.getpid())), flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, str(tmp_path), str(model.repository)),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert parent.stdout is not None
    processes = json.loads(await parent.stdout.readline())
    assert len(processes) >= 3

    parent.send_signal(signal.SIGKILL)
    await parent.communicate()

    await all_ended(processes)


async def test_a_server_that_cannot_start_tells_in_its_own_words(
    environment: TritonEnvironment, tmp_path: Path
) -> None:
    with pytest.raises(ServerStartError, match="Triton r ended with code") as caught:
        await TritonServer.start(
            environment, folder=tmp_path, name="r", repository=tmp_path / "no such repository"
        )

    assert "no such repository" in str(caught.value)


async def test_the_environment_is_left_as_it_was(environment: TritonEnvironment, tmp_path: Path) -> None:
    before = sorted(environment.backend.iterdir())

    directory = environment.backend_directory(tmp_path)

    assert sorted(environment.backend.iterdir()) == before
    assert (directory / "python" / "triton_python_backend_stub").resolve() == environment.stub


def test_a_missing_environment_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(TritonEnvironmentError, match=r"there is none\. Make it with `make triton`"):
        TritonEnvironment.find(tmp_path / "bin" / "python")


def test_an_environment_with_numpy_2_is_refused() -> None:
    # Our own environment has numpy 2, with which the python backend would hand back empty tensors.
    with pytest.raises(TritonEnvironmentError, match="needs numpy below 2 and has 2"):
        TritonEnvironment.find(Path(sys.executable))


def test_a_program_that_is_no_python_is_refused() -> None:
    with pytest.raises(TritonEnvironmentError, match="cannot be used"):
        TritonEnvironment.find(Path("/bin/false"))


async def test_a_wrong_library_path_is_seen_as_a_start_error(
    environment: TritonEnvironment, tmp_path: Path
) -> None:
    broken = replace(environment, server=tmp_path / "tritonserver")

    with pytest.raises(ServerStartError, match="No such file or directory"):
        await TritonServer.start(broken, folder=tmp_path, name="r", repository=tmp_path)
