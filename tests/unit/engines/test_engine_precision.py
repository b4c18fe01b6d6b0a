"""Conversion of graphs to low precision: what changes, what must not."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from engines.errors import EngineInputError
from engines.examples import EXAMPLE_NAMES, make_example
from engines.graphs import BFLOAT16, FLOAT, FLOAT16, element_types, prepare, signature
from engines.onnx_runner import OnnxRunner
from engines.precision import convert, emulate_bf16, round_bfloat16
from engines.types import Precision
from engines.validation import layer_errors


def weighted_model(weight: float) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["y"], name="product")],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 1])],
        [numpy_helper.from_array(np.array([weight], np.float32), "w")],
    )
    return prepare(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.0, 1.0),
        (1.00390625, 1.0),
        (1.01171875, 1.015625),
        (-3.14159274, -3.140625),
        (0.0, 0.0),
        (1e-40, 1e-40),
    ],
)
def test_bfloat16_rounds_to_the_nearest_and_ties_to_even(value: float, expected: float) -> None:
    bits = round_bfloat16(np.array([value], np.float32)).astype(np.uint32) << 16

    assert expected == pytest.approx(float(bits.view(np.float32)[0]), rel=1e-2 if abs(value) < 1e-30 else 0)


@pytest.mark.parametrize(("precision", "low"), [(Precision.FP16, FLOAT16), (Precision.BF16, BFLOAT16)])
@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_every_float_inside_is_lowered_and_the_interface_stays(
    name: str, precision: Precision, low: int
) -> None:
    model = prepare(make_example(name, calibration_count=1, validation_count=1).model)

    made = convert(model, precision).model

    assert signature(model) == signature(made)
    edges = {value.name for value in (*made.graph.input, *made.graph.output)}
    assert edges >= {t for t, kind in element_types(made).items() if kind == FLOAT}


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_layers_that_are_kept_compute_exactly(name: str) -> None:
    example = make_example(name, calibration_count=1, validation_count=8)
    model = prepare(example.model)
    everything = [node.name for node in model.graph.node]
    before, after = (
        OnnxRunner(graph).run(example.validation.inputs)
        for graph in (model, convert(model, Precision.FP16, everything).model)
    )

    for output, expected in before.items():
        np.testing.assert_array_equal(expected, after[output])


def test_lowering_part_of_a_graph_errs_less_than_lowering_all() -> None:
    example = make_example("transformer", calibration_count=1, validation_count=64)
    model = prepare(example.model)
    heavy = [n.name for n in model.graph.node if n.op_type in {"MatMul", "Gemm"}]

    def worst(kept: list[str]) -> float:
        errors = layer_errors(model, convert(model, Precision.FP16, kept).model, example.validation)
        return next(e.relative_error for e in errors if e.layer == "logits")

    assert 0 < worst(heavy) < worst([])


def test_weights_beyond_the_range_are_clamped_and_counted() -> None:
    made = convert(weighted_model(1e6), Precision.FP16)

    assert 1 == made.clamped_count
    answer = OnnxRunner(made.model).run({"x": np.ones((1, 1), np.float32)})
    assert 65504.0 == float(answer["y"][0, 0])
    assert 0 == convert(weighted_model(1e6), Precision.BF16).clamped_count


def test_emulated_bfloat16_rounds_weights_and_results() -> None:
    x = {"x": np.array([[1.01171875]], np.float32)}

    exact = OnnxRunner(emulate_bf16(weighted_model(1.01171875), ["product"])).run(x)
    rounded = OnnxRunner(emulate_bf16(weighted_model(1.01171875))).run(x)

    assert 1.01171875**2 == pytest.approx(float(exact["y"][0, 0]), rel=1e-6)
    # 1.015625 x 1.01171875 is 1.0275..., and the bfloat16 next to it is 1.0234375 or 1.03125.
    assert 1.03125 == float(rounded["y"][0, 0])


def test_a_layer_that_is_not_there_cannot_be_kept() -> None:
    with pytest.raises(EngineInputError, match="no node is called nowhere"):
        convert(weighted_model(1), Precision.FP16, ["nowhere"])


def test_a_graph_in_low_precision_is_not_converted_again() -> None:
    low = convert(weighted_model(1), Precision.FP16).model

    with pytest.raises(EngineInputError, match="give the FP32 model"):
        convert(low, Precision.FP16)


def test_casts_and_shapes_inside_follow_the_precision() -> None:
    value = numpy_helper.from_array(np.array([0.5], np.float32))
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["ids"], ["floats"], name="cast", to=TensorProto.FLOAT),
            helper.make_node("Shape", ["ids"], ["shape"], name="shape"),
            helper.make_node("ConstantOfShape", ["shape"], ["halves"], name="halves", value=value),
            helper.make_node("Add", ["floats", "halves"], ["y"], name="sum"),
        ],
        "casts",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])],
    )
    opset = [helper.make_opsetid("", 17)]
    model = prepare(helper.make_model(graph, ir_version=8, opset_imports=opset))

    made = convert(model, Precision.FP16).model

    types = element_types(made)
    assert (FLOAT16, FLOAT, FLOAT16) == (types["floats"], types["halves"], types["y__low"])
    answer = OnnxRunner(made).run({"ids": np.array([[1, 2]])})
    assert [[1.5, 2.5]] == answer["y"].tolist()
