"""Turn the core's frozen values into JSON text and back, by their type hints.

Promises: `decode(type(value), encode(value)) == value`; fields that a newer release added are ignored and
fields that an older one did not write take their defaults, so releases on both sides of a migration can
read each other's records. Refuses text that does not fit the type, and NaN or infinity. Called by the
stores and the signal cache.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from controller.ports import PortError

T = TypeVar("T")

# Without "constants", NaN would silently become null, which reads as "unknown".
_CONFIG = ConfigDict(ser_json_inf_nan="constants", allow_inf_nan=False)


class RecordError(PortError):
    """A stored record does not fit the type it is read as."""


def _make_adapter(kind: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - a class or a generic alias
    # pydantic refuses a config for a bare dataclass; a union with None takes it and hands it down.
    form: Any = kind | None
    return TypeAdapter(form, config=_CONFIG)


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(_make_adapter)


def encode(value: object) -> str:
    """Return compact JSON: datetimes and durations as ISO 8601, enums by value."""
    return _adapter(type(value)).dump_json(value).decode()


def decode(kind: type[T], text: str | bytes) -> T:
    """Read one value of type `kind`.

    Raises:
        RecordError: the text is no JSON or does not fit; the message names the first field.
    """
    try:
        value: T | None = _adapter(kind).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "record"
        raise RecordError(f"a stored {kind.__name__} cannot be read: {where}: {first['msg']}") from error
    if value is None:
        raise RecordError(f"a stored {kind.__name__} cannot be read: it is null")
    return value
