"""Offered load, and the search for the highest rate within the SLO."""

import asyncio
from math import nan

import pytest

from engines.profile import (
    REQUESTS_MIN,
    UNDER_WAY_MAX,
    Batching,
    LoadPoint,
    Objective,
    ProfileRow,
    Sustained,
    best,
    find_sustained,
    grid,
    load_quantiles,
    offer,
    summarize,
)

SLO = Objective(latency_ms_p99=50.0)


async def nothing() -> None:
    return


def point(qps: float, p99_ms: float, *, errors: int = 0, sent: int = 1000, late_ms: float = 0.0) -> LoadPoint:
    return LoadPoint(qps, qps, p99_ms / 2, p99_ms, p99_ms, sent, errors, late_ms)


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        pytest.param(point(100, 50.0), True, id="just within"),
        pytest.param(point(100, 50.1), False, id="too slow"),
        pytest.param(point(100, 5.0, errors=1), False, id="an error"),
        pytest.param(point(100, 5.0, sent=REQUESTS_MIN - 1), False, id="too few to know the P99"),
        pytest.param(point(100, 5.0, late_ms=20.0), False, id="the sender was at its end, not the server"),
        pytest.param(point(100, nan), False, id="nothing was answered"),
    ],
)
def test_what_counts_as_sustained(measured: LoadPoint, expected: bool) -> None:
    assert measured.meets(SLO) is expected


@pytest.mark.parametrize("text", ["latency_ms_p99", "error_share_max"])
def test_an_impossible_objective_is_refused_by_name(text: str) -> None:
    given = {"latency_ms_p99": 1.0, "error_share_max": 0.0} | {text: -1.0}
    with pytest.raises(ValueError, match=text):
        Objective(**given)


async def test_every_request_is_sent_and_the_failed_ones_are_counted() -> None:
    calls = 0

    async def sometimes() -> None:
        nonlocal calls
        calls += 1
        if calls % 10 == 0:
            raise ConnectionError("no")

    measured = summarize([await offer(sometimes, 5000.0, duration_s=0.1)])

    assert calls == measured.sent_count == 500
    assert measured.error_count == 50
    assert measured.first_error == "ConnectionError: no"


async def test_a_server_that_never_answers_ends_the_load_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engines.profile._DRAIN_S", 0.01)

    async def never() -> None:
        await asyncio.Event().wait()

    measured = summarize([await offer(never, 50_000.0, duration_s=0.05)])

    assert measured.error_count == measured.sent_count == 2500
    assert measured.sent_count > UNDER_WAY_MAX
    assert not measured.meets(SLO)


async def _search(limit_qps: float, **options: float) -> Sustained:
    async def measure(_send: object, qps: float, *, duration_s: float, seed: int) -> LoadPoint:
        assert duration_s > 0
        return point(qps, 10.0 if qps <= limit_qps else 500.0)

    return await find_sustained(nothing, SLO, measure=measure, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit_qps", [11.0, 100.0, 777.0, 5000.0])
async def test_the_search_ends_within_its_precision_below_the_limit(limit_qps: float) -> None:
    found = (await _search(limit_qps)).qps_max

    assert found is not None
    assert limit_qps / 1.05 <= found <= limit_qps


async def test_a_replica_that_holds_nothing_has_no_capacity_rather_than_zero() -> None:
    assert (await _search(1.0)).qps_max is None


async def test_the_search_stops_at_the_rate_it_was_told() -> None:
    assert (await _search(1e9, qps_to=1000.0)).qps_max == 1000.0


async def test_one_pause_of_the_machine_is_no_limit() -> None:
    pauses = [True]

    async def measure(_send: object, qps: float, *, duration_s: float, seed: int) -> LoadPoint:
        assert (duration_s, seed) >= (0, 0)
        return point(qps, 500.0 if qps > 200 or (qps > 100 and pauses and pauses.pop()) else 10.0)

    found = await find_sustained(nothing, SLO, measure=measure)

    assert found.qps_max is not None
    assert found.qps_max > 160


def test_the_grid_has_no_delay_without_batching() -> None:
    assert grid([1, 8], [0, 500], [1]) == [Batching(1, 0, 1), Batching(8, 0, 1), Batching(8, 500, 1)]


def test_loads_are_summed_up_by_what_was_seen() -> None:
    rows = [ProfileRow(Batching(1, 0, 1), Sustained(None, ()), load_s=s) for s in (3.0, 1.0, 2.0, None)]

    assert load_quantiles(rows) == (2.0, 3.0)
    assert load_quantiles(rows[3:]) is None


def test_the_best_row_sustains_most() -> None:
    rows = [
        ProfileRow(Batching(batch, 0, 1), Sustained(qps, ()))
        for batch, qps in ((1, 50.0), (4, 90.0), (8, None))
    ]

    assert best(rows) is rows[1]
    assert best(rows[2:]) is None
