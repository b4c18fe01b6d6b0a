"""What near demand remembers of forecasts outlives a restart."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE forecasts_said (
            workload text NOT NULL CONSTRAINT pk_forecasts_said PRIMARY KEY,
            record bytea NOT NULL,
            written_at timestamptz NOT NULL DEFAULT clock_timestamp()
        )
        """
    )
