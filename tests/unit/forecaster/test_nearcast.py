"""Near quantiles: calibrated, monotone, causal, honest about short history."""

import numpy as np
import pytest

from forecaster import ForecastInputError
from forecaster.nearcast import Nearcast, Newest, calibrate, quantiles, recent
from forecaster.types import Floats

LEVELS = (0.9, 0.99, 0.999)
DAY = 1440
LEAD = 5


def _wave(days: float, noise: float = 0.05, seed: int = 1) -> Floats:
    minutes = np.arange(round(days * DAY))
    rng = np.random.default_rng(seed)
    wave = 1000 + 700 * np.sin(2 * np.pi * minutes / DAY)
    return np.asarray(wave * rng.normal(1.0, noise, len(minutes)))


def _calibrated(demand: Floats, valid: int = 60) -> Nearcast:
    made = calibrate(demand, None, step_s=60, lead_steps=LEAD, levels=LEVELS, valid_steps=valid)
    assert made is not None
    return made


def _now(demand: Floats) -> Newest:
    last, short, long, high = recent(demand, 60)[:, -1].tolist()
    return Newest(last, short, long, high, float("nan"))


def test_less_than_an_hour_says_nothing() -> None:
    assert calibrate(_wave(0.03), None, step_s=60, lead_steps=LEAD, levels=LEVELS, valid_steps=60) is None


def test_silence_says_nothing() -> None:
    silent = np.zeros(3 * DAY)

    assert calibrate(silent, None, step_s=60, lead_steps=LEAD, levels=LEVELS, valid_steps=60) is None


@pytest.mark.parametrize("days", [0.1, 1.0, 3.0, 8.0])
def test_quantiles_are_finite_and_monotone(days: float) -> None:
    demand = _wave(days)

    values = _calibrated(demand).quantiles(0, _now(demand))

    assert bool(np.isfinite(values).all())
    assert bool((values >= 0).all())
    assert values.tolist() == sorted(values.tolist())


def test_coverage_is_what_the_level_says() -> None:
    demand = _wave(10.0)
    covered, total = 0, 0
    for origin in range(6 * DAY, 10 * DAY - 60 - LEAD, 173):
        fit = _calibrated(demand[:origin])
        for age in (0, 17, 43):
            now = origin + age
            bound = fit.quantiles(age, _now(demand[:now]))[1]
            covered += bool(demand[now : now + LEAD + 1].max() <= bound)
            total += 1

    # 99 % of the highest demands; 100 windows overlap in the record, so allow a little.
    assert covered / total >= 0.95


def test_a_jump_at_the_same_time_on_earlier_days_is_expected() -> None:
    demand = _wave(6.0, noise=0.02)
    at_nine = (np.arange(len(demand)) % DAY) // 20 == 27
    demand[at_nine] *= 3.0
    origin = 5 * DAY + 540 - 4  # four minutes before nine o'clock

    before = _calibrated(demand[:origin]).quantiles(0, _now(demand[:origin]))
    early = 5 * DAY + 480
    calm = _calibrated(demand[:early]).quantiles(0, _now(demand[:early]))

    assert before[1] > 0.9 * demand[origin : origin + LEAD + 1].max()
    assert calm[1] < 1.5 * demand[early : early + LEAD + 1].max()


def test_the_future_changes_nothing() -> None:
    demand = _wave(4.0)
    origin = 3 * DAY
    changed = demand.copy()
    changed[origin:] *= 10

    one = _calibrated(demand[:origin]).quantiles(3, _now(demand[: origin + 3]))
    other = _calibrated(changed[:origin]).quantiles(3, _now(demand[: origin + 3]))

    assert one.tolist() == other.tolist()


def test_rows_are_the_same_quantiles_one_by_one() -> None:
    demand = _wave(4.0)
    origin = 3 * DAY
    fit = _calibrated(demand[:origin])
    known = [_now(demand[: origin + age]) for age in range(10)]
    newest = np.array([[n.last, n.short, n.long, n.high, n.expected] for n in known]).T

    rows = fit.rows(newest)

    for age, now in enumerate(known):
        np.testing.assert_allclose(fit.quantiles(age, now), rows[age])


def test_gaps_are_skipped_and_a_forecast_is_used_where_it_is_better() -> None:
    demand = _wave(5.0, noise=0.01)
    holes = demand.copy()
    holes[2 * DAY : 2 * DAY + 300] = np.nan
    rising = np.array([demand[i : i + LEAD + 1].max() for i in range(len(demand))])
    expected = np.concatenate((np.full(DAY, np.nan), rising[DAY:]))

    blind = _calibrated(holes)
    told = calibrate(holes, expected, step_s=60, lead_steps=LEAD, levels=LEVELS, valid_steps=60)

    assert told is not None
    now = _now(holes)
    knowing = Newest(now.last, now.short, now.long, now.high, float(rising[-1]))
    assert told.quantiles(0, knowing)[2] < blind.quantiles(0, now)[2]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"levels": (0.9, 0.5)}, "levels"),
        ({"levels": ()}, "levels"),
        ({"levels": (0.5, 1.0)}, "levels"),
        ({"lead_steps": 0}, "step_s"),
        ({"valid_steps": 0}, "step_s"),
        ({"expected": np.zeros(3)}, "demand"),
    ],
)
def test_impossible_arguments_are_named(change: dict[str, object], field: str) -> None:
    arguments: dict[str, object] = {
        "expected": None,
        "step_s": 60,
        "lead_steps": LEAD,
        "levels": LEVELS,
        "valid_steps": 60,
        **change,
    }

    with pytest.raises(ForecastInputError) as caught:
        calibrate(_wave(1.0), **arguments)  # type: ignore[arg-type]

    assert caught.value.field == field


@pytest.mark.parametrize("step_s", [300, 3600])
def test_coarser_steps_work(step_s: int) -> None:
    day = 86_400 // step_s
    demand = 100 + 50 * np.sin(2 * np.pi * np.arange(10 * day) / day)

    made = calibrate(demand, None, step_s=step_s, lead_steps=1, levels=LEVELS, valid_steps=12)

    assert made is not None
    level = float(demand[-1])
    newest = Newest(level, level, level, level, float("nan"))
    assert 0.8 * demand[0] < made.quantiles(0, newest)[0] < 2 * demand.max()


def test_what_is_known_of_the_running_step_narrows_the_bound() -> None:
    rng = np.random.default_rng(5)
    # A walk: each step is as far from the last as that was from the one before.
    demand = 100.0 * np.exp(np.cumsum(rng.normal(0.0, 0.05, 4000)) * 0.98 ** np.arange(4000)[::-1])
    level = float(demand[-1])
    newest = Newest(level, level, level, level, float("nan"))
    before, within = (
        calibrate(demand, None, step_s=300, lead_steps=1, levels=LEVELS, valid_steps=12, within=known)
        for known in (False, True)
    )

    assert before is not None
    assert within is not None
    assert within.quantiles(0, newest)[0] < before.quantiles(0, newest)[0]


def test_after_a_silent_night_the_usual_opening_is_expected_not_the_evenings_last_minute() -> None:
    demand = _wave(8.0, noise=0.02)
    hour = np.arange(len(demand)) % DAY // 60
    demand[:] = np.where(hour == 7, 3000.0, np.where(hour < 20, 1000.0, 50.0)) * demand / demand.mean()
    demand[(hour >= 21) | (hour < 7)] = np.nan
    origin = 7 * DAY + 7 * 60
    silent = Newest(*[float("nan")] * 5)

    bound = _calibrated(demand[:origin]).quantiles(0, silent)

    assert 0.8 * np.nanmax(demand) < bound[1] < 1.3 * np.nanmax(demand)


def test_demand_that_rises_is_expected_to_go_on_rising() -> None:
    """Ramps at no fixed time: only the rise under way tells of them."""
    rng = np.random.default_rng(11)
    level = np.full(10 * DAY, 100.0)
    for at in np.cumsum(rng.integers(200, 500, 60)):
        if at + 60 < len(level):
            level[at : at + 40] = np.linspace(100.0, 400.0, 40)
            level[at + 40 : at + 60] = 400.0
    demand = level * rng.normal(1.0, 0.01, len(level))
    steep = next(at for at in range(9 * DAY, len(level)) if level[at] > 250.0 > level[at - 1])
    flat = next(at for at in range(9 * DAY, len(level)) if level[at - 60 : at].max() == 100.0)

    up = _calibrated(demand[:steep]).quantiles(0, _now(demand[:steep]))[0] / demand[steep - 1]
    calm = _calibrated(demand[:flat]).quantiles(0, _now(demand[:flat]))[0] / demand[flat - 1]

    assert up > 1.1
    assert calm < 1.1


def test_more_safety_than_the_record_can_show_is_still_more_safety() -> None:
    rng = np.random.default_rng(3)
    demand = 100.0 * np.exp(rng.standard_t(4, 8 * DAY) * 0.1)
    levels = (0.99, 0.9998, 0.99999, 0.999999)

    made = calibrate(demand, None, step_s=60, lead_steps=LEAD, levels=levels, valid_steps=60)

    assert made is not None
    near, last, far, farthest = made.quantiles(0, _now(demand))
    assert near < last < far < farthest
    assert far < 100 * last  # a tail that goes on, not one that explodes


def test_a_restless_hour_is_bounded_more_widely_than_a_calm_one() -> None:
    """Both end at the same level; only how high the last hour went tells them apart."""
    rng = np.random.default_rng(4)
    restless = np.repeat(rng.random(10 * DAY // 240) < 0.3, 240)
    spikes = restless & (rng.random(len(restless)) < 0.1)
    demand = np.where(spikes, 300.0, 100.0) * rng.normal(1.0, 0.01, len(restless))
    fit = _calibrated(demand[: 9 * DAY])
    level = Newest(100.0, 100.0, 100.0, 102.0, float("nan"))

    calm = fit.quantiles(0, level)
    noisy = fit.quantiles(0, Newest(100.0, 100.0, 100.0, 305.0, float("nan")))

    assert calm[0] < 0.6 * noisy[0]


def test_a_calm_night_is_not_bounded_by_the_jumps_of_the_day() -> None:
    """Jobs start on some hours of the day, never by night: only who tells the times apart leaves the night alone."""
    rng = np.random.default_rng(5)
    level = np.full((12, 24, 60), 100.0)
    level[:, 8:18, :40] = np.where(rng.random((12, 10, 1)) < 0.4, 600.0, 100.0)
    demand = level.ravel() * rng.normal(1.0, 0.01, level.size)
    night, hour = 11 * DAY + 2 * 60 + 30, 11 * DAY + 11 * 60 - 3  # 2:30 and 10:57

    calm = _calibrated(demand[:night]).quantiles(0, Newest(100.0, 100.0, 100.0, 102.0, float("nan")))
    soon = _calibrated(demand[:hour]).quantiles(0, Newest(100.0, 100.0, 100.0, 102.0, float("nan")))

    assert calm[-1] < 300
    assert soon[-1] > 500


def _some(leads: tuple[int, ...] = (1, 5, 30)) -> tuple[list[Nearcast], Floats]:
    """Calibrations of unlike workloads, one of them too young for fitted lines, and what is known of each."""
    casts: list[Nearcast] = []
    known: list[list[float]] = []
    for seed, (days, size) in enumerate([(8.0, 1.0), (3.0, 1e-3), (0.1, 50.0), (2.0, 1e4)] * 2):
        demand = _wave(days, noise=0.02 + 0.1 * (seed % 3), seed=seed) * size
        lead = leads[seed % len(leads)]
        made = calibrate(demand, None, step_s=60, lead_steps=lead, levels=LEVELS, valid_steps=60)
        assert made is not None
        casts.append(made)
        known.append([*recent(demand, 60)[:, -1].tolist(), float(demand[-1]) if seed % 2 else float("nan")])
        if seed % 5 == 4:
            known[-1] = [float("nan")] * 5  # silent
    # More than are computed in one go.
    return casts * 20, np.array(known * 20).T


def test_many_at_once_say_what_each_says_alone() -> None:
    casts, known = _some()
    ages = np.arange(len(casts)) * 3 - 5  # some before their history's end, some after what they serve

    together = quantiles(casts, ages, known)

    alone = [
        cast.quantiles(int(age), Newest(*now))
        for cast, age, now in zip(casts, ages, known.T.tolist(), strict=True)
    ]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


def test_those_of_other_levels_are_refused() -> None:
    demand = _wave(1.0)
    other = calibrate(demand, None, step_s=60, lead_steps=LEAD, levels=(0.9, 0.99), valid_steps=60)
    assert other is not None

    with pytest.raises(ForecastInputError, match="same levels"):
        quantiles([_calibrated(demand), other], np.zeros(2, dtype=np.int64), np.ones((5, 2)))


def test_half_the_memory_changes_less_than_a_millionth() -> None:
    casts, known = _some()

    small = quantiles([cast.small() for cast in casts], np.zeros(len(casts), dtype=np.int64), known)

    exact = quantiles(casts, np.zeros(len(casts), dtype=np.int64), known)
    np.testing.assert_allclose(small, exact, rtol=1e-6)
    assert bool((small != exact).any())


def test_envelopes_are_kept_whole_though_only_their_changes_are() -> None:
    """Of a demand that never repeats every step is a change; of a constant one, none but the first."""
    rising = np.arange(3.0 * DAY) + 1
    constant = np.full(3 * DAY, 7.0)

    for demand, most in ((rising, 300), (constant, 5)):
        made = _calibrated(demand, valid=60)

        known = made.envelopes_at(np.arange(60)[None])
        assert len(made.changes) <= most
        # Of the highest of three days the last counts here, up to the lead time and the slack after it.
        last_day = demand[-DAY:][LEAD + 5 : LEAD + 65]
        np.testing.assert_array_equal(known[0], last_day)


@pytest.mark.parametrize(
    ("days", "said"),
    [
        (3.0, (1145.0704874989535, 1204.4255431596123, 1238.486034028946)),
        (8.0, (1149.0910718120183, 1182.1598057092956, 1237.9058064417627)),
    ],
)
def test_it_says_what_it_said(days: float, said: tuple[float, ...]) -> None:
    """Written down by slower code that looked at the same samples: whoever makes it faster changes only far digits."""
    demand = _wave(days)

    assert _calibrated(demand).quantiles(17, _now(demand)) == pytest.approx(said, rel=1e-5)
