"""Serve an HTTP application on one address: what the side port and the console have in common.

Promises: the port is open when ``listen`` returns, and closed again if it could not be; no more connections than
``CONNECTIONS_MAX`` are served at once, and one more is answered 503, of which the caller is told. Whether the address may
be served on is the caller's to check. Called by both.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from aiohttp import web

# A scraper, a few probes and everybody's open page need far fewer.
CONNECTIONS_MAX = 1000
# A connection that is turned away ends after this long, whether it has asked for something or not.
REFUSAL_S = 2.0
_REFUSAL = "too many connections are open; close some, or try again\n"
_FULL = (
    "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 5\r\nContent-Type: text/plain\r\n"
    f"Content-Length: {len(_REFUSAL)}\r\n\r\n{_REFUSAL}"
).encode()


def _uncounted() -> None:
    """Count nothing."""


@dataclass(slots=True)
class Listener:
    """A started server. ``port`` is the one really bound."""

    host: str
    port: int
    secure: bool
    _runner: web.AppRunner
    _server: asyncio.Server

    @property
    def url(self) -> str:
        """Where it answers, without a slash at the end."""
        return f"{'https' if self.secure else 'http'}://{self.host}:{self.port}"

    async def stop(self) -> None:
        """Close it; safe to repeat."""
        self._server.close()
        await self._runner.cleanup()


class _TurnedAway(asyncio.Protocol):
    """Answers whatever is asked on one connection with 503."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._end = asyncio.get_running_loop().call_later(REFUSAL_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        # Only now: closing before the request has come would reset the connection, and the answer with it.
        del data
        self._transport.write(_FULL)
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._end.cancel()


async def listen(
    app: web.Application,
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
    *,
    connections_max: int = CONNECTIONS_MAX,
    turned_away: Callable[[], None] = _uncounted,
) -> Listener:
    """Open a port, 0 for any; ``turned_away`` is told of each connection too many. Raise OSError if it is not free."""
    # Access logs would repeat what scrapers and open pages do every few seconds.
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=30, shutdown_timeout=1.0)
    await runner.setup()
    serving = runner.server
    assert serving is not None, "it was set up"

    def bounded() -> asyncio.BaseProtocol:
        if len(serving.connections) < connections_max:
            return serving()
        turned_away()
        return _TurnedAway()

    bare = host.removeprefix("[").removesuffix("]")
    try:
        server = await asyncio.get_running_loop().create_server(bounded, bare, port, ssl=tls, backlog=128)
    except OSError:
        await runner.cleanup()
        raise
    address: Any = server.sockets[0].getsockname()
    return Listener(host, address[1], tls is not None, runner, server)
