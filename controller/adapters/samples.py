"""Rules every traffic store shares: which samples are sound, and the grid a window is read on.

Promises: what passes `sound_samples` has finite, non-negative counts on whole minutes. Refuses the whole
batch for one bad sample and names it, so that nothing is half written. Called by the stores, real and fake.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt

from controller.core.resources import TrafficBlock, TrafficSample

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


@dataclass(frozen=True, slots=True)
class Columns:
    """A block's columns as arrays, checked. An unknown count is NaN."""

    workload: str
    source: str
    minutes: npt.NDArray[np.int64]
    demand_counts: Floats
    served_counts: Floats
    rejected_counts: Floats
    coverages: Floats

    def part(self, rows: slice) -> "Columns":
        """Some of the rows."""
        return Columns(
            self.workload,
            self.source,
            self.minutes[rows],
            self.demand_counts[rows],
            self.served_counts[rows],
            self.rejected_counts[rows],
            self.coverages[rows],
        )


def sound_blocks(blocks: Sequence[TrafficBlock]) -> list[Columns]:
    """Check every block; return them ordered by workload.

    Raises:
        ValueError: names the first bad column, for example ``blocks[3].demand_counts``.
    """
    found: dict[str, Columns] = {}
    for index, block in enumerate(blocks):
        columns = _columns(block, f"blocks[{index}]")
        if columns.workload in found:
            raise ValueError(
                f"blocks[{index}].workload: {block.workload} is there twice; give one block each"
            )
        found[columns.workload] = columns
    # Ordered, so that writers of overlapping batches lock rows in one order and cannot deadlock.
    return [found[name] for name in sorted(found)]


def _columns(block: TrafficBlock, at: str) -> Columns:
    minutes = np.asarray(block.minutes, np.int64)
    count = len(minutes)

    def column(name: str, default: float) -> Floats:
        given: Sequence[float] | None = getattr(block, name)
        values = np.full(count, default) if given is None else np.asarray(given, np.float64)
        if len(values) != count:
            raise ValueError(f"{at}.{name}: has {len(values)} values for {count} minutes")
        return values

    columns = Columns(
        block.workload,
        block.source,
        minutes,
        column("demand_counts", math.nan),
        column("served_counts", math.nan),
        column("rejected_counts", math.nan),
        column("coverages", 1.0),
    )
    if not block.workload or not block.source:
        raise ValueError(f"{at}.workload, source: must not be empty; name both")
    first, last = int(FIRST_AT.timestamp()) // 60, int(LAST_AT.timestamp()) // 60
    if count and not (first <= minutes[0] and minutes[-1] < last and bool((np.diff(minutes) > 0).all())):
        raise ValueError(f"{at}.minutes: must ascend within {FIRST_AT.year} to {LAST_AT.year}")
    if not bool(np.isfinite(columns.demand_counts).all()):
        raise ValueError(f"{at}.demand_counts: must be finite; leave the minute out if it is unknown")
    for name in ("demand_counts", "served_counts", "rejected_counts"):
        values: Floats = getattr(columns, name)
        # A comparison with NaN is false: what is unknown passes.
        if bool(((values < 0) | (values == math.inf)).any()):
            raise ValueError(f"{at}.{name}: must be finite and at least 0")
    if not bool(((columns.coverages >= 0) & (columns.coverages <= 1)).all()):
        raise ValueError(f"{at}.coverages: must be shares between 0 and 1")
    return columns


def samples_in(columns: Columns) -> Iterator[TrafficSample]:
    """The same minutes one by one."""
    for minute, demand, served, rejected, coverage in zip(
        columns.minutes.tolist(),
        columns.demand_counts.tolist(),
        columns.served_counts.tolist(),
        columns.rejected_counts.tolist(),
        columns.coverages.tolist(),
        strict=True,
    ):
        yield TrafficSample(
            columns.workload,
            EPOCH + MINUTE * minute,
            demand,
            None if math.isnan(served) else served,
            None if math.isnan(rejected) else rejected,
            columns.source,
            coverage,
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
