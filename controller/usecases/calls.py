"""Run one mutation: once per request id, in one transaction, audited.

Promises: the same request id with the same body returns the first response; with another body it is
refused; the response, the audit entry and the change are stored together or not at all. ``validate_only``
runs everything and stores nothing. Called by every mutating use case.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from controller.core.resources import AuditEntry
from controller.ports import ConflictError, NotFoundError, Store, UnitOfWork
from controller.usecases.caller import caller
from controller.usecases.errors import RequestIdReusedError, UseCaseError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One mutation as asked for, with the one clock reading of this request.

    ``encode``/``decode`` turn the response into what is kept under the request id and back.
    """

    method: str
    resource: str
    principal: str
    now: datetime
    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]
    request_id: str = ""
    body_digest: str = ""
    validate_only: bool = False

    @property
    def key(self) -> str:
        """Request ids of different callers or methods never meet."""
        return f"{self.principal}|{self.method}|{self.request_id}"


async def perform(store: Store, call: Call[T], action: Callable[[UnitOfWork], Awaitable[T]]) -> T:
    """Run ``action`` in its own transaction, or return what it returned the first time.

    Raises RequestIdReusedError, what the action raises, and PortError. Nothing is stored in any such case.
    """
    try:
        async with store.unit_of_work() as uow:
            stored = await _recall(uow, call)
            if stored is not None:
                caller().audited = True  # the first time
                return call.decode(stored)
            before = None if call.validate_only else await _version(uow, call.resource)
            result = await action(uow)
            if call.validate_only:
                return result
            if call.request_id:
                await uow.records.remember(call.key, call.body_digest, call.encode(result), call.now)
            await uow.records.audit(
                AuditEntry(
                    at=call.now,
                    principal=call.principal,
                    method=call.method,
                    resource=call.resource,
                    outcome="OK",
                    request_id=call.request_id,
                    version_before=before,
                    version_after=await _version(uow, call.resource),
                )
            )
            await uow.commit()
            caller().audited = True
            return result
    except RequestIdReusedError:
        raise
    except (ConflictError, UseCaseError):
        if not call.request_id:
            raise
        # Two copies of one request may run at once: the loser meets what the winner made or removed. It is
        # a retry, no refusal, if the winner left its response under the same request id.
        async with store.unit_of_work() as uow:
            stored = await _recall(uow, call)
        if stored is None:
            raise
        caller().audited = True
        return call.decode(stored)


async def _version(uow: UnitOfWork, resource: str) -> int | None:
    """The etag's number of a workload or an event; None for what has none or is not there."""
    collection, _, name = resource.partition("/")
    try:
        if collection == "events":
            return (await uow.events.get(name)).revision
        if collection == "engines" and "/" not in name:
            return (await uow.engines.get(name)).generation
        if collection == "workloads" and "/" not in name:
            return (await uow.workloads.get(name)).generation
    except NotFoundError:
        pass
    return None


async def _recall(uow: UnitOfWork, call: Call[T]) -> bytes | None:
    if not call.request_id:
        return None
    earlier = await uow.records.recall(call.key)
    if earlier is None:
        return None
    digest, response = earlier
    if digest != call.body_digest:
        raise RequestIdReusedError(call.request_id)
    return response
