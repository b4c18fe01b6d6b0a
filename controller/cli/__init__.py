"""The command line. ``forecrest COMMAND --help`` shows what each command does, with an example.

Promises: exit code 0 for done, 1 for failed, 2 for wrong usage, 130 after Ctrl-C, and never a traceback for
something the user can put right. Heavy libraries load only in the commands that need them.
"""

import sys

import click
import typer

from controller.cli import decisions, doctor, events, offline, servers, traffic, workloads
from controller.cli.common import EXIT_INTERRUPTED, CliError, err
from controller.history import HistoryFileError

app = typer.Typer(
    name="forecrest",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    help="Predictive autoscaling for NVIDIA Triton: replicas warm before the traffic arrives.",
)

for command in (servers.up, servers.serve, servers.migrate, doctor.doctor, offline.demo):
    app.command(rich_help_panel="Run")(command)
app.add_typer(events.app, name="events", rich_help_panel="Use")
app.add_typer(workloads.app, name="workloads", rich_help_panel="Use")
app.add_typer(decisions.app, name="decisions", rich_help_panel="Use")
app.command(rich_help_panel="Use")(traffic.forecast)
app.add_typer(traffic.history, name="history", rich_help_panel="Use")
for study in (offline.simulate, offline.backtest):
    app.command(rich_help_panel="Study", context_settings=offline.PASS_THROUGH)(study)


def main() -> None:
    """Run the command line and exit with its code."""
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: list[str]) -> int:
    """Run one command and return its exit code; errors are on standard error by then."""
    try:
        return int(app(arguments, prog_name="forecrest", standalone_mode=False) or 0)
    except (CliError, HistoryFileError) as error:
        err().print(f"[bold red]Error[/]: {_plain(str(error))}")
        return error.code if isinstance(error, CliError) else 1
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f"\nTry: {context.command_path} --help" if context is not None else ""
        err().print(f"[bold red]Error[/]: {_plain(error.format_message() + hint)}")
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        err().print("Interrupted.")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (head, less) is gone, which is no failure; nothing more can be written.
        sys.stderr.close()
        return 0


def _plain(text: str) -> str:
    # Brackets in a message are the user's own text, never markup.
    return text.replace("[", r"\[")
