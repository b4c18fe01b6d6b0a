"""Event night: will the fleet be warm, by how much, and where each replica stands.

Promises: pure. The verdict is made of what the controller says of its own deadline contracts; where it says nothing the
verdict is "unknown", never "warm". Called by `pages.night`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from forecrest.v1 import control_pb2, event_pb2, event_service_pb2

from controller.console.live import instant
from controller.console.views.events import EventRow, event_row, occurrences, short, word

STAGES = ("ordered", "scheduled", "loaded", "warmed", "verified")
# Gravest first: the fleet is as warm as its worst workload.
VERDICTS = ("short", "late", "unknown", "none", "fizzled", "on_time", "planned", "warm", "over")
# What is looked at when nobody chose an event: what runs or comes within this time.
AHEAD = timedelta(days=400)
REPLICAS_SHOWN_MAX = 200


@dataclass(frozen=True, slots=True)
class Rung:
    """One stage of the ladder: ``count`` of ``total`` replicas are at it or past it."""

    stage: str
    count: int
    total: int

    @property
    def done(self) -> bool:
        """Whether all are."""
        return self.count >= self.total


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """One replica: how many rungs it has climbed (0 to 5), and since when it stands there."""

    id: str
    stage: str
    climbed: int
    since_at: datetime | None
    failure: str


@dataclass(frozen=True, slots=True)
class Ladder:
    """Prewarm of one workload. ``margin`` is how long before the deadline (negative: after it) all are warm."""

    workload: str
    verdict: str
    replicas: int
    order_at: datetime | None
    deadline_at: datetime | None
    warm_at: datetime | None
    margin: timedelta | None
    start_margin: timedelta | None
    shortfall: int
    rungs: tuple[Rung, ...]
    rows: tuple[ReplicaRow, ...]
    hidden: int

    @property
    def verified(self) -> int:
        """Replicas verified warm, at most as many as wanted."""
        return min(self.rungs[-1].count, self.replicas) if self.rungs else 0


@dataclass(frozen=True, slots=True)
class Notice:
    """An alarm or a condition that needs a person."""

    kind: str
    workload: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Night:
    """The whole page at ``observed_at``."""

    event: EventRow
    occurrence: str
    start_at: datetime
    end_at: datetime
    observed_at: datetime
    phase: str
    verdict: str
    margin: timedelta | None
    ladders: tuple[Ladder, ...]
    notices: tuple[Notice, ...]
    notices_known: bool

    @property
    def verified(self) -> int:
        """Replicas verified warm over all workloads."""
        return sum(ladder.verified for ladder in self.ladders)

    @property
    def wanted(self) -> int:
        """Replicas that are to be warm over all workloads."""
        return sum(ladder.replicas for ladder in self.ladders)


def choose(events: Iterable[event_pb2.Event], now: datetime) -> str | None:
    """Return the id of the event that runs, else of the one that comes next; None if there is neither."""
    coming = [
        (start, short(event.name))
        for event in events
        if event.state != event_pb2.EVENT_STATE_CANCELLED
        and (start := next(occurrences(event, now, now + AHEAD), None)) is not None
    ]
    # Those that run have started: the one that started last is the one people look at.
    running = [pair for pair in coming if pair[0] <= now]
    return max(running)[1] if running else min(coming, default=(now, None))[1]


def night_view(
    response: event_service_pb2.WatchEventResponse,
    statuses: Sequence[control_pb2.WorkloadStatus] | None,
    decisions: Sequence[control_pb2.Decision] = (),
) -> Night:
    """Return the page's values; ``statuses`` None: they could not be read, so that no alarm means nothing."""
    now = response.observe_time.ToDatetime(UTC)
    event = event_row(response.event, now)
    current = [p for p in response.prewarms if _concerns(p.contract, event, now)]
    ladders = _ladders(current, event, now)
    if event.state == "cancelled":
        phase = "cancelled"
    elif now >= event.end_at:
        phase = "over"
    else:
        phase = "running" if now >= event.start_at else "before"
    verdict = (
        "over"
        if phase in {"over", "cancelled"}
        else min((x.verdict for x in ladders), key=VERDICTS.index, default="none")
    )
    worst = [x.margin for x in ladders if x.margin is not None]
    return Night(
        event=event,
        occurrence=current[0].contract.occurrence_id if current else "",
        start_at=event.start_at,
        end_at=event.end_at,
        observed_at=now,
        phase=phase,
        verdict=verdict,
        # Of all or of none: the margin of some workloads would flatter the rest.
        margin=min(worst) if worst and len(worst) == len(ladders) else None,
        ladders=ladders,
        notices=_notices(statuses or (), decisions, set(event.workloads)),
        notices_known=statuses is not None,
    )


def _concerns(contract: event_pb2.Contract, event: EventRow, now: datetime) -> bool:
    if not contract.HasField("start_time"):
        return True
    start = contract.start_time.ToDatetime(UTC)
    return start == event.start_at or (start <= now < contract.end_time.ToDatetime(UTC))


def _ladders(
    prewarms: Sequence[event_service_pb2.Prewarm], event: EventRow, now: datetime
) -> tuple[Ladder, ...]:
    planned = {short(p.workload): p for p in prewarms}
    # A workload without a contract yet is part of the answer too: nobody knows of it.
    return tuple(
        _ladder(name, planned[name], now) if name in planned else _unplanned(name)
        for name in sorted({*event.workloads, *planned})
    )


def _unplanned(name: str) -> Ladder:
    return Ladder(name, "none", 0, None, None, None, None, None, 0, (), (), 0)


def _ladder(name: str, prewarm: event_service_pb2.Prewarm, now: datetime) -> Ladder:
    contract = prewarm.contract
    met_at, expected_at = instant(contract, "met_time"), instant(contract, "expected_warm_time")
    # Before the order an estimate is of what would be if it were given now.
    ordered = contract.state != event_pb2.CONTRACT_STATE_PLANNED
    warm_at = met_at or (expected_at if ordered else None)
    deadline_at, start_at = instant(contract, "deadline_time"), instant(contract, "start_time")
    rows = [_replica(r) for r in prewarm.replicas if r.stage != event_pb2.STAGE_DRAINING]
    rows.sort(key=lambda r: (r.failure == "", r.climbed, r.id))
    counts = [getattr(contract, f"{stage}_count") for stage in STAGES]
    return Ladder(
        workload=name,
        verdict=_verdict(contract, warm_at, now),
        replicas=contract.replicas,
        order_at=instant(contract, "order_time"),
        deadline_at=deadline_at,
        warm_at=warm_at,
        margin=None if warm_at is None or deadline_at is None else deadline_at - warm_at,
        start_margin=None if warm_at is None or start_at is None else start_at - warm_at,
        shortfall=contract.shortfall_replicas,
        rungs=tuple(
            Rung(stage, count, contract.replicas) for stage, count in zip(STAGES, counts, strict=True)
        ),
        rows=tuple(rows[:REPLICAS_SHOWN_MAX]),
        hidden=max(0, len(rows) - REPLICAS_SHOWN_MAX),
    )


def _verdict(contract: event_pb2.Contract, warm_at: datetime | None, now: datetime) -> str:
    state = word(contract.state, event_pb2.ContractState.DESCRIPTOR, "CONTRACT_STATE_")
    plain = {"completed": "over", "fizzled": "fizzled", "short": "short", "at_risk": "late"}
    if state in plain:
        return plain[state]
    if contract.shortfall_replicas:
        return "short"
    if state in {"warm", "active"}:
        return "warm"
    if state == "planned":
        return "planned"
    if warm_at is None or state == "unknown":
        return "unknown"
    deadline_at = instant(contract, "deadline_time")
    late = deadline_at is not None and (warm_at > deadline_at or (now > deadline_at and warm_at >= now))
    return "late" if late else "on_time"


def _replica(replica: event_pb2.Replica) -> ReplicaRow:
    stage = word(replica.stage, event_pb2.Stage.DESCRIPTOR, "STAGE_")
    return ReplicaRow(
        id=replica.id,
        stage=stage,
        climbed=STAGES.index(stage) + 1 if stage in STAGES else 0,
        since_at=instant(replica, "stage_time"),
        failure=replica.failure if replica.HasField("failure") else "",
    )


def _notices(
    statuses: Sequence[control_pb2.WorkloadStatus],
    decisions: Sequence[control_pb2.Decision],
    workloads: set[str],
) -> tuple[Notice, ...]:
    found = [
        Notice(
            word(alarm.kind, control_pb2.AlarmKind.DESCRIPTOR, "ALARM_KIND_"),
            short(alarm.workload),
            alarm.sentence,
        )
        for status in statuses
        for alarm in status.alarms
    ]
    for decision in decisions:
        if short(decision.workload) not in workloads:
            continue
        for condition in decision.conditions:
            limited = condition.type == control_pb2.CONDITION_TYPE_SCALING_LIMITED
            if condition.ok == limited:
                kind = word(condition.type, control_pb2.ConditionType.DESCRIPTOR, "CONDITION_TYPE_")
                found.append(Notice(kind, short(decision.workload), condition.message or condition.reason))
    return tuple(dict.fromkeys(found))
