"""Refit many workloads: the same task through a process pool (default) or Ray.

Promises: results come back in the order of the jobs, whatever order they finish in; one failing series is
an outcome with its reason and never stops the rest; a worker that dies costs its own batch, which is tried
once more alone, series by series; memory in flight is bounded.
Refuses: worker counts below one. Ray is imported only when it is asked for.
Called by: the controller's refit cycle and the command line.
"""

import multiprocessing
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import pandas as pd

from forecaster.service import QUANTILE_LEVELS, forecast
from forecaster.types import Event, Forecast

BATCH_SIZE: Final = 8
THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


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
    jobs: Sequence[Job], *, workers: int | None = None, progress: Callable[[int, int], None] | None = None
) -> tuple[Outcome, ...]:
    """Refit `jobs` in a pool of processes; in this process when there is one worker or one batch.

    Args:
        jobs: Workloads.
        workers: Processes; one per available core when None.
        progress: Called with jobs done and jobs in all, from this thread.
    """
    count = len(os.sched_getaffinity(0)) if workers is None else workers
    _check(count)
    batches = _batches(jobs)
    if count == 1 or len(batches) <= 1:
        return _collect(((k, run_batch(batch)) for k, batch in enumerate(batches)), batches, progress)
    return _collect(_through_pool(batches, count), batches, progress)


def refit_on_ray(
    jobs: Sequence[Job],
    *,
    address: str | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Outcome, ...]:
    """Refit `jobs` on Ray; `workers` bounds the batches in flight.

    Without an address (nor `RAY_ADDRESS`) a local Ray is started and ended again: on loopback alone, with no
    more processes than are asked for, and without reporting its use to anybody.

    Args:
        jobs: Workloads.
        address: Of a running cluster; a local one when None.
        workers: Batches in flight; two per core of the cluster when None.
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
        batches = _batches(jobs)
        return _collect(_through_ray(ray, batches, count), batches, progress)
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


def run_batch(batch: Sequence[Job]) -> tuple[Outcome, ...]:
    """Run a few jobs, so that sending them costs little beside running them."""
    return tuple(run_job(job) for job in batch)


def _batches(jobs: Sequence[Job]) -> list[Sequence[Job]]:
    return [jobs[first : first + BATCH_SIZE] for first in range(0, len(jobs), BATCH_SIZE)]


def _check(count: int) -> None:
    if count < 1:
        raise ValueError(f"workers is {count}; give at least 1.")


def _collect(
    done: Iterator[tuple[int, tuple[Outcome, ...]]],
    batches: Sequence[Sequence[Job]],
    progress: Callable[[int, int], None] | None,
) -> tuple[Outcome, ...]:
    results: dict[int, tuple[Outcome, ...]] = {}
    total, finished = sum(len(batch) for batch in batches), 0
    for k, outcomes in done:
        results[k] = outcomes
        finished += len(outcomes)
        if progress is not None:
            progress(finished, total)
    assert len(results) == len(batches), "a batch was lost"
    return tuple(outcome for k in range(len(batches)) for outcome in results[k])


def _through_pool(batches: Sequence[Sequence[Job]], count: int) -> Iterator[tuple[int, tuple[Outcome, ...]]]:
    """Yield batches as they finish; a broken pool is replaced, its batches then run one job per process."""
    broken: list[int] = []
    waiting = list(reversed(range(len(batches))))
    with _pool(count) as pool:
        running: dict[Future[tuple[Outcome, ...]], int] = {}
        while waiting or running:
            # Two batches per worker keep all busy while few histories wait in the queue.
            while waiting and len(running) < 2 * count:
                k = waiting.pop()
                try:
                    running[pool.submit(run_batch, batches[k])] = k
                except BrokenProcessPool:
                    broken.append(k)
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                k = running.pop(future)
                try:
                    yield k, future.result()
                except BrokenProcessPool:
                    broken.append(k)
    for k in sorted(broken):
        yield k, tuple(_alone(job) for job in batches[k])


def _alone(job: Job) -> Outcome:
    """Run one job in a process of its own: what kills it cannot take others along."""
    with _pool(1) as pool:
        try:
            return pool.submit(run_job, job).result()
        except BrokenProcessPool:
            return Outcome(job.name, None, "The worker process died; the series may need too much memory.")


@contextmanager
def _pool(count: int) -> Generator[ProcessPoolExecutor]:
    """Start workers that keep to one core each: the fleet is parallel by processes already.

    Numerical libraries read these variables once, when a worker loads them, so they must be in the
    environment a worker is spawned with; this process has loaded its own long ago and is not affected.
    """
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    try:
        # Spawned, not forked: a fork of a process with threads (gRPC, asyncio) can deadlock.
        with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield pool
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _through_ray(
    ray: Any,  # noqa: ANN401 - Ray is an optional dependency without types here
    batches: Sequence[Sequence[Job]],
    count: int,
) -> Iterator[tuple[int, tuple[Outcome, ...]]]:
    task = ray.remote(num_cpus=1, max_retries=2)(run_batch)
    waiting = list(reversed(range(len(batches))))
    running: dict[Any, int] = {}
    while waiting or running:
        while waiting and len(running) < count:
            k = waiting.pop()
            running[task.remote(list(batches[k]))] = k
        finished, _ = ray.wait(list(running), num_returns=1)
        for reference in finished:
            k = running.pop(reference)
            try:
                yield k, ray.get(reference)
            except ray.exceptions.RayError as error:
                yield k, tuple(Outcome(job.name, None, f"Ray: {type(error).__name__}") for job in batches[k])
