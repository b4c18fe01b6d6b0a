"""A fleet in memory: replicas that take time to become warm, demand a test decides, a forecast of one value.

Called by tests of the loop and the use cases; the simulator has a model of its own.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from controller.accuracy import ENSEMBLE, Backtest, HourScore, LeadScore, Parts, Standing
from controller.actuators.fences import Fences
from controller.core.resources import ForecastRun, TrafficSample
from controller.core.types import (
    CapacityProfile,
    DemandObservation,
    Event,
    ForecastBand,
    ForecastState,
    NearDemand,
    Replica,
    Stage,
    Trust,
    Workload,
)
from controller.ports import Clock, NearAsked, NearModel, PoolView, Refit, UnavailableError

# Seconds after the order at which a replica reaches each stage.
STAGE_AT_S: Mapping[Stage, float] = {
    Stage.ORDERED: 0.0,
    Stage.SCHEDULED: 1.0,
    Stage.LOADED: 6.0,
    Stage.WARMED: 7.0,
    Stage.VERIFIED: 8.0,
}


@dataclass(frozen=True, slots=True)
class _Order:
    id: str
    at: datetime
    profile: CapacityProfile


class FakeActuator:
    """Implements `controller.ports.Actuator`. A workload it was never asked to scale has no replicas.

    `scaled` records accepted orders as (workload, replicas). Workloads in `unobservable` are missing from
    views; replicas in `stuck` never leave ORDERED.
    """

    def __init__(self, clock: Clock, stage_at_s: Mapping[Stage, float] = STAGE_AT_S) -> None:
        self.available = True
        self.scaled: list[tuple[str, int]] = []
        self.unobservable: set[str] = set()
        self.stuck: set[str] = set()
        self._clock = clock
        self._stage_at_s = stage_at_s
        self._orders: dict[str, list[_Order]] = {}
        self._fences = Fences()
        self._numbers = itertools.count(1)

    def _answer(self) -> None:
        if not self.available:
            raise UnavailableError("the fleet is away, try again")

    async def claim(
        self, workloads: Sequence[Workload], *, fence: int, others: Sequence[Workload] | None = None
    ) -> None:
        """Refuse older orders; replicas of workloads that are not among these are gone at once."""
        self._answer()
        self._fences.claim(workloads, others, fence)
        names = {workload.name for workload in (*workloads, *(others or ()))}
        self._orders = {name: orders for name, orders in self._orders.items() if name in names}

    async def observe(self, workloads: Sequence[Workload]) -> Mapping[str, PoolView]:
        """Views of the workloads that are not `unobservable`."""
        self._answer()
        return {
            workload.name: self._view(workload.name)
            for workload in workloads
            if workload.name not in self.unobservable
        }

    def _view(self, name: str) -> PoolView:
        orders = self._orders.get(name, [])
        return PoolView(
            desired_replicas=len(orders), replicas=tuple(self._replica(order) for order in orders)
        )

    def _replica(self, order: _Order) -> Replica:
        age_s = (self._clock.now() - order.at).total_seconds()
        reached = [(at_s, stage) for stage, at_s in self._stage_at_s.items() if at_s <= age_s]
        at_s, stage = (0.0, Stage.ORDERED) if order.id in self.stuck else reached[-1]
        return Replica(
            id=order.id,
            stage=stage,
            ordered_at=order.at,
            stage_at=order.at + timedelta(seconds=at_s),
            profile=order.profile,
        )

    async def scale(self, workload: Workload, replicas: int, *, fence: int) -> None:
        """Order or end replicas, the newest first. Raise StaleFenceError on a smaller fence than seen before."""
        self._answer()
        self._fences.check(workload.name, fence)
        orders = self._orders.setdefault(workload.name, [])
        while len(orders) < replicas:
            orders.append(self._order(workload))
        del orders[replicas:]
        self.scaled.append((workload.name, replicas))

    async def replace(self, workload: Workload, replica_id: str, *, fence: int) -> None:
        """End one replica and order another."""
        self._answer()
        self._fences.check(workload.name, fence)
        kept = [order for order in self._orders.get(workload.name, []) if order.id != replica_id]
        self._orders[workload.name] = [*kept, self._order(workload)]

    def _order(self, workload: Workload) -> _Order:
        return _Order(f"{workload.name}-{next(self._numbers)}", self._clock.now(), workload.profile)

    async def close(self) -> None:
        """Nothing to release."""


@dataclass
class FakeDemandMeter:
    """Implements `controller.ports.DemandMeterPort`: answers with the `demand` and `samples` a test puts in."""

    demand: dict[str, DemandObservation] = field(default_factory=dict[str, DemandObservation])
    samples: list[TrafficSample] = field(default_factory=list[TrafficSample])

    def set_windows(self, workload: str, stable: timedelta, panic: timedelta) -> None:
        """Nothing to average: a test gives averages."""

    async def scrape(self, views: Mapping[str, PoolView]) -> Mapping[str, DemandObservation]:
        """Demand of the viewed workloads that have any."""
        return {name: self.demand[name] for name in views if name in self.demand}

    def drain_samples(self) -> Sequence[TrafficSample]:
        """What was put into `samples` since the last call."""
        drained, self.samples = self.samples, []
        return drained


@dataclass
class FakeNearModel:
    """Implements `controller.ports.NearModel`: once calibrated, the last known minute at every level."""

    levels: tuple[float, ...]
    lead: timedelta | None = None

    async def calibrate(
        self,
        minutes: Sequence[tuple[datetime, float | None]],
        *,
        lead: timedelta,
        record: bytes = b"",  # noqa: ARG002 - the port passes it
    ) -> bool:
        """One known minute is enough."""
        self.lead = lead if any(qps is not None for _, qps in minutes) else None
        return self.lead is not None

    def near(
        self,
        minutes: Sequence[tuple[datetime, float | None]],
        band: ForecastBand | None,  # noqa: ARG002 - the port passes it
        *,
        trust: Trust,  # noqa: ARG002 - the port passes it
    ) -> NearDemand | None:
        """The last known minute, for the lead time calibrated for."""
        known = [(at, qps) for at, qps in minutes if qps is not None]
        if self.lead is None or not known:
            return None
        at, qps = known[-1]
        return NearDemand(at + timedelta(minutes=1), self.lead, self.levels, (qps,) * len(self.levels))

    def record(self, stored: bytes = b"") -> bytes:
        """It remembers nothing."""
        return stored

    def kept(self, record: bytes) -> None:
        """Nothing is forgotten."""

    def restore(self, record: bytes) -> None:
        """Nothing is read."""

    def calibration(self) -> bytes:
        """Nothing is measured but the lead time."""
        return b"" if self.lead is None else str(self.lead.total_seconds()).encode()

    def resume(self, calibration: bytes, now: datetime) -> tuple[datetime, timedelta] | None:
        """Go on with that, as if it had just been told."""
        self.lead = timedelta(seconds=float(calibration))
        return now, self.lead


@dataclass
class FakeForecaster:
    """Implements `controller.ports.ForecastPort`: the last known value for ever, at every level."""

    trusted: Trust = Trust.TRUSTED
    winner: str = ENSEMBLE
    levels: tuple[float, ...] = (0.1, 0.5, 0.9, 0.95, 0.99)

    async def forecast(
        self,
        workload: str,
        history: Sequence[tuple[datetime, float | None]],
        *,
        step: timedelta,
        horizon_steps: int,
        events: Sequence[Event],  # noqa: ARG002 - the port passes it
        now: datetime,
        time_zone: str | None = None,  # noqa: ARG002 - the port passes it
    ) -> tuple[ForecastRun, ForecastBand]:
        """READY with a flat band, or INSUFFICIENT_HISTORY without one."""
        known = [qps for _, qps in history if qps is not None]
        origin_at = history[-1][0] + step if history else now
        run = ForecastRun(f"{workload}@{origin_at.isoformat()}", workload, origin_at, now, horizon_steps)
        band = ForecastBand(
            id=run.id,
            origin_at=origin_at,
            start_at=origin_at,
            step=step,
            levels=self.levels,
            qps=((known[-1],) * len(self.levels),) * horizon_steps if known else (),
            state=ForecastState.READY if known else ForecastState.INSUFFICIENT_HISTORY,
        )
        return run, band

    async def refit(
        self,
        history: Sequence[tuple[datetime, float | None]],
        *,
        step: timedelta,
        horizon_steps: int,
        events: Sequence[Event],
        now: datetime,
        standing: Standing,
        time_zone: str | None = None,
    ) -> Refit:
        """The same, made of its baseline alone."""
        run, band = await self.forecast(
            standing.workload,
            history,
            step=step,
            horizon_steps=horizon_steps,
            events=events,
            now=now,
            time_zone=time_zone,
        )
        if not band.qps:
            return Refit(run, band)
        zero = (0.0,) * horizon_steps
        parts = Parts(
            run.id,
            run.workload,
            now,
            standing.champion,
            standing.reason,
            "",
            band.qps[0][0],
            zero,
            zero,
            zero,
        )
        return Refit(run, band, parts)

    async def score(
        self,
        history: Sequence[tuple[datetime, float | None]],
        step: timedelta,
        span: timedelta,
        asked: Sequence[tuple[datetime, timedelta, ForecastBand]],
    ) -> Sequence[HourScore]:
        """Every stretch that was observed, with nothing but its steps counted."""
        found: dict[datetime, list[LeadScore]] = {}
        for at, lead, _ in asked:
            count = sum(v is not None and at <= t < at + span for t, v in history)
            score = LeadScore(lead, count, 0.0, (count,) * len(self.levels), 0.0, 0.0)
            found.setdefault(at, []).append(score)
        del step
        return [HourScore(at, span, self.levels, tuple(leads)) for at, leads in found.items()]

    async def contest(
        self,
        standing: Standing,
        history: Sequence[tuple[datetime, float | None]],  # noqa: ARG002 - the port passes it
        *,
        horizon_steps: int,  # noqa: ARG002 - the port passes it
        events: Sequence[Event],  # noqa: ARG002 - the port passes it
        now: datetime,
        time_zone: str | None = None,  # noqa: ARG002 - the port passes it
    ) -> Standing:
        """Whoever a test decided, from now on, after a backtest without folds."""
        standing = replace(standing, backtest=Backtest(now, 0, timedelta(0), self.levels, ()))
        if self.winner == standing.champion:
            return standing
        return replace(standing, champion=self.winner, since_at=now, reason="a test decided")

    def verdict(
        self, band: ForecastBand, observed: Sequence[tuple[datetime, float | None]]
    ) -> tuple[Trust, str]:
        """What a test decided."""
        return self.trust(band, observed), "a test decided"

    def trust(
        self,
        band: ForecastBand,  # noqa: ARG002 - the port passes it
        observed: Sequence[tuple[datetime, float | None]],  # noqa: ARG002 - the port passes it
    ) -> Trust:
        """What a test decided."""
        return self.trusted

    def near_model(self) -> NearModel:
        """One that repeats the last minute."""
        return FakeNearModel(self.levels)

    def near_of(self, asked: Sequence[NearAsked]) -> Sequence[NearDemand | None]:
        """One after the other."""
        return [one.model.near(one.minutes, one.band, trust=one.trust) for one in asked]
