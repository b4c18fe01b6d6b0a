"""Rules every traffic store shares: which samples are sound, and the grid a window is read on.

Promises: what passes `sound_samples` has finite, non-negative counts on whole minutes. Refuses the whole
batch for one bad sample and names it, so that nothing is half written. Called by the stores, real and fake.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from controller.core.resources import TrafficBlock, TrafficSample, join_blocks

Floats = npt.NDArray[np.float64]

MINUTE = timedelta(minutes=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Bounds keep a clock that went astray from creating partitions for centuries.
FIRST_AT = datetime(2000, 1, 1, tzinfo=UTC)
LAST_AT = datetime(2100, 1, 1, tzinfo=UTC)
STEPS_MAX = 1_100_000  # two years of minutes
KNOWN_COVERAGE = 0.5


def sound_samples(samples: Sequence[TrafficSample]) -> list[TrafficSample]:
    """Check every sample; return one per workload and minute (the last given), ordered by both.

    Raises:
        ValueError: names the first bad field, for example ``samples[3].demand_count``.
    """
    for index, sample in enumerate(samples):
        problem = _problem(sample)
        if problem:
            raise ValueError(f"samples[{index}].{problem}")
    # In UTC, because equal instants of different zones may compare unequal around a change of the clock.
    latest = {
        (sample.workload, sample.minute_at): sample
        for sample in (
            sample
            if sample.minute_at.tzinfo is UTC
            else replace(sample, minute_at=sample.minute_at.astimezone(UTC))
            for sample in samples
        )
    }
    # Ordered, so that writers of overlapping batches lock rows in one order and cannot deadlock.
    return [latest[key] for key in sorted(latest)]


def _problem(sample: TrafficSample) -> str | None:
    minute_at = sample.minute_at
    if not sample.workload:
        return "workload: is empty; name the workload"
    if minute_at.tzinfo is None or not FIRST_AT <= minute_at < LAST_AT or (minute_at - EPOCH) % MINUTE:
        return (
            f"minute_at: {minute_at.isoformat()} is not the start of a minute with a time zone, "
            f"{FIRST_AT.year} to {LAST_AT.year}"
        )
    for name in ("demand_count", "served_count", "rejected_count"):
        count: float | None = getattr(sample, name)
        if count is not None and not 0 <= count < math.inf:
            return (
                f"{name}: {count} is not a finite count of at least 0; leave the minute out if it is unknown"
            )
    if not 0 <= sample.coverage <= 1:
        return f"coverage: {sample.coverage} is not a share between 0 and 1"
    return None


class Series(NamedTuple):
    """One workload's rows in the columns."""

    workload: str
    source: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Columns:
    """Checked blocks, ordered by workload, their columns end to end. An unknown count is NaN."""

    series: tuple[Series, ...]
    minutes: npt.NDArray[np.int64]
    demand_counts: Floats
    served_counts: Floats
    rejected_counts: Floats
    coverages: Floats


def sound_blocks(blocks: Sequence[TrafficBlock]) -> Columns:
    """Check every block; blocks without minutes are left out.

    Raises:
        ValueError: names the first bad column, for example ``blocks[3].demand_counts``.
    """
    seen: set[str] = set()
    for index, block in enumerate(blocks):
        if not block.workload or not block.source:
            raise ValueError(f"blocks[{index}].workload, source: must not be empty; name both")
        if block.workload in seen:
            raise ValueError(
                f"blocks[{index}].workload: {block.workload} is there twice; give one block each"
            )
        seen.add(block.workload)
    joined = join_blocks(blocks)
    ends = joined.ends.tolist()
    series = (
        Series(block.workload, block.source, start, end)
        for block, start, end in zip(blocks, [0, *ends], ends, strict=False)
        if start < end
    )
    columns = Columns(
        # Ordered, so that writers of overlapping batches lock rows in one order and cannot deadlock.
        tuple(sorted(series)),
        np.frombuffer(joined.minutes, np.int64),
        np.frombuffer(joined.demand_counts, np.float64),
        np.frombuffer(joined.served_counts, np.float64),
        np.frombuffer(joined.rejected_counts, np.float64),
        np.frombuffer(joined.coverages, np.float64),
    )
    _check_columns(columns, lambda row: bisect_right(ends, row))
    return columns


def _check_columns(columns: Columns, block_of: Callable[[int], int]) -> None:
    first, last = int(FIRST_AT.timestamp()) // 60, int(LAST_AT.timestamp()) // 60
    minutes = columns.minutes
    ascends = np.ones(len(minutes), np.bool_)
    ascends[1:] = minutes[1:] > minutes[:-1]
    ascends[[series.start for series in columns.series]] = True
    _require(
        ascends & (minutes >= first) & (minutes < last),
        block_of,
        f"minutes: must ascend within {FIRST_AT.year} to {LAST_AT.year}",
    )
    _require(
        np.isfinite(columns.demand_counts),
        block_of,
        "demand_counts: must be finite; leave the minute out if it is unknown",
    )
    for name in ("demand_counts", "served_counts", "rejected_counts"):
        values: Floats = getattr(columns, name)
        # A comparison with NaN is false: what is unknown passes.
        _require(~((values < 0) | (values == math.inf)), block_of, f"{name}: must be finite and at least 0")
    _require(
        (columns.coverages >= 0) & (columns.coverages <= 1),
        block_of,
        "coverages: must be shares between 0 and 1",
    )


def _require(ok: npt.NDArray[np.bool_], block_of: Callable[[int], int], said: str) -> None:
    if not ok.all():
        raise ValueError(f"blocks[{block_of(int(np.argmin(ok)))}].{said}")


def samples_in(columns: Columns) -> Iterator[TrafficSample]:
    """The same minutes one by one."""
    minutes, coverages = columns.minutes.tolist(), columns.coverages.tolist()
    demand, served, rejected = (
        [None if math.isnan(count) else count for count in counts.tolist()]
        for counts in (columns.demand_counts, columns.served_counts, columns.rejected_counts)
    )
    for series in columns.series:
        for row in range(series.start, series.end):
            yield TrafficSample(
                series.workload,
                EPOCH + MINUTE * minutes[row],
                demand[row] or 0.0,
                served[row],
                rejected[row],
                series.source,
                coverages[row],
            )


def step_grid(start_at: datetime, end_at: datetime, step: timedelta) -> list[datetime]:
    """Starts of the steps that lie wholly inside the half-open window, on the grid of multiples since 1970.

    Raises:
        ValueError: the step is not a positive number of whole minutes, or there are too many steps.
    """
    if step < MINUTE or step % MINUTE:
        raise ValueError(f"step: {step} is not a positive number of whole minutes, the base of the history")
    if start_at.tzinfo is None or end_at.tzinfo is None:
        raise ValueError("start_at, end_at: have no time zone; pass aware datetimes")
    first = -((EPOCH - start_at) // step)  # rounds up
    count = max(0, (end_at - EPOCH) // step - first)
    if count > STEPS_MAX:
        raise ValueError(
            f"step: the window has {count} steps of {step}, more than {STEPS_MAX}; take a longer step"
        )
    return [EPOCH + step * (first + index) for index in range(count)]


def mean_qps(
    grid: Sequence[datetime], step: timedelta, sums: Mapping[datetime, tuple[float, float]]
) -> list[tuple[datetime, float | None]]:
    """Mean demand per step, given (requests, covered minutes) per step; None below half coverage.

    A half-covered minute counts the requests of the half that was seen, so the mean is requests per
    *covered* second: 300 requests in half a minute are 10 QPS.
    """
    needed = KNOWN_COVERAGE * (step / MINUTE)
    unknown = (0.0, 0.0)
    return [
        (at, requests / (covered * 60) if covered >= needed else None)
        for at, (requests, covered) in ((at, sums.get(at, unknown)) for at in grid)
    ]
