"""What every sink keeps to; run against the fake and against both formats over real HTTP."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web

from controller.adapters.clock import SystemClock
from controller.adapters.fakes import FakeNotificationSink
from controller.notify.config import Sink
from controller.notify.types import Kind, Notification, Severity
from controller.notify.webhook import WebhookSink
from controller.ports import NotificationSink, SinkBusyError, SinkRefusedError

TOLD = Notification(
    "n1",
    datetime(2026, 11, 10, 16, tzinfo=UTC),
    Kind.EVENT_STARTED,
    Severity.INFO,
    "rec",
    "shop",
    "sale",
    "Event sale on rec has started.",
)


@dataclass
class Rig:
    """A sink, how many messages reached its receiver, and how to make the receiver busy or refuse."""

    sink: NotificationSink
    count: Callable[[], int]
    answer: Callable[[str], None]  # "", "busy" or "refuse"


def fake() -> Rig:
    sink = FakeNotificationSink()

    def answer(how: str) -> None:
        sink.busy = SinkBusyError("answered 503", timedelta(seconds=7)) if how == "busy" else None
        sink.refuses = how == "refuse"

    return Rig(sink, lambda: len(sink.received), answer)


@pytest.fixture(params=["fake", "webhook", "slack"])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    if request.param == "fake":
        yield fake()
        return
    how, taken = "", 0

    async def take(_: web.Request) -> web.Response:
        nonlocal taken
        if how:
            status, headers = (503, {"Retry-After": "7"}) if how == "busy" else (404, {})
            return web.Response(status=status, headers=headers)
        taken += 1
        return web.Response(text="ok")

    def answer(wanted: str) -> None:
        nonlocal how
        how = wanted

    app = web.Application()
    app.router.add_post("/hook", take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    secret = request.getfixturevalue("tmp_path") / "secret"
    secret.write_text("s3cret")
    fields = {"secret_file": str(secret)} if request.param == "webhook" else {}
    host, port = runner.addresses[0][:2]
    described = {"name": "ops", "format": request.param, "url": f"http://{host}:{port}/hook"} | fields
    sink = WebhookSink(Sink.model_validate(described), SystemClock())
    yield Rig(sink, lambda: taken, answer)
    await sink.close()
    await runner.cleanup()


async def test_what_is_sent_arrives_once(rig: Rig) -> None:
    await rig.sink.send(TOLD, 1)

    assert 1 == rig.count()


async def test_a_busy_receiver_is_told_apart_and_its_word_on_when_is_kept(rig: Rig) -> None:
    rig.answer("busy")
    with pytest.raises(SinkBusyError, match="503") as busy:
        await rig.sink.send(TOLD, 1)
    rig.answer("")
    await rig.sink.send(TOLD, 2)

    assert timedelta(seconds=7) == busy.value.after
    assert 1 == rig.count()


async def test_a_receiver_that_will_never_take_it_is_told_apart(rig: Rig) -> None:
    rig.answer("refuse")
    with pytest.raises(SinkRefusedError, match="404"):
        await rig.sink.send(TOLD, 1)

    assert 0 == rig.count()


async def test_closing_twice_is_closing_once(rig: Rig) -> None:
    await rig.sink.send(TOLD, 1)
    await rig.sink.close()
    await rig.sink.close()
