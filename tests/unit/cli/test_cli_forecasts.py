"""explain, accuracy, what-if and the ledger's commands against a real server on the fakes."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from math import pi, sin

import pytest

from controller.accuracy import (
    Backtest,
    HourScore,
    LeadScore,
    ModelScore,
    NaiveScore,
    Parts,
    Standing,
    Switch,
)
from controller.adapters.clock import SystemClock
from controller.adapters.fakes import FakeSignalCache, FakeStore
from controller.api.server import ApiDependencies, serve
from controller.cli.app import run_command
from controller.core.resources import ForecastRun, Outcome, TrafficSample
from controller.core.types import (
    CapacityProfile,
    Decision,
    ForecastBand,
    ForecastState,
    InputAge,
    Mode,
    Reason,
    Recommendation,
    RecommendationKind,
    Source,
    Trust,
    Workload,
)

HOUR = timedelta(hours=1)
STEP = timedelta(minutes=5)
LEVELS = (0.1, 0.5, 0.95, 0.99)
NOW = SystemClock().now().replace(minute=0, second=0, microsecond=0)
Cli = Callable[..., str]


@dataclass
class Served:
    """A server in a thread of its own, and the store it reads."""

    address: str
    store: FakeStore


def fill(store: FakeStore) -> None:
    tables = store.tables
    tables.workloads["rec"] = Workload(
        "rec", "rec", (CapacityProfile("int8", "L4", 1000.0),), max_replicas=30
    )
    rows = tuple((50.0 + k, 100.0 + k, 150.0 + k, 200.0 + k) for k in range(288))
    band = ForecastBand("f1", NOW, NOW, STEP, LEVELS, rows, ForecastState.READY)
    tables.forecasts["f1"] = (ForecastRun("f1", "rec", NOW, NOW - HOUR, 288, (("additive", 1.0),)), band)
    flat = (0.0,) * 288
    tables.parts["f1"] = Parts(
        "f1",
        "rec",
        NOW - HOUR,
        "recent",
        "recent took over.",
        "Highest at noon.",
        90.0,
        flat,
        flat,
        (7.0,) * 288,
    )
    lead = LeadScore(
        timedelta(0), 12, 24.0, (1, 6, 11, 12), 60.0, 1200.0, NaiveScore(12, 48.0, 24.0), NaiveScore()
    )
    tables.scores["rec", NOW - 2 * HOUR] = HourScore(NOW - 2 * HOUR, HOUR, LEVELS, (lead,))
    score = ModelScore("ensemble", "day", 288, 3.5, 0.71, None, (0.1, 0.5, 0.9, 1.0))
    tables.standings["rec"] = Standing(
        workload="rec",
        champion="recent",
        since_at=NOW - HOUR,
        reason="recent stays.",
        switches=(Switch(NOW - HOUR, "ensemble", "recent", "recent took over."),),
        backtest=Backtest(NOW - HOUR, 4, 24 * HOUR, LEVELS, (score,)),
        trust=Trust.TRUSTED,
        trust_reason="Loss 0.50 x the seasonal naive's.",
    )
    for minute in range(4 * 60):
        at = NOW - 4 * HOUR + timedelta(minutes=minute)
        qps = 2000.0 * (1.0 + 0.4 * sin(2 * pi * minute / 240))
        tables.samples["rec", at] = TrafficSample("rec", at, 60.0 * qps)
    for number in (1, 2):
        tables.decisions[f"rec-{number}"] = Decision(
            id=f"rec-{number}",
            workload="rec",
            at=NOW - number * HOUR,
            mode=Mode.SCALE,
            current_replicas=4,
            desired_replicas=5,
            warm_replicas=4,
            in_flight_replicas=0,
            reason=Reason.EVENT_FLOOR,
            binding=Source.EVENT,
            sentence="Scale 4 to 5: the sale needs 5.",
            recommendations=(Recommendation(Source.EVENT, RecommendationKind.AT_LEAST, 5, "the sale"),),
            conditions=(),
            inputs=(InputAge("demand", 2.0),),
            demand_qps=900.0,
            need_replicas=1,
            plan_revision=None,
            forecast_id="f1",
            event_ids=("sale",),
        )
    tables.outcomes["rec-1"] = Outcome("rec-1", NOW, True, 5)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    store, ready, loop = FakeStore(), threading.Event(), asyncio.new_event_loop()
    fill(store)
    found: list[str] = []

    async def main() -> None:
        stop.clear()
        clock = SystemClock()
        server = await serve(ApiDependencies(store, FakeSignalCache(clock), clock), "127.0.0.1:0")
        found.append(server.target)
        ready.set()
        await stop.wait()
        await server.stop(grace_s=0)

    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    assert ready.wait(60)
    yield Served(found[0], store)
    loop.call_soon_threadsafe(stop.set)
    thread.join(60)
    loop.close()


@pytest.fixture
def cli(served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("FORECREST_ADDRESS", served.address)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments: str, code: int = 0) -> str:
        ended = run_command(list(arguments))
        captured = capsys.readouterr()
        assert code == ended, captured.err
        text = captured.out if code == 0 else captured.err
        assert code != 0 or all(len(line) <= 80 for line in text.splitlines()) or "--json" in arguments
        return text

    return call


def test_a_forecast_is_explained_in_rows_that_add_up(cli: Cli) -> None:
    text = cli("explain", "rec")
    found = json.loads(cli("explain", "rec", "--json"))

    assert "by model recent" in text
    assert "Highest at noon." in text
    assert "+90" in text
    assert "+7" in text
    total = [
        sum(row)
        for row in zip(
            *(found[f"{part}_qps"] for part in ("baseline", "trend", "season", "event", "correction")),
            strict=True,
        )
    ]
    assert found["median_qps"] == total


def test_parts_are_drawn_in_letters_where_there_is_no_colour(cli: Cli) -> None:
    drawn = cli("explain", "rec", "--plot", "--hours", "6")

    assert "median" in drawn
    assert "correction" in drawn
    assert "trend" not in drawn  # it is zero throughout


def test_a_past_explanation_that_is_not_there_says_so(cli: Cli) -> None:
    assert "FORECAST_NOT_FOUND" in cli("explain", "rec", "--at", "2001-01-01T00:00:00Z", code=1)


def test_accuracy_is_told_with_the_champion_and_the_backtest(cli: Cli) -> None:
    text = cli("accuracy", "rec")

    assert "TRUSTED. Loss 0.50" in text
    assert "Model recent since" in text
    assert "recent took over." in text
    assert "0.50" in text
    assert "ensemble, day" in text
    assert "0.71" in text
    assert 12 == int(json.loads(cli("accuracy", "rec", "--json"))["live"][0]["step_count"])
    assert "window" in cli("accuracy", "rec", "--window", "30d", code=1)


def test_the_decision_in_force_is_shown_with_the_fate_of_every_opinion(cli: Cli) -> None:
    at = (NOW - HOUR * 1.5).isoformat()

    text = cli("decisions", "show", "-w", "rec", "--at", at)

    assert "Decided by FLOOR." in text
    assert "bound" in text
    assert "Event sale." in text
    assert (
        "decisions/rec-2"
        == json.loads(cli("decisions", "show", "-w", "rec", "--at", at, "--json"))["decision"]["name"]
    )
    assert "The order was taken." in cli("decisions", "show", "rec-1")
    assert "name:" in cli("decisions", "show", code=1)


def test_decisions_are_listed_by_filter_order_and_time(cli: Cli) -> None:
    def names(*options: str) -> list[str]:
        return [d["name"] for d in json.loads(cli("decisions", "list", "--json", *options))]

    assert ["decisions/rec-2", "decisions/rec-1"] == names("--oldest-first")
    assert ["decisions/rec-2"] == names("--at", (NOW - HOUR * 1.5).isoformat())
    assert [] == names("--filter", "reason = PAUSED")
    assert "filter" in cli("decisions", "list", "--filter", "colour = red", code=1)


def test_a_what_if_is_compared_with_what_is(cli: Cli) -> None:
    options = ["--end", NOW.isoformat(), "--window", "1h", "--learn", "2h", "--cold-start", "60s"]
    surge = f"{(NOW - HOUR * 0.5).isoformat()}/{NOW.isoformat()}*2!"

    text = cli("what-if", "rec", *options, "--change", "wide:min_replicas=9", "--surge", surge)

    assert "current" in text
    assert "wide" in text
    assert "replica-hours" in text
    assert "Replicas paid for, from 0 to" in text


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--change", "wide"], "--change"),
        (["--change", "wide:colour=red"], "--change"),
        (["--change", "wide:min_replicas=many"], "--change"),
        (["--surge", "-3h*2"], "--surge"),
        (["--surge", "-3h/-2h*x"], "--surge"),
    ],
)
def test_a_what_if_that_cannot_be_read_says_how_to_write_it(cli: Cli, options: list[str], named: str) -> None:
    assert named in cli("what-if", "rec", *options, code=2)
