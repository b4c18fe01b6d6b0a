"""Wait for a server to notice a changed file, by asking it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc

T = TypeVar("T")


async def until_answered(call: Callable[[], Awaitable[T]], code: grpc.StatusCode | None = None) -> T:
    """Call until the answer is no UNAUTHENTICATED (``code``: until it is refused with that one instead)."""
    async with asyncio.timeout(60):
        while True:
            try:
                answer = await call()
                if code is None:
                    return answer
            except grpc.aio.AioRpcError as error:
                if code is not None and error.code() is code:
                    raise
                # Asked so often without success, it may not even say why.
                if error.code() not in {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED}:
                    raise
            await asyncio.sleep(0.01)
