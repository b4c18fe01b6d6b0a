"""The judge's queue: known values of Erlang-C, exact fluid waits, and a discrete-event check of both."""

from random import Random

import numpy as np
import pytest

from controller.simulation.queueing import (
    Queue,
    demand_limits,
    erlang_c,
    replicas_for,
    score_waits,
    tail_share,
)

QUEUE = Queue(capacity_qps=100.0, slo_wait_s=0.5)


def test_erlang_c_matches_published_values() -> None:
    # M/M/1: the share that waits is the load; M/M/2 at one erlang: 1/3 (Erlang, 1917).
    assert erlang_c(1, np.array([0.3])) == pytest.approx([0.3])
    assert erlang_c(2, np.array([1.0])) == pytest.approx([1 / 3])
    assert erlang_c(10, np.array([8.0])) == pytest.approx([0.4092], abs=1e-4)


def test_a_limit_is_the_highest_demand_within_the_share() -> None:
    limits = demand_limits(QUEUE, 5, 1e-3)

    assert list(limits) == sorted(limits)
    just_over = float(tail_share(QUEUE, 3, np.array([limits[3] * 1.001]), 0.5)[0])
    at_limit = float(tail_share(QUEUE, 3, np.array([limits[3]]), 0.5)[0])
    assert at_limit <= 1e-3 < just_over


def test_the_documented_example_holds() -> None:
    assert demand_limits(QUEUE, 3, 1e-3)[3] == pytest.approx(286.4, abs=0.05)


def test_unknown_demand_needs_nothing_and_more_demand_never_less() -> None:
    counts = replicas_for(QUEUE, np.array([np.nan, 0.0, 1.0, 99.0, 250.0, 3900.0]))

    assert counts.tolist()[:3] == [0, 0, 1]
    assert counts.tolist() == sorted(counts.tolist())


def test_a_growing_backlog_violates_from_the_moment_the_wait_is_reached() -> None:
    # Served 100/s, offered 200/s: after u seconds the wait is u; beyond 0.5 s of 10 s, 95 % wait too long.
    waits = score_waits(QUEUE, np.array([200.0]), np.array([1]), np.array([0.0]), np.array([0.0]), 10.0)

    assert waits.violation_share == pytest.approx(0.95)


def test_a_backlog_that_drains_violates_until_it_is_short() -> None:
    # 100 requests wait, drained at 100/s net: waits fall from 0.5 s (2 replicas) to 0.25 s in half a second.
    waits = score_waits(QUEUE, np.array([100.0]), np.array([2]), np.array([140.0]), np.array([0.0]), 1.0)

    assert waits.violation_share == pytest.approx(0.4)


def test_without_replicas_everybody_waits_too_long() -> None:
    waits = score_waits(QUEUE, np.array([10.0]), np.array([0]), np.array([0.0]), np.array([0.0]), 15.0)

    assert waits.violation_share == pytest.approx(1.0, abs=1e-6)
    assert waits.wait_s_p99 == pytest.approx(QUEUE.queue_max_s)


def test_unknown_steps_are_not_scored() -> None:
    known = score_waits(QUEUE, np.array([200.0]), np.array([1]), np.array([0.0]), np.array([0.0]), 10.0)
    both = score_waits(
        QUEUE, np.array([200.0, np.nan]), np.array([1, 0]), np.array([0.0, 0.0]), np.array([0.0, 0.0]), 10.0
    )

    assert known.violation_share == both.violation_share


@pytest.mark.parametrize(("servers", "demand"), [(1, 80.0), (3, 270.0), (10, 960.0)])
def test_the_tail_agrees_with_a_discrete_event_queue(servers: int, demand: float) -> None:
    random = Random(5)
    free = [0.0] * servers
    at, late, count = 0.0, 0, 150_000
    for _ in range(count):
        at += random.expovariate(demand)
        index = min(range(servers), key=free.__getitem__)
        begin = max(at, free[index])
        late += begin - at > 0.05
        free[index] = begin + random.expovariate(QUEUE.capacity_qps)

    expected = float(tail_share(QUEUE, servers, np.array([demand]), 0.05)[0])
    assert expected == pytest.approx(late / count, rel=0.15)


def test_p99_is_the_wait_that_one_request_in_a_hundred_exceeds() -> None:
    waits = score_waits(QUEUE, np.array([90.0] * 4), np.array([1] * 4), np.zeros(4), np.zeros(4), 15.0)

    assert float(tail_share(QUEUE, 1, np.array([90.0]), waits.wait_s_p99)[0]) == pytest.approx(0.01, rel=1e-3)
