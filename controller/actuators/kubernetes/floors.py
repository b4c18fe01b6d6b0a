"""Raise the minimum of an autoscaler that stays in charge, and give it back.

Promises: an HPA's ``minReplicas`` or a ScaledObject's ``minReplicaCount`` is never set below what its owner wrote;
what its owner wrote is kept in annotations on the object itself, so it can be restored by a later controller, by
``forecrest kubernetes restore``, or by hand, even when Forecrest is gone; the maximum is raised with it where the
floor needs that, and restored too. The HPA that KEDA made for a ScaledObject is left alone: KEDA would undo it.
Called by the actuator.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from controller.actuators.kubernetes.api import KubeApi, KubeError, Object
from controller.actuators.kubernetes.targets import Autoscaler, Target
from controller.ports import ConflictError, UnavailableError

log = logging.getLogger(__name__)

ORIGINAL_MIN: Final = "forecrest.dev/original-min-replicas"
ORIGINAL_MAX: Final = "forecrest.dev/original-max-replicas"
_OURS: Final = frozenset({ORIGINAL_MIN, ORIGINAL_MAX, "forecrest.dev/fence"})
TRIES_MAX: Final = 6
_FIELDS: Final = {
    "hpa": ("minReplicas", "maxReplicas", 1),
    "scaledobject": ("minReplicaCount", "maxReplicaCount", 0),
}
_KEDA_MAX_DEFAULT: Final = 100

Objects: TypeAlias = Mapping[tuple[str, str], Object]


@dataclass(frozen=True, slots=True)
class Minimum:
    """An autoscaler's limits as they are now, and as their owner wrote them."""

    kind: Literal["hpa", "scaledobject"]
    namespace: str
    name: str
    replicas: int
    maximum: int
    original: int
    original_maximum: int
    is_raised: bool

    @property
    def path(self) -> str:
        """URL path of the object."""
        if self.kind == "hpa":
            return f"/apis/autoscaling/v2/namespaces/{self.namespace}/horizontalpodautoscalers/{self.name}"
        return f"/apis/keda.sh/v1alpha1/namespaces/{self.namespace}/scaledobjects/{self.name}"

    @property
    def label(self) -> str:
        """As a person writes it."""
        kind = "HorizontalPodAutoscaler" if self.kind == "hpa" else "ScaledObject"
        return f"{kind} {self.namespace}/{self.name}"


class Abandoned:
    """Paths of minima that look abandoned to leaders of which none knows the others' workloads as they are now."""

    def __init__(self) -> None:
        self._fences: Mapping[str, frozenset[int]] = {}  # of those who found so

    def confirmed(self, paths: Collection[str], fence: int) -> Collection[str]:
        """Those that this leader found before, and no other leader found otherwise since; ``paths``: of its look now."""
        before = self._fences
        self._fences = {path: before.get(path, frozenset()) | {fence} for path in paths}
        return {path for path in paths if fence in before.get(path, ())}


def kept(item: Object) -> Object:
    """What is read of an autoscaler."""
    metadata, spec = item["metadata"], item["spec"]
    return {
        "metadata": {k: metadata[k] for k in ("name", "namespace", "resourceVersion")}
        | {
            "annotations": {k: v for k, v in (metadata.get("annotations") or {}).items() if k in _OURS},
            "ownerReferences": [
                {k: o.get(k) for k in ("kind", "name")} for o in metadata.get("ownerReferences") or ()
            ],
        },
        "spec": {
            k: spec[k]
            for k in ("scaleTargetRef", "minReplicas", "maxReplicas", "minReplicaCount", "maxReplicaCount")
            if k in spec
        },
    }


def find(target: Target, hpas: Objects, scaled: Objects) -> Minimum:
    """The autoscaler whose minimum stands for this target.

    Raises:
        KubeError: there is none; the message says what to do.
    """
    named = target.autoscaler
    if named is None:
        mine = next((s for s in scaled.values() if _scales(s, target)), None)
        if mine is not None:
            named = Autoscaler("scaledobject", mine["metadata"]["name"])
        else:
            hpa = next((h for h in hpas.values() if _scales(h, target)), None)
            if hpa is None:
                raise KubeError(
                    f"no HorizontalPodAutoscaler or ScaledObject scales {target.label}: mode FLOOR raises the minimum "
                    "of one; create it, or use mode SCALE"
                )
            named = Autoscaler("hpa", hpa["metadata"]["name"])
    found = (hpas if named.kind == "hpa" else scaled).get((target.namespace, named.name))
    if found is None:
        raise KubeError(f"target: autoscaler {named.kind}/{named.name} is not there in {target.namespace}")
    if owner := _keda_owner(found):
        raise KubeError(
            f"target: autoscaler hpa/{named.name} belongs to KEDA, which would undo it; name scaledobject/{owner}"
        )
    return read(named.kind, found)


def owners(hpas: Objects) -> Mapping[tuple[str, ...], str]:
    """Autoscalers that scale something by themselves, by what they scale (`scaled_key`)."""
    found: dict[tuple[str, ...], str] = {}
    for hpa in hpas.values():
        reference = hpa["spec"].get("scaleTargetRef") or {}
        name = f"HorizontalPodAutoscaler {hpa['metadata']['namespace']}/{hpa['metadata']['name']}"
        keda = _keda_owner(hpa)
        key = (
            hpa["metadata"]["namespace"],
            str(reference.get("apiVersion") or "apps/v1").partition("/")[0],
            str(reference.get("kind") or "Deployment"),
            str(reference.get("name")),
        )
        found.setdefault(key, f"{name} (of ScaledObject {keda})" if keda else name)
    return found


def scaled_key(target: Target) -> tuple[str, ...]:
    """Under which `owners` has a target's autoscaler."""
    return target.namespace, target.api_version.partition("/")[0], target.kind, target.name


def raised(hpas: Objects, scaled: Objects) -> Sequence[Minimum]:
    """Every autoscaler whose minimum is ours now."""
    everything = [read("hpa", h) for h in hpas.values()] + [read("scaledobject", s) for s in scaled.values()]
    return [minimum for minimum in everything if minimum.is_raised]


def read(kind: Literal["hpa", "scaledobject"], found: Object) -> Minimum:
    """An autoscaler's limits. Its annotations count only where they are numbers."""
    low, high, low_default = _FIELDS[kind]
    spec, notes = found["spec"], found["metadata"].get("annotations") or {}
    replicas, maximum = int(spec.get(low, low_default)), int(spec.get(high, _KEDA_MAX_DEFAULT))
    text, text_max = str(notes.get(ORIGINAL_MIN, "")), str(notes.get(ORIGINAL_MAX, ""))
    return Minimum(
        kind,
        found["metadata"]["namespace"],
        found["metadata"]["name"],
        replicas,
        maximum,
        int(text) if text.isdecimal() else replicas,
        int(text_max) if text_max.isdecimal() else maximum,
        text.isdecimal() or text_max.isdecimal(),
    )


async def raise_to(
    api: KubeApi,
    minimum: Minimum,
    replicas: int,
    query: Mapping[str, str],
    check: Callable[[Object], None],
) -> None:
    """Set the minimum to ``replicas``, or back to its owner's where that is no less.

    Raises:
        KubeError: the object is somebody else's to change, or the API server refuses.
        UnavailableError: it changes faster than it can be set.
    """
    for _ in range(TRIES_MAX):
        found = await api.get(minimum.path)
        check(found)
        now = read(minimum.kind, found)
        body = _change(now, found, max(replicas, now.original))
        if body is None:
            return
        try:
            await api.patch(minimum.path, body, **query)
        except ConflictError:
            continue
        log.info("%s: minimum %d", minimum.label, max(replicas, now.original))
        return
    raise UnavailableError(f"{minimum.label} changes faster than its minimum can be set")


async def restore(api: KubeApi, minimum: Minimum, query: Mapping[str, str]) -> None:
    """Give the limits back that the owner wrote. Raises as ``raise_to``."""
    await raise_to(api, minimum, minimum.original, query, lambda _: None)


def _change(now: Minimum, found: Object, wanted: int) -> Object | None:
    """The patch that makes ``wanted`` the minimum; None if nothing is to be done."""
    ours = wanted > now.original
    maximum = max(now.original_maximum, wanted) if ours else now.original_maximum
    if (now.replicas, now.maximum, now.is_raised) == (wanted, maximum, ours):
        return None
    low, high, _ = _FIELDS[now.kind]
    return {
        "metadata": {
            "resourceVersion": found["metadata"]["resourceVersion"],
            "annotations": {
                ORIGINAL_MIN: str(now.original) if ours else None,
                ORIGINAL_MAX: str(now.original_maximum) if ours else None,
            },
        },
        "spec": {low: wanted, high: maximum},
    }


def _scales(item: Object, target: Target) -> bool:
    reference = item["spec"].get("scaleTargetRef") or {}
    group = str(reference.get("apiVersion") or "apps/v1").partition("/")[0]
    return (
        item["metadata"]["namespace"] == target.namespace
        and (reference.get("kind") or "Deployment") == target.kind
        and reference.get("name") == target.name
        and group == target.api_version.partition("/")[0]
    )


def _keda_owner(item: Object) -> str | None:
    owners = item["metadata"].get("ownerReferences") or ()
    return next((str(o["name"]) for o in owners if o.get("kind") == "ScaledObject"), None)
