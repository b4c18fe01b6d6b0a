"""Reading what TensorRT writes about fused layers."""

import re
from pathlib import Path

import pytest

from engines import trt_common
from engines.errors import EngineError
from engines.trt_common import parse_inspection, parse_layer_listing
from engines.types import LayerInfo

# As TensorRT-RTX 1.7 logs it, shortened.
LISTING = """Layers:
Name: __mye850_0_myl0_0, LayerType: shape_call, Inputs: [], Constants: [], Outputs: [], TacticName: , StreamId: 0, Metadata: 
Name: conv_1_U15, LayerType: correlation, Inputs: [ { Name: a, Dimensions: [-1,8], Datatype: Int8, Format: (Linear) Row major }], Constants: [ { Name: k, Dimensions: [3], Datatype: Int8, Format: (Linear) }], Outputs: [ { Name: y, Dimensions: [-1,8], Strides: [8,1], Datatype: Float, Format: (Linear) Row major }, { Name: z, Dimensions: [1], Datatype: Half, Format: (Linear) }], TacticName: t, StreamId: 0, Metadata: [ONNX Layer: conv_1][ONNX Layer: relu_1][ONNX Layer: conv_1]
Bindings: something else
"""  # noqa: W291 - as it is written


def test_the_builders_listing_names_layers_types_and_sources() -> None:
    assert (
        LayerInfo(name="__mye850_0_myl0_0", kind="shape_call"),
        LayerInfo(
            name="conv_1_U15",
            kind="correlation",
            output_datatypes=("Float", "Half"),
            sources=("conv_1", "relu_1"),
        ),
    ) == parse_layer_listing(LISTING)


def test_lines_of_another_form_are_left_out() -> None:
    assert () == parse_layer_listing("Layers:\nNothing to see\n")


def test_the_inspectors_json_is_read_in_both_verbosities() -> None:
    text = """{"Layers": ["plain", {"Name": "conv", "LayerType": "CaskConvolution",
        "Outputs": [{"Name": "y", "Format/Datatype": "Row major linear FP16"}],
        "Metadata": "[ONNX Layer: conv_1]\\u001e[ONNX Layer: relu_1]"}], "Bindings": ["x"]}"""

    assert (
        LayerInfo(name="plain", kind="unknown"),
        LayerInfo(
            name="conv",
            kind="CaskConvolution",
            output_datatypes=("Row major linear FP16",),
            sources=("conv_1", "relu_1"),
        ),
    ) == parse_inspection(text)


@pytest.mark.parametrize("text", ["", "[]", '{"Layers": [{}]}', '{"Layers": 3}'])
def test_an_answer_of_another_form_is_an_error(text: str) -> None:
    with pytest.raises(EngineError, match="inspector"):
        parse_inspection(text)


def test_tensorrt_is_imported_in_its_own_files_alone_and_never_at_their_top() -> None:
    importing = re.compile(r"^(\s*)(?:from|import) tensorrt|import_module\(\"tensorrt", re.MULTILINE)
    engines = Path(trt_common.__file__).parent
    places = {path.name for path in engines.glob("*.py") if importing.search(path.read_text())}

    assert {"trt_tensorrt.py", "trt_rtx.py"} == places
    for name in places:
        assert not re.search(r"^(from|import) tensorrt", (engines / name).read_text(), re.MULTILINE)
