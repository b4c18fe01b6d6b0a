"""Every method of the API once: who may call it, and a request about the workload ``cart`` of the namespace ``shop``.

Written apart from the rules it is compared with. Requests are in protobuf's JSON form. A method that is served and
not in here, or the other way round, fails a test.
"""

import base64
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.message import Message

READERS = frozenset({"viewer", "planner", "operator", "admin"})
PLANNERS = frozenset({"planner", "operator", "admin"})
OPERATORS = frozenset({"operator", "admin"})
RECORDERS = frozenset({"telemetry", "operator", "admin"})
ADMINS = frozenset({"admin"})
EVERYBODY = frozenset({"viewer", "planner", "operator", "telemetry", "admin"})

_EVENT = {
    "workloads": ["workloads/cart"],
    "startTime": "2026-11-20T00:00:00Z",
    "endTime": "2026-11-20T02:00:00Z",
    "timeZone": "UTC",
    "expectedPeakQps": 3000,
}
_CALENDAR = b"\r\n".join(
    (
        b"BEGIN:VCALENDAR",
        b"VERSION:2.0",
        b"PRODID:-//forecrest//test//EN",
        b"BEGIN:VEVENT",
        b"UID:sale@example.com",
        b"DTSTAMP:20261101T000000Z",
        b"DTSTART:20261120T000000Z",
        b"DTEND:20261120T020000Z",
        b"SUMMARY:Sale",
        b"END:VEVENT",
        b"END:VCALENDAR",
        b"",
    )
)
_WORKLOAD = {"modelName": "m", "namespace": "shop", "profiles": [{"engine": "e", "qpsMax": 10}]}
_TRIGGER = {"scalerMetadata": {"workload": "cart"}}
_SAMPLE = {"workload": "workloads/cart", "minuteTime": "2026-11-10T11:00:00Z", "demandCount": 60}
_BACKLOG = {
    "workload": "workloads/cart",
    "source": "queue",
    "count": 5,
    "observeTime": "2026-11-10T12:00:00Z",
    "ttl": "60s",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One method. ``fleet``: what it asks for concerns every namespace, so that a grant in one is not enough."""

    roles: frozenset[str]
    request: dict[str, Any] = field(default_factory=dict[str, Any])
    fleet: bool = False


def _v1(service: str, **methods: Sample) -> dict[str, Sample]:
    return {f"/forecrest.v1.{service}/{name}": sample for name, sample in methods.items()}


METHODS: dict[str, Sample] = {
    **_v1(
        "EventService",
        CreateEvent=Sample(PLANNERS, {"event": _EVENT, "eventId": "sale", "validateOnly": True}),
        GetEvent=Sample(READERS, {"name": "events/shops"}),
        ListEvents=Sample(READERS),
        UpdateEvent=Sample(
            PLANNERS, {"event": {"name": "events/shops", "priority": 3}, "validateOnly": True}
        ),
        CancelEvent=Sample(PLANNERS, {"name": "events/shops", "validateOnly": True}),
        PreviewEvent=Sample(PLANNERS, {"event": _EVENT | {"name": "events/sale"}}),
        WatchEvent=Sample(READERS, {"name": "events/shops"}),
        ReportEvent=Sample(READERS, {"name": "events/shops"}),
        ImportEvents=Sample(
            PLANNERS,
            {
                "calendar": base64.b64encode(_CALENDAR).decode(),
                "template": {"workloads": ["workloads/cart"], "expectedPeakQps": 3000},
                "validateOnly": True,
            },
        ),
        ExportEvents=Sample(READERS),
    ),
    **_v1(
        "ForecastService",
        GetForecast=Sample(READERS, {"name": "workloads/cart/forecast"}),
        BatchGetForecasts=Sample(
            READERS, {"names": ["workloads/cart/forecast", "workloads/ranker/forecast"]}
        ),
        GetHistory=Sample(READERS, {"workload": "workloads/cart"}),
        WatchForecast=Sample(READERS, {"name": "workloads/cart/forecast"}),
        ExplainForecast=Sample(READERS, {"name": "workloads/cart/forecast"}),
        GetAccuracy=Sample(READERS, {"name": "workloads/cart/accuracy"}),
    ),
    **_v1(
        "WorkloadService",
        CreateWorkload=Sample(
            OPERATORS, {"workloadId": "fresh", "workload": _WORKLOAD, "validateOnly": True}
        ),
        GetWorkload=Sample(READERS, {"name": "workloads/cart"}),
        ListWorkloads=Sample(READERS),
        UpdateWorkload=Sample(
            OPERATORS, {"workload": {"name": "workloads/cart", "maxReplicas": 5}, "validateOnly": True}
        ),
        DeleteWorkload=Sample(OPERATORS, {"name": "workloads/cart", "validateOnly": True}),
    ),
    **_v1(
        "ControlService",
        GetPlan=Sample(READERS, {"name": "workloads/cart/plan"}),
        ListStatuses=Sample(READERS),
        GetStatus=Sample(READERS, {"name": "workloads/cart/status"}),
        GetDecision=Sample(READERS, {"name": "decisions/cart-1"}),
        ListDecisions=Sample(READERS),
        ExplainDecision=Sample(READERS, {"workload": "workloads/cart"}),
        Simulate=Sample(PLANNERS, {"workload": "workloads/cart"}),
        WatchDecisions=Sample(READERS),
        CreateOverride=Sample(
            OPERATORS,
            {
                "parent": "workloads/cart",
                "overrideId": "hold",
                "override": {
                    "kind": "OVERRIDE_KIND_AT_LEAST",
                    "replicas": 3,
                    "ttl": "3600s",
                    "reason": "x",
                },
                "validateOnly": True,
            },
        ),
        ListOverrides=Sample(READERS),
        DeleteOverride=Sample(OPERATORS, {"name": "workloads/cart/overrides/held", "validateOnly": True}),
        Pause=Sample(
            OPERATORS, {"workload": "workloads/cart", "reason": "x", "ttl": "60s", "validateOnly": True}
        ),
        Resume=Sample(OPERATORS, {"workload": "workloads/cart", "validateOnly": True}),
        GetPauseState=Sample(READERS, {"workload": "workloads/cart"}),
        GetCaller=Sample(EVERYBODY),
    ),
    **_v1(
        "TelemetryService",
        RecordTraffic=Sample(RECORDERS, {"samples": [_SAMPLE], "source": "gateway"}),
        StreamTraffic=Sample(
            RECORDERS,
            {
                "batch": 1,
                "source": "gateway",
                "series": [{"workload": "workloads/cart", "minutes": [29700000], "demandCounts": [60]}],
            },
        ),
        RecordBacklog=Sample(RECORDERS, {"samples": [_BACKLOG]}),
    ),
    **_v1(
        "EngineService",
        RegisterEngine=Sample(OPERATORS, fleet=True),
        GetEngine=Sample(READERS, {"name": "engines/none"}),
        ListEngines=Sample(READERS),
        ValidateEngine=Sample(OPERATORS, {"name": "engines/none"}, fleet=True),
        PromoteEngine=Sample(OPERATORS, {"name": "engines/none"}, fleet=True),
        RetireEngine=Sample(OPERATORS, {"name": "engines/none"}, fleet=True),
        RecordEngineProfile=Sample(OPERATORS, {"parent": "engines/none"}, fleet=True),
        ListEngineProfiles=Sample(READERS, {"parent": "engines/none"}),
    ),
    **_v1("NotificationService", ListNotifications=Sample(READERS)),
    **_v1("AuditService", ListAuditEntries=Sample(ADMINS, fleet=True)),
    **{
        f"/externalscaler.ExternalScaler/{name}": Sample(READERS, request)
        for name, request in {
            "IsActive": _TRIGGER,
            "StreamIsActive": _TRIGGER,
            "GetMetricSpec": _TRIGGER,
            "GetMetrics": {"scaledObjectRef": _TRIGGER},
            "StreamMetricSpec": _TRIGGER,
        }.items()
    },
}
# The same methods, asked for the whole fleet.
FLEET: dict[str, Sample] = _v1(
    "ControlService",
    Pause=Sample(OPERATORS, {"reason": "x", "validateOnly": True}, fleet=True),
    Resume=Sample(OPERATORS, {"validateOnly": True}, fleet=True),
)
# Not about workloads: probes and tools.
OTHERS = frozenset(
    {
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/List",
        "/grpc.health.v1.Health/Watch",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    }
)
# GetMetricSpec says how KEDA is to ask, from the trigger's metadata alone: it must answer without a database.
BLIND = frozenset(
    {"/externalscaler.ExternalScaler/GetMetricSpec", "/externalscaler.ExternalScaler/StreamMetricSpec"}
)


def described(method: str) -> Any:  # noqa: ANN401 -- the descriptor's type is not exported
    """The method's descriptor."""
    service, _, name = method.removeprefix("/").partition("/")
    return descriptor_pool.Default().FindServiceByName(service).FindMethodByName(name)


def request_of(method: str, sample: Sample) -> Message:
    """The sample as a message."""
    message = message_factory.GetMessageClass(described(method).input_type)()
    return json_format.ParseDict(sample.request, message)
