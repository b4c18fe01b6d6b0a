"""Where the forecaster computes: in processes, or in a thread of this one.

Promises: the event loop is not held up; a process that hangs or dies is a PortError and costs no other task. Called by
the forecaster's adapter and its near models.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from controller.ports import PortError
from forecaster.workers import TaskError, Workers

Result = TypeVar("Result")


class Away:
    """Where computation happens: in processes, or in a thread of this one, one task at a time."""

    def __init__(self, workers: Workers | None) -> None:
        self._workers, self._turn = workers, asyncio.Lock()
        self._threads = None if workers is None else ThreadPoolExecutor(workers.count, "forecaster")

    async def run(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Wait for the result without holding up the event loop; raise PortError if a process does not bring it."""
        if self._workers is None:
            return await self.beside(function, *arguments)
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, self._workers.call, function, *arguments)
        except TaskError as error:
            raise PortError(str(error)) from error

    async def beside(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Run what is too small to be sent away in a thread, one at a time."""
        async with self._turn:
            return await asyncio.to_thread(function, *arguments)

    async def close(self) -> None:
        """End the processes, whatever they are at."""
        if self._workers is not None and self._threads is not None:
            await asyncio.to_thread(self._workers.close)
            self._threads.shutdown(wait=False, cancel_futures=True)
