"""A fleet is refit in processes or on Ray by the same task; one bad series never stops the rest."""

import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

from forecaster.fleet import Job, Outcome, refit, refit_on_ray, run_job


class Does:
    """Stands for a history that makes its worker do something as soon as it arrives there."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self._what = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self._what


def jobs(count: int) -> list[Job]:
    rng = np.random.default_rng(5)
    index = pd.date_range("2026-03-02", periods=24 * 10, freq="1h", tz="UTC")
    return [
        Job(f"workload-{k}", pd.Series(rng.gamma(3.0, 10.0, len(index)), index=index), 6)
        for k in range(count)
    ]


def with_a_bad_one(count: int, position: int) -> list[Job]:
    all_jobs = jobs(count)
    bad = all_jobs[position]
    all_jobs[position] = Job(bad.name, bad.history * -1.0, 6)
    return all_jobs


def check(outcomes: tuple[Outcome, ...], all_jobs: list[Job], *bad: int) -> None:
    assert [job.name for job in all_jobs] == [outcome.name for outcome in outcomes]
    assert list(bad) == [k for k, outcome in enumerate(outcomes) if outcome.forecast is None]
    alone = run_job(all_jobs[0]).forecast
    there = outcomes[0].forecast
    assert alone is not None
    assert there is not None
    assert np.array_equal(alone.values, there.values)


def test_a_pool_keeps_order_survives_bad_series_and_reports_progress() -> None:
    """One is refused, one kills whoever takes it, one never ends, one cannot be sent."""
    all_jobs = with_a_bad_one(20, 9)
    all_jobs[3] = replace(all_jobs[3], history=cast("pd.Series", Does(signal.raise_signal, signal.SIGKILL)))
    all_jobs[14] = replace(all_jobs[14], history=cast("pd.Series", Does(signal.pause)))
    all_jobs[16] = replace(all_jobs[16], history=cast("pd.Series", Does(iter, threading.Lock())))
    seen: list[tuple[int, int]] = []

    outcomes = refit(
        all_jobs, workers=2, deadline_s=20.0, progress=lambda done, total: seen.append((done, total))
    )

    check(outcomes, all_jobs, 3, 9, 14, 16)
    assert "cannot be sent to a process: TypeError" in outcomes[16].reason
    assert "process died 2 times" in outcomes[3].reason
    assert "negative demand" in outcomes[9].reason
    assert "longer than 20 s" in outcomes[14].reason
    assert [(done, 20) for done in range(1, 21)] == seen


def test_one_worker_needs_no_pool() -> None:
    all_jobs = with_a_bad_one(10, 3)

    check(refit(all_jobs, workers=1), all_jobs, 3)
    assert () == refit([])


def test_no_workers_is_refused() -> None:
    with pytest.raises(ValueError, match="workers is 0"):
        refit(jobs(1), workers=0)
    with pytest.raises(ValueError, match="workers is 0"):
        refit_on_ray(jobs(1), workers=0)


@pytest.mark.filterwarnings("default")
def test_ray_runs_the_same_task() -> None:
    """A real local Ray, on loopback; most of its time is the wait for a series that never ends."""
    import ray

    all_jobs = with_a_bad_one(20, 9)
    all_jobs[19] = replace(all_jobs[19], history=cast("pd.Series", Does(signal.pause)))
    all_jobs[16] = replace(all_jobs[16], history=cast("pd.Series", Does(iter, threading.Lock())))
    seen: list[tuple[int, int]] = []

    outcomes = refit_on_ray(
        all_jobs, workers=2, deadline_s=30.0, progress=lambda done, total: seen.append((done, total))
    )

    check(outcomes, all_jobs, 9, 16, 19)
    assert "cannot be sent to a process: TypeError" in outcomes[16].reason
    assert "negative demand" in outcomes[9].reason
    assert "longer than 30 s" in outcomes[19].reason
    assert (20, 20) == seen[-1]
    assert not ray.is_initialized()
