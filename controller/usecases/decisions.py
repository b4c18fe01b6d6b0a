"""Read decisions - by name, by filter, or as of any time -, plans, and where a workload stands."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controller.core.resources import Outcome, Page
from controller.core.types import (
    CapacityPlan,
    Decision,
    DemandObservation,
    Mode,
    Reason,
    Source,
    WorkloadState,
)
from controller.ports import (
    NotFoundError,
    ReplicaCounts,
    SignalCache,
    Store,
    UnavailableError,
    UnitOfWork,
)
from controller.usecases.errors import Findings, InvalidError, MissingError, Violation
from controller.usecases.filters import Field, Kind, filter_of, order_of
from controller.usecases.listing import listing
from controller.usecases.workloads import find_workload

Decided = tuple[Decision, Outcome | None]
# Store pages read for one page of a filtered listing; then a short page is returned.
PAGES_MAX = 20
# The ledger counts microseconds: what was decided at a time is in force at it.
INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class ObservedStatus:
    """Where a workload stands after the newest tick, and what was seen of it since; None: unknown."""

    workload: str
    state: WorkloadState
    demand: DemandObservation | None
    replicas: ReplicaCounts | None


DECISION_FIELDS: Mapping[str, Field[Decided]] = {
    "name": Field(lambda d: d[0].id, prefix="decisions/"),
    "workload": Field(lambda d: d[0].workload, prefix="workloads/"),
    "decide_time": Field(lambda d: d[0].at, Kind.TIME),
    "reason": Field(lambda d: d[0].reason.value, choices=tuple(Reason), prefix="DECISION_REASON_"),
    "binding": Field(
        lambda d: d[0].binding.value if d[0].binding else None, choices=tuple(Source), prefix="SOURCE_"
    ),
    "mode": Field(lambda d: d[0].mode.value, choices=tuple(Mode), prefix="MODE_"),
    "changed": Field(lambda d: d[0].changes, Kind.FLAG),
    "limited": Field(lambda d: d[0].limited_from is not None, Kind.FLAG),
    "current_replicas": Field(lambda d: d[0].current_replicas, Kind.NUMBER),
    "desired_replicas": Field(lambda d: d[0].desired_replicas, Kind.NUMBER),
    "demand_qps": Field(lambda d: d[0].demand_qps, Kind.NUMBER),
    "plan_revision": Field(lambda d: d[0].plan_revision, Kind.NUMBER),
    "forecast_id": Field(lambda d: d[0].forecast_id),
    "occurrence": Field(lambda d: d[0].event_ids),
    "applied": Field(lambda d: None if d[1] is None else d[1].applied, Kind.FLAG),
}


async def find_decision(uow: UnitOfWork, decision_id: str) -> Decided:
    """Read a decision and what came of it inside a transaction; raise MissingError."""
    try:
        return await uow.decisions.get(decision_id)
    except NotFoundError as error:
        raise MissingError(
            f"decisions/{decision_id}", "list the decisions; it may be past its retention"
        ) from error


async def decision_in_force(uow: UnitOfWork, workload: str, at: datetime) -> Decided | None:
    """The newest decision of a workload made at or before ``at``."""
    try:
        end_at = at + INSTANT
    except OverflowError:
        end_at = at
    rows, _ = await uow.decisions.list(workload=workload, end_at=end_at, page=Page(1))
    return rows[0] if rows else None


async def choose_decision(
    uow: UnitOfWork, decision_id: str | None, workload: str | None, as_of: datetime | None, now: datetime
) -> Decided:
    """Read a decision by its id, or the one in force for a workload; raise InvalidError or MissingError."""
    findings = Findings()
    findings.require(
        (decision_id is None) != (workload is None), "name", "give either name or workload, and not both"
    )
    findings.require(
        as_of is None or workload is not None, "as_of_time", "goes with workload only; remove it, or name one"
    )
    findings.raise_if_any()
    if decision_id is not None:
        return await find_decision(uow, decision_id)
    assert workload is not None, "one of the two is given"
    at = as_of or now
    found = await decision_in_force(uow, workload, at)
    if found is None:
        await find_workload(uow, workload)
        raise MissingError(
            f"a decision of workloads/{workload} by {at.isoformat()}",
            "choose a later time; older ones may be past their retention",
        )
    return found


async def get_decision(
    store: Store,
    decision_id: str | None,
    now: datetime,
    *,
    workload: str | None = None,
    as_of: datetime | None = None,
) -> Decided:
    """Read a decision and what came of it, as ``choose_decision`` does."""
    async with store.unit_of_work() as uow:
        return await choose_decision(uow, decision_id, workload, as_of, now)


async def list_decisions(
    store: Store,
    page: Page,
    *,
    workload: str | None = None,
    start_at: datetime | None = None,
    end_at: datetime | None = None,
    changes_only: bool = False,
    where: str = "",
    order_by: str = "",
) -> tuple[Sequence[Decided], str]:
    """One page, in the order asked for, and the token of the next; raise InvalidError."""
    findings = Findings()
    findings.window(start_at, end_at)
    findings.raise_if_any()
    wanted = filter_of(where, DECISION_FIELDS)
    _, descending = order_of(order_by or "decide_time desc", ("decide_time",), "decide_time")
    demanded = wanted.equal.get("workload")
    if workload is not None and demanded not in {None, workload}:
        raise InvalidError(
            [Violation("filter", "demands another workload than the field workload; drop one")]
        )
    found: list[Decided] = []
    token = page.token
    async with store.unit_of_work() as uow, listing(page):
        for _ in range(PAGES_MAX):
            rows, token = await uow.decisions.list(
                workload=workload or demanded,
                start_at=start_at,
                end_at=end_at,
                changes_only=changes_only,
                oldest_first=not descending,
                page=Page(page.size - len(found), token),
            )
            found += [row for row in rows if wanted.matches(row)]
            if not token or len(found) >= page.size:
                break
    return found, token


async def list_decisions_in_force(
    store: Store, page: Page, at: datetime, *, workload: str | None = None
) -> tuple[Sequence[Decided], str]:
    """The decision in force at ``at`` of one workload, or of each existing one by name; a page may be short."""
    async with store.unit_of_work() as uow, listing(page):
        names, token = [], ""
        if workload is not None:
            names = [workload]
        else:
            workloads, token = await uow.workloads.list(page)
            names = [one.name for one in workloads]
        found = [await decision_in_force(uow, name, at) for name in names]
    return [decided for decided in found if decided is not None], token


async def get_plan(store: Store, workload: str, revision: int | None) -> CapacityPlan:
    """Read the newest or a given plan revision; raise MissingError or InvalidError."""
    findings = Findings()
    findings.number("revision", revision, 1, 2**31 - 1)
    findings.raise_if_any()
    async with store.unit_of_work() as uow:
        try:
            return await uow.decisions.plan(workload, revision)
        except NotFoundError as error:
            await find_workload(uow, workload)
            which = "a plan" if revision is None else f"plan revision {revision}"
            raise MissingError(
                f"workloads/{workload}/plan ({which})",
                "the loop makes one at its next tick; check that it runs",
                "PLAN_NOT_FOUND",
            ) from error


async def list_statuses(store: Store, cache: SignalCache, page: Page) -> tuple[Sequence[ObservedStatus], str]:
    """One page of workloads by name."""
    async with store.unit_of_work() as uow, listing(page):
        workloads, token = await uow.workloads.list(page)
        names = [workload.name for workload in workloads]
        states = await uow.states.load(names)
    return await _seen(cache, names, states), token


async def get_status(store: Store, cache: SignalCache, workload: str) -> ObservedStatus:
    """Read where a workload stands; empty before the first tick. Raise MissingError."""
    async with store.unit_of_work() as uow:
        await find_workload(uow, workload)
        states = await uow.states.load([workload])
    (found,) = await _seen(cache, [workload], states)
    return found


async def _seen(
    cache: SignalCache, names: Sequence[str], states: Mapping[str, WorkloadState]
) -> list[ObservedStatus]:
    """Add what the cache holds, which may be lost: then it is unknown."""
    demands: Mapping[str, DemandObservation] = {}
    replicas: Mapping[str, ReplicaCounts] = {}
    with contextlib.suppress(UnavailableError):
        demands, replicas = await cache.get_demand(names), await cache.get_replicas(names)
    return [
        ObservedStatus(name, states.get(name, WorkloadState()), demands.get(name), replicas.get(name))
        for name in names
    ]
