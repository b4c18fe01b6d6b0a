"""Direct multi-horizon stacking: one robust regression per horizon band over causal seasonal features.

Promises: fitted only on targets inside the history, with features their origins could see; residuals are
cross-fitted (each block of origins is predicted by the others), so intervals are not flattered.
Refuses: nothing; a band without enough training targets is None.
Called by: `forecaster.ensemble`.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import gcd

import numpy as np
from scipy.signal import lfilter

from forecaster.models.seasonal import Seasons, carried, decayed, lagged, profile, smooth, spanned
from forecaster.types import Bools, Floats

BLOCK_COUNT = 5
ITERATION_COUNT = 3
ROW_COUNT_MAX = 1100
HORIZONS_PER_BAND = 6
TRAIN_DAYS_MAX = 84
TRAIN_STEPS_MIN = 730
RECENCY_DAYS = 21.0
RECENCY_STEPS_MIN = 200
# Share of the data that the prior (the seasonal anchor alone) weighs: little where many independent
# windows of the horizon fit into the history, more where a window is a day.
RIDGE = 0.001
RIDGE_LONG = 0.12
RIDGE_FEW = 0.3
WEEKLESS = 0.12
HULL_MARGIN = 1.0
HULL_MEMORY = 16.0
BAND_GROWTH = 3.0
# Rows of one event are one observation, however many they are.
RIDGE_EVENT = 4.0
ROW_COUNT_MIN = 12
# A step counts as closed when its weighted share of zeros is above this: all of the last five weeks or so.
IDLE_SHARE_MIN = 0.97
FIRST_LEVEL = 6
# Up to this share of a day ahead, what a like moment told (an echo) and how sure the newest errors are count.
NEAR_SHARE = 8
# An error at a time of day counts by the inverse square of its usual size, which has a floor of this share.
SURE_FLOOR = 0.05
# The season has an edge where it moves by more than this many typical errors.
EDGE = 4.0
# Rows within about this many hours of a time of day count in full for it, others by a share: all alike after
# no day, a third after four, never less than a floor.
NEARBY_HOURS = 1.5
ELSEWHEN_DAYS = 2.0
ELSEWHEN_MIN = 0.1
NEAR_ELSEWHEN_MIN = 0.2
PRIOR_HOUR = 0.5
PRIOR_DAY = 0.4
# Before a season was seen, errors against the level tell the time of day. Up to so many days they would still be
# remembered, and teach rules of their own, beside those against the season.
YOUNG_DAYS = 3


@dataclass(frozen=True, slots=True)
class Context:
    """Everything that origins and horizons read; arrays `[N]` are causal, `[N + H]` are known in advance.

    Attributes:
        seasons: Profiles of demand without events.
        slow: `[N]` level over days, carried through gaps; the anchor while no day has been seen.
        lives: Half-lives of `levels`, steps.
        levels: `[N]` each: how far recent demand lies from its usual shape, from fast to slow memory.
        sure: `[N]` each: the same, errors counting by how small they usually are at their time of day.
        echoes: `[N]` each: how far this time yesterday and last week lay from the usual shape.
        anchor: `[N]` the usual shape, as known before each step.
        edge: From which size on a move of it is an edge.
        phase_scale: `[N]` usual size of an error at this time of day.
        volatility: `[N]` each: recent roughness and error size.
        phase_half: Half-width of the smoothing in `phase_scale`.
        shift: `[N + H]` effect of events.
        flagged: `[N + H]` steps within reach of an event.
        calm: `[N + H]` usual demand as seen without event steps; empty without events.
        is_young: Whether only what was forecast from a season may teach.
        event_count: Past occurrences that event features can learn from.
    """

    seasons: Seasons
    slow: Floats
    lives: Floats
    levels: tuple[Floats, ...]
    sure: tuple[Floats, ...]
    echoes: tuple[Floats, ...]
    anchor: Floats
    edge: float
    phase_scale: Floats
    volatility: tuple[Floats, ...]
    phase_half: int
    shift: Floats
    flagged: Bools
    calm: Floats
    is_young: bool
    event_count: int

    def newest(self, h: np.ndarray) -> tuple[Floats, ...]:
        """Return the level errors that tell about horizons `h`."""
        return (*self.levels, *self.sure) if self.is_near(h) else self.levels

    def echoed(self, h: np.ndarray) -> tuple[Floats, ...]:
        """Return the echoes that tell about horizons `h`."""
        return self.echoes if self.is_near(h) else ()

    def edged(self, h: np.ndarray) -> int:
        """Return how many features tell what is different at an edge of the season."""
        return 2 if self.echoed(h) else 0

    def is_near(self, h: np.ndarray) -> bool:
        """Return whether horizons `h` end within the next hours."""
        return bool(h[-1] <= max(self.seasons.day // NEAR_SHARE, 1))


@dataclass(frozen=True, slots=True)
class Plan:
    """Training origins `[T]`, horizons `[P]` and recency weights `[T, P]` of one band; `steps` is the band."""

    steps: np.ndarray
    origins: np.ndarray
    picks: np.ndarray
    weight: Floats
    days: float

    @property
    def targets(self) -> np.ndarray:
        """Positions `[T, P]` the training rows forecast."""
        return np.asarray(self.origins[:, None] + self.picks[None, :])


@dataclass(frozen=True, slots=True)
class Band:
    """A fitted band of horizons, in transformed units without events.

    Attributes:
        location: `[H]` centre of the forecast.
        pull: `[H]` the part of it that comes from the newest observations.
        shift: `[H]` effect of events, to be added.
        scale: `[H]` size of its error.
        target: `[R]` what happened in training rows.
        fitted: `[R]` what the model said of them without having seen them.
        spread: `[R]` the scale it gave them.
        row_shift: `[R]` effect of events in the rows.
        weight: `[R]` how much each row counts.
        flagged: `[R]` which rows lie within reach of an event.
        closed: `[H]` steps at which there is regularly no demand at all (shops at night).
        idle: `[C]` what happened in training rows of that kind.
        idle_weight: `[C]` how much each counts.
        level_share: Share of a level error that is still there at this horizon.
        hours: `[R]` time of day of the rows, hours since the first bucket's; 0 on daily steps.
        hours_now: `[H]` the same of the forecast.
    """

    location: Floats
    pull: Floats
    shift: Floats
    scale: Floats
    target: Floats
    fitted: Floats
    spread: Floats
    row_shift: Floats
    weight: Floats
    flagged: Bools
    closed: Bools
    idle: Floats
    idle_weight: Floats
    level_share: float
    hours: np.ndarray
    hours_now: np.ndarray


def context(seasons: Seasons, shift: Floats, flagged: Bools, calm: Floats, event_count: int = 0) -> Context:
    """Compute level errors and scales of the history against yesterday's and last week's shape."""
    day = seasons.day
    hour = max(day / 24.0, 1.0)
    slow = carried(decayed(seasons.raw, max(float(day), 3.0)))
    anchor = anchor_before(seasons)
    is_seasonal = np.isfinite(anchor)
    young = is_young(seasons.raw, anchor, day)
    anchor = np.where(is_seasonal, anchor, lagged(slow, 1))
    r = np.where(is_seasonal, seasons.raw - anchor, np.nan) if young else seasons.raw - anchor
    lives = sorted({max(x, 0.5) for x in (0.5, hour / 4, hour, 4.0 * hour, float(day), 4.0 * day)})
    smoothed = decayed(r, max(hour / 2, 1.0))
    rough = np.abs(r - lagged(smoothed, 1))
    size = np.abs(r - np.nan_to_num(lagged(decayed(r, 4.0 * day), 1)))
    phase_half = day // 24
    sure, echoes = _near_features(r, size, anchor, seasons) if day > 1 else ((), ())
    return Context(
        seasons=seasons,
        slow=slow,
        lives=np.array(lives),
        levels=tuple(np.nan_to_num(decayed(r, life)) for life in lives),
        sure=sure,
        echoes=echoes,
        anchor=anchor,
        edge=EDGE * (_median(seen) if len(seen := size[np.isfinite(size)]) else 1.0) + 1e-9,
        phase_scale=profile(smooth(size, phase_half), day, 0.1),
        volatility=(
            np.nan_to_num(decayed(rough, hour)),
            np.nan_to_num(decayed(rough, float(day))),
            np.nan_to_num(decayed(size, 2.0 * hour)),
            np.nan_to_num(decayed(size, 2.0 * day)),
        ),
        phase_half=phase_half,
        shift=shift,
        flagged=flagged,
        calm=calm,
        is_young=young,
        event_count=event_count,
    )


def _near_features(
    r: Floats, size: Floats, anchor: Floats, s: Seasons
) -> tuple[tuple[Floats, ...], tuple[Floats, ...]]:
    """Return level errors `sure` and `echoes` (see `Context`).

    After the edge of a pulse that is a few minutes early or late the newest error is large and says nothing;
    it is usual there, so it counts little. Echoes let a regression repeat yesterday's step from now on, or
    (with the opposite weight) not mistake for news what yesterday showed as well.
    """
    day, n = s.day, len(r)
    usual = lagged(profile(size, day, 0.2), day)[:n]
    seen = usual[np.isfinite(usual)]
    typical = _median(seen) if len(seen) else 1.0
    usual = np.where(np.isfinite(usual), usual, typical)
    known = np.isfinite(r)
    weight = np.where(known, 1.0 / np.maximum(usual, SURE_FLOOR * typical + 1e-9) ** 2, 0.0)
    told = np.where(known, r, 0.0) * weight
    sure = []
    for life in (day / 96.0, day / 24.0):
        keep = 0.5 ** (1.0 / max(life, 0.5))
        total = np.asarray(lfilter([1.0], [1.0, -keep], told))
        held = np.asarray(lfilter([1.0], [1.0, -keep], weight))
        sure.append(np.where(held > 0.0, total / np.maximum(held, 1e-300), 0.0))
    echoes = tuple(np.nan_to_num(lagged(s.near, lag)[:n] - anchor) for lag in (day, 7 * day))
    return tuple(sure), echoes


def anchor_before(s: Seasons) -> Floats:
    """Return `[N]`: what was known of each step a day (at least `half` steps more than a step) before."""
    daily = lagged(s.daily, s.day * -(-(1 + s.half) // s.day))
    contrast = lagged(s.contrast, 7 * s.day)
    return _anchor(daily, lagged(s.weekly, 7 * s.day), daily + contrast)


def is_young(z: Floats, anchor: Floats, day: int) -> bool:
    """Return whether much of a history `[N]` was not forecast from a season, though the next steps are."""
    return day > 1 and spanned(z) <= YOUNG_DAYS * day and bool(np.isfinite(anchor).any())


def season_ahead(s: Seasons, horizon: int) -> Floats:
    """Return the anchor `[horizon]` after the last position."""
    return np.asarray(_seasonal(s, np.array([len(s.raw) - 1]), np.arange(1, horizon + 1))[0][0])


def bands(horizon: int, day: int) -> list[np.ndarray]:
    """Split 1..horizon into bands that treble up to a day, then one per day."""
    edges = [0, 1]
    while edges[-1] < min(day, horizon):
        edges.append(min(round(BAND_GROWTH * edges[-1]) if edges[-1] > 1 else 3, day))
    # A short remainder of the day joins the band before it.
    if len(edges) > 2 and edges[-1] == day and edges[-1] - edges[-2] < edges[-2] // 4:
        del edges[-2]
    while edges[-1] < horizon:
        edges.append(edges[-1] + day)
    return [np.arange(a + 1, min(b, horizon) + 1) for a, b in pairwise(edges) if a < horizon]


def plan(n: int, day: int, steps: np.ndarray, warmup: int) -> Plan | None:
    """Choose training origins and horizons of a band; None when the history is too short."""
    picks = np.unique(steps[np.linspace(0, len(steps) - 1, HORIZONS_PER_BAND).astype(int)])
    newest = n - 1 - int(picks[-1])
    oldest = max(warmup, newest - max(TRAIN_DAYS_MAX * day, TRAIN_STEPS_MIN))
    if newest - oldest < 8:
        return None
    stride = max(1, -(-(newest - oldest) * len(picks) // ROW_COUNT_MAX))
    origins = np.arange(newest, oldest, -_through_the_day(stride, day))[::-1]
    fade = 0.5 ** ((newest - origins) / max(RECENCY_DAYS * day, RECENCY_STEPS_MIN))
    weight = np.repeat(fade[:, None], len(picks), axis=1)
    return Plan(steps, origins, picks, weight, float(newest - oldest) / day)


def _through_the_day(stride: int, day: int) -> int:
    """Return the nearest stride (as a factor) whose origins visit every time of day.

    A stride of 4 hours would see six times of a day alone, and rules differ by time of day.
    """
    if day == 1:
        return stride
    # A day of whole seconds has no prime factors but 2, 3 and 5, so within 6 of any number one is coprime.
    coprime = [k for k in range(max(stride - 6, 1), stride + 7) if gcd(k, day) == 1]
    return min(coprime, key=lambda k: max(k, stride) / min(k, stride))


def fit_band(c: Context, p: Plan) -> Band | None:
    """Fit one band on the history and apply it at the last position; None with too few targets."""
    s, n = c.seasons, len(c.seasons.raw)
    anchor, x = design(c, p.origins, p.picks)
    at = p.targets
    target = s.raw[at]
    rows = np.flatnonzero(np.isfinite(target) & np.isfinite(anchor))
    if len(rows) < ROW_COUNT_MIN:
        return None
    usual, x, weight, happened = (
        anchor.ravel()[rows],
        _rows(x, rows),
        p.weight.ravel()[rows],
        target.ravel()[rows],
    )
    # While weeks are few, days before the first whole week teach too, but less: they know no weekdays.
    whole = p.origins >= 7 * s.day + first_seen(s)
    if whole.any():
        weight = weight * np.repeat(np.where(whole, 1.0, WEEKLESS), len(p.picks))[rows]
    # Errors are scored in demand, where a step at the daily peak weighs more than one at night.
    importance = weight * np.exp(np.clip(usual - _median(usual), -3.0, 3.0))
    # Near rules differ by time of day: by night the last value goes on, at a scheduled pulse yesterday does.
    if s.day > 1 and c.is_near(p.picks):
        here = n - 1 + int(np.median(p.picks))
        local = nearness(s.day, p.days, NEAR_ELSEWHEN_MIN)[hour_of(np.array([here]), s.day)[0]]
        importance = importance * local[hour_of(at.ravel()[rows], s.day)]
    edges = np.searchsorted(rows, np.arange(BLOCK_COUNT + 1) * len(p.origins) // BLOCK_COUNT * len(p.picks))
    reach = min(float(p.picks[-1]) / s.day, 1.0)
    ridge = np.full(x.shape[-1], RIDGE + RIDGE_LONG * reach + RIDGE_FEW * x.shape[-1] / len(rows))
    ridge[0] *= 0.3
    levels_end = FIRST_LEVEL + len(c.newest(p.picks))
    ridge[levels_end + len(c.echoed(p.picks)) + c.edged(p.picks) :] += RIDGE_EVENT / max(c.event_count, 1)
    prior = _prior(c, float(p.picks.mean()), x.shape[-1])
    beta, held_out = _cross_fit(x, happened - usual, importance, edges, ridge, prior)
    size = np.abs(held_out)
    floor = max(_median(size) * 0.02, 1e-6)
    g = _rows(log_scale_features(c, p.origins, p.picks, floor), rows)
    gamma = _scale_fit(g, np.log(size + floor), weight)
    log_scale = g @ gamma
    low, high = np.quantile(log_scale, (0.005, 0.995)) + np.array((-0.3, 0.3))
    last = np.array([n - 1])
    anchor_now, x_now = design(c, last, p.steps)
    g_now = log_scale_features(c, last, p.steps, floor)
    newest = slice(FIRST_LEVEL, levels_end)
    closed = closed_at(s, p.origins, p.picks).ravel()[rows]
    # A memory far shorter than the horizon says nothing about it.
    slow = FIRST_LEVEL + np.flatnonzero(c.lives >= p.picks.mean() / HULL_MEMORY)
    views = x_now[0][:, np.append(np.arange(1, FIRST_LEVEL), slow)]
    # Where only the level is known it goes on; where it was heading for tells a season, which is not known.
    margin = HULL_MARGIN * _median(size) if s.is_seen else 0.0
    offset = _within(x_now[0] @ beta, views, margin)
    return Band(
        location=anchor_now[0] + offset,
        pull=x_now[0, :, newest] @ beta[newest],
        shift=c.shift[n - 1 + p.steps],
        scale=np.exp(np.clip(g_now[0] @ gamma, low, high)),
        target=happened,
        fitted=happened - held_out,
        spread=np.exp(np.clip(log_scale, low, high)),
        row_shift=c.shift[at.ravel()[rows]],
        weight=weight,
        flagged=c.flagged[at.ravel()[rows]],
        closed=closed_at(s, last, p.steps)[0],
        idle=happened[closed],
        idle_weight=weight[closed],
        level_share=float(np.clip(beta[newest].sum(), 0.0, 1.0)),
        hours=hour_of(at.ravel()[rows], s.day),
        hours_now=hour_of(n - 1 + p.steps, s.day),
    )


def _within(offset: Floats, views: Floats, margin: float) -> Floats:
    """Hold a distance from the anchor `[H]` between the lowest and highest that any one feature suggests.

    Weights learnt on small level errors may add up to more than one; on the day of a fivefold jump that
    would double it.
    """
    low = np.minimum(views.min(axis=1), 0.0) - margin
    high = np.maximum(views.max(axis=1), 0.0) + margin
    return np.clip(offset, low, high)


def first_seen(s: Seasons) -> int:
    """Return the first position with an observation."""
    return int(np.argmax(np.isfinite(s.raw)))


def nearness(day: int, days: float, least: float = ELSEWHEN_MIN) -> Floats:
    """Return `[24, 24]` (`[1, 1]` on daily steps): how much a row at one hour of the day tells about another.

    Args:
        day: Steps per day.
        days: Days of training rows; few of them cannot tell one time of day from another.
        least: Share that rows at other times keep, however many days there are.
    """
    if day == 1:
        return np.ones((1, 1))
    hours = np.arange(24.0)
    gap = np.abs(hours[:, None] - hours[None, :])
    gap = np.minimum(gap, 24.0 - gap)
    elsewhen = max(1.0 / (1.0 + days / ELSEWHEN_DAYS), least)
    return np.asarray(elsewhen + (1.0 - elsewhen) * np.exp(-0.5 * (gap / NEARBY_HOURS) ** 2))


def hour_of(at: np.ndarray, day: int) -> np.ndarray:
    """Return the hour of the day of positions, counted from the first bucket's; 0 on daily steps."""
    return np.asarray(at % day * 24 // day if day > 1 else np.zeros_like(at))


def _rows(x: Floats, rows: np.ndarray) -> Floats:
    flat = x.reshape(-1, x.shape[-1])
    return flat if len(rows) == len(flat) else flat[rows]


def _median(values: Floats) -> float:
    """Return the upper median; several times faster than numpy's on small arrays."""
    middle = len(values) // 2
    return float(np.partition(values, middle)[middle])


def copy_band(z: Floats, lag: int, day: int, p: Plan) -> Band | None:
    """Return the band of the seasonal-naive forecast: the value one or more whole `lag` steps before."""
    n = len(z)
    now = n - 1 + p.steps - lag * _rounds(p.steps, lag)
    at = p.targets - (lag * _rounds(p.picks, lag))[None, :]
    if now.min() < 0 or not np.isfinite(z[now]).all():
        return None
    target = z[p.targets]
    fitted = np.where(at >= 0, z[np.maximum(at, 0)], np.nan)
    ok = np.isfinite(target) & np.isfinite(fitted)
    rows = int(ok.sum())
    if rows < 30:
        return None
    none = np.zeros(len(p.steps))
    return Band(
        location=z[now],
        pull=none,
        shift=none,
        scale=np.ones(len(p.steps)),
        target=target[ok],
        fitted=fitted[ok],
        spread=np.ones(rows),
        row_shift=np.zeros(rows),
        weight=p.weight[ok],
        flagged=np.zeros(rows, dtype=bool),
        closed=np.zeros(len(p.steps), dtype=bool),
        idle=z[:0],
        idle_weight=z[:0],
        level_share=0.0,
        hours=hour_of(p.targets[ok], day),
        hours_now=hour_of(n - 1 + p.steps, day),
    )


def design(c: Context, t: np.ndarray, h: np.ndarray) -> tuple[Floats, Floats]:
    """Return anchor `[T, H]`, NaN where a young history knows none, and features `[T, H, P]`."""
    s = c.seasons
    anchor, daily, weekly, at_day, at_week = _seasonal(s, t, h)
    if not c.is_young:
        anchor = np.where(np.isfinite(anchor), anchor, c.slow[t][:, None])
    known_now = (*c.newest(h), *c.echoed(h))
    edges_at = FIRST_LEVEL + len(known_now)
    x = np.zeros((*anchor.shape, edges_at + c.edged(h) + 4 * bool(c.flagged.any())))
    x[..., 0] = 1.0
    x[..., 1] = weekly - anchor
    x[..., 2] = _read(s.near, at_week) - anchor
    x[..., 3] = daily - anchor
    x[..., 4] = _read(s.daily_fast, at_day) - anchor
    x[..., 5] = _read(s.near, at_day) - anchor
    for k, level in enumerate(known_now):
        x[..., FIRST_LEVEL + k] = level[t][:, None]
    if c.edged(h):
        # Across an edge the newest error fades at once, and yesterday's edge says more than its level.
        move = (anchor - c.anchor[t][:, None]) ** 2
        share = move / (move + c.edge**2)
        x[..., edges_at] = share * c.levels[0][t][:, None]
        x[..., edges_at + 1] = share * x[..., 5]
    if c.flagged.any():
        tau = t[:, None] + h[None, :]
        flag = c.flagged[tau].astype(np.float64)
        x[..., -4] = flag
        x[..., -3] = flag * (c.calm[tau] - anchor)
        x[..., -2] = flag * c.levels[-1][t][:, None]
        x[..., -1] = flag * c.levels[2][t][:, None]
    x[np.isnan(x)] = 0.0
    return anchor, x


def _seasonal(
    s: Seasons, t: np.ndarray, h: np.ndarray
) -> tuple[Floats, Floats, Floats, np.ndarray, np.ndarray]:
    """Return anchor, daily and weekly profile `[T, H]` and the positions they were read at (< 0: before all)."""
    tau = t[:, None] + h[None, :]
    wide = s.day // 12
    at_day = tau - (s.day * _rounds(h + s.half, s.day))[None, :]
    at_week = tau - (7 * s.day * _rounds(h + wide + s.half, 7 * s.day))[None, :]
    daily = _read(s.daily, at_day)
    weekly = _read(s.weekly, at_week)
    return _anchor(daily, weekly, daily + _read(s.contrast, at_week)), daily, weekly, at_day, at_week


def closed_at(s: Seasons, t: np.ndarray, h: np.ndarray) -> Bools:
    """Return `[T, H]`: steps at which demand was zero in nearly all weeks (days, before a week was seen)."""
    tau = t[:, None] + h[None, :]
    if not len(s.idle_daily):
        return np.zeros(tau.shape, dtype=bool)
    weekly = _read(s.idle_weekly, tau - (7 * s.day * _rounds(h, 7 * s.day))[None, :])
    daily = _read(s.idle_daily, tau - (s.day * _rounds(h, s.day))[None, :])
    return np.asarray(np.where(np.isfinite(weekly), weekly, daily) > IDLE_SHARE_MIN)


def _read(a: Floats, at: np.ndarray) -> Floats:
    return np.where(at >= 0, a[np.maximum(at, 0)], np.nan)


def _anchor(daily: Floats, weekly: Floats, both: Floats) -> Floats:
    mean = 0.5 * (weekly + both)
    return np.where(np.isfinite(mean), mean, daily)


def _rounds(h: np.ndarray, period: int) -> np.ndarray:
    return np.asarray(-(-h // period))


def log_scale_features(c: Context, t: np.ndarray, h: np.ndarray, floor: float) -> Floats:
    """Return `[T, H, G]`: a constant, logs of the phase's and the recent volatility, and the event flag."""
    tau = t[:, None] + h[None, :]
    at = tau - (c.seasons.day * _rounds(h + c.phase_half, c.seasons.day))[None, :]
    x = np.zeros((*tau.shape, 3 + len(c.volatility)))
    x[..., 0] = 1.0
    phase = _read(c.phase_scale, at)
    phase[np.isnan(phase)] = 0.0
    x[..., 1] = np.log(phase + floor)
    for k, v in enumerate(c.volatility):
        x[..., 2 + k] = np.log(v[t] + floor)[:, None]
    x[..., -1] = c.flagged[tau]
    return x


def _prior(c: Context, ahead: float, width: int) -> Floats:
    """Return weights `[P]` before any data: a recent level error fades within hours, a day's within days."""
    day = float(c.seasons.day)
    prior = np.zeros(width)
    lives = c.lives
    prior[FIRST_LEVEL + int(np.argmin(np.abs(np.log(lives) - np.log(max(day / 24.0, 1.0)))))] = (
        PRIOR_HOUR * 0.5 ** (ahead / (day / 4.0))
    )
    prior[FIRST_LEVEL + int(np.argmin(np.abs(np.log(lives) - np.log(day))))] += PRIOR_DAY
    return prior


def _cross_fit(
    x: Floats, y: Floats, weight: Floats, edges: np.ndarray, ridge_share: Floats, prior: Floats
) -> tuple[Floats, Floats]:
    """Return the least-absolute-deviation fit `[P]` and each block's residuals under the other blocks' fit."""
    w = weight / weight.mean()
    ridge = np.maximum(w @ (x * x), 1e-9) * ridge_share
    beta, e = prior, y - x @ prior
    xw, share = x, 1.0
    for _ in range(ITERATION_COUNT):
        size = np.abs(e)
        delta = _median(size) * 0.2 + 1e-9
        irls = w * (delta / np.maximum(size, delta))
        share = float(irls.mean())
        xw = x * irls[:, None]
        beta = np.linalg.solve(xw.T @ x + np.diag(ridge * share), xw.T @ y + ridge * share * prior)
        e = y - x @ beta
    parts = [slice(a, b) for a, b in pairwise(edges)]
    grams = np.stack([xw[part].T @ x[part] for part in parts])
    sides = np.stack([xw[part].T @ y[part] for part in parts])
    others = np.linalg.solve(
        grams.sum(axis=0) + np.diag(ridge * share) - grams,
        (sides.sum(axis=0) - sides + ridge * share * prior)[..., None],
    )[..., 0]
    held_out = np.concatenate([y[part] - x[part] @ b for part, b in zip(parts, others, strict=True)])
    return beta, held_out


def _scale_fit(g: Floats, target: Floats, weight: Floats) -> Floats:
    """Return weights of the log-scale features `[G]`, shrunk towards half the phase's scale."""
    prior = np.zeros(g.shape[1])
    prior[1] = 0.5
    centre = weight @ g / weight.sum()
    ridge = np.diag(0.05 * (weight @ (g - centre) ** 2) + 1e-6)
    gw = g * weight[:, None]
    return prior + np.linalg.solve(gw.T @ g + ridge, gw.T @ (target - g @ prior))
