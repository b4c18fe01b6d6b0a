"""What holds for every method that changes something, over a real server: it is safe to repeat, to race and to try.

The methods come from the protos; one without a row in the table fails the first test.
"""

import asyncio
import uuid

import pytest

from controller.api.auth.roles import RULES
from tests.integration.api.conftest import World, answer, refusal
from tests.integration.api.methods import CASES, METHODS, path_of

MUTATING = sorted(n for n, c in CASES.items() if "request_id" in METHODS[n].input_type.fields_by_name)


def test_every_method_that_is_served_has_a_row() -> None:
    assert sorted(METHODS) == sorted(CASES)


def test_the_rules_of_access_and_this_table_agree_on_what_changes_things() -> None:
    disagree = [name for name, case in CASES.items() if RULES[path_of(name)].mutates != case.mutates]

    assert disagree == []


def test_every_mutation_of_a_resource_can_be_repeated_and_checked_without_doing_it() -> None:
    # Telemetry has neither: a minute replaces itself.
    lacking = [
        name
        for name, case in CASES.items()
        if case.mutates and not name.startswith("TelemetryService/")
        for field in ("request_id", "validate_only")
        if field not in METHODS[name].input_type.fields_by_name
    ]

    assert lacking == []


@pytest.mark.parametrize("name", MUTATING)
async def test_a_repeated_request_id_returns_the_first_response_to_the_same_body_only(
    world: World, name: str
) -> None:
    request = CASES[name].make()
    request.request_id = str(uuid.uuid4())

    first, second = await answer(world, name, request), await answer(world, name, request)
    request.validate_only = True
    other = await refusal(world, name, request)

    assert first == second
    assert ("ALREADY_EXISTS", "REQUEST_ID_REUSED") == (other.code, other.reason)


@pytest.mark.parametrize("name", MUTATING)
async def test_copies_of_one_request_at_the_same_time_do_it_once(world: World, name: str) -> None:
    request = CASES[name].make()
    request.request_id = str(uuid.uuid4())

    answers = await asyncio.gather(*(answer(world, name, request) for _ in range(4)))

    assert [answers[0]] * 4 == answers


@pytest.mark.parametrize("name", MUTATING)
async def test_validate_only_leaves_no_trace(world: World, name: str) -> None:
    request = CASES[name].make()
    request.validate_only = True

    checked = await answer(world, name, request)
    request.validate_only = False
    done = await answer(world, name, request)

    # Had the first changed anything, the second would be refused or find its work done.
    assert type(checked) is type(done)
    if not CASES[name].repeatable:
        assert "ALREADY_EXISTS" == (await refusal(world, name, request)).code or "Delete" in name
