"""Measure real Triton on a CUDA GPU: precisions side by side, batching on and off, capacity at an SLO, load stages.

Run on a machine with a GPU, PyTorch with torchvision, tritonclient and the parts of tritonserver:

    python -m benchmarks.gpu --triton FOLDER --out result.json

FOLDER holds what the nvidia-pytriton wheel unpacks to. TensorRT is not needed and not measured: the models run in
PyTorch behind the python backend, and the result says so. Load comes from several processes; a rate counts as
sustained only if no sender ran late (`engines.profile`).
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import sysconfig
import time
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from engines.profile import Batching, LoadPoint, Objective, find_sustained, offer, open_model, summarize

SENDERS = 10
GRPC_PORT, METRICS_PORT = 18001, 18002
MODELS = [
    ("resnet50", "fp32"),
    ("resnet50", "fp16"),
    ("mlp", "fp32"),
    ("mlp", "fp16"),
    ("mlp", "int8"),
]
_INPUT = {"resnet50": ("TYPE_UINT8", "3, 224, 224"), "mlp": ("TYPE_FP32", "64")}
_OUTPUT = {"resnet50": 1000, "mlp": 8}


def write_model(repository: Path, network: str, precision: str) -> str:
    """One model of the repository; return its name."""
    name = f"{network}_{precision}"
    (repository / name / "1").mkdir(parents=True, exist_ok=True)
    code = Path(__file__).with_name("gpu_model.py").read_text()
    (repository / name / "1" / "model.py").write_text(code)
    datatype, dims = _INPUT[network]
    (repository / name / "config.pbtxt").write_text(
        f'backend: "python"\nmax_batch_size: 64\n'
        f'input {{ name: "x" data_type: {datatype} dims: [{dims}] }}\n'
        f'output {{ name: "y" data_type: TYPE_FP32 dims: [{_OUTPUT[network]}] }}\n'
        "instance_group [{ kind: KIND_CPU count: 1 }]\n"  # the backend places nothing: the code uses CUDA itself
        f'parameters {{ key: "network" value {{ string_value: "{network}" }} }}\n'
        f'parameters {{ key: "precision" value {{ string_value: "{precision}" }} }}\n'
    )
    return name


def start_triton(folder: Path, repository: Path, log: Path) -> subprocess.Popen[bytes]:
    """A tritonserver on loopback without models."""
    root = folder / "pytriton" / "tritonserver"
    minor = f"3.{sys.version_info.minor}"
    backends = repository.parent / "backends" / "python"
    backends.mkdir(parents=True, exist_ok=True)
    stub = root / "python_backend_stubs" / minor / "triton_python_backend_stub"
    for part in (*(root / "backends" / "python").iterdir(), stub):
        (backends / part.name).unlink(missing_ok=True)
        (backends / part.name).symlink_to(part)
    for program in (root / "bin" / "tritonserver", stub):
        program.chmod(0o755)
    libraries = [sysconfig.get_config_var("LIBDIR") or "", str(folder / "nvidia_pytriton.libs")]
    variables = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
        "LD_LIBRARY_PATH": ":".join([*filter(None, libraries), os.environ.get("LD_LIBRARY_PATH", "")]),
    }
    arguments = [
        str(root / "bin" / "tritonserver"),
        *(f"--model-repository={repository}", "--model-control-mode=explicit", "--allow-http=false"),
        *("--grpc-address=127.0.0.1", f"--grpc-port={GRPC_PORT}"),
        *("--metrics-address=127.0.0.1", f"--metrics-port={METRICS_PORT}", "--allow-gpu-metrics=false"),
        f"--backend-directory={backends.parent}",
    ]
    return subprocess.Popen(arguments, env=variables, stdout=log.open("wb"), stderr=subprocess.STDOUT)


def sender(name: str, pipe: Connection) -> None:
    """A process that offers its share of the load whenever it is told a rate."""

    async def run() -> None:
        async with open_model(f"127.0.0.1:{GRPC_PORT}", name, seed=os.getpid()) as model:
            pipe.send("ready")
            while (told := await asyncio.to_thread(pipe.recv)) is not None:
                qps, duration_s, seed = told
                pipe.send(await offer(model.infer, qps, duration_s=duration_s, seed=seed, count_min=50))

    asyncio.run(run())


class Senders:
    """Several senders as one: independent Poisson streams add up to one."""

    def __init__(self, name: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(SENDERS):
            ours, theirs = context.Pipe()
            process = context.Process(target=sender, args=(name, theirs), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)
        for pipe in self._pipes:
            pipe.recv()

    async def measure(self, _send: object, qps: float, *, duration_s: float, seed: int) -> LoadPoint:
        """Offer ``qps`` from all of them together."""
        return await asyncio.to_thread(self._measure, qps, duration_s, seed)

    def _measure(self, qps: float, duration_s: float, seed: int) -> LoadPoint:
        for number, pipe in enumerate(self._pipes):
            pipe.send((qps / SENDERS, duration_s, seed * SENDERS + number))
        return summarize([pipe.recv() for pipe in self._pipes])

    def close(self) -> None:
        """End them."""
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(10)


async def load_stages(name: str) -> dict[str, float]:
    """Seconds to load a model (weights built, moved to the GPU) and of its first and fifth inference."""
    from tritonclient.grpc.aio import InferenceServerClient

    async with InferenceServerClient(f"127.0.0.1:{GRPC_PORT}") as client:
        began_s = time.perf_counter()
        await client.load_model(name, client_timeout=300)
        loaded_s = time.perf_counter() - began_s
    async with open_model(f"127.0.0.1:{GRPC_PORT}", name) as model:
        took: list[float] = []
        for _ in range(5):
            began_s = time.perf_counter()
            await model.infer()
            took.append(time.perf_counter() - began_s)
    return {"load_s": loaded_s, "first_inference_s": took[0], "fifth_inference_s": took[-1]}


async def unload(name: str) -> None:
    from tritonclient.grpc.aio import InferenceServerClient

    async with InferenceServerClient(f"127.0.0.1:{GRPC_PORT}") as client:
        await client.unload_model(name)
        while await client.is_model_ready(name):
            await asyncio.sleep(0.05)


async def await_live(process: subprocess.Popen[bytes], log: Path) -> float:
    from tritonclient.grpc.aio import InferenceServerClient
    from tritonclient.utils import InferenceServerException

    began_s = time.perf_counter()
    async with InferenceServerClient(f"127.0.0.1:{GRPC_PORT}") as client:
        while True:
            try:
                if await client.is_server_live():
                    return time.perf_counter() - began_s
            except InferenceServerException:
                pass
            if process.poll() is not None:
                raise SystemExit(f"tritonserver ended with {process.returncode}:\n{log.read_text()[-3000:]}")
            await asyncio.sleep(0.02)


def agreement(network: str) -> dict[str, Any]:
    """How close each lower precision is to FP32 on the same inputs: cosine and top-1 agreement."""
    import torch

    sys.modules.setdefault("triton_python_backend_utils", type(sys)("triton_python_backend_utils"))
    from benchmarks import gpu_model

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    generator = torch.Generator().manual_seed(1)
    shape = (256, 3, 224, 224) if network == "resnet50" else (256, 64)
    x = (
        torch.randint(0, 255, shape, generator=generator)
        if network == "resnet50"
        else torch.randn(shape, generator=generator)
    )
    answers: dict[str, Any] = {}
    with torch.inference_mode():
        for name, precision in MODELS:
            if name == network:
                model = gpu_model.build(network, precision)
                answers[precision] = model(gpu_model.prepare(network, x, precision)).float().cpu()
                del model
    truth = answers.pop("fp32")
    return {
        precision: {
            "cosine_min": float(torch.nn.functional.cosine_similarity(truth, y).min()),
            "top1_agreement": float((truth.argmax(1) == y.argmax(1)).float().mean()),
        }
        for precision, y in answers.items()
    }


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Everything, as one JSON object."""
    import torch

    work = Path(options.work)
    repository = work / "models"
    names = {(n, p): write_model(repository, n, p) for n, p in MODELS}
    log = work / "triton.log"
    result: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "capability": list(torch.cuda.get_device_capability()),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "objective_latency_ms_p99": options.slo_ms,
        "backend": "python backend with PyTorch; TensorRT did not run here",
        "agreement_with_fp32": {network: agreement(network) for network in ("resnet50", "mlp")},
        "models": {},
    }
    torch.cuda.empty_cache()
    objective = Objective(latency_ms_p99=options.slo_ms)
    process = start_triton(Path(options.triton), repository, log)
    try:
        result["server_live_s"] = await await_live(process, log)
        for key, name in names.items():
            row: dict[str, Any] = {"cold": await load_stages(name)}
            await unload(name)
            row["warm"] = await load_stages(name)
            result["models"][name] = row
            async with open_model(f"127.0.0.1:{GRPC_PORT}", name) as model:
                for label, batching in (
                    ("unbatched", Batching(1, 0, 1)),
                    ("batched_2000us", Batching(64, 2000, 1)),
                    *((("two_instances_2000us", Batching(64, 2000, 2)),) if key[1] == "fp16" else ()),
                ):
                    await model.load(batching)
                    await model.warm(batching)
                    senders = Senders(name)
                    try:
                        found = await find_sustained(
                            model.infer,
                            objective,
                            qps_from=200.0 if key[0] == "mlp" else 100.0,
                            qps_to=20_000.0,
                            precision=0.1,
                            duration_s=options.duration_s,
                            measure=senders.measure,
                        )
                    finally:
                        senders.close()
                    row[label] = {"qps_max": found.qps_max, "points": [asdict(p) for p in found.points]}
                    print(name, label, found.qps_max, flush=True)
                    Path(options.out).write_text(json.dumps(result, indent=1))
            await unload(name)
    finally:
        process.terminate()
        process.wait(30)
    return result


def main() -> None:
    """Parse, measure, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--triton", required=True, help="folder of the unpacked nvidia-pytriton wheel")
    parser.add_argument("--out", required=True, help="where the JSON goes")
    parser.add_argument("--work", default="/tmp/forecrest-gpu", help="folder for the models")
    parser.add_argument("--slo-ms", type=float, default=50.0, help="P99 latency that counts as sustained")
    parser.add_argument("--duration-s", type=float, default=2.5, help="seconds per measured rate")
    options = parser.parse_args()
    result = asyncio.run(measure(options))
    Path(options.out).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
