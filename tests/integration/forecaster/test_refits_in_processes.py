"""The loop's forecaster in real processes: the same numbers as in a thread, and no child left behind."""

import os
import signal
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from controller.accuracy import Standing
from controller.adapters.forecaster import FitForecaster
from controller.core.types import Event, Trust
from controller.ports import PortError, Refit
from forecaster.workers import Workers

START = datetime(2026, 11, 2, tzinfo=UTC)
STEP = timedelta(minutes=15)
DAYS = 15
END = START + timedelta(days=DAYS)
LEAD = timedelta(minutes=2)
SALE = Event(
    "sale",
    END + timedelta(hours=3),
    END + timedelta(hours=5),
    expected_multiplier=2.5,
)


def history() -> list[tuple[datetime, float | None]]:
    t = np.arange(96 * DAYS)
    qps = (
        300.0 * (1.4 + np.sin(2 * np.pi * t / 96)) * np.exp(np.random.default_rng(8).normal(0, 0.05, len(t)))
    )
    qps[200:230] = np.nan
    return [(START + STEP * int(k), None if np.isnan(v) else float(v)) for k, v in zip(t, qps, strict=True)]


async def results(forecaster: FitForecaster) -> tuple[object, ...]:
    past, standing = history(), Standing("rec")
    made = await forecaster.refit(
        past, step=STEP, horizon_steps=96, events=[SALE], now=END, standing=standing
    )
    after = await forecaster.contest(standing, past, horizon_steps=48, events=[], now=END)
    near = forecaster.near_model()
    minutes = [(START + timedelta(minutes=k), past[k // 15][1]) for k in range(1440 * 8)]
    assert await near.calibrate(minutes, lead=LEAD)
    return made, after, near.near(minutes[-120:], made.band, trust=Trust.TRUSTED)


async def test_processes_give_the_numbers_that_a_thread_gives() -> None:
    workers = Workers(2)
    forecaster = FitForecaster(workers)

    there, here = await results(forecaster), await results(FitForecaster())

    assert here == there
    (pid,) = workers.pids()  # one after another, they need no second one
    await forecaster.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_process_that_is_killed_costs_no_forecast_and_one_that_hangs_is_named() -> None:
    workers = Workers(1, deadline_s=30.0)
    forecaster = FitForecaster(workers)
    past, standing = history(), Standing("rec")

    async def refit() -> Refit:
        return await forecaster.refit(past, step=STEP, horizon_steps=4, events=[], now=END, standing=standing)

    first = await refit()
    (pid,) = workers.pids()
    os.kill(pid, signal.SIGKILL)
    assert first == await refit()
    (pid,) = workers.pids()
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(PortError, match="longer than 30 s"):
        await refit()
    assert first == await refit()
    await forecaster.close()
