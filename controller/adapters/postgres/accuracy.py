"""What forecasts are made of and how good they were, in PostgreSQL.

Promises: an hour scored again replaces the first; parts are immutable; a standing is replaced whole. Called
through the unit of work.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy import Text, cast, func, select
from sqlalchemy.dialects.postgresql import ARRAY, insert

from controller.accuracy import HourScore, Parts, Standing
from controller.adapters.codec import decode
from controller.adapters.postgres import tables
from controller.adapters.postgres.database import Session


class PostgresAccuracyStore:
    """Implements `controller.ports.AccuracyStore`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def put_parts(self, parts: Parts) -> None:
        """Store what a forecast is made of; the same forecast again is a no-op."""
        await self._session.execute(
            insert(tables.forecast_parts)
            .values(
                forecast_id=parts.forecast_id,
                created_at=parts.created_at,
                body=replace(parts, trend=(), event=(), correction=()),
                parts=[list(parts.trend), list(parts.event), list(parts.correction)],
            )
            .on_conflict_do_nothing()
        )

    async def parts(self, forecast_id: str) -> Parts | None:
        """What a forecast is made of, or None."""
        column = tables.forecast_parts.c
        rows = await self._session.execute(
            select(column.body, column.parts).where(column.forecast_id == forecast_id)
        )
        row = rows.one_or_none()
        if row is None:
            return None
        # The driver reads the shortest text of a single as a double; what was stored is the single it stands for.
        trend, event, correction = (tuple(array("f", part)) for part in row.parts)
        return replace(decode(Parts, row.body), trend=trend, event=event, correction=correction)

    async def put_scores(self, workload: str, hours: Sequence[HourScore]) -> None:
        """Store scored hours; the same hour again replaces the first."""
        if not hours:
            return
        statement = insert(tables.forecast_scores)
        await self._session.execute(
            statement.on_conflict_do_update(
                index_elements=["workload", "start_at"], set_={"body": statement.excluded.body}
            ),
            [{"workload": workload, "start_at": hour.start_at, "body": hour} for hour in hours],
        )

    async def scores(self, workload: str, start_at: datetime, end_at: datetime) -> Sequence[HourScore]:
        """Scored hours that began in the window, oldest first."""
        column = tables.forecast_scores.c
        rows = await self._session.execute(
            select(column.body)
            .where(column.workload == workload, column.start_at >= start_at, column.start_at < end_at)
            .order_by(column.start_at)
        )
        return [decode(HourScore, body) for body in rows.scalars()]

    async def scored_until(self, workload: str) -> datetime | None:
        """Start of the last scored hour, or None."""
        column = tables.forecast_scores.c
        rows = await self._session.execute(
            select(func.max(column.start_at)).where(column.workload == workload)
        )
        found: datetime | None = rows.scalar_one()
        return found

    async def put_standing(self, standing: Standing) -> None:
        """Replace a workload's standing."""
        statement = insert(tables.forecast_standings).values(workload=standing.workload, body=standing)
        await self._session.execute(
            statement.on_conflict_do_update(
                index_elements=["workload"],
                set_={"body": statement.excluded.body, "written_at": func.clock_timestamp()},
            )
        )

    async def standings(self, workloads: Sequence[str]) -> Mapping[str, Standing]:
        """Standings of workloads that have one."""
        column = tables.forecast_standings.c
        rows = await self._session.execute(
            select(column.workload, column.body).where(
                column.workload == func.any(cast(list(workloads), ARRAY(Text)))
            )
        )
        return {row.workload: decode(Standing, row.body) for row in rows}

    async def standing(self, workload: str) -> Standing | None:
        """A workload's standing, or None before the first."""
        column = tables.forecast_standings.c
        rows = await self._session.execute(select(column.body).where(column.workload == workload))
        body = rows.scalar_one_or_none()
        return None if body is None else decode(Standing, body)
