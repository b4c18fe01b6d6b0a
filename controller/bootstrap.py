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
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

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
from controller.loop.known import KnownWorkloads, Registered
from controller.loop.leader import Leadership
from controller.loop.observe import Observer
from controller.loop.runner import Runner
from controller.loop.shards import Shards, Share, disagreement, shard_of
from controller.notify.config import Sink, read_sinks
from controller.notify.notifier import Notifier
from controller.notify.webhook import WebhookSink
from controller.ports import LEADER_LEASE, Actuator, Clock, DemandMeterPort, LeaseStore, SignalCache, Store
from controller.settings import Settings
from controller.usecases.preview_event import PreviewSettings
from forecaster.workers import Workers, worker_count

log = logging.getLogger(__name__)

_V = TypeVar("_V")

# Live signals outlive a few missed scrapes, no more: the core judges their age besides.
SIGNAL_TTL_PERIODS = 30
RUNTIME_FILE = "runtime.json"
# A controller that is stopped inside a transaction holds its rows no longer than this, or its lease.
_IDLE_MIN_S = 5.0


@dataclass(frozen=True, slots=True)
class World:
    """What one leader is made of: of everything, or of a shard."""

    control: Control
    observer: Observer
    forecasting: Forecasting
    leadership: Leadership
    runner: Runner


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
    # Where workloads are split: every shard's world, of which the first is the one above, and who leads which.
    worlds: tuple[World, ...] = ()
    shards: Shards | None = None

    @property
    def leading(self) -> tuple[World, ...]:
        """The worlds that this process decides for now."""
        return tuple(world for world in self.worlds if world.leadership.token is not None)

    @property
    def waits(self) -> str:
        """Why this process leads nothing although it could; empty: it does not wait for others to end."""
        if self.shards is not None:
            return self.shards.problem
        return disagreement(self.leadership.other, 1)


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
        notifier = _notifier(sinks, settings, store, clock, stack)
        leases = PostgresLeaseStore(database_url)
        stack.push_async_callback(leases.close)
        cache = RedisSignalCache(redis_url, clock=clock)
        stack.push_async_callback(cache.close)
        local = LocalProcessActuator.from_settings(settings, clock)
        stack.push_async_callback(local.close)
        actuator = actuator or _actuator(settings, clock, local)
        if actuator is not local:
            stack.push_async_callback(actuator.close)
        forecaster = _forecaster(settings, stack)
        shared = _Shared(settings, clock, store, cache, actuator, forecaster, notifier)
        leaderships, shards = _leaderships(settings, leases)
        known = KnownWorkloads(settings.workloads_max)

        def demand_meter() -> DemandMeterPort:
            meter = TritonDemandMeter(clock, baselines=local.baselines, departures=local.departures)
            stack.push_async_callback(meter.close)
            return wrap_meter(meter)

        worlds = tuple(
            _world(
                shared,
                leadership,
                demand_meter(),
                known if shards is None else _share(known, settings, number),
                stack,
                is_first=number == 0,
            )
            for number, leadership in enumerate(leaderships)
        )
        first = worlds[0]
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
            shard_of=lambda w: shard_of(w, settings.quota_pools, settings.shards),
        )
        registry = new_registry()
        api = await serve(deps, settings.bind, security, ApiMetrics(registry).observe)
        stack.push_async_callback(api.stop)
        loop: asyncio.Task[None] | None = None
        if settings.run_loop:
            loop = asyncio.create_task(_run(worlds, shards), name="control-loop")
            stack.push_async_callback(_end, loop)
        runtime = Runtime(
            settings,
            clock,
            store,
            cache,
            actuator,
            first.control,
            first.observer,
            first.forecasting,
            first.leadership,
            first.runner,
            api,
            loop,
            servers,
            notifier=notifier,
            worlds=worlds,
            shards=shards,
        )
        _synchronise(runtime, deps, stack)
        _witness(runtime, stack)
        if settings.http_bind != "off":
            runtime = replace(runtime, http=await _open_http(runtime, security, registry, stack))
        if settings.console_bind:
            runtime = replace(runtime, console=await _open_console(settings, api.port, security, stack))
        _announce(settings.data_dir, runtime, stack)
        yield runtime


def _forecaster(settings: Settings, stack: AsyncExitStack) -> FitForecaster:
    """The forecaster in processes, which start at the first refit and end with the stack."""
    count = settings.forecast_workers or worker_count()
    forecaster = FitForecaster(Workers(count, deadline_s=settings.forecast_deadline_s))
    stack.push_async_callback(forecaster.close)
    return forecaster


@dataclass(frozen=True, slots=True)
class _Shared:
    """What the worlds of one process have in common."""

    settings: Settings
    clock: Clock
    store: Store
    cache: SignalCache
    actuator: Actuator
    forecaster: FitForecaster
    notifier: Notifier | None


def _share(known: KnownWorkloads, settings: Settings, number: int) -> Share:
    """The workloads of one shard."""
    return Share(known, lambda w: shard_of(w, settings.quota_pools, settings.shards) == number)


def _world(
    shared: _Shared,
    leadership: Leadership,
    meter: DemandMeterPort,
    registered: Registered,
    stack: AsyncExitStack,
    *,
    is_first: bool,
) -> World:
    """A leader's parts. What there is once in an installation runs with the first."""
    settings, clock, store = shared.settings, shared.clock, shared.store
    # As the meter, it remembers workloads, so that each leader has its own.
    source = prometheus_traffic(settings, clock)
    if source is not None:
        stack.push_async_callback(source.close)
    ttl = SIGNAL_TTL_PERIODS * settings.scrape_period
    observer = Observer(shared.actuator, meter, shared.cache, store, ttl=ttl, source=source)
    # One reads its history while the others compute.
    at_once = shared.forecaster.at_once + 1
    forecasting = Forecasting(store, shared.forecaster, clock, settings, shared.cache, at_once=at_once)
    control = Control(
        store,
        shared.cache,
        shared.actuator,
        observer,
        forecasting,
        clock,
        settings,
        settings.quota_pools,
        shared.notifier,
        registered,
    )
    notifier = shared.notifier if is_first else None
    runner = Runner(leadership, control, observer, forecasting, clock, settings, notifier, maintains=is_first)
    return World(control, observer, forecasting, leadership, runner)


def _leaderships(settings: Settings, leases: LeaseStore) -> tuple[tuple[Leadership, ...], Shards | None]:
    """The one leadership, or one for each shard with who spreads them."""
    # Leases live on the database's clock, so leadership keeps the machine's time in a demo too.
    clock, holder, duration = SystemClock(), holder_name(settings), settings.lease_duration
    if settings.shards == 1:
        return (Leadership(leases, clock, name=LEADER_LEASE, holder=holder, duration=duration),), None
    pools = settings.quota_pools
    shards = Shards(leases, clock, count=settings.shards, holder=holder, duration=duration, pools=pools)
    return shards.leaderships, shards


async def _run(worlds: Sequence[World], shards: Shards | None) -> None:
    """Run every world's jobs, and spread the shards."""
    async with asyncio.TaskGroup() as group:
        for world in worlds:
            group.create_task(world.runner.run())
        if shards is not None:
            group.create_task(shards.run(), name="shards")


def _notifier(
    sinks: Sequence[Sink], settings: Settings, store: Store, clock: Clock, stack: AsyncExitStack
) -> Notifier | None:
    """Who tells of prewarms and alarms, closed with the stack; None without anybody to tell."""
    if not sinks:
        return None
    senders = {sink.name: WebhookSink(sink, clock) for sink in sinks}
    hold = timedelta(seconds=settings.alarm_hold_s)
    notifier = Notifier(store, sinks, senders, clock, hold=hold)
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
    settings = runtime.settings
    if not (settings.kubernetes_custom_resources and settings.actuator == "kubernetes" and settings.run_loop):
        return

    def facts(name: str) -> Facts:
        actuator = runtime.actuator
        problems = actuator.problems if isinstance(actuator, KubernetesActuator) else {}
        # Each shard's status is written by whoever leads the first: of what others lead it knows what is stored.
        world = next((w for w in runtime.leading if name in w.control.known), runtime.worlds[0])
        return Facts(
            world.control.decisions.get(name),
            world.observer.views.get(name),
            world.forecasting.bands.get(name),
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
    for world in runtime.worlds:
        world.control.witness = recorder
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
        connections_max=settings.api_connections_max,
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
    clock = runtime.clock
    began_s = clock.monotonic()
    registry.register(
        StateCollector(lambda: state_of(runtime, security), runtime.settings.metrics_workloads_max)
    )
    health = Health(
        turn_ages_s=lambda: turn_ages_s(runtime),
        loop_runs=runtime.settings.run_loop,
        api_problem=lambda: runtime.api.problem,
        api_degraded=lambda: runtime.api.degraded or runtime.waits,
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


def turn_ages_s(runtime: Runtime) -> Mapping[str, float]:
    """Seconds since each job's last turn ended, in the world where that is longest ago."""
    ages: dict[str, float] = {}
    for world in runtime.worlds:
        for job, age_s in world.runner.turn_ages_s().items():
            ages[job] = max(ages.get(job, 0.0), age_s)
    return ages


def state_of(runtime: Runtime, security: Security) -> State:
    """What the process knows now, copied for the metrics."""
    worlds, leading = runtime.worlds, runtime.leading
    durations_s: dict[str, float] = {}
    for world in leading or worlds:
        for job, took_s in dict(world.runner.durations_s).items():
            durations_s[job] = max(durations_s.get(job, 0.0), took_s)
    state = State(
        now=runtime.clock.now(),
        leader=bool(leading),
        shards=runtime.settings.shards,
        shards_held=len(leading),
        waits=bool(runtime.waits),
        tick_at=max((w.runner.last_tick_at for w in worlds if w.runner.last_tick_at), default=None),
        turn_ages_s=turn_ages_s(runtime),
        turn_durations_s=durations_s,
        failures=_sum(world.runner.failures for world in worlds),
        database_up=None if runtime.api.problem else not runtime.api.degraded,
        orders=_sum(world.control.orders for world in worlds),
        told={} if runtime.notifier is None else dict(runtime.notifier.outcomes),
        pools=runtime.settings.quota_pools,
        pending_minutes=sum(world.observer.pending_count for world in worlds),
        stream_count=runtime.api.stream_count,
        security_failures=security.failures,
        certificate_expires_at=security.certificate_expires_at,
        audit_pending=runtime.api.audit_pending,
    )
    if not state.leader:  # one that no longer leads knows how things were, not how they are
        return state
    first = runtime.leadership.token is not None
    return replace(
        state,
        untold=dict(runtime.notifier.backlogs) if runtime.notifier is not None and first else {},
        leads=_union(w.control.leads for w in leading),
        workloads=_union(w.control.known for w in leading),
        states=_union(w.control.states for w in leading),
        demands=_union(w.observer.newest for w in leading),
        views=_union(w.observer.views for w in leading),
        decisions=_union(w.control.decisions for w in leading),
        bands=_union(w.forecasting.bands for w in leading),
        near=_union(w.forecasting.near.demands for w in leading),
        trust=_union(w.forecasting.trust for w in leading),
        scores=_union(w.forecasting.scores for w in leading),
        refit_round=(
            sum(w.forecasting.round.due_count for w in leading),
            sum(w.forecasting.round.done_count for w in leading),
        ),
        refits=_sum(w.forecasting.refits for w in worlds),
    )


def _sum(counters: Iterable[Counter[str]]) -> Counter[str]:
    """Of each key, zeros too."""
    total: Counter[str] = Counter()
    for counter in counters:
        total.update(counter)
    return total


def _union(parts: Iterable[Mapping[str, _V]]) -> dict[str, _V]:
    """Copies, by workload; of disjoint parts."""
    return {name: value for part in parts for name, value in part.items()}


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
