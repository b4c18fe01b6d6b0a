"""Limits per caller, and what the audit log gets of calls that changed nothing."""

import asyncio
from dataclasses import replace
from typing import Any

import grpc
import pytest
from forecrest.v1 import (
    audit_service_pb2,
    control_service_pb2,
    event_pb2,
    event_service_pb2,
    telemetry_service_pb2,
    workload_pb2,
    workload_service_pb2,
)
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from controller.adapters.clock import SystemClock
from controller.adapters.fakes import FakeStore
from controller.api.auth import audit as trail_module
from controller.api.auth.audit import AuditTrail
from controller.api.auth.rate import Buckets
from controller.api.auth.security import SecurityFiles
from controller.api.server import RunningServer
from controller.client import Client, explain
from controller.core.resources import AuditEntry
from controller.credentials import Credentials
from tests.unit.api.conftest import NOW, SetClock, a_decision
from tests.unit.auth.conftest import EAGER, Opened, Refused, Tokens

GET = workload_service_pb2.GetWorkloadRequest(name="workloads/cart")


def connected(server: RunningServer, token: str) -> Client:
    return Client(server.target, credentials=Credentials(token=token))


def retry_delay_s(error: grpc.aio.AioRpcError) -> float | None:
    status = status_pb2.Status()
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            status.MergeFromString(value)
    retry = error_details_pb2.RetryInfo()
    for detail in status.details:
        if detail.Unpack(retry):
            return float(retry.retry_delay.ToTimedelta().total_seconds())
    return None


def test_a_bucket_lets_a_burst_through_and_then_its_rate() -> None:
    buckets = Buckets(rate=2.0, burst=3.0)

    assert [0.0, 0.0, 0.0, 0.5] == [buckets.take("a", 100.0) for _ in range(4)]
    assert 0.25 == buckets.take("a", 100.25)
    assert 0.0 == buckets.take("a", 100.5)
    assert 0.0 == buckets.take("b", 100.5)  # another caller
    assert [0.0, 0.0, 0.0, 0.5] == [buckets.take("a", 1e6) for _ in range(4)]


def test_buckets_are_bounded() -> None:
    buckets = Buckets(rate=1.0, burst=1.0, buckets_max=3)

    for key in "abcd":
        buckets.take(key, 0.0)

    assert 3 == len(buckets)
    assert buckets.take("d", 0.0) > 0
    assert 0.0 == buckets.take("a", 0.0)  # forgotten, so it begins anew


async def test_whoever_asks_too_often_is_told_when_to_come_back_and_others_go_on(
    opened: Opened, tokens: Tokens
) -> None:
    limits = replace(EAGER, rate_per_caller_qps=0.01, rate_per_caller_burst=2.0)
    one, other = tokens.make("viewer:*"), tokens.make("viewer:*")
    async with (
        opened(SecurityFiles(tokens=tokens.path), limits) as server,
        connected(server, one) as greedy,
        connected(server, other) as modest,
    ):
        for _ in range(2):
            await greedy.workloads.GetWorkload(GET)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await greedy.workloads.GetWorkload(GET)
        await modest.workloads.GetWorkload(GET)

    delay_s = retry_delay_s(caught.value)
    assert ("RESOURCE_EXHAUSTED", "RATE_LIMITED") == (
        explain(caught.value).code,
        explain(caught.value).reason,
    )
    assert delay_s is not None
    assert 0 < delay_s <= 100


async def test_refused_credentials_are_limited_by_address(opened: Opened, tokens: Tokens) -> None:
    async with (
        opened(SecurityFiles(tokens=tokens.path)) as server,
        connected(server, "wrong") as client,
    ):
        codes: set[str] = set()
        async with asyncio.timeout(60):
            while "RESOURCE_EXHAUSTED" not in codes:
                try:
                    await client.workloads.GetWorkload(GET)
                except grpc.aio.AioRpcError as error:
                    codes.add(error.code().name)

    assert {"UNAUTHENTICATED", "RESOURCE_EXHAUSTED"} == codes


async def test_one_caller_has_so_many_streams_and_gets_places_back(
    opened: Opened, tokens: Tokens, store: FakeStore, refused: Refused
) -> None:
    store.tables.decisions["cart-1"] = a_decision(1, "cart")
    limits = replace(EAGER, streams_per_caller_max=2)
    token, other = tokens.make("viewer:*"), tokens.make("viewer:*")
    request = control_service_pb2.WatchDecisionsRequest()
    async with (
        opened(SecurityFiles(tokens=tokens.path), limits) as server,
        connected(server, token) as client,
        connected(server, other) as someone_else,
    ):
        streams = [client.control.WatchDecisions(request) for _ in range(2)]
        for stream in streams:
            await anext(aiter(stream))
        error = await refused(anext(aiter(client.control.WatchDecisions(request))))
        await anext(aiter(someone_else.control.WatchDecisions(request)))
        streams[0].cancel()
        async with asyncio.timeout(60):
            while True:
                try:
                    await anext(aiter(client.control.WatchDecisions(request)))
                    break
                except grpc.aio.AioRpcError:
                    continue

    assert ("RESOURCE_EXHAUSTED", "TOO_MANY_STREAMS") == (error.code, error.reason)


async def test_one_caller_has_so_many_calls_at_once(opened: Opened, tokens: Tokens, store: FakeStore) -> None:
    """Writes wait for each other in the fake store, so they pile up behind one that is held."""
    limits = replace(EAGER, calls_per_caller_max=2)
    token = tokens.make("operator:*")
    pause = control_service_pb2.PauseRequest(reason="x")
    async with (
        opened(SecurityFiles(tokens=tokens.path), limits) as server,
        connected(server, token) as client,
    ):
        await store.writing.acquire()
        calls = [asyncio.ensure_future(client.control.Pause(pause)) for _ in range(3)]
        done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        store.writing.release()
        (refusal,) = [call.exception() for call in done]
        await asyncio.gather(*waiting)

    assert isinstance(refusal, grpc.aio.AioRpcError)
    assert "TOO_MANY_CALLS" == explain(refusal).reason


async def test_health_needs_no_credentials_and_tells_nothing_else(
    opened: Opened, tokens: Tokens, refused: Refused
) -> None:
    async with opened(SecurityFiles(tokens=tokens.path)) as server, Client(server.target) as client:
        health = health_pb2_grpc.HealthStub(client.channel)
        response = await health.Check(health_pb2.HealthCheckRequest())
        error = await refused(anext(aiter(health.Watch(health_pb2.HealthCheckRequest()))))

    assert health_pb2.HealthCheckResponse.SERVING == response.status
    assert "UNAUTHENTICATED" == error.code


async def test_two_authorizations_are_refused(opened: Opened, tokens: Tokens, refused: Refused) -> None:
    good = tokens.make("viewer:*")
    async with opened(SecurityFiles(tokens=tokens.path)) as server, Client(server.target) as client:
        call = client.channel.unary_unary("/forecrest.v1.WorkloadService/GetWorkload")
        for metadata in (
            (("authorization", f"Bearer {good}"), ("authorization", f"Bearer {good}")),
            (("authorization", f"Basic {good}"),),
            (("authorization", good),),
            (("authorization", ""),),
        ):
            error = await refused(call(GET.SerializeToString(), metadata=metadata))
            assert "UNAUTHENTICATED" == error.code


def entries(store: FakeStore) -> list[AuditEntry]:
    return list(store.tables.audit.values())


async def audited(store: FakeStore, count: int) -> list[AuditEntry]:
    """The audit log once it has so many entries."""
    async with asyncio.timeout(60):
        while len(entries(store)) < count:  # noqa: ASYNC110 -- the log is what is awaited
            await asyncio.sleep(0.01)
    return entries(store)


@pytest.fixture
def eager_trail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written in a moment, so that tests need not wait."""
    monkeypatch.setattr(trail_module, "FLUSH_PERIOD_S", 0.01)
    monkeypatch.setattr(trail_module, "BULK_PERIOD_S", 0.05)


async def test_a_change_is_audited_with_its_versions_in_its_own_transaction(
    opened: Opened, tokens: Tokens, store: FakeStore
) -> None:
    token = tokens.make("operator:shop", name="ada")
    update = workload_service_pb2.UpdateWorkloadRequest(
        workload=workload_pb2.Workload(name="workloads/cart", max_replicas=7), request_id="r-1"
    )
    async with (
        opened(SecurityFiles(tokens=tokens.path)) as server,
        connected(server, token) as client,
    ):
        await client.workloads.UpdateWorkload(update)
        (entry,) = entries(store)
        await client.workloads.UpdateWorkload(update)  # a retry changes nothing and is not logged again
        await client.workloads.DeleteWorkload(
            workload_service_pb2.DeleteWorkloadRequest(name="workloads/cart", request_id="r-2")
        )
        await client.workloads.GetWorkload(workload_service_pb2.GetWorkloadRequest(name="workloads/recs"))

    assert ("token/ada", "UpdateWorkload", "workloads/cart", "OK", "r-1", 1, 2) == (
        entry.principal,
        entry.method,
        entry.resource,
        entry.outcome,
        entry.request_id,
        entry.version_before,
        entry.version_after,
    )
    assert [("UpdateWorkload", 1, 2), ("DeleteWorkload", 2, None)] == [
        (e.method, e.version_before, e.version_after) for e in entries(store)
    ]


@pytest.mark.usefixtures("eager_trail")
async def test_refused_and_failed_changes_are_audited_and_reads_are_not(
    opened: Opened, tokens: Tokens, store: FakeStore, refused: Refused
) -> None:
    viewer, planner = tokens.make("viewer:*", name="vic"), tokens.make("planner:search", name="pat")
    delete = workload_service_pb2.DeleteWorkloadRequest(name="workloads/cart", request_id="d")
    cancel = event_service_pb2.CancelEventRequest(name="events/none", request_id="c", reason="s3cret words")
    dry = event_service_pb2.CancelEventRequest(name="events/none", validate_only=True)
    async with (
        opened(SecurityFiles(tokens=tokens.path)) as server,
        connected(server, viewer) as vic,
        connected(server, planner) as pat,
        connected(server, "wrong") as nobody,
    ):
        await refused(vic.workloads.DeleteWorkload(delete))
        await refused(pat.events.CancelEvent(cancel))
        await refused(pat.events.CancelEvent(dry))
        await refused(nobody.workloads.DeleteWorkload(delete))
        await refused(nobody.workloads.GetWorkload(GET))
        found = await audited(store, 3)

    assert {
        ("token/vic", "DeleteWorkload", "workloads/cart", "PERMISSION_DENIED", "d"),
        ("token/pat", "CancelEvent", "events/none", "NOT_FOUND", "c"),
        ("anonymous", "DeleteWorkload", "", "UNAUTHENTICATED", ""),
    } == {(e.principal, e.method, e.resource, e.outcome, e.request_id) for e in found}
    assert 3 == len(entries(store))
    assert "s3cret" not in repr(found)


@pytest.mark.usefixtures("eager_trail")
async def test_measurements_are_audited_in_bulk(opened: Opened, tokens: Tokens, store: FakeStore) -> None:
    token = tokens.make("telemetry:shop", name="gateway")
    at = SystemClock().now().replace(second=0, microsecond=0)
    request = telemetry_service_pb2.RecordTrafficRequest(
        samples=[
            telemetry_service_pb2.TrafficSample(workload="workloads/cart", minute_time=at, demand_count=1)
        ],
        source="gateway",
    )
    async with (
        opened(SecurityFiles(tokens=tokens.path)) as server,
        connected(server, token) as client,
    ):
        for _ in range(5):
            await client.telemetry.RecordTraffic(request)

    found = entries(store)
    assert {("token/gateway", "RecordTraffic", "", "OK")} == {
        (e.principal, e.method, e.resource, e.outcome) for e in found
    }
    assert 5 == sum(e.count for e in found)


class TrailBench:
    """A trail whose clocks the test moves."""

    def __init__(self, store: FakeStore) -> None:
        self.pace = MovedClock()
        self.trail = AuditTrail(store, SetClock(NOW), self.pace)


class MovedClock(SystemClock):
    def __init__(self) -> None:
        self.at_s = 0.0

    def monotonic(self) -> float:
        return self.at_s


async def test_a_flood_is_counted_in_bounded_memory() -> None:
    store = FakeStore()
    bench = TrailBench(store)
    for number in range(trail_module.PENDING_MAX + 50):
        bench.trail.note("anonymous", "DeleteWorkload", f"workloads/w-{number}", "UNAUTHENTICATED", "")
        bench.trail.note("anonymous", "DeleteWorkload", "workloads/w-0", "UNAUTHENTICATED", "")

    await bench.trail.flush()

    found = entries(store)
    assert trail_module.PENDING_MAX + 1 == len(found)
    assert [trail_module.PENDING_MAX + 51] == [e.count for e in found if e.resource == "workloads/w-0"]
    assert [50] == [e.count for e in found if e.principal == "-"]


async def test_entries_wait_while_the_store_is_away() -> None:
    store = FakeStore()
    bench = TrailBench(store)
    bench.trail.note("token/a", "Pause", "", "PERMISSION_DENIED", "")
    store.available = False
    await bench.trail.flush()
    assert (1, 0) == (bench.trail.pending_count, len(entries(store)))

    store.available = True
    await bench.trail.flush()

    assert (0, 1) == (bench.trail.pending_count, len(entries(store)))


async def test_bulk_entries_are_due_after_a_minute_or_at_the_end() -> None:
    store = FakeStore()
    bench = TrailBench(store)
    for _ in range(3):
        bench.trail.note("token/g", "RecordTraffic", "x", "OK", "r", bulk=True)
    await bench.trail.flush()
    assert [] == entries(store)

    bench.pace.at_s = trail_module.BULK_PERIOD_S
    await bench.trail.flush()
    assert [3] == [e.count for e in entries(store)]

    bench.trail.note("token/g", "RecordTraffic", "x", "OK", "r", bulk=True)
    await bench.trail.flush(everything=True)
    assert [3, 1] == [e.count for e in entries(store)]


async def test_an_admin_lists_the_log_by_who_what_and_when(
    opened: Opened, tokens: Tokens, refused: Refused
) -> None:
    admin, planner = tokens.make("admin:*", name="root"), tokens.make("planner:*", name="pat")
    event = event_pb2.Event(
        workloads=["workloads/cart"],
        start_local="2027-11-11T00:00",
        end_local="2027-11-11T02:00",
        time_zone="UTC",
        expected_peak_qps=100,
    )
    async with (
        opened(SecurityFiles(tokens=tokens.path)) as server,
        connected(server, admin) as root,
        connected(server, planner) as pat,
    ):
        for name in ("one", "two", "three"):
            await pat.events.CreateEvent(event_service_pb2.CreateEventRequest(event=event, event_id=name))
        await root.control.Pause(control_service_pb2.PauseRequest(reason="x"))

        async def listed(**asked: Any) -> list[str]:  # noqa: ANN401 -- fields of the request
            response = await root.audit.ListAuditEntries(audit_service_pb2.ListAuditEntriesRequest(**asked))
            return [entry.resource for entry in response.entries]

        assert ["fleet", "events/three", "events/two", "events/one"] == await listed()
        assert ["events/three", "events/two", "events/one"] == await listed(principal="token/pat")
        assert ["fleet"] == await listed(method="Pause", outcome="OK")
        assert ["events/two"] == await listed(resource="events/two")
        assert [] == await listed(outcome="NOT_FOUND")
        assert [] == await listed(end_time=NOW)
        first = await root.audit.ListAuditEntries(audit_service_pb2.ListAuditEntriesRequest(page_size=3))
        assert ["events/one"] == await listed(page_size=3, page_token=first.next_page_token)
        assert ("", '"1"') == (first.entries[1].etag_before, first.entries[1].etag_after)
        assert (
            "INVALID_ARGUMENT"
            == (
                await refused(
                    root.audit.ListAuditEntries(audit_service_pb2.ListAuditEntriesRequest(page_token="x"))
                )
            ).code
        )
        assert (
            "PERMISSION_DENIED"
            == (await refused(pat.audit.ListAuditEntries(audit_service_pb2.ListAuditEntriesRequest()))).code
        )
