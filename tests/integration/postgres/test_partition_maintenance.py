"""Partitions are there before anybody writes, and go without keeping anybody waiting."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from sqlalchemy.engine import make_url

from controller.adapters.postgres import Limits, PostgresStore
from controller.core.resources import TrafficSample
from controller.ports import Retention

NOW = datetime(2026, 11, 11, 12, tzinfo=UTC)
WEEK = timedelta(weeks=1)
KEEP = Retention(traffic=10 * WEEK)


@pytest.fixture
async def reader(database_url: str) -> AsyncIterator[psycopg.AsyncConnection[tuple[object, ...]]]:
    address = make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
    async with await psycopg.AsyncConnection.connect(address) as connection:
        yield connection


async def partitions(reader: psycopg.AsyncConnection[tuple[object, ...]], table: str) -> list[object]:
    rows = await reader.execute(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
        "WHERE i.inhparent = to_regclass(%s) ORDER BY 1",
        [table],
    )
    names = [row[0] for row in await rows.fetchall()]
    await reader.commit()
    return names


async def write(store: PostgresStore, at: datetime) -> None:
    async with store.unit_of_work() as unit:
        await unit.traffic.upsert([TrafficSample("w", at, 60.0)])
        await unit.commit()


async def test_partitions_are_made_ahead_of_their_time(
    postgres_store: PostgresStore, reader: psycopg.AsyncConnection[tuple[object, ...]]
) -> None:
    for _ in range(2):  # repeating changes nothing
        await postgres_store.maintain(NOW, KEEP)

    assert await partitions(reader, "traffic_samples") == [
        "traffic_samples_20261109",
        "traffic_samples_20261116",
        "traffic_samples_20261123",
    ]
    assert await partitions(reader, "decisions") == [f"decisions_202611{day}" for day in (11, 12, 13, 14)]


async def test_only_partitions_wholly_past_their_age_go(
    postgres_store: PostgresStore, reader: psycopg.AsyncConnection[tuple[object, ...]]
) -> None:
    for weeks in (9, 10, 11, 12):
        await write(postgres_store, NOW - weeks * WEEK)

    assert await postgres_store.maintain(NOW, KEEP) == 2
    # The eleventh week back ended less than ten weeks ago and holds what must be kept.
    assert (await partitions(reader, "traffic_samples"))[:2] == [
        "traffic_samples_20260831",
        "traffic_samples_20260907",
    ]


async def test_a_drop_that_would_wait_gives_way_and_happens_later(
    database_url: str, reader: psycopg.AsyncConnection[tuple[object, ...]]
) -> None:
    """A reader holds the table in an open transaction, as a long report does.

    The store's own lock timeout is far longer than this test may take: only a drop that waits briefly lets the others
    through.
    """
    store = PostgresStore(database_url, Limits(connection_count=2, lock_s=600, statement_s=600))
    await write(store, NOW - 20 * WEEK)
    await reader.execute("SELECT count(*) FROM traffic_samples")

    maintaining = asyncio.create_task(store.maintain(NOW, KEEP))
    async with asyncio.timeout(120):
        for _ in range(20):
            await write(store, NOW)
        assert await maintaining == 0
    await reader.commit()

    assert await store.maintain(NOW, KEEP) == 1
    await store.close()
