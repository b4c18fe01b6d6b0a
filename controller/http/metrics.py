"""Metrics in Prometheus' exposition format: what this process knows, in names that stay.

Promises: names, labels and units are the table below, which a test compares with `docs/metrics.md`; the number of
series is bounded, per workload by a setting, and what is left out is counted; unknown is an absent sample, never 0.
Values per workload come from the process that leads; the others say so with ``forecrest_leader 0``. Called by the
side port; the API's guard reports calls.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import version
from typing import Final
from weakref import WeakKeyDictionary

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from controller.accuracy import HourScore
from controller.api.auth.roles import RULES
from controller.core.leadtime import LeadTime
from controller.core.types import (
    Contract,
    ContractState,
    Decision,
    DemandObservation,
    ForecastBand,
    NearDemand,
    QuotaPool,
    RecommendationKind,
    Source,
    Stage,
    Trust,
    Workload,
    WorkloadState,
)
from controller.notify.types import Backlog
from controller.ports import PoolView

SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
OTHER = "other"
# The lead at which coverage is shown: what a plan mostly lives on.
COVERAGE_LEAD_S = 3600.0


@dataclass(frozen=True, slots=True)
class Described:
    """One metric as it is documented. ``per_workload``: has the label workload and falls under the bound."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()

    @property
    def per_workload(self) -> bool:
        """Whether the number of its series grows with the workloads."""
        return "workload" in self.labels


def _table(*rows: tuple[str, str, str, str]) -> Mapping[str, Described]:
    made = [Described(f"forecrest_{n}", kind, text, tuple(labels.split())) for n, kind, labels, text in rows]
    return {metric.name: metric for metric in made}


# No label may be called job, instance, namespace, pod, service or endpoint: Prometheus gives its targets those, and
# would rename ours.
METRICS: Final = _table(
    ("build_info", "gauge", "version", "1, with the release."),
    ("leader", "gauge", "", "1 while this process leads, else 0."),
    ("shards", "gauge", "", "FORECREST_SHARDS of this process."),
    ("shards_held", "gauge", "", "Shards that this process leads; a single leader holds the one there is."),
    (
        "shards_disagree",
        "gauge",
        "",
        "1 while it leads nothing because of others with another FORECREST_SHARDS, or other cohorts.",
    ),
    ("workloads", "gauge", "", "Workloads of the newest tick."),
    ("workloads_hidden", "gauge", "", "Workloads left out here, beyond FORECREST_METRICS_WORKLOADS_MAX."),
    ("loop_last_tick_timestamp_seconds", "gauge", "", "When the newest tick ended."),
    (
        "loop_turn_age_seconds",
        "gauge",
        "task",
        "Since the task's last turn ended, also of a process that only follows.",
    ),
    ("loop_turn_duration_seconds", "gauge", "task", "How long the task's newest turn took."),
    ("loop_failures_total", "counter", "task", "Turns that failed."),
    ("loop_pending_samples", "gauge", "", "Minutes of traffic that wait for the database."),
    ("database_up", "gauge", "", "1 while the database answers this process, else 0."),
    (
        "http_connections_refused_total",
        "counter",
        "",
        "Connections to this port beyond its limit, answered 503.",
    ),
    ("orders_total", "counter", "result", "Orders of replica counts that the actuator accepted or refused."),
    ("quota_pool_nominal_gpus", "gauge", "pool", "GPUs the pool owns."),
    ("quota_pool_desired_gpus", "gauge", "pool", "GPUs that the desired replicas of its workloads take."),
    ("workload_info", "gauge", "workload workload_namespace mode", "1, with whose it is and who acts."),
    ("workload_min_replicas", "gauge", "workload", "Fewest replicas it may have."),
    ("workload_max_replicas", "gauge", "workload", "Most replicas it may have, events apart."),
    ("alarms", "gauge", "workload kind", "Alarms of this kind that stand; none, no sample."),
    ("replicas", "gauge", "workload stage", "Observed replicas in each stage."),
    ("demand_requests_per_second", "gauge", "workload", "Demand the newest decision was made with."),
    (
        "demand_reporting_ratio",
        "gauge",
        "workload",
        "Share of replicas that answered when demand was last seen.",
    ),
    ("demand_observed_timestamp_seconds", "gauge", "workload", "When demand was last seen."),
    ("decision_timestamp_seconds", "gauge", "workload", "When the newest recorded decision was made."),
    ("decision_current_replicas", "gauge", "workload", "Replicas it started from."),
    ("decision_desired_replicas", "gauge", "workload", "Replicas it asks for."),
    ("decision_needed_replicas", "gauge", "workload", "Replicas that present demand needs."),
    ("decision_reason", "gauge", "workload reason", "1 for the reason it names."),
    ("decision_condition", "gauge", "workload type", "1 if the condition holds, as in HPA, else 0."),
    (
        "decision_condition_reason",
        "gauge",
        "workload type reason",
        "1 for the reason why the condition is as it is.",
    ),
    ("decision_recommended_replicas", "gauge", "workload source kind", "What each source recommends."),
    ("plan_revision", "gauge", "workload", "Revision of the capacity plan in force."),
    ("plan_floor_replicas", "gauge", "workload", "Floor that the plan sets now."),
    ("event_floor_replicas", "gauge", "workload", "Floor that traffic events set now."),
    (
        "event_state",
        "gauge",
        "workload event state",
        "1 for the state of its contract; of the event prepared last, or else the next one, as all of event_.",
    ),
    ("event_order_timestamp_seconds", "gauge", "workload", "When its prewarm begins."),
    ("event_deadline_timestamp_seconds", "gauge", "workload", "When its replicas must be warm."),
    ("event_start_timestamp_seconds", "gauge", "workload", "When it starts."),
    ("event_end_timestamp_seconds", "gauge", "workload", "When it ends."),
    (
        "event_expected_warm_timestamp_seconds",
        "gauge",
        "workload",
        "When its last replica should be warm, by the lead-time model.",
    ),
    ("event_wanted_replicas", "gauge", "workload", "Replicas it needs warm."),
    ("event_stage_replicas", "gauge", "workload stage", "Replicas at or past each stage of its contract."),
    ("event_shortfall_replicas", "gauge", "workload", "What max_replicas or quota cuts off."),
    ("lead_time_p95_seconds", "gauge", "workload", "From an order to a warm replica, 95th percentile."),
    ("forecast_demand_requests_per_second", "gauge", "workload level", "Forecast for now."),
    (
        "forecast_near_requests_per_second",
        "gauge",
        "workload level",
        "What demand may reach within the lead time.",
    ),
    ("forecast_origin_timestamp_seconds", "gauge", "workload", "End of the data the forecast was made from."),
    ("refits_due", "gauge", "", "Forecasts that the present round of refits found due, or the last one."),
    ("refits_done", "gauge", "", "Those of them that the round is through with."),
    (
        "refits_total",
        "counter",
        "result",
        "Refits by what became of them: made, no_history, waits (for the store), failed.",
    ),
    ("forecast_state", "gauge", "workload state", "1 for the state of the forecast."),
    ("forecast_trust", "gauge", "workload trust", "1 for what its record says of it."),
    (
        "accuracy_bias_ratio",
        "gauge",
        "workload lead_seconds",
        "Error over demand in the newest scored hour; above 0 is too high.",
    ),
    (
        "accuracy_naive_ratio",
        "gauge",
        "workload lead_seconds",
        "Loss over that of yesterday's values; below 1 is better.",
    ),
    (
        "accuracy_coverage_ratio",
        "gauge",
        "workload level",
        "Share of steps at or below the quantile of this level, one hour ahead.",
    ),
    ("api_calls_total", "counter", "method code", "Calls that ended."),
    ("api_call_duration_seconds", "histogram", "method", "How long calls took; streams their whole life."),
    ("api_streams", "gauge", "", "Watch streams that are open."),
    (
        "security_source_failed",
        "gauge",
        "source",
        "1 while the newest version of a security file or key set cannot be used.",
    ),
    ("tls_certificate_expiry_timestamp_seconds", "gauge", "", "When the server's certificate ends."),
    ("audit_pending_entries", "gauge", "", "Audit entries that wait for the database."),
    (
        "notifications_total",
        "counter",
        "sink outcome",
        "Attempts of notifications: delivered, retried, dead.",
    ),
    ("notifications_pending", "gauge", "sink", "Notifications that the sink has not got yet."),
    ("notifications_dead", "gauge", "sink", "Notifications given up in the last 30 days."),
    ("notifications_oldest_timestamp_seconds", "gauge", "sink", "When the oldest pending one happened."),
)


# A port that finds its address taken is opened on another one: the registry knows the counter by then.
_REFUSED: WeakKeyDictionary[CollectorRegistry, Counter] = WeakKeyDictionary()


def refused_connections(registry: CollectorRegistry) -> Counter:
    """Return what counts connections that were turned away; one of each registry."""
    if registry not in _REFUSED:
        described = METRICS["forecrest_http_connections_refused_total"]
        _REFUSED[registry] = Counter(described.name, described.help, registry=registry)
    return _REFUSED[registry]


class ApiMetrics:
    """What the guard reports of calls."""

    def __init__(self, registry: CollectorRegistry) -> None:
        calls, duration = METRICS["forecrest_api_calls_total"], METRICS["forecrest_api_call_duration_seconds"]
        self._calls = Counter(calls.name, calls.help, calls.labels, registry=registry)
        self._duration = Histogram(
            duration.name, duration.help, duration.labels, buckets=SECONDS_BUCKETS, registry=registry
        )
        self._series: dict[tuple[str, str], tuple[Counter, Histogram]] = {}

    def observe(self, method: str, code: str, seconds: float) -> None:
        """Take a call that ended. Methods without a rule share one label: callers make names up."""
        name = method.removeprefix("/") if method in RULES else OTHER
        series = self._series.get((name, code))
        if (
            series is None
        ):  # as many as methods and codes; looking them up each time would cost more than counting
            series = self._calls.labels(name, code), self._duration.labels(name)
            self._series[name, code] = series
        series[0].inc()
        series[1].observe(seconds)


@dataclass(frozen=True, slots=True)
class State:
    """What the process knows at one moment: copies, so that another thread can render them."""

    now: datetime
    leader: bool = False
    shards: int = 1
    shards_held: int = 0
    waits: bool = False
    tick_at: datetime | None = None
    turn_ages_s: Mapping[str, float] = field(default_factory=dict[str, float])
    turn_durations_s: Mapping[str, float] = field(default_factory=dict[str, float])
    failures: Mapping[str, int] = field(default_factory=dict[str, int])
    database_up: bool | None = None  # None: never seen yet
    orders: Mapping[str, int] = field(default_factory=dict[str, int])
    pools: Sequence[QuotaPool] = ()
    workloads: Mapping[str, Workload] = field(default_factory=dict[str, Workload])
    states: Mapping[str, WorkloadState] = field(default_factory=dict[str, WorkloadState])
    demands: Mapping[str, DemandObservation] = field(default_factory=dict[str, DemandObservation])
    pending_minutes: int = 0
    leads: Mapping[str, LeadTime] = field(default_factory=dict[str, LeadTime])
    views: Mapping[str, PoolView] = field(default_factory=dict[str, PoolView])
    decisions: Mapping[str, Decision] = field(default_factory=dict[str, Decision])
    bands: Mapping[str, ForecastBand] = field(default_factory=dict[str, ForecastBand])
    near: Mapping[str, NearDemand] = field(default_factory=dict[str, NearDemand])
    trust: Mapping[str, Trust] = field(default_factory=dict[str, Trust])
    scores: Mapping[str, HourScore] = field(default_factory=dict[str, HourScore])
    refit_round: tuple[int, int] | None = None  # due, done
    refits: Mapping[str, int] = field(default_factory=dict[str, int])
    stream_count: int = 0
    security_failures: Mapping[str, bool] = field(default_factory=dict[str, bool])
    certificate_expires_at: datetime | None = None
    audit_pending: int = 0
    told: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    untold: Mapping[str, Backlog] = field(default_factory=dict[str, Backlog])


Sample = tuple[str, tuple[str, ...], float | None]


class StateCollector(Collector):
    """Turns the state of the moment into samples."""

    def __init__(self, state: Callable[[], State], workloads_max: int) -> None:
        self._state, self._workloads_max = state, workloads_max

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield every metric that has a sample now."""
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for short, labels, value in self._samples(self._state()):
            if value is None:
                continue
            metric = METRICS[f"forecrest_{short}"]
            if metric.name not in families:
                make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                families[metric.name] = make(metric.name, metric.help, labels=metric.labels)
            families[metric.name].add_metric(labels, value)
        yield from families.values()

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing: names are registered when they have samples."""
        return ()

    def _samples(self, state: State) -> Iterator[Sample]:
        names = sorted(state.leads)
        yield "build_info", (version("forecrest"),), 1.0
        yield "leader", (), float(state.leader)
        yield "shards", (), float(state.shards)
        yield "shards_held", (), float(state.shards_held)
        yield "shards_disagree", (), float(state.waits)
        yield "workloads", (), float(len(names))
        yield "workloads_hidden", (), float(max(0, len(names) - self._workloads_max))
        yield "loop_last_tick_timestamp_seconds", (), _timestamp(state.tick_at)
        for job, age_s in state.turn_ages_s.items():
            yield "loop_turn_age_seconds", (job,), age_s
        for job, took_s in state.turn_durations_s.items():
            yield "loop_turn_duration_seconds", (job,), took_s
        for job, count in state.failures.items():
            yield "loop_failures_total", (job,), float(count)
        yield "loop_pending_samples", (), float(state.pending_minutes)
        yield "database_up", (), _number(state.database_up)
        for result, count in state.orders.items():
            yield "orders_total", (result,), float(count)
        yield from _pools(state)
        yield from _refits(state)
        yield "api_streams", (), float(state.stream_count)
        for source, failed in state.security_failures.items():
            yield "security_source_failed", (source,), float(failed)
        yield "tls_certificate_expiry_timestamp_seconds", (), _timestamp(state.certificate_expires_at)
        yield "audit_pending_entries", (), float(state.audit_pending)
        for labels, count in state.told.items():
            yield "notifications_total", labels, float(count)
        for sink, backlog in state.untold.items():
            yield "notifications_pending", (sink,), float(backlog.pending_count)
            yield "notifications_dead", (sink,), float(backlog.dead_count)
            yield "notifications_oldest_timestamp_seconds", (sink,), _timestamp(backlog.oldest_at)
        for name in names[: self._workloads_max]:
            yield "lead_time_p95_seconds", (name,), state.leads[name].total_p95_s
            yield from _spec(state.workloads.get(name))
            yield from _replicas(name, state.views.get(name))
            yield from _seen(name, state.demands.get(name))
            yield from _standing(name, state.states.get(name), state.now)
            yield from _decision(name, state.decisions.get(name))
            yield from _forecast(name, state)
            yield from _accuracy(name, state.scores.get(name))


def _refits(state: State) -> Iterator[Sample]:
    if state.refit_round is not None:
        due, done = state.refit_round
        yield "refits_due", (), float(due)
        yield "refits_done", (), float(done)
    for result, count in state.refits.items():
        yield "refits_total", (result,), float(count)


def _timestamp(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()


def _replicas(name: str, view: PoolView | None) -> Iterator[Sample]:
    if view is None:
        return
    counts: dict[str, int] = {}
    for replica in view.replicas:
        counts[replica.stage] = counts.get(replica.stage, 0) + 1
    for stage, count in counts.items():
        yield "replicas", (name, stage), float(count)


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)


def _pools(state: State) -> Iterator[Sample]:
    desired: Tally[str] = Tally()
    for name, workload in state.workloads.items():
        if workload.quota_pool is not None and name in state.decisions:
            replicas = state.decisions[name].desired_replicas
            desired[workload.quota_pool] += replicas * workload.profile.gpus_per_replica
    for pool in state.pools:
        yield "quota_pool_nominal_gpus", (pool.name,), float(pool.nominal_gpus)
        if state.leader:
            yield "quota_pool_desired_gpus", (pool.name,), float(desired[pool.name])


def _spec(workload: Workload | None) -> Iterator[Sample]:
    if workload is None:
        return
    yield "workload_info", (workload.name, workload.namespace, workload.mode), 1.0
    yield "workload_min_replicas", (workload.name,), float(workload.min_replicas)
    yield "workload_max_replicas", (workload.name,), float(workload.max_replicas)


def _seen(name: str, demand: DemandObservation | None) -> Iterator[Sample]:
    if demand is None:
        return
    yield "demand_observed_timestamp_seconds", (name,), demand.at.timestamp()
    if demand.expected_count:
        yield "demand_reporting_ratio", (name,), demand.reporting_count / demand.expected_count


def _standing(name: str, state: WorkloadState | None, now: datetime) -> Iterator[Sample]:
    """Alarms, and the contract of one event: a workload with a hundred of them has no more series."""
    if state is None:
        return
    for kind, count in Tally(alarm.kind for alarm in state.alarms).items():
        yield "alarms", (name, kind), float(count)
    contract = _foremost(state.contracts, now)
    if contract is None:
        return
    yield "event_state", (name, contract.event_id, contract.state), 1.0
    yield "event_order_timestamp_seconds", (name,), contract.order_at.timestamp()
    yield "event_deadline_timestamp_seconds", (name,), contract.deadline_at.timestamp()
    yield "event_start_timestamp_seconds", (name,), contract.start_at.timestamp()
    yield "event_end_timestamp_seconds", (name,), contract.end_at.timestamp()
    yield "event_expected_warm_timestamp_seconds", (name,), _timestamp(contract.expected_warm_at)
    yield "event_wanted_replicas", (name,), float(contract.replicas)
    yield "event_shortfall_replicas", (name,), float(contract.shortfall_replicas)
    for stage, count in (
        (Stage.ORDERED, contract.ordered_count),
        (Stage.SCHEDULED, contract.scheduled_count),
        (Stage.LOADED, contract.loaded_count),
        (Stage.WARMED, contract.warmed_count),
        (Stage.VERIFIED, contract.verified_count),
    ):
        yield "event_stage_replicas", (name, stage), float(count)


def _foremost(contracts: Iterable[Contract], now: datetime) -> Contract | None:
    """Of events not over, the one whose prewarm began last, or else the one whose prewarm begins next."""
    alive = [c for c in contracts if c.state is not ContractState.COMPLETED and now < c.end_at]
    begun = [c for c in alive if c.order_at <= now]
    if begun:
        return max(begun, key=lambda c: (c.order_at, c.event_id))
    return min(alive, key=lambda c: (c.order_at, c.event_id), default=None)


def _decision(name: str, decision: Decision | None) -> Iterator[Sample]:
    if decision is None:
        return
    yield "demand_requests_per_second", (name,), decision.demand_qps
    yield "decision_timestamp_seconds", (name,), decision.at.timestamp()
    yield "decision_current_replicas", (name,), float(decision.current_replicas)
    yield "decision_desired_replicas", (name,), float(decision.desired_replicas)
    yield "decision_needed_replicas", (name,), _number(decision.need_replicas)
    yield "decision_reason", (name, decision.reason), 1.0
    yield "plan_revision", (name,), _number(decision.plan_revision)
    for condition in decision.conditions:
        yield "decision_condition", (name, condition.type), float(condition.ok)
        yield "decision_condition_reason", (name, condition.type, condition.reason), 1.0
    floors: dict[Source, int] = {}
    highest: dict[tuple[str, str], int] = {}
    for one in decision.recommendations:
        if one.replicas is None:
            continue
        key = (one.source, one.kind)
        highest[key] = max(highest.get(key, 0), one.replicas)
        if one.kind is RecommendationKind.AT_LEAST:
            floors[one.source] = max(floors.get(one.source, 0), one.replicas)
    for (source, kind), replicas in highest.items():
        yield "decision_recommended_replicas", (name, source, kind), float(replicas)
    yield "plan_floor_replicas", (name,), _number(floors.get(Source.PLAN))
    yield "event_floor_replicas", (name,), _number(floors.get(Source.EVENT))


def _forecast(name: str, state: State) -> Iterator[Sample]:
    if name in state.trust:
        yield "forecast_trust", (name, state.trust[name]), 1.0
    near = state.near.get(name)
    if near is not None:
        for level, qps in zip(near.levels, near.qps, strict=True):
            yield "forecast_near_requests_per_second", (name, f"{level:g}"), qps
    band = state.bands.get(name)
    if band is None:
        return
    yield "forecast_origin_timestamp_seconds", (name,), band.origin_at.timestamp()
    yield "forecast_state", (name, band.state), 1.0
    row = (state.now - band.start_at) // band.step
    if 0 <= row < len(band.qps):
        for level, qps in zip(band.levels, band.qps[row], strict=True):
            yield "forecast_demand_requests_per_second", (name, f"{level:g}"), qps


def _accuracy(name: str, hour: HourScore | None) -> Iterator[Sample]:
    if hour is None:
        return
    for score in hour.leads:
        lead_s = score.lead.total_seconds()
        yield "accuracy_bias_ratio", (name, f"{lead_s:g}"), score.bias
        yield "accuracy_naive_ratio", (name, f"{lead_s:g}"), score.daily.ratio
        if lead_s == COVERAGE_LEAD_S and score.step_count:
            for level, covered in zip(hour.levels, score.covered, strict=True):
                yield "accuracy_coverage_ratio", (name, f"{level:g}"), covered / score.step_count


def new_registry() -> CollectorRegistry:
    """A registry of our own: what libraries register in the default one is not ours to publish."""
    # A second sample per series, which says when this process first counted it: nobody here asks.
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    return CollectorRegistry()
