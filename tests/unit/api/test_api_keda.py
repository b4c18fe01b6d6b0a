"""The scaler as KEDA's own client uses it, over a real channel; the client's rules are written down in ``KedaClient``."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import grpc
import pytest
from forecrest.keda import externalscaler_pb2, externalscaler_pb2_grpc
from forecrest.v1 import workload_pb2, workload_service_pb2

from controller.adapters.fakes import FakeActuator, FakeLeaseStore, FakeSignalCache, FakeStore
from controller.api.server import ApiDependencies, RunningServer, serve
from controller.client import Client, explain
from controller.core.types import Decision, Mode
from controller.ports import LEADER_LEASE
from controller.usecases.topics import CHANGES
from tests.unit.api.conftest import NOW, SetClock, a_decision

REC = {"scalerAddress": "forecrest:7443", "workload": "rec"}


@dataclass
class KedaClient:
    """What KEDA's operator does with the answers, rule by rule."""

    stub: Any  # the asyncio flavour of the stub has no name at run time

    def reference(self, metadata: dict[str, str]) -> externalscaler_pb2.ScaledObjectRef:
        return externalscaler_pb2.ScaledObjectRef(name="rec", namespace="default", scalerMetadata=metadata)

    async def targets(self, metadata: dict[str, str]) -> dict[str, int]:
        """Targets in thousandths; empty after an error, and then there is no HPA metric and no fallback."""
        try:
            response = await self.stub.GetMetricSpec(self.reference(metadata))
        except grpc.aio.AioRpcError:
            return {}
        return {
            spec.metricName: int(
                1000 * (spec.targetSizeFloat if spec.targetSizeFloat > 0 else spec.targetSize)
            )
            for spec in response.metricSpecs
        }

    async def poll(self, metadata: dict[str, str], metric: str) -> tuple[list[int], bool]:
        """Values in thousandths and activity; an error in either call fails the poll."""
        reference = self.reference(metadata)
        metrics = await self.stub.GetMetrics(
            externalscaler_pb2.GetMetricsRequest(scaledObjectRef=reference, metricName=metric)
        )
        values = [
            # The float counts only when it is more than 0: NaN or negative becomes the whole number.
            int(1000 * (value.metricValueFloat if value.metricValueFloat > 0 else value.metricValue))
            for value in metrics.metricValues
        ]
        active = await self.stub.IsActive(reference)
        return values, active.result


@pytest.fixture
async def keda(server: RunningServer) -> AsyncIterator[KedaClient]:
    async with grpc.aio.insecure_channel(server.target) as channel:
        yield KedaClient(externalscaler_pb2_grpc.ExternalScalerStub(channel))


def decide(store: FakeStore, desired: int, number: int = 0, mode: Mode = Mode.KEDA) -> Decision:
    """Put a workload in KEDA's hands and a decision on it."""
    store.tables.workloads["rec"] = replace(store.tables.workloads["rec"], mode=mode)
    decision = replace(a_decision(number), mode=mode, current_replicas=desired, desired_replicas=desired)
    store.tables.decisions[decision.id] = decision
    return decision


async def test_the_hpa_is_told_the_decided_count(keda: KedaClient, store: FakeStore) -> None:
    decide(store, 24)

    targets = await keda.targets(REC)
    (name,) = targets

    assert targets == {"forecrest-rec": 1000}
    assert await keda.poll(REC, name) == ([24_000], True)


async def test_a_floor_inside_the_hpas_tolerance_leaves_it(
    keda: KedaClient, store: FakeStore, actuator: FakeActuator
) -> None:
    decide(store, 24)
    await actuator.scale(store.tables.workloads["rec"], 22, fence=1)

    assert await keda.poll(REC, "forecrest-rec") == ([25_000], True)
    assert await keda.poll({**REC, "hpaTolerance": "0"}, "forecrest-rec") == ([24_000], True)


async def test_replicas_that_cannot_be_seen_do_not_fail_the_poll(
    keda: KedaClient, store: FakeStore, actuator: FakeActuator
) -> None:
    decide(store, 24)
    actuator.available = False

    assert await keda.poll(REC, "forecrest-rec") == ([24_000], True)


async def test_nothing_to_run_is_zero_and_not_active(keda: KedaClient, store: FakeStore) -> None:
    decide(store, 0)

    assert await keda.poll(REC, "forecrest-rec") == ([0], False)


async def test_specs_need_no_database(keda: KedaClient, store: FakeStore, signals: FakeSignalCache) -> None:
    store.available = signals.available = False

    assert await keda.targets({**REC, "workload": "never-seen"}) == {"forecrest-never-seen": 1000}


async def test_every_server_answers_while_nobody_leads(store: FakeStore, clock: SetClock) -> None:
    # Without a spec KEDA has no metric, and then its own fallback never counts the failures.
    leases = FakeLeaseStore(clock)
    led = FakeStore(leases)
    led.tables = store.tables
    lease = await leases.acquire(LEADER_LEASE, "gone", timedelta(seconds=10))
    assert lease is not None
    decide(led, 24)
    await leases.release(lease)
    clock.at = NOW + timedelta(minutes=14)

    deps = ApiDependencies(led, FakeSignalCache(clock), clock)
    for server in [await serve(deps, "127.0.0.1:0") for _ in range(2)]:
        async with grpc.aio.insecure_channel(server.target) as channel:
            asked = KedaClient(externalscaler_pb2_grpc.ExternalScalerStub(channel))
            assert await asked.targets(REC) == {"forecrest-rec": 1000}
            assert await asked.poll(REC, "forecrest-rec") == ([24_000], True)
        await server.stop(grace_s=0)


async def test_an_outage_is_bridged_by_the_last_decision_until_it_is_too_old(
    keda: KedaClient, store: FakeStore, clock: SetClock
) -> None:
    decide(store, 7)
    await keda.poll(REC, "forecrest-rec")
    store.available = False

    assert await keda.poll(REC, "forecrest-rec") == ([7000], True)
    clock.at = NOW + timedelta(seconds=901)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await keda.poll(REC, "forecrest-rec")
    assert explain(caught.value).reason == "NO_FRESH_DECISION"


@pytest.mark.parametrize("method", ["GetMetrics", "IsActive"])
@pytest.mark.parametrize(
    ("state", "code", "reason"),
    [
        ("nothing decided", "UNAVAILABLE", "NO_FRESH_DECISION"),
        ("decided long ago", "UNAVAILABLE", "NO_FRESH_DECISION"),
        ("database away", "UNAVAILABLE", "NO_FRESH_DECISION"),
        ("no such workload", "NOT_FOUND", "RESOURCE_NOT_FOUND"),
        ("ours to scale", "FAILED_PRECONDITION", "MODE_NOT_KEDA"),
    ],
)
async def test_what_is_not_known_fails_the_poll(
    keda: KedaClient, store: FakeStore, clock: SetClock, method: str, state: str, code: str, reason: str
) -> None:
    metadata = dict(REC)
    if state == "decided long ago":
        decide(store, 5)
        clock.at = NOW + timedelta(minutes=16)
    elif state == "ours to scale":
        decide(store, 5, mode=Mode.SCALE)
    elif state == "no such workload":
        metadata["workload"] = "nobody"
    store.available = state != "database away"

    reference = keda.reference(metadata)
    asked = externalscaler_pb2.GetMetricsRequest(scaledObjectRef=reference)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (keda.stub.IsActive(reference) if method == "IsActive" else keda.stub.GetMetrics(asked))

    error = explain(caught.value)
    assert (error.code, error.reason) == (code, reason)


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({}, "workload"),
        ({"workload": "Not An Id"}, "workload"),
        ({"workload": "rec", "hpaTolerance": "ten percent"}, "hpaTolerance"),
        ({"workload": "rec", "hpaTolerance": "nan"}, "hpaTolerance"),
        ({"workload": "rec", "hpaTolerance": "0.6"}, "hpaTolerance"),
        ({"workload": "rec", "hpaTolerance": "-0.1"}, "hpaTolerance"),
        ({"workload": "rec", "decisionAgeMaxSeconds": "10"}, "decisionAgeMaxSeconds"),
        ({"workload": "rec", "workloud": "rec"}, "workloud"),
    ],
)
@pytest.mark.parametrize("method", ["GetMetricSpec", "IsActive", "StreamIsActive", "StreamMetricSpec"])
async def test_bad_metadata_is_refused_by_key(
    keda: KedaClient, metadata: dict[str, str], field: str, method: str
) -> None:
    call = getattr(keda.stub, method)(keda.reference(metadata))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (call.read() if method.startswith("Stream") else call)

    assert [f for f, _ in explain(caught.value).violations] == [f"scalerMetadata.{field}"]


async def test_kedas_own_metadata_and_full_names_are_taken(keda: KedaClient) -> None:
    metadata = {
        "scalerAddress": "a:1",
        "enableTLS": "true",
        "unsafeSsl": "false",
        "workload": "workloads/rec",
    }

    assert await keda.targets(metadata) == {"forecrest-rec": 1000}


async def test_a_metric_of_another_name_is_refused(keda: KedaClient, store: FakeStore) -> None:
    decide(store, 24)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await keda.poll(REC, "forecrest-search")

    assert [f for f, _ in explain(caught.value).violations] == ["metricName"]


async def test_activity_comes_at_once_and_at_every_change(
    keda: KedaClient, store: FakeStore, signals: FakeSignalCache
) -> None:
    decide(store, 0)
    async with asyncio.timeout(60):
        stream = keda.stub.StreamIsActive(keda.reference(REC))
        seen = [(await stream.read()).result]
        for number, desired in enumerate((3, 0), start=1):
            decide(store, 3, number=10 * number)
            decide(store, desired, number=10 * number + 1)
            await signals.publish(CHANGES, b"workloads/rec")
            seen.append((await stream.read()).result)
        stream.cancel()

    # 3, then 3 again, then 3, then 0: what did not change is not sent.
    assert seen == [False, True, False]


async def test_the_spec_comes_at_once_and_the_stream_stays_open_until_the_server_stops(
    keda: KedaClient, server: RunningServer, store: FakeStore
) -> None:
    store.available = False
    async with asyncio.timeout(60):
        stream = keda.stub.StreamMetricSpec(keda.reference(REC))
        spec = await stream.read()
        waiting = asyncio.ensure_future(stream.read())
        await server.stop(grace_s=30)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await waiting

    assert [s.metricName for s in spec.metricSpecs] == ["forecrest-rec"]
    assert explain(caught.value).reason == "SERVER_STOPPING"


async def test_a_mode_of_keda_is_set_through_the_public_api(client: Client, store: FakeStore) -> None:
    updated = await client.workloads.UpdateWorkload(
        workload_service_pb2.UpdateWorkloadRequest(
            workload=workload_pb2.Workload(
                name="workloads/rec",
                mode=workload_pb2.MODE_KEDA,
                demand_query="sum(rate(requests_total[1m]))",
            )
        )
    )

    assert updated.demand_query == "sum(rate(requests_total[1m]))"
    assert store.tables.workloads["rec"].mode is Mode.KEDA
