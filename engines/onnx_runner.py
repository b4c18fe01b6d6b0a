"""Run ONNX graphs on the CPU through ONNX Runtime: the reference, and the judge of converted graphs.

Promises: one thread, no telemetry, outputs in float32 whatever the graph computes in, batches that
keep memory bounded. Refuses graphs and inputs that ONNX Runtime refuses, in its own words. Called by
the accuracy gate, the examples and the CPU builder. `onnxruntime` is imported on first use.
"""

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from engines.datasets import Array, Dataset
from engines.errors import EngineError, EngineInputError, MissingPackageError

if TYPE_CHECKING:
    import onnx

BATCH_SIZE = 64


class Runner(Protocol):
    """Anything that answers as an engine does; a Triton client fits as well as ONNX Runtime."""

    description: str  # what ran, for the report: "onnxruntime 1.32 on the CPU"

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Answer all samples of `inputs` [samples, ...]: outputs by name, first axis the sample.

        Raises:
            EngineError: the engine refused.
        """
        ...


def load_onnxruntime() -> Any:  # noqa: ANN401 - an untyped module
    """Import ONNX Runtime, quiet and without telemetry.

    Raises:
        MissingPackageError: it is not installed.
    """
    # Read once at import: official packages report to their maker otherwise.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        raise MissingPackageError(
            "onnxruntime",
            "running ONNX graphs on the CPU",
            "install the extra: pip install 'forecrest[engines]'",
        ) from error


class OnnxRunner:
    """One graph loaded into ONNX Runtime, on one CPU thread; `extra_outputs` are inner tensors to return too.

    Without `optimized` the graph runs as it is written: a Q/DQ pair rounds exactly where it stands,
    instead of within whichever integer kernel this CPU has. That is what an accuracy verdict needs.
    """

    def __init__(
        self, model: "onnx.ModelProto | bytes", *, extra_outputs: Sequence[str] = (), optimized: bool = False
    ) -> None:
        ort = load_onnxruntime()
        content = model if isinstance(model, bytes) else model.SerializeToString()
        if extra_outputs:
            content = _with_outputs(content, extra_outputs)
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        if not optimized:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4  # what it would log is raised or harmless
        try:
            self._session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its exception classes are private and many
            raise EngineError(f"model: ONNX Runtime refuses the graph: {error}") from error
        self.description = f"onnxruntime {ort.__version__} on the CPU"
        self.output_names: list[str] = [entry.name for entry in self._session.get_outputs()]
        self._input_names = {entry.name for entry in self._session.get_inputs()}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Answer all samples, in batches; floats come back as float32.

        Raises:
            EngineInputError: an input is missing or too many.
            EngineError: ONNX Runtime refused the batch.
        """
        if set(inputs) != self._input_names:
            raise EngineInputError(
                "dataset",
                f"holds {sorted(inputs)}, the model takes {sorted(self._input_names)}",
                "name the arrays after the model's inputs",
            )
        parts: list[list[Array]] = []
        for batch in Dataset(inputs).batches(BATCH_SIZE):
            try:
                parts.append(self._session.run(self.output_names, batch))
            except Exception as error:  # as above
                raise EngineError(f"dataset: ONNX Runtime refuses the inputs: {error}") from error
        joined = [np.concatenate(column) for column in zip(*parts, strict=True)]
        return {
            name: array.astype(np.float32) if array.dtype.kind == "f" else array
            for name, array in zip(self.output_names, joined, strict=True)
        }


def _with_outputs(content: bytes, names: Sequence[str]) -> bytes:
    import onnx  # noqa: PLC0415 - slow to import

    model = onnx.load_from_string(content)
    present = {output.name for output in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in present)
    return model.SerializeToString()
