"""Say why a decision came out as it did: inputs, forecast, events, every opinion with its fate, and the outcome.

Promises: told from what was stored with and before the decision, never from what is true now; weighing is the
core's own arbitration over the stored recommendations. What is past its retention is left out, not guessed.
Called by the API.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from controller.core.arbitration import arbitrate
from controller.core.resources import Outcome, Page, TrafficEvent
from controller.core.types import (
    Decision,
    Event,
    Floor,
    ForecastBand,
    Reason,
    Recommendation,
    RecommendationKind,
)
from controller.ports import NotFoundError, Store, UnitOfWork
from controller.usecases.decisions import choose_decision
from controller.usecases.occurrences import event_id_of, occurrences

# Occurrences this far from a decision may have counted in it: the longest event, and the longest lead.
REACH = timedelta(days=45)
OCCURRENCES_MAX = 1000
_HELD_BACK = frozenset({Reason.RATE_LIMITED, Reason.STABILIZING, Reason.WITHIN_TOLERANCE})


class Rule(StrEnum):
    """How the opinions were merged into one count."""

    VETO = "VETO"
    CEILING = "CEILING"
    FLOOR = "FLOOR"
    SET = "SET"
    KEEP = "KEEP"


class Fate(StrEnum):
    """What became of one recommendation."""

    BOUND = "BOUND"
    SATISFIED = "SATISFIED"
    OVERRULED = "OVERRULED"
    ABSTAINED = "ABSTAINED"


_RULES = {
    RecommendationKind.VETO: Rule.VETO,
    RecommendationKind.AT_MOST: Rule.CEILING,
    RecommendationKind.AT_LEAST: Rule.FLOOR,
    RecommendationKind.SET: Rule.SET,
}


@dataclass(frozen=True, slots=True)
class SeenForecast:
    """The forecast a decision looked at. ``median_qps`` None: the decision's time is not in it."""

    band: ForecastBand
    age_s: float
    median_qps: float | None


@dataclass(frozen=True, slots=True)
class SeenEvent:
    """An event that counted, as it was registered then. None: not registered any more."""

    occurrence_id: str
    event: TrafficEvent | None
    occurrence: Event | None


@dataclass(frozen=True, slots=True)
class DecisionExplanation:
    """Why a decision came out as it did."""

    decision: Decision
    outcome: Outcome | None
    sentence: str
    rule: Rule
    weighed: tuple[tuple[Recommendation, Fate], ...]
    clamp: str
    forecast: SeenForecast | None
    events: tuple[SeenEvent, ...]
    floors: tuple[Floor, ...]
    until_at: datetime | None


async def explain_decision(
    store: Store,
    decision_id: str | None,
    now: datetime,
    *,
    workload: str | None = None,
    as_of: datetime | None = None,
) -> DecisionExplanation:
    """Explain a decision, chosen as ``choose_decision`` does; raise InvalidError or MissingError."""
    async with store.unit_of_work() as uow:
        decision, outcome = await choose_decision(uow, decision_id, workload, as_of, now)
        forecast = await _forecast(uow, decision)
        events = tuple([await _event(uow, occurrence, decision.at) for occurrence in decision.event_ids])
        floors = await _floors(uow, decision)
        until_at = await _until(uow, decision)
    rule, weighed = _weigh(decision)
    clamp = decision.reason.value if decision.reason in _HELD_BACK else ""
    if not clamp and decision.limited_from is not None:
        clamp = "CEILING"
    return DecisionExplanation(
        decision=decision,
        outcome=outcome,
        sentence=_sentence(decision, outcome, forecast, events),
        rule=rule,
        weighed=weighed,
        clamp=clamp,
        forecast=forecast,
        events=events,
        floors=floors,
        until_at=until_at,
    )


def _weigh(decision: Decision) -> tuple[Rule, tuple[tuple[Recommendation, Fate], ...]]:
    given = decision.recommendations
    merged = arbitrate(given, decision.current_replicas)
    bound = merged.binding
    if bound is None or (decision.binding is not None and bound.source is not decision.binding):
        # Behavior or a ceiling had the last word after the merge.
        last = [r for r in given if r.source is decision.binding and r.kind is not RecommendationKind.ABSTAIN]
        bound = last[0] if last else None
    rule = Rule.KEEP if bound is None else _RULES[bound.kind]
    return rule, tuple((one, _fate(one, bound, decision)) for one in given)


def _fate(one: Recommendation, bound: Recommendation | None, decision: Decision) -> Fate:
    if one.kind is RecommendationKind.ABSTAIN:
        return Fate.ABSTAINED
    if one == bound:
        return Fate.BOUND
    wanted = decision.current_replicas if one.replicas is None else one.replicas
    satisfied = {
        RecommendationKind.AT_LEAST: decision.desired_replicas >= wanted,
        RecommendationKind.AT_MOST: decision.desired_replicas <= wanted,
    }.get(one.kind, decision.desired_replicas == wanted)
    return Fate.SATISFIED if satisfied else Fate.OVERRULED


async def _forecast(uow: UnitOfWork, decision: Decision) -> SeenForecast | None:
    if decision.forecast_id is None:
        return None
    stored = await uow.forecasts.as_of(decision.workload, decision.at)
    if stored is None or stored[0].id != decision.forecast_id:
        return None
    band = stored[1]
    index = (decision.at - band.start_at) // band.step
    median = None
    if 0 <= index < len(band.qps) and 0.5 in band.levels:
        median = band.qps[index][band.levels.index(0.5)]
    return SeenForecast(band, (decision.at - band.origin_at).total_seconds(), median)


async def _event(uow: UnitOfWork, occurrence_id: str, at: datetime) -> SeenEvent:
    revisions = await uow.events.revisions(event_id_of(occurrence_id))
    known = [r for r in revisions if (written := r.updated_at or r.created_at) is None or written <= at]
    if not revisions:
        return SeenEvent(occurrence_id, None, None)
    event = known[-1] if known else revisions[0]
    for occurrence in occurrences(event, at - REACH, at + REACH, OCCURRENCES_MAX):
        if occurrence.id == occurrence_id:
            return SeenEvent(occurrence_id, event, occurrence)
    return SeenEvent(occurrence_id, event, None)


async def _floors(uow: UnitOfWork, decision: Decision) -> tuple[Floor, ...]:
    if decision.plan_revision is None:
        return ()
    try:
        plan = await uow.decisions.plan(decision.workload, decision.plan_revision)
    except NotFoundError:
        return ()
    return tuple(floor for floor in plan.floors if floor.order_at <= decision.at < floor.until_at)


async def _until(uow: UnitOfWork, decision: Decision) -> datetime | None:
    rows, _ = await uow.decisions.list(
        workload=decision.workload, start_at=decision.at, oldest_first=True, page=Page(2)
    )
    return next((row[0].at for row in rows if row[0].id != decision.id and row[0].at > decision.at), None)


def _sentence(
    decision: Decision, outcome: Outcome | None, forecast: SeenForecast | None, events: tuple[SeenEvent, ...]
) -> str:
    demand = "unknown" if decision.demand_qps is None else f"{decision.demand_qps:.0f} QPS"
    ages = {given.name: given.age_s for given in decision.inputs}
    age = ages.get("demand")
    known = [f"demand {demand}" + ("" if age is None else f" ({age:.0f} s old)")]
    if forecast is not None:
        known.append(f"forecast {forecast.band.state} of {forecast.age_s:.0f} s before")
    names = [e.event.display_name or e.occurrence_id if e.event else e.occurrence_id for e in events]
    if names:
        known.append(f"event{'s' if len(names) > 1 else ''} {', '.join(names)}")
    came = "what came of it is not known yet"
    if not decision.changes:
        came = "nothing had to be ordered"
    elif outcome is not None:
        came = "the order was taken" if outcome.applied else f"the order was not taken ({outcome.detail})"
    why = decision.sentence.rstrip(".")
    return f"{decision.workload} at {decision.at:%Y-%m-%d %H:%M:%S} UTC: {why}; {'; '.join(known)}; {came}."
