"""Workload and TrafficEvent objects: what the API server refuses, what is carried over, and what is left alone."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
import yaml
from forecrest.v1 import event_pb2, event_service_pb2, workload_pb2, workload_service_pb2

from controller.actuators.kubernetes import KubeApi, KubeError
from controller.adapters.clock import SystemClock
from controller.bootstrap import open_runtime
from controller.client import Client
from controller.crd.sync import FINALIZER, GROUP, release_all
from controller.crd.wire import MARK
from controller.ports import NotFoundError
from controller.settings import Settings
from tests.e2e.kubernetes.conftest import eventually, install

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEPLOY = Path(__file__).parents[3] / "deploy"
STRICT = {"dryRun": "All", "fieldValidation": "Strict"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kinds(admin: KubeApi) -> None:
    """The custom resources, installed for real."""
    for name in ("workload", "trafficevent"):
        await install(admin, yaml.safe_load((DEPLOY / f"helm/forecrest/crd/{name}.yaml").read_text()))


@pytest.fixture
def settings(settings: Settings, kinds: None) -> Settings:
    """Of a controller that carries custom resources of one namespace."""
    return settings.model_copy(update={"kubernetes_custom_resources": True})


@pytest_asyncio.fixture(loop_scope="module")
async def client(settings: Settings) -> AsyncIterator[Client]:
    """A client of a controller that runs."""
    async with open_runtime(settings) as runtime, Client(runtime.api.target) as made:
        yield made


def a_workload(name: str = "recommender", **spec: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    profile = {"engine": "two-tower", "gpuType": "A10", "qpsMax": 100}
    given = {"modelName": "recommender", "profiles": [profile], "mode": "RECOMMEND", "minReplicas": 0}
    return {
        "apiVersion": "forecrest.dev/v1alpha1",
        "kind": "Workload",
        "metadata": {"name": name},
        "spec": given | spec,
    }


def an_event(name: str = "evening", **spec: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    start = (SystemClock().now() + timedelta(days=2)).replace(microsecond=0)
    given = {
        "workloads": ["recommender"],
        "timeZone": "UTC",
        "startTime": start.isoformat().replace("+00:00", "Z"),
        "endTime": (start + timedelta(hours=1)).isoformat().replace("+00:00", "Z"),
        "expectedPeakQps": 250,
    }
    merged = {k: v for k, v in (given | spec).items() if v is not None}
    return {
        "apiVersion": "forecrest.dev/v1alpha1",
        "kind": "TrafficEvent",
        "metadata": {"name": name},
        "spec": merged,
    }


def _path(namespace: str, body: dict[str, Any]) -> str:
    return f"{GROUP}/namespaces/{namespace}/{body['kind'].lower()}s"


async def made(admin: KubeApi, namespace: str, body: dict[str, Any]) -> str:
    path = _path(namespace, body)
    await admin.create(path, body, fieldValidation="Strict")
    return f"{path}/{body['metadata']['name']}"


async def until(admin: KubeApi, path: str, kind: str, reason: str) -> dict[str, Any]:
    """The object, as soon as its newest generation has this condition."""
    seen: list[dict[str, Any]] = []

    async def is_said() -> bool:
        seen[:] = [await admin.get(path)]
        status = seen[0].get("status", {})
        return status.get("observedGeneration") == seen[0]["metadata"]["generation"] and any(
            (c["type"], c["reason"]) == (kind, reason) for c in status["conditions"]
        )

    try:
        await eventually(is_said)
    except pytest.fail.Exception:
        pytest.fail(f"{kind} {reason} was not said; last seen: {seen}")
    return seen[0]


def message(item: dict[str, Any], kind: str) -> str:
    return next(str(c["message"]) for c in item["status"]["conditions"] if c["type"] == kind)


async def until_gone(admin: KubeApi, path: str) -> None:
    async def is_gone() -> bool:
        try:
            await admin.get(path)
        except NotFoundError:
            return True
        return False

    await eventually(is_gone)


async def test_the_examples_are_valid_objects(admin: KubeApi, kinds: None, namespace: str) -> None:
    for body in yaml.safe_load_all((DEPLOY / "examples/workload.yaml").read_text()):
        body["metadata"]["namespace"] = namespace
        await admin.create(_path(namespace, body), body, **STRICT)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (a_workload("9x"), "metadata.name: must be 1 to 63 characters"),
        (a_workload(minReplicas=5, maxReplicas=3), "maxReplicas: must not be less than minReplicas"),
        (a_workload(minReplicas=11), "maxReplicas: must not be less than minReplicas"),
        (a_workload(profiles=[{"engine": "x"}]), "qpsMax: is required, unless engine names a registered"),
        (a_workload(mode="BOTH"), "spec.mode: Unsupported value"),
        (a_workload(policy={"stableWindow": "5s"}), "must be 10s to 1h"),
        (a_workload(policy={"panicWindow": "2m"}), "panicWindow: must not be longer than stableWindow"),
        (a_workload(policy={"holdMax": "soon"}), "spec.policy.holdMax"),
        (a_workload(target={"kind": "Rollout"}), "apiVersion and resource: are required for this kind"),
        (a_workload(modelNames="x"), 'unknown field "spec.modelNames"'),
        (an_event(expectedMultiplier=2), "give exactly one of them"),
        (an_event(startTime=None), "startTime: is required"),
        (an_event(endTime="2020-01-01T00:00:00Z"), "endTime: must be after startTime"),
        (an_event(rrule="FREQ=HOURLY"), "must have FREQ=DAILY"),
        (an_event(exdateTimes=["2030-01-01T00:00:00Z"]), "exdateTimes: need rrule or rdateTimes"),
    ],
)
async def test_the_api_server_refuses_what_cannot_be_and_names_the_field(
    body: dict[str, Any], said: str, admin: KubeApi, kinds: None, namespace: str
) -> None:
    with pytest.raises(KubeError) as refused:
        await admin.create(_path(namespace, body), body, **STRICT)

    assert said in str(refused.value)


async def test_objects_become_resources_follow_each_change_and_take_them_along(
    admin: KubeApi, client: Client, namespace: str
) -> None:
    workload = await made(admin, namespace, a_workload())
    event = await made(admin, namespace, an_event())
    said = await until(admin, workload, "Synced", "AsSpecified")
    registered = await until(admin, event, "Synced", "AsSpecified")
    name = workload_service_pb2.GetWorkloadRequest(name="workloads/recommender")
    first = await client.workloads.GetWorkload(name)

    assert said["status"]["workload"] == "workloads/recommender"
    assert FINALIZER in said["metadata"]["finalizers"]
    assert (first.namespace, first.mode) == (namespace, workload_pb2.MODE_RECOMMEND)
    assert registered["status"]["event"] == "events/evening"
    assert registered["status"]["state"] == "SCHEDULED"

    await admin.patch(workload, {"spec": {"maxReplicas": 7}})
    await until(admin, workload, "Synced", "AsSpecified")
    changed = await client.workloads.GetWorkload(name)

    assert (changed.max_replicas, changed.generation) == (7, first.generation + 1)

    # What somebody changes elsewhere comes back: the object has the say.
    changed.max_replicas = 9
    await client.workloads.UpdateWorkload(workload_service_pb2.UpdateWorkloadRequest(workload=changed))

    async def is_as_specified() -> bool:
        return (await client.workloads.GetWorkload(name)).max_replicas == 7

    await eventually(is_as_specified)
    await admin.delete(event)
    await admin.delete(workload)
    await until_gone(admin, event)
    await until_gone(admin, workload)
    cancelled = await client.events.GetEvent(event_service_pb2.GetEventRequest(name="events/evening"))

    assert cancelled.state == event_pb2.EVENT_STATE_CANCELLED
    assert cancelled.cancel_reason == "its TrafficEvent was deleted"
    with pytest.raises(grpc.aio.AioRpcError) as missing:
        await client.workloads.GetWorkload(name)
    assert missing.value.code() is grpc.StatusCode.NOT_FOUND

    # Made anew under the same name it is another event: the first is on record for ever.
    await made(admin, namespace, a_workload())
    again = await made(admin, namespace, an_event())
    second = await until(admin, again, "Synced", "AsSpecified")

    assert second["status"]["event"].startswith("events/evening-")
    assert await release_all(admin, [namespace]) == 2
    await admin.delete(again)
    await admin.delete(f"{GROUP}/namespaces/{namespace}/workloads/recommender")


async def test_what_was_made_over_grpc_is_left_alone_until_it_is_handed_over(
    admin: KubeApi, client: Client, namespace: str
) -> None:
    theirs = workload_pb2.Workload(model_name="other", namespace=namespace, mode=workload_pb2.MODE_RECOMMEND)
    theirs.profiles.add(engine="x", gpu_type="A10", qps_max=5)
    request = workload_service_pb2.CreateWorkloadRequest(workload=theirs, workload_id="recommender")
    before = await client.workloads.CreateWorkload(request)
    path = await made(admin, namespace, a_workload())
    said = await until(admin, path, "Synced", "Conflict")
    name = workload_service_pb2.GetWorkloadRequest(name="workloads/recommender")

    assert "was not made by a custom resource, so it is left alone" in message(said, "Synced")
    assert await client.workloads.GetWorkload(name) == before
    await admin.delete(path)
    await until_gone(admin, path)
    assert await client.workloads.GetWorkload(name) == before

    before.labels[MARK] = f"{namespace}/recommender"
    await client.workloads.UpdateWorkload(workload_service_pb2.UpdateWorkloadRequest(workload=before))
    path = await made(admin, namespace, a_workload())
    await until(admin, path, "Synced", "AsSpecified")

    assert (await client.workloads.GetWorkload(name)).model_name == "recommender"
    await admin.delete(path)
    await until_gone(admin, path)


async def test_what_the_api_refuses_is_a_condition_that_names_the_field(
    admin: KubeApi, client: Client, namespace: str
) -> None:
    foreign = workload_pb2.Workload(
        model_name="other", namespace="elsewhere", mode=workload_pb2.MODE_RECOMMEND
    )
    foreign.profiles.add(engine="x", gpu_type="A10", qps_max=5)
    await client.workloads.CreateWorkload(
        workload_service_pb2.CreateWorkloadRequest(workload=foreign, workload_id="foreign")
    )
    workload = await made(admin, namespace, a_workload(target={"name": "Not a name"}))
    event = await made(admin, namespace, an_event(workloads=["recommender", "foreign"], timeZone="Mars/Base"))
    refused = await until(admin, workload, "Synced", "InvalidFields")
    lost = await until(admin, event, "Synced", "InvalidFields")

    assert "spec.target.name: must look like" in message(refused, "Synced")
    assert "workload" not in refused["status"]
    # A namespace's events reach its own workloads, and learn nothing of others.
    assert f"spec.workloads[1]: there is no workload 'foreign' in namespace {namespace}" in message(
        lost, "Synced"
    )

    await admin.patch(workload, {"spec": {"target": {"name": "recommender"}}})
    await admin.patch(event, {"spec": {"workloads": ["recommender"]}})
    zone = await until(admin, event, "Synced", "InvalidFields")
    assert 'spec.timeZone: must be an IANA zone name such as "Asia/Shanghai"' in message(zone, "Synced")

    await admin.patch(event, {"spec": {"timeZone": "Asia/Shanghai"}})
    await until(admin, event, "Synced", "AsSpecified")
    await until(admin, workload, "AbleToScale", "RecommendOnly")
    unseen = await until(admin, workload, "Ready", "ReplicasUnknown")
    for path in (event, workload):
        await admin.delete(path)
        await until_gone(admin, path)

    assert f"there is no Deployment {namespace}/recommender" in message(unseen, "Ready")


async def test_a_new_leader_goes_on_with_what_its_predecessor_said(
    admin: KubeApi, settings: Settings, namespace: str
) -> None:
    path = await made(admin, namespace, a_workload())
    async with open_runtime(settings):
        before = await until(admin, path, "AbleToScale", "RecommendOnly")
    await admin.patch(path, {"spec": {"maxReplicas": 7}})
    # Its first turn comes before its first decision.
    async with open_runtime(settings):
        after = await until(admin, path, "Synced", "AsSpecified")
        await admin.delete(path)
        await until_gone(admin, path)

    assert before["status"]["desiredReplicas"] == after["status"]["desiredReplicas"]
    assert before["status"]["lastDecision"] == after["status"]["lastDecision"]
