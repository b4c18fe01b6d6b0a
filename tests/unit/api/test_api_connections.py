"""Peers that say nothing, and more peers than there is room for, are closed, and cost the others nothing."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from forecrest.v1 import control_service_pb2

from controller.adapters.clock import SystemClock
from controller.adapters.fakes import FakeSignalCache, FakeStore
from controller.api.auth.security import Security, SecurityFiles
from controller.api.auth.tls import TlsPaths
from controller.api.limits import ApiLimits
from controller.api.server import ApiDependencies, RunningServer, serve
from controller.client import Client
from tests.unit.auth.authority import Authority

HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
ROOM = 4


@asynccontextmanager
async def opened(limits: ApiLimits, security: Security | None = None) -> AsyncGenerator[RunningServer]:
    clock = SystemClock()
    deps = ApiDependencies(FakeStore(), FakeSignalCache(clock), clock, limits=limits)
    server = await serve(deps, "127.0.0.1:0", security)
    try:
        yield server
    finally:
        await server.stop(grace_s=0)


def connected(server: RunningServer, hello: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    made.sendall(hello)
    return made


def is_served(peer: socket.socket) -> bool:
    """Whether it is answered; False, and done with, once the server has closed it."""
    try:
        answered = bool(peer.recv(64))
    except ConnectionError:
        answered = False
    if not answered:
        peer.close()
    return answered


async def test_more_connections_than_there_is_room_for_are_closed_until_one_goes() -> None:
    async with opened(ApiLimits(connections_max=ROOM)) as server:

        def flood() -> None:
            peers = [connected(server, HELLO) for _ in range(ROOM)]
            assert all(map(is_served, peers))
            assert not any(is_served(connected(server, HELLO)) for _ in range(ROOM))
            peers.pop().close()
            # The place is free when the server has seen the end of it.
            while not is_served(again := connected(server, HELLO)):
                pass
            for peer in (*peers, again):
                peer.close()

        await asyncio.to_thread(flood)
        async with Client(server.target) as client:
            assert (await client.control.GetCaller(control_service_pb2.GetCallerRequest())).permissions


async def test_a_tls_peer_that_never_shakes_hands_is_closed_and_its_place_is_free_again(
    tmp_path: Path,
) -> None:
    limits = ApiLimits(connections_max=ROOM, handshake_timeout_s=0.2)
    paths = TlsPaths(*Authority(tmp_path).server())
    async with opened(limits, Security(SecurityFiles(paths))) as server:

        def wait() -> None:
            for _ in range(3):  # each round fills every place with peers of half a hello, or of none
                peers = [connected(server, b"\x16\x03\x01" * (number % 2)) for number in range(ROOM)]
                assert not any(map(is_served, peers))

        await asyncio.to_thread(wait)
