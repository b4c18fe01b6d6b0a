"""Lead time: from order to verified warm, as a distribution made of measured stages. Pure.

Before anything was measured a prior speaks; each measured start moves the estimate towards the data with
weight ``n / (n + PRIOR_WEIGHT)``. Many starts at once take longer (image pulls, disks and schedulers are
shared): the model carries seconds per additional replica, fitted once starts of different batch sizes
were seen. Estimates lean to the late side: a replica early costs money, a replica late costs users.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from statistics import fmean

# Measured starts that weigh as much as the prior.
PRIOR_WEIGHT = 5.0
# Starts needed, of at least two batch sizes, before the cost of an additional replica is fitted.
SLOPE_SAMPLES_MIN = 8
STAGES: tuple[str, ...] = ("schedule", "node", "image", "load", "warmup")


@dataclass(frozen=True, slots=True)
class StagePrior:
    """Expected duration of one lead-time stage before anything was measured, seconds."""

    name: str
    p50_s: float
    p95_s: float


@dataclass(frozen=True, slots=True)
class LeadSample:
    """One measured start: its stages in seconds and how many started at once."""

    stage_s: Mapping[str, float]
    batch_count: int

    @property
    def total_s(self) -> float:
        """Order to warm, seconds."""
        return sum(self.stage_s.values())


def quantile(values: Sequence[float], level: float) -> float:
    """Smallest value that at least ``level`` of ``values`` do not exceed; needs at least one value."""
    ordered = sorted(values)
    return ordered[max(0, ceil(level * len(ordered)) - 1)]


DEFAULT_PRIORS: tuple[StagePrior, ...] = (
    StagePrior("schedule", 1.0, 5.0),
    StagePrior("node", 0.0, 0.0),
    StagePrior("image", 5.0, 20.0),
    StagePrior("load", 15.0, 30.0),
    StagePrior("warmup", 2.0, 5.0),
)


# What a load that was measured beside a running server, with its files cached, lacks of a load on a fresh node: the
# server's own start, and reading the files. Measured on an H200: 1 s, and up to twice the time of a cached load.
SERVER_START_S = 2.0
UNCACHED_FACTOR = 2.0


def with_load(priors: Sequence[StagePrior], p50_s: float, p95_s: float) -> tuple[StagePrior, ...]:
    """The priors with the load stage as an engine's measured load suggests it."""
    load = StagePrior("load", p50_s + SERVER_START_S, max(p50_s, p95_s) * UNCACHED_FACTOR + SERVER_START_S)
    return tuple(load if prior.name == load.name else prior for prior in priors)


@dataclass(frozen=True, slots=True)
class LeadTime:
    """P95 lead time of one replica, per stage and in total, and what each further replica adds. Seconds."""

    total_p95_s: float
    stage_p95_s: tuple[tuple[str, float], ...] = ()
    per_extra_replica_s: float = 0.0
    sample_count: int = 0

    def for_batch(self, replica_count: int) -> float:
        """Return the P95 seconds until the last of ``replica_count`` replicas ordered together is warm."""
        return self.total_p95_s + self.per_extra_replica_s * max(0, replica_count - 1)

    def remaining(self, stages_left: frozenset[str]) -> float:
        """P95 seconds for the named stages; the total when no stage was ever told apart."""
        if not self.stage_p95_s:
            return self.total_p95_s if stages_left else 0.0
        return min(
            self.total_p95_s, sum(seconds for name, seconds in self.stage_p95_s if name in stages_left)
        )


DEFAULT_LEAD_TIME = LeadTime(60.0)


def estimate_lead_time(
    priors: Sequence[StagePrior] = DEFAULT_PRIORS,
    samples: Sequence[LeadSample] = (),
    *,
    per_extra_replica_s: float = 0.0,
) -> LeadTime:
    """Blend the prior with measured starts.

    The prior's total P95 assumes independent stages: ``sum(p50) + sqrt(sum((p95 - p50)^2))``; adding the
    stages' P95 would order far too early.
    """
    prior_total = sum(p.p50_s for p in priors) + sqrt(sum((p.p95_s - p.p50_s) ** 2 for p in priors))
    if not samples:
        stages = tuple((p.name, p.p95_s) for p in priors)
        return LeadTime(prior_total, stages, per_extra_replica_s)
    slope = fit_slope(samples, default=per_extra_replica_s)
    weight = len(samples) / (len(samples) + PRIOR_WEIGHT)
    alone = [max(0.0, s.total_s - slope * (s.batch_count - 1)) for s in samples]
    total = weight * quantile(alone, 0.95) + (1.0 - weight) * prior_total
    by_name = {p.name: p.p95_s for p in priors}
    names = [*by_name, *sorted({n for s in samples for n in s.stage_s} - by_name.keys())]
    stages = tuple((name, _blend_stage(name, by_name, samples, weight)) for name in names)
    return LeadTime(total, stages, slope, len(samples))


def _blend_stage(
    name: str, prior_p95_s: Mapping[str, float], samples: Sequence[LeadSample], weight: float
) -> float:
    measured = [s.stage_s[name] for s in samples if name in s.stage_s]
    if not measured:
        return prior_p95_s.get(name, 0.0)
    return weight * quantile(measured, 0.95) + (1.0 - weight) * prior_p95_s.get(name, 0.0)


def fit_slope(samples: Sequence[LeadSample], *, default: float) -> float:
    """Least-squares seconds per additional replica started at once, never negative."""
    if len(samples) < SLOPE_SAMPLES_MIN or len({s.batch_count for s in samples}) == 1:
        return default
    mean_batch = fmean(s.batch_count for s in samples)
    mean_total = fmean(s.total_s for s in samples)
    spread = sum((s.batch_count - mean_batch) ** 2 for s in samples)
    return max(0.0, sum((s.batch_count - mean_batch) * (s.total_s - mean_total) for s in samples) / spread)
