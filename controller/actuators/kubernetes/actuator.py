"""Change replica counts on Kubernetes through the scale subresource, and report pods with the stage they verifiably reached.

Promises: what is observed comes from watches that are known to be fresh, else the workload is *unknown* and nothing
is scaled down; an order is a compare-and-set on the version that was read, under a fencing token kept on the target
itself, so that a replaced leader's order is refused by the API server and not only by us; pods that leave are the
least useful ones; a pod is VERIFIED only by `triton.verify_warm` while Kubernetes calls it ready. In mode FLOOR only
the minimum of an existing autoscaler is raised, see `floors`. Refuses to touch anything it was not told of. Called
by the loop through the `Actuator` port.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from controller.actuators.fences import Fences
from controller.actuators.kubernetes import floors, pods, targets
from controller.actuators.kubernetes.api import KubeApi, KubeError, Object
from controller.actuators.kubernetes.floors import Minimum
from controller.actuators.kubernetes.pods import PodFacts
from controller.actuators.kubernetes.reflector import Reflector, Snapshot
from controller.actuators.kubernetes.targets import Target
from controller.actuators.kubernetes.warmth import Verifier, Warmth
from controller.core.types import Mode, Replica, Stage, Workload
from controller.ports import (
    Clock,
    ConflictError,
    NotFoundError,
    PoolView,
    PortError,
    StaleFenceError,
    UnavailableError,
)

log = logging.getLogger(__name__)

FENCE: Final = "forecrest.dev/fence"
STALE_AFTER: Final = timedelta(seconds=30)
TRIES_MAX: Final = 6  # a busy target's version changes with every pod that becomes ready
CLAIMS_MAX: Final = 8
_LEAVES_FIRST: Final = -1000
_USEFUL: Final = (
    Stage.FAILED,
    Stage.ORDERED,
    Stage.SCHEDULED,
    Stage.LOADED,
    Stage.WARMED,
    Stage.VERIFIED,
)


class KubernetesActuator:
    """Implements `controller.ports.Actuator`. Call it from one event loop; it starts watching on first use."""

    def __init__(
        self, api: KubeApi, clock: Clock, *, namespaces: Sequence[str] = (), dry_run: bool = False
    ) -> None:
        """``namespaces``: watched ones, all without any. ``dry_run``: the server checks orders and keeps nothing."""
        self._api, self._clock = api, clock
        self._query = {"dryRun": "All"} if dry_run else {}
        self._dry_run = dry_run
        self._fences = Fences()
        self._claimed: dict[str, int] = {}  # fence on each workload's target, as far as we wrote or read it
        self._abandoned = floors.Abandoned()
        self._seen: dict[str, set[tuple[str, str]]] = {}  # pods, by workload
        self._asked: dict[str, int] = {}  # floors, by workload
        self._problems: dict[str, str] = {}
        self._verifier = Verifier(clock, self._signal_change)
        self._change = asyncio.Event()
        scopes = [f"/namespaces/{n}" for n in namespaces] or [""]

        def watch(path: str, **kwargs: Any) -> tuple[Reflector, ...]:  # noqa: ANN401 - Reflector's own keywords
            group, _, resource = path.rpartition("/")
            return tuple(
                Reflector(api, f"{group}{scope}/{resource}", on_change=self._signal_change, **kwargs)
                for scope in scopes
            )

        self._pods = watch("/api/v1/pods", keep=pods.kept)
        self._built_in = {
            "deployments": watch("/apis/apps/v1/deployments", keep=_kept),
            "statefulsets": watch("/apis/apps/v1/statefulsets", keep=_kept),
        }
        self._hpas = watch("/apis/autoscaling/v2/horizontalpodautoscalers", keep=floors.kept)
        self._scaled = watch("/apis/keda.sh/v1alpha1/scaledobjects", keep=floors.kept, optional=True)
        self._refusals = watch(
            "/api/v1/events", keep=_kept_event, query={"fieldSelector": "reason=FailedCreate"}
        )
        self._nodes = Reflector(api, "/api/v1/nodes", keep=_kept_node, optional=True)
        self._pod_index = Snapshot(self._pods, pods.PodIndex)
        self._targets = {kind: Snapshot(group, dict) for kind, group in self._built_in.items()}
        self._owners = Snapshot(self._hpas, floors.owners)
        self._minima = Snapshot(self._hpas, dict), Snapshot(self._scaled, dict)
        self._started = False

    # ---------------------------------------------------------------- observing

    async def observe(self, workloads: Sequence[Workload]) -> Mapping[str, PoolView]:
        """Views of workloads whose targets and pods are freshly known and whose ready pods were judged."""
        self._start()
        if not self._is_fresh:
            self._note("", "the API server is not being heard: replicas are unknown")
            return {}
        self._note("", None)
        nodes = self._nodes.objects
        views: dict[str, PoolView] = {}
        for workload in workloads:
            if workload.mode is Mode.KEDA and not workload.target:
                continue  # KEDA's own target is nobody's business here
            seen = set[tuple[str, str]]()
            view = await self._view(workload, nodes, seen)
            self._seen[workload.name] = seen
            if view is not None:
                views[workload.name] = view
        self._verifier.retain(set().union(*self._seen.values()))
        return views

    async def _view(
        self,
        workload: Workload,
        nodes: Mapping[tuple[str, str], Object],
        seen: set[tuple[str, str]],
    ) -> PoolView | None:
        try:
            target = targets.parse(workload)
            found, selector = await self._read(target)
        except (ValueError, PortError) as error:
            self._note(workload.name, f"its target cannot be observed: {error}")
            return None
        mine = self._pod_index().of(target.namespace, selector)
        seen |= {(target.namespace, p.name) for p in mine}
        warmth = self._verifier.look(workload, target, mine)
        # A new controller has verified nothing yet: what serves would look broken, and be replaced.
        if any(p.is_ready and (known := warmth.get(p.name)) and not known.is_judged for p in mine):
            return None
        desired = int(found["spec"].get("replicas", 1))
        if workload.mode is Mode.FLOOR:
            try:
                desired = self._floor(workload, self._minimum(target))
            except KubeError as error:
                self._note(workload.name, str(error))
                return None
        self._note(workload.name, self._shortfall(target, found, mine))
        on = sorted({p.node for p in mine if p.node is not None})
        self._note(
            f"{workload.name}/nodes",
            next((why for n in on if (why := pods.misfit(workload.profiles, nodes.get(("", n))))), None),
        )
        return PoolView(
            desired_replicas=desired,
            replicas=tuple(_replica(workload, target, p, warmth.get(p.name), nodes) for p in mine),
            competing_owner=self._owners().get(floors.scaled_key(target)),
            shortfall=self._problems.get(workload.name),
        )

    def _minimum(self, target: Target) -> Minimum:
        hpas, scaled = self._minima
        return floors.find(target, hpas(), scaled())

    def _floor(self, workload: Workload, minimum: Minimum) -> int:
        """The floor that is in force: what we asked for, where the owner's own minimum is no less."""
        asked = self._asked.get(workload.name)
        return (
            asked if asked is not None and asked <= minimum.original == minimum.replicas else minimum.replicas
        )

    def _shortfall(self, target: Target, found: Object, mine: Sequence[PodFacts]) -> str | None:
        """Why fewer pods come than were asked for, in one sentence; None if nothing stands in their way."""
        waiting = [p for p in mine if p.unschedulable is not None]
        if waiting:
            return f"{len(waiting)} pods of {target.label} find no node: {waiting[0].unschedulable}"
        missing = int(found["spec"].get("replicas", 1)) - sum(not p.is_leaving for p in mine)
        if missing > 0:
            for condition in found.get("status", {}).get("conditions", ()):
                if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
                    return f"{missing} pods of {target.label} were refused: {condition.get('message')}"
            for event in self._objects(self._refusals).values():
                if event["involved"] == ("StatefulSet", target.namespace, target.name):
                    return f"{missing} pods of {target.label} were refused: {event['message']}"
        return None

    def _note(self, workload: str, problem: str | None) -> None:
        """Remember what stands in a workload's way; log it once."""
        if problem is None:
            self._problems.pop(workload, None)
        elif self._problems.get(workload) != problem:
            self._problems[workload] = problem
            log.warning("%s%s", f"{workload}: " if workload else "", problem)

    async def _read(self, target: Target) -> tuple[Object, Mapping[str, str]]:
        """The target and its pods' labels: from the watch if it is built in, from the server otherwise."""
        if target.is_built_in:
            found = self._targets[target.resource]().get((target.namespace, target.name))
            if found is None:
                raise NotFoundError(f"there is no {target.label}")
            return found, found["spec"]["selector"].get("matchLabels") or {}
        scale = await self._api.get(f"{target.path}/scale")
        text = scale.get("status", {}).get("selector", "")
        pairs = (part.partition("=") for part in text.split(",") if "=" in part)
        return scale, {key: value for key, _, value in pairs}

    @property
    def problems(self) -> Mapping[str, str]:
        """What stands in each workload's way, as far as anything does."""
        return self._problems

    @property
    def calls(self) -> Mapping[tuple[str, int], int]:
        """Calls to the API server so far, by verb and status code; 0: no answer."""
        return self._api.calls

    async def reference(self, workload: Workload) -> Object | None:
        """How Kubernetes refers to a workload's target; None if there is none. Raises PortError."""
        try:
            target = targets.parse(workload)
            if target.is_built_in:
                found, _ = await self._read(target)
            else:
                found = await self._api.get(target.path)
        except (ValueError, NotFoundError):
            return None
        return {
            "apiVersion": target.api_version,
            "kind": target.kind,
            "namespace": target.namespace,
            "name": target.name,
            "uid": found["metadata"]["uid"],
        }

    # ---------------------------------------------------------------- acting

    async def claim(
        self, workloads: Sequence[Workload], *, fence: int, others: Sequence[Workload] | None = None
    ) -> None:
        """Write the fence onto every target once per leadership; orders with an older one fail from then on.

        A target that is not there cannot be changed by anybody, so it is passed over; so is one that does not
        answer for itself while the API server does.
        """
        self._fences.claim(workloads, others, fence)
        self._start()
        if not await self._synced():
            raise UnavailableError("the API server has not been heard yet")
        slots = asyncio.Semaphore(CLAIMS_MAX)

        async def one(workload: Workload) -> None:
            async with slots:
                await self._claim(workload, fence)

        acting = [w for w in workloads if w.mode in {Mode.SCALE, Mode.FLOOR}]
        # Not a task group: callers look for StaleFenceError and UnavailableError, not for a group of them.
        await asyncio.gather(*(one(w) for w in acting if self._claimed.get(w.name) != fence))
        kept = {w.name for w in acting if self._claimed.get(w.name) == fence} | {w.name for w in others or ()}
        self._claimed = {name: written for name, written in self._claimed.items() if name in kept}
        self._seen = {
            w.name: self._seen[w.name] for w in (*workloads, *(others or ())) if w.name in self._seen
        }
        await self._restore_abandoned((*workloads, *(others or ())), None if others is None else fence)

    async def _claim(self, workload: Workload, fence: int) -> None:
        try:
            target = targets.parse(workload)
            path = target.path
            if workload.mode is Mode.FLOOR:
                path = self._minimum(target).path
            for _ in range(TRIES_MAX):
                found = await self._api.get(path)
                self._check_fence(found, fence, target)
                if _fence_of(found) == fence or self._dry_run:
                    break
                body = {
                    "metadata": {
                        "resourceVersion": found["metadata"]["resourceVersion"],
                        "annotations": {FENCE: str(fence)},
                    }
                }
                try:
                    await self._api.patch(path, body)
                    break
                except ConflictError:
                    continue
            else:
                raise UnavailableError(f"{target.label} changes faster than it can be claimed")
        except (ValueError, NotFoundError, KubeError) as error:
            self._note(workload.name, f"its target cannot be claimed: {error}")
            return
        self._claimed[workload.name] = fence

    async def scale(self, workload: Workload, replicas: int, *, fence: int) -> None:
        """Set the target's replicas, or in mode FLOOR its autoscaler's minimum, by compare-and-set.

        Raises:
            StaleFenceError: a newer token was seen, here or on the target.
            KubeError, NotFoundError, UnavailableError: nothing was changed, as far as is known.
        """
        self._fences.check(workload.name, fence)
        try:
            target = targets.parse(workload)
        except ValueError as error:
            raise KubeError(f"workload {workload.name}: {error}") from error
        if workload.mode is Mode.FLOOR:
            minimum = self._minimum(target)
            self._asked[workload.name] = replicas
            await floors.raise_to(
                self._api,
                minimum,
                replicas,
                self._query,
                lambda found: self._check_fence(found, fence, target),
            )
            return
        await self._prefer(workload, target, replicas)
        for _ in range(TRIES_MAX):
            # The object carries the fence, its scale the count; both have one version between them.
            found = await self._api.get(target.path)
            self._check_fence(found, fence, target)
            scale = await self._api.get(f"{target.path}/scale")
            if scale["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
                continue
            if int(scale["spec"].get("replicas", 0)) == replicas:
                self._take_over(target, found, scale)
                return
            scale["spec"]["replicas"] = replicas
            try:
                scale = await self._api.replace(f"{target.path}/scale", scale, **self._query)
            except ConflictError:
                self._fences.check(workload.name, fence)
                continue
            self._take_over(target, found, scale)
            log.info("%s: %d replicas ordered", target.label, replicas)
            return
        raise UnavailableError(
            f"{target.label} changes faster than it can be scaled; the next tick tries again"
        )

    def _take_over(self, target: Target, found: Object, scale: Object) -> None:
        """Let the next look see what was ordered, even where pods are heard of before their owner."""
        if not target.is_built_in or self._dry_run:
            return
        ordered = {
            **found,
            "metadata": found["metadata"] | {"resourceVersion": scale["metadata"]["resourceVersion"]},
            "spec": found["spec"] | {"replicas": scale["spec"].get("replicas", 0)},
        }
        for reflector in self._built_in[target.resource]:
            reflector.put(ordered)

    async def replace(self, workload: Workload, replica_id: str, *, fence: int) -> None:
        """Evict a pod, so that its owner makes another; a PodDisruptionBudget may say no.

        Raises:
            StaleFenceError, KubeError, UnavailableError: as ``scale``.
            NotFoundError: there is no such pod of this workload.
        """
        self._fences.check(workload.name, fence)
        try:
            target = targets.parse(workload)
        except ValueError as error:
            raise KubeError(f"workload {workload.name}: {error}") from error
        self._check_fence(await self._api.get(target.path), fence, target)
        _, selector = await self._read(target)
        mine = self._pod_index().of(target.namespace, selector)
        pod = next((p for p in mine if p.name == replica_id), None)
        if pod is None or pod.is_leaving:
            raise NotFoundError(f"replica_id: {workload.name} has no replica {replica_id}")
        path = f"/api/v1/namespaces/{target.namespace}/pods/{pod.name}"
        # With its uid: a pod of the same name that came since is not the one that was judged.
        body: Object = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": target.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        await self._api.create(f"{path}/eviction", body, **self._query)

    async def _prefer(self, workload: Workload, target: Target, replicas: int) -> None:
        """Let the least useful pods leave first. A hint that cannot be given holds nothing up."""
        try:
            _, selector = await self._read(target)
        except PortError:
            return
        pool = [p for p in self._pod_index().of(target.namespace, selector) if not p.is_leaving]
        warmth = self._verifier.look(workload, target, pool)
        staged = [(_stage(p, warmth.get(p.name))[0], p) for p in pool]
        # The least advanced leave first, then the youngest.
        staged.sort(key=lambda item: (_USEFUL.index(item[0]), -item[1].created_at.timestamp()))
        leaving = {p.name for _, p in staged[: max(0, len(pool) - replicas)]}
        for pod in pool:
            cost = _LEAVES_FIRST if pod.name in leaving else 0
            if pod.deletion_cost == cost:
                continue
            body: Object = {"metadata": {"annotations": {pods.DELETION_COST: str(cost) if cost else None}}}
            try:
                await self._api.patch(
                    f"/api/v1/namespaces/{target.namespace}/pods/{pod.name}", body, **self._query
                )
            except PortError as error:
                log.info("%s keeps its deletion cost: %s", pod.name, error)

    async def _restore_abandoned(self, workloads: Sequence[Workload], shared: int | None) -> None:
        """Give autoscalers their own minimum back whose workload is gone or no longer in mode FLOOR.

        ``shared``: the fence of one leader among several. What it read of the others' workloads may be older than
        what they did since, so a minimum must look abandoned at two claims in a row.
        """
        kept: set[str] = set()
        for workload in workloads:
            if workload.mode is Mode.FLOOR:
                try:
                    kept.add(self._minimum(targets.parse(workload)).path)
                except (ValueError, PortError):
                    return  # which one is meant is not known: none is touched
        hpas, scaled = self._minima
        abandoned = [m for m in floors.raised(hpas(), scaled()) if m.path not in kept]
        if shared is not None:
            confirmed = self._abandoned.confirmed({m.path for m in abandoned}, shared)
            abandoned = [m for m in abandoned if m.path in confirmed]
        for minimum in abandoned:
            try:
                await floors.restore(self._api, minimum, self._query)
            except PortError as error:
                log.warning("%s keeps our minimum for now: %s", minimum.label, error)

    async def restore_all(self) -> int:
        """Give every autoscaler its own minimum back, as before Forecrest is removed; return how many."""
        self._start()
        if not await self._synced():
            raise UnavailableError("the API server has not been heard yet")
        hpas, scaled = self._minima
        raised = floors.raised(hpas(), scaled())
        for minimum in raised:
            await floors.restore(self._api, minimum, self._query)
        return len(raised)

    async def changed(self) -> None:
        """Wait until anything watched changes."""
        await self._change.wait()

    async def close(self) -> None:
        """Stop watching; pods stay as they are."""
        await self._verifier.close()
        await asyncio.gather(*(r.close() for r in self._reflectors))
        await self._api.close()

    # ---------------------------------------------------------------- inside

    @property
    def _reflectors(self) -> tuple[Reflector, ...]:
        built_in = [r for group in self._built_in.values() for r in group]
        return (*self._pods, *built_in, *self._hpas, *self._scaled, *self._refusals, self._nodes)

    def _start(self) -> None:
        if not self._started:
            self._started = True
            for reflector in self._reflectors:
                reflector.start()

    @property
    def _needed(self) -> tuple[Reflector, ...]:
        """Watches without which nothing may be judged; the others only explain."""
        return (*self._pods, *(r for group in self._built_in.values() for r in group), *self._hpas)

    @property
    def _is_fresh(self) -> bool:
        return all(r.is_fresh(STALE_AFTER) for r in self._needed)

    async def _synced(self) -> bool:
        """Wait a while for the first lists."""
        try:
            async with asyncio.timeout(STALE_AFTER.total_seconds()):
                while not self._is_fresh:
                    await self._change.wait()
        except TimeoutError:
            return False
        return True

    def _signal_change(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    def _objects(self, reflectors: Sequence[Reflector]) -> Mapping[tuple[str, str], Object]:
        merged: dict[tuple[str, str], Object] = {}
        for reflector in reflectors:
            merged |= reflector.objects
        return merged

    def _check_fence(self, found: Object, fence: int, target: Target) -> None:
        written = _fence_of(found)
        if written is not None and written > fence:
            raise StaleFenceError(
                f"{target.label} was claimed with fence {written}, newer than {fence}: stop acting"
            )


def _fence_of(found: Object) -> int | None:
    text = str((found["metadata"].get("annotations") or {}).get(FENCE, ""))
    return int(text) if text.isdecimal() else None


def _stage(pod: PodFacts, warmth: Warmth | None) -> tuple[Stage, str | None]:
    if pod.is_leaving:
        return Stage.DRAINING, None
    if pod.failure is not None:
        return Stage.FAILED, pod.failure
    if warmth is None:
        return (Stage.ORDERED if pod.node is None else Stage.SCHEDULED), None
    if warmth.stage is Stage.VERIFIED and not pod.is_ready:
        return Stage.WARMED, None  # no traffic reaches it before Kubernetes calls it ready
    return warmth.stage, warmth.failure


def _replica(
    workload: Workload,
    target: Target,
    pod: PodFacts,
    warmth: Warmth | None,
    nodes: Mapping[tuple[str, str], Object],
) -> Replica:
    stage, failure = _stage(pod, warmth)
    profile = None
    if pod.node is not None:
        node = nodes.get(("", pod.node))
        profile = pods.profile_on(workload.profiles, pods.gpu_product(node), pods.compute_capability(node))
        unfit = pods.misfit(workload.profiles, node)
        if unfit is not None and failure is not None:
            failure = f"{failure}; {unfit}"
    since = (warmth.stage_at if warmth else None) or pod.scheduled_at or pod.created_at
    return Replica(
        id=pod.name,
        stage=stage,
        ordered_at=pod.created_at,
        stage_at=max(since, pod.ready_at) if stage is Stage.VERIFIED and pod.ready_at else since,
        profile=profile,
        failure=failure,
        endpoint=f"{pod.host}:{target.grpc_port}" if pod.host else None,
        metrics_url=f"http://{pod.host}:{target.metrics_port}/metrics" if pod.host else None,
        stage_s=dict(warmth.stage_s) if warmth else {},
    )


def _kept(item: Object) -> Object:
    metadata, spec, status = item["metadata"], item["spec"], item.get("status", {})
    return {
        "metadata": {k: metadata[k] for k in ("name", "namespace", "uid", "resourceVersion") if k in metadata}
        | {"annotations": {k: v for k, v in (metadata.get("annotations") or {}).items() if k == FENCE}},
        "spec": {"replicas": spec.get("replicas", 1), "selector": spec.get("selector", {})},
        "status": {
            "conditions": [
                {k: c.get(k) for k in ("type", "status", "message")}
                for c in status.get("conditions", ())
                if c.get("type") == "ReplicaFailure"
            ]
        },
    }


def _kept_event(item: Object) -> Object:
    involved = item.get("involvedObject", {})
    return {
        "metadata": {k: item["metadata"][k] for k in ("name", "namespace", "resourceVersion")},
        "involved": (involved.get("kind"), involved.get("namespace"), involved.get("name")),
        "message": str(item.get("message", ""))[:300],
    }


def _kept_node(item: Object) -> Object:
    metadata = item["metadata"]
    labels = {k: v for k, v in (metadata.get("labels") or {}).items() if k.startswith("nvidia.com/")}
    return {
        "metadata": {
            "name": metadata["name"],
            "resourceVersion": metadata["resourceVersion"],
            "labels": labels,
        }
    }
