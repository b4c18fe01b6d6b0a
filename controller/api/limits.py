"""Every bound of the API in one place."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """Bounds of one server. Times in seconds.

    What is said per caller holds where callers are told apart; without authentication there is only one.
    """

    message_bytes_max: int = 4 * 1024 * 1024
    concurrent_rpcs_max: int = 2000
    streams_max: int = 1000
    stream_queue_max: int = 1000
    # Streams of traffic: each may hold a batch of a full message.
    ingest_streams_max: int = 64
    # The longest any unary call may take; a client's own shorter deadline wins.
    unary_deadline_s: float = 30.0
    # A preview may fit a forecast per workload, a simulation replays days.
    preview_deadline_s: float = 120.0
    # Registration fits forecasts with the event for its warnings for so long, inside the transaction; then the stored
    # ones have to do.
    warning_refits_s: float = 5.0
    # The newest forecast of a workload is read again after this long, and kept for so many workloads.
    forecast_cache_s: float = 1.0
    forecast_cache_max: int = 1000
    # Watchers look at the store this often when no change signal comes.
    poll_period_s: float = 2.0
    health_period_s: float = 5.0
    health_timeout_s: float = 5.0

    # Of each caller: calls a second on average and at once, calls running, streams open.
    rate_per_caller_qps: float = 200.0
    rate_per_caller_burst: float = 400.0
    calls_per_caller_max: int = 200
    streams_per_caller_max: int = 200
    # Files that say who may do what are looked at this often; streams of those who may no longer, end then.
    reload_period_s: float = 2.0

    # Of all peers at once; more are closed as soon as they are accepted, whether or not they prove anything.
    connections_max: int = 2000
    # Of each connection: streams and calls at once, its longest age, and the time then left to what runs.
    connection_calls_max: int = 1200
    connection_age_max_s: float = 3600.0
    connection_age_grace_s: float = 300.0
    # A connection without any call is closed after this long.
    connection_idle_max_s: float = 1800.0
    # Handshakes that take longer are given up: an attacker would hold them open.
    handshake_timeout_s: float = 10.0
    # Pings closer together than this are abuse; after two of them the connection is closed.
    ping_interval_min_s: float = 10.0
    metadata_bytes_max: int = 16 * 1024
