"""A made-up demo record for the tests of figures and pages."""

import numpy as np

from controller.demo.record import Band, DemoRecord, Frame, Move, RunRecord

SECONDS = 60.0


def demand_qps(second: float) -> float:
    return 35_000.0 if 30 <= second < 48 else 8_000.0 + 1_000.0 * np.sin(second / 10)


def made_up_run(name: str, *, warm_from_s: float, slow_from_s: float | None) -> RunRecord:
    run = RunRecord(name, SECONDS)
    random = np.random.default_rng(1)
    for number in range(1200):
        second = number * SECONDS / 1200
        slow = slow_from_s is not None and slow_from_s <= second < slow_from_s + 12
        run.sent_s.append(second)
        run.latency_ms.append(2_000.0 if slow else 20.0 + float(random.exponential(15.0)))
        run.answered.append(not slow)
    for tick in range(240):
        second = tick * SECONDS / 240
        up = warm_from_s <= second < 52
        ordered = warm_from_s - 10 <= second < warm_from_s
        run.frames.append(Frame(second, 5 if up or ordered else 2, 5 if up else 2, 3 if ordered else 0, 0))
    start = [demand_qps(s) for s in np.arange(0, SECONDS, 1.5)]
    run.bands.append(
        Band(
            0.0,
            0.0,
            1.5,
            "READY",
            {"0.1": [v * 0.9 for v in start], "0.5": start, "0.99": [v * 1.2 for v in start]},
        )
    )
    run.moves.append(
        Move(
            warm_from_s - 10,
            "2026-11-26T12:40:00+00:00",
            2,
            5,
            "EVENT_FLOOR",
            "Scale 2 -> 5: event demo <b> needs 5 warm by 13:00:00 UTC.",
        )
    )
    run.contract = {"replicas": 5, "met_s": warm_from_s, "order_s": warm_from_s - 10, "sentence": "It fits."}
    return run


def made_up_record(*, baseline: bool = True) -> DemoRecord:
    seconds = [float(s) for s in np.arange(0, SECONDS, 0.5)]
    return DemoRecord(
        facts={
            "slo_ms": 250.0,
            "speed": 600.0,
            "start_at": "2026-11-26T06:00:00+00:00",
            "cold_start_s": 10.0,
            "source": "made-up counts",
            "source_detail": "moved by 3 weeks",
            "event": {"start_s": 30.0, "end_s": 48.0, "base_qps": 8_000.0, "peak_qps": 35_000.0},
            "real": ["PostgreSQL", "Triton", "The code that `forecrest up` runs"],
            "simulated": ["The device's time <per batch>."],
        },
        demand_s=seconds,
        demand_qps=[demand_qps(s) for s in seconds],
        history_s=[-86_400.0 * 14 + 3_600.0 * h for h in range(14 * 24)],
        history_qps=[5_000.0 + 3_000.0 * np.sin(h / 24 * 6.283) for h in range(14 * 24)],
        with_prediction=made_up_run("with_prediction", warm_from_s=26.0, slow_from_s=None),
        without_prediction=made_up_run("without_prediction", warm_from_s=44.0, slow_from_s=30.0)
        if baseline
        else None,
    )
