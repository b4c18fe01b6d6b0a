"""The store on PostgreSQL: opens units of work, checks the schema, drops what is past its age.

Promises: a unit of work is one transaction, and what was not committed is not there, also after the process
or the database was killed; a leader's writes are refused once another leads. Called by the composition root.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime
from types import TracebackType
from typing import Self

from sqlalchemy import text

from controller.adapters.postgres.accuracy import PostgresAccuracyStore
from controller.adapters.postgres.database import Limits, Session, make_engine, port_errors
from controller.adapters.postgres.engines import PostgresEngineStore
from controller.adapters.postgres.ledger import (
    PostgresDecisionStore,
    PostgresForecastStore,
    PostgresStateStore,
    PostgresWarmupStore,
)
from controller.adapters.postgres.migrate import refuse_revision
from controller.adapters.postgres.notifications import PostgresNotificationStore
from controller.adapters.postgres.partitions import DECISIONS, TRAFFIC, Partitions
from controller.adapters.postgres.resources import (
    PostgresEventStore,
    PostgresRecordStore,
    PostgresWorkloadStore,
)
from controller.adapters.postgres.traffic import PostgresTrafficStore
from controller.ports import (
    LEADER_LEASE,
    MEMBER_LEASES,
    SHARD_LEASES,
    AccuracyStore,
    DecisionStore,
    EngineStore,
    EventStore,
    ForecastStore,
    NotificationStore,
    RecordStore,
    Retention,
    StateStore,
    TrafficStore,
    WarmupStore,
    WorkloadStore,
    held_lease,
)

# Blocks a change of the token, which is part of a key, until this transaction ends; not a renewal. The transaction is
# bounded with it: a process that is stopped inside would keep every other leader out. An idle session is not all that
# can hang, but what covers the rest (a client that stops amid a batch) came with PostgreSQL 17.
_FENCE = text("""
    WITH bounded AS MATERIALIZED (
        SELECT set_config(name, :milliseconds, true) FROM pg_settings
        WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')
    )
    SELECT name, token, (SELECT count(*) FROM bounded) FROM leases
    WHERE name = :leader OR (token = :token AND name LIKE :shards) FOR KEY SHARE
""")


# Weeks and days made ahead: longer than maintenance may ever be away.
TRAFFIC_AHEAD, DECISIONS_AHEAD = 2, 3


class PostgresStore:
    """Implements `controller.ports.Store`."""

    def __init__(self, url: str, limits: Limits | None = None) -> None:
        """Connect nothing yet.

        Raises:
            ValueError: `url` is no PostgreSQL URL.
        """
        self._limits = limits or Limits()
        self._engine = make_engine(url, self._limits)
        self._partition_engine = make_engine(url, self._limits, pooled=False)
        self._partitions = Partitions(self._partition_engine, self._limits)

    def unit_of_work(self) -> "PostgresUnitOfWork":
        """A fresh transaction, not begun yet."""
        return PostgresUnitOfWork(self._open, self._partitions, fence_s=self._limits.fence_s)

    async def _open(self) -> Session:
        return await Session.open(self._engine, self._limits)

    async def check_revision(self) -> None:
        """Raise PortError unless the schema is the one this release was built for."""
        session = await self._open()
        try:
            exists = await session.execute(text("SELECT to_regclass('alembic_version') IS NOT NULL"))
            found: set[str] = set()
            if exists.scalar_one():
                found = set((await session.execute(_REVISION)).scalars())
        finally:
            await session.close()
        refuse_revision(found)

    async def maintain(self, now: datetime, retention: Retention) -> int:
        """Drop what is past its age; return how many partitions and rows went. Safe to repeat, and to interrupt."""
        await self._partitions.make_ahead(TRAFFIC, now, TRAFFIC_AHEAD)
        await self._partitions.make_ahead(DECISIONS, now, DECISIONS_AHEAD)
        dropped = await self._partitions.drop_before(TRAFFIC, now - retention.traffic)
        dropped += await self._partitions.drop_before(DECISIONS, now - retention.decisions)
        for statement, before in (
            (_OLD_OUTCOMES, now - retention.decisions),
            (_OLD_PLANS, now - retention.decisions),
            (_OLD_OVERRIDES, now - retention.decisions),
            (_OLD_CONTRACTS, now - retention.decisions),
            (_OLD_STATES, now - retention.decisions),
            (_OLD_WARMUPS, now - retention.decisions),
            (_OLD_FORECASTS, now - retention.forecasts),
            (_OLD_PARTS, now - retention.parts),
            (_OLD_SCORES, now - retention.scores),
            (_OLD_STANDINGS, now - retention.forecasts),
            (_OLD_SAID, now - retention.forecasts),
            (_OLD_KEYS, now - retention.idempotency),
            (_OLD_AUDIT, now - retention.audit),
            (_OLD_NOTIFICATIONS, now - retention.notifications),
            (_OLD_HOLDS, now - retention.decisions),
            (_OLD_MEMBERS, now - retention.runs),
        ):
            dropped += await self._delete_in_batches(statement, before)
        return dropped + await self._thin_runs(now - retention.runs)

    async def _thin_runs(self, before: datetime) -> int:
        """Drop all but the first run of each hour; of some workloads at a time, for most rows are looked at to be kept."""
        total, after = 0, ""
        while True:
            session = await self._open()
            try:
                rows = await session.execute(_FORECAST_AFTER, {"after": after, "limit": _WORKLOADS})
                names = list(rows.scalars())
            finally:
                await session.close()
            if not names:
                return total
            total += await self._delete_in_batches(_OLD_RUNS, before, workloads=names)
            after = names[-1]

    async def _delete_in_batches(self, statement: str, before: datetime, **given: object) -> int:
        """Delete a bounded number of rows per transaction, so that no lock is held for long."""
        total = 0
        while True:
            session = await self._open()
            try:
                bounds = {"before": before, "limit": _BATCH, **given}
                written = await session.execute(text(statement), bounds)
                await session.commit()
            finally:
                await session.close()
            total += written.rowcount
            if written.rowcount < _BATCH:
                return total

    async def close(self) -> None:
        """Release every connection."""
        with port_errors():
            await self._engine.dispose()
            await self._partition_engine.dispose()


class PostgresUnitOfWork:
    """Implements `controller.ports.UnitOfWork`. Used once, by one task."""

    workloads: WorkloadStore
    events: EventStore
    traffic: TrafficStore
    forecasts: ForecastStore
    accuracy: AccuracyStore
    decisions: DecisionStore
    states: StateStore
    warmups: WarmupStore
    records: RecordStore
    engines: EngineStore
    notifications: NotificationStore

    def __init__(
        self, open_session: Callable[[], Awaitable[Session]], partitions: Partitions, *, fence_s: float
    ) -> None:
        self._open = open_session
        self._partitions = partitions
        self._fence_s = fence_s

    async def __aenter__(self) -> Self:
        """Take a connection."""
        self._session = session = await self._open()
        self.workloads = PostgresWorkloadStore(session)
        self.events = PostgresEventStore(session)
        self.traffic = PostgresTrafficStore(session, self._partitions)
        self.forecasts = PostgresForecastStore(session)
        self.accuracy = PostgresAccuracyStore(session)
        self.decisions = self._ledger = PostgresDecisionStore(session, self._partitions)
        self.states = self._states = PostgresStateStore(session)
        self.warmups = PostgresWarmupStore(session)
        self.records = PostgresRecordStore(session)
        self.engines = PostgresEngineStore(session)
        self.notifications = PostgresNotificationStore(session)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Roll back unless committed; give the connection back."""
        await self._session.close()

    async def commit(self) -> None:
        """Make it durable. If the connection breaks right here, whether it was written is not known: read it back."""
        await self._session.commit()

    async def require_leader(self, token: int) -> None:
        """Raise StaleFenceError unless `token` is the newest; a new leader waits for this transaction."""
        bounds = {"leader": LEADER_LEASE, "shards": f"{SHARD_LEASES}%", "token": token}
        bounds["milliseconds"] = str(max(1, round(self._fence_s * 1000)))
        tokens = {row.name: row.token for row in await self._session.execute(_FENCE, bounds)}
        self._states.lease = held_lease(tokens, token)
        self._ledger.fence = token


_REVISION = text("SELECT version_num FROM alembic_version")
_BATCH = 5_000
_WORKLOADS = 100
# Names are found one by one in the index: to read those of all runs takes as long as looking at all runs.
_FORECAST_AFTER = text("""
    WITH RECURSIVE found (workload) AS (
        (SELECT workload FROM forecasts WHERE workload > :after ORDER BY workload LIMIT 1)
        UNION ALL
        SELECT (SELECT workload FROM forecasts AS next WHERE next.workload > found.workload ORDER BY workload LIMIT 1)
        FROM found WHERE found.workload IS NOT NULL
    )
    SELECT workload FROM found WHERE workload IS NOT NULL LIMIT :limit
""")


# Not registered, and not written since either: one that is declared again soon continues where it was.
_GONE = (
    "NOT EXISTS (SELECT FROM workloads WHERE name = old.workload) AND NOT EXISTS "
    "(SELECT FROM workload_states AS kept WHERE kept.workload = old.workload AND kept.written_at >= :before)"
)


def _old(table: str, key: str, condition: str, *, unless_gone: str = "") -> str:
    """Delete rows past their age; with ``unless_gone``, those of registered workloads only where this holds too."""
    if unless_gone:
        condition += f" AND ({unless_gone} OR {_GONE})"
    # What somebody writes or drops right now is left to the next maintenance: nobody waits for it, nor it for anybody.
    return (
        f"WITH past AS MATERIALIZED (SELECT {key} FROM {table} AS old WHERE {condition} "  # noqa: S608 - constants of this file
        f"LIMIT :limit FOR UPDATE SKIP LOCKED) DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM past)"
    )


_OLD_OUTCOMES = _old("outcomes", "decision_id", "at < :before")
_OLD_OVERRIDES = _old("overrides", "workload, id", "expires_at < :before")
_OLD_CONTRACTS = _old("contracts", "workload, occurrence_id", "end_at < :before")
_OLD_KEYS = _old("idempotency_keys", "key", "created_at < :before")
_OLD_AUDIT = _old("audit_log", "id", "at < :before")
_OLD_MEMBERS = _old("leases", "name", f"expires_at < :before AND name LIKE '{MEMBER_LEASES}%'")
_OLD_NOTIFICATIONS = _old("notifications", "sink, id", "at < :before")
_OLD_HOLDS = _old("alarm_holds", "key", f"written_at < :before AND {_GONE}")
# Asked again of the row itself: a leader may write it in the meantime, for a workload made anew.
_OLD_STATES = (
    _old("workload_states", "workload", f"written_at < :before AND {_GONE}") + " AND written_at < :before"
)
# The newest plan and forecast of a workload stay, however old: they are what is in force, or what a state refers to. A
# plan stays as long as decisions that were made by it.
_OLD_PLANS = _old(
    "capacity_plans",
    "workload, revision",
    "created_at < :before",
    unless_gone="EXISTS (SELECT FROM capacity_plans AS later WHERE later.workload = old.workload "
    "AND later.revision > old.revision AND later.created_at < :before)",
)
_OLD_FORECASTS = _old(
    "forecasts",
    "id",
    "created_at < :before",
    unless_gone="origin_at < (SELECT max(origin_at) FROM forecasts WHERE workload = old.workload)",
)
# A run every few minutes is 300 MB a month and workload; the newest of all is always in the last hour that has any.
_OLD_RUNS = _old(
    "forecasts",
    "id",
    "workload = ANY(CAST(:workloads AS text[])) AND created_at < :before"
    " AND EXISTS (SELECT FROM forecasts AS first WHERE first.workload = old.workload"
    " AND first.created_at < old.created_at AND first.created_at >= date_trunc('hour', old.created_at, 'UTC'))"
    " AND EXISTS (SELECT FROM forecasts AS later WHERE later.workload = old.workload"
    " AND later.created_at >= date_trunc('hour', old.created_at, 'UTC') + interval '1 hour')",
)
_OLD_PARTS = _old("forecast_parts", "forecast_id", "created_at < :before")
_OLD_SCORES = _old("forecast_scores", "workload, start_at", "start_at < :before")
# Rewritten at every scored hour while the workload is forecast.
_OLD_STANDINGS = _old("forecast_standings", "workload", "written_at < :before")
_OLD_SAID = _old("forecasts_said", "workload", "written_at < :before")
# Lead times are estimated from the newest starts, which may be old where replicas start rarely.
_OLD_WARMUPS = _old(
    "warmups",
    "workload, replica_id",
    "at < :before",
    # The fiftieth newest, not how many are newer: of thousands, that would take minutes to count for each.
    unless_gone="at < (SELECT at FROM warmups WHERE workload = old.workload ORDER BY at DESC OFFSET 49 LIMIT 1)",
)
