"""Traffic events as iCalendar (RFC 5545) and back: VEVENTs with X-FORECREST- properties for what calendars lack.

Promises: what is exported reads back as the same event; a VEVENT is told again by its UID; times follow the rules of
occurrences, whatever offsets the file's own VTIMEZONEs claim. Refuses, by VEVENT and property: zones that are no IANA
zone, floating times without a zone to read them in, several rules, recurrences this API does not take. Size, lines,
nesting and counts are bounded before a parser sees anything. Called by import and export. Pure.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import icalendar
from icalendar.timezone.windows_to_olson import WINDOWS_TO_OLSON

from controller.core.resources import EventState, TrafficEvent
from controller.usecases.errors import InvalidError, Violation
from controller.usecases.names import ID
from controller.usecases.occurrences import to_instant, to_local, zone_of

FILE_BYTES_MAX = 1024 * 1024
LINES_MAX = 40_000
LINE_LENGTH_MAX = 4_000
DEPTH_MAX = 3
EVENTS_MAX = 500
COMPONENTS_MAX = 3_000
VALUES_MAX = 1_000
UID_LENGTH_MAX = 500
VIOLATIONS_MAX = 50
UID_LABEL = "ical-uid"
X = "X-FORECREST-"
_DAY = timedelta(days=1)
# One attempt per run of line breaks, so that empty lines cost no more than their number.
_FOLD = re.compile(r"(?<!\n)\n+[ \t]")
_PREFIXED = re.compile(r'TZID([=:])"?(/[^";:\n]+)"?', re.IGNORECASE)
# No IANA name has more parts; looking for longer ones would cost the square of a hostile name's length.
_ZONE_PARTS_MAX = 3
# Numbers a VEVENT may state, by property, with the field of the event.
_NUMBERS: Mapping[str, str] = {
    "PEAK-QPS": "expected_peak_qps",
    "MULTIPLIER": "expected_multiplier",
    "CONFIDENCE": "confidence",
    "MAX-REPLICAS": "max_replicas_override",
    "PRIORITY": "priority",
}
_WHOLE = {"max_replicas_override", "priority"}
_DURATIONS: Mapping[str, str] = {"RAMP": "ramp", "MARGIN": "margin", "LEAD": "lead_override"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One VEVENT. ``said``: the fields of ``event`` that the file states; the others come from the template."""

    index: int
    uid: str
    event: TrafficEvent
    said: frozenset[str]
    cancelled: bool
    replaces: datetime | None = None  # the occurrence of its UID that it stands for


class _BadPropertyError(ValueError):
    def __init__(self, name: str, problem: str) -> None:
        super().__init__(problem)
        self.name = name


def parse_calendar(data: bytes, template: TrafficEvent, time_zone: str) -> list[Entry]:
    """Return the VEVENTs of a file, in its order; raise InvalidError naming each bad one.

    ``time_zone`` is the zone of floating times, "" if nobody said; X-WR-TIMEZONE of the file comes first.
    """
    calendar = _read(data)
    zone = _zone_name(str(calendar.get("X-WR-TIMEZONE", ""))) or time_zone
    entries: list[Entry] = []
    violations: list[Violation] = []
    for index, component in enumerate(c for c in calendar.subcomponents if c.name == "VEVENT"):
        uid = str(component.get("UID", ""))
        try:
            entries.append(_entry(index, uid, component, template, zone))
        except _BadPropertyError as error:
            violations.append(Violation(where(index, uid, error.name), str(error)))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, IndexError) as error:
            # The library meets malformed values with whatever exception comes first.
            violations.append(
                Violation(where(index, uid, "VEVENT"), f"cannot be read ({type(error).__name__})")
            )
        if len(violations) >= VIOLATIONS_MAX:
            break
    if violations:
        raise InvalidError(violations)
    if not entries:
        raise InvalidError([Violation("calendar", "holds no VEVENT; export events, not tasks")])
    return _without_replaced(_told_apart(entries))


def where(index: int, uid: str, name: str) -> str:
    """The path of a property of a VEVENT, for people who look for it in the file."""
    shown = "".join(c for c in uid if c.isprintable())[:60]
    return f'calendar.events[{index}]["{shown}"].{name}'


def _read(data: bytes) -> icalendar.Calendar:
    if not data:
        raise InvalidError([Violation("calendar", "is required: the bytes of an iCalendar file")])
    if len(data) > FILE_BYTES_MAX:
        raise InvalidError(
            [Violation("calendar", f"must have at most {FILE_BYTES_MAX} bytes; got {len(data)}; split it")]
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidError([Violation("calendar", f"must be UTF-8; byte {error.start} is not")]) from None
    text = text.replace("\r", "")
    if (count := text.count("\n")) > LINES_MAX:
        raise InvalidError(
            [Violation("calendar", f"must have at most {LINES_MAX} lines; got {count}; split it")]
        )
    # Unfolded before anything is counted: what is counted is what the parser will see.
    lines = _FOLD.sub("", text).split("\n")
    problem = _shape_problem(lines)
    if problem:
        raise InvalidError([Violation("calendar", problem)])
    try:
        calendar = icalendar.Calendar.from_ical(_PREFIXED.sub(_plain_zone, "\n".join(_without_zones(lines))))
    except Exception as error:  # noqa: BLE001 -- the library raises what it meets; a bad file is never our failure
        raise InvalidError(
            [Violation("calendar", f"is no iCalendar file ({type(error).__name__}); export it again")]
        ) from None
    if calendar.name != "VCALENDAR":
        raise InvalidError([Violation("calendar", "must begin with BEGIN:VCALENDAR")])
    return calendar


def _plain_zone(found: re.Match[str]) -> str:
    """A TZID that begins with "/" in the short form, so that the library need not guess."""
    return f"TZID{found[1]}{_zone_name(found[2]) or found[2].lstrip('/')}"


def _shape_problem(lines: Sequence[str]) -> str:
    """What is wrong with the nesting and the counts of a file's unfolded lines; a parser sees only what is bounded."""
    depth = deepest = components = events = 0
    for line in lines:
        if len(line) > LINE_LENGTH_MAX:
            return f"must not have lines longer than {LINE_LENGTH_MAX} characters, unfolded"
        head = line[:20].upper()
        if head.startswith(("BEGIN;", "END;")):
            return "must not give BEGIN or END parameters; export it again"
        if head.startswith("BEGIN:"):
            depth, components = depth + 1, components + 1
            deepest = max(deepest, depth)
            events += head.strip() == "BEGIN:VEVENT"
        elif head.startswith("END:"):
            depth -= 1
    if deepest > DEPTH_MAX or depth != 0:
        return f"must close every BEGIN by its END, and not nest deeper than {DEPTH_MAX}"
    if events > EVENTS_MAX or components > COMPONENTS_MAX:
        return f"must have at most {EVENTS_MAX} VEVENTs and {COMPONENTS_MAX} components; split it"
    return ""


def _without_zones(lines: Sequence[str]) -> Iterator[str]:
    """Leave VTIMEZONEs out: they count for nothing here, and the library would keep each one for as long as it runs."""
    depth = 0
    for line in lines:
        head = line[:20].upper()
        if depth or head.strip() == "BEGIN:VTIMEZONE":
            depth += head.startswith("BEGIN:") - head.startswith("END:")
        else:
            yield line


def _entry(index: int, uid: str, component: icalendar.Component, template: TrafficEvent, zone: str) -> Entry:
    if not uid or len(uid) > UID_LENGTH_MAX or not uid.isprintable():
        raise _BadPropertyError("UID", f"is required, 1 to {UID_LENGTH_MAX} printable characters")
    start = _one(component, "DTSTART")
    if start is None:
        raise _BadPropertyError("DTSTART", "is required")
    name, start_at = _instant(start, zone, "DTSTART")
    end_at = _end(component, start, start_at, name)
    said: dict[str, Any] = {
        "start_at": start_at,
        "end_at": end_at,
        "time_zone": name,
        "rrule": _rrule(component),
        "exdates_at": tuple(_dates(component, "EXDATE", start, name)),
        "rdates_at": tuple(_dates(component, "RDATE", start, name)),
    }
    replaced = _one(component, "RECURRENCE-ID")
    suffix, at = "", None
    if replaced is not None:
        at = _instant(replaced, name, "RECURRENCE-ID", start)[1]
        suffix = f"{at:%Y%m%dT%H%M%SZ}"
        said |= {"rrule": None, "exdates_at": (), "rdates_at": ()}
    said |= _properties(component)
    labels = dict(said.get("labels", template.labels))
    if len(uid) <= 200 and uid != f"{_given_id(component)}@forecrest":
        labels[UID_LABEL] = uid
    said["labels"] = tuple(sorted(labels.items()))
    if "expected_peak_qps" in said:
        said.setdefault("expected_multiplier", None)
    elif "expected_multiplier" in said:
        said["expected_peak_qps"] = None
    event = replace(template, id=_event_id(component, uid, suffix), state=EventState.SCHEDULED, **said)
    cancelled = str(component.get("STATUS", "")).upper() == "CANCELLED"
    return Entry(index, uid, event, frozenset(said), cancelled, at)


def _given_id(component: icalendar.Component) -> str:
    return str(component.get(f"{X}ID", ""))


def _event_id(component: icalendar.Component, uid: str, suffix: str) -> str:
    given = _given_id(component)
    if given and not suffix:
        if not ID.fullmatch(given):
            raise _BadPropertyError(
                f"{X}ID", "must be 1 to 63 characters of a-z, 0-9 and -, from a letter on"
            )
        return given
    return "ical-" + hashlib.sha256(f"{uid}\n{suffix}".encode()).hexdigest()[:20]


def _properties(component: icalendar.Component) -> dict[str, Any]:
    """What a VEVENT says of the load, and what people call it."""
    said: dict[str, Any] = {}
    if "SUMMARY" in component:
        said["display_name"] = "".join(c for c in str(component["SUMMARY"]) if c.isprintable())[:200]
    category = _text(component, f"{X}CATEGORY") or _first_category(component)
    if category:
        said["category"] = category
    names = _text(component, f"{X}WORKLOADS")
    if names:
        said["workloads"] = tuple(n.strip().removeprefix("workloads/") for n in names.split(","))
    if _text(component, f"{X}UNNAMED"):
        said["display_name"] = ""
    labels = component.get(f"{X}LABEL")
    if labels is not None:
        said["labels"] = tuple(sorted(map(_label, labels if isinstance(labels, list) else [labels])))
    return said | _figures(component)


def _figures(component: icalendar.Component) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for name, field in _NUMBERS.items():
        text = _text(component, f"{X}{name}")
        if text:
            try:
                said[field] = int(text) if field in _WHOLE else float(text)
            except ValueError:
                raise _BadPropertyError(f"{X}{name}", f"must be a number; got {text[:40]!r}") from None
    for name, field in _DURATIONS.items():
        text = _text(component, f"{X}{name}")
        if text:
            said[field] = _duration(text, f"{X}{name}")
    return said


def _label(text: object) -> tuple[str, str]:
    try:
        key, value = json.loads(_unescaped(str(text)))
    except ValueError:
        raise _BadPropertyError(f"{X}LABEL", 'must look like ["key","value"]') from None
    return str(key), str(value)


def _text(component: icalendar.Component, name: str) -> str:
    value = component.get(name, "")
    if isinstance(value, list):
        raise _BadPropertyError(name, "must stand there once")
    return _unescaped(str(value)).strip()


def _unescaped(text: str) -> str:
    """Calendars differ in whether they escape what they do not know; both are read."""
    return text.replace("\\,", ",").replace("\\;", ";")


def _first_category(component: icalendar.Component) -> str:
    value = component.get("CATEGORIES")
    value = value[0] if isinstance(value, list) else value
    found = getattr(value, "cats", None) or [""]
    return str(found[0]).strip()[:63]


def _duration(text: str, name: str) -> timedelta:
    try:
        length: timedelta = icalendar.vDuration.from_ical(text)  # type: ignore[no-untyped-call]
    except ValueError:
        raise _BadPropertyError(name, f'must be a duration such as "PT10M"; got {text[:40]!r}') from None
    return length


def _one(component: icalendar.Component, name: str) -> Any:  # noqa: ANN401 -- the library's values
    value = component.get(name)
    if isinstance(value, list):
        raise _BadPropertyError(name, "must stand there once")
    return value


def _zone_name(text: str) -> str:
    """The IANA zone that a TZID means, "" if none: also Windows names, and names behind a prefix with slashes."""
    parts = text.strip().strip("/").split("/")
    longest = max(1, len(parts) - _ZONE_PARTS_MAX)
    candidates = [
        text,
        WINDOWS_TO_OLSON.get(text, ""),
        *("/".join(parts[i:]) for i in range(longest, len(parts))),
    ]
    return next((name for name in candidates if name and zone_of(name) is not None), "")


def _zone_of_value(value: Any, default: str, name: str) -> str:  # noqa: ANN401 -- the library's values
    at = value.dt
    tzid = str(value.params.get("TZID", ""))
    if tzid:
        found = _zone_name(tzid)
        if not found:
            raise _BadPropertyError(
                name, f'has TZID {tzid[:60]!r}, no IANA zone; use one such as "Asia/Shanghai"'
            )
        return found
    if isinstance(at, datetime) and at.tzinfo is not None:
        return "UTC"
    if not default:
        raise _BadPropertyError(name, "has no zone; give TZID, X-WR-TIMEZONE or the template's time_zone")
    return default


def _instant(value: Any, default: str, name: str, like: Any = None) -> tuple[str, datetime]:  # noqa: ANN401 -- as above
    """The zone and the instant of a value; a mere date means midnight, or the time of ``like``."""
    at = value.dt
    if not isinstance(at, date):
        raise _BadPropertyError(name, "must be a date or a time")
    zone = _zone_of_value(value, default, name)
    if not isinstance(at, datetime):
        clock = like.dt.time() if like is not None and isinstance(like.dt, datetime) else time()
        at = datetime.combine(at, clock.replace(tzinfo=None))
    elif at.tzinfo is not None and zone == "UTC":
        return zone, at.astimezone(UTC)
    info = zone_of(zone)
    if info is None:  # pragma: no cover -- _zone_of_value returns known zones, and defaults are checked
        raise _BadPropertyError(name, "has no zone")
    return zone, to_instant(at.replace(tzinfo=None, microsecond=0), info)


def _end(component: icalendar.Component, start: Any, start_at: datetime, zone: str) -> datetime:  # noqa: ANN401 -- as above
    end, length = _one(component, "DTEND"), _one(component, "DURATION")
    if end is not None:
        return _instant(end, zone, "DTEND")[1]
    if length is not None:
        if not isinstance(length.dt, timedelta):
            raise _BadPropertyError("DURATION", "must be a duration")
        return start_at + length.dt
    if isinstance(start.dt, datetime):
        raise _BadPropertyError("DTEND", "is required: give DTEND or DURATION")
    info = zone_of(zone)
    if info is None:  # pragma: no cover -- as above
        raise _BadPropertyError("DTEND", "has no zone")
    return to_instant(datetime.combine(start.dt, time()) + _DAY, info)


def _rrule(component: icalendar.Component) -> str | None:
    value = component.get("RRULE")
    if value is None:
        return None
    if isinstance(value, list):
        raise _BadPropertyError("RRULE", "must stand there once; import several events instead")
    text: str = value.to_ical().decode()
    # Times in a rule lose their zone on the way through the library: UNTIL is UTC wherever it has a Z.
    return text


def _dates(component: icalendar.Component, name: str, start: Any, zone: str) -> Iterator[datetime]:  # noqa: ANN401 -- as above
    found = component.get(name)
    if found is None:
        return
    count = 0
    for values in found if isinstance(found, list) else [found]:
        for value in values.dts:
            count += 1
            if count > VALUES_MAX:
                raise _BadPropertyError(name, f"must have at most {VALUES_MAX} values")
            if isinstance(value.dt, tuple):
                raise _BadPropertyError(name, "must be dates or times; periods are events of their own")
            # The zone stands on the list, not on each of its values.
            if values.params.get("TZID") and not value.params.get("TZID"):
                value.params["TZID"] = values.params["TZID"]
            yield _instant(value, zone, name, start)[1]


def _told_apart(entries: list[Entry]) -> list[Entry]:
    seen: dict[str, Entry] = {}
    for entry in entries:
        if entry.event.id in seen:
            path = where(entry.index, entry.uid, "UID")
            raise InvalidError([Violation(path, "is there twice; keep the one with the higher SEQUENCE")])
        seen[entry.event.id] = entry
    return entries


def _without_replaced(entries: list[Entry]) -> list[Entry]:
    """Take occurrences that a VEVENT with RECURRENCE-ID replaces out of the recurrence it belongs to."""
    by_uid: dict[str, list[Entry]] = {}
    for entry in entries:
        by_uid.setdefault(entry.uid, []).append(entry)
    result: list[Entry] = []
    for entry in entries:
        event = entry.event
        if event.recurring:
            replaced = [other.replaces for other in by_uid[entry.uid] if other.replaces is not None]
            event = replace(event, exdates_at=tuple(sorted({*event.exdates_at, *replaced})))
        result.append(replace(entry, event=event))
    return result


def render_calendar(events: Sequence[TrafficEvent]) -> bytes:
    """Return events as one file, zones included; ``parse_calendar`` reads them back."""
    calendar = icalendar.Calendar()
    calendar.add("PRODID", "-//Forecrest//Traffic events//EN")
    calendar.add("VERSION", "2.0")
    calendar.add("X-WR-CALNAME", "Forecrest traffic events")
    for event in events:
        calendar.add_component(_vevent(event))
    calendar.add_missing_timezones()
    data: bytes = calendar.to_ical()
    return data


def _vevent(event: TrafficEvent) -> icalendar.Event:
    made = icalendar.Event()
    labels = dict(event.labels)
    uid = labels.pop(UID_LABEL, f"{event.id}@forecrest")
    made.add("UID", uid)
    made.add(f"{X}ID", event.id)
    made.add("DTSTAMP", event.updated_at or event.start_at)
    made.add("SEQUENCE", event.revision - 1)
    made.add("SUMMARY", event.display_name or event.id)
    made.add("STATUS", "CANCELLED" if event.state is EventState.CANCELLED else "CONFIRMED")
    made.add("DTSTART", _wall_clock(event.start_at, event.time_zone))
    made.add("DTEND", _wall_clock(event.end_at, event.time_zone))
    if event.rrule is not None:
        made.add("RRULE", icalendar.vRecur.from_ical(event.rrule))
    for name, dates in (("EXDATE", event.exdates_at), ("RDATE", event.rdates_at)):
        for at in dates:
            made.add(name, _wall_clock(at, event.time_zone))
    if event.category:
        made.add("CATEGORIES", [event.category])
    made.add(f"{X}WORKLOADS", ",".join(f"workloads/{name}" for name in event.workloads))
    if not event.display_name:
        made.add(f"{X}UNNAMED", "TRUE")
    for key, text in sorted(labels.items()):
        made.add(f"{X}LABEL", json.dumps([key, text], ensure_ascii=False))
    _add_figures(made, event)
    return made


def _add_figures(made: icalendar.Event, event: TrafficEvent) -> None:
    for name, field in _NUMBERS.items():
        value = getattr(event, field)
        if value is not None:
            made.add(f"{X}{name}", str(value) if field in _WHOLE else repr(float(value)))
    for name, field in _DURATIONS.items():
        length = getattr(event, field)
        if length is not None:
            text: bytes = icalendar.vDuration(length).to_ical()  # type: ignore[no-untyped-call]
            made.add(f"{X}{name}", text.decode())


def _wall_clock(at: datetime, time_zone: str) -> datetime:
    """The wall-clock time of an instant where that says which instant is meant, the instant in UTC where not."""
    zone = zone_of(time_zone)
    if zone is None or time_zone == "UTC":
        return at
    local = to_local(at, time_zone)
    # A second passage through an hour that occurs twice, or a fraction of a second, has no wall-clock form.
    return local.replace(tzinfo=zone) if to_instant(local.replace(microsecond=0), zone) == at else at
