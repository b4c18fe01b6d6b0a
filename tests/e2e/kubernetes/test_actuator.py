"""The Kubernetes actuator against a real API server, real controllers and real Tritons."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from controller.actuators.kubernetes import KubeApi, KubeError, KubernetesActuator
from controller.actuators.kubernetes.actuator import FENCE
from controller.adapters.clock import SystemClock
from controller.core.types import Mode, Stage, Workload
from controller.ports import NotFoundError, PoolView, StaleFenceError
from engines.triton_repository import ServedModel
from tests.e2e.cluster.controlplane import ControlPlane
from tests.e2e.cluster.kubelet import Faults, ProcessKubelet
from tests.e2e.kubernetes.conftest import eventually, triton, workload

pytestmark = pytest.mark.asyncio(loop_scope="module")
Deploy = Callable[..., Awaitable[Workload]]
# Each test is a leader of its own, newer than those before it, in whatever order they run.
FENCES = itertools.count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def actuator(plane: ControlPlane) -> AsyncIterator[KubernetesActuator]:
    running = KubernetesActuator(plane.api(), SystemClock())
    yield running
    await running.close()


@pytest.fixture
def deploy(admin: KubeApi, namespace: str, model: ServedModel, kubelet: ProcessKubelet) -> Deploy:
    """Create a Deployment and return the workload that scales it."""
    kubelet.faults = Faults()

    async def create(*, replicas: int = 0, gpus: int = 1, **changes: Any) -> Workload:  # noqa: ANN401
        body = triton("recommender", model, replicas=replicas, gpus=gpus)
        await admin.create(f"/apis/apps/v1/namespaces/{namespace}/deployments", body)
        return workload(namespace, model, **changes)

    return create


async def view(actuator: KubernetesActuator, w: Workload) -> PoolView | None:
    return (await actuator.observe([w])).get(w.name)


async def until(actuator: KubernetesActuator, w: Workload, holds: Callable[[PoolView], bool]) -> PoolView:
    seen: list[PoolView] = []

    async def is_so() -> bool:
        found = await view(actuator, w)
        seen[:] = [] if found is None else [found]
        return found is not None and holds(found)

    try:
        await eventually(is_so)
    except pytest.fail.Exception:
        pytest.fail(f"last seen: {seen}")
    return seen[0]


def warm(count: int) -> Callable[[PoolView], bool]:
    return lambda v: sum(r.warm for r in v.replicas) == count == len(v.replicas)


async def _target(admin: KubeApi, w: Workload) -> dict[str, Any]:
    return await admin.get(f"/apis/apps/v1/namespaces/{w.namespace}/deployments/recommender")


async def test_ordered_pods_become_verified_replicas_and_leave_again(
    actuator: KubernetesActuator, deploy: Deploy
) -> None:
    fence = 10 * next(FENCES)
    w = await deploy()
    await until(actuator, w, lambda v: v.desired_replicas == 0)
    await actuator.claim([w], fence=fence)
    await actuator.scale(w, 2, fence=fence)
    found = await until(actuator, w, warm(2))

    assert found.desired_replicas == 2
    assert {r.profile for r in found.replicas} == {w.profile}
    for replica in found.replicas:
        assert replica.stage_s.keys() == {"schedule", "image", "load", "warmup"}
        assert replica.metrics_url is not None
        assert replica.metrics_url.endswith(":8002/metrics")

    await actuator.scale(w, 0, fence=fence)
    await until(actuator, w, lambda v: not v.replicas)


async def test_an_order_of_a_replaced_leader_is_refused_by_what_is_written_on_the_target(
    plane: ControlPlane, admin: KubeApi, actuator: KubernetesActuator, deploy: Deploy
) -> None:
    w = await deploy()
    await until(actuator, w, lambda v: v.desired_replicas == 0)
    older, newer = 10 * next(FENCES), 10 * next(FENCES)
    old, late = (KubernetesActuator(plane.api(), SystemClock()) for _ in range(2))
    try:
        await old.claim([w], fence=older)
        await actuator.claim([w], fence=newer)
        with pytest.raises(StaleFenceError):
            await old.scale(w, 3, fence=older)
        with pytest.raises(StaleFenceError):
            await old.claim([replace(w, priority=1)], fence=older - 1)
        # One that knows nothing yet finds the newer fence on the target itself.
        await late.claim([], fence=older)
        with pytest.raises(StaleFenceError):
            await late.claim([w], fence=older)
    finally:
        await old.close()
        await late.close()
    found = await _target(admin, w)

    assert found["spec"]["replicas"] == 0
    assert found["metadata"]["annotations"][FENCE] == str(newer)


async def test_pods_without_a_gpu_are_a_shortfall_in_words(
    actuator: KubernetesActuator, deploy: Deploy
) -> None:
    w = await deploy(replicas=1, gpus=9)
    found = await until(actuator, w, lambda v: v.shortfall is not None)

    assert found.shortfall is not None
    assert "find no node" in found.shortfall
    assert "Insufficient nvidia.com/gpu" in found.shortfall
    assert [r.stage for r in found.replicas] == [Stage.ORDERED]


async def test_pods_refused_by_a_quota_are_a_shortfall_in_words(
    admin: KubeApi, actuator: KubernetesActuator, deploy: Deploy, namespace: str
) -> None:
    quota = {"metadata": {"name": "gpus"}, "spec": {"hard": {"requests.nvidia.com/gpu": "1"}}}
    await admin.create(f"/api/v1/namespaces/{namespace}/resourcequotas", quota)

    async def is_in_force() -> bool:
        found = await admin.get(f"/api/v1/namespaces/{namespace}/resourcequotas/gpus")
        return "hard" in found.get("status", {})

    await eventually(is_in_force)
    w = await deploy(replicas=2)
    found = await until(actuator, w, lambda v: v.shortfall is not None)

    assert found.shortfall is not None
    assert found.shortfall.startswith("1 pods of Deployment")
    assert "exceeded quota" in found.shortfall


async def test_a_wrong_engine_is_never_warm(actuator: KubernetesActuator, deploy: Deploy) -> None:
    w = await deploy(replicas=1, engine_digest=f"sha256:{'0' * 64}")
    found = await until(actuator, w, lambda v: any(r.stage is Stage.FAILED for r in v.replicas))

    assert [(r.failure or "").partition(":")[0] for r in found.replicas] == ["WRONG_ENGINE"]


async def test_an_engine_on_a_node_that_no_profile_is_for_says_so(
    admin: KubeApi, actuator: KubernetesActuator, kubelet: ProcessKubelet, namespace: str, model: ServedModel
) -> None:
    kubelet.faults = Faults()
    await kubelet.add_node("gpu-old", gpus=1, product="Tesla-T4", capability="7.5")
    body = triton("recommender", model, replicas=1)
    body["spec"]["template"]["spec"]["nodeSelector"] = {"nvidia.com/gpu.product": "Tesla-T4"}
    await admin.create(f"/apis/apps/v1/namespaces/{namespace}/deployments", body)
    w = workload(namespace, model, engine_digest=f"sha256:{'0' * 64}")
    found = await until(actuator, w, lambda v: any(r.stage is Stage.FAILED for r in v.replicas))
    # Other tests count on what room there is.
    kubelet.nodes.remove("gpu-old")
    await admin.delete("/api/v1/nodes/gpu-old")
    (replica,) = found.replicas

    assert replica.failure is not None
    assert replica.failure.startswith("WRONG_ENGINE")
    assert "gpu-old has Tesla-T4 (compute capability 7.5), and the profiles are for A10" in replica.failure
    assert actuator.problems[f"{w.name}/nodes"].startswith("node gpu-old has Tesla-T4")


@pytest.mark.parametrize(
    ("faults", "said"),
    [(Faults(crash_looping={"recommender"}), "CrashLoopBackOff"), (Faults(oom={"recommender"}), "OOMKilled")],
)
async def test_a_pod_that_cannot_run_is_failed_and_says_why(
    faults: Faults, said: str, actuator: KubernetesActuator, deploy: Deploy, kubelet: ProcessKubelet
) -> None:
    kubelet.faults = faults
    w = await deploy(replicas=1)
    found = await until(actuator, w, lambda v: any(r.stage is Stage.FAILED for r in v.replicas))

    assert found.replicas[0].failure is not None
    assert said in found.replicas[0].failure


async def test_a_crashed_server_is_verified_anew(
    actuator: KubernetesActuator, deploy: Deploy, kubelet: ProcessKubelet
) -> None:
    w = await deploy(replicas=1)
    (before,) = (await until(actuator, w, warm(1))).replicas
    kubelet.crash(before.id)
    await until(actuator, w, lambda v: not any(r.warm for r in v.replicas))
    (after,) = (await until(actuator, w, warm(1))).replicas

    assert after.id == before.id
    assert after.stage_at > before.stage_at


async def test_a_cold_replica_leaves_before_a_warm_one(
    actuator: KubernetesActuator, deploy: Deploy, kubelet: ProcessKubelet
) -> None:
    fence = 10 * next(FENCES)
    w = await deploy(replicas=1)
    (served,) = (await until(actuator, w, warm(1))).replicas
    kubelet.faults = Faults(hanging={"recommender"})
    await actuator.scale(w, 2, fence=fence)
    await until(actuator, w, lambda v: len(v.replicas) == 2 and all(r.endpoint for r in v.replicas))
    await actuator.scale(w, 1, fence=fence)
    found = await until(actuator, w, lambda v: len(v.replicas) == 1)

    assert [r.id for r in found.replicas] == [served.id]


async def test_a_replaced_pod_is_evicted_unless_a_budget_keeps_it(
    admin: KubeApi, actuator: KubernetesActuator, deploy: Deploy, namespace: str
) -> None:
    fence = 10 * next(FENCES)
    w = await deploy(replicas=1)
    (first,) = (await until(actuator, w, warm(1))).replicas
    with pytest.raises(NotFoundError, match="no replica nobody"):
        await actuator.replace(w, "nobody", fence=fence)
    budget = {
        "metadata": {"name": "keep"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "recommender"}}},
    }
    path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    await admin.create(path, budget)

    async def is_counted() -> bool:
        return bool((await admin.get(f"{path}/keep")).get("status", {}).get("currentHealthy") == 1)

    await eventually(is_counted)
    with pytest.raises(KubeError, match="PodDisruptionBudget keeps this pod"):
        await actuator.replace(w, first.id, fence=fence)
    await admin.delete(f"{path}/keep")
    await actuator.replace(w, first.id, fence=fence)
    found = await until(actuator, w, lambda v: warm(1)(v) and v.replicas[0].id != first.id)

    assert len(found.replicas) == 1


def _hpa(namespace: str, low: int, high: int) -> tuple[str, dict[str, Any]]:
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "recommender"}
    body = {
        "metadata": {"name": "recommender"},
        "spec": {"scaleTargetRef": reference, "minReplicas": low, "maxReplicas": high},
    }
    return f"/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers", body


async def test_mode_floor_raises_what_the_hpa_keeps_and_gives_it_back(
    admin: KubeApi, actuator: KubernetesActuator, deploy: Deploy, namespace: str
) -> None:
    fence = 10 * next(FENCES)
    w = await deploy(replicas=1, mode=Mode.FLOOR)
    path, body = _hpa(namespace, 1, 2)
    await admin.create(path, body)
    await until(actuator, w, lambda v: v.desired_replicas == 1)
    await actuator.claim([w], fence=fence)
    await actuator.scale(w, 3, fence=fence)
    raised = await admin.get(f"{path}/recommender")
    found = await until(actuator, w, lambda v: v.desired_replicas == 3 and warm(3)(v))

    assert (raised["spec"]["minReplicas"], raised["spec"]["maxReplicas"]) == (3, 3)
    assert found.competing_owner == f"HorizontalPodAutoscaler {namespace}/recommender"

    # Another controller, which knows nothing of the first, finds what to restore on the object itself.
    await actuator.claim([replace(w, mode=Mode.RECOMMEND)], fence=fence + 1)
    restored = await admin.get(f"{path}/recommender")

    assert (restored["spec"]["minReplicas"], restored["spec"]["maxReplicas"]) == (1, 2)
    assert not {k for k in restored["metadata"].get("annotations", {}) if k != FENCE}


async def test_an_hpa_beside_mode_scale_is_named(
    admin: KubeApi, actuator: KubernetesActuator, deploy: Deploy, namespace: str
) -> None:
    w = await deploy(replicas=0)
    path, body = _hpa(namespace, 1, 3)
    await admin.create(path, body)
    found = await until(actuator, w, lambda v: v.competing_owner is not None)

    assert found.competing_owner == f"HorizontalPodAutoscaler {namespace}/recommender"


async def test_while_the_api_server_is_away_orders_fail_and_afterwards_all_is_seen_again(
    plane: ControlPlane, actuator: KubernetesActuator, deploy: Deploy
) -> None:
    fence = 10 * next(FENCES)
    w = await deploy(replicas=1)
    await until(actuator, w, warm(1))
    await plane.kill("kube-apiserver")
    with pytest.raises(Exception, match="does not answer"):
        await actuator.scale(w, 2, fence=fence)
    await plane.start_api_server()
    await actuator.scale(w, 2, fence=fence)
    found = await until(actuator, w, warm(2))

    assert found.desired_replicas == 2


async def test_a_lost_node_takes_its_replicas_out_of_the_count(
    actuator: KubernetesActuator, deploy: Deploy, kubelet: ProcessKubelet
) -> None:
    await kubelet.add_node("gpu-lost", gpus=1, product="Tesla-T4")
    w = await deploy(replicas=9)  # one more than the other nodes have room for
    await until(actuator, w, warm(9))
    kubelet.lose_node("gpu-lost")
    found = await until(
        actuator, w, lambda v: sum(r.warm for r in v.replicas) == 8 and v.shortfall is not None
    )

    assert found.shortfall is not None
    assert "find no node" in found.shortfall
