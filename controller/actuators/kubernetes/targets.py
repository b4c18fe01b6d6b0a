"""Where a workload lives on Kubernetes: its `target`, read and checked.

A workload's ``namespace`` is the Kubernetes namespace; its `target` names the object, all of it optional:

    kind          Deployment (default), StatefulSet, or the kind of any resource with a scale subresource
    name          the object's name; the workload's own name without it
    api_version   for other kinds, for example argoproj.io/v1alpha1
    resource      for other kinds, the plural as in a URL, for example rollouts
    grpc_port     Triton's gRPC port in the pod (8001)
    metrics_port  Triton's metrics port in the pod (8002)
    autoscaler    mode FLOOR: hpa/NAME or scaledobject/NAME; found by its scale target without it
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from controller.core.types import Workload

FIELDS: Final = ("kind", "name", "api_version", "resource", "grpc_port", "metrics_port", "autoscaler")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_KIND = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")
_API_VERSION = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/v[0-9]+((alpha|beta)[0-9]+)?")
_BUILT_IN: Final = {"Deployment": "deployments", "StatefulSet": "statefulsets"}
_PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True)
class Autoscaler:
    """The autoscaler whose minimum mode FLOOR raises."""

    kind: Literal["hpa", "scaledobject"]
    name: str


@dataclass(frozen=True, slots=True)
class Target:
    """One scalable object, and how its pods are reached."""

    namespace: str
    kind: str
    name: str
    api_version: str = "apps/v1"
    resource: str = "deployments"
    grpc_port: int = 8001
    metrics_port: int = 8002
    autoscaler: Autoscaler | None = None

    @property
    def is_built_in(self) -> bool:
        """Whether it is a Deployment or StatefulSet, which are watched; others are read when needed."""
        return self.api_version == "apps/v1" and self.kind in _BUILT_IN

    @property
    def path(self) -> str:
        """URL path of the object."""
        return f"/apis/{self.api_version}/namespaces/{self.namespace}/{self.resource}/{self.name}"

    @property
    def label(self) -> str:
        """As a person writes it."""
        return f"{self.kind} {self.namespace}/{self.name}"


def parse(workload: Workload) -> Target:
    """The target of a workload.

    Raises:
        ValueError: a field is unknown or malformed; the message names it and the remedy.
    """
    given = workload.target
    if unknown := given.keys() - set(FIELDS):
        raise ValueError(f"target: {', '.join(sorted(unknown))} is not one of {', '.join(FIELDS)}")
    if not _NAME.fullmatch(workload.namespace):
        raise ValueError(f"namespace: {workload.namespace!r} is no name of a Kubernetes namespace")
    kind = given.get("kind", "Deployment")
    if not _KIND.fullmatch(kind):
        raise ValueError(f"target: kind {kind!r} is not like Deployment, StatefulSet or Rollout")
    name = _name(given.get("name", workload.name), "name")
    api_version, resource = _resource(kind, given)
    return Target(
        namespace=workload.namespace,
        kind=kind,
        name=name,
        api_version=api_version,
        resource=resource,
        grpc_port=_port(given, "grpc_port", 8001),
        metrics_port=_port(given, "metrics_port", 8002),
        autoscaler=_autoscaler(given.get("autoscaler")),
    )


def _resource(kind: str, given: Mapping[str, str]) -> tuple[str, str]:
    api_version, resource = given.get("api_version"), given.get("resource")
    if kind in _BUILT_IN and api_version in {None, "apps/v1"} and resource in {None, _BUILT_IN[kind]}:
        return "apps/v1", _BUILT_IN[kind]
    if api_version is None or resource is None:
        raise ValueError(
            f"target: kind {kind} needs api_version and resource, for example argoproj.io/v1alpha1 and rollouts"
        )
    if not _API_VERSION.fullmatch(api_version):
        raise ValueError(f"target: api_version {api_version!r} is not like argoproj.io/v1alpha1")
    return api_version, _name(resource, "resource")


def _name(value: str, field: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(f"target: {field} {value!r} is no name of a Kubernetes object")
    return value


def _port(given: Mapping[str, str], field: str, default: int) -> int:
    text = given.get(field, str(default))
    if not text.isdecimal() or not 0 < int(text) <= _PORT_MAX:
        raise ValueError(f"target: {field} {text!r} is no port; use 1 to {_PORT_MAX}")
    return int(text)


def _autoscaler(text: str | None) -> Autoscaler | None:
    if text is None:
        return None
    kind, _, name = text.partition("/")
    if kind == "hpa":
        return Autoscaler("hpa", _name(name, "autoscaler"))
    if kind == "scaledobject":
        return Autoscaler("scaledobject", _name(name, "autoscaler"))
    raise ValueError(f"target: autoscaler {text!r} is not hpa/NAME or scaledobject/NAME")
