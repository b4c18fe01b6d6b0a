"""The commands that bring demand in, as processes of their own against a server and a real Prometheus."""

import asyncio
import csv
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from controller.adapters.clock import SystemClock
from controller.adapters.fakes import FakeSignalCache, FakeStore
from controller.api.server import ApiDependencies, serve
from controller.core.types import CapacityProfile, Workload
from tests.integration.prometheus.conftest import StartPrometheus, start_prometheus

__all__ = ["start_prometheus"]

MINUTE = timedelta(minutes=1)
QUERY = "sum(rate(requests_total[1m]))"
# As late as the hour before last: everything is past, whatever the time.
NOON = SystemClock().now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=6)


@dataclass
class Said:
    code: int
    out: str
    err: str


Cli = Callable[..., Awaitable[Said]]


@pytest.fixture
def store() -> FakeStore:
    found = FakeStore()
    profile = CapacityProfile("e", "L4", 10.0)
    found.tables.workloads["rec"] = Workload("rec", "m", (profile,), demand_query=QUERY)
    found.tables.workloads["plain"] = Workload("plain", "m", (profile,))
    return found


@pytest.fixture
async def cli(store: FakeStore) -> AsyncIterator[Cli]:
    clock = SystemClock()
    server = await serve(ApiDependencies(store, FakeSignalCache(clock), clock), "127.0.0.1:0")

    async def call(*arguments: str) -> Said:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "controller", *arguments, "--address", server.target),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode is not None
        return Said(process.returncode, out.decode(), err.decode())

    yield call
    await server.stop(grace_s=0)


def stored(store: FakeStore, workload: str = "rec") -> dict[int, float]:
    return {
        (at - NOON) // MINUTE: sample.demand_count
        for (name, at), sample in store.tables.samples.items()
        if name == workload
    }


async def test_history_is_filled_from_prometheus_with_its_gap(
    cli: Cli, store: FakeStore, start_prometheus: StartPrometheus
) -> None:
    points = [
        (NOON + timedelta(seconds=15 * step), 75.0 * step) for step in range(480) if not 120 <= step < 240
    ]
    server = await start_prometheus("", {"requests": points})
    window = ("--start", NOON.isoformat(), "--end", (NOON + 119 * MINUTE).isoformat(), "--points", "25")
    said = await cli("traffic", "backfill", "-w", "rec", "--from-prometheus", server.url, *window, "--json")
    again = await cli(
        *("traffic", "backfill", "-w", "plain", "--from-prometheus", server.url, "--query", QUERY),
        *window,
    )

    assert said.code == 0, said.err
    summary = json.loads(said.out)
    found = stored(store)
    assert (summary["minutes"], summary["minutes"] + summary["unknown"]) == (len(found), 119)
    assert not set(found) & set(range(31, 60))
    assert set(range(1, 29)) | set(range(61, 119)) <= set(found)
    assert all(found[minute] == pytest.approx(300.0) for minute in range(1, 29))
    assert (again.code, stored(store, "plain")) == (0, found)
    assert f"Filled {len(found)} of 119 minutes" in again.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-w", "plain"), "--query: is needed"),
        (("-w", "nobody", "--query", "up"), "nobody does not exist"),
        (("-w", "rec", "--query", "sum("), "parse error"),
        (("-w", "rec", "--query", "requests_total"), "gives 2 series"),
        (("-w", "rec", "--start", "now"), "--start: must come at least a minute before"),
        (("-w", "rec", "--header", "nothing"), "--header: must look like"),
        (("-w", "rec", "--username", "u", "--token-file", "t"), "not both"),
    ],
)
async def test_a_backfill_that_cannot_work_says_why(
    cli: Cli, store: FakeStore, start_prometheus: StartPrometheus, arguments: tuple[str, ...], said: str
) -> None:
    points = [(NOON + timedelta(seconds=15 * step), 75.0 * step) for step in range(40)]
    labelled = {"requests": points, "others": points}
    server = await start_prometheus("", labelled)
    if "gives 2" in said:
        arguments = (*arguments[:-1], '{__name__=~"requests_total|others_total"}')
    start = (
        ()
        if "--start" in arguments
        else ("--start", NOON.isoformat(), "--end", (NOON + 9 * MINUTE).isoformat())
    )
    found = await cli("traffic", "backfill", "--from-prometheus", server.url, *arguments, *start)

    assert found.code != 0
    assert said in " ".join(found.err.split())
    assert store.tables.samples == {}


async def test_an_import_leaves_bad_rows_in_a_file_and_takes_the_rest(
    cli: Cli, store: FakeStore, tmp_path: Path
) -> None:
    file, rejects = tmp_path / "h.csv", tmp_path / "bad.csv"
    rows = [f"{(NOON + n * MINUTE).isoformat()},{n if n != 7 else 'seven'}" for n in range(50)]
    file.write_text("\n".join(["timestamp,value", *rows]))
    refused = await cli("history", "import", str(file), "-w", "rec", "--unit", "count")
    nothing = dict(store.tables.samples)
    taken = await cli(
        *("history", "import", str(file), "-w", "rec", "--unit", "count", "--rejects", str(rejects), "--json")
    )

    assert refused.code == 1
    assert "line 9: value 'seven' is not a number" in " ".join(refused.err.split())
    assert nothing == {}
    assert json.loads(taken.out)["minutes"] == 49
    assert json.loads(taken.out)["rejected"] == 1
    assert stored(store) == {n: float(n) for n in range(50) if n != 7}
    with rejects.open(newline="") as opened:
        assert [row["place"] for row in csv.DictReader(opened)] == ["line 9"]


async def test_a_parquet_file_is_imported(cli: Cli, store: FakeStore, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tmp_path / "h.parquet"
    times = [datetime.fromtimestamp(NOON.timestamp() + 300 * n, UTC) for n in range(12)]
    parquet.write_table(pa.table({"timestamp": times, "value": [2.0] * 12}), file)
    said = await cli("history", "import", str(file), "-w", "rec")

    assert said.code == 0, said.err
    assert stored(store) == dict.fromkeys(range(60), 120.0)
