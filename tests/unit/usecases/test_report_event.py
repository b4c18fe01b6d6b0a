"""An occurrence compared with what was expected of it; what is not known is absent."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from controller.adapters.fakes import FakeStore
from controller.core.resources import EventState, ForecastRun, TrafficEvent, TrafficSample
from controller.core.types import (
    CapacityPlan,
    CapacityProfile,
    Contract,
    ContractState,
    Decision,
    Floor,
    ForecastBand,
    ForecastState,
    Mode,
    Reason,
    Workload,
)
from controller.usecases.errors import MissingError, PreconditionError
from controller.usecases.report_event import EventReport, PrewarmOutcome, WorkloadReport, report_event

START = datetime(2026, 11, 11, tzinfo=UTC)
END = START + timedelta(hours=2)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
BEFORE = START - 10 * DAY


def an_event(event_id: str = "sale", **changes: object) -> TrafficEvent:
    base = TrafficEvent(
        id=event_id,
        workloads=("rec",),
        start_at=START,
        end_at=END,
        time_zone="UTC",
        expected_peak_qps=1000.0,
        category="promotion",
        created_by="ann",
        created_at=BEFORE,
        updated_at=BEFORE,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def a_decision(at: datetime, current: int, desired: int) -> Decision:
    return Decision(
        id=f"d{at:%d%H%M%S}",
        workload="rec",
        at=at,
        mode=Mode.SCALE,
        current_replicas=current,
        desired_replicas=desired,
        warm_replicas=current,
        in_flight_replicas=0,
        reason=Reason.EVENT_FLOOR,
        binding=None,
        sentence="",
        recommendations=(),
        conditions=(),
        inputs=(),
        demand_qps=None,
        need_replicas=None,
        plan_revision=1,
        forecast_id=None,
        event_ids=("sale",),
    )


def a_plan(occurrence_id: str = "sale", base_qps: float | None = None) -> CapacityPlan:
    floor = Floor(
        8,
        START - HOUR,
        START - MINUTE,
        END,
        "event",
        event_id=occurrence_id,
        demand_qps=1200.0,
        base_qps=base_qps,
    )
    return CapacityPlan("rec", 1, BEFORE, (floor,), None, BEFORE, HOUR, (), 0.99)


def a_contract(met_at: datetime | None) -> Contract:
    return Contract(
        event_id="sale",
        revision=1,
        state=ContractState.COMPLETED,
        replicas=8,
        order_at=START - HOUR,
        deadline_at=START - MINUTE,
        start_at=START,
        end_at=END,
        met_at=met_at,
    )


def minutes(qps: Sequence[float | None], start_at: datetime = START) -> list[TrafficSample]:
    return [
        TrafficSample("rec", start_at + n * MINUTE, value * 60)
        for n, value in enumerate(qps)
        if value is not None
    ]


@pytest.fixture
async def store() -> FakeStore:
    found = FakeStore()
    found.tables.workloads["rec"] = Workload("rec", "rec", (CapacityProfile("e", "L4", 200.0),))
    async with found.unit_of_work() as uow:
        await uow.events.create(an_event())
        await uow.commit()
    return found


async def put(store: FakeStore, **what: object) -> None:
    async with store.unit_of_work() as uow:
        if "samples" in what:
            await uow.traffic.upsert(what["samples"])  # type: ignore[arg-type]
        if "decisions" in what:
            await uow.decisions.append(what["decisions"])  # type: ignore[arg-type]
        if "plan" in what:
            await uow.decisions.save_plan(what["plan"])  # type: ignore[arg-type]
        if "contract" in what:
            await uow.states.keep_contracts([("rec", what["contract"])])  # type: ignore[list-item]
        if "event" in what:
            await uow.events.create(what["event"])  # type: ignore[arg-type]
        await uow.commit()


async def report(store: FakeStore, now: datetime = END + HOUR, occurrence: str = "") -> EventReport:
    return await report_event(store, "sale", occurrence, now)


async def only(store: FakeStore, now: datetime = END + HOUR) -> WorkloadReport:
    (found,) = (await report(store, now)).workloads
    return found


async def test_the_peak_its_time_and_the_total_are_those_of_the_observed_minutes(store: FakeStore) -> None:
    await put(store, samples=minutes([100.0] * 30 + [700.0] + [None] * 9 + [500.0] * 80))

    found = await only(store)

    assert (700.0, START + 30 * MINUTE) == (found.actual_peak_qps, found.peak_at)
    assert pytest.approx(0.7) == found.peak_ratio
    assert pytest.approx(60 * (30 * 100 + 700 + 80 * 500)) == found.actual_request_count
    assert pytest.approx(111 / 120) == found.observed_share
    assert "70% of the 1000 expected" in found.sentence


async def test_without_observations_nothing_is_made_up(store: FakeStore) -> None:
    found = await only(store)

    assert (None, None, None, None) == (
        found.actual_peak_qps,
        found.peak_at,
        found.peak_ratio,
        found.actual_request_count,
    )
    assert (0.0, None, None) == (found.observed_share, found.replica_hours, found.planned_replicas)
    assert PrewarmOutcome.UNKNOWN is found.prewarm.outcome
    assert "no demand was observed" in found.sentence
    assert "no record of its prewarm" in found.sentence
    assert (await report(store)).planner_record is None


@pytest.mark.parametrize(
    ("met_at", "outcome", "margin_s"),
    [
        (START - 5 * MINUTE, PrewarmOutcome.MET, 240),
        (START - MINUTE, PrewarmOutcome.MET, 0),
        (START - 30 * timedelta(seconds=1), PrewarmOutcome.LATE, -30),
        (START + MINUTE, PrewarmOutcome.MISSED, -120),
        (None, PrewarmOutcome.MISSED, None),
    ],
)
async def test_the_prewarm_is_judged_by_when_all_were_verified_warm(
    store: FakeStore, met_at: datetime | None, outcome: PrewarmOutcome, margin_s: float | None
) -> None:
    await put(store, contract=a_contract(met_at))

    prewarm = (await only(store)).prewarm

    assert (outcome, 8, START - MINUTE) == (prewarm.outcome, prewarm.replicas, prewarm.deadline_at)
    margin = prewarm.deadline_margin
    assert margin_s == (None if margin is None else margin.total_seconds())


async def test_replica_hours_are_what_was_asked_for_from_the_first_order_to_the_end(store: FakeStore) -> None:
    await put(
        store,
        plan=a_plan(),
        decisions=[
            a_decision(START - 2 * HOUR, 2, 2),
            a_decision(START - HOUR + MINUTE, 2, 8),
            a_decision(START + HOUR, 8, 10),
            a_decision(END + MINUTE, 10, 2),
        ],
    )

    found = await only(store)

    assert (8, 1200.0, 10) == (found.planned_replicas, found.planned_qps, found.peak_replicas)
    expected = (2 * 1 + 8 * 119 + 10 * 60) / 60
    assert pytest.approx(expected) == found.replica_hours
    assert pytest.approx(expected - 2 * 3) == found.extra_replica_hours


async def test_a_running_event_is_reported_so_far(store: FakeStore) -> None:
    await put(store, samples=minutes([300.0] * 60))

    found = await report(store, START + HOUR)

    assert not found.complete
    assert (1.0, 300.0) == (found.workloads[0].observed_share, found.workloads[0].actual_peak_qps)
    assert EventState.ACTIVE is found.event.state


async def test_an_event_is_judged_as_it_was_registered_at_its_start(store: FakeStore) -> None:
    await put(store, samples=minutes([500.0] * 120))
    async with store.unit_of_work() as uow:
        later = replace(an_event(), expected_peak_qps=500.0, updated_at=START + HOUR)
        await uow.events.update(later, expected_revision=1)
        await uow.commit()

    found = await report(store)

    assert (1, 1000.0) == (found.event.revision, found.workloads[0].expected_peak_qps)


@pytest.mark.parametrize("source", ["plan", "forecast", "none"])
async def test_a_multiplier_is_measured_against_what_it_multiplied(store: FakeStore, source: str) -> None:
    store.tables.events["sale"] = (an_event(expected_peak_qps=None, expected_multiplier=3.0),)
    await put(store, samples=minutes([450.0] * 120))
    if source == "plan":
        await put(store, plan=a_plan(base_qps=300.0), decisions=[a_decision(START - HOUR, 2, 8)])
    if source == "forecast":
        band = ForecastBand(
            "f", BEFORE, BEFORE, HOUR, (0.1, 0.5, 0.9), ((1.0, 300.0, 900.0),) * 400, ForecastState.READY
        )
        async with store.unit_of_work() as uow:
            await uow.forecasts.save(ForecastRun("f", "rec", BEFORE, BEFORE, 400), band)
            await uow.commit()

    found = await only(store)

    assert (None if source == "none" else 900.0) == found.expected_peak_qps
    assert (None if source == "none" else 0.5) == found.peak_ratio


async def test_the_expected_total_is_the_forecasts_that_knew_the_event(store: FakeStore) -> None:
    band = ForecastBand(
        id="f",
        origin_at=START - HOUR,
        start_at=START - HOUR,
        step=timedelta(minutes=30),
        levels=(0.1, 0.5, 0.9),
        qps=((1.0, 100.0, 900.0),) * 6,
        state=ForecastState.READY,
        event_ids=frozenset({"sale"}),
    )
    async with store.unit_of_work() as uow:
        await uow.forecasts.save(ForecastRun("f", "rec", START - HOUR, START - HOUR, 6), band)
        await uow.commit()

    assert pytest.approx(100.0 * 7200) == (await only(store)).expected_request_count


async def test_the_planners_record_is_of_this_planner_and_category(store: FakeStore) -> None:
    for number, peak in ((1, 500.0), (2, 600.0)):
        start_at = START - number * 7 * DAY
        event = an_event(f"past-{number}", start_at=start_at, end_at=start_at + HOUR)
        await put(store, event=event, samples=minutes([peak] * 60, start_at))
    for name, changes in {"bobs": {"created_by": "bob"}, "class": {"category": "class"}}.items():
        start_at = START - 20 * DAY
        await put(store, event=an_event(name, start_at=start_at, end_at=start_at + HOUR, **changes))
        await put(store, samples=minutes([5000.0] * 60, start_at))
    await put(store, samples=minutes([900.0] * 120))

    record = (await report(store)).planner_record

    assert record is not None
    assert (3, 0.6, 0.5, 0.9) == (
        record.occurrence_count,
        pytest.approx(record.peak_ratio_median),
        pytest.approx(record.peak_ratio_min),
        pytest.approx(record.peak_ratio_max),
    )
    assert "too much was expected" in record.sentence


async def test_the_newest_occurrence_that_started_or_the_one_asked_for_is_reported(store: FakeStore) -> None:
    store.tables.events["sale"] = (
        an_event(
            rrule="FREQ=WEEKLY", start_at=START - 14 * DAY, end_at=END - 14 * DAY, created_at=START - 30 * DAY
        ),
    )

    newest = await report(store, START + HOUR)
    asked = await report(store, START + HOUR, "sale@20261104T000000Z")

    assert (START, False) == (newest.occurrence.start_at, newest.complete)
    assert (START - 7 * DAY, True) == (asked.occurrence.start_at, asked.complete)


@pytest.mark.parametrize("occurrence", ["nobody", "sale@20261104T000000Z", "sale@soon", "sale@"])
async def test_an_occurrence_there_is_none_of_is_missing(store: FakeStore, occurrence: str) -> None:
    with pytest.raises(MissingError) as missing:
        await report(store, occurrence=occurrence)

    assert "OCCURRENCE_NOT_FOUND" == missing.value.reason


async def test_before_the_start_there_is_nothing_to_report(store: FakeStore) -> None:
    for occurrence in ("", "sale"):
        with pytest.raises(PreconditionError, match="preview it instead") as early:
            await report(store, START - MINUTE, occurrence)
        assert "EVENT_NOT_STARTED" == early.value.reason


async def test_a_cancelled_event_is_reported_as_far_as_it_went(store: FakeStore) -> None:
    async with store.unit_of_work() as uow:
        await uow.events.update(
            replace(an_event(), state=EventState.CANCELLED, updated_at=START + HOUR), expected_revision=1
        )
        await uow.commit()
    await put(store, samples=minutes([300.0] * 60))

    assert 300.0 == (await only(store)).actual_peak_qps
