"""Scrapes over real sockets: an answer, a refusal and silence are three outcomes, and zero is an answer."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web

from controller.adapters.clock import SystemClock
from controller.adapters.demand import ReplicaMetrics
from controller.adapters.embedded.folder import choose_port
from controller.adapters.triton_metrics import (
    ScrapeFailure,
    ScrapeProblem,
    TritonDemandMeter,
    TritonScraper,
)
from controller.core.types import Replica, Stage
from controller.ports import PoolView

NOW = datetime(2026, 11, 11, tzinfo=UTC)
Respond = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[[Respond], Awaitable[str]]


def page(success: int, pending: int = 0) -> str:
    return "".join(
        f'{metric}{{model="m",version="1"}} {value}\n'
        for metric, value in {
            "nv_inference_request_success": success,
            "nv_inference_request_failure": 0,
            "nv_inference_pending_request_count": pending,
            "nv_inference_queue_duration_us": success,
            "nv_inference_exec_count": success,
        }.items()
    )


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    runners: list[web.AppRunner] = []

    async def start(respond: Respond) -> str:
        app = web.Application()
        app.router.add_get("/metrics", respond)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        runners.append(runner)
        await runner.setup()
        port = choose_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        return f"http://127.0.0.1:{port}/metrics"

    yield start
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
async def scraper() -> AsyncIterator[TritonScraper]:
    scraper = TritonScraper(SystemClock(), timeout_s=30)
    yield scraper
    await scraper.close()


async def respond_never(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def respond_without_end(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    try:
        while True:
            await response.write(b"# " + b"x" * 65536 + b"\n")
    except ConnectionResetError:
        return response


async def respond_error(_: web.Request) -> web.StreamResponse:
    return web.Response(status=503)


async def respond_page(_: web.Request) -> web.StreamResponse:
    return web.Response(text=page(7))


async def respond_elsewhere(_: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("http://127.0.0.1:1/")


async def test_an_answer_is_a_reading(serve: Serve, scraper: TritonScraper) -> None:
    reading = await scraper.scrape(await serve(respond_page))

    assert isinstance(reading, ReplicaMetrics)
    assert reading.success_count == 7


@pytest.mark.parametrize(
    ("respond", "problem"),
    [
        (respond_error, ScrapeProblem.REFUSED),
        (respond_elsewhere, ScrapeProblem.REFUSED),
        (respond_without_end, ScrapeProblem.INVALID),
    ],
)
async def test_whatever_is_no_answer_has_a_name(
    serve: Serve, scraper: TritonScraper, respond: Respond, problem: ScrapeProblem
) -> None:
    outcome = await scraper.scrape(await serve(respond))

    assert isinstance(outcome, ScrapeFailure)
    assert problem is outcome.problem


async def test_no_answer_in_time_is_late(serve: Serve) -> None:
    scraper = TritonScraper(SystemClock(), timeout_s=0.1)
    outcome = await scraper.scrape(await serve(respond_never))
    await scraper.close()

    assert isinstance(outcome, ScrapeFailure)
    assert outcome.problem is ScrapeProblem.LATE


async def test_nobody_listening_is_a_refusal(scraper: TritonScraper) -> None:
    outcome = await scraper.scrape(f"http://127.0.0.1:{choose_port()}/metrics")

    assert isinstance(outcome, ScrapeFailure)
    assert outcome.problem is ScrapeProblem.REFUSED


def replica(name: str, url: str | None, stage: Stage = Stage.VERIFIED) -> Replica:
    return Replica(id=name, stage=stage, ordered_at=NOW, stage_at=NOW, metrics_url=url)


async def test_meter_reports_who_answered_and_leaves_out_who_nobody_answered_for(serve: Serve) -> None:
    good, silent = await serve(respond_page), await serve(respond_error)
    meter = TritonDemandMeter(SystemClock(), timeout_s=30)
    views = {
        "half": PoolView(2, (replica("a", good), replica("b", silent))),
        "silent": PoolView(1, (replica("c", silent),)),
        "starting": PoolView(1, (replica("d", good, Stage.LOADED), replica("e", None, Stage.ORDERED))),
        "empty": PoolView(0, ()),
    }

    assert await meter.scrape(views) == {}  # first readings are starting points
    observed = await meter.scrape(views)
    await meter.close()

    assert {"half"} == observed.keys()
    assert (1, 2) == (observed["half"].reporting_count, observed["half"].expected_count)
    assert observed["half"].stable_qps == 0  # it answered, and its counters stood still
    assert {"b": ScrapeProblem.REFUSED, "c": ScrapeProblem.REFUSED} == {
        name: failure.problem for name, failure in meter.failures.items()
    }


async def test_meter_counts_from_the_baseline_where_it_is_known(serve: Serve) -> None:
    url = await serve(respond_page)
    clock = SystemClock()
    baseline = ReplicaMetrics(
        at=clock.now() - timedelta(seconds=5),
        success_count=5,
        failure_count=0,
        pending_count=0,
        queue_duration_us=0,
        exec_count=5,
    )
    meter = TritonDemandMeter(clock, timeout_s=30, baselines=lambda: {"a": baseline})

    observed = await meter.scrape({"w": PoolView(1, (replica("a", url),))})
    await meter.close()

    # 7 answered, 5 of them in warm-up: 2 requests since the baseline.
    passed_s = (observed["w"].at - baseline.at).total_seconds()
    assert observed["w"].stable_qps == pytest.approx(2 / passed_s)
