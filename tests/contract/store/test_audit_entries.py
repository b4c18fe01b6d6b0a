"""What every store tells of the audit log; against the fake and a real PostgreSQL."""

from datetime import UTC, datetime, timedelta

import pytest

from controller.adapters.fakes import FakeStore
from controller.adapters.postgres import PostgresStore
from controller.core.resources import AuditEntry, Page
from controller.ports import Store

NOW = datetime(2026, 11, 11, tzinfo=UTC)
ENTRIES = tuple(
    AuditEntry(
        at=NOW + timedelta(minutes=number),
        principal=f"token/{'ab'[number % 2]}",
        method="UpdateWorkload" if number < 3 else "Pause",
        resource="workloads/w" if number < 3 else "fleet",
        outcome="PERMISSION_DENIED" if number == 4 else "OK",
        request_id=f"r-{number}",
        version_before=number or None,
        version_after=number + 1,
        count=number + 1,
    )
    for number in range(5)
)


@pytest.fixture(params=["fake", "postgres"])
def store(request: pytest.FixtureRequest) -> Store:
    if request.param == "fake":
        return FakeStore()
    found: PostgresStore = request.getfixturevalue("postgres_store")
    return found


@pytest.fixture
async def logged(store: Store) -> Store:
    async with store.unit_of_work() as uow:
        for entry in ENTRIES:
            await uow.records.audit(entry)
        await uow.commit()
    return store


async def numbers(store: Store, **asked: object) -> list[int]:
    async with store.unit_of_work() as uow:
        found, _ = await uow.records.entries(**asked)  # type: ignore[arg-type]
    return [ENTRIES.index(entry) for entry in found]


async def test_entries_come_back_whole_newest_first(logged: Store) -> None:
    assert [4, 3, 2, 1, 0] == await numbers(logged)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"principal": "token/b"}, [3, 1]),
        ({"method": "Pause"}, [4, 3]),
        ({"resource": "workloads/w", "principal": "token/a"}, [2, 0]),
        ({"outcome": "PERMISSION_DENIED"}, [4]),
        ({"outcome": "permission_denied"}, []),
        ({"start_at": ENTRIES[1].at, "end_at": ENTRIES[3].at}, [2, 1]),
        ({"principal": "token/%"}, []),
    ],
    ids=str,
)
async def test_filters_must_all_match_exactly(
    logged: Store, asked: dict[str, object], expected: list[int]
) -> None:
    assert expected == await numbers(logged, **asked)


async def test_pages_go_on_where_the_last_one_ended_although_more_is_written(logged: Store) -> None:
    async with logged.unit_of_work() as uow:
        first, token = await uow.records.entries(page=Page(2))
        await uow.records.audit(ENTRIES[0])
        await uow.commit()
    async with logged.unit_of_work() as uow:
        second, rest = await uow.records.entries(page=Page(2, token))
        third, end = await uow.records.entries(page=Page(2, rest))

    assert [4, 3, 2, 1, 0] == [ENTRIES.index(entry) for entry in (*first, *second, *third)]
    assert "" == end


async def test_a_token_of_another_listing_is_refused(logged: Store) -> None:
    async with logged.unit_of_work() as uow:
        with pytest.raises(ValueError, match="page_token"):
            await uow.records.entries(page=Page(2, "WyJhIl0="))
