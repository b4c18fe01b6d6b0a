"""Which engine a workload's local replicas serve, checked before a process is started for it.

Promises: an engine of the catalogue is served only if it is ACTIVE, passed its gate, is signed where signatures are
required, fits this machine's runtimes and the shapes the workload asks for, and its file is what was built; the
ordered digest, where there is one, is what is served. The file is compared again before each start. Never serves
another engine in its place. Refuses with the reason and the remedy, the reason first. Called by the local actuator.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from controller.core.types import Workload
from engines.catalog import Catalog, Engine, NoEngineError, RejectedError
from engines.checks import check_file
from engines.compatibility import Node, Objection, Rejection
from engines.node import detect_machine
from engines.onnx_examples import write_two_tower
from engines.triton_repository import ServedModel, ServingOptions, build_repository
from engines.types import RuntimeKind, TensorInfo

log = logging.getLogger(__name__)

_BUILT_IN_SEED = 7
FIELDS = ("engine", "catalog_model", "shapes")


class EngineRefusedError(Exception):
    """The engine must not serve; the text is the reason, what was found and the remedy."""

    def __init__(self, objection: Objection) -> None:
        super().__init__(str(objection))
        self.objection = objection


@dataclass(frozen=True, slots=True)
class LocalEngines:
    """Where engines are and what may serve them. `model_folders` None: an ONNX file may lie anywhere."""

    folder: Path
    model_folders: Sequence[Path] | None = None
    catalog: str = ""  # folder or URL; "": there is none
    trusted_keys: Sequence[Path] = ()  # given: only engines signed by one of them count

    def prepare(self, workload: Workload, onnxruntime: str) -> ServedModel:
        """The repository for a workload's target; `onnxruntime` is the release that Triton's models run in.

        Raises:
            ValueError: a target this actuator does not know, or a value out of bounds.
            EngineRefusedError: the engine must not serve.
        """
        target = dict(workload.target)
        engine, model, shapes = (target.pop(name, None) for name in FIELDS)
        options = _options(target)
        if not workload.model_version.isdecimal():
            raise ValueError(f"model_version: Triton's versions are numbers, got {workload.model_version!r}")
        if engine and model:
            raise ValueError("target: engine and catalog_model exclude each other; name one")
        if shapes and not model:
            raise ValueError("target: shapes are compared with an engine of the catalogue; add catalog_model")
        if model:
            needed = _shapes(shapes) if shapes else {}
            path = self._from_catalog(model, workload.engine_digest, onnxruntime, options, needed)
        else:
            path = model_path(engine, self.model_folders) if engine else self._built_in()
        served = build_repository(
            self.folder / "repositories",
            path,
            name=workload.model_name,
            version=int(workload.model_version),
            options=options,
        )
        if workload.engine_digest not in {None, served.digest}:
            sentence = f"{path.name} is {served.digest}, ordered was {workload.engine_digest}"
            raise EngineRefusedError(Objection(Rejection.WRONG_DIGEST, sentence))
        return served

    def _built_in(self) -> Path:
        path = self.folder / "engines" / f"two_tower_{_BUILT_IN_SEED}.onnx"
        if not path.exists():
            fresh = path.with_suffix(".new")
            write_two_tower(fresh, seed=_BUILT_IN_SEED)
            fresh.replace(path)
        return path

    def _from_catalog(
        self,
        model: str,
        digest: str | None,
        onnxruntime: str,
        options: ServingOptions,
        shapes: Mapping[str, tuple[int, ...]],
    ) -> Path:
        """A checked copy of the engine for this machine, named by its digest."""
        if not self.catalog:
            raise ValueError("target: catalog_model needs a catalogue; set FORECREST_ENGINE_CATALOG")
        gpus = detect_machine().gpus
        # Triton's wheel brings no TensorRT, so engines for GPUs are refused here by name.
        node = Node(
            compute_capability=gpus[0].compute_capability if gpus else None,
            gpu=gpus[0].name if gpus else None,
            runtimes={RuntimeKind.ONNX_RUNTIME: onnxruntime},
        )
        try:
            catalog = Catalog(self.catalog, trusted_keys=self.trusted_keys or None)
            known = catalog.engines(model)
            if not shapes and known:
                shapes = _shapes_of(known[-1], options.batch_size_max)
            engine = catalog.engine_for(model, node, expected_digest=digest, shapes=shapes or None)
            manifest = engine.manifest
            place = self.folder / "engines" / manifest.digest.removeprefix("sha256:")
            path, recorded = place / manifest.engine_file, manifest.files[manifest.engine_file]
            if check_file(path, digest=recorded.digest, size_bytes=recorded.size_bytes) is not None:
                catalog.fetch(engine, place, expected_digest=digest)
                log.info("engine %s of %s fetched from %s", manifest.engine_id, model, self.catalog)
        except (RejectedError, NoEngineError) as error:
            raise EngineRefusedError(error.objection) from error
        return path


def check_served(served: ServedModel) -> Objection | None:
    """Compare the file a replica is about to load with what was ordered: disks fill up and files get edited."""
    path = served.engine_path
    objection = check_file(path, digest=served.digest, size_bytes=served.size_bytes)
    if objection is None:
        return None
    sentence = f"{objection.sentence} (remove the folder {served.repository}, and it is made anew)"
    return Objection(objection.rejection, sentence)


def _options(target: Mapping[str, str]) -> ServingOptions:
    known = {option.name: option.type for option in fields(ServingOptions)}
    unknown = target.keys() - known.keys()
    if unknown:
        raise ValueError(
            f"target: {', '.join(sorted(unknown))} is not one of {', '.join(FIELDS)}, {', '.join(known)}"
        )
    return ServingOptions(
        **{name: int(value) if known[name] is int else float(value) for name, value in target.items()}  # type: ignore[arg-type]
    )


def model_path(engine: str, folders: Sequence[Path] | None) -> Path:
    """The file a workload names, links followed; raise ValueError unless it lies in one of the folders.

    Whoever may name a workload would otherwise have the controller read, and serve, any file of its user.
    """
    path = Path(engine).expanduser().resolve()
    if folders is not None and not any(path.is_relative_to(folder) for folder in folders):
        raise ValueError(
            f"target: engine {engine} lies outside of the folders for models, {', '.join(map(str, folders))}; "
            "move it there, or name its folder in FORECREST_MODEL_ROOTS"
        )
    return path


def _shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Read ``tokens=8x32,mask=8x32``."""
    made: dict[str, tuple[int, ...]] = {}
    for part in text.split(","):
        name, _, shape = part.partition("=")
        lengths = shape.split("x")
        if not name or not all(length.isdecimal() and length.isascii() for length in lengths):
            raise ValueError(f"target: shapes {part!r} is none; write input=8x32, batch first")
        made[name] = tuple(map(int, lengths))
    return made


def _shapes_of(engine: Engine, batch_size: int) -> dict[str, tuple[int, ...]]:
    """Every input at the largest batch Triton will form, other free dimensions at what the engine is fastest at."""
    profile = next(iter(engine.manifest.options.profiles), {})

    def shape(tensor: TensorInfo) -> tuple[int, ...]:
        lengths = [d if isinstance(d, int) else profile[d].opt if d in profile else 1 for d in tensor.dims]
        return (batch_size, *lengths[1:])

    return {tensor.name: shape(tensor) for tensor in engine.manifest.inputs if tensor.dims}


def trusted_keys(paths: str) -> tuple[Path, ...]:
    """Key files of the setting, separated as in PATH."""
    return tuple(Path(part).expanduser() for part in paths.split(os.pathsep) if part)
