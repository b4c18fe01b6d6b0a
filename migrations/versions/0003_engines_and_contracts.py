"""Engines are found by name and change under a version; what became of each event's prewarm is kept."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Nothing wrote engines or capacity profiles before this release, so a unique name can be asked of all.
    op.execute("ALTER TABLE engines ADD COLUMN generation bigint NOT NULL DEFAULT 1")
    op.execute("ALTER TABLE engines ADD CONSTRAINT uq_engines_name UNIQUE (name)")
    op.execute("""
        CREATE TABLE contracts (
            workload text NOT NULL,
            occurrence_id text NOT NULL,
            end_at timestamptz NOT NULL,
            body jsonb NOT NULL,
            written_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            CONSTRAINT pk_contracts PRIMARY KEY (workload, occurrence_id)
        )
    """)
    op.execute("CREATE INDEX ix_contracts_end_at ON contracts (end_at)")
