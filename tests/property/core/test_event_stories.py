"""Invariants of an event's life, whatever demand, forecasts, lead times and restarts do meanwhile.

1. Kept: the replicas are verified warm by the deadline when cold starts take no longer than the lead time.
2. Held: from its order to its end the prewarmed set is never scaled down; not in the quiet before the start,
not in a dip inside, not by a forecast that changes its mind, not by a lead time that shrinks.
3. Restored: the maximum raised for it is back after it, also when every tick is decided by a new leader that
reads the state from the store.
4. Within the raised maximum while it lasts, within the old one before and after.
5. Let go: after the event and its stabilization window the count follows the demand again.
6. Once: the set is ordered at most once for each size it grows to.
"""

from dataclasses import replace
from datetime import timedelta

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from controller.adapters.codec import decode, encode
from controller.core.leadtime import LeadTime
from controller.core.types import FleetState, ForecastState, ScaleTo, Trust, WorkloadState
from tests.unit.core.worlds import MIDNIGHT, Fleet, Pool, alone, band, event, minutes, seconds, workload

# A story that is cut short tells nothing: no shrinking, the seed reproduces it.
PATIENT = settings(deadline=None, max_examples=20, phases=(Phase.explicit, Phase.reuse, Phase.generate))
BEGIN = MIDNIGHT - minutes(25)
END = MIDNIGHT + minutes(14)  # shorter than an event takes to fizzle: here it may not be let go
PEAK_QPS, PEAK_REPLICAS, MAX, RAISED = 2_900.0, 30, 20, 35

moods = st.lists(
    st.tuples(
        st.sampled_from([0.0, 50.0, 500.0, 1_500.0, None]),  # demand, None: not observed
        st.sampled_from([30.0, 60.0, 300.0]),  # lead time
        st.sampled_from([None, 10.0, 1_500.0, 1e12]),  # forecast
        st.sampled_from(list(Trust)),
        st.booleans(),  # whether the actuator answers
    ),
    min_size=8,
    max_size=8,
)


def told(
    pool: Pool, fleet: Fleet, mood: tuple[float | None, float, float | None, Trust, bool], serial: int
) -> None:
    _, lead_s, forecast_qps, trust, visible = mood
    pool.lead, pool.trust, pool.visible = LeadTime(lead_s), trust, visible
    pool.forecast = (
        None
        if forecast_qps is None
        else band(
            fleet.now,
            [forecast_qps] * 20,
            id=f"f{serial}",
            state=ForecastState.READY,
            event_ids=frozenset({"sale"}),
        )
    )


def restart(fleet: Fleet) -> None:
    """A new leader, which knows only what was written down."""
    fleet.state = FleetState(
        {name: decode(WorkloadState, encode(state)) for name, state in fleet.state.workloads.items()}
    )


def begin() -> tuple[Fleet, Pool]:
    fleet, pool = alone(warm=1, w=workload(max_replicas=MAX), cold_start_s=60.0)
    fleet.now, fleet.tick_s = BEGIN, 15.0
    pool.events = (event(end_at=END, expected_peak_qps=PEAK_QPS, max_replicas_override=RAISED),)
    fleet.tick(toy=50.0)  # what runs has been seen once; until then nothing may be done
    return fleet, pool


@PATIENT
@given(moods)
def test_2_a_prewarmed_set_is_held_to_the_end(
    story: list[tuple[float | None, float, float | None, Trust, bool]],
) -> None:
    fleet, pool = begin()
    reached = 0
    for serial, mood in enumerate(story):
        told(pool, fleet, mood, serial)
        until = min(END, fleet.now + minutes(5))
        while fleet.now < until:
            fleet.tick(toy=mood[0])
            restart(fleet)
            (contract,) = fleet.state.workloads["toy"].contracts
            if reached or fleet.now > contract.order_at + seconds(15):
                reached = max(reached, min(contract.replicas, RAISED))
                assert pool.target_count >= reached

    assert reached >= PEAK_REPLICAS


@PATIENT
@given(moods)
def test_4_and_5_within_the_limits_and_let_go_afterwards(
    story: list[tuple[float | None, float, float | None, Trust, bool]],
) -> None:
    fleet, pool = begin()
    for serial, mood in enumerate(story):
        told(pool, fleet, mood, serial)
        for _ in range(24):
            now, effects = fleet.now, fleet.tick(toy=mood[0])
            restart(fleet)
            # No lead time told here is over five minutes, so no order is earlier than that.
            raised = MIDNIGHT - minutes(6) <= now < END + minutes(5)
            assert all(e.replicas <= (RAISED if raised else MAX) for e in effects if isinstance(e, ScaleTo))

    told(pool, fleet, (50.0, 60.0, None, Trust.TRUSTED, True), 99)
    fleet.run(fleet.now + minutes(7), toy=50.0)
    assert (fleet.desired(), pool.target_count) == (1, 1)


@PATIENT
@given(
    st.floats(100.0, 1_900.0),
    st.integers(5, 240),
    st.integers(0, 30),
    st.sampled_from([5.0, 10.0, 15.0]),
    st.sampled_from([0.0, 1.0, 4.0]),
)
def test_1_and_6_a_contract_is_kept_and_ordered_once(
    peak: float, cold_start_s: int, phase_s: int, tick_s: float, per_extra_s: float
) -> None:
    fleet, pool = alone(warm=1, cold_start_s=float(cold_start_s))
    fleet.now, fleet.tick_s = BEGIN + seconds(phase_s), tick_s
    pool.lead = LeadTime(float(cold_start_s), per_extra_replica_s=per_extra_s)
    pool.events = (event(expected_peak_qps=peak),)
    effects = fleet.run(MIDNIGHT - seconds(30), toy=50.0)
    fleet.tick(toy=50.0)
    (contract,) = fleet.state.workloads["toy"].contracts

    assert contract.verified_count >= contract.replicas
    assert contract.met_at is not None
    assert len([e for e in effects if isinstance(e, ScaleTo)]) <= 1


@PATIENT
@given(st.integers(0, 40), st.floats(0.0, 5_000.0))
def test_3_the_maximum_is_restored_after_the_event(minutes_late: int, demand: float) -> None:
    fleet, _ = begin()
    fleet.run(MIDNIGHT, toy=500.0)
    restart(fleet)
    assert fleet.desired() == PEAK_REPLICAS

    fleet.now = END + minutes(5) + minutes(minutes_late)  # nobody led for a while
    fleet.tick(toy=demand)
    restart(fleet)
    fleet.run(fleet.now + timedelta(minutes=1), toy=demand)
    assert (fleet.desired() or 0) <= MAX


def test_an_event_that_nobody_raises_the_maximum_for_stays_under_it() -> None:
    fleet, pool = begin()
    pool.events = tuple(replace(e, max_replicas_override=None) for e in pool.events)
    fleet.run(END, toy=500.0)

    assert pool.target_count == MAX
