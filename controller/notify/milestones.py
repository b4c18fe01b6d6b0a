"""What to tell, from how the fleet stood before a tick and how it stands after it. Pure: no clock, no I/O.

Promises: derived from the two stored states, and what is stored of alarms that went, alone: a leader that takes over tells
what its predecessor did not, and nothing twice; a prewarm milestone is told once per revision of its event, the start and
the end of an event once; many alike in one tick become one. Refuses to tell of events that were over before they were
planned. Called by the notifier.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controller.core.types import Contract, ContractState, FleetState, Workload, WorkloadState
from controller.notify.alarms import of_alarms
from controller.notify.types import Held, Kind, Notification, Severity, identity

# More alike than this in one tick and namespace are told as one: an outage is one piece of news.
FOLD_OVER = 20
NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class News:
    """What to tell, and what of alarms to remember anew and to forget."""

    told: list[Notification]
    kept: list[Held]
    forgotten: list[str]  # keys


def news(
    before: FleetState,
    after: FleetState,
    workloads: Mapping[str, Workload],
    now: datetime,
    *,
    held: Sequence[Held] = (),
    hold: timedelta = timedelta(0),
) -> News:
    """What happened between two states of these workloads, in the order of their names.

    ``held`` is what is remembered of alarms that came, went or are away for ``hold`` by now.
    """
    found: list[Notification] = []
    kept: list[Held] = []
    forgotten: list[str] = []
    known: defaultdict[str, dict[str, Held]] = defaultdict(dict)
    for one in held:
        known[one.alarm.workload][one.alarm.key] = one
    for name in sorted(workloads.keys() & after.workloads.keys()):
        workload, new = workloads[name], after.workloads[name]
        old, mine = before.workloads.get(name, WorkloadState()), known.get(name, {})
        found += _of_contracts(workload, old, new, now)
        if mine or old.alarms is not new.alarms:
            told, left = of_alarms(workload, old, new, mine, hold, now)
            found += told
            kept += [one for key, one in left.items() if one is not mine.get(key)]
            forgotten += mine.keys() - left.keys()
    return News(_folded(found, now), kept, forgotten)


def _of_contracts(
    workload: Workload, old: WorkloadState, new: WorkloadState, now: datetime
) -> Iterator[Notification]:
    known = {c.event_id: c for c in old.contracts}
    told: set[str] = set()
    for contract in old.contracts:
        told |= {n.id for n in _reached(workload, contract, old.last_at or now, now)}
    for contract in new.contracts:
        if contract.state is ContractState.COMPLETED and contract.event_id not in known:
            continue
        yield from (n for n in _reached(workload, contract, now, now) if n.id not in told)


def _reached(workload: Workload, c: Contract, seen_at: datetime, now: datetime) -> Iterator[Notification]:
    """Milestones that a contract had behind it at ``seen_at``."""
    event = f"Event {c.event_id} on {workload.name}"
    revision = f"revision {c.revision}"

    def made(kind: Kind, sentence: str, *key: object) -> Notification:
        made_id = identity(kind, workload.name, c.event_id, *key)
        return Notification(
            made_id, now, kind, Severity.INFO, workload.name, workload.namespace, c.event_id, sentence
        )

    if c.state is ContractState.COMPLETED:
        yield made(Kind.EVENT_ENDED, f"{event} is over.", c.start_at)
        return
    short = f", {c.shortfall_replicas} replicas short" if c.shortfall_replicas else ""
    yield made(
        Kind.PREWARM_PLANNED,
        f"{event}: {c.replicas} replicas are planned to be warm by {_clock(c.deadline_at)}, the first order goes "
        f"out at {_clock(c.order_at)}{short}.",
        revision,
    )
    if c.state is not ContractState.PLANNED and c.order_at < c.start_at:
        yield made(
            Kind.PREWARM_STARTED,
            f"{event}: prewarm has started, {c.verified_count} of {c.replicas} replicas are warm, due "
            f"{_clock(c.deadline_at)}.",
            revision,
        )
    if c.met_at is not None and c.state in {ContractState.WARM, ContractState.ACTIVE}:
        yield made(
            Kind.PREWARM_WARM,
            f"{event}: all {c.replicas} replicas are warm, since {_clock(c.met_at)}; it starts at "
            f"{_clock(c.start_at)}.",
            revision,
        )
    if seen_at >= c.start_at:
        yield made(
            Kind.EVENT_STARTED,
            f"{event} has started with {c.verified_count} of {c.replicas} replicas warm.",
            c.start_at,
        )


def _folded(found: list[Notification], now: datetime) -> list[Notification]:
    alike: defaultdict[tuple[str, ...], list[Notification]] = defaultdict(list)
    for one in found:
        alike[one.kind, one.alarm or "", one.namespace].append(one)
    kept: list[Notification] = []
    for key, ones in alike.items():
        if len(ones) <= FOLD_OVER:
            kept += ones
            continue
        first, names = ones[0], sorted({one.workload for one in ones})
        shown = ", ".join(names[:NAMES_SHOWN])
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        what = f"{first.kind} {first.alarm}" if first.alarm else str(first.kind)
        kept.append(
            Notification(
                identity("folded", *key, now.isoformat()),
                now,
                first.kind,
                first.severity,
                "",
                first.namespace,
                "",
                f"{what}, {len(ones)} times on {shown}{more}. The first: {first.sentence}",
                first.alarm,
            )
        )
    return kept


def _clock(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
