"""Demand per minute in PostgreSQL: ingest by COPY, roll-up in SQL.

Promises: a batch is stored as a whole or not at all; the same minute again replaces what was there, also
when batches overlap and run at once. Minutes that are all new, as in a backfill, are copied straight into the
partitions, three times as fast as through the staging table that merges. Refuses unsound samples before
anything is written. Called through the unit of work.
"""

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from operator import attrgetter
from typing import Any, LiteralString

import numpy as np
import numpy.typing as npt
from sqlalchemy import text

from controller.adapters.postgres.database import Session
from controller.adapters.postgres.partitions import TRAFFIC, Partitions
from controller.adapters.samples import (
    EPOCH,
    MINUTE,
    Columns,
    Series,
    mean_qps,
    sound_blocks,
    sound_samples,
    step_grid,
)
from controller.core.resources import TrafficBlock, TrafficSample
from controller.ports import ConflictError

_COLUMNS = "workload, minute_at, demand_count, served_count, rejected_count, source, coverage"
_VALUES = attrgetter(*_COLUMNS.split(", "))
_TYPES = ("text", "timestamptz", "float8", "float8", "float8", "text", "float8")

# Keeps each statement well inside its time limit, however large the import.
_ROWS_PER_STATEMENT = 100_000

_STAGING = text(
    "CREATE TEMPORARY TABLE IF NOT EXISTS traffic_staging (LIKE traffic_samples) ON COMMIT DELETE ROWS"
)
_EMPTY = text("TRUNCATE traffic_staging")
_COPY_STAGED: LiteralString = f"COPY traffic_staging ({_COLUMNS}) FROM STDIN (FORMAT BINARY)"
_COPY_STRAIGHT: LiteralString = f"COPY traffic_samples ({_COLUMNS}) FROM STDIN (FORMAT BINARY)"
# Looking at more series than this costs about as much as merging them does.
_PROBES_MAX = 500
_ANY_STORED = text("""
    SELECT EXISTS (
        SELECT FROM unnest(
            CAST(:workloads AS text[]), CAST(:firsts AS timestamptz[]), CAST(:lasts AS timestamptz[])
        ) AS given (workload, first_at, last_at)
        CROSS JOIN LATERAL (
            SELECT FROM traffic_samples AS kept
            WHERE kept.workload = given.workload AND kept.minute_at BETWEEN given.first_at AND given.last_at
                AND kept.minute_at BETWEEN :first_at AND :last_at
            LIMIT 1
        ) AS found
    )
""")
# PostgreSQL's binary COPY: a signature, flags and an empty extension; then rows; then -1.
_COPY_HEAD = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
_COPY_TAIL = struct.pack(">h", -1)
_COPY_EPOCH_MINUTES = 946_684_800 // 60  # timestamps count from the year 2000
_MINUTE_US = 60_000_000
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
_ROLL_UP: LiteralString = """
    SELECT date_bin(%s, minute_at, %s) AS at, sum(demand_count) AS requests, sum(coverage) AS covered
    FROM traffic_samples
    WHERE workload = %s AND minute_at >= %s AND minute_at < %s
    GROUP BY at
"""
_MINUTES_OF_MANY: LiteralString = """
    SELECT workload, minute_at, demand_count, coverage
    FROM traffic_samples
    WHERE workload = ANY(%s) AND minute_at >= %s AND minute_at < %s
"""
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
            async with self._session.driver.cursor() as cursor, cursor.copy(_COPY_STAGED) as copy:
                copy.set_types(_TYPES)
                for row in rows:
                    await copy.write_row(_VALUES(row))
        await self._session.execute(_UPSERT)

    async def upsert_blocks(self, blocks: Sequence[TrafficBlock]) -> int:
        """Store minutes in columns; return how many there are."""
        columns = sound_blocks(blocks)
        days = {EPOCH + timedelta(days=int(day)) for day in np.unique(columns.minutes // 1440)}
        if days:
            await self._partitions.ensure(self._session, TRAFFIC, days)
        for batch in _batches(columns.series):
            if not await self._copy_new(columns, batch):
                await self._merge(columns, batch)
        return len(columns.minutes)

    async def _copy_new(self, columns: Columns, batch: Sequence[Series]) -> bool:
        """Copy straight into the partitions unless one of the minutes is there already."""
        if len(batch) > _PROBES_MAX or await self._any_stored(columns, batch):
            return False
        await self._session.execute(text("SAVEPOINT new_traffic"))
        try:
            await self._copy(_COPY_STRAIGHT, columns, batch)
        except ConflictError:  # somebody else stored one of them between the look and the copy
            await self._session.execute(text("ROLLBACK TO SAVEPOINT new_traffic"))
            return False
        await self._session.execute(text("RELEASE SAVEPOINT new_traffic"))
        return True

    async def _any_stored(self, columns: Columns, batch: Sequence[Series]) -> bool:
        firsts = [EPOCH + MINUTE * int(columns.minutes[series.start]) for series in batch]
        lasts = [EPOCH + MINUTE * int(columns.minutes[series.end - 1]) for series in batch]
        found = await self._session.execute(
            _ANY_STORED,
            {
                "workloads": [series.workload for series in batch],
                "firsts": firsts,
                "lasts": lasts,
                "first_at": min(firsts),
                "last_at": max(lasts),
            },
        )
        return bool(found.scalar_one())

    async def _merge(self, columns: Columns, batch: Sequence[Series]) -> None:
        await self._session.execute(_STAGING)
        await self._session.execute(_EMPTY)
        await self._copy(_COPY_STAGED, columns, batch)
        await self._session.execute(_UPSERT)

    async def _copy(self, statement: LiteralString, columns: Columns, batch: Sequence[Series]) -> None:
        with self._session.limited():
            async with self._session.driver.cursor() as cursor, cursor.copy(statement) as copy:
                await copy.write(_COPY_HEAD)
                for rows in encode_rows(columns, batch):
                    await copy.write(rows)
                await copy.write(_COPY_TAIL)

    async def read(
        self, workload: str, start_at: datetime, end_at: datetime, *, step: timedelta = MINUTE
    ) -> Sequence[tuple[datetime, float | None]]:
        """Mean demand in QPS of every whole step inside the window; None where under half was observed."""
        grid = step_grid(start_at, end_at, step)
        if not grid:
            return []
        rows = await self._rows(_ROLL_UP, (step, EPOCH, workload, grid[0], grid[-1] + step))
        return mean_qps(grid, step, {at: (requests, covered) for at, requests, covered in rows})

    async def read_many(
        self, workloads: Sequence[str], start_at: datetime, end_at: datetime
    ) -> Mapping[str, Sequence[tuple[datetime, float | None]]]:
        """Mean demand in QPS of every whole minute inside the window, by workload."""
        grid = step_grid(start_at, end_at, MINUTE)
        sums: dict[str, dict[datetime, tuple[float, float]]] = {name: {} for name in workloads}
        if grid and sums:
            rows = await self._rows(_MINUTES_OF_MANY, (list(sums), grid[0], grid[-1] + MINUTE))
            for name, at, requests, covered in rows:
                sums[name][at] = (requests, covered)
        return {name: mean_qps(grid, MINUTE, found) for name, found in sums.items()}

    async def _rows(self, statement: LiteralString, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """Thousands of rows: in binary, and not through SQLAlchemy, they cost a quarter."""
        with self._session.limited():
            async with self._session.driver.cursor(binary=True) as cursor:
                await cursor.execute(statement, values)
                return await cursor.fetchall()

    async def span(self, workload: str) -> tuple[datetime, datetime] | None:
        """First and last stored minute, or None."""
        row = (await self._session.execute(_SPAN, {"workload": workload})).one()
        return None if row.first_at is None else (row.first_at, row.last_at)


def _batches(series: Sequence[Series]) -> Iterator[list[Series]]:
    """Parts of at most so many rows as a statement takes; a long series is cut."""
    batch: list[Series] = []
    room = _ROWS_PER_STATEMENT
    for each in series:
        at = each.start
        while at < each.end:
            end = min(each.end, at + room)
            batch.append(each._replace(start=at, end=end))
            at, room = end, room - (end - at)
            if not room:
                yield batch
                batch, room = [], _ROWS_PER_STATEMENT
    if batch:
        yield batch


def encode_rows(columns: Columns, batch: Sequence[Series]) -> Iterator[bytes]:
    """The rows as binary COPY has them, in pieces."""
    unknown = 2 * np.isnan(columns.served_counts) + np.isnan(columns.rejected_counts)
    at_us = (columns.minutes - _COPY_EPOCH_MINUTES) * _MINUTE_US
    for series in batch:
        if series.end - series.start < _LONG:
            yield _encode_short(columns, series, at_us)
            continue
        # In runs of the same unknowns: a NULL has no bytes, so rows differ in length.
        edges = np.flatnonzero(np.diff(unknown[series.start : series.end])) + series.start + 1
        for start, end in pairwise([series.start, *edges.tolist(), series.end]):
            yield _encode_run(columns, series._replace(start=start, end=end), at_us)


# From about so many rows on, an array of them is made faster than each by itself.
_LONG = 24


def _encode_short(columns: Columns, series: Series, at_us: npt.NDArray[np.int64]) -> bytes:
    workload, source = series.workload.encode(), series.source.encode()
    head = struct.pack(">hi", len(_TYPES), len(workload)) + workload
    middle = struct.pack(">i", len(source)) + source
    pieces: list[bytes] = []
    for row in range(series.start, series.end):
        pieces += (
            head,
            struct.pack(">iqid", 8, at_us[row], 8, columns.demand_counts[row]),
            _cell(columns.served_counts[row]),
            _cell(columns.rejected_counts[row]),
            middle,
            struct.pack(">id", 8, columns.coverages[row]),
        )
    return b"".join(pieces)


def _cell(count: float) -> bytes:
    return _NULL if math.isnan(count) else struct.pack(">id", 8, count)


_NULL = struct.pack(">i", -1)


def _encode_run(columns: Columns, run: Series, at_us: npt.NDArray[np.int64]) -> bytes:
    workload, source = run.workload.encode(), run.source.encode()
    rows = slice(run.start, run.end)
    # (width in bytes or None for NULL, type, values), in the order of the columns
    cells: list[tuple[int | None, str, Any]] = [
        (len(workload), f"S{len(workload)}", workload),
        (8, ">i8", at_us[rows]),
        (8, ">f8", columns.demand_counts[rows]),
        *(
            (None if np.isnan(counts[0]) else 8, ">f8", counts)
            for counts in (columns.served_counts[rows], columns.rejected_counts[rows])
        ),
        (len(source), f"S{len(source)}", source),
        (8, ">f8", columns.coverages[rows]),
    ]
    fields: list[tuple[str, str]] = [("count", ">i2")]
    values: dict[str, Any] = {"count": len(cells)}
    for index, (width, kind, value) in enumerate(cells):
        fields.append((f"width{index}", ">i4"))
        values[f"width{index}"] = -1 if width is None else width
        if width is not None:
            fields.append((f"value{index}", kind))
            values[f"value{index}"] = value
    made = np.empty(run.end - run.start, np.dtype(fields))
    for name, value in values.items():
        made[name] = value
    return made.tobytes()
