"""Read ONNX graphs, and make what every later step relies on: names, types, shapes.

Promises: a graph that comes out of `read_graph` is checked, has a unique name on every node, its
constants as initializers and the type of every tensor known. Refuses broken files, subgraphs (their
precision cannot be followed) and free dimensions without a name. Called by the whole pipeline.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engines.errors import EngineInputError
from engines.types import DimRange, Profile, TensorInfo

if TYPE_CHECKING:
    import onnx

FLOAT, FLOAT16, BFLOAT16 = 1, 10, 16  # onnx.TensorProto.DataType
SIZE_MAX_BYTES = 2 * 1024**3 - 1  # one protobuf message
# Free dimensions that mean the batch need no profile of the user's: this one is used.
BATCH_NAMES = ("batch", "batch_size", "N", "n")
BATCH_DEFAULT = DimRange(1, 8, 64)


def read_graph(path: Path) -> "onnx.ModelProto":
    """Read and prepare the model at `path`, external data included.

    Raises:
        EngineInputError: unreadable, broken, too large, or with subgraphs.
    """
    import onnx  # noqa: PLC0415 - slow to import

    try:
        model = onnx.load_model(path)
        onnx.checker.check_model(model)
    except Exception as error:  # protobuf, onnx and the system each raise their own kinds
        raise EngineInputError(
            "model", f"{path} is not a usable ONNX model: {error}", "export it again"
        ) from error
    return prepare(model)


def prepare(model: "onnx.ModelProto") -> "onnx.ModelProto":
    """Return a copy with unique node names, constants as initializers, and inferred types.

    Raises:
        EngineInputError: subgraphs, or types that cannot be inferred.
    """
    import onnx  # noqa: PLC0415 - as above

    made = onnx.ModelProto()
    made.CopyFrom(model)
    if made.ByteSize() > SIZE_MAX_BYTES:
        raise EngineInputError(
            "model", f"{made.ByteSize()} bytes", f"stay under {SIZE_MAX_BYTES}, or split it"
        )
    taken: set[str] = set()
    kept: list[onnx.NodeProto] = []
    for index, node in enumerate(made.graph.node):
        if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
            raise EngineInputError(
                "model",
                f"node {node.name or index} ({node.op_type}) has a subgraph",
                "unroll or export without it",
            )
        if not node.name or node.name in taken:
            node.name = f"{node.op_type}_{index}"
        taken.add(node.name)
        if node.op_type == "Constant" and (value := _constant(node)) is not None:
            value.name = node.output[0]
            made.graph.initializer.append(value)
        else:
            kept.append(node)
    copies = [type(node).FromString(node.SerializeToString()) for node in kept]
    del made.graph.node[:]
    made.graph.node.extend(copies)
    try:
        return onnx.shape_inference.infer_shapes(made, strict_mode=True)
    except Exception as error:  # as above
        raise EngineInputError("model", f"types cannot be inferred: {error}", "export it again") from error


def _constant(node: "onnx.NodeProto") -> "onnx.TensorProto | None":
    from onnx import numpy_helper  # noqa: PLC0415 - as above

    attribute = node.attribute[0]
    if attribute.name == "value":
        return attribute.t
    if attribute.name in {"value_float", "value_floats"}:
        value = attribute.f if attribute.name == "value_float" else list(attribute.floats)
        return numpy_helper.from_array(np.asarray(value, np.float32))
    if attribute.name in {"value_int", "value_ints"}:
        value = attribute.i if attribute.name == "value_int" else list(attribute.ints)
        return numpy_helper.from_array(np.asarray(value, np.int64))
    return None


def element_types(model: "onnx.ModelProto") -> dict[str, int]:
    """ONNX element type of every tensor of a prepared model, by name."""
    graph = model.graph
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*graph.input, *graph.value_info, *graph.output)
    }
    return types | {tensor.name: tensor.data_type for tensor in graph.initializer}


def signature(model: "onnx.ModelProto") -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
    """Inputs and outputs of a prepared model; a free dimension without a name is called `<tensor>.<axis>`."""
    from onnx import helper  # noqa: PLC0415 - as above

    constants = {tensor.name for tensor in model.graph.initializer}

    def info(value: "onnx.ValueInfoProto") -> TensorInfo:
        tensor = value.type.tensor_type
        dims = tuple(
            d.dim_value if d.HasField("dim_value") else d.dim_param or f"{value.name}.{axis}"
            for axis, d in enumerate(tensor.shape.dim)
        )
        return TensorInfo(value.name, helper.tensor_dtype_to_np_dtype(tensor.elem_type).name, dims)

    inputs = tuple(info(value) for value in model.graph.input if value.name not in constants)
    return inputs, tuple(info(value) for value in model.graph.output)


def complete_profiles(inputs: tuple[TensorInfo, ...], given: tuple[Profile, ...]) -> tuple[Profile, ...]:
    """Optimization profiles with a range for every free dimension of the inputs; () where none is free.

    A profile may leave out the batch (one of `BATCH_NAMES`), which then is 1:8:64.

    Raises:
        EngineInputError: a free dimension without a range, or a range for a dimension the model has not.
    """
    free = {dim for tensor in inputs for dim in tensor.dims if isinstance(dim, str)}
    if not free:
        if any(given):
            raise EngineInputError("profile", "the model has no free dimension", "leave it out")
        return ()
    made: list[Profile] = []
    for profile in given or ({},):
        unknown = sorted(set(profile) - free)
        if unknown:
            raise EngineInputError(
                "profile", f"the model has no dimension {unknown}", f"it has {sorted(free)}"
            )
        ranges = {name: BATCH_DEFAULT for name in BATCH_NAMES if name in free} | dict(profile)
        missing = sorted(free - set(ranges))
        if missing:
            raise EngineInputError(
                "profile",
                f"dimension {missing[0]} has no range",
                f"add {missing[0]}=min:opt:max to the profile",
            )
        made.append({name: ranges[name] for name in sorted(ranges)})
    return tuple(made)


def profile_shapes(
    tensor: TensorInfo, profile: Profile
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The minimal, optimal and maximal shape of one input in one profile."""

    def shape(of: str) -> tuple[int, ...]:
        return tuple(d if isinstance(d, int) else getattr(profile[d], of) for d in tensor.dims)

    return shape("min"), shape("opt"), shape("max")


def profile_for(
    inputs: tuple[TensorInfo, ...], profiles: tuple[Profile, ...], shapes: Mapping[str, tuple[int, ...]]
) -> int | None:
    """Index of the first profile that holds these input shapes, None if none does.

    With no profile at all every dimension is fixed, and 0 stands for the only shape.
    """
    for index, profile in enumerate(profiles or ({},)):
        if all(_fits(tensor, profile, shapes.get(tensor.name)) for tensor in inputs):
            return index
    return None


def _fits(tensor: TensorInfo, profile: Profile, shape: tuple[int, ...] | None) -> bool:
    if shape is None or len(shape) != len(tensor.dims):
        return False
    return all(
        length == dim if isinstance(dim, int) else dim in profile and profile[dim].holds(length)
        for dim, length in zip(tensor.dims, shape, strict=True)
    )
