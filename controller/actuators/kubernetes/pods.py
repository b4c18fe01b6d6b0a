"""What a pod's object says about a replica, as pure functions.

Promises: only what the object shows; whether the pod is *warm* is for the verification to say. A pod that cannot
be scheduled, pulled or kept running gives a sentence an operator can act on.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from controller.core.types import CapacityProfile

GPU_PRODUCT_LABEL: Final = "nvidia.com/gpu.product"
GPU_COMPUTE_LABEL: Final = "nvidia.com/gpu.compute"
_CAPABILITY: Final = re.compile(r"sm_?(\d{1,2})(\d)|(\d{1,2})\.(\d)")
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
    """What is kept of a pod: a fraction of the object, read once per change and not at each look."""
    metadata = pod["metadata"]
    return {
        "metadata": {n: metadata[n] for n in ("name", "namespace", "resourceVersion") if n in metadata},
        "facts": facts(pod),
    }


class PodIndex:
    """Pods by namespace and label, so that a workload's own are found without looking at all of them."""

    def __init__(self, kept_pods: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
        self._by_label: dict[tuple[str, str, str], list[PodFacts]] = {}
        for (namespace, _), pod in sorted(kept_pods.items()):
            found: PodFacts = pod["facts"]
            for key, value in found.labels.items():
                self._by_label.setdefault((namespace, key, value), []).append(found)

    def of(self, namespace: str, selector: Mapping[str, str]) -> Sequence[PodFacts]:
        """Pods with all of these labels, by name; an empty selector owns nothing rather than everything."""
        lists = [self._by_label.get((namespace, key, value), []) for key, value in selector.items()]
        return [p for p in min(lists, key=len, default=[]) if selector.items() <= p.labels.items()]


def facts(pod: Mapping[str, Any]) -> PodFacts:
    """Read one pod object."""
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


def compute_capability(node: Mapping[str, Any] | None) -> str | None:
    """What engines a node's GPUs run, by NVIDIA's labels, for example ``8.6``."""
    labels = (node or {}).get("metadata", {}).get("labels") or {}
    major, minor = (str(labels.get(f"{GPU_COMPUTE_LABEL}.{part}", "")) for part in ("major", "minor"))
    return f"{int(major)}.{int(minor)}" if major.isdecimal() and minor.isdecimal() else None


def profile_on(
    profiles: Sequence[CapacityProfile], product: str | None, capability: str | None = None
) -> CapacityProfile | None:
    """The profile of a node's GPU type, or of its compute capability; None when there is none, or both are unknown.

    NVIDIA's label spells ``NVIDIA-A10`` what people call A10: words are compared without the maker's name. A profile
    whose ``gpu_type`` is ``sm_86`` or ``8.6`` stands for every GPU type of that capability that has none of its own.
    """
    if product is not None:
        found = next((p for p in profiles if _words(p.gpu_type) == _words(product)), None)
        if found is not None:
            return found
    if capability is None:
        return None
    return next((p for p in profiles if _capability(p.gpu_type) == capability), None)


def misfit(profiles: Sequence[CapacityProfile], node: Mapping[str, Any] | None) -> str | None:
    """Why what was built for these profiles may not serve on this node, in words; None where it may, or nobody knows."""
    product, capability = gpu_product(node), compute_capability(node)
    if node is None or product is None or profile_on(profiles, product, capability) is not None:
        return None
    if not any(p.gpu_type for p in profiles):
        return None  # nobody said what GPU they are for
    known = ", ".join(sorted({p.gpu_type for p in profiles if p.gpu_type}))
    what = product if capability is None else f"{product} (compute capability {capability})"
    return (
        f"node {node['metadata']['name']} has {what}, and the profiles are for {known}: add one for it, or keep pods "
        "away from it by a node selector"
    )


def _capability(gpu_type: str) -> str | None:
    found = _CAPABILITY.fullmatch(gpu_type.strip().lower())
    if found is None:
        return None
    major, minor = (found[1], found[2]) if found[1] else (found[3], found[4])
    return f"{int(major)}.{int(minor)}"


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
