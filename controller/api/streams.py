"""Streams that do not come from the watch feed: how many there may be, and how they end.

Promises: no more than the limit at once; when the server stops, whoever waits in ``until_stopped`` is told at
once, so that a client opens its stream elsewhere instead of waiting for the grace period to run out. Called by
the servicers with streams of their own and by the server.
"""

import asyncio
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from controller.api.errors import StoppingError, StreamLimitError

T = TypeVar("T")


class Streams:
    """Counts open streams and ends them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._stopped = asyncio.Event()
        self.count = 0

    def stop(self) -> None:
        """End every stream with StoppingError."""
        self._stopped.set()

    @contextmanager
    def admitted(self) -> Generator[None]:
        """Hold a place for one stream; raise StreamLimitError or StoppingError if there is none."""
        if self._stopped.is_set():
            raise _stopping()
        if self.count >= self._limit:
            message = f"{self._limit} such streams are open, the most this server holds; close some"
            raise StreamLimitError("TOO_MANY_STREAMS", message)
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1

    async def until_stopped(self, wait: Coroutine[Any, Any, T]) -> T:
        """Await ``wait``; raise StoppingError, and cancel it, once the server stops."""
        waiting = asyncio.ensure_future(wait)
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({waiting, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return await waiting
            raise _stopping()
        finally:
            for task in (waiting, stopped):
                task.cancel()
            # Ended for sure: who is cancelled itself closes next what `wait` reads from.
            await asyncio.wait({waiting, stopped})

    async def hold(self) -> None:
        """Wait until the server stops, then raise StoppingError."""
        await self._stopped.wait()
        raise _stopping()


def _stopping() -> StoppingError:
    return StoppingError("SERVER_STOPPING", "this server is stopping; open the stream again")
