"""Connections to PostgreSQL: bounded in number and in time, with failures spoken in the ports' words.

Promises: every wait ends (connecting, a pool that is full, a lock, a statement, a server that has stopped
answering); an outage is `UnavailableError`, a duplicate `ConflictError`, a value PostgreSQL cannot hold
`ValueError`; statements' parameters and the password stay out of messages. Called by the stores only.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import CursorResult, Executable, NullPool, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from controller.adapters.codec import encode
from controller.ports import ConflictError, PortError, UnavailableError

_DRIVER = "postgresql+psycopg"
# Keys of advisory locks, arbitrary but fixed for ever: releases beside each other must agree.
MIGRATION_LOCK = 7_305_001
PARTITION_LOCK = 7_305_002


@dataclass(frozen=True, slots=True)
class Limits:
    """How long to wait for what, in seconds, and how many connections to hold."""

    connection_count: int = 10
    connect_s: float = 5.0
    pool_s: float = 5.0
    lock_s: float = 5.0
    statement_s: float = 30.0
    idle_in_transaction_s: float = 60.0
    fence_s: float = 10.0  # a leader that stops inside its transaction keeps the next one out no longer


def database_address(url: str) -> URL:
    """The address with our driver; ``postgres://`` and ``postgresql://`` are accepted.

    Raises:
        ValueError: it is no PostgreSQL URL. The message does not repeat it, for it may hold a password.
    """
    try:
        address = make_url(url)
    except ArgumentError:
        address = None
    if address is None or address.drivername not in {"postgres", "postgresql", _DRIVER}:
        raise ValueError(
            "database_url: not a PostgreSQL URL; write postgresql://user:password@host:5432/name"
        )
    return address.set(drivername=_DRIVER)


def connect_arguments(limits: Limits) -> dict[str, Any]:
    """What libpq is told: time limits that the server keeps, and when to give a silent peer up."""
    settings = {
        "statement_timeout": int(limits.statement_s * 1000),
        "lock_timeout": int(limits.lock_s * 1000),
        "idle_in_transaction_session_timeout": int(limits.idle_in_transaction_s * 1000),
        "TimeZone": "UTC",
    }
    return {
        "options": " ".join(f"-c {name}={value}" for name, value in settings.items()),
        "connect_timeout": max(2, round(limits.connect_s)),  # libpq takes 1 for 2
        "application_name": "forecrest",
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 20_000,
    }


def make_engine(url: str, limits: Limits, *, pooled: bool = True) -> AsyncEngine:
    """An engine that connects on first use; without a pool it opens a connection each time."""
    pool: dict[str, Any] = (
        # A fixed size: what was configured is what a database administrator sees.
        {"pool_size": limits.connection_count, "max_overflow": 0, "pool_timeout": limits.pool_s}
        if pooled
        else {"poolclass": NullPool}
    )
    return create_async_engine(
        database_address(url),
        connect_args=connect_arguments(limits),
        hide_parameters=True,
        json_serializer=encode,
        json_deserializer=bytes,  # `decode` parses by type, at once and faster
        **pool,
    )


_AWAY = "the database cannot answer now, try again: {}"
_UNFIT = "a value cannot be stored: {}"
# By the beginning of SQLSTATE; the first that matches counts.
_MEANINGS: tuple[tuple[str, type[Exception], str], ...] = (
    ("08", UnavailableError, _AWAY),  # connection failures
    ("25", UnavailableError, _AWAY),  # idle in transaction for too long; read-only after a failover
    ("40", UnavailableError, _AWAY),  # deadlock: the same transaction may succeed next time
    ("53", UnavailableError, _AWAY),  # out of disk, memory or connections
    ("55P03", UnavailableError, _AWAY),  # lock timeout
    ("57", UnavailableError, _AWAY),  # shutting down, starting up, cancelled by a timeout
    ("23505", ConflictError, "it exists already: {}"),
    ("22", ValueError, _UNFIT),
    ("23", ValueError, _UNFIT),
    ("28", PortError, "the database refuses the connection: {}; check database_url"),
    ("3D", PortError, "the database refuses the connection: {}; check database_url"),
    ("42P01", PortError, "the database has another schema ({}); run `forecrest migrate`"),
    ("42703", PortError, "the database has another schema ({}); run `forecrest migrate`"),
)


def port_error(error: Exception) -> Exception:
    """The port's word for a failure of the database or its driver; `error` itself if it is our bug."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    state: str | None = getattr(cause, "sqlstate", None)
    said = str(cause).strip().split("\n", 1)[0]
    for prefix, kind, sentence in _MEANINGS if state else ():
        if state and state.startswith(prefix):
            return kind(sentence.format(said))
    if isinstance(cause, psycopg.DataError):
        return ValueError(_UNFIT.format(said))
    if isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError | PoolTimeoutError | OSError):
        return UnavailableError(f"the database is away, try again: {said}")
    return error


@contextlib.contextmanager
def port_errors() -> Generator[None]:
    """Translate what the database and its driver raise."""
    try:
        yield
    except (DBAPIError, psycopg.Error, PoolTimeoutError, OSError) as error:
        translated = port_error(error)
        if translated is error:
            raise
        raise translated from error


async def _connect(engine: AsyncEngine) -> AsyncConnection:
    """Take a connection; one that was under way when the caller is cancelled is waited for and given back.

    The driver would leave its socket to the garbage collector, half logged in: the server then holds a slot
    for its authentication timeout, and whatever waits for all of its sessions waits along.
    """

    async def connect() -> AsyncConnection:
        return await engine.connect()

    connecting = asyncio.create_task(connect())
    try:
        return await asyncio.shield(connecting)
    except asyncio.CancelledError:
        with contextlib.suppress(DBAPIError, PoolTimeoutError, OSError):
            await (await connecting).close()
        raise


class Session:
    """One pooled connection with one transaction."""

    def __init__(
        self, connection: AsyncConnection, driver: psycopg.AsyncConnection[Any], limit_s: float
    ) -> None:
        self._connection = connection
        self.driver = driver
        self._limit_s = limit_s

    @classmethod
    async def open(cls, engine: AsyncEngine, limits: Limits) -> "Session":
        """Take a connection that answers.

        Raises:
            UnavailableError: there is none within the limits.
        """
        # A pooled connection may have died with the server; noticing that discards its contemporaries.
        for attempt in range(2):
            with port_errors():
                connection = await _connect(engine)
                raw = await connection.get_raw_connection()
            driver = cast("psycopg.AsyncConnection[Any]", raw.driver_connection)
            # The server ends a statement in time; this is for a server that is frozen itself.
            session = cls(connection, driver, limits.statement_s + limits.connect_s)
            try:
                await session.execute(text("SELECT 1"))
            except UnavailableError:
                await session.close()
                if attempt:
                    raise
            except BaseException:
                await session.close()
                raise
            else:
                return session
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def execute(
        self, statement: Executable, parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    ) -> CursorResult[Any]:
        """Run one statement, or one for each of several parameter sets; rows are fetched already."""
        with self.limited():
            return await self._connection.execute(statement, parameters)

    @contextlib.contextmanager
    def limited(self) -> Generator[None]:
        """Bound the time of what the driver does inside, and translate its errors."""
        timer = asyncio.get_running_loop().call_later(self._limit_s, self._hang_up)
        try:
            with port_errors():
                yield
        finally:
            timer.cancel()

    def _hang_up(self) -> None:
        # Cancelling the task would not do: the driver then waits for the server to confirm the cancel.
        if not self.driver.closed:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.driver.fileno())) as peer:
                peer.shutdown(socket.SHUT_RDWR)

    async def commit(self) -> None:
        """Make it durable.

        Raises:
            PortError: an earlier statement failed. PostgreSQL would answer COMMIT with a silent rollback.
        """
        if self.driver.info.transaction_status is TransactionStatus.INERROR:
            raise PortError(
                "an earlier statement of this transaction failed, so nothing was written; start again"
            )
        with self.limited():
            await self._connection.commit()

    async def close(self) -> None:
        """Roll back what is open and give the connection back; a dead one is simply let go."""
        with contextlib.suppress(PortError), self.limited():
            # Shielded: a task that is cancelled twice must not take the connection with it.
            await asyncio.shield(asyncio.ensure_future(self._connection.close()))
