"""The store as one caller sees it keeps up with the ports: a new method must be scoped, not forgotten."""

import base64
import inspect
from datetime import timedelta

import pytest

from controller import ports
from controller.adapters.fakes import FakeStore
from controller.api.auth import scope
from controller.api.auth.scope import Directory, HiddenError, ScopedStore
from controller.core.resources import Page
from controller.notify.types import Delivery, Kind, Notification, Severity
from controller.ports import ConflictError, NotFoundError
from controller.usecases.caller import Caller, ForbiddenError, enter
from tests.unit.api.conftest import NOW, SetClock
from tests.unit.auth.conftest import a_workload

SHOP = Caller("token/x", frozenset({"shop"}))


def methods(kind: type) -> set[str]:
    return {name for name, member in vars(kind).items() if inspect.isfunction(member) and name[0] != "_"}


def test_every_method_of_every_store_is_scoped() -> None:
    parts = ports.UnitOfWork.__annotations__
    kinds = {
        "workloads": scope._Workloads,
        "events": scope._Events,
        "traffic": scope._Traffic,
        "forecasts": scope._Forecasts,
        "accuracy": scope._Accuracy,
        "decisions": scope._Decisions,
        "states": scope._States,
        "warmups": scope._Warmups,
        "engines": scope._Engines,
        "notifications": scope._Notifications,
    }

    assert set(parts) - {"records"} == set(kinds), "add the new store to controller/api/auth/scope.py"
    for name, kind in kinds.items():
        port = parts[name] if isinstance(parts[name], type) else getattr(ports, parts[name])
        assert set() == methods(port) - methods(kind), f"scope the new methods of {name}"
    assert set() == methods(ports.Store) - methods(ScopedStore)
    assert set() == methods(ports.UnitOfWork) - methods(scope._ScopedUnitOfWork)


@pytest.fixture
def store() -> FakeStore:
    found = FakeStore()
    for number in range(30):
        for namespace in ("shop", "search"):
            found.tables.workloads[f"{namespace}-{number:02}"] = a_workload(
                f"{namespace}-{number:02}", namespace
            )
    return found


async def test_a_page_is_filled_with_what_the_caller_sees(store: FakeStore) -> None:
    enter(SHOP)
    async with ScopedStore(store).unit_of_work() as uow:
        first, token = await uow.workloads.list(Page(20))
        second, end = await uow.workloads.list(Page(20, token))

    assert [f"shop-{n:02}" for n in range(30)] == [w.name for w in (*first, *second)]
    assert (20, 10, "") == (len(first), len(second), end)


def named(token: str) -> str:
    """The row that a token names; anybody can read that much."""
    return base64.urlsafe_b64decode(token).decode()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 30, 59, 60, 1000])
async def test_pages_of_any_size_give_everything_once_and_name_nobody_else(
    store: FakeStore, size: int
) -> None:
    for number in range(0, 30, 7):  # stretches of others, also at the end
        for extra in range(number):
            name = f"shop-{number:02}-of-others-{extra:02}"
            store.tables.workloads[name] = a_workload(name, "search")
    enter(SHOP)
    found: list[str] = []
    token = ""
    async with ScopedStore(store).unit_of_work() as uow:
        while True:
            rows, token = await uow.workloads.list(Page(size, token))
            assert len(rows) <= size
            found += [row.name for row in rows]
            if not token:
                break
            assert "others" not in named(token)
            assert "search" not in named(token)

    assert [f"shop-{n:02}" for n in range(30)] == found


async def test_too_many_rows_of_others_are_refused_instead_of_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = FakeStore()
    store.tables.workloads["shop-00"] = a_workload("shop-00", "shop")
    monkeypatch.setattr(scope, "READS_MAX", 3)
    monkeypatch.setattr(scope, "SKIPPED_ROWS", 5)
    for number in range(40):
        name = f"shop-00-of-others-{number:02}"
        store.tables.workloads[name] = a_workload(name, "search")
    enter(SHOP)
    async with ScopedStore(store).unit_of_work() as uow:
        first, token = await uow.workloads.list(Page(2))
        with pytest.raises(HiddenError, match="one workload"):
            await uow.workloads.list(Page(2, token))

    assert ["shop-00"] == [row.name for row in first]
    assert '["shop-00"]' == named(token)


async def test_writes_of_the_loop_are_not_for_callers_of_some_namespaces(store: FakeStore) -> None:
    enter(SHOP)
    async with ScopedStore(store).unit_of_work() as uow:
        for write in (
            lambda: uow.decisions.append([]),
            lambda: uow.states.save({}),
            lambda: uow.states.keep_contracts([]),
            lambda: uow.warmups.append_all([]),
            lambda: uow.accuracy.put_scores("shop-01", []),
        ):
            with pytest.raises(ForbiddenError):
                await write()


async def test_the_process_itself_sees_everything(store: FakeStore) -> None:
    enter(Caller())
    async with ScopedStore(store).unit_of_work() as uow:
        assert 60 == len((await uow.workloads.list())[0])


async def test_a_directory_forgets_in_a_moment(store: FakeStore) -> None:
    class Moved(SetClock):
        at_s = 0.0

        def monotonic(self) -> float:
            return self.at_s

    clock = Moved(NOW)
    directory = Directory(store, clock, age_max_s=5.0, size_max=2)
    assert await directory.sees(SHOP, ["shop-01"])
    assert not await directory.sees(SHOP, ["shop-01", "search-01"])
    assert not await directory.sees(SHOP, ["nobody"])
    assert await directory.sees(Caller(), ["nobody"])

    store.tables.workloads["search-01"] = a_workload("search-01", "shop")
    clock.at_s += timedelta(seconds=5.1).total_seconds()

    assert await directory.sees(SHOP, ["search-01"])
    assert 2 == len(directory._known)


async def test_samples_for_other_namespaces_are_refused_whatever_checked_them_before(
    store: FakeStore,
) -> None:
    from controller.core.resources import TrafficSample

    enter(SHOP)
    async with ScopedStore(store).unit_of_work() as uow:
        with pytest.raises(NotFoundError):
            await uow.traffic.upsert([TrafficSample("search-01", NOW, 1.0)])


async def test_a_name_and_what_is_left_of_it_stay_in_the_namespace_it_was_used_in(store: FakeStore) -> None:
    enter(Caller("token/all", None))
    async with ScopedStore(store).unit_of_work() as uow:
        await uow.workloads.create(a_workload("cart", "shop"))
        await uow.workloads.create(a_workload("ranker", "search"))
        await uow.workloads.delete("cart", expected_generation=None)
        await uow.workloads.delete("ranker", expected_generation=None)
        await uow.commit()

    enter(SHOP)
    async with ScopedStore(store).unit_of_work() as uow:
        seen = {name: await uow.workloads.remains_in(name) for name in ("cart", "ranker", "new")}
        with pytest.raises(ConflictError, match="another namespace"):
            await uow.workloads.create(a_workload("ranker", "shop"))
    async with ScopedStore(store).unit_of_work() as uow:
        again = await uow.workloads.create(a_workload("cart", "shop"))

    assert {"cart": "shop", "ranker": None, "new": None} == seen
    assert again.namespace == "shop"


async def test_what_was_told_of_a_workload_in_another_namespace_stays_there(store: FakeStore) -> None:
    for sink, namespace in (("now", "shop"), ("before", "search")):
        told = Notification(
            sink, NOW, Kind.ALARM_RAISED, Severity.WARNING, "shop-01", namespace, "", "It rang.", None
        )
        store.tables.notifications[sink, sink] = Delivery(sink, told)

    enter(SHOP)
    async with ScopedStore(store).unit_of_work() as uow:
        rows, _ = await uow.notifications.list()

    assert ["now"] == [row.sink for row in rows]
