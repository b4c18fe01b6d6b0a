"""Serve an HTTP application on one address: what the side port and the console have in common.

Promises: the port is open when ``listen`` returns, and closed again if it could not be. Whether the address may be
served on is the caller's to check. Called by both.
"""

import ssl
from dataclasses import dataclass
from typing import Any

from aiohttp import web


@dataclass(slots=True)
class Listener:
    """A started server. ``port`` is the one really bound."""

    host: str
    port: int
    secure: bool
    _runner: web.AppRunner

    @property
    def url(self) -> str:
        """Where it answers, without a slash at the end."""
        return f"{'https' if self.secure else 'http'}://{self.host}:{self.port}"

    async def stop(self) -> None:
        """Close it; safe to repeat."""
        await self._runner.cleanup()


async def listen(app: web.Application, host: str, port: int, tls: ssl.SSLContext | None = None) -> Listener:
    """Open a port, 0 for any; raise OSError if it is not free."""
    # Access logs would repeat what scrapers and open pages do every few seconds.
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=30, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, host.removeprefix("[").removesuffix("]"), port, ssl_context=tls)
    try:
        await site.start()
    except OSError:
        await runner.cleanup()
        raise
    addresses: Any = runner.addresses
    return Listener(host, addresses[0][1], tls is not None, runner)
