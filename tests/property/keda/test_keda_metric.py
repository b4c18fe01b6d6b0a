"""What an HPA makes of the metric KEDA is given.

1. The HPA never goes below the decision.
2. It lands on the smallest count that any metric can make it reach without going below the decision.
3. Without tolerance that is the decision itself, always.
4. Once there it stays, or comes closer: it never turns back, so it does not flap.
5. Whatever count the HPA really has, also another one than was known here, 1 holds once it acts.
"""

import math

import pytest

from controller.usecases.keda import metric_for

TOLERANCES = (0.0, 0.05, 0.1, 0.2)
COUNTS = range(1, 201)
TARGET_MILLI = 1000


def hpa(current: int, metric: float, tolerance: float, *, edge_is_inside: bool) -> int:
    """Replicas by `AverageValue` of an external metric, in thousandths as the HPA computes.

    Releases differ: older ones scale at ``|1 - ratio| > tolerance``, newer ones at a ratio outside
    ``[1 - tolerance, 1 + tolerance]``; in binary fractions the edge falls to either side.
    """
    usage = round(metric * 1000)
    ratio = usage / (TARGET_MILLI * current)
    inside = 1.0 - tolerance <= ratio <= 1.0 + tolerance
    still = inside if edge_is_inside else abs(1.0 - ratio) <= tolerance
    return current if still else math.ceil(usage / TARGET_MILLI)


def reachable(current: int, tolerance: float) -> list[int]:
    """Counts that some metric takes the HPA to, by trying; clear of the band's edge, where releases differ."""
    near = (milli / 1000 for milli in range(700 * current, 1300 * current, 25))
    metrics = [*near, *map(float, range(401))]
    found = {
        math.ceil(metric)
        for metric in metrics
        if not (1 - tolerance - 1e-6) * current <= metric <= (1 + tolerance + 1e-6) * current
    }
    return sorted(found | {current})


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_1_2_3_the_hpa_lands_on_the_smallest_count_it_can_reach(tolerance: float) -> None:
    for current in COUNTS:
        counts = reachable(current, tolerance)
        for desired in COUNTS:
            expected = next(count for count in counts if count >= desired)
            metric = metric_for(desired, current, tolerance)
            landed = {hpa(current, metric, tolerance, edge_is_inside=inside) for inside in (False, True)}
            assert landed == {expected}, (current, desired, metric)
            assert tolerance or expected == desired


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_4_the_hpa_comes_to_rest_without_turning_back(tolerance: float) -> None:
    for current in COUNTS:
        for desired in COUNTS:
            path = [current]
            while len(path) < 5:
                metric = metric_for(desired, path[-1], tolerance)
                path.append(hpa(path[-1], metric, tolerance, edge_is_inside=True))
            distances = [abs(count - desired) for count in path[1:]]
            assert path[-1] == path[-2], path
            assert distances == sorted(distances, reverse=True), path


def test_5_a_count_that_is_not_the_hpas_own_costs_no_capacity() -> None:
    for known in (None, 0, 1, 7, 22, 100, 200):
        for desired in COUNTS:
            metric = metric_for(desired, known, 0.1)
            assert math.ceil(metric) >= desired
            assert math.isfinite(metric)


def test_a_floor_of_24_is_reached_from_22() -> None:
    """The worked example of the guide: 24/22 is within 10 %, so the HPA is told 25, and 24 where it has no tolerance."""
    assert hpa(22, 24.0, 0.1, edge_is_inside=True) == 22
    assert hpa(22, metric_for(24, 22, 0.1), 0.1, edge_is_inside=True) == 25
    assert hpa(22, metric_for(24, 22, 0.0), 0.0, edge_is_inside=True) == 24


def test_zero_is_zero() -> None:
    assert [metric_for(0, current, 0.1) for current in (None, 0, 5)] == [0.0, 0.0, 0.0]
