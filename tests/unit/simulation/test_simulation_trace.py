"""Traces and events are read strictly: unknown stays unknown, and errors name line and remedy."""

import gzip
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from controller.simulation.trace import TraceError, read_events, read_trace


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_missing_buckets_stay_unknown(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "t.csv",
        "timestamp,value\n2026-01-01T00:00:00Z,1\n2026-01-01T00:01:00Z,2\n2026-01-01T00:03:00Z,4\n",
    )

    trace = read_trace(path)

    assert trace.step_s == 60
    assert trace.start_at == datetime(2026, 1, 1, tzinfo=UTC)
    np.testing.assert_array_equal([1.0, 2.0, np.nan, 4.0], trace.qps)


def test_counts_become_rates_and_gzip_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("timestamp,value\n2026-01-01T00:00:00+01:00,120\n2026-01-01T00:01:00+01:00,60\n")

    trace = read_trace(path, "count")

    assert trace.name == "t"
    assert trace.start_at == datetime(2025, 12, 31, 23, tzinfo=UTC)
    assert trace.qps.tolist() == [2.0, 1.0]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("2026-01-01T00:00:00,1\n2026-01-01T00:01:00,1\n", "has no zone"),
        ("2026-01-01T00:01:00Z,1\n2026-01-01T00:00:00Z,1\n", "must ascend"),
        ("2026-01-01T00:00:00Z,1\n2026-01-01T00:00:00Z,1\n", "must ascend"),
        ("2026-01-01T00:00:00Z,1\n2026-01-01T00:01:00Z,1\n2026-01-01T00:02:30Z,1\n", "grid"),
        ("2026-01-01T00:00:00Z,-1\n2026-01-01T00:01:00Z,1\n", "line 2"),
        ("2026-01-01T00:00:00Z,nan\n2026-01-01T00:01:00Z,1\n", "line 2"),
        ("2026-01-01T00:00:00Z,x\n2026-01-01T00:01:00Z,1\n", "not a number"),
        ("yesterday,1\n2026-01-01T00:01:00Z,1\n", "not an ISO 8601 time"),
        ("2026-01-01T00:00:00Z,1\n", "show no step"),
    ],
)
def test_a_trace_that_cannot_be_replayed_is_refused(tmp_path: Path, rows: str, message: str) -> None:
    path = _write(tmp_path / "t.csv", "timestamp,value\n" + rows)

    with pytest.raises(TraceError, match=message):
        read_trace(path)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="column 'value' is missing"):
        read_trace(_write(tmp_path / "t.csv", "timestamp,count\n"))


def test_events_are_sorted_and_keep_expectations(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "e.csv",
        "start,end,name,kind,expected_peak_qps\n"
        "2026-01-02T00:00:00Z,2026-01-02T01:00:00Z,late,match,\n"
        "2026-01-01T00:00:00Z,2026-01-01T01:00:00Z,early,sale,50\n",
    )

    events = read_events(path)

    assert [e.name for e in events] == ["early", "late"]
    assert [e.expected_peak_qps for e in events] == [50.0, None]


def test_an_event_that_ends_before_it_starts_is_refused(tmp_path: Path) -> None:
    path = _write(tmp_path / "e.csv", "start,end\n2026-01-02T00:00:00Z,2026-01-02T00:00:00Z\n")

    with pytest.raises(TraceError, match="line 2: end must lie after start"):
        read_events(path)


def test_scaling_keeps_the_shape(tmp_path: Path) -> None:
    path = _write(tmp_path / "t.csv", "timestamp,value\n2026-01-01T00:00:00Z,1\n2026-01-01T00:01:00Z,4\n")

    assert read_trace(path).scaled_to_peak(100.0).qps.tolist() == [25.0, 100.0]


def test_a_silent_trace_has_no_shape_to_scale(tmp_path: Path) -> None:
    path = _write(tmp_path / "t.csv", "timestamp,value\n2026-01-01T00:00:00Z,0\n2026-01-01T00:01:00Z,0\n")

    with pytest.raises(TraceError, match="zero throughout"):
        read_trace(path).scaled_to_peak(1.0)
