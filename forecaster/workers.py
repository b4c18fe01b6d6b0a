"""Processes that compute for this one, one task each at a time.

Promises: a task that outlasts its deadline is given up and its process ended; a process that dies is replaced, and
its task tried once more; either is an error with a sentence, and tasks of other processes go on. Processes start
when they are first needed, never more than asked for, give way to every other process of the machine, keep to one
core and a bound of memory each, know no settings and no secrets, and end with this process, however it ends.
Refuses: counts below one. A function must be found by its name in a module, and what goes in and out be pickled.
Called by: `forecaster.fleet` and the controller's forecaster adapter.
"""

import math
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from queue import LifoQueue
from typing import Any, Final, Self, TypeVar, cast

Result = TypeVar("Result")

NICENESS: Final = 10
COUNT_MAX: Final = 4
DEADLINE_S: Final = 60.0
# Loading the numerical libraries takes seconds, on a busy machine many.
START_S: Final = 120.0
READY: Final = b"r"
MEMORY_BYTES_MAX: Final = 2 << 30
TRIES: Final = 2
PARENT_PERIOD_S: Final = 5.0
CPU_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
# No settings: they may hold passwords, and a forecast needs none.
INHERITED: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class TaskError(RuntimeError):
    """A task came to nothing; the message says why. What it raised is in its notes."""


def worker_count() -> int:
    """Return how many processes suit this machine: one a core, by the quota of its container, and no more than four."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = CPU_QUOTA.read_text(encoding="ascii").split()
        cores = min(cores, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        pass  # no control groups of version 2, or no quota ("max")
    return max(1, min(cores, COUNT_MAX))


class Workers:
    """At most `count` processes; `with Workers(2) as workers: workers.call(function, argument)`."""

    def __init__(self, count: int, *, deadline_s: float = DEADLINE_S) -> None:
        if count < 1:
            raise ValueError(f"workers is {count}; give at least 1.")
        self.count = count
        self._seats = tuple(_Seat(deadline_s) for _ in range(count))
        # The seat used last is used next, so that a process more is only started when all others are at work.
        self._free: LifoQueue[_Seat] = LifoQueue()
        for seat in reversed(self._seats):
            self._free.put(seat)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Run a task in a process and wait for its result; from any thread, `count` of them at once.

        Raises:
            TaskError: It raised, outlasted its deadline, its processes died, or it cannot be sent to one.
        """
        try:
            task = pickle.dumps((function, arguments), pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise TaskError(f"It cannot be sent to a process: {_told(error)}") from error
        seat = self._free.get()
        try:
            return cast("Result", seat.run(task))
        finally:
            self._free.put(seat)

    def pids(self) -> tuple[int, ...]:
        """Return the ids of the processes that there are."""
        return tuple(seat.pid for seat in self._seats if seat.pid)

    def close(self) -> None:
        """End every process at once; tasks under way fail, and none begins any more."""
        for seat in self._seats:
            seat.close()


class _Seat:
    """One process at a time, and the next one when that is gone."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._lock = threading.Lock()  # of what `close` touches from another thread
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._closed = False

    @property
    def pid(self) -> int:
        """Id of the process; 0 without one."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else 0

    def run(self, task: bytes) -> object:
        for _ in range(TRIES):
            try:
                link = self._linked()
                done, value = self._ask(link, task)
            except TimeoutError:
                self._end()
                raise TaskError(f"It took longer than {self._deadline_s:g} s and was given up.") from None
            except (OSError, EOFError, pickle.UnpicklingError):
                self._end()  # once more, in a fresh process: the first may have died of something else
                continue
            if done:
                return value
            reason, details = cast("tuple[str, str]", value)
            error = TaskError(reason)
            error.add_note(details)
            raise error
        raise TaskError(f"Its process died {TRIES} times; it may need too much memory.")

    def _linked(self) -> socket.socket:
        """The way to a process that is ready."""
        with self._lock:
            if self._closed:
                raise TaskError("The workers are closed.")
            if self._socket is not None:
                return self._socket
            self._process, link = _start()
            self._socket = link
        link.settimeout(START_S)
        try:
            ready = link.recv(len(READY))
        except TimeoutError:
            ready = b""
        if ready != READY:
            raise EOFError
        return link

    def _ask(self, link: socket.socket, task: bytes) -> tuple[bool, object]:
        link.settimeout(self._deadline_s)
        link.sendall(pickle.dumps(task, pickle.HIGHEST_PROTOCOL))
        with link.makefile("rb") as answers:
            answer: bytes = pickle.load(answers)  # noqa: S301 - from our own child, over a private socket
        try:
            done, value = pickle.loads(answer)  # noqa: S301 - as above
        except (Exception, SystemExit) as error:
            raise TaskError(f"Its result cannot be read: {_told(error)}") from error
        return bool(done), value

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._end()

    def _end(self) -> None:
        with self._lock:
            process, self._process = self._process, None
            link, self._socket = self._socket, None
        if process is not None and link is not None:
            process.kill()
            process.wait()
            link.close()


def _start() -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    environment = {
        **{name: os.environ[name] for name in INHERITED if name in os.environ},
        # Read once, when a library is loaded: the fleet is parallel by processes already.
        **dict.fromkeys(THREAD_VARIABLES, "1"),
        "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
    }
    with theirs:
        # Not forked: a fork of a process with threads (gRPC, asyncio) can deadlock. A process group of its own: Ctrl-C
        # is for the parent, which ends it. Not a session of its own, in which its niceness would count for nothing.
        process = subprocess.Popen(  # noqa: S603 - our own module and two numbers
            [sys.executable, "-P", "-m", "forecaster.workers", str(theirs.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            process_group=0,
            env=environment,
        )
    return process, ours


def serve(descriptor: int, parent: int) -> None:
    """Answer tasks from a socket until its other end is closed."""
    # Before it says that it is ready, so that loading takes no task's time; before it gives way, so that it ends.
    for name in ("forecaster.explanation", "forecaster.nearcast"):
        import_module(name)
    os.nice(NICENESS)
    # Where less is allowed already, more cannot be asked for.
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = MEMORY_BYTES_MAX if hard == resource.RLIM_INFINITY else min(hard, MEMORY_BYTES_MAX)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with socket.socket(fileno=descriptor) as link, link.makefile("rwb") as stream:
        link.sendall(READY)
        while True:
            try:
                task: bytes = pickle.load(stream)  # noqa: S301 - from our own parent, over a private socket
                stream.write(pickle.dumps(_answer(task), pickle.HIGHEST_PROTOCOL))
                stream.flush()
            except (EOFError, OSError):
                return


def _answer(task: bytes) -> bytes:
    answer: tuple[bool, Any]
    try:
        function, arguments = pickle.loads(task)  # noqa: S301 - as above
        answer = True, function(*arguments)
        return pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
    except MemoryError:
        # What is left of it is no place for the next task.
        signal.raise_signal(signal.SIGKILL)
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a task raises is told to whoever asked
        answer = False, (_told(error), traceback.format_exc())
        return pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)


def _told(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - a message is made by code of its own, which may fail too
        return f"{type(error).__name__}, whose message cannot be read"


def _end_with(parent: int) -> None:
    """End this process, even in the midst of a task, once its parent is gone."""
    pause = threading.Event()
    while os.getppid() == parent:
        pause.wait(PARENT_PERIOD_S)
    os._exit(1)


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
