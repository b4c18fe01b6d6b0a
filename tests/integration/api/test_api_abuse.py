"""Requests of careless and hostile clients, against the real store: each is refused as documented, and costs little."""

import base64
from typing import Any

import grpc
import pytest
from forecrest.keda import externalscaler_pb2, externalscaler_pb2_grpc
from forecrest.v1 import (
    audit_service_pb2,
    control_service_pb2,
    engine_service_pb2,
    event_service_pb2,
    notification_service_pb2,
    telemetry_service_pb2,
    workload_pb2,
    workload_service_pb2,
)
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from controller.api.calls import scope_of
from controller.client import explain
from controller.usecases.listing import seal
from tests.integration.api.conftest import World, answer, refusal
from tests.integration.api.methods import an_event

PROFILE = workload_pb2.CapacityProfile(engine="e", gpu_type="L4", qps_max=10)


async def test_a_name_that_the_store_cannot_hold_is_an_unknown_workload(world: World) -> None:
    for name in ("rec\0", "\0", "a" * 100_000, "\u202ecer", "rec\n"):
        sample = telemetry_service_pb2.TrafficSample(workload=f"workloads/{name}", demand_count=1)
        sample.minute_time.FromJsonString("2026-01-01T00:00:00Z")
        error = await refusal(
            world,
            "TelemetryService/RecordTraffic",
            telemetry_service_pb2.RecordTrafficRequest(source="s", samples=[sample]),
        )
        assert ("INVALID_ARGUMENT", ["samples[0].workload"]) == (
            error.code,
            [field for field, _ in error.violations],
        )


LISTINGS: dict[str, Any] = {
    "WorkloadService/ListWorkloads": workload_service_pb2.ListWorkloadsRequest(page_size=1),
    "EventService/ListEvents": event_service_pb2.ListEventsRequest(page_size=1),
    "ControlService/ListDecisions": control_service_pb2.ListDecisionsRequest(page_size=1),
    "ControlService/ListStatuses": control_service_pb2.ListStatusesRequest(page_size=1),
    "ControlService/ListOverrides": control_service_pb2.ListOverridesRequest(page_size=1),
    "EngineService/ListEngines": engine_service_pb2.ListEnginesRequest(page_size=1),
    "NotificationService/ListNotifications": notification_service_pb2.ListNotificationsRequest(page_size=1),
    "AuditService/ListAuditEntries": audit_service_pb2.ListAuditEntriesRequest(page_size=1),
}
INNER = ("[" * 1400, '["\\u0000", "\\u0000"]', "[1e999, 2]", "[null, null]", "[[], []]", "9" * 1400, "\0")


async def test_a_forged_page_token_is_refused(world: World) -> None:
    for name, request in LISTINGS.items():
        scope = scope_of(request)
        if name == "ControlService/ListDecisions":
            scope = f"decisions:{control_service_pb2.ListDecisionsRequest().SerializeToString().hex()}"
        # A listing that is sorted in memory takes any place to go on from.
        for inner in INNER[:1] if name == "EngineService/ListEngines" else INNER:
            asked = type(request)()
            asked.CopyFrom(request)
            asked.page_token = seal(base64.urlsafe_b64encode(inner.encode()).decode(), scope)
            error = await refusal(world, name, asked)
            expected = ("INVALID_ARGUMENT", ["page_token"])
            assert expected == (error.code, [field for field, _ in error.violations]), (name, inner[:20])


async def test_a_field_named_twice_in_a_mask_is_taken_once(world: World) -> None:
    request = workload_service_pb2.UpdateWorkloadRequest(
        workload=workload_pb2.Workload(name="workloads/rec", profiles=[PROFILE]),
        update_mask=FieldMask(paths=["profiles"] * 1000),
        validate_only=True,
    )
    assert 1 == len((await answer(world, "WorkloadService/UpdateWorkload", request)).profiles)


async def test_a_message_full_of_mistakes_is_refused_in_few_words(world: World) -> None:
    scaler = externalscaler_pb2_grpc.ExternalScalerStub(world.client.channel)
    metadata = {f"k{number}": "" for number in range(200_000)}
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await scaler.GetMetricSpec(externalscaler_pb2.ScaledObjectRef(name="x", scalerMetadata=metadata))
    error = explain(caught.value)
    assert ("INVALID_ARGUMENT", True) == (error.code, 0 < len(error.violations) < 100)


CROWDED: dict[str, tuple[Any, str]] = {
    "WorkloadService/UpdateWorkload": (
        workload_service_pb2.UpdateWorkloadRequest(
            workload=workload_pb2.Workload(
                name="workloads/rec", profiles=[workload_pb2.CapacityProfile()] * 1_900_000
            )
        ),
        "profiles",
    ),
    "EventService/CreateEvent": (
        event_service_pb2.CreateEventRequest(event=an_event(exdate_times=[Timestamp()] * 1_900_000)),
        "exdate_times",
    ),
    "ControlService/Simulate": (
        control_service_pb2.SimulateRequest(
            workload="workloads/rec", changes=[control_service_pb2.SimulatedChange()] * 1_900_000
        ),
        "changes",
    ),
    "TelemetryService/RecordTraffic": (
        telemetry_service_pb2.RecordTrafficRequest(
            source="s", samples=[telemetry_service_pb2.TrafficSample()] * 1_900_000
        ),
        "samples",
    ),
}


@pytest.mark.parametrize("name", sorted(CROWDED))
async def test_millions_of_entries_are_counted_and_not_read(world: World, name: str) -> None:
    request, field = CROWDED[name]
    error = await refusal(world, name, request)
    told = {path.rpartition(".")[2]: description for path, description in error.violations}
    assert "INVALID_ARGUMENT" == error.code
    assert "got 1900000" in told[field]
