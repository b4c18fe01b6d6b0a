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
    async with asyncio.timeout(60):
        while True:  # Triton counts a request shortly after it has answered it
            page = await scraper.scrape(triton.endpoints.metrics_url, "recommender")
            assert isinstance(page, ReplicaMetrics)
            if page.success_count >= len(verified.probe_latencies_ms):
                break
            await clock.sleep(0.05)
    await scraper.close()
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

    # PromQL's comparison gives nothing until the scraped counter is what Triton itself says.
    counted = await until_known(f"sum({SUCCESSES}) == {page.success_count:g}")
    resting = await until_known(f"sum(rate({SUCCESSES}[10s]))")
    await client.close()

    assert counted == page.success_count > 0
    assert resting == 0.0
