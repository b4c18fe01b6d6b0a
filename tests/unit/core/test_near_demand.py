"""Near quantiles lead within the lead time, and step aside when stale, unsound or too short."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from controller.core.capacity import required_replicas
from controller.core.leadtime import LeadTime
from controller.core.tick import on_tick
from controller.core.types import (
    CapacityProfile,
    DemandObservation,
    FleetState,
    ForecastBand,
    ForecastState,
    NearDemand,
    Policy,
    RecordDecision,
    Replica,
    Source,
    Stage,
    TickInput,
    Trust,
    Workload,
    WorkloadInput,
)

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
W = Workload(
    "w",
    "m",
    (CapacityProfile("e", "g", 100.0),),
    max_replicas=50,
    policy=Policy(cost_under_per_hour=0.99, cost_over_per_hour=0.01),
)
NEAR = NearDemand(NOW, timedelta(seconds=300), (0.9, 0.99, 0.999), (700.0, 900.0, 1500.0))
BAND = ForecastBand(
    "f", NOW, NOW, timedelta(minutes=1), (0.5, 0.99), ((500.0, 2500.0),) * 60, ForecastState.READY
)


def _input(near: NearDemand | None, band: ForecastBand | None = BAND, warm: int = 6) -> WorkloadInput:
    replicas = tuple(Replica(f"r{i}", Stage.VERIFIED, NOW, NOW) for i in range(warm))
    demand = DemandObservation(NOW, 500.0, 500.0, 0.0, warm, warm, timedelta(hours=1))
    return WorkloadInput(
        W, replicas, warm, demand, forecast=band, trust=Trust.TRUSTED, near=near, lead=LeadTime(300.0)
    )


def _desired(inp: WorkloadInput) -> int | None:
    state, _ = on_tick(FleetState(), TickInput(NOW, (inp,)))
    return state.workloads["w"].desired_replicas


def _need(qps: float) -> int:
    return required_replicas(qps, W.profile, W.slo)


def test_near_quantiles_replace_the_refits_wider_ones() -> None:
    assert _desired(_input(NEAR)) == _need(900.0)
    assert _desired(_input(None)) == _need(2500.0)


def test_near_quantiles_need_no_forecast() -> None:
    assert _desired(_input(NEAR, band=None)) == _need(900.0)


def test_present_load_still_counts_when_it_is_higher() -> None:
    low = replace(NEAR, qps=(10.0, 20.0, 30.0))

    assert _desired(_input(low)) == _need(500.0)


@pytest.mark.parametrize(
    "near",
    [
        replace(NEAR, at=NOW - timedelta(minutes=6)),
        replace(NEAR, at=NOW + timedelta(minutes=6)),
        replace(NEAR, lead=timedelta(seconds=60)),
        replace(NEAR, qps=(700.0, float("nan"), 1500.0)),
        replace(NEAR, qps=(700.0, -1.0, 1500.0)),
        replace(NEAR, qps=(700.0,)),
        replace(NEAR, levels=(), qps=()),
        replace(NEAR, levels=(0.99, 0.9, 0.999)),
        replace(NEAR, levels=(0.9, 0.99, 1.0)),
        replace(NEAR, levels=(0.0, 0.99, 0.999)),
    ],
)
def test_what_is_stale_short_sighted_or_unsound_is_not_used(near: NearDemand) -> None:
    assert _desired(_input(near)) == _need(2500.0)


def test_a_longer_break_even_still_asks_the_plan() -> None:
    patient = replace(W, policy=replace(W.policy, break_even=timedelta(minutes=20)))
    inp = replace(_input(NEAR, warm=20), workload=patient)

    _, effects = on_tick(FleetState(), TickInput(NOW, (inp,)))

    decision = next(e.decision for e in effects if isinstance(e, RecordDecision))
    assert {Source.PLAN, Source.KEEP_WARM} <= {r.source for r in decision.recommendations}


def test_the_decision_says_how_far_demand_may_rise() -> None:
    _, effects = on_tick(FleetState(), TickInput(NOW, (_input(NEAR),)))

    decision = next(e.decision for e in effects if isinstance(e, RecordDecision))
    assert "demand may reach 900 QPS (P99) within the lead time of 300 s, which needs" in decision.sentence
    assert "near demand" in {age.name for age in decision.inputs}
