"""The edge of the console: names, ways back, and what a login may say."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from controller.adapters.clock import SystemClock, VirtualClock
from controller.adapters.fakes import FakeSignalCache, FakeStore
from controller.api.server import ApiDependencies, serve
from controller.console.guard import CSP, is_our_name
from controller.console.pages.login import address, local
from controller.console.session import IDLE_MAX_S, LoginError, Sessions, may_do
from controller.credentials import Credentials


@pytest.mark.parametrize("host", ["127.0.0.1:7445", "localhost", "[::1]:9", "console.example:443"])
def test_loopback_and_named_hosts_are_ours(host: str) -> None:
    assert is_our_name(host, {"console.example"})


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "10.0.0.8:7445", "["])
def test_other_names_for_this_machine_are_not_ours(host: str) -> None:
    assert not is_our_name(host, {"console.example"})


@pytest.mark.parametrize(
    "asked",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        "evil",
        "/a\nb",
        "http:///x",
        "http://[",
    ],
)
def test_a_way_back_never_leads_out(asked: str) -> None:
    assert "/" == local(asked)


def test_a_way_back_keeps_path_and_query() -> None:
    assert "/workloads/rec?range=week" == local("/workloads/rec?range=week")
    assert "/login?next=%2Fworkloads%2Frec%3Frange%3Dweek" == address("/workloads/rec?range=week")


def test_the_policy_has_no_exceptions() -> None:
    assert "unsafe" not in CSP
    assert "http" not in CSP
    assert "*" not in CSP
    assert "default-src 'none'" in CSP


@pytest.mark.parametrize(
    ("token", "key"),
    [("", "login.not_a_token"), ("two words", "login.not_a_token"), ("a-token", "login.insecure")],
)
async def test_a_token_is_not_sent_in_plain_text_beyond_this_machine(token: str, key: str) -> None:
    sessions = Sessions("controller.example:7443", Credentials(), SystemClock())
    with pytest.raises(LoginError) as caught:
        await sessions.begin(token)
    assert key == caught.value.key
    await sessions.close()


async def test_a_console_with_a_certificate_of_its_own_lends_it_to_nobody(tmp_path: Path) -> None:
    credentials = Credentials(cert=tmp_path / "console.pem", key=tmp_path / "console.key")
    assert Sessions("127.0.0.1:1", credentials, SystemClock()).anonymous() is None


async def test_logins_with_one_token_at_once_share_one_feed_until_the_last_one_ends() -> None:
    clock = SystemClock()
    api = await serve(ApiDependencies(FakeStore(), FakeSignalCache(clock), clock), "127.0.0.1:0")
    sessions = Sessions(api.target, Credentials(), clock)
    first, second = await asyncio.gather(sessions.begin("a-token"), sessions.begin("a-token"))
    one, other = await sessions.find(first), await sessions.find(second)
    assert one is not None
    assert other is not None
    assert one.feed is other.feed
    await sessions.end(first)
    assert other.may == await may_do(other.feed.client)
    await sessions.close()
    await api.stop(grace_s=0)


async def test_a_session_that_nobody_comes_back_to_is_gone_with_the_next_login() -> None:
    clock = VirtualClock(datetime(2026, 11, 10, tzinfo=UTC))
    api = await serve(ApiDependencies(FakeStore(), FakeSignalCache(clock), SystemClock()), "127.0.0.1:0")
    sessions = Sessions(api.target, Credentials(), clock)
    await sessions.begin("a-token")
    await clock.advance(IDLE_MAX_S + 1)
    await sessions.begin("another-token")
    assert 1 == len(sessions._sessions) == len(sessions._feeds)
    await sessions.close()
    await api.stop(grace_s=0)
