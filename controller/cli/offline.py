"""``forecrest demo`` and ``simulate``: what brings its own world along."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from controller.cli.common import CliError, out, run

# The simulator has its own full option list and help, which is passed through untouched.
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


def simulate(context: typer.Context) -> None:
    """Replay a traffic trace through the production decision core and its peers, on a virtual clock.

    Example: `forecrest simulate --trace requests.csv.gz --policy forecrest --policy hpa --json`
    """
    _module("controller.simulation", context.args)


def _module(name: str, arguments: list[str]) -> None:
    if importlib.util.find_spec(name) is None:
        raise CliError(f"{name} is not part of this installation.")
    done = subprocess.run([sys.executable, "-m", name, *arguments], check=False)  # noqa: S603 - our own module
    raise typer.Exit(done.returncode)
