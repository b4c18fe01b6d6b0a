"""Real servers for every test that wants them: one PostgreSQL and one Valkey per test session.

Each test gets a database of its own, cloned from one that was migrated once, so tests see neither each
other's rows nor each other's order.
"""

import itertools
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from psycopg import sql
from psycopg.errors import InsufficientPrivilege
from sqlalchemy.engine import URL, make_url

from controller.adapters.embedded.guard import _descendants
from controller.adapters.embedded.stack import EmbeddedStack, embedded_stack
from controller.adapters.postgres import Limits, PostgresStore, migrate

# A busy machine is slow, which is no failure; and a change fails for what it does, not for the examples it drew.
# `--hypothesis-profile=explore` draws new ones.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("explore"), derandomize=True)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStack]:
    """PostgreSQL and Valkey, in a folder that the session forgets."""
    folder = tmp_path_factory.mktemp("stack") / "data"
    with embedded_stack(folder) as running:
        # Nothing here outlives the session, and many databases make an orderly end slow when every file is
        # flushed. Tests of durability start servers of their own.
        (folder / "postgres" / "user.conf").write_text("fsync = off\n")
        server = running.servers["postgres"]
        assert server.pid is not None
        os.kill(server.pid, signal.SIGHUP)
        yield running


def _children() -> set[int]:
    mine, found = str(os.getpid()), set[int]()
    for pid in _descendants(os.getpid()):
        with suppress(OSError):  # it ended meanwhile
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] == mine:
                found.add(pid)
    return found


@pytest.fixture
def started_processes() -> Callable[[], list[int]]:
    """Tell which processes of this test run, at any depth. The session's servers were there before it."""
    earlier = _children()
    return lambda: [pid for child in sorted(_children() - earlier) for pid in (child, *_descendants(child))]


@pytest.fixture(scope="session")
def redis_url(stack: EmbeddedStack) -> str:
    """The cache; shared, so tests choose key prefixes of their own."""
    return stack.redis_url


class Databases:
    """Creates and drops databases on the session's server."""

    def __init__(self, server: URL) -> None:
        self._server = server
        self._numbers = itertools.count()

    def execute(self, statement: str, *names: str) -> None:
        address = self._server.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))

    @contextmanager
    def fresh(self, template: str = "template0") -> Iterator[str]:
        """The URL of an empty database, or of a copy of another, for the time of the block."""
        name = f"test_{next(self._numbers)}"
        self.execute("CREATE DATABASE {} TEMPLATE {} STRATEGY wal_log", name, template)
        yield self._server.set(database=name).render_as_string(hide_password=False)
        try:
            self.execute("DROP DATABASE {} WITH (FORCE)", name)
        except InsufficientPrivilege:
            # Autovacuum is at it, which may not be ended by force and gives way to those who wait.
            self.execute("DROP DATABASE {}", name)


@pytest.fixture(scope="session")
def databases(stack: EmbeddedStack) -> Databases:
    return Databases(make_url(stack.database_url))


@pytest.fixture(scope="session")
def template_database(databases: Databases) -> Iterator[str]:
    """Name of a migrated database that nothing connects to any more."""
    with databases.fresh() as url:
        migrate.upgrade(url)
        name = make_url(url).database
        assert name is not None
        yield name


@pytest.fixture
def empty_database_url(databases: Databases) -> Iterator[str]:
    """A fresh database without a schema."""
    with databases.fresh() as url:
        yield url


@pytest.fixture
def database_url(databases: Databases, template_database: str) -> Iterator[str]:
    """A fresh, migrated database."""
    with databases.fresh(template_database) as url:
        yield url


@pytest.fixture
async def postgres_store(database_url: str) -> AsyncIterator[PostgresStore]:
    """The real store on a fresh database."""
    store = PostgresStore(database_url, Limits(connection_count=5))
    yield store
    await store.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the end-to-end tests: they take minutes, and no worker should be left alone with them."""
    items.sort(key=lambda item: "e2e" not in item.path.parts)
