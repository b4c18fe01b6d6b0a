"""Lead running pods to warm, and remember what was found: one verification per run of a pod.

Promises: a pod is VERIFIED only by `triton.verify_warm`, and for the run of its containers that was verified: after
a restart it starts anew. What may heal is tried again with growing pauses; a failure begins with its name, which the
core looks for. At most ``VERIFYING_MAX`` verifications run at once. A verified pod is asked again from time to time.
Called by the actuator, which tells the pods of every look.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from controller.actuators.kubernetes.pods import PodFacts
from controller.actuators.kubernetes.targets import Target
from controller.actuators.triton import (
    WarmFailure,
    WarmResult,
    WarmStage,
    WarmTarget,
    is_serving,
    verify_warm,
)
from controller.core.types import Stage, Workload
from controller.ports import Clock

log = logging.getLogger(__name__)

VERIFYING_MAX: Final = 16
RETRY_FIRST_S: Final = 2.0
RETRY_MAX_S: Final = 60.0
HEALTH_PERIOD_S: Final = 10.0
# Of all pods together: Kubernetes asks each of them as well, so a large fleet is asked by us less often.
HEALTH_CHECKS_PER_S_MAX: Final = 25.0
HEALTH_TIMEOUT_S: Final = 3.0
# In a row: one late answer on a busy node is no reason to give a warm replica up.
HEALTH_FAILURES_MAX: Final = 3


@dataclass(slots=True)
class Warmth:
    """How far one run of a pod verifiably got."""

    run: str
    endpoint: str
    target: WarmTarget
    stage: Stage = Stage.SCHEDULED
    stage_at: datetime | None = None
    failure: str | None = None
    stage_s: dict[str, float] = field(default_factory=dict[str, float])
    is_judged: bool = False  # at least one verification came to an end
    task: asyncio.Task[None] | None = None


class Verifier:
    """Verifies pods in the background; `warmth` answers from what is known."""

    def __init__(self, clock: Clock, on_change: Callable[[], None] = lambda: None) -> None:
        self._clock, self._on_change = clock, on_change
        self._slots = asyncio.Semaphore(VERIFYING_MAX)
        self._known: dict[tuple[str, str], Warmth] = {}  # by namespace and pod name

    def look(self, workload: Workload, target: Target, pods: Sequence[PodFacts]) -> Mapping[str, Warmth]:
        """Begin to verify what runs and is not verified yet; return what is known, by pod name."""
        wanted = WarmTarget(
            model_name=workload.model_name,
            model_version=workload.model_version,
            engine_digest=workload.engine_digest,
            latency_ms_max=workload.slo.latency_ms_p99,
        )
        found: dict[str, Warmth] = {}
        for pod in pods:
            if pod.ip is None or pod.running_at is None or pod.is_leaving:
                continue
            key = (target.namespace, pod.name)
            known = self._known.get(key)
            if known is None or known.run != pod.run or known.target != wanted:
                self._forget(key)
                known = Warmth(pod.run, f"{pod.host}:{target.grpc_port}", wanted)
                known.task = asyncio.create_task(self._live(known, pod), name=f"verify {pod.name}")
                self._known[key] = known
            found[pod.name] = known
        return found

    def retain(self, keys: set[tuple[str, str]]) -> None:
        """Forget pods that are gone."""
        for key in self._known.keys() - keys:
            self._forget(key)

    async def close(self) -> None:
        """End every verification."""
        tasks = [w.task for w in self._known.values() if w.task is not None]
        for key in list(self._known):
            self._forget(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, key: tuple[str, str]) -> None:
        known = self._known.pop(key, None)
        if known is not None and known.task is not None:
            known.task.cancel()

    async def _live(self, warmth: Warmth, pod: PodFacts) -> None:
        """Verify until warm, then watch, for ever; the look that misses the pod ends it."""
        pause_s = RETRY_FIRST_S
        while True:
            try:
                async with self._slots:
                    result = await verify_warm(
                        warmth.endpoint,
                        warmth.target,
                        clock=self._clock,
                        on_stage=lambda stage: self._heard(warmth, stage),
                    )
                self._judge(warmth, pod, result)
            except Exception as error:  # a defect of ours must show as a failed replica, not as a silent one
                log.exception("verification of %s", pod.name)
                self._reach(warmth, Stage.FAILED, f"unexpected: {error}")
                warmth.is_judged = True
            if warmth.stage is Stage.VERIFIED:
                pause_s = RETRY_FIRST_S
                problem = await self._problem(warmth)
                log.warning("pod %s: %s", pod.name, problem)
                self._reach(warmth, Stage.LOADED, None)
            elif warmth.stage is Stage.SCHEDULED:
                await self._clock.sleep(RETRY_FIRST_S)  # it is starting: `verify_warm` did the waiting
            else:
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)

    def _heard(self, warmth: Warmth, stage: WarmStage) -> None:
        if stage is WarmStage.MODEL_LOADED and warmth.stage is Stage.SCHEDULED:
            self._reach(warmth, Stage.LOADED, None)

    def _judge(self, warmth: Warmth, pod: PodFacts, result: WarmResult) -> None:
        warmth.is_judged = True
        if result.is_warm:
            # Once per run of the containers, however many tries a slow start took.
            warmth.stage_s = warmth.stage_s or stages(pod, result, self._clock.now())
            self._reach(warmth, Stage.VERIFIED, None)
        elif result.failure is WarmFailure.UNREACHABLE:
            # It may still be starting: the order's time limit says when that is too long.
            self._reach(warmth, Stage.SCHEDULED, None)
        else:
            log.error("pod %s: %s", pod.name, result.reason)
            self._reach(warmth, Stage.FAILED, result.reason)

    def _reach(self, warmth: Warmth, stage: Stage, failure: str | None) -> None:
        if (warmth.stage, warmth.failure) != (stage, failure) or warmth.stage_at is None:
            warmth.stage, warmth.failure, warmth.stage_at = stage, failure, self._clock.now()
        self._on_change()

    async def _problem(self, warmth: Warmth) -> str:
        """Watch a warm pod until it no longer serves, and say so."""
        silent_count = 0
        while silent_count < HEALTH_FAILURES_MAX:
            await self._clock.sleep(max(HEALTH_PERIOD_S, len(self._known) / HEALTH_CHECKS_PER_S_MAX))
            serving = False
            with suppress(OSError):
                serving = await is_serving(
                    warmth.endpoint,
                    warmth.target.model_name,
                    warmth.target.model_version,
                    timeout_s=HEALTH_TIMEOUT_S,
                )
            silent_count = 0 if serving else silent_count + 1
        return f"{HEALTH_FAILURES_MAX} health checks in a row failed; it is verified anew"


def stages(pod: PodFacts, result: WarmResult, verified_at: datetime) -> dict[str, float]:
    """Measured stages of a start, in seconds: schedule, image, load, warmup.

    ``pod`` is as it was when verification began. Kubernetes tells whole seconds. One that was ready already, as after
    a restart of the controller, tells its load by its readiness; any other by when it was verified.
    """
    if pod.scheduled_at is None or pod.running_at is None:
        return {}
    took = result.stage_s
    warmup_s = took.get(WarmStage.ENGINE_VERIFIED, 0.0) + took.get(WarmStage.WARM, 0.0)
    if pod.ready_at is not None:
        load_s = (pod.ready_at - pod.running_at).total_seconds()
    else:
        load_s = (verified_at - pod.running_at).total_seconds() - warmup_s
    return {
        "schedule": max(0.0, (pod.scheduled_at - pod.created_at).total_seconds()),
        "image": max(0.0, (pod.running_at - pod.scheduled_at).total_seconds()),
        "load": max(0.0, load_s),
        "warmup": warmup_s,
    }
