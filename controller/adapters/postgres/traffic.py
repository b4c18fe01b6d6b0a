"""Demand per minute in PostgreSQL: ingest by COPY, roll-up in SQL.

Promises: a batch is stored as a whole or not at all; the same minute again replaces what was there, also
when batches overlap and run at once. Refuses unsound samples before anything is written. Called through
the unit of work.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from operator import attrgetter

from sqlalchemy import text

from controller.adapters.postgres.database import Session
from controller.adapters.postgres.partitions import TRAFFIC, Partitions
from controller.adapters.samples import EPOCH, MINUTE, mean_qps, sound_samples, step_grid
from controller.core.resources import TrafficSample

_COLUMNS = "workload, minute_at, demand_count, served_count, rejected_count, source, coverage"
_VALUES = attrgetter(*_COLUMNS.split(", "))
_TYPES = ("text", "timestamptz", "float8", "float8", "float8", "text", "float8")

# Keeps each statement well inside its time limit, however large the import.
_ROWS_PER_STATEMENT = 100_000

_STAGING = text(
    "CREATE TEMPORARY TABLE IF NOT EXISTS traffic_staging (LIKE traffic_samples) ON COMMIT DELETE ROWS"
)
_EMPTY = text("TRUNCATE traffic_staging")
_COPY = f"COPY traffic_staging ({_COLUMNS}) FROM STDIN (FORMAT BINARY)"
_UPSERT = text("""
    INSERT INTO traffic_samples AS kept
        (workload, minute_at, demand_count, served_count, rejected_count, source, coverage)
    SELECT workload, minute_at, demand_count, served_count, rejected_count, source, coverage
    FROM traffic_staging ORDER BY workload, minute_at
    ON CONFLICT (workload, minute_at) DO UPDATE SET
        demand_count = excluded.demand_count, served_count = excluded.served_count,
        rejected_count = excluded.rejected_count, source = excluded.source, coverage = excluded.coverage
    -- an import that is repeated writes nothing
    WHERE (kept.demand_count, kept.served_count, kept.rejected_count, kept.source, kept.coverage)
        IS DISTINCT FROM (excluded.demand_count, excluded.served_count, excluded.rejected_count,
            excluded.source, excluded.coverage)
""")
_ROLL_UP = text("""
    SELECT date_bin(:step, minute_at, :epoch) AS at, sum(demand_count) AS requests, sum(coverage) AS covered
    FROM traffic_samples
    WHERE workload = :workload AND minute_at >= :start_at AND minute_at < :end_at
    GROUP BY at
""")
_SPAN = text(
    "SELECT min(minute_at) AS first_at, max(minute_at) AS last_at FROM traffic_samples WHERE workload = :workload"
)


class PostgresTrafficStore:
    """Implements `controller.ports.TrafficStore`."""

    def __init__(self, session: Session, partitions: Partitions) -> None:
        self._session = session
        self._partitions = partitions

    async def upsert(self, samples: Sequence[TrafficSample]) -> int:
        """Store samples; return how many minutes the batch holds."""
        rows = sound_samples(samples)
        if not rows:
            return 0
        await self._partitions.ensure(self._session, TRAFFIC, {row.minute_at for row in rows})
        await self._session.execute(_STAGING)
        for start in range(0, len(rows), _ROWS_PER_STATEMENT):
            await self._upsert(rows[start : start + _ROWS_PER_STATEMENT])
        return len(rows)

    async def _upsert(self, rows: Sequence[TrafficSample]) -> None:
        await self._session.execute(_EMPTY)  # an earlier batch of this transaction
        with self._session.limited():
            async with self._session.driver.cursor() as cursor, cursor.copy(_COPY) as copy:
                copy.set_types(_TYPES)
                for row in rows:
                    await copy.write_row(_VALUES(row))
        await self._session.execute(_UPSERT)

    async def read(
        self, workload: str, start_at: datetime, end_at: datetime, *, step: timedelta = MINUTE
    ) -> Sequence[tuple[datetime, float | None]]:
        """Mean demand in QPS of every whole step inside the window; None where under half was observed."""
        grid = step_grid(start_at, end_at, step)
        if not grid:
            return []
        rows = await self._session.execute(
            _ROLL_UP,
            {
                "step": step,
                "epoch": EPOCH,
                "workload": workload,
                "start_at": grid[0],
                "end_at": grid[-1] + step,
            },
        )
        return mean_qps(grid, step, {row.at: (row.requests, row.covered) for row in rows})

    async def span(self, workload: str) -> tuple[datetime, datetime] | None:
        """First and last stored minute, or None."""
        row = (await self._session.execute(_SPAN, {"workload": workload})).one()
        return None if row.first_at is None else (row.first_at, row.last_at)
