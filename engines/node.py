"""What this machine can build and serve: GPUs, driver, runtimes, without importing any of them.

Promises: what is not found is absent or None, never guessed; a broken `nvidia-smi` is no GPU with the
reason in `notes`. Called by the builders and the command line.
"""

import importlib.metadata
import re
import shutil
import subprocess
from dataclasses import dataclass

from engines.types import RuntimeKind

_TIMEOUT_S = 20
# Distributions that bring each runtime's Python module, in order of preference.
_DISTRIBUTIONS = {
    RuntimeKind.TENSORRT: ("tensorrt", "tensorrt_cu13", "tensorrt_cu12"),
    RuntimeKind.TENSORRT_RTX: ("tensorrt_rtx", "tensorrt_rtx_cu13", "tensorrt_rtx_cu12"),
    RuntimeKind.ONNX_RUNTIME: ("onnxruntime", "onnxruntime-gpu"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU: model name, compute capability such as "9.0", memory in bytes."""

    name: str
    compute_capability: str
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What was found here; `cuda` is the release the driver or the toolkit names, None if unknown."""

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    notes: tuple[str, ...] = ()


def detect_machine() -> Machine:
    """Ask `nvidia-smi` what there is; a machine without it has no GPU."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Machine(notes=("no GPU: nvidia-smi is not installed",))
    try:
        rows = _ask(
            tool, "--query-gpu=name,compute_cap,memory.total,driver_version", "--format=csv,noheader,nounits"
        )
        banner = _ask(tool)
    except (OSError, subprocess.SubprocessError) as error:
        return Machine(notes=(f"no usable GPU: nvidia-smi failed: {error}",))
    gpus: list[Gpu] = []
    driver = None
    for line in filter(None, rows.splitlines()):
        name, capability, memory_mib, driver = (part.strip() for part in line.split(","))
        gpus.append(Gpu(name=name, compute_capability=capability, memory_bytes=int(memory_mib) << 20))
    cuda = re.search(r"CUDA Version:\s*([\d.]+)", banner)
    return Machine(gpus=tuple(gpus), driver=driver, cuda=cuda[1] if cuda else None)


def _ask(tool: str, *arguments: str) -> str:
    done = subprocess.run(  # noqa: S603 - a fixed tool of the driver, without a shell
        [tool, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
    )
    return done.stdout


def installed_runtimes() -> dict[RuntimeKind, str]:
    """Version of each runtime that is installed as a Python package here."""
    found: dict[RuntimeKind, str] = {}
    for kind, names in _DISTRIBUTIONS.items():
        for name in names:
            try:
                found.setdefault(kind, importlib.metadata.version(name))
            except importlib.metadata.PackageNotFoundError:
                continue
    return found
