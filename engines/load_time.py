"""How long a replica's engine takes to be ready, stage by stage: prebuilt, and built at start as without a catalogue.

Promises: each run is a process of its own, as a replica is, so that importing a runtime counts and nothing is warm but
the file cache; a stage that this machine cannot run (no GPU, no calibration set) is absent with the reason in `notes`,
never 0. Refuses a runtime that is not installed, and what the catalogue refuses: a damaged file is not timed. Called by
``forecrest engine load-time``; what Triton itself takes is measured by ``forecrest engine profile``, which the
controller's lead times read.

    prebuilt    fetch, runtime, deserialise, first inference
    cold        fetch, runtime, convert, build, deserialise, first inference
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from engines.catalog import Catalog, Engine, Manifest
from engines.errors import EngineError, EngineInputError
from engines.pipeline import REFERENCE
from engines.types import Precision, RuntimeKind, from_json, to_json

RUNS_MAX: Final = 50
_TIMEOUT_S: Final = 3600.0
_NEXT_COUNT: Final = 5


class Start(StrEnum):
    """The two ways to an engine that is ready."""

    PREBUILT = "PREBUILT"
    COLD = "COLD"


@dataclass(frozen=True, slots=True)
class StageTime:
    """One stage of one way: seconds of the median run and of the slowest."""

    start: Start
    stage: str
    p50_s: float
    max_s: float
    run_count: int


@dataclass(frozen=True, slots=True)
class LoadTimes:
    """Every stage that ran, in order, and why others did not."""

    engine_id: str
    stages: tuple[StageTime, ...]
    notes: tuple[str, ...]

    def total_s(self, start: Start) -> float:
        """Median seconds of all stages of one way, without the inferences after the first."""
        return sum(s.p50_s for s in self.stages if s.start is start and s.stage != "next inference")


def measure(
    catalog: Catalog,
    engine: Engine,
    *,
    runs: int = 3,
    calibration: Path | None = None,
    on_run: Callable[[str, int, int], None] = lambda _what, _done, _total: None,
) -> LoadTimes:
    """Start the engine both ways, each `runs` times.

    Raises:
        EngineInputError: `runs` is out of bounds.
        RejectedError: a file is not what was built.
        EngineError: a start failed, in the words of what refused.
    """
    if not 1 <= runs <= RUNS_MAX:
        raise EngineInputError("runs", f"{runs}", f"choose 1 to {RUNS_MAX}")
    calibration = None if calibration is None else calibration.resolve()
    seconds: dict[tuple[Start, str], list[float]] = {}
    notes: dict[str, None] = {}
    for number in range(runs):
        for start in Start:
            on_run(start.lower(), 2 * number + (start is Start.COLD), 2 * runs)
            with tempfile.TemporaryDirectory(prefix="forecrest-load-") as folder:
                began_s = time.perf_counter()
                # A cold start has the FP32 model on its disk and makes the engine from it.
                name = engine.manifest.engine_file if start is Start.PREBUILT else REFERENCE
                path = catalog.fetch_file(engine, name, Path(folder))
                seconds.setdefault((start, "fetch"), []).append(time.perf_counter() - began_s)
                found = asyncio.run(_in_a_process(start, engine.manifest, path, calibration))
            for stage, took_s in found["stages"].items():
                seconds.setdefault((start, stage), []).append(took_s)
            notes |= dict.fromkeys(found["notes"])
    stages = tuple(
        StageTime(start, stage, statistics.median(values), max(values), len(values))
        for (start, stage), values in sorted(seconds.items(), key=lambda item: item[0][0] is Start.COLD)
    )
    return LoadTimes(engine.manifest.engine_id, stages, tuple(notes))


async def _in_a_process(
    start: Start, manifest: Manifest, path: Path, calibration: Path | None
) -> dict[str, Any]:
    order = {
        "start": start,
        "manifest": to_json(manifest),
        "path": str(path),
        "calibration": None if calibration is None else str(calibration),
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "engines.load_time"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            answer, errors = await process.communicate(json.dumps(order).encode())
    except TimeoutError as error:
        raise EngineError(f"load-time: a start took longer than {_TIMEOUT_S:.0f} s; it was ended.") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        last = " ".join(errors.decode(errors="replace").strip().splitlines()[-1:])
        raise EngineError(f"load-time: a {start.lower()} start failed: {last[:500]}")
    found: dict[str, Any] = json.loads(answer)
    return found


class _Watch:
    """Seconds between readings, by stage."""

    def __init__(self) -> None:
        self.stages: dict[str, float] = {}
        self.notes: list[str] = []
        self._last_s = time.perf_counter()

    def lap(self, stage: str) -> None:
        now_s = time.perf_counter()
        self.stages[stage] = now_s - self._last_s
        self._last_s = now_s


def run(order: Mapping[str, Any]) -> dict[str, Any]:
    """One start in this process; what the parent sent as its order."""
    manifest = from_json(Manifest, order["manifest"], "manifest")
    path, runtime = Path(order["path"]), manifest.options.runtime
    watch = _Watch()
    module = _import(runtime)
    watch.lap("runtime")
    if order["start"] == Start.COLD:
        content = _build(manifest, path, order["calibration"], watch)
    else:
        content = path.read_bytes()
    if runtime is RuntimeKind.ONNX_RUNTIME:
        _serve_on_cpu(manifest, content, watch)
    else:
        _deserialise(module, content, watch)
    return {"stages": watch.stages, "notes": watch.notes}


def _import(runtime: RuntimeKind) -> Any:  # noqa: ANN401 - an untyped module
    from engines.checks import runtime_module  # noqa: PLC0415 - importing is what is timed
    from engines.onnx_runner import load_onnxruntime  # noqa: PLC0415 - as above

    return load_onnxruntime() if runtime is RuntimeKind.ONNX_RUNTIME else runtime_module(runtime)


def _build(manifest: Manifest, reference: Path, calibration: str | None, watch: _Watch) -> bytes:
    from engines.builder import builder_for  # noqa: PLC0415 - as above
    from engines.datasets import read_dataset  # noqa: PLC0415 - as above
    from engines.graphs import read_graph  # noqa: PLC0415 - as above
    from engines.pipeline import converted  # noqa: PLC0415 - as above

    options = manifest.options
    model = read_graph(reference)
    known = read_dataset(Path(calibration), "--calibration") if calibration is not None else None
    if options.precision.is_quantised and known is None:
        # The scales of a cold start come from somewhere; without the set FP32 stands for the least it takes.
        watch.notes.append(
            f"COLD: no --calibration was given, so FP32 was built instead of {options.precision}"
        )
        graph = converted(model, Precision.FP32, frozenset(), None)
    else:
        used = known if options.precision.is_quantised else None
        graph = converted(model, options.precision, frozenset(options.kept_layers), used)
    watch.lap("convert")
    built = builder_for(options.runtime).build(
        graph.SerializeToString(deterministic=True),
        manifest.inputs,
        options,
        timing_cache=None,
        progress=lambda _phase, _done, _total: None,
    )
    watch.lap("build")
    return built.content


def _serve_on_cpu(manifest: Manifest, content: bytes, watch: _Watch) -> None:
    from engines.checks import probe_inputs  # noqa: PLC0415 - as above
    from engines.onnx_runner import OnnxRunner  # noqa: PLC0415 - as above

    runner = OnnxRunner(content, optimized=True)
    watch.lap("deserialise")
    inputs = probe_inputs(manifest.inputs, manifest.options.profiles)
    watch.lap("probe")
    del watch.stages["probe"]
    runner.run(inputs)
    watch.lap("first inference")
    for _ in range(_NEXT_COUNT):
        runner.run(inputs)
    watch.lap("next inference")
    watch.stages["next inference"] /= _NEXT_COUNT


def _deserialise(module: Any, content: bytes, watch: _Watch) -> None:  # noqa: ANN401 - an untyped module
    from engines import trt_common  # noqa: PLC0415 - as above
    from engines.node import detect_machine  # noqa: PLC0415 - as above

    has_gpu = bool(detect_machine().gpus)
    watch.lap("look")
    del watch.stages["look"]
    loaded = trt_common.load(module, content, has_gpu=has_gpu)
    if loaded.verdict is trt_common.LoadVerdict.LOADED:
        watch.lap("deserialise")
        watch.notes.append("first inference: measured behind Triton, by `forecrest engine profile`")
    else:
        watch.notes.append(f"deserialise: not measured: {loaded.detail}")


if __name__ == "__main__":
    try:
        sys.stdout.write(json.dumps(run(json.loads(sys.stdin.read()))))
    except EngineError as error:
        sys.exit(str(error))
