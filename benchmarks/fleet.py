"""A fleet outside every controller, for drills: it records each order with its fencing token.

Promises: an order with a smaller token than one seen before for its workload is refused, as a fleet that compares
tokens does; what was applied, refused and started stays on record; a test can hold an order on its way, and replicas before they
load. Replicas serve metrics as Triton does, and no inference. Called by drills: the server runs in theirs, and
`python -m benchmarks.fleet` is `forecrest serve` with the client as its actuator.
"""

import asyncio
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from typing import Any, Self

import aiohttp
from aiohttp import web

from controller.adapters.clock import SystemClock
from controller.cli.common import run
from controller.cli.servers import configure_logging, read_settings, run_controller
from controller.core.types import Replica, Stage, Workload
from controller.ports import NotFoundError, PoolView, StaleFenceError, UnavailableError

FLEET_VARIABLE = "FORECREST_DRILL_FLEET"
_CALL_TIMEOUT_S = 3.0
_METRICS = """\
# TYPE nv_inference_request_success counter
nv_inference_request_success{{model="m",version="1"}} {count}
# TYPE nv_inference_request_failure counter
nv_inference_request_failure{{model="m",version="1"}} 0
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{{model="m",version="1"}} 0
# TYPE nv_inference_queue_duration_us counter
nv_inference_queue_duration_us{{model="m",version="1"}} 0
# TYPE nv_inference_exec_count counter
nv_inference_exec_count{{model="m",version="1"}} {count}
"""


@dataclass(frozen=True, slots=True)
class Order:
    """One order as it took effect, or did not."""

    kind: str  # claim, scale or replace
    workload: str
    replicas: int | None
    fence: int
    applied: bool


@dataclass(slots=True)
class Unit:
    """One replica of the fleet."""

    id: str
    ordered_at: datetime
    stage: Stage = Stage.ORDERED
    stage_s: dict[str, float] = field(default_factory=dict[str, float])
    stage_at: datetime | None = None
    served_count: float = 0.0
    life: asyncio.Task[None] | None = None


@dataclass(slots=True)
class Held:
    """An order that stays on its way, or whose answer does, until it is released."""

    after: bool
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)


class Fleet:
    """The server; `async with Fleet() as fleet`. `load_s` is how long a replica loads once `may_load` is set."""

    def __init__(self, *, load_s: float = 0.5) -> None:
        self.orders: list[Order] = []
        self.started_count = 0
        self.ended_count = 0
        self.fence = 0  # the greatest of all
        self.fences: dict[str, int] = {}
        self._claimed_all = 0
        self.qps = 0.0  # demand of each workload, shared by its warm replicas
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.pools: dict[str, list[Unit]] = {}
        self.url = ""
        self._load_s, self._clock = load_s, SystemClock()
        self._counted_s = self._clock.monotonic()
        self._held: Held | None = None
        self._numbers = itertools.count(1)
        self._change = asyncio.Event()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        """Serve on a free port of this machine."""
        app = web.Application()
        app.router.add_post("/claim", self._claim)
        app.router.add_post("/scale", self._scale)
        app.router.add_post("/replace", self._replace)
        app.router.add_get("/pools", self._pools)
        app.router.add_get("/metrics/{unit}", self._metrics)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        """End it, with whatever is held."""
        for pool in self.pools.values():
            for unit in pool:
                self._stop(unit)
        if self._held is not None:
            self._held.released.set()
        assert self._runner is not None
        await self._runner.cleanup()

    def hold_next(self, *, after: bool) -> Held:
        """Hold the next scale order before it takes effect, or its answer after it did."""
        self._held = Held(after)
        return self._held

    def desired(self, workload: str) -> int:
        """How many replicas there are, whatever they have reached."""
        return len(self.pools.get(workload, ()))

    def warm(self, workload: str) -> int:
        """How many of them are verified warm."""
        return sum(unit.stage is Stage.VERIFIED for unit in self.pools.get(workload, ()))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until an order or a stage makes the condition true."""
        while not condition():
            await self._change.wait()

    def changed(self) -> None:
        """Let those who wait look again."""
        self._change.set()
        self._change = asyncio.Event()

    async def _claim(self, request: web.Request) -> web.Response:
        body = await request.json()
        fence, names = int(body["fence"]), [str(name) for name in body["workloads"]]
        applied = all(fence >= self.newest(name) for name in names)
        applied &= not body["all"] or fence >= self._claimed_all
        self.orders += [Order("claim", name, None, fence, applied) for name in names or [""]]
        if applied:
            self.fence = max(self.fence, fence)
            self.fences.update(dict.fromkeys(names, fence))
            self._claimed_all = fence if body["all"] else self._claimed_all
        return self._answer(applied, fence)

    def newest(self, workload: str) -> int:
        """The greatest token that changed this workload, or claimed it."""
        return max(self._claimed_all, self.fences.get(workload, 0))

    async def _scale(self, request: web.Request) -> web.Response:
        body = await request.json()
        workload, replicas = str(body["workload"]), int(body["replicas"])
        held, self._held = self._held, None
        if held is not None and not held.after:
            held.arrived.set()
            await held.released.wait()
        answer = self._record(
            "scale", workload, replicas, body["fence"], lambda: self._resize(workload, replicas)
        )
        if held is not None and held.after:
            held.arrived.set()
            await held.released.wait()
        return answer

    async def _replace(self, request: web.Request) -> web.Response:
        body = await request.json()
        workload, gone = str(body["workload"]), str(body["replica_id"])

        def apply() -> None:
            pool = self.pools.get(workload, [])
            for unit in [unit for unit in pool if unit.id == gone]:
                pool.remove(unit)
                self._stop(unit)
                pool.append(self._start(workload))

        return self._record("replace", workload, None, body["fence"], apply)

    def _record(
        self, kind: str, workload: str, replicas: int | None, fence: int, apply: Callable[[], None]
    ) -> web.Response:
        applied = fence >= self.newest(workload)
        self.orders.append(Order(kind, workload, replicas, fence, applied))
        if applied:
            self.fence = max(self.fence, fence)
            self.fences[workload] = fence
            apply()
        return self._answer(applied, fence)

    def _answer(self, applied: bool, fence: int) -> web.Response:
        self.changed()
        if applied:
            return web.json_response({})
        return web.Response(status=HTTPStatus.CONFLICT, text=f"fence {fence} is older than one that was seen")

    def _resize(self, workload: str, replicas: int) -> None:
        self._count()
        pool = self.pools.setdefault(workload, [])
        while len(pool) < replicas:
            pool.append(self._start(workload))
        for unit in pool[replicas:]:
            self._stop(unit)
            self.ended_count += 1
        del pool[replicas:]

    def _start(self, workload: str) -> Unit:
        unit = Unit(f"{workload}-{next(self._numbers)}", self._clock.now())
        unit.life = asyncio.create_task(self._live(unit))
        self.started_count += 1
        return unit

    def _stop(self, unit: Unit) -> None:
        if unit.life is not None:
            unit.life.cancel()

    async def _live(self, unit: Unit) -> None:
        self._reach(unit, Stage.SCHEDULED)
        await self.may_load.wait()
        await self._clock.sleep(self._load_s)
        unit.stage_s = {"schedule": 0.0, "load": self._load_s, "warmup": 0.0}
        self._reach(unit, Stage.VERIFIED)

    def _reach(self, unit: Unit, stage: Stage) -> None:
        self._count()
        unit.stage, unit.stage_at = stage, self._clock.now()
        self.changed()

    def _count(self) -> None:
        """Serve what was offered since the last call."""
        now_s = self._clock.monotonic()
        for pool in self.pools.values():
            warm = [unit for unit in pool if unit.stage is Stage.VERIFIED]
            for unit in warm:
                unit.served_count += self.qps * (now_s - self._counted_s) / len(warm)
        self._counted_s = now_s

    async def _pools(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                workload: [
                    {
                        "id": unit.id,
                        "stage": unit.stage.value,
                        "ordered_at": unit.ordered_at.isoformat(),
                        "stage_at": (unit.stage_at or unit.ordered_at).isoformat(),
                        "stage_s": unit.stage_s,
                    }
                    for unit in pool
                ]
                for workload, pool in self.pools.items()
            }
        )

    async def _metrics(self, request: web.Request) -> web.Response:
        self._count()
        for pool in self.pools.values():
            for unit in pool:
                if unit.id == request.match_info["unit"]:
                    return web.Response(text=_METRICS.format(count=int(unit.served_count)))
        raise web.HTTPNotFound


class FleetActuator:
    """Implements `controller.ports.Actuator` on a `Fleet` elsewhere."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: aiohttp.ClientSession | None = None

    async def claim(
        self, workloads: Sequence[Workload], *, fence: int, others: Sequence[Workload] | None = None
    ) -> None:
        """Refuse older orders from now on. The fleet's replicas are its own: none ends with its workload."""
        names = [w.name for w in workloads]
        await self._call("POST", "/claim", {"fence": fence, "workloads": names, "all": others is None})

    async def observe(self, workloads: Sequence[Workload]) -> Mapping[str, PoolView]:
        """What runs there."""
        pools = await self._call("GET", "/pools")
        return {w.name: self._view(w, pools.get(w.name, [])) for w in workloads}

    def _view(self, workload: Workload, units: Sequence[Mapping[str, Any]]) -> PoolView:
        return PoolView(
            len(units),
            tuple(
                Replica(
                    id=unit["id"],
                    stage=Stage(unit["stage"]),
                    ordered_at=datetime.fromisoformat(unit["ordered_at"]),
                    stage_at=datetime.fromisoformat(unit["stage_at"]),
                    profile=workload.profile,
                    metrics_url=f"{self._url}/metrics/{unit['id']}",
                    stage_s=unit["stage_s"],
                )
                for unit in units
            ),
        )

    async def scale(self, workload: Workload, replicas: int, *, fence: int) -> None:
        """Ask for a count."""
        await self._call("POST", "/scale", {"workload": workload.name, "replicas": replicas, "fence": fence})

    async def replace(self, workload: Workload, replica_id: str, *, fence: int) -> None:
        """End one replica; a fresh one takes its place."""
        body = {"workload": workload.name, "replica_id": replica_id, "fence": fence}
        await self._call("POST", "/replace", body)

    async def _call(self, method: str, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_CALL_TIMEOUT_S))
        try:
            async with self._session.request(method, self._url + path, json=body) as response:
                if response.status == HTTPStatus.CONFLICT:
                    raise StaleFenceError(await response.text())
                if response.status == HTTPStatus.NOT_FOUND:
                    raise NotFoundError(await response.text())
                if response.status != HTTPStatus.OK:
                    raise UnavailableError(f"the fleet answered {response.status}")
                answer: dict[str, Any] = await response.json()
                return answer
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise UnavailableError(f"the fleet does not answer: {error!r}") from error

    async def close(self) -> None:
        """Release connections; the fleet goes on."""
        if self._session is not None:
            await self._session.close()


async def _member() -> None:
    settings = read_settings()
    configure_logging(settings.log_level)
    await run_controller(settings, "a drill's servers", FleetActuator(os.environ[FLEET_VARIABLE]))


if __name__ == "__main__":
    run(_member())
