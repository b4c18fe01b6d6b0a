"""0021: a planner's confidence bounds how far above the best guess an event is prepared for."""

from datetime import UTC, datetime, timedelta

import pytest

from controller.core.leadtime import LeadTime
from controller.core.planner import build_plan, event_demand
from controller.core.types import (
    CapacityProfile,
    Event,
    ForecastBand,
    ForecastState,
    Policy,
    Trust,
    Workload,
)

NOW = datetime(2026, 11, 30, 22, 0, tzinfo=UTC)
STEP = timedelta(minutes=5)
MEDIAN, P99 = 34_900.0, 61_500.0


def band(median: float = MEDIAN, upper: float = P99) -> ForecastBand:
    """Two quiet hours, one hour of the event, one quiet hour."""
    quiet, busy = (7_000.0, 8_000.0, 9_000.0), (20_000.0, median, upper)
    rows = (quiet,) * 24 + (busy,) * 12 + (quiet,) * 12
    return ForecastBand(
        "f", NOW, NOW, STEP, (0.1, 0.5, 0.99), rows, ForecastState.READY, event_ids=frozenset({"midnight"})
    )


def event(**given: float) -> Event:
    start_at = NOW + timedelta(hours=2)
    return Event("midnight", start_at, start_at + timedelta(hours=1), **given)  # type: ignore[arg-type]


def workload(**policy: float) -> Workload:
    profile = CapacityProfile("int8", "T4", 5200.0, instance_count=2, batch_size_max=64)
    return Workload("w", "m", (profile,), max_replicas=40, policy=Policy(cost_under_per_hour=999.0, **policy))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("confidence", "expected"), [(0.8, 42_000.0), (1.0, 35_000.0), (0.25, 61_250.0), (0.0, P99)]
)
def test_a_stated_peak_is_exceeded_by_what_its_planner_is_unsure_of(
    confidence: float, expected: float
) -> None:
    demand, _ = event_demand(
        event(expected_peak_qps=35_000.0, confidence=confidence), workload(), band(), observed_qps=None
    )

    assert demand == pytest.approx(expected)


def test_what_past_events_taught_is_not_cut_off_at_what_was_said() -> None:
    demand, _ = event_demand(
        event(expected_peak_qps=35_000.0),
        workload(),
        band(median=70_000.0, upper=120_000.0),
        observed_qps=None,
    )

    assert demand == pytest.approx(84_000.0)


def test_a_stated_multiplier_is_bounded_from_the_median() -> None:
    demand, _ = event_demand(event(expected_multiplier=4.4), workload(), band(), observed_qps=None)

    assert demand == pytest.approx(1.2 * MEDIAN)


def test_an_event_of_unknown_size_keeps_the_forecasts_quantile() -> None:
    demand, _ = event_demand(event(), workload(), band(), observed_qps=None)

    assert demand == P99


def test_the_plan_inside_the_event_is_bounded_too_and_outside_it_is_not() -> None:
    plan = build_plan(
        workload(),
        now=NOW,
        band=band(),
        trust=Trust.TRUSTED,
        events=(event(expected_peak_qps=35_000.0),),
        lead=LeadTime(60.0),
    )
    unbounded = build_plan(
        workload(), now=NOW, band=band(), trust=Trust.TRUSTED, events=(event(),), lead=LeadTime(60.0)
    )

    assert max(plan.need) < max(unbounded.need)
    assert plan.need[:24] == unbounded.need[:24]
    assert max(plan.need) == max(f.replicas for f in plan.floors if f.event_id)
