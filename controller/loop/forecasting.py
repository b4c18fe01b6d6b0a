"""Keep a fresh forecast per workload: refit at its own cadence, at once when events change; judge its record.

Promises: one failing workload never stops the rest; a workload keeps its last forecast, whose age the core
sees. Called by the runner while this process leads.
"""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

from controller.core.types import Event, ForecastBand, ForecastState, Trust, Workload
from controller.loop.near import NearForecasting
from controller.ports import Clock, ForecastPort, Store, UnavailableError
from controller.settings import Settings

log = logging.getLogger(__name__)

RETRY_S = 15.0


class Forecasting:
    """Forecasts and trust per workload; ``near`` holds near demand, which has a rhythm of its own."""

    def __init__(self, store: Store, forecaster: ForecastPort, clock: Clock, settings: Settings) -> None:
        self._store, self._forecaster, self._clock, self._settings = store, forecaster, clock, settings
        self._due: dict[str, tuple[datetime, str]] = {}
        self.bands: dict[str, ForecastBand] = {}
        self.trust: dict[str, Trust] = {}
        self.near = NearForecasting(store, forecaster, clock, settings)

    async def load(self, workloads: Sequence[Workload]) -> None:
        """Continue with stored forecasts after a start or a takeover."""
        for workload in workloads:
            async with self._store.unit_of_work() as uow:
                stored = await uow.forecasts.latest(workload.name)
            if stored is not None:
                self.bands.setdefault(workload.name, stored[1])

    async def refresh(self, workloads: Sequence[Workload], events: dict[str, tuple[Event, ...]]) -> int:
        """Refit what is due; return how many forecasts were made."""
        if not self._settings.prediction_enabled:
            self.bands.clear()
            return 0
        made = 0
        for workload in workloads:
            now = self._clock.now()
            mine = events.get(workload.name, ())
            key = repr(sorted((e.id, e.revision) for e in mine))
            due_at, fitted_with = self._due.get(workload.name, (now, ""))
            if now < due_at and key == fitted_with:
                continue
            try:
                await self._refit(workload, mine, now)
                made += 1
            except UnavailableError as error:
                log.warning("forecast of %s waits for the store: %s", workload.name, error)
                continue
            self._due[workload.name] = (now + self._pause(workload.name), key)
        names = {w.name for w in workloads}
        for gone in self.bands.keys() - names:
            self.bands.pop(gone, None)
            self._due.pop(gone, None)
            self.trust.pop(gone, None)
        return made

    def _pause(self, workload: str) -> timedelta:
        """Time until the next refit; a forecast that wants history is tried again soon, for it may be imported."""
        band = self.bands.get(workload)
        wants_history = band is None or band.state in {
            ForecastState.FAILED,
            ForecastState.INSUFFICIENT_HISTORY,
        }
        period_s = self._settings.forecast_period_s
        return timedelta(seconds=min(period_s, RETRY_S) if wants_history else period_s)

    async def _refit(self, workload: Workload, events: Sequence[Event], now: datetime) -> None:
        step = self._settings.forecast_step
        # Only whole buckets: a half-filled last one would read as a fall in demand.
        end_at = datetime.fromtimestamp(
            now.timestamp() // step.total_seconds() * step.total_seconds(), now.tzinfo
        )
        async with self._store.unit_of_work() as uow:
            span = await uow.traffic.span(workload.name)
            if span is None:
                return
            start_at = max(span[0], end_at - timedelta(seconds=self._settings.history_window_s))
            start_at = datetime.fromtimestamp(
                start_at.timestamp() // step.total_seconds() * step.total_seconds(), now.tzinfo
            )
            history = (
                await uow.traffic.read(workload.name, start_at, end_at, step=step)
                if start_at < end_at
                else ()
            )
            earlier = await uow.forecasts.as_of(
                workload.name, now - timedelta(seconds=self._settings.trust_window_s)
            )
        if not history:
            return
        run, band = await self._forecaster.forecast(
            workload.name,
            history,
            step=step,
            horizon_steps=self._settings.horizon_steps,
            events=events,
            now=now,
        )
        async with self._store.unit_of_work() as uow:
            await uow.forecasts.save(run, band)
            await uow.commit()
        self.bands[workload.name] = band
        self.trust[workload.name] = (
            Trust.UNPROVEN if earlier is None else self._forecaster.trust(earlier[1], history)
        )
