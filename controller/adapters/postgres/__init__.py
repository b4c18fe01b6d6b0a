"""PostgreSQL: the durable store, leadership, and migrations."""

from controller.adapters.postgres.database import Limits
from controller.adapters.postgres.leases import PostgresLeaseStore
from controller.adapters.postgres.store import PostgresStore

__all__ = ["Limits", "PostgresLeaseStore", "PostgresStore"]
