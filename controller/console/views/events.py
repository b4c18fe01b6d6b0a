"""Traffic events as pages show them: rows, a month, an agenda, a form and what it says, an import, a report.

Promises: pure functions from messages to values; ``now`` and time zones are arguments; words are keys of the catalogue
of messages, except names and the API's own sentences. What the API leaves absent is None, never 0. Called by
`pages.events` and `pages.night`.
"""

import calendar
import heapq
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dateutil.rrule import rrulestr
from forecrest.v1 import event_pb2, event_service_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from controller.client import ApiError
from controller.console.live import instant

OCCURRENCES_MAX = 400
WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
OPEN_STATES = frozenset({"scheduled", "prewarming", "active"})
CATEGORIES = ("promotion", "livestream", "class", "launch", "match")
# Occurrences offered for a report, and how far back they are looked for: as long as minutes are worth comparing.
REPORTED_MAX = 12
_REPORTED_BACK = timedelta(days=370)
_DEFAULT_LENGTH = timedelta(hours=2)


def span(message: Message, name: str) -> timedelta | None:
    """Return a Duration field, or None where it is absent."""
    if not message.HasField(name):
        return None
    value: Duration = getattr(message, name)
    return value.ToTimedelta()


def number(message: Message, name: str) -> float | None:
    """Return a number, or None where it is absent."""
    return float(getattr(message, name)) if message.HasField(name) else None


def whole(message: Message, name: str) -> int | None:
    """Return a whole number, or None where it is absent."""
    return int(getattr(message, name)) if message.HasField(name) else None


def short(name: str) -> str:
    """Return the last part of a resource name."""
    return name.rpartition("/")[2]


def word(value: int, descriptor: object, prefix: str) -> str:
    """Return an enum value as the last part of a message key: ``EVENT_STATE_ACTIVE`` is ``active``."""
    found = getattr(descriptor, "values_by_number", {}).get(value)
    return "unknown" if found is None or value == 0 else found.name.removeprefix(prefix).lower()


def zone_or(name: str, fallback: tzinfo = UTC) -> tzinfo:
    """Return the zone of an IANA name, or ``fallback`` where this machine does not know it."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return fallback


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event in a list. ``start_at`` and ``end_at`` are those of the occurrence that runs or comes next."""

    id: str
    title: str
    state: str
    workloads: tuple[str, ...]
    start_at: datetime
    end_at: datetime
    time_zone: str
    category: str
    recurring: bool
    rrule: str
    peak_qps: float | None
    multiplier: float | None
    created_by: str
    cancel_reason: str
    warnings: tuple[str, ...]
    etag: str

    @property
    def open(self) -> bool:
        """Whether it can still be changed."""
        return self.state in OPEN_STATES

    @property
    def zone(self) -> tzinfo:
        """The planner's own zone."""
        return zone_or(self.time_zone)


def event_row(event: event_pb2.Event, now: datetime) -> EventRow:
    """Return the row of an event as it stands at ``now``."""
    start_at = event.start_time.ToDatetime(UTC)
    length = event.end_time.ToDatetime(UTC) - start_at
    ahead = occurrences(event, now, now + timedelta(days=750))
    start_at = next(ahead, start_at)
    load = event.WhichOneof("expected_load")
    return EventRow(
        id=short(event.name),
        title=event.display_name or short(event.name),
        state=word(event.state, event_pb2.EventState.DESCRIPTOR, "EVENT_STATE_"),
        workloads=tuple(map(short, event.workloads)),
        start_at=start_at,
        end_at=start_at + length,
        time_zone=event.time_zone,
        category=event.category,
        recurring=bool(event.rrule or event.rdate_times),
        rrule=event.rrule,
        peak_qps=event.expected_peak_qps if load == "expected_peak_qps" else None,
        multiplier=event.expected_multiplier if load == "expected_multiplier" else None,
        created_by=event.created_by,
        cancel_reason=event.cancel_reason,
        warnings=tuple(w.sentence for w in event.warnings),
        etag=event.etag,
    )


@dataclass(frozen=True, slots=True)
class EventFilter:
    """What a list is narrowed to; empty: not. ``state`` "open" is every state in which it is not over."""

    workload: str = ""
    state: str = ""
    category: str = ""
    text: str = ""

    def matches(self, row: EventRow) -> bool:
        """Whether a row is to be shown."""
        text = self.text.casefold()
        return (
            self.workload in {"", *row.workloads}
            and (self.state in {"", row.state} or (self.state == "open" and row.open))
            and self.category in {"", row.category}
            and (text in row.title.casefold() or text in row.id)
        )


def occurrences(event: event_pb2.Event, start_at: datetime, end_at: datetime) -> Iterator[datetime]:
    """Yield the starts of occurrences that overlap ``[start_at, end_at)``, in order, at most OCCURRENCES_MAX.

    The recurrence runs on wall-clock time, as the API does; a rule that cannot be read here yields the first only.
    """
    first = event.start_time.ToDatetime(UTC)
    length = event.end_time.ToDatetime(UTC) - first
    skipped = {t.ToDatetime(UTC) for t in event.exdate_times}
    fixed = sorted({first, *(t.ToDatetime(UTC) for t in event.rdate_times)})
    ruled = _repeated(event, first, start_at - length, end_at) if event.rrule else iter(())
    # Lazily: who asks for the next one only does not pay for years of them.
    merged = (start for start, _ in itertools.groupby(heapq.merge(fixed, ruled)))
    shown = (s for s in merged if s not in skipped and s < end_at and s + length > start_at)
    yield from itertools.islice(shown, OCCURRENCES_MAX)


def past_occurrences(event: event_pb2.Event, now: datetime) -> tuple[tuple[str, datetime], ...]:
    """Return (id, start) of the newest occurrences that have started, newest first; none of an event that is once."""
    if not event.rrule and not event.rdate_times:
        return ()
    starts = [at for at in occurrences(event, now - _REPORTED_BACK, now) if at <= now][-REPORTED_MAX:]
    return tuple((f"{short(event.name)}@{at:%Y%m%dT%H%M%SZ}", at) for at in reversed(starts))


def _repeated(
    event: event_pb2.Event, first: datetime, after: datetime, before: datetime
) -> Iterator[datetime]:
    zone = zone_or(event.time_zone)
    # Naive on purpose: dateutil would move aware starts by their offset when clocks change.
    local = first.astimezone(zone).replace(tzinfo=None)
    day = timedelta(days=1)
    low = max(after, first).astimezone(zone).replace(tzinfo=None) - day
    high = before.astimezone(zone).replace(tzinfo=None) + day
    try:
        # UNTIL in UTC cannot be mixed with naive starts; the calendar shows days, and a day is near enough.
        rule = rrulestr(re.sub(r"(UNTIL=\d{8}T\d{6})Z", r"\1", event.rrule), dtstart=local)
        for start in itertools.islice(rule.xafter(low, inc=True), OCCURRENCES_MAX):
            if start > high:
                return
            yield start.replace(tzinfo=zone).astimezone(UTC)
    except (ValueError, TypeError, OverflowError):
        return


@dataclass(frozen=True, slots=True)
class Entry:
    """One occurrence on one day of a calendar; ``begins`` is False on the days it goes on."""

    event: EventRow
    start_at: datetime
    end_at: datetime
    begins: bool


@dataclass(frozen=True, slots=True)
class Day:
    """One day of a calendar, in the reader's zone."""

    day: date
    in_month: bool
    today: bool
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Month:
    """Whole weeks from Monday on that hold a month."""

    first: date
    before: date
    after: date
    weeks: tuple[tuple[Day, ...], ...]


def month_bounds(first: date, zone: tzinfo) -> tuple[datetime, datetime]:
    """Return the instants at which the calendar sheet of a month begins and ends."""
    dates = list(calendar.Calendar().itermonthdates(first.year, first.month))
    return _midnight(dates[0], zone), _midnight(dates[-1] + timedelta(days=1), zone)


def _midnight(day: date, zone: tzinfo) -> datetime:
    return datetime.combine(day, time(), zone).astimezone(UTC)


def month(events: Sequence[event_pb2.Event], first: date, zone: tzinfo, now: datetime) -> Month:
    """Return the sheet of the month that begins at ``first``; cancelled events are left out."""
    by_day = _by_day(events, *month_bounds(first, zone), zone, now)
    today = now.astimezone(zone).date()
    dates = calendar.Calendar().monthdatescalendar(first.year, first.month)
    last = first.replace(day=calendar.monthrange(first.year, first.month)[1])
    return Month(
        first=first,
        before=(first - timedelta(days=1)).replace(day=1),
        after=last + timedelta(days=1),
        weeks=tuple(
            tuple(
                Day(day, day.month == first.month, day == today, tuple(by_day.get(day, ()))) for day in week
            )
            for week in dates
        ),
    )


def agenda(
    events: Sequence[event_pb2.Event], start_at: datetime, end_at: datetime, zone: tzinfo, now: datetime
) -> tuple[Day, ...]:
    """Return the days in the window on which something begins or goes on; cancelled events are left out."""
    by_day = _by_day(events, start_at, end_at, zone, now)
    today = now.astimezone(zone).date()
    return tuple(Day(day, True, day == today, tuple(by_day[day])) for day in sorted(by_day))


def _by_day(
    events: Sequence[event_pb2.Event], start_at: datetime, end_at: datetime, zone: tzinfo, now: datetime
) -> dict[date, list[Entry]]:
    found: dict[date, list[Entry]] = {}
    for event in events:
        if event.state == event_pb2.EVENT_STATE_CANCELLED:
            continue
        row = event_row(event, now)
        length = row.end_at - row.start_at
        for start in occurrences(event, start_at, end_at):
            first, last = start.astimezone(zone), (start + length).astimezone(zone)
            # A window is half open: what ends at midnight does not touch the next day.
            final = (last - timedelta(microseconds=1)).date()
            day = first.date()
            while day <= final and _midnight(day, zone) < end_at:
                if _midnight(day, zone) + timedelta(days=1) > start_at:
                    entry = Entry(row, start, start + length, begins=day == first.date())
                    found.setdefault(day, []).append(entry)
                day += timedelta(days=1)
    for entries in found.values():
        entries.sort(key=lambda e: (e.start_at, e.event.id))
    return found


REPEATS = ("once", "daily", "weekly", "weekdays", "monthly", "yearly", "custom")


def repeat_of(rrule: str, start_local: str) -> str:
    """Return the preset that a stored rule is, "custom" where it is none of them."""
    return next((p for p in REPEATS[:-1] if rule_of(p, start_local) == rrule), "custom")


def rule_of(preset: str, start_local: str) -> str:
    """Return the RRULE of a preset for a first start; "" for one that does not repeat or cannot be told yet."""
    try:
        start = datetime.fromisoformat(start_local)
    except ValueError:
        return ""
    return {
        "daily": "FREQ=DAILY",
        "weekly": f"FREQ=WEEKLY;BYDAY={WEEKDAYS[start.weekday()]}",
        "weekdays": "FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR",
        "monthly": f"FREQ=MONTHLY;BYMONTHDAY={start.day}",
        "yearly": "FREQ=YEARLY",
    }.get(preset, "")


@dataclass(frozen=True, slots=True)
class EventForm:
    """What the form's fields hold, as typed."""

    display_name: str = ""
    workloads: tuple[str, ...] = ()
    start: str = ""
    end: str = ""
    time_zone: str = ""
    load: str = "peak"
    peak_qps: str = ""
    multiplier: str = ""
    category: str = "promotion"
    repeat: str = "once"
    rrule: str = ""
    confidence: str = "0.8"
    ramp_min: str = ""
    margin_min: str = ""
    lead_min: str = ""
    max_replicas: str = ""
    priority: str = ""
    etag: str = ""


# Field of the form -> fields of Event it fills. What is not here stays as it is stored.
FIELDS: Mapping[str, tuple[str, ...]] = {
    "display_name": ("display_name",),
    "workloads": ("workloads",),
    "start": ("start_local", "start_time"),
    "end": ("end_local", "end_time"),
    "time_zone": ("time_zone",),
    "peak_qps": ("expected_peak_qps", "expected_load"),
    "multiplier": ("expected_multiplier",),
    "category": ("category",),
    "rrule": ("rrule", "exdate_times", "rdate_times"),
    "confidence": ("confidence",),
    "ramp_min": ("ramp",),
    "margin_min": ("margin",),
    "lead_min": ("lead_override",),
    "max_replicas": ("max_replicas_override",),
    "priority": ("priority",),
}
MASK = (
    "display_name",
    "workloads",
    "start_local",
    "end_local",
    "time_zone",
    "expected_peak_qps",
    "expected_multiplier",
    "category",
    "rrule",
    "confidence",
    "ramp",
    "margin",
    "lead_override",
    "max_replicas_override",
    "priority",
)


_LOADS = frozenset({"expected_peak_qps", "expected_multiplier"})


def empty_form(now: datetime, zone: tzinfo, workloads: Sequence[str] = ()) -> EventForm:
    """Return a form for the coming midnight, with the only workload there is already chosen."""
    local = now.astimezone(zone).replace(tzinfo=None)
    start = datetime.combine(local.date() + timedelta(days=1), time())
    return EventForm(
        workloads=tuple(workloads) if len(workloads) == 1 else (),
        start=_typed_time(start),
        end=_typed_time(start + _DEFAULT_LENGTH),
        time_zone=str(zone) if isinstance(zone, ZoneInfo) else "",
    )


def form_of(event: event_pb2.Event) -> EventForm:
    """Return the form that shows a stored event."""
    load = event.WhichOneof("expected_load")
    return EventForm(
        display_name=event.display_name,
        workloads=tuple(map(short, event.workloads)),
        start=_without_zero_seconds(event.start_local),
        end=_without_zero_seconds(event.end_local),
        time_zone=event.time_zone,
        load="multiplier" if load == "expected_multiplier" else "peak",
        peak_qps=f"{event.expected_peak_qps:.10g}" if load == "expected_peak_qps" else "",
        multiplier=f"{event.expected_multiplier:.10g}" if load == "expected_multiplier" else "",
        category=event.category,
        repeat=repeat_of(event.rrule, event.start_local) if event.rrule else "once",
        rrule=event.rrule,
        confidence=f"{event.confidence:g}" if event.HasField("confidence") else "0.8",
        # The API says 0 where nobody said anything: a step.
        ramp_min=_minutes(span(event, "ramp") or None),
        margin_min=_minutes(span(event, "margin")),
        lead_min=_minutes(span(event, "lead_override")),
        max_replicas=str(event.max_replicas_override) if event.HasField("max_replicas_override") else "",
        priority=str(event.priority) if event.priority else "",
        etag=event.etag,
    )


def copied_form(event: event_pb2.Event, now: datetime) -> EventForm:
    """Return a form for the same event once more: tomorrow, at the same time of day and as long."""
    zone = zone_or(event.time_zone)
    start = event.start_time.ToDatetime(UTC).astimezone(zone).replace(tzinfo=None)
    length = event.end_time.ToDatetime(UTC) - event.start_time.ToDatetime(UTC)
    again = datetime.combine(now.astimezone(zone).date() + timedelta(days=1), start.time())
    return replace(
        form_of(event),
        start=_typed_time(again),
        end=_typed_time(again + length),
        repeat="once",
        rrule="",
        etag="",
    )


def _without_zero_seconds(text: str) -> str:
    return re.sub(r"(T\d\d:\d\d):00$", r"\1", text)


def _typed_time(local: datetime) -> str:
    return local.isoformat(timespec="minutes")


def _minutes(length: timedelta | None) -> str:
    return "" if length is None else f"{length.total_seconds() / 60:g}"


def form_from(fields: Mapping[str, Sequence[str]]) -> EventForm:
    """Return the form from what a browser sent; unknown fields are ignored."""

    def one(name: str, default: str = "") -> str:
        return next(iter(fields.get(name, ())), default).strip()

    names = [f for f in EventForm.__dataclass_fields__ if f != "workloads"]
    return EventForm(
        workloads=tuple(dict.fromkeys(w for w in fields.get("workloads", ()) if w)),
        **{name: one(name) for name in names},
    )


_NUMBERS = {
    "peak_qps": "expected_peak_qps",
    "multiplier": "expected_multiplier",
    "confidence": "confidence",
    "ramp_min": "ramp",
    "margin_min": "margin",
    "lead_min": "lead_override",
    "max_replicas": "max_replicas_override",
    "priority": "priority",
}
_MINUTES = frozenset({"ramp", "margin", "lead_override"})
_WHOLE = frozenset({"max_replicas_override", "priority"})


def _fill(event: event_pb2.Event, target: str, text: str) -> None:
    """Put a number as typed into a field, nothing if there is none; raise ValueError or OverflowError."""
    if not text:
        return
    if target in _MINUTES:
        getattr(event, target).FromTimedelta(timedelta(minutes=float(text)))
    elif target in _WHOLE:
        setattr(event, target, int(text))
    else:
        setattr(event, target, float(text.replace(",", "").replace(" ", "")))


def draft(form: EventForm) -> tuple[event_pb2.Event, dict[str, str]]:
    """Return the event that a form describes, and message keys for the fields whose text is no number.

    What the API judges is left to the API; only what cannot be sent at all is found here.
    """
    event = event_pb2.Event(
        display_name=form.display_name,
        workloads=[f"workloads/{name}" for name in form.workloads],
        start_local=form.start,
        end_local=form.end,
        time_zone=form.time_zone,
        category=form.category,
    )
    rule = form.rrule if form.repeat == "custom" else rule_of(form.repeat, form.start)
    if rule:
        event.rrule = rule
    wrong: dict[str, str] = {}
    for name, target in _NUMBERS.items():
        text = (
            "" if name == ("peak_qps" if form.load == "multiplier" else "multiplier") else getattr(form, name)
        )
        try:
            _fill(event, target, text)
        except (ValueError, OverflowError):
            wrong[name] = "events.error.whole" if target in _WHOLE else "events.error.number"
    return event, wrong


def mask(stored: event_pb2.Event, wanted: event_pb2.Event) -> tuple[str, ...]:
    """Return the fields to change so that ``stored`` says what the form says; fields it does not show stay."""
    known, _ = draft(form_of(stored))
    changed = [name for name in MASK if _field(known, name) != _field(wanted, name)]
    if "time_zone" in changed:
        # Alone it would keep the instants, and the form shows wall-clock times.
        changed += [name for name in ("start_local", "end_local") if name not in changed]
    load = wanted.WhichOneof("expected_load")
    if load is not None:  # setting one clears the other
        changed = [name for name in changed if name not in _LOADS or name == load]
    return tuple(changed)


def _field(message: Message, name: str) -> object:
    if name == "workloads":  # their order says nothing
        return sorted(getattr(message, name))
    tells_absence = message.DESCRIPTOR.fields_by_name[name].has_presence
    return None if tells_absence and not message.HasField(name) else getattr(message, name)


def id_of(title: str) -> str:
    """Return a readable id for a title, "" where its letters make none."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    found = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:48].rstrip("-")
    return found if re.match(r"[a-z]", found) else ""


@dataclass(frozen=True, slots=True)
class FieldErrors:
    """What the API refused: remedies by field of the form, and what belongs to no field."""

    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    general: tuple[str, ...] = ()


def field_errors(error: ApiError, form: EventForm) -> FieldErrors:
    """Sort the API's violations by the fields of the form in which they are put right."""
    owner = {target: name for name, targets in FIELDS.items() for target in targets}

    def field_of(path: str) -> str | None:
        name = owner.get(re.split(r"[.\[]", path.removeprefix("event."), maxsplit=1)[0])
        return "multiplier" if name == "peak_qps" and form.load == "multiplier" else name

    return sorted_violations(error, field_of)


def sorted_violations(error: ApiError, field_of: Callable[[str], str | None]) -> FieldErrors:
    """Put each violation to the form's field that ``field_of`` its path names; None: it belongs to no field."""
    fields: dict[str, tuple[str, ...]] = {}
    general: list[str] = []
    for path, remedy in error.violations:
        name = field_of(path)
        if name is None:
            general.append(f"{path}: {remedy}")
        else:
            fields[name] = (*fields.get(name, ()), remedy)
    if not error.violations:
        general.append(error.message)
    return FieldErrors(fields, tuple(general))


def changes(mine: EventForm, theirs: EventForm) -> tuple[tuple[str, str, str], ...]:
    """Return (field, what this form says, what is stored now) where the two differ."""

    def text(value: object) -> str:
        return ", ".join(sorted(value)) if isinstance(value, tuple) else str(value)

    return tuple(
        (name, text(getattr(mine, name)), text(getattr(theirs, name)))
        for name in EventForm.__dataclass_fields__
        if name != "etag" and text(getattr(mine, name)) != text(getattr(theirs, name))
    )


@dataclass(frozen=True, slots=True)
class ImportRow:
    """What an import does, or would do, with one entry of a file."""

    action: str
    title: str
    event_id: str
    start_at: datetime | None
    time_zone: str
    sentence: str

    @property
    def zone(self) -> tzinfo:
        """The event's own zone."""
        return zone_or(self.time_zone)


def import_rows(
    imported: Iterable[event_service_pb2.ImportedEvent],
) -> tuple[ImportRow, ...]:
    """Return the rows of an import, in the order of the file."""
    return tuple(
        ImportRow(
            action=word(one.action, event_service_pb2.ImportAction.DESCRIPTOR, "IMPORT_ACTION_"),
            title=(one.event.display_name or short(one.event.name)) if one.HasField("event") else one.uid,
            event_id=short(one.event.name) if one.HasField("event") else "",
            start_at=instant(one.event, "start_time") if one.HasField("event") else None,
            time_zone=one.event.time_zone,
            sentence=one.sentence,
        )
        for one in imported
    )


@dataclass(frozen=True, slots=True)
class ReportRow:
    """Expected beside actual, for one workload. None: the API does not know."""

    workload: str
    sentence: str
    expected_peak_qps: float | None
    planned_qps: float | None
    actual_peak_qps: float | None
    peak_at: datetime | None
    peak_ratio: float | None
    expected_requests: float | None
    actual_requests: float | None
    observed_share: float
    planned_replicas: int | None
    peak_replicas: int | None
    replica_hours: float | None
    extra_replica_hours: float | None
    outcome: str
    met_at: datetime | None
    deadline_at: datetime | None
    start_margin: timedelta | None
    shortfall: int


@dataclass(frozen=True, slots=True)
class Report:
    """How an occurrence compared with what was expected of it."""

    occurrence: str
    start_at: datetime
    end_at: datetime
    complete: bool
    rows: tuple[ReportRow, ...]
    record_sentence: str
    record_count: int


def report_view(report: event_service_pb2.EventReport) -> Report:
    """Return the page's values of a report."""
    known = report.HasField("planner_record")
    return Report(
        occurrence=report.occurrence_id,
        start_at=report.start_time.ToDatetime(UTC),
        end_at=report.end_time.ToDatetime(UTC),
        complete=report.complete,
        rows=tuple(map(_report_row, report.workloads)),
        record_sentence=report.planner_record.sentence if known else "",
        record_count=report.planner_record.occurrence_count if known else 0,
    )


def _report_row(one: event_service_pb2.WorkloadReport) -> ReportRow:
    return ReportRow(
        workload=short(one.workload),
        sentence=one.sentence,
        expected_peak_qps=number(one, "expected_peak_qps"),
        planned_qps=number(one, "planned_qps"),
        actual_peak_qps=number(one, "actual_peak_qps"),
        peak_at=instant(one, "peak_time"),
        peak_ratio=number(one, "peak_ratio"),
        expected_requests=number(one, "expected_request_count"),
        actual_requests=number(one, "actual_request_count"),
        observed_share=one.observed_share,
        planned_replicas=whole(one, "planned_replicas"),
        peak_replicas=whole(one, "peak_replicas"),
        replica_hours=number(one, "replica_hours"),
        extra_replica_hours=number(one, "extra_replica_hours"),
        outcome=word(one.prewarm.outcome, event_service_pb2.PrewarmOutcome.DESCRIPTOR, "PREWARM_OUTCOME_"),
        met_at=instant(one.prewarm, "met_time"),
        deadline_at=instant(one.prewarm, "deadline_time"),
        start_margin=span(one.prewarm, "start_margin"),
        shortfall=one.prewarm.shortfall_replicas,
    )
