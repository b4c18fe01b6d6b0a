"""Names that the shell completes: workloads, events and the engines of the registry, asked of the controller.

Promises: one listing of one page, within a second and a half; without a controller nothing is completed and nothing is
said, for a shell that completes has no place for errors. Called by the shell, through Typer.
"""

import asyncio
from collections.abc import Awaitable, Callable

import grpc
import typer
from forecrest.v1 import engine_service_pb2, event_service_pb2, workload_service_pb2

from controller.cli.common import CliError, bare, connected, use_credentials
from controller.client import Client

NAMES_MAX = 1000
DEADLINE_S = 1.5
Lister = Callable[[Client], Awaitable[list[str]]]


def _completed(context: typer.Context, incomplete: str, lister: Lister) -> list[str]:
    root = context.find_root().params
    use_credentials(
        ca=root.get("tls_ca"),
        cert=root.get("cert"),
        key=root.get("key"),
        token_file=root.get("token_file"),
    )

    async def call() -> list[str]:
        async with connected(context.params.get("address")) as client:
            return await lister(client)

    try:
        found = asyncio.run(call())
    except (CliError, grpc.aio.AioRpcError):
        return []
    return sorted(name for name in map(bare, found) if name.startswith(incomplete))


def workload_names(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of workloads that begin so."""

    async def call(client: Client) -> list[str]:
        asked = workload_service_pb2.ListWorkloadsRequest(page_size=NAMES_MAX)
        return [w.name for w in (await client.workloads.ListWorkloads(asked, timeout=DEADLINE_S)).workloads]

    return _completed(context, incomplete, call)


def event_names(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of events that begin so."""

    async def call(client: Client) -> list[str]:
        asked = event_service_pb2.ListEventsRequest(page_size=NAMES_MAX, order_by="start_time desc")
        return [e.name for e in (await client.events.ListEvents(asked, timeout=DEADLINE_S)).events]

    return _completed(context, incomplete, call)


def engine_names(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of registered engines that begin so."""

    async def call(client: Client) -> list[str]:
        asked = engine_service_pb2.ListEnginesRequest(page_size=NAMES_MAX)
        return [e.name for e in (await client.engines.ListEngines(asked, timeout=DEADLINE_S)).engines]

    return _completed(context, incomplete, call)
