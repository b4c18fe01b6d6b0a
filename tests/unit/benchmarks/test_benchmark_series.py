"""Series, events and origins; the invariants bear their numbers.

1. No task holds an observation at or after its origin.
2. The first bucket to forecast follows an observed one.
3. Origins are the same on every call, and fewer origins are a part of more.
4. Only events that a planner could know are passed on.
"""

import gzip
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from benchmarks.series import (
    HOUR,
    Floats,
    Origin,
    Series,
    SeriesError,
    Window,
    event_mask,
    event_origins,
    fill_gaps,
    make_task,
    read_events,
    read_folder,
    regular_origins,
)

START = datetime(2026, 3, 2, tzinfo=UTC)
EIGHT_WEEKS = timedelta(weeks=8)


def closed_at_night(days: int = 60) -> Series:
    """An hourly series that has rows from 07:00 to 21:00 on weekdays only."""
    hours = np.arange(24 * days)
    grid = 100.0 + hours % 24
    is_open = (hours % 24 >= 7) & (hours % 24 < 21) & (hours // 24 % 7 < 5)
    return Series("office", START, HOUR, np.where(is_open, grid, np.nan), ())


def daily_matches(days: int = 40) -> Series:
    """An hourly series with a two-hour match every evening."""
    windows = tuple(
        Window(START + timedelta(days=day, hours=18), START + timedelta(days=day, hours=20), "match")
        for day in range(days)
    )
    return Series("league", START, HOUR, np.arange(24.0 * days), windows)


def write(folder: Path, name: str, rows: list[str]) -> None:
    with gzip.open(folder / f"{name}.csv.gz", "wt") as file:
        file.write("\n".join(["timestamp,value", *rows]) + "\n")


@pytest.mark.parametrize("series", [closed_at_night(), daily_matches()], ids=["gaps", "whole"])
def test_1_and_2_history_ends_with_an_observed_bucket_right_before_the_horizon(series: Series) -> None:
    origins = regular_origins(series, 8)

    assert len(origins) == 2 * 8  # hourly: twice as many
    for origin in origins:
        task = make_task(series, origin, EIGHT_WEEKS)
        assert task.origin == series.at(origin.position)
        assert task.future_index[0] - task.index[-1] == series.step
        assert not np.isnan(task.observed[-1])
        assert not np.isnan(task.observed[0])
        np.testing.assert_array_equal(
            task.observed, series.grid[origin.position - len(task.observed) : origin.position]
        )


def test_origins_of_an_office_visit_several_hours_of_the_day() -> None:
    series = closed_at_night()

    hours = {series.at(origin.position).hour for origin in regular_origins(series, 8)}

    assert len(hours) >= 3, hours
    assert hours <= set(range(8, 22))


def test_3_fewer_origins_are_a_part_of_more() -> None:
    series = daily_matches()

    for choose, size in ((regular_origins, 16), (event_origins, 8)):
        few, many = choose(series, 4), choose(series, 8)
        assert many == choose(series, 8)
        assert set(few) < set(many)
        assert size == len(many)


def test_history_is_limited_and_a_daily_series_keeps_two_years() -> None:
    hourly = daily_matches()
    daily = Series("days", START, timedelta(days=1), np.arange(1000.0), ())

    assert len(make_task(hourly, Origin(24 * 30, is_event=False), timedelta(weeks=2)).observed) == 24 * 14
    assert len(make_task(daily, Origin(900, is_event=False), timedelta(weeks=2)).observed) == 730


def test_a_series_without_room_for_history_and_horizon_has_no_origin() -> None:
    assert regular_origins(Series("short", START, HOUR, np.ones(24 * 8), ()), 8) == []


def test_event_origins_come_before_an_event_with_two_of_its_kind_in_the_past() -> None:
    series = daily_matches()

    for origin in event_origins(series, 8):
        at = series.at(origin.position)
        assert origin.is_event
        assert sum(window.end <= at for window in series.events) >= 2
        assert any(at < window.start <= at + timedelta(hours=12) for window in series.events)


def test_event_buckets_are_the_window_and_the_hour_after_it() -> None:
    series = daily_matches()
    origin = Origin(24 * 20 + 10, is_event=True)

    marked = np.flatnonzero(event_mask(series, origin))

    assert marked.tolist() == [8, 9, 10]  # 18:00, 19:00 and the hour that follows


def test_4_labels_that_nobody_knew_in_advance_are_not_events(tmp_path: Path) -> None:
    path = tmp_path / "x.events.csv"
    path.write_text(
        "start,end,name,kind,basis\n"
        "2026-03-02T10:00:00Z,2026-03-02T12:00:00Z,Final,sport_match,schedule\n"
        "2026-03-03T10:00:00Z,2026-03-03T12:00:00Z,window,anomaly_label,labels\n"
        "2026-03-04T10:00:00Z,2026-03-04T12:00:00Z,no log,missing_data,log\n"
        "2026-03-05T10:00:00Z,2026-03-05T12:00:00Z,Snow storm,event,news\n"
    )

    assert [window.category for window in read_events(path)] == ["sport_match"]
    assert read_events(tmp_path / "none.events.csv") == ()


def test_minutes_become_five_minute_means_and_absent_rows_stay_gaps(tmp_path: Path) -> None:
    minutes = [at for at in range(20) if not 5 <= at < 10]
    write(tmp_path, "web", [f"2026-03-02T00:{at:02d}:00Z,{at}" for at in minutes])

    (series,) = read_folder(tmp_path)

    assert series.step == timedelta(minutes=5)
    np.testing.assert_array_equal([2.0, np.nan, 12.0, 17.0], series.grid)


def test_a_folder_without_series_and_an_unknown_name_say_what_exists(tmp_path: Path) -> None:
    with pytest.raises(SeriesError, match="give the folder of the series"):
        read_folder(tmp_path)
    write(tmp_path, "web", ["2026-03-02T00:00:00Z,1", "2026-03-02T01:00:00Z,2"])
    with pytest.raises(SeriesError, match=r"No series shop .* there are: web"):
        read_folder(tmp_path, ["shop"])


def test_unsorted_rows_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "web", ["2026-03-02T01:00:00Z,1", "2026-03-02T00:00:00Z,2"])

    with pytest.raises(SeriesError, match="not sorted"):
        read_folder(tmp_path)


def test_a_long_gap_is_filled_from_the_week_before_and_a_short_one_by_a_line() -> None:
    week = np.tile(np.arange(14.0), 3)  # two buckets a day
    holed = week.copy()
    holed[[15, 30, 31, 32]] = np.nan

    filled = fill_gaps(holed, hour=1, day=2, week=14)

    assert filled[15] == (week[14] + week[16]) / 2
    np.testing.assert_array_equal(week[[16, 17, 18]], filled[[30, 31, 32]])


def test_a_week_recorded_twice_is_a_copy_and_a_constant_or_noisy_one_is_not() -> None:
    week = np.random.default_rng(2).uniform(0, 9, 24 * 7)

    def is_copy(grid: Floats) -> bool:
        return Series("x", START, HOUR, grid, ()).is_copy

    assert is_copy(np.tile(week, 2))
    assert not is_copy(np.concatenate([week, week + 0.01]))
    assert not is_copy(np.full(24 * 21, 5.0))
    assert not is_copy(week)


def test_other_data_has_another_digest() -> None:
    series = daily_matches()
    other = Series(series.name, series.start, series.step, series.grid, series.events[1:])

    assert series.digest == daily_matches().digest
    assert series.digest != other.digest
