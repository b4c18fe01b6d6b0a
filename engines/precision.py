"""Convert an FP32 graph to FP16 or BF16, node by node.

Strongly typed networks take their precision from the graph, so the graph is what is converted.
Promises: inputs and outputs of the model keep their types; every node but the kept ones computes in
the low type; inner tensors keep their names, so layers can be compared; weights that do not fit are
clamped and counted. Refuses graphs that are not FP32. Called by the pipeline and the sensitivity search.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engines.errors import EngineInputError
from engines.graphs import BFLOAT16, FLOAT, FLOAT16, element_types, prepare
from engines.types import Precision

if TYPE_CHECKING:
    import onnx

_LOW = {Precision.FP16: FLOAT16, Precision.BF16: BFLOAT16}
# Inputs that the standard allows in float32 alone, by operator.
_FLOAT32_ONLY = {"Resize": {1, 2}}
_FP16_MAX = 65504.0


@dataclass(frozen=True, slots=True)
class Converted:
    """The converted graph and how many weights had to be clamped into the low type's range."""

    model: "onnx.ModelProto"
    clamped_count: int


@dataclass(slots=True)
class _Conversion:
    """State of one conversion: where each tensor of the original is now, and in which type."""

    low: int
    place: dict[str, tuple[str, int]]
    weights: dict[str, Any]
    nodes: list[Any] = field(default_factory=list[Any])
    casts: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    lowered: dict[str, Any] = field(default_factory=dict[str, Any])
    clamped_count: int = 0

    def read(self, name: str, wanted: int) -> str:
        """Name of the tensor in the wanted type, with a Cast in between if there is none yet."""
        from onnx import helper  # noqa: PLC0415 - slow to import

        actual, kind = self.place[name]
        if kind == wanted:
            return actual
        if (name, wanted) not in self.casts:
            made = f"{name}__as_{wanted}"
            self.casts[name, wanted] = made
            if name in self.weights:
                self.lowered[made] = self._lower(name, made)
            else:
                self.nodes.append(helper.make_node("Cast", [actual], [made], name=made, to=wanted))
        return self.casts[name, wanted]

    def _lower(self, name: str, made: str) -> Any:  # noqa: ANN401 - a TensorProto
        from onnx import numpy_helper  # noqa: PLC0415 - as above

        value = numpy_helper.to_array(self.weights[name])
        if self.low == FLOAT16:
            self.clamped_count += int((np.abs(value) > _FP16_MAX).sum())
            return numpy_helper.from_array(np.clip(value, -_FP16_MAX, _FP16_MAX).astype(np.float16), made)
        return _bfloat16(value, made)


def convert(model: "onnx.ModelProto", precision: Precision, kept: Collection[str] = ()) -> Converted:
    """Convert a prepared FP32 model to FP16 or BF16; nodes named in `kept` stay in FP32.

    Raises:
        EngineInputError: a kept node the model has not, or a graph that already holds low types.
    """
    types = element_types(model)
    unknown = set(kept) - {node.name for node in model.graph.node}
    if unknown:
        raise EngineInputError("kept_layers", f"no node is called {min(unknown)}", "use names of the model")
    if set(types.values()) & {FLOAT16, BFLOAT16}:
        raise EngineInputError("model", "it holds FP16 or BF16 already", "give the FP32 model")
    made = type(model)()
    made.CopyFrom(model)
    graph = made.graph
    low = _LOW[precision]
    state = _Conversion(
        low,
        place={name: (name, kind) for name, kind in types.items()},
        weights={tensor.name: tensor for tensor in graph.initializer},
    )
    outputs = {value.name for value in graph.output}
    for node in graph.node:
        _convert_node(state, node, FLOAT if node.name in kept else low, outputs)
    for value in graph.output:
        _restore_output(state, value.name)
    _replace(graph, state)
    return Converted(prepare(made), state.clamped_count)


def _convert_node(state: _Conversion, node: "onnx.NodeProto", wanted: int, outputs: set[str]) -> None:
    fixed = _FLOAT32_ONLY.get(node.op_type, set[int]())
    originals = list(node.output)
    for index, name in enumerate(node.input):
        if name and state.place[name][1] in {FLOAT, state.low}:
            node.input[index] = state.read(name, FLOAT if index in fixed else wanted)
    for attribute in node.attribute:
        if node.op_type == "Cast" and attribute.name == "to" and attribute.i == FLOAT:
            attribute.i = wanted
        if node.op_type == "ConstantOfShape" and attribute.name == "value" and attribute.t.data_type == FLOAT:
            wanted = FLOAT  # rare, and small: not worth converting its value
    for index, name in enumerate(originals):
        if name and state.place[name][1] == FLOAT:
            actual = f"{name}__low" if name in outputs and wanted != FLOAT else name
            node.output[index] = actual
            state.place[name] = (actual, wanted)
    state.nodes.append(type(node).FromString(node.SerializeToString()))


def _restore_output(state: _Conversion, name: str) -> None:
    from onnx import helper  # noqa: PLC0415 - as above

    actual, kind = state.place[name]
    if kind == state.low:
        state.nodes.append(helper.make_node("Cast", [actual], [name], name=f"{name}__restored", to=FLOAT))


def _replace(graph: "onnx.GraphProto", state: _Conversion) -> None:
    del graph.node[:]
    graph.node.extend(state.nodes)
    del graph.value_info[:]
    used = {name for node in state.nodes for name in node.input}
    weights = [w for w in (*state.weights.values(), *state.lowered.values()) if w.name in used]
    copies = [type(w).FromString(w.SerializeToString()) for w in weights]
    del graph.initializer[:]
    graph.initializer.extend(copies)


def round_bfloat16(value: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The nearest bfloat16 of each finite value, ties to even, as its 16 bits."""
    bits = np.ascontiguousarray(value, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _bfloat16(value: NDArray[np.float32], name: str) -> Any:  # noqa: ANN401 - a TensorProto
    from onnx import helper  # noqa: PLC0415 - as above

    return helper.make_tensor(name, BFLOAT16, value.shape, round_bfloat16(value).tobytes(), raw=True)


def emulate_bf16(model: "onnx.ModelProto", kept: Collection[str] = ()) -> "onnx.ModelProto":
    """An FP32 graph that rounds every weight and every result to BF16, for CPUs without BF16 kernels.

    Products are summed in FP32, as tensor cores do. `kept` nodes are left exact.
    """
    from onnx import helper, numpy_helper  # noqa: PLC0415 - as above

    types = element_types(model)
    made = type(model)()
    made.CopyFrom(model)
    exact = {name for node in made.graph.node if node.name in kept for name in node.input}
    for tensor in made.graph.initializer:
        if tensor.data_type == FLOAT and tensor.name not in exact:
            value = numpy_helper.to_array(tensor)
            rounded = (round_bfloat16(value).astype(np.uint32) << 16).view(np.float32).reshape(value.shape)
            tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))
    nodes: list[Any] = []
    for node in made.graph.node:
        names = [n for n in node.output if n and types.get(n) == FLOAT and node.name not in kept]
        for index, name in enumerate(node.output):
            if name in names:
                node.output[index] = f"{name}__exact"
        nodes.append(type(node).FromString(node.SerializeToString()))
        for name in names:
            low = f"{name}__bf16"
            nodes.append(helper.make_node("Cast", [f"{name}__exact"], [low], name=f"{low}_to", to=BFLOAT16))
            nodes.append(helper.make_node("Cast", [low], [name], name=f"{low}_from", to=FLOAT))
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made
