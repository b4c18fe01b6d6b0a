"""Follow each event's deadline contract: N replicas verified warm by start minus margin. Pure.

ordered -> scheduled -> loaded -> warmed -> verified, counted over the replicas as observed. A contract turns
AT_RISK as soon as the lead-time model says the last replica will be late, which is while there is still time
to act. It never forgets that it was met, and it decays only after demand stayed far under it, long enough.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from controller.core.engines import is_engine_fault
from controller.core.leadtime import STAGES, LeadTime
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

# Lead-time stages still ahead of a replica in each stage of the contract, and those after its present one.
_STAGES_LEFT: dict[Stage, tuple[frozenset[str], frozenset[str]]] = {
    Stage.ORDERED: (frozenset(STAGES), frozenset({"image", "load", "warmup"})),
    Stage.SCHEDULED: (frozenset({"image", "load", "warmup"}), frozenset({"warmup"})),
    Stage.LOADED: (frozenset({"warmup"}), frozenset()),
    Stage.WARMED: (frozenset(), frozenset()),
}
# What is not warm yet is never due now: it still has to be seen.
_DUE_MIN_S = 1.0
# Pause after a round of replacing broken replicas; doubles with each round after which none became warm.
REPLACE_PAUSE = timedelta(seconds=30)
REPLACE_PAUSE_MAX = timedelta(minutes=10)


def stage_counts(replicas: Sequence[Replica]) -> dict[Stage, int]:
    """How many replicas are at or past each stage of the contract; draining and failed ones count nowhere."""
    at = Counter(r.stage for r in replicas)
    past = 0
    counts: dict[Stage, int] = {}
    for stage in reversed(STAGE_ORDER):
        past += at[stage]
        counts[stage] = past
    return counts


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
    if not lead.stage_p95_s:  # stages were never told apart: the order ages as a whole
        return max(_DUE_MIN_S, lead.total_p95_s - max(0.0, (now - replica.ordered_at).total_seconds()))
    ahead, after = _STAGES_LEFT[replica.stage]
    # Time already spent shortens the present stage only, never those that have not begun.
    spent_s = max(0.0, (now - replica.stage_at).total_seconds())
    return max(_DUE_MIN_S, lead.remaining(after), lead.remaining(ahead) - spent_s)


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
    """Advance one contract over the floor's replicas. ``replicas`` None keeps the last counts: unknown is not zero.

    Once its order time has come, a contract of the same event revision neither shrinks nor is postponed: a
    shorter lead time learnt from the very replicas being started, or a forecast that changes its mind in a
    dip, would otherwise take away a prewarmed set. Only fizzling lets it go.
    """
    same = previous if previous is not None and previous.revision == event.revision else None
    order_at, wanted = floor.order_at, floor.replicas
    if same is not None and same.order_at <= now:
        order_at = min(order_at, same.order_at)
        if not floor.unmet_replicas:  # a floor that a limit cuts is at its limit
            wanted = max(wanted, same.replicas)
    seen = _seen(wanted, replicas, previous, lead, now)
    met_at = same.met_at if same else None
    if replicas is not None and now >= order_at:
        if seen.verified_count >= wanted:
            met_at = met_at or now
        elif now < event.start_at:
            met_at = None  # lost again before the start: the contract is open again
    under_since_at = _under_since(same, wanted, demand_need, policy, started=now >= event.start_at, now=now)
    contract = Contract(
        event_id=event.id,
        revision=event.revision,
        state=ContractState.PLANNED,
        replicas=wanted,
        order_at=order_at,
        deadline_at=floor.needed_at,
        start_at=event.start_at,
        end_at=event.end_at,
        ordered_count=seen.ordered_count,
        scheduled_count=seen.scheduled_count,
        loaded_count=seen.loaded_count,
        warmed_count=seen.warmed_count,
        verified_count=seen.verified_count,
        expected_warm_at=seen.expected_warm_at,
        shortfall_replicas=floor.unmet_replicas,
        met_at=met_at,
        under_since_at=under_since_at,
    )
    known = replicas is not None or previous is not None
    state = _state(contract, now, policy, sized=floor.demand_qps is not None, known=known)
    return contract if state is contract.state else replace(contract, state=state)


@dataclass(frozen=True, slots=True)
class _Seen:
    ordered_count: int = 0
    scheduled_count: int = 0
    loaded_count: int = 0
    warmed_count: int = 0
    verified_count: int = 0
    expected_warm_at: datetime | None = None


def _seen(
    wanted: int,
    replicas: Sequence[Replica] | None,
    previous: Contract | None,
    lead: LeadTime,
    now: datetime,
) -> _Seen | Contract:
    if replicas is None:
        return previous or _Seen()
    counts = stage_counts(replicas)
    return _Seen(
        ordered_count=counts[Stage.ORDERED],
        scheduled_count=counts[Stage.SCHEDULED],
        loaded_count=counts[Stage.LOADED],
        warmed_count=counts[Stage.WARMED],
        verified_count=counts[Stage.VERIFIED],
        expected_warm_at=expected_warm_at(replicas, wanted, lead, now),
    )


def _under_since(
    same: Contract | None,
    wanted: int,
    demand_need: int | None,
    policy: Policy,
    *,
    started: bool,
    now: datetime,
) -> datetime | None:
    """Since when demand has stayed far under the floor: only after the start, only when it was really seen."""
    before = same.under_since_at if same else None
    if not started or demand_need is None:
        return before
    return None if demand_need >= policy.fizzle_share * wanted else before or now


def _state(contract: Contract, now: datetime, policy: Policy, *, sized: bool, known: bool) -> ContractState:
    if now >= contract.end_at:
        return ContractState.COMPLETED
    if contract.under_since_at is not None and now - contract.under_since_at >= policy.fizzle_after:
        return ContractState.FIZZLED
    if now < contract.order_at:
        return ContractState.PLANNED
    # Unsized, nobody knows how many are needed: that many warm means nothing.
    blind = not sized and now < contract.start_at
    if contract.met_at is not None and not blind:
        return ContractState.WARM if now < contract.start_at else ContractState.ACTIVE
    if now >= contract.deadline_at and not blind:
        return ContractState.SHORT
    return ContractState.AT_RISK if blind or not known or _late(contract) else ContractState.PREWARMING


def _late(contract: Contract) -> bool:
    return contract.expected_warm_at is not None and contract.expected_warm_at > contract.deadline_at


def fizzled_for_s(contract: Contract, policy: Policy, now: datetime) -> float | None:
    """Seconds since the floor began to decay; None while it stands."""
    if contract.state is not ContractState.FIZZLED or contract.under_since_at is None:
        return None
    return (now - contract.under_since_at - policy.fizzle_after).total_seconds()


def contract_alarms(workload: str, contract: Contract, now: datetime) -> list[Alarm]:
    """Alarms that stand because of this contract, now."""
    alarms: list[Alarm] = []
    if contract.state is ContractState.AT_RISK:
        left_s = (contract.start_at - now).total_seconds()
        if contract.expected_warm_at is not None and _late(contract):
            late_s = (contract.expected_warm_at - contract.deadline_at).total_seconds()
            what = (
                f"{contract.verified_count} of {contract.replicas} replicas warm, "
                f"the last expected {late_s:.0f} s after its deadline"
            )
        else:
            what = "cannot be promised, its expected demand or its replicas are unknown"
        sentence = (
            f"Event {contract.event_id} on {workload}: {what}; {left_s:.0f} s remain until the event starts."
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
    for r in replicas:
        if r.stage is Stage.FAILED:
            kind = AlarmKind.WRONG_ENGINE if is_engine_fault(r.failure) else AlarmKind.ORDER_STUCK
            broken.append((r, kind, f"Replica {r.id} failed: {r.failure or 'no reason given'}."))
        elif r.in_flight and now - r.ordered_at > policy.order_timeout:
            age_s = (now - r.ordered_at).total_seconds()
            sentence = f"Replica {r.id} has been {r.stage} for {age_s:.0f} s since its order."
            broken.append((r, AlarmKind.ORDER_STUCK, sentence))
    return sorted(broken, key=lambda item: item[0].id)


def replacement_rounds(
    rounds: int, replaced_at: datetime | None, replicas: Sequence[Replica], now: datetime
) -> tuple[int, bool]:
    """Rounds of replacement so far, and whether another is due.

    A replica that became warm after the last round proves that replacing helps, and the count starts anew;
    until then the pause doubles, so that a broken image or a wrong engine does not churn the cluster.
    """
    if replaced_at is None:
        return 0, True
    if any(r.warm and r.stage_at > replaced_at for r in replicas):
        rounds = 0
    # The exponent is bounded: the pause has long reached its maximum there.
    pause = min(REPLACE_PAUSE_MAX, REPLACE_PAUSE * 2 ** min(max(rounds - 1, 0), 10))
    return rounds, now - replaced_at >= pause
