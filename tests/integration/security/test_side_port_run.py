"""The side port of a whole controller on real PostgreSQL and Redis, read as Prometheus reads it."""

import asyncio
import json
import shutil
import socket
import subprocess
from pathlib import Path

import aiohttp
import pytest
from forecrest.v1 import workload_pb2, workload_service_pb2
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from controller.api.server import BindError
from controller.bootstrap import open_runtime
from controller.client import Client
from controller.http.metrics import METRICS
from controller.settings import Settings


async def get(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def test_a_running_controller_exposes_its_loop_its_decisions_and_its_calls(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    settings = Settings(
        data_dir=tmp_path,
        database_url=SecretStr(database_url),
        redis_url=SecretStr(redis_url),
        bind="127.0.0.1:0",
        actuator="dry_run",
        tick_period_s=0.2,
    )
    creation = workload_service_pb2.CreateWorkloadRequest(
        workload_id="cart",
        workload=workload_pb2.Workload(
            model_name="m", profiles=[workload_pb2.CapacityProfile(engine="e", qps_max=10)]
        ),
    )
    async with open_runtime(settings) as runtime, Client(runtime.api.target) as client:
        assert runtime.http is not None
        url = runtime.http.url
        assert url == json.loads((tmp_path / "runtime.json").read_text())["http"]
        await client.workloads.CreateWorkload(creation)
        wanted = 'forecrest_decision_desired_replicas{workload="cart"}'
        async with asyncio.timeout(120):
            while wanted not in (text := (await get(f"{url}/metrics"))[1]):  # noqa: ASYNC110 -- it is asked for
                await asyncio.sleep(0.05)
        health = [(await get(f"{url}/{path}"))[0] for path in ("healthz", "readyz")]

    found = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    call = (("code", "OK"), ("method", "forecrest.v1.WorkloadService/CreateWorkload"))
    assert [200, 200] == health
    assert 1.0 == found["forecrest_leader", ()]
    assert 1.0 == found["forecrest_workloads", ()]
    assert 1.0 == found["forecrest_api_calls_total", call]
    assert {"tick", "scrape"} <= {dict(labels).get("task") for _, labels in found}
    assert [] == [name for name, _ in found if name not in METRICS and "_duration_" not in name]


async def test_a_taken_port_beside_the_api_keeps_no_controller_from_starting(
    database_url: str, redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def taken(port: int) -> socket.socket:
        held = socket.socket()
        held.bind(("127.0.0.1", port))
        held.listen()
        return held

    settings = Settings(
        data_dir=tmp_path,
        database_url=SecretStr(database_url),
        redis_url=SecretStr(redis_url),
        actuator="dry_run",
        run_loop=False,
    )
    # Two free ports beside each other: the API takes the first, somebody else has the second.
    while True:
        with taken(0) as probe:
            port = int(probe.getsockname()[1])
        try:
            holder = taken(port + 1)
            break
        except OSError:
            continue
    with holder:
        async with open_runtime(settings.model_copy(update={"bind": f"127.0.0.1:{port}"})) as runtime:
            assert runtime.http is not None
            assert port + 1 != runtime.http.port
            assert 200 == (await get(f"{runtime.http.url}/readyz"))[0]
        assert "any free one is taken instead" in caplog.text
        asked = {"bind": "127.0.0.1:0", "http_bind": f"127.0.0.1:{port + 1}"}
        with pytest.raises(BindError, match="http_bind"):
            async with open_runtime(settings.model_copy(update=asked)):
                pass


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool judges the exposition")
def test_prometheus_has_nothing_to_say_against_the_exposition() -> None:
    from prometheus_client import generate_latest

    from controller.http.metrics import ApiMetrics, StateCollector, new_registry
    from tests.unit.http.test_side_port import a_state

    registry = new_registry()
    registry.register(StateCollector(lambda: a_state("cart"), 10))
    ApiMetrics(registry).observe("/forecrest.v1.EventService/GetEvent", "OK", 0.2)
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=generate_latest(registry),
        capture_output=True,
        check=False,
        timeout=60,
    )

    assert (0, b"") == (done.returncode, done.stdout + done.stderr)
