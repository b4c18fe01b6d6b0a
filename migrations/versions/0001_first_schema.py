"""First schema: what the loop needs to observe, decide, act, and say why."""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TABLES = """
CREATE TABLE workloads (
    name text NOT NULL CONSTRAINT pk_workloads PRIMARY KEY,
    generation bigint NOT NULL,
    body jsonb NOT NULL,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE traffic_samples (
    workload text NOT NULL,
    minute_at timestamptz NOT NULL,
    demand_count float8 NOT NULL,
    served_count float8,
    rejected_count float8,
    source text NOT NULL,
    coverage float8 NOT NULL,
    CONSTRAINT pk_traffic_samples PRIMARY KEY (workload, minute_at),
    CONSTRAINT ck_traffic_samples_demand_count CHECK (demand_count >= 0 AND demand_count < 'Infinity'),
    CONSTRAINT ck_traffic_samples_served_count CHECK (served_count >= 0 AND served_count < 'Infinity'),
    CONSTRAINT ck_traffic_samples_rejected_count CHECK (rejected_count >= 0 AND rejected_count < 'Infinity'),
    CONSTRAINT ck_traffic_samples_coverage CHECK (coverage >= 0 AND coverage <= 1)
) PARTITION BY RANGE (minute_at);

CREATE TABLE traffic_events (
    id text NOT NULL CONSTRAINT pk_traffic_events PRIMARY KEY,
    revision bigint NOT NULL,
    start_at timestamptz NOT NULL,
    end_at timestamptz NOT NULL,
    recurring boolean NOT NULL,
    state text NOT NULL,
    category text NOT NULL,
    workloads text[] NOT NULL,
    body jsonb NOT NULL,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ix_traffic_events_start_at_id ON traffic_events (start_at, id);
CREATE INDEX ix_traffic_events_workloads ON traffic_events USING gin (workloads);

CREATE TABLE event_revisions (
    id text NOT NULL,
    revision bigint NOT NULL,
    body jsonb NOT NULL,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_event_revisions PRIMARY KEY (id, revision)
);

CREATE TABLE forecasts (
    id text NOT NULL CONSTRAINT pk_forecasts PRIMARY KEY,
    workload text NOT NULL,
    origin_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    state text NOT NULL,
    run jsonb NOT NULL,
    band jsonb NOT NULL,
    qps float8[] NOT NULL
);
CREATE INDEX ix_forecasts_workload_origin_at_created_at ON forecasts (workload, origin_at, created_at);
CREATE INDEX ix_forecasts_workload_created_at ON forecasts (workload, created_at);

CREATE TABLE capacity_plans (
    workload text NOT NULL,
    revision bigint NOT NULL,
    created_at timestamptz NOT NULL,
    digest text NOT NULL,
    body jsonb NOT NULL,
    CONSTRAINT pk_capacity_plans PRIMARY KEY (workload, revision)
);

CREATE TABLE decisions (
    id text NOT NULL,
    at timestamptz NOT NULL,
    workload text NOT NULL,
    current_replicas integer NOT NULL,
    desired_replicas integer NOT NULL,
    reason text NOT NULL,
    body jsonb NOT NULL,
    CONSTRAINT pk_decisions PRIMARY KEY (id, at)
) PARTITION BY RANGE (at);
CREATE INDEX ix_decisions_at_id ON decisions (at, id);
CREATE INDEX ix_decisions_workload_at_id ON decisions (workload, at, id);

CREATE TABLE outcomes (
    decision_id text NOT NULL CONSTRAINT pk_outcomes PRIMARY KEY,
    at timestamptz NOT NULL,
    body jsonb NOT NULL
);
CREATE INDEX ix_outcomes_at ON outcomes (at);

CREATE TABLE workload_states (
    workload text NOT NULL CONSTRAINT pk_workload_states PRIMARY KEY,
    body jsonb NOT NULL,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE overrides (
    workload text NOT NULL,
    id text NOT NULL,
    expires_at timestamptz NOT NULL,
    body jsonb NOT NULL,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_overrides PRIMARY KEY (workload, id)
);

-- At most one row: the key can only be true.
CREATE TABLE pause (
    singleton boolean NOT NULL DEFAULT true CONSTRAINT pk_pause PRIMARY KEY,
    body jsonb NOT NULL,
    CONSTRAINT ck_pause_singleton CHECK (singleton)
);

CREATE TABLE warmups (
    workload text NOT NULL,
    replica_id text NOT NULL,
    at timestamptz NOT NULL,
    body jsonb NOT NULL,
    CONSTRAINT pk_warmups PRIMARY KEY (workload, replica_id)
);
CREATE INDEX ix_warmups_workload_at ON warmups (workload, at);

CREATE TABLE engines (
    digest text NOT NULL CONSTRAINT pk_engines PRIMARY KEY,
    name text NOT NULL,
    body jsonb NOT NULL,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE capacity_profiles (
    engine text NOT NULL,
    gpu_type text NOT NULL,
    measured_at timestamptz NOT NULL,
    body jsonb NOT NULL,
    CONSTRAINT pk_capacity_profiles PRIMARY KEY (engine, gpu_type)
);

-- The unique pair makes the token part of a key, which decides what waits for FOR KEY SHARE.
CREATE TABLE leases (
    name text NOT NULL CONSTRAINT pk_leases PRIMARY KEY,
    holder text NOT NULL,
    token bigint NOT NULL,
    expires_at timestamptz NOT NULL,
    CONSTRAINT uq_leases_name_token UNIQUE (name, token)
);

CREATE TABLE audit_log (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_audit_log PRIMARY KEY,
    at timestamptz NOT NULL,
    principal text NOT NULL,
    method text NOT NULL,
    resource text NOT NULL,
    body jsonb NOT NULL
);
CREATE INDEX ix_audit_log_at ON audit_log (at);

CREATE TABLE idempotency_keys (
    key text NOT NULL CONSTRAINT pk_idempotency_keys PRIMARY KEY,
    body_digest text NOT NULL,
    response bytea NOT NULL,
    created_at timestamptz NOT NULL
);
CREATE INDEX ix_idempotency_keys_created_at ON idempotency_keys (created_at);
"""


def upgrade() -> None:
    for statement in _TABLES.split(";\n"):
        if statement.strip():
            op.execute(statement)
