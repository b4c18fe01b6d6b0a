"""Frontiers: violation share against replica-hours, each policy's safety knob swept.

Promises: shares between swept points are interpolated on the lower envelope, linearly in hours over the
logarithm of the share; beyond the swept points the answer is None, never an extrapolation. Where two neighbouring
settings lie far apart in hours, a sweep tries those between them: violations may fall from a tenth of all requests to
none between two targets, and a line across that would credit the policy with what none of its settings does.
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
# No frontier is read at a higher share.
MOST_SHARE = 1e-2
WORTH_SHARE = 0.05
# Neighbouring settings whose hours differ by more are halved, so many times at most.
APART_SHARE = 0.03
HALVINGS = 3


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

    Then halve what lies far apart on its first way. ``progress`` is told the share of the knob values named, as if
    every one of them were needed.
    """
    count = len(entry.sweep) + len(entry.also)

    def run(knob: float, number: int) -> Point:
        def told(name: str, share: float) -> None:
            if progress:
                progress(name, min(1.0, (number + share) / count))

        runs = simulate(trace, events, [entry.make(knob)], model, score_from_s=score_from_s, progress=told)
        return Point(knob, runs[0].violation_share, runs[0].replica_hours, runs[0])

    def between(cheap: Point, safe: Point, halvings: int) -> list[Point]:
        if not halvings or not _far_apart(cheap, safe):
            return []
        middle = run(entry.between(cheap.knob, safe.knob), count)
        return [*between(cheap, middle, halvings - 1), middle, *between(middle, safe, halvings - 1)]

    ways: list[list[Point]] = []
    for start, knobs in ((0, entry.sweep), (len(entry.sweep), entry.also)):
        way: list[Point] = []
        for number, knob in enumerate(knobs, start):
            way.append(run(knob, number))
            if way[-1].violation_share < ENOUGH_SHARE:
                break
        ways.append(way)
    points = [*ways[0], *ways[1]]
    for cheap, safe in pairwise(ways[0]):
        points += between(cheap, safe, HALVINGS)
    return points


def _far_apart(cheap: Point, safe: Point) -> bool:
    """Whether a setting between these two says more than a line does, at shares that are read."""
    read = cheap.violation_share > ENOUGH_SHARE and safe.violation_share < MOST_SHARE
    falls = safe.violation_share <= (1 - WORTH_SHARE) * cheap.violation_share
    return read and falls and safe.replica_hours > (1 + APART_SHARE) * cheap.replica_hours


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
