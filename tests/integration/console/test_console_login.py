"""Logging in: a console in front of a real API that tells its callers apart."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from forecrest.v1 import workload_pb2, workload_service_pb2
from yarl import URL

from controller.adapters.clock import SystemClock
from controller.adapters.postgres import PostgresStore
from controller.adapters.redis import RedisSignalCache
from controller.api.auth.roles import Grant
from controller.api.auth.security import Security, SecurityFiles
from controller.api.auth.tokens import TokenFile, make_token, save_tokens
from controller.api.server import ApiDependencies
from controller.api.server import serve as serve_api
from controller.client import Client
from controller.console.app import create_app
from controller.console.session import COOKIE
from controller.credentials import Credentials
from controller.listener import listen
from tests.integration.console.browsing import browsing

ROLES = ("operator:*", "operator:shop", "viewer:*", "planner:*", "telemetry:*")


class Guarded:
    """A console, and a token for each role."""

    def __init__(self, url: str, tokens: dict[str, str], store: PostgresStore) -> None:
        self.url, self.tokens, self.store = url, tokens, store


@pytest.fixture
async def guarded(postgres_store: PostgresStore, redis_url: str, tmp_path: Path) -> AsyncIterator[Guarded]:
    clock = SystemClock()
    made = {
        one: make_token(one.removesuffix(":*").replace(":", "-"), (Grant.parse(one),), clock.now(), None)
        for one in ROLES
    }
    save_tokens(tmp_path / "tokens.json", TokenFile(tokens=tuple(one.kept for one in made.values())))
    signals = RedisSignalCache(redis_url, clock=clock, prefix="console-login:")
    api = await serve_api(
        ApiDependencies(postgres_store, signals, clock),
        "127.0.0.1:0",
        Security(SecurityFiles(tokens=tmp_path / "tokens.json")),
    )
    async with Client(api.target, credentials=Credentials(token=made["operator:*"].text)) as client:
        workload = workload_pb2.Workload(
            model_name="m", profiles=[workload_pb2.CapacityProfile(engine="e", qps_max=10)]
        )
        await client.workloads.CreateWorkload(
            workload_service_pb2.CreateWorkloadRequest(workload_id="cart", workload=workload)
        )
    # A token in the console's own environment must not let anybody in.
    own = Credentials(token=made["operator:*"].text)
    console = await listen(create_app(api.target, credentials=own), "127.0.0.1", 0)
    yield Guarded(console.url, {role: one.text for role, one in made.items()}, postgres_store)
    await console.stop()
    await api.stop(grace_s=0)
    await signals.close()


async def test_nobody_gets_in_without_a_token_and_everybody_comes_back_to_where_they_were(
    guarded: Guarded,
) -> None:
    async with browsing(guarded.url) as browser:
        status, text, response = await browser.get("/workloads/cart?range=week")
        assert (303, "/workloads/cart?range=week") == (
            status,
            URL(response.headers["Location"]).query["next"],
        )
        assert "cart" not in text
        refused, said, _ = await browser.log_in("frt_nonsense")
        assert refused == 401
        assert "does not know this token" in said
        status, _, response = await browser.log_in(guarded.tokens["viewer:*"], "/workloads/cart?range=week")
        assert (303, "/workloads/cart?range=week") == (status, response.headers["Location"])
        cookie = response.cookies[COOKIE]
        assert (True, "Strict", "") == (cookie["httponly"], cookie["samesite"], cookie["domain"])
        status, text, _ = await browser.get("/workloads/cart")
        assert status == 200
        assert "cart" in text
        assert guarded.tokens["viewer:*"] not in text


async def test_a_session_ends_with_logging_out_and_its_cookie_is_worth_nothing_then(guarded: Guarded) -> None:
    async with browsing(guarded.url) as browser:
        _, _, response = await browser.log_in(guarded.tokens["viewer:*"])
        kept = response.cookies[COOKIE].value
        status, _, _ = await browser.post("/logout", {"csrf": await browser.csrf("/")})
        assert status == 303
        again, _, _ = await browser.get("/", cookies={COOKIE: kept})
        assert again == 303


async def test_what_a_role_may_not_do_is_not_offered(guarded: Guarded) -> None:
    offered = {}
    for role in ("operator:*", "planner:*", "viewer:*"):
        async with browsing(guarded.url) as browser:
            await browser.log_in(guarded.tokens[role])
            _, text, _ = await browser.get("/workloads/cart")
            offered[role] = "/events/new?workload=cart" in text
    assert {"operator:*": True, "planner:*": True, "viewer:*": False} == offered
    # What may be offered is asked, and not tried.
    async with guarded.store.unit_of_work() as uow:
        assert ([], "") == await uow.records.entries(method="Pause")


async def test_operators_of_one_namespace_are_offered_its_overrides_and_not_the_fleets_pause(
    guarded: Guarded,
) -> None:
    offered = {}
    for role in ("operator:*", "operator:shop", "viewer:*"):
        async with browsing(guarded.url) as browser:
            await browser.log_in(guarded.tokens[role])
            _, text, _ = await browser.get("/overrides")
            offered[role] = ("override-form" in text, "fleet-pause" in text)
    assert {
        "operator:*": (True, True),
        "operator:shop": (True, False),
        "viewer:*": (False, False),
    } == offered


async def test_what_the_api_refuses_is_said_in_words(guarded: Guarded) -> None:
    async with browsing(guarded.url) as browser:
        await browser.log_in(guarded.tokens["telemetry:*"])
        status, text, _ = await browser.get("/")
        assert status == 403
        assert "You may not do this" in text
        assert "ROLE_FORBIDDEN" in text
    async with browsing(guarded.url) as browser:
        await browser.log_in(guarded.tokens["viewer:*"])
        status, text, _ = await browser.get("/workloads/nothing-here")
        assert status == 404
        assert "RESOURCE_NOT_FOUND" in text


async def test_a_change_needs_our_own_page(guarded: Guarded) -> None:
    async with browsing(guarded.url) as browser:
        token, csrf = guarded.tokens["viewer:*"], await browser.csrf()
        tries = {
            "no token": ({"token": token}, {}),
            "a wrong token": ({"token": token, "csrf": "0" * 64}, {}),
            "another origin": ({"token": token, "csrf": csrf}, {"Origin": "https://evil.example"}),
            "no origin at all": ({"token": token, "csrf": csrf}, {"Origin": "null"}),
        }
        statuses = {
            name: (await browser.post("/login", data, **headers))[0]
            for name, (data, headers) in tries.items()
        }
        assert dict.fromkeys(tries, 403) == statuses
        assert (await browser.post("/login", {"token": token, "csrf": csrf}))[0] == 303


async def test_every_answer_carries_the_policy_and_other_names_are_refused(guarded: Guarded) -> None:
    async with browsing(guarded.url) as browser:
        for path in ("/login", "/static/css/base.css", "/nothing", "/"):
            _, _, response = await browser.get(path)
            assert "default-src 'none'" in response.headers["Content-Security-Policy"]
            assert "nosniff" == response.headers["X-Content-Type-Options"]
        status, _, _ = await browser.get("/login", headers={"Host": "evil.example"})
        assert status == 421


async def test_streams_of_strangers_are_not_opened(guarded: Guarded) -> None:
    async with browsing(guarded.url) as browser:
        status, text, _ = await browser.get("/live?topic=nonsense")
        assert status == 400
        assert "nonsense" in text
        too_many = "&".join(f"topic=workload:w{n}" for n in range(9))
        assert (await browser.get(f"/live?{too_many}"))[0] == 400
