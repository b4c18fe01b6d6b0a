"""What near demand measured outlives a restart, too."""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE forecasts_said ADD COLUMN calibration bytea")
