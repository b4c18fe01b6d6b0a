"""Resources people register: traffic events and overrides as stored, before occurrences are expanded.

Pure values. The API's mappers fill them from requests, the stores keep them, the use cases expand them
into the occurrences (``types.Event``) that the core decides with.
"""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum


class EventState(StrEnum):
    """Life of a registered event. Changed by custom methods and by time, never by an update."""

    SCHEDULED = "SCHEDULED"
    PREWARMING = "PREWARMING"
    ACTIVE = "ACTIVE"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"


class EventWarningKind(StrEnum):
    """What a planner should know of an event that was registered nevertheless."""

    SIZE_UNKNOWN = "SIZE_UNKNOWN"  # a multiplier, and nothing known to multiply
    MAX_REPLICAS_SHORT = "MAX_REPLICAS_SHORT"
    QUOTA_SHORT = "QUOTA_SHORT"
    PREWARM_LATE = "PREWARM_LATE"


@dataclass(frozen=True, slots=True)
class EventWarning:
    """One warning about one occurrence on one workload. ``quota_pool``: the pool that is short, where one is."""

    kind: EventWarningKind
    workload: str
    sentence: str
    start_at: datetime
    end_at: datetime
    unmet_replicas: int = 0
    quota_pool: str | None = None


@dataclass(frozen=True, slots=True)
class TrafficEvent:
    """A registered traffic event: known future load on one or more workloads.

    ``start_local``/``end_local`` are naive wall-clock times in ``time_zone`` (IANA), as the planner wrote
    them; ``start_at``/``end_at`` are the first occurrence in UTC, half open. Exactly one of
    ``expected_peak_qps`` and ``expected_multiplier`` is set.
    """

    id: str
    workloads: tuple[str, ...]
    start_at: datetime
    end_at: datetime
    time_zone: str
    display_name: str = ""
    rrule: str | None = None  # RFC 5545, without DTSTART
    exdates_at: tuple[datetime, ...] = ()
    rdates_at: tuple[datetime, ...] = ()  # further starts, beside those of the rule
    expected_peak_qps: float | None = None
    expected_multiplier: float | None = None
    category: str = ""
    confidence: float = 0.8
    ramp: timedelta = timedelta(0)
    margin: timedelta | None = None
    lead_override: timedelta | None = None
    max_replicas_override: int | None = None
    priority: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    state: EventState = EventState.SCHEDULED
    revision: int = 1
    created_by: str = ""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    cancelled_reason: str = ""
    warnings: tuple[EventWarning, ...] = ()  # as of this revision

    @property
    def recurring(self) -> bool:
        """Whether it has, or had, more than one occurrence."""
        return self.rrule is not None or bool(self.rdates_at)


@dataclass(frozen=True, slots=True)
class TrafficSample:
    """Demand of one workload in one minute, counts of requests. ``minute_at`` is the start of the minute.

    ``coverage`` is the observed share of the minute, 0 to 1, and counts are of that share: 300 requests seen in
    half a minute are 10 QPS. Forecasts treat minutes under one half as unknown.
    """

    workload: str
    minute_at: datetime
    demand_count: float
    served_count: float | None = None
    rejected_count: float | None = None
    source: str = "triton"
    coverage: float = 1.0


@dataclass(frozen=True, slots=True)
class TrafficBlock:
    """Minutes of one workload in columns, for bulk: the n-th entry of each belongs to the n-th minute.

    ``minutes`` are whole minutes since 1970 in UTC, ascending. Columns may be buffers (``array``), which the stores
    read without copying. NaN in ``served_counts`` and ``rejected_counts`` is unknown; without ``coverages`` every
    minute was observed whole.
    """

    workload: str
    source: str
    minutes: Sequence[int]
    demand_counts: Sequence[float]
    served_counts: Sequence[float] | None = None
    rejected_counts: Sequence[float] | None = None
    coverages: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class JoinedBlocks:
    """Blocks end to end, as buffers: block n has the rows from ``ends[n - 1]`` (0 for the first) up to ``ends[n]``.

    An unknown count is NaN, a coverage that was not given 1.
    """

    ends: "array[int]"
    minutes: "array[int]"
    demand_counts: "array[float]"
    served_counts: "array[float]"
    rejected_counts: "array[float]"
    coverages: "array[float]"


def join_blocks(blocks: Sequence[TrafficBlock]) -> JoinedBlocks:
    """Put blocks end to end: thousands of short ones cost hardly more than one long one.

    Raises:
        ValueError: a column has another length than its minutes; names block and column.
    """
    joined = JoinedBlocks(array("q"), array("q"), *(array("d") for _ in range(4)))
    columns = (
        ("demand_counts", joined.demand_counts, math.nan),
        ("served_counts", joined.served_counts, math.nan),
        ("rejected_counts", joined.rejected_counts, math.nan),
        ("coverages", joined.coverages, 1.0),
    )
    for index, block in enumerate(blocks):
        count = len(block.minutes)
        joined.minutes.extend(block.minutes)
        joined.ends.append(len(joined.minutes))
        for name, column, unknown in columns:
            given: Sequence[float] | None = getattr(block, name)
            if given is None:
                given = array("d", (unknown,)) * count
            if len(given) != count:
                raise ValueError(f"blocks[{index}].{name}: has {len(given)} values for {count} minutes")
            column.extend(given)
    return joined


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a listing, asked for."""

    size: int
    token: str = ""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Who asked for which mutation, and what came of it."""

    at: datetime
    principal: str
    method: str
    resource: str
    outcome: str  # a gRPC status code name
    request_id: str = ""
    detail: str = ""
    # Versions of the resource around a change; None where there is no such version.
    version_before: int | None = None
    version_after: int | None = None
    count: int = 1  # so many alike since ``at``: refusals that repeat, measurements of a minute


@dataclass(frozen=True, slots=True)
class Lease:
    """Leadership as stored. ``token`` grows with every change of holder and fences every write."""

    name: str
    holder: str
    token: int
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a decision, read back from the actuator."""

    decision_id: str
    at: datetime
    applied: bool
    observed_replicas: int | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PauseState:
    """Global pause: the loop observes and records, and changes nothing."""

    paused: bool = False
    reason: str = ""
    by: str = ""
    since_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ForecastRun:
    """A stored forecast's header beside its band: where it came from and how good its models were."""

    id: str
    workload: str
    origin_at: datetime
    created_at: datetime
    horizon_steps: int
    model_weights: tuple[tuple[str, float], ...] = ()
    scores: tuple[tuple[str, float], ...] = field(default=())
