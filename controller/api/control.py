"""ControlService: parse names, run the use case with one clock reading, map the result. No rule lives here."""
# ruff: noqa: N802 -- the protocol names the methods

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime

from forecrest.v1 import control_pb2, control_service_pb2, control_service_pb2_grpc
from google.protobuf.empty_pb2 import Empty

from controller.api import explanations, mappers
from controller.api.calls import (
    ApiDependencies,
    announce,
    call_of,
    optional_time,
    optional_workload,
    scope_of,
)
from controller.api.feed import Feed
from controller.api.shapes import read_duration
from controller.study import Studies
from controller.usecases import decisions, overrides
from controller.usecases.caller import caller
from controller.usecases.errors import Findings
from controller.usecases.explain_decision import explain_decision
from controller.usecases.listing import page_of, seal
from controller.usecases.names import check_id, new_id, parse, parse_decision
from controller.usecases.simulate import simulate


class ControlServicer(control_service_pb2_grpc.ControlServiceServicer):
    """Plans, decisions and why, overrides and pauses, and what would have been."""

    def __init__(self, deps: ApiDependencies, feed: Feed) -> None:
        self._deps, self._feed, self._studies = deps, feed, Studies()

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
        standing = await decisions.get_status(self._deps.store, self._deps.signals, workload)
        return mappers.status_to_wire(standing)

    async def ListStatuses(
        self, request: control_service_pb2.ListStatusesRequest, context: object
    ) -> control_service_pb2.ListStatusesResponse:
        """List where workloads stand."""
        del context
        scope = scope_of(request)
        rows, token = await decisions.list_statuses(
            self._deps.store, self._deps.signals, page_of(request.page_size, request.page_token, scope)
        )
        response = control_service_pb2.ListStatusesResponse(next_page_token=seal(token, scope))
        for standing in rows:
            found = response.statuses.add(status=mappers.status_to_wire(standing))
            if standing.demand is not None:
                found.demand_qps = standing.demand.stable_qps
                found.demand_time.FromDatetime(standing.demand.at)
        return response

    async def GetDecision(
        self, request: control_service_pb2.GetDecisionRequest, context: object
    ) -> control_pb2.Decision:
        """Read a decision."""
        del context
        decision_id, workload, as_of = _chosen(request)
        found = await decisions.get_decision(
            self._deps.store, decision_id, self._deps.clock.now(), workload=workload, as_of=as_of
        )
        return mappers.decision_to_wire(found)

    async def ExplainDecision(
        self, request: control_service_pb2.ExplainDecisionRequest, context: object
    ) -> control_pb2.DecisionExplanation:
        """Say why a decision came out as it did."""
        del context
        decision_id, workload, as_of = _chosen(request)
        why = await explain_decision(
            self._deps.store, decision_id, self._deps.clock.now(), workload=workload, as_of=as_of
        )
        return explanations.decision_explanation_to_wire(why)

    async def Simulate(
        self, request: control_service_pb2.SimulateRequest, context: object
    ) -> control_service_pb2.SimulateResponse:
        """Answer what would have been."""
        del context
        (workload,) = parse(request.workload, "workloads/*", "workload")
        simulated = await simulate(
            self._deps.store,
            self._studies,
            workload,
            explanations.question_from_wire(request),
            self._deps.clock.now(),
            self._deps.preview.lead_priors,
        )
        return explanations.simulated_to_wire(workload, simulated)

    async def ListDecisions(
        self, request: control_service_pb2.ListDecisionsRequest, context: object
    ) -> control_service_pb2.ListDecisionsResponse:
        """List decisions."""
        del context
        scope = _query(request)
        page = page_of(request.page_size, request.page_token, scope)
        workload = optional_workload(request.workload)
        as_of = optional_time(request, "as_of_time")
        if as_of is None:
            rows, token = await decisions.list_decisions(
                self._deps.store,
                page,
                workload=workload,
                start_at=optional_time(request, "start_time"),
                end_at=optional_time(request, "end_time"),
                changes_only=request.changes_only,
                where=request.filter,
                order_by=request.order_by,
            )
        else:
            _alone(request)
            rows, token = await decisions.list_decisions_in_force(
                self._deps.store, page, as_of, workload=workload
            )
        return control_service_pb2.ListDecisionsResponse(
            decisions=map(mappers.decision_to_wire, rows), next_page_token=seal(token, scope)
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
        scope = scope_of(request)
        everywhere = request.parent in {"", "workloads/-"}
        rows, token = await overrides.list_overrides(
            self._deps.store,
            page_of(request.page_size, request.page_token, scope),
            self._deps.clock.now(),
            workload=None if everywhere else parse(request.parent, "workloads/*", "parent")[0],
            show_expired=request.show_expired,
        )
        return control_service_pb2.ListOverridesResponse(
            overrides=map(mappers.override_to_wire, rows), next_page_token=seal(token, scope)
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

    async def GetCaller(
        self, request: control_service_pb2.GetCallerRequest, context: object
    ) -> control_pb2.Caller:
        """Say who calls."""
        del request, context
        return mappers.caller_to_wire(caller())


def _chosen(
    request: control_service_pb2.GetDecisionRequest | control_service_pb2.ExplainDecisionRequest,
) -> tuple[str | None, str | None, datetime | None]:
    """Return the id, the workload and the time by which a decision is chosen; raise InvalidError."""
    return (
        parse_decision(request.name, "name") if request.name else None,
        optional_workload(request.workload),
        optional_time(request, "as_of_time"),
    )


def _alone(request: control_service_pb2.ListDecisionsRequest) -> None:
    """Raise InvalidError for what has no meaning beside as_of_time."""
    findings = Findings()
    for field in ("start_time", "end_time", "changes_only", "filter", "order_by"):
        findings.require(not _is_set(request, field), field, "has no meaning beside as_of_time; remove one")
    findings.raise_if_any()


def _is_set(request: control_service_pb2.ListDecisionsRequest, field: str) -> bool:
    return any(found.name == field for found, _ in request.ListFields())


def _query(request: control_service_pb2.ListDecisionsRequest) -> str:
    """Return what a page token belongs to: everything but the page."""
    asked = control_service_pb2.ListDecisionsRequest()
    asked.CopyFrom(request)
    asked.ClearField("page_size")
    asked.ClearField("page_token")
    return f"decisions:{asked.SerializeToString(deterministic=True).hex()}"
