"""Figures are counted, and a record survives its file."""

from pathlib import Path

import pytest
from records import SECONDS, made_up_record

from controller.demo.record import DemoRecord, Frame, RunRecord, figures, replica_seconds


def test_unanswered_and_late_requests_both_miss_the_slo() -> None:
    run = RunRecord("with_prediction", 10.0)
    run.sent_s, run.latency_ms, run.answered = (
        [0.0, 1.0, 2.0, 3.0],
        [10.0, 400.0, 5.0, 250.0],
        [True, True, False, True],
    )

    counted = figures(run, slo_ms=250.0)

    assert (4, 0.5, 1) == (counted.requests, counted.within_slo_share, counted.unanswered)


def test_replicas_are_paid_from_their_order_until_they_are_gone() -> None:
    frames = [
        Frame(-2.0, 1, 1, 0, 0),  # before the load: only what reaches into it counts
        Frame(4.0, 3, 1, 2, 0),
        Frame(8.0, 1, 1, 0, 2),
    ]

    assert 1 * 4 + 3 * 4 + 3 * 2 == replica_seconds(frames, 10.0)


def test_frames_after_the_load_cost_nothing() -> None:
    assert 10.0 == replica_seconds([Frame(0.0, 1, 1, 0, 0), Frame(12.0, 9, 9, 0, 0)], 10.0)


def test_a_record_is_the_same_after_its_file(tmp_path: Path) -> None:
    record = made_up_record()
    record.write(tmp_path / "record.json")

    assert record == DemoRecord.read(tmp_path / "record.json")


def test_the_summary_has_both_runs_and_only_one_without_a_baseline() -> None:
    both, one = made_up_record().summary(), made_up_record(baseline=False).summary()

    assert {"requests", "within_slo_share", "replica_seconds"} <= both["with_prediction"].keys()
    assert both["with_prediction"]["within_slo_share"] > both["without_prediction"]["within_slo_share"]
    assert "without_prediction" not in one


def test_a_run_without_requests_claims_no_share() -> None:
    counted = figures(RunRecord("with_prediction", SECONDS), 250.0)

    assert 0 == counted.requests
    assert counted.within_slo_share != pytest.approx(1.0)
