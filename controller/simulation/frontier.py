"""Frontiers: violation share against replica-hours, each policy's safety knob swept.

Promises: shares between swept points are interpolated on the lower envelope, linearly in hours over the
logarithm of the share; beyond the swept points the answer is None, never an extrapolation.
Called by benchmarks/frontier.py and the plots.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log

from controller.simulation.cluster import ClusterModel
from controller.simulation.harness import PolicyResult, Progress, simulate
from controller.simulation.registry import Entry
from controller.simulation.trace import Trace, TraceEvent

SHARE_MIN = 1e-6  # below it, shares are noise of the queueing model
# A sweep goes on towards more safety until a point lies below this share.
ENOUGH_SHARE = 1e-4
WORTH_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a sweep."""

    knob: float
    violation_share: float
    replica_hours: float
    result: PolicyResult


def sweep(
    entry: Entry,
    trace: Trace,
    events: Sequence[TraceEvent],
    model: ClusterModel,
    *,
    score_from_s: float = 0.0,
    progress: Progress | None = None,
) -> list[Point]:
    """Run one policy at each knob value of each of its ways, from cheap to safe, until it is safe enough.

    ``progress`` is told the share of the whole sweep, as if every knob value were needed.
    """
    points: list[Point] = []
    safe = False
    count = len(entry.sweep) + len(entry.also)
    for number, knob in enumerate((*entry.sweep, *entry.also)):
        if safe and number != len(entry.sweep):
            continue

        def told(name: str, share: float, number: int = number) -> None:
            if progress:
                progress(name, (number + share) / count)

        runs = simulate(trace, events, [entry.make(knob)], model, score_from_s=score_from_s, progress=told)
        points.append(Point(knob, runs[0].violation_share, runs[0].replica_hours, runs[0]))
        safe = runs[0].violation_share < ENOUGH_SHARE
    return points


def envelope(points: Sequence[Point]) -> list[tuple[float, float]]:
    """Return (share, hours) of the points that no other beats, by ascending share.

    A dearer point must violate less by ``WORTH_SHARE``: settings that all but agree on the share differ by one
    incident that none of them prevents, and a line through the dearest would charge every safer share for it.
    """
    best: list[tuple[float, float]] = []
    for hours, share in sorted((p.replica_hours, max(p.violation_share, SHARE_MIN)) for p in points):
        if not best or share <= (1 - WORTH_SHARE) * best[-1][0]:
            best.append((share, hours))
    return best[::-1]


def hours_at(points: Sequence[Point], share: float) -> float | None:
    """Return the replica-hours at which the policy's frontier meets ``share``; None when it never got there."""
    best = envelope(points)
    if not best or best[0][0] > share:
        return None
    for (low, dear), (high, cheap) in pairwise(best):
        if low <= share <= high:
            part = (log(share) - log(low)) / (log(high) - log(low))
            return dear + part * (cheap - dear)
    return best[-1][1]  # even its cheapest point violates less


def cheapest(hours: Mapping[str, float | None]) -> tuple[str, float] | None:
    """Return the name and hours of the cheapest policy that got there."""
    known = [(value, name) for name, value in hours.items() if value is not None]
    return (min(known)[1], min(known)[0]) if known else None
