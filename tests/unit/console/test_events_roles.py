"""What a role may not do is not offered, and what the API refuses is said in words."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from controller.adapters.clock import SystemClock
from controller.adapters.fakes import FakeSignalCache, FakeStore
from controller.api.auth.roles import Grant
from controller.api.auth.security import Security, SecurityFiles
from controller.api.auth.tokens import TokenFile, make_token, read_tokens, save_tokens
from controller.api.server import ApiDependencies, serve
from controller.console.app import create_app
from controller.core.types import CapacityProfile, Workload
from controller.listener import listen

LogIn = Callable[[str], Awaitable[aiohttp.ClientSession]]


@pytest.fixture
async def log_in(tmp_path: Path) -> AsyncIterator[LogIn]:
    """Log in with a role everywhere; answers with a browser's session, its base the console."""
    clock, store = SystemClock(), FakeStore()
    store.tables.workloads["rec"] = Workload("rec", "recommender", (CapacityProfile("e", "L4", 1000.0),))
    path = tmp_path / "tokens.json"
    texts: dict[str, str] = {}
    save_tokens(path, TokenFile())
    for role in ("viewer", "planner", "operator"):
        made = make_token(role, (Grant.parse(f"{role}:*"),), clock.now(), None)
        save_tokens(path, TokenFile(tokens=(*read_tokens(path).tokens, made.kept)))
        texts[role] = made.text
    api = await serve(
        ApiDependencies(store, FakeSignalCache(clock), clock),
        "127.0.0.1:0",
        Security(SecurityFiles(tokens=path)),
    )
    running = await listen(create_app(api.target), "127.0.0.1", 0)
    sessions: list[aiohttp.ClientSession] = []

    async def begin(role: str) -> aiohttp.ClientSession:
        http = aiohttp.ClientSession(running.url, cookie_jar=aiohttp.CookieJar(unsafe=True))
        sessions.append(http)
        csrf = await csrf_of(http, "/login")
        form = {"csrf": csrf, "token": texts[role], "next": "/events"}
        async with http.post("/login", data=form, headers={"Origin": running.url}) as response:
            assert (200, "/events") == (response.status, response.url.path)
        http.headers["Origin"] = running.url
        return http

    yield begin
    for http in sessions:
        await http.close()
    await running.stop()
    await api.stop(grace_s=0)


async def text_of(http: aiohttp.ClientSession, path: str) -> str:
    async with http.get(path) as response:
        assert 200 == response.status, path
        return await response.text()


async def csrf_of(http: aiohttp.ClientSession, path: str) -> str:
    found = re.search(r'name="csrf" content="(\w+)"', await text_of(http, path))
    assert found is not None
    return found[1]


@pytest.mark.parametrize(
    ("role", "plans", "operates"),
    [("viewer", False, False), ("planner", True, False), ("operator", True, True)],
)
async def test_what_a_role_may_not_do_is_not_offered(
    log_in: LogIn, role: str, plans: bool, operates: bool
) -> None:
    http = await log_in(role)
    assert plans == ("/events/new" in await text_of(http, "/events"))
    assert plans == ("/events/new" in await text_of(http, "/night"))
    assert plans == ('id="save"' in await text_of(http, "/events/new"))
    assert plans == ('id="import-form"' in await text_of(http, "/events/import"))
    assert operates == ('id="override-form"' in await text_of(http, "/overrides"))


async def test_a_change_beyond_the_role_is_refused_in_words_and_changes_nothing(log_in: LogIn) -> None:
    http = await log_in("planner")
    csrf = await csrf_of(http, "/overrides")
    said = {
        "csrf": csrf,
        "workload": "rec",
        "kind": "at_least",
        "replicas": "2",
        "minutes": "60",
        "reason": "try",
    }
    async with http.post("/overrides", data=said) as response:
        assert 403 == response.status
        assert "You may not do this" in await response.text()
    assert "No override is in force" in await text_of(http, "/overrides")


async def test_a_stream_ends_with_the_session_it_began_in(log_in: LogIn) -> None:
    http = await log_in("viewer")
    async with http.get("/live", params={"topic": "events:open"}) as stream:
        csrf = await csrf_of(http, "/events")
        async with http.post("/logout", data={"csrf": csrf}, allow_redirects=False) as response:
            assert 303 == response.status
        async with asyncio.timeout(60):
            assert b"event: beat" in await stream.content.read()
