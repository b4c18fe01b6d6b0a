"""Invariants of shared GPUs, for any pools and any asks.

1. A pool never uses more than its nominal quota and what it may borrow, unless it began above that.
2. A cohort never uses more than its members' nominal quota together, unless it began above that.
3. What a workload holds and needs is never taken.
4. Only lower priority is preempted, and only surplus.
5. Nobody is preempted without benefit: giving any one replica back would not fit.
6. The order of pools and asks never matters.
7. Nobody is granted more than the larger of what it holds, needs and wants.
8. A workload that needs more than it got could not have got one replica more.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.core.quota import Ask, Grant, allocate
from controller.core.types import QuotaPool

PATIENT = settings(deadline=None, max_examples=300)

pools = st.lists(
    st.tuples(
        st.integers(0, 16), st.sampled_from([None, "gpus"]), st.integers(0, 8), st.sampled_from(["", "T4"])
    ),
    min_size=1,
    max_size=3,
).map(
    lambda items: [
        QuotaPool(f"pool-{i}", nominal, cohort, limit, gpu_type)
        for i, (nominal, cohort, limit, gpu_type) in enumerate(items)
    ]
)
asks = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from([1, 1, 2, 4]),
        st.integers(0, 3),
        st.integers(0, 6),
        st.integers(0, 8),
        st.integers(0, 8),
    ),
    max_size=6,
).map(
    lambda items: [
        Ask(f"w{i}", f"pool-{pool}", gpus, priority, current, needed, max(needed, wanted))
        for i, (pool, gpus, priority, current, needed, wanted) in enumerate(items)
    ]
)


def used(pool_names: set[str], wanted: list[Ask], grants: dict[str, Grant] | None = None) -> int:
    return sum(
        (a.current if grants is None else grants[a.workload].ceiling) * a.gpus_per_replica
        for a in wanted
        if a.pool in pool_names
    )


def limits(given_pools: list[QuotaPool]) -> list[tuple[set[str], int]]:
    """Every set of pools that has a limit together, and the limit."""
    own = [
        ({p.name}, p.nominal_gpus + (p.borrowing_limit_gpus if p.cohort is not None else 0))
        for p in given_pools
    ]
    kinds = {(p.cohort, p.gpu_type) for p in given_pools if p.cohort is not None}
    members = [[p for p in given_pools if (p.cohort, p.gpu_type) == kind] for kind in sorted(kinds)]
    return [*own, *(({p.name for p in m}, sum(p.nominal_gpus for p in m)) for m in members)]


@PATIENT
@given(pools, asks)
def test_1_and_2_quota_and_cohort_are_kept(given_pools: list[QuotaPool], wanted: list[Ask]) -> None:
    grants = allocate(given_pools, wanted)

    for names, limit in limits(given_pools):
        assert used(names, wanted, grants) <= max(limit, used(names, wanted))


@PATIENT
@given(pools, asks)
def test_3_4_and_7_only_surplus_of_lower_priority_is_taken(
    given_pools: list[QuotaPool], wanted: list[Ask]
) -> None:
    grants = allocate(given_pools, wanted)
    by_name = {a.workload: a for a in wanted}

    for ask in wanted:
        grant = grants[ask.workload]
        assert grant.ceiling >= min(ask.current, ask.needed)
        assert grant.ceiling <= max(ask.current, ask.needed, ask.wanted)
        if grant.ceiling < ask.current:
            assert grant.preempted_by is not None
            assert by_name[grant.preempted_by].priority > ask.priority
        if grant.preempted_by is not None:
            assert grants[grant.preempted_by].ceiling > by_name[grant.preempted_by].current


def fits(given_pools: list[QuotaPool], wanted: list[Ask], grants: dict[str, Grant], ask: Ask) -> bool:
    """Whether one replica more of ``ask`` fits beside all grants."""
    return all(
        used(names, wanted, grants) + ask.gpus_per_replica <= limit
        for names, limit in limits(given_pools)
        if ask.pool in names
    )


@PATIENT
@given(pools, asks)
def test_5_and_8_nobody_is_preempted_in_vain_and_nothing_needed_is_left_lying(
    given_pools: list[QuotaPool], wanted: list[Ask]
) -> None:
    grants = allocate(given_pools, wanted)
    names = {p.name for p in given_pools}

    for ask in wanted:
        if ask.pool not in names:
            continue
        grant = grants[ask.workload]
        if grant.ceiling < ask.needed or grant.ceiling < ask.current:
            assert not fits(given_pools, wanted, grants, ask)


@PATIENT
@given(pools, asks)
def test_6_the_order_never_matters(given_pools: list[QuotaPool], wanted: list[Ask]) -> None:
    assert allocate(given_pools, wanted) == allocate(given_pools[::-1], wanted[::-1])
