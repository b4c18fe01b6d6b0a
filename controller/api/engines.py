"""EngineService: parse names, run the use case with one clock reading, map the result. No rule lives here."""
# ruff: noqa: N802 -- the protocol names the methods

from datetime import datetime
from typing import Any

from forecrest.v1 import engine_pb2, engine_service_pb2, engine_service_pb2_grpc

from controller.api import mappers
from controller.api.calls import ApiDependencies, announce, call_of, scope_of
from controller.core.engines import Engine, EngineProfile
from controller.usecases import engines
from controller.usecases.calls import Call
from controller.usecases.errors import Findings
from controller.usecases.listing import page_of, seal
from controller.usecases.names import check_id, parse


def _decode_engine(data: bytes) -> Engine:
    message = engine_pb2.Engine.FromString(data)
    return mappers.engine_from_wire(message, message.name.removeprefix("engines/"))


def _decode_profile(data: bytes) -> EngineProfile:
    message = engine_pb2.EngineProfile.FromString(data)
    return mappers.engine_profile_from_wire(message, message.name.split("/")[1])


class EngineServicer(engine_service_pb2_grpc.EngineServiceServicer):
    """Records of engines and of what they were measured to sustain."""

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps

    def _call(self, request: Any, method: str, engine_id: str, now: datetime) -> Call[Engine]:  # noqa: ANN401 -- any request
        return call_of(
            request,
            method=method,
            resource=f"engines/{engine_id}",
            now=now,
            encode=mappers.engine_to_wire,
            decode=_decode_engine,
        )

    async def RegisterEngine(
        self, request: engine_service_pb2.RegisterEngineRequest, context: object
    ) -> engine_pb2.Engine:
        """Register an engine."""
        del context
        findings = Findings()
        check_id(findings, "engine_id", request.engine_id)
        findings.raise_if_any()
        draft = mappers.draft_engine(request.engine, request.engine_id)
        call = self._call(request, "RegisterEngine", request.engine_id, self._deps.clock.now())
        registered = await engines.register_engine(self._deps.store, call, draft)
        return mappers.engine_to_wire(registered)

    async def GetEngine(
        self, request: engine_service_pb2.GetEngineRequest, context: object
    ) -> engine_pb2.Engine:
        """Read an engine."""
        del context
        (engine_id,) = parse(request.name, "engines/*", "name")
        return mappers.engine_to_wire(await engines.get_engine(self._deps.store, engine_id))

    async def ListEngines(
        self, request: engine_service_pb2.ListEnginesRequest, context: object
    ) -> engine_service_pb2.ListEnginesResponse:
        """List engines."""
        del context
        scope = scope_of(request)
        rows, token = await engines.list_engines(
            self._deps.store,
            page_of(request.page_size, request.page_token, scope),
            where=request.filter,
            order_by=request.order_by,
        )
        return engine_service_pb2.ListEnginesResponse(
            engines=map(mappers.engine_to_wire, rows), next_page_token=seal(token, scope)
        )

    async def ValidateEngine(
        self, request: engine_service_pb2.ValidateEngineRequest, context: object
    ) -> engine_pb2.Engine:
        """Store a validation."""
        del context
        (engine_id,) = parse(request.name, "engines/*", "name")
        call = self._call(request, "ValidateEngine", engine_id, self._deps.clock.now())
        validated = await engines.validate_engine(
            self._deps.store,
            call,
            engine_id,
            mappers.version_of(request.etag),
            mappers.validation_from_wire(request.validation),
        )
        return mappers.engine_to_wire(validated)

    async def PromoteEngine(
        self, request: engine_service_pb2.PromoteEngineRequest, context: object
    ) -> engine_pb2.Engine:
        """Make an engine the one to serve."""
        del context
        (engine_id,) = parse(request.name, "engines/*", "name")
        call = self._call(request, "PromoteEngine", engine_id, self._deps.clock.now())
        promoted = await engines.promote_engine(
            self._deps.store, call, engine_id, mappers.version_of(request.etag)
        )
        await announce(self._deps.signals, call)
        return mappers.engine_to_wire(promoted)

    async def RetireEngine(
        self, request: engine_service_pb2.RetireEngineRequest, context: object
    ) -> engine_pb2.Engine:
        """Take an engine out of service."""
        del context
        (engine_id,) = parse(request.name, "engines/*", "name")
        call = self._call(request, "RetireEngine", engine_id, self._deps.clock.now())
        retired = await engines.retire_engine(
            self._deps.store, call, engine_id, mappers.version_of(request.etag), request.reason
        )
        await announce(self._deps.signals, call)
        return mappers.engine_to_wire(retired)

    async def RecordEngineProfile(
        self, request: engine_service_pb2.RecordEngineProfileRequest, context: object
    ) -> engine_pb2.EngineProfile:
        """Keep a measurement."""
        del context
        (engine_id,) = parse(request.parent, "engines/*", "parent")
        call = call_of(
            request,
            method="RecordEngineProfile",
            resource=f"engines/{engine_id}",
            now=self._deps.clock.now(),
            encode=mappers.engine_profile_to_wire,
            decode=_decode_profile,
        )
        draft = mappers.engine_profile_from_wire(request.profile, engine_id)
        kept = await engines.record_profile(self._deps.store, call, engine_id, draft)
        await announce(self._deps.signals, call)
        return mappers.engine_profile_to_wire(kept)

    async def ListEngineProfiles(
        self, request: engine_service_pb2.ListEngineProfilesRequest, context: object
    ) -> engine_service_pb2.ListEngineProfilesResponse:
        """List measurements."""
        del context
        scope = scope_of(request)
        everywhere = request.parent in {"", "engines/-"}
        rows, token = await engines.list_profiles(
            self._deps.store,
            page_of(request.page_size, request.page_token, scope),
            None if everywhere else parse(request.parent, "engines/*", "parent")[0],
        )
        return engine_service_pb2.ListEngineProfilesResponse(
            profiles=map(mappers.engine_profile_to_wire, rows), next_page_token=seal(token, scope)
        )
