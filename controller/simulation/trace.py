"""Traces of demand and their known events, read from CSV.

Promises: values on a regular grid, NaN where a bucket is missing (unknown is never 0), UTC times.
Refuses: naive or irregular times, negative or infinite values, traces beyond ``POINT_COUNT_MAX``,
naming the line and the remedy. Called by the simulator, its CLI and the benchmarks.
"""

import csv
import gzip
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from math import isfinite
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

POINT_COUNT_MAX = 2_000_000
STEP_S_MAX = 86_400
PEAK_REPLICAS_DEFAULT = 40.0
CAPACITY_QPS_DEFAULT = 100.0


class TraceError(ValueError):
    """A trace or event file that cannot be replayed; the message names the line and the remedy."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Demand per bucket.

    Attributes:
        name: For reports.
        start_at: Start of the first bucket, UTC.
        step_s: Width of a bucket, seconds.
        qps: ``[N]`` requests per second offered in each bucket; NaN where unknown.
    """

    name: str
    start_at: datetime
    step_s: int
    qps: Floats

    @property
    def end_at(self) -> datetime:
        """End of the last bucket."""
        return self.start_at + timedelta(seconds=self.step_s * len(self.qps))

    @property
    def peak_qps(self) -> float:
        """Highest known demand."""
        return float(np.nanmax(self.qps))

    def scaled_to_peak(self, peak_qps: float) -> "Trace":
        """Return the same shape with its highest bucket at ``peak_qps``."""
        peak = self.peak_qps
        if peak <= 0:
            raise TraceError(f"{self.name}: demand is zero throughout; there is no shape to scale.")
        return replace(self, qps=self.qps * (peak_qps / peak))

    def days(self, first: float, count: float | None = None) -> "Trace":
        """Return the part that begins ``first`` days in and lasts ``count`` days (to the end when None)."""
        per_day = 86_400 / self.step_s
        low = round(first * per_day)
        high = len(self.qps) if count is None else min(len(self.qps), low + round(count * per_day))
        if high <= low:
            raise TraceError(f"{self.name}: no bucket lies in days {first} to {first}+{count}.")
        return replace(
            self, start_at=self.start_at + timedelta(seconds=low * self.step_s), qps=self.qps[low:high]
        )


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """A window known in advance. The expectations are optional, as in a planner's calendar."""

    start_at: datetime
    end_at: datetime
    name: str = ""
    category: str = ""
    expected_peak_qps: float | None = None
    expected_multiplier: float | None = None


def read_trace(path: Path, unit: Literal["qps", "count"] = "qps") -> Trace:
    """Read ``timestamp,value`` rows from a CSV or CSV.gz file.

    Args:
        path: The file.
        unit: ``qps`` takes values as requests per second; ``count`` divides them by the step.

    Raises:
        TraceError: The file cannot be replayed.
    """
    seconds: list[int] = []
    values: list[float] = []
    for line, row in _rows(path, ("timestamp", "value")):
        at = _instant(row["timestamp"], path, line)
        if at.timestamp() % 1:
            raise TraceError(f"{path.name} line {line}: times must be whole seconds; round them.")
        seconds.append(int(at.timestamp()))
        values.append(_number(row["value"], path, line))
        if len(values) > POINT_COUNT_MAX:
            raise TraceError(
                f"{path.name}: more than {POINT_COUNT_MAX} rows; cut the trace or widen its step."
            )
    if len(values) < 2:
        raise TraceError(f"{path.name}: {len(values)} rows show no step; give at least two.")
    times = np.asarray(seconds, dtype=np.int64)
    gaps = np.diff(times)
    if bool((gaps <= 0).any()):
        raise TraceError(f"{path.name}: times must ascend without repeats; sort and merge rows.")
    step = int(gaps.min())
    if step > STEP_S_MAX or bool((gaps % step).any()):
        raise TraceError(f"{path.name}: rows do not lie on a grid of {step} s (at most a day); resample.")
    offset = (times - times[0]) // step
    if int(offset[-1]) >= POINT_COUNT_MAX:
        raise TraceError(f"{path.name}: spans more than {POINT_COUNT_MAX} buckets; cut the trace.")
    grid = np.full(int(offset[-1]) + 1, np.nan)
    grid[offset] = np.asarray(values) / (step if unit == "count" else 1)
    name = path.name.removesuffix(".gz").removesuffix(".csv")
    return Trace(name, datetime.fromtimestamp(seconds[0], tz=UTC), step, grid)


def read_events(path: Path) -> tuple[TraceEvent, ...]:
    """Read ``start,end[,name][,kind][,expected_peak_qps][,expected_multiplier]`` rows, sorted by start.

    Raises:
        TraceError: A row has no usable window or expectation.
    """
    events: list[TraceEvent] = []
    for line, row in _rows(path, ("start", "end")):
        start, end = _instant(row["start"], path, line), _instant(row["end"], path, line)
        if end <= start:
            raise TraceError(f"{path.name} line {line}: end must lie after start.")
        peak, factor = (
            _number(row[key], path, line) if row.get(key) else None
            for key in ("expected_peak_qps", "expected_multiplier")
        )
        name = row.get("name") or f"event {len(events) + 1}"
        events.append(TraceEvent(start, end, name, row.get("kind") or "", peak, factor))
    return tuple(sorted(events, key=lambda event: event.start_at))


def _rows(path: Path, needed: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
            reader = csv.DictReader(file)
            lacking = [name for name in needed if name not in (reader.fieldnames or ())]
            if lacking:
                raise TraceError(f"{path.name}: column {lacking[0]!r} is missing; the header needs {needed}.")
            for row in reader:
                yield reader.line_num, row
    except (UnicodeDecodeError, gzip.BadGzipFile, csv.Error) as error:
        raise TraceError(f"{path.name}: is not a readable CSV file: {error}.") from error


def _instant(text: str | None, path: Path, line: int) -> datetime:
    try:
        at = datetime.fromisoformat(text or "")
    except ValueError as error:
        raise TraceError(f"{path.name} line {line}: {text!r} is not an ISO 8601 time.") from error
    if at.tzinfo is None:
        raise TraceError(f"{path.name} line {line}: {text!r} has no zone; append Z for UTC.")
    return at.astimezone(UTC)


def _number(text: str | None, path: Path, line: int) -> float:
    try:
        value = float(text or "")
    except ValueError as error:
        raise TraceError(f"{path.name} line {line}: {text!r} is not a number.") from error
    if not isfinite(value) or value < 0:
        raise TraceError(
            f"{path.name} line {line}: {text} must be finite and >= 0; leave unknown buckets out."
        )
    return value
