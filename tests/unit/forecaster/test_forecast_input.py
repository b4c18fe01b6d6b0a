"""Bad input is a typed error that names the field; weak input is a state that says why."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest

from forecaster import Event, ForecastInputError, ForecastState, forecast

NAN = float("nan")
BERLIN = ZoneInfo("Europe/Berlin")


def series(count: int, step: str = "5min", value: float = 100.0) -> pd.Series:
    index = pd.date_range("2026-03-02", periods=count, freq=step, tz="UTC")
    wave = 1.0 + 0.5 * np.sin(
        2 * np.pi * np.arange(count) * index.to_series().diff().median().total_seconds() / 86_400
    )
    return pd.Series(value * wave, index=index)


def with_values(values: list[float]) -> pd.Series:
    return pd.Series(values, index=pd.date_range("2026-03-02", periods=len(values), freq="1h", tz="UTC"))


def reindexed(order: list[int]) -> pd.Series:
    plain = series(4)
    return plain.iloc[order]


def in_the_year_3000() -> pd.Series:
    index = pd.DatetimeIndex(np.array(["3000-01-01T00", "3000-01-01T01"], dtype="datetime64[s]"))
    return pd.Series([1.0, 2.0], index=index.tz_localize("UTC"))


@pytest.mark.parametrize(
    ("history", "field"),
    [
        (pd.Series([1.0, 2.0]), "history.index"),
        (pd.Series([1.0, 2.0], index=pd.date_range("2026-03-02", periods=2, freq="1h")), "history.index"),
        (reindexed([0, 2, 1, 3]), "history.index"),
        (reindexed([0, 1, 1, 2]), "history.index"),
        (series(10, "7min"), "history.index"),
        (series(3, "48h"), "history.index"),
        (with_values([1.0, np.inf, 2.0]), "history"),
        (with_values([1.0, -1.0, 2.0]), "history"),
        (with_values([NAN, NAN]), "history"),
        (with_values([]), "history"),
        (with_values([1.0]), "history"),
        (with_values(["a", "b"]), "history"),  # type: ignore[list-item]
        (with_values([1.0, 2.0 + 1.0j]), "history"),  # type: ignore[list-item]
        (with_values(list(pd.date_range("2026-03-02", periods=2))), "history"),
        (with_values(list(pd.to_timedelta([1, 2], unit="s"))), "history"),
        (with_values([1.0, 2e100]), "history"),
        (with_values([1.7e308] * 3), "history"),
        (in_the_year_3000(), "history.index"),
        ([1.0, 2.0], "history"),
    ],
)
def test_history_that_cannot_be_used_names_the_field(history: pd.Series, field: str) -> None:
    with pytest.raises(ForecastInputError) as caught:
        forecast(history, 3)

    assert field == caught.value.field
    assert str(caught.value).startswith(f"{field}: ")


def test_a_grid_may_start_at_any_second_and_have_gaps() -> None:
    history = series(10).shift(1, freq="97s").iloc[[0, 1, 2, 5]]

    assert history.index[-1] + pd.Timedelta(minutes=5) == forecast(history, 3).index[0]


def test_an_irregular_step_is_refused() -> None:
    index = pd.DatetimeIndex(["2026-03-02T00:00Z", "2026-03-02T00:05Z", "2026-03-02T00:12Z"])

    with pytest.raises(ForecastInputError, match="grid of 300 s"):
        forecast(pd.Series([1.0, 2.0, 3.0], index=index), 1)


@pytest.mark.parametrize(
    ("horizon", "levels", "field"),
    [
        (0, (0.5,), "horizon_steps"),
        (60_481, (0.5,), "horizon_steps"),
        (True, (0.5,), "horizon_steps"),
        (1.5, (0.5,), "horizon_steps"),
        (3, (), "quantile_levels"),
        (3, (0.0, 0.5), "quantile_levels"),
        (3, (0.9, 0.5), "quantile_levels"),
        (3, (0.5, 0.5), "quantile_levels"),
    ],
)
def test_a_question_without_meaning_names_the_argument(
    horizon: int, levels: tuple[float, ...], field: str
) -> None:
    with pytest.raises(ForecastInputError) as caught:
        forecast(series(50), horizon, levels)

    assert field == caught.value.field


def test_an_event_must_be_an_event() -> None:
    with pytest.raises(ForecastInputError) as caught:
        forecast(series(50), 3, events=["sale"])  # type: ignore[list-item]

    assert "events" == caught.value.field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"end": datetime(2026, 3, 1, tzinfo=UTC)}, "event.end"),
        ({"start": datetime(2026, 3, 1)}, "event.start"),  # noqa: DTZ001 - naive on purpose
        ({"expected_multiplier": 0.0}, "event.expected_multiplier"),
        ({"expected_peak": float("inf")}, "event.expected_peak"),
        ({"expected_multiplier": 1e101}, "event.expected_multiplier"),
        ({"expected_multiplier": NAN}, "event.expected_multiplier"),
        ({"expected_multiplier": "3"}, "event.expected_multiplier"),
        ({"start": "2026-03-02"}, "event.start"),
        ({"category": None}, "event.category"),
        # Half past two, the second time, and a quarter to three, the first time: three quarters of an hour before.
        (
            {
                "start": datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN),
                "end": datetime(2026, 10, 25, 2, 45, tzinfo=BERLIN),
            },
            "event.end",
        ),
    ],
)
def test_an_impossible_event_is_refused_where_it_is_made(changes: dict[str, object], field: str) -> None:
    good: dict[str, object] = {
        "start": datetime(2026, 3, 2, tzinfo=UTC),
        "end": datetime(2026, 3, 2, 1, tzinfo=UTC),
    }
    with pytest.raises(ForecastInputError) as caught:
        Event(**{**good, **changes})  # type: ignore[arg-type]

    assert field == caught.value.field


def test_an_event_from_the_first_half_past_two_to_the_second_quarter_past_is_one() -> None:
    """It lasts 45 minutes, though by the clock it ends before it starts."""
    start = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)
    event = Event(start, datetime(2026, 10, 25, 2, 15, fold=1, tzinfo=BERLIN), expected_multiplier=3.0)
    history = series(24 * 12 * 9)
    history.index += pd.Timestamp("2026-10-25T00:00Z") - history.index[-1]

    usual, told = (forecast(history, 24, events=e, time_zone="Europe/Berlin").median for e in ([], [event]))
    assert (told / usual)[:5] == pytest.approx(np.ones(5), abs=0.05)
    assert (told / usual)[5:11] == pytest.approx(np.full(6, 3.0), rel=0.1)


@pytest.mark.parametrize("change", [{"step": 300}, {"now": "today"}])
def test_a_step_or_moment_of_another_kind_is_named(change: dict[str, object]) -> None:
    with pytest.raises(ForecastInputError) as caught:
        forecast(series(50), 3, **change)  # type: ignore[arg-type]

    assert [caught.value.field] == list(change)


@pytest.mark.parametrize(
    ("count", "step", "state", "words"),
    [
        (10, "5min", ForecastState.INSUFFICIENT_HISTORY, "only the level is known"),
        (400, "5min", ForecastState.INSUFFICIENT_HISTORY, "two days are needed"),
        (3 * 288, "5min", ForecastState.DEGRADED, "weekdays and weekends look alike"),
        (5, "1D", ForecastState.INSUFFICIENT_HISTORY, "days of history show no week"),
        (15 * 288, "5min", ForecastState.READY, ""),
    ],
)
def test_short_history_has_a_state_and_says_why(
    count: int, step: str, state: ForecastState, words: str
) -> None:
    result = forecast(series(count, step), 12)

    assert state == result.state
    assert words in " ".join(result.reasons)


def test_a_row_of_long_ago_makes_no_history_of_weeks() -> None:
    history = series(15 * 288)
    history.iloc[1:-10] = NAN

    result = forecast(history, 12)

    assert ForecastState.INSUFFICIENT_HISTORY == result.state
    assert "history show no season" in result.reasons[0]


def test_a_gap_in_the_newest_day_is_no_whole_day() -> None:
    history = series(15 * 288)
    history.iloc[-100:-10] = NAN

    result = forecast(history, 12)

    assert ForecastState.DEGRADED == result.state
    assert ("90 buckets of the last day are missing.",) == result.reasons


@pytest.mark.parametrize("kind", ["float32", "int64", "Int64", "float64[pyarrow]"])
def test_numbers_of_every_kind_are_the_same_numbers(kind: str) -> None:
    plain = series(3 * 288).round()

    assert np.array_equal(forecast(plain, 12).values, forecast(plain.astype(kind), 12).values)


@pytest.mark.parametrize("value", [5e-324, 1e-310, 1e-99, 1e99])
def test_demand_of_any_size_is_a_number_or_none(value: float) -> None:
    result = forecast(series(10 * 24, "1h", value), 24)

    assert (1.4 * value if value > 1e-100 else 0.0) == pytest.approx(result.median.max(), rel=0.1, abs=0.0)


@pytest.mark.parametrize(("seconds", "field"), [(7, "step"), (0, "step"), (0.5, "step")])
def test_a_step_that_is_none_is_refused(seconds: float, field: str) -> None:
    with pytest.raises(ForecastInputError) as caught:
        forecast(series(50), 3, step=timedelta(seconds=seconds))

    assert field == caught.value.field


def test_less_history_means_wider_bounds() -> None:
    rng = np.random.default_rng(7)
    noisy = series(21 * 288) * np.exp(rng.normal(0.0, 0.05, 21 * 288))

    def width(count: int) -> float:
        values = forecast(noisy.iloc[-count:], 288).values
        return float((values[:, 4] - values[:, 0]).mean())

    assert width(21 * 288) < width(3 * 288) < width(30)


def test_a_missing_tail_is_said() -> None:
    history = series(15 * 288)
    history.iloc[-60:] = NAN

    result = forecast(history, 12)

    assert ForecastState.DEGRADED == result.state
    assert "newest 60 buckets are missing" in result.reasons[0]


def test_a_step_that_rows_do_not_show_can_be_given() -> None:
    result = forecast(with_values([5.0]), 2, step=timedelta(hours=1))

    assert timedelta(hours=1) == result.step
    assert ForecastState.INSUFFICIENT_HISTORY == result.state


def test_a_partial_last_bucket_is_dropped() -> None:
    history = series(600)
    history.iloc[-1] = 1.0
    now = (history.index[-1] + pd.Timedelta(minutes=2)).to_pydatetime()

    result = forecast(history, 2, now=now)

    assert history.index[-2].to_pydatetime() == result.origin
    assert history.index[-1] == result.index[0]
