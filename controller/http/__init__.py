"""The HTTP side port: metrics for Prometheus, liveness and readiness for orchestrators. Read-only."""
