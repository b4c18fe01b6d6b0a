"""How good stored forecasts were, and which model makes them: plain values, and the sums over them. Pure.

Promises: scores are kept as sums, so hours add up to any window; what cannot be compared is None, never 0.
Called by the loop, the stores, the forecaster adapter and the use cases.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from controller.core.types import Trust

# How far ahead stored forecasts are scored; each stretch is one hour long, or one step if steps are longer.
LEADS = (timedelta(0), timedelta(hours=1), timedelta(hours=6), timedelta(days=1))
SPAN = timedelta(hours=1)
ENSEMBLE = "ensemble"
SWITCHES_MAX = 20


@dataclass(frozen=True, slots=True)
class NaiveScore:
    """Sums of the loss on the steps where a seasonal naive could be compared: its own and the forecast's."""

    step_count: int = 0
    loss_sum: float = 0.0
    own_loss_sum: float = 0.0

    def plus(self, other: "NaiveScore") -> "NaiveScore":
        """Return the sums over both."""
        return NaiveScore(
            self.step_count + other.step_count,
            self.loss_sum + other.loss_sum,
            self.own_loss_sum + other.own_loss_sum,
        )

    @property
    def ratio(self) -> float | None:
        """Loss of the forecast over the naive's; None where there is nothing to compare with."""
        return self.own_loss_sum / self.loss_sum if self.loss_sum > 0 else None


@dataclass(frozen=True, slots=True)
class LeadScore:
    """Sums over the observed steps of a stretch. ``loss_sum`` is the mean pinball loss over levels, QPS, summed over steps."""

    lead: timedelta
    step_count: int
    loss_sum: float
    covered: tuple[int, ...]  # steps at or below each level
    error_sum: float  # median - demand
    demand_sum: float
    daily: NaiveScore = NaiveScore()
    weekly: NaiveScore = NaiveScore()

    def plus(self, other: "LeadScore") -> "LeadScore":
        """Return the sums over both."""
        return replace(
            self,
            step_count=self.step_count + other.step_count,
            loss_sum=self.loss_sum + other.loss_sum,
            covered=tuple(a + b for a, b in zip(self.covered, other.covered, strict=True)),
            error_sum=self.error_sum + other.error_sum,
            demand_sum=self.demand_sum + other.demand_sum,
            daily=self.daily.plus(other.daily),
            weekly=self.weekly.plus(other.weekly),
        )

    @property
    def bias(self) -> float | None:
        """Error over demand; positive is too high."""
        return self.error_sum / self.demand_sum if self.demand_sum > 0 else None


@dataclass(frozen=True, slots=True)
class HourScore:
    """What forecasts of several leads said about one stretch of truth, ``[start_at, start_at + span)``."""

    start_at: datetime
    span: timedelta
    levels: tuple[float, ...]
    leads: tuple[LeadScore, ...]

    @property
    def end_at(self) -> datetime:
        """End of the stretch."""
        return self.start_at + self.span


@dataclass(frozen=True, slots=True)
class LiveAccuracy:
    """One lead over a window of hours."""

    start_at: datetime
    end_at: datetime
    span: timedelta
    levels: tuple[float, ...]
    score: LeadScore


def add_up(hours: Sequence[HourScore]) -> tuple[LiveAccuracy, ...]:
    """Add up hours, oldest first, by lead. Hours scored at other levels or spans than the newest are left out."""
    found: dict[timedelta, LiveAccuracy] = {}
    for hour in hours:
        if (hour.levels, hour.span) != (hours[-1].levels, hours[-1].span):
            continue
        for score in hour.leads:
            before = found.get(score.lead)
            found[score.lead] = LiveAccuracy(
                start_at=before.start_at if before else hour.start_at,
                end_at=hour.end_at,
                span=hour.span,
                levels=hour.levels,
                score=before.score.plus(score) if before else score,
            )
    return tuple(found[lead] for lead in sorted(found))


@dataclass(frozen=True, slots=True)
class ModelScore:
    """One candidate over all folds of one stretch of the horizon: "short", "day" or "all"."""

    model: str
    stretch: str
    step_count: int
    pinball_qps: float
    naive_ratio: float | None
    bias: float | None
    coverage: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Backtest:
    """A rolling backtest of every candidate on the same folds."""

    at: datetime
    fold_count: int
    horizon: timedelta
    levels: tuple[float, ...]
    scores: tuple[ModelScore, ...]


@dataclass(frozen=True, slots=True)
class Switch:
    """One change of champion."""

    at: datetime
    from_model: str
    to_model: str
    reason: str


@dataclass(frozen=True, slots=True)
class Standing:
    """Who makes a workload's forecasts and why; the newest backtest; how far the loop trusts the result."""

    workload: str
    champion: str = ENSEMBLE
    since_at: datetime | None = None
    reason: str = "The shipped model; no backtest ran yet."
    challenger: str = ""
    win_count: int = 0
    switches: tuple[Switch, ...] = ()  # newest first
    backtest: Backtest | None = None
    trust: Trust = Trust.UNPROVEN
    trust_reason: str = ""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the median of a stored forecast is made of, QPS per step; the season is what remains of it.

    Values are multiples of one power of two, as are those of the forecast, so that sums are exact.
    """

    forecast_id: str
    workload: str
    created_at: datetime
    model: str
    model_reason: str
    sentence: str
    baseline: float
    trend: tuple[float, ...] = field(repr=False)
    event: tuple[float, ...] = field(repr=False)
    correction: tuple[float, ...] = field(repr=False)
