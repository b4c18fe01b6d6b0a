"""The soak's rules: each is broken once here, and says so."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, LiteralString

import pytest

from benchmarks import oracles
from benchmarks.fleet import Order
from benchmarks.harm import CLOCK, Harm, SoakFleet
from benchmarks.oracles import Ledger, Registered

NAME = "shop"
Rows = dict[str, list[tuple[Any, ...]]]


class KeptLedger(Ledger):
    """Reads rows that a test wrote."""

    rows: Rows

    async def _rows(self, query: LiteralString, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        del parameters
        return self.rows.get(query, [])


@pytest.fixture
def ledger() -> KeptLedger:
    """One workload of 1 to 9 replicas, decided at 4 a minute ago under token 7, which is what runs."""
    fleet = SoakFleet(load_s=0.0)
    fleet.pools[NAME] = []
    harm = Harm(None, fleet, None, None, None)  # type: ignore[arg-type] - nothing is harmed here
    found = KeptLedger("", fleet, harm, {NAME: (1, 9)}, 60.0)
    found.rows = {"SELECT count(*) FROM pg_stat_activity WHERE usename = current_user": [(3,)]}
    return found


def decided(
    desired: int, *, ago_s: float = 60.0, current: int = 4, fence: int = 7, demand: str | None = "80"
) -> Any:  # noqa: ANN401
    at_s = CLOCK.now().timestamp() - ago_s
    return (f"{desired}-{ago_s}-{fence}", at_s, NAME, current, desired, "STEADY", fence, demand)


def ordered(ledger: Ledger, replicas: int, *, fence: int = 7, ago_s: float = 50.0) -> None:
    ledger.fleet.orders.append(Order("scale", NAME, replicas, fence, applied=True))
    ledger.fleet.ordered_s.append(CLOCK.now().timestamp() - ago_s)


async def looked(ledger: KeptLedger, *rows: Any, calm: bool = False) -> list[str]:  # noqa: ANN401
    ledger.rows[oracles.NEW] = list(rows)
    await ledger.look(calm=calm)
    return [sentence.partition(":")[0] for sentence in ledger.wrong.values()]


async def test_what_keeps_the_rules_is_not_wrong(ledger: KeptLedger) -> None:
    ordered(ledger, 4)

    assert [] == await looked(ledger, decided(4), decided(3, ago_s=10))


@pytest.mark.parametrize(
    ("rule", "row"),
    [
        (1, decided(10)),
        (1, decided(0)),
        (2, decided(3, demand=None)),
    ],
)
async def test_one_decision_can_be_wrong(ledger: KeptLedger, rule: int, row: Any) -> None:  # noqa: ANN401
    assert [f"rule {rule}"] == await looked(ledger, row)


async def test_a_token_that_falls_is_wrong(ledger: KeptLedger) -> None:
    await looked(ledger, decided(4))

    assert ["rule 3"] == await looked(ledger, decided(5, ago_s=1, fence=6))


async def test_an_older_leader_s_order_after_a_newer_one_s_is_wrong(ledger: KeptLedger) -> None:
    ordered(ledger, 4, fence=8, ago_s=1)
    ordered(ledger, 4, ago_s=1)

    assert ["rule 3"] == await looked(ledger, decided(4), decided(4, fence=8, ago_s=2))


async def test_leaders_of_shards_without_workloads_claim_nothing_of_each_other_s(ledger: KeptLedger) -> None:
    for fence in (8, 6):
        ledger.fleet.orders.append(Order("claim", "", None, fence, applied=True))
        ledger.fleet.ordered_s.append(CLOCK.now().timestamp())

    assert [] == await looked(ledger, decided(4))


async def test_an_order_that_nobody_decided_is_wrong(ledger: KeptLedger) -> None:
    ordered(ledger, 5)

    assert ["rule 4"] == await looked(ledger, decided(4))


async def test_a_decision_after_its_order_is_wrong(ledger: KeptLedger) -> None:
    ordered(ledger, 4, ago_s=80)

    assert ["rule 4"] == await looked(ledger, decided(4))


async def test_a_count_that_stays_another_in_calm_is_wrong(
    ledger: KeptLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await looked(ledger, decided(4), calm=True)
    monkeypatch.setattr(oracles, "DRIFT_S", -1.0)

    assert ["rule 6"] == await looked(ledger, calm=True)


def event(**changed: Any) -> Registered:  # noqa: ANN401
    now_s = CLOCK.now().timestamp()
    base = Registered("e", (NAME,), 350.0, now_s - 3, now_s + 60, 10.0, 2, now_s - 300)
    return replace(base, **changed)


STORED = ("e", 2, "ACTIVE", '{"expected_peak_qps": 350.0}')
REVISIONS = [("e", 1), ("e", 2)]
Change = Callable[[KeptLedger], object]


@pytest.mark.parametrize(
    ("contract", "wrong"),
    [
        ('{"state": "SHORT", "met_at": null}', []),
        (
            '{"state": "ACTIVE", "met_at": "2026-01-01T00:00:00Z", "deadline_at": "2026-01-02T00:00:00Z"}',
            ["rule 5"],
        ),
        ('{"state": "ACTIVE", "met_at": "2026-01-03T00:00:00Z", "deadline_at": "2026-01-02T00:00:00Z"}', []),
    ],
    ids=["named", "said to be met", "met late and said so"],
)
async def test_an_event_that_is_not_warm_when_due_must_be_named(
    ledger: KeptLedger, contract: str, wrong: list[str]
) -> None:
    ledger.events["e"] = event()
    await looked(ledger)
    ledger.rows |= {oracles.CONTRACTS: [(NAME, "e", contract)], oracles.EVENTS: [STORED]}
    ledger.rows[oracles.REVISIONS] = list(REVISIONS)

    assert {"events_lost": 0} == await ledger.finish()
    assert wrong == [sentence.partition(":")[0] for sentence in ledger.wrong.values()]


async def test_what_was_warm_is_not_judged_by_what_is_long_after(ledger: KeptLedger) -> None:
    """A call about an event may be answered only after its end: until then nobody knows whether it stands."""
    now_s = CLOCK.now().timestamp()
    ledger.events["e"] = event(start_s=now_s - 100, end_s=now_s - 40)
    await looked(ledger)
    ledger.rows |= {oracles.EVENTS: [STORED], oracles.REVISIONS: list(REVISIONS)}
    await ledger.finish()

    assert ({}, 1, 0) == (ledger.wrong, ledger.unjudged, ledger.met)


async def test_a_decision_below_an_event_that_runs_is_wrong(ledger: KeptLedger) -> None:
    ledger.events["e"] = event(judged=True)
    await looked(ledger, decided(3, ago_s=5))
    ledger.rows |= {oracles.EVENTS: [STORED], oracles.REVISIONS: list(REVISIONS)}
    await ledger.finish()

    assert ["rule 5"] == [sentence.partition(":")[0] for sentence in ledger.wrong.values()]


async def test_going_down_while_no_replica_answers_is_wrong(ledger: KeptLedger) -> None:
    now_s = CLOCK.now().timestamp()
    ledger.harm.silences.append((NAME, now_s - 90, now_s))
    await looked(ledger, decided(3, ago_s=20))
    await ledger.finish()

    assert ["rule 2"] == [sentence.partition(":")[0] for sentence in ledger.wrong.values()]


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {oracles.EVENTS: [("e", 1, "ACTIVE", STORED[3])], oracles.REVISIONS: REVISIONS},
        {oracles.EVENTS: [("e", 2, "CANCELLED", STORED[3])], oracles.REVISIONS: REVISIONS},
        {oracles.EVENTS: [("e", 2, "ACTIVE", "{}")], oracles.REVISIONS: REVISIONS},
        {oracles.EVENTS: [STORED], oracles.REVISIONS: REVISIONS[:1]},
    ],
    ids=["gone", "an older revision", "cancelled", "another size", "a revision is gone"],
)
async def test_what_was_acknowledged_and_is_not_stored_is_lost(
    ledger: KeptLedger, stored: Mapping[str, Any]
) -> None:
    ledger.events["e"] = event(judged=True)
    ledger.rows |= dict(stored)

    assert {"events_lost": 1} == await ledger.finish()
