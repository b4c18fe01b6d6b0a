"""One workload: its numbers, its time axis, its decisions and why. Pure."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from forecrest.v1 import control_pb2, event_pb2, forecast_pb2, forecast_service_pb2

RANGES = ("day", "week", "month", "event")
POINTS_MAX = 1000
# Levels drawn as bands, outermost first, as far as a forecast has them.
BANDS = ((0.05, 0.95), (0.1, 0.9))
STAGES = ("ordered", "scheduled", "loaded", "warmed", "verified")


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time and the width of its history's buckets."""

    start_at: datetime
    end_at: datetime
    step: timedelta


@dataclass(frozen=True, slots=True)
class Span:
    """An event on the time axis."""

    event_id: str
    title: str
    start_at: datetime
    end_at: datetime


def window_of(name: str, now: datetime, spans: Sequence[Span]) -> Window:
    """Return the window of a preset; ``event`` is the event that is on, else the next one, else the last, else a day."""
    chosen = focus(spans, now)
    if name == "event" and chosen is not None:
        margin = max(timedelta(hours=2), (chosen.end_at - chosen.start_at) / 2)
        start_at, end_at = min(chosen.start_at - margin, now), chosen.end_at + margin
    else:
        back, ahead = {"week": (7, 2), "month": (30, 2)}.get(name, (1, 1))
        start_at, end_at = now - timedelta(days=back), now + timedelta(days=ahead)
    minutes = max(1, -(-(end_at - start_at) // timedelta(minutes=POINTS_MAX)))
    step = next((m for m in (1, 5, 15, 30, 60, 120, 360, 1440) if m >= minutes), 1440)
    return Window(start_at, end_at, timedelta(minutes=step))


def focus(spans: Sequence[Span], now: datetime) -> Span | None:
    """Return the event to look at: on, else next, else the last one."""
    ahead = [one for one in spans if one.end_at > now]
    if ahead:
        return min(ahead, key=lambda one: one.start_at)
    return max(spans, key=lambda one: one.end_at, default=None)


def spans_of(
    events: Iterable[event_pb2.Event],
    contracts: Iterable[event_pb2.Contract],
    window: tuple[datetime, datetime] | None = None,
) -> tuple[Span, ...]:
    """Return occurrences, each once, by start; of recurring events the first and those with contracts."""
    titles: dict[str, str] = {}
    found: dict[tuple[str, datetime], Span] = {}
    for event in events:
        event_id = event.name.rpartition("/")[2]
        titles[event_id] = event.display_name or event_id
        if event.state == event_pb2.EVENT_STATE_CANCELLED:
            continue
        start_at = event.start_time.ToDatetime(UTC)
        found[event_id, start_at] = Span(event_id, titles[event_id], start_at, event.end_time.ToDatetime(UTC))
    for contract in contracts:
        event_id = contract.occurrence_id.partition("@")[0]
        start_at = contract.start_time.ToDatetime(UTC)
        found[event_id, start_at] = Span(
            event_id, titles.get(event_id, event_id), start_at, contract.end_time.ToDatetime(UTC)
        )
    return tuple(
        sorted(
            (
                s
                for s in found.values()
                if window is None or (s.start_at < window[1] and s.end_at > window[0])
            ),
            key=lambda one: (one.start_at, one.event_id),
        )
    )


def _s(at: datetime) -> int:
    return int(at.timestamp())


def demand_series(
    history: forecast_service_pb2.GetHistoryResponse | None,
    forecast: forecast_pb2.Forecast | None,
    window: Window,
) -> dict[str, list[float | int | None]]:
    """Return columns by name over one ascending axis ``t``: ``past``, ``median``, and ``low``/``high`` of each band.

    Times are the middle of a bucket, in seconds; None is unknown.
    """
    half = window.step / 2
    columns: dict[str, dict[int, float]] = {"past": {}}
    if history is not None:
        for point in history.points:
            at = _s(point.start_time.ToDatetime(UTC) + half)
            columns["past"].setdefault(at, float("nan"))
            if point.HasField("demand_qps"):
                columns["past"][at] = point.demand_qps
    if forecast is not None and forecast.quantiles:
        columns.update(_fan(forecast, window))
    axis = sorted({at for column in columns.values() for at in column})
    made: dict[str, list[float | int | None]] = {"t": list(axis)}
    for name, column in columns.items():
        made[name] = [
            None if (value := column.get(at)) is None or math.isnan(value) else value for at in axis
        ]
    return made


def _fan(forecast: forecast_pb2.Forecast, window: Window) -> dict[str, dict[int, float]]:
    first, step = forecast.start_time.ToDatetime(UTC), forecast.step.ToTimedelta()
    levels = {round(one.level, 4): one.qps for one in forecast.quantiles}
    wanted = {"median": 0.5}
    for index, (low, high) in enumerate(BANDS):
        if low in levels and high in levels:
            wanted |= {f"low{index}": low, f"high{index}": high}
    # Steps far narrower than the window's buckets would only cost time to draw.
    stride = max(1, window.step // step)
    fan: dict[str, dict[int, float]] = {}
    for name, level in wanted.items():
        if level not in levels:
            continue
        fan[name] = {
            _s(at): levels[level][index]
            for index in range(0, len(levels[level]), stride)
            if window.start_at <= (at := first + (index + 0.5) * step) < window.end_at
        }
    return fan


def replica_series(
    decisions: Sequence[control_pb2.Decision],
    plan: control_pb2.CapacityPlan | None,
    window: Window,
    now: datetime,
) -> dict[str, list[int | None]]:
    """Return steps over one axis ``t``: ``desired`` and ``warm`` until now, ``floor`` of the plan from its making on."""
    ordered = sorted(decisions, key=lambda one: one.decide_time.ToDatetime(UTC))
    times = [one.decide_time.ToDatetime(UTC) for one in ordered]
    edges = {window.start_at, now, window.end_at, *times}
    floors = list(plan.floors) if plan is not None else []
    made_at = plan.create_time.ToDatetime(UTC) if plan is not None else now
    for floor in floors:
        edges |= {floor.order_time.ToDatetime(UTC), floor.until_time.ToDatetime(UTC), made_at}
    # A step that ends in nothing is drawn to its end only if its value stands there too.
    edges |= {at - timedelta(seconds=1) for at in edges}
    axis = sorted({at.replace(microsecond=0) for at in edges if window.start_at <= at <= window.end_at})
    columns: dict[str, list[int | None]] = {
        "t": [_s(at) for at in axis],
        "desired": [],
        "warm": [],
        "floor": [],
    }
    for at in axis:
        index = bisect_right(times, at) - 1
        decision = ordered[index] if index >= 0 and at <= now else None
        columns["desired"].append(decision.desired_replicas if decision else None)
        columns["warm"].append(
            decision.warm_replicas if decision and decision.HasField("warm_replicas") else None
        )
        held = [
            floor.replicas
            for floor in floors
            if floor.order_time.ToDatetime(UTC) <= at < floor.until_time.ToDatetime(UTC)
        ]
        columns["floor"].append(max(held, default=None) if at >= made_at else None)
    return columns


# ---------------------------------------------------------------- tables


@dataclass(frozen=True, slots=True)
class Stage:
    """How far replicas of a contract have come."""

    name: str
    count: int
    wanted: int


@dataclass(frozen=True, slots=True)
class ContractView:
    """One event's prewarm."""

    occurrence_id: str
    event_id: str
    state: str
    replicas: int
    order_at: datetime
    deadline_at: datetime
    expected_warm_at: datetime | None
    met_at: datetime | None
    shortfall: int
    stages: tuple[Stage, ...]

    @property
    def level(self) -> str:
        """How it stands."""
        return {
            "AT_RISK": "warn",
            "SHORT": "bad",
            "WARM": "good",
            "ACTIVE": "good",
            "PREWARMING": "event",
        }.get(self.state, "")


def contracts_of(status: control_pb2.WorkloadStatus | None) -> tuple[ContractView, ...]:
    """Return contracts that are not over, by deadline."""
    if status is None:
        return ()
    views: list[ContractView] = []
    for one in status.contracts:
        state = event_pb2.ContractState.Name(one.state).removeprefix("CONTRACT_STATE_")
        if state == "COMPLETED":
            continue
        counts = (
            one.ordered_count,
            one.scheduled_count,
            one.loaded_count,
            one.warmed_count,
            one.verified_count,
        )
        views.append(
            ContractView(
                occurrence_id=one.occurrence_id,
                event_id=one.occurrence_id.partition("@")[0],
                state=state,
                replicas=one.replicas,
                order_at=one.order_time.ToDatetime(UTC),
                deadline_at=one.deadline_time.ToDatetime(UTC),
                expected_warm_at=one.expected_warm_time.ToDatetime(UTC)
                # Before the order it is of what would be if the order were given now.
                if one.HasField("expected_warm_time") and state != "PLANNED"
                else None,
                met_at=one.met_time.ToDatetime(UTC) if one.HasField("met_time") else None,
                shortfall=one.shortfall_replicas,
                stages=tuple(Stage(n, count, one.replicas) for n, count in zip(STAGES, counts, strict=True)),
            )
        )
    return tuple(sorted(views, key=lambda one: one.deadline_at))


def lead_of(plan: control_pb2.CapacityPlan | None) -> timedelta | None:
    """Return how long before need the newest plan orders: the lead time it counts with. None: no plan says."""
    if plan is None:
        return None
    leads = [one.need_time.ToDatetime(UTC) - one.order_time.ToDatetime(UTC) for one in plan.floors]
    return max((lead for lead in leads if lead > timedelta()), default=None)


@dataclass(frozen=True, slots=True)
class FloorView:
    """One dated floor."""

    replicas: int
    order_at: datetime
    need_at: datetime
    until_at: datetime
    reason: str
    unmet: int


def floors_of(plan: control_pb2.CapacityPlan | None, now: datetime) -> tuple[FloorView, ...]:
    """Return floors that are in force or to come."""
    views = [
        FloorView(
            one.replicas,
            one.order_time.ToDatetime(UTC),
            one.need_time.ToDatetime(UTC),
            one.until_time.ToDatetime(UTC),
            one.reason,
            one.unmet_replicas,
        )
        for one in (plan.floors if plan is not None else ())
    ]
    return tuple(one for one in views if one.until_at > now)


@dataclass(frozen=True, slots=True)
class AccuracyRow:
    """The live record at one distance ahead."""

    lead: timedelta
    steps: int
    bias: float | None
    daily_ratio: float | None
    coverage: tuple[tuple[float, float], ...]


def accuracy_of(accuracy: forecast_pb2.Accuracy | None) -> tuple[AccuracyRow, ...]:
    """Return the live record, nearest first."""
    if accuracy is None:
        return ()
    return tuple(
        AccuracyRow(
            one.lead.ToTimedelta(),
            one.step_count,
            one.bias if one.HasField("bias") else None,
            one.daily_naive_ratio if one.HasField("daily_naive_ratio") else None,
            tuple((c.level, c.share) for c in one.coverage if round(c.level, 4) in {0.5, 0.9, 0.95}),
        )
        for one in accuracy.live
    )


PARTS = ("baseline", "trend", "season", "event", "correction")


def composition(explanation: forecast_pb2.ForecastExplanation | None) -> tuple[tuple[str, float], ...]:
    """Return what the highest median ahead is made of, part by part; empty: unknown."""
    if explanation is None or not explanation.median_qps:
        return ()
    peak = max(range(len(explanation.median_qps)), key=explanation.median_qps.__getitem__)
    columns: Mapping[str, Sequence[float]] = {name: getattr(explanation, f"{name}_qps") for name in PARTS}
    return tuple((name, column[peak]) for name, column in columns.items() if len(column) > peak)
