"""Keep a fresh forecast per workload: refit at its own cadence, at once when events change; judge its record.

Promises: a workload whose refit fails or hangs is named and never stops the rest; it keeps its last forecast, whose
age the core sees, and is tried again at growing pauses. A round refits what is due, a few at once: those whose events
changed first, then the longest due. Each hour of truth is scored once it is over, twice at that, because minutes may be
late; every few hours the candidate models are compared, and the champion makes the forecasts until another one has
clearly won. Scores and champions are stored, so a new leader goes on where the last one was; a defect in judging costs no
forecast. Called by the runner while this process leads.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from zlib import crc32

from controller.accuracy import LEADS, SPAN, HourScore, Standing
from controller.core.rows import packed
from controller.core.types import Event, ForecastBand, ForecastState, Trust, Workload
from controller.loop.near import NearForecasting
from controller.ports import Clock, ForecastPort, PortError, SignalCache, Store, UnavailableError
from controller.settings import Settings
from controller.usecases.topics import CHANGES

log = logging.getLogger(__name__)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RETRY_S = 15.0
# A leader that begins scores this much of the past at most.
SCORED_BACK = timedelta(days=1)
# A backtest costs about as much as ten refits.
CONTEST_PERIOD = timedelta(hours=6)
CONTEST_SPREAD = timedelta(seconds=5)
# What a failing refit waits for, in periods; each try may cost a deadline of a process.
FAILURE_PERIODS_MAX = 12
# A round ends after so long, and the next one begins with events as they then are.
ROUND_S_MAX = 60.0
# Stored forecasts are megabytes for each hundred workloads, which PostgreSQL writes out on a core for each connection.
LOADS_AT_ONCE = 3
# Shorter ones are no news.
ROUND_S_TOLD = 5.0


@dataclass(slots=True)
class _Judged:
    """What this process knows of a workload's record."""

    standing: Standing
    scored_at: datetime | None  # start of the last scored stretch
    contest_at: datetime


@dataclass(slots=True)
class Round:
    """How far the refits of one look at what is due have come."""

    due_count: int = 0
    done_count: int = 0


@dataclass(frozen=True, slots=True)
class _Due:
    workload: Workload
    events: tuple[Event, ...]
    key: str  # of the zone and the events


def _floor(at: datetime, step: timedelta) -> datetime:
    return at - (at - EPOCH) % step


class Forecasting:
    """Forecasts and trust per workload; ``near`` holds near demand, which has a rhythm of its own."""

    def __init__(
        self,
        store: Store,
        forecaster: ForecastPort,
        clock: Clock,
        settings: Settings,
        signals: SignalCache | None = None,
        *,
        at_once: int = 1,  # refits under way, each with a connection to the store now and then
    ) -> None:
        self._at_once = at_once
        self._store, self._forecaster, self._clock, self._settings = store, forecaster, clock, settings
        self._signals = signals
        self._judged: dict[str, _Judged] = {}
        self._count = 1
        self._due: dict[str, tuple[datetime, str]] = {}
        self._failed: Counter[str] = Counter()  # refits in a row
        self.round = Round()
        self.refits: Counter[str] = Counter()  # by what became of them, since the start; for metrics
        self.bands: dict[str, ForecastBand] = {}
        self.trust: dict[str, Trust] = {}
        self.scores: dict[str, HourScore] = {}  # newest scored stretch per workload, for metrics
        self.near = NearForecasting(store, forecaster, clock, settings)

    @property
    def standings(self) -> Mapping[str, Standing]:
        """Who makes each workload's forecasts, and how far they are trusted; for metrics."""
        return {name: judged.standing for name, judged in self._judged.items()}

    async def load(self, workloads: Sequence[Workload]) -> None:
        """Continue with stored forecasts and records after a start or a takeover."""
        self._judged.clear()  # another leader may have gone on meanwhile
        names = [workload.name for workload in workloads]
        unknown = [name for name in names if name not in self.bands]
        async with asyncio.TaskGroup() as group:
            for start in range(LOADS_AT_ONCE):
                group.create_task(self._load_bands(unknown[start::LOADS_AT_ONCE]))
        async with self._store.unit_of_work() as uow:
            for name, standing in (await uow.accuracy.standings(names)).items():
                self.trust.setdefault(name, standing.trust)

    async def _load_bands(self, names: Sequence[str]) -> None:
        if not names:
            return
        async with self._store.unit_of_work() as uow:
            for name, band in (await uow.forecasts.latest_bands(names)).items():
                self.bands.setdefault(name, band)

    async def refresh(self, workloads: Sequence[Workload], events: dict[str, tuple[Event, ...]]) -> int:
        """Refit what is due; return how many forecasts were made."""
        if not self._settings.prediction_enabled:
            self.bands.clear()
            return 0
        self._count = len(workloads)
        due = self._find_due(workloads, events)
        self._forget((self.bands.keys() | self._due.keys()) - {w.name for w in workloads})
        if not due:
            return 0
        self.round = Round(len(due))
        before, began_s = self.refits.copy(), self._clock.monotonic()
        waiting = iter(due)
        async with asyncio.TaskGroup() as group:
            for _ in range(min(len(due), self._at_once)):
                group.create_task(self._take(waiting, began_s + ROUND_S_MAX))
        made, took_s = self.refits - before, self._clock.monotonic() - began_s
        log.log(
            logging.INFO if made["failed"] or took_s >= ROUND_S_TOLD else logging.DEBUG,
            "refits: %d of %d due in %.1f s; %d forecasts, %d without history, %d failed",
            *(self.round.done_count, self.round.due_count, took_s),
            *(made["made"], made["no_history"], made["failed"]),
        )
        return made["made"]

    def _find_due(self, workloads: Sequence[Workload], events: Mapping[str, tuple[Event, ...]]) -> list[_Due]:
        now = self._clock.now()
        found: list[tuple[bool, datetime, _Due]] = []
        for workload in workloads:
            mine = events.get(workload.name, ())
            key = repr((workload.time_zone, sorted((e.id, e.revision) for e in mine)))
            due_at, fitted_with = self._due.get(workload.name, (now, repr((workload.time_zone, []))))
            if now >= due_at or key != fitted_with:
                found.append((key == fitted_with, due_at, _Due(workload, mine, key)))
        # Those whose events changed come first.
        return [due for _, _, due in sorted(found, key=lambda one: one[:2])]

    async def _take(self, waiting: Iterator[_Due], until_s: float) -> None:
        for one in waiting:
            name, now = one.workload.name, self._clock.now()
            try:
                result = "made" if await self._refit(one.workload, one.events, now) else "no_history"
                del self._failed[name]
            except UnavailableError as error:
                log.warning("forecast of %s waits for the store: %s", name, error)
                result = "waits"
            except PortError as error:
                log.warning("forecast of %s failed, its last one stays: %s", name, error)
                result = "failed"
            except Exception:  # a defect concerns one workload, whose forecast then ages
                log.exception("forecast of %s failed, its last one stays", name)
                result = "failed"
            self.refits[result] += 1
            self.round.done_count += 1
            if result == "failed":
                self._failed[name] += 1
            if result != "waits":
                self._due[name] = (now + self._pause(name), one.key)
            if self._clock.monotonic() >= until_s:
                return

    def _forget(self, names: Collection[str]) -> None:
        for gone in names:
            self.bands.pop(gone, None)
            self._due.pop(gone, None)
            self._failed.pop(gone, None)
            self.trust.pop(gone, None)
            self.scores.pop(gone, None)
            self._judged.pop(gone, None)

    def _pause(self, workload: str) -> timedelta:
        """Time until the next refit; a forecast that wants history is tried again soon, for it may be imported."""
        failed, period_s = self._failed[workload], self._settings.forecast_period_s
        if failed:
            return timedelta(seconds=period_s * min(2 ** (failed - 1), FAILURE_PERIODS_MAX))
        band = self.bands.get(workload)
        wants_history = band is None or band.state in {
            ForecastState.FAILED,
            ForecastState.INSUFFICIENT_HISTORY,
        }
        return timedelta(seconds=min(period_s, RETRY_S) if wants_history else period_s)

    async def _refit(self, workload: Workload, events: Sequence[Event], now: datetime) -> bool:
        """Make, store and judge a forecast; False without any history."""
        step, name = self._settings.forecast_step, workload.name
        # Only whole buckets: a half-filled last one would read as a fall in demand.
        end_at = _floor(now, step)
        judged = await self._record(name, now)
        async with self._store.unit_of_work() as uow:
            span = await uow.traffic.span(name)
            if span is None:
                return False
            window = timedelta(seconds=self._settings.history_window_s)
            start_at = _floor(max(span[0], end_at - window), step)
            history = await uow.traffic.read(name, start_at, end_at, step=step) if start_at < end_at else ()
            earlier = await uow.forecasts.as_of(name, now - timedelta(seconds=self._settings.trust_window_s))
        if not history:
            return False
        made = await self._forecaster.refit(
            history,
            step=step,
            horizon_steps=self._settings.horizon_steps,
            events=events,
            now=now,
            standing=judged.standing,
            time_zone=workload.time_zone,
        )
        async with self._store.unit_of_work() as uow:
            await uow.forecasts.save(made.run, made.band)
            if made.parts is not None:
                await uow.accuracy.put_parts(made.parts)
            await uow.commit()
        self.bands[name] = replace(made.band, qps=packed(made.band.qps))
        await self._announce(name)
        trust, sentence = Trust.UNPROVEN, ""
        if earlier is not None:
            trust, sentence = self._forecaster.verdict(earlier[1], history)
        self.trust[name] = trust
        try:
            await self._judge(judged, history, events, workload.time_zone, now, trust, sentence)
        except UnavailableError:
            raise
        except Exception:  # the forecast is made and stored; its record is tried again at the next refit
            log.exception("the record of %s could not be kept", name)
        return True

    async def _record(self, name: str, now: datetime) -> _Judged:
        found = self._judged.get(name)
        if found is None:
            async with self._store.unit_of_work() as uow:
                standing = await uow.accuracy.standing(name)
                scored_at = await uow.accuracy.scored_until(name)
            standing = standing or Standing(name)
            due = now if standing.backtest is None else standing.backtest.at + CONTEST_PERIOD
            if due <= now:
                # Spread by name, so that a fleet's backtests do not come all at once: after an import, or a long stop.
                spread = min(CONTEST_PERIOD, CONTEST_SPREAD * self._count)
                due = now + spread * (crc32(name.encode()) % 997) / 997
            found = self._judged[name] = _Judged(standing, scored_at, due)
        return found

    async def _judge(
        self,
        judged: _Judged,
        history: Sequence[tuple[datetime, float | None]],
        events: Sequence[Event],
        time_zone: str | None,
        now: datetime,
        trust: Trust,
        sentence: str,
    ) -> None:
        """Score what is over, hold a contest when one is due, and store what changed."""
        before = judged.standing
        scored = await self._score(judged, history)
        if now >= judged.contest_at:
            judged.contest_at = now + CONTEST_PERIOD
            judged.standing = await self._forecaster.contest(
                judged.standing,
                history,
                horizon_steps=min(
                    self._settings.horizon_steps,
                    max(1, timedelta(days=1) // self._settings.forecast_step),
                ),
                events=events,
                now=now,
                time_zone=time_zone,
            )
            if judged.standing.champion != before.champion:
                log.warning("forecasts of %s: %s", before.workload, judged.standing.reason)
        if scored or judged.standing is not before or trust is not before.trust:
            judged.standing = replace(judged.standing, trust=trust, trust_reason=sentence)
            async with self._store.unit_of_work() as uow:
                await uow.accuracy.put_standing(judged.standing)
                await uow.commit()

    async def _score(self, judged: _Judged, history: Sequence[tuple[datetime, float | None]]) -> bool:
        """Score every whole hour that is over and was not scored twice yet; say whether there was one."""
        step, name = self._settings.forecast_step, judged.standing.workload
        span = max(SPAN, step)
        last = _floor(history[-1][0] + step, span) - span
        if judged.scored_at is not None and judged.scored_at >= last:
            return False
        back = max(last - SCORED_BACK, _floor(history[0][0], span))
        first = back if judged.scored_at is None else max(back, judged.scored_at)
        starts = [first + span * number for number in range((last - first) // span + 1)]
        async with self._store.unit_of_work() as uow:
            moments = sorted({at - lead for at in starts for lead in LEADS})
            bands = await uow.forecasts.bands_as_of(name, moments)
        asked = [(at, lead, bands[at - lead]) for at in starts for lead in LEADS if at - lead in bands]
        hours = await self._forecaster.score(history, step, span, asked)
        if hours:
            async with self._store.unit_of_work() as uow:
                await uow.accuracy.put_scores(name, hours)
                await uow.commit()
            self.scores[name] = hours[-1]
        judged.scored_at = last
        return bool(hours)

    async def _announce(self, name: str) -> None:
        if self._signals is None:
            return
        try:
            await self._signals.publish(CHANGES, f"workloads/{name}/forecast".encode())
        except UnavailableError as error:
            log.debug("watchers will find out by polling: %s", error)
