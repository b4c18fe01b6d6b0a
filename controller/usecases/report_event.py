"""Say how an occurrence of an event compared with what was expected of it: load, prewarm, cost, and the planner.

Promises: what is not known is absent, never 0; the event is judged as it was registered when it started, not as it
was edited since; peak and total are of observed minutes only, and the observed share is said. Called by the API.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from statistics import median

from controller.core.resources import EventState, Page, TrafficEvent
from controller.core.types import CapacityPlan, Contract, Decision, Event, Floor, ForecastBand
from controller.ports import NotFoundError, Store, UnitOfWork
from controller.usecases.errors import MissingError, PreconditionError
from controller.usecases.events import find_event, with_states
from controller.usecases.occurrences import BEHIND, occurrences

MINUTE = timedelta(minutes=1)
_HOUR_S = 3600.0
_PAGE_SIZE = 1000
# Decisions looked at per workload: two weeks of one a minute.
_PAGES_MAX = 20
# Occurrences a planner's record is made from, and events that are looked through for them.
RECORD_MAX = 20
EVENTS_LOOKED_AT = 200
# Within this the planner's word was as good as it gets.
GOOD_RATIO = (0.9, 1.1)


class PrewarmOutcome(StrEnum):
    """How a prewarm ended."""

    UNKNOWN = "UNKNOWN"  # no record is kept of it
    MET = "MET"
    LATE = "LATE"  # after the deadline, by the start
    MISSED = "MISSED"


@dataclass(frozen=True, slots=True)
class PrewarmReport:
    """How a prewarm kept its deadline. Margins are negative when it was late."""

    outcome: PrewarmOutcome
    replicas: int | None = None
    order_at: datetime | None = None
    deadline_at: datetime | None = None
    met_at: datetime | None = None
    deadline_margin: timedelta | None = None
    start_margin: timedelta | None = None
    shortfall_replicas: int = 0


@dataclass(frozen=True, slots=True)
class WorkloadReport:
    """How an occurrence went on one workload. None is unknown."""

    workload: str
    observed_share: float
    prewarm: PrewarmReport
    expected_peak_qps: float | None = None
    planned_qps: float | None = None
    actual_peak_qps: float | None = None
    peak_at: datetime | None = None
    peak_ratio: float | None = None
    expected_request_count: float | None = None
    actual_request_count: float | None = None
    planned_replicas: int | None = None
    peak_replicas: int | None = None
    replica_hours: float | None = None
    extra_replica_hours: float | None = None
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class PlannerRecord:
    """What one planner's events of a category have come to: actual / expected peaks."""

    planner: str
    category: str
    occurrence_count: int
    peak_ratio_median: float
    peak_ratio_min: float
    peak_ratio_max: float
    sentence: str


@dataclass(frozen=True, slots=True)
class EventReport:
    """An occurrence compared with what was expected of it."""

    event: TrafficEvent
    occurrence: Event
    complete: bool
    workloads: tuple[WorkloadReport, ...]
    planner_record: PlannerRecord | None


async def report_event(store: Store, event_id: str, occurrence_id: str, now: datetime) -> EventReport:
    """Report on one occurrence, the newest that has started if ``occurrence_id`` is empty.

    Raise MissingError, or PreconditionError before the start.
    """
    async with store.unit_of_work() as uow:
        newest = await find_event(uow, event_id)
        occurrence = _occurrence(newest, occurrence_id, now)
        event = await _as_of(uow, newest, occurrence.start_at)
        # The window and the load as they were registered at the start of it, if it was there then.
        occurrence = next(
            (o for o in occurrences(event, *_around(occurrence), 10) if o.id == occurrence.id), occurrence
        )
        reports = [await _workload_report(uow, name, event, occurrence, now) for name in event.workloads]
        record = await _planner_record(uow, event, now)
        shown = (await with_states(uow, [event], now))[0]
    return EventReport(shown, occurrence, now >= occurrence.end_at, tuple(reports), record)


def _around(occurrence: Event) -> tuple[datetime, datetime]:
    return occurrence.start_at, occurrence.start_at + timedelta(microseconds=1)


def _occurrence(event: TrafficEvent, occurrence_id: str, now: datetime) -> Event:
    # A cancelled event may have had occurrences before it was cancelled.
    open_event = replace(event, state=EventState.SCHEDULED)
    if occurrence_id:
        _, mark, start = occurrence_id.partition("@")
        try:
            start_at = datetime.fromisoformat(start) if mark else event.start_at
            found = occurrences(open_event, start_at, start_at + timedelta(microseconds=1), 100)
        except (ValueError, TypeError, OverflowError):
            found = []
        match = next((o for o in found if o.id == occurrence_id), None)
        if match is None:
            raise MissingError(
                f"occurrence {occurrence_id[:120]!r} of events/{event.id}",
                "take one from its contracts, or leave occurrence_id empty for the newest",
                "OCCURRENCE_NOT_FOUND",
            )
        if match.start_at > now:
            raise _not_started(event, match.start_at)
        return match
    since = max(event.start_at, now - BEHIND)
    begun = [o for o in occurrences(open_event, since, now, 1000) if o.start_at <= now]
    if not begun:
        raise _not_started(event, event.start_at)
    return begun[-1]


def _not_started(event: TrafficEvent, start_at: datetime) -> PreconditionError:
    return PreconditionError(
        "EVENT_NOT_STARTED",
        f"events/{event.id} starts at {start_at:%Y-%m-%d %H:%M:%SZ}; preview it instead, and report after its start",
        {"resource": f"events/{event.id}"},
    )


async def _as_of(uow: UnitOfWork, newest: TrafficEvent, at: datetime) -> TrafficEvent:
    """The revision that was the newest at ``at``, the first if none was there yet."""
    revisions = await uow.events.revisions(newest.id)
    before = [r for r in revisions if r.updated_at is not None and r.updated_at <= at]
    return before[-1] if before else next(iter(revisions), newest)


async def _workload_report(
    uow: UnitOfWork, name: str, event: TrafficEvent, occurrence: Event, now: datetime
) -> WorkloadReport:
    end_at = min(occurrence.end_at, now)
    minutes = await _minutes(uow, name, occurrence.start_at, end_at)
    known = [(at, qps) for at, qps in minutes if qps is not None]
    peak_at, peak = max(known, key=lambda row: row[1], default=(None, None))
    decided = await _decisions(uow, name, occurrence, end_at)
    plan = await _plan_then(uow, name, decided, occurrence)
    floor = _floor_of(plan, occurrence)
    expected = await _expected_peak(uow, name, event, occurrence, floor)
    order_at = floor.order_at if floor else occurrence.start_at
    hours, extra = _replica_hours(decided, min(order_at, occurrence.start_at), end_at)
    report = WorkloadReport(
        workload=name,
        observed_share=len(known) / len(minutes) if minutes else 0.0,
        prewarm=await _prewarm(uow, name, occurrence, floor),
        expected_peak_qps=expected,
        planned_qps=floor.demand_qps if floor else None,
        actual_peak_qps=peak,
        peak_at=peak_at,
        peak_ratio=peak / expected if peak is not None and expected else None,
        expected_request_count=await _expected_count(uow, name, occurrence),
        actual_request_count=sum(qps for _, qps in known) * 60.0 if known else None,
        planned_replicas=floor.replicas if floor else None,
        peak_replicas=max(
            (d.desired_replicas for d in decided if occurrence.start_at <= d.at < end_at), default=None
        ),
        replica_hours=hours,
        extra_replica_hours=extra,
    )
    return replace(report, sentence=_sentence(report))


async def _minutes(
    uow: UnitOfWork, name: str, start_at: datetime, end_at: datetime
) -> Sequence[tuple[datetime, float | None]]:
    if end_at - start_at < MINUTE:
        return []
    return await uow.traffic.read(name, start_at, end_at, step=MINUTE)


async def _decisions(uow: UnitOfWork, name: str, occurrence: Event, end_at: datetime) -> list[Decision]:
    """Decisions from two days before the start to the end, and the one in force before that, oldest first."""
    found: list[Decision] = []
    token = ""
    since = occurrence.start_at - timedelta(days=2)
    for _ in range(_PAGES_MAX):
        rows, token = await uow.decisions.list(
            workload=name, start_at=since, end_at=end_at, page=Page(_PAGE_SIZE, token)
        )
        found += [decision for decision, _ in rows]
        if not token:
            break
    earlier, _ = await uow.decisions.list(workload=name, end_at=since, page=Page(1))
    found += [decision for decision, _ in earlier]
    found.reverse()
    return found


async def _plan_then(
    uow: UnitOfWork, name: str, decided: Sequence[Decision], occurrence: Event
) -> CapacityPlan | None:
    """The plan that was in force when the occurrence started."""
    revision = next(
        (
            d.plan_revision
            for d in reversed(decided)
            if d.at <= occurrence.start_at and d.plan_revision is not None
        ),
        None,
    )
    if revision is None:
        return None
    try:
        return await uow.decisions.plan(name, revision)
    except NotFoundError:
        return None


def _floor_of(plan: CapacityPlan | None, occurrence: Event) -> Floor | None:
    return next((f for f in plan.floors if f.event_id == occurrence.id), None) if plan else None


async def _expected_peak(
    uow: UnitOfWork, name: str, event: TrafficEvent, occurrence: Event, floor: Floor | None
) -> float | None:
    if event.expected_peak_qps is not None:
        return event.expected_peak_qps
    if event.expected_multiplier is None:
        return None
    if floor is not None and floor.base_qps:
        return floor.base_qps * event.expected_multiplier
    stored = await uow.forecasts.as_of(name, event.created_at or occurrence.start_at)
    if stored is None or occurrence.id in stored[1].event_ids:
        return None
    rows = _rows_of(stored[1], occurrence)
    base = max((qps for _, qps in rows), default=0.0)
    return base * event.expected_multiplier if base > 0.0 else None


def _rows_of(band: ForecastBand, occurrence: Event) -> list[tuple[datetime, float]]:
    """Starts and medians of the band's steps inside the occurrence; none unless it reaches from start to end."""
    if not band.qps or band.start_at > occurrence.start_at or band.end_at < occurrence.end_at:
        return []
    middle = min(range(len(band.levels)), key=lambda j: abs(band.levels[j] - 0.5))
    starts = ((band.start_at + band.step * i, row[middle]) for i, row in enumerate(band.qps))
    return [
        (at, qps) for at, qps in starts if at + band.step > occurrence.start_at and at < occurrence.end_at
    ]


async def _expected_count(uow: UnitOfWork, name: str, occurrence: Event) -> float | None:
    stored = await uow.forecasts.as_of(name, occurrence.start_at)
    if stored is None or occurrence.id not in stored[1].event_ids:
        return None
    band, total = stored[1], 0.0
    rows = _rows_of(band, occurrence)
    for at, qps in rows:
        inside = min(at + band.step, occurrence.end_at) - max(at, occurrence.start_at)
        total += qps * inside.total_seconds()
    return total if rows else None


async def _prewarm(uow: UnitOfWork, name: str, occurrence: Event, floor: Floor | None) -> PrewarmReport:
    contract = await uow.states.kept_contract(name, occurrence.id)
    if contract is None:
        return PrewarmReport(
            PrewarmOutcome.UNKNOWN,
            replicas=floor.replicas if floor else None,
            order_at=floor.order_at if floor else None,
            deadline_at=floor.needed_at if floor else None,
            shortfall_replicas=floor.unmet_replicas if floor else 0,
        )
    met_at = contract.met_at
    return PrewarmReport(
        _outcome(contract),
        replicas=contract.replicas,
        order_at=contract.order_at,
        deadline_at=contract.deadline_at,
        met_at=met_at,
        deadline_margin=None if met_at is None else contract.deadline_at - met_at,
        start_margin=None if met_at is None else contract.start_at - met_at,
        shortfall_replicas=contract.shortfall_replicas,
    )


def _outcome(contract: Contract) -> PrewarmOutcome:
    if contract.met_at is None or contract.met_at > contract.start_at:
        return PrewarmOutcome.MISSED
    return PrewarmOutcome.MET if contract.met_at <= contract.deadline_at else PrewarmOutcome.LATE


def _replica_hours(
    decided: Sequence[Decision], start_at: datetime, end_at: datetime
) -> tuple[float | None, float | None]:
    """Replica-hours asked for in the window, and those above the count in force before it."""
    before = [d for d in decided if d.at <= start_at]
    inside = [d for d in decided if start_at < d.at < end_at]
    if end_at <= start_at or not (before or inside):
        return None, None
    base = before[-1].desired_replicas if before else inside[0].current_replicas
    total_s, extra_s, at, count = 0.0, 0.0, start_at, base
    for until, then in [*((d.at, d.desired_replicas) for d in inside), (end_at, 0)]:
        length_s = (until - at).total_seconds()
        total_s += count * length_s
        extra_s += max(0, count - base) * length_s
        at, count = until, then
    return total_s / _HOUR_S, extra_s / _HOUR_S


async def _planner_record(uow: UnitOfWork, event: TrafficEvent, now: datetime) -> PlannerRecord | None:
    """Ratios of the newest occurrences of this planner's events of the category, whose size was stated as a peak."""
    rows, _ = await uow.events.list(
        category=event.category,
        overlaps=(now - BEHIND, now),
        order_by="start_at",
        descending=True,
        page=Page(EVENTS_LOOKED_AT),
    )
    ended: list[tuple[TrafficEvent, Event]] = []
    for one in rows:
        if one.created_by == event.created_by and one.expected_peak_qps is not None:
            past = occurrences(one, max(one.start_at, now - BEHIND), now, 1000)
            ended += [(one, o) for o in past if o.end_at <= now]
    ended.sort(key=lambda pair: pair[1].start_at, reverse=True)
    ratios: list[float] = []
    count = 0
    for one, occurrence in ended[:RECORD_MAX]:
        found = [
            peak / one.expected_peak_qps
            for name in one.workloads
            if (peak := await _peak_of(uow, name, occurrence)) is not None
            and one.expected_peak_qps is not None
        ]
        ratios += found
        count += bool(found)
    if not ratios:
        return None
    middle = median(ratios)
    return PlannerRecord(
        planner=event.created_by,
        category=event.category,
        occurrence_count=count,
        peak_ratio_median=middle,
        peak_ratio_min=min(ratios),
        peak_ratio_max=max(ratios),
        sentence=_record_sentence(event, middle, count),
    )


async def _peak_of(uow: UnitOfWork, name: str, occurrence: Event) -> float | None:
    minutes = await _minutes(uow, name, occurrence.start_at, occurrence.end_at)
    return max((qps for _, qps in minutes if qps is not None), default=None)


def _record_sentence(event: TrafficEvent, ratio: float, count: int) -> str:
    who = f"events{f' of category {event.category}' if event.category else ''} by {event.created_by or 'this planner'}"
    if GOOD_RATIO[0] <= ratio <= GOOD_RATIO[1]:
        return f"The last {count} {who} came to what was expected."
    word = "too much" if ratio < 1 else "too little"
    return (
        f"The last {count} {who} came to {ratio:.0%} of the expected peak in the median: {word} was expected; "
        "say what is really expected, the forecast learns the rest."
    )


def _sentence(report: WorkloadReport) -> str:
    if report.actual_peak_qps is None or report.peak_at is None:
        came = "no demand was observed"
    elif report.peak_ratio is None:
        came = f"peaked at {report.actual_peak_qps:.0f} QPS at {report.peak_at:%H:%M}Z, nobody knows of how many expected"
    else:
        came = (
            f"peaked at {report.actual_peak_qps:.0f} QPS at {report.peak_at:%H:%M}Z, {report.peak_ratio:.0%} of the "
            f"{report.expected_peak_qps:.0f} expected"
        )
    return f"{report.workload} {came}; {_prewarm_sentence(report.prewarm)}."


def _prewarm_sentence(prewarm: PrewarmReport) -> str:
    margin = prewarm.deadline_margin
    if prewarm.outcome is PrewarmOutcome.UNKNOWN:
        return "no record of its prewarm is kept"
    if margin is None:
        return f"its {prewarm.replicas} replicas were never all warm"
    length = abs(margin.total_seconds())
    when = "before" if margin >= timedelta(0) else "after"
    return f"its {prewarm.replicas} replicas were warm {length:.0f} s {when} the deadline"
