"""What TensorRT and TensorRT-RTX share: their Python APIs differ in little more than the module's name.

Promises: networks are strongly typed, so precision comes from the graph alone; no flag is used that
TensorRT 11 dropped; every refusal carries TensorRT's own words. The runtime's module comes in as an
argument, so this file imports neither. Called by `trt_tensorrt`, `trt_rtx` and the checks.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from engines.builder import Progress
from engines.errors import EngineError
from engines.graphs import profile_shapes
from engines.types import BuildOptions, HardwareCompatibility, LayerInfo, TensorInfo

_LOG_LINES_MAX = 200
_LAYERS_HEADING = "Layers:\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A serialised engine and what its builder said about it."""

    content: bytes
    timing_cache: bytes | None
    layers: tuple[LayerInfo, ...]  # from the builder's log; empty where it does not print them
    warnings: tuple[str, ...]


class LoadVerdict(StrEnum):
    """What the runtime of this machine says about an engine."""

    LOADED = "LOADED"
    REFUSED = "REFUSED"
    UNKNOWN = "UNKNOWN"  # this machine cannot tell, mostly for want of a GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Outcome of `load`: the engine object if it loaded, and the runtime's words if it did not."""

    verdict: LoadVerdict
    detail: str
    engine: Any = None


class Log:
    """Collects TensorRT's messages: errors and warnings for people, the layer listing for the report."""

    def __init__(self, trt: Any) -> None:  # noqa: ANN401 - an untyped module
        severity = trt.ILogger.Severity
        errors: list[str] = []
        warnings: list[str] = []
        listings: list[str] = []

        def log(_: object, level: Any, message: str) -> None:  # noqa: ANN401 - as above
            if level <= severity.ERROR and len(errors) < _LOG_LINES_MAX:
                errors.append(message.strip())
            elif level == severity.WARNING and len(warnings) < _LOG_LINES_MAX:
                warnings.append(message.strip())
            elif message.startswith(_LAYERS_HEADING) and not listings:
                listings.append(message)

        def init(self: Any) -> None:  # noqa: ANN401 - as above
            trt.ILogger.__init__(self)

        # Made here, because the base class exists only once the runtime is imported.
        self.logger: Any = type("Log", (trt.ILogger,), {"__init__": init, "log": log})()
        self.errors, self.warnings, self.listings = errors, warnings, listings

    def reason(self) -> str:
        """The first error, which is the cause; the rest mostly follow from it."""
        return " ".join(self.errors[0].split())[:600] if self.errors else "no reason was given"


def build_plan(
    trt: Any,  # noqa: ANN401 - as above
    graph: bytes,
    inputs: tuple[TensorInfo, ...],
    options: BuildOptions,
    *,
    targets: tuple[str, ...] = (),
    timing_cache: bytes | None = None,
    progress: Progress,
) -> Plan:
    """Build; `targets` are compute capabilities to set, for the builder that needs no GPU.

    Raises:
        EngineError: TensorRT refused the graph or could not build it.
    """
    log = Log(trt)
    builder = trt.Builder(log.logger)
    # TensorRT 11 knows no other networks and ignores the flag, a later release may drop it; 10 needs it.
    typed = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(0 if typed is None else 1 << int(typed))
    parser = trt.OnnxParser(network, log.logger)
    if not parser.parse(graph):
        said = "; ".join(parser.get_error(i).desc() for i in range(parser.num_errors)) or log.reason()
        raise EngineError(f"model: TensorRT's ONNX parser refuses it: {said}")
    config = _configuration(trt, builder, options, targets)
    # A builder that takes targets measures nothing. A cache of other tools or another GPU is not an error:
    # what does not fit is measured anew.
    cache = None if targets else config.create_timing_cache(timing_cache or b"")
    has_cache = cache is not None and config.set_timing_cache(cache, ignore_mismatch=False)
    for profile in options.profiles:
        made = builder.create_optimization_profile()
        for tensor in inputs:
            if any(isinstance(dim, str) for dim in tensor.dims):
                made.set_shape(tensor.name, *profile_shapes(tensor, profile))
        if config.add_optimization_profile(made) < 0:
            raise EngineError(f"profile: TensorRT refuses {dict(profile)}: {log.reason()}")
    config.progress_monitor = monitor = _monitor(trt, progress)
    plan = builder.build_serialized_network(network, config)
    del monitor  # alive until here: the configuration does not own it
    if plan is None:
        raise EngineError(f"build: TensorRT cannot build this engine: {log.reason()}")
    kept = config.get_timing_cache() if has_cache else None
    return Plan(
        content=bytes(plan),
        timing_cache=None if kept is None else bytes(kept.serialize()) or None,
        layers=parse_layer_listing(log.listings[0]) if log.listings else (),
        warnings=tuple(dict.fromkeys(log.warnings)),
    )


def _configuration(trt: Any, builder: Any, options: BuildOptions, targets: tuple[str, ...]) -> Any:  # noqa: ANN401 - as above
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_bytes)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if options.optimization_level is not None:
        config.builder_optimization_level = options.optimization_level
    if options.version_compatible:
        config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
    if options.hardware_compatibility is not HardwareCompatibility.NONE:
        level = getattr(trt.HardwareCompatibilityLevel, options.hardware_compatibility.value)
        config.hardware_compatibility_level = level
    if targets:
        config.num_compute_capabilities = len(targets)
        for index, capability in enumerate(targets):
            config.set_compute_capability(
                getattr(trt.ComputeCapability, f"SM{capability.replace('.', '')}"), index
            )
    return config


def _monitor(trt: Any, progress: Progress) -> Any:  # noqa: ANN401 - as above
    """Hand TensorRT's nested phases on as they come; never cancels."""
    totals: dict[str, int] = {}

    def init(self: Any) -> None:  # noqa: ANN401 - as above
        trt.IProgressMonitor.__init__(self)

    def phase_start(_: object, phase: str, _parent: str | None, num_steps: int) -> None:
        totals[phase] = num_steps

    def step_complete(_: object, phase: str, step: int) -> bool:
        progress(phase, step + 1, max(totals.get(phase, 1), step + 1))
        return True

    def phase_finish(_: object, phase: str) -> None:
        totals.pop(phase, None)

    members = {
        "__init__": init,
        "phase_start": phase_start,
        "step_complete": step_complete,
        "phase_finish": phase_finish,
    }
    return type("Monitor", (trt.IProgressMonitor,), members)()


_LAYER = re.compile(r"Name: (?P<name>.*?), LayerType: (?P<kind>[^,]*), Inputs: ")
# Brackets nest in the listing of outputs, so it ends only where the next field begins.
_OUTPUTS = re.compile(r"Outputs: \[(?P<outputs>.*?)\](?:, (?:TacticName|StreamId|Metadata): |$)")
_DATATYPE = re.compile(r"Datatype: (\w+)")
_SOURCE = re.compile(r"\[ONNX Layer: ([^\]]+)\]")


def parse_layer_listing(text: str) -> tuple[LayerInfo, ...]:
    """Read the listing a builder logs with detailed verbosity; lines it does not know are left out.

    It is the one source of fused layers on a machine that cannot load the engine.
    """
    layers: list[LayerInfo] = []
    for line in text.splitlines():
        found = _LAYER.match(line)
        if found is None:
            continue
        outputs = _OUTPUTS.search(line, found.end())
        layers.append(
            LayerInfo(
                name=found["name"],
                kind=found["kind"],
                output_datatypes=tuple(_DATATYPE.findall(outputs["outputs"])) if outputs else (),
                sources=tuple(dict.fromkeys(_SOURCE.findall(line))),
            )
        )
    return tuple(layers)


def load(trt: Any, content: bytes, *, has_gpu: bool) -> Loaded:  # noqa: ANN401 - as above
    """Let this machine's runtime deserialise an engine.

    Without a GPU TensorRT still tells a file that is no whole engine from one it cannot judge.
    """
    log = Log(trt)
    runtime = trt.Runtime(log.logger)
    engine = runtime.deserialize_cuda_engine(content)
    if engine is not None:
        return Loaded(verdict=LoadVerdict.LOADED, detail="loaded", engine=engine)
    # Errors of CUDA itself speak of the machine, all others of the file.
    about_file = [line for line in log.errors if "cudaError" not in line and "CUDA" not in line]
    if about_file:
        return Loaded(verdict=LoadVerdict.REFUSED, detail=" ".join(about_file[0].split())[:600])
    verdict = LoadVerdict.REFUSED if has_gpu else LoadVerdict.UNKNOWN
    return Loaded(verdict=verdict, detail=log.reason())


def inspect(trt: Any, engine: Any) -> tuple[LayerInfo, ...]:  # noqa: ANN401 - as above
    """Fused layers of a loaded engine, from TensorRT's own inspector."""
    text = engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
    return parse_inspection(text)


def parse_inspection(text: str) -> tuple[LayerInfo, ...]:
    """Read the inspector's JSON. Layers are objects with detailed verbosity, else names.

    Raises:
        EngineError: not the JSON that was expected.
    """
    try:
        layers = json.loads(text)["Layers"]
        return tuple(map(_inspected, layers))
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(f"inspect: the inspector's answer cannot be read: {error}") from error


def _inspected(layer: str | Mapping[str, Any]) -> LayerInfo:
    if isinstance(layer, str):
        return LayerInfo(name=layer, kind="unknown")
    outputs = layer.get("Outputs", [])
    kinds = (str(o.get("Datatype") or o.get("Format/Datatype") or "unknown") for o in outputs)
    sources = tuple(dict.fromkeys(_SOURCE.findall(str(layer.get("Metadata", "")))))
    return LayerInfo(
        name=str(layer["Name"]),
        kind=str(layer.get("LayerType", "unknown")),
        output_datatypes=tuple(kinds),
        sources=sources,
    )
