"""Every method of ``forecrest.v1`` with a request that works and requests that must not.

The contract suite, the matrix of who may do what, and the fuzz run share this table. A method without a row here
fails a test, so that nothing is served untested.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import forecrest.v1
from forecrest.v1 import (
    audit_service_pb2,
    control_pb2,
    control_service_pb2,
    engine_pb2,
    engine_service_pb2,
    event_pb2,
    event_service_pb2,
    forecast_service_pb2,
    notification_service_pb2,
    telemetry_service_pb2,
    workload_pb2,
    workload_service_pb2,
)
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from controller.accuracy import Parts
from controller.adapters.clock import SystemClock
from controller.core.resources import ForecastRun
from controller.core.types import (
    CapacityPlan,
    Decision,
    Floor,
    ForecastBand,
    ForecastState,
    Mode,
    Reason,
)
from controller.ports import Store

NOW = SystemClock().now().replace(minute=0, second=0, microsecond=0)
HOUR, DAY, MINUTE = timedelta(hours=1), timedelta(days=1), timedelta(minutes=1)
DIGEST = "sha256:" + "ab" * 32

# Requests and responses differ by method; the table is checked by running it.
Make = Callable[[], Any]


@dataclass(frozen=True)
class Bad:
    """A change that spoils the working request, and the field that must be named. ``words`` stand in the remedy."""

    name: str
    spoil: Callable[[Any], object]
    field: str
    words: str = ""


@dataclass(frozen=True)
class Case:
    """One method. ``make`` returns a request that works in the world of ``prepare``; each call returns another one."""

    make: Make
    bad: Sequence[Bad] = ()
    mutates: bool = False
    # Sets a version that is not the newest; None where the method has none.
    stale: Callable[[Any], object] | None = None
    # Names a resource that is not there; None where that is no error.
    missing: Callable[[Any], object] | None = None
    # Whether repeating the request without its id changes or refuses something: then the id must make it safe.
    repeatable: bool = True
    tags: frozenset[str] = field(default_factory=frozenset[str])


def an_event(**changes: Any) -> event_pb2.Event:  # noqa: ANN401 -- fields of the message
    fields: dict[str, Any] = {
        "workloads": ["workloads/rec"],
        "start_time": NOW + DAY,
        "end_time": NOW + DAY + 2 * HOUR,
        "time_zone": "Asia/Shanghai",
        "expected_peak_qps": 5000.0,
        "category": "promotion",
    }
    fields.update(changes)
    return event_pb2.Event(**fields)


def a_workload(**changes: Any) -> workload_pb2.Workload:  # noqa: ANN401 -- as above
    fields: dict[str, Any] = {
        "model_name": "recommender",
        "profiles": [workload_pb2.CapacityProfile(engine="int8", gpu_type="L4", qps_max=1000.0)],
        "max_replicas": 40,
    }
    fields.update(changes)
    return workload_pb2.Workload(**fields)


def an_engine(**changes: Any) -> engine_pb2.Engine:  # noqa: ANN401 -- as above
    fields: dict[str, Any] = {
        "model_name": "recommender",
        "digest": DIGEST,
        "model_digest": "sha256:" + "cd" * 32,
        "kind": engine_pb2.ENGINE_KIND_TENSORRT,
        "precision": workload_pb2.PRECISION_INT8,
        "runtime_version": "10.8.0",
        "compute_capabilities": ["8.9"],
    }
    fields.update(changes)
    return engine_pb2.Engine(**fields)


def a_validation(value: float = 0.999) -> engine_pb2.EngineValidation:
    return engine_pb2.EngineValidation(
        measures=[engine_pb2.EngineMeasure(measure="cosine", value=value, min=0.99)]
    )


def a_profile(**changes: Any) -> engine_pb2.EngineProfile:  # noqa: ANN401 -- as above
    fields: dict[str, Any] = {
        "capacity": workload_pb2.CapacityProfile(engine="-", gpu_type="L4", qps_max=2400.0),
        "slo": workload_pb2.Slo(),
        "measure_time": NOW - HOUR,
        "tool": "perf_analyzer 2.51",
    }
    fields.update(changes)
    return engine_pb2.EngineProfile(**fields)


def a_decision(number: int = 1) -> Decision:
    return Decision(
        id=f"rec-{number}",
        workload="rec",
        at=NOW - HOUR + number * MINUTE,
        mode=Mode.SCALE,
        current_replicas=4,
        desired_replicas=4 + number,
        warm_replicas=4,
        in_flight_replicas=0,
        reason=Reason.REACTIVE_UP,
        binding=None,
        sentence="more demand",
        recommendations=(),
        conditions=(),
        inputs=(),
        demand_qps=4000.0,
        need_replicas=5,
        plan_revision=1,
        forecast_id="f1",
        event_ids=(),
    )


async def prepare(store: Store, client: Any) -> None:  # noqa: ANN401 -- the typed client, whatever it is wrapped in
    """Make the world every request of the table works in."""
    for name in ("rec", "spare"):
        await client.workloads.CreateWorkload(
            workload_service_pb2.CreateWorkloadRequest(workload=a_workload(), workload_id=name)
        )
    for event_id in ("sale", "spare"):
        await client.events.CreateEvent(
            event_service_pb2.CreateEventRequest(event=an_event(), event_id=event_id)
        )
    await client.events.CreateEvent(
        event_service_pb2.CreateEventRequest(
            event=an_event(start_time=NOW - 2 * HOUR, end_time=NOW + 2 * HOUR), event_id="running"
        )
    )
    await client.control.CreateOverride(_override("hold"))
    for engine_id, digit in (("built", "1"), ("validated", "2"), ("active", "3")):
        await client.engines.RegisterEngine(
            engine_service_pb2.RegisterEngineRequest(
                engine=an_engine(digest="sha256:" + digit * 64, compute_capabilities=[f"8.{digit}"]),
                engine_id=engine_id,
            )
        )
    for engine_id in ("validated", "active"):
        await client.engines.ValidateEngine(
            engine_service_pb2.ValidateEngineRequest(name=f"engines/{engine_id}", validation=a_validation())
        )
    await client.engines.PromoteEngine(engine_service_pb2.PromoteEngineRequest(name="engines/active"))
    await client.telemetry.RecordTraffic(_traffic(120))
    async with store.unit_of_work() as uow:
        await uow.decisions.append([a_decision(1), a_decision(2)])
        await uow.decisions.save_plan(
            CapacityPlan(
                workload="rec",
                revision=1,
                created_at=NOW - HOUR,
                floors=(Floor(8, NOW, NOW + HOUR, NOW + 2 * HOUR, "forecast"),),
                forecast_id="f1",
                start_at=NOW,
                step=5 * MINUTE,
                need=(4, 8),
                quantile=0.99,
                digest="d",
            )
        )
        run = ForecastRun("f1", "rec", NOW - HOUR, NOW - HOUR, 24)
        band = ForecastBand(
            id="f1",
            origin_at=NOW - HOUR,
            start_at=NOW - HOUR,
            step=5 * MINUTE,
            levels=(0.1, 0.5, 0.9),
            qps=((900.0, 1000.0, 1100.0),) * 24,
            state=ForecastState.READY,
        )
        await uow.forecasts.save(run, band)
        flat = (0.0,) * 24
        await uow.accuracy.put_parts(
            Parts("f1", "rec", NOW - HOUR, "ensemble", "", "", 1000.0, flat, flat, flat)
        )
        await uow.commit()


def _override(override_id: str) -> control_service_pb2.CreateOverrideRequest:
    return control_service_pb2.CreateOverrideRequest(
        parent="workloads/rec",
        override_id=override_id,
        override=control_pb2.Override(
            kind=control_pb2.OVERRIDE_KIND_AT_LEAST, replicas=8, ttl=timedelta(hours=1), reason="launch"
        ),
    )


def _traffic(count: int = 1) -> telemetry_service_pb2.RecordTrafficRequest:
    return telemetry_service_pb2.RecordTrafficRequest(
        source="test",
        samples=[
            telemetry_service_pb2.TrafficSample(
                workload="workloads/rec", minute_time=NOW - MINUTE * (n + 1), demand_count=60_000.0
            )
            for n in range(count)
        ],
    )


def _stream(batch: int = 1) -> telemetry_service_pb2.StreamTrafficRequest:
    minute = int((NOW - MINUTE).timestamp() // 60)
    return telemetry_service_pb2.StreamTrafficRequest(
        batch=batch,
        source="test",
        series=[
            telemetry_service_pb2.TrafficSeries(
                workload="workloads/rec", minutes=[minute], demand_counts=[60_000.0]
            )
        ],
    )


CALENDAR = f"""BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//test//EN
BEGIN:VEVENT
UID:launch@example.com
DTSTAMP:20260101T000000Z
DTSTART;TZID=Asia/Shanghai:{NOW + DAY:%Y%m%d}T200000
DTEND;TZID=Asia/Shanghai:{NOW + DAY:%Y%m%d}T220000
SUMMARY:Launch
END:VEVENT
END:VCALENDAR
""".replace("\n", "\r\n").encode()


def _import(calendar: bytes = CALENDAR) -> event_service_pb2.ImportEventsRequest:
    return event_service_pb2.ImportEventsRequest(
        calendar=calendar,
        template=event_pb2.Event(workloads=["workloads/rec"], expected_peak_qps=5000.0),
    )


def put(path: str, value: Any) -> Callable[[Any], object]:  # noqa: ANN401 -- whatever the field holds
    """Return what sets a field by its dotted path; a repeated field on the way means its first entry."""

    def spoil(message: Any) -> None:  # noqa: ANN401 -- any request
        *parents, name = path.split(".")
        for parent in parents:
            held = getattr(message, parent)
            message = held[0] if hasattr(held, "add") or isinstance(held, list) else held
        held_field = message.DESCRIPTOR.fields_by_name[name]
        if held_field.is_repeated:
            message.ClearField(name)
            for item in value:
                if isinstance(item, datetime):
                    getattr(message, name).add().FromDatetime(item)
                else:
                    getattr(message, name).append(item)
        elif held_field.message_type is None:
            setattr(message, name, value)
        elif isinstance(value, datetime):
            getattr(message, name).FromDatetime(value)
        elif isinstance(value, timedelta):
            getattr(message, name).FromTimedelta(value)
        else:
            getattr(message, name).CopyFrom(value)

    return spoil


def clear(name: str) -> Callable[[Any], object]:
    def spoil(message: Any) -> None:  # noqa: ANN401 -- any request
        *parents, last = name.split(".")
        for parent in parents:
            message = getattr(message, parent)
        message.ClearField(last)

    return spoil


NO_NAME = Bad("no name", put("name", ""), "name", "must look like")
BAD_ID = Bad("a request id with a space", put("request_id", "a b"), "request_id", "printable")
PAGES = (
    Bad("a negative page", put("page_size", -1), "page_size", "must be 0 to"),
    Bad("a made-up token", put("page_token", "abc"), "page_token", "not a token"),
)
FILTERS = (
    *PAGES,
    Bad("an unreadable filter", put("filter", "name ="), "filter", "ends where a value is expected"),
    Bad("an unknown field", put("filter", "nobody = 1"), "filter", "a field ("),
    Bad("a long filter", put("filter", "name=a AND " * 200 + "name=b"), "filter", "at most 1000"),
    Bad("an unknown order", put("order_by", "sideways"), "order_by", "must be one of"),
)
EVENT_BAD = (
    Bad("no zone", put("event.time_zone", ""), "event.time_zone", "IANA"),
    Bad("no workload", put("event.workloads", []), "event.workloads", "1 to 50"),
    Bad(
        "a workload nobody has", put("event.workloads", ["workloads/nobody"]), "event.workloads[0]", "create"
    ),
    Bad("no load", clear("event.expected_peak_qps"), "event.expected_peak_qps", "exactly one"),
    Bad("NaN", put("event.expected_peak_qps", float("nan")), "event.expected_peak_qps", "finite"),
    Bad("an end before its start", put("event.end_time", NOW), "event.end_time", "after start_time"),
    Bad("a bad rule", put("event.rrule", "FREQ=SECONDLY"), "event.rrule", "cannot use"),
    Bad("a further start before the first", put("event.rdate_times", [NOW]), "event.rdate_times[0]", "after"),
)
WORKLOAD_BAD = (
    Bad("no model", put("workload.model_name", ""), "workload.model_name", "1 to 200"),
    Bad(
        "no capacity", put("workload.profiles.qps_max", 0.0), "workload.profiles[0].qps_max", "at least 1e-06"
    ),
    Bad("bounds that cross", put("workload.min_replicas", 50), "workload.max_replicas", "less than"),
    Bad(
        "a target nobody knows",
        lambda r: r.workload.target.update({"bacth_size_max": "4"}),
        'workload.target["bacth_size_max"]',
        "use engine, catalog_model, shapes, batch_size_max",
    ),
    Bad(
        "an engine nobody registered",
        lambda r: (
            put("workload.profiles.engine", "engines/nobody")(r),
            put("workload.profiles.qps_max", 0.0)(r),
        ),
        "workload.profiles[0].engine",
        "promote and measure it first",
    ),
)
ENGINE_BAD = (
    Bad("no digest", put("engine.digest", ""), "engine.digest", "sha256:"),
    Bad("a short digest", put("engine.digest", "sha256:abc"), "engine.digest", "64 hexadecimal"),
    Bad("no kind", clear("engine.kind"), "engine.kind", "must be one of"),
    Bad("no GPU", put("engine.compute_capabilities", []), "engine.compute_capabilities", "1 to 16"),
    Bad("a password in the address", put("engine.uri", "s3://me:secret@host/x"), "engine.uri", "credentials"),
)

E, W, C = event_service_pb2, workload_service_pb2, control_service_pb2
F, T, G = forecast_service_pb2, telemetry_service_pb2, engine_service_pb2
CASES: dict[str, Case] = {
    "EventService/CreateEvent": Case(
        lambda: E.CreateEventRequest(event=an_event(), event_id="fresh"),
        (*EVENT_BAD, Bad("a bad id", put("event_id", "A B"), "event_id", "1 to 63"), BAD_ID),
        mutates=True,
        repeatable=False,
    ),
    "EventService/GetEvent": Case(
        lambda: E.GetEventRequest(name="events/sale"), (NO_NAME,), missing=put("name", "events/nobody")
    ),
    "EventService/ListEvents": Case(
        lambda: E.ListEventsRequest(filter='state = SCHEDULED AND workload = "workloads/rec"'),
        (
            *FILTERS,
            Bad("half a window", put("start_time", NOW), "end_time", "give both"),
            Bad("an unknown state", put("states", [99]), "states", "must be of"),
            Bad("a state in the filter", put("filter", "state = DONE"), "filter", "must be one of"),
            Bad("a date for a number", put("filter", "priority > soon"), "filter", "a number"),
        ),
    ),
    "EventService/UpdateEvent": Case(
        lambda: E.UpdateEventRequest(event=event_pb2.Event(name="events/sale", expected_peak_qps=6000.0)),
        (
            Bad("no name", put("event.name", ""), "event.name", "must look like"),
            Bad("an unknown field", lambda r: r.update_mask.paths.append("nobody"), "update_mask", "cannot"),
            Bad("too much", put("event.expected_peak_qps", 1e9), "event.expected_peak_qps", "at most"),
            BAD_ID,
        ),
        mutates=True,
        stale=put("event.etag", '"99"'),
        missing=put("event.name", "events/nobody"),
    ),
    "EventService/CancelEvent": Case(
        lambda: E.CancelEventRequest(name="events/spare", reason="postponed"),
        (NO_NAME, Bad("a long reason", put("reason", "x" * 501), "reason", "at most 500"), BAD_ID),
        mutates=True,
        stale=put("etag", '"99"'),
        missing=put("name", "events/nobody"),
    ),
    "EventService/PreviewEvent": Case(lambda: E.PreviewEventRequest(event=an_event()), EVENT_BAD),
    "EventService/WatchEvent": Case(
        lambda: E.WatchEventRequest(name="events/sale"),
        (NO_NAME, Bad("a made-up token", put("resume_token", "abc"), "resume_token", "not a token")),
        missing=put("name", "events/nobody"),
    ),
    "EventService/ReportEvent": Case(
        lambda: E.ReportEventRequest(name="events/running"),
        (NO_NAME,),
        missing=put("name", "events/nobody"),
    ),
    "EventService/ImportEvents": Case(
        _import,
        (
            Bad("no file", put("calendar", b""), "calendar", "required"),
            Bad("no calendar", put("calendar", b"hello"), "calendar", "is no iCalendar file"),
            Bad("no text", put("calendar", b"\xff\xfe"), "calendar", "UTF-8"),
            Bad(
                "no load anywhere",
                clear("template.expected_peak_qps"),
                'calendar.events[0]["launch@example.com"].expected_peak_qps',
                "exactly one",
            ),
            Bad(
                "a zone nobody knows",
                put("calendar", CALENDAR.replace(b"Asia/Shanghai", b"Mars/Olympus")),
                'calendar.events[0]["launch@example.com"].DTSTART',
                "IANA",
            ),
            BAD_ID,
        ),
        mutates=True,
    ),
    "EventService/ExportEvents": Case(
        lambda: E.ExportEventsRequest(filter="category = promotion"),
        (Bad("an unreadable filter", put("filter", "("), "filter", "ends where"),),
    ),
    "ForecastService/GetForecast": Case(
        lambda: F.GetForecastRequest(name="workloads/rec/forecast"),
        (NO_NAME,),
        missing=put("name", "workloads/nobody/forecast"),
    ),
    "ForecastService/BatchGetForecasts": Case(
        lambda: F.BatchGetForecastsRequest(names=["workloads/rec/forecast"]),
        (Bad("no names", put("names", []), "names"),),
    ),
    "ForecastService/GetHistory": Case(
        lambda: F.GetHistoryRequest(
            workload="workloads/rec", start_time=NOW - HOUR, end_time=NOW, step=5 * MINUTE
        ),
        (
            Bad("no workload", put("workload", ""), "workload"),
            Bad("a window backwards", put("end_time", NOW - DAY), "end_time", "after"),
        ),
    ),
    "ForecastService/WatchForecast": Case(
        lambda: F.WatchForecastRequest(name="workloads/rec/forecast"),
        (NO_NAME, Bad("a made-up token", put("resume_token", "abc"), "resume_token")),
    ),
    "ForecastService/ExplainForecast": Case(
        lambda: F.ExplainForecastRequest(name="workloads/rec/forecast"), (NO_NAME,)
    ),
    "ForecastService/GetAccuracy": Case(
        lambda: F.GetAccuracyRequest(name="workloads/rec/accuracy"),
        (NO_NAME, Bad("a short window", put("window", MINUTE), "window")),
    ),
    "WorkloadService/CreateWorkload": Case(
        lambda: W.CreateWorkloadRequest(workload=a_workload(), workload_id="fresh"),
        (*WORKLOAD_BAD, Bad("no id", put("workload_id", ""), "workload_id", "1 to 63"), BAD_ID),
        mutates=True,
        repeatable=False,
    ),
    "WorkloadService/GetWorkload": Case(
        lambda: W.GetWorkloadRequest(name="workloads/rec"),
        (NO_NAME,),
        missing=put("name", "workloads/nobody"),
    ),
    "WorkloadService/ListWorkloads": Case(
        lambda: W.ListWorkloadsRequest(filter="mode = SCALE AND max_replicas > 1", order_by="priority desc"),
        (*FILTERS, Bad("an unknown mode", put("filter", "mode = FULL"), "filter", "must be one of")),
    ),
    "WorkloadService/UpdateWorkload": Case(
        lambda: W.UpdateWorkloadRequest(
            workload=workload_pb2.Workload(name="workloads/rec", max_replicas=50)
        ),
        (
            Bad("no name", put("workload.name", ""), "workload.name", "must look like"),
            Bad("too many", put("workload.max_replicas", 99_999), "workload.max_replicas", "at most"),
            Bad("an unknown field", lambda r: r.update_mask.paths.append("nobody"), "update_mask", "cannot"),
            BAD_ID,
        ),
        mutates=True,
        stale=put("workload.etag", '"99"'),
        missing=put("workload.name", "workloads/nobody"),
    ),
    "WorkloadService/DeleteWorkload": Case(
        lambda: W.DeleteWorkloadRequest(name="workloads/spare"),
        (NO_NAME, BAD_ID),
        mutates=True,
        stale=put("etag", '"99"'),
        missing=put("name", "workloads/nobody"),
        repeatable=False,
    ),
    "ControlService/GetPlan": Case(
        lambda: C.GetPlanRequest(name="workloads/rec/plan"),
        (NO_NAME, Bad("no revision", put("revision", 0), "revision", "at least 1")),
        missing=put("name", "workloads/nobody/plan"),
    ),
    "ControlService/ListStatuses": Case(C.ListStatusesRequest, PAGES),
    "ControlService/GetStatus": Case(
        lambda: C.GetStatusRequest(name="workloads/rec/status"),
        (NO_NAME,),
        missing=put("name", "workloads/nobody/status"),
    ),
    "ControlService/GetDecision": Case(
        lambda: C.GetDecisionRequest(name="decisions/rec-1"),
        (Bad("no name", put("name", ""), "name"),),
        missing=put("name", "decisions/nobody"),
    ),
    "ControlService/ListDecisions": Case(
        lambda: C.ListDecisionsRequest(workload="workloads/rec"),
        (*PAGES, Bad("a bad name", put("workload", "rec"), "workload", "must look like")),
    ),
    "ControlService/ExplainDecision": Case(
        lambda: C.ExplainDecisionRequest(name="decisions/rec-1"),
        (Bad("no name", put("name", ""), "name"),),
        missing=put("name", "decisions/nobody"),
    ),
    "ControlService/Simulate": Case(
        lambda: C.SimulateRequest(workload="workloads/rec", end_time=NOW, window=HOUR, learn=HOUR),
        (Bad("no workload", put("workload", ""), "workload"),),
    ),
    "ControlService/WatchDecisions": Case(
        lambda: C.WatchDecisionsRequest(workload="workloads/rec"),
        (
            Bad("a bad name", put("workload", "rec"), "workload", "must look like"),
            Bad("a made-up token", put("resume_token", "abc"), "resume_token", "not a token"),
        ),
    ),
    "ControlService/CreateOverride": Case(
        lambda: _override("fresh"),
        (
            Bad("no reason", put("override.reason", ""), "override.reason"),
            Bad("no kind", clear("override.kind"), "override.kind", "must be one of"),
            Bad("too long", put("override.ttl", 365 * DAY), "override.expire_time"),
            BAD_ID,
        ),
        mutates=True,
        repeatable=False,
        missing=put("parent", "workloads/nobody"),
    ),
    "ControlService/ListOverrides": Case(
        lambda: C.ListOverridesRequest(parent="workloads/rec"),
        (*PAGES, Bad("a bad parent", put("parent", "rec"), "parent", "must look like")),
    ),
    "ControlService/DeleteOverride": Case(
        lambda: C.DeleteOverrideRequest(name="workloads/rec/overrides/hold"),
        (NO_NAME, BAD_ID),
        mutates=True,
        repeatable=False,
        missing=put("name", "workloads/rec/overrides/nobody"),
    ),
    "ControlService/Pause": Case(
        lambda: C.PauseRequest(workload="workloads/rec", reason="debugging", ttl=HOUR),
        (
            Bad("no reason", put("reason", ""), "reason"),
            Bad("no end", clear("ttl"), "ttl"),
            BAD_ID,
        ),
        mutates=True,
    ),
    "ControlService/Resume": Case(
        lambda: C.ResumeRequest(workload="workloads/rec"),
        (Bad("a bad name", put("workload", "rec"), "workload", "must look like"), BAD_ID),
        mutates=True,
    ),
    "ControlService/GetCaller": Case(C.GetCallerRequest),
    "ControlService/GetPauseState": Case(
        lambda: C.GetPauseStateRequest(workload="workloads/rec"),
        (Bad("a bad name", put("workload", "rec"), "workload", "must look like"),),
    ),
    "TelemetryService/RecordTraffic": Case(
        _traffic,
        (
            Bad("no samples", put("samples", []), "samples", "1 to"),
            Bad("no source", put("source", ""), "source"),
            Bad(
                "a minute with seconds",
                put("samples.minute_time", NOW - timedelta(seconds=30)),
                "samples[0].minute_time",
            ),
            Bad("NaN", put("samples.demand_count", float("nan")), "samples[0].demand_count", "finite"),
            Bad("an unknown workload", put("samples.workload", "workloads/nobody"), "samples[0].workload"),
        ),
        mutates=True,
    ),
    "TelemetryService/StreamTraffic": Case(_stream, mutates=True, tags=frozenset({"client_stream"})),
    "TelemetryService/RecordBacklog": Case(
        lambda: T.RecordBacklogRequest(
            samples=[T.BacklogSample(workload="workloads/rec", source="queue", count=5.0)]
        ),
        (
            Bad("no samples", put("samples", []), "samples", "1 to"),
            Bad("negative", put("samples.count", -1.0), "samples[0].count", "at least 0"),
        ),
        mutates=True,
    ),
    "EngineService/RegisterEngine": Case(
        lambda: G.RegisterEngineRequest(engine=an_engine(), engine_id="fresh"),
        (*ENGINE_BAD, Bad("no id", put("engine_id", ""), "engine_id", "1 to 63"), BAD_ID),
        mutates=True,
        repeatable=False,
    ),
    "EngineService/GetEngine": Case(
        lambda: G.GetEngineRequest(name="engines/built"), (NO_NAME,), missing=put("name", "engines/nobody")
    ),
    "EngineService/ListEngines": Case(
        lambda: G.ListEnginesRequest(
            filter="state = ACTIVE OR precision = INT8", order_by="create_time desc"
        ),
        FILTERS,
    ),
    "EngineService/ValidateEngine": Case(
        lambda: G.ValidateEngineRequest(name="engines/built", validation=a_validation()),
        (
            NO_NAME,
            Bad("no measures", put("validation.measures", []), "validation.measures", "1 to 50"),
            Bad(
                "no budget",
                lambda r: r.validation.measures[0].ClearField("min"),
                "validation.measures[0].min",
                "validates nothing",
            ),
            Bad(
                "NaN",
                lambda r: setattr(r.validation.measures[0], "value", float("nan")),
                "validation.measures[0].value",
                "finite",
            ),
            BAD_ID,
        ),
        mutates=True,
        stale=put("etag", '"99"'),
        missing=put("name", "engines/nobody"),
    ),
    "EngineService/PromoteEngine": Case(
        lambda: G.PromoteEngineRequest(name="engines/validated"),
        (NO_NAME, BAD_ID),
        mutates=True,
        stale=put("etag", '"99"'),
        missing=put("name", "engines/nobody"),
    ),
    "EngineService/RetireEngine": Case(
        lambda: G.RetireEngineRequest(name="engines/built", reason="superseded"),
        (NO_NAME, Bad("a long reason", put("reason", "x" * 501), "reason", "at most 500"), BAD_ID),
        mutates=True,
        stale=put("etag", '"99"'),
        missing=put("name", "engines/nobody"),
    ),
    "EngineService/RecordEngineProfile": Case(
        lambda: G.RecordEngineProfileRequest(parent="engines/built", profile=a_profile()),
        (
            Bad("no parent", put("parent", ""), "parent", "must look like"),
            Bad(
                "no rate", put("profile.capacity.qps_max", 0.0), "profile.capacity.qps_max", "at least 1e-06"
            ),
            Bad("from the future", put("profile.measure_time", NOW + DAY), "profile.measure_time", "future"),
            BAD_ID,
        ),
        mutates=True,
        missing=put("parent", "engines/nobody"),
    ),
    "EngineService/ListEngineProfiles": Case(
        lambda: G.ListEngineProfilesRequest(parent="engines/-"),
        (*PAGES, Bad("a bad parent", put("parent", "x"), "parent", "must look like")),
    ),
    "NotificationService/ListNotifications": Case(
        lambda: notification_service_pb2.ListNotificationsRequest(sink="ops"),
        (
            *PAGES,
            Bad("a long sink", put("sink", "x" * 64), "sink", "at most 63"),
            Bad("an unknown state", put("state", 99), "state", "choose from"),
            Bad("a bad name", put("workload", "rec"), "workload", "must look like"),
        ),
    ),
    "AuditService/ListAuditEntries": Case(audit_service_pb2.ListAuditEntriesRequest, PAGES),
}


def served_methods() -> dict[str, MethodDescriptor]:
    """Every method of every service of the package, by "Service/Method": what the protos define, not a list."""
    found: dict[str, MethodDescriptor] = {}
    (folder,) = map(Path, forecrest.v1.__path__)
    for path in sorted(folder.glob("*_service_pb2.py")):
        module = import_module(f"forecrest.v1.{path.stem}")
        for service in module.DESCRIPTOR.services_by_name.values():
            found |= {f"{service.name}/{method.name}": method for method in service.methods}
    return found


METHODS = served_methods()


def path_of(name: str) -> str:
    """The method as gRPC calls it."""
    return f"/forecrest.v1.{name}"


def response_class(name: str) -> type[Message]:
    """What a method returns."""
    return GetMessageClass(METHODS[name].output_type)
