"""Webhooks against a real HTTP server: what arrives, how it is signed, and what is not done."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.adapters.clock import SystemClock
from controller.core.types import AlarmKind
from controller.notify.config import Sink
from controller.notify.types import Kind, Notification, Severity
from controller.notify.webhook import WebhookSink
from controller.ports import SinkBusyError, SinkRefusedError

DOCS = Path(__file__).parents[3] / "docs" / "notifications.md"
TOLD = Notification(
    id="n1",
    at=datetime(2026, 11, 10, 16, tzinfo=UTC),
    kind=Kind.ALARM_RAISED,
    severity=Severity.WARNING,
    workload="rec",
    namespace="shop",
    subject="sale",
    sentence="Event <sale> on rec & co is late: 6 of 14 replicas, 洪峰.",
    alarm=AlarmKind.PREWARM_LATE,
)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Receiver:
    """A server on loopback that keeps what it got and answers as the test wants."""

    def __init__(self) -> None:
        self.got: list[tuple[Mapping[str, str], bytes]] = []
        self.answer: Handler | None = None
        self.url = ""

    async def take(self, request: web.Request) -> web.StreamResponse:
        self.got.append((dict(request.headers), await request.read()))
        return web.Response(text="ok") if self.answer is None else await self.answer(request)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    app = web.Application()
    app.router.add_post("/{path:.*}", made.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook-s3cret-path"
    yield made
    await runner.cleanup()


Make = Callable[..., WebhookSink]


@pytest.fixture
async def sink(receiver: Receiver, tmp_path: Path) -> AsyncIterator[Make]:
    made: list[WebhookSink] = []
    (tmp_path / "secret").write_text("old-secret\n")

    def make(**fields: object) -> WebhookSink:
        described = {"name": "ops", "url": receiver.url, "secret_file": str(tmp_path / "secret")} | fields
        kept = {key: value for key, value in described.items() if value is not None}
        made.append(WebhookSink(Sink.model_validate(kept), SystemClock()))
        return made[-1]

    yield make
    for one in made:
        await one.close()


def verify() -> Callable[..., bool]:
    """The example of the documentation, as it stands there."""
    code = next(c for c in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL) if "verify" in c)
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    checked: Callable[..., bool] = namespace["verify"]
    return checked


async def test_a_webhook_is_the_documented_message_signed_as_the_documentation_checks_it(
    receiver: Receiver, sink: Make
) -> None:
    await sink().send(TOLD, 3)

    ((headers, body),) = receiver.got
    documented = json.loads(re.findall(r"```json\n(.*?)```", DOCS.read_text(), re.DOTALL)[0])
    found = json.loads(body)
    assert list(documented) == list(found)
    assert ("n1", "PREWARM_LATE", "WARNING", "rec", "shop", "sale", TOLD.sentence) == tuple(
        found[key] for key in ("id", "alarm", "severity", "workload", "namespace", "subject", "sentence")
    )
    assert ("n1", "3") == (headers["Idempotency-Key"], headers["Forecrest-Attempt"])
    assert verify()("old-secret", headers, body)
    assert not verify()("another", headers, body)
    assert not verify()("old-secret", headers, body + b" ")
    assert not verify()("old-secret", dict(headers) | {"Forecrest-Timestamp": "1700000000"}, body)


async def test_a_secret_is_changed_without_a_restart(receiver: Receiver, sink: Make, tmp_path: Path) -> None:
    hook = sink()
    for lines in ("new-secret\nold-secret\n", "new-secret\n"):
        (tmp_path / "secret").write_text(lines)
        await hook.send(TOLD, 1)

    both, new = receiver.got
    assert [True, True] == [verify()(secret, *both) for secret in ("new-secret", "old-secret")]
    assert [True, False] == [verify()(secret, *new) for secret in ("new-secret", "old-secret")]


async def test_a_secret_that_is_away_for_a_moment_is_waited_for(
    receiver: Receiver, sink: Make, tmp_path: Path
) -> None:
    (tmp_path / "secret").unlink()

    with pytest.raises(SinkBusyError, match="cannot be read"):
        await sink().send(TOLD, 1)
    assert [] == receiver.got


async def test_slack_gets_its_text_escaped_and_no_signature(
    receiver: Receiver, sink: Make, tmp_path: Path
) -> None:
    (tmp_path / "url").write_text(receiver.url + "\n")
    await sink(format="slack", url=None, url_file=str(tmp_path / "url"), secret_file=None).send(TOLD, 1)

    ((headers, body),) = receiver.got
    assert {
        "text": ":warning: Event &lt;sale&gt; on rec &amp; co is late: 6 of 14 replicas, 洪峰."
    } == json.loads(body)
    assert "Forecrest-Signature" not in headers


async def test_a_redirect_is_refused_and_not_followed(receiver: Receiver, sink: Make) -> None:
    async def elsewhere(_: web.Request) -> web.StreamResponse:
        raise web.HTTPTemporaryRedirect("/elsewhere")

    receiver.answer = elsewhere
    with pytest.raises(SinkRefusedError, match="307"):
        await sink().send(TOLD, 1)
    assert 1 == len(receiver.got)


@pytest.mark.parametrize("status", [401, 403, 408, 425, 429, 500, 503])
async def test_what_may_pass_is_tried_again(receiver: Receiver, sink: Make, status: int) -> None:
    async def busy(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, headers={"Retry-After": "999999"})

    receiver.answer = busy
    with pytest.raises(SinkBusyError, match=str(status)):
        await sink().send(TOLD, 1)


@pytest.mark.parametrize("status", [400, 404, 410, 422])
async def test_what_will_not_pass_is_not(receiver: Receiver, sink: Make, status: int) -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text="no [such] hook\n\x1b[31m")

    receiver.answer = refuse
    with pytest.raises(SinkRefusedError, match=rf"answered {status} no \[such\] hook \[31m$"):
        await sink().send(TOLD, 1)


async def test_an_endless_answer_is_not_read_to_its_end(receiver: Receiver, sink: Make) -> None:
    ended = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x" * 65_536)
        finally:
            ended.set()

    receiver.answer = endless
    await sink().send(TOLD, 1)
    await ended.wait()


async def test_a_receiver_that_does_not_answer_is_given_up_in_time(receiver: Receiver, sink: Make) -> None:
    async def silent(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    receiver.answer = silent
    with pytest.raises(SinkBusyError, match=r"no answer within 0\.2 s"):
        await sink(timeout_s=0.2).send(TOLD, 1)


@pytest.mark.parametrize("host", ["127.0.0.1:1", "no-such-host.invalid"])
async def test_errors_never_repeat_the_address(sink: Make, host: str) -> None:
    with pytest.raises(SinkBusyError) as away:
        await sink(url=f"https://{host}/services/T000/s3cret").send(TOLD, 1)

    assert "s3cret" not in str(away.value)
    assert "cannot be reached" in str(away.value)


async def test_a_name_that_stands_for_a_link_local_address_is_not_called(sink: Make) -> None:
    # What resolves to 169.254.169.254 without a name server.
    with pytest.raises(SinkBusyError, match="ClientConnectorDNSError"):
        await sink(url="http://0xa9fea9fe/latest", allow_http=True, timeout_s=5).send(TOLD, 1)
