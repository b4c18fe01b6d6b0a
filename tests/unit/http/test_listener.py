"""A port serves so many connections at once, turns the next one away in words, and serves again when one ends."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from controller.listener import Listener, listen

ASK = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def turned_away() -> list[None]:
    return []


@pytest.fixture
async def port(turned_away: list[None]) -> AsyncIterator[Listener]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="here")

    app = web.Application()
    app.router.add_get("/", answer)
    opened = await listen(
        app, "127.0.0.1", 0, connections_max=2, turned_away=lambda: turned_away.append(None)
    )
    yield opened
    await opened.stop()


async def connected(port: Listener) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(port.host, port.port)


async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(ASK)
    async with asyncio.timeout(30):
        return await reader.readline()


async def test_one_connection_too_many_is_told_so_and_counted(
    port: Listener, turned_away: list[None]
) -> None:
    held = [await connected(port) for _ in range(2)]
    assert [b"HTTP/1.1 200 OK\r\n"] * 2 == [await asked(*one) for one in held]

    reader, writer = await connected(port)
    first = await asked(reader, writer)
    rest = await reader.read()

    assert b"HTTP/1.1 503 Service Unavailable\r\n" == first
    assert b"Retry-After: 5" in rest
    assert rest.endswith(b"too many connections are open; close some, or try again\n")
    assert 1 == len(turned_away)
    writer.close()
    for _, one in held:
        one.close()


async def test_a_connection_that_ends_makes_room(port: Listener) -> None:
    held = [await connected(port) for _ in range(2)]
    for one in held:
        await asked(*one)
    held[0][1].close()
    await held[0][1].wait_closed()

    async with asyncio.timeout(30):
        while True:
            reader, writer = await connected(port)
            answer = await asked(reader, writer)
            writer.close()
            if answer.startswith(b"HTTP/1.1 200"):
                break

    held[1][1].close()


async def test_who_is_turned_away_and_says_nothing_is_let_go(port: Listener) -> None:
    held = [await connected(port) for _ in range(2)]
    for one in held:
        await asked(*one)

    reader, writer = await connected(port)
    said = b""
    async with asyncio.timeout(30):
        with contextlib.suppress(ConnectionResetError):
            said = await reader.read()

    assert b"" == said
    for _, one in [*held, (reader, writer)]:
        one.close()
