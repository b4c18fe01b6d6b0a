"""The ledger as of any time, filtered and explained; watches that resume. Over a real channel, on the fakes."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from forecrest.v1 import control_pb2, control_service_pb2

from controller.adapters.fakes import FakeSignalCache, FakeStore
from controller.client import ApiError, Client, pages
from controller.core.resources import ForecastRun, Outcome, TrafficEvent
from controller.core.types import (
    CapacityPlan,
    Decision,
    Floor,
    ForecastBand,
    ForecastState,
    InputAge,
    Reason,
    Recommendation,
    RecommendationKind,
    Source,
)
from controller.usecases.topics import CHANGES
from tests.unit.api.conftest import NOW, SetClock, a_decision
from tests.unit.api.test_api_watch import take, told, watch

Refused = Callable[[Awaitable[object]], Awaitable[ApiError]]
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


async def decide(store: FakeStore, *decisions: Decision) -> None:
    async with store.unit_of_work() as uow:
        await uow.decisions.append(decisions)
        await uow.commit()


async def get(client: Client, **fields: object) -> control_pb2.Decision:
    return await client.control.GetDecision(control_service_pb2.GetDecisionRequest(**fields))  # type: ignore[arg-type]


async def explain(client: Client, **fields: object) -> control_pb2.DecisionExplanation:
    request = control_service_pb2.ExplainDecisionRequest(**fields)  # type: ignore[arg-type]
    return await client.control.ExplainDecision(request)


async def listed(client: Client, page_size: int = 2, **fields: object) -> list[str]:
    request = control_service_pb2.ListDecisionsRequest(page_size=page_size, **fields)  # type: ignore[arg-type]
    found = pages(client.control.ListDecisions, request, "decisions")
    return [decision.name.removeprefix("decisions/") async for decision in found]


# ---------------------------------------------------------------- as of a time


async def test_the_decision_in_force_is_the_newest_made_until_then(
    client: Client, store: FakeStore, clock: SetClock
) -> None:
    await decide(store, *(a_decision(n) for n in (0, 10, 20)), a_decision(15, "search"))
    clock.at = NOW + 12 * SECOND

    times = [NOW, NOW + 9.9 * SECOND, NOW + 10 * SECOND, NOW + 99 * SECOND]
    names = [(await get(client, workload="workloads/rec", as_of_time=at)).name for at in times]

    assert ["decisions/rec-0", "decisions/rec-0", "decisions/rec-10", "decisions/rec-20"] == names
    assert "decisions/rec-10" == (await get(client, workload="workloads/rec")).name


async def test_nothing_in_force_yet_is_not_found(client: Client, store: FakeStore, refused: Refused) -> None:
    await decide(store, a_decision(0))

    early = await refused(get(client, workload="workloads/rec", as_of_time=NOW - SECOND))
    nobody = await refused(get(client, workload="workloads/nobody"))
    ancient = await refused(get(client, workload="workloads/rec", as_of_time=datetime(1, 1, 1, tzinfo=UTC)))
    future = await get(client, workload="workloads/rec", as_of_time=datetime.max.replace(tzinfo=UTC))

    assert {"NOT_FOUND"} == {error.code for error in (early, nobody, ancient)}
    assert "decisions/rec-0" == future.name


@pytest.mark.parametrize(
    ("fields", "bad"),
    [
        ({}, ["name"]),
        ({"name": "decisions/rec-0", "workload": "workloads/rec"}, ["name"]),
        ({"name": "decisions/rec-0", "as_of_time": NOW}, ["as_of_time"]),
        ({"name": "rec-0"}, ["name"]),
        ({"workload": "rec"}, ["workload"]),
    ],
)
async def test_a_decision_is_chosen_by_name_or_by_workload(
    client: Client, store: FakeStore, refused: Refused, fields: dict[str, object], bad: list[str]
) -> None:
    await decide(store, a_decision(0))

    assert bad == [field for field, _ in (await refused(get(client, **fields))).violations]
    assert bad == [field for field, _ in (await refused(explain(client, **fields))).violations]


async def test_what_was_in_force_everywhere_is_listed_by_workload(client: Client, store: FakeStore) -> None:
    await decide(store, a_decision(0), a_decision(9), a_decision(4, "search"))

    assert ["rec-0"] == await listed(client, 1, as_of_time=NOW + SECOND)
    assert ["rec-9", "search-4"] == await listed(client, 1, as_of_time=NOW + HOUR)
    assert ["search-4"] == await listed(client, as_of_time=NOW + HOUR, workload="workloads/search")


@pytest.mark.parametrize("field", ["start_time", "end_time", "changes_only", "filter", "order_by"])
async def test_as_of_goes_alone(client: Client, refused: Refused, field: str) -> None:
    given = {"start_time": NOW, "end_time": NOW, "changes_only": True}.get(field, "decide_time")
    request = control_service_pb2.ListDecisionsRequest(as_of_time=NOW, **{field: given})  # type: ignore[arg-type]

    assert [field] == [name for name, _ in (await refused(client.control.ListDecisions(request))).violations]


# ---------------------------------------------------------------- filters and order


async def test_decisions_are_filtered_and_ordered(client: Client, store: FakeStore) -> None:
    held = replace(a_decision(3), reason=Reason.EVENT_FLOOR, event_ids=("sale",), demand_qps=900.0)
    await decide(store, a_decision(0), a_decision(1), a_decision(2), held, a_decision(9, "search"))

    assert ["rec-3"] == await listed(client, filter="reason = EVENT_FLOOR")
    assert ["rec-3"] == await listed(client, filter="reason = DECISION_REASON_EVENT_FLOOR")
    assert ["rec-3"] == await listed(client, filter='occurrence = "sale" AND demand_qps > 100')
    assert ["search-9", "rec-1"] == await listed(client, filter="changed = true AND reason != EVENT_FLOOR")
    assert ["rec-1", "rec-0"] == await listed(
        client, filter=f'workload = "workloads/rec" AND decide_time <= "{(NOW + SECOND).isoformat()}"'
    )
    assert ["rec-0", "rec-1", "rec-2", "rec-3", "search-9"] == await listed(client, order_by="decide_time")
    assert ["search-9"] == await listed(client, order_by="decide_time desc", workload="workloads/search")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"filter": "reason = NONSENSE"}, "filter"),
        ({"filter": "colour = red"}, "filter"),
        ({"filter": 'decide_time < "yesterday"'}, "filter"),
        ({"filter": "workload = search", "workload": "workloads/rec"}, "filter"),
        ({"order_by": "reason"}, "order_by"),
        ({"page_size": -1}, "page_size"),
        ({"page_token": "nonsense"}, "page_token"),
        ({"start_time": NOW, "end_time": NOW}, "end_time"),
    ],
)
async def test_a_bad_listing_is_refused_by_field(
    client: Client, refused: Refused, fields: dict[str, object], field: str
) -> None:
    request = control_service_pb2.ListDecisionsRequest(**fields)  # type: ignore[arg-type]

    assert [field] == [name for name, _ in (await refused(client.control.ListDecisions(request))).violations]


async def test_a_page_token_belongs_to_its_question(
    client: Client, store: FakeStore, refused: Refused
) -> None:
    await decide(store, *(a_decision(n) for n in range(3)))
    first = await client.control.ListDecisions(control_service_pb2.ListDecisionsRequest(page_size=1))

    request = control_service_pb2.ListDecisionsRequest(
        page_token=first.next_page_token, order_by="decide_time"
    )
    error = await refused(client.control.ListDecisions(request))

    assert ["page_token"] == [field for field, _ in error.violations]


# ---------------------------------------------------------------- explanations


def an_eventful_decision() -> Decision:
    return replace(
        a_decision(60),
        current_replicas=4,
        desired_replicas=12,
        reason=Reason.EVENT_FLOOR,
        binding=Source.EVENT,
        sentence="Scale 4 to 12: the sale needs 12.",
        recommendations=(
            Recommendation(Source.EVENT, RecommendationKind.AT_LEAST, 12, "the sale needs 12"),
            Recommendation(Source.PLAN, RecommendationKind.AT_LEAST, 6, "the forecast needs 6"),
            Recommendation(Source.REACTIVE, RecommendationKind.SET, 3, "demand needs 3"),
            Recommendation(Source.MAX, RecommendationKind.AT_MOST, 30, "at most 30"),
            Recommendation(Source.PANIC, RecommendationKind.ABSTAIN, None, "no panic"),
        ),
        inputs=(InputAge("demand", 2.0), InputAge("forecast", 300.0)),
        demand_qps=800.0,
        plan_revision=1,
        forecast_id="f1",
        event_ids=("sale",),
    )


async def tell_the_story(store: FakeStore) -> None:
    """A forecast, a plan and an event before the decision, and changes of all of them after it."""
    band = ForecastBand(
        "f1", NOW, NOW, timedelta(minutes=5), (0.5, 0.9), ((777.0, 900.0),) * 3, ForecastState.READY
    )
    floor = Floor(12, NOW, NOW + HOUR, NOW + 2 * HOUR, "sale", "sale", 9000.0)
    plan = CapacityPlan(
        "rec",
        1,
        NOW,
        (floor, replace(floor, order_at=NOW + HOUR)),
        "f1",
        NOW,
        timedelta(minutes=5),
        (4,),
        0.99,
    )
    sale = TrafficEvent(
        id="sale",
        workloads=("rec",),
        start_at=NOW + HOUR,
        end_at=NOW + 2 * HOUR,
        time_zone="UTC",
        display_name="Midnight sale",
        expected_peak_qps=9000.0,
        created_at=NOW - HOUR,
        updated_at=NOW - HOUR,
    )
    async with store.unit_of_work() as uow:
        await uow.forecasts.save(ForecastRun("f1", "rec", NOW, NOW, 3), band)
        await uow.decisions.save_plan(plan)
        await uow.decisions.save_plan(replace(plan, revision=2, floors=()))
        await uow.events.create(sale)
        renamed = replace(sale, display_name="Cancelled sale", updated_at=NOW + HOUR)
        await uow.events.update(renamed, expected_revision=None)
        await uow.commit()


async def test_a_decision_is_explained_by_what_was_known_then(client: Client, store: FakeStore) -> None:
    await tell_the_story(store)
    decision = an_eventful_decision()
    await decide(store, decision, a_decision(90))
    async with store.unit_of_work() as uow:
        await uow.decisions.outcome(Outcome(decision.id, NOW + HOUR, True, 12, "ordered"))
        await uow.commit()

    why = await explain(client, name=f"decisions/{decision.id}")

    fates = [control_pb2.RecommendationFate.Name(w.fate).rpartition("_")[2] for w in why.recommendations]
    assert ["BOUND", "SATISFIED", "OVERRULED", "SATISFIED", "ABSTAINED"] == fates
    assert ("FLOOR", "") == (why.rule, why.clamp)
    assert ("f1", "READY", 60.0, 777.0) == (
        why.forecast.forecast_id,
        why.forecast.state,
        why.forecast.age_s,
        why.forecast.median_qps,
    )
    assert [("events/sale", "Midnight sale", 9000.0)] == [
        (e.event, e.display_name, e.expected_peak_qps) for e in why.events
    ]
    assert [12] == [floor.replicas for floor in why.floors]
    assert NOW + 90 * SECOND == why.until_time.ToDatetime(UTC)
    assert why.decision.outcome.applied
    assert (
        "rec at 2026-11-10 12:01:00 UTC: Scale 4 to 12: the sale needs 12; demand 800 QPS (2 s old); forecast READY "
        "of 60 s before; event Midnight sale; the order was taken."
    ) == why.sentence


async def test_the_decision_in_force_is_explained(client: Client, store: FakeStore) -> None:
    await decide(store, a_decision(0), a_decision(1))

    why = await explain(client, workload="workloads/rec", as_of_time=NOW)

    assert "decisions/rec-0" == why.decision.name
    assert not why.HasField("forecast")
    assert ("KEEP", "nothing had to be ordered") == (why.rule, why.sentence.rstrip(".").rpartition("; ")[2])


@pytest.mark.parametrize(
    ("changes", "rule", "clamp"),
    [
        ({"reason": Reason.RATE_LIMITED}, "FLOOR", "RATE_LIMITED"),
        ({"reason": Reason.STABILIZING}, "FLOOR", "STABILIZING"),
        (
            {
                "binding": Source.QUOTA,
                "limited_from": 12,
                "desired_replicas": 8,
                "recommendations": (
                    Recommendation(Source.EVENT, RecommendationKind.AT_LEAST, 12, ""),
                    Recommendation(Source.QUOTA, RecommendationKind.AT_MOST, 8, ""),
                ),
            },
            "CEILING",
            "CEILING",
        ),
        (
            {
                "binding": Source.PAUSE,
                "reason": Reason.PAUSED,
                "recommendations": (Recommendation(Source.PAUSE, RecommendationKind.VETO, None, ""),),
            },
            "VETO",
            "",
        ),
    ],
)
async def test_the_rule_and_what_held_it_back_are_named(
    client: Client, store: FakeStore, changes: dict[str, object], rule: str, clamp: str
) -> None:
    await decide(store, replace(an_eventful_decision(), **changes))  # type: ignore[arg-type]

    why = await explain(client, workload="workloads/rec", as_of_time=NOW + HOUR)

    assert (rule, clamp) == (why.rule, why.clamp)


async def test_what_is_past_its_retention_is_left_out(client: Client, store: FakeStore) -> None:
    await decide(store, an_eventful_decision())

    why = await explain(client, workload="workloads/rec", as_of_time=NOW + HOUR)

    assert not why.HasField("forecast")
    assert not why.HasField("until_time")
    assert [] == list(why.floors)
    assert [("sale", False)] == [(e.occurrence_id, e.HasField("start_time")) for e in why.events]


# ---------------------------------------------------------------- watches that resume


async def test_a_watch_that_resumes_gets_what_was_decided_since_and_no_snapshot(
    client: Client, store: FakeStore, signals: FakeSignalCache
) -> None:
    await decide(store, a_decision(0), a_decision(0, "search"))
    snapshot = await take(watch(client), 2)
    await decide(store, a_decision(1), a_decision(2, "search"), a_decision(3))

    again = watch(client, resume_token=snapshot[-1].resume_token)
    missed = await take(again, 3)
    await decide(store, a_decision(4))
    await signals.publish(CHANGES, b"")
    live = await take(again, 1)

    assert "" == snapshot[0].resume_token
    assert [("rec-1", False), ("search-2", False), ("rec-3", False)] == told(missed)
    assert [("rec-4", False)] == told(live)


async def test_a_resumed_watch_keeps_to_its_workload_and_to_changes(client: Client, store: FakeStore) -> None:
    await decide(store, a_decision(0))
    (first,) = await take(watch(client), 1)
    await decide(store, a_decision(1, "search"), a_decision(2), a_decision(3))

    again = watch(client, resume_token=first.resume_token, workload="workloads/rec", changes_only=True)

    assert [("rec-3", False)] == told(await take(again, 1))


async def test_whoever_missed_too_much_is_told_to_list(
    client: Client, store: FakeStore, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.api.feed.MISSED_MAX", 2)
    monkeypatch.setattr("controller.api.feed.PAGE_SIZE", 2)
    await decide(store, a_decision(0))
    (first,) = await take(watch(client), 1)
    await decide(store, *(a_decision(n) for n in range(1, 9)))

    error = await refused(anext(watch(client, resume_token=first.resume_token)))

    assert ("RESOURCE_EXHAUSTED", "WATCHER_TOO_SLOW") == (error.code, error.reason)


@pytest.mark.parametrize("token", ["x", "%%%", "ZGVjaXNpb25zCm5vdwpk", "ZGVjaXNpb25zCjIwMjYtMDEtMDEKZA=="])
async def test_a_token_of_something_else_is_no_place_to_resume(
    client: Client, refused: Refused, token: str
) -> None:
    error = await refused(anext(watch(client, resume_token=token)))

    assert ["resume_token"] == [field for field, _ in error.violations]
