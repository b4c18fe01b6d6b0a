"""The console of a whole controller, and the one of the command line."""

import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import SecretStr

from controller.adapters.clock import SystemClock
from controller.api.auth.roles import Grant
from controller.api.auth.tokens import TokenFile, make_token, save_tokens
from controller.api.server import BindError
from controller.bootstrap import open_runtime
from controller.settings import Settings
from tests.integration.console.browsing import browsing
from tests.unit.auth.authority import Authority


@pytest.fixture
def settings(database_url: str, redis_url: str, tmp_path: Path) -> Callable[..., Settings]:
    def make(**changes: object) -> Settings:
        given: dict[str, object] = {
            "data_dir": tmp_path,
            "database_url": SecretStr(database_url),
            "redis_url": SecretStr(redis_url),
            "bind": "127.0.0.1:0",
            "console_bind": "127.0.0.1:0",
            "actuator": "dry_run",
            "run_loop": False,
        }
        return Settings.model_validate(given | changes)

    return make


async def test_a_controller_serves_its_console_and_says_where(
    settings: Callable[..., Settings], tmp_path: Path
) -> None:
    async with open_runtime(settings()) as runtime:
        assert runtime.console is not None
        assert runtime.console.url == json.loads((tmp_path / "runtime.json").read_text())["console"]
        async with browsing(runtime.console.url) as browser:
            status, text, _ = await browser.get("/")
    assert status == 200
    assert "No workload is registered" in text
    async with open_runtime(settings(console_bind="")) as runtime:
        assert runtime.console is None


async def test_behind_tls_the_console_reaches_its_own_api_and_people_log_in(
    settings: Callable[..., Settings], tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "pki")
    cert, key = authority.server()
    made = make_token("ada", (Grant.parse("viewer:*"),), SystemClock().now(), None)
    save_tokens(tmp_path / "tokens.json", TokenFile(tokens=(made.kept,)))
    trusted = ssl.create_default_context(cafile=str(authority.ca))
    protected = settings(tls_cert=cert, tls_key=key, tokens_file=tmp_path / "tokens.json")
    async with open_runtime(protected) as runtime:
        assert runtime.console is not None
        assert runtime.console.secure
        async with browsing(runtime.console.url, trusted) as browser:
            status, _, _ = await browser.get("/")
            assert status == 303
            _, _, response = await browser.log_in(made.text)
            (cookie,) = response.cookies.values()
            assert cookie["secure"]
            status, text, _ = await browser.get("/")
    assert status == 200
    assert "No workload is registered" in text


async def test_beyond_loopback_it_needs_what_the_api_needs(settings: Callable[..., Settings]) -> None:
    with pytest.raises(BindError, match=r"console_bind: .* no TLS"):
        async with open_runtime(settings(console_bind="0.0.0.0:0")):
            pass


async def test_a_taken_port_that_was_asked_for_is_refused(settings: Callable[..., Settings]) -> None:
    async with open_runtime(settings()) as runtime:
        assert runtime.console is not None
        taken = f"127.0.0.1:{runtime.console.port}"
        with pytest.raises(BindError, match="FORECREST_CONSOLE_BIND"):
            async with open_runtime(settings(console_bind=taken)):
                pass


def _run(*arguments: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FORECREST_")}
    return subprocess.Popen(
        [sys.executable, "-m", "controller", "console", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def test_the_command_serves_without_an_api_and_says_that_nothing_is_known(tmp_path: Path) -> None:
    process = _run("--address", "127.0.0.1:1", "--bind", "127.0.0.1:0")
    assert process.stdout is not None
    said = process.stdout.readline()
    url = said.partition(" is at ")[2].partition(". ")[0]
    try:
        async with browsing(url) as browser:
            status, text, _ = await browser.get("/")
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert status == 200
    assert "Nothing is known of the fleet yet." in text
    assert "data-lost=" in text
    assert 143 == process.returncode
    assert "Stopped." in errors


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--bind", "nonsense"], "--bind: 'nonsense' is not host:port"),
        (["--bind", "0.0.0.0:0"], "can be reached from the network; give --tls-cert"),
        (["--tls-cert", "a.pem"], "--tls-cert and --tls-key belong together"),
    ],
)
def test_the_command_refuses_what_would_not_be_safe(arguments: list[str], sentence: str) -> None:
    process = _run("--address", "127.0.0.1:1", *arguments)
    _, errors = process.communicate(timeout=60)
    assert 2 == process.returncode
    assert sentence in errors.replace("\n", " ")
