"""PostgreSQL and Valkey on this machine, as one thing to start and stop.

Promises: both servers are ready when the block is entered and gone when it is left, or when this
process ends in any way; data, ports and passwords stay in the data folder for the next start; a
second start beside a running one is refused by name. Called by `bootstrap` and by tests.

    async with EmbeddedStack(Path(".forecrest")) as stack:
        engine = create_async_engine(stack.database_url)
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from controller.adapters.embedded import postgres, valkey
from controller.adapters.embedded.folder import DataFolder, FolderLock, choose_port, running_owner
from controller.adapters.embedded.process import EmbeddedError, ServerProcess, ServerStartError

DEFAULT_DATA_DIR = Path(".forecrest")
_PORT_ATTEMPTS = 3
_Start = Callable[[DataFolder, int, tuple[int, ...]], Awaitable[ServerProcess]]


@dataclass(frozen=True, slots=True)
class StackUrls:
    """How to reach the embedded servers; contains passwords, which its repr leaves out."""

    database_url: str = field(repr=False)
    redis_url: str = field(repr=False)


class EmbeddedStack:
    """Real servers in a local data folder; an asynchronous context manager, used once."""

    def __init__(self, data_dir: Path = DEFAULT_DATA_DIR) -> None:
        self.data_dir = data_dir
        self.servers: dict[str, ServerProcess] = {}
        self._exit = AsyncExitStack()
        self._urls: StackUrls | None = None
        self._lock: FolderLock | None = None

    @property
    def database_url(self) -> str:
        """SQLAlchemy URL (`postgresql+psycopg://…`); contains the password, so keep it out of logs."""
        return self._started().database_url

    @property
    def redis_url(self) -> str:
        """Redis URL; contains the password, so keep it out of logs."""
        return self._started().redis_url

    def _started(self) -> StackUrls:
        if self._urls is None:
            raise RuntimeError("the embedded servers have not been started; use `async with EmbeddedStack()`")
        return self._urls

    @property
    def kept_fds(self) -> tuple[int, ...]:
        """The folder's lock, for further servers that work in this folder to inherit."""
        return () if self._lock is None else (self._lock.fd,)

    async def watch(self) -> NoReturn:
        """Wait until a server ends by itself; whoever runs the process must end it then.

        Raises:
            EmbeddedError: says which server ended, how, and what it wrote last.
        """
        waits = {asyncio.ensure_future(server.wait()): server.spec for server in self.servers.values()}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        first = done.pop()
        spec, ended = waits[first], first.result()
        last = "\n  ".join(ended.tail[-5:])
        raise EmbeddedError(
            f"{spec.name} ended by itself with code {ended.code}; see {spec.log_path}, then start again. "
            f"It wrote last:\n  {last}"
        )

    async def __aenter__(self) -> Self:
        """Start both servers.

        Raises:
            AlreadyRunningError: a live process holds the data folder.
            EmbeddedError: a server cannot be started; the message carries the end of its log.
        """
        folder = DataFolder.prepare(self.data_dir)
        self._lock = await FolderLock.acquire(folder.path)
        self._exit.callback(self._lock.release)
        try:
            async with asyncio.TaskGroup() as tasks:
                database = tasks.create_task(
                    self._start(folder, postgres.NAME, postgres.start_postgres), name="start PostgreSQL"
                )
                cache = tasks.create_task(
                    self._start(folder, valkey.NAME, valkey.start_valkey), name="start Valkey"
                )
        except BaseExceptionGroup as group:
            await self._exit.aclose()
            raise group.exceptions[0] from None
        except BaseException:
            await self._exit.aclose()
            raise
        self._urls = _urls(folder, database.result(), cache.result())
        return self

    async def _start(self, folder: DataFolder, name: str, start: _Start) -> int:
        """Start one server on a free port, which another program may snatch meanwhile."""
        preferred = folder.ports().get(name)
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            port = choose_port(preferred)
            try:
                server = await start(folder, port, self.kept_fds)
            except ServerStartError as error:
                if attempt == _PORT_ATTEMPTS or "in use" not in "\n".join(error.tail):
                    raise
                preferred = None
                continue
            self._exit.push_async_callback(server.stop)
            self.servers[name] = server
            folder.save_port(name, port)
            return port
        raise AssertionError("unreachable: the last attempt raises")

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop both servers and give the folder back."""
        # Shielded: a second Ctrl-C must not leave one of them half stopped.
        await asyncio.shield(self._exit.aclose())
        self._urls = None


def _urls(folder: DataFolder, database_port: int, cache_port: int) -> StackUrls:
    return StackUrls(
        postgres.database_url(database_port, folder.password("postgres")),
        valkey.redis_url(cache_port, folder.password("valkey")),
    )


def running_urls(data_dir: Path = DEFAULT_DATA_DIR) -> StackUrls | None:
    """URLs of a stack that another process runs in `data_dir`; None when none does."""
    path = data_dir.expanduser().resolve()
    folder = DataFolder(path)
    ports = folder.ports()
    if running_owner(path) is None or not {postgres.NAME, valkey.NAME} <= ports.keys():
        return None
    return _urls(folder, ports[postgres.NAME], ports[valkey.NAME])


@contextmanager
def embedded_stack(data_dir: Path = DEFAULT_DATA_DIR) -> Generator[EmbeddedStack]:
    """Run an `EmbeddedStack` from synchronous code, such as a session fixture.

    Its event loop lives in a thread of its own, so it does not meet the loops of the tests.
    """
    ready: Future[EmbeddedStack] = Future()
    leave: list[Callable[[], object]] = []

    async def serve() -> None:
        left = asyncio.Event()
        loop = asyncio.get_running_loop()
        leave.append(lambda: loop.call_soon_threadsafe(left.set))
        try:
            async with EmbeddedStack(data_dir) as stack:
                ready.set_result(stack)
                await left.wait()
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="embedded stack", daemon=True)
    thread.start()
    stack = ready.result()
    try:
        yield stack
    finally:
        leave[0]()
        thread.join()
