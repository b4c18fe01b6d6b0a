"""One reader per server for all watch streams: a change signal or the poll period wakes it, the store tells.

Promises: watchers cost no reads of their own, so a thousand streams read the store as often as one; a lost
signal costs at most one poll period; a watcher of decisions that falls behind by its bounded queue is told
so, a watcher of an event or a forecast gets the newest view and may miss those between. A stream that is
opened again with the last resume token goes on where it was, on any server. Reads nothing while nobody
watches. Called by the watching servicers and the server.
"""

import asyncio
import base64
import binascii
import hashlib
import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from controller.api.calls import ApiDependencies
from controller.api.errors import StoppingError, StreamLimitError
from controller.core.resources import EventState, ForecastRun, Page, TrafficEvent
from controller.core.types import Contract, ForecastBand, Replica
from controller.ports import NotFoundError, PortError, UnitOfWork
from controller.usecases.caller import Caller, caller
from controller.usecases.decisions import Decided
from controller.usecases.errors import InvalidError, MissingError, Violation
from controller.usecases.events import find_event, missing_event, prewarming
from controller.usecases.occurrences import event_id_of, state_at
from controller.usecases.topics import CHANGES
from controller.usecases.workloads import LIST_REMEDY, find_workload

log = logging.getLogger(__name__)

# A decision is committed after the time it bears; look back this far for late ones.
OVERLAP = timedelta(seconds=60)
PAGE_SIZE = 1000
# One read must reach back over the whole overlap, and what was seen must outlast it, or decisions are missed or told
# twice: twenty thousand workloads that change at every tick of five seconds make 240 000 decisions in a minute.
PAGES_MAX = 300
SEEN_MAX = 400_000
# A stream that missed more than this is told to begin anew.
MISSED_MAX = 10_000
TOKEN_LENGTH_MAX = 1024
# After these no message will follow, so the stream ends.
OVER = frozenset({EventState.COMPLETED, EventState.CANCELLED})


@dataclass(frozen=True, slots=True)
class EventView:
    """An event and its prewarm: per workload the contract and the replicas it waits for."""

    event: TrafficEvent
    prewarms: tuple[tuple[str, Contract, tuple[Replica, ...]], ...]


def token_of(kind: str, *parts: str) -> str:
    """Return an opaque resume token of a stream of this kind, holding ``parts`` (without line breaks)."""
    return base64.urlsafe_b64encode("\n".join((kind, *parts)).encode()).decode()


def parts_of(kind: str, token: str, count: int) -> tuple[str, ...]:
    """Return the ``count`` parts that ``token_of`` was given; raise InvalidError for any other token."""
    try:
        text = base64.urlsafe_b64decode(token[:TOKEN_LENGTH_MAX]).decode()
    except (binascii.Error, ValueError):
        text = ""
    found, *parts = text.split("\n")
    if found != kind or len(parts) != count:
        raise _bad_token()
    return tuple(parts)


def _bad_token() -> InvalidError:
    remedy = "is not a token of this stream; send the last resume_token received, or leave it empty to begin"
    return InvalidError([Violation("resume_token", remedy)])


def event_token(view: EventView) -> str:
    """Return the resume token of a view of an event: equal views have equal tokens, on every server."""
    return token_of("event", view.event.id, hashlib.sha256(repr(view).encode()).hexdigest()[:32])


def _decision_key(token: str) -> tuple[datetime, str]:
    at, decision_id = parts_of("decisions", token, 2)
    try:
        key = datetime.fromisoformat(at)
    except ValueError as error:
        raise _bad_token() from error
    if key.tzinfo is None:
        raise _bad_token()
    return key, decision_id


# Whether a caller sees all of some workloads.
Sees = Callable[[Caller, Sequence[str]], Awaitable[bool]]


async def _sees_all(who: Caller, workloads: Sequence[str]) -> bool:
    del who, workloads
    return True


Forecasted = tuple[ForecastRun, ForecastBand]
# What is in the queue in place of a decision ends the stream; None: look at why.
_Queue = asyncio.Queue[Decided | MissingError | None]


class Feed:
    """The reader and its watchers."""

    def __init__(self, deps: ApiDependencies, sees: Sees | None = None) -> None:
        """``sees`` says which workloads the caller who watches may see; without it, all."""
        self._deps, self._limits = deps, deps.limits
        self._sees = sees or _sees_all
        self._latest: dict[str, Decided] = {}
        # Who watches decisions, and of which workload; None: of all.
        self._queues: dict[_Queue, str | None] = {}
        self._views: dict[str, EventView] = {}
        self._event_watchers: Counter[str] = Counter()
        self._forecasts: dict[str, Forecasted] = {}
        self._forecast_watchers: Counter[str] = Counter()
        self._deleted: frozenset[str] = frozenset()  # of the watched workloads, at the newest look
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._cursor_at: datetime | None = None
        self._reading = asyncio.Lock()
        self._wake = asyncio.Event()
        self._turn = asyncio.Event()
        self._stopping = False
        self.stream_count = 0

    # ------------------------------------------------------------ watching

    async def decisions(
        self, workload: str | None, *, changes_only: bool = False, resume_token: str = ""
    ) -> AsyncGenerator[tuple[Decided, bool, str]]:
        """Yield the newest decision per workload (True), then each one as it is made (False), with its token.

        With a token there is no snapshot: what was decided after it comes first, by time. Tokens are empty
        until the snapshot is complete. ``changes_only`` holds for everything but the snapshot. Raise
        InvalidError for a token that is none, MissingError for a workload that does not exist or is deleted
        meanwhile, StreamLimitError when there are too many streams, this one cannot keep up, or missed too much,
        StoppingError when the server goes away.
        """
        after = _decision_key(resume_token) if resume_token else None
        queue: _Queue = asyncio.Queue(self._limits.stream_queue_max)
        who = caller()
        with self._admitted():
            await self._begin(who, workload)
            # No await between joining and copying: nothing is missed and nothing comes twice.
            self._queues[queue] = workload
            latest = [row for name, row in sorted(self._latest.items()) if workload in {None, name}]
            try:
                latest = [row for row in latest if await self._sees(who, [row[0].workload])]
                newest = after
                if after is None:
                    newest = max((_key(row) for row in latest), default=None)
                    for index, decided in enumerate(latest, start=1):
                        yield decided, True, _token(newest) if index == len(latest) else ""
                missed = [] if after is None else await self._missed(workload, after, changes_only)
                given = {row[0].id for row in missed}
                for decided in missed:
                    newest = _key(decided)
                    yield decided, False, _token(newest)
                while True:
                    entry = await self._next(queue)
                    if workload not in {None, entry[0].workload} or entry[0].id in given:
                        continue
                    # The reader looks back a little; whoever resumes has had that.
                    if (changes_only and not entry[0].changes) or (
                        after is not None and _key(entry) <= after
                    ):
                        continue
                    if not await self._sees(who, [entry[0].workload]):
                        continue
                    newest = max(_key(entry), newest or _key(entry))
                    yield entry, False, _token(newest)
            finally:
                self._queues.pop(queue, None)

    async def _next(self, queue: _Queue) -> Decided:
        """Return what comes next, or raise why nothing does."""
        entry = await queue.get()
        if entry is None:
            raise self._ended()
        if isinstance(entry, MissingError):
            raise entry
        return entry

    async def _missed(
        self, workload: str | None, after: tuple[datetime, str], changes_only: bool
    ) -> list[Decided]:
        """Return the decisions behind ``after`` that the caller sees, oldest first."""
        who = caller()
        found: list[Decided] = []
        token = ""
        async with self._deps.store.unit_of_work() as uow:
            for _ in range(PAGES_MAX):  # also of what the caller does not see
                rows, token = await uow.decisions.list(
                    workload=workload,
                    start_at=after[0],
                    changes_only=changes_only,
                    page=Page(PAGE_SIZE, token),
                )
                behind = [row for row in rows if _key(row) > after]
                found += [row for row in behind if await self._sees(who, [row[0].workload])]
                if len(found) > MISSED_MAX:
                    break
                if not token:
                    return found[::-1]
        message = f"more than {MISSED_MAX} decisions were made since; begin without a token and list them"
        raise StreamLimitError("WATCHER_TOO_SLOW", message)

    async def event(self, event_id: str, resume_token: str = "") -> AsyncGenerator[EventView]:
        """Yield the event's view, then its newest view after every change, until it is over.

        With the token of the newest view the first is left out. Raise InvalidError, MissingError,
        StreamLimitError or StoppingError.
        """
        if resume_token:
            parts_of("event", resume_token, 2)
        with self._admitted():
            async with self._deps.store.unit_of_work() as uow:
                view = (await self._read_views(uow, [event_id], self._deps.clock.now()))[event_id]
            who = caller()
            await self._require(who, view)
            self._event_watchers[event_id] += 1
            try:
                if resume_token != event_token(view):
                    yield view
                while view.event.state not in OVER:
                    turn = self._turn
                    newest = self._views.get(event_id, view)
                    if newest != view:
                        view = newest
                        await self._require(who, view)
                        yield view
                        continue
                    await turn.wait()
                    if self._stopping:
                        raise self._ended()
            finally:
                self._event_watchers[event_id] -= 1
                if not self._event_watchers[event_id]:
                    del self._event_watchers[event_id]
                    self._views.pop(event_id, None)

    async def forecast(
        self, workload: str, resume_token: str = ""
    ) -> AsyncGenerator[tuple[Forecasted, bool, str]]:
        """Yield the workload's newest forecast (True), then every newer one that is seen (False), with its token.

        With the token of the newest forecast that one is left out. Raise InvalidError, MissingError,
        StreamLimitError or StoppingError.
        """
        held = ""
        if resume_token:
            of, held = parts_of("forecast", resume_token, 2)
            if of != workload:
                raise _bad_token()
        who = caller()
        with self._admitted():
            async with self._deps.store.unit_of_work() as uow:
                await self._require_workload(uow, who, workload)
                found = await uow.forecasts.latest(workload)
            self._forecast_watchers[workload] += 1
            try:
                snapshot = not resume_token
                while True:
                    turn = self._turn
                    # The reader may know a newer one by now, or an older one.
                    known = self._forecasts.get(workload)
                    newest = max(filter(None, (found, known)), key=_made, default=None)
                    if newest is not None and newest[0].id != held:
                        found, held = newest, newest[0].id
                        if not await self._sees(who, [workload]):
                            raise MissingError(f"workloads/{workload}", LIST_REMEDY)
                        yield newest, snapshot, token_of("forecast", workload, held)
                    snapshot = False
                    await turn.wait()
                    if self._stopping:
                        raise self._ended()
                    if workload in self._deleted:
                        raise _deleted(workload)
            finally:
                self._forecast_watchers[workload] -= 1
                if not self._forecast_watchers[workload]:
                    del self._forecast_watchers[workload]
                    self._forecasts.pop(workload, None)

    async def _require_workload(self, uow: UnitOfWork, who: Caller, workload: str) -> None:
        """Raise MissingError unless the workload exists, for this caller."""
        if not await self._sees(who, [workload]):
            raise MissingError(f"workloads/{workload}", LIST_REMEDY)
        await find_workload(uow, workload)

    async def _require(self, who: Caller, view: EventView) -> None:
        """Raise what a missing event raises unless the caller sees all of its workloads."""
        if not await self._sees(who, view.event.workloads):
            raise missing_event(view.event.id)

    @contextmanager
    def _admitted(self) -> Generator[None]:
        if self._stopping:
            raise self._ended()
        if self.stream_count >= self._limits.streams_max:
            message = f"{self._limits.streams_max} streams are open, the most this server holds; close some"
            raise StreamLimitError("TOO_MANY_STREAMS", message)
        self.stream_count += 1
        try:
            yield
        finally:
            self.stream_count -= 1

    def _ended(self) -> StoppingError | StreamLimitError:
        if self._stopping:
            return StoppingError("SERVER_STOPPING", "this server is stopping; open the stream again")
        message = "decisions came faster than they were read; open the stream again and list what is missing"
        return StreamLimitError("WATCHER_TOO_SLOW", message)

    # ------------------------------------------------------------ reading

    def stop(self) -> None:
        """End every stream with StoppingError."""
        self._stopping = True
        for queue in self._queues:
            _end(queue)
        self._advance()

    async def listen(self) -> None:
        """Wake the reader at every change signal, until cancelled."""
        while True:
            try:
                async for _ in self._deps.signals.subscribe(CHANGES):
                    self._wake.set()
            except PortError as error:
                log.warning("no change signals, watchers poll: %s", error)
            except Exception:  # watchers still poll; what it was is in the log
                log.exception("listening for change signals failed")
            await self._deps.pace.sleep(self._limits.poll_period_s)

    async def read(self) -> None:
        """Read for the watchers at every signal or poll period, until cancelled."""
        while True:
            await self._wait()
            if not self._queues:
                self._cursor_at = None  # the next watcher begins anew instead of reading all that time
            if not self._queues and not self._event_watchers and not self._forecast_watchers:
                continue
            try:
                await self.refresh()
            except PortError as error:
                log.warning("watchers wait for the store: %s", error)
            except Exception:  # a defect of one turn must not end every stream; it is logged
                log.exception("a turn of the watch feed failed")

    async def _wait(self) -> None:
        waits = {
            asyncio.ensure_future(self._wake.wait()),
            asyncio.ensure_future(self._deps.pace.sleep(self._limits.poll_period_s)),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._wake.clear()

    async def refresh(self) -> None:
        """Read once and hand out what is new."""
        now = self._deps.clock.now()
        async with self._reading, self._deps.store.unit_of_work() as uow:
            if self._queues and self._cursor_at is not None:
                # Handed out before anything else can fail: they are remembered as seen.
                for decided in await self._read_decisions(uow, self._cursor_at - OVERLAP):
                    for queue in self._queues:
                        _offer(queue, decided)
            views = await self._read_views(uow, list(self._event_watchers), now)
            await self._read_forecasts(uow)
            await self._find_deleted(uow)
        self._views.update((key, view) for key, view in views.items() if key in self._event_watchers)
        self._advance()

    def _advance(self) -> None:
        turn, self._turn = self._turn, asyncio.Event()
        turn.set()

    async def _begin(self, who: Caller, workload: str | None) -> None:
        """Learn the newest decision of every workload, unless the reader is up to date already.

        Raise MissingError if ``workload`` does not exist.
        """
        if workload is not None:
            async with self._deps.store.unit_of_work() as uow:
                await self._require_workload(uow, who, workload)
        async with self._reading:
            if self._cursor_at is not None:
                return
            now = self._deps.clock.now()
            async with self._deps.store.unit_of_work() as uow:
                workloads = (await uow.workloads.list())[0]
                self._latest.clear()
                for one in workloads:
                    rows, _ = await uow.decisions.list(workload=one.name, page=Page(1))
                    self._latest.update((row[0].workload, row) for row in rows)
                newest = max((row[0].at for row in self._latest.values()), default=now)
                await self._read_decisions(uow, newest - OVERLAP)
            self._cursor_at = newest

    async def _read_decisions(self, uow: UnitOfWork, start_at: datetime) -> list[Decided]:
        """Return decisions not seen before, oldest first, and remember them."""
        found: list[Decided] = []
        token = ""
        for _ in range(PAGES_MAX):
            rows, token = await uow.decisions.list(start_at=start_at, page=Page(PAGE_SIZE, token))
            found += [row for row in rows if row[0].id not in self._seen]
            if not token:
                break
        found.reverse()
        for row in found:
            decision = row[0]
            self._seen[decision.id] = None
            held = self._latest.get(decision.workload)
            if held is None or held[0].at <= decision.at:
                self._latest[decision.workload] = row
        while len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)
        if found:
            last = found[-1][0].at
            self._cursor_at = last if self._cursor_at is None else max(self._cursor_at, last)
        return found

    async def _read_views(
        self, uow: UnitOfWork, event_ids: Collection[str], now: datetime
    ) -> dict[str, EventView]:
        if not event_ids:
            return {}
        states = await uow.states.load()
        ordered = prewarming(states)
        events: dict[str, TrafficEvent] = {}
        for event_id in event_ids:
            event = await find_event(uow, event_id)
            events[event_id] = replace(event, state=state_at(event, now, ordered))
        contracts = {
            event.id: [
                (name, contract)
                for name in event.workloads
                if name in states
                for contract in states[name].contracts
                if event_id_of(contract.event_id) == event.id
            ]
            for event in events.values()
        }
        replicas = await self._replicas(uow, {name for pairs in contracts.values() for name, _ in pairs})
        return {
            key: EventView(
                event, tuple((name, contract, replicas.get(name, ())) for name, contract in contracts[key])
            )
            for key, event in events.items()
        }

    async def _read_forecasts(self, uow: UnitOfWork) -> None:
        """Read the newest forecast of watched workloads, where there is another than before."""
        ids = await uow.forecasts.newest(list(self._forecast_watchers)) if self._forecast_watchers else {}
        for workload, forecast_id in ids.items():
            held = self._forecasts.get(workload)
            if held is None or held[0].id != forecast_id:
                found = await uow.forecasts.latest(workload)
                if found is not None and workload in self._forecast_watchers:
                    self._forecasts[workload] = found

    async def _find_deleted(self, uow: UnitOfWork) -> None:
        """See which watched workloads are gone: nothing will follow, and their watchers must not wait for it."""
        watched = {*self._forecast_watchers, *filter(None, self._queues.values())}
        known = await uow.workloads.known(watched) if watched else set[str]()
        self._deleted = frozenset(watched - known)
        for queue, workload in list(self._queues.items()):
            if workload in self._deleted:
                # Behind what was decided before.
                _offer(queue, _deleted(workload))
                del self._queues[queue]

    async def _replicas(self, uow: UnitOfWork, names: Collection[str]) -> Mapping[str, tuple[Replica, ...]]:
        if self._deps.actuator is None or not names:
            return {}
        workloads = []
        for name in names:
            try:
                workloads.append(await uow.workloads.get(name))
            except NotFoundError:
                continue  # deleted while its event stands
        try:
            views = await self._deps.actuator.observe(workloads)
        except PortError as error:
            log.warning("replicas are not shown: %s", error)
            return {}
        return {name: view.replicas for name, view in views.items()}


def _made(forecasted: Forecasted) -> tuple[datetime, datetime]:
    return forecasted[0].origin_at, forecasted[0].created_at


def _key(decided: Decided) -> tuple[datetime, str]:
    return decided[0].at, decided[0].id


def _token(key: tuple[datetime, str] | None) -> str:
    return "" if key is None else token_of("decisions", key[0].isoformat(), key[1])


def _deleted(workload: str) -> MissingError:
    remedy = "it was deleted while it was watched; its decisions stay and can be listed"
    return MissingError(f"workloads/{workload}", remedy, "WORKLOAD_DELETED")


def _offer(queue: _Queue, entry: Decided | MissingError) -> None:
    try:
        queue.put_nowait(entry)
    except asyncio.QueueFull:
        _end(queue)


def _end(queue: _Queue) -> None:
    while not queue.empty():
        queue.get_nowait()
    queue.put_nowait(None)
