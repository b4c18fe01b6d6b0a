"""When the newest tick was, so that a state that a tick left as it stood need not be written again."""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE ticks (
            singleton boolean NOT NULL DEFAULT true CONSTRAINT pk_ticks PRIMARY KEY,
            at timestamptz NOT NULL,
            CONSTRAINT ck_ticks_singleton CHECK (singleton)
        ) WITH (fillfactor = 10)
        """
    )
