"""The forecaster behind its port: grids in, stored runs and core bands out, away from the event loop.

Promises: poor history never raises, the band's state says so; the same history gives the same run id; fits
run in a worker thread, one at a time, because numpy holds a core while it works. Refuses nothing more than
the facade does: its input errors become a FAILED band with the sentence.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd

from controller.core.resources import ForecastRun
from controller.core.types import Event, ForecastBand, ForecastState, Trust
from forecaster import Event as KnownEvent
from forecaster import ForecastInputError, forecast

LEVELS: tuple[float, ...] = (0.1, 0.5, 0.9, 0.95, 0.99)
# Steps that must have been scored before a forecast is called proven or distrusted.
TRUST_STEPS_MIN = 12
# Distrust: worse than yesterday's value by this factor, and misses its upper bound this often.
PINBALL_RATIO_MAX = 1.5
UPPER_MISS_SHARE_MAX = 0.2


class FitForecaster:
    """Calls the facade."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def forecast(
        self,
        workload: str,
        history: Sequence[tuple[datetime, float | None]],
        *,
        step: timedelta,
        horizon_steps: int,
        events: Sequence[Event],
        now: datetime,
    ) -> tuple[ForecastRun, ForecastBand]:
        """Forecast ``workload`` from ``history`` (QPS per step, None unknown), starting one step after its last bucket."""
        async with self._turn:
            return await asyncio.to_thread(_fit, workload, history, step, horizon_steps, events, now)

    def trust(self, band: ForecastBand, observed: Sequence[tuple[datetime, float | None]]) -> Trust:
        """Judge ``band`` by what came after its origin, against the same time a day earlier."""
        return judge(band, observed)


def _known(event: Event) -> KnownEvent:
    return KnownEvent(
        start=event.start_at,
        end=event.end_at,
        category=event.category,
        expected_multiplier=event.expected_multiplier,
        expected_peak=event.expected_peak_qps,
    )


def _fit(
    workload: str,
    history: Sequence[tuple[datetime, float | None]],
    step: timedelta,
    horizon_steps: int,
    events: Sequence[Event],
    now: datetime,
) -> tuple[ForecastRun, ForecastBand]:
    times = pd.DatetimeIndex([at for at, _ in history], tz=UTC)
    series = pd.Series([np.nan if v is None else v for _, v in history], index=times, dtype="float64")
    last_at = history[-1][0]
    run_id = _run_id(workload, series, events, step, horizon_steps)
    try:
        result = forecast(series, horizon_steps, LEVELS, [_known(e) for e in events])
    except ForecastInputError as error:
        band = ForecastBand(
            run_id,
            last_at + step,
            last_at + step,
            step,
            LEVELS,
            (),
            ForecastState.FAILED,
            frozenset(),
            (str(error),),
        )
        return ForecastRun(run_id, workload, last_at + step, now, horizon_steps), band
    start_at = result.index[0].to_pydatetime()
    band = ForecastBand(
        id=run_id,
        origin_at=last_at + step,
        start_at=start_at,
        step=step,
        levels=LEVELS,
        qps=tuple(tuple(row) for row in result.values.tolist()),
        state=ForecastState(result.state.value),
        event_ids=frozenset(e.id for e in events if e.end_at > start_at),
        reasons=result.reasons,
    )
    run = ForecastRun(
        id=run_id,
        workload=workload,
        origin_at=last_at + step,
        created_at=now,
        horizon_steps=horizon_steps,
        model_weights=tuple(sorted(result.model_weights.items())),
        scores=(
            ("correction_gain", result.correction_gain),
            ("correction_half_life_s", result.correction_half_life.total_seconds()),
        ),
    )
    return run, band


def _run_id(
    workload: str, series: pd.Series, events: Sequence[Event], step: timedelta, horizon_steps: int
) -> str:
    digest = hashlib.sha256()
    digest.update(repr((workload, step, horizon_steps, sorted((e.id, e.revision) for e in events))).encode())
    digest.update(series.to_numpy().tobytes())
    digest.update(str(series.index[-1]).encode())
    return f"{workload}-{series.index[-1]:%Y%m%dT%H%M%S}-{digest.hexdigest()[:12]}"


def judge(band: ForecastBand, observed: Sequence[tuple[datetime, float | None]]) -> Trust:
    """Compare the band's median and upper bound with what was observed since its origin.

    DISTRUSTED needs both: a median clearly worse than the value of a day before, and an upper bound missed
    far more often than it says. Either alone happens to good forecasts too.
    """
    values = {at: v for at, v in observed if v is not None}
    middle, upper = band.levels.index(0.5), len(band.levels) - 1
    error, naive_error, missed, count = 0.0, 0.0, 0, 0
    for index, row in enumerate(band.qps):
        at = band.start_at + band.step * index
        actual, naive = values.get(at), values.get(at - timedelta(days=1))
        if actual is None or naive is None:
            continue
        count += 1
        error += abs(actual - row[middle])
        naive_error += abs(actual - naive)
        missed += actual > row[upper]
    if count < TRUST_STEPS_MIN:
        return Trust.UNPROVEN
    worse = error > PINBALL_RATIO_MAX * max(naive_error, 1e-9)
    return Trust.DISTRUSTED if worse and missed / count > UPPER_MISS_SHARE_MAX else Trust.TRUSTED
