"""One tick of the control loop: ``on_tick(state, tick_input) -> (state, effects)``. Pure.

Promises: the same state and input give the same result; bounds hold on every tick, also without data;
missing data never scales down; every decision carries its reason, inputs and binding constraint, and its
record comes before the scaling it explains. Refuses: reading a clock, doing I/O, drawing random numbers.
Called by the loop in production and by the simulator, with nothing in between.

Per workload: plan -> contracts -> recommendations -> arbitration (pass 1). Then the fleet's quota pools are
shared out, and each proposal is finished under its ceiling (pass 2): arbitration, behavior, effects. A workload for
which nothing has changed since a tick that changed nothing is passed over (`Calm`): the same would come of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import inf
from operator import attrgetter
from zlib import crc32

from controller.core import reasons
from controller.core.arbitration import Arbitration, arbitrate, capped
from controller.core.behavior import pace
from controller.core.capacity import CapacityCurve, curve, mixed_curve
from controller.core.engines import is_engine_fault
from controller.core.planner import (
    base_moved,
    build_plan,
    effective_max,
    forecast_usable,
    near_demand,
    need_between,
    plan_digest,
    with_decay,
)
from controller.core.prewarm import (
    broken_replicas,
    contract_alarms,
    fizzled_for_s,
    follow,
    replacement_rounds,
)
from controller.core.quota import Ask, Grant, allocate
from controller.core.types import (
    Alarm,
    AlarmKind,
    CapacityPlan,
    ClearAlarm,
    Condition,
    Contract,
    ContractState,
    Decision,
    DemandObservation,
    Effect,
    Event,
    FleetState,
    Floor,
    InputAge,
    Mode,
    Override,
    OverrideKind,
    PastNeed,
    Policy,
    RaiseAlarm,
    Reason,
    Recommendation,
    RecommendationKind,
    RecordDecision,
    ReplaceReplica,
    Replica,
    ScaleChange,
    ScaleTo,
    Source,
    Stage,
    StorePlan,
    TickInput,
    Trust,
    Workload,
    WorkloadInput,
    WorkloadState,
)

# An unchanged decision is recorded again this often, so that the ledger shows the loop was alive.
HEARTBEAT = timedelta(minutes=5)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Observations from clocks this far ahead of ours are taken as of now; further ahead they are not believed.
CLOCK_SKEW_MAX = timedelta(seconds=5)
OVERRIDE_PRIORITY = 100
REACTIVE_PRIORITY = 10
# Needs and changes kept per workload, however long the windows and short the ticks.
HISTORY_MAX = 1000


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand of this tick as far as it can be believed."""

    observation: DemandObservation | None  # None: unusable
    why_not: str  # "" when usable
    need_up: int | None  # replicas for what was seen
    need_down: int | None  # replicas when the silent ones are taken as full
    need_panic: int | None = None  # replicas for what the panic window saw


@dataclass(frozen=True, slots=True)
class Seen:
    """What moves from tick to tick, in the replicas that decisions are made of."""

    pool: CapacityCurve
    demand: Demand
    near_qps: float | None  # demand to prepare for within the lead time
    near_need: int | None


@dataclass(slots=True)
class Calm:
    """A tick that changed nothing, and what would make the next one differ."""

    state: WorkloadState  # as the newest such tick left it
    given: tuple[object, ...]
    needs: tuple[int | None, ...]
    until_at: datetime  # from then on time alone may change something


@dataclass(frozen=True, slots=True)
class Proposal:
    """What pass 1 found out about one workload."""

    inp: WorkloadInput
    seen: Seen
    state: WorkloadState
    current: int
    base_known: bool
    warm: int | None
    demand: Demand
    plan: CapacityPlan
    new_plan: bool
    contracts: tuple[Contract, ...]
    recommendations: tuple[Recommendation, ...]
    arbitration: Arbitration
    forecast_ok: bool
    panic_until_at: datetime | None
    zero_since_at: datetime | None


def on_tick(
    state: FleetState, tick_input: TickInput, calm: dict[str, Calm] | None = None
) -> tuple[FleetState, tuple[Effect, ...]]:
    """Decide for every workload in ``tick_input``; state of workloads that are absent is kept untouched.

    ``calm`` is for the caller to keep between ticks, and for this function to fill, by workload. It saves time and
    changes nothing: with any that earlier ticks filled, or none, the result is the same.
    """
    calm = {} if calm is None else calm
    ordered = sorted(tick_input.workloads, key=lambda w: w.workload.name)
    states: dict[str, WorkloadState] = dict(state.workloads)
    proposals: list[Proposal] = []
    for inp in ordered:
        name = inp.workload.name
        seen, stored, last = _see(inp, tick_input.now), states.get(name, WorkloadState()), calm.get(name)
        if last is not None and _stays_calm(last, stored, inp, seen, tick_input):
            states[name] = last.state = ticked(stored, tick_input.now)
        else:
            proposals.append(_propose(stored, inp, seen, tick_input))
    grants = _share_quota(proposals, tick_input)
    effects: list[Effect] = []
    for proposal in proposals:
        name = proposal.inp.workload.name
        states[name], own = _finish(proposal, grants.get(name), tick_input)
        effects.extend(own)
        if not own and _is_calm(proposal, states[name], tick_input):
            calm[name] = _calm(proposal, states[name], tick_input)
        else:
            calm.pop(name, None)
    return FleetState(states), tuple(effects)


# ---------------------------------------------------------------- workloads for which nothing changes


def _see(inp: WorkloadInput, now: datetime) -> Seen:
    pool = _curve(inp)
    near_qps = near_demand(inp.workload, inp.near, inp.lead, now)
    near_need = None if near_qps is None else pool.required(near_qps)
    return Seen(pool, read_demand(inp, pool, now), near_qps, near_need)


def _given(inp: WorkloadInput) -> tuple[object, ...]:
    """What decisions are made of beside demand."""
    return (
        inp.workload,
        inp.replicas,
        inp.observed_desired,
        inp.forecast,
        inp.trust,
        inp.lead,
        inp.events,
        inp.overrides,
        inp.competing_owner,
        inp.shortfall,
    )


def _needs(inp: WorkloadInput, seen: Seen) -> tuple[int | None, ...] | None:
    """What decisions are made of demand; beyond it they only tell of it. None: not all of it is known."""
    demand = seen.demand
    if demand.observation is None or demand.observation.window < inp.workload.policy.stable_window:
        return None
    return demand.need_up, demand.need_down, demand.need_panic, seen.near_need


def _stays_calm(last: Calm, stored: WorkloadState, inp: WorkloadInput, seen: Seen, tick: TickInput) -> bool:
    return (
        stored is last.state
        and stored.last_at is not None
        and stored.last_at <= tick.now < last.until_at
        and not tick.paused
        and _needs(inp, seen) == last.needs
        and _given(inp) == last.given
    )


def _is_calm(p: Proposal, after: WorkloadState, tick: TickInput) -> bool:
    """Whether a tick without effects would be followed by one like it: nothing is held, awaited or shared out."""
    inp, w = p.inp, p.inp.workload
    return (
        not (tick.paused or inp.events or inp.overrides or after.alarms)
        and w.quota_pool is None
        and after.desired_replicas == p.current
        and max(len(after.needs), len(after.changes)) < HISTORY_MAX
        and after.panic_until_at is None
        and after.zero_since_at is None
        and not any(r.in_flight for r in inp.replicas or ())
        and _needs(inp, p.seen) is not None
        # The plan's steps come with time: they must not be what counts.
        and (not p.forecast_ok or (p.seen.near_need is not None and w.policy.break_even is None))
    )


def _calm(p: Proposal, after: WorkloadState, tick: TickInput) -> Calm:
    inp, w, band = p.inp, p.inp.workload, p.inp.forecast
    # What windows and rates hold now they let go of later; what they have let go of stays so.
    held = [
        *(
            need.at + rules.stabilization_window
            for rules in (w.policy.behavior.scale_up, w.policy.behavior.scale_down)
            for need in after.needs[:-1]
        ),
        *(
            change.at + policy.period
            for rules in (w.policy.behavior.scale_up, w.policy.behavior.scale_down)
            for change in after.changes
            for policy in rules.policies
        ),
    ]
    if band is not None:
        # Also one that cannot be computed with: the plan's digest says whether it could have been used.
        held += (band.origin_at + w.policy.forecast_age_max, band.end_at)
    # A forecast may be used up to its very age.
    ends = [_last_beat(w.name, tick.now) + HEARTBEAT, *(end for end in held if end >= tick.now)]
    return Calm(after, _given(inp), _needs(inp, p.seen) or (), min(ends))


# ---------------------------------------------------------------- pass 1


def _propose(stored: WorkloadState, inp: WorkloadInput, seen: Seen, tick: TickInput) -> Proposal:
    now, w = tick.now, inp.workload
    state = _settled(stored, w, now)
    base = _base(state, inp)
    current = w.min_replicas if base is None else base
    if base is not None and not _continues(state, w):
        # A base adopted from outside starts the stabilization window anew, so that adopting never cuts at once.
        state = replace(state, needs=(*state.needs, PastNeed(now, base)))
    pool, demand = seen.pool, seen.demand
    usable = forecast_usable(inp.forecast, inp.trust, now, w.policy.forecast_age_max)
    observed_qps = demand.observation.stable_qps if demand.observation else None
    plan, new_plan = _plan(state, inp, now, observed_qps, usable=usable)
    forecast_ok = bool(plan.need) and usable
    contracts = _contracts(state, inp, plan, demand, pool, now)
    warm = None if inp.replicas is None else len([r for r in inp.replicas if r.stage is Stage.VERIFIED])
    # Nobody starts what is only recommended: waiting for it, or panicking over it, would never end.
    ready = max(warm, current) if warm is not None and w.mode is Mode.RECOMMEND else warm
    panic_until = None if _set_by_hand(inp, now) else _panic(state, w, demand, ready, now)
    zero_since = _zero_since(state, demand, now)
    recs = (
        *_operator(inp, tick),
        *_bounds(inp, contracts, now),
        *_event_floors(inp, plan, contracts, demand, current, now),
        *_plan_floor(inp, plan, seen, ready, forecast_ok=forecast_ok, now=now),
        *_panic_floor(demand, current, panic_until),
        *_reactive(w, demand, current, zero_since, now),
        *_guards(inp, demand, current, ready),
        *_keep_warm(inp, plan, seen, current, forecast_ok=forecast_ok, now=now),
    )
    return Proposal(
        inp=inp,
        seen=seen,
        state=state,
        current=current,
        base_known=base is not None,
        warm=warm,
        demand=demand,
        plan=plan,
        new_plan=new_plan,
        contracts=contracts,
        recommendations=recs,
        arbitration=arbitrate(recs, current),
        forecast_ok=forecast_ok,
        panic_until_at=panic_until,
        zero_since_at=zero_since,
    )


def _settled(state: WorkloadState, w: Workload, now: datetime) -> WorkloadState:
    """After the clock stepped back, what lies in the future counts as of now: it ages out instead of blocking for ever."""
    if state.last_at is None or state.last_at <= now:
        return state

    def until_now(at: datetime | None) -> datetime | None:
        return None if at is None else min(at, now)

    panic = state.panic_until_at
    return replace(
        state,
        changes=tuple(replace(c, at=min(c.at, now)) for c in state.changes),
        needs=tuple(replace(n, at=min(n.at, now)) for n in state.needs),
        panic_until_at=None if panic is None else min(panic, now + w.policy.stable_window),
        zero_since_at=until_now(state.zero_since_at),
        contracts=tuple(replace(c, under_since_at=until_now(c.under_since_at)) for c in state.contracts),
        recorded_at=until_now(state.recorded_at),
        replaced_at=until_now(state.replaced_at),
    )


def _continues(state: WorkloadState, w: Workload) -> bool:
    """Whether our last decision still is the base: there is one, and it was made in the same mode.

    What was only recommended, or was the floor of another autoscaler, says nothing about the count that runs.
    """
    return state.desired_replicas is not None and state.mode in {None, w.mode}


def _base(state: WorkloadState, inp: WorkloadInput) -> int | None:
    """Our own last decision is the base; what is observed only when there is none (surge pods would mislead)."""
    if _continues(state, inp.workload):
        return state.desired_replicas
    if inp.observed_desired is not None:
        return inp.observed_desired
    if inp.replicas is not None:
        return sum(r.warm or r.in_flight for r in inp.replicas)
    return None  # nothing is known: nothing may be done


def _curve(inp: WorkloadInput) -> CapacityCurve:
    """Capacity by count, with the replicas there are counted as what they are."""
    w = inp.workload
    own = w.profile
    others = [r for r in inp.replicas or () if r.profile is not None and r.profile is not own]
    if not others or all(r.profile == own for r in others):
        return curve(own, w.slo, w.policy.arrival_scv)
    have = [r.profile or w.profile for r in inp.replicas or () if r.warm or r.in_flight]
    return mixed_curve(have, w.profile, w.slo, w.policy.arrival_scv)


def read_demand(inp: WorkloadInput, pool: CapacityCurve, now: datetime) -> Demand:
    """Judge the observation: present, fresh, finite, and from enough replicas to stand for the workload."""
    obs, policy = inp.demand, inp.workload.policy
    if obs is None:
        return Demand(None, "no demand has been observed", None, None)
    age = now - obs.at
    if age > policy.signal_age_max:
        return Demand(None, f"demand is {age.total_seconds():.0f} s old", None, None)
    if age < -CLOCK_SKEW_MAX:
        return Demand(None, f"demand is dated {-age.total_seconds():.0f} s in the future", None, None)
    panic_qps = 0.0 if obs.panic_qps is None else obs.panic_qps
    if not (0.0 <= obs.stable_qps < inf and 0.0 <= obs.backlog_count < inf and 0.0 <= panic_qps < inf):
        return Demand(None, "demand is not a finite number", None, None)
    if obs.expected_count > 0 and obs.reporting_count < policy.quorum * obs.expected_count:
        return Demand(
            None, f"only {obs.reporting_count} of {obs.expected_count} replicas answered", None, None
        )
    extra = obs.backlog_count / policy.drain_target.total_seconds()
    up = pool.required(obs.stable_qps + extra)
    silent = max(0, obs.expected_count - obs.reporting_count) * inp.workload.profile.qps_max
    return Demand(
        observation=obs,
        why_not="",
        need_up=up,
        need_down=pool.required(obs.stable_qps + extra + silent) if silent else up,
        need_panic=None if obs.panic_qps is None else pool.required(obs.panic_qps + extra),
    )


def _plan(
    state: WorkloadState, inp: WorkloadInput, now: datetime, observed_qps: float | None, *, usable: bool
) -> tuple[CapacityPlan, bool]:
    w = inp.workload
    digest = plan_digest(w, inp.forecast, inp.events, inp.lead, usable=usable)
    old = state.plan
    if old is not None and old.digest == digest and not base_moved(old, w, inp.events, observed_qps, now):
        return old, False
    plan = build_plan(
        w,
        now=now,
        band=inp.forecast,
        trust=inp.trust,
        events=inp.events,
        lead=inp.lead,
        observed_qps=observed_qps,
        revision=1 if old is None else old.revision + 1,
        previous=old,
    )
    return plan, True


def _contracts(
    state: WorkloadState,
    inp: WorkloadInput,
    plan: CapacityPlan,
    demand: Demand,
    pool: CapacityCurve,
    now: datetime,
) -> tuple[Contract, ...]:
    if not inp.events:
        return ()
    before = {c.event_id: c for c in state.contracts}
    floors = {f.event_id: f for f in plan.floors if f.event_id is not None}
    return tuple(
        follow(
            _in_mix(floor, event, inp.workload, pool),
            event,
            before.get(event.id),
            replicas=inp.replicas,
            # An event that the minimum covers anyway holds nothing that fizzling could let go.
            demand_need=demand.need_up if floor.replicas > inp.workload.min_replicas else None,
            lead=inp.lead,
            policy=inp.workload.policy,
            now=now,
        )
        for event in sorted(inp.events, key=lambda e: (e.start_at, e.id))
        if (floor := floors.get(event.id)) is not None
    )


def _set_by_hand(inp: WorkloadInput, now: datetime) -> bool:
    """Whether an operator said what stands in place of present load; a panic would answer him, not the load."""
    return any(o.kind is OverrideKind.SET and o.expires_at > now for o in inp.overrides)


def _in_mix(floor: Floor, event: Event, w: Workload, pool: CapacityCurve) -> Floor:
    """The floor in replicas of the pool that is there: beside slower ones it takes more, within the same limit."""
    alone = floor.replicas + floor.unmet_replicas
    total = pool.in_mix(alone)
    if total == alone:
        return floor
    held = min(total, max(w.max_replicas, event.max_replicas_override or 0))
    return replace(floor, replicas=held, unmet_replicas=total - held)


def _panic(
    state: WorkloadState, w: Workload, demand: Demand, warm: int | None, now: datetime
) -> datetime | None:
    """Panic lasts one stable window beyond the last tick that called for it; a stale one is over."""
    if warm is not None and _calls_for_panic(demand, warm, w.policy):
        return now + w.policy.stable_window
    return state.panic_until_at if state.panic_until_at and state.panic_until_at > now else None


def _calls_for_panic(demand: Demand, warm: int, policy: Policy) -> bool:
    return demand.need_panic is not None and demand.need_panic >= policy.panic_threshold * max(1, warm)


def _zero_since(state: WorkloadState, demand: Demand, now: datetime) -> datetime | None:
    """Since when zero traffic has been verified; a tick without data neither proves nor disproves it."""
    if demand.observation is None:
        return state.zero_since_at
    if demand.need_down:
        return None
    return state.zero_since_at or now


# ---------------------------------------------------------------- recommendations


def _operator(inp: WorkloadInput, tick: TickInput) -> list[Recommendation]:
    recs: list[Recommendation] = []
    if tick.paused:
        why = tick.paused_reason or "no reason given"
        recs.append(
            Recommendation(Source.PAUSE, RecommendationKind.VETO, None, f"all scaling is paused: {why}")
        )
    recs.extend(_override(o) for o in inp.overrides if o.expires_at > tick.now)
    return recs


def _override(o: Override) -> Recommendation:
    until = f"until {o.expires_at:%Y-%m-%d %H:%M} UTC: {o.reason}"
    if o.kind is OverrideKind.PAUSE:
        return Recommendation(Source.PAUSE, RecommendationKind.VETO, None, f"scaling is paused {until}")
    words = {OverrideKind.SET: "exactly", OverrideKind.AT_LEAST: "at least", OverrideKind.AT_MOST: "at most"}
    sentence = f"override {o.id} asks for {words[o.kind]} {o.replicas} {until}"
    return Recommendation(
        Source.OVERRIDE, RecommendationKind(o.kind.value), o.replicas, sentence, priority=OVERRIDE_PRIORITY
    )


def _bounds(
    inp: WorkloadInput, contracts: Sequence[Contract], now: datetime
) -> tuple[Recommendation, Recommendation]:
    w = inp.workload
    begun = {c.event_id for c in contracts if c.order_at <= now}
    top = effective_max(w, inp.events, now, inp.lead, begun) if inp.events else w.max_replicas
    return _min_max(w.min_replicas, w.max_replicas, top)


@lru_cache(maxsize=4096)
def _min_max(lowest: int, highest: int, top: int) -> tuple[Recommendation, Recommendation]:
    raised = "" if top == highest else f", raised from {highest} for an event"
    return (
        Recommendation(Source.MIN, RecommendationKind.AT_LEAST, lowest, f"min_replicas is {lowest}"),
        Recommendation(Source.MAX, RecommendationKind.AT_MOST, top, f"max_replicas is {top}{raised}"),
    )


def _event_floors(
    inp: WorkloadInput,
    plan: CapacityPlan,
    contracts: Sequence[Contract],
    demand: Demand,
    current: int,
    now: datetime,
) -> list[Recommendation]:
    recs: list[Recommendation] = []
    if not contracts:
        return recs
    by_event = {c.event_id: c for c in contracts}
    for floor in plan.floors:
        contract = by_event.get(floor.event_id or "")
        if contract is None or not contract.order_at <= now < floor.until_at:
            continue
        # What max_replicas or quota cut off is still asked for, so that the cut shows as a limited decision.
        wanted = contract.replicas + contract.shortfall_replicas
        standing = _standing(replace(floor, replicas=wanted), contract, demand, inp.workload, current, now)
        if standing < wanted:
            sentence = f"{floor.reason} fizzled: its floor of {wanted} has decayed to {standing}"
        else:
            sentence = f"{floor.reason} needs {standing} warm by {floor.needed_at:%H:%M:%S} UTC"
        recs.append(Recommendation(Source.EVENT, RecommendationKind.AT_LEAST, standing, sentence))
    return recs


def _standing(
    floor: Floor, contract: Contract, demand: Demand, w: Workload, current: int, now: datetime
) -> int:
    """The count an event's floor holds now: all of it, less what has decayed since the event fizzled."""
    decayed_s = fizzled_for_s(contract, w.policy, now)
    if decayed_s is None:
        return floor.replicas
    if demand.need_up is None:  # unknown demand neither decays a floor nor brings it back
        return min(floor.replicas, current)
    return with_decay(floor, demand.need_up, decayed_s, w.policy.fizzle_half_life.total_seconds()).replicas


def _plan_floor(
    inp: WorkloadInput,
    plan: CapacityPlan,
    seen: Seen,
    warm: int | None,
    *,
    forecast_ok: bool,
    now: datetime,
) -> list[Recommendation]:
    """What may be needed within the lead time: by the near quantiles, else by the forecast."""
    if seen.near_need is not None:
        sentence = (
            f"demand may reach {seen.near_qps:.0f} QPS (P{plan.quantile * 100:g}) within the lead time "
            f"of {inp.lead.total_p95_s:.0f} s, which needs {seen.near_need}"
        )
        return [Recommendation(Source.PLAN, RecommendationKind.AT_LEAST, seen.near_need, sentence)]
    horizon_s = inp.lead.total_p95_s
    need = need_between(plan, now, now + timedelta(seconds=horizon_s)) if forecast_ok else None
    if need is None:
        return []
    # A ramp that needs many replicas at once takes longer to warm: look as far as that batch takes.
    batch = need - (warm or 0)
    if batch > 1 and inp.lead.per_extra_replica_s > 0:
        horizon_s = inp.lead.for_batch(batch)
        need = need_between(plan, now, now + timedelta(seconds=horizon_s)) or need
    need = seen.pool.in_mix(need)
    sentence = (
        f"the forecast (P{plan.quantile * 100:g}) needs {need} within the lead time of {horizon_s:.0f} s"
    )
    return [Recommendation(Source.PLAN, RecommendationKind.AT_LEAST, need, sentence)]


def _panic_floor(demand: Demand, current: int, panic_until_at: datetime | None) -> list[Recommendation]:
    if panic_until_at is None or demand.need_up is None:
        return []  # without data, the guard holds what there is
    need = demand.need_up if demand.need_panic is None else demand.need_panic
    sentence = f"panic until {panic_until_at:%H:%M:%S} UTC: recent demand needs {need}; no scale-down"
    return [Recommendation(Source.PANIC, RecommendationKind.AT_LEAST, max(current, need), sentence)]


def _reactive(
    w: Workload, demand: Demand, current: int, zero_since_at: datetime | None, now: datetime
) -> list[Recommendation]:
    obs, up, down = demand.observation, demand.need_up, demand.need_down
    if obs is None or up is None or down is None:
        return [Recommendation(Source.REACTIVE, RecommendationKind.ABSTAIN, None, demand.why_not)]
    backlog = f" and a backlog of {obs.backlog_count:.0f}" if obs.backlog_count else ""
    load = f"{obs.stable_qps:.0f} QPS{backlog}"
    target = up if up > current else min(current, down)
    sentence = f"{load} {'needs' if target == up else 'allows'} {target}"
    if target < current and demand.need_panic is not None and _calls_for_panic(demand, target, w.policy):
        # Fewer than the short window needs would be brought back at the next tick, and held.
        target = min(current, demand.need_panic)
        sentence = f"{load} needs fewer, but {obs.panic_qps:.0f} QPS lately allow {target}"
    if target == 0 and zero_since_at is not None and now - zero_since_at < w.policy.scale_to_zero_after:
        target = min(current, 1)
        until_at = zero_since_at + w.policy.scale_to_zero_after
        sentence = (
            f"no traffic since {zero_since_at:%H:%M:%S} UTC, {target} is kept until {until_at:%H:%M:%S} UTC"
        )
    return [
        Recommendation(Source.REACTIVE, RecommendationKind.SET, target, sentence, priority=REACTIVE_PRIORITY)
    ]


def _guards(inp: WorkloadInput, demand: Demand, current: int, warm: int | None) -> list[Recommendation]:
    """What is not known well enough to scale down."""
    recs: list[Recommendation] = []

    def hold(replicas: int, sentence: str) -> None:
        recs.append(Recommendation(Source.GUARD, RecommendationKind.AT_LEAST, replicas, sentence))

    # Somebody else may have raised the target; what cannot be judged is not taken back either.
    seen = max(current, inp.observed_desired or 0)
    obs, stable_window = demand.observation, inp.workload.policy.stable_window
    if obs is None:
        hold(seen, f"{demand.why_not}: missing data never scales down")
    elif obs.window < stable_window:
        hold(
            seen,
            f"only {obs.window.total_seconds():.0f} s observed since start: no scale-down before a stable window",
        )
    if warm is None:
        hold(seen, "replicas could not be observed: no scale-down")
    elif warm < min(demand.need_up or 0, current):
        hold(current, f"{warm} of {demand.need_up} replicas for the present load are warm")
    return recs


def _keep_warm(
    inp: WorkloadInput,
    plan: CapacityPlan,
    seen: Seen,
    current: int,
    *,
    forecast_ok: bool,
    now: datetime,
) -> list[Recommendation]:
    """Replicas needed again within the break-even time cost less to keep than to start anew."""
    lead_s, break_even = inp.lead.total_p95_s, inp.workload.policy.break_even
    if break_even is None and seen.near_need is not None:
        return []  # one cold start is the break-even time, and the near quantiles already look that far
    keep_s = lead_s if break_even is None else max(lead_s, break_even.total_seconds())
    need = need_between(plan, now, now + timedelta(seconds=keep_s)) if forecast_ok else None
    if need is None:
        return []
    count = min(current, seen.pool.in_mix(need))
    sentence = f"the forecast needs {need} within {keep_s:.0f} s: keeping costs less than a cold start"
    return [Recommendation(Source.KEEP_WARM, RecommendationKind.AT_LEAST, count, sentence)]


# ---------------------------------------------------------------- quota


def _share_quota(proposals: Sequence[Proposal], tick: TickInput) -> Mapping[str, Grant]:
    asks = [
        _ask(p, p.inp.workload.quota_pool)
        for p in proposals
        if p.inp.workload.quota_pool is not None
        and p.inp.workload.mode is not Mode.RECOMMEND
        and p.inp.workload.profile.gpus_per_replica > 0
    ]
    return allocate(tick.pools, asks) if asks else {}


def _ask(p: Proposal, pool: str) -> Ask:
    merged, w = p.arbitration, p.inp.workload
    # A count that may not or cannot move neither takes GPUs nor gives any up.
    stays = merged.vetoed or not p.base_known
    # No more than it would take: a ceiling or a SET override may hold it below its load.
    needed = min(max(merged.floor, p.demand.need_up or 0), merged.replicas)
    return Ask(
        workload=w.name,
        pool=pool,
        gpus_per_replica=w.profile.gpus_per_replica,
        priority=_priority(w, p.inp.events, p.contracts),
        current=p.current,
        needed=p.current if stays else needed,
        wanted=p.current if stays else merged.replicas,
    )


def _priority(w: Workload, events: Sequence[Event], contracts: Sequence[Contract]) -> int:
    """A workload ranks as high as its own priority and its events that are being served."""
    serving = {
        c.event_id for c in contracts if c.state not in {ContractState.PLANNED, ContractState.COMPLETED}
    }
    return max([w.priority, *(e.priority for e in events if e.id in serving)])


# ---------------------------------------------------------------- pass 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """What pass 2 makes of a proposal."""

    at: datetime
    current: int
    desired: int
    target: int  # before behavior paced it
    merged: Arbitration
    recommendations: tuple[Recommendation, ...]
    hindrance: str
    reason: Reason
    conditions: tuple[Condition, ...]

    @property
    def key(self) -> str:
        """What makes a decision worth another record."""
        return f"{self.desired}/{self.reason}/{'/'.join(str(c.ok) for c in self.conditions)}"


def _finish(p: Proposal, grant: Grant | None, tick: TickInput) -> tuple[WorkloadState, list[Effect]]:
    v = _judge(p, grant, tick.now)
    broken = broken_replicas(p.inp.replicas or (), p.inp.workload.policy, v.at)
    alarms = _alarms(p, v, broken)
    replaced, rounds = _replacements(p, v, broken)
    due = p.state.recorded_at is None or p.state.recorded_at < _last_beat(p.inp.workload.name, v.at)
    key = v.key
    record = v.desired != v.current or due or key != p.state.recorded_key
    state = _next_state(p, v, alarms, key, recorded=record, rounds=rounds, replaced=bool(replaced))
    effects: list[Effect] = [StorePlan(p.plan)] if p.new_plan else []
    acts = _acts(p, v)
    decision = _decision(p, v) if acts or record else None
    if decision is not None:
        effects.append(RecordDecision(decision))
    effects.extend(_alarm_changes(p.state.alarms, alarms))
    if decision is not None and acts:
        effects.append(ScaleTo(decision.workload, v.desired, decision.id))
    return state, [*effects, *replaced]


def _last_beat(workload: str, now: datetime) -> datetime:
    """When an unchanged decision of this workload was due last.

    Every workload has a place of its own within a heartbeat, so that a fleet that started at once does not
    repeat its decisions at once: a tick repeats its share of them. The first repeat comes early.
    """
    return now - (now - _EPOCH - _place(workload)) % HEARTBEAT


@lru_cache(maxsize=32_768)
def _place(workload: str) -> timedelta:
    return timedelta(seconds=crc32(workload.encode()) % int(HEARTBEAT.total_seconds()))


def _judge(p: Proposal, grant: Grant | None, now: datetime) -> Verdict:
    recs, merged = p.recommendations, p.arbitration
    if grant is not None and grant.ceiling < max(merged.replicas, p.current) and not merged.vetoed:
        taken = f", {grant.preempted_by} has the higher priority" if grant.preempted_by else ""
        sentence = f"quota pool {p.inp.workload.quota_pool} has room for {grant.ceiling}{taken}"
        recs = (*recs, Recommendation(Source.QUOTA, RecommendationKind.AT_MOST, grant.ceiling, sentence))
        merged = arbitrate(recs, p.current)
    desired, paced, hindrance = _pace(p, merged, now)
    known = p.demand.observation is not None
    return Verdict(
        at=now,
        current=p.current,
        desired=desired,
        target=merged.replicas,
        merged=paced,
        recommendations=recs,
        hindrance=hindrance,
        reason=reasons.classify(p.current, desired, paced, hindrance, has_demand=known),
        conditions=reasons.conditions(p.inp, paced, p.demand.why_not, forecast_ok=p.forecast_ok),
    )


def _decision(p: Proposal, v: Verdict) -> Decision:
    w, binding = p.inp.workload, v.merged.binding
    return Decision(
        id=f"{w.name}-{v.at:%Y%m%dT%H%M%S%f}",
        workload=w.name,
        at=v.at,
        mode=w.mode,
        current_replicas=v.current,
        desired_replicas=v.desired,
        warm_replicas=p.warm,
        in_flight_replicas=None if p.inp.replicas is None else sum(r.in_flight for r in p.inp.replicas),
        reason=v.reason,
        binding=binding.source if binding else None,
        sentence=reasons.sentence(v.current, v.desired, v.merged, v.hindrance),
        recommendations=v.recommendations,
        conditions=v.conditions,
        inputs=_inputs(p, v.at),
        demand_qps=p.demand.observation.stable_qps if p.demand.observation else None,
        need_replicas=p.demand.need_up,
        plan_revision=p.plan.revision,
        forecast_id=p.inp.forecast.id if p.inp.forecast else None,
        event_ids=tuple(e.id for e in sorted(p.inp.events, key=lambda e: (e.start_at, e.id))),
        limited_from=v.merged.limited_from,
    )


def _pace(p: Proposal, merged: Arbitration, now: datetime) -> tuple[int, Arbitration, str]:
    """Apply tolerance and behavior; floors are met at once and ceilings cut at once."""
    if merged.vetoed:
        return p.current, merged, ""
    behavior = p.inp.workload.policy.behavior
    target, hindrance = merged.replicas, ""
    reactive = merged.binding is not None and merged.binding.source is Source.REACTIVE
    # The slack keeps a tolerance of 10 % from refusing 10 to 11 over the last bit of a float.
    if reactive and p.current and abs(target - p.current) <= behavior.tolerance * p.current + 1e-9:
        target, hindrance = p.current, "tolerance"
    paced = pace(
        p.current,
        target,
        up=behavior.scale_up,
        down=behavior.scale_down,
        needs=p.state.needs,
        changes=p.state.changes,
        now=now,
    )
    limited = capped(merged, max(paced.replicas, merged.floor))
    if limited is not merged:  # behavior would have held more than the ceiling has room for
        return limited.replicas, limited, ""
    desired = max(paced.replicas, merged.floor)
    if desired == merged.replicas:
        hindrance = ""
    elif not hindrance:
        hindrance = "rate" if paced.rate_limited else "stabilization"
    return desired, merged, hindrance


def _inputs(p: Proposal, now: datetime) -> tuple[InputAge, ...]:
    obs, band = p.inp.demand, p.inp.forecast
    return (
        InputAge("demand", (now - obs.at).total_seconds() if obs else None, p.demand.why_not),
        InputAge(
            "forecast",
            (now - band.origin_at).total_seconds() if band else None,
            f"{band.state if band else 'none'}, {p.inp.trust}{'' if p.forecast_ok else ', not used'}",
        ),
        *((InputAge("near demand", (now - p.inp.near.at).total_seconds()),) if p.inp.near else ()),
        InputAge("replicas", None if p.inp.replicas is None else 0.0),
        InputAge("plan", (now - p.plan.created_at).total_seconds(), f"revision {p.plan.revision}"),
    )


def _alarms(p: Proposal, v: Verdict, broken: Sequence[tuple[Replica, AlarmKind, str]]) -> tuple[Alarm, ...]:
    name, binding = p.inp.workload.name, v.merged.binding
    alarms = [alarm for c in p.contracts for alarm in contract_alarms(name, c, v.at)]
    alarms.extend(Alarm(kind, name, replica.id, sentence) for replica, kind, sentence in broken)
    if p.inp.trust is Trust.DISTRUSTED:
        sentence = (
            f"The forecast of {name} has lately done worse than the same time a day before: until it recovers, "
            "scaling follows present demand alone. Registered events still prewarm."
        )
        alarms.append(Alarm(AlarmKind.FORECAST_DISTRUSTED, name, "", sentence))
    if p.demand.observation is None and p.current > 0:
        sentence = f"{name}: {p.demand.why_not}; holding {p.current} replicas, floors still apply."
        alarms.append(Alarm(AlarmKind.NO_DATA, name, "", sentence))
    told = any(a.kind is AlarmKind.QUOTA_SHORT for a in alarms)
    # Only a cut into what was asked for is a shortage; surplus that was preempted is not missed.
    short = p.arbitration.replicas > v.desired
    if binding is not None and binding.source is Source.QUOTA and short and not told:
        alarms.append(Alarm(AlarmKind.QUOTA_SHORT, name, "", f"{name}: {binding.sentence}."))
    if is_engine_fault(p.inp.shortfall):
        alarms.append(Alarm(AlarmKind.WRONG_ENGINE, name, "order", f"{name}: {p.inp.shortfall}."))
    elif p.inp.shortfall is not None and not told:
        alarms.append(Alarm(AlarmKind.QUOTA_SHORT, name, "cluster", f"{name}: {p.inp.shortfall}."))
    return tuple(sorted(alarms, key=lambda a: a.key))


def _next_state(
    p: Proposal,
    v: Verdict,
    alarms: tuple[Alarm, ...],
    key: str,
    *,
    recorded: bool,
    rounds: int,
    replaced: bool,
) -> WorkloadState:
    now, behavior, old = v.at, p.inp.workload.policy.behavior, p.state
    keep_need = max(behavior.scale_up.stabilization_window, behavior.scale_down.stabilization_window)
    policies = (*behavior.scale_up.policies, *behavior.scale_down.policies)
    keep_change = max((policy.period for policy in policies), default=timedelta(0))
    needs = [n for n in old.needs if now - n.at < keep_need]
    if needs and needs[-1].replicas == v.target:
        needs.pop()  # equal needs in a row are one, dated by the last: windows ask no more than that
    changes = [c for c in old.changes if now - c.at < keep_change]
    if v.desired != v.current:
        changes.append(ScaleChange(now, v.desired - v.current))
    desired = v.desired if p.base_known else None
    if v.merged.vetoed and p.inp.observed_desired is not None:
        desired = p.inp.observed_desired  # under a pause the operator's hand moves the base
    return WorkloadState(
        desired_replicas=desired,
        changes=tuple(changes[-HISTORY_MAX:]),
        needs=(*needs[1 - HISTORY_MAX :], PastNeed(now, v.target)),
        panic_until_at=p.panic_until_at,
        zero_since_at=p.zero_since_at,
        plan=p.plan,
        contracts=p.contracts,
        alarms=alarms,
        recorded_key=key,
        recorded_at=now if recorded else old.recorded_at,
        last_at=now,
        mode=p.inp.workload.mode,
        replacement_rounds=rounds,
        replaced_at=now if replaced else old.replaced_at,
    )


def ticked(state: WorkloadState, at: datetime) -> WorkloadState:
    """The state after ticks up to ``at`` that left all as it stood: nothing but the time of the last tick moved.

    So a state need not be stored at every tick. Unchanged: ``state`` has seen no tick, or one at ``at`` or later.
    """
    if state.last_at is None or state.last_at >= at or not state.needs or state.needs[-1].at != state.last_at:
        return state
    return replace(state, last_at=at, needs=(*state.needs[:-1], PastNeed(at, state.needs[-1].replicas)))


def stands(before: WorkloadState | None, after: WorkloadState) -> bool:
    """Whether ``after`` is what ``ticked`` makes of ``before``."""
    if before is None or after.last_at is None or len(before.needs) != len(after.needs):
        return False
    # Cheaper than to make the state and compare it whole, and the same.
    last, stood = before.needs[-1:], after.needs[-1:]
    if (
        before.last_at is None
        or before.last_at >= after.last_at
        or not last
        or last[0].at != before.last_at
        or stood[0].at != after.last_at
        or stood[0].replicas != last[0].replicas
        or before.needs[:-1] != after.needs[:-1]
    ):
        return before == after
    return _LASTING(before) == _LASTING(after)


# What `ticked` leaves alone.
_LASTING = attrgetter(*(f.name for f in fields(WorkloadState) if f.name not in {"needs", "last_at"}))


def _acts(p: Proposal, v: Verdict) -> bool:
    """Whether the decision is applied: not while paused, unknown, or owned by somebody else.

    KEDA pulls the decision itself. Two owners of one target would undo each other for ever, so with a
    competing one nothing is applied and ABLE_TO_SCALE says why.
    """
    mode = p.inp.workload.mode
    if v.merged.vetoed or not p.base_known or mode not in {Mode.SCALE, Mode.FLOOR}:
        return False
    if mode is Mode.SCALE and p.inp.competing_owner is not None:
        return False
    # A scaling that did not take (a crash between record and act, a lost call) is asked for again.
    drifted = p.inp.observed_desired is not None and p.inp.observed_desired != v.desired
    return v.desired != v.current or drifted


def _replacements(
    p: Proposal, v: Verdict, broken: Sequence[tuple[Replica, AlarmKind, str]]
) -> tuple[list[ReplaceReplica], int]:
    """Replace broken replicas in rounds with growing pauses; the second value is the rounds so far."""
    w, rounds = p.inp.workload, p.state.replacement_rounds
    if p.inp.replicas is None or v.merged.vetoed or w.mode is not Mode.SCALE:
        return [], rounds
    rounds, due = replacement_rounds(rounds, p.state.replaced_at, p.inp.replicas, v.at)
    if not due or not broken:
        return [], rounds
    return [
        ReplaceReplica(w.name, r.id, f"{sentence} It is replaced.") for r, _, sentence in broken
    ], rounds + 1


def _alarm_changes(before: Sequence[Alarm], after: Sequence[Alarm]) -> list[Effect]:
    if not before and not after:
        return []
    old, new = {a.key for a in before}, {a.key for a in after}
    return [
        *(RaiseAlarm(a) for a in after if a.key not in old),
        *(ClearAlarm(a) for a in before if a.key not in new),
    ]
