"""Traffic in columns means what the same minutes mean one by one; run against the fake and a real PostgreSQL."""

import asyncio
import math
from array import array
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from sqlalchemy.engine import make_url

from controller.adapters.fakes import FakeStore
from controller.adapters.postgres import PostgresStore
from controller.adapters.samples import samples_in, sound_blocks
from controller.core.resources import TrafficBlock
from controller.core.types import CapacityProfile, Workload
from controller.ports import Store

MIDNIGHT = datetime(2026, 11, 11, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
FIRST = int(MIDNIGHT.timestamp()) // 60
NAN = math.nan


@pytest.fixture(params=["fake", "postgres"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    if request.param == "fake":
        yield FakeStore()
        return
    found = PostgresStore(request.getfixturevalue("database_url"))
    yield found
    await found.close()


def block(workload: str = "w", *demand: float, start: int = 0, **columns: "array[float]") -> TrafficBlock:
    minutes = array("q", range(FIRST + start, FIRST + start + len(demand)))
    return TrafficBlock(workload, "gateway", minutes, array("d", demand), **columns)


async def put(store: Store, *blocks: TrafficBlock) -> int:
    async with store.unit_of_work() as unit:
        written = await unit.traffic.upsert_blocks(blocks)
        await unit.commit()
    return written


async def read(store: Store, workload: str = "w", count: int = 4) -> list[float | None]:
    async with store.unit_of_work() as unit:
        found = await unit.traffic.read(workload, MIDNIGHT, MIDNIGHT + count * MINUTE)
    return [qps for _, qps in found]


async def test_blocks_of_several_workloads_read_back(store: Store) -> None:
    assert await put(store, block("w", 60.0, 120.0), block("v", 180.0)) == 3

    assert await read(store) == [1.0, 2.0, None, None]
    assert await read(store, "v", 1) == [3.0]


async def test_an_overlapping_block_replaces_its_minutes_and_keeps_the_rest(store: Store) -> None:
    await put(store, block("w", 60.0, 60.0, 60.0))
    await put(store, block("w", 120.0, 180.0, start=2))

    assert await read(store) == [1.0, 1.0, 2.0, 3.0]


async def test_late_blocks_fill_gaps_of_older_partitions(store: Store) -> None:
    year = 366 * 24 * 60
    await put(store, block("w", 60.0))
    await put(store, block("w", 120.0, start=-year))

    async with store.unit_of_work() as unit:
        assert await unit.traffic.span("w") == (MIDNIGHT - 366 * 24 * 60 * MINUTE, MIDNIGHT)


async def test_coverage_counts_as_it_does_for_single_samples(store: Store) -> None:
    await put(store, block("w", 300.0, 300.0, coverages=array("d", [0.5, 0.4])))

    assert await read(store, count=2) == [10.0, None]


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (block("w", NAN), "demand_counts"),
        (block("w", math.inf), "demand_counts"),
        (block("w", -1.0), "demand_counts"),
        (block("w", 1.0, served_counts=array("d", [-1.0])), "served_counts"),
        (block("w", 1.0, rejected_counts=array("d", [math.inf])), "rejected_counts"),
        (block("w", 1.0, coverages=array("d", [1.5])), "coverages"),
        (block("w", 1.0, coverages=array("d", [NAN])), "coverages"),
        (block("w", 1.0, coverages=array("d", [])), "coverages"),
        (TrafficBlock("w", "gateway", array("q", [FIRST, FIRST]), array("d", [1.0, 1.0])), "minutes"),
        (TrafficBlock("w", "gateway", array("q", [1]), array("d", [1.0])), "minutes"),
        (TrafficBlock("w", "gateway", array("q", [2**62]), array("d", [1.0])), "minutes"),
        (block("", 1.0), "workload"),
        (TrafficBlock("w", "", array("q", [FIRST]), array("d", [1.0])), "source"),
        (block("v", 1.0), "workload"),
    ],
)
async def test_one_bad_column_refuses_everything_by_name(store: Store, bad: TrafficBlock, named: str) -> None:
    with pytest.raises(ValueError, match=rf"blocks\[1\]\.[a-z, ]*{named}"):
        await put(store, block("v", 60.0), bad)

    assert await read(store, "v", 1) == [None]


async def test_no_blocks_and_empty_blocks_are_no_work(store: Store) -> None:
    assert await put(store) == 0
    assert await put(store, block("w")) == 0


async def test_writers_of_the_same_new_minutes_at_once_all_succeed(store: Store) -> None:
    """Each looked before the others committed, so all but one find out at the copy and merge."""
    writers = [put(store, block("a", *[float(n)] * 50), block("b", *[float(n)] * 50)) for n in range(60, 66)]

    assert await asyncio.gather(*writers) == [100] * 6
    found = await read(store, "a", 50) + await read(store, "b", 50)
    assert len(set(found)) == 1
    assert found[0] in {n / 60 for n in range(60, 66)}


async def test_rows_are_the_same_whether_copied_or_merged(
    postgres_store: PostgresStore, database_url: str
) -> None:
    """Unknown counts in every pattern; the second time every minute is there already, with other counts."""
    served, rejected = array("d", [1.0, NAN, 2.0, NAN, 5.0]), array("d", [NAN, NAN, 3.0, 4.0, 6.0])
    coverages = array("d", [1.0, 0.5, 0.25, 1.0, 0.0])

    def given(demand: float) -> TrafficBlock:
        return block(
            "ä",
            *[demand] * 5,
            served_counts=served,
            rejected_counts=rejected,
            coverages=coverages,
        )

    address = make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
    query = (
        "SELECT workload, minute_at, demand_count, served_count, rejected_count, source, coverage "
        "FROM traffic_samples ORDER BY minute_at"
    )
    for demand in (7.0, 8.0):
        await put(postgres_store, given(demand))

        async with await psycopg.AsyncConnection.connect(address) as connection:
            rows = await (await connection.execute(query)).fetchall()
        expected = [
            (s.workload, s.minute_at, s.demand_count, s.served_count, s.rejected_count, s.source, s.coverage)
            for s in samples_in(sound_blocks([given(demand)]))
        ]
        assert expected == rows


async def test_known_workloads_are_told_from_others_at_once(store: Store) -> None:
    async with store.unit_of_work() as unit:
        await unit.workloads.create(Workload("a", "m", (CapacityProfile("e", "L4", 1.0),)))

        assert await unit.workloads.known(["a", "b", "a"]) == {"a"}
        assert await unit.workloads.known([]) == set()
