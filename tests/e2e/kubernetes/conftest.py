"""One real control plane and one process kubelet per test file; each test gets a namespace of its own."""

import itertools
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from controller.actuators.kubernetes import KubeApi
from controller.adapters.clock import SystemClock
from controller.bootstrap import open_runtime
from controller.client import Client
from controller.core.types import CapacityProfile, Mode, Slo, Workload
from controller.ports import NotFoundError
from controller.settings import Settings
from engines.onnx_examples import write_two_tower
from engines.triton_repository import ServedModel, build_repository
from tests.e2e.cluster.binary import BinaryError, build, cached
from tests.e2e.cluster.controlplane import ControlPlane
from tests.e2e.cluster.kubelet import ProcessKubelet

WAIT_S = 90.0  # far beyond what anything takes here; a test that waits so long has failed
_POLL_S = 0.1
# Pods of different workers must not share addresses: each worker has networks of its own, one per test file.
_networks = itertools.count(1 + 20 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")))
_namespaces = itertools.count(1)


@pytest.fixture(scope="session")
def cluster_binary() -> Path:
    if not cached().exists() and os.environ.get("CI") != "true":
        pytest.skip(
            "no Kubernetes control plane was built (`make cluster`, needs Go): these tests are left out"
        )
    try:
        return build()
    except BinaryError as error:
        pytest.fail(str(error))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plane(
    cluster_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ControlPlane]:
    """A running control plane."""
    running = await ControlPlane.start(cluster_binary, tmp_path_factory.mktemp("cluster"))
    yield running
    await running.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin(plane: ControlPlane) -> AsyncIterator[KubeApi]:
    api = plane.api()
    yield api
    await api.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kubelet(admin: KubeApi, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ProcessKubelet]:
    """Two nodes with four GPUs each."""
    running = await ProcessKubelet.start(admin, tmp_path_factory.mktemp("kubelet"), network=next(_networks))
    await running.add_node("gpu-a", gpus=4)
    await running.add_node("gpu-b", gpus=4)
    yield running
    await running.close()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    """What every pod serves."""
    folder = tmp_path_factory.mktemp("model")
    write_two_tower(folder / "two_tower.onnx", seed=7)
    return build_repository(folder / "repositories", folder / "two_tower.onnx", name="recommender", version=1)


@pytest_asyncio.fixture(loop_scope="module")
async def namespace(admin: KubeApi, kubelet: ProcessKubelet) -> AsyncIterator[str]:
    """A namespace whose pods are gone before the next test."""
    name = f"shop-{next(_namespaces)}"
    await admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    # The namespace itself stays: its orderly end takes longer than most tests.
    await admin.delete(f"/apis/autoscaling/v2/namespaces/{name}/horizontalpodautoscalers")
    for kind in ("deployments", "statefulsets"):
        await admin.delete(f"/apis/apps/v1/namespaces/{name}/{kind}", propagationPolicy="Foreground")

    async def is_gone() -> bool:
        left = (await admin.get(f"/api/v1/namespaces/{name}/pods"))["items"]
        for pod in left:
            if pod["spec"].get("nodeName") in kubelet.lost:  # nobody else will say that it has ended
                path = f"/api/v1/namespaces/{name}/pods/{pod['metadata']['name']}"
                await admin.delete(path, gracePeriodSeconds="0")
        return not left

    await eventually(is_gone)


async def eventually(holds: Callable[[], Awaitable[bool]], wait_s: float = WAIT_S) -> None:
    """Wait until something is so; fail when it never is."""
    clock = SystemClock()
    deadline_s = clock.monotonic() + wait_s
    while not await holds():
        if clock.monotonic() > deadline_s:
            pytest.fail(f"{getattr(holds, '__name__', holds)} was not so within {wait_s:.0f} s")
        await clock.sleep(_POLL_S)


def triton(name: str, model: ServedModel, *, replicas: int = 0, gpus: int = 1) -> dict[str, Any]:
    """A Deployment of Triton pods, as deploy/ has it, with the repository on the node."""
    return {
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "terminationGracePeriodSeconds": 5,
                    "tolerations": [
                        {
                            "key": f"node.kubernetes.io/{kind}",
                            "operator": "Exists",
                            "effect": "NoExecute",
                            "tolerationSeconds": 2,
                        }
                        for kind in ("not-ready", "unreachable")
                    ],
                    "containers": [
                        {
                            "name": "triton",
                            "image": "triton",
                            "args": ["--model-repository=/models"],
                            "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
                            "readinessProbe": {"httpGet": {"path": "/v2/health/ready", "port": 8000}},
                            "volumeMounts": [{"name": "models", "mountPath": "/models"}],
                        }
                    ],
                    "volumes": [{"name": "models", "hostPath": {"path": str(model.repository)}}],
                },
            },
        },
    }


def workload(namespace: str, model: ServedModel, *, name: str = "recommender", **changes: Any) -> Workload:  # noqa: ANN401 - Workload's own fields
    """The workload whose target is the Deployment of the same name."""
    made = Workload(
        name,
        model.name,
        (CapacityProfile("two-tower", "A10", 100.0),),
        engine_digest=model.digest,
        # Many Tritons start at once on few cores: the SLO of a loaded test machine is no subject here.
        slo=Slo(latency_ms_p99=30_000.0),
        namespace=namespace,
        mode=Mode.SCALE,
    )
    return replace(made, **changes)


# KEDA's ScaledObject as far as it concerns us; the real definition comes with KEDA, which is not run here.
SCALED_OBJECT: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "scaledobjects.keda.sh"},
    "spec": {
        "group": "keda.sh",
        "scope": "Namespaced",
        "names": {"kind": "ScaledObject", "plural": "scaledobjects", "singular": "scaledobject"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["scaleTargetRef", "triggers"],
                                "x-kubernetes-preserve-unknown-fields": True,
                                "properties": {
                                    "minReplicaCount": {"type": "integer"},
                                    "maxReplicaCount": {"type": "integer"},
                                },
                            }
                        },
                    }
                },
            }
        ],
    },
}


@pytest.fixture
def settings(
    plane: ControlPlane, tmp_path: Path, database_url: str, redis_url: str, namespace: str
) -> Settings:
    """Of a controller that acts on the test's namespace, with short periods."""
    return Settings(
        data_dir=tmp_path / "data",
        database_url=database_url,  # type: ignore[arg-type]  # pydantic makes secrets of them
        redis_url=redis_url,  # type: ignore[arg-type]
        bind="127.0.0.1:0",
        http_bind="off",
        actuator="kubernetes",
        kubernetes_kubeconfig=plane.kubeconfig(),
        kubernetes_namespaces=namespace,
        tick_period_s=1,
        scrape_period_s=1,
    )


@asynccontextmanager
async def controller(settings: Settings) -> AsyncGenerator[Client]:
    """A client of a controller that runs for the time of the block."""
    async with open_runtime(settings) as runtime, Client(runtime.api.target) as client:
        yield client


async def install(admin: KubeApi, crd: dict[str, Any]) -> None:
    """Install a definition, and wait until its objects can be listed."""
    await admin.create(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd, fieldValidation="Strict"
    )
    spec = crd["spec"]
    path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"

    async def is_served() -> bool:
        try:
            await admin.get(path)
        except NotFoundError:
            return False
        return True

    await eventually(is_served)
