"""Several controller processes on one PostgreSQL, one Valkey and one fleet, harmed in the middle of a prewarm."""

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from forecrest.v1 import event_pb2, event_service_pb2, workload_pb2, workload_service_pb2
from redis.asyncio import Redis

from benchmarks.drill import Cluster, Member, Servers
from benchmarks.fleet import Fleet, Order
from controller.adapters.clock import SystemClock
from controller.adapters.embedded import postgres, valkey
from controller.cli.common import EXIT_TERMINATED
from controller.client import Client

NAME = "shop"
LEASE_S = 2.0
CLOCK = SystemClock()


@dataclass
class Drill:
    """What one test has at hand."""

    servers: Servers
    fleet: Fleet
    cluster: Cluster

    async def serve_traffic(self) -> None:
        """Register a workload and see its first replica serve."""
        workload = workload_pb2.Workload(model_name="m", min_replicas=1, max_replicas=9)
        workload.profiles.add(engine="e", gpu_type="g", qps_max=100.0)
        self.fleet.qps = 40.0
        async with self.cluster.client() as client:
            await client.workloads.CreateWorkload(
                workload_service_pb2.CreateWorkloadRequest(workload=workload, workload_id=NAME)
            )
        await self.fleet.until(lambda: self.fleet.warm(NAME) == 1)

    async def register_event(self, *, but: Member | None = None) -> event_pb2.Event:
        """An event that needs more replicas, to be ordered at once."""
        event = event_pb2.Event(workloads=[f"workloads/{NAME}"], time_zone="UTC", expected_peak_qps=250.0)
        start_at = CLOCK.now() + timedelta(seconds=180)
        event.start_time.FromDatetime(start_at)
        event.end_time.FromDatetime(start_at + timedelta(minutes=10))
        event.margin.FromSeconds(10)
        event.lead_override.FromSeconds(175)
        async with self.cluster.client(but=but) as client:
            return await client.events.CreateEvent(
                event_service_pb2.CreateEventRequest(event=event, event_id="midnight")
            )

    async def ordered(self) -> None:
        await self.fleet.until(lambda: self.fleet.desired(NAME) > 1)

    async def replicas_met_in_time(self, made: event_pb2.Event, client: Client) -> int:
        """Wait for the contract of the event, which is as it was registered; return its replicas."""
        met = None
        async for update in client.watch_event("events/midnight"):
            met = next((p.contract for p in update.prewarms if p.contract.HasField("met_time")), None)
            if met is not None:
                break
        again = await client.events.GetEvent(event_service_pb2.GetEventRequest(name="events/midnight"))

        assert made.etag == again.etag
        assert met is not None
        assert met.replicas == met.verified_count
        assert met.met_time.ToDatetime() <= met.deadline_time.ToDatetime()
        return met.replicas

    async def assert_sound(self, replicas: int) -> None:
        """Nobody acted twice, nobody stale acted, and every order stands in the ledger under its token."""
        fences = [order.fence for order in self.fleet.orders if order.applied]
        rows = await self.ledger()

        assert (replicas, 0) == (self.fleet.started_count, self.fleet.ended_count)
        assert sorted(fences) == fences
        assert sorted(fence for fence, _ in rows) == [fence for fence, _ in rows]
        assert {(order.fence, order.replicas) for order in self.scaled()} <= set(rows)

    def scaled(self) -> list[Order]:
        return [order for order in self.fleet.orders if order.kind == "scale" and order.applied]

    async def connect(self) -> psycopg.AsyncConnection:
        return await psycopg.AsyncConnection.connect(self.servers.database_url.replace("+psycopg", ""))

    async def ledger(self) -> list[tuple[int, int]]:
        """(fencing token, desired replicas) of every decision, oldest first."""
        async with await self.connect() as connection:
            rows = await connection.execute("SELECT fence, desired_replicas FROM decisions ORDER BY at, id")
            return [(fence, desired) for fence, desired in await rows.fetchall()]


@asynccontextmanager
async def opened(folder: Path, count: int) -> AsyncIterator[Drill]:
    async with (
        Servers(folder / "servers") as servers,
        Fleet() as fleet,
        Cluster(servers, folder / "members", fleet_url=fleet.url, lease_s=LEASE_S) as cluster,
    ):
        await cluster.start_many(count)
        yield Drill(servers, fleet, cluster)


@pytest.fixture
def drill(tmp_path: Path) -> Callable[[int], AbstractAsyncContextManager[Drill]]:
    return lambda count: opened(tmp_path, count)


Open = Callable[[int], AbstractAsyncContextManager[Drill]]


async def until_row(connection: psycopg.AsyncConnection, query: LiteralString) -> None:
    """Wait until a query has a row."""
    while await (await connection.execute(query)).fetchone() is None:
        await connection.rollback()  # what others do is seen by a new transaction only


async def until_logged(member: Member, *words: str) -> None:
    """Wait until a member's log has one of the words."""
    while not any(word in member.log_path.read_text() for word in words):
        await CLOCK.sleep(0.05)


@pytest.mark.parametrize("took_effect", [False, True], ids=["order-on-its-way", "answer-lost"])
async def test_kill_9_of_the_leader_while_it_orders_neither_loses_nor_doubles_the_order(
    drill: Open, took_effect: bool
) -> None:
    async with drill(2) as d:
        await d.serve_traffic()
        leader, token = await d.cluster.leader()
        held = d.fleet.hold_next(after=took_effect)
        made = await d.register_event()
        await held.arrived.wait()
        await d.cluster.kill(leader)
        await d.fleet.until(lambda: d.fleet.fence > token)
        await d.ordered()

        held.released.set()
        async with d.cluster.client() as client:
            replicas = await d.replicas_met_in_time(made, client)

        late = Order("scale", NAME, replicas, token, applied=took_effect)
        await d.fleet.until(lambda: late in d.fleet.orders)
        by = token if took_effect else d.fleet.fence
        assert [(1, token), (replicas, by)] == [(order.replicas, order.fence) for order in d.scaled()]
        await d.assert_sound(replicas)


async def test_a_leader_that_was_stopped_does_not_act_when_it_wakes(drill: Open) -> None:
    async with drill(3) as d:
        await d.serve_traffic()
        stopped, token = await d.cluster.leader()
        held = d.fleet.hold_next(after=False)
        made = await d.register_event()
        await held.arrived.wait()
        stopped.send(signal.SIGSTOP)
        await d.cluster.leader(newer_than=token)
        await d.ordered()

        held.released.set()
        stopped.send(signal.SIGCONT)
        await until_logged(stopped, "leadership is gone", "follows")
        async with d.cluster.client(but=stopped) as client:
            replicas = await d.replicas_met_in_time(made, client)

        stale = Order("scale", NAME, replicas, token, applied=False)
        await d.fleet.until(lambda: stale in d.fleet.orders)
        await d.assert_sound(replicas)
        # It is as good a candidate as ever.
        for _ in range(3):
            leader, token = await d.cluster.leader(newer_than=token)
            if leader is stopped:
                break
            await d.cluster.kill(leader)
        await d.fleet.until(lambda: d.fleet.fence >= token)
        assert leader is stopped
        await d.assert_sound(replicas)


async def test_a_leader_that_was_stopped_inside_its_transaction_does_not_keep_the_next_one_out(
    drill: Open,
) -> None:
    async with drill(2) as d:
        await d.serve_traffic()
        stopped, token = await d.cluster.leader()
        async with await d.connect() as gate, await d.connect() as watch:
            # Hold what a cycle writes after it has taken the fence, so that it stops right there.
            await gate.execute("SELECT FROM workload_states FOR UPDATE")
            await until_row(
                watch,
                "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%workload_states%'",
            )
            stopped.send(signal.SIGSTOP)
        made = await d.register_event(but=stopped)
        await d.cluster.leader(newer_than=token)
        async with d.cluster.client(but=stopped) as client:
            replicas = await d.replicas_met_in_time(made, client)

        stopped.send(signal.SIGCONT)
        await until_logged(stopped, "leadership is gone", "follows")
        await d.assert_sound(replicas)


async def test_an_immediate_restart_of_postgresql_delays_a_prewarm_and_loses_nothing(drill: Open) -> None:
    async with drill(2) as d:
        await d.serve_traffic()
        leader, token = await d.cluster.leader()
        made = await d.register_event()
        # The order may have been decided, given or neither: what the store then says must come of it.
        await d.servers.stop(postgres.NAME, signal.SIGQUIT)
        await until_logged(leader, "could not be renewed")
        await d.servers.start(postgres.NAME)

        async with d.cluster.client() as client:
            replicas = await d.replicas_met_in_time(made, client)
        await d.assert_sound(replicas)
        assert (await d.cluster.leader())[1] >= token


async def test_without_redis_a_prewarm_goes_on_and_the_next_leader_sees_demand(drill: Open) -> None:
    async with drill(2) as d:
        await d.serve_traffic()
        d.fleet.may_load.clear()
        leader, token = await d.cluster.leader()
        made = await d.register_event()
        await d.ordered()
        async with Redis.from_url(d.servers.redis_url) as redis:
            await redis.flushall()
        await d.servers.stop(valkey.NAME, signal.SIGKILL)
        await d.cluster.kill(leader)
        await d.fleet.until(lambda: d.fleet.fence > token)

        d.fleet.may_load.set()
        async with d.cluster.client() as client:
            replicas = await d.replicas_met_in_time(made, client)
            async for update in client.watch_decisions(f"workloads/{NAME}"):
                if update.decision.HasField("demand_qps"):
                    break

        assert 1 == len([order for order in d.scaled() if order.replicas == replicas])
        await d.assert_sound(replicas)


async def test_serve_hands_leadership_over_when_it_is_told_to_end(tmp_path: Path) -> None:
    async with (
        Servers(tmp_path / "servers") as servers,
        Cluster(servers, tmp_path / "members", fleet_url=None, lease_s=15.0) as cluster,
    ):
        await cluster.start_many(2)
        leader, token = await cluster.leader()
        leader.send(signal.SIGTERM)
        # It gave its lease up: the other need not wait for its end, only for its own next turn.
        following, newer = await cluster.leader(newer_than=token)
        code = await leader.process.wait()

        assert EXIT_TERMINATED == code
        assert following is not leader
        assert newer > token
