"""A kubelet that runs a pod's Triton as a process of this machine, and breaks it when a test says so.

It registers GPU nodes, keeps their leases, runs a real tritonserver for every pod that the scheduler binds to one of
them, each on a loopback address of its own with the standard ports, and reports what it finds: containers running,
readiness by the pod's own HTTP probe, restarts with back-off. Faults are data, see `Faults`. With `fake=True` pods
become ready without a process, for fleets that no machine could run.
"""

import asyncio
import itertools
import logging
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from controller.actuators.kubernetes import KubeApi
from controller.actuators.kubernetes.reflector import Reflector
from controller.adapters.clock import SystemClock
from controller.adapters.embedded.process import ServerProcess, ServerSpec, ServerStartError
from controller.adapters.embedded.triton_server import TritonEnvironment, remove_shared_memory
from controller.ports import ConflictError, NotFoundError, PortError

log = logging.getLogger(__name__)

_LEASE_S = 2.0
_PROBE_PERIOD_S = 0.3
_BACKOFF_FIRST_S = 1.0
_BACKOFF_MAX_S = 20.0
_START_S = 60.0


@dataclass(slots=True)
class Faults:
    """What goes wrong; each takes effect for the pods whose names contain the text."""

    image_pull_s: float = 0.0
    crash_looping: set[str] = field(default_factory=set[str])  # the container ends at once, every time
    oom: set[str] = field(default_factory=set[str])  # the same, and says OOMKilled
    hanging: set[str] = field(default_factory=set[str])  # the container runs, nothing listens

    def hits(self, names: set[str], pod: str) -> bool:
        """Whether a fault concerns this pod."""
        return any(name in pod for name in names)


@dataclass(slots=True)
class _Container:
    pod: str
    ip: str
    process: ServerProcess | None = None
    restarts: int = 0
    ready: bool = False
    last: dict[str, Any] = field(default_factory=dict[str, Any])


class ProcessKubelet:
    """Plays every node; start it with `start`, end it with `close`."""

    def __init__(
        self,
        api: KubeApi,
        folder: Path,
        *,
        network: int = 1,
        fake: bool = False,
        environment: TritonEnvironment | None,
    ) -> None:
        """Pods get addresses 127.``network``.x.y; two kubelets of one machine need different networks."""
        self._api, self._folder, self._network, self._fake = api, folder, network, fake
        self._environment = environment
        self._clock = SystemClock()
        self._numbers = itertools.count(1)
        self._pods: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._containers: dict[str, _Container] = {}
        self._watch = Reflector(
            api, "/api/v1/pods", query={"fieldSelector": "spec.nodeName!="}, on_change=self._changed
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._change = asyncio.Event()
        self.lost: set[str] = set()
        self.nodes: list[str] = []
        self.faults = Faults()

    @classmethod
    async def start(
        cls,
        api: KubeApi,
        folder: Path,
        *,
        network: int = 1,
        fake: bool = False,
        environment: TritonEnvironment | None = None,
    ) -> Self:
        """Begin to watch; add nodes with `add_node`."""
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        if not fake:
            environment = environment or TritonEnvironment.find()
        kubelet = cls(api, folder, network=network, fake=fake, environment=environment)
        kubelet._watch.start()
        kubelet._tasks = [
            asyncio.create_task(kubelet._heartbeat(), name="kubelet leases"),
            asyncio.create_task(kubelet._run(), name="kubelet"),
        ]
        return kubelet

    async def add_node(
        self,
        name: str,
        *,
        gpus: int = 4,
        product: str = "NVIDIA-A10",
        capability: str = "8.6",
        pods: int = 110,
    ) -> None:
        """Register a node with GPUs, ready at once."""
        major, _, minor = capability.partition(".")
        labels = {
            "kubernetes.io/hostname": name,
            "nvidia.com/gpu.product": product,
            "nvidia.com/gpu.compute.major": major,
            "nvidia.com/gpu.compute.minor": minor,
        }
        capacity = {"cpu": "64", "memory": "256Gi", "pods": str(pods), "nvidia.com/gpu": str(gpus)}
        await self._api.create(
            "/api/v1/nodes",
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {}},
        )
        await self._api.patch(
            f"/api/v1/nodes/{name}/status", {"status": {"capacity": capacity, "allocatable": capacity}}
        )
        self.nodes.append(name)
        await self._renew(name)

    def lose_node(self, name: str) -> None:
        """Stop the node's heartbeats and its processes, without a word to the API server, as a power cut does."""
        self.lost.add(name)
        self._changed()

    def crash(self, pod: str) -> None:
        """Kill a pod's server; its container is restarted."""
        container = self._containers[pod]
        assert container.process is not None
        self._tasks.append(asyncio.create_task(_kill(container.process)))

    def address(self, pod: str) -> str:
        """A pod's address."""
        return self._containers[pod].ip

    async def close(self) -> None:
        """End every process; pods stay in the API server."""
        await self._watch.close()
        tasks = [*self._tasks, *self._pods.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---------------------------------------------------------------- nodes

    async def _heartbeat(self) -> None:
        while True:
            for name in self.nodes:
                if name not in self.lost:
                    with suppress(PortError):  # the API server may be down: that is a test's affair
                        await self._renew(name)
            await self._clock.sleep(_LEASE_S)

    async def _renew(self, name: str) -> None:
        # After a silence the node controller has called the node unknown: only its own word takes that back.
        ready = {"status": {"conditions": [_condition("Ready", ok=True)]}}
        await self._api.patch(f"/api/v1/nodes/{name}/status", ready)
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        spec = {"holderIdentity": name, "leaseDurationSeconds": 8, "renewTime": _now(micro=True)}
        try:
            await self._api.patch(f"{path}/{name}", {"spec": spec})
        except NotFoundError:
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": name, "namespace": "kube-node-lease"},
                "spec": spec,
            }
            with suppress(ConflictError):
                await self._api.create(path, body)

    # ---------------------------------------------------------------- pods

    def _changed(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    async def _run(self) -> None:
        while True:
            change, present = self._change, self._watch.objects
            for key, pod in present.items():
                node = pod["spec"].get("nodeName")
                if key not in self._pods and node in self.nodes and node not in self.lost:
                    life = self._fake_life(pod) if self._fake else self._life(pod)
                    self._pods[key] = asyncio.create_task(life, name=f"pod {key[1]}")
            for key in [k for k in self._pods if k not in present]:
                self._pods.pop(key).cancel()
            for key, task in self._pods.items():
                if present[key]["spec"].get("nodeName") in self.lost:
                    task.cancel()
                elif self._fake and task.done() and "deletionTimestamp" in present[key]["metadata"]:
                    self._pods[key] = asyncio.create_task(self._gone(key), name=f"end of pod {key[1]}")
            await change.wait()

    async def _fake_life(self, pod: Mapping[str, Any]) -> None:
        key = (pod["metadata"]["namespace"], pod["metadata"]["name"])
        container = _Container(key[1], self._address())
        self._containers[key[1]] = container
        container.ready = True
        await self._say(key, pod, container, {"running": {"startedAt": _now()}})

    async def _life(self, pod: Mapping[str, Any]) -> None:
        """One pod from its binding to its end."""
        key = (pod["metadata"]["namespace"], pod["metadata"]["name"])
        container = _Container(key[1], self._address())
        self._containers[key[1]] = container
        leaving = asyncio.create_task(self._leaving(key))
        running = asyncio.create_task(self._keep_running(key, pod, container))
        try:
            await asyncio.wait({leaving, running}, return_when=asyncio.FIRST_COMPLETED)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            if container.process is not None:
                await container.process.stop()
            await self._gone(key)
        finally:
            leaving.cancel()
            running.cancel()
            if container.process is not None:
                await container.process.kill()
            remove_shared_memory(_shm(key[1]))
            self._containers.pop(key[1], None)

    async def _keep_running(
        self, key: tuple[str, str], pod: Mapping[str, Any], container: _Container
    ) -> None:
        await self._say(key, pod, container, {"waiting": {"reason": "ContainerCreating"}})
        await self._clock.sleep(self.faults.image_pull_s)
        backoff_s = _BACKOFF_FIRST_S
        while True:
            ended = await self._run_once(key, pod, container)
            container.process, container.ready = None, False
            container.restarts += 1
            container.last = {"terminated": ended}
            waiting = {
                "reason": "CrashLoopBackOff",
                "message": f"back-off {backoff_s:g}s restarting failed container",
            }
            await self._say(key, pod, container, {"waiting": waiting})
            await self._clock.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)

    async def _run_once(
        self, key: tuple[str, str], pod: Mapping[str, Any], container: _Container
    ) -> dict[str, Any]:
        """Run the container until it ends; return how it ended."""
        if self.faults.hits(self.faults.oom, key[1]):
            return {"exitCode": 137, "reason": "OOMKilled", "finishedAt": _now()}
        if self.faults.hits(self.faults.crash_looping, key[1]):
            return {"exitCode": 1, "reason": "Error", "finishedAt": _now()}
        started_at = _now()
        if self.faults.hits(self.faults.hanging, key[1]):
            await self._say(key, pod, container, {"running": {"startedAt": started_at}})
            await asyncio.Event().wait()
        try:
            container.process = await ServerProcess.start(self._spec(key[1], pod, container))
        except ServerStartError as error:
            log.warning("pod %s: %s", key[1], error)
            return {"exitCode": 1, "reason": "Error", "finishedAt": _now()}
        await self._say(key, pod, container, {"running": {"startedAt": started_at}})
        probing = asyncio.create_task(self._probe(key, pod, container, started_at))
        ended = await container.process.wait()
        probing.cancel()
        await asyncio.gather(probing, return_exceptions=True)
        return {"exitCode": ended.code % 256, "reason": "Error", "finishedAt": _now()}

    async def _probe(
        self, key: tuple[str, str], pod: Mapping[str, Any], container: _Container, started_at: str
    ) -> None:
        """Ask the readiness probe for ever, and report its changes; three failures in a row make a pod unready."""
        probe = pod["spec"]["containers"][0].get("readinessProbe", {}).get("httpGet")
        failures = 0
        while True:
            ok = probe is None or await asyncio.to_thread(_answers, container.ip, probe)
            failures = 0 if ok else failures + 1
            ready = ok or (container.ready and failures < 3)
            # The node controller calls pods of a silent node unready: only the kubelet's word takes that back.
            if ready != container.ready or ready != self._is_said_ready(key):
                container.ready = ready
                await self._say(key, pod, container, {"running": {"startedAt": started_at}})
            await self._clock.sleep(_PROBE_PERIOD_S)

    def _is_said_ready(self, key: tuple[str, str]) -> bool:
        conditions = self._watch.objects.get(key, {}).get("status", {}).get("conditions", ())
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    async def _leaving(self, key: tuple[str, str]) -> None:
        while True:
            change, pod = self._change, self._watch.objects.get(key)
            if pod is None or "deletionTimestamp" in pod["metadata"]:
                return
            await change.wait()

    async def _gone(self, key: tuple[str, str]) -> None:
        with suppress(PortError):
            await self._api.delete(f"/api/v1/namespaces/{key[0]}/pods/{key[1]}", gracePeriodSeconds="0")

    async def _say(
        self, key: tuple[str, str], pod: Mapping[str, Any], container: _Container, state: Mapping[str, Any]
    ) -> None:
        """Report the container's state; a pod that is gone needs no report, an API server that is away gets it again."""
        spec = pod["spec"]["containers"][0]
        ready = container.ready
        status = {
            "phase": "Running" if "running" in state or container.restarts else "Pending",
            "podIP": container.ip,
            "podIPs": [{"ip": container.ip}],
            "hostIP": "127.0.0.1",
            "startTime": pod["metadata"]["creationTimestamp"],
            "conditions": [
                _condition("Initialized", ok=True),
                _condition("PodScheduled", ok=True, at=pod["metadata"]["creationTimestamp"]),
                _condition("ContainersReady", ok=ready),
                _condition("Ready", ok=ready),
            ],
            "containerStatuses": [
                {
                    "name": spec["name"],
                    "image": spec["image"],
                    "imageID": "",
                    "ready": ready,
                    "started": "running" in state,
                    "restartCount": container.restarts,
                    "state": state,
                    "lastState": container.last,
                }
            ],
        }
        while True:
            try:
                await self._api.patch(f"/api/v1/namespaces/{key[0]}/pods/{key[1]}/status", {"status": status})
            except NotFoundError:
                return
            except PortError as error:
                log.info("pod %s: %s", key[1], error)
                await self._clock.sleep(_PROBE_PERIOD_S)
            else:
                return

    def _address(self) -> str:
        number = next(self._numbers)
        return f"127.{self._network}.{number // 250}.{number % 250 + 1}"

    def _spec(self, pod_name: str, pod: Mapping[str, Any], container: _Container) -> ServerSpec:
        """The pod's first container as a process: its arguments, with volume mounts read as host paths."""
        assert self._environment is not None
        spec = pod["spec"]["containers"][0]
        volumes = {v["name"]: v.get("hostPath", {}).get("path", "") for v in pod["spec"].get("volumes", ())}
        arguments = list(spec.get("args", ()))
        for mount in spec.get("volumeMounts", ()):
            if path := volumes.get(mount["name"]):
                arguments = [a.replace(f"={mount['mountPath']}", f"={path}") for a in arguments]
        backends = self._environment.backend_directory(self._folder)
        ip = container.ip
        return ServerSpec(
            name=f"Triton {pod_name}",
            argv=(
                str(self._environment.server),
                f"--id={pod_name}",
                *arguments,
                f"--backend-directory={backends}",
                *(f"--grpc-address={ip}", f"--http-address={ip}", f"--metrics-address={ip}"),
                *("--allow-cpu-metrics=false", "--allow-gpu-metrics=false", "--exit-timeout-secs=2"),
                f"--backend-config=python,shm-region-prefix-name={_shm(pod_name)}",
            ),
            cwd=self._folder,
            env=self._environment.variables,
            log_path=self._folder / f"{pod_name}.{container.restarts}.log",
            ready_lines=(),
            start_timeout_s=_START_S,
            stop_grace_s=5.0,
        )


def _shm(pod: str) -> str:
    return f"forecrest-pod-{pod}-"


async def _kill(process: ServerProcess) -> None:
    await process.kill()


def _answers(ip: str, probe: Mapping[str, Any]) -> bool:
    try:
        with urllib.request.urlopen(f"http://{ip}:{probe['port']}{probe['path']}", timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _condition(kind: str, *, ok: bool, at: str | None = None) -> dict[str, str]:
    return {"type": kind, "status": "True" if ok else "False", "lastTransitionTime": at or _now()}


def _now(*, micro: bool = False) -> str:
    now = SystemClock().now()
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")
