"""Engines, their profiles, kept contracts and ordered listings: what every store keeps to."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from controller.adapters.fakes import FakeStore
from controller.adapters.postgres import Limits, PostgresStore
from controller.core.engines import (
    CapacityPoint,
    Engine,
    EngineKind,
    EngineMeasure,
    EngineProfile,
    EngineState,
    EngineValidation,
    OptimizationProfile,
)
from controller.core.resources import Page, TrafficEvent
from controller.core.types import CapacityProfile, Contract, ContractState, Precision, Slo
from controller.ports import ConflictError, NotFoundError, Retention, Store

MIDNIGHT = datetime(2026, 11, 11, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.fixture(params=["fake", "postgres"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    if request.param == "fake":
        yield FakeStore()
        return
    opened = PostgresStore(request.getfixturevalue("database_url"), Limits(connection_count=3))
    yield opened
    await opened.close()


def engine(engine_id: str = "int8", digit: str = "1") -> Engine:
    return Engine(
        id=engine_id,
        model_name="recommender",
        digest="sha256:" + digit * 64,
        model_digest="sha256:" + "f" * 64,
        kind=EngineKind.TENSORRT,
        precision=Precision.INT8,
        runtime_version="10.8.0",
        compute_capabilities=("8.9",),
        build_options=(("workspace", "1 GiB"),),
        optimization_profiles=(OptimizationProfile("ids", (1, 8), (16, 8), (64, 8)),),
        validation=EngineValidation((EngineMeasure("cosine", 0.999, min=0.99),), passed=True),
        created_at=MIDNIGHT,
    )


def profile(engine_id: str = "int8", gpu_type: str = "L4", at: datetime = MIDNIGHT) -> EngineProfile:
    capacity = CapacityProfile(f"engines/{engine_id}", gpu_type, 2400.0, precision=Precision.INT8)
    return EngineProfile(
        engine_id, capacity, Slo(), at, "tool", (CapacityPoint(2400.0, 40.0, within_slo=True),)
    )


async def test_an_engine_is_read_back_as_it_was_written(store: Store) -> None:
    async with store.unit_of_work() as uow:
        created = await uow.engines.create(replace(engine(), generation=7))
        await uow.commit()
    async with store.unit_of_work() as uow:
        assert created == engine() == await uow.engines.get("int8")
        with pytest.raises(NotFoundError):
            await uow.engines.get("nobody")


@pytest.mark.parametrize("other", [engine("int8", "2"), engine("other", "1")], ids=["id", "digest"])
async def test_neither_id_nor_digest_is_taken_twice(store: Store, other: Engine) -> None:
    async with store.unit_of_work() as uow:
        await uow.engines.create(engine())
        with pytest.raises(ConflictError):
            await uow.engines.create(other)
        await uow.commit()
    async with store.unit_of_work() as uow:
        assert [engine()] == list((await uow.engines.list())[0])


async def test_an_engine_changes_under_its_generation_only(store: Store) -> None:
    async with store.unit_of_work() as uow:
        await uow.engines.create(engine())
        active = await uow.engines.update(replace(engine(), state=EngineState.ACTIVE), expected_generation=1)
        with pytest.raises(ConflictError):
            await uow.engines.update(engine(), expected_generation=1)
        with pytest.raises(NotFoundError):
            await uow.engines.update(engine("nobody", "9"), expected_generation=None)
        await uow.commit()
    async with store.unit_of_work() as uow:
        assert (2, EngineState.ACTIVE) == (active.generation, (await uow.engines.get("int8")).state)


async def test_engines_come_in_pages_by_id(store: Store) -> None:
    async with store.unit_of_work() as uow:
        for number in range(3):
            await uow.engines.create(engine(f"e{number}", str(number)))
        first, token = await uow.engines.list(Page(2))
        second, end = await uow.engines.list(Page(2, token))

    assert (["e0", "e1"], ["e2"], "") == ([e.id for e in first], [e.id for e in second], end)


async def test_the_newest_measurement_counts(store: Store) -> None:
    async with store.unit_of_work() as uow:
        await uow.engines.put_profile(profile())
        newer = await uow.engines.put_profile(profile(at=MIDNIGHT + HOUR))
        kept = await uow.engines.put_profile(profile(at=MIDNIGHT - HOUR))
        await uow.engines.put_profile(profile(gpu_type="H200"))
        await uow.engines.put_profile(profile("other"))

        assert newer == kept == profile(at=MIDNIGHT + HOUR)
        assert [profile(gpu_type="H200"), newer] == list(await uow.engines.profiles(["int8"]))
        assert 3 == len(await uow.engines.profiles())
        assert [] == list(await uow.engines.profiles([]))


def contract(occurrence_id: str = "sale", verified: int = 0, end_at: datetime = MIDNIGHT) -> Contract:
    return Contract(
        event_id=occurrence_id,
        revision=1,
        state=ContractState.PREWARMING,
        replicas=8,
        order_at=end_at - 3 * HOUR,
        deadline_at=end_at - 2 * HOUR,
        start_at=end_at - HOUR,
        end_at=end_at,
        verified_count=verified,
    )


async def test_the_last_word_on_a_prewarm_is_kept_until_it_is_old(store: Store) -> None:
    async with store.unit_of_work() as uow:
        await uow.states.keep_contracts([("rec", contract()), ("search", contract())])
        await uow.states.keep_contracts(
            [("rec", contract(verified=8)), ("rec", contract("new", end_at=MIDNIGHT + 100 * DAY))]
        )
        await uow.states.keep_contracts([])
        await uow.commit()
    async with store.unit_of_work() as uow:
        assert contract(verified=8) == await uow.states.kept_contract("rec", "sale")
        assert contract() == await uow.states.kept_contract("search", "sale")
        assert await uow.states.kept_contract("rec", "nobody") is None

    assert 2 == await store.maintain(MIDNIGHT + 91 * DAY, Retention())

    async with store.unit_of_work() as uow:
        assert await uow.states.kept_contract("rec", "sale") is None
        assert await uow.states.kept_contract("rec", "new") is not None


@pytest.mark.parametrize(
    ("order_by", "descending", "expected"),
    [
        ("start_at", False, ["b", "a", "c"]),
        ("start_at", True, ["c", "a", "b"]),
        ("end_at", False, ["c", "a", "b"]),
        ("end_at", True, ["b", "a", "c"]),
        ("id", False, ["a", "b", "c"]),
        ("id", True, ["c", "b", "a"]),
    ],
)
async def test_events_come_in_the_order_asked_for_page_by_page(
    store: Store, order_by: str, descending: bool, expected: list[str]
) -> None:
    spans = {"a": (1, 8), "b": (0, 9), "c": (2, 7)}
    async with store.unit_of_work() as uow:
        for name, (start, end) in spans.items():
            await uow.events.create(
                TrafficEvent(name, ("rec",), MIDNIGHT + start * HOUR, MIDNIGHT + end * HOUR, "UTC")
            )
        found: list[str] = []
        token = ""
        for _ in range(3):
            rows, token = await uow.events.list(page=Page(1, token), order_by=order_by, descending=descending)
            found += [event.id for event in rows]

    assert (expected, "") == (found, token)


async def test_an_event_with_further_dates_overlaps_from_its_first_start_on(store: Store) -> None:
    event = TrafficEvent("a", ("rec",), MIDNIGHT, MIDNIGHT + HOUR, "UTC", rdates_at=(MIDNIGHT + 9 * DAY,))
    async with store.unit_of_work() as uow:
        await uow.events.create(event)
        rows, _ = await uow.events.list(overlaps=(MIDNIGHT + 5 * DAY, MIDNIGHT + 6 * DAY))

    assert [event] == list(rows)
