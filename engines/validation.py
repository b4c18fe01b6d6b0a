"""The accuracy gate: does the converted model still answer as the FP32 model does?

Promises: one verdict from every budget, on the whole validation set; an answer that is not finite fails
whatever the budgets say; a measure that cannot be taken fails with its reason; the report names what
really ran, and the layers that introduced the most error. Refuses to judge without a budget. Called by
the pipeline, the sensitivity search and the command line.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from engines.calibration import Finding
from engines.datasets import Array, Dataset
from engines.errors import EngineInputError
from engines.graphs import FLOAT, element_types
from engines.measures import Budget, Outputs, find_measure, relative_error
from engines.onnx_runner import OnnxRunner, Runner

if TYPE_CHECKING:
    import onnx

# Inner tensors of every layer are held at once: a part of the validation set is enough to rank them.
LAYER_SAMPLES = 64
WORST_LAYERS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetResult:
    """One budget and what was measured; `value` is None where it could not be, `detail` says why."""

    budget: Budget
    value: float | None
    is_within: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerError:
    """Relative error of one layer's result. `introduced` is what its inputs did not already carry."""

    layer: str
    kind: str
    relative_error: float
    introduced: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """Why an engine may be promoted, or may not. `ran` says what answered; `excess` is 0 or less if passed."""

    is_passed: bool
    reasons: tuple[str, ...]
    ran: str
    reference: str
    sample_count: int
    validation_digest: str
    results: tuple[BudgetResult, ...]
    worst_layers: tuple[LayerError, ...] = ()
    layers_note: str = ""
    findings: tuple[Finding, ...] = field(default=())
    not_finite_count: int = 0

    @property
    def excess(self) -> float:
        """How far the worst budget is exceeded, in limits; 0 or negative when all hold."""
        if self.not_finite_count or any(r.value is None for r in self.results):
            return float("inf")
        return max((r.budget.excess(r.value) for r in self.results if r.value is not None), default=0.0)


def judge(
    reference: Outputs,
    candidate: Outputs,
    budgets: Sequence[Budget],
    *,
    dataset: Dataset,
    ran: str,
    against: str,
) -> GateReport:
    """Compare two sets of answers to the same questions. Pure.

    Raises:
        EngineInputError: no budget.
    """
    if not budgets:
        raise EngineInputError("budget", "there is none", "give at least one, such as cosine_min>=0.99")
    broken = sum(int((~np.isfinite(v)).sum()) for v in candidate.values() if v.dtype.kind == "f")
    results = tuple(
        BudgetResult(budget=b, value=None, is_within=False, detail="not measured: answers are not finite")
        if broken
        else _measure(b, reference, candidate, dataset.labels)
        for b in budgets
    )
    reasons = [f"{broken} output values are not finite"] if broken else []
    reasons += [_reason(result) for result in results if not result.is_within and not broken]
    return GateReport(
        is_passed=not reasons,
        reasons=tuple(reasons),
        ran=ran,
        reference=against,
        sample_count=dataset.sample_count,
        validation_digest=dataset.digest(),
        results=results,
        not_finite_count=broken,
    )


def _measure(budget: Budget, reference: Outputs, candidate: Outputs, labels: Array | None) -> BudgetResult:
    try:
        measured = find_measure(budget.measure)(reference, candidate, labels)
    except EngineInputError as error:
        return BudgetResult(budget=budget, value=None, is_within=False, detail=str(error))
    except Exception as error:  # noqa: BLE001 - a measure of the user's own may raise anything, and then fails
        return BudgetResult(
            budget=budget, value=None, is_within=False, detail=f"{type(error).__name__}: {error}"
        )
    value = measured.value if np.isfinite(measured.value) else None
    detail = measured.detail if value is not None else f"measured {measured.value}"
    return BudgetResult(budget=budget, value=value, is_within=budget.holds(measured.value), detail=detail)


def _reason(result: BudgetResult) -> str:
    if result.value is None:
        return f"{result.budget.measure} could not be measured: {result.detail}"
    detail = f" ({result.detail})" if result.detail else ""
    bound = "at most" if result.budget.is_upper else "at least"
    return (
        f"{result.budget.measure} is {result.value:.4g}{detail}, allowed is {bound} {result.budget.limit:g}"
    )


def validate_runner(
    reference: "onnx.ModelProto", candidate: Runner, dataset: Dataset, budgets: Sequence[Budget]
) -> GateReport:
    """Judge anything that answers, such as an engine behind Triton, against the FP32 model on the CPU."""
    judge_runner = OnnxRunner(reference)
    return judge(
        judge_runner.run(dataset.inputs),
        candidate.run(dataset.inputs),
        budgets,
        dataset=dataset,
        ran=candidate.description,
        against=f"FP32 graph on {judge_runner.description}",
    )


def validate_graph(
    reference: "onnx.ModelProto",
    candidate: "onnx.ModelProto",
    dataset: Dataset,
    budgets: Sequence[Budget],
    *,
    ran: str = "converted graph",
    with_layers: bool = True,
) -> GateReport:
    """Judge a converted graph against the FP32 graph, both exactly as written, and rank its layers."""
    runner = OnnxRunner(candidate)
    runner.description = f"{ran} on {runner.description}"
    report = validate_runner(reference, runner, dataset, budgets)
    if not with_layers:
        return report
    layers = layer_errors(reference, candidate, dataset.head(LAYER_SAMPLES))
    note = f"inner tensors of {min(LAYER_SAMPLES, dataset.sample_count)} samples"
    return replace(report, worst_layers=layers[:WORST_LAYERS], layers_note=note)


def layer_errors(
    reference: "onnx.ModelProto", candidate: "onnx.ModelProto", dataset: Dataset
) -> tuple[LayerError, ...]:
    """Error of every layer whose result both graphs have, most introduced error first."""
    types = element_types(reference)
    theirs = {name for node in candidate.graph.node for name in node.output}
    nodes = [n for n in reference.graph.node if types.get(n.output[0]) == FLOAT and n.output[0] in theirs]
    names = [node.output[0] for node in nodes]
    before = OnnxRunner(reference, extra_outputs=names).run(dataset.inputs)
    after = OnnxRunner(candidate, extra_outputs=names).run(dataset.inputs)
    errors: dict[str, float] = {}
    for name in names:
        value = relative_error(before[name], after[name])
        errors[name] = value if np.isfinite(value) else float(np.finfo(np.float32).max)
    # Through nodes that only move or count, errors are inherited from further up.
    inherited = _inherited(reference.graph.node, errors)
    made = [
        LayerError(
            layer=node.name,
            kind=node.op_type,
            relative_error=errors[node.output[0]],
            introduced=max(0.0, errors[node.output[0]] - inherited[node.output[0]]),
        )
        for node in nodes
    ]
    return tuple(sorted(made, key=lambda layer: (-layer.introduced, layer.layer)))


def _inherited(nodes: "Iterable[onnx.NodeProto]", errors: dict[str, float]) -> dict[str, float]:
    """Largest error among the inputs of the node that makes each tensor."""
    carried: dict[str, float] = {}
    known: dict[str, float] = {}
    for node in nodes:
        highest = max((known.get(name, 0.0) for name in node.input), default=0.0)
        for name in node.output:
            carried[name] = highest
            known[name] = errors.get(name, highest)
    return carried
