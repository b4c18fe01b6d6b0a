"""Read the ``spec`` of a custom resource as the message of the same thing, and name fields as the spec has them.

Promises: every field of ``forecrest.v1`` that a person may set has its camel-case twin in the spec (a test holds the
schemas to it); durations are written as Kubernetes has them (``90s``, ``1h30m``), enumerations without their prefix,
workloads by their bare id. Refuses what cannot be read, as InvalidError with the path under ``spec``. Pure. Called by
the synchroniser.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast

from forecrest.v1 import event_pb2, workload_pb2
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from controller.usecases.errors import InvalidError, Violation

M = TypeVar("M", bound=Message)

DURATION: Final = "google.protobuf.Duration"
TIMESTAMP: Final = "google.protobuf.Timestamp"
# Whose object a resource of the API belongs to: a label of it, so that everybody can see it.
MARK: Final = "forecrest.dev/resource"
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_KEY: Final = re.compile(r'\["([A-Za-z0-9_]{1,63})"\]')
_SNAKE: Final = re.compile(r"\b[a-z]+(?:_[a-z0-9]+)+\b")
_ROOT: Final = re.compile(r"^(?:workload|event)(?:\.|$)")


def workload_message(spec: Mapping[str, Any], *, namespace: str, owner: str) -> workload_pb2.Workload:
    """The workload that a spec describes, in the object's own namespace, marked as its owner's."""
    given = {key: value for key, value in spec.items() if key not in {"id", "target"}}
    made = _message(given, workload_pb2.Workload)
    made.namespace = namespace
    for key, value in spec.get("target", {}).items():
        made.target[snake(key)] = str(value)
    made.labels[MARK] = owner
    return made


def event_message(spec: Mapping[str, Any], *, owner: str) -> event_pb2.Event:
    """The event that a spec describes, marked as its owner's."""
    made = _message(spec, event_pb2.Event)
    names = [f"workloads/{name}" for name in made.workloads]
    made.ClearField("workloads")
    made.workloads.extend(names)
    made.labels[MARK] = owner
    return made


def in_spec(text: str) -> str:
    """A path or sentence of the API with its fields spelt as the spec spells them."""
    rooted = _ROOT.sub("spec.", text)
    return _SNAKE.sub(lambda m: camel(m[0]) if m[0] in _FIELDS else m[0], _KEY.sub(r".\1", rooted))


def sentence_of(error: InvalidError) -> str:
    """Every bad field and its remedy, for a condition."""
    return "; ".join(f"{in_spec(v.field)}: {in_spec(v.description)}" for v in error.violations)


def camel(name: str) -> str:
    """``stable_window`` as ``stableWindow``."""
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def snake(name: str) -> str:
    """``grpcPort`` as ``grpc_port``."""
    return re.sub(r"(?<=[a-z0-9])[A-Z]", lambda m: f"_{m[0].lower()}", name)


def duration_s(text: str) -> float:
    """Seconds of ``90s``, ``1.5h`` or ``1h30m``; raise ValueError."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text[:40]!r} is no duration; write 90s, 5m or 1h30m")
    return sum(float(number) * _UNIT_S[unit] for number, unit in parts)


def _message(spec: Mapping[str, Any], kind: type[M]) -> M:
    try:
        return json_format.ParseDict(_converted(spec, cast("Descriptor", kind.DESCRIPTOR), "spec"), kind())
    except json_format.ParseError as error:
        raise InvalidError([Violation("spec", " ".join(str(error).split())[:300])]) from error


def _converted(value: Mapping[str, Any], descriptor: Descriptor, at: str) -> dict[str, Any]:
    """``value`` in protobuf's JSON form."""
    fields = {field.json_name: field for field in descriptor.fields}
    done: dict[str, Any] = {}
    for key, inner in value.items():
        if key not in fields:
            raise InvalidError(
                [Violation(f"{at}.{key}", "is no field of it; check the spelling or remove it")]
            )
        field, path = fields[key], f"{at}.{key}"
        if field.is_repeated and isinstance(inner, list):
            done[key] = [_one(item, field, f"{path}[{i}]") for i, item in enumerate(inner)]
        else:
            done[key] = _one(inner, field, path)
    return done


def _one(value: Any, field: FieldDescriptor, path: str) -> Any:  # noqa: ANN401 - JSON
    if field.enum_type is not None:
        prefix = field.enum_type.values_by_number[0].name.removesuffix("UNSPECIFIED")
        return f"{prefix}{value}"
    kind = field.message_type
    if kind is None or kind.GetOptions().map_entry or kind.full_name == TIMESTAMP:
        return value
    if kind.full_name != DURATION:
        return _converted(value, kind, path)
    try:
        return f"{duration_s(str(value)):.9f}s"
    except ValueError as error:
        raise InvalidError([Violation(path, str(error))]) from error


def _field_names(*roots: Descriptor) -> frozenset[str]:
    names: set[str] = set()
    left, seen = list(roots), set[str]()
    while left:
        descriptor = left.pop()
        if descriptor.full_name in seen:
            continue
        seen.add(descriptor.full_name)
        names |= {f.name for f in descriptor.fields}
        left += [f.message_type for f in descriptor.fields if f.message_type is not None]
    return frozenset(names) | {"grpc_port", "metrics_port", "api_version"}


_FIELDS: Final = _field_names(workload_pb2.Workload.DESCRIPTOR, event_pb2.Event.DESCRIPTOR)
