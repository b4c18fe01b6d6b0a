"""One count out of many opinions: veto, floors, ceilings, SET, and nobody at all."""

import pytest

from controller.core.arbitration import arbitrate, capped
from controller.core.types import Recommendation, RecommendationKind, Source

SET, AT_LEAST, AT_MOST, VETO, ABSTAIN = RecommendationKind


def rec(
    kind: RecommendationKind, replicas: int | None, source: Source = Source.REACTIVE, priority: int = 0
) -> Recommendation:
    return Recommendation(source, kind, replicas, f"{source} says {kind} {replicas}", priority)


def test_nobody_speaking_keeps_the_count() -> None:
    merged = arbitrate([], 7)

    assert (merged.replicas, merged.binding, merged.limited_from) == (7, None, None)


def test_abstaining_is_not_an_opinion() -> None:
    spoken = [rec(SET, 4), rec(AT_LEAST, 2, Source.MIN), rec(AT_MOST, 9, Source.MAX)]

    assert arbitrate(spoken, 7) == arbitrate([*spoken, rec(ABSTAIN, None, Source.EVENT)], 7)


@pytest.mark.parametrize("kind", [SET, AT_LEAST, AT_MOST])
def test_an_opinion_without_a_count_is_none(kind: RecommendationKind) -> None:
    assert arbitrate([rec(kind, None)], 7).replicas == 7


def test_a_veto_beats_floors_ceilings_and_sets() -> None:
    others = [rec(SET, 1), rec(AT_LEAST, 50, Source.EVENT), rec(AT_MOST, 3, Source.MAX)]
    merged = arbitrate([*others, rec(VETO, None, Source.PAUSE)], 7)

    assert (merged.replicas, merged.vetoed) == (7, True)
    assert merged.binding == rec(VETO, None, Source.PAUSE)


def test_among_sets_the_highest_priority_wins_not_the_largest() -> None:
    merged = arbitrate([rec(SET, 30, priority=1), rec(SET, 4, Source.OVERRIDE, priority=9)], 7)

    assert merged.replicas == 4
    assert merged.binding is not None
    assert merged.binding.source is Source.OVERRIDE


def test_equally_strong_sets_end_at_the_larger() -> None:
    assert arbitrate([rec(SET, 4, priority=1), rec(SET, 6, Source.PLAN, priority=1)], 1).replicas == 6


def test_the_highest_floor_counts_and_lifts_a_set() -> None:
    merged = arbitrate([rec(SET, 4), rec(AT_LEAST, 5, Source.PLAN), rec(AT_LEAST, 9, Source.EVENT)], 1)

    assert (merged.replicas, merged.floor) == (9, 9)
    assert merged.binding is not None
    assert merged.binding.source is Source.EVENT


def test_a_floor_equal_to_a_set_leaves_the_set_as_the_reason() -> None:
    merged = arbitrate([rec(SET, 4), rec(AT_LEAST, 4, Source.PLAN)], 1)

    assert merged.binding == rec(SET, 4)


def test_a_floor_that_equals_the_kept_count_is_the_reason_to_keep_it() -> None:
    merged = arbitrate([rec(AT_LEAST, 7, Source.GUARD)], 7)

    assert merged.binding == rec(AT_LEAST, 7, Source.GUARD)


def test_the_lowest_ceiling_beats_floors_and_the_loss_is_told() -> None:
    merged = arbitrate(
        [rec(AT_LEAST, 30, Source.EVENT), rec(AT_MOST, 10, Source.MAX), rec(AT_MOST, 8, Source.QUOTA)], 5
    )

    assert (merged.replicas, merged.floor, merged.ceiling, merged.limited_from) == (8, 8, 8, 30)
    assert merged.binding == merged.capped_by == rec(AT_MOST, 8, Source.QUOTA)


def test_a_minimum_over_the_maximum_stays_within_the_maximum() -> None:
    merged = arbitrate([rec(AT_LEAST, 12, Source.MIN), rec(AT_MOST, 3, Source.MAX)], 0)

    assert (merged.replicas, merged.limited_from) == (3, 12)


def test_equal_opinions_are_explained_by_the_first_source_in_the_enum() -> None:
    first, second = rec(AT_LEAST, 9, Source.EVENT), rec(AT_LEAST, 9, Source.KEEP_WARM)

    assert arbitrate([second, first], 1).binding == arbitrate([first, second], 1).binding == first


def test_capping_below_the_ceiling_changes_nothing() -> None:
    merged = arbitrate([rec(SET, 4), rec(AT_MOST, 8, Source.MAX)], 1)

    assert capped(merged, 8) is merged


def test_capping_tells_the_larger_of_what_was_wanted() -> None:
    merged = arbitrate([rec(SET, 30), rec(AT_MOST, 8, Source.MAX)], 20)

    assert capped(merged, 20).limited_from == 30


def test_without_any_ceiling_nothing_is_capped() -> None:
    merged = arbitrate([rec(SET, 4)], 1)

    assert capped(merged, 10**6) is merged
