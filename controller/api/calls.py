"""What every servicer needs of a request: who asks, under which request id, and what to tell watchers."""

import hashlib
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from google.protobuf.message import Message

from controller.adapters.clock import SystemClock
from controller.api.limits import ApiLimits
from controller.api.shapes import read_timestamp
from controller.core.types import Workload
from controller.ports import Actuator, Clock, ForecastPort, PortError, SignalCache, Store
from controller.usecases.caller import caller
from controller.usecases.calls import Call
from controller.usecases.errors import InvalidError, Violation
from controller.usecases.names import parse
from controller.usecases.preview_event import PreviewSettings
from controller.usecases.topics import CHANGES

log = logging.getLogger(__name__)

T = TypeVar("T")
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass(frozen=True, slots=True)
class ApiDependencies:
    """What the API is built on. ``forecaster`` sharpens previews, ``actuator`` shows replicas in WatchEvent.

    ``clock`` says what time it is for the people who ask; ``pace`` is the machine's own time, by which health
    is probed and watchers poll, also when a demonstration's clock runs faster.
    """

    store: Store
    signals: SignalCache
    clock: Clock
    forecaster: ForecastPort | None = None
    actuator: Actuator | None = None
    preview: PreviewSettings = field(default_factory=PreviewSettings)
    limits: ApiLimits = field(default_factory=ApiLimits)
    pace: Clock = field(default_factory=SystemClock)
    shard_of: Callable[[Workload], int] = lambda _: 0  # among the leaders that workloads are split over


def call_of(
    request: Any,  # noqa: ANN401 -- any message with request_id and validate_only; the stubs have no such type
    *,
    method: str,
    resource: str,
    now: datetime,
    encode: Callable[[T], Message],
    decode: Callable[[bytes], T],
) -> Call[T]:
    """Return the call; raise InvalidError for a bad request id."""
    request_id: str = request.request_id
    if request_id and not _REQUEST_ID.fullmatch(request_id):
        raise InvalidError(
            [Violation("request_id", "must be 1 to 128 printable ASCII characters, a UUID for example")]
        )
    body = type(request)()
    body.CopyFrom(request)
    body.ClearField("request_id")
    digest = hashlib.sha256(body.SerializeToString(deterministic=True)).hexdigest()
    return Call(
        method=method,
        resource=resource,
        principal=caller().principal,
        now=now,
        encode=lambda value: encode(value).SerializeToString(),
        decode=decode,
        request_id=request_id,
        body_digest=digest,
        validate_only=request.validate_only,
    )


async def announce(signals: SignalCache, call: Call[Any]) -> None:
    """Tell watchers what changed; without the cache they find out by polling."""
    if call.validate_only:
        return
    try:
        await signals.publish(CHANGES, call.resource.encode())
    except PortError as error:
        log.debug("change of %s not announced: %s", call.resource, error)


def scope_of(request: Message) -> str:
    """What a page token belongs to: the listing and everything asked of it but the page itself."""
    query = type(request)()
    query.CopyFrom(request)
    for name in ("page_size", "page_token"):
        query.ClearField(name)
    digest = hashlib.sha256(query.SerializeToString(deterministic=True)).hexdigest()
    return f"{request.DESCRIPTOR.full_name}:{digest}"


def optional_time(message: Message, name: str) -> datetime | None:
    """Return a Timestamp field as a datetime, None if it is absent; raise InvalidError."""
    return read_timestamp(getattr(message, name), name) if message.HasField(name) else None


def optional_workload(name: str) -> str | None:
    """Return the id of ``workloads/{id}``, None if the field is empty; raise InvalidError."""
    return parse(name, "workloads/*", "workload")[0] if name else None
