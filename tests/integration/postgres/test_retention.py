"""Maintenance meets writers, other maintenance and long records, and keeps nobody waiting."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, LiteralString

import psycopg
import pytest

from controller.adapters.postgres import Limits, PostgresStore
from controller.adapters.postgres.store import _OLD_WARMUPS  # its work is what a test counts
from controller.core.types import WorkloadState
from controller.ports import Retention

NOW = datetime(2100, 1, 1, tzinfo=UTC)
GONE_COUNT = 12_000
# Far longer than a test may take: who waits for a lock does not end.
PATIENT = Limits(connection_count=2, lock_s=600, statement_s=600)


@pytest.fixture
def reader(database_url: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    with psycopg.connect(database_url.replace("+psycopg", "")) as connection:
        yield connection


def count(reader: psycopg.Connection[tuple[Any, ...]], query: LiteralString) -> int:
    row = reader.execute(query).fetchone()
    reader.rollback()
    assert row is not None
    return int(row[0])


def write_gone(reader: psycopg.Connection[tuple[Any, ...]]) -> None:
    reader.execute(
        "INSERT INTO workload_states (workload, body, written_at) "
        "SELECT 'gone-' || i, '{}', '2099-01-01' FROM generate_series(1, %s) AS i",
        [GONE_COUNT],
    )
    reader.commit()


async def test_two_controllers_at_once_drop_everything_once(
    database_url: str, reader: psycopg.Connection[tuple[Any, ...]]
) -> None:
    write_gone(reader)
    stores = [PostgresStore(database_url, PATIENT) for _ in range(2)]

    dropped = await asyncio.gather(*(store.maintain(NOW, Retention()) for store in stores))

    assert GONE_COUNT == sum(dropped)
    assert 0 == count(reader, "SELECT count(*) FROM workload_states")
    for store in stores:
        await store.close()


async def test_a_row_that_somebody_is_writing_is_left_and_all_others_go(
    database_url: str, reader: psycopg.Connection[tuple[Any, ...]]
) -> None:
    """Its writer may be a leader for whom the workload was declared again; it waits for nothing either."""
    write_gone(reader)
    store = PostgresStore(database_url, PATIENT)
    async with store.unit_of_work() as unit:
        await unit.states.save({"gone-7": WorkloadState()})

        async with asyncio.timeout(60):
            assert GONE_COUNT - 1 == await store.maintain(NOW, Retention())
        await unit.commit()

    assert 1 == count(reader, "SELECT count(*) FROM workload_states WHERE workload = 'gone-7'")
    await store.close()


async def test_runs_of_more_workloads_than_are_looked_at_in_one_go_are_thinned(
    database_url: str, reader: psycopg.Connection[tuple[Any, ...]]
) -> None:
    """In statements of a bounded length each; a run every twenty minutes for two hours leaves two, and the newest."""
    workloads = 250
    reader.execute(
        "INSERT INTO forecasts SELECT 'f' || i || '-' || w, 'w' || w, at, at, 'READY', '{}', '{}', '{}' "
        "FROM generate_series(1, %s) AS w, generate_series(0, 6) AS i, "
        "LATERAL (SELECT '2099-12-29'::timestamptz + i * interval '20 min' AS at)",
        [workloads],
    )
    reader.commit()
    store = PostgresStore(database_url, PATIENT)

    assert 4 * workloads == await store.maintain(NOW, Retention())
    assert workloads == count(reader, "SELECT count(*) FROM forecasts WHERE created_at = '2099-12-29 02:00'")
    assert 3 * workloads == count(reader, "SELECT count(*) FROM forecasts")
    await store.close()


def test_of_thousands_of_starts_each_is_looked_at_a_few_times(
    reader: psycopg.Connection[tuple[Any, ...]],
) -> None:
    """Counting all newer ones of each took half a minute for 20 000 of one workload, and longer than may be for more."""
    starts, kept = 3000, 50
    reader.execute("INSERT INTO workloads (name, generation, body) VALUES ('w', 1, '{}')")
    reader.execute(
        "INSERT INTO warmups SELECT 'w', 'r' || i, '2099-01-01'::timestamptz - i * interval '1 s', '{}' "
        "FROM generate_series(1, %s) AS i",
        [starts],
    )
    reader.execute("ANALYZE warmups")
    statement = _OLD_WARMUPS.replace(":before", "%(before)s").replace(":limit", "%(limit)s")
    found = reader.execute(
        f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}",  # type: ignore[arg-type]
        {"before": NOW, "limit": 2 * starts},
    ).fetchone()

    assert found is not None
    assert kept == count_left(reader)
    assert looked_at(found[0][0]["Plan"]) < 4 * kept * starts


def count_left(reader: psycopg.Connection[tuple[Any, ...]]) -> int:
    row = reader.execute("SELECT count(*) FROM warmups").fetchone()
    assert row is not None
    return int(row[0])


def looked_at(node: dict[str, Any]) -> float:
    """Return how many rows all steps of a plan passed on."""
    return float(node["Actual Rows"] * node["Actual Loops"]) + sum(map(looked_at, node.get("Plans", ())))
