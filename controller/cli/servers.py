"""``forecrest up``, ``serve`` and ``migrate``: the processes that do the work."""

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError

from controller import redaction
from controller.cli.common import EXIT_USAGE, CliError, err, out, run

if TYPE_CHECKING:
    from controller.ports import Actuator
    from controller.settings import Settings

DataDir = Annotated[
    Path, typer.Option(envvar="FORECREST_DATA_DIR", help="Folder of the embedded servers' data.")
]
Bind = Annotated[str | None, typer.Option(help="host:port of the gRPC API; port 0 picks a free one.")]


def read_settings(**given: object) -> "Settings":
    """Read settings from the environment, with what the command line gave on top; name what is wrong."""
    from controller.settings import Settings  # noqa: PLC0415 - half of what most commands would load

    try:
        return Settings.model_validate(
            Settings().model_dump() | {name: value for name, value in given.items() if value is not None}
        )
    except ValidationError as error:
        lines = [
            f"FORECREST_{'_'.join(map(str, e['loc'])).upper() or 'settings'}: {e['msg'].removeprefix('Value error, ')}."
            for e in error.errors()
        ]
        raise CliError("\n".join(lines), EXIT_USAGE) from None


def configure_logging(level: str) -> None:
    """Log to standard error, so that standard output holds results only."""
    logging.basicConfig(
        level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%H:%M:%S"
    )
    redaction.install()
    # What it has to say at INFO is its own plumbing, a screenful of it before our first line.
    logging.getLogger("alembic").setLevel(logging.WARNING)


def up(data_dir: DataDir = Path(".forecrest"), bind: Bind = None) -> None:
    """Run a controller here with PostgreSQL, Valkey and Triton of its own, until Ctrl-C.

    Data stays in the data folder for the next start.

    Example: `forecrest up`
    """
    settings = read_settings(data_dir=data_dir, bind=bind)
    configure_logging(settings.log_level)
    run(run_controller(settings, "embedded PostgreSQL and Valkey"))


def serve(bind: Bind = None) -> None:
    """Run a controller on your own PostgreSQL and Redis, until Ctrl-C or SIGTERM.

    FORECREST_DATABASE_URL and FORECREST_REDIS_URL say where they are; run `forecrest migrate` first.

    Example: `FORECREST_DATABASE_URL=postgresql+psycopg://… FORECREST_REDIS_URL=redis://… forecrest serve`
    """
    settings = read_settings(bind=bind)
    missing = [
        f"FORECREST_{name.upper()}: is not set; say where the server is, or use `forecrest up` for embedded ones."
        for name in ("database_url", "redis_url")
        if getattr(settings, name) is None
    ]
    if missing:
        raise CliError("\n".join(missing), EXIT_USAGE)
    configure_logging(settings.log_level)
    run(run_controller(settings, "your PostgreSQL and Redis"))


async def run_controller(settings: "Settings", where: str, actuator: "Actuator | None" = None) -> None:
    """Run a controller until it is cancelled, on an actuator other than the settings name where one is given.

    Raises:
        CliError: it cannot start, or something it cannot do without ended.
    """
    # Imported late: the composition root pulls in every adapter, and most commands need none.
    from controller.adapters.embedded import EmbeddedError  # noqa: PLC0415
    from controller.api.auth.security import SecurityError  # noqa: PLC0415
    from controller.api.server import BindError  # noqa: PLC0415
    from controller.bootstrap import open_runtime  # noqa: PLC0415
    from controller.ports import PortError  # noqa: PLC0415

    has_served = False
    err().print(f"Starting on {where} …")
    try:
        async with open_runtime(settings, actuator=actuator) as runtime:
            has_served = True
            out().print(f"Forecrest serves gRPC on [bold]{runtime.api.target}[/], on {where}.")
            if runtime.http is not None:
                out().print(f"Metrics and health: {runtime.http.url}/metrics, /healthz, /readyz.")
            if runtime.console is not None:
                out().print(f"Console: [bold]{runtime.console.url}[/].")
            out().print("Try: forecrest doctor · forecrest workloads list · Ctrl-C ends it.")
            server = asyncio.create_task(runtime.api.wait())
            ending = {task for task in (server, runtime.loop, runtime.servers) if task is not None}
            done, _ = await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            raise CliError("The control loop ended by itself; see the log above.")
    except (EmbeddedError, BindError, SecurityError, PortError) as error:
        raise CliError(str(error)) from error
    finally:
        if has_served:
            err().print("Stopped.")


def migrate(
    database_url: Annotated[
        str | None,
        typer.Option(
            envvar="FORECREST_DATABASE_URL",
            show_envvar=True,
            help="postgresql+psycopg://user:password@host/database. Prefer the environment: it hides the password.",
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only say whether the schema is current.")] = False,
) -> None:
    """Bring the schema of your PostgreSQL to the revision this release needs.

    `forecrest up` does this by itself for the embedded database.

    Example: `FORECREST_DATABASE_URL=postgresql+psycopg://… forecrest migrate`
    """
    if database_url is None:
        raise CliError(
            "FORECREST_DATABASE_URL: is not set; say which database to migrate. "
            "`forecrest up` migrates its own.",
            EXIT_USAGE,
        )
    from controller.adapters.postgres import PostgresStore  # noqa: PLC0415 - slow to import
    from controller.adapters.postgres import migrate as schema  # noqa: PLC0415
    from controller.ports import PortError  # noqa: PLC0415

    checked = read_settings(database_url=database_url).database_url
    assert checked is not None
    url = checked.get_secret_value()

    async def call() -> None:
        if not check:
            await asyncio.to_thread(schema.upgrade, url)
        store = PostgresStore(url)
        try:
            await store.check_revision()
        finally:
            await store.close()

    try:
        run(call())
    except PortError as error:
        raise CliError(str(error)) from error
    out().print("The schema is current.")
