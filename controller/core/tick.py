"""One tick of the control loop: ``on_tick(state, tick_input) -> (state, effects)``. Pure.

Promises: the same state and input give the same result; bounds hold on every tick, also without data;
missing data never scales down; every decision carries its reason, inputs and binding constraint, and its
record comes before the scaling it explains. Refuses: reading a clock, doing I/O, drawing random numbers.
Called by the loop in production and by the simulator, with nothing in between.

Per workload: plan -> contracts -> recommendations -> arbitration (pass 1). Then the fleet's quota pools are
shared out, and each proposal is finished under its ceiling (pass 2): arbitration, behavior, effects.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import isfinite

from controller.core import reasons
from controller.core.arbitration import Arbitration, arbitrate
from controller.core.behavior import pace
from controller.core.capacity import required_mixed
from controller.core.planner import (
    build_plan,
    effective_max,
    forecast_usable,
    need_between,
    plan_digest,
    with_decay,
)
from controller.core.prewarm import (
    broken_replicas,
    contract_alarms,
    fizzled_for_s,
    follow,
)
from controller.core.quota import Ask, Grant, allocate
from controller.core.types import (
    Alarm,
    AlarmKind,
    CapacityPlan,
    ClearAlarm,
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
    RaiseAlarm,
    Recommendation,
    RecommendationKind,
    RecordDecision,
    ReplaceReplica,
    ScaleChange,
    ScaleTo,
    Source,
    StorePlan,
    TickInput,
    Trust,
    Workload,
    WorkloadInput,
    WorkloadState,
)

# An unchanged decision is recorded again this often, so that the ledger shows the loop was alive.
HEARTBEAT = timedelta(minutes=5)
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


@dataclass(frozen=True, slots=True)
class Proposal:
    """What pass 1 found out about one workload."""

    inp: WorkloadInput
    state: WorkloadState
    current: int
    demand: Demand
    plan: CapacityPlan
    new_plan: bool
    contracts: tuple[Contract, ...]
    recommendations: tuple[Recommendation, ...]
    arbitration: Arbitration
    forecast_ok: bool
    panic_until_at: datetime | None
    zero_since_at: datetime | None


def on_tick(state: FleetState, tick_input: TickInput) -> tuple[FleetState, tuple[Effect, ...]]:
    """Decide for every workload in ``tick_input``; state of workloads that are absent is kept untouched."""
    ordered = sorted(tick_input.workloads, key=lambda w: w.workload.name)
    proposals = [
        _propose(state.workloads.get(w.workload.name, WorkloadState()), w, tick_input) for w in ordered
    ]
    grants = _share_quota(proposals, tick_input)
    states: dict[str, WorkloadState] = dict(state.workloads)
    effects: list[Effect] = []
    for proposal in proposals:
        name = proposal.inp.workload.name
        states[name], own = _finish(proposal, grants.get(name), tick_input)
        effects.extend(own)
    return FleetState(states), tuple(effects)


# ---------------------------------------------------------------- pass 1


def _propose(state: WorkloadState, inp: WorkloadInput, tick: TickInput) -> Proposal:
    now, w = tick.now, inp.workload
    current = _current(state, inp)
    demand = read_demand(inp, now)
    observed = demand.observation.stable_qps if demand.observation else None
    plan, new_plan = _plan(state, inp, now, observed)
    forecast_ok = forecast_usable(inp.forecast, inp.trust, now, w.policy.forecast_age_max) and bool(plan.need)
    contracts = _contracts(state, inp, plan, demand, now)
    panic_until = _panic(state, inp, demand, now)
    zero_since = _zero_since(state, demand, now)
    state_now = replace(state, panic_until_at=panic_until, zero_since_at=zero_since)
    recs = (
        *_operator(inp, tick),
        *_bounds(inp, now),
        *_floors(inp, plan, contracts, demand, forecast_ok, now),
        *_reactive(state_now, inp, demand, current, now),
        *_holds(inp, plan, demand, forecast_ok, current, now),
    )
    return Proposal(
        inp=inp,
        state=state,
        current=current,
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


def _current(state: WorkloadState, inp: WorkloadInput) -> int:
    """Our own last decision is the base; what is observed only when there is none (surge pods would mislead)."""
    if state.desired_replicas is not None:
        return state.desired_replicas
    if inp.observed_desired is not None:
        return inp.observed_desired
    if inp.replicas is not None:
        return sum(r.warm or r.in_flight for r in inp.replicas)
    return inp.workload.min_replicas


def _need(inp: WorkloadInput, qps: float) -> int:
    w = inp.workload
    have = [r.profile or w.profile for r in inp.replicas or () if r.warm or r.in_flight]
    return required_mixed(qps, have, w.profile, w.slo, w.policy.arrival_scv)


def read_demand(inp: WorkloadInput, now: datetime) -> Demand:
    """Judge the observation: present, fresh, finite, and from enough replicas to stand for the workload."""
    obs, policy = inp.demand, inp.workload.policy
    if obs is None:
        return Demand(None, "no demand has been observed", None, None)
    age = now - obs.at
    if age > policy.signal_age_max:
        return Demand(None, f"demand is {age.total_seconds():.0f} s old", None, None)
    if age < -CLOCK_SKEW_MAX:
        return Demand(None, f"demand is dated {-age.total_seconds():.0f} s in the future", None, None)
    numbers = (obs.stable_qps, obs.backlog_count, 0.0 if obs.panic_qps is None else obs.panic_qps)
    if not all(isfinite(x) and x >= 0 for x in numbers):
        return Demand(None, "demand is not a finite number", None, None)
    if obs.expected_count > 0 and obs.reporting_count < policy.quorum * obs.expected_count:
        return Demand(
            None, f"only {obs.reporting_count} of {obs.expected_count} replicas answered", None, None
        )
    extra = obs.backlog_count / policy.drain_target.total_seconds()
    silent = max(0, obs.expected_count - obs.reporting_count) * inp.workload.profile.qps_max
    up = _need(inp, obs.stable_qps + extra)
    return Demand(obs, "", up, up if silent == 0 else _need(inp, obs.stable_qps + extra + silent))


def _plan(
    state: WorkloadState, inp: WorkloadInput, now: datetime, observed_qps: float | None
) -> tuple[CapacityPlan, bool]:
    digest = plan_digest(inp.workload, inp.forecast, inp.events, inp.lead, inp.trust, None)
    if state.plan is not None and state.plan.digest == digest:
        return state.plan, False
    plan = build_plan(
        inp.workload,
        now=now,
        band=inp.forecast,
        trust=inp.trust,
        events=inp.events,
        lead=inp.lead,
        observed_qps=observed_qps,
        revision=1 if state.plan is None else state.plan.revision + 1,
    )
    return plan, True


def _contracts(
    state: WorkloadState, inp: WorkloadInput, plan: CapacityPlan, demand: Demand, now: datetime
) -> tuple[Contract, ...]:
    before = {c.event_id: c for c in state.contracts}
    floors = {f.event_id: f for f in plan.floors if f.event_id is not None}
    return tuple(
        follow(
            floors[event.id],
            event,
            before.get(event.id),
            replicas=inp.replicas,
            demand_need=demand.need_up,
            lead=inp.lead,
            policy=inp.workload.policy,
            now=now,
        )
        for event in sorted(inp.events, key=lambda e: (e.start_at, e.id))
        if event.id in floors
    )


def _panic(state: WorkloadState, inp: WorkloadInput, demand: Demand, now: datetime) -> datetime | None:
    """Panic lasts one stable window beyond the last tick that called for it; a stale one is over."""
    still = state.panic_until_at if state.panic_until_at and state.panic_until_at > now else None
    need = _panic_need(inp, demand)
    if need is None or inp.replicas is None:
        return still
    warm = sum(r.warm for r in inp.replicas)
    if need >= inp.workload.policy.panic_threshold * max(1, warm):
        return now + inp.workload.policy.stable_window
    return still


def _panic_need(inp: WorkloadInput, demand: Demand) -> int | None:
    obs = demand.observation
    if obs is None or obs.panic_qps is None:
        return None
    return _need(inp, obs.panic_qps + obs.backlog_count / inp.workload.policy.drain_target.total_seconds())


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


def _bounds(inp: WorkloadInput, now: datetime) -> list[Recommendation]:
    w = inp.workload
    top = effective_max(w, inp.events, now, inp.lead)
    raised = "" if top == w.max_replicas else f", raised from {w.max_replicas} for an event"
    return [
        Recommendation(
            Source.MIN, RecommendationKind.AT_LEAST, w.min_replicas, f"min_replicas is {w.min_replicas}"
        ),
        Recommendation(Source.MAX, RecommendationKind.AT_MOST, top, f"max_replicas is {top}{raised}"),
    ]


def _floors(
    inp: WorkloadInput,
    plan: CapacityPlan,
    contracts: Sequence[Contract],
    demand: Demand,
    forecast_ok: bool,
    now: datetime,
) -> list[Recommendation]:
    recs: list[Recommendation] = []
    by_event = {c.event_id: c for c in contracts}
    for floor in plan.floors:
        if floor.event_id is None or not floor.order_at <= now < floor.until_at:
            continue
        standing = _decayed(floor, by_event.get(floor.event_id), demand, inp.workload, now)
        sentence = f"{floor.reason} needs {standing.replicas} warm by {floor.needed_at:%H:%M:%S} UTC"
        if standing.replicas < floor.replicas:
            sentence = (
                f"{floor.reason} fizzled: its floor of {floor.replicas} has decayed to {standing.replicas}"
            )
        recs.append(Recommendation(Source.EVENT, RecommendationKind.AT_LEAST, standing.replicas, sentence))
    if forecast_ok:
        horizon_s = inp.lead.total_p95_s
        need = need_between(plan, now, now + timedelta(seconds=horizon_s))
        if need is not None:
            # A ramp that needs many replicas at once takes longer to warm: look as far as that batch takes.
            batch = need - sum(r.warm for r in inp.replicas or ())
            if batch > 1 and inp.lead.per_extra_replica_s > 0:
                horizon_s = inp.lead.for_batch(batch)
                need = need_between(plan, now, now + timedelta(seconds=horizon_s)) or need
            sentence = f"the forecast (P{plan.quantile * 100:g}) needs {need} within the lead time of {horizon_s:.0f} s"
            recs.append(Recommendation(Source.PLAN, RecommendationKind.AT_LEAST, need, sentence))
    return recs


def _decayed(floor: Floor, contract: Contract | None, demand: Demand, w: Workload, now: datetime) -> Floor:
    if contract is None or demand.need_up is None:
        return floor
    decayed_s = fizzled_for_s(contract, w.policy, now)
    if decayed_s is None:
        return floor
    return with_decay(floor, demand.need_up, decayed_s, w.policy.fizzle_half_life.total_seconds())


def _reactive(
    state: WorkloadState, inp: WorkloadInput, demand: Demand, current: int, now: datetime
) -> list[Recommendation]:
    obs, up, down = demand.observation, demand.need_up, demand.need_down
    if obs is None or up is None or down is None:
        return [Recommendation(Source.REACTIVE, RecommendationKind.ABSTAIN, None, demand.why_not)]
    recs: list[Recommendation] = []
    load = f"{obs.stable_qps:.0f} QPS" + (
        f" and a backlog of {obs.backlog_count:.0f}" if obs.backlog_count else ""
    )
    panic_need = _panic_need(inp, demand)
    if state.panic_until_at is not None:
        count = max(current, panic_need or 0)
        recs.append(
            Recommendation(
                Source.PANIC,
                RecommendationKind.AT_LEAST,
                count,
                f"panic until {state.panic_until_at:%H:%M:%S} UTC: recent demand needs {panic_need or up}; no scale-down",
            )
        )
    target = up if up > current else min(current, down)
    if (
        target == 0
        and state.zero_since_at is not None
        and now - state.zero_since_at < inp.workload.policy.scale_to_zero_after
    ):
        target = min(current, 1)
        load = f"no traffic since {state.zero_since_at:%H:%M:%S} UTC"
    recs.append(
        Recommendation(
            Source.REACTIVE,
            RecommendationKind.SET,
            target,
            f"{load} needs {target}" if target == up else f"{load} allows {target}",
            priority=REACTIVE_PRIORITY,
        )
    )
    return recs


def _holds(
    inp: WorkloadInput, plan: CapacityPlan, demand: Demand, forecast_ok: bool, current: int, now: datetime
) -> list[Recommendation]:
    """Reasons not to scale down although present load would allow it."""
    recs: list[Recommendation] = []

    def hold(source: Source, replicas: int, sentence: str) -> None:
        recs.append(Recommendation(source, RecommendationKind.AT_LEAST, replicas, sentence))

    policy = inp.workload.policy
    if demand.observation is None:
        hold(Source.GUARD, current, f"{demand.why_not}: missing data never scales down")
    elif demand.observation.window < policy.stable_window:
        seen = demand.observation.window.total_seconds()
        hold(
            Source.GUARD,
            current,
            f"only {seen:.0f} s observed since start: no scale-down before a stable window",
        )
    if inp.replicas is None:
        hold(Source.GUARD, current, "replicas could not be observed: no scale-down")
    elif demand.need_up is not None:
        warm = sum(r.warm for r in inp.replicas)
        if warm < min(demand.need_up, current):
            hold(Source.GUARD, current, f"{warm} of {demand.need_up} replicas for the present load are warm")
    if forecast_ok:
        lead_s = inp.lead.total_p95_s
        keep_s = lead_s if policy.break_even is None else max(lead_s, policy.break_even.total_seconds())
        need = need_between(plan, now, now + timedelta(seconds=keep_s))
        if need is not None:
            hold(
                Source.KEEP_WARM,
                min(current, need),
                f"the forecast needs {need} within {keep_s:.0f} s: keeping costs less than a cold start",
            )
    return recs


# ---------------------------------------------------------------- quota


def _share_quota(proposals: Sequence[Proposal], tick: TickInput) -> Mapping[str, Grant]:
    asks = [
        Ask(
            workload=p.inp.workload.name,
            pool=p.inp.workload.quota_pool,
            gpus_per_replica=p.inp.workload.profile.gpus_per_replica,
            priority=_priority(p.inp.workload, p.inp.events, p.contracts),
            current=p.current,
            needed=max(p.arbitration.floor, p.demand.need_up or 0),
            wanted=p.arbitration.replicas,
        )
        for p in proposals
        if p.inp.workload.quota_pool is not None and p.inp.workload.mode is not Mode.RECOMMEND
    ]
    return allocate(tick.pools, asks) if asks else {}


def _priority(w: Workload, events: Sequence[Event], contracts: Sequence[Contract]) -> int:
    """A workload ranks as high as its own priority and its events that are being served."""
    serving = {
        c.event_id for c in contracts if c.state not in {ContractState.PLANNED, ContractState.COMPLETED}
    }
    return max([w.priority, *(e.priority for e in events if e.id in serving)])


# ---------------------------------------------------------------- pass 2


def _finish(p: Proposal, grant: Grant | None, tick: TickInput) -> tuple[WorkloadState, list[Effect]]:
    now, w = tick.now, p.inp.workload
    recs, merged = p.recommendations, p.arbitration
    if grant is not None and grant.ceiling < merged.replicas:
        taken = f", {grant.preempted_by} has the higher priority" if grant.preempted_by else ""
        sentence = f"quota pool {w.quota_pool} has room for {grant.ceiling}{taken}"
        recs = (*recs, Recommendation(Source.QUOTA, RecommendationKind.AT_MOST, grant.ceiling, sentence))
        merged = arbitrate(recs, p.current)
    desired, hindrance = _pace(p, merged, now)
    reason = reasons.classify(
        p.current, desired, merged, hindrance, has_demand=p.demand.observation is not None
    )
    decision = Decision(
        id=f"{w.name}-{now:%Y%m%dT%H%M%S%f}",
        workload=w.name,
        at=now,
        mode=w.mode,
        current_replicas=p.current,
        desired_replicas=desired,
        warm_replicas=None if p.inp.replicas is None else sum(r.warm for r in p.inp.replicas),
        in_flight_replicas=None if p.inp.replicas is None else sum(r.in_flight for r in p.inp.replicas),
        reason=reason,
        binding=merged.binding.source if merged.binding else None,
        sentence=reasons.sentence(p.current, desired, merged, hindrance),
        recommendations=recs,
        conditions=reasons.conditions(
            p.inp, merged, p.demand.why_not, forecast_ok=p.forecast_ok, vetoed=merged.vetoed
        ),
        inputs=_inputs(p, now),
        demand_qps=p.demand.observation.stable_qps if p.demand.observation else None,
        need_replicas=p.demand.need_up,
        plan_revision=p.plan.revision,
        forecast_id=p.inp.forecast.id if p.inp.forecast else None,
        event_ids=tuple(e.id for e in sorted(p.inp.events, key=lambda e: (e.start_at, e.id))),
        limited_from=merged.limited_from,
    )
    alarms = _alarms(p, merged, now)
    state = _next_state(p, merged, decision, alarms, now)
    return state, _effects(p, decision, state, alarms, vetoed=merged.vetoed)


def _pace(p: Proposal, merged: Arbitration, now: datetime) -> tuple[int, str]:
    """Apply tolerance and behavior; floors are met at once and ceilings cut at once."""
    if merged.vetoed:
        return p.current, ""
    behavior = p.inp.workload.policy.behavior
    target, hindrance = merged.replicas, ""
    reactive = merged.binding is not None and merged.binding.source is Source.REACTIVE
    if reactive and p.current and abs(target / p.current - 1.0) <= behavior.tolerance and target != p.current:
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
    desired = max(paced.replicas, merged.floor)
    if merged.ceiling is not None:
        desired = min(desired, merged.ceiling)
    if desired != target:
        hindrance = "rate" if paced.rate_limited else "stabilization"
    return desired, hindrance


def _inputs(p: Proposal, now: datetime) -> tuple[InputAge, ...]:
    obs, band = p.inp.demand, p.inp.forecast
    return (
        InputAge("demand", (now - obs.at).total_seconds() if obs else None, p.demand.why_not),
        InputAge(
            "forecast",
            (now - band.origin_at).total_seconds() if band else None,
            f"{band.state if band else 'none'}, {p.inp.trust}",
        ),
        InputAge("replicas", None if p.inp.replicas is None else 0.0),
        InputAge("plan", (now - p.plan.created_at).total_seconds(), f"revision {p.plan.revision}"),
    )


def _alarms(p: Proposal, merged: Arbitration, now: datetime) -> tuple[Alarm, ...]:
    name = p.inp.workload.name
    alarms = [alarm for c in p.contracts for alarm in contract_alarms(name, c, now)]
    for replica, kind, sentence in broken_replicas(p.inp.replicas or (), p.inp.workload.policy, now):
        alarms.append(Alarm(kind, name, replica.id, sentence))
    if p.inp.trust is Trust.DISTRUSTED:
        sentence = f"The forecast of {name} has missed its recent record: scaling is reactive only until it recovers."
        alarms.append(Alarm(AlarmKind.FORECAST_DISTRUSTED, name, "", sentence))
    if p.demand.observation is None and p.current > 0:
        sentence = f"{name}: {p.demand.why_not}; holding {p.current} replicas, floors still apply."
        alarms.append(Alarm(AlarmKind.NO_DATA, name, "", sentence))
    if (
        merged.binding is not None
        and merged.binding.source is Source.QUOTA
        and not any(a.kind is AlarmKind.QUOTA_SHORT for a in alarms)
    ):
        alarms.append(Alarm(AlarmKind.QUOTA_SHORT, name, "", f"{name}: {merged.binding.sentence}."))
    return tuple(sorted(alarms, key=lambda a: a.key))


def _next_state(
    p: Proposal, merged: Arbitration, decision: Decision, alarms: tuple[Alarm, ...], now: datetime
) -> WorkloadState:
    behavior = p.inp.workload.policy.behavior
    keep_need = max(behavior.scale_up.stabilization_window, behavior.scale_down.stabilization_window)
    periods = [r.period for r in (*behavior.scale_up.policies, *behavior.scale_down.policies)]
    keep_change = max(periods, default=timedelta(0))
    # A clock that stepped back leaves entries in the future; they age out as time passes them again.
    needs = tuple(n for n in p.state.needs if now - n.at < keep_need)
    if not merged.vetoed:
        needs = (*needs, PastNeed(now, merged.replicas))
    changes = tuple(c for c in p.state.changes if now - c.at < keep_change)
    delta = decision.desired_replicas - p.current
    if delta:
        changes = (*changes, ScaleChange(now, delta))
    key = f"{decision.desired_replicas}/{decision.reason}/{'/'.join(str(c.ok) for c in decision.conditions)}"
    due = p.state.recorded_at is None or abs(now - p.state.recorded_at) >= HEARTBEAT
    record = decision.changes or key != p.state.recorded_key or due
    return WorkloadState(
        desired_replicas=decision.desired_replicas,
        changes=changes[-HISTORY_MAX:],
        needs=needs[-HISTORY_MAX:],
        panic_until_at=p.panic_until_at,
        zero_since_at=p.zero_since_at,
        plan=p.plan,
        contracts=p.contracts,
        alarms=alarms,
        recorded_key=key,
        recorded_at=now if record else p.state.recorded_at,
        last_at=now,
    )


def _effects(
    p: Proposal, decision: Decision, state: WorkloadState, alarms: Sequence[Alarm], *, vetoed: bool
) -> list[Effect]:
    effects: list[Effect] = []
    w = p.inp.workload
    if p.new_plan:
        effects.append(StorePlan(p.plan))
    # A scaling that did not take (a crash between record and act, a lost call) is asked for again.
    drifted = p.inp.observed_desired is not None and p.inp.observed_desired != decision.desired_replicas
    acts = w.mode is not Mode.RECOMMEND and not vetoed and (decision.changes or drifted)
    if state.recorded_at == decision.at or acts:
        effects.append(RecordDecision(decision))
    before = {a.key for a in p.state.alarms}
    after = {a.key for a in alarms}
    effects.extend(RaiseAlarm(a) for a in alarms if a.key not in before)
    effects.extend(ClearAlarm(a) for a in p.state.alarms if a.key not in after)
    if acts:
        effects.append(ScaleTo(w.name, decision.desired_replicas, decision.id))
    if w.mode is Mode.SCALE and not vetoed:
        for replica, _, sentence in broken_replicas(p.inp.replicas or (), w.policy, decision.at):
            effects.append(ReplaceReplica(w.name, replica.id, sentence))
    return effects
