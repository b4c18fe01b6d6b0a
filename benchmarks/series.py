"""Traffic series on a regular grid, their plannable events, and the origins forecasts are made from.

Promises: deterministic; a task never holds an observation at or after its origin; the first bucket to
forecast is the one after the last observation; gaps stay gaps (NaN).
Refuses: folders and files that are not series; an event whose kind a planner could not have known ahead.
Called by: the accuracy benchmark.
"""

import csv
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
WEEK = timedelta(weeks=1)
RESAMPLED_STEP = timedelta(minutes=5)
MIN_SPAN = timedelta(days=10)
HISTORY_DAILY = timedelta(days=730)
# Coarse series give few scored buckets per origin (an hourly one a single "short" bucket), so they get more
# origins: factor by step, first match.
ORIGIN_FACTORS = ((DAY, 3), (timedelta(minutes=30), 2), (timedelta(0), 1))
# Some captures hold one week twice. Repeating it is then exact, every ratio is zero or infinite, and no
# forecast can be learnt from: from this share of equal buckets on, a series is out of the ratios.
COPIED_SHARE = 0.95
EVENT_LEADS = (timedelta(hours=1), timedelta(hours=3), timedelta(hours=6), timedelta(hours=12))
# What happens right after a match or a broadcast is part of its effect: people come to read the result.
EVENT_TAIL = HOUR
PLANNED_KINDS = frozenset(
    {"class", "event", "holiday", "launch", "live_event", "match", "promotion", "sale", "sport_match"}
)
# Some files call a blizzard an "event"; nobody registers one weeks ahead.
UNPLANNABLE_WORDS = ("anomaly", "hurricane", "missing", "outage", "storm")


class SeriesError(ValueError):
    """A file or folder that cannot be benchmarked; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Window:
    """A known event window, aware UTC."""

    start: datetime
    end: datetime
    category: str


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a forecast starts: `position` is the first bucket to forecast; `is_event` ones are extra."""

    position: int
    is_event: bool


@dataclass(frozen=True)
class Series:
    """One series: `grid` `[n]` on regular steps (NaN = missing), aware UTC `start`, plannable `events`."""

    name: str
    start: datetime
    step: timedelta
    grid: Floats
    events: tuple[Window, ...]

    @property
    def span(self) -> timedelta:
        """Time from the first bucket to the end of the last."""
        return self.step * len(self.grid)

    @property
    def per_day(self) -> int:
        """Buckets per day, at least one."""
        return max(1, DAY // self.step)

    @property
    def horizon(self) -> int:
        """Buckets in the 24 hours that a forecast covers."""
        return self.per_day

    @property
    def short(self) -> int:
        """Buckets in the first hour; one for hourly series, none for daily ones."""
        return 0 if self.step >= DAY else max(1, HOUR // self.step)

    @property
    def is_copy(self) -> bool:
        """Whether the series repeats its own week to the last digit, though it is not constant."""
        week = WEEK // self.step
        now, before = self.grid[week:], self.grid[:-week]
        both = ~(np.isnan(now) | np.isnan(before))
        equal = now[both] == before[both]
        return bool(len(equal) and equal.mean() >= COPIED_SHARE and np.nanmin(now) < np.nanmax(now))

    @cached_property
    def digest(self) -> str:
        """Content of values, grid and events as a hash, so that cached results die with the data."""
        text = f"{self.start.isoformat()}|{self.step}|{[(w.start, w.end, w.category) for w in self.events]}"
        return hashlib.sha256(self.grid.tobytes() + text.encode()).hexdigest()

    def at(self, position: int) -> datetime:
        """Start of the bucket at `position`."""
        return self.start + self.step * position


@dataclass(frozen=True)
class Task:
    """What a method is given: history `observed` `[n]` with NaN gaps, and the windows a planner knows."""

    start: datetime
    step: timedelta
    observed: Floats
    horizon: int
    events: tuple[Window, ...]

    @property
    def origin(self) -> datetime:
        """Start of the first bucket to forecast."""
        return self.start + self.step * len(self.observed)

    def buckets(self, duration: timedelta) -> int:
        """Whole buckets in `duration`."""
        return duration // self.step

    @cached_property
    def filled(self) -> Floats:
        """History without gaps, for methods that cannot take them."""
        return fill_gaps(self.observed, self.buckets(HOUR), self.buckets(DAY), self.buckets(WEEK))

    @cached_property
    def index(self) -> pd.DatetimeIndex:
        """Bucket starts of the history, UTC."""
        return pd.date_range(self.start, periods=len(self.observed), freq=self.step)

    @cached_property
    def future_index(self) -> pd.DatetimeIndex:
        """Bucket starts of the horizon, UTC."""
        return pd.date_range(self.origin, periods=self.horizon, freq=self.step)


def fill_gaps(values: Floats, hour: int, day: int, week: int) -> Floats:
    """Fill NaN: up to an hour by a line, longer from a week or a day before, what is left by a line.

    Args:
        values: `[n]`, NaN = missing; the last one present.
        hour: Buckets in an hour (0 when the step is longer).
        day: Buckets in a day.
        week: Buckets in a week.
    """
    line = pd.Series(values).interpolate(limit_direction="both").to_numpy(dtype=np.float64)
    filled = values.copy()
    missing = np.isnan(filled)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], missing.astype(np.int8), [0]))))
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        if end - begin <= max(1, hour):
            filled[begin:end] = line[begin:end]
            continue
        for at in range(begin, end):
            earlier = [filled[at - lag] for lag in (week, day) if 0 < lag <= at]
            known = [value for value in earlier if not np.isnan(value)]
            filled[at] = known[0] if known else np.nan
    return np.where(np.isnan(filled), line, filled)


def read_events(path: Path) -> tuple[Window, ...]:
    """Read the windows of `path` that a planner would know in advance; no file, no events."""
    if not path.exists():
        return ()
    windows: list[Window] = []
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            text = f"{row['kind']} {row['name']}".lower()
            if row["kind"] in PLANNED_KINDS and not any(word in text for word in UNPLANNABLE_WORDS):
                start, end = datetime.fromisoformat(row["start"]), datetime.fromisoformat(row["end"])
                windows.append(Window(start, end, row["kind"]))
    return tuple(sorted(windows, key=lambda window: (window.start, window.end, window.category)))


def read_series(path: Path) -> Series:
    """Read `NAME.csv.gz` (or `.csv`) with `timestamp,value`; steps under 5 minutes become 5-minute means.

    Raises:
        SeriesError: Columns, order or step are not those of a series.
    """
    name = path.name.partition(".csv")[0]
    frame = pd.read_csv(path)
    if list(frame.columns) != ["timestamp", "value"] or len(frame) < 2:
        raise SeriesError(f"{path}: expected columns timestamp,value and at least two rows.")
    index = pd.to_datetime(frame["timestamp"], utc=True, format="ISO8601")
    if not (index.is_monotonic_increasing and index.is_unique):
        raise SeriesError(f"{path}: timestamps are not sorted and unique.")
    series = pd.Series(frame["value"].to_numpy(dtype=np.float64), index=pd.DatetimeIndex(index))
    step = pd.Series(series.index[1:] - series.index[:-1]).mode()[0].to_pytimedelta()
    step = max(step, RESAMPLED_STEP)
    series = series.resample(step).mean()
    return Series(
        name=name,
        start=series.index[0].to_pydatetime(),
        step=step,
        grid=series.to_numpy(dtype=np.float64),
        events=read_events(path.with_name(f"{name}.events.csv")),
    )


def read_folder(folder: Path, names: Iterable[str] = ()) -> list[Series]:
    """Read the series of `folder`, those of `names` only when given.

    Raises:
        SeriesError: The folder holds no series, or a name is not among them.
    """
    paths = {path.name.partition(".csv")[0]: path for path in sorted(folder.glob("*.csv*"))}
    paths = {name: path for name, path in paths.items() if not path.name.endswith(".events.csv")}
    if not paths:
        raise SeriesError(f"{folder}: no NAME.csv.gz here; give the folder of the series to --data.")
    wanted = list(names) or list(paths)
    if unknown := [name for name in wanted if name not in paths]:
        raise SeriesError(f"No series {', '.join(unknown)} in {folder}; there are: {', '.join(paths)}.")
    return [read_series(paths[name]) for name in wanted]


def regular_origins(series: Series, count: int) -> list[Origin]:
    """Spread `count` origins (more on coarse steps) over the last part of `series`, at varied times of day.

    The last part is the later of: two weeks of history (or 70 % of a shorter series, but always eight
    days), and 40 % (at least four weeks) before the end. An origin moves on until the bucket before it
    is observed, so that every method's first forecast is the same bucket, and enough is there to score.
    """
    day, size = series.per_day, len(series.grid)
    last = size - series.horizon
    first = max(min(14 * day, int(0.7 * size)), 8 * day)
    first = max(first, last - max(28 * day, int(0.4 * size)))
    if first > last:
        return []
    count *= next(factor for step, factor in ORIGIN_FACTORS if series.step >= step)
    chosen: set[int] = set()
    for number in range(count):
        base = first + van_der_corput(number) * (last - first)
        # Multiples of the golden ratio visit the times of day evenly, for any count.
        phase = (0.13 + number * 0.6180339887) % 1.0
        target = int(base) // day * day + int(phase * day)
        target = min(max(target, first), last)
        # Hops of a golden fraction of a day leave a closed night or weekend without ending at its edge.
        hops = (first + (target - first + round(hop * 0.618 * day)) % (last - first + 1) for hop in range(64))
        candidates = chain(hops, range(target, last + 1), range(first, target))
        free = (at for at in candidates if at not in chosen and _usable(series, at))
        if (position := next(free, None)) is not None:
            chosen.add(position)
    return [Origin(position, is_event=False) for position in sorted(chosen)]


def event_origins(series: Series, count: int) -> list[Origin]:
    """Choose up to `count` origins a few hours before events that have two of their kind in their past."""
    first = max(min(14 * series.per_day, int(0.7 * len(series.grid))), 8 * series.per_day)
    positions: list[int] = []
    for number, window in enumerate(series.events):
        earlier = [e for e in series.events if e.category == window.category and e.end <= window.start]
        lead = timedelta(0) if series.step >= DAY else EVENT_LEADS[number % len(EVENT_LEADS)]
        position = (window.start - lead - series.start) // series.step
        fits = first <= position <= len(series.grid) - series.horizon
        if fits and len(earlier) >= 2 and position not in positions and _usable(series, position):
            positions.append(position)
    chosen: list[int] = []
    for number in range(min(count, len(positions))):
        target = int(van_der_corput(number) * len(positions))
        later = [at for at in [*positions[target:], *positions[:target]] if at not in chosen]
        chosen.append(later[0])
    return [Origin(position, is_event=True) for position in sorted(chosen)]


def van_der_corput(number: int) -> float:
    """Return item `number` of 1/2, 1/4, 3/4, 1/8, ...: evenly spread, and a prefix of any longer run.

    More origins therefore keep the earlier ones, and their cached results.
    """
    result, weight, rest = 0.0, 0.5, number + 1
    while rest:
        result += weight * (rest % 2)
        rest //= 2
        weight /= 2
    return result


def _usable(series: Series, position: int) -> bool:
    observed = ~np.isnan(series.grid)
    near = observed[position : position + max(1, series.short)]
    far = observed[position : position + series.horizon]
    return bool(observed[position - 1] and near.mean() >= 0.5 and far.mean() >= 0.25)


def make_task(series: Series, origin: Origin, history: timedelta) -> Task:
    """Cut what is known at `origin`: the last `history` (two years for daily series) and known windows."""
    limit = max(history, HISTORY_DAILY) if series.step >= DAY else history
    begin = max(0, origin.position - limit // series.step)
    begin += int(np.argmax(~np.isnan(series.grid[begin : origin.position])))
    start, end = series.at(begin), series.at(origin.position + series.horizon)
    return Task(
        start=start,
        step=series.step,
        observed=series.grid[begin : origin.position],
        horizon=series.horizon,
        events=tuple(window for window in series.events if window.end > start and window.start < end),
    )


def event_mask(series: Series, origin: Origin) -> NDArray[np.bool_]:
    """Mark the buckets of the horizon that touch an event window or the hour after it, `[horizon]`."""
    tail = EVENT_TAIL if series.step < DAY else timedelta(0)
    starts = [series.at(origin.position + at) for at in range(series.horizon)]
    return np.array(
        [any(w.start < at + series.step and at < w.end + tail for w in series.events) for at in starts],
        dtype=np.bool_,
    )
