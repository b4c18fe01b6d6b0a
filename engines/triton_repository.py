"""Build a Triton model repository for one engine.

Promises: one repository per engine digest, version and serving options, complete or absent (made
beside its place and moved there), never changed afterwards. The digest is part of the model's
configuration, where any gRPC client can read it, and the served code refuses an engine with
another one. Refuses engines it cannot read and options out of bounds. Called by the local
actuator's set-up, the demo and tests.
"""

import hashlib
import json
import os
import re
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

DIGEST_PARAMETER = "engine_digest"
_MODEL_CODE = Path(__file__).with_name("triton_onnx_model.py")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
# ONNX TensorProto element types that Triton's python backend carries, by their number.
_TRITON_TYPES = {1: "FP32", 2: "UINT8", 3: "INT8", 6: "INT32", 7: "INT64", 9: "BOOL", 10: "FP16", 11: "FP64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """How Triton serves the engine. Times are per replica; see `triton_onnx_model` for the simulated device."""

    batch_size_max: int = 4
    queue_delay_us: int = 1000  # how long a request may wait for others to share its batch
    simulated_device_time_ms: float = 0.0
    simulated_device_time_ms_per_request: float = 0.0

    def __post_init__(self) -> None:
        bounds = {
            "batch_size_max": (1, 4096),
            "queue_delay_us": (0, 1_000_000),
            "simulated_device_time_ms": (0, 60_000),
            "simulated_device_time_ms_per_request": (0, 60_000),
        }
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name}: must be from {low} to {high}, got {value}")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output: Triton data type and dimensions without the batch."""

    name: str
    datatype: str
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A built repository and what a replica serving from it must report."""

    repository: Path
    name: str
    version: int
    digest: str
    options: ServingOptions
    size_bytes: int
    inputs: tuple[TensorSpec, ...] = field(default=())
    outputs: tuple[TensorSpec, ...] = field(default=())

    @property
    def engine_path(self) -> Path:
        """The engine file that Triton loads."""
        return self.repository / self.name / str(self.version) / "model.onnx"


def engine_digest(path: Path) -> str:
    """`sha256:…` of the engine file."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def read_signature(path: Path) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs and outputs of an ONNX file.

    Raises:
        ValueError: not ONNX, or a tensor without a leading batch dimension or with a type Triton lacks.
    """
    import onnx  # noqa: PLC0415 - only who builds a repository needs it

    try:
        graph = onnx.load_model(path, load_external_data=False).graph
    except Exception as error:  # protobuf raises its own kinds, and they differ between releases
        raise ValueError(f"engine: {path} is not a readable ONNX model: {error}") from error
    constants = {tensor.name for tensor in graph.initializer}

    def spec(value: "onnx.ValueInfoProto") -> TensorSpec:
        tensor = value.type.tensor_type
        if tensor.elem_type not in _TRITON_TYPES:
            raise ValueError(
                f"engine: {value.name} has ONNX type {tensor.elem_type}, which Triton cannot carry"
            )
        dims = [d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim]
        if not dims or dims[0] != -1:
            raise ValueError(f"engine: {value.name} needs a free first dimension, the batch; it has {dims}")
        return TensorSpec(value.name, _TRITON_TYPES[tensor.elem_type], tuple(dims[1:]))

    inputs = tuple(spec(value) for value in graph.input if value.name not in constants)
    return inputs, tuple(spec(value) for value in graph.output)


def build_repository(
    root: Path, engine: Path, *, name: str, version: int = 1, options: ServingOptions | None = None
) -> ServedModel:
    """Make (or find) the repository under `root` that serves `engine` as `name`, version `version`.

    Raises:
        ValueError: a name or version Triton would refuse, or an unreadable engine.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"name: {name!r} must be letters, digits, '_', '.' or '-', at most 100, not led by a sign"
        )
    if version < 1:
        raise ValueError(f"version: must be at least 1, got {version}")
    options = options or ServingOptions()
    inputs, outputs = read_signature(engine)
    digest = engine_digest(engine)
    # Everything that changes what is served, the serving code included, changes the folder.
    identity = json.dumps([digest, name, version, asdict(options), engine_digest(_MODEL_CODE)])
    target = root.resolve() / hashlib.sha256(identity.encode()).hexdigest()[:16]
    size_bytes = engine.stat().st_size
    model = ServedModel(target, name, version, digest, options, size_bytes, inputs, outputs)
    if not target.exists():
        fresh = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.rmtree(fresh, ignore_errors=True)
        folder = fresh / name / str(version)
        folder.mkdir(parents=True)
        shutil.copyfile(engine, folder / "model.onnx")
        shutil.copyfile(_MODEL_CODE, folder / "model.py")
        (fresh / name / "config.pbtxt").write_text(_configuration(model))
        try:
            fresh.rename(target)
        except OSError:
            shutil.rmtree(fresh, ignore_errors=True)
            if not target.exists():  # otherwise another process was faster, with the same content
                raise
    return model


def _configuration(model: ServedModel) -> str:
    options = model.options
    # No default_queue_policy, although its max_queue_size would bound the queue: with it Triton 2.51
    # prepares no batch while one runs, and when no request arrives to wake the batcher, it hands over
    # one batch per half second (measured: 80 waiting requests took 8 s instead of 1). Clients bound
    # the queue instead, by deadlines and by the balancer's limit on outstanding requests.
    parameters = {
        DIGEST_PARAMETER: model.digest,
        "simulated_device_time_ms": options.simulated_device_time_ms,
        "simulated_device_time_ms_per_request": options.simulated_device_time_ms_per_request,
    }
    warmups = "\n".join(_warmup(model, size) for size in sorted({1, options.batch_size_max}))
    return f"""\
name: "{model.name}"
backend: "python"
max_batch_size: {options.batch_size_max}
version_policy {{ specific {{ versions: [{model.version}] }} }}
{_tensors("input", model.inputs)}
{_tensors("output", model.outputs)}
instance_group [{{ kind: KIND_CPU count: 1 }}]
dynamic_batching {{ max_queue_delay_microseconds: {options.queue_delay_us} }}
response_cache {{ enable: false }}
# simulated_device_time_*: the pace of an imagined accelerator, 0 = none; see model.py.
{"".join(f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}' + chr(10) for k, v in parameters.items())}
{warmups}
"""


def _tensors(kind: str, specs: tuple[TensorSpec, ...]) -> str:
    return "\n".join(
        f"{kind} {{ name: {json.dumps(s.name)} data_type: TYPE_{s.datatype} dims: [{', '.join(map(str, s.dims))}] }}"
        for s in specs
    )


def _warmup(model: ServedModel, batch_size: int) -> str:
    """Zeros at this batch size: Triton reports the model ready only after it has answered them."""
    inputs = "\n".join(
        f"  inputs {{ key: {json.dumps(s.name)} value {{ data_type: TYPE_{s.datatype}"
        f" dims: [{', '.join(str(max(d, 1)) for d in s.dims)}] zero_data: true }} }}"
        for s in model.inputs
    )
    return f'model_warmup {{ name: "batch_{batch_size}" batch_size: {batch_size}\n{inputs}\n}}'
