"""Build the artifact for machines without a GPU: the converted ONNX graph, proven to load.

Promises: the content is the graph itself, so it runs wherever ONNX Runtime of this release or a later
one does; the layers reported are those left after ONNX Runtime's own fusions. Refuses options that only
a GPU has, and BF16, for which its CPU kernels are missing. Called through `builder_for`.
"""

import tempfile
from pathlib import Path

from engines.builder import Progress
from engines.errors import EngineError, EngineInputError
from engines.onnx_runner import load_onnxruntime
from engines.types import (
    BuildOptions,
    BuiltEngine,
    HardwareCompatibility,
    LayerInfo,
    Precision,
    RuntimeKind,
    TensorInfo,
    Toolchain,
)


class OnnxArtifactBuilder:
    """See the module."""

    kind = RuntimeKind.ONNX_RUNTIME

    def toolchain(self) -> Toolchain:
        """The release of ONNX Runtime that proved it."""
        return Toolchain(runtime=self.kind, version=load_onnxruntime().__version__)

    def resolve(self, options: BuildOptions) -> BuildOptions:
        """Refuse what a CPU artifact cannot be."""
        for name, is_set in (
            ("compute_capability", bool(options.compute_capabilities)),
            ("hardware_compatibility", options.hardware_compatibility is not HardwareCompatibility.NONE),
            ("version_compatible", options.version_compatible),
            ("optimization_level", options.optimization_level is not None),
        ):
            if is_set:
                raise EngineInputError(name, "a CPU artifact has none", "leave it out")
        if options.precision is Precision.BF16:
            raise EngineInputError(
                "precision", "ONNX Runtime has no BF16 on CPUs", "choose FP16, FP32 or INT8"
            )
        return options

    def build(
        self,
        graph: bytes,
        inputs: tuple[TensorInfo, ...],  # noqa: ARG002 - part of the port; shapes here are free
        options: BuildOptions,  # noqa: ARG002 - as above
        *,
        timing_cache: bytes | None,  # noqa: ARG002 - part of the port
        progress: Progress,
    ) -> BuiltEngine:
        """Load the graph, fused as it will be served, and list what is left of it."""
        import onnx  # noqa: PLC0415 - slow to import

        ort = load_onnxruntime()
        with tempfile.TemporaryDirectory(prefix="forecrest-onnx-") as folder:
            fused = Path(folder) / "fused.onnx"
            session = ort.SessionOptions()
            session.intra_op_num_threads = session.inter_op_num_threads = 1
            # The highest level that is still plain operators, not a layout of this very CPU.
            session.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
            session.optimized_model_filepath = str(fused)
            session.log_severity_level = 4
            try:
                ort.InferenceSession(graph, session, providers=["CPUExecutionProvider"])
            except Exception as error:  # its exception classes are private and many
                raise EngineError(f"build: ONNX Runtime refuses the graph: {error}") from error
            nodes = onnx.load_model(fused).graph.node
        progress("load", 1, 1)
        return BuiltEngine(
            content=graph,
            layers=tuple(LayerInfo(name=node.name, kind=node.op_type) for node in nodes),
            layers_from="ONNX Runtime's fused graph",
        )
