"""The demo's end of the load process: start it, tell it where warm replicas are, collect its answers."""

import asyncio
import json
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from controller.demo.load import Answer
from controller.demo.load_process import LINE_BYTES_MAX

END_GRACE_S = 5.0


class LoadEndedError(Exception):
    """The load process ended before its last answer."""


class LoadProcess:
    """One load process; an asynchronous context manager, used once."""

    def __init__(
        self,
        times_s: Sequence[float],
        *,
        model_name: str,
        model_version: str,
        timeout_s: float,
        seed: int,
        on_answers: Callable[[list[Answer]], None],
    ) -> None:
        self._settings = {
            "times_s": list(times_s),
            "model_name": model_name,
            "model_version": model_version,
            "timeout_s": timeout_s,
            "seed": seed,
        }
        self._on_answers = on_answers
        self._process: asyncio.subprocess.Process | None = None
        self._endpoints: tuple[str, ...] = ()
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Start the process; it waits for ``go``."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "controller.demo.load_process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
            # Ctrl-C in the terminal is for the demo alone; this process ends with its input.
            start_new_session=True,
        )
        await self._tell(self._settings)
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """End the process."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(END_GRACE_S):
                await process.wait()
        except (TimeoutError, asyncio.CancelledError):
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _tell(self, message: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        await self._process.stdin.drain()

    async def set_endpoints(self, endpoints: Collection[str]) -> None:
        """Send requests to these replicas from now on."""
        wanted = tuple(sorted(endpoints))
        if wanted != self._endpoints:
            self._endpoints = wanted
            await self._tell({"endpoints": wanted})

    async def go(self) -> None:
        """Start sending."""
        await self._tell({"go": True})

    async def finished(self) -> None:
        """Return after the last answer; raise LoadEndedError if the process ended before."""
        assert self._reading is not None
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            message = json.loads(line)
            if message.get("done"):
                return
            self._on_answers([Answer(m, latency, bool(ok)) for m, latency, ok in message["answers"]])
        raise LoadEndedError("the load generator ended early; see its error above and run the demo again")
