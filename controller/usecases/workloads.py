"""Register, read, list, change and delete workloads. Called by the API; the etag is the generation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from controller.core.resources import Page
from controller.core.types import Mode, Workload
from controller.ports import ConflictError, NotFoundError, Store, UnitOfWork
from controller.usecases.calls import Call, perform
from controller.usecases.engines import PREFIX, measured_profiles, named_engines, with_measured
from controller.usecases.errors import (
    EtagMismatchError,
    ExistsError,
    Findings,
    MissingError,
    PreconditionError,
)
from controller.usecases.filters import Field, Kind, filter_of, order_of
from controller.usecases.listing import every, listing, sorted_page
from controller.usecases.workload_rules import check_workload

# What a filter of workloads may compare; a few thousand workloads are filtered and sorted in memory.
WORKLOAD_FIELDS: Mapping[str, Field[Workload]] = {
    "name": Field(lambda w: w.name, prefix="workloads/"),
    "model_name": Field(lambda w: w.model_name),
    "model_version": Field(lambda w: w.model_version),
    "namespace": Field(lambda w: w.namespace),
    "mode": Field(lambda w: w.mode.value, choices=tuple(Mode), prefix="MODE_"),
    "quota_pool": Field(lambda w: w.quota_pool),
    "priority": Field(lambda w: w.priority, Kind.NUMBER),
    "min_replicas": Field(lambda w: w.min_replicas, Kind.NUMBER),
    "max_replicas": Field(lambda w: w.max_replicas, Kind.NUMBER),
    "engine": Field(lambda w: tuple(p.engine for p in w.profiles)),
    "engine_digest": Field(lambda w: w.engine_digest),
    "gpu_type": Field(lambda w: tuple(p.gpu_type for p in w.profiles)),
    "time_zone": Field(lambda w: w.time_zone),
    "labels": Field(lambda w: dict(w.labels), Kind.MAP),
    "target": Field(lambda w: w.target, Kind.MAP),
}
_ORDERS = {"name", "namespace", "priority", "max_replicas"}
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


async def list_workloads(
    store: Store, page: Page, *, where: str = "", order_by: str = ""
) -> tuple[Sequence[Workload], str]:
    """One page, in the order asked for, and the token of the next; raise InvalidError."""
    wanted = filter_of(where, WORKLOAD_FIELDS)
    column, descending = order_of(order_by, _ORDERS, "name")
    if where or order_by:
        async with store.unit_of_work() as uow:
            rows = await every(uow.workloads.list)
        read = WORKLOAD_FIELDS[column].read
        return sorted_page(
            [w for w in rows if wanted.matches(w)],
            page,
            lambda w: (read(w), w.name),
            descending=descending,
        )
    async with store.unit_of_work() as uow, listing(page):
        return await uow.workloads.list(page)


async def create_workload(store: Store, call: Call[Workload], workload: Workload) -> Workload:
    """Register a workload; raise InvalidError or ExistsError."""

    async def action(uow: UnitOfWork) -> Workload:
        sound = await _sound(uow, workload)
        try:
            return await uow.workloads.create(replace(sound, generation=1))
        except ConflictError as error:
            raise ExistsError(f"workloads/{workload.name}", "workload_id") from error

    return await perform(store, call, action)


async def _sound(uow: UnitOfWork, workload: Workload) -> Workload:
    """Return the workload with the measured figures of the engines it names; raise InvalidError."""
    measured = await measured_profiles(uow, [workload])
    findings = Findings("workload.")
    for index, profile in enumerate(workload.profiles):
        engine_id = profile.engine.removeprefix(PREFIX)
        if engine_id in named_engines(workload) and (engine_id, profile.gpu_type) not in measured:
            # Figures given by hand bridge the time until the engine is promoted or measured.
            findings.require(
                profile.qps_max > 0,
                f"profiles[{index}].engine",
                f"no ACTIVE engine {engine_id[:63]!r} has a measured profile for gpu_type {profile.gpu_type[:63]!r}; "
                "promote and measure it first, or give qps_max",
            )
    findings.raise_if_any()
    resolved = with_measured(workload, measured)
    check_workload(resolved, findings)
    findings.raise_if_any()
    return resolved


async def update_workload(
    store: Store,
    call: Call[Workload],
    name: str,
    expected_generation: int | None,
    change: Callable[[Workload], Workload],
    shard_of: Callable[[Workload], int] = lambda _: 0,
) -> Workload:
    """Replace the spec by what ``change`` makes of it.

    Raises:
        MissingError, InvalidError, EtagMismatchError: As their names say.
        PreconditionError: It would go from one leader to another, by ``shard_of``.
    """
    resource = f"workloads/{name}"

    async def action(uow: UnitOfWork) -> Workload:
        stored = await find_workload(uow, name)
        if expected_generation not in {None, stored.generation}:
            raise EtagMismatchError(resource, "workload.etag")
        changed = await _sound(uow, replace(change(stored), name=name, generation=stored.generation))
        if changed == stored:
            return stored
        if shard_of(changed) != shard_of(stored):
            # Its leader may be in the middle of a turn that knows it as its own.
            raise PreconditionError(
                "SHARD_FIXED",
                "workload.quota_pool: this pool is decided for by another shard; delete the workload, wait until its "
                "leader has ticked, and create it anew",
                {"resource": resource},
            )
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
