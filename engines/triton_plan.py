"""Publish an engine of the catalogue as a Triton model repository: `tensorrt_plan`, or `onnxruntime_onnx` on CPUs.

Promises: the configuration follows from the manifest alone, so nobody repeats shapes by hand: batches no larger than
the optimization profiles hold without a gap, warm-up inside each profile before Triton calls the model ready, the
digest among the parameters, no response cache. A repository is complete or absent, one per engine and options, and
never changed; a link is moved to it in one step, and back. Refuses shapes that no profile holds, tensors that Triton
cannot carry, engines that no backend of Triton loads (TensorRT-RTX), and files that are not what was built. Called by
``forecrest engine repository``.

Triton picks the profile per request by shape, but knows the batch's limit alone: a request whose other dimensions lie
outside every profile is refused by TensorRT when it arrives.
"""

import hashlib
import json
import secrets
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from engines.catalog import Catalog, Engine, Manifest
from engines.errors import EngineInputError
from engines.triton_repository import DIGEST_PARAMETER
from engines.types import Profile, RuntimeKind, TensorInfo

_PLATFORMS = {RuntimeKind.TENSORRT: "tensorrt_plan", RuntimeKind.ONNX_RUNTIME: "onnxruntime_onnx"}
_TYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "int8": "INT8",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
}
_VERSION_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """How Triton serves the engine. () and None mean: from the optimization profiles."""

    batch_size_max: int | None = None
    preferred_batch_sizes: tuple[int, ...] = ()
    queue_delay_us: int = 1000  # how long a request may wait for others to share its batch
    instance_count: int = 1  # on each GPU
    gpus: tuple[int, ...] = ()  # (): every GPU of the server
    version: int = 1

    def __post_init__(self) -> None:
        bounds = {
            "batch_size_max": (self.batch_size_max, 1, 65_536),
            "queue_delay_us": (self.queue_delay_us, 0, 1_000_000),
            "instance_count": (self.instance_count, 1, 64),
            "version": (self.version, 1, _VERSION_MAX),
        }
        for name, (value, low, high) in bounds.items():
            if value is not None and not low <= value <= high:
                raise EngineInputError(name, f"{value}", f"stay between {low} and {high}")
        if len(set(self.gpus)) < len(self.gpus) or any(not 0 <= gpu < 64 for gpu in self.gpus):
            raise EngineInputError("gpus", f"{self.gpus}", "give different numbers from 0 to 63")


@dataclass(frozen=True, slots=True)
class Published:
    """A repository in its place, and what its Triton has to be told, for people."""

    repository: Path
    name: str
    digest: str
    notes: tuple[str, ...] = ()


def publish(catalog: Catalog, engine: Engine, root: Path, options: PlanOptions | None = None) -> Published:
    """Make (or find) the repository of an engine below `root`, and move the link `root/<model>` to it.

    Raises:
        EngineInputError: options that the engine cannot serve.
        RejectedError: its file is not what was built.
    """
    manifest, options = engine.manifest, options or PlanOptions()
    text = render(manifest, options)
    identity = json.dumps([manifest.digest, manifest.model, text])
    root = root.resolve()
    target = root / "repositories" / hashlib.sha256(identity.encode()).hexdigest()[:16]
    if not target.exists():
        fresh = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            model = fresh / manifest.model
            catalog.fetch(engine, model / str(options.version))
            (model / "config.pbtxt").write_text(text)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                fresh.rename(target)
            except OSError:
                if not target.exists():  # otherwise another process was faster, with the same content
                    raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    _link(root / manifest.model, target)
    notes: list[str] = []
    if manifest.options.version_compatible:
        notes.append("start Triton with --backend-config=tensorrt,version-compatible=true")
    return Published(target, manifest.model, manifest.digest, tuple(notes))


def _link(link: Path, target: Path) -> None:
    if link.exists() and not link.is_symlink():
        raise EngineInputError("out", f"{link} is there and no link", "choose another folder")
    fresh = link.with_name(f".{link.name}.{secrets.token_hex(4)}")
    fresh.symlink_to(target.relative_to(link.parent))  # relative, so that the folder can be mounted elsewhere
    fresh.replace(link)


def render(manifest: Manifest, options: PlanOptions) -> str:
    """The model's `config.pbtxt`.

    Raises:
        EngineInputError: options that the engine cannot serve, or an engine that Triton cannot.
    """
    runtime = manifest.options.runtime
    if runtime not in _PLATFORMS:
        raise EngineInputError("engine", f"Triton has no backend for {runtime}", "build it for TensorRT")
    batch = _batch_dimension(manifest)
    batch_max = _batch_max(manifest, batch, options)
    profiles = manifest.options.profiles
    lines = [
        f"name: {json.dumps(manifest.model)}",
        f'platform: "{_PLATFORMS[runtime]}"',
        f"default_model_filename: {json.dumps(manifest.engine_file)}",
        f"max_batch_size: {batch_max}",
        f"version_policy {{ specific {{ versions: [{options.version}] }} }}",
        *(_tensor("input", tensor, is_batched=batch is not None) for tensor in manifest.inputs),
        *(_tensor("output", tensor, is_batched=batch is not None) for tensor in manifest.outputs),
        _instances(runtime, len(profiles), options),
    ]
    if batch_max > 1:
        preferred = _preferred(profiles, batch, batch_max, options)
        sizes = f" preferred_batch_size: [{', '.join(map(str, preferred))}]" if preferred else ""
        delay = f"max_queue_delay_microseconds: {options.queue_delay_us}"
        lines.append(f"dynamic_batching {{{sizes} {delay} }}")
    lines += [
        "response_cache { enable: false }",
        f'parameters {{ key: "{DIGEST_PARAMETER}" value {{ string_value: "{manifest.digest}" }} }}',
        f'parameters {{ key: "engine_id" value {{ string_value: "{manifest.engine_id}" }} }}',
        *_warmups(manifest, batch, batch_max),
    ]
    return "\n".join(lines) + "\n"


def _batch_dimension(manifest: Manifest) -> str | None:
    """Name of the free first dimension that all tensors share; None: Triton must not batch this model."""
    firsts = {t.dims[0] if t.dims else None for t in (*manifest.inputs, *manifest.outputs)}
    first = next(iter(firsts))
    return first if len(firsts) == 1 and isinstance(first, str) else None


def _batch_max(manifest: Manifest, batch: str | None, options: PlanOptions) -> int:
    """The largest batch such that every smaller one is held by a profile too; 0 without batching."""
    if batch is None:
        if options.batch_size_max not in {None, 1} or options.preferred_batch_sizes:
            raise EngineInputError(
                "batch_size_max",
                "the model's tensors share no free first dimension, so it cannot be batched",
                "export it with a dynamic batch, or leave it out",
            )
        return 0
    covered = 0
    for low, high in sorted((p[batch].min, p[batch].max) for p in manifest.options.profiles):
        if low <= covered + 1:
            covered = max(covered, high)
    if covered == 0:
        raise EngineInputError(
            "engine", f"no optimization profile holds {batch} 1", "build it with a profile from 1 on"
        )
    wanted = options.batch_size_max or covered
    if wanted > covered:
        raise EngineInputError(
            "batch_size_max",
            f"{wanted}, but the profiles hold {batch} from 1 to {covered} without a gap",
            "lower it, or build the engine with a larger profile",
        )
    return wanted


def _preferred(
    profiles: Iterable[Profile], batch: str | None, batch_max: int, options: PlanOptions
) -> list[int]:
    """What was asked for; else what each profile is fastest at."""
    if options.preferred_batch_sizes:
        wrong = [size for size in options.preferred_batch_sizes if not 1 <= size <= batch_max]
        if wrong:
            raise EngineInputError("preferred_batch_sizes", f"{wrong[0]}", f"stay between 1 and {batch_max}")
        return sorted(set(options.preferred_batch_sizes))
    sizes = {profile[batch].opt for profile in profiles} if batch is not None else set[int]()
    return sorted(size for size in sizes if 1 < size <= batch_max)


def _datatype(tensor: TensorInfo) -> str:
    if tensor.datatype not in _TYPES:
        raise EngineInputError(
            "engine", f"{tensor.name} is {tensor.datatype}, which is not served here", f"use {list(_TYPES)}"
        )
    return f"TYPE_{_TYPES[tensor.datatype]}"


def _tensor(kind: str, tensor: TensorInfo, *, is_batched: bool) -> str:
    dims = [-1 if isinstance(d, str) else d for d in tensor.dims[is_batched:]]
    # Triton wants at least one dimension beside the batch.
    shape = f"dims: [{', '.join(map(str, dims))}]" if dims else "dims: [1] reshape { shape: [] }"
    return f"{kind} {{ name: {json.dumps(tensor.name)} data_type: {_datatype(tensor)} {shape} }}"


def _instances(runtime: RuntimeKind, profile_count: int, options: PlanOptions) -> str:
    if runtime is RuntimeKind.ONNX_RUNTIME:
        return f"instance_group [{{ kind: KIND_CPU count: {options.instance_count} }}]"
    gpus = f" gpus: [{', '.join(map(str, options.gpus))}]" if options.gpus else ""
    # Without the list Triton would use the first profile alone.
    names = ", ".join(f'"{number}"' for number in range(profile_count))
    profiles = f" profile: [{names}]" if profile_count > 1 else ""
    return f"instance_group [{{ kind: KIND_GPU count: {options.instance_count}{gpus}{profiles} }}]"


def _warmups(manifest: Manifest, batch: str | None, batch_max: int) -> list[str]:
    """One inference at the smallest, the best and the largest batch of each profile: each pays for being new."""
    made: dict[str, str] = {}
    for profile in manifest.options.profiles or ({},):
        sizes = {1}  # what Triton wants for a model that it does not batch
        if batch is not None:
            limits = profile[batch]
            sizes = {
                n
                for n in (limits.min, limits.opt, min(limits.max, batch_max))
                if limits.min <= n <= batch_max
            }
        inputs = "\n".join(_warmup_input(t, profile, is_batched=batch is not None) for t in manifest.inputs)
        for size in sorted(sizes):
            name = f"warmup_{len(made)}"
            warmup = f'model_warmup {{ name: "{name}" batch_size: {size}\n{inputs}\n}}'
            made.setdefault(f"{size}\n{inputs}", warmup)
    return list(made.values())


def _warmup_input(tensor: TensorInfo, profile: Profile, *, is_batched: bool) -> str:
    dims = [profile[d].opt if isinstance(d, str) else d for d in tensor.dims[is_batched:]] or [1]
    # Numbers may be anything; identifiers and flags must exist, and 0 does.
    data = "random_data" if "float" in tensor.datatype else "zero_data"
    shape = f"data_type: {_datatype(tensor)} dims: [{', '.join(map(str, dims))}] {data}: true"
    return f"  inputs {{ key: {json.dumps(tensor.name)} value {{ {shape} }} }}"
