"""Refit many workloads: the same task through a pool of processes (default) or Ray.

Promises: results come back in the order of the jobs, whatever order they finish in; a series that fails, that
outlasts its deadline or whose process dies is an outcome with its reason and never stops the rest; memory in flight
is bounded.
Refuses: worker counts below one. Ray is imported only when it is asked for.
Called by: the command line and benchmarks. The controller's loop gives its refits to `forecaster.workers` itself,
because each reads its history only when a process is free.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, TypeVar

import pandas as pd

from forecaster.service import QUANTILE_LEVELS, forecast
from forecaster.types import Event, Forecast
from forecaster.workers import DEADLINE_S, TaskError, Workers, worker_count

Item = TypeVar("Item")
Result = TypeVar("Result")
Progress = Callable[[int, int], None]

# So few jobs are done before processes have started.
ALONE_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Job:
    """One workload to refit; arguments as for `forecast`."""

    name: str
    history: pd.Series
    horizon_steps: int
    events: tuple[Event, ...] = ()
    quantile_levels: tuple[float, ...] = QUANTILE_LEVELS


@dataclass(frozen=True, slots=True)
class Outcome:
    """The forecast of a job, or the reason why there is none."""

    name: str
    forecast: Forecast | None
    reason: str = ""


def refit(
    jobs: Sequence[Job],
    *,
    workers: int | None = None,
    deadline_s: float = DEADLINE_S,
    progress: Progress | None = None,
) -> tuple[Outcome, ...]:
    """Refit `jobs` in a pool of processes; in this process when there is one worker or a handful of jobs.

    Args:
        jobs: Workloads.
        workers: Processes; what suits this machine when None.
        deadline_s: What a series may take in a process of the pool.
        progress: Called with jobs done and jobs in all, from this thread.
    """
    count = worker_count() if workers is None else workers
    _check(count)
    if count == 1 or len(jobs) <= ALONE_MAX:
        return _collect(((k, run_job(job)) for k, job in enumerate(jobs)), len(jobs), progress)
    done = through_workers(run_job, jobs, workers=count, deadline_s=deadline_s)
    return _collect(
        ((k, _outcome(jobs[k], found)) for k, found in done),
        len(jobs),
        progress,
    )


def through_workers(
    task: Callable[[Item], Result], items: Sequence[Item], *, workers: int, deadline_s: float = DEADLINE_S
) -> Iterator[tuple[int, Result | TaskError]]:
    """Run a task on each item in processes; yield the item's number and what came of it, as they finish."""
    with Workers(workers, deadline_s=deadline_s) as pool, ThreadPoolExecutor(workers) as threads:
        try:
            running = {threads.submit(pool.call, task, item): k for k, item in enumerate(items)}
            for future in as_completed(running):
                k, error = running.pop(future), future.exception()
                if error is not None and not isinstance(error, TaskError):
                    raise error
                yield k, future.result() if error is None else error
        finally:
            # Before the threads are waited for: Ctrl-C ends what they wait for.
            threads.shutdown(wait=False, cancel_futures=True)
            pool.close()


def refit_on_ray(
    jobs: Sequence[Job],
    *,
    address: str | None = None,
    workers: int | None = None,
    deadline_s: float = DEADLINE_S,
    progress: Progress | None = None,
) -> tuple[Outcome, ...]:
    """Refit `jobs` on Ray; `workers` bounds the jobs in flight.

    Without an address (nor `RAY_ADDRESS`) a local Ray is started and ended again: on loopback alone, with no
    more processes than are asked for, and without reporting its use to anybody.

    Args:
        jobs: Workloads.
        address: Of a running cluster; a local one when None.
        workers: Jobs in flight; two per core of the cluster when None.
        deadline_s: Jobs in flight are given up when none of them has ended for so long.
        progress: Called with jobs done and jobs in all.

    Raises:
        ModuleNotFoundError: Ray is not installed; install the `ray` extra.
    """
    if workers is not None:
        _check(workers)
    try:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported
        ray = import_module("ray")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("Ray is not installed; install forecrest[ray] or use refit().") from error
    started = not ray.is_initialized()
    if started:
        local: dict[str, Any] = {}
        if address is None and "RAY_ADDRESS" not in os.environ:
            local = {"_node_ip_address": "127.0.0.1", "include_dashboard": False, "num_cpus": workers}
        ray.init(address=address, log_to_driver=False, **local)
    try:
        count = 2 * int(ray.cluster_resources().get("CPU", 1)) if workers is None else workers
        return _collect(_through_ray(ray, jobs, count, deadline_s), len(jobs), progress)
    finally:
        if started:
            ray.shutdown()


def run_job(job: Job) -> Outcome:
    """Run one job; every failure is an outcome, because a fleet must not stop at one bad series."""
    try:
        result = forecast(job.history, job.horizon_steps, job.quantile_levels, job.events)
    except Exception as error:  # noqa: BLE001 - any failure is reported with its job; none may stop the fleet
        return Outcome(job.name, None, f"{type(error).__name__}: {error}")
    return Outcome(job.name, result)


def _outcome(job: Job, found: Outcome | TaskError) -> Outcome:
    return Outcome(job.name, None, str(found)) if isinstance(found, TaskError) else found


def _check(count: int) -> None:
    if count < 1:
        raise ValueError(f"workers is {count}; give at least 1.")


def _collect(
    done: Iterator[tuple[int, Outcome]], total: int, progress: Progress | None
) -> tuple[Outcome, ...]:
    results: dict[int, Outcome] = {}
    for k, outcome in done:
        results[k] = outcome
        if progress is not None:
            progress(len(results), total)
    assert len(results) == total, "a job was lost"
    return tuple(results[k] for k in range(total))


def _through_ray(
    ray: Any,  # noqa: ANN401 - Ray is an optional dependency without types here
    jobs: Sequence[Job],
    count: int,
    deadline_s: float,
) -> Iterator[tuple[int, Outcome]]:
    task = ray.remote(num_cpus=1, max_retries=2)(run_job)
    waiting = list(reversed(range(len(jobs))))
    running: dict[Any, int] = {}
    while waiting or running:
        while waiting and len(running) < count:
            k = waiting.pop()
            try:
                running[task.remote(jobs[k])] = k
            except Exception as error:  # noqa: BLE001 - whatever keeps a job from travelling is this job's alone
                reason = f"It cannot be sent to a process: {type(error).__name__}: {error}"
                yield k, Outcome(jobs[k].name, None, reason)
        if not running:
            continue
        finished, late = ray.wait(list(running), num_returns=1, timeout=deadline_s)
        if not finished:
            for reference in late:
                ray.cancel(reference, force=True)
                k = running.pop(reference)
                yield (
                    k,
                    Outcome(jobs[k].name, None, f"It took longer than {deadline_s:g} s and was given up."),
                )
        for reference in finished:
            k = running.pop(reference)
            try:
                yield k, ray.get(reference)
            except ray.exceptions.RayError as error:
                yield k, Outcome(jobs[k].name, None, f"Ray: {type(error).__name__}")
