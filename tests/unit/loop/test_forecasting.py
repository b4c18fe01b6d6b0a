"""Forecasts are kept fresh, explained, scored and made by the champion; a new leader goes on where the last was."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from controller.accuracy import LEADS, HourScore, Standing
from controller.adapters.fakes import FakeForecaster
from controller.core.resources import TrafficSample
from controller.core.types import Event, Trust, Workload
from controller.loop.forecasting import CONTEST_PERIOD, Forecasting
from controller.ports import PortError
from controller.settings import Settings
from controller.usecases.topics import CHANGES
from tests.unit.loop.conftest import START, Fleet, Process

Make = Callable[[str], Process]
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def traffic(fleet: Fleet, workload: Workload, start_at: datetime, end_at: datetime) -> None:
    """Let ten requests a second have come from ``start_at`` to ``end_at``."""
    for minute in range((end_at - start_at) // MINUTE):
        at = start_at + MINUTE * minute
        fleet.store.tables.samples[workload.name, at] = TrafficSample(workload.name, at, 600.0)


async def advance(fleet: Fleet, workload: Workload, forecasting: Forecasting, until: datetime) -> None:
    """Live through the time until ``until``, a quarter of an hour at a time."""
    while fleet.clock.now() < until:
        now = fleet.clock.now()
        await fleet.clock.advance(900.0)
        traffic(fleet, workload, now, fleet.clock.now())
        await forecasting.refresh([workload], {})


def hours(fleet: Fleet) -> list[HourScore]:
    return [hour for _, hour in sorted(fleet.store.tables.scores.items())]


async def test_a_refit_is_stored_with_its_parts_and_told_to_watchers(
    fleet: Fleet, recommender: Workload
) -> None:
    traffic(fleet, recommender, START - 3 * HOUR, START)
    forecasting = Forecasting(fleet.store, FakeForecaster(), fleet.clock, Settings(), fleet.cache)
    heard = fleet.cache.subscribe(CHANGES)

    waiting = asyncio.ensure_future(anext(heard))
    await asyncio.sleep(0)
    assert 1 == await forecasting.refresh([recommender], {})
    told = await waiting
    await heard.aclose()

    (run, _), (parts,) = next(iter(fleet.store.tables.forecasts.values())), fleet.store.tables.parts.values()
    assert run.id == parts.forecast_id
    assert b"workloads/recommender/forecast" == told


async def test_each_hour_that_is_over_is_scored_at_every_lead_there_is_a_forecast_for(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    traffic(fleet, recommender, START - 3 * HOUR, START)
    forecasting = process("a").forecasting
    await forecasting.refresh([recommender], {})

    await advance(fleet, recommender, forecasting, START + 3 * HOUR)

    found = hours(fleet)
    assert [START, START + HOUR, START + 2 * HOUR] == [hour.start_at for hour in found]
    assert [[timedelta(0)], list(LEADS[:2]), list(LEADS[:2])] == [[s.lead for s in h.leads] for h in found]
    assert Trust.TRUSTED is not fleet.store.tables.standings["recommender"].trust  # six hours are not over


async def test_minutes_that_come_late_are_in_the_score_of_their_hour(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    traffic(fleet, recommender, START - 3 * HOUR, START)
    forecasting = process("a").forecasting
    await forecasting.refresh([recommender], {})
    await fleet.clock.advance(3600.0)
    traffic(fleet, recommender, START, START + HOUR / 2)
    await forecasting.refresh([recommender], {})
    half = hours(fleet)[0].leads[0].step_count

    traffic(fleet, recommender, START + HOUR / 2, START + HOUR)
    await advance(fleet, recommender, forecasting, START + 2 * HOUR)

    assert half < hours(fleet)[0].leads[0].step_count


async def test_a_new_leader_scores_on_from_where_the_last_one_was(
    fleet: Fleet, process: Make, recommender: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic(fleet, recommender, START - 3 * HOUR, START)
    first = process("a").forecasting
    await first.refresh([recommender], {})
    await advance(fleet, recommender, first, START + 4 * HOUR)
    before = hours(fleet)
    asked: list[datetime] = []
    score = FakeForecaster.score

    async def spy(
        self: FakeForecaster, history: object, step: object, span: object, wanted: object
    ) -> object:
        asked.extend(sorted({at for at, _, _ in wanted}))  # type: ignore[attr-defined]
        return await score(self, history, step, span, wanted)  # type: ignore[arg-type]

    monkeypatch.setattr(FakeForecaster, "score", spy)
    second = process("b").forecasting
    await second.load([recommender])
    await advance(fleet, recommender, second, START + 5 * HOUR)

    # The last one again, for its late minutes, and the new one.
    assert [START + 3 * HOUR, START + 4 * HOUR] == asked
    assert before == hours(fleet)[:4]


async def test_the_champion_makes_the_forecasts_also_after_a_takeover(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    traffic(fleet, recommender, START - 3 * HOUR, START)
    forecaster = FakeForecaster(winner="recent")
    first = Forecasting(fleet.store, forecaster, fleet.clock, Settings(forecast_horizon_s=7200))
    await first.refresh([recommender], {})
    early = fleet.store.tables.standings.get("recommender")
    await advance(fleet, recommender, first, START + HOUR)

    second = process("b").forecasting
    await second.load([recommender])
    await advance(fleet, recommender, second, START + CONTEST_PERIOD - HOUR)

    assert early is None or early.champion == "ensemble"
    standing = fleet.store.tables.standings["recommender"]
    newest = max(fleet.store.tables.parts.values(), key=lambda parts: parts.created_at)
    assert ("recent", "recent") == (standing.champion, newest.model)
    await advance(fleet, recommender, second, START + CONTEST_PERIOD + 2 * HOUR)
    later = fleet.store.tables.standings["recommender"]
    assert "ensemble" == later.champion  # whom the other process's test decided for, at the next contest
    assert (Trust.TRUSTED, "a test decided") == (later.trust, later.trust_reason)


async def test_a_fleet_that_is_due_after_a_stop_takes_its_backtests_one_after_another(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    workloads = [replace(recommender, name=f"w{number}") for number in range(120)]
    for workload in workloads:
        traffic(fleet, workload, START - MINUTE * 30, START)
    forecasting = process("a").forecasting
    held: list[int] = []
    for _ in range(3):
        await forecasting.refresh(workloads, {})
        held.append(sum(s.backtest is not None for s in forecasting.standings.values()))
        await fleet.clock.advance(301.0)

    assert 0 == held[0] < held[1] < held[2] == len(workloads)


async def test_a_refit_that_fails_is_named_and_tried_again_at_growing_pauses(
    fleet: Fleet,
    process: Make,
    recommender: Workload,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    workloads = [replace(recommender, name=name) for name in ("bad", "worse", "good")]
    for workload in workloads:
        traffic(fleet, workload, START - HOUR, START)
    refit, tries = FakeForecaster.refit, list[tuple[timedelta, str]]()

    async def failing(self: FakeForecaster, *history: object, standing: Standing, **given: object) -> object:
        tries.append((fleet.clock.now() - START, standing.workload))
        if standing.workload == "bad":
            raise PortError("It took longer than 60 s and was given up.")
        if standing.workload == "worse":
            raise ZeroDivisionError("a defect")
        return await refit(self, *history, standing=standing, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(FakeForecaster, "refit", failing)
    forecasting = process("a").forecasting
    for _ in range(8):
        await forecasting.refresh(workloads, {})
        await fleet.clock.advance(300.0)

    assert {"good"} == forecasting.bands.keys()
    assert [0, 1, 3, 7] == [at // timedelta(minutes=5) for at, name in tries if name == "bad"]
    assert [0, 1, 3, 7] == [at // timedelta(minutes=5) for at, name in tries if name == "worse"]
    assert "forecast of bad failed, its last one stays: It took longer than 60 s" in caplog.text
    assert "forecast of worse failed" in caplog.text
    assert {"made": 8, "failed": 8} == forecasting.refits
    assert (3, 3) == (forecasting.round.due_count, forecasting.round.done_count)


async def test_a_workload_that_is_gone_leaves_no_pause_behind_for_one_of_its_name(
    fleet: Fleet, recommender: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic(fleet, recommender, START - HOUR, START)
    refit, broken = FakeForecaster.refit, [True]

    async def failing_first(self: FakeForecaster, *history: object, **given: object) -> object:
        if broken.pop():
            raise PortError("It took longer than 60 s and was given up.")
        return await refit(self, *history, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(FakeForecaster, "refit", failing_first)
    forecasting = Forecasting(fleet.store, FakeForecaster(), fleet.clock, Settings())
    assert 0 == await forecasting.refresh([recommender], {})
    assert 0 == await forecasting.refresh([], {})
    broken.append(False)

    assert 1 == await forecasting.refresh([recommender], {})


async def test_refits_are_stored_as_they_arrive_and_a_slow_one_holds_nobody_up(
    fleet: Fleet, recommender: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    workloads = [replace(recommender, name=name) for name in ("slow", "b", "c", "d")]
    for workload in workloads:
        traffic(fleet, workload, START - HOUR, START)
    refit, release = FakeForecaster.refit, asyncio.Event()

    async def waiting(self: FakeForecaster, *history: object, standing: Standing, **given: object) -> object:
        if standing.workload == "slow":
            await release.wait()
        elif standing.workload == "d":
            seen.append(set(forecasting.bands))
            progress.append((forecasting.round.done_count, forecasting.round.due_count))
            release.set()
        return await refit(self, *history, standing=standing, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(FakeForecaster, "refit", waiting)
    seen, progress = list[set[str]](), list[tuple[int, int]]()
    forecasting = Forecasting(fleet.store, FakeForecaster(), fleet.clock, Settings(), at_once=2)

    assert 4 == await forecasting.refresh(workloads, {})
    assert [{"b", "c"}] == seen
    assert [(2, 4)] == progress


async def test_a_long_round_ends_so_that_changed_events_come_first_in_the_next(
    fleet: Fleet, recommender: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    workloads = [replace(recommender, name=f"w{number}") for number in range(6)]
    for workload in workloads:
        traffic(fleet, workload, START - HOUR, START)
    refit, order = FakeForecaster.refit, list[str]()

    async def taking_time(
        self: FakeForecaster, *history: object, standing: Standing, **given: object
    ) -> object:
        order.append(standing.workload)
        await fleet.clock.advance(25.0)
        return await refit(self, *history, standing=standing, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(FakeForecaster, "refit", taking_time)
    forecasting = Forecasting(fleet.store, FakeForecaster(), fleet.clock, Settings())
    await forecasting.refresh(workloads, {})
    sale = Event("sale", START + HOUR, START + 2 * HOUR, expected_multiplier=2.0)
    await forecasting.refresh(workloads, {"w5": (sale,), "w1": (sale,)})

    assert ["w0", "w1", "w2"] == order[:3]
    assert ["w5", "w1", "w3"] == order[3:]


async def test_a_new_leader_does_not_trust_what_the_last_one_distrusted(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    fleet.store.tables.standings["recommender"] = Standing("recommender", trust=Trust.DISTRUSTED)
    leader = process("a").forecasting

    await leader.load([recommender])

    assert {"recommender": Trust.DISTRUSTED} == leader.trust


async def test_a_defect_in_judging_costs_no_forecast(
    fleet: Fleet, process: Make, recommender: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(FakeForecaster, "score", broken)
    traffic(fleet, recommender, START - 3 * HOUR, START)
    forecasting = process("a").forecasting
    await forecasting.refresh([recommender], {})

    await advance(fleet, recommender, forecasting, START + HOUR)

    assert forecasting.bands["recommender"].origin_at == START + HOUR
    assert [] == hours(fleet)


async def test_a_stored_standing_is_not_rewritten_when_nothing_changed(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    kept = Standing("recommender", champion="recent", trust=Trust.UNPROVEN)
    fleet.store.tables.standings["recommender"] = kept
    traffic(fleet, recommender, START - MINUTE * 30, START)
    forecasting = process("a").forecasting

    await forecasting.refresh([recommender], {})

    assert kept is fleet.store.tables.standings["recommender"]
