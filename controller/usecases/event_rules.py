"""What makes a traffic event acceptable. Pure; every bad field is named at once, with the remedy."""

from datetime import datetime, timedelta

from controller.core.resources import TrafficEvent
from controller.usecases.errors import Findings, InvalidError
from controller.usecases.names import check_id
from controller.usecases.occurrences import (
    ZONE_REMEDY,
    check_exdates,
    check_rrule,
    occurrences,
    parse_local,
    to_instant,
    to_local,
    zone_of,
)
from controller.usecases.workload_rules import DAY, PRIORITY_MAX, REPLICAS_MAX, SECOND, check_pairs

WORKLOADS_MAX = 50
EXDATES_MAX = 366
RDATES_MAX = 366
DURATION_MAX = 31 * DAY
AHEAD_MAX = 5 * 366 * DAY
BEHIND_MAX = 2 * 366 * DAY


def resolve_window(
    time_zone: str,
    start: tuple[datetime | None, str],
    end: tuple[datetime | None, str],
    *,
    recurring: bool,
) -> tuple[datetime, datetime]:
    """Turn start and end, each given as an instant, as wall-clock time in ``time_zone`` or as both, into UTC.

    Raise InvalidError naming the field if one is missing, unreadable, or the two forms disagree.
    """
    findings = Findings("event.")
    findings.require(zone_of(time_zone) is not None, "time_zone", f"{ZONE_REMEDY}; got {time_zone[:60]!r}")
    start_at = _resolve("start", time_zone, start, findings, exact=recurring)
    end_at = _resolve("end", time_zone, end, findings, exact=False)
    findings.raise_if_any()
    if start_at is None or end_at is None:  # pragma: no cover -- a missing one was a violation
        raise InvalidError([])
    return start_at, end_at


def _resolve(
    side: str, time_zone: str, given: tuple[datetime | None, str], findings: Findings, *, exact: bool
) -> datetime | None:
    instant, text = given
    if not text:
        if instant is None:
            findings.add(
                f"{side}_time",
                f"is required: give {side}_time (an instant) or {side}_local (wall-clock time)",
            )
        return instant
    local = parse_local(text)
    if local is None:
        findings.add(
            f"{side}_local", f'must look like "2026-11-11T00:00" or "2026-11-11T00:00:00"; got {text[:40]!r}'
        )
        return None
    zone = zone_of(time_zone)
    if zone is None:
        return None  # said already
    try:
        resolved = to_instant(local, zone)
        given_local = None if instant is None else to_local(instant, time_zone)
    except (OverflowError, ValueError):
        findings.add(f"{side}_local", "is outside the calendar; use a date within 5 years from now")
        return None
    if exact and to_local(resolved, time_zone) != local:
        findings.add(
            f"{side}_local", f"does not exist in {time_zone} on that day; start the recurrence on another day"
        )
    if instant is not None and given_local is not None and given_local.replace(microsecond=0) == local:
        return instant  # also the second of an hour that occurs twice: the instant says which
    if instant is not None:
        findings.add(
            f"{side}_local",
            f"is {resolved:%Y-%m-%dT%H:%M:%SZ} in UTC, but {side}_time says {instant:%Y-%m-%dT%H:%M:%SZ}; give one of them",
        )
    return resolved


def check_event(event: TrafficEvent, now: datetime) -> None:
    """Raise InvalidError with everything wrong with ``event`` at ``now``; whether workloads exist is not asked."""
    findings = Findings("event.")
    check_id(findings, "name", event.id)
    findings.text("display_name", event.display_name, 0, 200)
    findings.require(
        1 <= len(event.workloads) <= WORKLOADS_MAX, "workloads", f"must name 1 to {WORKLOADS_MAX} workloads"
    )
    findings.require(
        len(set(event.workloads)) == len(event.workloads), "workloads", "must not name one twice"
    )
    for index, name in enumerate(event.workloads[:WORKLOADS_MAX]):
        check_id(findings, f"workloads[{index}]", name)
    _check_load(event, findings)
    findings.text("category", event.category, 0, 63)
    findings.number("confidence", event.confidence, 0, 1, above=True)
    findings.duration("margin", event.margin, timedelta(0), DAY)
    findings.duration("lead_override", event.lead_override, SECOND, 2 * DAY)
    findings.number("max_replicas_override", event.max_replicas_override, 1, REPLICAS_MAX)
    findings.number("priority", event.priority, -PRIORITY_MAX, PRIORITY_MAX)
    check_pairs(dict(event.labels), "labels", findings, count_max=64, value_max=200)
    _check_times(event, now, findings)
    findings.raise_if_any()


def _check_load(event: TrafficEvent, findings: Findings) -> None:
    findings.require(
        (event.expected_peak_qps is None) != (event.expected_multiplier is None),
        "expected_peak_qps",
        "give exactly one of expected_peak_qps and expected_multiplier",
    )
    findings.number(
        "expected_peak_qps", event.expected_peak_qps, 0, 1e8, above=True, unit="requests per second"
    )
    findings.number("expected_multiplier", event.expected_multiplier, 0, 1000, above=True)


def _check_times(event: TrafficEvent, now: datetime, findings: Findings) -> None:
    zone_known = findings.require(
        zone_of(event.time_zone) is not None, "time_zone", f"{ZONE_REMEDY}; got {event.time_zone[:60]!r}"
    )
    duration = event.end_at - event.start_at
    ordered = findings.require(duration > timedelta(0), "end_time", "must be after start_time")
    if ordered:
        findings.require(
            duration <= DURATION_MAX, "end_time", f"must be at most {DURATION_MAX.days} days after start_time"
        )
        findings.duration("ramp", event.ramp, timedelta(0), min(duration, DURATION_MAX))
    near = findings.require(
        now - BEHIND_MAX <= event.start_at <= now + AHEAD_MAX,
        "start_time",
        "must be at most 5 years ahead and, for a running recurrence, at most 2 years ago",
    )
    findings.require(
        len(event.exdates_at) <= EXDATES_MAX, "exdate_times", f"must have at most {EXDATES_MAX} entries"
    )
    findings.require(
        len(event.rdates_at) <= RDATES_MAX, "rdate_times", f"must have at most {RDATES_MAX} entries"
    )
    if not (zone_known and ordered and near) or len(event.exdates_at) > EXDATES_MAX:
        return
    _check_recurrence(event, now, findings)


def _check_recurrence(event: TrafficEvent, now: datetime, findings: Findings) -> None:
    if not event.recurring:
        findings.require(
            not event.exdates_at,
            "exdate_times",
            "need rrule or rdate_times; a single event is cancelled instead",
        )
        findings.require(
            event.end_at > now,
            "end_time",
            f"must be in the future; it is {now:%Y-%m-%dT%H:%M:%SZ} in UTC now",
        )
        return
    before = len(findings.violations)
    if any(not event.start_at <= exdate <= now + AHEAD_MAX for exdate in event.exdates_at):
        findings.add("exdate_times", "must lie between start_time and 5 years ahead")
    for index, rdate in enumerate(event.rdates_at[:RDATES_MAX]):
        findings.require(
            event.start_at < rdate <= now + AHEAD_MAX,
            f"rdate_times[{index}]",
            "must lie after start_time and at most 5 years ahead",
        )
    findings.require(
        len(set(event.rdates_at)) == len(event.rdates_at), "rdate_times", "must not name a start twice"
    )
    if len(findings.violations) == before and event.rrule is not None:
        check_rrule(event, findings)
    if len(findings.violations) == before:
        check_exdates(event, findings)
    if len(findings.violations) == before:
        findings.require(
            bool(occurrences(event, now, now + AHEAD_MAX + DURATION_MAX, 1)),
            "rrule" if event.rrule is not None else "rdate_times",
            "must have an occurrence that ends in the future; extend COUNT or UNTIL, or add rdate_times",
        )
