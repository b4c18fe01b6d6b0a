"""A parent process that runs the embedded stack, to be ended in every way a process can end."""

import asyncio
import json
import os
import signal
import sys
import sysconfig
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

HOLDER = """
import asyncio, json, os, sys
from pathlib import Path
from controller.adapters.embedded import EmbeddedStack
from controller.adapters.embedded.guard import _descendants

async def main():
    async with EmbeddedStack(Path(sys.argv[1])) as stack:
        print(json.dumps({
            "database_url": stack.database_url,
            "redis_url": stack.redis_url,
            "servers": {name: server.pid for name, server in stack.servers.items()},
            "descendants": _descendants(os.getpid()),
        }), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@dataclass
class Holder:
    """A child process with the stack up; `descendants` are the guards, servers and backends."""

    process: asyncio.subprocess.Process
    database_url: str
    redis_url: str
    servers: dict[str, int]
    descendants: list[int]

    async def everything_ended(self) -> None:
        """Wait until the process and all its descendants are gone; the kernel tells through pidfds."""
        await self.process.wait()
        async with asyncio.timeout(60):
            for pid in self.descendants:
                await _ended(pid)


async def _ended(pid: int) -> None:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(fd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


@pytest.fixture
async def start_holder() -> AsyncIterator[Callable[..., Awaitable[Holder]]]:
    """Start a `Holder` on a data folder; whatever is left is killed after the test."""
    started: list[asyncio.subprocess.Process] = []

    async def start(data_dir: Path, *, user: int | None = None, python: str = sys.executable) -> Holder:
        places = (str(Path(__file__).parents[3]), sysconfig.get_path("purelib"))
        process = await asyncio.create_subprocess_exec(
            *(python, "-c", HOLDER, str(data_dir)),
            stdout=asyncio.subprocess.PIPE,
            user=user,
            group=user,
            extra_groups=None if user is None else (),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        )
        started.append(process)
        assert process.stdout is not None
        return Holder(process, **json.loads(await process.stdout.readline()))

    yield start
    for process in started:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.communicate()
