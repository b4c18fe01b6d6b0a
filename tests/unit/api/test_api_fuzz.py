"""Generated requests, valid, mutated and random bytes, leave the server up and get documented codes only."""

import random
from collections import Counter

import grpc
import pytest
from forecrest.v1 import (
    control_service_pb2,
    event_service_pb2,
    forecast_service_pb2,
    telemetry_service_pb2,
    workload_service_pb2,
)
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from controller.adapters.fakes import FakeStore
from controller.client import Client

REQUESTS = 300
FILES = (
    control_service_pb2,
    event_service_pb2,
    forecast_service_pb2,
    telemetry_service_pb2,
    workload_service_pb2,
)
METHODS = [
    (f"/{service.full_name}/{method.name}", GetMessageClass(method.input_type))
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if not method.server_streaming
]
DOCUMENTED = {"INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "ABORTED", "FAILED_PRECONDITION", "OK"}
TEXTS = (
    *("", "rec", "workloads/rec", "workloads/-", "workloads/rec/forecast", "workloads/rec/plan", "events/x"),
    *("workloads/rec/overrides/a", "decisions/rec-1", "x-1", "2026-12-11T00:00", "2026-12-12T00:00", "UTC"),
    *("FREQ=DAILY", "FREQ=MONTHLY;BYDAY=-1FR", "*", "\x00", "é", "a" * 300, "eyJ4Ijoi", "W10="),
)
FLOATS = (0.0, 1.0, -1.0, 0.5, 100.0, 1e300, 5e-324, float("nan"), float("inf"))
INTEGERS = (0, 1, 2, 3, 9, 60, 1000, -1, 2**31 - 1, -(2**31))
SECONDS = (0, 1, 60, 3600, -5, 2**45, -(2**50), 1_796_000_040, 1_797_000_000)


def value_of(field: FieldDescriptor, choose: random.Random) -> object:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return choose.choice(TEXTS).encode()
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return choose.choice(TEXTS)
    if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
        return choose.choice(FLOATS)
    if field.cpp_type == FieldDescriptor.CPPTYPE_INT64:
        return choose.choice(SECONDS)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return choose.random() < 0.5
    return choose.choice(INTEGERS)


def fill(message: Message, choose: random.Random) -> None:
    for field in message.DESCRIPTOR.fields:
        if choose.random() < 0.3:
            continue
        held = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].cpp_type == FieldDescriptor.CPPTYPE_STRING:
                held[choose.choice(TEXTS)] = choose.choice(TEXTS)
        elif field.is_repeated:
            for _ in range(choose.randint(0, 2)):
                if field.message_type is not None:
                    fill(held.add(), choose)
                else:
                    held.append(value_of(field, choose))
        elif field.message_type is not None:
            held.SetInParent()
            fill(held, choose)
        else:
            setattr(message, field.name, value_of(field, choose))


def request_bytes(kind: type[Message], choose: random.Random) -> bytes:
    message = kind()
    fill(message, choose)
    data = bytearray(message.SerializeToString())
    fate = choose.random()
    if fate < 0.1:
        return choose.randbytes(choose.randint(0, 60))
    if fate < 0.2 and data:
        data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
    return bytes(data)


@pytest.mark.parametrize("seed", range(3))
async def test_no_request_gets_an_undocumented_answer(client: Client, store: FakeStore, seed: int) -> None:
    choose = random.Random(seed)
    before = store.tables.workloads
    codes: Counter[str] = Counter()

    for _ in range(REQUESTS):
        store.tables.workloads = {
            **before,
            **store.tables.workloads,
        }  # a deletion must not end the test early
        method, kind = choose.choice(METHODS)
        try:
            await client.channel.unary_unary(method, request_serializer=bytes)(request_bytes(kind, choose))
            codes["OK"] += 1
        except grpc.aio.AioRpcError as error:
            codes[error.code().name] += 1

    assert set(codes) <= DOCUMENTED, codes
    assert {"OK", "INVALID_ARGUMENT", "NOT_FOUND"} <= set(codes)
