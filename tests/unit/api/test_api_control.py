"""ControlService over a real channel, on the fakes."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from forecrest.v1 import control_pb2, control_service_pb2

from controller.adapters.fakes import FakeStore
from controller.client import ApiError, Client, pages
from controller.core.resources import Outcome
from controller.core.types import (
    Alarm,
    AlarmKind,
    CapacityPlan,
    Condition,
    ConditionType,
    Decision,
    Floor,
    InputAge,
    Mode,
    Reason,
    Recommendation,
    RecommendationKind,
    Source,
    WorkloadState,
)

Refused = Callable[[Awaitable[object]], Awaitable[ApiError]]
NOW = datetime(2026, 11, 10, 12, 0, tzinfo=UTC)


def a_decision(number: int, workload: str = "rec") -> Decision:
    at = NOW + timedelta(seconds=number)
    return Decision(
        id=f"{workload}-{at:%Y%m%dT%H%M%S%f}",
        workload=workload,
        at=at,
        mode=Mode.SCALE,
        current_replicas=4,
        desired_replicas=4 + number % 2,
        warm_replicas=4,
        in_flight_replicas=None,
        reason=Reason.EVENT_FLOOR,
        binding=Source.EVENT,
        sentence="11.11 needs 5",
        recommendations=(Recommendation(Source.EVENT, RecommendationKind.AT_LEAST, 5, "11.11"),),
        conditions=(Condition(ConditionType.ABLE_TO_SCALE, True, "OK", ""),),
        inputs=(InputAge("demand", None, "nobody answered"),),
        demand_qps=None,
        need_replicas=0,
        plan_revision=3,
        forecast_id=None,
        event_ids=("double-eleven",),
    )


async def seed(store: FakeStore, *decisions: Decision) -> None:
    async with store.unit_of_work() as uow:
        await uow.decisions.append(decisions)
        await uow.commit()


async def test_a_decision_is_told_with_its_inputs_and_outcome(client: Client, store: FakeStore) -> None:
    decision = a_decision(1)
    await seed(store, decision)
    async with store.unit_of_work() as uow:
        await uow.decisions.outcome(Outcome(decision.id, NOW, True, 5, "ordered"))
        await uow.commit()

    read = await client.control.GetDecision(
        control_service_pb2.GetDecisionRequest(name=f"decisions/{decision.id}")
    )

    assert (read.workload, read.desired_replicas) == ("workloads/rec", 5)
    assert (read.reason, read.binding) == (control_pb2.DECISION_REASON_EVENT_FLOOR, control_pb2.SOURCE_EVENT)
    assert read.recommendations[0].replicas == 5
    assert (read.outcome.applied, read.outcome.observed_replicas) == (True, 5)


async def test_unknown_is_absent_and_zero_is_zero(client: Client, store: FakeStore) -> None:
    decision = a_decision(1)
    await seed(store, decision)

    read = await client.control.GetDecision(
        control_service_pb2.GetDecisionRequest(name=f"decisions/{decision.id}")
    )

    assert not read.HasField("demand_qps")
    assert not read.HasField("in_flight_replicas")
    assert not read.inputs[0].HasField("age_s")
    assert not read.HasField("outcome")
    assert read.HasField("need_replicas")
    assert read.need_replicas == 0


async def test_decisions_are_listed_newest_first_and_filtered(client: Client, store: FakeStore) -> None:
    await seed(store, *(a_decision(n) for n in range(4)), a_decision(9, "search"))

    async def numbers(**fields: object) -> list[float]:
        request = control_service_pb2.ListDecisionsRequest(page_size=2, **fields)  # type: ignore[arg-type]
        found = pages(client.control.ListDecisions, request, "decisions")
        return [(d.decide_time.ToDatetime(tzinfo=UTC) - NOW).total_seconds() async for d in found]

    assert await numbers() == [9, 3, 2, 1, 0]
    assert await numbers(workload="workloads/rec") == [3, 2, 1, 0]
    assert await numbers(changes_only=True) == [9, 3, 1]
    assert await numbers(start_time=NOW + timedelta(seconds=1), end_time=NOW + timedelta(seconds=3)) == [2, 1]


async def test_a_plan_is_read_by_revision(client: Client, store: FakeStore, refused: Refused) -> None:
    floor = Floor(
        16, NOW, NOW + timedelta(minutes=1), NOW + timedelta(hours=1), "11.11", "double-eleven", 9e3, 2
    )
    plan = CapacityPlan("rec", 1, NOW, (floor,), None, NOW, timedelta(minutes=5), (4, 5), 0.99)
    async with store.unit_of_work() as uow:
        await uow.decisions.save_plan(plan)
        await uow.decisions.save_plan(replace(plan, revision=2, need=(4, 6)))
        await uow.commit()
    request = control_service_pb2.GetPlanRequest(name="workloads/rec/plan")

    newest = await client.control.GetPlan(request)
    request.revision = 1
    first = await client.control.GetPlan(request)

    assert (newest.revision, list(newest.need)) == (2, [4, 6])
    assert (first.revision, first.floors[0].unmet_replicas, first.floors[0].occurrence_id) == (
        1,
        2,
        "double-eleven",
    )
    request.revision = 7
    assert (await refused(client.control.GetPlan(request))).reason == "PLAN_NOT_FOUND"
    request.name = "workloads/nobody/plan"
    assert (await refused(client.control.GetPlan(request))).reason == "RESOURCE_NOT_FOUND"


async def test_status_tells_alarms_and_is_empty_before_the_first_tick(
    client: Client, store: FakeStore
) -> None:
    request = control_service_pb2.GetStatusRequest(name="workloads/rec/status")
    before = await client.control.GetStatus(request)
    alarm = Alarm(AlarmKind.NO_DATA, "rec", "", "rec: no data")
    async with store.unit_of_work() as uow:
        await uow.states.save({"rec": WorkloadState(desired_replicas=0, alarms=(alarm,), last_at=NOW)})
        await uow.commit()

    after = await client.control.GetStatus(request)

    assert not before.HasField("desired_replicas")
    assert (after.HasField("desired_replicas"), after.desired_replicas) == (True, 0)
    assert (after.alarms[0].kind, after.alarms[0].workload) == (
        control_pb2.ALARM_KIND_NO_DATA,
        "workloads/rec",
    )


def an_override(**changes: object) -> control_service_pb2.CreateOverrideRequest:
    fields: dict[str, object] = {
        "kind": control_pb2.OVERRIDE_KIND_AT_LEAST,
        "replicas": 8,
        "ttl": timedelta(hours=1),
        "reason": "launch night",
    }
    fields.update(changes)
    override = control_pb2.Override(**{k: v for k, v in fields.items() if v is not None})  # type: ignore[arg-type]
    return control_service_pb2.CreateOverrideRequest(
        parent="workloads/rec", override=override, override_id="hold"
    )


async def test_an_override_ends_by_itself(client: Client, clock: "object") -> None:
    created = await client.control.CreateOverride(an_override())
    listing = control_service_pb2.ListOverridesRequest(parent="workloads/rec")
    standing = (await client.control.ListOverrides(listing)).overrides
    clock.at = NOW + timedelta(hours=2)  # type: ignore[attr-defined]
    later = (await client.control.ListOverrides(listing)).overrides
    listing.show_expired = True
    kept = (await client.control.ListOverrides(listing)).overrides

    assert created.expire_time.ToDatetime(tzinfo=UTC) == NOW + timedelta(hours=1)
    assert (created.name, created.active, created.created_by) == (
        "workloads/rec/overrides/hold",
        True,
        "local",
    )
    assert (list(standing), list(later)) == ([created], [])
    assert [o.active for o in kept] == [False]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"replicas": 31}, "override.replicas"),
        ({"replicas": None}, "override.replicas"),
        ({"kind": control_pb2.OVERRIDE_KIND_SET, "replicas": 0}, "override.replicas"),
        ({"kind": control_pb2.OVERRIDE_KIND_AT_MOST, "replicas": 0}, "override.replicas"),
        ({"kind": control_pb2.OVERRIDE_KIND_PAUSE}, "override.replicas"),
        ({"kind": None}, "override.kind"),
        ({"reason": ""}, "override.reason"),
        ({"ttl": None}, "override.expire_time"),
        ({"ttl": timedelta(0)}, "override.expire_time"),
        ({"ttl": timedelta(days=31)}, "override.expire_time"),
        ({"ttl": timedelta(days=10_000_000)}, "override.ttl"),
    ],
)
async def test_a_bad_override_is_refused(
    client: Client, refused: Refused, store: FakeStore, changes: dict[str, object], field: str
) -> None:
    error = await refused(client.control.CreateOverride(an_override(**changes)))

    assert field in [name for name, _ in error.violations]
    assert store.tables.overrides == {}


async def test_an_override_is_made_once_and_deleted_once(client: Client, refused: Refused) -> None:
    request = an_override()
    request.request_id = "r"
    first = await client.control.CreateOverride(request)
    again = await client.control.CreateOverride(request)
    request.request_id = "other"
    taken = await refused(client.control.CreateOverride(request))
    deletion = control_service_pb2.DeleteOverrideRequest(name=first.name)
    await client.control.DeleteOverride(deletion)
    gone = await refused(client.control.DeleteOverride(deletion))

    assert first == again
    assert (taken.reason, gone.code) == ("RESOURCE_EXISTS", "NOT_FOUND")


async def test_overrides_of_all_workloads_come_in_pages(client: Client) -> None:
    for parent in ("workloads/search", "workloads/rec"):
        for override_id in ("b", "a"):
            request = an_override(replicas=2)
            request.parent, request.override_id = parent, override_id
            await client.control.CreateOverride(request)

    found = pages(
        client.control.ListOverrides, control_service_pb2.ListOverridesRequest(page_size=1), "overrides"
    )

    assert [override.name async for override in found] == [
        "workloads/rec/overrides/a",
        "workloads/rec/overrides/b",
        "workloads/search/overrides/a",
        "workloads/search/overrides/b",
    ]


async def test_the_fleet_is_paused_until_resumed(client: Client, store: FakeStore) -> None:
    paused = await client.control.Pause(control_service_pb2.PauseRequest(reason="migration"))
    state = await client.control.GetPauseState(control_service_pb2.GetPauseStateRequest())
    async with store.unit_of_work() as uow:
        stored = await uow.states.pause()
    resumed = await client.control.Resume(control_service_pb2.ResumeRequest())
    again = await client.control.Resume(control_service_pb2.ResumeRequest())

    assert (paused.paused, paused.reason, paused.by) == (True, "migration", "local")
    assert state == paused
    assert (stored.paused, stored.since_at) == (True, NOW)
    assert (resumed.paused, again.paused) == (False, False)


async def test_a_workload_is_paused_for_a_while(client: Client, clock: "object") -> None:
    request = control_service_pb2.PauseRequest(
        workload="workloads/rec", reason="debugging", ttl=timedelta(hours=1)
    )
    paused = await client.control.Pause(request)
    asked = control_service_pb2.GetPauseStateRequest(workload="workloads/rec")
    clock.at = NOW + timedelta(hours=2)  # type: ignore[attr-defined]
    later = await client.control.GetPauseState(asked)

    assert (paused.paused, paused.workload) == (True, "workloads/rec")
    assert paused.expire_time.ToDatetime(tzinfo=UTC) == NOW + timedelta(hours=1)
    assert not later.paused


async def test_a_workload_is_resumed_early(client: Client) -> None:
    await client.control.Pause(
        control_service_pb2.PauseRequest(workload="workloads/rec", reason="x", ttl=timedelta(hours=1))
    )

    resumed = await client.control.Resume(control_service_pb2.ResumeRequest(workload="workloads/rec"))

    assert not resumed.paused


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "reason"),
        ({"reason": "x", "ttl": timedelta(hours=1)}, "ttl"),
        ({"reason": "x", "workload": "workloads/rec"}, "ttl"),
        ({"reason": "x", "workload": "workloads/rec", "ttl": timedelta(days=60)}, "ttl"),
        ({"reason": "x", "workload": "rec", "ttl": timedelta(hours=1)}, "workload"),
    ],
)
async def test_a_bad_pause_is_refused(
    client: Client, refused: Refused, fields: dict[str, object], field: str
) -> None:
    error = await refused(client.control.Pause(control_service_pb2.PauseRequest(**fields)))  # type: ignore[arg-type]

    assert field in [name for name, _ in error.violations]


async def test_a_retried_pause_gets_its_first_response(client: Client) -> None:
    request = control_service_pb2.PauseRequest(reason="migration", request_id="p")
    first = await client.control.Pause(request)
    await client.control.Resume(control_service_pb2.ResumeRequest())

    assert first == await client.control.Pause(request)
    assert not (await client.control.GetPauseState(control_service_pb2.GetPauseStateRequest())).paused


async def test_an_override_token_nobody_made_is_refused(client: Client, refused: Refused) -> None:
    request = control_service_pb2.ListOverridesRequest(page_token="nonsense")

    error = await refused(client.control.ListOverrides(request))

    assert [field for field, _ in error.violations] == ["page_token"]


@pytest.mark.parametrize("name", ["decisions/", "decision/x", "decisions/a b", "decisions/\x00"])
async def test_a_decision_name_must_look_like_one(client: Client, refused: Refused, name: str) -> None:
    error = await refused(client.control.GetDecision(control_service_pb2.GetDecisionRequest(name=name)))

    assert [field for field, _ in error.violations] == ["name"]
