"""What every store keeps of forecasts' parts, scores and standings; against the fake and a real PostgreSQL."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from controller.accuracy import (
    Backtest,
    HourScore,
    LeadScore,
    ModelScore,
    NaiveScore,
    Parts,
    Standing,
    Switch,
    add_up,
)
from controller.adapters.fakes import FakeStore
from controller.adapters.postgres import PostgresStore
from controller.core.resources import ForecastRun, Page
from controller.core.types import Decision, ForecastBand, ForecastState, Mode, Reason, Trust
from controller.ports import Retention, Store

NOW = datetime(2026, 11, 11, tzinfo=UTC)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
LEVELS = (0.1, 0.5, 0.9)


@pytest.fixture(params=["fake", "postgres"])
def store(request: pytest.FixtureRequest) -> Store:
    if request.param == "fake":
        return FakeStore()
    found: PostgresStore = request.getfixturevalue("postgres_store")
    return found


def an_hour(number: int, steps: int = 12) -> HourScore:
    lead = LeadScore(
        timedelta(0), steps, 30.0, (1, 6, 11), -4.5, 1200.0, NaiveScore(12, 60.0, 30.0), NaiveScore()
    )
    return HourScore(NOW + number * HOUR, HOUR, LEVELS, (lead, replace(lead, lead=DAY)))


def some_parts(number: int) -> Parts:
    return Parts(
        forecast_id=f"f{number}",
        workload="rec",
        created_at=NOW + number * HOUR,
        model="recent",
        model_reason="it won",
        sentence="Highest at noon.",
        baseline=100.25,
        trend=(0.5, 1.5),
        event=(0.0, 1024.0),
        correction=(-0.125, 0.0),
    )


async def test_parts_read_back_whole_and_are_immutable(store: Store) -> None:
    async with store.unit_of_work() as unit:
        await unit.accuracy.put_parts(some_parts(1))
        await unit.accuracy.put_parts(replace(some_parts(1), baseline=7.0))

        assert some_parts(1) == await unit.accuracy.parts("f1")
        assert await unit.accuracy.parts("absent") is None


async def test_hours_read_back_in_order_and_an_hour_scored_again_replaces_the_first(store: Store) -> None:
    async with store.unit_of_work() as unit:
        assert await unit.accuracy.scored_until("rec") is None
        await unit.accuracy.put_scores("rec", [an_hour(2), an_hour(1, steps=6)])
        await unit.accuracy.put_scores("rec", [an_hour(1)])
        await unit.accuracy.put_scores("other", [an_hour(9)])
        await unit.accuracy.put_scores("rec", [])

        assert [an_hour(1), an_hour(2)] == list(await unit.accuracy.scores("rec", NOW, NOW + DAY))
        assert [an_hour(1)] == list(await unit.accuracy.scores("rec", NOW + HOUR, NOW + 2 * HOUR))
        assert NOW + 2 * HOUR == await unit.accuracy.scored_until("rec")


async def test_a_standing_is_replaced_whole(store: Store) -> None:
    scores = (ModelScore("recent", "day", 288, 3.5, None, -0.01, (0.1, 0.5, 0.9)),)
    standing = Standing(
        workload="rec",
        champion="recent",
        since_at=NOW,
        switches=(Switch(NOW, "ensemble", "recent", "it won"),),
        backtest=Backtest(NOW, 4, DAY, LEVELS, scores),
        trust=Trust.DISTRUSTED,
        trust_reason="far off",
    )
    async with store.unit_of_work() as unit:
        assert await unit.accuracy.standing("rec") is None
        await unit.accuracy.put_standing(Standing("rec"))
        await unit.accuracy.put_standing(standing)

        assert standing == await unit.accuracy.standing("rec")
        assert {"rec": standing} == await unit.accuracy.standings(["rec", "absent"])


async def test_old_parts_and_scores_go_and_young_ones_stay(store: Store) -> None:
    async with store.unit_of_work() as unit:
        await unit.accuracy.put_parts(some_parts(0))
        await unit.accuracy.put_parts(some_parts(100))
        await unit.accuracy.put_scores("rec", [an_hour(0), an_hour(100)])
        await unit.commit()

    await store.maintain(NOW + 101 * HOUR, Retention(parts=2 * DAY, scores=2 * DAY))

    async with store.unit_of_work() as unit:
        assert await unit.accuracy.parts("f0") is None
        assert some_parts(100) == await unit.accuracy.parts("f100")
        assert [an_hour(100)] == list(await unit.accuracy.scores("rec", NOW, NOW + 200 * HOUR))


async def test_of_older_forecasts_the_first_of_each_hour_stays(store: Store) -> None:
    def forecast(minutes: int, workload: str = "rec") -> tuple[ForecastRun, ForecastBand]:
        at, run_id = NOW + timedelta(minutes=minutes), f"{workload}-{minutes}"
        band = ForecastBand(run_id, at, at, HOUR, LEVELS, (), ForecastState.FAILED)
        return ForecastRun(run_id, workload, at, at, 0), band

    async with store.unit_of_work() as unit:
        for minutes in (5, 20, 55, 60, 75, 130, 140):
            await unit.forecasts.save(*forecast(minutes))
        # The last hour of another workload, which has stopped: its newest run is in force.
        for minutes in (10, 20):
            await unit.forecasts.save(*forecast(minutes, "search"))
        await unit.commit()

    await store.maintain(NOW + 4 * HOUR, Retention(runs=timedelta(minutes=115)))

    async with store.unit_of_work() as unit:
        found = [
            await unit.forecasts.as_of("rec", NOW + timedelta(minutes=minutes))
            for minutes in (20, 55, 75, 130, 140)
        ]
        assert ["rec-5", "rec-5", "rec-60", "rec-130", "rec-140"] == [pair[0].id for pair in found if pair]
        assert {"rec": "rec-140", "search": "search-20"} == await unit.forecasts.newest(["rec", "search"])
        earlier = await unit.forecasts.as_of("search", NOW + timedelta(minutes=15))
        assert earlier is not None
        assert "search-10" == earlier[0].id
    assert 0 == await store.maintain(NOW + 4 * HOUR, Retention(runs=timedelta(minutes=115)))


async def test_the_newest_forecasts_are_told_by_id(store: Store) -> None:
    def forecast(run_id: str, workload: str, hours: int) -> tuple[ForecastRun, ForecastBand]:
        at = NOW + hours * HOUR
        band = ForecastBand(run_id, at, at, HOUR, LEVELS, (), ForecastState.FAILED)
        return ForecastRun(run_id, workload, at, at, 0), band

    async with store.unit_of_work() as unit:
        for run in (forecast("a", "rec", 1), forecast("b", "rec", 2), forecast("c", "search", 0)):
            await unit.forecasts.save(*run)

        assert {"rec": "b", "search": "c"} == await unit.forecasts.newest(["rec", "search", "absent"])
        assert {} == await unit.forecasts.newest([])


async def test_decisions_are_paged_oldest_first_when_asked(store: Store) -> None:
    def decision(number: int) -> Decision:
        return Decision(
            id=f"d{number}",
            workload="rec",
            at=NOW + number * HOUR,
            mode=Mode.SCALE,
            current_replicas=1,
            desired_replicas=1,
            warm_replicas=None,
            in_flight_replicas=None,
            reason=Reason.STEADY,
            binding=None,
            sentence="",
            recommendations=(),
            conditions=(),
            inputs=(),
            demand_qps=None,
            need_replicas=None,
            plan_revision=None,
            forecast_id=None,
            event_ids=(),
        )

    async with store.unit_of_work() as unit:
        await unit.decisions.append([decision(n) for n in range(3)])
        first, token = await unit.decisions.list(oldest_first=True, page=Page(2))
        rest, end = await unit.decisions.list(oldest_first=True, page=Page(2, token))

    assert ["d0", "d1", "d2"] == [found.id for found, _ in (*first, *rest)]
    assert "" == end


def test_hours_add_up_by_lead_and_levels_of_older_releases_are_left_out() -> None:
    older = replace(an_hour(0), levels=(0.5,))

    live = add_up([older, an_hour(1), an_hour(2, steps=6)])

    assert [timedelta(0), DAY] == [one.score.lead for one in live]
    assert (NOW + HOUR, NOW + 3 * HOUR) == (live[0].start_at, live[0].end_at)
    assert (18, (2, 12, 22), -9.0) == (
        live[0].score.step_count,
        live[0].score.covered,
        live[0].score.error_sum,
    )
    assert 0.5 == live[0].score.daily.ratio
    assert live[0].score.weekly.ratio is None
    assert () == add_up([])
