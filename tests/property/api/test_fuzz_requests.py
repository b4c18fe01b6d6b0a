"""Whatever is sent, the server stays up, answers with a documented code, and says nothing of its inside.

Twenty thousand requests, made from the descriptors with one seed: sound ones, sound ones with fields replaced,
messages filled at random, flipped bits, cut-off and random bytes. They go over loopback to a real server on a real
PostgreSQL, and twice as many seeds can be tried with ``FORECREST_FUZZ_SEED``.
"""

import asyncio
import logging
import os
import random
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import grpc
import pytest
from forecrest.v1 import workload_service_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from controller.adapters.clock import SystemClock
from controller.adapters.postgres import PostgresStore
from controller.adapters.redis import RedisSignalCache
from controller.api.limits import ApiLimits
from controller.api.server import ApiDependencies, RunningServer, serve
from controller.client import Client
from tests.integration.api.methods import CASES, METHODS, a_workload, path_of, prepare

REQUESTS = 20_000
SEED = int(os.environ.get("FORECREST_FUZZ_SEED", "20261111"))
SENDERS = 16
# Streams hold their place until they are closed, and a simulation its processor: a few of each show as much.
HEAVY_SHARE = 0.02
DOCUMENTED = {
    *("OK", "INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "ABORTED", "FAILED_PRECONDITION"),
    *("RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"),
}
INSIDE = re.compile(
    r"Traceback|sqlalchemy|psycopg|asyncpg|SELECT |INSERT |UPDATE \w+ SET|relation \"|site-packages|\.py\b|"
    r"controller\.|/(?:usr|home|root|work|tmp)/|0x[0-9a-f]{8}"
)
TEXTS = (
    *(
        "",
        "rec",
        "workloads/rec",
        "workloads/-",
        "workloads/rec/forecast",
        "workloads/rec/plan",
        "events/sale",
    ),
    *("engines/built", "engines/-", "decisions/rec-1", "workloads/rec/overrides/hold", "x-1", "UTC", "*"),
    *("2027-12-11T00:00", "FREQ=DAILY", "FREQ=MONTHLY;BYDAY=-1FR", "Europe/Berlin", "start_time desc"),
    *("state = ACTIVE", 'labels.a = "b" OR NOT priority > 1', "((((", "name : *", '"', "\x00", "é\u202e"),
    *(
        "a" * 300,
        "x" * 5000,
        "eyJ4Ijoi",
        "W10=",
        "abc.def",
        "'; DROP TABLE workloads; --",
        "../../etc/passwd",
    ),
)
FLOATS = (0.0, 1.0, -1.0, 0.5, 100.0, 1e300, 5e-324, float("nan"), float("inf"))
INTEGERS = (0, 1, 2, 3, 9, 60, 1000, -1, 2**31 - 1, -(2**31))
SECONDS = (0, 1, 60, 3600, -5, 2**45, -(2**50), 1_796_000_040, 1_830_000_000)
BYTES = (b"", b"\xff\xfe", b"BEGIN:VCALENDAR\r\n" * 50, b"BEGIN:VCALENDAR\r\nEND:VCALENDAR\r\n")
SCALARS: dict[int, tuple[Any, ...]] = {
    FieldDescriptor.CPPTYPE_DOUBLE: FLOATS,
    FieldDescriptor.CPPTYPE_INT64: SECONDS,
    FieldDescriptor.CPPTYPE_BOOL: (True, False),
}


@pytest.fixture
async def server(postgres_store: PostgresStore, redis_url: str) -> AsyncIterator[RunningServer]:
    clock = SystemClock()
    signals = RedisSignalCache(redis_url, clock=clock, prefix=f"fuzz-{uuid.uuid4().hex}:")
    limits = ApiLimits(rate_per_caller_qps=1e6, rate_per_caller_burst=1e6)
    running = await serve(ApiDependencies(postgres_store, signals, clock, limits=limits), "127.0.0.1:0")
    async with Client(running.target) as client:
        await prepare(postgres_store, client)
    yield running
    await running.stop(grace_s=0)
    await signals.close()


def scalar(field: FieldDescriptor, choose: random.Random) -> Any:  # noqa: ANN401 -- as the field has it
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return choose.choice(BYTES if field.type == FieldDescriptor.TYPE_BYTES else TEXTS)
    return choose.choice(SCALARS.get(field.cpp_type, INTEGERS))


def replace_field(message: Any, field: FieldDescriptor, choose: random.Random, depth: int) -> None:  # noqa: ANN401 -- any message
    message.ClearField(field.name)
    held = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[n] for n in ("key", "value"))
        for _ in range(choose.randint(0, 2)):
            held[scalar(key, choose)] = scalar(value, choose)
    elif field.is_repeated:
        for _ in range(choose.choice((0, 1, 2, 2, 60))):
            if field.message_type is not None:
                fill(held.add(), choose, depth + 1)
            else:
                held.append(scalar(field, choose))
    elif field.message_type is not None:
        held.SetInParent()
        fill(held, choose, depth + 1)
    else:
        setattr(message, field.name, scalar(field, choose))


def fill(message: Message, choose: random.Random, depth: int = 0) -> None:
    for field in message.DESCRIPTOR.fields:
        if choose.random() < (0.6 if depth < 3 else 0.2):
            replace_field(message, field, choose, depth)


def nested(message: Any) -> Iterator[Any]:  # noqa: ANN401 -- any message
    yield message
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for inner in value if field.is_repeated else [value]:
            yield from nested(inner)


def spoiled(message: Any, choose: random.Random) -> Any:  # noqa: ANN401 -- any message
    """The message with one to three of its fields, at any depth, replaced."""
    for _ in range(choose.randint(1, 3)):
        part = choose.choice(list(nested(message)))
        fields = list(part.DESCRIPTOR.fields)
        if fields:
            replace_field(part, choose.choice(fields), choose, 2)
    return message


def request_bytes(name: str, choose: random.Random) -> bytes:
    fate = choose.random()
    message: Any = CASES[name].make()
    if 0.25 <= fate < 0.6:
        spoiled(message, choose)
    elif 0.6 <= fate < 0.75:
        message.Clear()
        fill(message, choose)
    data = bytearray(message.SerializeToString())
    if fate >= 0.95:
        return choose.randbytes(choose.randint(0, 200))
    if fate >= 0.85 and data:
        return bytes(data[: choose.randrange(len(data))])
    if fate >= 0.75 and data:
        for _ in range(choose.randint(1, 4)):
            data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
    return bytes(data)


async def code_of(channel: grpc.aio.Channel, name: str, data: bytes) -> tuple[str, str]:
    """The code and the message of the answer."""
    method, path = METHODS[name], path_of(name)
    try:
        if method.client_streaming:
            both = channel.stream_stream(path, request_serializer=bytes)(iter([data]), timeout=20)
            async for _ in both:
                pass
        elif method.server_streaming:
            stream = channel.unary_stream(path, request_serializer=bytes)(data, timeout=20)
            try:
                await anext(aiter(stream), None)
            finally:
                stream.cancel()
        else:
            await channel.unary_unary(path, request_serializer=bytes)(data, timeout=20)
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details() or ""
    return "OK", ""


def plan(choose: random.Random) -> list[tuple[str, bytes]]:
    heavy = sorted(n for n, m in METHODS.items() if m.server_streaming or n == "ControlService/Simulate")
    light = sorted(METHODS.keys() - set(heavy))
    names = (choose.choice(heavy if choose.random() < HEAVY_SHARE else light) for _ in range(REQUESTS))
    return [(name, request_bytes(name, choose)) for name in names]


@pytest.mark.timeout(600)
async def test_no_request_brings_the_server_down_or_its_inside_out(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "controller")
    requests = plan(random.Random(SEED))
    codes: Counter[str] = Counter()
    odd: list[str] = []
    work = iter(enumerate(requests))

    async def send(channel: grpc.aio.Channel) -> None:
        for number, (name, data) in work:
            if number % 400 == 0:
                await restore(channel)  # a deletion must not end the run early
            code, message = await code_of(channel, name, data)
            codes[code] += 1
            if (code not in DOCUMENTED or INSIDE.search(message)) and len(odd) < 20:
                odd.append(
                    f"seed {SEED}, request {number}, {name}: {code} {message[:200]} {data.hex()[:400]}"
                )

    async with grpc.aio.insecure_channel(server.target) as channel:
        await asyncio.gather(*(send(channel) for _ in range(SENDERS)))
        response = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())

    assert [] == odd
    assert sum(codes.values()) == REQUESTS
    assert {"OK", "INVALID_ARGUMENT", "NOT_FOUND"} <= set(codes)
    assert codes["OK"] > REQUESTS / 20
    assert response.status == health_pb2.HealthCheckResponse.SERVING
    assert [] == [record.message for record in caplog.records if "unexpected failure" in record.message]


async def restore(channel: grpc.aio.Channel) -> None:
    create = channel.unary_unary(
        "/forecrest.v1.WorkloadService/CreateWorkload",
        request_serializer=workload_service_pb2.CreateWorkloadRequest.SerializeToString,
    )
    for name in ("rec", "spare"):
        with suppress(grpc.aio.AioRpcError):  # it is still there
            await create(workload_service_pb2.CreateWorkloadRequest(workload=a_workload(), workload_id=name))
