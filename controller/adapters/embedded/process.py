"""Start and stop one server process through its guard (`guard.py`).

Promises: `start` returns when the server has said that it is ready, or raises with the end of its
output; the process never outlives this one, whatever ends it; `stop` returns when the server and
all it started are gone. Waits for events, never polls. Called by the embedded stack and by the
Triton server wrapper.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

_GUARD = Path(__file__).with_name("guard.py")
_LOG_LIMIT_BYTES = 4 * 1024 * 1024
# An event carries the last lines of output, in which JSON may spell each character with six.
_EVENT_BYTES_MAX = 1024 * 1024
# What the guard may need on top of the server's own grace to kill and collect everything.
_GUARD_MARGIN_S = 10.0


class EmbeddedError(RuntimeError):
    """An embedded server cannot be used; the message says why and what to do."""


class ServerStartError(EmbeddedError):
    """A server ended, or stayed silent, before it was ready."""

    def __init__(self, name: str, problem: str, tail: tuple[str, ...], log_path: Path) -> None:
        self.tail = tail
        output = "\n  ".join(tail) or "(no output)"
        super().__init__(f"{name} {problem}; see {log_path}. It wrote last:\n  {output}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The user a server runs as when we are root; `keep_file_access` keeps CAP_DAC_OVERRIDE."""

    uid: int
    gid: int
    keep_file_access: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """How to run one server; an empty `ready_lines` means: ready as soon as it runs.

    `ready_lines` are texts that appear in the server's output, in this order, once it serves.
    `kept_fds` stay open in the guard, the server and all its descendants (the folder's lock).
    """

    name: str
    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(repr=False)
    log_path: Path
    ready_lines: tuple[str, ...]
    start_timeout_s: float
    stop_grace_s: float
    stop_signal: signal.Signals = signal.SIGTERM
    account: Account | None = None
    stdin_path: Path = Path(os.devnull)
    kept_fds: tuple[int, ...] = ()
    log_limit_bytes: int = _LOG_LIMIT_BYTES

    def to_json(self) -> bytes:
        """The guard's one-line specification."""
        account = self.account
        return json.dumps(
            {
                "parent_pid": os.getpid(),
                "argv": self.argv,
                "cwd": str(self.cwd),
                "env": dict(self.env),
                "log_path": str(self.log_path),
                "log_limit_bytes": self.log_limit_bytes,
                "ready_lines": self.ready_lines,
                "stop_signal": int(self.stop_signal),
                "stop_grace_s": self.stop_grace_s,
                "stdin_path": str(self.stdin_path),
                "account": None if account is None else (account.uid, account.gid),
                "keep_file_access": account is not None and account.keep_file_access,
            }
        ).encode()


@dataclass(frozen=True, slots=True)
class ServerExit:
    """How a server ended: exit code (negative: the signal) and the last lines of its output."""

    code: int
    tail: tuple[str, ...]


class ServerProcess:
    """A running server; made by `start`."""

    def __init__(self, spec: ServerSpec, guard: asyncio.subprocess.Process) -> None:
        self.spec = spec
        self.pid: int | None = None
        self._guard = guard
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._exit: asyncio.Future[ServerExit] = loop.create_future()
        self._events = asyncio.create_task(self._read_events(), name=f"guard of {spec.name}")

    @classmethod
    async def start(cls, spec: ServerSpec) -> Self:
        """Start the server and return once it is ready.

        Raises:
            ServerStartError: it ended first, or was not ready within `start_timeout_s`.
        """
        guard = await asyncio.create_subprocess_exec(
            # Isolated and without site: nothing of the caller's environment can change the guard.
            *(sys.executable, "-I", "-S", "-B", str(_GUARD)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_EVENT_BYTES_MAX,
            pass_fds=spec.kept_fds,
            start_new_session=True,  # Ctrl-C reaches us alone, and we stop the server in order
        )
        server = cls(spec, guard)
        try:
            assert guard.stdin is not None
            guard.stdin.write(spec.to_json() + b"\n")
            await server._wait_until_ready()
        except BaseException:
            await server.stop()
            raise
        return server

    async def _wait_until_ready(self) -> None:
        try:
            async with asyncio.timeout(self.spec.start_timeout_s):
                await asyncio.wait((self._ready, self._exit), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            ended = await self.stop()
            problem = f"was not ready within {self.spec.start_timeout_s:g} s"
            raise ServerStartError(self.spec.name, problem, ended.tail, self.spec.log_path) from None
        if not self._ready.done():
            ended = self._exit.result()
            problem = f"ended with code {ended.code} before it was ready"
            raise ServerStartError(self.spec.name, problem, ended.tail, self.spec.log_path)

    async def _read_events(self) -> None:
        assert self._guard.stdout is not None
        ended = ServerExit(code=-signal.SIGKILL, tail=("the guard process was killed",))
        try:
            async for line in self._guard.stdout:
                event = json.loads(line)
                if event["event"] == "started":
                    self.pid = event["pid"]
                if event["event"] == "exited":
                    ended = ServerExit(event["code"], tuple(event["tail"]))
                elif event["event"] == "ready" or not self.spec.ready_lines:
                    self._ready.set_result(None)
        except ValueError:  # half a line, of a guard that was killed while it wrote, or one beyond all bounds
            with contextlib.suppress(ProcessLookupError):
                self._guard.kill()  # else whoever waits for the end would wait for ever
        await self._guard.wait()
        self._exit.set_result(ended)

    @property
    def is_running(self) -> bool:
        """Whether the server has not ended, as far as its guard has told."""
        return not self._exit.done()

    async def wait(self) -> ServerExit:
        """Wait for the server's end."""
        return await asyncio.shield(self._exit)

    async def stop(self) -> ServerExit:
        """Ask the server to end, kill it after its grace, and return when all of it is gone."""
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        try:
            async with asyncio.timeout(self.spec.stop_grace_s + _GUARD_MARGIN_S):
                return await self.wait()
        except TimeoutError:
            return await self.kill()

    async def kill(self) -> ServerExit:
        """End the server and all it started at once; return when all of it is gone.

        The guard does it, because the kernel would end the server with its guard but not what the server
        started. A guard that does not answer is killed itself, as the last resort.
        """
        with contextlib.suppress(ProcessLookupError):
            self._guard.send_signal(signal.SIGUSR1)
        try:
            async with asyncio.timeout(_GUARD_MARGIN_S):
                return await self.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._guard.kill()
            return await self.wait()


async def run_to_end(spec: ServerSpec) -> None:
    """Run a program that ends by itself, such as an initialiser.

    Raises:
        ServerStartError: it failed, or ran longer than `start_timeout_s`.
    """
    process = await ServerProcess.start(spec)
    try:
        async with asyncio.timeout(spec.start_timeout_s):
            ended = await process.wait()
    except TimeoutError:
        ended = await process.stop()
        problem = f"did not end within {spec.start_timeout_s:g} s"
        raise ServerStartError(spec.name, problem, ended.tail, spec.log_path) from None
    finally:
        await process.stop()
    if ended.code != 0:
        raise ServerStartError(spec.name, f"ended with code {ended.code}", ended.tail, spec.log_path)
