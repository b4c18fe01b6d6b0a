"""How fast a count may move, as HPA's behavior says. Pure.

Stabilization first: going down, the highest need of the window counts; going up, the lowest. Then rate
policies, each against the true count at its period's start (what was added and removed inside the period is
undone). Floors are outside: the caller never lets the result fall under them, so a prewarm may exceed the
scale-up rate and tolerance never swallows a floor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from controller.core.types import PastNeed, PolicyType, ScaleChange, ScalingRules, SelectPolicy


@dataclass(frozen=True, slots=True)
class Paced:
    """The count behavior allows now, and what held it back."""

    replicas: int
    stabilized: bool = False
    rate_limited: bool = False


def pace(
    current: int,
    target: int,
    *,
    up: ScalingRules,
    down: ScalingRules,
    needs: Sequence[PastNeed],
    changes: Sequence[ScaleChange],
    now: datetime,
) -> Paced:
    """Bound the move from ``current`` to ``target``; ``needs`` are earlier targets, ``changes`` earlier moves."""
    if target == current:
        return Paced(current)  # what windows and rates bound is a move
    steady = _stabilize(current, target, up=up, down=down, needs=needs, now=now)
    if steady > current:
        allowed = min(steady, _limit_up(current, up, changes, now))
        allowed = max(allowed, current)
    elif steady < current:
        allowed = max(steady, _limit_down(current, down, changes, now))
        allowed = min(allowed, current)
    else:
        allowed = steady
    return Paced(allowed, stabilized=steady != target, rate_limited=allowed != steady)


def _stabilize(
    current: int,
    target: int,
    *,
    up: ScalingRules,
    down: ScalingRules,
    needs: Sequence[PastNeed],
    now: datetime,
) -> int:
    lowest = min([target, *(n.replicas for n in needs if now - n.at < up.stabilization_window)])
    highest = max([target, *(n.replicas for n in needs if now - n.at < down.stabilization_window)])
    return min(max(current, lowest), highest)


def _limit_up(current: int, rules: ScalingRules, changes: Sequence[ScaleChange], now: datetime) -> int:
    if rules.select_policy is SelectPolicy.DISABLED:
        return current
    limits: list[int] = []
    for policy in rules.policies:
        start = _count_at_period_start(current, policy.period.total_seconds(), changes, now)
        if policy.type is PolicyType.PODS:
            limits.append(start + policy.value)
        else:
            # Ceil, not round: 1.1 x 2 replicas must allow 3, or growth stalls at 2 for ever; in integers,
            # because 100 x 1.1 is a little over 110 in floats and would allow 111. From zero, a percentage
            # allows nothing, so one replica is always allowed.
            limits.append(max(1, -(-start * (100 + policy.value) // 100)))
    if not limits:
        return 2**31
    return max(limits) if rules.select_policy is SelectPolicy.MAX else min(limits)


def _limit_down(current: int, rules: ScalingRules, changes: Sequence[ScaleChange], now: datetime) -> int:
    if rules.select_policy is SelectPolicy.DISABLED:
        return current
    limits: list[int] = []
    for policy in rules.policies:
        start = _count_at_period_start(current, policy.period.total_seconds(), changes, now)
        if policy.type is PolicyType.PODS:
            limits.append(start - policy.value)
        else:
            limits.append(start * (100 - policy.value) // 100)
    if not limits:
        return 0
    # MAX selects the policy that allows the largest change, which is the lowest count.
    return max(0, min(limits) if rules.select_policy is SelectPolicy.MAX else max(limits))


def _count_at_period_start(
    current: int, period_s: float, changes: Sequence[ScaleChange], now: datetime
) -> int:
    return current - sum(c.delta for c in changes if (now - c.at).total_seconds() < period_s)
