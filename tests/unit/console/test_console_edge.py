"""The edge of the console: names, ways back, and what a login may say."""

from pathlib import Path

import pytest

from controller.adapters.clock import SystemClock
from controller.console.guard import CSP, is_our_name
from controller.console.pages.login import address, local
from controller.console.session import LoginError, Sessions
from controller.credentials import Credentials


@pytest.mark.parametrize("host", ["127.0.0.1:7445", "localhost", "[::1]:9", "console.example:443"])
def test_loopback_and_named_hosts_are_ours(host: str) -> None:
    assert is_our_name(host, {"console.example"})


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "10.0.0.8:7445"])
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
