"""An actuator that changes nothing: it observes through another one and logs what it would have done.

Promises: fencing is checked as the real one checks it, so a dry run shows a stale leader too. Refuses to
pretend: the observed replicas stay what they are, and every decision's outcome says "dry run".
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from controller.actuators.fences import Fences
from controller.core.types import Workload
from controller.ports import Actuator, PoolView, PortError

log = logging.getLogger(__name__)


class DryRunError(PortError):
    """Nothing was applied, on purpose."""


class DryRunActuator:
    """Implements ``controller.ports.Actuator`` without acting. Without ``inner``, replicas are unknown."""

    def __init__(self, inner: Actuator | None = None) -> None:
        self._inner = inner
        self._fences = Fences()
        self._asked: dict[str, int] = {}

    async def observe(self, workloads: Sequence[Workload]) -> Mapping[str, PoolView]:
        """What the inner actuator sees, with the count last asked for as desired; nothing is known without one.

        Otherwise every tick would find its own order ignored, and ask and record it again.
        """
        if self._inner is None:
            return {}
        views = await self._inner.observe(workloads)
        return {
            name: replace(view, desired_replicas=self._asked.get(name, view.desired_replicas))
            for name, view in views.items()
        }

    async def claim(
        self, workloads: Sequence[Workload], *, fence: int, others: Sequence[Workload] | None = None
    ) -> None:
        """Check the fence, and pass nothing on: nothing is ended either."""
        self._fences.claim(workloads, others, fence)
        names = {w.name for w in (*workloads, *(others or ()))}
        self._asked = {name: count for name, count in self._asked.items() if name in names}

    async def scale(self, workload: Workload, replicas: int, *, fence: int) -> None:
        """Log the order; raise DryRunError so that the ledger does not claim it was applied."""
        self._fences.check(workload.name, fence)
        self._asked[workload.name] = replicas
        log.info("dry run: %s would be scaled to %d", workload.name, replicas)
        raise DryRunError(f"dry run: {workload.name} would be scaled to {replicas}")

    async def replace(self, workload: Workload, replica_id: str, *, fence: int) -> None:
        """Log the order; raise DryRunError."""
        self._fences.check(workload.name, fence)
        log.info("dry run: replica %s of %s would be replaced", replica_id, workload.name)
        raise DryRunError(f"dry run: replica {replica_id} of {workload.name} would be replaced")

    async def close(self) -> None:
        """Close the inner actuator."""
        if self._inner is not None:
            await self._inner.close()
