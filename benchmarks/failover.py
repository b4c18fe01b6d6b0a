"""How long a takeover takes after kill -9 of the leader, and whether anybody acts wrongly meanwhile.

Promises: three real controllers on one PostgreSQL, Valkey and fleet; before each kill every workload's minimum is
raised by one, so that an order is due about then; a takeover ends when the next leader has claimed what the killed one
led, which is the first thing it does before it orders. Wrong is: a replica too many or one ended, an order that is
not in the ledger under its token, or an older leader's order applied after a newer one's. Exit status 1 when a
takeover took more than twice the lease or anything was wrong. Called by people: `python -m benchmarks failover`.
"""

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import psycopg
from forecrest.v1 import workload_pb2, workload_service_pb2

from benchmarks.drill import Cluster, Member, Servers
from benchmarks.fleet import Fleet
from controller.adapters.postgres import PostgresLeaseStore
from controller.cli.common import run
from controller.core.resources import Lease
from controller.core.types import CapacityProfile, Workload
from controller.loop.shards import shard_of
from controller.ports import LEADER_LEASE, SHARD_LEASES

NAME = "shop"
MEMBERS = 3
PERIOD_S = 0.5
LOOK_AGAIN_S = 0.02


async def _measure(folder: Path, kills: int, lease_s: float, seed: int, shards: int) -> dict[str, Any]:
    random, takeovers_s, spreads_s = Random(seed), list[float](), list[float]()
    names = [NAME] if shards == 1 else [f"{NAME}-{number}" for number in range(2 * shards)]
    async with (
        Servers(folder / "servers") as servers,
        Fleet() as fleet,
        Cluster(
            servers,
            folder / "members",
            fleet_url=fleet.url,
            lease_s=lease_s,
            period_s=PERIOD_S,
            shards=shards,
        ) as cluster,
    ):
        leases = _Leases(PostgresLeaseStore(servers.database_url), names, shards)
        await cluster.start_many(MEMBERS)
        workloads = {}
        fleet.qps = 40.0
        async with cluster.client() as client:
            for name in names:
                workload = workload_pb2.Workload(model_name="m", min_replicas=1, max_replicas=kills + 2)
                workload.profiles.add(engine="e", gpu_type="g", qps_max=100.0)
                request = workload_service_pb2.CreateWorkloadRequest(workload=workload, workload_id=name)
                workloads[name] = await client.workloads.CreateWorkload(request)
        await fleet.until(lambda: all(fleet.warm(name) == 1 for name in names))
        for number in range(kills):
            victim, lost = await leases.victim(cluster, names[number % len(names)])
            async with cluster.client(but=victim) as client:
                for name, workload in workloads.items():
                    workload.min_replicas += 1
                    update = workload_service_pb2.UpdateWorkloadRequest(workload=workload)
                    workloads[name] = await client.workloads.UpdateWorkload(update)
            # Some kills come before the order, some after, some in the middle of it.
            await asyncio.sleep(random.uniform(0, 1.5 * PERIOD_S))
            killed_s = time.monotonic()
            await cluster.kill(victim)
            await fleet.until(lambda lost=lost: all(fleet.newest(n) > t for n, t in lost.items()))  # type: ignore[misc]
            takeovers_s.append(time.monotonic() - killed_s)
            print(f"kill {number + 1}: {takeovers_s[-1]:.2f} s", file=sys.stderr, flush=True)
            await cluster.start()
            started_s = time.monotonic()
            if shards > 1:
                await until_spread(leases.store, cluster.members.keys(), shards)
                spreads_s.append(time.monotonic() - started_s)
            wanted = number + 2
            await fleet.until(lambda wanted=wanted: all(fleet.desired(n) == wanted for n in names))  # type: ignore[misc]
        await leases.close()
        total = (kills + 1) * len(names)
        found = _report(lease_s, takeovers_s, fleet, set(await decided(servers)), total)
        return found | ({"shards": shards, "spread_s": _quantiles(spreads_s)} if shards > 1 else {})


class _Leases:
    """Who leads which workload, as the leases say."""

    def __init__(self, store: PostgresLeaseStore, names: Sequence[str], shards: int) -> None:
        self.store = store
        profiles = (CapacityProfile("e", "g", 100.0),)
        self._lease_of = {
            name: LEADER_LEASE
            if shards == 1
            else f"{SHARD_LEASES}{shards}/{shard_of(Workload(name, 'm', profiles, max_replicas=9), (), shards)}"
            for name in names
        }

    async def victim(self, cluster: Cluster, name: str) -> tuple[Member, dict[str, int]]:
        """Wait until a member leads a workload; return it, and the tokens of all that it leads."""
        while True:
            live = {lease.name: lease for lease in await self.store.live()}
            lease = live.get(self._lease_of[name])
            member = None if lease is None else cluster.members.get(_member_of(lease))
            if member is not None:
                mine = {n: live[at] for n, at in self._lease_of.items() if at in live}
                return member, {n: at.token for n, at in mine.items() if _member_of(at) == member.name}
            await asyncio.sleep(LOOK_AGAIN_S)

    async def close(self) -> None:
        """Release connections."""
        await self.store.close()


async def until_spread(store: PostgresLeaseStore, members: Collection[str], shards: int) -> dict[int, str]:
    """Wait until these members hold every shard, in shares that differ by one at most; return who holds which."""
    prefix = f"{SHARD_LEASES}{shards}/"
    while True:
        live = [lease for lease in await store.live() if lease.name.startswith(prefix)]
        found = {int(lease.name.removeprefix(prefix)): _member_of(lease) for lease in live}
        held = Counter(dict.fromkeys(members, 0))
        held.update(found.values())
        if (
            held.keys() == set(members)
            and len(found) == shards
            and max(held.values()) - min(held.values()) <= 1
        ):
            return found
        await asyncio.sleep(LOOK_AGAIN_S)


def _member_of(lease: Lease) -> str:
    return lease.holder.partition(":")[0]


def _quantiles(took_s: list[float]) -> dict[str, float]:
    return {
        "min": round(min(took_s), 2),
        "p50": round(float(np.quantile(took_s, 0.5)), 2),
        "p95": round(float(np.quantile(took_s, 0.95)), 2),
        "max": round(max(took_s), 2),
    }


async def decided(servers: Servers) -> list[tuple[str, int, int]]:
    """Return (workload, fencing token, desired replicas) of every stored decision, oldest first of each workload."""
    address = servers.database_url.replace("+psycopg", "")
    async with await psycopg.AsyncConnection.connect(address) as connection:
        rows = await connection.execute(
            "SELECT workload, fence, desired_replicas FROM decisions ORDER BY workload, at, id"
        )
        return [(name, fence, desired) for name, fence, desired in await rows.fetchall()]


def _report(
    lease_s: float, takeovers_s: list[float], fleet: Fleet, ledger: set[tuple[str, int, int]], wanted: int
) -> dict[str, Any]:
    applied = [order for order in fleet.orders if order.applied]
    scaled = [order for order in applied if order.kind == "scale"]
    wrong = {
        "replicas_too_many": fleet.started_count - wanted,
        "replicas_ended": fleet.ended_count,
        "orders_not_in_ledger": sum((o.workload, o.fence, o.replicas) not in ledger for o in scaled),
        "older_after_newer": sum(
            b.fence < a.fence
            for name in {order.workload for order in applied} - {""}  # a claim before there were workloads
            for a, b in itertools.pairwise(order for order in applied if order.workload == name)
        ),
    }
    return {
        "kills": len(takeovers_s),
        "lease_s": lease_s,
        "takeover_s": _quantiles(takeovers_s),
        "takeover_limit_s": 2 * lease_s,
        "wrong_actuations": sum(wrong.values()),
        "wrong": wrong,
        "orders_applied": len(scaled),
        "orders_refused": sum(not order.applied for order in fleet.orders),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill leaders, print what was measured; 1 when it is not what is promised."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks failover", description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--lease-s", type=float, default=3.0, help="FORECREST_LEASE_DURATION_S, 1 to 300")
    parser.add_argument("--shards", type=int, default=1, help="FORECREST_SHARDS; two workloads for each")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the kills")
    parser.add_argument("--json", action="store_true", help="end with one JSON object and no sentence")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="forecrest-failover-") as folder:
        # Ctrl-C and SIGTERM end the controllers too.
        found = run(_measure(Path(folder), given.kills, given.lease_s, given.seed, given.shards))
    holds = found["takeover_s"]["max"] <= found["takeover_limit_s"] and found["wrong_actuations"] == 0
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        took = ", ".join(f"{name} {value} s" for name, value in found["takeover_s"].items())
        print(
            f"{found['kills']} kills, lease {given.lease_s:g} s: takeover {took} (must: {2 * given.lease_s:g} s);"
        )
        if given.shards > 1:
            spread = ", ".join(f"{name} {value} s" for name, value in found["spread_s"].items())
            print(f"{given.shards} shards are spread evenly again after {spread};")
        print(
            f"{found['wrong_actuations']} wrong actuations (must: 0) in {found['orders_applied']} orders: {found['wrong']}"
        )
    return 0 if holds else 1
