"""The port every engine builder implements, and where to find the implementation for a runtime.

Promises: a builder refuses, before any work, what it cannot build, with the field and the remedy; it
returns a complete engine or raises. Called by the pipeline. Implementations: `trt_tensorrt`,
`trt_rtx`, `onnx_artifact`; each imports its runtime on first use.
"""

from collections.abc import Callable
from typing import Protocol

from engines.types import BuildOptions, BuiltEngine, RuntimeKind, TensorInfo, Toolchain

Progress = Callable[[str, int, int], None]  # phase, steps done, steps in all


class Builder(Protocol):
    """Turns one converted graph into one engine."""

    kind: RuntimeKind

    def toolchain(self) -> Toolchain:
        """What would build here.

        Raises:
            MissingPackageError: the runtime is not installed.
        """
        ...

    def resolve(self, options: BuildOptions) -> BuildOptions:
        """Options with what they left open decided, above all the compute capabilities.

        Raises:
            EngineInputError: this builder, or this machine, cannot build so.
        """
        ...

    def build(
        self,
        graph: bytes,
        inputs: tuple[TensorInfo, ...],
        options: BuildOptions,
        *,
        timing_cache: bytes | None,
        progress: Progress,
    ) -> BuiltEngine:
        """Build from a serialised ONNX graph; `options` are resolved and their profiles complete.

        Raises:
            EngineError: the runtime refused, in its own words.
        """
        ...


def builder_for(kind: RuntimeKind) -> Builder:
    """The builder of a runtime; nothing of the runtime is imported yet."""
    # Imported here, so that a fault in one builder's module never takes the others along.
    if kind is RuntimeKind.TENSORRT:
        from engines.trt_tensorrt import TensorRtBuilder  # noqa: PLC0415

        return TensorRtBuilder()
    if kind is RuntimeKind.TENSORRT_RTX:
        from engines.trt_rtx import TensorRtRtxBuilder  # noqa: PLC0415

        return TensorRtRtxBuilder()
    from engines.onnx_artifact import OnnxArtifactBuilder  # noqa: PLC0415

    return OnnxArtifactBuilder()
