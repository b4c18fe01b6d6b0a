"""The composition root: the only place that names concrete adapters.

``open_runtime`` starts what the settings leave to us (embedded PostgreSQL and Valkey, local Triton), connects
the rest, checks the schema, and hands out a ``Runtime``; leaving the block stops everything in reverse. The
demo passes a faster clock and a wrapper around the demand meter, drills of several controllers a fleet that
outlives them; nothing else is replaceable from outside.
"""

import asyncio
import json
import logging
import os
import platform
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from cryptography import x509
from prometheus_client import CollectorRegistry

from controller.actuators.dry_run import DryRunActuator
from controller.actuators.kubernetes import KubeApi, KubernetesActuator
from controller.actuators.kubernetes.events import EventRecorder
from controller.actuators.local_process import LocalProcessActuator
from controller.adapters.clock import SystemClock
from controller.adapters.embedded import EmbeddedStack
from controller.adapters.forecaster import FitForecaster
from controller.adapters.postgres import Limits, PostgresLeaseStore, PostgresStore, migrate
from controller.adapters.prometheus import Prometheus, PrometheusAccess, PrometheusTraffic
from controller.adapters.redis import RedisSignalCache
from controller.adapters.triton_metrics import TritonDemandMeter
from controller.api.auth.oidc import OidcSettings
from controller.api.auth.security import Security, SecurityFiles
from controller.api.auth.tls import TlsPaths
from controller.api.server import (
    ApiDependencies,
    ApiLimits,
    BindError,
    RunningServer,
    check_bind,
    serve,
)
from controller.console.app import create_app as create_console
from controller.crd.status import Facts
from controller.crd.sync import Synchroniser
from controller.credentials import Credentials
from controller.http.health import Health
from controller.http.metrics import ApiMetrics, State, StateCollector, new_registry
from controller.http.port import follow, open_port
from controller.listener import Listener, listen
from controller.loop.control import Control
from controller.loop.forecasting import Forecasting
from controller.loop.leader import Leadership
from controller.loop.observe import Observer
from controller.loop.runner import Runner
from controller.notify.config import Sink, read_sinks
from controller.notify.notifier import Notifier
from controller.notify.webhook import WebhookSink
from controller.ports import LEADER_LEASE, Actuator, Clock, DemandMeterPort, SignalCache, Store
from controller.settings import Settings
from controller.usecases.preview_event import PreviewSettings

log = logging.getLogger(__name__)

# Live signals outlive a few missed scrapes, no more: the core judges their age besides.
SIGNAL_TTL_PERIODS = 30
RUNTIME_FILE = "runtime.json"
# A controller that is stopped inside a transaction holds its rows no longer than this, or its lease.
_IDLE_MIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Runtime:
    """A running controller process: what it is made of, and where it can be reached."""

    settings: Settings
    clock: Clock
    store: Store
    cache: SignalCache
    actuator: Actuator
    control: Control
    observer: Observer
    forecasting: Forecasting
    leadership: Leadership
    runner: Runner
    api: RunningServer
    # These end only when something broke for good: whoever runs the process must end it then.
    loop: asyncio.Task[None] | None
    servers: asyncio.Task[NoReturn] | None  # raises EmbeddedError; None without embedded servers
    http: Listener | None = None  # None: switched off
    console: Listener | None = None  # as above
    notifier: Notifier | None = None  # None: nobody is told


def holder_name(settings: Settings) -> str:
    """Name under which this process asks for leadership: of this process alone.

    Containers of one host name that both run as process 1 would otherwise renew each other's lease, and both lead.
    """
    return f"{settings.holder or platform.node()}:{os.getpid()}:{secrets.token_hex(4)}"


def _unchanged(meter: DemandMeterPort) -> DemandMeterPort:
    return meter


@asynccontextmanager
async def open_runtime(
    settings: Settings,
    *,
    clock: Clock | None = None,
    wrap_meter: Callable[[DemandMeterPort], DemandMeterPort] = _unchanged,
    actuator: Actuator | None = None,
) -> AsyncGenerator[Runtime]:
    """Run a controller for as long as the block lasts.

    ``actuator`` takes the place of the one the settings name, and is closed with the block.

    Raises:
        PortError: the schema is on another revision, or a dependency is away.
        EmbeddedError: an embedded server cannot start, or another process holds the data folder.
        SecurityError: a certificate, token or access file cannot be used.
        BindError: the API's address is not free, or beyond loopback and not protected.
    """
    clock = clock or SystemClock()
    # First: wrong settings must not start servers.
    sinks = () if settings.notifications_file is None else read_sinks(settings.notifications_file)
    security = Security(security_files(settings))
    check_bind(settings.bind, security)
    async with AsyncExitStack() as stack:
        database_url, redis_url, servers = await _servers(settings, stack)
        lease_s = settings.lease_duration_s
        store = PostgresStore(
            database_url, Limits(fence_s=lease_s, idle_in_transaction_s=max(_IDLE_MIN_S, lease_s))
        )
        stack.push_async_callback(store.close)
        await store.check_revision()
        notifier = _notifier(sinks, store, clock, stack)
        leases = PostgresLeaseStore(database_url)
        stack.push_async_callback(leases.close)
        cache = RedisSignalCache(redis_url, clock=clock)
        stack.push_async_callback(cache.close)
        local = LocalProcessActuator.from_settings(settings, clock)
        stack.push_async_callback(local.close)
        actuator = actuator or _actuator(settings, clock, local)
        if actuator is not local:
            stack.push_async_callback(actuator.close)
        triton_meter = TritonDemandMeter(clock, baselines=local.baselines, departures=local.departures)
        stack.push_async_callback(triton_meter.close)
        source = prometheus_traffic(settings, clock)
        if source is not None:
            stack.push_async_callback(source.close)
        observer = Observer(
            actuator,
            wrap_meter(triton_meter),
            cache,
            store,
            ttl=SIGNAL_TTL_PERIODS * settings.scrape_period,
            source=source,
        )
        forecaster = FitForecaster()
        forecasting = Forecasting(store, forecaster, clock, settings, cache)
        control = Control(
            store, cache, actuator, observer, forecasting, clock, settings, settings.quota_pools, notifier
        )
        # Leases live on the database's clock, so leadership keeps the machine's time in a demo too.
        leadership = Leadership(
            leases,
            SystemClock(),
            name=LEADER_LEASE,
            holder=holder_name(settings),
            duration=settings.lease_duration,
        )
        runner = Runner(leadership, control, observer, forecasting, clock, settings, notifier)
        preview = PreviewSettings(
            pools=settings.quota_pools,
            history=timedelta(seconds=settings.history_window_s),
            horizon=timedelta(seconds=settings.forecast_horizon_s),
        )
        deps = ApiDependencies(
            store,
            cache,
            clock,
            forecaster=forecaster,
            actuator=actuator,
            preview=preview,
            limits=api_limits(settings),
        )
        registry = new_registry()
        api = await serve(deps, settings.bind, security, ApiMetrics(registry).observe)
        stack.push_async_callback(api.stop)
        loop: asyncio.Task[None] | None = None
        if settings.run_loop:
            loop = asyncio.create_task(runner.run(), name="control-loop")
            stack.push_async_callback(_end, loop)
        runtime = Runtime(
            settings,
            clock,
            store,
            cache,
            actuator,
            control,
            observer,
            forecasting,
            leadership,
            runner,
            api,
            loop,
            servers,
            notifier=notifier,
        )
        _synchronise(runtime, deps, stack)
        _witness(runtime, stack)
        if settings.http_bind != "off":
            runtime = replace(runtime, http=await _open_http(runtime, security, registry, stack))
        if settings.console_bind:
            runtime = replace(runtime, console=await _open_console(settings, api.port, security, stack))
        _announce(settings.data_dir, runtime, stack)
        yield runtime


def _notifier(sinks: Sequence[Sink], store: Store, clock: Clock, stack: AsyncExitStack) -> Notifier | None:
    """Who tells of prewarms and alarms, closed with the stack; None without anybody to tell."""
    if not sinks:
        return None
    notifier = Notifier(store, sinks, {sink.name: WebhookSink(sink, clock) for sink in sinks}, clock)
    stack.push_async_callback(notifier.close)
    return notifier


def _actuator(settings: Settings, clock: Clock, local: LocalProcessActuator) -> Actuator:
    """The actuator that the settings name."""
    match settings.actuator:
        case "local_process":
            return local
        case "dry_run":
            return DryRunActuator(local)
        case "kubernetes":
            return kubernetes_actuator(settings, clock)


def kubernetes_actuator(settings: Settings, clock: Clock) -> KubernetesActuator:
    """As the settings name the API server; raise KubeError if there is no way to it."""
    return KubernetesActuator(
        kubernetes_api(settings),
        clock,
        namespaces=kubernetes_namespaces(settings),
        dry_run=settings.kubernetes_dry_run,
    )


def kubernetes_api(settings: Settings) -> KubeApi:
    """A connection of its own to the API server that the settings name; raise KubeError."""
    kubeconfig = settings.kubernetes_kubeconfig
    return KubeApi.connect(
        None if kubeconfig is None else str(kubeconfig), settings.kubernetes_context or None
    )


def kubernetes_namespaces(settings: Settings) -> list[str]:
    """The watched namespaces; none of them: all."""
    return [name.strip() for name in settings.kubernetes_namespaces.split(",") if name.strip()]


def _synchronise(runtime: Runtime, deps: ApiDependencies, stack: AsyncExitStack) -> None:
    """Carry custom resources into the API for as long as the runtime lasts, where the settings say so."""
    settings, control = runtime.settings, runtime.control
    if not (settings.kubernetes_custom_resources and settings.actuator == "kubernetes" and settings.run_loop):
        return

    def facts(name: str) -> Facts:
        actuator = runtime.actuator
        problems = actuator.problems if isinstance(actuator, KubernetesActuator) else {}
        return Facts(
            control.decisions.get(name),
            runtime.observer.views.get(name),
            runtime.forecasting.bands.get(name),
            problems.get(name) or problems.get(f"{name}/nodes"),
        )

    synchroniser = Synchroniser(
        kubernetes_api(settings),
        deps,
        leads=lambda: runtime.leadership.token is not None,
        facts=facts,
        limit=settings.workloads_max,
        namespaces=kubernetes_namespaces(settings),
    )
    stack.push_async_callback(synchroniser.close)
    stack.push_async_callback(_end, asyncio.create_task(synchroniser.run(), name="custom resources"))


def _witness(runtime: Runtime, stack: AsyncExitStack) -> None:
    """Say on Kubernetes what is decided for as long as the runtime lasts, where the settings say so."""
    settings, actuator = runtime.settings, runtime.actuator
    if not isinstance(actuator, KubernetesActuator) or not settings.kubernetes_events:
        return
    recorder = EventRecorder(actuator, kubernetes_api(settings), runtime.clock, runtime.leadership.holder)
    runtime.control.witness = recorder
    stack.push_async_callback(recorder.close)
    stack.push_async_callback(_end, asyncio.create_task(recorder.run(), name="Kubernetes Events"))


async def _servers(
    settings: Settings, stack: AsyncExitStack
) -> tuple[str, str, asyncio.Task[NoReturn] | None]:
    """URLs of PostgreSQL and Redis, with the embedded ones started, watched and migrated where none are given."""
    if settings.database_url is not None and settings.redis_url is not None:
        return settings.database_url.get_secret_value(), settings.redis_url.get_secret_value(), None
    embedded = await stack.enter_async_context(EmbeddedStack(settings.data_dir))
    watch = asyncio.create_task(embedded.watch(), name="embedded-servers")
    stack.push_async_callback(_end, watch)
    if settings.database_url is None:
        # A database we started is ours to migrate; one we were given is migrated by `forecrest migrate`.
        await asyncio.to_thread(migrate.upgrade, embedded.database_url)
    database = settings.database_url.get_secret_value() if settings.database_url else embedded.database_url
    redis = settings.redis_url.get_secret_value() if settings.redis_url else embedded.redis_url
    return database, redis, watch


def security_files(settings: Settings) -> SecurityFiles:
    """Where the security settings are."""
    tls = oidc = None
    if settings.tls_cert is not None and settings.tls_key is not None:
        tls = TlsPaths(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    if settings.oidc_issuer:
        oidc = OidcSettings(
            settings.oidc_issuer,
            settings.oidc_audience,
            settings.oidc_jwks,
            settings.oidc_groups_claim,
            settings.oidc_leeway_s,
        )
    return SecurityFiles(tls, settings.tokens_file, settings.access_file, oidc)


def api_limits(settings: Settings) -> ApiLimits:
    """The API's bounds, as far as they are settings."""
    return ApiLimits(
        message_bytes_max=settings.api_message_bytes_max,
        streams_max=settings.api_streams_max,
        unary_deadline_s=settings.api_unary_deadline_s,
        rate_per_caller_qps=settings.api_rate_per_caller_qps,
        rate_per_caller_burst=settings.api_rate_per_caller_burst,
        calls_per_caller_max=settings.api_calls_per_caller_max,
        streams_per_caller_max=settings.api_streams_per_caller_max,
        connection_age_max_s=settings.api_connection_age_max_s,
    )


def prometheus_traffic(settings: Settings, clock: Clock) -> PrometheusTraffic | None:
    """The Prometheus server that answers demand queries, if there is one; raise ValueError for a wrong address."""
    if not settings.prometheus_url:
        return None
    password = settings.prometheus_password
    access = PrometheusAccess(
        settings.prometheus_url,
        token_file=settings.prometheus_token_file,
        username=settings.prometheus_username or None,
        password=None if password is None else password.get_secret_value(),
        ca_file=settings.prometheus_ca_file,
        headers={name: value.get_secret_value() for name, value in settings.prometheus_headers.items()},
        timeout_s=settings.prometheus_timeout_s,
        # The next period asks again anyway.
        attempts_max=2,
    )
    period = timedelta(seconds=settings.prometheus_period_s)
    return PrometheusTraffic(Prometheus(access, clock), clock, period=period)


async def _open_http(
    runtime: Runtime, security: Security, registry: CollectorRegistry, stack: AsyncExitStack
) -> Listener:
    """Start the side port over what this process knows."""
    runner, clock = runtime.runner, runtime.clock
    began_s = clock.monotonic()
    registry.register(
        StateCollector(lambda: state_of(runtime, security), runtime.settings.metrics_workloads_max)
    )
    health = Health(
        turn_ages_s=runner.turn_ages_s,
        loop_runs=runtime.settings.run_loop,
        api_problem=lambda: runtime.api.problem,
        api_degraded=lambda: runtime.api.degraded,
        age_s=lambda: clock.monotonic() - began_s,
    )
    bind = follow(runtime.settings.http_bind, runtime.settings.bind)
    try:
        port = await open_port(bind, security, registry, health)
    except BindError as error:
        if runtime.settings.http_bind:
            raise
        # Nobody asked for this very port, and what it is for must not keep a controller from starting.
        log.warning("%s; any free one is taken instead", error)
        port = await open_port(f"{bind.rpartition(':')[0]}:0", security, registry, health)
    stack.push_async_callback(port.stop)
    return port


async def _open_console(
    settings: Settings, api_port: int, security: Security, stack: AsyncExitStack
) -> Listener | None:
    """Start the web console as a client of our own API; None if it has no way to be one."""
    bind, tls = settings.console_bind, security.tls
    host = check_bind(bind, security, name="console_bind")
    credentials = _own_credentials(settings)
    if credentials is None:
        log.warning("no console: the API asks for client certificates; run `forecrest --cert … console`")
        return None
    api_host = settings.bind.rpartition(":")[0]
    target = f"{'127.0.0.1' if api_host in {'0.0.0.0', '[::]'} else api_host}:{api_port}"  # noqa: S104 -- compared, not bound
    names = [*(name.strip() for name in settings.console_hosts.split(",") if name.strip()), host]
    app = create_console(target, credentials=credentials, hosts=names, secure=tls is not None)
    context = None if tls is None else tls.http_context()
    port = int(bind.rpartition(":")[2])
    try:
        console = await listen(app, host, port, context)
    except OSError as error:
        if bind != Settings.model_fields["console_bind"].default:
            raise BindError(
                f"console_bind: {bind} is not free; choose another with FORECREST_CONSOLE_BIND, or empty for none"
            ) from error
        # As with the side port: nobody asked for this very one.
        log.warning("console_bind: %s is not free; any free one is taken instead", bind)
        console = await listen(app, host, 0, context)
    stack.push_async_callback(console.stop)
    return console


def _own_credentials(settings: Settings) -> Credentials | None:
    """How to reach our own API; None: not without a client certificate, and the environment names none."""
    if settings.tls_cert is None:
        return Credentials()
    given = Credentials.from_environment()
    if settings.tls_client_ca is not None and given.cert is None:
        return None
    name = given.server_name or _name_in(settings.tls_cert)
    return replace(given, ca=given.ca or settings.tls_cert, server_name=name, token="", token_file=None)


def _name_in(certificate: Path) -> str:
    """Return the first name of a server's certificate, under which it is reached; empty: it has none."""
    leaf = x509.load_pem_x509_certificates(certificate.read_bytes())[0]
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ""
    found = names.get_values_for_type(x509.DNSName)
    return found[0] if found else ""


def state_of(runtime: Runtime, security: Security) -> State:
    """What the process knows now, copied for the metrics."""
    control, forecasting, runner = runtime.control, runtime.forecasting, runtime.runner
    state = State(
        now=runtime.clock.now(),
        leader=runtime.leadership.token is not None,
        tick_at=runner.last_tick_at,
        turn_ages_s=runner.turn_ages_s(),
        turn_durations_s=dict(runner.durations_s),
        failures=dict(runner.failures),
        database_up=None if runtime.api.problem else not runtime.api.degraded,
        orders=dict(control.orders),
        told={} if runtime.notifier is None else dict(runtime.notifier.outcomes),
        pools=runtime.settings.quota_pools,
        pending_minutes=runtime.observer.pending_count,
        stream_count=runtime.api.stream_count,
        security_failures=security.failures,
        certificate_expires_at=security.certificate_expires_at,
        audit_pending=runtime.api.audit_pending,
    )
    if not state.leader:  # one that no longer leads knows how things were, not how they are
        return state
    return replace(
        state,
        untold={} if runtime.notifier is None else dict(runtime.notifier.backlogs),
        leads=dict(control.leads),
        workloads=control.known,
        states=control.states,
        demands=dict(runtime.observer.newest),
        views=dict(runtime.observer.views),
        decisions=dict(control.decisions),
        bands=dict(forecasting.bands),
        near=dict(forecasting.near.demands),
        trust=dict(forecasting.trust),
        scores=dict(forecasting.scores),
    )


def _announce(data_dir: Path, runtime: Runtime, stack: AsyncExitStack) -> None:
    """Leave the address where the command line looks for it."""
    data_dir.mkdir(parents=True, exist_ok=True)
    path = data_dir / RUNTIME_FILE
    known = {"address": runtime.api.target, "pid": os.getpid()}
    if runtime.http is not None:
        known["http"] = runtime.http.url
    if runtime.console is not None:
        known["console"] = runtime.console.url
    path.write_text(json.dumps(known))
    stack.callback(path.unlink, missing_ok=True)


async def _end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
