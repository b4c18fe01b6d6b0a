"""Read what was told, and what was not."""

from collections.abc import Sequence

from controller.core.resources import Page
from controller.notify.types import Delivery, DeliveryState
from controller.ports import Store
from controller.usecases.errors import Findings
from controller.usecases.listing import listing

SINK_LENGTH_MAX = 63


async def list_notifications(
    store: Store,
    page: Page,
    *,
    sink: str = "",
    state: DeliveryState | None = None,
    workload: str | None = None,
) -> tuple[Sequence[Delivery], str]:
    """One page, newest first, and the token of the next; raise InvalidError."""
    findings = Findings()
    findings.text("sink", sink, 0, SINK_LENGTH_MAX)
    findings.raise_if_any()
    async with store.unit_of_work() as uow, listing(page):
        return await uow.notifications.list(page=page, sink=sink or None, state=state, workload=workload)
