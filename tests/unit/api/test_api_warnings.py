"""Warnings of an event: told at registration, kept with the revision, told anew by a change; and pools from settings."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from forecrest.v1 import event_pb2, event_service_pb2

from controller.adapters.fakes import FakeSignalCache, FakeStore
from controller.api.limits import ApiLimits
from controller.api.server import ApiDependencies, serve
from controller.client import Client
from controller.core.types import QuotaPool
from controller.settings import Settings
from controller.usecases.preview_event import PreviewSettings
from tests.unit.api.conftest import SetClock

SHORT = event_pb2.EVENT_WARNING_KIND_QUOTA_SHORT


@pytest.fixture
async def client(
    store: FakeStore, signals: FakeSignalCache, clock: SetClock, limits: ApiLimits
) -> AsyncIterator[Client]:
    for name, workload in store.tables.workloads.items():
        store.tables.workloads[name] = replace(workload, quota_pool="gpus", max_replicas=60)
    preview = PreviewSettings(pools=(QuotaPool("gpus", nominal_gpus=30),))
    running = await serve(
        ApiDependencies(store, signals, clock, preview=preview, limits=limits), "127.0.0.1:0"
    )
    async with Client(running.target) as connected:
        yield connected
    await running.stop(grace_s=0)


def an_event(workload: str, peak: float) -> event_pb2.Event:
    return event_pb2.Event(
        workloads=[f"workloads/{workload}"],
        start_local="2026-11-12T20:00",
        end_local="2026-11-12T22:00",
        time_zone="Asia/Shanghai",
        expected_peak_qps=peak,
    )


async def create(client: Client, event_id: str, workload: str, peak: float) -> event_pb2.Event:
    return await client.events.CreateEvent(
        event_service_pb2.CreateEventRequest(
            event=an_event(workload, peak), event_id=event_id, request_id=event_id
        )
    )


async def test_a_shortage_at_that_time_is_told_kept_and_gone_when_the_event_moves(client: Client) -> None:
    first = await create(client, "theirs", "search", 8000.0)
    second = await create(client, "ours", "rec", 18_000.0)
    again = await create(client, "ours", "rec", 18_000.0)
    read = await client.events.GetEvent(event_service_pb2.GetEventRequest(name="events/ours"))
    preview = await client.events.PreviewEvent(event_service_pb2.PreviewEventRequest(event=read))
    moved = await client.events.UpdateEvent(
        event_service_pb2.UpdateEventRequest(
            event=event_pb2.Event(
                name="events/ours", start_local="2026-11-13T20:00", end_local="2026-11-13T22:00"
            )
        )
    )

    assert [] == list(first.warnings)
    assert [SHORT] == [warning.kind for warning in second.warnings]
    assert ("workloads/rec", "gpus") == (second.warnings[0].workload, second.warnings[0].quota_pool)
    assert second.warnings[0].unmet_replicas > 0
    assert second.warnings == again.warnings == read.warnings == preview.event.warnings
    assert preview.unmet_replicas == second.warnings[0].unmet_replicas
    assert (2, []) == (moved.revision, list(moved.warnings))


async def test_a_client_cannot_write_warnings(client: Client) -> None:
    event = an_event("rec", 1000.0)
    event.warnings.add(kind=SHORT, workload="workloads/rec", sentence="made up").start_time.FromSeconds(0)
    event.warnings[0].end_time.FromSeconds(1)

    made = await client.events.CreateEvent(event_service_pb2.CreateEventRequest(event=event, event_id="e"))

    assert [] == list(made.warnings)


@pytest.mark.parametrize(
    ("pools", "words"),
    [
        ('[{"name": "a", "nominal_gpus": 1}, {"name": "a", "nominal_gpus": 2}]', "the same name"),
        ('[{"name": "a", "nominal_gpus": -1}]', "0 or more"),
        ('[{"name": "", "nominal_gpus": 1}]', "needs a name"),
        ('[{"name": "a"}]', "nominal_gpus"),
    ],
)
def test_pools_that_make_no_sense_are_refused_at_start(
    monkeypatch: pytest.MonkeyPatch, pools: str, words: str
) -> None:
    monkeypatch.setenv("FORECREST_QUOTA_POOLS", pools)

    with pytest.raises(ValueError, match=words):
        Settings()


def test_pools_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "FORECREST_QUOTA_POOLS",
        '[{"name": "a", "nominal_gpus": 8, "cohort": "all", "borrowing_limit_gpus": 4}]',
    )

    assert (QuotaPool("a", 8, "all", 4),) == Settings().quota_pools
