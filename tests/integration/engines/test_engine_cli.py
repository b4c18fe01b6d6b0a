"""``forecrest engine`` as a user runs it, on a machine without a GPU."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller.cli.app import run_command
from controller.cli.common import CliError
from controller.cli.engines import parse_node, parse_profile, parse_shape
from engines.examples import write_example
from engines.types import DimRange, RuntimeKind

ROOT = Path(__file__).resolve().parents[3]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cnn")
    write_example("cnn", folder)
    return folder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("FORECREST_ENGINE_CATALOG", str(tmp_path / "catalog"))

    def command(*arguments: object) -> tuple[int, str, str]:
        code = run_command(["engine", *map(str, arguments)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return command


def build(run: Run, cnn: Path, *more: object) -> dict[str, Any]:
    code, text, errors = run(
        "build", cnn / "model.onnx", "--name", "ranker", "--runtime", "onnx-runtime", "--json", *more
    )
    assert 0 == code, errors
    made: dict[str, Any] = json.loads(text)
    return made


def test_an_engine_from_build_to_service_and_back(run: Run, cnn: Path, tmp_path: Path) -> None:
    judged = ("--validation", cnn / "validation.npz")
    first = build(run, cnn, *judged)["engine"]["engine_id"]
    int8 = ("--precision", "int8", "--calibration", cnn / "calibration.npz")
    second = build(run, cnn, *judged, *int8)
    assert "VALIDATED" == second["engine"]["state"]
    assert second["report"]["is_passed"]

    assert 0 == run("promote", first[:10])[0]
    code, text, _ = run("promote", second["engine"]["engine_id"], "--json")
    assert (0, "ACTIVE") == (code, json.loads(text)["state"])
    code, text, _ = run("compat", "ranker", "--node", "cc=none,onnx-runtime=1.32.0")
    assert 0 == code
    assert second["engine"]["engine_id"] in text
    assert "NOT_ACTIVE, the engine is RETIRED" in text
    code, text, _ = run("rollback", "ranker", "--reason", "wrong scores")
    assert (0, f"ranker: engine {first} is ACTIVE.\n") == (code, text)
    listed = json.loads(run("list", "--json")[1])
    assert ["ACTIVE", "RETIRED"] == [engine["state"] for engine in listed]
    code, text, _ = run("verify", first)
    assert 0 == code
    assert "answered by onnxruntime" in " ".join(text.split())
    code, text, _ = run("gc", "--min-age", "0s", "--keep-previous", "0", "--json")
    assert [second["engine"]["engine_id"]] == json.loads(text)["ranker"]["removed"]
    page = tmp_path / "report.html"
    code, text, _ = run("validate", first, *judged, "--report", page)
    assert 0 == code
    assert "Gate passed" in text
    assert "<svg" in page.read_text()
    assert 0 == run("retire", first)[0]


def test_a_triton_repository_is_written_from_the_record(run: Run, cnn: Path, tmp_path: Path) -> None:
    made = build(run, cnn, "--validation", cnn / "validation.npz", "--profile", "batch=1:4:32")
    engine, out = made["engine"]["engine_id"], tmp_path / "models"

    code, text, errors = run(
        "repository", engine, "--out", out, "--preferred-batch", "4,16", "--instances", 2
    )
    assert (0, f"{out}/ranker\n") == (code, text)
    assert "the engine is VALIDATED; promote it" in " ".join(errors.split())
    config = (out / "ranker" / "ranker" / "config.pbtxt").read_text()
    assert "max_batch_size: 32" in config
    assert "preferred_batch_size: [4, 16] max_queue_delay_microseconds: 1000" in config
    assert made["engine"]["digest"] in config

    code, _, errors = run("repository", engine, "--out", out, "--node", "cc=none,onnx-runtime=1.12.0")
    assert 1 == code
    assert "WRONG_RUNTIME_VERSION" in errors
    code, _, errors = run("repository", engine, "--out", out, "--batch-size-max", 33)
    assert (2, True) == (code, "the profiles hold batch from 1 to 32" in " ".join(errors.split()))
    assert 2 == run("repository", engine, "--out", out, "--gpus", "0,x")[0]


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ("cc=8.9,tensorrt-rtx=99.0.0", "WRONG_TENSORRT_MAJOR"),
        ("cc=9.0,tensorrt-rtx=1.7.1.116", "WRONG_COMPUTE_CAPABILITY"),
        ("cc=none,tensorrt-rtx=1.7.1.116", "NO_GPU"),
    ],
)
def test_an_engine_that_a_node_cannot_load_is_not_promoted_for_it(
    run: Run, cnn: Path, node: str, reason: str
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    rtx = ("--runtime", "tensorrt-rtx", "--compute-capability", "8.9", "--validation", cnn / "validation.npz")
    engine = build(run, cnn, *rtx)["engine"]["engine_id"]

    code, _, errors = run("promote", engine, "--node", node)

    assert 1 == code
    assert f"engine: {reason}: " in errors
    assert json.loads(run("list", "--json")[1])[0]["state"] == "VALIDATED"


def test_a_failed_gate_ends_with_one_and_says_what_failed(run: Run, cnn: Path) -> None:
    code, text, _ = run(
        *(
            "build",
            cnn / "model.onnx",
            "--name",
            "ranker",
            "--runtime",
            "onnx-runtime",
            "--precision",
            "fp16",
        ),
        *(
            "--validation",
            cnn / "validation.npz",
            "--budget",
            "abs_error_max<=1e-9",
            "--budget",
            "cosine_min>=0.5",
        ),
    )

    assert 1 == code
    assert "Gate failed" in text
    assert "abs_error_max<=1e-09" in text
    assert "Most error comes from" in text
    engine = json.loads(run("list", "--json")[1])[0]
    assert ("BUILT", False) == (engine["state"], engine["gate_is_passed"])
    code, _, errors = run("promote", engine["engine_id"])
    assert 1 == code
    assert "failed its accuracy gate" in errors


def test_an_engine_for_gpus_is_built_and_explained_without_one(run: Run, cnn: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    code, text, errors = run(
        *(
            "build",
            cnn / "model.onnx",
            "--name",
            "ranker",
            "--runtime",
            "tensorrt-rtx",
            "--precision",
            "bf16",
        ),
        *("--profile", "batch=1:4:8", "--profile", "batch=9:16:32", "--compute-capability", "8.9", "--json"),
    )
    assert 0 == code, errors
    engine = json.loads(text)["engine"]["engine_id"]

    code, text, _ = run("inspect", engine, "--layers")
    assert 0 == code
    for part in ("batch 1:4:8; batch 9:16:32", "TENSORRT_RTX:8.9", "not judged", "conv_1"):
        assert part in text
    assert "not loaded here" in text
    code, text, _ = run("inspect", engine, "--json")
    assert "BF16" == json.loads(text)["manifest"]["options"]["precision"]
    code, text, _ = run("compat", "ranker", "--node", "cc=9.0,image=25.08-trtllm-python-py3")
    assert 1 == code
    assert "no engine serves it" in text
    assert "WRONG_COMPUTE_CAPABILITY" in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--runtime", "tpu"), "--runtime: 'tpu' is unknown; choose tensorrt, tensorrt-rtx, onnx-runtime."),
        (("--precision", "fp4"), "--precision: 'fp4' is unknown; choose fp32, fp16, bf16, int8, int8-fp16."),
        (("--profile", "batch=1:2"), "--profile: 'batch=1:2' is none; write dimension=min:opt:max"),
        (("--profile", "width=1:2:3"), "profile: the model has no dimension ['width']; it has ['batch']."),
        (("--budget", "speed<=1"), "budget: measure 'speed' is unknown; use abs_error_max"),
        (("--precision", "int8"), "calibration: INT8 needs a set to take its scales from; add --calibration"),
        (("--validation", "missing.npz"), "--validation: missing.npz cannot be read"),
        (("--search",), "search: it needs a precision below FP32 and a validation set"),
        (("--compute-capability", "8.9"), "compute_capability: a CPU artifact has none; leave it out."),
        (("--name", "a b"), "model name: 'a b'; use letters"),
        (
            ("--node", "tensorrt=10.13.3"),
            "--node: the compute capability is missing; add cc=8.9, or cc=none.",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_remedy(
    run: Run, cnn: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    given = ("--name", "ranker", "--runtime", "onnx-runtime", *arguments)

    code, text, errors = run("build", cnn / "model.onnx", *given)

    assert (2, "") == (code, text)
    assert sentence in errors


def test_without_a_gpu_tensorrt_says_what_to_do(run: Run, cnn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")

    code, _, errors = run("build", cnn / "model.onnx", "--name", "ranker")

    assert 2 == code
    assert "choose --runtime tensorrt-rtx or onnx-runtime" in errors


def test_an_empty_catalogue_says_how_to_begin(run: Run) -> None:
    code, text, _ = run("list")

    assert 0 == code
    assert "Build one with `forecrest engine build`" in " ".join(text.split())
    assert 1 == run("compat", "nothing")[0]
    code, _, errors = run("promote", "zzz")
    assert 2 == code
    assert "see `forecrest engine list`" in errors


def test_small_languages_of_options() -> None:
    assert {"batch": DimRange(1, 8, 64), "length": DimRange(1, 32, 64)} == parse_profile(
        "batch=1:8:64,length=1:32:64"
    )
    assert ("tokens", (8, 32)) == parse_shape("tokens=8x32")
    node = parse_node("cc=8.9,tensorrt=10.13.3.9,tensorrt-rtx=1.7.1,image=26.02-py3,host-code")
    assert {RuntimeKind.TENSORRT: "10.13.3.9", RuntimeKind.TENSORRT_RTX: "1.7.1"} == node.runtimes
    assert ("8.9", "26.02-py3", True) == (node.compute_capability, node.triton_image, node.allows_host_code)
    assert parse_node("cc=none").compute_capability is None


@pytest.mark.parametrize(
    "text", ["tensorrt=10.13.3", "cc=8.9,gpu=", "cc=8.9,tensorrt=", "cc=8.9,host-code=1"]
)
def test_a_node_that_is_not_described_is_refused(text: str) -> None:
    with pytest.raises(CliError, match="--node"):
        parse_node(text)


@pytest.mark.parametrize("text", ["tokens", "tokens=ax2", "=1x2"])
def test_a_shape_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(CliError, match="--shape"):
        parse_shape(text)


BARE = """
import sys, importlib.abc

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError("No module named " + repr(name) + " (absent here)", name=name)
        return None

sys.meta_path.insert(0, Absent())
import pkgutil, importlib, engines
for module in pkgutil.walk_packages(engines.__path__, "engines."):
    importlib.import_module(module.name)
from controller.cli.app import run_command
sys.exit(run_command(sys.argv[1:]))
"""
ABSENT = {"tensorrt", "tensorrt_rtx", "onnxruntime", "fsspec", "cryptography", "modelopt", "torch"}


def bare(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command line where no optional package is installed and no GPU is seen."""
    return subprocess.run(
        [sys.executable, "-c", BARE.format(absent=ABSENT), "engine", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_on_a_bare_machine_every_module_imports_and_the_commands_explain_themselves(tmp_path: Path) -> None:
    helped = bare("--help")

    assert 0 == helped.returncode, helped.stderr
    for command in ("build", "inspect", "validate", "promote", "rollback", "list", "gc", "compat"):
        assert command in helped.stdout
    listed = bare("list", "--catalog", tmp_path)
    assert 0 == listed.returncode, listed.stderr


@pytest.mark.parametrize(
    ("runtime", "sentence"),
    [
        ("tensorrt", "here is no GPU: nvidia-smi is not installed"),
        ("tensorrt-rtx", "install it: pip install tensorrt-rtx-cu13"),
        ("onnx-runtime", "install the extra: pip install 'forecrest[engines]'"),
    ],
)
def test_on_a_bare_machine_what_is_missing_is_named(
    cnn: Path, tmp_path: Path, runtime: str, sentence: str
) -> None:
    arguments = ("--name", "ranker", "--runtime", runtime, "--catalog", tmp_path)
    done = bare("build", cnn / "model.onnx", *arguments)

    assert done.returncode in {1, 2}
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
