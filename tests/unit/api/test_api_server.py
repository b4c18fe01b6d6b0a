"""The server around the services: address, health, reflection, errors, limits, stopping."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import grpc
import pytest
from forecrest.v1 import event_service_pb2, workload_service_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from controller.adapters.fakes import FakeSignalCache, FakeStore
from controller.api.errors import DETAILS_BYTES_MAX, status_of
from controller.api.feed import Feed
from controller.api.limits import ApiLimits
from controller.api.server import SERVICES, ApiDependencies, BindError, RunningServer, check_bind, serve
from controller.client import ApiError, Client, explain
from controller.ports import ConflictError, NotFoundError, PortError, StaleFenceError
from controller.usecases.errors import InvalidError, Violation
from tests.unit.api.conftest import SetClock, a_decision

Refused = Callable[[Awaitable[object]], Awaitable[ApiError]]


@pytest.mark.parametrize("bind", ["0.0.0.0:0", "[::]:0", "10.0.0.1:7443", "example.com:443", ":7443"])
def test_an_address_beyond_loopback_is_refused_without_authentication(bind: str) -> None:
    with pytest.raises(BindError, match="no authentication"):
        check_bind(bind)


@pytest.mark.parametrize("bind", ["127.0.0.1", "127.0.0.1:http", "127.0.0.1:70000", ""])
def test_an_address_needs_a_port(bind: str) -> None:
    with pytest.raises(BindError, match="must look like"):
        check_bind(bind)


@pytest.mark.parametrize("bind", ["127.0.0.1:0", "127.8.8.8:1", "localhost:7443", "[::1]:7443"])
def test_loopback_is_served(bind: str) -> None:
    assert check_bind(bind) == bind.rpartition(":")[0]


async def test_a_taken_port_is_refused(
    server: RunningServer, store: FakeStore, signals: FakeSignalCache
) -> None:
    from controller.adapters.clock import SystemClock

    with pytest.raises(BindError, match="not free"):
        await serve(ApiDependencies(store, signals, SystemClock()), server.target)


async def health_of(client: Client, service: str = "") -> int:
    stub = health_pb2_grpc.HealthStub(client.channel)
    response = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return int(response.status)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110 -- another process side has no event to wait for
            await asyncio.sleep(0)


async def test_health_follows_the_store(client: Client, server: RunningServer, store: FakeStore) -> None:
    assert [await health_of(client, s) for s in ("", *SERVICES)] == [
        health_pb2.HealthCheckResponse.SERVING
    ] * (1 + len(SERVICES))

    async def serving(status: int) -> bool:
        return await health_of(client) == status

    assert ("", "") == (server.problem, server.degraded)
    store.available = False
    await until(lambda: serving(health_pb2.HealthCheckResponse.NOT_SERVING))
    assert ("", True) == (server.problem, "database is away" in server.degraded)
    store.available = True
    await until(lambda: serving(health_pb2.HealthCheckResponse.SERVING))
    assert ("", "") == (server.problem, server.degraded)


async def test_a_server_that_never_saw_its_store_is_not_ready(
    store: FakeStore, signals: FakeSignalCache, clock: SetClock
) -> None:
    store.available = False
    server = await serve(ApiDependencies(store, signals, clock), "127.0.0.1:0")
    assert "the database is away" == server.problem
    await server.stop(grace_s=0)
    assert "stopping" == server.problem


async def test_reflection_lists_every_service(client: Client) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)

    async def ask():  # type: ignore[no-untyped-def]  # noqa: ANN202 -- generated types are missing here
        yield reflection_pb2.ServerReflectionRequest(list_services="")

    (response,) = [r async for r in stub.ServerReflectionInfo(ask())]

    names = {service.name for service in response.list_services_response.service}
    assert set(SERVICES) < names


GET = "/forecrest.v1.EventService/GetEvent"


async def test_bytes_that_are_no_message_are_the_callers_fault(client: Client, refused: Refused) -> None:
    call = client.channel.unary_unary(GET, request_serializer=bytes)

    error = await refused(call(b"\xff\xff\xff\xff"))

    assert (error.code, error.reason) == ("INVALID_ARGUMENT", "MALFORMED_MESSAGE")


async def test_an_unknown_method_is_unimplemented(client: Client, refused: Refused) -> None:
    call = client.channel.unary_unary("/forecrest.v1.EventService/Nothing", request_serializer=bytes)

    assert (await refused(call(b""))).code == "UNIMPLEMENTED"


async def test_a_message_beyond_the_limit_is_refused(client: Client, refused: Refused) -> None:
    request = event_service_pb2.GetEventRequest(name="events/" + "x" * 5_000_000)

    assert (await refused(client.events.GetEvent(request))).code == "RESOURCE_EXHAUSTED"


async def test_an_outage_is_unavailable_and_nothing_is_stored(
    server: RunningServer, store: FakeStore, refused: Refused
) -> None:
    store.available = False
    async with grpc.aio.insecure_channel(server.target) as channel:
        call = channel.unary_unary(
            GET, request_serializer=event_service_pb2.GetEventRequest.SerializeToString
        )

        error = await refused(call(event_service_pb2.GetEventRequest(name="events/x")))

    assert (error.code, error.reason) == ("UNAVAILABLE", "DEPENDENCY_UNAVAILABLE")


async def test_the_client_waits_an_outage_out(client: Client, store: FakeStore) -> None:
    store.available = False
    request = workload_service_pb2.GetWorkloadRequest(name="workloads/rec")
    call = asyncio.ensure_future(client.workloads.GetWorkload(request))
    done, _ = await asyncio.wait({call}, timeout=0.1)
    store.available = True

    assert done == set()
    assert (await call).name == "workloads/rec"


async def test_an_unexpected_failure_shows_a_reference_and_nothing_of_the_inside(
    client: Client,
    store: FakeStore,
    refused: Refused,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken() -> None:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr(store, "unit_of_work", broken)
    with caplog.at_level(logging.ERROR):
        error = await refused(client.events.GetEvent(event_service_pb2.GetEventRequest(name="events/x")))

    assert (error.code, error.reason) == ("INTERNAL", "INTERNAL")
    assert "hunter2" not in error.message
    (record,) = [r for r in caplog.records if "unexpected failure" in r.message]
    assert record.message.split()[-1] in error.message


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (ConflictError("x"), "ABORTED", "CONFLICT"),
        (NotFoundError("x"), "NOT_FOUND", "RESOURCE_NOT_FOUND"),
        (StaleFenceError("x"), "UNAVAILABLE", "NOT_READY"),
        (PortError("x"), "UNAVAILABLE", "NOT_READY"),
    ],
)
def test_what_a_port_raises_has_a_code_of_its_own(error: PortError, code: str, reason: str) -> None:
    status = status_of(error)

    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (grpc.StatusCode[code].value[0], reason, "forecrest") == (status.code, info.reason, info.domain)


def test_details_fit_into_trailers_whatever_was_wrong() -> None:
    error = InvalidError([Violation(f"field[{i}]", "é" * 200) for i in range(500)])

    status: status_pb2.Status = status_of(error)

    assert len(status.SerializeToString()) < 2 * DETAILS_BYTES_MAX
    assert len(status.message) <= 800


async def test_a_call_ends_at_its_deadline_also_when_the_store_hangs(
    store: FakeStore, signals: FakeSignalCache, clock: "object", refused: Refused
) -> None:
    limits = ApiLimits(unary_deadline_s=0.05)
    server = await serve(ApiDependencies(store, signals, clock, limits=limits), "127.0.0.1:0")  # type: ignore[arg-type]
    await store.writing.acquire()
    async with Client(server.target) as client:
        request = workload_service_pb2.DeleteWorkloadRequest(name="workloads/rec")

        error = await refused(client.workloads.DeleteWorkload(request))

    await server.stop(grace_s=0)
    assert (error.code, error.reason) == ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED")
    assert "rec" in store.tables.workloads


async def test_a_cancelled_call_stores_nothing_and_leaves_the_server_well(
    client: Client, store: FakeStore
) -> None:
    await store.writing.acquire()
    request = workload_service_pb2.DeleteWorkloadRequest(name="workloads/rec")
    call = client.workloads.DeleteWorkload(request)
    waiting = asyncio.ensure_future(call)  # type: ignore[arg-type]

    async def blocked() -> bool:
        return bool(getattr(store.writing, "_waiters", None))

    await until(blocked)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    async def left() -> bool:
        return not await blocked()

    await until(left)  # the server has heard of it; earlier, the call might still win the race
    store.writing.release()
    await client.workloads.GetWorkload(workload_service_pb2.GetWorkloadRequest(name="workloads/rec"))

    assert "rec" in store.tables.workloads
    assert store.tables.audit == {}


async def test_a_watcher_too_slow_for_its_queue_is_told(
    store: FakeStore, signals: FakeSignalCache, clock: "object", limits: ApiLimits
) -> None:
    from controller.api.errors import StreamLimitError

    feed = Feed(ApiDependencies(store, signals, clock, limits=limits))  # type: ignore[arg-type]
    stream = feed.decisions(None)
    first = asyncio.ensure_future(anext(stream))

    async def joined() -> bool:
        return bool(feed._queues)

    await until(joined)
    async with store.unit_of_work() as uow:
        await uow.decisions.append([a_decision(n) for n in range(10)])
        await uow.commit()
    # Ten decisions in one turn, a queue of five, and a watcher that had no chance to read between.
    await feed.refresh()

    with pytest.raises(StreamLimitError, match="faster than they were read"):
        await first
    assert feed.stream_count == 0


async def test_stopping_twice_is_safe(server: RunningServer) -> None:
    await server.stop(grace_s=0)
    await server.stop(grace_s=0)
    await server.wait()


def test_an_error_without_details_is_explained_by_its_message() -> None:
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), details="connection refused"
    )

    assert str(explain(error)) == "connection refused (UNAVAILABLE)"
