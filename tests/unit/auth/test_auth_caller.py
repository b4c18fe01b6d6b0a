"""A caller is told who they are and what they may do, and where; the answer is what the guard then does."""

import pytest
from forecrest.v1 import control_pb2, control_service_pb2

from controller.adapters.clock import SystemClock
from controller.adapters.fakes import FakeSignalCache, FakeStore
from controller.api.auth.security import Security, SecurityFiles
from controller.api.server import ApiDependencies, serve
from controller.cli.doctor import ask_caller
from controller.client import Client
from controller.credentials import Credentials
from tests.unit.auth.conftest import Tokens

Allowed = dict[str, list[str]]


async def asked(security: Security | None, token: str) -> tuple[control_pb2.Caller, Allowed]:
    clock = SystemClock()
    server = await serve(ApiDependencies(FakeStore(), FakeSignalCache(clock), clock), "127.0.0.1:0", security)
    try:
        async with Client(server.target, credentials=Credentials(token=token)) as client:
            found = await client.control.GetCaller(control_service_pb2.GetCallerRequest())
    finally:
        await server.stop(grace_s=0)
    names = control_pb2.Access.Name
    return found, {names(p.access).removeprefix("ACCESS_"): list(p.namespaces) for p in found.permissions}


async def test_roles_are_told_with_where_they_hold_and_what_follows_from_them(tokens: Tokens) -> None:
    text = tokens.make("planner:shop", "operator:search", "viewer:*", name="ops")

    who, may = await asked(Security(SecurityFiles(tokens=tokens.path)), text)

    assert ("token/ops", True) == (who.principal, who.identified)
    grants = [(control_pb2.Role.Name(g.role), g.namespace) for g in who.grants]
    assert [("ROLE_OPERATOR", "search"), ("ROLE_PLANNER", "shop"), ("ROLE_VIEWER", "*")] == grants
    assert {"READ": ["*"], "PLAN": ["search", "shop"], "OPERATE": ["search"], "RECORD": ["search"]} == may


async def test_who_only_records_is_told_that_and_nothing_else(tokens: Tokens) -> None:
    text = tokens.make("telemetry:*", name="gateway")

    assert {"RECORD": ["*"]} == (await asked(Security(SecurityFiles(tokens=tokens.path)), text))[1]


async def test_where_callers_are_not_told_apart_everybody_may_do_everything() -> None:
    who, may = await asked(None, "")

    assert ("", False, 0) == (who.principal, who.identified, len(who.grants))
    assert {key: ["*"] for key in ("READ", "PLAN", "OPERATE", "RECORD", "ADMIN")} == may


async def test_the_doctor_says_whom_the_controller_takes_us_for(
    tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SystemClock()
    text = tokens.make("viewer:*", name="me")
    server = await serve(
        ApiDependencies(FakeStore(), FakeSignalCache(clock), clock),
        "127.0.0.1:0",
        Security(SecurityFiles(tokens=tokens.path)),
    )
    try:
        monkeypatch.delenv("FORECREST_TOKEN", raising=False)
        refused = await ask_caller(server.target)
        monkeypatch.setenv("FORECREST_TOKEN", text)
        known = await ask_caller(server.target)
    finally:
        await server.stop(grace_s=0)

    assert (False, True) == (refused.ok, "FORECREST_TOKEN" in refused.remedy)
    assert (True, "token/me may read in *") == (known.ok, known.detail)
