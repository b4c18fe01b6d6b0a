"""Settings, read once from ``FORECREST_*`` environment variables and never again. Frozen.

Every window, period and limit of the shell has its bound here; policy per workload lives on the workload.
"""

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from controller.core.types import QuotaPool

Seconds = Annotated[float, Field(gt=0, le=86_400)]
_URLS = {
    "database_url": (
        {"postgres", "postgresql", "postgresql+psycopg"},
        "postgresql://user:password@host:5432/name",
    ),
    "redis_url": ({"redis", "rediss", "unix"}, "redis://:password@host:6379/0"),
}


class Settings(BaseSettings):
    """How this process runs."""

    model_config = SettingsConfigDict(
        env_prefix="FORECREST_", frozen=True, extra="ignore", hide_input_in_errors=True
    )

    data_dir: Path = Path(".forecrest")
    database_url: SecretStr | None = None  # None: the embedded PostgreSQL
    redis_url: SecretStr | None = None  # None: the embedded Valkey
    bind: str = "127.0.0.1:7443"
    # /metrics, /healthz, /readyz. "": the host of `bind` and the port after it, a free one if that is 0. "off": none
    http_bind: str = ""
    # The web console, docs/console.md. "": none. Names: further ones browsers reach it under, separated by commas
    console_bind: str = "127.0.0.1:7445"
    console_hosts: str = ""
    metrics_workloads_max: Annotated[int, Field(ge=0, le=100_000)] = 1000  # with series of their own

    # Who may call, and how they prove it: docs/security.md. Files are read again when they change.
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None  # given: clients must show a certificate of it
    tokens_file: Path | None = None
    access_file: Path | None = None
    oidc_issuer: str = ""
    oidc_audience: str = ""
    oidc_jwks: str = ""  # https URL or file
    oidc_groups_claim: str = "groups"
    oidc_leeway_s: Annotated[float, Field(ge=0, le=300)] = 30.0
    # Of each caller, where callers are told apart; and of each call.
    api_rate_per_caller_qps: Annotated[float, Field(gt=0, le=1e6)] = 200.0
    api_rate_per_caller_burst: Annotated[float, Field(ge=1, le=1e6)] = 400.0
    api_calls_per_caller_max: Annotated[int, Field(ge=1, le=100_000)] = 200
    api_streams_per_caller_max: Annotated[int, Field(ge=1, le=100_000)] = 200
    api_streams_max: Annotated[int, Field(ge=1, le=100_000)] = 1000
    api_connections_max: Annotated[int, Field(ge=10, le=100_000)] = 2000
    api_message_bytes_max: Annotated[int, Field(ge=65_536, le=64 * 1024 * 1024)] = 4 * 1024 * 1024
    api_unary_deadline_s: Annotated[float, Field(gt=0, le=3600)] = 30.0
    api_connection_age_max_s: Annotated[float, Field(ge=10, le=86_400)] = 3600.0
    # Folders that model files may lie in, separated as in PATH. "": the data folder and, unless it is /, the one
    # this process was started in.
    model_roots: str = ""
    # Catalogue that workloads with `catalog_model` in their target are served from: a folder or a URL. "": none.
    engine_catalog: str = ""
    engine_trusted_keys: str = (
        ""  # public keys (PEM), separated as in PATH; given: only engines they signed serve
    )
    actuator: Literal["local_process", "dry_run", "kubernetes"] = "local_process"
    # Of the kubernetes actuator. Without a kubeconfig: the pod's service account, else the user's own file.
    kubernetes_kubeconfig: Path | None = None
    kubernetes_context: str = ""
    kubernetes_namespaces: str = ""  # watched ones, separated by commas; "": all, which needs a ClusterRole
    kubernetes_dry_run: bool = False  # the API server checks every order and keeps none
    # Carry Workload and TrafficEvent objects (deploy/helm/forecrest/crd) into the API, and write their status.
    kubernetes_custom_resources: bool = False
    kubernetes_events: bool = True  # say on the target's own Kubernetes Events what was decided, and why
    # stands for what a cluster adds before a process starts: GPU node, image pull
    provisioning_delay_s: Annotated[float, Field(ge=0, le=3600)] = 0.0
    replica_limit: Annotated[int, Field(ge=1, le=200)] = 16  # local processes this machine may run

    tick_period_s: Seconds = 5.0
    scrape_period_s: Seconds = 2.0
    forecast_period_s: Seconds = 300.0
    forecast_step_s: Annotated[float, Field(ge=60, le=86_400)] = 300.0
    forecast_horizon_s: Annotated[float, Field(ge=60, le=14 * 86_400)] = 48 * 3600.0
    # Processes that refit, which give way to all others; 0: one a core, four at most. Each takes about 200 MB.
    forecast_workers: Annotated[int, Field(ge=0, le=8)] = 0
    forecast_deadline_s: Seconds = 60.0  # what a workload's refit, or its backtest, may take in one of them
    history_window_s: Annotated[float, Field(ge=60, le=366 * 86_400)] = 42 * 86_400.0
    history_retention_days: Annotated[int, Field(ge=1, le=3660)] = 400
    trust_window_s: Seconds = 6 * 3600.0
    prediction_enabled: bool = True  # False: reactive only, for comparison and as an emergency switch
    near_enabled: bool = (
        True  # False: the forecast alone leads within the lead time, as on a clock run faster
    )
    # how often near demand is measured anew on history; what was measured serves six hours
    near_period_s: Annotated[float, Field(ge=60, le=3 * 3600)] = 3600.0

    # Asked for the demand of workloads that name a query: docs/telemetry.md. Without a URL nobody is.
    prometheus_url: str = ""
    prometheus_token_file: Path | None = None
    prometheus_username: str = ""
    prometheus_password: SecretStr | None = None
    prometheus_ca_file: Path | None = None
    prometheus_headers: Mapping[str, SecretStr] = Field(
        default_factory=dict
    )  # JSON, for a tenant for example
    prometheus_timeout_s: Annotated[float, Field(gt=0, le=120)] = 10.0
    prometheus_period_s: Annotated[float, Field(ge=1, le=300)] = (
        10.0  # between two questions about a workload
    )

    # Who is told of prewarms and alarms: docs/notifications.md. Without a file nobody is.
    notifications_file: Path | None = None
    # An alarm that comes back within so long never went; its end is told once it has stayed away for as long.
    alarm_hold_s: Annotated[float, Field(ge=0, le=86_400)] = 600.0

    lease_duration_s: Annotated[float, Field(ge=1, le=300)] = 10.0
    holder: str = ""  # "": the host name; what tells processes of one name apart is added
    # Over how many leaders the workloads are split; the same on every controller. docs/scaling.md
    shards: Annotated[int, Field(ge=1, le=256)] = 1
    run_loop: bool = True

    # GPUs that workloads share, as JSON: [{"name": "shared", "nominal_gpus": 64}]; see docs/operations.md
    quota_pools: Annotated[tuple[QuotaPool, ...], Field(max_length=1000)] = ()
    workloads_max: Annotated[int, Field(ge=1, le=100_000)] = 20_000
    occurrences_max: Annotated[int, Field(ge=1, le=10_000)] = 500  # events looked at per workload and tick
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    @field_validator("quota_pools")
    @classmethod
    def _are_pools(cls, value: tuple[QuotaPool, ...]) -> tuple[QuotaPool, ...]:
        if len({pool.name for pool in value}) < len(value):
            raise ValueError("two pools have the same name: give each its own")
        for pool in value:
            if not pool.name or min(pool.nominal_gpus, pool.borrowing_limit_gpus) < 0:
                raise ValueError(f"pool {pool.name!r}: it needs a name, and its GPUs must be 0 or more")
        return value

    @field_validator("database_url", "redis_url")
    @classmethod
    def _is_url(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        schemes, example = _URLS[str(info.field_name)]
        try:
            parts = urlsplit(value.get_secret_value()) if value else None
            fits = parts is None or (parts.scheme in schemes and (parts.port or 1) > 0)
        except ValueError:  # its text may hold the password, ours does not
            fits = False
        if not fits:
            raise ValueError(f"is no such URL; write {example}")
        return value

    @model_validator(mode="after")
    def _steps_fit(self) -> Self:
        if 86_400 % self.forecast_step_s:
            raise ValueError(
                f"forecast_step_s must divide a day, got {self.forecast_step_s}: use 60, 300, 900 …"
            )
        if self.forecast_horizon_s < 2 * self.forecast_step_s:
            raise ValueError(
                "forecast_horizon_s must hold at least two steps: raise it or lower forecast_step_s"
            )
        return self

    @model_validator(mode="after")
    def _shards_can_move(self) -> Self:
        if self.shards > 1 and self.actuator == "local_process":
            raise ValueError(
                "shards: local replicas end with their controller and cannot move to another; use 1, or the "
                "actuator kubernetes"
            )
        return self

    @model_validator(mode="after")
    def _prometheus_can_be_asked(self) -> Self:
        parts = urlsplit(self.prometheus_url)
        if self.prometheus_url and (parts.scheme not in {"http", "https"} or "@" in parts.netloc):
            raise ValueError(
                "prometheus_url must look like http://host:9090, without user and password: they have "
                "settings of their own"
            )
        if self.prometheus_token_file is not None and self.prometheus_username:
            raise ValueError("prometheus_token_file and prometheus_username exclude each other; set one")
        return self

    @model_validator(mode="after")
    def _security_is_whole(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together; set both or neither")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca needs tls_cert and tls_key: only TLS asks for certificates")
        oidc = (self.oidc_issuer, self.oidc_audience, self.oidc_jwks)
        if any(oidc) and not all(oidc):
            raise ValueError("oidc_issuer, oidc_audience and oidc_jwks belong together; set all or none")
        if (any(oidc) or self.tls_client_ca is not None) and self.access_file is None:
            raise ValueError(
                "access_file is needed with oidc_issuer or tls_client_ca; it says who may do what"
            )
        return self

    @property
    def model_folders(self) -> tuple[Path, ...]:
        """Folders that model files may lie in, absolute and without links."""
        if self.model_roots:
            named = [Path(part) for part in self.model_roots.split(os.pathsep) if part]
        else:
            here = Path.cwd()
            named = [self.data_dir, *([here] if here != Path(here.root) else [])]
        return tuple(folder.expanduser().resolve() for folder in named)

    @property
    def forecast_step(self) -> timedelta:
        """Width of a forecast bucket."""
        return timedelta(seconds=self.forecast_step_s)

    @property
    def scrape_period(self) -> timedelta:
        """Time between two scrapes."""
        return timedelta(seconds=self.scrape_period_s)

    @property
    def horizon_steps(self) -> int:
        """Forecast buckets per run."""
        return int(self.forecast_horizon_s // self.forecast_step_s)

    @property
    def lease_duration(self) -> timedelta:
        """How long leadership lasts without renewal."""
        return timedelta(seconds=self.lease_duration_s)
