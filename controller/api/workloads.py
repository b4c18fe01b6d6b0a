"""WorkloadService: parse names, run the use case with one clock reading, map the result. No rule lives here."""
# ruff: noqa: N802 -- the protocol names the methods

from forecrest.v1 import workload_pb2, workload_service_pb2, workload_service_pb2_grpc
from google.protobuf.empty_pb2 import Empty

from controller.api import mappers
from controller.api.calls import ApiDependencies, announce, call_of, scope_of
from controller.core.types import Workload
from controller.usecases import workloads
from controller.usecases.errors import Findings
from controller.usecases.listing import page_of, seal
from controller.usecases.names import check_id, parse


def decode_workload(data: bytes) -> Workload:
    """Return the workload of a kept response."""
    message = workload_pb2.Workload.FromString(data)
    return mappers.workload_from_wire(message, message.name.removeprefix("workloads/"))


class WorkloadServicer(workload_service_pb2_grpc.WorkloadServiceServicer):
    """Registration of workloads."""

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps

    async def CreateWorkload(
        self, request: workload_service_pb2.CreateWorkloadRequest, context: object
    ) -> workload_pb2.Workload:
        """Register a workload."""
        del context
        findings = Findings()
        check_id(findings, "workload_id", request.workload_id)
        findings.raise_if_any()
        workload = mappers.workload_from_wire(request.workload, request.workload_id)
        call = call_of(
            request,
            method="CreateWorkload",
            resource=f"workloads/{workload.name}",
            now=self._deps.clock.now(),
            encode=mappers.workload_to_wire,
            decode=decode_workload,
        )
        created = await workloads.create_workload(self._deps.store, call, workload)
        await announce(self._deps.signals, call)
        return mappers.workload_to_wire(created)

    async def GetWorkload(
        self, request: workload_service_pb2.GetWorkloadRequest, context: object
    ) -> workload_pb2.Workload:
        """Read a workload."""
        del context
        (name,) = parse(request.name, "workloads/*", "name")
        return mappers.workload_to_wire(await workloads.get_workload(self._deps.store, name))

    async def ListWorkloads(
        self, request: workload_service_pb2.ListWorkloadsRequest, context: object
    ) -> workload_service_pb2.ListWorkloadsResponse:
        """List workloads."""
        del context
        scope = scope_of(request)
        rows, token = await workloads.list_workloads(
            self._deps.store,
            page_of(request.page_size, request.page_token, scope),
            where=request.filter,
            order_by=request.order_by,
        )
        return workload_service_pb2.ListWorkloadsResponse(
            workloads=map(mappers.workload_to_wire, rows), next_page_token=seal(token, scope)
        )

    async def UpdateWorkload(
        self, request: workload_service_pb2.UpdateWorkloadRequest, context: object
    ) -> workload_pb2.Workload:
        """Change a workload."""
        del context
        mappers.check_mask(request.update_mask)
        (name,) = parse(request.workload.name, "workloads/*", "workload.name")
        call = call_of(
            request,
            method="UpdateWorkload",
            resource=f"workloads/{name}",
            now=self._deps.clock.now(),
            encode=mappers.workload_to_wire,
            decode=decode_workload,
        )
        updated = await workloads.update_workload(
            self._deps.store,
            call,
            name,
            mappers.version_of(request.workload.etag),
            lambda stored: mappers.changed_workload(stored, request.workload, request.update_mask),
            self._deps.shard_of,
        )
        await announce(self._deps.signals, call)
        return mappers.workload_to_wire(updated)

    async def DeleteWorkload(
        self, request: workload_service_pb2.DeleteWorkloadRequest, context: object
    ) -> Empty:
        """Stop scaling a workload."""
        del context
        (name,) = parse(request.name, "workloads/*", "name")
        call = call_of(
            request,
            method="DeleteWorkload",
            resource=f"workloads/{name}",
            now=self._deps.clock.now(),
            encode=lambda _: Empty(),
            decode=lambda _: None,
        )
        await workloads.delete_workload(self._deps.store, call, name, mappers.version_of(request.etag))
        await announce(self._deps.signals, call)
        return Empty()
