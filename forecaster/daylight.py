"""Local clocks: people keep local time, histories are in UTC.

Promises: where demand is seen to follow a change of the clock, history before it (and events) are moved to the
clock of the origin, and changes within the horizon are followed too; otherwise nothing is changed. A change
is followed half a day after it, and from then on in advance. A zone that is told is followed at once, and its
dates decide what a weekend is.
Refuses: names that are no zone; steps beyond an hour, or that do not divide one, are not moved.
Called by: `forecaster.service` and `forecaster.calendar`.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np

from forecaster.series import Grid, trimmed
from forecaster.types import Event, Floats, ForecastInputError

# One zone for each rule of when clocks change; within a rule, zones differ by hours of one night.
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Sydney")
HOUR_S = 3600
# Clocks change at such fractions of an hour of UTC: at half past four in Adelaide.
SEARCH_S = 1800
# A change is judged by half a day to six days after it, against the same times in the weeks before.
PROOF_S = 12 * HOUR_S
JUDGED_S = 144 * HOUR_S
WEEK_S = 168 * HOUR_S
WEEK_COUNT = 3
# The moved weeks must be this much nearer than the unmoved, by this many standard errors of an hour.
GAIN = 0.85
SURE = 2.0


@dataclass(frozen=True, slots=True)
class Clock:
    """Unix times at which the local clock of a workload's users jumped, and by how many seconds.

    `offset_s` says how far that clock is ahead of UTC at the origin, where the zone was told; else it is 0.
    """

    changes: tuple[tuple[int, int], ...]
    origin_s: int
    offset_s: int = 0

    def moves(self, seconds: np.ndarray) -> np.ndarray:
        """Return by how many seconds times move onto the clock of the origin."""
        at = np.array([moment for moment, _ in self.changes], dtype=np.int64)
        total = np.append(0, np.cumsum(np.array([jump for _, jump in self.changes], dtype=np.int64)))
        now = total[np.searchsorted(at, self.origin_s, side="right")]
        return np.asarray(total[np.searchsorted(at, seconds, side="right")] - now)

    def move_grid(self, grid: Grid) -> Grid:
        """Return the history as if the clock of the origin had always been kept; the skipped hour is unknown."""
        n = len(grid.values)
        at = np.arange(n)
        to = at + self.moves(grid.start_s + at * grid.step_s) // grid.step_s
        inside = (to >= 0) & (to < n)
        inside &= np.isfinite(grid.values)
        values = np.full(n, np.nan)
        # An hour that happened twice keeps its second run, which is assigned last, as far as that was seen.
        values[to[inside]] = grid.values[inside]
        return trimmed(replace(grid, values=values, start_s=grid.start_s + self.offset_s))

    def move_event(self, event: Event) -> Event:
        """Return the event at the time that the clock of the origin would have shown."""
        start, end = (
            _later(t, self.offset_s + int(self.moves(np.array([t.timestamp()]))[0]))
            for t in (event.start, event.end)
        )
        # An event within the hour that happens twice keeps its length.
        length = timedelta(seconds=event.end.timestamp() - event.start.timestamp())
        return replace(event, start=start, end=end if start < end else start + length)

    def steps(self, grid: Grid, horizon: int) -> np.ndarray:
        """Return `[horizon]`: which step after the origin, on its clock, each step of the horizon is."""
        ahead = np.arange(horizon)
        seconds = grid.origin_s + (ahead + 1) * grid.step_s
        return np.asarray(np.maximum(ahead + self.moves(seconds) // grid.step_s, 0))


def _later(moment: datetime, seconds: int) -> datetime:
    """Return the moment that lies later, or as late as there is."""
    try:
        # Not on the moment's own clock, which may jump in between.
        return moment.astimezone(UTC) + timedelta(seconds=seconds)
    except OverflowError:
        return moment


def zone_named(name: object, field: str) -> ZoneInfo:
    """Return the IANA zone of that name.

    Raises:
        ForecastInputError: There is none; `field` names the argument.
    """
    # Files beside the zones: this machine's own zone, and zones whose clocks count leap seconds.
    if isinstance(name, str) and not name.startswith(("localtime", "right/", "posix")):
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            pass  # what a name that is none raises: not found, no key, a folder of zones
    raise ForecastInputError(field, f"{name!r} is no IANA zone, such as Europe/Berlin.")


def told(zone: ZoneInfo, grid: Grid, horizon: int) -> Clock:
    """Return the clock of a known zone."""
    # A jump of half an hour cannot be followed on hourly steps.
    changes = tuple(c for c in _changes_within(zone.key, grid, horizon) if c[1] % grid.step_s == 0)
    return Clock(changes, grid.origin_s, _offset_s(zone, grid.origin_s))


def follow(grid: Grid, horizon: int) -> Clock | None:
    """Return the clock that this demand follows; None when no change in it shows one."""
    if HOUR_S % grid.step_s:
        return None
    best: tuple[float, Clock] | None = None
    for zone in ZONES:
        changes = _changes_within(zone, grid, horizon)
        gain = _gain(grid, changes)
        if gain is not None and gain < (GAIN if best is None else best[0]):
            best = gain, Clock(changes, grid.origin_s)
    return None if best is None else best[1]


def _gain(grid: Grid, changes: tuple[tuple[int, int], ...]) -> float | None:
    """Return the error of moved weeks over that of unmoved ones after the newest change that can be judged."""
    judged = [
        c for c in changes if grid.start_s + WEEK_S + HOUR_S <= c[0] <= grid.origin_s + grid.step_s - PROOF_S
    ]
    if not judged:
        return None
    moment, jump = judged[-1]
    first = (moment - grid.start_s) // grid.step_s
    last = min(first + JUDGED_S // grid.step_s, len(grid.values))
    at = np.arange(first, last)
    unmoved, moved = (_misses(grid, at, seconds) for seconds in (0, jump))
    both = np.isfinite(unmoved) & np.isfinite(moved)
    if both.sum() * grid.step_s < PROOF_S // 2 or not unmoved[both].any():
        return None
    hour = (at[both] - first) * grid.step_s // HOUR_S
    count = np.bincount(hour)
    nearer = (np.bincount(hour, unmoved[both] - moved[both]) / np.maximum(count, 1))[count > 0]
    is_sure = nearer.mean() > SURE * nearer.std() / np.sqrt(len(nearer))
    return float(moved[both].mean() / unmoved[both].mean()) if is_sure else None


def _misses(grid: Grid, at: np.ndarray, jump: int) -> Floats:
    """Return the distances from the mean of earlier weeks, levelled; NaN where there is none."""
    before = at[None, :] + (jump - WEEK_S * np.arange(1, WEEK_COUNT + 1)[:, None]) // grid.step_s
    weeks = np.where(before >= 0, grid.values[np.maximum(before, 0)], np.nan)
    known = np.isfinite(weeks)
    count = known.sum(axis=0)
    usual = np.where(count > 0, np.where(known, weeks, 0.0).sum(axis=0) / np.maximum(count, 1), np.nan)
    actual: Floats = grid.values[at]
    both = np.isfinite(usual) & np.isfinite(actual)
    total = float(usual[both].sum())
    return np.abs(actual - usual * (float(actual[both].sum()) / total if total > 0.0 else 1.0))


def _changes_within(zone: str, grid: Grid, horizon: int) -> tuple[tuple[int, int], ...]:
    """Return the changes of a zone in the years that history and horizon touch."""
    ends = grid.start_s, grid.origin_s + horizon * grid.step_s
    first, last = (datetime.fromtimestamp(s, tz=UTC).year for s in ends)
    return tuple(c for year in range(first, last + 1) for c in _changes(zone, year))


def _offset_s(zone: ZoneInfo, second: int) -> int:
    shift = datetime.fromtimestamp(second, tz=zone).utcoffset()
    return int(shift.total_seconds()) if shift is not None else 0


@lru_cache(maxsize=256)
def _changes(zone: str, year: int) -> tuple[tuple[int, int], ...]:
    """Return the moments of a year at which the clocks of a zone change, and by how many seconds."""
    local = ZoneInfo(zone)

    first, end = (int(datetime(y, 1, 1, tzinfo=UTC).timestamp()) for y in (year, year + 1))
    found = []
    for day in range(first, end, 24 * HOUR_S):
        before = _offset_s(local, day)
        if before == _offset_s(local, day + 24 * HOUR_S):
            continue
        moment = next(s for s in range(day, day + 25 * HOUR_S, SEARCH_S) if _offset_s(local, s) != before)
        found.append((moment, _offset_s(local, moment) - before))
    return tuple(found)
