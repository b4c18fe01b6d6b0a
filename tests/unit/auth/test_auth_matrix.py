"""Every method, with every role, in the right, the wrong and in every namespace.

What lies in another namespace must be indistinguishable from what never was: the same request is made in a world
from which that namespace is missing, and everything that comes back must be equal.
"""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from controller.adapters.fakes import FakeSignalCache, FakeStore
from controller.api.auth.roles import RULES, Role
from controller.api.auth.security import Security, SecurityFiles
from controller.api.limits import ApiLimits
from controller.api.server import ApiDependencies, RunningServer, serve
from controller.client import ApiError, Client, explain
from controller.core.resources import ForecastRun, TrafficEvent
from controller.core.types import ForecastBand, ForecastState, Mode, Override, OverrideKind
from controller.credentials import Credentials
from controller.notify.types import Delivery, Kind, Notification, Severity
from tests.unit.api.conftest import NOW, SetClock, a_decision
from tests.unit.auth.conftest import Tokens, a_workload
from tests.unit.auth.methods import BLIND, FLEET, METHODS, OTHERS, Sample, described, request_of

RIGHT, WRONG, ALL = "shop", "search", "*"
# A method may read forecasts of another service's making; those tests have their own.
Outcome = tuple[str, Any]
# How grpcio, up to 1.81 at least, names a refusal that came before the first message was written: it says nothing of it.
WRITE_TOO_LATE = "Internal error from Core"


def a_forecast(workload: str) -> tuple[ForecastRun, ForecastBand]:
    band = ForecastBand(
        id=f"forecast-{workload}",
        origin_at=NOW,
        start_at=NOW,
        step=timedelta(minutes=5),
        levels=(0.1, 0.5, 0.9),
        qps=((10.0, 20.0, 30.0),) * 3,
        state=ForecastState.READY,
    )
    return ForecastRun(band.id, workload, NOW, NOW, horizon_steps=3), band


def a_world(*namespaces: str) -> FakeStore:
    """Workloads, an event, a decision and an override in each of the namespaces."""
    store = FakeStore()
    for name, namespace, event in (("cart", "shop", "shops"), ("ranker", "search", "searches")):
        if namespace not in namespaces:
            continue
        store.tables.workloads[name] = replace(a_workload(name, namespace), mode=Mode.KEDA)
        decision = replace(a_decision(1, name), at=NOW - timedelta(seconds=5))
        store.tables.decisions[decision.id] = decision
        run, band = a_forecast(name)
        store.tables.forecasts[run.id] = run, band
        held = Override("held", OverrideKind.AT_LEAST, 2, NOW + timedelta(hours=1), "launch", "somebody")
        store.tables.overrides[name, "held"] = held
        told = Notification(name, NOW, Kind.EVENT_ENDED, Severity.INFO, name, namespace, event, "Over.")
        store.tables.notifications["ops", name] = Delivery("ops", told)
        store.tables.events[event] = [
            TrafficEvent(
                id=event,
                workloads=(name,),
                start_at=datetime(2026, 11, 20, tzinfo=UTC),
                end_at=datetime(2026, 11, 20, 2, tzinfo=UTC),
                time_zone="UTC",
                expected_peak_qps=2000.0,
            )
        ]
    return store


@asynccontextmanager
async def world(tokens: Tokens, *namespaces: str) -> AsyncIterator[RunningServer]:
    clock = SetClock(NOW)
    deps = ApiDependencies(
        a_world(*namespaces), FakeSignalCache(clock), clock, limits=ApiLimits(poll_period_s=0.05)
    )
    server = await serve(deps, "127.0.0.1:0", Security(SecurityFiles(tokens=tokens.path)))
    try:
        yield server
    finally:
        await server.stop(grace_s=0)


async def outcome(server: RunningServer, method: str, sample: Sample, token: str) -> Outcome:
    """The first answer, or the refusal as a whole."""
    kind = described(method)
    answers = message_factory.GetMessageClass(kind.output_type)
    async with Client(server.target, credentials=Credentials(token=token)) as client:
        channel = client.channel
        request = request_of(method, sample)
        how = {
            "request_serializer": lambda message: message.SerializeToString(),
            "response_deserializer": answers.FromString,
        }
        try:
            if kind.client_streaming:
                call = channel.stream_stream(method, **how)(iter([request]), timeout=60)
                return "OK", await anext(aiter(call))
            if kind.server_streaming:
                return "OK", await anext(aiter(channel.unary_stream(method, **how)(request, timeout=60)))
            return "OK", await channel.unary_unary(method, **how)(request, timeout=60)
        except grpc.aio.AioRpcError as error:
            if error.details() == WRITE_TOO_LATE:
                return await outcome(server, method, sample, token)
            return error.code().name, explain(error)


def masked(found: Outcome) -> Outcome:
    """Without what is the caller's own, such as the name of who made the resource, and the log's reference."""
    code, answer = found
    if isinstance(answer, ApiError):
        return code, replace(answer, message=re.sub("[0-9a-f]{32}", "", answer.message))
    return code, _without_names(answer)


def _without_names(message: Any) -> Any:  # noqa: ANN401 -- any message
    for field, value in message.ListFields():
        if field.name in {"created_by", "by", "principal", "grants", "permissions"}:
            message.ClearField(field.name)
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for inner in value if isinstance(value, Sequence) else [value]:
                _without_names(inner)
    return message


CASES = [*METHODS.items(), *FLEET.items()]


@pytest.mark.parametrize(
    ("method", "sample"),
    CASES,
    ids=[f"{m.rpartition('/')[2]}{'-fleet' * (m in FLEET and s.fleet)}" for m, s in CASES],
)
async def test_only_roles_that_may_do_it_in_namespaces_they_have(
    method: str, sample: Sample, tokens: Tokens
) -> None:
    made = {(r, n): tokens.make(f"{r}:{n}") for r in Role for n in (RIGHT, WRONG, ALL)}
    async with world(tokens, RIGHT, WRONG) as whole, world(tokens, WRONG) as without:

        async def ask(server: RunningServer, role: str, namespace: str) -> Outcome:
            return masked(await outcome(server, method, sample, made[role, namespace]))

        allowed = await ask(whole, "admin", ALL)
        assert "INTERNAL" != allowed[0]
        absent = await ask(without, "admin", ALL)
        for role in Role:
            answers = {n: await ask(whole, role, n) for n in (RIGHT, WRONG, ALL)}
            if role not in sample.roles:
                assert {("PERMISSION_DENIED", "ROLE_FORBIDDEN")} == {
                    (code, error.reason) for code, error in answers.values()
                }
                continue
            assert allowed == answers[ALL]
            if sample.fleet:
                assert {False} == {
                    answers[n] == ("OK", allowed[1]) for n in (RIGHT, WRONG)
                } or "OK" != allowed[0]
            elif method not in LISTS:
                assert allowed[0] == answers[RIGHT][0]
            if not sample.fleet and method not in CREATES:
                assert absent == answers[WRONG]
    if method not in BLIND and method not in LISTS and not sample.fleet and method not in NEUTRAL:
        assert allowed != absent, "the request does not tell the namespaces apart"


# What they return for one namespace is neither all nor nothing.
LISTS = frozenset(
    f"/forecrest.v1.{name}"
    for name in (
        "EventService/ListEvents",
        "EventService/ExportEvents",
        "WorkloadService/ListWorkloads",
        "ControlService/ListDecisions",
        "ControlService/WatchDecisions",
        "ControlService/ListOverrides",
        "ControlService/ListStatuses",
        "NotificationService/ListNotifications",
        "ForecastService/BatchGetForecasts",
    )
)
# Names its namespace itself: refused by name, see below.
CREATES = frozenset({"/forecrest.v1.WorkloadService/CreateWorkload"})
# The catalogue of engines is everybody's; who calls is about no namespace.
NEUTRAL = frozenset(m for m in METHODS if "EngineService" in m or m.endswith("/GetCaller")) | CREATES


async def served_methods(server: RunningServer, token: str) -> set[str]:
    """Ask reflection for every service, as any tool would."""
    from google.protobuf import descriptor_pb2

    found: set[str] = set()
    async with Client(server.target, credentials=Credentials(token=token)) as client:
        stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)

        async def ask(**what: str) -> Any:  # noqa: ANN401 -- generated types are missing here
            call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(**what)]))
            return await anext(aiter(call))

        for service in (await ask(list_services="*")).list_services_response.service:
            response = await ask(file_containing_symbol=service.name)
            for data in response.file_descriptor_response.file_descriptor_proto:
                file = descriptor_pb2.FileDescriptorProto.FromString(data)
                found |= {
                    f"/{file.package}.{declared.name}/{method.name}"
                    for declared in file.service
                    for method in declared.method
                    if f"{file.package}.{declared.name}" == service.name
                }
    return found


async def test_every_served_method_has_a_rule_and_a_sample(tokens: Tokens) -> None:
    token = tokens.make("viewer:shop")
    async with world(tokens, RIGHT) as server:
        served = await served_methods(server, token)

    assert set() == served - set(RULES), "add a row to controller/api/auth/roles.py"
    assert set() == served - set(METHODS) - OTHERS, "add a sample to tests/unit/auth/methods.py"
    # Rules of methods that are on their way are fine, as long as the method is described.
    assert [] == [m for m in set(RULES) - served - OTHERS if not _is_described(m)]


def _is_described(method: str) -> bool:
    try:
        return described(method) is not None
    except KeyError:
        return False


async def test_a_method_without_a_rule_is_refused(tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    from controller.api.auth import guard

    method = "/forecrest.v1.WorkloadService/GetWorkload"
    monkeypatch.setattr(guard, "RULES", {k: v for k, v in RULES.items() if k != method})
    token = tokens.make("admin:*")
    async with world(tokens, RIGHT) as server:
        code, error = await outcome(server, method, METHODS[method], token)

    assert ("PERMISSION_DENIED", "METHOD_FORBIDDEN") == (code, error.reason)


async def test_without_authentication_everything_is_open_and_said_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = SetClock(NOW)
    server = await serve(ApiDependencies(a_world(RIGHT), FakeSignalCache(clock), clock), "127.0.0.1:0")
    method = "/forecrest.v1.WorkloadService/GetWorkload"
    async with Client(server.target) as client:
        call = client.channel.unary_unary(method, request_serializer=lambda m: m.SerializeToString())
        await call(request_of(method, METHODS[method]))
    await server.stop(grace_s=0)

    assert 1 == caplog.text.count("callers are not told apart")


async def test_lists_leave_out_other_namespaces(tokens: Tokens) -> None:
    token = tokens.make("viewer:shop")
    expected = {
        "WorkloadService/ListWorkloads": ("workloads", "workloads/cart"),
        "EventService/ListEvents": ("events", "events/shops"),
        "ControlService/ListDecisions": ("decisions", "decisions/cart-1"),
        "ControlService/ListOverrides": ("overrides", "workloads/cart/overrides/held"),
    }
    async with world(tokens, RIGHT, WRONG) as server:
        for name, (field, only) in expected.items():
            method = f"/forecrest.v1.{name}"
            _, answer = await outcome(server, method, METHODS[method], token)
            assert [only] == [item.name for item in getattr(answer, field)]
        for name, field, of in (
            ("NotificationService/ListNotifications", "notifications", lambda told: told.workload),
            ("ControlService/ListStatuses", "statuses", lambda one: one.status.name.removesuffix("/status")),
        ):
            method = f"/forecrest.v1.{name}"
            _, answer = await outcome(server, method, METHODS[method], token)
            assert ["workloads/cart"] == [of(item) for item in getattr(answer, field)]
        method = "/forecrest.v1.ControlService/WatchDecisions"
        _, first = await outcome(server, method, METHODS[method], token)
        assert "decisions/cart-1" == first.decision.name


async def test_a_grant_in_one_namespace_does_not_stop_or_change_the_fleet(tokens: Tokens) -> None:
    token = tokens.make("admin:shop", "admin:search")
    async with world(tokens, RIGHT, WRONG) as server:
        for method, sample in (*FLEET.items(), *((m, s) for m, s in METHODS.items() if "Audit" in m)):
            code, error = await outcome(server, method, sample, token)
            assert ("PERMISSION_DENIED", "FLEET_FORBIDDEN") == (code, error.reason)


async def test_grants_add_up_per_method(tokens: Tokens) -> None:
    token = tokens.make("planner:search", "viewer:*")
    get, cancel = "/forecrest.v1.EventService/GetEvent", "/forecrest.v1.EventService/CancelEvent"
    async with world(tokens, RIGHT, WRONG) as server:
        assert "OK" == (await outcome(server, get, METHODS[get], token))[0]
        assert "NOT_FOUND" == (await outcome(server, cancel, METHODS[cancel], token))[0]


@pytest.mark.parametrize("namespace", ["search", "default"])
async def test_a_workload_is_neither_made_in_nor_moved_to_another_namespace(
    tokens: Tokens, namespace: str
) -> None:
    token = tokens.make("operator:shop")
    create, update = (f"/forecrest.v1.WorkloadService/{n}Workload" for n in ("Create", "Update"))
    made = METHODS[create].request
    creation = Sample(METHODS[create].roles, made | {"workload": made["workload"] | {"namespace": namespace}})
    moving = Sample(METHODS[update].roles, {"workload": {"name": "workloads/cart", "namespace": namespace}})
    async with world(tokens, RIGHT, WRONG) as server:
        for method, sample in ((create, creation), (update, moving)):
            code, error = await outcome(server, method, sample, token)
            assert ("PERMISSION_DENIED", "NAMESPACE_FORBIDDEN") == (code, error.reason)


async def test_an_event_over_two_namespaces_is_for_those_who_have_both(tokens: Tokens) -> None:
    one, both = tokens.make("planner:shop"), tokens.make("planner:shop", "planner:search")
    create = "/forecrest.v1.EventService/CreateEvent"
    event = METHODS[create].request["event"] | {"workloads": ["workloads/cart", "workloads/ranker"]}
    sample = Sample(METHODS[create].roles, {"event": event, "eventId": "wide"})
    get = Sample(METHODS[create].roles, {"name": "events/wide"})
    async with world(tokens, RIGHT, WRONG) as server:
        code, refusal = await outcome(server, create, sample, one)
        assert ("INVALID_ARGUMENT", "event.workloads[1]") == (code, refusal.violations[0][0])
        assert "OK" == (await outcome(server, create, sample, both))[0]
        assert "NOT_FOUND" == (await outcome(server, "/forecrest.v1.EventService/GetEvent", get, one))[0]
        assert "OK" == (await outcome(server, "/forecrest.v1.EventService/GetEvent", get, both))[0]
