"""The newest fencing token that this process saw, per workload: shards of one process have tokens of their own.

Promises: what is remembered of workloads that nobody declares any more is dropped.
Called by: the actuators.
"""

from collections.abc import Sequence

from controller.core.types import Workload
from controller.ports import StaleFenceError


class Fences:
    """Refuses what is older than what was seen before."""

    def __init__(self) -> None:
        self._all = 0  # of a leader that claimed everything
        self._newest: dict[str, int] = {}

    def claim(self, workloads: Sequence[Workload], others: Sequence[Workload] | None, fence: int) -> None:
        """Let nothing older through to these workloads, or to any from the only leader (None); raise StaleFenceError."""
        if others is None:
            self._refuse(fence, self._all)
            self._all, self._newest = fence, {n: f for n, f in self._newest.items() if f > fence}
        elif 0 < len(workloads) + len(others) < len(self._newest):
            names = {workload.name for workload in (*workloads, *others)}
            self._newest = {name: newest for name, newest in self._newest.items() if name in names}
        for workload in workloads:
            self.check(workload.name, fence)

    def check(self, workload: str, fence: int) -> None:
        """Raise StaleFenceError if a newer one was seen for this workload."""
        self._refuse(fence, max(self._all, self._newest.get(workload, 0)))
        self._newest[workload] = fence

    def _refuse(self, fence: int, newest: int) -> None:
        if fence < newest:
            raise StaleFenceError(f"fence {fence} is older than {newest}: another process leads; stop acting")
