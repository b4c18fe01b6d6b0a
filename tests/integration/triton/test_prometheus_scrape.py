"""Prometheus scrapes a real Triton, and a query on what it scraped is the demand that was sent."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from controller.actuators.triton import WarmTarget, verify_warm
from controller.adapters.clock import SystemClock
from controller.adapters.demand import ReplicaMetrics
from controller.adapters.embedded.triton_server import TritonServer
from controller.adapters.prometheus import Prometheus, PrometheusAccess
from controller.adapters.triton_metrics import TritonScraper
from engines.triton_repository import ServedModel
from tests.integration.prometheus.conftest import StartPrometheus, start_prometheus

pytestmark = pytest.mark.triton
__all__ = ["start_prometheus"]

SUCCESSES = 'nv_inference_request_success{model="recommender"}'


async def test_requests_that_triton_answered_are_the_rate_that_prometheus_tells(
    start_triton: Callable[[Path], Awaitable[TritonServer]],
    build_model: Callable[..., ServedModel],
    start_prometheus: StartPrometheus,
) -> None:
    model = build_model()
    triton = await start_triton(model.repository)
    target = WarmTarget(
        model_name=model.name, model_version="1", engine_digest=model.digest, latency_ms_max=2000
    )
    verified = await verify_warm(triton.endpoints.grpc, target, clock=SystemClock())
    assert verified.is_warm
    scraper, clock = TritonScraper(SystemClock(), timeout_s=30), SystemClock()

    async def told_by_triton() -> float:
        page = await scraper.scrape(triton.endpoints.metrics_url, "recommender")
        assert isinstance(page, ReplicaMetrics)
        return page.success_count

    server = await start_prometheus(urlsplit(triton.endpoints.metrics_url).netloc)
    client = Prometheus(PrometheusAccess(server.url), clock)

    async def until_known(query: str) -> float:
        """The query's first value: Prometheus scrapes every second."""
        async with asyncio.timeout(60):
            while True:
                value = await client.rate(query, clock.now())
                if value is not None:
                    return value
                await clock.sleep(0.2)

    # Triton counts a request shortly after it has answered it, and Prometheus sees it at the next scrape.
    counted, told = 0.0, await told_by_triton()
    async with asyncio.timeout(90):
        while counted != told or told < len(verified.probe_latencies_ms):
            counted, told = await until_known(f"sum({SUCCESSES})"), await told_by_triton()
    resting = await until_known(f"sum(rate({SUCCESSES}[10s]))")
    await client.close()
    await scraper.close()

    assert counted == told
    assert told >= len(verified.probe_latencies_ms)  # beside what Triton itself infers while it loads
    assert resting == 0.0
