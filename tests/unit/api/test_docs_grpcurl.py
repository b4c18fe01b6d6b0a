"""Every `grpcurl` command of the documentation works: run through reflection alone, as grpcurl itself does."""

import asyncio
import itertools
import json
import re
import shlex
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (  # type: ignore[import-untyped]
    ProtoReflectionDescriptorDatabase,
)

from controller.adapters.fakes import FakeSignalCache, FakeStore
from controller.api.server import ApiDependencies, RunningServer, serve
from controller.core.resources import ForecastRun, TrafficEvent, TrafficSample
from controller.core.types import CapacityProfile, ForecastBand, ForecastState, Mode, Workload
from tests.unit.api.conftest import SetClock, a_decision

DOCS = Path(__file__).resolve().parents[3] / "docs"
VALUED = {"-H", "-cacert", "-cert", "-key", "-authority", "-max-time", "-rpc-header"}
# What an example may meet on a server that has other data: the call itself was sound.
EXCUSED = {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION}


@dataclass(frozen=True)
class Command:
    place: str
    data: str
    address: str
    what: tuple[str, ...]


def commands() -> Iterator[Command]:
    for path in sorted(DOCS.glob("*.md")):
        for block in re.findall(r"```sh\n(.*?)```", path.read_text(), re.DOTALL):
            words = shlex.split(block.replace("\\\n", " "), comments=True)
            starts = [index for index, word in enumerate(words) if word == "grpcurl"]
            for start, end in itertools.pairwise([*starts, len(words)]):
                yield _command(path.name, words[start + 1 : end])


def _command(page: str, words: list[str]) -> Command:
    data, rest = "", []
    for word in (remaining := iter(words)):
        if word == "-d":
            data = next(remaining)
        elif word in VALUED:
            next(remaining)
        elif not word.startswith("-"):
            rest.append(word)
        if len(rest) == 3 or (len(rest) == 2 and rest[1] not in {"list", "describe"}):
            break
    return Command(f"{page}: {' '.join(rest[1:])}", data, rest[0], tuple(rest[1:]))


COMMANDS = list(commands())


class Reflected:
    """Knows of the server what reflection tells."""

    def __init__(self, target: str) -> None:
        self._channel = grpc.insecure_channel(target)
        self._database = ProtoReflectionDescriptorDatabase(self._channel)
        self._pool = DescriptorPool(self._database)

    def run(self, command: Command) -> object:
        """Services, methods, or the answer as JSON (of a stream the first); raise RpcError or ParseError."""
        try:
            if command.what[0] == "list":
                if len(command.what) == 1:
                    return sorted(self._database.get_services())
                return [m.name for m in self._pool.FindServiceByName(command.what[1]).methods]
            if command.what[0] == "describe":
                return self._pool.FindServiceByName(command.what[1]).full_name
            return self._call(command)
        finally:
            self._channel.close()

    def _call(self, command: Command) -> object:
        service, _, name = command.what[0].partition("/")
        method = self._pool.FindServiceByName(service).FindMethodByName(name)
        requests = [
            json_format.ParseDict(value, message_factory.GetMessageClass(method.input_type)())
            for value in _values(command.data)
        ]
        kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
        call = getattr(self._channel, kind)(
            f"/{command.what[0]}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
        )
        answer = call(iter(requests) if method.client_streaming else requests[0], timeout=60)
        if method.server_streaming:
            answer, stream = next(answer), answer
            stream.cancel()
        return json_format.MessageToDict(answer)


def _values(data: str) -> list[Any]:
    found, at, decoder = [], 0, json.JSONDecoder()
    while at < len(data.rstrip()):
        value, at = decoder.raw_decode(data, at)
        found.append(value)
        at += len(data[at:]) - len(data[at:].lstrip())
    return found or [{}]


@pytest.fixture
async def documented() -> AsyncIterator[RunningServer]:
    """A server that has what the examples speak of, on the day they speak of."""
    clock = SetClock(a_decision(0).at + timedelta(hours=18))
    store = FakeStore()
    tables = store.tables
    profile = CapacityProfile("int8", "L4", 2500.0)
    tables.workloads["recommender"] = Workload(
        "recommender", "recommender", (profile,), max_replicas=24, mode=Mode.KEDA
    )
    decision = replace(a_decision(0, "recommender"), mode=Mode.KEDA)
    tables.decisions[decision.id] = decision
    # Little history: a simulation of much takes its time.
    start = clock.at - timedelta(hours=2)
    for minute in range(120):
        at = start + timedelta(minutes=minute)
        tables.samples["recommender", at] = TrafficSample("recommender", at, 60.0 * 2000)
    band = ForecastBand(
        "f",
        clock.at,
        clock.at,
        timedelta(minutes=5),
        (0.1, 0.5, 0.9),
        ((1.0, 2.0, 3.0),) * 12,
        ForecastState.READY,
    )
    tables.forecasts["f"] = (ForecastRun("f", "recommender", clock.at, clock.at, 12), band)
    tables.events["midnight-sale"] = (
        TrafficEvent(
            "midnight-sale",
            ("recommender",),
            clock.at + timedelta(hours=2),
            clock.at + timedelta(hours=4),
            "Asia/Shanghai",
            expected_peak_qps=35_000.0,
        ),
    )
    server = await serve(ApiDependencies(store, FakeSignalCache(clock), clock), "127.0.0.1:0")
    yield server
    await server.stop(grace_s=0)


def test_there_are_examples_and_all_name_the_default_address() -> None:
    assert len(COMMANDS) >= 6
    assert {command.address for command in COMMANDS} <= {"127.0.0.1:7443", "forecrest.example:7443"}


@pytest.mark.parametrize(
    "command", COMMANDS, ids=[f"{c.place}#{n}" for c, n in zip(COMMANDS, itertools.count(), strict=False)]
)
async def test_a_documented_command_is_answered(documented: RunningServer, command: Command) -> None:
    def run() -> grpc.StatusCode:
        try:
            assert Reflected(documented.target).run(command) is not None
        except grpc.RpcError as error:
            return error.code()  # type: ignore[no-any-return] # of the call that failed
        return grpc.StatusCode.OK

    assert await asyncio.to_thread(run) in {grpc.StatusCode.OK, *EXCUSED}


async def test_a_command_that_is_wrong_is_noticed(documented: RunningServer) -> None:
    """The checks above can fail: a mistyped field or method does."""
    good = Command("", '{"page_size": 5}', "", ("forecrest.v1.EventService/ListEvents",))
    bad = replace(good, data='{"page_sise": 5}')
    gone = replace(good, what=("forecrest.v1.EventService/ListEvent",))

    listed = await asyncio.to_thread(Reflected(documented.target).run, good)
    assert isinstance(listed, dict)
    assert len(listed["events"]) == 1
    with pytest.raises(json_format.ParseError, match="page_sise"):
        await asyncio.to_thread(Reflected(documented.target).run, bad)
    with pytest.raises(KeyError):
        await asyncio.to_thread(Reflected(documented.target).run, gone)
