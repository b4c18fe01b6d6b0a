"""Say why: the closed reason, one sentence for three in the morning, and HPA's three conditions. Pure."""

from controller.core.arbitration import Arbitration
from controller.core.types import Condition, ConditionType, Mode, Reason, Source, WorkloadInput

_BY_SOURCE: dict[Source, Reason] = {
    Source.PAUSE: Reason.PAUSED,
    Source.OVERRIDE: Reason.OVERRIDE,
    Source.EVENT: Reason.EVENT_FLOOR,
    Source.PLAN: Reason.PLAN_FLOOR,
    Source.PANIC: Reason.PANIC,
    Source.KEEP_WARM: Reason.KEEP_WARM,
    Source.GUARD: Reason.GUARDED,
    Source.MIN: Reason.MIN_REPLICAS,
    Source.MAX: Reason.MAX_REPLICAS,
    Source.QUOTA: Reason.QUOTA,
}
_HINDRANCE: dict[str, tuple[Reason, str]] = {
    "rate": (Reason.RATE_LIMITED, "the scaling rate allows no more yet"),
    "stabilization": (Reason.STABILIZING, "the stabilization window still holds a different need"),
    "tolerance": (Reason.WITHIN_TOLERANCE, "the difference is within tolerance"),
}


def classify(current: int, desired: int, merged: Arbitration, hindrance: str, *, has_demand: bool) -> Reason:
    """Name the reason of a decision."""
    source = merged.binding.source if merged.binding else None
    if merged.vetoed:
        return Reason.PAUSED
    if hindrance:
        return _HINDRANCE[hindrance][0]
    if not has_demand and source in {None, Source.GUARD}:
        return Reason.NO_DATA
    if source is not None and source is not Source.REACTIVE:
        return _BY_SOURCE[source]
    if desired == current:
        return Reason.STEADY
    if desired > current:
        return Reason.REACTIVE_UP
    return Reason.REACTIVE_DOWN if desired else Reason.SCALED_TO_ZERO


def sentence(current: int, desired: int, merged: Arbitration, hindrance: str) -> str:
    """One sentence: what is done, and because of what."""
    what = f"Hold {current}" if desired == current else f"Scale {current} to {desired}"
    why = merged.binding.sentence if merged.binding else "nothing asks for another count"
    if hindrance:
        why = f"{why}; {_HINDRANCE[hindrance][1]}"
    if merged.limited_from is not None:
        why = f"{why}; {merged.limited_from} were wanted"
    return f"{what}: {why}."


_READY = Condition(ConditionType.ABLE_TO_SCALE, ok=True, reason="READY", message="the target can be scaled")
_PUBLISHED = Condition(
    ConditionType.ABLE_TO_SCALE,
    ok=True,
    reason="RECOMMEND_ONLY",
    message="decisions are published, not applied",
)
_PAUSED = Condition(
    ConditionType.ABLE_TO_SCALE, ok=False, reason="PAUSED", message="scaling is paused by an operator"
)
_NO_ANSWER = Condition(
    ConditionType.ABLE_TO_SCALE, ok=False, reason="REPLICAS_UNKNOWN", message="the actuator did not answer"
)
_ACTIVE = Condition(
    ConditionType.SCALING_ACTIVE, ok=True, reason="READY", message="demand and forecast are fresh"
)
_REACTIVE = Condition(
    ConditionType.SCALING_ACTIVE,
    ok=True,
    reason="REACTIVE_ONLY",
    message="no usable forecast: scaling is reactive, registered events still apply",
)
_WITHIN = Condition(
    ConditionType.SCALING_LIMITED, ok=False, reason="WITHIN_LIMITS", message="no ceiling cut this decision"
)


def conditions(
    inp: WorkloadInput, merged: Arbitration, why_not: str, *, forecast_ok: bool
) -> tuple[Condition, ...]:
    """ABLE_TO_SCALE, SCALING_ACTIVE and SCALING_LIMITED, each with a reason a person can act on."""
    return (
        _able(inp, vetoed=merged.vetoed),
        _active(why_not, forecast_ok=forecast_ok),
        _limited(inp, merged),
    )


def _able(inp: WorkloadInput, *, vetoed: bool) -> Condition:
    mode = inp.workload.mode
    if inp.competing_owner is not None and mode is Mode.SCALE:
        message = f"{inp.competing_owner} also scales this target: remove one, or use mode FLOOR"
        return Condition(ConditionType.ABLE_TO_SCALE, ok=False, reason="COMPETING_OWNER", message=message)
    if vetoed:
        return _PAUSED
    if mode is Mode.RECOMMEND:
        return _PUBLISHED
    return _NO_ANSWER if inp.replicas is None else _READY


def _active(why_not: str, *, forecast_ok: bool) -> Condition:
    if why_not:
        message = f"{why_not}; floors still apply"
        return Condition(ConditionType.SCALING_ACTIVE, ok=False, reason="NO_DEMAND", message=message)
    return _ACTIVE if forecast_ok else _REACTIVE


def _limited(inp: WorkloadInput, merged: Arbitration) -> Condition:
    if inp.shortfall is not None:
        return Condition(ConditionType.SCALING_LIMITED, ok=True, reason="SHORTFALL", message=inp.shortfall)
    if merged.limited_from is None or merged.binding is None:
        return _WITHIN
    message = f"{merged.binding.sentence}; {merged.limited_from} were wanted"
    reason = f"LIMITED_BY_{merged.binding.source}"
    return Condition(ConditionType.SCALING_LIMITED, ok=True, reason=reason, message=message)
