"""Records of engines and of what they were measured to sustain. Pure values; the artifacts are elsewhere.

The API's mappers fill them, the stores keep them, the use cases hold the life BUILT -> VALIDATED -> ACTIVE ->
RETIRED together.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from controller.core.types import CapacityProfile, Precision, Slo

# The word that a replica's failure, or a refused order, begins with when the engine itself is at fault: a fresh
# replica would fail in the same way, so a person has to act. docs/engines.md says what each means.
ENGINE_FAULTS: Final = frozenset(
    {
        "WRONG_ENGINE",  # Triton reports another digest than the ordered one
        "NO_ENGINE",
        "NOT_ACTIVE",
        "GATE_NOT_PASSED",
        "WRONG_DIGEST",
        "UNSIGNED",
        "BAD_SIGNATURE",
        "NO_GPU",
        "WRONG_COMPUTE_CAPABILITY",
        "WRONG_GPU_MODEL",
        "RUNTIME_ABSENT",
        "RUNTIME_UNKNOWN",
        "TRITON_CONTRADICTED",
        "WRONG_TENSORRT_MAJOR",
        "WRONG_RUNTIME_VERSION",
        "HOST_CODE_NOT_ALLOWED",
        "MISSING_PROFILE_SHAPE",
        "FILE_MISSING",
        "TRUNCATED",
        "WRONG_SIZE",
        "CORRUPTED",
        "LOAD_REFUSED",
        "MISSING_OUTPUT",
        "WRONG_OUTPUT_SHAPE",
        "NAN_OUTPUT",
    }
)


def is_engine_fault(reason: str | None) -> bool:
    """Whether a failure, such as "TRUNCATED: model.onnx has 3 bytes of 9; restore it", is the engine's own."""
    return reason is not None and reason.partition(":")[0] in ENGINE_FAULTS


class EngineKind(StrEnum):
    """What built an engine and what can load it."""

    TENSORRT = "TENSORRT"
    TENSORRT_RTX = "TENSORRT_RTX"
    ONNX_RUNTIME = "ONNX_RUNTIME"


class HardwareCompatibility(StrEnum):
    """On which other GPUs than those it was built for an engine may run."""

    NONE = "NONE"
    SAME_COMPUTE_CAPABILITY = "SAME_COMPUTE_CAPABILITY"
    AMPERE_PLUS = "AMPERE_PLUS"


class EngineState(StrEnum):
    """Life of an engine. Changed by custom methods only."""

    BUILT = "BUILT"  # not validated, or the newest validation failed
    VALIDATED = "VALIDATED"
    ACTIVE = "ACTIVE"  # the one to serve, of its model, kind and compute capabilities
    RETIRED = "RETIRED"


@dataclass(frozen=True, slots=True)
class OptimizationProfile:
    """Range of shapes of one input, as in TensorRT."""

    input: str
    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EngineMeasure:
    """One measure of a validation and its budget; None is no bound."""

    measure: str
    value: float
    min: float | None = None
    max: float | None = None

    @property
    def kept(self) -> bool:
        """Whether the value is within the budget."""
        return (self.min is None or self.value >= self.min) and (self.max is None or self.value <= self.max)


@dataclass(frozen=True, slots=True)
class EngineValidation:
    """What a validation found."""

    measures: tuple[EngineMeasure, ...]
    report_uri: str = ""
    passed: bool = False
    validated_at: datetime | None = None
    validated_by: str = ""


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine: a model built ahead of time for one kind of hardware. ``id`` is the last part of its name."""

    id: str
    model_name: str
    digest: str
    model_digest: str
    kind: EngineKind
    precision: Precision
    runtime_version: str
    model_version: str = "1"
    cuda_version: str = ""
    runtime_version_min: str = ""
    driver_version: str = ""
    gpu_type: str = ""  # of the building machine
    compute_capabilities: tuple[str, ...] = ()
    version_compatible: bool = False
    hardware_compatibility: HardwareCompatibility = HardwareCompatibility.NONE
    uri: str = ""
    size_bytes: int = 0
    build_options: tuple[tuple[str, str], ...] = ()
    optimization_profiles: tuple[OptimizationProfile, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    state: EngineState = EngineState.BUILT
    validation: EngineValidation | None = None
    created_by: str = ""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    promoted_by: str = ""
    promoted_at: datetime | None = None
    retired_reason: str = ""
    generation: int = 1

    @property
    def slot(self) -> tuple[str, EngineKind, tuple[str, ...]]:
        """One engine of a slot is active at a time: the model, and what it serves on."""
        return self.model_name, self.kind, tuple(sorted(self.compute_capabilities))


@dataclass(frozen=True, slots=True)
class CapacityPoint:
    """One load that was tried while measuring."""

    offered_qps: float
    latency_ms_p99: float
    within_slo: bool = False


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """What one warm replica with an engine sustains within the SLO, measured on one GPU type."""

    engine: str  # the engine's id
    capacity: CapacityProfile
    slo: Slo
    measured_at: datetime
    tool: str = ""
    points: tuple[CapacityPoint, ...] = ()
    # Triton's time to load the model, files cached; None where it was not measured.
    load_s_p50: float | None = None
    load_s_p95: float | None = None
