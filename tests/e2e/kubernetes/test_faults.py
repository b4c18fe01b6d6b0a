"""What goes wrong on a cluster, in front of a whole controller: the right outcome, and a condition that says why."""

import asyncio
import json
import os
import ssl
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from forecrest.v1 import control_pb2, control_service_pb2, workload_pb2, workload_service_pb2

from controller.actuators.kubernetes import KubeApi, KubernetesActuator
from controller.actuators.kubernetes.actuator import FENCE
from controller.adapters.clock import SystemClock
from controller.client import Client
from controller.ports import UnavailableError
from controller.settings import Settings
from engines.triton_repository import ServedModel
from tests.e2e.cluster.controlplane import ControlPlane
from tests.e2e.cluster.kubelet import Faults, ProcessKubelet
from tests.e2e.cluster.wire import Relay
from tests.e2e.kubernetes.conftest import controller, eventually, triton, workload

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[3]
FLOW = "/apis/flowcontrol.apiserver.k8s.io/v1"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Of a controller whose successor need not wait long."""
    return settings.model_copy(update={"lease_duration_s": 2.0})


def kubeconfig_by(relay: Relay, plane: ControlPlane, folder: Path) -> Path:
    """The administrator's way to the API server, by the relay."""
    config = json.loads(plane.kubeconfig().read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{relay.port}"
    path = folder / "relay.kubeconfig"
    path.write_text(json.dumps(config))
    return path


def deployments(namespace: str) -> str:
    return f"/apis/apps/v1/namespaces/{namespace}/deployments"


async def create(
    client: Client, namespace: str, model: ServedModel, name: str, *, minimum: int, digest: str = ""
) -> None:
    w = workload_pb2.Workload(
        model_name=model.name,
        engine_digest=digest or model.digest,
        namespace=namespace,
        mode=workload_pb2.MODE_SCALE,
        min_replicas=minimum,
        max_replicas=5,
        target={"kind": "Deployment", "name": name},
    )
    w.profiles.add(engine="two-tower", gpu_type="A10", qps_max=80.0)
    w.slo.latency_ms_p99 = 30_000
    await client.workloads.CreateWorkload(
        workload_service_pb2.CreateWorkloadRequest(workload=w, workload_id=name)
    )


async def decided(
    client: Client, name: str, holds: Callable[[control_pb2.Decision], bool]
) -> control_pb2.Decision:
    """The newest decision, as soon as it is as it should be."""
    seen: list[control_pb2.Decision] = []

    async def is_so() -> bool:
        request = control_service_pb2.ListDecisionsRequest(workload=f"workloads/{name}", page_size=1)
        seen[:] = (await client.control.ListDecisions(request)).decisions
        return bool(seen) and holds(seen[0])

    try:
        await eventually(is_so)
    except pytest.fail.Exception:
        pytest.fail(f"{name}: last decided: {seen}")
    return seen[0]


def says(reason: str) -> Callable[[control_pb2.Decision], bool]:
    return lambda d: any(c.reason == reason for c in d.conditions)


def message(decision: control_pb2.Decision, reason: str) -> str:
    return next(c.message for c in decision.conditions if c.reason == reason)


async def target_of(admin: KubeApi, namespace: str, name: str) -> dict[str, Any]:
    return await admin.get(f"{deployments(namespace)}/{name}")


async def test_an_hpa_that_fights_a_quota_that_is_spent_and_a_wrong_engine_are_each_said(
    admin: KubeApi, kubelet: ProcessKubelet, settings: Settings, namespace: str, model: ServedModel
) -> None:
    # Only the wrong engine needs a server that answers.
    kubelet.faults = Faults(hanging={"fought", "poor"})
    for name, replicas in (("fought", 3), ("wrong", 1)):
        await admin.create(deployments(namespace), triton(name, model, replicas=replicas))
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "fought"}
    spec = {"scaleTargetRef": reference, "minReplicas": 1, "maxReplicas": 2}
    hpas = f"/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers"
    await admin.create(hpas, {"metadata": {"name": "fought"}, "spec": spec})

    async def is_cut_to_its_maximum() -> bool:
        return bool((await target_of(admin, namespace, "fought"))["spec"]["replicas"] == 2)

    await eventually(is_cut_to_its_maximum)
    async with controller(settings) as client:
        await create(client, namespace, model, "fought", minimum=3)
        await create(client, namespace, model, "wrong", minimum=1, digest=f"sha256:{'0' * 64}")
        fought = await decided(client, "fought", says("COMPETING_OWNER"))

        assert fought.desired_replicas == 3
        assert f"HorizontalPodAutoscaler {namespace}/fought also scales this target" in message(
            fought, "COMPETING_OWNER"
        )

        await eventually(lambda: alarmed(client, "wrong", control_pb2.ALARM_KIND_WRONG_ENGINE))
        hard = {"requests.nvidia.com/gpu": "4"}
        quotas = f"/api/v1/namespaces/{namespace}/resourcequotas"
        await admin.create(quotas, {"metadata": {"name": "gpus"}, "spec": {"hard": hard}})

        async def is_in_force() -> bool:
            return "hard" in (await admin.get(f"{quotas}/gpus")).get("status", {})

        await eventually(is_in_force)
        await admin.create(deployments(namespace), triton("poor", model, replicas=1))
        await create(client, namespace, model, "poor", minimum=3)
        poor = await decided(client, "poor", says("SHORTFALL"))
        said = await warnings_on(admin, namespace)

        assert "were refused" in message(poor, "SHORTFALL")
        assert "exceeded quota" in message(poor, "SHORTFALL")
        assert (await target_of(admin, namespace, "poor"))["spec"]["replicas"] == 3  # the order stands
        # Nobody fights back.
        assert (await target_of(admin, namespace, "fought"))["spec"]["replicas"] == 2
        assert said >= {("fought", "CompetingOwner"), ("poor", "Shortfall"), ("wrong", "WrongEngine")}


async def alarmed(client: Client, name: str, kind: control_pb2.AlarmKind.ValueType) -> bool:
    request = control_service_pb2.GetStatusRequest(name=f"workloads/{name}/status")
    return any(a.kind == kind for a in (await client.control.GetStatus(request)).alarms)


async def warnings_on(admin: KubeApi, namespace: str) -> set[tuple[str, str]]:
    """Warnings of ours, by target and reason, as soon as all three targets have one."""
    found: set[tuple[str, str]] = set()

    async def are_said() -> bool:
        for event in (await admin.get(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"))["items"]:
            if event.get("reportingController") == "forecrest.dev/controller" and event["type"] == "Warning":
                found.add((event["regarding"]["name"], event["reason"]))
        return len({name for name, _ in found}) == 3

    await eventually(are_said)
    return found


async def test_while_the_watches_are_cut_nothing_is_known_and_nothing_is_done(
    plane: ControlPlane,
    admin: KubeApi,
    kubelet: ProcessKubelet,
    settings: Settings,
    namespace: str,
    model: ServedModel,
    tmp_path: Path,
) -> None:
    kubelet.faults = Faults()
    await admin.create(deployments(namespace), triton("recommender", model, replicas=2))
    async with Relay(plane.port) as relay:
        by_relay = settings.model_copy(
            update={"kubernetes_kubeconfig": kubeconfig_by(relay, plane, tmp_path)}
        )
        async with controller(by_relay) as client:
            await create(client, namespace, model, "recommender", minimum=0)
            await decided(client, "recommender", lambda d: d.warm_replicas == 2)
            before = await target_of(admin, namespace, "recommender")
            relay.cut()
            unknown = await decided(client, "recommender", says("REPLICAS_UNKNOWN"))
            # It changes while nobody looks: what was missed must be found out afterwards.
            await admin.patch(
                f"{deployments(namespace)}/recommender", {"metadata": {"labels": {"team": "search"}}}
            )
            (pod, *_) = (await admin.get(f"/api/v1/namespaces/{namespace}/pods"))["items"]
            await admin.delete(f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}")
            relay.heal()
            await decided(
                client, "recommender", lambda d: d.warm_replicas == 2 and not says("REPLICAS_UNKNOWN")(d)
            )
            after = await target_of(admin, namespace, "recommender")

    assert unknown.desired_replicas == 2
    assert before["spec"] == after["spec"]


async def test_in_a_storm_of_429_orders_fail_in_words_while_replicas_stay_known(
    plane: ControlPlane, admin: KubeApi, kubelet: ProcessKubelet, namespace: str, model: ServedModel
) -> None:
    kubelet.faults = Faults()
    await admin.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "scaler"}})
    subject = {"kind": "ServiceAccount", "name": "scaler", "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    binding = {"metadata": {"name": namespace}, "roleRef": role, "subjects": [subject]}
    await admin.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    asked = {"spec": {"audiences": ["https://kubernetes.default.svc"], "expirationSeconds": 3600}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/scaler/token"
    token = (await admin.create(path, asked))["status"]["token"]
    await admin.create(deployments(namespace), triton("recommender", model, replicas=1))
    w = workload(namespace, model)
    actuator = KubernetesActuator(plane.api("scaler", token), SystemClock(), namespaces=[namespace])
    try:

        async def is_warm() -> bool:
            view = (await actuator.observe([w])).get(w.name)
            return view is not None and any(r.warm for r in view.replicas)

        await eventually(is_warm)
        await actuator.claim([w], fence=1)
        async with storm(plane, admin, namespace, token):
            probe = plane.api("scaler", token)

            async def has_begun() -> bool:
                try:
                    await probe.get(f"{deployments(namespace)}/recommender")
                except UnavailableError:
                    return True
                return False

            await eventually(has_begun)
            with pytest.raises(UnavailableError, match=r"429, 5 tries"):
                await actuator.scale(w, 2, fence=1)
            # Watches that stand are no new calls: what is known stays known.
            assert await is_warm()
            assert probe.calls["GET", 429] >= 5
            await probe.close()

        async def is_accepted() -> bool:
            try:
                await actuator.scale(w, 2, fence=1)
            except UnavailableError:
                return False
            return True

        await eventually(is_accepted)
    finally:
        await actuator.close()

    assert (await target_of(admin, namespace, "recommender"))["spec"]["replicas"] == 2


@asynccontextmanager
async def storm(plane: ControlPlane, admin: KubeApi, namespace: str, token: str) -> AsyncGenerator[None]:
    """Let the API server's own priority and fairness reject every call of the service account.

    A level without a share still serves one call at a time: one whose body never comes takes that place.
    """
    level = {
        "metadata": {"name": namespace},
        "spec": {
            "type": "Limited",
            "limited": {
                "nominalConcurrencyShares": 0,
                "borrowingLimitPercent": 0,
                "limitResponse": {"type": "Reject"},
            },
        },
    }
    rule = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": True}
    account = {"namespace": namespace, "name": "scaler"}
    schema = {
        "metadata": {"name": namespace},
        "spec": {
            "priorityLevelConfiguration": {"name": namespace},
            "matchingPrecedence": 2,
            "rules": [
                {
                    "subjects": [{"kind": "ServiceAccount", "serviceAccount": account}],
                    "resourceRules": [rule],
                }
            ],
        },
    }
    await admin.create(f"{FLOW}/prioritylevelconfigurations", level)
    await admin.create(f"{FLOW}/flowschemas", schema)
    tls = ssl.create_default_context(cafile=str(plane.certificate))
    _, stuck = await asyncio.open_connection("127.0.0.1", plane.port, ssl=tls)
    head = (
        f"POST /api/v1/namespaces/{namespace}/configmaps HTTP/1.1",
        f"Host: 127.0.0.1:{plane.port}",
        f"Authorization: Bearer {token}",
        "Content-Type: application/json",
        "Content-Length: 1000",
    )
    try:

        async def is_in_force() -> bool:
            found = await admin.get(f"{FLOW}/flowschemas/{namespace}")
            return any(c["status"] == "False" for c in found.get("status", {}).get("conditions", ()))

        await eventually(is_in_force)
        stuck.write("\r\n".join((*head, "", "")).encode())
        await stuck.drain()
        yield
    finally:
        stuck.close()
        await admin.delete(f"{FLOW}/flowschemas/{namespace}")
        await admin.delete(f"{FLOW}/prioritylevelconfigurations/{namespace}")


async def test_a_leader_that_is_killed_in_the_middle_of_a_scaling_leaves_one_order_of_the_right_size(
    plane: ControlPlane,
    admin: KubeApi,
    kubelet: ProcessKubelet,
    settings: Settings,
    namespace: str,
    model: ServedModel,
    tmp_path: Path,
) -> None:
    kubelet.faults = Faults(image_pull_s=2.0)  # nothing is warm yet when the leader dies
    await admin.create(deployments(namespace), triton("recommender", model, replicas=1))
    victim = await serve(settings, plane, tmp_path / "victim")
    try:
        address = json.loads((tmp_path / "victim/runtime.json").read_text())["address"]
        async with Client(address) as client:
            await create(client, namespace, model, "recommender", minimum=3)

            async def is_ordered() -> bool:
                return bool((await target_of(admin, namespace, "recommender"))["spec"]["replicas"] == 3)

            await eventually(is_ordered)
    finally:
        victim.kill()
        await victim.wait()
    killed = await target_of(admin, namespace, "recommender")
    async with controller(settings) as client:
        await decided(client, "recommender", lambda d: d.warm_replicas == 3)
        request = control_service_pb2.ListDecisionsRequest(workload="workloads/recommender", page_size=100)
        all_decided = (await client.control.ListDecisions(request)).decisions
    after = await target_of(admin, namespace, "recommender")

    assert int(after["metadata"]["annotations"][FENCE]) > int(killed["metadata"]["annotations"][FENCE])
    assert max(d.desired_replicas for d in all_decided) == 3
    assert after["spec"] == killed["spec"]


async def serve(settings: Settings, plane: ControlPlane, folder: Path) -> asyncio.subprocess.Process:
    """A controller as a process of its own, as `forecrest serve` runs it; returns once it serves."""
    assert settings.database_url is not None
    assert settings.redis_url is not None
    await asyncio.to_thread(folder.mkdir)
    environment = os.environ | {
        "FORECREST_DATA_DIR": str(folder),
        "FORECREST_DATABASE_URL": settings.database_url.get_secret_value(),
        "FORECREST_REDIS_URL": settings.redis_url.get_secret_value(),
        "FORECREST_BIND": "127.0.0.1:0",
        "FORECREST_HTTP_BIND": "off",
        "FORECREST_ACTUATOR": "kubernetes",
        "FORECREST_KUBERNETES_KUBECONFIG": str(plane.kubeconfig()),
        "FORECREST_KUBERNETES_NAMESPACES": settings.kubernetes_namespaces,
        "FORECREST_TICK_PERIOD_S": "1",
        "FORECREST_SCRAPE_PERIOD_S": "1",
        "FORECREST_LEASE_DURATION_S": "2",
        "OMP_NUM_THREADS": "1",
    }
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "controller", "serve"),
            cwd=ROOT,
            env=environment,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=log,
        )

    async def is_serving() -> bool:
        assert process.returncode is None, (folder / "log").read_text()
        return (folder / "runtime.json").exists()

    await eventually(is_serving)
    return process
