"""Say how high demand may rise within one cold start: calibrated at that horizon, every minute, no refit.

What a replica ordered now must carry is the highest demand from now until it is warm. The quantiles of a
refit are as wide as its own horizon and its seasons are smooth; this module measures instead, on the
workload's own history, how far that highest demand lay above what was known beforehand, for several
simple experts (last value, short mean, corrected forecast; each alone or lifted to the envelope of the same
time on earlier days, a few minutes early or late), and mixes them by their pinball loss at each quantile.
Errors are weighted by demand: what counts is the share of requests, not of minutes.

Promises: pure and deterministic; quantiles are >= 0 and monotone in the level; uses nothing after `now`;
works from an hour of history on and says None before. Refuses: shapes and levels that make no sense.
Called by: the controller's minute cycle and the simulator.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.signal import lfilter

from forecaster.types import Floats, ForecastInputError

DAY_S: Final = 86_400
SAMPLES_MIN: Final = 60
HISTORY_DAYS: Final = 14.0
HALF_LIFE_DAYS: Final = 5.0
SCORE_DAYS: Final = 7.0
SCORE_HALF_LIFE_DAYS: Final = 3.0
SCORE_SAMPLES_MAX: Final = 3000
# Neighbouring windows overlap, so every second or third of them tells as much.
FIT_SAMPLES_MAX: Final = 8000
# A mix that leans to the best expert, and averages those that are about as good: on a noisy trace 12 instead
# of 4 cost 5 % more replica-hours at 0.1 % violations, on smooth ones nothing.
MIX_POWER: Final = 4.0
# Samples within about this time of day count in full, others by the share.
NEARBY_HOURS: Final = 1.5
ELSEWHEN_SHARE: Final = 0.2
SHORT_S: Final = 240.0
LONG_S: Final = 1500.0
SLACK_S: Final = 300
ENVELOPE_DAYS: Final = 3
USUAL_DAYS: Final = 5
USUAL_QUANTILE: Final = 0.8
FLOOR_SHARE: Final = 0.05  # of usual demand, added before logarithms
# Where an expert starts from.
EXPECTED, SHORT, PEAK, LONG, NOTHING = range(5)
# Envelopes that lift it: none, highest of three days, usual of five days.
BARE, HIGHEST, USUAL = range(3)
EXPERTS: Final = (
    *(
        (start, kind, share)
        for start in (EXPECTED, SHORT, PEAK)
        for kind, share in ((BARE, 0.0), (HIGHEST, 0.8), (HIGHEST, 1.0), (USUAL, 0.8))
    ),
    (LONG, BARE, 0.0),
    (LONG, USUAL, 0.8),
    (NOTHING, USUAL, 1.0),
)
# Noise as a power of demand: 0 grows with it, one half is a counting process.
POWERS: Final = (0.0, 0.5)


@dataclass(frozen=True, slots=True)
class Newest:
    """What is known at a tick, in units of demand; NaN where it is not.

    Attributes:
        last: Newest observation.
        short: Mean of the last minutes, the last entry of `short_mean`.
        long: Mean of the last half hour, the last entry of `long_mean`.
        expected: Highest corrected median of the forecast within the lead time.
    """

    last: float
    short: float
    long: float
    expected: float


@dataclass(frozen=True, slots=True)
class Nearcast:
    """A calibration, valid for the `valid_steps` steps after the history it was made from.

    Attributes:
        step_s: Width of a bucket.
        lead_steps: Buckets from an order until it is warm.
        levels: Ascending quantile levels, `[Q]`.
        unit: Usual demand, the scale of everything below.
        shift: `[E, Q]` log distance of the highest demand above each expert's base; NaN without a record.
        weight: `[E, Q]` share of each expert in the mix.
        envelopes: `[3, M]` demand at the same time on earlier days, for the coming `M` steps.
    """

    step_s: int
    lead_steps: int
    levels: tuple[float, ...]
    unit: float
    shift: Floats
    weight: Floats
    envelopes: Floats

    @property
    def valid_steps(self) -> int:
        """How many steps after the history the envelopes reach."""
        return int(self.envelopes.shape[1])

    def quantiles(self, age_steps: int, newest: Newest) -> Floats:
        """Return `[Q]`: quantiles of the highest demand from now until an order of now is warm.

        Args:
            age_steps: Steps since the end of the calibration's history.
            newest: What is known now.
        """
        place = min(max(age_steps, 0), self.valid_steps - 1)
        known = np.array([[newest.last], [newest.short], [newest.long], [newest.expected]])
        bases = _experts(known, self.envelopes[:, place : place + 1])
        return np.asarray(_mix(bases, self.shift, self.weight, self.unit)[0])

    def rows(self, newest: Floats) -> Floats:
        """Return `[T, Q]` for the first T steps after the history at once; for replays.

        Args:
            newest: `[4, T]` what was known at each step: last, short and long mean, expected.
        """
        bases = _experts(newest, self.envelopes[:, : newest.shape[1]])
        return _mix(bases, self.shift, self.weight, self.unit)


def calibrate(
    demand: Floats,
    expected: Floats | None,
    *,
    step_s: int,
    lead_steps: int,
    levels: tuple[float, ...],
    valid_steps: int,
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
    envelopes = _envelopes(known, day, slack, lead_steps, valid_steps)
    filled = carried(known)
    newest = np.stack(
        (_before(filled), _before(short_mean(known, step_s)), _before(long_mean(known, step_s)), said)
    )
    bases = _experts(newest, envelopes[:, :keep])
    highest = _ahead_max(known, lead_steps)
    shift, weight = _fit(bases, highest, np.asarray(levels), unit, day)
    return Nearcast(step_s, lead_steps, levels, unit, shift, weight, envelopes[:, keep:])


def short_mean(demand: Floats, step_s: int) -> Floats:
    """Return `[N]`: the exponentially weighted mean of the last minutes at each step; NaN before any data."""
    return _decayed(demand, max(1.0, SHORT_S / step_s))


def long_mean(demand: Floats, step_s: int) -> Floats:
    """Return `[N]`: the same over about half an hour."""
    return _decayed(demand, max(2.0, LONG_S / step_s))


def _decayed(demand: Floats, half_life_steps: float) -> Floats:
    keep = 0.5 ** (1.0 / half_life_steps)
    known = np.isfinite(demand)
    total = np.asarray(lfilter([1.0], [1.0, -keep], np.where(known, demand, 0.0)))
    weight = np.asarray(lfilter([1.0], [1.0, -keep], known.astype(np.float64)))
    return np.where(weight > 1e-9, total / np.maximum(weight, 1e-9), np.nan)


def _experts(newest: Floats, envelopes: Floats) -> Floats:
    """Return `[E, T]` bases from `newest` `[4, T]` and `envelopes` `[3, T]` at the same steps."""
    last, short, long, expected = newest
    starts = {
        EXPECTED: expected,
        SHORT: short,
        PEAK: np.fmax(last, short),
        LONG: long,
        NOTHING: np.zeros_like(last),
    }
    return np.stack(
        [
            np.where(np.isfinite(starts[start]), np.fmax(starts[start], share * envelopes[kind]), np.nan)
            for start, kind, share in EXPERTS
        ]
    )


def _mix(bases: Floats, shift: Floats, weight: Floats, unit: float) -> Floats:
    """Return `[T, Q]` from bases `[E, T]`; experts without a base now leave their share to the others."""
    floor = FLOOR_SHARE * unit
    logs = np.log(bases + floor)
    spread = np.concatenate([((bases + floor) / unit) ** -power for power in POWERS])
    said = np.tile(logs, (len(POWERS), 1))[:, :, None] + shift[:, None, :] * spread[:, :, None]
    fine = np.isfinite(said)
    share = np.where(fine, weight[:, None, :], 0.0)
    total = share.sum(axis=0)
    mixed = (share * np.where(fine, said, 0.0)).sum(axis=0) / np.where(total > 0, total, 1.0)
    best = np.where(fine, said, -np.inf).max(axis=0)
    result = np.exp(np.where(total > 0, mixed, best)) - floor
    return np.asarray(np.maximum.accumulate(np.maximum(result, 0.0), axis=1))


def _fit(bases: Floats, highest: Floats, levels: Floats, unit: float, day: int) -> tuple[Floats, Floats]:
    """Return shift and weight `[E * P, Q]` from the record `[E, N]` against `highest` `[N]`."""
    count = highest.shape[0]
    age = (count - np.arange(count)) / day
    floor = FLOOR_SHARE * unit
    use = np.flatnonzero(np.isfinite(highest) & (age <= HISTORY_DAYS))
    use = use[len(use) % max(1, len(use) // FIT_SAMPLES_MAX) :: max(1, len(use) // FIT_SAMPLES_MAX)]
    target = np.log(highest[use] + floor)
    # Ramps at one time of day and calm at another: what happened at about this time counts most.
    apart = np.abs((age[use] + 0.5) % 1.0 - 0.5) * 24.0
    nearby = ELSEWHEN_SHARE + np.exp(-0.5 * (apart / NEARBY_HOURS) ** 2)
    importance = 0.5 ** (age[use] / HALF_LIFE_DAYS) * (highest[use] + 0.01 * unit) * nearby
    scored = age[use] <= SCORE_DAYS
    stride = max(1, int(scored.sum()) // SCORE_SAMPLES_MAX)
    pick = np.flatnonzero(scored)[::stride]
    recent = 0.5 ** (age[use][pick] / SCORE_HALF_LIFE_DAYS)
    shifts: list[Floats] = []
    losses: list[Floats] = []
    for power in POWERS:
        for base in bases:
            b = base[use]
            fine = np.isfinite(b)
            if fine.sum() < min(SAMPLES_MIN, 0.5 * len(b)):
                shifts.append(np.full(len(levels), np.nan))
                losses.append(np.full(len(levels), np.inf))
                continue
            spread = ((b + floor) / unit) ** -power
            r = (target[fine] - np.log(b[fine] + floor)) / spread[fine]
            shift = _weighted_quantiles(r, importance[fine], levels)
            said = np.exp(np.log(b[pick] + floor)[:, None] + shift * spread[pick, None]) - floor
            gap = highest[use][pick][:, None] - said
            loss = np.maximum(levels * gap, (levels - 1) * gap) * recent[:, None]
            shifts.append(shift)
            losses.append(
                np.nanmean(loss, axis=0) + 1e-9 * unit
                if np.isfinite(loss).any()
                else np.full(len(levels), np.inf)
            )
    loss_all = np.stack(losses)
    best = loss_all.min(axis=0)
    weight = np.where(np.isfinite(loss_all), (best / loss_all) ** MIX_POWER, 0.0)
    return np.stack(shifts), weight / np.maximum(weight.sum(axis=0), 1e-12)


def _weighted_quantiles(values: Floats, weight: Floats, levels: Floats) -> Floats:
    order = np.argsort(values)
    share = np.cumsum(weight[order])
    return np.asarray(values[order][np.minimum(np.searchsorted(share, levels * share[-1]), len(values) - 1)])


def _envelopes(demand: Floats, day: int, slack: int, lead: int, ahead: int) -> Floats:
    """Return `[3, N + ahead]`: none, highest and usual demand around the same time on earlier days.

    "Around" spans `slack` steps before until `lead + slack` steps after, because recurring jumps come a
    few minutes early or late. Both use whole days back only, so none of it lies in the future.
    """
    count = len(demand) + ahead
    around = _back_max(_ahead_max(demand, lead + slack), slack)
    smoothed = _back_max(_ahead_max(_centred(demand, 2), lead + slack), slack)
    back = -(-(lead + slack + 3) // day)

    def stack(source: Floats, days: int) -> Floats:
        rows = np.full((days, count), np.nan)
        for index in range(days):
            shift = (index + back) * day
            if shift < count:
                piece = source[: count - shift]
                rows[index, shift : shift + len(piece)] = piece
        return rows

    highest = np.fmax.reduce(stack(around, ENVELOPE_DAYS), axis=0)
    usual = _row_quantile(stack(smoothed, USUAL_DAYS), USUAL_QUANTILE)
    return np.asarray(np.nan_to_num(np.stack((np.zeros(count), highest, usual))))


def _row_quantile(rows: Floats, level: float) -> Floats:
    """Return the quantile of the known entries of each column; NaN where none is known."""
    ordered = np.sort(rows, axis=0)  # NaN goes last
    known = np.isfinite(rows).sum(axis=0)
    at = level * np.maximum(known - 1, 0)
    low = np.floor(at).astype(np.int64)
    high = np.minimum(low + 1, np.maximum(known - 1, 0))
    columns = np.arange(rows.shape[1])
    part = at - low
    return np.asarray(ordered[low, columns] * (1 - part) + ordered[high, columns] * part)


def _before(values: Floats) -> Floats:
    return np.concatenate(([np.nan], values[:-1]))


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
