"""``forecrest simulate``, and the same as ``python -m controller.simulation`` without the rest of the CLI."""

import argparse
import sys
from pathlib import Path

from controller.simulation.command import Request, load, output, run
from controller.simulation.registry import NAMES


def main(arguments: list[str] | None = None) -> int:
    """Parse, run, print; 0, or 2 with one sentence on standard error."""
    parser = argparse.ArgumentParser(
        prog="forecrest simulate",
        description="Replay a traffic trace through the production decision core and its peers, on a virtual clock.",
        epilog="example: forecrest simulate --trace requests.csv.gz --policy forecrest --policy hpa --json",
    )
    parser.add_argument("--trace", type=Path, required=True, help="CSV or CSV.gz with timestamp,value")
    parser.add_argument("--events", type=Path, help="CSV with start,end,name,kind of known events")
    parser.add_argument(
        "--policy", action="append", default=[], metavar="NAME", help=f"one of {', '.join(NAMES)}"
    )
    parser.add_argument("--json", action="store_true", help="print a list of objects, one per policy")
    parser.add_argument("--timeline", type=Path, help="write the first policy's course to this CSV file")
    parser.add_argument("--plot", type=Path, help="draw every policy's course to this PNG or SVG file")
    parser.add_argument(
        "--capacity-qps", type=float, help="of one replica; without it the trace is scaled to 40"
    )
    parser.add_argument("--cold-start-s", type=float, default=300.0)
    parser.add_argument("--slo-wait-ms", type=float, default=500.0)
    parser.add_argument("--value-unit", choices=("qps", "count"), default="qps", help="what the values are")
    parser.add_argument("--cold-start-spread", type=float, default=0.0, help="sigma of the log-normal factor")
    parser.add_argument("--load-failure-share", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    request = Request(
        trace=given.trace,
        events=given.events,
        policies=tuple(given.policy),
        capacity_qps=given.capacity_qps,
        cold_start_s=given.cold_start_s,
        slo_wait_ms=given.slo_wait_ms,
        unit=given.value_unit,
        seed=given.seed,
        cold_start_spread=given.cold_start_spread,
        load_failure_share=given.load_failure_share,
    )
    try:
        results = run(request)
        capacity = load(request)[2].queue.capacity_qps
        output(results, as_json=given.json, timeline=given.timeline, plot=given.plot, capacity_qps=capacity)
    except OSError as error:
        sys.stderr.write(f"{error.filename}: {error.strerror}; check the path and its permissions.\n")
        return 2
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
