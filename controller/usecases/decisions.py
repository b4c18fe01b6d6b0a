"""Read decisions, plans and where a workload stands."""

from collections.abc import Sequence
from datetime import datetime

from controller.core.resources import Outcome, Page
from controller.core.types import CapacityPlan, Decision, WorkloadState
from controller.ports import NotFoundError, Store
from controller.usecases.errors import Findings, MissingError
from controller.usecases.listing import listing
from controller.usecases.workloads import find_workload

Decided = tuple[Decision, Outcome | None]


async def get_decision(store: Store, decision_id: str) -> Decided:
    """Read a decision and what came of it; raise MissingError."""
    async with store.unit_of_work() as uow:
        try:
            return await uow.decisions.get(decision_id)
        except NotFoundError as error:
            raise MissingError(
                f"decisions/{decision_id}", "list the decisions; it may be past its retention"
            ) from error


async def list_decisions(
    store: Store,
    page: Page,
    *,
    workload: str | None = None,
    start_at: datetime | None = None,
    end_at: datetime | None = None,
    changes_only: bool = False,
) -> tuple[Sequence[Decided], str]:
    """One page, newest first, and the token of the next; raise InvalidError."""
    findings = Findings()
    findings.window(start_at, end_at)
    findings.raise_if_any()
    async with store.unit_of_work() as uow, listing(page):
        return await uow.decisions.list(
            workload=workload, start_at=start_at, end_at=end_at, changes_only=changes_only, page=page
        )


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


async def get_status(store: Store, workload: str) -> WorkloadState:
    """Read where a workload stands; empty before the first tick. Raise MissingError."""
    async with store.unit_of_work() as uow:
        await find_workload(uow, workload)
        return (await uow.states.load()).get(workload, WorkloadState())
