"""Build engines with TensorRT-RTX, on any machine: it needs no GPU.

Promises: real engines for the compute capabilities it serves, several in one file. Refuses others
before any work: data-centre GPUs such as 9.0 have TensorRT, not TensorRT-RTX. Called through
`builder_for`. `tensorrt_rtx` is imported on first use.
"""

import importlib
from dataclasses import replace
from typing import Any

from engines import trt_common
from engines.builder import Progress
from engines.errors import EngineInputError, MissingPackageError
from engines.node import detect_machine
from engines.types import (
    BuildOptions,
    BuiltEngine,
    HardwareCompatibility,
    Precision,
    RuntimeKind,
    TensorInfo,
    Toolchain,
)

# What one portable engine covers by default; Turing costs the others speed and is asked for by name.
DEFAULT_CAPABILITIES = ("8.6", "8.9", "12.0")


def load_module() -> Any:  # noqa: ANN401 - an untyped module
    """Import TensorRT-RTX.

    Raises:
        MissingPackageError: it is not installed.
    """
    try:
        return importlib.import_module("tensorrt_rtx")
    except ImportError as error:
        raise MissingPackageError(
            "tensorrt_rtx", "building TensorRT-RTX engines", "install it: pip install tensorrt-rtx-cu13"
        ) from error


class TensorRtRtxBuilder:
    """See the module."""

    kind = RuntimeKind.TENSORRT_RTX

    def toolchain(self) -> Toolchain:
        """Its version alone: no driver or GPU takes part in the build."""
        return Toolchain(runtime=self.kind, version=load_module().__version__)

    def resolve(self, options: BuildOptions) -> BuildOptions:
        """Set the default compute capabilities, or refuse those it does not serve."""
        known = _capabilities(load_module())
        chosen = options.compute_capabilities or DEFAULT_CAPABILITIES
        for capability in chosen:
            if capability not in known:
                raise EngineInputError(
                    "compute_capability",
                    f"TensorRT-RTX builds no engine for {capability}",
                    f"choose from {', '.join(known)}, or build with --runtime tensorrt on that GPU",
                )
        if "7.5" in chosen and options.precision is not Precision.FP16:
            raise EngineInputError(
                "compute_capability",
                f"TensorRT-RTX serves 7.5 (Turing) in FP16 only, not {options.precision}",
                "build an FP16 engine for it, or leave 7.5 out",
            )
        if options.hardware_compatibility is not HardwareCompatibility.NONE:
            raise EngineInputError(
                "hardware_compatibility", "TensorRT-RTX has none", "list every compute capability instead"
            )
        return replace(options, compute_capabilities=tuple(sorted(set(chosen), key=_number)))

    def build(
        self,
        graph: bytes,
        inputs: tuple[TensorInfo, ...],
        options: BuildOptions,
        *,
        timing_cache: bytes | None,
        progress: Progress,
    ) -> BuiltEngine:
        """Build ahead of time; kernels are finished by the runtime when the engine first loads."""
        trt = load_module()
        plan = trt_common.build_plan(
            trt,
            graph,
            inputs,
            options,
            targets=options.compute_capabilities,
            timing_cache=timing_cache,
            progress=progress,
        )
        layers, layers_from, notes = plan.layers, "the builder's log", list(plan.warnings)
        has_gpu = any(g.compute_capability in options.compute_capabilities for g in detect_machine().gpus)
        loaded = trt_common.load(trt, plan.content, has_gpu=has_gpu)
        if loaded.verdict is trt_common.LoadVerdict.LOADED:
            layers, layers_from = trt_common.inspect(trt, loaded.engine), "the engine inspector"
        else:
            notes.append(f"not loaded here: {loaded.detail}")
        return BuiltEngine(
            content=plan.content,
            layers=layers,
            layers_from=layers_from,
            timing_cache=plan.timing_cache,
            notes=tuple(notes),
        )


def _capabilities(trt: Any) -> tuple[str, ...]:  # noqa: ANN401 - as above
    """Compute capabilities this release has a constant for, as "8.9"."""
    numbers = [name[2:] for name in trt.ComputeCapability.__members__ if name.startswith("SM")]
    return tuple(sorted((f"{number[:-1]}.{number[-1]}" for number in numbers), key=_number))


def _number(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in capability.split("."))
