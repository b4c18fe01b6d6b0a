"""Parquet means what the same CSV means; bad rows are put aside only when asked for, each with its place."""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from controller.history import REJECTS_MAX, HistoryFileError, Reject, read_history

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
TIMES = [START, START + HOUR, START + 2 * HOUR]


def write(path: Path, **columns: list[Any]) -> Path:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is an extra; pip install 'forecrest[parquet]'")
    from pyarrow import parquet

    parquet.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize(
    "times", [TIMES, [at.isoformat() for at in TIMES]], ids=["timestamps", "ISO 8601 text"]
)
def test_rows_are_read_with_their_step(tmp_path: Path, times: list[Any]) -> None:
    found = read_history(write(tmp_path / "h.parquet", value=[1, 2.5, 0], timestamp=times, other=[1, 2, 3]))

    assert [(row.at, row.value) for row in found.rows] == [
        (TIMES[0], 1.0),
        (TIMES[1], 2.5),
        (TIMES[2], 0.0),
    ]
    assert found.step == HOUR


def test_offsets_become_utc(tmp_path: Path) -> None:
    shanghai = [datetime.fromisoformat(f"2026-01-01T0{hour}:00:00+08:00") for hour in (8, 9)]
    found = read_history(write(tmp_path / "h.pq", timestamp=shanghai, value=[1.0, 2.0]))

    assert [row.at for row in found.rows] == TIMES[:2]


@pytest.mark.parametrize(
    ("columns", "remedy"),
    [
        ({"timestamp": TIMES, "qps": [1, 2, 3]}, "has no column value, but timestamp, qps"),
        (
            {"timestamp": [at.replace(tzinfo=None) for at in TIMES], "value": [1, 2, 3]},
            "row 1: timestamp '2026-01-01T00:00:00' has no time zone",
        ),
        ({"timestamp": TIMES, "value": [1.0, None, 3.0]}, "row 2: value '' is not a number"),
        ({"timestamp": TIMES, "value": [1.0, float("nan"), 3.0]}, "row 2: value nan is not finite"),
        ({"timestamp": TIMES, "value": [1.0, 2.0, -3.0]}, "row 3: value -3.0 is negative"),
        ({"timestamp": [TIMES[0], None, TIMES[2]], "value": [1, 2, 3]}, "row 2: timestamp '' is not ISO"),
        ({"timestamp": TIMES[::-1], "value": [1, 2, 3]}, "row 2: timestamp 2026-01-01T01:00:00+00:00 does"),
    ],
)
def test_a_bad_file_is_refused_by_row_and_remedy(
    tmp_path: Path, columns: dict[str, list[Any]], remedy: str
) -> None:
    with pytest.raises(HistoryFileError) as refused:
        read_history(write(tmp_path / "h.parquet", **columns))

    assert remedy in str(refused.value)


def test_what_is_no_parquet_says_so(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "h.parquet"
    path.write_text("timestamp,value\n")
    for missing in (path, tmp_path / "none.parquet"):
        with pytest.raises(HistoryFileError, match="cannot be read as Parquet"):
            read_history(missing)


def test_without_pyarrow_the_error_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # None is how Python itself marks a module that cannot be imported.
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(HistoryFileError, match=r"pip install 'forecrest\[parquet\]'"):
        read_history(tmp_path / "h.parquet")


def test_bad_rows_are_put_aside_when_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "h.csv"
    path.write_text(
        "timestamp,value\n2026-01-01T00:00:00Z,1\n2026-01-01T01:00:00Z,many\n2026-01-01T02:00:00Z,3\nx\n"
    )
    bad: list[Reject] = []
    found = read_history(path, bad)

    assert [row.value for row in found.rows] == [1.0, 3.0]
    assert [(reject.place, reject.cells) for reject in bad] == [
        ("line 3", ("2026-01-01T01:00:00Z", "many")),
        ("line 5", ("x",)),
    ]
    assert bad[0].problem.startswith("value 'many' is not a number")


def test_a_file_of_nothing_but_bad_rows_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "h.csv"
    path.write_text("timestamp,value\n" + "x,1\n" * (REJECTS_MAX + 1))
    with pytest.raises(HistoryFileError, match=f"More than {REJECTS_MAX} rows are bad"):
        read_history(path, [])
