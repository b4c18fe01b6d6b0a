"""The backtest's table, JSON and drawing; what cannot be judged says so."""

import csv
import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from controller.cli.app import run_command


@pytest.fixture
def history(tmp_path: Path) -> Path:
    path = tmp_path / "h.csv"
    start = datetime(2026, 10, 1, tzinfo=UTC)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("timestamp", "value"))
        for hour in range(24 * 12):
            wave = 100.0 * (1.3 + math.sin(hour * 2 * math.pi / 24)) * (1.0 + 0.1 * math.sin(hour * 12.9898))
            writer.writerow(((start + timedelta(hours=hour)).isoformat(), wave))
    return path


def test_a_backtest_is_a_table_and_a_drawing(
    history: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    assert 0 == run_command(["backtest", str(history), "--folds", "3", "--plot"])

    text = capsys.readouterr().out
    assert "first day" in text
    assert "Ratio to seasonal naive" in text
    assert "days from the last origin" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_backtest_is_json_alone_when_asked(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == run_command(["backtest", str(history), "--folds", "2", "--plot", "--json"])

    found = json.loads(capsys.readouterr().out)
    assert [2, 2, 2] == [one["folds"] for one in found]


def test_a_history_too_short_to_judge_names_the_file(
    history: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history.write_text("".join(history.read_text().splitlines(keepends=True)[:20]))

    assert 1 == run_command(["backtest", str(history)])
    assert "one fold needs" in capsys.readouterr().err


def test_a_folder_is_judged_in_processes_and_a_bad_file_is_named(
    history: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = history.read_text().splitlines(keepends=True)
    (history.parent / "g.csv").write_text("".join(lines[:20]))
    (history.parent / "i.csv").write_text("".join(lines[:100]).replace("2026-10-02", "yesterday"))

    assert 1 == run_command(["backtest", str(history.parent), "--folds", "2", "--json"])

    told = capsys.readouterr()
    found = json.loads(told.out)
    assert ["g.csv", "h.csv", "i.csv"] == [Path(one["file"]).name for one in found]
    assert [0, 3, 0] == [len(one["results"]) for one in found]
    assert "one fold needs" in found[0]["reason"]
    assert "i.csv" in found[2]["reason"]
    assert "2 of 3 files could not be judged" in told.err


def test_an_empty_folder_says_what_it_should_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == run_command(["backtest", str(tmp_path)])
    assert "holds no file that ends in .csv" in capsys.readouterr().err


def test_a_file_is_called_by_its_name_whatever_is_in_it(
    history: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["[red]a.csv", "ein fäll.csv"]
    for name in names:
        (history.parent / name).write_text(history.read_text())
    history.unlink()
    monkeypatch.setattr(
        "forecaster.fleet.through_workers",
        lambda task, items, **_: ((k, task(i)) for k, i in enumerate(items)),
    )

    assert 0 == run_command(["backtest", str(history.parent), "--folds", "1", "--horizon", "1h"])

    text = capsys.readouterr().out
    assert all(name in text for name in names)
