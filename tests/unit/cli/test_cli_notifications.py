"""``forecrest notifications``: the listing, dead letters, and trying a sinks file."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from controller.adapters.clock import SystemClock
from controller.adapters.fakes import FakeSignalCache, FakeStore
from controller.api.server import ApiDependencies, RunningServer, serve
from controller.cli.app import run_command
from controller.core.types import AlarmKind, CapacityProfile, Workload
from controller.notify.types import Delivery, DeliveryState, Kind, Notification, Severity

NOW = SystemClock().now()


@pytest.fixture
async def server() -> AsyncIterator[RunningServer]:
    store, clock = FakeStore(), SystemClock()
    store.tables.workloads["rec"] = Workload("rec", "m", (CapacityProfile("int8", "L4", 1000.0),))
    for number, state in enumerate(DeliveryState):
        told = Notification(
            f"n{number}",
            NOW + timedelta(seconds=number),
            Kind.ALARM_RAISED,
            Severity.CRITICAL,
            "rec",
            "default",
            "singles-day",
            "Event singles-day on rec: only 9 of 14 replicas were warm at its deadline [sic].",
            AlarmKind.PREWARM_MISSED,
        )
        error = "answered 404 no [such] hook" if state is DeliveryState.DEAD else ""
        store.tables.notifications["ops", told.id] = Delivery("ops", told, state, 1, None, None, error)
    running = await serve(ApiDependencies(store, FakeSignalCache(clock), clock), "127.0.0.1:0")
    yield running
    await running.stop(grace_s=0)


async def forecrest(*arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "controller", "notifications", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "COLUMNS": "80"},
    )
    said, problem = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode(), problem.decode()


async def test_what_was_told_is_listed_and_dead_letters_say_why(server: RunningServer) -> None:
    to = ("--address", server.target)
    code, text, _ = await forecrest("list", *to)
    _, dead, _ = await forecrest("list", "--state", "dead", "--json", *to)
    bad, _, said = await forecrest("list", "--state", "lost", *to)

    assert 0 == code
    assert [] == [line for line in text.splitlines() if len(line) > 80]
    assert ["DEAD", "DELIVERED", "PENDING"] == [
        word for line in text.splitlines() for word in line.split() if word in list(DeliveryState)
    ]
    assert "[such]" in text
    assert "[sic]" in " ".join(text.split())
    (one,) = json.loads(dead)
    assert ("n2", "NOTIFICATION_STATE_DEAD", "answered 404 no [such] hook") == (
        one["notification_id"],
        one["state"],
        one["error"],
    )
    assert (2, True) == (bad, "--state: 'lost' is unknown" in said)


@pytest.fixture
async def receiver() -> AsyncIterator[tuple[str, list[dict[str, object]]]]:
    got: list[dict[str, object]] = []

    async def take(request: web.Request) -> web.Response:
        got.append(json.loads(await request.read()))
        return web.Response(status=200 if request.path == "/good" else 404)

    app = web.Application()
    app.router.add_post("/{path}", take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", got
    await runner.cleanup()


async def test_a_sinks_file_is_tried_sink_by_sink(
    receiver: tuple[str, list[dict[str, object]]], tmp_path: Path
) -> None:
    url, got = receiver
    (tmp_path / "secret").write_text("s3cret")
    sinks = [
        {"name": name, "url": f"{url}/{name}", "secret_file": str(tmp_path / "secret")}
        for name in ("good", "bad")
    ]
    path = tmp_path / "sinks.yaml"
    path.write_text(yaml.safe_dump({"sinks": sinks}))

    read, shown, _ = await forecrest("check", str(path))
    tried, answers, _ = await forecrest("check", str(path), "--send", "--json")

    assert (0, 1) == (read, tried)
    assert "result" not in shown
    assert ["delivered", "answered 404"] == [one["result"] for one in json.loads(answers)]
    assert {"TEST"} == {one["kind"] for one in got}
    assert "s3cret" not in shown + answers


async def test_a_wrong_sinks_file_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "sinks.yaml"
    path.write_text(
        yaml.safe_dump({"sinks": [{"name": "ops", "format": "slack", "url": "http://far.example/x"}]})
    )

    code, _, said = await forecrest("check", str(path))

    assert (2, True) == (code, "use https" in said)


def test_a_controller_with_a_wrong_sinks_file_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORECREST_NOTIFICATIONS_FILE", str(tmp_path / "none.yaml"))

    assert 1 == run_command(["up", "--data-dir", str(tmp_path / "data"), "--bind", "127.0.0.1:0"])
    assert "none.yaml: No such file" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
