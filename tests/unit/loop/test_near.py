"""Near demand in the loop: a new minute is seen once, a partial one never, and no failure reaches the tick."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest

from controller.adapters.fakes import FakeForecaster
from controller.adapters.fakes.store import FakeUnitOfWork
from controller.adapters.forecaster import FitForecaster
from controller.core.leadtime import LeadTime
from controller.core.resources import TrafficEvent, TrafficSample
from controller.core.types import Decision, ForecastBand, NearDemand, Source, Trust, Workload
from controller.loop.near import NearForecasting
from controller.loop.runner import Runner
from controller.ports import ForecastPort, NearAsked, NearModel, UnavailableError
from controller.settings import Settings
from tests.unit.loop.conftest import START, Fleet, Process

Make = Callable[[str], Process]
Minutes = Sequence[tuple[datetime, float | None]]
NAME = "recommender"
MINUTE = timedelta(minutes=1)
LEADS = {NAME: LeadTime(60.0)}


@dataclass
class Listener:
    """A model that keeps what it was given and answers with the last known minute."""

    heard: list[Minutes] = field(default_factory=list[Minutes])
    leads: list[timedelta] = field(default_factory=list[timedelta])
    restored: list[bytes] = field(default_factory=list[bytes])
    records: list[bytes] = field(default_factory=list[bytes])
    given: list[bytes] = field(default_factory=list[bytes])
    stored: list[bytes] = field(default_factory=list[bytes])
    resumed: list[bytes] = field(default_factory=list[bytes])
    measured: Callable[[], None] = lambda: None
    enough: bool = True
    broken: bool = False

    async def calibrate(self, minutes: Minutes, *, lead: timedelta, record: bytes = b"") -> bool:
        self.measured()
        if self.broken:
            raise ArithmeticError("calibration went wrong")
        self.leads.append(lead)
        self.records.append(record)
        self.heard.append(minutes)
        return self.enough

    def near(self, minutes: Minutes, band: ForecastBand | None, *, trust: Trust) -> NearDemand | None:
        del band, trust
        if self.broken:
            raise ArithmeticError("near demand went wrong")
        self.heard.append(minutes)
        known = [(at, qps) for at, qps in minutes if qps is not None]
        return (
            NearDemand(known[-1][0] + MINUTE, timedelta(minutes=1), (0.9,), (known[-1][1],))
            if known
            else None
        )

    def record(self, stored: bytes = b"") -> bytes:
        self.given.append(stored)
        return b"%d" % len(self.heard)

    def kept(self, record: bytes) -> None:
        self.stored.append(record)

    def restore(self, record: bytes) -> None:
        self.restored.append(record)

    def calibration(self) -> bytes:
        return b"%d" % self.leads[-1].total_seconds() if self.leads and self.enough else b""

    def resume(self, calibration: bytes, now: datetime) -> tuple[datetime, timedelta] | None:
        if self.broken:
            raise ArithmeticError("going on went wrong")
        self.resumed.append(calibration)
        return now, timedelta(seconds=int(calibration))


@dataclass
class Listening(FakeForecaster):
    """Hands out the given models in order."""

    models: list[Listener] = field(default_factory=lambda: [Listener()])
    asked: list[int] = field(default_factory=list[int])  # how many at once

    def near_model(self) -> NearModel:
        return self.models.pop(0)

    def near_of(self, asked: Sequence[NearAsked]) -> Sequence[NearDemand | None]:
        self.asked.append(len(asked))
        return super().near_of(asked)


def watching(fleet: Fleet, forecaster: ForecastPort, **settings: bool | float) -> NearForecasting:
    return NearForecasting(fleet.store, forecaster, fleet.clock, Settings.model_validate(settings))


async def store(fleet: Fleet, *qps: float, first_at: datetime = START, workload: str = NAME) -> None:
    """Store minutes of demand from ``first_at`` on."""
    samples = [TrafficSample(workload, first_at + i * MINUTE, v * 60.0) for i, v in enumerate(qps)]
    async with fleet.store.unit_of_work() as uow:
        await uow.traffic.upsert(samples)
        await uow.commit()


async def newest(fleet: Fleet) -> Decision:
    async with fleet.store.unit_of_work() as uow:
        rows, _ = await uow.decisions.list(workload=NAME)
    return rows[0][0]


async def test_a_minute_is_used_once_and_only_when_it_is_whole(fleet: Fleet) -> None:
    model = Listener()
    near = watching(fleet, Listening(models=[model]))
    await store(fleet, 100.0, 2.0)  # the second minute has only begun

    await fleet.clock.advance(65.0)
    await near.refresh(LEADS, {}, {})
    await near.refresh(LEADS, {}, {})
    await fleet.clock.advance(30.0)
    await near.refresh(LEADS, {}, {})

    assert [(START, 100.0)] == [minutes[-1] for minutes in model.heard]
    assert near.demands[NAME] == NearDemand(START + MINUTE, timedelta(minutes=1), (0.9,), (100.0,))


async def test_a_minute_that_is_stored_late_is_seen_when_it_is_there(fleet: Fleet) -> None:
    model = Listener()
    near = watching(fleet, Listening(models=[model]))
    await store(fleet, 100.0)
    await fleet.clock.advance(60.0)
    await near.refresh(LEADS, {}, {})

    await fleet.clock.advance(75.0)
    await near.refresh(LEADS, {}, {})
    await store(fleet, 200.0, first_at=START + MINUTE)
    await near.refresh(LEADS, {}, {})

    assert [1, 2] == [sum(qps is not None for _, qps in minutes) for minutes in model.heard]
    assert near.demands[NAME].qps == (200.0,)


async def test_it_reads_two_hours_for_a_minute_and_two_weeks_for_a_calibration(fleet: Fleet) -> None:
    model = Listener()
    near = watching(fleet, Listening(models=[model]))
    await store(fleet, 1.0, first_at=START - timedelta(days=20))
    await store(fleet, 2.0, first_at=START - MINUTE)

    await near.refresh(LEADS, {}, {})
    await near.calibrate(LEADS)

    assert [120, 14 * 1440] == [len(minutes) for minutes in model.heard]


async def test_it_measures_at_once_then_every_period_and_when_the_lead_time_moved(fleet: Fleet) -> None:
    model = Listener()
    near = watching(fleet, Listening(models=[model]))
    await store(fleet, 1.0, first_at=START - MINUTE)

    made = [await near.calibrate({NAME: LeadTime(seconds)}) for seconds in (60.0, 60.0, 70.0, 80.0, 80.0)]
    await fleet.clock.advance(3600.0)
    made.append(await near.calibrate({NAME: LeadTime(80.0)}))

    assert [1, 0, 0, 1, 0, 1] == made
    assert [60.0, 80.0, 80.0] == [lead.total_seconds() for lead in model.leads]


async def test_what_forecasts_said_is_kept_at_each_calibration_and_read_once_after_a_restart(
    fleet: Fleet,
) -> None:
    first, second = Listener(), Listener()
    await store(fleet, 1.0, first_at=START - MINUTE)
    await watching(fleet, Listening(models=[first])).calibrate(LEADS)

    again = watching(fleet, Listening(models=[second]))
    await again.refresh(LEADS, {}, {})
    await fleet.clock.advance(3600.0)
    await again.calibrate(LEADS)

    assert [b"", b"0"] == first.given  # before the calibration and after it
    assert [b"1"] == first.stored
    assert [b"1"] == second.restored
    assert b"1" == second.given[0]
    assert second.records == second.given[1:]

    await fleet.clock.advance(3600.0)
    await again.calibrate(LEADS)
    assert [b"1"] == second.restored


async def test_a_record_another_leader_kept_meanwhile_is_read_at_a_takeover(fleet: Fleet) -> None:
    mine, others, mine_again = Listener(), Listener(), Listener()
    await store(fleet, 1.0, 2.0, first_at=START - 2 * MINUTE)
    near = watching(fleet, Listening(models=[mine, mine_again]))
    await near.calibrate(LEADS)
    other = watching(fleet, Listening(models=[others]))
    await other.refresh(LEADS, {}, {})
    await other.calibrate({NAME: LeadTime(90.0)})

    near.forget()
    await near.refresh(LEADS, {}, {})
    await near.calibrate(LEADS)

    assert [b"60"] == others.resumed
    assert [b"90"] == mine_again.resumed
    assert [b"2"] == mine_again.restored


async def test_a_new_leader_goes_on_with_what_was_measured_until_it_is_due(fleet: Fleet) -> None:
    """Whatever was measured serves for hours; measuring a fleet takes minutes, in which most would be scaled up."""
    first, second = Listener(), Listener()
    await store(fleet, 1.0, first_at=START - MINUTE)
    await watching(fleet, Listening(models=[first])).calibrate(LEADS)
    await fleet.clock.advance(1800.0)

    again = watching(fleet, Listening(models=[second]))
    await again.refresh(LEADS, {}, {})

    assert [b"60"] == second.resumed
    assert set(again.demands) == {NAME}
    assert await again.calibrate(LEADS) == 0
    assert await again.calibrate({NAME: LeadTime(80.0)}) == 1  # the lead time has moved
    await fleet.clock.advance(3600.0)
    assert await again.calibrate({NAME: LeadTime(80.0)}) == 1
    assert [b"60"] == second.resumed


async def test_a_takeover_in_the_middle_of_calibrating_goes_on_with_what_another_measured(
    fleet: Fleet,
) -> None:
    leads = {"a": LeadTime(60.0), "b": LeadTime(60.0)}
    for name in leads:
        await store(fleet, 1.0, first_at=START - MINUTE, workload=name)
    other = watching(fleet, Listening(models=[Listener(), Listener()]))

    class Interrupted(Listener):
        async def calibrate(self, minutes: Minutes, *, lead: timedelta, record: bytes = b"") -> bool:
            await other.calibrate(leads)
            near.forget()
            await near.refresh(leads, {}, {})
            return await super().calibrate(minutes, lead=lead, record=record)

    models = [Interrupted(), *(Listener() for _ in range(3))]
    near = watching(fleet, Listening(models=[*models]))

    assert await near.calibrate(leads) == 1
    assert [1, 0, 0, 0] == [len(model.leads) for model in models]
    assert [0, 0, 1, 1] == [len(model.resumed) for model in models]


async def test_stored_calibrations_are_looked_for_once(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    near, begin, asked = watching(fleet, Listening()), fleet.store.unit_of_work, list[Sequence[str]]()

    def unit_of_work() -> FakeUnitOfWork:
        uow = begin()
        calibrations = uow.forecasts.calibrations

        async def read(workloads: Sequence[str]) -> Mapping[str, bytes]:
            asked.append(workloads)
            return await calibrations(workloads)

        monkeypatch.setattr(uow.forecasts, "calibrations", read)
        return uow

    monkeypatch.setattr(fleet.store, "unit_of_work", unit_of_work)
    await near.refresh(LEADS, {}, {})
    await near.calibrate(LEADS)
    await near.refresh(LEADS, {}, {})

    assert [[NAME]] == asked


async def test_what_a_leader_measured_is_not_replaced_by_what_was_stored_before(fleet: Fleet) -> None:
    model = Listener()
    await store(fleet, 1.0, first_at=START - MINUTE)
    await watching(fleet, Listening(models=[Listener()])).calibrate(LEADS)
    near = watching(fleet, Listening(models=[model]))
    await fleet.clock.advance(7200.0)
    await near.calibrate({NAME: LeadTime(80.0)})

    await near.refresh(LEADS, {}, {})

    assert [b"60"] == model.resumed
    assert [80.0] == [lead.total_seconds() for lead in model.leads]


async def test_a_calibration_that_cannot_be_gone_on_with_concerns_its_workload_only(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    leads = {"a": LeadTime(60.0), "b": LeadTime(60.0)}
    for name in leads:
        await store(fleet, 1.0, first_at=START - MINUTE, workload=name)
    await watching(fleet, Listening(models=[Listener(), Listener()])).calibrate(leads)
    broken, sound = Listener(broken=True), Listener()
    near = watching(fleet, Listening(models=[broken, sound]))

    with caplog.at_level(logging.ERROR):
        await near.refresh(leads, {}, {})
        made = await near.calibrate({"a": LeadTime(90.0), "b": LeadTime(90.0)})

    assert (1, {"b"}) == (made, set(near.demands))
    assert [b"60"] == sound.resumed
    assert "the stored calibration of a cannot be used" in caplog.messages


async def test_what_has_no_near_demand_is_measured_first(fleet: Fleet) -> None:
    models = {name: Listener() for name in "abc"}
    for name in "ac":
        await store(fleet, 1.0, first_at=START - MINUTE, workload=name)
    await store(fleet, 1.0, first_at=START + timedelta(hours=1), workload="b")
    near = watching(fleet, Listening(models=[models[name] for name in "abc"]))
    await near.refresh("abc", {}, {})
    assert {"a", "c"} == set(near.demands)
    order: list[str] = []
    for name, model in models.items():
        model.measured = lambda name=name: order.append(name)  # type: ignore[misc]

    await near.calibrate({name: LeadTime(60.0) for name in "abc"})

    assert "b" == order[0]


async def test_a_first_tick_waits_for_what_was_measured_alone_and_not_for_long(fleet: Fleet) -> None:
    """Reading minutes of workloads that nothing can be said of yet would only keep it waiting."""
    await store(fleet, 1.0, first_at=START - MINUTE)
    await store(fleet, 1.0, first_at=START - MINUTE, workload="unmeasured")
    await watching(fleet, Listening()).calibrate(LEADS)
    near = watching(fleet, Listening(models=[Listener(), Listener()]))
    names = ["unmeasured", NAME]

    await near.refresh(names, {}, {}, first_s=0.0)
    assert set() == set(near.demands)

    await near.refresh(names, {}, {}, first_s=1.0)
    assert {NAME} == set(near.demands)

    await near.refresh(names, {}, {})
    assert set(names) == set(near.demands)


async def test_a_history_too_short_to_measure_is_tried_again_soon(fleet: Fleet) -> None:
    model = Listener(enough=False)
    near = watching(fleet, Listening(models=[model]))

    await near.calibrate(LEADS)
    await near.calibrate(LEADS)
    await fleet.clock.advance(300.0)
    model.enough = True

    assert await near.calibrate(LEADS) == 1
    assert len(model.leads) == 2


@pytest.mark.parametrize("setting", ["near_enabled", "prediction_enabled"])
async def test_switched_off_nothing_is_read_or_measured(fleet: Fleet, setting: str) -> None:
    forecaster = Listening()
    near = watching(fleet, forecaster, **{setting: False})
    await store(fleet, 1.0, first_at=START - MINUTE)

    await near.refresh(LEADS, {}, {})

    assert await near.calibrate(LEADS) == 0
    assert near.demands == {}
    assert len(forecaster.models) == 1


async def test_a_defect_concerns_one_workload_only(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    near = watching(fleet, Listening(models=[Listener(broken=True), Listener()]))
    await store(fleet, 1.0, first_at=START - MINUTE, workload="a")
    await store(fleet, 2.0, first_at=START - MINUTE, workload="b")
    leads = {"a": LeadTime(60.0), "b": LeadTime(60.0)}

    with caplog.at_level(logging.ERROR):
        await near.refresh(leads, {}, {})
        made = await near.calibrate(leads)

    assert (1, {"b"}) == (made, set(near.demands))
    assert ["near demand of a failed", "calibration of a failed"] == caplog.messages


async def test_workloads_are_renewed_together(fleet: Fleet) -> None:
    forecaster = Listening(models=[Listener(), Listener(), Listener()])
    near = watching(fleet, forecaster)
    for number, name in enumerate("abc"):
        await store(fleet, number + 1.0, first_at=START - MINUTE, workload=name)

    await near.refresh("abc", {}, {})

    assert [3] == forecaster.asked
    assert {"a": (1.0,), "b": (2.0,), "c": (3.0,)} == {name: one.qps for name, one in near.demands.items()}


def checked(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, check: Callable[[Sequence[str]], None]) -> None:
    """Let ``check`` say, by raising, how reading the minutes of many workloads fails."""
    begin = fleet.store.unit_of_work

    def unit_of_work() -> FakeUnitOfWork:
        uow = begin()
        read_many = uow.traffic.read_many

        async def read(
            workloads: Sequence[str], start_at: datetime, end_at: datetime
        ) -> Mapping[str, Minutes]:
            check(workloads)
            return await read_many(workloads, start_at, end_at)

        monkeypatch.setattr(uow.traffic, "read_many", read)
        return uow

    monkeypatch.setattr(fleet.store, "unit_of_work", unit_of_work)


async def test_minutes_that_cannot_be_read_concern_their_workload_only(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    near = watching(fleet, Listening(models=[Listener() for _ in range(5)]))
    for name in "abcde":
        await store(fleet, 1.0, first_at=START - MINUTE, workload=name)

    def check(workloads: Sequence[str]) -> None:
        if "c" in workloads:
            raise ValueError("a row that no release has written")

    checked(fleet, monkeypatch, check)

    with caplog.at_level(logging.ERROR):
        await near.refresh("abcde", {}, {})

    assert set("abde") == set(near.demands)
    assert ["near demand of c failed"] == caplog.messages


async def test_a_read_that_fails_once_is_made_again_at_the_next_turn(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with the next minute: a store that was away for a moment costs seconds of near demand."""
    near = watching(fleet, Listening())
    await store(fleet, 1.0, first_at=START - MINUTE)
    await near.refresh(LEADS, {}, {})
    failures = [UnavailableError("the database is away")]

    def check(_: Sequence[str]) -> None:
        if failures:
            raise failures.pop()

    checked(fleet, monkeypatch, check)
    await store(fleet, 2.0)
    await fleet.clock.advance(62.0)

    await near.refresh(LEADS, {}, {})
    assert near.demands[NAME].qps == (1.0,)
    await near.refresh(LEADS, {}, {})
    assert near.demands[NAME].qps == (2.0,)


async def test_with_the_store_away_the_last_stays_and_work_goes_on_afterwards(fleet: Fleet) -> None:
    near = watching(fleet, Listening())
    await store(fleet, 1.0, first_at=START - MINUTE)
    await near.refresh(LEADS, {}, {})
    before = dict(near.demands)

    fleet.store.available = False
    await fleet.clock.advance(120.0)
    await near.refresh(LEADS, {}, {})
    assert await near.calibrate(LEADS) == 0
    assert before == near.demands

    fleet.store.available = True
    assert await near.calibrate(LEADS) == 1


async def test_a_deleted_workload_is_forgotten(fleet: Fleet) -> None:
    near = watching(fleet, Listening(models=[Listener(), Listener()]))
    await store(fleet, 1.0, first_at=START - MINUTE)
    await near.refresh(LEADS, {}, {})

    await near.refresh({}, {}, {})
    assert near.demands == {}

    await near.refresh(LEADS, {}, {})
    assert set(near.demands) == {NAME}


# ---------------------------------------------------------------- in a running controller


async def test_decisions_follow_near_demand_until_it_is_old(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    leader = process("a")
    await store(fleet, 20_000.0, first_at=START - MINUTE)
    fleet.demand(recommender.name, 8000.0)
    await leader.turn()
    await leader.runner.calibrate()
    await leader.runner.near()

    await fleet.clock.advance(5.0)
    await leader.turn()

    assert "demand may reach 20000 QPS" in (await newest(fleet)).sentence

    await fleet.clock.advance(301.0)
    fleet.demand(recommender.name, 8000.0)
    await leader.runner.near()
    await leader.turn()

    assert Source.PLAN not in {r.source for r in (await newest(fleet)).recommendations}


async def test_a_follower_measures_nothing(fleet: Fleet, process: Make, recommender: Workload) -> None:
    leader, follower = process("a"), process("b")
    await store(fleet, 1.0, first_at=START - MINUTE, workload=recommender.name)
    for each in (leader, follower):
        await each.turn()
        await each.runner.calibrate()
        await each.runner.near()

    assert [1, 0] == [len(p.forecasting.near.demands) for p in (leader, follower)]


async def test_who_no_longer_leads_measures_and_stores_nothing_more(fleet: Fleet) -> None:
    leads = {name: LeadTime(60.0) for name in "ab"}
    for name in leads:
        await store(fleet, 1.0, first_at=START - MINUTE, workload=name)
    answers = iter((True, False))  # before the first workload, and once it is measured
    near = watching(fleet, Listening(models=[Listener(), Listener()]))

    assert await near.calibrate(leads, lambda: next(answers, False)) == 1

    assert fleet.store.tables.said == {}


async def test_a_workload_that_went_while_another_process_led_is_forgotten(fleet: Fleet) -> None:
    await store(fleet, 1.0, first_at=START - MINUTE)
    near = watching(fleet, Listening())
    await near.calibrate(LEADS)
    await near.refresh(LEADS, {}, {})
    assert set(near.demands) == {NAME}

    near.forget()
    await near.refresh({}, {}, {})

    assert near.demands == {}


@pytest.mark.parametrize("before", [(), (Runner.forecast, Runner.near, Runner.calibrate)], ids=["", "jobs"])
async def test_a_new_leader_knows_near_demand_at_its_first_tick(
    fleet: Fleet,
    process: Make,
    recommender: Workload,
    before: Sequence[Callable[[Runner], Awaitable[None]]],
) -> None:
    """Whichever of its jobs come first."""
    first, second = process("a"), process("b")
    await store(fleet, 20_000.0, first_at=START - MINUTE)
    fleet.demand(recommender.name, 8000.0)
    await first.turn()
    await first.runner.calibrate()

    await fleet.clock.advance(61.0)
    await store(fleet, 30_000.0)
    fleet.demand(recommender.name, 8000.0)
    await second.leadership.renew()
    await second.runner.scrape()
    for job in before:
        await job(second.runner)
    await second.runner.tick()

    assert set(second.forecasting.near.demands) == {NAME}
    assert "demand may reach 30000 QPS" in (await newest(fleet)).sentence


async def test_what_a_leader_begins_with_is_loaded_by_one_of_its_jobs(
    fleet: Fleet, process: Make, recommender: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the second one would forget what the first goes on with."""
    leader = process("a")
    await leader.leadership.renew()
    load, loads = leader.forecasting.load, list[int]()

    async def long(workloads: Sequence[Workload]) -> None:
        loads.append(len(workloads))
        for _ in range(100):  # turns of the event loop, in which others go on
            await asyncio.sleep(0)
        await load(workloads)

    monkeypatch.setattr(leader.forecasting, "load", long)
    await asyncio.gather(leader.runner.forecast(), leader.runner.tick())

    assert [1] == loads


def ramped(at: datetime) -> float:
    """8 000 QPS, and 20 000 from 06:00 to 12:00 after a climb of ten minutes; a little uneven."""
    minute = at.hour * 60 + at.minute
    share = min(max((minute - 360) / 10, 0.0), 1.0) if minute < 720 else 0.0
    return (8000.0 + 12_000.0 * share) * (1.0 + 0.02 * math.sin(1.7 * minute + at.day))


async def test_replicas_are_ordered_before_the_daily_ramp_begins(
    fleet: Fleet, process: Make, recommender: Workload
) -> None:
    """With the real forecaster, on a week of minutes."""
    leader = process("a")
    near = leader.forecasting.near = watching(fleet, FitForecaster())
    ramp_at = START.replace(hour=6) + timedelta(days=1)
    begin_at = ramp_at - timedelta(minutes=40)
    first_at = begin_at - timedelta(days=7)
    known = [ramped(first_at + i * MINUTE) for i in range(7 * 1440)]
    await store(fleet, *known, first_at=first_at)
    await fleet.clock.advance((begin_at - START).total_seconds())

    counts: dict[int, int] = {}
    while fleet.clock.now() < ramp_at:
        now = fleet.clock.now()
        fleet.demand(recommender.name, ramped(now - MINUTE))
        await leader.leadership.renew()
        await leader.runner.calibrate()
        await leader.runner.near()
        await leader.turn()
        counts[(ramp_at - now) // MINUTE] = (await newest(fleet)).desired_replicas
        await store(fleet, ramped(now), first_at=now)
        await fleet.clock.advance(60.0)

    assert near.demands[NAME].qps[-1] > 9000.0
    assert {2} == {count for before, count in counts.items() if before > 10}
    assert counts[1] > 2


async def test_near_demand_after_a_takeover_is_what_it_was_before(fleet: Fleet) -> None:
    """With the real forecaster, on two days of minutes."""
    first_at = START - timedelta(days=2)
    await store(fleet, *(ramped(first_at + i * MINUTE) for i in range(2 * 1440)), first_at=first_at)
    before, after = (watching(fleet, FitForecaster()) for _ in range(2))
    await before.calibrate(LEADS)
    await before.refresh(LEADS, {}, {})

    await after.refresh(LEADS, {}, {})

    assert before.demands == after.demands
    assert {NAME: START} == {name: near.at for name, near in after.demands.items()}


@pytest.mark.parametrize(("stated", "kept"), [(500.0, {0, 1, 4, 5}), (None, {0, 1, 2, 3, 4, 5})])
async def test_what_an_event_of_stated_size_explains_is_left_out_of_the_record(
    fleet: Fleet, stated: float | None, kept: set[int]
) -> None:
    model = Listener()
    near = watching(fleet, Listening(models=[model]))
    await store(fleet, 1.0, 1.0, 500.0, 500.0, 1.0, 1.0)
    event = TrafficEvent(
        id="sale",
        workloads=(NAME,),
        start_at=START + 2 * MINUTE,
        end_at=START + 4 * MINUTE,
        time_zone="UTC",
        expected_peak_qps=stated,
    )
    async with fleet.store.unit_of_work() as uow:
        await uow.events.create(event)
        await uow.commit()
    await fleet.clock.advance(6 * 60.0)

    await near.calibrate(LEADS)

    assert kept == {index for index, (_, qps) in enumerate(model.heard[-1]) if qps is not None}
