"""Keep what was read: workloads as the newest look at the store found them.

Promises: what is returned is what the store holds now, in one order; of workloads that stand, only their marks are
read. Refuses nothing: what is kept is as good as none when the marks differ. Called by the control cycle.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

from controller.core.types import Workload
from controller.ports import UnitOfWork

READ_AT_ONCE = 1000


class Registered(Protocol):
    """The workloads that one leader decides for."""

    async def read(self, uow: UnitOfWork) -> tuple[Workload, ...]:
        """They by name; the same tuple as long as none was written."""
        ...

    @property
    def names(self) -> Collection[str] | None:
        """Of what was read last; None: they are all there are."""
        ...

    @property
    def others(self) -> tuple[Workload, ...] | None:
        """What was read last and is decided for by others; None: there is no other leader."""
        ...


class KnownWorkloads:
    """Every workload by name, up to a limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._marks: Mapping[str, str] = {}
        self._workloads: tuple[Workload, ...] = ()
        self.names: Collection[str] | None = None
        self.others: tuple[Workload, ...] | None = None

    async def read(self, uow: UnitOfWork) -> tuple[Workload, ...]:
        """Workloads by name; the same tuple as long as none was written."""
        found = await uow.workloads.marks()
        marks = {name: found[name] for name in sorted(found)[: self._limit]}
        # Several jobs read at once: each goes on from what it found at its start, and any of them is right.
        kept, known = self._marks, self._workloads
        if marks == kept:
            return known
        stale = [name for name, mark in marks.items() if kept.get(name) != mark]
        by_name = {workload.name: workload for workload in known}
        for name in stale:
            by_name.pop(name, None)
        for start in range(0, len(stale), READ_AT_ONCE):
            for workload in await uow.workloads.many(stale[start : start + READ_AT_ONCE]):
                by_name[workload.name] = workload
        # One that was deleted after its mark was read is missing now.
        self._workloads = tuple(by_name[name] for name in marks if name in by_name)
        self._marks = {workload.name: marks[workload.name] for workload in self._workloads}
        return self._workloads
