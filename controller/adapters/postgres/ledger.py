"""What the loop computes and remembers, in PostgreSQL: forecasts, plans, decisions, states, warm-ups.

Promises: records are immutable, so storing one again is a no-op; state is replaced whole. Called through the
unit of work.
"""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, LiteralString

import numpy as np
import psycopg
from sqlalchemy import Row, delete, func, select, text, tuple_
from sqlalchemy.dialects.postgresql import insert

from controller.adapters.codec import decode, encode
from controller.adapters.pages import cut, last_key, page_size
from controller.adapters.postgres import tables
from controller.adapters.postgres.database import Session
from controller.adapters.postgres.partitions import DECISIONS, Partitions
from controller.adapters.postgres.rows import RowsDumper, RowsLoader, insert_rows
from controller.core.leadtime import LeadSample
from controller.core.resources import ForecastRun, Outcome, Page, PauseState
from controller.core.tick import ticked
from controller.core.types import CapacityPlan, Contract, Decision, ForecastBand, Override, WorkloadState
from controller.ports import NotFoundError

# One look into the index per workload, however many runs each has.
_NEWEST = text("""
    SELECT name AS workload, run.id FROM unnest(CAST(:workloads AS text[])) AS name CROSS JOIN LATERAL (
        SELECT id FROM forecasts WHERE workload = name ORDER BY origin_at DESC, created_at DESC, id LIMIT 1
    ) AS run
""")
# The driver of its own, which may answer in binary: text of four thousand numbers a workload takes minutes to read.
_LATEST_BANDS = """
    SELECT name, run.band::text, run.qps FROM unnest(%s::text[]) AS name CROSS JOIN LATERAL (
        SELECT band, qps FROM forecasts WHERE workload = name ORDER BY origin_at DESC, created_at DESC, id LIMIT 1
    ) AS run
"""
_BANDS_PER_STATEMENT = 500
_CALIBRATIONS = """
    SELECT workload, calibration FROM forecasts_said WHERE workload = ANY(%s::text[]) AND calibration IS NOT NULL
"""
_SAVE = """
    INSERT INTO forecasts (id, workload, origin_at, created_at, state, run, band, qps)
    VALUES (%s, %s, %s, %s, %s, %s::jsonb, %s::jsonb, %s) ON CONFLICT DO NOTHING
"""
_LATEST = """
    SELECT run::text, band::text, qps FROM forecasts WHERE workload = %s
    ORDER BY origin_at DESC, created_at DESC, id LIMIT 1
"""
_AS_OF = """
    SELECT run::text, band::text, qps FROM forecasts WHERE workload = %s AND created_at <= %s
    ORDER BY created_at DESC, id LIMIT 1
"""
_IDS_AS_OF = text("""
    SELECT moment, run.id FROM unnest(CAST(:moments AS timestamptz[])) AS moment CROSS JOIN LATERAL (
        SELECT id FROM forecasts WHERE workload = :workload AND created_at <= moment
        ORDER BY created_at DESC, id LIMIT 1
    ) AS run
""")
_BANDS = "SELECT id, band::text, qps FROM forecasts WHERE id = ANY(%s)"


class PostgresForecastStore:
    """Implements `controller.ports.ForecastStore`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def save(self, run: ForecastRun, band: ForecastBand) -> None:
        """Store a run. The same id again is a no-op."""
        if run.id != band.id:
            raise ValueError(f"band.id: {band.id!r} belongs to another run than {run.id!r}")
        qps = np.array(band.qps, dtype=np.float64)
        head, body = encode(run), encode(replace(band, qps=()))
        values = (run.id, run.workload, run.origin_at, run.created_at, band.state.value, head, body, qps)
        with self._session.limited():
            async with _rows_cursor(self._session) as cursor:
                await cursor.execute(_SAVE, values)

    async def latest(self, workload: str) -> tuple[ForecastRun, ForecastBand] | None:
        """The newest run by origin."""
        return await self._first(_LATEST, workload)

    async def as_of(self, workload: str, at: datetime) -> tuple[ForecastRun, ForecastBand] | None:
        """The run that was the newest at `at` (by created_at)."""
        return await self._first(_AS_OF, workload, at)

    async def bands_as_of(
        self, workload: str, moments: Sequence[datetime]
    ) -> Mapping[datetime, ForecastBand]:
        """Band of the run that was the newest at each moment, where there was one, each read once."""
        rows = await self._session.execute(_IDS_AS_OF, {"workload": workload, "moments": list(moments)})
        ids = {row.moment: row.id for row in rows}
        with self._session.limited():
            async with _rows_cursor(self._session) as cursor:
                await cursor.execute(_BANDS, (list(set(ids.values())),))
                bands = {id_: _band(body, qps) async for id_, body, qps in cursor}
        return {moment: bands[id_] for moment, id_ in ids.items() if id_ in bands}

    async def newest(self, workloads: Sequence[str]) -> Mapping[str, str]:
        """Id of the newest run by origin, for workloads that have any."""
        rows = await self._session.execute(_NEWEST, {"workloads": list(workloads)})
        return {row.workload: row.id for row in rows}

    async def latest_bands(self, workloads: Sequence[str]) -> Mapping[str, ForecastBand]:
        """Bands of the newest runs by origin, for workloads that have any."""
        found: dict[str, ForecastBand] = {}
        for start in range(0, len(workloads), _BANDS_PER_STATEMENT):
            with self._session.limited():
                async with _rows_cursor(self._session) as cursor:
                    await cursor.execute(
                        _LATEST_BANDS, (list(workloads[start : start + _BANDS_PER_STATEMENT]),)
                    )
                    async for name, body, qps in cursor:
                        found[name] = _band(body, qps)
        return found

    async def put_said(self, workload: str, record: bytes, calibration: bytes = b"") -> None:
        """Replace what near demand remembers of a workload's forecasts, and what it measured."""
        statement = insert(tables.forecasts_said).values(
            workload=workload, record=record, calibration=calibration or None
        )
        await self._session.execute(
            statement.on_conflict_do_update(
                index_elements=["workload"],
                set_={
                    "record": statement.excluded.record,
                    "calibration": statement.excluded.calibration,
                    "written_at": func.clock_timestamp(),
                },
            )
        )

    async def calibrations(self, workloads: Sequence[str]) -> Mapping[str, bytes]:
        """What was measured, for workloads that have any."""
        with self._session.limited():
            async with _rows_cursor(self._session) as cursor:
                await cursor.execute(_CALIBRATIONS, (list(workloads),))
                return {name: calibration async for name, calibration in cursor}

    async def said(self, workload: str) -> bytes | None:
        """What was put last, or None."""
        table = tables.forecasts_said
        rows = await self._session.execute(select(table.c.record).where(table.c.workload == workload))
        return rows.scalar_one_or_none()

    async def _first(
        self, statement: LiteralString, *values: object
    ) -> tuple[ForecastRun, ForecastBand] | None:
        with self._session.limited():
            async with _rows_cursor(self._session) as cursor:
                row = await (await cursor.execute(statement, values)).fetchone()
        if row is None:
            return None
        run, body, qps = row
        return decode(ForecastRun, run), _band(body, tuple(qps))


@asynccontextmanager
async def _rows_cursor(session: Session) -> AsyncGenerator[psycopg.AsyncCursor[Any]]:
    """A cursor of the driver's own that reads and writes quantiles as they lie in memory."""
    async with session.driver.cursor(binary=True) as cursor:
        cursor.adapters.register_loader(cursor.adapters.types.get_oid("float8[]"), RowsLoader)
        cursor.adapters.register_dumper(np.ndarray, RowsDumper)
        yield cursor


def _band(body: str, qps: tuple[tuple[float, ...], ...]) -> ForecastBand:
    return replace(decode(ForecastBand, body), qps=qps)


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
        await insert_rows(
            self._session,
            tables.decisions,
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
            conflict="DO NOTHING",
        )

    async def outcome(self, *outcomes: Outcome) -> None:
        """Attach what came of decisions; a later outcome replaces an earlier one."""
        await insert_rows(
            self._session,
            tables.outcomes,
            [{"decision_id": each.decision_id, "at": each.at, "body": each} for each in outcomes],
            conflict="(decision_id) DO UPDATE SET at = excluded.at, body = excluded.body "
            "WHERE kept.at <= excluded.at",
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

    async def save_plan(self, *plans: CapacityPlan) -> None:
        """Store immutable revisions; the same (workload, revision) again is a no-op."""
        await insert_rows(
            self._session,
            tables.capacity_plans,
            [
                {
                    "workload": plan.workload,
                    "revision": plan.revision,
                    "created_at": plan.created_at,
                    "digest": plan.digest,
                    "body": plan,
                }
                for plan in plans
            ],
            conflict="DO NOTHING",
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


# A plan is far larger than the state around it, and is stored already.
_STATES = text("""
    SELECT states.workload, states.body, plans.body AS plan,
        CASE WHEN states.lease IS NULL THEN (SELECT at FROM ticks) ELSE lease_ticks.at END AS ticked_at
    FROM workload_states AS states
    LEFT JOIN lease_ticks ON lease_ticks.lease = states.lease
    LEFT JOIN capacity_plans AS plans ON plans.workload = states.workload
        AND plans.revision = CAST(states.body -> 'plan' ->> 'revision' AS bigint)
        AND states.body -> 'plan' ->> 'digest' = ''
    WHERE CAST(:workloads AS text[]) IS NULL OR states.workload = ANY(CAST(:workloads AS text[]))
""")
_TICKED = text("INSERT INTO ticks (at) VALUES (:at) ON CONFLICT (singleton) DO UPDATE SET at = excluded.at")
_LEASE_TICKED = text(
    "INSERT INTO lease_ticks (lease, at) VALUES (:lease, :at) ON CONFLICT (lease) DO UPDATE SET at = excluded.at"
)
_TAKE_OVER = text("""
    UPDATE workload_states SET lease = CAST(:lease AS text)
    WHERE lease IS DISTINCT FROM CAST(:lease AS text)
        AND (CAST(:workloads AS text[]) IS NULL OR workload = ANY(CAST(:workloads AS text[])))
""")


def _referring(state: WorkloadState) -> WorkloadState:
    """The state with a reference in the place of its plan: who does not know references makes the plan anew."""
    if state.plan is None:
        return state
    return replace(state, plan=replace(state.plan, floors=(), need=(), digest=""))


def _is_reference(plan: CapacityPlan) -> bool:
    return not plan.digest and not plan.floors and not plan.need


class PostgresStateStore:
    """Implements `controller.ports.StateStore`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.lease: str | None = None  # of the shard that writes; None: of a single leader

    async def load(self, workloads: Collection[str] | None = None) -> Mapping[str, WorkloadState]:
        """Every stored state, or those of these workloads, as the newest tick left them."""
        names = None if workloads is None else list(workloads)
        rows = await self._session.execute(_STATES, {"workloads": names})
        found: dict[str, WorkloadState] = {}
        for row in rows:
            state = decode(WorkloadState, row.body)
            if row.plan is not None and state.plan is not None and _is_reference(state.plan):
                plan = decode(CapacityPlan, row.plan)
                # Another plan under this number, as after a restored backup: without its digest it is made anew.
                if plan.created_at == state.plan.created_at:
                    state = replace(state, plan=plan)
            found[row.workload] = state if row.ticked_at is None else ticked(state, row.ticked_at)
        return found

    async def save(self, states: Mapping[str, WorkloadState], ticked_at: datetime | None = None) -> None:
        """Replace the given states, and keep when the tick was."""
        await insert_rows(
            self._session,
            tables.workload_states,
            [
                {"workload": workload, "body": _referring(states[workload]), "lease": self.lease}
                for workload in sorted(states)
            ],
            conflict="(workload) DO UPDATE SET body = excluded.body, lease = excluded.lease, "
            "written_at = clock_timestamp()",
        )
        if ticked_at is not None and self.lease is None:
            await self._session.execute(_TICKED, {"at": ticked_at})
        elif ticked_at is not None:
            await self._session.execute(_LEASE_TICKED, {"lease": self.lease, "at": ticked_at})

    async def take_over(self, workloads: Collection[str] | None = None) -> None:
        """Let these states, or all, stand under the ticks of this leader from now on."""
        names = None if workloads is None else list(workloads)
        await self._session.execute(_TAKE_OVER, {"lease": self.lease, "workloads": names})

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


# A list for each workload: a thousand of them are read as fast as a hundred starts one by one.
_RECENT = text("""
    SELECT name AS workload, json_agg(start.body ORDER BY start.at DESC, start.replica_id) AS bodies
    FROM unnest(CAST(:workloads AS text[])) AS name CROSS JOIN LATERAL (
        SELECT body, at, replica_id FROM warmups WHERE workload = name ORDER BY at DESC, replica_id LIMIT :limit
    ) AS start
    GROUP BY name
""")
_KNOWN = text("""
    SELECT given.workload, given.replica_id
    FROM unnest(CAST(:workloads AS text[]), CAST(:replica_ids AS text[])) AS given (workload, replica_id)
    JOIN warmups USING (workload, replica_id)
""")


class PostgresWarmupStore:
    """Implements `controller.ports.WarmupStore`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def append_all(self, starts: Sequence[tuple[str, str, datetime, LeadSample]]) -> None:
        """Store measured starts, each of another replica."""
        await insert_rows(
            self._session,
            tables.warmups,
            [
                {"workload": workload, "replica_id": replica_id, "at": at, "body": sample}
                for workload, replica_id, at, sample in starts
            ],
            conflict="(workload, replica_id) DO UPDATE SET at = excluded.at, body = excluded.body "
            "WHERE kept.body <> excluded.body",
        )

    async def recent_of(
        self, workloads: Sequence[str], limit: int = 50
    ) -> Mapping[str, Sequence[LeadSample]]:
        """As `recent`, of workloads that have any."""
        rows = await self._session.execute(_RECENT, {"workloads": list(workloads), "limit": limit})
        return {row.workload: decode(tuple[LeadSample, ...], row.bodies) for row in rows}

    async def known(self, starts: Collection[tuple[str, str]]) -> Collection[tuple[str, str]]:
        """Those (workload, replica id) whose start is stored."""
        given = {
            "workloads": [workload for workload, _ in starts],
            "replica_ids": [replica_id for _, replica_id in starts],
        }
        return {(row.workload, row.replica_id) for row in await self._session.execute(_KNOWN, given)}

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
