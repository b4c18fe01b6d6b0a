"""Translate between core values and ``forecrest.v1`` messages; the only file that knows both.

Promises: every field of every resource is paired or named as an exception in ``SHAPES``. Refuses what cannot
be represented, as InvalidError naming the field. Called by the servicers.
"""

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeVar

from forecrest.v1 import (
    control_pb2,
    engine_pb2,
    event_pb2,
    event_service_pb2,
    forecast_pb2,
    forecast_service_pb2,
    telemetry_service_pb2,
    workload_pb2,
)
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from controller.api.auth.roles import EVERYWHERE, Access, Grant, Role, namespaces_of
from controller.api.shapes import Shape, Shapes, duration, read_timestamp, timestamp
from controller.core.engines import (
    CapacityPoint,
    Engine,
    EngineMeasure,
    EngineProfile,
    EngineValidation,
    OptimizationProfile,
)
from controller.core.resources import (
    EventWarning,
    ForecastRun,
    Outcome,
    PauseState,
    TrafficEvent,
    TrafficSample,
)
from controller.core.types import (
    Alarm,
    Behavior,
    CapacityPlan,
    CapacityProfile,
    Condition,
    Contract,
    Decision,
    Floor,
    ForecastBand,
    InputAge,
    Override,
    Policy,
    Recommendation,
    Replica,
    ScalingPolicy,
    ScalingRules,
    Slo,
    Workload,
    WorkloadState,
)
from controller.ports import ReplicaCounts
from controller.usecases.caller import Caller
from controller.usecases.decisions import ObservedStatus
from controller.usecases.errors import InvalidError, Violation
from controller.usecases.event_rules import resolve_window
from controller.usecases.forecasts import History
from controller.usecases.import_events import ImportAction, Imported
from controller.usecases.names import profile_id
from controller.usecases.occurrences import to_local
from controller.usecases.overrides import OwnedOverride, Pause
from controller.usecases.preview_event import EventPreview, WorkloadPreview
from controller.usecases.report_event import EventReport, PlannerRecord, PrewarmReport, WorkloadReport
from controller.usecases.telemetry import Backlog

M = TypeVar("M", bound=Message)

# More paths than any message has fields, and longer ones than any field is named.
MASK_PATHS_MAX, MASK_PATH_LENGTH_MAX = 1000, 100

_EVENT_LOCAL = frozenset({"start_local", "end_local"})
_EVENT_OUTPUT = frozenset(
    {
        *("state", "revision", "created_by", "create_time", "update_time", "cancel_reason", "warnings"),
        "stale_since_time",
    }
)

SHAPES = Shapes(
    (
        Shape(
            Workload,
            workload_pb2.Workload,
            core_only=frozenset({"name"}),
            wire_only=frozenset({"name", "etag", "stale_since_time"}),
        ),
        Shape(CapacityProfile, workload_pb2.CapacityProfile),
        Shape(Slo, workload_pb2.Slo),
        Shape(Policy, workload_pb2.Policy),
        Shape(Behavior, workload_pb2.Behavior),
        Shape(ScalingRules, workload_pb2.ScalingRules),
        Shape(ScalingPolicy, workload_pb2.ScalingPolicy),
        Shape(
            TrafficEvent,
            event_pb2.Event,
            names={
                "exdates_at": "exdate_times",
                "rdates_at": "rdate_times",
                "created_at": "create_time",
                "updated_at": "update_time",
                "cancelled_reason": "cancel_reason",
            },
            core_only=frozenset({"id"}),
            wire_only=frozenset({"name", "etag", "stale_since_time"}) | _EVENT_LOCAL,
        ),
        Shape(EventWarning, event_pb2.EventWarning),
        Shape(Contract, event_pb2.Contract, names={"event_id": "occurrence_id"}),
        Shape(
            Replica,
            event_pb2.Replica,
            names={"ordered_at": "order_time"},
            partial=True,  # addresses and profiles of replicas are nobody's business outside
        ),
        Shape(
            CapacityPlan,
            control_pb2.CapacityPlan,
            names={"created_at": "create_time"},
            core_only=frozenset({"workload"}),
            wire_only=frozenset({"name", "stale_since_time"}),
        ),
        Shape(Floor, control_pb2.Floor, names={"needed_at": "need_time", "event_id": "occurrence_id"}),
        Shape(
            Decision,
            control_pb2.Decision,
            names={"at": "decide_time", "event_ids": "occurrence_ids"},
            core_only=frozenset({"id"}),
            wire_only=frozenset({"name", "outcome"}),
        ),
        Shape(
            Outcome,
            control_pb2.Outcome,
            names={"at": "observe_time"},
            core_only=frozenset({"decision_id"}),
        ),
        Shape(Recommendation, control_pb2.Recommendation),
        Shape(Condition, control_pb2.Condition),
        Shape(InputAge, control_pb2.InputAge, names={"name": "input"}),
        Shape(Alarm, control_pb2.Alarm),
        Shape(
            Override,
            control_pb2.Override,
            names={"expires_at": "expire_time"},
            core_only=frozenset({"id"}),
            wire_only=frozenset({"name", "ttl", "active"}),
        ),
        Shape(PauseState, control_pb2.PauseState, wire_only=frozenset({"workload", "expire_time"})),
        Shape(
            WorkloadState,
            control_pb2.WorkloadStatus,
            partial=True,  # the core remembers more, for its own arithmetic
            wire_only=frozenset({"name", "stale_since_time", "replicas"}),
        ),
        Shape(
            ReplicaCounts,
            control_pb2.ReplicaCounts,
            names={
                "at": "observe_time",
                "warm": "warm_count",
                "starting": "starting_count",
                "draining": "draining_count",
            },
        ),
        Shape(
            TrafficSample,
            telemetry_service_pb2.TrafficSample,
            core_only=frozenset({"source"}),
        ),
        Shape(
            Engine,
            engine_pb2.Engine,
            names={
                "created_at": "create_time",
                "updated_at": "update_time",
                "promoted_at": "promote_time",
                "retired_reason": "retire_reason",
            },
            core_only=frozenset({"id"}),
            wire_only=frozenset({"name", "etag", "stale_since_time"}),
        ),
        Shape(OptimizationProfile, engine_pb2.OptimizationProfile),
        Shape(EngineValidation, engine_pb2.EngineValidation, names={"validated_at": "validate_time"}),
        Shape(EngineMeasure, engine_pb2.EngineMeasure),
        Shape(
            EngineProfile,
            engine_pb2.EngineProfile,
            names={"measured_at": "measure_time"},
            core_only=frozenset({"engine"}),
            wire_only=frozenset({"name"}),
        ),
        Shape(CapacityPoint, engine_pb2.CapacityPoint),
        Shape(
            WorkloadReport,
            event_service_pb2.WorkloadReport,
            names={"peak_at": "peak_time"},
        ),
        Shape(
            PrewarmReport,
            event_service_pb2.PrewarmReport,
            names={"order_at": "order_time", "deadline_at": "deadline_time", "met_at": "met_time"},
        ),
        Shape(PlannerRecord, event_service_pb2.PlannerRecord),
        Shape(Backlog, telemetry_service_pb2.BacklogSample, names={"at": "observe_time"}),
    ),
    prefixes={"workload": "workloads/", "workloads": "workloads/"},
)


def etag_of(version: int) -> str:
    """Return the etag of a generation or revision."""
    return f'"{version}"'


def version_of(etag: str) -> int | None:
    """Return the version an etag stands for; None for no etag. An etag nobody made matches no version."""
    if not etag:
        return None
    text = etag.strip('"')
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else -1


def check_mask(mask: FieldMask) -> None:
    """Raise InvalidError before anything is made of the mask: a message of 4 MiB holds millions of empty paths."""
    if len(mask.paths) > MASK_PATHS_MAX:
        remedy = f"must have at most {MASK_PATHS_MAX} paths; got {len(mask.paths)}; name each field once"
        raise InvalidError([Violation("update_mask", remedy)])
    longest = max(map(len, mask.paths), default=0)
    if longest > MASK_PATH_LENGTH_MAX:
        remedy = f"must have paths of at most {MASK_PATH_LENGTH_MAX} characters; one has {longest}"
        raise InvalidError([Violation("update_mask", remedy)])


def merge(base: M, given: M, mask: FieldMask, output: frozenset[str], at: str) -> M:
    """Return ``base`` with the top-level fields of a checked mask taken from ``given`` (AIP-134).

    Without a mask the fields set in ``given`` count; "*" replaces all. Raise InvalidError for other paths.
    """
    fields = given.DESCRIPTOR.fields_by_name
    fixed = output | {"name", "etag"}
    # Each once: a repeated field would be added as often as it is named.
    paths = list(dict.fromkeys(mask.paths)) or [f.name for f, _ in given.ListFields() if f.name not in fixed]
    if paths == ["*"]:
        paths = [name for name in fields if name not in fixed]
    for path in paths:
        if path not in fields or path in fixed:
            raise InvalidError(
                [
                    Violation(
                        "update_mask",
                        f"cannot update {path[:60]!r}; name top-level fields of {at}, or leave it empty",
                    )
                ]
            )
    result = type(base)()
    result.CopyFrom(base)
    for path in paths:
        result.ClearField(path)
    for path in paths:
        _copy_field(result, given, path)
    return result


def _copy_field(result: Message, given: Message, path: str) -> None:
    field = given.DESCRIPTOR.fields_by_name[path]
    if field.is_repeated:
        getattr(result, path).MergeFrom(getattr(given, path))
    elif not field.has_presence:
        setattr(result, path, getattr(given, path))
    elif given.HasField(path):
        if field.message_type is not None:
            getattr(result, path).CopyFrom(getattr(given, path))
        else:
            setattr(result, path, getattr(given, path))


# ---------------------------------------------------------------- workloads


def workload_to_wire(workload: Workload) -> workload_pb2.Workload:
    """Return the resource."""
    message = SHAPES.to_wire(workload, workload_pb2.Workload)
    message.name = f"workloads/{workload.name}"
    message.etag = etag_of(workload.generation)
    return message


def workload_from_wire(message: workload_pb2.Workload, name: str) -> Workload:
    """Return the value, under the given name; raise InvalidError."""
    return SHAPES.from_wire(message, Workload, "workload", name=name)


def changed_workload(stored: Workload, given: workload_pb2.Workload, mask: FieldMask) -> Workload:
    """Return ``stored`` with the masked fields of ``given``; raise InvalidError."""
    merged = merge(
        workload_to_wire(stored), given, mask, frozenset({"generation", "stale_since_time"}), "Workload"
    )
    return workload_from_wire(merged, stored.name)


# ---------------------------------------------------------------- callers


def caller_to_wire(who: Caller) -> control_pb2.Caller:
    """Return who calls, with what their grants let them do; everything where callers are not told apart."""
    message = control_pb2.Caller(identified=who.grants is not None)
    if who.grants is None:
        grants: tuple[Grant, ...] = (Grant(Role.ADMIN, EVERYWHERE),)
    else:
        message.principal = who.principal
        grants = tuple(Grant(Role(role), namespace) for role, namespace in who.grants)
        for grant in sorted(set(grants), key=str):
            message.grants.add(
                role=control_pb2.Role.Value(f"ROLE_{grant.role.name}"), namespace=grant.namespace
            )
    for access in (Access.READ, Access.PLAN, Access.OPERATE, Access.RECORD, Access.ADMIN):
        namespaces = namespaces_of(grants, access)
        if namespaces is None or namespaces:
            message.permissions.add(
                access=control_pb2.Access.Value(f"ACCESS_{access.name}"),
                namespaces=[EVERYWHERE] if namespaces is None else sorted(namespaces),
            )
    return message


# ---------------------------------------------------------------- events


def event_to_wire(event: TrafficEvent) -> event_pb2.Event:
    """Return the resource, with times both as instants and as wall-clock times."""
    message = SHAPES.to_wire(event, event_pb2.Event)
    message.name = f"events/{event.id}"
    message.etag = etag_of(event.revision)
    message.start_local = to_local(event.start_at, event.time_zone).isoformat(timespec="seconds")
    message.end_local = to_local(event.end_at, event.time_zone).isoformat(timespec="seconds")
    return message


def event_from_wire(message: event_pb2.Event, event_id: str) -> TrafficEvent:
    """Return the value, under the given id; raise InvalidError."""
    start = read_timestamp(message.start_time, "event.start_time") if message.HasField("start_time") else None
    end = read_timestamp(message.end_time, "event.end_time") if message.HasField("end_time") else None
    start_at, end_at = resolve_window(
        message.time_zone,
        (start, message.start_local),
        (end, message.end_local),
        recurring=bool(message.rrule),
    )
    return SHAPES.from_wire(message, TrafficEvent, "event", id=event_id, start_at=start_at, end_at=end_at)


def changed_event(stored: TrafficEvent, given: event_pb2.Event, mask: FieldMask) -> TrafficEvent:
    """Return ``stored`` with the masked fields of ``given``; raise InvalidError.

    The stored instants stand for the stored wall-clock times, so that giving either form changes the time.
    """
    base = event_to_wire(stored)
    touched = set(mask.paths) or {field.name for field, _ in given.ListFields()}
    for side in ("start", "end"):
        base.ClearField("start_local" if side == "start" else "end_local")
        if "*" not in touched and f"{side}_local" in touched and f"{side}_time" not in touched:
            base.ClearField("start_time" if side == "start" else "end_time")
    return event_from_wire(merge(base, given, mask, _EVENT_OUTPUT, "Event"), stored.id)


def preview_to_wire(preview: EventPreview) -> event_service_pb2.PreviewEventResponse:
    """Return the response, totals included."""
    return event_service_pb2.PreviewEventResponse(
        event=event_to_wire(preview.event),
        workloads=map(_workload_preview, preview.workloads),
        extra_replica_hours=sum(w.extra_replica_hours for w in preview.workloads),
        extra_gpu_hours=sum(w.extra_gpu_hours for w in preview.workloads),
        unmet_replicas=sum(w.unmet_replicas for w in preview.workloads),
    )


def _workload_preview(preview: WorkloadPreview) -> event_service_pb2.WorkloadPreview:
    message = event_service_pb2.WorkloadPreview(
        workload=f"workloads/{preview.workload}",
        occurrence_id=preview.occurrence.id,
        start_time=timestamp(preview.occurrence.start_at),
        end_time=timestamp(preview.occurrence.end_at),
        deadline_time=timestamp(preview.deadline_at),
        replicas=preview.replicas,
        baseline_replicas=preview.baseline_replicas,
        unmet_replicas=preview.unmet_replicas,
        extra_replica_hours=preview.extra_replica_hours,
        extra_gpu_hours=preview.extra_gpu_hours,
        floors=[SHAPES.to_wire(floor, control_pb2.Floor) for floor in preview.floors],
        sentence=preview.sentence,
    )
    if preview.prewarm_start_at is not None:
        message.prewarm_start_time.CopyFrom(timestamp(preview.prewarm_start_at))
    if preview.forecast_state is not None:
        message.forecast_state = forecast_state(preview.forecast_state)
    if preview.curve is not None:
        message.curve_start_time.CopyFrom(timestamp(preview.curve.start_at))
        message.curve_step.CopyFrom(duration(preview.curve.step))
        message.curve.extend(quantiles(preview.curve.levels, preview.curve.qps))
    return message


def watched_event(
    event: TrafficEvent,
    prewarms: Sequence[tuple[str, Contract, Sequence[Replica]]],
    now: datetime,
    *,
    snapshot: bool,
) -> event_service_pb2.WatchEventResponse:
    """Return one message of the stream."""
    return event_service_pb2.WatchEventResponse(
        event=event_to_wire(event),
        prewarms=[
            event_service_pb2.Prewarm(
                workload=f"workloads/{name}",
                contract=SHAPES.to_wire(contract, event_pb2.Contract),
                replicas=[SHAPES.to_wire(replica, event_pb2.Replica) for replica in replicas],
            )
            for name, contract, replicas in prewarms
        ],
        snapshot=snapshot,
        observe_time=timestamp(now),
    )


def template_from_wire(message: event_pb2.Event) -> tuple[TrafficEvent, frozenset[str]]:
    """Return what an import's template says, with times that mean nothing, and the fields it states."""
    draft = event_pb2.Event()
    draft.CopyFrom(message)
    for name in _EVENT_OUTPUT | _EVENT_LOCAL | {"name", "etag", "rrule", "exdate_times", "rdate_times"}:
        draft.ClearField(name)  # type: ignore[arg-type]  # names of this message
    draft.time_zone = draft.time_zone or "UTC"
    draft.start_time.FromSeconds(0)
    draft.end_time.FromSeconds(60)
    try:
        template = event_from_wire(draft, "template")
    except InvalidError as error:
        raise InvalidError(
            [Violation(f"template.{v.field.removeprefix('event.')}", v.description) for v in error.violations]
        ) from error
    given = {field.name for field, _ in message.ListFields()}
    known = {f.name for f in dataclasses.fields(TrafficEvent)} - {"time_zone"}
    if {"expected_peak_qps", "expected_multiplier"} & given:
        given |= {"expected_peak_qps", "expected_multiplier"}
    return template, frozenset(given & known - _EVENT_OUTPUT)


def report_to_wire(report: EventReport) -> event_service_pb2.EventReport:
    """Return the report."""
    message = event_service_pb2.EventReport(
        event=event_to_wire(report.event),
        occurrence_id=report.occurrence.id,
        start_time=timestamp(report.occurrence.start_at),
        end_time=timestamp(report.occurrence.end_at),
        complete=report.complete,
        workloads=[SHAPES.to_wire(w, event_service_pb2.WorkloadReport) for w in report.workloads],
    )
    if report.planner_record is not None:
        message.planner_record.CopyFrom(
            SHAPES.to_wire(report.planner_record, event_service_pb2.PlannerRecord)
        )
    return message


def imported_to_wire(imported: Sequence[Imported]) -> event_service_pb2.ImportEventsResponse:
    """Return the response."""
    response = event_service_pb2.ImportEventsResponse()
    for one in imported:
        entry = response.events.add(
            uid=one.uid,
            action=event_service_pb2.ImportAction.Value(f"IMPORT_ACTION_{one.action}"),
            sentence=one.sentence,
        )
        if one.event is not None:
            entry.event.CopyFrom(event_to_wire(one.event))
    return response


def imported_from_wire(data: bytes) -> list[Imported]:
    """Return what a kept response says."""
    response = event_service_pb2.ImportEventsResponse.FromString(data)
    return [
        Imported(
            uid=entry.uid,
            action=ImportAction(
                event_service_pb2.ImportAction.Name(entry.action).removeprefix("IMPORT_ACTION_")
            ),
            event=event_from_wire(entry.event, entry.event.name.removeprefix("events/"))
            if entry.HasField("event")
            else None,
            sentence=entry.sentence,
        )
        for entry in response.events
    ]


# ---------------------------------------------------------------- engines


def engine_to_wire(engine: Engine) -> engine_pb2.Engine:
    """Return the resource."""
    message = SHAPES.to_wire(engine, engine_pb2.Engine)
    message.name = f"engines/{engine.id}"
    message.etag = etag_of(engine.generation)
    return message


def engine_from_wire(message: engine_pb2.Engine, engine_id: str) -> Engine:
    """Return the value, under the given id; raise InvalidError."""
    return SHAPES.from_wire(message, Engine, "engine", id=engine_id)


def draft_engine(message: engine_pb2.Engine, engine_id: str) -> Engine:
    """Return what a client may say of an engine, without what only we say; raise InvalidError."""
    draft = engine_pb2.Engine()
    draft.CopyFrom(message)
    for name in (
        *("state", "validation", "created_by", "create_time", "update_time", "promoted_by"),
        *("promote_time", "retire_reason", "generation"),
    ):
        draft.ClearField(name)  # pyright: ignore[reportArgumentType] -- names of this message
    return engine_from_wire(draft, engine_id)


def validation_from_wire(message: engine_pb2.EngineValidation) -> EngineValidation:
    """Return what was measured; raise InvalidError."""
    draft = engine_pb2.EngineValidation()
    draft.CopyFrom(message)
    draft.ClearField("validate_time")
    return SHAPES.from_wire(draft, EngineValidation, "validation")


def engine_profile_to_wire(profile: EngineProfile) -> engine_pb2.EngineProfile:
    """Return the resource."""
    message = SHAPES.to_wire(profile, engine_pb2.EngineProfile)
    message.name = f"engines/{profile.engine}/profiles/{profile_id(profile.capacity.gpu_type)}"
    return message


def engine_profile_from_wire(message: engine_pb2.EngineProfile, engine_id: str) -> EngineProfile:
    """Return the value of an engine; raise InvalidError. The engine in the figures is this one."""
    draft = engine_pb2.EngineProfile()
    draft.CopyFrom(message)
    draft.capacity.engine = f"engines/{engine_id}"
    return SHAPES.from_wire(draft, EngineProfile, "profile", engine=engine_id)


# ---------------------------------------------------------------- forecasts


def forecast_state(state: str) -> forecast_pb2.ForecastState.ValueType:
    """Return the enum value of a core state."""
    return forecast_pb2.ForecastState.Value(f"FORECAST_STATE_{state}")


def quantiles(levels: Sequence[float], rows: Sequence[Sequence[float]]) -> list[forecast_pb2.QuantileSeries]:
    """Return one series per level from one row per step; packed arrays keep long forecasts small."""
    columns = zip(*rows, strict=True) if rows else [()] * len(levels)
    return [
        forecast_pb2.QuantileSeries(level=level, qps=column)
        for level, column in zip(levels, columns, strict=True)
    ]


def forecast_to_wire(
    run: ForecastRun, band: ForecastBand, start_at: datetime | None = None, end_at: datetime | None = None
) -> forecast_pb2.Forecast:
    """Return the resource, cut to the buckets that overlap the window."""
    first, last = 0, len(band.qps)
    if start_at is not None:
        first = min(last, max(0, (start_at - band.start_at) // band.step))
    if end_at is not None:
        last = max(first, min(last, -((band.start_at - end_at) // band.step)))
    return forecast_pb2.Forecast(
        name=f"workloads/{run.workload}/forecast",
        forecast_id=run.id,
        state=forecast_state(band.state),
        origin_time=timestamp(band.origin_at),
        create_time=timestamp(run.created_at),
        start_time=timestamp(band.start_at + band.step * first),
        step=duration(band.step),
        quantiles=quantiles(band.levels, band.qps[first:last]),
        occurrence_ids=sorted(band.event_ids),
        reasons=band.reasons,
        model_weights=dict(run.model_weights),
        scores=dict(run.scores),
    )


def history_to_wire(workload: str, history: History) -> forecast_service_pb2.GetHistoryResponse:
    """Return the response; an unknown bucket has no value."""
    message = forecast_service_pb2.GetHistoryResponse(
        workload=f"workloads/{workload}",
        step=duration(history.step),
        points=[
            forecast_pb2.HistoryPoint(start_time=timestamp(at), demand_qps=qps) for at, qps in history.points
        ],
    )
    if history.span is not None:
        message.first_sample_time.CopyFrom(timestamp(history.span[0]))
        message.last_sample_time.CopyFrom(timestamp(history.span[1]))
    return message


# ---------------------------------------------------------------- control


def decision_to_wire(decided: tuple[Decision, Outcome | None]) -> control_pb2.Decision:
    """Return the resource, with what came of it if that is known."""
    decision, outcome = decided
    message = SHAPES.to_wire(decision, control_pb2.Decision)
    message.name = f"decisions/{decision.id}"
    if outcome is not None:
        message.outcome.CopyFrom(SHAPES.to_wire(outcome, control_pb2.Outcome))
    return message


def plan_to_wire(plan: CapacityPlan) -> control_pb2.CapacityPlan:
    """Return the resource."""
    message = SHAPES.to_wire(plan, control_pb2.CapacityPlan)
    message.name = f"workloads/{plan.workload}/plan"
    return message


def status_to_wire(standing: ObservedStatus) -> control_pb2.WorkloadStatus:
    """Return the resource."""
    message = SHAPES.to_wire(standing.state, control_pb2.WorkloadStatus)
    message.name = f"workloads/{standing.workload}/status"
    if standing.replicas is not None:
        message.replicas.CopyFrom(SHAPES.to_wire(standing.replicas, control_pb2.ReplicaCounts))
    return message


def override_to_wire(owned: OwnedOverride) -> control_pb2.Override:
    """Return the resource."""
    message = SHAPES.to_wire(owned.override, control_pb2.Override)
    message.name = f"workloads/{owned.workload}/overrides/{owned.override.id}"
    message.active = owned.active
    return message


def override_from_wire(message: control_pb2.Override, override_id: str, now: datetime) -> Override:
    """Return the value, under the given id; a ttl counts from ``now``. Raise InvalidError."""
    if message.HasField("ttl"):
        absolute = control_pb2.Override()
        absolute.CopyFrom(message)
        try:
            absolute.expire_time.FromDatetime(now + message.ttl.ToTimedelta())
        except (ValueError, OverflowError) as error:
            raise InvalidError([Violation("override.ttl", "must be 60 s to 30 days")]) from error
        message = absolute
    return SHAPES.from_wire(message, Override, "override", id=override_id)


def owned_override_from_wire(message: control_pb2.Override) -> OwnedOverride:
    """Return what ``override_to_wire`` was given."""
    _, workload, _, override_id = message.name.split("/")
    override = override_from_wire(message, override_id, datetime.max.replace(tzinfo=UTC))
    return OwnedOverride(workload, override, message.active)


def pause_to_wire(pause: Pause) -> control_pb2.PauseState:
    """Return the resource."""
    message = SHAPES.to_wire(pause.state, control_pb2.PauseState)
    message.workload = f"workloads/{pause.workload}" if pause.workload else ""
    if pause.expires_at is not None:
        message.expire_time.CopyFrom(timestamp(pause.expires_at))
    return message


def pause_from_wire(message: control_pb2.PauseState) -> Pause:
    """Return what ``pause_to_wire`` was given."""
    state = SHAPES.from_wire(message, PauseState, "")
    expires_at = (
        read_timestamp(message.expire_time, "expire_time") if message.HasField("expire_time") else None
    )
    return Pause(message.workload.removeprefix("workloads/") or None, state, expires_at)


# ---------------------------------------------------------------- telemetry


def sample_from_wire(message: telemetry_service_pb2.TrafficSample, source: str, at: str) -> TrafficSample:
    """Return the value; raise InvalidError naming the field under ``at``."""
    return SHAPES.from_wire(message, TrafficSample, at, source=source)


def backlog_from_wire(message: telemetry_service_pb2.BacklogSample, at: str, now: datetime) -> Backlog:
    """Return the value, observed ``now`` and for 30 s unless it says otherwise; raise InvalidError."""
    complete = telemetry_service_pb2.BacklogSample()
    complete.CopyFrom(message)
    if not complete.HasField("observe_time"):
        complete.observe_time.FromDatetime(now)
    if not complete.HasField("ttl"):
        complete.ttl.FromSeconds(30)
    return SHAPES.from_wire(complete, Backlog, at)
