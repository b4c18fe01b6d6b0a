"""Keep one server process, and end it with its parent. Runs as a process of its own.

Promises: the server and everything it started are gone before the guard is, whether the parent
asked for it (stdin closed), ended, crashed or was killed with SIGKILL. If the guard itself is
killed, the kernel kills the server (PR_SET_PDEATHSIG; the guard has one thread, so the signal
cannot come early, as it does when the *thread* that forked ends). The server's output goes into a
log of bounded size. Refuses nothing and decides nothing: `process.py` starts it and speaks the
protocol: one JSON line with the specification on stdin, then events as JSON lines on stdout
(`started`, `ready`, `exited`). Imports the standard library only, so that it starts in
milliseconds and runs with `-I -S`.
"""

import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_KEEPCAPS = 8
_PR_SET_CHILD_SUBREAPER = 36
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_CAP_DAC_OVERRIDE = 1
_CAPABILITY_VERSION_3 = 0x20080522
_TAIL_LINES = 40
_TAIL_LINE_BYTES = 500

_libc = ctypes.CDLL(None, use_errno=True)


class _Log:
    """The server's output: a file and its predecessor, at most `limit_bytes` each, and the last lines."""

    def __init__(self, path: str, limit_bytes: int) -> None:
        self._path, self._limit = path, limit_bytes
        self._open()
        self._partial = b""
        self.tail: list[str] = []

    def _open(self) -> None:
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._fd).st_size

    def write(self, data: bytes) -> list[str]:
        """Store `data` and return the complete lines in it."""
        if self._size and self._size + len(data) > self._limit:
            os.close(self._fd)
            Path(self._path).replace(self._path + ".1")
            self._open()
        # A full disk must not stop the server: the line is lost, the read goes on.
        try:
            self._size += os.write(self._fd, data)
        except OSError:
            self._size += 0
        *lines, self._partial = (self._partial + data).split(b"\n")
        self._partial = self._partial[-_TAIL_LINE_BYTES:]
        texts = [line[:_TAIL_LINE_BYTES].decode(errors="replace") for line in lines]
        self.tail = (self.tail + texts)[-_TAIL_LINES:]
        return texts


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _keep_file_access() -> None:
    """Hold on to CAP_DAC_OVERRIDE across exec after root has been dropped."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    bit = 1 << _CAP_DAC_OVERRIDE
    # Two words per set for version 3: effective, permitted, inheritable; then the high halves.
    data = (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)
    _check(_libc.capset(ctypes.byref(header), ctypes.byref(data)), "capset CAP_DAC_OVERRIDE")
    _check(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_OVERRIDE, 0, 0), "ambient capability")


def _become_server(spec: dict[str, Any], output: int, status: int) -> NoReturn:
    """Turn the forked child into the server; a failure goes to `status` as text."""
    try:
        os.setsid()
        stdin = os.open(spec["stdin_path"], os.O_RDONLY)  # while root, if we are root
        for source, target in ((stdin, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        os.chdir(spec["cwd"])
        os.umask(0o077)
        if spec["account"] is not None:
            uid, gid = spec["account"]
            if spec["keep_file_access"]:
                _check(_libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0), "keep capabilities")
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            if spec["keep_file_access"]:
                _keep_file_access()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        # After the change of user: the kernel clears this setting when credentials change.
        _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "parent-death signal")
        if os.getppid() != spec["guard_pid"]:
            os._exit(70)
        os.execve(spec["argv"][0], spec["argv"], spec["env"])  # noqa: S606 - no shell is wanted here
    except OSError as error:
        remedy = ""
        if spec["keep_file_access"]:
            remedy = "; run as an ordinary user, or choose a data folder that every user can pass through to"
        os.write(status, f"{spec['argv'][0]}: {error}{remedy}".encode())
    os._exit(71)


class _Guard:
    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._ready_lines = list(spec["ready_lines"])
        self._log = _Log(spec["log_path"], spec["log_limit_bytes"])
        self._wakeup_read, wakeup_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # A handler must exist for the byte to be written; the work is done in the loop below.
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._server_exit: int | None = None
        self._server_pid = 0
        self._output = -1
        self._stop_at: float | None = None
        self._kill_at: float | None = None

    def _say(self, event: dict[str, Any]) -> None:
        try:
            os.write(1, json.dumps(event).encode() + b"\n")
        except OSError:
            return  # the parent is gone, which the loop sees on its own

    def start(self) -> bool:
        self._output, output_write = os.pipe2(os.O_CLOEXEC)
        status_read, status_write = os.pipe2(os.O_CLOEXEC)
        self._spec["guard_pid"] = os.getpid()
        self._server_pid = os.fork()
        if self._server_pid == 0:
            _become_server(self._spec, output_write, status_write)
        os.close(output_write)
        os.close(status_write)
        failure = os.read(status_read, 4096)  # empty once exec has closed it
        os.close(status_read)
        if failure:
            self._say({"event": "exited", "code": 71, "tail": [failure.decode(errors="replace")]})
            return False
        self._say({"event": "started", "pid": self._server_pid})
        return True

    def _read_output(self) -> bool:
        data = os.read(self._output, 65536)
        for line in self._log.write(data) if data else ():
            if self._ready_lines and self._ready_lines[0] in line:
                del self._ready_lines[0]
                if not self._ready_lines:
                    self._say({"event": "ready"})
        return bool(data)

    def _reap(self) -> bool:
        """Collect ended descendants; whether any is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._server_pid:
                self._server_exit = os.waitstatus_to_exitcode(status)

    def _begin_stop(self) -> None:
        if self._stop_at is None:
            self._stop_at = time.monotonic()  # noqa: TID251 - stand-alone process, no Clock port here
            self._kill_at = self._stop_at + self._spec["stop_grace_s"]
            if self._server_exit is None:
                os.kill(self._server_pid, self._spec["stop_signal"])

    def run(self) -> None:
        """Serve until the server and all its descendants are gone."""
        self._watch(self._wakeup_read, self._on_signal)
        self._watch(self._output, self._on_output)
        self._watch(0, self._on_stdin)
        try:
            # A pipe stays open while any forked copy of the parent holds it; this does not.
            parent = os.pidfd_open(self._spec["parent_pid"])
            self._watch(parent, lambda: self._on_parent_end(parent))
        except OSError:
            pass  # an old kernel, or the parent is already gone: stdin tells as well
        if os.getppid() != self._spec["parent_pid"]:
            self._begin_stop()
        while self._reap() or self._server_exit is None:
            if self._server_exit is not None:
                self._begin_stop()
                self._kill_descendants()
            for fd, _ in self._poll.poll(self._timeout_ms()):
                self._handlers[fd]()
            if self._kill_at is not None and time.monotonic() >= self._kill_at:  # noqa: TID251 - as above
                self._kill_at = None
                self._kill_descendants()
        # What the server wrote last is in the pipe still, and is what a reader wants to see.
        os.set_blocking(self._output, False)
        try:
            while self._read_output():
                pass
        except BlockingIOError:
            pass
        self._say({"event": "exited", "code": self._server_exit, "tail": self._log.tail})

    def _watch(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, select.POLLIN)

    def _on_signal(self) -> None:
        told = set(os.read(self._wakeup_read, 512)) - {signal.SIGCHLD}
        if told:
            self._begin_stop()
        if signal.SIGUSR1 in told:  # at once, and all of it: grandchildren do not end with the server
            self._kill_at = None
            self._kill_descendants()

    def _on_output(self) -> None:
        if not self._read_output():
            self._poll.unregister(self._output)

    def _on_stdin(self) -> None:
        if not os.read(0, 512):
            self._on_parent_end(0)

    def _on_parent_end(self, fd: int) -> None:
        self._poll.unregister(fd)
        self._begin_stop()

    def _timeout_ms(self) -> int | None:
        if self._server_exit is not None:
            return 20  # orphans end without a signal to us until they are reparented
        if self._kill_at is None:
            return None
        return max(0, int((self._kill_at - time.monotonic()) * 1000) + 1)  # noqa: TID251 - as above

    def _kill_descendants(self) -> None:
        for pid in _descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _descendants(root: int) -> list[int]:
    """Pids below `root`, from /proc: sessions and process groups of their own do not hide them."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue  # it ended meanwhile
            children.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [root]
    while queue:
        queue.extend(new := children.get(queue.pop(), []))
        found.extend(new)
    return found


def _read_spec() -> dict[str, Any]:
    # Byte by byte from the descriptor: a buffered reader could swallow what follows the line.
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(0)  # the parent ended before it said what to start
        line += byte
    spec: dict[str, Any] = json.loads(line)
    return spec


def main() -> None:
    """Entry point of the guard process."""
    guard = _Guard(_read_spec())
    if guard.start():
        guard.run()


if __name__ == "__main__":
    main()
