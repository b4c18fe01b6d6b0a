"""How fast a count may move: stabilization both ways, rates against the true count at a period's start."""

from datetime import timedelta

import pytest

from controller.core.behavior import Paced, pace
from controller.core.types import PastNeed, PolicyType, ScaleChange, ScalingPolicy, ScalingRules, SelectPolicy
from tests.unit.core.worlds import START, minutes, seconds

FREE = ScalingRules(timedelta(0))


def limited(
    *policies: ScalingPolicy, select: SelectPolicy = SelectPolicy.MAX, window: timedelta = timedelta(0)
) -> ScalingRules:
    return ScalingRules(window, select, policies)


def pods(value: int, period: timedelta = timedelta(minutes=1)) -> ScalingPolicy:
    return ScalingPolicy(PolicyType.PODS, value, period)


def percent(value: int, period: timedelta = timedelta(minutes=1)) -> ScalingPolicy:
    return ScalingPolicy(PolicyType.PERCENT, value, period)


def move(
    current: int,
    target: int,
    *,
    up: ScalingRules = FREE,
    down: ScalingRules = FREE,
    needs: tuple[tuple[float, int], ...] = (),
    changes: tuple[tuple[float, int], ...] = (),
) -> Paced:
    """Needs and changes are given as (seconds ago, value)."""
    return pace(
        current,
        target,
        up=up,
        down=down,
        needs=[PastNeed(START - seconds(ago), value) for ago, value in needs],
        changes=[ScaleChange(START - seconds(ago), delta) for ago, delta in changes],
        now=START,
    )


@pytest.mark.parametrize("target", [0, 3, 10, 1_000])
def test_without_rules_the_target_is_reached_at_once(target: int) -> None:
    assert move(10, target) == Paced(target)


def test_going_down_the_highest_need_of_the_window_counts() -> None:
    rules = limited(window=minutes(5))

    assert move(10, 2, down=rules, needs=((299.0, 7), (100.0, 4))) == Paced(7, stabilized=True)
    assert move(10, 2, down=rules, needs=((300.0, 7), (100.0, 4))) == Paced(4, stabilized=True)
    assert move(10, 2, down=rules) == Paced(2)


def test_a_need_over_the_present_count_does_not_scale_up_by_being_remembered() -> None:
    assert move(10, 2, down=limited(window=minutes(5)), needs=((10.0, 30),)) == Paced(10, stabilized=True)


def test_going_up_the_lowest_need_of_the_window_counts() -> None:
    rules = limited(window=minutes(2))

    assert move(10, 30, up=rules, needs=((60.0, 14),)) == Paced(14, stabilized=True)
    assert move(10, 30, up=rules, needs=((60.0, 4),)) == Paced(10, stabilized=True)


@pytest.mark.parametrize(
    ("select", "expected"), [(SelectPolicy.MAX, 14), (SelectPolicy.MIN, 12), (SelectPolicy.DISABLED, 10)]
)
def test_selecting_between_policies_going_up(select: SelectPolicy, expected: int) -> None:
    rules = limited(pods(4), percent(20), select=select)

    assert move(10, 100, up=rules) == Paced(expected, rate_limited=True)


@pytest.mark.parametrize(
    ("select", "expected"), [(SelectPolicy.MAX, 6), (SelectPolicy.MIN, 8), (SelectPolicy.DISABLED, 10)]
)
def test_selecting_between_policies_going_down(select: SelectPolicy, expected: int) -> None:
    rules = limited(pods(4), percent(20), select=select)

    assert move(10, 0, down=rules) == Paced(expected, rate_limited=True)


def test_a_policy_wider_than_the_move_does_not_limit_it() -> None:
    assert move(10, 12, up=limited(pods(4))) == Paced(12)
    assert move(10, 9, down=limited(pods(4))) == Paced(9)


def test_the_rate_counts_from_the_true_count_at_the_periods_start_all_moves_included() -> None:
    # 30 s ago +6, 10 s ago -2: the period began at 6, so 4 pods a minute end at 10.
    assert move(10, 100, up=limited(pods(4)), changes=((30.0, 6), (10.0, -2))) == Paced(10, rate_limited=True)
    # What lies before the period is history.
    assert move(10, 100, up=limited(pods(4)), changes=((60.0, 6),)) == Paced(14, rate_limited=True)


def test_a_used_up_rate_never_turns_the_direction() -> None:
    assert move(10, 100, up=limited(pods(1)), changes=((5.0, 9),)) == Paced(10, rate_limited=True)
    assert move(10, 0, down=limited(pods(1)), changes=((5.0, -9),)) == Paced(10, rate_limited=True)


@pytest.mark.parametrize(
    ("start", "expected"), [(0, 1), (1, 2), (2, 3), (10, 11), (100, 110), (1_000, 1_100)]
)
def test_ten_percent_up_rounds_up_exactly(start: int, expected: int) -> None:
    assert expected == move(start, 10_000, up=limited(percent(10))).replicas


@pytest.mark.parametrize(("start", "expected"), [(1, 0), (10, 9), (100, 90), (15, 13)])
def test_ten_percent_down_rounds_down_exactly(start: int, expected: int) -> None:
    assert expected == move(start, 0, down=limited(percent(10))).replicas


def test_more_than_everything_ends_at_zero() -> None:
    assert move(3, 0, down=limited(pods(50))).replicas == 0
    assert move(3, 0, down=limited(percent(150))).replicas == 0
