"""``forecrest token``: make, list and withdraw static bearer tokens in the tokens file.

Promises: a token is shown once, on standard output alone, and only its hash is kept; the running server takes the
change within seconds. Works on the file itself, without a server: the first token has to come from somewhere.
"""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.common import (
    DATA_DIR,
    EXIT_USAGE,
    AsJson,
    CliError,
    clock,
    err,
    out,
    parse_duration,
    print_json,
    table,
)

if TYPE_CHECKING:
    from controller.api.auth.tokens import TokenFile

app = typer.Typer(no_args_is_help=True, help="Make, list and withdraw bearer tokens.")

TokensFile = Annotated[
    Path,
    typer.Option(
        "--file", envvar="FORECREST_TOKENS_FILE", help="The tokens file that the server was told of."
    ),
]
DEFAULT_FILE = DATA_DIR / "tokens.json"


@contextmanager
def _held(path: Path) -> Generator["TokenFile"]:
    """The file's tokens, with nobody else changing them for the time of the block."""
    from controller.api.auth.files import SecurityError  # noqa: PLC0415 - slow to import
    from controller.api.auth.tokens import TokenFile, read_tokens  # noqa: PLC0415 - as above

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield read_tokens(path) if path.exists() else TokenFile()
    except SecurityError as error:
        raise CliError(str(error)) from None
    finally:
        os.close(lock)


@app.command()
def create(
    role: Annotated[
        list[str], typer.Option(help="viewer, planner, operator, telemetry or admin; repeatable.")
    ],
    namespace: Annotated[
        list[str] | None,
        typer.Option(help="Namespace of workloads, or '*' for all of them; repeatable."),
    ] = None,
    name: Annotated[
        str, typer.Option(help="Who it is for, as the audit log will name it. Default: the token's id.")
    ] = "",
    expires: Annotated[str, typer.Option(help="How long it is good for: 90d, 12h, or 'never'.")] = "90d",
    file: TokensFile = DEFAULT_FILE,
) -> None:
    """Make a token and print it, once.

    Example: `forecrest token create --role planner --namespace shop --name ci`
    """
    from controller.api.auth.roles import Grant  # noqa: PLC0415 - slow to import
    from controller.api.auth.tokens import TokenFile, make_token, save_tokens  # noqa: PLC0415 - as above

    if not namespace:
        raise CliError(
            "--namespace: is required; name the workloads' namespace, or '*' for all of them.", EXIT_USAGE
        )
    try:
        grants = tuple(Grant.parse(f"{r}:{n}") for r in role for n in namespace)
    except ValueError as error:
        raise CliError(str(error), EXIT_USAGE) from None
    now = clock.now()
    expires_at = None if expires == "never" else now + parse_duration(expires, "--expires")
    with _held(file) as held:
        made = make_token(name, grants, now, expires_at)
        save_tokens(file, TokenFile(tokens=(*held.tokens, made.kept)))
    typer.echo(made.text)
    until = "for ever" if expires_at is None else f"until {expires_at:%Y-%m-%d %H:%M} UTC"
    err().print(
        f"Token {made.kept.id} ({', '.join(made.kept.grants)}) is good {until}. It is not shown again."
    )
    if "FORECREST_TOKENS_FILE" not in os.environ:
        err().print(f"Start the server with FORECREST_TOKENS_FILE={file}.")


@app.command("list")
def list_(file: TokensFile = DEFAULT_FILE, as_json: AsJson = False) -> None:
    """List the tokens' names, grants and ends; never the tokens.

    Example: `forecrest token list`
    """
    now = clock.now()
    with _held(file) as held:
        tokens = held.tokens
    if as_json:
        print_json([token.model_dump(mode="json", exclude={"sha256"}) for token in tokens])
        return
    shown = table("id", "name", "grants", "until (UTC)")
    for token in tokens:
        until = "for ever" if token.expires_at is None else f"{token.expires_at:%Y-%m-%d %H:%M}"
        expired = token.expires_at is not None and token.expires_at <= now
        shown.add_row(
            token.id, token.name, ", ".join(token.grants), f"[red]{until} (over)[/]" if expired else until
        )
    out().print(shown)


@app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The id that `forecrest token list` shows.")],
    file: TokensFile = DEFAULT_FILE,
) -> None:
    """Withdraw a token: within seconds it opens nothing any more, and its streams end.

    Example: `forecrest token revoke 0123456789abcdef`
    """
    from controller.api.auth.tokens import TokenFile, save_tokens  # noqa: PLC0415 - slow to import

    with _held(file) as held:
        left = tuple(token for token in held.tokens if token.id != token_id)
        if len(left) == len(held.tokens):
            raise CliError(f"{token_id}: there is no such token in {file}; see `forecrest token list`.")
        save_tokens(file, TokenFile(tokens=left))
    out().print(f"Token {token_id} is withdrawn.")
