"""The commands: a small folder from end to end, and input that cannot be used."""

import gzip
import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as listing
from benchmarks import accuracy
from benchmarks.report import MARKER_BEGIN, MARKER_END

START = datetime(2026, 3, 2, tzinfo=UTC)
PEERS_WITHOUT_LIBRARY = {"ours", "snaive-week", "snaive-day", "crane-fft"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One hourly series of three weeks and one of two days."""
    data = tmp_path / "data"
    data.mkdir()
    noise = np.random.default_rng(11)
    for name, days in (("shop_1h", 21), ("short_1h", 2)):
        with gzip.open(data / f"{name}.csv.gz", "wt") as file:
            file.write("timestamp,value\n")
            for hour in range(24 * days):
                value = 100 + 50 * np.sin(hour * np.pi / 12) + noise.normal(0, 5)
                file.write(f"{(START + timedelta(hours=hour)).isoformat()},{value:.3f}\n")
    return data


def test_a_run_writes_scores_and_pictures_and_names_what_it_left_out(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, pictures = tmp_path / "out.json", tmp_path / "plots"
    base = ["--data", str(folder), "--cache", str(tmp_path / "cache"), "--origins", "2", "--only", "ours"]

    page = tmp_path / "page.md"
    page.write_text(f"before\n{MARKER_BEGIN}\nlast time's tables\n{MARKER_END}\nafter\n")

    status = accuracy.main([*base, "--json", str(result), "--plots", str(pictures), "--update", str(page)])

    assert status == 0
    printed = capsys.readouterr().out
    assert "Left out, shorter than 10 days: short_1h" in printed
    assert "Left out of shop_1h, neither run nor in the cache: mstl" in printed
    assert max(len(line) for line in printed.splitlines()) <= 100
    document = json.loads(result.read_text())
    (series,) = document["series"]
    assert series["name"] == "shop_1h"
    assert set(series["methods"]) == PEERS_WITHOUT_LIBRARY
    assert series["ours_over_mstl"]["day"] is None  # MSTL neither ran nor was cached
    assert 0 < series["methods"]["ours"]["day"] < 1
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "last time" not in text
    assert "| shop_1h |" in text
    assert {"shop_1h.png"} == {path.name for path in pictures.iterdir()}


def test_an_empty_folder_is_an_error_that_says_what_to_give(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert accuracy.main(["--data", str(tmp_path)]) == 2
    assert "give the folder of the series to --data" in capsys.readouterr().err


def test_an_unknown_method_is_refused_with_the_known_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        accuracy.main(["--data", str(tmp_path), "--only", "crystal-ball"])

    assert stopped.value.code == 2
    assert "mstl" in capsys.readouterr().err


def test_the_list_finds_the_accuracy_benchmark_and_unknown_names_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert listing.run([]) == 0
    assert "python -m benchmarks.accuracy" in capsys.readouterr().out
    assert listing.run(["nothing"]) == 2
    assert "there are: accuracy" in capsys.readouterr().err


def test_a_module_without_main_is_not_a_benchmark(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text('"""Help."""\n')
    (tmp_path / "speed.py").write_text(
        '"""Measure speed.\n\nMore."""\n\n\ndef main() -> int:\n    return 0\n'
    )

    assert listing.available(tmp_path) == {"speed": "Measure speed."}


APART = """
import sys
from benchmarks.__main__ import run_apart
sys.exit(run_apart([sys.executable, "-c", sys.argv[1]]))
"""
BENCHMARK = """
import signal, sys
def end(number, _):
    print("puts away", flush=True)
    sys.stdin.readline()
    print("is gone", flush=True)
    sys.exit(128 + number)
signal.signal(signal.SIGINT, end)
signal.signal(signal.SIGTERM, end)
print("runs", flush=True)
signal.pause()
"""


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_a_benchmark_that_is_ended_is_waited_for_until_it_has_put_its_servers_away(
    by: signal.Signals,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", APART, BENCHMARK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert "runs\n" == process.stdout.readline()
        if by == signal.SIGINT:
            os.killpg(process.pid, by)  # as a terminal does
        else:
            process.send_signal(by)
        assert "puts away\n" == process.stdout.readline()
        process.stdin.write("\n")
        process.stdin.flush()

        assert "is gone\n" == process.stdout.readline()
        assert 128 + by == process.wait()


def test_quick_stops_at_a_benchmark_that_was_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    codes = iter([1, 130, 0, 0])

    def apart(command: list[str]) -> int:
        ran.append(command[3])
        return next(codes)

    monkeypatch.setattr(listing, "run_apart", apart)

    assert 130 == listing.run(["--quick"])
    assert list(listing.QUICK)[:2] == ran
