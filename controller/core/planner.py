"""Turn a forecast and events into dated replica floors. Pure.

A plan holds the forecast's need per step and, from it and from events, floors that say from when capacity
must be *ordered* (lead time already walked back), from when it is needed and until when, and why. The same
inputs give the same digest, so an unchanged plan is not a new revision.

Events: a floor is one flat count from the deadline to the event's end, so that a dip inside the event never
cuts capacity while clients are about to retry. Events longer than the policy's ``hold_max`` hold it that
long; after that the forecast, which knows the event, leads.
"""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import groupby, islice, pairwise
from math import isfinite

from controller.core.capacity import curve, demand_at_quantile, required_replicas, service_quantile
from controller.core.leadtime import LeadTime
from controller.core.types import (
    CapacityPlan,
    Event,
    Floor,
    ForecastBand,
    ForecastState,
    NearDemand,
    Trust,
    Workload,
)

# Present demand that an event was sized on must have moved by this share before the event is sized again.
BASE_MOVE_MIN = 0.2
ON_PRESENT_DEMAND = "the planner's multiplier on present demand"
# A multiple of nothing is no size: it would prepare nothing, and look like a plan.
ON_NO_DEMAND = "the planner's multiplier, but no demand to multiply"
# Floors of forecast origin beyond these many are not listed; the need per step stays complete.
FORECAST_FLOORS_MAX = 500


def forecast_usable(band: ForecastBand | None, trust: Trust, now: datetime, age_max: timedelta) -> bool:
    """Whether ``band`` may set floors now: ready, fresh enough, not distrusted by its own record."""
    return (
        band is not None
        and bool(band.qps)
        and band.state in {ForecastState.READY, ForecastState.DEGRADED}
        and trust is not Trust.DISTRUSTED
        and now - band.origin_at <= age_max
        and band.end_at > now
    )


def band_sound(band: ForecastBand) -> bool:
    """Whether a band's figures can be computed with: ascending levels, full rows, nothing negative or non-finite."""
    levels = band.levels
    return (
        band.step > timedelta(0)
        and bool(levels)
        and levels[0] > 0.0
        and levels[-1] < 1.0
        and all(a < b for a, b in pairwise(levels))
        and all(len(row) == len(levels) and _amounts(row) for row in band.qps)
    )


# Near quantiles are made every minute; a few missed ones are bridged, then the plan leads again.
NEAR_AGE_MAX = timedelta(minutes=5)
# Made for a shorter lead time than this share of the present one, they look too short ahead.
NEAR_LEAD_SHARE = 0.75


def near_demand(workload: Workload, near: NearDemand | None, lead: LeadTime, now: datetime) -> float | None:
    """Demand to prepare for within the lead time, QPS, at the cost quantile; None when nothing sound and fresh says."""
    if (
        near is None
        or abs(now - near.at) > NEAR_AGE_MAX
        or near.lead.total_seconds() < NEAR_LEAD_SHARE * lead.total_p95_s
        or not _row_sound(near.levels, near.qps)
    ):
        return None
    return demand_at_quantile(near.levels, near.qps, service_quantile(workload.policy))


def _row_sound(levels: Sequence[float], row: Sequence[float]) -> bool:
    return 0 < len(levels) == len(row) and _ascending(tuple(levels)) and _amounts(row)


def _amounts(row: Sequence[float]) -> bool:
    """Whether all of a row, which has any, is finite and not negative."""
    # A sum is finite only if all of it is, and is made in one go; it may overflow where none of them does.
    return (isfinite(sum(row)) or all(map(isfinite, row))) and min(row) >= 0.0


@lru_cache(maxsize=64)
def _ascending(levels: tuple[float, ...]) -> bool:
    return levels[0] > 0.0 and levels[-1] < 1.0 and all(a < b for a, b in pairwise(levels))


def plan_digest(
    workload: Workload,
    band: ForecastBand | None,
    events: Sequence[Event],
    lead: LeadTime,
    *,
    usable: bool,
    ceiling: int | None = None,
) -> str:
    """Identity of everything a plan is made from, apart from the clock. ``usable``: whether ``band`` may be used."""
    return _digest(
        workload.name,
        workload.generation,
        workload.profile,  # what was measured since counts without a new generation
        band.id if band else None,
        tuple(sorted((e.id, e.revision) for e in events)),
        round(lead.total_p95_s),
        round(lead.per_extra_replica_s, 1),
        usable,
        ceiling,
    )


def _digest(workload: str, *key: object) -> str:
    newest = _newest(workload)
    made_from, digest = newest[0]
    if made_from != key:
        digest = hashlib.sha256(repr((workload, *key)).encode()).hexdigest()[:16]
        newest[0] = (key, digest)
    return digest


# As many as a fleet has workloads: one that is asked in turn finds nothing in a smaller cache. Only the newest of each: with
# every forecast there is another, and those before it are never asked for again.
@lru_cache(maxsize=32_768)
def _newest(workload: str) -> list[tuple[tuple[object, ...], str]]:  # noqa: ARG001 - the cache's own key
    """Return where the newest digest of a workload is kept, with what it was made from."""
    return [((), "")]


def demand_per_step(
    workload: Workload, band: ForecastBand, events: Sequence[Event] = ()
) -> tuple[float, ...]:
    """Demand to prepare for in each forecast step, QPS: at the workload's cost quantile.

    Inside an event whose size was stated, the planner's confidence bounds how far above the best guess.
    """
    quantile = service_quantile(workload.policy)
    demand = [demand_at_quantile(band.levels, row, quantile) for row in band.qps]
    for event in events:
        bound = _stated_bound(event, band)
        if bound is None:
            continue
        for index in _steps_of(band, event):
            demand[index] = min(
                demand[index], max(bound, demand_at_quantile(band.levels, band.qps[index], 0.5))
            )
    return tuple(demand)


def _steps_of(band: ForecastBand, event: Event) -> range:
    first = max(0, (event.start_at - band.start_at) // band.step)
    return range(first, max(first, min(len(band.qps), -((band.start_at - event.end_at) // band.step))))


def is_sized(event: Event) -> bool:
    """Whether somebody said how large it will be."""
    return event.expected_peak_qps is not None or event.expected_multiplier is not None


def explained(events: Sequence[Event], start_at: datetime, step: timedelta, count: int) -> tuple[slice, ...]:
    """Of ``count`` buckets from ``start_at`` on, those that a sized event explains, a slice per event.

    They are not the ordinary rise that near demand is made of: after a midnight sale every later hour would expect
    another. An event of unknown size has no floor of its own, so what is known of it is near demand's to learn.
    """
    spans = [
        (max(0, (e.start_at - start_at) // step), min(count, -((start_at - e.end_at) // step)))
        for e in events
        if is_sized(e)
    ]
    return tuple(slice(low, high) for low, high in spans if low < high)


def _stated_bound(event: Event, band: ForecastBand) -> float | None:
    """Most that is prepared for an event of stated size, QPS; None where no size was stated or learnt.

    The best guess is the larger of what was stated and the forecast's median, which has learnt how planners
    of such events err. ``2 - confidence`` times that is the most: at 0.8, a fifth above it. The forecast's own
    upper quantile of an unknown event is honest about people (almost twice the stated size) and would order
    almost twice the replicas for every promotion.
    """
    if event.id not in band.event_ids or not is_sized(event):
        return None
    median = _band_peak(band, event, 0.5)
    return None if median is None else (2.0 - event.confidence) * max(median, event.expected_peak_qps or 0.0)


def need_per_step(workload: Workload, demand_qps: Sequence[float]) -> tuple[int, ...]:
    """Replicas each step's demand needs; bounds are not applied here."""
    pool = curve(workload.profile, workload.slo, workload.policy.arrival_scv)
    return tuple(pool.required(qps) for qps in demand_qps)


def effective_max(
    workload: Workload,
    events: Sequence[Event],
    now: datetime,
    lead: LeadTime,
    begun: Collection[str] = (),
) -> int:
    """``max_replicas``, raised while an event that raises it is prewarmed or runs.

    Derived from the events at every tick and stored nowhere, so the old limit is back by itself when the
    event ends or is cancelled, across restarts. After the end it stays one scale-down stabilization window
    longer, so that the count comes down by need and not by a cliff. ``begun``: ids of events whose prewarm has
    begun, for which the limit stays up also when a shorter lead time is learnt meanwhile.
    """
    after = workload.policy.behavior.scale_down.stabilization_window
    raised = [
        event.max_replicas_override
        for event in events
        if event.max_replicas_override is not None
        and now < event.end_at + after
        and (event.id in begun or order_time(event, workload, lead, event.max_replicas_override) <= now)
    ]
    return max([workload.max_replicas, *raised])


def deadline(event: Event, workload: Workload) -> datetime:
    """When the event's replicas must be verified warm."""
    return event.start_at - (workload.policy.prewarm_margin if event.margin is None else event.margin)


def order_time(event: Event, workload: Workload, lead: LeadTime, replica_count: int) -> datetime:
    """When to order ``replica_count`` replicas so that the last is warm by the deadline."""
    if event.lead_override is not None:
        return deadline(event, workload) - event.lead_override
    warming = timedelta(seconds=lead.for_batch(replica_count))
    return deadline(event, workload) - warming - workload.policy.tick_slack


def event_demand(
    event: Event, workload: Workload, band: ForecastBand | None, observed_qps: float | None
) -> tuple[float | None, str]:
    """Demand an event's floor must carry, QPS, and where the figure comes from; None when nothing is known.

    A usable forecast that contains the event leads: it has weighed the planner's word against past events.
    But a stated peak is a promise to a person: the policy's share of it is prepared for whatever was learnt,
    and the planner's confidence bounds how far above the best guess it may go.
    Without such a forecast: the stated peak, or the multiplier on what the forecast or the present shows.
    """
    peak = _band_peak(band, event, service_quantile(workload.policy)) if band else None
    if band and peak is not None and event.id in band.event_ids:
        bound = _stated_bound(event, band)
        peak = peak if bound is None else min(peak, bound)
        stated = (event.expected_peak_qps or 0.0) * workload.policy.planner_floor_share
        if max(peak, stated) <= 0.0:
            return None, ON_NO_DEMAND
        return (
            (peak, "forecast with this event") if peak > stated else (stated, "the planner's expected peak")
        )
    if event.expected_peak_qps is not None:
        return event.expected_peak_qps, "the planner's expected peak"
    base = peak if peak is not None else observed_qps
    if event.expected_multiplier is not None and base is not None:
        if base <= 0.0:
            return None, ON_NO_DEMAND
        source = "the planner's multiplier on forecast" if peak is not None else ON_PRESENT_DEMAND
        return base * event.expected_multiplier, source
    return None, "no forecast, no observed demand and no expected peak"


def _band_peak(band: ForecastBand, event: Event, quantile: float) -> float | None:
    return max(
        (demand_at_quantile(band.levels, band.qps[i], quantile) for i in _steps_of(band, event)), default=None
    )


def build_plan(
    workload: Workload,
    *,
    now: datetime,
    band: ForecastBand | None,
    trust: Trust,
    events: Sequence[Event],
    lead: LeadTime,
    observed_qps: float | None = None,
    ceiling: int | None = None,
    revision: int = 1,
    previous: CapacityPlan | None = None,
) -> CapacityPlan:
    """Build the plan. ``ceiling`` is the quota's, if known: what it cuts is reported per floor, not hidden.

    ``previous`` is the plan this one replaces; an event sized on present demand keeps its base from there
    once it has started, because present demand then contains the event itself.
    """
    may_use = forecast_usable(band, trust, now, workload.policy.forecast_age_max)
    usable = band if band and may_use and band_sound(band) else None
    bases = {f.event_id: f.base_qps for f in previous.floors} if previous else {}
    demand = demand_per_step(workload, usable, events) if usable else ()
    need = need_per_step(workload, demand)
    cap = workload.max_replicas if ceiling is None else min(workload.max_replicas, ceiling)
    floors = _forecast_floors(workload, usable, demand, need, lead, cap) if usable else []
    for event in sorted(events, key=lambda e: (e.start_at, e.id)):
        if event.end_at > now:
            kept = bases.get(event.id)
            base = kept if observed_qps is None or now >= event.start_at else observed_qps
            floors.append(_event_floor(event, workload, usable, need, lead, base, ceiling))
    return CapacityPlan(
        workload=workload.name,
        revision=revision,
        created_at=now,
        floors=tuple(floors),
        forecast_id=usable.id if usable else None,
        start_at=usable.start_at if usable else now,
        step=usable.step if usable else timedelta(minutes=1),
        need=need,
        quantile=service_quantile(workload.policy),
        digest=plan_digest(workload, band, events, lead, usable=may_use, ceiling=ceiling),
    )


def base_moved(
    plan: CapacityPlan, workload: Workload, events: Sequence[Event], observed_qps: float | None, now: datetime
) -> bool:
    """Whether an event that is sized on present demand, and has not started, should be sized again."""
    if not events:
        return False
    by_id = {e.id: e for e in events}
    for floor in plan.floors:
        event = by_id.get(floor.event_id or "")
        if (
            event is None
            or event.expected_multiplier is None
            or observed_qps is None
            or now >= event.start_at
        ):
            continue
        if floor.demand_qps is None:
            if observed_qps > 0.0:
                return True
            continue
        if floor.base_qps is None or abs(observed_qps - floor.base_qps) <= BASE_MOVE_MIN * floor.base_qps:
            continue
        demand = observed_qps * event.expected_multiplier
        wanted = required_replicas(demand, workload.profile, workload.slo, workload.policy.arrival_scv)
        if max(wanted, workload.min_replicas) != floor.replicas + floor.unmet_replicas:
            return True
    return False


def _forecast_floors(
    workload: Workload,
    band: ForecastBand,
    demand_qps: Sequence[float],
    need: Sequence[int],
    lead: LeadTime,
    cap: int,
) -> list[Floor]:
    floors: list[Floor] = []
    before, index = 0, 0
    quantile = f"P{service_quantile(workload.policy) * 100:g}"
    for count, run in islice(groupby(need), FORECAST_FLOORS_MAX):
        length = sum(1 for _ in run)
        needed_at = band.start_at + band.step * index
        demand = max(demand_qps[index : index + length])
        floors.append(
            Floor(
                replicas=min(count, cap),
                order_at=needed_at - timedelta(seconds=lead.for_batch(max(1, count - before))),
                needed_at=needed_at,
                until_at=needed_at + band.step * length,
                reason=f"forecast {quantile} of {demand:.0f} QPS",
                demand_qps=demand,
                unmet_replicas=max(0, count - cap),
            )
        )
        before, index = count, index + length
    return floors


def _event_floor(
    event: Event,
    workload: Workload,
    band: ForecastBand | None,
    need: Sequence[int],
    lead: LeadTime,
    observed_qps: float | None,
    ceiling: int | None,
) -> Floor:
    demand, source = event_demand(event, workload, band, observed_qps)
    cap = max(workload.max_replicas, event.max_replicas_override or 0)
    cap = cap if ceiling is None else min(cap, ceiling)
    wanted = (
        workload.min_replicas
        if demand is None
        else max(
            workload.min_replicas,
            required_replicas(demand, workload.profile, workload.slo, workload.policy.arrival_scv),
        )
    )
    base = _need_at(band, need, deadline(event, workload)) if band else None
    batch = max(1, min(wanted, cap) - (workload.min_replicas if base is None else base))
    hold_until = event.end_at
    if band and event.id in band.event_ids:
        hold_until = min(event.end_at, event.start_at + workload.policy.hold_max)
    sized = "cannot be sized" if demand is None else f"{demand:.0f} QPS"
    return Floor(
        replicas=min(wanted, cap),
        order_at=order_time(event, workload, lead, batch),
        needed_at=deadline(event, workload),
        until_at=hold_until,
        reason=f"event {event.id}: {sized} ({source})",
        event_id=event.id,
        demand_qps=demand,
        unmet_replicas=max(0, wanted - cap),
        base_qps=observed_qps if demand is not None and source == ON_PRESENT_DEMAND else None,
    )


def _need_at(band: ForecastBand, need: Sequence[int], at: datetime) -> int | None:
    index = (at - band.start_at) // band.step
    return need[index] if 0 <= index < len(need) else None


def need_between(plan: CapacityPlan, start_at: datetime, end_at: datetime) -> int | None:
    """Highest forecast need of the steps that touch ``[start_at, end_at]``; None where the plan has no forecast."""
    first = max(0, (start_at - plan.start_at) // plan.step)
    last = (end_at - plan.start_at) // plan.step + 1
    window = plan.need[first : max(last, 0)]
    return max(window) if window else None


def with_decay(floor: Floor, need: int, decayed_s: float, half_life_s: float) -> Floor:
    """A fizzled event's floor, halving its distance to the present need every half life."""
    if need >= floor.replicas:
        return floor
    left = (floor.replicas - need) * 0.5 ** (decayed_s / half_life_s)
    return replace(floor, replicas=need + round(left))
