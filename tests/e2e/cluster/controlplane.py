"""Start a real Kubernetes control plane on loopback: etcd, API server, controller manager and scheduler.

Each is a process of its own under the project's guard, so that a test can kill, stop and restart it, and none of
them outlives the test. Access is by static tokens: an administrator's, and those of Kubernetes' own components.
"""

import asyncio
import json
import secrets
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from controller.actuators.kubernetes import KubeApi
from controller.adapters.clock import SystemClock
from controller.adapters.embedded.folder import choose_port
from controller.adapters.embedded.process import ServerProcess, ServerSpec

_START_S = 90.0
_POLL_S = 0.1
# Everything happens sooner than in production, where these are half a minute and more.
_CONTROLLERS = (
    "--horizontal-pod-autoscaler-sync-period=2s",
    "--horizontal-pod-autoscaler-downscale-stabilization=2s",
    "--horizontal-pod-autoscaler-initial-readiness-delay=0s",
    "--node-monitor-period=1s",
    "--node-monitor-grace-period=8s",
    "--pvclaimbinder-sync-period=10m",
)
_USERS = {
    "admin": "system:masters",
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
}


@dataclass(slots=True)
class ControlPlane:
    """A running control plane; made by `start`."""

    binary: Path
    folder: Path
    port: int
    etcd_port: int
    peer_port: int
    tokens: Mapping[str, str]
    processes: dict[str, ServerProcess] = field(default_factory=dict[str, ServerProcess])
    starts: int = 0

    @classmethod
    async def start(cls, binary: Path, folder: Path) -> Self:
        """Start every component; returns when the API server says that it is ready."""
        port = choose_port(taken=set())
        etcd_port = choose_port(taken={port})
        peer_port = choose_port(taken={port, etcd_port})
        tokens = {user: secrets.token_hex(16) for user in _USERS}
        plane = cls(binary, folder, port, etcd_port, peer_port, tokens)
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        plane._write_secrets()
        await plane.start_etcd()
        await plane.start_api_server()
        for user in _USERS:
            plane.kubeconfig(user)
        await asyncio.gather(plane.start_controllers(), plane.start_scheduler())
        return plane

    @property
    def server(self) -> str:
        """URL of the API server."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def certificate(self) -> Path:
        """The certificate the API server made for itself, which is its own authority."""
        return self.folder / "certs" / "apiserver.crt"

    @property
    def audit_log(self) -> Path:
        """Every call to the API server, a JSON object a line: who, which verb, on what."""
        return self.folder / "audit.log"

    def kubeconfig(self, user: str = "admin", token: str | None = None) -> Path:
        """A kubeconfig file for one of the users, or for any bearer token."""
        path = self.folder / f"{user.replace(':', '-')}.kubeconfig"
        cluster = {"server": self.server, "certificate-authority": str(self.certificate)}
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "test", "cluster": cluster}],
                    "users": [{"name": user, "user": {"token": token or self.tokens[user]}}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
                    "current-context": "test",
                }
            )
        )
        path.chmod(0o600)
        return path

    def api(self, user: str = "admin", token: str | None = None) -> KubeApi:
        """A connection as one of the users."""
        return KubeApi.connect(str(self.kubeconfig(user, token)))

    async def start_etcd(self) -> None:
        """Start etcd on its folder."""
        ports = (f"--client-port={self.etcd_port}", f"--peer-port={self.peer_port}")
        await self._start("etcd", "etcd", f"--dir={self.folder / 'etcd'}", *ports)

    async def start_api_server(self) -> None:
        """Start the API server and wait until it is ready."""
        keys = self.folder / "service-accounts.key"
        await self._start(
            "kube-apiserver",
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            f"--secure-port={self.port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--cert-dir={self.folder / 'certs'}",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={keys}",
            f"--service-account-signing-key-file={keys}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--anonymous-auth=false",
            "--endpoint-reconciler-type=none",
            "--event-ttl=10m",
            f"--audit-policy-file={self.folder / 'audit.json'}",
            f"--audit-log-path={self.audit_log}",
        )
        await self._await_ready()

    async def start_controllers(self) -> None:
        """Start the controller manager."""
        await self._start(
            "kube-controller-manager",
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig('system:kube-controller-manager')}",
            f"--service-account-private-key-file={self.folder / 'service-accounts.key'}",
            f"--root-ca-file={self.certificate}",
            "--leader-elect=false",
            "--secure-port=0",
            "--use-service-account-credentials=true",
            *_CONTROLLERS,
        )

    async def start_scheduler(self) -> None:
        """Start the scheduler."""
        kubeconfig = f"--kubeconfig={self.kubeconfig('system:kube-scheduler')}"
        await self._start(
            "kube-scheduler", "kube-scheduler", kubeconfig, "--leader-elect=false", "--secure-port=0"
        )

    async def kill(self, name: str) -> None:
        """End a component at once."""
        await self.processes.pop(name).kill()

    async def stop(self) -> None:
        """End all of them."""
        processes = list(self.processes.values())
        self.processes.clear()
        await asyncio.gather(*(process.kill() for process in processes))

    async def _start(self, name: str, *arguments: str) -> None:
        self.starts += 1
        self.processes[name] = await ServerProcess.start(
            ServerSpec(
                name=name,
                argv=(str(self.binary), *arguments),
                cwd=self.folder,
                env={"PATH": "/usr/bin:/bin", "GOMAXPROCS": "2"},
                log_path=self.folder / f"{name}.{self.starts}.log",
                ready_lines=(),
                start_timeout_s=_START_S,
                stop_grace_s=5.0,
            )
        )

    async def _await_ready(self) -> None:
        clock = SystemClock()
        deadline_s = clock.monotonic() + _START_S
        problem = "no answer"
        while clock.monotonic() < deadline_s:
            try:
                await asyncio.to_thread(self._ask_ready)
            except (urllib.error.URLError, OSError, ValueError) as error:
                problem = str(error)
            else:
                return
            await clock.sleep(_POLL_S)
        raise AssertionError(
            f"the API server was not ready within {_START_S:.0f} s: {problem}; see {self.folder}"
        )

    def _ask_ready(self) -> None:
        context = ssl.create_default_context(cafile=str(self.certificate))
        request = urllib.request.Request(
            f"{self.server}/readyz", headers={"Authorization": f"Bearer {self.tokens['admin']}"}
        )
        with urllib.request.urlopen(request, timeout=5, context=context) as response:
            response.read()

    def _write_secrets(self) -> None:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (self.folder / "service-accounts.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"]}
        (self.folder / "audit.json").write_text(json.dumps(policy | {"rules": [{"level": "Metadata"}]}))
        rows = [f'{self.tokens[user]},{user},{user},"{group}"' for user, group in _USERS.items()]
        (self.folder / "tokens.csv").write_text("\n".join(rows) + "\n")
