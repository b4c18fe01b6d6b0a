"""Replay a trace through policies over the cluster model, on a virtual clock.

Promises: every policy meets the same demand, cold start, queue and measurements; a policy sees only
what ended before its tick; unknown buckets are unknown to it and are scored neither as cost nor as
violation. Refuses settings that mean nothing. Called by the CLI, ``Simulate``, previews and benchmarks.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil, isnan
from pathlib import Path
from typing import Protocol

import numpy as np

from controller.simulation.cluster import Cluster, ClusterModel, SimReplica
from controller.simulation.queueing import Ints, replicas_for, score_waits
from controller.simulation.trace import Floats, Trace, TraceEvent

STABLE_WINDOW_S = 60
FLAP_WINDOW_S = 900.0
SUBSTEP_COUNT_MAX = 20_000_000


@dataclass(slots=True)
class Observation:
    """What a policy may know at a tick. ``None`` is unknown, never 0.

    Attributes:
        stable_qps: Demand over the last minute.
        recent_qps: Demand over the last sub-step (15 s on fine traces).
        backlog: Requests waiting now.
        warm: Replicas that are capacity now, oldest first.
        starting: Replicas ordered and not warm yet.
        desired: What the policy asked for last, within the cluster's bounds.
        first_unknown_step: Buckets of the trace before this index have ended and may be read.
    """

    stable_qps: float | None
    recent_qps: float | None
    backlog: float
    warm: Sequence[SimReplica]
    starting: Sequence[SimReplica]
    desired: int
    first_unknown_step: int


class Policy(Protocol):
    """One way of choosing replicas. ``prepare`` may keep only what a user could know beforehand."""

    name: str
    period_s: int

    def prepare(self, trace: Trace, events: Sequence[TraceEvent], model: ClusterModel) -> None:
        """Begin a run; called once, before the first tick."""
        ...

    def desired(self, now_s: float, observation: Observation) -> int:
        """Return how many replicas to have, warm and starting together."""
        ...


@dataclass(frozen=True, slots=True)
class Timeline:
    """One run, per sub-step of ``step_s`` seconds. Unknown demand is NaN."""

    step_s: int
    demand_qps: Floats
    ready: Ints
    paid: Ints
    violations: Floats


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """What one policy cost and what users met. ``knob`` is the safety setting it ran with."""

    policy: str
    violation_share: float
    wait_ms_p99: float
    replica_hours: float
    scale_changes: int
    flaps: int
    rejected_share: float
    peak_replicas: int
    event_violation_share: float | None
    timeline: Timeline = field(repr=False)

    def to_json(self) -> dict[str, object]:
        """Return the public keys, rounded to what the model can support."""
        return {
            "policy": self.policy,
            "violation_share": round(self.violation_share, 8),
            "wait_ms_p99": round(self.wait_ms_p99, 3),
            "replica_hours": round(self.replica_hours, 4),
            "scale_changes": self.scale_changes,
            "flaps": self.flaps,
            "rejected_share": round(self.rejected_share, 8),
            "peak_replicas": self.peak_replicas,
            "event_violation_share": self.event_violation_share,
        }


Progress = Callable[[str, float], None]


def simulate(
    trace: Trace,
    events: Sequence[TraceEvent],
    policies: Iterable[Policy],
    model: ClusterModel,
    *,
    score_from_s: float = 0.0,
    progress: Progress | None = None,
) -> list[PolicyResult]:
    """Run each policy over the whole trace and score it from ``score_from_s`` on.

    Args:
        trace: Demand in QPS.
        events: Windows known in advance.
        policies: What to compare; each is prepared afresh.
        model: The cluster.
        score_from_s: Seconds at the start that only teach (history of a forecaster).
        progress: Called with the policy's name and the share of its run that is done.

    Raises:
        ValueError: A run too long to hold, or nothing left to score.
    """
    if score_from_s >= trace.step_s * len(trace.qps):
        raise ValueError("score_from_s: nothing of the trace is left to score; use a smaller value.")
    results: list[PolicyResult] = []
    for policy in policies:
        policy.prepare(trace, events, model)
        run = _run(trace, policy, model, progress)
        results.append(_score(trace, events, policy.name, model, run, score_from_s))
    return results


def substep_s(trace: Trace) -> int:
    """Return the simulation's step: 15 s, a minute on coarse traces, a divisor of the trace's step."""
    wanted = 15 if trace.step_s <= 300 else 60
    return next(step for step in range(min(wanted, trace.step_s), 0, -1) if trace.step_s % step == 0)


def _run(trace: Trace, policy: Policy, model: ClusterModel, progress: Progress | None) -> "_Run":
    step = substep_s(trace)
    repeat = trace.step_s // step
    demand = np.repeat(trace.qps, repeat)
    count = len(demand)
    if count > SUBSTEP_COUNT_MAX:
        raise ValueError(f"{trace.name}: {count} sub-steps exceed {SUBSTEP_COUNT_MAX}; cut the trace.")
    stable = _window_mean(demand, max(1, STABLE_WINDOW_S // step)).tolist()
    rates: list[float] = demand.tolist()
    # Every policy starts with what the first cold start needs: how a run begins is not what is compared.
    first = replicas_for(model.queue, demand[: ceil(model.cold_start_s / step) + 1])
    cluster = Cluster(model, min(max(int(first.max()), model.min_replicas), model.max_replicas))
    seen = Observation(None, None, 0.0, cluster.warm, cluster.starting, cluster.paid_count, 0)
    ready, paid = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    backlog, rejected = np.zeros(count), np.zeros(count)
    changes: list[tuple[float, int]] = []
    capacity_qps, queue_max_s = model.queue.capacity_qps, model.queue.queue_max_s
    every = max(1, policy.period_s // step)
    report_every = max(1, count // 50)
    waiting = 0.0
    for index in range(count):
        now_s = float(index * step)
        cluster.advance(now_s)
        if index and index % every == 0:
            average, last = stable[index - 1], rates[index - 1]
            seen.stable_qps = None if isnan(average) else average
            seen.recent_qps = None if isnan(last) else last
            seen.backlog = waiting
            seen.desired = cluster.paid_count
            seen.first_unknown_step = index // repeat
            change = cluster.scale_to(now_s, policy.desired(now_s, seen))
            if change:
                changes.append((now_s, change))
        warm = len(cluster.warm)
        ready[index], paid[index], backlog[index] = warm, cluster.paid_count, waiting
        rate = rates[index]
        if not isnan(rate):
            capacity = warm * capacity_qps
            if waiting or rate > capacity:
                waiting = max(0.0, waiting + (rate - capacity) * step)
                limit = queue_max_s * max(capacity, capacity_qps)
                if waiting > limit:
                    rejected[index], waiting = waiting - limit, limit
        else:
            waiting = 0.0
        if progress and index % report_every == 0:
            progress(policy.name, index / count)
    return _Run(step, demand, ready, paid, backlog, rejected, changes)


@dataclass(frozen=True, slots=True)
class _Run:
    """The raw course of one run, per sub-step of ``step`` seconds."""

    step: int
    demand: Floats
    ready: Ints
    paid: Ints
    backlog: Floats
    rejected: Floats
    changes: Sequence[tuple[float, int]]

    def since(self, second: float) -> "_Run":
        low = ceil(second / self.step)
        return _Run(
            self.step,
            self.demand[low:],
            self.ready[low:],
            self.paid[low:],
            self.backlog[low:],
            self.rejected[low:],
            [(at, change) for at, change in self.changes if at >= second],
        )


def _score(
    trace: Trace, events: Sequence[TraceEvent], name: str, model: ClusterModel, whole: _Run, from_s: float
) -> PolicyResult:
    run = whole.since(from_s)
    step = run.step
    waits = score_waits(model.queue, run.demand, run.ready, run.backlog, run.rejected, float(step))
    known = np.isfinite(run.demand)
    total = float(np.nansum(run.demand)) * step
    offset_s = ceil(from_s / step) * step
    return PolicyResult(
        policy=name,
        violation_share=waits.violation_share,
        wait_ms_p99=waits.wait_s_p99 * 1000,
        replica_hours=float(run.paid[known].sum()) * step / 3600,
        scale_changes=len(run.changes),
        flaps=_flaps(run.changes),
        rejected_share=float(run.rejected.sum()) / total if total > 0 else 0.0,
        peak_replicas=int(run.paid.max()),
        event_violation_share=_share_in_events(trace, events, run.demand, waits.violations, offset_s, step),
        timeline=Timeline(step, run.demand, run.ready, run.paid, waits.violations),
    )


def _window_mean(values: Floats, width: int) -> Floats:
    """Return the mean of the known among the last ``width`` values; NaN where none is known."""
    known = np.isfinite(values)
    sums = np.concatenate(([0.0], np.cumsum(np.where(known, values, 0.0))))
    counts = np.concatenate(([0], np.cumsum(known)))
    low = np.maximum(np.arange(1, len(values) + 1) - width, 0)
    high = np.arange(1, len(values) + 1)
    number = counts[high] - counts[low]
    mean = np.divide(sums[high] - sums[low], number, out=np.full(len(values), np.nan), where=number > 0)
    return np.asarray(np.maximum(mean, 0.0))


def _flaps(changes: Sequence[tuple[float, int]]) -> int:
    """Count removals that an order follows within a quarter of an hour: capacity thrown away and bought again."""
    return sum(
        before[1] < 0 < after[1] and after[0] - before[0] <= FLAP_WINDOW_S
        for before, after in pairwise(changes)
    )


def _share_in_events(
    trace: Trace, events: Sequence[TraceEvent], demand: Floats, violations: Floats, offset_s: float, step: int
) -> float | None:
    """Return the violation share of requests inside event windows, None where there are none."""
    inside = np.zeros(len(demand), dtype=bool)
    for event in events:
        low = ((event.start_at - trace.start_at).total_seconds() - offset_s) / step
        high = ((event.end_at - trace.start_at).total_seconds() - offset_s) / step
        inside[max(0, ceil(low)) : max(0, ceil(high))] = True
    inside &= np.isfinite(demand)
    total = float(demand[inside].sum())
    return float((violations[inside] * demand[inside]).sum()) / total if total > 0 else None


def write_timeline(path: Path, timeline: Timeline) -> None:
    """Write ``at_s,demand_qps,ready_replicas,paid_replicas``; unknown demand is an empty field."""
    with path.open("w", encoding="utf-8") as file:
        file.write("at_s,demand_qps,ready_replicas,paid_replicas\n")
        for index, rate in enumerate(timeline.demand_qps.tolist()):
            known = "" if isnan(rate) else f"{rate:.6g}"
            file.write(f"{index * timeline.step_s},{known},{timeline.ready[index]},{timeline.paid[index]}\n")


def with_limits(model: ClusterModel, trace: Trace) -> ClusterModel:
    """Return the model with room for twice the trace's peak, so that the bound never decides a comparison."""
    most = int(replicas_for(model.queue, np.asarray([trace.peak_qps]))[0])
    return replace(model, max_replicas=max(2 * most, most + 4))
