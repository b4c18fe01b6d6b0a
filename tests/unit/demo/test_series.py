"""The replayed day comes after everything the forecaster is given."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from controller.demo.series import HISTORY_MAX, load_series
from controller.history import HistoryFileError

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
WINDOW = timedelta(hours=13)
EVENT = (6 / 13, 10 / 13)


def _file(path: Path, *, step: timedelta, count: int, start: datetime | None = None) -> Path:
    start = start or datetime(2020, 1, 1, tzinfo=UTC)
    rows = [
        f"{(start + step * i).isoformat()},{100 + 50 * np.sin(2 * np.pi * (step * i / timedelta(days=1)))}"
        for i in range(count)
    ]
    path.write_text("\n".join(["timestamp,value", *rows]) + "\n")
    return path


def test_the_built_in_series_has_weeks_of_history_and_the_base_around_the_event() -> None:
    series = load_series(None, now=NOW, window=WINDOW, event=EVENT, base_qps=8000.0)
    replayed = series.replayed

    assert 6 == series.replay_at.hour
    assert timedelta(weeks=4) < series.replay_at - series.start_at <= HISTORY_MAX
    assert 13 * 60 == len(replayed)
    assert replayed[6 * 60 : 10 * 60].mean() == pytest.approx(8000.0, rel=0.02)
    assert series.replay_at + WINDOW <= NOW


def test_history_ends_where_the_replay_begins() -> None:
    series = load_series(None, now=NOW, window=WINDOW, event=EVENT, base_qps=8000.0)

    assert series.replay_at - timedelta(minutes=1) == series.history[-1][0]


def test_weekdays_and_hours_stay_as_they_were(tmp_path: Path) -> None:
    start = datetime(1998, 6, 1, tzinfo=UTC)  # older than the store takes
    path = _file(tmp_path / "old.csv", step=timedelta(hours=1), count=24 * 20, start=start)

    series = load_series(path, now=NOW, window=WINDOW, event=EVENT, base_qps=8000.0)

    assert 0 == (series.start_at - start) % timedelta(weeks=1) / timedelta(weeks=1)
    assert NOW - timedelta(weeks=1) <= series.replay_at + WINDOW <= NOW


@pytest.mark.parametrize(
    ("step", "count"),
    [
        (timedelta(seconds=1), 3600),
        (timedelta(minutes=10), 144),
        (timedelta(days=1), 60),
        (timedelta(minutes=1), 1440 * 3),
    ],
    ids=["an hour of seconds", "one day", "daily", "minutes"],
)
def test_any_step_and_length_gives_a_window_with_traffic(tmp_path: Path, step: timedelta, count: int) -> None:
    path = _file(tmp_path / "h.csv", step=step, count=count)

    series = load_series(path, now=NOW, window=WINDOW, event=EVENT, base_qps=8000.0)

    assert len(series.replayed) * 60 == series.window.total_seconds()
    assert np.isfinite(series.replayed).all()
    assert 0 < series.replayed.max() <= 16_000.0


def test_a_day_that_spikes_by_itself_is_scaled_down_to_fit_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "spike.csv"
    start = datetime(2020, 1, 1, tzinfo=UTC)
    hours = 24 * 10
    rows = [
        f"{(start + timedelta(hours=i)).isoformat()},{5000 if i == hours - 20 else 10}" for i in range(hours)
    ]
    path.write_text("\n".join(["timestamp,value", *rows]))

    series = load_series(path, now=NOW, window=timedelta(hours=20), event=(0.5, 0.7), base_qps=8000.0)

    assert series.replayed.max() <= 16_000.0


def test_a_file_without_traffic_at_its_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "flat.csv"
    start = datetime(2020, 1, 1, tzinfo=UTC)
    path.write_text(
        "timestamp,value\n" + "\n".join(f"{(start + timedelta(hours=i)).isoformat()},0" for i in range(100))
    )

    with pytest.raises(HistoryFileError, match="holds no traffic"):
        load_series(path, now=NOW, window=WINDOW, event=EVENT, base_qps=8000.0)


def test_a_file_that_is_too_short_is_refused(tmp_path: Path) -> None:
    path = _file(tmp_path / "short.csv", step=timedelta(minutes=1), count=10)

    with pytest.raises(HistoryFileError, match="give a longer history"):
        load_series(path, now=NOW, window=WINDOW, event=EVENT, base_qps=8000.0)
