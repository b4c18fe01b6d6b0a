"""A whole evening on a real control plane: workload, history, event, pods ahead of time, traffic, and scale-down."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta

import grpc
import numpy as np
import pytest
from forecrest.v1 import (
    control_service_pb2,
    event_pb2,
    event_service_pb2,
    telemetry_service_pb2,
    workload_pb2,
    workload_service_pb2,
)
from google.protobuf.duration_pb2 import Duration
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import triton_to_np_dtype

from controller.actuators.kubernetes import KubeApi
from controller.adapters.clock import SystemClock
from controller.bootstrap import Runtime
from controller.client import Client
from controller.settings import Settings
from engines.triton_repository import ServedModel
from tests.e2e.cluster.kubelet import ProcessKubelet
from tests.e2e.kubernetes.conftest import controller, eventually, triton

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVENING = timedelta(seconds=75)
Open = Callable[[], Awaitable[tuple[Runtime, Client]]]


def described(namespace: str, model: ServedModel, mode: workload_pb2.Mode.ValueType) -> workload_pb2.Workload:
    """The workload as a user writes it; everything that waits is as short as it may be."""
    w = workload_pb2.Workload(
        model_name=model.name,
        engine_digest=model.digest,
        namespace=namespace,
        mode=mode,
        min_replicas=1,
        max_replicas=3,
        target={"kind": "Deployment", "name": "recommender"},
    )
    w.profiles.add(engine="two-tower", gpu_type="A10", qps_max=80.0, batch_size_max=8)
    w.slo.latency_ms_p99 = 30_000
    down = w.policy.behavior.scale_down
    down.stabilization_window.CopyFrom(Duration(seconds=2))
    w.policy.stable_window.CopyFrom(Duration(seconds=10))
    return w


async def register(client: Client, w: workload_pb2.Workload) -> None:
    """Workload, some history, and an event that needs three replicas."""
    await client.workloads.CreateWorkload(
        workload_service_pb2.CreateWorkloadRequest(workload=w, workload_id="recommender")
    )
    now = SystemClock().now()
    sample = telemetry_service_pb2.TrafficSample(workload="workloads/recommender", demand_count=600.0)
    sample.minute_time.FromDatetime(now.replace(second=0, microsecond=0) - timedelta(minutes=10))
    await client.telemetry.RecordTraffic(
        telemetry_service_pb2.RecordTrafficRequest(samples=[sample], source="test")
    )
    event = event_pb2.Event(workloads=["workloads/recommender"], time_zone="UTC", expected_peak_qps=200.0)
    event.start_time.FromDatetime(now + EVENING)
    event.end_time.FromDatetime(now + EVENING + timedelta(seconds=20))
    event.margin.FromSeconds(5)
    event.lead_override.FromSeconds(60)
    await client.events.CreateEvent(event_service_pb2.CreateEventRequest(event=event, event_id="evening"))


async def until_met(client: Client) -> event_pb2.Contract:
    async for update in client.watch_event("events/evening"):
        for prewarm in update.prewarms:
            if prewarm.contract.HasField("met_time"):
                return prewarm.contract
    raise AssertionError("the stream ended")


async def replicas_of(admin: KubeApi, namespace: str) -> int:
    found = await admin.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/recommender/scale")
    return int(found["spec"]["replicas"])


async def infer(address: str, model: ServedModel) -> bool:
    """Whether the model answers at this address."""
    async with InferenceServerClient(address) as triton_client:
        inputs = []
        for tensor in model.inputs:
            value = np.zeros((1, *tensor.dims), triton_to_np_dtype(tensor.datatype))
            inputs.append(InferInput(tensor.name, value.shape, tensor.datatype))
            inputs[-1].set_data_from_numpy(value)
        result = await triton_client.infer(model.name, inputs)
        assert result is not None
        scores = result.as_numpy(model.outputs[0].name)
        return scores is not None and bool(np.isfinite(scores).all())


async def test_pods_are_warm_before_the_event_serve_and_go_afterwards(
    admin: KubeApi, kubelet: ProcessKubelet, settings: Settings, namespace: str, model: ServedModel
) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    await admin.create(path, triton("recommender", model, replicas=1))
    async with controller(settings) as client:
        await register(client, described(namespace, model, workload_pb2.MODE_SCALE))
        met = await until_met(client)
        pods = (await admin.get(f"/api/v1/namespaces/{namespace}/pods"))["items"]

        assert (met.replicas, met.verified_count) == (3, 3)
        assert met.met_time.ToDatetime() <= met.deadline_time.ToDatetime()
        assert await replicas_of(admin, namespace) == 3
        assert all([await infer(f"{kubelet.address(p['metadata']['name'])}:8001", model) for p in pods])

        async def is_small_again() -> bool:
            return await replicas_of(admin, namespace) == 1

        await eventually(is_small_again, wait_s=180)
        assert {"ScaledUp", "ScaledDown"} <= await said_on_target(admin, namespace)


async def said_on_target(admin: KubeApi, namespace: str) -> set[str]:
    """Reasons of the Kubernetes Events on the deployment."""
    found: set[str] = set()

    async def is_said() -> bool:
        items = (await admin.get(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"))["items"]
        ours = [e for e in items if e.get("reportingController") == "forecrest.dev/controller"]
        found.update(e["reason"] for e in ours if e["regarding"]["name"] == "recommender")
        return "ScaledDown" in found

    await eventually(is_said)
    return found


async def test_a_recommended_count_changes_nothing(
    admin: KubeApi, kubelet: ProcessKubelet, settings: Settings, namespace: str, model: ServedModel
) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    before = await admin.create(path, triton("recommender", model, replicas=1))
    async with controller(settings) as client:
        await register(client, described(namespace, model, workload_pb2.MODE_RECOMMEND))
        async for update in client.watch_decisions("workloads/recommender"):
            if update.decision.desired_replicas == 3:
                break
        after = await admin.get(f"{path}/recommender")

    assert after["spec"] == before["spec"]
    assert after["metadata"].get("annotations", {}).keys() <= {"deployment.kubernetes.io/revision"}


async def test_beside_an_hpa_the_floor_is_raised_for_the_event_and_given_back(
    admin: KubeApi, kubelet: ProcessKubelet, settings: Settings, namespace: str, model: ServedModel
) -> None:
    await admin.create(
        f"/apis/apps/v1/namespaces/{namespace}/deployments", triton("recommender", model, replicas=1)
    )
    path = f"/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers"
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "recommender"}
    spec = {"scaleTargetRef": reference, "minReplicas": 1, "maxReplicas": 2}
    await admin.create(path, {"metadata": {"name": "recommender"}, "spec": spec})
    async with controller(settings) as client:
        await register(client, described(namespace, model, workload_pb2.MODE_FLOOR))
        met = await until_met(client)

        assert (met.replicas, met.verified_count) == (3, 3)

        async def is_given_back() -> bool:
            found = (await admin.get(f"{path}/recommender"))["spec"]
            return bool((found["minReplicas"], found["maxReplicas"]) == (1, 2))

        await eventually(is_given_back, wait_s=180)


async def test_a_second_controller_takes_over_a_scaling_that_the_first_left_half_done(
    admin: KubeApi, kubelet: ProcessKubelet, settings: Settings, namespace: str, model: ServedModel
) -> None:
    await admin.create(
        f"/apis/apps/v1/namespaces/{namespace}/deployments", triton("recommender", model, replicas=1)
    )
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(controller(settings))
        await register(client, described(namespace, model, workload_pb2.MODE_SCALE))
        await until_count(client, 3)
    # It has ordered; nothing is warm yet. The next one knows only what PostgreSQL and the cluster say.
    async with controller(settings) as client:
        met = await until_met(client)
        decisions = await client.control.ListDecisions(
            control_service_pb2.ListDecisionsRequest(workload="workloads/recommender", page_size=100)
        )

    assert (met.replicas, met.verified_count) == (3, 3)
    assert max(d.desired_replicas for d in decisions.decisions) == 3


async def until_count(client: Client, count: int) -> None:
    async for update in client.watch_decisions("workloads/recommender"):
        if update.decision.desired_replicas == count:
            return
    raise grpc.RpcError
