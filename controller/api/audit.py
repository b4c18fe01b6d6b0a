"""AuditService: run the use case, map the result. No rule lives here."""
# ruff: noqa: N802 -- the protocol names the methods

from forecrest.v1 import audit_service_pb2, audit_service_pb2_grpc

from controller.api import mappers
from controller.api.calls import ApiDependencies, optional_time, scope_of
from controller.core.resources import AuditEntry
from controller.usecases.audit import list_entries
from controller.usecases.listing import page_of, seal


class AuditServicer(audit_service_pb2_grpc.AuditServiceServicer):
    """The audit log."""

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps

    async def ListAuditEntries(
        self, request: audit_service_pb2.ListAuditEntriesRequest, context: object
    ) -> audit_service_pb2.ListAuditEntriesResponse:
        """List entries."""
        del context
        scope = scope_of(request)
        rows, token = await list_entries(
            self._deps.store,
            page_of(request.page_size, request.page_token, scope),
            principal=request.principal,
            method=request.method,
            resource=request.resource,
            outcome=request.outcome,
            start_at=optional_time(request, "start_time"),
            end_at=optional_time(request, "end_time"),
        )
        return audit_service_pb2.ListAuditEntriesResponse(
            entries=map(entry_to_wire, rows), next_page_token=seal(token, scope)
        )


def entry_to_wire(entry: AuditEntry) -> audit_service_pb2.AuditEntry:
    """Map an entry."""
    message = audit_service_pb2.AuditEntry(
        principal=entry.principal,
        method=entry.method,
        resource=entry.resource,
        outcome=entry.outcome,
        request_id=entry.request_id,
        detail=entry.detail,
        count=min(entry.count, 2**31 - 1),
        etag_before="" if entry.version_before is None else mappers.etag_of(entry.version_before),
        etag_after="" if entry.version_after is None else mappers.etag_of(entry.version_after),
    )
    message.time.FromDatetime(entry.at)
    return message
