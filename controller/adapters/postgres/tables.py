"""The tables, for building statements. `migrations/` makes them; a test compares the two.

Records whose shape belongs to the core are kept whole as JSON in a `body` column; other columns hold what
is searched, sorted, or locked by.
"""

from sqlalchemy import (
    REAL,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Sequence,
    Table,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_AT = DateTime(timezone=True)


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


def _key(name: str) -> Column[str]:
    return Column(name, Text, primary_key=True)


def _at(name: str = "at", *, primary_key: bool = False) -> Column[object]:
    return Column(name, _AT, primary_key=primary_key, nullable=False)


def _body(name: str = "body") -> Column[object]:
    return Column(name, JSONB, nullable=False)


def _written_at() -> Column[object]:
    return Column("written_at", _AT, nullable=False, server_default=func.clock_timestamp())


workloads = Table(
    "workloads",
    metadata,
    _key("name"),
    Column("generation", BigInteger, nullable=False),
    _body(),
    _written_at(),
)

workload_remains = Table("workload_remains", metadata, _key("name"), _text("namespace"))

traffic_samples = Table(
    "traffic_samples",
    metadata,
    _key("workload"),
    _at("minute_at", primary_key=True),
    Column("demand_count", Double, nullable=False),
    Column("served_count", Double),
    Column("rejected_count", Double),
    _text("source"),
    Column("coverage", Double, nullable=False),
    # NaN sorts above infinity in PostgreSQL, so one comparison keeps both out.
    CheckConstraint("demand_count >= 0 AND demand_count < 'Infinity'", name="demand_count"),
    CheckConstraint("served_count >= 0 AND served_count < 'Infinity'", name="served_count"),
    CheckConstraint("rejected_count >= 0 AND rejected_count < 'Infinity'", name="rejected_count"),
    CheckConstraint("coverage >= 0 AND coverage <= 1", name="coverage"),
    postgresql_partition_by="RANGE (minute_at)",
)

traffic_events = Table(
    "traffic_events",
    metadata,
    _key("id"),
    Column("revision", BigInteger, nullable=False),
    _at("start_at"),
    _at("end_at"),
    Column("recurring", Boolean, nullable=False),
    _text("state"),
    _text("category"),
    Column("workloads", ARRAY(Text), nullable=False),
    _body(),
    _written_at(),
    Index(None, "start_at", "id"),
    Index(None, "workloads", postgresql_using="gin"),
)

event_revisions = Table(
    "event_revisions",
    metadata,
    _key("id"),
    Column("revision", BigInteger, primary_key=True),
    _body(),
    _written_at(),
)

forecasts = Table(
    "forecasts",
    metadata,
    _key("id"),
    _text("workload"),
    _at("origin_at"),
    _at("created_at"),
    _text("state"),
    _body("run"),
    _body("band"),  # without the quantiles, which have a column of their own
    Column("qps", ARRAY(Double, dimensions=2), nullable=False),
    Index(None, "workload", "origin_at", "created_at"),
    Index(None, "workload", "created_at"),
)

# What near demand remembers: rewritten at every calibration.
forecasts_said = Table(
    "forecasts_said",
    metadata,
    _key("workload"),
    Column("record", LargeBinary, nullable=False),
    Column("calibration", LargeBinary),
    _written_at(),
)

forecast_parts = Table(
    "forecast_parts",
    metadata,
    _key("forecast_id"),
    _at("created_at"),
    _body(),
    # Rows: trend, event, correction; single precision, for they are for people.
    Column("parts", ARRAY(REAL, dimensions=2), nullable=False),
    Index(None, "created_at"),
)

forecast_scores = Table(
    "forecast_scores",
    metadata,
    _key("workload"),
    _at("start_at", primary_key=True),
    _body(),
    Index(None, "start_at"),
)

forecast_standings = Table("forecast_standings", metadata, _key("workload"), _body(), _written_at())

capacity_plans = Table(
    "capacity_plans",
    metadata,
    _key("workload"),
    Column("revision", BigInteger, primary_key=True),
    _at("created_at"),
    _text("digest"),
    _body(),
)

decisions = Table(
    "decisions",
    metadata,
    _key("id"),
    _at(primary_key=True),
    _text("workload"),
    Column("current_replicas", Integer, nullable=False),
    Column("desired_replicas", Integer, nullable=False),
    _text("reason"),
    _body(),
    Column("fence", BigInteger),  # the leader's token; unknown before it was recorded
    Index(None, "workload", "at", "id"),
    Index(None, "at", "id"),
    postgresql_partition_by="RANGE (at)",
)

outcomes = Table("outcomes", metadata, _key("decision_id"), _at(), _body(), Index(None, "at"))

# `lease`: whose ticks a state stands under; none, those of the lease of a single leader.
workload_states = Table(
    "workload_states", metadata, _key("workload"), _body(), _written_at(), Column("lease", Text)
)

contracts = Table(
    "contracts",
    metadata,
    _key("workload"),
    _key("occurrence_id"),
    _at("end_at"),
    _body(),
    _written_at(),
    Index(None, "end_at"),
)

overrides = Table(
    "overrides", metadata, _key("workload"), _key("id"), _at("expires_at"), _body(), _written_at()
)

# When the newest tick was: a state that it left as it stood is not written again.
ticks = Table(
    "ticks",
    metadata,
    Column("singleton", Boolean, primary_key=True, server_default="true"),
    _at(),
    CheckConstraint("singleton", name="singleton"),
)
lease_ticks = Table("lease_ticks", metadata, _key("lease"), _at())

pause = Table(
    "pause",
    metadata,
    Column("singleton", Boolean, primary_key=True, server_default="true"),
    _body(),
    CheckConstraint("singleton", name="singleton"),
)

warmups = Table(
    "warmups",
    metadata,
    _key("workload"),
    _key("replica_id"),
    _at(),
    _body(),
    Index(None, "workload", "at"),
)

engines = Table(
    "engines",
    metadata,
    _key("digest"),
    _text("name"),
    _body(),
    _written_at(),
    Column("generation", BigInteger, nullable=False, server_default="1"),
    UniqueConstraint("name"),
)

capacity_profiles = Table(
    "capacity_profiles", metadata, _key("engine"), _key("gpu_type"), _at("measured_at"), _body()
)

lease_tokens = Sequence("lease_tokens", increment=1000, metadata=metadata)
leases = Table(
    "leases",
    metadata,
    _key("name"),
    _text("holder"),
    Column("token", BigInteger, nullable=False),
    _at("expires_at"),
    # Makes the token part of a key: a fence locks FOR KEY SHARE, which a new leader waits for and a
    # renewal (which leaves the token alone) does not.
    UniqueConstraint("name", "token"),
)

notifications = Table(
    "notifications",
    metadata,
    _key("sink"),
    _key("id"),
    _at(),
    _text("workload"),
    _text("state"),
    Column("attempt_count", Integer, nullable=False, server_default="0"),
    Column("next_at", _AT),
    Column("settled_at", _AT),
    Column("error", Text, nullable=False, server_default=""),
    _body(),
    Index(None, "at", "sink", "id"),
    Index("ix_notifications_due", "sink", "next_at", postgresql_where=text("state = 'PENDING'")),
)

alarm_holds = Table(
    "alarm_holds",
    metadata,
    _key("key"),
    _text("workload"),
    Column("away_since_at", _AT),
    _at("written_at"),
    _body(),
    Index(None, "away_since_at"),
)

audit_log = Table(
    "audit_log",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    _at(),
    _text("principal"),
    _text("method"),
    _text("resource"),
    _body(),
    Index(None, "at"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    _key("key"),
    _text("body_digest"),
    Column("response", LargeBinary, nullable=False),
    _at("created_at"),
    Index(None, "created_at"),
)
