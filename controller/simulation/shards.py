"""Fault simulation of leased shards: controllers come, go, stall and disagree, and no workload has two actors.

The parts are production's: `Shards`, `Leadership`, the placing of workloads and the rule of the store's fence, over
leases in memory. In a seeded world controllers are killed, told to end, stopped for a while in the middle of a turn,
and replaced by ones with another number of shards or other cohorts; the lease store is away; its clock steps. What a controller wants
to write it writes up to two leases later, under the token it had. Then a calm stretch shows whether all settles.

Invariants, numbered as in docs/decisions/0012-leased-shards.md and checked every second:

1. Of two tokens that both pass the fence, the workloads are disjoint.
2. Tokens that pass the fence are all of one number of shards, and of the same cohorts.
3. Tokens that change a workload never fall.
4. Every shard is led within two leases and a turn after the last fault. (On its way to an even spread it may be without
   a leader again for a turn.)
5. From a lease per shard later on, shares differ by one at most, and nothing moves any more.

Called by tests and by ``python -m controller.simulation.shards --seeds A:B``; a failing seed says how to run it again.
"""

import argparse
import asyncio
import logging
import sys
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from random import Random

from controller.adapters.fakes import FakeLeaseStore
from controller.core.types import CapacityProfile, QuotaPool, Workload
from controller.loop.leader import Leadership
from controller.loop.shards import Shards, shard_of
from controller.ports import LEADER_LEASE, StaleFenceError, held_lease
from controller.simulation.faults import BrokenInvariantError

START = datetime(2026, 3, 1, tzinfo=UTC)
LEASE_S, TURN_S = 12, 4
FAULTY_S, SETTLE_S, CALM_S = 30 * LEASE_S, 2 * LEASE_S + TURN_S, 6 * LEASE_S
CONTROLLERS_MAX = 5
_PROFILES = (CapacityProfile("e", "g", 100.0),)
_POOLS = (QuotaPool("a", 8, cohort="c"), QuotaPool("b", 8, cohort="c"), QuotaPool("d", 8))
_APART = tuple(QuotaPool(pool.name, pool.nominal_gpus) for pool in _POOLS)
_WORKLOADS = tuple(
    Workload(f"w{number}", "m", _PROFILES, max_replicas=9, quota_pool=(None, None, "a", "b", "d")[number % 5])
    for number in range(20)
)


class _Clock:
    """Implements `controller.ports.Clock` for parts that never sleep; ``offset`` sets the wall clock."""

    def __init__(self) -> None:
        self.elapsed_s, self.offset = 0.0, timedelta(0)

    def now(self) -> datetime:
        return START + timedelta(seconds=self.elapsed_s) + self.offset

    def monotonic(self) -> float:
        return self.elapsed_s

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError(f"{seconds} s: the world's own loop says when turns are")


@dataclass(frozen=True, slots=True)
class _Layout:
    """What a controller is told: into how many shards, and which pools."""

    count: int
    pools: tuple[QuotaPool, ...]


@cache
def _names(layout: _Layout, shard: int) -> frozenset[str]:
    """Workloads of a shard."""
    return frozenset(w.name for w in _WORKLOADS if shard_of(w, layout.pools, layout.count) == shard)


@dataclass(slots=True)
class _Controller:
    name: str
    layout: _Layout
    shards: Shards | None
    leaderships: tuple[Leadership, ...]
    next_turn_s: float
    stopped_until_s: float = 0.0


@dataclass(slots=True)
class _Write:
    due_s: float
    token: int
    layout: _Layout
    shard: int
    by: Leadership


@dataclass
class ShardWorld:
    """One seed's world."""

    seed: int
    random: Random = field(init=False)
    now_s: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.clock, self.store_clock = _Clock(), _Clock()
        self.leases = FakeLeaseStore(self.store_clock)
        self.layout = self.choose()
        self.controllers: list[_Controller] = []
        self.writes: list[_Write] = []
        self.newest: dict[str, int] = {}
        self.tokens: dict[int, tuple[_Layout, int]] = {}  # ever held: under which layout, and of which shard
        self.faults: Counter[str] = Counter()
        self.written_count = self.made = self.away_until_s = 0
        for _ in range(self.random.randint(1, 3)):
            self.join()

    def broken(self, number: int, sentence: str) -> BrokenInvariantError:
        """An invariant that did not hold."""
        again = f"python -m controller.simulation.shards --seeds {self.seed}:{self.seed + 1}"
        return BrokenInvariantError(f"invariant {number} at {self.now_s} s: {sentence}; again: {again}")

    def choose(self) -> _Layout:
        """Shards, and cohorts where these place workloads."""
        count = self.random.choice((1, 2, 3, 4, 6))
        return _Layout(count, _POOLS if count == 1 else self.random.choice((_POOLS, _APART)))

    def join(self) -> None:
        """One more controller, with the layout that is being rolled out."""
        self.made += 1
        name, duration = f"c{self.made}", timedelta(seconds=LEASE_S)
        shards = None
        count, pools = self.layout.count, self.layout.pools
        if count == 1:
            alone = Leadership(self.leases, self.clock, name=LEADER_LEASE, holder=name, duration=duration)
            leaderships: tuple[Leadership, ...] = (alone,)
        else:
            shards = Shards(self.leases, self.clock, count=count, holder=name, duration=duration, pools=pools)
            leaderships = shards.leaderships
        first_s = self.now_s + self.random.uniform(0, TURN_S)
        self.controllers.append(_Controller(name, self.layout, shards, leaderships, first_s))

    async def second(self) -> None:
        """Let a second pass: turns that are due, writes that are due, then the checks."""
        self.leases.available = self.now_s >= self.away_until_s
        for one in self.random.sample(self.controllers, len(self.controllers)):
            if one.stopped_until_s <= self.now_s and one.next_turn_s <= self.now_s:
                one.next_turn_s = self.now_s + TURN_S
                await self._turn(one)
        due = [write for write in self.writes if write.due_s <= self.now_s]
        self.writes = [write for write in self.writes if write.due_s > self.now_s]
        for write in due:
            self._write(write)
        self._check_fence()
        self.now_s += 1
        self.clock.elapsed_s = self.store_clock.elapsed_s = float(self.now_s)

    async def _turn(self, one: _Controller) -> None:
        if one.shards is not None:
            await one.shards.turn()
        for shard, leadership in enumerate(one.leaderships):
            token = await leadership.renew()
            if token is not None:
                self.tokens[token] = (one.layout, shard)
                late_s = self.random.choice((0, 0, 1, LEASE_S, 2 * LEASE_S)) * self.random.random()
                self.writes.append(_Write(self.now_s + late_s, token, one.layout, shard, leadership))

    def _write(self, write: _Write) -> None:
        try:
            held_lease(self.leases.tokens(), write.token)
        except StaleFenceError:
            if write.by.token == write.token:
                write.by.lost()
            return
        self.written_count += 1
        for name in _names(write.layout, write.shard):
            if write.token < self.newest.get(name, 0):
                raise self.broken(3, f"{name}: {write.token} after {self.newest[name]}")
            self.newest[name] = write.token

    def _check_fence(self) -> None:
        passing: dict[int, tuple[_Layout, int]] = {}
        for token, of in self.tokens.items():
            try:
                held_lease(self.leases.tokens(), token)
            except StaleFenceError:
                continue
            passing[token] = of
        if len({layout for layout, _ in passing.values()}) > 1:
            raise self.broken(2, f"tokens of several layouts pass: {passing}")
        actors = Counter(name for of in passing.values() for name in _names(*of))
        if actors and max(actors.values()) > 1:
            raise self.broken(1, f"some workloads have several actors: {passing}")

    async def fault(self) -> None:
        """Break something, now and then."""
        kinds = ("join", "kill", "end", "stop", "store_away", "clock_step", "rollout")
        kind = self.random.choice(kinds)
        one = self.random.choice(self.controllers) if self.controllers else None
        if kind == "join" and len(self.controllers) < CONTROLLERS_MAX:
            self.join()
        elif kind in {"kill", "end"} and one is not None:
            self.controllers.remove(one)
            if kind == "end":
                await self.end(one)
        elif kind == "stop" and one is not None:
            one.stopped_until_s = self.now_s + self.random.uniform(1, 3 * LEASE_S)
        elif kind == "store_away":
            self.away_until_s = self.now_s + self.random.randint(1, 2 * LEASE_S)
        elif kind == "clock_step":
            self.store_clock.offset += timedelta(seconds=self.random.uniform(-LEASE_S / 2, 2 * LEASE_S))
        elif kind == "rollout":
            self.layout = self.choose()
            self.join()
        else:
            return
        self.faults[kind] += 1

    async def end(self, one: _Controller) -> None:
        """As on SIGTERM: what is held is given up."""
        for leadership in one.leaderships:
            await leadership.hand_over()
        if one.shards is not None:
            await one.shards.leave()

    async def heal(self) -> None:
        """End the faults: what was rolled out is everywhere."""
        self.away_until_s, self.leases.available = 0, True
        for one in [c for c in self.controllers if c.layout != self.layout]:
            self.controllers.remove(one)
            await self.end(one)
        for one in self.controllers:
            one.stopped_until_s = 0.0
        if not self.controllers:
            self.join()

    def holders(self) -> dict[int, str]:
        """Who leads which shard by its own word."""
        return {s: c.name for c in self.controllers for s, one in enumerate(c.leaderships) if one.token}


async def run_world(seed: int) -> ShardWorld:
    """Run one world to its end.

    Raises:
        BrokenInvariantError: An invariant did not hold.
    """
    world = ShardWorld(seed)
    for second in range(FAULTY_S):
        # The last lease before the calm has none, so that a clock that was set back is through with it.
        if second < FAULTY_S - LEASE_S and world.random.random() < 1 / LEASE_S:
            await world.fault()
        await world.second()
    await world.heal()
    led = set[int]()
    for _ in range(SETTLE_S):
        await world.second()
        led |= world.holders().keys()
    if len(led) < world.layout.count:
        raise world.broken(4, f"of {world.layout.count} shards only {sorted(led)} were led")
    await _settle(world)
    return world


async def _settle(world: ShardWorld) -> None:
    """Let shards move until they are spread evenly, and see that they stay."""
    for _ in range(LEASE_S * world.layout.count):
        await world.second()
    settled, written = world.holders(), world.written_count
    if len(settled) < world.layout.count:
        raise world.broken(5, f"of {world.layout.count} shards only {sorted(settled)} are led")
    loads = [sum(held == one.name for held in settled.values()) for one in world.controllers]
    if max(loads) - min(loads) > 1:
        raise world.broken(5, f"shares differ: {loads}")
    for _ in range(CALM_S):
        await world.second()
        if world.holders() != settled:
            raise world.broken(5, f"a shard moved in calm: {settled} became {world.holders()}")
    if world.written_count <= written:
        raise world.broken(4, "nobody could write in calm")


def main(arguments: list[str] | None = None) -> int:
    """Run a range of seeds; 1 and the sentence of the first failure when an invariant broke."""
    parser = argparse.ArgumentParser(prog="python -m controller.simulation.shards", description=__doc__)
    parser.add_argument("--seeds", default="0:500", help="A:B, B excluded")
    logging.disable(logging.WARNING)  # what is away is away on purpose
    first, _, last = parser.parse_args(arguments).seeds.partition(":")
    for seed in range(int(first), int(last)):
        try:
            asyncio.run(run_world(seed))
        except BrokenInvariantError as error:
            sys.stderr.write(f"seed {seed}: {error}\n")
            return 1
    sys.stdout.write(f"{int(last) - int(first)} seeds, 0 broken\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
