"""The forecaster behind its port: grids in, stored runs and core bands out, away from the event loop.

Promises: poor history never raises, the band's state says so; the same history gives the same run id; fits, contests
and calibrations run in processes, where one that hangs or dies is a PortError and costs no other. Without processes
they run in a thread, one at a time, because numpy holds a core while it works. Refuses nothing more than the facade
does: its input errors become a FAILED band with the sentence. pandas, SciPy and the models are imported where they are
used, in the processes: a controller that starts or takes over would wait seconds for what it never calls itself.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np

from controller.accuracy import ENSEMBLE, HourScore, Parts, Standing
from controller.adapters.away import Away
from controller.adapters.near_model import FitNearModel, near_of
from controller.adapters.scoring import Truth, contest, judge, score, truth
from controller.core.resources import ForecastRun
from controller.core.types import Event, ForecastBand, ForecastState, NearDemand, Trust
from controller.ports import NearAsked, NearModel, Refit
from forecaster import Event as KnownEvent
from forecaster import Forecast, ForecastInputError
from forecaster.types import Floats
from forecaster.workers import Workers

if TYPE_CHECKING:
    import pandas as pd

# Up to what a policy serves by default (P99.9): the core never extrapolates beyond the outermost level.
LEVELS: tuple[float, ...] = (0.1, 0.5, 0.9, 0.95, 0.99, 0.995, 0.999)

MINUTE = timedelta(minutes=1)
Minutes = Sequence[tuple[datetime, float | None]]


class FitForecaster:
    """Calls the facade: in `workers`, which it closes, or in a thread without any."""

    def __init__(self, workers: Workers | None = None) -> None:
        self._away = Away(workers)
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

    def near_of(self, asked: Sequence[NearAsked]) -> Sequence[NearDemand | None]:
        """What each of these models says, in one pass of numpy."""
        return near_of(asked)


def _known(event: Event) -> KnownEvent:
    return KnownEvent(
        start=event.start_at,
        end=event.end_at,
        category=event.category,
        expected_multiplier=event.expected_multiplier,
        expected_peak=event.expected_peak_qps,
    )


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
