"""What known events do to demand: learnt from past ones, pulled towards the planner's expectation.

Promises: the effect of a past occurrence is estimated from the others (leave one out), so that models fitted
on adjusted history are honest about the next one; an event with neither a past nor an expectation changes
nothing and is named in a reason.
Refuses: nothing; `Event` has refused impossible windows already.
Called by: `forecaster.ensemble`. All effects are shifts in the transformed units of the models.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from forecaster.models.seasonal import decayed, lagged, seasons
from forecaster.models.stack import anchor_before, season_ahead
from forecaster.series import DAY_S, Grid
from forecaster.sundays import as_sunday, towards_sunday
from forecaster.transform import Transform
from forecaster.types import HOLIDAY, Bools, Event, Floats

OCCURRENCE_COUNT_MAX = 400
BEFORE_S = 2 * 3600
AFTER_S = 3 * 3600
BIN_COUNT = 24
# From this length on a window means a day, 23 to 25 hours long.
DAYLONG_S = 20 * 3600
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
class Occurrence:
    """Events of one category whose windows overlap, as one window in steps of the grid.

    `expected` holds the summed multiplier excess and the highest peak of those that state one.
    """

    first: int
    last: int
    count: int
    multiplier: float | None
    peak: float | None


@dataclass(frozen=True, slots=True)
class Labels:
    """Which occurrence and which bin of its shape each step of history and horizon belongs to; -1 for none."""

    occurrence: np.ndarray
    bin: np.ndarray
    before: int
    during: int
    after: int

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
        past_count: Occurrences that are over.
        reasons: Sentences about what is not known.
    """

    shift: Floats
    touched: Bools
    inside: Bools
    spread: Floats
    alone: Bools
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
    for items in found.values():
        mask |= label(items, total, grid.step_s).occurrence >= 0
    plain = np.where(mask[:n], np.nan, z)
    s = seasons(plain, day)
    anchor = np.append(anchor_before(s), season_ahead(s, horizon))
    overall = decayed(z, 3.0 * day)
    anchor = np.where(np.isfinite(anchor), anchor, np.append(overall, np.full(horizon, overall[-1])))
    # Inside an event the level is the one from before it: `decayed` keeps its value through the gap.
    level = np.nan_to_num(decayed(plain - anchor[:n], max(day / 2.0, 1.0)))
    base = anchor + np.append(lagged(level, 1), np.full(horizon, level[-1]))
    base[0] = anchor[0]

    def lift(steps: np.ndarray, multiplier: float | None, peak: float | None) -> Floats:
        usual = np.maximum(np.exp(base[np.clip(steps, 0, total - 1)]) - transform.offset, 1e-3)
        factors = [] if multiplier is None else [multiplier]
        if peak is not None:
            factors.append(peak / transform.unit / float(usual.max()))
        return np.asarray(np.log(max(factors) * usual + transform.offset) - np.log(usual + transform.offset))

    return learn(grid, horizon, found, z - base[:n], base, lift), anchor


def occurrences(events: Sequence[Event], grid: Grid, horizon: int) -> dict[str, list[Occurrence]]:
    """Group events by category and merge overlapping windows; those outside history and horizon are dropped."""
    total = len(grid.values) + horizon
    found: dict[str, list[tuple[int, int, Event]]] = {}
    for event in events:
        first = int((event.start.timestamp() - grid.start_s) // grid.step_s)
        last = int(-((grid.start_s - event.end.timestamp()) // grid.step_s))
        if last > 0 and first < total:
            found.setdefault(event.category, []).append((first, max(last, first + 1), event))
    return {category: _merge(sorted(rows, key=_by_time)) for category, rows in sorted(found.items())}


def _by_time(row: tuple[int, int, Event]) -> tuple[int, int]:
    return row[0], row[1]


def _merge(rows: list[tuple[int, int, Event]]) -> list[Occurrence]:
    merged: list[list[tuple[int, int, Event]]] = []
    for row in rows:
        if merged and row[0] < max(last for _, last, _ in merged[-1]):
            merged[-1].append(row)
        else:
            merged.append([row])
    out = []
    for group in merged[-OCCURRENCE_COUNT_MAX:]:
        excess = [e.expected_multiplier - 1.0 for _, _, e in group if e.expected_multiplier is not None]
        peaks = [e.expected_peak for _, _, e in group if e.expected_peak is not None]
        out.append(
            Occurrence(
                first=group[0][0],
                last=max(last for _, last, _ in group),
                count=len(group),
                # Two promotions at once add their extra demand; a peak is already the whole demand.
                multiplier=max(1.0 + sum(excess), 0.02) if excess else None,
                peak=max(peaks) if peaks else None,
            )
        )
    return out


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
    return Labels(owner, where, before_bins, during, after_bins)


def learn(
    grid: Grid,
    horizon: int,
    found: dict[str, list[Occurrence]],
    residual: Floats,
    base: Floats,
    lift: Callable[[np.ndarray, float | None, float | None], Floats],
) -> Effects:
    """Estimate effects of every category.

    Args:
        grid: The history.
        horizon: Steps to forecast.
        found: Occurrences by category.
        residual: `[N]` transformed demand minus what would have been without events; NaN unknown.
        base: `[N + H]` what the residual was taken from, and its continuation.
        lift: Shift of transformed demand at steps for a multiplier or a peak (the planner's expectation).
    """
    n = len(grid.values)
    total = n + horizon
    shift, spread = np.zeros(total), np.zeros(total)
    touched, inside, alone = (
        np.zeros(total, dtype=bool),
        np.zeros(total, dtype=bool),
        np.zeros(total, dtype=bool),
    )
    reasons: list[str] = []
    rest = residual.copy()
    for category, items in sorted(found.items(), key=lambda pair: -len(pair[1])):
        labels = label(items, total, grid.step_s)
        curve, scatter, known, silent, tie = _category(labels, items, rest, base, grid, lift)
        at = np.flatnonzero(labels.occurrence >= 0)
        owner, bin_ = labels.occurrence[at], labels.bin[at]
        mine = curve[owner, bin_] - (1.0 - tie) * (base[at] - np.median(base)) * known[owner]
        core = (bin_ >= labels.before) & (bin_ < labels.before + labels.during)
        if category == HOLIDAY:
            mine[core] = _holiday(
                mine[core], at[core], owner[core], items, known, rest + base[:n], base, grid
            )
            silent = 0
        shift[at] += mine
        spread[at] = np.hypot(spread[at], np.abs(scatter[owner]) * np.minimum(np.abs(mine), 1.0))
        touched[at] = True
        inside[at[core]] = True
        over = np.array([o.last <= n for o in items])
        alone[at[core & (over & ~known)[owner]]] = True
        past = at < n
        rest[at[past]] -= mine[past]
        if silent:
            reasons.append(
                f"{silent} coming event(s) of category {category!r} have no past and no expected uplift; "
                "state expected_multiplier or expected_peak to plan for them."
            )
    past_count = sum(o.last <= n for items in found.values() for o in items)
    return Effects(shift, touched, inside, spread, alone, past_count, tuple(reasons))


def _holiday(
    learnt: Floats,
    at: np.ndarray,
    owner: np.ndarray,
    items: Sequence[Occurrence],
    known: Bools,
    z: Floats,
    base: Floats,
    grid: Grid,
) -> Floats:
    """Return the effect of holidays at their steps `at`; what a planner said of one is left as it is."""
    n = len(z)
    past = at[at < n]
    calm = z.copy()
    calm[past] = np.nan
    actual = np.full(len(at), np.nan)
    actual[at < n] = z[past] - base[past]
    sunday = as_sunday(calm, base, at, np.array([o.first for o in items])[owner], grid)
    stated = np.array([o.multiplier is not None or o.peak is not None for o in items])[owner]
    return np.where(stated, learnt, towards_sunday(learnt, sunday, actual, owner, known))


def _category(
    labels: Labels,
    items: Sequence[Occurrence],
    residual: Floats,
    base: Floats,
    grid: Grid,
    lift: Callable[[np.ndarray, float | None, float | None], Floats],
) -> tuple[Floats, Floats, Bools, int, float]:
    """Return shapes `[E, B]`, relative scatter `[E]`, which were learnt `[E]`, how many are silent, the tie."""
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
    own = observed_or_all(items, labels, core)
    level = np.median(base)
    best: tuple[float, float, Floats, Floats, Floats] | None = None
    for tie in TIES:
        free = residual[at] + (1.0 - tie) * (base[at] - level)
        r = np.bincount(cell, weights=free, minlength=count * bins).reshape(count, bins) / np.maximum(seen, 1)
        curve = _scaled_mean(kernel, r, observed, items) / np.maximum(support, 1e-9)
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
    expected = np.full(count, np.nan)
    plateau = np.zeros((count, bins))
    for k, o in enumerate(items):
        if o.multiplier is None and o.peak is None:
            continue
        steps = np.arange(o.first, o.last)
        values = lift(steps, o.multiplier, o.peak)
        expected[k] = float(values.mean())
        plateau[k, core] = expected[k]
    shapes, scatter = _blend(curve, mean, weight, actual, whole, expected, plateau)
    silent = sum(
        1 for k, o in enumerate(items) if o.last > n and weight[k] <= 0 and not np.isfinite(expected[k])
    )
    return shapes, scatter, weight > 0.0, silent, tie


def _scaled_mean(kernel: Floats, r: Floats, observed: Floats, items: Sequence[Occurrence]) -> Floats:
    """Return kernel-weighted sums of shapes; k events at once bring k times the extra demand of one."""
    counts = np.array([o.count for o in items])
    total = np.zeros_like(r)
    for mine in np.unique(counts):
        rows = counts == mine
        extra = np.expm1(np.clip(r, -3.0, 3.0)) * (mine / counts)[:, None]
        scaled = np.where(r > 0, np.log1p(np.maximum(extra, 0.0)), r)
        total[rows] = kernel[rows] @ (scaled * observed)
    return total


def observed_or_all(items: Sequence[Occurrence], labels: Labels, core: slice) -> Floats:
    """Return `[E, B]` ones over the bins inside each occurrence's own length."""
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
    # A window of a day begins at local midnight: its date is that of the nearest midnight in UTC.
    local = np.array([(o.last - o.first) * grid.step_s >= DAYLONG_S for o in items])
    weekend = np.isin(np.floor(days + 0.5 * local) % 7, (2, 3)).astype(np.float64)
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
    plateau: Floats,
) -> tuple[Floats, Floats]:
    """Combine what past occurrences show with what planners expect, corrected by how planners did so far."""
    stated = np.isfinite(expected)
    judged = stated & whole
    stated_value = np.where(stated, expected, 0.0)
    typical = float(np.mean(stated_value[stated] ** 2)) if stated.any() else 1.0
    own = np.where(judged, actual * stated_value, 0.0)
    square = np.where(judged, stated_value**2, 0.0)
    # One pseudo-occurrence in which the planner was right; each occurrence is judged without itself.
    bias = (own.sum() - own + typical) / (square.sum() - square + typical)
    bias = np.clip(bias, 0.1, 3.0)
    prior = bias[:, None] * plateau
    shaped = np.abs(mean) > 0.1
    ratio = np.where(shaped, stated_value * bias / np.where(shaped, mean, 1.0), 0.0)
    fits = shaped & (ratio > 0.1) & (ratio < 10.0) & stated
    prior = np.where(fits[:, None], curve * ratio[:, None], prior)
    share = np.where(stated, weight / (weight + PRIOR_COUNT), weight / (weight + NULL_COUNT))
    if judged.sum() >= 3:
        wrong_past = float(np.mean((actual - mean)[judged] ** 2)) + 1e-6
        wrong_plan = float(np.mean((actual - bias * stated_value)[judged] ** 2)) + 1e-6
        trusted = wrong_plan / (wrong_plan + wrong_past)
        share = np.where(
            stated, share * 2.0 * trusted / (share * 2.0 * trusted + (1.0 - share) + 1e-9), share
        )
    shapes = share[:, None] * curve + (1.0 - share[:, None]) * np.where(stated[:, None], prior, 0.0)
    fitted = share * mean + (1.0 - share) * np.where(stated, bias * stated_value, 0.0)
    off = np.where(whole, (actual - fitted) / np.maximum(np.abs(fitted), 0.2), 0.0)
    n = float(whole.sum())
    scatter = np.sqrt((2.0 * PRIOR_SPREAD**2 + np.minimum(off**2, 4.0).sum()) / (2.0 + n))
    return shapes, np.full(len(mean), scatter)
