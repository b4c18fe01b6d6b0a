"""What people register, in PostgreSQL: workloads, events, request ids, the audit log.

Promises: a change is refused, not merged, when somebody else changed the resource first; events keep every
revision. A refused write leaves the transaction usable. Called through the unit of work.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NoReturn

from sqlalchemy import ColumnElement, Text, cast, delete, func, insert, or_, select, text, tuple_, update
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import insert as upsert

from controller.adapters.codec import decode
from controller.adapters.pages import cut, last_key, page_size
from controller.adapters.postgres import tables
from controller.adapters.postgres.database import Session
from controller.core.resources import AuditEntry, Page, TrafficEvent
from controller.core.types import Workload
from controller.ports import ConflictError, NotFoundError

_MARKS = text("SELECT name, CAST(xmin AS text) || '/' || generation AS mark FROM workloads")
_KNOWN = text("SELECT name FROM workloads WHERE name = ANY(CAST(:names AS text[]))")


class PostgresWorkloadStore:
    """Implements `controller.ports.WorkloadStore`."""

    _table = tables.workloads

    def __init__(self, session: Session) -> None:
        self._session = session

    async def get(self, name: str) -> Workload:
        """Raise NotFoundError if there is none."""
        rows = await self._session.execute(
            select(self._table.c.body, self._table.c.generation).where(self._table.c.name == name)
        )
        row = rows.one_or_none()
        if row is None:
            raise NotFoundError(f"workload {name!r} does not exist")
        return replace(decode(Workload, row.body), generation=row.generation)

    async def known(self, names: Collection[str]) -> set[str]:
        """Which of these exist."""
        return set((await self._session.execute(_KNOWN, {"names": list(names)})).scalars())

    async def marks(self) -> Mapping[str, str]:
        """A mark per workload that changes with every write of it: what wrote the row, and which of its writes."""
        return {row.name: row.mark for row in await self._session.execute(_MARKS)}

    async def many(self, names: Collection[str]) -> Sequence[Workload]:
        """Those of these that exist."""
        rows = await self._session.execute(
            select(self._table.c.body, self._table.c.generation).where(
                self._table.c.name == func.any(cast(list(names), ARRAY(Text)))
            )
        )
        return [replace(decode(Workload, row.body), generation=row.generation) for row in rows]

    async def create(self, workload: Workload) -> Workload:
        """Raise ConflictError if the name is taken."""
        workload = replace(workload, generation=1)
        written = await self._session.execute(
            upsert(self._table)
            .values(name=workload.name, generation=1, body=workload)
            .on_conflict_do_nothing()
            .returning(self._table.c.name)
        )
        if written.one_or_none() is None:
            raise ConflictError(f"workload {workload.name!r} exists already; update it instead")
        return workload

    async def update(self, workload: Workload, *, expected_generation: int | None) -> Workload:
        """Replace the spec. Raise ConflictError on another generation."""
        written = await self._session.execute(
            update(self._table)
            .where(*self._at(workload.name, expected_generation))
            .values(body=workload, generation=self._table.c.generation + 1, written_at=func.clock_timestamp())
            .returning(self._table.c.generation)
        )
        generation = written.scalar_one_or_none()
        if generation is None:
            await self._refuse(workload.name, expected_generation)
        return replace(workload, generation=generation)

    async def delete(self, name: str, *, expected_generation: int | None) -> None:
        """Delete the spec. Raise ConflictError on another generation."""
        written = await self._session.execute(
            delete(self._table).where(*self._at(name, expected_generation)).returning(self._table.c.body)
        )
        row = written.one_or_none()
        if row is None:
            await self._refuse(name, expected_generation)
        namespace = decode(Workload, row.body).namespace
        await self._session.execute(
            upsert(tables.workload_remains)
            .values(name=name, namespace=namespace)
            .on_conflict_do_update(index_elements=["name"], set_={"namespace": namespace})
        )
        # It is gone from now on, however long its state had stood: one that is declared again soon continues.
        await self._session.execute(
            update(tables.workload_states)
            .where(tables.workload_states.c.workload == name)
            .values(written_at=func.clock_timestamp())
        )

    async def remains_in(self, name: str) -> str | None:
        """Namespace of the workload of that name that was deleted last."""
        table = tables.workload_remains
        rows = await self._session.execute(select(table.c.namespace).where(table.c.name == name))
        return rows.scalar_one_or_none()

    def _at(self, name: str, generation: int | None) -> list[ColumnElement[bool]]:
        conditions = [self._table.c.name == name]
        if generation is not None:
            conditions.append(self._table.c.generation == generation)
        return conditions

    async def _refuse(self, name: str, expected: int | None) -> NoReturn:
        found = await self.get(name)
        raise ConflictError(
            f"workload {name!r} is at generation {found.generation}, not {expected}; read it again"
        )

    async def list(self, page: Page | None = None) -> tuple[Sequence[Workload], str]:
        """Ordered by name."""
        size, key = page_size(page), last_key(page, tuple[str])
        query = select(self._table.c.body, self._table.c.generation).order_by(self._table.c.name)
        if key is not None:
            query = query.where(self._table.c.name > key[0])
        rows = await self._session.execute(query.limit(size + 1))
        found = [replace(decode(Workload, row.body), generation=row.generation) for row in rows]
        return cut(found, [(workload.name,) for workload in found], size)


class PostgresEventStore:
    """Implements `controller.ports.EventStore`."""

    _table = tables.traffic_events

    def __init__(self, session: Session) -> None:
        self._session = session

    async def get(self, event_id: str) -> TrafficEvent:
        """Raise NotFoundError if there is none."""
        rows = await self._session.execute(select(self._table.c.body).where(self._table.c.id == event_id))
        body = rows.scalar_one_or_none()
        if body is None:
            raise NotFoundError(f"event {event_id!r} does not exist")
        return decode(TrafficEvent, body)

    async def create(self, event: TrafficEvent) -> TrafficEvent:
        """Raise ConflictError if the id is taken."""
        event = replace(event, revision=1)
        written = await self._session.execute(
            upsert(self._table)
            .values(**_event_columns(event))
            .on_conflict_do_nothing()
            .returning(self._table.c.id)
        )
        if written.one_or_none() is None:
            raise ConflictError(f"event {event.id!r} exists already; update it, or choose another id")
        await self._keep_revision(event)
        return event

    async def update(self, event: TrafficEvent, *, expected_revision: int | None) -> TrafficEvent:
        """Store a new revision. Raise ConflictError on another revision."""
        rows = await self._session.execute(
            select(self._table.c.revision).where(self._table.c.id == event.id).with_for_update()
        )
        revision = rows.scalar_one_or_none()
        if revision is None:
            raise NotFoundError(f"event {event.id!r} does not exist")
        if expected_revision not in {None, revision}:
            raise ConflictError(
                f"event {event.id!r} is at revision {revision}, not {expected_revision}; read it again"
            )
        event = replace(event, revision=revision + 1)
        await self._session.execute(
            update(self._table)
            .where(self._table.c.id == event.id)
            .values(**_event_columns(event), written_at=func.clock_timestamp())
        )
        await self._keep_revision(event)
        return event

    async def _keep_revision(self, event: TrafficEvent) -> None:
        await self._session.execute(
            insert(tables.event_revisions).values(id=event.id, revision=event.revision, body=event)
        )

    async def list(
        self,
        *,
        page: Page | None = None,
        workload: str | None = None,
        states: Sequence[str] = (),
        category: str | None = None,
        overlaps: tuple[datetime, datetime] | None = None,
        order_by: str = "start_at",
        descending: bool = False,
    ) -> tuple[Sequence[TrafficEvent], str]:
        """Ordered by (order_by, id)."""
        size = page_size(page)
        key = last_key(page, tuple[str, str] if order_by == "id" else tuple[datetime, str])
        column = self._table.c
        rank = tuple_(column[order_by], column.id)
        order = [c.desc() if descending else c.asc() for c in (column[order_by], column.id)]
        query = select(column.body).order_by(*order).limit(size + 1)
        if key is not None:
            query = query.where(rank < tuple_(*key) if descending else rank > tuple_(*key))
        if workload is not None:
            query = query.where(column.workloads.contains([workload]))
        if states:
            query = query.where(column.state.in_(states))
        if category is not None:
            query = query.where(column.category == category)
        if overlaps is not None:
            start_at, end_at = overlaps
            query = query.where(column.start_at < end_at, or_(column.recurring, column.end_at > start_at))
        rows = await self._session.execute(query)
        found = [decode(TrafficEvent, body) for body in rows.scalars()]
        return cut(found, [(getattr(event, order_by), event.id) for event in found], size)

    async def revisions(self, event_id: str) -> Sequence[TrafficEvent]:
        """Oldest first."""
        column = tables.event_revisions.c
        rows = await self._session.execute(
            select(column.body).where(column.id == event_id).order_by(column.revision)
        )
        return [decode(TrafficEvent, body) for body in rows.scalars()]


def _event_columns(event: TrafficEvent) -> dict[str, object]:
    return {
        "id": event.id,
        "revision": event.revision,
        "start_at": event.start_at,
        "end_at": event.end_at,
        "recurring": event.recurring,
        "state": event.state.value,
        "category": event.category,
        "workloads": list(event.workloads),
        "body": event,
    }


class PostgresRecordStore:
    """Implements `controller.ports.RecordStore`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def remember(self, key: str, body_digest: str, response: bytes, now: datetime) -> None:
        """Raise ConflictError if the key exists; waits for a transaction that is about to write it."""
        written = await self._session.execute(
            upsert(tables.idempotency_keys)
            .values(key=key, body_digest=body_digest, response=response, created_at=now)
            .on_conflict_do_nothing()
            .returning(tables.idempotency_keys.c.key)
        )
        if written.one_or_none() is None:
            raise ConflictError(f"request_id {key!r} was used already; recall its response")

    async def recall(self, key: str) -> tuple[str, bytes] | None:
        """(body digest, response) of an earlier call with this request id."""
        column = tables.idempotency_keys.c
        rows = await self._session.execute(
            select(column.body_digest, column.response).where(column.key == key)
        )
        row = rows.one_or_none()
        return None if row is None else (row.body_digest, bytes(row.response))

    async def audit(self, entry: AuditEntry) -> None:
        """Append to the audit log."""
        await self._session.execute(
            insert(tables.audit_log).values(
                at=entry.at,
                principal=entry.principal,
                method=entry.method,
                resource=entry.resource,
                body=entry,
            )
        )

    async def entries(
        self,
        *,
        page: Page | None = None,
        principal: str | None = None,
        method: str | None = None,
        resource: str | None = None,
        outcome: str | None = None,
        start_at: datetime | None = None,
        end_at: datetime | None = None,
    ) -> tuple[Sequence[AuditEntry], str]:
        """The audit log, newest written first."""
        size, key = page_size(page), last_key(page, tuple[int])
        column = tables.audit_log.c
        query = select(column.id, column.body).order_by(column.id.desc()).limit(size + 1)
        if key is not None:
            query = query.where(column.id < key[0])
        for matches, value in (
            (column.principal, principal),
            (column.method, method),
            (column.resource, resource),
        ):
            if value is not None:
                query = query.where(matches == value)
        if outcome is not None:
            query = query.where(column.body["outcome"].astext == outcome)
        if start_at is not None:
            query = query.where(column.at >= start_at)
        if end_at is not None:
            query = query.where(column.at < end_at)
        rows = list(await self._session.execute(query))
        return cut([decode(AuditEntry, row.body) for row in rows], [(row.id,) for row in rows], size)
