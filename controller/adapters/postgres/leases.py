"""Leadership in PostgreSQL, by its clock.

Promises: at most one holder at a time, as the database sees time; the token grows with every change of
holder and when the lease is given up, so an old token never becomes valid again; whoever takes any lease gets a
greater token than everybody before. Has a connection of its
own: a busy store must not cost the leader its lease. Called by the loop's leader election.
"""

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import Row, text

from controller.adapters.postgres.database import Limits, Session, make_engine
from controller.core.resources import Lease

# A renewal is an UPDATE that leaves the token alone, so it does not wait for transactions that hold the
# fence (see `tables.leases`). Only when it finds nothing to renew does the lease change hands.
_ACQUIRE = text("""
    WITH renewed AS (
        UPDATE leases SET expires_at = clock_timestamp() + :duration
        WHERE name = :name AND holder = :holder
        RETURNING name, holder, token, expires_at
    ), taken AS (
        INSERT INTO leases (name, holder, token, expires_at)
        SELECT :name, :holder, nextval('lease_tokens'), clock_timestamp() + :duration
        WHERE NOT EXISTS (SELECT FROM renewed)
            -- a follower that asks while the lease is held takes no lock on it
            AND NOT EXISTS (SELECT FROM leases WHERE name = :name AND expires_at > clock_timestamp())
        ON CONFLICT (name) DO UPDATE
            SET holder = excluded.holder, token = greatest(excluded.token, leases.token + 1),
                expires_at = clock_timestamp() + :duration
            WHERE leases.expires_at <= clock_timestamp()
        RETURNING name, holder, token, expires_at
    )
    SELECT * FROM renewed UNION ALL SELECT * FROM taken
""")
_RELEASE = text("""
    UPDATE leases SET holder = '', token = token + 1, expires_at = clock_timestamp()
    WHERE name = :name AND holder = :holder AND token = :token
""")
_CURRENT = text("""
    SELECT name, holder, token, expires_at FROM leases
    WHERE name = :name AND expires_at > clock_timestamp()
""")
_LIVE = text(
    "SELECT name, holder, token, expires_at FROM leases WHERE expires_at > clock_timestamp() ORDER BY name"
)


class PostgresLeaseStore:
    """Implements `controller.ports.LeaseStore`."""

    def __init__(self, url: str, limits: Limits | None = None) -> None:
        self._limits = limits or Limits(connection_count=2, statement_s=5)
        self._engine = make_engine(url, self._limits)

    async def acquire(self, name: str, holder: str, duration: timedelta) -> Lease | None:
        """Take or renew the lease; None while another holds it."""
        if not name or not holder:
            raise ValueError("name, holder: are empty; both must name somebody")
        if duration <= timedelta(0):
            raise ValueError(f"duration: {duration} is not a positive duration")
        session = await Session.open(self._engine, self._limits)
        try:
            rows = await session.execute(_ACQUIRE, {"name": name, "holder": holder, "duration": duration})
            row = rows.one_or_none()
            await session.commit()
        finally:
            await session.close()
        return None if row is None else _lease(row)

    async def release(self, lease: Lease) -> None:
        """Give it up; its token is stale from now on. Releasing a lost lease is a no-op."""
        session = await Session.open(self._engine, self._limits)
        try:
            await session.execute(
                _RELEASE, {"name": lease.name, "holder": lease.holder, "token": lease.token}
            )
            await session.commit()
        finally:
            await session.close()

    async def current(self, name: str) -> Lease | None:
        """Who holds it now, if anybody."""
        session = await Session.open(self._engine, self._limits)
        try:
            row = (await session.execute(_CURRENT, {"name": name})).one_or_none()
        finally:
            await session.close()
        return None if row is None else _lease(row)

    async def live(self) -> Sequence[Lease]:
        """Every lease that is held now, by name."""
        session = await Session.open(self._engine, self._limits)
        try:
            return [_lease(row) for row in await session.execute(_LIVE)]
        finally:
            await session.close()

    async def close(self) -> None:
        """Release every connection."""
        await self._engine.dispose()


def _lease(row: Row[tuple[object, ...]]) -> Lease:
    return Lease(name=row.name, holder=row.holder, token=row.token, expires_at=row.expires_at)
