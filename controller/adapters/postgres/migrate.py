"""Bring the schema to the revision of this release, and refuse to serve on another.

Promises: migrators never collide (the second waits, then finds nothing to do); an upgrade happens as a whole
or not at all, and gives up rather than block a running service for long. Refuses servers older than
PostgreSQL 14. Called by ``forecrest migrate`` and by the composition root; synchronous, because Alembic is, which is
imported only where something is to be migrated or refused.
"""

from collections.abc import Collection, Generator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from sqlalchemy import Connection, NullPool, create_engine, text

from controller.adapters.postgres.database import (
    MIGRATION_LOCK,
    Limits,
    connect_arguments,
    database_address,
    port_errors,
)
from controller.ports import PortError

if TYPE_CHECKING:
    from alembic.config import Config

_SERVER_MIN = 140_000
# The wait for another migrator may be long; a lock on a table in use may not.
_TURN_S = 120
_LIMITS = Limits(lock_s=4, statement_s=60)


def _config() -> "Config":
    from alembic.config import Config  # noqa: PLC0415 - slow to import

    config = Config()
    config.set_main_option("script_location", str(files("migrations")))
    return config


@cache
def head_revision() -> str:
    """The revision this release was built for: the highest, for each file's name begins with its number."""
    names = (entry.name for entry in files("migrations.versions").iterdir())
    return max(name.partition("_")[0] for name in names if name[0].isdigit())


@contextmanager
def _connection(url: str) -> Generator[Connection]:
    engine = create_engine(
        database_address(url),
        connect_args=connect_arguments(_LIMITS),
        poolclass=NullPool,
        hide_parameters=True,
    )
    with port_errors(), engine.begin() as connection:
        yield connection


def upgrade(url: str) -> str:
    """Apply the migrations that are missing, in one transaction; return the revision.

    Raises:
        PortError: the server is too old, or holds a revision this release does not know.
        UnavailableError: the server is away, another migrator holds on, or a table stays locked.
    """
    from alembic import command  # noqa: PLC0415 - slow to import
    from alembic.runtime.migration import MigrationContext  # noqa: PLC0415

    with _connection(url) as connection:
        version = int(connection.execute(text("SHOW server_version_num")).scalar_one())
        if version < _SERVER_MIN:
            raise PortError(f"PostgreSQL {version // 10_000} is too old; use 14 or newer")
        connection.execute(text(f"SET LOCAL lock_timeout = '{_TURN_S}s'"))
        connection.execute(text(f"SET LOCAL statement_timeout = '{_TURN_S}s'"))
        connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
        connection.execute(text(f"SET LOCAL lock_timeout = '{_LIMITS.lock_s:g}s'"))
        connection.execute(text(f"SET LOCAL statement_timeout = '{_LIMITS.statement_s:g}s'"))
        found = MigrationContext.configure(connection).get_current_heads()
        if found and head_revision() not in found:
            _refuse_unknown(found)
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    return head_revision()


def current_revision(url: str) -> str | None:
    """The database's revision; None before the first migration."""
    from alembic.runtime.migration import MigrationContext  # noqa: PLC0415 - slow to import

    with _connection(url) as connection:
        return MigrationContext.configure(connection).get_current_revision()


def check_revision(url: str) -> None:
    """Raise PortError unless the database has the revision of this release."""
    found = current_revision(url)
    refuse_revision(set() if found is None else {found})


def refuse_revision(found: Collection[str]) -> None:
    """Raise PortError, with the remedy, unless `found` is exactly this release's revision."""
    if set(found) == {head_revision()}:
        return
    if not found:
        raise PortError("the database has no Forecrest schema yet; run `forecrest migrate`")
    _refuse_unknown(found)
    raise PortError(
        f"the database is at revision {', '.join(sorted(found))}, this release needs {head_revision()}; "
        "run `forecrest migrate`"
    )


def _refuse_unknown(found: Collection[str]) -> None:
    from alembic.script import ScriptDirectory  # noqa: PLC0415 - slow to import

    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    unknown = sorted(set(found) - known)
    if unknown:
        raise PortError(
            f"the database is at revision {', '.join(unknown)}, which this release does not know: a newer release "
            "has migrated it; run that release here, too"
        )
