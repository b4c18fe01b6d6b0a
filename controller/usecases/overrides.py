"""Operators' overrides and pauses, each with an end where the loop could otherwise be forgotten."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from controller.core.resources import Page, PauseState
from controller.core.types import Override, OverrideKind, Workload
from controller.ports import NotFoundError, Store, UnitOfWork
from controller.usecases.calls import Call, perform
from controller.usecases.errors import ExistsError, Findings, InvalidError, MissingError, Violation
from controller.usecases.names import check_id
from controller.usecases.workload_rules import DAY, MINUTE, REPLICAS_MAX
from controller.usecases.workloads import find_workload

PAUSE_ID = "pause"
TTL_MIN, TTL_MAX = MINUTE, 30 * DAY


@dataclass(frozen=True, slots=True)
class OwnedOverride:
    """An override with the workload it is for, and whether it still counts."""

    workload: str
    override: Override
    active: bool


@dataclass(frozen=True, slots=True)
class Pause:
    """Whether the fleet (``workload`` None) or one workload is paused, and until when if it ends by itself."""

    workload: str | None
    state: PauseState
    expires_at: datetime | None = None


async def create_override(
    store: Store, call: Call[OwnedOverride], workload: str, draft: Override
) -> OwnedOverride:
    """Store an override; raise MissingError, InvalidError or ExistsError."""
    override = replace(draft, created_by=call.principal)

    async def action(uow: UnitOfWork) -> OwnedOverride:
        _check(override, await find_workload(uow, workload), call.now)
        stored = await uow.states.overrides(workload)
        if any(o.id == override.id for o in stored.get(workload, ())):
            raise ExistsError(f"workloads/{workload}/overrides/{override.id}", "override_id")
        await uow.states.put_override(workload, override)
        return OwnedOverride(workload, override, active=True)

    return await perform(store, call, action)


def _check(override: Override, workload: Workload, now: datetime) -> None:
    findings = Findings("override.")
    check_id(findings, "name", override.id)
    findings.require(override.id != PAUSE_ID, "name", '"pause" is kept for Pause; choose another override_id')
    findings.text("reason", override.reason, 1, 500)
    findings.require(
        timedelta(0) < override.expires_at - now <= TTL_MAX,
        "expire_time",
        f"must be in the future, at most {TTL_MAX.days} days from now",
    )
    low, high = {
        OverrideKind.SET: (workload.min_replicas, workload.max_replicas),
        OverrideKind.AT_LEAST: (0, workload.max_replicas),
        OverrideKind.AT_MOST: (workload.min_replicas, REPLICAS_MAX),
    }.get(override.kind, (0, 0))
    if override.kind is OverrideKind.PAUSE:
        findings.require(override.replicas is None, "replicas", "must be absent for OVERRIDE_KIND_PAUSE")
    elif override.replicas is None:
        findings.add("replicas", f"is required for OVERRIDE_KIND_{override.kind}")
    elif not low <= override.replicas <= high:
        findings.add(
            "replicas",
            f"must be {low} to {high} for OVERRIDE_KIND_{override.kind} on workloads/{workload.name}, "
            f"whose bounds are {workload.min_replicas} to {workload.max_replicas}; got {override.replicas}",
        )
    findings.raise_if_any()


async def list_overrides(
    store: Store, page: Page, now: datetime, *, workload: str | None = None, show_expired: bool = False
) -> tuple[Sequence[OwnedOverride], str]:
    """One page, by workload and id, and the token of the next: the name of the last one returned."""
    workload_after, slash, id_after = page.token.partition("/")
    if page.token and not (slash and workload_after and id_after):
        raise InvalidError(
            [Violation("page_token", "is not a token of this listing; leave it empty to begin")]
        )
    async with store.unit_of_work() as uow:
        stored = await uow.states.overrides(workload)
    found = [
        OwnedOverride(name, override, active=override.expires_at > now)
        for name, overrides in stored.items()
        for override in overrides
        if (show_expired or override.expires_at > now)
        and (not page.token or (name, override.id) > (workload_after, id_after))
    ]
    found.sort(key=lambda owned: (owned.workload, owned.override.id))
    rows = found[: page.size]
    more = len(found) > page.size
    return rows, f"{rows[-1].workload}/{rows[-1].override.id}" if more else ""


async def delete_override(store: Store, call: Call[None], workload: str, override_id: str) -> None:
    """End an override; raise MissingError."""

    async def action(uow: UnitOfWork) -> None:
        try:
            await uow.states.delete_override(workload, override_id)
        except NotFoundError as error:
            resource = f"workloads/{workload}/overrides/{override_id}"
            raise MissingError(resource, "list the overrides; it may have been deleted already") from error

    await perform(store, call, action)


async def get_pause(store: Store, workload: str | None, now: datetime) -> Pause:
    """Read a pause; raise MissingError for an unknown workload."""
    async with store.unit_of_work() as uow:
        return await _read_pause(uow, workload, now)


async def _read_pause(uow: UnitOfWork, workload: str | None, now: datetime) -> Pause:
    if workload is None:
        return Pause(None, await uow.states.pause())
    await find_workload(uow, workload)
    overrides = (await uow.states.overrides(workload)).get(workload, ())
    standing = [o for o in overrides if o.kind is OverrideKind.PAUSE and o.expires_at > now]
    if not standing:
        return Pause(workload, PauseState())
    last = max(standing, key=lambda o: o.expires_at)
    return Pause(workload, PauseState(paused=True, reason=last.reason, by=last.created_by), last.expires_at)


async def pause(
    store: Store, call: Call[Pause], workload: str | None, reason: str, ttl: timedelta | None
) -> Pause:
    """Pause the fleet (until Resume) or a workload (for ``ttl``); raise MissingError or InvalidError."""
    findings = Findings()
    findings.text("reason", reason, 1, 500)
    if workload is None:
        findings.require(ttl is None, "ttl", "must be absent for the whole fleet; Resume ends its pause")
    else:
        findings.require(ttl is not None, "ttl", "is required for one workload: how long it stays paused")
        findings.duration("ttl", ttl, TTL_MIN, TTL_MAX)
    findings.raise_if_any()

    async def action(uow: UnitOfWork) -> Pause:
        if workload is None or ttl is None:
            await uow.states.set_pause(
                PauseState(paused=True, reason=reason, by=call.principal, since_at=call.now)
            )
        else:
            await find_workload(uow, workload)
            until = call.now + ttl
            override = Override(PAUSE_ID, OverrideKind.PAUSE, None, until, reason, call.principal)
            await uow.states.put_override(workload, override)
        return await _read_pause(uow, workload, call.now)

    return await perform(store, call, action)


async def resume(store: Store, call: Call[Pause], workload: str | None) -> Pause:
    """End the fleet's pause or every pause of a workload; raise MissingError for an unknown workload."""

    async def action(uow: UnitOfWork) -> Pause:
        if workload is None:
            await uow.states.set_pause(PauseState())
        else:
            await find_workload(uow, workload)
            for override in (await uow.states.overrides(workload)).get(workload, ()):
                if override.kind is OverrideKind.PAUSE:
                    await uow.states.delete_override(workload, override.id)
        return await _read_pause(uow, workload, call.now)

    return await perform(store, call, action)
