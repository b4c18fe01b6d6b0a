"""Register, read, list, change and delete workloads. Called by the API; the etag is the generation."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from controller.core.resources import Page
from controller.core.types import Workload
from controller.ports import ConflictError, NotFoundError, Store, UnitOfWork
from controller.usecases.calls import Call, perform
from controller.usecases.errors import EtagMismatchError, ExistsError, Findings, MissingError
from controller.usecases.listing import listing
from controller.usecases.workload_rules import check_workload

LIST_REMEDY = "list the workloads, or create it first"


async def find_workload(uow: UnitOfWork, name: str) -> Workload:
    """Read a workload inside a transaction; raise MissingError."""
    try:
        return await uow.workloads.get(name)
    except NotFoundError as error:
        raise MissingError(f"workloads/{name}", LIST_REMEDY) from error


async def get_workload(store: Store, name: str) -> Workload:
    """Read a workload; raise MissingError."""
    async with store.unit_of_work() as uow:
        return await find_workload(uow, name)


async def list_workloads(store: Store, page: Page) -> tuple[Sequence[Workload], str]:
    """One page, ordered by name, and the token of the next."""
    async with store.unit_of_work() as uow, listing(page):
        return await uow.workloads.list(page)


async def create_workload(store: Store, call: Call[Workload], workload: Workload) -> Workload:
    """Register a workload; raise InvalidError or ExistsError."""
    findings = Findings("workload.")
    check_workload(workload, findings)
    findings.raise_if_any()

    async def action(uow: UnitOfWork) -> Workload:
        try:
            return await uow.workloads.create(replace(workload, generation=1))
        except ConflictError as error:
            raise ExistsError(f"workloads/{workload.name}", "workload_id") from error

    return await perform(store, call, action)


async def update_workload(
    store: Store,
    call: Call[Workload],
    name: str,
    expected_generation: int | None,
    change: Callable[[Workload], Workload],
) -> Workload:
    """Replace the spec by what ``change`` makes of it; raise MissingError, InvalidError or EtagMismatchError."""
    resource = f"workloads/{name}"

    async def action(uow: UnitOfWork) -> Workload:
        stored = await find_workload(uow, name)
        if expected_generation not in {None, stored.generation}:
            raise EtagMismatchError(resource, "workload.etag")
        changed = replace(change(stored), name=name, generation=stored.generation)
        findings = Findings("workload.")
        check_workload(changed, findings)
        findings.raise_if_any()
        if changed == stored:
            return stored
        try:
            # Always against what was read: a concurrent change must not be overwritten unseen.
            return await uow.workloads.update(changed, expected_generation=stored.generation)
        except ConflictError as error:
            raise EtagMismatchError(resource, "workload.etag") from error

    return await perform(store, call, action)


async def delete_workload(store: Store, call: Call[None], name: str, expected_generation: int | None) -> None:
    """Stop scaling it; raise MissingError or EtagMismatchError. Its history stays."""

    async def action(uow: UnitOfWork) -> None:
        try:
            await uow.workloads.delete(name, expected_generation=expected_generation)
        except NotFoundError as error:
            raise MissingError(f"workloads/{name}", LIST_REMEDY) from error
        except ConflictError as error:
            raise EtagMismatchError(f"workloads/{name}", "etag") from error

    await perform(store, call, action)
