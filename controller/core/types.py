"""Values the decision core speaks in. Pure: frozen data, no clock, no I/O.

Promises: every value is immutable, every datetime is aware UTC, every unknown is ``None`` or a named
state and never 0. Refuses nothing itself; validation happens at the edge, before values get here.
Called by everything: the core decides with these, the shell observes and records them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from controller.core.leadtime import DEFAULT_LEAD_TIME, LeadTime


class Mode(StrEnum):
    """How far a workload's decisions reach, so that adoption can be gradual."""

    RECOMMEND = "RECOMMEND"  # publish decisions, touch nothing
    FLOOR = "FLOOR"  # raise the minimum of an autoscaler that stays in charge
    SCALE = "SCALE"  # own the replica count
    KEDA = "KEDA"  # KEDA pulls the decision


class Precision(StrEnum):
    """Number format of an engine's weights."""

    FP32 = "FP32"
    FP16 = "FP16"
    BF16 = "BF16"
    INT8 = "INT8"


@dataclass(frozen=True, slots=True)
class CapacityProfile:
    """What one warm replica sustains, measured, per engine and GPU type.

    ``qps_max`` is throughput at full batches. ``instance_count`` batches are in service at once, each of
    up to ``batch_size_max`` requests; a full batch takes ``instance_count * batch_size_max / qps_max``
    seconds. ``service_scv`` is the squared coefficient of variation of a batch's service time.
    """

    engine: str
    gpu_type: str
    qps_max: float
    instance_count: int = 1
    batch_size_max: int = 1
    service_scv: float = 0.25
    queue_delay_max_s: float = 0.0
    gpus_per_replica: int = 1
    precision: Precision = Precision.FP32


@dataclass(frozen=True, slots=True)
class Slo:
    """What users were promised: a request waits at most ``wait_s`` with probability ``1 - wait_exceed_share``."""

    wait_s: float = 0.5
    wait_exceed_share: float = 0.001
    latency_ms_p99: float = 500.0


class PolicyType(StrEnum):
    """Unit of a scaling policy's value, as in HPA."""

    PODS = "PODS"
    PERCENT = "PERCENT"


class SelectPolicy(StrEnum):
    """Which of several scaling policies counts, as in HPA."""

    MAX = "MAX"
    MIN = "MIN"
    DISABLED = "DISABLED"


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """At most ``value`` replicas (or percent) of change in any ``period``."""

    type: PolicyType
    value: int
    period: timedelta


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """One direction of the behavior: how long to look back, how fast to move."""

    stabilization_window: timedelta
    select_policy: SelectPolicy = SelectPolicy.MAX
    policies: tuple[ScalingPolicy, ...] = ()


@dataclass(frozen=True, slots=True)
class Behavior:
    """HPA-style behavior. ``tolerance`` never applies to a floor: a floor is reached exactly."""

    scale_up: ScalingRules = ScalingRules(timedelta(0))
    scale_down: ScalingRules = ScalingRules(timedelta(minutes=5))
    tolerance: float = 0.0


@dataclass(frozen=True, slots=True)
class Policy:
    """How cautious to be for one workload. Costs are per replica-hour, in any one currency."""

    # newsvendor: the demand quantile to serve is cost_under / (cost_under + cost_over); by default P99.9, which is
    # also what the simulator serves unless told otherwise
    cost_under_per_hour: float = 999.0
    cost_over_per_hour: float = 1.0
    behavior: Behavior = Behavior()
    stable_window: timedelta = timedelta(seconds=60)
    panic_window: timedelta = timedelta(seconds=6)
    # panic when demand in the panic window needs at least this share of the ready replicas
    panic_threshold: float = 2.0
    drain_target: timedelta = timedelta(seconds=30)
    signal_age_max: timedelta = timedelta(seconds=60)
    forecast_age_max: timedelta = timedelta(hours=3)
    # share of replicas that must have answered for their sum to stand for the workload
    quorum: float = 0.5
    scale_to_zero_after: timedelta = timedelta(minutes=30)
    # idle time that costs as much as one cold start; None: derived from the lead time
    break_even: timedelta | None = None
    prewarm_margin: timedelta = timedelta(seconds=30)
    # ordering and seeing happen only at ticks: what a tick's period may cost, at both ends
    tick_slack: timedelta = timedelta(seconds=15)
    order_timeout: timedelta = timedelta(minutes=15)
    # a floor held for an event begins to decay when demand stayed this far under it, this long
    fizzle_share: float = 0.5
    fizzle_after: timedelta = timedelta(minutes=15)
    fizzle_half_life: timedelta = timedelta(minutes=10)
    # share of a planner's stated peak that is prepared for, whatever the forecast has learnt of such events
    planner_floor_share: float = 1.0
    # events up to this long hold one floor throughout, so that a dip inside never cuts capacity
    hold_max: timedelta = timedelta(hours=4)
    # inter-arrival burstiness (squared coefficient of variation); 1 is Poisson
    arrival_scv: float = 1.0


@dataclass(frozen=True, slots=True)
class Workload:
    """One scalable Triton deployment serving one model."""

    name: str
    model_name: str
    profiles: tuple[CapacityProfile, ...]
    min_replicas: int = 1
    max_replicas: int = 10
    slo: Slo = Slo()
    policy: Policy = Policy()
    mode: Mode = Mode.SCALE
    priority: int = 0
    quota_pool: str | None = None
    namespace: str = "default"
    # actuator-specific address, for example {"kind": "Deployment", "name": "recommender"}
    target: Mapping[str, str] = field(default_factory=dict[str, str])
    model_version: str = "1"
    engine_digest: str | None = None
    labels: tuple[tuple[str, str], ...] = ()  # free, for people to find it by
    # PromQL whose one result is the demand in QPS; None: the replicas' own counters tell it
    demand_query: str | None = None
    # IANA zone whose clock its users keep; None: not told, forecasts follow changes of clocks that demand shows
    time_zone: str | None = None
    generation: int = 1

    @property
    def profile(self) -> CapacityProfile:
        """The profile new replicas are ordered with: the first listed."""
        return self.profiles[0]


class Stage(StrEnum):
    """Where a replica stands between its order and its end. The first five form the deadline contract."""

    ORDERED = "ORDERED"
    SCHEDULED = "SCHEDULED"  # a process or pod exists
    LOADED = "LOADED"  # the server is live and the model is loaded
    WARMED = "WARMED"  # warm-up inferences have run
    VERIFIED = "VERIFIED"  # the right engine answers within the SLO: this replica is warm
    DRAINING = "DRAINING"
    FAILED = "FAILED"


STAGE_ORDER: tuple[Stage, ...] = (Stage.ORDERED, Stage.SCHEDULED, Stage.LOADED, Stage.WARMED, Stage.VERIFIED)
_IN_FLIGHT = frozenset(STAGE_ORDER) - {Stage.VERIFIED}


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica as observed."""

    id: str
    stage: Stage
    ordered_at: datetime
    stage_at: datetime  # when the present stage was reached
    profile: CapacityProfile | None = None  # None: the workload's first profile
    failure: str | None = None
    endpoint: str | None = None  # host:port of its gRPC port
    metrics_url: str | None = None
    stage_s: Mapping[str, float] = field(default_factory=dict[str, float])  # measured stage durations

    @property
    def warm(self) -> bool:
        """Whether it counts as capacity now."""
        return self.stage is Stage.VERIFIED

    @property
    def in_flight(self) -> bool:
        """Whether it is capacity to come."""
        # Most are warm, and a member of an enum takes a call to be hashed.
        return self.stage is not Stage.VERIFIED and self.stage in _IN_FLIGHT


@dataclass(frozen=True, slots=True)
class DemandObservation:
    """What replicas reported lately, already averaged over the two windows.

    ``stable_qps`` and ``panic_qps`` are offered demand per second; ``backlog_count`` is requests waiting.
    ``reporting_count`` of ``expected_count`` replicas answered: below the quorum the value does not stand
    for the workload. Zero with a quorum is *verified* zero traffic: data, not absence.
    """

    at: datetime
    stable_qps: float
    panic_qps: float | None
    backlog_count: float
    reporting_count: int
    expected_count: int
    # how much of the stable window observations cover; below it, nothing may be scaled down
    window: timedelta


class ForecastState(StrEnum):
    """Whether a forecast can carry a plan."""

    READY = "READY"
    DEGRADED = "DEGRADED"
    INSUFFICIENT_HISTORY = "INSUFFICIENT_HISTORY"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class ForecastBand:
    """Demand quantiles over a horizon: ``qps[i][j]`` for ``[start_at + i*step, +step)`` at ``levels[j]``."""

    id: str
    origin_at: datetime  # end of the last observed bucket
    start_at: datetime  # start of the first forecast bucket
    step: timedelta
    levels: tuple[float, ...]
    qps: tuple[tuple[float, ...], ...]
    state: ForecastState
    event_ids: frozenset[str] = frozenset()  # events whose effect it already contains
    reasons: tuple[str, ...] = ()

    @property
    def end_at(self) -> datetime:
        """End of the last forecast bucket."""
        return self.start_at + self.step * len(self.qps)


@dataclass(frozen=True, slots=True)
class NearDemand:
    """Quantiles of the highest demand from ``at`` until what is ordered then is warm: ``qps[j]`` at ``levels[j]``.

    Calibrated at that horizon every minute, so it is far tighter than a refit's quantiles an hour on.
    """

    at: datetime
    lead: timedelta  # the lead time it was made for
    levels: tuple[float, ...]
    qps: tuple[float, ...]


class Trust(StrEnum):
    """Whether the forecast may set floors, by its own recent record."""

    TRUSTED = "TRUSTED"
    UNPROVEN = "UNPROVEN"  # too few scored minutes; floors count, scale-down does not lean on it
    DISTRUSTED = "DISTRUSTED"


@dataclass(frozen=True, slots=True)
class Event:
    """One occurrence of a traffic event as it concerns one workload; recurrence is expanded before."""

    id: str  # unique per occurrence
    start_at: datetime
    end_at: datetime
    expected_peak_qps: float | None = None
    expected_multiplier: float | None = None
    category: str = ""
    confidence: float = 0.8
    ramp: timedelta = timedelta(0)
    margin: timedelta | None = None
    lead_override: timedelta | None = None
    max_replicas_override: int | None = None
    priority: int = 0
    revision: int = 1


class OverrideKind(StrEnum):
    """What an operator's override says."""

    SET = "SET"
    AT_LEAST = "AT_LEAST"
    AT_MOST = "AT_MOST"
    PAUSE = "PAUSE"


@dataclass(frozen=True, slots=True)
class Override:
    """An operator's word, with an end. ``replicas`` is None for PAUSE."""

    id: str
    kind: OverrideKind
    replicas: int | None
    expires_at: datetime
    reason: str
    created_by: str = ""


class RecommendationKind(StrEnum):
    """What one source asks for."""

    SET = "SET"
    AT_LEAST = "AT_LEAST"
    AT_MOST = "AT_MOST"
    VETO = "VETO"
    ABSTAIN = "ABSTAIN"


class Source(StrEnum):
    """Who recommends. Their order here is the order ties are explained in."""

    PAUSE = "PAUSE"
    OVERRIDE = "OVERRIDE"
    EVENT = "EVENT"
    PLAN = "PLAN"
    PANIC = "PANIC"
    REACTIVE = "REACTIVE"
    KEEP_WARM = "KEEP_WARM"
    GUARD = "GUARD"  # start-up, missing data, scale-up still incomplete
    MIN = "MIN"
    MAX = "MAX"
    QUOTA = "QUOTA"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """One source's opinion and its reason, in words."""

    source: Source
    kind: RecommendationKind
    replicas: int | None
    sentence: str
    priority: int = 0  # among SETs only: the highest wins


class Reason(StrEnum):
    """Closed list of why a decision came out as it did. Stored and served; never renamed."""

    PAUSED = "PAUSED"
    OVERRIDE = "OVERRIDE"
    EVENT_FLOOR = "EVENT_FLOOR"
    PLAN_FLOOR = "PLAN_FLOOR"
    PANIC = "PANIC"
    REACTIVE_UP = "REACTIVE_UP"
    REACTIVE_DOWN = "REACTIVE_DOWN"
    KEEP_WARM = "KEEP_WARM"
    STABILIZING = "STABILIZING"
    RATE_LIMITED = "RATE_LIMITED"
    WITHIN_TOLERANCE = "WITHIN_TOLERANCE"
    GUARDED = "GUARDED"
    MIN_REPLICAS = "MIN_REPLICAS"
    MAX_REPLICAS = "MAX_REPLICAS"
    QUOTA = "QUOTA"
    NO_DATA = "NO_DATA"
    STEADY = "STEADY"
    SCALED_TO_ZERO = "SCALED_TO_ZERO"


class ConditionType(StrEnum):
    """As in HPA."""

    ABLE_TO_SCALE = "ABLE_TO_SCALE"
    SCALING_ACTIVE = "SCALING_ACTIVE"
    SCALING_LIMITED = "SCALING_LIMITED"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a workload, with a reason a person can act on."""

    type: ConditionType
    ok: bool  # for SCALING_LIMITED, True means limited, as in HPA
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Floor:
    """One dated floor of a plan: from ``order_at`` (lead time already walked back) until ``until_at``."""

    replicas: int
    order_at: datetime
    needed_at: datetime
    until_at: datetime
    reason: str
    event_id: str | None = None
    demand_qps: float | None = None
    unmet_replicas: int = 0  # what max_replicas or quota cut off, known at plan time
    base_qps: float | None = None  # present demand that a multiplier was applied to, where it was


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """Immutable revision of dated floors for one workload."""

    workload: str
    revision: int
    created_at: datetime
    floors: tuple[Floor, ...]
    forecast_id: str | None
    # forecast need per step, for the keep-warm rule and for people to look at
    start_at: datetime
    step: timedelta
    need: tuple[int, ...]
    quantile: float
    digest: str = ""  # same inputs, same digest: an unchanged plan is not stored again


class ContractState(StrEnum):
    """Life of an event's deadline contract: N replicas verified warm by ``deadline_at``."""

    PLANNED = "PLANNED"  # not yet time to order
    PREWARMING = "PREWARMING"
    AT_RISK = "AT_RISK"  # will be late by the lead-time model; there is still time to act
    WARM = "WARM"  # met, event not started
    ACTIVE = "ACTIVE"  # started with the contract met
    SHORT = "SHORT"  # deadline passed below N
    FIZZLED = "FIZZLED"  # demand stayed far under the floor, which decays
    COMPLETED = "COMPLETED"


@dataclass(frozen=True, slots=True)
class Contract:
    """Progress of one event's prewarm for one workload. Counts are replicas at or past each stage."""

    event_id: str
    revision: int
    state: ContractState
    replicas: int
    order_at: datetime
    deadline_at: datetime
    start_at: datetime
    end_at: datetime
    ordered_count: int = 0
    scheduled_count: int = 0
    loaded_count: int = 0
    warmed_count: int = 0
    verified_count: int = 0
    expected_warm_at: datetime | None = None
    shortfall_replicas: int = 0
    met_at: datetime | None = None
    under_since_at: datetime | None = None  # demand has stayed under the fizzle share since then


class AlarmKind(StrEnum):
    """What needs a person."""

    PREWARM_LATE = "PREWARM_LATE"
    PREWARM_MISSED = "PREWARM_MISSED"
    QUOTA_SHORT = "QUOTA_SHORT"
    ORDER_STUCK = "ORDER_STUCK"
    WRONG_ENGINE = "WRONG_ENGINE"
    FORECAST_DISTRUSTED = "FORECAST_DISTRUSTED"
    NO_DATA = "NO_DATA"
    EVENT_FIZZLED = "EVENT_FIZZLED"


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm stands while its cause does; the same key is the same alarm."""

    kind: AlarmKind
    workload: str
    subject: str  # an event id, a replica id or ""
    sentence: str

    @property
    def key(self) -> str:
        """Identity across ticks and leaders."""
        return f"{self.kind}/{self.workload}/{self.subject}"


@dataclass(frozen=True, slots=True)
class InputAge:
    """One input of a decision and how old it was; None: it was not there."""

    name: str
    age_s: float | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """The arbitrated result for one workload at one tick, complete enough to answer "why" at any time."""

    id: str
    workload: str
    at: datetime
    mode: Mode
    current_replicas: int
    desired_replicas: int
    warm_replicas: int | None
    in_flight_replicas: int | None
    reason: Reason
    binding: Source | None
    sentence: str
    recommendations: tuple[Recommendation, ...]
    conditions: tuple[Condition, ...]
    inputs: tuple[InputAge, ...]
    demand_qps: float | None
    need_replicas: int | None
    plan_revision: int | None
    forecast_id: str | None
    event_ids: tuple[str, ...]
    limited_from: int | None = None  # what it would have been without the ceiling

    @property
    def changes(self) -> bool:
        """Whether it asks for another count than before."""
        return self.current_replicas != self.desired_replicas


@dataclass(frozen=True, slots=True)
class ScaleChange:
    """One past change of our own desired count."""

    at: datetime
    delta: int


@dataclass(frozen=True, slots=True)
class PastNeed:
    """One past proposal, kept for the stabilization windows."""

    at: datetime
    replicas: int


@dataclass(frozen=True, slots=True)
class WorkloadState:
    """What the core remembers of a workload between ticks; stored, so that a new leader continues from it."""

    desired_replicas: int | None = None  # None: nothing decided yet, adopt what is observed
    changes: tuple[ScaleChange, ...] = ()
    needs: tuple[PastNeed, ...] = ()
    panic_until_at: datetime | None = None
    zero_since_at: datetime | None = None
    plan: CapacityPlan | None = None
    contracts: tuple[Contract, ...] = ()
    alarms: tuple[Alarm, ...] = ()
    # what the last recorded decision said, so that an unchanged one is not recorded every tick
    recorded_key: str = ""
    recorded_at: datetime | None = None
    last_at: datetime | None = None
    mode: Mode | None = None  # in which the base was decided: another mode adopts what is observed
    # rounds of replacing broken replicas since one last became warm, and when the last was
    replacement_rounds: int = 0
    replaced_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class FleetState:
    """State of every workload, by name."""

    workloads: Mapping[str, WorkloadState] = field(default_factory=dict[str, WorkloadState])


@dataclass(frozen=True, slots=True)
class QuotaPool:
    """GPUs shared by workloads, as in Kueue: own nominal quota, borrowing within a cohort up to a limit."""

    name: str
    nominal_gpus: int
    cohort: str | None = None
    borrowing_limit_gpus: int = 0
    gpu_type: str = ""


@dataclass(frozen=True, slots=True)
class WorkloadInput:
    """Everything about one workload at one tick. ``None`` means unknown."""

    workload: Workload
    replicas: tuple[Replica, ...] | None
    observed_desired: int | None  # what the actuator's target says now
    demand: DemandObservation | None
    forecast: ForecastBand | None = None
    trust: Trust = Trust.UNPROVEN
    near: NearDemand | None = None
    events: tuple[Event, ...] = ()
    overrides: tuple[Override, ...] = ()
    lead: LeadTime = DEFAULT_LEAD_TIME
    competing_owner: str | None = None
    # why fewer replicas come than were ordered, as the cluster says it: no GPU free, a quota, a taint
    shortfall: str | None = None


@dataclass(frozen=True, slots=True)
class TickInput:
    """One observation of the world, with the one clock reading of this cycle."""

    now: datetime
    workloads: tuple[WorkloadInput, ...]
    pools: tuple[QuotaPool, ...] = ()
    paused: bool = False
    paused_reason: str = ""


@dataclass(frozen=True, slots=True)
class ScaleTo:
    """Effect: bring a workload to a count."""

    workload: str
    replicas: int
    decision_id: str


@dataclass(frozen=True, slots=True)
class ReplaceReplica:
    """Effect: end a stuck, failed or wrong replica so that a fresh one takes its place."""

    workload: str
    replica_id: str
    sentence: str


@dataclass(frozen=True, slots=True)
class StorePlan:
    """Effect: keep a new plan revision."""

    plan: CapacityPlan


@dataclass(frozen=True, slots=True)
class RaiseAlarm:
    """Effect: an alarm began."""

    alarm: Alarm


@dataclass(frozen=True, slots=True)
class ClearAlarm:
    """Effect: an alarm's cause is gone."""

    alarm: Alarm


@dataclass(frozen=True, slots=True)
class RecordDecision:
    """Effect: store a decision; comes before the ScaleTo it explains."""

    decision: Decision


Effect = ScaleTo | ReplaceReplica | StorePlan | RaiseAlarm | ClearAlarm | RecordDecision
