"""Parts add up to the median exactly and mean what they say; candidates are whole forecasts."""

from datetime import UTC, datetime, timedelta
from math import fsum

import numpy as np
import pandas as pd
import pytest

from forecaster import Event, ForecastInputError, ForecastState, explain, forecast
from forecaster.backtest import compare
from forecaster.candidates import CANDIDATES, ENSEMBLE, RECENT, RECENT_DAYS, SEASONAL_NAIVE, forecast_as
from forecaster.selection import Standing, contest, verdict_of

START = datetime(2026, 1, 5, tzinfo=UTC)
HOUR = timedelta(hours=1)


def hourly(days: int, growth: float = 0.0, noise: float = 0.05) -> pd.Series:
    rng = np.random.default_rng(3)
    t = np.arange(24 * days)
    week = np.where((t // 24) % 7 < 5, 1.0, 0.6)
    y = (1.3 + np.sin(2 * np.pi * t / 24)) * week * 400.0 * (1.0 + growth * t / len(t))
    return pd.Series(
        y * np.exp(rng.normal(0, noise, len(t))), index=pd.date_range(START, periods=len(t), freq="1h")
    )


def parts(found: "object") -> np.ndarray:
    names = ("baseline", "trend", "season", "event", "correction")
    return np.stack([getattr(found, name) for name in names])


@pytest.mark.parametrize("model", CANDIDATES)
@pytest.mark.parametrize("days", [1, 3, 12, 35])
def test_the_parts_add_up_to_the_median_exactly_in_any_order(model: str, days: int) -> None:
    history = hourly(days)
    sale = Event(START + timedelta(days=days, hours=5), START + timedelta(days=days, hours=8), "sale", 3.0)

    found = explain(history, 48, [sale], model=model)
    rows = parts(found)

    assert (rows[0] + rows[1] + rows[2] + rows[3] + rows[4] == found.median).all()
    assert (rows[4] + rows[3] + rows[2] + rows[1] + rows[0] == found.median).all()
    assert [fsum(column) for column in rows.T] == found.median.tolist()


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize("fall", [1e-6, 1e6])
def test_parts_far_larger_than_the_median_still_add_up_exactly(scale: float, fall: float) -> None:
    history = hourly(30) * scale
    history.iloc[-24 * 3 :] *= fall

    found = explain(history, 24)
    rows = parts(found)

    assert np.isfinite(rows).all()
    assert (rows.sum(axis=0) == found.median).all()
    assert (rows / found.quantum == np.round(rows / found.quantum)).all()


def test_the_median_explained_is_the_median_forecast() -> None:
    history = hourly(28)

    found, made = explain(history, 72), forecast(history, 72, (0.5,))

    assert np.allclose(made.median, found.median, rtol=0, atol=1e-9 * float(made.median.max()))
    assert list(made.index) == list(found.index)


def test_an_event_and_growth_are_found_where_they_belong() -> None:
    first = START + timedelta(days=28, hours=10)
    found = explain(
        hourly(28, growth=0.5), 24, [Event(first, first + 2 * HOUR, "sale", expected_multiplier=4.0)]
    )

    inside = np.array([first <= at < first + 2 * HOUR for at in found.index])
    before = np.array([at < first - 4 * HOUR for at in found.index])
    assert (found.event[inside] > found.baseline[inside]).all()
    assert (found.event[before] == 0.0).all()
    assert (found.trend > 0.05 * found.baseline).all()
    assert len(set(found.baseline.tolist())) == 1
    assert "events" in found.sentence
    assert f"{first:%Y-%m-%d %H}" in found.sentence or f"{first + HOUR:%Y-%m-%d %H}" in found.sentence


def test_a_past_event_does_not_raise_the_usual_level() -> None:
    history = hourly(21, noise=0.0)
    first = START + timedelta(days=15, hours=12)
    spiked = history.copy()
    spiked[(spiked.index >= first) & (spiked.index < first + 3 * HOUR)] *= 20.0

    plain = explain(history, 24)
    known = explain(spiked, 24, [Event(first, first + 3 * HOUR, "sale")])

    assert float(known.baseline[0]) == pytest.approx(float(plain.baseline[0]), rel=0.02)


def test_zero_demand_is_explained_as_nothing() -> None:
    found = explain(pd.Series(0.0, index=pd.date_range(START, periods=240, freq="1h")), 12)

    assert (parts(found) == 0.0).all()
    assert found.sentence.endswith(": 0 = nothing.")


def test_the_same_input_gives_the_same_explanation() -> None:
    first, second = explain(hourly(14), 24), explain(hourly(14), 24)

    assert (parts(first) == parts(second)).all()


@pytest.mark.parametrize("model", CANDIDATES)
def test_a_candidate_is_a_whole_forecast(model: str) -> None:
    made = forecast_as(model, hourly(21), 30, (0.1, 0.5, 0.9, 0.999))

    assert made.state is ForecastState.READY
    assert np.allclose(made.components.total(), made.median)
    assert made.values.shape == (30, 4)


def test_the_naive_repeats_last_week_and_leaves_events_to_those_who_know_them() -> None:
    history = hourly(21, noise=0.0)
    first = START + timedelta(days=21, hours=10)
    made = forecast_as(
        SEASONAL_NAIVE, history, 24, (0.1, 0.5, 0.9), [Event(first, first + HOUR, "sale", 5.0)]
    )
    ours = forecast(history, 24, (0.1, 0.5, 0.9), [Event(first, first + HOUR, "sale", 5.0)])

    untouched = made.components.event == 0.0
    assert history.to_numpy()[-168:-144][untouched] == pytest.approx(made.median[untouched])
    assert (ours.values[~untouched] == made.values[~untouched]).all()
    assert not untouched[10]


def test_recent_sees_recent_days_alone() -> None:
    history = hourly(40)
    changed = history.copy()
    changed.iloc[: 24 * (40 - RECENT_DAYS) - 1] *= 7.0

    assert (forecast_as(RECENT, history, 12).values == forecast_as(RECENT, changed, 12).values).all()


def test_an_unknown_candidate_is_refused_by_name() -> None:
    with pytest.raises(ForecastInputError) as caught:
        forecast_as("prophet", hourly(3), 5)
    assert "model" == caught.value.field


def test_candidates_are_compared_on_the_same_folds() -> None:
    folds, scores = compare(hourly(35), 24, 3)

    by_key = {(s.model, s.horizon): s for s in scores}
    assert 3 == folds
    assert {(m, h) for m in CANDIDATES for h in ("short", "day", "all")} == set(by_key)
    assert {72} == {by_key[m, "day"].step_count for m in CANDIDATES}
    assert 1.0 == by_key[SEASONAL_NAIVE, "day"].naive_ratio
    assert by_key[ENSEMBLE, "day"].naive_ratio < 1.0


def test_a_history_that_is_all_recent_has_no_recent_candidate() -> None:
    _, scores = compare(hourly(9), 12, 2)

    assert {ENSEMBLE, SEASONAL_NAIVE} == {score.model for score in scores}


def test_a_large_share_of_nothing_is_no_reason_to_change() -> None:
    standing = Standing(ENSEMBLE)
    for _ in range(5):
        standing = contest(standing, {ENSEMBLE: 0.02, SEASONAL_NAIVE: 0.0}, least=1.0)

    assert Standing(ENSEMBLE) == standing


def test_a_judgement_is_told_in_a_sentence() -> None:
    before = Standing(ENSEMBLE, RECENT, 2)
    losses = {ENSEMBLE: 10.0, RECENT: 8.0}

    assert "recent took over from ensemble: its loss was 20% lower" in verdict_of(
        before, contest(before, losses), losses
    )
    assert "recent won 1 of the 3" in verdict_of(
        Standing(ENSEMBLE), contest(Standing(ENSEMBLE), losses), losses
    )
    assert "ensemble stays: no other" in verdict_of(before, Standing(ENSEMBLE), losses)
