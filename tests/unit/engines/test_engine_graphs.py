"""What is read from ONNX graphs: checks, names, types, and optimization profiles."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from engines.errors import EngineInputError
from engines.graphs import (
    complete_profiles,
    element_types,
    prepare,
    profile_for,
    profile_shapes,
    read_graph,
    signature,
)
from engines.types import DimRange, TensorInfo

TOKENS = TensorInfo("tokens", "int64", ("batch", "length"))
MASK = TensorInfo("mask", "float32", ("batch", 4))


def small_model(*, name: str = "", dims: tuple[object, ...] = ("batch", 3)) -> onnx.ModelProto:
    """Y = relu(x + c), with the constant as a node, as exporters write it."""
    constant = numpy_helper.from_array(np.ones(3, np.float32), "value")
    nodes = [
        helper.make_node("Constant", [], ["c"], value=constant),
        helper.make_node("Add", ["x", "c"], ["sum"], name=name),
        helper.make_node("Relu", ["sum"], ["y"], name=name),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(dims))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, list(dims))],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def test_every_node_gets_a_name_of_its_own_and_every_tensor_a_type() -> None:
    made = prepare(small_model(name="same"))

    assert ["same", "Relu_2"] == [node.name for node in made.graph.node]
    assert ["c"] == [tensor.name for tensor in made.graph.initializer]
    assert {"x": 1, "sum": 1, "y": 1, "c": 1} == element_types(made)


def test_a_free_dimension_without_a_name_gets_one() -> None:
    inputs, outputs = signature(prepare(small_model(dims=(None, 3))))

    assert (TensorInfo("x", "float32", ("x.0", 3)),) == inputs
    assert "y" == outputs[0].name


def test_a_file_that_is_no_model_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"not a model")

    with pytest.raises(EngineInputError, match=r"model: .*broken\.onnx"):
        read_graph(path)


def test_a_subgraph_is_refused() -> None:
    branch = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["z"])],
        "b",
        [],
        [helper.make_tensor_value_info("z", 1, ["batch", 3])],
    )
    model = small_model()
    model.graph.node.append(
        helper.make_node("If", ["condition"], ["w"], name="choice", then_branch=branch, else_branch=branch)
    )

    with pytest.raises(EngineInputError, match=r"choice \(If\) has a subgraph"):
        prepare(model)


def test_the_batch_may_be_left_out_of_a_profile() -> None:
    made = complete_profiles((TOKENS, MASK), ({"length": DimRange(1, 32, 64)},))

    assert ({"batch": DimRange(1, 8, 64), "length": DimRange(1, 32, 64)},) == made
    assert ((1, 1), (8, 32), (64, 64)) == profile_shapes(TOKENS, made[0])
    assert ((1, 4), (8, 4), (64, 4)) == profile_shapes(MASK, made[0])


def test_a_dimension_without_a_range_is_named() -> None:
    with pytest.raises(EngineInputError, match="dimension length has no range; add length=min:opt:max"):
        complete_profiles((TOKENS,), ())


def test_a_dimension_the_model_has_not_is_refused() -> None:
    with pytest.raises(EngineInputError, match="no dimension"):
        complete_profiles((TOKENS,), ({"width": DimRange(1, 2, 3)},))
    with pytest.raises(EngineInputError, match="no free dimension"):
        complete_profiles((TensorInfo("x", "float32", (1, 3)),), ({"batch": DimRange(1, 2, 3)},))


PROFILES = (
    {"batch": DimRange(1, 1, 4), "length": DimRange(1, 32, 64)},
    {"batch": DimRange(5, 16, 64), "length": DimRange(1, 32, 32)},
)


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ({"tokens": (4, 64), "mask": (4, 4)}, 0),
        ({"tokens": (5, 32), "mask": (5, 4)}, 1),
        ({"tokens": (5, 33), "mask": (5, 4)}, None),  # long and many: in neither profile
        ({"tokens": (65, 1), "mask": (65, 4)}, None),
        ({"tokens": (1, 1), "mask": (1, 5)}, None),  # a fixed dimension is fixed
        ({"tokens": (1, 1)}, None),  # an input is missing
        ({"tokens": (1, 1, 1), "mask": (1, 4)}, None),
    ],
)
def test_a_profile_is_found_only_if_it_holds_every_input(
    shapes: dict[str, tuple[int, ...]], expected: int | None
) -> None:
    assert expected == profile_for((TOKENS, MASK), PROFILES, shapes)


def test_a_model_of_fixed_shapes_serves_that_shape_alone() -> None:
    fixed = (TensorInfo("x", "float32", (1, 3)),)

    assert complete_profiles(fixed, ()) == ()
    assert profile_for(fixed, (), {"x": (1, 3)}) == 0
    assert profile_for(fixed, (), {"x": (2, 3)}) is None


@pytest.mark.parametrize(
    ("attribute", "kind", "expected"),
    [
        ({"value_float": 2.0}, 1, 2.0),
        ({"value_floats": [2.0, 3.0]}, 1, [2.0, 3.0]),
        ({"value_int": 2}, 7, 2),
        ({"value_ints": [2, 3]}, 7, [2, 3]),
    ],
)
def test_constants_become_initializers_in_every_form(
    attribute: dict[str, object], kind: int, expected: object
) -> None:
    model = small_model()
    model.graph.node.append(helper.make_node("Constant", [], ["k"], **attribute))

    made = {tensor.name: tensor for tensor in prepare(model).graph.initializer}

    assert kind == made["k"].data_type
    assert expected == numpy_helper.to_array(made["k"]).tolist()


def test_a_constant_of_another_form_stays_a_node() -> None:
    model = small_model()
    model.graph.node.append(helper.make_node("Constant", [], ["k"], value_string="a"))

    assert "Constant" in [node.op_type for node in prepare(model).graph.node]


def test_types_that_cannot_be_inferred_are_an_error() -> None:
    model = small_model()
    model.graph.node.append(helper.make_node("MatMul", ["x", "c"], ["y"], name="twice"))

    with pytest.raises(EngineInputError, match="types cannot be inferred"):
        prepare(model)
