"""Take demand that others measured. Nothing of a bad batch is stored, and every bad field is named."""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt

from controller.core.resources import JoinedBlocks, TrafficBlock, TrafficSample, join_blocks
from controller.ports import SignalCache, Store, UnitOfWork
from controller.usecases.errors import Findings, InvalidError, Violation
from controller.usecases.names import ID
from controller.usecases.workload_rules import DAY, MINUTE, SECOND

SAMPLES_MAX = 10_000
# Of one batch of columns: what the store copies in one statement, well inside its time limit.
SERIES_MAX = 10_000
BLOCK_SAMPLES_MAX = 100_000
BACKLOGS_MAX = 1000
COUNT_MAX = 1e12
AGE_MAX = 3653 * DAY
# Clocks of well-kept machines differ by less; more would be demand from the future.
SKEW_MAX = MINUTE
BACKLOG_TTL_MAX = 10 * MINUTE
# A message that lists ten thousand violations helps nobody.
VIOLATIONS_MAX = 20


@dataclass(frozen=True, slots=True)
class Backlog:
    """Requests waiting in one queue of a workload, as its owner counted them."""

    workload: str
    source: str
    count: float
    at: datetime
    ttl: timedelta


async def record_traffic(store: Store, samples: Sequence[TrafficSample], now: datetime) -> int:
    """Store samples, all or none; return how many. Raise InvalidError."""
    findings = Findings()
    check_count(len(samples), SAMPLES_MAX)
    seen: set[tuple[str, datetime]] = set()
    for index, sample in enumerate(samples):
        if len(findings.violations) >= VIOLATIONS_MAX:
            break
        _check_sample(sample, f"samples[{index}].", now, findings)
        key = (sample.workload, sample.minute_at)
        findings.require(
            key not in seen, f"samples[{index}].minute_time", "is there twice; send a minute once"
        )
        seen.add(key)
    findings.raise_if_any()
    async with store.unit_of_work() as uow:
        await _check_workloads(uow, [sample.workload for sample in samples])
        written = await uow.traffic.upsert(samples)
        await uow.commit()
    return written


async def record_blocks(store: Store, blocks: Sequence[TrafficBlock], now: datetime, known: set[str]) -> int:
    """Store one batch of columns, all or none; return how many minutes. Raise InvalidError.

    ``known`` names workloads that need not be looked up again; those found are added to it. Once this returns,
    the batch is durable.
    """
    findings = Findings()
    findings.require(
        1 <= len(blocks) <= SERIES_MAX, "series", f"must have 1 to {SERIES_MAX} entries; got {len(blocks)}"
    )
    count = sum(len(block.minutes) for block in blocks)
    findings.require(
        count <= BLOCK_SAMPLES_MAX,
        "series",
        f"must have at most {BLOCK_SAMPLES_MAX} samples in all; got {count}; send more batches",
    )
    findings.raise_if_any()
    findings.text("source", blocks[0].source, 1, 63)
    seen: set[str] = set()
    for index, block in enumerate(blocks):
        if block.workload in seen:
            findings.add(f"series[{index}].workload", "is there twice; give one series per workload")
        seen.add(block.workload)
        for name in ("demand_counts", "served_counts", "rejected_counts", "coverages"):
            given: Sequence[float] | None = getattr(block, name)
            if given is not None and len(given) != len(block.minutes):
                findings.add(
                    f"series[{index}].{name}",
                    f"must have one value per minute, {len(block.minutes)}; got {len(given)}",
                )
        if len(findings.violations) >= VIOLATIONS_MAX:
            break
    findings.raise_if_any()
    _check_blocks(join_blocks(blocks), now, findings)
    findings.raise_if_any()
    async with store.unit_of_work() as uow:
        await _check_workloads(uow, [block.workload for block in blocks], known, "series")
        written = await uow.traffic.upsert_blocks(blocks)
        await uow.commit()
    known |= seen
    return written


def _check_blocks(joined: JoinedBlocks, now: datetime, findings: Findings) -> None:
    """Check all series at once: thousands of short ones must not hold the event loop."""
    ends = joined.ends.tolist()
    minutes = np.frombuffer(joined.minutes, np.int64)
    oldest, present, newest = (int(limit.timestamp() // 60) for limit in (now - AGE_MAX, now, now + SKEW_MAX))
    ascends = np.ones(len(minutes), np.bool_)
    ascends[1:] = minutes[1:] > minutes[:-1]
    ascends[[start for start in (0, *ends) if start < len(minutes)]] = True
    counts = f"must be finite, at least 0 and at most {COUNT_MAX:g} requests"

    def counted(given: Sequence[float], *, optional: bool) -> npt.NDArray[np.bool_]:
        values = np.frombuffer(given, np.float64)  # type: ignore[call-overload] # buffers, as joined
        ok: npt.NDArray[np.bool_] = (values >= 0) & (values <= COUNT_MAX)
        return ok | np.isnan(values) if optional else ok

    coverages = np.frombuffer(joined.coverages, np.float64)
    for name, ok, said in (
        (
            "minutes",
            (minutes >= oldest) & (minutes <= newest),
            f"must be whole minutes since 1970, at most 10 years ago and not after now, {present}",
        ),
        ("minutes", ascends, "must ascend without repetition; sort them"),
        ("demand_counts", counted(joined.demand_counts, optional=False), counts),
        ("served_counts", counted(joined.served_counts, optional=True), counts),
        ("rejected_counts", counted(joined.rejected_counts, optional=True), counts),
        ("coverages", (coverages > 0) & (coverages <= 1), "must be more than 0 and at most 1"),
    ):
        if not ok.all():
            row = int(np.argmin(ok))
            index = bisect_right(ends, row)
            values: Sequence[float] = getattr(joined, name)
            at = f"series[{index}].{name}[{row - (ends[index - 1] if index else 0)}]"
            findings.add(at, f"{said}; got {values[row]:g}")


async def record_backlog(
    store: Store, signals: SignalCache, backlogs: Sequence[Backlog], now: datetime
) -> int:
    """Keep backlogs for their ttl; return how many. Raise InvalidError."""
    findings = Findings()
    check_count(len(backlogs), BACKLOGS_MAX)
    seen: set[tuple[str, str]] = set()
    for index, backlog in enumerate(backlogs):
        if len(findings.violations) >= VIOLATIONS_MAX:
            break
        at = f"samples[{index}]."
        findings.text(f"{at}source", backlog.source, 1, 63)
        findings.number(f"{at}count", backlog.count, 0, COUNT_MAX, unit="requests")
        findings.duration(f"{at}ttl", backlog.ttl, SECOND, BACKLOG_TTL_MAX)
        findings.require(
            now - min(backlog.ttl, BACKLOG_TTL_MAX) < backlog.at <= now + SKEW_MAX,
            f"{at}observe_time",
            "must not be in the future nor older than the ttl; send a fresh count",
        )
        key = (backlog.workload, backlog.source)
        findings.require(
            key not in seen, f"{at}source", "is there twice for this workload; add the counts up"
        )
        seen.add(key)
    findings.raise_if_any()
    async with store.unit_of_work() as uow:
        await _check_workloads(uow, [backlog.workload for backlog in backlogs])
    for index, backlog in enumerate(backlogs):
        # The ttl counts from the observation: a late report does not live longer for being late.
        left = backlog.ttl - max(timedelta(0), now - backlog.at)
        try:
            await signals.put_backlog(backlog.workload, backlog.source, backlog.count, backlog.at, left)
        except ValueError as error:  # the cache bounds the sources of a workload
            raise InvalidError([Violation(f"samples[{index}].source", str(error))]) from error
    return len(backlogs)


def check_count(count: int, limit: int) -> None:
    """Raise InvalidError unless there are 1 to ``limit`` samples."""
    findings = Findings()
    findings.require(1 <= count <= limit, "samples", f"must have 1 to {limit} entries; got {count}")
    findings.raise_if_any()


def _check_sample(sample: TrafficSample, at: str, now: datetime, findings: Findings) -> None:
    findings.text("source", sample.source, 1, 63)
    for name in ("demand_count", "served_count", "rejected_count"):
        findings.number(f"{at}{name}", getattr(sample, name), 0, COUNT_MAX, unit="requests")
    findings.number(f"{at}coverage", sample.coverage, 0, 1, above=True)
    minute = sample.minute_at
    findings.require(
        not (minute.second or minute.microsecond),
        f"{at}minute_time",
        "must be the start of a minute, without seconds",
    )
    findings.require(
        now - AGE_MAX <= minute <= now + SKEW_MAX,
        f"{at}minute_time",
        f"must be at most 10 years ago and not in the future; it is {now:%Y-%m-%dT%H:%M:%SZ} in UTC now",
    )


async def _check_workloads(
    uow: UnitOfWork, names: Sequence[str], already: Collection[str] = (), field: str = "samples"
) -> None:
    asked = set(names).difference(already)
    if not asked:
        return
    # A store may not even take what is no id.
    known = {*already, *await uow.workloads.known(list(filter(ID.fullmatch, asked)))}
    findings = Findings()
    for index, name in enumerate(names):
        if name not in known and len(findings.violations) < VIOLATIONS_MAX:
            findings.add(
                f"{field}[{index}].workload",
                f"no workload {name[:80]!r}; create it first or correct the name",
            )
    findings.raise_if_any()
