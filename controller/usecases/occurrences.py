"""Expand a traffic event into the occurrences the core decides with; wall-clock time and its gaps.

Promises: wall-clock times become UTC by one stated rule: a time that the zone skips starts at the first
valid instant after the gap, a time that occurs twice means the first, and every occurrence lasts the real
time between the first start and end. Expansion is bounded by the window and by ``limit``. Refuses rules
that could take unbounded work to expand. Called by the loop, by previews and at registration. Pure.
"""

import calendar
import functools
import heapq
import itertools
import re
import zoneinfo
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from dateutil.rrule import rrule, rrulestr

from controller.core.resources import EventState, TrafficEvent
from controller.core.types import Event
from controller.usecases.errors import Findings

OCCURRENCES_MAX = 1000
# Far enough to hold the next occurrence of every rule that registration accepts.
HORIZON = timedelta(days=366 * 30)
# How far back occurrences of a recurrence are looked at: as far as a start may lie behind.
BEHIND = timedelta(days=2 * 366)
RRULE_LENGTH_MAX = 500
_LOCAL = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2})?")
_WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_WEEKDAY = rf"(?:{'|'.join(_WEEKDAYS)})"
_NTH = r"[+-]?(?:0?[1-9]|[1-4]\d|5[0-3])"
_MONTHDAY = r"-?(?:0?[1-9]|[12]\d|3[01])"
_MONTH = r"(?:0?[1-9]|1[0-2])"
_PARTS = {
    "FREQ": re.compile(r"DAILY|WEEKLY|MONTHLY|YEARLY"),
    "INTERVAL": re.compile(r"[1-9]\d{0,2}"),
    "COUNT": re.compile(r"[1-9]\d{0,3}"),
    "UNTIL": re.compile(r"\d{8}(T\d{6}Z?)?"),
    "BYDAY": re.compile(rf"(?:{_NTH})?{_WEEKDAY}(,(?:{_NTH})?{_WEEKDAY}){{0,20}}"),
    "BYMONTHDAY": re.compile(rf"{_MONTHDAY}(,{_MONTHDAY}){{0,30}}"),
    "BYMONTH": re.compile(rf"{_MONTH}(,{_MONTH}){{0,11}}"),
    "WKST": re.compile(_WEEKDAY),
}


@functools.cache
def _zone_names() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones()) - {"Factory", "localtime"}


ZONE_REMEDY = 'must be an IANA zone name such as "Asia/Shanghai" or "UTC"'


def zone_of(name: str) -> ZoneInfo | None:
    """Return the zone, or None if ``name`` is no IANA zone name."""
    return ZoneInfo(name) if name in _zone_names() else None


def parse_local(text: str) -> datetime | None:
    """Return the naive wall-clock time of "YYYY-MM-DDTHH:MM[:SS]", or None."""
    if not _LOCAL.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def to_instant(local: datetime, zone: ZoneInfo) -> datetime:
    """Return the UTC instant of a naive wall-clock time, by the rule above."""
    instant = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == local:
        return instant
    # In a gap the two folds bracket the transition; the first valid instant is the transition itself,
    # found by halving. Whole seconds suffice: zone transitions have no fractions.
    before = local.replace(tzinfo=zone, fold=1).astimezone(UTC)
    offset_before = before.astimezone(zone).utcoffset()
    low, high = 0, int((instant - before).total_seconds())
    while high - low > 1:
        middle = (low + high) // 2
        if (before + timedelta(seconds=middle)).astimezone(zone).utcoffset() == offset_before:
            low = middle
        else:
            high = middle
    return (before + timedelta(seconds=high)).replace(microsecond=0)


def to_local(instant: datetime, time_zone: str) -> datetime:
    """Return the naive wall-clock time of an instant in a zone."""
    return instant.astimezone(ZoneInfo(time_zone)).replace(tzinfo=None)


def check_rrule(event: TrafficEvent, findings: Findings) -> None:
    """Record what is wrong with the recurrence of an event whose zone and window are already fine."""
    parts = _parts(event.rrule or "", findings)
    if parts is None:
        return
    # A rule that matches its own start matches again within a few thousand steps; one that does not
    # (30 February) would be searched for to the end of the calendar.
    start = to_local(event.start_at, event.time_zone)
    if not findings.require(
        _day_fits(start, parts),
        "rrule",
        f"must include the first occurrence, {start:%A %Y-%m-%d}; move the start to a day the rule names",
    ):
        return
    try:
        first = next(iter(_rule(event)), None)
    except (ValueError, TypeError, OverflowError) as error:
        findings.add("rrule", f"cannot be read: {error}; see RFC 5545")
        return
    findings.require(first == start, "rrule", f"must include the first occurrence, {start:%Y-%m-%dT%H:%M}")


def check_exdates(event: TrafficEvent, findings: Findings) -> None:
    """Record every exception that is no start of an occurrence of an event whose recurrence is already fine."""
    skipped = set(event.exdates_at)
    known = {o for o in _starts(event, event.start_at, max(skipped, default=event.start_at)) if o in skipped}
    for index, exdate in enumerate(event.exdates_at):
        findings.require(exdate in known, f"exdate_times[{index}]", "must be the start of an occurrence")


def _parts(text: str, findings: Findings) -> dict[str, str] | None:
    parts: dict[str, str] = {}
    before = len(findings.violations)
    findings.text("rrule", text, 1, RRULE_LENGTH_MAX)
    for part in text[:RRULE_LENGTH_MAX].split(";"):
        key, _, value = part.partition("=")
        if key not in _PARTS or key in parts or not _PARTS[key].fullmatch(value):
            findings.add("rrule", f"cannot use {part[:60]!r}; use {', '.join(_PARTS)} as in RFC 5545")
        parts[key] = value
    findings.require("FREQ" in parts, "rrule", "must have FREQ, for example FREQ=WEEKLY;BYDAY=FR")
    findings.require(not {"COUNT", "UNTIL"} <= parts.keys(), "rrule", "must not have both COUNT and UNTIL")
    if parts.get("FREQ") in {"DAILY", "WEEKLY"}:
        findings.require("BYMONTHDAY" not in parts, "rrule", "BYMONTHDAY needs FREQ=MONTHLY or YEARLY")
        findings.require(
            not re.search(r"\d", parts.get("BYDAY", "")),
            "rrule",
            "numbered days such as 1MO need FREQ=MONTHLY or YEARLY",
        )
    if parts.get("FREQ") == "MONTHLY" or "BYMONTH" in parts:
        # The library finds out in December only, and by an IndexError, that no month has nine Mondays.
        findings.require(
            all(int(nth) <= 5 for nth in re.findall(r"\d+", parts.get("BYDAY", ""))),
            "rrule",
            "numbered days of a month go from 1 to 5, or from -1 to -5",
        )
    return parts if len(findings.violations) == before else None


def _day_fits(day: datetime, parts: Mapping[str, str]) -> bool:
    """Whether ``day`` satisfies every BY... part."""
    if "BYMONTH" in parts and day.month not in {int(m) for m in parts["BYMONTH"].split(",")}:
        return False
    in_month = (day.day, calendar.monthrange(day.year, day.month)[1])
    if "BYMONTHDAY" in parts:
        days = {int(d) for d in parts["BYMONTHDAY"].split(",")}
        if not days & {in_month[0], in_month[0] - in_month[1] - 1}:
            return False
    if "BYDAY" not in parts:
        return True
    monthly = parts["FREQ"] == "MONTHLY" or "BYMONTH" in parts
    in_year = (day.timetuple().tm_yday, 365 + calendar.isleap(day.year))
    number, length = in_month if monthly else in_year
    name = _WEEKDAYS[day.weekday()]
    ordinals = {"", str((number - 1) // 7 + 1), str(-((length - number) // 7 + 1))}
    return any(
        d[-2:] == name and d[:-2].removeprefix("+").replace("-0", "-").lstrip("0") in ordinals
        for d in parts["BYDAY"].split(",")
    )


def _rule(event: TrafficEvent) -> rrule:
    text = event.rrule or ""
    # UNTIL may be given in UTC; the rule runs on wall-clock time, so it is translated first.
    match = re.search(r"UNTIL=(\d{8}T\d{6})Z", text)
    if match:
        until = datetime.strptime(match[1], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
        text = text.replace(match[0], f"UNTIL={to_local(until, event.time_zone):%Y%m%dT%H%M%S}")
    elif re.search(r"UNTIL=\d{8}(;|$)", text):
        # A date alone includes that whole day.
        text = re.sub(r"UNTIL=(\d{8})", r"UNTIL=\1T235959", text)
    rule = rrulestr(text, dtstart=to_local(event.start_at, event.time_zone))
    if not isinstance(rule, rrule):
        raise ValueError("one rule only")  # noqa: TRY004 -- the text is wrong, not a caller's type
    return rule


def _starts(event: TrafficEvent, low: datetime, high: datetime) -> Iterator[datetime]:
    """Starts in ``[low, high]``, UTC, in order, exceptions included, none twice."""
    own = _rule_starts(event, low, high) if event.rrule else iter([event.start_at])
    last: datetime | None = None
    for start_at in heapq.merge(own, sorted(event.rdates_at)):
        if start_at != last and low <= start_at <= high:
            yield start_at
        last = start_at


def _rule_starts(event: TrafficEvent, low: datetime, high: datetime) -> Iterator[datetime]:
    zone = ZoneInfo(event.time_zone)
    slack = timedelta(days=1)  # wall clocks of one zone never differ by more from its UTC offset's drift
    for local in _rule(event).xafter(to_local(low, event.time_zone) - slack, inc=True):
        if local > to_local(high, event.time_zone) + slack:
            return
        start_at = to_instant(local, zone)
        if low <= start_at <= high:
            yield start_at


def occurrences(event: TrafficEvent, start_at: datetime, end_at: datetime, limit: int) -> list[Event]:
    """Occurrences that overlap ``[start_at, end_at)``, in order, at most ``limit``; none of a cancelled event.

    Each concerns every workload of the event alike. The id is the event's for a single event, and the
    event's with "@" and the UTC start for a recurring one, so that each occurrence is followed on its own.
    """
    if event.state is EventState.CANCELLED or limit <= 0:
        return []
    duration = event.end_at - event.start_at
    skipped = frozenset(event.exdates_at)
    found = (
        start
        for start in _starts(event, start_at - duration, end_at)
        if start not in skipped and start < end_at and start + duration > start_at
    )
    return [_occurrence(event, start) for start in itertools.islice(found, min(limit, OCCURRENCES_MAX))]


def _occurrence(event: TrafficEvent, start_at: datetime) -> Event:
    return Event(
        id=f"{event.id}@{start_at:%Y%m%dT%H%M%SZ}" if event.recurring else event.id,
        start_at=start_at,
        end_at=start_at + (event.end_at - event.start_at),
        expected_peak_qps=event.expected_peak_qps,
        expected_multiplier=event.expected_multiplier,
        category=event.category,
        confidence=event.confidence,
        ramp=event.ramp,
        margin=event.margin,
        lead_override=event.lead_override,
        max_replicas_override=event.max_replicas_override,
        priority=event.priority,
        revision=event.revision,
    )


def event_id_of(occurrence_id: str) -> str:
    """Return the id of the event an occurrence belongs to."""
    return occurrence_id.partition("@")[0]


def state_at(event: TrafficEvent, now: datetime, prewarming: frozenset[str]) -> EventState:
    """Where an event stands at ``now``. ``prewarming`` holds occurrences whose contracts have been ordered.

    Derived, not stored: time alone must not make a new revision, which would look like an edit.
    """
    if event.state is EventState.CANCELLED:
        return event.state
    coming = occurrences(event, now, now + HORIZON, 1)
    if not coming:
        return EventState.COMPLETED
    if coming[0].start_at <= now:
        return EventState.ACTIVE
    return EventState.PREWARMING if coming[0].id in prewarming else EventState.SCHEDULED
