"""Partitions by time: made ahead, or when first written to; dropped whole when past their age.

Promises: a partition exists before rows go into it, also when several writers need it at once; making one
blocks neither readers nor writers. There is no default partition: it would turn the making of every later
one into a scan under an exclusive lock. Called by the traffic and decision stores and by maintenance.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from controller.adapters.postgres.database import PARTITION_LOCK, Limits, Session
from controller.ports import UnavailableError

log = logging.getLogger(__name__)

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

    async def make_ahead(self, partitioned: Partitioned, now: datetime, count: int) -> None:
        """Make the partitions of `now` and of the `count` periods after it, so that no writer has to."""
        own = await Session.open(self._engine, self._limits)
        try:
            times = [now + partitioned.period * index for index in range(count + 1)]
            await self.ensure(own, partitioned, times)
        finally:
            await own.close()

    async def drop_before(self, partitioned: Partitioned, before: datetime) -> int:
        """Drop partitions that ended at or before `before`; return how many.

        A drop locks the whole table, and who waits for that lock keeps all others waiting: so it waits briefly, a
        few times, and leaves the rest to the next maintenance.
        """
        own = await Session.open(self._engine, self._limits)
        try:
            names = (await own.execute(_CHILDREN, {"table": partitioned.table})).scalars().all()
        finally:
            await own.close()
        old = [name for name in names if partitioned.end(name) <= before]
        for count, name in enumerate(old):
            if not await self._drop(name):
                log.warning("partition %s is in use and stays until the next maintenance", name)
                return count
        return len(old)

    async def _drop(self, name: str) -> bool:
        for _ in range(_DROP_ATTEMPTS):
            own = await Session.open(self._engine, self._limits)
            try:
                await own.execute(_LOCK)
                await own.execute(_BRIEFLY)
                await own.execute(text(f"DROP TABLE {name}"))
                await own.commit()
            except UnavailableError as error:
                log.debug("partition %s not dropped yet: %s", name, error)
            else:
                return True
            finally:
                await own.close()
        return False


_DROP_ATTEMPTS = 5
_BRIEFLY = text("SET LOCAL lock_timeout = '200ms'")
_LOCK = text(f"SELECT pg_advisory_xact_lock({PARTITION_LOCK})")
_MISSING = text("SELECT name FROM unnest(CAST(:names AS text[])) AS name WHERE to_regclass(name) IS NULL")
_CHILDREN = text(
    "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
    # A partition that somebody attached under another name is theirs to drop.
    "WHERE i.inhparent = to_regclass(:table) AND c.relname ~ (:table || '_[0-9]{8}$') ORDER BY c.relname"
)
