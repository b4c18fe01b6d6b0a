"""Faults of a soak: what is done to servers, disk, controllers and their surroundings, and undone again.

Promises: each fault is one coroutine that returns once all it did is undone, also when it is cancelled; what a
machine does not permit (a disk of its own needs root and loop devices) is named in `Harm.left_out`. Called by the soak.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import grpc
import psycopg
from aiohttp import web
from forecrest.v1 import control_service_pb2
from forecrest.v1.control_service_pb2_grpc import ControlServiceStub
from redis.asyncio import Redis

from benchmarks.drill import Cluster, Member, Servers
from benchmarks.fleet import Fleet
from benchmarks.soak_member import CLOCK_FILE
from controller.adapters.clock import SystemClock
from controller.adapters.embedded import postgres, valkey
from controller.core.types import Stage

DISK_MIB = 900
_FREEZE, _THAW = 0xC0045877, 0xC0045878  # FIFREEZE and FITHAW of linux/fs.h
_FROZEN_S, _THAWED_S = 0.35, 0.05
_CHANNELS = 300
CLOCK_STEP_S = 45.0
_WAL_MESSAGE_BYTES = 4 * 1024 * 1024
CLOCK = SystemClock()


class SoakFleet(Fleet):
    """A fleet with a demand for each workload, whose replicas fall silent and which goes away when told to."""

    def __init__(self, *, load_s: float) -> None:
        super().__init__(load_s=load_s)
        self.demands: dict[str, float] = {}
        self.silent: set[str] = set()
        self.away = False
        self.ordered_s: list[float] = []  # of each order, seconds since 1970

    def _count(self) -> None:
        now_s = self._clock.monotonic()
        for name, pool in self.pools.items():
            warm = [unit for unit in pool if unit.stage is Stage.VERIFIED]
            for unit in warm:
                unit.served_count += self.demands.get(name, 0.0) * (now_s - self._counted_s) / len(warm)
        self._counted_s = now_s

    def changed(self) -> None:
        """Date the orders that have come in since."""
        self.ordered_s += [CLOCK.now().timestamp()] * (len(self.orders) - len(self.ordered_s))
        super().changed()

    async def _claim(self, request: web.Request) -> web.Response:
        return self._none() if self.away else await super()._claim(request)

    async def _scale(self, request: web.Request) -> web.Response:
        return self._none() if self.away else await super()._scale(request)

    async def _pools(self, _: web.Request) -> web.Response:  # the name is the base class's
        return self._none() if self.away else await super()._pools(_)

    async def _metrics(self, request: web.Request) -> web.Response:
        workload = request.match_info["unit"].rpartition("-")[0]
        return self._none() if self.away or workload in self.silent else await super()._metrics(request)

    def _none(self) -> web.Response:
        return web.Response(status=503)


async def _tool(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    if process.returncode:
        raise OSError(f"{' '.join(command)}: {said.decode().strip()}")


@asynccontextmanager
async def small_disk(folder: Path, *, wanted: bool) -> AsyncGenerator[Path | None]:
    """A file system of its own at a folder, in a file beside it; None where it is not wanted or not permitted."""
    if not wanted:
        yield None
        return
    image = folder.with_suffix(".img")
    mounted = False
    try:
        _prepare(image, folder)
        await _tool("mkfs.ext4", "-q", "-m", "0", str(image))
        await _tool("mount", "-o", "loop", str(image), str(folder))
        mounted = True
        await _tool("chmod", "711", str(folder))
    except OSError:
        pass
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            await _tool("umount", "-l", str(folder))
        image.unlink(missing_ok=True)


def _prepare(image: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(DISK_MIB * 1024 * 1024)


def _plain(url: str) -> str:
    return url.replace("+psycopg", "")


@dataclass(slots=True)
class Harm:
    """What can be harmed, and how."""

    servers: Servers
    fleet: SoakFleet
    cluster: Cluster
    disk: Path | None
    random: Random
    left_out: dict[str, str] = field(default_factory=dict[str, str])
    notes: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    silences: list[tuple[str, float, float]] = field(default_factory=list[tuple[str, float, float]])
    clock_steps: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def faults(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """Every fault that this machine permits, by name."""
        found: dict[str, Callable[[], Awaitable[None]]] = {
            "postgres restart": self.postgres_restart,
            "postgres away 20 s": self.postgres_away,
            "connections terminated": self.connections_terminated,
            "postgres connection storm": self.postgres_storm,
            "grpc connection storm": self.grpc_storm,
            "valkey flush": self.valkey_flush,
            "valkey kill": self.valkey_kill,
            "leader kill -9": self.leader_kill,
            "leader stopped": self.leader_stop,
            "disk full": self.disk_full,
            "disk slow": self.disk_slow,
            "clock ahead": lambda: self.clock_step(CLOCK_STEP_S),
            "clock behind": lambda: self.clock_step(-CLOCK_STEP_S),
            "metrics silent": self.metrics_silent,
            "fleet away": self.fleet_away,
        }
        if self.disk is None:
            for name in ("disk full", "disk slow"):
                del found[name]
                self.left_out[name] = "no file system can be mounted here: it needs root and loop devices"
        return found

    def note(self, fault: str, sentence: str) -> None:
        """Keep what a fault did, for the report."""
        self.notes.setdefault(fault, []).append(sentence)

    # ---------------------------------------------------------------- PostgreSQL

    async def postgres_restart(self) -> None:
        """End it as a crash would, and start it again."""
        await self._postgres_away(signal.SIGQUIT, 0.0)

    async def postgres_away(self) -> None:
        """Stop it in order for 20 s."""
        await self._postgres_away(signal.SIGINT, 20.0)

    async def _postgres_away(self, how: signal.Signals, away_s: float) -> None:
        await self.servers.stop(postgres.NAME, how)
        try:
            await CLOCK.sleep(away_s)
        finally:
            await self.servers.start(postgres.NAME)

    async def connections_terminated(self) -> None:
        """End every connection but this one, three times."""
        for _ in range(3):
            async with await psycopg.AsyncConnection.connect(
                _plain(self.servers.database_url), autocommit=True
            ) as connection:
                rows = await connection.execute(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                    "WHERE pid <> pg_backend_pid() AND usename = current_user"
                )
                ended = await rows.fetchone()
            self.note("connections terminated", f"{ended[0] if ended else 0} ended")
            await CLOCK.sleep(3.0)

    async def postgres_storm(self) -> None:
        """Take every connection that is left, for 20 s."""
        async with AsyncExitStack() as stack:
            taken = 0
            ends_s = CLOCK.monotonic() + 20.0
            while CLOCK.monotonic() < ends_s:
                try:
                    connection = await psycopg.AsyncConnection.connect(_plain(self.servers.database_url))
                except psycopg.OperationalError:
                    await CLOCK.sleep(0.2)  # all are taken; what others give back is taken too
                else:
                    stack.push_async_callback(connection.close)
                    taken += 1
            self.note("postgres connection storm", f"{taken} connections taken")

    # ---------------------------------------------------------------- API

    async def grpc_storm(self) -> None:
        """Open connections to the leader with a watch stream on each, hold them for 15 s, drop them at once."""
        leader, _ = await self.cluster.leader()
        options = [("grpc.use_local_subchannel_pool", 1)]
        opened = refused = 0
        async with AsyncExitStack() as stack:

            async def watch() -> None:
                nonlocal opened, refused
                channel = grpc.aio.insecure_channel(leader.address, options=options)
                stack.push_async_callback(channel.close)
                call = ControlServiceStub(channel).WatchDecisions(control_service_pb2.WatchDecisionsRequest())
                try:
                    await call.read()
                    opened += 1
                except grpc.aio.AioRpcError:
                    refused += 1

            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(20.0):
                    await asyncio.gather(*(watch() for _ in range(_CHANNELS)))
            await CLOCK.sleep(15.0)
        self.note("grpc connection storm", f"{opened} streams served, {refused} refused of {_CHANNELS}")

    # ---------------------------------------------------------------- Valkey

    async def valkey_flush(self) -> None:
        """Lose all it holds."""
        async with Redis.from_url(self.servers.redis_url) as redis:
            await redis.flushall()

    async def valkey_kill(self) -> None:
        """Kill it, for 10 s."""
        await self.servers.stop(valkey.NAME, signal.SIGKILL)
        try:
            await CLOCK.sleep(10.0)
        finally:
            await self.servers.start(valkey.NAME)

    # ---------------------------------------------------------------- controllers

    async def leader_kill(self) -> None:
        """Kill the leader; another process takes its place."""
        leader, _ = await self.cluster.leader()
        await self.cluster.kill(leader)
        await self.cluster.start()

    async def leader_stop(self) -> None:
        """Stop the leader for longer than its lease, then let it go on."""
        leader, token = await self.cluster.leader()
        leader.send(signal.SIGSTOP)
        try:
            await self.cluster.leader(newer_than=token)
            await CLOCK.sleep(5.0)
        finally:
            leader.send(signal.SIGCONT)

    async def clock_step(self, by_s: float) -> None:
        """Set the leader's wall clock wrong for 40 s, and right again."""
        leader, _ = await self.cluster.leader()
        began_s = CLOCK.now().timestamp()
        self.clock_steps.append((began_s, float("inf")))
        try:
            self._set_clock(leader, by_s)
            await CLOCK.sleep(40.0)
        finally:
            self._set_clock(leader, 0.0)
            self.clock_steps[-1] = (began_s, CLOCK.now().timestamp())

    def _set_clock(self, member: Member, by_s: float) -> None:
        (member.folder / CLOCK_FILE).write_text(str(by_s))

    def wrong_s(self, at_s: float) -> float:
        """By how much a time may be wrong that a controller wrote, or acted on, about then."""
        near = CLOCK_STEP_S + 10.0
        return CLOCK_STEP_S if any(a - near <= at_s <= b + near for a, b in self.clock_steps) else 0.0

    # ---------------------------------------------------------------- disk

    async def disk_full(self) -> None:
        """Leave PostgreSQL and Valkey no byte for 20 s, while something else fills the log of changes."""
        assert self.disk is not None
        filler = self.disk / "filler"
        try:
            await asyncio.to_thread(_fill, filler, self.disk)
            said = await self._write_until_refused()
            await CLOCK.sleep(20.0)
        finally:
            filler.unlink(missing_ok=True)
            ended = not self.servers.runs(postgres.NAME)
            if ended:
                await self.servers.start(postgres.NAME)
            if not self.servers.runs(valkey.NAME):
                await self.servers.start(valkey.NAME)
        self.note("disk full", f"{said}; PostgreSQL {'ended and was started again' if ended else 'went on'}")

    async def _write_until_refused(self) -> str:
        written = 0
        try:
            async with await psycopg.AsyncConnection.connect(
                _plain(self.servers.database_url), autocommit=True
            ) as connection:
                for _ in range(200):
                    await connection.execute(
                        "SELECT pg_logical_emit_message(false, 'soak', repeat('x', %s))",
                        (_WAL_MESSAGE_BYTES,),
                    )
                    written += _WAL_MESSAGE_BYTES
        except psycopg.Error as error:
            return f"refused after {written >> 20} MiB: {str(error).splitlines()[0]}"
        return f"never refused in {written >> 20} MiB"

    async def disk_slow(self) -> None:
        """Let the file system stand still for 0.35 s of every 0.4 s, for 40 s: each commit waits."""
        assert self.disk is not None
        stopping = threading.Event()
        # A thread of its own from end to end: a freeze that nobody waits for any more would stay.
        stalling = asyncio.create_task(asyncio.to_thread(_stall, self.disk, stopping))
        try:
            await CLOCK.sleep(40.0)
        finally:
            stopping.set()
            await stalling

    # ---------------------------------------------------------------- fleet

    async def metrics_silent(self) -> None:
        """No replica of half the workloads tells its counters, for 50 s."""
        chosen = self.random.sample(sorted(self.fleet.demands), len(self.fleet.demands) // 2)
        began_s = CLOCK.now().timestamp()
        self.fleet.silent.update(chosen)
        try:
            await CLOCK.sleep(50.0)
        finally:
            self.fleet.silent.clear()
            self.silences += [(name, began_s, CLOCK.now().timestamp()) for name in chosen]

    async def fleet_away(self) -> None:
        """The fleet answers nothing for 20 s."""
        self.fleet.away = True
        try:
            await CLOCK.sleep(20.0)
        finally:
            self.fleet.away = False


def _stall(disk: Path, stopping: threading.Event) -> None:
    """Freeze a file system again and again until told to stop; leave it as it was."""
    number = os.open(disk, os.O_RDONLY)
    try:
        while not stopping.wait(_THAWED_S):
            fcntl.ioctl(number, _FREEZE, 0)
            stopping.wait(_FROZEN_S)
            fcntl.ioctl(number, _THAW, 0)
    finally:
        os.close(number)


def _fill(filler: Path, disk: Path) -> None:
    """Take what is free, the last page too."""
    number = os.open(filler, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        offset = 0
        for piece in (64 << 20, 4 << 20, 256 << 10, 4 << 10):
            while shutil.disk_usage(disk).free >= piece:
                try:
                    os.posix_fallocate(number, offset, piece)
                except OSError:
                    break
                offset += piece
    finally:
        os.close(number)
