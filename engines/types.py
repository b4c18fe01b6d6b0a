"""The words of the engine pipeline: what is built, for what, and what came out.

Promises: frozen values that turn into JSON and back without loss (`to_json`, `from_json`); unknown
is None, never "" or 0. Refuses nothing by itself beyond nonsense values. Called by all of `engines`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from engines.errors import EngineInputError

T = TypeVar("T")
DIMENSION_MAX = 2**31 - 1


class Precision(StrEnum):
    """The lowest precision the converted graph computes in; layers kept back stay in FP32."""

    FP32 = "FP32"
    FP16 = "FP16"
    BF16 = "BF16"
    INT8 = "INT8"
    INT8_FP16 = "INT8_FP16"  # INT8 where it pays, FP16 for the rest

    @property
    def is_quantised(self) -> bool:
        """Whether scales have to come from a calibration set."""
        return self in {Precision.INT8, Precision.INT8_FP16}


class RuntimeKind(StrEnum):
    """Which runtime deserialises the artifact."""

    TENSORRT = "TENSORRT"
    TENSORRT_RTX = "TENSORRT_RTX"
    ONNX_RUNTIME = "ONNX_RUNTIME"  # on the CPU


class HardwareCompatibility(StrEnum):
    """On which other GPUs a TensorRT engine may run."""

    NONE = "NONE"  # the compute capability it was built on
    SAME_COMPUTE_CAPABILITY = "SAME_COMPUTE_CAPABILITY"  # any GPU model of that compute capability
    AMPERE_PLUS = "AMPERE_PLUS"  # any GPU of compute capability 8.0 or higher


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One input or output: numpy type name and dimensions; a dimension that is free has its name."""

    name: str
    datatype: str
    dims: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class DimRange:
    """Lengths a free dimension may have in one optimization profile; the engine is fastest at `opt`."""

    min: int
    opt: int
    max: int

    def __post_init__(self) -> None:
        if not 1 <= self.min <= self.opt <= self.max <= DIMENSION_MAX:
            raise EngineInputError(
                "profile",
                f"{self.min}:{self.opt}:{self.max} is no range",
                "write min:opt:max, 1 at least, rising",
            )

    def holds(self, length: int) -> bool:
        """Whether an input of this length can be served."""
        return self.min <= length <= self.max


Profile = Mapping[str, DimRange]  # one optimization profile: a range for every free dimension

_CAPABILITY = re.compile(r"\d{1,2}\.\d")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """Everything that changes the engine, besides the model and the tools. Part of the engine's identity."""

    runtime: RuntimeKind
    precision: Precision = Precision.FP32
    profiles: tuple[Profile, ...] = ()
    # "8.9"; several for TensorRT-RTX; empty: the GPU of the building machine, or a CPU artifact.
    compute_capabilities: tuple[str, ...] = ()
    hardware_compatibility: HardwareCompatibility = HardwareCompatibility.NONE
    version_compatible: bool = False  # loadable by later releases of the same major version
    workspace_bytes: int = 1 << 30
    optimization_level: int | None = None  # 0 to 5; None: the tool's default
    kept_layers: tuple[str, ...] = ()  # nodes that stay in FP32
    calibration_digest: str | None = None  # of the set the INT8 scales come from

    def __post_init__(self) -> None:
        for value in self.compute_capabilities:
            if not _CAPABILITY.fullmatch(value):
                raise EngineInputError("compute_capability", f"{value!r} is none", "write it as 8.9")
        if not 1 << 20 <= self.workspace_bytes <= 1 << 40:
            raise EngineInputError(
                "workspace_bytes", f"{self.workspace_bytes}", "stay between 1 MiB and 1 TiB"
            )
        if self.optimization_level is not None and not 0 <= self.optimization_level <= 5:
            raise EngineInputError("optimization_level", f"{self.optimization_level}", "choose 0 to 5")
        if len(self.profiles) > 16:
            raise EngineInputError("profile", f"{len(self.profiles)} profiles", "give 16 at most")


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """What built the engine. `driver`, `cuda` and `gpu` are None where no GPU took part or they are unknown.

    `quantizer` is what chose the INT8 scales, None for other precisions.
    """

    runtime: RuntimeKind
    version: str
    driver: str | None = None
    cuda: str | None = None
    gpu: str | None = None
    quantizer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerInfo:
    """One layer of the finished engine; `sources` are the ONNX nodes fused into it, as far as the tool says."""

    name: str
    kind: str
    output_datatypes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEngine:
    """What a builder made. `notes` say what could not be done or known, for people."""

    content: bytes
    layers: tuple[LayerInfo, ...]
    layers_from: str  # where the layers were read: the inspector, the builder's log, …
    timing_cache: bytes | None = None
    notes: tuple[str, ...] = field(default=())


# Making one takes milliseconds; a journal has thousands of entries of one kind.
_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def to_json(value: Any) -> str:  # noqa: ANN401 - any dataclass of this package
    """Canonical JSON: keys sorted, no spaces, so that equal values have equal text."""
    plain = _adapter(type(value)).dump_python(value, mode="json")
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def from_json(kind: type[T], text: str | bytes, field_name: str) -> T:
    """Read a value that `to_json` wrote; `field_name` is how errors call it.

    Raises:
        EngineInputError: not JSON, or fields missing, misspelt or of the wrong type.
    """
    try:
        made: T = _adapter(kind).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "text"
        raise EngineInputError(
            f"{field_name}.{where}", first["msg"], "it was damaged or written by another version"
        ) from error
    return made
