"""Beside KEDA: its ScaledObject's minimum raised and given back, its HPA left alone, and its questions answered.

KEDA's operator does not run here. What it would do with our answers, scale the target to the metric's ceiling, the test
does in its place.
"""

import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
import yaml
from forecrest.keda import externalscaler_pb2, externalscaler_pb2_grpc
from forecrest.v1 import control_service_pb2, workload_pb2, workload_service_pb2

from controller.actuators.kubernetes import KubeApi, KubeError, KubernetesActuator
from controller.actuators.kubernetes.actuator import FENCE
from controller.adapters.clock import SystemClock
from controller.bootstrap import open_runtime
from controller.client import Client
from controller.core.types import Mode
from controller.settings import Settings
from engines.triton_repository import ServedModel
from tests.e2e.cluster.controlplane import ControlPlane
from tests.e2e.cluster.kubelet import Faults, ProcessKubelet
from tests.e2e.kubernetes.conftest import SCALED_OBJECT, eventually, install, triton, workload

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEPLOY = Path(__file__).parents[3] / "deploy"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kinds(admin: KubeApi) -> None:
    await install(admin, SCALED_OBJECT)


def scaled_object() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "keda/scaledobject.yaml").read_text())
    return found


@pytest_asyncio.fixture(loop_scope="module")
async def actuator(plane: ControlPlane, kinds: None) -> AsyncIterator[KubernetesActuator]:
    running = KubernetesActuator(plane.api(), SystemClock())
    yield running
    await running.close()


async def test_the_minimum_of_a_scaled_object_is_raised_and_given_back(
    admin: KubeApi,
    actuator: KubernetesActuator,
    kubelet: ProcessKubelet,
    namespace: str,
    model: ServedModel,
) -> None:
    kubelet.faults = Faults(hanging={"recommender"})  # no replica needs to serve for this
    await admin.create(
        f"/apis/apps/v1/namespaces/{namespace}/deployments", triton("recommender", model, replicas=1)
    )
    path = f"/apis/keda.sh/v1alpha1/namespaces/{namespace}/scaledobjects"
    made = await admin.create(path, scaled_object())
    # As KEDA makes one for each ScaledObject, and puts back what others change in it.
    owner = {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "name": "recommender",
        "uid": made["metadata"]["uid"],
    }
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "recommender"}
    hpa = {
        "metadata": {"name": "keda-hpa-recommender", "ownerReferences": [owner]},
        "spec": {"scaleTargetRef": reference, "minReplicas": 1, "maxReplicas": 24},
    }
    hpas = f"/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers"
    await admin.create(hpas, hpa)
    w = workload(namespace, model, mode=Mode.FLOOR)

    async def is_seen() -> bool:
        view = (await actuator.observe([w])).get(w.name)
        return view is not None and "of ScaledObject recommender" in (view.competing_owner or "")

    await eventually(is_seen)
    await actuator.claim([w], fence=1)
    await actuator.scale(w, 30, fence=1)
    raised = (await admin.get(f"{path}/recommender"))["spec"]
    untouched = (await admin.get(f"{hpas}/keda-hpa-recommender"))["spec"]

    assert (raised["minReplicaCount"], raised["maxReplicaCount"]) == (30, 30)
    assert (untouched["minReplicas"], untouched["maxReplicas"]) == (1, 24)
    named = workload(namespace, model, mode=Mode.FLOOR, target={"autoscaler": "hpa/keda-hpa-recommender"})
    with pytest.raises(
        KubeError, match="belongs to KEDA, which would undo it; name scaledobject/recommender"
    ):
        await actuator.scale(named, 3, fence=1)

    await actuator.claim([], fence=2)  # the workload is gone
    restored = await admin.get(f"{path}/recommender")

    assert restored["spec"] == made["spec"]
    assert not {k for k in restored["metadata"].get("annotations", {}) if k != FENCE}


async def test_keda_gets_the_decision_and_the_target_is_left_to_it(
    admin: KubeApi,
    kubelet: ProcessKubelet,
    kinds: None,
    namespace: str,
    model: ServedModel,
    settings: Settings,
) -> None:
    kubelet.faults = Faults()
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    before = await admin.create(path, triton("recommender", model, replicas=1))
    await admin.create(f"/apis/keda.sh/v1alpha1/namespaces/{namespace}/scaledobjects", scaled_object())
    w = workload_pb2.Workload(
        model_name=model.name,
        engine_digest=model.digest,
        namespace=namespace,
        mode=workload_pb2.MODE_KEDA,
        min_replicas=2,
        target={"kind": "Deployment", "name": "recommender"},
    )
    w.profiles.add(engine="two-tower", gpu_type="A10", qps_max=80.0)
    w.slo.latency_ms_p99 = 30_000
    async with (
        open_runtime(settings) as runtime,
        Client(runtime.api.target) as client,
        grpc.aio.insecure_channel(runtime.api.target) as channel,
    ):
        await client.workloads.CreateWorkload(
            workload_service_pb2.CreateWorkloadRequest(workload=w, workload_id="recommender")
        )
        metrics = await answered(channel)
        left = await admin.get(f"{path}/recommender")

        assert math.ceil(metrics) == 2
        assert left["spec"] == before["spec"]
        assert FENCE not in left["metadata"].get("annotations", {})

        await admin.patch(f"{path}/recommender/scale", {"spec": {"replicas": math.ceil(metrics)}})

        async def are_warm() -> bool:
            request = control_service_pb2.ListDecisionsRequest(workload="workloads/recommender", page_size=1)
            decisions = (await client.control.ListDecisions(request)).decisions
            return bool(decisions) and decisions[0].warm_replicas == 2

        await eventually(are_warm)
        assert await answered(channel) == 2


async def answered(channel: grpc.aio.Channel) -> float:
    """What KEDA is told for the trigger of the example, as soon as there is a decision to tell."""
    (trigger,) = scaled_object()["spec"]["triggers"]
    reference = externalscaler_pb2.ScaledObjectRef(
        name="recommender", namespace="shop", scalerMetadata=trigger["metadata"]
    )
    stub = externalscaler_pb2_grpc.ExternalScalerStub(channel)
    found: list[float] = []

    async def is_answered() -> bool:
        spec = await stub.GetMetricSpec(reference)
        name = spec.metricSpecs[0].metricName
        request = externalscaler_pb2.GetMetricsRequest(scaledObjectRef=reference, metricName=name)
        try:
            (value,) = (await stub.GetMetrics(request)).metricValues
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False
        found[:] = [value.metricValueFloat]
        return True

    await eventually(is_answered)
    return found[0]
