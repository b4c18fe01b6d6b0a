"""What KEDA is told: a metric from which the HPA computes the decided count, and whether to run at all.

KEDA gives the HPA a metric with a target of 1 per replica, so the HPA wants ``ceil(metric)`` replicas. But it
ignores a metric within its tolerance (10 % by default) of the present count: 24 wanted where 22 run is a ratio
of 1.09, and nothing would happen. From ``n`` replicas an HPA therefore reaches only counts outside of that band,
whatever the metric, and no metric takes it from 22 to 24. ``metric_for`` names the smallest count it does reach
that is not below the decision: 25. Where the HPA's tolerance is 0 that is the decision itself.

Promises: never a metric that lets the HPA go below the decision; nothing made up where no recent decision is
known: the poll fails, and KEDA's own fallback takes over. Called by the KEDA servicer.
"""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta

from controller.core.resources import Page
from controller.core.types import Decision, Mode, Workload
from controller.ports import Store, UnavailableError
from controller.usecases.caller import caller
from controller.usecases.errors import MissingError, PreconditionError, UseCaseError
from controller.usecases.workloads import find_workload

# The HPA computes in thousandths.
_MILLI = 1000
# Versions of the HPA differ in whether the edge of the band belongs to it: keep clear of it.
_EDGE = 1e-6
# Modes in which somebody else owns the replica count.
_MODES = frozenset({Mode.KEDA, Mode.FLOOR})


class StaleError(UseCaseError):
    """Nothing recent enough is known to answer with."""

    code = "UNAVAILABLE"


def metric_for(desired: int, current: int | None, tolerance: float) -> float:
    """Return the metric, in replicas, for a target of 1: the HPA's count is its ceiling, and never below ``desired``.

    ``current``: replicas the HPA compares with; None or 0: unknown or none, when no tolerance applies.
    """
    if not current or desired in {0, current}:
        return float(desired)
    low, high = current * (1 - tolerance - _EDGE), current * (1 + tolerance + _EDGE)
    if desired > current:
        return float(max(desired, math.floor(high) + 1))
    # Going down, any metric above desired - 1 asks for `desired`; one just above it leaves the band soonest.
    for replicas in range(desired, current):
        if replicas <= low:
            return float(replicas)
        middle = replicas - 1 + (low - (replicas - 1)) / 2
        metric = math.floor(middle * _MILLI) / _MILLI
        if replicas - 1 < metric <= low:
            return metric
    return float(current)


@dataclass(frozen=True, slots=True)
class _Answer:
    workload: Workload
    decision: Decision | None


class Answers:
    """Newest decisions, from the store or, while it is away, as last read from it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, _Answer] = {}

    async def decision(self, name: str, now: datetime, age_max: timedelta) -> tuple[Workload, Decision]:
        """The decision in force.

        Raise MissingError for an unknown workload, PreconditionError where the mode says that KEDA is not
        asked, StaleError when there is no decision of at most ``age_max``.
        """
        try:
            answer = await self._read(name)
        except UnavailableError as error:
            if name not in self._known or not caller().may_use(self._known[name].workload.namespace):
                raise StaleError(
                    "NO_FRESH_DECISION", "the database is away and nothing is known yet; try again"
                ) from error
            answer = self._known[name]
        decision = answer.decision
        if decision is None or now - decision.at > age_max:
            since = "yet" if decision is None else f"since {decision.at:%Y-%m-%d %H:%M:%S} UTC"
            raise StaleError(
                "NO_FRESH_DECISION", f"no decision on workloads/{name} {since}; check that the loop runs"
            )
        if answer.workload.mode not in _MODES:
            raise PreconditionError(
                "MODE_NOT_KEDA",
                f"workloads/{name} is in mode {answer.workload.mode}, in which KEDA must not scale it; set "
                "MODE_KEDA, or remove the ScaledObject",
            )
        return answer.workload, decision

    async def _read(self, name: str) -> _Answer:
        async with self._store.unit_of_work() as uow:
            try:
                workload = await find_workload(uow, name)
            except MissingError:
                if caller().namespaces is None:  # to anybody else it may only look missing
                    self._known.pop(name, None)
                raise
            rows, _ = await uow.decisions.list(workload=name, page=Page(1))
        answer = _Answer(workload, rows[0][0] if rows else None)
        self._known[name] = answer
        return answer
