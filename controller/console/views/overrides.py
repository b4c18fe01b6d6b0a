"""Overrides and pauses as pages show them, and what their forms say. Pure; called by `pages.overrides`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from forecrest.v1 import control_pb2

from controller.client import ApiError
from controller.console.live import instant
from controller.console.views.events import FieldErrors, short, sorted_violations, word

KINDS = ("at_least", "at_most", "set")
# Minutes offered as an expiry; other lengths are typed.
LENGTHS_MIN = (30, 60, 120, 240, 480, 1440, 4320, 10080)


@dataclass(frozen=True, slots=True)
class OverrideRow:
    """One override. ``remaining`` is None once it does not count any more."""

    name: str
    id: str
    workload: str
    kind: str
    replicas: int | None
    reason: str
    created_by: str
    expires_at: datetime | None
    remaining: timedelta | None
    active: bool


@dataclass(frozen=True, slots=True)
class PauseRow:
    """Whether the fleet (``workload`` "") or one workload is paused. ``known`` False: it could not be read."""

    workload: str
    paused: bool
    known: bool
    reason: str = ""
    by: str = ""
    since_at: datetime | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class OverrideForm:
    """What the forms of this page hold, as typed."""

    workload: str = ""
    kind: str = "at_least"
    replicas: str = ""
    minutes: str = ""
    reason: str = ""


_FIELDS = {
    "parent": "workload",
    "workload": "workload",
    "kind": "kind",
    "replicas": "replicas",
    "expire_time": "minutes",
    "expiration": "minutes",
    "ttl": "minutes",
    "reason": "reason",
}


def override_rows(overrides: Sequence[control_pb2.Override], now: datetime) -> tuple[OverrideRow, ...]:
    """Return those that count by their end, then those that are over."""
    rows: list[OverrideRow] = []
    for one in overrides:
        expires_at = instant(one, "expire_time")
        workload = one.name.removeprefix("workloads/").partition("/")[0]
        left = None if expires_at is None or not one.active else max(timedelta(0), expires_at - now)
        rows.append(
            OverrideRow(
                name=one.name,
                id=short(one.name),
                workload=workload,
                kind=word(one.kind, control_pb2.OverrideKind.DESCRIPTOR, "OVERRIDE_KIND_"),
                replicas=one.replicas if one.HasField("replicas") else None,
                reason=one.reason,
                created_by=one.created_by,
                expires_at=expires_at,
                remaining=left,
                active=one.active,
            )
        )
    return tuple(sorted(rows, key=lambda r: (not r.active, r.remaining or timedelta(0), r.name)))


def pause_row(state: control_pb2.PauseState | None, workload: str = "") -> PauseRow:
    """Return one pause; None: it could not be read."""
    if state is None:
        return PauseRow(workload, paused=False, known=False)
    return PauseRow(
        workload=workload,
        paused=state.paused,
        known=True,
        reason=state.reason,
        by=state.by,
        since_at=instant(state, "since_time"),
        expires_at=instant(state, "expire_time"),
    )


def form_from(fields: Mapping[str, Sequence[str]], workload: str = "") -> OverrideForm:
    """Return the form from what a browser sent."""

    def one(name: str, default: str = "") -> str:
        return next(iter(fields.get(name, ())), default).strip()

    return OverrideForm(
        workload=workload or one("workload"),
        kind=one("kind", "at_least"),
        replicas=one("replicas"),
        minutes=one("minutes"),
        reason=one("reason"),
    )


def length(form: OverrideForm) -> timedelta | None:
    """Return how long it is to last, or None where that is no number of minutes."""
    try:
        minutes = float(form.minutes)
        return timedelta(minutes=minutes) if minutes > 0 else None
    except (ValueError, OverflowError):
        return None


def draft(form: OverrideForm) -> tuple[control_pb2.Override, dict[str, str]]:
    """Return the override that a form describes, and message keys for what is missing in it.

    An end and a reason are required: an override that nobody remembers is the incident of next month.
    """
    wrong: dict[str, str] = {}
    override = control_pb2.Override(reason=form.reason)
    if form.kind in KINDS:
        override.kind = control_pb2.OverrideKind.Value(f"OVERRIDE_KIND_{form.kind.upper()}")
    else:
        wrong["kind"] = "overrides.error.kind"
    if not form.workload:
        wrong["workload"] = "overrides.error.workload"
    try:
        override.replicas = int(form.replicas)
    except ValueError:
        wrong["replicas"] = "overrides.error.replicas"
    wrong |= missing(form)
    lasts = length(form)
    if lasts is not None:
        override.ttl.FromTimedelta(lasts)
    return override, wrong


def missing(form: OverrideForm, *, ends: bool = True) -> dict[str, str]:
    """Return message keys for reason and end where they are missing."""
    wrong: dict[str, str] = {}
    if ends and length(form) is None:
        wrong["minutes"] = "overrides.error.minutes"
    if not form.reason:
        wrong["reason"] = "overrides.error.reason"
    return wrong


def field_errors(error: ApiError) -> FieldErrors:
    """Sort the API's violations by the fields of the form."""
    return sorted_violations(
        error, lambda path: _FIELDS.get(path.removeprefix("override.").partition(".")[0])
    )
