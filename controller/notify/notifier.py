"""Write down what is to be told, and tell it.

Promises: what a tick brings is stored in the tick's own transaction, once per sink; only the leader claims, under its
fencing token; a claim that was not settled, because its leader ended, comes free after ``CLAIM``; a delivery is tried
``ATTEMPTS_MAX`` times with growing pauses and given up after ``AGE_MAX`` at the latest. So a sink gets each notification at
least once or sees it dead in the listing, and twice only if a leader ended between its sending and its settling: the id
tells. One sink holds up another for one timeout at most. Called by the control loop and the runner.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from controller.core.types import FleetState, Workload
from controller.notify.alarms import moved_keys
from controller.notify.config import Sink
from controller.notify.milestones import news
from controller.notify.types import Backlog, Delivery, DeliveryState
from controller.ports import (
    Clock,
    NotificationSink,
    PortError,
    SinkBusyError,
    SinkRefusedError,
    Store,
    UnitOfWork,
)

log = logging.getLogger(__name__)

HOLD = timedelta(minutes=10)
ATTEMPTS_MAX = 10
PAUSE = timedelta(seconds=5)
PAUSE_MAX = timedelta(minutes=10)
AGE_MAX = timedelta(hours=2)
# Longer than any attempt takes, its settling included.
CLAIM = timedelta(seconds=120)
# Of one sink in one turn, all sent at once.
BATCH = 10


class Notifier:
    """What the loop tells, and its sinks by name."""

    def __init__(
        self,
        store: Store,
        sinks: Sequence[Sink],
        senders: Mapping[str, NotificationSink],
        clock: Clock,
        *,
        hold: timedelta = HOLD,
    ) -> None:
        """``hold``: an alarm that comes back within so long never went."""
        self._store, self._clock, self._hold = store, clock, hold
        self._sinks, self._senders = tuple(sinks), dict(senders)
        # Of this process, by (sink, outcome); and what the newest turn found waiting; for metrics.
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.backlogs: Mapping[str, Backlog] = {}

    async def record(
        self,
        uow: UnitOfWork,
        before: FleetState,
        after: FleetState,
        workloads: Sequence[Workload],
        now: datetime,
    ) -> None:
        """Write down, in the transaction of a tick, what it brings to tell and to whom."""
        known = {w.name: w for w in workloads}
        held = await uow.notifications.held(moved_keys(before, after, known), now - self._hold)
        found = news(before, after, known, now, held=held, hold=self._hold)
        await uow.notifications.add(
            [Delivery(sink.name, one) for one in found.told for sink in self._sinks if sink.wants(one)]
        )
        await uow.notifications.keep_held(found.kept, found.forgotten, now)

    async def turn(self, token: int) -> None:
        """Claim what is due under a fencing token, and send it; raise StaleFenceError if another leads."""
        now = self._clock.now()
        claimed: list[Delivery] = []
        async with self._store.unit_of_work() as uow:
            await uow.require_leader(token)
            await uow.notifications.expire(now - AGE_MAX, now, f"not delivered within {AGE_MAX}")
            for sink in self._sinks:
                claimed += await uow.notifications.claim(sink.name, now, now + CLAIM, BATCH)
            backlogs = await uow.notifications.backlogs()
            await uow.commit()
        self.backlogs = {sink.name: backlogs.get(sink.name, Backlog()) for sink in self._sinks}
        await asyncio.gather(*map(self._deliver, claimed))

    async def _deliver(self, claimed: Delivery) -> None:
        attempt = claimed.attempt_count
        if claimed.next_at is not None and self._clock.now() >= claimed.next_at:
            return  # we were stopped for so long that the claim is another's
        state, next_at, error, outcome = DeliveryState.DELIVERED, None, "", "delivered"
        try:
            await self._senders[claimed.sink].send(claimed.notification, attempt)
        except SinkRefusedError as refusal:
            state, error, outcome = DeliveryState.DEAD, str(refusal), "dead"
        except Exception as problem:  # of a sender that is broken, too: the others go on
            if not isinstance(problem, PortError):
                log.exception("sink %s failed", claimed.sink)
            error = (
                str(problem) if isinstance(problem, PortError) else f"unexpected: {type(problem).__name__}"
            )
            state, outcome = DeliveryState.PENDING, "retried"
            next_at = self._clock.now() + _pause(attempt, problem)
            if attempt >= ATTEMPTS_MAX:
                state, next_at, outcome = DeliveryState.DEAD, None, "dead"
        if error:
            log.warning(
                "notification %s, attempt %d at sink %s: %s",
                claimed.notification.id,
                attempt,
                claimed.sink,
                error,
            )
        self.outcomes[claimed.sink, outcome] += 1
        try:
            async with self._store.unit_of_work() as uow:
                # No fence: the attempt tells whether the claim is still ours, and what was delivered was.
                await uow.notifications.settle(
                    claimed, state, self._clock.now(), next_at=next_at, error=error
                )
                await uow.commit()
        except PortError as problem:
            log.warning("notification %s will be sent again: %s", claimed.notification.id, problem)

    async def close(self) -> None:
        """Release the sinks' connections."""
        for sender in self._senders.values():
            await sender.close()


def _pause(attempt: int, problem: Exception) -> timedelta:
    """Doubles with every attempt, varied so that many do not come at once; a receiver's own word counts."""
    pause: timedelta = min(PAUSE_MAX, PAUSE * 2 ** min(attempt - 1, 10)) * random.uniform(0.8, 1.2)
    asked = problem.after if isinstance(problem, SinkBusyError) else None
    return pause if asked is None else max(pause, asked)
