"""Answers kept for the time the database is away: which, for whom, how many, and how they are marked."""

from collections.abc import Awaitable, Callable
from datetime import UTC, timedelta
from typing import Any

import grpc
import pytest
from forecrest.v1 import workload_pb2, workload_service_pb2

from controller.adapters.fakes import FakeStore
from controller.api import stale
from controller.client import ApiError, Client
from tests.unit.api.conftest import NOW, SetClock

Refused = Callable[[Awaitable[object]], Awaitable[ApiError]]
GET = workload_service_pb2.GetWorkloadRequest(name="workloads/rec")


def a_key(number: int = 0, who: str = "ann") -> stale.Key:
    return ("/m", who, None, bytes([number]))


async def test_a_read_says_since_when_it_is_old_and_is_fresh_again_afterwards(
    client: Client, store: FakeStore, clock: SetClock
) -> None:
    fresh = await client.workloads.GetWorkload(GET)
    clock.at = NOW + timedelta(minutes=10)
    store.available = False
    call: Any = client.channel.unary_unary(
        "/forecrest.v1.WorkloadService/GetWorkload",
        request_serializer=workload_service_pb2.GetWorkloadRequest.SerializeToString,
        response_deserializer=workload_pb2.Workload.FromString,
    )(GET)
    old, trailers = await call, dict(await call.trailing_metadata())
    store.available = True
    again = await client.workloads.GetWorkload(GET)

    assert not fresh.HasField("stale_since_time")
    assert NOW == old.stale_since_time.ToDatetime(UTC)
    assert "2026-11-10T12:00:00Z" == trailers[stale.TRAILER]
    old.ClearField("stale_since_time")
    assert fresh == old == again


async def test_a_question_nobody_asked_fails_as_it_would(
    client: Client, store: FakeStore, refused: Refused
) -> None:
    await client.workloads.GetWorkload(GET)
    store.available = False

    error = await refused(
        client.channel.unary_unary(
            "/forecrest.v1.WorkloadService/GetWorkload",
            request_serializer=workload_service_pb2.GetWorkloadRequest.SerializeToString,
        )(workload_service_pb2.GetWorkloadRequest(name="workloads/search"))
    )

    assert ("UNAVAILABLE", "DEPENDENCY_UNAVAILABLE") == (error.code, error.reason)


async def test_what_is_gone_is_not_answered_from_memory(
    client: Client, store: FakeStore, refused: Refused
) -> None:
    await client.workloads.GetWorkload(GET)
    del store.tables.workloads["rec"]

    error = await refused(client.workloads.GetWorkload(GET))

    assert "NOT_FOUND" == error.code


async def test_a_client_may_not_send_the_mark(client: Client) -> None:
    workload = await client.workloads.GetWorkload(GET)
    workload.stale_since_time.FromDatetime(NOW)
    workload.max_replicas = 31

    changed = await client.workloads.UpdateWorkload(
        workload_service_pb2.UpdateWorkloadRequest(workload=workload, update_mask={"paths": ["max_replicas"]})
    )
    workload.etag = ""
    with pytest.raises(grpc.aio.AioRpcError, match="update_mask"):
        await client.workloads.UpdateWorkload(
            workload_service_pb2.UpdateWorkloadRequest(
                workload=workload, update_mask={"paths": ["stale_since_time"]}
            )
        )

    assert (31, False) == (changed.max_replicas, changed.HasField("stale_since_time"))


def test_answers_are_of_one_caller_and_of_one_question() -> None:
    answers = stale.Answers()
    answers.keep(a_key(), workload_pb2.Workload(), NOW)

    assert answers.find(a_key(), NOW) is not None
    assert answers.find(a_key(1), NOW) is None
    assert answers.find(a_key(who="bob"), NOW) is None


def test_answers_end_with_age() -> None:
    answers = stale.Answers()
    answers.keep(a_key(), workload_pb2.Workload(), NOW)

    assert answers.find(a_key(), NOW + stale.AGE_MAX) is not None
    assert answers.find(a_key(), NOW + stale.AGE_MAX + timedelta(seconds=1)) is None


def test_memory_is_bounded_by_count_and_by_size() -> None:
    answers = stale.Answers()
    small, large = workload_pb2.Workload(), workload_pb2.Workload(model_name="x" * 900_000)
    for number in range(stale.ANSWERS_MAX + 10):
        answers.keep(("/m", "ann", None, number.to_bytes(4, "big")), small, NOW)
    assert stale.ANSWERS_MAX == len(answers._kept)
    for number in range(100):
        answers.keep(a_key(number, "bob"), large, NOW)

    assert answers.size <= stale.BYTES_MAX
    assert sum(answer.size for answer in answers._kept.values()) == answers.size
    assert answers.find(a_key(99, "bob"), NOW) is not None
    assert answers.find(("/m", "ann", None, (0).to_bytes(4, "big")), NOW) is None


def test_an_answer_beyond_any_size_is_not_kept_and_the_older_one_is_forgotten() -> None:
    answers = stale.Answers()
    answers.keep(a_key(), workload_pb2.Workload(), NOW)
    answers.keep(a_key(), workload_pb2.Workload(model_name="x" * 2_000_000), NOW)

    assert answers.find(a_key(), NOW) is None
    assert 0 == answers.size


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("/forecrest.v1.EventService/GetEvent", True),
        ("/forecrest.v1.ControlService/GetPlan", True),
        ("/forecrest.v1.EventService/CreateEvent", False),
        ("/forecrest.v1.EventService/PreviewEvent", False),
        ("/forecrest.v1.AuditService/ListAuditEntries", False),
        ("/externalscaler.ExternalScaler/GetMetrics", False),
        ("/grpc.health.v1.Health/Check", False),
        ("/nobody/knows", False),
    ],
)
def test_only_reads_of_our_own_services_are_kept(method: str, expected: bool) -> None:
    assert expected is stale.is_kept(method)
