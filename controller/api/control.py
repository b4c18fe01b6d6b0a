"""ControlService: parse names, run the use case with one clock reading, map the result. No rule lives here."""
# ruff: noqa: N802 -- the protocol names the methods

from collections.abc import AsyncGenerator
from contextlib import aclosing

from forecrest.v1 import control_pb2, control_service_pb2, control_service_pb2_grpc
from google.protobuf.empty_pb2 import Empty

from controller.api import mappers
from controller.api.calls import ApiDependencies, announce, call_of, optional_time, optional_workload
from controller.api.feed import Feed
from controller.api.shapes import read_duration
from controller.usecases import decisions, overrides
from controller.usecases.errors import Findings
from controller.usecases.listing import page_of
from controller.usecases.names import check_id, new_id, parse, parse_decision


class ControlServicer(control_service_pb2_grpc.ControlServiceServicer):
    """Plans, decisions, overrides and pauses."""

    def __init__(self, deps: ApiDependencies, feed: Feed) -> None:
        self._deps, self._feed = deps, feed

    async def GetPlan(
        self, request: control_service_pb2.GetPlanRequest, context: object
    ) -> control_pb2.CapacityPlan:
        """Read a plan."""
        del context
        (workload,) = parse(request.name, "workloads/*/plan", "name")
        revision = request.revision if request.HasField("revision") else None
        return mappers.plan_to_wire(await decisions.get_plan(self._deps.store, workload, revision))

    async def GetStatus(
        self, request: control_service_pb2.GetStatusRequest, context: object
    ) -> control_pb2.WorkloadStatus:
        """Read where a workload stands."""
        del context
        (workload,) = parse(request.name, "workloads/*/status", "name")
        return mappers.status_to_wire(workload, await decisions.get_status(self._deps.store, workload))

    async def GetDecision(
        self, request: control_service_pb2.GetDecisionRequest, context: object
    ) -> control_pb2.Decision:
        """Read a decision."""
        del context
        decision_id = parse_decision(request.name, "name")
        return mappers.decision_to_wire(await decisions.get_decision(self._deps.store, decision_id))

    async def ListDecisions(
        self, request: control_service_pb2.ListDecisionsRequest, context: object
    ) -> control_service_pb2.ListDecisionsResponse:
        """List decisions."""
        del context
        rows, token = await decisions.list_decisions(
            self._deps.store,
            page_of(request.page_size, request.page_token),
            workload=optional_workload(request.workload),
            start_at=optional_time(request, "start_time"),
            end_at=optional_time(request, "end_time"),
            changes_only=request.changes_only,
        )
        return control_service_pb2.ListDecisionsResponse(
            decisions=map(mappers.decision_to_wire, rows), next_page_token=token
        )

    async def WatchDecisions(
        self, request: control_service_pb2.WatchDecisionsRequest, context: object
    ) -> AsyncGenerator[control_service_pb2.WatchDecisionsResponse]:
        """Follow decisions."""
        del context
        workload = optional_workload(request.workload)
        stream = self._feed.decisions(
            workload, changes_only=request.changes_only, resume_token=request.resume_token
        )
        async with aclosing(stream) as entries:
            async for decided, snapshot, token in entries:
                yield control_service_pb2.WatchDecisionsResponse(
                    decision=mappers.decision_to_wire(decided), snapshot=snapshot, resume_token=token
                )

    async def CreateOverride(
        self, request: control_service_pb2.CreateOverrideRequest, context: object
    ) -> control_pb2.Override:
        """Overrule the loop for a while."""
        del context
        (workload,) = parse(request.parent, "workloads/*", "parent")
        override_id = request.override_id or new_id("override")
        findings = Findings()
        check_id(findings, "override_id", override_id)
        findings.raise_if_any()
        now = self._deps.clock.now()
        call = call_of(
            request,
            method="CreateOverride",
            resource=f"workloads/{workload}/overrides/{override_id}",
            now=now,
            encode=mappers.override_to_wire,
            decode=lambda data: mappers.owned_override_from_wire(control_pb2.Override.FromString(data)),
        )
        draft = mappers.override_from_wire(request.override, override_id, now)
        created = await overrides.create_override(self._deps.store, call, workload, draft)
        await announce(self._deps.signals, call)
        return mappers.override_to_wire(created)

    async def ListOverrides(
        self, request: control_service_pb2.ListOverridesRequest, context: object
    ) -> control_service_pb2.ListOverridesResponse:
        """List overrides."""
        del context
        everywhere = request.parent in {"", "workloads/-"}
        rows, token = await overrides.list_overrides(
            self._deps.store,
            page_of(request.page_size, request.page_token),
            self._deps.clock.now(),
            workload=None if everywhere else parse(request.parent, "workloads/*", "parent")[0],
            show_expired=request.show_expired,
        )
        return control_service_pb2.ListOverridesResponse(
            overrides=map(mappers.override_to_wire, rows), next_page_token=token
        )

    async def DeleteOverride(
        self, request: control_service_pb2.DeleteOverrideRequest, context: object
    ) -> Empty:
        """End an override."""
        del context
        workload, override_id = parse(request.name, "workloads/*/overrides/*", "name")
        call = call_of(
            request,
            method="DeleteOverride",
            resource=request.name,
            now=self._deps.clock.now(),
            encode=lambda _: Empty(),
            decode=lambda _: None,
        )
        await overrides.delete_override(self._deps.store, call, workload, override_id)
        await announce(self._deps.signals, call)
        return Empty()

    async def Pause(
        self, request: control_service_pb2.PauseRequest, context: object
    ) -> control_pb2.PauseState:
        """Pause the fleet or a workload."""
        del context
        workload = optional_workload(request.workload)
        call = call_of(
            request,
            method="Pause",
            resource=request.workload or "fleet",
            now=self._deps.clock.now(),
            encode=mappers.pause_to_wire,
            decode=lambda data: mappers.pause_from_wire(control_pb2.PauseState.FromString(data)),
        )
        ttl = read_duration(request.ttl, "ttl") if request.HasField("ttl") else None
        paused = await overrides.pause(self._deps.store, call, workload, request.reason, ttl)
        await announce(self._deps.signals, call)
        return mappers.pause_to_wire(paused)

    async def Resume(
        self, request: control_service_pb2.ResumeRequest, context: object
    ) -> control_pb2.PauseState:
        """End a pause."""
        del context
        workload = optional_workload(request.workload)
        call = call_of(
            request,
            method="Resume",
            resource=request.workload or "fleet",
            now=self._deps.clock.now(),
            encode=mappers.pause_to_wire,
            decode=lambda data: mappers.pause_from_wire(control_pb2.PauseState.FromString(data)),
        )
        resumed = await overrides.resume(self._deps.store, call, workload)
        await announce(self._deps.signals, call)
        return mappers.pause_to_wire(resumed)

    async def GetPauseState(
        self, request: control_service_pb2.GetPauseStateRequest, context: object
    ) -> control_pb2.PauseState:
        """Read a pause."""
        del context
        workload = optional_workload(request.workload)
        found = await overrides.get_pause(self._deps.store, workload, self._deps.clock.now())
        return mappers.pause_to_wire(found)
