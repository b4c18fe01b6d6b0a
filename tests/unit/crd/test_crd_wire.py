"""A spec becomes the message that a person would have sent, and a refusal names the spec's own fields."""

import pytest
from forecrest.v1 import workload_pb2

from controller.crd.wire import MARK, camel, duration_s, event_message, in_spec, snake, workload_message
from controller.usecases.errors import InvalidError


def test_a_workload_spec_becomes_the_message_in_its_own_namespace() -> None:
    made = workload_message(
        {
            "id": "rec",
            "modelName": "recommender",
            "mode": "FLOOR",
            "profiles": [{"engine": "int8", "gpuType": "A10", "qpsMax": 100, "precision": "INT8"}],
            "policy": {
                "stableWindow": "1m30s",
                "behavior": {"scaleDown": {"policies": [{"type": "PERCENT", "value": 10, "period": "1.5m"}]}},
            },
            "target": {"kind": "StatefulSet", "grpcPort": 9001, "apiVersion": "apps/v1"},
            "labels": {"team": "search", MARK: "somebody/else"},
        },
        namespace="shop",
        owner="shop/recommender",
    )

    assert made.namespace == "shop"
    assert made.mode == workload_pb2.MODE_FLOOR
    assert made.profiles[0].precision == workload_pb2.PRECISION_INT8
    assert made.policy.stable_window.ToTimedelta().total_seconds() == 90
    assert made.policy.behavior.scale_down.policies[0].period.ToTimedelta().total_seconds() == 90
    assert dict(made.target) == {"kind": "StatefulSet", "grpc_port": "9001", "api_version": "apps/v1"}
    assert dict(made.labels) == {"team": "search", MARK: "shop/recommender"}


def test_an_event_spec_names_its_workloads_by_their_ids() -> None:
    made = event_message(
        {
            "workloads": ["rec"],
            "timeZone": "Asia/Shanghai",
            "startLocal": "2026-11-11T00:00",
            "endTime": "2026-11-10T18:00:00Z",
            "exdateTimes": ["2026-11-12T00:00:00Z"],
            "expectedMultiplier": 3,
            "margin": "45s",
        },
        owner="shop/sale/uid",
    )

    assert list(made.workloads) == ["workloads/rec"]
    assert made.expected_multiplier == 3
    assert made.margin.ToSeconds() == 45
    assert made.end_time.ToDatetime().hour == 18
    assert len(made.exdate_times) == 1


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"policy": {"stableWindow": "soon"}}, "spec.policy.stableWindow: 'soon' is no duration"),
        ({"profiles": [{"engines": "x"}]}, "spec.profiles[0].engines: is no field of it"),
        ({"minReplicas": "many"}, "spec: "),
    ],
)
def test_what_cannot_be_read_is_named(spec: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidError) as refused:
        workload_message(spec, namespace="shop", owner="shop/x")

    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    ("api", "spec"),
    [
        ("workload.policy.stable_window", "spec.policy.stableWindow"),
        ('workload.target["grpc_port"]', "spec.target.grpcPort"),
        ("event.workloads[0]", "spec.workloads[0]"),
        ("must not be less than min_replicas (1)", "must not be less than minReplicas (1)"),
        ("no engine my_engine", "no engine my_engine"),
    ],
)
def test_fields_are_spelt_as_in_the_spec(api: str, spec: str) -> None:
    assert spec == in_spec(api)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("1h30m", 5400), ("1.5h", 5400), ("250ms", 0.25)])
def test_durations_are_read_as_kubernetes_writes_them(text: str, seconds: float) -> None:
    assert seconds == duration_s(text)


@pytest.mark.parametrize("text", ["", "5", "5 m", "1d", "-5s"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write 90s, 5m or 1h30m"):
        duration_s(text)


@pytest.mark.parametrize("name", ["min_replicas", "latency_ms_p99", "wait_s", "grpc_port"])
def test_names_come_back_from_camel_case(name: str) -> None:
    assert name == snake(camel(name))
