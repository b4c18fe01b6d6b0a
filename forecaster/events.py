"""What known events do to demand: learnt from past ones, pulled towards the planner's expectation.

Promises: the effect of a past occurrence is estimated from the others (leave one out), so that models fitted
on adjusted history are honest about the next one; an event with neither a past nor an expectation changes
nothing and is named in a reason.
Refuses: nothing; `Event` has refused impossible windows already.
Called by: `forecaster.ensemble`. All effects are shifts in the transformed units of the models.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor, sqrt

import numpy as np

from forecaster.models.seasonal import carried, decayed, lagged, seasons
from forecaster.models.stack import anchor_before, is_young, season_ahead
from forecaster.series import DAY_S, Grid
from forecaster.sundays import as_sunday, date_of, towards_sunday
from forecaster.transform import Transform
from forecaster.types import HOLIDAY, Bools, Event, Floats

OCCURRENCE_COUNT_MAX = 400
# Of those, at least so many are past ones, where there are so many.
PAST_COUNT_MIN = 100
# Overlapping windows whose lengths differ by more than this factor are no occurrence of the same thing.
UNLIKE = 4.0
# Nobody expects less than this share of usual demand; also when many days off are at once.
FACTOR_MIN = 0.02
BEFORE_S = 2 * 3600
AFTER_S = 3 * 3600
BIN_COUNT = 24
# Pseudo-occurrences: how many past ones outweigh the planner's word, and how many outweigh "no effect".
PRIOR_COUNT = 2.0
NULL_COUNT = 0.1
# Before anything is known, an expectation is wrong by this share of its (log) effect, one standard deviation.
PRIOR_SPREAD = 0.35
HALF_LIFE_OCCURRENCES = 12.0
# How far demand in an event follows the usual demand around it: fully, half, or not at all (it depends on
# the event alone). Learnt from past occurrences once there are enough to tell.
TIES = (1.0, 0.5, 0.0)
TIE_COUNT_MIN = 3


@dataclass(frozen=True, slots=True)
class Part:
    """One event in steps of the grid, with what its planner expects."""

    first: int
    last: int
    multiplier: float | None
    peak: float | None


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Events of one category whose windows overlap, as one window in steps of the grid."""

    first: int
    last: int
    parts: tuple[Part, ...]

    @property
    def count(self) -> float:
        """Events at once, on average: two that only meet are hardly more than one."""
        return sum(part.last - part.first for part in self.parts) / (self.last - self.first)

    @property
    def is_stated(self) -> bool:
        """Whether a planner expects something of it."""
        return any(part.multiplier is not None or part.peak is not None for part in self.parts)


@dataclass(frozen=True, slots=True)
class Labels:
    """Which occurrence and which bin (of `width` steps) of its shape each step belongs to; -1 for none."""

    occurrence: np.ndarray
    bin: np.ndarray
    before: int
    during: int
    after: int
    width: int

    @property
    def bin_count(self) -> int:
        """Bins of one shape."""
        return self.before + self.during + self.after


@dataclass(frozen=True, slots=True)
class Effects:
    """Effects `[N + H]` in transformed units.

    Attributes:
        shift: What to add to usual demand; for past occurrences learnt from the others.
        touched: Steps within reach of an occurrence, before and after included.
        inside: Steps within a window.
        spread: Standard deviation of `shift`.
        alone: Steps within a past window that no other occurrence explains; the season must not see them.
        planned: How far the planners of one category lift demand at most.
        past_count: Occurrences that are over.
        reasons: Sentences about what is not known.
    """

    shift: Floats
    touched: Bools
    inside: Bools
    spread: Floats
    alone: Bools
    planned: float
    past_count: int
    reasons: tuple[str, ...]


def known_effects(
    z: Floats, transform: Transform, grid: Grid, horizon: int, events: Sequence[Event]
) -> tuple[Effects | None, Floats]:
    """Learn what the events do to transformed demand `z` `[N]`.

    Returns:
        Effects, or None when no event touches history or horizon; and `[N + H]` usual demand without them.
    """
    n, day, total = len(z), grid.day, len(z) + horizon
    found = occurrences(events, grid, horizon)
    if not found:
        return None, np.zeros(0)
    mask = np.zeros(total, dtype=bool)
    for _, items in found:
        mask |= label(items, total, grid.step_s).occurrence >= 0
    plain = np.where(mask[:n], np.nan, z)
    s = seasons(plain, day)
    anchor = np.append(anchor_before(s), season_ahead(s, horizon))
    overall = carried(decayed(z, 3.0 * day))
    whole = np.where(np.isfinite(anchor), anchor, np.append(overall, np.full(horizon, overall[-1])))
    error = plain - (anchor if is_young(plain, anchor[:n], day) else whole)[:n]
    anchor = whole
    # Inside an event the level is the one from before it: `decayed` keeps its value through the gap.
    level = np.nan_to_num(decayed(error, max(day / 2.0, 1.0)))
    base = anchor + np.append(lagged(level, 1), np.full(horizon, level[-1]))
    base[0] = anchor[0]
    usually = np.maximum(np.exp(base) - transform.offset, 1e-3)

    def lift(o: Occurrence) -> Floats:
        low, high = max(o.first, 0), min(o.last, total)
        usual = usually[low:high]
        more, less, factor = np.zeros(high - low), np.ones(high - low), np.zeros(high - low)
        for part in o.parts:
            inside = slice(max(part.first - low, 0), max(min(part.last, high) - low, 0))
            # Two promotions at once add their extra demand, two days off take their shares of what is left;
            # a peak is already the whole demand.
            if part.multiplier is not None:
                more[inside] += max(part.multiplier - 1.0, 0.0)
                less[inside] *= min(part.multiplier, 1.0)
                factor[inside] = np.maximum((1.0 + more[inside]) * less[inside], FACTOR_MIN)
        for part in o.parts:
            inside = slice(max(part.first - low, 0), max(min(part.last, high) - low, 0))
            if part.peak is not None and len(usual[inside]):
                # It may come after the horizon, at times of day that are seen a day before.
                after = usually[max(total - day, 0) :][: max(part.last - total, 0)]
                peak = part.peak / transform.unit / float(max(usual[inside].max(), after.max(initial=0.0)))
                factor[inside] = np.maximum(factor[inside], max(peak, FACTOR_MIN))
        shift = np.log(factor * usual + transform.offset) - np.log(usual + transform.offset)
        return np.where(factor > 0.0, shift, 0.0)

    return learn(grid, horizon, found, z - base[:n], base, lift), anchor


def occurrences(events: Sequence[Event], grid: Grid, horizon: int) -> list[tuple[str, list[Occurrence]]]:
    """Group events by category and merge overlapping windows; those outside history and horizon are dropped.

    A category has several groups where windows of unlike lengths overlap: a flash sale in a campaign stays one.

    A window holds the steps of which it covers at least half: two that follow each other off the grid share none,
    and a day in Berlin is one day of a daily series, not two.
    """
    total = len(grid.values) + horizon
    found: dict[str, list[Part]] = {}
    for event in events:
        start, end = ((t.timestamp() - grid.start_s) / grid.step_s for t in (event.start, event.end))
        first, last = floor(start + 0.5), floor(end + 0.5)
        if first == last:
            first = floor((start + end) / 2.0)
            last = first + 1
        if last > 0 and first < total:
            part = Part(first, last, event.expected_multiplier, event.expected_peak)
            found.setdefault(event.category, []).append(part)
    return [
        (category, layer)
        for category, parts in sorted(found.items())
        for layer in _layers(sorted(parts, key=lambda part: (part.first, part.last)), category)
    ]


def _layers(parts: list[Part], category: str) -> list[list[Occurrence]]:
    """Merge windows that overlap, apart by length where lengths are unlike; a day off in days off is one of them."""
    merged: list[list[Part]] = []
    end = 0
    for part in parts:
        if merged and part.first < end:
            merged[-1].append(part)
            end = max(end, part.last)
        else:
            merged.append([part])
            end = part.last
    for group in merged:
        lengths = sorted(part.last - part.first for part in group)
        if lengths[-1] > UNLIKE * lengths[0] and category != HOLIDAY:
            middle = sqrt(lengths[0] * lengths[-1])
            short, long = (
                [part for part in parts if (part.last - part.first > middle) is is_long]
                for is_long in (False, True)
            )
            return [*_layers(long, category), *_layers(short, category)]
    return [[Occurrence(g[0].first, max(part.last for part in g), tuple(g)) for g in merged]]


def _bounded(items: list[Occurrence], n: int) -> tuple[list[Occurrence], int]:
    """Return the newest past and nearest coming occurrences, and how many coming ones are left out."""
    past, ahead = [o for o in items if o.last <= n], [o for o in items if o.last > n]
    kept = ahead[: OCCURRENCE_COUNT_MAX - min(len(past), PAST_COUNT_MIN)]
    return [*past[max(len(past) + len(kept) - OCCURRENCE_COUNT_MAX, 0) :], *kept], len(ahead) - len(kept)


def label(found: Sequence[Occurrence], total: int, step_s: int) -> Labels:
    """Assign steps to occurrences: inside wins over before and after, and the nearer wins among those."""
    length = int(np.median([o.last - o.first for o in found]))
    width = max(1, length // BIN_COUNT)
    before, after = BEFORE_S // step_s, AFTER_S // step_s
    longest = max(o.last - o.first for o in found)
    during = min(-(-longest // width), 4 * BIN_COUNT)
    before_bins, after_bins = -(-before // width), -(-after // width)
    owner = np.full(total, -1)
    where = np.full(total, -1)
    distance = np.full(total, np.iinfo(np.int64).max)
    for k, o in enumerate(found):
        at = np.arange(max(o.first - before, 0), min(o.last + after, total))
        since, past = at - o.first, at - o.last
        bin_ = np.where(
            since < 0,
            before_bins - 1 - (-since - 1) // width,
            np.where(
                past < 0,
                before_bins + np.minimum(since // width, during - 1),
                before_bins + during + past // width,
            ),
        )
        far = np.where(since < 0, -since, np.where(past < 0, 0, past + 1))
        # A later occurrence takes over inside; outside, the nearer one owns the step.
        mine = far <= distance[at]
        owner[at[mine]], where[at[mine]], distance[at[mine]] = k, bin_[mine], far[mine]
    return Labels(owner, where, before_bins, during, after_bins, width)


def learn(
    grid: Grid,
    horizon: int,
    found: Sequence[tuple[str, list[Occurrence]]],
    residual: Floats,
    base: Floats,
    lift: Callable[[Occurrence], Floats],
) -> Effects:
    """Estimate effects of every category.

    Args:
        grid: The history.
        horizon: Steps to forecast.
        found: Categories with their occurrences.
        residual: `[N]` transformed demand minus what would have been without events; NaN unknown.
        base: `[N + H]` what the residual was taken from, and its continuation.
        lift: Shift of transformed demand that the planners of an occurrence expect, at its steps from 0 to N + H.
    """
    n = len(grid.values)
    total = n + horizon
    shift, spread = np.zeros(total), np.zeros(total)
    touched, inside, alone = (np.zeros(total, dtype=bool) for _ in range(3))
    planned = 0.0
    reasons: list[str] = []
    rest = residual.copy()
    past_count = sum(o.last <= n for _, items in found for o in items)
    for category, every in sorted(found, key=lambda pair: -len(pair[1])):
        items, beyond_count = _bounded(every, n)
        labels = label(items, total, grid.step_s)
        curve, told, added, scatter, known, silent, tie = _category(labels, items, rest, base, grid, lift)
        at = np.flatnonzero(labels.occurrence >= 0)
        owner, bin_ = labels.occurrence[at], labels.bin[at]
        mine = curve[owner, bin_] + added[at] - (1.0 - tie) * (base[at] - np.median(base)) * told[owner, bin_]
        core = (bin_ >= labels.before) & (bin_ < labels.before + labels.during)
        if category == HOLIDAY:
            mine[core], unseen = _holiday(
                mine[core], at[core], owner[core], items, known, rest + base[:n], base, grid
            )
            silent &= unseen
        shift[at] += mine
        spread[at] = np.hypot(spread[at], np.abs(scatter[owner]) * np.minimum(np.abs(mine), 1.0))
        touched[at] = True
        # What nobody knows anything about changes nothing.
        unknown = silent & np.array([o.first >= n for o in items])
        inside[at[core & ~unknown[owner]]] = True
        stated = core & np.array([o.is_stated for o in items])[owner] & (at >= n)
        planned = max(planned, float(mine.max(initial=0.0, where=stated)))
        over = np.array([o.last <= n for o in items])
        alone[at[core & (over & ~known)[owner]]] = True
        past = at < n
        rest[at[past]] -= mine[past]
        if silent.any():
            reasons.append(
                f"{silent.sum()} coming event(s) of category {category!r} have no past and no expected uplift; "
                "state expected_multiplier or expected_peak to plan for them."
            )
        if beyond_count:
            reasons.append(
                f"The last {beyond_count} coming event(s) of category {category!r} are more than one forecast plans "
                "for and were left out; give them another category."
            )
    return Effects(shift, touched, inside, spread, alone, planned, past_count, tuple(reasons))


def _holiday(
    learnt: Floats,
    at: np.ndarray,
    owner: np.ndarray,
    items: Sequence[Occurrence],
    known: Bools,
    z: Floats,
    base: Floats,
    grid: Grid,
) -> tuple[Floats, Bools]:
    """Return the effect of holidays at their steps `at`, and for which of them `[E]` no Sunday was seen.

    What a planner said of one is left as it is.
    """
    n = len(z)
    past = at[at < n]
    calm = z.copy()
    calm[past] = np.nan
    actual = np.full(len(at), np.nan)
    actual[at < n] = z[past] - base[past]
    first = np.array([o.first for o in items])
    sunday = as_sunday(calm, base, at, first[owner], _dates(items, grid)[owner], grid.day)
    stated = np.array([o.is_stated for o in items])[owner]
    effect = towards_sunday(learnt, np.nan_to_num(sunday), actual, owner, known)
    return np.where(stated, learnt, effect), np.bincount(owner, np.isfinite(sunday), len(items)) == 0


def _dates(items: Sequence[Occurrence], grid: Grid) -> np.ndarray:
    """Return `[E]` the dates on which occurrences begin, days since 1970."""
    first, last = (np.array([getattr(o, name) for o in items]) for name in ("first", "last"))
    return date_of(grid.start_s + first * grid.step_s, (last - first) * grid.step_s)


def _category(
    labels: Labels,
    items: Sequence[Occurrence],
    residual: Floats,
    base: Floats,
    grid: Grid,
    lift: Callable[[Occurrence], Floats],
) -> tuple[Floats, Bools, Floats, Floats, Bools, Bools, float]:
    """Learn what one category adds to usual demand `base` `[N + H]`, in logarithms.

    Returns:
        Shapes and where known `[E, B]`, what planners add `[N + H]`, scatter, known and silent ones `[E]`, and the tie.
    """
    count, bins, n = len(items), labels.bin_count, len(residual)
    core = slice(labels.before, labels.before + labels.during)
    at = np.flatnonzero((labels.occurrence[:n] >= 0) & np.isfinite(residual))
    cell = labels.occurrence[at] * bins + labels.bin[at]
    seen = np.bincount(cell, minlength=count * bins).reshape(count, bins)
    observed = (seen > 0).astype(np.float64)
    whole = observed[:, core].sum(axis=1) > 0
    kernel = _kernel(items, grid) * whole[None, :]
    np.fill_diagonal(kernel, 0.0)
    weight = kernel.sum(axis=1)
    support = kernel @ observed
    own = _own_bins(items, labels, core)
    at_once = _at_once(items, labels)
    told = support > 0.0
    level = np.median(base)
    best: tuple[float, float, Floats, Floats, Floats] | None = None
    for tie in TIES:
        free = residual[at] + (1.0 - tie) * (base[at] - level)
        r = np.bincount(cell, weights=free, minlength=count * bins).reshape(count, bins) / np.maximum(seen, 1)
        curve = _scaled_mean(kernel, r, observed, at_once) / np.maximum(support, 1e-9)
        inside = own[:, core] * (support[:, core] > 0)
        mean = (curve * own)[:, core].sum(axis=1) / np.maximum(inside.sum(axis=1), 1.0)
        actual = (r * observed)[:, core].sum(axis=1) / np.maximum(observed[:, core].sum(axis=1), 1.0)
        judged = whole & (weight > 0)
        recent = 0.5 ** (np.arange(count)[::-1] / (2.0 * HALF_LIFE_OCCURRENCES)) * judged
        wrong = float((np.abs(actual - mean) * recent).sum() / max(recent.sum(), 1e-9))
        if best is None or wrong < 0.9 * best[0]:
            best = (wrong, tie, curve, mean, actual)
        if judged.sum() < TIE_COUNT_MIN:
            break
    assert best is not None
    _, tie, curve, mean, actual = best
    _go_on(curve[:, core], told[:, core], own[:, core])
    expected = np.full(count, np.nan)
    planned = np.zeros(len(base))
    for k, o in enumerate(items):
        if o.is_stated:
            values = lift(o)
            expected[k] = float(values.mean())
            planned[max(o.first, 0) : o.last] = values
    shapes, share, scatter = _blend(curve, mean, weight, actual, whole, expected)
    for o, part in zip(items, share, strict=True):
        planned[max(o.first, 0) : max(o.last, 0)] *= part
    silent = np.array([o.last > n for o in items]) & (weight <= 0.0) & ~np.isfinite(expected)
    return shapes, told, planned, scatter, weight > 0.0, silent, tie


def _scaled_mean(kernel: Floats, r: Floats, observed: Floats, at_once: Floats) -> Floats:
    """Return kernel-weighted sums of shapes; k events at once bring k times the extra demand of one."""
    total = np.zeros_like(r)
    extra = np.expm1(np.clip(r, -3.0, 3.0))
    for mine in np.unique(at_once):
        here = at_once == mine
        rows = here.any(axis=1)
        scaled = np.where(r > 0, np.log1p(np.maximum(extra * (mine / at_once), 0.0)), r)
        total[rows] = np.where(here[rows], kernel[rows] @ (scaled * observed), total[rows])
    return total


def _at_once(items: Sequence[Occurrence], labels: Labels) -> Floats:
    """Return `[E, B]` how many events of an occurrence last in most of a bin, one or more; outside as at its edges."""
    out = np.ones((len(items), labels.bin_count))
    begins = np.arange(labels.during) * labels.width
    for k, o in enumerate(items):
        if len(o.parts) == 1:
            continue
        length = o.last - o.first
        ends = np.minimum(np.append(begins[1:], length), length)
        parts = np.array([(part.first, part.last) for part in o.parts]) - o.first
        shared = np.minimum(parts[:, 1:], ends) - np.maximum(parts[:, :1], begins)
        mean = np.maximum(shared, 0).sum(axis=0) / np.maximum(ends - begins, 1)
        count = np.maximum(np.rint(mean), 1.0)
        last = min((length - 1) // labels.width, labels.during - 1)
        out[k] = np.concatenate((np.full(labels.before, count[0]), count, np.full(labels.after, count[last])))
    return out


def _go_on(curve: Floats, told: Bools, own: Floats) -> None:
    """Let what is known of the last quarter of a window `[E, B]` go on, in place, where one lasts longer than any before."""
    for k in np.flatnonzero(((own > 0.0) & ~told).any(axis=1) & told.any(axis=1)):
        known = np.flatnonzero(told[k])
        beyond = np.flatnonzero(own[k] > 0.0)
        beyond = beyond[beyond > known[-1]]
        curve[k, beyond] = curve[k, known[-max(len(known) // 4, 1) :]].mean()
        told[k, beyond] = True


def _own_bins(items: Sequence[Occurrence], labels: Labels, core: slice) -> Floats:
    """Return `[E, B]`: 1 in the bins that an occurrence itself lasts for, observed or not; 0 after them and outside `core`."""
    out = np.zeros((len(items), labels.bin_count))
    longest = max(o.last - o.first for o in items)
    for k, o in enumerate(items):
        share = max(1, round(labels.during * (o.last - o.first) / longest))
        out[k, core.start : core.start + share] = 1.0
    return out


def _kernel(items: Sequence[Occurrence], grid: Grid) -> Floats:
    """Return `[E, E]`: how much occurrence j tells about occurrence i."""
    start_s = grid.start_s + np.array([o.first for o in items], dtype=np.float64) * grid.step_s

    def apart(values: Floats, period: float) -> Floats:
        gap = np.abs(values[:, None] - values[None, :]) % period
        return np.minimum(gap, period - gap)

    def alike(gap: Floats, width: float, floor: float) -> Floats:
        return floor + (1.0 - floor) * np.exp(-0.5 * (gap / width) ** 2)

    days = start_s / DAY_S
    clock = alike(apart(start_s / 3600.0, 24.0), *K_CLOCK)
    count = alike(apart(np.log([o.count for o in items]), np.inf), *K_COUNT)
    length = alike(apart(np.log([o.last - o.first for o in items]), np.inf), *K_LENGTH)
    # 1970-01-01 was a Thursday, so Saturday and Sunday are days 2 and 3 of this week.
    weekend = np.isin(_dates(items, grid) % 7, (2, 3)).astype(np.float64)
    same = np.where(weekend[:, None] == weekend[None, :], 1.0, K_WEEKEND)
    order = np.arange(len(items), dtype=np.float64)
    recent = 0.5 ** (apart(order, np.inf) / HALF_LIFE_OCCURRENCES)
    far = apart(days, np.inf)
    anniversary = np.where(far > 300.0, 1.0 + 8.0 * np.exp(-0.5 * (apart(days, 365.25) / 3.0) ** 2), 1.0)
    return clock * count * length * same * recent * anniversary


K_CLOCK = (2.0, 0.1)
K_COUNT = (0.3, 0.03)
K_LENGTH = (0.5, 0.2)
K_WEEKEND = 0.12


def _blend(
    curve: Floats,
    mean: Floats,
    weight: Floats,
    actual: Floats,
    whole: Bools,
    expected: Floats,
) -> tuple[Floats, Floats, Floats]:
    """Combine what past occurrences show with what planners expect, corrected by how planners did so far.

    Returns:
        Shapes `[E, B]`, which share of the expectation is to be added `[E]`, and the relative scatter `[E]`.
    """
    stated = np.isfinite(expected)
    judged = stated & whole
    stated_value = np.where(stated, expected, 0.0)
    # Planners who expect nothing of anything (a multiplier of one) leave nothing to correct.
    typical = float((stated_value**2).sum()) / max(int(stated.sum()), 1) or 1.0
    own = np.where(judged, actual * stated_value, 0.0)
    square = np.where(judged, stated_value**2, 0.0)
    # One pseudo-occurrence in which the planner was right; each occurrence is judged without itself.
    bias = (own.sum() - own + typical) / (square.sum() - square + typical)
    bias = np.clip(bias, 0.1, 3.0)
    shaped = np.abs(mean) > 0.1
    ratio = np.where(shaped, stated_value * bias / np.where(shaped, mean, 1.0), 0.0)
    fits = shaped & (ratio > 0.1) & (ratio < 10.0) & stated
    share = np.where(stated, weight / (weight + PRIOR_COUNT), weight / (weight + NULL_COUNT))
    if judged.sum() >= 3:
        wrong_past = float(np.mean((actual - mean)[judged] ** 2)) + 1e-6
        wrong_plan = float(np.mean((actual - bias * stated_value)[judged] ** 2)) + 1e-6
        trusted = wrong_plan / (wrong_plan + wrong_past)
        share = np.where(
            stated, share * 2.0 * trusted / (share * 2.0 * trusted + (1.0 - share) + 1e-9), share
        )
    # Past shapes, scaled to what is expected where that is near, tell more than a plateau.
    shapes = (share + (1.0 - share) * np.where(fits, ratio, 0.0))[:, None] * curve
    planned = (1.0 - share) * np.where(stated & ~fits, bias, 0.0)
    fitted = share * mean + (1.0 - share) * np.where(stated, bias * stated_value, 0.0)
    off = np.where(whole, (actual - fitted) / np.maximum(np.abs(fitted), 0.2), 0.0)
    n = float(whole.sum())
    scatter = np.sqrt((2.0 * PRIOR_SPREAD**2 + np.minimum(off**2, 4.0).sum()) / (2.0 + n))
    return shapes, planned, np.full(len(mean), scatter)
