"""The namespace that a deleted workload was in: what is left of it is for those who may see that one."""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE workload_remains (
            name text NOT NULL CONSTRAINT pk_workload_remains PRIMARY KEY,
            namespace text NOT NULL
        )
        """
    )
