"""What a quota pool has left at a future time: all its workloads, each with its forecast and events of then.

Promises: the figure is made by the planner the loop uses, for the window asked about and not for now, so that two
events of one evening meet each other at registration. A workload that nobody can size counts with its minimum, and
is never assumed to need nothing. Called by previews and at registration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from controller.core.leadtime import LeadTime
from controller.core.planner import build_plan
from controller.core.types import CapacityPlan, Event, QuotaPool, Trust, Workload
from controller.ports import NotFoundError, UnitOfWork
from controller.usecases.listing import every

# Workloads of one pool that are planned for one by one; further ones count with their minimum.
MEMBERS_MAX = 200


@dataclass(frozen=True, slots=True)
class Room:
    """A pool at one time. ``held``: GPUs that other workloads need then, the largest first."""

    pool: str
    total_gpus: int
    held: tuple[tuple[str, int], ...]

    @property
    def free_gpus(self) -> int:
        """What is left."""
        return max(0, self.total_gpus - sum(gpus for _, gpus in self.held))

    def unnamed(self) -> "Room":
        """The same, for somebody who may not know the others' names."""
        return replace(self, held=(("others", sum(gpus for _, gpus in self.held)),))

    def sentence(self) -> str:
        """Who holds what, for people."""
        names = ", ".join(f"{name} {gpus}" for name, gpus in self.held[:3] if gpus)
        return f"pool {self.pool} has {self.free_gpus} of {self.total_gpus} GPUs left then" + (
            f" ({names}{' ...' if len(self.held) > 3 else ''})" if names else ""
        )


async def room_for(
    uow: UnitOfWork,
    workload: Workload,
    occurrence: Event,
    pools: Sequence[QuotaPool],
    events: Mapping[str, Sequence[Event]],
    lead: LeadTime,
    now: datetime,
) -> Room | None:
    """What ``workload`` finds in its pool while ``occurrence`` lasts; None if no quota applies.

    ``events`` are the occurrences of that window by workload, ``occurrence`` among them wherever it counts.
    """
    pool = next((p for p in pools if p.name == workload.quota_pool), None)
    if pool is None or not workload.profile.gpus_per_replica:
        return None
    members = [
        w
        for w in await every(uow.workloads.list)
        if w.quota_pool == pool.name and w.name != workload.name and w.profile.gpus_per_replica
    ]
    held: list[tuple[str, int]] = []
    for index, member in enumerate(members):
        count = member.min_replicas
        if index < MEMBERS_MAX:
            count = await _need_then(uow, member, occurrence, events.get(member.name, ()), lead, now)
        held.append((member.name, count * member.profile.gpus_per_replica))
    held.sort(key=lambda item: (-item[1], item[0]))
    total = pool.nominal_gpus + (pool.borrowing_limit_gpus if pool.cohort else 0)
    return Room(pool.name, total, tuple(held))


async def _need_then(
    uow: UnitOfWork,
    workload: Workload,
    occurrence: Event,
    events: Sequence[Event],
    lead: LeadTime,
    now: datetime,
) -> int:
    stored = await uow.forecasts.latest(workload.name)
    try:
        plan = build_plan(
            workload,
            now=now,
            band=stored[1] if stored else None,
            trust=Trust.UNPROVEN,
            events=events,
            lead=lead,
        )
    except ValueError:  # beyond what any pool can be sized for: it takes all it may
        return workload.max_replicas
    fresh = peak_replicas(plan, workload, occurrence.start_at, occurrence.end_at)
    try:
        # The loop's own plan has seen present demand, too; near events are sized on it.
        kept = await uow.decisions.plan(workload.name)
    except NotFoundError:
        return fresh
    return max(fresh, peak_replicas(kept, workload, occurrence.start_at, occurrence.end_at))


def peak_replicas(plan: CapacityPlan, workload: Workload, start_at: datetime, end_at: datetime) -> int:
    """Most replicas that the plan's floors hold in ``[start_at, end_at)``."""
    held = [f.replicas for f in plan.floors if f.needed_at < end_at and start_at < f.until_at]
    return max([workload.min_replicas, *held])
