"""Quantise an FP32 graph to INT8 with explicit Q/DQ nodes, as strongly typed networks want it.

Promises: activations and weights symmetric with zero point 0, weights per output channel, biases in
FP32, thresholds from entropy calibration on the given set; calibrated once, however many variants are
made. Refuses graphs without a layer to quantise. Called by the pipeline and the sensitivity search.
`onnxruntime` does the work and is imported on first use.
"""

import contextlib
import importlib
import io
import logging
import tempfile
from collections.abc import Collection, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from engines.datasets import Array, Dataset
from engines.errors import EngineError, EngineInputError
from engines.graphs import prepare
from engines.onnx_runner import load_onnxruntime

if TYPE_CHECKING:
    import onnx

# Where INT8 pays: TensorRT has INT8 kernels for these, and their neighbours are fused into them.
OPERATORS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_BATCH_SIZE = 32


class _Reader:
    """What ONNX Runtime reads calibration batches from."""

    def __init__(self, dataset: Dataset) -> None:
        self._batches: Iterator[dict[str, Array]] = dataset.batches(_BATCH_SIZE)

    def get_next(self) -> dict[str, Array] | None:
        return next(self._batches, None)


class Int8Quantizer:
    """Makes INT8 variants of one model from one calibration; use it as a context manager."""

    def __init__(self, model: "onnx.ModelProto", calibration: Dataset) -> None:
        self.nodes = tuple(node.name for node in model.graph.node if node.op_type in OPERATORS)
        if not self.nodes:
            raise EngineInputError("model", f"it has none of {', '.join(OPERATORS)}", "choose FP16 or FP32")
        expected = {value.name for value in model.graph.input} - {t.name for t in model.graph.initializer}
        if set(calibration.inputs) != expected:
            raise EngineInputError(
                "calibration", f"holds {sorted(calibration.inputs)}", f"the model takes {sorted(expected)}"
            )
        self._model, self._calibration = model, calibration
        self._folder = tempfile.TemporaryDirectory(prefix="forecrest-int8-")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def quantize(self, kept: Collection[str] = ()) -> "onnx.ModelProto":
        """Quantise every fitting node but the kept ones.

        Raises:
            EngineInputError: a kept name that is no node of `nodes`.
            EngineError: ONNX Runtime refused.
        """
        unknown = set(kept) - set(self.nodes)
        if unknown:
            raise EngineInputError(
                "kept_layers",
                f"{min(unknown)} is not quantised anyway",
                f"choose from {', '.join(self.nodes)}",
            )
        if not set(self.nodes) - set(kept):
            return prepare(self._model)
        ort = load_onnxruntime()
        tools: Any = importlib.import_module("onnxruntime.quantization")
        folder = Path(self._folder.name)
        source = type(self._model)()
        source.CopyFrom(self._model)
        # Says that the graph is prepared; otherwise a warning recommends what `prepare` has done.
        source.metadata_props.add(key="onnx.quant.pre_process", value="onnxruntime.quant")
        target = folder / "quantized.onnx"
        try:
            # It prints its progress, and standard output belongs to the command's result.
            with contextlib.redirect_stdout(io.StringIO()), _quiet_logging():
                tools.quantize_static(
                    source,
                    target,
                    _Reader(self._calibration),
                    quant_format=tools.QuantFormat.QDQ,
                    op_types_to_quantize=list(OPERATORS),
                    per_channel=True,
                    activation_type=tools.QuantType.QInt8,
                    weight_type=tools.QuantType.QInt8,
                    nodes_to_exclude=sorted(kept),
                    calibrate_method=tools.CalibrationMethod.Entropy,
                    calibration_cache_path=folder / "ranges.json",
                    extra_options={
                        "ActivationSymmetric": True,
                        "WeightSymmetric": True,
                        # TensorRT adds biases in the accumulator's precision; quantised ones it refuses.
                        "QuantizeBias": False,
                        # Weights stay FP32 with Q/DQ behind them: TensorRT folds the pair itself.
                        "AddQDQPairToWeight": True,
                        # Results stay wide until the next quantised layer reads them.
                        "OpTypesToExcludeOutputQuantization": list(OPERATORS),
                    },
                )
        except Exception as error:  # its errors are of many kinds
            raise EngineError(
                f"calibration: ONNX Runtime {ort.__version__} cannot quantise: {error}"
            ) from error
        import onnx  # noqa: PLC0415 - slow to import

        made = onnx.load_model(target)
        self._spare(made, kept)
        return prepare(made)

    def _spare(self, made: "onnx.ModelProto", kept: Collection[str]) -> None:
        """Let kept layers read the exact tensors again.

        A Q/DQ pair that another layer needs is put before all readers of a tensor, kept ones included.
        """
        original = {node.name: list(node.input) for node in self._model.graph.node}
        for node in made.graph.node:
            if node.name in kept:
                node.input[:] = original[node.name]


@contextlib.contextmanager
def _quiet_logging() -> Generator[None]:
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(before)
