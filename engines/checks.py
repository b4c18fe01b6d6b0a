"""Check an engine before anybody relies on it, each fault at the earliest stage that can know it.

Promises: a file is compared with its record by size first and by digest after; a load is judged by the
runtime itself; answers must be there, of the declared shape, and finite. The result names the first
stage that failed and never raises for a bad engine. Refuses nothing else. Called before promotion, by
the controller before and during a prewarm, and by `forecrest engine verify`.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from engines import trt_common
from engines.compatibility import Objection, Rejection
from engines.datasets import Array
from engines.errors import EngineError, EngineInputError, MissingPackageError
from engines.graphs import profile_shapes
from engines.keys import file_digest
from engines.node import detect_machine
from engines.onnx_runner import OnnxRunner
from engines.types import Profile, RuntimeKind, TensorInfo


def check_file(path: Path, *, digest: str, size_bytes: int) -> Objection | None:
    """Compare a file with its record: cheapest first, so that a truncated file is not read at all."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return Objection(Rejection.FILE_MISSING, f"{path} does not exist")
    if size < size_bytes:
        return Objection(Rejection.TRUNCATED, f"{path} has {size} bytes of {size_bytes}")
    if size > size_bytes:
        return Objection(Rejection.WRONG_SIZE, f"{path} has {size} bytes, recorded are {size_bytes}")
    found = file_digest(path)
    if found != digest:
        return Objection(Rejection.CORRUPTED, f"{path} is {found}, recorded is {digest}")
    return None


def check_load(path: Path, runtime: RuntimeKind) -> tuple[Objection | None, str]:
    """Let this machine's runtime deserialise the engine; the sentence says what it said.

    Without the runtime, or without a GPU, nothing can be told: no objection, and the sentence says so.
    """
    try:
        if runtime is RuntimeKind.ONNX_RUNTIME:
            description = OnnxRunner(path.read_bytes()).description
            return None, f"loaded by {description}"
        module = runtime_module(runtime)
    except MissingPackageError as error:
        return None, f"not tried: {error}"
    except EngineError as error:
        return Objection(Rejection.LOAD_REFUSED, str(error)), str(error)
    loaded = trt_common.load(module, path.read_bytes(), has_gpu=bool(detect_machine().gpus))
    if loaded.verdict is trt_common.LoadVerdict.REFUSED:
        return Objection(Rejection.LOAD_REFUSED, loaded.detail), loaded.detail
    if loaded.verdict is trt_common.LoadVerdict.UNKNOWN:
        return None, f"cannot be told here: {loaded.detail}"
    return None, loaded.detail


def runtime_module(runtime: RuntimeKind) -> object:
    """Import TensorRT or TensorRT-RTX.

    Raises:
        MissingPackageError: it is not installed.
    """
    if runtime is RuntimeKind.TENSORRT:
        from engines.trt_tensorrt import load_module  # noqa: PLC0415 - only the runtime that is asked for
    else:
        from engines.trt_rtx import load_module  # noqa: PLC0415 - as above
    return load_module()


def probe_inputs(inputs: tuple[TensorInfo, ...], profiles: tuple[Profile, ...]) -> dict[str, Array]:
    """Zeros of the shape the engine is fastest at: the cheapest question any model can be asked."""
    profile = profiles[0] if profiles else {}
    return {t.name: np.zeros(profile_shapes(t, profile)[1], np.dtype(t.datatype)) for t in inputs}


def check_outputs(outputs: Mapping[str, Array], declared: tuple[TensorInfo, ...]) -> Objection | None:
    """Whether answers are complete, of the declared shape and finite."""
    for tensor in declared:
        value = outputs.get(tensor.name)
        # Triton's python backend under numpy 2 replies without an error and without data.
        if value is None or value.size == 0:
            return Objection(Rejection.MISSING_OUTPUT, f"output {tensor.name} is absent or empty")
        fits = value.ndim == len(tensor.dims) and all(
            isinstance(dim, str) or dim == length
            for dim, length in zip(tensor.dims, value.shape, strict=True)
        )
        if not fits:
            shape = f"output {tensor.name} has shape {list(value.shape)}, declared is {list(tensor.dims)}"
            return Objection(Rejection.WRONG_OUTPUT_SHAPE, shape)
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            count = int((~np.isfinite(value)).sum())
            return Objection(
                Rejection.NAN_OUTPUT, f"output {tensor.name} has {count} values that are not finite"
            )
    return None


def check_answers(
    path: Path, runtime: RuntimeKind, inputs: Mapping[str, Array], declared: tuple[TensorInfo, ...]
) -> tuple[Objection | None, str]:
    """Run a CPU artifact on these inputs and check its answers; engines for GPUs answer behind Triton.

    Raises:
        EngineInputError: the inputs are not the model's.
    """
    if runtime is not RuntimeKind.ONNX_RUNTIME:
        return None, "not run: an engine for a GPU is probed behind Triton"
    try:
        runner = OnnxRunner(path.read_bytes())
        return check_outputs(runner.run(inputs), declared), f"answered by {runner.description}"
    except MissingPackageError as error:
        return None, f"not run: {error}"
    except EngineInputError:
        raise
    except EngineError as error:
        return Objection(Rejection.LOAD_REFUSED, str(error)), str(error)
