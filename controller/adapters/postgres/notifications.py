"""The outbox of notifications in PostgreSQL, and what is remembered of alarms that went.

Promises: one row per sink and notification, for ever the first; a claim and the outcome of it are one statement each, so
two that claim at once share nothing. Called through the unit of work.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Text, cast, delete, exists, func, or_, select, text, tuple_, update
from sqlalchemy.dialects.postgresql import ARRAY, insert

from controller.adapters.codec import decode
from controller.adapters.pages import cut, last_key, page_size
from controller.adapters.postgres import tables
from controller.adapters.postgres.database import Session
from controller.core.resources import Page
from controller.notify.types import Backlog, Delivery, DeliveryState, Held, Notification

# The rows are locked as they are found: of two that ask, the second passes over what the first has taken.
_CLAIM = text("""
    WITH due AS (
        SELECT sink, id FROM notifications
        WHERE sink = :sink AND state = 'PENDING' AND (next_at IS NULL OR next_at <= :now)
        ORDER BY at, id LIMIT :limit FOR UPDATE SKIP LOCKED
    )
    UPDATE notifications AS n SET attempt_count = n.attempt_count + 1, next_at = :until
    FROM due WHERE n.sink = due.sink AND n.id = due.id
    RETURNING n.sink, n.state, n.attempt_count, n.next_at, n.settled_at, n.error, n.body
""")


class PostgresNotificationStore:
    """Implements `controller.ports.NotificationStore`."""

    _table = tables.notifications
    _column = tables.notifications.c

    def __init__(self, session: Session) -> None:
        self._session = session

    async def add(self, deliveries: Sequence[Delivery]) -> None:
        """Store them; the same notification for the same sink again is a no-op."""
        if not deliveries:
            return
        await self._session.execute(
            insert(self._table).on_conflict_do_nothing(),
            [
                {
                    "sink": one.sink,
                    "id": one.notification.id,
                    "at": one.notification.at,
                    "workload": one.notification.workload,
                    "state": one.state.value,
                    "attempt_count": one.attempt_count,
                    "next_at": one.next_at,
                    "settled_at": one.settled_at,
                    "error": one.error,
                    "body": one.notification,
                }
                for one in deliveries
            ],
        )

    async def held(self, keys: Collection[str], away_before: datetime) -> Sequence[Held]:
        """Those of these keys, and all of registered workloads that have been away for long enough."""
        column = tables.alarm_holds.c
        registered = exists().where(tables.workloads.c.name == column.workload)
        rows = await self._session.execute(
            select(column.body).where(
                or_(
                    column.key == func.any(cast(list(keys), ARRAY(Text))),
                    (column.away_since_at <= away_before) & registered,
                )
            )
        )
        return [decode(Held, body) for body in rows.scalars()]

    async def keep_held(self, kept: Sequence[Held], forgotten: Collection[str], now: datetime) -> None:
        """Replace by key."""
        if forgotten:
            gone = tables.alarm_holds.c.key == func.any(cast(list(forgotten), ARRAY(Text)))
            await self._session.execute(delete(tables.alarm_holds).where(gone))
        if kept:
            written = insert(tables.alarm_holds)
            news = {c: written.excluded[c] for c in ("away_since_at", "written_at", "body")}
            await self._session.execute(
                written.on_conflict_do_update(index_elements=["key"], set_=news),
                [
                    {
                        "key": one.alarm.key,
                        "workload": one.alarm.workload,
                        "away_since_at": one.away_since_at,
                        "written_at": now,
                        "body": one,
                    }
                    for one in kept
                ],
            )

    async def claim(self, sink: str, now: datetime, until: datetime, limit: int) -> Sequence[Delivery]:
        """Take what is due, oldest first; nobody else gets it before `until`."""
        rows = await self._session.execute(_CLAIM, {"sink": sink, "now": now, "until": until, "limit": limit})
        found = [_delivery(row) for row in rows]
        return sorted(found, key=lambda one: (one.notification.at, one.notification.id))

    async def settle(
        self, claimed: Delivery, state: DeliveryState, now: datetime, *, next_at: datetime | None, error: str
    ) -> bool:
        """Say what came of a claim; False when it was claimed again since, or is settled."""
        column = self._column
        written = await self._session.execute(
            update(self._table)
            .where(
                column.sink == claimed.sink,
                column.id == claimed.notification.id,
                column.state == DeliveryState.PENDING.value,
                column.attempt_count == claimed.attempt_count,
            )
            .values(
                state=state.value,
                next_at=next_at,
                settled_at=None if state is DeliveryState.PENDING else now,
                error=error,
            )
        )
        return bool(written.rowcount)

    async def expire(self, before: datetime, now: datetime, error: str) -> int:
        """Give up what is older and still pending; return how many."""
        column = self._column
        written = await self._session.execute(
            update(self._table)
            .where(column.state == DeliveryState.PENDING.value, column.at < before)
            .values(state=DeliveryState.DEAD.value, next_at=None, settled_at=now, error=error)
        )
        return written.rowcount

    async def backlogs(self) -> Mapping[str, Backlog]:
        """What each sink has not got, by sink."""
        column = self._column
        rows = await self._session.execute(
            select(
                column.sink,
                column.state,
                func.count().label("row_count"),
                func.min(column.at).label("oldest_at"),
            )
            .where(column.state != DeliveryState.DELIVERED.value)
            .group_by(column.sink, column.state)
        )
        found: dict[str, dict[str, Any]] = {}
        for row in rows:
            kept = found.setdefault(row.sink, {})
            if row.state == DeliveryState.PENDING.value:
                kept |= {"pending_count": row.row_count, "oldest_at": row.oldest_at}
            else:
                kept |= {"dead_count": row.row_count}
        return {sink: Backlog(**kept) for sink, kept in found.items()}

    async def list(
        self,
        *,
        page: Page | None = None,
        sink: str | None = None,
        state: DeliveryState | None = None,
        workload: str | None = None,
    ) -> tuple[Sequence[Delivery], str]:
        """Newest first, then by sink and id."""
        size, key = page_size(page), last_key(page, tuple[datetime, str, str])
        column = self._column
        place = tuple_(column.at, column.sink, column.id)
        query = select(self._table).order_by(column.at.desc(), column.sink.desc(), column.id.desc())
        if key is not None:
            query = query.where(place < tuple_(*key))
        if sink is not None:
            query = query.where(column.sink == sink)
        if state is not None:
            query = query.where(column.state == state.value)
        if workload is not None:
            query = query.where(column.workload == workload)
        rows = await self._session.execute(query.limit(size + 1))
        found = [_delivery(row) for row in rows]
        return cut(found, [(one.notification.at, one.sink, one.notification.id) for one in found], size)


def _delivery(row: Row[Any]) -> Delivery:
    return Delivery(
        sink=row.sink,
        notification=decode(Notification, row.body),
        state=DeliveryState(row.state),
        attempt_count=row.attempt_count,
        next_at=row.next_at,
        settled_at=row.settled_at,
        error=row.error,
    )
