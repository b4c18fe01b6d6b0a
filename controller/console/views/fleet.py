"""Rows of the fleet: what each workload does now, what is coming, and what needs a look. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from forecrest.v1 import control_pb2, control_service_pb2, event_pb2, forecast_pb2, workload_pb2

from controller.counted import counted

# Demand that nobody told for this long is shown with its age.
DEMAND_OLD = timedelta(minutes=6)
PAST, AHEAD, POINT = timedelta(hours=6), timedelta(hours=18), timedelta(minutes=15)
MINUTE = timedelta(minutes=1)
POINT_COUNT = (PAST + AHEAD) // POINT
PAGE_SIZE = 50
SORTS = ("attention", "name", "demand", "peak", "warm", "event")

# Levels, worst first: what to look at.
BAD, WARN, EVENT, GOOD, UNKNOWN = "bad", "warn", "event", "good", "unknown"
LEVELS = (BAD, WARN, EVENT, UNKNOWN, GOOD)
_ALARM_LEVEL = {
    control_pb2.ALARM_KIND_FORECAST_DISTRUSTED: WARN,
    control_pb2.ALARM_KIND_EVENT_FIZZLED: WARN,
    control_pb2.ALARM_KIND_PREWARM_LATE: WARN,
}


@dataclass(frozen=True, slots=True)
class Band:
    """Past demand and the forecast, at equal distances of ``POINT``; None where nothing is known."""

    past: tuple[float | None, ...] = ()
    lower: tuple[float | None, ...] = ()
    median: tuple[float | None, ...] = ()
    upper: tuple[float | None, ...] = ()
    state: str = ""  # of the forecast, without its prefix; "": none is known

    @property
    def top(self) -> float:
        """Highest value in it."""
        return max(
            (v for line in (self.past, self.upper, self.median) for v in line if v is not None), default=0.0
        )

    @property
    def peak(self) -> float | None:
        """Highest median ahead."""
        return max((v for v in self.median if v is not None), default=None)

    @property
    def peak_upper(self) -> float | None:
        """Highest upper quantile ahead."""
        return max((v for v in self.upper if v is not None), default=None)


@dataclass(frozen=True, slots=True)
class NextEvent:
    """The event that is on, or the next one."""

    name: str
    title: str
    start_at: datetime
    end_at: datetime
    state: str  # of its contract, or of the event, without the prefix

    @property
    def event_id(self) -> str:
        """Last part of its resource name."""
        return self.name.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Row:
    """One workload."""

    name: str
    mode: str
    namespace: str
    model: str
    demand_qps: float | None
    demand_at: datetime | None
    demand_old: bool
    band: Band
    warm: int | None
    warm_at: datetime | None
    warm_old: bool
    desired: int | None
    sentence: str
    reason: str
    decided_at: datetime | None
    conditions: tuple[tuple[str, str, bool, str], ...]  # type, level, ok, message
    alarms: tuple[tuple[str, str, str], ...]  # kind, level, sentence
    event: NextEvent | None
    level: str

    @property
    def warm_share(self) -> float | None:
        """Warm replicas over those asked for; None: unknown, or none are asked for."""
        return None if self.warm is None or not self.desired else self.warm / self.desired


@dataclass(frozen=True, slots=True)
class Totals:
    """The fleet in six numbers."""

    workloads: int
    demand_qps: float | None
    demand_unknown: int
    warm: int | None
    desired: int | None
    replicas_unknown: int
    levels: Mapping[str, int]
    next_event: NextEvent | None
    next_event_workload: str


@dataclass(frozen=True, slots=True)
class Page:
    """Rows that are shown, and where they stand among those that match."""

    rows: tuple[Row, ...]
    number: int
    pages: int
    matches: int


@dataclass(frozen=True, slots=True)
class Asked:
    """What a viewer wants to see."""

    text: str = ""
    level: str = ""
    sort: str = "attention"
    down: bool = False
    page: int = 1


@dataclass(frozen=True, slots=True)
class Known:
    """Everything read of the fleet; maps are by the workload's resource name."""

    workloads: Sequence[workload_pb2.Workload] = ()
    decisions: Mapping[str, control_pb2.Decision] = field(default_factory=dict[str, control_pb2.Decision])
    bands: Mapping[str, Band] = field(default_factory=dict[str, Band])
    past: Mapping[str, Sequence[tuple[datetime, float | None]]] = field(
        default_factory=dict[str, Sequence[tuple[datetime, float | None]]]
    )
    statuses: Mapping[str, control_service_pb2.ObservedStatus] = field(
        default_factory=dict[str, control_service_pb2.ObservedStatus]
    )
    events: Sequence[event_pb2.Event] = ()


def grid_start(now: datetime) -> datetime:
    """Return the left edge of every band drawn at ``now``."""
    return (
        datetime.fromtimestamp(now.timestamp() // POINT.total_seconds() * POINT.total_seconds(), UTC) - PAST
    )


def resample(
    points: Iterable[tuple[datetime, float | None]], start_at: datetime, *, highest: bool = False
) -> tuple[float | None, ...]:
    """Put points on the grid: the mean (or highest) of each slot, None where there is none."""
    slots: list[list[float]] = [[] for _ in range(POINT_COUNT)]
    for at, value in points:
        index = (at - start_at) // POINT
        if value is not None and 0 <= index < POINT_COUNT:
            slots[index].append(value)
    made = max if highest else _mean
    return tuple(made(slot) if slot else None for slot in slots)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def band_of(forecast: forecast_pb2.Forecast, start_at: datetime) -> Band:
    """Return lower quantile, median and upper quantile of a forecast, on the grid."""
    first, step = forecast.start_time.ToDatetime(UTC), forecast.step.ToTimedelta()
    by_level = {round(series.level, 4): series.qps for series in forecast.quantiles}
    state = forecast_pb2.ForecastState.Name(forecast.state).removeprefix("FORECAST_STATE_")
    if not by_level:
        return Band(state=state)

    def line(level: float) -> tuple[float | None, ...]:
        nearest = min(by_level, key=lambda one: abs(one - level))
        # Slots narrower than a step would stay empty: each step is spread over the slots it covers.
        repeat = max(1, step // POINT)
        points = [
            (first + index * step + part * POINT, value)
            for index, value in enumerate(by_level[nearest])
            for part in range(repeat)
        ]
        return resample(points, start_at)

    return Band((), line(0.1), line(0.5), line(0.9), state)


def rows_of(known: Known, now: datetime) -> tuple[Row, ...]:
    """Return a row per workload, in order of name."""
    statuses = {name: one.status for name, one in known.statuses.items()}
    events = events_by_workload(known.events, statuses, now)
    start_at = grid_start(now)
    return tuple(
        _row(workload, known, events.get(workload.name), start_at, now)
        for workload in sorted(known.workloads, key=lambda one: one.name)
    )


def _row(
    workload: workload_pb2.Workload, known: Known, event: NextEvent | None, start_at: datetime, now: datetime
) -> Row:
    name = workload.name
    decision, observed = known.decisions.get(name), known.statuses.get(name)
    status = observed.status if observed else None
    past = known.past.get(name, ())
    demand_qps, demand_at = demand_now(decision, past)
    if observed is not None and observed.HasField("demand_qps"):
        seen_at = observed.demand_time.ToDatetime(UTC)
        # A bucket of history is a mean; what the loop saw is as it was. Old word does not beat newer history.
        if demand_at is None or seen_at >= demand_at or now - seen_at < MINUTE:
            demand_qps, demand_at = observed.demand_qps, seen_at
    conditions = conditions_of(decision)
    alarms = alarms_of(status)
    ahead = known.bands.get(name, Band())
    desired = decision.desired_replicas if decision else None
    if status is not None and status.HasField("desired_replicas"):
        desired = status.desired_replicas if decision is None else desired
    counts = counted(status, decision, now)
    row = Row(
        name=name.rpartition("/")[2],
        mode=workload_pb2.Mode.Name(workload.mode).removeprefix("MODE_"),
        namespace=workload.namespace,
        model=workload.model_name,
        demand_qps=demand_qps,
        demand_at=demand_at,
        demand_old=demand_at is not None and now - demand_at > DEMAND_OLD,
        band=Band(resample(past, start_at), ahead.lower, ahead.median, ahead.upper, ahead.state),
        warm=counts.warm if counts else None,
        warm_at=counts.at if counts else None,
        warm_old=counts is not None and counts.is_old(desired, now),
        desired=desired,
        sentence=decision.sentence if decision else "",
        reason=control_pb2.DecisionReason.Name(decision.reason).removeprefix("DECISION_REASON_")
        if decision
        else "",
        decided_at=decision.decide_time.ToDatetime(UTC) if decision else None,
        conditions=conditions,
        alarms=alarms,
        event=event,
        level=GOOD,
    )
    return _leveled(row, now)


def _leveled(row: Row, now: datetime) -> Row:
    found = {level for _, level, _, _ in row.conditions} | {level for _, level, _ in row.alarms}
    if row.decided_at is None or row.desired is None:
        found.add(UNKNOWN)
    if row.warm_share is not None and row.warm_share < 1:
        found.add(WARN if row.event and row.event.start_at - now < timedelta(hours=1) else EVENT)
    if row.event and (row.event.start_at <= now or row.event.state in {"PREWARMING", "WARM"}):
        found.add(EVENT)
    if row.event and row.event.state == "AT_RISK":
        found.add(WARN)
    level = next((level for level in LEVELS if level in found), GOOD)
    return Row(**{name: getattr(row, name) for name in Row.__slots__ if name != "level"}, level=level)


def demand_now(
    decision: control_pb2.Decision | None, past: Sequence[tuple[datetime, float | None]]
) -> tuple[float | None, datetime | None]:
    """Return the newest demand that is known, and when it was measured: of the decision or of the history."""
    found: list[tuple[datetime, float]] = [(at, value) for at, value in past if value is not None][-1:]
    if decision is not None and decision.HasField("demand_qps"):
        found.append((decision.decide_time.ToDatetime(UTC), decision.demand_qps))
    if not found:
        return None, None
    at, value = max(found)
    return value, at


def conditions_of(decision: control_pb2.Decision | None) -> tuple[tuple[str, str, bool, str], ...]:
    """Return (type, level, ok, message) of each condition."""
    if decision is None:
        return ()
    made: list[tuple[str, str, bool, str]] = []
    for one in decision.conditions:
        limited = one.type == control_pb2.CONDITION_TYPE_SCALING_LIMITED
        level = (WARN if one.ok else GOOD) if limited else (GOOD if one.ok else BAD)
        kind = control_pb2.ConditionType.Name(one.type).removeprefix("CONDITION_TYPE_")
        made.append((kind, level, one.ok, one.message or one.reason))
    return tuple(made)


def alarms_of(status: control_pb2.WorkloadStatus | None) -> tuple[tuple[str, str, str], ...]:
    """Return (kind, level, sentence) of each alarm that stands."""
    if status is None:
        return ()
    return tuple(
        (
            control_pb2.AlarmKind.Name(one.kind).removeprefix("ALARM_KIND_"),
            _ALARM_LEVEL.get(one.kind, BAD),
            one.sentence,
        )
        for one in status.alarms
    )


def events_by_workload(
    events: Iterable[event_pb2.Event], statuses: Mapping[str, control_pb2.WorkloadStatus], now: datetime
) -> dict[str, NextEvent]:
    """Return the event that is on or comes next, per workload; of recurring ones the occurrence with a contract."""
    titles = {one.name.rpartition("/")[2]: one.display_name for one in events}
    found: dict[str, list[NextEvent]] = {}
    for name, status in statuses.items():
        for contract in status.contracts:
            event_id = contract.occurrence_id.partition("@")[0]
            state = event_pb2.ContractState.Name(contract.state).removeprefix("CONTRACT_STATE_")
            start_at, end_at = contract.start_time.ToDatetime(UTC), contract.end_time.ToDatetime(UTC)
            title = titles.get(event_id) or event_id
            found.setdefault(name, []).append(NextEvent(f"events/{event_id}", title, start_at, end_at, state))
    for event in events:
        start_at, end_at = event.start_time.ToDatetime(UTC), event.end_time.ToDatetime(UTC)
        state = event_pb2.EventState.Name(event.state).removeprefix("EVENT_STATE_")
        event_id = event.name.rpartition("/")[2]
        for name in event.workloads:
            if all(one.start_at != start_at or one.event_id != event_id for one in found.get(name, ())):
                found.setdefault(name, []).append(
                    NextEvent(event.name, event.display_name or event_id, start_at, end_at, state)
                )
    ahead = {name: [one for one in some if one.end_at > now] for name, some in found.items()}
    return {name: min(some, key=lambda one: (one.start_at, one.name)) for name, some in ahead.items() if some}


def totals_of(rows: Sequence[Row]) -> Totals:
    """Add up what is known, and count what is not."""
    demand = [row.demand_qps for row in rows if row.demand_qps is not None]
    counted = [(row.warm, row.desired) for row in rows if row.warm is not None and row.desired is not None]
    with_event = [row for row in rows if row.event is not None]
    first = min(with_event, key=_starts_s, default=None)
    return Totals(
        workloads=len(rows),
        demand_qps=sum(demand) if demand else None,
        demand_unknown=len(rows) - len(demand),
        warm=sum(warm for warm, _ in counted) if counted else None,
        desired=sum(desired for _, desired in counted) if counted else None,
        replicas_unknown=len(rows) - len(counted),
        levels={level: sum(row.level == level for row in rows) for level in LEVELS},
        next_event=first.event if first else None,
        next_event_workload=first.name if first else "",
    )


def page_of(rows: Sequence[Row], asked: Asked) -> Page:
    """Filter, sort and cut."""
    words = asked.text.casefold().split()
    matching = [
        row
        for row in rows
        if (not asked.level or row.level == asked.level) and all(word in _searched(row) for word in words)
    ]
    ordered = _sorted(matching, asked)
    pages = max(1, -(-len(ordered) // PAGE_SIZE))
    number = min(max(1, asked.page), pages)
    return Page(tuple(ordered[(number - 1) * PAGE_SIZE : number * PAGE_SIZE]), number, pages, len(ordered))


def _searched(row: Row) -> str:
    title = row.event.title if row.event else ""
    return f"{row.name} {row.namespace} {row.model} {row.mode} {title}".casefold()


def _sorted(rows: list[Row], asked: Asked) -> list[Row]:
    """Order rows; what is unknown stands last in either direction."""
    if asked.sort == "name":
        return sorted(rows, key=lambda row: row.name, reverse=asked.down)
    if asked.sort == "attention":
        return sorted(
            rows, key=lambda row: (LEVELS.index(row.level), _starts_s(row), row.name), reverse=asked.down
        )
    ranked = [(_rank(row, asked.sort), row) for row in sorted(rows, key=lambda row: row.name)]
    known = [(rank, row) for rank, row in ranked if rank is not None]
    known.sort(key=lambda pair: pair[0], reverse=asked.down)
    return [row for _, row in known] + [row for rank, row in ranked if rank is None]


def _rank(row: Row, sort: str) -> float | None:
    match sort:
        case "demand":
            return row.demand_qps
        case "peak":
            return row.band.peak
        case "warm":
            return row.warm_share
        case _:
            return row.event.start_at.timestamp() if row.event else None


def _starts_s(row: Row) -> float:
    return row.event.start_at.timestamp() if row.event else float("inf")
