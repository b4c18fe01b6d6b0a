"""What holds after any history of changes.

1. At most one engine of a target is ACTIVE.
2. Replaying in pieces gives the same state as replaying at once.
3. Garbage collection never takes an engine that serves, that somebody relies on, or that a rollback returns to.
4. An engine whose newest verdict failed is neither promotable nor what a rollback returns to.
"""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from engines.journal import (
    Change,
    Entry,
    ForbiddenChangeError,
    ModelState,
    State,
    removable,
    replay,
    require_promotable,
)

START = datetime(2026, 11, 1, tzinfo=UTC)
TARGETS = {"a": "gpu", "b": "gpu", "c": "gpu", "d": "cpu", "e": "cpu"}


@st.composite
def histories(draw: st.DrawFn) -> list[Entry]:
    """Entries as writers make them: a change is offered only to an engine it is allowed for."""
    entries: list[Entry] = []
    state = ModelState()
    for engine in draw(st.lists(st.sampled_from(sorted(TARGETS)), max_size=40)):
        record = state.engines.get(engine)
        if record is None:
            allowed = [Change.BUILT]
        else:
            allowed = [Change.GATE_PASSED, Change.GATE_FAILED, Change.REFERENCED, Change.RELEASED]
            if record.state is not State.RETIRED:
                allowed.append(Change.RETIRED)
            if record.state is State.VALIDATED and record.gate_is_passed:
                allowed.append(Change.PROMOTED)
            if record == state.previous(record.target):
                allowed.append(Change.ROLLED_BACK)
            if record.state is not State.ACTIVE and not record.owners:
                allowed.append(Change.REMOVED)
        number = len(entries) + 1
        entry = Entry(
            sequence=number,
            at=START + timedelta(hours=number),
            by="a test",
            change=draw(st.sampled_from(allowed)),
            engine_id=engine,
            folder=f"{engine}-{number}",
            manifest_digest=engine,
            target=TARGETS[engine],
            owner=draw(st.sampled_from(["x", "y"])),
        )
        entries.append(entry)
        state = replay([entry], state)
    return entries


@given(histories())
def test_1_one_engine_of_a_target_is_active(entries: list[Entry]) -> None:
    state = replay(entries)

    for target in set(TARGETS.values()):
        active = [e for e in state.engines.values() if e.target == target and e.state is State.ACTIVE]
        assert len(active) <= 1
        assert state.active(target) == (active[0] if active else None)


@given(histories(), st.integers(0, 40))
def test_2_replaying_in_pieces_is_replaying_at_once(entries: list[Entry], cut: int) -> None:
    assert replay(entries) == replay(entries[cut:], replay(entries[:cut]))


@given(histories(), st.integers(0, 40), st.integers(1, 3))
def test_3_what_is_needed_is_never_garbage(entries: list[Entry], hours: int, previous_kept: int) -> None:
    state = replay(entries)

    gone, kept = removable(state, built_before=START + timedelta(hours=hours), previous_kept=previous_kept)

    assert {e.engine_id for e in gone} | set(kept) == set(state.engines)
    assert not {e.engine_id for e in gone} & set(kept)
    for record in gone:
        assert record.state is not State.ACTIVE
        assert not record.owners
        assert record != state.previous(record.target)


@given(histories())
def test_4_what_failed_last_is_never_returned_to(entries: list[Entry]) -> None:
    state = replay(entries)

    for record in state.engines.values():
        if record.gate_is_passed is False:
            assert record != state.previous(record.target)
            try:
                require_promotable(record)
            except ForbiddenChangeError:
                continue
            raise AssertionError(f"{record} was promotable")
