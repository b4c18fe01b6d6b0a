"""Run the demo: the same load on the same world, with prediction and without; measure, compare, report.

Promises: production code does the work (``open_runtime`` with a faster clock and a weighing meter, everything
else as in ``forecrest up``); planners' and operators' steps go through the public gRPC API; both runs get the
same requests at the same wall times. Whatever ends it, everything it started ends with it.
"""

import asyncio
import json
import logging
import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from forecrest.v1 import (
    control_pb2,
    event_pb2,
    event_service_pb2,
    forecast_pb2,
    forecast_service_pb2,
    telemetry_service_pb2,
    workload_service_pb2,
)
from rich.console import Console
from rich.table import Table

from controller import redaction
from controller.actuators.local_process import LocalProcessActuator
from controller.adapters.clock import SystemClock
from controller.adapters.embedded import EmbeddedError
from controller.adapters.embedded.folder import FolderLock
from controller.bootstrap import Runtime, open_runtime
from controller.client import Client, explain
from controller.core.types import Replica, Stage
from controller.demo import world as w
from controller.demo.clock import ScaledClock
from controller.demo.facts import facts
from controller.demo.load import Answer, arrivals
from controller.demo.plots import RUN_NAMES
from controller.demo.record import Band, DemoRecord, Frame, Move, RunRecord
from controller.demo.report import rows, write_report
from controller.demo.screen import WIDTH, Screen, View, grouped
from controller.demo.sender import LoadEndedError, LoadProcess
from controller.demo.series import load_series
from controller.demo.world import World
from controller.ports import PortError
from controller.settings import Settings

log = logging.getLogger(__name__)

# Wall seconds that setting up may take on the demo's clock before the load's first demo second.
SETUP_MAX_S = 90.0
# Between setting up and the first request: the last hours of history, the event, its first forecast.
READY_S = 4.0
POLL_S, SHOW_S, FORECAST_POLL_S = 0.1, 0.25, 1.0
SERVER_END_S = 2.0
RATE_STEP_S = 0.1
WRITE_BATCH = 10_000
WITH, WITHOUT = "with_prediction", "without_prediction"


class DemoError(Exception):
    """The demo cannot go on; the message says what to do."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the command line asks for."""

    history: Path | None = None
    seconds: float = 72.0
    baseline: bool = True
    keep: bool = False
    json_file: Path | None = None
    report: Path = Path("forecrest-report")
    data_dir: Path = Path(".forecrest/demo")
    seed: int = 1


async def run_demo(options: DemoOptions, console: Console | None = None) -> DemoRecord:
    """Run it; return what was measured.

    Raises:
        DemoError: something the user can put right.
        HistoryFileError: the history cannot be used.
    """
    console = console or Console(highlight=False, width=None)
    options.data_dir.mkdir(parents=True, exist_ok=True)
    # The screen belongs to the demo; what the servers have to say is kept beside their data.
    logging.basicConfig(filename=options.data_dir / "demo.log", level=logging.INFO, force=True)
    redaction.install()
    series = await asyncio.to_thread(
        load_series,
        options.history,
        now=SystemClock().now(),
        window=w.WINDOW,
        event=w.EVENT_SHARE,
        base_qps=w.BASE_QPS,
    )
    try:
        # For the whole demo: a second one in this folder would remove the data this one runs on.
        lock = await FolderLock.acquire(options.data_dir)
    except EmbeddedError as error:
        raise DemoError(str(error)) from error
    try:
        return await _run_both(World(series, options.seconds), options, console)
    finally:
        lock.release()


async def _run_both(world: World, options: DemoOptions, console: Console) -> DemoRecord:
    runs: dict[str, RunRecord] = {}
    with Screen(console) as screen:
        screen.say(introduction(world))
        *earlier, last = _order(options)
        for name in earlier:
            async with _opened(world, options, name, screen) as run:
                runs[name] = await run.measure()
        async with _opened(world, options, last, screen) as run:
            runs[last] = await run.measure()
            record = _record(world, runs)
            page = await asyncio.to_thread(write_report, record, options.report)
            _finish(console, record, page, options)
            if options.keep:
                await run.stay()
    return record


def _order(options: DemoOptions) -> list[str]:
    """Return the runs in order; what is left running at the end is the one with prediction."""
    if not options.baseline:
        return [WITH]
    return [WITHOUT, WITH] if options.keep else [WITH, WITHOUT]


def introduction(world: World) -> str:
    """Say what is about to happen."""
    start_s, end_s = world.event_s
    minutes = len(world.series.history)
    length = f"{minutes / 60 / 24 / 7:.1f} weeks" if minutes >= 10_080 else f"{minutes / 60:.1f} hours"
    return (
        f"History: {length} of {world.series.source}.\n"
        f"The demo lives through what came next, {world.at(0):%H:%M} to {world.at(world.seconds):%H:%M}, in "
        f"{world.seconds:.0f} s, and adds a launch from {world.at(start_s):%H:%M} to {world.at(end_s):%H:%M}: "
        f"{grouped(w.BASE_QPS)} → {grouped(w.PEAK_QPS)} QPS.\n"
        f"Each request sent stands for {w.STORY_WEIGHT}; one replica serves {w.REPLICA_RPS:.0f} a second."
    )


def run_settings(world: World, data_dir: Path, *, prediction: bool) -> Settings:
    """Return the runtime's settings: wall periods turned into demo time."""
    speed = world.speed
    return Settings(
        data_dir=data_dir,
        database_url=None,
        redis_url=None,
        bind="127.0.0.1:0",
        # The demo is for whoever runs it, on this machine, whatever the environment says of a real server.
        http_bind="off",
        console_bind="",
        tls_cert=None,
        tls_key=None,
        tls_client_ca=None,
        tokens_file=None,
        access_file=None,
        oidc_issuer="",
        oidc_audience="",
        oidc_jwks="",
        actuator="local_process",
        provisioning_delay_s=min(3600.0, w.PROVISIONING_S * speed),
        replica_limit=w.REPLICAS_MAX,
        tick_period_s=w.TICK_S * speed,
        scrape_period_s=w.SCRAPE_S * speed,
        forecast_period_s=w.REFIT_S * speed,
        forecast_step_s=world.forecast_step_s,
        forecast_horizon_s=24 * 3600.0,
        prediction_enabled=prediction,
        # Near demand measures minutes; here a minute is a tenth of a wall second and holds chance, not demand.
        near_enabled=False,
    )


@asynccontextmanager
async def _opened(world: World, options: DemoOptions, name: str, screen: Screen) -> AsyncGenerator["_Run"]:
    """Start a fresh world: embedded servers, controller, client; the load generator waits for its word."""
    folder = options.data_dir / name.replace("_", "-")
    # Each run starts from nothing; only folders that the demo itself made are removed.
    shutil.rmtree(folder, ignore_errors=True)
    clock = ScaledClock(
        SystemClock(),
        speed=world.speed,
        start_at=world.series.replay_at - world.demo_time(SETUP_MAX_S),
    )
    settings = run_settings(world, folder, prediction=name == WITH)
    screen.say(f"\n[bold]{RUN_NAMES[name].capitalize()}[/]: starting PostgreSQL, Valkey and the controller …")
    try:
        async with (
            open_runtime(settings, clock=clock, wrap_meter=world.wrap) as runtime,
            Client(runtime.api.target) as client,
        ):
            yield _Run(world, options, name, screen, runtime, clock, client)
    except (EmbeddedError, PortError, LoadEndedError) as error:
        raise DemoError(str(error)) from error
    except grpc.aio.AioRpcError as error:
        raise DemoError(f"the controller refused a step: {explain(error)}") from error


class _Run:
    """One run of the load."""

    def __init__(
        self,
        world: World,
        options: DemoOptions,
        name: str,
        screen: Screen,
        runtime: Runtime,
        clock: ScaledClock,
        client: Client,
    ) -> None:
        self.world, self.options, self.name, self.screen = world, options, name, screen
        self.runtime, self.clock, self.client = runtime, clock, client
        self.wall = SystemClock()
        self.record = RunRecord(name, world.seconds)
        self.view = View(RUN_NAMES[name], world.seconds, slo_ms=w.SLO_MS, peak_qps=w.PEAK_QPS * 1.1)
        self._start_s = 0.0  # wall time of the load's first second
        self._recent: list[Answer] = []

    async def measure(self) -> RunRecord:
        """Set up, send the load, watch; return the record."""
        await self._set_up()
        demand = self.world.demand(RATE_STEP_S)
        times = arrivals(demand / w.STORY_WEIGHT, RATE_STEP_S, self.options.seed)
        async with LoadProcess(
            times.tolist(),
            model_name=w.MODEL,
            model_version=w.VERSION,
            timeout_s=w.TIMEOUT_S,
            seed=self.options.seed,
            on_answers=self._take,
        ) as load:
            await self._get_ready(load)
            async with self._one_failure(), asyncio.TaskGroup() as tasks:
                watching = [
                    tasks.create_task(self._watch_failures()),
                    tasks.create_task(self._watch_decisions()),
                    tasks.create_task(self._watch_event()),
                    tasks.create_task(self._watch_forecast()),
                    tasks.create_task(self._watch_replicas(load, demand)),
                ]
                await load.finished()
                for task in watching:
                    task.cancel()
        self._flush_view()
        self.screen.end_view()
        return self.record

    @asynccontextmanager
    async def _one_failure(self) -> AsyncGenerator[None]:
        """Let one failure out of a task group by itself: the end of a server, if that is behind the others."""
        try:
            yield
        except BaseExceptionGroup as group:
            servers = self.runtime.servers
            if servers is not None:
                # Who watches a server is told some moments after those who were talking to it.
                await asyncio.wait([servers], timeout=SERVER_END_S)
            self._check_alive()
            raise group.exceptions[0] from None

    async def stay(self) -> None:
        """Keep the world alive until Ctrl-C."""
        address = self.runtime.api.target
        self.screen.say(
            f"\nStill running: gRPC on {address}, data in {self.runtime.settings.data_dir}.\n"
            f"Its clock runs {self.world.speed:g} times as fast and shows {self.clock.now():%Y-%m-%d %H:%M} UTC. Try:\n"
            f"  forecrest decisions list --address {address}\n"
            f"  forecrest forecast {w.WORKLOAD} --plot --address {address}\n"
            "Ctrl-C ends it."
        )
        while True:
            self._check_alive()
            await self.wall.sleep(1.0)

    # ------------------------------------------------------------ setting up

    async def _set_up(self) -> None:
        """Register the workload, import the history known by now, wait for the first warm replicas."""
        workload = self.world.workload()
        # The time before the load is not part of the story: no forecast of it shall start replicas.
        workload.max_replicas = w.REPLICAS_MIN
        await self.client.workloads.CreateWorkload(
            workload_service_pb2.CreateWorkloadRequest(workload=workload, workload_id=w.WORKLOAD)
        )
        written = await self._import(self.world.series.history, before=self.clock.now())
        self.screen.say(
            f"Imported {grouped(written)} minutes of history; starting the first Triton replica …"
        )
        deadline_s = self.wall.monotonic() + SETUP_MAX_S - READY_S
        while sum(r.warm for r in await self._replicas()) < w.REPLICAS_MIN:
            self._check_alive()
            failed = [r for r in await self._replicas() if r.stage is Stage.FAILED]
            if failed:
                raise DemoError(f"replica {failed[0].id} failed: {failed[0].failure}; run `forecrest doctor`")
            if self.wall.monotonic() > deadline_s:
                raise DemoError(
                    f"no Triton replica was warm within {SETUP_MAX_S - READY_S:.0f} s; "
                    f"see {self.options.data_dir}/demo.log and run `forecrest doctor`"
                )
            await self.wall.sleep(POLL_S)

    async def _get_ready(self, load: LoadProcess) -> None:
        """Skip to just before the load, bring history up to date, register the event, await its forecast."""
        self.clock.skip_to(self.world.at(-READY_S))
        self._start_s = self.wall.monotonic() + READY_S
        await self._import(self.world.series.history, before=self.clock.now())
        await load.set_endpoints(_endpoints(await self._replicas()))
        full = self.world.workload()
        full.name = f"workloads/{w.WORKLOAD}"
        await self.client.workloads.UpdateWorkload(workload_service_pb2.UpdateWorkloadRequest(workload=full))
        if self.name == WITH:
            made = await self.client.events.CreateEvent(
                event_service_pb2.CreateEventRequest(event=self.world.event(), event_id=w.EVENT)
            )
            preview = await self.client.events.PreviewEvent(event_service_pb2.PreviewEventRequest(event=made))
            self.record.contract["sentence"] = preview.workloads[0].sentence
            self.screen.say(f"Event registered over gRPC. {preview.workloads[0].sentence}")
        while (left_s := self._start_s - self.wall.monotonic()) > 0:
            with suppress(grpc.aio.AioRpcError):
                self._take_forecast(await self._forecast())
            await self.wall.sleep(min(left_s, POLL_S * 5))
        await load.go()

    async def _import(self, history: Sequence[tuple[datetime, float]], before: datetime) -> int:
        """Write minutes that have ended by ``before`` and were not written yet, as `history import` does."""
        span = await self.client.forecasts.GetHistory(
            forecast_service_pb2.GetHistoryRequest(workload=f"workloads/{w.WORKLOAD}")
        )
        after = (
            span.last_sample_time.ToDatetime(UTC)
            if span.HasField("last_sample_time")
            else datetime.min.replace(tzinfo=UTC)
        )
        known = [(at, qps) for at, qps in history if after < at <= before - timedelta(minutes=1)]
        for first in range(0, len(known), WRITE_BATCH):
            request = telemetry_service_pb2.RecordTrafficRequest(source="import")
            for at, qps in known[first : first + WRITE_BATCH]:
                sample = request.samples.add(workload=f"workloads/{w.WORKLOAD}", demand_count=qps * 60.0)
                sample.minute_time.seconds = int(at.timestamp())
            await self.client.telemetry.RecordTraffic(request)
        return len(known)

    # ------------------------------------------------------------ watching

    @property
    def _at_s(self) -> float:
        return self.wall.monotonic() - self._start_s

    def _wall_s(self, at: datetime) -> float:
        """Return a demo time as wall seconds of the load."""
        return (at - self.world.series.replay_at).total_seconds() / self.world.speed

    def _check_alive(self) -> None:
        loop, servers = self.runtime.loop, self.runtime.servers
        if servers is not None and servers.done():
            servers.result()  # raises, and says which one ended
        if loop is not None and loop.done():
            raise DemoError(f"the control loop ended by itself; see {self.options.data_dir}/demo.log")

    async def _replicas(self) -> Sequence[Replica]:
        stored = await self._stored_workload()
        view = (await self.runtime.actuator.observe([stored])).get(w.WORKLOAD)
        self.view.desired = None if view is None else view.desired_replicas
        return () if view is None else view.replicas

    async def _stored_workload(self) -> Any:  # noqa: ANN401 - a core Workload, kept after the first read
        if not hasattr(self, "_workload"):
            async with self.runtime.store.unit_of_work() as uow:
                self._workload = await uow.workloads.get(w.WORKLOAD)
        return self._workload

    def _take(self, answers: list[Answer]) -> None:
        """Take answers from the load process."""
        for answer in answers:
            self.record.sent_s.append(answer.meant_s)
            self.record.latency_ms.append(answer.latency_s * 1000)
            self.record.answered.append(answer.answered)
        self.view.requests += len(answers)
        self.view.within += sum(a.answered and a.latency_s * 1000 <= w.SLO_MS for a in answers)
        self._recent = [*self._recent, *answers][-400:]
        latest = [a.latency_s for a in self._recent if a.meant_s >= self._at_s - 3]
        self.view.p99_ms = float(np.quantile(latest, 0.99)) * 1000 if latest else None

    async def _watch_failures(self) -> None:
        """End the run when a replica fails under the load: the controller replaces it, but the other run had none."""
        actuator = self.runtime.actuator
        assert isinstance(actuator, LocalProcessActuator)
        while True:
            for failed in (r for r in actuator.view(w.WORKLOAD).replicas if r.stage is Stage.FAILED):
                raise DemoError(
                    f"replica {failed.id} failed under the load, so the runs cannot be compared: {failed.failure}; "
                    "run `forecrest doctor`, then the demo again"
                )
            await actuator.changed()

    async def _watch_replicas(self, load: LoadProcess, demand: Any) -> None:  # noqa: ANN401 - an array
        shown_s = float("-inf")
        while True:
            self._check_alive()
            replicas = await self._replicas()
            await load.set_endpoints(_endpoints(replicas))
            at_s = self._at_s
            self.record.frames.append(
                Frame(
                    round(at_s, 3),
                    self.view.desired,
                    sum(r.warm for r in replicas),
                    sum(r.in_flight for r in replicas),
                    sum(r.stage is Stage.DRAINING for r in replicas),
                )
            )
            if at_s - shown_s >= SHOW_S:
                shown_s = at_s
                self.view.replicas = replicas
                index = int(min(max(at_s, 0.0), self.world.seconds - RATE_STEP_S) / RATE_STEP_S)
                per_bar = self.world.seconds / (self.view.demand.maxlen or 1)
                while len(self.view.demand) < min(self.view.demand.maxlen or 1, int(at_s / per_bar) + 1):
                    self.view.demand.append(float(demand[index]))
                self._flush_view()
            await self.wall.sleep(POLL_S)

    def _flush_view(self) -> None:
        self.view.at_s, self.view.at = self._at_s, self.clock.now()
        self.screen.show(self.view)

    async def _forecast(self) -> forecast_pb2.Forecast:
        return await self.client.forecasts.GetForecast(
            forecast_service_pb2.GetForecastRequest(name=f"workloads/{w.WORKLOAD}/forecast")
        )

    def _take_forecast(self, found: forecast_pb2.Forecast) -> None:
        state = forecast_pb2.ForecastState.Name(found.state).removeprefix("FORECAST_STATE_")
        if not found.quantiles or not found.quantiles[0].qps:
            self.view.forecast = f"{state}: {' '.join(found.reasons)}"
            return
        start, step = found.start_time.ToDatetime(UTC), found.step.ToTimedelta()
        if self._at_s <= 0:
            # The one that counts for the report is the last before the first request.
            steps = int(self.world.series.window / step) + 2
            self.record.bands = [
                Band(
                    made_s=round(self._at_s, 3),
                    start_s=self._wall_s(start),
                    step_s=step.total_seconds() / self.world.speed,
                    state=state,
                    qps={f"{q.level:g}": [round(v, 1) for v in q.qps[:steps]] for q in found.quantiles},
                )
            ]
        by_level = {round(q.level, 3): q.qps for q in found.quantiles}
        ahead = self.clock.now() + self.world.demo_time(w.LEAD_S)
        index = (ahead - start) // step
        if 0 <= index < len(by_level[0.5]):
            self.view.forecast = (
                f"{state}; for {ahead:%H:%M} {grouped(by_level[0.5][index])} QPS, "
                f"P90 {grouped(by_level[0.9][index])}"
            )

    async def _watch_forecast(self) -> None:
        if self.name == WITHOUT:
            self.view.forecast = "switched off: present demand decides alone"
            return
        while True:
            with suppress(grpc.aio.AioRpcError):
                self._take_forecast(await self._forecast())
            await self.wall.sleep(FORECAST_POLL_S)

    async def _watch_decisions(self) -> None:
        stream = self.client.watch_decisions(f"workloads/{w.WORKLOAD}")
        async for response in stream:
            log.info("decision: %s", response.decision.sentence)
            self._take_decision(response.decision)

    def _take_decision(self, d: control_pb2.Decision) -> None:
        at = d.decide_time.ToDatetime(UTC)
        if d.current_replicas == d.desired_replicas or self._wall_s(at) < -READY_S:
            return
        reason = control_pb2.DecisionReason.Name(d.reason).removeprefix("DECISION_REASON_")
        self.record.moves.append(
            Move(
                round(self._wall_s(at), 2),
                at.isoformat(),
                d.current_replicas,
                d.desired_replicas,
                reason,
                d.sentence,
            )
        )
        self.view.moves.append((f"{at:%H:%M}", d.sentence))

    async def _watch_event(self) -> None:
        if self.name == WITHOUT:
            self.view.event = "not known to the controller"
            return
        async for response in self.client.watch_event(f"events/{w.EVENT}"):
            for one in response.prewarms:
                self._take_contract(one.contract)

    def _take_contract(self, contract: event_pb2.Contract) -> None:
        state = event_pb2.ContractState.Name(contract.state).removeprefix("CONTRACT_STATE_")
        deadline = contract.deadline_time.ToDatetime(UTC)
        self.view.event = (
            f"{state}: {contract.verified_count} of {contract.replicas} warm, due {deadline:%H:%M}, "
            f"starts {self.world.at(self.world.event_s[0]):%H:%M}"
        )
        kept = self.record.contract
        if "met_s" in kept or self._at_s >= self.world.event_s[0]:
            return  # what counts is what was promised and kept by the start
        kept["replicas"] = contract.replicas
        kept["order_s"] = round(self._wall_s(contract.order_time.ToDatetime(UTC)), 2)
        kept["deadline_s"] = round(self._wall_s(deadline), 2)
        if contract.HasField("met_time"):
            kept["met_s"] = round(self._wall_s(contract.met_time.ToDatetime(UTC)), 2)


def _endpoints(replicas: Sequence[Replica]) -> list[str]:
    return [r.endpoint for r in replicas if r.warm and r.endpoint]


# ---------------------------------------------------------------- the result


def _record(world: World, runs: dict[str, RunRecord]) -> DemoRecord:
    step_s = 0.5
    demand = world.demand(step_s)
    recent = world.series.history[-14 * 24 * 60 :: 30]
    return DemoRecord(
        facts=facts(world, runs),
        demand_s=[round(i * step_s, 3) for i in range(len(demand))],
        demand_qps=[round(float(v), 1) for v in demand],
        history_s=[(at - world.series.replay_at).total_seconds() for at, _ in recent],
        history_qps=[round(qps, 1) for _, qps in recent],
        with_prediction=runs[WITH],
        without_prediction=runs.get(WITHOUT),
    )


def _finish(console: Console, record: DemoRecord, page: Path, options: DemoOptions) -> None:
    shown = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    shown.add_column("")
    for run in record.runs:
        shown.add_column(RUN_NAMES[run.name], justify="right", no_wrap=True)
    for label, values in rows(record):
        shown.add_row(label, *values)
    console.print()
    console.print(shown, width=WIDTH)
    console.print(f"\nReport: {page}", soft_wrap=True)
    if options.json_file is not None:
        options.json_file.parent.mkdir(parents=True, exist_ok=True)
        options.json_file.write_text(json.dumps(record.summary(), indent=2) + "\n")
        console.print(f"Figures: {options.json_file}", soft_wrap=True)
