"""Frontiers are read by interpolation on the lower envelope, and never beyond it."""

from collections.abc import Sequence
from datetime import UTC, datetime
from math import sqrt

import numpy as np
import pytest

from controller.simulation.cluster import ClusterModel
from controller.simulation.frontier import Point, cheapest, envelope, hours_at, sweep
from controller.simulation.harness import Observation, PolicyResult, Timeline
from controller.simulation.registry import Entry, entries
from controller.simulation.trace import Trace, TraceEvent


def _point(share: float, hours: float) -> Point:
    none = np.zeros(0)
    line = Timeline(15, none, none.astype(np.int64), none.astype(np.int64), none)
    return Point(1.0, share, hours, PolicyResult("p", share, 0.0, hours, 0, 0, 0.0, 0, None, line))


def test_a_dominated_point_is_not_on_the_envelope() -> None:
    points = [_point(1e-2, 10.0), _point(1e-3, 20.0), _point(5e-3, 30.0)]

    assert envelope(points) == [(1e-3, 20.0), (1e-2, 10.0)]


def test_a_dear_setting_that_prevents_hardly_anything_is_not_on_the_envelope() -> None:
    points = [_point(1e-2, 10.0), _point(0.99e-2, 38.0), _point(1e-4, 40.0)]

    assert envelope(points) == [(1e-4, 40.0), (1e-2, 10.0)]


def test_between_points_hours_are_linear_in_the_logarithm_of_the_share() -> None:
    points = [_point(1e-2, 10.0), _point(1e-4, 30.0)]

    assert hours_at(points, 1e-3) == pytest.approx(20.0)
    assert hours_at(points, 1e-3 * sqrt(10)) == pytest.approx(15.0)


def test_a_share_that_was_never_reached_has_no_cost() -> None:
    assert hours_at([_point(1e-2, 10.0)], 1e-3) is None
    assert hours_at([], 1e-3) is None


def test_a_policy_that_violates_less_than_asked_costs_its_cheapest_point() -> None:
    assert hours_at([_point(1e-5, 12.0), _point(1e-4, 11.0)], 1e-2) == 11.0


def test_the_cheapest_policy_is_among_those_that_got_there() -> None:
    assert cheapest({"a": 3.0, "b": None, "c": 2.0}) == ("c", 2.0)
    assert cheapest({"a": None}) is None


class _Level:
    """Keeps a constant count: the knob, in replicas."""

    name = "level"
    period_s = 60

    def __init__(self, count: float) -> None:
        self.count = count

    def prepare(self, trace: Trace, events: Sequence[TraceEvent], model: ClusterModel) -> None:
        """Keep nothing."""
        del trace, events, model

    def desired(self, now_s: float, observation: Observation) -> int:
        """Return the count."""
        del now_s, observation
        return round(self.count)


def _swept(knobs: tuple[float, ...], also: tuple[float, ...] = ()) -> list[float]:
    # A peak that 12 replicas carry, for an hour of each day: fewer let it wait, more do not help.
    qps = np.where(np.arange(2 * 1440) % 1440 < 60, 1000.0, 100.0)
    trace = Trace("square", datetime(2026, 1, 5, tzinfo=UTC), 60, qps)
    entry = Entry(lambda knob: _Level(1.0 if knob is None else knob), knobs, reactive=True, also=also)
    return [point.knob for point in sweep(entry, trace, (), ClusterModel(max_replicas=40))]


def test_settings_far_apart_are_halved_where_violations_fall() -> None:
    assert _swept((4.0, 20.0)) == [4.0, 20.0, 8.0, 10.0, 12.0]


def test_settings_that_both_violate_more_than_is_read_are_left_alone() -> None:
    assert _swept((2.0, 8.0)) == [2.0, 8.0]


def test_a_sweep_ends_once_it_is_safe_and_its_second_way_begins_anew() -> None:
    assert _swept((19.0, 20.0, 30.0), (21.0, 22.0)) == [19.0, 21.0]


def test_halfway_between_two_quantiles_lies_in_their_chances_to_be_exceeded() -> None:
    assert entries()["forecrest"].between(0.9, 0.999) == pytest.approx(0.99)
    assert entries()["hpa"].between(0.5, 0.7) == pytest.approx(0.6)
