"""``forecrest audit``: who changed what, and who tried to."""

from datetime import UTC
from typing import Annotated

import typer
from forecrest.v1 import audit_service_pb2

from controller.cli.common import (
    Address,
    AsJson,
    clock,
    connected,
    out,
    parse_time,
    print_json,
    run,
    stamp,
    table,
    to_dict,
)
from controller.client import pages

app = typer.Typer(no_args_is_help=True, help="See who changed what, and who tried to.")


@app.command("list")
def list_(
    principal: Annotated[str, typer.Option(help="Only of this caller, for example token/ci.")] = "",
    method: Annotated[str, typer.Option(help="Only this method, for example CancelEvent.")] = "",
    resource: Annotated[str, typer.Option(help="Only of this resource, for example events/x.")] = "",
    outcome: Annotated[str, typer.Option(help="Only with this outcome: OK, PERMISSION_DENIED, …")] = "",
    since: Annotated[str, typer.Option(help="Not before: an ISO time with its zone, or -1d.")] = "-7d",
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most so many entries.")] = 50,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """List the audit log, newest first. Needs the role admin where callers are told apart.

    Example: `forecrest audit list --outcome PERMISSION_DENIED`
    """
    request = audit_service_pb2.ListAuditEntriesRequest(
        page_size=min(limit, 1000),
        principal=principal,
        method=method,
        resource=resource,
        outcome=outcome,
        start_time=stamp(parse_time(since, "--since", clock.now())),
    )

    async def call() -> list[audit_service_pb2.AuditEntry]:
        async with connected(address) as client:
            listed = pages(client.audit.ListAuditEntries, request, "entries", limit)
            return [entry async for entry in listed]

    entries = run(call())
    if as_json:
        print_json([to_dict(entry) for entry in entries])
        return
    shown = table("time (UTC)", "who", "method", "resource", "outcome")
    shown.columns[4].no_wrap = True
    for entry in entries:
        outcome_text = entry.outcome if entry.count == 1 else f"{entry.outcome} x{entry.count}"
        at = f"{entry.time.ToDatetime(UTC):%m-%d %H:%M:%S}"
        cells = (at, entry.principal, entry.method, entry.resource, outcome_text)
        shown.add_row(*(cell.replace("[", r"\[") for cell in cells))
    out().print(shown)
