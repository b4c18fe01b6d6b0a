"""Real servers for every test that wants them: one PostgreSQL and one Valkey per test session.

Each test gets a database of its own, cloned from one that was migrated once, so tests see neither each
other's rows nor each other's order.
"""

import itertools
from collections.abc import AsyncIterator, Callable, Iterator

import psycopg
import pytest
from psycopg import sql
from sqlalchemy.engine import make_url

from controller.adapters.embedded.stack import EmbeddedStack, embedded_stack
from controller.adapters.postgres import Limits, PostgresStore, migrate


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStack]:
    """PostgreSQL and Valkey, in a folder that the session forgets."""
    with embedded_stack(tmp_path_factory.mktemp("stack") / "data") as running:
        yield running


@pytest.fixture(scope="session")
def redis_url(stack: EmbeddedStack) -> str:
    """The cache; shared, so tests choose key prefixes of their own."""
    return stack.redis_url


@pytest.fixture(scope="session")
def make_database(stack: EmbeddedStack) -> Callable[..., str]:
    """Return a function that creates an empty database, or a copy of another, and returns its URL."""
    server = make_url(stack.database_url)
    numbers = itertools.count()

    def make(template: str = "template0") -> str:
        name = f"test_{next(numbers)}"
        address = server.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY wal_log").format(
                    sql.Identifier(name), sql.Identifier(template)
                )
            )
        return server.set(database=name).render_as_string(hide_password=False)

    return make


@pytest.fixture(scope="session")
def template_database(make_database: Callable[..., str]) -> str:
    """Name of a migrated database that nothing connects to any more."""
    url = make_database()
    migrate.upgrade(url)
    name = make_url(url).database
    assert name is not None
    return name


@pytest.fixture
def database_url(make_database: Callable[..., str], template_database: str) -> str:
    """A fresh, migrated database."""
    return make_database(template_database)


@pytest.fixture
async def postgres_store(database_url: str) -> AsyncIterator[PostgresStore]:
    """The real store on a fresh database."""
    store = PostgresStore(database_url, Limits(connection_count=5))
    yield store
    await store.close()
