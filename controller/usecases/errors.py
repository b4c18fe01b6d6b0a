"""What a use case refuses, as typed errors. Each names its canonical code, a stable reason and the remedy.

Raised by use cases and by the mappers at the edge; the API turns them into gRPC statuses. The codes are
names of the canonical RPC codes, so that nothing here imports a transport.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

# More than any request has that a person wrote, and far less than one of 4 MiB can hold.
VIOLATIONS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Violation:
    """One bad field, by its path in the request, and what to do about it."""

    field: str
    description: str


class UseCaseError(Exception):
    """A refusal. ``reason`` is stable and machine-readable; the message is for people."""

    code: ClassVar[str] = "INTERNAL"

    def __init__(self, reason: str, message: str, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.metadata: Mapping[str, str] = metadata or {}


class InvalidError(UseCaseError):
    """Fields that cannot be accepted; all of them at once."""

    code = "INVALID_ARGUMENT"

    def __init__(self, violations: Sequence[Violation]) -> None:
        super().__init__("INVALID_FIELDS", "; ".join(f"{v.field}: {v.description}" for v in violations))
        self.violations = tuple(violations)


class MissingError(UseCaseError):
    """No such resource."""

    code = "NOT_FOUND"

    def __init__(self, resource: str, remedy: str, reason: str = "RESOURCE_NOT_FOUND") -> None:
        super().__init__(reason, f"{resource} does not exist; {remedy}", {"resource": resource})


class ExistsError(UseCaseError):
    """The name is taken."""

    code = "ALREADY_EXISTS"

    def __init__(self, resource: str, field: str) -> None:
        super().__init__(
            "RESOURCE_EXISTS",
            f"{resource} exists already; choose another {field} or update it",
            {"resource": resource, "field": field},
        )


class RequestIdReusedError(UseCaseError):
    """The request id belongs to another request."""

    code = "ALREADY_EXISTS"

    def __init__(self, request_id: str) -> None:
        super().__init__(
            "REQUEST_ID_REUSED",
            "request_id: used before with another body; use a new id for a new request",
            {"request_id": request_id, "field": "request_id"},
        )


class EtagMismatchError(UseCaseError):
    """Somebody else changed the resource first."""

    code = "ABORTED"

    def __init__(self, resource: str, field: str) -> None:
        super().__init__(
            "ETAG_MISMATCH",
            f"{field}: {resource} has changed since it was read; read it again, redo the change and retry",
            {"resource": resource, "field": field},
        )


class PreconditionError(UseCaseError):
    """The request is fine, the state of things is not."""

    code = "FAILED_PRECONDITION"


class Findings:
    """Collects violations, so that a person learns of every bad field at once.

    Numbers must be finite: NaN and infinities are named as such, never compared.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self.violations: list[Violation] = []

    def add(self, field: str, description: str) -> None:
        """Record a violation of ``field``, a path below the prefix; beyond VIOLATIONS_MAX they are dropped."""
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(Violation(f"{self._prefix}{field}", description))

    def require(self, ok: bool, field: str, description: str) -> bool:
        """Record a violation unless ``ok``; return ``ok``."""
        if not ok:
            self.add(field, description)
        return ok

    def number(
        self, field: str, value: float | None, low: float, high: float, *, above: bool = False, unit: str = ""
    ) -> None:
        """Check ``low <= value <= high`` (``low < value`` if ``above``); None passes."""
        if value is None:
            return
        span = f"{'more than' if above else 'at least'} {low:g} and at most {high:g}{unit and ' ' + unit}"
        if not math.isfinite(value):
            self.add(field, f"must be a finite number, {span}; got {value}")
        elif value > high or value < low or (above and value == low):
            self.add(field, f"must be {span}; got {value:g}")

    def duration(self, field: str, value: timedelta | None, low: timedelta, high: timedelta) -> None:
        """Check ``low <= value <= high``; None passes."""
        if value is not None and not low <= value <= high:
            self.add(
                field,
                f"must be {low.total_seconds():g} s to {high.total_seconds():g} s; got {value.total_seconds():g} s",
            )

    def text(self, field: str, value: str, low: int, high: int) -> None:
        """Check the length and that it is printable; control characters break logs and terminals."""
        if not low <= len(value) <= high:
            wanted = f"{low} to {high}" if low else f"at most {high}"
            self.add(field, f"must have {wanted} characters; got {len(value)}")
        elif not value.isprintable():
            self.add(field, "must not contain control characters; remove them")

    def window(self, start_at: datetime | None, end_at: datetime | None) -> None:
        """Check that a half-open window is not empty or reversed."""
        if start_at is not None and end_at is not None and end_at <= start_at:
            self.add("end_time", "must be after start_time")

    def raise_if_any(self) -> None:
        """Raise InvalidError if anything was found."""
        if self.violations:
            raise InvalidError(self.violations)
