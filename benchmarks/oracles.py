"""What must hold in a soak, recomputed from what is stored and from what the fleet saw.

Promises: nothing here asks a controller or its code. A registered event of P requests per second needs at least P over
a replica's capacity, which is less than the core asks for and is never too much to ask. What breaks a rule is kept as a
sentence in `Ledger.wrong`, each once. Called by the soak.

 1. Every decision is within the workload's minimum and maximum.
 2. None goes down without demand, by its own word or where no replica has answered for longer than signals last.
 3. Tokens never fall: from decision to decision of a workload, and from order to order of it.
 4. Every order that was applied is a stored decision: its workload, count, token, and not a later one.
 5. An event acknowledged in time is warm when it is due, unless its contract says that it was short; and from then
    to its end no decision is below it.
 6. What is stored last is what the fleet has, in calm.
 7. What was acknowledged of an event is stored, as its newest revision.
"""

import json
from collections import defaultdict
from dataclasses import dataclass, field
from math import ceil
from typing import Any, LiteralString

import psycopg

from benchmarks.harm import CLOCK, Harm, SoakFleet

REPLICA_QPS = 100.0
SIGNAL_AGE_S = 20.0
_GRACE_S = 3.0
_BACK_S = 240.0  # how far behind the newest decision one may still come in: clocks are set wrong by less
DRIFT_S = 20.0
_LATE_S = 15.0  # what was warm when an event was due is not seen later than this

NEW = """
    SELECT id, extract(epoch FROM at)::float8, workload, current_replicas, desired_replicas, reason, fence,
           body->>'demand_qps'
    FROM decisions WHERE at > to_timestamp(%s) ORDER BY fence, at, id
"""
CONTRACTS = "SELECT workload, occurrence_id, body::text FROM contracts"
STATES = "SELECT workload, (body->>'desired_replicas')::int FROM workload_states"
EVENTS = "SELECT id, revision, state, body::text FROM traffic_events"
REVISIONS = "SELECT id, revision FROM event_revisions"


@dataclass(frozen=True, slots=True)
class Stored:
    """A decision as it is stored."""

    id: str
    at_s: float
    workload: str
    current: int
    desired: int
    reason: str
    fence: int
    has_demand: bool


@dataclass(slots=True)
class Registered:
    """An event as the API acknowledged it last."""

    id: str
    workloads: tuple[str, ...]
    peak_qps: float
    start_s: float
    end_s: float
    margin_s: float
    revision: int
    acknowledged_s: float
    cancelled: bool = False
    asked: bool = False  # a call is under way, of which nothing is known yet
    judged: bool = False

    @property
    def due_s(self) -> float:
        """When its replicas must be warm."""
        return self.start_s - self.margin_s

    @property
    def need(self) -> int:
        """Replicas it needs at the very least."""
        return ceil(self.peak_qps / REPLICA_QPS)


@dataclass(slots=True)
class Ledger:
    """What is stored, read all along by a connection of its own."""

    url: str
    fleet: SoakFleet
    harm: Harm
    limits: dict[str, tuple[int, int]]
    notice_s: float  # an event acknowledged later than this before it is due may be late
    wrong: dict[str, str] = field(default_factory=dict[str, str])
    decisions: list[Stored] = field(default_factory=list[Stored])
    newest: dict[str, Stored] = field(default_factory=dict[str, Stored])
    events: dict[str, Registered] = field(default_factory=dict[str, Registered])
    met: int = 0
    short: list[str] = field(default_factory=list[str])
    unjudged: int = 0
    drift_s_max: float = 0.0
    postgres_connections: int | None = None
    _connection: psycopg.AsyncConnection[Any] | None = None
    _seen: dict[str, float] = field(default_factory=dict[str, float])
    _since_s: float = 0.0
    _orders_seen: int = 0
    _open_orders: list[tuple[str, int, int, float]] = field(default_factory=list[tuple[str, int, int, float]])
    _stored: dict[tuple[str, int, int], float] = field(default_factory=dict[tuple[str, int, int], float])
    _fences: dict[str, int] = field(default_factory=dict[str, int])
    _apart_since: dict[str, float] = field(default_factory=dict[str, float])
    _late: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])

    def break_rule(self, number: int, key: str, sentence: str) -> None:
        """Keep what is wrong, once."""
        self.wrong.setdefault(f"{number} {key}", f"rule {number}: {sentence}")

    # ---------------------------------------------------------------- reading

    async def _rows(self, query: LiteralString, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        if self._connection is None or self._connection.closed:
            self._connection = await psycopg.AsyncConnection.connect(
                self.url, autocommit=True, connect_timeout=3, options="-c statement_timeout=20000"
            )
        cursor = await self._connection.execute(query, parameters)
        return await cursor.fetchall()

    async def close(self) -> None:
        """Let the connection go."""
        if self._connection is not None:
            await self._connection.close()

    async def look(self, *, calm: bool) -> None:
        """Read what is new and hold it against the rules; do nothing while the database is away."""
        now_s = CLOCK.now().timestamp()
        try:
            rows = await self._rows(NEW, (self._since_s - _BACK_S,))
            count = await self._rows("SELECT count(*) FROM pg_stat_activity WHERE usename = current_user")
        except (psycopg.Error, OSError):
            self.postgres_connections = None
        else:
            self.postgres_connections = count[0][0]
            for name, at_s, workload, current, desired, reason, fence, demand in rows:
                if name not in self._seen:
                    found = Stored(name, at_s, workload, current, desired, reason, fence, demand is not None)
                    self._take(found)
            self._since_s = now_s
            for gone in [name for name, at_s in self._seen.items() if at_s < now_s - 3 * _BACK_S]:
                del self._seen[gone]
            self._orders(now_s)
            self._compare(now_s, calm=calm)
        self._judge_events(now_s)

    def _take(self, d: Stored) -> None:
        self._seen[d.id] = d.at_s
        self.decisions.append(d)
        key = (d.workload, d.desired, d.fence)
        self._stored[key] = min(d.at_s, self._stored.get(key, d.at_s))
        low, high = self.limits[d.workload]
        if not low <= d.desired <= high:
            self.break_rule(1, d.id, f"{d.workload} was to have {d.desired}, not {low} to {high}: {d.id}")
        if d.desired < d.current and not d.has_demand:
            self.break_rule(2, d.id, f"{d.workload} went {d.current} to {d.desired} without demand: {d.id}")
        before = self.newest.get(d.workload)
        if before is not None and d.fence < before.fence:
            self.break_rule(3, d.id, f"{d.workload} was decided under {d.fence} after {before.fence}: {d.id}")
        self.newest[d.workload] = d

    def _orders(self, now_s: float) -> None:
        for order, at_s in zip(
            self.fleet.orders[self._orders_seen :], self.fleet.ordered_s[self._orders_seen :], strict=True
        ):
            self._orders_seen += 1
            if not order.applied or not order.workload:  # a claim of a leader that has no workloads yet
                continue
            newest = self._fences.get(order.workload, 0)
            if order.fence < newest:
                self.break_rule(3, f"{order}", f"the fleet took {order} after token {newest}")
            self._fences[order.workload] = order.fence
            if order.kind == "scale" and order.replicas is not None:
                self._open_orders.append((order.workload, order.replicas, order.fence, at_s))
        unknown: list[tuple[str, int, int, float]] = []
        for workload, replicas, fence, at_s in self._open_orders:
            stored_s = self._stored.get((workload, replicas, fence))
            if stored_s is not None and stored_s <= at_s + 0.5 + self.harm.wrong_s(at_s):
                continue
            if now_s - at_s > 30.0:  # it was stored before, so that by now it must have been read
                what = f"{workload} was given {replicas} under {fence} without a decision before it"
                self.break_rule(4, f"{workload} {replicas} {fence}", what)
            else:
                unknown.append((workload, replicas, fence, at_s))
        self._open_orders = unknown

    def apart(self) -> dict[str, tuple[int, int]]:
        """Workloads of which another count is stored than the fleet has: stored, there."""
        return {
            name: (d.desired, self.fleet.desired(name))
            for name, d in self.newest.items()
            if d.desired != self.fleet.desired(name)
        }

    def _compare(self, now_s: float, *, calm: bool) -> None:
        apart = self.apart() if calm else {}
        for name in [name for name in self._apart_since if name not in apart]:
            del self._apart_since[name]
        for name, (stored, there) in apart.items():
            lasted_s = now_s - self._apart_since.setdefault(name, now_s)
            self.drift_s_max = max(self.drift_s_max, lasted_s)
            if lasted_s > DRIFT_S:
                self.break_rule(
                    6, f"{name} {now_s:.0f}", f"{name}: stored {stored}, there {there}, for {lasted_s:.0f} s"
                )
                self._apart_since[name] = now_s

    # ---------------------------------------------------------------- events

    def _judge_events(self, now_s: float) -> None:
        for event in self.events.values():
            if event.judged or event.cancelled or event.asked:
                continue
            from_s = event.due_s + _GRACE_S + self.harm.wrong_s(event.due_s)
            if now_s < from_s:
                continue
            event.judged = True
            # Told too late to hold anybody to it; or only now known to stand, where who looks may look after its end.
            if event.acknowledged_s > event.due_s - self.notice_s or now_s > min(
                from_s + _LATE_S, event.end_s
            ):
                self.unjudged += 1
                continue
            for name in event.workloads:
                warm = self.fleet.warm(name)
                if warm >= event.need:
                    self.met += 1
                else:
                    self._late[name, event.id] = f"{warm} of {event.need} were warm for {event.id} at {name}"

    async def finish(self) -> dict[str, int]:
        """Hold the whole record against the rules that need all of it; return what was counted."""
        contracts = {(w, o): json.loads(body) for w, o, body in await self._rows(CONTRACTS)}
        for (name, event_id), sentence in self._late.items():
            contract = contracts.get((name, event_id), {})
            # Met after the deadline is named as well: the time it was met stands in the contract.
            if contract.get("state") == "SHORT" or not contract.get("met_at") or _met_late(contract):
                self.short.append(sentence)
            else:
                self.break_rule(5, f"{name} {event_id}", f"{sentence}, and its contract says {contract}")
        self._floors_held()
        self._silences_held()
        for name, desired in await self._rows(STATES):
            if name in self.newest and (desired, desired) != (
                self.newest[name].desired,
                self.fleet.desired(name),
            ):
                what = (
                    f"state {desired}, decision {self.newest[name].desired}, fleet {self.fleet.desired(name)}"
                )
                self.break_rule(6, f"{name} at the end", f"{name}: {what}")
        return {"events_lost": await self._events_lost()}

    def _floors_held(self) -> None:
        by_workload: defaultdict[str, list[Stored]] = defaultdict(list)
        for d in self.decisions:
            by_workload[d.workload].append(d)
        for event in self.events.values():
            if event.cancelled or event.acknowledged_s > event.due_s - self.notice_s:
                continue
            for name in event.workloads:
                for d in by_workload[name]:
                    grace_s = _GRACE_S + self.harm.wrong_s(d.at_s)
                    inside = event.due_s + grace_s <= d.at_s <= event.end_s - grace_s
                    if inside and d.desired < event.need:
                        what = (
                            f"{name} was to have {d.desired} in {event.id}, which needs {event.need}: {d.id}"
                        )
                        self.break_rule(5, d.id, what)

    def _silences_held(self) -> None:
        for name, began_s, ended_s in self.harm.silences:
            for d in self.decisions:
                grace_s = _GRACE_S + self.harm.wrong_s(d.at_s)
                blind = began_s + SIGNAL_AGE_S + grace_s <= d.at_s <= ended_s - grace_s
                if d.workload == name and blind and d.desired < d.current:
                    what = f"{name} went {d.current} to {d.desired} while no replica answered: {d.id}"
                    self.break_rule(2, d.id, what)

    async def _events_lost(self) -> int:
        stored = {row[0]: row[1:] for row in await self._rows(EVENTS)}
        revisions = set(await self._rows(REVISIONS))
        lost = 0
        for event in self.events.values():
            revision, state, text = stored.get(event.id, (0, "", "{}"))
            body = json.loads(text)
            same = (
                revision == event.revision
                and (state == "CANCELLED") == event.cancelled
                and body.get("expected_peak_qps") == event.peak_qps
                and all((event.id, number) in revisions for number in range(1, event.revision + 1))
            )
            if not same:
                lost += 1
                what = f"{event.id} was acknowledged as {event.revision}, stored is {revision} {state}"
                self.break_rule(7, event.id, what)
        return lost


def _met_late(contract: dict[str, Any]) -> bool:
    return str(contract.get("met_at")) > str(contract.get("deadline_at"))
