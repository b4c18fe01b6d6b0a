"""Keep near demand per workload: what it may reach before replicas ordered now are warm, renewed every minute.

Promises: one failing workload never stops the rest, and none of it stops the forecast or the tick: what is
not renewed ages out in the core. Reads two hours per workload, and only once a new minute was stored, of many
workloads at once, and reckons them at once, too; two weeks and their events once per calibration. Calibrations are
stored, so that a new leader goes on with them. Whole minutes only: a partial one would read as a fall in demand. What
an event of stated size explains is left out of the record, as in the simulator: a midnight sale must not make every
later hour expect another. Called by the runner while this process leads.
"""

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from controller.core.leadtime import LeadTime
from controller.core.planner import explained
from controller.core.types import Event, ForecastBand, NearDemand, Trust
from controller.ports import Clock, ForecastPort, NearAsked, NearModel, PortError, Store, UnavailableError
from controller.settings import Settings
from controller.usecases.occurrences import OCCURRENCES_MAX
from controller.usecases.schedule import by_workload, events_between

log = logging.getLogger(__name__)

MINUTE = timedelta(minutes=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RECENT = timedelta(hours=2)
HISTORY = timedelta(days=14)
# A history too short to measure is tried again this soon.
SHORT_RETRY = timedelta(minutes=5)
# Measured anew at once when the lead time has moved by more than this share.
LEAD_MOVE_MAX = 0.2
# Workloads read in one statement: 24 000 rows, and a tenth of a second in which nothing else runs.
BATCH = 200

Minutes = Sequence[tuple[datetime, float | None]]


@dataclass(slots=True)
class _Watched:
    model: NearModel
    seen_at: datetime | None = None  # the newest minute that `demands` knows
    due_at: datetime | None = None
    lead_s: float = 0.0
    resumed: bool = False  # looked for a stored calibration, or measured
    restored: bool = False  # read the record of what forecasts said

    def is_due(self, now: datetime, lead_s: float) -> bool:
        moved = abs(lead_s - self.lead_s) > LEAD_MOVE_MAX * self.lead_s
        return self.due_at is None or now >= self.due_at or moved


class NearForecasting:
    """Near demand per workload, and the models it comes from."""

    def __init__(self, store: Store, forecaster: ForecastPort, clock: Clock, settings: Settings) -> None:
        self._store, self._forecaster, self._clock, self._settings = store, forecaster, clock, settings
        self._watched: dict[str, _Watched] = {}
        self.demands: dict[str, NearDemand] = {}

    async def refresh(
        self,
        names: Collection[str],
        bands: Mapping[str, ForecastBand],
        trust: Mapping[str, Trust],
        *,
        first_s: float | None = None,
    ) -> None:
        """Renew near demand of every workload that a new minute was stored for; forget those not named.

        ``first_s``: a first tick waits for this. Renew only what another process measured, and begin no further
        workloads after so long; the next call does the rest.
        """
        if not self._enabled:
            return
        until_s = math.inf if first_s is None else self._clock.monotonic() + first_s
        for gone in (self._watched.keys() | self.demands.keys()) - set(names):
            self._watched.pop(gone, None)
            self.demands.pop(gone, None)
        waiting = _parts(sorted(names))
        while waiting and self._clock.monotonic() < until_s:
            part = waiting.pop(0)
            try:
                await self._resume(part)
                found = await self._fresh(part if first_s is None else self._measured(part))
            except PortError as error:  # read again at the next turn, in seconds
                log.warning("near demand of %d workloads waits for the store: %s", len(part), error)
            except Exception:  # a defect concerns one workload, whose near demand then ages out
                if len(part) == 1:
                    log.exception("near demand of %s failed", part[0])
                else:
                    middle = len(part) // 2
                    waiting[:0] = [part[:middle], part[middle:]]
            else:
                self._renew(found, bands, trust)

    async def calibrate(
        self, leads: Mapping[str, LeadTime], leads_on: Callable[[], bool] = lambda: True
    ) -> int:
        """Measure anew what is due, what has no near demand first; return how many workloads were measured.

        Ends once ``leads_on`` says no: another process measures then, and what it stored must stand.
        """
        if not self._enabled:
            return 0
        try:
            await self._resume(list(leads))
        except PortError as error:
            log.warning("calibrations wait for the store: %s", error)
            return 0
        due = [name for name in leads if self._is_due(name, leads[name])]
        due.sort(key=lambda name: (name in self.demands, self._watch(name).due_at or EPOCH))
        made = 0
        for name in due:
            if not leads_on():
                break
            if self._is_due(name, leads[name]):  # still: another process may have led since, and measured
                made += await self._measure(name, leads[name], leads_on)
        return made

    def _is_due(self, name: str, lead: LeadTime) -> bool:
        return self._watch(name).is_due(self._clock.now(), lead.total_p95_s)

    async def _measure(self, name: str, lead: LeadTime, leads_on: Callable[[], bool]) -> bool:
        watched, now = self._watch(name), self._clock.now()
        watched.due_at, watched.lead_s = now + self._period, lead.total_p95_s
        watched.resumed, made = True, False
        try:
            end_at = _whole_minute(now)
            async with self._store.unit_of_work() as uow:
                span = await uow.traffic.span(name)
                start_at = end_at if span is None else max(span[0], end_at - HISTORY)
                minutes = await uow.traffic.read(name, start_at, end_at)
                stored = await uow.forecasts.said(name) or b""
                events = by_workload(
                    await events_between(uow, start_at, end_at, name), start_at, end_at, OCCURRENCES_MAX
                ).get(name, ())
            minutes = ordinary(minutes, events)
            model, lead_time = watched.model, timedelta(seconds=lead.total_p95_s)
            if not watched.restored:
                model.restore(stored)
                watched.restored = True
            record = model.record(stored)
            made = await model.calibrate(minutes, lead=lead_time, record=record)
            if made:
                watched.seen_at = None  # the minute that is known already has better quantiles now
            else:
                watched.due_at = now + min(self._period, SHORT_RETRY)
            if not leads_on():
                return made
            record = model.record(record)
            async with self._store.unit_of_work() as uow:
                await uow.forecasts.put_said(name, record, model.calibration())
                await uow.commit()
            model.kept(record)
        except UnavailableError as error:
            watched.due_at = None
            log.warning("calibration of %s waits for the store: %s", name, error)
        except Exception:  # as above; tried again after a period
            log.exception("calibration of %s failed", name)
        return made

    def forget(self) -> None:
        """Begin anew from what is stored: another process may have led meanwhile, and measured since."""
        self._watched.clear()

    async def _resume(self, names: Sequence[str]) -> None:
        """Go on, once, with what was measured of these before this process led."""
        unknown = [name for name in names if not self._watch(name).resumed]
        for part in _parts(unknown):
            async with self._store.unit_of_work() as uow:
                stored = await uow.forecasts.calibrations(part)
            now = self._clock.now()
            for name in part:
                watched = self._watch(name)
                if watched.resumed:  # while it was read
                    continue
                watched.resumed = True
                try:
                    found = watched.model.resume(stored[name], now) if name in stored else None
                except Exception:  # a defect concerns one workload, which is measured anew
                    log.exception("the stored calibration of %s cannot be used", name)
                    continue
                if found is not None:
                    until_at, lead = found
                    watched.due_at, watched.lead_s = until_at + self._period, lead.total_seconds()

    def _measured(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if self._watch(name).due_at is not None]

    @property
    def _period(self) -> timedelta:
        return timedelta(seconds=self._settings.near_period_s)

    @property
    def _enabled(self) -> bool:
        return self._settings.prediction_enabled and self._settings.near_enabled

    def _watch(self, name: str) -> _Watched:
        if name not in self._watched:
            self._watched[name] = _Watched(self._forecaster.near_model())
        return self._watched[name]

    async def _fresh(self, names: Sequence[str]) -> Mapping[str, Minutes]:
        """Return the last hours of those workloads that a minute was stored for which they have not seen."""
        end_at = _whole_minute(self._clock.now())
        start_at = end_at - RECENT
        seen = {name: self._watch(name).seen_at for name in names}
        begun = {name: at for name, at in seen.items() if at is not None and at < end_at - MINUTE}
        anew = [name for name, at in seen.items() if at is None]
        if not begun and not anew:
            return {}
        async with self._store.unit_of_work() as uow:
            if begun:
                newest = await uow.traffic.read_many(
                    list(begun), max(start_at, min(begun.values()) + MINUTE), end_at
                )
                anew += [
                    name
                    for name, minutes in newest.items()
                    if any(at > begun[name] and qps is not None for at, qps in minutes)
                ]
            return await uow.traffic.read_many(anew, start_at, end_at)

    def _renew(
        self, found: Mapping[str, Minutes], bands: Mapping[str, ForecastBand], trust: Mapping[str, Trust]
    ) -> None:
        asked: dict[str, NearAsked] = {}
        for name, minutes in found.items():
            watched = self._watched.get(name)
            if watched is None:  # forgotten while it was read
                continue
            watched.seen_at = max((at for at, qps in minutes if qps is not None), default=watched.seen_at)
            asked[name] = NearAsked(watched.model, minutes, bands.get(name), trust.get(name, Trust.UNPROVEN))
        for name, near in self._answers(asked).items():
            if near is None:
                self.demands.pop(name, None)
            else:
                self.demands[name] = near

    def _answers(self, asked: Mapping[str, NearAsked]) -> Mapping[str, NearDemand | None]:
        try:
            return dict(zip(asked, self._forecaster.near_of(list(asked.values())), strict=True))
        except Exception:  # of one of them, which is named below
            log.warning("near demand of %d workloads is made one by one", len(asked), exc_info=True)
        answers: dict[str, NearDemand | None] = {}
        for name, one in asked.items():
            try:
                answers[name] = one.model.near(one.minutes, one.band, trust=one.trust)
            except Exception:  # as above
                log.exception("near demand of %s failed", name)
        return answers


def ordinary(minutes: Minutes, events: Sequence[Event]) -> Minutes:
    """Return the minutes, one after the other, with those that events of stated size explain unknown."""
    kept = list(minutes)
    for places in explained(events, kept[0][0], MINUTE, len(kept)) if kept else ():
        kept[places] = [(at, None) for at, _ in kept[places]]
    return kept


def _parts(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[first : first + BATCH] for first in range(0, len(names), BATCH)]


def _whole_minute(at: datetime) -> datetime:
    return at - (at - EPOCH) % MINUTE
