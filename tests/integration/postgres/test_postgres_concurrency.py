"""Writers, leaders and partitions that meet in a real PostgreSQL."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import psycopg
import pytest

from controller.adapters.postgres import Limits, PostgresLeaseStore, PostgresStore
from controller.core.resources import TrafficSample
from controller.core.types import WorkloadState
from controller.ports import LEADER_LEASE, Retention, StaleFenceError, UnavailableError

MONDAY = datetime(2026, 11, 9, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
WEEK = timedelta(weeks=1)


def raw(url: str) -> str:
    return url.replace("+psycopg", "")


@asynccontextmanager
async def opened(url: str, limits: Limits | None = None) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url, limits)
    yield store
    await store.close()


async def upsert(store: PostgresStore, samples: list[TrafficSample]) -> None:
    async with store.unit_of_work() as unit:
        await unit.traffic.upsert(samples)
        await unit.commit()


async def test_writers_that_need_one_new_partition_at_once_all_succeed(database_url: str) -> None:
    # Two stores, as two controller replicas would have.
    async with opened(database_url) as first, opened(database_url) as second:
        await asyncio.gather(
            *(
                upsert((first, second)[index % 2], [TrafficSample(f"w{index}", MONDAY, 60.0)])
                for index in range(16)
            )
        )
        async with first.unit_of_work() as unit:
            spans = [await unit.traffic.span(f"w{index}") for index in range(16)]

    assert spans == [(MONDAY, MONDAY)] * 16


async def test_a_partition_is_made_beside_open_readers_and_writers(database_url: str) -> None:
    async with opened(database_url, Limits(lock_s=1)) as store:
        await upsert(store, [TrafficSample("w", MONDAY, 60.0)])
        async with store.unit_of_work() as reader, store.unit_of_work() as writer:
            assert await reader.traffic.span("w") == (MONDAY, MONDAY)
            await writer.traffic.upsert([TrafficSample("v", MONDAY, 60.0)])

            await upsert(store, [TrafficSample("w", MONDAY + WEEK, 60.0)])

            assert await reader.traffic.span("w") == (MONDAY, MONDAY + WEEK)
            await writer.commit()


async def test_minutes_at_the_edges_of_a_partition_are_kept_apart_and_together(database_url: str) -> None:
    edges = [MONDAY - MINUTE, MONDAY, MONDAY + WEEK - MINUTE, MONDAY + WEEK]
    async with opened(database_url) as store:
        await upsert(store, [TrafficSample("w", at, 60.0) for at in edges])
        with psycopg.connect(raw(database_url)) as connection:
            rows = connection.execute(
                "SELECT tableoid::regclass::text FROM traffic_samples ORDER BY minute_at"
            )
            tables = [name for (name,) in rows]
        dropped = await store.maintain(MONDAY + timedelta(days=30), Retention(traffic=timedelta(days=30)))
        async with store.unit_of_work() as unit:
            span = await unit.traffic.span("w")

    assert tables == [
        "traffic_samples_20261102",
        "traffic_samples_20261109",
        "traffic_samples_20261109",
        "traffic_samples_20261116",
    ]
    assert dropped == 1
    assert span == (MONDAY, MONDAY + WEEK)


async def test_minutes_in_a_zone_that_changes_its_clock_reach_their_partition(database_url: str) -> None:
    """New York leaves summer time inside the week of 26 October 2026; minute 01:30 there comes twice."""
    zone = ZoneInfo("America/New_York")
    local = [
        datetime(2026, 10, 26, 0, 0, tzinfo=zone),
        datetime(2026, 11, 1, 1, 30, tzinfo=zone),
        datetime(2026, 11, 1, 1, 30, tzinfo=zone, fold=1),
        datetime(2026, 11, 1, 18, 59, tzinfo=zone),
    ]
    async with opened(database_url) as store:
        for at in local:
            await upsert(store, [TrafficSample("w", at, 60.0)])
        with psycopg.connect(raw(database_url)) as connection:
            rows = connection.execute(
                "SELECT minute_at, tableoid::regclass::text FROM traffic_samples ORDER BY minute_at"
            ).fetchall()

    assert [at for at, _ in rows] == [at.astimezone(UTC) for at in local]
    assert {table for _, table in rows} == {"traffic_samples_20261026"}


async def test_overlapping_batches_in_opposite_order_do_not_deadlock(database_url: str) -> None:
    batch = [TrafficSample("w", MONDAY + index * MINUTE, 60.0) for index in range(500)]
    async with opened(database_url) as store:
        await asyncio.gather(
            *(upsert(store, batch if index % 2 else batch[::-1]) for index in range(8)),
        )
        async with store.unit_of_work() as unit:
            rows = await unit.traffic.read("w", MONDAY, MONDAY + 500 * MINUTE)

    assert [qps for _, qps in rows] == [1.0] * 500


@pytest.mark.parametrize("value", ["'NaN'", "'Infinity'", "'-Infinity'", "-1"])
@pytest.mark.parametrize("column", ["demand_count", "served_count", "rejected_count", "coverage"])
async def test_the_table_itself_refuses_what_is_no_count(database_url: str, column: str, value: str) -> None:
    async with opened(database_url) as store:
        await upsert(store, [TrafficSample("w", MONDAY, 60.0)])

    with psycopg.connect(raw(database_url)) as connection, pytest.raises(psycopg.errors.CheckViolation):
        connection.execute(f"UPDATE traffic_samples SET {column} = {value}".encode())


async def test_a_bad_sample_at_the_end_of_a_large_batch_leaves_nothing(database_url: str) -> None:
    batch = [TrafficSample("w", MONDAY + index * MINUTE, 60.0) for index in range(5000)]
    async with opened(database_url) as store:
        with pytest.raises(ValueError, match=r"samples\[5000\]\.demand_count: nan"):
            await upsert(store, [*batch, TrafficSample("w", MONDAY - MINUTE, math.nan)])
        async with store.unit_of_work() as unit:
            assert await unit.traffic.span("w") is None


async def test_repeating_an_import_writes_no_row(database_url: str) -> None:
    batch = [TrafficSample("w", MONDAY + index * MINUTE, 60.0) for index in range(100)]

    def row_versions() -> list[tuple[str]]:
        with psycopg.connect(raw(database_url)) as connection:
            return connection.execute("SELECT xmin::text FROM traffic_samples ORDER BY minute_at").fetchall()

    async with opened(database_url) as store:
        await upsert(store, batch)
        before = row_versions()
        await upsert(store, batch)

    assert row_versions() == before


async def test_the_fence_holds_a_new_leader_back_and_lets_the_old_one_renew(database_url: str) -> None:
    tiny, long = timedelta(milliseconds=1), timedelta(minutes=5)
    leases = PostgresLeaseStore(database_url, Limits(connection_count=2, lock_s=0.05))
    async with opened(database_url) as store:
        old = await leases.acquire(LEADER_LEASE, "old", tiny)
        assert old is not None
        async with store.unit_of_work() as unit:
            await unit.require_leader(old.token)
            renewed = await leases.acquire(LEADER_LEASE, "old", tiny)
            while await leases.current(LEADER_LEASE) is not None:
                pass  # until it has expired, by the database's clock
            with pytest.raises(UnavailableError, match="lock timeout"):
                await leases.acquire(LEADER_LEASE, "new", long)
            await unit.states.save({"w": WorkloadState(desired_replicas=16)})
            await unit.commit()
        new = await leases.acquire(LEADER_LEASE, "new", long)

        assert renewed is not None
        assert renewed.token == old.token
        assert new is not None
        assert new.token > old.token
        async with store.unit_of_work() as unit:
            with pytest.raises(StaleFenceError):
                await unit.require_leader(old.token)
            assert await unit.states.load() == {"w": WorkloadState(desired_replicas=16)}
    await leases.close()


async def test_a_leader_that_stops_inside_its_transaction_keeps_the_next_one_out_for_a_bounded_time(
    database_url: str,
) -> None:
    leases = PostgresLeaseStore(database_url)
    async with opened(database_url, Limits(fence_s=2.0)) as store:
        old = await leases.acquire(LEADER_LEASE, "old", timedelta(milliseconds=1))
        assert old is not None
        async with store.unit_of_work() as unit:
            await unit.require_leader(old.token)
            await unit.states.save({"w": WorkloadState(desired_replicas=16)})
            new = None
            while new is None:  # waits for the transaction that goes no further
                new = await leases.acquire(LEADER_LEASE, "new", timedelta(minutes=5))
            with pytest.raises(UnavailableError):
                await unit.commit()

        assert new.token > old.token
        async with store.unit_of_work() as unit:
            assert await unit.states.load() == {}
    await leases.close()


async def test_a_follower_that_asks_neither_waits_for_the_leader_nor_disturbs_it(database_url: str) -> None:
    long = timedelta(minutes=5)
    leases = PostgresLeaseStore(database_url, Limits(connection_count=2, lock_s=0.05))
    async with opened(database_url) as store:
        lease = await leases.acquire(LEADER_LEASE, "leader", long)
        assert lease is not None
        async with store.unit_of_work() as unit:
            await unit.require_leader(lease.token)
            assert await leases.acquire(LEADER_LEASE, "follower", long) is None
            await unit.require_leader(lease.token)
            await unit.commit()
    await leases.close()


async def test_100_000_minutes_are_ingested_whole_in_one_batch(database_url: str) -> None:
    batch = [
        TrafficSample(f"w{index % 10}", MONDAY + (index // 10) * MINUTE, float(index), float(index), 0.0)
        for index in range(100_000)
    ]
    async with opened(database_url) as store:
        await upsert(store, batch)
        async with store.unit_of_work() as unit:
            rows = await unit.traffic.read("w3", MONDAY, MONDAY + 60 * MINUTE, step=60 * MINUTE)
            span = await unit.traffic.span("w9")

    assert span == (MONDAY, MONDAY + 9_999 * MINUTE)
    assert [at for at, _ in rows] == [MONDAY]
    assert rows[0][1] == pytest.approx(298 / 60)  # minute m of w3 holds 10 m + 3
