"""Compare stored forecasts with what came, and the models that could make the next one. No I/O.

Promises: the seasonal naive is judged on the same steps and knows no more than the forecast did; unknown demand is
left out on both sides; the same input gives the same sums. Refuses nothing: what cannot be compared is left out.
Called by the forecaster's adapter, in its worker thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from math import ceil, isfinite
from typing import TYPE_CHECKING

import numpy as np

from controller.accuracy import (
    SWITCHES_MAX,
    Backtest,
    HourScore,
    LeadScore,
    ModelScore,
    NaiveScore,
    Standing,
    Switch,
)
from controller.core.types import ForecastBand, Trust
from forecaster import Event, ForecastInputError, selection
from forecaster.metrics import naive_spread, pinball
from forecaster.types import Floats

# What only the processes of the pool need is imported where it is used: see `controller.adapters.forecaster`.
if TYPE_CHECKING:
    import pandas as pd

DAY = timedelta(days=1)
WEEK = timedelta(days=7)
FOLD_COUNT = 4
# A model that is better by less than this share of demand is no better.
GAIN_SHARE_MIN = 0.005

Minutes = Sequence[tuple[datetime, float | None]]


@dataclass(frozen=True, slots=True)
class Truth:
    """Demand on its grid: ``values[i]`` of the step that starts at ``start_at + i * step``, NaN unknown."""

    start_at: datetime
    step: timedelta
    values: Floats

    @property
    def end_at(self) -> datetime:
        """End of the last step."""
        return self.start_at + self.step * len(self.values)

    def series(self) -> "pd.Series":
        """The same as the forecaster takes it."""
        import pandas as pd  # noqa: PLC0415 - slow to import

        index = pd.date_range(self.start_at, periods=len(self.values), freq=self.step, tz=UTC)
        return pd.Series(self.values, index=index)

    def place(self, at: datetime) -> int | None:
        """Index of the step that starts at ``at``, which may lie outside; None off the grid."""
        index, rest = divmod(at - self.start_at, self.step)
        return None if rest else index

    def naive(self, places: np.ndarray, lag: timedelta, known: int, levels: Sequence[float]) -> Floats:
        """`[n, Q]`: the value ``lag`` before, with the quantiles of such errors before index ``known``; NaN without."""
        count = lag // self.step
        if not count or lag % self.step:
            return np.full((len(places), len(levels)), np.nan)
        at = places - count
        past = np.where(at >= 0, self.values[np.clip(at, 0, len(self.values) - 1)], np.nan)
        spread = naive_spread(self.values[: max(known, 0)], count, levels)
        return np.asarray(np.maximum(past[:, None] + spread[None, :], 0.0))


def truth(history: Minutes, step: timedelta) -> Truth:
    """Return a history as read from the store: every step of a window, None where unknown."""
    values = np.array([np.nan if qps is None else qps for _, qps in history], dtype=np.float64)
    return Truth(history[0][0], step, values)


def judge(band: ForecastBand, observed: Minutes) -> tuple[Trust, str]:
    """Judge ``band`` by what came since its origin, against the week before, or the day where that is unknown."""
    if not observed or not band.qps:
        return Trust.UNPROVEN, "Nothing was observed since."
    found = truth(observed, band.step)
    places, values = _rows(band, found, band.start_at, found.end_at)
    first = found.place(band.start_at)
    if first is None or not len(places):
        return Trust.UNPROVEN, "Nothing was observed since."
    week = found.naive(places, WEEK, first, band.levels)
    naive = np.where(np.isfinite(week), week, found.naive(places, DAY, first, band.levels))
    verdict = selection.judge(found.values[places], values, naive, band.levels)
    return Trust(verdict.trust.value), verdict.sentence


def score(
    history: Minutes,
    step: timedelta,
    span: timedelta,
    asked: Sequence[tuple[datetime, timedelta, ForecastBand]],
) -> tuple[HourScore, ...]:
    """Score stretches ``[at, at + span)`` by the forecasts that stood ``lead`` before them.

    Returns one score per stretch that has any observed step, oldest first; bands at other levels than the last
    one's are left out.
    """
    if not history or not asked:
        return ()
    found, levels = truth(history, step), asked[-1][2].levels
    leads: dict[datetime, list[LeadScore]] = {}
    for at, lead, band in sorted(asked, key=lambda one: one[:2]):
        if band.step != step or band.levels != levels or 0.5 not in levels:
            continue
        made = _score(found, band, at, lead, span)
        if made is not None:
            leads.setdefault(at, []).append(made)
    return tuple(HourScore(at, span, levels, tuple(scores)) for at, scores in leads.items())


def _score(
    found: Truth, band: ForecastBand, at: datetime, lead: timedelta, span: timedelta
) -> LeadScore | None:
    places, values = _rows(band, found, at, at + span)
    known = np.isfinite(found.values[places])
    places, values = places[known], values[known]
    if not len(places):
        return None
    actual = found.values[places]
    loss = pinball(actual, values, band.levels).mean(axis=1)
    before = (at - lead - found.start_at) // found.step  # steps that were over when the forecast was made

    def against(lag: timedelta) -> NaiveScore:
        naive = found.naive(places, lag, before, band.levels)
        there = np.isfinite(naive).all(axis=1)
        if not there.any():
            return NaiveScore()
        theirs = pinball(actual[there], naive[there], band.levels).mean(axis=1)
        return NaiveScore(int(there.sum()), float(theirs.sum()), float(loss[there].sum()))

    return LeadScore(
        lead=lead,
        step_count=len(places),
        loss_sum=float(loss.sum()),
        covered=tuple(int(n) for n in (actual[:, None] <= values).sum(axis=0)),
        error_sum=float((values[:, band.levels.index(0.5)] - actual).sum()),
        demand_sum=float(actual.sum()),
        # The newest whole days that were over when the forecast was made.
        daily=against(DAY * ceil((lead + span) / DAY)),
        weekly=against(WEEK * ceil((lead + span) / WEEK)),
    )


def _rows(
    band: ForecastBand, found: Truth, start_at: datetime, end_at: datetime
) -> tuple[np.ndarray, Floats]:
    """Return places in the truth and rows of the band for the steps that start in the window and in both."""
    offset = found.place(band.start_at)
    if offset is None or not band.qps:
        return np.zeros(0, dtype=np.int64), np.zeros((0, len(band.levels)))
    low = max(0, -offset, ceil((start_at - band.start_at) / band.step))
    high = min(len(band.qps), len(found.values) - offset, ceil((end_at - band.start_at) / band.step))
    rows = np.array(band.qps[low : max(low, high)], dtype=np.float64).reshape(-1, len(band.levels))
    return np.arange(low, low + len(rows)) + offset, rows


def _losses(scores: Sequence[ModelScore]) -> dict[str, float]:
    """Mean loss over stretches of the models that were judged on every step that any was judged on."""
    by_stretch: dict[str, dict[str, ModelScore]] = {}
    for one in scores:
        by_stretch.setdefault(one.stretch, {})[one.model] = one
    fit = {one.model for one in scores}
    for found in by_stretch.values():
        most = max(one.step_count for one in found.values())
        fit &= {model for model, one in found.items() if one.step_count == most}
    return {
        model: sum(found[model].pinball_qps for found in by_stretch.values()) / len(by_stretch)
        for model in sorted(fit)
    }


def contest(
    standing: Standing,
    history: Truth,
    horizon_steps: int,
    events: Sequence[Event],
    levels: Sequence[float],
    now: datetime,
    time_zone: str | None = None,
) -> Standing:
    """Backtest every candidate on ``history`` and return the standing after it."""
    from forecaster.backtest import compare  # noqa: PLC0415 - slow to import

    try:
        folds, scores = compare(
            history.series(),
            horizon_steps,
            FOLD_COUNT,
            quantile_levels=levels,
            events=events,
            time_zone=time_zone,
        )
    except ForecastInputError as error:
        return replace(standing, reason=f"{standing.champion} stays: no backtest is possible. {error}")
    backtest = Backtest(
        at=now,
        fold_count=folds,
        horizon=history.step * horizon_steps,
        levels=tuple(levels),
        scores=tuple(
            ModelScore(
                model=s.model,
                stretch=s.horizon,
                step_count=s.step_count,
                pinball_qps=s.pinball,
                naive_ratio=s.naive_ratio if isfinite(s.naive_ratio) else None,
                bias=s.bias if isfinite(s.bias) else None,
                coverage=s.coverage,
            )
            for s in scores
            if s.step_count
        ),
    )
    stretches = ("all",) if all(s.stretch == "all" for s in backtest.scores) else ("short", "day")
    losses = _losses([s for s in backtest.scores if s.stretch in stretches])
    before = selection.Standing(standing.champion, standing.challenger, standing.win_count)
    least = GAIN_SHARE_MIN * float(np.nanmean(history.values))
    after = selection.contest(before, losses, least=least)
    reason = selection.verdict_of(before, after, losses)
    switched = after.champion != before.champion
    change = (Switch(now, before.champion, after.champion, reason),) if switched else ()
    return replace(
        standing,
        champion=after.champion,
        since_at=now if switched else standing.since_at,
        # What put the champion in its place stays on record beside the newest judgement.
        reason=reason,
        challenger=after.challenger,
        win_count=after.win_count,
        switches=(*change, *standing.switches)[:SWITCHES_MAX],
        backtest=backtest,
    )
