"""A status says how things stand in conditions with reasons, and changes only when there is something to say."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from controller.core.resources import EventState, TrafficEvent
from controller.core.types import (
    Condition,
    ConditionType,
    Contract,
    ContractState,
    Decision,
    ForecastBand,
    ForecastState,
    Mode,
    Reason,
    Replica,
    Stage,
)
from controller.crd.status import Facts, Json, Synced, event_status, settled, workload_status
from controller.ports import PoolView

NOW = datetime(2026, 11, 10, 12, 0, tzinfo=UTC)
SYNCED = Synced(ok=True, reason="AsSpecified", message="the API has it", resource="workloads/rec")
DECISION = Decision(
    id="d1",
    workload="rec",
    at=NOW,
    mode=Mode.SCALE,
    current_replicas=1,
    desired_replicas=2,
    warm_replicas=1,
    in_flight_replicas=0,
    reason=Reason.EVENT_FLOOR,
    binding=None,
    sentence="Scale 1 to 2: the event asks for it.",
    recommendations=(),
    conditions=(Condition(ConditionType.ABLE_TO_SCALE, ok=True, reason="READY", message="it can"),),
    inputs=(),
    demand_qps=None,
    need_replicas=None,
    plan_revision=None,
    forecast_id=None,
    event_ids=(),
)
CONTRACT = Contract(
    "sale",
    1,
    ContractState.PREWARMING,
    2,
    NOW,
    NOW + timedelta(minutes=9),
    NOW + timedelta(minutes=10),
    NOW + timedelta(hours=1),
    verified_count=1,
)
EVENT = TrafficEvent("sale", ("rec",), CONTRACT.start_at, CONTRACT.end_at, "UTC", state=EventState.PREWARMING)


def view(warm: int) -> PoolView:
    replicas = tuple(Replica(f"p{i}", Stage.VERIFIED, NOW, NOW) for i in range(warm))
    return PoolView(warm, replicas)


def conditions(status: Json) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}


def test_a_workload_is_ready_when_what_is_desired_is_warm() -> None:
    facts = Facts(DECISION, view(2), contracts=(CONTRACT,))
    status = workload_status(SYNCED, facts, 3, NOW)

    assert conditions(status)["Ready"] == ("True", "AsDesired")
    assert conditions(status)["AbleToScale"] == ("True", "Ready")
    assert (status["desiredReplicas"], status["warmReplicas"]) == (2, 2)
    assert status["nextEvent"]["name"] == "sale"
    assert status["lastDecision"] == DECISION.sentence


def test_what_keeps_a_workload_from_being_ready_is_said() -> None:
    competing = Condition(ConditionType.ABLE_TO_SCALE, ok=False, reason="COMPETING_OWNER", message="an HPA")
    fought = replace(DECISION, conditions=(competing,))
    refused = replace(SYNCED, ok=False, reason="InvalidFields")
    said = {
        "cold": workload_status(SYNCED, Facts(DECISION, view(1)), 1, NOW),
        "unseen": workload_status(SYNCED, Facts(DECISION), 1, NOW),
        "new": workload_status(SYNCED, Facts(), 1, NOW),
        "fought": workload_status(SYNCED, Facts(fought, view(2)), 1, NOW),
        "refused": workload_status(refused, Facts(DECISION, view(2)), 1, NOW),
    }

    assert {name: conditions(status)["Ready"] for name, status in said.items()} == {
        "cold": ("False", "ReplicasNotWarm"),
        "unseen": ("Unknown", "ReplicasUnknown"),
        "new": ("Unknown", "NotDecided"),
        "fought": ("False", "CompetingOwner"),
        "refused": ("False", "NotSynced"),
    }
    assert said["unseen"]["warmReplicas"] is None


def test_the_peak_is_of_the_coming_day_and_unknown_without_a_usable_forecast() -> None:
    step = timedelta(hours=1)
    rows = ((9000.0, 9000.0), *((1234.0 + i, 5000.0) for i in range(3)), *((1.0, 1.0),) * 30, (8000.0, 1.0))
    band = ForecastBand("f", NOW, NOW - 2 * step, step, (0.5, 0.9), rows, ForecastState.READY)

    assert workload_status(SYNCED, Facts(band=band), 1, NOW)["forecastPeakQps"] == 1200
    lacking = replace(band, state=ForecastState.INSUFFICIENT_HISTORY)
    assert workload_status(SYNCED, Facts(band=lacking), 1, NOW)["forecastPeakQps"] is None


def test_an_event_is_ready_when_its_replicas_are_warm_for_every_workload() -> None:
    warm = replace(CONTRACT, state=ContractState.WARM, verified_count=2)
    event = replace(EVENT, workloads=("rec", "rank"))
    some = event_status(SYNCED, event, {"rec": (warm,), "rank": (CONTRACT,)}, 1, NOW)
    both = event_status(SYNCED, event, {"rec": (warm,), "rank": (warm,)}, 1, NOW)
    other = event_status(SYNCED, event, {"rec": (replace(warm, event_id="sale-2"),)}, 1, NOW)

    assert conditions(some)["Ready"] == ("False", "Prewarming")
    assert [p["warmReplicas"] for p in some["prewarms"]] == [2, 1]
    assert conditions(both)["Ready"] == ("True", "Warm")
    assert conditions(other)["Ready"] == ("Unknown", "NotPlanned")


def test_of_a_recurring_event_the_nearest_occurrence_counts() -> None:
    later = replace(
        CONTRACT, event_id="sale@2", start_at=NOW + timedelta(days=7), end_at=NOW + timedelta(days=8)
    )
    past = replace(
        CONTRACT, event_id="sale@0", start_at=NOW - timedelta(days=7), end_at=NOW - timedelta(days=6)
    )
    status = event_status(SYNCED, EVENT, {"rec": (later, past, replace(CONTRACT, event_id="sale@1"))}, 1, NOW)

    assert status["startTime"] == "2026-11-10T12:10:00Z"


def test_an_event_that_is_over_or_not_registered_says_so() -> None:
    over = event_status(SYNCED, replace(EVENT, state=EventState.COMPLETED), {}, 1, NOW)
    missing = event_status(replace(SYNCED, ok=False, reason="Conflict"), None, {}, 1, NOW)

    assert conditions(over)["Ready"] == ("False", "Completed")
    assert conditions(missing) == {"Synced": ("False", "Conflict"), "Ready": ("False", "NotSynced")}


def test_a_status_is_written_once_and_keeps_the_time_of_a_standing_condition() -> None:
    first = settled(workload_status(SYNCED, Facts(DECISION, view(1)), 1, NOW), {}, 1, NOW)
    assert first is not None
    kept = {k: v for k, v in first.items() if v is not None}
    later = NOW + timedelta(minutes=5)

    assert settled(workload_status(SYNCED, Facts(DECISION, view(1)), 1, later), kept, 1, later) is None

    changed = settled(workload_status(SYNCED, Facts(DECISION, view(2)), 1, later), kept, 1, later)
    assert changed is not None
    since = {c["type"]: c["lastTransitionTime"] for c in changed["conditions"]}
    assert since["Synced"] == "2026-11-10T12:00:00Z"
    assert since["Ready"] == "2026-11-10T12:05:00Z"
