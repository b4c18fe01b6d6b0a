"""Real PostgreSQL, Valkey and controller processes to do harm to, for drills of high availability.

Promises: controllers run as `forecrest serve` does, with settings from their environment, each in a folder and a
process group of its own; whatever a drill killed or stopped, leaving the blocks ends what is left. Waits for
what is observed, never for time. Called by the failover benchmark and the end-to-end tests.
"""

import asyncio
import itertools
import json
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Self

from benchmarks.fleet import FLEET_VARIABLE
from controller.adapters.embedded import postgres, valkey
from controller.adapters.embedded.folder import DataFolder, FolderLock, choose_port
from controller.adapters.embedded.process import ServerProcess
from controller.adapters.postgres import PostgresLeaseStore, migrate
from controller.client import Client
from controller.core.resources import Lease
from controller.ports import LEADER_LEASE, SHARD_LEASES, UnavailableError

_ROOT = Path(__file__).resolve().parent.parent
_READY_S = 300.0  # controllers that start at once on a busy machine wait for each other
_LOOK_AGAIN_S = 0.02
FLEET_MEMBER = ("-m", "benchmarks.fleet")
SERVE = ("-m", "controller", "serve")


class Servers:
    """PostgreSQL and Valkey that can be stopped and started again at the same address.

    ``durable`` lets PostgreSQL wait for the disk at each commit.
    """

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        self._path, self._durable = folder, durable
        first = choose_port()
        self._ports = {postgres.NAME: first, valkey.NAME: choose_port(taken={first})}
        self._running: dict[str, ServerProcess] = {}
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start both, on a fresh schema."""
        self._folder = DataFolder.prepare(self._path)
        self._lock = await FolderLock.acquire(self._folder.path)
        self._exit.callback(self._lock.release)
        try:
            await asyncio.gather(self.start(postgres.NAME), self.start(valkey.NAME))
            if not self._durable:  # drills kill processes, not machines: what the kernel has is safe
                (self._folder.path / "postgres" / "user.conf").write_text("fsync = off\n")
                os.kill(self._pid(postgres.NAME), signal.SIGHUP)
            await asyncio.to_thread(migrate.upgrade, self.database_url)
        except BaseException:
            await self._exit.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop both."""
        await self._exit.aclose()

    @property
    def database_url(self) -> str:
        """With its password."""
        return postgres.database_url(self._ports[postgres.NAME], self._folder.password("postgres"))

    @property
    def redis_url(self) -> str:
        """With its password."""
        return valkey.redis_url(self._ports[valkey.NAME], self._folder.password("valkey"))

    async def start(self, name: str) -> None:
        """Start a server at its address."""
        start = postgres.start_postgres if name == postgres.NAME else valkey.start_valkey
        server = await start(self._folder, self._ports[name], (self._lock.fd,))
        self._exit.push_async_callback(server.stop)
        self._running[name] = server

    async def stop(self, name: str, how: signal.Signals) -> None:
        """End a server by a signal; SIGQUIT is PostgreSQL's immediate mode, which recovers at the next start."""
        os.kill(self._pid(name), how)
        await self._running[name].wait()

    def runs(self, name: str) -> bool:
        """Whether a server has not ended, by itself or by a signal."""
        return self._running[name].is_running

    def _pid(self, name: str) -> int:
        pid = self._running[name].pid
        assert pid is not None
        return pid


@dataclass(slots=True)
class Member:
    """One controller process."""

    name: str
    process: asyncio.subprocess.Process
    address: str
    log_path: Path

    @property
    def folder(self) -> Path:
        """Its data folder."""
        return self.log_path.parent

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)


class Cluster:
    """Controllers that share servers and, unless they only pretend to act, a fleet."""

    def __init__(
        self,
        servers: Servers,
        folder: Path,
        *,
        fleet_url: str | None,
        lease_s: float,
        period_s: float = 0.5,
        shards: int = 1,
        program: Sequence[str] = FLEET_MEMBER,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """``program`` is what runs where there is a fleet, ``environment`` what its settings are besides."""
        self._servers, self._folder, self._fleet_url = servers, folder, fleet_url
        self._program, self._shards = program, shards
        self._environment = {
            "FORECREST_DATABASE_URL": servers.database_url,
            "FORECREST_REDIS_URL": servers.redis_url,
            "FORECREST_BIND": "127.0.0.1:0",
            "FORECREST_LEASE_DURATION_S": str(lease_s),
            "FORECREST_TICK_PERIOD_S": str(period_s),
            "FORECREST_SCRAPE_PERIOD_S": str(period_s),
            "FORECREST_SHARDS": str(shards),
            "FORECREST_ACTUATOR": "dry_run",  # of `serve`; the fleet takes its place where there is one
            "OMP_NUM_THREADS": "1",
            **environment,
        }
        self._leases = PostgresLeaseStore(servers.database_url)
        self._numbers = itertools.count(1)
        self.members: dict[str, Member] = {}

    async def __aenter__(self) -> Self:
        """Nothing runs yet."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """End every member, stopped ones too."""
        for member in self.members.values():
            if member.process.returncode is None:
                member.send(signal.SIGCONT)
                member.send(signal.SIGTERM)
        await asyncio.gather(*(member.process.wait() for member in self.members.values()))
        await self._leases.close()

    async def start(self) -> Member:
        """Start one more controller and return once it serves."""
        name = f"member-{next(self._numbers)}"
        folder = self._folder / name
        folder.mkdir(parents=True)
        environment = os.environ | self._environment
        environment |= {"FORECREST_HOLDER": name, "FORECREST_DATA_DIR": str(folder)}
        if self._fleet_url is not None:
            environment[FLEET_VARIABLE] = self._fleet_url
        log_path = folder / "log"
        with log_path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *(SERVE if self._fleet_url is None else self._program),
                cwd=_ROOT,
                env=environment,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the drill alone, which ends each in order
            )
        member = self.members[name] = Member(name, process, "", log_path)
        assert process.stdout is not None
        async with asyncio.timeout(_READY_S):
            while line := await process.stdout.readline():
                if b"serves gRPC" in line:
                    break
            else:
                raise RuntimeError(f"{name} did not start:\n{log_path.read_text()}")
        member.address = json.loads((folder / "runtime.json").read_text())["address"]
        return member

    async def start_many(self, count: int) -> None:
        """Start several at once."""
        await asyncio.gather(*(self.start() for _ in range(count)))

    async def kill(self, member: Member) -> None:
        """End it at once, without a word."""
        member.send(signal.SIGKILL)
        await member.process.wait()
        del self.members[member.name]

    def client(self, *, but: Member | None = None) -> Client:
        """A client of any member that runs, or of any other than one."""
        return Client(next(m.address for m in self.members.values() if m is not but))

    async def leader(self, *, newer_than: int = 0) -> tuple[Member, int]:
        """Wait until one of the members leads with a newer token; return it and the newest token.

        Of shards: the one that leads most of them.
        """
        while True:
            held: defaultdict[str, list[int]] = defaultdict(list)
            for lease in await self._leading():
                held[lease.holder.partition(":")[0]].append(lease.token)
            newest = max(itertools.chain.from_iterable(held.values()), default=0)
            if newest > newer_than and held.keys() & self.members.keys():
                name = max(sorted(held.keys() & self.members.keys()), key=lambda name: len(held[name]))
                return self.members[name], newest
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _leading(self) -> list[Lease]:
        """The leases of the leader, or of those of every shard; none while the database is away."""
        try:
            live = await self._leases.live()
        except UnavailableError:
            return []
        if self._shards == 1:
            return [lease for lease in live if lease.name == LEADER_LEASE]
        return [lease for lease in live if lease.name.startswith(f"{SHARD_LEASES}{self._shards}/")]
