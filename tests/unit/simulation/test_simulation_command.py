"""``python -m controller.simulation``: flags, JSON, files and errors."""

import json
from pathlib import Path

import pytest

from controller.simulation.__main__ import main


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    rows = [f"2026-01-01T{m // 60:02}:{m % 60:02}:00Z,{100 + 50 * (m % 30)}" for m in range(180)]
    path.write_text("timestamp,value\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


def test_json_lists_one_object_per_policy(trace_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--trace", str(trace_file), "--policy", "hpa", "--policy", "oracle", "--json"])

    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert [row["policy"] for row in found] == ["hpa", "oracle"]
    assert found[1]["violation_share"] < 1e-4


def test_the_trace_keeps_its_size_when_capacity_is_given(
    trace_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--trace", str(trace_file), "--policy", "static-peak", "--json", "--capacity-qps", "500"])

    assert json.loads(capsys.readouterr().out)[0]["peak_replicas"] == 4


def test_timeline_and_plot_are_written(trace_file: Path, tmp_path: Path) -> None:
    line, plot = tmp_path / "line.csv", tmp_path / "plot.png"

    code = main(["--trace", str(trace_file), "--policy", "kpa", "--timeline", str(line), "--plot", str(plot)])

    assert code == 0
    assert len(line.read_text(encoding="utf-8").splitlines()) == 1 + 180 * 4
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--policy", "nobody"], "policy: 'nobody' is unknown"),
        (["--capacity-qps", "0"], "--capacity-qps: 0.0 must be a positive number"),
        (["--cold-start-s", "-1"], "--cold-start-s"),
        (
            ["--events", "/does/not/exist.csv"],
            "/does/not/exist.csv: No such file or directory; check the path",
        ),
        (["--trace", "/does/not/exist.csv.gz"], "/does/not/exist.csv.gz: No such file or directory; check"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_two(
    trace_file: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert main(["--trace", str(trace_file), *flags]) == 2

    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_help_names_the_command_and_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])

    said = capsys.readouterr().out
    assert said.startswith("usage: forecrest simulate ")
    assert "Replay a traffic trace" in said


def test_the_table_is_whole_at_eighty_columns(
    trace_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    main(["--trace", str(trace_file), "--policy", "keda-cron+hpa"])

    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == [
        "policy",
        "violations",
        "p99",
        "wait",
        "replica-hours",
        "changes",
        "flaps",
        "peak",
    ]
    assert row.startswith("keda-cron+hpa ")
