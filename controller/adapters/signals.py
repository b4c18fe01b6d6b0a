"""Rules every signal cache shares: what may go in, and how much of it.

Called by the caches, real and fake.
"""

import math
from collections.abc import Sequence
from datetime import datetime, timedelta

PAYLOAD_BYTES_MAX = 64 * 1024
SOURCES_MAX = 64  # pushed backlogs per workload
QUEUE_LENGTH_MAX = 1_000  # payloads waiting for one watcher
_SOURCE_LENGTH_MAX = 128
_TTL_MAX = timedelta(days=7)


def check_ttl(ttl: timedelta) -> None:
    """Raise ValueError unless the time to live is positive and bounded."""
    if not timedelta(0) < ttl <= _TTL_MAX:
        raise ValueError(f"ttl: {ttl} is not positive and at most {_TTL_MAX.days} days")


def check_payloads(payloads: Sequence[bytes]) -> None:
    """Raise ValueError if one is too large to fan out."""
    longest = max(map(len, payloads), default=0)
    if longest > PAYLOAD_BYTES_MAX:
        raise ValueError(f"payload: {longest} bytes are more than {PAYLOAD_BYTES_MAX}")


def check_backlog(source: str, count: float, at: datetime) -> None:
    """Raise ValueError, by field, for a backlog that must not be stored."""
    if not 0 < len(source) <= _SOURCE_LENGTH_MAX:
        raise ValueError(f"source: takes 1 to {_SOURCE_LENGTH_MAX} characters")
    if not 0 <= count < math.inf:
        raise ValueError(f"count: {count} is not a finite count of at least 0; push nothing if it is unknown")
    if at.tzinfo is None:
        raise ValueError("at: has no time zone; pass an aware datetime")
