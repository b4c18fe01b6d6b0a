"""The commands put together, and how each of them ends."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from controller.cli import (
    audit,
    backtest,
    console,
    decisions,
    doctor,
    engines,
    events,
    forecasts,
    ingest,
    kubernetes,
    notifications,
    offline,
    profile,
    registry,
    servers,
    tokens,
    top,
    traffic,
    workloads,
)
from controller.cli.common import CliError, err, use_credentials
from controller.cli.help import fold_help
from controller.cli.output import add_output
from controller.history import HistoryFileError

app = typer.Typer(
    name="forecrest",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    help="Predictive autoscaling for NVIDIA Triton: replicas warm before the traffic arrives.",
    epilog="Example: `forecrest up`, and in another terminal `forecrest top`.",
)

for command in (servers.up, servers.serve, console.console, servers.migrate, doctor.doctor, offline.demo):
    app.command(rich_help_panel="Run")(command)
engines.app.command("profile")(profile.profile)
for name, group, panel, example in (
    ("events", events.app, "Use", "forecrest events list"),
    ("workloads", workloads.app, "Use", "forecrest workloads list"),
    ("decisions", decisions.app, "Use", "forecrest decisions watch --changes"),
    ("notifications", notifications.app, "Use", "forecrest notifications list"),
    ("audit", audit.app, "Use", "forecrest audit list"),
    ("token", tokens.app, "Use", "forecrest token list"),
    ("engine", engines.app, "Use", "forecrest engine list"),
    ("registry", registry.app, "Use", "forecrest registry list"),
    ("kubernetes", kubernetes.kubernetes, "Run", "forecrest kubernetes restore"),
    ("history", traffic.history, "Use", "forecrest history export -w recommender"),
    ("traffic", ingest.traffic, "Use", "forecrest traffic backfill --help"),
):
    app.add_typer(group, name=name, rich_help_panel=panel, epilog=f"Example: `{example}`")
app.command(rich_help_panel="Use")(top.top)
app.command(rich_help_panel="Use")(traffic.forecast)
app.command(rich_help_panel="Use")(forecasts.explain)
app.command(rich_help_panel="Use")(forecasts.accuracy)
app.command(rich_help_panel="Study", context_settings=offline.PASS_THROUGH)(offline.simulate)
app.command("what-if", rich_help_panel="Study")(forecasts.what_if)
app.command(rich_help_panel="Study")(backtest.backtest)
add_output(app)


@app.callback()
def connect(
    tls_ca: Annotated[
        Path | None, typer.Option(help="Authority of the server's certificate, PEM. [env: FORECREST_CA]")
    ] = None,
    cert: Annotated[
        Path | None, typer.Option(help="Client certificate, PEM. [env: FORECREST_CLIENT_CERT]")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="Key of the client certificate. [env: FORECREST_CLIENT_KEY]")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the bearer token. [env: FORECREST_TOKEN_FILE, or FORECREST_TOKEN]"),
    ] = None,
) -> None:
    """Predictive autoscaling for NVIDIA Triton: replicas warm before the traffic arrives."""
    use_credentials(ca=tls_ca, cert=cert, key=key, token_file=token_file)


def run_command(arguments: list[str]) -> int:
    """Run one command and return its exit code; errors are on standard error by then."""
    if {"-h", "--help"} & set(arguments):
        fold_help()
    try:
        app(arguments, prog_name="forecrest")
    except SystemExit as end:  # how typer ends every command, wrong usage and Ctrl-C included
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except (CliError, HistoryFileError) as error:
        err().print(f"[bold red]Error[/]: {_plain(str(error))}")
        return error.code if isinstance(error, CliError) else 1
    except BrokenPipeError:
        # The reader of our output (head, less) is gone, which is no failure; nothing more can be written.
        sys.stderr.close()
    return 0


def _plain(text: str) -> str:
    # Brackets in a message are the user's own text, never markup.
    return text.replace("[", r"\[")
