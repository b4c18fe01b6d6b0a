"""When an alarm is told: at once when it comes, and over only once it has stayed away. Pure: no clock, no I/O.

Promises: an alarm that ends and comes back within the hold is one alarm, of which nothing is told in between; how often it
came back stands in the sentence of its end. What has to be remembered for that is one value per alarm that is away, or that
came back; an alarm that stands from its beginning needs none. Called by `milestones`.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from controller.core.types import Alarm, FleetState, Workload, WorkloadState
from controller.notify.types import ALARM_SEVERITY, Held, Kind, Notification, identity


def moved_keys(before: FleetState, after: FleetState, names: Collection[str]) -> set[str]:
    """Alarms of these workloads that came or went between two states."""
    found: set[str] = set()
    for name in names:
        old = before.workloads.get(name, WorkloadState()).alarms
        new = after.workloads.get(name, WorkloadState()).alarms
        if old is not new:
            found |= {a.key for a in old} ^ {a.key for a in new}
    return found


def of_alarms(
    workload: Workload,
    old: WorkloadState,
    new: WorkloadState,
    known: Mapping[str, Held],
    hold: timedelta,
    now: datetime,
) -> tuple[list[Notification], dict[str, Held]]:
    """What is to be told of a workload's alarms, and what is to be remembered of them from now on, by their keys."""
    told: list[Notification] = []
    held = dict(known)
    stood, stands = {a.key: a for a in old.alarms}, {a.key: a for a in new.alarms}
    for key, alarm in stood.items():
        if key not in stands:
            held[key] = replace(held.get(key, Held(alarm)), alarm=alarm, away_since_at=now)
    for key, one in list(held.items()):
        if one.away_since_at is None:
            if key not in stood:  # it went while nobody wrote that down
                del held[key]
            continue
        # Away by a time far ahead: the clock was set back, and how long it was is not known. Rather told twice than not.
        if abs(now - one.away_since_at) >= hold and not (key in stood and key in stands):
            told.append(_ended(workload, one, min(one.away_since_at, now), now))
            del held[key]
        elif key in stands:
            held[key] = replace(one, away_since_at=None, return_count=one.return_count + 1)
    for key, alarm in stands.items():
        if key not in stood and key not in held:
            told.append(_of_alarm(workload, Kind.ALARM_RAISED, alarm, alarm.sentence, now))
    return told, held


def _ended(workload: Workload, held: Held, since_at: datetime, now: datetime) -> Notification:
    times = "once" if held.return_count == 1 else f"{held.return_count} times"
    again = f" It had come back {times}." if held.return_count else ""
    sentence = f"Over since {since_at:%Y-%m-%d %H:%M:%S} UTC: {held.alarm.sentence}{again}"
    return _of_alarm(workload, Kind.ALARM_CLEARED, held.alarm, sentence, now)


def _of_alarm(workload: Workload, kind: Kind, alarm: Alarm, sentence: str, now: datetime) -> Notification:
    return Notification(
        # An alarm may be raised again: the tick is part of what is told.
        identity(kind, alarm.key, now.isoformat()),
        now,
        kind,
        ALARM_SEVERITY[alarm.kind],
        workload.name,
        workload.namespace,
        alarm.subject,
        sentence,
        alarm.kind,
    )
