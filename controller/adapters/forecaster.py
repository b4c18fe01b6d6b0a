"""The forecaster behind its port: grids in, stored runs and core bands out, away from the event loop.

Promises: poor history never raises, the band's state says so; the same history gives the same run id; fits, contests
and calibrations run in processes, where one that hangs or dies is a PortError and costs no other. Without processes
they run in a thread, one at a time, because numpy holds a core while it works. Refuses nothing more than the facade
does: its input errors become a FAILED band with the sentence. pandas, SciPy and the models are imported where they are
used, in the processes: a controller that starts or takes over would wait seconds for what it never calls itself.
"""

import asyncio
import hashlib
import math
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from controller.accuracy import ENSEMBLE, HourScore, Parts, Standing
from controller.adapters.scoring import Truth, contest, judge, score, truth
from controller.core.resources import ForecastRun
from controller.core.types import Event, ForecastBand, ForecastState, NearDemand, Trust
from controller.ports import NearModel, PortError, Refit
from forecaster import Event as KnownEvent
from forecaster import Forecast, ForecastInputError, nowcast
from forecaster.types import Floats
from forecaster.workers import TaskError, Workers

if TYPE_CHECKING:
    import pandas as pd

    from forecaster.nearcast import Nearcast

Result = TypeVar("Result")

# Up to what a policy serves by default (P99.9): the core never extrapolates beyond the outermost level.
LEVELS: tuple[float, ...] = (0.1, 0.5, 0.9, 0.95, 0.99, 0.995, 0.999)

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


class _Away:
    """Where computation happens: in processes, or in a thread of this one, one task at a time."""

    def __init__(self, workers: Workers | None) -> None:
        self._workers, self._turn = workers, asyncio.Lock()
        self._threads = None if workers is None else ThreadPoolExecutor(workers.count, "forecaster")

    async def run(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Wait for the result without holding up the event loop; raise PortError if a process does not bring it."""
        if self._workers is None:
            return await self.beside(function, *arguments)
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, self._workers.call, function, *arguments)
        except TaskError as error:
            raise PortError(str(error)) from error

    async def beside(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Run what is too small to be sent away in a thread, one at a time."""
        async with self._turn:
            return await asyncio.to_thread(function, *arguments)

    async def close(self) -> None:
        """End the processes, whatever they are at."""
        if self._workers is not None and self._threads is not None:
            await asyncio.to_thread(self._workers.close)
            self._threads.shutdown(wait=False, cancel_futures=True)


class FitForecaster:
    """Calls the facade: in `workers`, which it closes, or in a thread without any."""

    def __init__(self, workers: Workers | None = None) -> None:
        self._away = _Away(workers)
        self.at_once = 1 if workers is None else workers.count

    async def close(self) -> None:
        """End what is under way."""
        await self._away.close()

    async def forecast(
        self,
        workload: str,
        history: Sequence[tuple[datetime, float | None]],
        *,
        step: timedelta,
        horizon_steps: int,
        events: Sequence[Event],
        now: datetime,
        time_zone: str | None = None,
    ) -> tuple[ForecastRun, ForecastBand]:
        """Forecast ``workload`` from ``history`` (QPS per step, None unknown), starting one step after its last bucket."""
        made = await self.refit(
            history,
            step=step,
            horizon_steps=horizon_steps,
            events=events,
            now=now,
            standing=Standing(workload),
            time_zone=time_zone,
        )
        return made.run, made.band

    async def refit(
        self,
        history: Minutes,
        *,
        step: timedelta,
        horizon_steps: int,
        events: Sequence[Event],
        now: datetime,
        standing: Standing,
        time_zone: str | None = None,
    ) -> Refit:
        """Forecast as ``forecast`` does, by the champion, and say what the median is made of."""
        return await self._away.run(
            _fit,
            truth(history, step),
            horizon_steps,
            tuple(events),
            now,
            _without_record(standing),
            time_zone,
        )

    async def score(
        self,
        history: Minutes,
        step: timedelta,
        span: timedelta,
        asked: Sequence[tuple[datetime, timedelta, ForecastBand]],
    ) -> tuple[HourScore, ...]:
        """Score stretches of ``history`` by the forecasts that stood some lead before them."""
        return await self._away.beside(score, history, step, span, asked)

    async def contest(
        self,
        standing: Standing,
        history: Minutes,
        *,
        horizon_steps: int,
        events: Sequence[Event],
        now: datetime,
        time_zone: str | None = None,
    ) -> Standing:
        """Backtest every candidate and return the standing after it."""
        grid = truth(history, history[1][0] - history[0][0] if len(history) > 1 else MINUTE)
        return await self._away.run(
            contest, standing, grid, horizon_steps, [_known(e) for e in events], LEVELS, now, time_zone
        )

    def trust(self, band: ForecastBand, observed: Minutes) -> Trust:
        """Judge ``band`` by what came after its origin, against the same time a week or a day earlier."""
        return judge(band, observed)[0]

    def verdict(self, band: ForecastBand, observed: Minutes) -> tuple[Trust, str]:
        """Judge as ``trust`` does, with the numbers behind it in a sentence."""
        return judge(band, observed)

    def near_model(self) -> NearModel:
        """A model for one workload; its calibrations wait their turn behind the fits."""
        return FitNearModel(self._away)


class FitNearModel:
    """Quantiles of the highest demand within the lead time, measured on the workload's own minutes.

    What the forecast said beforehand is a record (80 kB) that its keeper stores, and that a restart goes on from: only
    what was said since is remembered here. Without one the forecast takes part once a day of it has been seen; until
    then demand speaks for itself.
    A DISTRUSTED forecast gives no base here either, while the quantiles go on from demand itself, which the
    core uses whatever the trust: they are measured on the workload's record with its newest errors in it.
    """

    def __init__(self, away: _Away) -> None:
        self._away = away
        self._fit: Nearcast | None = None
        self._fit_end = 0  # minute since 1970 in which the calibration's history ends
        self._lead, self._lead_minutes = MINUTE, 1
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
        same = _alike(lead_minutes, self._lead_minutes)
        said = self._with(record).read(first, len(demand)) if same else np.full(len(demand), math.nan)
        # A record of calm hours alone would look better than those that went through a whole day.
        enough = np.isfinite(said).sum() >= min(RECORD_MINUTES_MIN, RECORD_SHARE_MIN * len(demand))
        fit = await self._away.run(_calibrate, demand, said if enough else None, lead_minutes)
        # All at once, so that `near` goes on with the old calibration until the new one is there. The levels came back from
        # a process as a copy; one for all workloads is enough.
        self._fit, self._fit_end = fit and replace(fit, levels=NEAR_LEVELS), first + len(demand)
        self._said = self._said if same else _Said()
        self._lead, self._lead_minutes = min(lead, lead_minutes * MINUTE), lead_minutes
        return fit is not None

    def near(self, minutes: Minutes, band: ForecastBand | None, *, trust: Trust) -> NearDemand | None:
        """Quantiles as of the end of the newest known minute; None before or too long after a calibration."""
        known = [index for index, (_, qps) in enumerate(minutes) if qps is not None]
        if not known:
            return None
        demand = _values(minutes[: known[-1] + 1])
        now = minutes[known[-1]][0] + MINUTE
        expected = _expected(band, now, demand, self._lead_minutes)
        self._said = _Said(_minute(now), np.array([expected], np.float32)).over(self._said)
        age = _minute(now) - self._fit_end
        fit = self._fit
        if fit is None or age >= fit.valid_steps:
            return None
        from forecaster.nearcast import Newest, recent  # noqa: PLC0415 - there by now: the fit came out of it

        last, short, long, high = recent(demand, 60)[:, -1].tolist()
        newest = Newest(last, short, long, high, math.nan if trust is Trust.DISTRUSTED else expected)
        qps = fit.quantiles(age, newest)
        if not bool(np.isfinite(qps).all()):
            return None
        return NearDemand(now, self._lead, NEAR_LEVELS, tuple(qps.tolist()))

    def record(self, stored: bytes = b"") -> bytes:
        """What the forecast said, as stored and since, with the lead time it was said for."""
        return _RECORD.pack(_RECORD_VERSION, self._lead_minutes) + self._with(stored).pack()

    def restore(self, record: bytes) -> None:
        """Say for the lead time that a record was made for; one of another release, or cut short, is as good as none."""
        lead_minutes, _ = _unpacked(record)
        self._lead_minutes = lead_minutes or self._lead_minutes

    def kept(self, record: bytes) -> None:
        """Remember no longer what is in ``record``."""
        self._said = self._said.after(_unpacked(record)[1])

    def _with(self, record: bytes) -> "_Said":
        lead_minutes, said = _unpacked(record)
        return self._said.over(said if _alike(self._lead_minutes, lead_minutes) else _Said())


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


def _expected(band: ForecastBand | None, now: datetime, demand: Floats, lead_minutes: int) -> float:
    """Highest median from ``now`` until an order of now is warm, corrected by the newest minutes; NaN if unknown."""
    # A forecast of the level alone counts too: its record must hold the surprises of the first days as others' does.
    if band is None or not band.qps or 0.5 not in band.levels:
        return math.nan
    ahead = (np.arange(lead_minutes + 1) + 0.5) * 60.0
    start_s, step_s = (band.start_at - now).total_seconds(), band.step.total_seconds()
    if start_s > step_s or start_s + step_s * len(band.qps) < ahead[-1]:
        return math.nan
    middle = band.levels.index(0.5)
    median = np.array([row[middle] for row in band.qps])
    if not bool(np.isfinite(median).all()) or bool((median < 0).any()):
        return math.nan
    centre = start_s + (np.arange(len(median)) + 0.5) * step_s
    seen = demand[-CORRECTED_BY_MINUTES:]
    before = (np.arange(-len(seen), 0) + 0.5) * 60.0
    corrected = nowcast(
        np.interp(ahead, centre, median)[None, :, None],
        seen[None, :],
        np.where(before >= start_s, np.interp(before, centre, median), np.nan)[None, :],
        gain=CORRECTION_GAIN,
        half_life_steps=CORRECTION_HALF_LIFE_MINUTES,
        memory_steps=CORRECTION_MEMORY_MINUTES,
    )
    return float(corrected.max())


def _minute(at: datetime) -> int:
    return (at - EPOCH) // MINUTE


def _values(minutes: Minutes) -> Floats:
    return np.array([math.nan if qps is None else qps for _, qps in minutes], dtype=np.float64)


def _known(event: Event) -> KnownEvent:
    return KnownEvent(
        start=event.start_at,
        end=event.end_at,
        category=event.category,
        expected_multiplier=event.expected_multiplier,
        expected_peak=event.expected_peak_qps,
    )


def _calibrate(demand: Floats, said: Floats | None, lead_minutes: int) -> "Nearcast | None":
    from forecaster.nearcast import calibrate  # noqa: PLC0415 - slow to import

    made = calibrate(
        demand,
        said,
        step_s=60,
        lead_steps=lead_minutes,
        levels=NEAR_LEVELS,
        valid_steps=NEAR_VALID_MINUTES,
    )
    return made and made.small()  # one is kept for each workload


def _without_record(standing: Standing) -> Standing:
    """Leave out what a fit does not look at."""
    return replace(standing, switches=(), backtest=None)


def _forecast(
    model: str, series: "pd.Series", horizon_steps: int, events: Sequence[KnownEvent], time_zone: str | None
) -> tuple[str, Forecast]:
    """Forecast by ``model``, or by the shipped one where that cannot take the history; say which."""
    from forecaster.candidates import forecast_as  # noqa: PLC0415 - slow to import

    try:
        return model, forecast_as(model, series, horizon_steps, LEVELS, events, time_zone=time_zone)
    except ForecastInputError:
        # All of the days that it looks at may be missing.
        if model == ENSEMBLE:
            raise
    return ENSEMBLE, forecast_as(ENSEMBLE, series, horizon_steps, LEVELS, events, time_zone=time_zone)


def _fit(
    history: Truth,
    horizon_steps: int,
    events: Sequence[Event],
    now: datetime,
    standing: Standing,
    time_zone: str | None,
) -> Refit:
    from forecaster.explanation import decompose, rounded  # noqa: PLC0415 - slow to import

    workload, series, known = standing.workload, history.series(), [_known(e) for e in events]
    step, origin_at = history.step, history.end_at
    run_id = _run_id(workload, series, events, step, horizon_steps, standing.champion, time_zone)
    try:
        model, result = _forecast(standing.champion, series, horizon_steps, known, time_zone)
    except ForecastInputError as error:
        band = ForecastBand(
            run_id, origin_at, origin_at, step, LEVELS, (), ForecastState.FAILED, reasons=(str(error),)
        )
        return Refit(ForecastRun(run_id, workload, origin_at, now, horizon_steps), band)
    why = decompose(result, series, known, model=model)
    start_at = result.index[0].to_pydatetime()
    band = ForecastBand(
        id=run_id,
        origin_at=origin_at,
        start_at=start_at,
        step=step,
        levels=LEVELS,
        # Rounded to what the parts of the median are multiples of, far below what anybody can measure.
        qps=tuple(tuple(row) for row in rounded(result.values, why.quantum).tolist()),
        state=ForecastState(result.state.value),
        event_ids=frozenset(e.id for e in events if e.end_at > start_at),
        reasons=result.reasons,
    )
    run = ForecastRun(
        id=run_id,
        workload=workload,
        origin_at=origin_at,
        created_at=now,
        horizon_steps=horizon_steps,
        model_weights=tuple(sorted(result.model_weights.items())),
        scores=(
            ("correction_gain", result.correction_gain),
            ("correction_half_life_s", result.correction_half_life.total_seconds()),
        ),
    )
    parts = Parts(
        forecast_id=run_id,
        workload=workload,
        created_at=now,
        model=model,
        model_reason=standing.reason
        if model == standing.champion
        else f"{standing.champion} cannot take this history.",
        sentence=why.sentence,
        baseline=float(why.baseline[0]),
        trend=_single(why.trend),
        event=_single(why.event),
        correction=_single(why.correction),
    )
    return Refit(run, band, parts)


def _single(values: Floats) -> tuple[float, ...]:
    """Round to single precision, as parts are kept: still multiples of the same power of two."""
    return tuple(values.astype(np.float32).astype(np.float64).tolist())


def _run_id(
    workload: str,
    series: "pd.Series",
    events: Sequence[Event],
    step: timedelta,
    horizon_steps: int,
    model: str,
    time_zone: str | None,
) -> str:
    digest = hashlib.sha256()
    known = sorted((e.id, e.revision) for e in events)
    digest.update(repr((workload, step, horizon_steps, known, model, time_zone)).encode())
    digest.update(series.to_numpy().tobytes())
    digest.update(str(series.index[-1]).encode())
    return f"{workload}-{series.index[-1]:%Y%m%dT%H%M%S}-{digest.hexdigest()[:12]}"
