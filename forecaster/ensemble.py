"""Combine the models into quantiles, per horizon band and time of day, by how they did inside the history.

Promises: every member is scored on the same held-out rows, in units of demand; a member that fails or
returns no number is left out; what is left adds up to the forecast, and the components to its median.
Refuses: nothing; without a single usable member it returns the level with wide bounds.
Called by: `forecaster.service`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
from scipy.special import ndtri

from forecaster.events import known_effects
from forecaster.intervals import spread
from forecaster.models.seasonal import carried, decayed, seasons
from forecaster.models.stack import Band, Context, Plan, bands, context, copy_band, fit_band, nearness, plan
from forecaster.series import Grid
from forecaster.transform import Transform
from forecaster.types import Bools, Components, Event, Floats

# Two views of the same history: errors grow with demand, or they do not.
OFFSETS = (0.06, 10.0)
NAMES = ("multiplicative", "additive")
# Weights fall with this power of a member's loss: 6 % worse is half as heavy.
POWER = 12.0
# A copy further off than this has no weight worth computing.
COPY_ERROR_MAX = 1.25
GAIN_MIN = 0.3
SCORE_LEVELS = (0.1, 0.5, 0.9, 0.95, 0.99)
TRUST_EVENT = 0.2
FLAG_SHIFT = 0.05
# Without events, demand beyond this multiple of anything seen is not forecast.
GROWTH_MAX = 2.0
# One standard deviation of log demand over a day when nothing else is known.
BLIND_SPREAD = 0.5
# Share of zeros from which regularly closed hours are looked for.
IDLE_MIN = 0.03
# With more history than this, training starts after the first whole week.
WEEKS_AFTER_DAYS = 14


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the models say, before it gets an index and a state."""

    values: Floats
    median: Floats
    model_weights: Mapping[str, float]
    reasons: tuple[str, ...]
    components: Components
    correction_gain: float
    correction_half_life: timedelta


@dataclass(frozen=True, slots=True)
class Member:
    """One view of the history: a transform, and the context of models on it."""

    name: str
    transform: Transform
    z: Floats
    context: Context
    event_spread: Floats
    lift_max: float
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Opinion:
    """One member's forecast of a band: demand quantiles `[H, Q]`, medians without parts, and losses `[H]`."""

    name: str
    quantiles: Floats
    without_event: Floats
    without_pull: Floats
    loss: Floats
    level_share: float


def predict(grid: Grid, horizon: int, levels: Floats, events: tuple[Event, ...]) -> Prediction:
    """Return quantiles `[horizon, len(levels)]` with their explanation."""
    known = grid.values[np.isfinite(grid.values)]
    # Where nothing was ever asked for, what planners state is the only scale there is.
    planned = max((e.expected_peak or 0.0 for e in events), default=0.0)
    unit, top = float(known.mean()) or planned, float(known.max()) or planned
    if unit <= 0.0:
        return _nothing(horizon, len(levels), grid)
    every = np.union1d(levels, SCORE_LEVELS)
    members = [
        _member(name, Transform(unit, offset), grid, horizon, events)
        for name, offset in zip(NAMES, OFFSETS, strict=True)
    ]
    n, day = len(grid.values), grid.day
    first = int(np.flatnonzero(np.isfinite(grid.values))[0])
    out = np.full((horizon, len(every)), np.nan)
    calm, still = np.full(horizon, np.nan), np.full(horizon, np.nan)
    weights: dict[str, float] = {}
    shares: list[tuple[int, float]] = []
    for steps in bands(horizon, day):
        p = plan(n, day, steps, first + _warmup(n - first, day))
        opinions = _opinions(members, p, day, every, top) if p is not None else []
        if not opinions:
            continue
        losses = np.stack([o.loss for o in opinions]) + 1e-9 * unit
        w = (losses.min(axis=0) / losses) ** POWER
        w /= w.sum(axis=0)
        at = steps - 1
        out[at] = np.einsum("mh,mhq->hq", w, np.stack([o.quantiles for o in opinions]))
        calm[at] = (w * np.stack([o.without_event for o in opinions])).sum(axis=0)
        still[at] = (w * np.stack([o.without_pull for o in opinions])).sum(axis=0)
        mean = w.mean(axis=1)
        reached = int(np.isfinite(out[at]).all(axis=1).sum())
        shares.append((int(steps[0]), float(mean @ [o.level_share for o in opinions])))
        for o, share in zip(opinions, mean, strict=True):
            weights[o.name] = weights.get(o.name, 0.0) + float(share) * reached / horizon
    blind: Bools = np.asarray(~np.isfinite(out).all(axis=1))
    if blind.any():
        _fill_blind(members[0], out, calm, still, blind, every)
        weights["level"] = float(blind.mean())
    out = np.maximum.accumulate(out, axis=1)
    median = out[:, np.searchsorted(every, 0.5)]
    gain, half_life = _persistence(shares, grid)
    return Prediction(
        values=out[:, np.searchsorted(every, levels)],
        median=median,
        model_weights={name: share for name, share in sorted(weights.items()) if share > 0.0},
        reasons=members[0].reasons,
        components=_components(median, calm, still),
        correction_gain=gain,
        correction_half_life=half_life,
    )


def _nothing(horizon: int, level_count: int, grid: Grid) -> Prediction:
    """Return zeros for a history of zeros: verified absence of demand is data."""
    zero = np.zeros(horizon)
    return Prediction(
        values=np.zeros((horizon, level_count)),
        median=zero,
        model_weights={"zero": 1.0},
        reasons=("Every observation is zero; nothing shows how demand would begin.",),
        components=Components(zero, zero, zero, zero, zero),
        correction_gain=1.0,
        correction_half_life=timedelta(seconds=grid.step_s),
    )


def _warmup(n: int, day: int) -> int:
    """Return how many steps must lie before a training origin, so that its features exist."""
    if n > WEEKS_AFTER_DAYS * day:
        return 7 * day + 1
    if n > 3 * day:
        return day + 1
    return min(n // 3, 12)


def _member(name: str, transform: Transform, grid: Grid, horizon: int, events: Sequence[Event]) -> Member:
    z = transform.forward(grid.values)
    n, total = len(z), len(z) + horizon
    none = np.zeros(total)
    zeros = grid.values == 0.0
    idle = None
    if zeros.mean() > IDLE_MIN:
        idle = np.where(np.isfinite(grid.values), zeros.astype(np.float64), np.nan)
    effects, calm = known_effects(z, transform, grid, horizon, events)
    if effects is None:
        bare = context(seasons(z, grid.day, idle=idle), none, none.astype(bool), none[:0])
        return Member(name, transform, z, bare, none[n:], 0.0, ())
    flagged: Bools = effects.inside | (effects.touched & (np.abs(effects.shift) > FLAG_SHIFT))
    trust = np.where(flagged[:n], TRUST_EVENT, 1.0)
    adjusted = np.where(effects.alone[:n], np.nan, z - effects.shift[:n])
    if not np.isfinite(adjusted).any():
        # A history that is one single event still has a level.
        adjusted = z - effects.shift[:n]
    made = context(
        seasons(adjusted, grid.day, trust, idle),
        effects.shift,
        flagged,
        calm,
        effects.past_count,
    )
    top = float(np.nanmax(grid.values))
    # Several at once lift demand further than any of them says.
    lift = max(float(np.log(max((_stated(e, top) for e in events), default=1.0))), effects.planned)
    return Member(name, transform, z, made, effects.spread[n:], lift, effects.reasons)


def _stated(event: Event, top: float) -> float:
    """Return how far above the highest demand seen a planner puts an event, as a factor >= 1."""
    peak = event.expected_peak / top if event.expected_peak is not None and top > 0 else 1.0
    return max(event.expected_multiplier or 1.0, peak, 1.0)


def _opinions(members: Sequence[Member], p: Plan, day: int, levels: Floats, top: float) -> list[Opinion]:
    """Return every member's forecast of one band, and those of plain copies that are nearly as good."""
    fitted = [(m.name, m, fit_band(m.context, p)) for m in members]
    if not members[0].context.flagged.any():
        error = _typical_error(fitted[0][2])
        for name, lag in (("last_week", 7 * day), ("yesterday", day)):
            copy = copy_band(members[0].z, lag, day, p)
            if copy is not None and _typical_error(copy) <= COPY_ERROR_MAX * error:
                fitted.append((name, members[0], copy))
    return [_opinion(name, m, band, p, day, levels, top) for name, m, band in fitted if band is not None]


def _typical_error(band: Band | None) -> float:
    return (
        np.inf if band is None else float(np.abs(band.target - band.fitted) @ band.weight / band.weight.sum())
    )


def _opinion(name: str, m: Member, band: Band, p: Plan, day: int, levels: Floats, top: float) -> Opinion:
    n = len(m.z)
    flagged = m.context.flagged[n - 1 + p.steps]
    s = spread(band, p, day, levels, ndtri(levels), flagged, m.event_spread[p.steps - 1])
    back = m.transform.back
    ceiling = float(m.transform.forward(np.array([GROWTH_MAX * top]))[0])
    z = np.minimum(band.location[:, None] + s.now, ceiling)
    middle = int(np.searchsorted(levels, 0.5))
    scored = np.searchsorted(levels, SCORE_LEVELS)
    rows = back((band.fitted + band.row_shift)[:, None] + s.rows[:, scored])
    missed = back(band.target + band.row_shift)[:, None] - rows
    tau = np.asarray(SCORE_LEVELS)
    loss = np.maximum(tau * missed, (tau - 1.0) * missed).mean(axis=1)
    return Opinion(
        name=name,
        quantiles=back(np.minimum(z + band.shift[:, None], ceiling + np.maximum(m.lift_max, 0.0))),
        without_event=back(z[:, middle]),
        without_pull=back(np.minimum(z[:, middle] - band.pull, ceiling)),
        loss=_local_loss(loss, band, nearness(day, p.days)),
        level_share=band.level_share,
    )


def _local_loss(loss: Floats, band: Band, near: Floats) -> Floats:
    """Return `[H]` the mean of losses `[R]`, those at a like time of day counting most.

    A load that runs on schedule by day and drifts by night is forecast by another member at each.
    """
    hours = len(near)
    total = np.bincount(band.hours, band.weight * loss, hours)
    weight = np.bincount(band.hours, band.weight, hours)
    return np.asarray((near @ total / (near @ weight))[band.hours_now])


def _fill_blind(m: Member, out: Floats, calm: Floats, still: Floats, blind: Bools, levels: Floats) -> None:
    """Forecast steps no model reached: as the day before, the last forecast or the recent level, ever wider."""
    n, back = len(m.z), m.transform.back
    steps = np.flatnonzero(blind)
    seen = np.flatnonzero(~blind)
    normal = ndtri(levels)
    shift = m.context.shift[n:][steps]
    middle = int(np.searchsorted(levels, 0.5))
    level = _continued(m, calm, blind)
    z = m.z[np.isfinite(m.z)]
    moves = np.abs(np.diff(z))
    rough = float(np.median(moves)) * 1.5 if len(moves) else 0.0
    ahead = (steps + 1.0) / m.context.seasons.day
    wide = np.hypot(rough, BLIND_SPREAD * np.sqrt(np.minimum(ahead, 7.0)))
    dev = wide[:, None] * normal[None, :]
    if len(seen):
        edge = m.transform.forward(out[seen[-1]])
        dev = np.sign(normal) * np.hypot(dev, np.nan_to_num(edge - edge[middle])[None, :])
    out[steps] = back(level[:, None] + dev + shift[:, None])
    calm[steps] = still[steps] = back(level)


def _continued(m: Member, calm: Floats, blind: Bools) -> Floats:
    """Return the centre of blind steps: that of the day before where there is a season, else of the step before."""
    s = m.context.seasons
    at = np.maximum.accumulate(np.where(blind, -1, np.arange(len(blind))))
    newest = carried(decayed(s.raw, max(s.day / 24.0, 3.0)))[-1]
    z = np.where(at >= 0, m.transform.forward(calm)[at], newest)
    if s.day > 1 and s.is_seen:
        for first in range(s.day, len(z), s.day):
            here = slice(first, first + s.day)
            z[here] = np.where(blind[here], z[first - s.day : first][: len(z[here])], z[here])
    return z[blind]


def _components(median: Floats, calm: Floats, still: Floats) -> Components:
    baseline = np.full(len(median), float(still.mean()))
    zero = np.zeros(len(median))
    return Components(
        baseline=baseline,
        trend=zero,
        season=still - baseline,
        event=median - calm,
        correction=calm - still,
    )


def _persistence(shares: Sequence[tuple[int, float]], grid: Grid) -> tuple[float, timedelta]:
    """Return how much of a fresh level error to believe, and when half of that is gone."""
    if not shares:
        return 0.5, timedelta(hours=3)
    # A jump unlike anything in this history must still be followed, so the belief has a floor.
    gain = float(np.clip(shares[0][1], GAIN_MIN, 1.0))
    faded = [first for first, share in shares if share <= gain / 2.0]
    steps = faded[0] if faded else 2 * shares[-1][0]
    return gain, timedelta(seconds=max(steps, 1) * grid.step_s)
