"""Translate between frozen core values and protobuf messages, field by field, from one declared table.

Promises: a field is paired by name (``start_at`` with ``start_time``) or by the table, and ``unpaired``
names every field of either side that is neither, which a test holds empty: nothing is dropped unseen.
Unknown (None) is an absent field and never 0. Refuses unset enums, missing required messages and times
outside the calendar, naming the field. Called by the mappers only.
"""

import dataclasses
import functools
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, TypeVar

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from controller.usecases.errors import InvalidError, Violation

T = TypeVar("T")
M = TypeVar("M", bound=Message)
Convert = Callable[[Any], Any]
Read = Callable[[Any, str], Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """How one core type looks on the wire. ``names`` pairs core fields with differently named ones.

    ``core_only`` and ``wire_only`` are handled by the mapper itself, or belong to one side only. A
    ``partial`` shape shows a part of the core type; the rest is internal and may change freely.
    """

    core: type[Any]
    wire: type[Message]
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    core_only: frozenset[str] = frozenset()
    wire_only: frozenset[str] = frozenset()
    partial: bool = False


@dataclass(frozen=True, slots=True)
class _Field:
    core: str
    wire: str
    repeated: bool
    keyed: bool
    message: bool
    presence: bool
    nullable: bool
    default: bool
    to_wire: Convert
    from_wire: Read
    collect: Convert


# No field may have more entries; most may have far fewer, which the rules say.
ENTRIES_MAX = 5000


def timestamp(at: datetime) -> Timestamp:
    """Return the instant as a Timestamp, microseconds kept."""
    message = Timestamp()
    message.FromDatetime(at)
    return message


def duration(length: timedelta) -> Duration:
    """Return the length as a Duration, microseconds kept."""
    message = Duration()
    message.FromTimedelta(length)
    return message


def read_timestamp(message: Timestamp, at: str) -> datetime:
    """Return an aware UTC datetime; raise InvalidError outside the calendar."""
    try:
        return message.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise _invalid(at, "is outside the calendar; use a time between year 1 and 9999") from error


def read_duration(message: Duration, at: str) -> timedelta:
    """Return a timedelta; raise InvalidError if it is out of range."""
    try:
        return message.ToTimedelta()
    except (ValueError, OverflowError) as error:
        raise _invalid(at, "is not a valid duration; give seconds and nanos of the same sign") from error


def check_entries(count: int, at: str) -> None:
    """Raise InvalidError before anything is made of them: a message of 4 MiB holds millions of empty entries."""
    if count > ENTRIES_MAX:
        raise _invalid(at, f"must have at most {ENTRIES_MAX} entries; got {count}")


class Shapes:
    """Every declared shape, with the field plans made once on first use."""

    def __init__(self, shapes: tuple[Shape, ...], prefixes: Mapping[str, str]) -> None:
        self._by_core = {shape.core: shape for shape in shapes}
        self._by_wire = {shape.wire.DESCRIPTOR.full_name: shape for shape in shapes}
        # Wire fields that hold resource names: "workload" holds "workloads/{id}".
        self._prefixes = prefixes
        self._plans: dict[type[Any], tuple[_Field, ...]] = {}

    def to_wire(self, value: object, wire: type[M]) -> M:
        """Return ``value`` as a message."""
        shape = self._by_core[type(value)]
        message = wire()
        for item in self._plan(shape):
            inner = getattr(value, item.core)
            if inner is None:
                continue
            if item.keyed:
                getattr(message, item.wire).update(inner if isinstance(inner, Mapping) else dict(inner))
            elif item.repeated:
                values = sorted(inner) if isinstance(inner, frozenset) else inner
                getattr(message, item.wire).extend(map(item.to_wire, values))
            elif item.message:
                getattr(message, item.wire).CopyFrom(item.to_wire(inner))
            else:
                setattr(message, item.wire, item.to_wire(inner))
        return message

    def from_wire(self, message: Message, core: type[T], at: str, **given: object) -> T:
        """Return ``message`` as a core value; ``given`` fills what the table leaves to the mapper.

        Raise InvalidError naming the field, under the path ``at``, for everything unreadable.
        """
        arguments: dict[str, Any] = {}
        violations: list[Violation] = []
        for item in self._plan(self._by_core[core]):
            if item.core in given:
                continue
            path = f"{at}.{item.wire}" if at else item.wire
            try:
                if _present(message, item):
                    arguments[item.core] = _read(message, item, path)
                elif item.nullable:
                    arguments[item.core] = None
                elif not item.default:
                    raise _invalid(path, "is required")
            except InvalidError as error:
                violations += error.violations
        if violations:
            raise InvalidError(violations)
        return core(**arguments, **given)

    def unpaired(self) -> list[str]:
        """Fields that no pair and no exception of the table accounts for, as "Type.field"."""
        missing: list[str] = []
        for shape in self._by_core.values():
            core = {f.name for f in dataclasses.fields(shape.core)}
            wire = {f.name for f in shape.wire.DESCRIPTOR.fields}
            plan = self._plan(shape)
            if not shape.partial:
                paired = shape.core_only | {item.core for item in plan}
                missing += [f"{shape.core.__name__}.{name}" for name in core - paired]
            missing += [f"{shape.wire.__name__}.{n}" for n in wire - shape.wire_only - {i.wire for i in plan}]
        return sorted(missing)

    def _plan(self, shape: Shape) -> tuple[_Field, ...]:
        if shape.core not in self._plans:
            self._plans[shape.core] = self._make_plan(shape)
        return self._plans[shape.core]

    def _make_plan(self, shape: Shape) -> tuple[_Field, ...]:
        hints = typing.get_type_hints(shape.core)
        fields = {f.name: typing.cast("FieldDescriptor", f) for f in shape.wire.DESCRIPTOR.fields}
        plan: list[_Field] = []
        for core in dataclasses.fields(shape.core):
            wire = fields.get(shape.names.get(core.name, _wire_name(core.name)))
            if core.name in shape.core_only or wire is None or wire.name in shape.wire_only:
                continue
            kind, nullable = _unwrap(hints[core.name])
            keyed = _is_map(wire)
            to_wire, from_wire = (_same, _keep) if keyed else self._converters(wire, kind)
            plan.append(
                _Field(
                    core=core.name,
                    wire=wire.name,
                    repeated=wire.is_repeated,
                    keyed=keyed,
                    message=wire.message_type is not None,
                    presence=wire.has_presence,
                    nullable=nullable,
                    default=core.default is not dataclasses.MISSING
                    or core.default_factory is not dataclasses.MISSING,
                    to_wire=to_wire,
                    from_wire=from_wire,
                    collect=_collector(hints[core.name]),
                )
            )
        return tuple(plan)

    def _converters(self, wire: FieldDescriptor, kind: type[Any]) -> tuple[Convert, Read]:
        if wire.enum_type is not None:
            return _enum_converters(wire.enum_type, kind)
        if wire.message_type is None:
            prefix = self._prefixes.get(wire.name)
            if prefix is None:
                return _same, _keep
            return prefix.__add__, functools.partial(_strip, prefix)
        name = wire.message_type.full_name
        if name == Timestamp.DESCRIPTOR.full_name:
            return timestamp, read_timestamp
        if name == Duration.DESCRIPTOR.full_name:
            return duration, read_duration
        inner = self._by_wire[name]
        return (
            lambda value: self.to_wire(value, inner.wire),
            lambda message, at: self.from_wire(message, inner.core, at),
        )


def _invalid(at: str, description: str) -> InvalidError:
    return InvalidError([Violation(at, description)])


def _wire_name(core: str) -> str:
    return f"{core.removesuffix('_at')}_time" if core.endswith("_at") else core


def _unwrap(hint: Any) -> tuple[type[Any], bool]:  # noqa: ANN401 -- type hints are values of no common type
    """Return the innermost element type and whether None is allowed."""
    arguments = typing.get_args(hint)
    if isinstance(hint, UnionType):
        inner = next(a for a in arguments if a is not NoneType)
        return _unwrap(inner)[0], NoneType in arguments
    if arguments:
        return _unwrap(arguments[-1] if arguments[-1] is not Ellipsis else arguments[0])[0], False
    return hint, False


def _collector(hint: Any) -> Convert:  # noqa: ANN401 -- as above
    """What a repeated or map field is gathered into."""
    origin = typing.get_origin(hint)
    if origin is frozenset:
        return frozenset
    if origin is tuple and typing.get_origin(typing.get_args(hint)[0]) is tuple:
        return lambda pairs: tuple(sorted(pairs.items()))  # a map kept as sorted pairs
    return dict if isinstance(origin, type) and issubclass(origin, Mapping) else tuple


def _is_map(wire: FieldDescriptor) -> bool:
    return wire.message_type is not None and wire.message_type.GetOptions().map_entry


def _present(message: Message, item: _Field) -> bool:
    if item.presence:
        return message.HasField(item.wire)
    value = getattr(message, item.wire)
    # Without presence an empty string or an unset enum is how absence looks, where absence is possible.
    return item.repeated or not ((item.nullable or item.default) and not value)


def _read(message: Message, item: _Field, path: str) -> Any:  # noqa: ANN401 -- as varied as the fields are
    value = getattr(message, item.wire)
    if item.keyed or item.repeated:
        check_entries(len(value), path)
    if item.keyed:
        return item.collect(dict(value))
    if item.repeated:
        return item.collect(item.from_wire(inner, f"{path}[{index}]") for index, inner in enumerate(value))
    return item.from_wire(value, path)


def _same(value: Any) -> Any:  # noqa: ANN401 -- the identity
    return value


def _keep(value: Any, _at: str) -> Any:  # noqa: ANN401 -- the identity
    return value


def _strip(prefix: str, value: str, at: str) -> str:
    if not value.startswith(prefix):
        raise _invalid(at, f"must look like {prefix}{{id}}; got {value[:120]!r}")
    return value.removeprefix(prefix)


def _enum_converters(enum: EnumDescriptor, kind: type[StrEnum]) -> tuple[Convert, Read]:
    zero = enum.values_by_number[0].name
    prefix = zero.removesuffix("UNSPECIFIED")
    numbers = {member: enum.values_by_name[f"{prefix}{member}"].number for member in kind}
    members = {number: member for member, number in numbers.items()}

    def read(number: int, at: str) -> StrEnum:
        if number not in members:
            raise _invalid(at, f"must be one of {', '.join(prefix + m for m in kind)}")
        return members[number]

    return numbers.__getitem__, read
