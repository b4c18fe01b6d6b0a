"""The command line against a real controller on real servers; replicas are not started (dry run)."""

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from controller.adapters.clock import SystemClock
from controller.cli.app import run_command

WORKLOAD = """
name: recommender
model_name: recommender
profiles: [{engine: two_tower, gpu_type: cpu, qps_max: 60}]
max_replicas: 8
"""
NOW = SystemClock().now().replace(minute=0, second=0, microsecond=0)
HOURS = 24 * 10

Cli = Callable[..., str]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`forecrest up` in a folder of its own: (address, process)."""
    folder = tmp_path_factory.mktemp("up")
    environment = {**os.environ, "FORECREST_ACTUATOR": "dry_run", "FORECREST_TICK_PERIOD_S": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "controller", "up", "--bind", "127.0.0.1:0"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # comes when it serves, or as an empty line when it ended
        state = json.loads((folder / ".forecrest" / "runtime.json").read_text())
        yield state["address"], process
        process.send_signal(signal.SIGINT)
        assert 130 == process.wait(60)
    assert not (folder / ".forecrest" / "runtime.json").exists()


@pytest.fixture
def cli(
    server: tuple[str, subprocess.Popen[str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Cli:
    """Run a command against the server; returns its output, or its errors if it should fail."""
    monkeypatch.setenv("FORECREST_ADDRESS", server[0])
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments: str, code: int = 0) -> str:
        ended = run_command(list(arguments))
        captured = capsys.readouterr()
        assert code == ended, captured.err
        return captured.out if code == 0 else captured.err

    return call


@pytest.fixture
def workload(cli: Cli, tmp_path: Path) -> str:
    path = tmp_path / "w.yaml"
    path.write_text(WORKLOAD)
    cli("workloads", "apply", "-f", str(path))
    return "recommender"


@pytest.fixture
def history_file(tmp_path: Path) -> Path:
    path = tmp_path / "h.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("timestamp", "value"))
        for hour in range(HOURS):
            writer.writerow(((NOW - timedelta(hours=HOURS - hour)).isoformat(), 100 + hour % 24))
    return path


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_applying_a_file_twice_changes_nothing_the_second_time(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(WORKLOAD.replace("name: recommender\n", "name: twice\n", 1))

    first, second = (json.loads(cli("workloads", "apply", "-f", str(path), "--json")) for _ in range(2))
    path.write_text(path.read_text().replace("max_replicas: 8", "max_replicas: 9"))
    third = json.loads(cli("workloads", "apply", "-f", str(path), "--json"))

    assert ["created", "unchanged", "changed"] == [r[0]["action"] for r in (first, second, third)]
    assert 9 == third[0]["workload"]["max_replicas"]
    assert "twice" in cli("workloads", "list")
    cli("workloads", "delete", "twice")
    assert "twice" not in cli("workloads", "list")


def test_one_bad_workload_keeps_the_whole_file_out(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    good = WORKLOAD.replace("name: recommender\n", "name: good\n", 1)
    bad = WORKLOAD.replace("name: recommender\n", "name: bad\n", 1).replace(
        "max_replicas: 8", "max_replicas: 0"
    )
    path.write_text(f"{good}---{bad}")

    said = cli("workloads", "apply", "-f", str(path), code=1)

    assert "max_replicas" in said
    assert "RESOURCE_NOT_FOUND" in cli("workloads", "get", "good", code=1)


def test_history_comes_back_as_it_was_imported(cli: Cli, workload: str, history_file: Path) -> None:
    said = json.loads(cli("history", "import", str(history_file), "-w", workload, "--json"))
    exported = cli("history", "export", "-w", workload, "--step", "1h", "--start", f"-{HOURS + 5}h")

    assert HOURS * 60 == said["minutes"]
    imported = {
        datetime.fromisoformat(r["timestamp"]): float(r["value"]) for r in _rows(history_file.read_text())
    }
    back = {datetime.fromisoformat(r["timestamp"]): float(r["value"]) for r in _rows(exported)}
    assert imported == pytest.approx(back)


def test_a_file_with_one_bad_row_leaves_nothing_behind(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(WORKLOAD.replace("name: recommender\n", "name: untouched\n", 1))
    cli("workloads", "apply", "-f", str(path))
    bad = tmp_path / "bad.csv"
    rows = [f"{(NOW - timedelta(hours=9 - i)).isoformat()},{'nan' if i == 7 else 5}" for i in range(8)]
    bad.write_text("\n".join(["timestamp,value", *rows]))

    said = cli("history", "import", str(bad), "-w", "untouched", code=1)

    assert "line 9: value nan is not finite" in said
    assert [] == _rows(cli("history", "export", "-w", "untouched", "--start", "-1d"))


def test_history_of_an_unknown_workload_or_of_the_future_is_refused(
    cli: Cli, workload: str, history_file: Path, tmp_path: Path
) -> None:
    future = tmp_path / "f.csv"
    rows = [f"{(NOW + timedelta(days=2, hours=i)).isoformat()},1" for i in range(3)]
    future.write_text("\n".join(["timestamp,value", *rows]))

    assert "nosuch does not exist" in cli("history", "import", str(history_file), "-w", "nosuch", code=1)
    assert "lies in the future" in cli("history", "import", str(future), "-w", workload, code=1)


def _event(cli: Cli, name: str, *more: str) -> dict[str, Any]:
    options = ("-w", "recommender", "--start", "+3h", "--end", "+5h", "--time-zone", "UTC")
    made: dict[str, Any] = json.loads(
        cli("events", "create", name, *options, "--peak-qps", "200", *more, "--json")
    )
    return made


def test_an_event_is_registered_previewed_changed_and_cancelled(cli: Cli, workload: str) -> None:
    made = _event(cli, "promo", "--label", "team=growth", "--ramp", "5m")
    preview = json.loads(cli("events", "preview", "promo", "--peak-qps", "100000", "--json"))
    cli("events", "update", "promo", "--peak-qps", "300", "--name", "Big day")
    changed = json.loads(cli("events", "get", "promo", "--json"))
    cli("events", "cancel", "promo", "--reason", "rain")

    assert {"team": "growth"} == made["labels"]
    assert preview["unmet_replicas"] > 0
    assert (2, 300.0, "Big day", "300s") == (
        changed["revision"],
        changed["expected_peak_qps"],
        changed["display_name"],
        changed["ramp"],
    )
    states = {e["name"]: e["state"] for e in json.loads(cli("events", "list", "--json"))}
    assert "EVENT_STATE_CANCELLED" == states["events/promo"]


def test_a_dry_run_registers_nothing(cli: Cli, workload: str) -> None:
    _event(cli, "ghost", "--dry-run")

    assert "RESOURCE_NOT_FOUND" in cli("events", "get", "ghost", code=1)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (("--start", "+3h", "--end", "+3h"), "--end: must be after --start"),
        (("--start", "-3h", "--end", "-2h"), "--end: must be in the future"),
        (("--start", "+1h", "--end", "+2h", "--time-zone", "Nowhere/City"), "--time-zone: "),
        (("--start", "+1h", "--end", "+2h", "-w", "nosuch"), "nosuch"),
    ],
    ids=["end at start", "past", "zone", "workload"],
)
def test_an_event_that_makes_no_sense_names_the_field(
    cli: Cli, workload: str, options: tuple[str, ...], remedy: str
) -> None:
    usual = ("-w", workload) if "-w" not in options else ()
    zone = ("--time-zone", "UTC") if "--time-zone" not in options else ()

    said = cli("events", "create", "odd", *usual, *zone, *options, "--peak-qps", "200", code=1)

    assert remedy in said
    assert "RESOURCE_NOT_FOUND" in cli("events", "get", "odd", code=1)


def test_decisions_are_listed_and_explained(
    server: tuple[str, subprocess.Popen[str]], cli: Cli, workload: str
) -> None:
    """The stream gives the first decision when it is made, so nothing here waits for a time."""
    with subprocess.Popen(
        [sys.executable, "-m", "controller", "decisions", "watch", "-w", workload, "--json"],
        env={**os.environ, "FORECREST_ADDRESS": server[0]},
        stdout=subprocess.PIPE,
        text=True,
    ) as watching:
        assert watching.stdout is not None
        decision = json.loads(watching.stdout.readline())
        watching.send_signal(signal.SIGINT)
        assert 130 == watching.wait(30)

    assert f"workloads/{workload}" == decision["workload"]
    assert (
        decision["sentence"]
        == json.loads(cli("decisions", "show", decision["name"], "--json"))["decision"]["sentence"]
    )
    assert "MAX" in cli("decisions", "show", decision["name"])
    assert 1 <= len(json.loads(cli("decisions", "list", "-w", workload, "--json")))


def test_doctor_finds_the_running_controller(cli: Cli) -> None:
    found = {f["check"]: f for f in json.loads(cli("doctor", "--json"))}

    assert found["controller"]["ok"] is True
    assert all(f["ok"] is not False for f in found.values()), found
