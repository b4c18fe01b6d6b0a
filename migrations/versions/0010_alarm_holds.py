"""Alarms that went, or came back: their end is told once they have stayed away."""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE alarm_holds (
            key text NOT NULL CONSTRAINT pk_alarm_holds PRIMARY KEY,
            workload text NOT NULL,
            away_since_at timestamptz,
            written_at timestamptz NOT NULL,
            body jsonb NOT NULL
        )
        """
    )
    op.execute("CREATE INDEX ix_alarm_holds_away_since_at ON alarm_holds (away_since_at)")
