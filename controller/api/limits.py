"""Every bound of the API in one place."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """Bounds of one server. Times in seconds."""

    message_bytes_max: int = 4 * 1024 * 1024
    concurrent_rpcs_max: int = 2000
    streams_max: int = 1000
    stream_queue_max: int = 1000
    # The longest any unary call may take; a client's own shorter deadline wins.
    unary_deadline_s: float = 30.0
    # A preview may fit a forecast per workload.
    preview_deadline_s: float = 120.0
    # Watchers look at the store this often when no change signal comes.
    poll_period_s: float = 2.0
    health_period_s: float = 5.0
    health_timeout_s: float = 5.0
