"""History as CSV or Parquet: ``timestamp,value`` rows in, minutes of demand out, and back as CSV.

Promises: a file is checked to its end before the first row is used, so nothing is ever half imported; every
problem names its line and the remedy; bad rows are put aside only for a caller who asks for them. Refuses naive
timestamps, rows off the file's own grid, repeated or descending timestamps, and values that are not finite and
at least zero. An absent row stays unknown. Parquet needs pyarrow, which is not installed by default.
Called by ``forecrest history`` and by the demo.
"""

import csv
import gzip
import math
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

from controller.core.resources import TrafficSample

HEADER = ("timestamp", "value")
MINUTE = timedelta(minutes=1)
STEP_MAX = timedelta(days=1)
ROWS_MAX = 5_000_000
REJECTS_MAX = 100_000
PROBLEMS_MAX = 5
PARQUET = frozenset({".parquet", ".pq"})
VALUE_MAX = 1e10  # as requests per second of a whole minute still within what the store takes


class Unit(StrEnum):
    """What ``value`` counts."""

    QPS = "qps"  # mean requests per second of the bucket
    COUNT = "count"  # requests in the bucket


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One bucket: its start, aware UTC, and its value in the file's unit."""

    at: datetime
    value: float


@dataclass(frozen=True, slots=True)
class History:
    """A checked file: rows in ascending order on a grid of ``step``."""

    rows: tuple[HistoryRow, ...]
    step: timedelta

    @property
    def end_at(self) -> datetime:
        """End of the last bucket."""
        return self.rows[-1].at + self.step


@dataclass(frozen=True, slots=True)
class Reject:
    """A row that was put aside: where it stands, what it holds, and what is wrong with it."""

    place: str  # "line 17" of a CSV file, "row 17" of a Parquet file
    cells: tuple[str, ...]
    problem: str


class HistoryFileError(ValueError):
    """The file cannot be imported; the message names lines and remedies."""

    def __init__(self, path: Path, problems: Sequence[str], more: int = 0) -> None:
        self.problems = tuple(problems)
        rest = [f"… and {more} more"] if more else []
        super().__init__("\n".join([f"{path}: nothing was imported.", *problems, *rest]))


@contextmanager
def _opened(path: Path) -> Generator[TextIO]:
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            yield file
    except FileNotFoundError:
        raise HistoryFileError(path, ["There is no such file; check the path."]) from None
    except UnicodeDecodeError as error:
        raise HistoryFileError(path, [f"It is not UTF-8 text ({error.reason}); save it as CSV."]) from None
    except (OSError, EOFError, zlib.error) as error:
        raise HistoryFileError(path, [f"It cannot be read: {error}."]) from None


def read_history(path: Path, rejects: list[Reject] | None = None) -> History:
    """Read and check a file: Parquet by its name's ending, else CSV, gzipped if the name ends in ``.gz``.

    With ``rejects``, bad rows are appended to it and left out, instead of refusing the file.

    Raises:
        HistoryFileError: up to five problems, each with its line and the remedy.
    """
    rows: list[HistoryRow] = []
    problems: list[str] = []
    more = 0
    for place, cells in _parquet_rows(path) if path.suffix.lower() in PARQUET else _csv_rows(path):
        problem = _read_row(cells, rows)
        if problem is None:
            continue
        if rejects is not None:
            rejects.append(Reject(place, tuple(cells), problem))
            if len(rejects) > REJECTS_MAX:
                raise HistoryFileError(path, [f"More than {REJECTS_MAX} rows are bad, the last: {problem}"])
        elif len(problems) < PROBLEMS_MAX:
            problems.append(f"{place}: {problem}")
        else:
            more += 1
    if problems:
        raise HistoryFileError(path, problems, more)
    return History(tuple(rows), _step(path, rows))


def _csv_rows(path: Path) -> Iterator[tuple[str, list[str]]]:
    with _opened(path) as file:
        reader = csv.reader(file)
        try:
            _check_header(path, next(reader, None))
            for cells in reader:
                yield f"line {reader.line_num}", cells
        except csv.Error as error:
            problem = f"line {reader.line_num}: {error}; save the file as plain CSV."
            raise HistoryFileError(path, [problem]) from None


def _parquet_rows(path: Path) -> Iterator[tuple[str, list[str]]]:
    try:
        # An extra, without types; only Parquet needs it.
        import pyarrow as pa  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: PLC0415
        from pyarrow import parquet  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: PLC0415
    except ImportError:
        remedy = "Parquet needs pyarrow; install it with: pip install 'forecrest[parquet]'."
        raise HistoryFileError(path, [remedy]) from None
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            missing = [name for name in HEADER if name not in file.schema_arrow.names]
            if missing:
                found = ", ".join(file.schema_arrow.names)[:200]
                raise HistoryFileError(path, [f"has no column {missing[0]}, but {found}; name it so."])
            for batch in file.iter_batches(columns=list(HEADER)):
                for at, value in zip(*(batch.column(name).to_pylist() for name in HEADER), strict=True):
                    number += 1
                    yield f"row {number}", [_cell(at), _cell(value)]
    except (pa.ArrowException, OSError) as error:
        said = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise HistoryFileError(path, [f"It cannot be read as Parquet: {said}."]) from None


def _cell(value: Any) -> str:  # noqa: ANN401 - whatever Parquet holds
    if value is None:
        return ""
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _check_header(path: Path, cells: Sequence[str] | None) -> None:
    if cells is None:
        raise HistoryFileError(path, ["It is empty; the first line must be timestamp,value."])
    if tuple(cell.strip() for cell in cells) != HEADER:
        shown = ",".join(cells)[:60]
        raise HistoryFileError(path, [f"line 1: is {shown!r}; the header must be timestamp,value."])


def _read_row(cells: Sequence[str], rows: list[HistoryRow]) -> str | None:
    """Append the row, or say what is wrong with it."""
    if not cells:
        return None  # a blank line, as editors leave at the end
    if len(rows) >= ROWS_MAX:
        return f"has more than {ROWS_MAX} rows; split the file."
    if len(cells) != len(HEADER):
        return f"has {len(cells)} columns; write timestamp,value."
    try:
        row = HistoryRow(_timestamp(cells[0].strip()), _value(cells[1].strip()))
    except ValueError as error:
        return str(error)
    if rows and row.at <= rows[-1].at:
        return f"timestamp {cells[0].strip()} does not come after the row before; sort the file and drop duplicates."
    rows.append(row)
    return None


def _timestamp(cell: str) -> datetime:
    try:
        at = datetime.fromisoformat(cell)
    except ValueError:
        raise ValueError(
            f"timestamp {cell[:40]!r} is not ISO 8601; write it as 2026-11-11T00:00:00Z."
        ) from None
    if at.tzinfo is None:
        raise ValueError(f"timestamp {cell!r} has no time zone; add Z or an offset such as +08:00.")
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"timestamp {cell!r} lies outside the years 1 to 9999; correct it.") from None


def _value(cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        raise ValueError(
            f"value {cell[:40]!r} is not a number; leave the row out if it is unknown."
        ) from None
    if not math.isfinite(value):
        raise ValueError(f"value {cell} is not finite; leave the row out if it is unknown.")
    if value < 0:
        raise ValueError(f"value {cell} is negative; demand is at least 0.")
    if value > VALUE_MAX:
        raise ValueError(f"value {cell} is more than {VALUE_MAX:g}; check the column and its unit.")
    return value


def _step(path: Path, rows: Sequence[HistoryRow]) -> timedelta:
    """Return the file's bucket: the smallest distance of its rows, which all others must be multiples of."""
    if len(rows) < 2:
        raise HistoryFileError(path, ["It has fewer than two rows; give at least two."])
    step = min(later.at - earlier.at for earlier, later in pairwise(rows))
    if step > STEP_MAX:
        raise HistoryFileError(path, [f"Its rows are {step} apart; give at least one row a day."])
    if step % MINUTE and MINUTE % step:
        raise HistoryFileError(
            path, [f"Its rows are {step} apart; use whole minutes, or seconds that divide a minute."]
        )
    base = rows[0].at
    for row in rows:
        if (row.at - base) % step:
            raise HistoryFileError(
                path,
                [f"{row.at.isoformat()} is off the grid of {step} that the other rows keep; drop that row."],
            )
    start = base.replace(second=0, microsecond=0)
    if (base - start) % min(step, MINUTE):
        raise HistoryFileError(
            path, [f"{base.isoformat()} is not the start of a minute; round the timestamps."]
        )
    return step


def to_samples(history: History, workload: str, unit: Unit, source: str = "import") -> list[TrafficSample]:
    """Spread each bucket over its minutes (or gather seconds into theirs); absent buckets stay absent."""
    step_s = history.step.total_seconds()
    if history.step < MINUTE:
        return _gathered(history, workload, unit, source)
    per_minute = 60.0 if unit is Unit.QPS else 60.0 / step_s
    return [
        TrafficSample(workload, row.at + MINUTE * index, row.value * per_minute, source=source)
        for row in history.rows
        for index in range(history.step // MINUTE)
    ]


def _gathered(history: History, workload: str, unit: Unit, source: str) -> list[TrafficSample]:
    step_s = history.step.total_seconds()
    sums: dict[datetime, tuple[float, int]] = {}
    for row in history.rows:
        minute = row.at.replace(second=0, microsecond=0)
        requests, seen = sums.get(minute, (0.0, 0))
        sums[minute] = (requests + row.value * (step_s if unit is Unit.QPS else 1.0), seen + 1)
    return [
        TrafficSample(workload, minute, requests, source=source, coverage=min(1.0, seen * step_s / 60.0))
        for minute, (requests, seen) in sums.items()
    ]


def write_history(file: TextIO, points: Iterable[tuple[datetime, float | None]]) -> int:
    """Write ``timestamp,value`` (QPS); unknown buckets are left out. Return how many rows were written."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(HEADER)
    count = 0
    for at, qps in points:
        if qps is not None:
            writer.writerow((at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), f"{qps:.6g}"))
            count += 1
    return count
