"""A TCP relay between a client and the API server that a test can cut, and heal again."""

import asyncio
from contextlib import suppress
from typing import Self


class Relay:
    """Forwards one loopback port to another. While cut, connections are closed and new ones end at once."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.is_cut = False

    async def __aenter__(self) -> Self:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        """End every connection."""
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def cut(self) -> None:
        """Close every connection, and let no new one through."""
        self.is_cut = True
        for writer in self._writers:
            writer.close()

    def heal(self) -> None:
        """Let connections through again."""
        self.is_cut = False

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:
            writer.close()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._writers |= {writer, back}
        ways = [asyncio.create_task(_pump(reader, back)), asyncio.create_task(_pump(there, writer))]
        self._tasks.update(ways)
        await asyncio.wait(ways)
        self._tasks.difference_update(ways)
        self._writers -= {writer, back}


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()
