"""A real stack under load for half an hour while everything around it breaks: wrong decisions, lost events, leaks.

Promises: real PostgreSQL (durable, on a small file system of its own where one can be mounted), real Valkey and three
real controllers; workloads whose demand varies and events that are registered, changed and cancelled over gRPC all
along; faults by a seeded schedule, each kind once before any comes again; `benchmarks.oracles` says what is wrong.
Exit status 1 when anything is. Called by people: `python -m benchmarks.soak --minutes 30 --json`.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import os
import sys
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import grpc
from forecrest.v1 import event_pb2, event_service_pb2, workload_pb2, workload_service_pb2
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.drill import Cluster, Servers
from benchmarks.harm import CLOCK, Harm, SoakFleet, small_disk
from benchmarks.oracles import REPLICA_QPS, SIGNAL_AGE_S, Ledger, Registered
from benchmarks.vitals import Record, Spell, growth, growth_table, look_at, plot, processes, ticked_s
from controller.adapters.postgres import PostgresStore
from controller.cli.common import run
from controller.client import Client
from controller.core.resources import TrafficSample

MEMBERS = 3
LEASE_S = 6.0
MIN_REPLICAS, MAX_REPLICAS = 1, 12
LOAD_S = 1.0
MARGIN_S, LEAD_S = 10.0, 45.0
# An order is due the lead and 15 s of tick slack before the deadline; an event told later than that may be late.
SLACK_S = 20.0
HISTORY = timedelta(days=3)
LOOK_S, SAMPLE_S = 1.0, 5.0
EVENTS_OPEN_MAX = 40
# Registration may take 5 s of refits for its warnings. A busy machine answers later than that, and every call is made
# until it is answered: without a bound, they alone would keep it busy.
CALL_S, CALLS_OPEN_MAX = 10.0, 8
RETRIED = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
    # Never expected, and told in the report; what came of the call is unknown, so it is made again.
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
}
# What ends a process or a leader's term comes in the first half only: growth is followed within terms.
ENDS_TERMS = frozenset({"leader kill -9", "leader stopped", "postgres away 20 s", "disk full"})


def name_of(index: int) -> str:
    """Name of a workload."""
    return f"shop-{index:02d}"


def base_qps(index: int, at_s: float) -> float:
    """Demand of a workload without events and noise: a wave of eight to twelve minutes."""
    period_s = 480.0 + 30.0 * (index % 9)
    return (90.0 + 20.0 * (index % 7)) * (1.0 + 0.5 * math.sin(2 * math.pi * at_s / period_s + index))


class Planner:
    """Registers, changes and cancels events, each call until it is answered; keeps what was acknowledged."""

    def __init__(
        self,
        cluster: Cluster,
        ledger: Ledger,
        names: Sequence[str],
        random: Random,
        record: Record,
        lead_s: float,
    ) -> None:
        self._cluster, self._ledger, self._names = cluster, ledger, list(names)
        self._random, self._record, self._lead_s = random, record, lead_s
        self._clients: dict[str, Client] = {}
        self._numbers = itertools.count(1)
        self._calls: set[asyncio.Task[None]] = set()
        self.closing = False

    async def close(self) -> None:
        """Let the channels go."""
        for client in self._clients.values():
            await client.close()

    async def run(self) -> None:
        """Do something every one to three seconds until told to close; return when all of it is answered."""
        while not self.closing:
            if len(self._calls) < CALLS_OPEN_MAX:
                task = asyncio.create_task(self._something())
                self._calls.add(task)
                task.add_done_callback(self._calls.discard)
            await CLOCK.sleep(self._random.uniform(1.0, 3.0))
        await asyncio.gather(*self._calls)

    def client(self) -> Client | None:
        """A client of any controller that runs."""
        members = [member for member in self._cluster.members.values() if member.address]
        if not members:
            return None
        member = self._random.choice(members)
        if member.name not in self._clients:
            self._clients[member.name] = Client(member.address)
        return self._clients[member.name]

    async def call(self, kind: str, method: Callable[[Client], Awaitable[Any]]) -> Any:  # noqa: ANN401 - any response
        """Ask any controller until one answers; the request's id makes that one call. None: it was refused."""
        while True:
            client = self.client()
            try:
                if client is not None:
                    answer = await method(client)
                    self._record.calls[kind] += 1
                    return answer
            except grpc.aio.AioRpcError as error:
                self._record.errors[error.code().name] += 1
                if error.code() not in RETRIED:
                    return None
            await CLOCK.sleep(0.5)

    async def _something(self) -> None:
        now_s = CLOCK.now().timestamp()
        live = [
            e for e in self._ledger.events.values() if not e.cancelled and not e.asked and e.end_s > now_s + 5
        ]
        early = [e for e in live if e.due_s > now_s + self._ledger.notice_s + 10]
        choice = self._random.random()
        if early and choice < 0.25:
            await self._change(self._random.choice(early))
        elif live and choice < 0.35:
            await self._cancel(self._random.choice(live))
        elif len(live) < EVENTS_OPEN_MAX:
            await self._create(now_s)

    async def _create(self, now_s: float) -> None:
        r, number = self._random, next(self._numbers)
        start_s = float(int(now_s + self._ledger.notice_s + 25 + r.uniform(0, 3) * self._lead_s))
        names = tuple(r.sample(self._names, r.choice((1, 1, 2))))
        event = Registered(
            f"event-{number}", names, float(r.randrange(200, 700)), start_s, start_s + r.randrange(60, 180), MARGIN_S, 0, 0.0,
            asked=True,
        )  # fmt: skip
        wanted = event_pb2.Event(
            workloads=[f"workloads/{name}" for name in names],
            time_zone="UTC",
            expected_peak_qps=event.peak_qps,
        )
        wanted.start_time.FromSeconds(int(event.start_s))
        wanted.end_time.FromSeconds(int(event.end_s))
        wanted.margin.FromSeconds(int(MARGIN_S))
        wanted.lead_override.FromSeconds(int(self._lead_s))
        request = event_service_pb2.CreateEventRequest(
            event=wanted, event_id=event.id, request_id=str(uuid.uuid4())
        )
        self._keep(event, await self.call("create", lambda c: c.events.CreateEvent(request, timeout=CALL_S)))

    async def _change(self, event: Registered) -> None:
        event.asked = True
        peak_qps = float(self._random.randrange(200, 700))
        wanted = event_pb2.Event(name=f"events/{event.id}", expected_peak_qps=peak_qps)
        request = event_service_pb2.UpdateEventRequest(event=wanted, request_id=str(uuid.uuid4()))
        self._keep(event, await self.call("change", lambda c: c.events.UpdateEvent(request, timeout=CALL_S)))

    async def _cancel(self, event: Registered) -> None:
        event.asked = True
        request = event_service_pb2.CancelEventRequest(
            name=f"events/{event.id}", reason="soak", request_id=str(uuid.uuid4())
        )
        self._keep(event, await self.call("cancel", lambda c: c.events.CancelEvent(request, timeout=CALL_S)))

    def _keep(self, event: Registered, answer: event_pb2.Event | None) -> None:
        event.asked = False
        if answer is None:  # refused: as it was, or never there
            return
        event.revision, event.peak_qps = answer.revision, answer.expected_peak_qps
        event.cancelled = answer.state == event_pb2.EVENT_STATE_CANCELLED
        event.acknowledged_s = CLOCK.now().timestamp()
        self._ledger.events[event.id] = event


class Watchers:
    """Streams of decisions that are opened, read for a while and dropped, all along."""

    def __init__(self, planner: Planner, random: Random) -> None:
        self._planner, self._random = planner, random

    async def run(self) -> None:
        """Do so until cancelled."""
        while True:
            client = self._planner.client()
            if client is not None:
                with contextlib.suppress(TimeoutError, grpc.aio.AioRpcError):
                    async with asyncio.timeout(self._random.uniform(3.0, 20.0)):
                        async for _ in client.watch_decisions():
                            pass
            await CLOCK.sleep(0.5)


@dataclass(slots=True)
class Soak:
    """One run of it."""

    minutes: float
    seed: int
    workloads: int
    only: Sequence[str]
    show: Progress | None
    has_disk: bool = True  # one of its own, where this machine permits it
    lead_s: float = LEAD_S
    shards: int = 1
    lease_s: float = LEASE_S

    async def measure(self, folder: Path) -> tuple[dict[str, Any], Record]:
        """Start everything, do harm, hold it against the rules; return the report and the record."""
        record = Record()
        names = [name_of(index) for index in range(self.workloads)]
        async with (
            small_disk(folder / "disk", wanted=self.has_disk) as disk,
            Servers(
                folder / "servers" if disk is None else disk / "servers", durable=disk is not None
            ) as servers,
            SoakFleet(load_s=LOAD_S) as fleet,
            Cluster(
                servers,
                folder / "members",
                fleet_url=fleet.url,
                lease_s=self.lease_s,
                period_s=1.0,
                shards=self.shards,
                program=("-m", "benchmarks.soak_member"),
                environment={"FORECREST_CONSOLE_BIND": "", "FORECREST_SCRAPE_PERIOD_S": "2"},
            ) as cluster,
        ):
            harm = Harm(servers, fleet, cluster, disk, Random(self.seed))
            url = servers.database_url.replace("+psycopg", "")
            limits: dict[str, tuple[int, int]] = dict.fromkeys(names, (MIN_REPLICAS, MAX_REPLICAS))
            ledger = Ledger(url, fleet, harm, limits, self.lead_s + SLACK_S)
            fleet.demands = {name: base_qps(i, CLOCK.now().timestamp()) for i, name in enumerate(names)}
            await _remember(servers, names)
            await cluster.start_many(MEMBERS)
            planner = Planner(cluster, ledger, names, Random(self.seed + 1), record, self.lead_s)
            await self._register(planner, names)
            await fleet.until(lambda: all(fleet.warm(name) for name in names))
            record.began_s = CLOCK.now().timestamp()
            try:
                await self._run(planner, harm, ledger, record)
                counted = await ledger.finish()
            finally:
                await ledger.close()
            return self._report(record, harm, ledger, counted), record

    async def _run(self, planner: Planner, harm: Harm, ledger: Ledger, record: Record) -> None:
        async with asyncio.TaskGroup() as group:
            around = [
                group.create_task(self._demand(harm.fleet, ledger)),
                group.create_task(self._look(ledger, record)),
                group.create_task(self._sample(harm.cluster, ledger, record)),
                *(group.create_task(Watchers(planner, Random(n)).run()) for n in range(4)),
            ]
            plans = group.create_task(planner.run())
            await self._harm(harm, ledger, record)
            planner.closing = True
            await plans
            await self._settle(harm.cluster, ledger, 60.0)
            for task in around:
                task.cancel()
        await planner.close()

    async def _register(self, planner: Planner, names: Sequence[str]) -> None:
        for index, name in enumerate(names):
            workload = workload_pb2.Workload(
                model_name="m", min_replicas=MIN_REPLICAS, max_replicas=MAX_REPLICAS, priority=index % 3
            )
            workload.profiles.add(engine="e", gpu_type="g", qps_max=REPLICA_QPS)
            workload.policy.signal_age_max.FromSeconds(int(SIGNAL_AGE_S))
            workload.policy.stable_window.FromSeconds(20)
            workload.policy.behavior.scale_down.stabilization_window.FromSeconds(45)
            request = workload_service_pb2.CreateWorkloadRequest(
                workload=workload, workload_id=name, request_id=str(uuid.uuid4())
            )
            await planner.call("workload", lambda c, r=request: c.workloads.CreateWorkload(r, timeout=CALL_S))  # type: ignore[misc]

    async def _demand(self, fleet: SoakFleet, ledger: Ledger) -> None:
        random = Random(self.seed + 2)
        while True:
            now_s = CLOCK.now().timestamp()
            for index, name in enumerate(fleet.demands):
                fleet.demands[name] = base_qps(index, now_s) * random.uniform(0.9, 1.1)
            for event in ledger.events.values():
                if event.start_s <= now_s < event.end_s and not event.cancelled:
                    for name in event.workloads:
                        fleet.demands[name] = max(fleet.demands[name], 0.85 * event.peak_qps)
            await CLOCK.sleep(0.5)

    def _quiet(self, record: Record) -> bool:
        """Whether no fault is at work, nor was in the last half minute."""
        now_s = CLOCK.now().timestamp()
        return all(spell.ended_s < now_s - 30.0 for spell in record.spells)

    async def _look(self, ledger: Ledger, record: Record) -> None:
        while True:
            await ledger.look(calm=self._quiet(record))
            await CLOCK.sleep(LOOK_S)

    async def _sample(self, cluster: Cluster, ledger: Ledger, record: Record) -> None:
        while True:
            now_s = CLOCK.now().timestamp()
            for member in list(cluster.members.values()):
                if (vitals := look_at(member, now_s)) is not None:
                    record.vitals.append(vitals)
            record.connections.append((now_s, ledger.postgres_connections))
            await CLOCK.sleep(SAMPLE_S)

    async def _harm(self, harm: Harm, ledger: Ledger, record: Record) -> None:
        faults = harm.faults()
        if self.only:
            faults = {name: faults[name] for name in self.only}
        total_s = 60.0 * self.minutes
        calm_s = min(90.0, 0.15 * total_s)
        ends_s, half_s = record.began_s + total_s - calm_s, record.began_s + total_s / 2
        bar = None if self.show is None else self.show.add_task("warm-up", total=total_s)

        async def wait(seconds: float, what: str) -> None:
            until_s = CLOCK.now().timestamp() + seconds
            while (left_s := until_s - CLOCK.now().timestamp()) > 0:
                self._tell(bar, record, ledger, what)
                await CLOCK.sleep(min(1.0, left_s))

        await wait(min(60.0, 0.1 * total_s), "warm-up")
        waiting: list[str] = []
        told = 0
        while True:
            now_s = CLOCK.now().timestamp()
            if not waiting:
                waiting = sorted(faults if now_s < half_s else faults.keys() - ENDS_TERMS)
                harm.random.shuffle(waiting)
            # Those that were asked for by name come all, also where one takes long.
            if now_s >= ends_s and set(self.only) <= {spell.name for spell in record.spells}:
                break
            name = waiting.pop()
            spell = Spell(name, now_s)
            record.spells.append(spell)
            fault: asyncio.Future[None] = asyncio.ensure_future(faults[name]())
            try:
                while not fault.done():
                    self._tell(bar, record, ledger, name)
                    await asyncio.wait({fault}, timeout=1.0)
                await fault
            finally:
                if not fault.done():
                    fault.cancel()
                    await asyncio.gather(fault, return_exceptions=True)
                spell.ended_s = CLOCK.now().timestamp()
            spell.settled_s = await self._settle(harm.cluster, ledger, 60.0)
            self._say(
                f"minute {(now_s - record.began_s) / 60:.1f}: {name}, {spell.ended_s - now_s:.1f} s, "
                f"settled after {spell.settled_s:.1f} s; {self._counts(ledger)}"
            )
            for sentence in list(ledger.wrong.values())[told:]:
                self._say(sentence)
            told = len(ledger.wrong)
            await wait(harm.random.uniform(2.0, 12.0), "calm")
        await wait(record.began_s + total_s - CLOCK.now().timestamp(), "calm at the end")

    async def _settle(self, cluster: Cluster, ledger: Ledger, limit_s: float) -> float:
        """Wait until every shard has ticked and the fleet is as decided; return for how long, NaN at the limit."""
        began_s = CLOCK.monotonic()
        while (waited_s := CLOCK.monotonic() - began_s) < limit_s:
            ticks = [one for member in cluster.members.values() for one in ticked_s(member).items()]
            ticked = {shard for shard, at_s in ticks if at_s > began_s}
            if len(ticked) == self.shards and not ledger.apart():
                return waited_s
            await CLOCK.sleep(0.2)
        return math.nan

    def _tell(self, bar: Any, record: Record, ledger: Ledger, what: str) -> None:  # noqa: ANN401 - rich's own type
        if self.show is not None:
            done_s = CLOCK.now().timestamp() - record.began_s
            self.show.update(bar, completed=done_s, description=f"{what}, {self._counts(ledger)}")

    def _say(self, line: str) -> None:
        """Tell it where there is no terminal that shows how far it is."""
        if self.show is not None and self.show.disable:
            self.show.console.print(line, soft_wrap=True)

    def _counts(self, ledger: Ledger) -> str:
        return f"{len(ledger.decisions)} decisions, {len(ledger.events)} events, {len(ledger.wrong)} wrong"

    def _report(self, record: Record, harm: Harm, ledger: Ledger, counted: dict[str, int]) -> dict[str, Any]:
        spells: dict[str, dict[str, Any]] = {}
        for spell in record.spells:
            found = spells.setdefault(spell.name, {"times": 0, "settled_s_max": 0.0})
            found["times"] += 1
            # NaN passes through: one that did not settle is told.
            found["settled_s_max"] = max(
                found["settled_s_max"], spell.settled_s, key=lambda s: (math.isnan(s), s)
            )
        for name, said in harm.notes.items():
            spells[name]["notes"] = said
        for found in spells.values():
            found["settled_s_max"] = (
                None if math.isnan(found["settled_s_max"]) else round(found["settled_s_max"], 1)
            )
        ticks = [v.tick_ms for v in record.vitals if v.tick_ms is not None]
        known = [count for _, count in record.connections if count is not None]
        return {
            "minutes": self.minutes,
            "seed": self.seed,
            "workloads": self.workloads,
            "controllers": MEMBERS,
            "shards": self.shards,
            "lease_s": self.lease_s,
            "load_average": [round(value, 1) for value in os.getloadavg()],
            "wrong_decisions": len(ledger.wrong) - counted["events_lost"],
            "wrong": list(ledger.wrong.values())[:50],
            "lost_events": counted["events_lost"],
            "decisions": len(ledger.decisions),
            "orders": {
                "applied": sum(o.applied and o.kind == "scale" for o in harm.fleet.orders),
                "refused_as_stale": sum(not o.applied for o in harm.fleet.orders),
            },
            "leaders": len({d.fence for d in ledger.decisions}),
            "events": {
                "acknowledged": len(ledger.events),
                "calls": dict(record.calls),
                "retried_errors": dict(record.errors),
                "floors_met_when_due": ledger.met,
                "floors_late_and_named": len(ledger.short),
                "late": ledger.short[:20],
                "told_too_late_to_judge": ledger.unjudged,
            },
            "drift_s_max_in_calm": round(ledger.drift_s_max, 1),
            "faults": spells,
            "faults_left_out": harm.left_out,
            "tick_ms": {
                "p50": _quantile(ticks, 0.5),
                "p95": _quantile(ticks, 0.95),
                "max": _quantile(ticks, 1.0),
            },
            "postgres_connections": {"first": known[0], "last": known[-1], "max": max(known)}
            if known
            else None,
            "growth_per_hour": growth(record.vitals),
            "processes": processes(record),
        }


async def _remember(servers: Servers, names: Sequence[str]) -> None:
    """Store some days of traffic, so that forecasts have what to learn from and grow no more by it."""
    store = PostgresStore(servers.database_url)
    try:
        last = datetime.fromtimestamp(60 * (CLOCK.now().timestamp() // 60), UTC)
        minutes = int(HISTORY / timedelta(minutes=1))
        for index, name in enumerate(names):
            times = [last - timedelta(minutes=n) for n in range(minutes, 0, -1)]
            samples = [TrafficSample(name, at, 60 * base_qps(index, at.timestamp())) for at in times]
            async with store.unit_of_work() as uow:
                await uow.traffic.upsert(samples)
                await uow.commit()
    finally:
        await store.close()


def _quantile(values: Sequence[float], level: float) -> float | None:
    return None if not values else round(sorted(values)[min(len(values) - 1, int(level * len(values)))], 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, print what was found; 1 when anything was wrong or lost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1, help="of faults, events and demand")
    parser.add_argument("--workloads", type=int, default=24)
    parser.add_argument("--shards", type=int, default=1, help="FORECREST_SHARDS")
    parser.add_argument(
        "--lease-s", type=float, default=LEASE_S, help="FORECREST_LEASE_DURATION_S; longer on a busy machine"
    )
    parser.add_argument("--fault", action="append", default=[], help="only this one; may be repeated")
    parser.add_argument("--plot", type=Path, help="PNG of memory, descriptors and ticks, faults marked")
    parser.add_argument("--record", type=Path, help="JSON of every look at the processes, and of the faults")
    parser.add_argument("--json", action="store_true", help="end with one JSON object and no sentence")
    given = parser.parse_args(arguments)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="forecrest-soak-", ignore_cleanup_errors=True) as folder,
        Progress(*columns, console=console, disable=not console.is_terminal) as show,
    ):
        Path(folder).chmod(0o711)  # the servers run as another user where we are root
        soak = Soak(
            given.minutes,
            given.seed,
            given.workloads,
            given.fault,
            show,
            shards=given.shards,
            lease_s=given.lease_s,
        )
        found, record = run(soak.measure(Path(folder)))
    if given.plot is not None:
        plot(record, given.plot)
    if given.record is not None:
        given.record.write_text(
            json.dumps(
                {"spells": list(map(asdict, record.spells)), "vitals": list(map(asdict, record.vitals))}
            )
        )
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        print(
            f"{given.minutes:g} minutes, {sum(f['times'] for f in found['faults'].values())} faults: "
            f"{found['wrong_decisions']} wrong decisions in {found['decisions']}, {found['lost_events']} lost events "
            f"of {found['events']['acknowledged']}."
        )
        for sentence in found["wrong"]:
            print(sentence)
        Console().print(growth_table(found["growth_per_hour"]))
    return 0 if found["wrong_decisions"] == 0 and found["lost_events"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
