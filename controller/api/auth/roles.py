"""What each method needs and what each role may: one table for every method of every service.

Promises: a method without a row is refused as soon as callers are told apart; a test holds that every served
method has one. Called by the guard, by the token commands, and by whoever explains a refusal.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Self

from controller.usecases.names import ID


class Role(StrEnum):
    """What a person or program is to Forecrest."""

    VIEWER = "viewer"
    PLANNER = "planner"
    OPERATOR = "operator"
    TELEMETRY = "telemetry"
    ADMIN = "admin"


class Access(StrEnum):
    """What a method asks of its caller."""

    PUBLIC = "public"  # nothing, not even a name: probes have none
    KNOWN = "known"  # a name, any role
    READ = "read"
    PLAN = "plan"  # future load
    OPERATE = "operate"  # replicas, now
    RECORD = "record"  # measurements
    ADMIN = "admin"


ACCESS_OF: Mapping[Role, frozenset[Access]] = MappingProxyType(
    {
        Role.VIEWER: frozenset({Access.READ}),
        Role.PLANNER: frozenset({Access.READ, Access.PLAN}),
        Role.OPERATOR: frozenset({Access.READ, Access.PLAN, Access.OPERATE, Access.RECORD}),
        # A gateway that is broken into can falsify demand, but can neither read nor change anything.
        Role.TELEMETRY: frozenset({Access.RECORD}),
        Role.ADMIN: frozenset({Access.READ, Access.PLAN, Access.OPERATE, Access.RECORD, Access.ADMIN}),
    }
)


@dataclass(frozen=True, slots=True)
class Rule:
    """What one method needs, and whether it changes anything: then it leaves a trace in the audit log."""

    access: Access
    mutates: bool = False


_PUBLIC, _KNOWN, _READ, _ADMIN = map(Rule, (Access.PUBLIC, Access.KNOWN, Access.READ, Access.ADMIN))
_STUDY = Rule(Access.PLAN)  # changes nothing, but costs a forecast
_PLAN, _OPERATE, _RECORD = (Rule(a, mutates=True) for a in (Access.PLAN, Access.OPERATE, Access.RECORD))

_TABLE: Mapping[str, Mapping[str, Rule]] = {
    "forecrest.v1.EventService": {
        "CreateEvent": _PLAN,
        "GetEvent": _READ,
        "ListEvents": _READ,
        "UpdateEvent": _PLAN,
        "CancelEvent": _PLAN,
        "PreviewEvent": _STUDY,
        "WatchEvent": _READ,
        "ReportEvent": _READ,
        "ImportEvents": _PLAN,
        "ExportEvents": _READ,
    },
    "forecrest.v1.ForecastService": {
        "GetForecast": _READ,
        "BatchGetForecasts": _READ,
        "GetHistory": _READ,
        "WatchForecast": _READ,
        "ExplainForecast": _READ,
        "GetAccuracy": _READ,
    },
    "forecrest.v1.WorkloadService": {
        "CreateWorkload": _OPERATE,
        "GetWorkload": _READ,
        "ListWorkloads": _READ,
        "UpdateWorkload": _OPERATE,
        "DeleteWorkload": _OPERATE,
    },
    "forecrest.v1.ControlService": {
        "GetPlan": _READ,
        "GetStatus": _READ,
        "ListStatuses": _READ,
        "GetDecision": _READ,
        "ListDecisions": _READ,
        "ExplainDecision": _READ,
        "Simulate": _STUDY,
        "WatchDecisions": _READ,
        "CreateOverride": _OPERATE,
        "ListOverrides": _READ,
        "DeleteOverride": _OPERATE,
        "Pause": _OPERATE,
        "Resume": _OPERATE,
        "GetPauseState": _READ,
        "GetCaller": _KNOWN,
    },
    "forecrest.v1.TelemetryService": {
        "RecordTraffic": _RECORD,
        "StreamTraffic": _RECORD,
        "RecordBacklog": _RECORD,
    },
    "forecrest.v1.EngineService": {
        "RegisterEngine": _OPERATE,
        "GetEngine": _READ,
        "ListEngines": _READ,
        "ValidateEngine": _OPERATE,
        "PromoteEngine": _OPERATE,
        "RetireEngine": _OPERATE,
        "RecordEngineProfile": _OPERATE,
        "ListEngineProfiles": _READ,
    },
    "forecrest.v1.AuditService": {"ListAuditEntries": _ADMIN},
    "forecrest.v1.NotificationService": {"ListNotifications": _READ},
    "externalscaler.ExternalScaler": {
        "IsActive": _READ,
        "StreamIsActive": _READ,
        "GetMetricSpec": _READ,
        "GetMetrics": _READ,
        "StreamMetricSpec": _READ,
    },
    # Balancers and orchestrators ask for health before they could hold a token.
    "grpc.health.v1.Health": {"Check": _PUBLIC, "List": _KNOWN, "Watch": _KNOWN},
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": _KNOWN},
}
RULES: Mapping[str, Rule] = MappingProxyType(
    {f"/{service}/{method}": rule for service, rows in _TABLE.items() for method, rule in rows.items()}
)

EVERYWHERE = "*"
_NAMESPACE = re.compile(rf"{ID.pattern}|\*")


@dataclass(frozen=True, slots=True)
class Grant:
    """A role in one namespace, or everywhere. Written ``planner:shop`` or ``viewer:*``."""

    role: Role
    namespace: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``role:namespace``; raise ValueError with the remedy."""
        role, colon, namespace = text.partition(":")
        if role not in list(Role) or not colon or not _NAMESPACE.fullmatch(namespace):
            raise ValueError(
                f"{text[:80]!r} is no grant; write ROLE:NAMESPACE with a role of {', '.join(Role)} and a "
                "namespace, or * for all of them, for example planner:shop"
            )
        return cls(Role(role), namespace)

    def __str__(self) -> str:
        """As it is written."""
        return f"{self.role}:{self.namespace}"


def namespaces_of(grants: Collection[Grant], access: Access) -> frozenset[str] | None:
    """Namespaces in which the grants give ``access``: None for all, empty for none.

    A person who plans in one namespace and views every other one plans in the one only.
    """
    found = frozenset(g.namespace for g in grants if access is Access.KNOWN or access in ACCESS_OF[g.role])
    return None if EVERYWHERE in found else found
