"""Frontiers are read by interpolation on the lower envelope, and never beyond it."""

from math import sqrt

import pytest

from controller.simulation.frontier import Point, cheapest, envelope, hours_at
from controller.simulation.harness import PolicyResult, Timeline


def _point(share: float, hours: float) -> Point:
    import numpy as np

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
