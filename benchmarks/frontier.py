"""Compare policies on real traces: replica-hours at equal violation shares, and against a clairvoyant.

Every trace of at least a day at a step of five minutes or less; cold start 300 s, SLO wait 0.5 s, the peak
scaled to 40 replicas. Each policy's safety knob is swept and its frontier read at fixed violation shares.
The first days only teach (a new user imports that much history) and are not scored.

    python -m benchmarks frontier --data DIR [--trace NAME ...] [--policy NAME ...] [--json FILE] [--plots DIR]
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import exp, log
from pathlib import Path

from controller.simulation.cluster import ClusterModel
from controller.simulation.command import progress
from controller.simulation.frontier import Point, cheapest, hours_at, sweep
from controller.simulation.harness import with_limits
from controller.simulation.ours import Foresight
from controller.simulation.plots import plot_frontier
from controller.simulation.registry import NAMES, entries
from controller.simulation.trace import Trace, read_events, read_trace

SHARES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
MAIN_SHARE = 1e-3
PEAK_QPS = 4000.0
# Daily structure: lag-one-day autocorrelation at least 0.3 (figures of the data's index).
DAILY = (
    "worldcup98_requests_1min",
    "nasa_http_requests_1min",
    "crane_input15_big_1min",
    "crane_input9_trend_1min",
    "crane_input11_onoff_1min",
    "crane_input8_saturated_1min",
    "crane_input1_sparse_1min",
    "bank_calls_5min",
    "burstgpt_tokens_per_s_1min",
)
BURSTY = ("aws_elb_requests_5min", "twitter_mentions_AAPL_5min", "twitter_mentions_GOOG_5min")
# World Cup traffic before the matches is not what the trace is for: begin a week before the first.
FIRST_DAY = {"worldcup98_requests_1min": 34.0}


@dataclass(frozen=True, slots=True)
class Options:
    """What to run."""

    data: Path
    traces: tuple[str, ...]
    policies: tuple[str, ...]
    learn_days: float
    score_days: float
    refit_s: float


def run_trace(name: str, options: Options) -> tuple[dict[str, object], dict[str, list[Point]]]:
    """Sweep every policy over one trace; return the figures and the points."""
    packed = options.data / f"{name}.csv.gz"
    whole = read_trace(packed if packed.exists() else options.data / f"{name}.csv")
    first = FIRST_DAY.get(name, 0.0)
    span = len(whole.qps) * whole.step_s / 86_400 - first
    learn = min(options.learn_days, span / 2)
    trace: Trace = whole.days(first, learn + options.score_days).scaled_to_peak(PEAK_QPS)
    known = options.data / f"{name}.events.csv"
    events = read_events(known) if known.exists() and name.startswith("worldcup") else ()
    model = with_limits(ClusterModel(), trace)
    foresight = Foresight(trace, events, model.cold_start_s, refit_s=options.refit_s)
    sweeps: dict[str, list[Point]] = {}
    for policy in options.policies:
        begun = time.perf_counter()
        entry = entries(foresight, learn or None)[policy]
        with _bar(f"{name} {policy}") as moved:
            sweeps[policy] = sweep(
                entry,
                trace,
                events,
                model,
                score_from_s=learn * 86_400,
                progress=lambda _, share: moved(share),
            )
        print(f"  {name} {policy}: {time.perf_counter() - begun:.0f} s", file=sys.stderr)
    return _figures(name, trace, learn, sweeps), sweeps


@contextmanager
def _bar(text: str) -> Generator[Callable[[float], None], None, None]:
    """Show a bar on a terminal; yield what moves it to a share of the whole."""
    with progress() as bars:
        task = bars.add_task(text, total=1.0)
        yield lambda share: bars.update(task, completed=share)


def _figures(name: str, trace: Trace, learn: float, sweeps: dict[str, list[Point]]) -> dict[str, object]:
    oracle = sweeps["oracle"][0].replica_hours
    hours = {policy: {s: hours_at(points, s) for s in SHARES} for policy, points in sweeps.items()}
    peers = {policy: hours[policy][MAIN_SHARE] for policy in sweeps if entries()[policy].reactive}
    best = cheapest(peers)
    ours = hours.get("forecrest", {}).get(MAIN_SHARE)
    return {
        "trace": name,
        "step_s": trace.step_s,
        "learn_days": learn,
        "days": len(trace.qps) * trace.step_s / 86_400 - learn,
        "oracle_hours": oracle,
        "ratio_to_oracle": {
            policy: {f"{s:g}": None if h is None else round(h / oracle, 3) for s, h in row.items()}
            for policy, row in hours.items()
        },
        "violations_in_events": {
            policy: [(p.knob, p.result.event_violation_share) for p in points]
            for policy, points in sweeps.items()
        },
        "points": {
            policy: [(p.knob, round(p.violation_share, 7), round(p.replica_hours, 1)) for p in points]
            for policy, points in sweeps.items()
        },
        "best_peer": best[0] if best else None,
        "to_best_peer": round(ours / best[1], 3) if best and ours is not None else None,
        "peers_below": {f"{s:g}": peers_below(hours, s) for s in SHARES},
    }


def peers_below(hours: Mapping[str, Mapping[float, float | None]], share: float) -> list[str]:
    """Return the peers of any kind whose frontier lies below ours at this share: none should."""
    ours = hours.get("forecrest", {}).get(share)
    peers = sorted(hours.keys() - {"forecrest", "forecrest-reactive", "oracle"})
    return [p for p in peers if (h := hours[p][share]) is not None and (ours is None or h < ours)]


def print_table(figures: list[dict[str, object]]) -> None:
    """Print ratios to the oracle per trace and share, then the summary."""
    for row in figures:
        print(
            f"\n{row['trace']}  oracle {row['oracle_hours']:.0f} replica-hours, {row['days']:.1f} days scored"
        )
        print("  " + "violations".ljust(20) + "".join(f"{s:>9.2%}" for s in SHARES))
        ratios = row["ratio_to_oracle"]
        assert isinstance(ratios, dict)
        for policy, values in ratios.items():
            cells = (values[f"{s:g}"] for s in SHARES)
            print("  " + policy.ljust(20) + "".join("        -" if c is None else f"{c:9.2f}" for c in cells))
        print(
            f"  at {MAIN_SHARE:.1%}: {row['to_best_peer']} of the best reactive or scheduled peer ({row['best_peer']})"
        )
        below = row["peers_below"]
        assert isinstance(below, dict)
        told = [f"{float(share):.2%} {', '.join(names)}" for share, names in below.items() if names]
        print(f"  peers below ours: {'; '.join(told) or 'none'}")
    for title, names in (("daily structure", DAILY), ("bursty", BURSTY)):
        part = [row for row in figures if row["trace"] in names]
        for key, text in (("to_best_peer", "of the best peer"), ("oracle", "of the oracle")):
            values = [_value(row, key) for row in part]
            known = [v for v in values if v is not None]
            if known:
                mean = exp(sum(map(log, known)) / len(known))
                print(
                    f"\n{title}: geometric mean {mean:.3f} {text} at {MAIN_SHARE:.1%} ({len(known)} of {len(part)} traces)"
                )


def _value(row: dict[str, object], key: str) -> float | None:
    if key == "to_best_peer":
        value = row[key]
    else:
        ratios = row["ratio_to_oracle"]
        assert isinstance(ratios, dict)
        value = ratios.get("forecrest", {}).get(f"{MAIN_SHARE:g}")
    return value if isinstance(value, float) else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--trace", action="append", default=[])
    parser.add_argument("--policy", action="append", default=[], choices=NAMES)
    parser.add_argument("--learn-days", type=float, default=7.0)
    parser.add_argument("--score-days", type=float, default=7.0)
    parser.add_argument("--refit-s", type=float, default=3600.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plots", type=Path)
    given = parser.parse_args(arguments)
    policies = tuple(dict.fromkeys(["oracle", *(given.policy or NAMES)]))
    options = Options(
        given.data,
        tuple(given.trace or (*DAILY, *BURSTY)),
        policies,
        given.learn_days,
        given.score_days,
        given.refit_s,
    )
    figures: list[dict[str, object]] = []
    for name in options.traces:
        row, sweeps = run_trace(name, options)
        figures.append(row)
        if given.json:
            given.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
        if given.plots:
            given.plots.mkdir(parents=True, exist_ok=True)
            plot_frontier(given.plots / f"{name}.png", name, sweeps)
    print_table(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
