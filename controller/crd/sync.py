"""Carry Workload and TrafficEvent objects into the API, one way, and write back how they stand.

Promises: what an object says is what the API has, within seconds, also after somebody changed it elsewhere; a
resource that was created over gRPC is never touched: the API's resource bears its owner's name as a label, and
without it the object says so in a condition. An object is deleted through our finalizer, so absence alone, as of a
cluster that was restored empty, deletes nothing. An object reaches its own namespace only. Only the leader acts, and
only on a copy of the objects that is fresh. Bounded: so many objects and status writes a turn. It goes through the
API's own servicers, so that every rule, audit entry and warning is theirs. Run by the composition root.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, TypeAlias

from forecrest.v1 import event_service_pb2, workload_service_pb2
from google.protobuf.field_mask_pb2 import FieldMask

from controller.actuators.kubernetes.api import KubeApi, Object
from controller.actuators.kubernetes.reflector import Reflector
from controller.api import mappers
from controller.api.calls import ApiDependencies
from controller.api.events import EventServicer
from controller.api.feed import Feed
from controller.api.workloads import WorkloadServicer
from controller.core.resources import EventState, Page, TrafficEvent
from controller.core.types import Contract, Decision, Workload
from controller.crd.status import Facts, Synced, event_status, pascal, settled, workload_status
from controller.crd.wire import MARK, event_message, in_spec, sentence_of, workload_message
from controller.loop.control import read_workloads
from controller.loop.leader import stop_if_cancelled
from controller.ports import ConflictError, NotFoundError, PortError, UnavailableError
from controller.usecases.caller import Caller, enter
from controller.usecases.errors import InvalidError, UseCaseError, Violation
from controller.usecases.events import with_states

log = logging.getLogger(__name__)

GROUP: Final = "/apis/forecrest.dev/v1alpha1"
FINALIZER: Final = "forecrest.dev/synchronised"
STALE_AFTER: Final = timedelta(seconds=30)
PERIOD_S: Final = 10.0  # how often drift is looked for and status renewed
SETTLE_S: Final = 0.2  # changes come in bursts: one turn for all of them
OBJECTS_MAX: Final = 10_000
WRITES_MAX: Final = 200  # status writes a turn and watch; the next turn begins with the first that waits
SYNCED: Final = Synced(ok=True, reason="AsSpecified", message="the API has what the spec says")
PLURALS: Final = {"Workload": "workloads", "TrafficEvent": "trafficevents"}
_METADATA: Final = (
    "name",
    "namespace",
    "uid",
    "generation",
    "resourceVersion",
    "finalizers",
    "deletionTimestamp",
)
_OVER: Final = frozenset({EventState.COMPLETED, EventState.CANCELLED})

Key: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _World:
    """What the store has at the top of a turn."""

    now: datetime
    workloads: dict[str, Workload]
    contracts: Mapping[str, Sequence[Contract]]


@dataclass(frozen=True, slots=True)
class _Carried:
    """What was carried over of an object: its generation, and the resource's version that came of it."""

    generation: int
    version: int


class Synchroniser:
    """One way from Kubernetes into the API. ``facts`` tells of a workload, ``leads`` whether this process may act."""

    def __init__(
        self,
        api: KubeApi,
        deps: ApiDependencies,
        *,
        leads: Callable[[], bool],
        facts: Callable[[str], Facts],
        limit: int,
        namespaces: Sequence[str] = (),
    ) -> None:
        self._api, self._deps, self._leads, self._facts, self._limit = api, deps, leads, facts, limit
        self._workloads_api = WorkloadServicer(deps)
        self._events_api = EventServicer(deps, Feed(deps))
        self._change = asyncio.Event()
        scopes = [f"/namespaces/{n}" for n in namespaces] or [""]
        self._workloads, self._events = (
            tuple(
                Reflector(api, f"{GROUP}{s}/{plural}", keep=partial(_kept, kind), on_change=self._change.set)
                for s in scopes
            )
            for kind, plural in PLURALS.items()
        )
        self._started = False
        self._turned: frozenset[tuple[str, int, bool]] = frozenset()  # what the last turn was about
        self._carried: dict[str, _Carried] = {}  # by the object's uid
        self._waiting: dict[
            Reflector, Key
        ] = {}  # the first object of each watch whose status is still to be written
        self._stored: dict[str, Decision] = {}  # of workloads that this leader has not decided on yet
        self._writes = 0
        self.failure_count = 0

    async def run(self) -> None:
        """Turn for ever: at once when a spec changed, and every ``PERIOD_S`` besides."""
        pace, due_s = self._deps.pace, float("-inf")
        while True:
            self._change.clear()
            if self._leads():
                self._start()
            else:
                self._stored.clear()
            # What we write to an object ourselves comes back as a change, too, and is none.
            asked = frozenset(_asked(item) for r in self._reflectors for item in r.objects.values())
            if self._leads() and (asked != self._turned or pace.monotonic() >= due_s):
                self._turned, due_s = asked, pace.monotonic() + PERIOD_S
                try:
                    await self.turn()
                except PortError as error:
                    log.warning("custom resources wait: %s", error)
                    self.failure_count += 1
                except Exception:  # must outlive any defect of one turn; it is logged and counted
                    log.exception("custom resources were not synchronised")
                    self.failure_count += 1
            stop_if_cancelled()
            with suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S):
                    await self._change.wait()
            await pace.sleep(SETTLE_S)

    async def close(self) -> None:
        """Stop watching."""
        await asyncio.gather(*(r.close() for r in self._reflectors))
        await self._api.close()

    @property
    def _reflectors(self) -> tuple[Reflector, ...]:
        return (*self._workloads, *self._events)

    def _start(self) -> None:
        if not self._started:
            self._started = True
            for reflector in self._reflectors:
                reflector.start()

    async def turn(self) -> None:
        """Bring everything into line once. Raise PortError while the store is away; the next turn goes on."""
        if not all(r.is_fresh(STALE_AFTER) for r in self._reflectors):
            return
        world = await self._world()
        alive: set[str] = set()
        # Workloads first: events name them.
        for reflectors, carry in ((self._workloads, self._workload), (self._events, self._event)):
            for reflector in reflectors:
                self._writes = 0
                items = sorted(reflector.objects.items())[:OBJECTS_MAX]
                first = self._waiting.pop(reflector, ("", ""))
                items = [i for i in items if i[0] >= first] + [i for i in items if i[0] < first]
                for key, item in items:
                    if not self._leads():
                        return
                    alive.add(item["metadata"]["uid"])
                    await self._one(reflector, key, item, carry, world)
        self._carried = {uid: known for uid, known in self._carried.items() if uid in alive}

    async def _world(self) -> _World:
        async with self._deps.store.unit_of_work() as uow:
            workloads = await read_workloads(uow, self._limit)
            states = await uow.states.load()
        contracts = {name: state.contracts for name, state in states.items()}
        return _World(self._deps.clock.now(), {w.name: w for w in workloads}, contracts)

    async def _one(
        self,
        reflector: Reflector,
        key: Key,
        item: Object,
        carry: Callable[[Object, _World], Awaitable[Object | None]],
        world: _World,
    ) -> None:
        """Carry one object over and write its status; its own trouble must not keep the others waiting."""

        async def act() -> Object | None:
            enter(Caller(principal=f"kubernetes:{item['kind']}/{key[0]}/{key[1]}"))
            return await carry(item, world)

        try:
            # In a task of its own: who calls holds for the task.
            wanted = await asyncio.create_task(act())
            if wanted is None:
                return
            generation = item["metadata"]["generation"]
            full = settled(wanted, item.get("status") or {}, generation, world.now)
            if full is None:
                return
            if self._writes >= WRITES_MAX:
                self._waiting.setdefault(reflector, key)
                return
            self._writes += 1
            reflector.put(await self._api.patch(f"{_path(item)}/status", {"status": full}))
        except (ConflictError, NotFoundError) as error:
            log.debug("%s has changed since, or is gone: a later turn sees it: %s", _path(item), error)
        except UnavailableError:
            raise
        except Exception:  # a defect, or a refusal of the API server: this object's alone
            log.exception("%s was not synchronised", _path(item))
            self.failure_count += 1

    # ---------------------------------------------------------------- workloads

    async def _workload(self, item: Object, world: _World) -> Object | None:
        metadata = item["metadata"]
        owner = f"{metadata['namespace']}/{metadata['name']}"
        name: str = item["spec"].get("id") or metadata["name"]
        stored = world.workloads.get(name)
        mine = stored is not None and dict(stored.labels).get(MARK) == owner
        if "deletionTimestamp" in metadata:
            if mine:
                request = workload_service_pb2.DeleteWorkloadRequest(name=f"workloads/{name}")
                await self._workloads_api.DeleteWorkload(request, None)
                del world.workloads[name]
            await self._release(item)
            return None
        synced, resource = SYNCED, f"workloads/{name}"
        if stored is not None and not mine:
            synced = _conflict(resource, dict(stored.labels).get(MARK), owner)
        else:
            await self._hold(item)
            try:
                stored = await self._carry_workload(item, name, owner, stored)
                world.workloads[name] = stored
                mine = True
            except UseCaseError as error:
                synced = _refused(error, resource if mine else None)
        facts = Facts()
        if mine:
            facts = replace(self._facts(name), contracts=world.contracts.get(name, ()))
            if facts.decision is None:
                facts = replace(facts, decision=await self._stored_decision(name))
        status_synced = replace(synced, resource=resource if mine else None)
        return workload_status(status_synced, facts, metadata["generation"], world.now)

    async def _stored_decision(self, name: str) -> Decision | None:
        """The newest in the ledger: what a new leader has not decided anew stands as its predecessor decided it."""
        if name not in self._stored:
            async with self._deps.store.unit_of_work() as uow:
                found, _ = await uow.decisions.list(workload=name, page=Page(1))
            if not found:
                return None
            self._stored[name] = found[0][0]
        return self._stored[name]

    async def _carry_workload(self, item: Object, name: str, owner: str, stored: Workload | None) -> Workload:
        metadata = item["metadata"]
        if stored is not None and self._is_carried(metadata, stored.generation):
            return stored
        message = workload_message(item["spec"], namespace=metadata["namespace"], owner=owner)
        if stored is None:
            made = await self._workloads_api.CreateWorkload(
                workload_service_pb2.CreateWorkloadRequest(workload=message, workload_id=name), None
            )
        else:
            message.name = f"workloads/{name}"
            request = workload_service_pb2.UpdateWorkloadRequest(
                workload=message, update_mask=FieldMask(paths=["*"]), validate_only=True
            )
            made = await self._workloads_api.UpdateWorkload(request, None)
            if (
                made.generation != stored.generation
            ):  # otherwise nothing differs, and nothing is to be audited
                request.validate_only = False
                request.workload.etag = mappers.etag_of(stored.generation)
                made = await self._workloads_api.UpdateWorkload(request, None)
        self._carried[metadata["uid"]] = _Carried(metadata["generation"], made.generation)
        return mappers.workload_from_wire(made, name)

    # ---------------------------------------------------------------- events

    async def _event(self, item: Object, world: _World) -> Object | None:
        metadata = item["metadata"]
        owner = f"{metadata['namespace']}/{metadata['name']}/{metadata['uid']}"
        event_id, stored = await self._find_event(metadata, owner, world.now)
        mine = stored is not None and dict(stored.labels).get(MARK) == owner
        if "deletionTimestamp" in metadata:
            if mine and stored is not None and stored.state not in _OVER:
                request = event_service_pb2.CancelEventRequest(
                    name=f"events/{event_id}", reason="its TrafficEvent was deleted"
                )
                await self._events_api.CancelEvent(request, None)
            await self._release(item)
            return None
        synced, resource = SYNCED, f"events/{event_id}"
        if stored is not None and not mine:
            synced = _conflict(resource, dict(stored.labels).get(MARK), owner)
        else:
            await self._hold(item)
            try:
                stored = await self._carry_event(item, event_id, owner, stored, world)
                mine = True
            except UseCaseError as error:
                synced = _refused(error, resource if mine else None)
        status_synced = replace(synced, resource=resource if mine else None)
        return event_status(
            status_synced, stored if mine else None, world.contracts, metadata["generation"], world.now
        )

    async def _find_event(
        self, metadata: Mapping[str, Any], owner: str, now: datetime
    ) -> tuple[str, TrafficEvent | None]:
        """The id of an object's event, and the event if it is there.

        Events are never deleted: an object made anew under the name of an earlier one gets an id of its own.
        """
        first = str(metadata["name"])
        earlier = owner.rpartition("/")[0] + "/"
        async with self._deps.store.unit_of_work() as uow:
            for event_id in (first, f"{first[:54]}-{metadata['uid'][:8]}"):
                try:
                    found = await uow.events.get(event_id)
                except NotFoundError:
                    return event_id, None
                mark = dict(found.labels).get(MARK, "")
                if mark == owner or not mark.startswith(earlier):
                    return event_id, (await with_states(uow, [found], now))[0]
        return event_id, found

    async def _carry_event(
        self, item: Object, event_id: str, owner: str, stored: TrafficEvent | None, world: _World
    ) -> TrafficEvent:
        metadata = item["metadata"]
        if stored is not None and self._is_carried(metadata, stored.revision):
            return stored
        _check_reach(item, world)
        message = event_message(item["spec"], owner=owner)
        if stored is None:
            made = await self._events_api.CreateEvent(
                event_service_pb2.CreateEventRequest(event=message, event_id=event_id), None
            )
        else:
            wanted = mappers.event_from_wire(message, event_id)
            same = wanted == replace(stored, **{name: getattr(wanted, name) for name in _OUTPUT})
            made = mappers.event_to_wire(stored)
            if not same:
                message.name, message.etag = f"events/{event_id}", mappers.etag_of(stored.revision)
                made = await self._events_api.UpdateEvent(
                    event_service_pb2.UpdateEventRequest(event=message, update_mask=FieldMask(paths=["*"])),
                    None,
                )
        self._carried[metadata["uid"]] = _Carried(metadata["generation"], made.revision)
        return mappers.event_from_wire(made, event_id)

    # ---------------------------------------------------------------- both

    def _is_carried(self, metadata: Mapping[str, Any], version: int) -> bool:
        return self._carried.get(metadata["uid"]) == _Carried(metadata["generation"], version)

    async def _hold(self, item: Object) -> None:
        """Add our finalizer before anything is created, so that no deletion is missed."""
        present = item["metadata"].get("finalizers") or []
        if FINALIZER not in present:
            await set_finalizers(self._api, item, [*present, FINALIZER])

    async def _release(self, item: Object) -> None:
        present = item["metadata"].get("finalizers") or []
        if FINALIZER in present:
            await set_finalizers(self._api, item, [f for f in present if f != FINALIZER])


async def set_finalizers(api: KubeApi, item: Object, finalizers: Sequence[str]) -> None:
    """Change an object's finalizers; ConflictError if it changed since it was read."""
    version = item["metadata"]["resourceVersion"]
    body = {"metadata": {"resourceVersion": version, "finalizers": list(finalizers)}}
    await api.patch(_path(item), body)


async def release_all(api: KubeApi, namespaces: Sequence[str] = ()) -> int:
    """Take our finalizer off every object, as before Forecrest is removed; return how many had it."""
    count = 0
    for scope in [f"/namespaces/{n}" for n in namespaces] or [""]:
        for kind, plural in PLURALS.items():
            try:
                items = (await api.get(f"{GROUP}{scope}/{plural}"))["items"]
            except NotFoundError:
                continue  # the kind is not installed
            for item in items:
                item["kind"] = kind
                present = item["metadata"].get("finalizers") or []
                if FINALIZER in present:
                    await set_finalizers(api, item, [f for f in present if f != FINALIZER])
                    count += 1
    return count


# What of an event its spec says nothing about.
_OUTPUT: Final = (
    "state",
    "revision",
    "created_by",
    "created_at",
    "updated_at",
    "cancelled_reason",
    "warnings",
)


def _check_reach(item: Object, world: _World) -> None:
    """An object of one namespace must not order replicas in another; what is there it does not even learn."""
    namespace = item["metadata"]["namespace"]
    violations = [
        Violation(f"event.workloads[{i}]", f"there is no workload {name!r} in namespace {namespace}")
        for i, name in enumerate(item["spec"]["workloads"])
        if name not in world.workloads or world.workloads[name].namespace != namespace
    ]
    if violations:
        raise InvalidError(violations)


def _conflict(resource: str, mark: str | None, owner: str) -> Synced:
    if mark is None:
        message = (
            f"metadata.name: {resource} exists and was not made by a custom resource, so it is left alone; "
            f'choose another name, delete it, or hand it over by its label "{MARK}: {owner}"'
        )
    else:
        message = f"metadata.name: {resource} belongs to the object {mark}; choose another name"
    return Synced(ok=False, reason="Conflict", message=message)


def _refused(error: UseCaseError, resource: str | None) -> Synced:
    message = sentence_of(error) if isinstance(error, InvalidError) else in_spec(str(error))
    return Synced(ok=False, reason=pascal(error.reason), message=message, resource=resource)


def _path(item: Object) -> str:
    metadata = item["metadata"]
    return f"{GROUP}/namespaces/{metadata['namespace']}/{PLURALS[item['kind']]}/{metadata['name']}"


def _asked(item: Object) -> tuple[str, int, bool]:
    metadata = item["metadata"]
    return metadata["uid"], metadata["generation"], "deletionTimestamp" in metadata


def _kept(kind: str, item: Object) -> Object:
    """What is read of an object."""
    metadata = item["metadata"]
    return {
        "kind": kind,
        "metadata": {n: metadata[n] for n in _METADATA if n in metadata},
        "spec": item["spec"],
        "status": item.get("status") or {},
    }
