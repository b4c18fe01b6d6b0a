"""What is decided is said on the target by Kubernetes Events, in series and within a rate."""

import asyncio
from typing import Any

import pytest

from controller.actuators.kubernetes import KubeApi, KubernetesActuator
from controller.actuators.kubernetes.events import BURST, EventRecorder
from controller.adapters.clock import SystemClock
from controller.core.types import Alarm, AlarmKind, FleetState, WorkloadState
from engines.triton_repository import ServedModel
from tests.e2e.cluster.controlplane import ControlPlane
from tests.e2e.kubernetes.conftest import eventually, triton, workload

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _events(admin: KubeApi, namespace: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await admin.get(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"))[
        "items"
    ]
    return [e for e in items if e.get("reportingController") == "forecrest.dev/controller"]


async def test_what_is_said_again_is_a_series_and_a_flood_is_cut_off(
    plane: ControlPlane, admin: KubeApi, namespace: str, model: ServedModel
) -> None:
    made = await admin.create(
        f"/apis/apps/v1/namespaces/{namespace}/deployments", triton("recommender", model)
    )
    w = workload(namespace, model)
    actuator = KubernetesActuator(plane.api(), SystemClock(), namespaces=[namespace])
    recorder = EventRecorder(actuator, plane.api(), SystemClock(), "test:1")
    running = asyncio.create_task(recorder.run())

    def say(sentence: str) -> None:
        alarm = Alarm(AlarmKind.PREWARM_LATE, w.name, "sale", sentence)
        recorder.saw([w], [], {}, FleetState(), FleetState({w.name: WorkloadState(alarms=(alarm,))}))

    try:

        async def is_watched() -> bool:
            return w.name in await actuator.observe([w])

        await eventually(is_watched)
        for _ in range(3):
            say("late")

        async def is_a_series() -> bool:
            found = await _events(admin, namespace)
            return [(e.get("series") or {}).get("count") for e in found] == [2]

        await eventually(is_a_series)
        (event,) = await _events(admin, namespace)
        for number in range(BURST + 5):
            say(f"late by {number}")

        async def is_cut_off() -> bool:
            return recorder.dropped_count >= 6

        await eventually(is_cut_off)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await recorder.close()
        await actuator.close()

    assert (event["type"], event["reason"], event["note"]) == ("Warning", "PrewarmLate", "sale: late")
    assert event["regarding"]["uid"] == made["metadata"]["uid"]
    assert event["reportingInstance"] == "test:1"
    assert len(await _events(admin, namespace)) == BURST
