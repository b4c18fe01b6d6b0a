"""From outcomes to scores: per series, per method, and the measures that must hold.

Promises: every method is averaged over the same buckets; a failed origin counts as the weekly
seasonal-naive and is listed; a method that failed everywhere on a series cannot be its best peer.
Refuses: nothing; what cannot be computed is NaN and shown as such.
Called by: the accuracy benchmark. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks.cache import Outcome
from benchmarks.scoring import LEVELS, covered, geometric_mean, nanmean, pinball, seasonal_scale
from benchmarks.series import WEEK, Origin, Series, Task

Floats = NDArray[np.float64]

NAN = float("nan")
OURS, BASE, FALLBACK = "ours", "mstl", "snaive-week"


@dataclass(frozen=True, slots=True)
class Row:
    """One origin of one series: what happened next, what each method said before, which were not run."""

    series: Series
    origin: Origin
    task: Task
    actual: Floats
    in_event: NDArray[np.bool_]
    outcomes: dict[str, Outcome]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Timing:
    """Time of one forecast at 5-minute steps from three weeks of history."""

    method: str
    series: str
    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class MethodScore:
    """A method on one series; scores are scaled pinball losses, NaN where there is nothing to score."""

    day: float
    short: float
    event: float
    coverage: dict[float, float]
    coverage_short: dict[float, float]
    seconds: float
    failed: int
    origins: int
    reasons: tuple[str, ...]

    @property
    def usable(self) -> bool:
        """Whether the method gave a forecast at least once."""
        return self.failed < self.origins


@dataclass(frozen=True, slots=True)
class SeriesScore:
    """Every method on one series."""

    name: str
    step_s: float
    days: float
    origins: int
    event_buckets: int
    is_copy: bool
    missing: tuple[str, ...]
    methods: dict[str, MethodScore]

    def best_peer(self, horizon: str) -> tuple[str, float]:
        """Return the peer with the lowest score on this series, chosen with hindsight."""
        peers = {
            name: getattr(score, horizon)
            for name, score in self.methods.items()
            if name != OURS and score.usable and not np.isnan(getattr(score, horizon))
        }
        if not peers:
            return "", NAN
        best = min(peers, key=lambda name: peers[name])
        return best, peers[best]

    def ratio(self, horizon: str, name: str | None = None) -> float:
        """Return ours / `name`, or ours / best peer; NaN when either is missing."""
        if OURS not in self.methods or not self.methods[OURS].usable:
            return NAN
        if name is not None and (name not in self.methods or not self.methods[name].usable):
            return NAN
        other = self.best_peer(horizon)[1] if name is None else getattr(self.methods[name], horizon)
        ours = getattr(self.methods[OURS], horizon)
        return float(ours / other) if other > 0 else NAN


@dataclass(frozen=True, slots=True)
class Measure:
    """One line of what must hold."""

    name: str
    must: str
    value: float
    holds: bool | None


@dataclass(frozen=True, slots=True)
class Summary:
    """The whole benchmark in a page."""

    measures: tuple[Measure, ...]
    relative: dict[str, dict[str, float]]
    failures: dict[str, dict[str, int]] = field(default_factory=dict)


def score_series(rows: Sequence[Row]) -> SeriesScore:
    """Average the rows of one series, per method."""
    series = rows[0].series
    # A method that the cache lacks at some origin would be averaged over other buckets than the rest.
    names = [name for name in rows[0].outcomes if all(name in row.outcomes for row in rows)]
    return SeriesScore(
        name=series.name,
        step_s=series.step.total_seconds(),
        days=round(series.span.total_seconds() / 86400, 2),
        origins=len([row for row in rows if not row.origin.is_event]),
        event_buckets=int(sum((row.in_event & ~np.isnan(row.actual)).sum() for row in rows)),
        is_copy=series.is_copy,
        missing=tuple(dict.fromkeys(name for row in rows for name in row.missing)),
        methods={name: _score_method(name, rows) for name in names},
    )


def _score_method(name: str, rows: Sequence[Row]) -> MethodScore:
    day: list[Floats] = []
    short: list[Floats] = []
    event: list[Floats] = []
    hits: list[Floats] = []
    hits_short: list[Floats] = []
    seconds: list[float] = []
    reasons: list[str] = []
    for row in rows:
        outcome = row.outcomes[name]
        if outcome.values is None:
            reasons.append(outcome.reason)
        else:
            seconds.append(outcome.seconds)
        values = outcome.values if outcome.values is not None else row.outcomes[FALLBACK].values
        if values is None:
            continue
        loss = pinball(row.actual, values) / _scale(row)
        event.append(loss[row.in_event])
        if row.origin.is_event:
            continue
        hit = covered(row.actual, values)
        first = row.series.short
        day.append(loss)
        short.append(loss[:first])
        hits.append(hit)
        hits_short.append(hit[:first])
    return MethodScore(
        day=_mean_of_means(day),
        short=_mean_of_means(short),
        event=nanmean(np.concatenate(event)) if event else NAN,
        coverage=_coverage(hits),
        coverage_short=_coverage(hits_short),
        seconds=float(np.median(seconds)) if seconds else NAN,
        failed=len(reasons),
        origins=len(rows),
        reasons=tuple(dict.fromkeys(reasons)),
    )


def _scale(row: Row) -> float:
    scale = seasonal_scale(row.task.observed, row.task.buckets(WEEK))
    # A constant history has no weekly error; its own mean, or one, keeps the ratios defined.
    return scale if scale > 0 else (nanmean(np.abs(row.task.observed)) or 1.0)


def _mean_of_means(losses: Sequence[Floats]) -> float:
    """Give every origin the same weight, however many of its buckets were observed."""
    return nanmean(np.array([nanmean(loss) for loss in losses])) if losses else NAN


def _coverage(hits: Sequence[Floats]) -> dict[float, float]:
    if not hits:
        return dict.fromkeys(LEVELS, NAN)
    pooled = np.concatenate(hits)
    return {level: nanmean(pooled[:, at]) for at, level in enumerate(LEVELS)}


def summarize(scores: Sequence[SeriesScore], timings: Sequence[Timing]) -> Summary:
    """Combine series with equal weight: geometric means of ratios, plain means of coverage.

    Series that are copies of their own week are in the failures only.
    """
    names = list(dict.fromkeys(name for score in scores for name in score.methods))
    failures = {
        name: {
            score.name: score.methods[name].failed
            for score in scores
            if name in score.methods and score.methods[name].failed
        }
        for name in names
    }
    scores = [score for score in scores if not score.is_copy]
    return Summary(
        measures=tuple(_measures(scores, timings)),
        relative={
            name: _relative(name, scores, timings)
            for name in dict.fromkeys([*names, *(timing.method for timing in timings)])
        },
        failures={name: found for name, found in failures.items() if found},
    )


def _relative(name: str, scores: Sequence[SeriesScore], timings: Sequence[Timing]) -> dict[str, float]:
    """Return a method's geometric-mean score against MSTL, its coverage and its times."""

    def against_base(horizon: str) -> float:
        pairs = [
            (getattr(score.methods[name], horizon), getattr(score.methods[BASE], horizon))
            for score in scores
            if name in score.methods and score.methods[name].usable and BASE in score.methods
        ]
        return geometric_mean([own / base for own, base in pairs if base > 0])

    mine = [score.methods[name] for score in scores if name in score.methods and score.methods[name].usable]
    return {
        "day": against_base("day"),
        "short": against_base("short"),
        "coverage_95": nanmean(np.array([score.coverage[0.95] for score in mine])),
        "coverage_99": nanmean(np.array([score.coverage[0.99] for score in mine])),
        "seconds_median": nanmean(np.array([np.median([score.seconds for score in mine])] if mine else [])),
        "seconds_5min_3weeks": _median_time(name, timings),
        "series": float(len(mine)),
    }


def _median_time(name: str, timings: Sequence[Timing]) -> float:
    own = [timing.seconds for timing in timings if timing.method == name and not timing.reason]
    return float(np.median(own)) if own else NAN


def _measures(scores: Sequence[SeriesScore], timings: Sequence[Timing]) -> list[Measure]:
    def at_most(name: str, limit: float, value: float) -> Measure:
        return Measure(name, f"<= {limit:g}", value, None if np.isnan(value) else value <= limit)

    def ratios(horizon: str, peer: str | None) -> float:
        return geometric_mean([score.ratio(horizon, peer) for score in scores])

    def worst(horizon: str) -> Measure:
        known = {score.name: score.ratio(horizon) for score in scores if score.ratio(horizon) >= 0}
        name = max(known, key=lambda name: known[name], default="")
        return at_most(f"worst series, {horizon}: {name}", 1.25, known.get(name, NAN))

    mine = [score.methods[OURS] for score in scores if OURS in score.methods and score.methods[OURS].usable]
    cover_95 = nanmean(np.array([one.coverage[0.95] for one in mine]))
    cover_99 = nanmean(np.array([one.coverage[0.99] for one in mine]))
    cup = [score.ratio("event") for score in scores if score.name.startswith("worldcup98")]
    return [
        at_most("ours / MSTL, day", 0.80, ratios("day", BASE)),
        at_most("ours / MSTL, short", 0.70, ratios("short", BASE)),
        at_most("ours / best peer per series, day (aim 0.95)", 1.00, ratios("day", None)),
        at_most("ours / best peer per series, short", 1.05, ratios("short", None)),
        worst("day"),
        worst("short"),
        Measure("coverage of the 95 % quantile", "0.93-0.97", cover_95, _inside(cover_95, 0.93, 0.97)),
        Measure("coverage of the 99 % quantile", ">= 0.98", cover_99, _inside(cover_99, 0.98, 1.0)),
        at_most("World Cup event windows, ours / best peer", 0.6, cup[0] if cup else NAN),
        at_most("one forecast, 5 min, 3 weeks: median ms", 50.0, 1000 * _median_time(OURS, timings)),
    ]


def _inside(value: float, low: float, high: float) -> bool | None:
    return None if np.isnan(value) else bool(low <= value <= high)
