"""The data folder: who holds it, which ports and passwords its servers use.

Promises: one holder at a time, told by the kernel: the lock is on an open file that the holder,
its guards and all their servers share, so it is free exactly when the last of them is gone. A
holder that was killed is recovered from; a live one is named. Passwords are in one file readable
by the owner alone and appear in no `repr` and no log. Called by the embedded stack and the local
actuator.
"""

import contextlib
import fcntl
import json
import os
import pwd
import secrets
import signal
import socket
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from controller.adapters.clock import SystemClock
from controller.adapters.embedded.process import Account, EmbeddedError
from controller.ports import Clock

# Servers whose parent was killed get this long to end in order before they are killed.
_ORPHAN_GRACE_S = 15.0
# A holder that has just been sent SIGKILL looks alive for a moment.
_DYING_S = 1.0
_RETRY_S = 0.05


class AlreadyRunningError(EmbeddedError):
    """Another process holds the data folder."""

    def __init__(self, folder: Path, pid: int) -> None:
        self.pid = pid
        super().__init__(
            f"data_dir: {folder} is in use by the running process {pid}; "
            "stop that process, or give this one another data folder"
        )


def write_private(path: Path, text: str) -> None:
    """Replace `path` with `text` as one step; only the owner may read it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """The object in `path`; empty when there is none or a crash left it unreadable."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it is gone. Tells reused pids apart."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


class FolderLock:
    """The exclusive hold on a folder; `fd` is what servers inherit."""

    def __init__(self, folder: Path, fd: int) -> None:
        self.folder, self.fd = folder, fd

    @classmethod
    async def acquire(cls, folder: Path, clock: Clock | None = None) -> Self:
        """Take the folder, waiting for (and at last killing) what a killed holder left behind.

        Raises:
            AlreadyRunningError: a live process holds it.
        """
        clock = clock or SystemClock()
        path = folder / "lock"
        refuse_at = clock.monotonic() + _DYING_S
        deadline = clock.monotonic() + _ORPHAN_GRACE_S
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
            else:
                owner = json.dumps({"pid": os.getpid(), "start_ticks": _start_ticks(os.getpid())})
                os.ftruncate(fd, 0)
                os.pwrite(fd, owner.encode(), 0)
                return cls(folder, fd)
            if (pid := running_owner(folder)) is not None and clock.monotonic() >= refuse_at:
                raise AlreadyRunningError(folder, pid)
            if clock.monotonic() >= deadline:
                _kill_holders(path)
            await clock.sleep(_RETRY_S)

    def release(self) -> None:
        """Give the folder back; harmless when done twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def running_owner(folder: Path) -> int | None:
    """The pid of the live process that holds `folder`, if any."""
    owner = read_json(folder / "lock")
    pid = owner.get("pid")
    if not isinstance(pid, int) or _start_ticks(pid) != owner.get("start_ticks"):
        return None
    return pid if _holds(pid, folder / "lock") else None


def _holds(pid: int, path: Path) -> bool:
    """Whether a process shares the open file that carries the lock; one that merely waits does not."""
    process = Path(f"/proc/{pid}")
    with contextlib.suppress(OSError):  # it ended meanwhile, or is another user's
        for fd in (process / "fd").iterdir():
            if os.path.samestat(fd.stat(), path.stat()):
                return "FLOCK" in (process / "fdinfo" / fd.name).read_text()
    return False


def _kill_holders(path: Path) -> None:
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and _holds(int(process.name), path):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)


def choose_port(preferred: int | None = None, taken: Collection[int] = ()) -> int:
    """A free TCP port on 127.0.0.1, the preferred one if it is free, none of `taken`.

    Another program may take it before the server does; the caller retries with a new one then.
    """
    for wanted in (preferred or 0, *(0,) * 50):
        with socket.socket() as probe:
            # As the servers do: a port whose old connections linger in TIME_WAIT counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", wanted))
            except OSError:
                continue
            port: int = probe.getsockname()[1]
            if port not in taken:
                return port
    raise EmbeddedError("no free TCP port on 127.0.0.1; close some programs")


@dataclass(frozen=True, slots=True)
class DataFolder:
    """Paths and small state inside the data folder."""

    path: Path

    @classmethod
    def prepare(cls, path: Path) -> Self:
        """Create the folder if needed.

        Raises:
            EmbeddedError: it cannot be created or written.
        """
        path = path.expanduser().resolve()
        try:
            # Root's servers run as another user, which must be able to pass through.
            path.mkdir(parents=True, exist_ok=True, mode=0o711 if os.geteuid() == 0 else 0o700)
            (path / "logs").mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise EmbeddedError(f"data_dir: cannot create {path}: {error.strerror}") from error
        if not os.access(path, os.W_OK | os.X_OK):
            raise EmbeddedError(f"data_dir: {path} is not writable by this user; choose another folder")
        return cls(path)

    def log(self, name: str) -> Path:
        """Where the server of that name logs."""
        return self.path / "logs" / f"{name}.log"

    def password(self, name: str) -> str:
        """The stored password of that name, made on first use."""
        path = self.path / "secrets.json"
        known = read_json(path)
        if name not in known:
            known[name] = secrets.token_urlsafe(24)
            write_private(path, json.dumps(known))
        return str(known[name])

    def ports(self) -> dict[str, int]:
        """Ports chosen in earlier runs, by server name."""
        return {k: v for k, v in read_json(self.path / "ports.json").items() if isinstance(v, int)}

    def save_port(self, name: str, port: int) -> None:
        """Remember a port, so that clients' configuration stays right over restarts."""
        write_private(self.path / "ports.json", json.dumps(self.ports() | {name: port}, indent=1))

    def server_account(self, owned: Path, *reached: Path) -> Account | None:
        """The user that servers run as: ourselves (None), or an unprivileged one if we are root.

        The owner of existing data `owned` comes first, then the folder's owner, then `nobody`.
        Where that user cannot reach a path on its own (a home closed to others), the server keeps
        the capability to pass file permissions rather than have ours opened up for everybody.
        """
        if os.geteuid() != 0:
            if owned.exists() and owned.stat().st_uid != os.geteuid():
                raise EmbeddedError(
                    f"data_dir: {owned} belongs to user {owned.stat().st_uid}, and PostgreSQL demands its own; "
                    "run as that user or choose another data folder"
                )
            return None
        owners = (path.stat() for path in (owned, self.path) if path.exists())
        uid, gid = next(((s.st_uid, s.st_gid) for s in owners if s.st_uid != 0), (0, 0))
        if uid == 0:
            try:
                entry = pwd.getpwnam("nobody")
            except KeyError:
                raise EmbeddedError(
                    "PostgreSQL refuses to run as root and this machine has no user 'nobody'; "
                    "run as an ordinary user"
                ) from None
            uid, gid = entry.pw_uid, entry.pw_gid
        closed = not all(_can_pass(path, uid, gid) for path in (self.path, *reached))
        return Account(uid=uid, gid=gid, keep_file_access=closed)


def _can_pass(path: Path, uid: int, gid: int) -> bool:
    """Whether a user can enter `path` and every folder above it."""
    for folder in (path, *path.parents):
        status = folder.stat()
        bit = 0o100 if status.st_uid == uid else 0o010 if status.st_gid == gid else 0o001
        if not status.st_mode & bit:
            return False
    return True


def make_private_folder(path: Path, account: Account | None) -> None:
    """Create `path` for the server's user alone."""
    path.mkdir(mode=0o700, exist_ok=True)
    if account is not None:
        os.chown(path, account.uid, account.gid)
