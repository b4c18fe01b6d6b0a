"""How long a takeover takes after kill -9 of the leader, and whether anybody acts wrongly meanwhile.

Promises: three real controllers on one PostgreSQL, Valkey and fleet; before each kill the workload's minimum is
raised by one, so that an order is due about then; a takeover ends when the next leader has claimed the fleet,
which is the first thing it does before it orders. Wrong is: a replica too many or one ended, an order that is not
in the ledger under its token, or an older leader's order applied after a newer one's. Exit status 1 when a
takeover took more than twice the lease or anything was wrong. Called by people: `python -m benchmarks failover`.
"""

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import psycopg
from forecrest.v1 import workload_pb2, workload_service_pb2

from benchmarks.drill import Cluster, Servers
from benchmarks.fleet import Fleet
from controller.cli.common import run

NAME = "shop"
MEMBERS = 3
PERIOD_S = 0.5


async def _measure(folder: Path, kills: int, lease_s: float, seed: int) -> dict[str, Any]:
    random, takeovers_s = Random(seed), list[float]()
    async with (
        Servers(folder / "servers") as servers,
        Fleet() as fleet,
        Cluster(
            servers, folder / "members", fleet_url=fleet.url, lease_s=lease_s, period_s=PERIOD_S
        ) as cluster,
    ):
        await cluster.start_many(MEMBERS)
        workload = workload_pb2.Workload(model_name="m", min_replicas=1, max_replicas=kills + 2)
        workload.profiles.add(engine="e", gpu_type="g", qps_max=100.0)
        fleet.qps = 40.0
        async with cluster.client() as client:
            request = workload_service_pb2.CreateWorkloadRequest(workload=workload, workload_id=NAME)
            workload = await client.workloads.CreateWorkload(request)
        await fleet.until(lambda: fleet.warm(NAME) == 1)
        for number in range(kills):
            leader, token = await cluster.leader()
            workload.min_replicas += 1
            async with cluster.client(but=leader) as client:
                update = workload_service_pb2.UpdateWorkloadRequest(workload=workload)
                workload = await client.workloads.UpdateWorkload(update)
            # Some kills come before the order, some after, some in the middle of it.
            await asyncio.sleep(random.uniform(0, 1.5 * PERIOD_S))
            killed_s = time.monotonic()
            await cluster.kill(leader)
            await fleet.until(lambda token=token: fleet.fence > token)  # type: ignore[misc]
            takeovers_s.append(time.monotonic() - killed_s)
            print(f"kill {number + 1}: {takeovers_s[-1]:.2f} s", file=sys.stderr, flush=True)
            await cluster.start()
            await fleet.until(lambda wanted=workload.min_replicas: fleet.desired(NAME) == wanted)  # type: ignore[misc]
        return _report(lease_s, takeovers_s, fleet, await _ledger(servers), workload.min_replicas)


async def _ledger(servers: Servers) -> set[tuple[int, int]]:
    address = servers.database_url.replace("+psycopg", "")
    async with await psycopg.AsyncConnection.connect(address) as connection:
        rows = await connection.execute("SELECT fence, desired_replicas FROM decisions")
        return {(fence, desired) for fence, desired in await rows.fetchall()}


def _report(
    lease_s: float, takeovers_s: list[float], fleet: Fleet, ledger: set[tuple[int, int]], wanted: int
) -> dict[str, Any]:
    applied = [order for order in fleet.orders if order.applied]
    scaled = [order for order in applied if order.kind == "scale"]
    wrong = {
        "replicas_too_many": fleet.started_count - wanted,
        "replicas_ended": fleet.ended_count,
        "orders_not_in_ledger": sum((order.fence, order.replicas) not in ledger for order in scaled),
        "older_after_newer": sum(b.fence < a.fence for a, b in itertools.pairwise(applied)),
    }
    return {
        "kills": len(takeovers_s),
        "lease_s": lease_s,
        "takeover_s": {
            "min": round(min(takeovers_s), 2),
            "p50": round(float(np.quantile(takeovers_s, 0.5)), 2),
            "p95": round(float(np.quantile(takeovers_s, 0.95)), 2),
            "max": round(max(takeovers_s), 2),
        },
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
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the kills")
    parser.add_argument("--json", action="store_true", help="end with one JSON object and no sentence")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="forecrest-failover-") as folder:
        # Ctrl-C and SIGTERM end the controllers too.
        found = run(_measure(Path(folder), given.kills, given.lease_s, given.seed))
    holds = found["takeover_s"]["max"] <= found["takeover_limit_s"] and found["wrong_actuations"] == 0
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        took = ", ".join(f"{name} {value} s" for name, value in found["takeover_s"].items())
        print(
            f"{found['kills']} kills, lease {given.lease_s:g} s: takeover {took} (must: {2 * given.lease_s:g} s);"
        )
        print(f"{found['wrong_actuations']} wrong actuations (must: 0) in {found['orders_applied']} orders.")
    return 0 if holds else 1
