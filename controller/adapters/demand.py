"""Turn replicas' counters into demand per minute and live demand. Pure: no clock, no I/O.

What arrived at a replica up to a moment is what it has answered (successes and failures) plus what
waits in its queue. Demand is the growth of that sum's highest value so far: requests being
executed are in neither part for a moment, so the sum dips and recovers, and a dip is no demand
undone. Growth between two readings is spread evenly over the time between them, across minute
boundaries. That makes the total independent of when, how often and how successfully replicas are
read.

Promises, each with a test of its number in tests/property/triton/test_demand_meter.py:

1. Nothing is lost or invented: minutes add up to what arrived between first and last reading.
2. Lost readings change no total.
3. Duplicate and late readings change nothing.
4. A restart (a counter that falls) never invents demand; it hides only what arrived after the
   last reading before it.
5. No minute's demand is negative, no coverage leaves [0, 1].
6. A minute nobody was read in is absent: unknown, never 0.
7. Counters that stand still are verified zero traffic: a sample of 0 with full coverage.
8. Draining often or once ends with the same minutes.
9. A steady rate gives every fully covered minute sixty seconds of it.
10. A series that is no longer shown (a model unloaded, a GPU gone) invents no demand; it hides only what arrived
    since the last reading that showed it.

Refuses nothing; the scraper refuses readings that are not finite. Called by `triton_metrics`.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from controller.core.resources import TrafficSample
from controller.core.types import DemandObservation

_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMetrics:
    """One reading of a replica: counters since its start, and the queue now."""

    at: datetime
    success_count: float
    failure_count: float  # rejected, cancelled and failed requests: offered, not served
    pending_count: float
    queue_duration_us: float
    exec_count: float
    series: frozenset[str] = frozenset()  # whose counts these are the sums of; empty: not told apart

    @property
    def arrived_count(self) -> float:
        """Requests offered since the replica's start, those being executed excepted."""
        return self.success_count + self.failure_count + self.pending_count

    def restarted_since(self, earlier: "ReplicaMetrics") -> bool:
        """Whether a counter fell, which counters do only by starting over."""
        return (
            self.success_count < earlier.success_count
            or self.failure_count < earlier.failure_count
            or self.exec_count < earlier.exec_count
            or self.queue_duration_us < earlier.queue_duration_us
        )


@dataclass(frozen=True, slots=True)
class Departure:
    """A replica's counters after its last request, read before its end; `baseline` as in `record`."""

    workload: str
    replica: str
    last: ReplicaMetrics
    baseline: ReplicaMetrics | None = None


@dataclass(slots=True)
class _Track:
    """What is remembered of one replica."""

    last: ReplicaMetrics | None
    arrived_mark: float
    expected_until: datetime


@dataclass(slots=True)
class _Minute:
    demand: float = 0.0
    served: float = 0.0
    rejected: float = 0.0
    covered_s: float = 0.0  # replica-seconds between readings
    expected_s: float = 0.0  # replica-seconds that should have been read
    watched_s: float = 0.0  # seconds with at least one replica there to be read

    @property
    def coverage(self) -> float:
        if self.expected_s <= 0:
            return 0.0
        return min(1.0, self.watched_s / 60) * min(1.0, self.covered_s / self.expected_s)


@dataclass(frozen=True, slots=True)
class _Span:
    start: datetime
    end: datetime
    amount: float

    def share_in(self, start: datetime, end: datetime) -> float:
        """The part of `amount` that falls into the window, evenly spread."""
        overlap = min(self.end, end) - max(self.start, start)
        return self.amount * max(0.0, overlap / (self.end - self.start))


@dataclass(slots=True)
class _Workload:
    replicas: dict[str, _Track] = field(default_factory=dict[str, _Track])
    minutes: dict[datetime, _Minute] = field(default_factory=dict[datetime, _Minute])
    changed: set[datetime] = field(default_factory=set[datetime])  # minutes to hand out
    demand: deque[_Span] = field(default_factory=deque[_Span])  # for the live windows
    watched: deque[_Span] = field(default_factory=deque[_Span])
    watched_until: datetime | None = None

    def track(self, replica: str, first: ReplicaMetrics | None, now: datetime) -> _Track:
        """What is remembered of a replica; a new one counts from `first`."""
        if replica not in self.replicas:
            mark = first.arrived_count if first else 0.0
            self.replicas[replica] = _Track(first, mark, min(first.at, now) if first else now)
        return self.replicas[replica]

    def minute(self, at: datetime) -> _Minute:
        """The minute that starts at `at`, to be changed."""
        self.changed.add(at)
        return self.minutes.setdefault(at, _Minute())


class DemandMeter:
    """Accumulates readings of any number of workloads; memory is bounded by `retention`.

    `windows` holds (stable, panic) for workloads whose policy differs from the defaults; the caller
    keeps it. `reset_count`, `late_count` and `forgotten_count` tell how often a restart was seen, a reading
    was too old to use, and requests fell out of the retained time because a replica was silent.
    """

    def __init__(
        self,
        *,
        stable_window: timedelta = timedelta(seconds=60),
        panic_window: timedelta = timedelta(seconds=6),
        retention: timedelta = timedelta(minutes=15),
    ) -> None:
        if not timedelta(0) < panic_window <= stable_window <= retention:
            raise ValueError(
                f"panic_window {panic_window}, stable_window {stable_window}, retention {retention}: "
                "each must be positive and at most the next"
            )
        self._default_windows, self._retention = (stable_window, panic_window), retention
        self.windows: dict[str, tuple[timedelta, timedelta]] = {}
        self._workloads: dict[str, _Workload] = {}
        self.reset_count = 0
        self.late_count = 0
        self.forgotten_count = 0.0

    def record(
        self,
        workload: str,
        now: datetime,
        readings: Mapping[str, ReplicaMetrics | None],
        baselines: Mapping[str, ReplicaMetrics] | None = None,
    ) -> DemandObservation | None:
        """Take one cycle of readings and return live demand; None where nothing can be said.

        `readings` has every replica that should have answered; None stands for one that did not.
        `baselines` are readings from before a replica's first request: without one, what it did
        before its first reading is not counted, because its own warm-up would be.
        """
        known = self._workloads.setdefault(workload, _Workload())
        since: datetime | None = None
        for replica, reading in readings.items():
            track = known.track(replica, (baselines or {}).get(replica) or reading, now)
            since = track.expected_until if since is None else min(since, track.expected_until)
            self._expect(known, track, now)
            if reading is not None:
                self._read(known, track, reading)
        if since is not None:
            self._watch(known, since, now)
        stable, panic = self.windows.get(workload, self._default_windows)
        self._forget(known, now, stable)
        return self._live(known, readings, stable, panic)

    def depart(self, departure: Departure) -> None:
        """Count what a replica got between its last reading by the caller and its end."""
        known = self._workloads.setdefault(departure.workload, _Workload())
        last = departure.last
        track = known.track(departure.replica, departure.baseline or last, last.at)
        since = track.expected_until
        self._expect(known, track, last.at)
        self._read(known, track, last)
        self._watch(known, since, last.at)

    def drain(self, now: datetime) -> list[TrafficSample]:
        """Minutes that have ended and have changed since the last drain, oldest first.

        A minute comes again when a silent replica's counters catch up: the newest is the right one.
        """
        samples: list[TrafficSample] = []
        for name, known in self._workloads.items():
            ended = sorted(at for at in known.changed if at + _MINUTE <= now)
            known.changed.difference_update(ended)
            for at in ended:
                minute = known.minutes[at]
                if minute.coverage > 0:
                    samples.append(
                        TrafficSample(
                            workload=name,
                            minute_at=at,
                            demand_count=minute.demand,
                            served_count=minute.served,
                            rejected_count=minute.rejected,
                            coverage=minute.coverage,
                        )
                    )
        return samples

    def _read(self, known: _Workload, track: _Track, reading: ReplicaMetrics) -> None:
        last = track.last
        if last is None:
            track.last, track.arrived_mark = reading, reading.arrived_count
            return
        if reading.at <= last.at:
            # The newer reading already holds all that this one could tell.
            self.late_count += reading.at < last.at
            return
        if last.series - reading.series:
            # The sums fell by what is not shown any more, which is no restart: nothing of the rest is new.
            track.last, track.arrived_mark = reading, reading.arrived_count
            return
        served, rejected = last.success_count, last.failure_count
        if reading.restarted_since(last):
            self.reset_count += 1
            served = rejected = track.arrived_mark = 0.0
        demand = max(0.0, reading.arrived_count - track.arrived_mark)
        track.arrived_mark += demand
        self._spread(known, last.at, reading, demand, (served, rejected))
        track.last = reading

    def _spread(
        self,
        known: _Workload,
        start: datetime,
        reading: ReplicaMetrics,
        demand: float,
        answered_before: tuple[float, float],
    ) -> None:
        """Spread one replica's growth since `start` over the minutes up to its reading."""
        end, (served_before, rejected_before) = reading.at, answered_before
        total_s = (end - start).total_seconds()
        oldest = end - self._retention
        if start < oldest:
            self.forgotten_count += demand * ((oldest - start) / (end - start))
        for at, seconds in _minutes_between(max(start, oldest), end):
            share = seconds / total_s
            minute = known.minute(at)
            minute.demand += demand * share
            minute.served += (reading.success_count - served_before) * share
            minute.rejected += (reading.failure_count - rejected_before) * share
            minute.covered_s += seconds
        known.demand.append(_Span(start, end, demand))

    def _expect(self, known: _Workload, track: _Track, now: datetime) -> None:
        start = max(track.expected_until, now - self._retention)
        for at, seconds in _minutes_between(start, now):
            minute = known.minute(at)
            minute.expected_s += seconds
        track.expected_until = max(track.expected_until, now)

    def _watch(self, known: _Workload, since: datetime, now: datetime) -> None:
        start = max(since, known.watched_until or since, now - self._retention)
        if start >= now:
            return
        for at, seconds in _minutes_between(start, now):
            minute = known.minute(at)
            minute.watched_s += seconds
        if known.watched and known.watched[-1].end == start:
            start = known.watched.pop().start
        known.watched.append(_Span(start, now, (now - start).total_seconds()))
        known.watched_until = now

    def _forget(self, known: _Workload, now: datetime, stable: timedelta) -> None:
        oldest = now - self._retention
        for replica in [r for r, track in known.replicas.items() if track.expected_until < oldest]:
            del known.replicas[replica]
        for at in [at for at in known.minutes if at + _MINUTE < oldest]:
            del known.minutes[at]
            known.changed.discard(at)
        # Twice the window: a window ends where the slowest answer does, not now.
        for spans, kept in ((known.demand, 2 * stable), (known.watched, self._retention)):
            while spans and spans[0].end < now - kept:
                spans.popleft()

    def _live(
        self,
        known: _Workload,
        readings: Mapping[str, ReplicaMetrics | None],
        stable: timedelta,
        panic: timedelta,
    ) -> DemandObservation | None:
        answered = [reading for reading in readings.values() if reading is not None]
        if not answered:
            return None
        # All that answered are known up to here; beyond it, some would count as silent.
        end = min(reading.at for reading in answered)
        stable_qps, panic_qps = _rate(known, end - stable, end), _rate(known, end - panic, end)
        if stable_qps is None:
            return None
        watched_s = sum(span.share_in(end - self._retention, end) for span in known.watched)
        return DemandObservation(
            at=end,
            stable_qps=stable_qps,
            panic_qps=panic_qps,
            backlog_count=sum(reading.pending_count for reading in answered),
            reporting_count=len(answered),
            expected_count=len(readings),
            # All that was watched, not only the window: whoever has a longer one can tell.
            window=timedelta(seconds=watched_s),
        )


def _rate(known: _Workload, start: datetime, end: datetime) -> float | None:
    """Demand per second over the watched part of a window; None if nothing of it is known."""
    watched_s = sum(span.share_in(start, end) for span in known.watched)
    if watched_s <= 0 or not any(span.end > start and span.start < end for span in known.demand):
        return None
    return sum(span.share_in(start, end) for span in known.demand) / watched_s


def _minutes_between(start: datetime, end: datetime) -> list[tuple[datetime, float]]:
    """The minutes that `[start, end)` touches, with the seconds of it in each."""
    parts: list[tuple[datetime, float]] = []
    at = start.astimezone(UTC).replace(second=0, microsecond=0)
    while at < end:
        seconds = (min(end, at + _MINUTE) - max(start, at)).total_seconds()
        if seconds > 0:
            parts.append((at, seconds))
        at += _MINUTE
    return parts
