"""What deploy/ installs: the real API server accepts every object, and the service account may do just what is done."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from controller.actuators.kubernetes import KubeApi, KubernetesActuator
from controller.actuators.kubernetes.events import EventRecorder
from controller.adapters.clock import SystemClock
from controller.adapters.fakes.cache import FakeSignalCache
from controller.adapters.fakes.store import FakeStore
from controller.api.calls import ApiDependencies
from controller.core.types import Alarm, AlarmKind, FleetState, Mode, Workload, WorkloadState
from controller.crd.status import Facts
from controller.crd.sync import Synchroniser
from controller.ports import ConflictError
from engines.triton_repository import ServedModel
from tests.e2e.cluster.controlplane import ControlPlane
from tests.e2e.cluster.kubelet import ProcessKubelet
from tests.e2e.kubernetes.conftest import SCALED_OBJECT, eventually, install, triton, workload

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEPLOY = Path(__file__).parents[3] / "deploy"
_PLURALS = {
    "NetworkPolicy": "networkpolicies",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "HorizontalPodAutoscaler": "horizontalpodautoscalers",
}
_CLUSTER_WIDE = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "Namespace"}


def rendered(binary: Path, *arguments: str) -> list[dict[str, Any]]:
    """The objects that a tool prints."""
    run = subprocess.run([binary, *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stderr
    return [found for found in yaml.safe_load_all(run.stdout) if found]


def path_of(item: Mapping[str, Any]) -> str:
    group = item["apiVersion"]
    root = f"/api/{group}" if group == "v1" else f"/apis/{group}"
    plural = _PLURALS.get(item["kind"], item["kind"].lower() + "s")
    if item["kind"] in _CLUSTER_WIDE:
        return f"{root}/{plural}"
    return f"{root}/namespaces/{item['metadata'].get('namespace', 'default')}/{plural}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def namespaces(admin: KubeApi) -> None:
    for name in ("forecrest", "shop"):
        await admin.create("/api/v1/namespaces", {"metadata": {"name": name}})


def _values(folder: Path, **values: object) -> str:
    path = folder / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    return str(path)


async def accepts(admin: KubeApi, items: list[dict[str, Any]]) -> None:
    """Let the API server validate each object strictly and keep none."""
    for item in items:
        # One that another test created for real conflicts only after it was found valid.
        with suppress(ConflictError):
            await admin.create(path_of(item), item, dryRun="All", fieldValidation="Strict")


@pytest.mark.parametrize("overlay", ["base", "overlays/production", "overlays/one-namespace"])
async def test_the_api_server_accepts_what_kustomize_builds(
    overlay: str, cluster_binary: Path, admin: KubeApi, namespaces: None
) -> None:
    built = rendered(cluster_binary, "kustomize-build", str(DEPLOY / "kustomize" / overlay))
    await accepts(admin, built)

    assert {i["kind"] for i in built} >= {
        "Deployment",
        "ServiceAccount",
        "PodDisruptionBudget",
        "NetworkPolicy",
    }


@pytest.mark.parametrize("scope", [[], ["shop"]])
async def test_the_api_server_accepts_what_the_chart_renders(
    scope: list[str], cluster_binary: Path, admin: KubeApi, namespaces: None, tmp_path: Path
) -> None:
    values = _values(
        tmp_path,
        namespaces=scope,
        settings={"FORECREST_TICK_PERIOD_S": 10},
        customTargets=[{"apiGroup": "argoproj.io", "resource": "rollouts"}],
        tolerations=[{"key": "dedicated", "operator": "Exists"}],
    )
    built = rendered(cluster_binary, "helm-template", str(DEPLOY / "helm/forecrest"), "forecrest", values)
    await accepts(admin, built)

    kinds = {i["kind"] for i in built}
    assert "Role" in kinds if scope else "Role" not in kinds


async def test_the_chart_refuses_values_it_does_not_know(cluster_binary: Path, tmp_path: Path) -> None:
    values = _values(tmp_path, replica=3)
    with pytest.raises(AssertionError, match="additional properties 'replica' not allowed"):
        rendered(cluster_binary, "helm-template", str(DEPLOY / "helm/forecrest"), "forecrest", values)


async def test_the_custom_resources_can_be_left_out(cluster_binary: Path, tmp_path: Path) -> None:
    values = _values(tmp_path, customResources={"enabled": False}, restoreOnUninstall=False)
    built = rendered(cluster_binary, "helm-template", str(DEPLOY / "helm/forecrest"), "forecrest", values)

    assert "forecrest.dev" not in json.dumps([i for i in built if i["kind"] == "ClusterRole"])
    assert "CustomResourceDefinition" not in {i["kind"] for i in built}


@pytest.mark.parametrize("name", ["triton.yaml", "hpa.yaml"])
async def test_the_api_server_accepts_the_examples(name: str, admin: KubeApi, namespaces: None) -> None:
    await accepts(admin, list(yaml.safe_load_all((DEPLOY / "examples" / name).read_text())))


async def test_kustomize_and_the_chart_grant_the_same(cluster_binary: Path) -> None:
    built = rendered(cluster_binary, "kustomize-build", str(DEPLOY / "kustomize/base"))
    charted = rendered(cluster_binary, "helm-template", str(DEPLOY / "helm/forecrest"), "forecrest")

    assert _roles(built) == _roles(charted)


def _roles(items: list[dict[str, Any]]) -> dict[str, Any]:
    """What the controller and its users may do; the hook that cleans up after the chart is the chart's own."""
    return {
        i["metadata"]["name"]: i["rules"]
        for i in items
        if i["kind"] == "ClusterRole" and "helm.sh/hook" not in i["metadata"].get("annotations", {})
    }


@dataclass(frozen=True, slots=True)
class Installed:
    """What acts with the chart's service account and nothing more, and what that account is granted."""

    actuator: KubernetesActuator
    recorder: EventRecorder
    synchroniser: Synchroniser
    rules: list[dict[str, Any]]


@pytest_asyncio.fixture(loop_scope="module")
async def as_installed(
    plane: ControlPlane, admin: KubeApi, cluster_binary: Path, namespace: str, namespaces: None
) -> AsyncIterator[Installed]:
    """Everything that calls the API server, as the chart installs it, beside KEDA's definition."""
    await install(admin, SCALED_OBJECT)
    built = rendered(cluster_binary, "helm-template", str(DEPLOY / "helm/forecrest"), "forecrest")
    kinds = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
    for item in built:
        if item["kind"] in kinds and "helm.sh/hook" not in item["metadata"].get("annotations", {}):
            with suppress(ConflictError):
                await admin.create(path_of(item), item)
    bound = {i["roleRef"]["name"] for i in built if i["kind"] == "ClusterRoleBinding"}
    asked = {"spec": {"audiences": ["https://kubernetes.default.svc"], "expirationSeconds": 3600}}
    answer = await admin.create("/api/v1/namespaces/forecrest/serviceaccounts/forecrest/token", asked)
    token, clock = answer["status"]["token"], SystemClock()
    actuator = KubernetesActuator(plane.api("forecrest", token), clock)
    recorder = EventRecorder(actuator, plane.api("forecrest", token), clock, "test")
    deps = ApiDependencies(FakeStore(), FakeSignalCache(clock), clock)
    synchroniser = Synchroniser(
        plane.api("forecrest", token), deps, leads=lambda: True, facts=lambda _: Facts(), limit=100
    )
    tasks = [asyncio.create_task(recorder.run()), asyncio.create_task(synchroniser.run())]
    rules = [
        rule
        for i in built
        if i["kind"] == "ClusterRole" and i["metadata"]["name"] in bound
        for rule in i["rules"]
    ]
    yield Installed(actuator, recorder, synchroniser, rules)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await synchroniser.close()
    await recorder.close()
    await actuator.close()


async def say_twice(admin: KubeApi, installed: Installed, w: Workload) -> None:
    """One Event, and its series."""
    alarm = Alarm(AlarmKind.PREWARM_LATE, w.name, "sale", "late")
    for _ in range(2):
        after = FleetState({w.name: WorkloadState(alarms=(alarm,))})
        installed.recorder.saw([w], [], {}, FleetState(), after)

    async def is_said() -> bool:
        found = await admin.get(f"/apis/events.k8s.io/v1/namespaces/{w.namespace}/events")
        return any((e.get("series") or {}).get("count") == 2 for e in found["items"])

    await eventually(is_said)


async def declare_and_delete(admin: KubeApi, namespace: str) -> None:
    """A Workload and a TrafficEvent from their creation to their end."""
    paths: list[str] = []
    for body in yaml.safe_load_all((DEPLOY / "examples/workload.yaml").read_text()):
        body["metadata"]["namespace"] = namespace
        path = f"/apis/forecrest.dev/v1alpha1/namespaces/{namespace}/{body['kind'].lower()}s"
        await admin.create(path, body)
        paths.append(f"{path}/{body['metadata']['name']}")

    async def are_synced() -> bool:
        found = [await admin.get(path) for path in paths]
        return all(
            any(
                c["type"] == "Synced" and c["status"] == "True"
                for c in f.get("status", {}).get("conditions", ())
            )
            for f in found
        )

    await eventually(are_synced)
    for path in reversed(paths):
        await admin.delete(path)

    async def are_gone() -> bool:
        kinds = [path.rpartition("/")[0] for path in paths]
        return not any([(await admin.get(kind))["items"] for kind in kinds])

    await eventually(are_gone)


async def test_the_service_account_may_do_what_is_done_and_nothing_else(
    plane: ControlPlane,
    admin: KubeApi,
    kubelet: ProcessKubelet,
    namespace: str,
    model: ServedModel,
    as_installed: Installed,
) -> None:
    actuator = as_installed.actuator
    deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    stateful = triton("ranker", model)
    stateful["spec"]["serviceName"] = "ranker"
    await admin.create(deployments, triton("recommender", model))
    await admin.create(f"/apis/apps/v1/namespaces/{namespace}/statefulsets", stateful)
    path = f"/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers"
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "floored"}
    await admin.create(deployments, triton("floored", model, replicas=1))
    spec = {"scaleTargetRef": reference, "minReplicas": 1, "maxReplicas": 2}
    await admin.create(path, {"metadata": {"name": "floored"}, "spec": spec})
    # Another autoscaler of another kind, whose definition comes with KEDA.
    await admin.create(deployments, triton("pulled", model))
    scaled = yaml.safe_load((DEPLOY / "keda/scaledobject.yaml").read_text())
    scaled["spec"]["scaleTargetRef"]["name"] = "pulled"
    await admin.create(f"/apis/keda.sh/v1alpha1/namespaces/{namespace}/scaledobjects", scaled)
    pulled = workload(namespace, model, name="pulled", mode=Mode.FLOOR)
    owned = workload(namespace, model)
    ranker = workload(namespace, model, name="ranker", target={"kind": "StatefulSet"})
    floored = workload(namespace, model, name="floored", mode=Mode.FLOOR)

    async def are_seen() -> bool:
        return len(await actuator.observe([owned, ranker, floored, pulled])) == 4

    await eventually(are_seen)
    await actuator.claim([owned, ranker, floored, pulled], fence=1)
    await actuator.scale(owned, 2, fence=1)
    await actuator.scale(ranker, 1, fence=1)
    await actuator.scale(floored, 2, fence=1)
    await actuator.scale(pulled, 3, fence=1)

    async def are_warm() -> bool:
        views = await actuator.observe([owned, ranker, floored])
        return sum(r.warm for view in views.values() for r in view.replicas) == 5

    await eventually(are_warm)
    await actuator.scale(owned, 1, fence=1)  # says which pod leaves first

    stays: list[str] = []

    async def one_stays() -> bool:
        views = await actuator.observe([owned])
        stays[:] = [r.id for view in views.values() for r in view.replicas]
        return len(stays) == 1

    await eventually(one_stays)
    await actuator.replace(owned, stays[0], fence=1)
    assert await actuator.restore_all() == 2
    await say_twice(admin, as_installed, owned)
    await declare_and_delete(admin, namespace)

    used, refused = set[tuple[str, str, str]](), set[tuple[str, str, str]]()
    for line in plane.audit_log.read_text().splitlines():
        entry = json.loads(line)
        if entry["user"]["username"] == "system:serviceaccount:forecrest:forecrest":
            what = entry["objectRef"]
            resource = "/".join(filter(None, (what["resource"], what.get("subresource"))))
            call = (what.get("apiGroup", ""), resource, entry["verb"])
            (refused if entry["responseStatus"]["code"] == 403 else used).add(call)
    allowed = {
        (group, resource, verb)
        for rule in as_installed.rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }

    assert refused == set()
    assert allowed - used == set()
    assert used <= allowed
