"""Migrations on a real PostgreSQL."""

import threading

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine

from controller.adapters.postgres import PostgresStore, migrate
from controller.adapters.postgres.database import database_address
from controller.adapters.postgres.tables import metadata
from controller.ports import PortError, UnavailableError


def execute(url: str, statement: str) -> None:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(statement.encode())


async def test_an_empty_database_is_refused_until_migrated(empty_database_url: str) -> None:
    url = empty_database_url
    store = PostgresStore(url)
    assert migrate.current_revision(url) is None
    with pytest.raises(PortError, match="run `forecrest migrate`"):
        migrate.check_revision(url)
    with pytest.raises(PortError, match="run `forecrest migrate`"):
        await store.check_revision()
    with pytest.raises(PortError, match="run `forecrest migrate`"):
        async with store.unit_of_work() as unit:
            await unit.workloads.list()

    assert migrate.upgrade(url) == migrate.head_revision()

    assert migrate.current_revision(url) == migrate.head_revision()
    migrate.check_revision(url)
    await store.check_revision()
    await store.close()


def test_migrating_again_changes_nothing(database_url: str) -> None:
    assert migrate.upgrade(database_url) == migrate.head_revision()


async def test_a_database_of_a_newer_release_is_refused(database_url: str) -> None:
    execute(database_url, "UPDATE alembic_version SET version_num = '9999'")
    store = PostgresStore(database_url)

    for call in (migrate.check_revision, migrate.upgrade):
        with pytest.raises(PortError, match=r"9999, which this release does not know.*newer release"):
            call(database_url)
    with pytest.raises(PortError, match="9999"):
        await store.check_revision()
    await store.close()


def test_migrators_that_start_together_both_succeed(empty_database_url: str) -> None:
    url = empty_database_url
    done: list[str] = []
    threads = [threading.Thread(target=lambda: done.append(migrate.upgrade(url))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert done == [migrate.head_revision()] * 3


def test_a_migration_that_fails_leaves_nothing_behind(empty_database_url: str) -> None:
    url = empty_database_url
    execute(url, "CREATE TABLE leases (id integer)")  # somebody else's table of one of our names

    with pytest.raises(Exception, match="leases"):
        migrate.upgrade(url)

    assert migrate.current_revision(url) is None
    execute(url, "DROP TABLE leases")
    assert migrate.upgrade(url) == migrate.head_revision()


def test_a_server_that_is_away_is_an_outage() -> None:
    with pytest.raises(UnavailableError):
        migrate.upgrade("postgresql://forecrest@127.0.0.1:1/forecrest")


def test_the_tables_that_statements_use_are_those_that_migrations_make(database_url: str) -> None:
    engine = create_engine(database_address(database_url))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        differences = compare_metadata(context, metadata)
    engine.dispose()

    assert differences == []
