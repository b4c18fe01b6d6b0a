"""What every store keeps to; run against the fake and against a real PostgreSQL."""

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from controller.adapters.clock import SystemClock
from controller.adapters.fakes import FakeLeaseStore, FakeStore
from controller.adapters.postgres import Limits, PostgresLeaseStore, PostgresStore
from controller.core.leadtime import LeadSample
from controller.core.resources import (
    AuditEntry,
    EventState,
    ForecastRun,
    Outcome,
    Page,
    PauseState,
    TrafficEvent,
    TrafficSample,
)
from controller.core.types import (
    CapacityPlan,
    CapacityProfile,
    Decision,
    Floor,
    ForecastBand,
    ForecastState,
    Mode,
    Override,
    OverrideKind,
    PastNeed,
    Reason,
    ScaleChange,
    Source,
    Workload,
    WorkloadState,
)
from controller.ports import (
    LEADER_LEASE,
    ConflictError,
    LeaseStore,
    NotFoundError,
    Retention,
    StaleFenceError,
    Store,
)

MIDNIGHT = datetime(2026, 11, 11, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
LEASE = timedelta(minutes=5)


@pytest.fixture(params=["fake", "postgres"])
async def stores(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Store, LeaseStore]]:
    if request.param == "fake":
        fake_leases = FakeLeaseStore(SystemClock())
        yield FakeStore(fake_leases), fake_leases
        return
    url = request.getfixturevalue("database_url")
    store, leases = PostgresStore(url, Limits(connection_count=5)), PostgresLeaseStore(url)
    yield store, leases
    await store.close()
    await leases.close()


@pytest.fixture
def store(stores: tuple[Store, LeaseStore]) -> Store:
    return stores[0]


@pytest.fixture
def leases(stores: tuple[Store, LeaseStore]) -> LeaseStore:
    return stores[1]


def workload(name: str = "recommender", **changes: object) -> Workload:
    return replace(
        Workload(name=name, model_name="dlrm", profiles=(CapacityProfile("dlrm-int8", "H200", 2200.0),)),
        **changes,  # type: ignore[arg-type]
    )


def event(event_id: str = "sale", start_at: datetime = MIDNIGHT, **changes: object) -> TrafficEvent:
    return replace(
        TrafficEvent(
            id=event_id,
            workloads=("recommender",),
            start_at=start_at,
            end_at=start_at + HOUR,
            time_zone="Asia/Shanghai",
            expected_peak_qps=35_000.0,
        ),
        **changes,  # type: ignore[arg-type]
    )


def decision(number: int = 0, **changes: object) -> Decision:
    return replace(
        Decision(
            id=f"d{number:04}",
            workload="recommender",
            at=MIDNIGHT + number * MINUTE,
            mode=Mode.SCALE,
            current_replicas=4,
            desired_replicas=4 + number % 2,
            warm_replicas=4,
            in_flight_replicas=None,
            reason=Reason.EVENT_FLOOR,
            binding=Source.EVENT,
            sentence="sale needs 16 replicas at 00:00",
            recommendations=(),
            conditions=(),
            inputs=(),
            demand_qps=None,
            need_replicas=4,
            plan_revision=1,
            forecast_id=None,
            event_ids=("sale",),
        ),
        **changes,  # type: ignore[arg-type]
    )


def plan(revision: int = 1, created_at: datetime = MIDNIGHT) -> CapacityPlan:
    return CapacityPlan(
        workload="recommender",
        revision=revision,
        created_at=created_at,
        floors=(Floor(16, MIDNIGHT - HOUR, MIDNIGHT, MIDNIGHT + HOUR, "sale", event_id="sale"),),
        forecast_id=None,
        start_at=MIDNIGHT,
        step=15 * MINUTE,
        need=(4, 16),
        quantile=0.99,
        digest=f"digest-{revision}",
    )


def forecast(
    number: int = 0, *, created_at: datetime | None = None, qps: tuple[tuple[float, ...], ...] = ((1.0, 2.5),)
) -> tuple[ForecastRun, ForecastBand]:
    origin_at = MIDNIGHT + number * HOUR
    run = ForecastRun(
        f"f{number}", "recommender", origin_at, created_at or origin_at, len(qps), (("naive", 1.0),)
    )
    band = ForecastBand(run.id, origin_at, origin_at, MINUTE, (0.5, 0.9), qps, ForecastState.READY)
    return run, band


def samples(*counts: float, start_at: datetime = MIDNIGHT, name: str = "w") -> list[TrafficSample]:
    return [TrafficSample(name, start_at + i * MINUTE, count) for i, count in enumerate(counts)]


# Transactions


async def test_what_was_not_committed_is_not_there(store: Store) -> None:
    async with store.unit_of_work() as unit:
        await unit.workloads.create(workload())
        await unit.traffic.upsert(samples(60.0))
        assert (await unit.workloads.get("recommender")).name == "recommender"

    async with store.unit_of_work() as unit:
        assert await unit.workloads.list() == ([], "")
        assert await unit.traffic.span("w") is None


async def test_an_error_inside_rolls_back(store: Store) -> None:
    async def fail() -> None:
        async with store.unit_of_work() as unit:
            await unit.workloads.create(workload())
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        await fail()

    async with store.unit_of_work() as unit:
        with pytest.raises(NotFoundError, match="recommender"):
            await unit.workloads.get("recommender")


async def test_committed_work_is_seen_by_a_unit_of_work_that_was_open_already(store: Store) -> None:
    async with store.unit_of_work() as reader, store.unit_of_work() as writer:
        assert await reader.traffic.span("w") is None
        await writer.workloads.create(workload())
        assert await reader.workloads.list() == ([], "")
        await writer.commit()

        assert (await reader.workloads.get("recommender")).name == "recommender"


async def test_a_refused_write_leaves_the_rest_of_the_transaction_usable(store: Store) -> None:
    async with store.unit_of_work() as unit:
        await unit.workloads.create(workload())
        with pytest.raises(ConflictError):
            await unit.workloads.create(workload())
        with pytest.raises(ValueError, match="demand_count"):
            await unit.traffic.upsert(samples(math.nan))
        await unit.workloads.create(workload("another"))
        await unit.commit()

    async with store.unit_of_work() as unit:
        assert [found.name for found in (await unit.workloads.list())[0]] == ["another", "recommender"]


async def test_the_schema_of_a_fresh_store_is_right(store: Store) -> None:
    await store.check_revision()


# Workloads


async def test_a_workload_reads_back_whole_with_its_generation(store: Store) -> None:
    wanted = workload(target={"kind": "Deployment", "name": "dlrm"}, priority=7, generation=99)
    async with store.unit_of_work() as unit:
        created = await unit.workloads.create(wanted)
        assert replace(wanted, generation=1) == created
        assert created == await unit.workloads.get("recommender")

        updated = await unit.workloads.update(replace(wanted, max_replicas=40), expected_generation=1)
        assert replace(wanted, max_replicas=40, generation=2) == updated
        assert updated == await unit.workloads.get("recommender")


async def test_a_workload_changed_by_somebody_else_is_not_overwritten(store: Store) -> None:
    async with store.unit_of_work() as unit:
        await unit.workloads.create(workload())
        await unit.workloads.update(workload(priority=1), expected_generation=None)

        with pytest.raises(ConflictError, match="generation 2, not 1"):
            await unit.workloads.update(workload(priority=2), expected_generation=1)
        with pytest.raises(ConflictError, match="generation 2, not 1"):
            await unit.workloads.delete("recommender", expected_generation=1)
        assert (await unit.workloads.get("recommender")).priority == 1


async def test_a_deleted_workload_leaves_its_history(store: Store) -> None:
    async with store.unit_of_work() as unit:
        await unit.workloads.create(workload("w"))
        await unit.traffic.upsert(samples(60.0))
        await unit.workloads.delete("w", expected_generation=1)

        with pytest.raises(NotFoundError):
            await unit.workloads.get("w")
        assert await unit.traffic.span("w") == (MIDNIGHT, MIDNIGHT)


async def test_a_deleted_workload_leaves_the_namespace_it_was_in(store: Store) -> None:
    async with store.unit_of_work() as unit:
        await unit.workloads.create(workload("w", namespace="shop"))
        before = await unit.workloads.remains_in("w")
        await unit.workloads.delete("w", expected_generation=1)
        first = await unit.workloads.remains_in("w")
        await unit.workloads.create(workload("w", namespace="search"))
        await unit.workloads.delete("w", expected_generation=None)

        assert (None, "shop", "search") == (before, first, await unit.workloads.remains_in("w"))


@pytest.mark.parametrize("expected", [None, 1])
async def test_changing_a_workload_that_is_not_there_says_so(store: Store, expected: int | None) -> None:
    async with store.unit_of_work() as unit:
        with pytest.raises(NotFoundError, match="recommender"):
            await unit.workloads.update(workload(), expected_generation=expected)
        with pytest.raises(NotFoundError, match="recommender"):
            await unit.workloads.delete("recommender", expected_generation=expected)


async def test_pages_join_to_the_whole_list(store: Store) -> None:
    names = [f"w{index:02}" for index in range(7)]
    async with store.unit_of_work() as unit:
        for name in reversed(names):
            await unit.workloads.create(workload(name))
        seen: list[str] = []
        token = ""
        for expected_size in (3, 3, 1):
            found, token = await unit.workloads.list(Page(3, token))
            assert expected_size == len(found)
            seen += [each.name for each in found]

        assert token == ""
        assert names == seen


async def test_a_page_continues_after_its_last_row_when_rows_come_and_go(store: Store) -> None:
    async with store.unit_of_work() as unit:
        for name in ("b", "d", "f"):
            await unit.workloads.create(workload(name))
        _, token = await unit.workloads.list(Page(2))
        await unit.workloads.delete("d", expected_generation=None)
        await unit.workloads.create(workload("a"))
        await unit.workloads.create(workload("e"))

        assert [each.name for each in (await unit.workloads.list(Page(2, token)))[0]] == ["e", "f"]


@pytest.mark.parametrize("token", ["!", "bm8=", "eyJhIjoxfQ==", "W10=", "WzEsMl0=", "a" * 5000])
async def test_a_foreign_page_token_is_refused_by_name(store: Store, token: str) -> None:
    async with store.unit_of_work() as unit:
        with pytest.raises(ValueError, match="page_token: "):
            await unit.workloads.list(Page(2, token))
        with pytest.raises(ValueError, match="page_token: "):
            await unit.events.list(page=Page(2, token))
        with pytest.raises(ValueError, match="page_token: "):
            await unit.decisions.list(page=Page(2, token))


@pytest.mark.parametrize("size", [0, -1])
async def test_a_page_without_rows_is_refused_by_name(store: Store, size: int) -> None:
    async with store.unit_of_work() as unit:
        with pytest.raises(ValueError, match="page_size: "):
            await unit.workloads.list(Page(size))


# Events


async def test_an_event_keeps_every_revision(store: Store) -> None:
    async with store.unit_of_work() as unit:
        first = await unit.events.create(event(revision=9))
        second = await unit.events.update(replace(first, display_name="11.11"), expected_revision=1)
        third = await unit.events.update(
            replace(second, state=EventState.CANCELLED, cancelled_reason="rain"), expected_revision=None
        )

        assert [first.revision, second.revision, third.revision] == [1, 2, 3]
        assert third == await unit.events.get("sale")
        assert [first, second, third] == list(await unit.events.revisions("sale"))
        assert list(await unit.events.revisions("another")) == []


async def test_an_event_is_not_overwritten_or_registered_twice(store: Store) -> None:
    async with store.unit_of_work() as unit:
        await unit.events.create(event())
        with pytest.raises(ConflictError, match="exists already"):
            await unit.events.create(event(start_at=MIDNIGHT + DAY))
        with pytest.raises(ConflictError, match="revision 1, not 2"):
            await unit.events.update(event(), expected_revision=2)
        with pytest.raises(NotFoundError, match="absent"):
            await unit.events.update(event("absent"), expected_revision=1)
        with pytest.raises(NotFoundError, match="absent"):
            await unit.events.get("absent")

        assert (await unit.events.get("sale")).start_at == MIDNIGHT
        assert len(await unit.events.revisions("sale")) == 1


async def test_events_are_listed_by_start_and_filtered(store: Store) -> None:
    async with store.unit_of_work() as unit:
        await unit.events.create(event("late", MIDNIGHT + DAY, category="match"))
        await unit.events.create(event("b-tie", category="sale", workloads=("recommender", "ranker")))
        await unit.events.create(event("a-tie", state=EventState.CANCELLED))

        async def ids(**filters: object) -> list[str]:
            found, _ = await unit.events.list(**filters)  # type: ignore[arg-type]
            return [each.id for each in found]

        assert await ids() == ["a-tie", "b-tie", "late"]
        assert await ids(workload="ranker") == ["b-tie"]
        assert await ids(workload="rank") == []
        assert await ids(states=["SCHEDULED", "ACTIVE"]) == ["b-tie", "late"]
        assert await ids(category="match") == ["late"]
        assert await ids(category="match", workload="ranker") == []


async def test_overlap_is_half_open_and_recurring_events_stay_open(store: Store) -> None:
    async with store.unit_of_work() as unit:
        await unit.events.create(event("once"))
        await unit.events.create(event("daily", rrule="FREQ=DAILY"))

        async def within(start_at: datetime, end_at: datetime) -> set[str]:
            return {each.id for each in (await unit.events.list(overlaps=(start_at, end_at)))[0]}

        assert {"once", "daily"} == await within(MIDNIGHT + 59 * MINUTE, MIDNIGHT + DAY)
        assert {"daily"} == await within(MIDNIGHT + HOUR, MIDNIGHT + DAY)
        assert set() == await within(MIDNIGHT - HOUR, MIDNIGHT)


async def test_event_pages_break_ties_of_start_by_id(store: Store) -> None:
    async with store.unit_of_work() as unit:
        for name in "dbca":
            await unit.events.create(event(name))
        first, token = await unit.events.list(page=Page(3))
        rest, end = await unit.events.list(page=Page(3, token))

        assert [each.id for each in [*first, *rest]] == ["a", "b", "c", "d"]
        assert end == ""


# Traffic


async def test_minutes_read_back_as_qps_with_gaps_unknown(store: Store) -> None:
    async with store.unit_of_work() as unit:
        assert (
            await unit.traffic.upsert([*samples(60.0, 0.0), *samples(90.0, start_at=MIDNIGHT + 3 * MINUTE)])
            == 3
        )

        assert list(await unit.traffic.read("w", MIDNIGHT - MINUTE, MIDNIGHT + 4 * MINUTE)) == [
            (MIDNIGHT - MINUTE, None),
            (MIDNIGHT, 1.0),
            (MIDNIGHT + MINUTE, 0.0),
            (MIDNIGHT + 2 * MINUTE, None),
            (MIDNIGHT + 3 * MINUTE, 1.5),
        ]
        assert list(await unit.traffic.read("absent", MIDNIGHT, MIDNIGHT + MINUTE)) == [(MIDNIGHT, None)]
        assert await unit.traffic.span("w") == (MIDNIGHT, MIDNIGHT + 3 * MINUTE)
        assert await unit.traffic.span("absent") is None


async def test_minutes_of_many_are_those_of_each(store: Store) -> None:
    start_at, end_at = MIDNIGHT - MINUTE, MIDNIGHT + 4 * MINUTE
    async with store.unit_of_work() as unit:
        await unit.traffic.upsert(
            [
                *samples(60.0, 0.0),
                TrafficSample("other", MIDNIGHT + MINUTE, 300.0, coverage=0.5),
                TrafficSample("other", MIDNIGHT + 2 * MINUTE, 300.0, coverage=0.49),
                TrafficSample("nobody asks", MIDNIGHT, 60.0),
            ]
        )

        names = ["w", "other", "absent"]
        found = await unit.traffic.read_many(names, start_at, end_at)
        assert found == {name: await unit.traffic.read(name, start_at, end_at) for name in names}
        assert [None, None, 10.0, None, None] == [qps for _, qps in found["other"]]
        assert {} == await unit.traffic.read_many([], start_at, end_at)
        assert {"w": []} == await unit.traffic.read_many(["w"], end_at, start_at)


async def test_longer_steps_average_what_was_observed(store: Store) -> None:
    five = 5 * MINUTE
    async with store.unit_of_work() as unit:
        # 00:00 has 3 of 5 minutes, 00:05 has 2 of 5: under half, so unknown.
        await unit.traffic.upsert(samples(60.0, 120.0, 180.0))
        await unit.traffic.upsert(samples(600.0, 600.0, start_at=MIDNIGHT + five))

        assert [(MIDNIGHT, 2.0), (MIDNIGHT + five, None)] == list(
            await unit.traffic.read("w", MIDNIGHT, MIDNIGHT + 2 * five, step=five)
        )


async def test_a_half_seen_minute_counts_per_seen_second(store: Store) -> None:
    """300 requests in half a minute are 10 QPS; under half a minute nothing is known."""
    async with store.unit_of_work() as unit:
        await unit.traffic.upsert(
            [
                TrafficSample("w", MIDNIGHT, 300.0, coverage=0.5),
                TrafficSample("w", MIDNIGHT + MINUTE, 300.0, coverage=0.49),
                TrafficSample("w", MIDNIGHT + 2 * MINUTE, 0.0, coverage=0.0),
            ]
        )

        assert [qps for _, qps in await unit.traffic.read("w", MIDNIGHT, MIDNIGHT + 3 * MINUTE)] == [
            10.0,
            None,
            None,
        ]


async def test_only_whole_steps_inside_the_window_are_read(store: Store) -> None:
    async with store.unit_of_work() as unit:
        await unit.traffic.upsert(samples(*[60.0] * 60))
        start_at, end_at = MIDNIGHT + timedelta(seconds=1), MIDNIGHT + 31 * MINUTE

        assert list(await unit.traffic.read("w", start_at, end_at, step=15 * MINUTE)) == [
            (MIDNIGHT + 15 * MINUTE, 1.0)
        ]
        assert list(await unit.traffic.read("w", end_at, start_at)) == []


async def test_a_window_in_another_zone_is_the_same_window(store: Store) -> None:
    shanghai = datetime.fromisoformat("2026-11-11T08:00:00+08:00")
    async with store.unit_of_work() as unit:
        await unit.traffic.upsert([TrafficSample("w", shanghai, 60.0)])

        assert list(await unit.traffic.read("w", shanghai, shanghai + MINUTE)) == [(MIDNIGHT, 1.0)]


@pytest.mark.parametrize("step", [timedelta(0), -MINUTE, timedelta(seconds=90), timedelta(seconds=10)])
async def test_a_step_that_is_no_whole_minutes_is_refused_by_name(store: Store, step: timedelta) -> None:
    async with store.unit_of_work() as unit:
        with pytest.raises(ValueError, match="step: "):
            await unit.traffic.read("w", MIDNIGHT, MIDNIGHT + HOUR, step=step)


async def test_a_window_of_too_many_steps_is_refused_by_name(store: Store) -> None:
    async with store.unit_of_work() as unit:
        with pytest.raises(ValueError, match="step: the window has"):
            await unit.traffic.read("w", MIDNIGHT - 3000 * DAY, MIDNIGHT)


async def test_the_same_minute_again_replaces(store: Store) -> None:
    async with store.unit_of_work() as unit:
        await unit.traffic.upsert(samples(60.0, 60.0))
        await unit.traffic.upsert(samples(60.0, 60.0))
        await unit.traffic.upsert([*samples(0.0, 120.0), *samples(180.0)])
        await unit.commit()

    async with store.unit_of_work() as unit:
        assert [qps for _, qps in await unit.traffic.read("w", MIDNIGHT, MIDNIGHT + 2 * MINUTE)] == [3.0, 2.0]


async def test_late_samples_fill_their_gap_across_partitions(store: Store) -> None:
    async with store.unit_of_work() as unit:
        await unit.traffic.upsert(samples(60.0))
        await unit.commit()
    async with store.unit_of_work() as unit:
        await unit.traffic.upsert(samples(120.0, start_at=MIDNIGHT - 400 * DAY))
        await unit.traffic.upsert(samples(180.0, start_at=MIDNIGHT + 400 * DAY))
        await unit.commit()

    async with store.unit_of_work() as unit:
        assert await unit.traffic.span("w") == (MIDNIGHT - 400 * DAY, MIDNIGHT + 400 * DAY)
        assert list(await unit.traffic.read("w", MIDNIGHT - 400 * DAY, MIDNIGHT - 400 * DAY + MINUTE)) == [
            (MIDNIGHT - 400 * DAY, 2.0)
        ]


BAD_SAMPLES = {
    "workload": TrafficSample("", MIDNIGHT, 1.0),
    "minute_at": TrafficSample("w", MIDNIGHT + timedelta(seconds=1), 1.0),
    "demand_count": TrafficSample("w", MIDNIGHT, math.nan),
    "coverage": TrafficSample("w", MIDNIGHT, 1.0, coverage=1.5),
}


@pytest.mark.parametrize(
    ("fieldname", "bad"),
    [
        *BAD_SAMPLES.items(),
        ("minute_at", TrafficSample("w", MIDNIGHT.replace(tzinfo=None), 1.0)),
        ("minute_at", TrafficSample("w", datetime(1999, 1, 1, tzinfo=UTC), 1.0)),
        ("minute_at", TrafficSample("w", datetime(2100, 1, 1, tzinfo=UTC), 1.0)),
        ("demand_count", TrafficSample("w", MIDNIGHT, math.inf)),
        ("demand_count", TrafficSample("w", MIDNIGHT, -1.0)),
        ("served_count", TrafficSample("w", MIDNIGHT, 1.0, served_count=-math.inf)),
        ("rejected_count", TrafficSample("w", MIDNIGHT, 1.0, rejected_count=math.nan)),
        ("coverage", TrafficSample("w", MIDNIGHT, 1.0, coverage=math.nan)),
    ],
)
async def test_one_bad_sample_refuses_the_batch_by_name(
    store: Store, fieldname: str, bad: TrafficSample
) -> None:
    async with store.unit_of_work() as unit:
        with pytest.raises(ValueError, match=rf"samples\[1\]\.{fieldname}: "):
            await unit.traffic.upsert([*samples(60.0), bad])
        await unit.commit()

    async with store.unit_of_work() as unit:
        assert await unit.traffic.span("w") is None


async def test_no_samples_are_no_work(store: Store) -> None:
    async with store.unit_of_work() as unit:
        assert await unit.traffic.upsert([]) == 0


# Forecasts


async def test_a_forecast_reads_back_whole_and_the_newest_origin_is_latest(store: Store) -> None:
    async with store.unit_of_work() as unit:
        await unit.forecasts.save(*forecast(1))
        await unit.forecasts.save(*forecast(0, created_at=MIDNIGHT + 5 * HOUR))

        assert forecast(1) == await unit.forecasts.latest("recommender")
        assert await unit.forecasts.latest("absent") is None
        assert {"recommender": forecast(1)[1]} == await unit.forecasts.latest_bands(["recommender", "absent"])


async def test_as_of_answers_what_was_known_then(store: Store) -> None:
    async with store.unit_of_work() as unit:
        await unit.forecasts.save(*forecast(0))
        await unit.forecasts.save(*forecast(1))

        assert await unit.forecasts.as_of("recommender", MIDNIGHT - MINUTE) is None
        assert forecast(0) == await unit.forecasts.as_of("recommender", MIDNIGHT)
        assert forecast(0) == await unit.forecasts.as_of("recommender", MIDNIGHT + 59 * MINUTE)
        assert forecast(1) == await unit.forecasts.as_of("recommender", MIDNIGHT + HOUR)
        early, late, before = MIDNIGHT + 59 * MINUTE, MIDNIGHT + HOUR, MIDNIGHT - MINUTE
        found = await unit.forecasts.bands_as_of("recommender", [early, before, late, MIDNIGHT])
        assert {MIDNIGHT: forecast(0)[1], early: forecast(0)[1], late: forecast(1)[1]} == found
        assert {} == await unit.forecasts.bands_as_of("recommender", [before])


async def test_a_forecast_is_immutable_and_may_have_no_quantiles(store: Store) -> None:
    async with store.unit_of_work() as unit:
        await unit.forecasts.save(*forecast(0, qps=()))
        await unit.forecasts.save(*forecast(0, qps=((9.0, 9.0),)))

        assert forecast(0, qps=()) == await unit.forecasts.latest("recommender")
        assert {"recommender": forecast(0, qps=())[1]} == await unit.forecasts.latest_bands(["recommender"])


async def test_what_forecasts_said_is_replaced_whole_and_bytes_come_back_as_they_were(store: Store) -> None:
    async with store.unit_of_work() as unit:
        await unit.forecasts.put_said("recommender", b"first")
        await unit.forecasts.put_said("recommender", b"\x00\xff" * 40_000)

        assert b"\x00\xff" * 40_000 == await unit.forecasts.said("recommender")
        assert await unit.forecasts.said("absent") is None


async def test_calibrations_of_many_are_read_at_once_and_go_when_the_next_put_has_none(store: Store) -> None:
    async with store.unit_of_work() as unit:
        await unit.forecasts.put_said("a", b"said", b"\x00\xff" * 8_000)
        await unit.forecasts.put_said("b", b"said", b"before")
        await unit.forecasts.put_said("b", b"said", b"now")
        await unit.forecasts.put_said("c", b"said")

        found = await unit.forecasts.calibrations(["a", "b", "c", "absent"])
        assert {"a": b"\x00\xff" * 8_000, "b": b"now"} == found
        assert {} == await unit.forecasts.calibrations([])

        await unit.forecasts.put_said("b", b"said")
        assert {} == await unit.forecasts.calibrations(["b"])
        assert b"said" == await unit.forecasts.said("b")


async def test_a_band_of_another_run_is_refused(store: Store) -> None:
    async with store.unit_of_work() as unit:
        with pytest.raises(ValueError, match=r"band\.id: "):
            await unit.forecasts.save(forecast(0)[0], forecast(1)[1])


# Decisions and plans


async def test_decisions_read_back_whole_newest_first_with_outcomes(store: Store) -> None:
    outcome = Outcome("d0001", MIDNIGHT, applied=True, observed_replicas=5)
    async with store.unit_of_work() as unit:
        await unit.decisions.append([decision(0), decision(1), decision(2)])
        await unit.decisions.append([])
        await unit.decisions.outcome(outcome)

        assert (decision(1), outcome) == await unit.decisions.get("d0001")
        found, token = await unit.decisions.list()
        assert [(decision(2), None), (decision(1), outcome), (decision(0), None)] == list(found)
        assert token == ""
        with pytest.raises(NotFoundError, match="absent"):
            await unit.decisions.get("absent")


async def test_a_decision_is_immutable_and_the_latest_outcome_counts(store: Store) -> None:
    later = Outcome("d0000", MIDNIGHT + MINUTE, applied=True, observed_replicas=4)
    async with store.unit_of_work() as unit:
        await unit.decisions.append([decision(0)])
        await unit.decisions.append([decision(0, sentence="rewritten"), decision(1)])
        await unit.decisions.outcome(later)
        await unit.decisions.outcome(replace(later, at=MIDNIGHT, applied=False))

        assert (decision(0), later) == await unit.decisions.get("d0000")
        assert len((await unit.decisions.list())[0]) == 2


async def test_decisions_are_filtered_and_paged(store: Store) -> None:
    async with store.unit_of_work() as unit:
        await unit.decisions.append([decision(number) for number in range(6)])
        await unit.decisions.append([decision(9, workload="another")])

        async def ids(**filters: object) -> list[str]:
            found, _ = await unit.decisions.list(**filters)  # type: ignore[arg-type]
            return [each.id for each, _ in found]

        assert await ids(workload="another") == ["d0009"]
        assert await ids(workload="recommender", changes_only=True) == ["d0005", "d0003", "d0001"]
        assert await ids(start_at=MIDNIGHT + MINUTE, end_at=MIDNIGHT + 3 * MINUTE) == ["d0002", "d0001"]
        page, token = await unit.decisions.list(page=Page(4))
        assert [each.id for each, _ in page] == ["d0009", "d0005", "d0004", "d0003"]
        assert await ids(page=Page(4, token)) == ["d0002", "d0001", "d0000"]


async def test_plans_are_immutable_revisions(store: Store) -> None:
    async with store.unit_of_work() as unit:
        with pytest.raises(NotFoundError, match="recommender"):
            await unit.decisions.plan("recommender")
        await unit.decisions.save_plan(plan(1))
        await unit.decisions.save_plan(plan(2))
        await unit.decisions.save_plan(replace(plan(1), floors=()))

        assert plan(2) == await unit.decisions.plan("recommender")
        assert plan(1) == await unit.decisions.plan("recommender", 1)
        with pytest.raises(NotFoundError, match="3"):
            await unit.decisions.plan("recommender", 3)


# State, overrides, pause


async def test_states_are_replaced_whole(store: Store) -> None:
    state = WorkloadState(desired_replicas=4, changes=(ScaleChange(MIDNIGHT, 2),), plan=plan())
    async with store.unit_of_work() as unit:
        assert await unit.states.load() == {}
        await unit.states.save({})
        await unit.decisions.save_plan(plan())
        await unit.states.save({"recommender": state, "b": state})
        await unit.states.save({"b": WorkloadState(last_at=MIDNIGHT)})

        assert {"recommender": state, "b": WorkloadState(last_at=MIDNIGHT)} == await unit.states.load()
        assert {"recommender": state} == await unit.states.load(["recommender", "absent"])
        assert await unit.states.load([]) == {}


async def test_a_state_that_a_tick_left_as_it_stood_is_read_as_that_tick_left_it(store: Store) -> None:
    stood = WorkloadState(
        4, needs=(PastNeed(MIDNIGHT, 2), PastNeed(MIDNIGHT + MINUTE, 4)), last_at=MIDNIGHT + MINUTE
    )
    gone = replace(stood, last_at=None)
    async with store.unit_of_work() as unit:
        await unit.states.save({"stood": stood, "gone": gone}, MIDNIGHT + MINUTE)
        await unit.states.save({}, MIDNIGHT + HOUR)

        later = replace(
            stood, needs=(*stood.needs[:1], PastNeed(MIDNIGHT + HOUR, 4)), last_at=MIDNIGHT + HOUR
        )
        assert {"stood": later, "gone": gone} == await unit.states.load()


async def test_a_state_whose_plan_is_another_one_by_now_has_a_plan_that_is_made_anew(store: Store) -> None:
    """As after a backup of the plans was restored: a plan without its digest is no plan to go by."""
    async with store.unit_of_work() as unit:
        await unit.decisions.save_plan(replace(plan(), created_at=MIDNIGHT - HOUR))
        await unit.states.save({"recommender": WorkloadState(4, plan=plan())})

        kept = (await unit.states.load())["recommender"].plan
        assert kept is not None
        assert kept.revision == plan().revision
        assert kept.digest == "" or kept == plan()


async def test_marks_tell_which_workloads_were_written(store: Store) -> None:
    async with store.unit_of_work() as unit:
        for name in ("a", "b", "c"):
            await unit.workloads.create(workload(name))
        await unit.commit()
    async with store.unit_of_work() as unit:
        before = await unit.workloads.marks()
        await unit.workloads.update(workload("a", max_replicas=99), expected_generation=None)
        await unit.workloads.delete("b", expected_generation=None)
        await unit.commit()

    async with store.unit_of_work() as unit:
        after = await unit.workloads.marks()
        found = await unit.workloads.many(["a", "b", "c"])
    assert before.keys() == {"a", "b", "c"}
    assert after.keys() == {"a", "c"}
    assert before["a"] != after["a"]
    assert before["c"] == after["c"]
    assert sorted(found, key=lambda w: w.name) == [
        workload("a", max_replicas=99, generation=2),
        workload("c", generation=1),
    ]


async def test_overrides_are_kept_until_deleted(store: Store) -> None:
    floor = Override("o1", OverrideKind.AT_LEAST, 8, MIDNIGHT, "launch", "ops@example.com")
    pause = Override("o2", OverrideKind.PAUSE, None, MIDNIGHT - HOUR, "incident")
    async with store.unit_of_work() as unit:
        await unit.states.put_override("w", floor)
        await unit.states.put_override("w", pause)
        await unit.states.put_override("v", floor)
        await unit.states.put_override("v", replace(floor, replicas=9))

        assert {"w": [pause, floor], "v": [replace(floor, replicas=9)]} == await unit.states.overrides()
        await unit.states.delete_override("w", "o1")
        assert {"w": [pause]} == await unit.states.overrides("w")
        assert await unit.states.overrides("absent") == {}
        with pytest.raises(NotFoundError, match="o1"):
            await unit.states.delete_override("w", "o1")


async def test_the_pause_is_off_until_set(store: Store) -> None:
    async with store.unit_of_work() as unit:
        assert PauseState() == await unit.states.pause()
        for state in (PauseState(True, "incident", "ops", MIDNIGHT), PauseState(by="ops")):
            await unit.states.set_pause(state)
            assert state == await unit.states.pause()


# Warm-ups, records


async def test_lead_times_are_newest_first_one_per_replica(store: Store) -> None:
    def sample(load_s: float) -> LeadSample:
        return LeadSample({"load": load_s, "warmup": 1.0}, 3)

    async with store.unit_of_work() as unit:
        for index in range(4):
            await unit.warmups.append_all(
                [("w", f"r{index}", MIDNIGHT + index * MINUTE, sample(float(index)))]
            )
        await unit.warmups.append_all([("w", "r0", MIDNIGHT + HOUR, sample(9.0))])

        assert [sample(9.0), sample(3.0)] == list(await unit.warmups.recent("w", limit=2))
        assert len(await unit.warmups.recent("w")) == 4
        assert list(await unit.warmups.recent("absent")) == []
        await unit.warmups.append_all(
            [("v", "r", MIDNIGHT, sample(5.0)), ("w", "r3", MIDNIGHT + 2 * HOUR, sample(7.0))]
        )
        recent = await unit.warmups.recent_of(["w", "v", "absent"], limit=2)
        assert {"v": [sample(5.0)], "w": [sample(7.0), sample(9.0)]} == {w: [*s] for w, s in recent.items()}
        asked = [("w", "r3"), ("w", "r9"), ("v", "r"), ("absent", "r")]
        assert {("w", "r3"), ("v", "r")} == set(await unit.warmups.known(asked))
        assert not await unit.warmups.known([])


async def test_a_response_is_remembered_once(store: Store) -> None:
    async with store.unit_of_work() as unit:
        assert await unit.records.recall("key") is None
        await unit.records.remember("key", "digest", b"\x00response", MIDNIGHT)
        with pytest.raises(ConflictError, match="request_id 'key'"):
            await unit.records.remember("key", "other", b"", MIDNIGHT)

        assert await unit.records.recall("key") == ("digest", b"\x00response")


async def test_two_calls_with_one_request_id_write_once(store: Store) -> None:
    """The second waits for the first, then learns that it lost; its whole transaction is undone."""

    async def call(name: str) -> str:
        async with store.unit_of_work() as unit:
            await unit.records.remember("key", "digest", name.encode(), MIDNIGHT)
            await unit.workloads.create(workload(name))
            await unit.commit()
        return name

    done = await asyncio.gather(call("a"), call("b"), return_exceptions=True)

    winners = [name for name in done if isinstance(name, str)]
    assert sum(isinstance(error, ConflictError) for error in done) == 1
    async with store.unit_of_work() as unit:
        assert ("digest", winners[0].encode()) == await unit.records.recall("key")
        assert winners == [found.name for found in (await unit.workloads.list())[0]]


async def test_audit_entries_may_repeat(store: Store) -> None:
    entry = AuditEntry(MIDNIGHT, "ops", "CreateEvent", "events/sale", "OK")
    async with store.unit_of_work() as unit:
        await unit.records.audit(entry)
        await unit.records.audit(entry)
        await unit.commit()


# Fencing


async def test_only_the_newest_token_may_write(store: Store, leases: LeaseStore) -> None:
    async with store.unit_of_work() as unit:
        with pytest.raises(StaleFenceError, match="another process leads"):
            await unit.require_leader(1)
    old = await leases.acquire(LEADER_LEASE, "a", LEASE)
    assert old is not None
    async with store.unit_of_work() as unit:
        await unit.require_leader(old.token)
        await unit.states.save({"w": WorkloadState()})
        await unit.commit()
    await leases.release(old)
    new = await leases.acquire(LEADER_LEASE, "b", LEASE)
    assert new is not None

    async with store.unit_of_work() as unit:
        with pytest.raises(StaleFenceError):
            await unit.require_leader(old.token)
        await unit.require_leader(new.token)


async def test_a_leader_that_gave_up_may_not_write_any_more(store: Store, leases: LeaseStore) -> None:
    lease = await leases.acquire(LEADER_LEASE, "a", LEASE)
    assert lease is not None
    await leases.release(lease)

    async with store.unit_of_work() as unit:
        with pytest.raises(StaleFenceError):
            await unit.require_leader(lease.token)


async def test_another_lease_is_no_leadership(store: Store, leases: LeaseStore) -> None:
    lease = await leases.acquire("another", "a", LEASE)
    assert lease is not None

    async with store.unit_of_work() as unit:
        with pytest.raises(StaleFenceError):
            await unit.require_leader(lease.token)


# Retention


async def test_maintenance_drops_what_is_past_its_age_and_keeps_what_is_in_force(store: Store) -> None:
    old, now = MIDNIGHT - 100 * DAY, MIDNIGHT
    async with store.unit_of_work() as unit:
        await unit.workloads.create(workload("recommender"))
        await unit.traffic.upsert([*samples(60.0, start_at=old), *samples(60.0)])
        await unit.decisions.append([decision(0, at=old), decision(1)])
        await unit.decisions.outcome(Outcome("d0000", old, applied=True, observed_replicas=4))
        for number in (1, 2):
            await unit.decisions.save_plan(plan(number, old))
        for number in (-2400, -2399):
            await unit.forecasts.save(*forecast(number))
        await unit.records.remember("old", "digest", b"", old)
        await unit.records.remember("new", "digest", b"", now)
        await unit.commit()

    ages = Retention(traffic=30 * DAY, decisions=30 * DAY, forecasts=30 * DAY)
    assert await store.maintain(now, ages) > 0
    assert await store.maintain(now, ages) == 0

    async with store.unit_of_work() as unit:
        assert await unit.traffic.span("w") == (MIDNIGHT, MIDNIGHT)
        assert [each.id for each, _ in (await unit.decisions.list())[0]] == ["d0001"]
        assert (await unit.decisions.plan("recommender")).revision == 2
        with pytest.raises(NotFoundError):
            await unit.decisions.plan("recommender", 1)
        assert forecast(-2399) == await unit.forecasts.latest("recommender")
        assert await unit.forecasts.as_of("recommender", MIDNIGHT - 2400 * HOUR) is None
        assert await unit.records.recall("old") is None
        assert await unit.records.recall("new") is not None


async def test_maintenance_forgets_workloads_that_are_gone_once_they_are_past_their_age(store: Store) -> None:
    """By the time of writing, which a database takes from its own clock: whoever asks is far ahead of it."""
    later, ages = MIDNIGHT + 40_000 * DAY, Retention(decisions=90 * DAY, forecasts=30 * DAY)
    start = LeadSample({"load": 3.0}, 1)
    async with store.unit_of_work() as unit:
        await unit.workloads.create(workload("kept"))
        for name in ("kept", "gone"):
            await unit.decisions.save_plan(replace(plan(1, MIDNIGHT), workload=name))
            await unit.warmups.append_all([(name, "r0", MIDNIGHT, start)])
            run, band = forecast(0)
            await unit.forecasts.save(replace(run, id=name, workload=name), replace(band, id=name))
        await unit.states.save({name: WorkloadState() for name in ("kept", "gone")}, MIDNIGHT)
        await unit.commit()

    await store.maintain(MIDNIGHT, ages)
    async with store.unit_of_work() as unit:
        assert {"kept", "gone"} == (await unit.states.load()).keys()
        assert 1 == (await unit.decisions.plan("gone")).revision
    await store.maintain(later, ages)

    async with store.unit_of_work() as unit:
        assert {"kept"} == (await unit.states.load()).keys()
        assert 1 == (await unit.decisions.plan("kept")).revision
        with pytest.raises(NotFoundError):
            await unit.decisions.plan("gone")
        assert await unit.forecasts.latest("kept") is not None
        assert await unit.forecasts.latest("gone") is None
        assert [start] == list(await unit.warmups.recent("kept"))
        assert [] == list(await unit.warmups.recent("gone"))


async def test_a_workload_deleted_just_now_is_not_past_its_age_however_long_its_state_stood(
    store: Store,
) -> None:
    """Declared again within the hour it continues; a leader that never saw it go would not write its state again."""
    clock, ages = SystemClock(), Retention(decisions=timedelta(0))
    wrote_at = clock.now()
    async with store.unit_of_work() as unit:
        await unit.workloads.create(workload("replaced"))
        await unit.decisions.save_plan(replace(plan(1, wrote_at - DAY), workload="replaced"))
        await unit.states.save({name: WorkloadState() for name in ("replaced", "forgotten")}, wrote_at)
        await unit.commit()
    deleted_at = clock.now()
    async with store.unit_of_work() as unit:
        await unit.states.save({"other": WorkloadState()}, deleted_at)
        await unit.workloads.delete("replaced", expected_generation=None)
        await unit.commit()

    await store.maintain(deleted_at, ages)
    async with store.unit_of_work() as unit:
        assert {"replaced", "other"} == (await unit.states.load()).keys()
        assert 1 == (await unit.decisions.plan("replaced")).revision


async def test_a_plan_stays_as_long_as_decisions_made_by_it(store: Store) -> None:
    """The second was in force until yesterday, the first until a hundred days ago."""
    async with store.unit_of_work() as unit:
        await unit.workloads.create(workload())
        for revision, days in ((1, 200), (2, 100), (3, 1)):
            await unit.decisions.save_plan(plan(revision, MIDNIGHT - days * DAY))
        await unit.commit()

    await store.maintain(MIDNIGHT, Retention(decisions=90 * DAY))
    async with store.unit_of_work() as unit:
        assert 3 == (await unit.decisions.plan("recommender")).revision
        assert 2 == (await unit.decisions.plan("recommender", 2)).revision
        with pytest.raises(NotFoundError):
            await unit.decisions.plan("recommender", 1)


async def test_minutes_written_after_their_age_are_stored_and_dropped_again(store: Store) -> None:
    ages = Retention(traffic=30 * DAY)
    for _ in range(2):
        async with store.unit_of_work() as unit:
            await unit.traffic.upsert(samples(60.0, start_at=MIDNIGHT - 100 * DAY))
            assert await unit.traffic.span("w") is not None
            await unit.commit()
        await store.maintain(MIDNIGHT, ages)

        async with store.unit_of_work() as unit:
            assert await unit.traffic.span("w") is None


async def test_the_token_of_a_shard_holds_while_the_agreement_does(store: Store, leases: LeaseStore) -> None:
    agreed = await leases.acquire(LEADER_LEASE, "shards:4", LEASE)
    one = await leases.acquire("shard/4/0", "a", LEASE)
    two = await leases.acquire("shard/4/1", "b", LEASE)
    assert agreed is not None
    assert one is not None
    assert two is not None
    for lease in (one, two):
        async with store.unit_of_work() as unit:
            await unit.require_leader(lease.token)

    await leases.release(two)
    async with store.unit_of_work() as unit:
        with pytest.raises(StaleFenceError):
            await unit.require_leader(two.token)
    await leases.release(agreed)
    assert await leases.acquire(LEADER_LEASE, "b single leader", LEASE) is not None
    async with store.unit_of_work() as unit:
        with pytest.raises(StaleFenceError):
            await unit.require_leader(one.token)


async def test_a_state_stands_under_the_ticks_of_the_leader_that_took_it_over(
    store: Store, leases: LeaseStore
) -> None:
    standing = WorkloadState(last_at=MIDNIGHT, needs=(PastNeed(MIDNIGHT, 2),))
    single = await leases.acquire(LEADER_LEASE, "single", LEASE)
    assert single is not None
    async with store.unit_of_work() as unit:
        await unit.require_leader(single.token)
        await unit.states.save({"moved": standing, "left": standing, "own": standing}, MIDNIGHT)
        await unit.commit()
    await leases.release(single)
    await leases.acquire(LEADER_LEASE, "shards:2", LEASE)
    shard = await leases.acquire("shard/2/0", "a", LEASE)
    assert shard is not None
    async with store.unit_of_work() as unit:
        await unit.require_leader(shard.token)
        await unit.states.take_over(["moved"])
        await unit.states.save({"own": standing}, MIDNIGHT + MINUTE)
        await unit.commit()

    async with store.unit_of_work() as unit:
        found = await unit.states.load()
        assert found.keys() - (await unit.states.load(["own", "moved"])).keys() == {"left"}
    assert {"moved": MIDNIGHT + MINUTE, "left": MIDNIGHT, "own": MIDNIGHT + MINUTE} == {
        name: state.last_at for name, state in found.items()
    }
