"""Queueing of the simulated cluster: what requests wait, given demand and warm replicas.

Two regimes per sub-step. Demand above capacity, or a backlog left over: a fluid queue, whose waits are
exact for a constant rate. Otherwise: the Erlang-C tail with the Allen-Cunneen factor, which covers
arrivals that are bursty below the step of the trace. Independent of ``controller.core.capacity`` on
purpose: the judge does not share a formula with the judged.

Promises: pure, vectorised. Called by the harness and the oracle.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, pdtr, xlogy

from controller.simulation.trace import Floats

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

SERVERS_MAX = 100_000  # more than any pool is allowed


@dataclass(frozen=True, slots=True)
class Queue:
    """Service of one replica and the promise made to users.

    Attributes:
        capacity_qps: Requests per second of one warm replica.
        slo_wait_s: A request that waits longer is a violation.
        variability: ``(ca2 + cs2) / 2``, the Allen-Cunneen factor; 1 is M/M/n.
        queue_max_s: Seconds of work that may wait; requests beyond are rejected, and violate.
    """

    capacity_qps: float = 100.0
    slo_wait_s: float = 0.5
    variability: float = 1.0
    queue_max_s: float = 10.0


def erlang_c(servers: Ints | int, offered: Floats) -> Floats:
    """Return the share of arrivals that wait, for each ``offered`` load (erlangs) below its ``servers``."""
    count = np.asarray(servers, dtype=np.float64)
    load = np.minimum(offered, count)
    # Erlang B is the Poisson probability of n arrivals, given no more than n.
    blocking = np.exp(xlogy(count, load) - load - gammaln(count + 1)) / pdtr(count, load)
    share = load / np.maximum(count, 1)
    waiting = blocking / np.maximum(1 - share * (1 - blocking), 1e-300)
    return np.asarray(np.where(share < 1, np.minimum(waiting, 1.0), 1.0))


def tail_share(queue: Queue, servers: Ints | int, demand: Floats, wait_s: float | Floats) -> Floats:
    """Return P(wait > ``wait_s``) in steady state; 1 where demand reaches capacity."""
    spare = servers * queue.capacity_qps - demand
    waits = erlang_c(servers, demand / queue.capacity_qps)
    tail = waits * np.exp(-np.maximum(spare, 0.0) * wait_s / queue.variability)
    return np.asarray(np.where(spare > 0, tail, np.where(demand > 0, 1.0, 0.0)))


@lru_cache(maxsize=64)
def demand_limits(queue: Queue, servers_max: int, exceed_share: float) -> tuple[float, ...]:
    """Return the highest demand each count 0..``servers_max`` carries with P(wait > SLO) <= the share."""
    servers = np.arange(servers_max + 1, dtype=np.int64)
    low, high = np.zeros(len(servers)), servers * queue.capacity_qps
    for _ in range(40):
        middle = (low + high) / 2
        fine = tail_share(queue, servers, middle, queue.slo_wait_s) <= exceed_share
        low, high = np.where(fine, middle, low), np.where(fine, high, middle)
    return tuple(low.tolist())


def replicas_for(queue: Queue, demand: Floats, exceed_share: float = 1e-4) -> Ints:
    """Return the fewest replicas that carry each demand; NaN (unknown) needs 0, and none needs more than the most."""
    known = np.nan_to_num(demand)
    most = int(min(np.ceil(known.max(initial=0.0) / queue.capacity_qps * 1.2) + 8, SERVERS_MAX))
    limits = np.asarray(demand_limits(queue, most, exceed_share))
    counts = np.minimum(np.searchsorted(limits, known, side="left"), most)
    return np.where(known > 0, counts, 0).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Waits:
    """What users met, request-weighted over the scored steps."""

    violation_share: float
    wait_s_p99: float
    violations: Floats  # share per sub-step, NaN where unscored


def score_waits(
    queue: Queue, demand: Floats, ready: Ints, backlog: Floats, rejected: Floats, step_s: float
) -> Waits:
    """Score sub-steps of ``step_s`` seconds.

    Args:
        queue: The service.
        demand: ``[N]`` QPS; NaN is unknown and not scored.
        ready: ``[N]`` warm replicas.
        backlog: ``[N]`` requests waiting at the start of each sub-step.
        rejected: ``[N]`` requests turned away within each.
        step_s: Width of a sub-step.
    """
    rate = np.nan_to_num(demand)
    capacity = np.asarray(ready * queue.capacity_qps, dtype=np.float64)
    fluid = (backlog > 0) | (rate > capacity)
    first, last = _fluid_waits(rate, capacity, backlog, step_s)
    share = np.zeros_like(rate)
    share[fluid] = _share_above(first[fluid], last[fluid], queue.slo_wait_s)
    share[~fluid] = tail_share(queue, ready[~fluid], rate[~fluid], queue.slo_wait_s)
    turned = np.divide(rejected, rate * step_s, out=np.zeros_like(rate), where=rate > 0)
    share = np.maximum(share, np.minimum(turned, 1.0))
    total = float(rate.sum())
    if total <= 0:
        return Waits(0.0, 0.0, np.where(np.isnan(demand), np.nan, 0.0))
    return Waits(
        violation_share=float((share * rate).sum() / total),
        wait_s_p99=_wait_p99(queue, rate, ready, fluid, first, last),
        violations=np.where(np.isnan(demand), np.nan, share),
    )


def _fluid_waits(rate: Floats, capacity: Floats, backlog: Floats, step_s: float) -> tuple[Floats, Floats]:
    """Return the wait of the first and of the last request of each sub-step, as an unbounded ramp.

    A ramp that drains below zero, or climbs past the queue's bound, keeps its slope: what counts is how
    much of it lies above a limit within the bound.
    """
    served = np.maximum(capacity, 1e-9)
    return backlog / served, (backlog + (rate - capacity) * step_s) / served


def _share_above(first: Floats, last: Floats, limit: float) -> Floats:
    """Return the share of a linear ramp from ``first`` to ``last`` that lies above ``limit``."""
    high, low = np.maximum(first, last), np.minimum(first, last)
    flat = high - low < 1e-12
    ramp = np.clip((high - limit) / np.where(flat, 1.0, high - low), 0.0, 1.0)
    return np.where(flat, (high > limit).astype(np.float64), ramp)


def _wait_p99(queue: Queue, rate: Floats, ready: Ints, fluid: Bools, first: Floats, last: Floats) -> float:
    """Find the wait that 1 % of requests exceed, by bisection on the mixture of both regimes."""
    target = 0.01 * float(rate.sum())
    served = ~fluid & (ready > 0)

    def above(wait: float) -> float:
        ramps = _share_above(first[fluid], last[fluid], wait) * rate[fluid]
        tails = tail_share(queue, ready[served], rate[served], wait) * rate[served]
        return float(ramps.sum() + tails.sum())

    low, high = 0.0, queue.queue_max_s
    if above(low) <= target:
        return 0.0
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle) > target else (low, middle)
    return high
