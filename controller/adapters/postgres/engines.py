"""Engines and their measured profiles, in PostgreSQL. A refused write leaves the transaction usable.

Called through the unit of work.
"""

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from controller.adapters.codec import decode
from controller.adapters.pages import cut, last_key, page_size
from controller.adapters.postgres import tables
from controller.adapters.postgres.database import Session
from controller.core.engines import Engine, EngineProfile
from controller.core.resources import Page
from controller.ports import ConflictError, NotFoundError


class PostgresEngineStore:
    """Implements `controller.ports.EngineStore`."""

    _table = tables.engines
    _profiles = tables.capacity_profiles

    def __init__(self, session: Session) -> None:
        self._session = session

    async def get(self, engine_id: str) -> Engine:
        """Raise NotFoundError if there is none."""
        column = self._table.c
        rows = await self._session.execute(
            select(column.body, column.generation).where(column.name == engine_id)
        )
        row = rows.one_or_none()
        if row is None:
            raise NotFoundError(f"engine {engine_id!r} does not exist")
        return replace(decode(Engine, row.body), generation=row.generation)

    async def create(self, engine: Engine) -> Engine:
        """Raise ConflictError if the id or the digest is taken."""
        engine = replace(engine, generation=1)
        written = await self._session.execute(
            upsert(self._table)
            .values(digest=engine.digest, name=engine.id, generation=1, body=engine)
            .on_conflict_do_nothing()
            .returning(self._table.c.name)
        )
        if written.one_or_none() is None:
            raise ConflictError(f"engine {engine.id!r}, or one of its digest, exists already")
        return engine

    async def update(self, engine: Engine, *, expected_generation: int | None) -> Engine:
        """Raise ConflictError on another generation."""
        column = self._table.c
        conditions = [column.name == engine.id]
        if expected_generation is not None:
            conditions.append(column.generation == expected_generation)
        written = await self._session.execute(
            update(self._table)
            .where(*conditions)
            .values(body=engine, generation=column.generation + 1, written_at=func.clock_timestamp())
            .returning(column.generation)
        )
        generation = written.scalar_one_or_none()
        if generation is None:
            found = await self.get(engine.id)
            raise ConflictError(
                f"engine {engine.id!r} is at generation {found.generation}, not {expected_generation}; read it again"
            )
        return replace(engine, generation=generation)

    async def list(self, page: Page | None = None) -> tuple[Sequence[Engine], str]:
        """Ordered by id."""
        size, key = page_size(page), last_key(page, tuple[str])
        column = self._table.c
        query = select(column.body, column.generation).order_by(column.name).limit(size + 1)
        if key is not None:
            query = query.where(column.name > key[0])
        found = [
            replace(decode(Engine, row.body), generation=row.generation)
            for row in await self._session.execute(query)
        ]
        return cut(found, [(engine.id,) for engine in found], size)

    async def put_profile(self, profile: EngineProfile) -> EngineProfile:
        """Keep the newest measurement of an engine on a GPU type; return what is kept."""
        column = self._profiles.c
        statement = upsert(self._profiles).values(
            engine=profile.engine,
            gpu_type=profile.capacity.gpu_type,
            measured_at=profile.measured_at,
            body=profile,
        )
        await self._session.execute(
            statement.on_conflict_do_update(
                index_elements=["engine", "gpu_type"],
                set_={"measured_at": statement.excluded.measured_at, "body": statement.excluded.body},
                where=column.measured_at <= statement.excluded.measured_at,
            )
        )
        kept = await self._session.execute(
            select(column.body).where(
                column.engine == profile.engine, column.gpu_type == profile.capacity.gpu_type
            )
        )
        return decode(EngineProfile, kept.scalar_one())

    async def profiles(self, engine_ids: Sequence[str] | None = None) -> Sequence[EngineProfile]:
        """Measured profiles of these engines, or of all, by engine and GPU type."""
        column = self._profiles.c
        query = select(column.body).order_by(column.engine, column.gpu_type)
        if engine_ids is not None:
            query = query.where(column.engine.in_(engine_ids))
        rows = await self._session.execute(query.limit(page_size(None)))
        return [decode(EngineProfile, body) for body in rows.scalars()]
