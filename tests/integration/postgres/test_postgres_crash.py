"""The store when PostgreSQL is killed, frozen, or away."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from controller.adapters.embedded.stack import EmbeddedStack
from controller.adapters.postgres import Limits, PostgresLeaseStore, PostgresStore, migrate
from controller.core.resources import TrafficSample
from controller.ports import PortError, UnavailableError

_OTHER_SESSIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
MIDNIGHT = datetime(2026, 11, 11, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
FREED_PORT = "postgresql://forecrest:secret-word@127.0.0.1:1/forecrest"


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[EmbeddedStack]:
    async with EmbeddedStack(folder) as stack:
        await asyncio.to_thread(migrate.upgrade, stack.database_url)
        yield stack


async def write(store: PostgresStore, name: str) -> None:
    async with store.unit_of_work() as unit:
        await unit.traffic.upsert([TrafficSample(name, MIDNIGHT, 60.0)])
        await unit.commit()


async def test_kill_9_keeps_what_was_committed_and_nothing_else(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as stack:
        store = PostgresStore(stack.database_url)
        await write(store, "committed")
        unit = store.unit_of_work()
        await unit.__aenter__()
        await unit.traffic.upsert([TrafficSample("uncommitted", MIDNIGHT, 60.0)])
        server = stack.servers["postgres"]
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        await server.wait()

        with pytest.raises(UnavailableError, match="try again"):
            await unit.commit()
        await unit.__aexit__(None, None, None)
        with pytest.raises(UnavailableError, match="try again"):
            await write(store, "while away")

    # The same store object, whose pooled connections are all dead, on the restarted server.
    async with running(tmp_path / "data"):
        await store.check_revision()
        async with store.unit_of_work() as unit:
            assert await unit.traffic.span("committed") == (MIDNIGHT, MIDNIGHT)
            assert await unit.traffic.span("uncommitted") is None
            assert await unit.traffic.span("while away") is None
        await write(store, "after")
        await store.close()


def _with_children(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(int(child) for child in children)]


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Stop a server and its backends, as a stalled disk or a paused machine would."""
    pids = _with_children(pid)
    for each in pids:
        os.kill(each, signal.SIGSTOP)
    try:
        yield
    finally:
        for each in reversed(pids):
            os.kill(each, signal.SIGCONT)


async def test_a_frozen_server_is_given_up_and_found_again(tmp_path: Path) -> None:
    limits = Limits(connection_count=2, connect_s=2, statement_s=0.5)
    async with running(tmp_path / "data") as stack:
        store = PostgresStore(stack.database_url, limits)
        server = stack.servers["postgres"]
        assert server.pid is not None
        async with store.unit_of_work() as unit:
            assert await unit.traffic.span("w") is None
            with frozen(server.pid):
                with pytest.raises(UnavailableError):
                    await unit.traffic.span("w")
                with pytest.raises(UnavailableError):
                    await write(store, "w")

        await write(store, "w")
        await store.close()


async def test_no_server_is_an_outage_that_says_what_to_do_and_no_secret() -> None:
    store, leases = PostgresStore(FREED_PORT), PostgresLeaseStore(FREED_PORT)
    for call in (store.check_revision(), write(store, "w"), leases.acquire("leader", "a", MINUTE)):
        with pytest.raises(UnavailableError, match="try again") as caught:
            await call
        assert "secret-word" not in str(caught.value)
    await store.close()
    await leases.close()


async def test_a_wrong_password_is_told_without_it(database_url: str) -> None:
    store = PostgresStore(database_url.replace("forecrest:", "forecrest:secret-word"))
    with pytest.raises(PortError, match="password authentication failed") as caught:
        await write(store, "w")

    assert "secret-word" not in str(caught.value)
    await store.close()


@pytest.mark.parametrize("url", ["", "nonsense", "mysql://u:secret-word@h/d", "postgresql+asyncpg://h/d"])
def test_a_foreign_url_is_refused_by_name_and_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="database_url: ") as caught:
        PostgresStore(url)

    assert "secret-word" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
async def test_the_usual_spellings_of_the_url_work(database_url: str, scheme: str) -> None:
    store = PostgresStore(scheme + database_url[database_url.index(":") :])
    await store.check_revision()
    await store.close()


async def test_a_full_pool_is_an_outage_not_a_hang(database_url: str) -> None:
    store = PostgresStore(database_url, Limits(connection_count=1, pool_s=0.05))
    async with store.unit_of_work() as unit:
        with pytest.raises(UnavailableError, match="try again"):
            await write(store, "w")
        # Making a partition takes a connection of its own, so a full pool does not stop the writer.
        await unit.traffic.upsert([TrafficSample("w", MIDNIGHT, 60.0)])
        await unit.commit()

    await store.close()


async def test_a_lock_that_is_not_freed_is_an_outage_not_a_hang(database_url: str) -> None:
    store = PostgresStore(database_url, Limits(lock_s=0.05))
    await write(store, "w")
    async with store.unit_of_work() as first, store.unit_of_work() as second:
        await first.traffic.upsert([TrafficSample("w", MIDNIGHT, 1.0)])
        with pytest.raises(UnavailableError, match="lock timeout"):
            await second.traffic.upsert([TrafficSample("w", MIDNIGHT, 2.0)])
        with pytest.raises(PortError, match="nothing was written"):
            await second.commit()
        await first.commit()

    await store.close()


async def test_text_that_postgresql_cannot_hold_is_a_bad_value(postgres_store: PostgresStore) -> None:
    with pytest.raises(ValueError, match="cannot be stored"):
        await write(postgres_store, "nul \x00 inside")


async def test_cancelling_at_any_step_leaks_no_connection(database_url: str) -> None:
    store = PostgresStore(database_url, Limits(connection_count=2, pool_s=1))
    await write(store, "w")
    for steps in range(0, 200, 5):
        task = asyncio.create_task(write(store, "w"))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    async with store.unit_of_work() as first, store.unit_of_work() as second:
        assert await first.traffic.span("w") == await second.traffic.span("w")
    await store.close()

    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as watcher:
        async with asyncio.timeout(30):  # well under what the server grants a login that does not go on
            while watcher.execute(_OTHER_SESSIONS).fetchone() != (0,):  # noqa: ASYNC110 - the server's affair
                await asyncio.sleep(0)


async def test_cancelling_a_waiting_call_gives_its_connection_back(database_url: str) -> None:
    store = PostgresStore(database_url, Limits(connection_count=2))
    await write(store, "w")
    async with store.unit_of_work() as holder:
        await holder.traffic.upsert([TrafficSample("w", MIDNIGHT, 1.0)])
        for _ in range(5):
            waiting = asyncio.create_task(write(store, "w"))
            await asyncio.wait([waiting], timeout=0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
    await write(store, "w")

    await store.close()
