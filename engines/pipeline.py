"""From an ONNX file to a judged engine in the catalogue: the steps, in order.

Promises: the same model, options and tools are built once, and found afterwards; whatever is refused is
refused before the slow steps; the graph that was built is stored beside the engine, so that it can be
judged again; where no runtime here can run the engine, the judge runs that graph and says so. Reads no
clock: `now` and `monotonic` come in. Called by `forecrest engine build` and `validate`.
"""

import importlib.metadata
import platform
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

from engines.builder import Builder, Progress
from engines.calibration import Finding, check_calibration, errors_in
from engines.catalog import (
    GRAPH,
    Catalog,
    Engine,
    Manifest,
    RejectedError,
    describe_file,
    runtime_version_min,
)
from engines.compatibility import EngineFacts, Node, check
from engines.datasets import Dataset
from engines.errors import EngineError, EngineInputError
from engines.graphs import complete_profiles, prepare, read_graph, signature
from engines.keys import content_digest, engine_id
from engines.measures import Budget, default_budgets
from engines.onnx_runner import OnnxRunner, load_onnxruntime
from engines.precision import convert, emulate_bf16
from engines.quantize import Int8Quantizer
from engines.report import write_html
from engines.sensitivity import SearchResult, search
from engines.types import BuildOptions, BuiltEngine, Precision, RuntimeKind, Toolchain
from engines.validation import GateReport, validate_graph

if TYPE_CHECKING:
    import onnx

REFERENCE, TIMING_CACHE = "reference.onnx", "timing.cache"
_ENGINE_FILES = {RuntimeKind.ONNX_RUNTIME: "model.onnx"}
_PACKAGES = ("forecrest", "numpy", "onnx", "onnxruntime")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """What to build. Without `validation` the engine is not judged, and stays BUILT."""

    model_path: Path
    model_name: str
    options: BuildOptions
    calibration: Dataset | None = None
    validation: Dataset | None = None
    budgets: tuple[Budget, ...] = ()  # (): the defaults of the precision
    is_searched: bool = False  # look for layers to keep in FP32 until the gate passes
    is_calibration_forced: bool = False  # use a calibration set that the checks refuse
    signing_key: Path | None = None
    nodes: tuple[Node, ...] = ()  # that the engine is for: it is not built if it would not serve one


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOutcome:
    """What came out. `is_new` is False where the engine was in the catalogue already."""

    engine: Engine
    is_new: bool
    report: GateReport | None
    search: SearchResult | None = None
    findings: tuple[Finding, ...] = field(default=())


def build(
    request: BuildRequest,
    builder: Builder,
    catalog: Catalog,
    *,
    by: str,
    now: Callable[[], datetime],
    monotonic: Callable[[], float],
    progress: Progress,
) -> BuildOutcome:
    """Convert, build, publish and judge one engine.

    Raises:
        EngineInputError: something given cannot be used; nothing was published.
        RejectedError: it would not serve one of the nodes; nothing was built.
        EngineError: a tool refused; nothing was published.
    """
    catalog.state(request.model_name)  # refuses a name Triton would refuse, before anything slow
    model = read_graph(request.model_path)
    inputs, outputs = signature(model)
    options = builder.resolve(
        replace(request.options, profiles=complete_profiles(inputs, request.options.profiles))
    )
    toolchain = builder.toolchain()
    if options.precision.is_quantised:
        toolchain = replace(toolchain, quantizer=f"onnxruntime {load_onnxruntime().__version__}")
    _check_nodes(request, options, toolchain, model)
    findings = _check_request(request)
    if request.calibration is not None and options.precision.is_quantised:
        options = replace(options, calibration_digest=request.calibration.digest())
    with _Candidates(model, options.precision, request.calibration) as candidates:
        found = None
        if request.is_searched:
            found = _search(request, model, candidates, progress)
            options = replace(options, kept_layers=tuple(sorted({*options.kept_layers, *found.kept})))
        model_digest = content_digest(model.SerializeToString(deterministic=True))
        known = catalog.state(request.model_name).engines.get(engine_id(model_digest, options, toolchain))
        if known is not None:
            engine, is_new = catalog.find(known.engine_id, request.model_name), False
            progress("in the catalogue already", 1, 1)
        else:
            graph = candidates.make(frozenset(options.kept_layers))
            before = monotonic()
            built = builder.build(
                graph.SerializeToString(deterministic=True),
                inputs,
                options,
                timing_cache=_timing_cache(catalog, request.model_name, toolchain),
                progress=progress,
            )
            manifest = Manifest(
                engine_id=engine_id(model_digest, options, toolchain),
                model=request.model_name,
                model_digest=model_digest,
                options=options,
                toolchain=toolchain,
                runtime_version_min=runtime_version_min(options.runtime, graph.opset_import[0].version),
                inputs=inputs,
                outputs=outputs,
                files={},
                engine_file=_ENGINE_FILES.get(options.runtime, "model.plan"),
                layers=built.layers,
                layers_from=built.layers_from,
                notes=(*built.notes, *candidates.notes),
                build_ms=(monotonic() - before) * 1000,
                built_at=now(),
                built_by=by,
                provenance=_provenance(request.model_path),
            )
            engine, is_new = _publish(request, catalog, manifest, built, (model, graph), by)
    report = None
    if request.validation is not None:
        engine, report = validate(
            engine, catalog, request.validation, request.budgets, findings=findings, by=by, at=now()
        )
    return BuildOutcome(engine=engine, is_new=is_new, report=report, search=found, findings=findings)


def _check_request(request: BuildRequest) -> tuple[Finding, ...]:
    """Refuse what cannot work, before anything slow; findings about the calibration set."""
    precision = request.options.precision
    if request.is_searched and (request.validation is None or precision is Precision.FP32):
        raise EngineInputError(
            "search",
            "it needs a precision below FP32 and a validation set",
            "add --precision and --validation",
        )
    if not precision.is_quantised:
        if request.calibration is not None:
            raise EngineInputError("calibration", f"{precision} takes none", "leave it out, or choose INT8")
        return ()
    if request.calibration is None:
        raise EngineInputError(
            "calibration", "INT8 needs a set to take its scales from", "add --calibration FILE"
        )
    findings = check_calibration(request.calibration, request.validation)
    errors = errors_in(findings)
    if errors and not request.is_calibration_forced:
        listed = " ".join(finding.sentence for finding in errors[:5])
        raise EngineInputError(
            "calibration", f"the set is unfit: {listed}", "take it from the traffic to be served, or force it"
        )
    return findings


def _check_nodes(
    request: BuildRequest, options: BuildOptions, toolchain: Toolchain, model: "onnx.ModelProto"
) -> None:
    """Refuse an engine that would not serve a node, from what is known before it is built.

    Raises:
        RejectedError: with the first reason.
    """
    inputs, _ = signature(model)
    facts = EngineFacts(
        engine_id="",
        digest="",
        runtime=options.runtime,
        runtime_version=toolchain.version,
        runtime_version_min=runtime_version_min(options.runtime, model.opset_import[0].version),
        compute_capabilities=options.compute_capabilities,
        hardware_compatibility=options.hardware_compatibility,
        version_compatible=options.version_compatible,
        inputs=inputs,
        profiles=options.profiles,
        gpu=toolchain.gpu,
    )
    for node in request.nodes:
        for objection in check(facts, node):
            raise RejectedError(objection)


def _timing_cache(catalog: Catalog, model: str, toolchain: Toolchain) -> bytes | None:
    """What the newest engine of this model and these very tools learned about kernels, if anything."""
    tools = replace(toolchain, quantizer=None)
    for engine in reversed(catalog.engines(model)):
        manifest = engine.manifest
        if replace(manifest.toolchain, quantizer=None) == tools and TIMING_CACHE in manifest.files:
            with tempfile.TemporaryDirectory(prefix="forecrest-timing-") as folder:
                return catalog.fetch_file(engine, TIMING_CACHE, Path(folder)).read_bytes()
    return None


class _Candidates:
    """Makes the graphs of one precision, each with some layers kept in FP32."""

    def __init__(self, model: "onnx.ModelProto", precision: Precision, calibration: Dataset | None) -> None:
        self._model, self._precision = model, precision
        self._quantizer = None
        if precision.is_quantised and calibration is not None:
            self._quantizer = Int8Quantizer(model, calibration)
        self.notes: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._quantizer is not None:
            self._quantizer.__exit__()

    @property
    def layers(self) -> tuple[str, ...]:
        """Layers that can be kept in FP32."""
        if self._quantizer is not None:
            return self._quantizer.nodes
        heavy = {"Conv", "ConvTranspose", "Gemm", "MatMul", "Softmax", "LayerNormalization", "ReduceMean"}
        return tuple(node.name for node in self._model.graph.node if node.op_type in heavy)

    def make(self, kept: frozenset[str]) -> "onnx.ModelProto":
        """The graph that is built."""
        model = self._model
        low, exact = self._precision, kept
        if self._quantizer is not None:
            model = self._quantizer.quantize(kept)
            # Scales are FP32, and what they quantise is read and written next to them; the casts are fused.
            low = Precision.FP16 if low is Precision.INT8_FP16 else Precision.FP32
            pairs = {n.name for n in model.graph.node if n.op_type in {"QuantizeLinear", "DequantizeLinear"}}
            exact = kept | pairs | set(self._quantizer.nodes)
        if low is Precision.FP32:
            return prepare(model)
        made = convert(model, low, exact)
        if made.clamped_count:
            self.notes = (f"{made.clamped_count} weights were clamped into the range of {self._precision}",)
        return made.model


def converted(
    model: "onnx.ModelProto", precision: Precision, kept: frozenset[str], calibration: Dataset | None
) -> "onnx.ModelProto":
    """The graph of a precision, with some layers kept in FP32, as a build converts it."""
    with _Candidates(model, precision, calibration) as candidates:
        return candidates.make(kept)


def judged_graph(
    model: "onnx.ModelProto", graph: "onnx.ModelProto", options: BuildOptions
) -> tuple["onnx.ModelProto", str]:
    """What the CPU can run in place of the built graph, and what to call it.

    BF16 has no CPU kernels, so its rounding is emulated; every other graph is run as it was built.
    """
    if options.precision is Precision.BF16:
        return emulate_bf16(model, options.kept_layers), "the graph with BF16 rounding emulated"
    return graph, f"the {options.precision} graph that was built"


def _search(
    request: BuildRequest, model: "onnx.ModelProto", candidates: _Candidates, progress: Progress
) -> SearchResult:
    validation = request.validation
    assert validation is not None  # checked with the request
    budgets = request.budgets or _defaults(model, request.options.precision, validation)
    fixed = frozenset(request.options.kept_layers)

    def evaluate(kept: frozenset[str]) -> GateReport:
        options = replace(request.options, kept_layers=tuple(sorted(kept | fixed)))
        graph, ran = judged_graph(model, candidates.make(kept | fixed), options)
        return validate_graph(model, graph, validation, budgets, ran=ran, with_layers=False)

    found = search([layer for layer in candidates.layers if layer not in fixed], evaluate, progress)
    if not found.report.is_passed:
        raise EngineError(
            f"search: no choice of FP32 layers passes: {'; '.join(found.report.reasons)}; "
            "widen the budget, improve the calibration set, or choose a higher precision."
        )
    return found


def _defaults(model: "onnx.ModelProto", precision: Precision, dataset: Dataset) -> tuple[Budget, ...]:
    outputs = OnnxRunner(model).run(dataset.head(1).inputs)
    # One sample tells the kind of output; labels tell the kind of task.
    labels = None if dataset.labels is None else dataset.labels[:1]
    return default_budgets(precision, outputs, labels)


def _publish(
    request: BuildRequest,
    catalog: Catalog,
    manifest: Manifest,
    built: BuiltEngine,
    graphs: tuple["onnx.ModelProto", "onnx.ModelProto"],
    by: str,
) -> tuple[Engine, bool]:
    with tempfile.TemporaryDirectory(prefix="forecrest-publish-") as folder:
        contents = {
            manifest.engine_file: built.content,
            REFERENCE: graphs[0].SerializeToString(deterministic=True),
            GRAPH: graphs[1].SerializeToString(deterministic=True),
        }
        if built.timing_cache is not None:
            contents[TIMING_CACHE] = built.timing_cache
        files = {name: Path(folder) / name for name in contents}
        for name, path in files.items():
            path.write_bytes(contents[name])
        described = {name: describe_file(path) for name, path in files.items()}
        return catalog.publish(
            replace(manifest, files=described), files, by=by, signing_key=request.signing_key
        )


def _provenance(source: Path) -> dict[str, str]:
    versions = {
        "source_file": source.name,
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def validate(
    engine: Engine,
    catalog: Catalog,
    dataset: Dataset,
    budgets: Sequence[Budget] = (),
    *,
    findings: tuple[Finding, ...] = (),
    by: str,
    at: datetime,
) -> tuple[Engine, GateReport]:
    """Judge an engine of the catalogue by the graph it was built from, and record the verdict.

    Raises:
        RejectedError: its files are not what was built.
        EngineInputError: the set does not fit the model.
    """
    import onnx  # noqa: PLC0415 - slow to import

    manifest = engine.manifest
    with tempfile.TemporaryDirectory(prefix="forecrest-validate-") as folder:
        model = onnx.load_model(catalog.fetch_file(engine, REFERENCE, Path(folder)))
        graph = onnx.load_model(catalog.fetch_file(engine, GRAPH, Path(folder)))
    chosen = tuple(budgets) or _defaults(model, manifest.options.precision, dataset)
    judged, ran = judged_graph(model, graph, manifest.options)
    report = replace(validate_graph(model, judged, dataset, chosen, ran=ran), findings=findings)
    page = write_html(
        f"{manifest.model} {manifest.options.precision}, engine {manifest.engine_id}",
        report,
        OnnxRunner(model).run(dataset.inputs),
        OnnxRunner(judged).run(dataset.inputs),
    )
    catalog.record_gate(manifest.model, manifest.engine_id, report, page=page, at=at, by=by)
    return catalog.find(manifest.engine_id, manifest.model), report
