"""Near demand from minutes: up before the daily ramp, calm in noise, honest about what it does not know."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from controller.adapters.calibrations import layout_of
from controller.adapters.forecaster import FitForecaster
from controller.adapters.near_model import NEAR_LEVELS, NEAR_VALID_MINUTES, recent_of
from controller.core.types import ForecastBand, ForecastState, NearDemand, Trust
from controller.ports import NearAsked, NearModel
from controller.simulation.ours import LEVELS, Foresight
from controller.simulation.trace import Trace
from forecaster import nearcast
from forecaster.nearcast import recent

Minutes = list[tuple[datetime, float | None]]

START = datetime(2026, 11, 2, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
DAY = 1440
LEAD = timedelta(minutes=5)
# Every day at 09:00 demand climbs from 1 000 to 5 000 QPS within ten minutes, and falls at 18:00.
RAMP = 9 * 60
DAYS = 8


def a_history(minute_count: int) -> Minutes:
    at = np.arange(minute_count)
    ramp = np.clip((at % DAY - RAMP) / 10, 0, 1) * (at % DAY < 18 * 60)
    noise = np.exp(np.random.default_rng(7).normal(0.0, 0.03, minute_count))
    return [
        (START + int(i) * MINUTE, float(qps)) for i, qps in zip(at, (1000 + 4000 * ramp) * noise, strict=True)
    ]


HISTORY = a_history((DAYS + 1) * DAY)


def a_band(start: int, *qps: float, step: timedelta = timedelta(minutes=5)) -> ForecastBand:
    at = START + start * MINUTE
    return ForecastBand(
        "f", at, at, step, (0.1, 0.5, 0.9), tuple((v, v, v) for v in qps), ForecastState.READY
    )


async def a_model(end: int, *, lead: timedelta = LEAD, history: Minutes = HISTORY) -> NearModel:
    model = FitForecaster().near_model()
    assert await model.calibrate(history[:end], lead=lead)
    return model


def told(
    model: NearModel, end: int, band: ForecastBand | None = None, trust: Trust = Trust.TRUSTED
) -> NearDemand:
    near = model.near(HISTORY[end - 120 : end], band, trust=trust)
    assert near is not None
    return near


def at_level(near: NearDemand, level: float) -> float:
    return near.qps[near.levels.index(level)]


def test_its_levels_are_those_the_simulator_is_judged_with() -> None:
    assert LEVELS == NEAR_LEVELS


async def test_it_says_what_the_simulator_is_told() -> None:
    """Hourly fits in steps of five minutes here, of one there: the same demand to prepare for, within 2 %."""
    minutes = HISTORY[: 17 * 60]
    foresight = Foresight(
        Trace("t", START, 60, np.array([qps for _, qps in minutes])), (), LEAD.total_seconds()
    )
    forecaster, step = FitForecaster(), timedelta(minutes=5)
    model, band = forecaster.near_model(), None
    for end in range(180, len(minutes)):
        if end % 60 == 0:
            buckets = [
                (minutes[i][0], float(np.mean([q or 0.0 for _, q in minutes[i : i + 5]])))
                for i in range(0, end, 5)
            ]
            _, band = await forecaster.forecast(
                "w", buckets, step=step, horizon_steps=24, events=(), now=minutes[end][0]
            )
            await model.calibrate(minutes[:end], lead=LEAD)
        near = model.near(minutes[max(0, end - 120) : end], band, trust=Trust.TRUSTED)

        simulated = foresight.near(end * 60.0, minutes[end - 1][1] or 0.0)
        if end >= 16 * 60:  # from then on the forecast has record enough
            assert near is not None
            assert simulated is not None
            assert near.qps == pytest.approx(simulated, rel=0.02)


async def test_it_covers_the_whole_ramp_one_lead_time_ahead() -> None:
    today = DAYS * DAY
    model = await a_model(today + RAMP - 60)

    for end in range(today + RAMP - 30, today + RAMP + 15):
        highest = max(qps for _, qps in HISTORY[end : end + 6] if qps is not None)
        assert at_level(told(model, end), 0.999) >= highest


async def test_it_stays_near_present_demand_at_other_times_of_day() -> None:
    """Within an hour or two of a daily ramp the highest quantiles widen; five hours away they know nothing of it."""
    today = DAYS * DAY
    model = await a_model(today + RAMP - 300)

    for end in range(today + RAMP - 295, today + RAMP - 245):
        assert at_level(told(model, end), 0.999) < 1500


async def test_noise_neither_lifts_nor_lowers_it_much() -> None:
    today = DAYS * DAY
    model = await a_model(today + 120)

    values = [at_level(told(model, end), 0.999) for end in range(today + 120, today + 400, 7)]

    assert max(values) < 1.25 * min(values)


async def test_it_is_sound_where_the_core_reads_it() -> None:
    near = told(await a_model(DAYS * DAY), DAYS * DAY)

    assert NearDemand(START + DAYS * DAY * MINUTE, LEAD, NEAR_LEVELS, near.qps) == near
    assert list(near.qps) == sorted(near.qps)


async def test_a_gap_in_the_minutes_is_neither_zero_nor_the_end() -> None:
    end = DAYS * DAY + 300
    history: Minutes = [
        (at, None if end - 200 <= i < end - 20 else qps) for i, (at, qps) in enumerate(HISTORY)
    ]
    model = await a_model(end, history=history)

    near = model.near(history[end - 120 : end], None, trust=Trust.TRUSTED)

    assert near is not None
    assert at_level(near, 0.999) == pytest.approx(at_level(told(await a_model(end), end), 0.999), rel=0.1)


async def test_minutes_not_stored_yet_make_it_older_and_no_smaller() -> None:
    end = DAYS * DAY + 300
    model = await a_model(end)
    waiting: Minutes = [*HISTORY[end - 118 : end], *((HISTORY[end + i][0], None) for i in range(2))]

    near = model.near(waiting, None, trust=Trust.TRUSTED)

    assert near == replace(told(model, end), qps=near.qps if near else ())
    assert near is not None
    assert near.qps == pytest.approx(told(model, end).qps, rel=0.01)


@pytest.mark.parametrize("history", [[], HISTORY[:40], [(at, None) for at, _ in HISTORY[:DAY]]])
async def test_too_little_history_is_said_and_nothing_is_invented(history: Minutes) -> None:
    model = FitForecaster().near_model()

    assert not await model.calibrate(history, lead=LEAD)
    assert model.near(HISTORY[:30], None, trust=Trust.TRUSTED) is None


async def test_a_history_that_became_too_short_forgets_what_was_measured() -> None:
    model = await a_model(DAYS * DAY)

    assert not await model.calibrate([], lead=LEAD)
    assert model.near(HISTORY[-120:], None, trust=Trust.TRUSTED) is None


async def test_without_known_minutes_nothing_is_said() -> None:
    model = await a_model(DAYS * DAY)
    unknown: Minutes = [(at, None) for at, _ in HISTORY[-120:]]

    assert model.near(unknown, None, trust=Trust.TRUSTED) is None


async def test_a_calibration_serves_six_hours() -> None:
    end = DAYS * DAY
    model = await a_model(end)
    last, beyond = end + NEAR_VALID_MINUTES - 1, end + NEAR_VALID_MINUTES

    assert model.near(HISTORY[last - 120 : last], None, trust=Trust.TRUSTED) is not None
    assert model.near(HISTORY[beyond - 120 : beyond], None, trust=Trust.TRUSTED) is None


@pytest.mark.parametrize(
    ("lead_s", "kept_s"), [(45.0, 45.0), (90.0, 90.0), (600.0, 600.0), (200_000.0, 86_400.0)]
)
async def test_it_names_the_lead_time_it_was_made_for(lead_s: float, kept_s: float) -> None:
    model = await a_model(DAYS * DAY, lead=timedelta(seconds=lead_s))

    assert timedelta(seconds=kept_s) == told(model, DAYS * DAY).lead


# ------------------------------------------------- the forecast as one of the experts


def steady(minute_count: int) -> Minutes:
    """A level that jumps at random minutes, which only a forecast can know."""
    rng = np.random.default_rng(3)
    levels = np.repeat(rng.choice([1000.0, 3000.0], minute_count // 30 + 1), 30)[:minute_count]
    return [(START + i * MINUTE, float(v)) for i, v in enumerate(levels)]


async def foreseen(model: NearModel, minutes: Minutes, ends: Sequence[int]) -> None:
    """Let the model hear, minute by minute, a forecast that knows the jumps."""
    for end in ends:
        coming = [qps or 0.0 for _, qps in minutes[end : end + 30]]
        model.near(minutes[max(0, end - 60) : end], a_band(end, *coming, step=MINUTE), trust=Trust.TRUSTED)


def heeds_the_forecast(model: NearModel, minutes: Minutes, end: int) -> bool:
    """Whether another forecast changes near demand."""
    start_at = minutes[end - 1][0] + MINUTE
    high, low = (replace(a_band(0, *[qps] * 40, step=MINUTE), start_at=start_at) for qps in (9000.0, 1000.0))
    recent = minutes[end - 60 : end]
    return model.near(recent, high, trust=Trust.TRUSTED) != model.near(recent, low, trust=Trust.TRUSTED)


@pytest.mark.parametrize(
    ("first", "heeded"), [(60, True), (2 * DAY - 40 - 600, False), (2 * DAY - 40 - DAY - 1, True)]
)
async def test_a_forecast_is_heeded_once_it_has_a_day_of_record(first: int, *, heeded: bool) -> None:
    minutes = steady(2 * DAY)
    end = 2 * DAY - 40
    model = FitForecaster().near_model()
    await model.calibrate(minutes[:60], lead=LEAD)  # from now on what is said is said for this lead time
    await foreseen(model, minutes, range(first, end))

    await model.calibrate(minutes[:end], lead=LEAD)

    assert heeds_the_forecast(model, minutes, end) == heeded


async def test_calm_hours_after_a_restart_do_not_let_the_forecast_hide_the_ramp() -> None:
    """It said the flat night perfectly; that is no record to meet a morning with."""
    today = DAYS * DAY
    model = await a_model(today)
    for end in range(today, today + RAMP - 30):
        model.near(HISTORY[end - 120 : end], a_band(end, *[1000.0] * 8), trust=Trust.TRUSTED)
    await model.calibrate(HISTORY[: today + RAMP - 30], lead=LEAD)

    for end in range(today + RAMP - 8, today + RAMP + 10):
        highest = max(qps for _, qps in HISTORY[end : end + 6] if qps is not None)
        assert at_level(told(model, end, a_band(end, *[1000.0] * 8)), 0.999) >= highest


async def test_a_forecast_with_a_good_record_foresees_what_demand_alone_does_not() -> None:
    minutes = steady(2 * DAY)
    jump = next(i for i in range(DAY + 60, 2 * DAY) if (minutes[i][1], minutes[i - 1][1]) == (3000.0, 1000.0))
    end = jump - 3
    model = FitForecaster().near_model()
    await model.calibrate(minutes[:60], lead=LEAD)  # from now on what is said is said for this lead time
    await foreseen(model, minutes, range(60, end))
    await model.calibrate(minutes[:end], lead=LEAD)
    coming = a_band(end, *(qps or 0.0 for _, qps in minutes[end : end + 30]), step=MINUTE)
    calm = a_band(end, *[1000.0] * 30, step=MINUTE)

    def said(band: ForecastBand | None, trust: Trust) -> float:
        near = model.near(minutes[end - 60 : end], band, trust=trust)
        assert near is not None
        return at_level(near, 0.9)

    assert said(coming, Trust.TRUSTED) > 2700
    assert said(calm, Trust.TRUSTED) < 1300
    # A distrusted one is not asked, whatever it says; nor is one that does not reach far enough.
    assert said(coming, Trust.DISTRUSTED) == said(calm, Trust.DISTRUSTED) == said(None, Trust.TRUSTED)
    assert said(a_band(end, 3000.0, step=MINUTE), Trust.TRUSTED) == said(None, Trust.TRUSTED)


@pytest.mark.parametrize("lead", [LEAD, 4 * LEAD], ids=["same lead time", "another lead time"])
async def test_a_restart_goes_on_from_the_record_of_what_was_said(lead: timedelta) -> None:
    minutes = steady(2 * DAY)
    end = 2 * DAY - 40
    before = FitForecaster().near_model()
    await before.calibrate(minutes[:60], lead=LEAD)
    await foreseen(before, minutes, range(60, end - 30))

    model = FitForecaster().near_model()
    record = before.record()
    model.restore(record)
    await foreseen(model, minutes, range(end - 20, end))
    await model.calibrate(minutes[:end], lead=lead, record=model.record(record))

    assert heeds_the_forecast(model, minutes, end) == (lead == LEAD)


async def test_what_is_stored_is_not_remembered_as_well() -> None:
    minutes = steady(DAY)
    one, other = FitForecaster().near_model(), FitForecaster().near_model()
    await foreseen(one, minutes, range(60, 300))
    stored = one.record()
    await foreseen(one, minutes, range(300, 303))
    one.kept(stored)
    await foreseen(one, minutes, range(303, 310))

    await foreseen(other, minutes, range(300, 310))
    assert one.record() == other.record()
    await foreseen(other, minutes, range(60, 300))
    assert one.record(stored) == other.record()


@pytest.mark.parametrize("damage", [lambda r: b"", lambda r: r[:-1], lambda r: b"\xff\xff" + r[2:]])
async def test_a_record_that_cannot_be_read_is_as_good_as_none(damage: Callable[[bytes], bytes]) -> None:
    model = FitForecaster().near_model()
    fresh = model.record()

    model.restore(damage(fresh))

    assert model.record(damage(fresh)) == fresh


async def test_without_a_record_the_forecast_has_no_say() -> None:
    end = DAYS * DAY + 300
    model = await a_model(end)

    assert told(model, end, a_band(end, *[50_000.0] * 6)) == told(model, end)


async def test_what_was_said_for_another_lead_time_is_not_held_against_the_forecast() -> None:
    minutes = steady(2 * DAY)
    end = 2 * DAY - 40
    model = FitForecaster().near_model()
    await model.calibrate(minutes[:60], lead=LEAD)
    await foreseen(model, minutes, range(60, end))

    await model.calibrate(minutes[:end], lead=4 * LEAD)

    assert not heeds_the_forecast(model, minutes, end)


@pytest.mark.parametrize(
    "band",
    [
        replace(a_band(0, 1.0), qps=()),
        replace(a_band(0, 1.0), levels=(0.1, 0.4, 0.9)),
        a_band(0, *[float("nan")] * 6),
        a_band(0, *[-1.0] * 6),
        a_band(200, *[9000.0] * 6),
    ],
)
async def test_a_forecast_that_cannot_be_used_stops_nothing(band: ForecastBand) -> None:
    end = DAYS * DAY + 300
    shifted = replace(band, start_at=band.start_at + end * MINUTE)

    assert told(await a_model(end), end, shifted) == told(await a_model(end), end)


async def test_what_was_said_is_forgotten_after_two_weeks() -> None:
    minutes = steady(2 * DAY)
    model = FitForecaster().near_model()
    await model.calibrate(minutes[:60], lead=LEAD)
    await foreseen(model, minutes, range(60, 2 * DAY - 30))
    later: Minutes = [(at + timedelta(days=14), qps) for at, qps in minutes]
    model.near(later[-120:-1], None, trust=Trust.TRUSTED)
    model.near(
        minutes[:60], a_band(60, *[9000.0] * 30, step=MINUTE), trust=Trust.TRUSTED
    )  # too late to count

    await model.calibrate(later, lead=LEAD)

    assert not heeds_the_forecast(model, later, 2 * DAY)


# ---------------------------------------------------------------- going on with a stored calibration


def at(end: int) -> datetime:
    return START + end * MINUTE


async def test_a_stored_calibration_says_what_it_said_before_it_was_stored() -> None:
    end = DAYS * DAY + RAMP - 30
    before = await a_model(end, lead=90 * timedelta(seconds=1))
    after = FitForecaster().near_model()

    assert after.resume(before.calibration(), at(end + 10)) == (at(end), timedelta(seconds=90))

    for minute in (end, end + 20, end + NEAR_VALID_MINUTES - 1):
        assert told(after, minute) == told(before, minute)
    assert after.calibration() == before.calibration()


async def test_with_a_stored_calibration_goes_the_record_of_what_was_said() -> None:
    minutes, end = steady(2 * DAY), 2 * DAY - 40
    before = FitForecaster().near_model()
    await before.calibrate(minutes[:60], lead=LEAD)
    await foreseen(before, minutes, range(60, end - 30))
    await before.calibrate(minutes[: end - 30], lead=LEAD)
    record = before.record()

    model = FitForecaster().near_model()
    model.resume(before.calibration(), at(end - 20))
    assert heeds_the_forecast(model, minutes, end - 20)
    await foreseen(model, minutes, range(end - 20, end))
    model.restore(record)
    await model.calibrate(minutes[:end], lead=LEAD, record=model.record(record))

    assert heeds_the_forecast(model, minutes, end)


async def test_nothing_is_stored_before_anything_was_measured() -> None:
    assert FitForecaster().near_model().calibration() == b""


@pytest.mark.parametrize("later", [-1, NEAR_VALID_MINUTES, 10 * DAY])
async def test_a_calibration_that_does_not_serve_now_is_not_gone_on_with(later: int) -> None:
    end = DAYS * DAY
    stored, model = (await a_model(end)).calibration(), FitForecaster().near_model()

    assert model.resume(stored, at(end + later)) is None
    assert model.near(HISTORY[end - 120 : end], None, trust=Trust.TRUSTED) is None


@pytest.mark.parametrize(
    "damage",
    [lambda c: b"", lambda c: c[:-1], lambda c: c[:-6], lambda c: c[:100], lambda c: c[:-4] + b"\xff" * 4],
    ids=["none", "cut", "a change short", "a head's part", "another envelope"],
)
async def test_a_calibration_that_is_not_whole_is_as_good_as_none(damage: Callable[[bytes], bytes]) -> None:
    end = DAYS * DAY
    stored, model = (await a_model(end)).calibration(), FitForecaster().near_model()

    assert model.resume(damage(stored), at(end)) is None


@pytest.fixture
def other_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Makes this release another one, by a line of what measures."""

    def change() -> None:
        other = tmp_path / "nearcast.py"
        other.write_bytes(Path(nearcast.__file__).read_bytes() + b"\n")
        monkeypatch.setattr(nearcast, "__file__", str(other))
        layout_of.cache_clear()

    yield change
    layout_of.cache_clear()


async def test_a_calibration_of_code_that_measures_otherwise_is_as_good_as_none(
    other_code: Callable[[], None],
) -> None:
    end = DAYS * DAY
    stored, model = (await a_model(end)).calibration(), FitForecaster().near_model()

    other_code()

    assert model.resume(stored, at(end)) is None


# ---------------------------------------------------------------- many at once


def same(one: NearDemand | None, other: NearDemand | None) -> bool:
    """But for the last bits of a double: sums of many are made in another order."""
    if one is None or other is None:
        return one is other
    return replace(one, qps=()) == replace(other, qps=()) and one.qps == pytest.approx(other.qps, rel=1e-9)


async def test_many_say_together_what_each_says_alone() -> None:
    end, forecaster, minutes = 2 * DAY - 40, FitForecaster(), steady(2 * DAY)
    other = await a_model(end)
    heeding = forecaster.near_model()
    await heeding.calibrate(minutes[:60], lead=LEAD)
    await foreseen(heeding, minutes, range(60, end))
    await heeding.calibrate(minutes[:end], lead=LEAD)
    long = await a_model(end, lead=20 * MINUTE, history=minutes)
    seen, coming = minutes[end - 120 : end], a_band(end, *[2000.0] * 40, step=MINUTE)
    unknown: Minutes = [(at, None) for at, _ in seen]
    holes: Minutes = [(at, None if i % 3 else qps) for i, (at, qps) in enumerate(seen)]
    asked = [
        NearAsked(model, known, band, trust)
        for model in (heeding, other, long, forecaster.near_model())
        for known in (seen, seen[-40:], seen[:-2], holes, unknown, [])
        for band in (None, coming, a_band(end, 2000.0, step=MINUTE))
        for trust in (Trust.TRUSTED, Trust.DISTRUSTED)
    ]

    together = forecaster.near_of(asked)

    alone = [one.model.near(one.minutes, one.band, trust=one.trust) for one in asked]
    assert all(map(same, together, alone))
    assert {True, False} == {one is None for one in together}
    assert [] == forecaster.near_of([])


async def test_what_is_newest_is_what_the_replay_takes_for_it() -> None:
    """`forecaster.nearcast.recent`, which says it of every minute, and this of the last ones of many workloads."""
    demand = np.array([qps for _, qps in HISTORY[RAMP - 60 : RAMP + 60]], dtype=np.float64)
    holes = np.where(np.arange(120) % 7 == 0, demand, math.nan)
    holes[-1] = demand[-1]
    started = np.concatenate((np.full(110, math.nan), demand[:10]))

    newest = recent_of(np.stack((demand, holes, started)))

    for column, values in zip(newest.T, (demand, holes, started), strict=True):
        assert column == pytest.approx(recent(values, 60)[:, -1])
