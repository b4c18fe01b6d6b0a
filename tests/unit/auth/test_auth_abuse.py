"""Connections that last too long, metadata that is too large, headers of any bytes."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import grpc
import pytest
from forecrest.v1 import control_service_pb2, workload_service_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.adapters.clock import SystemClock
from controller.adapters.fakes import FakeStore
from controller.api.auth.identity import Authenticator, UnauthenticatedError
from controller.api.auth.roles import Access, Grant, Role, namespaces_of
from controller.api.auth.security import Security, SecurityFiles
from controller.api.auth.tokens import TokenBook, TokenFile, make_token
from controller.client import Client
from controller.credentials import Credentials
from tests.unit.api.conftest import a_decision
from tests.unit.auth.conftest import EAGER, Opened, Refused, Tokens

GET = workload_service_pb2.GetWorkloadRequest(name="workloads/cart")


async def test_a_connection_ends_at_its_age_and_the_client_goes_on_with_another(
    opened: Opened, tokens: Tokens, store: FakeStore
) -> None:
    store.tables.decisions["cart-1"] = a_decision(1, "cart")
    limits = replace(EAGER, connection_age_max_s=0.5, connection_age_grace_s=0.2)
    token = tokens.make("viewer:*")
    async with (
        opened(SecurityFiles(tokens=tokens.path), limits) as server,
        Client(server.target, credentials=Credentials(token=token)) as client,
        Client(server.target, credentials=Credentials(token=token)) as bare,
    ):
        stream = bare.control.WatchDecisions(control_service_pb2.WatchDecisionsRequest())
        await anext(aiter(stream))
        watching = client.watch_decisions()
        first = await anext(watching)
        async with asyncio.timeout(60):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await anext(aiter(stream))
            store.tables.decisions["cart-2"] = a_decision(2, "cart")
            second = await anext(watching)
        await watching.aclose()  # type: ignore[attr-defined]

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert ["decisions/cart-1", "decisions/cart-2"] == [first.decision.name, second.decision.name]


async def test_metadata_beyond_the_limit_is_refused(opened: Opened, tokens: Tokens, refused: Refused) -> None:
    async with opened(SecurityFiles(tokens=tokens.path)) as server, Client(server.target) as client:
        call = client.channel.unary_unary("/forecrest.v1.WorkloadService/GetWorkload")
        error = await refused(call(GET.SerializeToString(), metadata=(("x-padding", "a" * 200_000),)))

    assert "RESOURCE_EXHAUSTED" == error.code


GOOD = make_token("x", (Grant.parse("viewer:*"),), SystemClock().now(), None)
HEADERS = st.one_of(
    st.text(max_size=200),
    st.text(max_size=200).map(lambda text: f"Bearer {text}"),
    st.integers(0, len(GOOD.text) - 1).map(lambda cut: f"Bearer {GOOD.text[:cut]}"),
    st.tuples(st.integers(0, len(GOOD.text) - 1), st.characters()).map(
        lambda change: f"Bearer {GOOD.text[: change[0]]}{change[1]}{GOOD.text[change[0] + 1 :]}"
    ),
    st.sampled_from([f"Basic {GOOD.text}", GOOD.text, f"Bearer  {GOOD.text}", f"Bearer {GOOD.text} "]),
)


class _Held:
    """A tokens file that never changes."""

    value = TokenBook(TokenFile(tokens=(GOOD.kept,)))


@settings(max_examples=1000)
@given(headers=st.lists(HEADERS, min_size=1, max_size=3))
def test_no_header_but_the_token_itself_is_anybody(headers: Sequence[str]) -> None:
    authenticator = Authenticator(SystemClock(), tokens=_Held())  # type: ignore[arg-type]
    if list(headers) == [f"Bearer {GOOD.text}"]:
        return
    with pytest.raises(UnauthenticatedError):
        asyncio.run(authenticator.identify(list(headers), []))


@given(
    grants=st.lists(st.builds(Grant, st.sampled_from(Role), st.sampled_from(["a", "b", "*"])), max_size=6),
    more=st.builds(Grant, st.sampled_from(Role), st.sampled_from(["a", "b", "*"])),
    access=st.sampled_from([a for a in Access if a not in {Access.PUBLIC, Access.KNOWN}]),
)
def test_grants_only_ever_add(grants: list[Grant], more: Grant, access: Access) -> None:
    before, after = namespaces_of(grants, access), namespaces_of([*grants, more], access)

    assert namespaces_of([], access) == frozenset()
    if before is None:
        assert after is None
    elif after is not None:
        assert before <= after
        assert after - before <= {more.namespace}
    else:
        assert more.namespace == "*"


def test_nothing_is_configured_by_default() -> None:
    security = Security()

    assert (None, False, {}) == (security.tls, security.authenticator.enabled, security.failures)
