"""Peer policies, each faithful to its public algorithm and small enough to check against it.

All of them see the *offered* demand: real ones often see only what a saturated pool served, so this
favours them. ``target`` is each one's safety knob: the share of a replica's capacity it plans to use.

Promises: deterministic. Called by the harness through ``registry``.
"""

from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from math import ceil

import numpy as np

from controller.simulation.cluster import ClusterModel
from controller.simulation.harness import Observation, substep_s
from controller.simulation.queueing import Ints, replicas_for
from controller.simulation.trace import Floats, Trace, TraceEvent


class _Peer:
    """What most peers share: a target and the capacity of one replica."""

    name = "peer"
    period_s = 15

    def __init__(self, target: float = 0.7) -> None:
        if not 0 < target <= 2:
            raise ValueError(f"target: {target} is not a share of capacity in (0, 2].")
        self.target = target
        self._qps = 1.0

    def prepare(self, trace: Trace, events: Sequence[TraceEvent], model: ClusterModel) -> None:
        """Begin a run."""
        del trace, events
        self._qps = self.target * model.queue.capacity_qps

    def _need(self, qps: float) -> int:
        return ceil(qps / self._qps - 1e-9)


class LastValue(_Peer):
    """What the last minute needed, at once and in both directions."""

    name = "last-value"

    def desired(self, now_s: float, observation: Observation) -> int:
        """Return the need of the last minute; unknown keeps the count."""
        del now_s
        return observation.desired if observation.stable_qps is None else self._need(observation.stable_qps)


class StaticPeak(_Peer):
    """One count for ever: what the trace's peak needs at the target."""

    name = "static-peak"

    def __init__(self, target: float = 1.0) -> None:
        super().__init__(target)
        self._count = 1

    def prepare(self, trace: Trace, events: Sequence[TraceEvent], model: ClusterModel) -> None:
        """Look at the peak, as whoever sized the pool by hand did."""
        super().prepare(trace, events, model)
        self._count = int(replicas_for(model.queue, np.asarray([trace.peak_qps / self.target]))[0])

    def desired(self, now_s: float, observation: Observation) -> int:
        """Return the same count always."""
        del now_s, observation
        return self._count


class Hpa(_Peer):
    """HPA v2 on an average-value metric: tolerance, default scale-up policies, 300 s down-stabilization."""

    name = "hpa"
    tolerance = 0.1
    down_window_s = 300.0

    def __init__(self, target: float = 0.7) -> None:
        super().__init__(target)
        self._highest: deque[tuple[float, int]] = deque()

    def prepare(self, trace: Trace, events: Sequence[TraceEvent], model: ClusterModel) -> None:
        """Begin a run."""
        super().prepare(trace, events, model)
        self._highest = deque()

    def desired(self, now_s: float, observation: Observation) -> int:
        """Return the stabilized recommendation."""
        return self._stabilized(now_s, observation.desired, self._proposal(observation))

    def _proposal(self, observation: Observation) -> int:
        current = observation.desired
        if observation.stable_qps is None:
            return current
        ratio = observation.stable_qps / (self._qps * max(current, 1))
        if abs(ratio - 1.0) <= self.tolerance:
            return current
        # Default scale-up policies: the larger of 4 pods and 100 % per 15 s.
        return min(self._need(observation.stable_qps), max(current + 4, 2 * current))

    def _stabilized(self, now_s: float, current: int, proposal: int) -> int:
        highest = self._highest
        while highest and highest[-1][1] <= proposal:
            highest.pop()
        highest.append((now_s, proposal))
        while highest[0][0] <= now_s - self.down_window_s:
            highest.popleft()
        return max(proposal, min(highest[0][1], current)) if proposal < current else proposal


class Kpa(_Peer):
    """Knative's pod autoscaler: 60 s and 6 s windows, panic at 200 % of what is ready."""

    name = "kpa"
    panic_threshold = 2.0
    scale_up_rate = 1000.0
    scale_down_rate = 2.0

    def __init__(self, target: float = 0.7) -> None:
        super().__init__(target)
        self._panic_s: float | None = None
        self._panic_max = 0

    def prepare(self, trace: Trace, events: Sequence[TraceEvent], model: ClusterModel) -> None:
        """Begin a run out of panic."""
        super().prepare(trace, events, model)
        self._panic_s, self._panic_max = None, 0

    def desired(self, now_s: float, observation: Observation) -> int:
        """Return the stable count, or the highest panic count while in panic."""
        if observation.stable_qps is None:
            return observation.desired
        ready = max(len(observation.warm), 1)
        recent = observation.stable_qps if observation.recent_qps is None else observation.recent_qps
        most, least = ceil(self.scale_up_rate * ready), int(ready / self.scale_down_rate)
        stable = min(max(self._need(observation.stable_qps), least), most)
        panic = min(max(self._need(recent), least), most)
        if self._need(recent) / ready >= self.panic_threshold:
            self._panic_s = now_s
        elif self._panic_s is not None and now_s - self._panic_s > 60:
            self._panic_s, self._panic_max = None, 0
        if self._panic_s is None:
            return stable
        self._panic_max = max(self._panic_max, stable, panic)
        return self._panic_max


class KedaCronHpa(Hpa):
    """HPA beside cron floors that somebody wrote who knows the trace's usual days and its events.

    Per hour, working day or weekend, the floor is the ``typical`` quantile of that hour's highest need, over
    the first ``known_days``; over the *whole* trace when None, which is more than an author can know.
    """

    name = "keda-cron+hpa"

    def __init__(self, target: float = 0.7, typical: float = 0.5, known_days: float | None = None) -> None:
        super().__init__(target)
        self.typical, self.known_days = typical, known_days
        self._floors: list[int] = []
        self._step_s = 1

    def prepare(self, trace: Trace, events: Sequence[TraceEvent], model: ClusterModel) -> None:
        """Write the cron rules."""
        super().prepare(trace, events, model)
        self._step_s = substep_s(trace)
        repeat = trace.step_s // self._step_s
        need = np.ceil(np.nan_to_num(trace.qps) / self._qps)
        start = trace.start_at.timestamp()
        times = int(start) + np.arange(len(trace.qps), dtype=np.int64) * trace.step_s
        weekend_at = ((times // 86_400 + 3) % 7 >= 5).astype(np.int64)  # day 0 of the epoch was a Thursday
        hours = np.asarray(times % 86_400 // 3600)
        known = times - times[0] < (np.inf if self.known_days is None else self.known_days * 86_400)
        floors = np.zeros(len(need), dtype=np.int64)
        for weekend in (0, 1):
            for hour in range(24):
                here = (weekend_at == weekend) & (hours == hour)
                seen = here & known
                if seen.any():
                    floors[here] = _typical(need[seen], np.asarray(times[seen] // 86_400), self.typical)
        for category in {event.category for event in events}:
            spans = [_span(event, trace) for event in events if event.category == category]
            peaks = [need[low:high].max() for low, high in spans if high > low and known[high - 1]]
            for low, high in spans:
                if peaks:
                    floors[low:high] = np.maximum(floors[low:high], int(np.quantile(peaks, self.typical)))
        # A window is opened a cold start and a minute early, as whoever writes it would.
        lead = ceil((model.cold_start_s + 60) / self._step_s)
        self._floors = ahead_max(np.repeat(floors, repeat), lead).tolist()

    def desired(self, now_s: float, observation: Observation) -> int:
        """Return the larger of both triggers, then HPA's stabilization."""
        floor = self._floors[int(now_s / self._step_s)]
        return self._stabilized(now_s, observation.desired, max(self._proposal(observation), floor))


class Phpa(Hpa):
    """Predictive HPA: additive Holt-Winters with a daily season on HPA's own counts; the maximum decides.

    Buckets of five minutes (the trace's step when coarser); looks ahead by one cold start.
    """

    name = "phpa"
    alpha, beta, gamma = 0.5, 0.01, 0.3

    def __init__(self, target: float = 0.7) -> None:
        super().__init__(target)
        self._bucket_s, self._season, self._ahead = 300, 288, 2
        self._sum, self._count, self._bucket = 0.0, 0, 0
        self._history: list[float] = []
        self._level, self._trend = 0.0, 0.0
        self._seasonal: list[float] = []

    def prepare(self, trace: Trace, events: Sequence[TraceEvent], model: ClusterModel) -> None:
        """Begin a run without history."""
        super().prepare(trace, events, model)
        self._bucket_s = max(300, trace.step_s)
        self._season = 86_400 // self._bucket_s
        self._ahead = ceil(model.cold_start_s / self._bucket_s) + 1
        self._sum, self._count, self._bucket = 0.0, 0, 0
        self._history, self._seasonal = [], []

    def desired(self, now_s: float, observation: Observation) -> int:
        """Return the larger of HPA's count and the prediction."""
        proposal = self._proposal(observation)
        bucket = int(now_s // self._bucket_s)
        if bucket != self._bucket:
            if self._count:
                self._learn(self._sum / self._count)
            self._sum, self._count, self._bucket = 0.0, 0, bucket
        if observation.stable_qps is not None:
            self._sum += self._need(observation.stable_qps)
            self._count += 1
        return self._stabilized(now_s, observation.desired, max(proposal, self._predicted()))

    def _learn(self, value: float) -> None:
        season = self._season
        if not self._seasonal:
            self._history.append(value)
            if len(self._history) < 2 * season:
                return
            first, second = (np.asarray(self._history[k * season : (k + 1) * season]) for k in (0, 1))
            self._level, self._trend = float(second.mean()), float(second.mean() - first.mean()) / season
            both = (first - first.mean() + second - second.mean()) / 2
            self._seasonal = both.tolist()
            return
        place = len(self._history) % season
        self._history.append(value)
        before, shape = self._level, self._seasonal[place]
        self._level = self.alpha * (value - shape) + (1 - self.alpha) * (before + self._trend)
        self._trend = self.beta * (self._level - before) + (1 - self.beta) * self._trend
        self._seasonal[place] = self.gamma * (value - self._level) + (1 - self.gamma) * shape

    def _predicted(self) -> int:
        if not self._seasonal:
            return 0
        place = (len(self._history) + self._ahead - 1) % self._season
        return ceil(max(0.0, self._level + self._ahead * self._trend + self._seasonal[place]) - 1e-9)


class DynamoLike(_Peer):
    """Dynamo's planner in outline: every 180 s a one-step forecast of the interval's load decides.

    The forecast is an autoregression of ten lags on 180 s means, refitted hourly over two days; theirs is
    ARIMA or Prophet. Like theirs, it has no down-stabilization.
    """

    name = "dynamo-like"
    period_s = 180
    lags, window = 10, 960

    def __init__(self, target: float = 0.7) -> None:
        super().__init__(target)
        self._loads: list[float] = []
        self._sums: Floats = np.zeros(0)
        self._weights: Floats | None = None
        self._trace: Trace | None = None

    def prepare(self, trace: Trace, events: Sequence[TraceEvent], model: ClusterModel) -> None:
        """Begin a run without history."""
        super().prepare(trace, events, model)
        self._loads, self._weights, self._trace = [], None, trace

    def desired(self, now_s: float, observation: Observation) -> int:
        """Return what the forecast of the next interval needs."""
        load = self._interval_mean(now_s)
        if load is None:
            return observation.desired
        self._loads.append(load)
        if len(self._loads) % 20 == 0 and len(self._loads) >= 3 * self.lags:
            self._weights = self._fit(np.asarray(self._loads[-self.window :]))
        if self._weights is None:
            return self._need(load)
        recent = np.asarray(self._loads[-self.lags :])
        return self._need(max(0.0, float(self._weights[0] + self._weights[1:] @ recent)))

    def _interval_mean(self, now_s: float) -> float | None:
        trace = self._trace
        if trace is None:
            raise RuntimeError("prepare() comes before desired().")
        low, high = int(max(0.0, now_s - self.period_s) // trace.step_s), ceil(now_s / trace.step_s)
        part = trace.qps[low:high]
        known = part[np.isfinite(part)]
        return float(known.mean()) if len(known) else None

    def _fit(self, loads: Floats) -> Floats:
        rows = np.lib.stride_tricks.sliding_window_view(loads, self.lags + 1)
        design = np.column_stack((np.ones(len(rows)), rows[:, :-1]))
        ridge = 1e-3 * max(float(loads.var()), 1e-12) * len(rows) * np.eye(self.lags + 1)
        ridge[0, 0] = 0.0
        solved = np.linalg.lstsq(design.T @ design + ridge, design.T @ rows[:, -1], rcond=None)[0]
        return np.asarray(solved, dtype=np.float64)


class Oracle(_Peer):
    """Clairvoyant minimum of replica-hours without violations, under the same cold start.

    Exact for a constant cold start L: every replica needed at s must be paid over all of [s - L, s], so
    the paid count at t is at least the highest need in [t, t + L]; that much also suffices. Gaps no
    longer than L are kept through by it, longer ones dropped, which is the break-even between both.
    """

    name = "oracle"

    def __init__(self, exceed_share: float = 1e-4) -> None:
        super().__init__(1.0)
        self.exceed_share = exceed_share
        self._counts: list[int] = []
        self._step_s = 1

    def prepare(self, trace: Trace, events: Sequence[TraceEvent], model: ClusterModel) -> None:
        """Look at everything."""
        super().prepare(trace, events, model)
        self._step_s = substep_s(trace)
        # Between two ticks it would be late: on steps of a second it decides every second.
        self.period_s = min(Oracle.period_s, self._step_s)
        need = replicas_for(model.queue, trace.qps, self.exceed_share)
        ahead = ceil(model.cold_start_s / self._step_s)
        self._counts = ahead_max(np.repeat(need, trace.step_s // self._step_s), ahead).tolist()

    def desired(self, now_s: float, observation: Observation) -> int:
        """Return the highest need within one cold start."""
        del observation
        return self._counts[int(now_s / self._step_s)]


def ahead_max(values: Ints, ahead: int) -> Ints:
    """Return at each place the maximum over the next ``ahead`` places and itself.

    >>> ahead_max(np.asarray([1, 3, 2, 0, 5]), 1).tolist()
    [3, 3, 2, 5, 5]
    """
    padded = np.concatenate((values, np.full(ahead, values[-1] if len(values) else 0)))
    # Doubling: after k rounds each place holds the maximum of the next 2^k values.
    width = 1
    while 2 * width <= ahead + 1:
        padded = np.maximum(padded, np.concatenate((padded[width:], np.full(width, padded[-1]))))
        width *= 2
    rest = ahead + 1 - width
    return np.asarray(np.maximum(padded[: len(values)], padded[rest : rest + len(values)]))


def _typical(need: Floats, days: Ints, quantile: float) -> int:
    highest = [need[days == day].max() for day in np.unique(days)]
    return ceil(float(np.quantile(highest, quantile)))


def _span(event: TraceEvent, trace: Trace) -> tuple[int, int]:
    step = timedelta(seconds=trace.step_s)
    low, high = (event.start_at - trace.start_at) // step, -((trace.start_at - event.end_at) // step)
    return max(0, low), max(0, min(high, len(trace.qps)))
