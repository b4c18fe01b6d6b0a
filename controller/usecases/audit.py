"""Read the audit log."""

from collections.abc import Sequence
from datetime import datetime

from controller.core.resources import AuditEntry, Page
from controller.ports import Store
from controller.usecases.caller import caller
from controller.usecases.errors import Findings
from controller.usecases.listing import listing


async def list_entries(
    store: Store,
    page: Page,
    *,
    principal: str = "",
    method: str = "",
    resource: str = "",
    outcome: str = "",
    start_at: datetime | None = None,
    end_at: datetime | None = None,
) -> tuple[Sequence[AuditEntry], str]:
    """One page, newest first, and the token of the next; raise InvalidError, or ForbiddenError below the fleet."""
    caller().require_fleet("the audit log")
    findings = Findings()
    findings.window(start_at, end_at)
    for field, value, length in (
        ("principal", principal, 300),
        ("method", method, 100),
        ("resource", resource, 300),
        ("outcome", outcome, 40),
    ):
        findings.text(field, value, 0, length)
    findings.raise_if_any()
    async with store.unit_of_work() as uow, listing(page):
        return await uow.records.entries(
            page=page,
            principal=principal or None,
            method=method or None,
            resource=resource or None,
            outcome=outcome or None,
            start_at=start_at,
            end_at=end_at,
        )
