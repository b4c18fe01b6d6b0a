"""Three controller processes that share four shards, harmed in the middle of prewarms."""

import itertools
import signal
from datetime import timedelta
from pathlib import Path

from forecrest.v1 import event_pb2, event_service_pb2, workload_pb2, workload_service_pb2

from benchmarks.drill import Cluster, Servers
from benchmarks.failover import decided, until_spread
from benchmarks.fleet import Fleet
from controller.adapters.clock import SystemClock
from controller.adapters.postgres import PostgresLeaseStore
from controller.client import Client
from controller.core.types import CapacityProfile, Workload
from controller.loop.shards import shard_of

NAMES = tuple(f"shop-{number}" for number in range(8))
SHARDS, LEASE_S = 4, 6.0
SHARD = {
    name: shard_of(Workload(name, "m", (CapacityProfile("e", "g", 100.0),), max_replicas=9), (), SHARDS)
    for name in NAMES
}
CLOCK = SystemClock()


async def register(client: Client) -> None:
    for name in NAMES:
        workload = workload_pb2.Workload(model_name="m", min_replicas=1, max_replicas=9)
        workload.profiles.add(engine="e", gpu_type="g", qps_max=100.0)
        await client.workloads.CreateWorkload(
            workload_service_pb2.CreateWorkloadRequest(workload=workload, workload_id=name)
        )


async def register_event(client: Client) -> None:
    """An event that needs more replicas of every workload, to be ordered at once."""
    event = event_pb2.Event(
        workloads=[f"workloads/{name}" for name in NAMES], time_zone="UTC", expected_peak_qps=250.0
    )
    start_at = CLOCK.now() + timedelta(seconds=180)
    event.start_time.FromDatetime(start_at)
    event.end_time.FromDatetime(start_at + timedelta(minutes=10))
    event.margin.FromSeconds(10)
    event.lead_override.FromSeconds(175)
    await client.events.CreateEvent(event_service_pb2.CreateEventRequest(event=event, event_id="midnight"))


async def test_shards_of_killed_and_stopped_controllers_move_and_nobody_acts_twice(tmp_path: Path) -> None:
    async with (
        Servers(tmp_path / "servers") as servers,
        Fleet() as fleet,
        Cluster(
            servers,
            tmp_path / "members",
            fleet_url=fleet.url,
            lease_s=LEASE_S,
            shards=SHARDS,
        ) as cluster,
    ):
        leases = PostgresLeaseStore(servers.database_url)
        await cluster.start_many(3)
        fleet.qps = 40.0
        async with cluster.client() as client:
            await register(client)
        held = await until_spread(leases, cluster.members.keys(), SHARDS)
        await fleet.until(lambda: all(fleet.warm(name) == 1 for name in NAMES))
        fleet.may_load.clear()
        async with cluster.client() as client:
            await register_event(client)
        await fleet.until(lambda: any(fleet.desired(name) > 1 for name in NAMES))

        killed, stopped = list(dict.fromkeys(held.values()))[:2]
        before = dict(fleet.fences)
        sleeper = cluster.members[stopped]
        sleeper.send(signal.SIGSTOP)
        await cluster.kill(cluster.members[killed])
        lost = [name for name in NAMES if held[SHARD[name]] in {killed, stopped}]
        await fleet.until(lambda: all(fleet.newest(name) > before[name] for name in lost))
        await fleet.until(lambda: all(fleet.desired(name) > 1 for name in NAMES))
        sleeper.send(signal.SIGCONT)
        await cluster.start()
        await until_spread(leases, cluster.members.keys(), SHARDS)
        fleet.may_load.set()
        await fleet.until(lambda: all(fleet.warm(name) == fleet.desired(name) for name in NAMES))
        await leases.close()

        assert lost
        assert (sum(fleet.desired(name) for name in NAMES), 0) == (fleet.started_count, fleet.ended_count)
        for name in NAMES:
            fences = [order.fence for order in fleet.orders if order.applied and order.workload == name]
            assert sorted(fences) == fences
        rows = await decided(servers)
        for _, mine in itertools.groupby(rows, key=lambda row: row[0]):
            tokens = [fence for _, fence, _ in mine]
            assert sorted(tokens) == tokens
        scaled = {(o.workload, o.fence, o.replicas) for o in fleet.orders if o.kind == "scale" and o.applied}
        assert scaled <= set(rows)
