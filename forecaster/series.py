"""From a pandas Series to a regular grid that models can trust.

Promises: a grid with one value per step, NaN where nothing was observed; outages that were recorded as
zero and readings beyond belief are turned into gaps; nothing else is changed. The same history gives the same grid.
Refuses: everything `ForecastInputError` names - naive or unsorted time, duplicate rows, infinite or
negative demand, a step that is irregular or does not divide a day.
Called by: `forecaster.service` and `forecaster.backtest`.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd

from forecaster.types import VALUE_MAX, Floats, ForecastInputError, check_kind

DAY_S = 86_400
NANOS = 1_000_000_000
STEP_S_MIN = 1
# Bounds work and memory: five months at 5 minutes, a month at one minute. Finer steps get three weeks, so
# that a week can still be seen, up to the second bound.
POINT_COUNT_MAX = 45_000
FINE_DAYS = 21
FINE_POINT_COUNT_MAX = 250_000
# A span beyond this holds no season that the models use (they look back one year).
SPAN_DAYS_MAX = 800
ROW_COUNT_MAX = 5_000_000
# Differences of what lies below have no number any more; it is no demand.
VALUE_MIN = 1e-100
# Flash crowds reach a hundred times usual demand; a counter's total read as a rate, a million times.
ABSURD_FACTOR = 1000.0
ABSURD_RUN_MAX = 2
ABSURD_COUNT_MIN = 200


@dataclass(frozen=True, slots=True)
class Grid:
    """A regular series.

    Attributes:
        values: `[N]`, NaN where nothing was observed; the first was, the last is the origin's.
        start_s: Unix time of the first bucket, seconds.
        step_s: Seconds per bucket; divides a day.
        observed_count: Entries that are numbers.
        outage_count: Zeros that were taken for outages and are NaN now.
        absurd_count: Readings beyond belief (a counter that was reset) that are NaN now.
    """

    values: Floats
    start_s: int
    step_s: int
    observed_count: int
    outage_count: int
    absurd_count: int = 0

    @property
    def day(self) -> int:
        """Steps per day."""
        return DAY_S // self.step_s

    @property
    def origin_s(self) -> int:
        """Unix time of the last bucket, seconds."""
        return self.start_s + (len(self.values) - 1) * self.step_s

    def origin(self) -> datetime:
        """Return the time of the last bucket."""
        return datetime.fromtimestamp(self.origin_s, tz=UTC)

    def step(self) -> timedelta:
        """Return the width of a bucket."""
        return timedelta(seconds=self.step_s)


def to_grid(history: pd.Series, *, step: timedelta | None = None, now: datetime | None = None) -> Grid:
    """Return `history` on a regular grid, without what `cleaned` leaves out; see `as_read`."""
    return trimmed(cleaned(as_read(history, step=step, now=now)))


def as_read(history: pd.Series, *, step: timedelta | None = None, now: datetime | None = None) -> Grid:
    """Validate `history` and lay it on a regular grid, every reading as it is.

    Args:
        history: Demand by UTC time; rows may be missing or NaN.
        step: Width of a bucket; needed only when the rows do not show it.
        now: When given, a last bucket that has not ended by `now` is dropped as partial.

    Raises:
        ForecastInputError: The history cannot be used; the field and the remedy are named.
    """
    seconds, values = _checked_columns(history)
    for name, value, kind in (("step", step, timedelta), ("now", now, datetime)):
        if value is not None:
            check_kind(name, value, kind, f"a {kind.__name__}")
    step_s = _step_s(seconds, step)
    if now is not None:
        if now.tzinfo is None:
            raise ForecastInputError("now", "is naive; give it a time zone, such as UTC.")
        whole = seconds + step_s <= now.timestamp()
        seconds, values = seconds[whole], values[whole]
        if not len(seconds):
            raise ForecastInputError("history", "has no whole bucket before now; wait for one step.")
    offsets = (seconds - seconds[-1]) // step_s
    day = DAY_S // step_s
    bound = max(POINT_COUNT_MAX, min(FINE_DAYS * day, FINE_POINT_COUNT_MAX))
    count = int(min(-offsets[0] + 1, bound, SPAN_DAYS_MAX * day + 1))
    grid = np.full(count, np.nan)
    inside = offsets > -count
    grid[offsets[inside] + count - 1] = values[inside]
    if not bool(np.isfinite(grid).any()):
        raise ForecastInputError("history", "holds no number within the span used; record demand first.")
    start_s = int(seconds[-1]) - (count - 1) * step_s
    return trimmed(Grid(grid, start_s, step_s, int(np.isfinite(grid).sum()), outage_count=0))


def cleaned(grid: Grid) -> Grid:
    """Return the grid with outages and readings beyond belief as gaps, on the same steps.

    Both are told by what came after them too, so a judge of the past must clean what was seen by then, not
    take a part of what is clean now.
    """
    values = grid.values.copy()
    absurd = _absurd(values)
    values[absurd] = np.nan
    outage = _outages(values, grid.day)
    values[outage] = np.nan
    counts = (int(marked.sum()) for marked in (np.isfinite(values), outage, absurd))
    return Grid(values, grid.start_s, grid.step_s, *counts)


def trimmed(grid: Grid) -> Grid:
    """Return the grid from its first observation on; what lies before it is no history."""
    first = int(np.argmax(np.isfinite(grid.values)))
    return replace(grid, values=grid.values[first:], start_s=grid.start_s + first * grid.step_s)


def _checked_columns(history: object) -> tuple[np.ndarray, Floats]:
    """Return seconds `[n]` and values `[n]` after every check that needs no step."""
    if not isinstance(history, pd.Series):
        raise ForecastInputError("history", f"is a {type(history).__name__}; give a pandas Series.")
    return _checked_seconds(history.index), _checked_values(history)


def _checked_seconds(index: pd.Index) -> np.ndarray:
    if not isinstance(index, pd.DatetimeIndex):
        raise ForecastInputError("history.index", "is not a DatetimeIndex; index demand by UTC time.")
    if index.tz is None:
        raise ForecastInputError(
            "history.index", "is naive; localise it, for example with tz_localize('UTC')."
        )
    if not len(index):
        raise ForecastInputError("history", "is empty; at least two observations show the step.")
    if len(index) > ROW_COUNT_MAX:
        raise ForecastInputError("history", f"has {len(index)} rows; pass at most {ROW_COUNT_MAX}.")
    if bool(index.hasnans):
        raise ForecastInputError("history.index", "holds NaT; drop those rows.")
    try:
        nanos = index.as_unit("ns").asi8
    except pd.errors.OutOfBoundsDatetime as error:
        raise ForecastInputError("history.index", "lies outside the years 1678 to 2262.") from error
    gaps = np.diff(nanos)
    for wrong, remedy in (
        (gaps < 0, "is not sorted; call sort_index()."),
        (gaps == 0, "has duplicate times; keep one row per bucket."),
        (gaps % NANOS > 0, "steps are not whole seconds; resample first."),
        (nanos[:1] % NANOS > 0, "does not start on a whole second; resample first."),
    ):
        if bool(wrong.any()):
            raise ForecastInputError("history.index", remedy)
    return nanos // NANOS


def _checked_values(history: pd.Series) -> Floats:
    if history.dtype.kind in "cmMb":  # numpy would make numbers of them
        raise ForecastInputError("history", f"holds {history.dtype}; give numbers.")
    try:
        values = np.array(history.to_numpy(dtype=np.float64, na_value=np.nan), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ForecastInputError("history", "holds values that are not numbers.") from error
    for wrong, remedy in (
        (np.isinf(values).any(), "holds infinite values; refuse them where they are measured."),
        (np.isnan(values).all(), "holds only NaN; unknown demand cannot be forecast."),
        ((values < 0).any(), "holds negative demand; check for counter resets."),
        ((values > VALUE_MAX).any(), f"holds demand above {VALUE_MAX:g}; refuse it where it is measured."),
    ):
        if bool(wrong):
            raise ForecastInputError("history", remedy)
    values[values < VALUE_MIN] = 0.0
    return values


def _step_s(seconds: np.ndarray, step: timedelta | None) -> int:
    gaps = np.diff(seconds)
    if step is not None:
        step_s = int(step.total_seconds())
        if step_s != step.total_seconds():
            raise ForecastInputError("step", "is not a whole number of seconds.")
    elif len(gaps):
        step_s = int(gaps.min())
    else:
        raise ForecastInputError("history", "has one row, which shows no step; pass step= or more rows.")
    if step_s < STEP_S_MIN or DAY_S % step_s:
        field = "history.index" if step is None else "step"
        raise ForecastInputError(field, f"step of {step_s} s does not divide a day; resample.")
    if bool((gaps % step_s).any()):
        raise ForecastInputError("history.index", f"rows do not lie on a grid of {step_s} s; resample.")
    return step_s


def _absurd(grid: Floats) -> np.ndarray:
    """Mark one or two readings in a row a thousand times above what demand ever was: a counter was reset.

    A third reading of the kind makes all of them demand, so that a real jump waits for two buckets. Gaps between
    readings do not count: a scrape that fails at times must not hide a jump for ever.
    """
    mark = np.zeros(len(grid), dtype=bool)
    at = np.flatnonzero(np.isfinite(grid))
    positive = grid[grid > 0.0]
    if len(positive) < ABSURD_COUNT_MIN:
        return mark
    beyond = grid[at] > ABSURD_FACTOR * float(np.quantile(positive, 0.99))
    edges = np.diff(np.concatenate(([0], beyond.astype(np.int8), [0])))
    for first, end in zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True):
        mark[at[first:end]] = end - first <= ABSURD_RUN_MAX
    return mark


def _outages(grid: Floats, day: int) -> np.ndarray:
    """Mark zeros that are an outage: a run much longer than zeros usually last, where demand is usual.

    A zero is ordinary where zeros are frequent at that time of day (shops at night, sparse services),
    so only runs of at least an hour and three steps whose own times of day are zero in less than a
    fifth of the other days count. A run that nothing was seen after is kept: it may be the new level, and
    verified zero traffic is data.
    """
    mark = np.zeros(len(grid), dtype=bool)
    zero = grid == 0
    if not zero.any() or len(grid) < 3 * day or day < 24:
        return mark
    edges = np.diff(np.concatenate(([0], zero.astype(np.int8), [0])))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    long = ends - starts >= max(3, day // 24)
    starts, ends = starts[long], ends[long]
    if not len(starts) or len(starts) > 200:
        return mark
    newest = int(np.flatnonzero(np.isfinite(grid))[-1])
    phase = np.arange(len(grid)) % day
    zeros_at = np.bincount(phase[zero], minlength=day)
    seen_at = np.bincount(phase[np.isfinite(grid)], minlength=day)
    for first, last in zip(starts, ends, strict=True):
        own = np.bincount(phase[first:last], minlength=day)
        others = float((own * (zeros_at - own)).sum())
        seen = float((own * (seen_at - own)).sum())
        if seen > 0 and others < 0.2 * seen and last <= newest:
            mark[first:last] = True
    return mark
