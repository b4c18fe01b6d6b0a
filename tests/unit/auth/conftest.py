"""Servers that tell callers apart, on the fakes, with tokens made for the test."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from controller.adapters.clock import SystemClock
from controller.adapters.fakes import FakeSignalCache, FakeStore
from controller.api.auth.roles import Grant
from controller.api.auth.security import Security, SecurityFiles
from controller.api.auth.tokens import TokenFile, make_token, read_tokens, save_tokens
from controller.api.limits import ApiLimits
from controller.api.server import ApiDependencies, RunningServer, serve
from controller.client import ApiError, Client, explain
from controller.core.types import CapacityProfile, Workload
from controller.credentials import Credentials
from tests.unit.auth.authority import Authority

# Looks at the files whenever the event loop has a moment, so that no test waits for a period.
EAGER = ApiLimits(reload_period_s=0.01, poll_period_s=0.05, health_period_s=0.05)


def a_workload(name: str, namespace: str) -> Workload:
    return Workload(
        name, "model", (CapacityProfile("e", "L4", 1000.0),), max_replicas=30, namespace=namespace
    )


@pytest.fixture
def store() -> FakeStore:
    """Two workloads in the namespace shop, one in search."""
    found = FakeStore()
    for name, namespace in (("cart", "shop"), ("recs", "shop"), ("ranker", "search")):
        found.tables.workloads[name] = a_workload(name, namespace)
    return found


class Tokens:
    """The tokens file of a test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        save_tokens(path, TokenFile())

    def make(self, *grants: str, name: str = "") -> str:
        """Add a token with these grants and return it."""
        made = make_token(name, tuple(map(Grant.parse, grants)), SystemClock().now(), None)
        save_tokens(self.path, TokenFile(tokens=(*read_tokens(self.path).tokens, made.kept)))
        return made.text

    def revoke_all(self) -> None:
        save_tokens(self.path, TokenFile())


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "tokens.json")


Opened = Callable[..., AbstractAsyncContextManager[RunningServer]]


@pytest.fixture
def opened(store: FakeStore) -> Opened:
    """Open a server with these security files for the time of a block."""

    @asynccontextmanager
    async def open_server(
        files: SecurityFiles, limits: ApiLimits = EAGER, **given: object
    ) -> AsyncIterator[RunningServer]:
        clock = SystemClock()
        deps = replace(
            ApiDependencies(store, FakeSignalCache(clock), clock, limits=limits),
            **given,  # type: ignore[arg-type]
        )
        server = await serve(deps, "127.0.0.1:0", Security(files))
        try:
            yield server
        finally:
            await server.stop(grace_s=0)

    return open_server


@pytest.fixture
async def server(opened: Opened, tokens: Tokens) -> AsyncIterator[RunningServer]:
    """A server on loopback that knows the test's tokens."""
    async with opened(SecurityFiles(tokens=tokens.path)) as running:
        yield running


ClientOf = Callable[[str], Client]


@pytest.fixture
async def client_of(server: RunningServer) -> AsyncIterator[ClientOf]:
    """A client that shows a token."""
    clients: list[Client] = []

    def connect(token: str) -> Client:
        clients.append(Client(server.target, credentials=Credentials(token=token)))
        return clients[-1]

    yield connect
    for client in clients:
        await client.close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


Refused = Callable[[Awaitable[object]], Awaitable[ApiError]]


@pytest.fixture
def refused() -> Refused:
    """Await a call that must fail and return what the status says."""

    async def fail(call: Awaitable[object]) -> ApiError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        return explain(caught.value)

    return fail
