"""What is told, to whom, and how far that has come. Pure: frozen data.

Promises: a notification's id is made from what it tells, so the same milestone has the same id for every leader and at
every attempt. Called by the notifier, the stores, the sinks and the API.
"""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from controller.core.types import Alarm, AlarmKind


class Kind(StrEnum):
    """What happened. Stored and served; never renamed."""

    PREWARM_PLANNED = "PREWARM_PLANNED"
    PREWARM_STARTED = "PREWARM_STARTED"
    PREWARM_WARM = "PREWARM_WARM"
    EVENT_STARTED = "EVENT_STARTED"
    EVENT_ENDED = "EVENT_ENDED"
    ALARM_RAISED = "ALARM_RAISED"
    ALARM_CLEARED = "ALARM_CLEARED"
    TEST = "TEST"  # a person tries a sink


class Severity(StrEnum):
    """How soon somebody should look."""

    INFO = "INFO"
    WARNING = "WARNING"
    CRITICAL = "CRITICAL"


SEVERITY_ORDER = tuple(Severity)
# As the alert rules for Prometheus have them; a test holds both, and the table in the documentation, equal.
ALARM_SEVERITY: dict[AlarmKind, Severity] = {
    AlarmKind.PREWARM_LATE: Severity.CRITICAL,
    AlarmKind.PREWARM_MISSED: Severity.CRITICAL,
    AlarmKind.QUOTA_SHORT: Severity.WARNING,
    AlarmKind.ORDER_STUCK: Severity.WARNING,
    AlarmKind.WRONG_ENGINE: Severity.WARNING,
    AlarmKind.FORECAST_DISTRUSTED: Severity.WARNING,
    AlarmKind.NO_DATA: Severity.CRITICAL,
    AlarmKind.EVENT_FIZZLED: Severity.INFO,
}


@dataclass(frozen=True, slots=True)
class Notification:
    """One thing to tell. ``workload`` is empty where it tells of several."""

    id: str
    at: datetime
    kind: Kind
    severity: Severity
    workload: str
    namespace: str
    subject: str  # an occurrence of an event, a replica, or ""
    sentence: str
    alarm: AlarmKind | None = None  # of ALARM_RAISED and ALARM_CLEARED


@dataclass(frozen=True, slots=True)
class Held:
    """An alarm that was told, and is away or came back without having been told again. ``alarm``: as it stood last."""

    alarm: Alarm
    away_since_at: datetime | None = None  # None: it stands
    return_count: int = 0


class DeliveryState(StrEnum):
    """How far a notification has come on its way to one sink."""

    PENDING = "PENDING"
    DELIVERED = "DELIVERED"
    DEAD = "DEAD"  # given up


@dataclass(frozen=True, slots=True)
class Delivery:
    """A notification on its way to one sink. ``attempt_count`` tells claims apart: only the newest may settle it."""

    sink: str
    notification: Notification
    state: DeliveryState = DeliveryState.PENDING
    attempt_count: int = 0
    next_at: datetime | None = None  # not before this, while PENDING; None: at once
    settled_at: datetime | None = None
    error: str = ""  # of the newest attempt that failed


@dataclass(frozen=True, slots=True)
class Backlog:
    """What one sink has not got."""

    pending_count: int = 0
    dead_count: int = 0
    oldest_at: datetime | None = None  # of what is pending


def identity(*parts: object) -> str:
    """The id of what these words name."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]
