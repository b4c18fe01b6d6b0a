"""``forecrest console``: the web console of any controller."""

import asyncio
import ssl
from pathlib import Path
from typing import Annotated

import typer

from controller.cli.common import (
    EXIT_USAGE,
    Address,
    CliError,
    err,
    find_address,
    given_credentials,
    out,
    run,
)
from controller.credentials import Credentials, CredentialsError, is_loopback

BIND = "127.0.0.1:7445"


def console(
    address: Address = None,
    bind: Annotated[
        str,
        typer.Option(envvar="FORECREST_CONSOLE_BIND", help="host:port of the console; port 0: a free one."),
    ] = BIND,
    hosts: Annotated[
        str,
        typer.Option(
            envvar="FORECREST_CONSOLE_HOSTS",
            help="Further names under which browsers reach it, separated by commas.",
        ),
    ] = "",
    tls_cert: Annotated[
        Path | None, typer.Option(envvar="FORECREST_TLS_CERT", help="The console's certificate, PEM.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(envvar="FORECREST_TLS_KEY", help="Key of the console's certificate.")
    ] = None,
) -> None:
    """Serve the web console of a controller, until Ctrl-C.

    Beyond this machine it needs --tls-cert and --tls-key, and an API that tells its callers apart: everybody logs in
    with a token of their own. `forecrest up` starts one by itself.

    Example: `forecrest console --address 127.0.0.1:7443`
    """
    host, colon, port = bind.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise CliError(f"--bind: {bind!r} is not host:port; write {BIND}.", EXIT_USAGE)
    if (tls_cert is None) != (tls_key is None):
        raise CliError("--tls-cert and --tls-key belong together; give both.", EXIT_USAGE)
    credentials = given_credentials()
    try:
        if credentials.secure:
            credentials.channel_credentials()
    except CredentialsError as error:
        raise CliError(str(error), EXIT_USAGE) from None
    names = [name.strip() for name in hosts.split(",") if name.strip()]
    run(_serve(find_address(address), credentials, host, int(port), names, _context(tls_cert, tls_key)))


def _context(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if cert is None or key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password=lambda: "")
    except (ssl.SSLError, OSError) as error:
        raise CliError(
            f"--tls-cert: {cert} and {key} are no certificate and its own unencrypted key."
        ) from error
    return context


async def _serve(
    target: str, credentials: Credentials, host: str, port: int, names: list[str], tls: ssl.SSLContext | None
) -> None:
    # Imported late: templates and pages that no other command needs.
    from controller.console.app import create_app  # noqa: PLC0415
    from controller.listener import listen  # noqa: PLC0415

    bind = f"{host}:{port}"
    if not is_loopback(bind):
        await _check_protected(target, credentials, bind, tls)
    app = create_app(target, credentials=credentials, hosts=[*names, host], secure=tls is not None)
    try:
        running = await listen(app, host, port, tls)
    except OSError as error:
        raise CliError(f"--bind: {bind} is not free; choose another.") from error
    out().print(f"The console of {target} is at [bold]{running.url}[/]. Ctrl-C ends it.")
    try:
        await asyncio.Event().wait()
    finally:
        await running.stop()
        err().print("Stopped.")


async def _check_protected(
    target: str, credentials: Credentials, bind: str, tls: ssl.SSLContext | None
) -> None:
    """Raise CliError unless a console that the network reaches lets nobody in without a proof."""
    from controller.console.session import asks_for_login  # noqa: PLC0415

    if tls is None:
        raise CliError(
            f"--bind: {bind} can be reached from the network; give --tls-cert and --tls-key, or bind to 127.0.0.1.",
            EXIT_USAGE,
        )
    if not await asks_for_login(target, credentials):
        raise CliError(
            f"--bind: {bind} can be reached from the network, and the API at {target} does not tell its callers "
            "apart; set that up as docs/security.md says, or bind to 127.0.0.1."
        )
