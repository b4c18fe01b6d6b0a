"""Forecast accuracy of ours and of every peer, on the same rolling origins of real series.

Promises: deterministic origins; every method sees the same history and is scored on the same buckets;
a failure is recorded with its reason and scored as the weekly seasonal-naive it would fall back to.
Refuses: folders without series; unknown series or methods, naming those that exist.
Called by: `make bench` and people: `python -m benchmarks.accuracy --data DIR`.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks import plots, report
from benchmarks.cache import Cache, Outcome
from benchmarks.methods import Method, MethodError, run_method
from benchmarks.peers import METHODS, MSTL_DEFAULT
from benchmarks.series import (
    MIN_SPAN,
    RESAMPLED_STEP,
    WEEK,
    Origin,
    Series,
    SeriesError,
    Task,
    event_mask,
    event_origins,
    make_task,
    read_folder,
    regular_origins,
)
from benchmarks.summary import Row, Timing, score_series, summarize

DEFAULT_CACHE = Path(".forecrest/bench-cache")
TIMING_HISTORY = 3 * WEEK
TIMING_ORIGINS = 3
SUMMARY = "Forecast accuracy of ours and of every peer, on the same rolling origins of real series."
OURS_METHOD = METHODS[0]


@dataclass(frozen=True, slots=True)
class Options:
    """What to run and where results are kept; `only` empty means every method."""

    origins: int
    event_origins: int
    history: timedelta
    only: frozenset[str]
    refresh: bool


def cpu_seconds() -> float:
    """CPU time of this process and its finished children: what one core must give, on a busy machine too."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


@dataclass(slots=True)
class Runner:
    """Runs methods through the cache, timing each without its first-call compilation."""

    options: Options
    cache: Cache
    warm: set[str] = field(default_factory=set)

    def outcome(self, method: Method, task: Task, data: str) -> Outcome | None:
        """Return what `method` gives for `task`; None when it is neither to be run nor in the cache."""
        key = (*method.settings, data, task.start.isoformat(), task.origin.isoformat(), str(task.horizon))
        wanted = not self.options.only or method.name in self.options.only
        if method.is_cached and not (wanted and self.options.refresh):
            stored = self.cache.get(method.name, key)
            if stored is not None or not wanted:
                return stored
        if method is OURS_METHOD and not wanted:
            return None
        if method.name not in self.warm:
            self.warm.add(method.name)
            self._run(method, task)
        outcome = self._run(method, task)
        if method.is_cached:
            self.cache.put(method.name, key, outcome)
        return outcome

    @staticmethod
    def _run(method: Method, task: Task) -> Outcome:
        # A fresh task, so that a method's time includes its own gap filling.
        task = Task(task.start, task.step, task.observed, task.horizon, task.events)
        began = cpu_seconds()
        try:
            values = run_method(method, task)
        except MethodError as error:
            return Outcome(None, cpu_seconds() - began, str(error))
        return Outcome(values, cpu_seconds() - began)


def run_series(series: Series, runner: Runner, methods: Sequence[Method], progress: Progress) -> list[Row]:
    """Return one row per origin of `series` with the outcome of each method."""
    options = runner.options
    origins = regular_origins(series, options.origins) + event_origins(series, options.event_origins)
    job = progress.add_task(series.name, total=len(origins) * len(methods), method="")
    rows: list[Row] = []
    for origin in origins:
        task = make_task(series, origin, options.history)
        outcomes: dict[str, Outcome] = {}
        missing: list[str] = []
        for method in methods:
            progress.update(job, method=method.name)
            if not (method.needs_events and not series.events):
                outcome = runner.outcome(method, task, series.digest)
                if outcome is None:
                    missing.append(method.name)
                else:
                    outcomes[method.name] = outcome
            progress.advance(job)
        actual = series.grid[origin.position : origin.position + series.horizon]
        rows.append(Row(series, origin, task, actual, event_mask(series, origin), outcomes, tuple(missing)))
    progress.remove_task(job)
    return rows


def measure_time(series: Sequence[Series], runner: Runner) -> list[Timing]:
    """Time one forecast at 5-minute steps from exactly three weeks of history, where a series has them.

    Peers are timed at one origin per series, and MSTL with its library's defaults once, because it is slow.
    """
    timings: list[Timing] = []
    size = TIMING_HISTORY // RESAMPLED_STEP
    extra = [MSTL_DEFAULT]
    for one in (one for one in series if one.step == RESAMPLED_STEP):
        positions = [at.position for at in regular_origins(one, TIMING_ORIGINS) if at.position >= size]
        for number, position in enumerate(positions):
            task = make_task(one, Origin(position, is_event=False), TIMING_HISTORY)
            methods = [*METHODS, *extra] if number == 0 else [OURS_METHOD]
            extra = []
            for method in methods:
                if not (method.needs_events and not task.events):
                    outcome = runner.outcome(method, task, one.digest)
                    if outcome:
                        timings.append(Timing(method.name, one.name, outcome.seconds, outcome.reason))
    return timings


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=SUMMARY)
    parser.add_argument("--data", type=Path, required=True, help="folder of NAME.csv.gz and NAME.events.csv")
    parser.add_argument("--series", nargs="*", default=[], metavar="NAME", help="only these series")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every score here")
    parser.add_argument(
        "--update", type=Path, metavar="FILE", help="replace the tables in this Markdown file"
    )
    parser.add_argument("--plots", type=Path, metavar="DIR", help="write one picture per series here")
    parser.add_argument("--origins", type=int, default=6, help="regular origins per series (default 6)")
    parser.add_argument(
        "--event-origins", type=int, default=6, help="extra origins before events (default 6)"
    )
    parser.add_argument("--history-weeks", type=float, default=8.0, help="history per forecast (default 8)")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="METHOD",
        choices=[method.name for method in METHODS],
        help="run only these methods; the others come from the cache",
    )
    parser.add_argument("--refresh", action="store_true", help="run again what is in the cache")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help=f"default {DEFAULT_CACHE}")
    parser.add_argument("--no-timing", action="store_true", help="skip the time of one forecast")
    options = parser.parse_args(arguments)
    if min(options.origins, options.history_weeks) <= 0 or options.event_origins < 0:
        parser.error("--origins and --history-weeks must be positive, --event-origins not negative.")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, 1 when ours failed somewhere, 2 for input that cannot be used."""
    args = parse(arguments)
    console = Console(width=100)
    try:
        found = read_folder(args.data, args.series)
    except SeriesError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    used = [one for one in found if one.span >= MIN_SPAN]
    options = Options(
        origins=args.origins,
        event_origins=args.event_origins,
        history=timedelta(weeks=args.history_weeks),
        only=frozenset(args.only),
        refresh=args.refresh,
    )
    runner = Runner(options, Cache(args.cache))
    columns = (TextColumn("{task.description:<32}"), BarColumn(), MofNCompleteColumn())
    columns_after = (TimeRemainingColumn(), TextColumn("{task.fields[method]}"))
    rows: list[Row] = []
    with Progress(*columns, *columns_after, console=Console(stderr=True)) as progress:
        total = progress.add_task("series", total=len(used), method="")
        for one in used:
            rows += run_series(one, runner, METHODS, progress)
            progress.advance(total)
        timings = [] if args.no_timing else measure_time(used, runner)
    scores = [score_series([row for row in rows if row.series is one]) for one in used]
    summary = summarize(scores, timings)
    report.show(console, summary, scores, [one for one in found if one not in used])
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        document = report.document(summary, scores, timings, settings=vars(args))
        args.json.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if args.update:
        report.update(args.update, summary, scores)
    if args.plots:
        plots.write(args.plots, rows)
    return 1 if summary.failures.get("ours") else 0


if __name__ == "__main__":
    sys.exit(main())
