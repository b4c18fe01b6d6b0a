"""GPUs shared by workloads: nominal quota, borrowing, and preemption that always helps somebody."""

from controller.core.quota import Ask, Grant, allocate
from controller.core.types import QuotaPool

POOL = QuotaPool("t4", nominal_gpus=10)


def ask(name: str, current: int, needed: int, wanted: int | None = None, **changes: object) -> Ask:
    values: dict[str, object] = {"pool": "t4", "gpus_per_replica": 1, "priority": 0, **changes}
    return Ask(
        workload=name, current=current, needed=needed, wanted=needed if wanted is None else wanted, **values
    )  # type: ignore[arg-type]  # keyword names are checked at run time


def ceilings(grants: dict[str, Grant]) -> dict[str, int]:
    return {name: grant.ceiling for name, grant in grants.items()}


def test_free_gpus_are_granted_as_needed_then_as_wanted() -> None:
    grants = allocate([POOL], [ask("a", 2, 4, 9), ask("b", 3, 3)])

    assert ceilings(grants) == {"a": 7, "b": 3}
    assert grants["a"].shortfall == 2


def test_needs_of_all_come_before_wishes_of_any() -> None:
    grants = allocate([POOL], [ask("a", 2, 2, 10, priority=9), ask("b", 3, 6)])

    assert ceilings(grants) == {"a": 4, "b": 6}


def test_what_is_held_and_needed_is_never_taken() -> None:
    grants = allocate([POOL], [ask("low", 10, 10), ask("high", 0, 5, priority=9)])

    assert ceilings(grants) == {"low": 10, "high": 0}
    assert grants["high"].shortfall == 5


def test_the_surplus_of_the_lowest_priority_is_taken_first_and_said_for_whom() -> None:
    grants = allocate([POOL], [ask("low", 4, 1), ask("mid", 6, 2, priority=1), ask("high", 0, 5, priority=9)])

    assert ceilings(grants) == {"low": 1, "mid": 4, "high": 5}
    assert [grants[name].preempted_by for name in ("low", "mid", "high")] == ["high", "high", None]


def test_equal_priority_is_never_preempted() -> None:
    assert ceilings(allocate([POOL], [ask("a", 10, 1, priority=3), ask("b", 0, 5, priority=3)]))["b"] == 0


def test_wishes_never_preempt() -> None:
    assert ceilings(allocate([POOL], [ask("low", 10, 1), ask("high", 0, 0, 5, priority=9)]))["high"] == 0


def test_what_was_preempted_is_not_taken_back_as_a_wish() -> None:
    grants = allocate([POOL], [ask("low", 10, 1, 10), ask("high", 0, 3, priority=9)])

    assert ceilings(grants) == {"low": 7, "high": 3}


def test_nobody_is_preempted_for_less_than_a_whole_replica() -> None:
    grants = allocate(
        [POOL], [ask("low", 4, 1), ask("keeps", 6, 6), ask("high", 0, 1, gpus_per_replica=8, priority=9)]
    )

    assert ceilings(grants) == {"low": 4, "keeps": 6, "high": 0}
    assert grants["low"].preempted_by is None
    assert grants["high"].shortfall == 1


def test_a_small_victim_is_spared_when_a_large_one_was_needed_anyway() -> None:
    asks = [
        ask("small", 2, 0, priority=0),
        ask("large", 1, 0, gpus_per_replica=8, priority=1),
        ask("high", 0, 1, gpus_per_replica=8, priority=9),
    ]

    assert ceilings(allocate([POOL], asks)) == {"small": 2, "large": 0, "high": 1}


def test_several_replicas_of_different_size_are_taken_for_several() -> None:
    asks = [
        ask("low", 6, 0),
        ask("mid", 2, 0, gpus_per_replica=2, priority=1),
        ask("high", 0, 2, gpus_per_replica=4, priority=9),
    ]

    assert ceilings(allocate([POOL], asks)) == {"low": 0, "mid": 1, "high": 2}


COHORT = (
    QuotaPool("a", 4, cohort="gpus", borrowing_limit_gpus=2),
    QuotaPool("b", 6, cohort="gpus", borrowing_limit_gpus=0),
)


def test_idle_quota_of_the_cohort_is_borrowed_up_to_the_limit() -> None:
    grants = allocate(COHORT, [ask("x", 0, 9, pool="a"), ask("y", 1, 1, pool="b")])

    assert ceilings(grants) == {"x": 6, "y": 1}
    assert grants["x"].borrowed_gpus == 2


def test_borrowing_never_exceeds_what_the_cohort_has_left() -> None:
    assert ceilings(allocate(COHORT, [ask("x", 0, 9, pool="a"), ask("y", 5, 5, pool="b")]))["x"] == 5


def test_a_pool_without_cohort_borrows_from_nobody_whatever_its_limit() -> None:
    alone = QuotaPool("t4", 4, borrowing_limit_gpus=5)

    assert ceilings(allocate([alone, QuotaPool("b", 90)], [ask("x", 0, 9)]))["x"] == 4


def test_gpus_of_another_type_are_not_lent() -> None:
    pools = [
        QuotaPool("a", 4, cohort="gpus", borrowing_limit_gpus=4, gpu_type="T4"),
        QuotaPool("b", 6, cohort="gpus", gpu_type="A10"),
    ]

    assert ceilings(allocate(pools, [ask("x", 0, 9, pool="a")]))["x"] == 4


def test_preempting_in_another_pool_helps_only_as_far_as_may_be_borrowed() -> None:
    grants = allocate(COHORT, [ask("victim", 6, 0, pool="b"), ask("x", 4, 9, pool="a", priority=9)])

    assert ceilings(grants) == {"victim": 4, "x": 6}


def test_a_victim_out_of_reach_keeps_everything() -> None:
    pools = [QuotaPool("t4", 2), QuotaPool("b", 6)]
    grants = allocate(pools, [ask("elsewhere", 6, 0, pool="b"), ask("x", 2, 5, priority=9)])

    assert ceilings(grants) == {"elsewhere": 6, "x": 2}
    assert grants["elsewhere"].preempted_by is None


def test_an_unknown_pool_allows_what_is_held_and_nothing_more() -> None:
    grants = allocate([POOL], [ask("x", 3, 8, pool="typo")])

    assert grants["x"] == Grant(ceiling=3, shortfall=5)


def test_a_pool_that_shrank_takes_nothing_back_and_gives_nothing_more() -> None:
    assert ceilings(allocate([QuotaPool("t4", 3)], [ask("a", 5, 5), ask("b", 2, 4)])) == {"a": 5, "b": 2}


def test_the_order_of_asks_does_not_matter() -> None:
    asks = [ask("a", 4, 6), ask("b", 3, 6), ask("c", 3, 4, priority=2)]

    assert allocate([POOL], asks) == allocate([POOL], asks[::-1])
