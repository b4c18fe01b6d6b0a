"""What one workload's demand may reach before replicas ordered now are warm: from its minutes, and what forecasts said.

Promises: many are asked in one pass of numpy, and each says what it says alone; a calibration waits its turn where the
forecaster computes, and the last one serves until it is there. Called by the forecaster's adapter.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import cast

import numpy as np
from numpy.typing import NDArray

from controller.adapters.away import Away
from controller.adapters.calibrations import Calibration, pack, unpack
from controller.core.types import ForecastBand, NearDemand, Trust
from controller.ports import NearAsked
from forecaster import nowcast
from forecaster.nearcast import HIGH_S, LONG_S, SHORT_S, Nearcast, calibrate, quantiles
from forecaster.types import Floats

MINUTE = timedelta(minutes=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# What near demand is measured at: the upper tail, where the cost quantile of any sensible policy lies.
NEAR_LEVELS: tuple[float, ...] = (
    *(0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9998),
    *(0.99995, 0.99999, 0.999997),
)
NEAR_HISTORY_MINUTES = 14 * 1440
NEAR_VALID_MINUTES = 360
NEAR_LEAD_MINUTES_MAX = 1440
LEAD_MOVE_MAX = 0.2
# How much of what the forecast said is judged: a day of it, or most of a shorter history.
RECORD_MINUTES_MIN = 1440
RECORD_SHARE_MIN = 0.8
# How the newest minutes correct the forecast's median within the lead time.
CORRECTED_BY_MINUTES = 24
CORRECTION_GAIN = 0.9
CORRECTION_HALF_LIFE_MINUTES = 60.0
CORRECTION_MEMORY_MINUTES = 8.0

# A record: version, lead time in minutes; newest minute since 1970; the ring itself.
_RECORD, _NEWEST = struct.Struct("<HH"), struct.Struct("<q")
_RECORD_VERSION = 1
_RECORD_BYTES = _RECORD.size + _NEWEST.size + 4 * NEAR_HISTORY_MINUTES

Minutes = Sequence[tuple[datetime, float | None]]


class FitNearModel:
    """Quantiles of the highest demand within the lead time, measured on the workload's own minutes.

    What the forecast said beforehand is a record (80 kB) that its keeper stores, and that a restart goes on from: only
    what was said since is remembered here. Without one the forecast takes part once a day of it has been seen; until
    then demand speaks for itself.
    A DISTRUSTED forecast gives no base here either, while the quantiles go on from demand itself, which the
    core uses whatever the trust: they are measured on the workload's record with its newest errors in it.
    """

    def __init__(self, away: Away) -> None:
        self._away = away
        self._fit: Nearcast | None = None
        self._fit_end = 0  # minute since 1970 in which the calibration's history ends
        self.lead, self.lead_minutes = MINUTE, 1
        self._said = _Said()

    async def calibrate(self, minutes: Minutes, *, lead: timedelta, record: bytes = b"") -> bool:
        """Measure anew, with what is in ``record`` beside what is remembered; False when the known history is too short."""
        # Rounded up: minutes are stored some seconds late, and a replica late costs users.
        lead_minutes = min(max(1, math.ceil(lead / MINUTE)), NEAR_LEAD_MINUTES_MAX)
        known = [index for index, (_, qps) in enumerate(minutes) if qps is not None]
        if not known:
            self._fit = None
            return False
        # Unknown minutes at the end are those not stored yet.
        seen = minutes[max(known[0], known[-1] + 1 - NEAR_HISTORY_MINUTES) : known[-1] + 1]
        first, demand = _minute(seen[0][0]), _values(seen)
        # What was said for a clearly other lead time looked too short or too far ahead.
        same = _alike(lead_minutes, self.lead_minutes)
        said = self._with(record).read(first, len(demand)) if same else np.full(len(demand), math.nan)
        # A record of calm hours alone would look better than those that went through a whole day.
        enough = np.isfinite(said).sum() >= min(RECORD_MINUTES_MIN, RECORD_SHARE_MIN * len(demand))
        fit = await self._away.run(_calibrate, demand, said if enough else None, lead_minutes)
        # All at once, so that `near` goes on with the old calibration until the new one is there. The levels came back from
        # a process as a copy; one for all workloads is enough.
        self._fit, self._fit_end = fit and replace(fit, levels=NEAR_LEVELS), first + len(demand)
        self._said = self._said if same else _Said()
        self.lead, self.lead_minutes = min(lead, lead_minutes * MINUTE), lead_minutes
        return fit is not None

    def calibration(self) -> bytes:
        """What was measured, to be stored; nothing before."""
        if self._fit is None:
            return b""
        made = Calibration(self._fit, self._fit_end, self.lead.total_seconds(), self.lead_minutes)
        return pack(made, NEAR_LEVELS, NEAR_VALID_MINUTES)

    def resume(self, calibration: bytes, now: datetime) -> tuple[datetime, timedelta] | None:
        """Go on with a calibration if it can serve at ``now``; return the end of its history, and its lead time."""
        made = unpack(calibration, NEAR_LEVELS, NEAR_VALID_MINUTES)
        # One of the future is of a clock that was set back: for what time of day it speaks is not known.
        if made is None or not 0 <= _minute(now) - made.end_minute < NEAR_VALID_MINUTES:
            return None
        self._fit, self._fit_end = made.fit, made.end_minute
        self.lead, self.lead_minutes = timedelta(seconds=made.lead_s), made.lead_minutes
        return EPOCH + made.end_minute * MINUTE, self.lead

    def near(self, minutes: Minutes, band: ForecastBand | None, *, trust: Trust) -> NearDemand | None:
        """Quantiles as of the end of the newest known minute; None before or too long after a calibration."""
        return near_of([NearAsked(self, minutes, band, trust)])[0]

    def hear(self, now: datetime, expected: float) -> Nearcast | None:
        """Remember what the forecast says as of ``now``; return the calibration, if there is one that serves then."""
        self._said = _Said(_minute(now), np.array([expected], np.float32)).over(self._said)
        fit = self._fit
        return None if fit is None or self.age_minutes(now) >= fit.valid_steps else fit

    def age_minutes(self, now: datetime) -> int:
        """Minutes since the end of the calibration's history."""
        return _minute(now) - self._fit_end

    def record(self, stored: bytes = b"") -> bytes:
        """What the forecast said, as stored and since, with the lead time it was said for."""
        return _RECORD.pack(_RECORD_VERSION, self.lead_minutes) + self._with(stored).pack()

    def restore(self, record: bytes) -> None:
        """Say for the lead time that a record was made for; one of another release, or cut short, is as good as none."""
        lead_minutes, _ = _unpacked(record)
        if lead_minutes and self._fit is None:  # that of a calibration stands
            if not _alike(lead_minutes, self.lead_minutes):
                self._said = _Said()  # what was said meanwhile looked another time ahead
            self.lead_minutes = lead_minutes

    def kept(self, record: bytes) -> None:
        """Remember no longer what is in ``record``."""
        self._said = self._said.after(_unpacked(record)[1])

    def _with(self, record: bytes) -> "_Said":
        lead_minutes, said = _unpacked(record)
        return self._said.over(said if _alike(self.lead_minutes, lead_minutes) else _Said())


def _alike(lead_minutes: int, before: int) -> bool:
    return abs(lead_minutes - before) <= LEAD_MOVE_MAX * before


def _unpacked(record: bytes) -> "tuple[int, _Said]":
    """Return lead time in minutes and what was said; 0 and nothing for what cannot be read."""
    if len(record) == _RECORD_BYTES:
        version, lead_minutes = _RECORD.unpack_from(record)
        if version == _RECORD_VERSION:
            return lead_minutes, _Said.unpack(record[_RECORD.size :])
    return 0, _Said()


@dataclass(frozen=True, slots=True)
class _Said:
    """The highest forecast median within the lead time, as said at minutes in a row; NaN where nothing was."""

    first: int = 0  # minute since 1970
    values: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))

    @property
    def end(self) -> int:
        return self.first + len(self.values)

    def pack(self) -> bytes:
        """As a ring of two weeks, each minute at its own place."""
        ring = np.full(NEAR_HISTORY_MINUTES, np.nan, dtype="<f4")
        ring[np.arange(self.first, self.end) % len(ring)] = self.values
        return _NEWEST.pack(self.end - 1 if len(self.values) else -1) + ring.tobytes()

    @classmethod
    def unpack(cls, packed: bytes) -> "_Said":
        (newest,) = _NEWEST.unpack_from(packed)
        if newest < 0:
            return cls()
        ring = np.frombuffer(packed, dtype="<f4", offset=_NEWEST.size)
        first = newest + 1 - len(ring)
        return cls(first, ring[np.arange(first, newest + 1) % len(ring)].astype(np.float32))

    def over(self, older: "_Said") -> "_Said":
        """Return both, this one where both say something, and at most the newest two weeks of it."""
        if not len(self.values) or not len(older.values):
            return self if len(self.values) else older
        end = max(self.end, older.end)
        first = max(min(self.first, older.first), end - NEAR_HISTORY_MINUTES)
        values = older.read(first, end - first)
        known = slice(max(self.first - first, 0), max(self.end - first, 0))
        values[known] = self.values[len(self.values) - (known.stop - known.start) :]
        return _Said(first, values.astype(np.float32))

    def after(self, older: "_Said") -> "_Said":
        """Return what was said after the last minute of another."""
        skipped = max(older.end - self.first, 0) if len(older.values) else 0
        return (
            _Said(self.first + skipped, self.values[skipped:].copy())
            if skipped < len(self.values)
            else _Said()
        )

    def read(self, first: int, count: int) -> Floats:
        """`[count]` from minute `first` on."""
        result = np.full(count, math.nan)
        low, high = max(first, self.first), min(first + count, self.end)
        if low < high:
            result[low - first : high - first] = self.values[low - self.first : high - self.first]
        return result


def near_of(asked: Sequence[NearAsked]) -> list[NearDemand | None]:
    """Quantiles of each as of the end of its newest known minute; None before or too long after a calibration."""
    heard: list[tuple[int, FitNearModel, datetime]] = []
    for place, one in enumerate(asked):
        known_at = next((at for at, qps in reversed(one.minutes) if qps is not None), None)
        if known_at is not None:
            # The forecaster's adapter makes no others.
            heard.append((place, cast("FitNearModel", one.model), known_at + MINUTE))
    answers: list[NearDemand | None] = [None] * len(asked)
    if not heard:
        return answers
    demand = _lately([asked[place].minutes for place, _, _ in heard])
    expected = _expected(
        [(asked[place].band, now, model.lead_minutes) for place, model, now in heard], demand
    )
    fits = [model.hear(now, said) for (_, model, now), said in zip(heard, expected.tolist(), strict=True)]
    rows = [row for row, fit in enumerate(fits) if fit is not None]
    if not rows:
        return answers
    ages = np.array([heard[row][1].age_minutes(heard[row][2]) for row in rows])
    heeded = np.array([asked[heard[row][0]].trust is not Trust.DISTRUSTED for row in rows])
    newest = np.vstack((recent_of(demand[rows]), np.where(heeded, expected[rows], math.nan)))
    qps = quantiles([fit for fit in fits if fit is not None], ages, newest)
    fine = np.asarray(np.isfinite(qps).all(axis=1))
    for row, values, sound in zip(rows, qps.tolist(), fine.tolist(), strict=True):
        place, model, now = heard[row]
        answers[place] = NearDemand(now, model.lead, NEAR_LEVELS, tuple(values)) if sound else None
    return answers


def _lately(histories: Sequence[Minutes]) -> Floats:
    """Return `[W, T]`: demand up to the newest known minute of each, which comes last; NaN where it is not known."""
    demand = np.full((len(histories), max(map(len, histories))), math.nan)
    for row, minutes in zip(demand, histories, strict=True):
        values = _values(minutes)
        end = int(np.flatnonzero(np.isfinite(values))[-1]) + 1
        row[len(row) - end :] = values[:end]
    return demand


def recent_of(demand: Floats) -> Floats:
    """Return `[4, W]` from `[W, T]` whose last column is known: what `forecaster.nearcast.recent` says at its end."""
    known = np.isfinite(demand)
    value, age = np.where(known, demand, 0.0), np.arange(demand.shape[1])[::-1] * 60.0
    means = [
        (value @ keep) / (known @ keep) for keep in (0.5 ** (age / half_s) for half_s in (SHORT_S, LONG_S))
    ]
    return np.stack((demand[:, -1], *means, np.nanmax(demand[:, -HIGH_S // 60 - 1 :], axis=1)))


def _expected(asked: Sequence[tuple[ForecastBand | None, datetime, int]], demand: Floats) -> Floats:
    """Return `[W]`: highest median from each ``now`` until an order of then is warm, corrected by the newest minutes.

    NaN where no forecast says. From bands, moments and lead times in minutes; and demand `[W, T]` up to these moments.
    """
    result = np.full(len(asked), math.nan)
    seen = demand[:, -CORRECTED_BY_MINUTES:]
    medians = [_medians(*one, seen.shape[1]) for one in asked]
    rows = [row for row, median in enumerate(medians) if median is not None]
    if not rows:
        return result
    found = [median for median in medians if median is not None]
    # Behind a shorter lead time nothing is expected, which is the highest of nothing.
    coming = np.zeros((len(found), max(len(ahead) for ahead, _ in found)))
    for row, (ahead, _) in zip(coming, found, strict=True):
        row[: len(ahead)] = ahead
    corrected = nowcast(
        coming[:, :, None],
        seen[rows],
        np.stack([before for _, before in found]),
        gain=CORRECTION_GAIN,
        half_life_steps=CORRECTION_HALF_LIFE_MINUTES,
        memory_steps=CORRECTION_MEMORY_MINUTES,
    )
    result[rows] = corrected.max(axis=(1, 2))
    return result


def _medians(
    band: ForecastBand | None, now: datetime, lead_minutes: int, seen_minutes: int
) -> tuple[Floats, Floats] | None:
    """Return a forecast's median at the minutes from ``now`` on, and at those before; None if it cannot be used."""
    # A forecast of the level alone counts too: its record must hold the surprises of the first days as others' does.
    if band is None or not band.qps or 0.5 not in band.levels:
        return None
    ahead = (np.arange(lead_minutes + 1) + 0.5) * 60.0
    start_s, step_s = (band.start_at - now).total_seconds(), band.step.total_seconds()
    if start_s > step_s or start_s + step_s * len(band.qps) < ahead[-1]:
        return None
    before = (np.arange(-seen_minutes, 0) + 0.5) * 60.0
    middle = band.levels.index(0.5)
    # Those steps alone that lie around these minutes.
    first = max(0, math.floor((before[0] - start_s) / step_s - 0.5))
    end = max(first, math.ceil((ahead[-1] - start_s) / step_s - 0.5)) + 1
    median = np.array([row[middle] for row in band.qps[first:end]])
    if not bool(np.isfinite(median).all()) or bool((median < 0).any()):
        return None
    centre = start_s + (np.arange(first, first + len(median)) + 0.5) * step_s
    return (
        np.interp(ahead, centre, median),
        np.where(before >= start_s, np.interp(before, centre, median), math.nan),
    )


def _minute(at: datetime) -> int:
    return (at - EPOCH) // MINUTE


def _values(minutes: Minutes) -> Floats:
    return np.array([math.nan if qps is None else qps for _, qps in minutes], dtype=np.float64)


def _calibrate(demand: Floats, said: Floats | None, lead_minutes: int) -> Nearcast | None:
    made = calibrate(
        demand,
        said,
        step_s=60,
        lead_steps=lead_minutes,
        levels=NEAR_LEVELS,
        valid_steps=NEAR_VALID_MINUTES,
    )
    return made and made.small()  # one is kept for each workload
