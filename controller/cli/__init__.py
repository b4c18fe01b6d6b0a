"""The command line. ``forecrest COMMAND --help`` shows what each command does, with an example.

Promises: exit code 0 for done, 1 for failed, 2 for wrong usage, 3 where no controller answered, 130 after Ctrl-C, 143
after SIGTERM, and never a traceback for something the user can put right. The commands are in the modules beside this one, put together in ``app``.
"""

import sys

EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        # Loading takes a moment, in which Ctrl-C must end in silence, too.
        from controller.cli.app import run_command  # noqa: PLC0415

        code = run_command(sys.argv[1:])
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    sys.exit(code)
