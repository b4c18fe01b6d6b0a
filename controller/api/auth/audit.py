"""What the audit log gets beside successful changes: refused and failed ones, and measurements in bulk.

Promises: a mutation that succeeded is logged in its own transaction (``usecases.calls``), so it is there exactly
if the change is; here come those that changed nothing, within seconds, and recorded measurements, one entry a
minute per caller and method. Memory is bounded: what repeats is counted, and beyond the bound only counted. While
the store is away entries wait. Called by the guard.
"""

import logging
from dataclasses import dataclass, replace
from datetime import datetime

from controller.core.resources import AuditEntry
from controller.ports import Clock, PortError, Store

log = logging.getLogger(__name__)

PENDING_MAX = 1000
FLUSH_PERIOD_S = 2.0
# Measurements come all the time; one entry says how many calls there were.
BULK_PERIOD_S = 60.0


@dataclass(slots=True)
class _Pending:
    entry: AuditEntry
    due_s: float


class AuditTrail:
    """Collects entries and writes them, each in a moment."""

    def __init__(self, store: Store, clock: Clock, pace: Clock) -> None:
        self._store, self._clock, self._pace = store, clock, pace
        self._pending: dict[tuple[str, ...], _Pending] = {}
        self.lost_count = 0

    def note(
        self, principal: str, method: str, resource: str, outcome: str, request_id: str, *, bulk: bool = False
    ) -> None:
        """Take an entry; ``bulk`` ones of one kind are written as one, a minute later."""
        key = (principal, method, outcome) if bulk else (principal, method, outcome, resource, request_id)
        held = self._pending.get(key)
        if held is not None:
            held.entry = replace(held.entry, count=held.entry.count + 1)
            return
        if len(self._pending) >= PENDING_MAX:
            self.lost_count += 1
            return
        entry = AuditEntry(
            at=self.now(),
            principal=principal,
            method=method,
            resource="" if bulk else resource,
            outcome=outcome,
            request_id="" if bulk else request_id,
        )
        self._pending[key] = _Pending(entry, self._pace.monotonic() + (BULK_PERIOD_S if bulk else 0.0))

    @property
    def pending_count(self) -> int:
        """Entries that wait to be written."""
        return len(self._pending)

    def now(self) -> datetime:
        """The time entries bear."""
        return self._clock.now()

    async def run(self) -> None:
        """Write what is due every few seconds, until cancelled."""
        while True:
            await self._pace.sleep(FLUSH_PERIOD_S)
            await self.flush()

    async def flush(self, *, everything: bool = False) -> None:
        """Write what is due, or all of it; what cannot be written now waits."""
        now_s = self._pace.monotonic()
        due = [key for key, held in self._pending.items() if everything or held.due_s <= now_s]
        if not due and not self.lost_count:
            return
        entries = [self._pending[key].entry for key in due]
        lost = self.lost_count
        if lost:
            entries.append(
                AuditEntry(
                    self.now(), "-", "-", "", "RESOURCE_EXHAUSTED", count=lost, detail="not kept one by one"
                )
            )
        try:
            async with self._store.unit_of_work() as uow:
                for entry in entries:
                    await uow.records.audit(entry)
                await uow.commit()
        except (PortError, ValueError) as error:
            log.warning("%d audit entries wait for the store: %s", len(entries), error)
            return
        self.lost_count -= lost
        for key, entry in zip(due, entries, strict=False):
            held = self._pending.pop(key)
            if held.entry.count > entry.count:  # counted up while it was written
                more = replace(held.entry, count=held.entry.count - entry.count)
                self._pending[key] = _Pending(more, held.due_s)
