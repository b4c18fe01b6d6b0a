"""A multiple of no demand is unknown, and unknown is never 0."""

from datetime import timedelta

import pytest

from controller.core.planner import ON_NO_DEMAND, base_moved, build_plan, event_demand
from controller.core.types import CapacityPlan, Event, Floor, ForecastBand, Trust
from tests.unit.core.worlds import LEAD, START, band, event, workload

TIMES_FOUR = event(expected_peak_qps=None, expected_multiplier=4.0)
NOTHING = band(START, [0.0] * 48)


def floor(one: Event, *, forecast: ForecastBand | None = None, observed_qps: float | None = None) -> Floor:
    made = plan(one, forecast=forecast, observed_qps=observed_qps)
    return next(f for f in made.floors if f.event_id is not None)


def plan(
    one: Event, *, forecast: ForecastBand | None = None, observed_qps: float | None = None
) -> CapacityPlan:
    return build_plan(
        workload(),
        now=START,
        band=forecast,
        trust=Trust.TRUSTED,
        events=[one],
        lead=LEAD,
        observed_qps=observed_qps,
    )


@pytest.mark.parametrize(
    ("forecast", "observed_qps"),
    [
        pytest.param(None, 0.0, id="idle now, no forecast"),
        pytest.param(NOTHING, None, id="a forecast of nothing"),
        pytest.param(NOTHING, 500.0, id="a forecast of nothing leads over the present"),
        pytest.param(
            band(START, [0.0] * 48, event_ids=frozenset({TIMES_FOUR.id})), None, id="with the event"
        ),
    ],
)
def test_a_multiple_of_no_demand_sizes_nothing(
    forecast: ForecastBand | None, observed_qps: float | None
) -> None:
    assert (None, ON_NO_DEMAND) == event_demand(TIMES_FOUR, workload(), forecast, observed_qps)
    found = floor(TIMES_FOUR, forecast=forecast, observed_qps=observed_qps)

    assert (None, workload().min_replicas) == (found.demand_qps, found.replicas)
    assert "cannot be sized" in found.reason


def test_a_stated_peak_needs_no_demand_to_multiply() -> None:
    assert 1000.0 == floor(event(expected_peak_qps=1000.0), observed_qps=0.0).demand_qps
    assert 1000.0 == floor(event(expected_peak_qps=1000.0), forecast=NOTHING).demand_qps


def test_an_unsized_event_is_sized_as_soon_as_there_is_demand_and_not_before() -> None:
    unsized = plan(TIMES_FOUR, observed_qps=0.0)
    now = START + timedelta(minutes=1)

    assert not base_moved(unsized, workload(), [TIMES_FOUR], 0.0, now)
    assert base_moved(unsized, workload(), [TIMES_FOUR], 10.0, now)
