"""Say how high demand may rise within one cold start: calibrated at that horizon, every minute, no refit.

What a replica ordered now must carry is the highest demand from now until it is warm. The quantiles of a
refit are as wide as its own horizon and its seasons are smooth; this module measures instead, on the
workload's own history, how far that highest demand lay above what was known beforehand, for several
simple experts (last value, short mean, highest of the last hour, corrected forecast; each alone or lifted to the
envelope of the same time on earlier days, a few minutes or half an hour early or late) and for one that is fitted:
lines through all of these, which see a rise under way and know how uncertain the moment is. Each measures distances
twice, in logarithms (a spike is a multiple) and in square roots (it is a count), some also in units of how far demand
usually rises at that time of day. It mixes them by their pinball loss at each quantile. Errors are weighted by demand:
what counts is the share of requests, not of minutes.

Promises: pure and deterministic; quantiles are >= 0 and monotone in the level; uses nothing after `now`;
works from an hour of history on and says None before. Refuses: shapes and levels that make no sense.
Called by: the controller's minute cycle and the simulator.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from forecaster.quantile_regression import SPREAD_MIN, Ints, Lines, fit_lines
from forecaster.rises import usual_rises
from forecaster.types import Floats, ForecastInputError

# What is kept of a calibration may be in single precision; what is computed never is.
Kept = Floats | NDArray[np.float32]

DAY_S: Final = 86_400
SAMPLES_MIN: Final = 60
HISTORY_DAYS: Final = 14.0
HALF_LIFE_DAYS: Final = 5.0
SCORE_DAYS: Final = 7.0
SCORE_HALF_LIFE_DAYS: Final = 3.0
SCORE_SAMPLES_MAX: Final = 3000
# Neighbouring windows overlap, so every fourth minute of two weeks tells as much as all.
FIT_SAMPLES_MAX: Final = 5040
# A mix that leans to the best expert, as far as the record can tell which one that is: far out in the tail a
# record holds only few windows that do not overlap, and choosing by them would choose luck. In full from this many
# such windows beyond the level on, by the square root of their number below.
MIX_POWER: Final = 10.0
TAIL_WINDOWS: Final = 30.0
# Samples within about this time of day count in full, others by the share.
NEARBY_HOURS: Final = 1.5
ELSEWHEN_SHARE: Final = 0.2
SHORT_S: Final = 240.0
LONG_S: Final = 1500.0
# How noisy the present is shows in how high the last hour went.
HIGH_S: Final = 3600
SLACK_S: Final = 300
ENVELOPE_DAYS: Final = 3
USUAL_DAYS: Final = 5
USUAL_QUANTILE: Final = 0.8
# Half an hour early or late, as whoever writes a rule per hour would: noise that no day repeats is covered too.
WIDE_S: Final = 1800
WIDE_DAYS: Final = 7
WIDEST_DAYS: Final = 5
WEEK_DAYS: Final = 7
# An observation older than this no longer says where demand is.
STALE_S: Final = 1800
# The record is halved by turns of this length, so that both halves hold every part of the week.
HALF_DAYS: Final = 0.5
# Features beyond these logarithms are outliers.
FEATURE_MAX: Final = 4.0
# Of the fitted lines.
FEATURES: Final = 16
# In the fitted lines, samples of other times of day count this share.
LINES_ELSEWHEN_SHARE: Final = 0.3
FLOOR_SHARE: Final = 0.05  # of usual demand, added before logarithms
# Times usual demand: the logarithm of nothing must be finite, and so must what a far tail says.
LEAST, MOST = 1e-6, 1e6
# Where an expert starts from.
EXPECTED, SHORT, PEAK, LONG, HIGH, NOTHING = range(6)
# Envelopes that lift it: none, highest of three days, usual of five days; the usual of seven and the highest of five
# days half an hour early or late; a week ago.
BARE, HIGHEST, USUAL, WIDE, WIDEST, WEEK = range(6)
EXPERTS: Final = (
    *(
        (start, kind, share)
        for start in (EXPECTED, SHORT, PEAK)
        for kind, share in ((BARE, 0.0), (HIGHEST, 0.8), (HIGHEST, 1.0), (USUAL, 0.8))
    ),
    (LONG, BARE, 0.0),
    (LONG, USUAL, 0.8),
    (NOTHING, USUAL, 1.0),
    (NOTHING, WIDE, 1.0),
    (SHORT, WIDE, 1.0),
    (EXPECTED, WIDE, 1.0),
    (PEAK, WIDEST, 0.8),
    (HIGH, BARE, 0.0),
    (HIGH, USUAL, 0.8),
    (SHORT, WEEK, 1.0),
    (EXPECTED, WEEK, 0.8),
)
# These are also measured in units of how far demand usually rises at that time of day: the record of a morning full of
# jumps would otherwise bound every calm night. The overall mean is added by the share: a little of it, or all.
TIMED_EXPERTS: Final = (
    (PEAK, BARE, 0.0),
    (PEAK, HIGHEST, 0.8),
    (PEAK, USUAL, 0.8),
    (EXPECTED, HIGHEST, 0.8),
    (SHORT, WIDE, 1.0),
    (HIGH, USUAL, 0.8),
)
TIMED_PLACES: Final = tuple(EXPERTS.index(expert) for expert in TIMED_EXPERTS)
OVERALL_SHARES: Final = (0.1, 1.0)
# Where they stand among all experts of a scale: after the plain ones.
TIMED: Final = range(len(EXPERTS), len(EXPERTS) + len(TIMED_EXPERTS) * len(OVERALL_SHARES))
# Where jumps are usual, the units are large: no further than the record itself says of chances that many times rarer.
RARER_TIMES: Final = 5.0
RISE_MIN: Final = 1e-4
# In the logarithms that the lines see, usual rises below this are alike.
RISE_SMALL: Final = 0.02
# Distances in logarithms suit noise that grows with demand, in square roots that of a counting process; and where a
# spike may come at any level, a multiple of a low level is too little, of a high one too much.
LOG, ROOT = range(2)
# A record of two weeks says nothing of one minute in ten thousand. Beyond this level its tail goes on as an
# exponential one with the mean excess of its last fiftieth, so that whoever wants more safety can have it.
RECORD_LEVEL: Final = 0.9998
EXCESS_LEVEL: Final = 0.98
# Workloads renewed at once: as many as stay in a core's own cache.
BLOCK: Final = 128
# Of the envelopes that a calibration keeps, which are all but the bare one.
_KEPT_ENVELOPES: Final = np.arange(WEEK)[:, None]


@dataclass(frozen=True, slots=True)
class Newest:
    """What is known at a tick, in units of demand; NaN where it is not.

    Attributes:
        last: Newest observation.
        short: Mean of the last minutes, the last entry of `short_mean`.
        long: Mean of the last half hour, the last entry of `long_mean`.
        high: Highest of the last hour.
        expected: Highest corrected median of the forecast within the lead time.
    """

    last: float
    short: float
    long: float
    high: float
    expected: float


@dataclass(frozen=True, slots=True)
class _Record:
    """What was known at each step of the history, and what came of it.

    Attributes:
        newest: `[5, N]` last, short and long mean, high, expected.
        envelopes: `[6, N]`.
        timed: `[2, S, N]`.
        highest: `[N]` highest demand within the lead time; NaN where it is not known.
        age: `[N]` in days.
        unit: Usual demand.
    """

    newest: Floats
    envelopes: Floats
    timed: Floats
    highest: Floats
    age: Floats
    unit: float

    def thinned(self, fine: NDArray[np.bool_], most: int) -> "_Record":
        """Return at most `most` of the steps that are fine, known and young enough."""
        places = np.flatnonzero(fine & np.isfinite(self.highest) & (self.age <= HISTORY_DAYS))
        places = _thinned(places, most)
        return _Record(
            self.newest[:, places],
            self.envelopes[:, places],
            self.timed[:, :, places],
            self.highest[places],
            self.age[places],
            self.unit,
        )

    @property
    def half(self) -> Ints:
        """`[N]` 0 or 1: which half of the record each step belongs to."""
        return np.asarray(np.floor(self.age / HALF_DAYS).astype(np.int64) % 2)

    def target(self, scale: int) -> Floats:
        """Return `[N]`: what was to be said, in the scale."""
        return _to_scale(self.highest + FLOOR_SHARE * self.unit, self.unit, scale)


@dataclass(frozen=True, slots=True)
class _Bases:
    """Where the experts start from in one scale, and in what units they are measured.

    Attributes:
        plain: `[P, T]` of those without a spread of their own.
        widths: `[S, T]` spread of the timed ones, by share of the overall mean.
        fitted: `[T]` of the fitted one.
        spread: `[T]` its own.
    """

    plain: Floats
    widths: Floats
    fitted: Floats
    spread: Floats

    def rows(self) -> list[tuple[Floats, Floats | None]]:
        """Return base and spread `[T]` of every expert, in order; a spread of None is one."""
        timed = [(self.plain[place], width) for width in self.widths for place in TIMED_PLACES]
        return [*((base, None) for base in self.plain), *timed, (self.fitted, self.spread)]


@dataclass(frozen=True, slots=True)
class Nearcast:
    """A calibration, valid for the `valid_steps` steps after the history it was made from.

    Attributes:
        step_s: Width of a bucket.
        lead_steps: Buckets from an order until it is warm.
        valid_steps: How many steps after the history it serves.
        levels: Ascending quantile levels, `[Q]`.
        unit: Usual demand, the scale of everything below.
        shift: `[E, Q]` distance of the highest demand above each expert's base, in its scale and spread; NaN without a
            record.
        cap: `[2, K, Q]` distance that the timed experts do not go beyond, by scale.
        weight: `[E, Q]` share of each expert in the mix.
        changes: `[C]` where, of the envelopes HIGHEST to WEEK for the coming steps one after the other, another value
            begins: highest demands of a quarter of an hour stay the same for minutes.
        envelopes: `[C]` these values.
        rises: `[2, M]` how far demand usually rises in each scale at the coming steps.
        mean_rise: `[2]` at all times.
        lines: `[2, 2, F + 1]` the fitted expert in each scale, as `Lines.new` has it; NaN without enough of a record.
    """

    step_s: int
    lead_steps: int
    valid_steps: int
    levels: tuple[float, ...]
    unit: float
    shift: Kept
    cap: Kept
    weight: Kept
    changes: NDArray[np.uint16] | Ints
    envelopes: Kept
    rises: Kept
    mean_rise: Floats
    lines: Floats

    def quantiles(self, age_steps: int, newest: Newest) -> Floats:
        """Return `[Q]`: quantiles of the highest demand from now until an order of now is warm.

        Args:
            age_steps: Steps since the end of the calibration's history.
            newest: What is known now.
        """
        known = np.array([[newest.last], [newest.short], [newest.long], [newest.high], [newest.expected]])
        return np.asarray(quantiles([self], np.array([age_steps]), known)[0])

    def rows(self, newest: Floats) -> Floats:
        """Return `[T, Q]` for the first T steps after the history at once; for replays.

        Args:
            newest: `[5, T]` what was known at each step: last, short and long mean, high, expected.
        """
        steps = np.arange(newest.shape[1])
        timed = _timed(self.rises[:, steps], self.mean_rise[:, None])
        bases = _experts(
            newest, _with_bare(self.envelopes_at(steps[None])), timed, self.unit, _new(self.lines[..., None])
        )
        return _say(bases, self.unit, self.shift[:, None], self.cap[:, :, None], self.weight[:, None])

    def envelopes_at(self, steps: Ints) -> Floats:
        """Return `[5, T]` demand at the same time on earlier days, as HIGHEST to WEEK say, from `[1, T]` coming steps."""
        places = self.changes.searchsorted(_KEPT_ENVELOPES * self.valid_steps + steps, side="right")
        return np.asarray(self.envelopes[places - 1], dtype=np.float64)

    def small(self) -> "Nearcast":
        """Return it in half the memory, in single precision: what it says changes by less than a millionth."""
        shift, cap, weight, envelopes, rises = (
            each.astype(np.float32)
            for each in (self.shift, self.cap, self.weight, self.envelopes, self.rises)
        )
        return replace(self, shift=shift, cap=cap, weight=weight, envelopes=envelopes, rises=rises)


def quantiles(casts: Sequence[Nearcast], age_steps: Ints, newest: Floats) -> Floats:
    """Return `[W, Q]`: what each of many calibrations of the same levels says now, as `Nearcast.quantiles` does alone.

    Args:
        casts: One for each workload; at least one.
        age_steps: `[W]` steps since the end of its history; beyond those that it serves, the last of them.
        newest: `[5, W]` what is known of its workload: last, short and long mean, high, expected.

    Raises:
        ForecastInputError: They are not of the same levels.
    """
    if any(cast.levels != casts[0].levels for cast in casts):
        raise ForecastInputError("casts", "must have the same levels.")
    blocks = (slice(first, first + BLOCK) for first in range(0, len(casts), BLOCK))
    return np.concatenate([_together(casts[block], age_steps[block], newest[:, block]) for block in blocks])


def _together(casts: Sequence[Nearcast], age_steps: Ints, newest: Floats) -> Floats:
    last = np.array([cast.valid_steps - 1 for cast in casts])
    placed = list(zip(casts, np.clip(age_steps, 0, last)[:, None, None], strict=True))
    unit = np.array([cast.unit for cast in casts])
    envelopes = _with_bare(np.hstack([cast.envelopes_at(step) for cast, step in placed]))
    rises = np.hstack([cast.rises[:, step[0]] for cast, step in placed], dtype=np.float64)
    timed = _timed(rises, _stacked([cast.mean_rise for cast in casts], axis=1))
    lines = _new(_stacked([cast.lines for cast in casts], axis=3))
    shift = _stacked([cast.shift for cast in casts], axis=1)
    cap = _stacked([cast.cap for cast in casts], axis=2)
    weight = _stacked([cast.weight for cast in casts], axis=1)
    return _say(_experts(newest, envelopes, timed, unit, lines), unit, shift, cap, weight)


def _stacked(kept: Sequence[Kept], axis: int) -> Floats:
    return np.stack(kept, axis=axis, dtype=np.float64)


def _with_bare(envelopes: Floats) -> Floats:
    return np.vstack((np.zeros((1, envelopes.shape[1])), envelopes))


def _timed(rises: Kept, mean: Floats) -> Floats:
    """Return `[2, S, T]` spread of the timed experts by scale and share of the overall mean, from rises `[2, T]`."""
    return np.stack([rises + share * mean + RISE_MIN for share in OVERALL_SHARES], axis=1, dtype=np.float64)


def _new(lines: Floats) -> Callable[[int, Floats], tuple[Floats, Floats]]:
    """Return what lines `[2, 2, F + 1, T or 1]` say of something new, by scale and features `[F, T]`."""

    def say(scale: int, features: Floats) -> tuple[Floats, Floats]:
        usual, high = (lines[scale, :, :-1] * features).sum(axis=1) + lines[scale, :, -1]
        return usual, np.maximum(high - usual, SPREAD_MIN)

    return say


def _say(bases: tuple["_Bases", ...], unit: float | Floats, shift: Kept, cap: Kept, weight: Kept) -> Floats:
    """Return `[T, Q]` from `shift` and `weight` `[E, T or 1, Q]` and `cap` `[2, K, T or 1, Q]`."""
    count = len(shift) // 2
    said: list[Floats] = []
    for scale, each in enumerate(bases):
        far = shift[scale * count : (scale + 1) * count]
        plain = each.plain[:, :, None] + far[: TIMED.start]
        spread = np.repeat(each.widths, len(TIMED_PLACES), axis=0)[:, :, None]
        timed = np.minimum(far[TIMED.start : TIMED.stop] * spread, cap[scale])
        timed += np.concatenate([each.plain[list(TIMED_PLACES)]] * len(each.widths))[:, :, None]
        fitted = each.fitted[:, None] + far[-1] * each.spread[:, None]
        said += [plain, timed, fitted[None]]
    return _mix(np.concatenate(said), weight, np.asarray(unit)[..., None])


def calibrate(
    demand: Floats,
    expected: Floats | None,
    *,
    step_s: int,
    lead_steps: int,
    levels: tuple[float, ...],
    valid_steps: int,
    within: bool = False,
) -> Nearcast | None:
    """Measure the experts on the history; None when it is too short to say anything.

    Args:
        demand: `[N]` by step, oldest first, up to now; NaN where unknown.
        expected: `[N]` what the corrected forecast said, at the start of each step, of the highest demand
            within the lead time; NaN or None where there was no forecast.
        step_s: Seconds per step.
        lead_steps: Steps from an order until it is warm.
        levels: Ascending, in (0, 1).
        valid_steps: How many coming steps the calibration must serve.
        within: The newest observation is of the step that a decision lies in, not of the one before: on coarse
            steps most decisions come when the step's demand is known already.

    Raises:
        ForecastInputError: An argument is out of range; the field is named.
    """
    if demand.ndim != 1 or (expected is not None and expected.shape != demand.shape):
        raise ForecastInputError("demand", "must be [N], and expected of the same shape.")
    if step_s < 1 or lead_steps < 1 or valid_steps < 1:
        raise ForecastInputError("step_s", "and lead_steps, valid_steps must be at least 1.")
    if not levels or list(levels) != sorted(set(levels)) or not 0 < levels[0] <= levels[-1] < 1:
        raise ForecastInputError("levels", "must ascend within (0, 1).")
    day = max(1, DAY_S // step_s)
    keep = min(len(demand), int((HISTORY_DAYS + USUAL_DAYS) * day))
    known = demand[len(demand) - keep :]
    said = np.full(keep, np.nan) if expected is None else expected[len(demand) - keep :]
    count = int(np.isfinite(known).sum())
    if count < SAMPLES_MIN * 60 // max(60, min(step_s, 1800)) or keep < lead_steps + 8:
        return None
    unit = float(np.nanmean(known))
    if not unit > 0:
        return None
    slack = max(1, SLACK_S // step_s)
    envelopes = _envelopes(known, day, slack, lead_steps, valid_steps, max(1, WIDE_S // step_s))
    newest = recent(known, step_s)
    newest = np.vstack((newest if within else _before(newest), said))
    highest = _ahead_max(known, lead_steps)
    rises, mean_rise = _rises(newest, highest, unit, day, valid_steps, step_s)
    timed = _timed(rises[:, :keep], mean_rise[:, None])
    record = _Record(newest, envelopes[:, :keep], timed, highest, _age_days(keep, day), unit)
    lines = _fit_lines(record)
    shift, cap, weight = _fit(record, lines, np.asarray(levels), lead_steps)
    coming = envelopes[HIGHEST:, keep:].ravel()
    changes = np.flatnonzero(np.diff(coming, prepend=np.nan) != 0)  # the first one too: NaN is not zero
    return Nearcast(
        step_s=step_s,
        lead_steps=lead_steps,
        valid_steps=valid_steps,
        levels=levels,
        unit=unit,
        shift=shift,
        cap=cap,
        weight=weight,
        changes=changes.astype(np.uint16) if len(coming) < 2**16 else changes,
        envelopes=coming[changes],
        rises=rises[:, keep:].copy(),  # a slice would keep the whole record
        mean_rise=mean_rise,
        lines=np.stack([line.new() if line else np.full((2, FEATURES + 1), np.nan) for line in lines]),
    )


def recent(demand: Floats, step_s: int) -> Floats:
    """Return `[4, N]` at each step; NaN when nothing was observed lately.

    Newest observation, short and long mean, highest of the last hour.
    """
    high = _back_max(demand, max(1, HIGH_S // step_s))
    rows = np.stack((carried(demand), short_mean(demand, step_s), long_mean(demand, step_s), high))
    rows[:, _stale(demand, step_s)] = np.nan
    return rows


def short_mean(demand: Floats, step_s: int) -> Floats:
    """Return `[N]`: the exponentially weighted mean of the last minutes at each step; NaN before any data."""
    return _decayed(demand, max(1.0, SHORT_S / step_s))


def long_mean(demand: Floats, step_s: int) -> Floats:
    """Return `[N]`: the same over about half an hour."""
    return _decayed(demand, max(2.0, LONG_S / step_s))


def _decayed(demand: Floats, half_life_steps: float) -> Floats:
    from scipy.signal import lfilter  # noqa: PLC0415 - a second that whoever only renews need not wait for

    keep = 0.5 ** (1.0 / half_life_steps)
    known = np.isfinite(demand)
    total = np.asarray(lfilter([1.0], [1.0, -keep], np.where(known, demand, 0.0)))
    weight = np.asarray(lfilter([1.0], [1.0, -keep], known.astype(np.float64)))
    return np.where(weight > 1e-9, total / np.maximum(weight, 1e-9), np.nan)


def _to_scale(values: Floats, unit: float | Floats, scale: int) -> Floats:
    return np.asarray(np.log(values) if scale == LOG else np.sqrt(values / unit))


def _from_scale(values: Floats, unit: float | Floats, scale: int, out: Floats | None = None) -> Floats:
    if scale == LOG:
        return np.exp(np.minimum(values, np.log(MOST * unit), out=out), out=out)
    rooted = np.maximum(values, 0.0, out=out)
    return np.multiply(np.multiply(rooted, rooted, out=out), unit, out=out)


def _rises(
    newest: Floats, highest: Floats, unit: float, day: int, ahead: int, step_s: int
) -> tuple[Floats, Floats]:
    """Return `[2, N + ahead]`: how far demand usually rises at that time of day, by scale; and at all times, `[2]`."""
    floor = FLOOR_SHARE * unit
    peak = np.fmax(newest[0], newest[1])
    old = _age_days(len(highest), day) > HISTORY_DAYS
    rises = np.stack(
        [
            np.maximum(_to_scale(highest + floor, unit, scale) - _to_scale(peak + floor, unit, scale), 0.0)
            for scale in (LOG, ROOT)
        ]
    )
    rises[:, old] = np.nan
    return usual_rises(rises, ahead, step_s=step_s, day=day)


def _experts(
    newest: Floats,
    envelopes: Floats,
    timed: Floats,
    unit: float | Floats,
    say: Callable[[int, Floats], tuple[Floats, Floats]],
) -> tuple[_Bases, ...]:
    """Return the experts in logarithms and in square roots.

    From `newest` `[5, T]`, `envelopes` `[6, T]`, `timed` `[2, S, T]` at the steps, or of as many workloads with a unit
    each. `say` tells, by scale and features `[F, T]`, how far above the short mean the fitted expert lies, and its spread.
    """
    last, short, long, high, expected = newest
    floor = FLOOR_SHARE * unit
    starts = {
        EXPECTED: expected,
        SHORT: short,
        PEAK: np.fmax(last, short),
        LONG: long,
        HIGH: high,
        NOTHING: np.zeros_like(last),
    }
    plain = np.stack(
        [
            np.where(np.isfinite(starts[start]), np.fmax(starts[start], share * envelopes[kind]), np.nan)
            for start, kind, share in EXPERTS
        ]
    )
    # Where nothing is known of earlier days either, a start from nothing is no expectation of zero.
    alone = np.array([start == NOTHING for start, _, _ in EXPERTS])
    plain[alone] = np.where(plain[alone] > 0, plain[alone], np.nan)
    result: list[_Bases] = []
    for scale in (LOG, ROOT):
        base, features = _features(newest, envelopes, timed, unit, scale)
        above, spread = say(scale, features)
        result.append(_Bases(_to_scale(plain + floor, unit, scale), timed[scale], base + above, spread))
    return tuple(result)


def _features(
    newest: Floats, envelopes: Floats, timed: Floats, unit: float | Floats, scale: int
) -> tuple[Floats, Floats]:
    """Return what the lines start from, the short mean in the scale `[T]`, and their features `[F, T]`.

    All are differences in the scale, so none depends on the size of the workload; how far earlier days lay above
    the present matters only when they did.
    """
    floor = FLOOR_SHARE * unit
    last, short, long, high = _to_scale(newest[:4] + floor, unit, scale)
    said = _to_scale(np.maximum(newest[4], 0.0) + floor, unit, scale)
    expected = np.where(np.isfinite(newest[4]), said, short)
    highest, usual, wide, widest, week = _to_scale(envelopes[1:] + floor, unit, scale)
    peak = np.fmax(last, short)
    features = np.stack(
        (
            np.ones_like(last),
            last - short,
            np.maximum(last - short, 0.0),
            short - long,
            np.maximum(short - long, 0.0),
            expected - short,
            highest - usual,
            high - peak,
            timed[scale, 0],
            np.log(timed[scale, 0] + RISE_SMALL),
            *(np.maximum(other - peak, 0.0) for other in (expected, highest, usual, wide, widest, week)),
        )
    )
    np.clip(features, -FEATURE_MAX, FEATURE_MAX, out=features)
    features[np.isnan(features)] = 0.0
    return short, features


def _fit_lines(record: _Record) -> tuple[Lines | None, Lines | None]:
    """Fit the lines in each scale."""
    used = record.thinned(record.newest[1] + FLOOR_SHARE * record.unit > 0, FIT_SAMPLES_MAX)
    weight = _importance(used.highest, used.age, used.unit, LINES_ELSEWHEN_SHARE)

    def fitted(scale: int) -> Lines | None:
        base, features = _features(used.newest, used.envelopes, used.timed, used.unit, scale)
        return fit_lines(features, used.target(scale) - base, weight, used.half)

    return fitted(LOG), fitted(ROOT)


def _mix(said: Floats, weight: Kept, unit: Floats) -> Floats:
    """Return `[T, Q]` from what experts say `[E, T, Q]`; those that say nothing now leave their share to the others."""
    rooted = said[len(said) // 2 :]  # what they say is mixed in logarithms, as the others'
    _from_scale(rooted, unit, ROOT, out=rooted)
    np.log(np.maximum(rooted, LEAST * unit, out=rooted), out=rooted)
    fine = np.isfinite(said)
    share = np.where(fine, weight, 0.0)
    total = share.sum(axis=0)
    mixed = (share * np.where(fine, said, 0.0)).sum(axis=0) / np.where(total > 0, total, 1.0)
    best = np.fmax.reduce(said, axis=0)  # where no expert with a share speaks; NaN where none speaks at all
    result = _from_scale(np.where(total > 0, mixed, best), unit, LOG) - FLOOR_SHARE * unit
    return np.asarray(np.maximum.accumulate(np.maximum(result, 0.0), axis=1))


def _fit(
    record: _Record, lines: tuple[Lines | None, ...], levels: Floats, lead: int
) -> tuple[Floats, Floats, Floats]:
    """Return shift `[E, Q]`, cap `[2, K, Q]` and weight `[E, Q]` of the experts by the record."""
    used = record.thinned(np.ones_like(record.age, dtype=np.bool_), FIT_SAMPLES_MAX)
    importance = _importance(used.highest, used.age, used.unit, ELSEWHEN_SHARE)
    judge = _Judge(used, levels)
    half = used.half

    def seen(scale: int, features: Floats) -> tuple[Floats, Floats]:
        line = lines[scale]
        if line is None:
            return np.full(features.shape[1], np.nan), np.ones(features.shape[1])
        return line.say(features, half)

    unknown = np.full(len(levels), np.nan)
    shifts: list[Floats] = []
    caps: list[Floats] = []
    losses: list[Floats] = []
    both = _experts(used.newest, used.envelopes, used.timed, used.unit, seen)
    for scale, bases in zip((LOG, ROOT), both, strict=True):
        target = used.target(scale)
        records: dict[int, _Ordered] = {}
        for number, (base, spread) in enumerate(bases.rows()):
            fine = np.isfinite(base)
            if fine.sum() < min(SAMPLES_MIN, 0.5 * len(base)):
                shifts.append(unknown)
                losses.append(np.full(len(levels), np.inf))
                if number in TIMED:
                    caps.append(unknown)
                continue
            above, weight = target - base, importance
            if spread is not None:
                above /= spread
            if not fine.all():
                above, weight = above[fine], weight[fine]
            measured = records[number] = _Ordered(above, weight)
            shift, cap = measured.at(levels), None
            if number in TIMED:
                alone = TIMED_PLACES[(number - TIMED.start) % len(TIMED_PLACES)]
                cap = records[alone].at(1 - (1 - levels) / RARER_TIMES)
                caps.append(cap)
            shifts.append(shift)
            losses.append(judge.loss(base, spread, shift, cap, scale))
    windows = float((np.isfinite(record.highest) & (record.age <= SCORE_DAYS)).sum()) / (lead + 1)
    cap = np.stack(caps).reshape(2, len(TIMED), len(levels))
    return np.stack(shifts), cap, _weights(np.stack(losses), windows * (1 - levels))


class _Judge:
    """The pinball loss of experts on the last days."""

    def __init__(self, record: _Record, levels: Floats) -> None:
        count = int((record.age <= SCORE_DAYS).sum())  # the last ones
        self._pick = slice(len(record.age) - count, None, max(1, -(-count // SCORE_SAMPLES_MAX)))
        self._levels, self._unit = levels, record.unit
        self._wanted = record.highest[self._pick] + FLOOR_SHARE * record.unit
        self._recent = 0.5 ** (record.age[self._pick] / SCORE_HALF_LIFE_DAYS)
        self._room = np.empty(len(levels) * len(self._wanted))

    def loss(
        self, base: Floats, spread: Floats | None, shift: Floats, cap: Floats | None, scale: int
    ) -> Floats:
        """Return `[Q]`: the mean loss where the expert had something to say; infinite if it never had."""
        start, wanted, recent = base[self._pick], self._wanted, self._recent
        units = None if spread is None else spread[self._pick]
        fine = np.isfinite(start)
        if not fine.all():
            start, wanted, recent = start[fine], wanted[fine], recent[fine]
            units = None if units is None else units[fine]
        count = len(start)
        if not count:
            return np.full(len(shift), np.inf)
        # In place, level by level: hundreds of thousands of values that no other memory is needed for.
        said = self._room[: len(shift) * count].reshape(len(shift), count)
        if units is None:
            np.add(start, shift[:, None], out=said)
        else:
            np.multiply(units, shift[:, None], out=said)
            if cap is not None:
                np.minimum(said, cap[:, None], out=said)
            said += start
        _from_scale(said, self._unit, scale, out=said)
        said -= wanted
        every = said @ recent
        short = np.minimum(said, 0.0, out=said) @ recent
        return np.asarray(((1 - self._levels) * every - short) / count + 1e-9 * self._unit)


def _weights(losses: Floats, beyond: Floats) -> Floats:
    """Return `[E, Q]` shares from losses `[E, Q]` and how many windows of the record lie beyond each level `[Q]`."""
    worse = losses / losses.min(axis=0)
    # Levels ascend: the last one the record knows well stands in for those beyond, as far as these are not known.
    sure = np.sqrt(np.minimum(1.0, beyond / TAIL_WINDOWS))
    anchor = worse[:, max(0, int((beyond >= TAIL_WINDOWS).sum()) - 1)][:, None]
    with np.errstate(invalid="ignore"):  # an expert without a record is infinitely worse, and gets no share
        worse = worse**sure * anchor ** (1 - sure)
    weight = np.where(np.isfinite(worse), np.maximum(worse, 1e-9) ** -MIX_POWER, 0.0)
    return np.asarray(weight / np.maximum(weight.sum(axis=0), 1e-300))


def _age_days(count: int, day: int) -> Floats:
    return np.asarray((count - np.arange(count)) / day)


def _thinned(places: Ints, most: int) -> Ints:
    """Return at most `most` of the places, evenly spread and with the newest."""
    stride = max(1, -(-len(places) // most))
    return places[(len(places) - 1) % stride :: stride]


def _importance(highest: Floats, age: Floats, unit: float, elsewhen: float) -> Floats:
    """Return `[N]` weights: requests, recent ones first, and ramps at one time of day are not calm at another."""
    apart = np.abs((age + 0.5) % 1.0 - 0.5) * 24.0
    nearby = elsewhen + np.exp(-0.5 * (apart / NEARBY_HOURS) ** 2)
    return np.asarray(0.5 ** (age / HALF_LIFE_DAYS) * (highest + 0.01 * unit) * nearby)


class _Ordered:
    """A weighted record in ascending order, to ask for its quantiles more than once."""

    def __init__(self, values: Floats, weight: Floats) -> None:
        order = np.argsort(values)
        self._values, heavy = values[order], weight[order]
        self._share = np.cumsum(heavy)
        place = int(np.searchsorted(self._share, EXCESS_LEVEL * self._share[-1]))
        first = min(place, len(values) - 2)
        beyond = slice(first + 1, None)
        above = self._values[beyond] - self._values[first]
        self._excess = float((above * heavy[beyond]).sum() / heavy[beyond].sum())

    def at(self, levels: Floats) -> Floats:
        """Return `[Q]`; beyond `RECORD_LEVEL` quantiles of an exponential tail that goes on from the record."""
        known = np.minimum(levels, RECORD_LEVEL)
        places = np.searchsorted(self._share, known * self._share[-1])
        found = self._values[np.minimum(places, len(self._values) - 1)]
        return np.asarray(found + self._excess * np.log((1 - known) / (1 - levels)))


def _envelopes(demand: Floats, day: int, slack: int, lead: int, ahead: int, wide: int) -> Floats:
    """Return `[6, N + ahead]`: demand around the same time on earlier days, as BARE to WEEK say.

    "Around" spans `slack` steps (`wide` for WIDE and WIDEST) before until `lead` and as many after, because recurring
    jumps come early or late. All use whole days back only, so none of it lies in the future.
    """
    count = len(demand) + ahead

    def around(source: Floats, apart: int) -> Floats:
        return _back_max(_ahead_max(source, lead + apart), apart)

    def stack(source: Floats, days: int, apart: int, first: int = 0) -> Floats:
        rows = np.full((days, count), np.nan)
        back = max(first, -(-(lead + apart + 3) // day))
        for index in range(days):
            shift = (index + back) * day
            if shift < count:
                piece = source[: count - shift]
                rows[index, shift : shift + len(piece)] = piece
        return rows

    near, far = around(demand, slack), around(demand, wide)
    kinds = {
        BARE: np.zeros(count),
        HIGHEST: np.fmax.reduce(stack(near, ENVELOPE_DAYS, slack), axis=0),
        USUAL: _row_quantile(stack(around(_centred(demand, 2), slack), USUAL_DAYS, slack), USUAL_QUANTILE),
        WIDE: _row_quantile(stack(far, WIDE_DAYS, wide), 0.5),
        WIDEST: np.fmax.reduce(stack(far, WIDEST_DAYS, wide), axis=0),
        WEEK: stack(near, 1, slack, first=WEEK_DAYS)[0],
    }
    return np.asarray(np.nan_to_num(np.stack([kinds[kind] for kind in range(6)])))


def _row_quantile(rows: Floats, level: float) -> Floats:
    """Return the quantile of the known entries of each column; NaN where none is known."""
    # A few long rows: compared pair by pair, as a whole, they are in order sooner than column by column.
    ordered = np.where(np.isnan(rows), np.inf, rows)
    for end in range(len(rows) - 1, 0, -1):
        for low, high in pairwise(ordered[: end + 1]):
            lower = np.minimum(low, high)
            np.maximum(low, high, out=high)
            low[:] = lower
    known = np.isfinite(rows).sum(axis=0)
    ordered[0, known == 0] = np.nan
    at = level * np.maximum(known - 1, 0)
    below = np.floor(at).astype(np.int64)
    above = np.minimum(below + 1, np.maximum(known - 1, 0))
    columns = np.arange(rows.shape[1])
    part = at - below
    return np.asarray(ordered[below, columns] * (1 - part) + ordered[above, columns] * part)


def _before(rows: Floats) -> Floats:
    return np.hstack((np.full((len(rows), 1), np.nan), rows[:, :-1]))


def _stale(values: Floats, step_s: int) -> NDArray[np.bool_]:
    """Return where nothing has been observed for `STALE_S`."""
    places = np.arange(len(values))
    newest = np.maximum.accumulate(np.where(np.isfinite(values), places, -len(values)))
    return np.asarray((places - newest) * step_s > STALE_S)


def carried(values: Floats) -> Floats:
    """Return values with gaps holding the last known one; causal."""
    known = np.isfinite(values)
    place = np.maximum.accumulate(np.where(known, np.arange(len(values)), 0))
    return np.asarray(values[place])


def _centred(values: Floats, half: int) -> Floats:
    known = np.isfinite(values)
    total = np.concatenate(([0.0], np.cumsum(np.where(known, values, 0.0))))
    number = np.concatenate(([0], np.cumsum(known)))
    low = np.maximum(np.arange(len(values)) - half, 0)
    high = np.minimum(np.arange(len(values)) + half + 1, len(values))
    held = number[high] - number[low]
    return np.where(held > 0, (total[high] - total[low]) / np.maximum(held, 1), np.nan)


def _ahead_max(values: Floats, ahead: int) -> Floats:
    """Return the maximum of the known among each value and the `ahead` after it; NaN where some lie beyond the end."""
    result = np.full(len(values), np.nan)
    whole = len(values) - ahead
    if whole > 0:
        result[:whole] = _window_max(values, ahead + 1)
    return result


def _back_max(values: Floats, back: int) -> Floats:
    return _window_max(np.concatenate((np.full(back, np.nan), values)), back + 1)


def _window_max(values: Floats, width: int) -> Floats:
    """Return `[N - width + 1]`: the maximum of the known in each window, by doubling."""
    have = 1
    best = values
    while 2 * have <= width:
        best = np.fmax(best[: len(best) - have], best[have:])
        have *= 2
    rest = width - have
    return np.asarray(np.fmax(best[: len(best) - rest], best[rest:]))
