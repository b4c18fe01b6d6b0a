"""Stored forecasts against what came: exact sums, no look ahead, one judge, one contest."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from controller.accuracy import SWITCHES_MAX, Standing, Switch
from controller.adapters.forecaster import LEVELS, FitForecaster
from controller.adapters.scoring import contest, judge, score, truth
from controller.core.types import Event, ForecastBand, ForecastState, Trust
from forecaster.metrics import pinball

START = datetime(2026, 11, 2, tzinfo=UTC)
STEP = timedelta(minutes=15)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
Minutes = list[tuple[datetime, float | None]]


def demand(days: int, noise: float = 0.05) -> Minutes:
    rng = np.random.default_rng(8)
    t = np.arange(96 * days)
    y = (1.4 + np.sin(2 * np.pi * t / 96)) * 300.0 * np.exp(rng.normal(0, noise, len(t)))
    return [(START + STEP * int(k), float(v)) for k, v in zip(t, y, strict=True)]


def a_band(start_at: datetime, rows: list[float], *, spread: float = 0.2) -> ForecastBand:
    shape = 1.0 + spread * np.array([-1.0, 0.0, 1.0, 1.3, 1.8, 2.0, 2.5])
    return ForecastBand(
        id=f"f-{start_at.isoformat()}",
        origin_at=start_at,
        start_at=start_at,
        step=STEP,
        levels=LEVELS,
        qps=tuple(tuple((v * shape).tolist()) for v in rows),
        state=ForecastState.READY,
    )


def truth_band(history: Minutes, at: datetime, count: int, factor: float = 1.0) -> ForecastBand:
    values = [qps for moment, qps in history if moment >= at][:count]
    return a_band(at, [(v or 0.0) * factor for v in values])


def test_an_hour_is_scored_exactly() -> None:
    history = demand(16)
    at = START + 15 * DAY
    band = truth_band(history, at, 96, factor=1.1)

    (hour,) = score(history, STEP, HOUR, [(at, timedelta(0), band)])
    (lead,) = hour.leads

    actual = np.array([v for _, v in history[96 * 15 : 96 * 15 + 4]])
    values = np.array(band.qps[:4])
    assert (at, at + HOUR, 4) == (hour.start_at, hour.end_at, lead.step_count)
    assert lead.loss_sum == pytest.approx(float(pinball(actual, values, LEVELS).mean(axis=1).sum()))
    assert lead.bias == pytest.approx(0.1)
    assert (0, 4, 4, 4, 4, 4, 4) == lead.covered
    assert 4 == lead.daily.step_count == lead.weekly.step_count
    assert lead.daily.own_loss_sum == pytest.approx(lead.loss_sum)


def test_unknown_steps_count_on_neither_side_and_an_unknown_hour_is_no_score() -> None:
    history = demand(10)
    at = START + 9 * DAY
    band = truth_band(history, at, 96)
    gap: Minutes = [(t, None if at <= t < at + 2 * STEP else v) for t, v in history]
    none: Minutes = [(t, None if at <= t < at + HOUR else v) for t, v in history]

    (hour,) = score(gap, STEP, HOUR, [(at, timedelta(0), band)])

    assert 2 == hour.leads[0].step_count
    assert () == score(none, STEP, HOUR, [(at, timedelta(0), band)])


def test_the_naive_knows_no_more_than_the_forecast_did() -> None:
    history = demand(16)
    at = START + 15 * DAY
    asked = [(at, DAY, truth_band(history, at - DAY, 192))]
    (before,) = score(history, STEP, HOUR, asked)
    # Yesterday at this time lay ahead of a forecast of a day ago.
    changed: Minutes = [(t, 9e4 if at - DAY <= t < at else v) for t, v in history]
    (after,) = score(changed, STEP, HOUR, asked)

    assert 0 < before.leads[0].daily.step_count
    assert before == after


def test_a_horizon_that_ends_before_the_hour_and_other_levels_are_left_out() -> None:
    history = demand(10)
    at = START + 9 * DAY
    short = truth_band(history, at - 2 * DAY, 96)
    other = replace(truth_band(history, at, 96), levels=(0.5, 0.9), qps=tuple((1.0, 2.0) for _ in range(96)))

    assert () == score(history, STEP, HOUR, [(at, DAY, short)])
    assert 1 == len(
        score(history, STEP, HOUR, [(at, DAY, other), (at, 2 * DAY, truth_band(history, at, 9))])[0].leads
    )
    assert () == score([], STEP, HOUR, [])


@pytest.mark.parametrize(
    ("factor", "trust"), [(1.0, Trust.TRUSTED), (0.4, Trust.DISTRUSTED), (3.0, Trust.DISTRUSTED)]
)
def test_a_record_is_judged_in_both_directions(factor: float, trust: Trust) -> None:
    history = demand(16)
    band = truth_band(history, START + 15 * DAY, 96, factor)

    verdict, sentence = judge(band, history)

    assert trust is verdict
    assert "over 96 steps" in sentence


def test_demand_that_repeats_exactly_does_not_condemn_a_forecast_that_is_nearly_right() -> None:
    history = demand(16, noise=0.0)
    band = truth_band(history, START + 15 * DAY, 96, factor=1.002)

    assert Trust.TRUSTED is judge(replace(band), history)[0]


def test_too_little_truth_is_no_verdict() -> None:
    history = demand(10)
    band = truth_band(history, START + 10 * DAY - 5 * STEP, 5)

    assert Trust.UNPROVEN is judge(band, history)[0]
    assert Trust.UNPROVEN is judge(band, [])[0]
    assert Trust.UNPROVEN is judge(replace(band, start_at=START + 11 * DAY), history)[0]


def test_a_contest_keeps_the_backtest_and_names_who_stays() -> None:
    now = START + 21 * DAY
    standing = contest(Standing("rec"), truth(demand(21), STEP), 96, [], LEVELS, now)

    assert "ensemble" == standing.champion
    assert "ensemble stays" in standing.reason
    assert standing.backtest is not None
    assert (now, 4, DAY) == (standing.backtest.at, standing.backtest.fold_count, standing.backtest.horizon)
    assert {"ensemble", "recent", "seasonal_naive"} == {s.model for s in standing.backtest.scores}


def test_a_challenger_that_wins_three_times_takes_over_and_the_switch_is_on_record() -> None:
    """A level that fell tenfold twelve days ago: whoever never saw the time before is better off."""
    history = demand(24)
    fallen = [(t, v if t < START + 12 * DAY else (v or 0.0) * 0.1) for t, v in history]
    old = tuple(Switch(START, "a", "b", "") for _ in range(SWITCHES_MAX))
    standing = Standing("rec", champion="seasonal_naive", switches=old)
    for number in range(3):
        assert "seasonal_naive" == standing.champion
        standing = contest(standing, truth(fallen, STEP), 96, [], LEVELS, START + number * HOUR)

    assert standing.champion in {"ensemble", "recent"}
    assert START + 2 * HOUR == standing.since_at
    assert SWITCHES_MAX == len(standing.switches)
    assert ("seasonal_naive", standing.champion) == (
        standing.switches[0].from_model,
        standing.switches[0].to_model,
    )
    assert "took over from seasonal_naive" in standing.reason


def test_a_history_too_short_for_a_backtest_changes_nothing_and_says_so() -> None:
    standing = contest(Standing("rec"), truth(demand(1), STEP), 96, [], LEVELS, START)

    assert ("ensemble", None) == (standing.champion, standing.backtest)
    assert "no backtest is possible" in standing.reason


@pytest.mark.parametrize("model", ["ensemble", "recent", "seasonal_naive"])
async def test_what_is_kept_of_a_forecast_adds_up_to_its_median_exactly(model: str) -> None:
    history = demand(15)
    sale = Event(
        "sale",
        START + 15 * DAY + 3 * HOUR,
        START + 15 * DAY + 5 * HOUR,
        expected_multiplier=2.5,
        category="x",
    )
    made = await FitForecaster().refit(
        history,
        step=STEP,
        horizon_steps=96,
        events=[sale],
        now=START + 15 * DAY,
        standing=Standing("rec", champion=model),
    )

    assert made.parts is not None
    assert model == made.parts.model
    median = np.array([row[LEVELS.index(0.5)] for row in made.band.qps])
    trend, event, correction = (
        np.array(part, dtype=np.float32).astype(float)
        for part in (made.parts.trend, made.parts.event, made.parts.correction)
    )
    season = median - made.parts.baseline - trend - event - correction
    assert (correction + event + trend + season + made.parts.baseline == median).all()
    assert (trend.tolist(), event.tolist()) == (list(made.parts.trend), list(made.parts.event))
    assert bool((np.diff(np.array(made.band.qps), axis=1) >= 0).all())
    assert event[12:20].min() > 0


async def test_a_champion_that_cannot_take_the_history_is_stood_in_for() -> None:
    gap: Minutes = [(t, None if t >= START + 8 * DAY else v) for t, v in demand(20)]
    made = await FitForecaster().refit(
        gap,
        step=STEP,
        horizon_steps=8,
        events=[],
        now=START + 20 * DAY,
        standing=Standing("rec", champion="recent", reason="it won"),
    )

    assert made.parts is not None
    assert ("ensemble", "recent cannot take this history.") == (made.parts.model, made.parts.model_reason)
    assert 8 == len(made.band.qps)


def test_a_model_that_was_judged_on_fewer_steps_takes_no_part() -> None:
    """Ten days were missing: the recent-only model had nothing to go by in the folds right after them."""
    history = demand(24)
    gap = [(t, None if START + 10 * DAY <= t < START + 21 * DAY else v) for t, v in history]

    standing = contest(Standing("rec", champion="recent"), truth(gap, STEP), 48, [], LEVELS, START + 24 * DAY)

    assert standing.backtest is not None
    steps = {s.model: s.step_count for s in standing.backtest.scores if s.stretch == "day"}
    assert steps["recent"] < steps["ensemble"]
    # It is neither condemned nor praised for steps that others were not judged on.
    assert ("recent", "") == (standing.champion, standing.challenger)


async def test_a_forecast_that_fails_has_no_parts() -> None:
    made = await FitForecaster().refit(
        [(START, None), (START + STEP, None)],
        step=STEP,
        horizon_steps=4,
        events=[],
        now=START + 2 * STEP,
        standing=Standing("rec"),
    )

    assert (ForecastState.FAILED, None) == (made.band.state, made.parts)
