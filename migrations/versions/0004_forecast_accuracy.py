"""What forecasts are made of, how good they were hour by hour, and which model is in charge."""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_TABLES = """
CREATE TABLE forecast_parts (
    forecast_id text NOT NULL CONSTRAINT pk_forecast_parts PRIMARY KEY,
    created_at timestamptz NOT NULL,
    body jsonb NOT NULL,
    parts real[] NOT NULL
);
CREATE INDEX ix_forecast_parts_created_at ON forecast_parts (created_at);

CREATE TABLE forecast_scores (
    workload text NOT NULL,
    start_at timestamptz NOT NULL,
    body jsonb NOT NULL,
    CONSTRAINT pk_forecast_scores PRIMARY KEY (workload, start_at)
);
CREATE INDEX ix_forecast_scores_start_at ON forecast_scores (start_at);

CREATE TABLE forecast_standings (
    workload text NOT NULL CONSTRAINT pk_forecast_standings PRIMARY KEY,
    body jsonb NOT NULL,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
"""


def upgrade() -> None:
    for statement in _TABLES.split(";\n"):
        if statement.strip():
            op.execute(statement)
