"""What a real Prometheus says, and what is made of it."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from controller.adapters.clock import SystemClock
from controller.adapters.prometheus import (
    Prometheus,
    PrometheusAccess,
    PrometheusTraffic,
    QueryError,
    minutes_of,
)
from controller.core.types import CapacityProfile, Workload
from controller.ports import UnavailableError
from tests.integration.prometheus.conftest import RunningPrometheus, StartPrometheus

NOON = datetime(2026, 11, 10, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
QUERY = "sum(rate(requests_total[1m]))"
QPS = 5.0
# Minutes in which nothing was scraped.
GAP = range(60, 90)


class StoppedClock(SystemClock):
    """Stands where the test puts it; pauses are counted, not made."""

    def __init__(self, at: datetime) -> None:
        self.at = at
        self.pauses: list[float] = []

    def now(self) -> datetime:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


def counter(minutes: int) -> list[tuple[datetime, float]]:
    """Four scrapes a minute at 5 requests per second, with a gap and, at minute 100, a restart."""
    points: list[tuple[datetime, float]] = []
    for step in range(4 * minutes):
        if step // 4 in GAP:
            continue
        since = step if step < 400 else step - 400
        points.append((NOON + timedelta(seconds=15 * step), QPS * 15 * since))
    return points


@pytest.fixture
def clock() -> StoppedClock:
    return StoppedClock(NOON + 30 * MINUTE)


@pytest.fixture
async def server(start_prometheus: StartPrometheus) -> RunningPrometheus:
    return await start_prometheus("", {"requests": counter(180)})


@pytest.fixture
async def prometheus(server: RunningPrometheus, clock: StoppedClock) -> AsyncIterator[Prometheus]:
    client = Prometheus(PrometheusAccess(server.url, points_max=50), clock)
    yield client
    await client.close()


def workload(query: str | None = QUERY, name: str = "rec") -> Workload:
    return Workload(name, "m", (CapacityProfile("e", "L4", 10.0),), demand_query=query)


async def test_a_rate_is_read_at_an_instant_and_is_unknown_where_nothing_was_scraped(
    prometheus: Prometheus,
) -> None:
    assert await prometheus.rate(QUERY, NOON + 30 * MINUTE) == pytest.approx(QPS)
    assert await prometheus.rate(QUERY, NOON + 75 * MINUTE) is None
    assert await prometheus.rate("scalar(vector(3))", NOON) == 3.0
    assert await prometheus.rate("vector(0)/0", NOON) is None


async def test_history_comes_in_chunks_with_its_gap_and_through_a_restart(prometheus: Prometheus) -> None:
    chunks = [c async for c in prometheus.rates(QUERY, NOON + 2 * MINUTE, NOON + 179 * MINUTE, MINUTE)]
    samples = {s.minute_at: s for chunk in chunks for s in minutes_of("rec", chunk)}

    # 178 instants, 50 a call.
    assert len(chunks) == 4
    minutes = {(at - NOON) // MINUTE for at in samples}
    # Around the gap a minute may lack a scrape at its edge.
    assert not minutes & set(range(GAP.start + 1, GAP.stop))
    assert set(range(1, GAP.start)) | set(range(GAP.stop + 1, 179)) <= minutes
    assert all(samples[NOON + m * MINUTE].demand_count == pytest.approx(300.0) for m in range(1, 59))
    # The counter fell to zero at minute 100: no minute is negative, and hardly anything is lost.
    assert 200 <= samples[NOON + 100 * MINUTE].demand_count <= 330


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("sum(rate(", "parse error"),
        ("requests_total[5m]", "not an instant vector"),
        ('label_replace(vector(1), "a", "b", "", "") or vector(2)', "gives 2 series"),
        ("vector(-1)", "no rate"),
        ("vector(Inf)", "no rate"),
        ("vector(1e11)", "no rate"),
    ],
)
async def test_a_query_that_cannot_work_says_why_and_is_not_repeated(
    prometheus: Prometheus, clock: StoppedClock, query: str, said: str
) -> None:
    with pytest.raises(QueryError, match=said) as caught:
        await prometheus.rate(query, NOON)

    assert query[:100] in str(caught.value)
    assert clock.pauses == []


async def test_a_workload_gets_live_demand_and_each_minute_once_it_has_settled(
    prometheus: Prometheus, clock: StoppedClock
) -> None:
    traffic = PrometheusTraffic(prometheus, clock, settle=timedelta(seconds=30))
    await traffic.refresh([workload(), workload(None, "counted")])
    observed = await traffic.observe([workload()])
    assert traffic._refreshing is not None
    await traffic._refreshing
    first = traffic.drain_samples()
    clock.at += timedelta(seconds=40)
    await traffic.refresh([workload()])
    second = traffic.drain_samples()
    await traffic.close()

    assert observed.keys() == {"rec"}
    demand = observed["rec"]
    assert (demand.at, demand.panic_qps, demand.expected_count) == (NOON + 30 * MINUTE, None, 1)
    assert demand.stable_qps == pytest.approx(QPS)
    # What nobody read before is read at once: the first minute has no scrape before it.
    assert [s.minute_at for s in first] == [NOON + m * MINUTE for m in range(29)]
    assert [(s.minute_at, round(s.demand_count), s.source) for s in second] == [
        (NOON + 29 * MINUTE, 300, "prometheus")
    ]


async def test_an_outage_is_caught_up_with(
    server: RunningPrometheus,
    prometheus: Prometheus,
    clock: StoppedClock,
    start_prometheus: StartPrometheus,
) -> None:
    traffic = PrometheusTraffic(prometheus, clock)
    await traffic.refresh([workload()])
    traffic.drain_samples()
    await server.stop()
    clock.at += 10 * MINUTE
    await traffic.refresh([workload()])
    failed, while_away = dict(traffic.failures), list(traffic.drain_samples())
    await start_prometheus("", {"requests": counter(180)}, port=int(server.url.rpartition(":")[2]))
    clock.at += timedelta(seconds=20)
    await traffic.refresh([workload()])

    assert "cannot be reached" in failed["rec"]
    assert while_away == []
    assert traffic.failures == {}
    assert [s.minute_at for s in traffic.drain_samples()] == [NOON + m * MINUTE for m in range(29, 39)]


async def test_demand_is_dropped_with_its_query_and_where_prometheus_knows_none(
    prometheus: Prometheus, clock: StoppedClock
) -> None:
    traffic = PrometheusTraffic(prometheus, clock)
    await traffic.refresh([workload()])
    # Another query: what the old one said is gone before the new one has answered.
    assert await traffic.observe([workload("sum(rate(others_total[1m]))")]) == {}
    await traffic.close()
    await traffic.refresh([workload()])
    clock.at = NOON + 75 * MINUTE
    await traffic.refresh([workload()])

    assert await traffic.observe([]) == {}


async def test_more_points_than_prometheus_gives_are_its_refusal_not_a_crash(
    server: RunningPrometheus, clock: StoppedClock
) -> None:
    client = Prometheus(PrometheusAccess(server.url), clock)
    long = [c async for c in client.rates(QUERY, NOON - 11_500 * MINUTE, NOON + 179 * MINUTE, MINUTE)]
    with pytest.raises(QueryError, match="11,000"):
        await client._chunk(QUERY, NOON - 20_000 * MINUTE, NOON, MINUTE)
    await client.close()

    assert [len(chunk) > 0 for chunk in long] == [False, True]


async def test_nobody_there_is_an_outage_after_growing_pauses(clock: StoppedClock) -> None:
    client = Prometheus(PrometheusAccess("http://127.0.0.1:1", attempts_max=4), clock)
    with pytest.raises(UnavailableError, match="cannot be reached"):
        await client.rate(QUERY, NOON)
    await client.close()

    assert len(clock.pauses) == 3
    assert clock.pauses == sorted(clock.pauses)
