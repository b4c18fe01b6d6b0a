"""What a planner is told at registration: quota at that future time, sizes nobody knows, prewarm that is late."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controller.adapters.clock import VirtualClock
from controller.adapters.fakes import FakeForecaster, FakeSignalCache, FakeStore
from controller.core.resources import (
    EventWarning,
    EventWarningKind,
    ForecastRun,
    TrafficEvent,
    TrafficSample,
)
from controller.core.types import (
    CapacityProfile,
    ForecastBand,
    ForecastState,
    QuotaPool,
    Workload,
)
from controller.ports import Refit, TrafficStore
from controller.usecases.caller import Caller, enter
from controller.usecases.preview_event import Basis, PreviewSettings, event_warnings, preview_event

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
START = datetime(2026, 11, 11, 20, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
POOL = QuotaPool("gpus", nominal_gpus=60)


def an_event(event_id: str = "sale", **changes: object) -> TrafficEvent:
    base = TrafficEvent(
        id=event_id,
        workloads=("rec",),
        start_at=START,
        end_at=START + 2 * HOUR,
        time_zone="UTC",
        expected_peak_qps=20_000.0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.fixture
def store() -> FakeStore:
    found = FakeStore()
    for name in ("rec", "search"):
        profile = CapacityProfile("int8", "L4", 1000.0, gpus_per_replica=2)
        found.tables.workloads[name] = Workload(
            name, name, (profile,), max_replicas=60, quota_pool="gpus", namespace=name
        )
    return found


async def told(
    store: FakeStore,
    event: TrafficEvent,
    *,
    pools: Sequence[QuotaPool] = (POOL,),
    observed: dict[str, float] | None = None,
    now: datetime = NOW,
    forecaster: FakeForecaster | None = None,
    refit_until_s: float | None = None,
) -> list[EventWarning]:
    settings = PreviewSettings(pools=tuple(pools))
    basis = Basis(store, forecaster, settings, event, observed or {}, now, refit_until_s)
    async with store.unit_of_work() as uow:
        return list(await event_warnings(uow, basis))


def kinds(warnings: Sequence[EventWarning]) -> list[EventWarningKind]:
    return [warning.kind for warning in warnings]


async def register(store: FakeStore, *events: TrafficEvent) -> None:
    async with store.unit_of_work() as uow:
        for event in events:
            await uow.events.create(event)
        await uow.commit()


async def test_an_event_whose_capacity_will_be_there_has_no_warnings(store: FakeStore) -> None:
    assert [] == await told(store, an_event())


async def test_quota_is_that_of_the_events_own_time_with_the_others_events_of_then(store: FakeStore) -> None:
    await register(store, an_event("theirs", workloads=("search",), expected_peak_qps=15_000.0))

    (warning,) = await told(store, an_event())

    assert EventWarningKind.QUOTA_SHORT is warning.kind
    assert ("rec", "gpus") == (warning.workload, warning.quota_pool)
    assert warning.unmet_replicas > 0
    assert "of 60 GPUs left then (search" in warning.sentence
    assert (START, START + 2 * HOUR) == (warning.start_at, warning.end_at)


@pytest.mark.parametrize(
    ("start_at", "expected"),
    [
        pytest.param(START - 2 * HOUR, [], id="back to back before: windows are half open"),
        # Replicas are warm a margin before the start, so those of the next event meet those of this one's end.
        pytest.param(START + 2 * HOUR, [], id="back to back after"),
        pytest.param(START + HOUR, [EventWarningKind.QUOTA_SHORT], id="overlapping"),
        pytest.param(START + DAY, [], id="another day"),
    ],
)
async def test_only_events_that_meet_compete(
    store: FakeStore, start_at: datetime, expected: list[EventWarningKind]
) -> None:
    other = an_event(
        "theirs",
        workloads=("search",),
        expected_peak_qps=15_000.0,
        start_at=start_at,
        end_at=start_at + 2 * HOUR,
        margin=timedelta(0),
    )
    await register(store, other)

    assert expected == kinds(await told(store, an_event(margin=timedelta(0))))


async def test_overlapping_events_of_one_workload_do_not_add_up(store: FakeStore) -> None:
    await register(store, an_event("same", expected_peak_qps=20_000.0))

    assert [] == await told(store, an_event())


async def test_an_event_on_both_workloads_of_a_pool_meets_itself(store: FakeStore) -> None:
    assert [EventWarningKind.QUOTA_SHORT] * 2 == kinds(
        await told(store, an_event(workloads=("rec", "search")))
    )


async def test_the_registered_event_does_not_compete_with_its_own_change(store: FakeStore) -> None:
    await register(store, an_event())

    assert [] == await told(store, an_event(expected_peak_qps=21_000.0))


async def test_each_occurrence_is_looked_at_for_itself(store: FakeStore) -> None:
    await register(
        store,
        an_event(
            "theirs",
            workloads=("search",),
            expected_peak_qps=15_000.0,
            start_at=START + 7 * DAY,
            end_at=START + 7 * DAY + HOUR,
        ),
    )

    (warning,) = await told(store, an_event(rrule="FREQ=WEEKLY"))

    assert START + 7 * DAY == warning.start_at


async def test_a_multiple_of_nothing_known_is_unknown_and_never_nothing(store: FakeStore) -> None:
    event = an_event(expected_peak_qps=None, expected_multiplier=4.0)

    for observed in ({}, {"rec": 0.0}):
        (warning,) = await told(store, event, observed=observed)
        assert EventWarningKind.SIZE_UNKNOWN is warning.kind
        assert "give expected_peak_qps" in warning.sentence
    assert [] == await told(store, event, observed={"rec": 2000.0})


async def test_a_multiple_of_a_forecast_of_nothing_is_unknown_too(store: FakeStore) -> None:
    band = ForecastBand(
        id="f",
        origin_at=NOW,
        start_at=NOW,
        step=HOUR,
        levels=(0.1, 0.5, 0.9),
        qps=((0.0, 0.0, 0.0),) * 400,
        state=ForecastState.READY,
    )
    async with store.unit_of_work() as uow:
        await uow.forecasts.save(ForecastRun("f", "rec", NOW, NOW, 400), band)
        await uow.commit()

    event = an_event(expected_peak_qps=None, expected_multiplier=4.0)

    assert [EventWarningKind.SIZE_UNKNOWN] == kinds(await told(store, event))
    with_event = replace(band, id="g", event_ids=frozenset({"sale"}))
    async with store.unit_of_work() as uow:
        await uow.forecasts.save(
            ForecastRun("g", "rec", NOW + HOUR, NOW, 400), replace(with_event, origin_at=NOW + HOUR)
        )
        await uow.commit()
    assert [EventWarningKind.SIZE_UNKNOWN] == kinds(await told(store, event))


async def test_max_replicas_that_do_not_suffice_are_told(store: FakeStore) -> None:
    store.tables.workloads["rec"] = replace(store.tables.workloads["rec"], max_replicas=10, quota_pool=None)

    (warning,) = await told(store, an_event())

    assert EventWarningKind.MAX_REPLICAS_SHORT is warning.kind
    assert warning.unmet_replicas >= 10
    assert [] == await told(store, an_event(max_replicas_override=60))


async def test_a_prewarm_that_should_have_begun_is_told(store: FakeStore) -> None:
    assert [EventWarningKind.PREWARM_LATE] == kinds(
        await told(store, an_event(), now=START - timedelta(seconds=20))
    )


async def test_pools_that_may_borrow_have_that_much_more(store: FakeStore) -> None:
    await register(store, an_event("theirs", workloads=("search",), expected_peak_qps=15_000.0))
    lending = replace(POOL, cohort="all", borrowing_limit_gpus=60)

    assert [] == await told(store, an_event(), pools=[lending])


async def test_no_quota_applies_without_a_pool(store: FakeStore) -> None:
    await register(store, an_event("theirs", workloads=("search",), expected_peak_qps=15_000.0))

    assert [] == await told(store, an_event(), pools=[])


async def test_other_namespaces_are_counted_and_not_named(store: FakeStore) -> None:
    from controller.api.auth.scope import ScopedStore

    await register(store, an_event("theirs", workloads=("search",), expected_peak_qps=15_000.0))
    scoped = ScopedStore(store)
    enter(Caller("token/ann", frozenset({"rec"})))
    try:
        async with scoped.unit_of_work() as uow:
            basis = Basis(scoped, None, PreviewSettings(pools=(POOL,)), an_event(), {}, NOW)
            (warning,) = await event_warnings(uow, basis)
    finally:
        enter(Caller())

    assert EventWarningKind.QUOTA_SHORT is warning.kind
    assert "search" not in warning.sentence
    assert "(others " in warning.sentence


class UnsureForecaster(FakeForecaster):
    """Knows of the event, and that its planner's word has been too low: up to 40 000 QPS may come."""

    async def refit(self, *arguments: Any, **named: Any) -> Refit:  # noqa: ANN401 -- as the port has them
        """Return a band with the event in it."""
        made = await super().refit(*arguments, **named)
        row = (10_000.0, 20_000.0, 30_000.0, 35_000.0, 40_000.0)
        event_ids = frozenset(event.id for event in named["events"])
        return replace(made, band=replace(made.band, qps=(row,) * len(made.band.qps), event_ids=event_ids))


class SlowForecaster(FakeForecaster):
    """Never has the answer."""

    async def refit(self, *arguments: Any, **named: Any) -> Refit:  # noqa: ANN401 -- as the port has them
        """Wait for ever."""
        del arguments, named
        await asyncio.Event().wait()
        raise AssertionError


BEFORE = START - 12 * HOUR


async def with_history(store: FakeStore) -> None:
    start_at = BEFORE - HOUR
    band = ForecastBand(
        id="f",
        origin_at=start_at,
        start_at=start_at,
        step=HOUR,
        levels=(0.1, 0.5, 0.9),
        qps=((900.0, 1000.0, 1100.0),) * 48,
        state=ForecastState.READY,
    )
    async with store.unit_of_work() as uow:
        await uow.forecasts.save(ForecastRun("f", "rec", start_at, start_at, 48), band)
        minutes = [start_at + number * timedelta(minutes=1) for number in range(60)]
        await uow.traffic.upsert([TrafficSample("rec", at, 60_000.0) for at in minutes])
        await uow.commit()


async def test_a_pool_between_the_planners_word_and_the_forecast_is_told_at_registration_as_in_the_preview(
    store: FakeStore,
) -> None:
    await with_history(store)
    now, pool = BEFORE, QuotaPool("gpus", nominal_gpus=60)
    event = an_event(confidence=0.5)
    settings, signals = PreviewSettings(pools=(pool,)), FakeSignalCache(VirtualClock(now))

    (warning,) = await told(store, event, pools=(pool,), now=now, forecaster=UnsureForecaster())
    previewed = await preview_event(store, signals, UnsureForecaster(), settings, event, now)

    assert EventWarningKind.QUOTA_SHORT is warning.kind
    assert previewed.event.warnings == (warning,)
    assert previewed.workloads[0].unmet_replicas == warning.unmet_replicas > 0
    # By the planner's word alone there is room.
    assert [] == await told(store, event, pools=(pool,), now=now)


async def test_a_forecast_that_takes_too_long_leaves_the_stored_one(store: FakeStore) -> None:
    await with_history(store)
    at_once = asyncio.get_running_loop().time()

    async with asyncio.timeout(30):
        found = await told(store, an_event(), now=BEFORE, forecaster=SlowForecaster(), refit_until_s=at_once)

    assert [] == found


async def test_no_read_is_cut_short_by_the_time_for_refits(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement that is cancelled takes its transaction with it, and the event that is being registered in it."""
    await with_history(store)
    loop, ended, passed = asyncio.get_running_loop(), list[str](), asyncio.Event()
    until_s = loop.time() + 0.02
    loop.call_at(until_s, passed.set)

    async def span(self: TrafficStore, workload: str) -> tuple[datetime, datetime] | None:
        await passed.wait()
        await asyncio.sleep(0)  # here a timeout around it would strike
        ended.append(workload)
        return await read(self, workload)

    async with store.unit_of_work() as uow:
        read = type(uow.traffic).span
        monkeypatch.setattr(type(uow.traffic), "span", span)

    async with asyncio.timeout(30):
        found = await told(store, an_event(), now=BEFORE, forecaster=SlowForecaster(), refit_until_s=until_s)

    assert ([], ["rec"]) == (found, ended)
