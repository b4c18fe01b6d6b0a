"""Say what an event would cost and whether its capacity would be there, without registering it.

Promises: the plan is made by the planner the loop uses, from the same stored inputs, once with and once
without the event; costs are the difference. Refuses what registration would refuse. Called by the API.
What is not known is said: without a forecast and an expected peak there is no size and no curve.
"""

import asyncio
import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from controller.accuracy import Standing
from controller.core.leadtime import DEFAULT_PRIORS, LeadTime, StagePrior, estimate_lead_time
from controller.core.planner import build_plan, deadline, forecast_usable
from controller.core.resources import EventWarning, EventWarningKind, TrafficEvent
from controller.core.types import (
    CapacityPlan,
    Event,
    Floor,
    ForecastBand,
    ForecastState,
    QuotaPool,
    Trust,
    Workload,
)
from controller.ports import ForecastPort, PortError, SignalCache, Store, UnitOfWork
from controller.usecases.caller import Caller, caller, enter
from controller.usecases.engines import lead_priors, resolved_workload
from controller.usecases.errors import InvalidError, Violation
from controller.usecases.event_rules import check_event
from controller.usecases.events import check_workloads
from controller.usecases.occurrences import HORIZON, occurrences
from controller.usecases.quota_ahead import Room, peak_replicas, room_for
from controller.usecases.schedule import schedule

log = logging.getLogger(__name__)

_HOUR_S = 3600.0
# Occurrences of a recurrence that are looked at when it is registered, and warnings kept with it.
OCCURRENCES_CHECKED = 4
WARNINGS_MAX = 20


@dataclass(frozen=True, slots=True)
class PreviewSettings:
    """What the loop plans with and no store holds."""

    lead_priors: tuple[StagePrior, ...] = DEFAULT_PRIORS
    pools: tuple[QuotaPool, ...] = ()
    # History a fresh forecast is made from, and how far ahead other events are looked at.
    history: timedelta = timedelta(days=42)
    horizon: timedelta = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class WorkloadPreview:
    """What an event means for one workload. Hours are on top of what would run without it."""

    workload: str
    occurrence: Event
    prewarm_start_at: datetime | None
    deadline_at: datetime
    replicas: int
    baseline_replicas: int
    unmet_replicas: int
    extra_replica_hours: float
    extra_gpu_hours: float
    forecast_state: ForecastState | None
    curve: ForecastBand | None
    floors: tuple[Floor, ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class EventPreview:
    """An event as it would be stored and what it means for each of its workloads."""

    event: TrafficEvent
    workloads: tuple[WorkloadPreview, ...]


async def preview_event(
    store: Store,
    signals: SignalCache,
    forecaster: ForecastPort | None,
    settings: PreviewSettings,
    event: TrafficEvent,
    now: datetime,
) -> EventPreview:
    """Preview the next occurrence of ``event``; raise InvalidError as registration would."""
    check_event(event, now)
    occurrence = occurrences(event, now, now + HORIZON, 1)[0]
    observed = await observed_demand(signals, event.workloads)
    async with store.unit_of_work() as uow:
        await check_workloads(uow, event)
        basis = Basis(store, forecaster, settings, event, observed, now)
        previews = [_preview(await basis.of(uow, name, occurrence)) for name in event.workloads]
        warnings = await event_warnings(uow, basis)
    return EventPreview(replace(event, warnings=warnings), tuple(previews))


async def observed_demand(signals: SignalCache, workloads: Sequence[str]) -> Mapping[str, float]:
    """Present demand by workload, QPS, as far as it is known."""
    try:
        demand = await signals.get_demand(workloads)
    except PortError:  # without the cache a preview knows less, and is still right
        return {}
    return {name: observation.stable_qps for name, observation in demand.items()}


@dataclass(frozen=True, slots=True)
class _Planned:
    """What one occurrence is planned from on one workload; previews and warnings read the same."""

    workload: Workload
    occurrence: Event
    others: Sequence[Event]
    lead: LeadTime
    band: ForecastBand | None  # with the event among what is known of the time
    plain: ForecastBand | None  # without it
    trust: Trust
    room: Room | None
    observed_qps: float | None
    now: datetime

    @property
    def fits(self) -> int | None:
        """Replicas that the quota pool has room for then; None: no quota applies."""
        return None if self.room is None else self.room.free_gpus // self.workload.profile.gpus_per_replica

    def plan(
        self, events: Sequence[Event], band: ForecastBand | None, ceiling: int | None = None
    ) -> CapacityPlan:
        """The plan that the loop would follow; raise InvalidError for what no pool can be sized for."""
        try:
            return build_plan(
                self.workload,
                now=self.now,
                band=band,
                trust=self.trust,
                events=events,
                lead=self.lead,
                observed_qps=self.observed_qps,
                ceiling=ceiling,
            )
        except ValueError as error:
            raise InvalidError(
                [Violation("event.expected_load", f"cannot be planned for: {error}")]
            ) from error


class Basis:
    """What an event is planned from, read once for its preview and its warnings.

    ``refit_until_s``, by the event loop's clock: until then forecasts are made anew with the event; after it the stored
    ones have to do, as they do in the loop until its next refit. None: for as long as it takes.
    """

    def __init__(
        self,
        store: Store,
        forecaster: ForecastPort | None,
        settings: PreviewSettings,
        event: TrafficEvent,
        observed: Mapping[str, float],
        now: datetime,
        refit_until_s: float | None = None,
    ) -> None:
        self.store, self.settings, self.event, self.now = store, settings, event, now
        self._forecaster, self._observed, self._refit_until_s = forecaster, observed, refit_until_s
        self._planned: dict[tuple[str, str], _Planned] = {}

    async def of(self, uow: UnitOfWork, name: str, occurrence: Event) -> _Planned:
        """What ``occurrence`` is planned from on a workload."""
        key = (name, occurrence.id)
        if key not in self._planned:
            self._planned[key] = await self._read(uow, name, occurrence)
        return self._planned[key]

    async def _read(self, uow: UnitOfWork, name: str, occurrence: Event) -> _Planned:
        now, settings = self.now, self.settings
        end_at = max(now + settings.horizon, occurrence.end_at)
        others = (await schedule(uow, now, end_at, without=self.event.id)).get(name, [])
        workload = await resolved_workload(uow, name)
        stored = await uow.forecasts.latest(name)
        band, plain, trust = await self._bands(
            uow, workload, stored[1] if stored else None, occurrence, others
        )
        priors = await lead_priors(uow, workload, settings.lead_priors)
        lead = estimate_lead_time(priors, await uow.warmups.recent(name))
        room = await _room(uow, self.store, workload, occurrence, self.event, settings, lead, now)
        return _Planned(
            workload, occurrence, others, lead, band, plain, trust, room, self._observed.get(name), now
        )

    async def _bands(
        self,
        uow: UnitOfWork,
        workload: Workload,
        plain: ForecastBand | None,
        occurrence: Event,
        others: Sequence[Event],
    ) -> tuple[ForecastBand | None, ForecastBand | None, Trust]:
        """The forecast with the event and the one without it, and whether it is to be trusted."""
        forecaster, settings, now = self._forecaster, self.settings, self.now
        if forecaster is None or plain is None or not plain.qps:
            return plain, plain, Trust.UNPROVEN
        name = workload.name
        trust, band = await _trust(uow, forecaster, name, plain, now), plain
        try:
            until_s = self._refit_until_s
            if occurrence.start_at < now + plain.step * len(plain.qps):
                known = [*others, occurrence]
                band = await _refit(uow, forecaster, workload, plain, known, settings, now, until_s)
            if occurrence.id in plain.event_ids:  # a registered event: what would run without it?
                plain = await _refit(uow, forecaster, workload, plain, others, settings, now, until_s)
        except TimeoutError:
            log.info("event %s on %s is sized by the stored forecast", self.event.id, name)
        return band, plain, trust


def _preview(planned: _Planned) -> WorkloadPreview:
    workload, occurrence, others = planned.workload, planned.occurrence, planned.others
    band, plain, now = planned.band, planned.plain, planned.now
    usable = band if forecast_usable(band, planned.trust, now, workload.policy.forecast_age_max) else None
    return _compare(
        workload,
        occurrence,
        planned.plan([*others, occurrence], band, planned.fits),
        planned.plan(others, plain, planned.fits),
        _curve(usable, occurrence),
        None if plain is None else plain.state,
        now,
    )


async def _trust(
    uow: UnitOfWork, forecaster: ForecastPort, name: str, band: ForecastBand, now: datetime
) -> Trust:
    standing = await uow.accuracy.standing(name)
    if standing is not None:  # what the loop makes of it
        return standing.trust
    end_at = min(now, band.end_at)
    if end_at <= band.start_at:
        return Trust.UNPROVEN
    return forecaster.trust(band, await uow.traffic.read(name, band.start_at, end_at, step=band.step))


async def _refit(
    uow: UnitOfWork,
    forecaster: ForecastPort,
    workload: Workload,
    plain: ForecastBand,
    events: Sequence[Event],
    settings: PreviewSettings,
    now: datetime,
    until_s: float | None,
) -> ForecastBand:
    """Forecast again with the event among the known ones, as the loop will at its next refit.

    Raise TimeoutError after ``until_s``. Only the fit is cut short: a statement that is, takes its transaction with it.
    """
    if until_s is not None and asyncio.get_running_loop().time() >= until_s:
        raise TimeoutError
    name, history_start = workload.name, now - settings.history
    past = await schedule(uow, history_start, now)
    known = {event.id: event for event in (*past.get(name, ()), *events)}
    span = await uow.traffic.span(name)
    if span is None:
        return plain
    history = await uow.traffic.read(name, max(span[0], history_start), now, step=plain.step)
    # By the model in charge, as the loop does.
    standing = await uow.accuracy.standing(name) or Standing(name)
    async with asyncio.timeout_at(until_s):
        made = await forecaster.refit(
            history,
            step=plain.step,
            horizon_steps=len(plain.qps),
            events=sorted(known.values(), key=lambda e: (e.start_at, e.id)),
            now=now,
            standing=standing,
            time_zone=workload.time_zone,
        )
    return made.band if made.band.qps else plain


async def _room(
    uow: UnitOfWork,
    store: Store,
    workload: Workload,
    occurrence: Event,
    event: TrafficEvent,
    settings: PreviewSettings,
    lead: LeadTime,
    now: datetime,
) -> Room | None:
    """The pool while the occurrence lasts, after what the others need then, the event's own workloads included."""
    if workload.quota_pool is None or not settings.pools:
        return None

    async def room(whole: UnitOfWork) -> Room | None:
        then = await schedule(whole, occurrence.start_at, occurrence.end_at, without=event.id)
        for name in event.workloads:
            then.setdefault(name, []).append(occurrence)
        return await room_for(whole, workload, occurrence, settings.pools, then, lead, now)

    who = caller()
    if who.namespaces is None:
        return await room(uow)
    # Other namespaces take GPUs too. They are counted for a caller who may not see them, and not named.
    enter(Caller())
    try:
        fleet = store.unit_of_work()
    finally:
        enter(who)
    async with fleet as whole:
        found = await room(whole)
    return None if found is None else found.unnamed()


async def event_warnings(uow: UnitOfWork, basis: Basis) -> tuple[EventWarning, ...]:
    """What a planner should know at registration, for the next occurrences on every workload; nothing is refused.

    By the plan that the preview shows, so that the two never disagree.
    """
    event, now = basis.event, basis.now
    found: list[EventWarning] = []
    for occurrence in occurrences(event, now, now + HORIZON, OCCURRENCES_CHECKED):
        for name in event.workloads:
            planned = await basis.of(uow, name, occurrence)
            plan = planned.plan([*planned.others, occurrence], planned.band)
            floor = next(f for f in plan.floors if f.event_id == occurrence.id)
            found += _warnings(planned.workload, occurrence, floor, planned.room, now)
        if len(found) >= WARNINGS_MAX:
            break
    return tuple(found[:WARNINGS_MAX])


def _warnings(
    workload: Workload, occurrence: Event, floor: Floor, room: Room | None, now: datetime
) -> list[EventWarning]:
    name, at = workload.name, f"{occurrence.start_at:%Y-%m-%d %H:%M} UTC"

    def warn(kind: EventWarningKind, sentence: str, unmet: int = 0, pool: str | None = None) -> EventWarning:
        return EventWarning(
            kind=kind,
            workload=name,
            sentence=f"{name} at {at}: {sentence}.",
            start_at=occurrence.start_at,
            end_at=occurrence.end_at,
            unmet_replicas=unmet,
            quota_pool=pool,
        )

    if floor.demand_qps is None:
        remedy = "no demand is known that the multiplier could be applied to; give expected_peak_qps instead"
        return [warn(EventWarningKind.SIZE_UNKNOWN, remedy)]
    found: list[EventWarning] = []
    wanted = floor.replicas + floor.unmet_replicas
    if floor.unmet_replicas:
        found.append(
            warn(
                EventWarningKind.MAX_REPLICAS_SHORT,
                f"{wanted} replicas are needed and max_replicas allows {floor.replicas}; raise it, or "
                "max_replicas_override of the event",
                floor.unmet_replicas,
            )
        )
    if room is not None:
        fits = room.free_gpus // workload.profile.gpus_per_replica
        if floor.replicas > fits:
            found.append(
                warn(
                    EventWarningKind.QUOTA_SHORT,
                    f"{floor.replicas} replicas are needed and {room.sentence()}, which hold {fits}; raise the "
                    "quota, move the event or give it priority",
                    floor.replicas - fits,
                    room.pool,
                )
            )
    if floor.order_at < now < occurrence.start_at and floor.replicas > workload.min_replicas:
        late = f"prewarm should have begun at {floor.order_at:%Y-%m-%d %H:%M:%SZ}; replicas may be late"
        found.append(warn(EventWarningKind.PREWARM_LATE, late))
    return found


def replica_hours(plan: CapacityPlan, minimum: int, start_at: datetime, end_at: datetime) -> float:
    """Replica-hours that the plan's floors hold in ``[start_at, end_at)``, from the order on, above ``minimum``."""
    floors = [
        f for f in plan.floors if f.replicas > minimum and f.order_at < end_at and f.until_at > start_at
    ]
    edges = sorted({start_at, end_at, *(t for f in floors for t in (f.order_at, f.until_at))})
    total_s = 0.0
    for left, right in itertools.pairwise(edges):
        if start_at <= left < end_at:
            held = max((f.replicas for f in floors if f.order_at <= left < f.until_at), default=minimum)
            total_s += (held - minimum) * (right - left).total_seconds()
    return total_s / _HOUR_S


def _compare(
    workload: Workload,
    occurrence: Event,
    with_event: CapacityPlan,
    without: CapacityPlan,
    curve: ForecastBand | None,
    forecast_state: ForecastState | None,
    now: datetime,
) -> WorkloadPreview:
    floors = tuple(f for f in with_event.floors if f.event_id == occurrence.id)
    start_at, end_at = occurrence.start_at, occurrence.end_at
    replicas = peak_replicas(with_event, workload, start_at, end_at)
    baseline = peak_replicas(without, workload, start_at, end_at)
    order_at = min((f.order_at for f in floors), default=None)
    first = now if order_at is None else max(now, order_at)
    last = max([end_at, *(f.until_at for f in floors)])
    low = workload.min_replicas
    hours = replica_hours(with_event, low, first, last) - replica_hours(without, low, first, last)
    preview = WorkloadPreview(
        workload=workload.name,
        occurrence=occurrence,
        prewarm_start_at=order_at if replicas > baseline else None,
        deadline_at=deadline(occurrence, workload),
        replicas=replicas,
        baseline_replicas=baseline,
        unmet_replicas=max((f.unmet_replicas for f in floors), default=0),
        extra_replica_hours=max(0.0, hours),
        extra_gpu_hours=max(0.0, hours) * workload.profile.gpus_per_replica,
        forecast_state=forecast_state,
        curve=curve,
        floors=floors,
        sentence="",
    )
    return replace(preview, sentence=_sentence(preview, now))


def _sentence(preview: WorkloadPreview, now: datetime) -> str:
    name, floor = preview.workload, next(iter(preview.floors), None)
    if floor is None or floor.demand_qps is None:
        return (
            f"{name} cannot be sized: no demand is known for that time and no expected peak is given; "
            "give expected_peak_qps, or preview again closer to the event."
        )
    count, asked = preview.replicas + preview.unmet_replicas, preview.occurrence.expected_peak_qps
    parts = [f"{name} needs {count} replica{'' if count == 1 else 's'} for {floor.demand_qps:.0f} QPS"]
    if asked is not None and floor.demand_qps > 1.01 * asked:
        parts[0] += (
            f" ({asked:.0f} expected, and room above it for a confidence of {preview.occurrence.confidence:g})"
        )
    if preview.unmet_replicas:
        parts.append(
            f"{preview.unmet_replicas} of them are beyond max_replicas or quota: raise the limit or expect queueing"
        )
    if preview.prewarm_start_at is None:
        parts.append(f"no more than the {preview.baseline_replicas} that are planned anyway")
    elif preview.prewarm_start_at < now:
        parts.append(
            f"prewarm begins at once and should have begun at {preview.prewarm_start_at:%Y-%m-%d %H:%M:%SZ}: "
            "they may be late"
        )
    else:
        parts.append(f"prewarm begins at {preview.prewarm_start_at:%Y-%m-%d %H:%M:%SZ}")
    return "; ".join(parts) + "."


def _curve(band: ForecastBand | None, occurrence: Event) -> ForecastBand | None:
    """The band over the occurrence's window, with the planner's expectation if the band lacks the event."""
    if band is None:
        return None
    first = max(0, (occurrence.start_at - band.start_at) // band.step)
    last = min(len(band.qps), -((band.start_at - occurrence.end_at) // band.step))
    if first >= last:
        return None
    rows = band.qps[first:last]
    start_at = band.start_at + band.step * first
    if occurrence.id not in band.event_ids:
        rows = tuple(
            tuple(value * _factor(occurrence, rows, band, start_at + band.step * i) for value in row)
            for i, row in enumerate(rows)
        )
    return replace(band, start_at=start_at, qps=rows)


def _factor(occurrence: Event, rows: Sequence[Sequence[float]], band: ForecastBand, at: datetime) -> float:
    """What the planner's word multiplies the forecast by at ``at``: the peak is met by the highest median."""
    middle = min(range(len(band.levels)), key=lambda j: abs(band.levels[j] - 0.5))
    peak = max(row[middle] for row in rows)
    if occurrence.expected_multiplier is not None:
        uplift = occurrence.expected_multiplier
    elif occurrence.expected_peak_qps is not None and peak > 0:
        uplift = occurrence.expected_peak_qps / peak
    else:
        uplift = 1.0
    if occurrence.ramp <= timedelta(0):
        return uplift
    climbed = min(1.0, max(0.0, (at + band.step / 2 - occurrence.start_at) / occurrence.ramp))
    return 1.0 + (uplift - 1.0) * climbed
