"""What a large fleet on Kubernetes costs the controller and the API server: calls, memory, time of a look and of a tick.

Promises: a real etcd and API server, a controller of production's own parts (`open_runtime`) with its Kubernetes
actuator, and Deployments and pods that are objects only: nodes are names, pods were called ready by a patch of their
status. Stands in: nobody serves, so every ready pod counts as verified at once, demand is not measured, and neither the
controller manager nor the scheduler runs. A share of the pods changes all the time, as in a fleet that lives. Called by
people: `python -m benchmarks.kubernetes --json`.
"""

import argparse
import asyncio
import json
import resource
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from controller.actuators.kubernetes import KubeApi, KubernetesActuator, warmth
from controller.actuators.triton import WarmResult, WarmStage
from controller.adapters.clock import SystemClock
from controller.bootstrap import Runtime, open_runtime
from controller.core.types import CapacityProfile, DemandObservation, Mode, Workload
from controller.ports import DemandMeterPort, PoolView
from controller.settings import Settings
from tests.e2e.cluster.binary import build
from tests.e2e.cluster.controlplane import ControlPlane

CLOCK = SystemClock()
TICK_PERIOD_S = 5.0
AT_ONCE = 8
CHURN_PER_S = 5.0  # pods whose status changes
FIRST_TICKS_S = 900.0


class _NoDemand(DemandMeterPort):
    """Nobody serves, so nothing is scraped."""

    def set_windows(self, workload: str, stable: Any, panic: Any) -> None:  # noqa: ANN401 - unused
        """Nothing is averaged."""

    async def scrape(self, views: Mapping[str, PoolView]) -> Mapping[str, DemandObservation]:
        """Nothing is known."""
        del views
        return {}

    def drain_samples(self) -> Sequence[Any]:
        """Nothing was counted."""
        return ()


async def _verified(*_: object, **__: object) -> WarmResult:
    return WarmResult(WarmStage.WARM, None, "", {})


async def _served(*_: object, **__: object) -> bool:
    return True


async def in_bulk(jobs: Sequence[Callable[[], Awaitable[object]]]) -> float:
    """Run them, so many at once; return the seconds it took."""
    began_s, waiting = CLOCK.monotonic(), iter(jobs)

    async def worker() -> None:
        for job in waiting:
            await job()

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return CLOCK.monotonic() - began_s


def deployment(name: str, replicas: int) -> dict[str, Any]:
    """A Triton Deployment, as in deploy/examples."""
    labels = {"app": name, "app.kubernetes.io/part-of": "fleet"}
    container = {"name": "triton", "image": "triton", "args": ["--model-repository=/models"]}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def pod(name: str, number: int, made: Mapping[str, Any]) -> dict[str, Any]:
    """A pod of a deployment, bound to a node that is a name."""
    template = made["spec"]["template"]
    return {
        "metadata": {"name": f"{name}-{number}", "labels": template["metadata"]["labels"]},
        "spec": template["spec"] | {"nodeName": f"gpu-{number}"},
    }


def status(number: int, restarts: int = 0) -> dict[str, Any]:
    """A pod that runs and is ready."""
    at = CLOCK.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = [{"type": kind, "status": "True", "lastTransitionTime": at} for kind in ("PodScheduled", "Ready")]
    container = {
        "name": "triton",
        "image": "triton",
        "imageID": "",
        "ready": True,
        "restartCount": restarts,
        "state": {"running": {"startedAt": at}},
    }
    ip = f"10.{number // 62500 % 250}.{number // 250 % 250}.{number % 250 + 1}"
    return {
        "status": {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "startTime": at,
            "conditions": ready,
            "containerStatuses": [container],
        }
    }


async def populate(api: KubeApi, workloads: int, pods: int, namespaces: int) -> dict[str, float]:
    """Create the fleet; return how long each part took."""
    each = pods // workloads
    places = [f"fleet-{n}" for n in range(namespaces)]
    for place in places:
        await api.create("/api/v1/namespaces", {"metadata": {"name": place}})
        # The controller manager would have made it; without one pods are refused.
        await api.create(f"/api/v1/namespaces/{place}/serviceaccounts", {"metadata": {"name": "default"}})
    took: dict[str, float] = {}
    made: dict[int, dict[str, Any]] = {}

    async def deploy(w: int) -> None:
        path = f"/apis/apps/v1/namespaces/{places[w % namespaces]}/deployments"
        made[w] = await api.create(path, deployment(f"w{w:04}", each))

    took["deployments_s"] = await in_bulk([lambda w=w: deploy(w) for w in range(workloads)])

    async def start(w: int, number: int) -> None:
        path = f"/api/v1/namespaces/{places[w % namespaces]}/pods"
        body = pod(f"w{w:04}", number, made[w])
        await api.create(path, body)
        await api.patch(f"{path}/{body['metadata']['name']}/status", status(w * each + number))

    jobs = [lambda w=w, n=n: start(w, n) for w in range(workloads) for n in range(each)]
    took["pods_s"] = await in_bulk(jobs)
    return took


async def register(runtime: Runtime, workloads: int, pods: int, namespaces: int) -> None:
    """Workloads, straight into the store."""
    each = pods // workloads
    async with runtime.store.unit_of_work() as uow:
        for w in range(workloads):
            await uow.workloads.create(
                Workload(
                    f"w{w:04}",
                    "recommender",
                    (CapacityProfile("two-tower", "", 100.0),),
                    min_replicas=each,
                    max_replicas=2 * each,
                    namespace=f"fleet-{w % namespaces}",
                    mode=Mode.SCALE,
                )
            )
        await uow.commit()


async def churn(api: KubeApi, workloads: int, pods: int, namespaces: int) -> None:
    """Change one pod after the other, for ever."""
    each, turn = pods // workloads, 0
    while True:
        w, number = turn % workloads, turn // workloads % each
        path = f"/api/v1/namespaces/fleet-{w % namespaces}/pods/w{w:04}-{number}/status"
        await api.patch(path, status(w * each + number, 1 + turn // (workloads * each)))
        turn += 1
        await CLOCK.sleep(1 / CHURN_PER_S)


def rss_mib() -> float:
    """Resident memory now."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize() / 2**20


class Timed:
    """Takes the place of an async method and keeps how long each call took."""

    def __init__(self, owner: object, name: str) -> None:
        self._call: Callable[..., Awaitable[Any]] = getattr(owner, name)
        self.took_s: list[float] = []
        setattr(owner, name, self)

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever it stands for
        """Call and time it."""
        began_s = CLOCK.monotonic()
        try:
            return await self._call(*args, **kwargs)
        finally:
            self.took_s.append(CLOCK.monotonic() - began_s)

    def summary(self, since: int) -> dict[str, float]:
        """Figures of the calls from the ``since``-th on."""
        took = sorted(self.took_s[since:])
        return {
            "count": len(took),
            "median_s": round(statistics.median(took), 4) if took else float("nan"),
            "max_s": round(took[-1], 4) if took else float("nan"),
        }


async def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Everything, on a fresh control plane."""
    plane = await ControlPlane.start(build(), folder / "plane")
    feeder = plane.api()
    try:
        for name in ("kube-controller-manager", "kube-scheduler"):
            await plane.kill(name)
        took = await populate(feeder, options.workloads, options.pods, options.namespaces)
        settings = Settings(
            data_dir=folder / "data",
            bind="127.0.0.1:0",
            http_bind="off",
            actuator="kubernetes",
            kubernetes_kubeconfig=plane.kubeconfig(),
            tick_period_s=TICK_PERIOD_S,
            scrape_period_s=TICK_PERIOD_S,
        )
        before_mib = rss_mib()
        async with open_runtime(settings, wrap_meter=lambda _: _NoDemand()) as runtime:
            await register(runtime, options.workloads, options.pods, options.namespaces)
            steady = await watch(runtime, options, feeder)
        return {
            "workloads": options.workloads,
            "pods": options.pods,
            "namespaces": options.namespaces,
            "tick_period_s": TICK_PERIOD_S,
            "churn_per_s": CHURN_PER_S,
            "rss_before_mib": round(before_mib, 1),
            "populate": {name: round(value, 1) for name, value in took.items()},
        } | steady
    finally:
        await feeder.close()
        await plane.stop()


async def watch(runtime: Runtime, options: argparse.Namespace, feeder: KubeApi) -> dict[str, Any]:
    """Wait until all of the fleet is known, then look at the controller for a while."""
    actuator = runtime.actuator
    assert isinstance(actuator, KubernetesActuator)
    look, tick = Timed(actuator, "observe"), Timed(runtime.control, "tick")
    began_s = CLOCK.monotonic()
    while len(runtime.observer.views) < options.workloads or len(tick.took_s) < 2:
        if CLOCK.monotonic() - began_s > FIRST_TICKS_S:
            raise SystemExit(f"only {len(runtime.observer.views)} workloads became known")
        await CLOCK.sleep(1.0)
    known_s = CLOCK.monotonic() - began_s
    change = asyncio.create_task(churn(feeder, options.workloads, options.pods, options.namespaces))
    calls, looks, ticks = Counter(actuator.calls), len(look.took_s), len(tick.took_s)
    cpu = resource.getrusage(resource.RUSAGE_SELF)
    await CLOCK.sleep(options.seconds)
    after = resource.getrusage(resource.RUSAGE_SELF)
    change.cancel()
    await asyncio.gather(change, return_exceptions=True)
    made = Counter(actuator.calls) - calls
    warm = sum(r.warm for view in runtime.observer.views.values() for r in view.replicas)
    busy_s = after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime
    return {
        "known_after_s": round(known_s, 1),
        "warm_replicas": warm,
        "seconds": options.seconds,
        "api_calls_per_minute": round(60 * made.total() / options.seconds, 1),
        "api_calls": {f"{verb} {code}": count for (verb, code), count in sorted(made.items())},
        "observe": look.summary(looks),
        "tick": tick.summary(ticks),
        "cpu_share": round(busy_s / options.seconds, 3),
        "rss_mib": round(rss_mib(), 1),
        "rss_max_mib": round(after.ru_maxrss / 1024, 1),
    }


async def _measured(options: argparse.Namespace) -> dict[str, Any]:
    """Measure in a folder of its own."""
    warmth.verify_warm = _verified
    warmth.is_serving = _served
    with tempfile.TemporaryDirectory(prefix="forecrest-kubernetes-") as folder:
        return await measure(options, Path(folder))


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, measure, print JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kubernetes", description=__doc__)
    parser.add_argument("--workloads", type=int, default=500)
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--namespaces", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long to look at the steady state")
    parser.add_argument("--json", action="store_true", help="on one line")
    options = parser.parse_args(arguments)
    found = asyncio.run(_measured(options))
    sys.stdout.write(json.dumps(found, indent=None if options.json else 2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
