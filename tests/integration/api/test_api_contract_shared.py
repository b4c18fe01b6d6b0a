"""What holds for every method, over one real server that nothing here changes: answers, refusals, ends of calls."""

import asyncio
from typing import Any

import grpc
import pytest

from controller.client import explain
from tests.integration.api.conftest import World, answer, refusal
from tests.integration.api.methods import CASES, METHODS, Bad, path_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

READING = sorted(n for n, c in CASES.items() if not c.mutates)
VERSIONED = sorted(n for n, c in CASES.items() if c.stale is not None)
NAMED = sorted(n for n, c in CASES.items() if c.missing is not None)
BAD = [pytest.param(name, bad, id=f"{name}: {bad.name}") for name, case in CASES.items() for bad in case.bad]
STREAMS = sorted(n for n in CASES if METHODS[n].server_streaming and not METHODS[n].client_streaming)


@pytest.mark.parametrize("name", READING)
async def test_a_sound_request_is_answered(shared_world: World, name: str) -> None:
    response = await answer(shared_world, name, CASES[name].make())

    assert METHODS[name].output_type.full_name == response.DESCRIPTOR.full_name


@pytest.mark.parametrize(("name", "bad"), BAD)
async def test_a_bad_field_is_named_with_the_remedy(shared_world: World, name: str, bad: Bad) -> None:
    request = CASES[name].make()
    bad.spoil(request)

    error = await refusal(shared_world, name, request)

    assert ("INVALID_ARGUMENT", "INVALID_FIELDS") == (error.code, error.reason)
    assert bad.field in dict(error.violations)
    assert bad.words in dict(error.violations)[bad.field]


@pytest.mark.parametrize("name", NAMED)
async def test_what_is_not_there_is_said_to_be_missing(shared_world: World, name: str) -> None:
    case = CASES[name]
    assert case.missing is not None
    request = case.make()
    case.missing(request)

    error = await refusal(shared_world, name, request)

    assert "NOT_FOUND" == error.code
    assert error.reason in {"RESOURCE_NOT_FOUND", "FORECAST_NOT_FOUND", "PLAN_NOT_FOUND"}


@pytest.mark.parametrize("name", VERSIONED)
async def test_an_etag_that_is_not_the_newest_is_refused(shared_world: World, name: str) -> None:
    case = CASES[name]
    assert case.stale is not None
    request = case.make()
    case.stale(request)

    error = await refusal(shared_world, name, request)

    assert ("ABORTED", "ETAG_MISMATCH") == (error.code, error.reason)


async def test_a_cancelled_call_leaves_the_server_well(shared_world: World, method: str) -> None:
    call = shared_world.call(method, CASES[method].make())
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await (anext(aiter(call)) if METHODS[method].server_streaming else call)

    again = await answer(
        shared_world, "WorkloadService/GetWorkload", CASES["WorkloadService/GetWorkload"].make()
    )

    assert "workloads/rec" == again.name


async def test_a_deadline_that_has_passed_is_the_answer(shared_world: World, method: str) -> None:
    call = shared_world.call(method, CASES[method].make(), timeout=-1.0)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (anext(aiter(call)) if METHODS[method].server_streaming else call)

    assert grpc.StatusCode.DEADLINE_EXCEEDED is caught.value.code()


@pytest.mark.parametrize("name", STREAMS)
async def test_a_closed_stream_gives_its_place_back(shared_world: World, name: str) -> None:
    for _ in range(3):
        await answer(shared_world, name, CASES[name].make())

    # Turns of the loop, not time: the server learns of the end as soon as it runs.
    for _ in range(100_000):
        if not shared_world.server._feed.stream_count:
            break
        await asyncio.sleep(0)
    assert 0 == shared_world.server._feed.stream_count


async def test_bytes_that_are_no_message_are_refused(shared_world: World, method: str) -> None:
    call: Any = shared_world.client.channel
    make = call.unary_stream if METHODS[method].server_streaming else call.unary_unary
    started = make(path_of(method), request_serializer=bytes)(b"\xff\xff\xff\xff")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (anext(aiter(started)) if METHODS[method].server_streaming else started)

    error = explain(caught.value)
    assert ("INVALID_ARGUMENT", "MALFORMED_MESSAGE") == (error.code, error.reason)
