"""Run a workload's replicas as real Triton processes on this machine.

Promises: a replica is VERIFIED only by `triton.verify_warm`; every stage it reached and how long it
took is reported; orders carry a fencing token and an older one is refused; a replica leaves by
draining (no new work is offered, what it has is finished, within a bound) and then ends; all of
them end when this process does, however it ends. Adopts nothing: what it did not start it neither
counts nor touches, and the folder's lock keeps a second owner out. Called by the loop through the
`Actuator` port.

A workload's `target` says what to serve, all of it optional:

    engine                                  path of an ONNX file; without it, the built-in recommender
    catalog_model                           or: model of the catalogue, whose ACTIVE engine for this machine is served
    shapes                                  with it: input shapes that must be served, tokens=8x32, batch first
    batch_size_max, queue_delay_us, simulated_device_time_ms, simulated_device_time_ms_per_request
                                            as in `engines.triton_repository.ServingOptions`
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Self

from controller.actuators.local_engines import EngineRefusedError, LocalEngines, check_served, trusted_keys
from controller.actuators.triton import WarmStage, WarmTarget, is_serving, verify_warm
from controller.adapters.clock import SystemClock
from controller.adapters.demand import Departure, ReplicaMetrics
from controller.adapters.embedded.folder import DataFolder, FolderLock
from controller.adapters.embedded.process import EmbeddedError
from controller.adapters.embedded.triton_server import (
    TritonEnvironment,
    TritonServer,
    remove_shared_memory,
    shm_prefix,
)
from controller.adapters.triton_metrics import TritonScraper
from controller.core.types import Replica, Stage, Workload
from controller.ports import Clock, NotFoundError, PoolView, PortError, StaleFenceError, UnavailableError
from controller.settings import Settings
from engines.errors import EngineError
from engines.triton_repository import ServedModel

log = logging.getLogger(__name__)

# So many replicas load at once: more would only take each other's cores, and their probes' latency.
_LOADING_MAX = 2
_DRAIN_POLL_S = 0.5
_SETTLE_POLL_S, _SETTLE_READINGS_MAX = 0.2, 20
_LAST_SCRAPE_S = (
    5.0  # a replica's first and last counters are read once, so they may take longer than a scrape
)
_LOGS_MAX = 100  # of ended replicas
_DEPARTURES_MAX = 1000  # that nobody has asked for
_HEALTH_TIMEOUT_S = 2.0
# In a row: one late answer on a busy machine is no reason to give a warm replica up.
_HEALTH_FAILURES_MAX = 3


class OrderError(PortError):
    """An order this machine cannot carry out; the message names the field and the remedy."""


@dataclass(slots=True)
class _Running:
    """One replica from its order to its end."""

    id: str
    number: int  # grows with every order
    workload: Workload
    served: ServedModel
    ordered_at: datetime
    stage: Stage
    stage_at: datetime
    failure: str | None = None
    stage_s: dict[str, float] = field(default_factory=dict[str, float])
    server: TritonServer | None = None
    baseline: ReplicaMetrics | None = None
    life: asyncio.Task[None] | None = None

    @property
    def is_leaving(self) -> bool:
        return self.stage is Stage.DRAINING

    def view(self) -> Replica:
        endpoints = self.server.endpoints if self.server else None
        return Replica(
            id=self.id,
            stage=self.stage,
            ordered_at=self.ordered_at,
            stage_at=self.stage_at,
            profile=self.workload.profile if self.workload.profiles else None,
            failure=self.failure,
            endpoint=endpoints.grpc if endpoints else None,
            metrics_url=endpoints.metrics_url if endpoints else None,
            stage_s=dict(self.stage_s),
        )


class LocalProcessActuator:
    """Implements `controller.ports.Actuator` with tritonserver processes.

    `clock` is the clock of orders, stages and latencies; what bounds real processes (time to start,
    to load, to drain) is always the machine's own.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        *,
        replica_limit: int = 16,
        provisioning_delay_s: float = 0.0,
        drain_s: int = 10,
        health_period_s: float = 2.0,
        model_folders: Sequence[Path] | None = None,
        catalog: str = "",
        trusted_keys: Sequence[Path] = (),
        environment: Callable[[], TritonEnvironment] = TritonEnvironment.find,
    ) -> None:
        self._folder, self._clock, self._wall = folder, clock, SystemClock()
        self._replica_limit, self._provisioning_delay_s = replica_limit, provisioning_delay_s
        self._drain_s, self._health_period_s = drain_s, health_period_s
        self._engines = LocalEngines(folder.resolve(), model_folders, catalog, trusted_keys)
        self._refusals: dict[str, str] = {}  # why the newest order of a workload was not accepted
        self._find_environment = environment
        self._environment: TritonEnvironment | None = None
        self._lock: FolderLock | None = None
        self._opening = asyncio.Lock()
        self._loading = asyncio.Semaphore(_LOADING_MAX)
        self._scraper = TritonScraper(self._clock, timeout_s=_LAST_SCRAPE_S)
        self._fence = 0
        self._numbers = itertools.count(1)
        self._pools: dict[str, list[_Running]] = {}
        self._desired: dict[str, int] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._departures: deque[Departure] = deque(maxlen=_DEPARTURES_MAX)
        self._taken_ports: set[int] = set()
        self._change = asyncio.Event()

    @classmethod
    def from_settings(cls, settings: Settings, clock: Clock) -> Self:
        """As `bootstrap` makes it; starts nothing and needs no Triton before the first order."""
        return cls(
            settings.data_dir / "triton",
            clock,
            replica_limit=settings.replica_limit,
            provisioning_delay_s=settings.provisioning_delay_s,
            model_folders=settings.model_folders,
            catalog=settings.engine_catalog,
            trusted_keys=trusted_keys(settings.engine_trusted_keys),
        )

    async def observe(self, workloads: Sequence[Workload]) -> Mapping[str, PoolView]:
        """What runs here; a workload that was never scaled has no replicas."""
        return {w.name: self.view(w.name) for w in workloads}

    def view(self, workload: str) -> PoolView:
        """The replicas of one workload right now; for balancers in this process."""
        return PoolView(
            desired_replicas=self._desired.get(workload, 0),
            replicas=tuple(running.view() for running in self._pools.get(workload, ())),
            shortfall=self._refusals.get(workload),
        )

    def baselines(self) -> Mapping[str, ReplicaMetrics]:
        """Counters of each replica just before its first request, by replica id: warm-up is no demand."""
        return {r.id: r.baseline for pool in self._pools.values() for r in pool if r.baseline is not None}

    def departures(self) -> Sequence[Departure]:
        """Last counters of the replicas that were drained since the last call: what no scrape would see any more."""
        departed = tuple(self._departures)
        self._departures.clear()
        return departed

    async def claim(
        self, workloads: Sequence[Workload], *, fence: int, others: Sequence[Workload] | None = None
    ) -> None:
        """Refuse older orders, and drain what runs for a workload that was deleted: nobody else would end it.

        Raises:
            StaleFenceError: a newer token was seen.
        """
        self._check(fence)
        for gone in self._desired.keys() - {w.name for w in (*workloads, *(others or ()))}:
            log.info("workload %s is gone; its replicas leave", gone)
            del self._desired[gone]
            self._refusals.pop(gone, None)
            for running in self._pools.get(gone, ()):
                if not running.is_leaving:
                    self._begin_end(running)
        for empty in [n for n, pool in self._pools.items() if not pool and n not in self._desired]:
            del self._pools[empty]

    async def scale(self, workload: Workload, replicas: int, *, fence: int) -> None:
        """Order or end replicas until `replicas` are neither leaving nor gone.

        Raises:
            StaleFenceError: a newer token was seen.
            OrderError: the count or the workload's target is not possible here; nothing was changed.
            UnavailableError: Triton's environment is missing, or another process owns the folder.
        """
        self._check(fence)
        self._check_limit(workload, replicas)
        # Only for new ones: nothing about the engine may keep replicas from leaving.
        served = await self._prepare(workload) if replicas > len(self._staying(workload.name)) else None
        # Again: a newer leader, or an order for another workload, may have come while this one waited.
        self._check(fence)
        self._check_limit(workload, replicas)
        self._desired[workload.name] = replicas
        pool = self._pools.setdefault(workload.name, [])
        staying = self._staying(workload.name)
        if served is not None:
            pool += [self._order(workload, served) for _ in range(replicas - len(staying))]
        else:
            self._refusals.pop(workload.name, None)  # what was refused is no longer wanted
        # The least useful leave first: failed ones, then the least advanced, then the youngest.
        order = [Stage.FAILED, Stage.ORDERED, Stage.SCHEDULED, Stage.LOADED, Stage.WARMED, Stage.VERIFIED]
        leaving = sorted(staying, key=lambda running: (order.index(running.stage), -running.number))
        for running in leaving[: max(0, len(staying) - replicas)]:
            self._begin_end(running)

    async def replace(self, workload: Workload, replica_id: str, *, fence: int) -> None:
        """End one replica and order another in its place.

        Raises:
            StaleFenceError, OrderError, UnavailableError: as `scale`.
            NotFoundError: there is no such replica.
        """
        self._check(fence)
        served = await self._prepare(workload)
        self._check(fence)
        pool = self._pools.get(workload.name, [])
        running = next((r for r in pool if r.id == replica_id and not r.is_leaving), None)
        if running is None:
            raise NotFoundError(f"replica_id: {workload.name} has no replica {replica_id}")
        self._begin_end(running)
        pool.append(self._order(workload, served))

    async def close(self) -> None:
        """End every replica; they could not outlive this process anyway."""
        for pool in self._pools.values():
            for running in pool:
                if running.life is not None:
                    running.life.cancel()
        lives = [r.life for pool in self._pools.values() for r in pool if r.life is not None]
        await asyncio.gather(*lives, *self._ending, return_exceptions=True)
        servers = [r.server for pool in self._pools.values() for r in pool if r.server is not None]
        await asyncio.gather(*(server.stop() for server in servers))
        self._pools.clear()
        self._desired.clear()
        await self._scraper.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _check(self, fence: int) -> None:
        if fence < self._fence:
            raise StaleFenceError(
                f"fence {fence} is older than {self._fence}: another process leads; stop acting"
            )
        self._fence = fence

    def _check_limit(self, workload: Workload, replicas: int) -> None:
        others = sum(count for name, count in self._desired.items() if name != workload.name)
        if not 0 <= replicas <= self._replica_limit - others:
            raise OrderError(
                f"replicas: {replicas} of {workload.name} beside {others} others is outside 0 to "
                f"{self._replica_limit}; lower it or raise FORECREST_REPLICA_LIMIT"
            )

    async def _prepare(self, workload: Workload) -> ServedModel:
        """What the workload serves, built if it is new; opens the folder on first use."""
        try:
            async with self._opening:
                if self._lock is None:
                    folder = DataFolder.prepare(self._folder)
                    # Replicas run as ourselves, so nobody else has to pass through to the models.
                    folder.path.chmod(0o700)
                    self._environment = await asyncio.to_thread(self._find_environment)
                    self._lock = await FolderLock.acquire(folder.path)
                    # We hold the folder, so whatever servers of it left in shared memory is litter.
                    remove_shared_memory(shm_prefix(folder.path))
            assert self._environment is not None
            version = self._environment.onnxruntime
            served = await asyncio.to_thread(self._engines.prepare, workload, version)
        except EmbeddedError as error:
            raise UnavailableError(str(error)) from error
        except EngineRefusedError as error:
            self._refusals[workload.name] = str(error)
            raise OrderError(f"workload {workload.name}: {error}") from error
        except (ValueError, OSError, EngineError) as error:
            raise OrderError(f"workload {workload.name}: {error}") from error
        self._refusals.pop(workload.name, None)
        return served

    def _staying(self, workload: str) -> list[_Running]:
        return [running for running in self._pools.get(workload, ()) if not running.is_leaving]

    def _order(self, workload: Workload, served: ServedModel) -> _Running:
        now, number = self._clock.now(), next(self._numbers)
        running = _Running(
            id=f"{workload.name}-{now:%Y%m%d%H%M%S}-{number}",
            number=number,
            workload=workload,
            served=served,
            ordered_at=now,
            stage=Stage.ORDERED,
            stage_at=now,
        )
        running.life = asyncio.create_task(self._live(running), name=f"replica {running.id}")
        return running

    async def changed(self) -> None:
        """Wait until any replica reaches another stage or is gone."""
        await self._change.wait()

    def _signal_change(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    def _reach(self, running: _Running, stage: Stage, failure: str | None = None) -> None:
        if running.is_leaving:
            return  # whatever happens to it on its way out, it is on its way out
        running.stage, running.stage_at, running.failure = stage, self._clock.now(), failure
        log.info("replica %s: %s%s", running.id, stage, f" ({failure})" if failure else "")
        self._signal_change()

    async def _live(self, running: _Running) -> None:
        """Bring a replica up and watch it; ends when its process ends or it is told to leave."""
        try:
            if self._provisioning_delay_s:
                began_s = self._clock.monotonic()
                await self._clock.sleep(self._provisioning_delay_s)
                running.stage_s["node"] = self._clock.monotonic() - began_s
            began_s = self._clock.monotonic()
            async with self._loading:
                await self._start(running, began_s)
            if running.server is not None and running.stage is Stage.VERIFIED:
                self._reach(running, Stage.FAILED, await self._failure(running, running.server))
        except EmbeddedError as error:
            self._reach(running, Stage.FAILED, str(error))
        except Exception as error:  # a defect of ours must show as a failed replica, not as a silent one
            log.exception("replica %s", running.id)
            self._reach(running, Stage.FAILED, f"unexpected: {error}")
        if running.server is not None:
            await running.server.stop()

    async def _start(self, running: _Running, began_s: float) -> None:
        assert self._environment is not None
        assert self._lock is not None
        if (objection := await asyncio.to_thread(check_served, running.served)) is not None:
            log.error("replica %s: %s", running.id, objection)
            self._reach(running, Stage.FAILED, str(objection))
            return
        _prune_logs(self._folder / "logs")
        running.server = await TritonServer.start(
            self._environment,
            folder=self._folder.resolve(),
            name=running.id,
            repository=running.served.repository,
            drain_s=self._drain_s,
            kept_fds=(self._lock.fd,),
            taken_ports=self._taken_ports,
        )
        running.stage_s["schedule"] = self._clock.monotonic() - began_s
        self._reach(running, Stage.SCHEDULED)

        def on_stage(stage: WarmStage) -> None:
            if stage is WarmStage.MODEL_LOADED:
                self._reach(running, Stage.LOADED)

        result = await verify_warm(
            running.server.endpoints.grpc, _target(running), clock=self._clock, on_stage=on_stage
        )
        took = result.stage_s
        running.stage_s["load"] = took.get(WarmStage.SERVER_LIVE, 0.0) + took.get(WarmStage.MODEL_LOADED, 0.0)
        running.stage_s["warmup"] = took.get(WarmStage.ENGINE_VERIFIED, 0.0) + took.get(WarmStage.WARM, 0.0)
        if not result.is_warm:
            self._reach(running, Stage.FAILED, result.reason)
        else:
            self._reach(running, Stage.WARMED)
            running.baseline = await self._baseline(running.server.endpoints.metrics_url)
            self._reach(running, Stage.VERIFIED)

    async def _baseline(self, metrics_url: str) -> ReplicaMetrics | None:
        """The counters at rest, two equal readings in a row: Triton counts a request shortly after answering it."""
        before: ReplicaMetrics | None = None
        for _ in range(_SETTLE_READINGS_MAX):
            reading = await self._scraper.scrape(metrics_url)
            if not isinstance(reading, ReplicaMetrics):
                return None
            if before is not None and before.success_count == reading.success_count:
                return reading
            before = reading
            await self._wall.sleep(_SETTLE_POLL_S)
        return before

    async def _failure(self, running: _Running, server: TritonServer) -> str:
        """Watch a warm replica until it is no longer fit to serve, and say why."""
        model, version = running.workload.model_name, running.workload.model_version
        silent_count = 0
        while silent_count < _HEALTH_FAILURES_MAX:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._health_period_s):
                    ended = await server.process.wait()
                return f"its process ended with code {ended.code}"
            serving = await is_serving(server.endpoints.grpc, model, version, timeout_s=_HEALTH_TIMEOUT_S)
            silent_count = 0 if serving else silent_count + 1
        return f"it failed {_HEALTH_FAILURES_MAX} health checks in a row"

    def _begin_end(self, running: _Running) -> None:
        was_serving = running.stage is Stage.VERIFIED
        self._reach(running, Stage.DRAINING)
        task = asyncio.create_task(self._end(running, was_serving=was_serving), name=f"end of {running.id}")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, running: _Running, *, was_serving: bool) -> None:
        """Drain a replica that served, then end it; one that never served ends at once."""
        assert running.life is not None
        if was_serving and running.server is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._drain_s):
                    await self._drained(running.server)
            last = await self._scraper.scrape(running.server.endpoints.metrics_url)
            if isinstance(last, ReplicaMetrics):
                self._departures.append(Departure(running.workload.name, running.id, last, running.baseline))
        running.life.cancel()
        await asyncio.gather(running.life, return_exceptions=True)
        if running.server is not None:
            await (running.server.stop() if was_serving else running.server.kill())
        pool = self._pools.get(running.workload.name, [])
        if running in pool:
            pool.remove(running)
            self._signal_change()

    async def _drained(self, server: TritonServer) -> None:
        """Wait until nothing waits, nothing runs and nothing more comes: two equal readings in a row."""
        before: ReplicaMetrics | None = None
        while server.process.is_running:
            reading = await self._scraper.scrape(server.endpoints.metrics_url)
            if isinstance(reading, ReplicaMetrics):
                if (
                    before is not None
                    and reading.pending_count == 0
                    and before.arrived_count == reading.arrived_count
                ):
                    return
                before = reading
            # Longer than a batch takes, so that one in execution shows as growth between readings.
            await self._wall.sleep(_DRAIN_POLL_S)


def _prune_logs(folder: Path) -> None:
    """Keep the newest logs only: every replica has one of its own."""
    written: list[tuple[float, Path]] = []
    for path in folder.glob("*.log*"):
        with suppress(FileNotFoundError):  # a guard turned it over meanwhile
            written.append((path.stat().st_mtime, path))
    for _, path in sorted(written)[:-_LOGS_MAX]:
        path.unlink(missing_ok=True)


def _target(running: _Running) -> WarmTarget:
    workload = running.workload
    return WarmTarget(
        model_name=workload.model_name,
        model_version=workload.model_version,
        # The catalogue's digest if it knows one; the built repository's own otherwise.
        engine_digest=workload.engine_digest or running.served.digest,
        latency_ms_max=workload.slo.latency_ms_p99,
    )
