"""``forecrest demo``, ``simulate`` and ``backtest``: what needs no running controller."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from controller.cli.common import CliError, out, run

# These two have their own full option lists and help; theirs is passed through untouched.
PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def demo(
    history: Annotated[
        Path | None,
        typer.Option(help="Your own CSV (timestamp,value; may be gzipped) instead of the built-in series."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Wall seconds of load per run.", min=20, max=1800)] = 72.0,
    baseline: Annotated[
        bool, typer.Option("--baseline/--no-baseline", help="Run the same load without prediction, too.")
    ] = True,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave everything running afterwards, until Ctrl-C.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures of both runs to this file.")
    ] = None,
    report: Annotated[Path, typer.Option(help="Folder of the report page.")] = Path("forecrest-report"),
    data_dir: Annotated[Path, typer.Option(help="Folder of the demo's servers.")] = Path(".forecrest/demo"),
    seed: Annotated[int, typer.Option(help="Seed of the requests' times.", min=0)] = 1,
) -> None:
    """Watch it work: a forecast, a prewarm, a peak ridden out, and the same without prediction.

    Real PostgreSQL, Valkey and Triton, real requests, about three minutes.

    Example: `forecrest demo --json figures.json`
    """
    out().print("Preparing …")  # loading every adapter takes a moment on a busy machine
    from controller.demo.run import DemoError, DemoOptions, run_demo  # noqa: PLC0415 - pulls in every adapter

    options = DemoOptions(
        history=history,
        seconds=seconds,
        baseline=baseline,
        keep=keep,
        json_file=json_file,
        report=report,
        data_dir=data_dir,
        seed=seed,
    )
    try:
        run(run_demo(options))
    except DemoError as error:
        raise CliError(str(error)) from error


def simulate(context: typer.Context) -> int:
    """Replay a traffic trace through the production decision core and its peers, on a virtual clock.

    Example: `forecrest simulate --trace requests.csv.gz --policy forecrest --policy hpa --json`
    """
    return _module("controller.simulation", context.args)


def backtest(context: typer.Context) -> int:
    """Score the forecaster on your own history, fold by fold, against seasonal naive.

    Example: `forecrest backtest requests.csv.gz`
    """
    return _module("forecaster.backtest", context.args)


def _module(name: str, arguments: list[str]) -> int:
    return subprocess.run([sys.executable, "-m", name, *arguments], check=False).returncode  # noqa: S603 - our own module
