"""The accuracy gate on real graphs: what it lets through, what it stops, and what the search rescues."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from engines.datasets import Array, Dataset
from engines.errors import EngineError, EngineInputError
from engines.examples import EXAMPLE_NAMES, Example
from engines.graphs import FLOAT, FLOAT16, element_types, prepare
from engines.journal import ForbiddenChangeError, State
from engines.measures import parse_budget
from engines.onnx_runner import OnnxRunner
from engines.pipeline import BuildRequest, validate
from engines.quantize import OPERATORS, Int8Quantizer
from engines.types import Precision
from engines.validation import validate_runner
from tests.integration.engines.workshop import NOW, Workshop

INT8 = Precision.INT8


def badly_calibrated(example: Example) -> Dataset:
    """What a test bench gives: inputs a tenth as large as those of the traffic, or one and the same."""
    given = example.calibration.inputs
    small = {name: value * np.float32(0.1) for name, value in given.items() if value.dtype.kind == "f"}
    return Dataset({**given, **small} if small else {n: np.zeros_like(v) for n, v in given.items()})


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_a_badly_calibrated_model_is_rejected(workshop: Workshop, name: str) -> None:
    def bad(request: BuildRequest) -> BuildRequest:
        return replace(
            request, calibration=badly_calibrated(workshop.examples[name]), is_calibration_forced=True
        )

    made = workshop.build(name, INT8, request=bad)

    assert made.report is not None
    assert not made.report.is_passed
    assert made.engine.record.state is State.BUILT
    assert any("rel_error" in reason for reason in made.report.reasons)
    assert made.report.worst_layers[0].introduced > 0.1
    with pytest.raises(ForbiddenChangeError, match="failed its accuracy gate"):
        workshop.catalog.promote(name, made.engine.manifest.engine_id, at=NOW, by="a test")
    page = workshop.catalog.read_report(made.engine, "html").decode()
    assert "cannot be promoted" in page
    assert made.report.worst_layers[0].layer in page


def test_a_badly_calibrated_model_is_not_even_built_unless_forced(workshop: Workshop) -> None:
    def bad(request: BuildRequest) -> BuildRequest:
        return replace(request, calibration=badly_calibrated(workshop.examples["cnn"]))

    with pytest.raises(
        EngineInputError, match=r"calibration: the set is unfit: .* lie outside calibration's"
    ):
        workshop.build("cnn", INT8, request=bad)
    assert [] == workshop.catalog.models()


def test_the_search_keeps_the_worst_layers_until_the_budget_holds(workshop: Workshop) -> None:
    def searched(request: BuildRequest) -> BuildRequest:
        bad = badly_calibrated(workshop.examples["wide-and-deep"])
        return replace(request, calibration=bad, is_calibration_forced=True, is_searched=True)

    made = workshop.build("wide-and-deep", INT8, request=searched)

    assert made.search is not None
    # The one layer that reads the input whose scale was calibrated wrongly.
    assert ("deep_context_2d",) == made.search.kept
    assert ("deep_context_2d",) == made.engine.manifest.options.kept_layers
    assert made.engine.record.state is State.VALIDATED


def test_the_search_lowers_as_much_as_a_tight_fp16_budget_allows(workshop: Workshop) -> None:
    def tight(request: BuildRequest) -> BuildRequest:
        return replace(request, is_searched=True, budgets=(parse_budget("rel_error<=0.001"),))

    made = workshop.build("transformer", Precision.FP16, request=tight)

    assert made.search is not None
    assert made.search.report.is_passed
    assert 0 < len(made.search.kept) < len(made.search.ranking)


def test_a_search_that_cannot_succeed_says_so_and_publishes_nothing(workshop: Workshop) -> None:
    def hopeless(request: BuildRequest) -> BuildRequest:
        return replace(request, is_searched=True, budgets=(parse_budget("abs_error_max<=-1"),))

    with pytest.raises(EngineError, match="no choice of FP32 layers passes"):
        workshop.build("cnn", Precision.FP16, request=hopeless)
    assert [] == workshop.catalog.models()


@pytest.mark.parametrize(
    ("precision", "changed", "field"),
    [
        (INT8, {"calibration": None}, "calibration"),
        (Precision.FP32, {"is_searched": True}, "search"),
        (INT8, {"is_searched": True, "validation": None}, "search"),
        (Precision.FP16, {"calibration": Dataset({"image": np.zeros((1, 1))})}, "calibration"),
    ],
)
def test_requests_that_cannot_work_are_refused_first(
    workshop: Workshop, precision: Precision, changed: dict[str, object], field: str
) -> None:
    with pytest.raises(EngineInputError, match=field):
        workshop.build("cnn", precision, request=lambda r: replace(r, **changed))


def test_a_later_verdict_counts(workshop: Workshop) -> None:
    made = workshop.build("cnn", INT8)
    assert made.engine.record.state is State.VALIDATED
    validation = workshop.examples["cnn"].validation

    judged, report = validate(
        made.engine, workshop.catalog, validation, [parse_budget("abs_error_max<=1e-6")], by="a test", at=NOW
    )

    assert not report.is_passed
    assert judged.record.state is State.BUILT
    judged, _ = validate(made.engine, workshop.catalog, validation, by="a test", at=NOW)
    assert judged.record.state is State.VALIDATED


def test_a_built_engine_without_a_verdict_is_not_promoted(workshop: Workshop) -> None:
    made = workshop.build("cnn", request=lambda r: replace(r, validation=None))

    assert made.report is None
    with pytest.raises(ForbiddenChangeError, match="never validated"):
        workshop.catalog.promote("cnn", made.engine.manifest.engine_id, at=NOW, by="a test")


def test_anything_that_answers_can_be_judged(examples: dict[str, Example]) -> None:
    example = examples["cnn"]

    class Inverted:
        description = "a replica that lies"

        def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
            return {"logits": -OnnxRunner(example.model).run(inputs)["logits"]}

    report = validate_runner(example.model, Inverted(), example.validation, [parse_budget("cosine_min>=0.9")])

    assert "a replica that lies" == report.ran
    assert not report.is_passed


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_quantised_graphs_are_as_tensorrt_requires(examples: dict[str, Example], name: str) -> None:
    model = prepare(examples[name].model)
    with Int8Quantizer(model, examples[name].calibration) as quantizer:
        graph = quantizer.quantize()
        kept = quantizer.quantize(quantizer.nodes[:1])

    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.graph.initializer}
    quantizers = [n for n in graph.graph.node if n.op_type == "QuantizeLinear"]
    makers = {out: n for n in graph.graph.node for out in n.output}
    for node in quantizers:
        zero = weights[node.input[2]]
        assert np.int8 == zero.dtype
        assert not zero.any()
        assert (weights[node.input[1]] > 0).all()
    assert any(weights[node.input[1]].ndim == 1 and weights[node.input[1]].size > 1 for node in quantizers)
    for node in graph.graph.node:
        if node.op_type in OPERATORS:
            assert ["DequantizeLinear"] * 2 == [makers[name].op_type for name in node.input[:2]]
            assert not any(makers.get(name) for name in node.input[2:])  # biases stay as they are
    assert _quantised(kept) == _quantised(graph) - {quantizer.nodes[0]}


def _quantised(model: onnx.ModelProto) -> set[str]:
    makers = {out: n.op_type for n in model.graph.node for out in n.output}
    return {
        n.name
        for n in model.graph.node
        if n.op_type in OPERATORS and "DequantizeLinear" in {makers.get(name) for name in n.input[:2]}
    }


def test_a_model_without_heavy_layers_is_not_quantised(examples: dict[str, Example]) -> None:
    model = prepare(examples["cnn"].model)
    del model.graph.node[:]

    with pytest.raises(EngineInputError, match="choose FP16 or FP32"):
        Int8Quantizer(model, examples["cnn"].calibration)


def test_quantising_prints_nothing(examples: dict[str, Example], capfd: pytest.CaptureFixture[str]) -> None:
    example = examples["cnn"]
    with Int8Quantizer(prepare(example.model), example.calibration.head(64)) as quantizer:
        quantizer.quantize()

    assert ("", "") == capfd.readouterr()


def test_int8_with_fp16_between_keeps_what_was_kept_exact(workshop: Workshop, tmp_path: Path) -> None:
    made = workshop.build("transformer", Precision.INT8_FP16, kept_layers=("logits", "q_flat_1"))

    graph = onnx.load_model(workshop.catalog.fetch(made.engine, tmp_path))
    types = element_types(prepare(graph))
    assert made.report is not None
    assert made.report.is_passed
    # Norms and sums are FP16; quantised layers and the two that were kept read and write FP32.
    assert (FLOAT16, FLOAT16) == (types["normed_1"], types["y_1"])
    assert (FLOAT, FLOAT, FLOAT) == (types["k_flat_1"], types["q_flat_1"], types["logits"])
    makers = {out: n.op_type for n in graph.graph.node for out in n.output}
    kept = next(n for n in graph.graph.node if n.name == "q_flat_1")
    assert "DequantizeLinear" not in {makers.get(name) for name in kept.input}
