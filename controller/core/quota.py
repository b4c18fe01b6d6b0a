"""Share GPUs between workloads: nominal quota, borrowing, preemption of lower-priority surplus only. Pure.

Snapshot, order, one by one. What a workload holds and needs is never taken. Growth it needs comes from free
GPUs of its pool (borrowed within the cohort up to the pool's limit), then from the surplus of workloads with
strictly lower priority, lowest first, and only where that yields a whole replica: nobody is preempted for
nothing. Growth it merely wants comes from free GPUs only. A pool that shrank under its holdings stops growth
and takes nothing back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controller.core.types import QuotaPool


@dataclass(frozen=True, slots=True)
class Ask:
    """One workload's case: what it holds, what it needs (floors, present load) and what it would take.

    ``gpus_per_replica`` is at least 1: what uses no GPU asks no GPU pool.
    """

    workload: str
    pool: str
    gpus_per_replica: int
    priority: int
    current: int
    needed: int
    wanted: int


@dataclass(frozen=True, slots=True)
class Grant:
    """What one workload may hold, what it lacks, and what was taken from it for whom."""

    ceiling: int
    shortfall: int = 0
    preempted_by: str | None = None
    borrowed_gpus: int = 0  # by its whole pool


@dataclass
class _Ledger:
    """Running GPU count per pool and cohort while grants are handed out."""

    pools: Mapping[str, QuotaPool]
    used: dict[str, int] = field(default_factory=dict[str, int])

    def free(self, name: str) -> int:
        pool = self.pools[name]
        own = pool.nominal_gpus + pool.borrowing_limit_gpus - self.used[name]
        if pool.cohort is None:
            return min(own, pool.nominal_gpus - self.used[name])
        # A GPU of another type is no use to this pool's workloads, whoever lends it.
        members = [p for p in self.pools.values() if p.cohort == pool.cohort and p.gpu_type == pool.gpu_type]
        shared = sum(p.nominal_gpus for p in members) - sum(self.used[p.name] for p in members)
        return min(own, shared)


def allocate(pools: Sequence[QuotaPool], asks: Sequence[Ask]) -> dict[str, Grant]:
    """Grant per workload name. Workloads whose pool is unknown get what they hold and are short of the rest."""
    ledger = _Ledger({p.name: p for p in pools}, {p.name: 0 for p in pools})
    known = [a for a in asks if a.pool in ledger.pools]
    held = {a.workload: a.current for a in asks}
    taken_by: dict[str, str] = {}
    for ask in known:
        ledger.used[ask.pool] += ask.current * ask.gpus_per_replica
    ordered = sorted(known, key=lambda a: (-a.priority, a.workload))
    for ask in ordered:
        _grow(ask, max(ask.needed, 0), held, ledger)
        _preempt_for(ask, known, held, taken_by, ledger)
    for ask in ordered:
        if ask.workload not in taken_by:
            _grow(ask, ask.wanted, held, ledger)
    grants: dict[str, Grant] = {}
    for ask in asks:
        shortfall = max(0, max(ask.needed, ask.wanted) - held[ask.workload])
        borrowed = 0
        if ask.pool in ledger.pools:
            borrowed = max(0, ledger.used[ask.pool] - ledger.pools[ask.pool].nominal_gpus)
        grants[ask.workload] = Grant(held[ask.workload], shortfall, taken_by.get(ask.workload), borrowed)
    return grants


def _grow(ask: Ask, target: int, held: dict[str, int], ledger: _Ledger) -> None:
    room = max(0, ledger.free(ask.pool)) // ask.gpus_per_replica
    more = min(max(0, target - held[ask.workload]), room)
    _move(ask, more, held, ledger)


def _preempt_for(
    ask: Ask, known: Sequence[Ask], held: dict[str, int], taken_by: dict[str, str], ledger: _Ledger
) -> None:
    """Take lower-priority surplus, but only where it lets ``ask`` grow: one replica of it at a time, or not at all."""
    victims = sorted((a for a in known if a.priority < ask.priority), key=lambda a: (a.priority, a.workload))
    while held[ask.workload] < ask.needed:
        taken = _make_room(ask, victims, held, ledger)
        if not taken:
            return
        taken_by.update((victim.workload, ask.workload) for victim in taken)
        _grow(ask, ask.needed, held, ledger)


def _make_room(ask: Ask, victims: Sequence[Ask], held: dict[str, int], ledger: _Ledger) -> list[Ask]:
    """Take the fewest surplus replicas that free one replica of ``ask``; none when that cannot be reached."""
    taken: list[Ask] = []
    for victim in victims:
        while held[victim.workload] > max(victim.needed, 0) and ledger.free(ask.pool) < ask.gpus_per_replica:
            _move(victim, -1, held, ledger)
            taken.append(victim)
    enough = ledger.free(ask.pool) >= ask.gpus_per_replica
    # Give back what turned out not to help: GPUs out of this pool's reach, or made superfluous by a larger
    # replica taken later. The highest priority is given back first.
    for victim in reversed(taken[:]):
        _move(victim, 1, held, ledger)
        if enough and ledger.free(ask.pool) < ask.gpus_per_replica:
            _move(victim, -1, held, ledger)
        else:
            taken.remove(victim)
    return taken


def _move(ask: Ask, replicas: int, held: dict[str, int], ledger: _Ledger) -> None:
    held[ask.workload] += replicas
    ledger.used[ask.pool] += replicas * ask.gpus_per_replica
