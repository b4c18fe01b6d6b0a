"""What a browser does, without one: cookies, origins, redirects that are looked at."""

import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp


class Browser:
    """One person at one console."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None) -> None:
        self.url = url
        self.session = aiohttp.ClientSession(
            cookie_jar=aiohttp.CookieJar(unsafe=True),
            connector=aiohttp.TCPConnector(ssl=True if tls is None else tls),
        )

    async def get(self, path: str, **options: object) -> tuple[int, str, aiohttp.ClientResponse]:
        async with self.session.get(self.url + path, allow_redirects=False, **options) as response:  # type: ignore[arg-type]
            return response.status, await response.text(), response

    async def post(
        self, path: str, data: dict[str, str], **headers: str
    ) -> tuple[int, str, aiohttp.ClientResponse]:
        given = {"Origin": self.url} | {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.post(
            self.url + path, data=data, headers=given, allow_redirects=False
        ) as response:
            return response.status, await response.text(), response

    async def csrf(self, path: str = "/login") -> str:
        _, text, _ = await self.get(path)
        found = re.search(r'name="csrf" content="([0-9a-f]{64})"', text)
        assert found is not None
        return found.group(1)

    async def log_in(self, token: str, then: str = "/") -> tuple[int, str, aiohttp.ClientResponse]:
        return await self.post("/login", {"csrf": await self.csrf(), "token": token, "next": then})


@asynccontextmanager
async def browsing(url: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[Browser]:
    """Open one and close it."""
    browser = Browser(url, tls)
    try:
        yield browser
    finally:
        await browser.session.close()
