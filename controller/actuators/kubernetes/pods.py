"""What a pod's object says about a replica, as pure functions.

Promises: only what the object shows; whether the pod is *warm* is for the verification to say. A pod that cannot
be scheduled, pulled or kept running gives a sentence an operator can act on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from controller.core.types import CapacityProfile

GPU_PRODUCT_LABEL: Final = "nvidia.com/gpu.product"
DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
# Reasons of a waiting container that no patience heals.
_HOPELESS: Final = frozenset(
    {
        "CrashLoopBackOff",
        "ImagePullBackOff",
        "ErrImagePull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }
)
_CAUSE_CHARS_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod as far as scaling is concerned. ``run`` changes whenever its containers were started anew."""

    name: str
    uid: str
    labels: Mapping[str, str]
    created_at: datetime
    node: str | None
    ip: str | None
    run: str
    scheduled_at: datetime | None
    running_at: datetime | None  # when the last container began to run; None: not all of them run
    is_ready: bool
    ready_at: datetime | None
    is_leaving: bool
    unschedulable: str | None  # why the scheduler finds no node
    failure: str | None  # why it cannot run
    deletion_cost: int

    @property
    def host(self) -> str | None:
        """Its address as it stands before a port."""
        return f"[{self.ip}]" if self.ip is not None and ":" in self.ip else self.ip


def kept(pod: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a pod that `facts` reads: a fraction of the object."""
    metadata, spec, status = pod["metadata"], pod.get("spec", {}), pod.get("status", {})
    names = (
        "name",
        "namespace",
        "uid",
        "labels",
        "resourceVersion",
        "creationTimestamp",
        "deletionTimestamp",
    )
    cost = metadata.get("annotations", {}).get(DELETION_COST)
    return {
        "metadata": {n: metadata[n] for n in names if n in metadata}
        | ({"annotations": {DELETION_COST: cost}} if cost is not None else {}),
        "spec": {"nodeName": spec.get("nodeName")},
        "status": {
            "phase": status.get("phase"),
            "reason": status.get("reason"),
            "message": status.get("message"),
            "podIP": status.get("podIP"),
            "conditions": [
                {k: c.get(k) for k in ("type", "status", "reason", "message", "lastTransitionTime")}
                for c in status.get("conditions", ())
                if c.get("type") in {"PodScheduled", "Ready"}
            ],
            "containerStatuses": [
                {k: c.get(k) for k in ("name", "state", "lastState", "restartCount", "ready")}
                for c in status.get("containerStatuses", ())
            ],
        },
    }


def facts(pod: Mapping[str, Any]) -> PodFacts:
    """Read one pod object, whole or `kept`."""
    metadata, status = pod["metadata"], pod.get("status", {})
    conditions = {c["type"]: c for c in status.get("conditions", ())}
    scheduled, ready = conditions.get("PodScheduled", {}), conditions.get("Ready", {})
    containers = status.get("containerStatuses", ())
    is_ready = ready.get("status") == "True"
    return PodFacts(
        name=metadata["name"],
        uid=metadata["uid"],
        labels=metadata.get("labels") or {},
        created_at=_time(metadata["creationTimestamp"]),
        node=pod.get("spec", {}).get("nodeName"),
        ip=status.get("podIP"),
        run=f"{metadata['uid']}/{sum(c.get('restartCount') or 0 for c in containers)}",
        scheduled_at=_since(scheduled) if scheduled.get("status") == "True" else None,
        running_at=_running_at(containers),
        is_ready=is_ready,
        ready_at=_since(ready) if is_ready else None,
        is_leaving="deletionTimestamp" in metadata,
        unschedulable=_cause(scheduled.get("message"))
        if scheduled.get("reason") == "Unschedulable"
        else None,
        failure=_failure(status, containers),
        deletion_cost=_cost(metadata),
    )


def _running_at(containers: Sequence[Mapping[str, Any]]) -> datetime | None:
    starts = [(c.get("state") or {}).get("running") for c in containers]
    if not starts or any(s is None or not s.get("startedAt") for s in starts):
        return None
    return max(_time(s["startedAt"]) for s in starts if s is not None)


def _failure(status: Mapping[str, Any], containers: Sequence[Mapping[str, Any]]) -> str | None:
    if status.get("phase") == "Failed":
        return _cause(f"{status.get('reason') or 'Failed'}: {status.get('message') or 'the pod ended'}")
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in _HOPELESS:
            continue
        ended = (container.get("lastState") or {}).get("terminated") or {}
        last = (
            f" (last ended with {ended.get('reason') or 'code'} {ended.get('exitCode')})"
            if ended and ended.get("exitCode") is not None
            else ""
        )
        message = waiting.get("message") or f"{container.get('restartCount') or 0} restarts"
        return _cause(f"{waiting['reason']}: {message}{last}")
    return None


def gpu_product(node: Mapping[str, Any] | None) -> str | None:
    """GPU type of a node by NVIDIA's label, for example ``NVIDIA-A10`` or ``Tesla-T4``."""
    labels = (node or {}).get("metadata", {}).get("labels") or {}
    value: str | None = labels.get(GPU_PRODUCT_LABEL)
    return value


def profile_on(profiles: Sequence[CapacityProfile], product: str | None) -> CapacityProfile | None:
    """The profile measured on this GPU type; None when there is none, or the type is unknown.

    NVIDIA's label spells ``NVIDIA-A10`` what people call A10: words are compared without the maker's name.
    """
    if product is None:
        return None
    return next((p for p in profiles if _words(p.gpu_type) == _words(product)), None)


def _words(name: str) -> tuple[str, ...]:
    words = name.lower().replace("_", "-").replace(" ", "-").split("-")
    return tuple(w for w in words if w not in {"nvidia", "tesla", "geforce", "quadro"})


def _cost(metadata: Mapping[str, Any]) -> int:
    text = str((metadata.get("annotations") or {}).get(DELETION_COST, "0"))
    try:
        return int(text)
    except ValueError:
        return 0


def _cause(text: str | None) -> str:
    return " ".join((text or "no reason given").split())[:_CAUSE_CHARS_MAX]


def _since(condition: Mapping[str, Any]) -> datetime | None:
    text = condition.get("lastTransitionTime")
    return _time(text) if text else None


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
