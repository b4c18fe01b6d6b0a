"""The zone whose clock a workload's users keep reaches every forecast that is made for it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest

from controller.accuracy import ENSEMBLE, Standing
from controller.adapters.clock import VirtualClock
from controller.adapters.fakes import FakeForecaster, FakeSignalCache, FakeStore
from controller.adapters.forecaster import FitForecaster
from controller.core.resources import ForecastRun, TrafficEvent, TrafficSample
from controller.core.types import CapacityProfile, Event, ForecastBand, ForecastState, Workload
from controller.loop.forecasting import CONTEST_PERIOD, Forecasting
from controller.ports import Refit
from controller.settings import Settings
from controller.simulation.ours import Foresight
from controller.simulation.trace import Trace
from controller.study import Studies, Study, StudyResult
from controller.usecases.preview_event import PreviewSettings, preview_event
from controller.usecases.simulate import Question, simulate

BERLIN = "Europe/Berlin"
STEP = timedelta(minutes=15)
DAY = 96
# Two in the morning in Berlin, when the clocks there go forward.
CHANGE = datetime(2026, 3, 29, 1, tzinfo=UTC)
NOW = datetime(2026, 11, 10, 12, tzinfo=UTC)


def office(end_at: datetime, days: int = 28) -> pd.Series:
    """Demand of people who work from nine to five in Berlin, 15-minute steps in UTC before ``end_at``."""
    index = pd.date_range(end=end_at - STEP, periods=days * DAY, freq="15min")
    hour = index.tz_convert(BERLIN).hour
    noise = np.exp(np.random.default_rng(4).normal(0.0, 0.05, len(index)))
    return pd.Series((400.0 + 800.0 * ((hour >= 9) & (hour < 17))) * noise, index=index)


def rows(series: pd.Series) -> list[tuple[datetime, float | None]]:
    times = pd.DatetimeIndex(series.index).to_pydatetime()
    return list(zip(times, series.to_list(), strict=True))


async def forecast(time_zone: str | None) -> tuple[ForecastRun, ForecastBand]:
    return await FitForecaster().forecast(
        "rec", rows(office(CHANGE)), step=STEP, horizon_steps=DAY, events=(), now=CHANGE, time_zone=time_zone
    )


async def test_a_told_zone_is_right_on_the_day_of_the_change_itself() -> None:
    (untold_run, untold), (told_run, told) = await forecast(None), await forecast(BERLIN)

    # 07:00 in UTC is nine in Berlin from this day on; until the day before it was eight.
    first_hour = [(row - CHANGE) // STEP for row in (CHANGE.replace(hour=7), CHANGE.replace(hour=8))]
    median = told.levels.index(0.5)
    assert all(told.qps[n][median] > 900.0 for n in range(*first_hour))
    assert all(untold.qps[n][median] < 700.0 for n in range(*first_hour))
    assert told_run.id != untold_run.id


async def test_candidates_are_judged_by_the_clock_that_is_told() -> None:
    hourly = office(CHANGE + timedelta(days=1), 8).resample("1h").mean()
    history = rows(hourly)

    async def loss(time_zone: str | None) -> float:
        after = await FitForecaster().contest(
            Standing("rec"), history, horizon_steps=24, events=(), now=CHANGE, time_zone=time_zone
        )
        assert after.backtest is not None
        return next(s.pinball_qps for s in after.backtest.scores if s.model == ENSEMBLE)

    assert await loss(BERLIN) != await loss(None)


@dataclass
class Listening(FakeForecaster):
    """Notes in which zone it was asked."""

    zones: list[str | None] = field(default_factory=list[str | None])
    contests: list[str | None] = field(default_factory=list[str | None])

    async def refit(
        self,
        history: Sequence[tuple[datetime, float | None]],
        *,
        step: timedelta,
        horizon_steps: int,
        events: Sequence[Event],
        now: datetime,
        standing: Standing,
        time_zone: str | None = None,
    ) -> Refit:
        self.zones.append(time_zone)
        return await super().refit(
            history, step=step, horizon_steps=horizon_steps, events=events, now=now, standing=standing
        )

    async def contest(
        self,
        standing: Standing,
        history: Sequence[tuple[datetime, float | None]],
        *,
        horizon_steps: int,
        events: Sequence[Event],
        now: datetime,
        time_zone: str | None = None,
    ) -> Standing:
        self.contests.append(time_zone)
        return await super().contest(standing, history, horizon_steps=horizon_steps, events=events, now=now)


@pytest.fixture
def workload() -> Workload:
    return Workload("rec", "rec", (CapacityProfile("e", "L4", 1000.0),), time_zone=BERLIN)


@pytest.fixture
def store(workload: Workload) -> FakeStore:
    found = FakeStore()
    found.tables.workloads["rec"] = workload
    for minute in range(180):
        at = NOW - timedelta(minutes=minute + 1)
        found.tables.samples["rec", at] = TrafficSample("rec", at, 600.0)
    return found


async def test_the_loop_forecasts_and_judges_in_it_and_refits_once_it_changes(
    store: FakeStore, workload: Workload
) -> None:
    listening, clock = Listening(), VirtualClock(NOW)
    forecasting = Forecasting(store, listening, clock, Settings())

    await forecasting.refresh([workload], {})
    await forecasting.refresh([workload], {})
    assert [BERLIN] == listening.zones

    moved = replace(workload, time_zone="Asia/Shanghai")
    await forecasting.refresh([moved], {})
    assert [BERLIN, "Asia/Shanghai"] == listening.zones

    await clock.advance((2 * CONTEST_PERIOD).total_seconds())
    await forecasting.refresh([moved], {})
    assert listening.contests == ["Asia/Shanghai"]


async def test_a_preview_forecasts_in_it(store: FakeStore) -> None:
    band = ForecastBand(
        "f", NOW, NOW, STEP, (0.5, 0.99), ((10.0, 12.0),) * DAY, ForecastState.READY, frozenset()
    )
    async with store.unit_of_work() as uow:
        await uow.forecasts.save(ForecastRun("f", "rec", NOW, NOW, DAY), band)
        await uow.commit()
    start_at, listening = NOW + timedelta(hours=4), Listening()
    event = TrafficEvent(
        id="e",
        workloads=("rec",),
        start_at=start_at,
        end_at=start_at + timedelta(hours=1),
        time_zone="UTC",
        expected_peak_qps=900.0,
    )

    cache = FakeSignalCache(VirtualClock(NOW))
    await preview_event(store, cache, listening, PreviewSettings(), event, NOW)

    assert [BERLIN] == listening.zones


class Noted(Studies):
    """Notes what was to be replayed."""

    study: Study

    async def run(self, study: Study) -> tuple[StudyResult, ...]:
        self.study = study
        await asyncio.sleep(0)
        return ()


async def test_a_simulation_is_told_it(store: FakeStore) -> None:
    studies = Noted()

    await simulate(store, studies, "rec", Question(window=timedelta(hours=2)), NOW, ())

    assert BERLIN == studies.study.time_zone


def test_a_replay_expects_the_change_of_the_clock() -> None:
    series = office(CHANGE.replace(hour=8), 6).resample("1h").mean()
    trace = Trace("office", series.index[0].to_pydatetime(), 3600, series.to_numpy())
    morning_s = (CHANGE.replace(hour=6) - trace.start_at).total_seconds()

    told, untold = (Foresight(trace, (), 3600.0, time_zone=zone) for zone in (BERLIN, None))
    told_qps, untold_qps = told.near(morning_s, 400.0), untold.near(morning_s, 400.0)

    assert told_qps is not None
    assert untold_qps is not None
    assert told_qps[0] > untold_qps[0]
