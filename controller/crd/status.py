"""What the ``status`` of a custom resource says: how far it is carried over, and how its workload or event stands.

Promises: conditions in Kubernetes' form, each with a reason and a sentence; numbers are rounded so far that a status
changes when a person would care; unknown is an absent field and never 0. Pure: ``now`` comes in. Called by the
synchroniser.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from controller.core.resources import EventState, TrafficEvent
from controller.core.types import Contract, ContractState, Decision, ForecastBand, ForecastState
from controller.ports import PoolView

Json: TypeAlias = dict[str, Any]
MESSAGE_CHARS_MAX: Final = 2000
PEAK_WITHIN: Final = timedelta(days=1)
_WARM: Final = frozenset({ContractState.WARM, ContractState.ACTIVE})
_USABLE: Final = frozenset({ForecastState.READY, ForecastState.DEGRADED})


@dataclass(frozen=True, slots=True)
class Synced:
    """Whether the API has what the spec says; ``resource`` is its name there, once there is one."""

    ok: bool
    reason: str
    message: str
    resource: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What this process knows of a workload; None: nothing, also where the workload is somebody else's."""

    decision: Decision | None = None
    view: PoolView | None = None
    band: ForecastBand | None = None
    problem: str | None = None  # what keeps its replicas from being seen or ordered
    contracts: Sequence[Contract] = field(default_factory=tuple[Contract, ...])


def condition(kind: str, *, ok: bool | None, reason: str, message: str) -> Json:
    """A condition without its times, which `settled` gives."""
    status = "Unknown" if ok is None else "True" if ok else "False"
    return {"type": kind, "status": status, "reason": reason, "message": message[:MESSAGE_CHARS_MAX]}


def workload_status(synced: Synced, facts: Facts, generation: int, now: datetime) -> Json:
    """The status of a Workload, without transition times."""
    decision, view = facts.decision, facts.view
    warm = None if view is None else sum(r.warm for r in view.replicas)
    mirrored = [
        condition(pascal(c.type), ok=c.ok, reason=pascal(c.reason), message=c.message)
        for c in (decision.conditions if decision is not None else ())
    ]
    return {
        "observedGeneration": generation,
        "workload": synced.resource,
        "desiredReplicas": decision.desired_replicas if decision else None,
        "warmReplicas": warm,
        "forecastPeakQps": _peak(facts.band, now),
        "lastDecision": decision.sentence if decision else None,
        "nextEvent": _next_event(facts.contracts, now),
        "conditions": [_synced(synced), _ready(synced, facts, warm), *mirrored],
    }


def _synced(synced: Synced) -> Json:
    return condition("Synced", ok=synced.ok, reason=synced.reason, message=synced.message)


def _ready(synced: Synced, facts: Facts, warm: int | None) -> Json:
    decision = facts.decision
    if not synced.ok:
        return condition(
            "Ready", ok=False, reason="NotSynced", message="the newest spec is not in force; see Synced"
        )
    if decision is None:
        return condition("Ready", ok=None, reason="NotDecided", message="nothing has been decided yet")
    for c in decision.conditions:
        if str(c.type) == "ABLE_TO_SCALE" and not c.ok:
            return condition("Ready", ok=False, reason=pascal(c.reason), message=c.message)
    if warm is None:
        why = facts.problem or "the replicas cannot be seen"
        return condition("Ready", ok=None, reason="ReplicasUnknown", message=why)
    count = f"{warm} of {decision.desired_replicas} replicas are warm"
    if warm < decision.desired_replicas:
        why = f"{count}: {facts.problem}" if facts.problem else count
        return condition("Ready", ok=False, reason="ReplicasNotWarm", message=why)
    return condition("Ready", ok=True, reason="AsDesired", message=count)


def _peak(band: ForecastBand | None, now: datetime) -> float | None:
    if band is None or band.state not in _USABLE or not band.levels:
        return None
    middle = min(range(len(band.levels)), key=lambda i: abs(band.levels[i] - 0.5))
    ahead = [
        row[middle]
        for i, row in enumerate(band.qps)
        if now - band.step < band.start_at + i * band.step <= now + PEAK_WITHIN
    ]
    return float(f"{max(ahead):.2g}") if ahead else None


def _next_event(contracts: Sequence[Contract], now: datetime) -> Json | None:
    contract = _nearest(contracts, now)
    if contract is None:
        return None
    return {
        "name": contract.event_id,
        "startTime": time_text(contract.start_at),
        "replicas": contract.replicas,
        "state": str(contract.state),
    }


def _nearest(contracts: Sequence[Contract], now: datetime) -> Contract | None:
    return min((c for c in contracts if c.end_at > now), key=lambda c: c.start_at, default=None)


def event_status(
    synced: Synced,
    event: TrafficEvent | None,
    contracts: Mapping[str, Sequence[Contract]],
    generation: int,
    now: datetime,
) -> Json:
    """The status of a TrafficEvent; ``contracts`` are those of its workloads, by workload."""
    mine: list[tuple[str, Contract]] = []
    for name in event.workloads if event is not None else ():
        own = [c for c in contracts.get(name, ()) if c.event_id.partition("@")[0] == (event and event.id)]
        if (nearest := _nearest(own, now)) is not None:
            mine.append((name, nearest))
    start_at = min((c.start_at for _, c in mine), default=None if event is None else event.start_at)
    return {
        "observedGeneration": generation,
        "event": synced.resource,
        "state": None if event is None else str(event.state),
        "startTime": None if start_at is None else time_text(start_at),
        "prewarms": [_prewarm(name, c) for name, c in mine] or None,
        "warnings": ([w.sentence[:MESSAGE_CHARS_MAX] for w in event.warnings] or None) if event else None,
        "conditions": [_synced(synced), _event_ready(synced, event, [c for _, c in mine])],
    }


def _prewarm(name: str, contract: Contract) -> Json:
    return {
        "workload": name,
        "state": str(contract.state),
        "replicas": contract.replicas,
        "warmReplicas": contract.verified_count,
        "unmetReplicas": contract.shortfall_replicas or None,
        "orderTime": time_text(contract.order_at),
        "deadlineTime": time_text(contract.deadline_at),
    }


def _event_ready(synced: Synced, event: TrafficEvent | None, contracts: Sequence[Contract]) -> Json:
    if event is None or not synced.ok:
        return condition(
            "Ready", ok=False, reason="NotSynced", message="the newest spec is not in force; see Synced"
        )
    if event.state in {EventState.COMPLETED, EventState.CANCELLED}:
        return condition("Ready", ok=False, reason=pascal(event.state), message=f"the event is {event.state}")
    if not contracts:
        return condition("Ready", ok=None, reason="NotPlanned", message="no replicas are planned for it yet")
    worst = next((c for c in contracts if c.state not in _WARM), contracts[0])
    message = f"{worst.verified_count} of {worst.replicas} replicas are warm; the deadline is {time_text(worst.deadline_at)}"
    if worst.shortfall_replicas:
        message += f"; {worst.shortfall_replicas} more are wanted than maxReplicas or quota allow"
    return condition("Ready", ok=worst.state in _WARM, reason=pascal(worst.state), message=message)


def settled(wanted: Json, present: Mapping[str, Any], generation: int, now: datetime) -> Json | None:
    """``wanted`` with transition times, or None where ``present`` says the same already."""
    before = {c.get("type"): c for c in present.get("conditions") or ()}
    conditions: list[Json] = []
    for item in wanted["conditions"]:
        known = before.get(item["type"], {})
        same = known.get("status") == item["status"] and known.get("lastTransitionTime")
        since = known["lastTransitionTime"] if same else time_text(now)
        conditions.append(item | {"observedGeneration": generation, "lastTransitionTime": since})
    full = wanted | {"conditions": conditions}
    said = {key: value for key, value in full.items() if value is not None}
    if _bare(said) == {key: present[key] for key in present if key in full}:
        return None
    return full


def _bare(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Without absent fields, as the API server keeps it."""
    if isinstance(value, dict):
        return {key: _bare(inner) for key, inner in value.items() if inner is not None}
    return [_bare(inner) for inner in value] if isinstance(value, list) else value


def time_text(at: datetime) -> str:
    """An instant as Kubernetes writes it, whole seconds."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pascal(name: str) -> str:
    """``COMPETING_OWNER`` as ``CompetingOwner``."""
    return "".join(part.capitalize() for part in str(name).split("_"))
