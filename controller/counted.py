"""How many replicas of a workload are warm, from messages of the API: one rule for every client that shows it.

Promises: the newest count that there is, with the time it was made; what nobody counted is None, never 0. The loop
counts at every tick and keeps that where it may be lost; a contract counts while an event is prepared; a decision counts
when it is recorded, which is on a change or every five minutes. Called by the console and by ``top``.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from forecrest.v1 import control_pb2, event_pb2

# A count short of the replicas asked for may have grown since, when it is older than this.
OLD = timedelta(seconds=30)
_OVER = frozenset({event_pb2.CONTRACT_STATE_COMPLETED, event_pb2.CONTRACT_STATE_FIZZLED})


@dataclass(frozen=True, slots=True)
class Counted:
    """Replicas as they were at ``at``. None: not counted there."""

    at: datetime
    warm: int
    starting: int | None
    draining: int | None = None

    def is_old(self, desired: int | None, now: datetime) -> bool:
        """Whether it falls short of ``desired`` and may have grown since."""
        return desired is not None and self.warm < desired and now - self.at > OLD


def contract_now(status: control_pb2.WorkloadStatus | None, now: datetime) -> event_pb2.Contract | None:
    """Return the contract that is in force or comes next."""
    ahead = [
        one
        for one in (status.contracts if status else ())
        if one.state not in _OVER and one.end_time.ToDatetime(UTC) > now
    ]
    return min(ahead, key=lambda one: one.start_time.ToDatetime(UTC), default=None)


def counted(
    status: control_pb2.WorkloadStatus | None, decision: control_pb2.Decision | None, now: datetime
) -> Counted | None:
    """Return the newest count of a workload's replicas; None: unknown."""
    found: list[Counted] = []
    if decision is not None and decision.HasField("warm_replicas"):
        starting = decision.in_flight_replicas if decision.HasField("in_flight_replicas") else None
        found.append(Counted(decision.decide_time.ToDatetime(UTC), decision.warm_replicas, starting))
    contract = contract_now(status, now)
    if (
        status is not None
        and contract is not None
        and contract.ordered_count
        and status.HasField("last_time")
    ):
        starting = contract.ordered_count - contract.verified_count
        found.append(Counted(status.last_time.ToDatetime(UTC), contract.verified_count, starting))
    if status is not None and status.HasField("replicas"):
        seen = status.replicas
        at = seen.observe_time.ToDatetime(UTC)
        found.append(Counted(at, seen.warm_count, seen.starting_count, seen.draining_count))
    # Of two of the same tick the later one here, which says more.
    return max(reversed(found), key=lambda one: one.at, default=None)
