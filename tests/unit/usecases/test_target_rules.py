"""A target is checked when it is declared: what the actuators read and what the rules know is the same."""

from dataclasses import fields

import pytest

from controller.actuators.kubernetes.targets import FIELDS, parse
from controller.actuators.local_engines import FIELDS as LOCAL_FIELDS
from controller.core.types import CapacityProfile, Workload
from controller.usecases.errors import Findings
from controller.usecases.target_rules import KUBERNETES, LOCAL, check_target
from engines.triton_repository import ServingOptions


def problems(target: dict[str, str]) -> dict[str, str]:
    findings = Findings()
    check_target(target, findings)
    return {v.field: v.description for v in findings.violations}


def test_the_rules_know_the_keys_that_the_actuators_read() -> None:
    assert {*LOCAL_FIELDS, *(option.name for option in fields(ServingOptions))} == set(LOCAL)
    assert set(FIELDS) == set(KUBERNETES)
    assert not set(LOCAL) & set(KUBERNETES)


@pytest.mark.parametrize(
    "target",
    [
        {},
        {"engine": "/models/rec.onnx", "batch_size_max": "8", "simulated_device_time_ms": "12.5"},
        {"catalog_model": "Ranker_v2", "shapes": "tokens=8x32,user=8", "batch_size_max": "8"},
        {"kind": "Deployment", "name": "rec", "grpc_port": "8001"},
        {"name": "rec", "autoscaler": "scaledobject/rec"},
        {"kind": "Rollout", "api_version": "argoproj.io/v1alpha1", "resource": "rollouts"},
    ],
)
def test_a_target_that_an_actuator_takes_is_accepted(target: dict[str, str]) -> None:
    assert {} == problems(target)
    if set(target) <= set(FIELDS):
        parse(Workload("rec", "rec", (CapacityProfile("e", "L4", 1.0),), target=target))


@pytest.mark.parametrize(
    ("target", "key", "words"),
    [
        ({"bacth_size_max": "8"}, "bacth_size_max", "use engine, catalog_model, shapes, batch_size_max"),
        ({"kind": "Deployment", "engine": "x"}, "engine", "no key for an object of a cluster"),
        ({"batch_size_max": "many"}, "batch_size_max", "a whole number from 1 to 4096"),
        ({"batch_size_max": "4.5"}, "batch_size_max", "a whole number"),
        ({"batch_size_max": "9999"}, "batch_size_max", "from 1 to 4096"),
        ({"simulated_device_time_ms": "nan"}, "simulated_device_time_ms", "a number from 0"),
        ({"grpc_port": "0"}, "grpc_port", "from 1 to 65535"),
        ({"kind": "deployment"}, "kind", "must look like"),
        ({"name": "rec", "autoscaler": "keda/x"}, "autoscaler", "must look like"),
        ({"engine": ""}, "engine", "1 to 500 characters"),
        ({"catalog_model": "../x"}, "catalog_model", "must look like"),
        ({"catalog_model": "x", "shapes": "8x32"}, "shapes", "must look like"),
        ({"engine": "a\x00b"}, "engine", "control characters"),
    ],
)
def test_a_target_that_would_fail_every_order_is_refused_by_its_key(
    target: dict[str, str], key: str, words: str
) -> None:
    found = problems(target)

    assert [f'target["{key}"]'] == list(found)
    assert words in found[f'target["{key}"]']


def test_a_target_has_a_bounded_number_of_keys() -> None:
    assert "at most 32" in problems({f"k{n}": "x" for n in range(33)})["target"]
