"""The outbox of notifications: written with the decision it tells of, delivered from there."""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE notifications (
            sink text NOT NULL,
            id text NOT NULL,
            at timestamptz NOT NULL,
            workload text NOT NULL,
            state text NOT NULL,
            attempt_count integer NOT NULL DEFAULT 0,
            next_at timestamptz,
            settled_at timestamptz,
            error text NOT NULL DEFAULT '',
            body jsonb NOT NULL,
            CONSTRAINT pk_notifications PRIMARY KEY (sink, id)
        )
        """
    )
    op.execute("CREATE INDEX ix_notifications_at_sink_id ON notifications (at, sink, id)")
    op.execute("CREATE INDEX ix_notifications_due ON notifications (sink, next_at) WHERE state = 'PENDING'")
