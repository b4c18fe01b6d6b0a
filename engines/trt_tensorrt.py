"""Build engines with TensorRT 10 or 11, on the GPU that will serve them.

Promises: an engine for the compute capability of the GPU in this machine, loaded once and inspected
before it is returned. Refuses machines without a GPU and capabilities other than this GPU's: TensorRT
measures its kernels and cannot build for hardware it does not see. Called through `builder_for`.
`tensorrt` is imported on first use.
"""

import importlib
from dataclasses import replace
from typing import Any

from engines import trt_common
from engines.builder import Progress
from engines.errors import EngineError, EngineInputError, MissingPackageError
from engines.node import Machine, detect_machine
from engines.types import BuildOptions, BuiltEngine, RuntimeKind, TensorInfo, Toolchain

MAJOR_MIN, MAJOR_MAX = 10, 11


def load_module() -> Any:  # noqa: ANN401 - an untyped module
    """Import TensorRT.

    Raises:
        MissingPackageError: it is not installed.
        EngineError: it is of a major version this code does not know.
    """
    try:
        module: Any = importlib.import_module("tensorrt")
    except ImportError as error:
        raise MissingPackageError(
            "tensorrt",
            "building TensorRT engines",
            "install it from NVIDIA's package index, or run in an NGC image: pip install 'forecrest[tensorrt]'",
        ) from error
    major = int(str(module.__version__).partition(".")[0])
    if not MAJOR_MIN <= major <= MAJOR_MAX:
        raise EngineError(f"tensorrt: version {module.__version__} is installed; install 10 or 11.")
    return module


class TensorRtBuilder:
    """See the module; `machine` is asked for once per call, so a test can say what there is."""

    kind = RuntimeKind.TENSORRT

    def __init__(self, machine: Machine | None = None) -> None:
        self._machine = detect_machine() if machine is None else machine

    def toolchain(self) -> Toolchain:
        """Its version, the driver and the GPU: all of them shape the engine."""
        gpu = self._machine.gpus[0] if self._machine.gpus else None
        return Toolchain(
            runtime=self.kind,
            version=load_module().__version__,
            driver=self._machine.driver,
            cuda=self._machine.cuda,
            gpu=gpu.name if gpu else None,
        )

    def resolve(self, options: BuildOptions) -> BuildOptions:
        """Set this GPU's compute capability, or refuse another one."""
        if not self._machine.gpus:
            raise EngineInputError(
                "runtime",
                f"TensorRT builds on the GPU that will serve, and here is {'; '.join(self._machine.notes)}",
                "run on such a machine, or choose --runtime tensorrt-rtx or onnx-runtime",
            )
        present = self._machine.gpus[0].compute_capability
        if options.compute_capabilities not in ((), (present,)):
            raise EngineInputError(
                "compute_capability",
                f"this GPU is {present}, asked was {', '.join(options.compute_capabilities)}",
                "build on the GPU that will serve, or use --hardware-compatibility",
            )
        return replace(options, compute_capabilities=(present,))

    def build(
        self,
        graph: bytes,
        inputs: tuple[TensorInfo, ...],
        options: BuildOptions,
        *,
        timing_cache: bytes | None,
        progress: Progress,
    ) -> BuiltEngine:
        """Build, load and inspect; an engine this GPU does not load is never returned."""
        trt = load_module()
        plan = trt_common.build_plan(
            trt, graph, inputs, options, timing_cache=timing_cache, progress=progress
        )
        loaded = trt_common.load(trt, plan.content, has_gpu=True)
        if loaded.verdict is not trt_common.LoadVerdict.LOADED:
            raise EngineError(f"build: the engine was built and does not load: {loaded.detail}")
        return BuiltEngine(
            content=plan.content,
            layers=trt_common.inspect(trt, loaded.engine),
            layers_from="the engine inspector",
            timing_cache=plan.timing_cache,
            notes=plan.warnings,
        )
