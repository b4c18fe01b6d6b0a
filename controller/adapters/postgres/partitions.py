"""Partitions by time: made when first written to, dropped whole when past their age.

Promises: a partition exists before rows go into it, also when several writers need it at once; making one
blocks neither readers nor writers. There is no default partition: it would turn the making of every later
one into a scan under an exclusive lock. Called by the traffic and decision stores and by maintenance.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from controller.adapters.postgres.database import PARTITION_LOCK, Limits, Session

_MONDAY = datetime(1970, 1, 5, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Partitioned:
    """A table whose partitions each span `period`, counted from a Monday."""

    table: str
    period: timedelta

    def start(self, at: datetime) -> datetime:
        """Start of the partition that holds `at`."""
        # In UTC: subtracting across a change to or from summer time would miss the start by an hour.
        at = at.astimezone(UTC)
        return at - (at - _MONDAY) % self.period

    def name(self, start_at: datetime) -> str:
        """The partition's own table name."""
        return f"{self.table}_{start_at:%Y%m%d}"

    def end(self, name: str) -> datetime:
        """End of the partition with this name."""
        return datetime.strptime(name.rpartition("_")[2], "%Y%m%d").replace(tzinfo=UTC) + self.period


TRAFFIC = Partitioned("traffic_samples", timedelta(weeks=1))
DECISIONS = Partitioned("decisions", timedelta(days=1))


class Partitions:
    """Makes and drops partitions, each change in a transaction of its own."""

    def __init__(self, engine: AsyncEngine, limits: Limits) -> None:
        self._engine = (
            engine  # without a pool: a writer that already holds a connection must not wait for one
        )
        self._limits = limits

    async def ensure(self, session: Session, partitioned: Partitioned, times: Iterable[datetime]) -> None:
        """Make the partitions for `times` that are missing."""
        names = {partitioned.name(start): start for start in {partitioned.start(at) for at in times}}
        missing = (await session.execute(_MISSING, {"names": list(names)})).scalars().all()
        if not missing:
            return
        own = await Session.open(self._engine, self._limits)
        try:
            await own.execute(_LOCK)
            for name in (await own.execute(_MISSING, {"names": list(missing)})).scalars().all():
                # Created apart and then attached, because CREATE … PARTITION OF would lock out every reader.
                start = names[name]
                bounds = f"FROM ('{start.isoformat()}') TO ('{(start + partitioned.period).isoformat()}')"
                await own.execute(text(f"CREATE TABLE {name} (LIKE {partitioned.table} INCLUDING ALL)"))
                await own.execute(
                    text(f"ALTER TABLE {partitioned.table} ATTACH PARTITION {name} FOR VALUES {bounds}")
                )
            await own.commit()
        finally:
            await own.close()

    async def drop_before(self, partitioned: Partitioned, before: datetime) -> int:
        """Drop partitions that ended at or before `before`; return how many."""
        own = await Session.open(self._engine, self._limits)
        try:
            await own.execute(_LOCK)
            names = (await own.execute(_CHILDREN, {"table": partitioned.table})).scalars().all()
            old = [name for name in names if partitioned.end(name) <= before]
            for name in old:
                await own.execute(text(f"DROP TABLE {name}"))
                await own.commit()  # one exclusive lock at a time, held briefly
                await own.execute(_LOCK)
        finally:
            await own.close()
        return len(old)


_LOCK = text(f"SELECT pg_advisory_xact_lock({PARTITION_LOCK})")
_MISSING = text("SELECT name FROM unnest(CAST(:names AS text[])) AS name WHERE to_regclass(name) IS NULL")
_CHILDREN = text(
    "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
    # A partition that somebody attached under another name is theirs to drop.
    "WHERE i.inhparent = to_regclass(:table) AND c.relname ~ (:table || '_[0-9]{8}$') ORDER BY c.relname"
)
