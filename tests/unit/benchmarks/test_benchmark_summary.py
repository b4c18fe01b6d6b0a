"""From outcomes to ratios: failures are charged, the best peer is chosen per series, unknown stays unknown."""

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from benchmarks.cache import Outcome
from benchmarks.scoring import LEVELS
from benchmarks.series import HOUR, Origin, Series, Task
from benchmarks.summary import Row, Timing, score_series, summarize

START = datetime(2026, 3, 2, tzinfo=UTC)


def row(name: str = "shop", *, is_event: bool = False, **errors: float | str) -> Row:
    """One origin whose actual is 100 throughout; each method misses by its error, or fails with a reason."""
    history = np.random.default_rng(5).uniform(90, 110, 24 * 15)
    series = Series(name, START, HOUR, np.concatenate([history, np.full(24, 100.0)]), ())
    outcomes = {
        method.replace("_", "-"): Outcome(None, 0.1, error)
        if isinstance(error, str)
        else Outcome(np.full((24, len(LEVELS)), 100.0 + error), 0.1)
        for method, error in errors.items()
    }
    in_event = np.zeros(24, dtype=np.bool_)
    in_event[5:8] = is_event
    task = Task(START, HOUR, history, 24, ())
    return Row(series, Origin(24 * 15, is_event), task, series.grid[-24:], in_event, outcomes)


def test_the_best_peer_is_the_lowest_on_each_series_and_never_ours() -> None:
    score = score_series([row(ours=1.0, snaive_week=8.0, mstl=4.0, prophet=2.0)])

    assert score.best_peer("day")[0] == "prophet"
    assert score.ratio("day") == pytest.approx(0.5)
    assert score.ratio("day", "mstl") == pytest.approx(0.25)


def test_a_failed_origin_counts_as_the_weekly_seasonal_naive() -> None:
    rows = [
        row(ours=1.0, snaive_week=8.0, mstl=2.0),
        row(ours=1.0, snaive_week=8.0, mstl="returned NaN"),
    ]

    score = score_series(rows)

    assert score.methods["mstl"].day == pytest.approx(
        (score_series(rows[:1]).methods["mstl"].day + score.methods["snaive-week"].day) / 2
    )
    assert score.methods["mstl"].failed == 1
    assert summarize([score], []).failures == {"mstl": {"shop": 1}}


def test_a_peer_that_always_failed_is_not_the_best_peer() -> None:
    score = score_series([row(ours=1.0, snaive_week=4.0, mstl="no", snaive_day=6.0)])

    assert score.best_peer("day")[0] == "snaive-week"
    assert np.isnan(score.ratio("day", "mstl"))


def test_ours_failing_is_no_ratio_and_is_counted() -> None:
    score = score_series([row(ours="broken", snaive_week=4.0, mstl=1.0)])

    assert np.isnan(score.ratio("day"))
    assert summarize([score], []).failures["ours"] == {"shop": 1}


def test_event_origins_are_scored_only_in_event_windows() -> None:
    rows = [row(ours=1.0, snaive_week=4.0), row(is_event=True, ours=9.0, snaive_week=4.0)]

    score = score_series(rows)

    assert score.ratio("day") == pytest.approx(0.25)
    assert score.ratio("event") == pytest.approx(9 / 4)
    assert score.event_buckets == 3
    assert score.origins == 1


def test_a_method_missing_at_one_origin_is_left_out() -> None:
    score = score_series([row(ours=1.0, snaive_week=4.0, mstl=2.0), row(ours=1.0, snaive_week=4.0)])

    assert "mstl" not in score.methods
    assert np.isnan(score.ratio("day", "mstl"))


def test_a_series_that_copies_its_week_is_out_of_every_ratio() -> None:
    good = score_series([row("a", ours=1.0, snaive_week=8.0, mstl=2.0)])
    copied = replace(score_series([row("b", ours=9.0, snaive_week=1.0, mstl=2.0)]), is_copy=True)

    # By text: an unmeasured value is NaN, which equals nothing.
    assert str(summarize([good], []).measures) == str(summarize([good, copied], []).measures)


def test_series_weigh_the_same_and_measures_are_judged() -> None:
    scores = [
        score_series([row("a", ours=1.0, snaive_week=8.0, mstl=2.0)]),
        score_series([row("b", ours=4.0, snaive_week=8.0, mstl=2.0)]),
    ]
    timings = [Timing("ours", "a", 0.020, ""), Timing("ours", "b", 0.040, "")]

    measures = {measure.name: measure for measure in summarize(scores, timings).measures}

    assert measures["ours / MSTL, day"].value == pytest.approx(1.0)  # 0.5 and 2
    assert measures["ours / MSTL, day"].holds is False
    assert measures["worst series, day: b"].value == pytest.approx(2.0)
    assert measures["one forecast, 5 min, 3 weeks: median ms"].holds is True
    assert measures["World Cup event windows, ours / best peer"].holds is None
