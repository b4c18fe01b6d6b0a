"""Every PromQL expression of the dashboards and alert rules, on a real Prometheus that scrapes a running controller."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from forecrest.v1 import event_pb2, event_service_pb2, workload_pb2, workload_service_pb2
from pydantic import SecretStr

from controller.adapters.clock import SystemClock
from controller.adapters.fakes import FakeActuator
from controller.api.auth.security import Security
from controller.bootstrap import open_runtime
from controller.client import Client
from controller.core.types import Alarm, AlarmKind, QuotaPool, Trust
from controller.http.metrics import ApiMetrics, State, StateCollector, new_registry
from controller.http.port import open_port
from controller.settings import Settings
from tests.integration.prometheus.conftest import RunningPrometheus, StartPrometheus
from tests.unit.http.test_side_port import Parts, a_contract, a_state

# What a run of any length tells, with replicas that report no demand.
OF_A_RUN = (
    "forecrest_alarms",
    "forecrest_database_up",
    "forecrest_decision_condition_reason",
    "forecrest_event_deadline_timestamp_seconds",
    "forecrest_event_shortfall_replicas",
    "forecrest_event_stage_replicas",
    "forecrest_event_state",
    "forecrest_event_wanted_replicas",
    "forecrest_loop_turn_duration_seconds",
    "forecrest_orders_total",
    "forecrest_quota_pool_desired_gpus",
    "forecrest_quota_pool_nominal_gpus",
    "forecrest_workload_info",
    "forecrest_workload_max_replicas",
)
DEPLOY = Path(__file__).resolve().parents[3] / "deploy"


def panels() -> Iterator[tuple[str, str]]:
    for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                if "expr" in target:
                    yield f"{path.stem}: {panel['title']}", target["expr"].replace("$workload", "cart|rec")


def variables() -> Iterator[tuple[str, str]]:
    """(selector, label) of what the template variables list."""
    found = json.loads((DEPLOY / "grafana" / "dashboards" / "fleet.json").read_text())["templating"]["list"]
    for one in found:
        if one["type"] == "query":
            selector, _, label = one["definition"][len("label_values(") : -1].rpartition(", ")
            yield selector.replace("$namespace", "default|shop"), label


async def ask(server: RunningPrometheus, path: str, **parameters: str) -> Any:  # noqa: ANN401 -- of as many forms as paths
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.url}/api/v1/{path}", data=parameters)
        if path.startswith("query")
        else session.get(f"{server.url}/api/v1/{path}", params=parameters) as response,
    ):
        body = await response.json()
        assert 200 == response.status, body
        return body["data"]


async def unanswered(server: RunningPrometheus) -> list[str]:
    found = []
    for title, expr in panels():
        if not (await ask(server, "query", query=expr))["result"]:
            found.append(title)
    return found


def a_leader_that_knows_everything(clock: SystemClock) -> State:
    """As a long event night would leave it: scores, a distrusted forecast, alarms, a shortfall."""
    state, now = a_state("cart"), clock.now()
    standing = state.states["cart"]
    ahead = timedelta(seconds=60) + (now - standing.contracts[0].order_at)
    contracts = tuple(
        replace(
            c,
            order_at=c.order_at + ahead,
            deadline_at=c.deadline_at + ahead,
            start_at=c.start_at + ahead,
            end_at=c.end_at + ahead,
            expected_warm_at=now,
        )
        for c in (a_contract("sale", 10), a_contract("later", 600))
    )
    alarms = tuple(Alarm(kind, "cart", "", "told") for kind in AlarmKind)
    band = replace(state.bands["cart"], origin_at=now, start_at=now)
    return replace(
        state,
        now=now,
        tick_at=now,
        certificate_expires_at=now,
        bands={"cart": band},
        states={"cart": replace(standing, contracts=contracts, alarms=alarms)},
        trust={"cart": Trust.DISTRUSTED},
        turn_durations_s={"tick": 0.3, "forecast": 2.0},
        demands={"cart": replace(state.demands["cart"], at=now)},
    )


async def test_prometheus_answers_every_expression_of_the_dashboards_and_rules(
    database_url: str, redis_url: str, tmp_path: Path, start_prometheus: StartPrometheus
) -> None:
    clock = SystemClock()
    settings = Settings(
        data_dir=tmp_path,
        database_url=SecretStr(database_url),
        redis_url=SecretStr(redis_url),
        bind="127.0.0.1:0",
        tick_period_s=0.2,
        scrape_period_s=0.2,
        quota_pools=(QuotaPool("shared", 8),),
    )
    registry = new_registry()
    registry.register(StateCollector(lambda: a_leader_that_knows_everything(clock), 10))
    calls = ApiMetrics(registry)
    knowing = await open_port("127.0.0.1:0", Security(), registry, Parts().health())
    async with (
        asyncio.timeout(250),
        open_runtime(settings, actuator=FakeActuator(clock)) as runtime,
        Client(runtime.api.target) as client,
    ):
        assert runtime.http is not None
        await client.workloads.CreateWorkload(
            workload_service_pb2.CreateWorkloadRequest(
                workload_id="rec",
                workload=workload_pb2.Workload(
                    model_name="m",
                    profiles=[workload_pb2.CapacityProfile(engine="e", gpu_type="L4", qps_max=100)],
                    max_replicas=4,
                    quota_pool="shared",
                ),
            )
        )
        event = event_pb2.Event(
            workloads=["workloads/rec"], time_zone="UTC", expected_peak_qps=1000, category="promotion"
        )
        event.start_time.FromDatetime(clock.now() + timedelta(minutes=2))
        event.end_time.FromDatetime(clock.now() + timedelta(hours=1))
        await client.events.CreateEvent(event_service_pb2.CreateEventRequest(event=event, event_id="sale"))
        server = await start_prometheus(f"127.0.0.1:{runtime.http.port}', '127.0.0.1:{knowing.port}")
        while left := await unanswered(server):
            calls.observe("/forecrest.v1.EventService/GetEvent", "OK", 0.2)
            calls.observe("/forecrest.v1.EventService/GetEvent", "UNAUTHENTICATED", 0.2)
            if runtime.loop is not None and runtime.loop.done():
                await runtime.loop
            (tmp_path / "unanswered").write_text("\n".join(left))
            await clock.sleep(0.5)

        # The running controller alone: a prewarm that a limit cuts short, told by decision, contract and alarm.
        mine = f'instance="127.0.0.1:{runtime.http.port}"'
        told = {name: await ask(server, "query", query=f"{name}{{{mine}}}") for name in OF_A_RUN}
        rules = yaml.safe_load((DEPLOY / "prometheus" / "forecrest.rules.yml").read_text())
        for rule in (rule for group in rules["groups"] for rule in group["rules"]):
            await ask(server, "query", query=rule["expr"])  # Prometheus refuses what it cannot evaluate
        listed = [await ask(server, f"label/{label}/values", **{"match[]": s}) for s, label in variables()]
    await knowing.stop()

    assert [] == [name for name in OF_A_RUN if not told[name]["result"]]
    assert {"QUOTA_SHORT"} <= {one["metric"]["kind"] for one in told["forecrest_alarms"]["result"]}
    assert 0 < float(told["forecrest_event_shortfall_replicas"]["result"][0]["value"][1])
    assert ["1"] == [one["value"][1] for one in told["forecrest_database_up"]["result"]]
    assert [["default"], ["cart", "rec"]] == listed
