# ruff: noqa: INP001 -- a script beside what it writes; deploy/ is no package
"""Write ``dashboards/*.json`` for Grafana; with ``--check``, report those that are not what this file says.

Promises: five dashboards of one look, with a description on every panel, data sources as variables, and ids and places
that do not clash, because one function lays all of them out. Refuses nothing. Run it by hand after a change here; tests
run every expression against a real Prometheus and every query against a real PostgreSQL, as the read-only role.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WIDTH = 24
PROMETHEUS = {"type": "prometheus", "uid": "${prometheus}"}
POSTGRES = {"type": "grafana-postgresql-datasource", "uid": "${postgres}"}
DOCS = "https://forecrest.example"
ONE = 'workload=~"$workload"'
GREEN, AMBER, RED, BLUE = "green", "orange", "red", "blue"
QPS, SECONDS, SHARE, COUNT, TIME = "reqps", "s", "percentunit", "none", "dateTimeAsIso"
# Steps of a threshold: from each value on, its colour; None is the lowest.
Steps = tuple[tuple[float | None, str], ...]
PLAIN: Steps = ((None, BLUE),)
BAD_ABOVE_0: Steps = ((None, GREEN), (1, RED))
GOOD_FROM_1: Steps = ((None, RED), (1, GREEN))


@dataclass(frozen=True)
class Panel:
    """One panel. ``asks``: (PromQL or SQL, legend). ``height`` in rows of the grid, ``width`` of 24 columns."""

    title: str
    description: str
    asks: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    unit: str = COUNT
    width: int = 12
    height: int = 8
    steps: Steps = PLAIN
    sql: bool = False
    least: float | None = 0
    most: float | None = None
    stacked: bool = False
    decimals: int | None = None
    columns: tuple[tuple[str, str], ...] = ()  # of a table: (field, unit)


@dataclass(frozen=True)
class Dashboard:
    """One dashboard; ``rows`` are headings with their panels."""

    uid: str
    title: str
    description: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]
    since: str = "now-6h"
    until: str = "now"
    refresh: str = "30s"
    one_workload: bool = False
    variables: Sequence[str] = field(default=("namespace", "workload"))


def prom(expr: str) -> str:
    """An expression on one line."""
    return " ".join(expr.split())


def top(metric: str, *labels: str, where: str = "") -> str:
    """One value per workload, whichever process tells it."""
    by = ", ".join(("workload", *labels))
    return f"max by ({by}) ({metric}{{{ONE}{where}}})"


WARM = f'sum by (workload) (max by (workload, stage) (forecrest_replicas{{{ONE}, stage="VERIFIED"}}))'
DESIRED = top("forecrest_decision_desired_replicas")
ALARMS = f"max by (workload, kind) (forecrest_alarms{{{ONE}}})"
UPCOMING = """
SELECT w.workload, c.body->>'event_id' AS event, c.body->>'state' AS state,
       (c.body->>'order_at')::timestamptz AS "prewarm begins", (c.body->>'deadline_at')::timestamptz AS "warm by",
       (c.body->>'start_at')::timestamptz AS "starts", (c.body->>'end_at')::timestamptz AS "ends",
       (c.body->>'replicas')::int AS wanted, (c.body->>'verified_count')::int AS warm,
       (c.body->>'shortfall_replicas')::int AS short
FROM contracts c JOIN (SELECT unnest(ARRAY[${workload:sqlstring}]) AS workload) w ON w.workload = c.workload
WHERE c.end_at > now()
ORDER BY "starts" LIMIT 100"""
DECISIONS = """
SELECT at AS time, workload, current_replicas AS "from", desired_replicas AS "to", reason,
       body->>'sentence' AS sentence, (body->>'demand_qps')::float8 AS demand
FROM decisions
WHERE $__timeFilter(at) AND workload IN (${workload:sqlstring}) AND current_replicas <> desired_replicas
ORDER BY at DESC LIMIT 200"""


def stat(title: str, description: str, expr: str, **more: Any) -> Panel:  # noqa: ANN401 -- of Panel's fields
    """One number."""
    given = {"kind": "stat", "width": 4, "height": 4, "least": None, **more}
    return Panel(title, description, ((expr, ""),), **given)


def table(title: str, description: str, query: str, *columns: tuple[str, str], **more: Any) -> Panel:  # noqa: ANN401
    """Rows of PostgreSQL."""
    given = {"kind": "table", "width": 24, "height": 8, "least": None, "sql": True, **more}
    return Panel(title, description, ((query.strip(), ""),), columns=columns, **given)


FLEET = Dashboard(
    "forecrest-fleet",
    "Forecrest / Fleet",
    "Every workload at a glance: demand, replicas, alarms, what comes.",
    (
        (
            "Now",
            (
                stat(
                    "Workloads",
                    "Workloads that match the variables above.",
                    f"count(max by (workload) (forecrest_workload_info{{{ONE}}})) or vector(0)",
                ),
                stat(
                    "Demand",
                    "Requests offered per second, all selected workloads together, as the newest decisions saw it.",
                    f"sum({top('forecrest_demand_requests_per_second')})",
                    unit=QPS,
                ),
                stat(
                    "Warm replicas",
                    "Replicas whose right engine answers within the SLO.",
                    f"sum({WARM}) or vector(0)",
                ),
                stat(
                    "Missing replicas",
                    "Desired and not warm. More than nothing is normal for one lead time after an order, not longer.",
                    f"sum(clamp_min({DESIRED} - on (workload) ({WARM} or 0 * {DESIRED}), 0)) or vector(0)",
                    steps=((None, GREEN), (1, AMBER), (5, RED)),
                ),
                stat(
                    "Alarms",
                    "Alarms that stand. Each has a runbook.",
                    f"sum({ALARMS}) or vector(0)",
                    steps=BAD_ABOVE_0,
                ),
                stat(
                    "Next prewarm",
                    "Until the next prewarm of a registered event begins; empty: none is ahead.",
                    f"min({top('forecrest_event_order_timestamp_seconds')} > time()) - time()",
                    unit=SECONDS,
                ),
            ),
        ),
        (
            "Demand and replicas",
            (
                Panel(
                    "Demand, ten largest",
                    "Requests offered per second: served, rejected, and growth of the queue.",
                    ((f"topk(10, {top('forecrest_demand_requests_per_second')})", "{{workload}}"),),
                    unit=QPS,
                ),
                Panel(
                    "Replicas",
                    "What is desired, warm, and on its way, all selected workloads together.",
                    (
                        (f"sum({DESIRED})", "desired"),
                        (f"sum({WARM})", "warm"),
                        (
                            (
                                f"sum(max by (workload, stage) (forecrest_replicas{{{ONE},"
                                ' stage=~"ORDERED|SCHEDULED|LOADED|WARMED"}))'
                            ),
                            "on their way",
                        ),
                    ),
                ),
                Panel(
                    "GPUs of quota pools",
                    "GPUs that the desired replicas of each pool take, beside those it owns.",
                    (
                        ("max by (pool) (forecrest_quota_pool_desired_gpus)", "{{pool}} desired"),
                        ("max by (pool) (forecrest_quota_pool_nominal_gpus)", "{{pool}} nominal"),
                    ),
                ),
                Panel(
                    "Alarms by kind",
                    "Alarms that stand, by what they are about.",
                    ((f"sum by (kind) ({ALARMS})", "{{kind}}"),),
                    stacked=True,
                    steps=BAD_ABOVE_0,
                ),
                Panel(
                    "Headroom to max_replicas",
                    "Desired replicas as a share of max_replicas, ten nearest to their limit. At 1 a limit decides, not demand.",
                    (
                        (
                            f"topk(10, {DESIRED} / on (workload) {top('forecrest_workload_max_replicas')})",
                            "{{workload}}",
                        ),
                    ),
                    unit=SHARE,
                    most=1,
                    steps=((None, GREEN), (0.8, AMBER), (1, RED)),
                ),
                Panel(
                    "Reporting replicas",
                    "Share of replicas that answered when demand was last seen, ten lowest.",
                    ((f"bottomk(10, {top('forecrest_demand_reporting_ratio')})", "{{workload}}"),),
                    unit=SHARE,
                    most=1,
                    steps=((None, RED), (0.8, AMBER), (0.95, GREEN)),
                ),
            ),
        ),
        (
            "What comes and what was done",
            (
                table(
                    "Events ahead",
                    "Deadline contracts of events that are not over, the next first. SHORT and AT_RISK need somebody.",
                    UPCOMING,
                    ("short", COUNT),
                ),
                table(
                    "Changes",
                    "Decisions that changed a count, newest first, each with its sentence.",
                    DECISIONS,
                    ("demand", QPS),
                ),
            ),
        ),
    ),
)

WORKLOAD = Dashboard(
    "forecrest-workload",
    "Forecrest / Workload",
    "One workload: what is asked of it, what was forecast, what was decided and why.",
    (
        (
            "Now",
            (
                stat(
                    "Demand",
                    "Requests offered per second.",
                    top("forecrest_demand_requests_per_second"),
                    unit=QPS,
                ),
                stat("Desired", "Replicas that the newest decision asks for.", DESIRED),
                stat("Warm", "Replicas that verifiably serve within the SLO.", f"{WARM} or 0 * {DESIRED}"),
                stat(
                    "Needed now",
                    "Replicas that present demand needs.",
                    top("forecrest_decision_needed_replicas"),
                ),
                stat(
                    "Lead time P95",
                    "From an order to a warm replica, 95th percentile of what was measured.",
                    top("forecrest_lead_time_p95_seconds"),
                    unit=SECONDS,
                ),
                stat(
                    "Alarms",
                    "Alarms that stand; each has a runbook.",
                    f"sum({ALARMS}) or vector(0)",
                    steps=BAD_ABOVE_0,
                ),
            ),
        ),
        (
            "Demand",
            (
                Panel(
                    "Demand and forecast for now",
                    "Offered demand and the quantiles forecast for the same time; near is what it may reach within the lead time.",
                    (
                        (top("forecrest_demand_requests_per_second"), "demand"),
                        (top("forecrest_forecast_demand_requests_per_second", "level"), "forecast {{level}}"),
                        (
                            top(
                                "forecrest_forecast_near_requests_per_second", "level", where=', level="0.99"'
                            ),
                            "near {{level}}",
                        ),
                    ),
                    unit=QPS,
                    height=9,
                ),
                Panel(
                    "Forecast ahead",
                    "The newest stored forecast, its quantiles as they are planned with. Choose a time range that reaches ahead.",
                    (
                        (
                            """
SELECT (f.band->>'start_at')::timestamptz + (i - 1) * (f.band->>'step')::interval AS time,
       'forecast ' || (f.band->'levels'->>(j - 1)) AS metric, f.qps[i][j] AS value
FROM (SELECT band, qps FROM forecasts WHERE workload IN (${workload:sqlstring})
      ORDER BY origin_at DESC, created_at DESC LIMIT 1) f,
     generate_subscripts(f.qps, 1) AS i, generate_subscripts(f.qps, 2) AS j
WHERE $__timeFilter((f.band->>'start_at')::timestamptz + (i - 1) * (f.band->>'step')::interval)
ORDER BY 1""".strip(),
                            "",
                        ),
                    ),
                    unit=QPS,
                    height=9,
                    sql=True,
                ),
                Panel(
                    "Stored demand",
                    "Demand per minute as it is kept and forecast from; minutes observed by less than half are left out, as forecasts do.",
                    (
                        (
                            """
SELECT minute_at AS time, workload AS metric, demand_count / (60 * coverage) AS value
FROM traffic_samples
WHERE $__timeFilter(minute_at) AND workload IN (${workload:sqlstring}) AND coverage >= 0.5
ORDER BY 1""".strip(),
                            "",
                        ),
                    ),
                    unit=QPS,
                    sql=True,
                ),
                Panel(
                    "Reporting replicas",
                    "Share of replicas that answered when demand was last seen. Below the quorum demand is unknown.",
                    ((top("forecrest_demand_reporting_ratio"), "reporting"),),
                    unit=SHARE,
                    most=1,
                    steps=((None, RED), (0.8, AMBER), (0.95, GREEN)),
                ),
            ),
        ),
        (
            "Replicas",
            (
                Panel(
                    "Replicas and what holds them",
                    "Desired and warm replicas with the floors and the limit they stand between.",
                    (
                        (DESIRED, "desired"),
                        (f"{WARM} or 0 * {DESIRED}", "warm"),
                        (top("forecrest_decision_needed_replicas"), "needed now"),
                        (top("forecrest_plan_floor_replicas"), "plan floor"),
                        (top("forecrest_event_floor_replicas"), "event floor"),
                        (top("forecrest_workload_max_replicas"), "max"),
                    ),
                    height=9,
                ),
                Panel(
                    "Replicas by stage",
                    "From ordered to verified; FAILED and WRONG ones are replaced in rounds.",
                    ((top("forecrest_replicas", "stage"), "{{stage}}"),),
                    stacked=True,
                    height=9,
                ),
                Panel(
                    "Why",
                    "The reason of the newest decision over time.",
                    ((top("forecrest_decision_reason", "reason"), "{{reason}}"),),
                    kind="state-timeline",
                    steps=((None, "transparent"), (1, BLUE)),
                ),
                Panel(
                    "Conditions",
                    "ABLE_TO_SCALE and SCALING_ACTIVE should be 1, SCALING_LIMITED 0; the reason stands beside each.",
                    (
                        (
                            (
                                f"{top('forecrest_decision_condition', 'type')} * on (workload, type) group_left (reason)"
                                f" {top('forecrest_decision_condition_reason', 'type', 'reason')}"
                            ),
                            "{{type}}: {{reason}}",
                        ),
                    ),
                    kind="state-timeline",
                    most=1,
                ),
                Panel(
                    "What each source asks for",
                    "AT_LEAST sets floors, AT_MOST ceilings, SET the count between them.",
                    (
                        (
                            top("forecrest_decision_recommended_replicas", "source", "kind"),
                            "{{source}} {{kind}}",
                        ),
                    ),
                ),
                Panel(
                    "Measured starts",
                    "Seconds that each stage took, of every replica that became warm in this time.",
                    (
                        (
                            """
SELECT at AS time, stage.key AS metric, stage.value::float8 AS value
FROM warmups, jsonb_each_text(body->'stage_s') AS stage
WHERE $__timeFilter(at) AND workload IN (${workload:sqlstring})
ORDER BY 1""".strip(),
                            "",
                        ),
                    ),
                    unit=SECONDS,
                    sql=True,
                    kind="barchart",
                ),
            ),
        ),
        (
            "Told",
            (
                table(
                    "Decisions",
                    "Decisions that changed a count, newest first, each with its sentence.",
                    DECISIONS,
                    ("demand", QPS),
                ),
                table(
                    "Plan floors",
                    "Floors of the newest capacity plan that are still to come, with the time each has to be ordered.",
                    """
SELECT p.workload, p.revision, (f->>'replicas')::int AS replicas, (f->>'order_at')::timestamptz AS "order at",
       (f->>'needed_at')::timestamptz AS "needed at", (f->>'until_at')::timestamptz AS "until",
       f->>'event_id' AS event, f->>'reason' AS reason, (f->>'unmet_replicas')::int AS short
FROM (SELECT DISTINCT ON (workload) workload, revision, body FROM capacity_plans
      WHERE workload IN (${workload:sqlstring}) ORDER BY workload, revision DESC) p,
     jsonb_array_elements(p.body->'floors') AS f
WHERE (f->>'until_at')::timestamptz > now()
ORDER BY 4 LIMIT 100""",
                ),
            ),
        ),
    ),
    since="now-12h",
    until="now+12h",
    one_workload=True,
)

SLACK = (
    f"{top('forecrest_event_deadline_timestamp_seconds')} - on (workload)"
    f" {top('forecrest_event_expected_warm_timestamp_seconds')}"
)
WARM_SHARE = (
    f"{top('forecrest_event_stage_replicas', where=', stage=' + chr(34) + 'VERIFIED' + chr(34))} / on (workload)"
    f" ({top('forecrest_event_wanted_replicas')} > 0)"
)
NIGHT = Dashboard(
    "forecrest-event-night",
    "Forecrest / Event night",
    "Will the fleet be warm? One page for the hours before and after an event starts.",
    (
        (
            "Will it be warm?",
            (
                stat(
                    "Until the start",
                    "Seconds until the event starts; below 0 it runs. Of several workloads, the earliest.",
                    f"min({top('forecrest_event_start_timestamp_seconds')}) - time()",
                    unit=SECONDS,
                    steps=((None, BLUE), (0, AMBER), (3600, GREEN)),
                ),
                stat(
                    "Slack",
                    "Seconds between the last replica being warm, as expected, and the deadline. Below 0 it will be late.",
                    f"min({SLACK})",
                    unit=SECONDS,
                    steps=((None, RED), (0, AMBER), (60, GREEN)),
                ),
                stat(
                    "Warm",
                    "Share of wanted replicas that are verified warm, of the workload that has the least.",
                    f"min({WARM_SHARE})",
                    unit=SHARE,
                    steps=((None, RED), (0.5, AMBER), (1, GREEN)),
                ),
                stat(
                    "Wanted",
                    "Replicas that the events need warm.",
                    f"sum({top('forecrest_event_wanted_replicas')})",
                ),
                stat(
                    "Short by limits",
                    "Replicas that max_replicas or quota cuts off, known beforehand: raise the limit.",
                    f"sum({top('forecrest_event_shortfall_replicas')}) or vector(0)",
                    steps=BAD_ABOVE_0,
                ),
                stat(
                    "Alarms",
                    "Alarms that stand; each has a runbook.",
                    f"sum({ALARMS}) or vector(0)",
                    steps=BAD_ABOVE_0,
                ),
            ),
        ),
        (
            "The ladder",
            (
                Panel(
                    "Replicas at or past each stage",
                    "ordered, scheduled, loaded, warmed, verified: each line must reach what is wanted, the last by the deadline.",
                    (
                        (f"sum by (stage) ({top('forecrest_event_stage_replicas', 'stage')})", "{{stage}}"),
                        (f"sum({top('forecrest_event_wanted_replicas')})", "wanted"),
                    ),
                    height=9,
                ),
                Panel(
                    "Warm share by workload",
                    "Verified over wanted replicas of each workload's event.",
                    ((WARM_SHARE, "{{workload}}"),),
                    unit=SHARE,
                    most=1.1,
                    height=9,
                    steps=((None, RED), (1, GREEN)),
                ),
                Panel(
                    "State of the contracts",
                    "1 for the state each workload's event is in: PLANNED, PREWARMING, AT_RISK, WARM, ACTIVE, SHORT, FIZZLED.",
                    ((top("forecrest_event_state", "event", "state"), "{{workload}} {{event}} {{state}}"),),
                    kind="state-timeline",
                    steps=((None, "transparent"), (1, BLUE)),
                ),
                Panel(
                    "Slack by workload",
                    "Seconds in hand before the deadline, by the lead-time model; below 0 the last replica is late.",
                    ((SLACK, "{{workload}}"),),
                    unit=SECONDS,
                    least=None,
                    steps=((None, RED), (0, AMBER), (60, GREEN)),
                ),
            ),
        ),
        (
            "The load",
            (
                Panel(
                    "Demand and what it may reach",
                    "Offered demand, and the 0.99 quantile of the highest demand within the lead time.",
                    (
                        (top("forecrest_demand_requests_per_second"), "{{workload}}"),
                        (
                            top("forecrest_forecast_near_requests_per_second", where=', level="0.99"'),
                            "{{workload}} near 0.99",
                        ),
                    ),
                    unit=QPS,
                ),
                Panel(
                    "Needed, desired, warm",
                    "What present demand needs must stay below what is warm.",
                    (
                        (f"sum({top('forecrest_decision_needed_replicas')})", "needed now"),
                        (f"sum({DESIRED})", "desired"),
                        (f"sum({WARM})", "warm"),
                    ),
                ),
                Panel(
                    "Alarms",
                    "Alarms that stand, by workload and kind.",
                    ((ALARMS, "{{workload}} {{kind}}"),),
                    stacked=True,
                    steps=BAD_ABOVE_0,
                ),
                Panel(
                    "Age of the newest decision's data",
                    "Seconds since demand was last seen, and since the loop last decided. Both should stay near their periods.",
                    (
                        (
                            f"time() - min({top('forecrest_demand_observed_timestamp_seconds')})",
                            "demand, oldest",
                        ),
                        ("time() - max(forecrest_loop_last_tick_timestamp_seconds)", "tick"),
                    ),
                    unit=SECONDS,
                    steps=((None, GREEN), (30, AMBER), (60, RED)),
                ),
                table("Contracts", "Events that are not over, the next first.", UPCOMING),
            ),
        ),
    ),
    since="now-2h",
    refresh="5s",
)

FORECASTER = Dashboard(
    "forecrest-forecaster",
    "Forecrest / Forecaster",
    "How good forecasts are, hour by hour, and whether the loop trusts them.",
    (
        (
            "Trust",
            (
                stat(
                    "Distrusted",
                    "Workloads whose forecast sets no floors, because it lately did worse than yesterday's values.",
                    f"count({top('forecrest_forecast_trust', where=', trust=' + chr(34) + 'DISTRUSTED' + chr(34))}) or vector(0)",
                    steps=BAD_ABOVE_0,
                ),
                stat(
                    "Not ready",
                    "Workloads whose forecast is in another state than READY.",
                    f"count({top('forecrest_forecast_state', where=', state!=' + chr(34) + 'READY' + chr(34))}) or vector(0)",
                    steps=((None, GREEN), (1, AMBER)),
                ),
                stat(
                    "Oldest forecast",
                    "Seconds since the end of the data that the oldest forecast was made from. Three hours are too old.",
                    f"time() - min({top('forecrest_forecast_origin_timestamp_seconds')})",
                    unit=SECONDS,
                    steps=((None, GREEN), (3600, AMBER), (10_800, RED)),
                ),
                stat(
                    "Better than yesterday",
                    "Share of workloads whose one-hour forecasts lose less than yesterday's values would have.",
                    f"avg({top('forecrest_accuracy_naive_ratio', where=', lead_seconds=' + chr(34) + '3600' + chr(34))} < bool 1)",
                    unit=SHARE,
                    steps=((None, RED), (0.5, AMBER), (0.8, GREEN)),
                ),
                stat(
                    "Median bias",
                    "Error over demand of one-hour forecasts, the middle workload; above 0 is too high.",
                    f"quantile(0.5, {top('forecrest_accuracy_bias_ratio', where=', lead_seconds=' + chr(34) + '3600' + chr(34))})",
                    unit=SHARE,
                    decimals=1,
                ),
                stat(
                    "Refit and nowcast",
                    "Seconds that the newest turn of the slowest forecasting task took.",
                    'max(forecrest_loop_turn_duration_seconds{task=~"forecast|near|calibrate"})',
                    unit=SECONDS,
                ),
            ),
        ),
        (
            "Accuracy, live",
            (
                Panel(
                    "Loss over yesterday's, by lead",
                    "Pinball loss over that of repeating yesterday; below 1 is better. Mean over workloads.",
                    (
                        (
                            f"avg by (lead_seconds) ({top('forecrest_accuracy_naive_ratio', 'lead_seconds')})",
                            "{{lead_seconds}} s ahead",
                        ),
                    ),
                    unit="percentunit",
                    steps=((None, GREEN), (1, RED)),
                ),
                Panel(
                    "Bias by lead",
                    "Error over demand; above 0 forecasts are too high. Mean over workloads.",
                    (
                        (
                            f"avg by (lead_seconds) ({top('forecrest_accuracy_bias_ratio', 'lead_seconds')})",
                            "{{lead_seconds}} s ahead",
                        ),
                    ),
                    unit=SHARE,
                    least=None,
                ),
                Panel(
                    "Coverage, one hour ahead",
                    "Share of steps at or below each quantile; each line should run along its own level.",
                    (
                        (
                            f"avg by (level) ({top('forecrest_accuracy_coverage_ratio', 'level')})",
                            "level {{level}}",
                        ),
                    ),
                    unit=SHARE,
                    most=1,
                ),
                Panel(
                    "Worst workloads",
                    "Ten highest losses over yesterday's values, one hour ahead.",
                    (
                        (
                            f"topk(10, {top('forecrest_accuracy_naive_ratio', where=', lead_seconds=' + chr(34) + '3600' + chr(34))})",
                            "{{workload}}",
                        ),
                    ),
                    unit="percentunit",
                    steps=((None, GREEN), (1, RED)),
                ),
            ),
        ),
        (
            "State",
            (
                Panel(
                    "Forecasts by state",
                    "READY and DEGRADED set floors, INSUFFICIENT_HISTORY and FAILED do not.",
                    ((f"count by (state) ({top('forecrest_forecast_state', 'state')})", "{{state}}"),),
                    stacked=True,
                ),
                Panel(
                    "Forecasts by trust",
                    "UNPROVEN ones set floors, but scale-down does not lean on them.",
                    ((f"count by (trust) ({top('forecrest_forecast_trust', 'trust')})", "{{trust}}"),),
                    stacked=True,
                ),
                table(
                    "Who makes the forecasts",
                    "Champion, the reason it is one, and what the loop thinks of it.",
                    """
SELECT workload, body->>'champion' AS champion, (body->>'since_at')::timestamptz AS since, body->>'reason' AS reason,
       body->>'challenger' AS challenger, (body->>'win_count')::int AS wins, body->>'trust' AS trust,
       body->>'trust_reason' AS "trust, because"
FROM forecast_standings WHERE workload IN (${workload:sqlstring}) ORDER BY workload LIMIT 200""",
                ),
                table(
                    "Scored hours",
                    "Forecasts against what came, hour by hour and lead by lead, newest first.",
                    """
SELECT s.start_at AS time, s.workload, extract(epoch FROM (l->>'lead')::interval) AS "lead",
       (l->>'loss_sum')::float8 / nullif((l->>'step_count')::int, 0) AS loss,
       (l->>'error_sum')::float8 / nullif((l->>'demand_sum')::float8, 0) AS bias
FROM forecast_scores s, jsonb_array_elements(s.body->'leads') AS l
WHERE $__timeFilter(s.start_at) AND s.workload IN (${workload:sqlstring})
ORDER BY 1 DESC, 2, 3 LIMIT 500""",
                    ("lead", SECONDS),
                    ("loss", QPS),
                    ("bias", SHARE),
                ),
            ),
        ),
    ),
    since="now-24h",
    refresh="1m",
)

CONTROL = Dashboard(
    "forecrest-control-plane",
    "Forecrest / Control plane",
    "Whether the controllers themselves are well: leadership, the loop, the database, the API.",
    (
        (
            "Now",
            (
                stat(
                    "Shards without a leader",
                    "A single leader holds the one there is. 0 but for two leases at most; below 0, two lead one.",
                    "max(forecrest_shards) - sum(forecrest_shards_held) or vector(1)",
                    steps=((None, AMBER), (0, GREEN), (1, RED)),
                ),
                stat(
                    "Last tick",
                    "Seconds since the loop last decided.",
                    "time() - max(forecrest_loop_last_tick_timestamp_seconds)",
                    unit=SECONDS,
                    steps=((None, GREEN), (30, AMBER), (60, RED)),
                ),
                stat(
                    "Database",
                    "1 while PostgreSQL answers every controller.",
                    "min(forecrest_database_up)",
                    steps=GOOD_FROM_1,
                ),
                stat(
                    "Traffic waiting",
                    "Minutes of traffic that wait for the database, in memory.",
                    "max(forecrest_loop_pending_samples)",
                    steps=((None, GREEN), (100, AMBER), (10_000, RED)),
                ),
                stat(
                    "Orders refused",
                    "Orders that the actuator refused in the last hour.",
                    'sum(increase(forecrest_orders_total{result="refused"}[1h]))',
                    steps=BAD_ABOVE_0,
                    decimals=0,
                ),
                stat(
                    "Certificate",
                    "Seconds until the server's certificate ends; empty without TLS.",
                    "min(forecrest_tls_certificate_expiry_timestamp_seconds) - time()",
                    unit=SECONDS,
                    steps=((None, RED), (604_800, AMBER), (2_592_000, GREEN)),
                ),
            ),
        ),
        (
            "The loop",
            (
                Panel(
                    "Who leads",
                    "1 for the controller that leads.",
                    (("forecrest_leader", "{{instance}}"),),
                    kind="state-timeline",
                    steps=((None, "transparent"), (1, GREEN)),
                ),
                Panel(
                    "How long turns take",
                    "Seconds of the newest turn of each task, the slowest controller.",
                    (("max by (task) (forecrest_loop_turn_duration_seconds)", "{{task}}"),),
                    unit=SECONDS,
                ),
                Panel(
                    "Since the last turn",
                    "Seconds since each task's turn ended. tick and scrape above 300 fail the liveness probe.",
                    (('max by (task) (forecrest_loop_turn_age_seconds{task=~"tick|scrape"})', "{{task}}"),),
                    unit=SECONDS,
                    steps=((None, GREEN), (60, AMBER), (300, RED)),
                ),
                Panel(
                    "Failed turns",
                    "Turns of each task that failed, in five minutes.",
                    (("sum by (task) (increase(forecrest_loop_failures_total[5m]))", "{{task}}"),),
                    steps=BAD_ABOVE_0,
                ),
                Panel(
                    "Orders",
                    "Orders of replica counts per minute, by whether the actuator took them.",
                    (("sum by (result) (rate(forecrest_orders_total[5m])) * 60", "{{result}} per minute"),),
                ),
                Panel(
                    "Workloads",
                    "Workloads of the newest tick, and those without series of their own.",
                    (
                        ("max(forecrest_workloads)", "workloads"),
                        ("max(forecrest_workloads_hidden)", "hidden here"),
                    ),
                ),
            ),
        ),
        (
            "The API",
            (
                Panel(
                    "Calls",
                    "Calls that ended, a second, by gRPC code.",
                    (("sum by (code) (rate(forecrest_api_calls_total[5m]))", "{{code}}"),),
                    unit=QPS,
                    stacked=True,
                ),
                Panel(
                    "How long calls take, P95",
                    "Seconds, ten slowest methods; streams are left out, they last as long as somebody watches.",
                    (
                        (
                            (
                                "topk(10, histogram_quantile(0.95, sum by (method, le) (rate("
                                'forecrest_api_call_duration_seconds_bucket{method!~".*/(Watch|Stream).*"}[5m]))))'
                            ),
                            "{{method}}",
                        ),
                    ),
                    unit=SECONDS,
                ),
                Panel(
                    "Refused callers",
                    "Calls a second without good credentials, without the right, or too many.",
                    (
                        (
                            (
                                "sum by (code) (rate(forecrest_api_calls_total"
                                '{code=~"UNAUTHENTICATED|PERMISSION_DENIED|RESOURCE_EXHAUSTED"}[5m]))'
                            ),
                            "{{code}}",
                        ),
                    ),
                    unit=QPS,
                    steps=((None, GREEN), (1, RED)),
                ),
                Panel(
                    "Streams and audit",
                    "Open watch streams, and audit entries that wait for the database.",
                    (
                        ("sum by (instance) (forecrest_api_streams)", "streams {{instance}}"),
                        ("sum by (instance) (forecrest_audit_pending_entries)", "audit waiting {{instance}}"),
                    ),
                ),
                Panel(
                    "Security files",
                    "1 while the newest version of a file or key set cannot be used; the last good one stays in force.",
                    (("max by (source) (forecrest_security_source_failed)", "{{source}}"),),
                    kind="state-timeline",
                    steps=BAD_ABOVE_0,
                ),
                Panel(
                    "Notifications",
                    "Notifications that each sink has not got yet, and those given up in the last 30 days.",
                    (
                        ("max by (sink) (forecrest_notifications_pending)", "{{sink}} waiting"),
                        ("max by (sink) (forecrest_notifications_dead)", "{{sink}} given up"),
                    ),
                    steps=((None, GREEN), (20, AMBER)),
                ),
                Panel(
                    "Releases",
                    "Controllers by release; two only during an upgrade.",
                    (("count by (version) (forecrest_build_info)", "{{version}}"),),
                ),
            ),
        ),
        (
            "Told by the database",
            (
                table(
                    "Leaderships",
                    "Who decided when: each fencing token with its first and last decision in this time.",
                    """
SELECT fence, min(at) AS since, max(at) AS until, count(*) AS decisions
FROM decisions WHERE $__timeFilter(at) AND fence IS NOT NULL
GROUP BY fence ORDER BY fence DESC LIMIT 50""",
                    width=12,
                ),
                table(
                    "Lease",
                    "Who holds the lease and until when, on the database's clock.",
                    "SELECT name, holder, token, expires_at FROM leases ORDER BY name LIMIT 20",
                    width=12,
                ),
            ),
        ),
    ),
    variables=(),
)

DASHBOARDS = (FLEET, WORKLOAD, NIGHT, FORECASTER, CONTROL)
_VARIABLES = {
    "namespace": "label_values(forecrest_workload_info, workload_namespace)",
    "workload": 'label_values(forecrest_workload_info{workload_namespace=~"$namespace"}, workload)',
}


# Events as bands behind every graph, ahead of now as well where the time range reaches there.
_EVENTS = {
    "name": "Events",
    "datasource": POSTGRES,
    "enable": True,
    "hide": False,
    "iconColor": "purple",
    "target": {
        "refId": "Events",
        "format": "table",
        "rawQuery": True,
        "rawSql": """
SELECT (body->>'start_at')::timestamptz AS time, (body->>'end_at')::timestamptz AS timeend,
       body->>'event_id' AS text, workload AS tags
FROM contracts
WHERE $__timeFilter((body->>'start_at')::timestamptz) AND workload IN (${workload:sqlstring})
ORDER BY 1 LIMIT 200""".strip(),
    },
}


def _variable(name: str, query: str, *, many: bool) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": PROMETHEUS,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": many,
        "includeAll": many,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]} if many else {},
        "options": [],
        "hide": 0,
    }


def _source(name: str, label: str, kind: str) -> dict[str, Any]:
    return {"name": name, "label": label, "type": "datasource", "query": kind, "refresh": 1, "hide": 0}


def _target(panel: Panel, number: int, query: str, legend: str) -> dict[str, Any]:
    ref = chr(ord("A") + number)
    if panel.sql:
        form = "table" if panel.kind == "table" else "time_series"
        return {"refId": ref, "datasource": POSTGRES, "format": form, "rawQuery": True, "rawSql": query}
    instant = panel.kind == "stat"
    return {
        "refId": ref,
        "datasource": PROMETHEUS,
        "expr": prom(query),
        "legendFormat": legend,
        "instant": instant,
        "range": not instant,
    }


def _options(panel: Panel) -> dict[str, Any]:
    match panel.kind:
        case "stat":
            calc = {"calcs": ["lastNotNull"], "fields": "", "values": False}
            return {
                "reduceOptions": calc,
                "colorMode": "background",
                "graphMode": "none",
                "textMode": "value",
            }
        case "table":
            return {"showHeader": True, "cellHeight": "sm", "footer": {"show": False}}
        case "state-timeline":
            return {"showValue": "never", "mergeValues": True, "legend": {"showLegend": False}}
        case "barchart":
            return {
                "stacking": "normal",
                "xField": "time",
                "legend": {"displayMode": "list", "placement": "bottom"},
            }
        case _:
            shown = {"displayMode": "list", "placement": "bottom", "showLegend": True}
            return {"legend": shown, "tooltip": {"mode": "multi", "sort": "desc"}}


def _defaults(panel: Panel) -> dict[str, Any]:
    steps = [{"color": colour, "value": value} for value, colour in panel.steps]
    custom: dict[str, Any] = {}
    if panel.kind == "timeseries":
        custom = {
            "lineWidth": 1,
            "fillOpacity": 20 if panel.stacked else 0,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none"},
            "thresholdsStyle": {"mode": "off" if panel.steps == PLAIN else "line"},
        }
    found: dict[str, Any] = {
        "unit": panel.unit,
        "color": {"mode": "palette-classic" if panel.kind == "timeseries" else "thresholds"},
        "thresholds": {"mode": "absolute", "steps": steps},
        "custom": custom,
        # An absent sample is unknown, and says so instead of looking like 0.
        "noValue": "unknown" if panel.kind == "stat" else "",
    }
    limits = {"min": panel.least, "max": panel.most, "decimals": panel.decimals}
    return found | {name: value for name, value in limits.items() if value is not None}


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    overrides = [
        {"matcher": {"id": "byName", "options": name}, "properties": [{"id": "unit", "value": unit}]}
        for name, unit in panel.columns
    ]
    if panel.kind == "table":
        address = "/d/forecrest-workload?${prometheus:queryparam}&${postgres:queryparam}&var-workload=${__value.text}"
        link = {"title": "Open this workload", "url": address, "targetBlank": False}
        overrides.append(
            {
                "matcher": {"id": "byName", "options": "workload"},
                "properties": [{"id": "links", "value": [link]}],
            }
        )
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": POSTGRES if panel.sql else PROMETHEUS,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "targets": [_target(panel, n, query, legend) for n, (query, legend) in enumerate(panel.asks)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": overrides},
        "options": _options(panel),
    }


def _laid_out(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    """Rows from top to bottom; within a row from left to right, as high as its highest panel."""
    number, y = 1, 0
    for heading, panels in dashboard.rows:
        place = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        yield {
            "id": number,
            "type": "row",
            "title": heading,
            "collapsed": False,
            "gridPos": place,
            "panels": [],
        }
        number, y, x, highest = number + 1, y + 1, 0, 0
        for panel in panels:
            if x + panel.width > WIDTH:
                x, y, highest = 0, y + highest, 0
            yield _panel(panel, number, x, y)
            number, x, highest = number + 1, x + panel.width, max(highest, panel.height)
        y += highest


def rendered(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard as Grafana 11 or later reads it."""
    others = {"type": "dashboards", "tags": ["forecrest"], "title": "Forecrest", "asDropdown": True}
    runbooks = {
        "type": "link",
        "title": "Runbooks",
        "url": f"{DOCS}/runbooks/",
        "icon": "doc",
        "targetBlank": True,
    }
    common = {"includeVars": True, "keepTime": True, "tags": ["forecrest"], "tooltip": ""}
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["forecrest"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "timezone": "browser",
        "refresh": dashboard.refresh,
        "time": {"from": dashboard.since, "to": dashboard.until},
        "links": [common | others, {**common, **runbooks, "tags": []}],
        "annotations": {"list": [_EVENTS] if dashboard.variables else []},
        "templating": {
            "list": [
                _source("prometheus", "Prometheus", "prometheus"),
                _source("postgres", "PostgreSQL", "grafana-postgresql-datasource"),
                *(
                    _variable(name, _VARIABLES[name], many=name == "namespace" or not dashboard.one_workload)
                    for name in dashboard.variables
                ),
            ]
        },
        "panels": list(_laid_out(dashboard)),
    }


def main() -> int:
    """Return 0 if the files are (now) what this file says, else 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a file is out of date")
    check: bool = parser.parse_args().check
    stale = 0
    for dashboard in DASHBOARDS:
        path = HERE / "dashboards" / f"{dashboard.uid.removeprefix('forecrest-')}.json"
        text = json.dumps(rendered(dashboard), indent=2) + "\n"
        if path.exists() and path.read_text() == text:
            continue
        stale += 1
        if check:
            sys.stderr.write(f"{path.name} is out of date; run `python deploy/grafana/generate.py`\n")
        else:
            path.write_text(text)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
