"""TLS with real certificates: who is let in, who is not, and rotation under running streams."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import grpc
import pytest
from forecrest.v1 import control_service_pb2, workload_service_pb2

from controller.adapters.fakes import FakeStore
from controller.api.auth.files import SecurityError
from controller.api.auth.security import Security, SecurityFiles
from controller.api.auth.tls import TlsPaths
from controller.api.server import BindError, RunningServer, check_bind
from controller.client import Client
from controller.credentials import Credentials, CredentialsError
from tests.unit.api.conftest import a_decision
from tests.unit.auth.authority import HOUR, Authority
from tests.unit.auth.conftest import Opened, Tokens
from tests.unit.auth.waiting import until_answered

GET = workload_service_pb2.GetWorkloadRequest(name="workloads/cart")
SPIFFE = "spiffe://example.com/ns/shop/sa/planner"


@asynccontextmanager
async def connected(server: RunningServer, **given: object) -> AsyncIterator[Client]:
    async with Client(server.target, credentials=Credentials(**given)) as client:  # type: ignore[arg-type]
        yield client


async def is_unavailable(server: RunningServer, **given: object) -> bool:
    """Whether no connection comes about. A client that waits would try for ever."""
    async with connected(server, **given) as client:
        call = client.channel.unary_unary("/forecrest.v1.WorkloadService/GetWorkload")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(GET.SerializeToString(), timeout=20)
    return caught.value.code() is grpc.StatusCode.UNAVAILABLE


def access_file(folder: Path, text: str) -> Path:
    path = folder / "access.yaml"
    path.write_text(text)
    return path


async def test_a_client_that_trusts_the_authority_is_served_and_others_do_not_connect(
    opened: Opened, tokens: Tokens, authority: Authority, tmp_path: Path
) -> None:
    token = tokens.make("viewer:shop")
    stranger = Authority(tmp_path / "other", "other")
    async with opened(SecurityFiles(TlsPaths(*authority.server()), tokens.path)) as server:
        async with connected(server, ca=authority.ca, token=token) as client:
            assert "workloads/cart" == (await client.workloads.GetWorkload(GET)).name
        assert await is_unavailable(server, ca=stranger.ca, token=token)


async def test_a_certificate_that_ended_is_not_accepted_by_clients_and_said_in_the_log(
    opened: Opened, tokens: Tokens, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    paths = TlsPaths(*authority.server(begins=-3 * HOUR, ends=-HOUR))
    async with opened(SecurityFiles(paths, tokens.path)) as server:
        assert await is_unavailable(server, ca=authority.ca, token=tokens.make("viewer:shop"))

    assert "the TLS certificate ends at" in caplog.text


async def test_a_server_of_another_name_is_not_trusted_unless_the_name_is_given(
    opened: Opened, tokens: Tokens, authority: Authority
) -> None:
    token = tokens.make("viewer:shop")
    async with opened(
        SecurityFiles(TlsPaths(*authority.client("elsewhere", "https://x")), tokens.path)
    ) as server:
        assert await is_unavailable(server, ca=authority.ca, token=token)
    async with (
        opened(SecurityFiles(TlsPaths(*authority.server()))) as server,
        connected(server, ca=authority.ca, server_name="localhost") as client,
    ):
        assert "workloads/cart" == (await client.workloads.GetWorkload(GET)).name


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_only_tls_1_2_and_newer_is_spoken(
    opened: Opened, authority: Authority, version: ssl.TLSVersion
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority.ca)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.set_alpn_protocols(["h2"])
    with (
        pytest.warns(DeprecationWarning, match="TLSv1_1")
        if version < ssl.TLSVersion.TLSv1_2
        else nullcontext()
    ):
        context.minimum_version = context.maximum_version = version

    def handshake(port: int) -> str | None:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            return secure.version()

    async with opened(SecurityFiles(TlsPaths(*authority.server()))) as server:
        if version < ssl.TLSVersion.TLSv1_2:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.to_thread(handshake, server.port)
        else:
            assert {ssl.TLSVersion.TLSv1_2: "TLSv1.2", ssl.TLSVersion.TLSv1_3: "TLSv1.3"}[
                version
            ] == await asyncio.to_thread(handshake, server.port)


async def test_a_client_certificate_is_a_caller_with_the_grants_of_its_identity(
    opened: Opened, authority: Authority, tmp_path: Path
) -> None:
    access = access_file(
        tmp_path,
        f"certificates:\n  'uri:{SPIFFE}': ['viewer:shop']\n  'cn:old': ['viewer:search']\n",
    )
    paths = TlsPaths(*authority.server(), client_ca=authority.ca)
    stranger = Authority(tmp_path / "other", "other")
    async with opened(SecurityFiles(paths, access=access)) as server:

        async def code(pair: tuple[Path, Path]) -> str:
            async with connected(server, ca=authority.ca, cert=pair[0], key=pair[1]) as client:
                try:
                    await client.workloads.GetWorkload(GET)
                except grpc.aio.AioRpcError as error:
                    return error.code().name
            return "OK"

        assert "OK" == await code(authority.client("planner", SPIFFE))
        assert "NOT_FOUND" == await code(authority.client("old"))
        assert "UNAUTHENTICATED" == await code(authority.client("unknown"))
        # A URI that looks like another identity's common name is not that identity.
        assert "UNAUTHENTICATED" == await code(authority.client("old", "https://example.com/old"))
        for pair in (
            stranger.client("planner", SPIFFE),
            authority.client("late", SPIFFE, begins=-3 * HOUR, ends=-HOUR),
            authority.client("early", SPIFFE, begins=HOUR),
        ):
            assert await is_unavailable(server, ca=authority.ca, cert=pair[0], key=pair[1])
        assert await is_unavailable(server, ca=authority.ca)


async def test_grants_of_a_certificate_are_withdrawn_without_a_restart(
    opened: Opened, authority: Authority, tmp_path: Path
) -> None:
    access = access_file(tmp_path, f"certificates:\n  'uri:{SPIFFE}': ['viewer:shop']\n")
    paths = TlsPaths(*authority.server(), client_ca=authority.ca)
    cert, key = authority.client("planner", SPIFFE)
    async with (
        opened(SecurityFiles(paths, access=access)) as server,
        connected(server, ca=authority.ca, cert=cert, key=key) as client,
    ):
        await client.workloads.GetWorkload(GET)
        access.write_text("certificates: {}\n")
        with pytest.raises(grpc.aio.AioRpcError):
            await until_answered(lambda: client.workloads.GetWorkload(GET), grpc.StatusCode.UNAUTHENTICATED)


def served_serial(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port))


async def test_a_rotated_certificate_is_served_to_new_connections_while_streams_go_on(
    opened: Opened,
    tokens: Tokens,
    authority: Authority,
    store: FakeStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cert, key = authority.server()
    token = tokens.make("viewer:*")
    first = cert.read_text()
    store.tables.decisions["cart-1"] = a_decision(1, "cart")
    async with (
        opened(SecurityFiles(TlsPaths(cert, key), tokens.path)) as server,
        connected(server, ca=authority.ca, token=token) as client,
    ):
        stream = client.control.WatchDecisions(control_service_pb2.WatchDecisionsRequest())
        messages = aiter(stream)
        assert "decisions/cart-1" == (await anext(messages)).decision.name
        assert first == await asyncio.to_thread(served_serial, server.port)

        fresh_cert, fresh_key = authority.server("fresh")
        # Half a rotation must not come into force: the pair would not fit.
        fresh_cert.replace(cert)
        second = cert.read_text()
        async with asyncio.timeout(60):
            while "its own unencrypted key" not in caplog.text:  # noqa: ASYNC110 -- the log is what is awaited
                await asyncio.sleep(0)
        assert first == await asyncio.to_thread(served_serial, server.port)
        fresh_key.replace(key)
        async with asyncio.timeout(60):
            while second != await asyncio.to_thread(served_serial, server.port):  # noqa: ASYNC110 -- as above
                await asyncio.sleep(0.01)

        store.tables.decisions["cart-2"] = a_decision(2, "cart")
        assert "decisions/cart-2" == (await anext(messages)).decision.name
        async with connected(server, ca=authority.ca, token=token) as other:
            assert "workloads/cart" == (await other.workloads.GetWorkload(GET)).name


async def test_a_rotated_client_authority_lets_its_clients_in_and_the_old_ones_out(
    opened: Opened, authority: Authority, tmp_path: Path
) -> None:
    trusted = tmp_path / "clients.pem"
    trusted.write_bytes(authority.ca.read_bytes())
    access = access_file(tmp_path, f"certificates:\n  'uri:{SPIFFE}': ['viewer:shop']\n")
    later = Authority(tmp_path / "later", "later")
    old, new = authority.client("old", SPIFFE), later.client("new", SPIFFE)
    paths = TlsPaths(*authority.server(), client_ca=trusted)
    async with opened(SecurityFiles(paths, access=access)) as server:
        async with connected(server, ca=authority.ca, cert=old[0], key=old[1]) as client:
            await client.workloads.GetWorkload(GET)
        trusted.write_bytes(later.ca.read_bytes())

        async with asyncio.timeout(60):
            while True:
                async with connected(server, ca=authority.ca, cert=new[0], key=new[1]) as client:
                    try:
                        await client.workloads.GetWorkload(GET, timeout=5)
                        break
                    except grpc.aio.AioRpcError:
                        continue
        assert await is_unavailable(server, ca=authority.ca, cert=old[0], key=old[1])


def test_material_that_cannot_work_is_refused_at_the_start(authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.server()
    other_key = authority.server("other")[1]
    nothing_there = tmp_path / "nothing.pem"
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    for paths, says in (
        (TlsPaths(cert, other_key), "its own unencrypted key"),
        (TlsPaths(text, key), "its own unencrypted key"),
        (TlsPaths(cert, nothing_there), "cannot be read"),
        (TlsPaths(cert, key, client_ca=text), "no certificate authority"),
    ):
        with pytest.raises(SecurityError, match=says):
            Security(SecurityFiles(paths))


def test_certificates_and_groups_need_an_access_file(authority: Authority) -> None:
    with pytest.raises(SecurityError, match="access_file: is required with tls_client_ca"):
        Security(SecurityFiles(TlsPaths(*authority.server(), client_ca=authority.ca)))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("certificates: {planner: ['viewer:*']}", "no identity"),
        ("certificates: {'cn:x': ['viewer']}", "no grant"),
        ("certificates: {'cn:x': []}", "at least 1"),
        ("users: {}", "Extra inputs"),
        ("[", "no YAML"),
    ],
)
def test_an_access_file_with_a_mistake_is_refused(tmp_path: Path, text: str, says: str) -> None:
    from controller.api.auth.identity import read_access

    with pytest.raises(SecurityError, match=says):
        read_access(access_file(tmp_path, text))


def test_beyond_loopback_only_with_tls_and_known_callers(
    authority: Authority, tokens: Tokens, tmp_path: Path
) -> None:
    tls = TlsPaths(*authority.server())
    everything = Security(SecurityFiles(tls, tokens.path))
    for files, lacks in (
        (SecurityFiles(), "no TLS .* and no authentication"),
        (SecurityFiles(tls), "no authentication"),
        (SecurityFiles(tokens=tokens.path), "no TLS"),
    ):
        with pytest.raises(BindError, match=lacks):
            check_bind("0.0.0.0:7443", Security(files))
    assert "0.0.0.0" == check_bind("0.0.0.0:7443", everything)
    access = access_file(tmp_path, "{}")
    mutual = Security(SecurityFiles(TlsPaths(tls.cert, tls.key, authority.ca), access=access))
    assert "[::]" == check_bind("[::]:7443", mutual)


def test_a_token_does_not_travel_in_plain_text_beyond_this_machine() -> None:
    with pytest.raises(CredentialsError, match="plain text"):
        Client("192.0.2.1:7443", credentials=Credentials(token="t" * 20))


@pytest.mark.parametrize("text", ["", "two words", "line\nbreak", "ünicode"])
def test_what_is_no_token_is_said_before_the_first_call(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(CredentialsError, match="holds no token"):
        Client("127.0.0.1:1", credentials=Credentials(token_file=tmp_path / "token"))


async def test_a_rotated_token_file_is_used_by_a_running_client(
    opened: Opened, tokens: Tokens, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(tokens.make("viewer:shop") + "\n")
    async with (
        opened(SecurityFiles(tokens=tokens.path)) as server,
        connected(server, token_file=file) as client,
    ):
        await client.workloads.GetWorkload(GET)
        tokens.revoke_all()
        file.write_text(tokens.make("viewer:shop"))
        answer = await until_answered(lambda: client.workloads.GetWorkload(GET))
    assert "workloads/cart" == answer.name


def test_neither_token_nor_key_is_shown() -> None:
    assert "secret" not in repr(Credentials(token="secret-token"))
