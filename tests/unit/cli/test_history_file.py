"""A history file is taken whole or not at all, and every refusal names line and remedy."""

import gzip
import io
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.history import (
    History,
    HistoryFileError,
    HistoryRow,
    Unit,
    read_history,
    to_samples,
    write_history,
)

START = datetime(2026, 1, 1, tzinfo=UTC)


def _write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(("timestamp,value", *lines)) + "\n")
    return path


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("2026-01-01T02:00:00,5", "line 4: timestamp '2026-01-01T02:00:00' has no time zone; add Z"),
        ("2026-01-01T02:00:00Z,nan", "line 4: value nan is not finite; leave the row out"),
        ("2026-01-01T02:00:00Z,inf", "line 4: value inf is not finite"),
        ("2026-01-01T02:00:00Z,-1", "line 4: value -1 is negative; demand is at least 0"),
        ("2026-01-01T02:00:00Z,many", "line 4: value 'many' is not a number"),
        ("2026-01-01T02:00:00Z,", "line 4: value '' is not a number; leave the row out"),
        ("2026-01-01T02:00:00Z,1e308", "line 4: value 1e308 is more than 1e+10; check the column"),
        ("0001-01-01T00:00:00+14:00,5", "line 4: timestamp '0001-01-01T00:00:00+14:00' lies outside"),
        ("yesterday,5", "line 4: timestamp 'yesterday' is not ISO 8601; write it as"),
        ("2026-01-01T02:00:00Z,5,6", "line 4: has 3 columns; write timestamp,value"),
        (
            "2026-01-01T01:00:00Z,5",
            "line 4: timestamp 2026-01-01T01:00:00Z does not come after the row before",
        ),
    ],
)
def test_a_malformed_row_names_line_and_remedy(tmp_path: Path, line: str, remedy: str) -> None:
    path = _write(tmp_path / "h.csv", "2026-01-01T00:00:00Z,1", "2026-01-01T01:00:00Z,2", line)

    with pytest.raises(HistoryFileError) as refused:
        read_history(path)

    assert remedy in str(refused.value)
    assert "nothing was imported" in str(refused.value)


def test_several_problems_are_told_at_once_and_the_rest_counted(tmp_path: Path) -> None:
    path = _write(tmp_path / "h.csv", *["x,1"] * 12)

    with pytest.raises(HistoryFileError, match=r"and 7 more") as refused:
        read_history(path)

    assert 5 == len(refused.value.problems)


@pytest.mark.parametrize(
    ("content", "remedy"),
    [
        (b"", "It is empty; the first line must be timestamp,value"),
        (b"time,qps\n", "line 1: is 'time,qps'; the header must be timestamp,value"),
        (b"timestamp,value\n2026-01-01T00:00:00Z,1\n", "fewer than two rows"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"timestamp,value\n2026-01-01T00:00:00Z,1\n2026-01-09T00:00:00Z,1\n", "at least one row a day"),
        (b"timestamp,value\n2026-01-01T00:00:00Z,1\n2026-01-01T00:01:30Z,1\n", "use whole minutes"),
        (
            b"timestamp,value\n2026-01-01T00:00:00Z,1\n2026-01-01T00:02:00Z,1\n2026-01-01T00:05:00Z,1\n",
            "off the grid",
        ),
        (b"timestamp,value\n2026-01-01T00:00:30Z,1\n2026-01-01T00:01:30Z,1\n", "not the start of a minute"),
    ],
)
def test_a_file_that_is_no_history_is_refused(tmp_path: Path, content: bytes, remedy: str) -> None:
    path = tmp_path / "h.csv"
    path.write_bytes(content)

    with pytest.raises(HistoryFileError, match=remedy):
        read_history(path)


def test_a_missing_and_a_broken_file_are_refused(tmp_path: Path) -> None:
    broken = tmp_path / "h.csv.gz"
    broken.write_bytes(gzip.compress(b"timestamp,value\n2026-01-01T00:00:00Z,1\n")[:-9])

    with pytest.raises(HistoryFileError, match="no such file"):
        read_history(tmp_path / "none.csv")
    with pytest.raises(HistoryFileError, match="cannot be read"):
        read_history(broken)


def test_offsets_gaps_blank_lines_and_a_byte_order_mark_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "h.csv.gz"
    text = (
        "\ufefftimestamp,value\r\n2026-01-01T08:00:00+08:00,1\r\n2026-01-01T08:05:00+08:00,2\r\n"
        "\r\n2026-01-01T08:15:00+08:00,3\r\n"
    )
    path.write_bytes(gzip.compress(text.encode()))

    history = read_history(path)

    assert timedelta(minutes=5) == history.step
    assert [START, START + timedelta(minutes=5), START + timedelta(minutes=15)] == [
        row.at for row in history.rows
    ]


def test_an_hour_of_mean_rate_becomes_sixty_minutes_of_it() -> None:
    samples = to_samples(History((HistoryRow(START, 2.0),), timedelta(hours=1)), "w", Unit.QPS)

    assert 60 == len(samples)
    assert {120.0} == {sample.demand_count for sample in samples}


def test_a_count_per_bucket_is_spread_over_its_minutes() -> None:
    samples = to_samples(History((HistoryRow(START, 300.0),), timedelta(minutes=5)), "w", Unit.COUNT)

    assert [60.0] * 5 == [sample.demand_count for sample in samples]


def test_seconds_are_gathered_into_minutes_with_their_coverage() -> None:
    rows = tuple(HistoryRow(START + timedelta(seconds=s), 3.0) for s in range(90))
    samples = to_samples(History(rows, timedelta(seconds=1)), "w", Unit.QPS)

    assert [(180.0, 1.0), (90.0, 0.5)] == [(s.demand_count, s.coverage) for s in samples]


@given(
    values=st.lists(st.floats(0, 1e9), min_size=2, max_size=50),
    minutes=st.sampled_from([1, 5, 15, 60]),
)
def test_requests_add_up_whatever_the_step(values: list[float], minutes: int) -> None:
    step = timedelta(minutes=minutes)
    history = History(tuple(HistoryRow(START + step * i, v) for i, v in enumerate(values)), step)
    total = sum(values) * step.total_seconds()

    assert sum(s.demand_count for s in to_samples(history, "w", Unit.QPS)) == pytest.approx(total)
    assert sum(s.demand_count for s in to_samples(history, "w", Unit.COUNT)) == pytest.approx(sum(values))


def test_what_is_exported_can_be_imported(tmp_path: Path) -> None:
    file = io.StringIO()
    points = [(START + timedelta(minutes=i), None if i == 2 else i * 1.5) for i in range(5)]

    assert 4 == write_history(file, points)

    path = tmp_path / "h.csv"
    path.write_text(file.getvalue())
    assert [(at, qps) for at, qps in points if qps is not None] == [
        (row.at, row.value) for row in read_history(path).rows
    ]
