"""Run the loop: lead or follow, each job at its own cadence, and stop cleanly.

Promises: a job that fails is logged and tried again at its next turn, with growing pauses while a dependency
is away; cancelling stops every job, and the lease is given up last. A follower does nothing but renew.
"""

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta

from controller.core.types import Workload
from controller.loop.calendar import events_by_workload
from controller.loop.control import Control
from controller.loop.forecasting import Forecasting
from controller.loop.leader import Leadership, stop_if_cancelled
from controller.loop.observe import Observer
from controller.notify.notifier import Notifier
from controller.ports import Clock, PortError, StaleFenceError
from controller.settings import Settings

log = logging.getLogger(__name__)

# A failing job waits this many periods at most before its next try, and no more than this beyond its period: what
# was away may be back any moment, and a prewarm does not wait.
BACKOFF_PERIODS_MAX = 8
BACKOFF_MAX_S = 10.0
MAINTENANCE_PERIOD_S = 3600.0
NOTIFY_PERIOD_S = 2.0
# What a leader's first tick waits for near demand, at most: ten thousand workloads take 4 s of a core. A tick without it
# follows the forecast, for most workloads higher; one that is later than this keeps orders waiting.
NEAR_WAIT_S = 10.0


class Runner:
    """The jobs of a controller process."""

    def __init__(
        self,
        leadership: Leadership,
        control: Control,
        observer: Observer,
        forecasting: Forecasting,
        clock: Clock,
        settings: Settings,
        notifier: Notifier | None = None,
        *,
        maintains: bool = True,
    ) -> None:
        """``maintains``: whether this leader drops records past their age; of several, one does."""
        self._maintains = maintains
        self._leadership, self._control, self._observer = leadership, control, observer
        self._notifier = notifier
        self._forecasting, self._clock, self._settings = forecasting, clock, settings
        self._loaded_for: int | None = None
        self._loading = asyncio.Lock()  # ticks and refits both begin with it
        self._settled_for: int | None = None
        self.last_tick_at: datetime | None = None
        self.failure_count = 0
        # Of each job of this process: when its last turn ended (monotonic seconds), and failed turns; for metrics.
        self.turns_s: dict[str, float] = {}
        self.durations_s: dict[str, float] = {}
        self.failures: Counter[str] = Counter()

    async def run(self) -> None:
        """Run until cancelled; the jobs end before the lease is given up."""
        lease = asyncio.create_task(self._leadership.run(), name="lease")
        try:
            await self._work(lease)
        finally:
            lease.cancel()
            await asyncio.wait([lease])

    async def _work(self, lease: asyncio.Task[None]) -> None:
        async def held() -> None:
            await asyncio.shield(lease)  # a defect in it ends the jobs

        async with asyncio.TaskGroup() as group:
            group.create_task(held())
            # A new leader begins at once: its predecessor's last turn may be two leases old.
            group.create_task(
                self._every(self._settings.scrape_period_s, self.scrape, at_once=True), name="scrape"
            )
            group.create_task(self._every(self._settings.tick_period_s, self.tick, at_once=True), name="tick")
            # Looks often, refits only what is due: a new event gets its forecast at the next look.
            look_s = min(self._settings.forecast_period_s, max(self._settings.tick_period_s, 1.0))
            group.create_task(self._every(look_s, self.forecast), name="forecast")
            # Jobs of their own: neither fits nor calibrations may keep a new minute from being seen.
            group.create_task(self._every(self._settings.tick_period_s, self.near), name="near")
            group.create_task(self._every(look_s, self.calibrate), name="calibrate")
            group.create_task(self._every(MAINTENANCE_PERIOD_S, self.maintain), name="maintain")
            if self._notifier is not None:
                group.create_task(self._every(NOTIFY_PERIOD_S, self.notify), name="notify")

    def turn_ages_s(self) -> dict[str, float]:
        """Seconds since each job's last turn ended."""
        now_s = self._clock.monotonic()
        return {job: now_s - ended_s for job, ended_s in dict(self.turns_s).items()}

    async def _every(
        self, period_s: float, job: Callable[[], Awaitable[None]], *, at_once: bool = False
    ) -> None:
        """Run a job for ever. ``at_once``: also as soon as this process leads."""
        failures = 0
        while True:
            won = self._leadership.won
            started_s = self._clock.monotonic()
            try:
                await job()
                failures = 0
            except StaleFenceError as error:
                log.warning("leadership is gone: %s", error)
                self._leadership.lost()
            except PortError as error:
                failures += 1
                log.warning("%s will be tried again: %s", job.__name__, error)
            except Exception:  # the loop must outlive any defect of one turn; it is logged and counted
                failures += 1
                log.exception("%s failed", job.__name__)
            stop_if_cancelled()
            self.failure_count += bool(failures)
            self.failures[job.__name__] += bool(failures)
            ended_s = self._clock.monotonic()
            self.turns_s[job.__name__], self.durations_s[job.__name__] = ended_s, ended_s - started_s
            pause_s = min(period_s * min(BACKOFF_PERIODS_MAX, 1 + failures), period_s + BACKOFF_MAX_S)
            pause_s = max(pause_s - (self._clock.monotonic() - started_s), 0.0)
            await (self._sleep_until(won, pause_s) if at_once else self._clock.sleep(pause_s))

    async def _sleep_until(self, won: asyncio.Event, seconds: float) -> None:
        waits = [asyncio.ensure_future(w) for w in (self._clock.sleep(seconds), won.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def scrape(self) -> None:
        """Observe demand, if this process leads."""
        if self._leadership.token is not None:
            await self._observer.scrape(await self._control.workloads())

    async def forecast(self) -> None:
        """Refit due forecasts, if this process leads."""
        if self._leadership.token is None:
            return
        now = self._clock.now()
        # Past events too: the forecaster learns from them, and keeps them out of the ordinary season.
        back = timedelta(seconds=self._settings.history_window_s)
        workloads, known = await self._control.calendar(now, back)
        await self._load_once(workloads)
        events = events_by_workload(
            known,
            now - back,
            now + timedelta(seconds=self._settings.forecast_horizon_s),
            self._settings.occurrences_max,
        )
        await self._forecasting.refresh(workloads, events)

    async def near(self) -> None:
        """Renew near demand of the newest tick's workloads, if this process leads."""
        forecasting, token = self._forecasting, self._leadership.token
        # Before its first tick a leader knows no workloads here, and would forget what it has just loaded.
        if token is not None and self._settled_for == token:
            await forecasting.near.refresh(self._control.leads, forecasting.bands, forecasting.trust)

    async def calibrate(self) -> None:
        """Measure due near demand anew, if this process leads."""
        token = self._leadership.token
        if token is not None:
            await self._forecasting.near.calibrate(
                self._control.leads, lambda: self._leadership.token == token
            )

    async def notify(self) -> None:
        """Deliver notifications that are due, if this process leads."""
        token = self._leadership.token
        if self._notifier is not None and token is not None:
            await self._notifier.turn(token)

    async def maintain(self) -> None:
        """Drop records past their age, if this process leads."""
        if self._maintains and self._leadership.token is not None:
            await self._control.maintain()

    async def tick(self) -> None:
        """Decide and act, if this process leads."""
        async with self._leadership.turn:
            await self._tick(self._leadership.token)

    async def _tick(self, token: int | None) -> None:
        if token is None:
            self._loaded_for = None
            return
        await self._load_once()
        await self._control.tick(token, lambda: self._leadership.token == token)
        self.last_tick_at = self._clock.now()
        if self._settled_for != token:
            # What a leader loaded it keeps: looking through it for garbage, again and again, costs as much as deciding.
            gc.freeze()
            self._settled_for = token

    async def _load_once(self, workloads: Sequence[Workload] | None = None) -> None:
        async with self._loading:
            token = self._leadership.token
            if self._loaded_for == token:
                return
            known = await self._control.workloads() if workloads is None else workloads
            forecasting = self._forecasting
            await forecasting.load(known)
            forecasting.near.forget()
            names = [workload.name for workload in known]
            await forecasting.near.refresh(names, forecasting.bands, forecasting.trust, first_s=NEAR_WAIT_S)
            self._loaded_for = token
