"""Names are completed from the controller, with the words before them taken into account."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from controller.adapters.clock import SystemClock
from controller.adapters.fakes import FakeSignalCache, FakeStore
from controller.api.server import ApiDependencies, serve
from controller.core.resources import TrafficEvent
from controller.core.types import CapacityProfile, Workload

NOW = SystemClock().now()


@pytest.fixture
async def address() -> AsyncIterator[str]:
    store, clock = FakeStore(), SystemClock()
    for name in ("recommender", "ranker", "search"):
        store.tables.workloads[name] = Workload(name, "m", (CapacityProfile("int8", "L4", 1000.0),))
    event = TrafficEvent(
        "singles-day", ("search",), NOW, NOW + timedelta(hours=1), "UTC", expected_peak_qps=9.0
    )
    store.tables.events["singles-day"] = (event,)
    running = await serve(ApiDependencies(store, FakeSignalCache(clock), clock), "127.0.0.1:0")
    yield running.target
    await running.stop(grace_s=0)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("workloads", "get", "r"), ["ranker", "recommender"]),
        (("events", "get", "s"), ["singles-day"]),
        (("forecast", "se"), ["search"]),
        (("events", "create", "new", "--workload", "s"), ["search"]),
        (("workloads", "get", "x"), []),
    ],
)
async def test_names_are_completed_by_what_they_are(
    words: tuple[str, ...], expected: list[str], address: str, tmp_path: Path
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "controller"),
        cwd=tmp_path,
        env={
            **os.environ,
            "_FORECREST_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(("forecrest", *words)),
            "COMP_CWORD": str(len(words)),
            "FORECREST_ADDRESS": address,
        },
        stdout=asyncio.subprocess.PIPE,
    )
    offered, _ = await process.communicate()

    assert expected == offered.decode().split()
