"""Follow each event's deadline contract: N replicas verified warm by start minus margin. Pure.

ordered -> scheduled -> loaded -> warmed -> verified, counted over the replicas as observed. A contract turns
AT_RISK as soon as the lead-time model says the last replica will be late, which is while there is still time
to act. It never forgets that it was met, and it decays only after demand stayed far under it, long enough.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from controller.core.leadtime import LeadTime
from controller.core.types import (
    STAGE_ORDER,
    Alarm,
    AlarmKind,
    Contract,
    ContractState,
    Event,
    Floor,
    Policy,
    Replica,
    Stage,
)

# Lead-time stages still ahead of a replica in each stage of the contract.
_STAGES_LEFT: dict[Stage, frozenset[str]] = {
    Stage.ORDERED: frozenset({"schedule", "node", "image", "load", "warmup"}),
    Stage.SCHEDULED: frozenset({"image", "load", "warmup"}),
    Stage.LOADED: frozenset({"warmup"}),
    Stage.WARMED: frozenset(),
}
WRONG_ENGINE = "WRONG_ENGINE"


def stage_counts(replicas: Sequence[Replica]) -> dict[Stage, int]:
    """How many replicas are at or past each stage of the contract; draining and failed ones count nowhere."""
    ranks = [STAGE_ORDER.index(r.stage) for r in replicas if r.stage in STAGE_ORDER]
    return {stage: sum(rank >= index for rank in ranks) for index, stage in enumerate(STAGE_ORDER)}


def expected_warm_at(replicas: Sequence[Replica], count: int, lead: LeadTime, now: datetime) -> datetime:
    """When ``count`` replicas should be warm by the lead-time model, orders still to be made included."""
    ahead = sorted(_remaining_s(r, lead, now) for r in replicas if r.in_flight)
    missing = count - sum(r.warm for r in replicas)
    if missing <= 0:
        return now
    if missing <= len(ahead):
        return now + timedelta(seconds=ahead[missing - 1])
    to_order = missing - len(ahead)
    return now + timedelta(seconds=max([lead.for_batch(to_order), *ahead]))


def _remaining_s(replica: Replica, lead: LeadTime, now: datetime) -> float:
    left = lead.remaining(_STAGES_LEFT[replica.stage])
    if replica.stage in {Stage.WARMED, Stage.ORDERED}:
        # An order ages as a whole; it is never due in the past, because it is not warm yet.
        left = max(1.0, left - (now - replica.stage_at).total_seconds()) if left else 0.0
    return left


def follow(
    floor: Floor,
    event: Event,
    previous: Contract | None,
    *,
    replicas: Sequence[Replica] | None,
    demand_need: int | None,
    lead: LeadTime,
    policy: Policy,
    now: datetime,
) -> Contract:
    """Advance one contract. ``replicas`` None keeps the last counts: unknown is not zero."""
    contract = Contract(
        event_id=event.id,
        revision=event.revision,
        state=ContractState.PLANNED,
        replicas=floor.replicas,
        order_at=floor.order_at,
        deadline_at=floor.needed_at,
        start_at=event.start_at,
        end_at=event.end_at,
        shortfall_replicas=floor.unmet_replicas,
    )
    same = previous is not None and previous.revision == event.revision
    if previous is not None and same:
        contract = replace(contract, met_at=previous.met_at, under_since_at=previous.under_since_at)
    contract = _keep_counts(contract, previous) if replicas is None else _count(contract, replicas, lead, now)
    contract = _watch_demand(contract, demand_need, policy, now)
    return replace(
        contract, state=_state(contract, now, policy, known=replicas is not None or previous is not None)
    )


def _keep_counts(contract: Contract, previous: Contract | None) -> Contract:
    if previous is None:
        return contract
    return replace(
        contract,
        ordered_count=previous.ordered_count,
        scheduled_count=previous.scheduled_count,
        loaded_count=previous.loaded_count,
        warmed_count=previous.warmed_count,
        verified_count=previous.verified_count,
        expected_warm_at=previous.expected_warm_at,
    )


def _count(contract: Contract, replicas: Sequence[Replica], lead: LeadTime, now: datetime) -> Contract:
    counts = stage_counts(replicas)
    verified = counts[Stage.VERIFIED]
    met_at = contract.met_at
    if verified >= contract.replicas:
        met_at = met_at or now
    elif now < contract.start_at:
        met_at = None  # lost again before the start: the contract is open again
    return replace(
        contract,
        ordered_count=counts[Stage.ORDERED],
        scheduled_count=counts[Stage.SCHEDULED],
        loaded_count=counts[Stage.LOADED],
        warmed_count=counts[Stage.WARMED],
        verified_count=verified,
        expected_warm_at=expected_warm_at(replicas, contract.replicas, lead, now),
        met_at=met_at,
    )


def _watch_demand(contract: Contract, demand_need: int | None, policy: Policy, now: datetime) -> Contract:
    # Only demand seen after the start counts, and only demand that was really seen.
    if now < contract.start_at or demand_need is None:
        return contract
    if demand_need >= policy.fizzle_share * contract.replicas:
        return replace(contract, under_since_at=None)
    return replace(contract, under_since_at=contract.under_since_at or now)


def _state(contract: Contract, now: datetime, policy: Policy, *, known: bool) -> ContractState:
    if now >= contract.end_at:
        return ContractState.COMPLETED
    if contract.under_since_at is not None and now - contract.under_since_at >= policy.fizzle_after:
        return ContractState.FIZZLED
    if contract.met_at is not None:
        return ContractState.WARM if now < contract.start_at else ContractState.ACTIVE
    if now < contract.order_at:
        return ContractState.PLANNED
    if now >= contract.deadline_at:
        return ContractState.SHORT
    late = contract.expected_warm_at is not None and contract.expected_warm_at > contract.deadline_at
    return ContractState.AT_RISK if late or not known else ContractState.PREWARMING


def fizzled_for_s(contract: Contract, policy: Policy, now: datetime) -> float | None:
    """Seconds since the floor began to decay; None while it stands."""
    if contract.state is not ContractState.FIZZLED or contract.under_since_at is None:
        return None
    return (now - contract.under_since_at - policy.fizzle_after).total_seconds()


def contract_alarms(workload: str, contract: Contract, now: datetime) -> list[Alarm]:
    """Alarms that stand because of this contract, now."""
    alarms: list[Alarm] = []
    if contract.state is ContractState.AT_RISK:
        late_s = ((contract.expected_warm_at or contract.deadline_at) - contract.deadline_at).total_seconds()
        left_s = (contract.start_at - now).total_seconds()
        sentence = (
            f"Event {contract.event_id} on {workload}: {contract.verified_count} of {contract.replicas} replicas warm, "
            f"the last expected {late_s:.0f} s after its deadline; {left_s:.0f} s remain until the event starts."
        )
        alarms.append(Alarm(AlarmKind.PREWARM_LATE, workload, contract.event_id, sentence))
    if contract.state is ContractState.SHORT:
        sentence = (
            f"Event {contract.event_id} on {workload}: only {contract.verified_count} of {contract.replicas} replicas "
            f"were warm at its deadline {contract.deadline_at:%H:%M:%S} UTC."
        )
        alarms.append(Alarm(AlarmKind.PREWARM_MISSED, workload, contract.event_id, sentence))
    if contract.shortfall_replicas > 0 and contract.state is not ContractState.COMPLETED:
        sentence = (
            f"Event {contract.event_id} on {workload} needs {contract.shortfall_replicas} replicas more than "
            "max_replicas and quota allow: raise the limit or lower the expectation."
        )
        alarms.append(Alarm(AlarmKind.QUOTA_SHORT, workload, contract.event_id, sentence))
    if contract.state is ContractState.FIZZLED:
        sentence = (
            f"Event {contract.event_id} on {workload}: demand has stayed far under its floor of {contract.replicas} "
            "replicas; the floor decays towards the present need."
        )
        alarms.append(Alarm(AlarmKind.EVENT_FIZZLED, workload, contract.event_id, sentence))
    return alarms


def broken_replicas(
    replicas: Sequence[Replica], policy: Policy, now: datetime
) -> list[tuple[Replica, AlarmKind, str]]:
    """Replicas that will not become warm by waiting: failed, or stuck in flight beyond the order timeout."""
    broken: list[tuple[Replica, AlarmKind, str]] = []
    for r in sorted(replicas, key=lambda r: r.id):
        if r.stage is Stage.FAILED:
            kind = AlarmKind.WRONG_ENGINE if r.failure == WRONG_ENGINE else AlarmKind.ORDER_STUCK
            broken.append(
                (r, kind, f"Replica {r.id} failed ({r.failure or 'no reason given'}); it is replaced.")
            )
        elif r.in_flight and now - r.ordered_at > policy.order_timeout:
            age_s = (now - r.ordered_at).total_seconds()
            sentence = f"Replica {r.id} has been {r.stage} for {age_s:.0f} s since its order; it is replaced."
            broken.append((r, AlarmKind.ORDER_STUCK, sentence))
    return broken
