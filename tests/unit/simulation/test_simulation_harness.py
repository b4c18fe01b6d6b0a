"""The harness: what policies see, what they pay, and that nobody but the oracle sees the future."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from controller.simulation.cluster import Cluster, ClusterModel
from controller.simulation.frontier import hours_at, sweep
from controller.simulation.harness import Observation, simulate, with_limits, write_timeline
from controller.simulation.ours import Forecrest, Foresight
from controller.simulation.peers import Hpa, Kpa, LastValue, Oracle, ahead_max
from controller.simulation.registry import NAMES, entries, make
from controller.simulation.trace import Floats, Trace, TraceEvent

START = datetime(2026, 1, 5, tzinfo=UTC)
MODEL = ClusterModel(max_replicas=60)


def _trace(qps: Sequence[float] | Floats, step_s: int = 60) -> Trace:
    return Trace("made", START, step_s, np.asarray(qps, dtype=np.float64))


def _days(days: float, seed: int = 3) -> Trace:
    """Return days with a daily wave, a jump at ten o'clock and noise."""
    minutes = np.arange(round(days * 1440))
    wave = 1200 + 900 * np.sin(2 * np.pi * (minutes / 1440 - 0.3))
    jump = np.where(minutes % 1440 // 60 == 10, 1200.0, 0.0)
    noise = np.random.default_rng(seed).normal(1.0, 0.03, len(minutes))
    return _trace((wave + jump) * noise)


class _Script:
    """A policy that does what it is told, and keeps what it saw."""

    name = "script"
    period_s = 15

    def __init__(self, counts: dict[float, int]) -> None:
        self.counts = counts
        self.seen: list[tuple[float, float | None, int, int]] = []

    def prepare(self, trace: Trace, events: Sequence[TraceEvent], model: ClusterModel) -> None:
        self.seen = []

    def desired(self, now_s: float, observation: Observation) -> int:
        self.seen.append((now_s, observation.stable_qps, len(observation.warm), len(observation.starting)))
        return self.counts.get(now_s, observation.desired)


def test_a_replica_is_paid_from_its_order_and_warm_after_the_cold_start() -> None:
    script = _Script({60.0: 5})

    result = simulate(_trace([100.0] * 20), (), [script], MODEL)[0]

    line = result.timeline
    assert line.paid.tolist()[3:5] == [2, 5]
    warm_at = line.ready.tolist().index(5) * line.step_s
    assert warm_at == 60 + 300
    assert result.replica_hours == pytest.approx((2 * 60 + 5 * (20 * 60 - 60)) / 3600)


def test_a_policy_sees_the_mean_of_the_last_minute_only() -> None:
    script = _Script({})

    simulate(_trace([100.0, 200.0]), (), [script], MODEL)

    seen = {at: qps for at, qps, _, _ in script.seen}
    assert seen[60.0] == 100.0
    assert seen[75.0] == pytest.approx(125.0)
    assert seen[105.0] == pytest.approx(175.0)


def test_unknown_demand_is_unknown_and_costs_nothing() -> None:
    script = _Script({})

    result = simulate(_trace([100.0, np.nan, np.nan, 100.0]), (), [script], MODEL)[0]

    seen = {at: qps for at, qps, _, _ in script.seen}
    assert seen[180.0] is None
    assert result.replica_hours == pytest.approx(2 * 2 * 60 / 3600)


def test_starting_replicas_are_removed_before_warm_ones() -> None:
    cluster = Cluster(MODEL, 3)
    cluster.scale_to(0.0, 6)

    assert cluster.scale_to(10.0, 4) == -2
    assert (len(cluster.warm), len(cluster.starting)) == (3, 1)
    assert cluster.scale_to(10.0, 1) == -3
    assert (len(cluster.warm), len(cluster.starting)) == (1, 0)


def test_slow_batches_and_failed_loads_take_longer() -> None:
    slow = Cluster(replace(MODEL, batch_slowdown=0.1), 0)
    slow.scale_to(0.0, 11)
    failing = Cluster(replace(MODEL, load_failure_share=0.5, seed=2), 0)
    failing.scale_to(0.0, 20)

    assert slow.starting[0].ready_s == pytest.approx(600.0)
    assert {r.ready_s for r in failing.starting} > {300.0}


def test_the_oracle_has_no_violation_and_nobody_is_cheaper_without_any() -> None:
    trace = _days(2.0)
    model = with_limits(ClusterModel(), trace)

    oracle = simulate(trace, (), [Oracle()], model)[0]

    assert oracle.violation_share < 1e-4
    line = oracle.timeline
    # Taking one replica less for any one cold start would leave some need unmet.
    need = np.ceil(line.demand_qps / 100.0)
    assert bool((line.ready >= need).all())
    window = ahead_max(need.astype(np.int64), 300 // line.step_s)
    assert float(line.paid.sum()) <= 1.02 * float(np.maximum(window, 1).sum())


def test_the_oracle_decides_every_second_where_demand_changes_every_second() -> None:
    qps = np.full(600, 100.0)
    qps[197:240] = 900.0  # known to it, but no tick of fifteen seconds is early enough by less than that
    model = replace(MODEL, cold_start_s=60.0)

    assert simulate(_trace(qps, 1), (), [Oracle()], model)[0].violation_share < 1e-4


def test_ahead_max_by_definition() -> None:
    values = np.random.default_rng(1).integers(0, 50, 40)
    for ahead in (0, 1, 2, 3, 5, 8, 13):
        expected = [int(values[i : i + ahead + 1].max()) for i in range(len(values))]
        assert expected == ahead_max(values, ahead).tolist()


def test_hpa_waits_five_minutes_before_it_scales_down() -> None:
    trace = _trace([1000.0] * 10 + [100.0] * 10)

    line = simulate(trace, (), [Hpa(1.0)], MODEL)[0].timeline

    high = int(line.paid[9 * 4])
    assert int(line.paid[14 * 4]) == high
    assert int(line.paid[17 * 4]) == 1


def test_hpa_leaves_ten_percent_alone() -> None:
    trace = _trace([1000.0] * 5 + [1080.0] * 20)

    line = simulate(trace, (), [Hpa(1.0)], MODEL)[0].timeline

    assert int(line.paid[-1]) == int(line.paid[10])


def test_kpa_panics_on_a_doubling_and_never_shrinks_while_it_does() -> None:
    trace = _trace([500.0] * 5 + [1600.0, 1600.0, 300.0])

    line = simulate(trace, (), [Kpa(1.0)], MODEL)[0].timeline

    assert int(line.paid[5 * 4 + 1]) == 16
    assert int(line.paid[7 * 4 + 2]) == 16


def test_last_value_follows_in_both_directions() -> None:
    line = simulate(_trace([500.0] * 5 + [100.0] * 5), (), [LastValue(1.0)], MODEL)[0].timeline

    assert int(line.paid[4 * 4]) == 5
    assert int(line.paid[-1]) == 1


def test_every_policy_runs_and_reports() -> None:
    trace = _days(0.25)
    model = with_limits(ClusterModel(), trace)

    results = simulate(trace, (), make(list(NAMES)), model)

    assert list(NAMES) == [r.policy for r in results]
    for result in results:
        assert 0 <= result.violation_share <= 1
        assert result.replica_hours > 0
        assert {"policy", "violation_share", "wait_ms_p99", "replica_hours", "scale_changes"} <= set(
            result.to_json()
        )


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(ValueError, match=r"policy: 'hpb' is unknown; choose from"):
        make(["hpb"])


@pytest.mark.parametrize("name", [n for n in NAMES if n not in {"oracle", "static-peak", "keda-cron+hpa"}])
def test_no_policy_sees_the_future(name: str) -> None:
    trace = _days(2.2)
    cut = round(2.0 * 1440)
    changed = trace.qps.copy()
    changed[cut:] *= 3.0
    model = with_limits(ClusterModel(), trace)

    one = simulate(trace, (), make([name]), model)[0].timeline
    other = simulate(replace(trace, qps=changed), (), make([name]), model)[0].timeline

    until = cut * 4
    assert one.paid[:until].tolist() == other.paid[:until].tolist()


def test_forecrest_meets_a_daily_jump_for_less_than_reactive_scaling_needs() -> None:
    trace = _days(5.0)
    model = with_limits(ClusterModel(), trace)
    scored_s = 3.5 * 86_400

    ours = simulate(trace, (), [Forecrest(0.99)], model, score_from_s=scored_s)[0]
    hpa = sweep(entries()["hpa"], trace, (), model, score_from_s=scored_s)

    needed = hours_at(hpa, max(ours.violation_share, 1e-4))
    assert ours.violation_share < 0.002
    assert needed is None or ours.replica_hours < 0.8 * needed


def test_foresight_is_shared_only_with_its_own_trace() -> None:
    trace, other = _days(1.0), _days(1.0, seed=4)
    model = with_limits(ClusterModel(), trace)
    foresight = Foresight(other, (), model.cold_start_s)

    shared = simulate(trace, (), [Forecrest(foresight=foresight)], model)[0]
    own = simulate(trace, (), [Forecrest()], model)[0]

    assert own.timeline.paid.tolist() == shared.timeline.paid.tolist()


def test_violations_inside_events_are_told_apart() -> None:
    trace = _trace([100.0] * 10 + [3000.0] * 10 + [100.0] * 20)
    event = TraceEvent(START + timedelta(minutes=10), START + timedelta(minutes=20))

    result = simulate(trace, (event,), [LastValue(1.0)], MODEL)[0]

    assert result.event_violation_share is not None
    assert result.event_violation_share > result.violation_share > 0


def test_the_timeline_can_be_scored_by_others(tmp_path: Path) -> None:
    result = simulate(_trace([100.0, np.nan, 300.0]), (), [LastValue(1.0)], MODEL)[0]
    path = tmp_path / "line.csv"

    write_timeline(path, result.timeline)

    rows = path.read_text(encoding="utf-8").splitlines()
    assert rows[0] == "at_s,demand_qps,ready_replicas,paid_replicas"
    assert rows[1] == "0,100,4,4"
    assert rows[5].startswith("60,,")
    assert len(rows) == 1 + 3 * 4


def test_a_day_at_one_minute_replays_without_forecast_errors_on_gaps() -> None:
    trace = _days(1.0)
    holes = trace.qps.copy()
    holes[300:420] = np.nan
    model = with_limits(ClusterModel(), trace)

    result = simulate(replace(trace, qps=holes), (), [Forecrest()], model)[0]

    # Missing data never scales down.
    paid = result.timeline.paid[300 * 4 : 420 * 4]
    assert bool((np.diff(paid[8:]) >= 0).all())


def test_near_demand_is_known_on_steps_that_no_tick_falls_on() -> None:
    trace = Trace("odd", START, 45, np.full(4 * 80, 500.0))
    foresight = Foresight(trace, (), 300.0)

    assert foresight.near(3.0 * 3600 + 60, 500.0) is not None  # inside of a step
    assert foresight.near(3.0 * 3600, 500.0) is not None
