"""What a cycle has to say as Kubernetes Events: of which decisions, in which words."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from controller.actuators.kubernetes.events import Said, of_alarm, of_decision, raised
from controller.core.types import (
    Alarm,
    AlarmKind,
    Condition,
    ConditionType,
    Decision,
    FleetState,
    Mode,
    Reason,
    WorkloadState,
)

DECISION = Decision(
    id="d1",
    workload="rec",
    at=datetime(2026, 11, 10, 12, 0, tzinfo=UTC),
    mode=Mode.SCALE,
    current_replicas=4,
    desired_replicas=7,
    warm_replicas=4,
    in_flight_replicas=0,
    reason=Reason.EVENT_FLOOR,
    binding=None,
    sentence="Scale 4 to 7: the event asks for it.",
    recommendations=(),
    conditions=(),
    inputs=(),
    demand_qps=None,
    need_replicas=None,
    plan_revision=None,
    forecast_id=None,
    event_ids=(),
)


@pytest.mark.parametrize(
    ("mode", "desired", "ordered", "reasons"),
    [
        (Mode.SCALE, 7, True, ["ScaledUp"]),
        (Mode.SCALE, 2, True, ["ScaledDown"]),
        (Mode.SCALE, 4, True, ["Rescaled"]),
        (Mode.SCALE, 4, False, []),
        (Mode.FLOOR, 7, True, ["FloorRaised"]),
        (Mode.FLOOR, 2, True, ["FloorLowered"]),
        (Mode.RECOMMEND, 7, False, ["Recommended"]),
        (Mode.RECOMMEND, 4, False, []),
        (Mode.KEDA, 7, False, []),
    ],
)
def test_an_order_is_said_by_what_it_does(
    mode: Mode, desired: int, ordered: bool, reasons: list[str]
) -> None:
    decision = replace(DECISION, mode=mode, desired_replicas=desired)
    said = list(of_decision(decision, ordered=ordered, problem=None))

    assert reasons == [s.reason for s in said]
    assert all(s.note == DECISION.sentence and not s.is_warning for s in said)


def test_a_refused_order_and_a_shortfall_are_warnings() -> None:
    short = Condition(
        ConditionType.SCALING_LIMITED, ok=True, reason="SHORTFALL", message="3 pods find no node"
    )
    fine = Condition(ConditionType.ABLE_TO_SCALE, ok=True, reason="READY", message="it can")
    decision = replace(DECISION, conditions=(fine, short))

    assert list(of_decision(decision, ordered=True, problem="the API server does not answer")) == [
        Said(
            "OrderRefused",
            "Scale 4 to 7: the event asks for it. It could not be done: the API server does not answer",
            is_warning=True,
        ),
        Said("Shortfall", "3 pods find no node", is_warning=True),
    ]


def test_an_alarm_is_said_once_while_it_stands() -> None:
    late = Alarm(AlarmKind.PREWARM_LATE, "rec", "sale", "2 of 3 replicas will be late")
    calm, alarmed = (
        FleetState({"rec": WorkloadState()}),
        FleetState({"rec": WorkloadState(alarms=(late,))}),
    )

    assert list(raised(calm, alarmed)) == [late]
    assert list(raised(alarmed, alarmed)) == []
    assert list(raised(FleetState(), alarmed)) == [late]
    assert of_alarm(late) == Said("PrewarmLate", "sale: 2 of 3 replicas will be late", is_warning=True)
