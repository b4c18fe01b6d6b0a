"""The numbered promises of controller/adapters/demand.py, on simulated replicas read at any times.

A replica here takes arrivals, queues them, executes them in batches and answers; readings see its
counters at their own moment, some are lost, some repeated or delivered late. Times are whole
milliseconds, so that sums compare exactly enough.
"""

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.adapters.demand import DemandMeter, ReplicaMetrics
from controller.core.resources import TrafficSample

START = datetime(2026, 11, 11, 23, 57, 13, tzinfo=UTC)
LONG_AGO_MS = -1


def at(ms: int) -> datetime:
    return START + timedelta(milliseconds=ms)


@dataclass
class SimulatedReplica:
    """Each arrival waits `wait_ms`, executes for `run_ms` and is answered; every fifth is refused at once."""

    arrivals_ms: list[int]
    wait_ms: int = 40
    run_ms: int = 60
    started_ms: int = LONG_AGO_MS  # counters start here; earlier arrivals belong to an earlier process
    warmup_count: int = 5
    refuse_every: int = 5

    def read(self, ms: int) -> ReplicaMetrics:
        """Counters as a scrape at `ms` would find them."""
        success, failure, pending = self.warmup_count, 0, 0
        for number, arrival_ms in enumerate(self.arrivals_ms):
            age_ms = ms - arrival_ms
            if arrival_ms <= self.started_ms or age_ms < 0:
                continue
            if number % self.refuse_every == 0:
                failure += 1
            elif age_ms < self.wait_ms:
                pending += 1
            elif age_ms >= self.wait_ms + self.run_ms:
                success += 1
        return ReplicaMetrics(
            at=at(ms),
            success_count=success,
            failure_count=failure,
            pending_count=pending,
            queue_duration_us=1000.0 * success,
            exec_count=success,
        )


@dataclass
class Minutes:
    """What a traffic store would hold: the newest sample of each minute."""

    meter: DemandMeter = field(default_factory=lambda: DemandMeter(retention=timedelta(hours=2)))
    stored: dict[datetime, TrafficSample] = field(default_factory=dict[datetime, TrafficSample])

    def record(self, ms: int, readings: dict[str, ReplicaMetrics | None]) -> None:
        self.meter.record("w", at(ms), readings)

    def drain(self, ms: int) -> None:
        self.stored |= {sample.minute_at: sample for sample in self.meter.drain(at(ms))}

    def total(self, after_ms: int) -> float:
        """Sum of all minutes once the last one has ended."""
        self.drain(after_ms + 120_000)
        return sum(sample.demand_count for sample in self.stored.values())


HORIZON_MS = 300_000
QUIET_MS = HORIZON_MS + 1_000  # every request has been answered by then
arrivals = st.lists(st.integers(1, HORIZON_MS), max_size=60).map(sorted)
schedules = st.lists(st.integers(1, HORIZON_MS), max_size=25, unique=True).map(sorted)


@given(arrivals, schedules)
def test_1_minutes_add_up_to_what_arrived(arrivals_ms: list[int], schedule_ms: list[int]) -> None:
    replica, minutes = SimulatedReplica(arrivals_ms), Minutes()
    for ms in (0, *schedule_ms, QUIET_MS):
        minutes.record(ms, {"r": replica.read(ms)})

    assert len(arrivals_ms) == pytest.approx(minutes.total(QUIET_MS))
    served = sum(sample.served_count or 0 for sample in minutes.stored.values())
    rejected = sum(sample.rejected_count or 0 for sample in minutes.stored.values())
    assert len(arrivals_ms) == pytest.approx(served + rejected)


@given(arrivals, arrivals, schedules, st.data())
def test_1_replicas_that_come_and_go_add_up(
    first_ms: list[int], second_ms: list[int], schedule_ms: list[int], data: st.DataObject
) -> None:
    """The second joins with a baseline from before its first request; the first leaves when it is quiet."""
    joins_ms = data.draw(st.integers(0, HORIZON_MS))
    first = SimulatedReplica([ms for ms in first_ms if ms <= joins_ms])
    second = SimulatedReplica([ms for ms in second_ms if ms > joins_ms])
    baseline, minutes = second.read(joins_ms), Minutes()
    minutes.record(0, {"first": first.read(0)})
    gone_ms = joins_ms + 1_000
    for ms in sorted({*schedule_ms, gone_ms, QUIET_MS + 1_000}):
        readings = {"first": first.read(ms)} if ms <= gone_ms else {}
        if ms > joins_ms:
            readings["second"] = second.read(ms)
        minutes.meter.record("w", at(ms), readings, {"second": baseline})

    expected = len(first.arrivals_ms) + len(second.arrivals_ms)
    assert expected == pytest.approx(minutes.total(QUIET_MS + 1_000))


@given(arrivals, schedules, st.sets(st.integers(0, 24)))
def test_2_lost_readings_change_no_total(
    arrivals_ms: list[int], schedule_ms: list[int], lost: set[int]
) -> None:
    replica, minutes = SimulatedReplica(arrivals_ms), Minutes()
    minutes.record(0, {"r": replica.read(0)})
    for index, ms in enumerate(schedule_ms):
        minutes.record(ms, {"r": None if index in lost else replica.read(ms)})
    minutes.record(QUIET_MS, {"r": replica.read(QUIET_MS)})

    assert len(arrivals_ms) == pytest.approx(minutes.total(QUIET_MS))
    # The gaps were filled afterwards: only the first and the last minute were not watched in full.
    assert all(sample.coverage == pytest.approx(1) for sample in list(minutes.stored.values())[1:-1])


@given(arrivals, schedules)
def test_3_duplicate_and_late_readings_change_nothing(arrivals_ms: list[int], schedule_ms: list[int]) -> None:
    replica, clean, disturbed = SimulatedReplica(arrivals_ms), Minutes(), Minutes()
    before = replica.read(0)
    for ms in (0, *schedule_ms, QUIET_MS):
        reading = replica.read(ms)
        clean.record(ms, {"r": reading})
        for delivered in (reading, reading, before):
            disturbed.record(ms, {"r": delivered})
        before = reading

    assert clean.total(QUIET_MS) == pytest.approx(disturbed.total(QUIET_MS))
    assert disturbed.meter.reset_count == 0
    for minute_at, sample in clean.stored.items():
        assert sample.demand_count == pytest.approx(disturbed.stored[minute_at].demand_count)


@given(arrivals, schedules, st.integers(1, HORIZON_MS))
def test_4_a_restart_hides_only_what_no_reading_saw_and_invents_nothing(
    arrivals_ms: list[int], schedule_ms: list[int], restart_ms: int
) -> None:
    old = SimulatedReplica([ms for ms in arrivals_ms if ms <= restart_ms], warmup_count=7)
    new = SimulatedReplica(arrivals_ms, started_ms=restart_ms, warmup_count=0)
    minutes, last_seen_ms = Minutes(), 0
    for ms in (0, *schedule_ms, QUIET_MS):
        minutes.record(ms, {"r": old.read(ms) if ms <= restart_ms else new.read(ms)})
        last_seen_ms = ms if ms <= restart_ms else last_seen_ms

    total = minutes.total(QUIET_MS)
    executing = 100  # a request being executed at the last reading is in neither counter yet
    hidden = sum(last_seen_ms - executing < ms <= restart_ms for ms in arrivals_ms)
    assert total <= len(arrivals_ms) + 1e-6
    # A restart shows as a falling counter; one that outgrew the old counters before it was read does not.
    if minutes.meter.reset_count == 1:
        assert total >= len(arrivals_ms) - hidden - 1e-6


@given(
    st.lists(
        st.tuples(st.integers(0, 200_000), *[st.integers(0, 1000)] * 3, st.booleans()),
        min_size=1,
        max_size=30,
    )
)
def test_5_any_readings_give_finite_demand_and_coverage_within_bounds(
    raw: list[tuple[int, int, int, int, bool]],
) -> None:
    """Not even counters that jump about, clocks that step back and replicas that flap break the bounds."""
    minutes = Minutes()
    for ms, success, failure, pending, answered in raw:
        reading = ReplicaMetrics(
            at=at(ms),
            success_count=success,
            failure_count=failure,
            pending_count=pending,
            queue_duration_us=0.0,
            exec_count=success,
        )
        minutes.record(ms, {"r": reading if answered else None})
    minutes.total(400_000)

    for sample in minutes.stored.values():
        assert 0 < sample.coverage <= 1
        for count in (sample.demand_count, sample.served_count, sample.rejected_count):
            assert count is not None
            assert 0 <= count < math.inf


@given(schedules)
def test_6_a_minute_without_any_reading_is_absent(schedule_ms: list[int]) -> None:
    minutes = Minutes()
    minutes.record(0, {"r": None})
    for ms in schedule_ms:
        minutes.record(ms, {"r": None})

    assert minutes.total(QUIET_MS) == 0
    assert {} == minutes.stored
    assert minutes.meter.record("w", at(QUIET_MS), {"r": None}) is None


def test_6_a_workload_without_replicas_is_unknown_not_zero() -> None:
    minutes = Minutes()
    for ms in range(0, 180_000, 10_000):
        minutes.record(ms, {})

    assert minutes.total(QUIET_MS) == 0
    assert {} == minutes.stored


def test_6_a_minute_that_was_read_in_part_says_so() -> None:
    replica, minutes = SimulatedReplica([]), Minutes()
    # From 23:57:13 to 23:58:28: 47 seconds of the first minute, 28 of the second.
    for ms in (0, 75_000):
        minutes.record(ms, {"r": replica.read(ms)})
    minutes.total(75_000)

    assert {57: pytest.approx(47 / 60), 58: pytest.approx(28 / 60)} == {
        minute_at.minute: sample.coverage for minute_at, sample in minutes.stored.items()
    }


def test_6_a_silent_replica_of_two_halves_the_coverage() -> None:
    loud, silent, minutes = SimulatedReplica([]), SimulatedReplica([]), Minutes()
    minutes.record(0, {"loud": loud.read(0), "silent": silent.read(0)})
    for ms in range(5_000, 115_000, 5_000):
        minutes.record(ms, {"loud": loud.read(ms), "silent": None})
    minutes.total(110_000)

    second = minutes.stored[datetime(2026, 11, 11, 23, 58, tzinfo=UTC)]
    assert second.coverage == pytest.approx(0.5)


@given(schedules)
def test_7_counters_that_stand_still_are_verified_zero(schedule_ms: list[int]) -> None:
    replica, minutes = SimulatedReplica([]), Minutes()
    for ms in (0, *schedule_ms, HORIZON_MS):
        minutes.record(ms, {"r": replica.read(ms)})
    live = minutes.meter.record("w", at(QUIET_MS), {"r": replica.read(QUIET_MS)})
    minutes.total(QUIET_MS)

    assert live is not None
    assert (0.0, 1, 1) == (live.stable_qps, live.reporting_count, live.expected_count)
    assert [0.0] * 6 == [sample.demand_count for sample in minutes.stored.values()]
    assert all(sample.coverage == pytest.approx(1) for sample in list(minutes.stored.values())[1:-1])


@given(arrivals, schedules, st.sets(st.integers(0, 24)))
def test_8_draining_often_or_once_ends_with_the_same_minutes(
    arrivals_ms: list[int], schedule_ms: list[int], lost: set[int]
) -> None:
    replica, often, once = SimulatedReplica(arrivals_ms), Minutes(), Minutes()
    for index, ms in enumerate((0, *schedule_ms, QUIET_MS)):
        reading = None if index in lost else replica.read(ms)
        for minutes in (often, once):
            minutes.record(ms, {"r": reading})
        often.drain(ms)

    assert once.total(QUIET_MS) == pytest.approx(often.total(QUIET_MS))
    assert once.stored.keys() == often.stored.keys()
    for minute_at, sample in once.stored.items():
        assert sample.demand_count == pytest.approx(often.stored[minute_at].demand_count)


@given(st.integers(1, 50), st.lists(st.integers(1, 20_000), min_size=30, max_size=60))
def test_9_a_steady_rate_gives_every_covered_minute_sixty_seconds_of_it(qps: int, gaps_ms: list[int]) -> None:
    minutes, ms = Minutes(), 0
    for gap_ms in (0, *gaps_ms):
        ms += gap_ms
        count = qps * ms / 1000
        reading = ReplicaMetrics(
            at=at(ms),
            success_count=count,
            failure_count=0,
            pending_count=0,
            queue_duration_us=count,
            exec_count=count,
        )
        minutes.record(ms, {"r": reading})
    minutes.total(ms)

    samples = list(minutes.stored.values())
    assert all(sample.coverage == pytest.approx(1) for sample in samples[1:-1])
    assert all(sample.demand_count == pytest.approx(60 * qps * sample.coverage) for sample in samples)


def test_live_demand_is_that_of_the_windows_and_says_how_much_of_them_it_saw() -> None:
    """100 QPS for 30 s, then 400 QPS for 6 s."""
    meter = DemandMeter()
    live = None
    for second in range(0, 37, 2):
        count = 100 * min(second, 30) + 400 * max(0, second - 30)
        live = meter.record(
            "w",
            at(second * 1000),
            {
                "r": ReplicaMetrics(
                    at=at(second * 1000),
                    success_count=count - 8 if second else 0,
                    failure_count=0,
                    pending_count=8 if second else 0,
                    queue_duration_us=count,
                    exec_count=count,
                )
            },
        )

    assert live is not None
    # (30 x 100 + 6 x 400) / 36 s = 150; the last six seconds alone are 400.
    assert 150 == pytest.approx(live.stable_qps)
    assert 400 == pytest.approx(live.panic_qps)
    assert live.backlog_count == 8
    assert timedelta(seconds=36) == live.window


def test_windows_of_a_workload_come_before_the_defaults() -> None:
    meter = DemandMeter()
    meter.windows["w"] = (timedelta(minutes=5), timedelta(seconds=20))
    live = None
    for second in range(0, 301, 10):
        count = 100 * max(0, second - 290)
        reading = ReplicaMetrics(
            at=at(second * 1000),
            success_count=count,
            failure_count=0,
            pending_count=0,
            queue_duration_us=count,
            exec_count=count,
        )
        live = meter.record("w", at(second * 1000), {"r": reading})

    assert live is not None
    # 1000 requests in the last ten seconds: over five minutes, and over twenty seconds.
    assert 1000 / 300 == pytest.approx(live.stable_qps)
    assert 1000 / 20 == pytest.approx(live.panic_qps)
    assert timedelta(minutes=5) == live.window


@given(st.lists(st.integers(0, 500), min_size=2, max_size=6), st.data())
def test_10_a_series_that_is_no_longer_shown_invents_no_demand(
    growths: list[int], data: st.DataObject
) -> None:
    # The sums of a page fall with a model that is unloaded or a GPU that is gone, by more than what arrived meanwhile.
    meter, shown = DemandMeter(), {"a": 100_000, "b": 5_000, "c": 0}
    gone_at = data.draw(st.integers(1, len(growths)))
    for number in range(len(growths) + 1):
        if number:
            shown["a"] += growths[number - 1]
        if number == gone_at:
            del shown["b"]
        reading = ReplicaMetrics(
            at=at(number * 1000),
            success_count=sum(shown.values()),
            failure_count=0,
            pending_count=0,
            queue_duration_us=sum(shown.values()),
            exec_count=sum(shown.values()),
            series=frozenset(shown),
        )
        meter.record("w", at(number * 1000), {"r": reading})

    counted = sum(sample.demand_count for sample in meter.drain(at(120_000)))
    assert sum(growths) - growths[gone_at - 1] == pytest.approx(counted)
    assert 0 == meter.reset_count


def test_a_silent_replica_is_counted_as_expected_and_not_as_reporting() -> None:
    meter, replica = DemandMeter(), SimulatedReplica([])
    meter.record("w", at(0), {"a": replica.read(0), "b": replica.read(0)})

    live = meter.record("w", at(2_000), {"a": replica.read(2_000), "b": None})

    assert live is not None
    assert (1, 2) == (live.reporting_count, live.expected_count)


def test_requests_older_than_the_retained_time_are_counted_as_forgotten() -> None:
    meter = DemandMeter(retention=timedelta(minutes=10))
    replica = SimulatedReplica(list(range(1, 60 * 60_000, 6_000)), wait_ms=0, run_ms=0)
    meter.record("w", at(0), {"r": replica.read(0)})
    for ms in range(60_000, 60 * 60_000, 60_000):
        meter.record("w", at(ms), {"r": None})
    meter.record("w", at(60 * 60_000), {"r": replica.read(60 * 60_000)})

    kept = sum(sample.demand_count for sample in meter.drain(at(70 * 60_000)))
    assert 600 == pytest.approx(kept + meter.forgotten_count)
    assert 100 == pytest.approx(kept, abs=11)


def test_windows_that_do_not_nest_are_refused() -> None:
    with pytest.raises(ValueError, match="each must be positive and at most the next"):
        DemandMeter(stable_window=timedelta(seconds=5))
