"""What makes a workload acceptable. Pure; every bad field is named at once, with the range it must have."""

from collections.abc import Mapping
from datetime import timedelta

from controller.core.types import Behavior, CapacityProfile, Policy, ScalingRules, Slo, Workload
from controller.usecases.errors import Findings
from controller.usecases.names import check_id
from controller.usecases.occurrences import ZONE_REMEDY, zone_of
from controller.usecases.target_rules import check_target

REPLICAS_MAX = 10_000
QPS_MIN = 1e-6  # a request in twelve days; less than that is a unit mistaken
PRIORITY_MAX = 1000
SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)

POLICY_DURATIONS: dict[str, tuple[timedelta, timedelta]] = {
    "stable_window": (10 * SECOND, HOUR),
    "panic_window": (SECOND, HOUR),
    "drain_target": (SECOND, HOUR),
    "signal_age_max": (SECOND, HOUR),
    "forecast_age_max": (MINUTE, 7 * DAY),
    "scale_to_zero_after": (MINUTE, 7 * DAY),
    "break_even": (timedelta(0), DAY),
    "prewarm_margin": (timedelta(0), DAY),
    "tick_slack": (timedelta(0), 10 * MINUTE),
    "order_timeout": (10 * SECOND, DAY),
    "fizzle_after": (MINUTE, DAY),
    "fizzle_half_life": (10 * SECOND, DAY),
    "hold_max": (timedelta(0), 7 * DAY),
}


def check_workload(workload: Workload, findings: Findings) -> None:
    """Record everything wrong with ``workload``; field paths are relative to it."""
    check_id(findings, "name", workload.name)
    findings.text("model_name", workload.model_name, 1, 200)
    findings.require(
        workload.model_version.isdecimal()
        and workload.model_version.isascii()
        and len(workload.model_version) <= 18,
        "model_version",
        f'must be a whole number in decimal, for example "1"; got {workload.model_version[:40]!r}',
    )
    check_id(findings, "namespace", workload.namespace)
    findings.require(1 <= len(workload.profiles) <= 20, "profiles", "must have 1 to 20 capacity profiles")
    for index, profile in enumerate(workload.profiles[:20]):
        check_profile(profile, f"profiles[{index}]", findings)
    findings.number("min_replicas", workload.min_replicas, 0, REPLICAS_MAX)
    findings.number("max_replicas", workload.max_replicas, 1, REPLICAS_MAX)
    findings.require(
        workload.min_replicas <= workload.max_replicas,
        "max_replicas",
        f"must not be less than min_replicas ({workload.min_replicas}); got {workload.max_replicas}",
    )
    findings.number("priority", workload.priority, -PRIORITY_MAX, PRIORITY_MAX)
    if workload.quota_pool is not None:
        check_id(findings, "quota_pool", workload.quota_pool)
    if workload.engine_digest is not None:
        findings.text("engine_digest", workload.engine_digest, 1, 200)
    if workload.demand_query is not None:
        findings.text("demand_query", workload.demand_query, 1, 2000)
    if workload.time_zone is not None:
        findings.require(
            zone_of(workload.time_zone) is not None,
            "time_zone",
            f"{ZONE_REMEDY}, or empty if it is not known; got {workload.time_zone[:60]!r}",
        )
    check_target(workload.target, findings)
    check_pairs(dict(workload.labels), "labels", findings, count_max=64, value_max=200)
    check_slo(workload.slo, findings)
    _check_policy(workload.policy, findings)


def check_pairs(
    pairs: Mapping[str, str], field: str, findings: Findings, *, count_max: int, value_max: int
) -> None:
    """Bound a free map of strings."""
    findings.require(
        len(pairs) <= count_max, field, f"must have at most {count_max} entries; got {len(pairs)}"
    )
    for key, value in list(pairs.items())[:count_max]:
        findings.text(f'{field}["{key[:63]}"]', key, 1, 63)
        findings.text(f'{field}["{key[:63]}"]', value, 0, value_max)


def check_profile(profile: CapacityProfile, at: str, findings: Findings) -> None:
    """Record everything wrong with a capacity profile under the path ``at``."""
    findings.text(f"{at}.engine", profile.engine, 1, 200)
    findings.text(f"{at}.gpu_type", profile.gpu_type, 0, 63)
    findings.number(f"{at}.qps_max", profile.qps_max, QPS_MIN, 1e7, unit="requests per second")
    findings.number(f"{at}.instance_count", profile.instance_count, 1, 1000)
    findings.number(f"{at}.batch_size_max", profile.batch_size_max, 1, 100_000)
    findings.number(f"{at}.service_scv", profile.service_scv, 0, 100)
    findings.number(f"{at}.queue_delay_max_s", profile.queue_delay_max_s, 0, 60, unit="seconds")
    findings.number(f"{at}.gpus_per_replica", profile.gpus_per_replica, 0, 64)


def check_slo(slo: Slo, findings: Findings) -> None:
    """Record everything wrong with an SLO."""
    findings.number("slo.wait_s", slo.wait_s, 0, 3600, above=True, unit="seconds")
    findings.number("slo.wait_exceed_share", slo.wait_exceed_share, 1e-9, 1 - 1e-9)
    findings.number("slo.latency_ms_p99", slo.latency_ms_p99, 0, 3_600_000, above=True, unit="milliseconds")


def _check_policy(policy: Policy, findings: Findings) -> None:
    for name in ("cost_under_per_hour", "cost_over_per_hour"):
        findings.number(f"policy.{name}", getattr(policy, name), 0, 1e9, above=True)
    findings.number("policy.panic_threshold", policy.panic_threshold, 1, 100)
    findings.number("policy.quorum", policy.quorum, 0, 1, above=True)
    findings.number("policy.fizzle_share", policy.fizzle_share, 0, 1)
    findings.number("policy.planner_floor_share", policy.planner_floor_share, 0, 1)
    findings.number("policy.arrival_scv", policy.arrival_scv, 0, 100)
    for name, (low, high) in POLICY_DURATIONS.items():
        findings.duration(f"policy.{name}", getattr(policy, name), low, high)
    findings.require(
        policy.panic_window <= policy.stable_window,
        "policy.panic_window",
        "must not be longer than stable_window",
    )
    _check_behavior(policy.behavior, findings)


def _check_behavior(behavior: Behavior, findings: Findings) -> None:
    findings.number("policy.behavior.tolerance", behavior.tolerance, 0, 1)
    for name in ("scale_up", "scale_down"):
        rules: ScalingRules = getattr(behavior, name)
        at = f"policy.behavior.{name}"
        findings.duration(f"{at}.stabilization_window", rules.stabilization_window, timedelta(0), HOUR)
        findings.require(len(rules.policies) <= 10, f"{at}.policies", "must have at most 10 entries")
        for index, rule in enumerate(rules.policies[:10]):
            findings.number(f"{at}.policies[{index}].value", rule.value, 1, REPLICAS_MAX)
            findings.duration(f"{at}.policies[{index}].period", rule.period, SECOND, HOUR)
