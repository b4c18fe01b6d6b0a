"""Say what was decided, and why, as Kubernetes Events on the target, where its owner looks first.

Promises: one Event per thing said; what is said again within ``SERIES_S`` becomes a series on the first; at most
``BURST`` Events at once and one per ``REFILL_S`` besides, per target; at most ``WAITING_MAX`` wait at all. Never holds
the loop up and never fails it: an Event that cannot be written is counted and gone; the ledger has every decision
besides. Refuses nothing. Hears of each cycle through the `Witness` port.
"""

import asyncio
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from controller.actuators.kubernetes.actuator import KubernetesActuator
from controller.actuators.kubernetes.api import KubeApi, Object
from controller.core.types import Alarm, Decision, FleetState, Mode, Workload
from controller.ports import Clock, NotFoundError, PortError

log = logging.getLogger(__name__)

CONTROLLER: Final = "forecrest.dev/controller"
SERIES_S: Final = 360.0
SERIES_PATCH_S: Final = 60.0  # a series that goes on and on is counted here, and told this often
BURST: Final = 10
REFILL_S: Final = 30.0
WAITING_MAX: Final = 256
SERIES_MAX: Final = 4096
NOTE_CHARS_MAX: Final = 1000
# Conditions that are worth an Event of their own, whatever was decided.
_SAID: Final = {"SHORTFALL": "Shortfall", "COMPETING_OWNER": "CompetingOwner"}


@dataclass(frozen=True, slots=True)
class Said:
    """One thing to say. ``reason`` is for machines, ``note`` for people."""

    reason: str
    note: str
    is_warning: bool = False


@dataclass(slots=True)
class _Series:
    path: str
    count: int
    last_s: float
    told_s: float


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float


@dataclass(frozen=True, slots=True)
class _Waiting:
    workload: Workload
    said: Said
    at: datetime


def of_decision(decision: Decision, *, ordered: bool, problem: str | None) -> Iterator[Said]:
    """What a decision has to say: the order it led to, and what stands in its way."""
    floor = decision.mode is Mode.FLOOR
    up = decision.desired_replicas > decision.current_replicas
    if problem is not None:
        yield Said("OrderRefused", f"{decision.sentence} It could not be done: {problem}", is_warning=True)
    elif ordered and decision.desired_replicas == decision.current_replicas:
        yield Said("FloorRestored" if floor else "Rescaled", decision.sentence)
    elif ordered:
        names = ("FloorRaised", "FloorLowered") if floor else ("ScaledUp", "ScaledDown")
        yield Said(names[0] if up else names[1], decision.sentence)
    elif decision.mode is Mode.RECOMMEND and decision.desired_replicas != decision.current_replicas:
        yield Said("Recommended", decision.sentence)
    for condition in decision.conditions:
        if condition.reason in _SAID:
            yield Said(_SAID[condition.reason], condition.message, is_warning=True)


def of_alarm(alarm: Alarm) -> Said:
    """What an alarm has to say."""
    reason = "".join(part.capitalize() for part in alarm.kind.split("_"))
    return Said(
        reason, f"{alarm.subject}: {alarm.sentence}" if alarm.subject else alarm.sentence, is_warning=True
    )


def raised(before: FleetState, after: FleetState) -> Iterator[Alarm]:
    """Alarms that stand now and did not before."""
    for name, state in after.workloads.items():
        earlier = before.workloads.get(name)
        known = {a.key for a in earlier.alarms} if earlier is not None else set[str]()
        yield from (a for a in state.alarms if a.key not in known)


@dataclass(slots=True)
class EventRecorder:
    """Implements `controller.ports.Witness`. Start it with `run`; ``instance`` is this process's name."""

    actuator: KubernetesActuator
    api: KubeApi
    clock: Clock
    instance: str
    dropped_count: int = 0
    _waiting: "asyncio.Queue[_Waiting]" = field(default_factory=lambda: asyncio.Queue(WAITING_MAX))
    _series: dict[tuple[str, str, str], _Series] = field(default_factory=dict[tuple[str, str, str], _Series])
    _buckets: dict[str, _Bucket] = field(default_factory=dict[str, _Bucket])

    def saw(
        self,
        workloads: Sequence[Workload],
        decided: Sequence[Decision],
        outcomes: Mapping[str, str | None],
        before: FleetState,
        after: FleetState,
    ) -> None:
        """Queue what a cycle has to say; see the port."""
        by_name, now = {w.name: w for w in workloads}, self.clock.now()
        for decision in decided:
            ordered, problem = decision.id in outcomes, outcomes.get(decision.id)
            for said in of_decision(decision, ordered=ordered, problem=problem):
                self._put(by_name.get(decision.workload), said, now)
        for alarm in raised(before, after):
            self._put(by_name.get(alarm.workload), of_alarm(alarm), now)

    def _put(self, workload: Workload | None, said: Said, now: datetime) -> None:
        if workload is None:
            return
        try:
            self._waiting.put_nowait(_Waiting(workload, said, now))
        except asyncio.QueueFull:
            self.dropped_count += 1

    async def run(self) -> None:
        """Write what waits, for ever."""
        while True:
            item = await self._waiting.get()
            try:
                await self._write(item)
            except PortError as error:
                self.dropped_count += 1
                log.info("an Event of %s is not written: %s", item.workload.name, error)
            except Exception:  # a defect here must not end what is said later
                self.dropped_count += 1
                log.exception("an Event of %s is not written", item.workload.name)

    async def close(self) -> None:
        """Drop the connection."""
        await self.api.close()

    async def _write(self, item: _Waiting) -> None:
        regarding = await self.actuator.reference(item.workload)
        if regarding is None:
            self.dropped_count += 1  # no target, nothing to say it on
            return
        said, uid, now_s = item.said, str(regarding["uid"]), self.clock.monotonic()
        key = (uid, said.reason, said.note)
        series = self._series.get(key)
        if series is not None and now_s - series.last_s <= SERIES_S:
            series.count, series.last_s = series.count + 1, now_s
            if series.count > 2 and now_s - series.told_s < SERIES_PATCH_S:
                return
            series.told_s = now_s
            body: Object = {"series": {"count": series.count, "lastObservedTime": _micro(item.at)}}
            with suppress(NotFoundError):  # it has expired: the next word begins anew
                await self.api.patch(series.path, body)
                return
            del self._series[key]
        if not self._may(uid, now_s):
            self.dropped_count += 1
            return
        collection = f"/apis/events.k8s.io/v1/namespaces/{regarding['namespace']}/events"
        name = f"{regarding['name'][:200]}.{uuid.uuid4().hex[:16]}"
        await self.api.create(collection, self._body(name, regarding, item))
        if len(self._series) >= SERIES_MAX:
            self._series.clear()
        self._series[key] = _Series(f"{collection}/{name}", 1, now_s, now_s)

    def _body(self, name: str, regarding: Object, item: _Waiting) -> Object:
        said = item.said
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": regarding["namespace"]},
            "eventTime": _micro(item.at),
            "reportingController": CONTROLLER,
            "reportingInstance": self.instance[:128],
            "action": "Scale",
            "reason": said.reason,
            "regarding": regarding,
            "note": said.note[:NOTE_CHARS_MAX],
            "type": "Warning" if said.is_warning else "Normal",
        }

    def _may(self, uid: str, now_s: float) -> bool:
        """Take one token of this target's, if there is one."""
        if len(self._buckets) >= SERIES_MAX:
            self._buckets.clear()
        bucket = self._buckets.setdefault(uid, _Bucket(BURST, now_s))
        bucket.tokens = min(BURST, bucket.tokens + (now_s - bucket.at_s) / REFILL_S)
        bucket.at_s = now_s
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True


def _micro(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
