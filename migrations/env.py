"""Run migrations on the connection that `controller.adapters.postgres.migrate` opened and guards."""

from alembic import context

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit(
        "run `forecrest migrate`: it takes the lock and sets the time limits that a migration needs"
    )

context.configure(connection=connection, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
