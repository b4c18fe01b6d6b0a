"""What a workload's ``target`` may say, per kind of target, checked when it is declared and not at each order. Pure.

A target is an object of a cluster or what processes on the controller's machine serve; its keys say which.
Keys nobody knows are refused: a misspelt one would otherwise be ignored, or fail every order from then on. Actuators
add their keys here; tests hold the table and the actuators together.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from controller.usecases.errors import Findings

COUNT_MAX, KEY_MAX, VALUE_MAX = 32, 63, 500
_WHOLE = re.compile(r"\d{1,9}")
_DECIMAL = re.compile(r"\d{1,9}(\.\d{1,9})?")


@dataclass(frozen=True, slots=True)
class Number:
    """A key whose value is a number within bounds."""

    low: float
    high: float
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Text:
    """A key whose value is a text; ``pattern`` says how it must look."""

    pattern: str = ""


_NAME = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
# Processes of this machine: as `engines.triton_repository.ServingOptions`, and `controller.actuators.local_engines`.
LOCAL: Mapping[str, Number | Text] = {
    "engine": Text(),
    "catalog_model": Text(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}"),
    "shapes": Text(r"[^=,]+=[0-9]+(x[0-9]+)*(,[^=,]+=[0-9]+(x[0-9]+)*)*"),
    "batch_size_max": Number(1, 4096),
    "queue_delay_us": Number(0, 1_000_000),
    "simulated_device_time_ms": Number(0, 60_000, whole=False),
    "simulated_device_time_ms_per_request": Number(0, 60_000, whole=False),
}
# Objects of a cluster: as `controller.actuators.kubernetes.targets`.
KUBERNETES: Mapping[str, Number | Text] = {
    "kind": Text(r"[A-Z][A-Za-z0-9]{0,62}"),
    "name": Text(_NAME),
    "api_version": Text(rf"{_NAME}/v[0-9]+((alpha|beta)[0-9]+)?"),
    "resource": Text(r"[a-z][a-z0-9-]{0,62}"),
    "grpc_port": Number(1, 65_535),
    "metrics_port": Number(1, 65_535),
    "autoscaler": Text(rf"(hpa|scaledobject)/{_NAME}"),
}


def check_target(target: Mapping[str, str], findings: Findings) -> None:
    """Record everything wrong with ``target``."""
    if not findings.require(
        len(target) <= COUNT_MAX, "target", f"must have at most {COUNT_MAX} entries; got {len(target)}"
    ):
        return
    in_cluster = any(key in KUBERNETES for key in target)
    known = KUBERNETES if in_cluster else LOCAL
    what = "an object of a cluster" if in_cluster else "processes of this machine"
    for key, value in target.items():
        at = f'target["{key[:KEY_MAX]}"]'
        rule = known.get(key)
        if rule is None:
            hint = "" if in_cluster else f"; an object of a cluster has {', '.join(KUBERNETES)}"
            findings.add(at, f"is no key for {what}; use {', '.join(known)}{hint}")
            continue
        before = len(findings.violations)
        findings.text(at, value, 1, VALUE_MAX)
        if len(findings.violations) == before:
            _check_value(at, value, rule, findings)


def _check_value(at: str, value: str, rule: Number | Text, findings: Findings) -> None:
    if isinstance(rule, Text):
        findings.require(
            not rule.pattern or re.fullmatch(rule.pattern, value) is not None,
            at,
            f"must look like {rule.pattern}; got {value[:60]!r}",
        )
        return
    form, kind = (_WHOLE, "a whole number") if rule.whole else (_DECIMAL, "a number")
    fits = form.fullmatch(value) is not None and rule.low <= float(value) <= rule.high
    findings.require(fits, at, f"must be {kind} from {rule.low:g} to {rule.high:g}; got {value[:40]!r}")
