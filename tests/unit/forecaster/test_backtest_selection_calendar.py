"""The backtest judges on the past alone; trust and succession follow records; holidays are events."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest

from forecaster import Event, ForecastInputError
from forecaster.backtest import backtest, table
from forecaster.calendar import holiday_events
from forecaster.selection import Standing, Trust, contest, judge

LEVELS = (0.1, 0.5, 0.9, 0.95, 0.99)


def hourly(days: int) -> pd.Series:
    rng = np.random.default_rng(11)
    t = np.arange(24 * days)
    y = 500.0 * (1.2 + np.sin(2 * np.pi * t / 24)) * np.exp(rng.normal(0, 0.1, len(t)))
    return pd.Series(y, index=pd.date_range("2026-01-05", periods=len(t), freq="1h", tz="UTC"))


def test_a_backtest_scores_each_fold_and_stretch_and_reports_progress() -> None:
    seen: list[tuple[int, int]] = []
    scores = backtest(hourly(28), 24, 4, progress=lambda done, total: seen.append((done, total)))

    frame = table(scores)
    assert [(1, 4), (2, 4), (3, 4), (4, 4)] == seen
    assert 12 == len(frame)
    assert {"short", "day", "all"} == set(frame["horizon"])
    assert float(frame.loc[frame["horizon"] == "day", "naive_ratio"].mean()) < 1.0
    assert frame["coverage_0.95"].between(0.0, 1.0).all()


def test_a_fold_sees_nothing_after_its_origin() -> None:
    ends: list[pd.Timestamp] = []

    def spy(history: pd.Series, horizon: int, levels: Sequence[float], events: Sequence[Event]) -> np.ndarray:
        ends.append(history.index[-1])
        assert len(history) <= 24 * 10
        return np.tile(np.array(levels) * 1000.0, (horizon, 1))

    scores = backtest(hourly(28), 24, 3, forecaster=spy, train_max=timedelta(days=10))
    assert ends == [score.origin_at for score in scores if score.horizon == "all"]
    assert hourly(28).index[-1] - pd.Timedelta(hours=24) == ends[-1]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(1e9, (500.0, 500.0, 500.0), id="a reading beyond belief, which goes on or not"),
        pytest.param(0.0, (500.0, 500.0, 500.0), id="a silence, which ends or not"),
    ],
)
def test_what_a_fold_sees_does_not_depend_on_what_came_later(before: float, after: Sequence[float]) -> None:
    def inputs(later: Sequence[float]) -> pd.Series:
        seen: list[pd.Series] = []

        def spy(
            history: pd.Series, horizon: int, levels: Sequence[float], events: Sequence[Event]
        ) -> np.ndarray:
            seen.append(history)
            return np.tile(np.array(levels) * 1000.0, (horizon, 1))

        history = hourly(28)
        first = len(history) - 24
        history.iloc[first - 2 : first] = before
        history.iloc[first : first + len(later)] = later
        backtest(history, 24, 1, forecaster=spy)
        return seen[-1]

    pd.testing.assert_series_equal(inputs(after), inputs([before] * len(after)))


def test_a_fold_without_forecast_keeps_its_reason() -> None:
    def refuse(
        history: pd.Series, horizon: int, levels: Sequence[float], events: Sequence[Event]
    ) -> np.ndarray:
        raise ForecastInputError("history", "is not what this method takes.")

    scores = backtest(hourly(28), 24, 1, forecaster=refuse)
    assert {"history: is not what this method takes."} == {score.reason for score in scores}
    assert all(np.isnan(score.pinball) for score in scores)


def test_too_short_a_history_for_a_backtest_says_what_is_missing() -> None:
    with pytest.raises(ForecastInputError, match="one fold needs"):
        backtest(hourly(2), 24, 2)


def record(count: int, factor: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return demand 100, our quantiles around 100 x factor, and a naive one that is 20 % off."""
    actual = np.full(count, 100.0)
    shape = np.array([0.8, 1.0, 1.15, 1.2, 1.3])
    return actual, np.tile(100.0 * factor * shape, (count, 1)), np.tile(120.0 * shape, (count, 1))


def test_a_short_record_is_no_verdict() -> None:
    assert Trust.UNPROVEN == judge(*record(11, 1.0), LEVELS).trust


def test_a_good_record_is_trusted_and_says_its_numbers() -> None:
    verdict = judge(*record(48, 1.0), LEVELS)

    assert Trust.TRUSTED == verdict.trust
    assert "over 48 steps; 100.0% lay at or below the P99." in verdict.sentence


@pytest.mark.parametrize("factor", [0.4, 3.0])
def test_a_record_worse_than_naive_is_distrusted(factor: float) -> None:
    assert Trust.DISTRUSTED == judge(*record(48, factor), LEVELS).trust


def test_a_challenger_must_win_three_times_in_a_row() -> None:
    standing = Standing("ours")
    for _ in range(2):
        standing = contest(standing, {"ours": 1.0, "other": 0.9})
    assert Standing("ours", "other", 2) == standing
    assert Standing("ours") == contest(standing, {"ours": 1.0, "other": 0.97})
    assert Standing("other") == contest(standing, {"ours": 1.0, "other": 0.9})


def test_another_challenger_starts_from_one_and_an_absent_champion_stays() -> None:
    standing = Standing("ours", "other", 2)

    assert Standing("ours", "third", 1) == contest(standing, {"ours": 1.0, "other": 0.9, "third": 0.5})
    assert standing == contest(standing, {"other": 0.1})
    with pytest.raises(ForecastInputError):
        contest(standing, {"ours": float("nan")})


def test_holidays_begin_at_local_midnight() -> None:
    events = holiday_events(
        "DE", datetime(2026, 9, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC), zone="Europe/Berlin"
    )

    assert [datetime(2026, 10, 2, 22, tzinfo=UTC)] == [event.start for event in events]
    assert "holiday" == events[0].category


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"country": "XX"}, "country"),
        ({"country": "HolidayBase"}, "country"),
        ({"country": None}, "country"),
        ({"first": datetime(1, 1, 1, tzinfo=UTC), "zone": "America/New_York"}, "first"),
        ({"last": datetime(9999, 12, 31, tzinfo=UTC), "first": datetime(9990, 1, 1, tzinfo=UTC)}, "last"),
        ({"zone": "Europe/Nowhere"}, "zone"),
        ({"first": datetime(2026, 1, 1)}, "first"),  # noqa: DTZ001 - naive on purpose
        ({"last": datetime(2025, 1, 1, tzinfo=UTC)}, "last"),
        ({"last": datetime(2099, 1, 1, tzinfo=UTC)}, "last"),
    ],
)
def test_a_calendar_that_cannot_be_made_names_the_argument(change: dict[str, object], field: str) -> None:
    good: dict[str, object] = {
        "country": "DE",
        "first": datetime(2026, 1, 1, tzinfo=UTC),
        "last": datetime(2026, 12, 31, tzinfo=UTC),
        "zone": "Europe/Berlin",
    }
    with pytest.raises(ForecastInputError) as caught:
        holiday_events(**{**good, **change})  # type: ignore[arg-type]
    assert field == caught.value.field
