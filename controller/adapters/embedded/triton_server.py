"""Triton Inference Server from the `nvidia-pytriton` wheel, started as our own process.

Promises: finds the environment that Triton's python backend needs (its own, with numpy < 2) and
says what to do when it is missing or unfit; never changes that environment; the server listens on
127.0.0.1 alone (gRPC and metrics), loads models only when told to, drains on `stop`, and is gone
with all its model processes when this process is. Called by the local actuator and by tests.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from controller.adapters.embedded.folder import choose_port
from controller.adapters.embedded.process import (
    EmbeddedError,
    ServerExit,
    ServerProcess,
    ServerSpec,
    ServerStartError,
)

ENVIRONMENT_VARIABLE = "FORECREST_TRITON_PYTHON"
_START_TIMEOUT_S = 60.0
_PORT_ATTEMPTS = 3
_SHM = Path("/dev/shm")  # noqa: S108 - where Triton's python backend keeps its shared memory
# Runs in Triton's environment, to see it as the model processes will.
_PROBE = """
import ctypes, importlib.metadata as metadata, json, os, sys, sysconfig
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
library, folder = sysconfig.get_config_var("INSTSONAME"), sysconfig.get_config_var("LIBDIR")
loads = False
for name in (os.path.join(folder or "", library or ""), f"libpython3.{sys.version_info.minor}.so.1.0"):
    try:
        ctypes.CDLL(name)
        loads = True
        break
    except OSError:
        pass
print(json.dumps({
    "minor": sys.version_info.minor, "packages": sysconfig.get_path("purelib"), "library_folder": folder,
    "library_loads": loads, "numpy": version("numpy"), "onnxruntime": version("onnxruntime"),
    "triton": version("nvidia-pytriton"),
}))
"""


class TritonEnvironmentError(EmbeddedError):
    """Triton's environment is missing or unfit; the message says how to make it."""

    def __init__(self, python: Path, problem: str) -> None:
        super().__init__(
            f"Triton's environment ({python}): {problem}. Make it with `make triton`, or set "
            f"{ENVIRONMENT_VARIABLE} to the Python of an environment made from requirements/triton.txt"
        )


@dataclass(frozen=True, slots=True)
class TritonEnvironment:
    """Where Triton's parts are. `variables` is the whole environment of its processes."""

    python: Path
    server: Path
    backend: Path
    stub: Path
    variables: Mapping[str, str]
    onnxruntime: str  # release that models run in

    @classmethod
    def find(cls, python: Path | None = None) -> Self:
        """Look into the environment of `python`.

        It defaults to FORECREST_TRITON_PYTHON, then to `triton/bin/python` inside our own.

        Raises:
            TritonEnvironmentError: it is missing, incomplete, or would serve wrong results.
        """
        configured = os.environ.get(ENVIRONMENT_VARIABLE)
        # Absolute, not resolved: behind the link lies the base Python, which knows no environment.
        python = (python or Path(configured or Path(sys.prefix) / "triton" / "bin" / "python")).absolute()
        facts = _probe(python)
        # With numpy 2 the python backend of this release hands back empty tensors, without an error.
        numpy = facts["numpy"]
        if numpy is None or int(numpy.partition(".")[0]) >= 2:
            raise TritonEnvironmentError(python, f"needs numpy below 2 and has {numpy or 'none'}")
        for name in ("triton", "onnxruntime"):
            if facts[name] is None:
                raise TritonEnvironmentError(
                    python, f"package {name.replace('triton', 'nvidia-pytriton')} is missing"
                )
        packages, minor = Path(facts["packages"]), facts["minor"]
        root = packages / "pytriton" / "tritonserver"
        stub = root / "python_backend_stubs" / f"3.{minor}" / "triton_python_backend_stub"
        if not stub.exists():
            raise TritonEnvironmentError(python, f"this Triton has no python backend for Python 3.{minor}")
        if not facts["library_loads"]:
            raise TritonEnvironmentError(
                python,
                f"its Python has no shared library libpython3.{minor}.so, which Triton's python backend loads "
                f"(on Debian and Ubuntu: apt-get install libpython3.{minor})",
            )
        libraries = [facts["library_folder"] or "", str(packages / "nvidia_pytriton.libs")]
        return cls(
            python=python,
            server=root / "bin" / "tritonserver",
            backend=root / "backends" / "python",
            stub=stub,
            variables={
                # The model process takes its environment from the first `python3` on this path.
                "PATH": os.pathsep.join([str(python.parent), os.defpath]),
                "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
                "LC_ALL": "C.UTF-8",
                # One thread each: replicas of one machine must not take each other's cores.
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            onnxruntime=facts["onnxruntime"],
        )

    def backend_directory(self, folder: Path) -> Path:
        """A directory of links in which the stub lies beside the backend, as Triton wants it."""
        directory = folder / "backends"
        (directory / "python").mkdir(parents=True, exist_ok=True)
        for part in (*self.backend.glob("*.so"), *self.backend.glob("*.py"), self.stub):
            temporary = directory / f".{part.name}.{os.getpid()}"
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(part)
            temporary.replace(directory / "python" / part.name)
        return directory


def _probe(python: Path) -> dict[str, Any]:
    if not python.exists():
        raise TritonEnvironmentError(python, "there is none")
    try:
        run = subprocess.run(  # noqa: S603 - the operator's own interpreter, without a shell
            [python, "-I", "-c", _PROBE], capture_output=True, text=True, timeout=60, check=True
        )
        facts: dict[str, Any] = json.loads(run.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise TritonEnvironmentError(python, f"cannot be used: {error}") from error
    return facts


@dataclass(frozen=True, slots=True)
class TritonEndpoints:
    """Where a server listens: gRPC as host:port, metrics as a URL."""

    grpc: str
    metrics_url: str


class TritonServer:
    """A running tritonserver without models; made by `start`, filled through its gRPC."""

    def __init__(self, process: ServerProcess, endpoints: TritonEndpoints, shm_prefix: str) -> None:
        self.process, self.endpoints = process, endpoints
        self._shm_prefix = shm_prefix

    @classmethod
    async def start(
        cls,
        environment: TritonEnvironment,
        *,
        folder: Path,
        name: str,
        repository: Path,
        drain_s: int = 10,
        kept_fds: tuple[int, ...] = (),
        taken_ports: set[int] | None = None,
    ) -> Self:
        """Start a server that may load models from `repository`; ready means: its ports answer.

        `folder` takes its log and the backend's links; `taken_ports` is shared by the starts that
        run at the same time, so that no two choose the same port.

        Raises:
            ServerStartError: with the end of its log.
        """
        taken = set[int]() if taken_ports is None else taken_ports
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        backends = environment.backend_directory(folder)
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            ports = grpc_port, metrics_port = _choose_two(taken)
            prefix = shm_prefix(folder, name)
            spec = ServerSpec(
                name=f"Triton {name}",
                argv=(
                    *(str(environment.server), f"--id={name}", f"--model-repository={repository}"),
                    *("--model-control-mode=explicit", f"--backend-directory={backends}"),
                    *("--allow-http=false", "--grpc-address=127.0.0.1", f"--grpc-port={grpc_port}"),
                    *("--metrics-address=127.0.0.1", f"--metrics-port={metrics_port}"),
                    *("--allow-cpu-metrics=false", "--allow-gpu-metrics=false"),
                    *(f"--exit-timeout-secs={drain_s}", "--log-format=ISO8601"),
                    f"--backend-config=python,shm-region-prefix-name={prefix}",
                ),
                cwd=folder,
                env=environment.variables,
                log_path=folder / "logs" / f"{name}.log",
                ready_lines=("Started GRPCInferenceService", "Started Metrics Service"),
                start_timeout_s=_START_TIMEOUT_S,
                stop_grace_s=drain_s + 5.0,
                kept_fds=kept_fds,
            )
            try:
                process = await ServerProcess.start(spec)
            except ServerStartError as error:
                if attempt == _PORT_ATTEMPTS or "in use" not in "\n".join(error.tail):
                    raise
                continue
            finally:
                taken.difference_update(ports)
            endpoints = TritonEndpoints(f"127.0.0.1:{grpc_port}", f"http://127.0.0.1:{metrics_port}/metrics")
            return cls(process, endpoints, prefix)
        raise AssertionError("unreachable: the last attempt raises")

    async def stop(self) -> ServerExit:
        """Let requests in flight finish, within the drain time, and end the server."""
        ended = await self.process.stop()
        remove_shared_memory(self._shm_prefix)
        return ended

    async def kill(self) -> ServerExit:
        """End the server at once."""
        ended = await self.process.kill()
        remove_shared_memory(self._shm_prefix)
        return ended


def shm_prefix(folder: Path, name: str = "") -> str:
    """How a server's shared memory is named, so that ours alone is removed after a crash."""
    return f"forecrest-{folder.stat().st_dev:x}-{folder.stat().st_ino:x}-{name}"


def remove_shared_memory(prefix: str) -> None:
    """Remove what killed servers left in shared memory."""
    for region in _SHM.glob(f"{prefix}*"):
        region.unlink(missing_ok=True)


def _choose_two(taken: set[int]) -> tuple[int, int]:
    first = choose_port(taken=taken)
    taken.add(first)
    second = choose_port(taken=taken)
    taken.add(second)
    return first, second
