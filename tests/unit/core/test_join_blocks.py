"""Blocks end to end: where each ends, and what was not given."""

import math
from array import array

import pytest

from controller.core.resources import TrafficBlock, join_blocks


def test_blocks_of_any_length_keep_their_rows() -> None:
    joined = join_blocks(
        [
            TrafficBlock("a", "s", [1, 2], [3.0, 4.0], coverages=[0.5, 1.0]),
            TrafficBlock("b", "s", [], []),
            TrafficBlock("c", "s", array("q", [9]), array("d", [5.0]), [1.0], [2.0]),
        ]
    )

    assert joined.ends.tolist() == [2, 2, 3]
    assert joined.minutes.tolist() == [1, 2, 9]
    assert joined.demand_counts.tolist() == [3.0, 4.0, 5.0]
    assert joined.coverages.tolist() == [0.5, 1.0, 1.0]
    assert [math.isnan(count) for count in joined.served_counts] == [True, True, False]
    assert [math.isnan(count) for count in joined.rejected_counts] == [True, True, False]


def test_a_column_of_another_length_is_named() -> None:
    good, bad = TrafficBlock("a", "s", [1], [1.0]), TrafficBlock("b", "s", [1], [1.0], served_counts=[])

    with pytest.raises(ValueError, match=r"blocks\[1\]\.served_counts: has 0 values for 1 minutes"):
        join_blocks([good, bad])
