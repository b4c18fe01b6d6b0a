"""Static tokens: made, kept as hashes, found, expired, withdrawn while they are in use."""

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from forecrest.v1 import control_service_pb2, workload_service_pb2

from controller.adapters.clock import SystemClock
from controller.adapters.fakes import FakeStore
from controller.api.auth.files import SecurityError
from controller.api.auth.roles import Grant
from controller.api.auth.tokens import KeptToken, TokenBook, TokenFile, make_token, read_tokens, save_tokens
from controller.client import Client
from tests.unit.api.conftest import a_decision
from tests.unit.auth.conftest import ClientOf, Refused, Tokens
from tests.unit.auth.waiting import until_answered

NOW = SystemClock().now()
DAY = timedelta(days=1)


def a_token(expires_in: timedelta | None = None) -> tuple[str, KeptToken]:
    made = make_token(
        "ci", (Grant.parse("planner:shop"),), NOW, None if expires_in is None else NOW + expires_in
    )
    return made.text, made.kept


def test_a_token_is_found_with_its_grants() -> None:
    text, kept = a_token()

    found = TokenBook(TokenFile(tokens=(kept,))).find(text, NOW)

    assert (kept, (Grant.parse("planner:shop"),)) == found


def test_what_is_kept_does_not_hold_the_token(tmp_path: Path) -> None:
    text, kept = a_token()
    save_tokens(tmp_path / "t.json", TokenFile(tokens=(kept,)))

    secret = text.rpartition("_")[2] if text.count("_") == 2 else text[21:]
    assert secret not in (tmp_path / "t.json").read_text()
    assert 0o600 == (tmp_path / "t.json").stat().st_mode & 0o777
    assert TokenFile(tokens=(kept,)) == read_tokens(tmp_path / "t.json")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda text: text[:-1] + ("A" if text[-1] != "A" else "B"),
        lambda text: text[:-1],
        lambda text: text + "A",
        lambda text: text.replace("fct_", "fct_0"),
        lambda text: text.upper(),
        lambda _: "",
        lambda _: "fct_0123456789abcdef_" + "A" * 43,
    ],
)
def test_no_other_text_is_a_token(wrong: Callable[[str], str]) -> None:
    text, kept = a_token()

    assert TokenBook(TokenFile(tokens=(kept,))).find(wrong(text), NOW) is None


def test_a_token_ends_on_time() -> None:
    text, kept = a_token(expires_in=DAY)
    book = TokenBook(TokenFile(tokens=(kept,)))

    assert book.find(text, NOW + DAY - timedelta(microseconds=1)) is not None
    assert book.find(text, NOW + DAY) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"grants": ["emperor:shop"]}, "no grant"),
        ({"grants": []}, "at least 1"),
        ({"sha256": "plain-text-token"}, "pattern"),
        ({"extra": 1}, "Extra inputs"),
        ({"name": "Ci Runner"}, "pattern"),
    ],
)
def test_a_file_with_a_mistake_is_refused_without_repeating_it(
    tmp_path: Path, change: dict[str, object], says: str
) -> None:
    _, kept = a_token()
    broken = json.loads(kept.model_dump_json()) | change
    (tmp_path / "t.json").write_text(json.dumps({"tokens": [broken]}))

    with pytest.raises(SecurityError, match=says) as caught:
        read_tokens(tmp_path / "t.json")
    assert "plain-text-token" not in str(caught.value)


def test_two_tokens_of_one_id_are_refused(tmp_path: Path) -> None:
    _, kept = a_token()
    (tmp_path / "t.json").write_text(json.dumps({"tokens": [json.loads(kept.model_dump_json())] * 2}))

    with pytest.raises(SecurityError, match="same id"):
        read_tokens(tmp_path / "t.json")


def test_a_file_everybody_may_write_is_refused(tmp_path: Path) -> None:
    save_tokens(tmp_path / "t.json", TokenFile())
    (tmp_path / "t.json").chmod(0o646)

    with pytest.raises(SecurityError, match="chmod o-w"):
        read_tokens(tmp_path / "t.json")


@pytest.mark.parametrize(
    "text", ["planner", "planner:", ":shop", "planner:Shop", "planner:a b", "king:*", ""]
)
def test_a_grant_has_a_role_and_a_namespace(text: str) -> None:
    with pytest.raises(ValueError, match="ROLE:NAMESPACE"):
        Grant.parse(text)


GET = workload_service_pb2.GetWorkloadRequest(name="workloads/cart")


async def test_calls_without_credentials_are_refused_and_told_how_to_send_some(
    client_of: ClientOf, server: object, refused: Refused
) -> None:
    async with Client(server.target) as client:  # type: ignore[attr-defined]
        error = await refused(client.workloads.GetWorkload(GET))

    assert ("UNAUTHENTICATED", "UNAUTHENTICATED") == (error.code, error.reason)
    assert "authorization: Bearer" in error.message


async def test_a_token_opens_what_it_is_for(client_of: ClientOf, tokens: Tokens) -> None:
    client = client_of(tokens.make("viewer:shop"))

    assert "workloads/cart" == (await until_answered(lambda: client.workloads.GetWorkload(GET))).name


async def test_wrong_tokens_of_every_kind_are_refused_in_the_same_words(
    client_of: ClientOf, tokens: Tokens, refused: Refused
) -> None:
    good = tokens.make("viewer:shop")
    wrong = [good[:-1] + "-", "fct_0123456789abcdef_" + "A" * 43, "nonsense", "a.b.c"]

    errors = [await refused(client_of(text).workloads.GetWorkload(GET)) for text in wrong]

    assert 1 == len(set(errors))
    assert "UNAUTHENTICATED" == errors[0].code


async def test_a_withdrawn_token_opens_nothing_and_its_streams_end(
    client_of: ClientOf, tokens: Tokens, store: FakeStore, refused: Refused
) -> None:
    client = client_of(tokens.make("viewer:*"))
    await until_answered(lambda: client.workloads.GetWorkload(GET))
    store.tables.decisions["cart-1"] = a_decision(1, "cart")
    stream = client.control.WatchDecisions(control_service_pb2.WatchDecisionsRequest())
    assert "decisions/cart-1" == (await anext(aiter(stream))).decision.name

    tokens.revoke_all()

    error = await refused(anext(aiter(stream)))
    assert "UNAUTHENTICATED" == error.code
    assert "open it again" in error.message
    assert "UNAUTHENTICATED" == (await refused(client.workloads.GetWorkload(GET))).code


async def test_a_broken_tokens_file_leaves_the_last_good_one_in_force(
    client_of: ClientOf, tokens: Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    client = client_of(tokens.make("viewer:*"))
    await until_answered(lambda: client.workloads.GetWorkload(GET))

    tokens.path.write_text("{")
    async with asyncio.timeout(30):
        while "stays as it was" not in caplog.text:  # noqa: ASYNC110 -- the log is what is awaited
            await asyncio.sleep(0)

    assert "workloads/cart" == (await client.workloads.GetWorkload(GET)).name
    assert 1 == caplog.text.count("stays as it was")
