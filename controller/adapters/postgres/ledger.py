"""What the loop computes and remembers, in PostgreSQL: forecasts, plans, decisions, states, warm-ups.

Promises: records are immutable, so storing one again is a no-op; state is replaced whole. Called through the
unit of work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, UnaryExpression, delete, func, select, text, tuple_
from sqlalchemy.dialects.postgresql import insert

from controller.adapters.codec import decode
from controller.adapters.pages import cut, last_key, page_size
from controller.adapters.postgres import tables
from controller.adapters.postgres.database import Session
from controller.adapters.postgres.partitions import DECISIONS, Partitions
from controller.core.leadtime import LeadSample
from controller.core.resources import ForecastRun, Outcome, Page, PauseState
from controller.core.types import CapacityPlan, Contract, Decision, ForecastBand, Override, WorkloadState
from controller.ports import NotFoundError

# One look into the index per workload, however many runs each has.
_NEWEST = text("""
    SELECT name AS workload, run.id FROM unnest(CAST(:workloads AS text[])) AS name CROSS JOIN LATERAL (
        SELECT id FROM forecasts WHERE workload = name ORDER BY origin_at DESC, created_at DESC, id LIMIT 1
    ) AS run
""")


class PostgresForecastStore:
    """Implements `controller.ports.ForecastStore`."""

    _column = tables.forecasts.c

    def __init__(self, session: Session) -> None:
        self._session = session

    async def save(self, run: ForecastRun, band: ForecastBand) -> None:
        """Store a run. The same id again is a no-op."""
        if run.id != band.id:
            raise ValueError(f"band.id: {band.id!r} belongs to another run than {run.id!r}")
        await self._session.execute(
            insert(tables.forecasts)
            .values(
                id=run.id,
                workload=run.workload,
                origin_at=run.origin_at,
                created_at=run.created_at,
                state=band.state.value,
                run=run,
                band=replace(band, qps=()),
                qps=[list(step) for step in band.qps],
            )
            .on_conflict_do_nothing()
        )

    async def latest(self, workload: str) -> tuple[ForecastRun, ForecastBand] | None:
        """The newest run by origin."""
        return await self._first(workload, self._column.origin_at.desc(), self._column.created_at.desc())

    async def as_of(self, workload: str, at: datetime) -> tuple[ForecastRun, ForecastBand] | None:
        """The run that was the newest at `at` (by created_at)."""
        return await self._first(
            workload, self._column.created_at.desc(), where=(self._column.created_at <= at,)
        )

    async def newest(self, workloads: Sequence[str]) -> Mapping[str, str]:
        """Id of the newest run by origin, for workloads that have any."""
        rows = await self._session.execute(_NEWEST, {"workloads": list(workloads)})
        return {row.workload: row.id for row in rows}

    async def put_said(self, workload: str, record: bytes) -> None:
        """Replace what near demand remembers of a workload's forecasts."""
        statement = insert(tables.forecasts_said).values(workload=workload, record=record)
        await self._session.execute(
            statement.on_conflict_do_update(
                index_elements=["workload"],
                set_={"record": statement.excluded.record, "written_at": func.clock_timestamp()},
            )
        )

    async def said(self, workload: str) -> bytes | None:
        """What was put last, or None."""
        table = tables.forecasts_said
        rows = await self._session.execute(select(table.c.record).where(table.c.workload == workload))
        return rows.scalar_one_or_none()

    async def _first(
        self, workload: str, *order: UnaryExpression[Any], where: tuple[ColumnElement[bool], ...] = ()
    ) -> tuple[ForecastRun, ForecastBand] | None:
        rows = await self._session.execute(
            select(self._column.run, self._column.band, self._column.qps)
            .where(self._column.workload == workload, *where)
            .order_by(*order, self._column.id)
            .limit(1)
        )
        row = rows.one_or_none()
        if row is None:
            return None
        qps = tuple(tuple(step) for step in row.qps)
        return decode(ForecastRun, row.run), replace(decode(ForecastBand, row.band), qps=qps)


class PostgresDecisionStore:
    """Implements `controller.ports.DecisionStore`."""

    def __init__(self, session: Session, partitions: Partitions) -> None:
        self._session = session
        self._partitions = partitions
        self.fence: int | None = None  # under which the transaction writes

    async def append(self, decisions: Sequence[Decision]) -> None:
        """Store decisions; the same id again is a no-op."""
        if not decisions:
            return
        await self._partitions.ensure(self._session, DECISIONS, {decision.at for decision in decisions})
        await self._session.execute(
            insert(tables.decisions).on_conflict_do_nothing(),
            [
                {
                    "id": decision.id,
                    "at": decision.at,
                    "workload": decision.workload,
                    "current_replicas": decision.current_replicas,
                    "desired_replicas": decision.desired_replicas,
                    "reason": decision.reason.value,
                    "fence": self.fence,
                    "body": decision,
                }
                for decision in decisions
            ],
        )

    async def outcome(self, outcome: Outcome) -> None:
        """Attach what came of a decision; a later outcome replaces an earlier one."""
        statement = insert(tables.outcomes).values(
            decision_id=outcome.decision_id, at=outcome.at, body=outcome
        )
        await self._session.execute(
            statement.on_conflict_do_update(
                index_elements=["decision_id"],
                set_={"at": statement.excluded.at, "body": statement.excluded.body},
                where=tables.outcomes.c.at <= statement.excluded.at,
            )
        )

    async def get(self, decision_id: str) -> tuple[Decision, Outcome | None]:
        """Raise NotFoundError if there is none."""
        rows = await self._session.execute(_DECISIONS.where(tables.decisions.c.id == decision_id).limit(1))
        row = rows.one_or_none()
        if row is None:
            raise NotFoundError(f"decision {decision_id!r} does not exist, or is past its retention")
        return _decision(row)

    async def list(
        self,
        *,
        workload: str | None = None,
        start_at: datetime | None = None,
        end_at: datetime | None = None,
        changes_only: bool = False,
        oldest_first: bool = False,
        page: Page | None = None,
    ) -> tuple[Sequence[tuple[Decision, Outcome | None]], str]:
        """Newest first unless asked otherwise; the window is half open."""
        size, key = page_size(page), last_key(page, tuple[datetime, str])
        column = tables.decisions.c
        place = tuple_(column.at, column.id)
        if oldest_first:
            query = _DECISIONS.order_by(column.at, column.id).limit(size + 1)
        else:
            query = _DECISIONS.order_by(column.at.desc(), column.id.desc()).limit(size + 1)
        if key is not None:
            query = query.where(place > tuple_(*key) if oldest_first else place < tuple_(*key))
        if workload is not None:
            query = query.where(column.workload == workload)
        if start_at is not None:
            query = query.where(column.at >= start_at)
        if end_at is not None:
            query = query.where(column.at < end_at)
        if changes_only:
            query = query.where(column.current_replicas != column.desired_replicas)
        found = [_decision(row) for row in await self._session.execute(query)]
        return cut(found, [(decision.at, decision.id) for decision, _ in found], size)

    async def save_plan(self, plan: CapacityPlan) -> None:
        """Store an immutable revision; the same (workload, revision) again is a no-op."""
        await self._session.execute(
            insert(tables.capacity_plans)
            .values(
                workload=plan.workload,
                revision=plan.revision,
                created_at=plan.created_at,
                digest=plan.digest,
                body=plan,
            )
            .on_conflict_do_nothing()
        )

    async def plan(self, workload: str, revision: int | None = None) -> CapacityPlan:
        """Raise NotFoundError if there is none."""
        column = tables.capacity_plans.c
        query = select(column.body).where(column.workload == workload)
        if revision is not None:
            query = query.where(column.revision == revision)
        rows = await self._session.execute(query.order_by(column.revision.desc()).limit(1))
        body = rows.scalar_one_or_none()
        if body is None:
            which = "a plan" if revision is None else f"plan revision {revision}"
            raise NotFoundError(f"workload {workload!r} has no {which.removeprefix('a ')} yet")
        return decode(CapacityPlan, body)


_DECISIONS = select(tables.decisions.c.body, tables.outcomes.c.body.label("outcome")).select_from(
    tables.decisions.outerjoin(tables.outcomes, tables.outcomes.c.decision_id == tables.decisions.c.id)
)


def _decision(row: Row[Any]) -> tuple[Decision, Outcome | None]:
    return decode(Decision, row.body), None if row.outcome is None else decode(Outcome, row.outcome)


class PostgresStateStore:
    """Implements `controller.ports.StateStore`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def load(self) -> Mapping[str, WorkloadState]:
        """Every stored state, by workload."""
        column = tables.workload_states.c
        rows = await self._session.execute(select(column.workload, column.body))
        return {row.workload: decode(WorkloadState, row.body) for row in rows}

    async def save(self, states: Mapping[str, WorkloadState]) -> None:
        """Replace the given states."""
        if not states:
            return
        statement = insert(tables.workload_states)
        await self._session.execute(
            statement.on_conflict_do_update(
                index_elements=["workload"],
                set_={"body": statement.excluded.body, "written_at": func.clock_timestamp()},
            ),
            [{"workload": workload, "body": states[workload]} for workload in sorted(states)],
        )

    async def keep_contracts(self, contracts: Sequence[tuple[str, Contract]]) -> None:
        """Keep how contracts stand; later words on the same occurrence replace earlier ones."""
        if not contracts:
            return
        statement = insert(tables.contracts)
        await self._session.execute(
            statement.on_conflict_do_update(
                index_elements=["workload", "occurrence_id"],
                set_={
                    "end_at": statement.excluded.end_at,
                    "body": statement.excluded.body,
                    "written_at": func.clock_timestamp(),
                },
            ),
            [
                {"workload": workload, "occurrence_id": c.event_id, "end_at": c.end_at, "body": c}
                for workload, c in sorted(contracts, key=lambda kept: (kept[0], kept[1].event_id))
            ],
        )

    async def kept_contract(self, workload: str, occurrence_id: str) -> Contract | None:
        """The last word on an occurrence's prewarm, or None."""
        column = tables.contracts.c
        rows = await self._session.execute(
            select(column.body).where(column.workload == workload, column.occurrence_id == occurrence_id)
        )
        body = rows.scalar_one_or_none()
        return None if body is None else decode(Contract, body)

    async def overrides(self, workload: str | None = None) -> Mapping[str, Sequence[Override]]:
        """Every stored override by workload, oldest end first."""
        column = tables.overrides.c
        query = select(column.workload, column.body).order_by(column.expires_at, column.id)
        if workload is not None:
            query = query.where(column.workload == workload)
        found: dict[str, list[Override]] = {}
        for row in await self._session.execute(query):
            found.setdefault(row.workload, []).append(decode(Override, row.body))
        return found

    async def put_override(self, workload: str, override: Override) -> None:
        """Store or replace by id."""
        statement = insert(tables.overrides).values(
            workload=workload, id=override.id, expires_at=override.expires_at, body=override
        )
        await self._session.execute(
            statement.on_conflict_do_update(
                index_elements=["workload", "id"],
                set_={"expires_at": statement.excluded.expires_at, "body": statement.excluded.body},
            )
        )

    async def delete_override(self, workload: str, override_id: str) -> None:
        """Raise NotFoundError if there is none."""
        column = tables.overrides.c
        written = await self._session.execute(
            delete(tables.overrides).where(column.workload == workload, column.id == override_id)
        )
        if not written.rowcount:
            raise NotFoundError(f"workload {workload!r} has no override {override_id!r}")

    async def pause(self) -> PauseState:
        """The global pause."""
        body = (await self._session.execute(select(tables.pause.c.body))).scalar_one_or_none()
        return PauseState() if body is None else decode(PauseState, body)

    async def set_pause(self, state: PauseState) -> None:
        """Change the global pause."""
        statement = insert(tables.pause).values(body=state)
        await self._session.execute(
            statement.on_conflict_do_update(
                index_elements=["singleton"], set_={"body": statement.excluded.body}
            )
        )


class PostgresWarmupStore:
    """Implements `controller.ports.WarmupStore`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def append(self, workload: str, replica_id: str, at: datetime, sample: LeadSample) -> None:
        """Store one measured start; the same replica again replaces it."""
        statement = insert(tables.warmups).values(
            workload=workload, replica_id=replica_id, at=at, body=sample
        )
        await self._session.execute(
            statement.on_conflict_do_update(
                index_elements=["workload", "replica_id"],
                set_={"at": statement.excluded.at, "body": statement.excluded.body},
            )
        )

    async def recent(self, workload: str, limit: int = 50) -> Sequence[LeadSample]:
        """Newest first."""
        column = tables.warmups.c
        rows = await self._session.execute(
            select(column.body)
            .where(column.workload == workload)
            .order_by(column.at.desc(), column.replica_id)
            .limit(limit)
        )
        return [decode(LeadSample, body) for body in rows.scalars()]
