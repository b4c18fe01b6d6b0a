"""The demo, shortened: real servers, real requests, figures counted from them, nothing left behind."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from controller.adapters.embedded.folder import FolderLock
from controller.demo.record import DemoRecord

pytestmark = pytest.mark.triton

SECONDS = "24"


def _processes_of(folder: Path) -> list[str]:
    """Command lines of processes that name the folder or work in it."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            inside = str((entry / "cwd").readlink()).startswith(str(folder))
        except OSError:
            continue
        if inside or str(folder) in command:
            found.append(command)
    return found


def _pids_of(folder: Path, program: str) -> list[int]:
    """Processes of a program that work in the folder or name it on their command line."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
            inside = str((entry / "cwd").readlink()).startswith(str(folder))
            if (inside or str(folder) in command) and (entry / "exe").readlink().name == program:
                found.append(int(entry.name))
    return found


def _demo(folder: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "controller", "demo", "--seconds", SECONDS, *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.timeout(280)
def test_the_demo_measures_both_runs_and_leaves_nothing_running(tmp_path: Path) -> None:
    with _demo(tmp_path, "--json", "out.json") as demo:
        said, _ = demo.communicate()

    assert 0 == demo.returncode, said
    summary = json.loads((tmp_path / "out.json").read_text())
    record = DemoRecord.read(tmp_path / "forecrest-report" / "record.json")
    assert [] == _processes_of(tmp_path)
    runs = (summary["with_prediction"], summary["without_prediction"])
    assert runs[0]["requests"] == runs[1]["requests"] > 500
    assert sorted(record.runs[0].sent_s) == sorted(record.runs[1].sent_s)
    assert runs[0]["within_slo_share"] > runs[1]["within_slo_share"]
    assert all(run["replica_seconds"] >= float(SECONDS) for run in runs)
    contract = record.runs[0].contract
    assert contract["replicas"] > 2
    assert contract["met_s"] is not None  # in time or not is for a machine that nothing else keeps busy
    assert not any("event" in move.sentence or "forecast" in move.sentence for move in record.runs[1].moves)
    page = (tmp_path / "forecrest-report" / "index.html").read_text()
    assert "What is real and what is simulated" in page


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_middle_ends_everything(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with _demo(tmp_path, "--no-baseline") as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "desired" in line:  # the load runs
                break
        demo.send_signal(number)
        rest = demo.stdout.read()

    assert code == demo.returncode, rest
    assert "Traceback" not in rest
    assert [] == _processes_of(tmp_path)


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("program", "problem"),
    [("valkey-server", "ended by itself with code -9"), ("tritonserver", "failed under the load")],
)
def test_a_server_that_dies_under_the_load_ends_the_demo_without_figures(
    tmp_path: Path, program: str, problem: str
) -> None:
    with _demo(tmp_path, "--no-baseline") as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "desired" in line:  # the load runs
                break
        for pid in _pids_of(tmp_path, program):
            os.kill(pid, signal.SIGKILL)
        rest = demo.stdout.read()

    assert 1 == demo.returncode, rest
    assert problem in " ".join(rest.split())
    assert "Report:" not in rest
    assert "Traceback" not in rest
    assert [] == _processes_of(tmp_path)


def test_a_second_demo_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / ".forecrest" / "demo"
    folder.mkdir(parents=True)
    lock = asyncio.run(FolderLock.acquire(folder))
    try:
        with _demo(tmp_path) as second:
            said, _ = second.communicate(timeout=100)
    finally:
        lock.release()

    assert 1 == second.returncode
    assert "is in use by the running process" in " ".join(said.split())
    assert not (folder / "with-prediction").exists()


def test_a_history_that_cannot_be_used_is_refused_before_anything_starts(tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("timestamp,value\n2026-01-01T00:00:00,1\n")

    with _demo(tmp_path, "--history", str(bad)) as demo:
        said, _ = demo.communicate()

    assert 1 == demo.returncode
    assert "has no time zone; add Z" in said
    assert not (tmp_path / ".forecrest" / "demo" / "with-prediction").exists()
