"""What an event would take, as the preview shows it: figures, sentences, and a drawing of demand and replicas.

Promises: pure; the drawing is numbers in percent of its frame, so that it needs no script and no inline style, and text
in it keeps its size on a phone. A curve the API does not know is None and is said so, never drawn at 0. Called by
`pages.events` for previews and reports.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from forecrest.v1 import control_pb2, event_service_pb2, forecast_pb2

from controller.console.live import instant
from controller.console.views.events import number, short, span, word, zone_or

# Points of one line at most: more than a phone has pixels, few enough to send at every keystroke.
POINTS_MAX = 240
# What the API takes where a planner says nothing.
CONFIDENCE = 0.8
_TICKS_MAX = 4
_STEPS_S = (60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 1209600)
_NEARLY_NOTHING = 1e-9
_CROWDED_PERCENT = 14.0


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis: where, in percent from the left or from the top, and what it stands for."""

    at: float
    value: float = 0.0
    time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A dated line across the drawing: ``kind`` is prewarm, deadline, start or end; ``side`` is where its text fits."""

    kind: str
    at: float
    time: datetime
    side: str
    row: int


@dataclass(frozen=True, slots=True)
class Panel:
    """One stack of lines over the common time axis. Paths are SVG paths in a square of 100 by 100, or ""."""

    ticks: tuple[Tick, ...]
    band: str = ""
    line: str = ""
    other: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """Demand above, replicas below, on one time axis."""

    demand: Panel | None
    replicas: Panel | None
    ticks: tuple[Tick, ...]
    marks: tuple[Mark, ...]
    days: bool


@dataclass(frozen=True, slots=True)
class WorkloadPreview:
    """What an event means for one workload. ``lead`` is from the first order to the deadline, ``margin`` from there."""

    workload: str
    sentence: str
    reasons: tuple[str, ...]
    start_at: datetime
    end_at: datetime
    prewarm_at: datetime | None
    deadline_at: datetime | None
    late: bool
    replicas: int
    baseline: int
    unmet: int
    demand_qps: float | None
    sized: bool
    extra_replica_hours: float
    extra_gpu_hours: float
    forecast: str
    chart: Chart

    @property
    def needed(self) -> int:
        """Replicas without any limit."""
        return self.replicas + self.unmet

    @property
    def lead(self) -> timedelta | None:
        """How long before the start the first replica is ordered."""
        return None if self.prewarm_at is None else self.start_at - self.prewarm_at

    @property
    def startup(self) -> timedelta | None:
        """How long starting is planned to take: from the first order to the deadline."""
        if self.prewarm_at is None or self.deadline_at is None:
            return None
        return self.deadline_at - self.prewarm_at

    @property
    def margin(self) -> timedelta | None:
        """How long before the start all are to be warm."""
        return None if self.deadline_at is None else self.start_at - self.deadline_at


@dataclass(frozen=True, slots=True)
class Preview:
    """What an event would take, all workloads together and one by one."""

    start_at: datetime
    end_at: datetime
    time_zone: str
    extra_replica_hours: float
    extra_gpu_hours: float
    unmet: int
    peak_qps: float | None
    confidence: float
    warnings: tuple[str, ...]
    workloads: tuple[WorkloadPreview, ...]

    @property
    def zone(self) -> tzinfo:
        """The planner's own zone."""
        return zone_or(self.time_zone)

    @property
    def verdict(self) -> str:
        """One word for the whole: unknown, short, late, warned or ready."""
        if any(not w.sized for w in self.workloads):
            return "unknown"
        if self.unmet:
            return "short"
        if any(w.late for w in self.workloads):
            return "late"
        # Registration looks at later occurrences too: what it warns of is not ready, whatever the next one is.
        return "warned" if self.warnings else "ready"


def preview_view(response: event_service_pb2.PreviewEventResponse, now: datetime, zone: tzinfo) -> Preview:
    """Return the page's values; marks on the time axis are round in ``zone``."""
    return Preview(
        start_at=response.event.start_time.ToDatetime(UTC),
        end_at=response.event.end_time.ToDatetime(UTC),
        time_zone=response.event.time_zone,
        extra_replica_hours=response.extra_replica_hours,
        extra_gpu_hours=response.extra_gpu_hours,
        unmet=response.unmet_replicas,
        peak_qps=number(response.event, "expected_peak_qps"),
        confidence=number(response.event, "confidence") or CONFIDENCE,
        warnings=tuple(dict.fromkeys(w.sentence for w in response.event.warnings)),
        workloads=tuple(_workload(one, now, zone) for one in response.workloads),
    )


def _workload(one: event_service_pb2.WorkloadPreview, now: datetime, zone: tzinfo) -> WorkloadPreview:
    prewarm_at = instant(one, "prewarm_start_time")
    if prewarm_at is not None:  # as the clock shows it, so that clock and spans add up
        prewarm_at = prewarm_at.replace(microsecond=0)
    start_at = one.start_time.ToDatetime(UTC)
    floor = next(iter(one.floors), None)
    sized = floor is not None and floor.HasField("demand_qps")
    return WorkloadPreview(
        workload=short(one.workload),
        sentence=one.sentence,
        reasons=tuple(dict.fromkeys(f.reason for f in one.floors if f.reason)),
        start_at=start_at,
        end_at=one.end_time.ToDatetime(UTC),
        prewarm_at=prewarm_at,
        deadline_at=instant(one, "deadline_time"),
        late=prewarm_at is not None and prewarm_at < now < start_at,
        replicas=one.replicas,
        baseline=one.baseline_replicas,
        unmet=one.unmet_replicas,
        demand_qps=max((f.demand_qps for f in one.floors if f.HasField("demand_qps")), default=None),
        sized=sized,
        extra_replica_hours=one.extra_replica_hours,
        extra_gpu_hours=one.extra_gpu_hours,
        forecast=word(one.forecast_state, forecast_pb2.ForecastState.DESCRIPTOR, "FORECAST_STATE_"),
        chart=preview_chart(one, zone),
    )


def preview_chart(one: event_service_pb2.WorkloadPreview, zone: tzinfo) -> Chart:
    """Draw a preview: the curve with its band, and the floors from their order on."""
    start_at, end_at = one.start_time.ToDatetime(UTC), one.end_time.ToDatetime(UTC)
    times = {
        "prewarm": instant(one, "prewarm_start_time"),
        "deadline": instant(one, "deadline_time"),
        "start": start_at,
        "end": end_at,
    }
    known = [t for t in times.values() if t is not None]
    room = (max(known) - min(known)) * 0.06
    axis = _Axis(min(known) - room, max(known) + room)
    demand = None
    if one.curve:
        step = span(one, "curve_step") or timedelta(minutes=1)
        first = one.curve_start_time.ToDatetime(UTC)
        levels = [series.level for series in one.curve]
        middle = min(range(len(levels)), key=lambda i: abs(levels[i] - 0.5))
        top = next((i for i, level in enumerate(levels) if level >= 0.9), len(levels) - 1)
        demand = _demand(
            axis,
            [first + step * i for i in range(len(one.curve[0].qps))],
            one.curve[middle].qps,
            (one.curve[0].qps, one.curve[top].qps),
            (start_at, end_at),
        )
    return Chart(
        demand=demand,
        replicas=_replicas(axis, one.floors, one.baseline_replicas),
        ticks=axis.ticks(zone),
        marks=_marks(axis, {k: t for k, t in times.items() if t is not None}),
        days=axis.days,
    )


def report_chart(
    points: Sequence[tuple[datetime, float | None]],
    expected_qps: float | None,
    start_at: datetime,
    end_at: datetime,
    zone: tzinfo,
) -> Chart | None:
    """Draw demand as it came, with the expected peak across; None without a single observed minute."""
    seen = [value for _, value in points if value is not None]
    if not seen:
        return None
    first = min(start_at, points[0][0])
    axis = _Axis(first, max(end_at, points[-1][0]))
    high = _nice(max([*seen, expected_qps or 0.0]))
    line = _line([(axis.at(t), None if v is None else _up(v, high)) for t, v in points])
    other = (
        ""
        if expected_qps is None
        else f"M{axis.at(start_at):.2f} {_up(expected_qps, high):.2f}H{axis.at(end_at):.2f}"
    )
    return Chart(
        demand=Panel(ticks=_levels(high), line=line, other=other),
        replicas=None,
        ticks=axis.ticks(zone),
        marks=_marks(axis, {"start": start_at, "end": end_at}),
        days=axis.days,
    )


class _Axis:
    """The common time axis, in percent of the drawing's width."""

    def __init__(self, first: datetime, last: datetime) -> None:
        self.first = first
        self.length_s = max(1.0, (last - first).total_seconds())
        self.step_s = next((s for s in _STEPS_S if self.length_s / s <= _TICKS_MAX), _STEPS_S[-1])
        self.days = self.step_s >= _STEPS_S[10]

    def at(self, when: datetime) -> float:
        return min(100.0, max(0.0, (when - self.first).total_seconds() / self.length_s * 100))

    def ticks(self, zone: tzinfo) -> tuple[Tick, ...]:
        """Round times of the reader's wall clock."""
        local = self.first.astimezone(zone)
        midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
        passed = math.ceil((local - midnight).total_seconds() / self.step_s)
        found: list[Tick] = []
        for i in range(passed, passed + 2 * _TICKS_MAX):
            time = (midnight + timedelta(seconds=self.step_s * i)).astimezone(UTC)
            if (time - self.first).total_seconds() > self.length_s:
                break
            # A text at the very edge would be cut off.
            if 3 <= self.at(time) <= 97:
                found.append(Tick(self.at(time), time=time))
        return tuple(found)


def _demand(
    axis: _Axis,
    times: Sequence[datetime],
    median: Sequence[float],
    band: tuple[Sequence[float], Sequence[float]],
    window: tuple[datetime, datetime],
) -> Panel:
    inside = [i for i, t in enumerate(times) if t <= window[1]]
    stride = max(1, math.ceil(len(inside) / POINTS_MAX))
    picked = [inside[i : i + stride] for i in range(0, len(inside), stride)]
    high = _nice(max(band[1], default=0.0))
    # The highest of each stretch: a peak must not vanish between two points.
    xs = [axis.at(max(times[group[0]], window[0])) for group in picked]
    upper = [(x, _up(max(band[1][i] for i in g), high)) for x, g in zip(xs, picked, strict=True)]
    lower = [(x, _up(min(band[0][i] for i in g), high)) for x, g in zip(xs, picked, strict=True)]
    line = [(x, _up(max(median[i] for i in g), high)) for x, g in zip(xs, picked, strict=True)]
    for series in (upper, lower, line):
        series.append((axis.at(window[1]), series[-1][1]))
    area = _line([*upper, *reversed(lower)]) + "Z"
    return Panel(ticks=_levels(high), band=area, line=_line(line))


def _replicas(axis: _Axis, floors: Sequence[control_pb2.Floor], baseline: int) -> Panel:
    held = [(f.order_time.ToDatetime(UTC), f.until_time.ToDatetime(UTC), f.replicas) for f in floors]
    end_at = axis.first + timedelta(seconds=axis.length_s)
    edges = sorted({axis.first, end_at, *(t for row in held for t in row[:2])})
    edges = [t for t in edges if axis.first <= t <= end_at]
    counts = [max([baseline, *(n for a, b, n in held if a <= t < b)]) for t in edges]
    high = _nice(max(counts, default=1), whole=True)
    path = ""
    for i, (t, n) in enumerate(zip(edges, counts, strict=True)):
        x, y = axis.at(t), _up(n, high)
        path += f"M{x:.2f} {y:.2f}" if i == 0 else f"H{x:.2f}V{y:.2f}"
    other = f"M0 {_up(baseline, high):.2f}H100"
    return Panel(ticks=_levels(high, whole=True), line=path, band=f"{path}H100V100H0Z", other=other)


def _marks(axis: _Axis, times: dict[str, datetime]) -> tuple[Mark, ...]:
    """Lines with their text towards the middle; one close to the line before it goes one row down."""
    found: list[Mark] = []
    for kind, time in sorted(times.items(), key=lambda pair: pair[1]):
        at = axis.at(time)
        crowded = bool(found) and at - found[-1].at < _CROWDED_PERCENT
        row = (found[-1].row + 1) if crowded else 0
        found.append(Mark(kind, at, time, "end" if at > 60 else "start", row))
    return tuple(found)


def _up(value: float, high: float) -> float:
    return 100 - min(100.0, max(0.0, value / high * 100))


def _line(points: Iterable[tuple[float, float | None]]) -> str:
    path, pen = [], "M"
    for x, y in points:
        if y is None:
            pen = "M"
            continue
        path.append(f"{pen}{x:.2f} {y:.2f}")
        pen = "L"
    return "".join(path)


def _nice(value: float, *, whole: bool = False) -> float:
    """Return the next round number above, so that the axis has readable marks."""
    # What is nearly nothing has no power of ten of its own left.
    if not math.isfinite(value) or value < _NEARLY_NOTHING:
        return 1.0 if not whole else 2.0
    scale = 10 ** math.floor(math.log10(value))
    found = next(m * scale for m in (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10, 12) if m * scale >= value * 1.02)
    return float(max(2, 2 * math.ceil(found / 2))) if whole else float(found)


def _levels(high: float, *, whole: bool = False) -> tuple[Tick, ...]:
    del whole
    return tuple(Tick(100 - part * 50, value=high * part / 2) for part in (0, 1, 2))
