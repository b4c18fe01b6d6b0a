"""The custom resources' schemas say what the API says: the same fields, the same choices, the same bounds."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from forecrest.v1 import event_pb2, workload_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from controller.crd.wire import DURATION, TIMESTAMP, camel, duration_s, snake
from controller.usecases.target_rules import KUBERNETES
from controller.usecases.workload_rules import POLICY_DURATIONS

CRDS = Path(__file__).parents[3] / "deploy/helm/forecrest/crd"
OUTPUT = {
    "Workload": {"name", "namespace", "generation", "etag", "staleSinceTime"},
    "Event": {
        *("name", "state", "revision", "createdBy", "createTime", "updateTime", "cancelReason"),
        *("etag", "warnings", "staleSinceTime"),
    },
}
FORMATS = {DURATION: "duration", TIMESTAMP: "date-time"}
OWN = {"Workload": {"id"}, "Event": set[str]()}


def schema(name: str) -> dict[str, Any]:
    crd = yaml.safe_load((CRDS / f"{name}.yaml").read_text())
    (version,) = crd["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


def differences(spec: Mapping[str, Any], descriptor: Descriptor, at: str) -> Iterator[str]:
    """Fields that one side has and the other has not, or has differently."""
    wire = {f.json_name: f for f in descriptor.fields}
    known = set(wire) - OUTPUT.get(descriptor.name, set())
    for name in known ^ (set(spec["properties"]) - OWN.get(descriptor.name, set())):
        yield f"{at}.{name}"
    for name in known & set(spec["properties"]):
        given = spec["properties"][name]
        yield from _differs(given.get("items", given), wire[name], f"{at}.{name}")


def _differs(given: Mapping[str, Any], field: FieldDescriptor, at: str) -> Iterator[str]:
    kind = field.message_type
    if field.enum_type is not None:
        prefix = field.enum_type.values_by_number[0].name.removesuffix("UNSPECIFIED")
        choices = {v.name.removeprefix(prefix) for v in field.enum_type.values if v.number}
        if choices != set(given["enum"]):
            yield at
    elif kind is not None and kind.full_name in FORMATS:
        if given.get("format") != FORMATS[kind.full_name]:
            yield at
    elif kind is not None and not kind.GetOptions().map_entry:
        yield from differences(given, kind, at)


@pytest.mark.parametrize(
    ("name", "message"), [("workload", workload_pb2.Workload), ("trafficevent", event_pb2.Event)]
)
def test_a_spec_has_every_field_that_a_person_may_set(
    name: str, message: type[workload_pb2.Workload | event_pb2.Event]
) -> None:
    assert list(differences(schema(name), message.DESCRIPTOR, "spec")) == []


def test_a_target_has_every_key_of_an_object_of_a_cluster() -> None:
    assert set(KUBERNETES) == {snake(key) for key in schema("workload")["properties"]["target"]["properties"]}


def test_durations_of_the_policy_have_the_bounds_of_the_api() -> None:
    policy = schema("workload")["properties"]["policy"]["properties"]
    for name, (low, high) in POLICY_DURATIONS.items():
        (rule,) = policy[camel(name)]["x-kubernetes-validations"]
        written = [duration_s(text.split('"')[1]) for text in rule["rule"].split(" && ")]

        assert [low.total_seconds(), high.total_seconds()] == written, name
