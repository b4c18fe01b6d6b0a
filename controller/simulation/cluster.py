"""The simulated cluster: replicas that take time to start and are paid from their order on.

Promises: deterministic for a seed; a replica counts as capacity from the end of its cold start until it
is removed, and is paid from its start order until it is removed. Starting replicas are removed before
warm ones, newest first, as Kubernetes does. Called by the harness and the fault worlds.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from controller.simulation.queueing import Queue

ATTEMPTS_MAX = 5


@dataclass(frozen=True, slots=True)
class ClusterModel:
    """What replicas are and how they start.

    Attributes:
        queue: Service, SLO and the queue's bound.
        cold_start_s: From start order to warm: GPU node, image, engine, warm-up.
        cold_start_spread: Sigma of the log-normal factor on it; 0 is constant.
        batch_slowdown: Share by which each other replica starting at the same time lengthens a start.
        load_failure_share: Share of starts that fail at the end and begin again, still paid.
        min_replicas: Fewest replicas.
        max_replicas: Most replicas.
        seed: Of every random draw.
    """

    queue: Queue = field(default_factory=Queue)
    cold_start_s: float = 300.0
    cold_start_spread: float = 0.0
    batch_slowdown: float = 0.0
    load_failure_share: float = 0.0
    min_replicas: int = 1
    max_replicas: int = 80
    seed: int = 1


@dataclass(slots=True)
class SimReplica:
    """One replica: when it was ordered and when it is warm, seconds of the run."""

    id: int
    ordered_s: float
    ready_s: float
    batch_count: int = 1


class Cluster:
    """State of the replicas at one moment of a run."""

    def __init__(self, model: ClusterModel, warm_count: int) -> None:
        self.model = model
        self._random = Random(model.seed)
        self._next_id = warm_count
        self.warm: list[SimReplica] = [
            SimReplica(index, -model.cold_start_s, 0.0) for index in range(warm_count)
        ]
        self.starting: list[SimReplica] = []  # ascending ready_s

    @property
    def paid_count(self) -> int:
        """Replicas that cost money now."""
        return len(self.warm) + len(self.starting)

    def advance(self, now_s: float) -> Sequence[SimReplica]:
        """Let starts that end by ``now_s`` become warm; return them."""
        starting = self.starting
        if not starting or starting[0].ready_s > now_s:
            return ()
        done = bisect.bisect_right(starting, now_s, key=_ready_s)
        fresh = starting[:done]
        del starting[:done]
        self.warm.extend(fresh)
        return fresh

    def scale_to(self, now_s: float, replicas: int) -> int:
        """Order or remove until ``replicas`` (within the model's bounds) are paid; return the change."""
        model = self.model
        wanted = min(max(replicas, model.min_replicas), model.max_replicas)
        change = wanted - self.paid_count
        if change > 0:
            batch = len(self.starting) + change
            for _ in range(change):
                ready_s = now_s + self._start_s(batch)
                bisect.insort(self.starting, SimReplica(self._next_id, now_s, ready_s, batch), key=_ready_s)
                self._next_id += 1
        for _ in range(-change):
            (self.starting or self.warm).pop()
        return change

    def _start_s(self, batch: int) -> float:
        model = self.model
        total = 0.0
        for _ in range(ATTEMPTS_MAX):
            factor = (
                self._random.lognormvariate(0.0, model.cold_start_spread) if model.cold_start_spread else 1.0
            )
            total += model.cold_start_s * factor * (1 + model.batch_slowdown * (batch - 1))
            if not model.load_failure_share or self._random.random() >= model.load_failure_share:
                break
        return total


def _ready_s(replica: SimReplica) -> float:
    return replica.ready_s
