"""Answer "what if" on a workload's own stored demand: another policy, other bounds, load that did not come.

Promises: the production core and forecaster replay what is stored; nothing is written; one replay at a time, in a
process of its own that ends with its caller. Refuses changes that an update of the workload would refuse, and
windows without stored demand. Called by the API.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from controller.core.leadtime import StagePrior, estimate_lead_time
from controller.core.types import Event, Policy, Workload
from controller.ports import Store
from controller.study import Studies, Study, StudyResult, Variant, Window
from controller.usecases.engines import lead_priors as priors_of
from controller.usecases.engines import resolved_workload
from controller.usecases.errors import Findings, InvalidError, PreconditionError, UseCaseError, Violation
from controller.usecases.names import check_id
from controller.usecases.schedule import schedule
from controller.usecases.workload_rules import DAY, MINUTE, check_workload
from controller.usecases.workloads import find_workload

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
WINDOW_DEFAULT, WINDOW_MIN, WINDOW_MAX = DAY, HOUR, 7 * DAY
LEARN_DEFAULT, LEARN_MAX = 7 * DAY, 14 * DAY
COLD_START_MIN, COLD_START_MAX = timedelta(seconds=1), DAY
CHANGES_MAX, PEERS_MAX, EVENTS_MAX = 4, 4, 20
# Demand is replayed by the minute where that is little of it, else as the forecaster sees it.
FINE_MAX, COARSE = 3 * DAY, timedelta(minutes=5)
TIMELINE_DEFAULT, TIMELINE_MAX = 200, 2000
CURRENT = "current"
PEERS = (
    "forecrest-reactive",
    "hpa",
    "kpa",
    "keda-cron+hpa",
    "phpa",
    "dynamo-like",
    "last-value",
    "static-peak",
    "oracle",
)


class BusyError(UseCaseError):
    """Another simulation runs in this process."""

    code = "RESOURCE_EXHAUSTED"


@dataclass(frozen=True, slots=True)
class Change:
    """A what-if: None keeps what the workload has. ``policy`` makes the other policy from the stored one."""

    name: str
    policy: Callable[[Policy], Policy] | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None


@dataclass(frozen=True, slots=True)
class AddedLoad:
    """A what-if: load that did not come."""

    start_at: datetime
    end_at: datetime
    multiplier: float | None = None
    peak_qps: float | None = None
    announced: bool = False
    category: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """One simulation as asked for; None takes the default."""

    end_at: datetime | None = None
    window: timedelta | None = None
    learn: timedelta | None = None
    changes: tuple[Change, ...] = ()
    peers: tuple[str, ...] = ()
    loads: tuple[AddedLoad, ...] = ()
    cold_start: timedelta | None = None
    timeline_size: int = 0


@dataclass(frozen=True, slots=True)
class Simulated:
    """What was replayed and what came of it."""

    start_at: datetime
    end_at: datetime
    cold_start: timedelta
    capacity_qps: float
    unknown_share: float
    results: tuple[StudyResult, ...]


async def simulate(
    store: Store,
    studies: Studies,
    name: str,
    question: Question,
    now: datetime,
    lead_priors: Sequence[StagePrior],
) -> Simulated:
    """Replay; raise InvalidError, MissingError, PreconditionError or BusyError."""
    _check(question, now)
    study, unknown_share = await _study(store, name, question, now, lead_priors)
    if studies.running:
        raise BusyError(
            "SIMULATION_RUNNING", "another simulation runs on this server; try again when it has ended"
        )
    results = await studies.run(study)
    return Simulated(
        start_at=study.start_at + timedelta(seconds=study.score_from_s),
        end_at=study.start_at + timedelta(seconds=study.step_s * len(study.qps)),
        cold_start=timedelta(seconds=study.cold_start_s),
        capacity_qps=study.capacity_qps,
        unknown_share=unknown_share,
        results=results,
    )


async def _study(
    store: Store, name: str, question: Question, now: datetime, lead_priors: Sequence[StagePrior]
) -> tuple[Study, float]:
    """Return what is to be replayed, and the share of the scored window in which demand is unknown."""
    end_at = min(question.end_at or now, now)
    window = question.window or WINDOW_DEFAULT
    learn = LEARN_DEFAULT if question.learn is None else question.learn
    step = MINUTE if window + learn <= FINE_MAX else COARSE
    end_at -= (end_at - EPOCH) % step
    if end_at < EPOCH:
        raise _too_short(name)
    start_at = end_at - window
    _check_loads(question.loads, start_at, end_at)
    async with store.unit_of_work() as uow:
        await find_workload(uow, name)
        workload = await resolved_workload(
            uow, name
        )  # with the capacity that was measured, as the loop has it
        variants = _variants(workload, question.changes)
        span = await uow.traffic.span(name)
        if span is None or span[1] < start_at or span[0] >= end_at:
            raise _too_short(name)
        first_at = max(start_at - learn, span[0] - (span[0] - EPOCH) % step)
        demand = await uow.traffic.read(name, first_at, end_at, step=step)
        events = (await schedule(uow, first_at, end_at)).get(name, [])
        samples = await uow.warmups.recent(name)
        priors = await priors_of(uow, workload, lead_priors)
    scored = [qps for at, qps in demand if at >= start_at]
    if not any(qps is not None for qps in scored):
        raise _too_short(name)
    lead_s = max(1.0, estimate_lead_time(priors, samples).total_p95_s)
    study = Study(
        start_at=first_at,
        step_s=int(step.total_seconds()),
        qps=tuple(qps for _, qps in demand),
        score_from_s=max(timedelta(0), start_at - first_at).total_seconds(),
        capacity_qps=workload.profile.qps_max,
        slo_wait_s=workload.slo.wait_s,
        cold_start_s=question.cold_start.total_seconds() if question.cold_start else lead_s,
        variants=variants,
        peers=question.peers,
        windows=(*map(_registered, events), *map(_added, question.loads)),
        timeline_size=question.timeline_size or TIMELINE_DEFAULT,
        time_zone=workload.time_zone,
    )
    return study, sum(qps is None for qps in scored) / len(scored)


def _too_short(name: str) -> PreconditionError:
    return PreconditionError(
        "HISTORY_TOO_SHORT",
        f"no demand of workloads/{name} is stored in this window; choose another end_time, or import its history",
    )


def _check(question: Question, now: datetime) -> None:
    findings = Findings()
    findings.require(
        question.end_at is None or question.end_at <= now, "end_time", "must not lie in the future"
    )
    findings.duration("window", question.window, WINDOW_MIN, WINDOW_MAX)
    findings.duration("learn", question.learn, timedelta(0), LEARN_MAX)
    findings.duration("cold_start", question.cold_start, COLD_START_MIN, COLD_START_MAX)
    findings.require(
        0 <= question.timeline_size <= TIMELINE_MAX,
        "timeline_size",
        f"must be 0 to {TIMELINE_MAX}; got {question.timeline_size}",
    )
    for field, given, most in (
        ("changes", question.changes, CHANGES_MAX),
        ("peers", question.peers, PEERS_MAX),
        ("events", question.loads, EVENTS_MAX),
    ):
        findings.require(len(given) <= most, field, f"must have at most {most} entries; got {len(given)}")
    for index, peer in enumerate(question.peers):
        findings.require(
            peer in PEERS and peer not in question.peers[:index],
            f"peers[{index}]",
            f"must be one of {', '.join(PEERS)}, each once; got {peer[:60]!r}",
        )
    for index, change in enumerate(question.changes):
        check_id(findings, f"changes[{index}].name", change.name)
        taken = {CURRENT, *PEERS, *(earlier.name for earlier in question.changes[:index])}
        findings.require(
            change.name not in taken, f"changes[{index}].name", "is taken by another result; choose another"
        )
    findings.raise_if_any()


def _check_loads(loads: Sequence[AddedLoad], start_at: datetime, end_at: datetime) -> None:
    findings = Findings()
    for index, load in enumerate(loads):
        at = f"events[{index}]"
        findings.require(load.end_at > load.start_at, f"{at}.end_time", "must be after start_time")
        findings.require(
            start_at <= load.start_at and load.end_at <= end_at,
            f"{at}.start_time",
            f"must lie with its end inside the simulated window, {start_at.isoformat()} to {end_at.isoformat()}",
        )
        findings.require(
            (load.multiplier is None) != (load.peak_qps is None),
            f"{at}.multiplier",
            "give either multiplier or peak_qps, and not both",
        )
        findings.number(f"{at}.multiplier", load.multiplier, 0.01, 1000)
        findings.number(f"{at}.peak_qps", load.peak_qps, 0, 1e9, above=True)
        findings.text(f"{at}.category", load.category, 0, 63)
    findings.raise_if_any()


def _variants(workload: Workload, changes: Sequence[Change]) -> tuple[Variant, ...]:
    """Return the workload as it is and with each change; raise InvalidError for one an update would refuse."""
    made = [Variant(CURRENT, workload.policy, workload.min_replicas, workload.max_replicas)]
    violations: list[Violation] = []
    for index, change in enumerate(changes):
        changed = replace(
            workload,
            policy=workload.policy if change.policy is None else change.policy(workload.policy),
            min_replicas=workload.min_replicas if change.min_replicas is None else change.min_replicas,
            max_replicas=workload.max_replicas if change.max_replicas is None else change.max_replicas,
        )
        findings = Findings(f"changes[{index}].")
        check_workload(changed, findings)
        violations += findings.violations
        made.append(Variant(change.name, changed.policy, changed.min_replicas, changed.max_replicas))
    if violations:
        raise InvalidError(violations)
    return tuple(made)


def _registered(event: Event) -> Window:
    return Window(
        event.start_at, event.end_at, event.expected_peak_qps, event.expected_multiplier, event.category
    )


def _added(load: AddedLoad) -> Window:
    return Window(
        load.start_at,
        load.end_at,
        load.peak_qps,
        load.multiplier,
        load.category,
        demanded=True,
        announced=load.announced,
    )
