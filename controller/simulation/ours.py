"""Forecrest in the simulator: the production core and the production forecaster, never copies of them.

``Foresight`` is what the forecasting side of the controller would have known at each tick: hourly refits, a
correction by the newest observations every bucket, and the near quantiles of the highest demand within one
cold start. It does not depend on what a policy does, so one instance serves a whole sweep of safety settings.

Promises: nothing a tick sees lies after it. Called by the harness through ``registry``.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from math import exp, isfinite

import numpy as np
import pandas as pd

from controller.core.leadtime import LeadTime
from controller.core.planner import explained, is_sized
from controller.core.tick import on_tick
from controller.core.types import (
    CapacityProfile,
    DemandObservation,
    Event,
    FleetState,
    NearDemand,
    Policy,
    Replica,
    Slo,
    Stage,
    TickInput,
    Workload,
    WorkloadInput,
    WorkloadState,
)
from controller.simulation.cluster import ClusterModel, SimReplica
from controller.simulation.harness import Observation
from controller.simulation.trace import Floats, Trace, TraceEvent
from forecaster import Event as KnownEvent
from forecaster import Forecast, ForecastInputError, forecast
from forecaster.nearcast import Nearcast, Newest, calibrate, recent
from forecaster.nowcast import nowcast

LEVELS = (
    *(0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9998),
    *(0.99995, 0.99999, 0.999997),
)
REFIT_S = 3600.0
CALIBRATE_S = 3600
HISTORY_POINTS_MAX = 45_000
RECENT_S = 1440  # observations that correct a refit
MEMORY_S = 480
TICK_S = 60
NAME = "simulated"


class Foresight:
    """What was known at each moment of one trace. Lazy, in order, and kept."""

    def __init__(
        self,
        trace: Trace,
        events: Sequence[TraceEvent],
        lead_s: float,
        *,
        refit_s: float = REFIT_S,
        time_zone: str | None = None,
    ) -> None:
        self.trace, self.lead_s, self._time_zone = trace, lead_s, time_zone
        self.lead_steps = max(1, round(lead_s / trace.step_s))
        self._events = [
            KnownEvent(
                start=e.start_at,
                end=e.end_at,
                category=e.category,
                expected_multiplier=e.expected_multiplier,
                expected_peak=e.expected_peak_qps,
            )
            for e in events
        ]
        count = len(trace.qps)
        self._steps = max(1, CALIBRATE_S // trace.step_s)  # between two calibrations
        self._every = max(1, round(refit_s / CALIBRATE_S))  # calibrations to a refit
        self._result: tuple[int, Forecast] | None = None
        self._expected = np.full(count, np.nan)
        # Causal: each entry knows the past only.
        self._ordinary = trace.qps.copy()
        step = timedelta(seconds=trace.step_s)
        for places in explained(sized_events(events), trace.start_at, step, count):
            self._ordinary[places] = np.nan
        self._recent = recent(trace.qps, trace.step_s)
        self._index = pd.date_range(trace.start_at, periods=count, freq=pd.Timedelta(seconds=trace.step_s))
        self._fits: list[Nearcast | None] = []
        # Where ticks fall inside of steps, as on coarse ones, the step's demand is known already.
        self._within: list[Nearcast | None] = []
        self._rows: list[Floats] = []
        self._near: dict[float, tuple[float, ...] | None] = {}

    def near(self, now_s: float, last_qps: float | None) -> tuple[float, ...] | None:
        """Return quantiles at ``LEVELS`` of the highest demand from ``now_s`` until an order of now is warm.

        ``last_qps`` None: nothing was observed lately; the same time on earlier days still says something.
        """
        if now_s not in self._near:
            self._near[now_s] = self._compute(now_s, last_qps)
        return self._near[now_s]

    def _compute(self, now_s: float, last_qps: float | None) -> tuple[float, ...] | None:
        place = int(now_s // self.trace.step_s)
        if not 0 < place < len(self.trace.qps):
            return None
        number = place // self._steps
        while len(self._fits) <= number:
            self._refit(len(self._fits) * self._steps)
        inside = now_s % self.trace.step_s != 0 and last_qps is not None
        fit = (self._within if inside else self._fits)[number]
        if fit is None:
            return None
        age = place - number * self._steps
        if inside:
            known = self._known(place + 1, place + 2)[:, 0]
            known[-1] = self._expected[place]
            values = fit.quantiles(age, Newest(*known.tolist()))
        else:
            values = self._rows[number][age]
        return tuple(values.tolist()) if bool(np.isfinite(values).all()) else None

    def _refit(self, origin: int) -> None:
        """Fit on everything before ``origin`` and correct it for each step until the next refit."""
        if origin >= 3 * self._steps:
            if self._result is None or len(self._fits) % self._every == 0:
                result = self._forecast(origin)
                self._result = None if result is None else (origin, result)
            self._correct(origin)
        fit = self._calibrate(origin, within=False)
        self._fits.append(fit)
        self._within.append(self._calibrate(origin, within=True) if TICK_S % self.trace.step_s else None)
        last = min(origin + self._steps, len(self.trace.qps))
        self._rows.append(np.zeros((0, len(LEVELS))) if fit is None else fit.rows(self._known(origin, last)))

    def _calibrate(self, origin: int, *, within: bool) -> Nearcast | None:
        return calibrate(
            self._ordinary[:origin],
            self._expected[:origin],
            step_s=self.trace.step_s,
            lead_steps=self.lead_steps,
            levels=LEVELS,
            valid_steps=self._steps,
            within=within,
        )

    def _known(self, first: int, last: int) -> Floats:
        """Return `[5, T]`: what is known at the start of each of the steps `first` to `last`."""
        before = slice(first - 1, last - 1)
        expected = self._expected[first:last]
        rows = np.full((5, last - first), np.nan)
        rows[:4] = self._recent[:, before]
        rows[4, : len(expected)] = expected
        return rows

    def _forecast(self, origin: int) -> Forecast | None:
        low = max(0, origin - HISTORY_POINTS_MAX)
        history = pd.Series(self.trace.qps[low:origin], index=self._index[low:origin])
        horizon = self._every * self._steps + self.lead_steps + 1
        try:
            return forecast(
                history,
                horizon,
                (0.5,),
                self._events,
                step=timedelta(seconds=self.trace.step_s),
                time_zone=self._time_zone,
            )
        except ForecastInputError:
            return None  # a stretch it refuses (all unknown) is a stretch without a forecast

    def _correct(self, origin: int) -> None:
        """Correct the newest refit by what came after it, for each step until the next calibration."""
        if self._result is None:
            return
        fitted, result = self._result
        last = min(origin + self._steps, len(self.trace.qps))
        ahead, recent = self.lead_steps + 1, max(2, RECENT_S // self.trace.step_s)
        if last - fitted + self.lead_steps > len(result.median):
            return  # it no longer reaches so far
        places = np.arange(origin, last)
        coming = np.lib.stride_tricks.sliding_window_view(result.median, ahead)[places - fitted]
        seen, said = np.full((len(places), recent), np.nan), np.full((len(places), recent), np.nan)
        for row, place in enumerate(range(origin, last)):
            count = min(recent, place - fitted)
            if count:
                seen[row, recent - count :] = self.trace.qps[place - count : place]
                said[row, recent - count :] = result.median[place - fitted - count : place - fitted]
        corrected = nowcast(
            coming[:, :, None],
            seen,
            said,
            gain=0.9,
            half_life_steps=result.correction_half_life.total_seconds() / self.trace.step_s,
            memory_steps=max(1.0, MEMORY_S / self.trace.step_s),
        )
        self._expected[origin:last] = corrected[:, :, 0].max(axis=1)


class Forecrest:
    """The production ``on_tick`` with the production forecaster."""

    name = "forecrest"
    period_s = TICK_S

    def __init__(
        self,
        quantile: float | None = None,
        policy: Policy | None = None,
        foresight: Foresight | None = None,
        min_replicas: int = 0,
    ) -> None:
        if quantile is not None and not 0 < quantile < 1:
            raise ValueError(f"quantile: {quantile} lies outside (0, 1).")
        self.quantile, self.min_replicas = quantile, min_replicas
        self._policy, self._given = policy or Policy(), foresight
        self._foresight: Foresight | None = None
        self._state = FleetState()
        self._workload = Workload(NAME, NAME, ())
        self._lead = LeadTime(60.0)
        self._replicas: dict[int, Replica] = {}
        self._events: tuple[Event, ...] = ()
        self._trace: Trace | None = None

    def prepare(self, trace: Trace, events: Sequence[TraceEvent], model: ClusterModel) -> None:
        """Register the workload and its events; nothing is known of demand yet."""
        spread = exp(1.645 * model.cold_start_spread)  # P95 of the cluster's own distribution
        self._lead = LeadTime(
            model.cold_start_s * spread,
            per_extra_replica_s=model.cold_start_s * spread * model.batch_slowdown,
        )
        workload = workload_for(model, self._policy, self.quantile)
        self._workload = replace(workload, min_replicas=max(self.min_replicas, workload.min_replicas))
        self._state = FleetState()
        self._replicas = {}
        self._trace = trace
        given = self._given
        fits = given is not None and given.trace is trace and given.lead_s == self._lead.total_p95_s
        self._foresight = given if fits else Foresight(trace, events, self._lead.total_p95_s)
        self._events = sized_events(events)

    def desired(self, now_s: float, observation: Observation) -> int:
        """Run one production tick."""
        trace = self._trace
        if trace is None:
            raise RuntimeError("prepare() comes before desired().")
        now = trace.start_at + timedelta(seconds=now_s)
        if not self._state.workloads:
            held = WorkloadState(desired_replicas=observation.desired)
            self._state = FleetState({NAME: held})
        demand = None
        if observation.stable_qps is not None:
            demand = DemandObservation(
                at=now,
                stable_qps=observation.stable_qps,
                panic_qps=observation.recent_qps,
                backlog_count=observation.backlog,
                reporting_count=len(observation.warm),
                expected_count=len(observation.warm),
                window=timedelta(hours=1),
            )
        seen = WorkloadInput(
            workload=self._workload,
            replicas=self._observed(trace, observation),
            observed_desired=observation.desired,
            demand=demand,
            near=self._near(now_s, observation),
            events=self._events,
            lead=self._lead,
        )
        self._state, _ = on_tick(self._state, TickInput(now, (seen,)))
        wanted = self._state.workloads[NAME].desired_replicas
        return observation.desired if wanted is None else wanted

    def _near(self, now_s: float, observation: Observation) -> NearDemand | None:
        foresight, trace = self._foresight, self._trace
        if foresight is None or trace is None:
            return None
        qps = foresight.near(now_s, observation.stable_qps)
        if qps is None:
            return None
        now = trace.start_at + timedelta(seconds=now_s)
        return NearDemand(now, timedelta(seconds=foresight.lead_s), LEVELS, qps)

    def _observed(self, trace: Trace, observation: Observation) -> tuple[Replica, ...]:
        known = self._replicas
        result: list[Replica] = []
        for replica in observation.warm:
            made = known.get(replica.id)
            if made is None or made.stage is not Stage.VERIFIED:
                made = known[replica.id] = _replica(trace, replica, Stage.VERIFIED)
            result.append(made)
        for replica in observation.starting:
            made = known.get(replica.id)
            if made is None:
                made = known[replica.id] = _replica(trace, replica, Stage.SCHEDULED)
            result.append(made)
        return tuple(result)


class ForecrestReactive(Forecrest):
    """The same core without any forecast: what adoption starts with, and what a distrusted forecast leaves.

    ``target`` plans each replica at that share of its capacity, as the reactive peers do.
    """

    name = "forecrest-reactive"

    def __init__(self, target: float = 0.7, policy: Policy | None = None) -> None:
        super().__init__(0.99, policy)
        self.target = target

    def prepare(self, trace: Trace, events: Sequence[TraceEvent], model: ClusterModel) -> None:
        """Register the workload with derated replicas."""
        super().prepare(trace, events, model)
        self._workload = workload_for(model, self._policy, self.quantile, share=self.target)

    def _near(self, now_s: float, observation: Observation) -> NearDemand | None:
        del now_s, observation
        return None


def sized_events(events: Sequence[TraceEvent]) -> tuple[Event, ...]:
    """Return the events whose size somebody stated, as the core takes them."""
    every = (
        Event(
            id=f"event-{number}",
            start_at=e.start_at,
            end_at=e.end_at,
            expected_peak_qps=e.expected_peak_qps,
            expected_multiplier=e.expected_multiplier,
            category=e.category,
        )
        for number, e in enumerate(events)
    )
    return tuple(event for event in every if is_sized(event))


def workload_for(model: ClusterModel, policy: Policy, quantile: float | None, share: float = 1.0) -> Workload:
    """Return the workload that the cluster model is, with costs that serve ``quantile``; None keeps the policy's."""
    profile = CapacityProfile(
        engine="simulated", gpu_type="simulated", qps_max=model.queue.capacity_qps * share, service_scv=1.0
    )
    if quantile is not None:
        policy = replace(policy, cost_under_per_hour=quantile, cost_over_per_hour=1.0 - quantile)
    return Workload(
        name=NAME,
        model_name=NAME,
        profiles=(profile,),
        min_replicas=model.min_replicas,
        max_replicas=model.max_replicas,
        slo=Slo(wait_s=model.queue.slo_wait_s),
        policy=policy,
    )


def _replica(trace: Trace, replica: SimReplica, stage: Stage) -> Replica:
    ordered_at = trace.start_at + timedelta(seconds=replica.ordered_s)
    since_s = replica.ready_s if stage is Stage.VERIFIED and isfinite(replica.ready_s) else replica.ordered_s
    return Replica(
        id=f"r{replica.id}",
        stage=stage,
        ordered_at=ordered_at,
        stage_at=trace.start_at + timedelta(seconds=since_s),
    )
