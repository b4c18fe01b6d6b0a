"""The compressed world is consistent: what the core computes is what the requests really see."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from controller.adapters.clock import VirtualClock
from controller.core.capacity import required_replicas
from controller.core.resources import TrafficSample
from controller.core.types import CapacityProfile, DemandObservation, Slo
from controller.demo import world as w
from controller.demo.clock import SLEEP_MIN_S, ScaledClock
from controller.demo.series import DemoSeries
from controller.demo.world import StoryMeter, World
from controller.ports import PoolView

START = datetime(2026, 11, 26, 6, tzinfo=UTC)


@pytest.fixture
def world() -> World:
    minutes = 20 * 60
    series = DemoSeries(
        "made up", START - timedelta(hours=7), START, w.WINDOW, np.full(minutes, 8_000.0), 0, 1.0
    )
    return World(series, 65.0)


def test_the_event_peaks_at_its_promise_and_the_day_goes_on_around_it(world: World) -> None:
    demand = world.demand(0.1)
    start_s, end_s = world.event_s
    times = np.arange(len(demand)) * 0.1 + 0.05

    assert w.PEAK_QPS == demand.max()
    assert {8_000.0} == set(demand[(times < start_s) | (times >= end_s)].tolist())


def test_the_event_starts_on_a_whole_demo_minute(world: World) -> None:
    event = world.event()

    assert 0 == event.start_time.seconds % 60
    assert START + timedelta(hours=6) == event.start_time.ToDatetime(UTC)
    assert w.PEAK_QPS == event.expected_peak_qps


def test_the_story_needs_as_many_replicas_as_the_requests_really_sent(world: World) -> None:
    """The queueing formula on the story's figures gives what it gives on the wall's, at any rate."""
    story = world.workload()
    told = CapacityProfile(
        "e",
        "g",
        story.profiles[0].qps_max,
        1,
        story.profiles[0].batch_size_max,
        story.profiles[0].service_scv,
    )
    real = CapacityProfile("e", "g", w.REPLICA_RPS, 1, w.BATCH_MAX, 0.1)

    for rps in (1.0, 20.0, 40.0, 100.0, 175.0, 300.0):
        assert required_replicas(rps, real, Slo(w.QUEUE_WAIT_S, 0.001), 1.0) == required_replicas(
            rps * w.STORY_WEIGHT, told, Slo(story.slo.wait_s, 0.001), story.policy.arrival_scv
        )


class _Meter:
    """Sees 40 requests per wall second at a speed of 720, and 12 waiting."""

    async def scrape(self, views: Mapping[str, PoolView]) -> Mapping[str, DemandObservation]:
        window = timedelta(minutes=20)
        return {"r": DemandObservation(START, 40.0 / 720.0, None, 12.0, 1, 1, window)}

    def drain_samples(self) -> Sequence[TrafficSample]:
        return [
            TrafficSample("r", START - timedelta(minutes=1), 0.0),
            TrafficSample("r", START, 40.0 * 60 / 720.0, served_count=1.0),
        ]


async def test_rates_become_the_storys_and_backlog_stays_a_number_of_requests() -> None:
    meter = StoryMeter(_Meter(), speed=720.0, starts_at=START)
    seen = (await meter.scrape({}))["r"]

    assert seen.stable_qps == pytest.approx(40.0 * w.STORY_WEIGHT)
    assert seen.panic_qps is None
    assert 12.0 * w.STORY_WEIGHT == seen.backlog_count


def test_idle_minutes_before_the_load_are_no_history() -> None:
    samples = StoryMeter(_Meter(), speed=720.0, starts_at=START).drain_samples()

    assert [START] == [sample.minute_at for sample in samples]
    assert samples[0].demand_count == pytest.approx(40.0 * 60 * w.STORY_WEIGHT)


async def test_demo_time_runs_ahead_of_the_wall_and_can_skip_forward_only() -> None:
    wall = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
    clock = ScaledClock(wall, speed=60.0, start_at=START)
    await wall.advance(2.0)
    assert START + timedelta(minutes=2) == clock.now()

    clock.skip_to(START + timedelta(hours=1))

    assert START + timedelta(hours=1) == clock.now()
    with pytest.raises(ValueError, match="only moves forward"):
        clock.skip_to(START)


async def test_a_poll_of_a_demo_second_does_not_spin() -> None:
    slept: list[float] = []

    class Wall(VirtualClock):
        async def sleep(self, seconds: float) -> None:
            slept.append(seconds)

    clock = ScaledClock(Wall(datetime(2026, 1, 1, tzinfo=UTC)), speed=600.0, start_at=START)
    await clock.sleep(0.05)
    await clock.sleep(600.0)

    assert [SLEEP_MIN_S, 1.0] == slept
