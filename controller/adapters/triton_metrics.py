"""Scrape replicas' Triton metrics and meter their demand.

Promises: one bounded request per replica and cycle, all at once; an answer, a refusal and silence
are three different outcomes, and an answer of standing counters is a fourth thing, zero traffic.
Refuses pages that are too large, not in the exposition format, without the inference counters, or
with values that are not finite. Called by the loop's observer.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from http import HTTPStatus

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from controller.adapters.demand import DemandMeter, Departure, ReplicaMetrics
from controller.core.resources import TrafficSample
from controller.core.types import DemandObservation, Replica, Stage
from controller.ports import Clock, PoolView

# Triton serves some ten series per model and GPU; a page beyond this is not Triton's.
_BODY_BYTES_MAX = 1024 * 1024
_METRICS = {
    "nv_inference_request_success": "success_count",
    "nv_inference_request_failure": "failure_count",
    "nv_inference_pending_request_count": "pending_count",
    "nv_inference_queue_duration_us": "queue_duration_us",
    "nv_inference_exec_count": "exec_count",
}
_SHOWN_FROM_LOAD = "success_count"


class ScrapeProblem(StrEnum):
    """Why there is no reading."""

    REFUSED = "REFUSED"  # nobody listens, or the answer is an error
    LATE = "LATE"  # no answer in time
    INVALID = "INVALID"  # an answer that cannot be used


@dataclass(frozen=True, slots=True)
class ScrapeFailure:
    """A scrape without a reading."""

    problem: ScrapeProblem
    detail: str


class InvalidMetricsError(ValueError):
    """A metrics page that cannot be used; says what is wrong with it."""


def parse_metrics(page: str, at: datetime, model: str | None = None) -> ReplicaMetrics:
    """Read the inference counters of `model`, or of all models, from an exposition page.

    Series of one metric are summed: on a GPU Triton shows each counter once per `gpu_uuid` and once
    without it at 0, and failures once per reason. Which models and GPUs they are of is told by the successes, which
    Triton shows from the load of a model on.

    Raises:
        InvalidMetricsError: not the exposition format, a counter missing, or a value not finite or negative.
    """
    sums: dict[str, float] = {}
    series: set[str] = set()
    try:
        samples = [s for family in text_string_to_metric_families(page) for s in family.samples]
    except (ValueError, KeyError, IndexError) as error:
        raise InvalidMetricsError(f"not in the exposition format: {error}") from error
    for sample in samples:
        # The parser appends _total to the samples of every counter, as OpenMetrics names them.
        metric = sample.name.removesuffix("_total")
        name = _METRICS.get(metric)
        if name is None or (model is not None and sample.labels.get("model") != model):
            continue
        if not 0 <= sample.value < math.inf:
            raise InvalidMetricsError(f"{metric} is {sample.value}")
        sums[name] = sums.get(name, 0.0) + sample.value
        if name == _SHOWN_FROM_LOAD:
            series.add(repr(sorted(sample.labels.items())))
    missing = [metric for metric, name in _METRICS.items() if name not in sums]
    if missing:
        of = "" if model is None else f" of model {model}"
        raise InvalidMetricsError(f"{missing[0]}{of} is missing; is the model loaded and are its metrics on?")
    return ReplicaMetrics(at=at, series=frozenset(series), **sums)


class TritonScraper:
    """Reads metrics pages; close it to release its connections."""

    def __init__(self, clock: Clock, *, timeout_s: float = 1.0) -> None:
        self._clock, self._timeout = clock, aiohttp.ClientTimeout(total=timeout_s)
        self._session: aiohttp.ClientSession | None = None

    async def scrape(self, url: str, model: str | None = None) -> ReplicaMetrics | ScrapeFailure:
        """One reading of one replica; never raises for what the replica does."""
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._timeout)
        try:
            async with self._session.get(url, allow_redirects=False) as response:
                if response.status != HTTPStatus.OK:
                    return ScrapeFailure(ScrapeProblem.REFUSED, f"{url} answered {response.status}")
                # Read to one byte beyond the bound; `read(n)` may return less than there is.
                body = bytearray()
                async for chunk in response.content.iter_chunked(64 * 1024):
                    body += chunk
                    if len(body) > _BODY_BYTES_MAX:
                        return ScrapeFailure(
                            ScrapeProblem.INVALID, f"{url} sent over {_BODY_BYTES_MAX} bytes"
                        )
            return parse_metrics(body.decode(), self._clock.now(), model)
        except TimeoutError:
            return ScrapeFailure(ScrapeProblem.LATE, f"{url} did not answer within {self._timeout.total:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return ScrapeFailure(ScrapeProblem.REFUSED, f"{url}: {error}")
        except ValueError as error:  # bytes that are no text, and pages that are no metrics
            return ScrapeFailure(ScrapeProblem.INVALID, f"{url}: {error}")

    async def close(self) -> None:
        """Release connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


class TritonDemandMeter:
    """Implements `controller.ports.DemandMeterPort` on replicas' metrics pages."""

    def __init__(
        self,
        clock: Clock,
        *,
        timeout_s: float = 1.0,
        stable_window: timedelta = timedelta(seconds=60),
        panic_window: timedelta = timedelta(seconds=6),
        baselines: Callable[[], Mapping[str, ReplicaMetrics]] = dict,
        departures: Callable[[], Sequence[Departure]] = tuple,
        concurrency: int = 64,
    ) -> None:
        """`baselines` tells replicas' counters from just before their first request, where it is known.

        `departures` hands out, once each, the last counters of replicas that have ended since.
        """
        self._clock, self._baselines, self._departures = clock, baselines, departures
        self._scraper = TritonScraper(clock, timeout_s=timeout_s)
        self._slots = asyncio.Semaphore(concurrency)
        self.meter = DemandMeter(stable_window=stable_window, panic_window=panic_window)
        self.failures: dict[str, ScrapeFailure] = {}  # newest cycle's, by replica

    def set_windows(self, workload: str, stable: timedelta, panic: timedelta) -> None:
        """Average this workload over its policy's windows from now on."""
        self.meter.windows[workload] = (stable, panic)

    async def scrape(self, views: Mapping[str, PoolView]) -> Mapping[str, DemandObservation]:
        """Scrape every warm or draining replica once; a workload nobody answered for is missing."""
        for departure in self._departures():
            self.meter.depart(departure)
        asked = [
            (name, replica)
            for name, view in views.items()
            for replica in view.replicas
            if replica.stage in {Stage.VERIFIED, Stage.DRAINING} and replica.metrics_url
        ]
        outcomes = await asyncio.gather(*(self._one(replica) for _, replica in asked))
        readings: dict[str, dict[str, ReplicaMetrics | None]] = {}
        self.failures = {}
        for (name, replica), outcome in zip(asked, outcomes, strict=True):
            reading = readings.setdefault(name, {})
            if isinstance(outcome, ScrapeFailure):
                self.failures[replica.id] = outcome
                reading[replica.id] = None
            else:
                reading[replica.id] = outcome
        now, baselines = self._clock.now(), self._baselines()
        observed = {
            name: self.meter.record(name, now, by_replica, baselines) for name, by_replica in readings.items()
        }
        return {name: observation for name, observation in observed.items() if observation is not None}

    async def _one(self, replica: Replica) -> ReplicaMetrics | ScrapeFailure:
        assert replica.metrics_url is not None
        async with self._slots:
            return await self._scraper.scrape(replica.metrics_url)

    def drain_samples(self) -> Sequence[TrafficSample]:
        """Minutes completed or corrected since the last call, for the traffic store."""
        return self.meter.drain(self._clock.now())

    async def close(self) -> None:
        """Release connections."""
        await self._scraper.close()
