"""The reference case: 8 000 QPS becomes 35 000 QPS at 00:00:00, registered beforehand; 60 s cold start."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from controller.simulation.cluster import ClusterModel
from controller.simulation.harness import PolicyResult, simulate
from controller.simulation.ours import Forecrest
from controller.simulation.peers import Hpa
from controller.simulation.queueing import Queue
from controller.simulation.trace import Trace, TraceEvent

MIDNIGHT = datetime(2026, 11, 11, tzinfo=UTC)
BEFORE_MIN, PEAK_MIN, AFTER_MIN = 60, 60, 60


@dataclass(frozen=True)
class Engine:
    """Measured capacity of one replica with one engine."""

    qps: float
    replicas_before: int
    replicas_at_peak: int


# The unoptimised engine serves 8 000 QPS on 4 replicas; the prebuilt INT8 engine carries 2.2 times that each.
FP16 = Engine(2000.0, 5, 18)
INT8 = Engine(4400.0, 2, 8)


def _run(engine: Engine, *, registered: bool = True, ours: bool = True) -> PolicyResult:
    minutes = BEFORE_MIN + PEAK_MIN + AFTER_MIN
    qps = np.full(minutes, 8000.0)
    qps[BEFORE_MIN : BEFORE_MIN + PEAK_MIN] = 35_000.0
    trace = Trace("reference", MIDNIGHT - timedelta(minutes=BEFORE_MIN), 60, qps)
    event = TraceEvent(
        MIDNIGHT, MIDNIGHT + timedelta(minutes=PEAK_MIN), "midnight sale", "sale", expected_peak_qps=35_000.0
    )
    model = ClusterModel(queue=Queue(capacity_qps=engine.qps), cold_start_s=60.0, max_replicas=40)
    policy = Forecrest() if ours else Hpa(0.7)
    policy.period_s = 15
    return simulate(trace, (event,) if registered else (), [policy], model)[0]


@pytest.mark.parametrize("engine", [FP16, INT8], ids=["fp16", "int8"])
def test_everything_is_warm_before_midnight_and_nobody_waits(engine: Engine) -> None:
    result = _run(engine)

    line = result.timeline
    at_midnight = BEFORE_MIN * 60 // line.step_s
    half_a_minute = 30 // line.step_s
    assert int(line.ready[at_midnight - half_a_minute]) >= engine.replicas_at_peak
    assert result.violation_share < 1e-4
    assert result.wait_ms_p99 < 500


def test_reactive_scaling_fails_the_same_midnight() -> None:
    result = _run(FP16, registered=False, ours=False)

    assert result.violation_share > 0.005


def test_the_faster_engine_needs_less_than_half() -> None:
    fp16, int8 = _run(FP16), _run(INT8)

    assert fp16.peak_replicas == FP16.replicas_at_peak
    assert int8.peak_replicas == INT8.replicas_at_peak
    assert int8.replica_hours < 0.5 * fp16.replica_hours
