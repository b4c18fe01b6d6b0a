"""Which engine serves this node, and why the others do not. Pure: facts in, verdicts out.

Promises: an engine is chosen only if every fact about it and the node is known and fits; each one that
is not carries every reason, from a closed list; several that fit are ordered by a fixed rule, and none
that fits is an answer, never a reason to take the next best. Asked before a build, at promotion and
before a prewarm. Called by the catalogue's users and the command line.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from engines.errors import EngineInputError
from engines.graphs import profile_for
from engines.types import HardwareCompatibility, Profile, RuntimeKind, TensorInfo


class Stage(StrEnum):
    """When a rejection can be known at the earliest, in this order."""

    MANIFEST = "MANIFEST"  # from the engine's record and the node's facts alone
    FILE = "FILE"  # from the file's size, then its bytes
    LOAD = "LOAD"  # from the runtime that deserialises it
    INFERENCE = "INFERENCE"  # from what it answers


class Rejection(StrEnum):
    """Why an engine does not serve a node."""

    NO_ENGINE = "NO_ENGINE"  # the catalogue has none of the model
    NOT_ACTIVE = "NOT_ACTIVE"  # its state is not ACTIVE
    GATE_NOT_PASSED = "GATE_NOT_PASSED"  # its newest accuracy verdict is not a pass
    WRONG_DIGEST = "WRONG_DIGEST"  # it is another engine than the one that was asked for
    UNSIGNED = "UNSIGNED"  # a signature is required and there is none
    BAD_SIGNATURE = "BAD_SIGNATURE"  # its signature is of nobody who is trusted, or of other content
    NO_GPU = "NO_GPU"
    WRONG_COMPUTE_CAPABILITY = "WRONG_COMPUTE_CAPABILITY"
    WRONG_GPU_MODEL = "WRONG_GPU_MODEL"  # same compute capability, another GPU than it was measured on
    RUNTIME_ABSENT = "RUNTIME_ABSENT"  # the node is not known to have the engine's runtime
    RUNTIME_UNKNOWN = "RUNTIME_UNKNOWN"  # the runtime's version is not known exactly enough
    TRITON_CONTRADICTED = (
        "TRITON_CONTRADICTED"  # the stated runtime is not the one of the stated Triton image
    )
    WRONG_TENSORRT_MAJOR = "WRONG_TENSORRT_MAJOR"
    WRONG_RUNTIME_VERSION = "WRONG_RUNTIME_VERSION"
    HOST_CODE_NOT_ALLOWED = "HOST_CODE_NOT_ALLOWED"  # version-compatible engines bring code of their own
    MISSING_PROFILE_SHAPE = "MISSING_PROFILE_SHAPE"  # no optimization profile holds a shape that is needed
    FILE_MISSING = "FILE_MISSING"
    TRUNCATED = "TRUNCATED"  # shorter than recorded
    WRONG_SIZE = "WRONG_SIZE"  # longer than recorded
    CORRUPTED = "CORRUPTED"  # of the right size, with other bytes than recorded
    LOAD_REFUSED = "LOAD_REFUSED"  # the runtime does not deserialise it
    MISSING_OUTPUT = "MISSING_OUTPUT"  # an output is absent or empty
    WRONG_OUTPUT_SHAPE = "WRONG_OUTPUT_SHAPE"
    NAN_OUTPUT = "NAN_OUTPUT"  # an answer is not finite

    @property
    def stage(self) -> Stage:
        """The earliest stage that can know it."""
        return _STAGES.get(self, Stage.MANIFEST)

    @property
    def remedy(self) -> str:
        """What the operator can do about it."""
        return _REMEDIES[self]


_REBUILD = "build it again with what the node has"
_RESTORE = "restore the file, or build the engine again"
_ROLL_BACK = "roll back, and validate it behind Triton"
_REMEDIES = {
    Rejection.NO_ENGINE: "build, validate and promote one",
    Rejection.NOT_ACTIVE: "promote it, or roll back to it",
    Rejection.GATE_NOT_PASSED: "roll back, or validate it again",
    Rejection.WRONG_DIGEST: "order the engine that is ACTIVE, or promote the ordered one",
    Rejection.UNSIGNED: "publish it again with a signing key",
    Rejection.BAD_SIGNATURE: "publish it again signed by a trusted key, or trust the key that signed it",
    Rejection.NO_GPU: "serve it on a node with a GPU, or build one for CPUs",
    Rejection.WRONG_COMPUTE_CAPABILITY: "build it for the node's compute capability",
    Rejection.WRONG_GPU_MODEL: "build it on the node's GPU model, or with hardware compatibility",
    Rejection.RUNTIME_ABSENT: "build it for a runtime that the node has, or state the node's runtime",
    Rejection.RUNTIME_UNKNOWN: "state the exact version",
    Rejection.TRITON_CONTRADICTED: "correct the one that is wrong",
    Rejection.WRONG_TENSORRT_MAJOR: _REBUILD,
    Rejection.WRONG_RUNTIME_VERSION: _REBUILD,
    Rejection.HOST_CODE_NOT_ALLOWED: "start Triton with --backend-config=tensorrt,version-compatible=true, or build it "
    "without version compatibility",
    Rejection.MISSING_PROFILE_SHAPE: "ask for smaller shapes, or build it with a profile that holds them",
    Rejection.FILE_MISSING: _RESTORE,
    Rejection.TRUNCATED: _RESTORE,
    Rejection.WRONG_SIZE: _RESTORE,
    Rejection.CORRUPTED: _RESTORE,
    Rejection.LOAD_REFUSED: "build it again with the runtime that serves it",
    Rejection.MISSING_OUTPUT: _ROLL_BACK,
    Rejection.WRONG_OUTPUT_SHAPE: _ROLL_BACK,
    Rejection.NAN_OUTPUT: _ROLL_BACK,
}
_STAGES = {
    Rejection.FILE_MISSING: Stage.FILE,
    Rejection.TRUNCATED: Stage.FILE,
    Rejection.WRONG_SIZE: Stage.FILE,
    Rejection.CORRUPTED: Stage.FILE,
    Rejection.LOAD_REFUSED: Stage.LOAD,
    Rejection.MISSING_OUTPUT: Stage.INFERENCE,
    Rejection.WRONG_OUTPUT_SHAPE: Stage.INFERENCE,
    Rejection.NAN_OUTPUT: Stage.INFERENCE,
}


@dataclass(frozen=True, slots=True)
class Objection:
    """One rejection with a sentence for people: what was found, what was expected."""

    rejection: Rejection
    sentence: str

    def __str__(self) -> str:
        """Reason, what was found, and the remedy, as an operator reads it."""
        return f"{self.rejection}: {self.sentence}; {self.rejection.remedy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What would serve. None is unknown, except `compute_capability`, where it means that there is no GPU."""

    compute_capability: str | None
    gpu: str | None = None  # model name as nvidia-smi says it
    runtimes: Mapping[RuntimeKind, str] = field(default_factory=dict[RuntimeKind, str])
    triton_image: str | None = None  # tag of NVIDIA's image: "25.08-trtllm-python-py3"
    allows_host_code: bool = False  # Triton: --backend-config=tensorrt,version-compatible=true


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What is asked of an engine; made from its catalogue record."""

    engine_id: str
    digest: str  # of the engine file
    runtime: RuntimeKind
    runtime_version: str  # that built it
    runtime_version_min: str | None  # oldest that runs it, where that is another one
    compute_capabilities: tuple[str, ...]
    hardware_compatibility: HardwareCompatibility
    version_compatible: bool
    inputs: tuple[TensorInfo, ...]
    profiles: tuple[Profile, ...]
    gpu: str | None = None  # model that a TensorRT engine was measured on


# TensorRT in NVIDIA's images, from Triton's own compatibility document. Images of one release differ, so the
# whole tag counts; one that is not listed has to be stated by the node itself.
TENSORRT_OF_IMAGE = {
    f"{release}-trtllm-python-py3": version
    for version, releases in {
        "10.8.0.43": ("25.01", "25.02"),
        "10.9.0.34": ("25.03", "25.04", "25.05"),
        "10.10.0.31": ("25.06", "25.07"),
        "10.11.0.33": ("25.08", "25.09", "25.10"),
        "10.13.3.9": ("25.11", "25.12", "26.01", "26.02"),
        "10.14.1.48": ("26.03", "26.04", "26.05", "26.06", "26.07"),
    }.items()
    for release in releases
}
# ONNX Runtime by release, the same for every image that has it.
ONNX_RUNTIME_OF_RELEASE = {
    release: version
    for version, releases in {
        "1.20.1": ("24.12", "25.01", "25.02"),
        "1.21.0": ("25.03", "25.04"),
        "1.22.0": ("25.05", "25.06", "25.07"),
        "1.23.0": ("25.08", "25.09"),
        "1.23.1": ("25.10",),
        "1.23.2": ("25.11", "25.12", "26.01"),
        "1.24.1": ("26.02",),
        "1.24.2": ("26.03",),
        "1.24.4": ("26.04", "26.05", "26.06"),
        "1.27.0": ("26.07",),
        "1.28.0": ("26.08",),
    }.items()
    for release in releases
}
_VERSION = re.compile(r"\d+(\.\d+){1,3}")


def check(
    engine: EngineFacts,
    node: Node,
    *,
    expected_digest: str | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> tuple[Objection, ...]:
    """Everything that speaks against this engine on this node; () if nothing does.

    `expected_digest` is that of the engine which was ordered; `shapes` are input shapes, batch included,
    that it must serve.
    """
    found: list[Objection] = []
    if expected_digest is not None and engine.digest != expected_digest:
        found.append(
            Objection(Rejection.WRONG_DIGEST, f"the engine is {engine.digest}, ordered was {expected_digest}")
        )
    found += _hardware(engine, node)
    found += _runtime(engine, node)
    if shapes is not None and profile_for(engine.inputs, engine.profiles, shapes) is None:
        found.append(
            Objection(
                Rejection.MISSING_PROFILE_SHAPE, f"no optimization profile holds {_shapes_text(shapes)}"
            )
        )
    return tuple(found)


def _shapes_text(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in sorted(shapes.items()))


def _hardware(engine: EngineFacts, node: Node) -> Iterable[Objection]:
    if engine.runtime is RuntimeKind.ONNX_RUNTIME:
        return
    built = ", ".join(engine.compute_capabilities)
    if node.compute_capability is None:
        yield Objection(Rejection.NO_GPU, f"the engine needs a GPU of compute capability {built}")
        return
    if node.compute_capability in engine.compute_capabilities:
        # Without hardware compatibility TensorRT stands by the very model only, and warns of errors on others.
        if (
            engine.hardware_compatibility is HardwareCompatibility.NONE
            and None not in {engine.gpu, node.gpu}
            and engine.gpu != node.gpu
        ):
            sentence = f"the engine was measured on {engine.gpu}, the node has {node.gpu}"
            yield Objection(Rejection.WRONG_GPU_MODEL, sentence)
        return
    if engine.hardware_compatibility is HardwareCompatibility.AMPERE_PLUS and parse_version(
        node.compute_capability
    ) >= (8, 0):
        return
    yield Objection(
        Rejection.WRONG_COMPUTE_CAPABILITY,
        f"the engine is for compute capability {built}, the node has {node.compute_capability}",
    )


def _runtime(engine: EngineFacts, node: Node) -> Iterable[Objection]:
    stated, of_image = node.runtimes.get(engine.runtime), image_runtime(node.triton_image, engine.runtime)
    if stated is None and of_image is None:
        if node.triton_image is not None and engine.runtime is RuntimeKind.TENSORRT:
            sentence = (
                f"which TensorRT the image {node.triton_image} has is not known here; state its version"
            )
            yield Objection(Rejection.RUNTIME_UNKNOWN, sentence)
        else:
            yield Objection(Rejection.RUNTIME_ABSENT, f"the node is not known to have {engine.runtime}")
        return
    if stated is not None and of_image is not None and not _agree(stated, of_image):
        sentence = f"the image {node.triton_image} has {engine.runtime} {of_image}, stated was {stated}"
        yield Objection(Rejection.TRITON_CONTRADICTED, sentence)
        return
    version = max(filter(None, (stated, of_image)), key=len)  # the more exact of two that agree
    if engine.runtime is RuntimeKind.ONNX_RUNTIME:
        yield from _onnx_runtime(engine, version)
    else:
        yield from _tensorrt(engine, node, version)


def _onnx_runtime(engine: EngineFacts, version: str) -> Iterable[Objection]:
    needed = engine.runtime_version_min or engine.runtime_version
    if parse_version(version) < parse_version(needed):
        sentence = f"the graph needs ONNX Runtime {needed} or later, the node has {version}"
        yield Objection(Rejection.WRONG_RUNTIME_VERSION, sentence)


def _tensorrt(engine: EngineFacts, node: Node, version: str) -> Iterable[Objection]:
    built, present = parse_version(engine.runtime_version), parse_version(version)
    name = "TensorRT-RTX" if engine.runtime is RuntimeKind.TENSORRT_RTX else "TensorRT"
    both = f"the engine is of {name} {engine.runtime_version}, the node has {version}"
    if present[0] != built[0]:
        yield Objection(Rejection.WRONG_TENSORRT_MAJOR, both)
        return
    if engine.version_compatible:
        if present < built[: len(present)]:
            yield Objection(
                Rejection.WRONG_RUNTIME_VERSION, f"{both}; it loads in the same or a later release"
            )
        elif not node.allows_host_code:
            yield Objection(
                Rejection.HOST_CODE_NOT_ALLOWED,
                "a version-compatible engine brings host code, which this node does not allow",
            )
        return
    # By default TensorRT loads engines of its very own release only, patch and build included.
    if not _agree(version, engine.runtime_version):
        yield Objection(Rejection.WRONG_RUNTIME_VERSION, f"{both}; it loads in that very release only")
    elif len(present) < min(len(built), 3):
        yield Objection(Rejection.RUNTIME_UNKNOWN, f"{both}; state the node's version with its patch number")


def image_runtime(image: str | None, runtime: RuntimeKind) -> str | None:
    """Version of a runtime in one of NVIDIA's Triton images, by its tag; None where this is not known."""
    if image is None:
        return None
    if runtime is RuntimeKind.TENSORRT:
        return TENSORRT_OF_IMAGE.get(image)
    return ONNX_RUNTIME_OF_RELEASE.get(image[:5]) if runtime is RuntimeKind.ONNX_RUNTIME else None


def parse_version(text: str) -> tuple[int, ...]:
    """`10.13.3.9` as numbers; what follows the numbers is ignored.

    Raises:
        EngineInputError: no number with a point in it at the start.
    """
    found = _VERSION.match(text)
    if found is None:
        raise EngineInputError("version", f"{text!r} is none", "write it as 10.13.3")
    return tuple(int(part) for part in found[0].split("."))


def _agree(one: str, other: str) -> bool:
    """Whether two versions are the same as far as both are stated."""
    return all(a == b for a, b in zip(parse_version(one), parse_version(other), strict=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The engine that serves a node, or None, and what speaks against each of the others."""

    chosen: str | None
    candidates: tuple[str, ...]  # every engine that fits, the chosen one first
    objections: Mapping[str, tuple[Objection, ...]]


def select(
    engines: Iterable[tuple[EngineFacts, tuple[Objection, ...]]],
    node: Node,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Selection:
    """Choose among engines of one model; each comes with what is already held against it (its state).

    The most specific engine that fits wins: GPU before CPU, this very compute capability before a
    compatible one, exact version before version-compatible; then the order given, newest last.
    """
    fitting: list[tuple[tuple[int, ...], str]] = []
    objections: dict[str, tuple[Objection, ...]] = {}
    for position, (engine, held) in enumerate(engines):
        against = (*held, *check(engine, node, shapes=shapes))
        if against:
            objections[engine.engine_id] = against
            continue
        rank = (
            engine.runtime is RuntimeKind.ONNX_RUNTIME,
            node.compute_capability not in engine.compute_capabilities,
            len(engine.compute_capabilities),
            engine.version_compatible,
            -position,
        )
        fitting.append((tuple(map(int, rank)), engine.engine_id))
    order = tuple(engine_id for _, engine_id in sorted(fitting))
    return Selection(chosen=order[0] if order else None, candidates=order, objections=objections)
