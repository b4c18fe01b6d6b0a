"""Leases of shards: one sequence of tokens for all of them, and the time of the newest tick of each.

A release before this one counts on by one from the lease it finds; steps of a thousand leave it room.
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("CREATE SEQUENCE lease_tokens INCREMENT BY 1000")
    op.execute("SELECT setval('lease_tokens', (SELECT coalesce(max(token), 0) + 1000 FROM leases))")
    op.execute("ALTER TABLE workload_states ADD COLUMN lease text")
    op.execute(
        """
        CREATE TABLE lease_ticks (
            lease text NOT NULL CONSTRAINT pk_lease_ticks PRIMARY KEY,
            at timestamptz NOT NULL
        ) WITH (fillfactor = 10)
        """
    )
