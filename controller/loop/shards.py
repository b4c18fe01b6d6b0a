"""Split the workloads over controllers: each shard has a lease, and a single leader's world behind it.

Promises: a shard's lease counts only while everybody agrees on the number of shards and on the cohorts; shares are
even within one; of what is over its share a controller gives one shard up per third of a lease, between two turns.
Refuses to lead anything while controllers that disagree run. docs/decisions/0012-leased-shards.md has the rules.
Called by the composition root.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b
from typing import Final

from controller.core.types import QuotaPool, Workload
from controller.loop.known import KnownWorkloads
from controller.loop.leader import RENEWALS_PER_LEASE, Leadership, stop_if_cancelled
from controller.ports import (
    LEADER_LEASE,
    MEMBER_LEASES,
    SHARD_LEASES,
    Clock,
    LeaseStore,
    PortError,
    UnitOfWork,
)

log = logging.getLogger(__name__)

_AGREEMENT: Final = re.compile(r"shards:(\d+)(?::[0-9a-f]+)?")


def shard_of(workload: Workload, pools: Sequence[QuotaPool], count: int) -> int:
    """The shard of a workload; whatever is arbitrated together has one."""
    pool = next((p for p in pools if p.name == workload.quota_pool), None)
    if pool is not None and pool.cohort is not None:
        key = f"cohort/{pool.cohort}"
    elif workload.quota_pool is not None:
        key = f"pool/{workload.quota_pool}"
    else:
        key = f"workload/{workload.name}"
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest()) % count


@dataclass(frozen=True, slots=True)
class Step:
    """What a controller does next: free shards it takes, and one that it gives up."""

    take: tuple[int, ...] = ()
    give_up: int | None = None


def next_step(me: str, members: Collection[str], holders: Mapping[int, str], count: int) -> Step:
    """What ``me`` does so that ``count`` shards end up spread evenly over the members. ``holders``: by shard.

    Of 4 shards and 3 members, one holds 2 and two hold 1: whoever holds most keeps what the division leaves over.
    """
    held = Counter(holders.values())
    ranked = sorted({*members, me}, key=lambda member: (-held[member], member))
    share, over = divmod(count, len(ranked))
    share += ranked.index(me) < over
    mine = [shard for shard in range(count) if holders.get(shard) == me]
    if len(mine) > share:
        return Step(give_up=mine[-1])
    free = [shard for shard in range(count) if shard not in holders]
    # From a place of its own on, so that two that look at once want different ones.
    turn = int.from_bytes(blake2b(me.encode(), digest_size=8).digest()) % count
    return Step(take=tuple(sorted(free, key=lambda shard: (shard - turn) % count)[: share - len(mine)]))


class Share:
    """The workloads of one shard, out of those that this process knows."""

    def __init__(self, known: KnownWorkloads, mine: Callable[[Workload], bool]) -> None:
        self._known, self._mine = known, mine
        self._all: tuple[Workload, ...] = ()
        self._workloads: tuple[Workload, ...] = ()
        self._others: tuple[Workload, ...] = ()

    async def read(self, uow: UnitOfWork) -> tuple[Workload, ...]:
        """As `KnownWorkloads.read`."""
        found = await self._known.read(uow)
        if found is not self._all:
            # Every tick asks for both parts: each workload is placed once, not at each of them.
            mine, others = list[Workload](), list[Workload]()
            for workload in found:
                (mine if self._mine(workload) else others).append(workload)
            self._all, self._workloads, self._others = found, tuple(mine), tuple(others)
        return self._workloads

    @property
    def names(self) -> Collection[str]:
        """As `Registered.names`."""
        return [workload.name for workload in self._workloads]

    @property
    def others(self) -> tuple[Workload, ...]:
        """As `Registered.others`."""
        return self._others


class Shards:
    """This controller's part in the shards of an installation."""

    def __init__(
        self,
        leases: LeaseStore,
        clock: Clock,
        *,
        count: int,
        holder: str,
        duration: timedelta,
        pools: Sequence[QuotaPool] = (),
    ) -> None:
        self._leases, self._clock, self._count, self._holder = leases, clock, count, holder
        self._duration, self._placing = duration, placing(count, pools)
        self._giving: asyncio.Task[None] | None = None
        self._wanted: Collection[int] = ()
        self._agreement = Leadership(
            leases, clock, name=LEADER_LEASE, holder=self._placing, duration=duration
        )
        self._member = Leadership(
            leases, clock, name=f"{MEMBER_LEASES}{count}/{holder}", holder=holder, duration=duration
        )
        self.leaderships = tuple(
            Leadership(
                leases,
                clock,
                name=f"{SHARD_LEASES}{count}/{shard}",
                holder=holder,
                duration=duration,
                wanted=lambda shard=shard: shard in self._wanted,  # type: ignore[misc] # the loop's own shard
                agreed=lambda: self._agreement.token is not None,
            )
            for shard in range(count)
        )

    @property
    def held(self) -> tuple[int, ...]:
        """The shards that this controller leads."""
        return tuple(shard for shard, one in enumerate(self.leaderships) if one.token is not None)

    @property
    def problem(self) -> str:
        """Why this controller leads nothing and waits; empty: it does not wait for others to end."""
        return disagreement(self._agreement.other, self._count, self._placing)

    async def run(self) -> None:
        """Take part until cancelled. The shards' leaderships renew themselves, and are given up by whoever runs them."""
        try:
            while True:
                await self.turn()
                stop_if_cancelled()
                await self._clock.sleep(self._duration.total_seconds() / RENEWALS_PER_LEASE)
        finally:
            await self.leave()

    async def leave(self) -> None:
        """Say that we are gone. The agreement is everybody's: it ends when nobody renews it any more."""
        if self._giving is not None:
            self._giving.cancel()  # whoever runs the leadership gives it up
        await self._member.release()

    async def turn(self) -> None:
        """Agree, say that we are here, and go one step towards an even spread."""
        before = self.problem
        if await self._agreement.renew() is None:
            self._wanted = ()
            if self.problem:
                for leadership in self.leaderships:
                    leadership.lost()
                if self.problem != before:
                    log.warning("%s", self.problem)
            return
        await self._member.renew()
        if self._giving is not None:
            if not self._giving.done():
                return
            self._giving.result()
            self._giving = None
        try:
            step = await self._next()
        except PortError as error:
            log.warning("how the shards are spread is not known: %s", error)
            return
        self._wanted = step.take
        for shard in step.take:
            await self.leaderships[shard].renew()
        if step.give_up is not None:
            log.info("%s gives shard %d up: it holds more than its share", self._holder, step.give_up)
            # Beside the renewals: the turn it waits for may be longer than the agreement lasts.
            self._giving = asyncio.create_task(self.leaderships[step.give_up].hand_over(), name="hand-over")
            await asyncio.sleep(0)

    async def _next(self) -> Step:
        members, holders = set[str](), dict[int, str]()
        for lease in await self._leases.live():
            kind, _, rest = lease.name.partition("/")
            count, _, what = rest.partition("/")
            if f"{kind}/" == MEMBER_LEASES and count == str(self._count):
                members.add(lease.holder)
            elif f"{kind}/" == SHARD_LEASES and count == str(self._count):
                holders[int(what)] = lease.holder
        return next_step(self._holder, members, holders, self._count)


def placing(count: int, pools: Sequence[QuotaPool]) -> str:
    """What all controllers must have in common so that a workload has the same shard in each: N, and the cohorts."""
    cohorts = sorted((pool.name, pool.cohort) for pool in pools if pool.cohort is not None)
    if not cohorts:
        return f"shards:{count}"
    return f"shards:{count}:{blake2b(repr(cohorts).encode(), digest_size=8).hexdigest()}"


def disagreement(other: str, count: int, mine: str = "") -> str:
    """What a controller with ``count`` shards waits for, given who holds the common lease instead; empty: nothing.

    ``mine``: its own `placing`, where it has more than one.
    """
    found = _AGREEMENT.fullmatch(other)
    theirs = int(found[1]) if found else 1
    if not other or other == mine or (theirs == count and found is None):
        return ""
    if theirs == count:
        return (
            "waits: controllers still run whose FORECREST_QUOTA_POOLS have other cohorts than this one's; "
            "it leads once they have ended"
        )
    return (
        f"waits: controllers with FORECREST_SHARDS={theirs} still run, and this one has {count}; "
        "it leads once they have ended"
    )
