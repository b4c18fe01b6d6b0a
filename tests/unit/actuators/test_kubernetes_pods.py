"""What a pod's object says, how a target is read, and which limits of an autoscaler are whose."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controller.actuators.kubernetes import floors, pods, targets
from controller.actuators.kubernetes.api import KubeError
from controller.actuators.kubernetes.warmth import stages
from controller.actuators.triton import WarmResult, WarmStage
from controller.core.types import CapacityProfile, Workload

AT = datetime(2026, 11, 10, 23, 50, tzinfo=UTC)
A10 = CapacityProfile("dlrm", "A10", 2200.0)
T4 = CapacityProfile("dlrm", "T4", 900.0)


def text(seconds: float) -> str:
    return (AT + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod(*, ready: bool = False, container: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:  # noqa: ANN401
    """A pod that was scheduled after 2 s and runs since the 10th."""
    return {
        "metadata": {"name": "dlrm-1", "namespace": "shop", "uid": "u1", "creationTimestamp": text(0)},
        "spec": {"nodeName": "gpu-a"},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": text(2)},
                {"type": "Ready", "status": str(ready), "lastTransitionTime": text(100)},
            ],
            "containerStatuses": [
                container
                or {"name": "triton", "restartCount": 0, "state": {"running": {"startedAt": text(10)}}}
            ],
            **status,
        },
    }


def result() -> WarmResult:
    took = {
        WarmStage.SERVER_LIVE: 1.0,
        WarmStage.MODEL_LOADED: 2.0,
        WarmStage.ENGINE_VERIFIED: 1.0,
        WarmStage.WARM: 4.0,
    }
    return WarmResult(WarmStage.WARM, None, "", took)


def test_a_start_that_was_watched_counts_until_it_was_verified_however_many_tries_that_took() -> None:
    measured = stages(pods.facts(pod()), result(), AT + timedelta(seconds=195))

    assert measured == {"schedule": 2.0, "image": 8.0, "load": 180.0, "warmup": 5.0}


def test_a_pod_found_ready_counts_until_it_was_ready_not_until_a_controller_looked() -> None:
    measured = stages(pods.facts(pod(ready=True)), result(), AT + timedelta(hours=9))

    assert measured["load"] == 90.0


def test_what_is_kept_of_a_pod_is_all_that_is_read() -> None:
    whole = pod(ready=True)
    whole["metadata"]["annotations"] = {pods.DELETION_COST: "-5", "huge": "x" * 10_000}

    assert pods.kept(whole)["facts"] == pods.facts(whole)
    assert "huge" not in str(pods.kept(whole))


@pytest.mark.parametrize(
    ("state", "last", "said"),
    [
        (
            {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
            {},
            "ImagePullBackOff: no such image",
        ),
        (
            {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
            {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
            "CrashLoopBackOff: back-off 10s (last ended with OOMKilled 137)",
        ),
        ({"waiting": {"reason": "ContainerCreating"}}, {}, None),
    ],
)
def test_only_what_no_patience_heals_is_a_failure(
    state: dict[str, Any], last: dict[str, Any], said: str | None
) -> None:
    container = {"name": "triton", "restartCount": 3, "state": state, "lastState": last}

    assert pods.facts(pod(container=container)).failure == said


def test_a_restart_is_another_run() -> None:
    again = {"name": "triton", "restartCount": 1, "state": {"running": {"startedAt": text(60)}}}

    assert pods.facts(pod()).run != pods.facts(pod(container=again)).run


@pytest.mark.parametrize(
    ("product", "expected"),
    [("NVIDIA-A10", A10), ("Tesla-T4", T4), ("NVIDIA-A100-SXM4-40GB", None), (None, None)],
)
def test_a_gpu_is_known_by_its_label_without_the_makers_name(
    product: str | None, expected: CapacityProfile | None
) -> None:
    assert pods.profile_on((A10, T4), product) == expected


@pytest.mark.parametrize(
    ("target", "named"),
    [
        ({"knd": "Deployment"}, "knd"),
        ({"kind": "deployment"}, "kind"),
        ({"kind": "Rollout"}, "api_version and resource"),
        ({"kind": "Rollout", "api_version": "v1", "resource": "rollouts"}, "api_version"),
        ({"name": "a/../b"}, "name"),
        ({"grpc_port": "70000"}, "grpc_port"),
        ({"autoscaler": "recommender"}, "autoscaler"),
    ],
)
def test_a_malformed_target_is_refused_by_field(target: dict[str, str], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        targets.parse(Workload("dlrm", "dlrm", (A10,), target=target))


def test_a_target_has_the_path_of_its_kind() -> None:
    given = {"kind": "Rollout", "api_version": "argoproj.io/v1alpha1", "resource": "rollouts", "name": "dlrm"}
    found = targets.parse(Workload("w", "dlrm", (A10,), namespace="shop", target=given))

    assert found.path == "/apis/argoproj.io/v1alpha1/namespaces/shop/rollouts/dlrm"
    assert not found.is_built_in


def hpa(
    *, low: int, high: int, notes: dict[str, str] | None = None, keda: str | None = None
) -> dict[str, Any]:
    owners = [{"kind": "ScaledObject", "name": keda}] if keda else []
    return {
        "metadata": {"name": "h", "namespace": "shop", "annotations": notes or {}, "ownerReferences": owners},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "dlrm"},
            "minReplicas": low,
            "maxReplicas": high,
        },
    }


TARGET = targets.Target("shop", "Deployment", "dlrm")


def test_what_the_owner_wrote_is_read_from_the_object_itself() -> None:
    raised = hpa(low=9, high=9, notes={floors.ORIGINAL_MIN: "2", floors.ORIGINAL_MAX: "6"})
    found = floors.find(TARGET, {("shop", "h"): raised}, {})

    assert (found.replicas, found.original, found.original_maximum, found.is_raised) == (9, 2, 6, True)


def test_an_annotation_that_is_no_number_counts_as_none() -> None:
    found = floors.read("hpa", hpa(low=3, high=6, notes={floors.ORIGINAL_MIN: "-1"}))

    assert (found.original, found.is_raised) == (3, False)


def test_the_hpa_that_keda_made_is_left_alone() -> None:
    with pytest.raises(KubeError, match="scaledobject/dlrm"):
        floors.find(TARGET, {("shop", "h"): hpa(low=1, high=6, keda="dlrm")}, {})


def test_without_an_autoscaler_mode_floor_says_what_to_do() -> None:
    with pytest.raises(KubeError, match="create it, or use mode SCALE"):
        floors.find(TARGET, {}, {})


def node(**labels: str) -> dict[str, Any]:
    named = {f"nvidia.com/gpu.{key.replace('_', '.')}": value for key, value in labels.items()}
    return {"metadata": {"name": "gpu-a", "labels": named}}


@pytest.mark.parametrize(
    ("labels", "capability"),
    [
        ({"compute_major": "8", "compute_minor": "6"}, "8.6"),
        ({"compute_major": "12", "compute_minor": "0"}, "12.0"),
        ({"compute_major": "8"}, None),
        ({"compute_major": "x", "compute_minor": "6"}, None),
        ({}, None),
    ],
)
def test_a_node_says_its_compute_capability(labels: dict[str, str], capability: str | None) -> None:
    assert capability == pods.compute_capability(node(**labels))


@pytest.mark.parametrize("gpu_type", ["sm_86", "SM86", "8.6"])
def test_a_profile_of_a_capability_stands_for_gpu_types_that_have_none_of_their_own(gpu_type: str) -> None:
    ampere = CapacityProfile("dlrm", gpu_type, 1500.0)

    assert pods.profile_on((ampere, A10), "NVIDIA-A40", "8.6") == ampere
    assert pods.profile_on((ampere, A10), "NVIDIA-A10", "8.6") == A10
    assert pods.profile_on((ampere, A10), "Tesla-T4", "7.5") is None
    assert pods.profile_on((ampere, A10), None, "8.6") == ampere


def test_a_node_that_no_profile_is_for_is_named_with_the_remedy() -> None:
    old = node(product="Tesla-T4", compute_major="7", compute_minor="5")

    assert pods.misfit((A10,), old) == (
        "node gpu-a has Tesla-T4 (compute capability 7.5), and the profiles are for A10: add one for it, or keep pods "
        "away from it by a node selector"
    )
    assert pods.misfit((A10, T4), old) is None
    assert pods.misfit((A10,), None) is None
    assert pods.misfit((A10,), node()) is None
    assert pods.misfit((CapacityProfile("dlrm", "", 1.0),), old) is None


def test_a_workloads_pods_are_those_of_its_namespace_with_all_of_its_labels() -> None:
    def labelled(name: str, namespace: str, **labels: str) -> tuple[tuple[str, str], dict[str, Any]]:
        whole = pod()
        whole["metadata"] |= {"name": name, "namespace": namespace, "labels": labels}
        return (namespace, name), pods.kept(whole)

    index = pods.PodIndex(
        dict(
            [
                labelled("b", "shop", app="rec", tier="gpu"),
                labelled("a", "shop", app="rec", tier="gpu", hash="1"),
                labelled("c", "shop", app="rec"),
                labelled("d", "lab", app="rec", tier="gpu"),
            ]
        )
    )

    assert [p.name for p in index.of("shop", {"app": "rec", "tier": "gpu"})] == ["a", "b"]
    assert index.of("shop", {"app": "rec", "tier": "cpu"}) == []
    assert index.of("shop", {}) == []


def test_a_minimum_is_abandoned_once_one_leader_found_so_twice_and_none_otherwise_between() -> None:
    """Also where shards take turns, none of which has a workload left."""
    abandoned = floors.Abandoned()
    looks = [
        (["a", "b"], 1, set()),
        (["a", "b"], 2, set()),
        (["a"], 1, {"a"}),  # b has a workload again
        (["a", "b"], 2, {"a"}),
        (["b"], 1, set()),
        (["b"], 2, {"b"}),
    ]

    assert [found for *_, found in looks] == [abandoned.confirmed(paths, fence) for paths, fence, _ in looks]
