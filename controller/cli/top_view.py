"""What ``forecrest top`` shows: rows from the API's messages, and their picture in 80 columns. Pure: ``now`` comes in.

Promises: what is unknown is ``?`` or null, never 0; every figure has an age, and one that is past its age is unknown; a
fleet that nobody has told of lately is dimmed under a line that says since when. Called by ``top``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Literal

from forecrest.v1 import control_pb2, control_service_pb2, event_pb2, forecast_pb2
from rich.console import Group
from rich.table import Table
from rich.text import Text

from controller.cli.common import bare
from controller.counted import contract_now, counted

# Older than this, a figure is not shown as if it were of now.
DEMAND_AGE_MAX = timedelta(seconds=60)
STATUS_AGE_MAX = timedelta(seconds=60)
FORECAST_AGE_MAX = timedelta(hours=3)
PEAK_LEVEL = 0.9
ALARMS_SHOWN = 3
Justify = Literal["left", "right"]
COLUMNS: tuple[tuple[str, int, Justify], ...] = (
    ("now", 5, "right"),
    ("peak", 5, "right"),
    ("in", 6, "right"),
    ("want", 4, "right"),
    ("warm", 6, "right"),
    ("by", 9, "left"),
    ("cond", 4, "left"),
    ("event", 14, "left"),
    ("age", 5, "right"),
)
LEGEND = "cond: A cannot scale, S no demand known, L limited, ! alarms; ~ old count"


class Sort(StrEnum):
    """What comes first."""

    ATTENTION = "attention"
    NAME = "name"
    DEMAND = "demand"
    PEAK = "peak"
    EVENT = "event"


@dataclass(frozen=True, slots=True)
class Course:
    """One quantile of a workload's forecast."""

    origin_at: datetime
    start_at: datetime
    step: timedelta
    qps: tuple[float, ...]

    def peak(self, now: datetime, ahead: timedelta) -> tuple[float, datetime] | None:
        """The highest value from now on, and when; None: it says nothing of that time, or is too old to."""
        if now - self.origin_at > FORECAST_AGE_MAX:
            return None
        first = max(0, (now - self.start_at) // self.step)
        last = min(len(self.qps), -((self.start_at - now - ahead) // self.step))
        if first >= last:
            return None
        at = max(range(first, last), key=self.qps.__getitem__)
        return self.qps[at], self.start_at + at * self.step


@dataclass(frozen=True, slots=True)
class Row:
    """One workload. None is unknown; times are ISO 8601 in JSON."""

    workload: str
    demand_qps: float | None = None
    demand_age_s: float | None = None
    peak_qps: float | None = None
    peak_at: datetime | None = None
    desired_replicas: int | None = None
    warm_replicas: int | None = None
    starting_replicas: int | None = None
    draining_replicas: int | None = None
    warm_age_s: float | None = None  # of the three counts
    warm_old: bool = False  # short of what is desired, and counted so long ago that it may have grown
    binding: str | None = None
    sentence: str | None = None
    conditions: tuple[str, ...] = ()  # those that are not as they should be, with their reason
    alarms: tuple[str, ...] = ()
    event: str | None = None
    event_state: str | None = None
    event_start_at: datetime | None = None
    event_end_at: datetime | None = None
    status_age_s: float | None = None
    stale: bool = True  # the loop has not looked at it lately

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        plain = asdict(self)
        return {k: v.isoformat() if isinstance(v, datetime) else v for k, v in plain.items()}


@dataclass(slots=True)
class Fleet:
    """What the API has told so far, and when."""

    statuses: dict[str, control_service_pb2.ObservedStatus] = field(
        default_factory=dict[str, control_service_pb2.ObservedStatus]
    )
    decisions: dict[str, control_pb2.Decision] = field(default_factory=dict[str, control_pb2.Decision])
    courses: dict[str, Course] = field(default_factory=dict[str, Course])
    only: frozenset[str] | None = None  # by a filter
    more: bool = False  # there are workloads beyond those that are read
    answered_at: datetime | None = None
    lost_since_at: datetime | None = None
    problem: str = ""

    def rows(self, now: datetime, ahead: timedelta, sort: Sort) -> list[Row]:
        """The workloads, as they are known now."""
        names = (name for name in self.statuses if self.only is None or name in self.only)
        found = [
            row_of(self.statuses[name], self.decisions.get(name), self.courses.get(name), now, ahead)
            for name in names
        ]
        return sorted(found, key=lambda row: _order(row, sort))


def course_of(found: forecast_pb2.Forecast) -> Course | None:
    """The quantile that is shown; None without numbers."""
    if not found.quantiles or not found.quantiles[0].qps:
        return None
    nearest = min(found.quantiles, key=lambda q: abs(q.level - PEAK_LEVEL))
    return Course(
        found.origin_time.ToDatetime(UTC),
        found.start_time.ToDatetime(UTC),
        found.step.ToTimedelta(),
        tuple(nearest.qps),
    )


def row_of(
    found: control_service_pb2.ObservedStatus,
    decision: control_pb2.Decision | None,
    course: Course | None,
    now: datetime,
    ahead: timedelta,
) -> Row:
    """One workload as it is known now."""
    status = found.status
    name = status.name.removesuffix("/status")
    seen_at = status.last_time.ToDatetime(UTC) if status.HasField("last_time") else None
    demand_age = now - found.demand_time.ToDatetime(UTC) if found.HasField("demand_qps") else None
    fresh = demand_age is not None and demand_age <= DEMAND_AGE_MAX
    peak = course.peak(now, ahead) if course is not None else None
    contract = contract_now(status, now)
    counts = counted(status, decision, now)
    desired = status.desired_replicas if status.HasField("desired_replicas") else None
    return Row(
        workload=bare(name),
        demand_qps=found.demand_qps if fresh else None,
        demand_age_s=None if demand_age is None else max(0.0, demand_age.total_seconds()),
        peak_qps=None if peak is None else peak[0],
        peak_at=None if peak is None else peak[1],
        desired_replicas=desired,
        warm_replicas=None if counts is None else counts.warm,
        starting_replicas=None if counts is None else counts.starting,
        draining_replicas=None if counts is None else counts.draining,
        warm_age_s=None if counts is None else max(0.0, (now - counts.at).total_seconds()),
        warm_old=counts is not None and counts.is_old(desired, now),
        binding=_binding(decision),
        sentence=None if decision is None else decision.sentence,
        conditions=() if decision is None else _conditions(decision),
        alarms=tuple(alarm.sentence for alarm in status.alarms),
        event=None if contract is None else contract.occurrence_id,
        event_state=None
        if contract is None
        else event_pb2.ContractState.Name(contract.state).removeprefix("CONTRACT_STATE_"),
        event_start_at=None if contract is None else contract.start_time.ToDatetime(UTC),
        event_end_at=None if contract is None else contract.end_time.ToDatetime(UTC),
        status_age_s=None if seen_at is None else max(0.0, (now - seen_at).total_seconds()),
        stale=seen_at is None or now - seen_at > STATUS_AGE_MAX,
    )


def _binding(decision: control_pb2.Decision | None) -> str | None:
    if decision is None:
        return None
    return control_pb2.Source.Name(decision.binding).removeprefix("SOURCE_") if decision.binding else "-"


def _conditions(decision: control_pb2.Decision) -> tuple[str, ...]:
    limited = control_pb2.CONDITION_TYPE_SCALING_LIMITED
    bad = [c for c in decision.conditions if c.ok == (c.type == limited)]
    return tuple(
        f"{control_pb2.ConditionType.Name(c.type).removeprefix('CONDITION_TYPE_')}: {c.reason}" for c in bad
    )


def _order(row: Row, sort: Sort) -> tuple[Any, ...]:
    last = datetime.max.replace(tzinfo=UTC)
    keys: Mapping[Sort, tuple[Any, ...]] = {
        Sort.ATTENTION: (-len(row.alarms), not row.stale, -len(row.conditions), row.event_start_at or last),
        Sort.NAME: (),
        Sort.DEMAND: (-(row.demand_qps if row.demand_qps is not None else -1.0),),
        Sort.PEAK: (-(row.peak_qps if row.peak_qps is not None else -1.0),),
        Sort.EVENT: (row.event_start_at or last,),
    }
    return (*keys[sort], row.workload)


def picture(
    fleet: Fleet, rows: Sequence[Row], now: datetime, *, height: int, width: int, sort: Sort
) -> Group:
    """The whole screen; ``height`` and ``width``: lines and columns it may take."""
    lost = fleet.lost_since_at is not None
    alarms = [alarm for row in rows for alarm in row.alarms]
    told = [Text(f"! {alarm}", style="dim" if lost else "red") for alarm in alarms[:ALARMS_SHOWN]]
    if len(alarms) > ALARMS_SHOWN:
        told.append(Text(f"! and {len(alarms) - ALARMS_SHOWN} alarms more"))
    # Two lines of heading, one of column names, one of legend, two for what does not fit; alarms may wrap once.
    room = max(1, height - 6 - 2 * len(told))
    table = _table([row.workload for row in rows[:room]], width)
    for row in rows[:room]:
        table.add_row(*_cells(row, now), style="dim" if lost or row.stale else None)
    hidden = len(rows) - room
    more = [Text(f"… {hidden} more, by {sort}; narrow with --filter")] if hidden > 0 else []
    if fleet.more:
        more.append(Text("… and more than are read here; narrow with --filter", style="yellow"))
    body = [table] if rows else [Text("No workloads." if fleet.answered_at else "Nothing is known yet.")]
    return Group(*_head(fleet, rows, now), *body, *more, *told, Text(LEGEND, style="dim"))


def _head(fleet: Fleet, rows: Sequence[Row], now: datetime) -> list[Text]:
    alarms = sum(len(row.alarms) for row in rows)
    known = [row.demand_qps for row in rows if row.demand_qps is not None]
    stale = sum(row.stale for row in rows)
    first_of = "the first " if fleet.more else ""
    parts = [
        f"{first_of}{len(rows)} workloads",
        f"{short(sum(known)) if known else '?'} QPS",
        f"{alarms} alarm" if alarms == 1 else f"{alarms} alarms",
    ]
    parts += [f"{stale} not looked at lately"] if stale else []
    said = ", ".join(parts) if fleet.answered_at is not None else "asking …"
    first = Text(f"Forecrest {now:%H:%M:%S} UTC   {said}", style="bold", no_wrap=True, overflow="ellipsis")
    if fleet.lost_since_at is None:
        return [first, Text("")]
    age = countdown(now - fleet.lost_since_at)
    known_at = (
        f"what follows is of {fleet.answered_at:%H:%M:%S}" if fleet.answered_at else "nothing is known yet"
    )
    line = f"NO ANSWER since {fleet.lost_since_at:%H:%M:%S} ({age}): {known_at}. {fleet.problem}"
    return [first, Text(line, style="bold white on red", no_wrap=True, overflow="ellipsis")]


def _table(names: Sequence[str], width: int) -> Table:
    # The figures keep their columns, whatever names there are.
    left = max(12, width - sum(w + 1 for _, w, _ in COLUMNS))
    longest = max([len("workload"), *map(len, names)])
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    made.add_column("workload", width=min(longest, left), no_wrap=True, overflow="ellipsis")
    for name, size, justify in COLUMNS:
        made.add_column(name, width=size, justify=justify, no_wrap=True, overflow="ellipsis")
    return made


def _cells(row: Row, now: datetime) -> list[Text]:
    marks = "".join(
        letter if any(c.startswith(name) for c in row.conditions) else "·"
        for letter, name in (("A", "ABLE"), ("S", "SCALING_ACTIVE"), ("L", "SCALING_LIMITED"))
    ) + ("!" if row.alarms else " ")
    warm = "?" if row.warm_replicas is None else f"{'~' if row.warm_old else ''}{row.warm_replicas}"
    starting = f"+{row.starting_replicas}" if row.starting_replicas else ""
    behind = None not in {row.warm_replicas, row.desired_replicas} and (row.warm_replicas or 0) < (
        row.desired_replicas or 0
    )
    return [
        Text(row.workload),
        Text("?" if row.demand_qps is None else short(row.demand_qps)),
        Text("?" if row.peak_qps is None else short(row.peak_qps)),
        Text("" if row.peak_at is None else countdown(max(timedelta(0), row.peak_at - now))),
        Text("?" if row.desired_replicas is None else str(row.desired_replicas)),
        Text(f"{warm}{starting}", style="yellow" if behind else ""),
        Text(row.binding or "?"),
        Text(marks, style="red" if row.alarms else "yellow" if row.conditions else ""),
        Text(_event(row, now)),
        Text("?" if row.status_age_s is None else countdown(timedelta(seconds=row.status_age_s))),
    ]


def _event(row: Row, now: datetime) -> str:
    if row.event is None or row.event_start_at is None or row.event_end_at is None:
        return ""
    if now < row.event_start_at:
        return f"{countdown(row.event_start_at - now)} {row.event}"
    return f"on {row.event}"


def short(value: float) -> str:
    """A rate in at most five characters, for its size."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}" if value < 99.5 else f"{value:.0f}"


def countdown(length: timedelta) -> str:
    """A length of time in at most six characters: 45s, 12m05s, 3h20m, 2d04h."""
    seconds = int(length.total_seconds())
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02}s"
    if seconds < 86_400:
        return f"{seconds // 3600}h{seconds % 3600 // 60:02}m"
    return f"{seconds // 86_400}d{seconds % 86_400 // 3600:02}h"
