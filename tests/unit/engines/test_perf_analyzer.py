"""`perf_analyzer` in the search for the sustained rate.

The tool needs a newer C library than test machines have, so a script stands in for it: it takes the arguments that
the tool documents and writes a report as the tool does, columns and units included. What it measures is made up.
"""

import json
import math
import sys
from pathlib import Path

import pytest

from engines.perf_analyzer import PerfAnalyzer, read_report
from engines.profile import REQUESTS_MIN, Objective, TritonModel, find_sustained

SLO = Objective(latency_ms_p99=50.0)
# As documented for -f: one row per rate, latencies in microseconds.
HEADER = (
    "Request Rate,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,"
    "Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency"
)
ROW = "100,99.7,225,2148,64,206,11781,19,0,13891,18795,19753,21018"

SCRIPT = """\
#!{python}
import json, pathlib, sys
given = dict(zip(sys.argv[1:], [*sys.argv[2:], ""]))
pathlib.Path({log!r}).write_text(json.dumps(sys.argv[1:]))
rate = float(given["--request-rate-range"])
if rate > {breaks}:
    sys.exit("[ERROR] Failed to maintain requested inference load. Worker thread(s) failed")
p99 = 20_000 if rate <= {limit} else 900_000
row = [rate, rate, 225, 2148, 64, 206, 11781, 19, 0, p99 // 2, p99, p99, p99]
report = pathlib.Path(given["-f"])
report.write_text({header!r} + "\\n" + ",".join(map(str, row)) + "\\n")
"""


async def nothing() -> None:
    return


@pytest.fixture
def analyzer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PerfAnalyzer:
    """A stand-in on the PATH that sustains 130 requests per second and breaks beyond 1000."""
    tool = tmp_path / "perf_analyzer"
    log = str(tmp_path / "arguments.json")
    tool.write_text(SCRIPT.format(python=sys.executable, log=log, header=HEADER, limit=130, breaks=1000))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    inputs = [{"name": "image", "dims": ["3", "-1", "-1"]}, {"name": "user", "dims": ["1"]}]
    found = PerfAnalyzer.find("127.0.0.1:8001", TritonModel(None, "vision", [], {"input": inputs}))
    assert found is not None
    return found


async def test_the_search_runs_on_what_the_tool_reports(analyzer: PerfAnalyzer, tmp_path: Path) -> None:
    found = await find_sustained(nothing, SLO, qps_from=50.0, duration_s=1.0, measure=analyzer.measure)

    assert found.qps_max is not None
    assert 130 / 1.05 <= found.qps_max <= 130
    held = [point for point in found.points if point.meets(SLO)]
    assert {20.0} == {point.latency_ms_p99 for point in held}
    arguments = json.loads((tmp_path / "arguments.json").read_text())
    for name, value in (
        ("-m", "vision"),
        ("-u", "127.0.0.1:8001"),
        ("-i", "grpc"),
        ("--request-distribution", "poisson"),
        ("--request-count", str(REQUESTS_MIN)),
        ("--shape", "image:3,1,1"),
    ):
        assert value == arguments[arguments.index(name) + 1]
    assert "--async" in arguments
    assert 1 == arguments.count("--shape")


async def test_a_run_that_fails_is_a_point_that_does_not_hold(analyzer: PerfAnalyzer) -> None:
    point = await analyzer.measure(nothing, 2000.0, duration_s=1.0, seed=0)

    assert not point.meets(SLO)
    assert point.error_count == point.sent_count == 2000
    assert math.isnan(point.latency_ms_p99)
    assert "ended with code 1: [ERROR] Failed to maintain requested inference load" in point.first_error


async def test_a_tool_that_cannot_be_started_is_a_point_that_does_not_hold(analyzer: PerfAnalyzer) -> None:
    analyzer.tool.chmod(0o644)

    point = await analyzer.measure(nothing, 100.0, duration_s=1.0, seed=0)

    assert not point.meets(SLO)
    assert "perf_analyzer: cannot be started" in point.first_error


def test_a_report_is_read_by_its_columns(tmp_path: Path) -> None:
    report = tmp_path / "report.csv"
    report.write_text(f"{HEADER},Avg latency\n{ROW},14000\n")

    point = read_report(report, 100.0, 500)

    assert (99.7, 13.891, 19.753, 21.018) == (
        point.achieved_qps,
        point.latency_ms_p50,
        point.latency_ms_p95,
        point.latency_ms_p99,
    )
    assert point.meets(SLO)


def test_a_rate_that_was_not_reached_is_not_believed(tmp_path: Path) -> None:
    report = tmp_path / "report.csv"
    report.write_text(f"{HEADER}\n{ROW}\n")

    point = read_report(report, 200.0, 500)

    assert not point.meets(SLO)
    assert "reached 99.7 of 200.0" in point.first_error


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"{HEADER}\n",
        f"{HEADER}\n{ROW}\n{ROW}\n",
        "a,b\n1,2\n",
        f"{HEADER}\n100,99.7,225\n",
        f'{HEADER}\n"{"9" * 200_000}"\n',
    ],
    ids=["empty", "no row", "two rows", "other columns", "a row cut short", "a cell without an end"],
)
async def test_a_report_of_another_form_does_not_hold(
    analyzer: PerfAnalyzer, tmp_path: Path, text: str
) -> None:
    report = tmp_path / "report.csv"
    report.write_text(text)
    analyzer.tool.write_text(
        f'#!/bin/sh\nfor a in "$@"; do [ "$last" = -f ] && /bin/cp {report} "$a"; last=$a; done\nexit 0\n'
    )

    point = await analyzer.measure(nothing, 100.0, duration_s=1.0, seed=0)

    assert not point.meets(SLO)
    assert "report cannot be read" in point.first_error


def test_without_the_tool_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert PerfAnalyzer.find("127.0.0.1:8001", TritonModel(None, "m", [], {"input": []})) is None
