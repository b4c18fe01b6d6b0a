"""The console in a real browser: API on PostgreSQL and Valkey, console, Chromium, all in one thread of their own.

Playwright's and pytest's event loops do not get along in one thread, so tests are plain functions that hand their
story to that thread: decorate an async test with ``in_browser`` and ask for ``console`` and ``page``.
"""

import asyncio
import functools
import gc
import inspect
import shutil
import threading
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from controller.adapters.clock import SystemClock
from controller.adapters.forecaster import FitForecaster
from controller.adapters.postgres import Limits, PostgresStore
from controller.adapters.redis import RedisSignalCache
from controller.api.auth.security import Security
from controller.api.limits import ApiLimits
from controller.api.server import ApiDependencies, RunningServer
from controller.api.server import serve as serve_api
from controller.client import Client
from controller.console.app import create_app
from controller.listener import Listener, listen
from tests.conftest import Databases
from tests.e2e.console import world

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
T = TypeVar("T")


class Lab:
    """A thread with an event loop, for everything that must share one."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="console lab", daemon=True)
        self._thread.start()

    def run(self, story: Coroutine[Any, Any, T], timeout_s: float = 240) -> T:
        """Run a coroutine there and return what it returns."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(story, self.loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise

    def close(self) -> None:
        # gRPC's servers end their native part when they are collected, and need the loop for that.
        gc.collect()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


def in_browser(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Make a plain test of an async one: it runs in the lab."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:  # noqa: ANN401 -- whatever the test asks for
        async def story() -> None:
            await test(**{name: value for name, value in fixtures.items() if name in asked})

        fixtures["lab"].run(story())

    asked = inspect.signature(test).parameters
    lab = inspect.Parameter("lab", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = inspect.Signature([*asked.values(), *([] if "lab" in asked else [lab])])  # type: ignore[attr-defined]
    del run.__wrapped__  # type: ignore[attr-defined]
    return run


@dataclass
class ConsoleWorld:
    """A console and the API behind it. ``stop_api`` and ``start_api`` keep the API's address."""

    lab: Lab
    store: PostgresStore
    deps: ApiDependencies
    signals: RedisSignalCache
    client: Client
    api: RunningServer
    console: Listener
    errors: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.console.url

    async def stop_api(self) -> None:
        await self.api.stop(grace_s=0)

    async def start_api(self) -> None:
        self.api = await serve_api(self.deps, self.api.target)


async def open_world(
    lab: Lab, database_url: str, redis_url: str, security: Security | None = None
) -> ConsoleWorld:
    """Start API and console on a database; the caller fills and closes it."""
    clock = SystemClock()
    store = PostgresStore(database_url, Limits(connection_count=5))
    signals = RedisSignalCache(redis_url, clock=clock, prefix=f"test-{uuid.uuid4().hex}:")
    limits = ApiLimits(rate_per_caller_qps=1e6, rate_per_caller_burst=1e6, poll_period_s=0.2)
    deps = ApiDependencies(store, signals, clock, forecaster=FitForecaster(), limits=limits)
    api = await serve_api(deps, "127.0.0.1:0", security)
    console = await listen(create_app(api.target), "127.0.0.1", 0)
    return ConsoleWorld(lab, store, deps, signals, Client(api.target), api, console)


async def close_world(opened: ConsoleWorld) -> None:
    await opened.console.stop()
    await opened.client.close()
    await opened.stop_api()
    await opened.signals.close()
    await opened.store.close()


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    made = Lab()
    yield made
    made.close()


@pytest.fixture(scope="session")
def console(lab: Lab, databases: Databases, template_database: str, redis_url: str) -> Iterator[ConsoleWorld]:
    """One filled world per session, for tests that leave it as it is (or change what nobody else looks at)."""
    with databases.fresh(template_database) as url:
        opened = lab.run(open_world(lab, url, redis_url))
        try:
            lab.run(world.make(opened.client, opened.store, SystemClock().now()))
            yield opened
        finally:
            lab.run(close_world(opened))


@pytest.fixture
def own_console(
    lab: Lab, databases: Databases, template_database: str, redis_url: str
) -> Iterator[ConsoleWorld]:
    """An empty world of one's own, for tests that break it."""
    with databases.fresh(template_database) as url:
        opened = lab.run(open_world(lab, url, redis_url))
        yield opened
        lab.run(close_world(opened))


@pytest.fixture(scope="session")
def browser(lab: Lab) -> Iterator[Browser]:
    """Debian's Chromium, headless."""
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine; install Debian's package chromium")

    async def start() -> tuple[Any, Browser]:
        manager = await async_playwright().start()
        return manager, await manager.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

    manager, started = lab.run(start())
    yield started
    lab.run(started.close())
    lab.run(manager.stop())


NewPage = Callable[..., Awaitable[Page]]


@pytest.fixture
def new_page(lab: Lab, browser: Browser) -> Iterator[NewPage]:
    """Open pages, for example with ``size=PHONE, scheme="dark", locale="zh-CN"``.

    Script errors and violations of the content security policy fail the test at its end.
    """
    contexts: list[BrowserContext] = []
    problems: list[str] = []

    async def make(
        size: dict[str, int] | None = None,
        scheme: str = "light",
        locale: str = "en-GB",
        **options: Any,  # noqa: ANN401 -- Playwright's
    ) -> Page:
        made: Any = {"viewport": size or WIDE, "color_scheme": scheme, "locale": locale, **options}
        context = await browser.new_context(timezone_id="Asia/Shanghai", **made)
        contexts.append(context)
        page = await context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "console",
            lambda message: (
                problems.append(message.text) if "Content Security Policy" in message.text else None
            ),
        )
        return page

    yield make

    async def close() -> None:
        for context in contexts:
            await context.close()

    lab.run(close())
    assert [] == problems


@pytest.fixture
def page(lab: Lab, new_page: NewPage) -> Page:
    """A page of 1280 by 900, light, in English."""

    async def make() -> Page:
        return await new_page()

    return lab.run(make())


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    """Where tests leave pictures for people to look at."""
    return tmp_path
