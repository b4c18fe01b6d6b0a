"""The side port: what it exposes, in which names, to whom."""

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from controller.accuracy import HourScore, LeadScore, NaiveScore
from controller.api.auth.roles import Grant
from controller.api.auth.security import Security, SecurityFiles
from controller.api.auth.tls import TlsPaths
from controller.api.auth.tokens import TokenFile, make_token, save_tokens
from controller.api.server import BindError
from controller.core.leadtime import LeadTime
from controller.core.types import (
    Alarm,
    AlarmKind,
    CapacityProfile,
    Condition,
    ConditionType,
    Contract,
    ContractState,
    DemandObservation,
    ForecastBand,
    ForecastState,
    NearDemand,
    QuotaPool,
    Recommendation,
    RecommendationKind,
    Replica,
    Source,
    Stage,
    Trust,
    Workload,
    WorkloadState,
)
from controller.http.health import STALLED_AFTER_S, Health
from controller.http.metrics import (
    METRICS,
    ApiMetrics,
    State,
    StateCollector,
    new_registry,
    refused_connections,
)
from controller.http.port import follow, open_port
from controller.listener import Listener
from controller.notify.types import Backlog
from controller.ports import PoolView
from tests.unit.api.conftest import NOW, a_decision
from tests.unit.auth.authority import Authority

DOCS = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"


PROFILE = CapacityProfile("int8", "L4", 2500.0, gpus_per_replica=2)


def a_contract(event_id: str, order_in_s: float) -> Contract:
    order_at = NOW + timedelta(seconds=order_in_s)
    deadline_at = order_at + timedelta(seconds=90)
    start_at, end_at = deadline_at + timedelta(seconds=30), deadline_at + timedelta(hours=1)
    state = ContractState.PREWARMING if order_at <= NOW else ContractState.PLANNED
    return Contract(event_id, 1, state, 9, order_at, deadline_at, start_at, end_at)


def a_standing(workload: str) -> WorkloadState:
    """Two alarms of one kind, and an event whose prewarm has begun before another's."""
    alarms = tuple(Alarm(AlarmKind.ORDER_STUCK, workload, f"r-{n}", "stuck") for n in range(2))
    begun = replace(a_contract("sale", -10), ordered_count=9, verified_count=4, expected_warm_at=NOW)
    return WorkloadState(contracts=(a_contract("later", 60), begun), alarms=alarms)


def a_state(*workloads: str) -> State:
    """A leader that knows everything of these workloads."""
    decision = replace(
        a_decision(1, "cart"),
        demand_qps=120.0,
        need_replicas=3,
        plan_revision=7,
        conditions=(Condition(ConditionType.SCALING_ACTIVE, ok=True, reason="x", message="y"),),
        recommendations=(
            Recommendation(Source.PLAN, RecommendationKind.AT_LEAST, 4, "plan"),
            Recommendation(Source.EVENT, RecommendationKind.AT_LEAST, 9, "event"),
            Recommendation(Source.GUARD, RecommendationKind.ABSTAIN, None, "nothing"),
        ),
    )
    band = ForecastBand(
        id="f",
        origin_at=NOW,
        start_at=NOW,
        step=timedelta(minutes=5),
        levels=(0.5, 0.9),
        qps=((100.0, 150.0),),
        state=ForecastState.READY,
    )
    score = LeadScore(timedelta(hours=1), 12, 5.0, (6, 11), 12.0, 120.0, daily=NaiveScore(12, 10.0, 5.0))
    replica = Replica("r", Stage.VERIFIED, NOW, NOW)
    return State(
        now=NOW,
        leader=True,
        tick_at=NOW,
        turn_ages_s={"tick": 1.5},
        turn_durations_s={"tick": 0.3},
        failures={"tick": 2},
        database_up=True,
        orders={"accepted": 3, "refused": 1},
        pools=(QuotaPool("shared", 64),),
        workloads={name: Workload(name, "m", (PROFILE,), quota_pool="shared") for name in workloads},
        states={name: a_standing(name) for name in workloads},
        demands=dict.fromkeys(
            workloads, DemandObservation(NOW, 120.0, None, 0.0, 1, 2, timedelta(seconds=60))
        ),
        leads=dict.fromkeys(workloads, LeadTime(90.0)),
        views=dict.fromkeys(workloads, PoolView(4, (replica, replica))),
        decisions=dict.fromkeys(workloads, decision),
        bands=dict.fromkeys(workloads, band),
        near=dict.fromkeys(workloads, NearDemand(NOW, timedelta(seconds=90), (0.5, 0.99), (110.0, 180.0))),
        trust=dict.fromkeys(workloads, Trust.TRUSTED),
        refit_round=(3, 1),
        refits={"made": 1},
        scores=dict.fromkeys(workloads, HourScore(NOW, timedelta(hours=1), (0.5, 0.9), (score,))),
        security_failures={"tls": False},
        certificate_expires_at=NOW,
        told={("ops", "delivered"): 5},
        untold={"ops": Backlog(2, 1, NOW)},
    )


def exposed(state: State, workloads_max: int = 10) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    registry = new_registry()
    registry.register(StateCollector(lambda: state, workloads_max))
    ApiMetrics(registry).observe("/forecrest.v1.EventService/GetEvent", "OK", 0.2)
    refused_connections(registry).inc()
    return samples(generate_latest(registry).decode())


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def base(name: str) -> str:
    """The documented name of a sample."""
    return re.sub(r"_(bucket|sum|count)$", "", name)


def documented() -> dict[str, tuple[str, tuple[str, ...], str]]:
    found: dict[str, tuple[str, tuple[str, ...], str]] = {}
    for line in DOCS.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `forecrest_") and len(cells) == 4:
            labels = tuple(re.findall(r"`(\w+)`", cells[2]))
            found[cells[0].strip("`")] = (cells[1], labels, cells[3].rstrip(" |"))
    return found


def test_every_metric_is_documented_as_it_is_and_nothing_else_is() -> None:
    assert {m.name: (m.kind, m.labels, m.help) for m in METRICS.values()} == documented()


def test_every_documented_metric_is_exposed_by_a_process_that_knows_everything() -> None:
    found = {base(name) for name, _ in exposed(a_state("cart"))}

    assert set(METRICS) == found


def test_labels_are_the_documented_ones() -> None:
    for name, labels in exposed(a_state("cart")):
        assert set(METRICS[base(name)].labels) == {key for key, _ in labels} - {"le"}


def test_no_label_is_one_that_prometheus_gives_to_targets() -> None:
    taken = {"job", "instance", "namespace", "pod", "service", "endpoint", "container", "node"}

    assert [] == [metric.name for metric in METRICS.values() if taken & set(metric.labels)]


def test_values_are_those_of_the_newest_decision_and_forecast() -> None:
    found = exposed(a_state("cart"))
    expected = {
        ("forecrest_demand_requests_per_second", (("workload", "cart"),)): 120.0,
        ("forecrest_decision_desired_replicas", (("workload", "cart"),)): 5.0,
        ("forecrest_plan_floor_replicas", (("workload", "cart"),)): 4.0,
        ("forecrest_event_floor_replicas", (("workload", "cart"),)): 9.0,
        ("forecrest_replicas", (("stage", "VERIFIED"), ("workload", "cart"))): 2.0,
        ("forecrest_forecast_demand_requests_per_second", (("level", "0.9"), ("workload", "cart"))): 150.0,
        ("forecrest_accuracy_bias_ratio", (("lead_seconds", "3600"), ("workload", "cart"))): 0.1,
        ("forecrest_accuracy_naive_ratio", (("lead_seconds", "3600"), ("workload", "cart"))): 0.5,
        ("forecrest_accuracy_coverage_ratio", (("level", "0.5"), ("workload", "cart"))): 0.5,
        ("forecrest_loop_failures_total", (("task", "tick"),)): 2.0,
        ("forecrest_loop_turn_duration_seconds", (("task", "tick"),)): 0.3,
        ("forecrest_database_up", ()): 1.0,
        ("forecrest_orders_total", (("result", "refused"),)): 1.0,
        ("forecrest_quota_pool_desired_gpus", (("pool", "shared"),)): 10.0,
        ("forecrest_alarms", (("kind", "ORDER_STUCK"), ("workload", "cart"))): 2.0,
        ("forecrest_demand_reporting_ratio", (("workload", "cart"),)): 0.5,
        ("forecrest_event_state", (("event", "sale"), ("state", "PREWARMING"), ("workload", "cart"))): 1.0,
        ("forecrest_event_stage_replicas", (("stage", "VERIFIED"), ("workload", "cart"))): 4.0,
        ("forecrest_event_wanted_replicas", (("workload", "cart"),)): 9.0,
    }

    assert expected == {key: found[key] for key in expected}


def test_one_event_of_a_workload_is_shown_the_one_prepared_last_or_else_the_next() -> None:
    ended = a_contract("ended", -9000)
    over = replace(a_contract("over", -20), state=ContractState.COMPLETED)
    far, near = a_contract("far", 600), a_contract("near", 60)
    older, newer = a_contract("older", -600), a_contract("newer", -60)

    def shown(*contracts: Contract) -> list[str]:
        state = replace(a_state("cart"), states={"cart": WorkloadState(contracts=contracts)})
        return [dict(labels)["event"] for name, labels in exposed(state) if name == "forecrest_event_state"]

    assert ["newer"] == shown(far, older, newer, ended, over)
    assert ["near"] == shown(far, near, ended, over)
    assert [] == shown(ended, over)


def test_what_is_not_known_has_no_sample() -> None:
    found = {name for name, _ in exposed(State(now=NOW))}

    assert {"forecrest_leader", "forecrest_workloads"} <= found
    assert [] == [name for name in found if METRICS[base(name)].per_workload]
    assert "forecrest_loop_last_tick_timestamp_seconds" not in found


def test_workloads_beyond_the_bound_are_counted_and_not_shown() -> None:
    found = exposed(a_state(*(f"w-{n:03}" for n in range(25))), workloads_max=10)
    shown = {dict(labels)["workload"] for _, labels in found if "workload" in dict(labels)}

    assert {f"w-{n:03}" for n in range(10)} == shown
    assert (25.0, 15.0) == (found["forecrest_workloads", ()], found["forecrest_workloads_hidden", ()])


def test_made_up_methods_share_one_series() -> None:
    registry = new_registry()
    metrics = ApiMetrics(registry)
    for number in range(100):
        metrics.observe(f"/made.up/Method{number}", "UNIMPLEMENTED", 0.1)

    found = samples(generate_latest(registry).decode())
    assert 100.0 == found["forecrest_api_calls_total", (("code", "UNIMPLEMENTED"), ("method", "other"))]
    assert 1 == len([name for name, _ in found if name == "forecrest_api_calls_total"])


class Parts:
    """What the side port asks; the test changes it."""

    def __init__(self) -> None:
        self.ages: dict[str, float] = {}
        self.problem = self.degraded = ""
        self.age_s = 0.0

    def health(self, *, loop_runs: bool = True) -> Health:
        return Health(
            turn_ages_s=lambda: self.ages,
            loop_runs=loop_runs,
            api_problem=lambda: self.problem,
            api_degraded=lambda: self.degraded,
            age_s=lambda: self.age_s,
        )


def test_a_loop_that_stands_still_is_not_alive() -> None:
    parts = Parts()
    health = parts.health()
    assert [] == health.liveness()
    parts.ages = {"tick": STALLED_AFTER_S - 1, "scrape": 1.0, "forecast": 1e9}
    assert [] == health.liveness()
    parts.ages["tick"] = STALLED_AFTER_S + 1
    assert ["the job tick had no turn for 301 s"] == health.liveness()
    assert [] == parts.health(loop_runs=False).liveness()


def test_a_first_turn_that_never_ends_is_noticed() -> None:
    parts = Parts()
    parts.age_s = STALLED_AFTER_S + 1

    assert 2 == len(parts.health().liveness())


Opens = Callable[..., Awaitable[Listener]]


@pytest.fixture
def registry() -> CollectorRegistry:
    made = new_registry()
    made.register(StateCollector(lambda: a_state("cart"), 10))
    return made


@pytest.fixture
def parts() -> Parts:
    return Parts()


@pytest.fixture
async def open_side_port(registry: CollectorRegistry, parts: Parts) -> AsyncIterator[Opens]:
    opened: list[Listener] = []

    async def start(files: SecurityFiles | None = None) -> Listener:
        opened.append(await open_port("127.0.0.1:0", Security(files), registry, parts.health()))
        return opened[-1]

    yield start
    for port in opened:
        await port.stop()


async def get(url: str, context: ssl.SSLContext | None = None, **headers: str) -> tuple[int, str]:
    # With a certificate of its own in every context, a connection must not be used again.
    connector = aiohttp.TCPConnector(ssl=context or True, force_close=True)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(url, headers=headers) as response,
    ):
        return response.status, await response.text()


async def said(port: Listener, field: str) -> tuple[int, list[str]]:
    status, text = await get(f"{port.url}/readyz")
    return status, json.loads(text)[field]


async def test_on_loopback_everything_is_there(open_side_port: Opens, parts: Parts) -> None:
    port = await open_side_port()
    status, text = await get(f"{port.url}/metrics")

    assert 200 == status
    assert samples(text)["forecrest_leader", ()] == 1.0
    assert (200, '{"ok": true, "problems": [], "degraded": []}\n') == await get(f"{port.url}/healthz")
    assert 200 == (await get(f"{port.url}/readyz"))[0]
    parts.degraded = "the database is away"
    assert (200, ["the database is away"]) == await said(port, "degraded")
    parts.problem, parts.degraded = "stopping", ""
    assert (503, ["stopping"]) == await said(port, "problems")
    assert 200 == (await get(f"{port.url}/healthz"))[0]
    assert 404 == (await get(f"{port.url}/"))[0]


async def test_open_metrics_come_when_they_are_asked_for(open_side_port: Opens) -> None:
    port = await open_side_port()
    _, text = await get(f"{port.url}/metrics", Accept="application/openmetrics-text; version=1.0.0")

    assert text.endswith("# EOF\n")


async def test_metrics_are_for_those_who_may_read_everywhere_and_health_is_for_all(
    open_side_port: Opens,
    tmp_path: Path,
) -> None:
    made = {
        grant: make_token("", (Grant.parse(grant),), NOW, None)
        for grant in ("viewer:*", "viewer:shop", "telemetry:*")
    }
    save_tokens(tmp_path / "t.json", TokenFile(tokens=tuple(token.kept for token in made.values())))
    port = await open_side_port(SecurityFiles(tokens=tmp_path / "t.json"))

    async def status(**headers: str) -> int:
        return (await get(f"{port.url}/metrics", **headers))[0]

    assert 401 == await status()
    assert 401 == await status(Authorization="Bearer wrong")
    assert 403 == await status(Authorization=f"Bearer {made['viewer:shop'].text}")
    assert 403 == await status(Authorization=f"Bearer {made['telemetry:*'].text}")
    assert 200 == await status(Authorization=f"Bearer {made['viewer:*'].text}")
    assert (200, 200) == tuple([(await get(f"{port.url}/{path}"))[0] for path in ("healthz", "readyz")])


async def test_refused_scrapes_are_limited_by_address(open_side_port: Opens, tmp_path: Path) -> None:
    save_tokens(tmp_path / "t.json", TokenFile())
    port = await open_side_port(SecurityFiles(tokens=tmp_path / "t.json"))
    statuses: set[int] = set()
    async with asyncio.timeout(60):
        while 429 not in statuses:
            statuses.add((await get(f"{port.url}/metrics", Authorization="Bearer wrong"))[0])

    assert {401, 429} == statuses


async def test_a_client_certificate_opens_the_metrics_and_probes_need_none(
    open_side_port: Opens,
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path / "pki")
    access = tmp_path / "access.yaml"
    access.write_text("certificates: {'uri:spiffe://example.com/prometheus': ['viewer:*']}\n")
    files = SecurityFiles(TlsPaths(*authority.server(), client_ca=authority.ca), access=access)
    port = await open_side_port(files)

    def context(name: str | None = None, uri: str | None = None) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(authority.ca))
        if name:
            made.load_cert_chain(*authority.client(name, uri))
        return made

    assert port.url.startswith("https://")
    assert 200 == (await get(f"{port.url}/healthz", context()))[0]
    assert 401 == (await get(f"{port.url}/metrics", context()))[0]
    assert 401 == (await get(f"{port.url}/metrics", context("prometheus")))[0]
    known = context("scraper", "spiffe://example.com/prometheus")
    assert 200 == (await get(f"{port.url}/metrics", known))[0]


async def test_rotated_files_count_for_the_next_connection(
    registry: CollectorRegistry, parts: Parts, tmp_path: Path
) -> None:
    authority, later = Authority(tmp_path / "pki"), Authority(tmp_path / "later", "later")
    cert, key = authority.server()
    clients, access = tmp_path / "clients.pem", tmp_path / "access.yaml"
    clients.write_bytes(authority.ca.read_bytes())
    access.write_text("certificates: {'uri:spiffe://example.com/prometheus': ['viewer:*']}\n")
    security = Security(SecurityFiles(TlsPaths(cert, key, clients), access=access))
    port = await open_port("127.0.0.1:0", security, registry, parts.health())

    async def scrape(signer: Authority) -> int | None:
        context = ssl.create_default_context(cafile=str(authority.ca))
        context.load_cert_chain(*signer.client("scraper", "spiffe://example.com/prometheus"))
        try:
            return (await get(f"{port.url}/metrics", context))[0]
        except aiohttp.ClientError:
            return None

    def served() -> str:
        return ssl.get_server_certificate(("127.0.0.1", port.port))

    assert (200, None) == (await scrape(authority), await scrape(later))
    assert cert.read_text() == await asyncio.to_thread(served)
    for fresh, path in zip(authority.server("fresh"), (cert, key), strict=True):
        fresh.replace(path)
    clients.write_bytes(later.ca.read_bytes())
    await security.refresh()

    assert (None, 200) == (await scrape(authority), await scrape(later))
    assert cert.read_text() == await asyncio.to_thread(served)
    await port.stop()


async def test_beyond_loopback_the_port_is_refused_without_protection(
    registry: CollectorRegistry, parts: Parts
) -> None:
    with pytest.raises(BindError, match=r"http_bind: .* no TLS"):
        await open_port("0.0.0.0:0", Security(), registry, parts.health())


async def test_a_taken_port_is_named_with_its_setting(
    open_side_port: Opens, registry: CollectorRegistry, parts: Parts
) -> None:
    port = await open_side_port()

    with pytest.raises(BindError, match="FORECREST_HTTP_BIND"):
        await open_port(f"127.0.0.1:{port.port}", Security(), registry, parts.health())


@pytest.mark.parametrize(
    ("bind", "api", "expected"),
    [
        ("", "127.0.0.1:7443", "127.0.0.1:7444"),
        ("", "127.0.0.1:0", "127.0.0.1:0"),
        ("", "[::1]:65535", "[::1]:0"),
        ("127.0.0.1:9", "127.0.0.1:7443", "127.0.0.1:9"),
    ],
)
def test_the_port_stands_beside_the_api_unless_it_is_set(bind: str, api: str, expected: str) -> None:
    assert expected == follow(bind, api)
