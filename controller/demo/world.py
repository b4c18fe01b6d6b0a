"""The demo's world: what is compressed, by how much, and every number that follows from it.

Promises: one place for the demo's constants; the core sees a consistent world, in which a wall second is
``speed`` demo seconds and a request sent stands for ``STORY_WEIGHT`` requests of the story; every sentence
about what is simulated is written here, next to the number it is about. Called by ``run``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
from forecrest.v1 import event_pb2, workload_pb2
from numpy.typing import NDArray

from controller.adapters.demand import DemandMeter
from controller.adapters.triton_metrics import TritonDemandMeter
from controller.core.resources import TrafficSample
from controller.core.types import DemandObservation
from controller.demo.series import DemoSeries
from controller.ports import DemandMeterPort, PoolView

WORKLOAD, MODEL, VERSION, EVENT = "recommender", "recommender", "1", "launch"

BASE_QPS, PEAK_QPS = 8_000.0, 35_000.0  # of the story
STORY_WEIGHT = 200  # requests of the story per request really sent
EVENT_SHARE = (6 / 13, 10 / 13)  # of the window: 12:00 to 16:00 of 06:00 to 19:00
WINDOW = timedelta(hours=13)

# One replica: batches of up to BATCH_MAX occupy the simulated device this long.
BATCH_MAX = 4
BATCH_MS, REQUEST_MS = 20.0, 12.5
REPLICA_RPS = 1000.0 * BATCH_MAX / (BATCH_MS + BATCH_MAX * REQUEST_MS)
# Clumps of STORY_WEIGHT have that squared coefficient of variation, but the API takes 100 at most. The queueing
# formula uses arrival_scv / batch + service_scv, so the rest is put into the second term: 1/4 + 0.1 in all.
ARRIVAL_SCV = min(100.0, float(STORY_WEIGHT))
SERVICE_SCV = 0.1 + (STORY_WEIGHT - ARRIVAL_SCV) / (STORY_WEIGHT * BATCH_MAX)
REPLICAS_MIN, REPLICAS_MAX = 1, 8

SLO_MS = 300.0
QUEUE_WAIT_S = 0.15  # what of it a request may spend waiting for the device
TIMEOUT_S = 2.0

# Wall seconds. PROVISIONING stands for what a cluster adds: a GPU node, an image.
PROVISIONING_S = 6.0
LEAD_S = 20.0
MARGIN_S = 3.0
TICK_S, SCRAPE_S, REFIT_S = 1.0, 0.5, 6.0
STABLE_S, PANIC_S, DRAIN_S, STABILIZE_S = 2.0, 1.0, 4.0, 5.0
# Demo seconds: the widest bucket of which the window holds at least so many.
FORECAST_STEPS_S, STEPS_MIN = (900.0, 300.0, 60.0), 40


@dataclass(frozen=True, slots=True)
class World:
    """One demo's series on its faster clock."""

    series: DemoSeries
    seconds: float  # wall seconds of load

    @property
    def speed(self) -> float:
        """Demo seconds per wall second."""
        return self.series.window.total_seconds() / self.seconds

    def demo_time(self, wall_s: float) -> timedelta:
        """Return wall seconds as demo time."""
        return timedelta(seconds=round(wall_s * self.speed, 3))

    @property
    def event_s(self) -> tuple[float, float]:
        """Start and end of the event, wall seconds after the load's start, on whole demo minutes."""
        start, end = (
            (self.series.window * share) // timedelta(minutes=1) * timedelta(minutes=1)
            for share in EVENT_SHARE
        )
        return start.total_seconds() / self.speed, end.total_seconds() / self.speed

    def at(self, wall_s: float) -> datetime:
        """Return the demo time of a wall second of the load."""
        return self.series.replay_at + timedelta(seconds=wall_s * self.speed)

    @property
    def forecast_step_s(self) -> float:
        """Width of a forecast bucket, demo seconds."""
        fitting = self.series.window.total_seconds() / STEPS_MIN
        return next((step for step in FORECAST_STEPS_S if step <= fitting), FORECAST_STEPS_S[-1])

    @property
    def windows(self) -> tuple[timedelta, timedelta]:
        """Stable and panic window, within what the API allows."""
        seconds = (min(max(wall_s * self.speed, 10.0), 3600.0) for wall_s in (STABLE_S, PANIC_S))
        stable, panic = (timedelta(seconds=round(s, 3)) for s in seconds)
        return stable, panic

    def demand(self, step_s: float) -> NDArray[np.float64]:
        """Return story QPS per ``step_s`` wall seconds: the replayed day, with the event on top of it."""
        times = np.arange(0.0, self.seconds, step_s) + step_s / 2
        organic = self.series.replayed
        minutes = (np.arange(len(organic)) + 0.5) * 60.0 / self.speed
        qps = np.interp(times, minutes, organic)
        start_s, end_s = self.event_s
        inside = (times >= start_s) & (times < end_s)
        if inside.any():
            # The day's own movement goes on inside the event; its highest point is the promised peak.
            top = float(qps[inside].max())
            qps = np.where(inside, qps * (PEAK_QPS / top) if top > 0 else PEAK_QPS, qps)
        return np.asarray(qps)

    def workload(self) -> workload_pb2.Workload:
        """Return the workload to register.

        The queueing formula sees batches of the story: STORY_WEIGHT requests arrive as one clump and are served
        as one, so that waits come out as those of the requests really sent.
        """
        made = workload_pb2.Workload(
            model_name=MODEL, model_version=VERSION, min_replicas=REPLICAS_MIN, max_replicas=REPLICAS_MAX
        )
        made.profiles.add(
            engine="two_tower (ONNX, simulated device)",
            gpu_type="simulated",
            qps_max=REPLICA_RPS * STORY_WEIGHT,
            batch_size_max=BATCH_MAX * STORY_WEIGHT,
            service_scv=SERVICE_SCV,
            gpus_per_replica=1,
        )
        made.slo.wait_s = QUEUE_WAIT_S
        made.slo.wait_exceed_share = 0.001
        made.slo.latency_ms_p99 = SLO_MS * self.speed  # probes are timed on the demo's clock
        made.target.update(
            batch_size_max=str(BATCH_MAX),
            queue_delay_us="1000",
            simulated_device_time_ms=str(BATCH_MS),
            simulated_device_time_ms_per_request=str(REQUEST_MS),
        )
        policy = made.policy
        # Nine to one: the forecast's P90 is provisioned for. A wider guess at the peak would fill this machine.
        policy.cost_under_per_hour, policy.cost_over_per_hour = 9.0, 1.0
        policy.arrival_scv = ARRIVAL_SCV
        stable, panic = self.windows
        policy.stable_window.FromTimedelta(stable)
        policy.panic_window.FromTimedelta(panic)
        for field, wall_s, lowest_s, highest_s in (
            ("signal_age_max", 3 * TICK_S, 1, 3600),
            ("forecast_age_max", 10 * REFIT_S, 60, 7 * 86_400),
            ("prewarm_margin", MARGIN_S, 0, 86_400),
            ("order_timeout", 60.0, 10, 86_400),
            ("fizzle_after", 15.0, 60, 86_400),
            ("fizzle_half_life", 10.0, 10, 86_400),
            ("hold_max", 600.0, 0, 7 * 86_400),
        ):
            seconds = min(max(wall_s * self.speed, lowest_s), highest_s)
            getattr(policy, field).FromMilliseconds(round(seconds * 1000))
        # Not in demo time: the meter leaves backlog in requests, and this makes a rate per wall second of it.
        policy.drain_target.FromMilliseconds(round(DRAIN_S * 1000))
        down_s = min(STABILIZE_S * self.speed, 3600)
        policy.behavior.scale_up.stabilization_window.FromMilliseconds(0)
        policy.behavior.scale_down.stabilization_window.FromMilliseconds(round(down_s * 1000))
        return made

    def event(self) -> event_pb2.Event:
        """Return the event to register."""
        start_s, end_s = self.event_s
        made = event_pb2.Event(
            display_name="Product launch",
            workloads=[f"workloads/{WORKLOAD}"],
            time_zone="UTC",
            expected_peak_qps=PEAK_QPS,
            category="launch",
        )
        made.start_time.FromDatetime(self.at(start_s))
        made.end_time.FromDatetime(self.at(end_s))
        made.lead_override.FromTimedelta(min(self.demo_time(LEAD_S), timedelta(days=2)))
        return made

    def wrap(self, meter: DemandMeterPort) -> DemandMeterPort:
        """Return the demand meter in the story's units."""
        if isinstance(meter, TritonDemandMeter):
            stable, panic = self.windows
            meter.meter = DemandMeter(
                stable_window=stable, panic_window=panic, retention=max(10 * stable, timedelta(hours=1))
            )
        return StoryMeter(meter, speed=self.speed, starts_at=self.series.replay_at)


class StoryMeter:
    """A demand meter in the story's units: each request really sent stands for STORY_WEIGHT.

    A rate per demo second is ``speed`` times smaller than per wall second, so counts that become rates are
    multiplied by ``speed`` besides; a backlog stays a number of requests. Minutes before the load are dropped:
    the replicas stood idle then, which the story's traffic did not.
    """

    def __init__(self, meter: DemandMeterPort, *, speed: float, starts_at: datetime) -> None:
        self._meter, self._weight, self._starts_at = meter, STORY_WEIGHT * speed, starts_at

    def set_windows(self, workload: str, stable: timedelta, panic: timedelta) -> None:
        """Windows are demo time on both sides."""
        self._meter.set_windows(workload, stable, panic)

    async def scrape(self, views: Mapping[str, PoolView]) -> Mapping[str, DemandObservation]:
        """Scrape, in the story's units."""
        observed = await self._meter.scrape(views)
        return {
            name: replace(
                o,
                stable_qps=o.stable_qps * self._weight,
                panic_qps=None if o.panic_qps is None else o.panic_qps * self._weight,
                backlog_count=o.backlog_count * STORY_WEIGHT,
            )
            for name, o in observed.items()
        }

    def drain_samples(self) -> Sequence[TrafficSample]:
        """Completed minutes, in the story's units."""
        return [
            replace(
                sample,
                demand_count=sample.demand_count * self._weight,
                served_count=None if sample.served_count is None else sample.served_count * self._weight,
                rejected_count=None
                if sample.rejected_count is None
                else sample.rejected_count * self._weight,
            )
            for sample in self._meter.drain_samples()
            if sample.minute_at >= self._starts_at
        ]
