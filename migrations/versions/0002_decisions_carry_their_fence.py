"""Each decision carries the fencing token it was made under: the ledger itself shows who led when."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # No default and no constraint: nothing is rewritten, and a release before this one goes on writing.
    op.execute("ALTER TABLE decisions ADD COLUMN fence bigint")
