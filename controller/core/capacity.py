"""How many replicas a demand needs under an SLO. Pure.

A replica has ``instance_count`` servers, each taking up to ``batch_size_max`` requests at once. The whole
pool is one queue (the balancer sends to the least loaded), so waiting follows Erlang-C over all servers,
corrected after Allen and Cunneen for arrivals burstier than Poisson and for service times more regular than
exponential. Batches shrink the variability of arrivals: a batch of *b* requests sums *b* gaps.

    P(W > t) = C(N, a) * exp(-2 (N mu - lambda_b) t / (ca2 / b + cs2)),   lambda_b = lambda / b

Required replicas is the smallest *n* whose tail at the SLO's wait is at most its share: never demand divided
by capacity, which would run every replica full and every queue long. More demand never means fewer replicas.

Sources: Erlang (1917); Allen, Probability, Statistics and Queueing Theory (1990), 5.3; Halfin and Whitt (1981).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import ceil, erf, exp, isfinite, log, pi, sqrt

from controller.core.types import CapacityProfile, Policy, Slo

# Above this many servers the exact recursion gives way to Halfin and Whitt's limit (under 1 % apart there).
EXACT_SERVERS_MAX = 200
# Counts up to this one are worked out and listed; beyond, which only an absurd demand or a tiny profile asks
# for, the line goes on straight: a pool this large runs within a fraction of a percent of full.
LISTED_REPLICAS_MAX = 256
# No pool is ever sized beyond this: an absurd demand asks for this many, and ceilings cut it.
REPLICAS_LIMIT = 100_000
_BISECTION_STEPS = 40


def erlang_c(servers: int, load: float) -> float:
    """Probability that an arrival waits in M/M/N; ``load`` in Erlangs. 1 when the load is at or over capacity."""
    if load <= 0:
        return 0.0
    if load >= servers:
        return 1.0
    if servers > EXACT_SERVERS_MAX:
        return _halfin_whitt(servers, load)
    # Erlang B by its stable recursion, then C from B: no factorials, no overflow.
    blocking = 1.0
    for n in range(1, servers + 1):
        blocking = load * blocking / (n + load * blocking)
    utilization = load / servers
    return blocking / (1.0 - utilization * (1.0 - blocking))


def _halfin_whitt(servers: int, load: float) -> float:
    beta = (1.0 - load / servers) * sqrt(servers)
    if beta > 30:  # the normal density underflows; nobody waits
        return 0.0
    cdf = 0.5 * (1.0 + erf(beta / sqrt(2.0)))
    density = exp(-beta * beta / 2.0) / sqrt(2.0 * pi)
    return 1.0 / (1.0 + beta * cdf / density)


Pool = tuple[tuple[CapacityProfile, int], ...]


def wait_exceed_probability(pool: Pool, demand_qps: float, wait_s: float, arrival_scv: float = 1.0) -> float:
    """P(a request waits longer than ``wait_s``) for ``demand_qps`` on replicas of ``pool``; 1 at or over capacity.

    Mixed pools count as one queue of average servers: throughput is exact, the spread is the fastest
    servers' gain given away, which errs to the safe side.
    """
    if demand_qps <= 0:
        return 0.0
    servers = sum(profile.instance_count * count for profile, count in pool)
    throughput = sum(profile.qps_max * count for profile, count in pool)
    if servers == 0 or demand_qps >= throughput:
        return 1.0
    batch = sum(p.batch_size_max * p.instance_count * n for p, n in pool) / servers
    delay = max((p.queue_delay_max_s for p, n in pool if n), default=0.0)
    service_scv = max((p.service_scv for p, n in pool if n), default=0.0)
    waits = erlang_c(servers, demand_qps / throughput * servers)
    spread = max(1e-9, (arrival_scv / batch + service_scv) / 2.0)
    # Batch formation is waiting too: what the queue may use is what the batcher leaves.
    left = max(0.0, wait_s - delay)
    return waits * exp(-((throughput - demand_qps) / batch) * left / spread)


def sustainable_qps(pool: Pool, slo: Slo, arrival_scv: float = 1.0) -> float:
    """Highest demand the pool serves within the SLO, QPS."""
    low, high = 0.0, sum(profile.qps_max * count for profile, count in pool)
    for _ in range(_BISECTION_STEPS):
        middle = (low + high) / 2.0
        if wait_exceed_probability(pool, middle, slo.wait_s, arrival_scv) <= slo.wait_exceed_share:
            low = middle
        else:
            high = middle
    return low


class CapacityCurve:
    """Sustainable QPS by replica count, grown as far as asked. Same arguments, same curve.

    The first replicas are those of ``have`` in its order, further ones are of ``profile``. Never falls as
    the count grows, so more demand never means fewer replicas.
    """

    def __init__(self, profile: CapacityProfile, slo: Slo, arrival_scv: float, have: Pool = ()) -> None:
        self._profile, self._slo, self._scv, self._have = profile, slo, arrival_scv, have
        self._qps: list[float] = [0.0]

    def _sustained(self, replicas: int) -> float:
        return sustainable_qps(_first(self._have, replicas, self._profile), self._slo, self._scv)

    def _grow(self, replicas: int) -> None:
        while len(self._qps) <= replicas:
            # The running maximum keeps the curve monotone across the seam between the two formulas.
            self._qps.append(max(self._qps[-1], self._sustained(len(self._qps))))

    def qps(self, replicas: int) -> float:
        """Sustainable QPS of ``replicas`` warm replicas."""
        listed = min(replicas, LISTED_REPLICAS_MAX)
        self._grow(listed)
        beyond = replicas - listed
        return self._qps[listed] + beyond * self._slope() if beyond else self._qps[listed]

    def _slope(self) -> float:
        """QPS of each replica beyond the list, at the utilization the whole list reaches: larger pools reach more."""
        self._grow(LISTED_REPLICAS_MAX)
        pool = _first(self._have, LISTED_REPLICAS_MAX, self._profile)
        return self._profile.qps_max * self._qps[-1] / sum(p.qps_max * count for p, count in pool)

    def required(self, demand_qps: float) -> int:
        """Smallest count that serves ``demand_qps`` within the SLO; never more than ``REPLICAS_LIMIT``.

        Raises:
            ValueError: ``demand_qps`` is negative or not finite.
        """
        if not isfinite(demand_qps) or demand_qps < 0:
            raise ValueError(f"demand_qps must be finite and >= 0, got {demand_qps}")
        while self._qps[-1] < demand_qps:
            if len(self._qps) > LISTED_REPLICAS_MAX:
                beyond = (demand_qps - self._qps[-1]) / self._slope()
                return LISTED_REPLICAS_MAX + ceil(min(beyond, REPLICAS_LIMIT - LISTED_REPLICAS_MAX))
            self._grow(len(self._qps))
        return bisect_left(self._qps, demand_qps)

    def in_mix(self, count: int) -> int:
        """Count that carries what ``count`` replicas of the growing profile alone would; never fewer than ``count``."""
        if not self._have:
            return count
        return max(count, self.required(curve(self._profile, self._slo, self._scv).qps(count)))


def _first(have: Pool, count: int, profile: CapacityProfile) -> Pool:
    pool: list[tuple[CapacityProfile, int]] = []
    for existing, number in have:
        pool.append((existing, min(number, count)))
        count -= pool[-1][1]
    return (*pool, (profile, count))


# As many as a fleet may have workloads with profiles of their own: a curve takes milliseconds to work out.
@lru_cache(maxsize=32_768)
def curve(profile: CapacityProfile, slo: Slo, arrival_scv: float = 1.0, have: Pool = ()) -> CapacityCurve:
    """The shared curve for these arguments."""
    return CapacityCurve(profile, slo, arrival_scv, have)


def mixed_curve(
    existing: Iterable[CapacityProfile], profile: CapacityProfile, slo: Slo, arrival_scv: float = 1.0
) -> CapacityCurve:
    """The curve of a pool that holds ``existing`` and grows by ``profile``.

    A workload that holds A10 and T4 replicas keeps the faster ones when it shrinks, so they count first.
    """
    counts = Counter(existing)
    if not counts or counts.keys() == {profile}:
        return curve(profile, slo, arrival_scv)
    best_first = sorted(counts.items(), key=lambda item: (-item[0].qps_max, item[0].engine, item[0].gpu_type))
    return curve(profile, slo, arrival_scv, tuple(best_first))


def required_replicas(demand_qps: float, profile: CapacityProfile, slo: Slo, arrival_scv: float = 1.0) -> int:
    """Smallest number of replicas that serves ``demand_qps`` within the SLO; 0 only for no demand at all.

    Raises:
        ValueError: ``demand_qps`` is negative or not finite.
    """
    return curve(profile, slo, arrival_scv).required(demand_qps)


def service_quantile(policy: Policy) -> float:
    """Demand quantile worth serving: cost of being short over the sum of both costs (newsvendor)."""
    return policy.cost_under_per_hour / (policy.cost_under_per_hour + policy.cost_over_per_hour)


def demand_at_quantile(levels: Sequence[float], values: Sequence[float], quantile: float) -> float:
    """Demand at ``quantile`` of a forecast step, QPS.

    Between levels: linear in the exponential tail's coordinate ``-log(1 - level)``, which bends with the
    upper tail where it matters. Beyond the outermost levels: the outermost value, never an extrapolation.
    """
    if quantile <= levels[0]:
        return values[0]
    if quantile >= levels[-1]:
        return values[-1]
    right, share = _between(tuple(levels), quantile)
    return values[right - 1] + share * (values[right] - values[right - 1])


# Every step of every forecast of a fleet asks the same.
@lru_cache(maxsize=1024)
def _between(levels: tuple[float, ...], quantile: float) -> tuple[int, float]:
    """The level above ``quantile``, and how far it lies from the one below towards it."""
    right = bisect_left(levels, quantile)
    low, high, x = (-log(1.0 - p) for p in (levels[right - 1], levels[right], quantile))
    return right, (x - low) / (high - low)
