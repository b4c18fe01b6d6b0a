"""Page tokens belong to one query; a stream of an event goes on where it broke off, and says nothing twice."""

import asyncio
import os
import sys
from typing import Any

import grpc
import pytest
from forecrest.v1 import control_service_pb2, event_pb2, event_service_pb2, workload_service_pb2

from controller.adapters.clock import SystemClock
from controller.adapters.fakes import FakeSignalCache
from controller.api.limits import ApiLimits
from controller.api.server import ApiDependencies, serve
from controller.client import explain
from tests.integration.api.conftest import World, answer, refusal

E, W, C = event_service_pb2, workload_service_pb2, control_service_pb2


@pytest.mark.parametrize(
    ("name", "first", "others"),
    [
        pytest.param(
            "EventService/ListEvents",
            E.ListEventsRequest(page_size=1, filter="category = promotion"),
            [
                E.ListEventsRequest(page_size=1),
                E.ListEventsRequest(page_size=1, filter="category = promotion", order_by="name"),
                E.ListEventsRequest(page_size=1, filter="category != promotion"),
                E.ListEventsRequest(page_size=1, filter="category = promotion", workload="workloads/rec"),
            ],
            id="events",
        ),
        pytest.param(
            "WorkloadService/ListWorkloads",
            W.ListWorkloadsRequest(page_size=1, order_by="priority desc"),
            [
                W.ListWorkloadsRequest(page_size=1),
                W.ListWorkloadsRequest(page_size=1, order_by="priority"),
                W.ListWorkloadsRequest(page_size=1, order_by="priority desc", filter="mode = SCALE"),
            ],
            id="workloads",
        ),
    ],
)
async def test_a_token_is_of_its_own_query_only(
    world: World,
    name: str,
    first: Any,  # noqa: ANN401 -- requests of several methods
    others: list[Any],
) -> None:
    token = (await answer(world, name, first)).next_page_token
    for other in others:
        other.page_token = token
        error = await refusal(world, name, other)
        assert ["page_token"] == [field for field, _ in error.violations]
    first.page_token, first.page_size = token, 5

    again = await answer(world, name, first)

    assert again.next_page_token == ""


async def names(world: World, **asked: Any) -> list[str]:  # noqa: ANN401 -- fields of the request
    found: list[str] = []
    request = E.ListEventsRequest(page_size=1, **asked)
    while True:
        page = await world.client.events.ListEvents(request)
        found += [event.name.removeprefix("events/") for event in page.events]
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"order_by": "start_time desc"}, ["spare", "sale", "running"]),
        ({"order_by": "name"}, ["running", "sale", "spare"]),
        ({"order_by": "end_time"}, ["running", "sale", "spare"]),
        ({"filter": "state = ACTIVE"}, ["running"]),
        ({"filter": "state != ACTIVE AND NOT name = spare"}, ["sale"]),
        (
            {"filter": "workload = workloads/rec AND priority >= 0", "order_by": "name desc"},
            ["spare", "sale", "running"],
        ),
        ({"filter": "workload = workloads/spare"}, []),
        ({"filter": "name:sal", "states": [event_pb2.EVENT_STATE_SCHEDULED]}, ["sale"]),
    ],
)
async def test_events_are_filtered_and_ordered_across_pages(
    world: World, asked: dict[str, Any], expected: list[str]
) -> None:
    assert expected == await names(world, **asked)


async def test_workloads_are_found_by_their_labels(world: World) -> None:
    await world.client.workloads.UpdateWorkload(
        W.UpdateWorkloadRequest(
            workload={"name": "workloads/spare", "labels": {"team": "search"}, "priority": 5}
        )
    )

    labelled = await world.client.workloads.ListWorkloads(
        W.ListWorkloadsRequest(filter="labels.team = search")
    )
    ranked = await world.client.workloads.ListWorkloads(W.ListWorkloadsRequest(order_by="priority desc"))

    assert ["workloads/spare"] == [w.name for w in labelled.workloads]
    assert {"team": "search"} == dict(labelled.workloads[0].labels)
    assert ["workloads/spare", "workloads/rec"] == [w.name for w in ranked.workloads]


async def change(world: World, peak: float) -> int:
    event = event_pb2.Event(name="events/sale", expected_peak_qps=peak)
    return (await world.client.events.UpdateEvent(E.UpdateEventRequest(event=event))).revision


async def test_a_resumed_stream_begins_with_what_was_missed_and_not_before(world: World) -> None:
    async with asyncio.timeout(60):
        stream = world.client.events.WatchEvent(E.WatchEventRequest(name="events/sale"))
        first = await anext(aiter(stream))
        stream.cancel()
        resumed = world.client.events.WatchEvent(
            E.WatchEventRequest(name="events/sale", resume_token=first.resume_token)
        )
        waiting = asyncio.ensure_future(anext(aiter(resumed)))
        revision = await change(world, 6000.0)
        missed = await waiting
        resumed.cancel()
        late = world.client.events.WatchEvent(
            E.WatchEventRequest(name="events/sale", resume_token=first.resume_token)
        )
        caught_up = await anext(aiter(late))
        late.cancel()

    assert (True, False, False) == (first.snapshot, missed.snapshot, caught_up.snapshot)
    assert [1, revision, revision] == [m.event.revision for m in (first, missed, caught_up)]
    assert missed.resume_token == caught_up.resume_token != first.resume_token


async def test_a_token_of_another_stream_is_refused(world: World) -> None:
    decisions = world.client.control.WatchDecisions(C.WatchDecisionsRequest(workload="workloads/rec"))
    async with asyncio.timeout(60):
        token = (await anext(aiter(decisions))).resume_token
    decisions.cancel()
    stream = world.client.events.WatchEvent(
        E.WatchEventRequest(name="events/sale", resume_token=token or "x")
    )

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await anext(aiter(stream))

    assert ["resume_token"] == [field for field, _ in explain(caught.value).violations]


async def test_the_client_repeats_nothing_when_another_server_answers(world: World) -> None:
    clock = SystemClock()
    deps = ApiDependencies(world.store, FakeSignalCache(clock), clock, limits=ApiLimits(poll_period_s=0.2))
    async with asyncio.timeout(120):
        messages = aiter(world.client.watch_event("events/sale"))
        first = await anext(messages)
        waiting = asyncio.ensure_future(anext(messages))
        await world.server.stop(grace_s=0)
        other = await serve(deps, world.server.target)
        try:
            revision = await change(world, 6500.0)
            second = await waiting
        finally:
            await other.stop(grace_s=0)

    assert [1, revision] == [first.event.revision, second.event.revision]
    assert [True, False] == [first.snapshot, second.snapshot]


async def test_the_command_line_says_nothing_twice_while_it_watches(world: World) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "controller", "events", "watch", "sale", "--address", world.server.target),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "80"},
    )
    assert process.stdout is not None
    async with asyncio.timeout(120):
        first = (await process.stdout.readline()).decode()
        for peak in (6000.0, 7000.0):  # changes that no line shows
            await change(world, peak)
        await world.client.events.CancelEvent(E.CancelEventRequest(name="events/sale"))
        rest, said = await process.communicate()

    lines = [line.split(" ", 1)[1] for line in [first, *rest.decode().splitlines()]]
    assert ["SCHEDULED: not planned yet", "CANCELLED: not planned yet"] == [line.strip() for line in lines]
    assert (0, "The event is over.") == (process.returncode, said.decode().strip())
