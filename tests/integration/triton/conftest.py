"""Real Triton servers with small models; each test gets servers of its own and leaves none behind."""

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from controller.adapters.embedded.triton_server import TritonEnvironment, TritonServer
from engines.onnx_examples import write_two_tower
from engines.triton_repository import ServedModel, ServingOptions, build_repository

SEED = 7
StartTriton = Callable[[Path], Awaitable[TritonServer]]
BuildModel = Callable[..., ServedModel]


@pytest.fixture(scope="session")
def environment() -> TritonEnvironment:
    return TritonEnvironment.find()


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("engine") / "two_tower.onnx"
    write_two_tower(path, seed=SEED)
    return path


@pytest.fixture
def build_model(tmp_path: Path, engine: Path) -> BuildModel:
    def build(*, version: int = 1, options: ServingOptions | None = None) -> ServedModel:
        return build_repository(
            tmp_path / "repositories", engine, name="recommender", version=version, options=options
        )

    return build


@pytest.fixture
def broken_model(tmp_path: Path) -> Callable[[str], Path]:
    """A repository with the model `broken`, whose execute method has the given body."""

    def write(body: str) -> Path:
        repository = tmp_path / "broken_repository"
        shutil.rmtree(repository, ignore_errors=True)
        (repository / "broken" / "1").mkdir(parents=True)
        (repository / "broken" / "config.pbtxt").write_text(
            'backend: "python"\nmax_batch_size: 4\n'
            'input { name: "x" data_type: TYPE_FP32 dims: [2] }\n'
            'output { name: "y" data_type: TYPE_FP32 dims: [2] }\n'
            "instance_group [{ kind: KIND_CPU count: 1 }]\n"
        )
        (repository / "broken" / "1" / "model.py").write_text(
            "import numpy as np\nimport triton_python_backend_utils as pb\n"
            "class TritonPythonModel:\n"
            "    def execute(self, requests):\n"
            f"        {body}\n"
        )
        return repository

    return write


@pytest.fixture
async def start_triton(tmp_path: Path, environment: TritonEnvironment) -> AsyncIterator[StartTriton]:
    servers: list[TritonServer] = []

    async def start(repository: Path) -> TritonServer:
        server = await TritonServer.start(
            environment, folder=tmp_path, name=f"r{len(servers)}", repository=repository, drain_s=30
        )
        servers.append(server)
        return server

    yield start
    for server in servers:
        await server.stop()
