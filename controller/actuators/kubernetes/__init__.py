"""Scale Triton workloads on Kubernetes, and verify their pods: `actuator.KubernetesActuator` is the port's adapter."""

from controller.actuators.kubernetes.actuator import KubernetesActuator
from controller.actuators.kubernetes.api import KubeApi, KubeError

__all__ = ["KubeApi", "KubeError", "KubernetesActuator"]
